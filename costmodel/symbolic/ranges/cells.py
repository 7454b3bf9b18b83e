"""A quantity of one size as cells: consecutive ranges, in each of which it is a polynomial.

A window, a bracket of ceil_log2, the argument that a maximum takes: each changes at few sizes,
where a cell ends. A quotient floor(x/8) changes at every eighth size. In a long range it is
written x/8 minus a *remainder*, an unknown number between 0 and 7/8, in a single cell; the bounds
of a polynomial over all values of its remainders decide its sign at nearly all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from math import ceil, floor, lcm
from typing import Any

from costmodel.errors import Unsupported
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Monomial, Number, Poly, stand_in
from costmodel.symbolic.ranges.one_size import (
    changes,
    coefficients,
    product,
    ratio,
    sign,
    sign_changes,
    turns,
    value,
)
from costmodel.symbolic.sizes import ceil_log2

FEW = 16
"""A quotient with at most this many changes in a range is split into its values."""

DIVIDED = 4096
"""A quotient of a number up to this one is split into its values: floor(4096/x) has 127 of them."""

Cell = tuple[int, Poly | None]
"""The first size of a cell, and the polynomial there; None where the quantity is not defined."""

Side = tuple[Callable[[int], Any], Sequence[int]]
"""(function, stops): a function of the size, whose value is a whole number or None (not defined),
and the sizes between which the function is monotone, both ends of its range among them."""

ZERO, ONE = Poly(), Poly.of(1)


class Cells:
    """Quantities of one size, `letter`, in first..last, as lists of cells in ascending order."""

    def __init__(self, letter: str, first: int, last: int) -> None:
        """Quantities of the size `letter` from `first` to `last`. They are written as cells,
        consecutive ranges with one polynomial each; a remainder is a variable in these polynomials
        that stands for an unknown number, added when a quotient with many values is asked for."""
        self.letter, self.first, self.last = letter, first, last
        self.size = Poly.atom(letter)
        self.most: dict[str, Number] = {}
        """Remainder -> its greatest value; the least is 0."""
        self.period = 1
        """A number, such as 8 for floor(x/8): in each residue class of the size modulo this number,
        the quotients that are written with a remainder are polynomials."""
        self._known: dict[Fn, list[Cell]] = {}

    def exact(self, quantity: Exact) -> list[Cell]:
        """The cells of a sum of guarded polynomials."""
        return self.combined([self._piece(*piece) for piece in quantity.pieces], _sum)

    def largest(self, cells: Iterable[list[Cell]]) -> list[Cell]:
        """The cells of the maximum of some quantities."""
        return reduce(lambda one, two: self._extreme(one, two, 1), cells)

    def combined(
        self, parts: Sequence[list[Cell]], of: Callable[[Sequence[Poly | None]], Poly | None]
    ) -> list[Cell]:
        """The cells (range's first size, polynomial) of a function `of` some quantities. `of` takes
        their polynomials in one range (None where a quantity is not defined)."""
        return [(start, of(polys)) for start, _, polys in self.joined(parts)]

    def joined(
        self, parts: Sequence[list[Cell]]
    ) -> Iterator[tuple[int, int, Sequence[Poly | None]]]:
        """Yield the ranges of the size in which every quantity of `parts` is one polynomial, as
        (first size, last size, the polynomials; None where a quantity is not defined): of the cells
        [(1, p)] and [(1, q), (3, r)] in 1..9, (1, 2, [p, q]) and (3, 9, [p, r])."""
        starts = sorted({self.first}.union(*([start for start, _ in part] for part in parts)))
        places = [0] * len(parts)
        for start, after in pairwise([*starts, self.last + 1]):
            for k, part in enumerate(parts):
                if places[k] + 1 < len(part) and part[places[k] + 1][0] == start:
                    places[k] += 1
            yield (
                start,
                after - 1,
                [part[place][1] for part, place in zip(parts, places, strict=True)],
            )

    def bounds(self, poly: Poly) -> tuple[Poly, Poly]:
        """(least, greatest): polynomials in the size alone between which a polynomial with
        remainders lies, (3*l - 7/8, 3*l) of 3*l - r for r in 0..7/8 (`most`). A term with
        remainders is between 0 and its value at the greatest remainders."""
        if not any(atom in self.most for atom in poly.atoms):
            return poly, poly
        low: dict[Monomial, Number] = {}
        high: dict[Monomial, Number] = {}
        for monomial, number in poly.terms.items():
            kept = tuple(pair for pair in monomial if pair[0] not in self.most)
            for atom, power in monomial:
                number = number * self.most.get(atom, 1) ** power
            for side in (low, high):
                if kept == monomial or (number > 0) == (side is high):
                    side[kept] = side.get(kept, 0) + number
        return Poly(low), Poly(high)

    def signs(self, poly: Poly, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the ranges in which the signs of the least and the greatest value that a polynomial
        may have (`bounds`) are constant, as (first, last, sign of the least, sign of the greatest):
        (1, 2, -1, -1), (3, 3, 0, 0), (4, 9, 1, 1) of x - 3 in 1..9."""
        sides = [coefficients(bound, self.letter) for bound in self.bounds(poly)]
        cuts = {first}.union(*(sign_changes(side, first, last) for side in sides))
        for start, after in pairwise([*sorted(cuts), last + 1]):
            low, high = (sign(value(side, start)) for side in sides)
            yield start, after - 1, low, high

    def _remainder(self, most: Number) -> Poly:
        """A new variable (a remainder) that stands for an unknown number from 0 to `most`."""
        name = stand_in(len(self.most))
        self.most[name] = most
        return Poly.atom(name)

    def _piece(self, guards: Iterable[Poly], poly: Poly) -> list[Cell]:
        """The cells (range's first size, polynomial) of a polynomial where all guards are at least
        0, and of 0 elsewhere."""
        holding = self.combined([self._holds(guard) for guard in guards], _product)
        if all(holds == ZERO for _, holds in holding):
            return [(self.first, ZERO)]
        return self.combined([holding, self.poly(poly)], _product)

    def _holds(self, guard: Poly) -> list[Cell]:
        """The condition guard >= 0 as cells (range's first size, value): 1 where it holds, 0 where
        it fails; a remainder, an unknown number between 0 and 1, where the bounds of the guard do
        not tell; None where the guard is not defined, as ceil_log2(0) is not."""
        found: list[Cell] = []
        for start, end, polys in self.joined([self.poly(guard)]):
            if polys[0] is None:
                found.append((start, None))
                continue
            for first, _, low, high in self.signs(polys[0], start, end):
                known = ONE if low >= 0 else ZERO if high < 0 else self._remainder(1)
                found.append((first, known))
        return found

    def poly(self, poly: Poly) -> list[Cell]:
        """The cells (range's first size, polynomial) of a polynomial in the size and in functions
        of the size; None where a function is not defined."""
        functions = [atom for atom in poly.atoms if isinstance(atom, Fn)]
        if not functions:
            return [(self.first, poly)]

        def placed(polys: Sequence[Poly | None]) -> Poly | None:
            """The polynomial with `polys` in place of its functions; None if one is not defined."""
            known = [one for one in polys if one is not None]
            if len(known) < len(polys):
                return None
            return poly.substitute(dict(zip(functions, known, strict=True)))

        return self.combined([self._function(atom) for atom in functions], placed)

    def _function(self, atom: Fn) -> list[Cell]:
        """The cells (range's first size, polynomial) of a function of polynomials, cached: range by
        range in which all arguments are single polynomials; None in place of a polynomial where an
        argument or the function is not defined."""
        if atom not in self._known:
            inside = [self.poly(argument) for argument in atom.args]
            if atom.function in ("Max", "Min"):
                way = 1 if atom.function == "Max" else -1
                found = reduce(lambda one, two: self._extreme(one, two, way), inside)
            else:
                rules: Mapping[str, Callable[..., Iterator[Cell]]] = {
                    "ceil_log2": self._log,
                    "pow2": self._power,
                    "floor_div": self._quotient,
                }
                found = []
                for start, end, polys in self.joined(inside):
                    known = [one for one in polys if one is not None]
                    if len(known) < len(polys):
                        found.append((start, None))
                    else:
                        found += rules[atom.function](start, end, *known)
            self._known[atom] = found
        return self._known[atom]

    def _extreme(self, one: list[Cell], two: list[Cell], way: int) -> list[Cell]:
        """The cells (range's first size, polynomial) of the larger (`way` 1) or the smaller (`way`
        -1) of two quantities. Where bounds do not tell which, `one` plus an unknown part (a
        remainder from 0 to 1) of the greatest difference; None where a quantity is not defined."""
        found: list[Cell] = []
        for start, end, (left, right) in self.joined([one, two]):
            if left is None or right is None:
                found.append((start, None))
                continue
            for first, _, low, high in self.signs((right - left) * way, start, end):
                if low >= 0 or high <= 0:
                    found.append((first, right if low >= 0 else left))
                else:
                    most = self.bounds((right - left) * way)[1]
                    found.append((first, left + most * self._remainder(1) * way))
        return found

    def _log(self, first: int, last: int, poly: Poly) -> Iterator[Cell]:
        """Yield the cells (range's first size, value) of ceil_log2 of a polynomial in first..last,
        one for each power of two that it passes; None where the polynomial is below 1."""

        def of(x: int) -> int | None:
            return ceil_log2(x) if x >= 1 else None

        low, high = self.bounds(poly)
        sides = [self._side(low, ONE, lambda x: of(ceil(x)), first, last)]
        if low != high:
            sides.append(self._side(high, ONE, lambda x: of(floor(x)), first, last))
        return self._values(first, sides)

    def _power(self, first: int, last: int, poly: Poly) -> Iterator[Cell]:
        """Yield the cells (range's first size, value) of 2**x for a polynomial x, a whole number,
        in first..last, one per value of x; where a remainder leaves x open, 2**x for the least x
        plus an unknown up to the greatest 2**x. Unsupported if x has many values."""

        def of(x: Fraction) -> Fraction:
            return Fraction(2) ** floor(x)

        low, high = self.bounds(poly)
        exponents = [self._side(one, ONE, floor, first, last) for one in (low, high)]
        if any(not _is_few(side(a), side(b), 2) for side, at in exponents for a, b in pairwise(at)):
            raise Unsupported(
                f"2**({poly}) has too many values from {first:,} to {last:,}: choose a shorter "
                "range"
            )
        bounds = (low,) if low == high else (low, high)
        return self._values(first, [self._side(one, ONE, of, first, last) for one in bounds])

    def _quotient(self, first: int, last: int, above: Poly, below: Poly) -> Iterator[Cell]:
        """Yield the cells (range's first size, value) of floor(above/below); None where the divisor
        is not positive. Unsupported if the divisor contains a remainder (an unknown number), or has
        several terms where the quotient has many values."""
        # a whole divisor is positive where it is above 1/2
        for start, end, low, _ in self.signs(2 * below - 1, first, last):
            if low <= 0:
                yield start, None
            else:
                yield from self._quotient_of(start, end, above, below)

    def _quotient_of(self, first: int, last: int, above: Poly, below: Poly) -> Iterator[Cell]:
        """Yield the cells (range's first size, value) of floor(above/below) for a positive divisor:
        one polynomial if only a number is rounded, 2*x + 1 of floor((4*x + 3)/2); one for each
        value if the values are few or `above` is a number up to `DIVIDED`; else the first and the
        last values, and between them above/below minus a remainder, an unknown number of at most 1
        (at most 7/8 of x/8, which makes `period` a multiple of 8). Raises Unsupported: the divisor
        has remainders, or has several terms where the quotient has many values."""
        divisor = below.constant()
        quotient = above / below if len(below.terms) == 1 else None
        if quotient is not None and divisor is not None and not self._remains(above):
            free = quotient.terms.get((), 0)
            period = lcm(*(Fraction(n).denominator for m, n in quotient.terms.items() if m))
            if period == 1:  # a whole number plus a constant, which alone is rounded
                yield first, quotient - free + floor(free)
                return
            self.period = lcm(self.period, period)
        if self._remains(below):
            raise Unsupported(
                f"floor(({above})/({below})) has a rounded divisor, and is not solved for "
                f"{self.letter}: give {self.letter} a value, and solve for another size"
            )
        sides = [
            self._side(one, below, floor, first, last) for one in dict.fromkeys(self.bounds(above))
        ]
        number = above.constant()
        other: Poly | Unsupported | None
        if number is not None and -DIVIDED <= number <= DIVIDED:
            other = None
        elif quotient is None:
            other = Unsupported(
                f"floor(({above})/({below})) has too many values over all {self.letter}: "
                f"give {self.letter} a value, and solve for another size"
            )
        else:
            other = quotient - self._remainder(1 if divisor is None else 1 - 1 / Fraction(divisor))
        yield from self._values(first, sides, other)

    def _remains(self, poly: Poly) -> bool:
        """Whether a polynomial has remainders."""
        return any(atom in self.most for atom in poly.atoms)

    def _side(
        self,
        poly: Poly,
        below: Poly,
        of: Callable[[Fraction], Number | None],
        first: int,
        last: int,
    ) -> Side:
        """The pair (function: size x -> of(poly/below at x); the sizes in first..last between which
        the function is monotone), for an `of` that grows with its argument. Unsupported: another
        letter or a function stands in `poly` or `below`."""
        (above, under), (divisor, over) = (ratio(one, self.letter) for one in (poly, below))
        above, under = product(above, over), product(under, divisor)
        return lambda x: of(Fraction(value(above, x), value(under, x))), turns(
            above, under, first, last
        )

    def _values(
        self, first: int, sides: Sequence[Side], other: Poly | Unsupported | None = None
    ) -> Iterator[Cell]:
        """Yield the cells (first size, value) from the size `first` on of a number that equals one
        function of the size, or lies between a lower and an upper function: `sides`, each with the
        sizes between which the function is monotone. A cell begins wherever a function changes its
        value; the value is that of the lower function, plus an unknown from 0 to the difference
        (a remainder) where the upper one is larger, and None where a function is not defined.

        With `other`, a range of sizes in which a function takes more than a few values (`FEW`) has
        such cells at its two ends alone, and one cell with the value `other` between them. An
        `other` that is an error is raised there.
        """
        cuts, many = {first}, []
        for of, stops in sides:
            for start, end in pairwise(stops):
                # two ends with a few values each leave no size between them
                if other is None or _is_few(of(start), of(end), 2):
                    cuts.update(changes(of, start, end))
                    continue
                near, far = _last_few(of, start, end), _last_few(of, end, start)
                cuts.update((*changes(of, start, near), *changes(of, far, end), near + 1, far))
                many.append((near + 1, far))
        for start in sorted(cuts):
            if other is not None and any(low <= start < after for low, after in many):
                if isinstance(other, Unsupported):
                    raise other
                yield start, other
                continue
            values = [of(start) for of, _ in sides]
            low, high = values[0], values[-1]
            if low is None or high is None:
                yield start, None
            else:
                yield start, Poly.of(low) + (self._remainder(high - low) if high > low else 0)


def _is_few(one: int | None, other: int | None, times: int = 1) -> bool:
    """Whether fewer than `times` * `FEW` whole numbers lie between two values of a function; True
    also if the function is not defined at one of the two."""
    return one is None or other is None or abs(one - other) < times * FEW


def _last_few(of: Callable[[int], int | None], start: int, end: int) -> int:
    """The size furthest from `start` towards `end` up to which a monotone function `of` has few
    values (fewer than `FEW` whole numbers apart), by bisection; the values up to `end` are many."""
    begin = of(start)
    while abs(end - start) > 1:
        middle = (start + end) // 2
        start, end = (middle, end) if _is_few(begin, of(middle)) else (start, middle)
    return start


def _sum(polys: Sequence[Poly | None]) -> Poly | None:
    """The sum of polynomials; None where a term is not defined (None)."""
    terms: dict[Monomial, Number] = {}
    for poly in polys:
        if poly is None:
            return None
        for monomial, number in poly.terms.items():
            terms[monomial] = terms.get(monomial, 0) + number
    return Poly(terms)


def _product(polys: Sequence[Poly | None]) -> Poly | None:
    """The product: 0 where a factor is 0, else None where a factor is not defined."""
    if ZERO in polys:
        return ZERO
    return None if None in polys else reduce(lambda one, two: one * two, polys, ONE)
