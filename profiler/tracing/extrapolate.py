"""What would a module do at sizes where it was not run, if its shapes go on as near the first ones?

Where the same operations follow each other, counts follow from the whole numbers that they are
called with, and these are simple in the sizes where the counts are not: an extent n*h where a
product of matrices takes l*n**2*h**2. They are found from few runs, and every operation that
differs in them is counted once. So a slow module is run at fewer sizes before there are formulas;
what these are proven on, runs as ever.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from costmodel.symbolic.polynomial import Poly
from profiler.tracing.interpolation import Point, axis, interpolate, powers
from profiler.tracing.meta_run.observe import Observation, numbers_of
from profiler.tracing.meta_run.operation import Cost, Layout, by_operation
from profiler.tracing.meta_run.recorder import Recorder
from profiler.tracing.meta_run.run_log import Course, Unlike, kindred, renumbered, whole_numbers
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.size_samples import Foresight, Points


@dataclass(frozen=True)
class Strand:
    """Places in a course that hold the same at each of several sizes; `value` is what the first
    holds at the least sizes, `varying` the positions of whole numbers that depend on the sizes."""

    places: Sequence[int]
    value: Any
    varying: tuple[int, ...]
    formulas: dict[int, Poly] = field(default_factory=dict)

    def at(self, sizes: Mapping[str, int]) -> Any:
        """What the places would hold at other sizes."""
        numbers = list(whole_numbers(self.value))
        for place in self.varying:
            numbers[place] = int(self.formulas.get(place, Poly()).rational(sizes))
        return renumbered(self.value, iter(numbers))


def strands(listed: Sequence[Sequence[Any]], values: Sequence[Sequence[Any]]) -> list[Strand]:
    """The strands of some runs, each a list of what it holds place by place, told apart by
    identity, and of what is compared.

    Raises:
        Unlike: they differ in more than whole numbers.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, column in enumerate(zip(*(map(id, held) for held in listed), strict=True)):
        places.setdefault(column, []).append(place)
    found = []
    for chosen in places.values():
        first, *others = (held[chosen[0]] for held in values)
        if not all(kindred(first, other) for other in others):
            raise Unlike
        numbers = zip(*map(whole_numbers, (first, *others)), strict=True)
        varying = tuple(place for place, each in enumerate(numbers) if len(set(each)) > 1)
        found.append(Strand(chosen, first, varying))
    return found


class Foreseen:
    """What one module would do, by the courses that it took near some sizes."""

    def __init__(self, points: Points, base: Point) -> None:
        """Raises Unlike, or TraceError where the module does not run at a size that is needed."""
        self.points = points
        steps = points.multiples
        moves = [(i, k * step) for i, step in enumerate(steps) for k in (1, 2)]
        near = [base, *(points.moved(base, i, base[i] + more) for i, more in moves)]
        self.first = self.course(base)
        courses = [self.course(point) for point in near]
        self.calls = strands(*zip(*map(called, courses), strict=True))
        self.held = strands([c.held for c in courses], [c.held for c in courses])
        self.owned = strands([c.parameters for c in courses], [c.parameters for c in courses])
        axes = [
            axis(letter, powers(letter, 1), [start, start + step])
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
        """Every strand."""
        return [*self.calls, *self.held, *self.owned]

    def course(self, point: Point) -> Course:
        """That of a run; Unlike where it is none of the same operations as the first."""
        course = self.points.at(point).course
        if course is None or (hasattr(self, "first") and not self.first.like(course)):
            raise Unlike
        return course

    def numbers(self, point: Point) -> dict[tuple[int, int], int]:
        """The whole numbers that vary, by strand and place, in a run."""
        course = self.course(point)
        found: dict[tuple[int, int], int] = {}
        told = [called(course)] * len(self.calls)
        told += [(course.held, course.held)] * len(self.held)
        told += [(course.parameters, course.parameters)] * len(self.owned)
        for k, (strand, (same, held)) in enumerate(zip(self.all(), told, strict=True)):
            value = held[strand.places[0]]
            if len({id(same[place]) for place in strand.places}) > 1:
                raise Unlike
            if not kindred(strand.value, value):
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
        """The same at sizes by their letters."""
        bytes_of = [0] * len(self.first.held)
        for strand in self.held:
            size = strand.at(sizes).bytes
            for place in strand.places:
                bytes_of[place] = size
        alive = self.first.alive(bytes_of)
        found = numbers_of(
            by_operation(self.costs(sizes)),
            sum(strand.at(sizes).entries * len(strand.places) for strand in self.owned),
            sum(bytes_of[place] for place in self.first.saved),
            sum(bytes_of),
            alive,
        )
        return Observation(found, array("q", alive), self.first.names)

    def costs(self, sizes: Mapping[str, int]) -> Iterable[tuple[str, str, int, Cost]]:
        """Phase, name, how often and what it costs, of every strand of calls."""
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


def called(course: Course) -> tuple[Sequence[Any], Sequence[Any]]:
    """What tells the calls of a course apart, and what they were called with."""
    return course.calls, [made.arguments for _, made in course.calls]


def _empty(leaf: Any) -> Any:
    return leaf.empty() if isinstance(leaf, Layout) else leaf


def foresight(points: Points, base: Point) -> Foresight | None:
    """What a module would do at other sizes than those that it was run at; None where its runs near
    some sizes differ in more than whole numbers, or these do not go on evenly."""
    try:
        found = Foreseen(points, base)
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
