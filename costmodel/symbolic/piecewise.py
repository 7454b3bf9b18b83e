"""Exact piecewise polynomials in sizes: sums of polynomials that count where guards g >= 0 hold.

A *guard* g is a condition g >= 0. The *chambers* of a sum of guarded polynomials are disjoint
cases, in each of which the sum is one polynomial: (l where l - w >= 0) + (w where w - l - 1 >= 0)
has two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

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
from costmodel.symbolic.examples import differ, differs_from_zero
from costmodel.symbolic.polynomial import Fn, Poly, by_text
from costmodel.symbolic.sympy_form import to_sympy

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Exact:
    """A sum of guarded polynomials in sizes: the pieces (guards, polynomial) whose guards are all
    >= 0 at the sizes are added up; 0 without pieces."""

    pieces: tuple[tuple[Constraints, Poly], ...] = ()

    @staticmethod
    def of(poly: Poly) -> Exact:
        """A polynomial without guards."""
        return Exact(((frozenset(), poly),)) if poly.terms else Exact()

    def __add__(self, other: Exact) -> Exact:
        """The sum of both values: pieces (polynomials under guards) with equal guards become one,
        without pieces that cancel."""
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
        """The minimum of two values at all sizes, as cases; both are at least 0 everywhere. `apart`
        is at least 0 where this value is the smaller one, or both are equal."""
        if self.is_zero:
            return self
        result = Exact()  # 0 wherever no case below holds
        for where, one in self.chambers():
            for there, two in other.chambers(where):
                apart = without_common_sizes(two - one)
                for value, side in ((one, apart), (two, -apart - 1)):
                    kept = narrowed(there, side)
                    if kept is not None and value.terms:
                        result = result + Exact(((kept, value),))
        return result

    def at(self, sizes: Mapping[str, int]) -> int:
        """The integer value at integer sizes; raises ValueError for a fraction."""
        total = self.rational(sizes)
        if type(total) is not int:
            raise ValueError(
                f"a count came out fractional at {dict(sizes)}: {total}; give sizes at which "
                "quotients of sizes, such as d/n, are whole"
            )
        return total

    def rational(self, sizes: Mapping[str, int]) -> int | Fraction:
        """The exact value at integer sizes, an int where it is whole: the sum of the pieces whose
        guards are all at least 0 there."""
        total: int | Fraction = 0
        for guards, poly in self.pieces:
            for guard in guards:  # a loop, as `all` of a generator takes twice as long
                if guard.rational(sizes) < 0:
                    break
            else:
                total = total + poly.rational(sizes)
        if type(total) is int:  # nearly always, and isinstance of Fraction is slow
            return total
        return total.numerator if total.denominator == 1 else total

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the value depends on."""
        found: set[str] = set()
        for guards, poly in self.pieces:
            found |= poly.letters.union(*(g.letters for g in guards))
        return frozenset(found)

    @property
    def is_zero(self) -> bool:
        """Whether there is no piece."""
        return not self.pieces

    def substitute(self, values: Mapping[str, Poly]) -> Exact:
        """The value with polynomials substituted for sizes, in the pieces and in their guards
        (conditions); a piece whose guards then never hold is left out."""
        total = Exact()
        for guards, poly in self.pieces:
            kept = simplified(frozenset(g.substitute(values) for g in guards))
            if kept is not None:
                total = total + Exact(((kept, poly.substitute(values)),))
        return total

    @property
    def expr(self) -> sympy.Expr:
        """The value as a sympy expression; a `Piecewise` if it has several cases."""
        import sympy

        plain = self.chambers()
        if len(plain) == 1 and not plain[0][0]:
            return to_sympy(plain[0][1])
        cases = [
            (to_sympy(poly), sympy.And(*(sympy.Ge(to_sympy(g), 0) for g in by_text(gs))))
            for gs, poly in plain
        ]
        return sympy.Piecewise(*cases)

    @lru_cache(maxsize=20_000)  # noqa: B019  # many questions call this; `Exact` is immutable
    def chambers(self, where: Constraints = frozenset()) -> tuple[Case, ...]:
        """Disjoint cases that cover all sizes (or the sizes of `where`), as (guards, polynomial):
        the polynomial holds where all guards are at least 0. One case without guards where a single
        polynomial holds everywhere."""
        cases = tuple((irredundant(kept), value) for kept, value in self._split(where, None) or ())
        found = _join_cases(cases)
        if len(found) == 1 or any(value.variables for _, value in found):
            return found
        simpler = _join_cases(_simplest(found))
        return simpler if len(simpler) < len(found) else found

    def chamber(self, rank: Callable[[Case], Any]) -> Case:
        """The case with the greatest `rank` (case -> sort key), as wide as it is in `chambers`, by
        one comparison with each other case, where `chambers` compares each pair of cases."""
        cases = [(irredundant(kept), value) for kept, value in self._split(frozenset(), None) or ()]
        best = _widened(max(cases, key=rank), cases)
        (simpler,) = _simplest((best,), [value for _, value in cases])
        wider = _widened(simpler, cases)
        return best if wider[0] == best[0] else wider

    def has_more_cases(self, most: int) -> bool:
        """Whether the guards part the sizes into more than `most` cases, before cases of one value
        are joined; `chambers` compares each pair of these cases."""
        return self._split(frozenset(), most) is None

    def _split(self, where: Constraints, most: int | None) -> list[Case] | None:
        """The disjoint cases (frozenset of constraints, sum of the pieces whose guards hold there)
        into which the guards part the sizes of `where`; None if they exceed `most`, if given."""
        cases: list[Case] = [(where, Poly())]
        for guards, poly in self.pieces:
            # (constraints, value, whether all guards of the piece so far hold)
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
            if most is not None and len(cases) > most:
                return None
        return cases


Case = tuple[Constraints, Poly]
"""The constraints of a case, and the value where they hold."""


def _sides(where: Constraints, guard: Poly) -> list[tuple[Constraints, bool]]:
    """The sizes of `where` split by a guard (a condition g >= 0), as pairs (constraints, whether
    the guard holds), without a side that is proven to be empty."""
    inside = narrowed(where, guard)
    if inside is where:  # `where` implies the guard
        return [(where, True)]
    elsewhere = narrowed(where, -guard - 1)  # g < 0, as guards are whole numbers
    return [(kept, kept is inside) for kept in (inside, elsewhere) if kept is not None]


def _simplest(cases: tuple[Case, ...], among: Collection[Poly] = ()) -> tuple[Case, ...]:
    """The cases, where each value is replaced by the shortest of all cases' values, and of those
    in `among`, that equals it in the case."""
    found = {*among, *(value for _, value in cases)}
    values = sorted(by_text(found), key=lambda value: len(value.terms))
    return tuple(
        (there, next(v for v in values if v == value or _is_value(v, value, there)))
        for there, value in cases
    )


def _is_value(poly: Poly, value: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to be defined and to equal a value at all sizes of `where`."""
    if differ(poly, value, where):
        return False
    return _has_value(poly, where) and _is_zero(poly - value, where)


def _has_value(poly: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to be defined at the sizes of `where`: every divisor and every
    argument of a logarithm is at least 1."""
    of_one_or_more = {"floor_div": 1, "ceil_log2": 0}  # function -> which argument must be >= 1
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
    """Whether a polynomial is proven to be 0 at all sizes of `where`; where a quotient floor(a/b)
    is 0 or 1, each value is substituted in its own case."""
    if differs_from_zero(poly, where):
        return False
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
    """The atoms floor(a/b) of a polynomial."""
    return sorted(a for a in poly.atoms if isinstance(a, Fn) and a.function == "floor_div")


def _join_cases(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases (constraints, value), with two cases merged wherever one value holds in both and
    constraints describe their union, as l = w and l > w become l >= w."""
    for one, two in permutations(cases, 2):
        if (joined := _joint_case(one, two)) is not None:
            rest = (case for case in cases if case is not two)
            return _join_cases(tuple(joined if case is one else case for case in rest))
    return cases


def _widened(one: Case, cases: Sequence[Case]) -> Case:
    """A case, merged with each of `cases` that it can be merged with, one after another."""
    waiting = [case for case in cases if case is not one]
    for other in waiting:
        joined = _joint_case(one, other) or _joint_case(other, one)
        if joined is not None:
            return _widened(joined, [case for case in waiting if case is not other])
    return one


@lru_cache(maxsize=20_000)
def _joint_case(one: Case, two: Case) -> Case | None:
    """The union of two cases, with the value of the first. None unless the values are proven to be
    equal where the second holds, and the union is a conjunction of constraints."""
    (here, value), (there, other) = one, two
    if differ(value, other, there) or not _vanishes(value - other, there):
        return None
    around = frozenset(c for c in here | there if implied(here, c) and implied(there, c))
    return None if outside(around, [here, there]) else (irredundant(around), value)


def _vanishes(poly: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to be 0 at all sizes of `where`. Equations that `where`
    implies, such as l = w, are solved for one atom and substituted."""
    # equations besides those of `where`: a size is small, a quotient 0 or 1; each is used only if
    # `where` implies it
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
            except ValueError:  # undefined there: a division by 0 or log2(0)
                return False
    return not poly.terms


def _substitute_all(constraints: Constraints, values: Mapping[str, Poly]) -> Constraints:
    """The constraints with values substituted for atoms."""
    return frozenset(c.substitute(values) for c in constraints)


def _solution(equation: Poly) -> Mapping[str, Poly]:
    """A substitution that solves `equation = 0` for one atom, sizes before functions; {} if there
    is none. l - w = 0 gives {l: w}."""
    for atom in sorted(equation.atoms, key=lambda atom: (isinstance(atom, Fn), atom)):
        slope = equation.terms.get(((atom, 1),))
        if slope in (1, -1):
            rest = equation - Poly.atom(atom) * slope
            if not {atom, *Poly.atom(atom).letters} & ({*rest.atoms} | rest.letters):
                return {atom: rest * -slope}
    return {}
