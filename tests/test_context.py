"""Is a second input counted once a sequence, and is a gather free?

A context is whole before the first token: what depends on it alone is neither a token's work nor
one of weights. A gather reads an entry at a position that an integer array holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import EquationError, Mixer, function, softmax, sum_
from costmodel.errors import Unsupported
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.oracle.execute import execute, random_arrays
from costmodel.proofs.against_oracle import differences
from costmodel.symbolic.sizes import ceil_log2
from tests.small import by_sizes

SIZES = [
    {"l": l, "d": d, "e": e, "u": 5} for l, d, e in ((1, 1, 1), (2, 3, 1), (3, 1, 2), (4, 2, 3))
]
each_size = by_sizes(SIZES)

Write = Callable[[Mixer, Form, Array, Array], None]


def mixer(write: Write) -> Mixer:
    """A mixer over l tokens of width d whose one form is written by a function."""
    made = Mixer(write.__name__.replace("_", "-"))
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        write(made, f, x, y)
    return made


def context(m: Mixer, f: Form, x: Array) -> tuple[Any, ...]:
    """z (e, d), and indices of its rows, of the input's, and of channels."""
    (e,) = m.sizes("e")
    l, d = x.shape
    z = m.context("z", e, d)
    s, i = f.index("s", 1, e), f.index("i", 1, l)
    return z, s, i, f.index("a", 1, d), f.index("b", 1, d)


def cross_attention(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Keys K and values V are projected from the context, queries are the rows of x."""
    l, d = x.shape
    z, s, i, a, b = context(m, f, x)
    e = z.shape[0]
    W_K, W_V = m.parameter("W_K", d, d), m.parameter("W_V", d, d)
    K, V = f.array("K", e, d), f.array("V", e, d)
    Z, A = f.array("Z", l, e), f.array("A", l, e)
    K[s, b] = sum_(z[s, a] * W_K[a, b], over=a)
    V[s, b] = sum_(z[s, a] * W_V[a, b], over=a)
    Z[i, s] = sum_(x[i, a] * K[s, a], over=a)
    A[i, s] = softmax(Z[i, s], over=s)
    y[i, b] = sum_(A[i, s] * V[s, b], over=s)


def pooled(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The sum of the context's rows times every row of x; a table of weights besides."""
    _, d = x.shape
    z, s, i, _, b = context(m, f, x)
    w = m.parameter("w", d)
    p, table = f.array("p", d), f.array("table", d)
    p[b] = sum_(z[s, b], over=s)
    table[b] = function("tanh", w[b])
    y[i, b] = x[i, b] * p[b] + table[b]


def started_by_the_context(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """h[i+1] = h[i] + x[i] from a first row that the context gives."""
    l, d = x.shape
    z, s, i, _, b = context(m, f, x)
    h = f.array("h", l + 1, d)
    h[1, b] = sum_(z[s, b], over=s)
    h[i + 1, b] = h[i, b] + x[i, b]
    y[i, b] = h[i + 1, b]


def looked_up(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Rows of a table of u rows of weights, at positions that a buffer holds."""
    l, d = x.shape
    (u,) = m.sizes("u")
    at, E = m.buffer("at", l, below=u), m.parameter("E", u, d)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    y[i, b] = x[i, b] * E[at[i], b]


def worked_on_first(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The same after a function of the whole table, which is computed once."""
    l, d = x.shape
    (u,) = m.sizes("u")
    at, E = m.buffer("at", l, below=u), m.parameter("E", u, d)
    i, v, b = f.index("i", 1, l), f.index("v", 1, u), f.index("b", 1, d)
    T = f.array("T", u, d)
    T[v, b] = function("tanh", E[v, b])
    y[i, b] = x[i, b] * T[at[i], b]


def embedding() -> Mixer:
    """Token numbers as the input: y[i] is row ids[i] of E, and a linear map of it."""
    made = Mixer("embedding")
    l, d, u = made.sizes("l d u")
    ids, y = made.input("ids", l, below=u), made.output("y", l, d)
    E, W = made.parameter("E", u, d), made.parameter("W", d, d)
    with made.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        h = f.array("h", l, d)
        h[i, a] = E[ids[i], a]
        y[i, b] = sum_(h[i, a] * W[a, b], over=a)
    return made


READ = (cross_attention, pooled, started_by_the_context)
GATHER = (looked_up, worked_on_first)


@pytest.mark.parametrize("write", READ, ids=lambda w: w.__name__)
@each_size
def test_a_context_is_counted_as_executed(write: Write, sizes: dict[str, int]) -> None:
    assert differences(mixer(write), sizes) == []


ENTRIES = (
    "which entries of E are read depends on the values of at, so that the traffic has no formula"
)


@pytest.mark.parametrize("write", GATHER, ids=lambda w: w.__name__)
@each_size
def test_a_gather_is_counted_as_executed(write: Write, sizes: dict[str, int]) -> None:
    """All but the bytes that it moves, which depend on the positions."""
    left = differences(mixer(write), sizes)
    assert left and all("are read depends on the values of at" in line for line in left)
    assert all("traffic" in line for line in left)


@each_size
def test_an_embedding_is_counted_as_executed(sizes: dict[str, int]) -> None:
    left = differences(embedding(), sizes)
    assert left and all("traffic" in line for line in left)


def by_class(counts: Any) -> dict[str, int]:
    return {name: n for name, n in counts.by_class().items() if n}


def test_projections_of_a_context_are_work_of_a_sequence() -> None:
    """Two of e d^2 products; then scores and values, l e d each. Nothing of it is done once."""
    sizes = {"l": 4, "d": 3, "e": 5}
    counts = cm.count(mixer(cross_attention)).at(**sizes, b=2)
    assert counts.mul == 2 * (2 * 5 * 9 + 2 * 4 * 5 * 3)
    assert counts.once is None or counts.once.total == 0


def test_a_token_projects_no_context() -> None:
    """Scores against e keys, a softmax of e numbers, a weighted sum of e values."""
    counts = cm.count(mixer(cross_attention), "inference").at(l=4, d=3, e=5, t=2)
    assert by_class(counts) == {
        "mul": 5 * 3 + 5 * 3,
        "add": 5 * (3 - 1) + (5 - 1) + 3 * (5 - 1),
        "div": 5,
        "exp": 5,
    }


def test_weights_beside_a_context_are_done_once() -> None:
    counts = cm.count(mixer(pooled)).at(l=4, d=3, e=5, b=2)
    assert by_class(counts) == {"mul": 2 * 4 * 3, "add": 2 * (4 * 3 + (5 - 1) * 3)}
    assert by_class(counts.once) == {"tanh": 3}


@pytest.mark.parametrize("t", [1, 2, 4])
def test_what_is_held_of_a_context_does_not_grow(t: int) -> None:
    """Keys and values, 2 e d; the pooled row, d; the running row, which starts as the context's."""
    at = {"l": 4, "d": 3, "e": 5, "t": t}
    assert cm.state(mixer(cross_attention)).at(**at) == 2 * 5 * 3
    assert cm.state(mixer(pooled)).at(**at) == 3
    assert cm.state(mixer(started_by_the_context)).at(**at) == 3
    assert cm.state(mixer(pooled)).at(**at, b=7) == 7 * 3


def test_bytes_of_a_context() -> None:
    """Forward: x and z are read, y is written, weights are read. For a token K and V are state."""
    sizes = {"l": 4, "d": 3, "e": 5}
    whole = cm.traffic(mixer(cross_attention)).compulsory.at(**sizes)
    assert whole == {"activations": 4 * 3 + 5 * 3 + 4 * 3, "weights": 2 * 9}
    token = cm.traffic(mixer(cross_attention), "inference").compulsory.at(**sizes, t=2)
    assert token == {"activations": 3 + 3, "cache": 2 * 5 * 3}


def test_a_context_waits_for_no_token() -> None:
    """A product and a sum of d for a key; then a score, the softmax, and the weighted sum."""
    d, e = 4, 5
    scores = 1 + ceil_log2(d)
    rest = scores + (1 + ceil_log2(e) + 1) + 1 + ceil_log2(e)
    found = mixer(cross_attention)
    assert cm.span(found).at(l=9, d=d, e=e) == (1 + ceil_log2(d)) + rest
    assert cm.span(found, "inference").at(l=9, d=d, e=e, t=3) == rest
    assert cm.critical_path(found).steps == (
        *("mul", "sum"),
        *("mul", "sum", "exp", "sum", "div"),
        *("mul", "sum"),
    )


def test_the_first_row_of_a_loop_may_come_from_a_context() -> None:
    """e - 1 additions a channel for a sequence, then one a token: no token does the former."""
    found = mixer(started_by_the_context)
    assert cm.count(found).at(l=4, d=3, e=5).add == 3 * (5 - 1) + 4 * 3
    assert [cm.count(found, "inference").at(l=4, d=3, e=5, t=t).add for t in (1, 2)] == [3, 3]


def test_a_gather_costs_nothing() -> None:
    counts = cm.count(mixer(looked_up)).at(l=4, d=3, u=100)
    assert by_class(counts) == {"mul": 4 * 3}
    assert by_class(cm.count(embedding()).at(l=4, d=3, u=100)) == {
        "mul": 4 * 3 * 3,
        "add": 4 * 3 * 2,
    }
    assert cm.span(embedding()).at(l=4, d=8, u=100) == 1 + 3
    assert cm.critical_path(embedding()).steps == ("mul", "sum")
    assert cm.parameters(embedding()).at(d=3, u=100) == 100 * 3 + 9


def test_work_on_a_table_is_done_once() -> None:
    """u d functions for all sequences, gathered at depth 1."""
    counts = cm.count(mixer(worked_on_first)).at(l=4, d=3, u=7, b=5)
    assert by_class(counts) == {"mul": 5 * 4 * 3}
    assert by_class(counts.once) == {"tanh": 7 * 3}
    assert cm.span(mixer(worked_on_first)).at(l=4, d=3, u=7) == 2
    assert cm.span(mixer(worked_on_first), "inference").at(l=4, d=3, u=7, t=2) == 1


def test_a_token_of_an_embedding_is_its_own() -> None:
    """It belongs to the row of ids that it is gathered with."""
    assert by_class(cm.count(embedding(), "inference").at(l=4, d=3, u=9, t=2)) == {
        "mul": 9,
        "add": 6,
    }
    assert cm.state(embedding()).at(l=4, d=3, u=9, t=2) == 0


def test_a_gather_is_evaluated_at_its_positions() -> None:
    made, sizes = embedding(), {"l": 4, "d": 3, "u": 6}
    given = random_arrays(made.forms["direct"], sizes)
    expected = given["E"][given["ids"] - 1] @ given["W"]
    assert np.allclose(cm.evaluate(made, given, sizes), expected, rtol=0, atol=1e-14)
    assert np.allclose(execute(made.forms["direct"], sizes).output, expected, rtol=0, atol=1e-14)


def test_the_bytes_of_a_gather_depend_on_values() -> None:
    with pytest.raises(Unsupported) as caught:
        cm.traffic(mixer(looked_up))
    assert str(caught.value) == ENTRIES


def permuted(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Rows of the input itself are gathered: which token they are is not known."""
    l, d = x.shape
    at = m.buffer("at", l, below=l)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    y[i, b] = x[at[i], b] * 2


def test_rows_that_a_table_names_may_be_later_ones() -> None:
    """The forward pass is counted; a bound of the table would say that a row is its own token's."""
    assert cm.count(mixer(permuted)).at(l=4, d=3).mul == 4 * 3
    for ask in (cm.count, cm.span, cm.traffic):
        with pytest.raises(cm.Unanswered) as caught:
            ask(mixer(permuted), "inference")
        assert (
            str(caught.value)
            == "not causal: y gathers from x at any position that at holds, later ones too"
        )
        assert caught.value.advice.endswith("declare below=lambda i: i")


def deepening(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A running sum whose rows are gathered: it may be the last one."""
    l, d = x.shape
    at = m.buffer("at", l, below=l)
    i, k, b = f.index("i", 2, l), f.index("k", 1, l), f.index("b", 1, d)
    s = f.array("s", l, d)
    s[1, b] = x[1, b]
    s[i, b] = s[i - 1, b] + x[i, b]
    y[k, b] = s[at[k], b] * 2


def test_a_gathered_row_is_as_deep_as_any_that_may_be() -> None:
    """l - 1 additions, then a product; a table that names rows up to the own one is no deeper."""
    assert cm.span(mixer(deepening)).at(l=7, d=3) == 6 + 1


def not_positions(m: Mixer, f: Form, x: Array, y: Array) -> None:
    l, d = x.shape
    at, E = m.buffer("at", l), m.parameter("E", l, d)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    y[i, b] = x[i, b] * E[at[i], b]


def test_a_gather_needs_an_array_of_positions() -> None:
    with pytest.raises(EquationError) as caught:
        mixer(not_positions)
    assert str(caught.value) == (
        "at of not-positions is used as an index, but holds no positions: declare it with below=, "
        "such as f.array('at', l, below=l)"
    )


def too_short(m: Mixer, f: Form, x: Array, y: Array) -> None:
    l, d = x.shape
    u, w = m.sizes("u w")
    at, E = m.buffer("at", l, below=u), m.parameter("E", w, d)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    y[i, b] = x[i, b] * E[at[i], b]


def test_a_gather_needs_an_axis_that_holds_every_position() -> None:
    with pytest.raises(EquationError) as caught:
        cm.count(mixer(too_short))
    assert str(caught.value) == (
        "y gathers from E at positions up to u, beyond its axis of extent w"
    )


def scattered(m: Mixer, f: Form, x: Array, y: Array) -> None:
    l, d = x.shape
    at = m.buffer("at", l, below=l)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    y[at[i], b] = x[i, b] * 2


def test_entries_are_not_defined_at_gathered_positions() -> None:
    """Two positions may be equal: which row is meant would depend on values."""
    with pytest.raises(EquationError) as caught:
        cm.count(mixer(scattered))
    assert str(caught.value) == (
        "y is defined at positions from the table at: define all entries at indices, and gather "
        "where they are read"
    )


@pytest.mark.parametrize("other", ["another number", "a known place"])
def test_entries_read_by_number_beside_other_reads_of_an_array_are_other_ones(other: str) -> None:
    """Two equations may read the same entry of x or two: two move, where a row has two."""
    m = cm.Mixer("twice")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l)
    one, two = m.buffer("one", l, below=d), m.buffer("two", l, below=d)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        z, w = f.array("z", l), f.array("w", l)
        z[i] = cm.exp(x[i, one[i]])
        w[i] = cm.exp(x[i, two[i]] if other == "another number" else x[i, 1])
        y[i] = z[i] + w[i]
    tables = 2 if other == "another number" else 1
    traffic = cm.traffic(m)
    for width, read in ((1, 1), (2, 2), (8, 2)):
        assert traffic.at(l=4, d=width)["compulsory"] == 4 * 4 * (read + tables + 1)
        left = differences(m, {"l": 4, "d": width})
        assert all(" at t=" in line for line in left)


def test_entries_that_two_equations_read_by_one_number_are_read_once() -> None:
    m = cm.Mixer("alike")
    l, d = m.sizes("l d")
    x, y, one = m.input("x", l, d), m.output("y", l), m.buffer("one", l, below=d)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        z = f.array("z", l)
        z[i] = cm.exp(x[i, one[i]])
        y[i] = z[i] * x[i, one[i]]
    traffic = cm.traffic(m).at(l=4, d=8)
    assert traffic["compulsory"] == 4 * (4 + 4 + 4)  # entries of x and of one, and results
