"""Is efficient attention that of equations (3)-(5) of Shen et al. 2018 (arXiv 1812.01243)?"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    operations,
)
from tests.small import by_sizes

NAME = "efficient-attention"
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2},
    {"l": 3, "d": 3, "n": 3},
    {"l": 1, "d": 2, "n": 1},
]
ROUNDING = 1e-11
"""Four products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_size = by_sizes(SIZES)


def normalised(numbers: Array) -> Array:
    powers = [math.exp(number) for number in numbers]
    return np.array([power / sum(powers) for power in powers])


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """rho_q(Q) (rho_k(K)^T V): here every pair's weight is added up, as equation (5) reads it."""
    (l, d), n = x.shape, sizes["n"]
    h, heads = d // n, np.zeros((l, d))
    Q, K, V = (x @ W[f"W_{name}"] for name in "QKV")
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        keys = np.array([normalised(channel) for channel in K[:, own].T]).T
        for i in range(l):
            for k in range(l):
                heads[i, own] += normalised(Q[i, own]) @ keys[k] * V[k, own]
    return heads @ W["W_out"]


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper(NAME, sizes, paper, ROUNDING)


def test_autograd_of_efficient_attention_equals_finite_differences() -> None:
    assert gradients_pass(NAME, "explicit", {"l": 3, "d": 4, "n": 2})


@each_size
def test_operations_of_efficient_attention_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Four maps; l n softmaxes of h entries, d of l; d h products of keys and values over l rows,
    and l d sums of h terms."""
    l, d, n = (sizes[letter] for letter in "ldn")
    h = d // n
    expected = {
        "mul": 4 * l * d * d + 2 * l * d * h,
        "add": 4 * l * d * (d - 1) + l * n * (h - 1) + d * (l - 1) + d * h * (l - 1)
        + l * d * (h - 1),
        "div": 2 * l * d,
        "exp": 2 * l * d,
    }  # fmt: skip
    assert operations(NAME, sizes) == {name: number for name, number in expected.items() if number}
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == 4 * d * d


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 2, n = 1: 32 products of maps, 8 of keys and values, 8 of queries; 16 additions of
    maps, 2 and 2 of softmaxes, 4 and 4 of products."""
    found = operations(NAME, {"l": 2, "d": 2, "n": 1})
    assert found == {"mul": 48, "add": 28, "div": 8, "exp": 8}


def test_one_token_has_a_reason_and_no_cost() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(NAME), "inference")


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained(NAME, {"b": 2, "l": 5, "d": 6, "n": 2})
