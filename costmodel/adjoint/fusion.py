"""Which shares of a gradient are one and the same, written for the first row and for the rest?

A mixer may say what holds for row 1 apart from what holds for later rows. What the two hand to an
array is then often one expression: over all rows of the array, or one sum over all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodel.adjoint.inversion import Share, entries, moved_index, substituted
from costmodel.constraints import Constraints, implied
from costmodel.equations import Equation
from costmodel.indices import Index
from costmodel.polynomial import Poly
from costmodel.traversal import moved


def fused(shares: Sequence[Share]) -> list[Share]:
    """The shares, with those that are one put together; their sum is the same."""
    found: list[Share] = []
    for share in shares:
        for k, other in enumerate(found):
            both = _one(other, share) or _one(share, other)
            if both is not None:
                found[k] = both
                break
        else:
            found.append(share)
    return found if len(found) == len(shares) else fused(found)


def fused_equations(written: Mapping[Equation, str]) -> dict[Equation, str]:
    """The equations, with one in place of two that say the same of a first row and of the rest."""
    found = dict(written)
    for first in written:
        for rest in list(found):
            both = _same_rows(rest, first) if rest.array is first.array else None
            if both is not None and first in found and found[rest] == found[first]:
                found = {(both if e is rest else e): k for e, k in found.items() if e is not first}
                break
    return found


def _same_rows(rest: Equation, first: Equation) -> Equation | None:
    """Two equations of one array as one, if `first` is what `rest` would be one row earlier."""
    for index in rest.indices:
        at = {index.atom: index.lower[0] - 1}
        others = tuple(i for i in rest.indices if i is not index)
        if (
            len(index.lower) == 1
            and tuple(moved(p, at) for p in rest.positions) == first.positions
            and _at(others, at) == first.indices
            and substituted(rest.value, at) == first.value
        ):
            wider = Index(index.name, (index.lower[0] - 1,), index.upper)
            indices = tuple(wider if i is index else i for i in rest.indices)
            return replace(rest, indices=indices)
    return None


def _one(rest: Share, first: Share) -> Share | None:
    """The two as one share, if `first` is what `rest` would be one row earlier."""
    if rest.layout != first.layout or rest.scale != first.scale:
        return None
    return _rows(rest, first) or _sums(rest, first)


def _rows(rest: Share, first: Share) -> Share | None:
    """Two shares at different rows of the array."""
    whole = entries(rest.array, rest.layout)
    for axis in rest.axes:
        entry = Poly.atom(axis)
        for start in rest.where:
            row = entry - start - 1
            if entry.letters & row.letters or not _fixed(whole | first.where, entry - row):
                continue
            at = {axis: row}
            same = substituted(rest.value, at) == substituted(first.value, at)
            over = _at(rest.over, at) == _at(first.over, at)
            others = _others(rest.where - {start}, at) == _others(first.where, at)
            if same and over and others:
                where = rest.where - {start} | {entry - row}
                return replace(rest, where=frozenset(c for c in where if not implied(whole, c)))
    return None


def _sums(rest: Share, first: Share) -> Share | None:
    """A sum over later rows of a reader, and its term at the row before them."""
    if rest.where != first.where:
        return None
    for index in rest.over:
        if len(index.lower) != 1:
            continue
        at = {index.atom: index.lower[0] - 1}
        others = tuple(i for i in rest.over if i is not index)
        if substituted(rest.value, at) == first.value and _at(others, at) == first.over:
            wider = Index(index.name, (index.lower[0] - 1,), index.upper)
            return replace(rest, over=tuple(wider if i is index else i for i in rest.over))
    return None


def _fixed(known: Constraints, difference: Poly) -> bool:
    """Whether a difference is proven to be 0."""
    return implied(known, difference) and implied(known, -difference)


def _at(over: Sequence[Index], values: dict[str, Poly]) -> tuple[Index, ...]:
    return tuple(moved_index(index, values) for index in over)


def _others(where: Constraints, at: dict[str, Poly]) -> Constraints:
    """Conditions at a row, without those that say nothing more there."""
    moved = (c.substitute(at) for c in where)
    return frozenset(c for c in moved if c.variables or not implied(frozenset(), c))
