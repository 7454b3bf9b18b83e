"""How far does one hop go, in plain rows and in rows that lie in chunks?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from costmodel.errors import Unsupported
from costmodel.paths.reachability import ROW, Rows, joined, length
from costmodel.program.dependence import reads
from costmodel.symbolic.constraints import (
    Constraints,
    bounds,
    implied,
    implied_all,
    infeasible,
    nonnegative,
    outside,
    projected,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call, ceil_div

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


OUTER, INNER, UPPER = "#chunk", "#place", "#upper"
"""Of two rows the chunk and the place in it of the lower one, from 1, and the upper one."""


MANY = 8
"""Rows on the way from row 1 that are looked at before one recurs."""


Case = tuple[Constraints, Poly]
"""Sizes, and the hops there."""


@dataclass(frozen=True)
class Chunks:
    """Rows by chunk and place: row (chunk - 1)*size + place, place in 1..size.

    In one direction the lower of two rows is the one that is read, in the other the one that reads.
    What holds of all pairs of rows in one hop is that each lower row has all upper ones from the
    next row to a furthest one, which never lies before that of an earlier row. Then a detour is no
    shorter, and the positions furthest apart are the ends of the sequence, or of what is joined.
    """

    length: Poly
    letter: str

    @property
    def size(self) -> Poly:
        """The rows of a chunk."""
        return Poly.atom(self.letter)

    @property
    def lower(self) -> Poly:
        """The lower row."""
        return (Poly.atom(OUTER) - 1) * self.size + Poly.atom(INNER)

    @property
    def inside(self) -> Constraints:
        """Where both rows are in the sequence, the lower one first."""
        outer, inner, upper = map(Poly.atom, (OUTER, INNER, UPPER))
        ends = {upper - self.lower - 1, self.length - upper}
        return frozenset({outer - 1, inner - 1, self.size - inner}) | ends

    @property
    def classes(self) -> tuple[Constraints, Constraints]:
        """The lower row by its place: before the end of its chunk, and there."""
        inner = Poly.atom(INNER)
        return frozenset({self.size - 1 - inner}), frozenset({inner - self.size})

    def itself(self, where: Constraints) -> Poly:
        """The lower row, at the end of its chunk written as such."""
        ends = implied(where, Poly.atom(INNER) - self.size)
        return self.lower.substitute({INNER: self.size}) if ends else self.lower

    def digits(self, row: Poly, known: Constraints) -> tuple[Poly, Poly] | None:
        """The chunk and the place of a row, where they are proven."""
        try:
            whole = row.coefficient(self.letter)
        except ValueError:  # a product of the length of a chunk and itself
            return None
        rest = row - whole * self.size
        for more in (0, 1, -1):
            place = rest + self.size * more
            if implied_all(known, (place - 1, self.size - place)):
                return whole - more + 1, place
        return None

    def tightened(self, where: Constraints) -> Constraints:
        """The same points, a bound on rows as one on chunks where it is one: (q - 1)*C < o*C + e,
        with e in 1..C, is q - 1 <= o."""
        for bound in sorted(where, key=str):
            others = where - {bound}
            if self.letter in bound.letters and bound.variables:
                digits = self.digits(bound + 1, others)
                if digits is not None and digits[0].variables:
                    where = others | {digits[0] - 1}
        return where

    def proves(self, known: Constraints, claim: Poly) -> bool:
        """Whether `claim >= 0` is proven, as it is or as one on chunks."""
        digits = self.digits(claim + 1, known)
        return implied(known, claim) or (digits is not None and implied(known, digits[0] - 1))

    def pairs(self, low: Poly, high: Poly, around: Constraints, over: Sequence[str]) -> Constraints:
        """The lower row, by chunk and place, and the upper one, of what reads and is read.

        Args:
            around: where it is read, and where the lower row lies.
        """
        upper, digits = Poly.atom(UPPER), self.digits(low, around)
        equations = [self.lower - low]
        if digits is not None:
            equations = [Poly.atom(OUTER) - digits[0], Poly.atom(INNER) - digits[1]]
        where = _solved(around | self.inside | {upper - high, high - upper}, equations, over)
        if implied(around, Poly.atom(INNER) - self.size):
            where = frozenset(c.substitute({INNER: self.size}) for c in where)
        return self.tightened(where)


def _solved(where: Constraints, equations: Sequence[Poly], names: Sequence[str]) -> Constraints:
    """The same points with more equations, each solved for one of some indices if it may be."""
    waiting = list(equations)
    while waiting:
        equation = waiting.pop()
        slopes = {name: equation.terms.get(((name, 1),)) for name in names}
        name = next((n for n, slope in slopes.items() if slope in (1, -1)), None)
        if name is None:
            where |= {equation, -equation}
            continue
        value = {name: Poly.atom(name) - equation * (slopes[name] or 1)}
        where = frozenset(c.substitute(value) for c in where)
        waiting = [other.substitute(value) for other in waiting]
    return where


@dataclass(frozen=True)
class Pairs:
    """Which pairs of rows one reference joins in one hop: lower rows by chunk and place."""

    where: Constraints
    words: str


def _pairs(known: Rows, chunks: Chunks, sign: int, lower: Constraints) -> Iterator[Pairs]:
    """What every reference reads of earlier rows (sign 1), or of later ones (-1), the lower ones
    being of one class."""
    for found in joined(known):
        if found.read is None:
            yield Pairs(chunks.inside, found.words)
            continue
        low, high = (found.read, found.reading)[::sign]
        for around in found.around:
            where = chunks.pairs(low, high, around | lower, found.over)
            if not infeasible(where):
                yield Pairs(projected(where, found.over), found.words)


def chunks_of(known: Rows) -> Chunks | None:
    """The chunks in which the rows of some array lie; None where they lie in none, or where there
    are chunks of several lengths."""
    found: set[Poly] = set()
    for equation in known.system.equations:
        if known.places.get(equation.array) is None:
            continue
        at = [known.reading(equation)]
        at += [known.read(r) for r in reads(equation) if r.ref.array in known.places]
        for row in at:
            found |= {row.coefficient(name) for name in row.variables} if row is not None else set()
    found = {stride for stride in found if stride.constant() is None}
    for stride in found:
        if len(found) == 1 and str(stride) in stride.letters:
            return Chunks(length(known.system), str(stride))
    return None


def _last(chunks: Chunks, held: Sequence[Pairs], where: Constraints) -> Poly:
    """The furthest row that is joined with a lower one of some class, as all rows up to there are;
    the lower row itself where there is none."""
    upper, inside = Poly.atom(UPPER), chunks.inside | where
    if not held:
        return chunks.itself(where)
    ends = {end for pair in held for scale, end in bounds(pair.where, UPPER)[1] if scale == 1}
    for end in (chunks.length, *sorted(ends - {chunks.length}, key=str)):
        beyond = [p for p in held if not implied(inside | p.where, end - upper)]
        if not beyond and implied(inside, end - chunks.lower - 1):
            joined = [frozenset(c for c in p.where if not implied(inside, c)) for p in held]
            if not outside(inside | {end - upper}, joined):
                return end
    raise Unsupported(
        f"which rows {held[0].words} depends on more than how far away they are, or leaves some out"
        " between"
    )


def require_in_order(chunks: Chunks, furthest: Sequence[Poly]) -> None:
    """Raise Unsupported unless no row's furthest row lies before that of an earlier row, and all
    chunks are alike."""
    later = {name: Poly.atom(f"{name} later") for name in (OUTER, INNER)}
    apart = chunks.lower.substitute(later) - chunks.lower
    for where, far in zip(chunks.classes, furthest, strict=True):
        for others, further in zip(chunks.classes, furthest, strict=True):
            after = frozenset(c.substitute(later) for c in chunks.inside | others)
            known = chunks.inside | where | after | {apart - 1}
            ahead = further.substitute(later) - far
            if further != chunks.length and not chunks.proves(known, ahead):
                raise Unsupported("an earlier row may be read by later rows than the rows after it")
        alike = far == chunks.length or OUTER not in (far - Poly.atom(OUTER) * chunks.size).letters
        if not alike:
            raise Unsupported("how far away rows are that are read differs from chunk to chunk")


def by_chunks(known: Rows, chunks: Chunks, sign: int) -> Exact:
    """The largest distance in one direction: the hops from the first row on, each as far as may be.

    Raises:
        Unsupported: some lower row is joined with an upper one, and not with all those between.
    """
    furthest = [
        _last(chunks, list(_pairs(known, chunks, sign, where)), where) for where in chunks.classes
    ]
    require_in_order(chunks, furthest)
    several, single = frozenset({chunks.size - 2}), frozenset({1 - chunks.size})
    return Exact(
        (
            *_from_first(chunks, furthest, Poly.of(1), several),
            *(
                (guards, value.substitute({chunks.letter: Poly.of(1)}))
                for guards, value in _from_first(chunks, furthest, chunks.size, single)
            ),
        )
    )


def _from_first(
    chunks: Chunks, furthest: Sequence[Poly], first: Poly, known: Constraints
) -> Iterator[Case]:
    """The hops from row 1, at a place of its chunk, in parts that add up: one hop from every row
    that lies before the end. They are counted one by one, up to rows that recur in later chunks."""
    start, cycle = _steps(chunks, furthest, first, known)
    before = {row: frozenset({chunks.length - row - 1}) for row in (*start, *cycle)}
    for row in start:
        yield known | before[row], Poly.of(1)
    for row in cycle:
        away = cycle[row]
        none_yet = chunks.length - row + away - 1
        guards = next(
            g for g in (frozenset[Poly](), *before.values()) if implied(known | g, none_yet)
        )
        yield known | guards, ceil_div(chunks.length - row, away)


def _steps(
    chunks: Chunks, furthest: Sequence[Poly], row: Poly, known: Constraints
) -> tuple[list[Poly], dict[Poly, Poly]]:
    """The rows on the way from row 1, each as far from the one before as may be: those that come
    once, and those that recur in later chunks, with how many rows later."""
    places: dict[Poly, Poly] = {}
    while len(places) < MANY:
        digits = chunks.digits(row, known)
        if digits is None:
            break
        outer, inner = digits
        if inner in places:
            away = row - places[inner]
            start = [*places].index(inner)
            return list(places.values())[:start], dict.fromkeys([*places.values()][start:], away)
        ends = implied(known, inner - chunks.size)
        if not ends and not implied(known, chunks.size - 1 - inner):
            break
        far = furthest[ends]
        if far == chunks.itself(chunks.classes[ends]):
            if ends:
                return list(places.values()), {}
            raise Unsupported(f"row {row} is read by no row after it, in the midst of its chunk")
        places[inner] = row
        if far == chunks.length:
            return list(places.values()), {}
        row = far.substitute({OUTER: outer, INNER: inner})
    raise Unsupported(f"in which chunk row {row} lies, and where in it, is not known")
