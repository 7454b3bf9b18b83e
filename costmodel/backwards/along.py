"""One size is open, all others are given: at which values of the open size does a form exist, and
in which ranges of these values does an answer keep its sign?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from costmodel.errors import SizeError, Unanswered
from costmodel.program.chosen_sizes import Given, combinations, fitting, letters_of
from costmodel.questions.question import Answers, Case
from costmodel.symbolic.cases import simplified_where
from costmodel.symbolic.constraints import implied, implied_all
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of
from costmodel.symbolic.ranges.solve import NOTHING, Quantity, Range, ranges

LENGTHS = ("l", "t")
"""The length and the position of a new token: if one is open and the other is not given, both are
equal, as the last token of a sequence is at position t = l."""

L = TypeVar("L")


def without_assumed(letter: str, given: Given) -> Given:
    """The given sizes, without the one of the solved size `letter` if it only ties l and t: solved
    for t, `t="l"` is dropped if l has no value, because l then equals t by default."""
    others = {*LENGTHS} - {letter}
    if letter in LENGTHS and given.get(letter) in others and others.isdisjoint(given):
        return {x: size for x, size in given.items() if x != letter}
    return given


@dataclass(frozen=True)
class Along:
    """The values of an open size of a form, at given other sizes.

    Args:
        letter: the open size.
        equal: the open letters: `letter`, and l or t that equals it.
        given: the values of the other sizes, by letter.
        values: the values at which the form exists, in ascending order: a range, or a list if the
            size divides another one (heads n in d/n).
    """

    letter: str
    equal: tuple[str, ...]
    given: Mapping[str, int]
    values: Sequence[int]

    def sizes(self, value: int) -> dict[str, int]:
        """All sizes at a value."""
        return {**self.given, **dict.fromkeys(self.equal, value)}

    @property
    def letters(self) -> dict[str, Poly]:
        """Letter -> its value as a formula: a number for a given size, else the open letter."""
        numbers = {x: Poly.of(size) for x, size in self.given.items()}
        return numbers | dict.fromkeys(self.equal, Poly.atom(self.letter))

    def solved(
        self, quantities: Sequence[Quantity], of: Callable[[int], L]
    ) -> list[tuple[Range, L]]:
        """Pairs (range of values, property): the ranges in which a property is constant; each value
        alone if the values are a list. For the property `bytes > 40`, the quantities are the bytes
        less 40, and `NOTHING`, which is 0.

        Args:
            quantities: figures as functions of the size; the property changes only where one of
                them becomes larger or smaller than another.
            of: value of the size -> the property, such as which quantity is the least.

        Raises:
            Unsupported: the ranges are not derived.
        """
        if not isinstance(self.values, range):
            return [(Range(value, value), of(value)) for value in self.values]
        # `ranges` solves for the place k = 1, 2, ... in `values`, whose value is start + (k-1)*step
        start, step, letter = self.values.start, self.values.step, self.letter
        open_ = Poly.atom(letter) * step + (start - step)
        at = {x: Poly.of(value) for x, value in self.given.items()} | dict.fromkeys(
            self.equal, open_
        )
        inside = [quantity.substitute(at) for quantity in quantities]

        def value(place: int) -> int:
            return start + step * (place - 1)

        found = ranges(inside, letter, lambda place: of(value(place)), 1, len(self.values))
        return [(Range(value(a), value(b), step * by), label) for (a, b, by), label in found]

    def kinks(self, term: Exact) -> list[tuple[int, bool]]:
        """The values of the open size after which an answer has another formula, because a
        condition such as t <= w begins or ceases to hold: pairs (last value of the former formula,
        whether the next formula is constant), [(64, True)] for t where t <= w and w elsewhere, with
        w = 64. `term`: the answer, a sum of polynomials under conditions; a `Min` is no kink.

        [] if the values are no range, or a condition depends on the remainder of the size.

        Raises:
            Unsupported: the ranges in which a condition holds are not derived.
        """
        if not isinstance(self.values, range):
            return []
        starts = {self.values[0]}
        for guard in {guard for guards, _ in term.pieces for guard in guards}:
            sides = self.solved(
                [Quantity((Exact.of(guard),)), NOTHING], partial(self._holds, guard)
            )
            if any(part.step > self.values.step for part, _ in sides):
                return []
            starts |= {part.first for part, _ in sides}
        given = {letter: Poly.of(value) for letter, value in self.given.items()}
        found = []
        for one, two in pairwise([(start, self._formula(term, start)) for start in sorted(starts)]):
            before, after = (formula.substitute(given) for _, formula in (one, two))
            if before != after:
                here = self.sizes(two[0])  # where the former formula may hold still
                joined = before.rational(here) == after.rational(here)
                last = two[0] if joined else two[0] - self.values.step
                found.append((last, after.letters.isdisjoint(self.equal)))
        return found

    def _holds(self, guard: Poly, value: int) -> bool:
        """Whether a condition, a polynomial >= 0, holds at a value."""
        return guard.rational(self.sizes(value)) >= 0

    def _formula(self, term: Exact, value: int) -> Poly:
        """The polynomial that an answer, a sum of cases, is at a value of the open size: the sum of
        the polynomials whose conditions hold there."""
        pieces = (
            poly for guards, poly in term.pieces if all(self._holds(g, value) for g in guards)
        )
        return sum_of(pieces)

    def constant(self, term: Exact) -> bool:
        """Whether a formula `term` is proven to have one value at every open size from the last of
        the range on, also beyond 2**40, so that no larger size exceeds a limit on it; False if not
        proven, or if the values are no range."""
        if not isinstance(self.values, range):
            return False
        # the condition of the sizes from the last on, as a polynomial that is 0 or more there
        beyond = frozenset({Poly.atom(self.letter) - self.values[-1]})
        given = {letter: Poly.of(value) for letter, value in self.given.items()}
        given |= dict.fromkeys(self.equal, Poly.atom(self.letter))
        for guards, poly in term.substitute(given).pieces:
            if any(implied(beyond, -guard - 1) for guard in guards):
                continue  # a condition fails at all these sizes: the case adds nothing
            formula = simplified_where(poly, beyond)
            if self.letter in formula.letters or not implied_all(beyond, guards):
                return False
        return True


def uncovered(about: Answers) -> list[Exact]:
    """For each table of positions (weights with a row per position) that may end, a formula in the
    sizes that is 1 where the table has no row for the position t of a new token, and else 0."""
    now = {"now": Poly.atom("t")}  # the conditions call the position `now`
    return [
        Exact(((frozenset(c.substitute(now) for c in one.conditions), Poly.of(1)),))
        for one in about.overruns
    ]


def along(case: Case, letter: str) -> Along:
    """The size `letter` of a case's form as the open one: its values from 1 to 2**40 at which the
    form exists (such as the multiples of 16), and the values of all other sizes.

    A size that is not given has its default; sizes tied to the open one are open with it, and so is
    l or t if the other is open and neither is given.

    Raises:
        Unanswered: the form has no such size, or the mixer's name gives it in braces (NAME{w=4})
            or its network does.
        SizeError: the open size is given, the given sizes do not fit each other, or no value of the
            open size fits them.
        Unsupported: the values that fit are not derived.
    """
    mixer = case.mixer
    letters = letters_of(mixer, case.phase, case.form)
    if letter in mixer.given:
        free = ", ".join(one for one in letters if one not in mixer.given)
        raise Unanswered(
            f"size {letter} has a value already, from the mixer's name or from its network: choose "
            f"one of {free}"
        )
    if letter not in letters:
        raise Unanswered(f"there is no size {letter}: expected one of {', '.join(letters)}")
    if letter in case.sizes or letter in case.ties:
        raise SizeError(f"size {letter} is given and asked for: leave out one of the two")
    fixed: dict[str, tuple[int, ...] | str] = {x: (size,) for x, size in case.sizes.items()}
    fixed |= {**case.ties, **{x: (size,) for x, size in mixer.given.items()}}
    follows = {*LENGTHS} - {letter, *fixed} if letter in LENGTHS else set()
    given = {x: letter if other in follows else other for x, other in fixed.items()}
    # the open size is 1 while `combinations` sets the other sizes, and is then taken out again
    given |= {**dict.fromkeys(follows, letter), letter: (1,)}
    (known,) = combinations(letters, given, mixer)
    equal = tuple(x for x in letters if x == letter or given.get(x) == letter)
    for x in equal:
        del known[x]
    values = fitting(mixer, letter, known, [x for x in equal if x != letter])
    return Along(letter, equal, known, values)
