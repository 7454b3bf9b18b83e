"""Does sparse attention have the papers' values and a count for every pair?

The pairs are listed by the papers' definitions, one by one; nothing is shared with the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

import costmodel as cm
from costmodel.mixers.sparse import drawn
from costmodel.proofs.against_oracle import nonzero
from tests.mixers.held import (
    Sizes,
    equals_the_paper,
    everything_is_explained,
    modules_of,
    operations,
)
from tests.mixers.test_pairs import attention, closed
from tests.small import by_sizes

STRIDED, FIXED, LONGFORMER = "strided-attention", "fixed-attention", "longformer"
BIGBIRD = "bigbird"
ROUNDING = 1e-12
"""Sums of at most some dozen products of normal numbers, in float64."""


def near(i: int, k: int, at: Sizes) -> bool:
    """One of them is global, or they lie in a window."""
    return min(i, k) < at["s"] or abs(i - k) <= at["w"] // 2


SEES: Mapping[str, Callable[[int, int, Sizes], bool]] = {
    LONGFORMER: near,
    BIGBIRD: near,
    FIXED: lambda i, k, at: (
        k <= i and (i // at["B"] == k // at["B"] or k % at["B"] >= at["B"] - at["s"])
    ),
    STRIDED: lambda i, k, at: k <= i and (i - k < at["B"] or (i - k) % at["B"] == 0),
}
"""Whether row i attends to row k, both counted from 0."""

DRAWS: Mapping[str, Callable[[int, Sizes], Sequence[int]]] = {
    BIGBIRD: lambda i, at: drawn(*(at[x] for x in "lcws"))[i] if i >= at["s"] else (),
}
"""Rows that row i attends to beside these, each as often as it is named, counted from 1."""

BY: Mapping[str, Callable[[int, Sizes], str]] = {
    LONGFORMER: lambda i, at: "_g" if i < at["s"] else "",
}
"""How the names of a row's projections end, where there are several."""

SIZES: list[Sizes] = [
    {"l": 8, "d": 6, "n": 2, "B": 3, "w": 3, "s": 2, "c": 2},
    {"l": 6, "d": 4, "n": 1, "B": 2, "w": 2, "s": 1, "c": 1},
    {"l": 3, "d": 6, "n": 3, "B": 5, "w": 5, "s": 5, "c": 2},
    {"l": 3, "d": 2, "n": 2, "B": 1, "w": 7, "s": 2, "c": 5},
    {"l": 1, "d": 1, "n": 1, "B": 1, "w": 1, "s": 1, "c": 1},
]
"""A short last block, whole blocks, one short block, blocks of one row, one row; fewer global rows
than rows, and more; summaries of a part of a block, and of all of it; windows longer than the
length."""
each_name = pytest.mark.parametrize("name", SEES)
each_size = by_sizes(SIZES)


def seen(name: str, sizes: Sizes) -> list[list[int]]:
    """The rows that each row attends to."""
    rows = range(sizes["l"])
    draws = DRAWS.get(name)
    return [
        [
            *(k for k in rows if SEES[name](i, k, sizes)),
            *(k - 1 for k in (draws(i, sizes) if draws else ())),
        ]
        for i in rows
    ]


@each_name
@each_size
def test_it_equals_the_paper(name: str, sizes: Sizes) -> None:
    paper = attention(lambda at: seen(name, at), BY.get(name, lambda i, at: ""))
    equals_the_paper(name, sizes, paper, ROUNDING)


@each_name
@each_size
def test_operations_of_sparse_attention_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """Global attention has keys and values of its own: two maps more, where other rows have any."""
    pairs, l, d = [len(keys) for keys in seen(name, sizes)], sizes["l"], sizes["d"]
    expected = Counter(closed(pairs, d, sizes["n"]))
    more = 2 * l * (name in BY and l > sizes["s"])
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


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "implementation"), modules_of(SEES))
def test_nothing_is_left_unexplained(name: str, implementation: str) -> None:
    sizes = {"l": 5, "d": 6, "n": 2, "B": 2, "w": 3, "s": 2, "c": 3, "b": 2}
    everything_is_explained(name, sizes, implementation)


@pytest.mark.parametrize(("w", "s"), [(1, 1), (2, 1), (5, 2), (24, 3), (3, 12)])
def test_the_closed_form_of_a_window_and_global_rows(w: int, s: int) -> None:
    """The rows and columns of global rows, and a window over the others."""
    sizes, side = {"l": 12, "d": 2, "n": 2, "w": w, "s": s}, w // 2
    band = sum(min(12, r + side) - max(s + 1, r - side) + 1 for r in range(s + 1, 13))
    assert operations(LONGFORMER, sizes)["exp"] == 2 * (2 * s * 12 - s * s + band)


@pytest.mark.parametrize(("w", "s", "c"), [(1, 1, 1), (3, 2, 5), (24, 12, 2)])
def test_drawn_rows_are_counted_at_their_number(w: int, s: int, c: int) -> None:
    """c further pairs for each of l - s rows, in each of two heads."""
    sizes = {"l": 12, "d": 2, "n": 2, "w": w, "s": s, "c": c}
    more = operations(BIGBIRD, sizes)["exp"] - operations(LONGFORMER, sizes)["exp"]
    assert more == 2 * c * (12 - s)


@pytest.mark.parametrize(("w", "s"), [(1, 1), (5, 3)])
def test_rows_are_drawn_among_those_that_are_not_seen(w: int, s: int) -> None:
    """Each of 300 rows but the global ones is drawn; no row sees one twice, or as another does."""
    table = drawn(300, 10, w, s)
    rows = [
        sorted(k - 1 for k in table[i]) + [k for k in range(300) if near(i, k, {"w": w, "s": s})]
        for i in range(s, 300)
    ]
    assert all(len({*row}) == len(row) for row in rows)
    assert {k for row in table for k in row} == {*range(s + 1, 301)}
    assert len({*table}) == 300


def test_rows_are_drawn_twice_where_all_are_seen() -> None:
    assert all(len(row) == 4 and {*row} <= {1, 2, 3} for row in drawn(3, 4, 5, 1))


def test_a_window_is_not_causal() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(LONGFORMER), "inference")
