"""Checks of printed numbers: counts, ratios, differences, percentages, and plain arithmetic.

A check takes an interpretation (convention, phase, form, ...) and gives a finding (`Finding`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import ClassVar

from costmodel.claims.claim import ABOUT, RELATIONS, Claim, Related, TwoSided
from costmodel.claims.findings import Finding
from costmodel.claims.identities import SEARCHED
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.printed_figures import PrintedFigure, printed_figure
from costmodel.claims.quantities import Answer
from costmodel.errors import Unanswered
from costmodel.language.formula_text import parse
from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import points, where_positive, where_zero

COMPARED = ("ratio", "difference", "percent")
"""How a claim may combine two values a and b: a/b, a - b, 100*(a - b)/b."""

DIGITS = 6
"""Significant digits of a quotient that is no integer."""

_INVERSE = re.compile(r"1\s*/\s*\d+")
"""A ratio that is printed as 1/N."""


@dataclass(frozen=True, kw_only=True)
class FigureClaim(Claim):
    """A claim that prints a number: `value` in units of `unit`, rounded as `rounding` says."""

    one_value_each: ClassVar[bool] = False
    """Whether the claim is checked at one combination of sizes only."""

    value: str = ""
    unit: str = ""
    rounding: str = ""

    @property
    def figure(self) -> PrintedFigure:
        return printed_figure(self.value, self.unit, self.rounding)

    def validate(self) -> None:
        """Check the claim's keys as for every kind; also that its printed figure can be read and,
        for a kind which takes one value of each size, no size has a list. ValueError if not."""
        super().validate()
        if self.value and not self.left_open:
            _ = self.figure
        lists = [letter for letter, size in self.sizes.items() if isinstance(size, list)]
        if lists and self.one_value_each:
            raise ValueError(f"a claim of kind {self.kind} takes one value of each size, and "
                             f"{', '.join(lists)} has a list")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NumberClaim(TwoSided, FigureClaim):
    """A quantity, or the ratio, difference or percentage of two, is a number at the sizes."""

    kind: ClassVar[str] = "number"
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "quantity", "sizes", "value")
    one_sided: ClassVar[bool] = True
    default_combination: ClassVar[str] = "difference"

    compare: str = ""

    def validate(self) -> None:
        super().validate()
        if self.compare and self.compare not in COMPARED:
            raise ValueError(f"compare '{self.compare}': expected one of {', '.join(COMPARED)}")

    @property
    def combination(self) -> str:
        """How the claim combines two values, one of `COMPARED`; "" for one value."""
        return (self.compare or self.default_combination) if self.against else ""

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Compare the derived value at each combination of the claim's sizes with the printed
        figure; if the claim leaves sizes open, at all their values. If some values give the figure
        only when they are rounded down or up, the finding does not hold, and its `under` is
        "rounded down", "rounded up", or both, joined by "and". `known` is not used here."""
        found = self.answers(interpretation)
        figure = self.figure
        if frozenset().union(*(a.letters for a in found)) - set(self.sizes):
            return self._at_all(found, figure)
        shown, notes, under = [], [], []
        for at in self.chosen_sizes():
            values = [answer.at(at) for answer in found]
            value = self._combined(values)
            shown.append(self._value_text(values, value))
            notes.append(self._note(values, value))
            if not self._agrees(figure, value):
                under.append(figure.otherwise(value))
                if not under[-1]:
                    there = {"derived": _number_text(value), "claimed": _number_text(figure.value)}
                    note = notes[-1] if self.combination else self._apart(figure.value, value)
                    return Finding(False, shown[-1], at, note, there=there)
        return Finding(
            not under,
            ", ".join(shown),
            {},
            "; ".join(filter(None, notes)),
            under=" and ".join(dict.fromkeys(under)),
        )

    def _combined(self, values: Sequence[Fraction]) -> Fraction:
        """The number to compare with the figure: of one value itself; of two their difference,
        their ratio, or the first minus the second in percent of the second, as the claim says.
        Unanswered for a division by 0."""
        if not self.combination:
            return values[0]
        left, right = values
        if self.combination == "difference":
            return left - right
        if not right:
            what = f"{self.quantity} is 0 at these sizes, so there is no {self.combination}"
            raise Unanswered(f"{self.against}: {what}")
        return left / right if self.combination == "ratio" else 100 * (left - right) / right

    def _agrees(self, figure: PrintedFigure, value: Fraction) -> bool:
        """Whether a value satisfies the claim's inequality, or, without one, rounds to the figure;
        a ratio printed as 1/N, with N > 1, agrees where its reciprocal rounds to N."""
        inverse = self.combination == "ratio" and _INVERSE.fullmatch(self.value.strip())
        exact = not figure.step and figure.value.numerator == 1 < figure.value.denominator
        if inverse and exact and value and self.relation not in ("<", ">"):
            return round(1 / value) == figure.value.denominator
        return _holds(self.relation, figure, value)

    def _value_text(self, values: Sequence[Fraction], value: Fraction) -> str:
        """The derived value in text: of a ratio both values, `4/2`, and `= 2` if it equals the
        claim; `+3` for a difference, `+3 %` for a percentage, else the number."""
        kind = self.combination
        if kind == "ratio":
            exact = f" = {self.value}" if parse(self.value).at({}) == value else ""
            return f"{_number_text(values[0])}/{_number_text(values[1])}{exact}"
        return _number_text(value, sign=bool(kind)) + (" %" if kind == "percent" else "")

    def _note(self, values: Sequence[Fraction], value: Fraction) -> str:
        """The note of a combined value: for a difference or percentage the two values, `5 against
        2`; for a ratio that differs from the claim `a ratio of 2`, below 1 as `1/N`; else ""."""
        if self.combination in ("difference", "percent"):
            return f"{_number_text(values[0])} against {_number_text(values[1])}"
        if self.combination and value and parse(self.value).at({}) != value:
            less = f"1/{float(1 / value):.3f}" if value < 1 else _number_text(value)
            return f"a ratio of {less}"
        return ""

    def _apart(self, claimed: Fraction, derived: Fraction) -> str:
        """The note on a figure that is not the derived one, `the claimed 6 is 20 % more`; "" for an
        inequality, and where 0 is derived."""
        if self.relation in ("<", ">") or not derived:
            return ""
        percent = 100 * (claimed - derived) / abs(derived)
        more = "more" if percent > 0 else "less"
        return f"the claimed {_number_text(claimed)} is {_number_text(abs(percent))} % {more}"

    def _at_all(self, found: Sequence[Answer], figure: PrintedFigure) -> Finding:
        """The finding for all values of the sizes that the claim leaves open: it holds if the
        relation to the figure is proven at each combination of the given sizes; else it has a
        counterexample, if one is found. `found`: the derived answer, or the two that the claim
        combines. Raises ValueError: a rounded figure, which can hold at given sizes only."""
        if figure.step:
            missing = sorted(frozenset().union(*(a.letters for a in found)) - set(self.sizes))
            need = f"a rounded figure holds at given sizes only: give {', '.join(missing)} in sizes"
            raise ValueError(need)
        shown = []
        for at in self.chosen_sizes():
            given = [answer.substitute(at) for answer in found]
            excess = self._excess([a.exact for a in given], figure.value)
            solve = where_zero if self.relation in ("", "=") else where_positive
            # each case is held to all sizes, so that its own conditions need not be looked at
            cases = [solve(poly) for _, poly in excess.chambers()]
            shown.append(" against ".join(a.text for a in given))
            if not all(condition.always for condition in cases):
                searched = islice(points(frozenset().union(*(a.letters for a in given))), SEARCHED)
                holds = RELATIONS["=" if solve is where_zero else ">"]
                failing = (sizes for sizes in searched if not holds(excess.rational(sizes), 0))
                text = "; ".join(condition.text for condition in cases)
                at_first = {**at, **next(failing, {})}
                return Finding(False, "; ".join(shown), at_first, f"in general iff {text}")
        return Finding(True, "; ".join(shown), {}, "proven for all other sizes")

    def _excess(self, exact: Sequence[Exact], value: Fraction) -> Exact:
        """A difference, derived from the one or two answers `exact` and the figure `value`, that is
        positive where the claimed inequality holds, and 0 where the combined value equals the
        figure; for ratios and percentages, all is multiplied by the second answer."""
        left, right = exact[0], exact[1] if self.combination else Exact()
        apart = {
            "": lambda: left - Exact.of(Poly.of(value)),
            "difference": lambda: left - right - Exact.of(Poly.of(value)),
            "ratio": lambda: left - right * Poly.of(value),
            "percent": lambda: left * 100 - right * Poly.of(100 + value),
        }[self.combination]()
        return apart * -1 if self.relation == "<" else apart


@dataclass(frozen=True, kw_only=True)
class RatioClaim(NumberClaim):
    """The ratio of two mixers' or networks' quantity (or what `compare` names) is a number."""

    kind: ClassVar[str] = "ratio"
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "against", "quantity", "value")
    one_sided: ClassVar[bool] = False
    default_combination: ClassVar[str] = "ratio"


@dataclass(frozen=True, kw_only=True)
class NetworkClaim(NumberClaim):
    """A quantity of a network, or the difference of two networks' quantities, is a number."""

    kind: ClassVar[str] = "model"
    needs: ClassVar[tuple[str, ...]] = ("model", "quantity", "value")
    one_sided: ClassVar[bool] = False


def _holds(relation: str, figure: PrintedFigure, value: Fraction) -> bool:
    """Whether a value satisfies the inequality that `relation` (< or >) states of the figure, or,
    for any other relation, rounds to the figure."""
    if relation in ("<", ">"):
        return RELATIONS[relation](value, figure.value)
    return figure.holds(value)


def _number_text(value: Fraction, *, sign: bool = False) -> str:
    """An integer with all digits, another quotient with `DIGITS` significant digits."""
    plus = "+" if sign and value > 0 else ""
    return plus + (str(value) if value.denominator == 1 else f"{float(value):.{DIGITS}g}")


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


@dataclass(frozen=True, kw_only=True)
class IntervalClaim(FigureClaim):
    """The figure holds at the given value of the size `letter`, or, without one, at some value."""

    kind: ClassVar[str] = "interval"
    counted: ClassVar[bool] = False
    one_value_each: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "quantity", "letter", "value")

    letter: str = ""

    @property
    def letters(self) -> frozenset[str]:
        return super().letters | {self.letter}

    @property
    def given(self) -> Mapping[str, int]:
        return {letter: size for letter, size in super().given.items() if letter != self.letter}

    def values(self, interpretation: Interpretation) -> tuple[Interval, Answer]:
        """The values of the claim's letter at which the answer rounds to the figure, as an
        interval, and the answer, a formula in this letter.

        Raises:
            ValueError: a size other than the letter is not given.
            Unanswered: the answer is not proven to grow with the letter at all values.
        """
        (answer,) = self.answers(interpretation)
        (sizes,) = self.chosen_sizes()
        given = answer.substitute({k: v for k, v in sizes.items() if k != self.letter})
        if missing := sorted(given.letters - {self.letter}):
            raise ValueError(f"an interval of {self.letter} needs every other size: "
                             f"{', '.join(missing)} is not given")  # fmt: skip
        if given.poly is None or not _grows(given, self.letter):
            raise Unanswered(
                f"{self.quantity} is not proven to grow with {self.letter}, so that no interval of "
                f"{self.letter} is derived: state {self.quantity} at one size"
            )
        low = _smallest_reaching(given, self.letter, self.figure.low)
        return Interval(low, _largest_not_exceeding(given, self.letter, self.figure.high)), given

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Check that the claim's value of the letter (in `sizes`) is in the derived interval, both
        ends included; without a value, that the interval is not empty. `known` is not used."""
        found, answer = self.values(interpretation)
        derived = f"{self.letter} = {found}"
        value = self.sizes.get(self.letter)
        if not isinstance(value, int):
            note = "" if found.low <= found.high else f"no {self.letter} gives the printed figure"
            return Finding(found.low <= found.high, derived, {}, note)
        at = {self.letter: value}
        there = {"derived": str(answer.at(at)), "claimed": self.value}
        note = f"at {self.letter} = {value} the derived value is {answer.at(at)}"
        return Finding(value in found, derived, {} if value in found else at, note, there=there)


def _grows(answer: Answer, letter: str) -> bool:
    """Whether a polynomial in one letter is proven to grow with the letter: the letter occurs, and
    every term except the constant has a positive coefficient and power."""
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
    """The largest value of the letter at which a growing answer does not exceed a bound; 0 if the
    answer exceeds the bound at 1."""
    first = _smallest_reaching(answer, letter, bound)
    meets = first <= LARGEST and answer.at({letter: first}) == bound
    return first if meets else first - 1


@dataclass(frozen=True, kw_only=True)
class IntersectionClaim(Claim):
    """Several printed figures hold at one common value of a size."""

    kind: ClassVar[str] = "intersection"
    counted: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("claims",)

    claims: tuple[str, ...] = ()

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """The finding for the intersection of the intervals of the claims that this claim names: it
        holds if some value is common to all; else the note names two claims whose intervals are
        disjoint.

        Raises:
            ValueError: a name of no interval claim, or claims about different sizes.
        """
        parts: dict[str, Interval] = {}
        named = set()
        for name in self.claims:
            other = known.get(name)
            if not isinstance(other, IntervalClaim):
                what = f"a claim of kind {other.kind}" if other else "no claim"
                needs = "an intersection names claims of kind interval"
                raise ValueError(f"'{name}' is {what}: {needs}")
            parts[name], _ = other.values(other.interpretation)
            named.add(other.letter)
        if len(named) > 1:
            raise ValueError(
                "an intersection takes intervals of one size, got intervals of "
                f"{' and '.join(sorted(named))}: make a claim for each size"
            )
        (letter,) = named
        last = max(parts, key=lambda name: parts[name].low)  # the claim whose interval begins last
        first = min(parts, key=lambda name: parts[name].high)  # and the one that ends first
        common = parts[last].meet(parts[first])
        if common.low <= common.high:
            return Finding(True, f"{letter} = {common}", {}, f"common to {len(parts)} figures")
        note = f"{first} needs {letter} = {parts[first]}, {last} needs {letter} = {parts[last]}"
        return Finding(False, f"{letter} = {common}", {}, note)


@dataclass(frozen=True, kw_only=True)
class ArithmeticClaim(Related, FigureClaim):
    """A formula of numbers, such as 12*3600*8*9.5e12, has the printed value."""

    kind: ClassVar[str] = "value"
    counted: ClassVar[bool] = False
    one_value_each: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("formula", "value")

    formula: str = ""

    @property
    def words(self) -> str:
        """The claim in one line: `2*512 = 1024`; the original wording if it has no formula."""
        if not self.formula:
            return super().words
        unit = f"*{self.unit}" if self.unit else ""
        return f"{self.formula} {self.relation or '='} {self.value}{unit}"

    @property
    def formulas(self) -> Sequence[Formula]:
        return (parse(self.formula),) if self.formula else ()

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """The finding of the comparison of the formula's value with the printed one; neither
        parameter is used here."""
        figure = self.figure
        (sizes,) = self.chosen_sizes()
        value = self.formulas[0].at(sizes)
        holds = _holds(self.relation, figure, value)
        under = "" if holds else figure.otherwise(value)
        there = {"derived": _number_text(value), "claimed": _number_text(figure.value)}
        at = {} if holds else sizes
        return Finding(holds, _number_text(value), at, under=under, there=there)
