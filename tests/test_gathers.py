"""Is every entry that a gather may read counted as read, in tokens, state, depth, activations and
gradients?

A position lies in a declared bound, or among what it was chosen from. Which entry it names decides
no count: execution with one table gives what the rules give for all. A gradient is scattered: each
gathered entry is one addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import EquationError, Mixer
from costmodel.adjoint.reverse import adjoint
from costmodel.language.equations import Form
from costmodel.language.nodes import Array, Gather, Reduce, Ref
from costmodel.language.notation import equation
from costmodel.oracle.execute import random_arrays
from costmodel.program.dependence import Read
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions import activations
from costmodel.questions.counting import executed
from costmodel.symbolic.polynomial import Poly
from tests.small import by_sizes
from tests.test_unrolled import agrees

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


def own_and_named(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each row attends to itself and to c rows up to itself, in one softmax of scaled scores."""
    (c,) = m.sizes("c")
    l, d = x.shape
    R = m.buffer("R", l, c, below=lambda i, r: i)
    i, a, b = rows(f, x)
    o, r, k = f.index("o", 1, 1), f.index("r", 1, c), f.index("k", 1, c + 1)
    Z, A = f.array("Z", l, c + 1), f.array("A", l, c + 1)
    Z[i, o] = cm.scaled(cm.sum_(x[i, a] * x[i, a], over=a), by=d)
    Z[i, r + 1] = cm.scaled(cm.sum_(x[i, a] * x[R[i, r], a], over=a), by=d)
    A[i, k] = cm.softmax(Z[i, k], over=k)
    y[i, b] = A[i, 1] * x[i, b] + cm.sum_(A[i, r + 1] * x[R[i, r], b], over=r)


def weighted_expert(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each row goes through one of u experts, times the weight with which it was chosen."""
    (u,) = m.sizes("u")
    l, d = x.shape
    G, W = m.parameter("G", d, u), m.parameter("W", u, d, d)
    i, a, b = rows(f, x)
    e = f.index("e", 1, u)
    g, p = f.array("g", l, u), f.array("p", l, u)
    at, V = f.array("at", l, below=u), f.array("V", l, d)
    g[i, e] = cm.sum_(x[i, a] * G[a, e], over=a)
    p[i, e] = cm.softmax(g[i, e], over=e)
    at[i] = cm.argmax(p[i, e], over=e)
    V[i, b] = cm.sum_(x[i, a] * W[at[i], a, b], over=a)
    y[i, b] = V[i, b] * p[i, at[i]]


def best_of_a_window(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The best c of the last w rows, and their scores."""
    w, c = m.sizes("w c")
    l, d = x.shape
    W = m.parameter("W", d, w)
    i, a, b = rows(f, x)
    k, r = f.index("k", cm.max_(1, i - w + 1), i), f.index("r", 1, cm.min_(c, w, i))
    S, P = f.array("S", l, l), f.array("P", l, c, below=l)
    S[i, k] = cm.sum_(x[i, a] * W[a, i - k + 1], over=a)
    P[i, r] = cm.top_k(S[i, k], over=k)
    y[i, b] = cm.sum_(x[P[i, r], b] * S[i, P[i, r]], over=r)


def retrieved(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each row attends to the c best rows of a context."""
    e, c = m.sizes("e c")
    l, d = x.shape
    z, W = m.context("z", e, d), m.parameter("W", d, d)
    i, a, b = rows(f, x)
    k, r = f.index("k", 1, e), f.index("r", 1, cm.min_(c, e))
    V, S = f.array("V", e, d), f.array("S", l, e)
    P, A = f.array("P", l, c, below=e), f.array("A", l, c)
    V[k, b] = cm.sum_(z[k, a] * W[a, b], over=a)
    S[i, k] = cm.sum_(x[i, a] * V[k, a], over=a)
    P[i, r] = cm.top_k(S[i, k], over=k)
    A[i, r] = cm.softmax(S[i, P[i, r]], over=r)
    y[i, b] = cm.sum_(A[i, r] * V[P[i, r], b], over=r)


def two_tables(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """An entry of a weight whose two places are both read from tables."""
    u, w = m.sizes("u w")
    l, _ = x.shape
    R, C, W = m.buffer("R", l, below=u), m.buffer("C", l, below=w), m.parameter("W", u, w)
    i, _, b = rows(f, x)
    y[i, b] = x[i, b] * W[R[i], C[i]]


def random_blocks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each block of B rows attends to c blocks before it, which a table names."""
    B, c = m.sizes("B c")
    l, d = x.shape
    R, W = m.buffer("R", l / B, c, below=lambda q, r: q - 1), m.parameter("W", d, d)
    _, a, b = rows(f, x)
    p, q = f.index("p", 1, l / B), f.index("q", 2, l / B)
    e, s, r = f.index("e", 1, B), f.index("s", 1, B), f.index("r", 1, c)
    K = f.array("K", l / B, B, d)
    Z, A = f.array("Z", l / B, B, c, B), f.array("A", l / B, B, c, B)
    K[p, e, b] = cm.sum_(x[(p - 1) * B + e, a] * W[a, b], over=a)
    Z[q, e, r, s] = cm.sum_(x[(q - 1) * B + e, a] * K[R[q, r], s, a], over=a)
    A[q, e, r, s] = cm.softmax(Z[q, e, r, s], over=(r, s))
    y[(q - 1) * B + e, b] = cm.sum_(A[q, e, r, s] * K[R[q, r], s, b], over=(r, s))
    y[e, b] = K[1, e, b]


def best_blocks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Each row after the first block attends to the rows of the c blocks of B before its own whose
    sums it is most like."""
    B, c = m.sizes("B c")
    l, d = x.shape
    n, W = l // B, m.parameter("W", d, d)
    i, a, b = rows(f, x)
    p, q = f.index("p", 1, n), f.index("q", 2, n + 1)
    e, u = f.index("e", 1, B), f.index("u", 1, cm.min_(B, l - (q - 1) * B))
    k, r, o = (
        f.index("k", 1, q - 1),
        f.index("r", 1, cm.min_(c, q - 1)),
        f.index("o", 1, cm.min_(B, l)),
    )
    K, M, S = f.array("K", l, d), f.array("M", n, d), f.array("S", n + 1, B, n)
    P, A = f.array("P", n + 1, B, c, below=n), f.array("A", n + 1, B, c, B)
    row = (q - 1) * B + u
    K[i, b] = cm.sum_(x[i, a] * W[a, b], over=a)
    M[p, a] = cm.sum_(K[(p - 1) * B + e, a], over=e)
    S[q, u, k] = cm.sum_(x[row, a] * M[k, a], over=a)
    P[q, u, r] = cm.top_k(S[q, u, k], over=k)
    A[q, u, r, e] = cm.sum_(x[row, a] * K[(P[q, u, r] - 1) * B + e, a], over=a)
    y[row, b] = cm.sum_(A[q, u, r, e] * K[(P[q, u, r] - 1) * B + e, b], over=(r, e))
    y[o, b] = K[o, b]


CAUSAL: tuple[Write, ...] = (best_blocks, random_blocks, named_rows, own_and_named, earlier_rows,
                             deepest_row, weighted_expert, best_of_a_window, retrieved,
                             two_tables)  # fmt: skip


def sorted_chunks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Rows are sorted by bucket, sum up their chunk of C in that order, and are gathered back."""
    C, u = m.sizes("C u")
    l, d = x.shape
    H, W = m.buffer("H", d, u), m.parameter("W", d, d)
    i, a, b = rows(f, x)
    p, k, j = f.index("p", 1, l), f.index("k", 1, u), f.index("j", 1, l)
    h, g, Q = f.array("h", l, u), f.array("g", l, below=u), f.array("Q", l, d)
    at, back = f.array("at", l, below=l), f.array("back", l, below=l)
    h[i, k] = cm.sum_(x[i, a] * H[a, k], over=a)
    g[i] = cm.argmax(h[i, k], over=k)
    at[p] = cm.sort(g[i], over=i)
    back[i] = cm.sort(at[p], over=p)
    Q[i, b] = cm.sum_(x[i, a] * W[a, b], over=a)
    q, e, s = f.index("q", 1, l // C), f.index("e", 1, C), f.index("s", 1, C)
    n, o = f.array("n", l // C, C, C), f.array("o", l, d)
    n[q, e, s] = cm.sum_(Q[at[(q - 1) * C + e], a] * Q[at[(q - 1) * C + s], a], over=a)
    o[(q - 1) * C + e, b] = cm.sum_(n[q, e, s] * Q[at[(q - 1) * C + s], b], over=s)
    v = f.index("v", (l // C) * C + 1, l)
    o[v, b] = Q[at[v], b]
    y[j, b] = o[back[j], b]


def any_rows(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """A table names any row."""
    R = m.buffer("R", x.shape[0], below=x.shape[0])
    i, _, b = rows(f, x)
    y[i, b] = x[R[i], b] * x[i, b]


FORMS: tuple[Write, ...] = (*CAUSAL, sorted_chunks, any_rows)
EXPECTED = (
    *("counts", "span", "values", "counts of one token", "span of one token"),
    "state of one token",
)
SIZES = [
    dict(zip("ldcwuCeB", values, strict=True))
    for values in ((1, 1, 1, 1, 1, 1, 1, 1), (7, 2, 3, 2, 3, 3, 5, 7), (6, 3, 2, 7, 2, 2, 3, 2))
]
each_size = by_sizes(SIZES)
each_form = pytest.mark.parametrize("write", FORMS, ids=lambda w: w.__name__)


@pytest.mark.grid(3)
@each_form
@each_size
def test_what_may_be_gathered_counts_as_read(write: Write, sizes: dict[str, int]) -> None:
    made = OracleComparison(mixer(write)).at(sizes)
    assert made.apart == []
    assert {*made.compared} >= {*(EXPECTED if write in CAUSAL else ("counts", "values"))}


@pytest.mark.grid(3)
@each_form
@each_size
def test_gradients_are_scattered(write: Write, sizes: dict[str, int]) -> None:
    made = GradientComparison(mixer(write)).at(sizes)
    assert made.apart == []
    assert {"counts, backward", "counts, training-step", "activations"} <= {*made.compared}
    assert "gradient of x" in made.compared


def test_additions_of_a_scatter_by_hand() -> None:
    """A row's gradient of x takes one product in each place, and a sum; each of c gathered rows is
    added to x and to K, the latter after c products."""
    counts = cm.count(mixer(any_rows), "backward").at(l=7, d=3)
    assert (counts.mul, counts.add) == (2 * 7 * 3, 2 * 7 * 3)
    step = cm.count(mixer(two_tables), "backward")
    found = step.at(l=7, d=3, u=4, w=5, b=2)
    assert (found.mul, found.add) == (2 * 2 * 7 * 3, 2 * 7 * 3)
    backward = adjoint(lower(mixer(two_tables).forms["direct"])).backward
    printed = {e.name: equation(e, latex=False).right for e in backward}
    assert printed["W.grad"] == (
        "sum(i = 1..l, b = 1..d) ((y.grad.1[i,b] where p is R[i], else 0) where q is C[i], else 0)"
    )


def test_state_and_span_of_gathers_equal_a_count_by_hand() -> None:
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
    assert str(caught.value) == f"R[2, 1] is {given['R'][1, 0]}: expected a position in 1..2"


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


def past_a_block(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The row after a block is taken for one of it."""
    (B,) = m.sizes("B")
    l, _ = x.shape
    R = m.buffer("R", l, below=l // B)
    i, _, b = rows(f, x)
    y[i, b] = x[(R[i] - 1) * B + B + 1, b] * 2


REFUSED: dict[Write, str] = {
    past_a_block: "y reads row B + 1 of a block of B rows of x: give the row an index in 1..B",
    unnamed_rows: "y gathers at entries of R that hold no position (for instance at l = 1, d = 1)",
    later_rows: "y gathers from x at positions up to i + 1, beyond its axis of extent l",
}


def test_a_row_of_a_block_as_printed() -> None:
    form = mixer(best_blocks).forms["direct"]
    reading = next(e for e in form.equations if e.name == "A")
    assert "K[(P[q,u,r]-1)*B+e,a]" in equation(reading, latex=False).right
    assert "K_{(P_{q,u,r}-1)B+e,a}" in equation(reading).right


def behind_a_position(m: Mixer, f: Form, x: Array, y: Array) -> None:
    i, _, b = rows(f, x)
    y[i, b] = x[m.buffer("R", x.shape[0], below=2)[i] + 1, b]


def test_a_row_behind_a_position_is_refused() -> None:
    with pytest.raises(EquationError, match=r"\(P\[i\] - 1\)\*B \+ e, place e of block P\[i\]"):
        mixer(behind_a_position)


@pytest.mark.parametrize("write", REFUSED, ids=lambda w: w.__name__)
def test_a_bound_that_does_not_fit_is_refused(write: Write) -> None:
    with pytest.raises(EquationError) as caught:
        cm.count(mixer(write))
    assert str(caught.value) == REFUSED[write]


def one_addition_less(patch: pytest.MonkeyPatch) -> None:
    """A sum of R terms, and no scatter into zeros."""
    true = executed.RULES[Reduce]

    def rule(node: Reduce, points: Any) -> Iterator[executed.Executed]:
        yield from true(node, points)
        if node.scatters:
            yield executed.Executed("add", points, Poly.of(-1))

    patch.setitem(executed.RULES, Reduce, rule)


def gathered_where_nothing_is(patch: pytest.MonkeyPatch) -> None:
    """What is gathered is thought to be the first row."""
    patch.setattr(
        activations,
        "anywhere",
        lambda system, read: Read(
            Ref(
                read.ref.array,
                tuple(Poly.of(1) if isinstance(p, Gather) else p for p in read.ref.positions),
            ),
            read.over,
        ),
    )


@pytest.mark.parametrize(
    ("mutate", "question"),
    [(one_addition_less, "counts, backward"), (gathered_where_nothing_is, "activations")],
)
def test_a_mutation_is_noticed(
    mutate: Callable[[pytest.MonkeyPatch], None], question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    made = GradientComparison(mixer(named_rows)).at(SIZES[1])
    assert question in {line.partition(":")[0] for line in made.apart}


@each_form
def test_a_search_is_as_deep_as_execution(write: Write) -> None:
    """Where a formula is derived, it is as deep as this says."""
    assert agrees(mixer(write), SIZES[1])
