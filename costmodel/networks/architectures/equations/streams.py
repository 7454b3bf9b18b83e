"""What are the equations of several residual streams with alternating updates, as in Gemma 3n?

Rows come as S streams of d channels. A layer predicts all streams from those of the layer before,
runs one (the active stream) through its sublayers, and corrects all by what this stream became.

Baykal et al. 2023, arXiv 2301.13310 (AltUp); transformers, Gemma3nTextAltUp.
"""

from __future__ import annotations

from fractions import Fraction

from costmodel.language.equations import Form, Mixer
from costmodel.language.macros.norms import rms_norm
from costmodel.language.nodes import Array, Constant
from costmodel.language.writing import function, maximum, sum_
from costmodel.networks.parts import RMS_EPS, noting
from costmodel.symbolic.polynomial import Poly

SOURCE = "Baykal et al. 2023, arXiv 2301.13310; transformers, Gemma3nTextAltUp"
LEAST = Constant(Poly.of(Fraction(1, 100_000)))
"""The least mean square by which streams are divided."""


def _made(name: str, title: str) -> Mixer:
    return Mixer(name, title=title, source=SOURCE, group="part of a network")


def several(m: Mixer) -> Poly:
    """Declare and return the number S of residual streams."""
    return m.size("S", "residual streams", 4)


def active_one(m: Mixer, S: Poly) -> Poly:
    """Declare and return the number A of the active one of S streams, from 1."""
    A = m.size("A", "number of the active stream", 1)
    m.at_most(A, S)
    return A


@noting
def active() -> Mixer:
    """Make the part "active stream", a mixer: the stream A of X (l, S, d), as rows y (l, d)."""
    m = _made("active-stream", "Active stream")
    (l, d), S = m.sizes("l d"), several(m)
    X, y, A = m.input("X", l, S, d), m.output("y", l, d), active_one(m, S)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = X[i, A, b]
    return m


@noting
def modalities() -> Mixer:
    """Make the part "modalities", a mixer of rows x (l, d) of the active stream to y (l, S) =
    tanh((norm(x) / d) W_M): the S numbers of a token that say how streams are mixed."""
    m = _made("modalities", "Modalities")
    (l, d), S = m.sizes("l d"), several(m)
    x, y = m.input("x", l, d), m.output("y", l, S)
    gain, W = m.parameter("gain_M", d), m.parameter("W_M", d, S)
    with m.form("direct") as f:
        i, k, a = f.index("i", 1, l), f.index("k", 1, S), f.index("a", 1, d)
        N, R = f.array("N", l, d), f.array("R", l, d)
        N[i, a] = rms_norm(x[i, a], over=a, gain=gain[a], eps=RMS_EPS)
        R[i, a] = N[i, a] / Constant(d)
        y[i, k] = function("tanh", sum_(R[i, a] * W[a, k], over=a))
    return m


@noting
def predicted() -> Mixer:
    """Make the part "predicted streams", a mixer of streams X (l, S, d) and modalities M (l, S) to
    y (l, S, d): X plus its streams mixed by S^2 coefficients, a linear map of M."""
    m = _made("predicted-streams", "Predicted streams")
    (l, d), S = m.sizes("l d"), several(m)
    X, M, y = m.input("X", l, S, d), m.input("M", l, S), m.output("y", l, S, d)
    W = m.parameter("W_C", S, S * S)
    with m.form("direct") as f:
        i, k, b = f.index("i", 1, l), f.index("k", 1, S), f.index("b", 1, d)
        p, r, C = f.index("p", 1, S), f.index("r", 1, S), f.array("C", l, S, S)
        C[i, k, p] = sum_(M[i, r] * W[r, (k - 1) * S + p], over=r)
        y[i, k, b] = sum_(X[i, p, b] * C[i, k, p], over=p) + X[i, k, b]
    return m


@noting
def corrected() -> Mixer:
    """Make the part "corrected streams", a mixer of predicted streams X (l, S, d), rows z (l, d)
    and modalities M (l, S) to y (l, S, d): X + (z - X_A)(1 + a linear map of M), X_A the active
    stream."""
    m = _made("corrected-streams", "Corrected streams")
    (l, d), S = m.sizes("l d"), several(m)
    X, z, M = m.input("X", l, S, d), m.input("z", l, d), m.input("M", l, S)
    y, W, A = m.output("y", l, S, d), m.parameter("W_K", S, S), active_one(m, S)
    with m.form("direct") as f:
        i, k, b, r = (f.index(*of) for of in (("i", 1, l), ("k", 1, S), ("b", 1, d), ("r", 1, S)))
        V, C = f.array("V", l, d), f.array("C", l, S)
        V[i, b] = z[i, b] - X[i, A, b]
        C[i, k] = sum_(M[i, r] * W[r, k], over=r) + 1
        y[i, k, b] = V[i, b] * C[i, k] + X[i, k, b]
    return m


@noting
def added() -> Mixer:
    """Make the part that adds rows z (l, d) to each of the streams X (l, S, d) but the first, a
    mixer of X and z to y (l, S, d)."""
    m = _made("added-to-streams", "Sum with all streams but the first")
    (l, d), S = m.sizes("l d"), several(m)
    X, z, y = m.input("X", l, S, d), m.input("z", l, d), m.output("y", l, S, d)
    with m.form("direct") as f:
        i, k, b = f.index("i", 1, l), f.index("k", 2, S), f.index("b", 1, d)
        y[i, 1, b] = X[i, 1, b]
        y[i, k, b] = X[i, k, b] + z[i, b]
    return m


@noting
def low_rank() -> Mixer:
    """Make the part "LAuReL" (a residual of low rank), a mixer of rows x (l, d) to y (l, d) =
    x + norm(x W_left W_right), with r channels between the two maps."""
    m = Mixer(
        "laurel", title="Residual of low rank", group="part of a network",
        source="Menghani et al. 2024, arXiv 2411.07501; transformers, Gemma3nTextLaurelBlock",
    )  # fmt: skip
    l, d = m.sizes("l d")
    r = m.size("r", "rank of the residual", 64)
    x, y, gain = m.input("x", l, d), m.output("y", l, d), m.parameter("gain_L", d)
    left, right = m.parameter("W_left", d, r), m.parameter("W_right", r, d)
    with m.form("direct") as f:
        i, b, a = f.index("i", 1, l), f.index("b", 1, d), f.index("a", 1, d)
        q, L = f.index("q", 1, r), f.array("L", l, r)
        R, N = f.array("R", l, d), f.array("N", l, d)
        L[i, q] = sum_(x[i, a] * left[a, q], over=a)
        R[i, b] = sum_(L[i, q] * right[q, b], over=q)
        N[i, b] = rms_norm(R[i, b], over=b, gain=gain[b], eps=RMS_EPS)
        y[i, b] = x[i, b] + N[i, b]
    return m


@noting
def joined() -> Mixer:
    """Make the part sum, y = (x + z + w) / sqrt(2), of a stream, attention and LAuReL (l, d)."""
    m = Mixer("sum-of-three", title="Sum over sqrt(2)", group="part of a network")
    l, d = m.sizes("l d")
    x, z, w = m.input("x", l, d), m.input("z", l, d), m.input("w", l, d)
    y = m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = (x[i, b] + z[i, b] + w[i, b]) / Constant(Poly.of(2), 1)
    return m


def _sized(f: Form, first: Array, mapped: Array) -> Array:
    """Define and return the streams k = 2..S of `mapped` (l, S, d) with each row scaled to the mean
    square of the row of `first` (l, d): times the root T of that, over the root N of its own."""
    l, S, d = mapped.shape
    i, k, b = (f.indices[name] for name in "ikb")
    T, N, y = f.array("T", l), f.array("N", l, S), f.array("sized", l, S, d)
    P, Q = f.array("squares", l, d), f.array("mapped_squares", l, S, d)
    P[i, b] = first[i, b] * first[i, b]
    Q[i, k, b] = mapped[i, k, b] * mapped[i, k, b]
    T[i] = function("sqrt", sum_(P[i, b], over=b) / d)
    N[i, k] = function("sqrt", maximum(sum_(Q[i, k, b], over=b) / d, LEAST))
    y[i, k, b] = mapped[i, k, b] * T[i] / N[i, k]
    return y


@noting
def opened() -> Mixer:
    """Make the part that opens streams, as a mixer of rows x (l, d) to y (l, S, d): stream 1 is x,
    the others are linear maps of x, each scaled row by row to the mean square of x."""
    m = _made("opened-streams", "Streams of embedded tokens")
    (l, d), S = m.sizes("l d"), several(m)
    x, y, W = m.input("x", l, d), m.output("y", l, S, d), m.parameter("W_S", S - 1, d, d)
    with m.form("direct") as f:
        i, k, b = f.index("i", 1, l), f.index("k", 2, S), f.index("b", 1, d)
        a, mapped = f.index("a", 1, d), f.array("mapped", l, S, d)
        mapped[i, k, b] = sum_(x[i, a] * W[k - 1, a, b], over=a)
        y[i, 1, b] = x[i, b]
        y[i, k, b] = _sized(f, x, mapped)[i, k, b]
    return m


@noting
def closed() -> Mixer:
    """Make the part that closes streams, as a mixer of X (l, S, d) to y (l, d): the mean of S
    streams, the first as it is, the others after linear maps, scaled to the first's mean square."""
    m = _made("closed-streams", "Mean of the streams")
    (l, d), S = m.sizes("l d"), several(m)
    X, y, W = m.input("X", l, S, d), m.output("y", l, d), m.parameter("W_S", S - 1, d, d)
    with m.form("direct") as f:
        i, k, b = f.index("i", 1, l), f.index("k", 2, S), f.index("b", 1, d)
        a, mapped, first = f.index("a", 1, d), f.array("mapped", l, S, d), f.array("first", l, d)
        mapped[i, k, b] = sum_(X[i, k, a] * W[k - 1, a, b], over=a)
        first[i, b] = X[i, 1, b]
        y[i, b] = (first[i, b] + sum_(_sized(f, first, mapped)[i, k, b], over=k)) / S
    return m
