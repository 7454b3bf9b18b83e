"""What do argmax, top-k and sort do, comparison by comparison, and which positions come out?

Genuine algorithms over contenders that know how many comparisons deep they are: a knockout, a
knockout for each position with the earlier winners masked, and Batcher's bitonic network. Of equal
values the first counts as the larger one where the largest is sought, and as the smaller one where
entries are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

NOWHERE = 0
"""The position of what is found where nothing is left: outside every array."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An entry at a position, how deep in comparisons it is, and whether it is out of the race."""

    value: float
    position: int
    depth: int = 0
    out: bool = False


class Comparisons:
    """How many comparisons were made, and how deep the deepest is."""

    def __init__(self) -> None:
        self.number = 0
        self.deepest = 0

    def compared(self, *pair: Contender) -> tuple[Contender, ...]:
        """Two contenders after they were compared, both one comparison deeper."""
        self.number += 1
        depth = 1 + max(contender.depth for contender in pair)
        self.deepest = max(self.deepest, depth)
        return tuple(replace(contender, depth=depth) for contender in pair)


def _knockout(contenders: Sequence[Contender], made: Comparisons) -> Contender:
    """The largest contender: neighbours meet, the winners' neighbours meet, until one is left."""
    left = list(contenders)
    while len(left) > 1:
        pairs = zip(left[::2], left[1::2], strict=False)
        winners = [max(made.compared(*pair), key=_size) for pair in pairs]
        left = winners + left[len(left) - len(left) % 2 :]
    return left[0]


def _size(contender: Contender) -> tuple[bool, float, int]:
    return not contender.out, contender.value, -contender.position


def argmax(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The position of the largest entry."""
    return [_knockout(entries, made).position]


def top_k(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The positions of the largest entries; each search waits for the mask of the one before."""
    found: list[int] = []
    left = list(entries)
    for _ in range(kept):
        winner = _knockout(left, made)
        found.append(NOWHERE if winner.out else winner.position)
        left = [
            replace(c, depth=winner.depth, out=c.out or c.position == winner.position) for c in left
        ]
    return found


def sort(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The positions from the smallest entry to the largest, through a bitonic network.

    It is padded to a power of two with entries that are larger than all, compared like any other.
    """
    lines = list(entries)
    end = max(c.position for c in lines)
    while len(lines) & (len(lines) - 1):
        lines.append(Contender(math.inf, end + len(lines), out=True))
    run = 2
    while run <= len(lines):
        apart = run // 2
        while apart:
            _column(lines, run, apart, made)
            apart //= 2
        run *= 2
    return [contender.position for contender in lines[: len(entries)]]


def _column(lines: list[Contender], run: int, apart: int, made: Comparisons) -> None:
    """Comparators between lines some way apart; every second run falls."""
    for low in range(len(lines)):
        if low & apart:
            continue
        high = low + apart
        pair = sorted(made.compared(lines[low], lines[high]), key=_place)
        lines[low], lines[high] = pair[::-1] if low & run else pair


def _place(contender: Contender) -> tuple[bool, float, int]:
    return contender.out, contender.value, contender.position


CHOICES: Mapping[str, Callable[[Sequence[Contender], int, Comparisons], list[int]]] = {
    "argmax": argmax,
    "top-k": top_k,
    "sort": sort,
}
"""Kind -> the positions chosen among entries, as many as are kept."""
