"""For which values of one size does a printed figure hold, and do several figures share one?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from costmodel.claims import Claim, instances
from costmodel.figures import Answer
from costmodel.findings import Finding, answers
from costmodel.phases import Unanswered
from costmodel.readings import Reading
from costmodel.rounding import printed
from costmodel.sizes import LARGEST


@dataclass(frozen=True)
class Interval:
    """The integers from low to high, both included; empty where high < low."""

    low: int
    high: int

    def __str__(self) -> str:
        if self.high < self.low:
            return "none"
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def meet(self, other: Interval) -> Interval:
        """The integers in both."""
        return Interval(max(self.low, other.low), min(self.high, other.high))


def interval_of(claim: Claim, reading: Reading) -> tuple[Interval, Answer]:
    """The values of the claim's letter at which its figure holds, and the answer in that letter.

    Raises:
        ValueError: a size is not given.
        Unanswered: the answer does not grow with the letter all along.
    """
    (answer,) = answers(claim, reading)
    (sizes,) = instances(claim)
    given = answer.substitute({k: v for k, v in sizes.items() if k != claim.letter})
    if missing := sorted(given.letters - {claim.letter}):
        raise ValueError(f"an interval of {claim.letter} needs every other size: "
                         f"{', '.join(missing)} is not given")  # fmt: skip
    if given.poly is None or not _grows(given, claim.letter):
        raise Unanswered(f"{claim.quantity} does not grow with {claim.letter} all along: its "
                         f"interval is not solved")  # fmt: skip
    figure = printed(claim.value, claim.unit, claim.rounding)
    low = _first(given, claim.letter, figure.low)
    return Interval(low, _last(given, claim.letter, figure.high)), given


def _grows(answer: Answer, letter: str) -> bool:
    """Whether a polynomial in one letter grows with it: no negative term but the constant."""
    assert answer.poly is not None
    parts = [(dict(m).get(letter, 0), c) for m, c in answer.poly.terms.items()]
    return any(p > 0 for p, _ in parts) and all(p >= 0 and (c > 0 or not p) for p, c in parts)


def _first(answer: Answer, letter: str, bound: Fraction) -> int:
    """The smallest value of the letter at which the answer reaches a bound."""
    low, high = 1, LARGEST + 1
    while low < high:
        middle = (low + high) // 2
        if answer.at({letter: middle}) >= bound:
            high = middle
        else:
            low = middle + 1
    return low


def _last(answer: Answer, letter: str, bound: Fraction) -> int:
    """The largest value of the letter at which the answer does not exceed a bound."""
    first = _first(answer, letter, bound)
    meets = first <= LARGEST and answer.at({letter: first}) == bound
    return first if meets else first - 1


def interval(claim: Claim, reading: Reading) -> Finding:
    """The printed figure holds for some value of a size, or for the one that is printed."""
    found, answer = interval_of(claim, reading)
    derived = f"{claim.letter} = {found}"
    value = claim.sizes.get(claim.letter)
    if not isinstance(value, int):
        note = "" if found.low <= found.high else "no value of it gives the printed figure"
        return Finding(found.low <= found.high, derived, {}, note)
    at = {claim.letter: value}
    there = {"derived": str(answer.at(at)), "claimed": claim.value}
    note = f"at {claim.letter} = {value} it is {answer.at(at)}"
    return Finding(value in found, derived, {} if value in found else at, note, there=there)


def intersection(claim: Claim, reading: Reading, known: Mapping[str, Claim]) -> Finding:
    """One value of a size makes several printed figures hold."""
    parts: dict[str, Interval] = {}
    named = set()
    for name in claim.claims:
        if name not in known or known[name].kind != "interval":
            what = f"a claim of kind {known[name].kind}" if name in known else "no claim"
            raise ValueError(f"'{name}' is {what}: an intersection names claims of kind interval")
        other = known[name]
        parts[name], _ = interval_of(other, Reading(other.convention, other.phase, other.form))
        named.add(other.letter)
    if len(named) > 1:
        raise ValueError(f"intervals of different sizes: {', '.join(sorted(named))}")
    (letter,) = named
    last, first = max(parts, key=lambda n: parts[n].low), min(parts, key=lambda n: parts[n].high)
    common = parts[last].meet(parts[first])
    if common.low <= common.high:
        return Finding(True, f"{letter} = {common}", {}, f"common to {len(parts)} figures")
    note = f"{first} needs {letter} = {parts[first]}, {last} {letter} = {parts[last]}"
    return Finding(False, f"{letter} = {Interval(1, 0)}", {}, note)
