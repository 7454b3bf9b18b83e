"""Is a reduction over a union of ranges one reduction, and one free index several ranges?

The first s rows and the last w (attention sinks and a window, Xiao et al. 2023, arXiv 2309.17453)
are the guiding case; other layouts have gaps, ranges that are empty at some rows, and two unions at
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import costmodel as cm
from costmodel import EquationError, Mixer, union
from costmodel.errors import Unsupported
from costmodel.language.equations import Form
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Node, Reduce, walk
from costmodel.language.notation import equation
from costmodel.mixers import builtin
from costmodel.oracle.execute import execute, random_arrays
from costmodel.program.lowering import lower
from costmodel.program.phases import iteration_domains
from costmodel.proofs.against_oracle import OracleComparison, differences
from costmodel.questions.counting.derivation import sums
from costmodel.questions.counting.peers import contraction_counts
from costmodel.questions.subject import system_of
from costmodel.symbolic.sizes import ceil_log2
from tests import systems
from tests.small import by_sizes, complete
from tests.systems import examples


def sinks_and_window(f: Form, i: Index, s: Any, w: Any) -> Index:
    """Rows 1..s and i-w+1..i, those of the window that are sinks not twice."""
    return f.index("k", union((1, cm.min_(s, i)), (cm.max_(s + 1, i - w + 1), i)))


def sink_attention() -> Mixer:
    """Self-attention to the first s rows and the last w."""
    m = Mixer("sink-attention")
    l, d, n, w, s, h = m.sizes("l d n w s h")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_Q, W_K = m.parameter("W_Q", d, d), m.parameter("W_K", d, d)
    W_V, W_out = m.parameter("W_V", d, d), m.parameter("W_out", d, d)
    with m.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        k = sinks_and_window(f, i, s, w)
        Q, K, V = (f.array(name, n, l, h) for name in "QKV")
        Z, A, R = f.array("Z", n, l, l), f.array("A", n, l, l), f.array("R", l, d)
        for array, weights in ((Q, W_Q), (K, W_K), (V, W_V)):
            array[j, i, c] = cm.sum_(x[i, a] * weights[a, (j - 1) * h + c], over=a)
        Z[j, i, k] = cm.scaled(cm.sum_(Q[j, i, c] * K[j, k, c], over=c), by=h)
        A[j, i, k] = cm.softmax(Z[j, i, k], over=k)
        R[i, (j - 1) * h + c] = cm.sum_(A[j, i, k] * V[j, k, c], over=k)
        y[i, b] = cm.sum_(R[i, a] * W_out[a, b], over=a)
    return m


Write = Callable[[Mixer, Form, Array, Array], None]


def _indices(f: Form, x: Array) -> tuple[Any, Index, Index]:
    return x.shape[0], f.index("i", 1, x.shape[0]), f.index("b", 1, x.shape[1])


def by_lag(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A row itself and those at lags 2..w, with a weight for each lag: a gap at the row before."""
    (w,) = m.sizes("w")
    _, i, b = _indices(f, x)
    weights = m.parameter("p", w + 1)
    lag = f.index("lag", union((0, 0), (2, cm.min_(w, i - 1))))
    y[i, b] = cm.sum_(x[i - lag, b] * weights[lag + 1], over=lag)


def own_and_old(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A row itself and those at least w before it, of which the first w rows have none."""
    (w,) = m.sizes("w")
    l, i, b = _indices(f, x)
    weights = m.parameter("p", l)
    j = f.index("j", union((1, i - w), (i, i)))
    y[i, b] = cm.sum_(x[j, b] * weights[i - j + 1], over=j)


def two_of_the_past(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Two separate ranges of the past, neither of which holds a row everywhere."""
    (w,) = m.sizes("w")
    _, i, b = _indices(f, x)
    j = f.index("j", union((1, i - w - 2), (cm.max_(1, i - w), i - 1)))
    y[i, b] = x[i, b] + cm.sum_(cm.function("tanh", x[j, b]), over=j) * x[i, b]


def both_sides(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The w rows on either side, without the row itself."""
    (w,) = m.sizes("w")
    l, i, b = _indices(f, x)
    j = f.index("j", union((cm.max_(1, i - w), i - 1), (i + 1, cm.min_(l, i + w))))
    y[i, b] = x[i, b] - cm.sum_(x[j, b] * x[i, b], over=j)


def three_ranges(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The first row, row i and the last, for each i: where they coincide, they are one row."""
    l, i, b = _indices(f, x)
    inner = (cm.max_(2, i), cm.min_(i, l - 1))
    j = f.index("j", union((1, 1), inner, (cm.max_(2, l), l)))
    y[i, b] = cm.max_over(cm.function("tanh", x[j, b]), over=j)


def two_unions(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A sum over the pairs of two unions, of which the inner one depends on the outer."""
    w, s = m.sizes("w s")
    _, i, b = _indices(f, x)
    j = f.index("j", union((1, cm.min_(s, i)), (cm.max_(s + 1, i - w + 1), i)))
    k = f.index("k", union((1, j - 2), (j, j)))
    y[i, b] = cm.sum_(x[j, b] * x[k, b], over=(j, k))


def one_beside_another(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Numbers for pairs of two unions, of which a range of one goes with a range of the other: row
    1 of j with rows up to i, and every later one with the last w."""
    (w,) = m.sizes("w")
    l, i, b = _indices(f, x)
    j = f.index("j", union((1, 1), (2, i)))
    k = f.index("k", union((1, i), (cm.max_(1, i - w + 1), i)), beside=j)
    pairs = f.array("P", l, l, l, x.shape[1])
    pairs[i, j, k, b] = x[j, b] * x[k, b]
    y[i, b] = cm.sum_(pairs[i, j, k, b] * x[k, b], over=(j, k))


def free_union(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """An array defined at a union of rows, and by an equation of its own at the rows between."""
    (s,) = m.sizes("s")
    l, i, b = _indices(f, x)
    apart = f.index("apart", union((1, 1), (s + 2, l)))
    between = f.index("between", 2, cm.min_(s + 1, l))
    rows = f.array("S", *x.shape)
    rows[apart, b] = x[apart, b] * x[apart, b]
    rows[between, b] = x[between, b] + x[between - 1, b]
    y[i, b] = rows[i, b] * x[i, b]


def in_a_loop(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A recurrence whose rows take in what the first s rows and the last w hold."""
    w, s = m.sizes("w s")
    l, i, b = _indices(f, x)
    later = f.index("later", 2, l)
    seen = f.array("S", *x.shape)
    seen[i, b] = cm.sum_(x[k := sinks_and_window(f, i, s, w), b] * x[i, b], over=k)
    y[1, b] = seen[1, b]
    y[later, b] = cm.function("tanh", y[later - 1, b]) + seen[later, b]


LAYOUTS: tuple[Write, ...] = (
    by_lag,
    own_and_old,
    two_of_the_past,
    both_sides,
    three_ranges,
    two_unions,
    one_beside_another,
    free_union,
    in_a_loop,
)
each_layout = pytest.mark.parametrize("write", LAYOUTS, ids=lambda write: write.__name__)


def written(write: Write) -> Mixer:
    """A mixer over l tokens of width d."""
    m = Mixer(write.__name__)
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        write(m, f, x, y)
    return m


# w = 1, l < s, l = s, l < s + w and longer; windows past the length.
SIZES = [
    {"l": l, "d": 2, "n": 2, "w": w, "s": s} for l, w, s in product((1, 2, 3, 5), (1, 2, 7), (1, 3))
]
SIZES += [{"l": 4, "d": 6, "n": 2, "w": 2, "s": 6}, {"l": 7, "d": 3, "n": 1, "w": 2, "s": 2}]
each_size = by_sizes(SIZES)


def test_the_sinks_are_not_counted_twice() -> None:
    """A row sees min(i, s + w) rows: 1, 2, 3, 3, 3 of 5, which are 12 pairs, for s = 1, w = 2."""
    m, sizes = sink_attention(), {"l": 5, "d": 6, "n": 2, "w": 2, "s": 1}
    pairs, rows, heads = 12, 5, 2
    counts = cm.count(m).at(**sizes)
    # Four projections of 6 x 6; two products of width 3 per pair and head, which is 6 per pair.
    assert counts.mul == 4 * 36 * rows + 2 * 6 * pairs
    # R - 1 for each: projections, scores, the sums of exponentials, the weighted sums.
    scores, normal, weighted = heads * 2 * pairs, heads * (pairs - rows), 6 * (pairs - rows)
    assert counts.add == 4 * 30 * rows + scores + normal + weighted
    assert (counts.div, counts.exp) == (2 * heads * pairs, heads * pairs)


SWITCHES = (("safe-softmax",), ("scale=folded",), ("dense",), ("dense", "safe-softmax"))


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    ("sizes", "rewrites"), [*product(SIZES, [()]), *zip(SIZES, cycle(SWITCHES))], ids=str
)
def test_sink_attention_is_what_its_execution_counts(
    sizes: dict[str, int], rewrites: tuple[str, ...]
) -> None:
    assert differences(sink_attention(), sizes, rewrites=rewrites) == []


@pytest.mark.grid(18)
@pytest.mark.parametrize(
    ("write", "sizes", "accounting"),
    [*product(LAYOUTS, SIZES, ["strict"]), *product(LAYOUTS, SIZES[-1:], ["mac"])],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_a_layout_is_what_its_execution_counts(
    write: Write, sizes: dict[str, int], accounting: str
) -> None:
    mixer = written(write)
    assert OracleComparison(mixer, accounting=accounting).at(complete(mixer, sizes)).apart == []


# Layout -> what is not derived, and why; everything else is answered.
LEFT_OPEN: dict[Write, set[str]] = {
    # The number of pairs is a quadratic polynomial of the row.
    two_unions: {"span"},
    # Pairs of rows, of which no reader reads its own row.
    one_beside_another: {"path length"},
}


@each_layout
def test_every_question_about_a_layout_is_answered(write: Write) -> None:
    mixer, sizes = written(write), {"l": 5, "d": 3, "w": 2, "s": 2}
    found = OracleComparison(mixer).at(sizes)
    assert {line.split(":")[0].split(" at ")[0] for line in found.refused} == LEFT_OPEN.get(
        write, set()
    )


def test_what_is_held_is_the_sinks_and_the_window() -> None:
    """Keys and values of min(t, s + w - 1) rows: the window's oldest row is not seen again."""
    held = cm.state(sink_attention())
    for t, w, s in product(range(1, 12), (1, 2, 5), (1, 3, 4)):
        assert held.at(t=t, d=6, n=2, w=w, s=s) == 2 * 6 * min(t, s + w - 1)


def test_the_span_is_that_of_all_terms_together() -> None:
    """Four levels of products, one of exponentials and two of divisions; five sums, two of them of
    min(l, s + w) terms."""
    m = sink_attention()
    for l, w, s in product((1, 2, 5, 9, 64), (1, 3), (1, 2, 6)):
        terms = ceil_log2(min(l, s + w))
        assert cm.span(m).at(l=l, d=6, n=2, w=w, s=s) == 7 + 2 * 3 + 2 + 2 * terms
    assert [str(term) for term in cm.span(m).terms] == [
        "2*ceil_log2(Min(l, s + w)) + 2*ceil_log2(d) + ceil_log2(d/n) + 7"
    ]


def test_it_is_one_cumulation() -> None:
    """The chain of self-attention."""
    ours, theirs = (cm.critical_path(m) for m in (sink_attention(), builtin("self-attention")))
    assert ours.steps == theirs.steps
    assert cm.sequential(sink_attention()).at(l=9, d=6, n=2, w=3, s=2) == len(ours.steps) == 12


def test_dense_is_a_whole_square() -> None:
    """What a masked kernel computes: the gap between sinks and window too."""
    sizes = {"l": 9, "d": 6, "n": 2, "w": 2, "s": 3}
    ours, theirs = (
        cm.count(m, convention="dense").at(**sizes).by_class()
        for m in (sink_attention(), builtin("self-attention"))
    )
    assert ours == theirs
    assert cm.count(sink_attention(), convention="torch").at(**sizes).mul == theirs["mul"]


def test_dense_widens_every_range_of_a_sum() -> None:
    """A row itself and those at least w before it become all l; lags 2..w keep their gap."""
    at = {"l": 9, "d": 2, "w": 4}
    whole, gap = (cm.count(written(m), convention="dense").at(**at) for m in (own_and_old, by_lag))
    assert (whole.mul, gap.mul) == (9 * 9 * 2, 9 * 4 * 2)
    # AFT-local: three projections, a gate, and two sums over all l rows, nearby and far.
    local = cm.count(builtin("aft-local"), convention="dense").at(l=9, d=4, w=2)
    assert local.mul == 3 * 9 * 4 * 4 + 9 * 4 + 2 * 9 * 9 * 4


def test_an_equation_reads_its_operands_once_for_all_ranges() -> None:
    """Unfused traffic: one equation in the file reads an entry once, for whatever ranges."""
    m, sizes = written(free_union), {"l": 6, "d": 1, "s": 2}
    # S reads x at rows 1, 4, 5, 6, and for rows 2 and 3 at rows 1..3; y reads S and x.
    assert cm.traffic(m).unfused.at(**sizes)["activations"] == 4 + 3 + 2 * 6 + (6 + 6)

    sink = sink_attention()
    at = {"l": 6, "d": 2, "n": 1, "w": 2, "s": 2}
    # Pairs 1, 2, 3, 4, 4, 4. Projections read x and 4 weights each; Z reads Q once for both ranges.
    pairs, rows = 18, 12
    projections, scores = 3 * 2 * rows, 2 * rows + pairs
    softmax, output = 2 * pairs + (pairs + 6) + (2 * pairs + 6), 2 * rows
    moved = projections + scores + softmax + (pairs + 2 * rows) + output
    assert cm.traffic(sink).unfused.at(**at)["activations"] == moved


def test_values_are_those_of_a_mask() -> None:
    m, sizes = sink_attention(), {"l": 8, "d": 6, "n": 2, "w": 2, "s": 3}
    arrays = random_arrays(m.forms["direct"], sizes)
    x, l = arrays["x"], sizes["l"]
    q, k, v = (x @ arrays[name] for name in ("W_Q", "W_K", "W_V"))
    rows = np.arange(l)
    back = rows[:, None] - rows
    seen = (back >= 0) & ((rows < sizes["s"]) | (back < sizes["w"]))
    heads = []
    for head in np.split(np.arange(6), 2):
        scores = np.where(seen, np.exp(q[:, head] @ k[:, head].T / np.sqrt(3)), 0)
        heads.append(scores / scores.sum(1, keepdims=True) @ v[:, head])
    expected = np.concatenate(heads, 1) @ arrays["W_out"]
    # Sums of at most 8 numbers of size 1: rounding stays below 1e-12.
    for convention in ("strict", "safe-softmax"):
        found = cm.evaluate(m, arrays, sizes, convention=convention)
        assert abs(found - expected).max() < 1e-12


def test_values_of_a_maximum() -> None:
    m, sizes = written(three_ranges), {"l": 5, "d": 2}
    arrays = random_arrays(m.forms["direct"], sizes)
    x = np.tanh(arrays["x"])
    expected = [np.max(x[[0, row, 4]], axis=0) for row in range(5)]
    assert abs(cm.evaluate(m, arrays, sizes) - expected).max() == 0


@pytest.mark.parametrize("w", [1, 2, 7])
@pytest.mark.parametrize("l", [1, 2, 5])
def test_values_of_ranges_that_go_together(l: int, w: int) -> None:
    m, sizes = written(one_beside_another), {"l": l, "d": 2, "w": w}
    arrays = random_arrays(m.forms["direct"], sizes)
    x = arrays["x"]
    expected = np.zeros((l, 2))
    number = 0
    for i in range(l):
        for j in range(i + 1):
            for k in range(0 if j == 0 else max(0, i - w + 1), i + 1):
                expected[i] += x[j] * x[k] * x[k]
                number += 2
    # Sums of at most 25 products of size 1.
    assert abs(cm.evaluate(m, arrays, sizes) - expected).max() < 1e-12
    assert cm.count(m).at(**sizes).mul == 2 * number


def test_ranges_that_go_together_do_so_under_dense() -> None:
    """Each is widened by itself: row 1 with every row, and l - 1 others with every row."""
    m, sizes = written(one_beside_another), {"l": 5, "d": 1, "w": 2}
    assert OracleComparison(m, rewrites=("dense",)).at(sizes).apart == []
    assert cm.count(m, convention="dense").at(**sizes).mul == 2 * 5 * 25


def test_ranges_that_go_together_stand_together() -> None:
    m = Mixer("apart")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", union((1, 1), (2, i)))
        k = f.index("k", union((1, 1), (1, l)), beside=j)
        alone = "y: k is declared beside j: put both on the left side, or reduce over"
        with pytest.raises(EquationError, match=alone):
            y[i] = cm.sum_(x[k], over=k)
        with pytest.raises(EquationError, match=alone):
            y[k] = x[k]
        three = union((1, 1), (2, 2), (3, i))
        with pytest.raises(
            EquationError, match="index o has 3 ranges, and j, beside which it is declared, has 2"
        ):
            f.index("o", three, beside=j)
        y[i] = cm.sum_(x[j] * x[k], over=(j, k))


def reduced(ranges: Any, kind: str = "sum", **other: Any) -> Mixer:
    """y[i] = the sum or the maximum of x over a union of ranges; `ranges` of i, l and w."""
    m = Mixer("reduced")
    l, w = m.sizes("l w")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", ranges(i, l, w), **other)
        y[i] = (cm.sum_ if kind == "sum" else cm.max_over)(x[j], over=j)
    return m


@pytest.mark.parametrize("l", [1, 2, 3, 5, 9])
def test_r_terms_take_r_minus_1_additions(l: int) -> None:
    """Row i and the rows up to i - 2, of which rows 1 and 2 have none."""
    m = reduced(lambda i, l, w: union((1, i - w - 1), (i, i)))
    terms = [1 + max(0, i - 2) for i in range(1, l + 1)]
    assert cm.count(m).at(l=l, w=1).add == sum(terms) - l
    assert cm.count(m, convention="mac").at(l=l, w=1).add == sum(terms)
    assert cm.span(m).at(l=l, w=1) == ceil_log2(max(terms))


def test_a_maximum_needs_a_term_in_some_range_only() -> None:
    held = reduced(lambda i, l, w: union((1, i - w), (i, i)), "max")
    # Rows 1 and 2 see one row; rows 3, 4, 5 see 2, 3, 4: R - 1 comparisons each.
    assert cm.count(held).at(l=5, w=2).other == {"compare": 1 + 2 + 3}
    # Up to row w it is the second range that holds a row, and the first one afterwards.
    in_turn = reduced(lambda i, l, w: union((1, i - w), (i, cm.min_(i, w))), "max")
    assert differences(in_turn, {"l": 5, "w": 2}) == []
    assert cm.count(in_turn).at(l=5, w=2).other == {"compare": 0 + 1 + 2}
    nowhere = reduced(lambda i, l, w: union((1, i - w - 1), (i - w + 1, i - 1)), "max")
    with pytest.raises(EquationError, match="reads x outside"):
        cm.count(nowhere)
    none = reduced(lambda i, l, w: union((1, i - w - 1), (cm.max_(1, i - w + 1), i - 1)), "max")
    with pytest.raises(Unsupported, match="the maximum over j may have no term"):
        cm.count(none)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (lambda i, l, w: union((1, w), (w, i)), "the ranges of index j overlap"),
        (lambda i, l, w: union((1, w), (i - w + 1, i)), "the ranges of index j overlap"),
        (lambda i, l, w: union((i, i), (1, i - 1)), "the ranges of index j are not in ascending"),
        (lambda i, l, w: union((1, i - 1), (i, i), (i, l)), "the ranges of index j overlap"),
    ],
)
def test_ranges_that_are_not_apart_are_refused(ranges: Any, message: str) -> None:
    m = reduced(ranges)
    for ask in (cm.count, cm.span, cm.traffic, cm.state):
        with pytest.raises(EquationError, match=message) as caught:
            ask(m)
        assert "for instance at l = " in str(caught.value)


def test_an_execution_does_not_take_a_row_twice() -> None:
    m = reduced(lambda i, l, w: union((1, i), (i, i)))
    with pytest.raises(ValueError, match="the ranges of j overlap at sizes"):
        execute(m.forms["direct"], {"l": 2, "w": 1}).counts()


def test_bad_unions_are_refused() -> None:
    for bad in ((), ((1, 2),), ((1, 2), 3), ((1, 2, 3), (4, 5))):
        with pytest.raises(EquationError, match="union takes two or more ranges"):
            union(*bad)
    with pytest.raises(EquationError, match="takes a lower and an upper bound, or one union"):
        reduced(lambda i, l, w: union((1, 1), (2, i)), upper=2)
    with pytest.raises(EquationError, match="takes a lower and an upper bound, or one union"):
        reduced(lambda i, l, w: 1)


def test_a_union_has_no_transform_and_no_plain_reduction() -> None:
    m = Mixer("bad")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", union((1, 1), (2, l)))
        with pytest.raises(EquationError, match="rfft can run over one range only, and index j"):
            cm.rfft(x[j], over=j, length=l)
        with pytest.raises(
            EquationError, match="runs over several ranges, and one range is needed"
        ):
            _ = j.constraints
        y[i] = x[i]


def _reductions(value: Node) -> list[int]:
    return [len(node.parts) for node, _ in walk(value) if isinstance(node, Reduce)]


def test_an_equation_is_written_out_range_by_range() -> None:
    form = sink_attention().forms["direct"]
    names = Counter(e.name for e in lower(form).equations)
    assert names == {"Q": 1, "K": 1, "V": 1, "Z": 2, "A.exp": 2, "A.sum": 1, "A": 2, "R": 1, "y": 1}
    whole = {e.name: e for e in lower(form).equations}
    assert _reductions(whole["A.sum"].value) == [2]
    assert [len(group) for group in lower(form).written] == [1, 1, 1, 2, 2, 1, 2, 1, 1]
    dense = lower(form, ("dense",)).equations
    assert Counter(e.name for e in dense) == dict.fromkeys(names, 1)
    assert all(number == 1 for e in dense for number in _reductions(e.value))


SINKS = r"\{1,\dots,\min(s, i)\} \cup \{\max(s + 1, i - w + 1),\dots,i\}"


def test_it_is_printed_as_one_sum() -> None:
    Z, A, R = sink_attention().forms["direct"].equations[3:6]
    assert equation(R).right == rf"\sum_{{k \in {SINKS}}} A_{{j,i,k}} \, V_{{j,k,c}}"
    assert equation(Z).ranges[2] == rf"k \in {SINKS}"
    below = rf"\sum_{{k' \in {SINKS}}} e^{{Z_{{j,i,k'}}}}"
    assert equation(A).right == rf"\frac{{e^{{Z_{{j,i,k}}}}}}{{{below}}}"
    plain = "k = 1..min(s, i) and max(s + 1, i - w + 1)..i"
    assert equation(R, latex=False).right == f"sum({plain}) A[j,i,k] * V[j,k,c]"
    assert equation(Z, latex=False).ranges[2] == plain
    (largest,) = written(three_ranges).forms["direct"].equations
    assert equation(largest).right.startswith(r"\max_{j \in \{1,\dots,1\} \cup \{")
    pairs, _ = written(one_beside_another).forms["direct"].equations
    said = r"k \in \{1,\dots,i\} \text{ or } \{\max(1, i - w + 1),\dots,i\} \text{ as } j"
    assert said in equation(pairs).ranges
    assert "k = 1..i or max(1, i - w + 1)..i as j" in equation(pairs, latex=False).ranges


@pytest.mark.parametrize("phase", ["training", "inference"])
@each_size
def test_printed_sums_come_out_as_counts(sizes: dict[str, int], phase: str) -> None:
    m, at = sink_attention(), {**sizes, "t": sizes["l"]}
    found: Counter[str] = Counter()
    for part in iteration_domains(system_of(m, None, (), phase), phase):
        for name, terms in sums(part).items():
            found[name] += sum(term.at(at) for term in terms)
    counted = cm.count(m, phase).at(**at).by_class()
    assert {k: v for k, v in found.items() if v} == {k: v for k, v in counted.items() if v}


def test_a_contraction_over_a_union_is_one_contraction() -> None:
    """What a kernel that skips the masked pairs executes: R - 1 additions for R products."""
    m, sizes = sink_attention(), {"l": 5, "d": 6, "n": 2, "w": 2, "s": 1}
    found = contraction_counts(system_of(m, None, (), "training"), "training")["R"]
    pairs = 12
    assert found.products(sizes) == 6 * pairs
    assert found.operations(sizes) == 6 * pairs + 6 * (pairs - 5)


RANGES = (*systems.UNIONS, "sinks", "own", "causal")
REWRITES = st.sampled_from([(), ("dense",), ("safe-softmax",), ("scale=folded",)])


def test_rules_about_random_unions_equal_execution() -> None:
    """What is answered is what is executed, and few questions are left open."""
    asked: Counter[bool] = Counter()

    @given(mixer=systems.mixers(RANGES), sizes=systems.sizes(), rewrites=REWRITES)
    @settings(max_examples=examples(100))
    def ask(mixer: Mixer, sizes: dict[str, int], rewrites: tuple[str, ...]) -> None:
        made = OracleComparison(mixer, rewrites=rewrites).at(sizes)
        assert made.apart == [], sizes
        asked[bool(made.refused)] += 1

    ask()
    assert asked[True] <= 0.3 * asked.total()


@given(mixer=systems.mixers(RANGES, grown=True), sizes=systems.sizes(), rewrites=REWRITES)
@settings(max_examples=examples(60))
def test_random_systems_with_loops(
    mixer: Mixer, sizes: dict[str, int], rewrites: tuple[str, ...]
) -> None:
    assert OracleComparison(mixer, rewrites=rewrites).at(sizes).apart == [], sizes
