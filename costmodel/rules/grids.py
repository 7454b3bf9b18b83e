"""At which points is an expression evaluated, and what are its indices worth there?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.atoms import Fn
from costmodel.indices import Index
from costmodel.polynomial import Poly

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]


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
