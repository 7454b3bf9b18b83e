"""Observations (operations, bytes) of a module at each of the sizes at which it was run.

A point is a tuple of sizes, one per letter; letter i has the position i in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Number, Poly
from costmodel.symbolic.printing import conditions_words
from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.observe import BYTES, PEAK, Observation, Quantity, observe
from profiler.tracing.meta_run.operation import KnownCall
from profiler.tracing.meta_run.recorder import Backend, CallKey
from profiler.tracing.meta_run.size_guards import SizeGuards
from profiler.tracing.meta_run.target import Sizes, Target, TraceError, Variables, listed_sizes

Key = TypeVar("Key")

PATIENCE = 12_000
"""The largest expected number of operations of a run in a proof; larger sizes are replaced by
smaller ones. Operations instead of seconds give the same formulas and the same proof on every
machine; a thousand take about 60 ms."""


SHORT = 4_000
"""If every run dispatches more operations than this, only the runs that formulas and their proof
need are made at first; if the proof fails, the search is as thorough as usual."""


MOST_RUNS = 10_000
"""The largest number of runs of a trace with all its cases. A run mostly takes 10 to 20 ms, so that
a search without an end stops after two or three minutes; searches that find formulas need hundreds
of runs, and those of many cases, such as BigBird's and fixed attention's, some thousands."""


class OutOfRuns(Exception):
    """Raised if a trace has made `MOST_RUNS` runs."""


@dataclass
class Effort:
    """The number of runs that a trace has made, all its cases together."""

    runs: int = 0
    stopped: bool = False
    """Whether a run was refused."""

    def take(self) -> None:
        """Count a run; OutOfRuns if the trace has made the most that it may make."""
        if self.runs >= MOST_RUNS:
            self.stopped = True
            raise OutOfRuns
        self.runs += 1

    def words(self, name: str) -> str:
        """A sentence on why the search for formulas of the module `name` stopped, with advice."""
        return (
            f"{name}: {self.runs:,} runs at sizes of every letter do not suffice to find and prove "
            f"formulas: name fewer letters in --over, and fix the others, as in --let d=8"
        )


class SizeSamples:
    """Observations of one module at points of one case, each run made once. `region` holds the
    conditions of the case, polynomials that are at least 0. `seen` and `refused` map a point to the
    observation or to why the module does not run there; `letters` are the sizes' names.

    `multiples` holds, per letter, the number whose multiples are tried. `used` are the points from
    which formulas were found, `notes` remarks for the user, `doubts` reasons why formulas that
    agree with every run may fail elsewhere, `boundaries` polynomials whose sign the module tests.
    `targets` are run in turn at a point: here the module alone. `guards` holds the conditions that
    the run at a point tests, `met` the calls of all runs, `fewest` the smallest number of
    operations of a run.
    """

    def __init__(
        self,
        target: Target,
        sizes: Variables,
        backend: Backend,
        region: Constraints = frozenset(),
        patience: float = PATIENCE,
        *,
        memory: bool = True,
        effort: Effort | None = None,
    ) -> None:
        """Begin without runs of `target` at `sizes` (letters, and formulas of further sizes).
        `region`: the conditions of the case, empty for all sizes; `patience`: the most operations
        that a run is expected to take; `memory`: whether bytes get formulas; `effort`: the runs of
        the trace so far, by default none."""
        self.region = region
        self.memory = memory
        self.effort = Effort() if effort is None else effort
        self.patience = patience
        self.target = target
        self.targets = [target]
        self.variables = sizes
        self.backend = backend
        self.letters = tuple(sizes.over)
        self.multiples = list(sizes.over.values())
        self.seen: dict[Point, Observation] = {}
        self.met: dict[CallKey, KnownCall] = {}
        self.used: set[Point] = set()
        self.refused: dict[Point, TraceError] = {}
        self.fewest: int | None = None
        self.notes: list[str] = []
        self.doubts: list[str] = []
        self.boundaries: dict[Poly, None] = {}
        self.guards: dict[Point, SizeGuards] = {}

    def named(self, point: Point) -> dict[str, int]:
        """A point as a size per letter."""
        return dict(zip(self.letters, point, strict=True))

    def moved(self, base: Point, i: int, place: int) -> Point:
        """The point with `place` as the size of letter i."""
        return (*base[:i], place, *base[i + 1 :])

    def inside(self, point: Point) -> bool:
        """Whether a point lies in the case."""
        sizes = self.named(point)
        return all(condition.rational(sizes) >= 0 for condition in self.region)

    def slope(self, condition: Poly, i: int) -> Number:
        """The constant coefficient of letter i in a condition, floors left out; 0 in l*d."""
        with suppress(ValueError):
            return condition.coefficient(self.letters[i]).constant() or 0
        return 0

    def bound(self) -> list[int]:
        """The positions of the letters that the conditions of the case contain."""
        bounded = {letter for condition in self.region for letter in condition.letters}
        return [i for i, letter in enumerate(self.letters) if letter in bounded]

    def at(self, point: Point, *, shapes: bool = False) -> Observation:
        """The observation (all numbers of a run) at a point, from an earlier run if there is one.

        Args:
            shapes: whether the shapes of all results are needed; a run without them is repeated.

        Raises:
            TraceError: the point lies outside the case, or the module does not run there.
            OutOfRuns: the trace has made the most runs that it may make.
        """
        if point in self.refused:
            raise self.refused[point]
        known = self.seen.get(point)
        if known is not None and (known.shapes or not shapes):
            return known
        if not self.inside(point):
            raise TraceError(
                f"{listed_sizes(self.named(point))} lies outside of the case "
                f"{conditions_words(self.region)}"
            )
        self.effort.take()
        try:
            sizes = self.variables.sizes(self.named(point))
            found = self.observed(self.runs_at(sizes, shapes=shapes))
        except TraceError as error:
            self.refused[point] = error
            raise
        self.seen[point] = found
        self.fewest = min(len(found.alive), self.fewest or len(found.alive))
        return found

    def numbers(self, point: Point) -> dict[Quantity, int]:
        """A dict: quantity (part, kind) -> its number at a point, for every quantity except the
        peak, which is a maximum and no polynomial, and without `memory` except all bytes. Notes
        the point in `used`; TraceError if it lies outside the case or the module does not run."""
        found = self.at(point)  # raises before the point counts as used
        self.used.add(point)
        numbers = {q: n for q, n in found.quantities.items() if q != PEAK}
        return numbers if self.memory else {q: n for q, n in numbers.items() if q[0] != BYTES}

    def runs_at(self, sizes: Sizes, *, shapes: bool = False) -> list[Observation]:
        """The observations of one run of each of `targets`; with `shapes` the shapes of results."""
        return [
            observe(target, sizes, self.backend, shapes=shapes, met=self.met)
            for target in self.targets
        ]

    def observed(self, runs: Sequence[Observation]) -> Observation:
        """The module's observation, from one run of each of `targets`. `BlockSamples` overrides
        this method and `joined`; here the module is the only target."""
        return runs[0]

    def joined(self, numbers: Sequence[int]) -> int:
        """A number of the module, from the numbers of the targets."""
        return numbers[0]

    def joined_counts(self, counts: Sequence[Mapping[Key, int]]) -> dict[Key, int]:
        """A dict: name -> the module's number, from the numbers in the runs of each of `targets`
        (such as the module with fewer equal blocks); numbers that are 0 are left out."""
        names = dict.fromkeys(name for each in counts for name in each)
        found = {name: self.joined([each.get(name, 0) for each in counts]) for name in names}
        return {name: number for name, number in found.items() if number}

    @property
    def slow(self) -> bool:
        """Whether every run so far dispatched more than `SHORT` operations; False before any."""
        return (self.fewest or 0) > SHORT

    def runs(self, point: Point) -> bool:
        """Whether the module runs at a point."""
        try:
            self.at(point)
        except TraceError:
            return False
        return True

    def runs_or_notes(self, point: Point) -> bool:
        """Whether the module runs at a point (a tuple of sizes); if not, a note says why."""
        try:
            self.at(point)
        except TraceError as error:
            self.notes.append(f"not proven at {listed_sizes(self.named(point))}: {error}")
            return False
        return True

    def doubt(self, reason: str) -> None:
        """Note once a reason why formulas that agree with every run may fail elsewhere."""
        if reason not in self.doubts:
            self.doubts.append(reason)

    def affordable(self, base: Point, point: Point, part: float = 1.0) -> bool:
        """Whether a run at a point is expected to stay within `part` of the patience."""
        return self.expected(base, point) <= self.patience * part

    def expected(self, base: Point, point: Point) -> float:
        """The expected number of operations of a run at a point: the number at `base`, times the
        growth along each letter (as if sizes were products of letters)."""
        times = 1.0
        for i, place in enumerate(point):
            times *= self.growth(base, i, place)
        return len(self.at(base).alive) * times

    def growth(self, base: Point, i: int, place: int) -> float:
        """The expected number of operations with `place` as the size of letter i, divided by the
        number at `base`; at least 1. The estimate is a parabola through the first three sizes of
        the letter or, if it gives less, through sizes two to four, as the first may be a separate
        case. 1 if the module fails at one of the first three sizes."""
        places = [self.moved(base, i, base[i] + k * self.multiples[i]) for k in range(4)]
        if not all(map(self.runs, places[:3])):
            return 1.0
        counts = [len(self.at(p).alive) for p in places if self.runs(p)]
        found = []
        for k, (first, second, third) in enumerate(
            zip(counts, counts[1:], counts[2:], strict=False)
        ):
            # Newton's forward differences: the parabola's rise after so many steps
            steps = (place - base[i]) / self.multiples[i] - k
            more = steps * (second - first) + steps * (steps - 1) / 2 * (third - 2 * second + first)
            found.append((first + more) / max(1, counts[0]))
        return max(1.0, min(found))

    def above(self, least: Point) -> list[Point]:
        """The observed points at which no letter is smaller than in `least`."""
        return [p for p in self.seen if all(x >= y for x, y in zip(p, least, strict=True))]
