"""Longest paths as sequences of named steps: multiplication, sum, division, and so on.

A `Chain` is one path of steps; the rows of a loop are one block of steps that repeats. The depth of
an entry is the number of operations on the longest path to it; each depth carries that path, its
chain, as a `Witness`, so the path that is shown has the derived length.
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
    "scan": "scan",
    "select": "selection",
}
"""Step -> its name in papers; a step that is a function has the name of the function."""


@hashed_once
@dataclass(frozen=True)
class Step:
    """One step: its name, the name of the equation that contains it, and a function that returns
    its levels of operations, or raises Unsupported."""

    name: str
    equation: str
    levels: Callable[[], Poly] = field(compare=False)


@dataclass(frozen=True)
class Repeat:
    """Steps that are repeated `times` times, once per row of a loop or per layer of a network."""

    times: Poly
    steps: tuple[Step | Repeat, ...]


@dataclass(frozen=True)
class Passage:
    """The steps to the row that lies `further` rows after some row of a loop: `early[further]` for
    the first len(early) of these rows, whose longest path may differ from that of all others,
    `later`."""

    further: Poly
    early: tuple[Steps, ...]
    later: Steps


Steps = tuple[Step | Repeat | Passage, ...]


class Ties:
    """Tie-breaking between chains, of which one is shown: which of several lengths is the largest
    at `sizes`, with large values for sizes that are not given. Decisions are recorded: the chains
    that were chosen are valid at other sizes if every decision is the same there (`hold_at`)."""

    def __init__(self, sizes: Sizes | None) -> None:
        self.sizes = sizes
        self.decided: dict[tuple[Poly, ...], int] = {}
        """Lengths that were compared -> the position of the largest."""

    def largest(self, lengths: tuple[Poly, ...]) -> int:
        """The position of the first of the largest lengths, 1 for (l, l + d); sizes that are not
        given are large."""
        if lengths not in self.decided:
            self.decided[lengths] = _largest_at(lengths, self.sizes)
        return self.decided[lengths]

    def is_smaller(self, one: Poly, two: Poly) -> bool:
        """Whether span `one` (levels of operations) is smaller than span `two`: at `sizes` if these
        give all letters of both; else whether at all sizes `one` is proven to be at most `two`, and
        `two` is not proven to be at most `one`."""
        if not self.sizes or (one.letters | two.letters) - dict(self.sizes).keys():
            return not is_at_least(frozenset(), one, two) and is_at_least(frozenset(), two, one)
        return self.largest((one, two)) == 1

    def hold_at(self, sizes: Sizes | None) -> bool:
        """Whether every recorded decision between chains of equal length is the same at `sizes`,
        and `sizes` has the same letters as `self.sizes`."""
        return dict(sizes or ()).keys() == dict(self.sizes or ()).keys() and all(
            _largest_at(lengths, sizes) == place for lengths, place in self.decided.items()
        )


def _largest_at(lengths: tuple[Poly, ...], sizes: Sizes | None) -> int:
    """The position of the first of the largest lengths at `sizes`, with large values for other
    sizes; 0 if a length has no value there."""
    letters = frozenset[str]().union(*(length.letters for length in lengths))
    at = large(letters) | dict(sizes or ())
    try:
        values = [length.at(at) for length in lengths]
    except ValueError:  # a length is undefined at these sizes
        return 0
    return values.index(max(values))


NO_SIZES = Ties(None)


@hashed_once
@dataclass(frozen=True)
class Chain(Witness):
    """A path of steps, as the witness of a depth."""

    steps: Steps = ()
    ties: Ties = NO_SIZES
    """How ties with other chains are broken."""
    origin: Array | None = None
    """While a loop is solved: the array in the previous row at which the chain starts."""
    via: tuple[Array, Chain] | None = None
    """In a solved row of a loop: the `origin`, and the chain from the previous row to this row."""
    lost: str = ""
    """The reason why the steps are not known; "" if they are."""

    def then(self, equation: str, names: tuple[str, ...], levels: Callable[[], Poly]) -> Chain:
        """The chain with the steps `names` of an equation appended, which take `levels()` levels
        together."""
        # the last step has the levels of all, the others (Poly() is 0) have none
        more = [Step(name, equation, Poly) for name in names[:-1]]
        steps = (*self.steps, *more, Step(names[-1], equation, levels))
        return Chain(steps, self.ties, self.origin, self.via, self.lost)

    @cached_property
    def span(self) -> Poly | None:
        """The levels of operations (a sum of R terms has ceil(log2(R))) of all `steps` together, a
        polynomial; None if the levels of a step are not derived. Only for chains without `lost`."""
        try:
            return _total(self.steps, lambda step: step.levels())
        except Unsupported:
            return None

    def substitute(self, values: Mapping[str, Poly]) -> Self:
        """The chain with values in place of indices or axes in its row numbers."""
        return self._timed(lambda rows: rows.substitute(values), values)

    def at_most(self, where: Constraints, variables: Sequence[str], known: Constraints) -> Self:
        """The chain with its row numbers maximised over `variables`, where `where` and `known`
        hold; if a maximum is not derived, a chain with the reason in `lost`."""
        try:
            return self._timed(
                lambda rows: maximised(Level(rows, where), variables, known).depth, variables
            )
        except Unsupported as reason:
            return replace(self, lost=str(reason))

    def _timed(self, change: Callable[[Poly], Poly], names: Iterable[str]) -> Self:
        """The chain with `change` applied to the numbers of repetitions of its repeats and to the
        row numbers of its passages (steps that depend on the row of a loop), if the row number of a
        passage contains one of `names`; else the chain itself."""
        moving = {*names}
        if not any(isinstance(s, Passage) and s.further.letters & moving for s in self.steps):
            return self
        return replace(self, steps=_changed(self.steps, change))

    def joined(self, other: Self) -> Self:
        """One of two chains with equally many steps: a chain with known steps before one without,
        then the chain with the larger span, then `self`."""
        if self.lost or other.lost:
            return other if self.lost else self
        return other if self._is_shorter_than(other) else self

    def _is_shorter_than(self, other: Self) -> bool:
        """Whether `other` has the larger span; False where a span is not known."""
        one, two = self.span, other.span
        return one is not None and two is not None and self.ties.is_smaller(one, two)

    def after(self, before: Chain | None) -> Chain:
        """This chain through one row of a loop, which starts at the array `origin`, appended to
        `before`, the chain to `origin` in the previous row (None: no steps). `via` keeps both."""
        first = before or Chain()
        assert self.origin is not None  # the chain of a single row has an origin
        return replace(
            self,
            steps=first.steps + self.steps,
            origin=None,
            via=(self.origin, self),
            lost=self.lost or first.lost,
        )

    def path(self, sizes: Mapping[str, int]) -> CriticalPath:
        """The path at given sizes, which tell for each `Passage` (the steps to some row of a loop)
        whether the row is one of the first or a later one. If the chain was chosen at given sizes
        (`Ties.sizes`), steps that repeat at most `FEW` times are written out one by one.

        Raises:
            Unsupported: the steps are not known.
        """
        if self.lost:
            raise Unsupported(self.lost)
        few = FEW if self.ties.sizes is not None else 0
        return CriticalPath(tuple(_resolved(self.steps, sizes, few)))


def _total(steps: Steps, number: Callable[[Step], Poly]) -> Poly:
    """The sum of `number(step)` over all steps, with repetitions. A passage, whose steps depend on
    the row of a loop, counts by its steps to a row far into the loop (`later`)."""
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
    """The steps with `change` applied to the number of repetitions of each repeat and to the row
    number of each passage (steps that depend on the row of a loop)."""

    def changed(step: Step | Repeat | Passage) -> Step | Repeat | Passage:
        """One step, repeat or passage with its number changed."""
        if isinstance(step, Repeat):
            return replace(step, times=change(step.times))
        if isinstance(step, Passage):
            early = tuple(_changed(way, change) for way in step.early)
            return Passage(change(step.further), early, _changed(step.later, change))
        return step

    return tuple(changed(step) for step in steps)


FEW = 2
"""A block of steps that repeats at most this often is written out."""


def _resolved(steps: Steps, sizes: Mapping[str, int], few: int) -> Iterator[Step | Repeat]:
    """Yield the steps at given sizes: of a `Passage` the steps to its row (an early row or a later
    one); of a block of steps each repetition if there are at most `few`, else a `Repeat`."""
    for step in steps:
        if isinstance(step, Passage):
            further = step.further.at(sizes)
            way = step.early[further] if further < len(step.early) else step.later
            yield from _resolved(way, sizes, few)
        elif isinstance(step, Repeat):
            times = step.times.at(sizes)
            taken = tuple(map(_without_levels, step.steps))
            shorter = Repeat(simplified_where(step.times, frozenset()), taken)
            yield from taken * times if times <= few else (shorter,)
        else:
            yield _without_levels(step)


def _without_levels(step: Step | Repeat) -> Step | Repeat:
    """The step without its levels, which only break ties while paths are chosen."""
    if isinstance(step, Repeat):
        return Repeat(step.times, tuple(map(_without_levels, step.steps)))
    return Step(step.name, step.equation, Poly)


LARGE = 2**20
"""The default value of a size when lengths of chains are compared."""


def large(letters: Iterable[str]) -> dict[str, int]:
    """Large values of sizes; the length is so large that it holds many windows and chunks."""
    huge = {"l": LARGE**2, "t": LARGE**2, "d": LARGE * 2**8}
    return {letter: huge.get(letter, LARGE) for letter in letters}


NO_STEP = "no operation"
"""The words for a path without steps, of equations that copy their inputs."""


@dataclass(frozen=True)
class CriticalPath:
    """The steps of the longest path."""

    taken: tuple[Step | Repeat, ...]

    @property
    def steps(self) -> tuple[Any, ...]:
        """Step names (mul sum add div exp max compare, a function's name, fft, select); the rows of
        a loop, and equal layers of a network, are one entry {"times": "l - 1", "steps": [...]}."""
        return tuple(_named(self.taken))

    @property
    def length(self) -> Poly:
        """The number of steps, repeated steps counted once per repetition."""
        return _total(self.taken, lambda step: Poly.of(1))

    @property
    def places(self) -> tuple[tuple[str, str, Poly], ...]:
        """Every step as (name, equation that contains it, number of repetitions)."""
        return tuple(_placed(self.taken, Poly.of(1)))

    @property
    def text(self) -> str:
        """The path in one line: `mul sum`, and `(l - 1)*[mul sum]` for rows of a loop; `no
        operation` for a path without steps."""
        return "".join(map(str, self.written))

    @property
    def written(self) -> tuple[str | Poly, ...]:
        """The pieces of `text`: words, and the formulas of how often steps repeat."""
        return tuple(_line(self.taken)) or (NO_STEP,)

    @property
    def said(self) -> tuple[str | Poly, ...]:
        """The pieces of `words`: words, and the formulas of how often steps repeat."""
        return tuple(_in_words(self.taken)) or (NO_STEP,)

    def substitute(self, values: Mapping[str, Poly]) -> CriticalPath:
        """The path with values in place of sizes in the numbers of repetitions."""
        return CriticalPath(_substituted(self.taken, values))

    @property
    def words(self) -> str:
        """The path in words, as papers print it: operations joined by hyphens, rows of a loop as `N
        times (...)`."""
        return "".join(map(str, self.said))

    def _repr_latex_(self) -> str:
        return r"$\text{" + self.words.replace(" - ", " -- ") + "}$"


def _substituted(
    steps: Iterable[Step | Repeat], values: Mapping[str, Poly]
) -> tuple[Step | Repeat, ...]:
    """The steps with `values` (size -> polynomial) put into their numbers of repetitions."""
    return tuple(
        Repeat(step.times.substitute(values), _substituted(step.steps, values))
        if isinstance(step, Repeat)
        else step
        for step in steps
    )


def _named(steps: Iterable[Step | Repeat]) -> Iterator[Any]:
    """Yield the names of steps; repeated steps as one object, such as {"times": "l - 1", "steps":
    ["mul", "sum"]}."""
    for step in steps:
        if isinstance(step, Repeat):
            yield {"times": str(step.times), "steps": [*_named(step.steps)]}
        else:
            yield step.name


def _placed(steps: Iterable[Step | Repeat], times: Poly) -> Iterator[tuple[str, str, Poly]]:
    """Yield the steps, repeated `times` times as a whole, as (name, equation, repetitions)."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from _placed(step.steps, times * step.times)
        else:
            yield step.name, step.equation, times


def _line(steps: Iterable[Step | Repeat]) -> Iterator[str | Poly]:
    """Yield the pieces of a line with the steps, separated by spaces."""
    for k, step in enumerate(steps):
        yield from [" "] if k else []
        if not isinstance(step, Repeat):
            yield step.name
        elif step.times.constant() is None:
            yield from ("(", step.times, ")*[", *_line(step.steps), "]")
        else:
            yield from (f"{step.times}*[", *_line(step.steps), "]")


def _in_words(steps: Iterable[Step | Repeat]) -> Iterator[str | Poly]:
    """Yield steps by their names in papers, joined by dashes."""
    for k, step in enumerate(steps):
        yield from [" - "] if k else []
        if isinstance(step, Repeat):
            yield from (step.times, " times (", *_in_words(step.steps), ")")
        else:
            yield STEP_WORDS.get(step.name, step.name)
