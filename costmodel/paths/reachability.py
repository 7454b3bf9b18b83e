"""The rows that each reference joins, and the row to which each entry belongs.

A row is a position of the sequence. An entry of an array with a token axis belongs to the row at
its position on that axis. An entry without a token axis belongs to every row that reads it; an
entry computed from a whole chunk of tokens belongs to the row of the chunk that is nearest to its
readers. A gathered row may be any row: such a reference joins no rows. `questions.path_length`
counts hops between rows on this basis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Position, position_value
from costmodel.program.dependence import Read, after_token, reads
from costmodel.program.nonempty import may_be_empty
from costmodel.program.tokens import tokens
from costmodel.program.wellformed import defined, whole
from costmodel.symbolic.constraints import Constraints, bounds, implied, implied_all, projected
from costmodel.symbolic.polynomial import Poly, axis_atom, is_index

ROW = axis_atom("row")
"""The reading row, as a variable."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The row of each array's entries, as a polynomial in the array's axes (`#0`, `#1`), or None.
    The polynomial is usually one axis; where tokens lie in chunks it may be (chunk - 1)*C + place,
    or chunk*C."""

    system: System
    places: Mapping[Array, Poly | None]

    def reading(self, equation: Equation) -> Poly | None:
        """The row of the entry that an equation writes, in its free indices; None for no row."""
        return self._place(equation.array, equation.positions)

    def read(self, read: Read) -> Poly | None:
        """The row of the entry that a reference reads, in the indices around it; None if the entry
        belongs to no row, or if the row is gathered."""
        return self._place(read.ref.array, read.ref.positions)

    def _place(self, array: Array, positions: Sequence[Position]) -> Poly | None:
        """The row of an entry at some positions; None if it has none, or a gathered one."""
        place = self.places[array]
        return None if place is None else _row_at(place, positions)

    def certain(self, equation: Equation) -> Iterator[Read]:
        """Yield the references of an equation to arrays that depend on tokens whose rows are
        certain: references that gather rows, which data choose, are left out."""
        for read in reads(equation):
            array = read.ref.array
            if array in self.places and (self.places[array] is None or self.read(read) is not None):
                yield read


def _row_at(place: Poly, positions: Sequence[Position]) -> Poly | None:
    """The row of an entry at `positions`, where `place` gives it in the axes of the array; None if
    it depends on a gathered position, as in x[p[i]]."""
    named = {axis_atom(axis): position for axis, position in enumerate(positions)}
    at = {a: named[a] for a in place.letters if a in named}
    if any(isinstance(position, Gather) for position in at.values()):
        return None
    return place.substitute({a: position_value(position) for a, position in at.items()})


@cache
def rows_on_axes(system: System) -> Rows:
    """The row (token) of each array's entries, in its axes; None for an array that depends on
    tokens and has no token axis. Arrays that depend on no token are left out. Derived from the
    references between arrays: an axis may be the token axis if its extent is l and its index also
    indexes rows of an array that the equation reads. Of several such axes, the one is taken at
    which readers have their own row.

    Raises:
        Unsupported: an array whose rows lie on one of several axes that cannot be told apart.
    """
    possible, _ = _possible_axes(system)
    chosen: dict[Array, Poly | None] = {system.mixer.role("output"): _axis_atom(0)}
    without = []
    for equation in reversed(system.equations):
        array = equation.array
        if array in chosen or array not in possible or array in without:
            continue
        axes = _of_readers(system, array, possible[array], chosen)
        if len(axes) > 1:
            raise Unsupported(
                f"which axis of {array.name} is the token axis is not derived: axes "
                f"{' and '.join(str(axis + 1) for axis in sorted(axes))} are possible"
            )
        if axes:
            chosen[array] = _axis_atom(next(iter(axes)))
        else:
            without.append(array)
    chosen |= dict.fromkeys(system.mixer.inputs, _axis_atom(0))
    return Rows(system, chosen | dict.fromkeys(without))


@cache
def rows_of(system: System) -> Rows:
    """The row (token) of each array's entries, in its axes, also for arrays whose tokens lie in
    chunks: an entry of such an array belongs to one of the rows it is computed from.

    Raises:
        Unsupported: an array whose rows lie on no axis and in no chunks, or on one of several axes
            that cannot be told apart, or an entry for a chunk with readers on both sides of the
            chunk.
    """
    on_axes, (_, indexed) = rows_on_axes(system), _possible_axes(system)
    without = [array for array, place in on_axes.places.items() if place is None]
    if indexed.isdisjoint(without):
        return on_axes
    chosen = {array: on_axes.places[array] for array in on_axes.places if array not in without}
    made_of = _made_of(Rows(system, chosen), without)
    for array in without:
        if array in indexed and not made_of[array]:
            raise Unsupported(
                f"{array.name} has neither an axis with one entry per token nor an axis with one "
                "entry per chunk"
            )
        chosen[array] = _in_chunk(Rows(system, chosen), array, made_of[array])
    return Rows(system, chosen)


def _axis_atom(number: int) -> Poly:
    return Poly.atom(axis_atom(number))


@cache
def _possible_axes(system: System) -> tuple[Mapping[Array, set[int]], set[Array]]:
    """(array that depends on tokens -> its possible token axes, from 0: {0, 1} of scores A[i, j],
    {} of a sum over all rows; the arrays that an equation with an index over rows defines)."""
    possible: dict[Array, set[int]] = {array: set() for array in tokens(system).from_inputs}
    possible |= {array: {0} for array in (*system.mixer.inputs, system.mixer.role("output"))}
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
    """Propagate possible token axes from arrays to the arrays computed from them, to the fixed
    point: axis 1 of v[c, i] in the equation v[c, i] = x[i, c]*w[c], from axis 0 of x.

    Args:
        possible: array -> axes that may be its token axis.
        counted: array -> axes with an index that counts rows, for arrays that have such an index.
        in_chunks: whether an array without a possible token axis passes its axes in `counted` on to
            its readers.
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
            # the axes that the equation writes at a position with an index over rows
            plain = {
                axis
                for axis, position in enumerate(equation.positions)
                if not isinstance(position, Gather) and position_value(position).letters & counting
            }
            if counting & {index.atom for index in equation.indices}:
                changed = changed or (in_chunks and not plain <= counted.get(array, set()))
                counted[array] = counted.get(array, set()) | plain
            found = {axis for axis in plain if array.shape[axis] == whole}
            # the rows of the output lie on its first axis from the start
            if array is not output and not found <= possible[array]:
                possible[array] |= found
                changed = True


def _counting(equation: Equation, possible: Mapping[Array, set[int]]) -> set[str]:
    """The names of the indices of an equation that count rows: indices at possible token axes
    (`possible`: array -> such axes) of the arrays read, and indices in the bounds of these: j and i
    in the sum of x[j] over j in 1..i. An index of one value, as i in 1..1, counts no rows: x[i] is
    x[1]."""
    found: set[str] = set()
    for read in reads(equation):
        for axis in possible.get(read.ref.array, ()):
            position = read.ref.positions[axis]
            letters = () if isinstance(position, Gather) else position_value(position).letters
            found |= {letter for letter in letters if is_index(letter)}
        for index in reversed(read.over):
            if index.atom in found:
                bounds = frozenset[str]().union(*(b.letters for b in index.lower + index.upper))
                found |= {letter for letter in bounds if is_index(letter)}
    return found - {index.atom for index in equation.indices if _has_one_value(index)}


def _has_one_value(index: Index) -> bool:
    """Whether an index has a single value that names no other index, as i in 1..1."""
    ends = {*index.lower} & {*index.upper} if len(index.pieces) == 1 else set()
    return any(not end.variables for end in ends)


def _of_readers(
    system: System, array: Array, axes: set[int], chosen: Mapping[Array, Poly | None]
) -> set[int]:
    """Of the possible token axes of an array, those at which a reader reads its own row: 0 of
    A[i, j], which y[i] reads; `axes` itself if no reader tells them apart. `chosen`: array -> its
    row in its axes, such as #0; readers without one say nothing."""
    rows = Rows(system, chosen)
    for equation in system.equations:
        if equation.array is array or chosen.get(equation.array) is None:
            continue
        here = rows.reading(equation)
        for read in reads(equation):
            if read.ref.array is not array or len(axes) < 2:
                continue
            at = read.ref.positions
            own = {a for a in axes if not isinstance(at[a], Gather)}
            own = {a for a in own if position_value(at[a]) == here}
            axes = own or axes
    return axes


@dataclass(frozen=True)
class RowRange:
    """The first and the last row that an entry is computed from, in the axes of its array (or in
    the indices of a reference); None for an end that is not known."""

    first: Poly | None
    last: Poly | None

    def at(self, positions: Sequence[Position]) -> RowRange:
        """The row range of the entry at these positions."""
        first, last = (end and _row_at(end, positions) for end in (self.first, self.last))
        return RowRange(first, last)


def _made_of(rows: Rows, arrays: Sequence[Array]) -> Mapping[Array, set[RowRange]]:
    """Array without a token axis -> the possible row ranges from which its entries are computed.
    References of an array to itself are left out: an entry of a running sum is computed from the
    row that its own step adds."""
    found: dict[Array, set[RowRange]] = {array: set() for array in arrays}
    changed = True
    while changed:
        changed = False
        for array in arrays:
            ranges = _row_ranges(rows, array, found)
            changed, found[array] = changed or ranges != found[array], ranges
    return found


def _row_ranges(rows: Rows, array: Array, found: Mapping[Array, set[RowRange]]) -> set[RowRange]:
    """The row ranges that the entries of an array are computed from, given those `found` so far:
    rows (q - 1)*C + 1 to q*C for S[q], a sum over the rows of chunk q. An end becomes None unless
    every equation of the array that reads rows has a range with the same end. Ranges without any
    end are left out."""
    given = {
        equation: [
            row_range
            for read in reads(equation)
            if read.ref.array is not array
            for row_range in _read_rows(rows, equation, read, found)
        ]
        for equation in rows.system.defining[array]
    }
    ranges = {
        _in_array_axes(equation, row_range)
        for equation, ranges in given.items()
        for row_range in ranges
    }
    for equation, others in given.items():
        if others:
            ranges = {_agreeing(equation, row_range, others) for row_range in ranges}
    return ranges - {RowRange(None, None)}


def _agreeing(equation: Equation, row_range: RowRange, others: Sequence[RowRange]) -> RowRange:
    """A row range (in the axes of an array), with None for each end that is not proven to equal the
    same end of some range in `others`: the ranges that the references of one equation of the array
    read (in its free indices), of which one with this end suffices. The equation of a first chunk
    and that of later chunks need not agree."""
    here = row_range.at(equation.positions)
    firsts, lasts = (
        [end for end in ends if end] for ends in zip(*map(_both_ends, others), strict=True)
    )
    return RowRange(
        row_range.first
        if any(_proven_equal(here.first, end, equation.domain) for end in firsts)
        else None,
        row_range.last
        if any(_proven_equal(here.last, end, equation.domain) for end in lasts)
        else None,
    )


def _both_ends(row_range: RowRange) -> tuple[Poly | None, Poly | None]:
    """A row range as (first, last)."""
    return row_range.first, row_range.last


def _proven_equal(one: Poly | None, two: Poly, where: Constraints) -> bool:
    """Whether two rows are proven to be equal at all points of `where`; False if `one` is None."""
    return one == two or (one is not None and implied_all(where, (one - two, two - one)))


def _read_rows(
    rows: Rows, equation: Equation, read: Read, found: Mapping[Array, set[RowRange]]
) -> Iterator[RowRange]:
    """Yield the row ranges of the entries that a reference reads over all indices of its sums, in
    the free indices of the equation: (1, i) for the sum over j in 1..i of x[j]; None for an end
    that is not known. `found`: array without a token axis -> its row ranges."""
    around, over = equation.domain | read.constraints, {index.atom for index in read.over}
    ranges = {row_range.at(read.ref.positions) for row_range in found.get(read.ref.array, ())}
    if rows.places.get(read.ref.array) is not None:
        row = rows.read(read)
        ranges = {RowRange(row, row)}
    for row_range in ranges:
        first = row_range.first and _extreme_row(row_range.first, -1, around, over)
        last = row_range.last and _extreme_row(row_range.last, 1, around, over)
        yield RowRange(first, last)


def _extreme_row(row: Poly, sign: int, around: Constraints, over: set[str]) -> Poly | None:
    """The largest (`sign` 1) or smallest (`sign` -1) row while the indices `over` run over their
    ranges, which are among the constraints `around`: i and 1 for row j with j in 1..i. With j <= w
    and 2*j <= i, the largest is w if 2*w <= i is proven, else None: i/2 may be no row."""
    if row.letters.isdisjoint(over):
        return row
    at = Poly.atom(ROW)
    where = projected(around | {at - row, row - at}, sorted(over, reverse=True))
    lower, upper, rest = bounds(where, ROW)
    ends = upper if sign > 0 else lower
    for times, end in ends:
        if times == 1 and all(
            implied(frozenset(rest), (other - end * scale) * sign) for scale, other in ends
        ):
            return end
    return None


def _in_array_axes(equation: Equation, row_range: RowRange) -> RowRange:
    """A row range in the free indices of an equation, converted to the axes of the array that the
    equation defines: row q*C becomes #0*C for S[q]. An end becomes None if it has no index (the row
    is the same for all entries), or an index q that no axis has as q plus a constant (T[2*q])."""
    values: dict[str, Poly] = {}
    for axis, position in enumerate(equation.positions):
        place = position_value(position)
        for name in place.variables:
            rest = place - Poly.atom(name)
            if not rest.variables:
                values[name] = _axis_atom(axis) - rest
    first, last = (
        end.substitute(values)
        if end is not None and end.variables and end.variables <= {*values}
        else None
        for end in _both_ends(row_range)
    )
    return RowRange(first, last)


def _in_chunk(rows: Rows, array: Array, ranges: set[RowRange]) -> Poly | None:
    """The row to which the entries of an array without a token axis belong: row q*C for S[q], a sum
    over the rows of chunk q that later rows read. `ranges` are the row ranges from which entries
    are computed; ranges of a single row that is a reader's own row replace all others. Of the range
    that covers all ranges, the row is the last one if every reader (or none) lies at or after it,
    the first one if every reader lies at or before that; None without ranges. Raises Unsupported:
    readers may lie on both sides of the rows, or the row nearest to them is not known."""
    readers = [
        (read, equation.domain | read.constraints, here)
        for equation in rows.system.equations
        if equation.array is not array
        and rows.places.get(equation.array) is not None
        and (here := rows.reading(equation)) is not None
        for read in reads(equation)
        if read.ref.array is array
    ]
    for read, around, here in readers:
        there = {row_range: row_range.at(read.ref.positions) for row_range in ranges}
        exact = {row_range for row_range, at in there.items() if at.first == at.last}
        ranges = {
            row_range for row_range in exact if _proven_equal(there[row_range].last, here, around)
        } or ranges
    if len(ranges) > 1:
        ranges = {_united(rows.system, array, ranges)}
    for row_range in ranges:
        if row_range.last is not None and (
            row_range.last == row_range.first or _all_after(row_range.last, readers, 1)
        ):
            return row_range.last
        if row_range.first is not None and _all_after(row_range.first, readers, -1):
            return row_range.first
        why = "rows before and after these rows may read the entry"
        if row_range.last is None:
            why = "later rows may read the entry, and which of its rows is the last is not known"
        elif row_range.first is None:
            why = "earlier rows may read the entry, and which of its rows is the first is not known"
        raise Unsupported(
            f"an entry of {array.name} is computed from several rows, and no single row can take "
            f"the place of the entry on a path: {why}"
        )
    return None


def _united(system: System, array: Array, ranges: set[RowRange]) -> RowRange:
    """The row range that covers all `ranges` of an array, from the first row of all to the last. An
    end is None if a range has no such end, or if which range ends outermost depends on the sizes.
    Raises Unsupported: neither end is known."""
    firsts, lasts = zip(*map(_both_ends, ranges), strict=True)
    entries = []
    for equation in system.defining[array]:
        region: Constraints | None = whole(array)
        with suppress(Unsupported):  # a stride between entries
            region = defined(equation)
        entries += [] if region is None else [region]
    found = RowRange(_outermost(entries, firsts, -1), _outermost(entries, lasts, 1))
    if found == RowRange(None, None):
        raise Unsupported(
            f"{array.name} is computed from several ranges of rows, and neither the first row nor "
            "the last row of all ranges is derived"
        )
    return found


def _outermost(
    entries: Sequence[Constraints], ends: Sequence[Poly | None], sign: int
) -> Poly | None:
    """The end that is proven to be the largest (`sign` 1) or smallest (`sign` -1) at every entry of
    an array (`entries`: regions that cover them); None if there is no such end, or if an end is not
    known."""
    known = [end for end in ends if end is not None]
    for end in known if len(known) == len(ends) else ():
        further = [(end - other) * sign for other in known]
        if all(implied_all(region, further) for region in entries):
            return end
    return None


def _all_after(row: Poly, readers: Sequence[tuple[Read, Constraints, Poly]], sign: int) -> bool:
    """Whether every reader is proven to lie at or after the row (`sign` 1), or at or before the row
    (`sign` -1). `readers`: (reference, constraints around it, row of the reader)."""
    return all(
        (there := _row_at(row, read.ref.positions)) is not None
        and implied(around, (here - there) * sign)
        for read, around, here in readers
    )


@dataclass(frozen=True)
class JoinedRows:
    """The reading row and the row read, for one reference; `read` is None if every row is read."""

    reading: Poly
    read: Poly | None
    around: Sequence[Constraints]
    """Regions of the indices in `over`, in which the reference joins the two rows."""
    over: Sequence[str]
    """The free indices of the equation and the indices of sums."""
    words: str
    """The two arrays for messages: "row i of y reads row j of x"."""


def joined_rows(rows: Rows) -> Iterator[JoinedRows]:
    """Yield, for each reference between entries with rows, the reading row and the row that is
    read: i and i - 1 for h[i - 1] in the equation of h[i]. An array without rows must be computed
    from all rows, and counts as every row.

    Raises:
        Unsupported: an array that is read belongs to no row, and is not proven to be computed from
            all rows.
    """
    for equation in rows.system.equations:
        here = None if rows.places.get(equation.array) is None else rows.reading(equation)
        if here is None:
            continue
        for read in rows.certain(equation):
            words = f"row i of {equation.name} reads row j of {read.ref.array.name}"
            there = rows.read(read)
            if there is None:
                _require_made_of_all(rows, read.ref.array)
                yield JoinedRows(here, None, (), (), words)
                continue
            names = {index.atom for index in (*equation.indices, *read.over)}
            around = regions_that_read(rows.system, equation, read)
            yield JoinedRows(here, there, around, sorted(names, reverse=True), words)


def regions_that_read(system: System, equation: Equation, read: Read) -> list[Constraints]:
    """The disjoint regions, in the indices around a reference, in which it reads an entry that
    depends on some token. An empty sum, such as that over j < i at i = 1, or a first row of weights
    depends on no token, and so belongs to no row."""
    around = equation.domain | read.constraints
    if not _some_without_tokens(system):
        return [around]
    terms = tokens(system).at(read.ref)
    if any(implied_all(around, term.over(Poly())) for term in terms):
        return [around]
    return after_token(around, terms, Poly())


@cache
def _some_without_tokens(system: System) -> bool:
    """Whether an entry may depend on no token beside entries of its array that do: an empty sum, or
    a row of weights."""
    found = tokens(system).from_inputs
    return any(
        may_be_empty(e) or (e.array in found and found.isdisjoint(e.value.arrays))
        for e in system.equations
    )


def each_row_reads_all(rows: Rows) -> bool:
    """Whether there is an array with a row axis of which each row is proven to read all rows, as in
    attention: then the path length is 1."""
    row = Poly.atom(ROW)
    every = frozenset({row - 1, length(rows.system) - row})  # each row from 1 to l
    for equation in rows.system.equations:
        here = None if rows.places.get(equation.array) is None else rows.reading(equation)
        with suppress(Unsupported):
            if here is None or not _reads_all_rows(rows, equation):
                continue
            names = sorted((index.atom for index in equation.indices), reverse=True)
            if implied_all(every, projected(equation.domain | {row - here, here - row}, names)):
                return True
    return False


def length(system: System) -> Poly:
    """The length of the sequence."""
    return system.mixer.role("input").shape[0]


def _require_made_of_all(rows: Rows, array: Array, asked: frozenset[Array] = frozenset()) -> None:
    """Raise Unsupported unless each entry of an array without rows (no axis counts tokens, as of a
    mean over all tokens) is proven to be computed from all rows: each of its equations reads all
    rows by one reference, or reads another array without rows of which the same is true.

    Args:
        asked: the arrays whose check is in progress. An equation that reads one of them passes, as
            in a loop: the array's other equations, such as that of the first row, decide.
    """
    for equation in rows.system.defining[array]:
        made_of = [*rows.certain(equation)]
        rowless = dict.fromkeys(r.ref.array for r in made_of if rows.read(r) is None)
        without = [other for other in rowless if other not in asked]
        for other in without:
            if other != array:
                _require_made_of_all(rows, other, asked | {array})
        looped = any(read.ref.array in asked | {array} for read in made_of)
        if not (without or looped or any(_reads_all(rows, equation, r) for r in made_of)):
            raise Unsupported(
                f"{array.name} has no token axis and is not proven to be computed from all rows, "
                f"so that paths through {array.name} are not derived"
            )


def _reads_all_rows(rows: Rows, equation: Equation) -> bool:
    """Whether one reference of an equation is proven to read all rows: at rows of an array with
    rows, or through an array without rows that is computed from all rows, such as their mean."""
    for read in rows.certain(equation):
        with suppress(Unsupported):  # this reference proves nothing; another one may
            if rows.read(read) is None:
                _require_made_of_all(rows, read.ref.array)
                return True
            if _reads_all(rows, equation, read):
                return True
    return False


def _reads_all(rows: Rows, equation: Equation, read: Read) -> bool:
    """Whether every instance of an equation is proven to read all rows through one reference."""
    row, there = Poly.atom(ROW), rows.read(read)
    assert there is not None  # the caller asks for entries with a row
    given = equation.domain | {row - 1, length(rows.system) - row}
    over = sorted((index.atom for index in read.over), reverse=True)
    for around in regions_that_read(rows.system, equation, read):
        if implied_all(given, projected(around | {row - there, there - row}, over)):
            return True
    return False
