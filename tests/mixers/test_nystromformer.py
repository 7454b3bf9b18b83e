"""Is Nystromformer that of Xiong et al. 2021 (arXiv 2102.03902), equations (11)-(14)?"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import SizeError
from profiler.modules import registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    everything_is_explained,
    forward,
    gradients_pass,
    module_of,
    operations,
    same,
)
from tests.small import by_sizes

NAME = "nystromformer"
SIZES: list[Sizes] = [
    {"l": 6, "d": 6, "n": 2, "r": 3},
    {"l": 10, "d": 3, "n": 1, "r": 2},
    {"l": 3, "d": 4, "n": 2, "r": 3},
    {"l": 5, "d": 2, "n": 2, "r": 1},
    {"l": 1, "d": 1, "n": 1, "r": 1},
]
"""Segments of two rows, of five, of one, and all rows in one."""
ROUNDING = 1e-9
"""Six rounds with factors up to 15, which a nearly singular matrix does not end."""

each_size = by_sizes(SIZES)


def softmax(scores: Array) -> Array:
    found = np.array([[math.exp(score) for score in row] for row in scores])
    found /= found.sum(1, keepdims=True)
    return found


def inverse(A: Array) -> Array:
    """Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, six times, from A^T over the largest sum of
    a column times the largest sum of a row, which is 1."""
    unit = np.eye(len(A))
    Z: Array = A.T / (max(A.sum(0)) * max(A.sum(1)))
    for _ in range(6):
        Z = Z @ (13 * unit - A @ Z @ (15 * unit - A @ Z @ (7 * unit - A @ Z))) / 4
    return Z


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """softmax(Q K~^T) Z softmax(Q~ K^T) V of each head, Q~ and K~ being means of segments."""
    (l, d), n, r = x.shape, sizes["n"], sizes["r"]
    h, heads = d // n, np.zeros((l, d))
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        Q, K, V = (x @ W[f"W_{name}"][:, own] for name in "QKV")
        Q = Q / math.sqrt(h)
        Q_, K_ = (np.array([rows.mean(0) for rows in np.split(M, r)]) for M in (Q, K))
        first, middle, last = (softmax(a @ b.T) for a, b in ((Q, K_), (Q_, K_), (Q_, K)))
        heads[:, own] = first @ inverse(middle) @ (last @ V)
    found: Array = heads @ W["W_out"]
    return found


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    """And of sequences of other lengths that r divides."""
    W = drawn(NAME, sizes)
    x = W["x"]
    same(cm.evaluate(cm.mixer(NAME), W, sizes), paper(x, W, sizes), ROUNDING)
    module = module_of(NAME, "explicit", sizes, W)
    for times in (1, 2, 3):
        one = np.resize(x, (times * sizes["r"], sizes["d"]))
        for given, found in zip((one, 1 - one), forward(module, one, 1 - one), strict=True):
            same(found, paper(given, W, sizes), ROUNDING)


def test_six_rounds_come_near_to_the_inverse() -> None:
    A = softmax(np.array([[2.0, -1.0, 0.0], [0.0, 1.0, -1.0], [0.5, 0.0, 2.0]]))
    same(inverse(A) @ A, np.eye(3), 1e-9)


def test_a_length_that_r_does_not_divide_is_refused() -> None:
    sizes = {"l": 6, "d": 2, "n": 1, "r": 3}
    module = module_of(NAME, "explicit", sizes, drawn(NAME, sizes))
    with pytest.raises(ValueError, match="has 4 tokens: expected a multiple of r = 3"):
        forward(module, np.zeros((4, 2)))
    with pytest.raises(SizeError, match="choose l divisible by r"):
        operations(NAME, sizes | {"l": 4})


def test_autograd_of_nystromformer_equals_finite_differences() -> None:
    assert gradients_pass(NAME, "explicit", {"l": 4, "d": 4, "n": 2, "r": 2})


@each_size
def test_operations_of_nystromformer_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Four maps; means of segments; of each head three matrices of scores and their softmaxes, the
    largest sum of a column, six rounds of four products, and three products with what is read."""
    l, d, n, r = (sizes[letter] for letter in "ldnr")
    h = d // n
    found = {"mul": 0, "add": 0, "div": 0, "exp": 0, "compare": 0}

    def dot(terms: int, times: int) -> None:
        found["mul"] += terms * times
        found["add"] += (terms - 1) * times

    dot(d, 4 * l * d)
    found["add"] += 2 * r * d * (l // r - 1)
    found["div"] += 2 * r * d
    for _ in range(n):
        for rows, columns in ((l, r), (r, r), (r, l)):
            dot(h, rows * columns)
            found["div"] += 2 * rows * columns
            found["exp"] += rows * columns
            found["add"] += rows * (columns - 1)
        found["add"] += r * (r - 1)
        found["compare"] += r - 1
        found["div"] += r * r
        for _ in range(6):
            dot(r, 4 * r * r)
            found["add"] += 3 * r * r
            found["div"] += r * r
        dot(l, r * h)
        dot(r, l * r)
        dot(r, l * h)
    assert operations(NAME, sizes) == {name: number for name, number in found.items() if number}
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == 4 * d * d


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, n = 1, r = 1: 8 products of maps, 5 of scores, 24 of rounds and 6 of reading;
    one addition in either mean, in a softmax and in the sum over values, 18 of rounds."""
    found = operations(NAME, {"l": 2, "d": 1, "n": 1, "r": 1})
    assert found == {"mul": 43, "add": 22, "div": 19, "exp": 5}


def test_it_is_linear_for_a_fixed_r() -> None:
    """Affine in l; with segments of a fixed length it is cubic."""
    fixed, growing = (
        [cm.count(cm.mixer(NAME)).at(l=2 * m, d=6, n=2, r=r or m).total for m in range(2, 9, 2)]
        for r in (2, 0)
    )
    assert not np.diff(fixed, 2).any() and np.diff(growing, 3).all()


def test_one_token_has_a_reason_and_no_cost() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(NAME), "inference")


def test_nothing_is_left_unexplained() -> None:
    assert {*registry.implementations(NAME)} == {"explicit"}
    everything_is_explained(NAME, {"b": 2, "l": 6, "d": 6, "n": 2, "r": 3})
