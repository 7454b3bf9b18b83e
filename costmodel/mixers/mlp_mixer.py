"""What are the equations of MLP-Mixer's token mixing: one network of two layers for every channel?

Tolstikhin et al. 2021, equation (1), its first line: the column of each channel passes W_1, gelu
and W_2, shared by all channels. The hidden width, the paper's D_S, is f. Both layers have a bias,
as in the authors' code (github.com/google-research/vision_transformer, models_mixer.py); gelu is
exact, where the code takes its library's default. The norm before, the skip connection around, and
the mixing of channels belong to the network. Not causal.
"""

from __future__ import annotations

from costmodel.language.equations import Mixer
from costmodel.language.writing import function, sum_


def two_layers() -> Mixer:
    """Token mixing, with its one form."""
    m = Mixer(
        "mlp-mixer",
        title="MLP-Mixer, token mixing",
        idea="two linear maps over the tokens, gelu between them",
        source="Tolstikhin et al. 2021, arXiv 2105.01601, equation (1)",
        group="mlp",
    )
    l, d, f_ = m.sizes("l d f")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W_1, b_1 = m.parameter("W_1", l, f_), m.parameter("b_1", f_)
    W_2, b_2 = m.parameter("W_2", f_, l), m.parameter("b_2", l)
    with m.form("direct") as f:
        i, k, c, s = f.index("i", 1, l), f.index("k", 1, l), f.index("c", 1, d), f.index("s", 1, f_)
        H = f.array("H", d, f_)
        H[c, s] = function("gelu", sum_(x[k, c] * W_1[k, s], over=k) + b_1[s])
        y[i, c] = sum_(H[c, s] * W_2[s, i], over=s) + b_2[i]
    return m


mlp_mixer = two_layers()
