"""Is Linformer that of equation (7) of Wang et al. 2020 (arXiv 2006.04768)?"""

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

NAMES = ("linformer", "linformer+headwise", "linformer+key-value")
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "r": 3},
    {"l": 3, "d": 4, "n": 4, "r": 5},
    {"l": 1, "d": 1, "n": 1, "r": 1},
]
"""Fewer projected rows than tokens, and more."""
ROUNDING = 1e-11
"""Five products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """softmax(Q W_Q (E_i K W_K)^T / sqrt(d_k)) F_i V W_V of each head; E_i and F_i as shared."""
    (l, d), n = x.shape, sizes["n"]
    h, heads = d // n, np.zeros((l, d))
    E = W["E"][..., :l]
    F = W["F"][..., :l] if "F" in W else E
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        E_j, F_j = (M[j] if M.ndim == 3 else M for M in (E, F))
        keys, values = E_j @ (x @ W["W_K"][:, own]), F_j @ (x @ W["W_V"][:, own])
        for i in range(l):
            query = x[i] @ W["W_Q"][:, own]
            powers = [math.exp(query @ key / math.sqrt(h)) for key in keys]
            for power, value in zip(powers, values, strict=True):
                heads[i, own] += power / sum(powers) * value
    return heads @ W["W_out"]


@each_name
@each_size
def test_equations_and_module_equal_the_paper(name: str, sizes: Sizes) -> None:
    """The columns of E and F beyond a shorter sequence are not read."""
    equals_the_paper(name, sizes, paper, ROUNDING, beyond=0)


@each_name
def test_autograd_of_linformer_equals_finite_differences(name: str) -> None:
    assert gradients_pass(name, "explicit", {"l": 3, "d": 2, "n": 2, "r": 2})


@each_name
@each_size
def test_operations_of_linformer_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """Four maps of l rows; r rows of keys and of values, sums of l terms; r scores a row and head,
    each divided, their softmax, and sums of r values. Sharing saves no operation."""
    l, d, n, r = (sizes[letter] for letter in "ldnr")
    found = {"mul": 0, "add": 0, "div": 0, "exp": 0}

    def dot(terms: int, times: int) -> None:
        found["mul"] += terms * times
        found["add"] += (terms - 1) * times

    dot(d, 4 * l * d)
    dot(l, 2 * r * d)
    for _ in range(l * n):
        dot(d // n, r)
        dot(r, d // n)
        found["div"] += 2 * r
        found["exp"] += r
        found["add"] += r - 1
    assert operations(name, sizes) == {k: number for k, number in found.items() if number}


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, n = 1, r = 1: 8 products of maps, 4 of projections, 2 of scores and 2 of
    values; one addition in either projected row."""
    found = operations("linformer", {"l": 2, "d": 1, "n": 1, "r": 1})
    assert found == {"mul": 16, "add": 2, "div": 4, "exp": 2}


@each_size
def test_parameters_of_linformer_equal_a_count_by_hand(sizes: Sizes) -> None:
    """E and F of each head, of all heads, or one for both."""
    l, d, n, r = (sizes[letter] for letter in "ldnr")
    for name, projections in zip(NAMES, (2 * n, 2, 1), strict=True):
        assert cm.parameters(cm.mixer(name)).at(**sizes) == 4 * d * d + projections * r * l


def test_it_is_linear_for_a_fixed_r() -> None:
    """Affine in l; at r = l it is not."""
    fixed, growing = (
        [cm.count(cm.mixer("linformer")).at(l=l, d=6, n=2, r=r or l).total for l in range(1, 6)]
        for r in (3, 0)
    )
    assert not np.diff(fixed, 2).any() and np.diff(growing, 2).all()


@each_name
def test_one_token_has_a_reason_and_no_cost(name: str) -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(name), "inference")


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"b": 2, "l": 5, "d": 6, "n": 2, "r": 3})
