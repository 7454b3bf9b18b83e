"""Is token mixing the first line of equation (1) of Tolstikhin et al. 2021 (arXiv 2105.01601)?"""

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

NAME = "mlp-mixer"
SIZES: list[Sizes] = [{"l": 5, "d": 3, "f": 7}, {"l": 3, "d": 2, "f": 1}, {"l": 1, "d": 1, "f": 1}]
ROUNDING = 1e-11
"""Three products in a row of normal numbers, sums of at most 7 terms, in float64."""

each_size = by_sizes(SIZES)


def gelu(number: float) -> float:
    return number * (1 + math.erf(number / math.sqrt(2))) / 2


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """U_{*,i} = W_2 gelu(W_1 X_{*,i}) for every channel i, with biases; a shorter sequence meets
    the first positions of both."""
    l, found = len(x), np.zeros_like(x)
    for c, column in enumerate(x.T):
        hidden = [
            gelu(sum(column[k] * W["W_1"][k, s] for k in range(l)) + W["b_1"][s])
            for s in range(sizes["f"])
        ]
        for i in range(l):
            found[i, c] = sum(g * w for g, w in zip(hidden, W["W_2"][:, i], strict=True))
            found[i, c] += W["b_2"][i]
    return found


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper(NAME, sizes, paper, ROUNDING, beyond=0)


def test_gradients_pass_through() -> None:
    assert gradients_pass(NAME, "explicit", {"l": 3, "d": 2, "f": 2})


@each_size
def test_operations_and_parameters(sizes: Sizes) -> None:
    """For each channel two layers of l f products, whose sums and bias are as many additions; gelu
    is 3 products, 1 addition and 1 error function."""
    l, d, f = (sizes[letter] for letter in "ldf")
    expected = {"mul": d * (2 * l * f + 3 * f), "add": d * (2 * l * f + f), "erf": d * f}
    assert operations(NAME, sizes) == expected
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == 2 * l * f + f + l


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, f = 1: two products, a bias and gelu; two products, and a bias each."""
    found = operations(NAME, {"l": 2, "d": 1, "f": 1})
    assert found == {"mul": 2 + 3 + 2, "add": 1 + 1 + 1 + 2, "erf": 1}


def test_one_token_has_a_reason_and_no_cost() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(NAME), "inference")


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained(NAME, {"b": 2, "l": 5, "d": 3, "f": 7})
