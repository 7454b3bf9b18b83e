"""Validation of a form: every entry read exists, no entry is defined twice, every array is needed.

Entries that are read or defined are regions: constraints on the axes of an array (`#0`, `#1`),
derived from indices and bounds. Where a region of faulty entries is not proven to be empty, the
form is refused if the region has an entry at one of a few small sizes, which the message shows.
Entries at a stride, such as every second row, are no region: they are checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, islice, product
from math import ceil, floor

from costmodel.errors import EquationError, SizeError, Unsupported
from costmodel.language.equations import (
    Equation,
    Mixer,
    System,
    at_declaration,
    at_its_line,
    rank,
    rows,
)
from costmodel.language.indices import Index, UnionIndex, one_by_one, outer_first
from costmodel.language.nodes import (
    Array,
    Flat,
    Gather,
    Position,
    Ref,
    Select,
    polys_of,
    position_value,
    refs,
)
from costmodel.program.chosen_sizes import divisors, fit, raised
from costmodel.program.recurrences import blocks, loops
from costmodel.symbolic.at_sizes import nonzero
from costmodel.symbolic.constraints import (
    Constraints,
    implied,
    infeasible,
    outside,
    projected,
    variables_of,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Poly, axis_atom, is_index

ONE = Poly.of(1)
SMALL = (1, 2, 3, 4, 5)


def axes_of(array: Array) -> tuple[str, ...]:
    """The axis variables of an array."""
    return tuple(axis_atom(k) for k in range(len(array.shape)))


def region(
    array: Array, positions: Sequence[Position], constraints: Constraints, hidden: Sequence[str]
) -> Constraints | None:
    """The entries of an array at `positions`, while the indices satisfy the constraints, as
    constraints on the axes of the array; None if there are none. Along an axis with a gathered
    position, as in x[p[i]], every entry counts.

    Args:
        hidden: the indices to eliminate.

    Raises:
        Unsupported: the entries lie at a stride (every second row): no constraints describe them.
    """
    return _region(array.shape, tuple(positions), constraints, tuple(sorted(hidden, reverse=True)))


@lru_cache(maxsize=50_000)
def _region(
    shape: tuple[Poly, ...],
    positions: tuple[Position, ...],
    constraints: Constraints,
    hidden: tuple[str, ...],
) -> Constraints | None:
    """The entries at `positions` in an array of this shape, as constraints on its axes, with the
    indices `hidden` eliminated; None if there are none. Cached, for all arrays of one shape."""
    links: set[Poly] = set()
    for axis, position in enumerate(positions):
        entry, extent = Poly.atom(axis_atom(axis)), shape[axis]
        # a position that may be, or runs over, the whole axis
        if isinstance(position, Gather) or _is_whole(position, extent, constraints):
            links |= {entry - 1, extent - entry}
        else:
            value = position_value(position)
            links |= {entry - value, value - entry}
    joined = constraints | links
    return None if infeasible(joined) else projected(joined, hidden)


def _is_whole(position: Position, extent: Poly, constraints: Constraints) -> bool:
    """Whether a flattened position, (q - 1)*C + e, runs over its whole axis, of `extent` entries,
    independently of other indices. False for any other position."""
    if not isinstance(position, Flat):
        return False
    names = {a for a in position.outer.letters | position.inner.letters if is_index(a)}
    ends = {position.outer - 1, position.inner - 1, position.extent - position.inner}
    ends.add(extent / position.extent - position.outer)
    return ends == {c for c in constraints if c.letters & names}


@cache
def defined(equation: Equation) -> Constraints | None:
    """The entries that an equation defines, in the axes of its array: 2 <= #0 <= l of S[i + 1] for
    i in 1..l - 1; None if there are none. Raises Unsupported for entries at a stride."""
    hidden = [index.atom for index in equation.indices]
    return region(equation.array, equation.positions, equation.domain, hidden)


@cache
def whole(array: Array) -> Constraints:
    """The constraints on an array's axes that all its entries satisfy."""
    ends: set[Poly] = set()
    for axis, extent in enumerate(array.shape):
        entry = Poly.atom(axis_atom(axis))
        ends |= {entry - 1, extent - entry}
    return frozenset(ends)


@dataclass(frozen=True)
class Suspect:
    """Entries that an equation would read or define wrongly; at small sizes there are none.

    Attributes:
        number: how many there are, as a function of the sizes.
        words: the fault.
        place: sizes -> the first position outside an array, as the end of a message.
    """

    number: Exact
    words: str
    place: Callable[[Mapping[str, int]], str]


def check_at(system: System, sizes: Mapping[str, int]) -> None:
    """Raise EquationError if a form that `check_form` accepts reads or defines an entry wrongly at
    these sizes, such as y[k, a], k from 150 on, beside another equation of y, at l = 200. Arrays
    whose entries lie at a stride are not checked."""
    for equation, found in check_form(system):
        if found.number.letters <= sizes.keys() and nonzero(found.number.at(sizes)):
            with at_its_line(equation):
                raise EquationError(f"{found.words}{found.place(sizes)} (at {_at(sizes)})")


@cache
def check_form(system: System) -> tuple[tuple[Equation, Suspect], ...]:
    """Raise EquationError unless every entry that is read exists, every entry is defined at most
    once, every entry of the output is defined, selections have enough entries, and the output
    depends on every array, at small sizes. Arrays whose entries lie at a stride, and entries that
    one equation defines twice, are checked by enumeration. Returns (equation, entries that may be
    wrong at larger sizes), for `check_at`.

    Args:
        system: a form lowered without rewrites (`dense` reads outside arrays on purpose).
    """
    form = system.mixer.forms[system.form]
    for index in form.indices.values():
        if isinstance(index, UnionIndex) and not index.beside:
            with at_declaration(form, index):
                _check_union(system, index)
    strided: dict[Array, None] = {}
    suspects: list[tuple[Equation, Suspect]] = []

    def check_or_note(
        equation: Equation, array: Array, check: Callable[[], Iterator[Suspect]]
    ) -> None:
        """Carry out a check of an array, or note that its entries lie at a stride."""
        try:
            suspects.extend((equation, found) for found in check())
        except Unsupported:
            strided[array] = None

    for equation in system.equations:
        with at_its_line(equation):
            if equation.array.below is not None:
                assert isinstance(equation.value, Select)
                _check_selection(system, equation, equation.value)
            check_or_note(
                equation, equation.array, partial(_check_written_inside, system, equation)
            )
            _check_written_once(system, equation)
            for ref, over in refs(equation.value):
                check_or_note(
                    equation, ref.array, partial(_check_read, system, equation, ref, over)
                )
    for array, equations in system.defining.items():
        with at_its_line(equations[-1]):
            check_or_note(equations[-1], array, partial(_check_defined_once, system, equations))
            if array.role == "output":
                check_or_note(
                    equations[-1], array, partial(_check_defined_everywhere, system, array)
                )
    for array in strided:
        with at_its_line(system.defining.get(array, system.equations)[-1]):
            for sizes in _small(system):
                _check_by_enumeration(system, array, sizes)
    _check_all_needed(system)
    return tuple(suspects)


def check_order(system: System) -> None:
    """Raise EquationError if no order computes the equations: an entry depends on itself at small
    sizes, or an array is read before it is complete. A loop along whose rows no order is found,
    because its row axis is not recognised, passes if no entry depends on itself."""
    try:
        blocks(system)
    except Unsupported:
        for equations in loops(system):
            for sizes in _small(system):
                with at_its_line(equations[0]):
                    _check_no_circle(equations, sizes)


def _check_no_circle(equations: Sequence[Equation], sizes: Mapping[str, int]) -> None:
    """Raise EquationError if, at these sizes, an entry of the equations of a loop depends on
    itself: the reads of all instances are a graph of entries, whose first cycle the message shows.
    Gathered reads are left out."""
    needs: dict[tuple[Array, Entry], set[tuple[Array, Entry]]] = {}  # written -> what is read
    arrays = {equation.array for equation in equations}
    for equation in equations:
        reads = [
            (part, over)
            for part, over in refs(equation.value)
            if part.array in arrays and not _gathers(part)
        ]
        for part, over in reads:
            ranges = outer_first([*equation.indices, *over])
            # the positions written and read at each point, as one tuple that is cut below
            both = _entries((*equation.positions, *part.positions), ranges, sizes)
            axes = len(equation.positions)
            for entry in both:
                made, read = (equation.array, entry[:axes]), (part.array, entry[axes:])
                needs.setdefault(made, set()).add(read)
    order = TopologicalSorter(needs)
    try:
        order.prepare()
    except CycleError as error:
        circle = error.args[1]
        shown = [f"{array.name}[{', '.join(map(str, entry))}]" for array, entry in circle]
        where = _at(sizes)
        first, *others = reversed(shown)  # graphlib lists what is needed before what needs it
        chain = f"{first} needs {', which needs '.join(others)}"
        raise EquationError(
            f"no order of computation satisfies the equations: {chain} (for instance at {where})"
        ) from None


def _gathers(part: Ref) -> bool:
    return any(isinstance(position, Gather) for position in part.positions)


def _check_all_needed(system: System) -> None:
    """Raise EquationError unless the output depends on every array that is defined."""
    needed = {array for array in system.defining if array.role == "output"}
    while more := {a for e in system.equations if e.array in needed for a in _read(e)} - needed:
        needed |= more
    for equation in system.equations:
        if equation.array not in needed:
            with at_its_line(equation):
                raise EquationError(
                    f"{equation.part_of} is defined, but the output does not depend on it: remove "
                    f"or read {equation.part_of}"
                )


def _read(equation: Equation) -> frozenset[Array]:
    """The arrays that an equation reads, index arrays of its left-hand side included."""
    return equation.value.arrays | Ref(equation.array, equation.positions).arrays


def _check_union(system: System, index: UnionIndex) -> None:
    """Raise EquationError if, at small sizes and any values of the indices around it, two ranges of
    a union overlap or are not ascending. Pairs proven in order at all sizes are not tried."""
    for around in one_by_one(_outer(system, index)):
        known: Constraints = frozenset().union(*(outer.constraints for outer in around))
        for one, two in combinations(index.pieces, 2):
            later = Poly.atom(index.atom + " later")
            there = frozenset(c.substitute({index.atom: later}) for c in two.constraints)
            # no value of the later range is at most a value of the earlier one
            if infeasible(known | one.constraints | there | {index - later}):
                continue
            for sizes in _small(system):
                _check_ascending(index, [*around, one], two, sizes)


def _check_selection(system: System, equation: Equation, chosen: Select) -> None:
    """Raise EquationError unless, at small sizes, a selection (argmax, top-k, sort) has enough
    entries in each row, and selects positions that the index array may hold."""
    (over,), numbers = chosen.over, rank(equation)
    for sizes in _small(system):
        for point in _points(rows(equation), sizes):
            begin, end = _ends(over, point)
            first, last = (1, 1) if numbers is None else _ends(numbers, point)
            # the largest position that the array may hold may depend on the number of the position
            numbered = {**point, **({} if numbers is None else {numbers.atom: first})}
            wrong = _wrong_choice(equation, chosen.kind, (begin, end), (first, last), numbered)
            if wrong:
                where = _at(point)
                raise EquationError(f"{equation.name}: {wrong} (for instance at {where})")


def _wrong_choice(
    equation: Equation,
    kind: str,
    entries: tuple[int, int],
    numbers: tuple[int, int],
    point: Mapping[str, int],
) -> str:
    """The error, in words, of a selection in one row; "" if the selection is correct.

    Args:
        entries: the (first, last) position among which it selects.
        numbers: the (first, last) number of the positions that it keeps.
        point: the sizes and indices of the row, with the first of these numbers.
    """
    (begin, end), (first, final) = entries, numbers
    there, kept = end - begin + 1, final - first + 1
    if there < 1:
        return f"{kind} has nothing to choose from"
    last = equation.array.last(equation.positions)
    if begin < 1 or end > last.rational(point):
        return f"{kind} gives positions {begin}..{end}, but {equation.name} holds 1..{last}"
    if first != 1 or kept < 1:
        return f"{kind} keeps 1 position or more, numbered from 1; got {first}..{final}"
    if kind == "sort" and kept != there:
        return f"sort gives {there} positions, one for each entry; {kept} are defined"
    if kept > there:
        return f"{kind} keeps {kept} of {there} entries: bound the number by the min_ of the two"
    return ""


def _outer(system: System, index: Index) -> tuple[Index, ...]:
    """The indices in the bounds of an index, recursively, outermost first: (i,) for j in 1..i."""
    indices = system.mixer.forms[system.form].indices.values()
    found: tuple[Index, ...] = ()
    for other in indices:
        if any(other.atom in end.letters for end in index.ends):
            found += tuple(o for o in (*_outer(system, other), other) if o not in found)
    return found


def _check_ascending(
    index: UnionIndex, ranges: Sequence[Index], later: Index, sizes: Mapping[str, int]
) -> None:
    """Raise EquationError if, at some point of the nested `ranges` (the last of them a range of
    `index`), the range `later` contains the value of `index` or begins before it."""
    for point in _points(ranges, sizes):
        begin, end = _ends(later, point)
        if begin <= end and begin <= point[index.atom]:
            overlap = point[index.atom] <= end
            where = _at(point)
            words = "overlap" if overlap else "are not in ascending order"
            advice = "end one before the next begins" if overlap else "give the lower one first"
            raise EquationError(
                f"the ranges of index {index.name} {words} (for instance at {where}): {advice}"
            )


def _points(ranges: Sequence[Index], values: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield every point of ranges, outermost first, whose bounds may name sizes and outer indices:
    a dict of the `values` of sizes and a value of each index. The last index changes first."""
    if not ranges:
        yield dict(values)
        return
    low, up = _ends(ranges[0], values)
    for value in range(low, up + 1):
        yield from _points(ranges[1:], {**values, ranges[0].atom: value})


def _ends(index: Index, values: Mapping[str, int]) -> tuple[int, int]:
    """The first and the last value of an index; first > last if the range is empty."""
    low, up = ([bound.rational(values) for bound in ends] for ends in (index.lower, index.upper))
    return ceil(max(low)), floor(min(up))


def every_choice(system: System, ref: Ref) -> tuple[Ref, tuple[Index, ...]]:
    """(reference, indices): gathered positions are replaced by new indices, over all positions that
    the gather may select: x[p[i], a] by x[k, a], with `chosen 0` as k's name. A reference without a
    gather is returned with ()."""
    if not any(isinstance(position, Gather) for position in ref.positions):
        return ref, ()
    positions, over = list(ref.positions), []
    for axis, position in enumerate(positions):
        if isinstance(position, Gather):
            name = f"chosen {axis}"
            index = _selected_among(system, position.at, name)
            index = index or Index(name, (ONE,), (position.at.array.last(position.at.positions),))
            positions[axis] = position.named(index.as_poly())
            over.append(index)
    return Ref(ref.array, tuple(positions)), tuple(over)


def _selected_among(system: System, at: Ref, name: str) -> Index | None:
    """An index `name` over the positions among which the entry `at` of an index array was selected,
    1..i for the entry p[i, s] of a top-k over j in 1..i. None if only the bound `below` of the
    array is known: it is given, defined by several equations, or `at` leaves the range open."""
    (equation, *others) = system.defining.get(at.array, ()) or (None,)
    if equation is None or others or not isinstance(equation.value, Select):
        return None
    values: dict[str, Poly] = {}
    for position, there in zip(equation.positions, at.positions, strict=True):
        if isinstance(there, Gather):
            return None
        place = position_value(position)
        if len(place.variables) == 1 and place == Poly.atom(*place.variables):
            values[next(iter(place.variables))] = position_value(there)
    (over,) = equation.value.over
    if not variables_of(over.ends) <= values.keys():
        return None
    lower, upper = (tuple(b.substitute(values) for b in ends) for ends in (over.lower, over.upper))
    return Index(name, lower, upper)


def _shape(array: Array) -> str:
    return f"({', '.join(map(str, array.shape))})"


def _regions(equations: Sequence[Equation]) -> list[Constraints]:
    """The regions of entries that the equations define, those without entries left out."""
    return [found for e in equations if (found := defined(e)) is not None]


def _check_written_inside(system: System, equation: Equation) -> Iterator[Suspect]:
    """Raise EquationError if an equation defines an entry outside its array at a small size, and
    Unsupported for entries at a stride; yield regions that larger sizes may fill (`_refuse`)."""
    found = defined(equation)
    if found is not None:  # it defines an entry
        beyond = outside(found, [whole(equation.array)])
        words = f"{equation.name} is defined outside its extents {_shape(equation.array)}"
        place = partial(_beyond, Ref(equation.array, equation.positions), equation.indices)
        yield from _refuse(system, equation.array, beyond, words, place)


def _check_read(
    system: System, equation: Equation, ref: Ref, over: tuple[Index, ...]
) -> Iterator[Suspect]:
    """Raise EquationError unless every entry that a reference, in sums over the indices `over`,
    reads lies in its array and is defined, and every index array that it gathers by, p in x[p[i]],
    holds a position there; yield the regions that may break this at larger sizes (`_refuse`)."""
    around = equation.domain.union(*(index.constraints for index in over))
    hidden = [index.atom for index in (*equation.indices, *over)]
    for position, extent in zip(ref.positions, ref.array.shape, strict=True):
        if isinstance(position, Gather):
            at = position.at
            last = at.array.last(at.positions)
            ends = (position.inner - 1, position.extent - position.inner)
            if not all(implied(around, end) for end in ends):
                raise EquationError(
                    f"{equation.name} reads row {position.inner} of a block of {position.extent} "
                    f"rows of {ref.array.name}: give the row an index in 1..{position.extent}"
                )
            if not implied(around, extent - last * position.extent):
                raise EquationError(
                    f"{equation.name} gathers from {ref.array.name} at positions up to "
                    f"{last * position.extent}, beyond its axis of extent {extent}"
                )
            none = region(at.array, at.positions, around | {-last}, hidden)
            words = f"{equation.name} gathers at entries of {at.array.name} that hold no position"
            yield from _refuse(system, at.array, [none] if none else [], words)
    reached, among = every_choice(system, ref)
    around = around.union(*(index.constraints for index in among))
    hidden += [index.atom for index in among]
    found = region(ref.array, reached.positions, around, hidden)
    if found is None:
        return
    beyond = outside(found, [whole(ref.array)])
    words = f"{equation.name} reads {ref.array.name} outside its extents {_shape(ref.array)}"
    place = partial(_beyond, reached, (*equation.indices, *over, *among))
    yield from _refuse(system, ref.array, beyond, words, place)
    if ref.array in system.defining:
        missing = outside(found, _regions(system.defining[ref.array]))
        words = f"{equation.name} reads entries of {ref.array.name} that no equation defines"
        yield from _refuse(system, ref.array, missing, words)


def _check_written_once(system: System, equation: Equation) -> None:
    """Raise EquationError if, at one of the small sizes, an equation defines an entry at two points
    of its indices, as that of z[i + k] does; indices alone in a position need no trial."""
    alone = {part.variables for part in polys_of(equation.positions)}
    gathers = any(isinstance(position, Gather) for position in equation.positions)
    if gathers or all({index.atom} in alone for index in equation.indices):
        return  # a left side with a gather is refused by another check
    for sizes in _small(system):
        entries = [*_entries(equation.positions, equation.indices, sizes)]
        if len({*entries}) < len(entries):
            raise EquationError(
                f"the equation of {equation.name} defines one entry twice (for instance at "
                f"{_at(sizes)}): give each index a position of its own"
            )


def _check_defined_once(system: System, equations: Sequence[Equation]) -> Iterator[Suspect]:
    """Raise EquationError if two of the equations of one array define the same entry; yield the
    regions that two may define at larger sizes (`_refuse`). An equation that defines no entry at
    any size (`defined` is None) overlaps with none."""
    for one, two in combinations(equations, 2):
        regions = defined(one), defined(two)
        if regions[0] is not None and regions[1] is not None:
            both = regions[0] | regions[1]
            yield from _refuse(
                system, one.array, [both], f"two equations of {one.name} define one entry"
            )


def _check_defined_everywhere(system: System, array: Array) -> Iterator[Suspect]:
    """Raise EquationError unless equations define every entry of an array; yield the regions that
    may lack an equation at larger sizes (`_refuse`)."""
    missing = outside(whole(array), _regions(system.defining[array]))
    yield from _refuse(system, array, missing, f"{array.name} is not defined everywhere")


def _check_by_enumeration(system: System, array: Array, sizes: Mapping[str, int]) -> None:
    """Raise EquationError for the first entry of an array that, at these sizes, is read or defined
    wrongly; every entry is tried."""
    for words in _faults(system, array, sizes):
        raise EquationError(f"{words} (for instance at {_at(sizes)})")


def _faults(system: System, array: Array, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the faults of an array at some sizes, in words, by enumeration: an entry is defined
    outside the array or twice, an entry of the output is not defined, or an entry is read (by a
    gather: at any position that it may select) outside the array or that no equation defines."""
    shape = tuple(extent.at(sizes) for extent in array.shape)
    every = set(product(*(range(1, extent + 1) for extent in shape)))
    written: set[Entry] = set()
    for equation in system.defining.get(array, ()):
        for entry in _entries(equation.positions, equation.indices, sizes):
            if entry not in every:
                where = f"outside its extents {_shape(array)}"
                where += _beyond(Ref(array, equation.positions), equation.indices, sizes)
                yield f"{array.name} is defined {where}"
            elif entry in written:
                yield f"two equations of {array.name} define one entry"
            written.add(entry)
    if array.role == "output" and written != every:
        yield f"{array.name} is not defined everywhere"
    for equation in system.equations:
        for part, over in refs(equation.value):
            if part.array is array:
                ref, among = every_choice(system, part)
                around = outer_first([*equation.indices, *over, *among])
                for entry in _entries(ref.positions, around, sizes):
                    if entry not in every:
                        where = f"{array.name} outside its extents {_shape(array)}"
                        where += _beyond(ref, around, sizes)
                        yield f"{equation.name} reads {where}"
                    elif array in system.defining and entry not in written:
                        missing = f"entries of {array.name} that no equation defines"
                        yield f"{equation.name} reads {missing}"


Entry = tuple[int, ...]
"""The position of an entry on each axis of its array."""


def _entries(
    positions: Sequence[Position], ranges: Sequence[Index], sizes: Mapping[str, int]
) -> Iterator[Entry]:
    """Yield the entries at some positions, one for each point of nested ranges."""
    places = [position_value(position) for position in positions]
    for point in _points(ranges, sizes):
        yield tuple(int(place.rational(point)) for place in places)


def _at(point: Mapping[str, int]) -> str:
    """Sizes and indices with their values, for messages: "l = 3, i = 2"."""
    return ", ".join(f"{name.lstrip('@')} = {value}" for name, value in point.items())


POINTS_TRIED = 100_000
"""The points of nested ranges among which an example for a message is looked for."""


def _beyond(ref: Ref, ranges: Sequence[Index], sizes: Mapping[str, int]) -> str:
    """The first position of a reference that lies outside of its axis at some sizes, as the end of
    a message; "" if none of the first `POINTS_TRIED` points has one."""
    extents = [extent.at(sizes) for extent in ref.array.shape]
    for point in islice(_points(outer_first(ranges), sizes), POINTS_TRIED):
        for axis, (position, extent) in enumerate(zip(ref.positions, extents, strict=True), 1):
            index = position_value(position)
            place = index.rational(point)
            if not 1 <= place <= extent:
                return f": index {index} is {place} on axis {axis}, which holds 1..{extent}"
    return ""


def _refuse(
    system: System,
    array: Array,
    regions: Sequence[Constraints],
    words: str,
    place: Callable[[Mapping[str, int]], str] = lambda sizes: "",
) -> Iterator[Suspect]:
    """Raise EquationError if one of the regions contains an entry at one of the small sizes; yield
    the regions that may contain an entry at larger sizes. The message is `words`, `place(sizes)`
    and the sizes. A region whose number of entries has no formula passes: no fault is proven."""
    for found in regions:
        if infeasible(found):
            continue
        try:
            number = total(axes_of(array), found, ONE)
        except Unsupported:
            continue
        for sizes in _small(system):
            if number.at(sizes) > 0:
                where = _at(sizes)
                raise EquationError(f"{words}{place(sizes)} (for instance at {where})")
        yield Suspect(number, words, place)


def _small(system: System) -> tuple[dict[str, int], ...]:
    """Small sizes at which all extents of a form are whole: first the same value for all sizes,
    then different values."""
    return small_sizes(system.mixer, system.form)


@cache
def small_sizes(mixer: Mixer, form: str) -> tuple[dict[str, int], ...]:
    """At most ten choices of small sizes (letter -> value) for a form, multiplied so that extents
    such as d/n are whole: those at which a fault is looked for, and shown. Choices at which an
    extent of the form is still a fraction are left out."""
    tried = list(_tried(mixer.letters))
    for sizes in tried:
        for size, by in divisors(mixer, form).items():
            sizes[size] *= sizes[by] if sizes[size] % sizes[by] else 1
    tried = [raised(mixer, sizes, form) for sizes in tried]
    return tuple(sizes for sizes in tried if _fits(mixer, form, sizes))


def _fits(mixer: Mixer, form: str, sizes: Mapping[str, int]) -> bool:
    """Whether every extent of a form is whole at these sizes, and every quantity in
    `Mixer.powers_of_two` is a power of two."""
    try:
        fit(mixer, sizes, form)
    except SizeError:
        return False
    return True


def _tried(named: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield ten choices of sizes (letter -> value) from the five numbers `SMALL`: five choices with
    one value for all sizes, then five in which sizes beside each other in `named` have different
    values. d is multiplied by n."""
    letters = tuple(dict.fromkeys(["l", *named]))
    for shift in range(2 * len(SMALL)):
        step = 0 if shift < len(SMALL) else 1
        sizes = {x: SMALL[(shift + k * step) % len(SMALL)] for k, x in enumerate(letters)}
        if "n" in sizes and "d" in sizes:
            sizes["d"] *= sizes["n"]
        yield sizes
