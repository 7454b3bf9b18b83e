"""What are the equations of diagonal state space models: S4D, DSS and H3?

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
from costmodel.language.macros.positions import short_convolution
from costmodel.language.nodes import Array, Node
from costmodel.language.writing import exp, function, sum_
from costmodel.mixers.long_convolution import convolved, gated_linear_unit

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
