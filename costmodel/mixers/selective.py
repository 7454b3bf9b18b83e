"""What are the equations of selective state spaces, Mamba, Mamba-2 and Mamba-3?

A recurrence whose step size, input map and output map depend on the token. Mamba, Gu and Dao 2023:
each of E channels has N states, whose decays A are trained; of the rows x that pass a short
convolution and silu, a map of rank R gives the step size Delta, and two maps give B and C:

    S_i = exp(Delta_i A) S_(i-1) + (Delta_i x_i) B_i^T,    y_i = S_i C_i + D x_i,

times silu of a gate. Mamba-2, Dao and Gu 2024: n heads of P channels have one decay each, B and C
belong to G groups of heads and pass the convolution too, and the result, times silu of the gate,
is normalised over the channels of each group. K and Q are that paper's B and C, the keys and
queries of its section 7, since C is the length of a chunk here.

Mamba-2 has two more forms: `parallel`, by the pairs of all rows, each with the product of the
decays between; and `chunked` (SSD), by the pairs within chunks of C rows, and a recurrence over
chunks. `scan`, of all three, is a parallel scan of all rows. Mamba's kernel in mamba-ssm
(selective_scan_fwd_kernel.cuh) scans 2048 rows at a time, with the same two products and one sum a
combination: 4 to 16 rows in sequence in a thread, then Kogge and Stone's scan in a warp.

Mamba-3, Lahoti et al. 2026, single input and output: no short convolution or norm of the result, B
and C normalised and with a bias of each head, and a step adds two products, the row's and that of
the row before, weighed by lambda = sigmoid(x W_lam):

    S_i = alpha S_(i-1) + (1 - lambda) Delta alpha x_(i-1) K_(i-1)^T + lambda Delta x_i K_i^T.

2R of a head's 2R + M states turn in pairs by theta_i = theta_(i-1) + pi tanh(x W_turn) Delta, not
taken modulo 2 pi. Pairs are states z and R + z here, neighbours in mamba-ssm, which has R = N/4 or
N/2; -A = max(softplus(x W_A), 1e-4), as in mamba-ssm 2.3.2 (its repository has another function
since June 2026). With multiple inputs and outputs (`mimo`) a head has r rows K, Q, X up_X and gates
Z up_Z in place of one; theta turns all r rows of K and Q alike. S adds the sum of r products, and y
is the sum of r gated reads times `down`. As in mamba-ssm, a state holds X of the row before, and
its r products with up_X are computed again. In the form `scan` both terms of a row are added first,
and a scan whose decays are 1 adds the angles up to theta.

Layers as in transformers and mamba-ssm: the short convolutions have biases (without the option
`no-conv-bias`); of the maps that of Delta has one, with `in-bias` every map of x, with `out-bias`
the map out; eps is 1e-5. One in-projection there is a map for each part here. Later rows read k-1
rows before a convolution; transformers keeps k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import short_convolution
from costmodel.language.nodes import Array, Constant, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, maximum, scan, sum_
from costmodel.mixers.decayed_attention import Chunks, Places, in_turn
from costmodel.symbolic.polynomial import Poly

EPS = Fraction(1, 100_000)
LEAST_DECAY = Fraction(1, 10_000)
"""The floor of -A in Mamba-3, A_floor of mamba3.py."""
PI = Constant(Poly.of(Fraction(math.pi)))

CORE = {"core": "the recurrence alone: no short convolution, gate or norm, but bare projections"}
BIASES = {
    "no-conv-bias": "short convolutions have no bias",
    "in-bias": "all maps of x have biases",
    "out-bias": "the map out has a bias",
}
BARE = {
    ("core", "no-conv-bias"): "the recurrence alone has no short convolution",
    ("core", "in-bias"): "the recurrence alone has bare maps",
    ("core", "out-bias"): "the recurrence alone has bare maps",
}


def declare_rows(m: Mixer, name: str, width: Poly, chosen: Collection[str]) -> None:
    """Declare the parameters of the map `name` of x: W_name (d, width), with `in-bias` its bias
    p_name (width), and unless `core` is chosen the k taps w_name (k, width) of a short convolution
    and, unless `no-conv-bias` is, the bias b_name (width) of that."""
    declare_map(m, name, width, chosen)
    if "core" not in chosen:
        m.parameter(f"w_{name}", *m.sizes("k"), width)
        if "no-conv-bias" not in chosen:
            m.parameter(f"b_{name}", width)


def declare_map(m: Mixer, name: str, width: Poly, chosen: Collection[str]) -> None:
    """Declare W_name (d, width) and, with `in-bias`, its bias p_name (width)."""
    m.parameter(f"W_{name}", *m.sizes("d"), width)
    if "in-bias" in chosen:
        m.parameter(f"p_{name}", width)


def declare_out(m: Mixer, width: Poly, chosen: Collection[str]) -> None:
    """Declare W_out (width, d) and, with `out-bias`, its bias p_out (d)."""
    m.parameter("W_out", width, *m.sizes("d"))
    if "out-bias" in chosen:
        m.parameter("p_out", *m.sizes("d"))


def biased(m: Mixer, name: str, found: Node, *at: Any) -> Node:
    """A row of a map plus its bias p_name at the place `at`, if the mixer has one."""
    return found + m.arrays[name][at] if (name := f"p_{name}") in m.arrays else found


def places(f: Form, name: str, width: Poly, groups: Poly | None) -> tuple[Any, Any]:
    """(indices, column) of `width` channels: one index called `name`, and as column of a weight the
    channel; or with `groups`, indices of a group g and a channel `name` in it, and as column (g -
    1) times the group's width plus the channel."""
    if groups is None:
        c = f.index(name, 1, width)
        return (c,), c
    g, u = f.index("g", 1, groups), f.index(name, 1, width / groups)
    return (g, u), (g - 1) * (width / groups) + u


def rows(
    f: Form, name: str, place: str, groups: Poly | None = None, lying: Places | None = None
) -> Array:
    """Define and return an array `name`, (rows, width), or with `groups` (rows, groups, width of a
    group): x W_name, or, if the mixer has taps w_name, silu of the short convolution of x W_name.
    `place` is the name of the index of channels; `lying`: the axes of rows, (l,) by default, or
    (chunk, place in the chunk)."""
    m = f.mixer
    x, W, w = m.role("input"), m.arrays[f"W_{name}"], m.arrays.get(f"w_{name}")
    (l, d), width = x.shape, W.shape[1]
    axes, column = places(f, place, width, groups)  # indices of channels, column of W
    i, a, c = f.index("i", 1, l), f.index("a", 1, d), f.index(f"c_{name}", 1, width)
    extents, at, row = lying or in_turn(f)  # axes of rows, their indices, the row of x
    found = f.array(name, *extents, *(axis.upper[0] for axis in axes))
    if w is None:
        found[*at, *axes] = sum_(x[row, a] * W[a, column], over=a)
        return found
    U, T = f.array(f"U_{name}", l, width), f.array(f"T_{name}", l, width)
    z, bias = f.index("z", 1, w.shape[0]), m.arrays.get(f"b_{name}")
    U[i, c] = biased(m, name, sum_(x[i, a] * W[a, c], over=a), c)
    T[i, c] = short_convolution(U[i, c], w[z, c], along=i, taps=z, bias=bias and bias[c])
    found[*at, *axes] = function("silu", T[row, column])
    return found


def gated(f: Form, O: Array, place: str) -> Array:
    """Define and return an array H: the rows O times silu of the gate x W_Z. O and H are (l, width)
    or (l, groups, width of a group), and `place` is the name of the index of channels."""
    x, W = f.mixer.role("input"), f.mixer.arrays["W_Z"]
    (l, d), groups = x.shape, O.shape[1] if len(O.shape) > 2 else None
    axes, column = places(f, place, W.shape[1], groups)
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    Z, H = f.array("Z", *O.shape), f.array("H", *O.shape)
    Z[i, *axes] = biased(f.mixer, "Z", sum_(x[i, a] * W[a, column], over=a), column)
    H[i, *axes] = O[i, *axes] * function("silu", Z[i, *axes])
    return H


@offering(
    {
        **CORE,
        "norms": "RMS norms of B, of C and of the R numbers that give the step",
        **BIASES,
    },
    {("core", "norms"): "the recurrence alone has no norm", **BARE},
)
def mamba(chosen: Chosen) -> Mixer:
    """The mixer Mamba: N states for each of E inner channels, with step Delta, B and C by the
    token; with `core` without short convolution and gate, with `norms` as in Jamba, with
    `no-conv-bias` without the bias of the convolution, with `in-bias` and `out-bias` with those of
    maps. Forms: `recurrent`, `scan`."""
    m = Mixer(
        "mamba",
        title="Mamba",
        idea="N states a channel; step, input and output by the token",
        source="Gu and Dao 2023, arXiv 2312.00752, sections 3.2-3.4 and algorithm 2"
        + "; norms: Lieber et al. 2024, arXiv 2403.19887, section 6.4" * ("norms" in chosen),
        group="state-space",
    )
    l, d, N = m.sizes("l d N")  # tokens, channels, states a channel
    E, R = m.size("E", "inner channels", 256), m.size("R", "rank of the step size", 8)
    m.input("x", l, d)
    m.output("y", l, d)
    declare_rows(m, "X", E, chosen)
    for name, shape in {
        "W_R": (E, R), "W_dt": (R, E), "b_dt": (E,), "W_B": (E, N), "W_C": (E, N),
        "log_A": (E, N), "D": (E,),
    }.items():  # fmt: skip
        m.parameter(name, *shape)
    if "core" not in chosen:
        declare_map(m, "Z", E, chosen)
    for name, width in {"T": R, "B": N, "C": N}.items() if "norms" in chosen else ():
        m.parameter(f"gain_{name}", width)
    declare_out(m, E, chosen)
    for form in ("recurrent", "scan"):
        with m.form(form) as f:
            write_by_channel(f)
    return m


def write_by_channel(f: Form) -> None:
    """Write the equations of a form of Mamba: the states S (l, E, N), S_i = kept_i S_{i-1} + U_i
    B_i, kept = exp(step A) and U = step X, by a recurrence over rows or, in the form `scan`, by a
    parallel scan of V = U B; then O = S C + D X, gated if there is W_Z, and y. T, B and C are maps
    of X, and the step is softplus(T W_dt + b_dt)."""
    m = f.mixer
    l, d, N, E, R = m.sizes("l d N E R")  # tokens, channels, states, inner channels, rank
    X = rows(f, "X", "c")
    i, later, b = f.index("i", 1, l), f.index("i2", 2, l), f.index("b", 1, d)
    c, o, s, r = f.index("c", 1, E), f.index("o", 1, E), f.index("s", 1, N), f.index("r", 1, R)
    names = ("W_dt", "b_dt", "log_A", "D", "W_out")
    W_dt, b_dt, log_A, D, W_out = (m.arrays[name] for name in names)

    def mapped(name: str, of: str, at: Index) -> Array:
        """Define and return `name` (l, width), X W_of; normed if the mixer has a gain."""
        gain = m.arrays.get(f"gain_{name}")
        raw = f.array(name if gain is None else f"{name}_p", l, at.upper[0])
        raw[i, at] = sum_(X[i, o] * m.arrays[f"W_{of}"][o, at], over=o)
        if gain is None:
            return raw
        found = f.array(name, *raw.shape)
        found[i, at] = rms_norm(raw[i, at], over=at, gain=gain[at], eps=EPS)
        return found

    T, B, C = mapped("T", "R", r), mapped("B", "B", s), mapped("C", "C", s)
    step, U, A = f.array("step", l, E, latex=r"\Delta"), f.array("U", l, E), f.array("A", E, N)
    step[i, c] = function("softplus", sum_(T[i, r] * W_dt[r, c], over=r) + b_dt[c])
    U[i, c] = step[i, c] * X[i, c]
    A[c, s] = -exp(log_A[c, s])
    kept, S = f.array("kept", l, E, N, latex=r"\bar{A}"), f.array("S", l, E, N)
    kept[later, c, s] = exp(step[later, c] * A[c, s])
    if f.name == "scan":
        V, row = f.array("V", l, E, N), f.index("w", 1, l)
        kept[1, c, s] = 0
        V[i, c, s] = U[i, c] * B[i, s]
        S[i, c, s] = scan(kept[row, c, s], V[row, c, s], over=row)
    else:
        S[1, c, s] = U[1, c] * B[1, s]
        S[later, c, s] = kept[later, c, s] * S[later - 1, c, s] + U[later, c] * B[later, s]
    O = f.array("O", l, E)
    O[i, c] = sum_(S[i, c, s] * C[i, s], over=s) + D[c] * X[i, c]
    H = gated(f, O, "c") if "W_Z" in m.arrays else O
    m.role("output")[i, b] = biased(m, "out", sum_(H[i, c] * W_out[c, b], over=c), b)


@dataclass(frozen=True)
class Heads:
    """A form of Mamba-2 while it is written: rows X and U = Delta X (l, G, n/G*P), K and Q
    (l, G, N), the steps Delta (l, n), A (n), and O, what rows read of U plus D X. In chunks, all
    but O have an axis of chunks and one of places in place of l."""

    f: Form
    X: Array
    U: Array
    K: Array
    Q: Array
    step: Array
    A: Array
    O: Array

    def index(self, name: str) -> Index:
        """The index `name`: g, a group; h, a head in its group; j, a head of all; p, a channel; s,
        a state; i, a row; i2, a row from 2 on."""
        l, n, P, N, G = self.f.mixer.sizes("l n P N G")
        first, last = {
            "g": (1, G), "h": (1, n / G), "p": (1, P), "s": (1, N), "j": (1, n),
            "i": (1, l), "i2": (2, l),
        }[name]  # fmt: skip
        return self.f.index(name, first, last)

    @property
    def head(self) -> Poly:
        """Head h of group g, counted among all."""
        g, h = self.index("g"), self.index("h")
        return (g - 1) * h.upper[0] + h

    @property
    def channel(self) -> Poly:
        """The place of channel p of head h in its group."""
        h, p = self.index("h"), self.index("p")
        return (h - 1) * p.upper[0] + p

    def define(self, array: Array, at: tuple[Any, ...], read: Node) -> None:
        """Write the equation of an array at a row, or at a chunk and place: `read`, what the row
        reads of the state at group g, head h and channel p, plus D X."""
        channel = self.index("g"), self.channel
        own = self.f.mixer.arrays["D"][self.head] * self.X[*at, *channel]
        array[*at, *channel] = read + own


def recurrent(heads: Heads) -> None:
    """Section 2.1, equation (1): write the equations of the output O by the recurrence of the
    states S (l, G, n/G, P, N), which decay by exp(Delta A) and add U K^T at each row, and which the
    row's Q reads; `define` adds D X. G groups of n/G heads, P channels a head, N states."""
    g, h, p, s, i, later, j = map(heads.index, ("g", "h", "p", "s", "i", "i2", "j"))
    l, n, P, N, G = heads.f.mixer.sizes("l n P N G")  # tokens, heads, head width, states, groups
    kept = heads.f.array("kept", l, n, latex=r"\bar{A}")
    S = heads.f.array("S", l, G, n / G, P, N)
    kept[later, j] = exp(heads.step[later, j] * heads.A[j])
    S[1, g, h, p, s] = heads.U[1, g, heads.channel] * heads.K[1, g, s]
    added = heads.U[later, g, heads.channel] * heads.K[later, g, s]
    S[later, g, h, p, s] = kept[later, heads.head] * S[later - 1, g, h, p, s] + added
    heads.define(heads.O, (i,), sum_(S[i, g, h, p, s] * heads.Q[i, g, s], over=s))


def scanned(heads: Heads) -> None:
    """Write the equations of the output O by the recurrence of `recurrent` as a parallel scan, in
    which all states of a head share the product of its decays; V is what a row adds to S."""
    g, h, p, s, i, later, j = map(heads.index, ("g", "h", "p", "s", "i", "i2", "j"))
    l, n, P, N, G = heads.f.mixer.sizes("l n P N G")  # tokens, heads, head width, states, groups
    kept, w = heads.f.array("kept", l, n, latex=r"\bar{A}"), heads.f.index("w", 1, l)
    V, S = (heads.f.array(name, l, G, n / G, P, N) for name in "VS")
    kept[1, j] = 0
    kept[later, j] = exp(heads.step[later, j] * heads.A[j])
    V[i, g, h, p, s] = heads.U[i, g, heads.channel] * heads.K[i, g, s]
    S[i, g, h, p, s] = scan(kept[w, heads.head], V[w, g, h, p, s], over=w)
    heads.define(heads.O, (i,), sum_(S[i, g, h, p, s] * heads.Q[i, g, s], over=s))


def parallel(heads: Heads) -> None:
    """Section 3.2: write the equations of the output O by pairs of rows, W: the product of a row's
    Q with each K up to the row, times the decay between. F (l, n) is the log of all decays up to a
    row."""
    g, h, s, i, later, j = map(heads.index, ("g", "h", "s", "i", "i2", "j"))
    f, (l, n, G) = heads.f, heads.f.mixer.sizes("l n G")  # tokens, heads, groups of heads
    k = f.index("k", 1, i)
    F, M, W = f.array("F", l, n), f.array("M", G, l, l), f.array("W", G, n / G, l, l)
    F[1, j] = heads.step[1, j] * heads.A[j]
    F[later, j] = F[later - 1, j] + heads.step[later, j] * heads.A[j]
    M[g, i, k] = sum_(heads.Q[i, g, s] * heads.K[k, g, s], over=s)
    W[g, h, i, k] = M[g, i, k] * exp(F[i, heads.head] - F[k, heads.head])
    heads.define(heads.O, (i,), sum_(W[g, h, i, k] * heads.U[k, g, heads.channel], over=k))


def chunked(heads: Heads) -> None:
    """Section 6, the SSD algorithm: write the equations of the output O, which adds V, a row's read
    of its chunk plus D X (M: products Q K of pairs, W: M times the decay between), and the read of
    S (l//C, G, n/G, P, N), states at a chunk's end (B: U times T). F (l//C + 1, C, n) is the log of
    the decay E since the chunk's start, T the decay to the chunk's end, L that of a chunk."""
    f, chunks, number = heads.f, chunks_of(heads.f), heads.step.shape[0]
    g, h, p, s, j = map(heads.index, ("g", "h", "p", "s", "j"))
    l, n, P, N, G, C = f.mixer.sizes("l n P N G C")  # tokens, heads, width, states, groups, chunk
    (q, e), (z, u), every = chunks.any, chunks.later, chunks.complete  # (chunk, place), z > 1
    k, w, first = f.index("k", 1, e), f.index("w", 1, C), f.index("e4", 1, min_(C, l))
    F, M = f.array("F", *heads.step.shape), f.array("M", G, number, C, C)
    W, V = f.array("W", G, n / G, number, C, C), f.array("V", *heads.U.shape)
    F[q, e, j] = sum_(heads.step[q, k, j], over=k) * heads.A[j]
    M[g, q, e, k] = sum_(heads.Q[q, e, g, s] * heads.K[q, k, g, s], over=s)
    W[g, h, q, e, k] = M[g, q, e, k] * exp(F[q, e, heads.head] - F[q, k, heads.head])
    heads.define(V, (q, e), sum_(W[g, h, q, e, k] * heads.U[q, k, g, heads.channel], over=k))
    E, T, B = f.array("E", *F.shape), f.array("T", l // C, C, n), f.array("B", l // C, *V.shape[1:])
    E[z, u, j] = exp(F[z, u, j])
    T[every, w, j] = exp(F[every, C, j] - F[every, w, j])
    B[every, w, g, heads.channel] = T[every, w, heads.head] * heads.U[every, w, g, heads.channel]
    L, S = f.array("L", l // C, n), f.array("S", l // C, G, n / G, P, N)
    for chunk, before in chunks.whole:
        own = sum_(B[chunk, w, g, heads.channel] * heads.K[chunk, w, g, s], over=w)
        if before is not None:
            L[chunk, j] = exp(F[chunk, C, j])
            own = L[chunk, heads.head] * S[before, g, h, p, s] + own
        S[chunk, g, h, p, s] = own
    heads.O[first, g, heads.channel] = V[1, first, g, heads.channel]
    found = E[z, u, heads.head] * sum_(S[z - 1, g, h, p, s] * heads.Q[z, u, g, s], over=s)
    heads.O[chunks.row(z, u), g, heads.channel] = V[z, u, g, heads.channel] + found


FORMS: Mapping[str, Callable[[Heads], None]] = {
    "recurrent": recurrent,
    "parallel": parallel,
    "chunked": chunked,
    "scan": scanned,
}
"""Form of Mamba-2 -> the function that writes the equations of O."""


def chunks_of(f: Form) -> Chunks:
    """The chunks of C rows of a form."""
    return Chunks(f, *f.mixer.sizes("l C"))


@offering(
    {**CORE, "no-norm": "no norm of the gated rows, as in Falcon-H1", **BIASES},
    {("core", "no-norm"): "the recurrence alone has no norm", **BARE},
)
def mamba_2(chosen: Chosen) -> Mixer:
    """The mixer Mamba-2: P x N states for each of n heads with one decay; G groups of heads share K
    (the paper's B) and Q (C); with `core` without convolution, gate and norm, with `no-norm`
    without norm, with `no-conv-bias` without biases of convolutions, with `in-bias` and `out-bias`
    with those of maps. Forms: `recurrent`, `parallel`, `chunked`, `scan`."""
    m = Mixer(
        "mamba-2",
        title="Mamba-2",
        idea="N x P states a head, of one decay that the token gives",
        source="Dao and Gu 2024, arXiv 2405.21060, sections 6 and 7; layer of figure 6, right",
        group="state-space",
    )
    l, d, n = m.sizes("l d n")  # tokens, channels, heads
    P, N = m.size("P", "width of a head", 64), m.size("N", "states per channel of a head", 128)
    G = m.size("G", "groups of heads that share B and C", 1)
    m.input("x", l, d)
    m.output("y", l, d)
    for name, width in (("X", n * P), ("K", G * N), ("Q", G * N)):
        declare_rows(m, name, width, chosen)
    declare_map(m, "dt", n, chosen)
    for name in ("b_dt", "log_A", "D"):
        m.parameter(name, n)
    if "core" not in chosen:
        declare_map(m, "Z", n * P, chosen)
        if "no-norm" not in chosen:
            m.parameter("gain", n * P)
    declare_out(m, n * P, chosen)
    for name, form in FORMS.items():
        with m.form(name) as f:
            write(f, form)
    return m


def write(f: Form, form: Callable[[Heads], None]) -> None:
    """Write the equations of a form of Mamba-2: rows X, K, Q, the step sizes, U = step X; `form`
    then defines O (what heads read) by a recurrence, pairs or chunks; gate and norm, if declared;
    y."""
    m = f.mixer
    x, y = m.role("input"), m.role("output")
    W_dt, b_dt, log_A, gain = (m.arrays.get(name) for name in ("W_dt", "b_dt", "log_A", "gain"))
    assert W_dt is not None and b_dt is not None and log_A is not None
    l, d, n, P, G = m.sizes("l d n P G")  # tokens, channels, heads, head width, groups
    lying = chunks_of(f).places if form is chunked else in_turn(f)
    X, K, Q = (rows(f, name, at, G, lying) for name, at in (("X", "u"), ("K", "s"), ("Q", "s")))
    step, A = f.array("step", *lying.extents, n, latex=r"\Delta"), f.array("A", n)
    U, O = f.array("U", *X.shape), f.array("O", l, *X.shape[-2:])
    heads = Heads(f, X, U, K, Q, step, A, O)
    i, j, g, a, b = *map(heads.index, "ijg"), f.index("a", 1, d), f.index("b", 1, d)
    given = biased(m, "dt", sum_(x[lying.row, a] * W_dt[a, j], over=a), j)
    step[*lying.at, j] = function("softplus", given + b_dt[j])
    A[j] = -exp(log_A[j])
    U[*lying.at, g, heads.channel] = step[*lying.at, heads.head] * X[*lying.at, g, heads.channel]
    form(heads)
    (_, u), column = places(f, "u", n * P, G)
    read = gated(f, O, "u") if "W_Z" in m.arrays else O
    if gain is not None:
        H, read = read, f.array("Y", *O.shape)
        read[i, g, u] = rms_norm(H[i, g, u], over=u, gain=gain[column], eps=EPS)
    read_out = sum_(read[i, g, u] * m.arrays["W_out"][column, b], over=(g, u))
    y[i, b] = biased(m, "out", read_out, b)


@offering(
    {
        "core": "the recurrence alone: bare projections, no norm of B and C, no gate",
        "mimo": "multi-input, multi-output: a row adds and reads r pairs of K and Q, not one",
    }
)
def mamba_3(chosen: Chosen) -> Mixer:
    """The mixer Mamba-3: Mamba-2 whose K and Q turn by angles that add up over rows, and whose
    states add the row before too. `core`: without norms and gate; `mimo`: r inputs and outputs of a
    head, in place of one (SISO). Forms: `recurrent`, `scan`."""
    m = Mixer(
        "mamba-3",
        title="Mamba-3",
        idea="Mamba-2 whose K and Q turn, and which adds two rows a step",
        source="Lahoti et al. 2026, arXiv 2603.15569; mamba-ssm 2.3.2, mamba3.py, "
        + ("MIMO" if "mimo" in chosen else "SISO"),
        group="state-space",
    )
    l, d, n = m.sizes("l d n")  # tokens, channels, heads
    P, R = m.size("P", "width of a head", 64), m.size("R", "pairs of states that turn", 32)
    M = m.size("M", "states that do not turn", 64)
    G = m.size("G", "groups of heads that share B and C", 1)
    many = (m.size("r", "inputs and outputs of a head", 4),) if "mimo" in chosen else ()
    N = 2 * R + M
    m.input("x", l, d)
    m.output("y", l, d)
    declare_rows(m, "X", n * P, CORE)
    m.parameter("W_B", d, G, *many, N)
    m.parameter("W_C", d, G, *many, N)
    for name in ("dt", "A", "lam"):
        m.parameter(f"W_{name}", d, n)
    m.parameter("W_turn", d, R)
    m.parameter("b_dt", n)
    m.parameter("b_K", n, *many, N)
    m.parameter("b_Q", n, *many, N)
    m.parameter("D", n)
    if "core" not in chosen:
        m.parameter("W_Z", d, n * P)
        m.parameter("gain_B", N)
        m.parameter("gain_C", N)
    for name in ("up_X", "down") if "core" in chosen else ("up_X", "up_Z", "down"):
        if many:
            m.parameter(name, n, *many, P)
    m.parameter("W_out", n * P, d)
    for form in ("recurrent", "scan"):
        with m.form(form) as f:
            write_turning(f, N, many)
    return m


def write_turning(f: Form, N: Poly, many: tuple[Poly, ...]) -> None:
    """Write the equations of a form of Mamba-3 with N states a channel. The states that turn, S_T,
    and those that do not, S_F, have a recurrence each (in the form `scan` a parallel scan of
    added_T and added_F): a row keeps `kept` of the states, and adds `own` of its key times value
    and `before` of the row before's; O adds what is read of both. `many` is (r,) with r inputs and
    outputs of a head, () with one: arrays of rows have an axis more for r."""
    m = f.mixer
    y = m.role("output")
    l, d, n, P, G = m.sizes("l d n P G")  # tokens, channels, heads, width, groups
    i, later, b = f.index("i", 1, l), f.index("i2", 2, l), f.index("b", 1, d)
    g, e, p = f.index("g", 1, G), f.index("e", 1, n / G), f.index("p", 1, P)
    j = f.index("j", 1, n)
    head, channel = (g - 1) * (n / G) + e, (e - 1) * P + p
    X = rows(f, "X", "u", G)
    step, A, lam = (f.array(name, l, n) for name in ("step", "A", "lam"))
    step[i, j] = function("softplus", mapped(f, "dt", i, j) + m.arrays["b_dt"][j])
    A[later, j] = -maximum(function("softplus", mapped(f, "A", later, j)), LEAST_DECAY)
    lam[i, j] = function("sigmoid", mapped(f, "lam", i, j))
    write_angles(f, step)
    scanned, row = f.name == "scan", f.index("v", 1, l)
    kept, before, own = (f.array(name, l, n) for name in ("kept", "before", "own"))
    if scanned:
        kept[1, j] = 0
    kept[later, j] = exp(A[later, j] * step[later, j])
    before[later, j] = (1 - lam[later, j]) * step[later, j] * kept[later, j]
    own[i, j] = lam[i, j] * step[i, j]
    V = f.array("V", *X.shape)
    V[later, g, channel] = before[later, head] * X[later - 1, g, channel]
    at: tuple[Any, ...] = (g, channel)
    values, earlier = X, V  # of the row; of the row before, times `before`
    c = f.index("c", 1, *many) if many else None
    inputs = () if c is None else (c,)
    if c is not None:
        up, at = m.arrays["up_X"][head, c, p], (g, e, c, p)
        values, earlier = (f.array(name, l, G, n / G, *many, P) for name in ("X_r", "V_r"))
        values[i, *at] = X[i, g, channel] * up
        earlier[later, *at] = V[later, g, channel] * up
    U, O = f.array("U", *values.shape), f.array("O", *values.shape)
    U[i, *at] = own[i, head] * values[i, *at]

    def added(term: Node) -> Node:
        """The sum of a term over the inputs of a head; the term itself with one input."""
        return term if c is None else sum_(term, over=c)

    read: Node | None = None
    for part, K, Q in zip(
        ("S_T", "S_F"), turned(f, "K", "B", N, many), turned(f, "Q", "C", N, many), strict=True
    ):
        t, S = f.index(part[-1], 1, K.shape[-1]), f.array(part, l, G, n / G, P, K.shape[-1])
        first = added(U[1, *at] * K[1, g, e, *inputs, t])
        last = added(earlier[later, *at] * K[later - 1, g, e, *inputs, t])
        newest = added(U[later, *at] * K[later, g, e, *inputs, t])
        if scanned:
            new = f.array(f"added{part[1:]}", *S.shape)
            new[1, g, e, p, t] = first
            new[later, g, e, p, t] = last + newest
            S[i, g, e, p, t] = scan(kept[row, head], new[row, g, e, p, t], over=row)
        else:
            S[1, g, e, p, t] = first
            S[later, g, e, p, t] = kept[later, head] * S[later - 1, g, e, p, t] + last + newest
        own_read = sum_(S[i, g, e, p, t] * Q[i, g, e, *inputs, t], over=t)
        read = own_read if read is None else read + own_read
    O[i, *at] = read + m.arrays["D"][head] * values[i, *at]
    if c is not None:
        H = down(f, O, head, channel, c)
    else:
        H = gated(f, O, "u") if "W_Z" in m.arrays else O
    (_, u), column = places(f, "u", n * P, G)
    y[i, b] = sum_(H[i, g, u] * m.arrays["W_out"][column, b], over=(g, u))


def mapped(f: Form, name: str, row: Index, to: Index) -> Node:
    """The expression of entry `to` of x W_name at a row."""
    x, W = f.mixer.role("input"), f.mixer.arrays[f"W_{name}"]
    a = f.index("a", 1, x.shape[1])
    return sum_(x[row, a] * W[a, to], over=a)


def write_angles(f: Form, step: Array) -> None:
    """Write the equations of cos and sin (l, n, R) of the angles theta, the running sums of turn =
    pi tanh(x W_turn), R numbers of each row, times the head's `step` (l, n)."""
    (l, n), (R,) = step.shape, f.mixer.sizes("R")
    i, later, j, z = f.index("i", 1, l), f.index("i2", 2, l), f.index("j", 1, n), f.index("z", 1, R)
    turn = f.array("turn", l, R)
    theta, cos, sin = (f.array(name, l, n, R) for name in ("theta", "cos", "sin"))
    turn[i, z] = PI * function("tanh", mapped(f, "turn", i, z))
    if f.name == "scan":
        one, change, row = f.array("one", l), f.array("change", l, n, R), f.index("v", 1, l)
        one[i] = 1
        change[i, j, z] = turn[i, z] * step[i, j]
        theta[i, j, z] = scan(one[row], change[row, j, z], over=row)
    else:
        theta[1, j, z] = turn[1, z] * step[1, j]
        theta[later, j, z] = theta[later - 1, j, z] + turn[later, z] * step[later, j]
    cos[i, j, z] = function("cos", theta[i, j, z])
    sin[i, j, z] = function("sin", theta[i, j, z])


def down(f: Form, O: Array, head: Poly, channel: Poly, c: Index) -> Array:
    """Define and return H (l, G, n/G*P), the sum over r of a head's outputs O (l, G, n/G, r, P)
    times `down`; with W_Z, an output is first multiplied by silu of up_Z times the gate x W_Z.
    `head`: number of the head, `channel`: of a channel in its group, `c`: the index of r."""
    m = f.mixer
    l, n, P, G = m.sizes("l n P G")  # tokens, heads, channels a head, groups of heads
    i, a, g, e, p = (f.indices[letter] for letter in "iagep")
    H, found = f.array("H", l, G, n / G * P), O[i, g, e, c, p]
    if (W := m.arrays.get("W_Z")) is not None:
        (_, u), column = places(f, "u", n * P, G)
        Z, Y = f.array("Z", *H.shape), f.array("Y", *O.shape)
        Z[i, g, u] = sum_(m.role("input")[i, a] * W[a, column], over=a)
        gate = function("silu", Z[i, g, channel] * m.arrays["up_Z"][head, c, p])
        Y[i, g, e, c, p] = found * gate
        found = Y[i, g, e, c, p]
    H[i, g, channel] = sum_(found * m.arrays["down"][head, c, p], over=c)
    return H


def turned(
    f: Form, name: str, projected: str, N: Poly, many: tuple[Poly, ...]
) -> tuple[Array, Array]:
    """Write the equations of K or Q (`name`) from x W_`projected` (`projected`: B or C): rows of a
    group, normalised if the mixer has a gain, plus a bias of the head. Returns (the states z and R
    + z, which turn together, (l, G, n/G, 2R), the last M states, which do not turn, (l, G, n/G,
    M)); with r inputs and outputs of a head (`many`) an axis r stands before the states."""
    m = f.mixer
    x, (l, n, R, M, G) = m.role("input"), m.sizes("l n R M G")
    i, a, g, e, z = (f.indices[letter] for letter in "iagez")
    one = (f.indices["c"],) if many else ()
    s, w, o = f.index("s", 1, N), f.index("w", 1, 2 * R), f.index("o", 1, M)
    head, bias, gain = (
        (g - 1) * (n / G) + e,
        m.arrays[f"b_{name}"],
        m.arrays.get(f"gain_{projected}"),
    )
    base = f.array(projected, l, G, *many, N)
    base[i, g, *one, s] = sum_(x[i, a] * m.arrays[f"W_{projected}"][a, g, *one, s], over=a)
    if gain is not None:
        raw, base = base, f.array(f"N_{projected}", l, G, *many, N)
        base[i, g, *one, s] = rms_norm(raw[i, g, *one, s], over=s, gain=gain[s], eps=EPS)
    before, found = (f.array(f"{name}_{part}", l, G, n / G, *many, 2 * R) for part in ("B", "T"))
    fixed, at = f.array(f"{name}_F", l, G, n / G, *many, M), (i, g, e, *one)
    before[*at, w] = base[i, g, *one, w] + bias[head, *one, w]
    fixed[*at, o] = base[i, g, *one, 2 * R + o] + bias[head, *one, 2 * R + o]
    cos, sin = (f.arrays[part][i, head, z] for part in ("cos", "sin"))
    u, v = before[*at, z], before[*at, R + z]
    found[*at, z] = u * cos - v * sin
    found[*at, R + z] = u * sin + v * cos
    return found, fixed
