"""Writes sizes by quotient and remainder (l = C*q + r), so that no formula needs a floor.

Equations whose bounds hold floor(k/2) or floor(l/C) count by polynomials in these floors. A size is
then written by its divisor, k = 2*q - 1 or l = C*q + r, and the module is traced over q and r as
over other letters: its formulas are polynomials in q and r, and every floor of the equations is a
polynomial too, or is split into cases. A divisor that is a number gives one case per remainder. A
divisor C that is a size gives three: l < C, l = C*q, and l = C*q + r with 0 < r < C.

A *region* is the set of conditions of a case, polynomials that are at least 0; a *floor* is a term
floor(a/b) of a polynomial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import lcm

from costmodel.symbolic.constraints import Constraints, floor_div, implied, infeasible
from costmodel.symbolic.formulas import BinaryOperation, Formula, FunctionCall, Name, Number, Tree
from costmodel.symbolic.polynomial import Fn, Poly, by_text, call
from profiler.tracing.meta_run.target import TraceError, Variables

MOST = 4
"""A floor is replaced by its value only if bounds of at most this magnitude are proven for it."""

REMAINDERS = 16
"""The largest number of remainders for each of which a module is traced."""


@dataclass(frozen=True)
class Division:
    """`size = divisor * quotient + remainder`, with a quotient of at least 1.

    If the divisor is a number, the remainder is `missing`, one of 0, -1, ..., 1 - divisor. If the
    divisor is a size, the remainder is 0 (`missing` 0) or a letter with values from 1 on (`missing`
    None). The letters of quotient and remainder are named by their formulas, such as "floor(l/C)".
    """

    size: str
    divisor: Poly
    missing: int | None

    @property
    def floor(self) -> Poly:
        """The quotient as a function of the size."""
        return floor_div(Poly.atom(self.size) - (self.missing or 0), self.divisor)

    @property
    def quotient(self) -> str:
        """The quotient as a letter."""
        return str(self.floor)

    @property
    def rest(self) -> str | None:
        """The letter of the remainder, named by its formula; None if the remainder is a number."""
        left = Poly.atom(self.size) - self.divisor * self.floor
        return f"({left})" if self.missing is None else None

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that replace the size."""
        return (self.quotient,) if self.rest is None else (self.quotient, self.rest)

    @property
    def remainder(self) -> Poly:
        """The remainder, as a polynomial."""
        return Poly.of(self.missing) if self.rest is None else Poly.atom(self.rest)

    @property
    def value(self) -> Poly:
        """The size in the letters that replace it."""
        return self.divisor * Poly.atom(self.quotient) + self.remainder

    @property
    def bounds(self) -> Constraints:
        """The condition remainder <= divisor - 1, if the remainder is a letter; else empty."""
        return frozenset() if self.rest is None else frozenset((self.divisor - 1 - self.remainder,))

    def over(self, sizes: Variables) -> Variables:
        """A copy of the sizes in which the letters of this division (quotient and, unless it is a
        number, remainder) replace the divided size; the size becomes a formula of these letters."""
        letters: dict[str, int] = {}
        for letter, multiple in sizes.over.items():
            letters |= dict.fromkeys(self.letters, 1) if letter == self.size else {letter: multiple}
        return Variables(letters, {self.size: formula_of_poly(self.value), **sizes.let})

    def in_user_sizes(self, region: Constraints) -> Constraints:
        """The conditions of a case (polynomials that are at least 0), rewritten with floors in
        place of the letters of this division (quotient, remainder), and the conditions that define
        the division. A quotient with one value up to `MOST` in the case becomes that number: with q
        = 1, l = C*q + r and 0 < r < C become l >= C + 1 and l <= 2*C - 1."""
        size, quotient = Poly.atom(self.size), Poly.atom(self.quotient)
        fixed = next((n for n in range(1, MOST + 1) if proven_zero(region, quotient - n)), None)
        times = self.floor if fixed is None else Poly.of(fixed)
        values = {self.quotient: times}
        left = size - self.divisor * times
        if self.rest is None:
            own = {left - self.remainder, self.remainder - left}
        else:
            own = {left - 1} | ({self.divisor - 1 - left} if fixed is not None else set())
            values[self.rest] = left
        if fixed is None and not isinstance(self.divisor.constant(), int):
            own.add(times - 1)
        return frozenset(c.substitute(values) for c in region) | own


Divisions = tuple[Division, ...]
"""The divisions of a case, in the order in which their letters replace sizes."""


def sizes_divided(sizes: Variables, divisions: Divisions) -> Variables:
    """The sizes in the letters of some divisions, applied one after the other."""
    return reduce(lambda over, division: division.over(over), divisions, sizes)


def asked_conditions(region: Constraints, divisions: Divisions) -> Constraints:
    """The conditions of a case in the sizes of the user."""
    for division in reversed(divisions):
        region = division.in_user_sizes(region)
    return without_implied(region)


def without_implied(region: Constraints) -> Constraints:
    """The conditions `region` of a case (polynomials that are at least 0) without those that others
    imply; both halves of an equation (c and -c) are kept."""
    for condition in by_text(region - {Poly()}):
        if -condition not in region and implied(region - {condition}, condition):
            region = region - {condition}
    return region - {Poly()}


def asked_formula(poly: Poly, divisions: Divisions) -> Poly:
    """A copy of a formula in the sizes of the user: floors replace the letters of quotients and
    remainders. With l = C*q + r, the formula q + r becomes floor(l/C) + l - C*floor(l/C)."""
    for division in reversed(divisions):
        left = Poly.atom(division.size) - division.divisor * division.floor
        values = {division.quotient: division.floor}
        values |= {division.rest: left} if division.rest is not None else {}
        poly = poly.substitute(values)
    return poly


def proven_zero(region: Constraints, zero: Poly) -> bool:
    """Whether the polynomial `zero` is proven to be 0 in a case."""
    return implied(region, zero) and implied(region, -zero)


def floors_in(polys: Iterable[Poly]) -> list[Fn]:
    """The floors floor(a/b) in polynomials and their functions, each once, inner floors first."""
    found: dict[Fn, None] = {}
    for poly in polys:
        for atom in sorted(poly.atoms):
            if isinstance(atom, Fn):
                found |= dict.fromkeys(floors_in(atom.args))
                if atom.function == "floor_div":
                    found[atom] = None
    return list(found)


def floor_values(floor: Fn, region: Constraints) -> range | None:
    """The range of values that a floor may take in a case, whose conditions are `region`; None if
    no bounds up to `MOST` are proven."""
    above, below = floor.args
    known = range(-MOST, MOST + 1)
    least = max((m for m in known if implied(region, above - below * m)), default=None)
    most = min((m for m in known if implied(region, below * (m + 1) - 1 - above)), default=None)
    return None if least is None or most is None else range(least, most + 1)


def with_floor_value(poly: Poly, floor: Fn, value: int) -> Poly:
    """A copy of a polynomial with the number `value` in place of a floor, inside other functions
    too: with 2 for floor(l/C), max(l, C*floor(l/C)) becomes max(l, 2*C)."""
    given = {str(floor): Poly.of(value)}
    for atom in poly.atoms:
        if isinstance(atom, Fn) and atom != floor and floor in floors_in(atom.args):
            given[atom] = call(
                atom.function, *(with_floor_value(inner, floor, value) for inner in atom.args)
            )
    return poly.substitute(given)


def with_known_floors(poly: Poly, region: Constraints) -> Poly:
    """A polynomial in which every floor with only one value in the case `region` is that value."""
    for floor in floors_in([poly]):
        if (known := floor_values(floor, region)) is not None and len(known) == 1:
            return with_known_floors(with_floor_value(poly, floor, known[0]), region)
    return poly


def without_single_floors(region: Constraints) -> Constraints:
    """A copy of a case in which every floor with only one value is replaced by the value; the
    bounds that imply the value become conditions."""
    for floor in floors_in(by_text(region)):
        if (known := floor_values(floor, region)) is not None and len(known) == 1:
            moved = frozenset(with_floor_value(condition, floor, known[0]) for condition in region)
            return without_single_floors(moved | floor_conditions(floor, known[0]))
    return without_implied(region)


def floor_conditions(floor: Fn, value: int) -> Constraints:
    """The conditions under which a floor has a given value."""
    above, below = floor.args
    return frozenset((above - below * value, below * (value + 1) - 1 - above))


def cases_by_floor(polys: Iterable[Poly], region: Constraints) -> list[Constraints]:
    """Split the case `region` by the first floor in `polys` that has several values there: one case
    per value (floor(l/C) = 1, floor(l/C) = 2, ...), without those that contradict the conditions;
    [] if no floor has several values of at most `MOST`."""
    for floor in floors_in(by_text(polys)):
        if (known := floor_values(floor, region)) and len(known) > 1:
            cases = [region | floor_conditions(floor, value) for value in known]
            return [without_single_floors(case) for case in cases if not infeasible(case)]
    return []


# Splitting a case by a division.


def division_cases(
    region: Constraints, sizes: Variables, floors: Sequence[Fn]
) -> list[tuple[Constraints, Division | None]]:
    """Split the case `region`: write a size under the first suitable one of `floors` (such as
    floor(l/C)) by its quotient, l = C*q + r, and return the disjoint cases that cover the region,
    each with its division. The division is None where the size is smaller than its divisor. [] if
    no floor has a size that can be divided. Raises TraceError: the floors divide the size by
    several others, or leave too many remainders."""
    chosen = next(filter(None, (dividend(floor, sizes, floors) for floor in floors)), None)
    if chosen is None:
        return []
    size, divisor = chosen
    number = divisor.constant()
    if isinstance(number, int):  # l = number*q, number*q - 1, ...
        ways = [Division(size, divisor, -missing) for missing in range(number)]
        found: list[tuple[Constraints, Division | None]] = []
    else:  # l = C*q, l = C*q + r with a letter r, and l < C
        ways = [Division(size, divisor, 0), Division(size, divisor, None)]
        smaller = region | {divisor - 1 - Poly.atom(size)}
        found = [(case, None) for case in floor_free_cases(smaller)]
    for way in ways:
        moved = frozenset(c.substitute({size: way.value}) for c in region) | way.bounds
        found += [(case, way) for case in floor_free_cases(moved)]
    return found


def dividend(floor: Fn, sizes: Variables, beside: Sequence[Fn]) -> tuple[str, Poly] | None:
    """Choose a size l to write as q*c + r, and the divisor c, for the floor(above/below) `floor`:
    (l, c). The divisor serves all floors in `beside`, which has `floor` too: c is the least common
    multiple of the numbers that divide l (6 for floor(l/2) and floor(l/3)), or the size C.

    None if `above` has no letter outside functions that is traced at every size (not at multiples
    alone), or if `below` has a size that is not traced. Raises TraceError: the floors divide the
    size by several other sizes, or leave too many remainders."""
    above, below = floor.args
    if not below.letters <= sizes.over.keys():  # the divisor has a size that was not given
        return None
    for letter, multiple in sizes.over.items():
        if letter not in above.atoms or letter in below.letters or multiple != 1:
            continue
        others = dict.fromkeys(f.args[1] for f in beside if letter in f.args[0].atoms)
        numbers = [n for other in others if isinstance(n := other.constant(), int)]
        if isinstance(below.constant(), int):
            if (least := lcm(*numbers)) > REMAINDERS:
                raise TraceError(
                    f"the equations divide {letter} by {' and by '.join(map(str, numbers))}, with "
                    f"{least} remainders, and at most {REMAINDERS} are traced: trace multiples "
                    f"alone, --over {letter}:{least}"
                )
            return letter, Poly.of(least)
        if len(others) > len(numbers) + 1:
            by = " and by ".join(str(other) for other in others if other.constant() is None)
            raise TraceError(
                f"the equations divide {letter} by {by}, and formulas have quotients by one size "
                "only: make the divisors equal with --let"
            )
        return letter, below
    return None


def floor_free_cases(region: Constraints) -> list[Constraints]:
    """The region, split into cases in each of which a floor of few values has one value, which
    replaces the floor; a floor of many values stays. [region] if no floor is split; [] if the
    conditions contradict each other."""
    if infeasible(region := without_single_floors(region)):
        return []
    parts = cases_by_floor(region, region)
    return [case for part in parts for case in floor_free_cases(part)] if parts else [region]


def formula_of_poly(poly: Poly) -> Formula:
    """A polynomial as a formula, whose letters may have arbitrary names."""
    return Formula(str(poly), syntax_tree(poly), poly.letters)


def syntax_tree(poly: Poly) -> Tree:
    """The polynomial as the syntax tree of a formula, as `--let NAME=FORMULA` has them: a sum that
    begins with 0. 3*l**2 + 1 gives the tree of 0 + 3*l**2 + 1."""
    total: Tree = Number(Fraction(0))
    for monomial, number in poly.terms.items():
        term: Tree = Number(Fraction(number))
        for atom, power in monomial:
            term = BinaryOperation(
                "*", term, BinaryOperation("**", syntax_leaf(atom), Number(Fraction(power)))
            )
        total = BinaryOperation("+", total, term)
    return total


def syntax_leaf(atom: str) -> Tree:
    """An atom of a polynomial as a syntax tree: a letter, or a function of polynomials."""
    if not isinstance(atom, Fn):
        return Name(atom)
    inner = tuple(map(syntax_tree, atom.args))
    if atom.function == "floor_div":
        return FunctionCall("floor", (BinaryOperation("/", *inner),))
    if atom.function == "pow2":
        return BinaryOperation("**", Number(Fraction(2)), *inner)
    return FunctionCall(atom.function, inner)
