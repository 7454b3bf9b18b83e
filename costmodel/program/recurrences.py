"""Loops: the strongly connected components of equations, and the axis along which each loop runs.

Within a loop every reference reads the row before (`S[i-1]`), rows further back (`S[i-C]`, a sum
over all earlier rows), or an array of the same row that is written earlier. The row axis of each
array is derived from the references, never declared. A loop runs upward, or downward if rows depend
on later rows (`S[i+1]`, as in gradients). The *lag* of a reference is the row written minus the row
read: 1 for `S[i-1]`, 0 for the same row.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property

from costmodel.errors import EquationError, Unsupported
from costmodel.language.equations import Equation, System, told_at
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Flat, Gather, Position, Ref, refs, substitute, with_refs
from costmodel.symbolic.constraints import Constraints, implied, infeasible
from costmodel.symbolic.polynomial import Poly, is_index


@dataclass(frozen=True, eq=False)
class Block:
    """The equations of one strongly connected component: a loop over rows, or, if they read none of
    their own arrays, the equations of one array."""

    equations: tuple[Equation, ...]
    axes: Mapping[Array, int]
    """The row axis of each array; empty for a block that is not a loop."""
    step: int = 1
    """1 if rows depend on earlier rows, -1 if they depend on later rows."""

    @cached_property
    def last_rows(self) -> Mapping[Array, Poly]:
        """The last row of each array that the loop computes ({} outside of loops): the extent of
        the row axis, or less if the bounds of indices prove that no equation goes further."""
        extents = {array: array.shape[axis] for array, axis in self.axes.items()}
        if len({*extents.values()}) == 1:
            ends = [_ends(self.row(equation), equation) for equation in self.equations]
            lone = [end[0] for end in ends if len(end) == 1]
            last = next((x for x in lone if all(_reaches(x, other) for other in ends)), None)
            if last is not None:
                return dict.fromkeys(extents, last)
        return extents

    @property
    def is_loop(self) -> bool:
        """Whether rows are computed one after another."""
        return bool(self.axes)

    def rows(self, sizes: Mapping[str, int]) -> int:
        """The largest extent of a row axis of the loop at given sizes; 0 if the block is no
        loop."""
        return max((array.shape[axis].at(sizes) for array, axis in self.axes.items()), default=0)

    def row(self, equation: Equation) -> Poly:
        """The row that an equation of the loop defines, in its free indices."""
        return _row(self.axes, equation)

    def lag(self, equation: Equation, ref: Ref) -> int | None:
        """The number of steps of the loop between the row read and the row written: 0, 1, or 2
        (`FURTHER`) for rows further back; a downward loop counts downward. None if the reference
        reads an array of another block."""
        if ref.array not in self.axes:
            return None
        lag = _lag(self.axes, equation, ref)
        assert lag is not None  # row axes are chosen such that every lag is known
        return lag * self.step

    @cached_property
    def reach(self) -> int:
        """The largest lag (steps back in the loop) of any reference; 0 if the block is no loop."""
        lags = (
            self.lag(equation, ref) for equation in self.equations for ref in references(equation)
        )
        return max((lag for lag in lags if lag is not None), default=0)


@cache
def blocks(system: System) -> tuple[Block, ...]:
    """The blocks of a system (the equations of one array, or of one loop) in topological order.
    Blocks that do not depend on each other are in the order of the file; the last equation of a
    block gives its place there.

    Raises:
        EquationError: an array is read before it is complete, or defined at gathered positions.
        Unsupported: circular equations that no order of rows can satisfy.
    """
    found = [_block(system, arrays) for arrays in _components(system)]
    order = {equation: k for k, equation in enumerate(system.equations)}
    found.sort(key=lambda block: max(order[equation] for equation in block.equations))
    _check_order(system, found)
    return tuple(_after_what_is_read(found))


def _after_what_is_read(found: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks in topological order: always the first whose arrays to read are complete."""
    waiting = list(found)
    while waiting:
        missing = {equation.array for block in waiting for equation in block.equations}
        block = next(b for b in waiting if missing.isdisjoint(_read_by(b)))
        waiting.remove(block)
        yield block


def _read_by(block: Block) -> set[Array]:
    """The arrays of other blocks that a block reads."""
    own = {equation.array for equation in block.equations}
    return {ref.array for equation in block.equations for ref in references(equation)} - own


def references(equation: Equation) -> Iterator[Ref]:
    """Every reference on the right-hand side of an equation."""
    return (ref for ref, _ in refs(equation.value))


def _components(system: System) -> list[list[Array]]:
    """The strongly connected components of the arrays that equations define, in the order of their
    first definitions: arrays that depend on each other, directly or through others, are
    together."""
    needs: dict[Array, set[Array]] = {
        array: {r.array for e in equations for r in references(e) if r.array in system.defining}
        for array, equations in system.defining.items()
    }
    for between in needs:  # Warshall's transitive closure: which arrays each array depends on
        for found in needs.values():
            if between in found:
                found |= needs[between]
    parts: list[list[Array]] = []
    for array in system.defining:
        for part in parts:
            if part[0] in needs[array] and array in needs[part[0]]:
                part.append(array)
                break
        else:
            parts.append([array])
    return parts


def in_order(system: System) -> tuple[Equation, ...]:
    """The equations in topological order, for equations that gradients make in no order: always
    those of the first component (arrays that depend on each other) all of whose other reads are
    complete, in the order of the system."""
    waiting = _components(system)
    found: list[Equation] = []
    done: set[Array] = set()
    while waiting:
        ready = next(
            part
            for part in waiting
            if all(
                ref.array in done or ref.array in part or ref.array not in system.defining
                for array in part
                for equation in system.defining[array]
                for ref in references(equation)
            )
        )
        waiting.remove(ready)
        done |= {*ready}
        found += [equation for equation in system.equations if equation.array in ready]
    return tuple(found)


def loops(system: System) -> Iterator[tuple[Equation, ...]]:
    """Yield the equations of each strongly connected component whose equations read its arrays."""
    for arrays in _components(system):
        equations = tuple(e for e in system.equations if e.array in arrays)
        if any(ref.array in arrays for e in equations for ref in references(e)):
            yield equations


@cache
def recurrent(system: System) -> frozenset[Array]:
    """The arrays of loops, such as S in S[i] = S[i-1] + x[i]: in one-token
    inference, their kept entries are a state, and those of other arrays a cache."""
    return frozenset(equation.array for loop in loops(system) for equation in loop)


def row_axes(system: System) -> Mapping[Array, int]:
    """Array -> its axis of rows, for the arrays of each loop that has an order of rows."""
    found: dict[Array, int] = {}
    for arrays in _components(system):
        with suppress(Unsupported):
            found |= _block(system, arrays).axes
    return found


def _block(system: System, arrays: Sequence[Array]) -> Block:
    """The block (equations, row axis of each array, direction) of a strongly connected component;
    no row axes if it is no loop. Row axes with lags (steps back) 0 and 1 come before row axes with
    larger lags, and upward loops before downward ones; the first choice that works counts. Raises
    Unsupported: no choice works."""
    equations = tuple(e for e in system.equations if e.array in arrays)
    inside = [(e, r) for e in equations for r in references(e) if r.array in arrays]
    if not inside:
        return Block(equations, {})
    for reach in (1, FURTHER):
        for step in (1, -1):
            for axes in _axes(arrays, inside, equations, {step * k for k in range(reach + 1)}):
                if _order_exists(axes, inside, equations):
                    return Block(equations, axes, step)
    names = ", ".join(a.name for a in arrays)
    said = (
        f"{names} {'needs itself' if len(arrays) == 1 else 'need each other'}: a recurrence "
        "reads earlier rows, such as index i-1 of one axis, or the same row of an array written "
        "earlier"
    )
    raise told_at(Unsupported(said), equations[0])


def _axes(
    arrays: Sequence[Array],
    inside: Sequence[tuple[Equation, Ref]],
    equations: Sequence[Equation],
    lags: Container[int | None],
) -> Iterator[Mapping[Array, int]]:
    """Yield the choices of one row axis per array, as array -> axis, under which the lag (row
    written minus row read) of each reference `inside` the loop is in `lags`, and no equation writes
    at a flattened row, (q - 1)*C + e, or a gathered one, p[i]. S[j, r] = 2*S[j, r - 1] and lags {0,
    1} give {S: 0}, of lag 0, which `_order_exists` refuses, then {S: 1}."""

    def fits(axes: Mapping[Array, int]) -> bool:
        """Whether the arrays with a chosen axis meet these conditions."""
        plain = all(
            not isinstance(e.positions[axes[e.array]], (Flat, Gather))
            for e in equations
            if e.array in axes
        )
        return plain and all(
            _lag(axes, e, ref) in lags for e, ref in inside if e.array in axes and ref.array in axes
        )

    def chosen(
        axes: Mapping[Array, int], waiting: Sequence[Array]
    ) -> Iterator[Mapping[Array, int]]:
        """Yield each choice that extends `axes` by an axis of each array `waiting` and fits."""
        if not waiting:
            yield axes
            return
        for axis in range(len(waiting[0].shape)):
            more = {**axes, waiting[0]: axis}
            if fits(more):
                yield from chosen(more, waiting[1:])

    yield from chosen({}, _neighbours_first(arrays, inside))


def _neighbours_first(
    arrays: Sequence[Array], inside: Sequence[tuple[Equation, Ref]]
) -> list[Array]:
    """The arrays of a loop in an order such that each array reads an earlier one in the list, or is
    read by it: `_axes`, which chooses axes in this order, then refuses a wrong choice early."""
    found, waiting = [arrays[0]], list(arrays[1:])
    pairs = {(e.array, ref.array) for e, ref in inside}
    while waiting:
        near = next(a for a in waiting if any((a, b) in pairs or (b, a) in pairs for b in found))
        found.append(near)
        waiting.remove(near)
    return found


FURTHER = 2
"""The lag of a reference to rows further back: never 0, and not always 1."""


def _lag(axes: Mapping[Array, int], equation: Equation, ref: Ref) -> int | None:
    """The row written minus the row read of a reference in a loop: 0, 1, -1, `FURTHER` (2 or more,
    or 1 or more where the distance varies) or -`FURTHER`. None if the sign varies or is unknown, as
    for a flattened row, (q - 1)*C + e, or a gathered one, p[i]. `axes`: array -> its row axis."""
    here, there = equation.positions[axes[equation.array]], ref.positions[axes[ref.array]]
    if isinstance(here, (Flat, Gather)) or isinstance(there, (Flat, Gather)):
        return None
    if isinstance(back := (here - there).constant(), int):
        return max(-FURTHER, min(FURTHER, back))
    lags = {
        _proven_lag(equation.domain.union(*(index.constraints for index in over)), here - there)
        for found, over in refs(equation.value)
        if found == ref
    }
    return lags.pop() if len(lags) == 1 else None


def _proven_lag(known: Constraints, back: Poly) -> int | None:
    """The lag that is proven, from the constraints `known`, for a distance `back` in rows: 0, 1,
    -1, or `FURTHER` or -`FURTHER` for a varying distance of 1 or more; None if nothing is
    proven."""
    for lag in (0, 1, -1):
        if implied(known, back - lag) and implied(known, lag - back):
            return lag
    return next((k * FURTHER for k in (1, -1) if implied(known, k * back - 1)), None)


def _order_exists(
    axes: Mapping[Array, int], inside: Sequence[tuple[Equation, Ref]], equations: Sequence[Equation]
) -> bool:
    """Whether a choice of row axes (array -> axis) works: each entry that a reference of `inside`
    reads in its own row (lag 0) is written by an earlier equation of the list."""
    order = {equation: k for k, equation in enumerate(equations)}
    for reader, ref in inside:
        if _lag(axes, reader, ref) != 0:
            continue
        for other in equations:
            late = other.array is ref.array and order[other] >= order[reader]
            if late and _share_a_row(axes, reader, other):
                return False
    return True


def _share_a_row(axes: Mapping[Array, int], one: Equation, two: Equation) -> bool:
    """Whether two equations of a loop may define entries of the same row, for row axes `axes`
    (array -> axis): True unless it is proven that they do not, as S[1] and S[i + 1] for i >= 1."""
    renamed = {index.atom: Poly.atom(index.atom + "'") for index in two.indices}
    apart = _row(axes, one) - _row(axes, two).substitute(renamed)
    other = frozenset(c.substitute(renamed) for c in two.domain)
    return not infeasible(one.domain | other | {apart, -apart})


def _row(axes: Mapping[Array, int], equation: Equation) -> Poly:
    """The position on the row axis that an equation defines: i + 1 for S[i + 1, d], axis 0."""
    return _plain(equation.positions[axes[equation.array]])


def _ends(row: Poly, equation: Equation) -> tuple[Poly, ...]:
    """Upper bounds, in sizes, of the rows that an equation defines; the smallest is the last row:
    (l, C + 1) for S[i + 1] with i up to l - 1 and up to C. () if a bound depends on another index,
    the row on several indices, or its index has another coefficient than 1, as in S[2*i]."""
    if not row.variables:
        return (row,)
    index = next((i for i in equation.indices if {i.atom} == row.variables), None)
    if index is None or row.coefficient(index.atom) != 1:
        return ()
    ends = tuple(row.substitute({index.atom: end}) for end in index.upper)
    return () if any(end.variables for end in ends) else ends


def _reaches(last: Poly, ends: Sequence[Poly]) -> bool:
    """Whether one of the bounds `ends` is proven to be at most `last`."""
    return any(implied(frozenset(), last - end) for end in ends)


def _plain(position: Position) -> Poly:
    assert not isinstance(position, (Flat, Gather))
    return position


def _check_order(system: System, found: Sequence[Block]) -> None:
    """Raise EquationError if an equation defines entries at gathered positions, such as y[p[i]], or
    reads an array, other than those of its own loop, that no equation defines or that a later
    equation completes. `found`: the system's blocks."""
    block_of = {e: block for block in found for e in block.equations}
    order = {e: k for k, e in enumerate(system.equations)}
    last = {array: order[es[-1]] for array, es in system.defining.items()}
    given = ("input", "context", "parameter", "buffer")
    for equation in system.equations:
        for position in equation.positions:
            if isinstance(position, Gather):
                said = (
                    f"{equation.name} is defined at positions from the table "
                    f"{position.at.array.name}: define all entries at indices, and gather where "
                    "they are read"
                )
                raise told_at(EquationError(said), equation)
        for ref in references(equation):
            if ref.array.role in given or ref.array in block_of[equation].axes:
                continue
            if ref.array not in last:
                said = f"{equation.name} reads {ref.array.name}, which no equation defines"
                raise told_at(EquationError(said), equation)
            if last[ref.array] > order[equation]:
                said = (
                    f"{equation.name} reads {ref.array.name} before it is complete; write "
                    f"equations in the order of computation"
                )
                raise told_at(EquationError(said), equation)


@cache
def ascending(system: System) -> System:
    """The system with every loop running upward, as the rules for depth need: row r of an array of
    a downward loop, such as that of a gradient, becomes row last + 1 - r, last the array's last."""
    turned = {
        array: (axis, block.last_rows[array])
        for block in blocks(system)
        if block.step < 0
        for array, axis in block.axes.items()
    }
    if not turned:
        return system
    return system.with_equations({e: _turned(turned, e) for e in system.equations})


def _turned(turned: Mapping[Array, tuple[int, Poly]], equation: Equation) -> Equation:
    """The equation with row r of each array in `turned` renumbered as last + 1 - r, both where the
    equation defines the array and where it reads the array.

    Args:
        turned: array -> (its row axis, its last row).
    """
    values: dict[str, Poly] = {}
    if equation.array in turned:
        axis, last = turned[equation.array]
        row = _plain(equation.positions[axis])
        values = {a: last + 1 - Poly.atom(a) for a in row.letters if is_index(a)}

    def place(array: Array, positions: tuple[Position, ...]) -> tuple[Position, ...]:
        """The positions, with last + 1 - r for the row r of an array in `turned`."""
        if array not in turned:
            return positions
        axis, last = turned[array]
        row = last + 1 - _plain(positions[axis])
        return (*positions[:axis], row, *positions[axis + 1 :])

    def entry(ref: Ref) -> Ref:
        return Ref(ref.array, place(ref.array, ref.positions))

    def index(of: Index) -> Index:
        """An index with its range reversed if it counts the rows of a turned array."""
        if of.atom not in values:
            return substitute(of, values)
        end = values[of.atom] + of  # last + 1: i in lower..upper becomes last + 1 - i
        return Index(of.name, tuple(end - b for b in of.upper), tuple(end - b for b in of.lower))

    return replace(
        equation,
        positions=place(equation.array, substitute(equation.positions, values)),
        value=with_refs(substitute(equation.value, values), entry),
        indices=tuple(map(index, equation.indices)),
    )
