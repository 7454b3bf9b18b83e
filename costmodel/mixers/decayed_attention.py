"""What are the equations of linear attention with decay: RetNet, GLA and Lightning attention?

A head carries S, the sum of k v^T of all rows so far, each weakened at every row since:

    S_i = a_i S_(i-1) + k_i v_i^T,  o_i = q_i S_i.

The decay a is a number of the head in RetNet and Lightning, and a vector over the key's channels,
made from the token, in GLA. `recurrent` is the recurrence; `parallel` computes the scores of all
pairs, times the decay between their rows; `chunked` computes scores within chunks of C tokens, and
a recurrence over chunks; `scan` computes S by a parallel scan of all rows.

RetNet, Sun et al. 2023: queries and keys are rotated, the decay of head j is 1 - 2^(-4-j), each
head's row is normalised, and a swish gate multiplies it. As in fla's MultiScaleRetention, values
are v = 2 times as wide as keys, rotation is RoPE by halves with base 10000 in place of xPos, the
norm is RMSNorm with one gain for all heads; the paper's divisions that a norm without eps would
undo (by the sums of decays and of scores) are left out.

GLA, Yang et al. 2023: the logarithm of the decay is log sigmoid(.)/16 of a map of rank r; values
are v = 2 times as wide as keys. The scores of pairs are products of queries times B and keys
over B, the product of all decays so far, in chunks of those since the start of the chunk; B is the
exponential of a sum of logarithms, as in fla. In chunks, each row adds up the logarithms of its
chunk anew, e - 1 additions at place e, where fla's kernel takes a prefix sum. Norm and gate are
RetNet's.

Lightning attention, as MiniMax-Text-01 ships it: silu of queries, keys and values; no scale; the
decay is exp(-s) with s = 2^(-8j/n) (1 - layer/(layers - 1 + 1e-5) + 1e-5), here that of layer 0,
since each layer has another constant; a norm over all heads, times a sigmoid gate.

Option `core` leaves out what stands around the recurrence: the rotation, silu, norm and gate of the
output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import rotary
from costmodel.language.nodes import Array, Constant, Node, Ref
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, scan, sum_
from costmodel.symbolic.polynomial import Poly

EPS = Fraction(1, 100_000)
"""What fla's norms add under the root."""
MINIMAX_EPS = Fraction(1, 1_000_000)
"""What MiniMax's norm adds under the root."""
ROTARY_BASE = 10_000
LOGITS = 16
"""What divides the logarithm of GLA's gate."""

Powers = Callable[[int, int, Mapping[str, int]], float]
"""Called with a head, a number of rows and the sizes: the head's decay over that many rows."""


class Places(NamedTuple):
    """Rows along one axis, or by chunk and place along two: the extents of the axes, the positions
    of a row on them, and the number of the row."""

    extents: tuple[Poly, ...]
    at: tuple[Index, ...]
    row: Index | Poly


def in_turn(f: Form) -> Places:
    """All rows along one axis."""
    (l,) = f.mixer.sizes("l")
    i = f.index("i", 1, l)
    return Places((l,), (i,), i)


@dataclass(frozen=True)
class Rows:
    """A form, its queries and keys (n, l, K) and values (n, l, V), and R (l, n*V), what they give,
    to be defined. In `chunks_by_channel`, rows lie by chunk and place: (n, l//C + 1, C, K)."""

    f: Form
    Q: Array
    K: Array
    V: Array
    R: Array

    @property
    def heads(self) -> tuple[Index, Index, Index]:
        """The indices of head j, key channel p and value channel c."""
        (n, *_, wide), f = self.K.shape, self.f
        return f.index("j", 1, n), f.index("p", 1, wide), f.index("c", 1, self.V.shape[-1])

    def read(self, row: Poly | Index, value: Node) -> None:
        """Define R at a row, for head j and value channel c."""
        j, _, c = self.heads
        self.R[row, (j - 1) * self.V.shape[-1] + c] = value

    def carry(self, kept: Callable[[Index], Node]) -> None:
        """Define R, what the queries read of S (heads, l, key channels, value channels): S of a row
        is that of the row before times the decay `kept` of the row, plus k v^T."""
        f, (n, l, K), V, (j, p, c) = self.f, self.K.shape, self.V.shape[2], self.heads
        i, later, S = f.index("i", 1, l), f.index("r", 2, l), f.array("S", n, l, K, V)
        S[j, 1, p, c] = self.K[j, 1, p] * self.V[j, 1, c]
        own = self.K[j, later, p] * self.V[j, later, c]
        S[j, later, p, c] = kept(later) * S[j, later - 1, p, c] + own
        self.read(i, sum_(self.Q[j, i, p] * S[j, i, p, c], over=p))

    def scan(self, kept: Callable[[Index], Ref]) -> None:
        """Define R as `carry` does, with S by a parallel scan of KV, the k v^T of each row. `kept`
        is given for row 1 too, where it changes no result; all entries of S that share a decay
        share the product of decays."""
        f, (n, l, K), V, (j, p, c) = self.f, self.K.shape, self.V.shape[2], self.heads
        i, row = f.index("i", 1, l), f.index("w", 1, l)
        own, S = f.array("KV", n, l, K, V), f.array("S", n, l, K, V)
        own[j, i, p, c] = self.K[j, i, p] * self.V[j, i, c]
        S[j, i, p, c] = scan(kept(row), own[j, row, p, c], over=row)
        self.read(i, sum_(self.Q[j, i, p] * S[j, i, p, c], over=p))

    def weigh(self, decayed: Callable[[Node, Index, Index], Node]) -> None:
        """Define the scores A (heads, l, l) of all pairs of rows k <= i, to which `decayed` applies
        the decay between both rows, and R, the sum of the values that A weighs."""
        f, (n, l, _), (j, p, c) = self.f, self.K.shape, self.heads
        i = f.index("i", 1, l)
        k, A = f.index("k", 1, i), f.array("A", n, l, l)
        A[j, i, k] = decayed(sum_(self.Q[j, i, p] * self.K[j, k, p], over=p), i, k)
        self.read(i, sum_(A[j, i, k] * self.V[j, k, c], over=k))


@dataclass(frozen=True)
class Chunks:
    """The chunks of C rows of a form."""

    f: Form
    l: Poly
    C: Poly

    @property
    def any(self) -> tuple[Index, Index]:
        """A chunk, and a place in it; the last chunk may be short, or empty."""
        q = self.f.index("q", 1, self.l // self.C + 1)
        return q, self.f.index("e", 1, min_(self.C, self.l - (q - 1) * self.C))

    @property
    def later(self) -> tuple[Index, Index]:
        """A chunk after the first, and a place in it."""
        g = self.f.index("q3", 2, self.l // self.C + 1)
        return g, self.f.index("e3", 1, min_(self.C, self.l - (g - 1) * self.C))

    @property
    def whole(self) -> tuple[tuple[Index, None], tuple[Index, Poly]]:
        """The complete chunks of C rows, as pairs (chunk, the chunk before it): the first, which
        has None before it, and the index of the later ones."""
        first = self.f.index("o", 1, min_(1, self.l // self.C))
        later = self.f.index("r2", 2, self.l // self.C)
        return (first, None), (later, later - 1)

    @property
    def complete(self) -> Index:
        """A complete chunk."""
        return self.f.index("q2", 1, self.l // self.C)

    @property
    def places(self) -> Places:
        """All rows by chunk and place."""
        q, e = self.any
        return Places((self.l // self.C + 1, self.C), (q, e), self.row(q, e))

    def row(self, chunk: Index | Poly, place: Index) -> Poly:
        """The row at a place of a chunk."""
        return (chunk - 1) * self.C + place


def carried_by_head(rows: Rows) -> None:
    """A recurrence, with the constant gamma of each head."""
    gamma = rows.f.mixer.arrays["gamma"]
    rows.carry(lambda row: gamma[rows.heads[0]])


def scanned_by_head(rows: Rows) -> None:
    """A parallel scan, with the constant gamma of each head."""
    gamma = rows.f.mixer.arrays["gamma"]
    rows.scan(lambda row: gamma[rows.heads[0]])


def pairs_by_head(rows: Rows) -> None:
    """Scores times D, the powers of gamma."""
    D = rows.f.mixer.arrays["D"]
    rows.weigh(lambda score, i, k: D[rows.heads[0], i - k + 1] * score)


def chunks_by_head(rows: Rows) -> None:
    """Define R in chunks of C rows: N (n, l, V), the values weighed by decayed scores within each
    chunk; S (n, l//C, K, V), the decayed sum of k v^T at the end of each complete chunk; and R,
    which is N plus, in a later chunk, what the queries read of S at the end of the chunk before. n
    heads, keys of K and values of V channels; D_C (n, C + 1) has each head's decay to the powers 0
    to C."""
    f, (n, l, K), V, (j, p, c) = rows.f, rows.K.shape, rows.V.shape[2], rows.heads
    (C,) = f.mixer.sizes("C")
    chunks = Chunks(f, l, C)  # q, e: chunk, place; g, u: later chunk, place
    D, row, (q, e), (g, u) = f.mixer.arrays["D_C"], chunks.row, chunks.any, chunks.later
    s, w, k = f.index("s", 1, e), f.index("w", 1, C), f.index("k", 1, min_(C, l))
    A, N, S = (
        f.array("A", n, l // C + 1, C, C),
        f.array("N", n, l, V),
        f.array("S", n, l // C, K, V),
    )
    K_C, Q_C = f.array("K_C", n, l, K), f.array("Q_C", n, l, K)
    A[j, q, e, s] = D[j, e - s + 1] * sum_(
        rows.Q[j, row(q, e), p] * rows.K[j, row(q, s), p], over=p
    )
    N[j, row(q, e), c] = sum_(A[j, q, e, s] * rows.V[j, row(q, s), c], over=s)
    at = row(chunks.complete, w)
    K_C[j, at, p] = D[j, C - w + 1] * rows.K[j, at, p]  # decayed to the chunk's last row
    for o, before in chunks.whole:
        own = sum_(K_C[j, row(o, w), p] * rows.V[j, row(o, w), c], over=w)
        S[j, o, p, c] = own if before is None else D[j, C + 1] * S[j, before, p, c] + own
    at = row(g, u)
    Q_C[j, at, p] = D[j, u + 1] * rows.Q[j, at, p]  # decayed since the chunk before
    rows.read(k, N[j, k, c])
    rows.read(at, N[j, at, c] + sum_(Q_C[j, at, p] * S[j, g - 1, p, c], over=p))


BY_HEAD = {
    "recurrent": carried_by_head,
    "parallel": pairs_by_head,
    "chunked": chunks_by_head,
    "scan": scanned_by_head,
}
"""Form -> a function that defines R, with one decay for each head."""


def decays_by_channel(rows: Rows) -> Array:
    """Define and return alpha (n, l, K), the decay of each head, row and key channel; that of row 1
    is left undefined."""
    f, (n, l, K), (j, p, _) = rows.f, rows.K.shape, rows.heads
    later = f.index("r", 2, l)  # rows after the first
    g = logarithm(rows, Places((l,), (later,), later))
    alpha = f.array("alpha", n, l, K, latex=r"\alpha")
    alpha[j, later, p] = exp(g[j, later, p])
    return alpha


def carried_by_channel(rows: Rows) -> None:
    """Define R by a recurrence, with a decay alpha (n, l, K) for each head, row and key channel."""
    alpha, (j, p, _) = decays_by_channel(rows), rows.heads
    rows.carry(lambda row: alpha[j, row, p])


def scanned_by_channel(rows: Rows) -> None:
    """Define R by a parallel scan, with a decay alpha (n, l, K) for each head, row and key channel;
    alpha of the first row, which has no row before, is 0."""
    alpha, (j, p, _) = decays_by_channel(rows), rows.heads
    alpha[j, 1, p] = 0
    rows.scan(lambda row: alpha[j, row, p])


def pairs_by_channel(rows: Rows) -> None:
    """Define R by scores of all pairs of rows: queries times B and keys divided by B, where B
    (heads, rows, key channels) is the product of all decays up to a row, and G its logarithm."""
    f, (n, l, K), (j, p, _) = rows.f, rows.K.shape, rows.heads
    i, later = f.index("i", 1, l), f.index("r", 2, l)
    g = logarithm(rows, in_turn(f))
    G, B, Q_B, K_B = (f.array(name, n, l, K) for name in ("G", "B", "Q_B", "K_B"))
    G[j, 1, p] = g[j, 1, p]
    G[j, later, p] = G[j, later - 1, p] + g[j, later, p]
    B[j, i, p] = exp(G[j, i, p])
    Q_B[j, i, p] = rows.Q[j, i, p] * B[j, i, p]
    K_B[j, i, p] = rows.K[j, i, p] / B[j, i, p]
    Rows(f, Q_B, K_B, rows.V, rows.R).weigh(lambda score, i, k: score)


def chunks_by_channel(rows: Rows) -> None:
    """Define R in chunks of C rows: scores A of the pairs within a chunk, of queries times B and
    keys divided by B, the product of the decays since the chunk's start (G is its logarithm, N what
    A reads); and the read of S (heads, l//C, key channels, value channels), the decayed sum of k
    v^T at the end of the chunk before."""
    f, (n, number, C, K), V, (j, p, c) = rows.f, rows.K.shape, rows.V.shape[3], rows.heads
    l = rows.R.shape[0]
    chunks = Chunks(f, l, C)
    (q, e), (h, u), o = chunks.any, chunks.later, chunks.complete  # (chunk, place), later, full
    s, w, k = f.index("s", 1, e), f.index("w", 1, C), f.index("k", 1, min_(C, l))
    g = logarithm(rows, chunks.places)
    G, B, Q_B, K_B = (f.array(name, n, number, C, K) for name in ("G", "B", "Q_B", "K_B"))
    A, N = f.array("A", n, number, C, C), f.array("N", n, number, C, V)
    K_C, S = f.array("K_C", n, l // C, C, K), f.array("S", n, l // C, K, V)
    G[j, q, e, p] = sum_(g[j, q, s, p], over=s)
    B[j, q, e, p] = exp(G[j, q, e, p])
    Q_B[j, q, e, p] = rows.Q[j, q, e, p] * B[j, q, e, p]
    K_B[j, q, e, p] = rows.K[j, q, e, p] / B[j, q, e, p]
    A[j, q, e, s] = sum_(Q_B[j, q, e, p] * K_B[j, q, s, p], over=p)
    N[j, q, e, c] = sum_(A[j, q, e, s] * rows.V[j, q, s, c], over=s)
    K_C[j, o, w, p] = K_B[j, o, w, p] * B[j, o, C, p]  # decayed to the chunk's last row
    for chunk, before in chunks.whole:
        own = sum_(K_C[j, chunk, w, p] * rows.V[j, chunk, w, c], over=w)
        kept = None if before is None else B[j, chunk, C, p] * S[j, before, p, c]
        S[j, chunk, p, c] = own if kept is None else kept + own
    rows.read(k, N[j, 1, k, c])
    found = sum_(Q_B[j, h, u, p] * S[j, h - 1, p, c], over=p)
    rows.read(chunks.row(h, u), N[j, h, u, c] + found)


BY_CHANNEL = {
    "recurrent": carried_by_channel,
    "parallel": pairs_by_channel,
    "chunked": chunks_by_channel,
    "scan": scanned_by_channel,
}
"""Form -> a function that defines R, with a decay for each key channel, made by the token."""


def logarithm(rows: Rows, places: Places) -> Array:
    """Define and return g (heads, rows, K), the logarithm of the decay of each key channel: log
    sigmoid of a map of x of rank r with a bias, over 16. `places`: the layout of the rows."""
    f, n, K, (j, p, _), row = rows.f, rows.K.shape[0], rows.K.shape[-1], rows.heads, places.row
    x, W_1, W_2, b_2 = (f.mixer.arrays[name] for name in ("x", "W_1", "W_2", "b_2"))
    (l, d), r = x.shape, W_1.shape[1]
    a, z = f.index("a", 1, d), f.index("z", 1, r)
    F, g, column = f.array("F", l, r), f.array("g", n, *places.extents, K), (j - 1) * K + p
    F[row, z] = sum_(x[row, a] * W_1[a, z], over=a)
    gate = sum_(F[row, z] * W_2[z, column], over=z) + b_2[column]
    g[j, *places.at, p] = -function("softplus", -gate) / LOGITS
    return g


def projected(
    f: Form,
    of: str,
    width: Poly,
    name: str = "",
    activation: str = "",
    places: Places | None = None,
) -> Array:
    """Define and return x W_of in n heads, (n, rows, width), called `name` or else `of`; through an
    activation if one is named. `places`: the layout of its rows, by default one axis."""
    x, W = f.mixer.arrays["x"], f.mixer.arrays[f"W_{of}"]
    (n,), (extents, at, row) = f.mixer.sizes("n"), places or in_turn(f)
    j, a = f.index("j", 1, n), f.index("a", 1, x.shape[1])
    o, rows = f.index("c" if of == "V" else "p", 1, width), f.array(name or of, n, *extents, width)
    value = sum_(x[row, a] * W[a, (j - 1) * width + o], over=a)
    rows[j, *at, o] = function(activation, value) if activation else value
    return rows


def scaled_by_width(f: Form, name: str, rows: Array, places: Places | None = None) -> Array:
    """Define and return `name`: the queries `rows` (n, rows, K) over the root of their width K.
    `places`: the layout of the rows, by default one axis."""
    (n, *_, K), at = rows.shape, (places or in_turn(f)).at
    j, p, scaled = f.index("j", 1, n), f.index("p", 1, K), f.array(name, *rows.shape)
    scaled[j, *at, p] = Constant(K, -1) * rows[j, *at, p]
    return scaled


def turned(f: Form, name: str, rows: Array) -> Array:
    """Define and return `name`: `rows` (n, l, K), their channels rotated in pairs by position."""
    n, l, K = rows.shape
    j, i, p = f.index("j", 1, n), f.index("i", 1, l), f.index("p", 1, K)
    cos, sin, found = f.mixer.arrays["cos"], f.mixer.arrays["sin"], f.array(name, n, l, K)
    pairs = f.index("p2", 1, K / 2)
    found[j, i, p] = rotary(rows[j, i, p], over=p, pairs=pairs, cos=cos[i, p], sin=sin[i, p])
    return found


def head_width(sizes: Mapping[str, int]) -> int:
    """h at sizes, where it is d/n unless given."""
    return sizes["h"] if "h" in sizes else sizes["d"] // sizes["n"]


def angle(i: int, p: int, sizes: Mapping[str, int]) -> float:
    """The angle of row i and channel p: channels p and p + K/2 turn by one angle."""
    half = head_width(sizes) // 2
    return float((i - 1) * ROTARY_BASE ** (-((p - 1) % half) / half))


def tables(m: Mixer, power: Powers) -> None:
    """Declare three buffers: gamma (n,), the decay of each of n heads, and D (n, l) and D_C (n,
    C+1), its powers 0 to l-1 and 0 to C. `power` gives a head's decay over a number of rows."""
    l, n, C = m.sizes("l n C")  # tokens, heads, rows a chunk
    m.buffer("gamma", n, latex=r"\gamma", value=lambda j, sizes: power(j, 1, sizes))
    for name, many in (("D", l), ("D_C", C + 1)):
        m.buffer(name, n, many, value=lambda j, s, sizes: power(j, s - 1, sizes))


def retention_power(j: int, rows: int, sizes: Mapping[str, int]) -> float:
    """(1 - 2^(-4-j))^rows."""
    return float((1 - 2.0 ** (-4 - j)) ** rows)


def lightning_power(j: int, rows: int, sizes: Mapping[str, int]) -> float:
    """exp(-s rows) with s = 2^(-8j/n) (1 + 1e-5), the slope of layer 0."""
    return math.exp(-(2.0 ** (-8 * j / sizes["n"])) * (1 + 1e-5) * rows)


def output(f: Form, R: Array, y: Array) -> None:
    """y (l, d), the output map."""
    (l, wide), (_, d), W = R.shape, y.shape, f.mixer.arrays["W_out"]
    i, e, b = f.index("i", 1, l), f.index("v", 1, wide), f.index("b", 1, d)
    y[i, b] = sum_(R[i, e] * W[e, b], over=e)


def gate(f: Form, R: Array, activation: str) -> Array:
    """Define and return the gate Z (l, n*V) of the rows R: the activation of x W_G."""
    x, W, (l, wide) = f.mixer.arrays["x"], f.mixer.arrays["W_G"], R.shape
    i, a, e = f.index("i", 1, l), f.index("a", 1, x.shape[1]), f.index("v", 1, wide)
    found = f.array("Z", l, wide)
    found[i, e] = function(activation, sum_(x[i, a] * W[a, e], over=a))
    return found


def by_heads(f: Form, R: Array, V: Poly) -> Array:
    """Define and return H (l, n*V): each head's V channels of R, RMS normed, times a swish gate."""
    (l, wide), gain = R.shape, f.mixer.arrays["gain"]
    j, i, c = f.index("j", 1, wide / V), f.index("i", 1, l), f.index("c", 1, V)
    Z, N, H = gate(f, R, "silu"), f.array("R_N", l, wide), f.array("H", l, wide)
    at = i, (j - 1) * V + c
    N[at] = rms_norm(R[at], over=c, gain=gain[c], eps=EPS)
    H[at] = N[at] * Z[at]
    return H


def as_a_whole(f: Form, R: Array, V: Poly) -> Array:
    """Define and return H (l, n*V): each row of R normalised by one RMS norm, times a sigmoid gate.
    `V`, a head's width, is not used: the signature is that of `by_heads`."""
    (l, wide), gain = R.shape, f.mixer.arrays["gain"]
    i, e = f.index("i", 1, l), f.index("v", 1, wide)
    Z, N, H = gate(f, R, "sigmoid"), f.array("R_N", l, wide), f.array("H", l, wide)
    N[i, e] = rms_norm(R[i, e], over=e, gain=gain[e], eps=MINIMAX_EPS)
    H[i, e] = N[i, e] * Z[i, e]
    return H


def written(
    m: Mixer,
    widths: tuple[Poly, Poly],
    made: Callable[[Form], tuple[Array, Array, Array]],
    decayed: Mapping[str, Callable[[Rows], None]],
    around: Callable[[Form, Array, Poly], Array] | None,
) -> Mixer:
    """The mixer m, whose parameters are declared, with its output y declared and the equations of
    its forms written.

    Args:
        widths: K and V, the widths of a head's keys and values.
        made: a function that writes the queries, keys and values of a form and returns them.
        decayed: form -> a function that writes R (l, n*V), what the queries read, from them.
        around: a function that writes the rows before the output map (norm and gate) from R and
            returns them; None if they are R.
    """
    (l, d, n), (_, V) = m.sizes("l d n"), widths
    y = m.output("y", l, d)
    for form, define in decayed.items():
        with m.form(form) as f:
            Q, K_, V_ = made(f)
            R = f.array("R", l, n * V)
            define(Rows(f, Q, K_, V_, R))
            output(f, R if around is None else around(f, R, V), y)
    return m


CORE = {"core": "bare maps to queries, keys, values and decays, the recurrence, the output map"}


def maps(m: Mixer, K: Poly, V: Poly, gain: Poly | None) -> None:
    """Declare x and the maps of n heads: to queries and keys of width K, to values of width V, and
    to y. With a `gain`, the extent of the norm's gain, also this gain and the gate's map."""
    l, d, n = m.sizes("l d n")  # tokens, channels, heads
    m.input("x", l, d)
    for name, width in (("Q", K), ("K", K), ("V", V)):
        m.parameter(f"W_{name}", d, n * width)
    if gain is not None:
        m.parameter("W_G", d, n * V)
        m.parameter("gain", gain)
    m.parameter("W_out", n * V, d)


@offering(CORE)
def retnet(chosen: Chosen) -> Mixer:
    """The mixer RetNet, multi-scale retention: linear attention with a constant decay for each
    head, rotated queries and keys, a norm of each head and a swish gate; `core`: without these
    three. Forms: `recurrent`, `parallel` (pairs of rows), `chunked` and `scan`."""
    m = Mixer(
        "retnet",
        title="RetNet" if not chosen else "Retention",
        idea="a carried sum of k v, each head forgets at its own pace",
        source="Sun et al. 2023, arXiv 2307.08621, section 2; fla, MultiScaleRetention",
        group="linear",
    )
    (h,) = m.sizes("h")
    V = m.size("v", "width of a head's values over that of its keys", 2) * h
    maps(m, h, V, None if chosen else V)  # with gate and gain, unless `core`
    tables(m, retention_power)
    if not chosen:
        (l,) = m.sizes("l")
        m.buffer("cos", l, h, value=lambda i, p, sizes: math.cos(angle(i, p, sizes)))
        m.buffer("sin", l, h, value=lambda i, p, sizes: math.sin(angle(i, p, sizes)))

    def made(f: Form) -> tuple[Array, Array, Array]:
        """Write and return Q (over the root of h), K and V."""
        Q, K = projected(f, "Q", h, "X_Q"), projected(f, "K", h, "K" if chosen else "X_K")
        if not chosen:
            Q, K = turned(f, "T_Q", Q), turned(f, "K", K)
        return scaled_by_width(f, "Q", Q), K, projected(f, "V", V)

    return written(m, (h, V), made, BY_HEAD, None if chosen else by_heads)


@offering(CORE)
def gla(chosen: Chosen) -> Mixer:
    """The mixer GLA, gated linear attention: a decay for each channel of the keys, which each token
    gives; a norm of each head and a swish gate, both left out with `core`. Forms: `recurrent`,
    `parallel`, `chunked`, `scan`."""
    m = Mixer(
        "gla",
        title="GLA",
        idea="a carried sum of k v, each token says what of it is kept",
        source="Yang et al. 2023, arXiv 2312.06635, section 4; fla, GatedLinearAttention",
        group="linear",
    )
    l, d, n, V = m.sizes("l d n h")  # tokens, channels, heads, width of a value
    K = V / m.size("v", "width of a head's values over that of its keys", 2)
    r = m.size("r", "rank of the decay's map", 16)
    maps(m, K, V, None if chosen else V)
    m.parameter("W_1", d, r)
    m.parameter("W_2", r, n * K)
    m.parameter("b_2", n * K)

    def made(f: Form) -> tuple[Array, Array, Array]:
        """Write and return queries over sqrt(K), keys and values (in `chunked` by place)."""
        places = Chunks(f, l, *m.sizes("C")).places if f.name == "chunked" else in_turn(f)
        Q, K_, V_ = (
            projected(f, of, width, name, places=places)
            for of, width, name in (("Q", K, "X_Q"), ("K", K, "K"), ("V", V, "V"))
        )
        return scaled_by_width(f, "Q", Q, places), K_, V_

    return written(m, (K, V), made, BY_CHANNEL, None if chosen else by_heads)


@offering(CORE)
def lightning(chosen: Chosen) -> Mixer:
    """The mixer of MiniMax-Text-01's Lightning attention: linear attention of silu of queries, keys
    and values with a constant decay for each head, then norm and gate; `core`: without silu, norm
    and gate. Forms: `recurrent`, `parallel` (pairs of rows), `chunked` and `scan`."""
    m = Mixer(
        "lightning",
        title="Lightning attention",
        idea="a carried sum of k v of silu, a constant decay for each head",
        source="MiniMax 2025, arXiv 2501.08313, section 2.2; transformers, "
        "MiniMaxLightningAttention",
        group="linear",
    )
    n, h = m.sizes("n h")
    maps(m, h, h, None if chosen else n * h)
    tables(m, lightning_power)
    activation = "" if chosen else "silu"

    def made(f: Form) -> tuple[Array, Array, Array]:
        Q, K, V = (projected(f, name, h, name, activation) for name in "QKV")
        return Q, K, V

    return written(m, (h, h), made, BY_HEAD, None if chosen else as_a_whole)
