"""What are the equations of a convolution over tokens: with matrices, light, dynamic, ConvMixer?

Convolution with matrices: Vaswani et al. 2017 compare self-attention with a convolutional layer in
Table 1, without its equations. A tap is a matrix, as in ByteNet and ConvS2S, which they name. There
are no biases. A tap past an end of the sequence has no term, which equals zero padding.

Light and dynamic convolution, Wu et al. 2019: a depthwise convolution whose k taps are numbers that
the channels of a head share, after a softmax over the taps. A dynamic convolution computes the taps
by a linear map of the token. A gated linear unit precedes, a linear map follows. By default they
are causal, as in the paper's decoder; `centred` is its encoder, with the token itself at tap
floor((k+1)/2). The softmax runs over all k taps, also taps past an end, as in the authors' code
(fairseq, LightweightConv1dTBC and DynamicConv1dTBC), whose biases are left out, as in the paper.

ConvMixer, Trockman and Kolter 2022, one layer: a depthwise convolution, gelu and batch
normalisation, added to the input; then a linear map of the channels, gelu and batch normalisation.
The paper's k x k patches are one-dimensional here. A batch normalisation with fixed statistics is a
factor and an offset per channel, here called gain and bias.
"""

from __future__ import annotations

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index, max_, min_
from costmodel.language.macros.softmax import softmax
from costmodel.language.options import Family, offering
from costmodel.language.writing import function, sum_
from costmodel.symbolic.polynomial import Poly, call

VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 1 and section 4"
TORCH = "torch.nn.Conv1d"


def tap_and_row(f: Form, i: Index, l: Poly, k: Poly, *, causal: bool) -> tuple[Index, Poly]:
    """(s, row): the index s of those of k taps that lie within the sequence of l rows at row i, and
    the row that tap s reads: i - s + 1 if `causal`, else a row around i."""
    if causal:
        s = f.index("s", 1, min_(k, i))
        return s, i - s + 1
    centre = call("floor_div", k + 1, 2)
    s = f.index("s", max_(1, centre + 1 - i), min_(k, l + centre - i))
    return s, i + s - centre


def convolution(name: str, title: str, idea: str, source: str, *, causal: bool) -> Mixer:
    """The mixer of a convolution of k taps W[s], each a (d, d) matrix; the texts are `Mixer`'s.

    At row i, tap s reads row i-s+1 if causal, else row i+s-c, where c = floor((k+1)/2) is the tap
    of the token itself. With k even, one more tap lies ahead than behind, as with padding="same" of
    torch.nn.Conv1d.
    """
    m = Mixer(name, title=title, idea=idea, source=source, group="convolution", references=(TORCH,))
    l, d, k = m.sizes("l d k")  # tokens, channels, taps
    x, y = m.input("x", l, d), m.output("y", l, d)
    W = m.parameter("W", k, d, d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        s, row = tap_and_row(f, i, l, k, causal=causal)
        y[i, b] = sum_(x[row, a] * W[s, a, b], over=(s, a))
    return m


convolution_causal = convolution(
    "convolution", "Convolution", "a matrix for each of the last k tokens", VASWANI, causal=True
)
convolution_same = convolution(
    "convolution-same",
    "Convolution, centred",
    "a matrix for each of the k tokens around",
    f"{VASWANI}; padded as by {TORCH}",
    causal=False,
)


def by_channel(name: str, title: str, idea: str, *, dynamic: bool, causal: bool) -> Mixer:
    """The mixer of light convolution: for each of n heads a softmax over k weights, the taps, which
    all channels of the head share; if `dynamic`, the softmax is of a map of each row. Rows are
    gated by a sigmoid (GLU) before, and W_out follows. `causal`: the taps read the last k rows,
    else rows around. The texts are `Mixer`'s."""
    source = "Wu et al. 2019, arXiv 1901.10430, sections 3 and 4"
    m = Mixer(name, title=title, idea=idea, source=source, group="convolution")
    l, d, n, h, k = m.sizes("l d n h k")  # tokens, channels, heads, channels a head, taps
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_1, W_2 = m.parameter("W_1", d, d), m.parameter("W_2", d, d)
    W = m.parameter("W", n, k, d) if dynamic else m.parameter("W", n, k)
    W_out = m.parameter("W_out", d, d)
    with m.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        a, b, p = f.index("a", 1, d), f.index("b", 1, d), f.index("p", 1, k)
        s, row = tap_and_row(f, i, l, k, causal=causal)
        # gates, gated rows, weighted sums of these
        S, G, R = f.array("S", l, d), f.array("G", l, d), f.array("R", l, d)
        S[i, b] = function("sigmoid", sum_(x[i, a] * W_2[a, b], over=a))
        G[i, b] = sum_(x[i, a] * W_1[a, b], over=a) * S[i, b]
        column = (j - 1) * h + c
        if dynamic:
            Z, A = f.array("Z", n, l, k), f.array("A", n, l, k)
            Z[j, i, p] = sum_(W[j, p, a] * G[i, a], over=a)
            A[j, i, p] = softmax(Z[j, i, p], over=p)
            weight = A[j, i, s]
        else:
            A = f.array("A", n, k)
            A[j, p] = softmax(W[j, p], over=p)
            weight = A[j, s]
        R[i, column] = sum_(weight * G[row, column], over=s)
        y[i, b] = sum_(R[i, a] * W_out[a, b], over=a)
    return m


def of_heads(name: str, title: str, idea: str, *, dynamic: bool) -> Family:
    """The function (chosen options -> mixer) of light or dynamic convolution: over the last k
    tokens or, with the option `centred`, the k tokens around."""
    return offering({"centred": "the k tokens around, as in an encoder"})(
        lambda chosen: by_channel(
            name, title, idea, dynamic=dynamic, causal="centred" not in chosen
        )
    )


light = of_heads(
    "light-convolution",
    "Light convolution",
    "a softmax over k taps, the same for a head's channels",
    dynamic=False,
)
dynamic = of_heads(
    "dynamic-convolution",
    "Dynamic convolution",
    "k taps for each head, which each token makes itself",
    dynamic=True,
)


def depthwise_and_pointwise() -> Mixer:
    """The mixer ConvMixer, one layer: a depthwise convolution around the token, gelu, gain and bias
    (a batch norm), the input added; then a linear map, gelu, gain and bias."""
    m = Mixer(
        "convmixer",
        title="ConvMixer",
        idea="a weight for each tap and channel, then a linear map",
        source="Trockman and Kolter 2022, arXiv 2201.09792, equations (2)-(3)",
        group="convolution",
    )
    l, d, k = m.sizes("l d k")  # tokens, channels, taps
    x, y = m.input("x", l, d), m.output("y", l, d)
    W, b_W = m.parameter("W", k, d), m.parameter("b_W", d)
    gain_W, bias_W = m.parameter("gain_W", d), m.parameter("bias_W", d)
    W_out, b_out = m.parameter("W_out", d, d), m.parameter("b_out", d)
    gain_out, bias_out = m.parameter("gain_out", d), m.parameter("bias_out", d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        s, row = tap_and_row(f, i, l, k, causal=False)  # the tap, and the row that it reads
        H, Z, U = f.array("H", l, d), f.array("Z", l, d), f.array("U", l, d)
        H[i, b] = function("gelu", sum_(x[row, b] * W[s, b], over=s) + b_W[b])
        Z[i, b] = H[i, b] * gain_W[b] + bias_W[b] + x[i, b]  # batch norm, input added
        U[i, b] = function("gelu", sum_(Z[i, a] * W_out[a, b], over=a) + b_out[b])
        y[i, b] = U[i, b] * gain_out[b] + bias_out[b]
    return m


convmixer = depthwise_and_pointwise()
