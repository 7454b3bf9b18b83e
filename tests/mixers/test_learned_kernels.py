"""Are RKS and PRF with trained frequencies those of Chowdhury et al. 2021 (arXiv 2110.08323)?

Features are written row by row from the paper and its code, attention from a weight for every pair;
operations are counted in tests/published/test_yorsh_2021.py, for Table 1 of SimpleTRON.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.errors import SizeError
from costmodel.program.chosen_sizes import fit
from profiler.modules import build, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
)
from tests.small import by_sizes

FASTFOOD = ("fastfood-rks", "fastfood-prf")
NAMES = ("gmm-rks", "gmm-prf", *FASTFOOD, "generative-rks", "generative-prf")
SIZES: list[Sizes] = [
    {"l": 5, "d": 8, "n": 2, "m": 3},
    {"l": 3, "d": 8, "n": 1, "m": 5},
    {"l": 1, "d": 2, "n": 1, "m": 1},
]
"""Heads of 4, 8 and 2 channels, powers of two."""
ROUNDING = 1e-8
"""Quotients by sums of sines and cosines, which may be small, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def at(name: str, sizes: Sizes) -> Sizes:
    """The sizes that the mixer has."""
    return {letter: sizes[letter] for letter in sizes if letter in (*cm.mixer(name).letters, "b")}


def transformed(row: Array) -> Array:
    """Sums and differences of neighbours, of pairs, and so on: a Hadamard matrix times the row."""
    if len(row) == 1:
        return row
    one, two = transformed(row[: len(row) // 2]), transformed(row[len(row) // 2 :])
    return np.concatenate([one + two, one - two])


def normalised(rows: Array, gain: Array, bias: Array) -> Array:
    """Over all rows, with what torch adds to a variance."""
    centred: Array = rows - rows.mean(0)
    scaled: Array = centred / np.sqrt((centred**2).mean(0) + 1e-5)
    return scaled * gain + bias


def products(name: str, W: Arrays, j: int, u: Array) -> Array:
    """w . u for every frequency of head j."""
    if name == "gmm-rks":
        spread = W["w"] @ W["Sigma"][j]
        return np.concatenate([spread + W["mu"][j], spread - W["mu"][j]]) @ u
    if name == "gmm-prf":
        omega: Array = W["w"] * np.exp(W["sigma"][j] / 2) + W["mu"][j]
        return omega @ u
    if name.startswith("fastfood"):
        mixed = W["PH"] @ (W["D_B"] * u)
        return W["D_S"] * transformed(W["D_G"] * mixed) / math.sqrt(len(u))
    rows = W["w"]
    for layer in (1, 2):
        rows = rows @ W[f"W_{layer}"] + W[f"b_{layer}"]
        rows = normalised(rows, W[f"gain_{layer}"], W[f"bias_{layer}"])
        rows = np.where(rows > 0, rows, rows / 100)
    made: Array = np.tanh(rows @ W["W_3"] + W["b_3"])
    return made @ u


def features(name: str, W: Arrays, j: int, row: Array) -> Array:
    """Of a row of head j over the fourth root of its width."""
    u = row / len(row) ** 0.25
    found = products(name, W, j, u)
    if name.endswith("rks"):
        return np.concatenate([np.cos(found), np.sin(found)]) / math.sqrt(len(found))
    powers: Array = np.exp(found - u @ u)
    return powers / math.sqrt(len(found))


def paper(name: str, x: Array, W: Arrays, sizes: Sizes) -> Array:
    """A weight for every pair: phi(q) phi(k) over its sum."""
    (l, d), n = x.shape, sizes["n"]
    h, heads = d // n, np.zeros((l, d))
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        queries, keys = (
            np.array([features(name, W, j, row @ W[M][:, own]) for row in x])
            for M in ("W_Q", "W_K")
        )
        weights = queries @ keys.T
        heads[:, own] = weights / weights.sum(1, keepdims=True) @ (x @ W["W_V"][:, own])
    return heads @ W["W_out"]


@each_name
@each_size
def test_equations_and_modules_equal_the_paper(name: str, sizes: Sizes) -> None:
    equals_the_paper(name, sizes, lambda x, W, sizes: paper(name, x, W, sizes), ROUNDING)


@pytest.mark.parametrize("name", FASTFOOD)
def test_rows_of_a_hadamard_matrix_are_permuted(name: str) -> None:
    """What a module draws: every row once."""
    sizes = at(name, SIZES[1])
    module = build(registry.implementations(name)["explicit"], dict(sizes), device="cpu",
                   dtype=torch.float64, seed=2)  # fmt: skip
    drawn = {tuple(row) for row in module.get_buffer("PH").tolist()}
    assert drawn == {tuple(transformed(row)) for row in np.eye(8)}


@pytest.mark.parametrize("name", FASTFOOD)
def test_a_width_that_is_no_power_of_two_is_refused(name: str) -> None:
    """There is no Hadamard matrix of 3 rows."""
    said = rf"{name} needs d/n to be a power of two, got 3 \(d = 6, n = 2\)"
    for question in (cm.count, cm.span, cm.parameters):
        with pytest.raises(SizeError, match=said):
            question(cm.mixer(name)).at(d=6, n=2, l=4)
    with pytest.raises(SizeError, match=said):
        fit(cm.mixer(name), {"d": 6, "n": 2, "l": 4})


@each_name
def test_autograd_of_learned_kernels_equals_finite_differences(name: str) -> None:
    assert gradients_pass(name, "explicit", at(name, {"l": 3, "d": 4, "n": 2, "m": 2}))


@each_name
def test_parameters_of_learned_kernels_equal_a_count_by_hand(name: str) -> None:
    """Four maps, and: a matrix or a deviation for each channel, and a mean, of each head; three
    diagonals; three layers, two of which are normalised."""
    d, n, h = 8, 2, 4
    more = {
        "gmm-rks": n * h * h + n * h,
        "gmm-prf": 2 * n * h,
        "fastfood": 3 * h,
        "generative": (h + 3) * 2 * h + (2 * h + 3) * 4 * h + (4 * h + 1) * h,
    }
    own = more.get(name) or more[name.partition("-")[0]]
    assert cm.parameters(cm.mixer(name)).at(**at(name, {"d": d, "n": n, "m": 3})) == 4 * d * d + own


@each_name
def test_one_token_has_a_reason_and_no_cost(name: str) -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(name), "inference")


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, at(name, {"b": 2, "l": 5, "d": 8, "n": 2, "m": 3}))
