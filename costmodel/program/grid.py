"""The points at which an expression is evaluated numerically, and the values of indices there.

For `evaluate`, and for depths that have no formula: i in 1..3 with j in 1..i is a 3 x 3 grid, whose
mask is True where j <= i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from costmodel.errors import EquationError, Unsupported
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import Position, position_value
from costmodel.program.recurrences import Block
from costmodel.symbolic.polynomial import Fn, Poly, is_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

Sizes = tuple[tuple[str, int], ...]

AT_ONCE = 10_000_000
"""The largest number of points at which a search evaluates one expression."""
IN_ALL = 20 * AT_ONCE
"""The largest number of points of all expressions of a search together."""
EACH_ROW = 5_000
"""Evaluating a loop's equation at one row takes about as long as so many points at once."""

SMALL = 100
"""Points are cached for sizes up to this one: proofs ask for the same few small sizes often."""


def in_turn(block: Block, sizes: Mapping[str, int]) -> Iterable[Equation]:
    """The equations of a block (of one array, or of a loop) in the order of evaluation. A loop
    gives each equation once per row, with the row fixed: row by row, in its direction."""
    if not block.is_loop:
        return block.equations
    known = tuple(sizes.items())
    return _few_rows(block, known) if _small(known) else _by_rows(block, known)


def _by_rows(block: Block, sizes: Sizes) -> Iterator[Equation]:
    """Yield the equations of a loop, each once per row with the row fixed, row by row; a downward
    loop starts at the last row."""
    at = dict(sizes)
    rows = range(1, block.rows(at) + 1)
    for row in rows if block.step > 0 else reversed(rows):
        for equation in block.equations:
            yield from _at_row(equation, block.row(equation), row, at)


@lru_cache(maxsize=1000)
def _few_rows(block: Block, sizes: Sizes) -> tuple[Equation, ...]:
    return tuple(_by_rows(block, sizes))


def _at_row(
    equation: Equation, here: Poly, row: int, sizes: Mapping[str, int]
) -> Iterator[Equation]:
    """Yield the equation with its row fixed, or nothing if it defines no entry of the row: S[i + 1]
    with i in 1..l - 1 has i = 2 for row 3, and nothing for row 1.

    Args:
        here: the row that the equation defines, in its free indices: i + 1.
    """
    index = next((i for i in equation.indices if i.atom in here.letters), None)
    if index is None:  # the equation defines a single row, such as row 1
        if here.at(sizes) == row:
            yield equation
        return
    # `here` is affine in the index. Bounds with other indices stay beside the fixed value.
    slope = here.coefficient(index.atom).at(sizes)
    number, rest = divmod(row - here.at({**sizes, index.atom: 0}), slope)
    if rest:  # the row lies between two rows that the equation defines
        return
    value = Poly.of(number)
    lower, upper = ([b for b in ends if b.variables] for ends in (index.lower, index.upper))
    low = max((b.at(sizes) for b in index.lower if b not in lower), default=value.at(sizes))
    high = min((b.at(sizes) for b in index.upper if b not in upper), default=value.at(sizes))
    if low <= value.at(sizes) <= high:
        fixed = replace(index, lower=(value, *lower), upper=(value, *upper))
        indices = tuple(fixed if i is index else i for i in equation.indices)
        yield replace(equation, indices=indices)


@dataclass(frozen=True, eq=False)
class Points:
    """The points of nested ranges at sizes `known`: a grid with one axis per index, outer first."""

    indices: tuple[Index, ...]
    known: Sizes
    _ends: dict[Index, tuple[int, int]] = field(default_factory=dict)
    _values: dict[Poly, Any] = field(default_factory=dict)
    _entries: dict[Any, tuple[tuple[Values, ...], Values | None]] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The value of every size."""
        return dict(self.known)

    @cached_property
    def along(self) -> Mapping[str, Values]:
        """Atom of an index -> the index's values along its own axis, broadcastable to the grid's
        shape: for i and j in 1..3, i has the shape (3, 1) and j the shape (1, 3)."""
        import numpy as np

        found = {}
        for axis, index in enumerate(self.indices):
            low, high = self.extent(index)
            shape = [1] * len(self.indices)
            shape[axis] = max(0, high - low + 1)
            found[index.atom] = np.arange(low, high + 1).reshape(shape)
        return found

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents of the grid, a box around the ranges of all indices."""
        ends = map(self.extent, self.indices)
        return tuple(max(0, high - low + 1) for low, high in ends)

    def extent(self, index: Index) -> tuple[int, int]:
        """(low, high) around all values of an index; one with several bounds may reach neither."""
        if index not in self._ends:
            low = max([self._extreme(bound, -1) for bound in index.lower])
            self._ends[index] = low, min([self._extreme(bound, 1) for bound in index.upper])
        return self._ends[index]

    def _extreme(self, bound: Poly, sign: int) -> int:
        """The smallest (`sign` -1) or largest (`sign` 1) value of a bound over all values of the
        outer indices, each of which is put at one of its ends."""
        outer = {i.atom: self.extent(i) for i in self.indices if i.atom in bound.letters}
        if line := _affine(bound, self.known):
            constant, slopes = line
            return constant + sum([k * outer[a][k * sign > 0] for a, k in slopes])
        at = dict(self.sizes)
        for atom, ends in outer.items():
            at[atom] = ends[bound.coefficient(atom).at(self.sizes) * sign > 0]
        return bound.at(at)

    def value(self, poly: Poly) -> Any:
        """The value of a polynomial at every point of the grid, cached: a number, or an array
        broadcastable to the grid's shape."""
        if poly not in self._values:
            self._values[poly] = self._value(poly)
        return self._values[poly]

    def _value(self, poly: Poly) -> Any:
        """The value of a polynomial at every point of the grid, as an array that broadcasts to the
        grid, or one number if it names no index; computed as constant + slopes * indices if it is
        affine with whole coefficients, else monomial by monomial (functions are of sizes alone)."""
        along = self.along
        if line := _affine(poly, self.known):
            constant, slopes = line
            steps = [along[a] if slope == 1 else slope * along[a] for a, slope in slopes]
            if not steps:
                return constant
            return sum(steps[1:], steps[0] + constant if constant else steps[0])
        at: dict[str, Any] = {**self.sizes, **along}
        total: Any = 0
        for monomial, number in poly.terms.items():
            term: Any = number
            for atom, power in monomial:
                if isinstance(atom, Fn):
                    term = term * Poly.atom(atom).at(self.sizes) ** power
                else:
                    term = term * at[atom] ** power if power > 0 else term / at[atom] ** -power
            total = total + term
        return total

    @cached_property
    def mask(self) -> Any:
        """Booleans, broadcastable to the grid's shape: True at the points of the grid that lie
        inside the range of every index."""
        import numpy as np

        inside: Any = np.asarray(True)
        for index in self.indices:
            others = {other.atom for other in self.indices if other != index}
            for constraint in index.constraints:
                if not others.isdisjoint(constraint.letters):
                    inside = inside & (self.value(constraint) >= 0)
        return inside

    @cached_property
    def full(self) -> bool:
        """Whether every point of the grid lies inside the range of every index."""
        return bool(self.mask.all())

    def entries(
        self, positions: tuple[Position, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[Values, ...], Values | None]:
        """The entry of an array of shape `shape` at the positions, for every point: an index array
        per axis, counted from 0, and the mask of the points whose position lies outside the array;
        None in place of the mask if all positions lie inside."""
        at = positions, shape
        if at not in self._entries:
            values = [self.value(position_value(p)) for p in positions]
            self._entries[at] = places(values, shape)
        return self._entries[at]


def points(indices: tuple[Index, ...], sizes: Sizes) -> Points:
    """The points of nested ranges, cached for small sizes."""
    return _points(indices, sizes) if _small(sizes) else Points(indices, sizes)


_points = lru_cache(maxsize=5000)(Points)


def _small(sizes: Sizes) -> bool:
    """Whether no size exceeds `SMALL`."""
    return max([size for _, size in sizes], default=0) <= SMALL


@lru_cache(maxsize=50_000)
def _affine(poly: Poly, sizes: Sizes) -> tuple[int, tuple[tuple[str, int], ...]] | None:
    """An affine polynomial at given sizes as (constant, ((index, slope), ...)): l - 2*i at l = 5 as
    (5, ((i, -2),)). None if the polynomial is not affine in the indices, or if the constant or a
    slope is a fraction."""
    at, slopes = dict(sizes), {"": Poly()}  # "" has the constant
    for monomial, number in poly.terms.items():
        along = [(atom, power) for atom, power in monomial if is_index(atom)]
        rest = Poly({tuple(p for p in monomial if p not in along): number})
        if rest.variables or len(along) > 1 or any(power != 1 for _, power in along):
            return None
        atom = along[0][0] if along else ""
        slopes[atom] = slopes.get(atom, Poly()) + rest
    found = {atom: slope.rational(at) for atom, slope in slopes.items()}
    if not all(isinstance(number, int) for number in found.values()):
        return None
    constant = int(found.pop(""))
    return constant, tuple((atom, int(number)) for atom, number in found.items())


def places(
    positions: Sequence[Any], shape: Sequence[int]
) -> tuple[tuple[Values, ...], Values | None]:
    """The entry of an array at positions counted from 1, for every point of a grid.

    Args:
        positions: for each axis, a number or an array of numbers, broadcastable to the grid.

    Returns:
        The entry as an index array per axis, counted from 0, and a mask of the points whose
        position lies outside the array (their entry is arbitrary); None in place of the mask if
        there are none.
    """
    import numpy as np

    outside: Any = np.asarray(False)
    where: list[Any] = []
    for extent, position in zip(shape, positions, strict=True):
        index = np.asarray(position)
        if index.dtype.kind != "i":  # quotients of sizes and exact numbers
            index = np.vectorize(int, otypes=[np.int64])(index)
        beyond = (index < 1) | (index > extent)
        if beyond.any():
            outside = outside | beyond
            index = np.where(beyond, 1, index)
        where.append(index - 1)
    return tuple(where), outside if outside.any() else None


@dataclass
class Budget:
    """The number of points that a search has visited."""

    spent: int = 0

    def spend(self, at: Points) -> None:
        """Count the points of one expression; Unsupported above `AT_ONCE`, or `IN_ALL` so far."""
        self.count(prod(at.shape), AT_ONCE)

    def count(self, number: int, most: int = IN_ALL) -> None:
        """Count `number` entries against the limits of a search, before an array for them is
        allocated.

        Raises:
            Unsupported: `number` exceeds `most`, or all entries so far exceed `IN_ALL`.
        """
        self.spent += number
        if number > most or self.spent > IN_ALL:
            raise Unsupported(
                f"a search through entries of arrays would visit more than {AT_ONCE:,} at once, or "
                f"{IN_ALL:,} in all: choose smaller sizes"
            )


@dataclass(frozen=True)
class Grid:
    """The values of arrays, and the points at which expressions are evaluated."""

    points: Points
    known: Mapping[str, Values]
    """Name of an array -> its values."""

    def extended(self, over: tuple[Index, ...]) -> Grid:
        """The grid with one more axis per index of `over`, for the indices of a reduction."""
        return Grid(points(self.points.indices + over, self.points.known), self.known)

    def put(self, equation: Equation, values: Values) -> None:
        """Write the values at points inside all ranges to the entries that the equation defines;
        `values` is broadcastable to the grid. EquationError if an entry lies outside its array."""
        import numpy as np

        at, target = self.points, self.known[equation.name]
        value = np.broadcast_to(values, at.shape)
        if not equation.positions:
            target[...] = value
            return
        where, outside = at.entries(equation.positions, target.shape)
        if at.full and outside is None:
            target[where] = value
            return
        inside = np.broadcast_to(at.mask, at.shape)
        if outside is not None and (outside & inside).any():
            raise EquationError(self._beyond(equation, target.shape, inside))
        target[tuple(np.broadcast_to(w, at.shape)[inside] for w in where)] = value[inside]

    def _beyond(self, equation: Equation, shape: tuple[int, ...], inside: Values) -> str:
        """The message for an equation that defines an entry outside its array, with the first axis
        of such an entry. `inside` marks the points inside all ranges."""
        positions = [self.points.value(position_value(p)) for p in equation.positions]
        axis = next(
            k
            for k, (position, extent) in enumerate(zip(positions, shape, strict=True))
            if (((position < 1) | (position > extent)) & inside).any()
        )
        return f"{equation.name} is defined outside its extent {shape[axis]} on axis {axis + 1}"
