"""Positions, bounds and ranges as integer functions of a point (values of indices), at given sizes.

A point gives an integer for every index around an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

from costmodel.errors import OracleError
from costmodel.language.indices import Index, one_by_one
from costmodel.language.nodes import Array, Flat, Gather, Position
from costmodel.symbolic.effort import spend
from costmodel.symbolic.polynomial import Poly, is_index

Point = dict[str, int]
"""Variable of an index -> its value."""


At = Callable[[Point], int]
"""A position or bound, as a function of a point."""


Ends = tuple[list[At], list[At]]
"""The lower and the upper bounds of a range."""


class Places:
    """Compiles positions, ranges and extents at given sizes to functions of a point."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._values: dict[Poly, At] = {}
        self._shapes: dict[Array, tuple[int, ...]] = {}
        self._ranges: dict[Index, Callable[[Point], Sequence[int]]] = {}

    def described(self, point: Point | None = None) -> str:
        """The sizes and a point, for messages: "at sizes l=4, i=2"."""
        named = {**self.sizes, **(point or {})}
        return "at sizes " + ", ".join(f"{k.lstrip('@')}={v}" for k, v in named.items())

    def shape(self, array: Array) -> tuple[int, ...]:
        """The extents of an array."""
        found = self._shapes.get(array)
        if found is None:
            found = self._shapes[array] = tuple(extent.at(self.sizes) for extent in array.shape)
        return found

    def inside(self, array: Array, where: tuple[int, ...]) -> bool:
        """Whether a tuple of positions lies within the extents of an array."""
        for place, extent in zip(where, self.shape(array), strict=True):
            if not 1 <= place <= extent:
                return False
        return True

    def value(self, poly: Poly) -> At:
        """A position, a bound or the value of an index expression (a polynomial) as a function of a
        point: i*j + l gives 10 at i=2, j=3 for l=4."""
        if poly not in self._values:
            self._values[poly] = self._compiled(poly)
        return self._values[poly]

    def _compiled(self, poly: Poly) -> At:
        """An expression as a function of a point, which raises OracleError where the value is a
        fraction. The sizes of an affine expression are evaluated once, here. The slope of an index
        is the difference of two values, as the oracle shares no arithmetic of polynomials with the
        rules."""
        start = {**self.sizes, **dict.fromkeys(filter(is_index, poly.letters), 0)}
        constant = poly.rational(start)
        slopes = [
            (atom, poly.rational({**start, atom: 1}) - constant)
            for atom in sorted(poly.letters)
            if is_index(atom)
        ]
        if _is_affine(poly) and all(isinstance(n, int) for n in (constant, *dict(slopes).values())):
            return _whole(int(constant), [(atom, int(slope)) for atom, slope in slopes])

        def checked(point: Point) -> int:
            """The value at a point, which is evaluated anew at each point."""
            result = poly.rational({**self.sizes, **point})
            if result != int(result):
                raise OracleError(f"{poly} is {result}, no whole number, {self.described(point)}")
            return int(result)

        return checked

    def position(self, position: Position) -> At:
        """A position on an axis, of an entry that is read or defined, as a function of a point.

        Raises:
            OracleError: a gather, whose position depends on values. The interpreter compiles the
                gathers that read (`Interpreter.reading`), so this one stands on a left side.
        """
        if isinstance(position, Gather):
            name = position.at.array.name
            raise OracleError(
                f"a position on a left side reads {name}: expected indices and sizes alone"
            )
        if not isinstance(position, Flat):
            return self.value(position)
        outer, inner, extent = map(self.value, (position.outer, position.inner, position.extent))
        return lambda point: (outer(point) - 1) * extent(point) + inner(point)

    def entry(self, positions: Sequence[Position]) -> Callable[[Point], tuple[int, ...]]:
        """The positions of an entry on the axes of its array, as a function of a point: [i, j + 1]
        gives (2, 4) at i=2, j=3. The most common numbers and kinds of positions have functions of
        their own, for speed."""
        indices = [index for position in positions if (index := _index(position))]
        if len(indices) == len(positions) > 1:
            return itemgetter(*indices)
        places = [self.position(position) for position in positions]
        if len(places) == 1:
            (only,) = places
            return lambda point: (only(point),)
        if len(places) == 2:
            one, two = places
            return lambda point: (one(point), two(point))
        if len(places) == 3:
            one, two, three = places
            return lambda point: (one(point), two(point), three(point))
        return lambda point: tuple([place(point) for place in places])

    def points(self, indices: Sequence[Index]) -> Callable[[Point], list[Point]]:
        """A function of a point (the values of outer indices) that returns all points inside it:
        the outer values with values of `indices` in their ranges, in lexicographic order. At i=2,
        j in 1..i has the points (i=2, j=1) and (i=2, j=2)."""
        if any(index.beside for index in indices):
            choices = [self.points(ranges) for ranges in one_by_one(indices)]
            return lambda point: [found for points in choices for found in points(point)]
        nested = [(index.atom, self._range(index)) for index in self._outer_first(indices)]
        if not nested:
            return lambda point: [point]
        if len(nested) == 1:
            ((only, numbers),) = nested
            return lambda point: [{**point, only: v} for v in numbers(point)]

        def every(point: Point) -> list[Point]:
            found = [point]
            for atom, values in nested:
                found = [{**around, atom: v} for around in found for v in values(around)]
            return found

        return every

    def visited(self, indices: Sequence[Index]) -> Callable[[Point], Iterator[Point]]:
        """A function of a point that iterates over the points inside it, with values of `indices`
        in their ranges. It may yield one dictionary again and again with other values: the caller
        must not keep it."""
        if len(indices) != 1 or indices[0].beside:
            points = self.points(indices)
            return lambda point: iter(points(point))
        atom, values = indices[0].atom, self._range(indices[0])

        def every(point: Point) -> Iterator[Point]:
            inner = point.copy()
            for inner[atom] in values(point):
                yield inner

        return every

    def _outer_first(self, indices: Sequence[Index]) -> list[Index]:
        """The indices in topological order: each after those of them that its bounds contain.
        OracleError if there is no such order, as for i in 1..j beside j in i..l."""
        waiting, found = list(indices), []
        while waiting:
            atoms = {index.atom for index in waiting}
            for index in waiting:
                if not atoms & {atom for bound in index.ends for atom in bound.letters}:
                    break
            else:
                names = ", ".join(index.name for index in waiting)
                raise OracleError(
                    f"the bounds of indices {names} depend on each other in a circle: give one of "
                    "these indices bounds in sizes alone"
                )
            waiting.remove(index)
            found.append(index)
        return found

    def _range(self, index: Index) -> Callable[[Point], Sequence[int]]:
        """The values of an index as a function of a point, compiled once."""
        if index not in self._ranges:
            self._ranges[index] = self._all_ranges(index)
        return self._ranges[index]

    def _all_ranges(self, index: Index) -> Callable[[Point], Sequence[int]]:
        """The values of an index as a function of a point, of a union range by range. The function
        spends a unit of effort for each value, and raises OracleError if ranges overlap."""
        parts: list[Ends] = [
            ([*map(self.value, piece.lower)], [*map(self.value, piece.upper)])
            for piece in index.pieces
        ]
        if len(parts) == 1:
            ends = parts[0]
            if not any(is_index(letter) for end in index.ends for letter in end.letters):
                always = _between(ends, {})

                def constant(point: Point) -> range:
                    spend(len(always))
                    return always

                return constant
            return lambda point: _between(ends, point)

        def united(point: Point) -> list[int]:
            """The values of all ranges of the union at a point."""
            found = [value for ends in parts for value in _between(ends, point)]
            if len(found) > len({*found}):
                raise OracleError(f"the ranges of {index.name} overlap {self.described(point)}")
            return found

        return united


def _index(position: Position) -> str:
    """The atom of a position that is a single index; "" for any other position."""
    if not isinstance(position, Poly) or len(position.terms) != 1:
        return ""
    ((monomial, number),) = position.terms.items()
    alone = number == 1 and len(monomial) == 1 and monomial[0][1] == 1
    return monomial[0][0] if alone and is_index(monomial[0][0]) else ""


def _between(ends: Ends, point: Point) -> range:
    """The numbers from the largest lower to the smallest upper bound; each is a unit of effort."""
    lower, upper = ends
    found = range(max([b(point) for b in lower]), min([b(point) for b in upper]) + 1)
    spend(len(found))
    return found


def _is_affine(poly: Poly) -> bool:
    """Whether each term has at most one index, to the power 1 and outside of functions: true of
    l*i + j, false of i*j and of i // C."""
    return all(
        sum(
            abs(power) if is_index(atom) else 2 * len(Poly.atom(atom).variables)
            for atom, power in term
        )
        < 2
        for term in poly.terms
    )


def _whole(constant: int, slopes: Sequence[tuple[str, int]]) -> At:
    """An affine expression with integer coefficients as a function of a point. The most common
    kinds, a number, an index and a sum of two, have functions of their own, for speed."""
    if not slopes:
        return lambda point: constant
    (first, steps), *others = slopes
    if len(others) == 1:
        ((second, further),) = others
        return lambda point: constant + steps * point[first] + further * point[second]
    if others:
        return lambda point: constant + sum([slope * point[atom] for atom, slope in slopes])
    if (constant, steps) == (0, 1):
        return itemgetter(first)
    return lambda point: constant + steps * point[first]
