"""Is Mega that of Ma et al. 2022 (arXiv 2209.10655, section 3)?

Averages are taken row by row; nothing is shared with the package.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from profiler.modules import registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    modules_of,
)
from tests.small import by_sizes

ROUNDING = 1e-10
NAMES = ("mega", "mega+chunk")
SIZES: list[Sizes] = [
    {"l": 7, "d": 3, "N": 2, "K": 5, "v": 2, "C": 3},
    {"l": 3, "d": 2, "N": 3, "K": 1, "v": 3, "C": 5},
    {"l": 1, "d": 1, "N": 1, "K": 1, "v": 1, "C": 1},
]
each_name = pytest.mark.parametrize("name", NAMES)


def gated_attention(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """h_t = alpha beta x_t + (1 - alpha delta) h_(t-1) and X_t = eta . h_t; queries and keys of X,
    values of x; phi silu(X W_h + (gamma o O) U + b) + (1 - phi) x."""

    def sigmoid(z: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-z)))

    def mapped(rows: Array, name: str) -> Array:
        return np.asarray(rows @ W[f"W_{name}"] + W[f"b_{name}"])

    def silu(z: Array) -> Array:
        return z * sigmoid(z)

    alpha, delta = sigmoid(W["alpha"]), sigmoid(W["delta"])
    h, X = np.zeros_like(alpha), np.zeros_like(x)
    for t, row in enumerate(x):
        h = alpha * (W["beta"] * row[:, None]) + (1 - alpha * delta) * h
        X[t] = (W["eta"] * h).sum(1)
    shared, values = silu(mapped(X, "Z")), silu(mapped(x, "V"))
    queries, keys = (shared * W[f"kappa_{one}"] + W[f"mu_{one}"] for one in "QK")
    chunk = sizes.get("C", len(x))
    read = np.zeros_like(values)
    for t in range(len(x)):
        seen = range(t - t % chunk, t + 1)
        scores = [queries[t] @ keys[k] / math.sqrt(sizes["K"]) + W["P"][t - k] for k in seen]
        weights = np.exp(scores) / np.exp(scores).sum()
        read[t] = weights @ values[seen]
    phi = sigmoid(mapped(X, "phi"))
    made = silu(mapped(X, "H") + (silu(mapped(X, "gamma")) * read) @ W["U_H"])
    return np.asarray(phi * made + (1 - phi) * x)


@each_name
@by_sizes(SIZES)
def test_mega_equals_the_paper(name: str, sizes: Sizes) -> None:
    """With chunks no weight ends at l; the bias of distances does without."""
    equals_the_paper(name, sizes, gated_attention, ROUNDING, beyond=2 if "chunk" in name else 0)


@each_name
def test_autograd_of_mega_equals_finite_differences(name: str) -> None:
    sizes = {"l": 4, "d": 2, "N": 2, "K": 3, "v": 2, "C": 3}
    for implementation in registry.implementations(name):
        assert gradients_pass(name, implementation, sizes)


@each_name
@by_sizes(SIZES)
def test_operations_parameters_and_state(name: str, sizes: Sizes) -> None:
    """Averages; maps to z, v, gamma, phi and H, and that of what is read; pairs; gates."""
    l, d, N, K, wide = *(sizes[letter] for letter in "ldNK"), sizes["v"] * sizes["d"]
    C = sizes["C"] if "chunk" in name else l
    pairs = sum((t - 1) % C + 1 for t in range(1, l + 1))
    once = d * N * (3 + 3 + 1 + 1 + 1)
    average = {"mul": l * d * 2 * N + (l - 1) * d * N, "add": (2 * l - 1) * d * N - l * d}
    maps = d * (K + wide + wide + d + d) + wide * d
    silus = K + wide + wide + d
    rest = {
        "mul": l * (maps + silus + 2 * K + wide + 2 * d) + pairs * (K + wide),
        "add": l * (maps + silus + d + 2 * K + 2 * d - wide - 1) + pairs * (K - 1 + 1 + 1 + wide),
        "div": l * (silus + d) + 2 * pairs,
        "exp": l * (silus + d) + pairs,
    }
    mixer = cm.mixer(name)
    counted = cm.count(mixer).at(**sizes)
    assert counted.by_class() == {k: n + average.get(k, 0) for k, n in rest.items()}
    assert counted.once is not None and counted.once.total == once
    kernel = d * N * (1 + 1) + l * d * (N * 2 + 2 * N - 1)
    filtered = cm.count(mixer, form="fft").at(**sizes).once
    fourier = (cm.count(cm.mixer("we"), form="fft").at(**sizes)).once
    assert filtered is not None and fourier is not None
    assert filtered.total == once + kernel + fourier.total
    weights = 4 * d * N + maps + K + wide + wide + d + d + 4 * K + C
    assert cm.parameters(mixer).at(**sizes) == weights
    for t in range(1, l + 1):
        rows = t % C if "chunk" in name else t
        assert cm.state(mixer).at(**sizes, t=t) == rows * (K + wide) + d * N


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "implementation"), modules_of(NAMES))
def test_nothing_is_left_unexplained(name: str, implementation: str) -> None:
    sizes = {"b": 2, "l": 5, "d": 3, "N": 2, "K": 3, "v": 2, "C": 2}
    everything_is_explained(name, sizes, implementation)
