"""How is an exact answer held that has different formulas for different sizes?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING

from costmodel.symbolic.constraints import (
    Constraints,
    implied,
    implied_all,
    irredundant,
    narrowed,
    outside,
    simplified,
    without_common_sizes,
)
from costmodel.symbolic.polynomial import Fn, Poly, by_text
from costmodel.symbolic.sympy_form import to_sympy

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Exact:
    """A sum of polynomials, each counted only at the sizes at which all of its guards are >= 0."""

    pieces: tuple[tuple[Constraints, Poly], ...] = ()

    @staticmethod
    def of(poly: Poly) -> Exact:
        """The unguarded polynomial."""
        return Exact(((frozenset(), poly),)) if poly.terms else Exact()

    def __add__(self, other: Exact) -> Exact:
        if not (self.pieces and other.pieces):
            return self if self.pieces else other
        merged: dict[Constraints, Poly] = {}
        for guards, poly in self.pieces + other.pieces:
            merged[guards] = merged[guards] + poly if guards in merged else poly
        return Exact(tuple((g, p) for g, p in merged.items() if p.terms))

    def __sub__(self, other: Exact) -> Exact:
        return self + other * Poly.of(-1)

    def __mul__(self, factor: Poly | int) -> Exact:
        return Exact(tuple((g, m) for g, p in self.pieces if (m := p * factor).terms))

    def least(self, other: Exact) -> Exact:
        """The smaller of two values, which are not negative."""
        if self.is_zero:
            return self
        result = Exact()
        for where, one in self.chambers():
            for there, two in other.chambers(where):
                apart = without_common_sizes(two - one)
                for value, side in ((one, apart), (two, -apart - 1)):
                    kept = narrowed(there, side)
                    if kept is not None and value.terms:
                        result = result + Exact(((kept, value),))
        return result

    def at(self, sizes: Mapping[str, int]) -> int:
        """The integer value at integer sizes."""
        total: int | Fraction = 0
        for guards, poly in self.pieces:
            if all(guard.rational(sizes) >= 0 for guard in guards):
                total = total + poly.rational(sizes)
        if isinstance(total, Fraction) and total.denominator != 1:
            raise ValueError(f"a count came out fractional at {dict(sizes)}: {total}")
        return int(total)

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the value depends on."""
        found: set[str] = set()
        for guards, poly in self.pieces:
            found |= poly.letters.union(*(g.letters for g in guards))
        return frozenset(found)

    @property
    def is_zero(self) -> bool:
        """True when no piece is left."""
        return not self.pieces

    def substitute(self, values: Mapping[str, Poly]) -> Exact:
        """Replace sizes in values and guards."""
        total = Exact()
        for guards, poly in self.pieces:
            kept = simplified(frozenset(g.substitute(values) for g in guards))
            if kept is not None:
                total = total + Exact(((kept, poly.substitute(values)),))
        return total

    @property
    def expr(self) -> sympy.Expr:
        """The value as a sympy expression, piecewise with its breakpoints where it must be."""
        import sympy

        plain = self.chambers()
        if len(plain) == 1 and not plain[0][0]:
            return to_sympy(plain[0][1])
        cases = [
            (to_sympy(poly), sympy.And(*(sympy.Ge(to_sympy(g), 0) for g in by_text(gs))))
            for gs, poly in plain
        ]
        return sympy.Piecewise(*cases)

    @lru_cache(maxsize=20_000)  # noqa: B019  # asked by many questions; an answer is a value
    def chambers(self, where: Constraints = frozenset()) -> tuple[Case, ...]:
        """Disjoint cases that cover all sizes (or those that satisfy `where`), each with its value;
        a single case without guards where the value is one polynomial."""
        cases: list[Case] = [(where, Poly())]
        for guards, poly in self.pieces:
            parts = [(constraints, value, True) for constraints, value in cases]
            for guard in by_text(guards):
                parts = [
                    (kept, value, holds and inside)
                    for constraints, value, holds in parts
                    for kept, inside in _sides(constraints, guard)
                ]
            cases = [
                (cs, value + poly if holds or implied_all(cs, guards) else value)
                for cs, value, holds in parts
            ]
        found = _join_cases(tuple((irredundant(kept), value) for kept, value in cases))
        if len(found) == 1 or any(value.variables for _, value in found):
            return found
        simpler = _join_cases(_simplest(found))
        return simpler if len(simpler) < len(found) else found


Case = tuple[Constraints, Poly]
"""The constraints of a case, and the value where they hold."""


def _sides(where: Constraints, guard: Poly) -> list[tuple[Constraints, bool]]:
    """The sizes of `where` at which a guard holds, and those at which it does not, as far as there
    are any. Where no size is, which may not have been found, both are proven; one is enough."""
    inside = narrowed(where, guard)
    if inside is where:
        return [(where, True)]
    elsewhere = narrowed(where, -guard - 1)
    return [(kept, kept is inside) for kept in (inside, elsewhere) if kept is not None]


def _simplest(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases, each with the shortest of all their values that equals its own there."""
    values = sorted(by_text({value for _, value in cases}), key=lambda value: len(value.terms))
    return tuple(
        (there, next(v for v in values if v == value or _is_value(v, value, there)))
        for there, value in cases
    )


def _is_value(poly: Poly, value: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to equal a value, and to have one, at all sizes of `where`."""
    return _has_value(poly, where) and _is_zero(poly - value, where)


def _has_value(poly: Poly, where: Constraints) -> bool:
    """Whether every quotient of a polynomial is by 1 or more, and every logarithm of 1 or more."""
    of_one_or_more = {"floor_div": 1, "ceil_log2": 0}
    return all(
        all(_has_value(argument, where) for argument in atom.args)
        and (
            atom.function not in of_one_or_more
            or implied(where, atom.args[of_one_or_more[atom.function]] - 1)
        )
        for atom in poly.atoms
        if isinstance(atom, Fn)
    )


def _is_zero(poly: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to be 0 at all sizes of `where`; where a quotient rounded down
    is 0 or 1 there, for the one and for the other."""
    if _vanishes(poly, where) or (implied(where, poly) and implied(where, -poly)):
        return True
    for floor in _floors(poly):
        above, below = floor.args
        if implied(where, above) and implied(where, 2 * below - above - 1):
            sides = (below - above - 1, above - below)
            return all(
                _is_zero(poly.substitute({floor: Poly.of(n)}), where | {side})
                for n, side in enumerate(sides)
            )
    return False


def _floors(poly: Poly) -> list[Fn]:
    """The quotients rounded down that a polynomial names."""
    return sorted(a for a in poly.atoms if isinstance(a, Fn) and a.function == "floor_div")


def _join_cases(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Join two cases into one where one formula holds in both and their union is convex."""
    for one, two in permutations(cases, 2):
        if (joined := _joint_case(one, two)) is not None:
            rest = (case for case in cases if case is not two)
            return _join_cases(tuple(joined if case is one else case for case in rest))
    return cases


@lru_cache(maxsize=20_000)
def _joint_case(one: Case, two: Case) -> Case | None:
    """One case for both, with the value of the first; None where there is none."""
    (here, value), (there, other) = one, two
    if not _vanishes(value - other, there):
        return None
    around = frozenset(c for c in here | there if implied(here, c) and implied(there, c))
    return None if outside(around, [here, there]) else (irredundant(around), value)


def _vanishes(poly: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to be 0 at all sizes of `where`.

    Equations that `where` implies, such as l = w, are solved for one size and put in.
    """
    pinned = [Poly.atom(letter) - n for letter in sorted(poly.letters) for n in (1, 2)]
    pinned += [Poly.atom(floor) - n for floor in _floors(poly) for n in (0, 1)]
    waiting = [*by_text(where), *pinned]
    while waiting and poly.terms:
        equation = waiting.pop()
        if implied(where, equation) and implied(where, -equation):
            values = _solution(equation)
            try:
                poly, where = poly.substitute(values), _substitute_all(where, values)
                waiting = [c.substitute(values) for c in waiting]
            except ValueError:  # no value there: a quotient by 0, the logarithm of 0
                return False
    return not poly.terms


def _substitute_all(constraints: Constraints, values: Mapping[str, Poly]) -> Constraints:
    return frozenset(c.substitute(values) for c in constraints)


def _solution(equation: Poly) -> Mapping[str, Poly]:
    """One atom with the value that `equation = 0` gives it, a size before a function; empty where
    the equation can be solved for none: l - w = 0 gives {l: w}."""
    for atom in sorted(equation.atoms, key=lambda atom: (isinstance(atom, Fn), atom)):
        slope = equation.terms.get(((atom, 1),))
        if slope in (1, -1):
            rest = equation - Poly.atom(atom) * slope
            if not {atom, *Poly.atom(atom).letters} & ({*rest.atoms} | rest.letters):
                return {atom: rest * -slope}
    return {}


def rational(answer: Exact, sizes: Mapping[str, int]) -> int | Fraction:
    """The exact value of an answer at integer sizes, an int where it is whole."""
    total: int | Fraction = 0
    for guards, poly in answer.pieces:
        if all(guard.rational(sizes) >= 0 for guard in guards):
            total = total + poly.rational(sizes)
    if isinstance(total, Fraction) and total.denominator == 1:
        return total.numerator
    return total
