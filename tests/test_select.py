"""Are argmax, top-k and sort counted as executed, and equal to numpy in value?

Positions are integers: what they gather costs nothing, and they get no gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import costmodel as cm
from cli import app
from costmodel import EquationError, Mixer, argmax, max_, min_, softmax, sort, sum_, top_k, union
from costmodel.errors import OracleError, Unsupported
from costmodel.language.equations import Form, rows as rows_of
from costmodel.language.nodes import Array, Select
from costmodel.language.notation import equation as printed
from costmodel.oracle.algorithms import CHOICES, Comparisons, Contender
from costmodel.oracle.execute import execute, random_arrays
from costmodel.program import dependence, tokens, trip_count
from costmodel.program.phases import iteration_domains
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.questions import evaluate, span, state
from costmodel.questions.counting import executed
from costmodel.questions.counting.derivation import sums
from costmodel.questions.counting.executed import Executed, along
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import ceil_log2
from tests.small import by_sizes

Write = Callable[[Mixer, Form, Array, Array], None]
Patch = pytest.MonkeyPatch


def mixer(write: Write) -> Mixer:
    """A mixer over l tokens of width d whose one form is written by a function."""
    made = Mixer(write.__name__.replace("_", "-"))
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        write(made, f, x, y)
    return made


def rows(f: Form, x: Array) -> tuple[Any, ...]:
    """Indices of a row, of a row up to it, and of two channels."""
    l, d = x.shape
    i = f.index("i", 1, l)
    return i, f.index("j", 1, i), f.index("a", 1, d), f.index("b", 1, d)


def routing(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A mixture: each row goes through the expert with the largest score."""
    (u,) = m.sizes("u")
    l, d = x.shape
    G, W = m.parameter("G", d, u), m.parameter("W", u, d, d)
    i, _, a, b = rows(f, x)
    e = f.index("e", 1, u)
    g, at = f.array("g", l, u), f.array("at", l, below=u)
    g[i, e] = sum_(x[i, a] * G[a, e], over=a)
    at[i] = argmax(g[i, e], over=e)
    y[i, b] = sum_(x[i, a] * W[at[i], a, b], over=a)


def top_k_attention(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Row i keeps c of its scores with rows 1..i, all of them where i <= c, and normalises those
    that it computes again from the gathered keys."""
    (c,) = m.sizes("c")
    l, d = x.shape
    W_K, W_V = m.parameter("W_K", d, d), m.parameter("W_V", d, d)
    i, j, a, b = rows(f, x)
    r = f.index("r", 1, min_(c, i))
    K, V, S = f.array("K", l, d), f.array("V", l, d), f.array("S", l, l)
    P, Z, A = f.array("P", l, c, below=l), f.array("Z", l, c), f.array("A", l, c)
    K[i, b] = sum_(x[i, a] * W_K[a, b], over=a)
    V[i, b] = sum_(x[i, a] * W_V[a, b], over=a)
    S[i, j] = sum_(x[i, a] * K[j, a], over=a)
    P[i, r] = top_k(S[i, j], over=j)
    Z[i, r] = sum_(x[i, a] * K[P[i, r], a], over=a)
    A[i, r] = softmax(Z[i, r], over=r)
    y[i, b] = sum_(A[i, r] * V[P[i, r], b], over=r)


def window(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The best c of the last w scores, which are gathered themselves."""
    w, c = m.sizes("w c")
    l, _ = x.shape
    i, _, a, b = rows(f, x)
    k, r = f.index("k", max_(1, i - w + 1), i), f.index("r", 1, min_(c, w, i))
    S, P = f.array("S", l, l), f.array("P", l, c, below=l)
    S[i, k] = sum_(x[i, a] * x[k, a], over=a)
    P[i, r] = top_k(S[i, k], over=k)
    y[i, b] = sum_(x[P[i, r], b] * S[i, P[i, r]], over=r)


def one_score_a_row(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Row i chooses among scores that do not depend on it; the number comes first on the left."""
    (c,) = m.sizes("c")
    l, d = x.shape
    w = m.parameter("w", d)
    i, j, a, b = rows(f, x)
    p, r = f.index("p", 1, l), f.index("r", 1, min_(c, i))
    S, P = f.array("S", l), f.array("P", c, l, below=l)
    S[p] = sum_(x[p, a] * w[a], over=a)
    P[r, i] = top_k(S[j], over=j)
    y[i, b] = sum_(x[P[r, i], b], over=r) + x[i, b]


def largest_so_far(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """In each channel, the largest entry up to row i."""
    l, d = x.shape
    i, j, _, b = rows(f, x)
    P = f.array("P", l, d, below=l)
    P[i, b] = argmax(x[j, b], over=j)
    y[i, b] = x[P[i, b], b]


def sorted_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """All rows, in the order of a score."""
    l, d = x.shape
    w = m.parameter("w", d)
    i, _, a, b = rows(f, x)
    p = f.index("p", 1, l)
    S, at = f.array("S", l), f.array("at", l, below=l)
    S[i] = sum_(x[i, a] * w[a], over=a)
    at[p] = sort(S[i], over=i)
    y[p, b] = x[at[p], b] * 2


def sorted_channels(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The channels of every row, from the smallest to the largest."""
    l, d = x.shape
    i, _, a, b = rows(f, x)
    at = f.array("at", l, d, below=d)
    at[i, b] = sort(x[i, a], over=a)
    y[i, b] = x[i, at[i, b]]


def sorted_so_far(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Row i sorts its scores with rows 1..i."""
    l, _ = x.shape
    i, j, a, b = rows(f, x)
    r = f.index("r", 1, i)
    S, P = f.array("S", l, l), f.array("P", l, l, below=l)
    S[i, j] = sum_(x[i, a] * x[j, a], over=a)
    P[i, r] = sort(S[i, j], over=j)
    y[i, b] = sum_(x[P[i, r], b] * S[i, r], over=r)


def routed_recurrence(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """What a row adds is chosen by the row before it."""
    u, c = m.sizes("u c")
    l, d = x.shape
    W = m.parameter("W", u, d)
    i, k = f.index("i", 2, l), f.index("k", 1, l)
    a, b, e = f.index("a", 1, d), f.index("b", 1, d), f.index("e", 1, u)
    r = f.index("r", 1, min_(c, u))
    g, at, h = f.array("g", l, u), f.array("at", l, c, below=u), f.array("h", l, d)
    h[1, b] = x[1, b]
    g[i, e] = sum_(h[i - 1, a] * W[e, a], over=a)
    at[i, r] = top_k(g[i, e], over=e)
    h[i, b] = x[i, b] + sum_(W[at[i, r], b], over=r)
    y[k, b] = h[k, b]


def chosen_weights(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """What is chosen depends on weights alone."""
    u, c = m.sizes("u c")
    _, d = x.shape
    W, w = m.parameter("W", u, d), m.parameter("w", u)
    i, _, _, b = rows(f, x)
    e, r = f.index("e", 1, u), f.index("r", 1, min_(c, u))
    at = f.array("at", c, below=u)
    at[r] = top_k(w[e], over=e)
    y[i, b] = x[i, b] + sum_(W[at[r], b], over=r)


def memory(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each row reads the c best rows of a context."""
    e, c = m.sizes("e c")
    l, d = x.shape
    z = m.context("z", e, d)
    i, _, a, b = rows(f, x)
    k, r = f.index("k", 1, e), f.index("r", 1, min_(c, e))
    S, at, A = f.array("S", l, e), f.array("at", l, c, below=e), f.array("A", l, c)
    S[i, k] = sum_(x[i, a] * z[k, a], over=a)
    at[i, r] = top_k(S[i, k], over=k)
    A[i, r] = S[i, at[i, r]] * 2
    y[i, b] = sum_(A[i, r] * z[at[i, r], b], over=r)


def constant_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Rows of a constant table are chosen: all that is gathered gets no gradient."""
    (u,) = m.sizes("u")
    l, d = x.shape
    B, G = m.buffer("B", u, d), m.parameter("G", d, u)
    i, _, a, b = rows(f, x)
    e = f.index("e", 1, u)
    g, at = f.array("g", l, u), f.array("at", l, below=u)
    g[i, e] = sum_(x[i, a] * G[a, e], over=a)
    at[i] = argmax(g[i, e], over=e)
    y[i, b] = x[i, b] * B[at[i], b]


def best_row(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Of rows that are worked on, the one with the largest sum is added to all."""
    l, d = x.shape
    i, _, a, b = rows(f, x)
    o, k = f.index("o", 1, 1), f.index("k", 1, l)
    S, K = f.array("S", l), f.array("K", l, d)
    at, B = f.array("at", 1, below=l), f.array("B", 1, d)
    S[i] = sum_(x[i, a], over=a)
    K[i, b] = x[i, b] * 2
    at[o] = argmax(S[k], over=k)
    B[o, b] = K[at[o], b] * 3
    y[i, b] = x[i, b] + B[1, b]


WHOLE = ("counts", "span", "values")
TOKEN = ("counts of one token", "span of one token")
STATE = ("state of one token",)
MOVED = ("compulsory traffic", "unfused traffic")
ANSWERED: dict[Write, tuple[str, ...]] = {
    routing: WHOLE + TOKEN + STATE,
    top_k_attention: WHOLE + TOKEN + STATE + MOVED,
    window: WHOLE + TOKEN + STATE + MOVED,
    one_score_a_row: WHOLE + TOKEN + STATE + MOVED,
    largest_so_far: WHOLE + TOKEN + STATE + MOVED,
    sorted_rows: WHOLE + MOVED,
    sorted_channels: WHOLE + TOKEN + STATE + MOVED,
    sorted_so_far: ("span", "values", *TOKEN, *STATE),
    routed_recurrence: (*WHOLE, "counts of one token", *STATE),
    chosen_weights: WHOLE + TOKEN + STATE,
    memory: WHOLE + TOKEN + STATE,
    constant_rows: WHOLE + TOKEN + STATE,
    best_row: WHOLE + MOVED,
}
"""Write -> the questions that are answered; how many rows of weights a batch names is not known."""

SIZES = [
    dict(zip("ldecuw", values, strict=True))
    for values in (
        (1, 1, 1, 1, 1, 1),
        (2, 3, 1, 1, 2, 1),
        (5, 2, 4, 3, 5, 3),
        (3, 1, 2, 5, 3, 2),
        (4, 5, 5, 4, 4, 7),
        (7, 2, 3, 2, 1, 4),
    )
]
each_size = by_sizes(SIZES)
each_mixer = pytest.mark.parametrize("write", ANSWERED, ids=lambda w: w.__name__)


@pytest.mark.grid(3)
@each_mixer
@each_size
def test_a_choice_is_counted_as_executed(write: Write, sizes: dict[str, int]) -> None:
    """Whole sequences and single tokens; c is 1, below, equal to and above the number of rows."""
    made = OracleComparison(mixer(write)).at(sizes)
    assert made.apart == []
    assert {*ANSWERED[write]} - {*made.compared} == set()


@pytest.mark.grid(3)
@each_mixer
@pytest.mark.parametrize("rewrites", [("dense",), ("safe-softmax",), ("sort=merge",)])
@pytest.mark.parametrize("accounting", ["strict", "mac"])
def test_a_choice_is_counted_under_rewrites(
    write: Write, rewrites: tuple[str, ...], accounting: str
) -> None:
    made = OracleComparison(mixer(write), "", rewrites, accounting).at(SIZES[3])
    assert made.apart == []
    assert "span" in made.compared


ENTRIES = [
    np.array(values, float)
    for values in (
        [3],
        [1, 2],
        [2, 1],
        [4, 1, 3],
        [1, 1, 1, 1],
        [5, 2, 5, 2, 5],
        [0, -1, 7, 7, -1, 0, 3, 2, 9, 9, 1],
    )
] + [np.random.default_rng(k).normal(size=k) for k in range(1, 18)]


knockout, repeated, network, merges = (
    CHOICES[kind] for kind in ("argmax", "top-k", "sort", "merge-sort")
)


def contenders(values: Any) -> list[Contender]:
    return [Contender(float(v), k + 1) for k, v in enumerate(values)]


@pytest.mark.parametrize("values", ENTRIES, ids=len)
def test_a_knockout_makes_r_minus_1_comparisons(values: Any) -> None:
    made = Comparisons()
    assert knockout(contenders(values), 1, made) == [int(np.argmax(values)) + 1]
    assert (made.number, made.deepest) == (len(values) - 1, ceil_log2(len(values)))


@pytest.mark.parametrize("values", ENTRIES, ids=len)
def test_every_position_kept_is_a_knockout(values: Any) -> None:
    """The order is numpy's stable one; the set is that of argpartition where no two are equal."""
    expected = list(np.argsort(-values, kind="stable") + 1)
    for kept in range(1, len(values) + 1):
        made = Comparisons()
        found = repeated(contenders(values), kept, made)
        assert found == expected[:kept]
        assert made.number == kept * (len(values) - 1)
        assert made.deepest == kept * ceil_log2(len(values))
        if len({*values}) == len(values):
            assert {*found} == {*(np.argpartition(-values, kept - 1)[:kept] + 1)}


@pytest.mark.parametrize("values", ENTRIES, ids=len)
def test_a_bitonic_network_sorts(values: Any) -> None:
    """P/2 comparators in each of L (L + 1) / 2 columns, P = 2^L the next power of two."""
    made, stages = Comparisons(), ceil_log2(len(values))
    assert network(contenders(values), 1, made) == list(np.argsort(values, kind="stable") + 1)
    columns = stages * (stages + 1) // 2
    assert (made.number, made.deepest) == (2**stages * columns // 2, columns)


@pytest.mark.parametrize("values", ENTRIES, ids=len)
def test_merges_of_runs_sort_in_as_many_levels_as_they_have(values: Any) -> None:
    """P comparisons in each of L rounds; the last round begins when each run before it has its
    first entry, and gives an entry a level."""
    made, stages = Comparisons(), ceil_log2(len(values))
    assert merges(contenders(values), 1, made) == list(np.argsort(values, kind="stable") + 1)
    assert (made.number, made.deepest) == (2**stages * stages, 2**stages + stages - 1)


def test_a_bitonic_network_sorts_everything() -> None:
    """Zeros and ones are enough (Knuth, volume 3, section 5.3.4, theorem Z)."""
    for number in (1, 2, 3, 4, 5, 8, 9):
        for bits in itertools.product((0.0, 1.0), repeat=number):
            found = network(contenders(bits), number, Comparisons())
            assert found == list(np.argsort(bits, kind="stable") + 1)


def test_equations_choose_what_numpy_chooses() -> None:
    generator, l, d, u = np.random.default_rng(5), 6, 4, 5
    x, G, W = (generator.normal(size=s) for s in ((l, d), (d, u), (u, d, d)))
    best = np.argmax(x @ G, axis=1)
    expected = np.stack([x[i] @ W[best[i]] for i in range(l)])
    _equals(routing, {"x": x, "G": G, "W": W}, {"l": l, "d": d, "u": u}, expected)
    w = generator.normal(size=d)
    rows_in_order = 2 * x[np.argsort(x @ w)]
    _equals(sorted_rows, {"x": x, "w": w}, {"l": l, "d": d}, rows_in_order)
    _equals(sorted_channels, {"x": x}, {"l": l, "d": d}, np.sort(x, axis=1))
    _equals(largest_so_far, {"x": x}, {"l": l, "d": d}, np.maximum.accumulate(x))


@pytest.mark.parametrize("c", [1, 2, 4, 6, 9])
def test_top_k_attention_equals_numpy(c: int) -> None:
    """At c >= l it is a whole softmax over rows 1..i."""
    generator, l, d = np.random.default_rng(c), 6, 3
    x, W_K, W_V = (generator.normal(size=s) for s in ((l, d), (d, d), (d, d)))
    keys, values = x @ W_K, x @ W_V
    expected = np.zeros((l, d))
    for i in range(l):
        scores = keys[: i + 1] @ x[i]
        kept = min(c, i + 1)
        best = np.argpartition(-scores, kept - 1)[:kept]
        weights = np.exp(scores[best])
        expected[i] = weights / weights.sum() @ values[best]
    given = {"x": x, "W_K": W_K, "W_V": W_V}
    _equals(top_k_attention, given, {"l": l, "d": d, "c": c}, expected)


def _equals(write: Write, given: dict[str, Any], sizes: dict[str, int], expected: Any) -> None:
    made = mixer(write)
    assert np.allclose(cm.evaluate(made, given, sizes), expected, rtol=0, atol=1e-13)
    run = execute(made.forms["direct"], sizes, arrays=given)
    assert np.allclose(run.output, expected, rtol=0, atol=1e-13)


def test_of_equal_entries_the_first_is_chosen() -> None:
    x = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    _equals(largest_so_far, {"x": x}, {"l": 3, "d": 2}, [[2, 0], [2, 0], [2, 1]])
    known = evaluate.evaluate_all(mixer(largest_so_far), {"x": x}, {"l": 3, "d": 2})
    assert known["P"].tolist() == [[1, 1], [1, 1], [1, 3]]
    assert known["P"].dtype == np.int64


def test_comparisons_of_a_whole_sequence() -> None:
    """Row i keeps min(3, i) of i scores, each in i - 1 comparisons: 0 + 2*1 + 3*2 + 3*3 + 3*4.

    A mixture of u takes u - 1 for each of l rows; 5 rows are sorted in a network of 8, with 4
    comparators in each of 6 columns.
    """
    assert cm.count(mixer(top_k_attention)).at(l=5, d=2, c=3).other == {"compare": 29}
    token = cm.count(mixer(top_k_attention), "inference")
    assert [token.at(l=5, d=2, c=3, t=t).other.get("compare", 0) for t in (1, 2, 3, 4, 5)] == [
        *(0, 2, 6, 9, 12)
    ]
    assert cm.count(mixer(routing)).at(l=4, d=3, u=8).other == {"compare": 4 * 7}
    assert cm.count(mixer(sorted_rows)).at(l=5, d=2).other == {"compare": 24}


def test_work_for_a_batch() -> None:
    """Chosen for every sequence, but for weights alone once."""
    assert cm.count(mixer(routing)).at(l=4, d=3, u=8, b=5).other == {"compare": 5 * 4 * 7}
    counts = cm.count(mixer(chosen_weights)).at(l=4, d=3, u=8, c=2, b=5)
    assert counts.once is not None and counts.once.other == {"compare": 2 * 7}
    assert counts.other == {}


def test_the_span_of_a_choice() -> None:
    """A key and its score, 2 (1 + log2 d); c knockouts of l entries, one after another; a score
    again, 1 + log2 d; exponential, sum of c, quotient; product and sum of c.

    Of sorted rows: scores, 1 + log2 d; the 4 (4 + 1) / 2 columns of a network of 16; a product.
    """
    l, d, c = 16, 4, 3
    assert cm.span(mixer(top_k_attention)).at(l=l, d=d, c=c) == (
        2 * (1 + 2) + c * 4 + (1 + 2) + (1 + 2 + 1) + (1 + 2)
    )
    assert cm.span(mixer(sorted_rows)).at(l=9, d=4) == (1 + 2) + 10 + 1


def test_a_choice_is_one_step() -> None:
    path = cm.critical_path(mixer(top_k_attention))
    assert path.steps == (
        *("mul", "sum", "mul", "sum", "select"),
        *("mul", "sum", "exp", "sum", "div", "mul", "sum"),
    )
    assert "cumulation - selection - multiplication" in path.words
    assert cm.sequential(mixer(top_k_attention)).at(l=9, d=4, c=2) == 12
    assert cm.sequential(mixer(top_k_attention), "inference").at(l=9, d=4, c=2, t=5) == 12


def test_a_choice_for_one_token_takes_what_its_causal_form_takes() -> None:
    """Tokens of all t rows together are a sequence of t rows."""
    made = mixer(top_k_attention)
    whole, token = cm.count(made), cm.count(made, "inference")
    for t in range(2, 8):
        more = whole.at(l=t, d=3, c=4).total - whole.at(l=t - 1, d=3, c=4).total
        assert token.at(l=9, d=3, c=4, t=t).total == more


@pytest.mark.parametrize("phase", ["training", "inference"])
@each_mixer
def test_sums_before_they_are_closed(write: Write, phase: str) -> None:
    made, at = mixer(write), {**SIZES[2], "t": 3}
    try:
        cm.count(made, phase)
    except (Unsupported, cm.Unanswered):
        return
    system = system_of(made, None, (), phase)
    found: dict[str, int] = {}
    for part in iteration_domains(system, phase):
        for name, values in sums(part).items():
            found[name] = found.get(name, 0) + sum(value.at(at) for value in values)
    counts = cm.count(made, phase).at(**at)
    once = counts.once.by_class() if counts.once else {}
    expected = {n: v + once.get(n, 0) for n, v in ({**once, **counts.by_class()}).items()}
    expected |= {n: v for n, v in once.items() if n not in counts.by_class()}
    assert {n: v for n, v in found.items() if v} == {n: v for n, v in expected.items() if v}


def test_a_choice_along_all_tokens_has_no_inference() -> None:
    with pytest.raises(cm.Unanswered) as caught:
        cm.count(mixer(sorted_rows), "inference")
    assert str(caught.value) == "form 'direct' chooses from the whole token axis at once"
    assert caught.value.advice == "equation at chooses from it"


REFUSED: list[tuple[Write, Callable[[Mixer], object], str]] = [
    (
        sorted_so_far,
        cm.count,
        "P: the length of a sort depends on index i, and the sum of its comparisons is not "
        "derived: sort rows of one length",
    ),
    (
        routing,
        cm.traffic,
        "which entries of W are read depends on the values of at, so that the traffic has no "
        "formula",
    ),
]


@pytest.mark.parametrize(
    ("write", "ask", "reason"), REFUSED, ids=lambda v: getattr(v, "__name__", str(v)[:30])
)
def test_what_depends_on_values_is_refused(
    write: Write, ask: Callable[[Mixer], object], reason: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        ask(mixer(write))
    assert str(caught.value) == reason


def test_a_choice_reads_all_that_it_chooses_among() -> None:
    """Row i scores all rows up to itself, whichever it gathers: one hop."""
    hops = cm.path_length(mixer(top_k_attention))
    assert [hops.at(l=l, d=3, c=2) for l in (1, 2, 9)] == [0, 1, 1]


def test_what_is_held_whatever_is_chosen() -> None:
    """What a later token may choose: keys and values, 2 t of width d; of a window, its rows but
    one; of a context all."""
    assert cm.state(mixer(top_k_attention)).at(l=9, d=3, c=2, t=4) == 2 * 4 * 3
    assert cm.state(mixer(window)).at(l=9, d=3, w=3, c=2, t=4) == 2 * 3
    assert cm.state(mixer(largest_so_far)).at(l=9, d=3, t=4) == 4 * 3
    assert cm.state(mixer(memory)).at(l=9, d=3, e=5, c=2, t=4) == 5 * 3


def later_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Chosen among rows 1..i, but what is gathered is the row after it."""
    l, d = x.shape
    i, j, _, b = rows(f, x)
    k = f.index("k", 1, l - 1)
    P, z = f.array("P", l, d, below=l), f.array("z", l, d)
    P[i, b] = argmax(x[j, b], over=j)
    z[k, b] = x[k + 1, b] * 2
    z[l, b] = x[l, b] * 2
    y[i, b] = z[P[i, b], b]


def test_a_row_that_may_be_gathered_counts_as_read() -> None:
    """Row i may have gathered row i + 1."""
    made = mixer(later_rows)
    assert cm.count(made).at(l=4, d=3).mul == 4 * 3
    with pytest.raises(cm.Unanswered) as caught:
        cm.count(made, "inference")
    assert str(caught.value) == "not causal: an output depends on later tokens"


def test_positions_get_no_gradient() -> None:
    """Gradients of x equal central differences; where the largest score changes there is none."""
    made, sizes = mixer(constant_rows), {"l": 4, "d": 3, "u": 5}
    given = random_arrays(made.forms["direct"], sizes)
    above = np.random.default_rng(0).normal(size=(4, 3))
    found = cm.gradients(made, given, above, sizes)
    assert {*found} == {"x"}
    step, expected = 1e-6, np.zeros((4, 3))
    for where in np.ndindex(4, 3):
        for sign in (1, -1):
            moved = given["x"].copy()
            moved[where] += sign * step
            y = cm.evaluate(made, {**given, "x": moved}, sizes)
            expected[where] += sign * (y * above).sum() / (2 * step)
    assert np.allclose(found["x"], expected, rtol=0, atol=1e-8)
    backward = cm.count(made, "backward").at(**sizes)
    assert (backward.mul, backward.add, backward.other) == (4 * 3, 0, {})


def test_a_choice_as_printed() -> None:
    form = mixer(top_k_attention).forms["direct"]
    choice = next(e for e in form.equations if e.name == "P")
    plain, latex = printed(choice, latex=False), printed(choice)
    assert (plain.left, plain.right) == ("P[i,r]", "top-k(j = 1..i) S[i,j]")
    assert plain.ranges == ("i = 1..l", "r = 1..min(c, i)")
    assert latex.right == r"\mathrm{top-k}_{1 \le j \le i}\left(S_{i,j}\right)"
    gathered = next(e for e in form.equations if e.name == "Z")
    assert "K[P[i,r],a]" in printed(gathered, latex=False).right


def test_a_table_says_what_is_counted_for_a_choice(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
import costmodel as cm
m = cm.Mixer("largest")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
with m.form("direct") as f:
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j = f.index("j", 1, i)
    P = f.array("P", l, d, below=l)
    P[i, b] = cm.argmax(x[j, b], over=j)
    y[i, b] = x[P[i, b], b] * 2
"""
    )
    shown = CliRunner().invoke(app, ["table", f"{tmp_path / 'mine.py'}:m", "--l", "4", "--d", "3"])
    assert shown.exit_code == 0, shown.output
    assert "18 compare" in shown.output
    assert (
        "comparisons of argmax are nominal: a knockout tournament, R - 1 comparisons of R entries"
        in shown.output
    )
    backward = ["--phase", "backward", "--l", "4", "--d", "3", "--format", "latex"]
    shown = CliRunner().invoke(app, ["table", f"{tmp_path / 'mine.py'}:m", *backward])
    said = " ".join(shown.output.split())
    assert "ctivations: every entry that a gather may select is held" in said  # "A" in LaTeX
    assert "ather: its gradient adds once for each gathered entry" in said
    shown = CliRunner().invoke(app, ["table", f"{tmp_path / 'mine.py'}:m", "--columns", "span"])
    assert "nominal" not in shown.output and "gather" not in shown.output


# --- wrong uses -------------------------------------------------------------------------------


def inside_an_expression(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    f.array("P", *x.shape, below=x.shape[0])[i, b] = argmax(x[j, b], over=j) + 1


def of_an_expression(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    y[i, b] = argmax(x[j, b] * 2, over=j)  # type: ignore[arg-type]


def as_an_index(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    y[i, b] = x[argmax(x[j, b], over=j), b]


def in_real_numbers(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    f.array("P", *x.shape)[i, b] = argmax(x[j, b], over=j)


def numbers_for_positions(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, _, _, b = rows(f, x)
    f.array("P", x.shape[0], below=x.shape[0])[i] = sum_(x[i, b], over=b)


def gathers_at_numbers(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, _, a, b = rows(f, x)
    s = f.array("s", x.shape[0])
    s[i] = sum_(x[i, a], over=a)
    y[i, b] = x[s[i], b]


def over_two_indices(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    f.array("P", x.shape[0], below=x.shape[0])[i] = argmax(x[j, b], over=(j, b))  # type: ignore[arg-type]


def over_a_union(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, _, _, b = rows(f, x)
    k = f.index("k", union((1, 1), (3, i)))
    f.array("P", *x.shape, below=x.shape[0])[i, b] = argmax(x[k, b], over=k)


def over_an_index_of_the_left_side(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, _, _, b = rows(f, x)
    f.array("P", *x.shape, below=x.shape[0])[i, b] = argmax(x[i, b], over=i)


def over_another_index(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    f.array("P", *x.shape, below=x.shape[0])[i, b] = argmax(x[i, b], over=j)


def without_a_number(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    f.array("P", *x.shape, below=x.shape[0])[i, b] = top_k(x[j, b], over=j)


def with_two_numbers(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, j, _, b = rows(f, x)
    r, q = f.index("r", 1, 1), f.index("q", 1, 1)
    f.array("P", *x.shape, 1, 1, below=x.shape[0])[i, b, r, q] = top_k(x[j, b], over=j)


WRITTEN: list[tuple[Write, str]] = [
    (
        inside_an_expression,
        "P: argmax must be the whole right side: define its result as an array first",
    ),
    (of_an_expression, "argmax takes an array entry: define the operand as an array first"),
    (
        as_an_index,
        "as-an-index has an expression of entries as an index: define the expression as an array "
        "with below=, or write (P[i] - 1)*B + e, place e of block P[i]",
    ),
    (
        in_real_numbers,
        "P: argmax gives positions: declare the array of positions with below=, such as "
        "f.array('P', l, below=l)",
    ),
    (numbers_for_positions, "P holds positions: define it by argmax, top_k or sort alone"),
    (
        gathers_at_numbers,
        "s of gathers-at-numbers is used as an index, but holds no positions: declare it with "
        "below=, such as f.array('at', l, below=l)",
    ),
    (
        over_two_indices,
        "argmax: over must be an index of the form, such as f.index('i', 1, l), got a value of "
        "type tuple",
    ),
    (
        over_a_union,
        "argmax can run over one range only, and index k has several: declare f.index('k', lower, "
        "upper)",
    ),
    (
        over_an_index_of_the_left_side,
        "P: index i is on the left side and reduced over; use two indices",
    ),
    (
        over_another_index,
        "argmax runs over j, which the entry does not name: choose an index of the entry",
    ),
    (
        without_a_number,
        "P: the left side of top-k needs one index of its own, as P[i, r] = top_k(s[i, j], over=j) "
        "has r for the r-th position; got none",
    ),
    (
        with_two_numbers,
        "P: the left side of top-k needs one index of its own, as P[i, r] = top_k(s[i, j], over=j) "
        "has r for the r-th position; got r, q",
    ),
]


@pytest.mark.parametrize(("write", "sentence"), WRITTEN, ids=lambda v: getattr(v, "__name__", ""))
def test_a_choice_that_cannot_be_written(write: Write, sentence: str) -> None:
    with pytest.raises(EquationError) as caught:
        mixer(write)
    assert str(caught.value) == sentence


def chosen(kind: Callable[..., Any], numbers: Callable[[Any, Any], Any], below: str) -> Mixer:
    """Positions of one kind, numbered in 1..numbers(c, i), among rows k in 1..i."""

    def write(m: Mixer, f: Form, x: Array, y: Array) -> None:
        u, c = m.sizes("u c")
        l, d = x.shape
        i, j, _, b = rows(f, x)
        r = f.index("r", 1, numbers(c, i))
        P = f.array("P", l, l, d, below={"l": l, "u": u}[below])
        P[i, r, b] = kind(x[j, b], over=j)
        y[i, b] = x[i, b] * 2

    return mixer(write)


KEPT: list[tuple[Callable[..., Any], Callable[[Any, Any], Any], str, str]] = [
    (top_k, lambda c, i: c, "l", "P: top-k keeps 2 of 1 entries: bound the number by the min_"),
    (top_k, lambda c, i: 0, "l", "P: top-k keeps 1 position or more, numbered from 1; got 1..0"),
    (top_k, lambda c, i: i - 1, "l", "P: top-k keeps 1 position or more, numbered from 1; got"),
    (sort, lambda c, i: min_(c, i), "l", "P: sort gives 2 positions, one for each entry; 1 are"),
    (top_k, lambda c, i: min_(c, i), "u", "P: top-k gives positions 1..2, but P holds 1..u"),
]


@pytest.mark.parametrize(("kind", "numbers", "below", "sentence"), KEPT)
def test_a_choice_of_entries_that_are_not_there(
    kind: Callable[..., Any], numbers: Callable[[Any, Any], Any], below: str, sentence: str
) -> None:
    made = chosen(kind, numbers, below)
    with pytest.raises(EquationError) as caught:
        cm.count(made)
    assert str(caught.value).startswith(sentence) and "for instance at l = " in str(caught.value)


def test_a_choice_among_nothing() -> None:
    def write(m: Mixer, f: Form, x: Array, y: Array) -> None:
        i, _, _, b = rows(f, x)
        k = f.index("k", 1, i - 1)
        P = f.array("P", *x.shape, below=x.shape[0])
        P[i, b] = argmax(x[k, b], over=k)
        y[i, b] = x[P[i, b], b]

    with pytest.raises(EquationError) as caught:
        cm.count(mixer(write))
    assert str(caught.value).startswith(
        "P: argmax has nothing to choose from (for instance at l = 1"
    )


# --- mutations: with one of these mistakes in place the comparison parts from the oracle -------


def one_comparison_more(patch: Patch) -> None:
    true = executed.RULES[Select]

    def rule(node: Select, points: Any) -> Iterator[Executed]:
        yield from true(node, points)
        yield Executed("compare", points)

    patch.setitem(executed.RULES, Select, rule)


def one_knockout_for_all(patch: Patch) -> None:
    """As many comparisons as for one position."""
    true = executed.RULES[Select]

    def rule(node: Select, points: Any) -> Iterator[Executed]:
        kept = tuple(index.atom for index in rows_of(points.equation))
        one = type(points)(points.equation, *along(points, kept), points.accounting)
        yield from true(node, one)

    patch.setitem(executed.RULES, Select, rule)


def a_network_lacks_a_column(patch: Patch) -> None:
    true = trip_count.columns
    patch.setattr(trip_count, "columns", lambda number: true(number) - 1)


def knockouts_do_not_wait(patch: Patch) -> None:
    patch.setattr(span, "number_kept", lambda part: Poly.of(1))


def a_choice_is_known_at_once(patch: Patch) -> None:
    patch.setattr(span, "levels_of", lambda node, number, kept: Poly())


def the_smallest_is_chosen(patch: Patch) -> None:
    true = evaluate._entry
    patch.setattr(evaluate, "_entry", lambda grid, ref: _negated(true(grid, ref), ref))


def _negated(values: Any, ref: Any) -> Any:
    return -values if ref.array.name in ("g", "S") else values


def gathered_rows_are_of_no_token(patch: Patch) -> None:
    """What is chosen is thought to be known before the token: the choice is not derived as read."""
    true = dependence.reads

    def plain(equation: Any) -> Any:
        found = true(equation)
        return found if not isinstance(equation.value, Select) else ()

    patch.setattr(dependence, "reads", plain)
    patch.setattr(tokens, "reads", plain)


def what_is_gathered_is_never_held(patch: Patch) -> None:
    true = dependence.reads

    def plain(equation: Any) -> Any:
        return [read for read in true(equation) if not state.gathered(read.ref)]

    patch.setattr(state, "reads", plain)


def every_name_is_of_another_entry(patch: Patch) -> None:
    patch.setattr(Exact, "least", lambda there, named: named)


def whatever_may_be_named_moves(patch: Patch) -> None:
    patch.setattr(Exact, "least", lambda there, named: there)


MUTATIONS: list[tuple[Callable[[Patch], None], Write, str]] = [
    (one_comparison_more, routing, "counts"),
    (one_comparison_more, top_k_attention, "counts of one token"),
    (one_comparison_more, sorted_rows, "counts"),
    (one_knockout_for_all, top_k_attention, "counts"),
    (a_network_lacks_a_column, sorted_rows, "counts"),
    (a_network_lacks_a_column, sorted_rows, "span"),
    (knockouts_do_not_wait, top_k_attention, "span"),
    (a_choice_is_known_at_once, routing, "span"),
    (the_smallest_is_chosen, routing, "values"),
    (the_smallest_is_chosen, sorted_rows, "values"),
    (gathered_rows_are_of_no_token, routing, "counts"),
    (what_is_gathered_is_never_held, top_k_attention, "state of one token"),
    (every_name_is_of_another_entry, top_k_attention, "unfused traffic"),
    (whatever_may_be_named_moves, best_row, "unfused traffic"),
]


@pytest.mark.parametrize(
    ("mutate", "write", "question"), MUTATIONS, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_a_mutation_is_noticed(
    mutate: Callable[[Patch], None], write: Write, question: str, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    made = OracleComparison(mixer(write)).at(SIZES[2])
    apart = {line.partition(":")[0].partition(" at t=")[0] for line in made.apart}
    one_token = {line.partition(" at t=")[0] for line in made.apart if " at t=" in line}
    assert question in apart | {f"{what} of one token" for what in one_token}


def test_the_oracle_refuses_what_is_not_there() -> None:
    """A form that is not checked before: it stops and says where."""
    made = chosen(sort, lambda c, i: min_(c, i), "l")
    run = execute(made.forms["direct"], {"l": 3, "d": 1, "c": 1, "u": 1})
    with pytest.raises(OracleError, match="P: sort gives 2 positions, and the left side has 1 at"):
        _ = run.trace
