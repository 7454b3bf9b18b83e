"""Is the Set Transformer's ISAB that of Lee et al. 2019 (arXiv 1810.00825), equations (9)-(10)?"""

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
    drawn,
    equals_the_paper,
    everything_is_explained,
    forward,
    gradients_pass,
    module_of,
    operations,
    same,
)
from tests.small import by_sizes

NAME = "set-transformer"
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "r": 3},
    {"l": 3, "d": 4, "n": 4, "r": 5},
    {"l": 1, "d": 1, "n": 1, "r": 1},
]
"""Fewer inducing points than tokens, and more."""
ROUNDING = 1e-11
"""Nine products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_size = by_sizes(SIZES)


def multihead(X: Array, Y: Array, W: Arrays, of: str, n: int) -> Array:
    """Multihead(X, Y, Y): softmax(X W_j^Q (Y W_j^K)^T / sqrt(d)) Y W_j^V of each head, side by
    side, times W^O; the matrices are those whose names begin with `of`."""
    d = X.shape[1]
    h, heads = d // n, np.zeros_like(X)
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        W_Q, W_K, W_V = (W[f"{of}_{name}"][:, own] for name in "QKV")
        keys, values = Y @ W_K, Y @ W_V
        for i, row in enumerate(X):
            powers = [math.exp(row @ W_Q @ key / math.sqrt(d)) for key in keys]
            for power, value in zip(powers, values, strict=True):
                heads[i, own] += power / sum(powers) * value
    return heads @ W[f"{of}_out"]


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """X attends to H, which is what the inducing points I read of X; of both MABs the attention."""
    H = multihead(W["I"], x, W, "U", sizes["n"])
    return multihead(x, H, W, "W", sizes["n"])


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper(NAME, sizes, paper, ROUNDING)


def test_it_is_of_a_set() -> None:
    """Property 1: tokens in another order give the same rows in that order."""
    sizes = SIZES[0]
    W = drawn(NAME, sizes)
    order = [2, 0, 4, 1, 3]
    module = module_of(NAME, "explicit", sizes, W)
    rows, moved = forward(module, W["x"], W["x"][order])
    same(moved, rows[order], ROUNDING)


def test_autograd_of_set_transformer_equals_finite_differences() -> None:
    assert gradients_pass(NAME, "explicit", {"l": 3, "d": 4, "n": 2, "r": 2})


@each_size
def test_operations_of_set_transformer_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Four maps of l rows: keys, values, queries, outputs; three of r rows: what inducing points
    read, its keys, its values. Two matrices of scores of each head, divided, their softmaxes, and
    sums of values. Once, whatever the tokens are, the queries of the inducing points."""
    l, d, n, r = (sizes[letter] for letter in "ldnr")
    found = {"mul": 0, "add": 0, "div": 0, "exp": 0}

    def dot(terms: int, times: int) -> None:
        found["mul"] += terms * times
        found["add"] += (terms - 1) * times

    dot(d, 4 * l * d)
    dot(d, 3 * r * d)
    for _ in range(n):
        for rows, columns in ((r, l), (l, r)):
            dot(d // n, rows * columns)
            dot(columns, rows * (d // n))
            found["div"] += 2 * rows * columns
            found["exp"] += rows * columns
            found["add"] += rows * (columns - 1)
    assert operations(NAME, sizes) == {k: number for k, number in found.items() if number}
    once = cm.count(cm.mixer(NAME)).at(**sizes).once
    assert once is not None and once.total == r * d * (2 * d - 1)


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, n = 1, r = 1: 8 products of maps of tokens, 3 of what the inducing point reads,
    2 of either scores and 2 of either values; a sum over two tokens, of powers and of values."""
    found = operations(NAME, {"l": 2, "d": 1, "n": 1, "r": 1})
    assert found == {"mul": 19, "add": 2, "div": 8, "exp": 4}


@each_size
def test_parameters_of_set_transformer_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Two times four matrices, and the inducing points."""
    d, r = sizes["d"], sizes["r"]
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == 8 * d * d + r * d


def test_it_is_linear_for_a_fixed_r() -> None:
    """Affine in l; at r = l it is not."""
    fixed, growing = (
        [cm.count(cm.mixer(NAME)).at(l=l, d=6, n=2, r=r or l).total for l in range(1, 6)]
        for r in (3, 0)
    )
    assert not np.diff(fixed, 2).any() and np.diff(growing, 2).all()


def test_one_token_has_a_reason_and_no_cost() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(NAME), "inference")


def test_nothing_is_left_unexplained() -> None:
    assert {*registry.implementations(NAME)} == {"explicit"}
    everything_is_explained(NAME, {"b": 2, "l": 5, "d": 6, "n": 2, "r": 3})
