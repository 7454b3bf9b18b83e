"""Is a layer of ConvMixer that of section 2 of Trockman and Kolter 2022 (arXiv 2201.09792)?"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import costmodel as cm
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    operations,
    same,
    tensors,
)
from tests.small import by_sizes

SIZES: list[Sizes] = [
    {"l": 5, "d": 3, "k": 3},
    {"l": 4, "d": 2, "k": 5},
    {"l": 3, "d": 5, "k": 7},
    {"l": 1, "d": 1, "k": 1},
]
"""Odd widths, as the paper has them, some larger than the sequence."""
ROUNDING = 1e-12
"""Two products in a row of normal numbers, sums of at most 7 terms, in float64."""

each_size = by_sizes(SIZES)


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The authors' layers in torch, their normalisations with statistics 0 and 1."""
    d, k, weights = sizes["d"], sizes["k"], tensors(W)
    depthwise = nn.Conv1d(d, d, k, groups=d, padding="same")
    pointwise = nn.Conv1d(d, d, 1)
    norms = [nn.BatchNorm1d(d, eps=0.0).double().eval() for _ in range(2)]
    with torch.no_grad():
        for layer, weight, bias in (
            (depthwise, weights["W"].t().unsqueeze(1), weights["b_W"]),
            (pointwise, weights["W_out"].t().unsqueeze(2), weights["b_out"]),
        ):
            layer.double()
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)  # type: ignore[union-attr]
        for norm, name in zip(norms, ("W", "out"), strict=True):
            norm.weight.copy_(weights[f"gain_{name}"])
            norm.bias.copy_(weights[f"bias_{name}"])
        rows = torch.from_numpy(x).t().unsqueeze(0)
        rows = norms[0](nn.functional.gelu(depthwise(rows))) + rows
        found: Array = norms[1](nn.functional.gelu(pointwise(rows)))[0].t().numpy()
    return found


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper("convmixer", sizes, paper, ROUNDING)


def test_gathered_statistics_are_a_gain_and_a_bias() -> None:
    """(z - mean) / sqrt(variance) * gain + bias."""
    sizes = {"l": 5, "d": 3, "k": 3}
    arrays = drawn("convmixer", sizes)
    mean, deviation = np.array([1.0, -2.0, 3.0]), np.array([0.5, 2.0, 4.0])
    plain = {**arrays, "gain_out": np.ones(3), "bias_out": np.zeros(3)}
    folded = {**arrays, "gain_out": 1 / deviation, "bias_out": -mean / deviation}
    found, rows = (cm.evaluate(cm.mixer("convmixer"), given, sizes) for given in (folded, plain))
    same(found, (rows - mean) / deviation, ROUNDING)


def test_autograd_of_convmixer_equals_finite_differences() -> None:
    assert gradients_pass("convmixer", "conv", {"l": 3, "d": 2, "k": 2})


@each_size
def test_operations_and_parameters_of_convmixer_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Taps that read a row, two biases, two gelu of 3 products, 1 addition and 1 erf, two affine
    maps, the skip, and l rows times (d, d)."""
    l, d, k = (sizes[letter] for letter in "ldk")
    taps = sum(1 <= i + s - (k + 1) // 2 <= l for i in range(1, l + 1) for s in range(1, k + 1))
    assert operations("convmixer", sizes) == {
        "mul": taps * d + l * d * (3 + 1 + d + 3 + 1),
        "add": (taps - l) * d + l * d * (1 + 1 + 1 + 1 + d - 1 + 1 + 1 + 1),
        "erf": 2 * l * d,
    }
    assert cm.parameters(cm.mixer("convmixer")).at(**sizes) == k * d + d * d + 6 * d


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained("convmixer", {"b": 2, "l": 5, "d": 3, "k": 4})
