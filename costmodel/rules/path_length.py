"""How far apart are two positions at most, in hops of what a row reads of other rows?

The "maximum path length" of Table 1 of Vaswani et al. 2017, a property of the dependency graph; the
span counts operations, this counts positions. The nodes are the positions 1..l. One hop goes from
position p to q when an instance that belongs to row q of some array reads an entry that belongs to
row p. A row is what lies at one place of an array's token axis; what has none (a sum over all
tokens, a Fourier transform) belongs to every row that reads it, and so joins each to all rows that
it was made of. An entry for a whole chunk of tokens, such as the sums up to the end of a chunk that
later chunks read, is made of many rows, and belongs to the one that is nearest to its readers: the
last of them where later rows read it, the first where earlier ones do. What depends on no token
belongs to no row. Layers of the same kind may be stacked, so that a path goes on from any array of
a row to any other of the same row.

The distance of two positions is the least number of hops from the one to the other, in one layer or
in as many as it takes; the answer is the largest distance of all ordered pairs that are joined: 1
for self-attention, l-1 for a recurrence, which reads the row before; where a row reads the r rows
on either side, ceil((l-1)/r); ceil(l/C) where a row reads the rows of its chunk so far and the sums
of the chunk before, which are made of the sums before them; 0 where no two positions are joined, as
at l = 1.

Table 1 has O(log_k n) for a convolution of width k. That is a stack of layers whose dilation grows
from layer to layer, as section 4 says; one layer, stacked as it is, has contiguous kernels and
needs O(n/k) hops, by the same section. This is what follows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from costmodel.domains import (
    Constraints,
    Exact,
    Unsupported,
    bounds,
    implied,
    implied_all,
    infeasible,
    nonnegative,
    outside,
    projected,
)
from costmodel.equations import Equation, Mixer, System
from costmodel.expressions import Array, Gather, Position, position_value
from costmodel.polynomial import Poly, call, ceil_div
from costmodel.presence import may_be_empty
from costmodel.quantity import Quantity
from costmodel.tokens import Read, after_token, reads, system_of, tokens

if TYPE_CHECKING:
    import sympy

ROW, BACK = "#row", "#back"
"""The row that reads, and how many rows away, at least one, it reads: in one direction."""

Reach = Poly | None
"""How far a row reads in one direction; None where it reads every row there."""

NOWHERE = Poly()


@dataclass(frozen=True)
class PathLength(Quantity):
    """Hops between the two positions that are furthest apart; exact."""

    exact: Exact

    @property
    def expr(self) -> sympy.Expr:
        """The hops as a sympy expression."""
        return self.exact.expr

    def at(self, **sizes: int) -> int:
        """The hops at integer sizes."""
        return self.exact.at(sizes)


@dataclass(frozen=True, eq=False)
class Rows:
    """The row of each array's entries, in its axes (`#0`, `#1`); None where they have none.

    Nearly always one axis; (chunk - 1)*C + place, or chunk*C, where tokens lie in chunks.
    """

    system: System
    places: Mapping[Array, Poly | None]

    def reading(self, equation: Equation) -> Poly | None:
        """The row that an instance belongs to, in its free indices."""
        return self._place(equation.array, equation.positions)

    def read(self, read: Read) -> Poly | None:
        """The row of the entry that is read."""
        return self._place(read.ref.array, read.ref.positions)

    def _place(self, array: Array, positions: Sequence[Position]) -> Poly | None:
        place = self.places[array]
        return None if place is None else _at(place, positions)


def _at(place: Poly, positions: Sequence[Position]) -> Poly:
    """A row that is written in the axes of an array, at some positions."""
    named = {f"#{axis}": position for axis, position in enumerate(positions)}
    return place.substitute({a: position_value(named[a]) for a in place.letters if a in named})


@cache
def rows(system: System) -> Rows:
    """The rows of a system's arrays, derived from what reads what.

    An axis may hold the tokens if it is l long and indexed by what indexes the rows of something
    that is read; of several such axes it is the one that has the row of whoever reads the array.
    Where there is none, tokens may lie in chunks, and the rows are those of what is read.

    Raises:
        Unsupported: an array with rows that lie on no axis and in no chunks, or on one of several
            axes, or with entries for a chunk that rows on both sides read.
    """
    possible, indexed = _possible(system)
    chosen: dict[Array, Poly | None] = {system.mixer.role("output"): _axis(0)}
    without = []
    for equation in reversed(system.equations):
        array = equation.array
        if array in chosen or array not in possible or array in without:
            continue
        axes = _of_readers(system, array, possible[array], chosen)
        if len(axes) > 1:
            raise Unsupported(f"the rows of {array.name} lie on one of several axes")
        if axes:
            chosen[array] = _axis(next(iter(axes)))
        else:
            without.append(array)
    chosen[system.mixer.role("input")] = _axis(0)
    if indexed.isdisjoint(without):
        return Rows(system, chosen | dict.fromkeys(without))
    made_of = _made_of(Rows(system, chosen), without)
    for array in without:
        if array in indexed and not made_of[array]:
            raise Unsupported(f"the rows of {array.name} lie on no axis of one entry per token")
        chosen[array] = _in_chunk(Rows(system, chosen), array, made_of[array])
    return Rows(system, chosen)


def _axis(number: int) -> Poly:
    return Poly.atom(f"#{number}")


def _possible(system: System) -> tuple[Mapping[Array, set[int]], set[Array]]:
    """The axes that may hold the tokens, and the arrays of which an index counts rows."""
    source, output = system.mixer.role("input"), system.mixer.role("output")
    possible: dict[Array, set[int]] = {array: set() for array in tokens(system).dynamic}
    possible |= {source: {0}, output: {0}}
    counted: dict[Array, set[int]] = {}
    _spread(system, possible, counted, in_chunks=False)
    if any(not possible[array] for array in counted):
        _spread(system, possible, counted, in_chunks=True)
    return possible, {*counted}


def _spread(
    system: System,
    possible: dict[Array, set[int]],
    counted: dict[Array, set[int]],
    *,
    in_chunks: bool,
) -> None:
    """Pass the axes that may hold the tokens on to all readers.

    Args:
        counted: the axes with an index that counts rows, of the arrays that have such an index.
        in_chunks: whether these axes too are passed on, of an array without a token axis.
    """
    length, output = _length(system), system.mixer.role("output")
    changed = True
    while changed:
        changed = False
        for equation in system.equations:
            array = equation.array
            if array not in possible:
                continue
            known = {a: axes or counted.get(a, axes) for a, axes in possible.items()}
            counting = _counting(equation, known if in_chunks else possible)
            plain = {
                axis
                for axis, position in enumerate(equation.positions)
                if not isinstance(position, Gather) and position_value(position).letters & counting
            }
            if counting & {index.atom for index in equation.indices}:
                changed = changed or (in_chunks and not plain <= counted.get(array, set()))
                counted[array] = counted.get(array, set()) | plain
            found = {axis for axis in plain if array.shape[axis] == length}
            if array is not output and not found <= possible[array]:
                possible[array] |= found
                changed = True


def _counting(equation: Equation, possible: Mapping[Array, set[int]]) -> set[str]:
    """The indices that stand where rows of something read may lie, and those that bound them."""
    found: set[str] = set()
    for read in reads(equation):
        for axis in possible.get(read.ref.array, ()):
            place = position_value(read.ref.positions[axis])
            found |= {letter for letter in place.letters if letter[0] == "@"}
        for index in reversed(read.over):
            if index.atom in found:
                bounds = frozenset[str]().union(*(b.letters for b in index.lower + index.upper))
                found |= {letter for letter in bounds if letter[0] == "@"}
    return found


def _of_readers(
    system: System, array: Array, axes: set[int], chosen: Mapping[Array, Poly | None]
) -> set[int]:
    """The axes at which readers have their own row; all of them where none has."""
    known = Rows(system, chosen)
    for equation in system.equations:
        if equation.array is array or chosen.get(equation.array) is None:
            continue
        here = known.reading(equation)
        for read in reads(equation):
            if read.ref.array is not array or len(axes) < 2:
                continue
            own = {a for a in axes if position_value(read.ref.positions[a]) == here}
            axes = own or axes
    return axes


@dataclass(frozen=True)
class Span:
    """The rows that an entry is made of, from the first to the last, in the axes of its array; None
    for an end that is not known."""

    first: Poly | None
    last: Poly | None

    def at(self, positions: Sequence[Position]) -> Span:
        """The rows of the entry at some positions."""
        first, last = (end and _at(end, positions) for end in (self.first, self.last))
        return Span(first, last)


def _made_of(known: Rows, arrays: Sequence[Array]) -> Mapping[Array, set[Span]]:
    """Of which rows the entries of arrays without a token axis are made, by each of their axes.

    What an entry reads of its own array is left out: a running sum is made of what each step adds.
    """
    found: dict[Array, set[Span]] = {array: set() for array in arrays}
    changed = True
    while changed:
        changed = False
        for array in arrays:
            spans = _spans(known, array, found)
            changed, found[array] = changed or spans != found[array], spans
    return found


def _spans(known: Rows, array: Array, found: Mapping[Array, set[Span]]) -> set[Span]:
    """The rows that all equations of an array give to its entries."""
    given = {
        equation: [
            span
            for read in reads(equation)
            if read.ref.array is not array
            for span in _read_rows(known, equation, read, found)
        ]
        for equation in known.system.defining[array]
    }
    spans = {_on_axes(equation, span) for equation, spans in given.items() for span in spans}
    for equation, others in given.items():
        if others:
            spans = {_agreeing(equation, span, others) for span in spans}
    return spans - {Span(None, None)}


def _agreeing(equation: Equation, span: Span, others: Sequence[Span]) -> Span:
    """The ends of some rows that are those which an equation gives, too."""
    here = span.at(equation.positions)
    firsts, lasts = ([end for end in ends if end] for ends in zip(*map(_ends, others), strict=True))
    return Span(
        span.first if any(_equal(here.first, end, equation.domain) for end in firsts) else None,
        span.last if any(_equal(here.last, end, equation.domain) for end in lasts) else None,
    )


def _ends(span: Span) -> tuple[Poly | None, Poly | None]:
    return span.first, span.last


def _equal(one: Poly | None, two: Poly, where: Constraints) -> bool:
    return one == two or (one is not None and implied_all(where, (one - two, two - one)))


def _read_rows(
    known: Rows, equation: Equation, read: Read, found: Mapping[Array, set[Span]]
) -> Iterator[Span]:
    """The rows of the entries that one reference reads, in the free indices of an equation."""
    around, over = equation.domain | read.constraints, {index.atom for index in read.over}
    spans = {span.at(read.ref.positions) for span in found.get(read.ref.array, ())}
    if known.places.get(read.ref.array) is not None:
        row = known.read(read)
        spans = {Span(row, row)}
    for span in spans:
        first = span.first and _outermost(span.first, -1, around, over)
        last = span.last and _outermost(span.last, 1, around, over)
        yield Span(first, last)


def _outermost(row: Poly, sign: int, around: Constraints, over: set[str]) -> Poly | None:
    """The largest row (sign 1), or the least, over some indices; None if several bounds compete."""
    if row.letters.isdisjoint(over):
        return row
    at = Poly.atom(ROW)
    where = projected(around | {at - row, row - at}, sorted(over, reverse=True))
    lower, upper, rest = bounds(where, ROW)
    ends = [end for scale, end in (upper if sign > 0 else lower) if scale == 1]
    for end in ends:
        if all(implied(frozenset(rest), (other - end) * sign) for other in ends):
            return end
    return None


def _on_axes(equation: Equation, span: Span) -> Span:
    """Rows in the free indices of an equation, in the axes of the array that it defines; None where
    they are on no axis."""
    values: dict[str, Poly] = {}
    for axis, position in enumerate(equation.positions):
        place = position_value(position)
        for name in place.variables:
            rest = place - Poly.atom(name)
            if not rest.variables:
                values[name] = _axis(axis) - rest
    first, last = (
        end.substitute(values)
        if end is not None and end.variables and end.variables <= {*values}
        else None
        for end in _ends(span)
    )
    return Span(first, last)


def _in_chunk(known: Rows, array: Array, spans: set[Span]) -> Poly | None:
    """The row of an array's entries: that of whoever reads them, if they are made of it, else the
    one nearest to those who do, the last one if nobody does; None for what is made of no rows in
    chunks."""
    readers = [
        (read, equation.domain | read.constraints, here)
        for equation in known.system.equations
        if equation.array is not array
        and known.places.get(equation.array) is not None
        and (here := known.reading(equation)) is not None
        for read in reads(equation)
        if read.ref.array is array
    ]
    for read, around, here in readers:
        there = {span: span.at(read.ref.positions) for span in spans}
        exact = {span for span, at in there.items() if at.first == at.last}
        spans = {span for span in exact if _equal(there[span].last, here, around)} or spans
    if len(spans) > 1:
        raise Unsupported(f"the rows of {array.name} lie on one of several axes")
    for span in spans:
        if span.last is not None and (span.last == span.first or _all_after(span.last, readers, 1)):
            return span.last
        if span.first is not None and _all_after(span.first, readers, -1):
            return span.first
        raise Unsupported(
            f"which row an entry of {array.name} belongs to is not known: it is made of several, "
            "and read by rows on both sides, or by later rows though its last row is not known"
        )
    return None


def _all_after(row: Poly, readers: Sequence[tuple[Read, Constraints, Poly]], sign: int) -> bool:
    """Whether no reader lies before a row of what it reads (sign 1), or after it (-1)."""
    return all(
        implied(around, (here - _at(row, read.ref.positions)) * sign)
        for read, around, here in readers
    )


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
    whole = frozenset({Poly.atom(ROW) - 1, _length(known.system) - Poly.atom(ROW)})
    for equation in known.system.equations:
        if known.places.get(equation.array) is None:
            continue
        here = known.reading(equation)
        assert here is not None
        for read in reads(equation):
            if read.ref.array not in known.places:
                continue
            words = f"{equation.name} reads of {read.ref.array.name}"
            there = known.read(read)
            if there is None:
                _require_whole(known, read.ref.array)
                yield Hops(whole | {Poly.atom(BACK) - 1}, words)
                continue
            away = Poly.atom(BACK) - (here - there) * sign
            apart = {Poly.atom(ROW) - here, here - Poly.atom(ROW), away, -away}
            for around in _reading(known.system, equation, read):
                where = around | apart | {Poly.atom(BACK) - 1}
                if not infeasible(where):
                    yield Hops(projected(where, _indices(equation, read)), words)


def _indices(equation: Equation, read: Read) -> list[str]:
    names = {index.atom for index in (*equation.indices, *read.over)}
    return sorted(names, reverse=True)


def _reading(system: System, equation: Equation, read: Read) -> list[Constraints]:
    """Where an entry is read that depends on some token: a sum over no term belongs to no row."""
    around = equation.domain | read.constraints
    if not any(map(may_be_empty, system.equations)):
        return [around]
    terms = tokens(system).at(read.ref)
    if any(implied_all(around, term.over(Poly())) for term in terms):
        return [around]
    return after_token(around, terms, Poly())


def _length(system: System) -> Poly:
    return system.mixer.role("input").shape[0]


def _require_whole(known: Rows, array: Array, asked: frozenset[Array] = frozenset()) -> None:
    """Raise Unsupported unless every entry of an array of no rows is made of all of them.

    What is asked already has itself among what it is made of: a loop, whose first row decides.
    """
    for equation in known.system.defining[array]:
        made_of = [read for read in reads(equation) if read.ref.array in known.places]
        without = {r.ref.array for r in made_of if known.read(r) is None} - asked
        for other in without - {array}:
            _require_whole(known, other, asked | {array})
        looped = any(read.ref.array in asked | {array} for read in made_of)
        if not (without or looped or any(_reads_all(known, equation, r) for r in made_of)):
            raise Unsupported(f"{array.name} is made of some rows and belongs to none")


def _reads_all(known: Rows, equation: Equation, read: Read) -> bool:
    """Whether every instance reads all rows."""
    row, there = Poly.atom(ROW), known.read(read)
    assert there is not None
    given = equation.domain | {row - 1, _length(known.system) - row}
    over = sorted((index.atom for index in read.over), reverse=True)
    for around in _reading(known.system, equation, read):
        if implied_all(given, projected(around | {row - there, there - row}, over)):
            return True
    return False


def _furthest(hops: Sequence[Hops], sign: int, length: Poly) -> Reach:
    """How far one hop goes at most in one direction, where it may go any shorter way too."""
    if not hops:
        return NOWHERE
    found = {hop: hop.reach(sign, length) for hop in hops}
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

    def pairs(self, low: Poly, high: Poly, around: Constraints, over: list[str]) -> Constraints:
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
    for equation in known.system.equations:
        if known.places.get(equation.array) is None:
            continue
        here = known.reading(equation)
        assert here is not None
        for read in reads(equation):
            if read.ref.array not in known.places:
                continue
            words = f"{equation.name} reads of {read.ref.array.name}"
            there = known.read(read)
            if there is None:
                _require_whole(known, read.ref.array)
                yield Pairs(chunks.inside, words)
                continue
            low, high = (there, here) if sign > 0 else (here, there)
            over = _indices(equation, read)
            for around in _reading(known.system, equation, read):
                where = chunks.pairs(low, high, around | lower, over)
                if not infeasible(where):
                    yield Pairs(projected(where, over), words)


def _chunks(known: Rows) -> Chunks | None:
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
            return Chunks(_length(known.system), str(stride))
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


def _by_chunks(known: Rows, chunks: Chunks, sign: int) -> Exact:
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


def _longer(one: Exact, two: Exact) -> Exact:
    """The larger of two numbers of hops."""
    result = Exact()
    for (here, hops), (there, others) in product(one.chambers(), two.chambers()):
        guards = here | there
        if implied(guards, others - hops):
            hops = others
        elif not implied(guards, hops - others):
            hops = call("Max", hops, others)
        if not infeasible(guards):
            result = result + Exact(((guards, hops),))
    return result


def _evenly(back: Reach, ahead: Reach, length: Poly) -> Exact:
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


@cache
def _answer(system: System) -> PathLength:
    length, known = _length(system), rows(system)
    chunks = _chunks(known)
    reaches: dict[int, Reach] = {}
    for sign in (1, -1):
        try:
            reaches[sign] = _furthest(list(_hops(known, sign)), sign, length)
        except Unsupported:
            if chunks is None:
                raise
    if len(reaches) == 2 or chunks is None:
        return PathLength(_evenly(reaches[1], reaches[-1], length))
    back, ahead = (
        _evenly(reaches[sign], NOWHERE, length)
        if sign in reaches
        else _by_chunks(known, chunks, sign)
        for sign in (1, -1)
    )
    return PathLength(_longer(back, ahead))


def path_length(mixer: Mixer, form: str | None = None) -> PathLength:
    """The largest distance of two positions in hops, for layers of one kind.

    Where tokens lie in chunks, the hops from row to row are followed until they recur from chunk to
    chunk. Exact, for chunks of any length, the last one incomplete or not.

    Errors: Unsupported where the rows that a row reads depend on more than their distance and their
    place in a chunk, or where it reads a row and none of those between.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 4 and Table 1.

    >>> import costmodel as cm
    >>> cm.path_length(cm.mixer("self-attention")).at(l=9)
    1
    >>> cm.path_length(cm.mixer("convolution")).at(l=9, k=3)
    4
    >>> cm.path_length(cm.mixer("linear-attention"), "chunked").at(l=9, C=4)
    3
    """
    return _answer(system_of(mixer, form, (), "training"))
