"""How long will the rest of a sweep take?"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence

from profiler.sweep.points import Block, Point


class Remaining:
    """An estimate from the points that are done: those at equal sizes, or all where none is."""

    def __init__(
        self,
        blocks: Sequence[Block],
        side_by_side: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.block_of = {id(point): block.name for block in blocks for point in block.points}
        self.left = dict.fromkeys(self.block_of)
        self.points = len(self.block_of)
        self.workers = max(1, min(side_by_side, len(blocks)))
        self.clock = clock
        self.started: dict[int, float] = {}
        self.seconds: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """How many points are."""
        return self.points - len(self.left)

    def begun(self, point: Point) -> None:
        """A point is being measured; only the first call counts."""
        with self._lock:
            self.started.setdefault(id(point), self.clock())

    def ended(self, point: Point) -> None:
        """A point is done."""
        with self._lock:
            self.left.pop(id(point), None)
            if id(point) in self.started:
                took = self.clock() - self.started[id(point)]
                self.seconds.setdefault(self.block_of[id(point)], []).append(took)

    def estimate_s(self) -> float | None:
        """Seconds until all is done; None before anything is."""
        with self._lock:
            if not self.seconds:
                return None
            means = {name: statistics.fmean(found) for name, found in self.seconds.items()}
            overall = statistics.fmean([s for found in self.seconds.values() for s in found])
            total = sum(means.get(self.block_of[point], overall) for point in self.left)
            return total / self.workers

    def words(self) -> str:
        """The estimate behind what happens now, "" where there is none."""
        seconds = self.estimate_s()
        return "" if seconds is None else f"; about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """In words that fit how well it is known.

    >>> duration(8.3), duration(250), duration(9000), duration(400000)
    ('9 s', '5 min', '2 h 30 min', '4 d 16 h')
    """
    whole = int(-(-seconds // 1))
    minutes, hours = -(-whole // 60), -(-whole // 3600)
    if whole < 100:
        return f"{whole} s"
    if minutes < 100:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"
