"""What is the value of an answer at every point of a large grid of sizes, all at once and exact?

An answer is a sum of products, so it is evaluated axis by axis: a factor in l alone is computed
along l, and only the last products and sums run over the whole grid. numpy's 64-bit integers wrap
silently; so the largest possible intermediate is bounded with Python's own integers first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache, reduce
from itertools import product
from math import lcm, prod
from typing import TYPE_CHECKING, Any

from costmodel.errors import GridOverflow, SizeError
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Monomial, Poly
from costmodel.symbolic.sizes import LARGEST, LETTERS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


LIMIT = 2**63 - 1
"""The largest 64-bit integer."""


Dims = frozenset[int]
"""The axes of the grid along which a value varies, counted from the last: -1, -2, ..."""


def axes(**sizes: Iterable[int]) -> dict[str, Integers]:
    """One axis per letter, in the order given: the cross product of the values, unexpanded.

    >>> {letter: values.shape for letter, values in axes(l=range(1, 5), d=(8, 16)).items()}
    {'l': (4, 1), 'd': (1, 2)}
    """
    import numpy as np

    lists = [
        values if isinstance(values, np.ndarray) else list(values) for values in sizes.values()
    ]
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
    """A grid of sizes, checked once, at which any number of answers are evaluated."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        import numpy as np

        self.sizes = {letter: _checked_axis(letter, values) for letter, values in sizes.items()}
        try:
            self.shape = np.broadcast_shapes(*(values.shape for values in self.sizes.values()))
        except ValueError:
            shapes = ", ".join(f"{x} {values.shape}" for x, values in self.sizes.items())
            raise SizeError(f"sizes that do not broadcast against each other: {shapes}") from None
        self._atoms: dict[str, Integers] = {}
        self._largest: dict[str, int] = {}
        self._varies: dict[str, Dims] = {}
        self._powers: dict[tuple[str, int], Integers] = {}

    def at(self, answer: Exact | Poly) -> Integers:
        """The answer at every point; see `grid`."""
        import numpy as np

        return np.broadcast_to(self._unexpanded(answer), self.shape)

    def _unexpanded(self, answer: Exact | Poly) -> Integers:
        """The answer, with extent 1 along each axis of the grid that it does not depend on."""
        exact = Exact.of(answer) if isinstance(answer, Poly) else answer
        below = _common_denominator(poly for _, poly in exact.pieces)
        polys = [poly * below for _, poly in exact.pieces]
        self._fits([*polys, below])
        number = below.constant()
        divisor = number if isinstance(number, int) else 1
        early = below == divisor and all(self._separable(p, divisor) for p in polys)
        values = []
        for (guards, _), poly in zip(exact.pieces, polys, strict=True):
            value = self._value(poly, divisor if early else 1)
            for guard in guards:
                value = value * self._holds(guard)
            values.append(value)
        total = reduce(_add_in_place, values) if values else _as_int64(0)
        return total if early else self._divided(total, below)

    def _fits(self, polys: Iterable[Poly]) -> None:
        """Refuse unless every partial sum and product stays within 64 bits.

        None is larger than the sum of the absolute values of all terms, each factor at its largest.
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
                arguments = (self._unexpanded(argument) for argument in atom.args)
                self._atoms[atom] = FUNCTIONS[atom.function](*arguments)
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
        return frozenset[int]().union(*(self._dims_of(atom) for atom, _ in monomial))

    def _dims_of(self, atom: str) -> Dims:
        if atom not in self._varies:
            shape = self._atom(atom).shape
            varying = (axis - len(shape) for axis, extent in enumerate(shape) if extent != 1)
            self._varies[atom] = frozenset(varying)
        return self._varies[atom]

    def _value(self, poly: Poly, divisor: int = 1) -> Integers:
        """`poly / divisor`; with a divisor other than 1, `_separable` must have been proven."""
        parts = [self._part(part, divisor) for part in self._parts(poly)]
        return reduce(_add_in_place, parts) if parts else _as_int64(0)

    def _part(self, poly: Poly, divisor: int) -> Integers:
        factored = self._factored(poly, divisor)
        if factored is None:
            return self._along(poly, divisor)
        products = (self._product(m) * self._value(inner, divisor) for m, inner in factored)
        return reduce(_add_in_place, products)

    def _along(self, poly: Poly, divisor: int) -> Integers:
        """A sum of products that all vary along the same axes."""
        terms = (self._product(m) * int(number) for m, number in poly.terms.items())
        total = reduce(_add_in_place, terms)
        return total if divisor == 1 else total // divisor

    def _product(self, monomial: Monomial) -> Integers:
        if not monomial:
            return _as_int64(1)
        return reduce(lambda x, y: x * y, (self._power(atom, power) for atom, power in monomial))

    def _parts(self, poly: Poly) -> list[Poly]:
        """Split a sum into parts by the axes that its terms vary along; a term is added to the
        part of another one that varies along its axes and more."""
        found: dict[Dims, Poly] = {}
        for monomial, number in sorted(poly.terms.items(), key=lambda t: -len(self._dims(t[0]))):
            dims = self._dims(monomial)
            home = next((wider for wider in found if dims <= wider), dims)
            found[home] = found.get(home, Poly()) + Poly({monomial: number})
        return [found[dims] for dims in sorted(found, key=len)]

    def _factored(self, poly: Poly, divisor: int) -> list[tuple[Monomial, Poly]] | None:
        """The sum as products of a factor along some axes and a sum along the others; None where
        all of it varies along the same axes.

        The axes that give the fewest products are factored out, since these fill the grid.
        """
        candidates = {self._dims_of(atom) for atom in poly.atoms}
        if len(candidates - {frozenset()}) < 2:
            return None
        ways = [self._factor_out(poly, dims) for dims in sorted(candidates, key=sorted) if dims]
        whole = [way for way in ways if all(_divides(divisor, inner) for _, inner in way)]
        return min(whole or ways, key=len)

    def _factor_out(self, poly: Poly, dims: Dims) -> list[tuple[Monomial, Poly]]:
        found: dict[Monomial, Poly] = {}
        for monomial, number in poly.terms.items():
            outer = tuple(p for p in monomial if self._dims_of(p[0]) == dims)
            inner = tuple(p for p in monomial if self._dims_of(p[0]) != dims)
            found[outer] = found.get(outer, Poly()) + Poly({inner: number})
        return list(found.items())

    def _separable(self, poly: Poly, divisor: int) -> bool:
        """Whether the divisor divides each of the innermost sums, so that none has to be divided
        that is spread over the whole grid."""
        return divisor == 1 or all(
            all(self._separable(inner, divisor) for _, inner in factored)
            if (factored := self._factored(part, divisor))
            else _divides(divisor, part)
            for part in self._parts(poly)
        )

    def _holds(self, guard: Poly) -> NDArray[np.bool_]:
        below = _common_denominator([guard])
        self._fits([guard * below])
        holds: NDArray[np.bool_] = self._value(guard * below) >= 0
        return holds

    def _divided(self, total: Integers, below: Poly) -> Integers:
        divisor = self._value(below)
        whole = total // divisor
        if (whole * divisor != total).any():
            raise ValueError(f"not an integer at every point of the grid: divided by {below}")
        return whole


def _checked_axis(letter: str, values: Any) -> Integers:
    """The values of a size as 64-bit integers, refused where `sizes.checked` refuses them."""
    import numpy as np

    found = np.asarray(values)
    if letter not in LETTERS:
        raise SizeError(f"unknown size '{letter}': the letters are {', '.join(LETTERS)}")
    if found.size == 0 or not np.issubdtype(found.dtype, np.integer):
        raise SizeError(f"size {letter} must be positive integers, got {found.dtype} {found.shape}")
    if found.min() < 1 or found.max() > LARGEST:
        outside = int(found.min()) if found.min() < 1 else int(found.max())
        raise SizeError(f"size {letter} must lie in 1..2**40, got {outside}")
    return found.astype(np.int64)


def _common_denominator(polys: Iterable[Poly]) -> Poly:
    """The smallest product of a number and sizes that clears every fraction."""
    number, powers = 1, dict[str, int]()
    for poly in polys:
        for monomial, coefficient in poly.terms.items():
            number = lcm(number, Fraction(coefficient).denominator)
            for atom, power in monomial:
                powers[atom] = max(powers.get(atom, 0), -power)
    for atom, power in powers.items():
        if power and isinstance(atom, Fn) and atom.function != "pow2":
            raise ValueError(f"cannot divide by {atom} on a grid: it may be 0 or negative")
    return Poly({tuple(sorted((a, p) for a, p in powers.items() if p)): number})


@cache
def _divides(divisor: int, poly: Poly) -> bool:
    """Whether the divisor divides a polynomial with whole coefficients at all integers, by trying
    all residues; False too where there are more than 4096 of them."""
    if divisor == 1:
        return True
    atoms = sorted(poly.atoms)
    if divisor ** len(atoms) > 4096:
        return False
    return all(
        sum(
            int(number) * prod(residues[atom] ** power for atom, power in monomial)
            for monomial, number in poly.terms.items()
        )
        % divisor
        == 0
        for values in product(range(divisor), repeat=len(atoms))
        for residues in (dict(zip(atoms, values, strict=True)),)
    )


def _as_int64(value: int) -> Integers:
    import numpy as np

    return np.asarray(value, dtype=np.int64)


def _add_in_place(total: Integers, term: Integers) -> Integers:
    """The sum, written into an operand that has its shape: nobody else may hold the operands."""
    import numpy as np

    shape = np.broadcast_shapes(total.shape, term.shape)
    out = next((side for side in (total, term) if side.shape == shape and side.ndim), None)
    result: Integers = np.add(total, term, out=out)
    return result


def _ceil_log2_arrays(values: Integers) -> Integers:
    """ceil(log2 x) from the bits of x - 1, exact (floating point holds 32 of them at a time)."""
    import numpy as np

    if (values < 1).any():
        raise ValueError(f"ceil_log2 needs positive integers, got {int(values.min())}")
    high, low = np.divmod(values - 1, 2**32)
    bits = np.where(high > 0, np.frexp(high.astype(float))[1] + 32, np.frexp(low.astype(float))[1])
    result: Integers = bits.astype(np.int64)
    return result


def _floor_div_arrays(above: Integers, below: Integers) -> Integers:
    if (below < 1).any():
        raise ValueError(f"floor_div divides by positive integers, got {int(below.min())}")
    result: Integers = above // below
    return result


def _pow2_arrays(values: Integers) -> Integers:
    if (values < 0).any():
        raise ValueError(f"2**x needs a non-negative x, got {int(values.min())}")
    if (values > 62).any():
        raise GridOverflow(f"2**{int(values.max())} is beyond 64-bit integers")
    powers: Integers = 1 << values
    return powers


def _extremum(name: str) -> Callable[..., Integers]:
    def extremum(*values: Integers) -> Integers:
        import numpy as np

        result: Integers = reduce(getattr(np, name), values)
        return result

    return extremum


FUNCTIONS: Mapping[str, Callable[..., Integers]] = {
    "ceil_log2": _ceil_log2_arrays,
    "floor_div": _floor_div_arrays,
    "pow2": _pow2_arrays,
    "Max": _extremum("maximum"),
    "Min": _extremum("minimum"),
}
"""The functions of `polynomial.FUNCTIONS`, on arrays."""
