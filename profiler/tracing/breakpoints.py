"""At which sizes may a module do something else, going by the conditions that its code tests?

Every condition that a run tests is continued along each letter to the sizes at which it changes;
the module is run there and beside, and the conditions that are tested there are continued in turn.
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
"""No size above this one is looked for."""

LONGEST = 2**12
"""The longest remainder whose multiples are looked for."""

RUNS = 12
"""At most so many runs are made for their conditions."""

STEPS = 4
"""With so many numbers is one and the same size compared, at most."""

FOLLOWED = (Max, Min, FloorDiv, Mod, PythonMod)
"""Functions whose conditions change at the sizes that are looked for."""


def run_breakpoints(points: SizeSamples, base: Point) -> list[Point]:
    """Run at the sizes at which conditions change, beside `base` along each letter, and return all
    these points; what cannot be followed becomes a doubt."""
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
    """Whether the module runs at a point; where a run would take too long, that is a doubt."""
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
    except TraceError:  # with more of a letter the module is not made
        return SizeGuards()
    for doubt in found.doubts:
        points.doubt(doubt)
    return found


def compared(condition: Any) -> tuple[Any, Any]:
    """What a condition compares, the same for a condition and its opposite; and the same without
    the number that a size is compared with."""
    if not condition.is_Relational:
        return condition, ("kind", condition)
    apart = condition.lhs - condition.rhs
    told = min(apart, -apart, key=str)
    return told, ("kind", told - told.as_coeff_Add()[0])


class Along:
    """A condition on sizes, as a function of how many steps longer one letter is."""

    def __init__(self, condition: Any, guards: SizeGuards, letter: str) -> None:
        self.condition = condition
        self.sizes = {
            symbol: (axis.size, axis.slopes.get(letter, 0))
            for symbol, axis in guards.axes.items()
            if symbol in condition.free_symbols
        }

    def at(self, expression: Any, k: int) -> Any:
        """The value of an expression where the letter is k steps longer."""
        at = {symbol: Integer(size + k * more) for symbol, (size, more) in self.sizes.items()}
        return expression.xreplace(at)

    def changes(self) -> Iterator[int]:
        """Numbers of steps after which the sides of the condition change their order, or after
        which nothing remains of a division."""
        if not any(more for _, more in self.sizes.values()):
            return
        places = [2**power for power in range(FARTHEST.bit_length())]
        if divisions := self.condition.atoms(Mod, PythonMod):
            places = [k for division in divisions for k in self._period(*division.args)]
            yield from places[2::3]
        if self.condition.is_Relational:
            yield from self._crossings(self.condition.lhs - self.condition.rhs, places)

    def _crossings(self, apart: Any, places: Sequence[int]) -> Iterator[int]:
        """The numbers of steps after which a difference has another sign than one step before, one
        at most between two places."""

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
        """1, and the first number of steps after which nothing remains of a division by a number,
        and the one before."""
        if not divisor.is_Integer or not 1 < divisor <= LONGEST:
            return
        start, then = (int(self.at(dividend, k)) for k in (0, 1))
        whole = (k for k in range(1, divisor + 1) if (start + k * (then - start)) % divisor == 0)
        for k in islice(whole, 1):
            yield from (1, k - 1, k)
