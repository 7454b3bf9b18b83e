"""What are the equations of diagonal state space models, S4D, DSS, H3 and GSS, and of SPADE?

Each channel has a state S of N complex numbers: S_i = E S_(i-1) + B u_i, y_i = Re(sum of C S_i) + D
u_i. Parameters alone give E = exp(step A) and B = (E - 1) / A (zero-order hold). `recurrent` is the
recurrence; `direct` and `fft` convolve with the kernel Re(sum over n of C B E^s), whose powers are
exponentials of s step A (a product with a Vandermonde matrix).

S4D, Gu et al. 2022, section 3 and the authors' s4d.py: the real part of A is -exp(log_A), B is 1
before discretisation, and the real part counts twice, for the complex conjugates. Gelu and a gated
linear unit follow, without their biases. DSS, Gupta et al. 2022, DSS_exp of proposition 1: one A
for all channels, and no conjugates. Option `softmax`, DSS_softmax: the powers of E are divided by
their sum over l rows, (E^l - 1) / (E - 1), and by A, whose real part may be positive. The offset
that the authors' code subtracts in exponents is left out. H3, Fu et al. 2022, with heads of one
channel: keys pass a shift model (a convolution with k taps) and are multiplied by the values; the
products pass S4D, and the queries multiply its result. GSS, Mehta et al. 2022, section 3.2: DSS of
r channels over normalised rows, with step 1 and an exponential as imaginary part of A, so that all
channels share the powers; the result is multiplied by a gate of width f.

SPADE, Zuo et al. 2022, section 4: S4, here S4D with gelu and a gated linear unit, beside
self-attention to the last w rows; both are normalised, and one linear map combines them. This is
the bottom layer; the other layers have the window alone. The norm before and the residual after
belong to the layer. In the authors' code (github.com/microsoft/EfficientLongSequenceModeling) the
window consists of blocks; its biases are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
from costmodel.language.indices import Index
from costmodel.language.macros.norms import layer_norm
from costmodel.language.macros.positions import short_convolution
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import exp, function, sum_
from costmodel.mixers.long_convolution import convolved, gated_linear_unit
from costmodel.mixers.pairs import attended, by_position
from costmodel.symbolic.polynomial import Poly

FORMS = ("recurrent", "direct", "fft")


@dataclass(frozen=True)
class Diagonal:
    """A diagonal state space model, whose parameters are declared in the mixer `m`. Step A is per
    channel if `own` or `stepped`."""

    m: Mixer
    own: bool
    """Whether each channel has its own A; else all channels share A."""
    conjugates: bool
    """Whether the real part counts twice, for the conjugates of the N states."""
    channels: str = "d"
    """The letter of the number of channels."""
    stepped: bool = True
    """Whether A is multiplied by a step; else the imaginary part of A is an exponential."""
    softmax: bool = False
    """Whether the powers of E are divided by their sum."""

    def read(self, f: Form, form: str, u: Array) -> Node:
        """Write the equations of the state space model, and return the expression of its output
        for rows u at row i, channel b: a recurrence in the form `recurrent`, else a convolution."""
        C = complex_(self.m.arrays["C"])
        E, B, T = self._discretised(f)
        if form == "recurrent":
            return self._carried(f, u, C, E, B)
        return convolved(f, form, u, self._kernel(f, u.shape[0], C, B, T), self.m.arrays["D"])

    def declare(self) -> None:
        """Declare the parameters: the logarithm of the step (if there is one), real and imaginary
        part of A (or their logarithms), C (channels, N states) as complex numbers, and D
        (channels,)."""
        d, N = self.m.sizes(f"{self.channels} N")
        if self.stepped:
            self.m.parameter("log_step", d)
        for name in self.parts:
            self.m.parameter(name, *((d, N) if self.own else (N,)))
        self.m.parameter("C", d, N, 2)
        self.m.parameter("D", d)

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the parameters that give the real and the imaginary part of A."""
        return "A_re" if self.softmax else "log_A", "A_im" if self.stepped else "log_A_im"

    def _discretised(self, f: Form) -> tuple[ComplexArray, ComplexArray, ComplexArray]:
        """Write the equations of the discrete model and return (E, B, T), complex, (d, N) or (N,):
        T is A times the step, or A; E = exp(T) is the factor of the state from row to row, and B =
        (E - 1) / A the factor of the input; with `softmax`, B = (E - 1) / (A (E^l - 1)). A
        division by a complex number is a product with its conjugate over Q, the squared absolute
        value; M: E - 1."""
        d, N = self.m.sizes(f"{self.channels} N")
        b, n = f.index("b", 1, d), f.index("o", 1, N)
        of: Any = (b, n) if self.own else n
        A, to = complex_(f.array("A", *self._extents(of), 2)), self.at(b, n)
        real, imaginary = (self.m.arrays[name][of] for name in self.parts)
        A[of] = Complex(
            real if self.softmax else -exp(real), imaginary if self.stepped else exp(imaginary)
        )
        T = A
        if self.stepped:
            step, T = f.array("step", d), complex_(f.array("T", d, N, 2))
            step[b] = exp(self.m.arrays["log_step"][b])
            T[to] = A[of] * step[b]
        M, B = (complex_(f.array(name, *self._extents(to), 2)) for name in "MB")
        E = self._power(f, "E", T, to)
        M[to] = E[to] - 1
        if self.softmax:
            A, of = self._times_the_rest(f, A, of, T, to), to
        Q = f.array("Q", *self._extents(of))
        Q[of] = A[of].squared
        B[to] = M[to] * A[of].conjugate / Q[of]
        return E, B, T

    def _power(self, f: Form, name: str, exponent: ComplexArray, at: Any) -> ComplexArray:
        """Define and return `name`, exp of a complex exponent at the indices `at`, by its two
        parts."""
        radius = f.array(f"G_{name}" if name != "E" else "G", *self._extents(at))
        power = complex_(f.array(name, *self._extents(at), 2))
        radius[at] = exp(exponent[at].real)
        power[at] = polar(radius[at], exponent[at].imag)
        return power

    def _times_the_rest(
        self, f: Form, A: ComplexArray, of: Any, T: ComplexArray, to: Any
    ) -> ComplexArray:
        """Define and return Y = A (E^l - 1): DSS_softmax divides E - 1 by Y, where the other models
        divide by A. `of` and `to` are the indices of A and of Y."""
        L, W, Y = (complex_(f.array(name, *self._extents(to), 2)) for name in "LWY")
        L[to] = T[to] * self.m.role("input").shape[0]
        W[to] = self._power(f, "E_l", L, to)[to] - 1
        Y[to] = W[to] * A[of]
        return Y

    def _extents(self, at: Any) -> tuple[Any, ...]:
        """The extents of an array with the indices `at`: (d, N), or (N,) for a single index."""
        d, N = self.m.sizes(f"{self.channels} N")
        return (d, N) if isinstance(at, tuple) else (N,)

    def at(self, b: Index, n: Index) -> Any:
        """The indices of step A: (b, n) if step A is per channel, else n."""
        return (b, n) if self.own or self.stepped else n

    def _carried(
        self, f: Form, u: Array, C: ComplexArray, E: ComplexArray, B: ComplexArray
    ) -> Node:
        """Write the equations of the states S by the recurrence S = E S' + B u (S': the row
        before), and return the expression of the output Re(C S) + D u at row i, channel b."""
        (l, d), (N,) = u.shape, self.m.sizes("N")
        i, later = f.index("i", 1, l), f.index("i2", 2, l)
        b, n = f.index("b", 1, d), f.index("o", 1, N)
        S, to = complex_pair(f.array("S_re", l, d, N), f.array("S_im", l, d, N)), self.at(b, n)
        S[1, b, n] = B[to] * u[1, b]
        S[later, b, n] = E[to] * S[later - 1, b, n] + B[to] * u[later, b]
        found = sum_((C[b, n] * S[i, b, n]).real, over=n)
        return self._twice(found) + self.m.arrays["D"][b] * u[i, b]

    def _kernel(self, f: Form, l: Poly, C: ComplexArray, B: ComplexArray, T: ComplexArray) -> Array:
        """Define and return K (l, d), the kernel at distance s - 1 and channel: the real part of
        the sum over states of P V, where P = C B, V = exp(X), X = (s-1) T; R is the absolute value
        of V."""
        d, N = self.m.sizes(f"{self.channels} N")
        s, b, n = f.index("s", 1, l), f.index("b", 1, d), f.index("o", 1, N)
        to = self.at(b, n)
        here: Any = (s, *to) if isinstance(to, tuple) else (s, to)  # `to` at distance s - 1
        P, X = complex_(f.array("P", d, N, 2)), complex_(f.array("X", l, *self._extents(to), 2))
        R, K = f.array("R", l, *self._extents(to)), f.array("K", l, d)
        V = complex_(f.array("V", l, *self._extents(to), 2))
        P[b, n] = C[b, n] * B[to]
        X[here] = T[to] * (s - 1)
        R[here] = exp(X[here].real)
        V[here] = polar(R[here], X[here].imag)
        K[s, b] = self._twice(complex_sum(P[b, n] * V[here], over=n).real)
        return K

    def _twice(self, real: Node) -> Node:
        return 2 * real if self.conjugates else real


def diagonal(
    name: str, title: str, idea: str, source: str, *, own: bool, softmax: bool = False
) -> Mixer:
    """The mixer S4D (`own`: A for each channel, conjugate states) or DSS (one A for all), then gelu
    and a gated linear unit; with `softmax` DSS_softmax. Forms: `recurrent`; `direct` and `fft`,
    which convolve."""
    m = Mixer(name, title=title, idea=idea, source=source, group="state-space")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    model = Diagonal(m, own=own, conjugates=own, softmax=softmax)
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


@offering({"softmax": "powers of E over their sum, DSS_softmax; A may have a positive real part"})
def dss(chosen: Chosen) -> Mixer:
    """The mixer DSS: one A for all channels; `softmax` divides the kernel's powers by their sum."""
    return diagonal(
        "dss",
        "DSS" if chosen else "DSS (exp)",
        "S4D with one A for all channels",
        "Gupta et al. 2022, arXiv 2203.14343, proposition 1",
        own=False,
        softmax=bool(chosen),
    )


def gated_state_space() -> Mixer:
    """The mixer GSS: a diagonal model of r normed channels u, mapped to f and times a gelu gate
    Z."""
    m = Mixer(
        "gss",
        title="GSS",
        idea="DSS of r channels, times a gate f wide",
        source="Mehta et al. 2022, arXiv 2206.13947, section 3.2",
        group="state-space",
    )
    l, d, f_, r = m.sizes("l d f r")  # tokens, channels, gate width, channels of the model
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_V, W_U = m.parameter("W_V", d, f_), m.parameter("W_U", d, r)
    gain, bias = m.parameter("gain", r), m.parameter("bias", r)
    model = Diagonal(m, own=False, conjugates=False, channels="r", stepped=False)
    model.declare()
    W_O, W_out = m.parameter("W_O", r, f_), m.parameter("W_out", f_, d)
    for form in FORMS:
        with m.form(form) as f:
            i, b = f.index("i", 1, l), f.index("b", 1, r)
            c, e = f.index("c", 1, d), f.index("e", 1, f_)
            Z, H = f.array("Z", l, f_), f.array("H", l, f_)
            U, u, O = (f.array(name, l, r) for name in ("U", "u", "O"))
            Z[i, e] = function("gelu", sum_(x[i, c] * W_V[c, e], over=c))
            U[i, b] = function("gelu", sum_(x[i, c] * W_U[c, b], over=c))
            u[i, b] = layer_norm(U[i, b], over=b, gain=gain[b], bias=bias[b])
            O[i, b] = model.read(f, form, u)
            H[i, e] = sum_(O[i, b] * W_O[b, e], over=b) * Z[i, e]
            y[i, c] = sum_(H[i, e] * W_out[e, c], over=e)
    return m


gss = gated_state_space()


def hungry() -> Mixer:
    """The mixer H3: W_out maps Q * S4D(V * Z), with Z a short convolution of K plus D_K K; Q, K and
    V (X_Q, X_K, X_V) are maps of x."""
    m = Mixer(
        "h3",
        title="H3",
        idea="q times S4D of v times a convolution of k",
        source="Fu et al. 2022, arXiv 2212.14052, section 3 and algorithm 1",
        group="state-space",
    )
    l, d, k = m.sizes("l d k")  # tokens, channels, taps
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


def augmented() -> Mixer:
    """The mixer of SPADE's bottom layer: y is a map of two layers of x side by side, both normed:
    S4D, gelu and a gated linear unit (Y_G), and attention in n heads to the last w rows (Y_L)."""
    m = Mixer(
        "spade",
        title="SPADE",
        idea="S4D and a window of w tokens, side by side, then one map",
        source="Zuo et al. 2022, arXiv 2212.08136, section 4",
        group="state-space",
    )
    l, d, *_ = m.sizes("l d n h w")
    x, y = m.input("x", l, d), m.output("y", l, d)
    model = Diagonal(m, own=True, conjugates=True)
    model.declare()
    W_1, W_2 = m.parameter("W_1", d, d), m.parameter("W_2", d, d)
    for one in ("Q", "K", "V", "out"):
        m.parameter(f"W_{one}_w", d, d)
    norms = {name: (m.parameter(f"g_{name}", d), m.parameter(f"b_{name}", d)) for name in "GL"}
    W = m.parameter("W", 2 * d, d)
    for form in FORMS:
        with m.form(form) as f:
            i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
            H, G_, L_ = (f.array(name, l, d) for name in ("H", "Y_G", "Y_L"))
            N_G, N_L = f.array("N_G", l, d), f.array("N_L", l, d)
            H[i, b] = function("gelu", model.read(f, form, x))
            G_[i, b] = gated_linear_unit(H, W_1, W_2, i, a, b)
            R = attended(f, x, partial(by_position, ahead=Poly()), after="_w")
            L_[i, b] = sum_(R[i, a] * m.arrays["W_out_w"][a, b], over=a)
            for normed, rows, (gain, bias) in zip(
                (N_G, N_L), (G_, L_), norms.values(), strict=True
            ):
                normed[i, b] = layer_norm(rows[i, b], over=b, gain=gain[b], bias=bias[b])
            y[i, b] = sum_(N_G[i, a] * W[a, b], over=a) + sum_(N_L[i, a] * W[d + a, b], over=a)
    return m


spade = augmented()
