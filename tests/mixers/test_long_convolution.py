"""Are long convolution and Hyena those of Fu et al. 2023 (arXiv 2302.06646, section 3.1) and of
Poli et al. 2023 (arXiv 2302.10866, definition 3.1 and section 3.3)?

Values and operations are written distance by distance from the papers; the perceptron's input and
the window are the authors' code's (tests/references/convolutions.py runs that code).
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
    operations,
)
from tests.small import by_sizes

NAMES = ("long-convolution", "hyena")
SIZES: list[Sizes] = [
    {"l": 5, "d": 3, "k": 2, "F": 7},
    {"l": 3, "d": 2, "k": 5, "F": 3},
    {"l": 1, "d": 1, "k": 1, "F": 1},
]
"""Short convolutions within the sequence, and longer than it."""
ROUNDING = 1e-11
"""Five products in a row of normal numbers, sums of at most 7 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def gelu(z: Array) -> Array:
    found: Array = z * np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2)(z)
    return found


def causal(rows: Array, taps: Array) -> Array:
    """The sum over distances of a row so far back times the taps of that distance."""
    found = np.zeros_like(rows)
    for i in range(len(rows)):
        for back in range(min(i + 1, len(taps))):
            found[i] += taps[back] * rows[i - back]
    return found


def of_long_convolution(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """sgn(K) max(|K| - lambda, 0) convolved, plus D x."""
    kernel = np.sign(W["w"]) * np.maximum(np.abs(W["w"]) - 0.1, 0)
    rows = gelu(causal(x, kernel) + W["D"] * x)
    found: Array = (rows @ W["W_1"]) * sigmoid(rows @ W["W_2"])
    return found


def of_hyena(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """x_0 (h (x_1 v)), then a map."""
    l, d = sizes["l"], sizes["d"]
    G, E, V = (
        causal(x @ W[f"W_{n}"] + W[f"b_{n}"], W[f"w_{n}"]) + W[f"c_{n}"] for n in ("G", "E", "V")
    )
    kernel = np.zeros((l, d))
    for s in range(l):
        t, turn = s / max(1, l - 1), 2 * math.pi * 1e-4 * s / l
        row = np.array([t, math.cos(turn), -math.sin(turn)])
        for n in (1, 2, 3):
            row = np.sin(W["omega"] * (row @ W[f"A_{n}"] + W[f"a_{n}"]))
        rates = np.abs(np.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, d))
        kernel[s] = (row @ W["A_K"]) * np.exp(-t * rates)
    rows = V * E
    found: Array = ((causal(rows, kernel) + W["D"] * rows) * G) @ W["W_out"] + W["b_out"]
    return found


PAPER = {"long-convolution": of_long_convolution, "hyena": of_hyena}


@each_name
@each_size
def test_equations_and_modules_equal_the_paper(name: str, sizes: Sizes) -> None:
    """In both forms and token by token; the weights end at l."""
    equals_the_paper(name, sizes, PAPER[name], ROUNDING, beyond=0)


@each_name
def test_autograd_of_long_convolution_equals_finite_differences(name: str) -> None:
    for implementation in registry.implementations(name):
        assert gradients_pass(name, implementation, {"l": 3, "d": 2, "k": 2, "F": 2})


def by_hand(name: str, l: int, d: int, k: int, F: int) -> tuple[dict[str, int], int]:
    """Operations of a forward pass in the direct form, row by row; and those on weights alone."""
    found: dict[str, int] = {}

    def count(**more: int) -> int:
        for operation, number in more.items():
            found[operation] = found.get(operation, 0) + number
        return sum(more.values())

    for i in range(1, l + 1):
        count(mul=i * d, add=(i - 1) * d)  # the convolution
        count(mul=d, add=d)  # D times the row
        if name == "hyena":
            taps = min(i, k)
            count(mul=4 * d * d, add=4 * d * d)  # four maps with a bias
            count(mul=3 * taps * d, add=3 * taps * d)  # short convolutions with a bias
            count(mul=2 * d)
        else:
            count(mul=3 * d, add=d, erf=d)
            count(mul=2 * d * d, add=2 * d * (d - 1), exp=d, div=d)
            count(mul=d, add=d)
    tokens = dict(found)
    if name == "hyena":
        layers = (3 + 2 * F) * F
        once = l * count(mul=layers + 3 * F + F * d + d, add=layers + F * d - d, sin=3 * F)
    else:
        once = l * count(add=3 * d, compare=2 * d)
    return {operation: number for operation, number in tokens.items() if number}, once


@each_name
@each_size
def test_operations_of_long_convolution_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    mixer = cm.mixer(name)
    given = {letter: sizes[letter] for letter in mixer.letters}
    counted = cm.count(mixer).at(**given)
    found, once = by_hand(name, **sizes)
    assert {k: n for k, n in counted.by_class().items() if n} == found
    assert counted.once is not None and counted.once.total == once


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1: three products of rows and weights, two of D; of each row 3 of gelu, 2 of maps
    and the gate's."""
    assert operations("long-convolution", {"l": 2, "d": 1})["mul"] == 3 + 2 + 2 * (3 + 2 + 1)


@each_size
def test_parameters_of_long_convolution_equal_a_count_by_hand(sizes: Sizes) -> None:
    l, d, k, F = (sizes[letter] for letter in "ldkF")
    assert cm.parameters(cm.mixer("long-convolution")).at(l=l, d=d) == l * d + d + 2 * d * d
    perceptron = 4 * F + 2 * (F * F + F) + F + F * d
    layers = 4 * (d * d + d) + 3 * (k * d + d) + d
    assert cm.parameters(cm.mixer("hyena")).at(**sizes) == layers + perceptron


@each_size
def test_state_of_long_convolution_equals_a_count_by_hand(sizes: Sizes) -> None:
    """The rows that are convolved; and those that the three short convolutions still read."""
    for t in range(1, sizes["l"] + 1):
        d, given = sizes["d"], {"l": sizes["l"], "d": sizes["d"], "t": t}
        assert cm.state(cm.mixer("long-convolution")).at(**given) == t * d
        short = 3 * min(t, sizes["k"] - 1) * d
        assert cm.state(cm.mixer("hyena")).at(**sizes, t=t) == t * d + short


@each_name
def test_operations_of_long_convolution_grow_as_the_paper_claims(name: str) -> None:
    """O(l log l) by transforms, O(l^2) by sums, in the length."""
    others = {letter: 2 for letter in cm.mixer(name).letters if letter != "l"}
    fft = [cm.count(cm.mixer(name), form="fft").at(l=2**m, **others).total for m in range(3, 9)]
    shares = np.diff([total / 2**m for m, total in enumerate(fft, 3)], 2)
    assert abs(shares).max() < 1 < shares.size
    totals = [cm.count(cm.mixer(name)).at(l=l, **others).total for l in range(3, 9)]
    assert np.diff(totals, 2).all() and not np.diff(totals, 3).any()


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"b": 2, "l": 5, "d": 3, "k": 2, "F": 7})
