"""Which row does an array's entry belong to, and which rows does a reference join?

A row is what lies at one place of an array's token axis; what has none belongs to every row that
reads it, or, where it stands for a whole chunk of tokens, to the row of these that is nearest to
its readers. See `path_length`, which asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Gather, Position, position_value
from costmodel.program.dependence import Read, after_token, reads
from costmodel.program.nonempty import may_be_empty
from costmodel.program.tokens import tokens
from costmodel.symbolic.constraints import Constraints, bounds, implied, implied_all, projected
from costmodel.symbolic.polynomial import Poly

ROW = "#row"
"""The row that reads."""


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
    whole, output = length(system), system.mixer.role("output")
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
            found = {axis for axis in plain if array.shape[axis] == whole}
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
class Joined:
    """The rows that one reference joins: whoever reads, and what is read; None for every row."""

    reading: Poly
    read: Poly | None
    around: Sequence[Constraints]
    """Where it is read, in the free indices and those that are summed over, in parts."""
    over: Sequence[str]
    """These indices."""
    words: str


def joined(known: Rows) -> Iterator[Joined]:
    """What every reference joins.

    Raises:
        Unsupported: something that is read belongs to no row, and is not made of all of them.
    """
    for equation in known.system.equations:
        here = None if known.places.get(equation.array) is None else known.reading(equation)
        if here is None:
            continue
        for read in reads(equation):
            if read.ref.array not in known.places:
                continue
            words = f"{equation.name} reads of {read.ref.array.name}"
            there = known.read(read)
            if there is None:
                _require_whole(known, read.ref.array)
                yield Joined(here, None, (), (), words)
                continue
            names = {index.atom for index in (*equation.indices, *read.over)}
            around = _reading(known.system, equation, read)
            yield Joined(here, there, around, sorted(names, reverse=True), words)


def _reading(system: System, equation: Equation, read: Read) -> list[Constraints]:
    """Where an entry is read that depends on some token: a sum over no term belongs to no row."""
    around = equation.domain | read.constraints
    if not any(map(may_be_empty, system.equations)):
        return [around]
    terms = tokens(system).at(read.ref)
    if any(implied_all(around, term.over(Poly())) for term in terms):
        return [around]
    return after_token(around, terms, Poly())


def length(system: System) -> Poly:
    """The length of the sequence."""
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
    given = equation.domain | {row - 1, length(known.system) - row}
    over = sorted((index.atom for index in read.over), reverse=True)
    for around in _reading(known.system, equation, read):
        if implied_all(given, projected(around | {row - there, there - row}, over)):
            return True
    return False
