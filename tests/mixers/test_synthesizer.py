"""Is the Synthesizer that of section 3 of Tay et al. 2020 (arXiv 2005.00743)?

Values and operations are written row by row from the paper; nothing is shared with the package.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import UnknownMixer
from costmodel.proofs.against_oracle import nonzero
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

FULL = tuple(
    f"synthesizer-{kind}" for kind in ("dense", "random", "factorized-dense", "factorized-random")
)
CAUSAL = tuple(f"{name}+causal" for name in FULL if name != "synthesizer-factorized-dense")
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "B": 2, "r": 3},
    {"l": 6, "d": 4, "n": 1, "B": 3, "r": 1},
    {"l": 3, "d": 3, "n": 3, "B": 7, "r": 5},
    {"l": 1, "d": 1, "n": 1, "B": 1, "r": 1},
]
"""Blocks that divide the length, that do not, and one larger than it."""
ROUNDING = 1e-12
"""Sums of at most some dozen products of normal numbers, in float64."""

each_name = pytest.mark.parametrize("name", [*FULL, *CAUSAL])
each_size = by_sizes(SIZES)


def at(name: str, sizes: Sizes) -> Sizes:
    """The sizes that the mixer has."""
    return {letter: sizes[letter] for letter in cm.mixer(name).letters}


def score(name: str, W: Arrays, j: int, i: int, k: int, row: Array) -> float:
    """What position k scores at row i of head j, counted from 0; `row` is relu(W_F x_i), its head's
    part."""
    if "factorized-dense" in name:
        B = W["W_S"].shape[2]
        return float((row @ W["W_P"][j][:, k // B]) * (row @ W["W_S"][j][:, k % B]))
    if "dense" in name:
        return float(row @ W["W"][j][:, k])
    if "factorized-random" in name:
        return float(W["R_1"][j][i] @ W["R_2"][j][k])
    return float(W["R"][j][i][k])


def paper(name: str, x: Array, W: Arrays, sizes: Sizes) -> Array:
    """softmax(B) G(X) of each head, then the output."""
    (l, d), n = x.shape, sizes["n"]
    h = d // n
    heads, values = np.zeros((l, d)), x @ W["W_V"]
    hidden = np.maximum(x @ W["W_F"], 0) if "W_F" in W else x
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        for i in range(l):
            seen = range(i + 1 if name.endswith("+causal") else l)
            powers = [math.exp(score(name, W, j, i, k, hidden[i, own])) for k in seen]
            for k, power in zip(seen, powers, strict=True):
                heads[i, own] += power / sum(powers) * values[k, own]
    return heads @ W["W_out"]


@each_name
@each_size
def test_equations_and_module_equal_the_paper(name: str, sizes: Sizes) -> None:
    """Whole sequences of every length, two at once, and token by token where causal."""
    equals_the_paper(name, sizes, lambda *given: paper(name, *given), ROUNDING, beyond=0)


@each_name
def test_autograd_of_synthesizers_equals_finite_differences(name: str) -> None:
    assert gradients_pass(name, "explicit", at(name, {"l": 3, "d": 2, "n": 1, "B": 2, "r": 1}))


def by_hand(name: str, l: int, d: int, n: int, B: int, r: int) -> tuple[dict[str, int], int]:
    """Operations of a forward pass, counted head by head, row by row and pair by pair; and those
    among them that no token takes part in."""
    found, once, h = {"mul": 0, "add": 0, "div": 0, "exp": 0, "compare": 0}, 0, d // n

    def dot(terms: int, times: int = 1) -> int:
        found["mul"] += terms * times
        found["add"] += (terms - 1) * times
        return (2 * terms - 1) * times

    for i in range(1, l + 1):
        dot(d, 2 * d)  # W_V and W_out
        if "dense" in name:
            dot(d, d)
            found["compare"] += d
        seen = i if name.endswith("+causal") else l
        for _ in range(n):
            weights = 3 * seen - 1
            if "factorized-dense" in name:
                dot(h, math.ceil(l / B) + min(B, l))
                found["mul"] += seen
            elif "dense" in name:
                dot(h, seen)
            elif "factorized" in name:
                weights += dot(r, seen)
            found["exp"] += seen
            found["add"] += seen - 1
            found["div"] += seen
            once += 0 if "dense" in name else weights
            dot(seen, h)
    return nonzero(found), once


@each_name
@each_size
def test_operations_of_synthesizers_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    found, once = by_hand(name, **sizes)
    counted = cm.count(cm.mixer(name)).at(**at(name, sizes))
    assert with_once(counted) == found
    assert (counted.once.total if counted.once else 0) == once


def test_operations_of_a_small_case() -> None:
    """l = 3, d = 2, n = 1: three layers of 4 products and 2 additions a row; 9 pairs, each with 2
    products and 1 addition of a score and 2 products of values, whose sums are 12 additions."""
    assert operations("synthesizer-dense", {"l": 3, "d": 2, "n": 1}) == {
        "mul": 36 + 18 + 18, "add": 18 + 9 + 12 + 6, "div": 9, "exp": 9, "compare": 6,
    }  # fmt: skip


@pytest.mark.parametrize("name", CAUSAL)
@each_size
def test_one_token_of_synthesizers_costs_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """What a sequence of t tokens needs beyond one of t-1, without what is done once; the values of
    all tokens are held."""
    for t in range(1, sizes["l"] + 1):
        one, once = by_hand(name, **{**sizes, "l": t})
        less, before = by_hand(name, **{**sizes, "l": t - 1}) if t > 1 else ({}, 0)
        given = {**at(name, sizes), "t": t}
        found = cm.count(cm.mixer(name), "inference").at(**given)
        assert found.total == sum(one.values()) - sum(less.values()) - (once - before)
        assert cm.state(cm.mixer(name)).at(**given) == t * sizes["d"]


@each_name
@each_size
def test_parameters_of_synthesizers_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """The paper's own table, and the two maps that it leaves out."""
    l, d, n, B, r = (sizes[letter] for letter in ("l", "d", "n", "B", "r"))
    printed = {
        "dense": d * d + d * l,
        "random": n * l * l,
        "factorized-dense": d * d + d * (math.ceil(l / B) + B),
        "factorized-random": n * 2 * l * r,
    }[name.removeprefix("synthesizer-").removesuffix("+causal")]
    assert cm.parameters(cm.mixer(name)).at(**at(name, sizes)) == 2 * d * d + printed


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"l": 5, "d": 6, "n": 2, "B": 2, "r": 3, "b": 2})


def test_a_block_longer_than_the_sequence_adds_no_zeros() -> None:
    sizes = {"l": 5, "d": 6, "n": 2, "B": 7, "b": 2}
    everything_is_explained("synthesizer-factorized-dense", sizes)


def test_the_factorized_dense_one_is_not_causal() -> None:
    with pytest.raises(UnknownMixer, match="synthesizer-factorized-dense takes no options"):
        cm.mixer("synthesizer-factorized-dense+causal")
