"""How does a test load our weights into somebody else's convolutions, short and long?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.references.comparison import Comparison, compared, fill, linear, made_in_float64
from tests.references.packages import Weights

SAFARI = "HazyResearch/safari"
FAIRSEQ = "facebookresearch/fairseq"
DYNAMIC = "fairseq.modules.dynamic_convolution.DynamicConv1dTBC"
HEAVY = ("fairseq", "fairseq.modules")
"""Packages whose own code imports all of fairseq."""


@compared("hyena", SAFARI, "standalone_hyena.HyenaOperator", l=7, d=4, k=3, F=5)
@compared("hyena", SAFARI, "standalone_hyena.HyenaOperator", l=4, d=3, k=3, F=2)
def hyena(of: Any, ours: Weights, each: Comparison) -> Any:
    """The whole layer, in float64 from the start: positions and windows are tables."""
    d, l, F = (each.sizes[letter] for letter in "dlF")
    with made_in_float64():
        theirs = of(d, l, filter_order=F)
    of_maps = "GEV"
    W, b, added = (torch.cat([ours[f"{x}_{n}"] for n in of_maps], -1) for x in "Wbc")
    taps = torch.cat([ours[f"w_{n}"] for n in of_maps], 1).flip(0).t().unsqueeze(1)
    linear(theirs.in_proj, W, b)
    fill((theirs.short_filter.weight, taps), (theirs.short_filter.bias, added))
    *layers, last = (each for each in theirs.filter_fn.implicit_filter if hasattr(each, "weight"))
    for number, layer in enumerate(layers, 1):
        linear(layer, ours[f"A_{number}"], ours[f"a_{number}"])
    linear(last, ours["A_K"])
    fill(
        (theirs.filter_fn.implicit_filter[1].freq, ours["omega"][None]),
        (theirs.filter_fn.bias, ours["D"]),
    )
    linear(theirs.out_proj, ours["W_out"], ours["b_out"])
    return theirs


@compared("long-convolution", SAFARI, "standalone_long_convs.LongConv", l=7, d=4)
@compared("long-convolution", SAFARI, "standalone_long_convs.LongConv", l=4, d=3)
def long_convolution(of: Any, ours: Weights, each: Comparison) -> Any:
    """One of their channels; the second half of their kernel, which reads later rows, is 0."""
    d, l = each.sizes["d"], each.sizes["l"]
    theirs = of(d, l, channels=1, dropout=0.0).double()
    kernel = torch.cat([ours["w"], torch.zeros_like(ours["w"])]).t()
    fill((theirs.kernel, kernel[None]), (theirs.D, ours["D"][None]))
    linear(theirs.output_linear[0], torch.cat([ours["W_1"], ours["W_2"]], 1))
    return lambda x: theirs(x.mT).mT


@compared("dynamic-convolution", FAIRSEQ, DYNAMIC, HEAVY, l=7, d=6, n=2, k=3)
@compared("dynamic-convolution", FAIRSEQ, DYNAMIC, HEAVY, l=5, d=4, n=4, k=4)
@compared("dynamic-convolution+centred", FAIRSEQ, DYNAMIC, HEAVY, l=7, d=6, n=2, k=3)
@compared("dynamic-convolution+centred", FAIRSEQ, DYNAMIC, HEAVY, l=8, d=4, n=1, k=5)
def dynamic_convolution(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their convolution between our maps; causal, the token itself is last of their taps, and the
    last three rows are read one by one from their buffer of earlier rows."""
    d, n, k = (each.sizes[letter] for letter in "dnk")
    centred = "centred" in each.options
    theirs = of(d, k, (k - 1) // 2 if centred else k - 1, n, weight_softmax=True).double().eval()
    weight = ours["W"] if centred else ours["W"].flip(1)
    fill((theirs.weight_linear.weight, weight.flatten(0, 1)))

    def read(x: Tensor) -> Any:
        rows = (x @ ours["W_1"] * torch.sigmoid(x @ ours["W_2"])).transpose(0, 1).contiguous()
        found = theirs(rows)
        if not centred:
            state: dict[str, Tensor] = {}
            found[-3:] = torch.cat([theirs(row[None], state) for row in rows])[-3:]
        return found.transpose(0, 1) @ ours["W_out"]

    return read


@compared("convmixer", "locuslab/convmixer", "convmixer.ConvMixer", l=7, d=4, k=3)
@compared("convmixer", "locuslab/convmixer", "convmixer.ConvMixer", l=5, d=3, k=4)
def convmixer(of: Any, ours: Weights, each: Comparison) -> Any:
    """Their first layer, of an image that is one pixel wide: the other columns of its kernel read
    what is beside the image. Means and variances of a batch norm are 0 and 1, and nothing is
    added."""
    d, k = each.sizes["d"], each.sizes["k"]
    residual, mix, _, last = layer = of(d, depth=1, kernel_size=k)[3].double().eval()
    convolution, _, first = residual.fn
    kernel = torch.zeros_like(convolution.weight)
    kernel[:, 0, :, (k - 1) // 2] = ours["W"].t()
    fill(
        (convolution.weight, kernel),
        (convolution.bias, ours["b_W"]),
        (mix.weight, ours["W_out"].t()[:, :, None, None]),
        (mix.bias, ours["b_out"]),
    )
    for norm, name in ((first, "W"), (last, "out")):
        norm.eps = 0.0
        fill((norm.weight, ours[f"gain_{name}"]), (norm.bias, ours[f"bias_{name}"]))
    return lambda x: layer(x.mT[..., None])[..., 0].mT
