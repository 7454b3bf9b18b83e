"""Is FNet that of equation (3) of Lee-Thorp et al. 2021 (arXiv 2105.03824)?"""

from __future__ import annotations

import cmath
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

SIZES: list[Sizes] = [{"l": 4, "d": 8}, {"l": 8, "d": 2}, {"l": 3, "d": 5}, {"l": 1, "d": 1}]
ROUNDING = 1e-12
"""Two sums of at most 10 products of normal numbers and numbers up to 1, in float64."""

each_size = by_sizes(SIZES)


def paper(x: Array, arrays: Arrays, sizes: Sizes) -> Array:
    """The real part of the sum over tokens and channels, term by term."""
    (l, d), found = x.shape, np.zeros_like(x)
    for i, b in np.ndindex(l, d):
        for k, a in np.ndindex(l, d):
            found[i, b] += (x[k, a] * cmath.exp(-2j * cmath.pi * (i * k / l + a * b / d))).real
    return found


@each_size
def test_equations_and_modules_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper("fnet", sizes, paper, ROUNDING)


@pytest.mark.parametrize("implementation", registry.implementations("fnet"))
def test_autograd_of_fnet_equals_finite_differences(implementation: str) -> None:
    assert gradients_pass("fnet", implementation, {"l": 4, "d": 4})


@each_size
def test_operations_of_the_matrices(sizes: Sizes) -> None:
    """Two products of l rows with (d, d), two of (l, l) with them, of which one is taken away."""
    l, d = sizes["l"], sizes["d"]
    expected = {
        "mul": 2 * l * d * d + 2 * l * l * d,
        "add": 2 * l * d * (d - 1) + 2 * l * d * (l - 1) + l * d,
    }
    assert operations("fnet", sizes) == expected


@each_size
def test_operations_of_the_transforms(sizes: Sizes) -> None:
    """l transforms of d points, d of l points, each of n/2 log2(n) butterflies: a product of 4 mul
    and 2 add, and two sums of 2 add; the logarithm is rounded up."""
    l, d = sizes["l"], sizes["d"]
    butterflies = l * d * sum(math.ceil(math.log2(n)) for n in (l, d)) / 2
    expected = {"mul": 4 * butterflies, "add": 6 * butterflies}
    assert operations("fnet", sizes, form="fft") == {k: v for k, v in expected.items() if v}


def test_operations_of_fnet_grow_as_the_paper_claims() -> None:
    """O(l log l) for a fixed width: a doubled length adds a whole share for each of its rows."""
    fft = cm.count(cm.mixer("fnet"), form="fft")
    shares = [fft.at(l=2**m, d=4).total / 2**m for m in range(1, 8)]
    assert len(set(np.diff(shares))) == 1


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained("fnet", {"b": 2, "l": 3, "d": 4})
