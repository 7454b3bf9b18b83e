"""What are the equations of diagonal state space models, S4D, DSS and H3, and of Mega's attention?

Each channel has N complex numbers, of which those of the next row are E times these plus B times
the channel's entry; what is read is the real part of their sum, weighted by C. E = exp(step A) and
B = (E - 1) / A are made of parameters alone (zero-order hold). `recurrent` carries the numbers from
row to row; `direct` and `fft` convolve with a kernel, a sum over n of C B E^s, whose powers are
taken as exponentials of multiples of step A (the product with a Vandermonde matrix).

S4D, Gu et al. 2022, section 3 and the authors' s4d.py: the real part of A is -exp(log_A), B is 1
before discretisation, and the real part stands twice, for the conjugates. Gelu and a gated linear
unit follow, whose biases are left out. DSS, Gupta et al. 2022, DSS_exp of proposition 1: one A for
all channels, and no conjugates. H3, Fu et al. 2022, with heads of one channel: keys pass a shift
model, which is a convolution of k rows, their products with the values the diagonal one of S4D, and
queries multiply what is read.

Mega, Ma et al. 2022, section 3: the numbers are real and make a moving average, of which a row
keeps 1 - alpha delta and takes in alpha beta x, alpha and delta being sigmoids of parameters. Of
the averages X are made the queries and keys of one head, the gate gamma of what it reads (reset)
and phi of its result (update). The head is causal; the bias P has a number for each distance, which
is one of the paper's choices. With `chunk`, the averages alone cross from a chunk into the next.
The authors' code (github.com/facebookresearch/mega) has silu(X / sqrt(N) + omega x) for X, scales
queries in place of scores, and writes x + phi (H - x) for phi H + (1 - phi) x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.language.complex_numbers import (
    Complex,
    ComplexArray,
    complex_,
    complex_pair,
    complex_sum,
    polar,
)
from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, min_
from costmodel.language.macros.positions import short_convolution
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, sum_
from costmodel.mixers.extractor import fft_vectors
from costmodel.mixers.long_convolution import convolved, gated_linear_unit
from costmodel.symbolic.polynomial import Poly

FORMS = ("recurrent", "direct", "fft")


@dataclass(frozen=True)
class Diagonal:
    """The parameters of a diagonal model; A is each channel's own, or the same for all."""

    m: Mixer
    own: bool
    conjugates: bool

    def read(self, f: Form, form: str, u: Array) -> Node:
        """What is read at row i, channel b, of the model over rows u, plus D times the row."""
        C = complex_(self.m.arrays["C"])
        E, B, T = self._discretised(f)
        if form == "recurrent":
            return self._carried(f, u, C, E, B)
        return convolved(f, form, u, self._kernel(f, C, B, T), self.m.arrays["D"])

    def declare(self) -> None:
        """Step, A, C and D."""
        d, N = self.m.sizes("d N")
        self.m.parameter("log_step", d)
        for name in ("log_A", "A_im"):
            self.m.parameter(name, *((d, N) if self.own else (N,)))
        self.m.parameter("C", d, N, 2)
        self.m.parameter("D", d)

    def _discretised(self, f: Form) -> tuple[ComplexArray, ComplexArray, ComplexArray]:
        """E, B, and step A."""
        given = self.m.arrays
        d, N = self.m.sizes("d N")
        b, n = f.index("b", 1, d), f.index("n", 1, N)
        at: Any = (b, n) if self.own else n
        extents = (d, N) if self.own else (N,)
        A, Q = complex_(f.array("A", *extents, 2)), f.array("Q", *extents)
        step, G = f.array("step", d), f.array("G", d, N)
        T, E, M, B = (complex_(f.array(name, d, N, 2)) for name in ("T", "E", "M", "B"))
        step[b] = exp(given["log_step"][b])
        A[at] = Complex(-exp(given["log_A"][at]), given["A_im"][at])
        Q[at] = A[at].squared
        T[b, n] = A[at] * step[b]
        G[b, n] = exp(T[b, n].real)
        E[b, n] = polar(G[b, n], T[b, n].imag)
        M[b, n] = E[b, n] - 1
        B[b, n] = M[b, n] * A[at].conjugate / Q[at]
        return E, B, T

    def _carried(
        self, f: Form, u: Array, C: ComplexArray, E: ComplexArray, B: ComplexArray
    ) -> Node:
        (l, d), (N,) = u.shape, self.m.sizes("N")
        i, later = f.index("i", 1, l), f.index("i2", 2, l)
        b, n = f.index("b", 1, d), f.index("n", 1, N)
        S = complex_pair(f.array("S_re", l, d, N), f.array("S_im", l, d, N))
        S[1, b, n] = B[b, n] * u[1, b]
        S[later, b, n] = E[b, n] * S[later - 1, b, n] + B[b, n] * u[later, b]
        found = sum_((C[b, n] * S[i, b, n]).real, over=n)
        return self._twice(found) + self.m.arrays["D"][b] * u[i, b]

    def _kernel(self, f: Form, C: ComplexArray, B: ComplexArray, T: ComplexArray) -> Array:
        """The kernel, a row for each distance."""
        l, d, N = self.m.sizes("l d N")
        s, b, n = f.index("s", 1, l), f.index("b", 1, d), f.index("n", 1, N)
        P, X = complex_(f.array("P", d, N, 2)), complex_(f.array("X", l, d, N, 2))
        R, V, K = f.array("R", l, d, N), complex_(f.array("V", l, d, N, 2)), f.array("K", l, d)
        P[b, n] = C[b, n] * B[b, n]
        X[s, b, n] = T[b, n] * (s - 1)
        R[s, b, n] = exp(X[s, b, n].real)
        V[s, b, n] = polar(R[s, b, n], X[s, b, n].imag)
        K[s, b] = self._twice(complex_sum(P[b, n] * V[s, b, n], over=n).real)
        return K

    def _twice(self, real: Node) -> Node:
        return 2 * real if self.conjugates else real


def diagonal(name: str, title: str, idea: str, source: str, *, own: bool) -> Mixer:
    """A diagonal model, gelu and a gated linear unit."""
    m = Mixer(name, title=title, idea=idea, source=source, group="state-space")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    model = Diagonal(m, own=own, conjugates=own)
    model.declare()
    W_1, W_2 = m.parameter("W_1", d, d), m.parameter("W_2", d, d)
    for form in FORMS:
        with m.form(form) as f:
            i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
            H = f.array("H", l, d)
            H[i, b] = function("gelu", model.read(f, form, x))
            y[i, b] = gated_linear_unit(H, W_1, W_2, i, a, b)
    return m


s4d = diagonal(
    "s4d",
    "S4D",
    "N complex numbers of each channel decay and turn",
    "Gu et al. 2022, arXiv 2206.11893, section 3",
    own=True,
)
dss = diagonal(
    "dss",
    "DSS (exp)",
    "S4D with one A for all channels",
    "Gupta et al. 2022, arXiv 2203.14343, proposition 1",
    own=False,
)


def hungry() -> Mixer:
    """H3."""
    m = Mixer(
        "h3",
        title="H3",
        idea="q times S4D of v times a convolution of k",
        source="Fu et al. 2022, arXiv 2212.14052, section 3 and algorithm 1",
        group="state-space",
    )
    l, d, k = m.sizes("l d k")
    x, y = m.input("x", l, d), m.output("y", l, d)
    maps = {name: m.parameter(f"W_{name}", d, d) for name in "QKV"}
    w_K, D_K = m.parameter("w_K", k, d), m.parameter("D_K", d)
    model = Diagonal(m, own=True, conjugates=True)
    model.declare()
    W_out = m.parameter("W_out", d, d)
    for form in FORMS:
        with m.form(form) as f:
            i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
            z = f.index("z", 1, k)
            Q_, K_, V_ = (f.array(f"X_{name}", l, d) for name in maps)
            for rows, W in zip((Q_, K_, V_), maps.values(), strict=True):
                rows[i, b] = sum_(x[i, a] * W[a, b], over=a)
            Z, u, H = f.array("Z", l, d), f.array("u", l, d), f.array("H", l, d)
            Z[i, b] = short_convolution(
                K_[i, b], w_K[z, b], along=i, taps=z, bias=D_K[b] * K_[i, b]
            )
            u[i, b] = Z[i, b] * V_[i, b]
            H[i, b] = model.read(f, form, u) * Q_[i, b]
            y[i, b] = sum_(H[i, a] * W_out[a, b], over=a)
    return m


h3 = hungry()


AVERAGE = ("alpha", "delta", "beta", "eta")


def moving_average(f: Form, *, carried: bool) -> Array:
    """X (l, d): of every channel its numbers, weighted by eta."""
    x, (l, d, N) = f.mixer.arrays["x"], f.mixer.sizes("l d N")
    alpha, delta, beta, eta = (f.mixer.arrays[name] for name in AVERAGE)
    i, b, n = f.index("i", 1, l), f.index("b", 1, d), f.index("n", 1, N)
    X, (G, E, B) = f.array("X", l, d), (f.array(name, d, N) for name in "GEB")
    G[b, n] = function("sigmoid", alpha[b, n])
    E[b, n] = 1 - G[b, n] * function("sigmoid", delta[b, n])
    B[b, n] = G[b, n] * beta[b, n]
    if carried:
        h, later = f.array("h", l, d, N), f.index("i2", 2, l)
        h[1, b, n] = B[b, n] * x[1, b]
        h[later, b, n] = B[b, n] * x[later, b] + E[b, n] * h[later - 1, b, n]
        X[i, b] = sum_(eta[b, n] * h[i, b, n], over=n)
        return X
    s, w, R = f.index("s", 1, l), f.array("w", l, d), f.array("R", l, d, N)
    T, D = f.array("T", d, N), f.array("D", d, N)
    T[b, n] = function("log", E[b, n])
    D[b, n] = eta[b, n] * B[b, n]
    R[s, b, n] = exp(T[b, n] * (s - 1))
    w[s, b] = sum_(D[b, n] * R[s, b, n], over=n)
    fft_vectors(f, x, w, X)
    return X


def read_by_one_head(f: Form, Z: Array, V: Array, *, chunked: bool) -> Array:
    """O, the rows of V weighted by a softmax; queries and keys are Z times kappa plus mu."""
    m, (l, K), (_, width) = f.mixer, Z.shape, V.shape
    (C,), P = m.arrays["P"].shape, m.arrays["P"]
    i, c, r = f.index("i", 1, l), f.index("c", 1, K), f.index("r", 1, width)
    Q, K_ = f.array("Q", l, K), f.array("K", l, K)
    for name, rows in (("Q", Q), ("K", K_)):
        rows[i, c] = m.arrays[f"kappa_{name}"][c] * Z[i, c] + m.arrays[f"mu_{name}"][c]
    first, row, at = Poly(), i, tuple[Index, ...]()
    if chunked:
        g = f.index("g", 1, l // C + 1)
        first, at = (g - 1) * C, (g,)
        row = f.index("e", 1, min_(C, l - first))
    k = f.index("k", 1, row)
    extents = (*(index.upper[0] for index in at), C, C)
    M, A, O = f.array("M", *extents), f.array("A", *extents), f.array("O", l, width)
    score = sum_(Q[first + row, c] * K_[first + k, c], over=c)
    M[*at, row, k] = scaled(score, by=K) + P[row - k + 1]
    A[*at, row, k] = softmax(M[*at, row, k], over=k)
    O[first + row, r] = sum_(A[*at, row, k] * V[first + k, r], over=k)
    return O


def affine(f: Form, rows: Array, name: str, o: Index) -> Node:
    """Row i of rows (l, d) times W plus b, at o."""
    i, a = f.index("i", 1, rows.shape[0]), f.index("a", 1, rows.shape[1])
    W, b = f.mixer.arrays[f"W_{name}"], f.mixer.arrays[f"b_{name}"]
    return sum_(rows[i, a] * W[a, o], over=a) + b[o]


@offering({"chunk": "a token attends to the earlier ones of its chunk of C alone"})
def mega(chosen: Chosen) -> Mixer:
    """Mega."""
    m = Mixer(
        "mega",
        title="Mega",
        idea="one gated head whose queries and keys are moving averages",
        source="Ma et al. 2022, arXiv 2209.10655, section 3",
        group="state-space",
    )
    l, d, N, K, v = m.sizes("l d N K v")
    C = m.sizes("C")[0] if chosen else l
    x, y = m.input("x", l, d), m.output("y", l, d)
    for name in AVERAGE:
        m.parameter(name, d, N, latex=rf"\{name}")
    widths = {"Z": K, "V": v * d, "gamma": v * d, "phi": d, "H": d}
    for name, width in widths.items():
        m.parameter(f"W_{name}", d, width)
        m.parameter(f"b_{name}", width)
    for name in "QK":
        m.parameter(f"kappa_{name}", K, latex=rf"\kappa_{name}")
        m.parameter(f"mu_{name}", K, latex=rf"\mu_{name}")
    m.parameter("P", C)
    U = m.parameter("U_H", v * d, d)
    for form in ("recurrent", "fft"):
        with m.form(form) as f:
            i, b = f.index("i", 1, l), f.index("b", 1, d)
            c, r = f.index("c", 1, K), f.index("r", 1, v * d)
            X, Z = moving_average(f, carried=form == "recurrent"), f.array("Z", l, K)
            phi, H = f.array("phi", l, d, latex=r"\varphi"), f.array("H", l, d)
            gamma = f.array("gamma", l, v * d, latex=r"\gamma")
            V, F = f.array("V", l, v * d), f.array("F", l, v * d)
            Z[i, c] = function("silu", affine(f, X, "Z", c))
            V[i, r] = function("silu", affine(f, x, "V", r))
            O = read_by_one_head(f, Z, V, chunked=bool(chosen))
            gamma[i, r] = function("silu", affine(f, X, "gamma", r))
            phi[i, b] = function("sigmoid", affine(f, X, "phi", b))
            F[i, r] = gamma[i, r] * O[i, r]
            H[i, b] = function("silu", affine(f, X, "H", b) + sum_(F[i, r] * U[r, b], over=r))
            y[i, b] = phi[i, b] * H[i, b] + (1 - phi[i, b]) * x[i, b]
    return m
