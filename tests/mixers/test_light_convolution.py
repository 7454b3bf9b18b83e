"""Are light and dynamic convolution those of sections 3 and 4 of Wu et al. 2019 (arXiv 1901.10430)?

Values and operations are written tap by tap from the paper; nothing is shared with the package.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel.questions.counting.counts import with_once
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

CAUSAL = ("light-convolution", "dynamic-convolution")
NAMES = (*CAUSAL, *(f"{name}+centred" for name in CAUSAL))
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "k": 3},
    {"l": 4, "d": 3, "n": 3, "k": 2},
    {"l": 2, "d": 2, "n": 1, "k": 7},
    {"l": 1, "d": 1, "n": 1, "k": 1},
]
"""Odd and even widths, one larger than the sequence."""
ROUNDING = 1e-11
"""Four products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def rows_read(name: str, i: int, l: int, k: int) -> dict[int, int]:
    """Tap -> the row that it reads, both counted from 1, for row i; ceil((k+1)/2) of the paper is
    the own tap of an odd width, and of an even one fairseq pads fewer rows in front."""
    back = {s: s - 1 if name in CAUSAL else (k + 1) // 2 - s for s in range(1, k + 1)}
    return {s: i - lag for s, lag in back.items() if 1 <= i - lag <= l}


def paper(name: str, x: Array, W: Arrays, sizes: Sizes) -> Array:
    """X W_1 times sigmoid(X W_2), then each channel's sum of taps of its head, then W_O."""
    (l, d), n, k = x.shape, sizes["n"], sizes["k"]
    gates = np.array([[1 / (1 + math.exp(-number)) for number in row] for row in x @ W["W_2"]])
    rows, found = (x @ W["W_1"]) * gates, np.zeros((l, d))
    for i in range(l):
        for c in range(d):
            taps = W["W"][c // (d // n)]
            powers = [math.exp(tap @ rows[i] if taps.ndim == 2 else tap) for tap in taps]
            for s, row in rows_read(name, i + 1, l, k).items():
                found[i, c] += powers[s - 1] / sum(powers) * rows[row - 1, c]
    return found @ W["W_out"]


@each_name
@each_size
def test_equations_and_module_equal_the_paper(name: str, sizes: Sizes) -> None:
    """No weight ends at l; token by token where causal."""
    equals_the_paper(name, sizes, lambda *given: paper(name, *given), ROUNDING)


@each_name
def test_autograd_of_light_convolution_equals_finite_differences(name: str) -> None:
    assert gradients_pass(name, "windows", {"l": 3, "d": 2, "n": 2, "k": 2})


def by_hand(name: str, l: int, d: int, n: int, k: int) -> tuple[dict[str, int], int]:
    """Operations of a forward pass, row by row; and those that no token takes part in."""
    found = dict.fromkeys(("mul", "add", "div", "exp"), 0)

    def count(**more: int) -> int:
        for operation, number in more.items():
            found[operation] += number
        return sum(more.values())

    dynamic = name.startswith("dynamic")
    for i in range(1, l + 1):
        count(mul=3 * d * d, add=3 * d * (d - 1))  # three maps
        count(exp=d, add=d, div=d, mul=d)  # the gate
        if dynamic:
            count(mul=n * k * d, add=n * k * (d - 1))
            count(exp=n * k, div=n * k, add=n * (k - 1))
        taps = len(rows_read(name, i, l, k))
        count(mul=d * taps, add=d * (taps - 1))
    once = 0 if dynamic else count(exp=n * k, div=n * k, add=n * (k - 1))
    return {name: number for name, number in found.items() if number}, once


@each_name
@each_size
def test_operations_and_parameters_of_light_convolution_equal_a_count_by_hand(
    name: str, sizes: Sizes
) -> None:
    found, once = by_hand(name, **sizes)
    counted = cm.count(cm.mixer(name)).at(**sizes)
    assert with_once(counted) == found
    assert (counted.once.total if counted.once else 0) == once
    d, n, k = (sizes[letter] for letter in "dnk")
    taps = n * k * d if name.startswith("dynamic") else n * k
    assert cm.parameters(cm.mixer(name)).at(**sizes) == 3 * d * d + taps


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, n = 1, k = 2: a row has three maps and a gate, one product each; the first
    row reads one tap, the second two, which are added."""
    found = operations("light-convolution", {"l": 2, "d": 1, "n": 1, "k": 2})
    assert found == {"mul": 8 + 3, "add": 2 + 1, "div": 2, "exp": 2}


@pytest.mark.parametrize("name", CAUSAL)
@each_size
def test_one_token_of_light_convolution_costs_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """What a sequence of t tokens needs beyond one of t-1; k-1 rows are held."""
    for t in range(1, sizes["l"] + 4):
        one, _ = by_hand(name, **{**sizes, "l": t})
        less, _ = by_hand(name, **{**sizes, "l": t - 1})
        at = {**sizes, "l": max(t, sizes["l"]), "t": t}
        added = cm.count(cm.mixer(name), "inference").at(**at).total
        assert added == sum(one.values()) - sum(less.values())
        assert cm.state(cm.mixer(name)).at(**at) == sizes["d"] * min(t, sizes["k"] - 1)


@each_name
@pytest.mark.parametrize("k", [2, 7])
def test_nothing_is_left_unexplained(name: str, k: int) -> None:
    everything_is_explained(name, {"b": 2, "l": 5, "d": 6, "n": 2, "k": k})
