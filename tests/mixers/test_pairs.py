"""Does attention over a set of pairs have the papers' values and a count for every pair?

The pairs are listed by the papers' definitions, one by one; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
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

LOCAL, LOCAL_CAUSAL = "local-attention", "local-attention+causal"
ROUNDING = 1e-12
"""Sums of at most some dozen products of normal numbers, in float64."""

SEES: Mapping[str, Callable[[int, int, int, int], bool]] = {
    LOCAL: lambda i, k, l, B: i // B == k // B,
    LOCAL_CAUSAL: lambda i, k, l, B: i // B == k // B and k <= i,
}
"""Whether row i attends to row k, both counted from 0."""

SIZES: list[Sizes] = [
    {"l": 7, "d": 6, "n": 2, "B": 3},
    {"l": 6, "d": 4, "n": 1, "B": 2},
    {"l": 2, "d": 6, "n": 3, "B": 5},
    {"l": 5, "d": 2, "n": 2, "B": 1},
    {"l": 1, "d": 1, "n": 1, "B": 1},
]
"""A short last block, whole blocks, one short block, blocks of one row, one row."""
each_name = pytest.mark.parametrize("name", SEES)
each_size = by_sizes(SIZES)


def seen(name: str, sizes: Sizes) -> list[list[int]]:
    """The rows that each row attends to."""
    l, B = sizes["l"], sizes["B"]
    return [[k for k in range(l) if SEES[name](i, k, l, B)] for i in range(l)]


def attention(
    pairs: Callable[[Sizes], list[list[int]]],
    by: Callable[[int, Sizes], str] = lambda i, sizes: "",
) -> Callable[[Array, Arrays, Sizes], Array]:
    """MultiHead(Q, K, V) of Vaswani et al., each softmax over the rows that a row attends to; `by`
    says how the names of a row's projections end."""

    def rows(x: Array, W: Arrays, sizes: Sizes) -> Array:
        (l, d), n = x.shape, sizes["n"]
        h, heads = d // n, np.zeros((l, d))
        for j in range(n):
            own = slice(j * h, (j + 1) * h)
            for i, keys in enumerate(pairs({**sizes, "l": l})):
                Q, K, V = (x @ W[f"W_{key}{by(i, sizes)}"][:, own] for key in "QKV")
                powers = np.array([math.exp(Q[i] @ K[k] / math.sqrt(h)) for k in keys])
                heads[i, own] = (powers / powers.sum()) @ V[keys]
        return heads @ W["W_out"]

    return rows


@each_name
@each_size
def test_it_equals_the_paper(name: str, sizes: Sizes) -> None:
    equals_the_paper(name, sizes, attention(lambda at: seen(name, at)), ROUNDING)


@each_name
def test_autograd_of_attention_over_pairs_equals_finite_differences(name: str) -> None:
    assert gradients_pass(name, "explicit", {"l": 5, "d": 2, "n": 2, "B": 2})


# The counts. Four maps of l rows: 4 l d^2 products. A row that sees m rows has, in each of n heads,
# m scores of h products and a division, a softmax of m powers, m - 1 additions and m divisions, and
# h sums of m products.


def closed(rows: list[int], d: int, n: int) -> dict[str, int]:
    l, h, pairs = len(rows), d // n, sum(rows)
    found = {
        "mul": 4 * l * d * d + 2 * n * pairs * h,
        "add": 4 * l * d * (d - 1) + n * pairs * (h - 1) + n * (1 + h) * (pairs - l),
        "div": 2 * n * pairs,
        "exp": n * pairs,
    }
    return nonzero(found)


@each_name
@each_size
def test_operations_of_attention_over_pairs_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    pairs = [len(keys) for keys in seen(name, sizes)]
    assert operations(name, sizes) == closed(pairs, sizes["d"], sizes["n"])


@pytest.mark.parametrize("B", [1, 2, 3, 4, 6, 12])
def test_the_closed_forms_of_whole_blocks(B: int) -> None:
    """l B pairs of blocks, l (B+1)/2 of causal ones."""
    sizes = {"l": 12, "d": 2, "n": 2, "B": B}
    assert operations(LOCAL, sizes)["exp"] == 2 * 12 * B
    assert operations(LOCAL_CAUSAL, sizes)["exp"] == 12 * (B + 1)


@each_size
def test_one_token_of_attention_over_pairs_costs_a_count_by_hand(sizes: Sizes) -> None:
    """The rows of a block are kept until it is complete."""
    d, B, mixer = sizes["d"], sizes["B"], cm.mixer(LOCAL_CAUSAL)
    for t in range(1, sizes["l"] + 4):
        at = {**sizes, "l": max(t, sizes["l"]), "t": t}
        own = len(seen(LOCAL_CAUSAL, {**sizes, "l": t})[-1])
        found = operations(LOCAL_CAUSAL, at, phase="inference")
        assert found == closed([own], d, sizes["n"])
        assert cm.state(mixer).at(**at) == 2 * d * (t % B)


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"l": 5, "d": 6, "n": 2, "B": 2, "b": 2})


def test_a_whole_block_has_no_token_of_its_own() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(LOCAL), "inference")
