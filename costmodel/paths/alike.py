"""Which sizes count entries of equal depth, so that a search visits one entry in place of all?

The channels of a key are alike if every equation defines all of them and every sum runs over all of
them: their depths are equal, and a sum over K channels has K terms of one depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from math import prod

from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Position, Ref, position_value, walk
from costmodel.program.one_chunk import PLAIN
from costmodel.symbolic.constraints import ONE
from costmodel.symbolic.polynomial import Fn, Poly, is_index

Places = Sequence[tuple[Array, tuple[Position, ...]]]
"""(array, positions) of the entries that an equation defines or reads."""


@cache
def alike(system: System) -> frozenset[str]:
    """The sizes that count entries of equal depth: n, K and V of a delta rule, but neither l nor C.
    Such a size stands only in extents of axes and in ranges 1..N, N a product of such sizes, and
    the indices of an axis run over the whole axis: j and c over W[(j-1)*h + c] for j in 1..n and c
    in 1..h. Empty for a system with reads beyond an array, or with a part that is not in `PLAIN`,
    such as a gather, a scan or a selection."""
    if system.beyond or not all(map(_plain, system.equations)):
        return frozenset()
    parts = [(_ranges(e), _places(e)) for e in system.equations]
    found = {
        letter
        for _, places in parts
        for array, _ in places
        for extent in array.shape
        for letter in extent.letters
    }
    while refused := {x for part in parts for x in _refused(found, *part)} & found:
        found -= refused
    return frozenset(found)


def _plain(equation: Equation) -> bool:
    """Whether all parts of an equation are plain, its positions too."""
    return all(isinstance(node, PLAIN) for node, _ in walk(equation.value)) and not any(
        isinstance(p, Gather) for _, positions in _places(equation) for p in positions
    )


def _places(equation: Equation) -> Places:
    """The entries that an equation defines and reads."""
    read = [node for node, _ in walk(equation.value) if isinstance(node, Ref)]
    return [(equation.array, equation.positions), *((ref.array, ref.positions) for ref in read)]


def _ranges(equation: Equation) -> Sequence[Index]:
    """The ranges of an equation's indices, outer ones first."""
    inside = (index for _, over in walk(equation.value) for index in over)
    return [*dict.fromkeys((*equation.indices, *inside))]


def _refused(sizes: Set[str], ranges: Sequence[Index], places: Places) -> Iterator[str]:
    """Yield the letters of each range and axis that keeps entries from being alike, if `sizes`
    count alike entries: a range other than 1..N, N a product of `sizes`, and an axis over which its
    indices do not run whole."""
    wide: dict[str, Poly] = {}
    """Atom of an index -> N of its range 1..N, N a product of `sizes`."""
    for index in ranges:
        high = number_of(index, sizes)
        if high is None or wide.setdefault(index.atom, high) != high:
            yield from _letters(index.ends, wide)
    for array, positions in places:
        for extent, position in zip(array.shape, positions, strict=True):
            at = position_value(position)
            inside = [wide.get(a, Poly()) for a in at.letters if is_index(a)]
            if not (_is_product(extent, sizes) and prod(inside, start=ONE) == extent):
                yield from _letters((extent, at), wide)


def number_of(index: Index, sizes: Set[str]) -> Poly | None:
    """N of a range 1..N, N a product or quotient of `sizes` (d/h), or of 1..min(N, N*Min(1, ...)),
    which has all N entries or none; None for another range, such as 1..2*d."""
    numbers = [high for high in index.upper if _is_product(high, sizes)]
    if index.lower != (ONE,) or len(numbers) != 1:
        return None
    for high in index.upper:
        factor = high / numbers[0]
        atoms = [a for a in factor.atoms if isinstance(a, Fn) and a.function == "Min"]
        if high != numbers[0] and not any(factor == Poly.atom(a) and ONE in a.args for a in atoms):
            return None
    return numbers[0]


def _is_product(extent: Poly, sizes: Set[str]) -> bool:
    """Whether an extent is a product (or quotient) of one or more of the sizes."""
    return (
        {1} == {*extent.terms.values()}
        and bool(extent.letters)
        and (len(extent.terms) == 1 and extent.letters <= sizes)
    )


def _letters(polys: Sequence[Poly], wide: Mapping[str, Poly]) -> Iterator[str]:
    """Yield the letters of polynomials; for an index in them, the letters of its range (`wide`)."""
    for poly in polys:
        for letter in poly.letters:
            yield from wide[letter].letters if letter in wide else (letter,)
