"""What are the equations of two layers whose heads carry a matrix, the mLSTM and RWKV-7?

mLSTM, as in xLSTM 7B: n heads with keys of K and values of h channels. An input gate I and the
logarithm F of a forget gate, numbers of each head and row, are kept in range by M:

    M_i = max(F_i + M_(i-1), I_i),  P = exp(F_i + M_(i-1) - M_i),  E = exp(I_i - M_i),
    S = P S + E k v^T,  Z = P Z + E k,  H = q S / (max(|q Z|, exp(-M_i)) + 1e-6),

with q over sqrt(K). As the authors' code has it, M is 0 before the first row, and I and the operand
of F are 15 tanh(z / 15) of linear maps. Each head's H is normalised to mean 0 and variance 1, times
a gain and a sigmoid of a linear map. `parallel` weighs the products of a query and all earlier keys
by exp(G_i - G_k + I_k - M_i), where G is the running sum of F; the largest of these exponents
without M_i, which the paper subtracts, is M_i, so that M is computed by its recurrence. `chunked`
weighs pairs so within chunks of C rows, where G sums F since the start of the chunk, and carries S,
Z and T, the M of the last row, from chunk to chunk; M_i is max(G_i + T, max over k of G_i + J_k)
with J = I - G, as in the authors' chunkwise kernels.

RWKV-7: six mixes of a row and the row before (zeros before the first) give r, w, k, v, a and a gate
g. The decay exp(-exp(-1/2) sigmoid(w)) of each key channel and the rates alpha = sigmoid(a) come
from maps of low rank; kappa is k times k_k, normalised to length 1 in each head, and k becomes
k (1 + (alpha - 1) k_a). Then

    S = Diag(decay) S - (kappa alpha) (kappa^T S) + k v^T,  o = r S,

o is normalised to mean 0 and variance 1 in each head, times a gain, plus a bias; v times the sum of
r k r_k is added, g multiplies, and W_out follows. This is the first layer, which gives its v to all
others; with the option `later`, v is v + sigmoid(map of low rank) (v_first - v). `chunked` computes
kappa^T S of C rows from the S before them by forward substitution, as chunked delta rules do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.norms import l2_norm, layer_norm
from costmodel.language.macros.softmax import scaled
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, max_over, maximum, sum_
from costmodel.mixers.decayed_attention import Chunks, Places, in_turn
from costmodel.symbolic.polynomial import Poly

CAP = 15
"""The bound of both gates, gate_soft_cap of the authors' configuration."""

TINY = Constant(Poly.of(Fraction(1, 10**6)))
"""What is added to the denominator, eps of the authors' configuration; norm_eps is equal."""

DECAY = Constant(Poly.of(Fraction("0.6065306597126334")))
"""exp(-1/2) in double precision, one constant."""


@offering({"core": "the recurrence alone: bare projections and gates, no norm, no output gate"})
def mlstm(chosen: Chosen) -> Mixer:
    """The mixer of the mLSTM layer of xLSTM 7B, a gated matrix in each head; `core`: the recurrence
    between bare maps. Forms: `recurrent`, `parallel` (pairs of rows) and `chunked`."""
    m = Mixer(
        "mlstm",
        title="mLSTM",
        idea="a matrix of each head; gates say what stays and what comes",
        source="Beck et al. 2025, arXiv 2503.13427, section 3; Beck et al. 2024, arXiv 2405.04517",
        group="recurrent",
    )
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    K = m.size("K", "key width of a head", 8)
    whole = "core" not in chosen
    m.input("x", l, d)
    y = m.output("y", l, d)
    for name, width in (("Q", K), ("K", K), ("V", h)):
        m.parameter(f"W_{name}", d, n * width)
    for name in "IF":
        m.parameter(f"W_{name}", d, n)
        if whole:
            m.parameter(f"b_{name}", n)
    if whole:
        m.parameter("W_O", d, n * h)
        m.parameter("gain", n * h)
    W_out = m.parameter("W_out", n * h, d)
    forms = {"recurrent": _recurrent, "parallel": _parallel, "chunked": _chunked}
    for form, read in forms.items():
        with m.form(form) as f:
            i, v, b = f.index("i", 1, l), f.index("v", 1, n * h), f.index("b", 1, d)
            R, places = f.array("R", l, n * h), _places(f, form)
            heads = (
                _headed(f, name, width, places) for name, width in (("Q", K), ("K", K), ("V", h))
            )
            _joined(f, read(f, *heads), R)
            y[i, b] = sum_(R[i, v] * W_out[v, b], over=v)
    return m


def _places(f: Form, form: str) -> Places:
    """How the rows of a form lie: in chunks by chunk and place."""
    return Chunks(f, *f.mixer.sizes("l C")).places if form == "chunked" else in_turn(f)


def _mapped(f: Form, name: str, row: Node | object, column: object) -> Node:
    """Entry `column` of x W_name at a row."""
    x, W = f.mixer.role("input"), f.mixer.arrays[f"W_{name}"]
    a = f.index("a", 1, x.shape[1])
    return sum_(x[row, a] * W[a, column], over=a)


def _headed(f: Form, name: str, width: Poly, places: Places) -> Array:
    """Define and return x W_name as n heads, an array (n, rows, width). `places` says how its rows
    are laid out: along one axis, or by chunk and place."""
    (n,) = f.mixer.sizes("n")
    j, c = f.index("j", 1, n), f.index("p" if name in "QK" else "c", 1, width)
    rows = f.array(name, n, *places.extents, width)
    rows[j, *places.at, c] = _mapped(f, name, places.row, (j - 1) * width + c)
    return rows


def _gates(f: Form, places: Places) -> tuple[Array, Array]:
    """Define and return I and F (n, rows): the exponent of the input gate, and the logarithm of the
    forget gate, for n heads. Without `core` both maps have a bias and the bound `CAP`, applied by
    tanh. `places` says how the rows are laid out."""
    (n,), b, (extents, at, row) = f.mixer.sizes("n"), f.mixer.arrays, places
    j, I, F = f.index("j", 1, n), f.array("I", n, *extents), f.array("F", n, *extents)
    values = {name: _mapped(f, name, row, j) for name in "IF"}
    if "b_I" in b:
        for name, value in values.items():
            values[name] = CAP * function("tanh", (value + b[f"b_{name}"][j]) / CAP)
    I[j, *at] = values["I"]
    F[j, *at] = -function("softplus", -values["F"])
    return I, F


def _bounded(f: Form) -> tuple[Array, Array, Array]:
    """Define and return I, F and M (n, l): exponent of the input gate, logarithm of the forget
    gate, and the largest exponent so far, which is subtracted against overflow."""
    (l, n), (I, F) = f.mixer.sizes("l n"), _gates(f, in_turn(f))
    j, later, M = f.index("j", 1, n), f.index("i2", 2, l), f.array("M", n, l)
    M[j, 1] = maximum(F[j, 1], I[j, 1])
    M[j, later] = maximum(F[j, later] + M[j, later - 1], I[j, later])
    return I, F, M


def _denominator(f: Form, weights: Sequence[tuple[tuple[Any, ...], Node]], M: Array) -> Array:
    """Define and return the denominator D, of M's extents: the larger of |weight| and exp(-M), plus
    `TINY`. `weights` are pairs (position of a row, weight there), which together cover all rows."""
    W, D, j = f.array("W", *M.shape), f.array("D", *M.shape), f.index("j", 1, M.shape[0])
    for at, weight in weights:
        W[j, *at] = weight
    for at, _ in weights:
        D[j, *at] = maximum(maximum(W[j, *at], -W[j, *at]), exp(-M[j, *at])) + TINY
    return D


def _recurrent(f: Form, Q: Array, K: Array, V: Array) -> Array:
    """Define and return H (n, l, h), what the heads read, by the recurrence: queries U, over
    sqrt(K), read the matrix S (n, l, K, h) and the row Z (n, l, K) of their head; A holds E k, the
    keys times the input gate E; P is the forget gate."""
    (n, l, width), h = K.shape, V.shape[2]
    j, i, later = f.index("j", 1, n), f.index("i", 1, l), f.index("i2", 2, l)
    p, c = f.index("p", 1, width), f.index("c", 1, h)
    I, F, M = _bounded(f)
    E, P, A = f.array("E", n, l), f.array("P", n, l), f.array("A", n, l, width)
    S, Z, U = f.array("S", n, l, width, h), f.array("Z", n, l, width), f.array("U", n, l, width)
    E[j, i] = exp(I[j, i] - M[j, i])
    P[j, later] = exp(F[j, later] + M[j, later - 1] - M[j, later])
    A[j, i, p] = E[j, i] * K[j, i, p]
    S[j, 1, p, c] = A[j, 1, p] * V[j, 1, c]
    S[j, later, p, c] = P[j, later] * S[j, later - 1, p, c] + A[j, later, p] * V[j, later, c]
    Z[j, 1, p] = A[j, 1, p]
    Z[j, later, p] = P[j, later] * Z[j, later - 1, p] + A[j, later, p]
    U[j, i, p] = scaled(Q[j, i, p], by=width)
    H = f.array("H", n, l, h)
    D = _denominator(f, [((i,), sum_(U[j, i, p] * Z[j, i, p], over=p))], M)
    H[j, i, c] = sum_(U[j, i, p] * S[j, i, p, c], over=p) / D[j, i]
    return H


def _parallel(f: Form, Q: Array, K: Array, V: Array) -> Array:
    """Define and return H (n, l, h), what the heads read, by pairs of rows: values weighted by B
    (n, l, l), the products A of queries and keys times exp(G_i - G_k + I_k - M_i), with G (n, l)
    the running sum of F."""
    (n, l, width), h = K.shape, V.shape[2]
    j, i, later = f.index("j", 1, n), f.index("i", 1, l), f.index("i2", 2, l)
    p, c, k = f.index("p", 1, width), f.index("c", 1, h), f.index("k", 1, i)
    (I, F, M), G = _bounded(f), f.array("G", n, l)
    A, B = f.array("A", n, l, l), f.array("B", n, l, l)
    G[j, 1] = F[j, 1]
    G[j, later] = G[j, later - 1] + F[j, later]
    A[j, i, k] = scaled(sum_(Q[j, i, p] * K[j, k, p], over=p), by=width)
    B[j, i, k] = A[j, i, k] * exp(G[j, i] - G[j, k] + I[j, k] - M[j, i])
    H = f.array("H", n, l, h)
    D = _denominator(f, [((i,), sum_(B[j, i, k], over=k))], M)
    H[j, i, c] = sum_(B[j, i, k] * V[j, k, c], over=k) / D[j, i]
    return H


def _chunked(f: Form, Q: Array, K: Array, V: Array) -> Array:
    """Define and return H (n, l, h), what the heads read of Q, K and V (n, chunks, C, width):
    values weighted by the gated products of pairs within chunks, and the reads of S and Z at the
    end of the chunk before. G sums F since the chunk's start, L has the exponents of pairs, X the
    largest of a row's, T bounds the exponents at a chunk's end, M those of a row; E weighs a row at
    the end, P the state before."""
    (n, number, C, width), h, (l,) = K.shape, V.shape[3], f.mixer.sizes("l")
    chunks = Chunks(f, l, C)
    (q, e), (z, u), every = chunks.any, chunks.later, chunks.complete  # (chunk, place), z > 1
    j, p, c = f.index("j", 1, n), f.index("p", 1, width), f.index("c", 1, h)
    s, w, first = f.index("s", 1, e), f.index("w", 1, C), f.index("e4", 1, min_(C, l))
    I, F = _gates(f, chunks.places)
    G, J, X, M = (f.array(name, n, number, C) for name in "GJXM")
    L, A, B = (f.array(name, n, number, C, C) for name in "LAB")
    T, E, P = f.array("T", n, l // C), f.array("E", n, l // C, C), f.array("P", n, l // C)
    G[j, q, e] = sum_(F[j, q, s], over=s)
    J[j, q, e] = I[j, q, e] - G[j, q, e]  # exponent of a key, to which G of a later row is added
    L[j, q, e, s] = G[j, q, e] + J[j, q, s]
    X[j, q, e] = max_over(L[j, q, e, s], over=s)
    for o, before in chunks.whole:
        end = G[j, o, C]
        T[j, o] = maximum(end if before is None else end + T[j, before], X[j, o, C])
    M[j, 1, first] = maximum(G[j, 1, first], X[j, 1, first])
    M[j, z, u] = maximum(G[j, z, u] + T[j, z - 1], X[j, z, u])
    S, Z = f.array("S", n, l // C, width, h), f.array("Z", n, l // C, width)
    K_C = f.array("K_C", n, l // C, C, width)
    E[j, every, w] = exp(G[j, every, C] + J[j, every, w] - T[j, every])
    K_C[j, every, w, p] = E[j, every, w] * K[j, every, w, p]
    for o, before in chunks.whole:
        matrix = sum_(K_C[j, o, w, p] * V[j, o, w, c], over=w)
        row = sum_(K_C[j, o, w, p], over=w)
        if before is not None:
            P[j, o] = exp(G[j, o, C] + T[j, before] - T[j, o])
            matrix = P[j, o] * S[j, before, p, c] + matrix
            row = P[j, o] * Z[j, before, p] + row
        S[j, o, p, c] = matrix
        Z[j, o, p] = row
    A[j, q, e, s] = scaled(sum_(Q[j, q, e, p] * K[j, q, s, p], over=p), by=width)
    B[j, q, e, s] = A[j, q, e, s] * exp(G[j, q, e] + J[j, q, s] - M[j, q, e])
    # what a row reads of its chunk, the sum of its weights there, the decay of the state before
    own, weights, kept = (
        f.array("O_C", *V.shape),
        f.array("W_C", *M.shape),
        f.array("D_C", *M.shape),
    )
    U, H = f.array("U", *Q.shape), f.array("H", n, l, h)
    own[j, q, e, c] = sum_(B[j, q, e, s] * V[j, q, s, c], over=s)
    weights[j, q, e] = sum_(B[j, q, e, s], over=s)
    kept[j, z, u] = exp(G[j, z, u] + T[j, z - 1] - M[j, z, u])
    U[j, z, u, p] = scaled(Q[j, z, u, p], by=width) * kept[j, z, u]
    weight = weights[j, z, u] + sum_(U[j, z, u, p] * Z[j, z - 1, p], over=p)
    D = _denominator(f, [((1, first), weights[j, 1, first]), ((z, u), weight)], M)
    H[j, first, c] = own[j, 1, first, c] / D[j, 1, first]
    found = own[j, z, u, c] + sum_(U[j, z, u, p] * S[j, z - 1, p, c], over=p)
    H[j, chunks.row(z, u), c] = found / D[j, z, u]
    return H


def _joined(f: Form, H: Array, R: Array) -> None:
    """Define R (l, n h): the heads H (n, l, h) side by side; with a gain, normed and gated."""
    n, l, h = H.shape
    j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
    column, arrays = (j - 1) * h + c, f.mixer.arrays
    if "gain" not in arrays:
        R[i, column] = H[j, i, c]
        return
    N, O, v = f.array("N", n, l, h), f.array("O", l, n * h), f.index("v", 1, n * h)
    N[j, i, c] = layer_norm(H[j, i, c], over=c, gain=arrays["gain"][column], eps="1e-6")
    O[i, v] = function("sigmoid", _mapped(f, "O", i, v))
    R[i, column] = O[i, column] * N[j, i, c]


@offering(
    {
        "later": "a layer after the first, whose values are mixed with the first layer's, v_first",
        "core": "the recurrence alone: plain maps, no shift of rows, no norm of o, no gate on o",
    },
    apart={("later", "core"): "plain maps give the values of the core"},
)
def rwkv_7(chosen: Chosen) -> Mixer:
    """The mixer of RWKV-7's time mixing: each head's matrix decays by channel, forgets at the key
    kappa and adds k v^T; of the first layer, with `later` of another, `core` between plain maps."""
    m = Mixer(
        "rwkv-7",
        title="RWKV-7",
        idea="a decaying matrix of each head forgets kappa and adds k v",
        source="Peng et al. 2025, arXiv 2503.14456, section 4",
        group="delta",
    )
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    m.input("x", l, d)
    y = m.output("y", l, d)
    if "core" in chosen:
        for name in "rwkva":
            m.parameter(f"W_{name}", d, n * h)
    else:
        _declare(m, later="later" in chosen)
    W_out = m.parameter("W_out", n * h, d)
    for form in ("recurrent", "chunked"):
        with m.form(form) as f:
            i, v, b = f.index("i", 1, l), f.index("f", 1, n * h), f.index("b", 1, d)
            Y = f.array("Y", l, n * h)
            TimeMixing(f, "core" in chosen, in_chunks=form == "chunked").define(Y)
            y[i, b] = sum_(Y[i, v] * W_out[v, b], over=v)
    return m


RANKS = {
    "w": ("A", "rank of the decay and of the rates of forgetting", 32),
    "a": ("A", "rank of the decay and of the rates of forgetting", 32),
    "g": ("G", "rank of the gate", 64),
    "v": ("M", "rank of the mix with the first layer's values", 32),
}
"""Map of low rank -> letter, meaning and default of its rank, as in the authors' narrow layers. In
all of their models the decay and the rates have one rank."""


def _declare(m: Mixer, *, later: bool) -> None:
    """Declare RWKV-7's parameters but W_out (the core has it too); with `later` input v_first."""
    l, d, n, h = m.sizes("l d n h")  # tokens, channels, heads, channels a head
    if later:
        m.input("v_first", l, n * h)
    for name in "rwkvag":
        m.parameter(f"mu_{name}", d, latex=rf"\mu_{name}")
    for name in "rkv":
        m.parameter(f"W_{name}", d, n * h)
    for name in "wagv" if later else "wag":
        rank = m.size(*RANKS[name])
        m.parameter(f"A_{name}", d, rank)
        m.parameter(f"B_{name}", rank, n * h)
        if name != "g":
            m.parameter(f"b_{name}", n * h)
    for name in ("k_k", "k_a", "gain", "bias"):
        m.parameter(name, n * h)
    m.parameter("r_k", n, h)


class TimeMixing:
    """The equations of RWKV-7 before W_out in a form, row by row or `in_chunks`; the recurrence
    alone if `core`."""

    def __init__(self, f: Form, core: bool, *, in_chunks: bool) -> None:
        """Declare indices: head j, rows i and, from 2 on, `later`, channels p and c of a head; and
        unless `core` write the equations of the differences between a row and the row before."""
        self.f, self.core, self.in_chunks, self.m = f, core, in_chunks, f.mixer
        l, self.d, n, h = self.l, _, self.n, self.h = self.m.sizes("l d n h")
        self.j, self.i, self.later = f.index("j", 1, n), f.index("i", 1, l), f.index("i2", 2, l)
        self.p, self.c = f.index("p", 1, h), f.index("c", 1, h)
        self.shift = None if core else self._shift()
        self.copied: Array | None = None
        """A copy of x, of which places of chunks can be read."""
        if core and in_chunks:
            a = f.index("a", 1, self.d)
            self.copied = f.array("X", l, self.d)
            self.copied[self.i, a] = self.m.role("input")[self.i, a]

    def define(self, Y: Array) -> None:
        """Define Y (l, n h), the rows before W_out: L is the logarithm of the decay, alpha the
        rates, kappa and K the two keys, O what r reads of S; without `core`, N is O normalised, B
        the sum of r k r_k, and Z the gate."""
        f, j, i, later, p, c = self.f, self.j, self.i, self.later, self.p, self.c
        column, weights = (j - 1) * self.h + c, self.m.arrays
        R, k, v = (self._mapped(name) for name in "rkv")
        L, alpha = self._array("L"), self._array("alpha", latex=r"\alpha")
        decaying = i if self.in_chunks else later  # rows that have a decay
        L[j, decaying, p] = -DECAY * function("sigmoid", self._gate("w", decaying, "tanh"))
        decay, chunks = L, InChunks(f) if self.in_chunks else None
        if not chunks:
            decay = self._array("E")
            decay[j, later, p] = exp(L[j, later, p])
        removing = chunks.removing if chunks else [later]  # rows that remove: from row 2 on
        for read in removing if self.core else [i]:
            alpha[j, read, p] = function("sigmoid", self._gate("a", read))
        K, V, U, kappa = k, v, k, self._array("kappa", latex=r"\kappa")
        if not self.core:
            U, K, V = self._array("U"), self._array("K"), self._values(v)
            for row in removing:
                U[j, row, c] = k[j, row, c] * weights["k_k"][column]
        for row in removing:
            kappa[j, row, c] = l2_norm(U[j, row, c], over=c)
        if not self.core:
            K[j, i, c] = k[j, i, c] * (1 + (alpha[j, i, c] - 1) * weights["k_a"][column])
        F = self._array("F")
        for row in removing:
            F[j, row, p] = kappa[j, row, p] * alpha[j, row, p]
        rows = Rows(R, K, V, decay, kappa, F)
        O = chunks.read(rows) if chunks else self._carried(rows)
        if self.core:
            Y[i, column] = O[j, i, c]
            return
        N, B, Z = self._array("N"), f.array("B", self.n, self.l), self._array("Z")
        N[j, i, c] = layer_norm(
            O[j, i, c], over=c, gain=weights["gain"][column], bias=weights["bias"][column],
            eps="64e-5",
        )  # fmt: skip
        B[j, i] = sum_(R[j, i, p] * K[j, i, p] * weights["r_k"][j, p], over=p)
        Z[j, i, p] = self._gate("g", i, "sigmoid")
        Y[i, column] = (N[j, i, c] + B[j, i] * V[j, i, c]) * Z[j, i, c]

    def _array(self, name: str, latex: str = "") -> Array:
        """An array (n, l, h), a row of h channels for each head and token."""
        return self.f.array(name, self.n, self.l, self.h, latex=latex)

    def _shift(self) -> Array:
        """Define and return D (l, d), the row before minus the row (0 before row 1)."""
        x, e = self.m.role("input"), self.f.index("a", 1, self.d)
        D = self.f.array("D", self.l, self.d)
        D[1, e] = -x[1, e]
        D[self.later, e] = x[self.later - 1, e] - x[self.later, e]
        return D

    def _rows(self, name: str, row: Index | Poly) -> Array:
        """The rows (l, d) that the map `name` reads: with `core` x; else x plus mu_name times the
        difference to the row before, written at index `row` at the first call for this name."""
        x, e = self.m.role("input"), self.f.index("a", 1, self.d)
        if self.shift is None:
            return x if self.copied is None else self.copied
        if f"X_{name}" not in self.f.arrays:
            X = self.f.array(f"X_{name}", self.l, self.d)
            X[row, e] = x[row, e] + self.shift[row, e] * self.m.arrays[f"mu_{name}"][e]
        return self.f.arrays[f"X_{name}"]

    def _mapped(self, name: str) -> Array:
        """Define and return `name` (n, l, h), x W_name in n heads. With the option `core` x is the
        input as it is; without, each row of x is interpolated with the row before first, as RWKV-7
        does (token shift)."""
        found, e = self._array(name), self.f.index("a", 1, self.d)
        rows, W = self._rows(name, self.i), self.m.arrays[f"W_{name}"]
        found[self.j, self.i, self.c] = sum_(
            rows[self.i, e] * W[e, (self.j - 1) * self.h + self.c], over=e
        )
        return found

    def _gate(self, name: str, row: Index | Poly, between: str = "") -> Node:
        """The expression of the map of a gate ("w", "a", "g", "v") at head j, a row and channel p:
        x W with `core`; else between(X A) B, plus a bias except for g, where X is x mixed with the
        row before, `between` a function or "" (none). Writes the equations of X, between(X A)."""
        rows, e = self._rows(name, row), self.f.index("a", 1, self.d)
        column, weights = (self.j - 1) * self.h + self.p, self.m.arrays
        if self.core:
            return sum_(rows[row, e] * weights[f"W_{name}"][e, column], over=e)
        A, B = weights[f"A_{name}"], weights[f"B_{name}"]
        s, T = (
            self.f.index(f"s_{name}", 1, A.shape[1]),
            self.f.array(f"T_{name}", self.l, A.shape[1]),
        )
        low = sum_(rows[row, e] * A[e, s], over=e)
        T[row, s] = function(between, low) if between else low
        found = sum_(T[row, s] * B[s, column], over=s)
        return found if name == "g" else found + weights[f"b_{name}"][column]

    def _values(self, v: Array) -> Array:
        """The values V (n, l, h): `v` itself, or if the mixer has the input v_first, written anew
        as a mixture of v and v_first by a sigmoid gate."""
        j, i, c = self.j, self.i, self.c
        if "v_first" not in self.m.arrays:
            return v
        T, V, first = self._array("T"), self._array("V"), self.m.arrays["v_first"]
        T[j, i, self.p] = function("sigmoid", self._gate("v", i))
        V[j, i, c] = v[j, i, c] + T[j, i, c] * (first[i, (j - 1) * self.h + c] - v[j, i, c])
        return V

    def _carried(self, rows: Rows) -> Array:
        """Define the state S (n, l, h, h): E S' - F P + K V^T, where S' is S of the row before, E
        the decay and P = kappa^T S'; returns O (n, l, h), what R reads of S."""
        f, j, i, later, p, c = self.f, self.j, self.i, self.later, self.p, self.c
        S, P = f.array("S", self.n, self.l, self.h, self.h), self._array("P")
        O = self._array("O")
        S[j, 1, p, c] = rows.K[j, 1, p] * rows.V[j, 1, c]
        P[j, later, c] = sum_(rows.kappa[j, later, p] * S[j, later - 1, p, c], over=p)
        S[j, later, p, c] = (
            rows.decay[j, later, p] * S[j, later - 1, p, c]
            - rows.F[j, later, p] * P[j, later, c]
            + rows.K[j, later, p] * rows.V[j, later, c]
        )
        O[j, i, c] = sum_(rows.R[j, i, p] * S[j, i, p, c], over=p)
        return O


@dataclass(frozen=True)
class Rows:
    """What RWKV-7's recurrence reads, (n, l, h) each: R, K and V; and from row 2 on the removed
    direction kappa and F, kappa times alpha; the decay from row 2 on or, in chunks, its logarithm
    in all rows."""

    R: Array
    K: Array
    V: Array
    decay: Array
    kappa: Array
    F: Array


class InChunks:
    """RWKV-7's recurrence in chunks of C rows, whose last may be short.

    E (n, chunks, C, h) is the decay since the end of the chunk before, the exponential of L_C. With
    queries RE = R E, keys KI = K / E, removed directions KA = kappa times the E of the row before,
    and FI = F / E, what a row removes is P = U + W S, where S (n, l//C, h, h) ends a chunk and

        U_e = G_e - sum over z < e of (KA_e FI_z) U_z,  G_e = sum over z < e of (KA_e KI_z) V_z,
        W_e = KA_e - sum over z < e of (KA_e FI_z) W_z;

    a row reads RE_e S plus the sum over z <= e of (RE_e KI_z) V_z - (RE_e FI_z) P_z. The first row
    of the sequence removes nothing, and the U of a chunk's first row is an empty sum.
    """

    def __init__(self, f: Form) -> None:
        """Declare indices: chunk q and its places e (all) and `after` (from 2 on), a later chunk g
        and its places u (all), `start` (1) and `following` (from 2 on), the places `first` (all)
        and `second` (from 2 on) of chunk 1, and the places w of a complete chunk."""
        self.f, (l, self.n, self.h) = f, f.mixer.sizes("l n h")
        self.chunks = chunks = Chunks(f, l, *f.mixer.sizes("C"))
        self.number, self.C = l // chunks.C + 1, chunks.C
        self.j, self.p, self.c = (f.index(*of) for of in (
            ("j", 1, self.n), ("p", 1, self.h), ("c", 1, self.h)
        ))  # fmt: skip
        (self.q, self.e), (self.g, self.u) = chunks.any, chunks.later
        self.first = f.index("k", 1, min_(chunks.C, l))
        self.second = f.index("k1", 2, min_(chunks.C, l))
        self.after = f.index("e2", 2, min_(chunks.C, l - (self.q - 1) * chunks.C))
        self.w = f.index("w", 1, chunks.C)
        self.start = f.index("u1", 1, min_(1, l - (self.g - 1) * chunks.C))
        self.following = f.index("u2", 2, min_(chunks.C, l - (self.g - 1) * chunks.C))

    @property
    def removing(self) -> Sequence[Poly]:
        """The rows from 2 on: places from 2 on of every chunk, and place 1 of later chunks."""
        return [self.chunks.row(self.q, self.after), self.chunks.row(self.g, self.start)]

    def places(self, name: str, width: Poly) -> Array:
        """A new array `name` (n, chunks, C, width), by chunk and place."""
        return self.f.array(name, self.n, self.number, self.C, width)

    def by_decay(self, rows: Rows) -> tuple[Array, Array, Array, Array, Array]:
        """Write the equations of E, the decay since the end of the chunk before (T is its
        logarithm), RE = R E, KI = K / E, KA, kappa times the E of the row before, and FI = F / E,
        and return these arrays."""
        j, p, q, e, g, row = self.j, self.p, self.q, self.e, self.g, self.chunks.row
        T, E, RE, KI, KA, FI = (
            self.places(name, self.h) for name in ("L_C", "E", "RE", "KI", "KA", "FI")
        )
        begin = self.f.index("e1", 1, min_(1, rows.decay.shape[1] - (q - 1) * self.C))
        T[j, q, begin, p] = rows.decay[j, row(q, begin), p]
        T[j, q, self.after, p] = T[j, q, self.after - 1, p] + rows.decay[j, row(q, self.after), p]
        E[j, q, e, p] = exp(T[j, q, e, p])
        RE[j, q, e, p] = rows.R[j, row(q, e), p] * E[j, q, e, p]
        KI[j, q, e, p] = rows.K[j, row(q, e), p] / E[j, q, e, p]
        KA[j, q, self.after, p] = rows.kappa[j, row(q, self.after), p] * E[j, q, self.after - 1, p]
        KA[j, g, self.start, p] = rows.kappa[j, row(g, self.start), p]
        for chunk, place in ((q, self.after), (g, self.start)):
            FI[j, chunk, place, p] = rows.F[j, row(chunk, place), p] / E[j, chunk, place, p]
        return E, RE, KI, KA, FI

    def products(
        self, name: str, left: Array, right: Array, pairs: Sequence[tuple[Any, Index, Index]]
    ) -> Array:
        """A new array of the products of row `place` of `left` and row `other` of `right`, for each
        (chunk, place, other)."""
        found, j, p = self.places(name, self.C), self.j, self.p
        for chunk, place, other in pairs:
            product = left[j, chunk, place, p] * right[j, chunk, other, p]
            found[j, chunk, place, other] = sum_(product, over=p)
        return found

    def read(self, rows: Rows) -> Array:
        """Write the equations of the recurrence in chunks, and return O (n, l, h), what R reads.
        With the state S before a chunk, P = W S + U is what its rows remove (U and W: row after
        row), E S + KC V - FC P the state after the chunk, and O = RE S + RK V - RF P."""
        f, j, p, c, q, g, u = self.f, self.j, self.p, self.c, self.q, self.g, self.u
        E, RE, KI, KA, FI = self.by_decay(rows)
        V, G, U, W, P = (self.places(name, self.h) for name in ("V_C", "G_C", "U_C", "W_C", "P"))
        row, after, later = self.chunks.row, self.after, self.following
        V[j, q, self.e, c] = rows.V[j, row(q, self.e), c]
        z, x, v = f.index("z", 1, after - 1), f.index("x", 2, after - 1), f.index("v", 1, u - 1)
        # a first term has a sum of its own where the other terms may be none
        one = f.index("m3", 1, 1)
        A = self.products("A_C", KA, KI, [(q, after, z)])
        among = f.index("z1", 2, self.second - 1)
        B = self.products("B_C", KA, FI, [(1, self.second, among), (g, u, v)])
        added = sum_(A[j, q, after, one] * V[j, q, one, c], over=one)
        G[j, q, after, c] = added + sum_(A[j, q, after, x] * V[j, q, x, c], over=x)
        less = sum_(B[j, q, after, x] * U[j, q, x, c], over=x)
        U[j, q, after, c] = G[j, q, after, c] - less
        W[j, g, u, p] = KA[j, g, u, p] - sum_(B[j, g, u, v] * W[j, g, v, p], over=v)
        S = f.array("S", self.n, self.chunks.l // self.C, self.h, self.h)
        KC, FC = self.kept("KC", KI, E), self.kept("FC", FI, E, removing=True)
        P[j, 1, self.second, c] = U[j, 1, self.second, c]
        for place in (self.start, later):
            removed = sum_(W[j, g, place, p] * S[j, g - 1, p, c], over=p)
            P[j, g, place, c] = removed if place is self.start else U[j, g, place, c] + removed
        w = self.w
        for o, before, place in self.ends:
            added = sum_(KC[j, o, place, p] * V[j, o, place, c], over=place)
            if place is not w:
                added = sum_(KC[j, o, one, p] * V[j, o, one, c], over=one) + added
            end = added - sum_(FC[j, o, place, p] * P[j, o, place, c], over=place)
            S[j, o, p, c] = end if before is None else E[j, o, self.C, p] * S[j, before, p, c] + end
        O, own = f.array("O", *rows.V.shape), self.places("O_C", self.h)
        seen, gone = f.index("m", 1, self.e), f.index("m1", 2, self.first)
        near = f.index("m2", 1, u)
        RK = self.products("RK", RE, KI, [(q, self.e, seen)])
        RF = self.products("RF", RE, FI, [(1, self.first, gone), (g, u, near)])
        for chunk, place, m in ((1, self.first, gone), (g, u, near)):
            added = sum_(RK[j, chunk, place, m] * V[j, chunk, m, c], over=m)
            if m is gone:
                added = sum_(RK[j, 1, place, one] * V[j, 1, one, c], over=one) + added
            less = sum_(RF[j, chunk, place, m] * P[j, chunk, m, c], over=m)
            own[j, chunk, place, c] = added - less
        O[j, self.first, c] = own[j, 1, self.first, c]
        found = sum_(RE[j, g, u, p] * S[j, g - 1, p, c], over=p) + own[j, g, u, c]
        O[j, row(g, u), c] = found
        return O

    def kept(self, name: str, of: Array, E: Array, *, removing: bool = False) -> Array:
        """A new array (n, l//C, C, h) of rows of complete chunks of the array `of` times the decay
        to the chunk's last row; if `removing`, without the first row of the first chunk."""
        f, j, p, C = self.f, self.j, self.p, self.C
        found = f.array(name, self.n, self.chunks.l // C, C, self.h)
        for o, _, place in self.ends if removing else [(self.chunks.complete, None, self.w)]:
            found[j, o, place, p] = E[j, o, C, p] * of[j, o, place, p]
        return found

    @property
    def ends(self) -> Sequence[tuple[Index, Poly | None, Index]]:
        """(complete chunk, the chunk before, places at which rows remove something)."""
        later = self.f.index("w2", 2, self.C)
        return [(o, b, later if b is None else self.w) for o, b in self.chunks.whole]
