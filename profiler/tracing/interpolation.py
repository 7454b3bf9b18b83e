"""Finds the polynomials that give exact numbers at every size.

Along each size the space of functions is found first: powers of the size, as many as are needed
until two more change nothing, or products of the size and of atoms (a padded length and its
logarithm, ceil(l/p)). The polynomial in all sizes is then interpolated on a downward-closed set of
points: a term is tried only if every term one step below it was needed. All arithmetic is rational.

Words: a *place* is one size of one letter, a *point* one size per letter. The functions along a
letter are numbered from 0, and the number is the function's *order*. Example: along l the functions
are 1 and l - 3 at the places 3 and 4, so a number n(l) is n(3) * 1 + (n(4) - n(3)) * (l - 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

from costmodel.symbolic.polynomial import Poly

Point = tuple[int, ...]
Numbers = Mapping[Any, int]
"""Quantity -> its exact number at one point; a missing quantity is 0."""

HIGHEST = 6
"""The highest degree in one size that is tried."""


@dataclass(frozen=True)
class Axis:
    """A basis of functions of one size (`letter`), with interpolation places: `functions[k]` is 1
    at `places[k]` and 0 at the earlier places."""

    letter: str
    places: tuple[int, ...]
    functions: tuple[Poly, ...]
    others: tuple[Axis, ...] = ()
    """Other bases of the same space at the same places, for atoms that depend on each other."""

    @property
    def powers(self) -> bool:
        """Whether the functions are polynomials of rising degree in the size, without atoms."""
        return all(f.atoms <= {self.letter} for f in self.functions)

    @cached_property
    def _known(self) -> dict[tuple[int, int], Fraction]:
        """Cache of `at`: (order, place) -> value."""
        return {}

    def at(self, order: int, place: int) -> Fraction:
        """The value of the basis function number `order` at the size `place`."""
        known = self._known.get((order, place))
        if known is None:
            known = Fraction(self.functions[order].rational({self.letter: place}))
            self._known[order, place] = known
        return known


def axis(letter: str, raw: Iterable[Poly], places: Sequence[int]) -> Axis:
    """Make a basis, with interpolation places, of the span of the functions `raw` of one size:
    function k is 1 at its own place, one of `places`, and 0 at the places of the functions before.
    For 1 and l at places 3 and 4, the basis is 1 and l - 3.

    A function that the earlier ones span at all places is left out.
    """
    chosen: list[int] = []
    functions: list[Poly] = []
    for function in raw:
        rest = function
        for place, known in zip(chosen, functions, strict=True):
            rest = rest - known * rest.rational({letter: place})
        for place in places:
            value = rest.rational({letter: place}) if place not in chosen else 0
            if value:
                chosen.append(place)
                functions.append(rest * (Fraction(1) / value))
                break
    return Axis(letter, tuple(chosen), tuple(functions))


def powers_up_to(letter: str, degree: int) -> list[Poly]:
    """1, x, x**2, ... of one size."""
    return [Poly.atom(letter) ** k for k in range(degree + 1)]


Vector = dict[Any, Fraction]
"""Quantity -> coefficient of one function of a basis."""


def leftover(numbers: Numbers, known: Iterable[tuple[Vector, Fraction]]) -> Vector:
    """Subtract the functions found so far from the numbers at one point: quantity -> its number in
    `numbers` minus the sum of coefficients times value over `known`, pairs of the coefficients of a
    function and its value at the point of the numbers; quantities with 0 left are dropped."""
    found = {name: Fraction(value) for name, value in numbers.items()}
    for coefficients, value in known:
        if value:
            for name, coefficient in coefficients.items():
                found[name] = found.get(name, Fraction(0)) - coefficient * value
    return {name: value for name, value in found.items() if value}


def degree_along(
    letter: str, places: Sequence[int], numbers: Callable[[int], Numbers], *, beyond: int = 2
) -> int | None:
    """The highest power of one size (`letter`) that any number needs (`numbers`: size -> quantity
    -> number), confirmed by `beyond` higher powers with coefficient 0. Powers below the number of
    sizes in `places` are tried; None if none of them suffices."""
    basis = axis(letter, powers_up_to(letter, len(places) - 1), places)
    coefficients: list[Vector] = []
    last = 0
    for order, place in enumerate(basis.places):
        known = ((c, basis.at(k, place)) for k, c in enumerate(coefficients))
        coefficients.append(leftover(numbers(place), known))
        if coefficients[-1]:
            last = order
        elif order >= last + beyond:
            return last
    return None


def spans(basis: Axis, places: Iterable[int], numbers: Callable[[int], Numbers]) -> bool:
    """Whether a basis's functions, fitted at the basis's places, give the numbers at `places`."""
    coefficients = axis_coefficients(basis, numbers)
    return all(
        not leftover(numbers(p), ((c, basis.at(k, p)) for k, c in enumerate(coefficients)))
        for p in places
    )


def axis_coefficients(basis: Axis, numbers: Callable[[int], Numbers]) -> list[Vector]:
    """The coefficients with which the basis's functions of one size give `numbers` (size ->
    quantity -> number) at the basis's places; a dict for each function."""
    coefficients: list[Vector] = []
    for place in basis.places:
        known = ((c, basis.at(k, place)) for k, c in enumerate(coefficients))
        coefficients.append(leftover(numbers(place), known))
    return coefficients


def interpolate(
    axes: Sequence[Axis], numbers: Callable[[Point], Numbers], *, whole: bool = False
) -> dict[Any, Poly]:
    """Interpolate `numbers` (point -> quantity -> number): quantity -> the polynomial, a
    combination of products of the axes' functions, one factor per axis, that gives its number at
    every point of the grid of places.

    A product is tried only if every product one step below it along an axis of powers (one power
    replaced by the power before) was needed, which is correct for powers. Along an axis of other
    functions, and with `whole` along every axis, all products are tried.
    """
    pruned = [i for i, a in enumerate(axes) if a.powers and not whole]
    found: dict[Point, Vector] = {}
    for orders in sorted(product(*(range(len(a.places)) for a in axes)), key=sum):
        if any(not found.get(below) for below in just_below(orders, pruned)):
            continue
        point = tuple(a.places[k] for a, k in zip(axes, orders, strict=True))
        known = (  # the other products are 0 at this point
            (coefficients, value_at(axes, lower, point))
            for lower, coefficients in found.items()
            if all(i <= j for i, j in zip(lower, orders, strict=True))
        )
        found[orders] = leftover(numbers(point), known)
    polys: dict[Any, Poly] = {}
    for orders, coefficients in found.items():
        term = Poly.of(1)
        for a, k in zip(axes, orders, strict=True):
            term = term * a.functions[k]
        for name, coefficient in coefficients.items():
            polys[name] = polys.get(name, Poly()) + term * coefficient
    return polys


def shortest_formulas(
    axes: Sequence[Axis], numbers: Callable[[Point], Numbers], *, whole: bool = False
) -> dict[Any, Poly]:
    """Interpolate `numbers` (point -> quantity -> number): quantity -> a short combination of
    products of the axes' functions that gives its number at every point of the grid of places. If
    functions depend on each other, an axis has several bases (`Axis.others`): each is tried with
    the first basis of every other axis, and the formula with the fewest terms is taken. `whole`:
    try all products, not only those one step above products that were needed."""
    best = interpolate(axes, numbers, whole=whole)
    for i, given in enumerate(axes):
        for other in given.others:
            turned = interpolate([*axes[:i], other, *axes[i + 1 :]], numbers, whole=whole)
            for name, poly in turned.items():
                if len(poly.terms) < len(best.get(name, Poly()).terms):
                    best[name] = poly
    return best


def just_below(orders: Point, along: Sequence[int]) -> Iterator[Point]:
    """Yield the orders of the products one step below a product: one order less along one of the
    axes whose numbers are `along`."""
    for i in along:
        if orders[i]:
            yield (*orders[:i], orders[i] - 1, *orders[i + 1 :])


def value_at(axes: Sequence[Axis], orders: Point, point: Point) -> Fraction:
    """The value at a point of the product of function number `orders[i]` of each axis i."""
    value = Fraction(1)
    for a, k, place in zip(axes, orders, point, strict=True):
        value *= a.at(k, place)
        if not value:
            break
    return value
