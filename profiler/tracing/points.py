"""What does a module do at each of the sizes that were tried so far?"""

from __future__ import annotations

import time

from costmodel.constraints import Constraints
from profiler.tracing.fit import Point
from profiler.tracing.observe import PEAK, Observation, Quantity, observe
from profiler.tracing.recorder import Backend
from profiler.tracing.target import Target, TraceError, Variables, words

PATIENCE_S = 6.0
"""A size that would take longer than this is left out of a proof, and a smaller one is taken."""


class Points:
    """Observations of one module, each made once, at sizes of a case alone: `region` holds its
    conditions, each at least 0.

    `multiples` holds what each letter is a multiple of; `used` the points that formulas were found
    from, `notes` what must be said of the search.
    """

    def __init__(
        self,
        target: Target,
        sizes: Variables,
        backend: Backend,
        region: Constraints = frozenset(),
    ) -> None:
        self.region = region
        self.target = target
        self.variables = sizes
        self.backend = backend
        self.letters = tuple(sizes.over)
        self.multiples = list(sizes.over.values())
        self.seen: dict[Point, Observation] = {}
        self.used: set[Point] = set()
        self.refused: dict[Point, TraceError] = {}
        self.seconds: dict[Point, float] = {}
        self.notes: list[str] = []

    def named(self, point: Point) -> dict[str, int]:
        """A point by the letters."""
        return dict(zip(self.letters, point, strict=True))

    def moved(self, base: Point, i: int, place: int) -> Point:
        """A point with another size of one letter."""
        return (*base[:i], place, *base[i + 1 :])

    def inside(self, point: Point) -> bool:
        """Whether a point is one of the case."""
        sizes = self.named(point)
        return all(condition.rational(sizes) >= 0 for condition in self.region)

    def bound(self) -> list[int]:
        """The letters that the case bounds, by position."""
        bounded = {letter for condition in self.region for letter in condition.letters}
        return [i for i, letter in enumerate(self.letters) if letter in bounded]

    def at(self, point: Point, *, shapes: bool = False) -> Observation:
        """What the module does at a point; TraceError where it does not run there."""
        if point in self.refused:
            raise self.refused[point]
        if not self.inside(point):
            raise TraceError(f"{words(self.named(point))} lies outside of the case")
        known = self.seen.get(point)
        if known is not None and (known.shapes or not shapes):
            return known
        started = time.perf_counter()
        try:
            sizes = self.variables.sizes(self.named(point))
            found = observe(self.target, sizes, self.backend, shapes=shapes)
        except TraceError as error:
            self.refused[point] = error
            raise
        self.seconds[point] = time.perf_counter() - started
        self.seen[point] = found
        return found

    def numbers(self, point: Point) -> dict[Quantity, int]:
        """Everything at a point that a polynomial is sought for; the peak is a maximum."""
        self.used.add(point)
        return {q: n for q, n in self.at(point).quantities.items() if q != PEAK}

    def runs(self, point: Point) -> bool:
        """Whether the module can be run at a point."""
        try:
            self.at(point)
        except TraceError:
            return False
        return True

    def told(self, point: Point) -> bool:
        """Whether the module runs at a point; why not becomes a note."""
        try:
            self.at(point)
        except TraceError as error:
            self.notes.append(f"not proven at {words(self.named(point))}: {error}")
            return False
        return True

    def patient(self, base: Point, i: int, place: int, part: float = 1.0) -> bool:
        """Whether another size of one letter takes no longer than a part of what is waited for."""
        more = self.slope(base, i) * (place - base[i])
        return self.seconds[base] + more <= PATIENCE_S * part

    def slope(self, base: Point, i: int) -> float:
        """Seconds that one more of a letter takes, from the operations that it adds."""
        here = self.at(base)
        there = self.at(self.moved(base, i, base[i] + 2 * self.multiples[i]))
        more = len(there.alive) - len(here.alive)
        each = min(self.seconds.values()) / max(1, len(here.alive))
        return each * more / (2 * self.multiples[i])

    def above(self, least: Point) -> list[Point]:
        """The points so far at which every letter has at least some size."""
        return [p for p in self.seen if all(x >= y for x, y in zip(p, least, strict=True))]
