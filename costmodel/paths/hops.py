"""The number of hops between the two positions furthest apart, as a formula.

A hop goes from a row to any row that the row reads. `evenly` answers where every row reads all rows
up to a fixed distance; `by_chunks` where rows lie in chunks of a size such as C, and a reference
joins a lower row (chunk, place) with an upper row; `by_hub` where row 1 reads all rows and all rows
read row 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from costmodel.errors import Unsupported
from costmodel.paths.reachability import ROW, Rows, joined_rows, length
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
from costmodel.symbolic.polynomial import Poly, axis_atom, by_text, call, ceil_div

BACK = axis_atom("back")
"""The distance, at least 1, from a row to a row that it reads, in one direction."""


Reach = Poly | None
"""The largest distance at which a row reads in one direction; None: it reads every row there."""


NOWHERE = Poly()
"""The reach 0: no row is read in this direction."""


@dataclass(frozen=True)
class Hops:
    """The rows that one reference reads in one direction (earlier or later rows).

    `where` constrains the reading row (`#row`) and the distance (`#back`); `words` names the arrays
    in messages, as in "row i of y reads row j of x".
    """

    where: Constraints
    words: str

    def distances(self, sign: int, length: Poly) -> tuple[Poly, Reach] | None:
        """(least distance, largest distance), the largest None without a limit, if each row is
        proven to read all rows of the sequence, of `length` rows, at distances from the least to
        the largest: (1, w - 1) for rows i - w + 1 to i. Else None. `sign`: 1 for earlier rows, -1
        for later rows."""
        row, back = Poly.atom(ROW), Poly.atom(BACK)
        inside = frozenset({row - 1, length - row, back - 1})
        inside |= {row - back * sign - 1, length - row + back * sign}
        # bounds on the distance alone; all others must only say that both rows lie in the sequence
        own = {c for c in self.where if BACK in c.letters and ROW not in c.letters}
        kept = frozenset(c for c in own if not implied(inside, c))
        if not implied_all(inside | kept, self.where - own):
            return None
        least = [back - c for c in kept if c.coefficient(BACK) == Poly.of(1)]
        most = [c + back for c in kept if c.coefficient(BACK) == Poly.of(-1)]
        if len(least) > 1 or len(least) + len(most) < len(kept):  # or a bound on 2*BACK
            return None
        return (least[0] if least else Poly.of(1)), (call("Min", *most) if most else None)

    def within(self, reach: Reach) -> bool:
        """Whether every distance is proven to be at most `reach`."""
        return reach is None or implied(self.where, reach - Poly.atom(BACK))


def _hops(rows: Rows, sign: int) -> Iterator[Hops]:
    """Yield, for each reference to earlier rows (`sign` 1) or later rows (`sign` -1), the
    constraints on the reading row (`#row`) and on the distance to the row read (`#back`), with
    words for messages. A reference to an array that is computed from all rows reads at all
    distances."""
    row, back = Poly.atom(ROW), Poly.atom(BACK)
    for found in joined_rows(rows):
        if found.read is None:
            whole = frozenset({row - 1, length(rows.system) - row, back - 1})
            yield Hops(whole, found.words)
            continue
        away = back - (found.reading - found.read) * sign
        apart = frozenset({row - found.reading, found.reading - row, away, -away, back - 1})
        for around in found.around:
            if not infeasible(around | apart):
                yield Hops(projected(around | apart, found.over), found.words)


def furthest(rows: Rows, sign: int) -> Reach:
    """The largest distance at which a row reads earlier rows (`sign` 1) or later rows (`sign` -1),
    where it reads at every distance from 1 to this reach; NOWHERE (0) without such reads, None
    without a limit.

    Raises:
        Unsupported: it is not proven that which rows are read depends on their distance alone, or
            that all distances up to the reach are read.
    """
    hops = list(_hops(rows, sign))
    if not hops:
        return NOWHERE
    found = {hop: hop.distances(sign, length(rows.system)) for hop in hops}
    # intervals of distances from 1 on: an interval joins if it begins at most 1 behind a known
    # reach
    even: list[Reach] = []
    while joined := [
        hop
        for hop, distances in found.items()
        if distances is not None
        and any(r is None or nonnegative(r + 1 - distances[0]) for r in (NOWHERE, *even))
    ]:
        even += [distances[1] for hop in joined if (distances := found.pop(hop)) is not None]
    for hop, distances in found.items():
        if not any(hop.within(reach) for reach in even):
            if distances is None:
                raise Unsupported(f"whether {hop.words} depends on more than the distance i - j")
            raise Unsupported(
                f"{hop.words} at distances from {distances[0]} on, and that all nearer rows are "
                "read is not proven"
            )
    bounded = [reach for reach in even if reach is not None]
    return call("Max", *bounded) if len(bounded) == len(even) else None


def _nearer(one: Reach, two: Reach, known: Constraints) -> Reach:
    """The smaller of two reaches under the conditions `known`: one for earlier rows, one for later
    rows (None: unlimited; NOWHERE: no reads); if one is NOWHERE, the other. The smaller reach needs
    more hops."""
    if one is None or two == NOWHERE:
        return one if two == NOWHERE else two
    if two is None or one == NOWHERE:
        return two if one == NOWHERE else one
    if implied(known, two - one):
        return one
    return two if implied(known, one - two) else call("Min", one, two)


def _cases_of_reach(reach: Reach) -> list[tuple[Constraints, Reach]]:
    """A reach (the largest distance at which rows read) by cases, as (conditions, reach): the reach
    where it is at least 1, NOWHERE (no reads) at other sizes. A single case for None (unlimited),
    for NOWHERE, and for a reach that is proven to be at least 1."""
    if reach is None or reach == NOWHERE or nonnegative(reach - 1):
        return [(frozenset(), reach)]
    return [(frozenset({reach - 1}), reach), (frozenset({-reach}), NOWHERE)]


def evenly(back: Reach, ahead: Reach, length: Poly) -> Exact:
    """The hops between the rows furthest apart, by cases of the sizes, where each row reads all
    rows up to the distance `back` before it and `ahead` after it (0: none, None: all there):
    ceil((length - 1) / reach), where reach is the smaller of the two that are not 0, of w and None
    w; 1 if none of them has a limit; 0 if both are 0 or the length is 1."""
    result = Exact()
    for (some, one), (others, two) in product(_cases_of_reach(back), _cases_of_reach(ahead)):
        guards = some | others
        reach = _nearer(one, two, guards)
        if infeasible(guards) or reach == NOWHERE:
            continue
        if reach is None:  # one hop, if there is a second row
            result = result + Exact(((guards | {length - 2}, Poly.of(1)),))
        else:
            result = result + Exact(((guards, ceil_div(length - 1, reach)),))
    return result


READ = axis_atom("read")
"""The row that is read, as a variable."""


def by_hub(rows: Rows) -> Exact:
    """The hops between the rows furthest apart, by way of row 1, which reads all rows and is read
    by all rows: 1 at sizes at which each row reads every other row, 2 at other sizes; 0 for l = 1.

    Raises:
        Unsupported: some row does not read row 1, or row 1 does not read some row.
    """
    row, read, last = Poly.atom(ROW), Poly.atom(READ), length(rows.system)
    every = frozenset({row - 1, last - row, read - 1, last - read})
    pairs = []
    for found in joined_rows(rows):
        if found.read is None:
            pairs.append(every)
            continue
        here = frozenset({row - found.reading, found.reading - row})
        here |= {read - found.read, found.read - read}
        regions = (around | here for around in found.around)
        pairs += [projected(region, found.over) for region in regions if not infeasible(region)]
    if outside(every | {1 - row}, pairs) or outside(every | {1 - read}, pairs):
        raise Unsupported(
            "a number of hops is derived only if every row reads row 1 and row 1 reads every row, "
            "and some row lacks one of these two reads"
        )
    # one hop for l >= 2, and a second one at sizes at which some pair of rows is not joined
    result, counted = Exact(((frozenset({last - 2}), Poly.of(1)),)), list[Constraints]()
    for side in (row - read - 1, read - row - 1):
        for missing in outside(every | {side}, pairs):
            guards = projected(missing, (ROW, READ))
            for part in outside(guards, counted):
                result = result + Exact(((part, Poly.of(1)),))
            counted.append(guards)
    return result


OUTER, INNER, UPPER = map(axis_atom, ("chunk", "place", "upper"))
"""Of two rows: the chunk of the lower row, its place in the chunk (both from 1), the upper row."""


MANY = 8
"""The rows from row 1 that are visited before a place in a chunk must recur."""


Case = tuple[Constraints, Poly]
"""The constraints of a case, and the number of hops under them."""


@dataclass(frozen=True)
class Chunks:
    """Rows by chunk and place: row (chunk - 1)*size + place, place in 1..size.

    A hop joins a lower and an upper row: the upper row reads the lower row, or in the other
    direction the lower reads the upper. Two properties must hold: each lower row is joined with all
    rows up to a furthest row, and furthest rows ascend with the lower rows. Then the longest hop is
    always best, and the positions furthest apart are the first and last row (of the sequence, or of
    a connected run).
    """

    length: Poly
    letter: str

    @property
    def size(self) -> Poly:
        """The rows of a chunk."""
        return Poly.atom(self.letter)

    @property
    def lower(self) -> Poly:
        """The number of the lower row."""
        return (Poly.atom(OUTER) - 1) * self.size + Poly.atom(INNER)

    @property
    def inside(self) -> Constraints:
        """The constraints that both rows lie in the sequence, the lower before the upper."""
        outer, inner, upper = map(Poly.atom, (OUTER, INNER, UPPER))
        ends = {upper - self.lower - 1, self.length - upper}
        return frozenset({outer - 1, inner - 1, self.size - inner}) | ends

    @property
    def classes(self) -> tuple[Constraints, Constraints]:
        """The two classes of lower rows: before the end of a chunk, and at the end of a chunk."""
        inner = Poly.atom(INNER)
        return frozenset({self.size - 1 - inner}), frozenset({inner - self.size})

    def lower_row(self, where: Constraints) -> Poly:
        """The number of the lower row: (chunk - 1)*C + place, or chunk*C if the constraints `where`
        say that the row is at the end of its chunk."""
        at_end = implied(where, Poly.atom(INNER) - self.size)
        return self.lower.substitute({INNER: self.size}) if at_end else self.lower

    def digits(self, row: Poly, known: Constraints) -> tuple[Poly, Poly] | None:
        """(chunk, place) of a row, like the digits of a number in base `size` (rows of a chunk):
        (q, e) for (q - 1)*C + e with e in 1..C, (q, C) for q*C. None if it is not proven from the
        constraints `known` that the place lies in 1..size."""
        try:
            whole = row.coefficient(self.letter)
        except ValueError:  # the chunk size occurs squared
            return None
        rest = row - whole * self.size
        for more in (0, 1, -1):
            place = rest + self.size * more
            if implied_all(known, (place - 1, self.size - place)):
                return whole - more + 1, place
        return None

    def tightened(self, where: Constraints) -> Constraints:
        """The constraints with bounds on chunks in place of bounds on rows, for the same points: in
        chunks of C rows, (q - 1)*C < o*C + e, with the place e in 1..C, becomes q - 1 <= o."""
        for bound in by_text(where):
            others = where - {bound}
            if self.letter in bound.letters and bound.variables:
                digits = self.digits(bound + 1, others)
                if digits is not None and digits[0].variables:
                    where = others | {digits[0] - 1}
        return where

    def proves(self, known: Constraints, claim: Poly) -> bool:
        """Whether `claim >= 0` is proven, by itself or because row claim + 1 lies in a chunk that
        is proven to be at least 1: claim = (q - 1)*C + e - 1 with q >= 1 and e in 1..C."""
        digits = self.digits(claim + 1, known)
        return implied(known, claim) or (digits is not None and implied(known, digits[0] - 1))

    def pairs(self, low: Poly, high: Poly, around: Constraints, over: Sequence[str]) -> Constraints:
        """The pairs of rows that one reference joins, as constraints on the lower row's `#chunk`
        and `#place` and on the upper row `#upper`.

        Args:
            low, high: the lower and the upper row, in the indices of the reference, named `over`.
            around: the constraints of these indices, and the class of lower rows.
        """
        upper, digits = Poly.atom(UPPER), self.digits(low, around)
        equations = [self.lower - low]
        if digits is not None:
            equations = [Poly.atom(OUTER) - digits[0], Poly.atom(INNER) - digits[1]]
        where = _with_equations(
            around | self.inside | {upper - high, high - upper}, equations, over
        )
        # lower rows at the end of their chunk: their place is the size
        if implied(around, Poly.atom(INNER) - self.size):
            where = frozenset(c.substitute({INNER: self.size}) for c in where)
        return self.tightened(where)


def _with_equations(
    where: Constraints, equations: Sequence[Poly], names: Sequence[str]
) -> Constraints:
    """The constraints `where` together with equations (each polynomial is 0): an equation that can
    be solved for an index of `names` is substituted, any other is added as two constraints. i >= 1
    and i - j - 1 = 0, with `names` i, become j >= 0."""
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
class JoinedPairs:
    """The pairs of rows that one reference joins: constraints on `#chunk`, `#place`, `#upper`."""

    where: Constraints
    words: str


def _joined_pairs(
    rows: Rows, chunks: Chunks, sign: int, lower: Constraints
) -> Iterator[JoinedPairs]:
    """Yield, for each reference to earlier rows (`sign` 1) or later rows (-1), the pairs of a
    reading row and a row read, as constraints on the lower and the upper of the two. Only pairs
    whose lower row is in the class `lower` (at the end of a chunk, or before it)."""
    for found in joined_rows(rows):
        if found.read is None:
            yield JoinedPairs(chunks.inside, found.words)
            continue
        low, high = (found.read, found.reading)[::sign]
        for around in found.around:
            where = chunks.pairs(low, high, around | lower, found.over)
            if not infeasible(where):
                yield JoinedPairs(projected(where, found.over), found.words)


def chunks_of(rows: Rows) -> Chunks | None:
    """The length of the sequence and the letter of the chunk size: the factor of an index in row
    numbers, C in (q - 1)*C + e; factors that are numbers do not count. None without chunks, with
    chunks of several sizes, or of a size that is no letter (2*C)."""
    found: set[Poly] = set()
    for equation in rows.system.equations:
        if rows.places.get(equation.array) is None:
            continue
        at = [rows.reading(equation)]
        at += map(rows.read, rows.certain(equation))
        for row in at:
            found |= {row.coefficient(name) for name in row.variables} if row is not None else set()
    found = {stride for stride in found if stride.constant() is None}
    for stride in found:
        if len(found) == 1 and str(stride) in stride.letters:
            return Chunks(length(rows.system), str(stride))
    return None


def _furthest_joined(chunks: Chunks, held: Sequence[JoinedPairs], where: Constraints) -> Poly:
    """The furthest row, a polynomial, that references join with a lower row, for the lower rows of
    one class (at the end of their chunk, or all others): they join all rows between too. The lower
    row itself if `held` is empty. Where rows read their chunk and the sums up to the end of the
    chunk before, the end of the chunk; of a row at the end of a chunk, the end of the next chunk.

    Args:
        held: the pairs of rows that references join, for this class.
        where: the class, one of `Chunks.classes`.

    Raises:
        Unsupported: no row is proven to be joined with all rows between, and none beyond.
    """
    upper, inside = Poly.atom(UPPER), chunks.inside | where
    if not held:
        return chunks.lower_row(where)
    ends = {end for pair in held for scale, end in bounds(pair.where, UPPER)[1] if scale == 1}
    for end in (chunks.length, *by_text(ends - {chunks.length})):
        beyond = [p for p in held if not implied(inside | p.where, end - upper)]
        if not beyond and implied(inside, end - chunks.lower - 1):
            covered = [frozenset(c for c in p.where if not implied(inside, c)) for p in held]
            if not outside(inside | {end - upper}, covered):
                return end
    raise Unsupported(
        "how far reads reach from a row, by its place in its chunk, is not derived, reads such as: "
        f"{held[0].words}"
    )


def require_in_order(chunks: Chunks, furthest: Sequence[Poly]) -> None:
    """Raise Unsupported unless a later row reaches at least as far as an earlier one, and reaches
    equally far in every chunk: then the longest hops are the fewest. `furthest`: the furthest row
    that a row is joined with, for rows before the end of a chunk and for the last row of a chunk
    (`Chunks.classes`)."""
    later = {name: Poly.atom(f"{name} later") for name in (OUTER, INNER)}
    apart = chunks.lower.substitute(later) - chunks.lower
    for where, far in zip(chunks.classes, furthest, strict=True):
        for others, further in zip(chunks.classes, furthest, strict=True):
            after = frozenset(c.substitute(later) for c in chunks.inside | others)
            known = chunks.inside | where | after | {apart - 1}
            ahead = further.substitute(later) - far
            # a row that reaches the end of the sequence reaches as far as any row
            if further != chunks.length and not chunks.proves(known, ahead):
                raise Unsupported(
                    "a row may reach further ahead than a later row, so that a path of the longest "
                    "hops need not be the shortest path"
                )
        # counted from the lower row's chunk, the furthest row must not depend on the chunk
        alike = far == chunks.length or OUTER not in (far - Poly.atom(OUTER) * chunks.size).letters
        if not alike:
            raise Unsupported(
                "how far ahead a row reaches depends on its chunk, not on its place alone"
            )


def by_chunks(rows: Rows, chunks: Chunks, sign: int) -> Exact:
    """The hops between the rows furthest apart, where rows lie in chunks: the number of hops from
    the first row to the last, each as long as possible, by references to earlier rows (`sign` 1) or
    later rows (`sign` -1); exact in sizes, by cases.

    Raises:
        Unsupported: it is not proven that each row is joined with all rows up to a furthest row,
            and that later rows reach no less far; or the rows on the way are not derived.
    """
    furthest = [
        _furthest_joined(chunks, list(_joined_pairs(rows, chunks, sign, where)), where)
        for where in chunks.classes
    ]
    require_in_order(chunks, furthest)
    # a row of a chunk of size 1 is always at the end of its chunk: a case of its own
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
    """Yield the number of hops from row 1 to the last row, as summands (conditions, number): one
    hop for every row on the way that lies before the end. A row that recurs at distance `away`
    counts ceil((length - row)/away) times.

    Args:
        furthest: the furthest row that a row is joined with, by class (`Chunks.classes`).
        first: row 1, written as the last place of a chunk (`size`) where chunks have size 1.
        known: the case of the chunk size, as constraints: at least 2, or 1.
    """
    start, cycle = _rows_on_the_way(chunks, furthest, first, known)
    before = {row: frozenset({chunks.length - row - 1}) for row in (*start, *cycle)}
    for row in start:
        yield known | before[row], Poly.of(1)
    for row in cycle:
        away = cycle[row]
        # the quotient is 0, not negative, as soon as the length is at least row - away + 1, which
        # an earlier row on the way ensures
        none_yet = chunks.length - row + away - 1
        guards = next(
            g for g in (frozenset[Poly](), *before.values()) if implied(known | g, none_yet)
        )
        yield known | guards, ceil_div(chunks.length - row, away)


def _rows_on_the_way(
    chunks: Chunks, furthest: Sequence[Poly], row: Poly, known: Constraints
) -> tuple[list[Poly], dict[Poly, Poly]]:
    """The rows on the way from row 1 (`row`) that goes from each row to the furthest row joined, as
    (rows passed once, {row whose place recurs in later chunks: rows to its next occurrence}): ([1],
    {C: C}) for row 1 and then the end of every chunk, {} if the way ends first. `furthest`: that
    row for rows inside a chunk, and for its end. Raises Unsupported: a row inside a chunk is joined
    with no further row, a row's place is not derived, or no place recurs within `MANY` rows."""
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
        at_end = implied(known, inner - chunks.size)
        if not at_end and not implied(known, chunks.size - 1 - inner):
            break
        far = furthest[at_end]  # of the two classes, the second is the end of a chunk
        if far == chunks.lower_row(chunks.classes[at_end]):  # joined with no further row
            if at_end:
                return list(places.values()), {}
            raise Unsupported(
                f"in one direction no read joins row {row}, which is not the last row of its "
                f"chunk, with a later row, so that a path from row 1 ends at row {row}"
            )
        places[inner] = row
        if far == chunks.length:
            return list(places.values()), {}
        row = far.substitute({OUTER: outer, INNER: inner})
    if len(places) == MANY:
        raise Unsupported(
            f"the first {MANY} rows of the path from row 1, up to row {[*places.values()][-1]}, "
            "have different places in their chunks: a path length is derived where a place recurs"
        )
    raise Unsupported(
        f"the chunk of row {row} and the place of the row in the chunk are not derived"
    )
