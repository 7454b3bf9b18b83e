"""Row axes split into two: one axis for the chunk, one for the place within the chunk.

An array may be written or read at rows of chunks, `A[(q-1)*C + e, s]`. On one row axis, such
entries are not an affine region if another axis depends on the place (`s` in 1..e), or if only one
place of each chunk is used (`q*C`, the last row). On two axes, the region has plain bounds. An axis
can be split if each reference to the array has a position (q-1)*C + e there (a `Flat`, with chunk
number q and place e; or a `Gather` of the chunk number), or one index alone, which is then replaced
by two indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import TypeGuard, TypeVar

from costmodel.errors import EquationError, Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index, outer_first
from costmodel.language.nodes import (
    Array,
    Flat,
    Gather,
    Node,
    Position,
    Ref,
    names_in,
    polys_of,
    refs,
    substitute,
    walk,
    with_refs,
)
from costmodel.language.positions import chunk_of
from costmodel.program.chosen_sizes import is_extent
from costmodel.program.dependence import reads
from costmodel.program.recurrences import loops
from costmodel.program.wellformed import region
from costmodel.symbolic.constraints import Constraints, implied, projected
from costmodel.symbolic.polynomial import Fn, Poly, atom_name, axis_atom, call, ceil_div


def by_chunk_and_place(system: System) -> System:
    """The system with separate axes for chunk and place (a step of `lower`) in each intermediate
    array that has a reference to only some places of a chunk, S[q*C], or to places on which other
    positions depend, A[(q-1)*C + e, s] for s in 1..e."""
    arrays = [array for array in system.defining if array.role == "intermediate"]
    return _with_split_axes(system, arrays, lambda row_axis: not row_axis.whole_chunks)


def without_strides(system: System) -> System:
    """The system with separate axes for chunk and place in each intermediate array that has a
    reference to entries at a stride, such as the last row of each chunk, which no region on one
    axis describes. The results of a training step keep their axes."""
    results = system.results("training-step")
    arrays = [a for a in system.defining if a.role == "intermediate" and a not in results]
    return _with_split_axes(system, arrays, lambda row_axis: row_axis.at_a_stride)


@cache
def token_by_token(system: System) -> System:
    """The system for questions about one token: each row axis (an axis as long as the sequence, of
    inputs too) with a reference at a position (q-1)*C + e (chunk q, place e) is split in two. If
    one of these axes cannot be split, the system is returned unchanged."""
    length, found = system.inputs[0].shape[0], system

    def of_rows(row_axis: _RowAxis) -> bool:
        return row_axis.array.shape[row_axis.axis] == length

    # a split numbers further arrays by chunk and place, so that more axes can be split
    before = None
    while before is not found:
        arrays = [a for a in found.defining if a.role == "intermediate"]
        before = found
        found = _with_split_axes(found, [*reversed(arrays), *found.inputs], of_rows)
    left = (
        array.shape[axis]
        for equation in found.equations
        for array, axis in _axes_by_chunk(equation)
        if array.role in ("input", "intermediate")
    )
    return system if length in left else found


def row_number(system: System, array: Array) -> Poly:
    """The number of a row of an input, in the axes of the array: its first axis #0, or (#0 - 1)*C +
    #1 if the row axis of the input was split into chunks of C rows."""
    first, second = _axis(0), _axis(1)
    declared = array in system.mixer.inputs
    return first if declared else (first - 1) * array.shape[1] + second


def _axis(number: int) -> Poly:
    return Poly.atom(axis_atom(number))


def _with_split_axes(
    system: System, arrays: Sequence[Array], wanted: Callable[[_RowAxis], bool]
) -> System:
    """The system with one axis of each of these arrays split in two: the first axis that some
    reference numbers by chunk and place, that can be split, and for which `wanted` is True. An
    array without such an axis stays."""
    flat = frozenset[tuple[Array, int]]().union(*map(_axes_by_chunk, system.equations))
    for array in arrays:
        for axis in range(len(array.shape)):
            if (array, axis) in flat:
                row_axis = _RowAxis(system, array, axis)
                if row_axis.chunk is not None and wanted(row_axis):
                    system = row_axis.split
                    break
    return system


@dataclass(frozen=True)
class _RowAxis:
    """An axis of an array, with the positions on it that the equations write and read."""

    system: System
    array: Array
    axis: int

    @cached_property
    def entries(self) -> list[tuple[tuple[Position, ...], Equation]]:
        """(positions, equation) for each reference to the array, written or read."""
        return [
            (positions, equation)
            for equation in self.system.equations
            for array, positions in _places(equation)
            if array is self.array
        ]

    @cached_property
    def chunk(self) -> Poly | None:
        """The number of rows of a chunk. None if the axis cannot be split: references differ in
        this number, or a position is neither numbered by chunk and place nor one index alone, or
        is an index that numbers the rows of a loop, as g in y[g] = y[g - 1] + S[g] does."""
        found = [(positions[self.axis], equation) for positions, equation in self.entries]
        extents = {place.extent for place, _ in found if _by_chunk(place)}
        if len(extents) != 1 or any(
            not _by_chunk(place)
            and ((index := _lone_index(equation, place)) is None or self._in_turn(index, equation))
            for place, equation in found
        ):
            return None
        return extents.pop()

    def _in_turn(self, index: Index, equation: Equation) -> bool:
        """Whether an index numbers rows that a loop (S[i] = S[i-1] + x[i]) computes in turn: its
        `equation` reads an array of the loop at another row. False outside of loops."""
        loop = next((equations for equations in loops(self.system) if equation in equations), ())
        arrays = {one.array for one in loop}
        return any(
            ref.array in arrays and index.as_poly() not in ref.positions
            for ref, _ in refs(equation.value)
        )

    @property
    def whole_chunks(self) -> bool:
        """Whether each reference at a position (q-1)*C + e (chunk q, place e) runs over whole
        chunks, independently of its other positions."""
        return all(
            not _by_chunk(positions[self.axis])
            or _over_whole_chunks(equation, positions, self.axis, self.array.shape[self.axis])
            for positions, equation in self.entries
        )

    @property
    def at_a_stride(self) -> bool:
        """Whether some reference has entries at a stride, such as the last row of each chunk:
        `region` raises Unsupported, as no constraints on the axes of the array describe them."""
        for positions, around, names in self.regions:
            try:
                region(self.array, positions, around, names)
            except Unsupported:
                return True
        return False

    @property
    def regions(self) -> Iterator[tuple[tuple[Position, ...], Constraints, Sequence[str]]]:
        """Yield, for each reference that writes or reads the array, its positions, the constraints
        on the indices around it, and the names of these indices."""
        for equation in self.system.equations:
            if equation.array is self.array:
                yield equation.positions, equation.domain, [i.atom for i in equation.indices]
            for read in reads(equation):
                if read.ref.array is self.array:
                    names = [i.atom for i in (*equation.indices, *read.over)]
                    yield read.ref.positions, equation.domain | read.constraints, names

    @property
    def split(self) -> System:
        """The system with the axis split in two, the number of the chunk and the row in the chunk:
        A of shape (l, d), with A[(q-1)*C + e, s], becomes A of shape (l/C, C, d), with A[q, e, s];
        an index alone on the axis is replaced by two indices first. Where sizes may leave the last
        chunk incomplete, q ends at ceil(l/C), and `Array.rows` keeps (axis, l). Only for an axis
        that can be split."""
        array, axis, chunk = self.array, self.axis, self.chunk
        assert chunk is not None
        number = array.shape[axis] / chunk
        full = is_extent(self.system.mixer, self.system.form, number)  # all chunks are full
        ends = (number if full else ceil_div(array.shape[axis], chunk), chunk)
        shape = (*array.shape[:axis], *ends, *array.shape[axis + 1 :])
        two = replace(array, shape=shape, rows=None if full else (axis, array.shape[axis]))

        def places(positions: tuple[Position, ...]) -> tuple[Position, ...]:
            """Positions in the array, with q and e in place of (q-1)*C + e on the axis."""
            flat = positions[axis]
            assert _by_chunk(flat)  # an index alone was replaced before
            return (*positions[:axis], flat.outer, flat.inner, *positions[axis + 1 :])

        def entry(ref: Ref) -> Ref:
            return Ref(two, places(ref.positions)) if ref.array is array else ref

        def changed(equation: Equation) -> Equation:
            """The equation with `two` in place of the array, at two positions in place of one; an
            index alone on the axis (`lone`) is replaced by two indices first."""
            if array is not equation.whole and all(of is not array for of, _ in _places(equation)):
                return equation
            lone = {
                found.atom: found
                for of, positions in _places(equation)
                if of is array and (found := _lone_index(equation, positions[axis]))
            }
            for index in lone.values():
                equation = _with_chunk_index(equation, index, chunk, number if full else None)
            made = replace(equation, value=with_refs(equation.value, entry))
            if equation.array is array:
                made = replace(made, array=two, positions=places(equation.positions))
            return replace(made, whole=two) if equation.whole is array else made

        return self.system.with_equations({e: changed(e) for e in self.system.equations})


@cache
def _places(equation: Equation) -> Sequence[tuple[Array, tuple[Position, ...]]]:
    """The entries that an equation writes and reads, as (array, positions)."""
    read = ((ref.array, ref.positions) for ref, _ in refs(equation.value))
    return [(equation.array, equation.positions), *read]


@cache
def _axes_by_chunk(equation: Equation) -> frozenset[tuple[Array, int]]:
    """The axes that an equation numbers by chunk and place, as (array, axis)."""
    return frozenset(
        (array, axis)
        for array, positions in _places(equation)
        for axis, position in enumerate(positions)
        if _by_chunk(position)
    )


def _by_chunk(position: Position) -> TypeGuard[Flat | Gather]:
    """Whether a position is numbered by chunk and place; the chunk number may be gathered."""
    return isinstance(position, Flat) or (isinstance(position, Gather) and position.extent != 1)


def _lone_index(equation: Equation, place: Position) -> Index | None:
    """The free index of an equation that equals a position; None for any other position."""
    return next((i for i in equation.indices if i.as_poly() == place), None)


def _over_whole_chunks(
    equation: Equation, positions: Sequence[Position], axis: int, rows: Poly
) -> bool:
    """Whether the position (q-1)*C + e on `axis` (of `rows` rows) runs over all places e of each
    chunk q, while no other position, and no range of another position's index, uses q or e: then
    the entries are an affine region on one axis, and the axis need not be split. False for one
    place of each chunk (e a size or number); a gathered chunk may be read at a part of the range of
    its index e, as which entries these are depends on values anyway."""
    flat = positions[axis]
    named = {*names_in([flat])}  # q and e; of the other positions, `others` and their `bounds`
    others = {*names_in([*positions[:axis], *positions[axis + 1 :]])}
    ranges = {i.atom: i for i in equation.indices}
    ranges |= {i.atom: i for _, over in walk(equation.value) for i in over}
    bounds = {a for name in others & {*ranges} for end in ranges[name].ends for a in end.letters}
    assert _by_chunk(flat)  # the caller asks about such positions only
    if not flat.inner.variables or not named.isdisjoint(others | bounds):
        return False
    around: Constraints = frozenset().union(*(i.constraints for i in ranges.values()))
    own = frozenset(c for name in named for c in ranges[name].constraints if c.variables <= named)
    places = {flat.inner - 1, flat.extent - flat.inner}
    if isinstance(flat, Flat):
        # the ranges of the place must follow from 1 <= place <= C and from the end of the array
        inner = {c for c in own if not c.variables.isdisjoint(flat.inner.variables)}
        within = (own - inner) | places | {rows - flat.value}
        if not all(implied(frozenset(within), c) for c in inner):
            return False
    own |= places
    # the ranges of other indices must not restrict the indices of the position any further
    return all(implied(own, c) for c in projected(around, sorted({*ranges} - named, reverse=True)))


def with_chunks(equation: Equation, row: Position | None = None) -> Equation:
    """The equation; if a row index i occurs in a chunk number, y[i] = S[(i - 1)//C + 1], with i
    replaced by two indices: y[(q - 1)*C + e] = S[q]. A chunk number is then affine. The row of a
    loop, y[i] = y[i - 1] + S[(i - 1)//C + 1], stays one index: i in (q - 1)*C + 1..q*C of chunk q.

    Args:
        row: the row that an equation of a loop defines; None for other equations.

    Raises:
        EquationError: (i - 1)//C occurs for a reduction index i.
    """
    for atom in _functions(equation):
        if (found := chunk_of(atom)) is None:
            continue
        name, chunk = found
        index = next((i for i in equation.indices if i.atom == name), None)
        if index is None:
            raise EquationError(
                f"{equation.part_of} reads the chunk number of {atom_name(name)}, which is no "
                "index of the left side: write rows as (q - 1)*C + e, chunk q and place e"
            )
        split = _beside_chunk_index if row == index.as_poly() else _with_chunk_index
        return with_chunks(split(equation, index, chunk), row)
    return equation


def _beside_chunk_index(equation: Equation, index: Index, chunk: Poly) -> Equation:
    """The equation with a free index q beside a free index i, for its chunk number in chunks of
    `chunk` rows: q - 1 for (i - 1)//C, and i runs over the rows (q - 1)*C + 1..q*C of its range."""
    last = min(index.upper, key=lambda end: len(end.variables))
    first = tuple((low - 1) // chunk + 1 for low in index.lower if not low.variables)
    chunks = Index(f"{index.name}_chunk", first or (Poly.of(1),), ((last - 1) // chunk + 1,))
    q = chunks.as_poly()
    lower, upper = (*index.lower, (q - 1) * chunk + 1), (*index.upper, q * chunk)
    rounded = (index.as_poly() - 1) // chunk  # for a number, (i + 15)//16 - 1
    (atom,) = (atom for atom in rounded.atoms if isinstance(atom, Fn))
    values: dict[str, Poly] = {atom: q - 1 + Poly.atom(atom) - rounded}
    others = [substitute(i, values) for i in equation.indices if i is not index]
    return replace(
        equation,
        positions=tuple(substitute(position, values) for position in equation.positions),
        value=substitute(equation.value, values),
        indices=tuple(outer_first([chunks, replace(index, lower=lower, upper=upper), *others])),
    )


def at_each_remainder(equation: Equation) -> list[Equation]:
    """The equation alone; or, if floor((a*q + b)/C) with a number C occurs and is not the chunk
    number of the free index q, an equation for each remainder of q modulo C, in which the quotient
    is affine: for floor((3*q - 1)/5), one with q = 5*(s - 1) + p for each p in 1..5."""
    for atom in _functions(equation):
        index = next((i for i in equation.indices if {i.atom} == Poly.atom(atom).variables), None)
        if chunk_of(atom) or atom.function != "floor_div" or index is None:
            continue
        chunk = atom.args[1]
        if not isinstance(number := chunk.constant(), int):
            continue
        split = _with_chunk_index(equation, index, chunk)
        place = next(i for i in split.indices if i.atom == f"{index.atom}_place")
        rounded = [a for a in _functions(split) if Poly.atom(a).variables == {place.atom}]
        made = []
        for p in map(Poly.of, range(1, number + 1)):
            at: dict[str, Poly] = {a: Poly.atom(a).substitute({place.atom: p}) for a in rounded}
            one = replace(place, lower=(p,), upper=(p, *place.upper))
            made.append(
                replace(
                    split,
                    positions=tuple(substitute(each, at) for each in split.positions),
                    value=substitute(split.value, at),
                    indices=tuple(one if i is place else substitute(i, at) for i in split.indices),
                )
            )
        return [each for one in made for each in at_each_remainder(one)]
    return [equation]


def reads_chunk_number(equation: Equation) -> bool:
    """Whether an equation reads the chunk number of an index, such as (i - 1)//C."""
    return any(map(chunk_of, _functions(equation)))


@lru_cache(maxsize=1024)
def _functions(equation: Equation) -> Sequence[Fn]:
    """The functions of indices, such as (i - 1)//C, in an equation's positions, the bounds of its
    indices, and the polynomials of its nodes."""
    indices = [*equation.indices, *(i for _, over in walk(equation.value) for i in over)]
    polys = [*polys_of(equation.positions), *(end for index in indices for end in index.ends)]
    polys += [poly for node, _ in walk(equation.value) for poly in polys_of(node)]
    found = {a for poly in polys for a in poly.atoms if isinstance(a, Fn)}
    return sorted(a for a in found if Poly.atom(a).variables)


def _with_chunk_index(
    equation: Equation, index: Index, chunk: Poly, number: Poly | None = None
) -> Equation:
    """The equation with a free index i replaced by a chunk index q and a place index e, with i =
    (q - 1)*C + e for chunks of C = `chunk` rows. `number` is the number of chunks if all chunks are
    full; None if the last chunk may be incomplete."""
    chunks, places = _chunk_and_place(index, chunk, number)
    q, e = chunks.as_poly(), places.as_poly()
    before = (q - 1) * chunk
    values = {index.atom: before + e}
    # (e - 1)//C is 0 for a place e in 1..C: what is left of (i - 1)//C is q - 1
    zero = call("floor_div", e - 1, chunk)
    none: dict[str, Poly] = {
        atom: Poly.atom(atom) - zero for atom in zero.atoms if isinstance(atom, Fn)
    }

    def put(part: P) -> P:
        return substitute(substitute(part, values), none)

    def place(position: Position) -> Position:
        """A position with q and e for i; as a `Flat` if it is row e, 1 or C of chunk q."""
        moved = put(position)
        rest = None if isinstance(moved, Flat | Gather) else moved - before
        return Flat(q, rest, chunk) if rest in (e, Poly.of(1), chunk) else moved

    def entry(ref: Ref) -> Ref:
        return Ref(ref.array, tuple(map(place, ref.positions)))

    others = [put(i) for i in equation.indices if i is not index]
    return replace(
        equation,
        positions=tuple(map(place, equation.positions)),
        value=put(with_refs(equation.value, entry)),
        indices=tuple(outer_first([chunks, places, *others])),
    )


def _chunk_and_place(index: Index, chunk: Poly, number: Poly | None) -> tuple[Index, Index]:
    """The indices q and e of `_with_chunk_index`. For i in 1..l, q in 1..l/C and e in 1..C with the
    `number` l/C; with None, q in 1..l//C + 1 and e in 1..min(C, l - (q - 1)*C), so that chunk l//C
    + 1 has no place where C divides l."""
    # the upper bound in sizes gives the last chunk; bounds with other indices limit the place
    last = min(index.upper, key=lambda end: len(end.variables))
    first = tuple((low - 1) // chunk + 1 for low in index.lower if not low.variables)
    ends = (number or last // chunk + 1,)
    chunks = Index(f"{index.name}_chunk", first or (Poly.of(1),), ends)
    before = (chunks.as_poly() - 1) * chunk
    # bounds that limit no place in these chunks are left out: a lower bound that is the first row
    # of a chunk, and an upper bound that is the last row of the last chunk
    lows = [low - before for low in index.lower if low - 1 not in [(o - 1) * chunk for o in first]]
    highs = [end - before for end in index.upper if end / chunk != number]
    return chunks, Index(f"{index.name}_place", (Poly.of(1), *lows), (chunk, *highs))


P = TypeVar("P", Position, Node, Index)
