"""How far does one hop go, where every row reads as far as any other does?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from costmodel.constraints import (
    Constraints,
    Unsupported,
    implied,
    implied_all,
    infeasible,
    nonnegative,
)
from costmodel.exact import Exact
from costmodel.polynomial import Poly, call, ceil_div
from costmodel.projections import projected
from costmodel.rules.rows import ROW, Rows, joined, length

BACK = "#back"
"""How many rows away, at least one, a row reads: in one direction."""

Reach = Poly | None
"""How far a row reads in one direction; None where it reads every row there."""

NOWHERE = Poly()


@dataclass(frozen=True)
class Hops:
    """Which rows one reference reads in one direction: rows and distances, and who reads whom."""

    where: Constraints
    words: str

    def reach(self, sign: int, length: Poly) -> tuple[Reach] | None:
        """The largest distance, where every row reads at all distances from 1 to there, as far as
        the sequence goes; None where it is not so."""
        row, back = Poly.atom(ROW), Poly.atom(BACK)
        inside = frozenset({row - 1, length - row, back - 1})
        inside |= {row - back * sign - 1, length - row + back * sign}
        own = {c for c in self.where if BACK in c.letters and ROW not in c.letters}
        kept = frozenset(c for c in own if not implied(inside, c))
        if not implied_all(inside | kept, self.where - own):
            return None
        if any(c.coefficient(BACK) != Poly.of(-1) for c in kept):
            return None
        return (call("Min", *(c + back for c in kept)) if kept else None,)

    def within(self, reach: Reach) -> bool:
        """Whether no distance is larger than a reach."""
        return reach is None or implied(self.where, reach - Poly.atom(BACK))


def _hops(known: Rows, sign: int) -> Iterator[Hops]:
    """What every reference reads of earlier rows (sign 1), or of later ones (-1)."""
    row, back = Poly.atom(ROW), Poly.atom(BACK)
    for found in joined(known):
        if found.read is None:
            whole = frozenset({row - 1, length(known.system) - row, back - 1})
            yield Hops(whole, found.words)
            continue
        away = back - (found.reading - found.read) * sign
        apart = frozenset({row - found.reading, found.reading - row, away, -away, back - 1})
        for around in found.around:
            if not infeasible(around | apart):
                yield Hops(projected(around | apart, found.over), found.words)


def furthest(known: Rows, sign: int) -> Reach:
    """How far one hop goes at most in one direction, where it may go any shorter way too.

    Raises:
        Unsupported: it depends on more than how far away rows are.
    """
    hops = list(_hops(known, sign))
    if not hops:
        return NOWHERE
    found = {hop: hop.reach(sign, length(known.system)) for hop in hops}
    even = [reach[0] for reach in found.values() if reach is not None]
    for hop, reach in found.items():
        if reach is None and not any(hop.within(other) for other in even):
            raise Unsupported(f"which rows {hop.words} depends on more than how far away they are")
    bounded = [reach for reach in even if reach is not None]
    return call("Max", *bounded) if len(bounded) == len(even) else None


def _nearer(one: Reach, two: Reach, known: Constraints) -> Reach:
    """The smaller of two reaches, one that is nowhere left out."""
    if one is None or two == NOWHERE:
        return one if two == NOWHERE else two
    if two is None or one == NOWHERE:
        return two if one == NOWHERE else one
    if implied(known, two - one):
        return one
    return two if implied(known, one - two) else call("Min", one, two)


def _cases(reach: Reach) -> list[tuple[Constraints, Reach]]:
    """A reach where it is at least 1, and nowhere where it is not."""
    if reach is None or reach == NOWHERE or nonnegative(reach - 1):
        return [(frozenset(), reach)]
    return [(frozenset({reach - 1}), reach), (frozenset({-reach}), NOWHERE)]


def evenly(back: Reach, ahead: Reach, length: Poly) -> Exact:
    """The largest distance where any row reads as far as any other does, in each direction."""
    result = Exact()
    for (some, one), (others, two) in product(_cases(back), _cases(ahead)):
        guards = some | others
        reach = _nearer(one, two, guards)
        if infeasible(guards) or reach == NOWHERE:
            continue
        if reach is None:
            result = result + Exact(((guards | {length - 2}, Poly.of(1)),))
        else:
            result = result + Exact(((guards, ceil_div(length - 1, reach)),))
    return result
