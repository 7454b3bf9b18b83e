"""Is what a gather may read counted as read: tokens, state, depth and activations?

A position lies in a declared bound, or among what it was chosen from. Which entry it names decides
no count: execution with one table gives what the rules give for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import EquationError
from costmodel.language.equations import Form, Mixer
from costmodel.language.nodes import Array
from costmodel.oracle.execute import random_arrays
from costmodel.proofs.against_oracle import OracleComparison
from tests.small import by_sizes

Write = Callable[[Mixer, Form, Array, Array], None]


def mixer(write: Write) -> Mixer:
    """A mixer over l tokens of width d whose one form is written by a function."""
    made = Mixer(write.__name__.replace("_", "-"))
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        write(made, f, x, y)
    return made


def rows(f: Form, x: Array) -> tuple[Any, ...]:
    """Indices of a row and of two channels."""
    l, d = x.shape
    return f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)


def named_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each row attends to c rows up to itself, which a table names."""
    (c,) = m.sizes("c")
    l, d = x.shape
    W = m.parameter("W", d, d)
    R = m.buffer("R", l, c, below=lambda i, r: i)
    i, a, b = rows(f, x)
    r = f.index("r", 1, c)
    K, Z, A = f.array("K", l, d), f.array("Z", l, c), f.array("A", l, c)
    K[i, b] = cm.sum_(x[i, a] * W[a, b], over=a)
    Z[i, r] = cm.sum_(x[i, a] * K[R[i, r], a], over=a)
    A[i, r] = cm.softmax(Z[i, r], over=r)
    y[i, b] = cm.sum_(A[i, r] * x[R[i, r], b], over=r)


def earlier_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A row named for each row, at least w rows before it; the first w rows name none."""
    (w,) = m.sizes("w")
    l, _ = x.shape
    R = m.buffer("R", l, below=lambda i: i - w)
    i, _, b = rows(f, x)
    k, e = f.index("k", w + 1, l), f.index("e", 1, cm.min_(w, l))
    z = f.array("z", l, x.shape[1])
    z[i, b] = cm.exp(x[i, b])
    y[k, b] = z[R[k], b] * x[k, b]
    y[e, b] = z[e, b]


def deepest_row(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A running sum whose rows are gathered: it may be the own one, and any of them is held."""
    l, d = x.shape
    R = m.buffer("R", l, below=lambda i: i)
    i, _, b = rows(f, x)
    k, s = f.index("k", 2, l), f.array("s", l, d)
    s[1, b] = x[1, b]
    s[k, b] = s[k - 1, b] + x[k, b]
    y[i, b] = s[R[i], b] * x[i, b]


FORMS: tuple[Write, ...] = (named_rows, earlier_rows, deepest_row)
EXPECTED = (
    *("counts", "span", "values", "counts of one token", "span of one token"),
    "state of one token",
)
SIZES = [
    dict(zip("ldcw", values, strict=True)) for values in ((1, 1, 1, 1), (7, 2, 3, 2), (5, 3, 2, 7))
]
each_size = by_sizes(SIZES)
each_form = pytest.mark.parametrize("write", FORMS, ids=lambda w: w.__name__)


@each_form
@each_size
def test_what_may_be_gathered_counts_as_read(write: Write, sizes: dict[str, int]) -> None:
    made = OracleComparison(mixer(write)).at(sizes)
    assert made.apart == []
    assert {*made.compared} >= {*EXPECTED}


def test_by_hand() -> None:
    """All t rows of keys and of x may be read later; the running sum of row t takes t - 1."""
    state = cm.state(mixer(named_rows))
    assert [state.at(l=9, d=3, c=2, t=t) for t in (1, 4)] == [2 * 3, 2 * 4 * 3]
    assert cm.span(mixer(deepest_row)).at(l=9, d=3) == 8 + 1
    assert cm.state(mixer(deepest_row)).at(l=9, d=3, t=4) == 4 * 3


@pytest.mark.parametrize("value", [0, 4, 1.5])
def test_a_position_that_no_entry_has_is_named(value: float) -> None:
    made, sizes = mixer(named_rows), {"l": 3, "d": 2, "c": 1}
    given = random_arrays(made.forms["direct"], sizes)
    given["R"] = np.array([[1], [value], [1]])
    with pytest.raises(EquationError) as caught:
        cm.evaluate(made, given, sizes)
    assert str(caught.value) == f"R[2, 1] is {given['R'][1, 0]}, no position in 1..2"


def unnamed_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The first row names a row before it."""
    l, _ = x.shape
    R = m.buffer("R", l, below=lambda i: i - 1)
    i, _, b = rows(f, x)
    y[i, b] = x[R[i], b] * 2


def later_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The last row names a row after it."""
    l, _ = x.shape
    R = m.buffer("R", l, below=lambda i: i + 1)
    i, _, b = rows(f, x)
    y[i, b] = x[R[i], b] * 2


REFUSED: dict[Write, str] = {
    unnamed_rows: "y gathers at entries of R that hold no position (for instance at l = 1, d = 1)",
    later_rows: "y gathers from x, whose axis of extent l does not hold positions up to i + 1",
}


@pytest.mark.parametrize("write", REFUSED, ids=lambda w: w.__name__)
def test_a_bound_that_does_not_fit_is_refused(write: Write) -> None:
    with pytest.raises(EquationError) as caught:
        cm.count(mixer(write))
    assert str(caught.value) == REFUSED[write]
