"""Does a sum over no term cost nothing, together with the operations on the missing sum?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import Mixer, function, max_, max_over, sum_
from costmodel.errors import Unsupported
from costmodel.language.equations import Form
from costmodel.language.indices import Index
from costmodel.language.nodes import Node
from costmodel.language.notation import equation as printed
from costmodel.program.lowering import lower
from costmodel.program.tokens import tokens
from costmodel.proofs.against_oracle import OracleComparison, differences
from costmodel.proofs.check import prove
from costmodel.symbolic.sizes import ceil_log2
from tests.small import by_sizes

SIZES = [{"l": l, "d": 2, "w": w} for l, w in ((1, 1), (2, 3), (3, 1), (4, 2), (5, 3))]
each_size = by_sizes(SIZES)


class Ranges:
    """The indices and arrays that the systems below are written with."""

    def __init__(self, mixer: Mixer, form: Form) -> None:
        self.l, self.d, self.w = mixer.sizes("l d w")
        self.x, self.y = mixer.arrays["x"], mixer.arrays["y"]
        self.weights = mixer.parameter("p", self.l, self.d)
        self.form = form
        self.i, self.b = form.index("i", 1, self.l), form.index("b", 1, self.d)
        self.before = form.index("j", 1, self.i - 1)
        self.lagged = form.index("k", max_(1, self.i - self.w), self.i - 1)
        self.past = form.index("q", 1, self.i - self.w)
        self.within = form.index("r", 1, self.before - 1)

    def sum(self, index: Index) -> Node:
        """The sum of x over a range."""
        return sum_(self.x[index, self.b], over=index)


Value = Callable[[Ranges], Any]


def mixer(value: Value) -> Mixer:
    """y[i,b] is an expression."""
    made = Mixer("empty")
    l, d = made.sizes("l d")
    made.input("x", l, d)
    y = made.output("y", l, d)
    with made.form("direct") as f:
        r = Ranges(made, f)
        y[r.i, r.b] = value(r)
    return made


def weighted(r: Ranges) -> Node:
    return sum_(r.x[r.before, r.b] * r.weights[r.before, r.b], over=r.before)


def added(r: Ranges) -> Node:
    return r.x[r.i, r.b] + r.sum(r.before)


def taken_away(r: Ranges) -> Node:
    return r.sum(r.before) - r.x[r.i, r.b]


def multiplied(r: Ranges) -> Node:
    return (r.x[r.i, r.b] + r.x[r.i, r.b]) * r.sum(r.before)


def divided(r: Ranges) -> Node:
    return r.sum(r.before) / function("exp", r.x[r.i, r.b])


def negated(r: Ranges) -> Node:
    return r.x[r.i, r.b] + -r.sum(r.before)


def of_two(r: Ranges) -> Node:
    return r.sum(r.lagged) + r.sum(r.past)


def passed_to_a_function(r: Ranges) -> Node:
    return function("tanh", r.sum(r.before))


def nested(r: Ranges) -> Node:
    """Row 2 has one term, which is itself a product with a sum over no term."""
    return sum_(r.x[r.before, r.b] * r.sum(r.within), over=r.before)


def by_its_own_row(r: Ranges) -> Node:
    """Row 1 reads nothing at all, not even its own row."""
    return sum_(r.x[r.before, r.b] * r.x[r.i, r.b], over=r.before)


EVERY: tuple[Value, ...] = (
    weighted,
    added,
    taken_away,
    multiplied,
    divided,
    negated,
    of_two,
    passed_to_a_function,
    nested,
    by_its_own_row,
)
each_value = pytest.mark.parametrize("value", EVERY, ids=lambda v: v.__name__)


@each_value
@each_size
def test_derived_answers_are_those_of_an_execution(value: Value, sizes: dict[str, int]) -> None:
    assert differences(mixer(value), sizes) == []


def total(row: Callable[[int], int], l: int) -> int:
    """A count of all rows, the first of which is row 1."""
    return sum(row(i) for i in range(1, l + 1))


# Operations of row i in one channel. i - 1 terms take i - 2 additions, and none where i = 1.
BY_HAND: Mapping[Value, Mapping[str, Callable[[int], int]]] = {
    weighted: {"mul": lambda i: i - 1, "add": lambda i: max(i - 2, 0)},
    # x[i] is one more term: i - 1 additions, 0 in row 1.
    added: {"add": lambda i: i - 1},
    taken_away: {"add": lambda i: i - 1},
    negated: {"add": lambda i: i - 1},
    # The addition in the bracket is done in row 1 too; the product is not.
    multiplied: {"mul": lambda i: int(i > 1), "add": lambda i: 1 + max(i - 2, 0)},
    divided: {"div": lambda i: int(i > 1), "exp": lambda i: 1, "add": lambda i: max(i - 2, 0)},
    # A function of 0 is computed.
    passed_to_a_function: {"tanh": lambda i: 1, "add": lambda i: max(i - 2, 0)},
    # Terms j = 2..i-1, each a sum of j - 1 terms (j - 2 additions) and a product.
    nested: {
        "mul": lambda i: max(i - 2, 0),
        "add": lambda i: sum(j - 2 for j in range(2, i)) + max(i - 3, 0),
    },
    by_its_own_row: {"mul": lambda i: i - 1, "add": lambda i: max(i - 2, 0)},
}


@pytest.mark.parametrize("value", BY_HAND, ids=lambda v: v.__name__)
@pytest.mark.parametrize("l", [1, 2, 3, 7, 100])
def test_counts_by_hand(value: Value, l: int) -> None:
    counts = cm.count(mixer(value)).at(l=l, d=3, w=2)
    together = {name: n for name, n in counts.by_class().items() if n}
    if counts.once is not None:
        for name, n in counts.once.by_class().items():
            together[name] = together.get(name, 0) + n
    expected = {name: 3 * total(row, l) for name, row in BY_HAND[value].items()}
    assert {k: n for k, n in together.items() if n} == {k: n for k, n in expected.items() if n}


@pytest.mark.parametrize(("l", "w"), [(1, 1), (3, 5), (5, 5), (6, 5), (7, 2), (20, 6)])
def test_two_sums_of_which_either_may_be_empty(l: int, w: int) -> None:
    """Rows i-w..i-1 and 1..i-w share row i-w where i > w: i additions less the two spared ones."""

    def row(i: int) -> int:
        lagged, past = min(i - 1, w), max(i - w, 0)
        spared = max(lagged - 1, 0) + max(past - 1, 0)
        return spared + (lagged > 0 and past > 0)

    assert cm.count(mixer(of_two)).at(l=l, d=3, w=w).add == 3 * total(row, l)


def test_a_sum_of_r_terms_spares_one_addition_where_it_has_terms() -> None:
    """Under `mac` R additions: none is spared, and none spent where there is no term."""
    strict, mac = (cm.count(mixer(weighted), convention=c).at(l=5, d=3) for c in ("strict", "mac"))
    assert (strict.add, mac.add) == (3 * (0 + 0 + 1 + 2 + 3), 3 * (0 + 1 + 2 + 3 + 4))


@pytest.mark.parametrize(
    ("value", "l", "levels"),
    [
        (weighted, 1, 0),
        (weighted, 2, 1),
        (weighted, 9, 1 + 3),
        (added, 1, 0),
        (added, 2, 1),
        (added, 9, 3 + 1),
        (multiplied, 1, 0),  # the addition in the bracket leads to no product
        (multiplied, 2, 2),
        (multiplied, 9, 3 + 1),
        (divided, 1, 0),  # nor does the exponential to a quotient
        (divided, 9, 3 + 1),
        (passed_to_a_function, 1, 1),
        (passed_to_a_function, 9, 3 + 1),
        # Row 9: the terms 2..8; that of 8 is a sum of 7 and a product; the sum of 7.
        (nested, 2, 0),
        (nested, 3, 1),
        (nested, 9, 3 + 1 + 3),
    ],
)
def test_spans_by_hand(value: Value, l: int, levels: int) -> None:
    assert cm.span(mixer(value)).at(l=l, d=2, w=2) == levels


@pytest.mark.parametrize(
    ("value", "l", "steps"),
    [
        (weighted, 1, ()),
        (weighted, 2, ("mul", "sum")),
        (added, 1, ()),
        (added, 2, ("sum", "add")),
        (multiplied, 1, ()),
        (divided, 1, ()),
        (divided, 2, ("exp", "div")),  # the sum of one term takes no level
        (divided, 5, ("sum", "div")),
        (passed_to_a_function, 1, ("tanh",)),
        (nested, 2, ()),
        (nested, 3, ("sum", "mul", "sum")),
    ],
)
def test_paths_by_hand(value: Value, l: int, steps: tuple[str, ...]) -> None:
    """What is not carried out at these sizes is no step; a sum over one term is one."""
    assert cm.critical_path(mixer(value), sizes={"l": l, "d": 2, "w": 2}).steps == steps


def test_a_row_that_reads_nothing_belongs_to_no_token() -> None:
    """Row 1 of a sum over earlier rows that are multiplied by row i: not even x[1] is read."""
    made = mixer(by_its_own_row)
    (term,) = tokens(lower(made.forms["direct"])).of(made.role("output"))
    assert str(term.token).lstrip("#") == "0"
    assert [str(c).lstrip("#") for c in term.where] == ["0 - 2"]
    assert [cm.count(made, "inference").at(l=5, d=3, t=t).mul for t in (1, 2, 5)] == [0, 3, 12]
    assert cm.traffic(made, "inference").compulsory.at(l=5, d=3, t=1) == {
        "activations": 0,
        "cache": 3,
    }


def test_a_row_of_sums_over_no_term_is_counted_once() -> None:
    """tanh(0) of row 1 depends on no input: it belongs to token 0."""
    counts = cm.count(mixer(passed_to_a_function)).at(l=5, d=3)
    assert counts.other == {"tanh": 4 * 3}
    assert counts.once is not None and counts.once.other == {"tanh": 3}


def test_an_entry_that_was_written_is_a_number_like_any_other() -> None:
    """g[1] is 0 because its sum has no term; x[1] * g[1] is computed all the same."""
    made = Mixer("written")
    l, d = made.sizes("l d")
    made.input("x", l, d)
    y = made.output("y", l, d)
    with made.form("direct") as f:
        r = Ranges(made, f)
        g = f.array("g", l, d)
        g[r.i, r.b] = r.sum(r.before)
        y[r.i, r.b] = r.x[r.i, r.b] * g[r.i, r.b]
    assert cm.count(made).at(l=4, d=3).mul == 4 * 3
    assert differences(made, {"l": 4, "d": 2, "w": 1}) == []


def test_the_state_is_what_later_rows_read() -> None:
    """All rows of a sum over earlier ones; the last w of a lagged window, of which row i-w is read
    for the last time in row i."""
    assert str(cm.state(mixer(weighted)).expr) == "d*t"
    lagged = mixer(lambda r: r.x[r.i, r.b] + r.sum(r.lagged))
    assert [cm.state(lagged).at(d=3, w=4, t=t) for t in (1, 3, 4, 5, 9)] == [3, 9, 12, 12, 12]


def test_a_maximum_over_no_term_is_refused() -> None:
    made = mixer(lambda r: max_over(r.x[r.before, r.b], over=r.before))
    for ask in (cm.count, cm.span, cm.critical_path):
        with pytest.raises(Unsupported) as caught:
            ask(made)
        assert str(caught.value).removeprefix("y: ") == (
            "the maximum over j may have no term: give j at least one value at every entry"
        )


def test_a_maximum_over_terms_that_may_be_nothing_is_refused() -> None:
    """Of the sums over r < j the first has no term: a maximum of 0 and numbers is no maximum of
    fewer numbers."""
    made = mixer(lambda r: max_over(r.sum(r.within), over=r.before))
    with pytest.raises(Unsupported, match="the maximum over j may have no term"):
        cm.count(made)


def test_logarithms_are_those_of_the_terms_that_are_there() -> None:
    """In row i the nested sum has i - 2 terms, not i - 1: 2**k + 2 rows take k levels."""
    for k in (1, 2, 3, 5):
        l = 2**k + 2
        last = ceil_log2(l - 2) + 1 + ceil_log2(l - 2)
        assert cm.span(mixer(nested)).at(l=l, d=1, w=1) == last


@pytest.mark.parametrize("handed_on", [False, True])
def test_zeros_outside_of_an_array_are_those_of_its_sequence(handed_on: bool) -> None:
    """y[i] reads the k rows before it; `dense` multiplies zeros in place of those before the first.
    Each of b sequences has zeros of its own, as a padded array has."""
    mixer = cm.Mixer("past")
    l, d, k = mixer.sizes("l d k")
    x, y, taps = mixer.input("x", l, d), mixer.output("y", l, d), mixer.parameter("W", k, d)
    with mixer.form("direct") as form:
        i, a, b = form.index("i", 1, l), form.index("a", 1, d), form.index("b", 1, d)
        back = form.index("s", 1, cm.min_(k, i - 1))
        before = sum_(x[i - back, a] * taps[back, a], over=back)
        if handed_on:
            z = form.array("z", l, d)
            z[i, a] = before
            y[i, a] = sum_(z[i, b] * taps[1, b], over=b) + x[i, a]
        else:
            y[i, a] = before
    for rewrites in ((), ("dense",), ("dense", "padded")):
        for sizes in ({"l": 1, "k": 1}, {"l": 1, "k": 3}, {"l": 3, "k": 2}, {"l": 4, "k": 5}):
            known = {**sizes, "d": 1, "n": 1, "t": sizes["l"]}
            assert OracleComparison(mixer, "direct", rewrites=rewrites).at(known).apart == []
    counted = cm.count(mixer, convention="dense")
    assert counted.once is not None and not counted.once.classes
    assert counted.at(l=4, d=1, k=2, b=3).mul == 3 * counted.at(l=4, d=1, k=2).mul


ENDS: dict[str, Callable[[Ranges], tuple[Any, Any]]] = {
    "2..1": lambda r: (2, 1),
    "3..1": lambda r: (3, 1),
    "l+1..l": lambda r: (r.l + 1, r.l),
    "2l..l": lambda r: (2 * r.l, r.l),
    "i+2..i": lambda r: (r.i + 2, r.i),
}
AROUND: dict[str, Callable[[Ranges, Node], Node]] = {
    "plus": lambda r, none: r.x[r.i, r.b] + none,
    "exp": lambda r, none: r.x[r.i, r.b] + function("exp", none),
    "alone": lambda r, none: none,
}


@pytest.mark.grid(3)
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("around", AROUND)
def test_a_range_that_is_always_empty_has_a_sum_of_0(around: str, ends: str) -> None:
    """Counts, depths, values and gradients are those of execution; the equation is printed."""

    def value(r: Ranges) -> Node:
        none = r.form.index("none", *ENDS[ends](r))
        return AROUND[around](r, sum_(r.x[r.i, r.b] * none, over=none))

    made = mixer(value)
    assert [proof.name for proof in prove(made) if proof.passed is False] == []
    sizes = {"l": 3, "d": 2, "w": 1}
    assert cm.count(made).at(**sizes).total == {"plus": 0, "exp": 3 * 2 * 2, "alone": 0}[around]
    x = np.arange(6.0).reshape(3, 2)
    expected = {"plus": x, "exp": x + 1, "alone": 0 * x}[around]
    arrays = {"x": x, "p": x}
    assert (cm.evaluate(made, arrays, sizes) == expected).all()
    if around != "alone":
        assert (cm.gradients(made, arrays, x, sizes)["x"] == x).all()
    (equation,) = made.forms["direct"].equations
    assert "none=" in printed(equation).right


@pytest.mark.parametrize("letter", ["w", "C"])
def test_a_parameter_of_half_a_size_is_proven_where_sizes_fit(letter: str) -> None:
    """(w + 1)/2 and (C + 1)/2 are whole at odd sizes alone; the mixer has no d."""
    m = Mixer("halves")
    l, w, C = m.sizes("l w C")
    x, y = m.input("x", l), m.output("y", l)
    P = m.parameter("P", ({"w": w, "C": C}[letter] + 1) / 2)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j, k = f.index("j", cm.max_(1, i - w + 1), i), f.index("k", (i - 1) // C * C + 1, i)
        y[i] = cm.sum_(x[j] * P[1], over=j) + cm.sum_(x[k], over=k)
    assert all(proof.passed is not False for proof in prove(m))
