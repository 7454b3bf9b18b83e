"""Finds sizes at which a module may behave differently, from the conditions that its code tests.

Every condition that a run tests is followed along each letter to the sizes at which it changes. The
module is run at these sizes and their neighbours, and the conditions tested there are followed in
turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

from sympy import Function, Integer, Max, Min
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from profiler.tracing.interpolation import Point
from profiler.tracing.meta_run.size_guards import SizeGuards, size_guards
from profiler.tracing.meta_run.target import TraceError, listed_sizes
from profiler.tracing.size_samples import SizeSamples

FARTHEST = 2**24
"""The largest size that is searched for."""

LONGEST = 2**12
"""The largest divisor whose multiples are searched for."""

RUNS = 12
"""The largest number of runs that are made for their conditions."""

STEPS = 4
"""The largest number of different numbers with which one size is compared and followed."""

FOLLOWED = (Max, Min, FloorDiv, Mod, PythonMod)
"""Functions in conditions that can be followed."""


def run_breakpoints(points: SizeSamples, base: Point) -> list[Point]:
    """Run at the sizes at which conditions change along each letter, and at their neighbours;
    returns these points. A condition that cannot be followed becomes a doubt."""
    found: dict[Point, None] = {}
    continued: Counter[Any] = Counter()
    waiting = [base]
    for here in waiting:
        if waiting.index(here) == RUNS:
            points.doubt("it tests more conditions on its sizes than are followed")
            break
        guards = conditions_at(points, here)
        for condition in guards.conditions:
            holds, place = condition.holds, condition.place
            told, kind = compared(holds)
            if told in continued:
                continue
            continued.update({told, kind})
            if holds.atoms(Function) - holds.atoms(*FOLLOWED):
                points.doubt(f"it tests a condition on its sizes that is not followed {place}")
            elif continued[kind] > STEPS:
                points.doubt(f"it compares a size with more and more numbers {place}")
                continue
            for i, letter in enumerate(points.letters):
                for k in Along(holds, guards, letter).changes():
                    changed = [
                        points.moved(here, i, here[i] + steps * points.multiples[i])
                        for steps in (k - 1, k, k + 1)
                    ]
                    ran = [point for point in changed if _ran(points, base, point)]
                    found.update(dict.fromkeys(ran))
                    waiting += [p for p in ran if p == changed[1] and p not in waiting]
    return list(found)


def _ran(points: SizeSamples, base: Point, point: Point) -> bool:
    """Whether the module runs at a point; a run that would take too long becomes a doubt."""
    if not points.inside(point):
        return False
    if point not in points.seen and not points.patient(base, point):
        at = listed_sizes(points.named(point))
        points.doubt(f"what it tests of sizes changes at {at}, where a run takes too long")
        return False
    return points.told(point)


def conditions_at(points: SizeSamples, point: Point) -> SizeGuards:
    """The conditions that a run at a point tests."""
    sizes = points.variables.sizes
    try:
        further = {
            letter: sizes(points.named(points.moved(point, i, point[i] + points.multiples[i])))
            for i, letter in enumerate(points.letters)
        }
        found = size_guards(points.target, sizes(points.named(point)), further)
    except TraceError:  # the module cannot be made with a letter one step larger
        return SizeGuards()
    for doubt in found.doubts:
        points.doubt(doubt)
    return found


def compared(condition: Any) -> tuple[Any, Any]:
    """A key of a condition, equal for a condition and its negation; and the key without the
    constant with which a size is compared."""
    if not condition.is_Relational:
        return condition, ("kind", condition)
    apart = condition.lhs - condition.rhs
    told = min(apart, -apart, key=str)
    return told, ("kind", told - told.as_coeff_Add()[0])


class Along:
    """A condition on sizes, as a function of the number of steps by which one letter is larger."""

    def __init__(self, condition: Any, guards: SizeGuards, letter: str) -> None:
        self.condition = condition
        self.sizes = {
            symbol: (axis.size, axis.slopes.get(letter, 0))
            for symbol, axis in guards.axes.items()
            if symbol in condition.free_symbols
        }

    def at(self, expression: Any, k: int) -> Any:
        """The value of an expression with the letter k steps larger."""
        at = {symbol: Integer(size + k * more) for symbol, (size, more) in self.sizes.items()}
        return expression.xreplace(at)

    def changes(self) -> Iterator[int]:
        """Numbers of steps at which the two sides of the condition change their order, or at which
        a division leaves no remainder."""
        if not any(more for _, more in self.sizes.values()):
            return
        places = [2**power for power in range(FARTHEST.bit_length())]
        if divisions := self.condition.atoms(Mod, PythonMod):
            places = [k for division in divisions for k in self._period(*division.args)]
            yield from places[2::3]
        if self.condition.is_Relational:
            yield from self._crossings(self.condition.lhs - self.condition.rhs, places)

    def _crossings(self, apart: Any, places: Sequence[int]) -> Iterator[int]:
        """Numbers of steps at which a difference changes sign, at most one per pair of places."""

        def sign(k: int) -> int:
            value = self.at(apart, k)
            return int(bool(value > 0)) - int(bool(value < 0))

        for low, high in pairwise(places):
            if sign(low) == sign(high):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if sign(middle) == sign(low) else (low, middle)
            yield high

    def _period(self, dividend: Any, divisor: Any) -> Iterator[int]:
        """1, k - 1 and k, for the first number k of steps at which the divisor divides the
        dividend; nothing unless the divisor is a number from 2 to `LONGEST`."""
        if not divisor.is_Integer or not 1 < divisor <= LONGEST:
            return
        start, then = (int(self.at(dividend, k)) for k in (0, 1))
        whole = (k for k in range(1, divisor + 1) if (start + k * (then - start)) % divisor == 0)
        for k in islice(whole, 1):
            yield from (1, k - 1, k)
