"""What are the equations of the delta rules: DeltaNet, Gated DeltaNet and Kimi Delta Attention?

A head keeps a matrix S of K x V numbers. Row i replaces what S returns for its key k by its value
v, to a degree beta between 0 and 1, and reads S with its query q:

    S_i = e^g S_(i-1) + k_i u_i^T,  u_i = beta_i (v_i - k_i^T e^g S_(i-1)),  o_i = q_i S_i/sqrt(K).

DeltaNet has no decay e^g; Gated DeltaNet has one for each head, KDA one for each channel of the
key. In `recurrent`, row 1 starts from S = 0 and has no product with S.

A layer has linear maps to q, k and v, a convolution of the last k rows in each channel, silu, and
an l2 norm of q and k; beta = sigmoid(W_b x), g = -exp(A_log) softplus(a + dt); an RMS norm of each
head's o, times a gate (none in DeltaNet), and W_out. The option `core` leaves out the convolutions
with their silu, the norm of o, and the gate. With `negative`, beta = 2 sigmoid(W_b x), so that what
a row keeps of S may change its sign (Grazzi et al. 2024, arXiv 2411.12537, section 4; OLMo-Hybrid).
With `safe-gate`, g = -5 sigmoid(exp(A_log) (a + dt)) in KDA: no decay is below e^-5.

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
from costmodel.language.indices import Index
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
SAFE = {"safe-gate": "logarithms of decays between -5 and 0, as -5 sigmoid(exp(A_log) (a + dt))"}
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
        """The indices of a head in a form: `at` (head, or group and head in it), `group` of queries
        and keys, row i, channels a of x, p of a key and c of a value."""
        self.f, self.sizes, self.arrays = f, sizes, f.mixer.arrays
        self.x = f.mixer.role("input")
        self.l, d = self.x.shape
        self.i, self.a = f.index("i", 1, self.l), f.index("a", 1, d)
        names = zip("jo", sizes.heads, strict=False)
        self.at = tuple(f.index(name, 1, extent) for name, extent in names)
        self.group = self.at[0]
        self.p, self.c = f.index("p", 1, sizes.key), f.index("c", 1, sizes.value)

    def column(self, width: Any = 1, channel: Any = 1) -> Any:
        """The column of this head's channel; the heads stand side by side, `width` columns each."""
        for index, heads in zip(reversed(self.at), (1, self.sizes.heads[-1]), strict=False):
            width = width * heads
            channel = (index - 1) * width + channel
        return channel

    def mapped(self, weight: str, column: Any, i: Index | None = None) -> Node:
        """x W at row i and a column."""
        row = self.x[self.i if i is None else i, self.a]
        return sum_(row * self.arrays[weight][self.a, column], over=self.a)

    def define(self, name: str, shape: tuple[Any, ...], at: tuple[Any, ...], value: Node) -> Array:
        """A new array of this shape, defined at one position."""
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
    """The rows that a recurrence reads: queries and keys (groups, l, K), values (heads, l, V) and
    degrees beta (heads, l)."""

    head: Head
    Q: Array
    K: Array
    V: Array
    B: Array
    decay: Decay | None
    per_channel: bool

    def recurrent(self, read: Read) -> None:
        """Define the delta rule row by row, and call `read` with row and value of what the queries
        read of the state S (heads, l, K, V). D is the state before, decayed, and U (heads, l, V)
        the corrected value: beta times v minus what the key reads of D."""
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
        """The decay of row i: an entry of E (heads, l), or (heads, l, K) if per channel."""
        assert self.decay is not None
        head, per_channel = self.head, self.per_channel
        shape = (*head.sizes.heads, head.l, *((head.sizes.key,) if per_channel else ()))
        at = (*head.at, i, *((head.p,) if per_channel else ()))
        return head.define("E", shape, at, exp(self.decay(head, i)))[at]


FORMS: Mapping[str, Callable[[Rule, Read], None]] = {"recurrent": Rule.recurrent}


@dataclass(frozen=True)
class Layer:
    """A layer: x and y are declared; so are its parameters, as their names appear."""

    m: Mixer
    sizes: Sizes
    chosen: Chosen
    decay: Decay | None = None
    per_channel: bool = False
    """Whether each channel of the key has a decay of its own."""
    gate: Callable[[Head], Node] | None = None
    """The gate at a head's channel c."""
    eps: Fraction = Fraction(1, 10**5)
    """The constant under the root of the norm of o."""

    @property
    def core(self) -> bool:
        """Whether the recurrence is alone."""
        return "core" in self.chosen

    def parameters(self) -> None:
        """Declare the maps to queries, keys, values, degrees (how much of a value is corrected) and
        y; without `core` also the taps of short convolutions and the gain of the norm."""
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
        """Write all forms: the rows that the rule reads, the rule, and the map to y."""
        (d,) = self.m.sizes("d")
        for form, rule in FORMS.items():
            with self.m.form(form) as f:
                head = Head(f, self.sizes)
                R = self.read(head, partial(rule, self.rows(head)))
                b, e = f.index("b", 1, d), f.index("e", 1, R.shape[1])
                W_out, y = self.m.arrays["W_out"], self.m.role("output")
                y[head.i, b] = sum_(R[head.i, e] * W_out[e, b], over=e)
        return self.m

    def rows(self, head: Head) -> Rule:
        """Define queries and keys (groups, l, K), normalised, the queries scaled; values (heads, l,
        V); and degrees (heads, l), sigmoids, doubled with the option `negative`."""
        sizes, i, j, p, c = head.sizes, head.i, head.group, head.p, head.c
        keys, own = (sizes.heads[0], head.l, sizes.key), (j - 1) * sizes.key + p
        values = (*sizes.heads, head.l, sizes.value)

        def normed(name: str) -> Array:
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
        """The map W_name of x by heads, of extents `shape`; without `core` the silu of its short
        convolution. `at` are the indices of an entry, `column` is its column in W_name."""
        X = head.define(f"X_{name}", shape, at, head.mapped(f"W_{name}", column))
        if self.core:
            return X
        taps = self.m.arrays[f"w_{name}"]
        s = head.f.index("s", 1, taps.shape[0])
        short = short_convolution(X[at], taps[s, column], along=head.i, taps=s)
        C = head.define(f"C_{name}", shape, at, short)
        return head.define(f"H_{name}", shape, at, function("silu", C[at]))

    def read(self, head: Head, rule: Callable[[Read], None]) -> Array:
        """R (l, n V), the rows before W_out: what the rule reads; without `core` normalised, and
        multiplied by the gate if there is one."""
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
    """A mixer of this family with its input x and output y (l, d) declared."""
    m = Mixer(name, title=title, idea=idea, source=source, group="delta", **other)
    l, d = m.sizes("l d")
    m.input("x", l, d)
    m.output("y", l, d)
    return m


@offering(CORE)
def deltanet(chosen: Chosen) -> Mixer:
    """DeltaNet: a matrix S of each head, which each row corrects at its key; without decay."""
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
    """The logarithm of a head's decay at row i, -exp(A_log) softplus(x W_a + dt)."""
    number, arrays = head.column(), head.arrays
    A = head.define("A", head.sizes.heads, head.at, -exp(arrays["A_log"][number]))
    inside = head.mapped("W_a", number, i) + arrays["dt"][number]
    return A[head.at] * function("softplus", inside)


def silu_gate(head: Head) -> Node:
    """silu(x W_z)."""
    return function("silu", head.mapped("W_z", head.column(head.sizes.value, head.c)))


@offering(CORE)
def gated_deltanet(chosen: Chosen) -> Mixer:
    """Gated DeltaNet: DeltaNet whose matrix decays by a factor for each head and row, with n heads
    of values in g groups that share a query and a key, and a silu gate (left out with `core`)."""
    m = started(
        "gated-deltanet",
        "Gated DeltaNet",
        "DeltaNet whose matrix decays, by a factor per head",
        "Yang et al. 2024, arXiv 2412.06464, sections 3.1 and 3.4; fewer heads of keys as in "
        "Qwen3-Next",
        aliases=("gdn",),
    )
    d, n, K, V = m.sizes("d n K V")
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
    """-exp(A_log) softplus(x W_f W_g + dt) of a channel of a head; A holds the first factor, F the
    first product."""
    A = head.define("A", head.sizes.heads, head.at, -exp(head.arrays["A_log"][head.group]))
    return A[head.at] * function("softplus", of_channel(head, i))


def bounded(head: Head, i: Index) -> Node:
    """-5 sigmoid(exp(A_log) (x W_f W_g + dt)) of a channel of a head; A holds exp(A_log)."""
    A = head.define("A", head.sizes.heads, head.at, exp(head.arrays["A_log"][head.group]))
    return LEAST_LOG * function("sigmoid", A[head.at] * of_channel(head, i))


def of_channel(head: Head, i: Index) -> Node:
    """x W_F U_F + dt at row i and a head's channel p, of which its decay is made; F holds x W_F."""
    (j,), p, arrays, h = head.at, head.p, head.arrays, head.sizes.key
    q = head.f.index("q", 1, h)
    F = head.define("F", (head.l, h), (i, q), head.mapped("W_F", q, i))
    own = (j - 1) * h + p
    return sum_(F[i, q] * arrays["U_F"][q, own], over=q) + arrays["dt"][own]


def sigmoid_gate(head: Head) -> Node:
    """The gate sigmoid(x W_G U_G) at a head's channel of values; G holds x W_G."""
    h, i = head.sizes.value, head.i
    q = head.f.index("q", 1, h)
    G = head.define("G", (head.l, h), (i, q), head.mapped("W_G", q))
    own = head.column(h, head.c)
    return function("sigmoid", sum_(G[i, q] * head.arrays["U_G"][q, own], over=q))


@offering(CORE | SAFE)
def kda(chosen: Chosen) -> Mixer:
    """Kimi Delta Attention: DeltaNet whose matrix decays by a factor for each channel of the keys
    and row (bounded with `safe-gate`), and a sigmoid gate (left out with `core`)."""
    m = started(
        "kda",
        "KDA",
        "DeltaNet whose matrix decays, by a factor per channel",
        "Kimi Team 2025, arXiv 2510.26692, sections 3 and 4",
    )
    d, n, h = m.sizes("d n h")
    decay = bounded if "safe-gate" in chosen else per_channel
    layer = Layer(m, Sizes((n,), h, h), chosen, decay, True, sigmoid_gate)
    layer.parameters()
    m.parameter("W_F", d, h)
    m.parameter("U_F", h, n * h)
    m.parameter("A_log", n)
    m.parameter("dt", n * h)
    if "core" not in chosen:
        m.parameter("W_G", d, h)
        m.parameter("U_G", h, n * h)
    return layer.write()
