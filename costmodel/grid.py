"""What is a derived answer at every point of a large grid of sizes, all at once and still exact?

An answer is a sum of products, so it is evaluated axis by axis: what depends on l alone is computed
along l, and only the last products and sums run over the whole grid. numpy's 64-bit integers wrap
silently; here the largest possible intermediate is bounded with Python's own integers first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache, reduce
from itertools import product
from math import lcm, prod
from typing import TYPE_CHECKING, Any

from costmodel.domains import Exact
from costmodel.polynomial import Fn, Monomial, Poly
from costmodel.sizes import LARGEST, LETTERS, SizeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

LIMIT = 2**63 - 1
"""The largest 64-bit integer."""

Dims = frozenset[int]
"""The axes of the grid along which something varies."""


class GridOverflow(OverflowError):
    """A value could leave 64 bits somewhere on the grid; nothing was computed."""


def axes(**sizes: Iterable[int]) -> dict[str, Integers]:
    """One axis per letter, in the order given: the cross product of the values, unexpanded.

    >>> {letter: values.shape for letter, values in axes(l=range(1, 5), d=(8, 16)).items()}
    {'l': (4, 1), 'd': (1, 2)}
    """
    import numpy as np

    lists = [values if isinstance(values, np.ndarray) else list(values) for values in sizes.values()]
    for letter, values in zip(sizes, lists, strict=True):
        if np.ndim(values) != 1:
            raise SizeError(f"size {letter} must be a list of positive integers")
    return dict(zip(sizes, np.ix_(*map(np.asarray, lists)), strict=True))


def grid(answer: Exact | Poly, sizes: Mapping[str, Any]) -> Integers:
    """An answer at every point of a grid, equal to `answer.at(...)` at each of them.

    Args:
        answer: an exact answer, such as `count(mixer).exact_total` or `parameters(mixer).poly`.
        sizes: letter -> integers; the arrays broadcast against each other, `axes(...)` makes
            a cross product of lists.

    Returns:
        int64, of the common shape of all sizes given; a read-only view along axes on which the
        answer does not depend.

    Raises:
        GridOverflow: an intermediate value could exceed 2**63 - 1.
        SizeError: sizes that are missing, not positive integers, or do not broadcast.
        ValueError: the answer is no integer at some point (d not divisible by n).

    >>> import costmodel as cm
    >>> grid(cm.count(cm.mixer("me")).exact_total, axes(l=(64, 128), d=(128,))).tolist()
    [[524288], [2097152]]
    """
    return Grid(sizes).at(answer)


class Grid:
    """Sizes, checked once, at which any number of answers are evaluated."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        import numpy as np

        self.sizes = {letter: _checked(letter, values) for letter, values in sizes.items()}
        try:
            self.shape = np.broadcast_shapes(*(values.shape for values in self.sizes.values()))
        except ValueError:
            shapes = ", ".join(f"{x} {values.shape}" for x, values in self.sizes.items())
            raise SizeError(f"sizes that do not broadcast against each other: {shapes}") from None
        self._atoms: dict[str, Integers] = {}
        self._largest: dict[str, int] = {}
        self._powers: dict[tuple[str, int], Integers] = {}

    def at(self, answer: Exact | Poly) -> Integers:
        """The answer at every point; see `grid`."""
        import numpy as np

        exact = Exact.of(answer) if isinstance(answer, Poly) else answer
        below = _denominator(poly for _, poly in exact.pieces)
        polys = [poly * below for _, poly in exact.pieces]
        self._fits(polys, str(below))
        total: Integers = np.zeros((), dtype=np.int64)
        for (guards, _), poly in zip(exact.pieces, polys, strict=True):
            value = self._value(poly)
            for guard in guards:
                value = value * self._holds(guard)
            total = _plus(total, value)
        return np.broadcast_to(self._divided(total, below, polys), self.shape)

    def _fits(self, polys: Iterable[Poly], what: str) -> None:
        """Refuse unless every partial sum and product stays within 64 bits.

        Each is a part of the sum of the absolute values of all terms, each factor at its largest.
        """
        largest = sum(
            abs(int(number)) * prod(self._reach(atom) ** power for atom, power in monomial)
            for poly in polys
            for monomial, number in poly.terms.items()
        )
        if largest > LIMIT:
            at = ", ".join(f"{x}={int(values.max())}" for x, values in self.sizes.items())
            raise GridOverflow(
                f"values up to {largest:.2e} may arise at {at}, beyond 64-bit integers "
                f"(9.22e+18): use smaller sizes, or `.at(...)` point by point, which is exact"
            )

    def _reach(self, atom: str) -> int:
        """The largest magnitude of an atom, at least 1 so that no other factor hides behind 0."""
        if atom not in self._largest:
            self._largest[atom] = max(1, int(abs(self._atom(atom)).max()))
        return self._largest[atom]

    def _atom(self, atom: str) -> Integers:
        if atom not in self._atoms:
            if isinstance(atom, Fn):
                arguments = [Grid.at(self, argument) for argument in atom.args]
                self._atoms[atom] = FUNCTIONS[atom.function](_unexpanded(arguments))
            elif atom in self.sizes:
                self._atoms[atom] = self.sizes[atom]
            else:
                raise SizeError(f"no value for size {atom.lstrip('@#')}")
        return self._atoms[atom]

    def _power(self, atom: str, power: int) -> Integers:
        if power == 1:
            return self._atom(atom)
        if (atom, power) not in self._powers:
            self._powers[atom, power] = self._power(atom, power - 1) * self._atom(atom)
        return self._powers[atom, power]

    def _dims(self, monomial: Monomial) -> Dims:
        """Along which axes of the grid, counted from the last, a product varies."""
        found: set[int] = set()
        for atom, _ in monomial:
            shape = self._atom(atom).shape
            found |= {axis - len(shape) for axis, extent in enumerate(shape) if extent != 1}
        return frozenset(found)
