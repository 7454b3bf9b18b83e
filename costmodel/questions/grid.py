"""At which points is an expression evaluated, and what are its indices worth there?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.errors import EquationError
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import position_value
from costmodel.program.recurrences import Block
from costmodel.symbolic.polynomial import Fn, Poly

if TYPE_CHECKING:
    from costmodel.questions.numeric import Values


def in_turn(block: Block, sizes: Mapping[str, int]) -> Iterator[Equation]:
    """The equations of a block; those of a loop row by row."""
    if not block.is_loop:
        yield from block.equations
        return
    last = max(array.shape[axis].at(sizes) for array, axis in block.axes.items())
    rows = range(1, last + 1)
    for row in rows if block.step > 0 else reversed(rows):
        for equation in block.equations:
            yield from _at_row(equation, block.row(equation), row, sizes)


def _at_row(
    equation: Equation, here: Poly, row: int, sizes: Mapping[str, int]
) -> Iterator[Equation]:
    """The equation with its row fixed, if it defines that row."""
    index = next((i for i in equation.indices if i.atom in here.letters), None)
    if index is None:
        if here.at(sizes) == row:
            yield equation
        return
    value = Poly.of(row) - (here - index)
    ends = (max(b.at(sizes) for b in index.lower), min(b.at(sizes) for b in index.upper))
    if ends[0] <= value.at(sizes) <= ends[1]:
        fixed = replace(index, lower=(value,), upper=(value,))
        indices = tuple(fixed if i is index else i for i in equation.indices)
        yield replace(equation, indices=indices)


@dataclass(frozen=True)
class Grid:
    """Axes of a broadcast: one per index, outer ones first."""

    indices: tuple[Index, ...]
    sizes: Mapping[str, int]
    known: Mapping[str, Values]
    ends: dict[Index, tuple[int, int]] = field(default_factory=dict, compare=False)
    """What `extent` has found."""

    def extended(self, over: tuple[Index, ...]) -> Grid:
        """The same with more axes, of inner indices."""
        return Grid(self.indices + over, self.sizes, self.known)

    @cached_property
    def coordinates(self) -> tuple[Values, ...]:
        """The values of each index along its axis."""
        return tuple(self._along(axis, *self.extent(i)) for axis, i in enumerate(self.indices))

    def _along(self, axis: int, low: int, high: int) -> Values:
        import numpy as np

        shape = [1] * len(self.indices)
        shape[axis] = max(0, high - low + 1)
        return np.arange(low, high + 1).reshape(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the broadcast."""
        return tuple(along.size for along in self.coordinates)

    def extent(self, index: Index) -> tuple[int, int]:
        """The smallest lower and largest upper end over all outer indices."""
        if index not in self.ends:
            self.ends[index] = self._end(index, -1), self._end(index, 1)
        return self.ends[index]

    def _end(self, index: Index, sign: int) -> int:
        bounds = index.upper if sign > 0 else index.lower
        ends = [self._extreme(bound, sign) for bound in bounds]
        return min(ends) if sign > 0 else max(ends)

    def _extreme(self, bound: Poly, sign: int) -> int:
        at = dict(self.sizes)
        for outer in self.indices:
            if outer.atom in bound.letters:
                slope = bound.coefficient(outer.atom).at(self.sizes)
                low, high = self.extent(outer)
                at[outer.atom] = high if slope * sign > 0 else low
        return bound.at(at)

    def value(self, poly: Poly) -> Any:
        """A polynomial of indices over the grid."""
        at: dict[str, Any] = dict(self.sizes)
        named = zip(self.indices, self.coordinates, strict=True)
        at |= {index.atom: along for index, along in named if index.atom in poly.atoms}
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

    def mask(self) -> Any:
        """True inside the domain of every index."""
        import numpy as np

        inside: Any = np.asarray(True)
        for index in self.indices:
            for constraint in index.constraints:
                if any(o.atom in constraint.letters for o in self.indices if o != index):
                    inside = inside & (self.value(constraint) >= 0)
        return inside

    def places(
        self, positions: Sequence[Any], shape: Sequence[int]
    ) -> tuple[tuple[Values, ...], Values]:
        """The entry of an array at some positions, from 0 on, and where it lies outside."""
        import numpy as np

        outside: Any = np.asarray(False)
        where: list[Any] = []
        for extent, position in zip(shape, positions, strict=True):
            index = np.asarray(position)
            if index.dtype.kind != "i":
                index = np.vectorize(int, otypes=[np.int64])(index)
            beyond = (index < 1) | (index > extent)
            outside = outside | beyond
            where.append(np.where(beyond, 0, index - 1))
        return tuple(where), outside

    def put(self, equation: Equation, values: Values) -> None:
        """Write the values at all points to the entries that the equation defines there."""
        import numpy as np

        shape = self.shape
        inside, value = np.broadcast_to(self.mask(), shape), np.broadcast_to(values, shape)
        target = self.known[equation.name]
        if not equation.positions:
            target[...] = value
            return
        where = []
        for axis, position in enumerate(equation.positions):
            index = np.broadcast_to(np.asarray(self.value(position_value(position))), shape)[inside]
            index = index.astype(np.int64)
            if index.size and (index.min() < 1 or index.max() > target.shape[axis]):
                raise EquationError(
                    f"{equation.name} is defined outside its extent {target.shape[axis]} on axis "
                    f"{axis + 1}"
                )
            where.append(index - 1)
        target[tuple(where)] = value[inside]
