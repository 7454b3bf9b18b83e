"""Is every question answered for forms over chunks and blocks that a user may write?

Each is held against execution, whole and token by token, at chunks that divide the length and that
do not, of one row and longer than all rows; the answers of one token are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import costmodel as cm
from costmodel import EquationError, Mixer, Unanswered, min_
from costmodel.adjoint.reverse import adjoint
from costmodel.errors import SizeError
from costmodel.language.equations import Form
from costmodel.language.nodes import Array
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import OracleComparison, differences
from costmodel.proofs.gradients import GradientComparison
from costmodel.symbolic.constraints import implied
from costmodel.symbolic.polynomial import Poly, size
from tests.small import complete

Write = Callable[..., None]


def mixer(write: Write, number: int = 0) -> Mixer:
    """The mixer of one form: `write` defines y from Q, K and V, all (l, d), in chunks of a
    `number` of rows, or of a size (0)."""
    letter = "B" if write in QUOTIENTS else "C"
    m = Mixer(write.__name__)
    l, d = m.sizes("l d")
    (C,) = (Poly.of(number),) if number else m.sizes(letter)
    x, y = m.input("x", l, d), m.output("y", l, d)
    weights = [m.parameter(f"W_{name}", d, d) for name in "QKV"]
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        rows = [f.array(name, l, d) for name in "QKV"]
        for array, W in zip(rows, weights, strict=True):
            array[i, b] = cm.sum_(x[i, a] * W[a, b], over=a)
        write(f, y, *rows, C)
    return m


def places(f: Form, l: Poly, C: Poly) -> tuple[Any, Any]:
    """The chunk q and the place e of every row."""
    q = f.index("q", 1, l // C + 1)
    return q, f.index("e", 1, min_(C, l - (q - 1) * C))


def attended(
    f: Form, y: Array, V: Array, where: tuple[Any, ...], shape: Any, row: Any, seen: Any
) -> None:
    """y of a row: a softmax over the last index of `where`, which reads V at the rows seen."""
    *_, over = where
    Q, K, d = f.arrays["Q"], f.arrays["K"], V.shape[1]
    p, c = f.index("p", 1, d), f.index("c", 1, d)
    Z, A = f.array("Z", *shape), f.array("A", *shape)
    Z[where] = cm.scaled(cm.sum_(Q[row, p] * K[seen, p], over=p), by=d)
    A[where] = cm.softmax(Z[where], over=over)
    y[row, c] = cm.sum_(A[where] * V[seen, c], over=over)


def pairs(y: Array, C: Poly) -> tuple[Poly, Poly, Poly]:
    """The extents of scores within chunks."""
    return y.shape[0] // C + 1, C, C


def own_chunk(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Token i attends to the tokens of its own chunk up to itself."""
    q, e = places(f, y.shape[0], C)
    s = f.index("s", 1, e)
    attended(f, y, V, (q, e, s), pairs(y, C), (q - 1) * C + e, (q - 1) * C + s)


def own_chunk_by_floor(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """The same, the chunk of row i written (i - 1)//C."""
    i = f.indices["i"]
    k = f.index("k", (i - 1) // C * C + 1, i)
    attended(f, y, V, (i, k), (y.shape[0], y.shape[0]), i, k)


def sums_by_floor(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """A row reads the weight of its place in its chunk, and the sum over the chunk before."""
    l, d = y.shape
    o, w, b = f.index("o", 1, l // C), f.index("w", 1, C), f.index("b", 1, d)
    P, D = f.array("P", l // C, d), f.mixer.parameter("D", C)
    P[o, b] = cm.sum_(K[(o - 1) * C + w, b] * V[(o - 1) * C + w, b], over=w)
    k, r = f.index("k", 1, min_(C, l)), f.index("r", C + 1, l)
    y[k, b] = Q[k, b]
    y[r, b] = Q[r, b] * D[r - (r - 1) // C * C] + P[(r - 1) // C, b]


def own_chunk_by_rows(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """The same, its scores kept by row and place."""
    q, e = places(f, y.shape[0], C)
    s = f.index("s", 1, e)
    row = (q - 1) * C + e
    attended(f, y, V, (row, s), (y.shape[0], C), row, (q - 1) * C + s)


def whole_chunk(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Token i attends to all tokens of its own chunk: not causal."""
    q, e = places(f, y.shape[0], C)
    s = f.index("s", 1, min_(C, y.shape[0] - (q - 1) * C))
    attended(f, y, V, (q, e, s), pairs(y, C), (q - 1) * C + e, (q - 1) * C + s)


def chunk_before(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Token i attends to its own chunk up to itself, and to the one before."""
    q, e = places(f, y.shape[0], C)
    row = (q - 1) * C + e
    k = f.index("k", cm.max_(1, (q - 2) * C + 1), row)
    attended(f, y, V, (q, e, k), (*pairs(y, C)[:2], y.shape[0]), row, k)


def pooled(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Later chunks attend to the mean key and value of every complete one."""
    l, d = y.shape
    o, w, b, p = f.index("o", 1, l // C), f.index("w", 1, C), f.index("b", 1, d), f.index("p", 1, d)
    P, U = f.array("P", l // C, d), f.array("U", l // C, d)
    P[o, b] = cm.scaled(cm.sum_(K[(o - 1) * C + w, b], over=w), by=C)
    U[o, b] = cm.scaled(cm.sum_(V[(o - 1) * C + w, b], over=w), by=C)
    q, e = places(f, l, C)
    u, row = f.index("u", 1, q - 1), (q - 1) * C + e
    Z, A = (f.array(name, l // C + 1, C, l // C) for name in "ZA")
    Z[q, e, u] = cm.sum_(Q[row, p] * P[u, p], over=p)
    A[q, e, u] = cm.softmax(Z[q, e, u], over=u)
    y[row, b] = V[row, b] + cm.sum_(A[q, e, u] * U[u, b], over=u)


def ends(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Later rows read the last key and the first value of the chunk before."""
    l, d = y.shape
    o, b = f.index("o", 1, l // C), f.index("b", 1, d)
    S = f.array("S", l // C, d)
    S[o, b] = K[o * C, b] * V[(o - 1) * C + 1, b]
    k, v = f.index("k", 1, min_(C, l)), f.index("v", 2, l // C + 1)
    row = (v - 1) * C + f.index("u", 1, min_(C, l - (v - 1) * C))
    y[k, b] = Q[k, b]
    y[row, b] = Q[row, b] * S[v - 1, b]


def first_rows(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """The first row of a chunk is apart, and its key is read by the others."""
    l, d = y.shape
    q, b = f.index("q", 1, (l - 1) // C + 1), f.index("b", 1, d)
    first, row = (q - 1) * C + 1, (q - 1) * C + f.index("e", 2, min_(C, l - (q - 1) * C))
    y[first, b] = Q[first, b] * V[first, b]
    y[row, b] = Q[row, b] * K[first, b] * V[row, b]


def earlier_rows(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Token i adds the earlier values of its own chunk, kept by place: the last one is not read,
    and with chunks of one row none is."""
    l, d = y.shape
    q, e = places(f, l, C)
    s, b = f.index("s", 1, e - 1), f.index("b", 1, d)
    X = f.array("X", l // C + 1, C, d)
    X[q, e, b] = V[(q - 1) * C + e, b]
    row = (q - 1) * C + e
    y[row, b] = Q[row, b] * K[row, b] + cm.sum_(X[q, s, b], over=s)


def earlier_pairs(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Token i adds the values of its own chunk so far, weighed by its query, and the earlier ones,
    weighed by its key: the gradient of the chunk's last key reads one query of each chunk."""
    l, d = y.shape
    q, e = places(f, l, C)
    s, z, p, b = f.index("s", 1, e), f.index("z", 1, e - 1), f.index("p", 1, d), f.index("b", 1, d)
    A, B, O = f.array("A", *pairs(y, C)), f.array("B", *pairs(y, C)), f.array("O", l, d)
    row, i, W = (q - 1) * C + e, f.indices["i"], f.mixer.arrays["W_Q"]
    A[q, e, s] = cm.sum_(Q[row, p] * K[(q - 1) * C + s, p], over=p)
    B[q, e, z] = cm.sum_(K[row, p] * K[(q - 1) * C + z, p], over=p)
    own = cm.sum_(A[q, e, s] * V[(q - 1) * C + s, b], over=s)
    O[row, b] = own + cm.sum_(B[q, e, z] * V[(q - 1) * C + z, b], over=z)
    y[i, b] = cm.sum_(O[i, p] * W[p, b], over=p)


def substituted(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
    """Token i's value less the earlier results of its chunk, weighed by products of keys: a
    triangular solve. Keys of the first rows of chunks weigh nothing, and have no entry in E."""
    l, d = y.shape
    q, e = places(f, l, C)
    g = f.index("g", 2, min_(C, l - (q - 1) * C))
    z, p, b = f.index("z", 1, e - 1), f.index("p", 1, d), f.index("b", 1, d)
    E, A = f.array("E", l // C + 1, C, d), f.array("A", *pairs(y, C))
    U, row = f.array("U", l // C + 1, C, d), (q - 1) * C + e
    E[q, g, p] = Q[(q - 1) * C + g, p] * K[(q - 1) * C + g, p]
    A[q, e, z] = cm.sum_(E[q, e, p] * K[(q - 1) * C + z, p], over=p)
    U[q, e, b] = V[row, b] - cm.sum_(A[q, e, z] * U[q, z, b], over=z)
    y[row, b] = Q[row, b] * U[q, e, b]


def strided(f: Form, y: Array, Q: Array, K: Array, V: Array, B: Poly) -> None:
    """Token i attends to the tokens of its place in all blocks so far; B divides l."""
    q, e = f.index("q", 1, y.shape[0] / B), f.index("e", 1, B)
    u = f.index("u", 1, q)
    attended(
        f, y, V, (q, e, u), (y.shape[0] / B, B, y.shape[0] / B), (q - 1) * B + e, (u - 1) * B + e
    )


def linear(f: Form, y: Array, Q: Array, K: Array, V: Array, B: Poly) -> None:
    """Linear attention over whole blocks: pairs within each, and the sum of those before."""
    l, d = y.shape
    q, z, e, w = (f.index(*r) for r in (("q", 1, l / B), ("z", 2, l / B), ("e", 1, B), ("w", 1, B)))
    s, o = f.index("s", 1, e), f.index("o", 1, 1)
    p, c = f.index("p", 1, d), f.index("c", 1, d)
    S, A, N = f.array("S", l / B, d, d), f.array("A", l / B, B, B), f.array("N", l, d)

    def product(block: Any) -> Any:
        row = (block - 1) * B + w
        return cm.sum_(K[row, p] * V[row, c], over=w)

    S[o, p, c] = product(o)
    S[z, p, c] = S[z - 1, p, c] + product(z)
    A[q, e, s] = cm.sum_(Q[(q - 1) * B + e, p] * K[(q - 1) * B + s, p], over=p)
    N[(q - 1) * B + e, c] = cm.sum_(A[q, e, s] * V[(q - 1) * B + s, c], over=s)
    row = (z - 1) * B + e
    y[(o - 1) * B + e, c] = N[(o - 1) * B + e, c]
    y[row, c] = N[row, c] + cm.sum_(Q[row, p] * S[z - 1, p, c], over=p)


def last_rows(
    f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly, *, whole: bool = False
) -> None:
    """Token i attends to the last C rows: those of its own chunk up to itself, and those of the one
    before that are behind its place."""
    l, d = y.shape
    o, q = f.index("o", 1, 1), f.index("q", 2, l / C if whole else l // C + 1)
    g = f.index("g", 1, C if whole else min_(C, l))
    e = f.index("e", 1, C if whole else min_(C, l - (q - 1) * C))
    r, s, u = f.index("r", 1, g), f.index("s", 1, e), f.index("u", e + 1, C)
    k, p, c = f.index("k", cm.union((1, e), (e + 1, C))), f.index("p", 1, d), f.index("c", 1, d)
    Z, A = (f.array(name, q.upper[0], C, C) for name in "ZA")
    first, row, before = (o - 1) * C + g, (q - 1) * C + e, (q - 2) * C + u
    Z[o, g, r] = cm.sum_(Q[first, p] * K[(o - 1) * C + r, p], over=p)
    Z[q, e, s] = cm.sum_(Q[row, p] * K[(q - 1) * C + s, p], over=p)
    Z[q, e, u] = cm.sum_(Q[row, p] * K[before, p], over=p)
    A[o, g, r] = cm.softmax(Z[o, g, r], over=r)
    A[q, e, k] = cm.softmax(Z[q, e, k], over=k)
    y[first, c] = cm.sum_(A[o, g, r] * V[(o - 1) * C + r, c], over=r)
    own = cm.sum_(A[q, e, s] * V[(q - 1) * C + s, c], over=s)
    y[row, c] = own + cm.sum_(A[q, e, u] * V[before, c], over=u)


def last_rows_of_blocks(*given: Any) -> None:
    """The same of blocks that divide the length."""
    last_rows(*given, whole=True)


QUOTIENTS: tuple[Write, ...] = (strided, linear, last_rows_of_blocks)
"""Forms over blocks that divide the length."""
STATE: Mapping[Write, str] = {
    own_chunk: "2*d*t - 2*C*d*floor(t/C)",
    own_chunk_by_floor: "2*d*t - 2*C*d*floor(t/C)",
    own_chunk_by_rows: "2*d*t - 2*C*d*floor(t/C)",
    chunk_before: "Piecewise((2*d*t, C*floor(t/C) - C <= 0), "
    "(-2*C*d*floor(t/C) + 2*C*d + 2*d*t, C*floor(t/C) - C >= 1))",
    pooled: "-2*C*d*floor(t/C) + 2*d*t + 2*d*floor(t/C)",
    first_rows: "-d*floor(t/C) + d*floor((t - 1)/C) + d",
    strided: "2*d*t",
}
"""What is held after t tokens: chunk by chunk a sawtooth."""
CAUSAL: tuple[Write, ...] = (
    *(*STATE, sums_by_floor, earlier_rows, earlier_pairs, ends, linear),
    *(last_rows, last_rows_of_blocks),
)
SIZES = ({"l": 5, "C": 2}, {"l": 4, "C": 2}, {"l": 2, "C": 3}, {"l": 2, "C": 1})
BLOCKS = ({"l": 6, "B": 2}, {"l": 3, "B": 3}, {"l": 2, "B": 1})
GRADIENTS = (own_chunk_by_rows, whole_chunk, earlier_pairs, pooled, linear)


def sizes_of(write: Write) -> tuple[dict[str, int], ...]:
    return tuple({**sizes, "d": 2} for sizes in (BLOCKS if write in QUOTIENTS else SIZES))


@pytest.mark.grid(2)
@pytest.mark.parametrize("write", CAUSAL, ids=lambda w: w.__name__)
def test_the_oracle_agrees(write: Write) -> None:
    """Of the first rows of chunks, the entries at a stride are not counted: no peak is derived."""
    made = mixer(write)
    for sizes in sizes_of(write):
        apart = differences(made, sizes)
        refused = ["peak: index q skips entries by a stride of C"]
        assert apart == (refused if write is first_rows else [])


@pytest.mark.parametrize("rewrites", [(), ("dense",), ("zero-state",), ("dense", "zero-state")])
def test_a_triangular_solve_computes_no_row_ahead(rewrites: tuple[str, ...]) -> None:
    """Under `dense`, products of all keys of a chunk are computed, those of its first row with
    zeros, which move nothing; a row reads the results before alone. Its depth is searched."""
    made = OracleComparison(mixer(substituted), "", rewrites)
    for sizes in sizes_of(substituted):
        made.at(sizes)
    assert made.apart == []
    assert {line.rpartition(": ")[2] for line in made.refused} == {
        "the recurrence reads rows further back than the previous row, so that no formula of "
        "the depth is derived"
    }


IN_CHUNKS = ("linear-attention", "retnet+core", "gla+core", "mamba-2+core", "mlstm+core")


@pytest.mark.parametrize("name", IN_CHUNKS)
def test_dense_computes_no_row_after_the_last(name: str) -> None:
    """`dense` computes all pairs of a chunk, and a last chunk has the rows that are left: three
    rows cost the same in a chunk of four as in one of nine."""
    mixer = cm.mixer(name)
    found = cm.count(mixer, form="chunked", convention="dense")
    four, nine = (complete(mixer, {"l": 3, "d": 4, "n": 2, "C": C}) for C in (4, 9))
    assert found.at(**four).by_class() == found.at(**nine).by_class()


def test_a_number_of_rows_makes_the_chunks_of_a_size() -> None:
    number, size = mixer(own_chunk_by_rows, 2), mixer(own_chunk_by_rows)
    assert differences(number, {"l": 5, "d": 1}) == []
    one, other = (cm.count(each, convention="dense") for each in (number, size))
    assert one.at(l=5, d=3).by_class() == other.at(l=5, d=3, C=2).by_class()


@pytest.mark.grid(2)
@pytest.mark.parametrize("write", GRADIENTS, ids=lambda w: w.__name__)
def test_gradients_of_chunked_forms_equal_execution(write: Write) -> None:
    sizes, *_ = sizes_of(write)
    found = GradientComparison(mixer(write)).at(sizes)
    assert found.apart + found.refused == []


@pytest.mark.parametrize("write", STATE, ids=lambda w: w.__name__)
def test_state_of_chunked_forms_equals_a_formula_by_hand(write: Write) -> None:
    import sympy

    found = cm.state(mixer(write)).expr
    names = {str(s): s for s in found.free_symbols}
    assert sympy.simplify(found - sympy.sympify(STATE[write], locals=names)) == 0


@pytest.mark.parametrize("write", [last_rows, last_rows_of_blocks], ids=lambda w: w.__name__)
def test_the_last_rows_are_held(write: Write) -> None:
    found, chunk = cm.state(mixer(write)), "B" if write in QUOTIENTS else "C"
    for C in (1, 2, 3):
        held = [found.at(d=3, t=t, **{chunk: C}) for t in range(1, 8)]
        assert held == [2 * 3 * min(t, C - 1) for t in range(1, 8)]


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    "rewrites", [(), ("safe-softmax",), ("safe-softmax", "logsumexp-gradient")]
)
def test_a_softmax_over_a_union_from_its_result(rewrites: tuple[str, ...]) -> None:
    """One sum of g y for all ranges of a row."""
    chosen = ("softmax-gradient", *rewrites)
    for sizes in sizes_of(last_rows):
        found = GradientComparison(mixer(last_rows), rewrites=chosen).at(sizes)
        assert found.apart == []
        assert {"counts, backward", "activations", "gradient of x"} <= {*found.compared}


def test_whole_blocks_are_a_quotient_in_gradients() -> None:
    """l/B of them: no quotient is rounded, no block cut short."""
    backward = adjoint(lower(mixer(last_rows_of_blocks).forms["direct"])).backward
    ends = {str(end) for e in backward for index in e.indices for end in index.ends}
    assert "l/B" in ends
    assert not any("floor" in end for end in ends)


def test_keys_wait_for_the_end_of_their_chunk() -> None:
    """Mean keys are read when a chunk is complete: its rows are held, its keys made at once."""
    found = cm.count(mixer(pooled), phase="inference")
    mul = [found.at(l=12, d=3, C=4, t=t).mul for t in (3, 4, 5)]
    assert mul == [18, 18 + 4 * 9, 18 + 6]


def test_other_functions_of_an_index_are_refused() -> None:
    def halves(f: Form, y: Array, Q: Array, K: Array, V: Array, C: Poly) -> None:
        i, b = f.indices["i"], f.indices["b"]
        k = f.index("k", i // C + 1, i)
        y[i, b] = cm.sum_(V[k, b], over=k)

    words = r"by \(i - 1\)//C, the chunk of i counted from 0, where C is the number of rows in"
    with pytest.raises(EquationError, match=words):
        cm.count(mixer(halves))


def test_a_whole_chunk_is_not_causal() -> None:
    with pytest.raises(Unanswered, match="not causal: an output depends on later tokens"):
        cm.count(mixer(whole_chunk), phase="inference")


def test_a_quotient_divides() -> None:
    """Sizes at which a block count is no whole number are refused; no case is left for them."""
    made = mixer(strided)
    assert str(cm.count(made).exp) == "l/2 + l**2/(2*B)"
    with pytest.raises(SizeError, match="choose l divisible by B"):
        cm.count(made).at(l=5, d=2, B=2)


def test_a_fraction_proves_nothing() -> None:
    """From q >= 1 it does not follow that q*d/n >= d."""
    q, d, n = Poly.atom("@q"), size("d"), size("n")
    assert not implied(frozenset([q - 1]), q * d / n - d)
    assert implied(frozenset([q - n]), q * d / n - d)


def test_a_loop_through_chunks_takes_one_step_for_each_row() -> None:
    """C*floor((l - 1)/C) + C, the end of the last chunk, is no less than l."""
    repeated = {"times": "l - 1", "steps": ["mul", "add"]}
    assert repeated in cm.critical_path(cm.mixer("mega+chunk")).steps
