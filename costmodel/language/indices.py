"""Indices, and the ranges that they run over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from costmodel.errors import EquationError, Unsupported
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.hashed_once import hashed_once
from costmodel.symbolic.polynomial import Poly, atom_name, index_atom
from costmodel.symbolic.refused_operators import Written, compared_by_structure


@dataclass(frozen=True)
class Extremum(Written):
    """A bound that is the largest (`max_`) or smallest (`min_`) of several affine expressions."""

    kind: str
    of: tuple[Poly, ...]

    def in_words(self) -> str:
        """The bound in words, for messages."""
        return f"the bound {self.kind}_({', '.join(map(str, self.of))})"


def max_(*bounds: Any) -> Extremum:
    """A lower bound such as max(1, i-w+1)."""
    return _extremum("max", bounds)


def min_(*bounds: Any) -> Extremum:
    """An upper bound such as min(l, i+r)."""
    return _extremum("min", bounds)


def _extremum(kind: str, bounds: tuple[Any, ...]) -> Extremum:
    if not bounds:
        raise EquationError(f"{kind}_ takes one bound or more, such as {kind}_(1, i - w + 1)")
    return Extremum(kind, tuple(map(Poly.of, bounds)))


@dataclass(frozen=True)
class Ranges(Written):
    """Several ranges that one index runs over, as (lower, upper) pairs."""

    of: tuple[tuple[Any, Any], ...]

    def in_words(self) -> str:
        """The union in words, for messages."""
        return "a union of ranges"


def union(*ranges: tuple[Any, Any]) -> Ranges:
    """Disjoint ranges for an index, in ascending order, such as the attention sinks of row i and
    its window: `union((1, min_(s, i)), (max_(s + 1, i - w + 1), i))`. A range may be empty at some
    points. The ranges of an index declared `beside` another index correspond to its ranges and need
    no order.

    Raises:
        EquationError: fewer than two ranges, or a range that is no (lower, upper) pair.
    """
    if len(ranges) < 2 or any(not isinstance(r, tuple) or len(r) != 2 for r in ranges):
        raise EquationError(
            "union takes two or more ranges, each a pair (lower, upper): "
            "union((1, s), (s + 2, i)); a single range is index(name, lower, upper)"
        )
    return Ranges(ranges)


@compared_by_structure
@hashed_once
@dataclass(frozen=True)
class Index(Written):
    """An index from the largest of `lower` to the smallest of `upper`, both included; bounds may
    name outer indices."""

    name: str
    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]

    @cached_property
    def atom(self) -> str:
        """The variable of the index in polynomials."""
        return index_atom(self.name)

    def in_words(self) -> str:
        """The index in words, for messages."""
        return f"the index {self.name}"

    def as_poly(self) -> Poly:
        """The index as a polynomial."""
        return Poly.atom(self.atom)

    @cached_property
    def constraints(self) -> Constraints:
        """lower <= index <= upper, as polynomials that must be at least 0."""
        v = self.as_poly()
        return frozenset([v - low for low in self.lower] + [up - v for up in self.upper])

    @property
    def ends(self) -> tuple[Poly, ...]:
        """All bounds, lower ones first."""
        return self.lower + self.upper

    @property
    def pieces(self) -> tuple[Index, ...]:
        """The ranges as indices of one range each: the index itself, unless it is a union."""
        return (self,)

    @property
    def beside(self) -> str:
        """The variable of the union beside which this index was declared, range by range; or ""."""
        return ""

    def substitute(self, values: Mapping[str, Poly]) -> Index:
        """The index with `values` (atom -> polynomial) substituted in its bounds; renamed to the
        index of the value if `values` has its own variable. Itself if nothing changes.

        Raises:
            Unsupported: the value for its own variable names no index.
        """
        instead = values.get(self.atom)
        if instead is not None and not instead.variables:
            raise Unsupported(
                f"the gradient at index {self.name} depends on the position of a maximum, and so "
                "on values: ask for phase training, the forward pass"
            )
        name = self.name if instead is None else atom_name(min(instead.variables))
        lower, upper = (
            tuple(b.substitute(values) for b in ends) for ends in (self.lower, self.upper)
        )
        if (name, lower, upper) == (self.name, self.lower, self.upper):
            return self
        return Index(name, lower, upper)

    def __add__(self, other: Any) -> Poly:
        return self.as_poly() + self.operand(other, Poly.of)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Poly:
        return self.as_poly() - self.operand(other, Poly.of)

    def __rsub__(self, other: Any) -> Poly:
        return self.operand(other, Poly.of) - self.as_poly()

    def __neg__(self) -> Poly:
        return -self.as_poly()

    def __mul__(self, other: Any) -> Poly:
        return self.as_poly() * self.operand(other, Poly.of)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Poly:
        return self.as_poly() // self.operand(other, Poly.of)


@compared_by_structure
@hashed_once
@dataclass(frozen=True)
class UnionIndex(Index):
    """An index that runs over several ranges, which are disjoint and in ascending order.

    It has no bounds of its own: its `pieces` are indices of the same name with one range each, by
    which sums and equations are split. The ranges of an index `beside` another may overlap.
    """

    ranges: tuple[Index, ...] = ()
    beside: str = ""

    @cached_property
    def constraints(self) -> Constraints:
        """Raise EquationError: a union of ranges is no conjunction of constraints."""
        raise EquationError(
            f"index {self.name} runs over several ranges, and one range is needed: declare another "
            f"index with one, f.index(name, lower, upper)"
        )

    @property
    def ends(self) -> tuple[Poly, ...]:
        """All bounds of all ranges."""
        return tuple(end for index in self.ranges for end in index.ends)

    @property
    def pieces(self) -> tuple[Index, ...]:
        """The ranges, in ascending order."""
        return self.ranges

    def substitute(self, values: Mapping[str, Poly]) -> Index:
        """The index with `values` (atom -> polynomial) substituted in every range; the index that
        it stands beside is renamed if `values` replaces that index. Itself if nothing changes."""
        ranges = tuple(index.substitute(values) for index in self.ranges)
        beside = self.beside
        if beside in values:  # replaced by another index alone
            (beside,) = values[beside].variables
        if (ranges, beside) == (self.ranges, self.beside):
            return self
        return UnionIndex(ranges[0].name, (), (), ranges, beside)

    @property
    def hull(self) -> Index:
        """An index over one range, from the lower end of the first to the upper end of the last."""
        return Index(self.name, self.ranges[0].lower, self.ranges[-1].upper)


def one_by_one(indices: Sequence[Index]) -> Iterator[tuple[Index, ...]]:
    """Yield all combinations of the indices' ranges (an index over a `union` has several), as
    tuples of indices with one range each. The range of an index `beside` a union corresponds to the
    range chosen for the union."""
    if not any(index.beside for index in indices):
        yield from product(*(index.pieces for index in indices))
        return
    for numbers in product(*(range(len(index.pieces)) for index in indices)):
        chosen = {index.atom: number for index, number in zip(indices, numbers, strict=True)}
        if all(chosen.get(i.beside, chosen[i.atom]) == chosen[i.atom] for i in indices):
            yield tuple(i.pieces[chosen[i.atom]] for i in indices)


def outer_first(indices: Sequence[Index]) -> list[Index]:
    """The indices ordered so that the bounds of each name only indices before it (i before j in
    1..i), as nested loops need; EquationError if that is impossible."""
    if len(indices) < 2:
        return list(indices)
    ordered: list[Index] = []
    waiting = list(indices)
    while waiting:
        known = {i.atom for i in ordered}
        pending = {i.atom for i in waiting}
        ready = [
            i
            for i in waiting
            if not ({a for b in i.ends for a in b.letters} & pending - known - {i.atom})
        ]
        if not ready:
            raise EquationError(
                f"the bounds of indices {', '.join(i.name for i in waiting)} depend on each other "
                "in a circle: give one of these indices bounds in sizes alone"
            )
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered
