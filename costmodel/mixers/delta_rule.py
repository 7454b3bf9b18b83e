"""What are the equations of the delta rules: DeltaNet, Gated DeltaNet and Kimi Delta Attention?

A head keeps a matrix S of K x V numbers. Row i replaces what S returns for its key k by its value
v, to a degree beta between 0 and 1, and reads S with its query q:

    S_i = e^g S_(i-1) + k_i u_i^T,  u_i = beta_i (v_i - k_i^T e^g S_(i-1)),  o_i = q_i S_i/sqrt(K).

DeltaNet has no decay e^g; Gated DeltaNet has one for each head, KDA one for each channel of the
key. In `recurrent`, row 1 starts from S = 0 and has no product with S.

The chunked forms compute the u of C rows from the S before them, by

    (1 + A) u = beta (v - k S),  A_iz = beta_i k_i k_z^T for z < i, else 0.

`chunked-solve` solves this triangular system for beta v and beta k, as transformers does;
`chunked-rows` computes the inverse of 1 + A row by row, as flash-linear-attention's plain code
does; `chunked-wy` is the WY representation of DeltaNet's paper, section 3.2: w_i = beta_i (k_i
- sum_z (k_i k_z^T) w_z). With a decay for each head, the products are multiplied by the decay
between their rows; with one for each channel, queries and keys are multiplied by the decay since
the chunk's start, and the keys k_z divided by their own, as KDA's paper prints.

A layer has linear maps to q, k and v, a convolution of the last k rows in each channel, silu, and
an l2 norm of q and k; beta = sigmoid(W_b x), g = -exp(A_log) softplus(a + dt); an RMS norm of each
head's o, times a gate (none in DeltaNet), and W_out. The option `core` leaves out the convolutions
with their silu, the norm of o, and the gate. With `negative`, beta = 2 sigmoid(W_b x), so that what
a row keeps of S may change its sign (Grazzi et al. 2024, arXiv 2411.12537, section 4; OLMo-Hybrid).
With `safe-gate`, g = -5 sigmoid(exp(A_log) (a + dt)) in KDA: no decay is below e^-5. With
`full-maps`, KDA's a and gate are one map of x each, as in Ling 3.0.

Gated DeltaNet has n heads of values and g heads of queries and keys: n/g heads of values in turn
have the same query and key. a is a linear map of x, the gate silu(W_z x). KDA's a is two maps
through h channels, its gate the sigmoid of two more; keys and values have the width h.

Read from code where the papers are silent (flash-linear-attention; transformers' qwen3_next and
kimi_linear): 1e-6 is added under the root of the l2 norm; q is scaled, one operation per channel;
W_out follows the heads side by side. The RMS norm adds 1e-6, as in Qwen3-Next, or 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.norms import l2_norm, rms_norm
from costmodel.language.macros.positions import short_convolution
from costmodel.language.macros.softmax import scaled
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, sum_
from costmodel.symbolic.polynomial import Poly

CORE = {
    "core": "the recurrence alone: no short convolutions, no norm of o, no gate on o",
    "negative": "degrees beta up to 2, twice the sigmoid: S may have eigenvalues below 0",
}
OF_KDA = {
    "safe-gate": "logarithms of decays between -5 and 0, as -5 sigmoid(exp(A_log) (a + dt))",
    "full-maps": "decays and gate by one linear map each, not by two through h channels",
}
LEAST_LOG = -5

L2_EPS = Fraction(1, 10**6)


@dataclass(frozen=True)
class Sizes:
    """The number of heads of values, (n,) or (g, n/g) where the n/g heads of a group share a query
    and a key, and the widths of a head's keys and values."""

    heads: tuple[Poly, ...]
    key: Poly
    value: Poly

    @property
    def n(self) -> Poly:
        """The number of heads of values."""
        return self.heads[0] if len(self.heads) == 1 else self.heads[0] * self.heads[1]

    @property
    def widths(self) -> Mapping[str, Poly]:
        """The widths of the rows of all queries, keys and values."""
        keys = self.heads[0] * self.key
        return {"Q": keys, "K": keys, "V": self.n * self.value}


class Head:
    """A head of values in a form: its indices, and linear maps of x."""

    def __init__(self, f: Form, sizes: Sizes) -> None:
        """Declare the indices of a head: `at`, (head,) or (group, head in the group); `group`, that
        of its queries and keys; row i; channels a of x, p of a key, c of a value."""
        self.f, self.sizes, self.arrays = f, sizes, f.mixer.arrays
        self.x = f.mixer.role("input")
        self.l, d = self.x.shape
        self.i, self.a = f.index("i", 1, self.l), f.index("a", 1, d)
        names = zip("jo", sizes.heads, strict=False)
        self.at = tuple(f.index(name, 1, extent) for name, extent in names)
        self.group = self.at[0]
        self.p, self.c = f.index("p", 1, sizes.key), f.index("c", 1, sizes.value)

    def column(self, width: Any = 1, channel: Any = 1) -> Any:
        """The column of a weight in which `channel` of this head stands: heads stand side by side,
        `width` columns each, so that head j has the columns (j-1) width + 1 to j width."""
        for index, heads in zip(reversed(self.at), (1, self.sizes.heads[-1]), strict=False):
            width = width * heads
            channel = (index - 1) * width + channel
        return channel

    def mapped(self, weight: str, column: Any, i: Index | None = None) -> Node:
        """x W at a column, W the parameter named `weight`, at row i or the row given."""
        row = self.x[self.i if i is None else i, self.a]
        return sum_(row * self.arrays[weight][self.a, column], over=self.a)

    def define(self, name: str, shape: tuple[Any, ...], at: tuple[Any, ...], value: Node) -> Array:
        """A new array of this shape with one equation: its entry at the indices `at` is `value`."""
        found = self.f.array(name, *shape)
        found[at] = value
        return found


Decay = Callable[[Head, Index], Node]
"""Called with a head and an index of rows: the logarithm of the decay of a row, at the head's
channel of keys if each has its own."""


Read = Callable[[Any, Node], None]
"""Called with a row and the head's o in this row, at channel c: defines it."""


@dataclass(frozen=True)
class Rule:
    """The rows that a recurrence reads: queries Q and keys K (groups, l, K), values V (heads, l, V)
    and degrees beta B (heads, l)."""

    head: Head
    Q: Array
    K: Array
    V: Array
    B: Array
    decay: Decay | None
    """The logarithm of the decay of a row; None for a rule without decay."""
    per_channel: bool
    """Whether each channel of the key has a decay of its own."""

    def recurrent(self, read: Read) -> None:
        """Write the equations of the delta rule row by row: D, the decayed state before a row; U
        (heads, l, V), the corrected value, beta times (v minus what the key reads of D); and the
        state S (heads, l, K, V) = D + k U^T. K and V are the widths of keys and values. `read` is
        called with row i and what the query reads of S, and defines the output."""
        head, f, p, c = self.head, self.head.f, self.head.p, self.head.c
        at, j, i, later = head.at, head.group, head.i, f.index("r", 2, head.l)
        heads, key, value = head.sizes.heads, head.sizes.key, head.sizes.value
        U, S = f.array("U", *heads, head.l, value), f.array("S", *heads, head.l, key, value)
        before = S[*at, later - 1, p, c]
        if self.decay is not None:
            E = self.decays(later)
            D = f.array("D", *heads, head.l, key, value)
            D[*at, later, p, c] = E * before
            before = D[*at, later, p, c]
        U[*at, 1, c] = self.B[*at, 1] * self.V[*at, 1, c]
        known = sum_(self.K[j, later, p] * before, over=p)
        U[*at, later, c] = self.B[*at, later] * (self.V[*at, later, c] - known)
        S[*at, 1, p, c] = self.K[j, 1, p] * U[*at, 1, c]
        S[*at, later, p, c] = before + self.K[j, later, p] * U[*at, later, c]
        read(i, sum_(self.Q[j, i, p] * S[*at, i, p, c], over=p))

    def decays(self, i: Index) -> Node:
        """Write the equation of E = exp(log decay), (heads, l), or (heads, l, K) with a decay for
        each key channel, and return the expression of its entry at row i."""
        assert self.decay is not None
        head, per_channel = self.head, self.per_channel
        shape = (*head.sizes.heads, head.l, *((head.sizes.key,) if per_channel else ()))
        at = (*head.at, i, *((head.p,) if per_channel else ()))
        return head.define("E", shape, at, exp(self.decay(head, i)))[at]


class Chunks:
    """A rule in chunks of C rows: row e of chunk q = 1, 2, ..., and row u of chunk g = 2, 3, ...

    U (heads, chunks, C, V) and W (heads, chunks, C, K) are such that N = U - W S is what the rows
    of a chunk add in the directions of their keys; S (heads, l//C, K, V) are the states at the ends
    of complete chunks, and N reads that of the chunk before. KK (heads, chunks, C, C) has a row's
    key times earlier keys of the chunk, QK its query times keys so far, with decay from key to row.
    """

    def __init__(self, rule: Rule) -> None:
        """Declare the indices of chunk q and its place e, of a later chunk g and its place u, and
        of the places z before e and v before u; with a decay, define its arrays."""
        self.rule, self.head, self.f, self.at = rule, rule.head, rule.head.f, rule.head.at
        f, self.l, (self.C,) = self.f, self.head.l, self.f.mixer.sizes("C")
        self.number, self.key, self.value = (
            self.l // self.C + 1, self.head.sizes.key, self.head.sizes.value,
        )  # fmt: skip
        self.q, self.g = f.index("q", 1, self.number), f.index("g", 2, self.number)
        self.e, self.u = (
            f.index(name, 1, self.last(chunk)) for name, chunk in (("e", self.q), ("u", self.g))
        )
        self.z, self.v = f.index("z", 1, self.e - 1), f.index("v", 1, self.u - 1)
        self.own = (self.head.p,) if rule.per_channel else ()  # index of a decay's channel, if any
        self.by_head = rule.decay is not None and not self.own
        """Whether each head has one decay."""
        self.Q, self.K, self.other = rule.Q, rule.K, rule.K
        """What products read: a row's query or key, another's key (per channel times or over E)."""
        if rule.decay is not None:
            self.E = self.decays(rule.decay)

    def left(self, chunk: Any) -> Any:
        """The number of rows from the first row of a chunk to the last row l; 0 for an empty
        one."""
        return self.l - (chunk - 1) * self.C

    def last(self, chunk: Any) -> Any:
        """The last place of a chunk."""
        return min_(self.C, self.left(chunk))

    def row(self, chunk: Any, place: Any) -> Any:
        """The row at a place of a chunk."""
        return (chunk - 1) * self.C + place

    @property
    def after_first(self) -> tuple[tuple[Any, Index], ...]:
        """Pairs (chunk, place) that cover all rows but row 1: places from 2 on of every chunk, and
        place 1 of later chunks."""
        q, g, index = self.q, self.g, self.f.index
        return (q, index("e2", 2, self.last(q))), (g, index("u1", 1, min_(1, self.left(g))))

    def places(self, name: str, *widths: Any) -> Array:
        """A new array with an entry of these widths for each place of each chunk."""
        return self.f.array(name, *self.head.sizes.heads, self.number, self.C, *widths)

    def entry(self, array: Array, chunk: Any, place: Any, channel: Index | None = None) -> Node:
        """The entry (an expression) of an array at a place of a chunk and a channel (by default p,
        of keys). An array without axes of chunks and places is read at the row."""
        channel = channel or self.head.p
        if array.shape[-2] == self.C:
            return array[*self.at, chunk, place, channel]
        return array[*self.at[: len(array.shape) - 2], self.row(chunk, place), channel]

    def decays(self, decay: Decay) -> Array:
        """Write the equations of the decays and return E, the decay since the end of the chunk
        before: the exponential of T, a sum of logarithms L. With a decay for each channel, also of
        QE and KE, queries and keys times E, and KI, keys divided by E, which products read; with
        one for each head, of P, the decay between two rows of a chunk."""
        at, own, i, q, e, head = self.at, self.own, self.head.i, self.q, self.e, self.head
        widths = tuple(self.key for _ in own)
        L = head.define("L", (*head.sizes.heads, self.l, *widths), (*at, i, *own), decay(head, i))
        T, E = self.places("T", *widths), self.places("E", *widths)
        first = self.f.index("e1", 1, min_(1, self.left(q)))
        later = self.f.index("e2", 2, self.last(q))
        T[*at, q, first, *own] = L[*at, self.row(q, first), *own]
        T[*at, q, later, *own] = T[*at, q, later - 1, *own] + L[*at, self.row(q, later), *own]
        if not own:
            E[*at, self.g, self.u] = exp(T[*at, self.g, self.u])
            self.T, self.P, m = T, self.places("P", self.C), self.f.index("m", 1, e)
            self.P[*at, q, e, m] = exp(T[*at, q, e] - T[*at, q, m])
            return E
        p = self.head.p
        E[*at, q, e, p] = exp(T[*at, q, e, p])
        self.Q, self.K, self.other = (self.places(name, self.key) for name in ("QE", "KE", "KI"))
        self.Q[*at, q, e, p] = self.entry(self.rule.Q, q, e) * E[*at, q, e, p]
        self.other[*at, q, e, p] = self.entry(self.rule.K, q, e) / E[*at, q, e, p]
        for q, e in self.after_first:
            self.K[*at, q, e, p] = self.entry(self.rule.K, q, e) * E[*at, q, e, p]
        return E

    def since(self, array: Array) -> Node:
        """Queries or keys of row u of chunk g, times the decay E since the end of the chunk before
        (with decays per channel, `array` has this factor already)."""
        found = self.entry(array, self.g, self.u)
        return found * self.E[*self.at, self.g, self.u] if self.by_head else found

    def products(self, name: str, rows: Array, place: Index, *, weighed: bool = False) -> Array:
        """Define and return an array `name`: products of row e of `rows` (queries or keys) with the
        key at another place of the chunk, times the decay between, and if `weighed` the row's
        beta."""
        at, q, e, found = self.at, self.q, self.e, self.places(name, self.C)
        product: Node = sum_(
            self.entry(rows, q, e) * self.entry(self.other, q, place), over=self.head.p
        )
        product = product * self.P[*at, q, e, place] if self.by_head else product
        beta = self.rule.B[*at, self.row(q, e)]
        found[*at, q, e, place] = beta * product if weighed else product
        return found

    def weighed(self) -> tuple[Array, Array, Array]:
        """Define and return three arrays: VB, values times beta; KB, keys of later chunks times
        beta, with the decay since the end of the chunk before; and KK, products of keys times the
        row's beta."""
        at, q, e, g, u, p, c = self.at, self.q, self.e, self.g, self.u, self.head.p, self.head.c
        VB, KB, B = self.places("VB", self.value), self.places("KB", self.key), self.rule.B
        VB[*at, q, e, c] = B[*at, self.row(q, e)] * self.entry(self.rule.V, q, e, c)
        KB[*at, g, u, p] = B[*at, self.row(g, u)] * self.since(self.K)
        return VB, KB, self.products("KK", self.K, self.z, weighed=True)

    def by_solve(self) -> tuple[Array, Array]:
        """Define and return U and W: they solve the triangular system (1 + KK) (U, W) = (VB, KB)
        row by row. KK: products of keys times beta; VB and KB: values and keys times beta."""
        at, p, c, (VB, KB, KK) = self.at, self.head.p, self.head.c, self.weighed()
        q, e, z, g, u, v = self.q, self.e, self.z, self.g, self.u, self.v
        U, W = self.places("U", self.value), self.places("W", self.key)
        U[*at, q, e, c] = VB[*at, q, e, c] - sum_(KK[*at, q, e, z] * U[*at, q, z, c], over=z)
        W[*at, g, u, p] = KB[*at, g, u, p] - sum_(KK[*at, g, u, v] * W[*at, g, v, p], over=v)
        return U, W

    def by_rows(self) -> tuple[Array, Array]:
        """Define and return U = (1 - M) VB and W = (1 - M) KB; 1 - M, the inverse of 1 + KK, is
        computed row by row. KK: products of keys times beta; VB and KB: values and keys times
        beta."""
        at, p, c, (VB, KB, KK) = self.at, self.head.p, self.head.c, self.weighed()
        q, e, z, g, u, v = self.q, self.e, self.z, self.g, self.u, self.v
        M, x = self.places("M", self.C), self.f.index("x", z + 1, e - 1)
        U, W = self.places("U", self.value), self.places("W", self.key)
        between = sum_(KK[*at, q, e, x] * M[*at, q, x, z], over=x)
        M[*at, q, e, z] = KK[*at, q, e, z] - between
        U[*at, q, e, c] = VB[*at, q, e, c] - sum_(M[*at, q, e, z] * VB[*at, q, z, c], over=z)
        W[*at, g, u, p] = KB[*at, g, u, p] - sum_(M[*at, g, u, v] * KB[*at, g, v, p], over=v)
        return U, W

    def by_wy(self) -> tuple[Array, Array]:
        """Define and return U and W by the WY representation: U_e = beta_e (v_e - sum over z < e of
        KK_ez U_z), with KK the products of keys without beta, and W likewise with the key for v."""
        at, p, c, B = self.at, self.head.p, self.head.c, self.rule.B
        q, e, z, g, u, v = self.q, self.e, self.z, self.g, self.u, self.v
        KK = self.products("KK", self.K, z)
        U, W = self.places("U", self.value), self.places("W", self.key)
        less = sum_(KK[*at, q, e, z] * U[*at, q, z, c], over=z)
        U[*at, q, e, c] = B[*at, self.row(q, e)] * (self.entry(self.rule.V, q, e, c) - less)
        less = sum_(KK[*at, g, u, v] * W[*at, g, v, p], over=v)
        W[*at, g, u, p] = B[*at, self.row(g, u)] * (self.since(self.K) - less)
        return U, W

    def to_the_end(self, place: Index) -> Callable[[Index], Node]:
        """Define KC, the key at `place` of a complete chunk (of C rows) times the decay from this
        place to the chunk's last row. Returns a function: index of a chunk -> entry of KC at
        `place` of this chunk. For a rule without decay, the key takes the place of KC."""
        at, p = self.at, self.head.p
        if self.rule.decay is None:
            return lambda chunk: self.entry(self.rule.K, chunk, place)
        complete = (*self.head.sizes.heads, self.l // self.C, self.C)
        chunk, KC = self.f.index("q2", 1, complete[-2]), self.f.array("KC", *complete, self.key)
        if self.own:
            kept = self.E[*at, chunk, self.C, p]
        else:
            EC = self.f.array("EC", *complete)
            EC[*at, chunk, place] = exp(self.T[*at, chunk, self.C] - self.T[*at, chunk, place])
            kept = EC[*at, chunk, place]
        KC[*at, chunk, place, p] = kept * self.entry(self.other, chunk, place)
        return lambda chunk: KC[*at, chunk, place, p]

    def write(self, solved: Callable[[Chunks], tuple[Array, Array]], read: Read) -> None:
        """Write a chunked form: U and W by `solved`; N = U - W S; the state S at the end of each
        complete chunk; what a row reads, QK N, plus in later chunks what the query reads of S.
        `read` is called with a row and what it reads, and defines the output."""
        (U, W), at, p, c = solved(self), self.at, self.head.p, self.head.c
        f, g, u, C, l, key = self.f, self.g, self.u, self.C, self.l, self.key
        N = self.places("N", self.value)
        S = f.array("S", *self.head.sizes.heads, l // C, key, self.value)
        first, later = f.index("q1", 1, min_(1, l // C)), f.index("r", 2, l // C)  # chunks
        k, w = f.index("k", 1, min_(C, l)), f.index("w", 1, C)  # rows: of chunk 1; of a full chunk
        decayed_key = self.to_the_end(w)  # a function of a chunk's index
        N[*at, 1, k, c] = U[*at, 1, k, c]
        N[*at, g, u, c] = U[*at, g, u, c] - sum_(W[*at, g, u, p] * S[*at, g - 1, p, c], over=p)
        S[*at, first, p, c] = sum_(decayed_key(first) * N[*at, first, w, c], over=w)
        kept: Node = S[*at, later - 1, p, c]  # what is left of the state before the chunk
        if self.rule.decay is not None:
            kept = self.E[*at, later, C, *self.own] * kept
        S[*at, later, p, c] = kept + sum_(decayed_key(later) * N[*at, later, w, c], over=w)
        QK = self.products("QK", self.Q, f.index("m", 1, self.e))
        seen, near = f.index("k2", 1, k), f.index("u2", 1, u)
        read(k, sum_(QK[*at, 1, k, seen] * N[*at, 1, seen, c], over=seen))
        query = self.since(self.Q)  # with decays per channel, Q holds the product
        if self.by_head:
            QE = self.places("QE", key)
            QE[*at, g, u, p] = query
            query = QE[*at, g, u, p]
        own = sum_(QK[*at, g, u, near] * N[*at, g, near, c], over=near)
        read(self.row(g, u), sum_(query * S[*at, g - 1, p, c], over=p) + own)


FORMS: Mapping[str, Callable[[Rule, Read], None]] = {
    "recurrent": Rule.recurrent,
    "chunked-solve": lambda rule, read: Chunks(rule).write(Chunks.by_solve, read),
    "chunked-rows": lambda rule, read: Chunks(rule).write(Chunks.by_rows, read),
    "chunked-wy": lambda rule, read: Chunks(rule).write(Chunks.by_wy, read),
}


@dataclass(frozen=True)
class Layer:
    """A layer around a delta rule, in a mixer whose x and y are declared."""

    m: Mixer
    sizes: Sizes
    chosen: Chosen
    """The options, of which `core` and `negative` change the layer."""
    decay: Decay | None = None
    """The logarithm of the decay of a row; None without decay."""
    per_channel: bool = False
    """Whether each channel of the key has a decay of its own."""
    gate: Callable[[Head], Node] | None = None
    """The gate at a head's channel c; None without a gate."""
    eps: Fraction = Fraction(1, 10**5)
    """The constant under the root of the norm of o."""

    @property
    def core(self) -> bool:
        """Whether the recurrence is alone."""
        return "core" in self.chosen

    def parameters(self) -> None:
        """Declare the maps to queries, keys, values, degrees beta (how much of a value is
        corrected) and y; without `core` also taps of short convolutions and the norm's gain."""
        m, (d,), number = self.m, self.m.sizes("d"), self.sizes.n
        for name, width in self.sizes.widths.items():
            m.parameter(f"W_{name}", d, width)
        m.parameter("W_b", d, number)
        if not self.core:
            (k,) = m.sizes("k")
            for name, width in self.sizes.widths.items():
                m.parameter(f"w_{name}", k, width)
            m.parameter("gain", self.sizes.value)
        m.parameter("W_out", number * self.sizes.value, d)

    def write(self) -> Mixer:
        """Write the equations of every form of `FORMS` (`recurrent`, and `chunked-solve`,
        `chunked-rows` and `chunked-wy`, three ways to invert within a chunk); returns the mixer."""
        (d,) = self.m.sizes("d")
        for form, rule in FORMS.items():
            with self.m.form(form) as f:
                head = Head(f, self.sizes)
                R = self.read(head, partial(rule, self.rows(head)))
                b, e = f.index("b", 1, d), f.index("f", 1, R.shape[1])
                W_out, y = self.m.arrays["W_out"], self.m.role("output")
                y[head.i, b] = sum_(R[head.i, e] * W_out[e, b], over=e)
        return self.m

    def rows(self, head: Head) -> Rule:
        """Write the equations of the rows that the delta rule reads, and return the rule of these:
        queries and keys (groups, l, K), normalised, the queries scaled; values (heads, l, V); and
        degrees (heads, l), sigmoids, doubled with the option `negative`."""
        sizes, i, j, p, c = head.sizes, head.i, head.group, head.p, head.c
        keys, own = (sizes.heads[0], head.l, sizes.key), (j - 1) * sizes.key + p  # shape, column
        values = (*sizes.heads, head.l, sizes.value)

        def normed(name: str) -> Array:
            """Write and return N_name, the queries or keys ("Q", "K") divided by their l2 norm."""
            H = self.channel(head, name, keys, (j, i, p), own)
            norm = l2_norm(H[j, i, p], over=p, eps=L2_EPS, least=0)
            return head.define(f"N_{name}", keys, (j, i, p), norm)

        Q = head.define("Q", keys, (j, i, p), scaled(normed("Q")[j, i, p], by=sizes.key))
        K = normed("K")
        V = self.channel(head, "V", values, (*head.at, i, c), head.column(sizes.value, c))
        degree = function("sigmoid", head.mapped("W_b", head.column()))
        degree = 2 * degree if "negative" in self.chosen else degree
        B = head.define("B", (*sizes.heads, head.l), (*head.at, i), degree)
        return Rule(head, Q, K, V, B, self.decay, self.per_channel)

    def channel(
        self, head: Head, name: str, shape: tuple[Any, ...], at: tuple[Any, ...], column: Any
    ) -> Array:
        """Define and return x W_name by heads, of extents `shape`; without `core`, silu of its
        short convolution. `at` are the indices of an entry, `column` its column in W_name."""
        X = head.define(f"X_{name}", shape, at, head.mapped(f"W_{name}", column))
        if self.core:
            return X
        taps = self.m.arrays[f"w_{name}"]
        s = head.f.index("s", 1, taps.shape[0])
        short = short_convolution(X[at], taps[s, column], along=head.i, taps=s)
        C = head.define(f"C_{name}", shape, at, short)
        return head.define(f"H_{name}", shape, at, function("silu", C[at]))

    def read(self, head: Head, rule: Callable[[Read], None]) -> Array:
        """Define and return R (l, n V), the rows that W_out maps: what `rule` reads; unless `core`,
        normed in each head, and times the gate if there is one. `rule` is called with a function
        (row, value) that defines what a row reads."""
        f, at, i, c = head.f, head.at, head.i, head.c
        column, shape = (
            head.column(self.sizes.value, c),
            (*self.sizes.heads, head.l, self.sizes.value),
        )
        R = f.array("R", head.l, self.sizes.n * self.sizes.value)
        if self.core:
            rule(lambda row, value: R.__setitem__((row, column), value))
            return R
        O = f.array("O", *shape)
        rule(lambda row, value: O.__setitem__((*at, row, c), value))
        normed = rms_norm(O[*at, i, c], over=c, gain=self.m.arrays["gain"][c], eps=self.eps)
        if self.gate is not None:
            N = head.define("N_O", shape, (*at, i, c), normed)
            Z = head.define("Z", shape, (*at, i, c), self.gate(head))
            normed = N[*at, i, c] * Z[*at, i, c]
        R[i, column] = normed
        return R


def started(name: str, title: str, idea: str, source: str, **other: Any) -> Mixer:
    """A new mixer of this family with its input x and output y (l, d) declared."""
    m = Mixer(name, title=title, idea=idea, source=source, group="delta", **other)
    l, d = m.sizes("l d")
    m.input("x", l, d)
    m.output("y", l, d)
    return m


@offering(CORE)
def deltanet(chosen: Chosen) -> Mixer:
    """The mixer DeltaNet: each row corrects a head's matrix S at its key; without decay."""
    m = started(
        "deltanet",
        "DeltaNet",
        "a matrix returns values for keys, each row corrects it",
        "Yang et al. 2024, arXiv 2406.06484, sections 2.2 and 3",
    )
    n, h = m.sizes("n h")
    layer = Layer(m, Sizes((n,), h, h), chosen)
    layer.parameters()
    return layer.write()


def per_head(head: Head, i: Index) -> Node:
    """Write the equation of A = -exp(A_log) for each head, and return the expression of the
    logarithm of a head's decay at row i, A softplus(x W_a + dt)."""
    number, arrays = head.column(), head.arrays
    A = head.define("A", head.sizes.heads, head.at, -exp(arrays["A_log"][number]))
    inside = head.mapped("W_a", number, i) + arrays["dt"][number]
    return A[head.at] * function("softplus", inside)


def silu_gate(head: Head) -> Node:
    """The gate silu(x W_z) at a head's channel of values."""
    return function("silu", head.mapped("W_z", head.column(head.sizes.value, head.c)))


@offering(CORE)
def gated_deltanet(chosen: Chosen) -> Mixer:
    """The mixer Gated DeltaNet: DeltaNet whose matrix decays by a factor for each head and row,
    with n heads of values in g groups that share a query and a key, and a silu gate (not with
    `core`)."""
    m = started(
        "gated-deltanet",
        "Gated DeltaNet",
        "DeltaNet whose matrix decays, by a factor per head",
        "Yang et al. 2024, arXiv 2412.06464, sections 3.1 and 3.4; fewer heads of keys as in "
        "Qwen3-Next",
        aliases=("gdn",),
    )
    d, n, K, V = m.sizes("d n K V")  # channels, heads, width of a key, width of a value
    g = m.size("g", "heads of queries and keys", 2)
    layer = Layer(
        m, Sizes((g, n / g), K, V), chosen, per_head, gate=silu_gate,
        eps=Fraction(1, 10**6),
    )  # fmt: skip
    layer.parameters()
    m.parameter("W_a", d, n)
    m.parameter("A_log", n)
    m.parameter("dt", n)
    if "core" not in chosen:
        m.parameter("W_z", d, n * V)
    return layer.write()


def per_channel(head: Head, i: Index) -> Node:
    """-exp(A_log) softplus(x W_F U_F + dt), the logarithm of the decay of a head's key channel p at
    row i; writes the equation of A, the first factor."""
    A = head.define("A", head.sizes.heads, head.at, -exp(head.arrays["A_log"][head.group]))
    return A[head.at] * function("softplus", of_channel(head, i))


def bounded(head: Head, i: Index) -> Node:
    """-5 sigmoid(exp(A_log) (x W_F U_F + dt)), the logarithm of the decay of a head's key channel p
    at row i, which `safe-gate` bounds; writes the equation of A, exp(A_log)."""
    A = head.define("A", head.sizes.heads, head.at, exp(head.arrays["A_log"][head.group]))
    return LEAST_LOG * function("sigmoid", A[head.at] * of_channel(head, i))


def of_channel(head: Head, i: Index) -> Node:
    """x W_F U_F + dt, or x W_F + dt with `full-maps`, at row i and a head's key channel p: an
    expression of which the decay of the channel is made."""
    own = (head.group - 1) * head.sizes.key + head.p
    return narrowed(head, "F", own, i) + head.arrays["dt"][own]


def sigmoid_gate(head: Head) -> Node:
    """The gate sigmoid(x W_G U_G), or sigmoid(x W_G) with `full-maps`, at a head's channel of
    values."""
    own = head.column(head.sizes.value, head.c)
    return function("sigmoid", narrowed(head, "G", own, head.i))


def narrowed(head: Head, name: str, column: Any, i: Index) -> Node:
    """The expression of x W_name U_name at row i and a column; writes the equation of the array
    `name`, the rows x W_name of h channels. x W_name where the mixer has no parameter U_name."""
    if f"U_{name}" not in head.arrays:
        return head.mapped(f"W_{name}", column, i)
    q = head.f.index("a2", 1, head.sizes.key)
    rows = head.define(name, (head.l, head.sizes.key), (i, q), head.mapped(f"W_{name}", q, i))
    return sum_(rows[i, q] * head.arrays[f"U_{name}"][q, column], over=q)


@offering(CORE | OF_KDA)
def kda(chosen: Chosen) -> Mixer:
    """The mixer Kimi Delta Attention: DeltaNet whose matrix decays by a factor for each row and
    channel of the keys (bounded with `safe-gate`), and a sigmoid gate (left out with `core`); both
    read two maps of x through h channels, or one map each with `full-maps`."""
    m = started(
        "kda",
        "KDA",
        "DeltaNet whose matrix decays, by a factor per channel",
        "Kimi Team 2025, arXiv 2510.26692, sections 3 and 4",
    )
    d, n, h = m.sizes("d n h")  # channels, heads, channels a head
    decay = bounded if "safe-gate" in chosen else per_channel
    layer = Layer(m, Sizes((n,), h, h), chosen, decay, True, sigmoid_gate)
    layer.parameters()
    for name in ("F",) if "core" in chosen else ("F", "G"):
        full = "full-maps" in chosen
        m.parameter(f"W_{name}", d, n * h if full else h)
        if not full:
            m.parameter(f"U_{name}", h, n * h)
    m.parameter("A_log", n)
    m.parameter("dt", n * h)
    return layer.write()
