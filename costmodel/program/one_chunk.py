"""Do the equations at given sizes stay the same for every larger value of one size?

A sequence of at most C rows is one chunk: every form of chunks of C rows has the same equations for
it at every larger C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costmodel.language.equations import System
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    Binary,
    Call,
    Constant,
    Flat,
    FreeScale,
    Gather,
    Neg,
    Node,
    Reduce,
    Ref,
    position_value,
)
from costmodel.symbolic.polynomial import Fn, Poly

PLAIN = (Constant, Ref, Binary, Neg, FreeScale, Call, Reduce)
"""Kinds of nodes whose depth follows from the depths of operands and the number of terms."""


def same_for_larger(system: System, letter: str, sizes: Mapping[str, int]) -> bool:
    """Whether it is proven that which entries the equations define, and which entries these read,
    is the same for all values of the size `letter` from its value in `sizes` on, at the other sizes
    given: C from l on in a form of chunks of C rows. False for a system with reads beyond an array
    or with a part that is not plain (`PLAIN`)."""
    if system.beyond:
        return False
    at = _From(letter, sizes[letter], {x: Poly.of(n) for x, n in sizes.items() if x != letter})
    return all(at.in_range(e.indices, (e.value, *e.positions)) for e in system.equations)


class _From:
    """The size `letter` from `least` on, and the values `known` of other sizes and of indices."""

    def __init__(self, letter: str, least: int, known: Mapping[str, Poly]) -> None:
        self.letter, self.least, self.known = letter, least, known

    def value(self, poly: Poly) -> Poly:
        """The polynomial at the values `known`; floor(n/C) is 0 for numbers n in 0..`least` - 1."""
        found = poly.substitute(self.known)
        small: dict[str, Poly] = {
            atom: Poly()
            for atom in found.atoms
            if isinstance(atom, Fn) and atom.function == "floor_div"
            for above, below in [atom.args]
            if below == Poly.atom(self.letter) and 0 <= (above.constant() or 0) < self.least
            if above.constant() is not None
        }
        return found.substitute(small)

    def in_range(self, over: Iterable[Index], parts: Iterable[object]) -> bool:
        """Whether the parts (nodes, positions), within the ranges of the indices `over`, are proven
        the same for all sizes from `least` on; parts over an empty range always are. A bound that
        names the size gives False, but for an upper bound that another, a number, never exceeds:
        for C from 5 on, an index i in 1..min(C, 5) always has the values 1..5."""
        at = self
        for index in over:
            lows, highs = ([at.value(b) for b in bounds] for bounds in (index.lower, index.upper))
            fixed = [n for b in highs if isinstance(n := b.constant(), int)]
            highs = [b for b in highs if not any(at.at_least(b, n) for n in fixed)]
            if any(self.letter in b.letters for b in (*lows, *highs)):
                return False
            numbers = [b.constant() for b in lows]
            if fixed and None not in numbers:
                low, high = max(n for n in numbers if n is not None), min(fixed)
                if low > high:
                    return True
                if low == high and len(highs) == 0:
                    at = _From(self.letter, self.least, {**at.known, index.atom: Poly.of(low)})
        return all(map(at.same, parts))

    def at_least(self, bound: Poly, number: int) -> bool:
        """Whether a bound such as C + 1 is at least a number for all sizes from `least` on."""
        slope = bound.coefficient(self.letter).constant()
        rest = (bound - Poly.atom(self.letter) * (slope or 0)).constant()
        return (
            isinstance(slope, int) and isinstance(rest, int) and slope >= 0
            and slope * self.least + rest >= number
        )  # fmt: skip

    def same(self, part: object) -> bool:
        """Whether a node (`PLAIN`) or position is proven the same at all sizes from `least` on."""
        match part:
            case Reduce():
                return all(self.in_range(one.over, (one.body,)) for one in part.parts)
            case Ref():
                return all(map(self.same, part.positions))
            case Node():
                return isinstance(part, PLAIN) and all(map(self.same, part.children))
            case Gather():
                return False
            case Poly() | Flat():
                return self.letter not in self.value(position_value(part)).letters
            case _:
                raise TypeError(f"{type(part).__name__} is no node and no position")
