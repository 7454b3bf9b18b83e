"""Checks of printed numbers: counts, ratios, differences, percentages, and plain arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from costmodel.claims.claim import RELATIONS, Claim, PrintedFigure, printed_figure, sizes_of_claim
from costmodel.claims.findings import Finding, compared_answers
from costmodel.claims.identities import SEARCHED
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.quantities import Answer
from costmodel.errors import Unanswered
from costmodel.language.formula_text import parse
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import points, where_positive, where_zero


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


def interval_of(claim: Claim, interpretation: Interpretation) -> tuple[Interval, Answer]:
    """The values of the claim's letter at which the answer rounds to the figure, and the answer.

    Raises:
        ValueError: a size other than the letter is not given.
        Unanswered: the answer is not proven to grow with the letter at all values.
    """
    (answer,) = compared_answers(claim, interpretation)
    (sizes,) = sizes_of_claim(claim)
    given = answer.substitute({k: v for k, v in sizes.items() if k != claim.letter})
    if missing := sorted(given.letters - {claim.letter}):
        raise ValueError(f"an interval of {claim.letter} needs every other size: "
                         f"{', '.join(missing)} is not given")  # fmt: skip
    if given.poly is None or not _grows(given, claim.letter):
        raise Unanswered(f"{claim.quantity} does not grow with {claim.letter} all along: its "
                         f"interval is not solved")  # fmt: skip
    figure = printed_figure(claim.value, claim.unit, claim.rounding)
    low = _smallest_reaching(given, claim.letter, figure.low)
    return Interval(low, _largest_not_exceeding(given, claim.letter, figure.high)), given


def _grows(answer: Answer, letter: str) -> bool:
    """Whether a polynomial in one letter grows with the letter: only its constant is negative."""
    assert answer.poly is not None
    parts = [(dict(m).get(letter, 0), c) for m, c in answer.poly.terms.items()]
    return any(p > 0 for p, _ in parts) and all(p >= 0 and (c > 0 or not p) for p, c in parts)


def _smallest_reaching(answer: Answer, letter: str, bound: Fraction) -> int:
    """The least value of the letter at which a growing answer reaches a bound, or LARGEST + 1."""
    low, high = 1, LARGEST + 1
    while low < high:
        middle = (low + high) // 2
        if answer.at({letter: middle}) >= bound:
            high = middle
        else:
            low = middle + 1
    return low


def _largest_not_exceeding(answer: Answer, letter: str, bound: Fraction) -> int:
    """The largest value of the letter at which the answer does not exceed a bound."""
    first = _smallest_reaching(answer, letter, bound)
    meets = first <= LARGEST and answer.at({letter: first}) == bound
    return first if meets else first - 1


def interval(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check that a figure holds at the printed value of a size, or at some value if none is."""
    found, answer = interval_of(claim, interpretation)
    derived = f"{claim.letter} = {found}"
    value = claim.sizes.get(claim.letter)
    if not isinstance(value, int):
        note = "" if found.low <= found.high else "no value of it gives the printed figure"
        return Finding(found.low <= found.high, derived, {}, note)
    at = {claim.letter: value}
    there = {"derived": str(answer.at(at)), "claimed": claim.value}
    note = f"at {claim.letter} = {value} it is {answer.at(at)}"
    return Finding(value in found, derived, {} if value in found else at, note, there=there)


def intersection(
    claim: Claim, interpretation: Interpretation, known: Mapping[str, Claim]
) -> Finding:
    """Check that several printed figures hold at one common value of a size."""
    parts: dict[str, Interval] = {}
    named = set()
    for name in claim.claims:
        if name not in known or known[name].kind != "interval":
            what = f"a claim of kind {known[name].kind}" if name in known else "no claim"
            raise ValueError(f"'{name}' is {what}: an intersection names claims of kind interval")
        other = known[name]
        parts[name], _ = interval_of(
            other, Interpretation(other.convention, other.phase, other.form)
        )
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


DIGITS = 6
"""Significant digits of a quotient that is no integer."""


def number(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check one value, or the ratio, difference or percentage of two, at the claim's sizes."""
    found = compared_answers(claim, interpretation)
    figure = printed_figure(claim.value, claim.unit, claim.rounding)
    sizes = list(sizes_of_claim(claim))
    open_letters = frozenset().union(*(a.letters for a in found)) - set(claim.sizes)
    if open_letters:
        return _at_all(claim, found, figure, sizes)
    shown, notes, under = [], [], []
    for at in sizes:
        values = [answer.at(at) for answer in found]
        value = _combined_value(claim, values)
        shown.append(_value_text(claim, values, value))
        notes.append(_note_on_value(claim, values, value))
        if not _agrees(claim, figure, value):
            under.append(figure.otherwise(value))
            if not under[-1]:
                there = {"derived": _number_text(value), "claimed": _number_text(figure.value)}
                return Finding(False, shown[-1], at, notes[-1], there=there)
    return Finding(
        not under,
        ", ".join(shown),
        {},
        "; ".join(filter(None, notes)),
        under=" and ".join(dict.fromkeys(under)),
    )


def _combination(claim: Claim) -> str:
    """How the claim combines two values: "ratio", "difference" or "percent"; "" for one value."""
    if not claim.against:
        return ""
    return claim.compare or ("ratio" if claim.kind == "ratio" else "difference")


def _combined_value(claim: Claim, values: Sequence[Fraction]) -> Fraction:
    kind = _combination(claim)
    if not kind:
        return values[0]
    left, right = values
    if kind == "difference":
        return left - right
    if not right:
        raise ValueError(f"{claim.against}: {claim.quantity} is 0 there: no {kind} to it")
    return left / right if kind == "ratio" else 100 * (left - right) / right


def _agrees(claim: Claim, figure: PrintedFigure, value: Fraction) -> bool:
    """Whether a value satisfies the claim's inequality, or rounds to the figure; a ratio claimed as
    "about 1/N" agrees where its reciprocal rounds to N."""
    if claim.relation in ("<", ">"):
        return RELATIONS[claim.relation](value, figure.value)
    inverse = _combination(claim) == "ratio" and figure.value.numerator == 1 and not figure.step
    if inverse and value:
        return round(1 / value) == figure.value.denominator
    return figure.holds(value)


def _value_text(claim: Claim, values: Sequence[Fraction], value: Fraction) -> str:
    kind = _combination(claim)
    if kind == "ratio":
        exact = f" = {claim.value}" if parse(claim.value).at({}) == value else ""
        return f"{_number_text(values[0])}/{_number_text(values[1])}{exact}"
    return _number_text(value, sign=bool(kind)) + (" %" if kind == "percent" else "")


def _note_on_value(claim: Claim, values: Sequence[Fraction], value: Fraction) -> str:
    kind = _combination(claim)
    if kind == "ratio" and value and parse(claim.value).at({}) != value:
        return (
            f"a ratio of 1/{float(1 / value):.3f}"
            if value < 1
            else f"a ratio of {_number_text(value)}"
        )
    return (
        f"{_number_text(values[0])} against {_number_text(values[1])}"
        if kind not in ("", "ratio")
        else ""
    )


def _number_text(value: Fraction, *, sign: bool = False) -> str:
    """An integer with all digits, another quotient with `DIGITS` significant digits."""
    plus = "+" if sign and value > 0 else ""
    return plus + (str(value) if value.denominator == 1 else f"{float(value):.{DIGITS}g}")


def _at_all(
    claim: Claim, found: Sequence[Answer], figure: PrintedFigure, sizes: Sequence[Mapping[str, int]]
) -> Finding:
    """Check a claim at all values of the sizes that it leaves open."""
    if figure.step:
        missing = sorted(frozenset().union(*(a.letters for a in found)) - set(claim.sizes))
        raise ValueError(f"a rounded figure needs every size: give {', '.join(missing)} in sizes")
    shown = []
    for at in sizes:
        given = [answer.substitute(at) for answer in found]
        excess = _excess_over_figure(claim, [a.exact for a in given], figure.value)
        solve = where_zero if claim.relation in ("", "=") else where_positive
        cases = [solve(poly) for _, poly in excess.chambers()]
        always = all(condition.always for condition in cases)
        shown.append(" against ".join(a.text for a in given))
        if not always:
            open_letters = frozenset().union(*(a.letters for a in given))
            first = next(
                (
                    s
                    for s in islice(points(open_letters), SEARCHED)
                    if not _agrees(claim, figure, _combined_value(claim, [a.at(s) for a in given]))
                ),
                {},
            )
            text = "; ".join(condition.text for condition in cases)
            return Finding(False, "; ".join(shown), {**at, **first}, f"in general iff {text}")
    return Finding(True, "; ".join(shown), {}, "proven for all other sizes")


def _excess_over_figure(claim: Claim, exact: Sequence[Exact], value: Fraction) -> Exact:
    """A polynomial that is positive where the claimed inequality holds, and 0 where the combined
    value equals the printed value."""
    kind, left = _combination(claim), exact[0]
    right = exact[1] if kind else Exact()
    apart = {
        "": lambda: left - Exact.of(Poly.of(value)),
        "difference": lambda: left - right - Exact.of(Poly.of(value)),
        "ratio": lambda: left - right * Poly.of(value),
        "percent": lambda: left * 100 - right * Poly.of(100 + value),
    }[kind]()
    return apart * -1 if claim.relation == "<" else apart


def arithmetic(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check that a formula of numbers, such as 12*3600*8*9.5e12, has the printed value."""
    figure = printed_figure(claim.value, claim.unit, claim.rounding)
    (sizes,) = sizes_of_claim(claim)
    value = parse(claim.formula).at(sizes)
    holds = _agrees(claim, figure, value)
    under = "" if holds else figure.otherwise(value)
    there = {"derived": _number_text(value), "claimed": _number_text(figure.value)}
    return Finding(holds, _number_text(value), {} if holds else sizes, under=under, there=there)
