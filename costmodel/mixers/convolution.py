"""What are the equations of a convolution over the tokens, causal or centred?

Vaswani et al. 2017 compare self-attention with a convolutional layer in Table 1 without printing
its equations: every tap is a matrix, as in ByteNet and ConvS2S, which they name. Neither mixer has
a bias here. A tap that reaches past an end of the sequence has no term, which is what padding by
zeros gives.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.indices import max_, min_
from costmodel.language.writing import sum_
from costmodel.symbolic.polynomial import call

VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 1 and section 4"
TORCH = "torch.nn.Conv1d"


def convolution(name: str, title: str, idea: str, source: str, *, causal: bool) -> Mixer:
    """A convolution of k taps W[s], each a (d, d) matrix.

    Causal: tap s reads the row s-1 back. Otherwise tap s reads row i+s-c, where the centre c =
    floor((k+1)/2) is the tap of the token itself: of an even number of taps, one more lies ahead
    than behind, as with padding="same" of torch.nn.Conv1d.
    """
    m = Mixer(name, title=title, idea=idea, source=source, group="convolution", references=(TORCH,))
    l, d, k = m.sizes("l d k")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W = m.parameter("W", k, d, d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        if causal:
            s = f.index("s", 1, min_(k, i))
            row = i - s + 1
        else:
            centre = call("floor_div", k + 1, 2)
            s = f.index("s", max_(1, centre + 1 - i), min_(k, l + centre - i))
            row = i + s - centre
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
