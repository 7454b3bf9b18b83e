"""Is sparse attention that of the papers: their values, and a count for every pair?

The pairs are listed by the papers' definitions, one by one; nothing is shared with the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
from tests.mixers.held import Sizes, equals_the_paper, everything_is_explained, operations
from tests.mixers.test_pairs import attention, closed
from tests.small import by_sizes

STRIDED, FIXED, LONGFORMER = "strided-attention", "fixed-attention", "longformer"
ROUNDING = 1e-12
"""Sums of at most some dozen products of normal numbers, in float64."""

SEES: Mapping[str, Callable[[int, int, Sizes], bool]] = {
    LONGFORMER: lambda i, k, at: min(i, k) < at["s"] or abs(i - k) <= at["w"] // 2,
    FIXED: lambda i, k, at: (
        k <= i and (i // at["B"] == k // at["B"] or k % at["B"] >= at["B"] - at["s"])
    ),
    STRIDED: lambda i, k, at: k <= i and (i - k < at["B"] or (i - k) % at["B"] == 0),
}
"""Whether row i attends to row k, both counted from 0."""

BY: Mapping[str, Callable[[int, Sizes], str]] = {
    LONGFORMER: lambda i, at: "_g" if i < at["s"] else "",
}
"""How the names of a row's projections end, where there are several."""

SIZES: list[Sizes] = [
    {"l": 8, "d": 6, "n": 2, "B": 3, "w": 3, "s": 2},
    {"l": 6, "d": 4, "n": 1, "B": 2, "w": 2, "s": 1},
    {"l": 3, "d": 6, "n": 3, "B": 5, "w": 5, "s": 5},
    {"l": 3, "d": 2, "n": 2, "B": 1, "w": 7, "s": 2},
    {"l": 1, "d": 1, "n": 1, "B": 1, "w": 1, "s": 1},
]
"""A short last block, whole blocks, one short block, blocks of one row, one row; fewer global rows
than rows, and more; summaries of a part of a block, and of all of it; windows longer than the
length."""
each_name = pytest.mark.parametrize("name", SEES)
each_size = by_sizes(SIZES)


def seen(name: str, sizes: Sizes) -> list[list[int]]:
    """The rows that each row attends to."""
    rows = range(sizes["l"])
    return [[k for k in rows if SEES[name](i, k, sizes)] for i in rows]


@each_name
@each_size
def test_it_equals_the_paper(name: str, sizes: Sizes) -> None:
    paper = attention(lambda at: seen(name, at), BY.get(name, lambda i, at: ""))
    equals_the_paper(name, sizes, paper, ROUNDING)


@each_name
@each_size
def test_operations(name: str, sizes: Sizes) -> None:
    """Global attention has keys and values of its own: two maps more."""
    pairs, l, d = [len(keys) for keys in seen(name, sizes)], sizes["l"], sizes["d"]
    expected, more = Counter(closed(pairs, d, sizes["n"])), 2 * l * (name in BY)
    expected.update(mul=more * d * d, add=more * d * (d - 1))
    assert operations(name, sizes) == nonzero(expected)


@each_size
def test_a_token_of_strided_attention(sizes: Sizes) -> None:
    """It sees min(t, B) + floor((t - 1)/B) rows; every row is read again, so all are held."""
    d, B = sizes["d"], sizes["B"]
    for t in range(1, sizes["l"] + 4):
        at = {**sizes, "l": max(t, sizes["l"]), "t": t}
        found = operations(STRIDED, at, phase="inference")
        assert found == closed([min(t, B) + (t - 1) // B], d, sizes["n"])
        assert cm.state(cm.mixer(STRIDED)).at(**at) == 2 * d * t


@each_size
def test_a_token_of_fixed_attention(sizes: Sizes) -> None:
    """It sees its block and min(s, B) rows of each before; these, and a short block, are held."""
    d, B, kept = sizes["d"], sizes["B"], min(sizes["s"], sizes["B"])
    for t in range(1, sizes["l"] + 4):
        at = {**sizes, "l": max(t, sizes["l"]), "t": t}
        before, own = divmod(t - 1, B)
        found = operations(FIXED, at, phase="inference")
        assert found == closed([before * kept + own + 1], d, sizes["n"])
        assert cm.state(cm.mixer(FIXED)).at(**at) == 2 * d * (t // B * kept + t % B)


@pytest.mark.parametrize(("B", "s"), [(1, 1), (2, 1), (3, 2), (4, 4), (6, 9), (12, 5)])
def test_the_closed_form_of_fixed_pairs(B: int, s: int) -> None:
    """l (B + 1)/2 within blocks, s B of each two blocks."""
    blocks = 12 // B
    pairs = 12 * (B + 1) // 2 + min(s, B) * B * (blocks * (blocks - 1) // 2)
    assert operations(FIXED, {"l": 12, "d": 2, "n": 2, "B": B, "s": s})["exp"] == 2 * pairs


@pytest.mark.parametrize("B", [1, 2, 3, 4, 6, 12])
def test_the_closed_form_of_strided_pairs(B: int) -> None:
    """l B - B (B - 1)/2 of the window, l (l/B - 1)/2 of the strides."""
    sizes = {"l": 12, "d": 2, "n": 2, "B": B}
    pairs = 12 * B - B * (B - 1) // 2 + 12 * (12 // B - 1) // 2
    assert operations(STRIDED, sizes)["exp"] == 2 * pairs


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"l": 5, "d": 6, "n": 2, "B": 2, "w": 3, "s": 2, "b": 2})


@pytest.mark.parametrize(("w", "s"), [(1, 1), (2, 1), (5, 2), (24, 3), (3, 12)])
def test_the_closed_form_of_a_window_and_global_rows(w: int, s: int) -> None:
    """The rows and columns of global rows, and a window over the others."""
    sizes, side = {"l": 12, "d": 2, "n": 2, "w": w, "s": s}, w // 2
    band = sum(min(12, r + side) - max(s + 1, r - side) + 1 for r in range(s + 1, 13))
    assert operations(LONGFORMER, sizes)["exp"] == 2 * (2 * s * 12 - s * s + band)


def test_a_window_is_not_causal() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(LONGFORMER), "inference")
