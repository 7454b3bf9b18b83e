"""Do the rounds of a sweep cancel drift, and are its shards equal?"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, strategies as st

import costmodel as cm
from profiler.modules.registry import implementations
from profiler.records.reading import MeasureError
from profiler.run.request import Request
from profiler.sweep.order import blocks, part, shard, volume
from profiler.sweep.points import Block, Point
from tests.sweeping import CANDIDATES, grid, points_of, request


def rounds_of(block: Block) -> dict[int, list[tuple[str, str]]]:
    """The candidates of each round, in turn."""
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for place, point in enumerate(block.points):
        asked = point.request
        found[point.round].append((asked.mixer.name, asked.implementation.name))
        assert point.turn == place % len(CANDIDATES)
    return found


def test_a_block_is_every_candidate_at_equal_sizes_in_rounds_there_and_back() -> None:
    found = grid(rounds=4)
    assert sorted(block.name for block in found) == [
        f"forward pass, b = 1, l = {l}, d = 2, fp32" for l in (2, 3, 5)
    ]
    for block in found:
        rounds = rounds_of(block)
        assert [point.round for point in block.points] == [n for n in range(4) for _ in CANDIDATES]
        assert all(sorted(turns) == sorted(CANDIDATES) for turns in rounds.values())
        assert rounds[1] == rounds[0][::-1] and rounds[3] == rounds[2][::-1]
    assert len({tuple(rounds_of(block)[pair]) for block in found for pair in (0, 2)}) > 1


def test_sizes_in_braces_are_no_block() -> None:
    """They belong to a mixer, so that layers of unequal heads take turns."""
    explicit = implementations("self-attention+grouped")["explicit"]
    asked = [
        Request(cm.mixer(name), explicit, {"b": 1, "l": l, "d": 8, "n": 4, "g": g})
        for l in (2, 3)
        for name, g in (("gqa{g=2}", 2), ("gqa{g=1}", 1))
    ]
    assert {block.name: len(block.points) for block in blocks(asked, 1)} == {
        f"forward pass, b = 1, l = {l}, d = 8, n = 4, fp32": 2 for l in (2, 3)
    }


def test_a_straight_drift_changes_no_ratio() -> None:
    """Each measurement is one unit longer than the one before: the sums over both rounds agree."""
    for seed in range(20):
        for block in grid(seed=seed):
            spent: Counter[str] = Counter()
            for second, point in enumerate(block.points):
                spent[point.request.implementation.name + point.request.mixer.name] += second
            assert len(set(spent.values())) == 1


def test_the_order_is_that_of_the_seed_whatever_comes_first() -> None:
    asked = [request(*names, l=l) for l in (2, 3, 5, 7) for names in CANDIDATES]
    expected = [point.key for point in points_of(blocks(asked, 2, 11))]
    for seed in range(5):
        mixed = random.Random(seed).sample(asked, len(asked))
        assert [point.key for point in points_of(blocks(mixed, 2, 11))] == expected
    others = {tuple(block.name for block in grid((2, 3, 5, 7), seed=seed)) for seed in range(10)}
    assert len(others) > 5
    assert {point.order_seed for point in points_of(grid(seed=7))} == {7}


def test_what_is_asked_for_twice_is_one_point() -> None:
    twice = [request(l=3), request(l=3)]
    assert [point.key for point in points_of(blocks(twice, 1))] == [Point(twice[0]).key]


def test_what_differs_beside_shared_sizes_stays_together_and_phases_and_dtypes_part() -> None:
    attention = request("self-attention", "explicit", l=4)
    other_heads = request("self-attention", "explicit", l=4)
    other_heads = type(attention)(
        attention.mixer, attention.implementation, {**attention.sizes, "n": 2}
    )
    together = blocks([attention, other_heads, request(l=4)], 1)
    assert [len(block.points) for block in together] == [3]
    alone = blocks([attention, other_heads], 1)
    assert [len(block.points) for block in alone] == [1, 1]
    apart = blocks([request(l=4), request(l=4, dtype="bf16"), request(l=4, phase="backward")], 1)
    assert sorted(block.name for block in apart) == [
        "backward pass, b = 1, l = 4, d = 2, fp32",
        "forward pass, b = 1, l = 4, d = 2, bf16",
        "forward pass, b = 1, l = 4, d = 2, fp32",
    ]


@given(
    lengths=st.sets(st.integers(1, 300), min_size=1, max_size=40),
    of=st.integers(1, 12),
    rounds=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_shards_are_a_fair_partition(lengths: set[int], of: int, rounds: int, seed: int) -> None:
    whole = grid(sorted(lengths), rounds, seed)
    parts = [part(whole, number, of) for number in range(1, of + 1)]
    names = [block.name for found in parts for block in found]
    assert sorted(names) == sorted(block.name for block in whole)  # disjoint, and all of it
    order = {block.name: place for place, block in enumerate(whole)}
    for found in parts:
        assert all(block in whole for block in found)  # candidates stay together
        places = [order[block.name] for block in found]
        assert places == sorted(places)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    sums = [sum(map(volume, found)) for found in parts]
    assert max(sums) - min(sums) <= max(map(volume, whole))


def test_shards_do_not_depend_on_what_comes_first() -> None:
    whole = grid((2, 3, 5, 7, 11))
    for number in (1, 2):
        mine = [block.name for block in part(whole, number, 2)]
        assert sorted(mine) == sorted(b.name for b in part(whole[::-1], number, 2))


def test_what_a_shard_is() -> None:
    assert [shard("1/1"), shard(" 3/4 ")] == [(1, 1), (3, 4)]


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "-1/4", "1/0", "a/b", "1/4/2", "1.5/4"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(MeasureError, match="expected i/n, the i-th of n parts counted from 1"):
        shard(text)
