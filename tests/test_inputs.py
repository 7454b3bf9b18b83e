"""Are several inputs over the same tokens, such as those of an earlier layer, read row by row?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import costmodel as cm
from costmodel import EquationError, Mixer
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.proofs.gradients import GradientComparison

Write = Callable[[Mixer, Form, Array, Array], None]


def mixer(write: Write) -> Mixer:
    """A mixer over l tokens of width d whose one form is written by a function."""
    made = Mixer(write.__name__.replace("_", "-"))
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        write(made, f, x, y)
    return made


def values_mixed_in(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Values are those of the first layer in part, as in RWKV-7, and summed up row by row."""
    l, d = x.shape
    v, g = m.input("v", l, d), m.parameter("g", d)
    z, i, a = f.index("z", 1, l), f.index("i", 2, l), f.index("a", 1, d)
    V, S = f.array("V", l, d), f.array("S", l, d)
    V[z, a] = x[z, a] + g[a] * (v[z, a] - x[z, a])
    S[1, a] = V[1, a]
    S[i, a] = S[i - 1, a] * g[a] + V[i, a]
    y[z, a] = S[z, a] * x[z, a]


def scores_added_to(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Scores of the layer before are added to one's own, as in RealFormer."""
    l, d = x.shape
    E = m.input("E", l, l)
    i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    j, S, A = f.index("j", 1, i), f.array("S", l, l), f.array("A", l, l)
    S[i, j] = cm.sum_(x[i, a] * x[j, a], over=a) + E[i, j]
    A[i, j] = cm.softmax(S[i, j], over=j)
    y[i, b] = cm.sum_(A[i, j] * x[j, b], over=j)


def earlier_rows_read_again(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The k latest rows of another input are summed up, so that k - 1 of them are held."""
    (l, d), (k,) = x.shape, m.sizes("k")
    v, w = m.input("v", l, d), m.parameter("w", k, d)
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    s = f.index("s", 1, cm.min_(k, i))
    y[i, a] = cm.sum_(v[i - s + 1, a] * w[s, a], over=s) * x[i, a]


@pytest.mark.parametrize("sizes", [{"l": 1, "d": 1, "k": 1}, {"l": 4, "d": 2, "k": 2}])
@pytest.mark.parametrize("write", [values_mixed_in, scores_added_to, earlier_rows_read_again])
def test_derived_answers_are_those_of_an_execution(write: Write, sizes: dict[str, int]) -> None:
    made = mixer(write)
    known = {letter: sizes[letter] for letter in made.letters}
    for compared in (OracleComparison(made), GradientComparison(made)):
        assert compared.at(known).apart == []
        assert compared.refused == []


@pytest.mark.parametrize(
    ("write", "held"),
    [(values_mixed_in, 3), (scores_added_to, 7 * 3), (earlier_rows_read_again, 3 * 3)],
)
def test_what_is_read_later_is_held(write: Write, held: int) -> None:
    """S, a row; the rows of x; 3 rows of v."""
    made = mixer(write)
    sizes = {"l": 9, "d": 3, "k": 4}
    assert cm.state(made).at(**{a: sizes[a] for a in made.letters}, t=7) == held


def test_the_path_is_that_from_any_input() -> None:
    """Rows of x reach their own row alone; those of v reach k - 1 later ones, in one step."""
    made = mixer(earlier_rows_read_again)
    assert cm.path_length(made).at(l=9, d=3, k=9) == 1


def test_inputs_are_over_the_same_tokens() -> None:
    m = Mixer("shorter")
    l, d, e = m.sizes("l d e")
    m.input("x", l, d)
    with pytest.raises(EquationError, match="z of shorter has e rows, and input x has l: give"):
        m.input("z", e, d)
