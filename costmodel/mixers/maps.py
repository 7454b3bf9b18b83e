"""What are the equations of mixers with a fixed linear map over positions: learned (MLP-Mixer,
gMLP, aMLP) or Fourier (FNet)?

MLP-Mixer, Tolstikhin et al. 2021, first line of equation (1): along the sequence, each channel
passes W_1, gelu and W_2, which all channels share. The hidden width f is D_S in the paper. Both
layers have a bias, as in the authors' code (github.com/google-research/vision_transformer,
models_mixer.py); gelu is exact, where the code has its library's default. Not causal.

gMLP, Liu et al. 2021, equations (1)-(4): of the paper's d_ffn = 2f channels, one half is multiplied
by the other half, which is normalised and mixed over positions by an (l, l) matrix. As in the
paper's code (appendix), all layers have a bias; the matrix has one bias per position. aMLP adds to
the gate a single attention head of width K on the block's input; its first layer has no bias, as in
g-mlp-pytorch. `causal` keeps the lower triangle of matrix and attention, as in g-mlp-pytorch.

FNet, Lee-Thorp et al. 2021, equation (3): the real part of the discrete Fourier transform over
channels, then tokens. `direct` multiplies by matrices of cosines and sines, as the authors' code
does for up to 4096 tokens on a TPU; `fft` transforms, like its jnp.fft.fft2 of complex numbers.
All rows read all tokens, so that there is no one-token inference.

Norms before the mixers and skip connections around them belong to the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel.language.complex_numbers import Complex, complex_
from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.macros.norms import layer_norm
from costmodel.language.macros.softmax import scaled, softmax
from costmodel.language.nodes import Array, node
from costmodel.language.options import Family, offering
from costmodel.language.writing import fft, function, sum_
from costmodel.symbolic.polynomial import Poly


def token_mixing() -> Mixer:
    """The mixer of MLP-Mixer's token mixing: each channel's l entries through W_1, gelu and W_2."""
    m = Mixer(
        "mlp-mixer",
        title="MLP-Mixer, token mixing",
        idea="two linear maps over the tokens, gelu between them",
        source="Tolstikhin et al. 2021, arXiv 2105.01601, equation (1)",
        group="mlp",
    )
    l, d, f_ = m.sizes("l d f")  # tokens, channels, channels between the maps
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_1, b_1 = m.parameter("W_1", l, f_), m.parameter("b_1", f_)
    W_2, b_2 = m.parameter("W_2", f_, l), m.parameter("b_2", l)
    with m.form("direct") as f:
        i, k, c, s = f.index("i", 1, l), f.index("k", 1, l), f.index("c", 1, d), f.index("s", 1, f_)
        H = f.array("H", d, f_)
        H[c, s] = function("gelu", sum_(x[k, c] * W_1[k, s], over=k) + b_1[s])
        y[i, c] = sum_(H[c, s] * W_2[s, i], over=s) + b_2[i]
    return m


def tiny_attention(f: Form, x: Array, k: Index, width: Poly) -> Array:
    """Write the equations of a single attention head of width K, projected to T (l, width), and
    return T; `k` is the index of the rows attended to. Its weights are declared here."""
    (l, d), (K_,) = x.shape, f.mixer.sizes("K")
    i, a, c = f.index("i", 1, l), f.index("a", 1, d), f.index("p", 1, K_)
    e = f.index("e", 1, width)
    Q, K, V = (f.array(name, l, K_) for name in "QKV")
    for rows in (Q, K, V):
        W = f.mixer.parameter(f"W_{rows.name}", d, K_)
        rows[i, c] = sum_(x[i, a] * W[a, c], over=a)
    W_T, b_T = f.mixer.parameter("W_T", K_, width), f.mixer.parameter("b_T", width)
    Z, A, R = f.array("Z", l, l), f.array("A", l, l), f.array("R", l, K_)
    T = f.array("T", l, width)
    Z[i, k] = scaled(sum_(Q[i, c] * K[k, c], over=c), by=K_)
    A[i, k] = softmax(Z[i, k], over=k)
    R[i, c] = sum_(A[i, k] * V[k, c], over=k)
    T[i, e] = sum_(R[i, c] * W_T[c, e], over=c) + b_T[e]
    return T


def gated(name: str, title: str, idea: str, *, causal: bool, attends: bool) -> Mixer:
    """The mixer gMLP: of two gelu maps of x to f channels, U and G, the second is normalised (S),
    mixed over rows by W (l, l), rows k <= i if `causal`, and multiplies the first; `attends`
    (aMLP): the mixture F also gets an attention head. The texts are those of `Mixer`."""
    source = "Liu et al. 2021, arXiv 2105.08050, equations (1)-(4)"
    m = Mixer(name, title=title, idea=idea, source=source, group="mlp")
    l, d, f_ = m.sizes("l d f")  # tokens, channels, channels between the maps
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_U, b_U = m.parameter("W_U", d, f_), m.parameter("b_U", f_)
    W_G, b_G = m.parameter("W_G", d, f_), m.parameter("b_G", f_)
    gain, bias = m.parameter("gain", f_), m.parameter("bias", f_)
    W, w = m.parameter("W", l, l), m.parameter("w", l)
    W_out, b_out = m.parameter("W_out", f_, d), m.parameter("b_out", d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        e, k = f.index("e", 1, f_), f.index("k", 1, i if causal else l)
        U, G, S = f.array("U", l, f_), f.array("G", l, f_), f.array("S", l, f_)
        F, P = f.array("F", l, f_), f.array("P", l, f_)
        U[i, e] = function("gelu", sum_(x[i, a] * W_U[a, e], over=a) + b_U[e])
        G[i, e] = function("gelu", sum_(x[i, a] * W_G[a, e], over=a) + b_G[e])
        S[i, e] = layer_norm(G[i, e], over=e, gain=gain[e], bias=bias[e])
        mixed = sum_(W[i, k] * S[k, e], over=k) + w[i]
        F[i, e] = mixed + tiny_attention(f, x, k, f_)[i, e] if attends else mixed
        P[i, e] = U[i, e] * F[i, e]
        y[i, b] = sum_(P[i, e] * W_out[e, b], over=e) + b_out[b]
    return m


def gating(name: str, title: str, idea: str, *, attends: bool) -> Family:
    """`gated` over all positions, with the option `causal`."""
    return offering({"causal": "a position reads itself and those before it"})(
        lambda chosen: gated(name, title, idea, causal="causal" in chosen, attends=attends)
    )


def fourier() -> Mixer:
    """The mixer FNet: the real part of the Fourier transform over channels (U, V or H), then rows.
    Form `direct` multiplies by matrices of cosines C and sines S, `fft` uses fast transforms."""
    m = Mixer(
        "fnet",
        title="FNet",
        idea="real part of a Fourier transform of tokens and channels",
        source="Lee-Thorp et al. 2021, arXiv 2105.03824, equation (3)",
        group="fourier",
    )
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d, cite="(3)")

    def table(name: str, points: Poly) -> tuple[Array, Array]:
        """The declared matrices of cosines C and of sines S (points, points), entry (k, q) at the
        angle 2 pi (k - 1) (q - 1) / points, which a transform of this length multiplies by."""

        def angle(k: int, q: int, sizes: Mapping[str, int]) -> float:
            return 2 * math.pi * ((k - 1) * (q - 1) % points.at(sizes)) / points.at(sizes)

        return (
            m.buffer(f"C_{name}", points, points, value=lambda *at: math.cos(angle(*at))),
            m.buffer(f"S_{name}", points, points, value=lambda *at: math.sin(angle(*at))),
        )

    (C_d, S_d), (C_l, S_l) = table("d", d), table("l", l)
    with m.form("direct") as f:
        i, k = f.index("i", 1, l), f.index("k", 1, l)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        U, V = f.array("U", l, d), f.array("V", l, d)
        U[k, b] = sum_(x[k, a] * C_d[a, b], over=a)
        V[k, b] = sum_(x[k, a] * S_d[a, b], over=a)
        y[i, b] = sum_(C_l[i, k] * U[k, b], over=k) - sum_(S_l[i, k] * V[k, b], over=k)
    with m.form("fft") as f:
        i, k = f.index("i", 1, l), f.index("k", 1, l)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        p, q = f.index("p", 1, 2), f.index("q", 1, 2)
        X, H, F = (f.array(name, l, d, 2) for name in "XHF")
        complex_(X)[k, a] = Complex(x[k, a], node(0))
        H[k, b, q] = fft(X[k, a, p], over=(a, p), length=d)
        F[i, b, q] = fft(H[k, b, p], over=(k, p), length=l)
        y[i, b] = complex_(F)[i, b].real
    return m


mlp_mixer = token_mixing()
gmlp = gating(
    "gmlp", "gMLP", "half of the channels times the other, mixed along tokens", attends=False
)
amlp = gating("amlp", "aMLP", "gMLP with one small head of attention in its gate", attends=True)
fnet = fourier()
