"""Which steps lead to a depth: multiplication, sum, division, and so on?

A `Chain` is one path of steps; the rows of a loop are one block of steps that repeats. Chains are
carried along with the depths that they lead to, so that no chain has another length than derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from costmodel.errors import Unsupported
from costmodel.language.nodes import Array
from costmodel.symbolic.cases import simplified_where
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.hashed_once import hashed_once
from costmodel.symbolic.piecewise_max import Level, Witness, is_at_least, maximised
from costmodel.symbolic.polynomial import Poly

Sizes = tuple[tuple[str, int], ...]

STEP_WORDS: Mapping[str, str] = {
    "mul": "multiplication",
    "sum": "cumulation",
    "add": "addition",
    "div": "division",
    "exp": "exponentiation",
    "max": "maximum",
    "compare": "comparison",
    "fft": "Fourier transform",
    "select": "selection",
}
"""Step -> its name in papers; a function's step has the function's name."""


@hashed_once
@dataclass(frozen=True)
class Step:
    """One step, the name of the equation in which the step stands, and what finds its levels of
    operations, where these are known."""

    name: str
    equation: str
    levels: Callable[[], Poly] = field(compare=False)


@dataclass(frozen=True)
class Repeat:
    """Steps that are repeated `times` times, once for each row of a loop."""

    times: Poly
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Passage:
    """The steps from the beginning to a row that comes `further` rows after some row of a loop:
    those of `early` for the first rows, `later` for all others."""

    further: Poly
    early: tuple[Steps, ...]
    later: Steps


Steps = tuple[Step | Repeat | Passage, ...]


class Ties:
    """Which of several chains is taken: the deepest or that with the largest span, at some sizes
    where these are given. What was decided is remembered: where all of it holds at other sizes,
    the same chains are taken there."""

    def __init__(self, sizes: Sizes | None) -> None:
        self.sizes = sizes
        self.decided: dict[tuple[Poly, ...], int] = {}

    def largest(self, lengths: tuple[Poly, ...]) -> int:
        """The place of the first of the largest, at large values of sizes that are not given."""
        if lengths not in self.decided:
            self.decided[lengths] = _largest_at(lengths, self.sizes)
        return self.decided[lengths]

    def is_smaller(self, one: Poly, two: Poly) -> bool:
        """Whether the first of two spans is; proven where not all sizes are given."""
        if not self.sizes or (one.letters | two.letters) - dict(self.sizes).keys():
            return not is_at_least(frozenset(), one, two) and is_at_least(frozenset(), two, one)
        return self.largest((one, two)) == 1

    def hold_at(self, sizes: Sizes | None) -> bool:
        """Whether all would be decided alike at other sizes of the same letters."""
        return dict(sizes or ()).keys() == dict(self.sizes or ()).keys() and all(
            _largest_at(lengths, sizes) == place for lengths, place in self.decided.items()
        )


def _largest_at(lengths: tuple[Poly, ...], sizes: Sizes | None) -> int:
    letters = frozenset[str]().union(*(length.letters for length in lengths))
    at = large(letters) | dict(sizes or ())
    try:
        values = [length.at(at) for length in lengths]
    except ValueError:  # at these sizes one of them has no step
        return 0
    return values.index(max(values))


NO_SIZES = Ties(None)


@hashed_once
@dataclass(frozen=True)
class Chain(Witness):
    """A path of steps.

    `ties` breaks ties. While the rows of a loop are solved, `origin` is the array of the row before
    from which the chain goes on; in solved rows, `via` is this array and the chain of the row
    alone. `lost` says why the steps are not known.
    """

    steps: Steps = ()
    ties: Ties = NO_SIZES
    origin: Array | None = None
    via: tuple[Array, Chain] | None = None
    lost: str = ""

    def then(self, equation: str, names: tuple[str, ...], levels: Callable[[], Poly]) -> Chain:
        """The chain with further steps at its end, which take some levels together."""
        more = [Step(name, equation, Poly) for name in names[:-1]]
        steps = (*self.steps, *more, Step(names[-1], equation, levels))
        return Chain(steps, self.ties, self.origin, self.via, self.lost)

    @cached_property
    def span(self) -> Poly | None:
        """The levels of operations of all steps; None where they are not known."""
        try:
            return _total(self.steps, lambda step: step.levels())
        except Unsupported:
            return None

    def substitute(self, values: Mapping[str, Poly]) -> Self:
        """Replace indices or axes in the numbers of rows."""
        return self._timed(lambda rows: rows.substitute(values), values)

    def at_most(self, where: Constraints, variables: Sequence[str], known: Constraints) -> Self:
        """The chain with the most rows over variables, where conditions hold beside those known."""
        try:
            return self._timed(
                lambda rows: maximised(Level(rows, where), variables, known).depth, variables
            )
        except Unsupported as reason:
            return replace(self, lost=str(reason))

    def _timed(self, change: Callable[[Poly], Poly], names: Iterable[str]) -> Self:
        """The chain with other numbers of rows, where these name some indices or axes."""
        moving = {*names}
        if not any(isinstance(s, Passage) and s.further.letters & moving for s in self.steps):
            return self
        return replace(self, steps=_changed(self.steps, change))

    def joined(self, other: Self) -> Self:
        """Of two chains with equally many steps one whose steps are known, of two such that with
        the larger span, else the first."""
        if self.lost or other.lost:
            return other if self.lost else self
        return other if self._is_shorter_than(other) else self

    def _is_shorter_than(self, other: Self) -> bool:
        """Whether another chain has the larger span, both being known."""
        one, two = self.span, other.span
        return one is not None and two is not None and self.ties.is_smaller(one, two)

    def after(self, before: Chain | None) -> Chain:
        """The chain of a row, after the chain to its origin in the row before."""
        first = before or Chain()
        assert self.origin is not None
        return replace(
            self,
            steps=first.steps + self.steps,
            origin=None,
            via=(self.origin, self),
            lost=self.lost or first.lost,
        )

    def path(self, sizes: Mapping[str, int]) -> CriticalPath:
        """The steps at some sizes, which say whether a row is one of the first. Where ties are
        broken at sizes, a few rows are written out.

        Raises:
            Unsupported: the steps are not known.
        """
        if self.lost:
            raise Unsupported(self.lost)
        few = FEW if self.ties.sizes is not None else 0
        return CriticalPath(tuple(_resolved(self.steps, sizes, few)))


def _total(steps: Steps, number: Callable[[Step], Poly]) -> Poly:
    """A number summed over all steps."""
    found = Poly()
    for step in steps:
        if isinstance(step, Repeat):
            found = found + step.times * _total(step.steps, number)
        elif isinstance(step, Passage):
            found = found + _total(step.later, number)
        else:
            found = found + number(step)
    return found


def _changed(steps: Steps, change: Callable[[Poly], Poly]) -> Steps:
    """The steps with other numbers of rows."""

    def changed(step: Step | Repeat | Passage) -> Step | Repeat | Passage:
        if isinstance(step, Repeat):
            return replace(step, times=change(step.times))
        if isinstance(step, Passage):
            early = tuple(_changed(way, change) for way in step.early)
            return Passage(change(step.further), early, _changed(step.later, change))
        return step

    return tuple(changed(step) for step in steps)


FEW = 2
"""So many rows are shorter to read than a block that repeats."""


def _resolved(steps: Steps, sizes: Mapping[str, int], few: int) -> Iterator[Step | Repeat]:
    """Steps and repeated steps alone, at some sizes; a block that repeats `few` times is written
    out."""
    for step in steps:
        if isinstance(step, Passage):
            further = step.further.at(sizes)
            way = step.early[further] if further < len(step.early) else step.later
            yield from _resolved(way, sizes, few)
        elif isinstance(step, Repeat):
            times = step.times.at(sizes)
            taken = tuple(map(_taken, step.steps))
            shorter = Repeat(simplified_where(step.times, frozenset()), taken)
            yield from taken * times if times <= few else (shorter,)
        else:
            yield _taken(step)


def _taken(step: Step) -> Step:
    """A step of a path that was chosen, whose levels decide nothing any more."""
    return Step(step.name, step.equation, Poly)


LARGE = 2**20
"""The value of sizes not given, at which the lengths of chains are compared."""


def large(letters: Iterable[str]) -> dict[str, int]:
    """Large values of sizes; the length is so much larger that it holds many windows and chunks."""
    huge = {"l": LARGE**2, "t": LARGE**2, "d": LARGE * 2**8}
    return {letter: huge.get(letter, LARGE) for letter in letters}


@dataclass(frozen=True)
class CriticalPath:
    """The steps of the longest chain."""

    taken: tuple[Step | Repeat, ...]

    @property
    def steps(self) -> tuple[Any, ...]:
        """Step names (mul sum add div exp max compare, a function's name, fft, select); the rows of
        a loop are one entry {"times": "l - 1", "steps": [...]}."""
        return tuple(
            {"times": str(step.times), "steps": [s.name for s in step.steps]}
            if isinstance(step, Repeat)
            else step.name
            for step in self.taken
        )

    @property
    def length(self) -> Poly:
        """How many steps the path has, rows of loops multiplied out."""
        return _total(self.taken, lambda step: Poly.of(1))

    @property
    def places(self) -> tuple[tuple[str, str, str], ...]:
        """Every step with the equation in which it stands and how often it follows itself."""
        found: list[tuple[str, str, str]] = []
        for step in self.taken:
            if isinstance(step, Repeat):
                found += [(s.name, s.equation, str(step.times)) for s in step.steps]
            else:
                found.append((step.name, step.equation, "1"))
        return tuple(found)

    @property
    def text(self) -> str:
        """The path in one line: `mul sum`, and `(l - 1)*[mul sum]` for rows of a loop."""
        return " ".join(
            f"({step['times']})*[{' '.join(step['steps'])}]" if isinstance(step, dict) else step
            for step in self.steps
        )

    @property
    def words(self) -> str:
        """The path as papers print it."""
        return " - ".join(
            f"{step['times']} times ({_in_words(step['steps'])})"
            if isinstance(step, dict)
            else _in_words([step])
            for step in self.steps
        )

    def _repr_latex_(self) -> str:
        return r"$\text{" + self.words.replace(" - ", " -- ") + "}$"


def _in_words(steps: Iterable[str]) -> str:
    return " - ".join(STEP_WORDS.get(name, name) for name in steps)
