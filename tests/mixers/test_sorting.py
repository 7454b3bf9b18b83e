"""Does attention to sorted rows have the papers' values and operations?"""

from __future__ import annotations

import math
from collections import Counter

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

SINKHORN, REFORMER = "sinkhorn", "reformer"
SIZES: list[Sizes] = [
    {"l": 7, "d": 6, "n": 2, "B": 3, "T": 2},
    {"l": 6, "d": 4, "n": 4, "B": 2, "T": 3},
    {"l": 3, "d": 6, "n": 3, "B": 5, "T": 2},
    {"l": 1, "d": 1, "n": 1, "B": 1, "T": 1},
]
"""A short block behind the whole ones, none, and nothing else; one row."""
ROUNDING = 1e-10
"""Some dozen sums, products and quotients in a row of numbers up to some thousand, in float64."""

each_size = by_sizes(SIZES)

HASHED: list[Sizes] = [
    {"l": 7, "d": 6, "n": 2, "C": 3, "m": 2},
    {"l": 8, "d": 4, "n": 4, "C": 2, "m": 3},
    {"l": 5, "d": 6, "n": 3, "C": 7, "m": 5},
    {"l": 1, "d": 1, "n": 1, "C": 1, "m": 1},
]
"""A short chunk behind the whole ones, none, and nothing else; one row."""


def attended(query: Array, keys: Array, values: Array) -> Array:
    """The values by the softmax of their keys' products with the query, over sqrt(h)."""
    powers = [math.exp(query @ key / math.sqrt(len(query))) for key in keys]
    return np.array(powers) / sum(powers) @ values


def permutation(scores: Array, rounds: int) -> Array:
    """S^0 = exp(R), S^k = F_c(F_r(S^(k-1))): rows, then columns, add up to one."""
    found = np.exp(scores)
    for _ in range(rounds):
        found = np.array([row / sum(row) for row in found])
        found = np.array([column / sum(column) for column in found.T]).T
    return found


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """A row's own block, and where that is whole the mixture of blocks that is sorted to it."""
    (l, d), n, B = x.shape, sizes["n"], sizes["B"]
    h, whole, heads = d // n, l // B, np.zeros((l, d))
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        Q, K, V = (x @ W[f"W_{name}"][:, own] for name in "QKV")
        blocks = [slice(p * B, (p + 1) * B) for p in range(whole + 1)]
        if whole:
            sums = np.array([K[block].sum(axis=0) for block in blocks[:whole]])
            share = permutation(sums @ W["W_S"][:, :whole], sizes["T"])
        for i in range(l):
            q = i // B
            heads[i, own] = attended(Q[i], K[blocks[q]], V[blocks[q]])
            if q < whole:
                keys, values = (
                    np.sum([share[p, q] * rows[blocks[p]] for p in range(whole)], axis=0)
                    for rows in (K, V)
                )
                heads[i, own] += attended(Q[i], keys, values)
    return heads @ W["W_out"]


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    """Columns of the sorting network beyond a shorter sequence's blocks are not read."""
    equals_the_paper(SINKHORN, sizes, paper, ROUNDING, beyond=0)


def test_rounds_make_it_doubly_stochastic() -> None:
    """Columns add up to one after every round, rows the better the more rounds there are."""
    scores = np.random.default_rng(1).normal(size=(5, 5))
    few, many = (permutation(scores, rounds) for rounds in (1, 50))
    np.testing.assert_allclose([few.sum(0), many.sum(0), many.sum(1)], 1, atol=1e-12)
    assert abs(few.sum(1) - 1).max() > 1e-3


def test_autograd_of_sinkhorn_attention_equals_finite_differences() -> None:
    assert gradients_pass(SINKHORN, "explicit", {"l": 5, "d": 2, "n": 2, "B": 2, "T": 2})


@each_size
def test_operations_of_sinkhorn_attention_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Block by block, as the paper goes through them."""
    l, d, n, B, T = (sizes[letter] for letter in "ldnBT")
    h, whole = d // n, l // B
    found: Counter[str] = Counter()

    def dot(terms: int, times: int) -> None:
        found.update(mul=terms * times, add=(terms - 1) * times)

    def attend(rows: int, keys: int) -> None:
        dot(h, rows * keys)
        dot(keys, rows * h)
        found.update(div=2 * rows * keys, exp=rows * keys, add=rows * (keys - 1))

    dot(d, 4 * l * d)
    for _ in range(n):
        for first in range(0, l, B):
            attend(min(B, l - first), min(B, l - first))
        if whole:
            found.update(add=whole * (B - 1) * h, exp=whole * whole)
            dot(h, whole * whole)
            found.update(add=2 * T * whole * (whole - 1), div=2 * T * whole * whole)
        for _ in range(whole):
            dot(whole, 2 * B * h)
            attend(B, B)
            found.update(add=B * h)
    assert operations(SINKHORN, sizes) == nonzero(found)


def test_operations_of_a_small_case() -> None:
    """Two blocks of one row and one channel, one round: 8 products of maps, 4 of the network, 8 of
    mixtures and 4 of either attention; two sums of rows and two of columns; a result for each."""
    found = operations(SINKHORN, {"l": 2, "d": 1, "n": 1, "B": 1, "T": 1})
    assert found == {"mul": 28, "add": 10, "div": 16, "exp": 8}


@each_size
def test_parameters_of_sinkhorn_attention_equal_a_count_by_hand(sizes: Sizes) -> None:
    """One sorting network for all heads, a column for each whole block."""
    l, d, n, B = (sizes[letter] for letter in "ldnB")
    expected = 4 * d * d + d // n * (l // B)
    assert cm.parameters(cm.mixer(SINKHORN)).at(**sizes) == expected


@pytest.mark.parametrize(("B", "T"), [(1, 2), (3, 1), (4, 5)])
def test_it_is_quadratic_in_the_number_of_blocks(B: int, T: int) -> None:
    """Of two blocks, one goes into the other's mixture: 4 operations an entry of a block, for keys
    and values, 2 for a channel's sums, and 4 a round and head."""
    totals = [
        cm.count(cm.mixer(SINKHORN)).at(l=p * B, d=6, n=2, B=B, T=T).total for p in range(1, 6)
    ]
    assert [*np.diff(totals, 2)] == [2 * (4 * B * 6 + 2 * 6 + 4 * T * 2)] * 3


def test_one_token_has_a_reason_and_no_cost() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(SINKHORN), "inference")


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained(SINKHORN, {"b": 2, "l": 7, "d": 6, "n": 2, "B": 3, "T": 2})


def hashed(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """h(x) = argmax([xR; -xR]); rows in the order of their buckets see their chunk and the last."""
    (l, d), n, C = x.shape, sizes["n"], sizes["C"]
    h, heads = d // n, np.zeros((l, d))
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        Q, V = (x @ W[f"W_{name}"][:, own] for name in "QV")
        products = [[*(q @ W["H"]), *-(q @ W["H"])] for q in Q]
        order = sorted(range(l), key=lambda i: (products[i].index(max(products[i])), i))
        for place, i in enumerate(order):
            chunk = place // C
            seen = order[max(0, chunk - 1) * C : (chunk + 1) * C]
            heads[i, own] = attended(
                Q[i], Q[seen] / np.linalg.norm(Q[seen], axis=1)[:, None], V[seen]
            )
    return heads @ W["W_out"]


each_hashed = by_sizes(HASHED)


@each_hashed
def test_equations_and_module_equal_the_paper_of_hashing(sizes: Sizes) -> None:
    equals_the_paper(REFORMER, sizes, hashed, ROUNDING)


def test_what_gradients_of_hashing_are() -> None:
    """No direction gets one; everything else does."""
    assert gradients_pass(REFORMER, "explicit", {"l": 5, "d": 4, "n": 2, "C": 2, "m": 2})


@each_hashed
def test_operations_of_hashing_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Three maps, m directions, unit keys, two sorts, and chunk by chunk the pairs."""
    l, d, n, C, m = (sizes[letter] for letter in "ldnCm")
    h, found = d // n, Counter[str]()

    def dot(terms: int, times: int) -> None:
        found.update(mul=terms * times, add=(terms - 1) * times)

    dot(d, 3 * l * d)
    levels = math.ceil(math.log2(l))
    for _ in range(n):
        dot(h, l * m)
        found.update(compare=l * (2 * m - 1) + 2 * sum(range(levels + 1)) * 2**levels // 2)
        dot(h, l)
        found.update(sqrt=l, div=l * h)
        for first in range(0, l, C):
            rows, keys = min(C, l - first), min(l, first + C) - max(0, first - C)
            dot(h, rows * keys)
            dot(keys, rows * h)
            found.update(div=2 * rows * keys, exp=rows * keys, add=rows * (keys - 1))
    assert operations(REFORMER, sizes) == nonzero(found)


def test_comparisons_of_a_small_case() -> None:
    """Four rows of one head, one direction: one comparison for the bucket of each, and 3 stages of
    2 for either sort."""
    found = operations(REFORMER, {"l": 4, "d": 1, "n": 1, "C": 2, "m": 1})
    assert found["compare"] == 4 * 1 + 2 * (1 + 2) * 2


def test_one_token_of_hashing_has_a_reason() -> None:
    with pytest.raises(cm.Unanswered, match="chooses from the whole token axis at once"):
        cm.count(cm.mixer(REFORMER), "inference")


def test_nothing_of_hashing_is_left_unexplained() -> None:
    everything_is_explained(REFORMER, {"b": 2, "l": 7, "d": 6, "n": 2, "C": 3, "m": 2})
