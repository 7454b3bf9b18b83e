"""The ranges of one size in which a property of exact quantities does not change, all of them.

A property follows from the order of the quantities: which is the least, whether one is positive.
Cell by cell (`cells`) the differences of the quantities are polynomials, whose changes of sign are
found exactly. Where the bounds of a difference leave its sign open, the range is narrowed; a short
range is tried size by size, and a long one is taken apart into residue classes, in which quotients
such as floor(x/8) are polynomials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from math import lcm
from typing import NamedTuple, TypeVar

from costmodel.errors import Unsupported
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Number, Poly, Values
from costmodel.symbolic.ranges.cells import Cell, Cells
from costmodel.symbolic.sizes import LARGEST

TRIED = 256
"""A range of at most this many sizes is tried size by size."""

CLASSES = 4096
"""More residue classes are not taken."""

L = TypeVar("L")


class Range(NamedTuple):
    """The sizes first, first + step, ..., last."""

    first: int
    last: int
    step: int = 1


@dataclass(frozen=True)
class Quantity:
    """The largest of some terms, divided by `below` if given; `below` is positive."""

    terms: tuple[Exact, ...]
    below: Exact | None = None

    def at(self, sizes: Mapping[str, int]) -> Number:
        """The exact value at integer sizes: the largest of the terms, over the divisor if given."""
        sizes = Values(sizes)  # the terms share functions
        most = max(term.rational(sizes) for term in self.terms)
        if self.below is None:
            return most
        found = Fraction(most) / Fraction(self.below.rational(sizes))
        return found.numerator if found.denominator == 1 else found

    def substitute(self, values: Mapping[str, Poly]) -> Quantity:
        """The quantity with values in place of sizes."""
        terms = tuple(_substituted(term, values) for term in self.terms)
        return Quantity(terms, None if self.below is None else _substituted(self.below, values))


NOTHING = Quantity((Exact(),))
"""The number 0, to which a quantity is compared."""


def _substituted(quantity: Exact, values: Mapping[str, Poly]) -> Exact:
    """A sum of guarded polynomials with values in place of sizes. A piece with a guard that fails
    is left out before its value, which may not exist, is computed."""
    found = []
    for guards, poly in quantity.pieces:
        replaced = [guard.substitute(values) for guard in guards]
        numbers = [guard.constant() for guard in replaced]
        if all(number is None or number >= 0 for number in numbers):
            open_ = frozenset(g for g, n in zip(replaced, numbers, strict=True) if n is None)
            found.append(Exact(((open_, poly.substitute(values)),)))
    return sum(found, Exact())


def ranges(
    quantities: Sequence[Quantity],
    letter: str,
    of: Callable[[int], L],
    first: int = 1,
    last: int = LARGEST,
) -> list[tuple[Range, L]]:
    """The ranges of the size `letter` in first..last in which a property `of` the size is constant,
    as (range, property) by first size. Ranges of step 1 that adjoin have different properties.

    Args:
        quantities: in the size `letter` alone.
        of: size -> the property, which follows from the order of the quantities at the size.

    Raises:
        Unsupported: the order depends on the size modulo a number above `CLASSES`, or bounds of a
            difference leave its sign open; or a quantity is not in pieces: l//(l//8), 2**l.

    >>> l = Poly.atom("l")
    >>> apart = Quantity((Exact.of(l * l - 10 * l + 21),))
    >>> for one, positive in ranges([apart, NOTHING], "l", lambda l: apart.at({"l": l}) > 0):
    ...     print(one.first, one.last, positive)
    1 2 True
    3 7 False
    8 1099511627776 True
    """
    found = _joined([*_solved(quantities, letter, of, first, last)])
    return _periodic(found) if any(one.step > 1 for one, _ in found) else found


def _solved(
    quantities: Sequence[Quantity], letter: str, of: Callable[[int], L], first: int, last: int
) -> Iterator[tuple[Range, L]]:
    """Yield the ranges of first..last in which the property `of` the size is constant, as (range,
    property); adjacent ranges may have equal properties. A short range is tried size by size. In a
    longer one the signs of the quantities' differences decide; a part in which a sign stays open is
    solved by itself if it is short or less than half the range, else by residue classes
    (`_by_class`, which raises Unsupported)."""
    if last - first < TRIED:
        yield from ((Range(x, x), of(x)) for x in range(first, last + 1))
        return
    cells = Cells(letter, first, last)
    for start, end, is_open in _ranges_with_open_parts(cells, _differences(cells, quantities)):
        if not is_open:
            yield Range(start, end), of(start)
        elif 2 * (end - start) < last - first or end - start < TRIED:
            yield from _solved(quantities, letter, of, start, end)
        else:
            yield from _by_class(quantities, letter, of, start, end, cells.period)


def _differences(cells: Cells, quantities: Sequence[Quantity]) -> list[list[Cell]]:
    """For each two quantities, the cells (consecutive ranges, one polynomial each) of their
    difference, multiplied by both divisors: of a/b and c/d the cells of a*d - c*b, whose sign is
    the order, as divisors are positive."""
    values = []
    for quantity in quantities:
        above = cells.largest([cells.exact(term) for term in quantity.terms])
        below = None if quantity.below is None else cells.exact(quantity.below)
        values.append((above, below))
    found = []
    for (one, under), (two, over) in combinations(values, 2):
        scaled = [
            part if by is None else cells.combined([part, by], _product)
            for part, by in ((one, over), (two, under))
        ]
        found.append(cells.combined(scaled, _minus))
    return found


def _ranges_with_open_parts(
    cells: Cells, apart: Sequence[list[Cell]]
) -> Iterator[tuple[int, int, bool]]:
    """Yield consecutive ranges of one size as (first, last, is open), from the cells (range by
    range polynomials) of differences in `apart`: in a range that is not open the sign of every
    difference is constant; in an open range the bounds of some difference leave its sign undecided,
    or the difference is not defined. Adjacent open ranges are joined."""
    begun: int | None = None
    for start, end, polys in cells.joined(apart):
        known = [poly for poly in polys if poly is not None]
        signs = [[*cells.signs(poly, start, end)] for poly in known]
        starts = sorted({start}.union(*({first for first, *_ in one} for one in signs)))
        for first, after in pairwise([*starts, end + 1]):
            undecided = len(known) < len(polys) or any(
                low != high
                for one in signs
                for begin, last, low, high in one
                if begin <= first <= last
            )
            if undecided:
                begun = first if begun is None else begun
                continue
            if begun is not None:
                yield begun, first - 1, True
                begun = None
            yield first, after - 1, False
    if begun is not None:
        yield begun, cells.last, True


def _by_class(
    quantities: Sequence[Quantity],
    letter: str,
    of: Callable[[int], L],
    first: int,
    last: int,
    period: int,
) -> Iterator[tuple[Range, L]]:
    """Yield (range, property) for the ranges of first..last in which the property `of` the size is
    constant (it follows from the order of `quantities`), found for each residue class of the size
    modulo `period` by itself; Unsupported for a period of 1 or above `CLASSES`."""
    if not 1 < period <= CLASSES:
        if period == 1:
            raise Unsupported(
                f"the change of the answer between {letter} = {first:,} and {last:,} is not solved "
                f"for {letter}: compare single values, as `costmodel table --{letter} 64,128` does"
            )
        raise Unsupported(
            f"the answer depends on {letter} modulo {period:,}, and at most {CLASSES:,} remainders "
            f"are tried: compare single values, as `costmodel table --{letter} 64,128` does"
        )
    found: list[tuple[Range, L]] = []
    for offset in range(first - period, first):  # the sizes period*k + offset, with k from 1 on
        value = {letter: Poly.atom(letter) * period + offset}
        inside = [quantity.substitute(value) for quantity in quantities]

        def of_class(k: int, offset: int = offset) -> L:
            return of(period * k + offset)

        solved = _solved(inside, letter, of_class, 1, (last - offset) // period)
        for (start, end, step), label in _joined([*solved]):
            one = Range(period * start + offset, period * end + offset, period * step)
            found.append((one, label))
    yield from _together(found, first, last, period)


def _together(
    found: Sequence[tuple[Range, L]], first: int, last: int, period: int
) -> Iterator[tuple[Range, L]]:
    """Join the ranges `found` of residue classes modulo `period`, which hold all sizes first..last,
    and yield (range, property): one range of consecutive sizes where all classes have the same
    property; elsewhere one for each class or, over at most two rounds of classes, for each size."""
    classes: dict[int, list[tuple[Range, L]]] = {}
    for one in found:
        classes.setdefault(one[0].first % period, []).append(one)

    def label(x: int) -> L:
        """The property at a size, by the range of its residue class."""
        return next(
            label
            for (start, end, step), label in classes[x % period]
            if start <= x <= end and (x - start) % step == 0
        )

    # the properties of all classes together repeat after `turn` sizes; where the classes begin, in
    # the first `period` sizes, nothing changes
    turn = lcm(*(step for (_, _, step), _ in found))
    starts = sorted({start for (start, _, _), _ in found} - {*range(first + 1, first + period)})
    for start, after in pairwise([*starts, last + 1]):
        some = [(x, label(x)) for x in range(start, min(start + turn, after))]
        if all(one == some[0][1] for _, one in some):
            yield Range(start, after - 1), some[0][1]
        elif after - start <= 2 * turn:
            yield from ((Range(x, x), label(x)) for x in range(start, after))
        else:
            yield from (
                (Range(x, after - 1 - (after - 1 - x) % turn, turn), one) for x, one in some
            )


def _joined(found: Sequence[tuple[Range, L]]) -> list[tuple[Range, L]]:
    """The pairs `found` of a range and its property, in ascending order of first sizes; adjacent
    ranges of step 1 with equal properties are joined: 1..4 and 5..9 to 1..9."""
    result: list[tuple[Range, L]] = []
    for one, label in sorted(found, key=lambda pair: pair[0].first):
        if result:
            before, known = result[-1]
            if before.step == one.step == 1 and before.last + 1 == one.first and known == label:
                result[-1] = Range(before.first, one.last), label
                continue
        result.append((one, label))
    return result


def _periodic(found: Sequence[tuple[Range, L]]) -> list[tuple[Range, L]]:
    """The ranges, where a short range of step 1 next to residue classes (ranges of a larger step)
    is merged into them: if it has fewer sizes than there are classes, and each of its sizes has the
    property of its class (the size 4 joins 6, 8, 10, ...). First ranges before classes are tried,
    then ranges after."""
    result = [*found]
    for way in (-1, 1):
        waiting, result = result[::way], []
        classes: dict[int, int] = {}
        for one, label in waiting:
            near = one.first if way > 0 else one.last
            far = one.last if way > 0 else one.first
            if one.step > 1:
                classes[near % one.step] = len(result)
                result.append((one, label))
                continue
            step = result[-1][0].step if result else 1
            sizes = range(near, far + way, way)
            if len(sizes) < step and all(result[classes[x % step]][1] == label for x in sizes):
                for x in sizes:
                    known, _ = result[classes[x % step]]
                    longer = known._replace(**{"last" if way > 0 else "first": x})
                    result[classes[x % step]] = longer, label
                continue
            classes = {}
            result.append((one, label))
        result = result[::way]
    return sorted(result, key=lambda pair: pair[0].first)


def _minus(polys: Sequence[Poly | None]) -> Poly | None:
    """The difference of two polynomials; None if one is not defined."""
    left, right = polys
    return None if left is None or right is None else left - right


def _product(polys: Sequence[Poly | None]) -> Poly | None:
    """The product of two polynomials; None if one is not defined."""
    left, right = polys
    return None if left is None or right is None else left * right
