"""Are small recurrences counted row by row as a hand counts them?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import EquationError, Mixer, exp, function, min_, sum_
from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.oracle.execute import execute, random_arrays
from costmodel.paths.unrolled import deepest
from costmodel.program.conventions import convention
from costmodel.program.lowering import lower
from costmodel.program.recurrences import blocks
from costmodel.program.tokens import tokens
from costmodel.proofs.against_oracle import OracleComparison, differences
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.question import Answers, Case
from costmodel.questions.registry import FIGURES
from costmodel.symbolic.sizes import ceil_log2
from tests.small import by_sizes

SIZES = [{"l": l, "d": d} for l, d in ((1, 3), (2, 2), (3, 1), (5, 3))]
each_size = by_sizes(SIZES)

Write = Callable[[Mixer, Form, Array, Array], None]


def mixer(write: Write) -> Mixer:
    """A mixer over l tokens of width d whose one form, `recurrent`, is written by a function."""
    made = Mixer(write.__name__.replace("_", "-"))
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("recurrent") as f:
        write(made, f, x, y)
    return made


def tanh_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = tanh(W x[i] + c + U y[i-1]), the first row without a row before."""
    l, d = x.shape
    W, U, c = m.parameter("W", d, d), m.parameter("U", d, d), m.parameter("c", d)
    i, a, b = f.index("i", 2, l), f.index("a", 1, d), f.index("b", 1, d)
    y[1, b] = function("tanh", sum_(x[1, a] * W[a, b], over=a) + c[b])
    y[i, b] = function(
        "tanh", sum_(x[i, a] * W[a, b], over=a) + c[b] + sum_(y[i - 1, a] * U[a, b], over=a)
    )


def cells(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """An LSTM: gates z (4 of them), a cell c, and hidden rows y, which need each other."""
    l, d = x.shape
    W, U, bias = m.parameter("W", 4, d, d), m.parameter("U", 4, d, d), m.parameter("bias", 4, d)
    i, k, g = f.index("i", 2, l), f.index("k", 1, l), f.index("g", 1, 4)
    a, b = f.index("a", 1, d), f.index("b", 1, d)
    z, c = f.array("z", l, 4, d), f.array("c", l, d)
    z[1, g, b] = sum_(x[1, a] * W[g, a, b], over=a) + bias[g, b]
    z[i, g, b] = (
        sum_(x[i, a] * W[g, a, b], over=a) + bias[g, b] + sum_(y[i - 1, a] * U[g, a, b], over=a)
    )
    c[1, b] = function("sigmoid", z[1, 1, b]) * function("tanh", z[1, 3, b])
    c[i, b] = function("sigmoid", z[i, 2, b]) * c[i - 1, b] + function(
        "sigmoid", z[i, 1, b]
    ) * function("tanh", z[i, 3, b])
    y[k, b] = function("sigmoid", z[k, 4, b]) * function("tanh", c[k, b])


def outer_products(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """S[i] = S[i-1] * g + x[i] x[i]^T, a matrix; y[i] = x[i]^T S[i]."""
    l, d = x.shape
    g = m.parameter("g", d)
    i, k, a, b = f.index("i", 2, l), f.index("k", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    S = f.array("S", l, d, d)
    S[1, a, b] = x[1, a] * x[1, b]
    S[i, a, b] = S[i - 1, a, b] * g[a] + x[i, a] * x[i, b]
    y[k, b] = sum_(x[k, a] * S[k, a, b], over=a)


def sums(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = y[i-1] + x[i]: the first row is a copy."""
    l, d = x.shape
    i, b = f.index("i", 2, l), f.index("b", 1, d)
    y[1, b] = x[1, b]
    y[i, b] = y[i - 1, b] + x[i, b]


def columns(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The same with tokens on the second axis."""
    l, d = x.shape
    i, k, b = f.index("i", 2, l), f.index("k", 1, l), f.index("b", 1, d)
    s = f.array("s", d, l)
    s[b, 1] = x[1, b]
    s[b, i] = s[b, i - 1] + x[i, b]
    y[k, b] = s[b, k]


def across(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A running sum over channels: the loop does not run over tokens."""
    l, d = x.shape
    k, b = f.index("k", 1, l), f.index("b", 2, d)
    y[k, 1] = x[k, 1]
    y[k, b] = y[k, b - 1] + x[k, b]


def two_layers(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Two loops one after the other: h[i] = tanh(h[i-1] + x[i]), y[i] = y[i-1] + h[i]."""
    l, d = x.shape
    i, b = f.index("i", 2, l), f.index("b", 1, d)
    h = f.array("h", l, d)
    h[1, b] = x[1, b]
    h[i, b] = function("tanh", h[i - 1, b] + x[i, b])
    y[1, b] = h[1, b]
    y[i, b] = y[i - 1, b] + h[i, b]


def learned_start(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """h[i+1] = h[i] * g + x[i] from a first row of weights."""
    l, d = x.shape
    g, start = m.parameter("g", d), m.parameter("start", d)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    h = f.array("h", l + 1, d)
    h[1, b] = start[b] * g[b]
    h[i + 1, b] = h[i, b] * g[b] + x[i, b]
    y[i, b] = h[i + 1, b]


def deepening(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = tanh(y[i-1]) + (x[1] + ... + x[i]) of a sum that gets deeper from row to row."""
    l, d = x.shape
    k, i, b = f.index("k", 1, l), f.index("i", 2, l), f.index("b", 1, d)
    j, s = f.index("j", 1, k), f.array("s", l, d)
    s[k, b] = sum_(x[j, b], over=j)
    y[1, b] = s[1, b]
    y[i, b] = function("tanh", y[i - 1, b]) + s[i, b]


def one_row_late(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = x[i] * s[i-1] of a running sum s: the last row of s is read by no row."""
    l, d = x.shape
    i, b = f.index("i", 2, l), f.index("b", 1, d)
    s = f.array("s", l, d)
    s[1, b] = x[1, b]
    s[i, b] = s[i - 1, b] + x[i, b]
    y[1, b] = x[1, b]
    y[i, b] = x[i, b] * s[i - 1, b]


def in_parts(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Running sums of exp(x), tanh(x) and sin(x), side by side, whose product is y."""
    l, d = x.shape
    k, i = f.index("k", 1, l), f.index("i", 2, l)
    b, p = f.index("b", 1, d), f.index("p", 1, 3 * d)
    P, S = f.array("P", l, 3 * d), f.array("S", l, 3 * d)
    for number, name in enumerate(("exp", "tanh", "sin")):
        P[k, number * d + b] = function(name, x[k, b])
    S[1, p] = P[1, p]
    S[i, p] = S[i - 1, p] + P[i, p]
    y[k, b] = S[k, b] * S[k, d + b] * S[k, 2 * d + b]


LOOPS: Mapping[Write, Mapping[str, int]] = {
    tanh_rows: {"y": 0},
    cells: {"z": 0, "c": 0, "y": 0},
    outer_products: {"S": 0},
    sums: {"y": 0},
    columns: {"s": 1},
    across: {"y": 1},
    learned_start: {"h": 0},
    deepening: {"y": 0},
    one_row_late: {"s": 0},
    in_parts: {"S": 0},
}
"""The arrays of the one loop of each, and the axis that its rows lie on."""
EVERY = [*LOOPS, two_layers]
each_loop = pytest.mark.parametrize("write", EVERY, ids=lambda w: w.__name__)


@pytest.mark.parametrize("write", LOOPS, ids=lambda w: w.__name__)
def test_the_axis_of_the_rows_is_derived(write: Write) -> None:
    system = lower(mixer(write).forms["recurrent"])
    (loop,) = (block for block in blocks(system) if block.is_loop)
    assert {array.name: axis for array, axis in loop.axes.items()} == LOOPS[write]


def test_loops_that_do_not_need_each_other_are_two() -> None:
    system = lower(mixer(two_layers).forms["recurrent"])
    found = [{array.name for array in block.axes} for block in blocks(system)]
    assert found == [{"h"}, {"y"}]


@pytest.mark.grid(3)
@each_loop
@each_size
def test_derived_answers_are_those_of_an_execution(write: Write, sizes: dict[str, int]) -> None:
    assert differences(mixer(write), sizes) == []


def rows(first: Mapping[str, int], further: Mapping[str, int], l: int) -> dict[str, int]:
    """A first row and l - 1 further ones."""
    every = {name: first.get(name, 0) + (l - 1) * n for name, n in further.items()}
    return {name: n for name, n in every.items() if n}


# First row and any further one, per class, at width d.
COUNTS: Mapping[Write, Callable[[int], tuple[Mapping[str, int], Mapping[str, int]]]] = {
    # d sums of d products and a bias, then the tanh; later d more sums of d, added.
    tanh_rows: lambda d: (
        {"mul": d * d, "add": d * d, "tanh": d},
        {"mul": 2 * d * d, "add": 2 * d * d, "tanh": d},
    ),
    # Four gates like that without the tanh; then 3 sigmoids (exp, add, div), 2 tanh, 3 products and
    # an addition a channel: in the first row, with no cell before, 2 sigmoids and 2 products.
    cells: lambda d: (
        {
            "mul": 4 * d * d + 2 * d,
            "add": 4 * d * d + 2 * d,
            "exp": 2 * d,
            "div": 2 * d,
            "tanh": 2 * d,
        },
        {
            "mul": 8 * d * d + 3 * d,
            "add": 8 * d * d + 4 * d,
            "exp": 3 * d,
            "div": 3 * d,
            "tanh": 2 * d,
        },
    ),
    # A product an entry, then two and an addition; d sums of d products read it.
    outer_products: lambda d: (
        {"mul": 2 * d * d, "add": d * (d - 1)},
        {"mul": 3 * d * d, "add": d * d + d * (d - 1)},
    ),
    sums: lambda d: ({}, {"add": d}),
    columns: lambda d: ({}, {"add": d}),
    across: lambda d: ({"add": d - 1}, {"add": d - 1}),
    two_layers: lambda d: ({}, {"add": 2 * d, "tanh": d}),
    learned_start: lambda d: ({"mul": d, "add": d}, {"mul": d, "add": d}),
    one_row_late: lambda d: ({}, {"mul": d, "add": d}),
    in_parts: lambda d: (
        (own := {"exp": d, "tanh": d, "sin": d, "mul": 2 * d}),
        {**own, "add": 3 * d},
    ),
}


def counted(counts: Any) -> dict[str, int]:
    return {name: n for name, n in counts.by_class().items() if n}


@pytest.mark.parametrize("write", COUNTS, ids=lambda w: w.__name__)
@each_size
def test_counts_by_hand(write: Write, sizes: dict[str, int]) -> None:
    l, (first, further) = sizes["l"], COUNTS[write](sizes["d"])
    found = cm.count(mixer(write)).at(**sizes)
    assert counted(found) == rows(first, further, l)
    for t in range(1, l + 1):
        token = cm.count(mixer(write), "inference").at(**sizes, t=t)
        expected = {name: n for name, n in (further if t > 1 else first).items() if n}
        assert counted(token) == expected, t


def test_work_on_the_first_row_of_weights_is_done_once() -> None:
    """d products with the learned start belong to token 0."""
    counts = cm.count(mixer(learned_start)).at(l=5, d=3)
    assert counts.mul == 5 * 3
    assert counted(counts.once) == {"mul": 3}
    assert counts.total == 2 * 5 * 3 + 3


@pytest.mark.parametrize(
    ("write", "held"),
    [
        (tanh_rows, "d"),
        (cells, "2*d"),
        (outer_products, "d**2"),
        (sums, "d"),
        (columns, "d"),
        (across, "0"),
        (two_layers, "2*d"),
        (learned_start, "d"),
        (deepening, "d*t + d"),
        (in_parts, "3*d"),
    ],
)
def test_the_state_is_the_last_row(write: Write, held: str) -> None:
    """Or all inputs besides, where a sum reads them again."""
    assert str(cm.state(mixer(write)).expr) == held


SPANS: Mapping[Write, Callable[[int, int], int]] = {
    # A row: product, sum of d, addition, tanh. All of them follow one another.
    tanh_rows: lambda l, d: l * (3 + ceil_log2(d)),
    # Row 1: product, sum, bias; sigmoid (3), product; tanh, product. Further rows: the product and
    # the sum of U y, an addition, sigmoid (3), product, addition; tanh, product.
    cells: lambda l, d: (3 - 1 + ceil_log2(d)) + 4 + 2 + (l - 1) * (1 + ceil_log2(d) + 1 + 5 + 2),
    # Row 1: a product; then a product and an addition a row; the last product and its sum.
    outer_products: lambda l, d: 1 + 2 * (l - 1) + 1 + ceil_log2(d),
    sums: lambda l, d: l - 1,
    columns: lambda l, d: l - 1,
    across: lambda l, d: d - 1,
    # h takes 2 levels a row, y one: from the last row of h.
    two_layers: lambda l, d: 2 * (l - 1) + (l > 1),
    # The product with the start, then a product and an addition a token.
    learned_start: lambda l, d: 1 + 2 * l,
    # Row 2 is a sum of two, one level, and an addition; then two levels a row, which no sum of i
    # rows catches up with: ceil_log2(i) grows by at most 1.
    deepening: lambda l, d: 2 * (l - 1),
    one_row_late: lambda l, d: l - 1,
    # A function, whichever it is, an addition a row, two products.
    in_parts: lambda l, d: l + 2,
}


@pytest.mark.parametrize("write", SPANS, ids=lambda w: w.__name__)
@each_size
def test_spans_by_hand(write: Write, sizes: dict[str, int]) -> None:
    assert cm.span(mixer(write)).at(**sizes) == SPANS[write](sizes["l"], sizes["d"])


@pytest.mark.parametrize("write", SPANS, ids=lambda w: w.__name__)
def test_spans_of_long_sequences(write: Write) -> None:
    """Of lengths that no oracle runs."""
    for l, d in ((64, 8), (1000, 128), (16384, 3)):
        assert cm.span(mixer(write)).at(l=l, d=d) == SPANS[write](l, d)


@pytest.mark.parametrize(
    ("write", "printed"),
    [
        (tanh_rows, "l*ceil_log2(d) + 3*l"),
        (cells, "l*ceil_log2(d) + 9*l - 1"),
        (sums, "l - 1"),
        (across, "d - 1"),
    ],
)
def test_spans_of_loops_are_printed_in_closed_form(write: Write, printed: str) -> None:
    assert str(cm.span(mixer(write)).expr) == printed


def part_by_part(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y reads running sums over channels, of the first row otherwise than of all further ones."""
    l, d = x.shape
    i, r = f.index("i", 1, l), f.index("r", 2, d)
    h, b, S = f.index("h", 2, l), f.index("b", 1, d), f.array("S", l, d)
    S[i, 1] = x[i, 1]
    S[i, r] = S[i, r - 1] + x[i, r]
    y[1, b] = 2 * S[1, b]
    y[h, b] = x[h - 1, b] * S[h, b] - S[h, b]


def halves(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A half of each row is known one level later than the other, and gets deeper faster."""
    l, d = x.shape
    k, i, b = f.index("k", 1, l), f.index("i", 2, l), f.index("b", 1, d)
    S = f.array("S", l, 2 * d)
    S[1, b] = x[1, b]
    S[1, d + b] = x[1, b] * 2
    S[i, b] = S[i - 1, b] + x[i, b]
    S[i, d + b] = S[i - 1, d + b] * x[i - 1, b] + x[i, b]
    y[k, b] = function("tanh", S[k, b] * x[k, b] * x[k, b]) + S[k, d + b]


def rows_in_two_ways(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """An array of the gradients, that of the sum in the tanh, has no entries in the first row."""
    l, d = x.shape
    i, h = f.index("i", 1, l), f.index("h", 2, l)
    b, r, S = f.index("b", 1, d), f.index("r", 2, d), f.array("S", l, d)
    S[i, 1] = x[i, 1]
    S[1, r] = S[1, r - 1] * x[1, r]
    S[h, r] = function("tanh", S[h, r - 1] + x[h, r])
    y[i, b] = S[i, b] * 2


def halves_of_all(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each half of a row reads the whole row before; both are equally deep."""
    l, d = x.shape
    k, i, b = f.index("k", 1, l), f.index("i", 2, l), f.index("b", 1, d)
    a, S = f.index("a", 1, 2 * d), f.array("S", l, 2 * d)
    S[1, b] = x[1, b]
    S[1, d + b] = x[1, b]
    S[i, b] = x[i, b] + sum_(S[i - 1, a], over=a)
    S[i, d + b] = x[i, b] * sum_(S[i - 1, a], over=a)
    y[k, b] = S[k, b] * S[k, d + b]


@pytest.mark.parametrize("write", [part_by_part, halves, halves_of_all], ids=lambda w: w.__name__)
def test_each_part_of_a_row_has_its_own_depth(write: Write) -> None:
    made = mixer(write)
    for compared in (OracleComparison(made), GradientComparison(made)):
        for sizes in SIZES:
            compared.at(sizes)
        assert compared.apart == [] and compared.refused == []


def test_an_array_has_no_depth_in_parts_without_its_entries() -> None:
    compared = GradientComparison(mixer(rows_in_two_ways))
    for sizes in ({"l": 1, "d": 4}, {"l": 2, "d": 3}):
        compared.at(sizes)
    assert compared.apart == [] and compared.refused == []


def late_and_deep(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = tanh(y[i-1]) + S[i] reads a recurrence V of l + 1 rows, which y's first row reads by a
    sum. Of V's gradient, row 2 reads more than the rows after it, and row 1 no row of S."""
    l, d = x.shape
    i, h = f.index("i", 1, l), f.index("h", 2, l)
    a, b = f.index("a", 1, d), f.index("b", 1, d)
    start, P = m.parameter("start", d), m.parameter("P", d, d)
    V, S = f.array("V", l + 1, d), f.array("S", l, d)
    V[1, b] = start[b]
    V[i + 1, b] = function("tanh", V[i, b]) + x[i, b]
    S[i, b] = function("sqrt", function("exp", V[i + 1, b]))
    y[1, b] = sum_(S[1, a] * P[a, b], over=a)
    y[h, b] = function("tanh", y[h - 1, b]) + S[h, b]


def two_last_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Of l + 2 rows, the last two have equations of their own."""
    l, d = x.shape
    i, k, b = f.index("i", 1, l - 1), f.index("k", 1, l), f.index("b", 1, d)
    V = f.array("V", l + 2, d)
    V[1, b] = x[1, b]
    V[i + 1, b] = V[i, b] + x[i, b]
    V[l + 1, b] = function("tanh", function("tanh", V[l, b]))
    V[l + 2, b] = V[l + 1, b] * x[l, b]
    y[k, b] = V[k + 2, b]


def test_a_row_of_its_own_before_the_last_is_counted() -> None:
    for write, compare in ((late_and_deep, GradientComparison), (two_last_rows, OracleComparison)):
        compared = compare(mixer(write))
        for length in (1, 2, 3, 5):
            compared.at({"l": length, "d": 1})
        assert compared.apart == []
        assert not any("backward" in line or "span:" in line for line in compared.refused)


def test_the_span_of_a_late_first_row_by_hand() -> None:
    """The slope 1 - tanh^2 of the last row, 2 levels; y.grad goes down l - 1 rows by a product and
    an addition each. From row 1 on, a product and log d for P, a division for the square root, a
    product for exp; the addition to the gradient that comes down the rows of V, and the product
    with the slope of the first row of V."""
    found = cm.span(mixer(late_and_deep), "backward")
    for l, d in ((3, 1), (8, 4)):
        assert found.at(l=l, d=d) == 2 + 2 * (l - 1) + 1 + ceil_log2(d) + 1 + 1 + 1 + 1


def read_in_three_ways(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Of R's gradient, each row is a sum of its own, which R's loop reads: row 1, read by Q, the
    last row, which no row of R reads, and the others."""
    l, d = x.shape
    h, i, b, w = f.index("h", 2, l), f.index("i", 1, l), f.index("b", 1, d), m.parameter("w", d)
    R, Q, C = f.array("R", l, d), f.array("Q", d), f.array("C", l, d)
    R[1, b] = w[b]
    R[h, b] = function("tanh", R[h - 1, b])
    C[i, b] = R[i, b]
    Q[b] = function("tanh", R[1, b])
    y[i, b] = R[i, b] * x[i, b] * Q[b] * C[i, b]


def test_a_loop_reads_what_is_written_after_its_first_equation() -> None:
    compared = GradientComparison(mixer(read_in_three_ways))
    for length in (1, 2, 4):
        compared.at({"l": length, "d": 1})
    assert compared.apart == []


def test_a_lone_row_at_no_distance_from_the_last_is_refused() -> None:
    def in_between(m: Mixer, f: Form, x: Array, y: Array) -> None:
        (l, d), (C,) = x.shape, m.sizes("C")
        i, k, b = f.index("i", 2, C), f.index("k", C + 2, l + C + 1), f.index("b", 1, d)
        V = f.array("V", l + C + 1, d)
        V[1, b] = x[1, b]
        V[i, b] = V[i - 1, b] * 2
        V[C + 1, b] = function("tanh", function("tanh", V[C, b]))
        V[k, b] = V[k - 1, b] * x[k - C - 1, b]
        y[k - C - 1, b] = V[k, b]

    with pytest.raises(Unsupported, match=r"V defines row C \+ 1 of the recurrence by itself"):
        cm.span(mixer(in_between))


def test_entries_of_a_row_that_are_not_equally_deep_are_refused() -> None:
    """A row reads the whole row before, and a half of it is known one level later."""

    def mixed(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        k, i, b = f.index("k", 1, l), f.index("i", 2, l), f.index("b", 1, d)
        a, S = f.index("a", 1, 2 * d), f.array("S", l, 2 * d)
        S[1, b] = x[1, b]
        S[1, d + b] = x[1, b]
        S[i, b] = sum_(S[i - 1, a], over=a)
        S[i, d + b] = sum_(S[i - 1, a], over=a) * x[i, b]
        y[k, b] = function("tanh", S[k, b])

    with pytest.raises(
        Unsupported, match=r"S: .* entries of one row of the recurrence differ in length"
    ):
        cm.span(mixer(mixed))


def test_rows_that_deepen_alike_late_are_searched() -> None:
    """a gains 5 operations a row until b, which gains 6, is ahead: from then on both gain 6."""

    def late(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        a, b = f.array("a", l, d), f.array("b", l, d)
        i, k, c = f.index("i", 2, l), f.index("k", 1, l), f.index("c", 1, d)
        a[1, c], b[1, c] = exp(exp(exp(x[1, c]))), x[1, c] * 2
        a[i, c] = exp(exp(exp(exp(a[i - 1, c])))) + b[i - 1, c]
        b[i, c] = exp(exp(exp(exp(exp(b[i - 1, c]))))) + a[i - 1, c]
        y[k, c] = a[k, c] + b[k, c]

    made = mixer(late)
    with pytest.raises(Unsupported, match=r"a, b: the longest .* within the first 5 rows"):
        cm.span(made)
    spans = [deepest(lower(made.forms["recurrent"]), "training", {"l": l, "d": 1}) for l in (2, 9)]
    assert spans == [9, 14 + 6 * 6]


def test_rows_whose_chain_gets_longer_are_refused() -> None:
    """y[i] = y[i-1] * (x[1] + ... + x[i]), summed after the product: log i levels a row."""

    def growing(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        i, b = f.index("i", 2, l), f.index("b", 1, d)
        j = f.index("j", 1, i)
        y[1, b] = x[1, b]
        y[i, b] = sum_(y[i - 1, b] * x[j, b], over=j)

    with pytest.raises(Unsupported, match="y: the chain of operations from one row of the recurr"):
        cm.span(mixer(growing))


ROW = ["mul", "sum", "add", "tanh"]


@pytest.mark.parametrize(
    ("write", "steps"),
    [
        (tanh_rows, (*ROW, {"times": "l - 1", "steps": ROW})),
        (outer_products, ("mul", {"times": "l - 1", "steps": ["mul", "add"]}, "mul", "sum")),
        (sums, ({"times": "l - 1", "steps": ["add"]},)),
        (across, ({"times": "d - 1", "steps": ["add"]},)),
        (two_layers, ({"times": "l - 1", "steps": ["add", "tanh"]}, "add")),
        (learned_start, ("mul", {"times": "l", "steps": ["mul", "add"]})),
        # Of the running sum only the rows before the last one.
        (one_row_late, ({"times": "l - 2", "steps": ["add"]}, "mul")),
    ],
)
def test_rows_are_a_block_of_the_critical_path(write: Write, steps: tuple[object, ...]) -> None:
    path = cm.critical_path(mixer(write))
    assert path.steps == steps
    assert cm.critical_path(mixer(write), sizes={"l": 9, "d": 4}).length.at({"l": 9, "d": 4}) == (
        path.length.at({"l": 9, "d": 4})
    )


def test_few_rows_are_written_out() -> None:
    """Three of them are shorter to read than a block that is repeated twice."""
    assert cm.critical_path(mixer(tanh_rows), sizes={"l": 3, "d": 4}).steps == (*ROW, *ROW, *ROW)
    assert cm.critical_path(mixer(sums), sizes={"l": 1, "d": 4}).steps == ()


def test_one_token_takes_one_row() -> None:
    assert cm.critical_path(mixer(tanh_rows), "inference").steps == (
        "mul",
        "sum",
        "add",
        "add",
        "tanh",
    )
    assert cm.span(mixer(sums), "inference").at(l=7, d=3, t=5) == 1
    assert cm.span(mixer(across), "inference").at(l=7, d=5, t=3) == 4


@each_loop
@each_size
def test_the_path_has_as_many_steps_as_the_longest_executed_chain(
    write: Write, sizes: dict[str, int]
) -> None:
    run = execute(mixer(write).forms["recurrent"], sizes)
    output = {k for k, e in enumerate(run.system.equations) if e.array.role == "output"}
    longest = max(i.steps for i in run.instances if i.equation in output)
    assert cm.critical_path(mixer(write), sizes=sizes).length.at(sizes) == longest


@pytest.mark.parametrize("C", [1, 2, 3, 4])
def test_the_symbolic_path_of_chunks_is_the_longest_executed_chain(C: int) -> None:
    """Without numbers a sequence is thought to have many chunks: the rows that wait are chunks.

    phi(k) 5 steps, k v^T and its sum over the first chunk, one addition for each further chunk
    before the last row's, then q s and its sum, N + q s, the division, the output's two.
    """
    mixer = cm.mixer("linear-attention")
    path = cm.critical_path(mixer, form="chunked")
    repeated = {"times": "floor((l - 1)/C) - 1", "steps": ["add"]}
    before = ("mul", "sum", "exp", "add", "compare", "mul", "sum")
    assert path.steps == (*before, repeated, "mul", "sum", "add", "div", "mul", "sum")
    for l in range(2 * C + 1, 4 * C + 3):
        sizes = {"l": l, "d": 2, "n": 1, "C": C}
        run = execute(mixer.forms["chunked"], sizes)
        output = {k for k, e in enumerate(run.system.equations) if e.array.role == "output"}
        longest = max(i.steps for i in run.instances if i.equation in output)
        assert path.length.at(sizes) == longest == 12 + (l - 1) // C, sizes


def test_a_first_row_of_weights_is_no_hop() -> None:
    """Row 3 reads s[1], a row of weights, which joins row 3 to no row, and s[2] = s[1] * x[1],
    which joins row 3 to row 2: two hops from row 1, and no more to a later row."""

    def of_weights(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        i, h, b = f.index("i", 1, l), f.index("h", 2, l), f.index("b", 1, d)
        s, j = f.array("s", l, d), f.index("j", 1, i)
        s[1, b] = m.parameter("w", d)[b]
        s[h, b] = s[h - 1, b] * x[h - 1, b]
        y[i, b] = sum_(s[j, b], over=j)

    made = mixer(of_weights)
    about = Answers(made, "recurrent", "training", convention("strict"))
    for length, hops in ((1, 0), (2, 1), (3, 2), (5, 2)):
        sizes = {"l": length, "d": 1}
        assert Case(about, sizes, symbolic=False).figure(FIGURES["path_length"]) == hops
        assert OracleComparison(made).at(sizes).apart == []


@pytest.mark.parametrize("first", [False, True])
def test_rows_that_carry_row_1_alone_are_one_hop_from_row_1(*, first: bool) -> None:
    """u[i] = tanh(u[i - 1]) begins with x[1], written by number or by an index over 1..1. Row i
    reads u[i], and so row 1, in one hop, beside row i - 1 of s: l - 2 hops from row 2."""

    def carried(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        i, h, b = f.index("i", 1, l), f.index("h", 2, l), f.index("b", 1, d)
        one = f.index("one", 1, 1) if first else 1
        s, u = f.array("s", l, d), f.array("u", l, d)
        s[1, b] = x[1, b]
        s[h, b] = function("tanh", s[h - 1, b] + x[h, b])
        u[one, b] = x[one, b]
        u[h, b] = function("tanh", u[h - 1, b])
        y[i, b] = s[i, b] * u[i, b]

    about = Answers(mixer(carried), "recurrent", "training", convention("strict"))
    for length, hops in ((1, 0), (2, 1), (3, 1), (5, 3)):
        sizes = {"l": length, "d": 1}
        assert Case(about, sizes, symbolic=False).figure(FIGURES["path_length"]) == hops
        assert OracleComparison(mixer(carried)).at(sizes).apart == []


def test_a_path_through_copied_rows_is_named_at_each_length() -> None:
    """s[i] copies s[i - 1]: each row has the depth of s[1], so that no length of the path tells
    through which row the path leads."""

    def copied(m: Mixer, f: Form, x: Array, y: Array) -> None:
        l, d = x.shape
        i, h, b = f.index("i", 1, l), f.index("h", 2, l), f.index("b", 1, d)
        s = f.array("s", l, d)
        s[1, b] = function("exp", m.parameter("w", d)[b])
        s[h, b] = s[h - 1, b]
        y[i, b] = s[i, b] * x[i, b]

    for length in (1, 2, 4):
        assert cm.critical_path(mixer(copied), sizes={"l": length, "d": 2}).steps == ("exp", "mul")
    assert cm.critical_path(mixer(copied)).steps == ("exp", "mul")


def test_rows_are_evaluated_one_after_another() -> None:
    """Against the recurrence written out with numpy; a few rows of numbers of size one."""
    made, sizes = mixer(tanh_rows), {"l": 4, "d": 3}
    given = random_arrays(made.forms["recurrent"], sizes)
    h, found = np.zeros(3), []
    for row in given["x"]:
        h = np.tanh(row @ given["W"] + given["c"] + h @ given["U"])
        found.append(h)
    assert np.allclose(cm.evaluate(made, given, sizes), found, rtol=0, atol=1e-14)


def test_a_row_belongs_to_its_token_and_a_first_row_of_weights_to_none() -> None:
    made = mixer(learned_start)
    h = made.forms["recurrent"].arrays["h"]
    (term,) = tokens(lower(made.forms["recurrent"])).of(h)
    assert (str(term.token).lstrip("#"), term.where) == ("0 - 1", frozenset())


# --------------------------------------------------------------------------------------------------
# What is refused, and in which words
# --------------------------------------------------------------------------------------------------


def read_too_early(m: Mixer, f: Form, x: Array, y: Array) -> None:
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    s = f.array("s", l, d)
    y[i, b] = s[i, b] * 2
    s[i, b] = x[i, b] * 2


def half_read(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """s is read between its two equations."""
    l, d = x.shape
    i, k, b = f.index("i", 2, l), f.index("k", 1, l), f.index("b", 1, d)
    s, u = f.array("s", l, d), f.array("u", d)
    s[1, b] = x[1, b]
    u[b] = s[1, b] * 2
    s[i, b] = x[i, b] * 2
    y[k, b] = s[k, b] * u[b]


@pytest.mark.parametrize(("write", "reader"), [(read_too_early, "y"), (half_read, "u")])
def test_an_array_is_read_when_it_is_complete(write: Write, reader: str) -> None:
    with pytest.raises(EquationError) as caught:
        cm.count(mixer(write))
    assert str(caught.value) == (
        f"{reader} reads s before it is complete; write equations in the order of computation"
    )


def two_rows_back(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = g y[i-2] + x[i]: rows of odd and of even number know nothing of each other."""
    l, d = x.shape
    one, i, b = f.index("one", 1, min_(2, l)), f.index("i", 3, l), f.index("b", 1, d)
    g = m.parameter("g", d)
    y[one, b] = x[one, b]
    y[i, b] = g[b] * y[i - 2, b] + x[i, b]


def chunk_before(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """S[i] = g S[i-C] + x[i], a dilated recurrence."""
    (l, d), (C,) = x.shape, m.sizes("C")
    first, i, b = f.index("first", 1, min_(C, l)), f.index("i", C + 1, l), f.index("b", 1, d)
    z, S, g = f.index("z", 1, l), f.array("S", l, d), m.parameter("g", d)
    S[first, b] = x[first, b]
    S[i, b] = g[b] * S[i - C, b] + x[i, b]
    y[z, b] = S[z, b] * x[z, b]


def latest_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """y[i] = x[i] + w[1] y[i-1] + ... + w[k] y[i-k], a recurrence of order k."""
    (l, d), (k,) = x.shape, m.sizes("k")
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    s, w = f.index("s", 1, min_(k, i - 1)), m.parameter("w", k, d)
    y[i, b] = x[i, b] + sum_(w[s, b] * y[i - s, b], over=s)


def triangular_solve(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """(I + tril(A, -1)) U = x, row by row, with A = x x^T: every row reads all rows before it."""
    l, d = x.shape
    i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    j, A, U = f.index("j", 1, i - 1), f.array("A", l, l), f.array("U", l, d)
    A[i, j] = sum_(x[i, a] * x[j, a], over=a)
    U[i, b] = x[i, b] - sum_(A[i, j] * U[j, b], over=j)
    y[i, b] = U[i, b] * x[i, b]


FURTHER_BACK: Mapping[Write, tuple[int, int]] = {
    two_rows_back: (2 * 2, 0),
    chunk_before: (3 * 2, 0),
    latest_rows: (2 * 2, 4),
    triangular_solve: (7 * 2 + 7 * 2, 1),
}
"""A recurrence -> how many entries are held after 7 tokens of width 2 with k = 2 and C = 3; how
many hops there are from the first to the last of 9 rows, 0 where these are not followed."""


@pytest.mark.parametrize("write", FURTHER_BACK, ids=lambda w: w.__name__)
def test_a_loop_may_read_rows_further_back(write: Write) -> None:
    made = mixer(write)
    for sizes in ({"l": 1, "d": 1, "k": 1, "C": 1}, {"l": 5, "d": 2, "k": 2, "C": 3}):
        known = {letter: sizes[letter] for letter in made.letters}
        for compared in (OracleComparison(made), GradientComparison(made)):
            assert compared.at(known).apart == []
            assert all("further back" in reason for reason in compared.refused)
        answered = OracleComparison(made).at(known).compared.keys()
        assert {"counts of one token", "span of one token", "state of one token"} <= answered


@pytest.mark.parametrize("write", FURTHER_BACK, ids=lambda w: w.__name__)
def test_what_rows_further_back_keep(write: Write) -> None:
    made, (held, hops) = mixer(write), FURTHER_BACK[write]
    known = {k: v for k, v in {"l": 9, "d": 2, "k": 2, "C": 3}.items() if k in made.letters}
    assert cm.state(made).at(**known, t=7) == held
    if hops:
        assert cm.path_length(made).at(**known) == hops


def test_how_deep_rows_further_back_are_is_searched() -> None:
    """A chunk of rows comes a product and an addition after the one before; row i of the solve a
    product, ceil(log2(i-1)) additions and a subtraction after row i-1."""
    for write, levels in ((chunk_before, (9 // 3 - 1) * 2 + 1), (triangular_solve, 35)):
        made = mixer(write)
        sizes = {k: v for k, v in {"l": 9, "d": 1, "C": 3}.items() if k in made.letters}
        case = Case(Answers(made, "recurrent", "training", convention("strict")), sizes)
        search = FIGURES["span"].search
        assert (
            search is not None
            and search(case) == levels == execute(made.forms["recurrent"], sizes).span()
        )


def same_row(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each channel of a row reads the whole row."""
    l, d = x.shape
    i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    y[i, b] = sum_(y[i, a], over=a) + x[i, b]


def flattened(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The rows of the loop are channels, which one equation numbers by head and place."""
    l, d = x.shape
    _, n, h = m.sizes("d n h")
    k, b = f.index("k", 1, l), f.index("b", 2, d)
    e, c = f.index("e", 1, n), f.index("c", 1, h)
    s = f.array("s", l, d)
    s[k, 1] = x[k, 1]
    s[k, b] = y[k, b - 1] + x[k, b]
    y[k, (e - 1) * h + c] = function("tanh", s[k, (e - 1) * h + c])


REFUSED: Mapping[Write, str] = {
    same_row: "y needs itself",
    flattened: "s, y need each other",
}


def row_after(m: Mixer, f: Form, x: Array, y: Array) -> None:
    l, d = x.shape
    i, b = f.index("i", 1, l - 1), f.index("b", 1, d)
    y[l, b] = x[l, b]
    y[i, b] = y[i + 1, b] + x[i, b]


def test_a_loop_may_run_downward() -> None:
    """Rows that need the one after them: the last row is computed first."""
    made = OracleComparison(mixer(row_after))
    for length in (1, 2, 5):
        made.at({"l": length, "d": 2})
    assert made.apart == [] and made.refused == []
    assert cm.span(mixer(row_after)).at(l=5, d=2) == 4


@pytest.mark.parametrize("write", REFUSED, ids=lambda w: w.__name__)
def test_a_loop_reads_the_row_before(write: Write) -> None:
    with pytest.raises(Unsupported) as caught:
        cm.count(mixer(write))
    assert str(caught.value) == (
        f"{REFUSED[write]}: a recurrence reads earlier rows, such as index i-1 of one axis, or "
        f"the same row of an array written earlier"
    )


def circle(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """u and y of the same row need each other."""
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    u = f.array("u", l, d)
    u[i, b] = y[i, b] + x[i, b]
    y[i, b] = u[i, b] * 2


def test_a_circle_within_a_row_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"^u, y need each other: a recurrence reads"):
        cm.span(mixer(circle))


def rows_shifted_by_array(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """r reads the own row of s and t, whose equations come later, and write one row further."""
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    r, s, t = f.array("r", l, d), f.array("s", l + 1, d), f.array("t", l + 1, d)
    s[1, b] = function("tanh", m.parameter("w", d)[b])
    t[1, b] = function("tanh", m.parameter("v", d)[b])
    r[i, b] = function("tanh", s[i, b] + t[i, b] + x[i, b])
    s[i + 1, b] = function("tanh", s[i, b] + r[i, b] + t[i, b])
    t[i + 1, b] = function("tanh", t[i, b] + s[i, b])
    y[i, b] = t[i, b] * 2


def test_an_execution_of_rows_shifted_by_array_has_every_quantity() -> None:
    """Theory refuses the loop; an execution finds no axes of rows, and runs all the same."""
    made = OracleComparison(mixer(rows_shifted_by_array)).at({"l": 4, "d": 2})
    assert made.apart == []
    assert any(refused.startswith("peak: s, t, r need each other") for refused in made.refused)


def row_beside_chunks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The rows S, from sums over the chunks of two rows before i, are added to the recurrence."""
    l, d = x.shape
    i, b, e = f.index("i", 1, l), f.index("b", 1, d), f.index("e", 1, l // 2)
    i1, i2, k = f.index("i1", 1, 1), f.index("i2", 2, l), f.index("k", 1, (i - 1) // 2)
    pairs, rows = f.array("P", l // 2, d), f.array("S", l, d)
    pairs[e, b] = x[2 * e, b] * 2
    rows[i, b] = x[i, b] - sum_(pairs[k, b], over=k)
    y[i1, b] = rows[i1, b] * 2
    y[i2, b] = y[i2 - 1, b] * x[i2, b] + rows[i2, b]


@pytest.mark.parametrize("rewrite", ["zero-state", "dense"])
def test_a_loop_reads_rows_that_are_numbered_by_chunk(rewrite: str) -> None:
    made = OracleComparison(mixer(row_beside_chunks), rewrites=(rewrite,))
    for sizes in SIZES:
        made.at(sizes)
    assert made.apart == [] and {"counts", "path length"} <= {*made.compared}


def beside_a_chunk(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Row i reads the row of its chunk's number, i = 3 and 4 row 2."""
    l, d = x.shape
    i, b = f.index("i", 2, l), f.index("b", 1, d)
    y[1, b] = x[1, b]
    y[i, b] = function("tanh", y[i - 1, b]) + x[(i - 1) // 2 + 1, b]


def cells_beside_a_chunk(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A loop of two arrays; one reads the row of its chunk's number, and its own row."""
    l, d = x.shape
    i, b, k = f.index("i", 2, l), f.index("b", 1, d), f.index("k", 1, l)
    s = f.array("s", l, d)
    s[1, b] = x[1, b] * x[1, b]
    s[i, b] = y[i - 1, b] + x[i, b] * x[(i - 1) // 3 + 1, b]
    y[k, b] = function("tanh", s[k, b])


def beside_a_sum_of_chunks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Row i adds up the rows below the number of its chunk."""
    l, d = x.shape
    i, b = f.index("i", 2, l), f.index("b", 1, d)
    g = f.index("g", 1, (i - 1) // 2)
    y[1, b] = x[1, b]
    y[i, b] = function("tanh", y[i - 1, b]) + sum_(x[g, b], over=g) * x[i, b]


def across_a_chunk(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A loop over channels, each row of which reads the row of its chunk's number."""
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 2, d)
    y[i, 1] = x[i, 1]
    y[i, b] = y[i, b - 1] + x[(i - 1) // 2 + 1, b]


@pytest.mark.parametrize(
    ("write", "added"),
    [
        (beside_a_chunk, lambda l, d: (l - 1) * d),
        (cells_beside_a_chunk, lambda l, d: (l - 1) * d),
        # (i - 1)//2 - 1 additions of the sum, and one to the row before, where the sum has terms
        (beside_a_sum_of_chunks, lambda l, d: sum((i - 1) // 2 for i in range(2, l + 1)) * d),
        (across_a_chunk, lambda l, d: l * (d - 1)),
    ],
)
def test_a_loop_reads_rows_by_the_number_of_their_chunk(
    write: Write, added: Callable[[int, int], int]
) -> None:
    made = OracleComparison(mixer(write)), GradientComparison(mixer(write), "recurrent")
    for sizes in ({"l": l, "d": d} for l, d in ((1, 2), (2, 1), (3, 3), (6, 2))):
        assert cm.count(mixer(write)).at(**sizes).add == added(sizes["l"], sizes["d"])
        for comparison in made:
            comparison.at(sizes)
    assert [comparison.apart for comparison in made] == [[], []]
    assert {"counts", "values"} <= {*made[0].compared}


def test_what_a_loop_beside_a_chunk_takes_by_hand() -> None:
    """tanh and one addition a row, one after another; the rows of later chunks are held. The latest
    row that y[i] depends on is no row i where y[i] reads no row i itself."""
    assert cm.span(mixer(beside_a_chunk)).at(l=7, d=2) == 2 * 6
    assert cm.state(mixer(cells_beside_a_chunk)).at(t=7, d=2) == (1 + 7 - 7 // 3) * 2
    said = "the last token that y depends on rises once per chunk of rows, not with the row: let y "
    with pytest.raises(Unanswered, match=said):
        cm.state(mixer(beside_a_chunk))


def test_rows_of_later_chunks_are_held() -> None:
    """After t tokens, rows t//2 + 1..t: of 5 tokens rows 3, 4, 5, which rows 6..10 read."""
    made = Mixer("stretched")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = x[i, b] * x[(i - 1) // 2 + 1, b]
    compared = OracleComparison(made)
    for length in range(1, 7):
        compared.at({"l": length, "d": 2})
        assert cm.state(made).at(t=length, d=2, l=length) == (length - length // 2) * 2
    assert compared.apart == compared.refused == []
