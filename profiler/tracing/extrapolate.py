"""What would a module do at sizes where it was not run, if its shapes continue as at small sizes?

Where runs at several sizes dispatch the same sequence of operations, the counts follow from the
whole numbers that each operation is called with, and these numbers are simpler functions of the
sizes than the counts: an extent is n*h where the count of a matrix product is l*n**2*h**2. So these
numbers are interpolated from few runs, and each operation whose numbers vary is counted once on the
meta device. A slow module thus needs fewer runs before there are formulas; the runs that prove the
formulas are made as for any other module.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from costmodel.symbolic.polynomial import Poly
from profiler.tracing.interpolation import Point, axis, interpolate, powers_up_to
from profiler.tracing.meta_run.observe import Observation, numbers_of
from profiler.tracing.meta_run.operation import Cost, TensorLayout, summed_by_operation
from profiler.tracing.meta_run.recorder import Recorder
from profiler.tracing.meta_run.run_log import (
    RunLog,
    Unlike,
    alike_but_for_numbers,
    renumbered,
    whole_numbers,
)
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.size_samples import Extrapolator, SizeSamples


@dataclass(frozen=True)
class Strand:
    """The positions in a run log that hold the same object at every size tried.

    `value` is what they hold at the smallest sizes, `varying` the positions within `value` of whole
    numbers that depend on the sizes, `formulas` these numbers as polynomials.
    """

    places: Sequence[int]
    value: Any
    varying: tuple[int, ...]
    formulas: dict[int, Poly] = field(default_factory=dict)

    def at(self, sizes: Mapping[str, int]) -> Any:
        """What the positions would hold at other sizes."""
        numbers = list(whole_numbers(self.value))
        for place in self.varying:
            numbers[place] = int(self.formulas.get(place, Poly()).rational(sizes))
        return renumbered(self.value, iter(numbers))


def strands(listed: Sequence[Sequence[Any]], values: Sequence[Sequence[Any]]) -> list[Strand]:
    """The strands of some runs. `listed` holds, per run, the object at each position (equal objects
    are told by identity), `values` what is compared at each position.

    Raises:
        Unlike: the runs differ in more than whole numbers.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, column in enumerate(zip(*(map(id, held) for held in listed), strict=True)):
        places.setdefault(column, []).append(place)
    found = []
    for chosen in places.values():
        first, *others = (held[chosen[0]] for held in values)
        if not all(alike_but_for_numbers(first, other) for other in others):
            raise Unlike
        numbers = zip(*map(whole_numbers, (first, *others)), strict=True)
        varying = tuple(place for place, each in enumerate(numbers) if len(set(each)) > 1)
        found.append(Strand(chosen, first, varying))
    return found


class Extrapolation:
    """What one module would do at other sizes, extrapolated from its run logs near the first
    sizes."""

    def __init__(self, points: SizeSamples, base: Point) -> None:
        """Raises Unlike, or TraceError where the module does not run at a size that is needed."""
        self.points = points
        steps = points.multiples
        moves = [(i, k * step) for i, step in enumerate(steps) for k in (1, 2)]
        near = [base, *(points.moved(base, i, base[i] + more) for i, more in moves)]
        self.first = self.course(base)
        courses = [self.course(point) for point in near]
        self.calls = strands(*zip(*map(arguments_of_calls, courses), strict=True))
        self.held = strands([c.held for c in courses], [c.held for c in courses])
        self.owned = strands([c.parameters for c in courses], [c.parameters for c in courses])
        axes = [
            axis(letter, powers_up_to(letter, 1), [start, start + step])
            for letter, start, step in zip(points.letters, base, steps, strict=True)
        ]
        for (strand, place), poly in interpolate(axes, self.numbers).items():
            self.all()[strand].formulas[place] = poly
        self.made: dict[Point, Observation] = {}
        for point in near:
            seen, expected = points.at(point), self.at(point)
            if (seen.quantities, seen.alive) != (expected.quantities, expected.alive):
                raise Unlike
        self.made.clear()

    def all(self) -> list[Strand]:
        """Every strand: of calls, of storages and of parameters."""
        return [*self.calls, *self.held, *self.owned]

    def course(self, point: Point) -> RunLog:
        """The log of the run at a point; Unlike where the run dispatched other operations than the
        first."""
        course = self.points.at(point).course
        if course is None or (hasattr(self, "first") and not self.first.like(course)):
            raise Unlike
        return course

    def numbers(self, point: Point) -> dict[tuple[int, int], int]:
        """The varying whole numbers of a run, by strand and position."""
        course = self.course(point)
        found: dict[tuple[int, int], int] = {}
        told = [arguments_of_calls(course)] * len(self.calls)
        told += [(course.held, course.held)] * len(self.held)
        told += [(course.parameters, course.parameters)] * len(self.owned)
        for k, (strand, (same, held)) in enumerate(zip(self.all(), told, strict=True)):
            value = held[strand.places[0]]
            if len({id(same[place]) for place in strand.places}) > 1:
                raise Unlike
            if not alike_but_for_numbers(strand.value, value):
                raise Unlike
            numbers = list(whole_numbers(value))
            found.update({(k, place): numbers[place] for place in strand.varying})
        return found

    def at(self, point: Point) -> Observation:
        """What the module would do at a point; Unlike where an operation does not run there."""
        if point not in self.made:
            self.made[point] = self.observation(self.points.named(point))
        return self.made[point]

    def observation(self, sizes: Mapping[str, int]) -> Observation:
        """What the module would do at sizes given by letter."""
        bytes_of = [0] * len(self.first.held)
        for strand in self.held:
            size = strand.at(sizes).bytes
            for place in strand.places:
                bytes_of[place] = size
        alive = self.first.alive(bytes_of)
        found = numbers_of(
            summed_by_operation(self.costs(sizes)),
            sum(strand.at(sizes).entries * len(strand.places) for strand in self.owned),
            sum(bytes_of[place] for place in self.first.saved),
            sum(bytes_of),
            alive,
        )
        return Observation(found, array("q", alive), self.first.names)

    def costs(self, sizes: Mapping[str, int]) -> Iterable[tuple[str, str, int, Cost]]:
        """Phase, name, number of calls and cost of every strand of calls."""
        recorder = Recorder()
        for strand in self.calls:
            phase, made = self.first.calls[strand.places[0]]
            cost = made.cost
            if strand.varying:
                args, kwargs = tree_map(_empty, strand.at(sizes))
                try:
                    with torch.no_grad():
                        result = made.kind.func(*args, **kwargs)
                    cost = recorder.cost(made.kind, args, kwargs, result)
                except (RuntimeError, TypeError, ValueError, IndexError) as error:
                    raise Unlike from error
            yield phase, made.kind.name, len(strand.places), cost


def arguments_of_calls(course: RunLog) -> tuple[Sequence[Any], Sequence[Any]]:
    """The calls of a run log, and the arguments of each call."""
    return course.calls, [made.arguments for _, made in course.calls]


def _empty(leaf: Any) -> Any:
    return leaf.empty() if isinstance(leaf, TensorLayout) else leaf


def extrapolator(points: SizeSamples, base: Point) -> Extrapolator | None:
    """A function from sizes to what the module would do there; None where runs near the first sizes
    differ in more than whole numbers, or the numbers do not extrapolate."""
    try:
        found = Extrapolation(points, base)
    except (Unlike, TraceError):
        return None
    finally:
        points.followed = False
        points.seen.update({p: replace(seen, course=None) for p, seen in points.seen.items()})

    def foreseen(point: Point) -> Observation | None:
        try:
            return found.at(point)
        except Unlike:
            return None

    return foreseen
