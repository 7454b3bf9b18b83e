"""What is the longest chain to some entries of an array: to a region, or to a row of a loop?

Rows of a loop are a block of steps, repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from costmodel.constraints import Constraints, Unsupported, implied, infeasible, variables_of
from costmodel.equations import Equation
from costmodel.expressions import Array, Gather, Ref, position_value
from costmodel.loops import Block, references
from costmodel.phases import Instances
from costmodel.polynomial import Poly
from costmodel.projections import projected
from costmodel.rules.chain_search import Loop, Search
from costmodel.rules.chains import Chain, Repeat
from costmodel.rules.levels import MOST, largest
from costmodel.rules.loop_rows import first_row, later_row
from costmodel.wellformed import region, whole


def entries(search: Search, node: Ref, around: Constraints) -> Chain:
    """The longest chain to the entries that a reference reads: of a loop to the last row among
    them, of another array to those in their region, where entries differ."""
    array = node.array
    if search.alike or array in search.open:
        return search.arrays[array]
    levels = search.steps.arrays.get(array, ())
    axes = variables_of([c for level in levels for c in (level.depth, *level.where)])
    loop = search.loops.get(array)
    if loop is None:
        return _in_region(search, node, around) if axes else search.arrays[array]
    axis = loop.block.axes[array]
    position = node.positions[axis]
    if axes != {f"#{axis}"} or isinstance(position, Gather):
        return search.arrays[array]
    last = largest(position_value(position), sorted(variables_of(around), reverse=True), around)
    if (array, last) not in search.at_row:
        search.at_row[array, last] = _row_of_loop(search, loop, last).get(array, Chain())
    return search.at_row[array, last]


def _in_region(search: Search, node: Ref, around: Constraints) -> Chain:
    """The longest chain to the entries that a reference reads while its indices run."""
    array, hidden = node.array, sorted(variables_of(around), reverse=True)
    try:
        read = region(array, node.positions, around, hidden)
    except Unsupported:  # a region with gaps
        return search.arrays[array]
    where = frozenset(c for c in read or () if not implied(whole(array), c))
    if not where:
        return search.arrays[array]
    if (array, where) not in search.in_region:
        parts = _at_entries(search, search.parts[array], where)
        search.in_region[array, where] = _row_alone(search, parts, {}).get(array, Chain())
    return search.in_region[array, where]


def exists_at(part: Instances, sizes: Mapping[str, int]) -> bool:
    """Whether an equation has any point at these sizes."""
    conditions = projected(part.constraints, reversed(part.variables))
    return all(condition.rational(sizes) >= 0 for condition in conditions)


def to_arrays(search: Search, parts: Sequence[Instances]) -> dict[Array, Chain]:
    """The longest chain to each array that some instances define."""
    found: dict[Array, Chain] = {}
    written: set[object] = set()
    for part in parts:
        array, alike = part.equation.array, part.equation.written
        chain = search.chain(part.equation.value, part, part.constraints)
        if array in found:
            chain = search.longer(found[array], chain, alike=alike in written)
        search.arrays[array] = found[array] = chain
        written.add(alike)
    return found


def _row_alone(
    search: Search, parts: Sequence[Instances], before: Mapping[tuple[Equation, Ref], Chain]
) -> dict[Array, Chain]:
    """The longest chains to the entries of some rows, other rows left as they are."""
    arrays, going_on, opened = dict(search.arrays), dict(search.before), set(search.open)
    search.before.update(before)
    search.open.update(part.equation.array for part in parts)
    found = to_arrays(search, parts)
    for live, kept in ((search.arrays, arrays), (search.before, going_on)):
        live.clear()
        live.update(kept)  # type: ignore[arg-type]
    search.open.clear()
    search.open.update(opened)
    return found


def _of_row(search: Search, parts: Sequence[Instances], axis: int, row: Poly) -> list[Instances]:
    """The instances that define one row of an axis."""
    here = Poly.atom(f"#{axis}") - row
    return _at_entries(search, parts, frozenset({here, -here}))


def _at_entries(
    search: Search, parts: Sequence[Instances], entries: Constraints
) -> list[Instances]:
    """The instances that define some entries, given in the axes of the array."""
    found = []
    for part in parts:
        at = {f"#{k}": position_value(p) for k, p in enumerate(part.equation.positions)}
        here = frozenset(c.substitute(at) for c in entries)
        fixed = replace(part, constraints=part.constraints | here)
        exists = search.sizes is None or exists_at(fixed, dict(search.sizes))
        if exists and not infeasible(fixed.constraints):
            found.append(fixed)
    return found


def through_loop(search: Search, block: Block, parts: Sequence[Instances]) -> Mapping[Array, Chain]:
    """The longest chains to the last row of a loop.

    Rows are worked out until each goes on from the same arrays by the same steps as the one before;
    the rows between are a block that is repeated.
    """
    first = [part for part in map(partial(first_row, block), parts) if part]
    later = [part for part in map(partial(later_row, block), parts) if part]
    loop = Loop(block, later, [_row_alone(search, first, {})])
    number = max(_value(search, row) or MOST for row in block.last_rows.values())
    while len(loop.rows) < min(MOST, number):
        loop.rows.append(_next_row(search, loop, Poly.of(len(loop.rows) + 1), loop.rows[-1]))
    if number >= MOST and _steps(loop.rows[-1]) != _steps(loop.rows[-2]):
        raise Unsupported("the longest chain through the rows of a loop changes from row to row")
    search.loops.update(dict.fromkeys(block.axes, loop))
    lasts = block.last_rows
    rows = {row: _row_of_loop(search, loop, row) for row in dict.fromkeys(lasts.values())}
    return {array: rows[row].get(array, Chain()) for array, row in lasts.items()}


def _value(search: Search, row: Poly) -> int | None:
    """The number of a row; None where it depends on sizes that are not given."""
    if search.sizes is not None:
        return row.at(dict(search.sizes))
    number = row.constant()
    return number if isinstance(number, int) else None


def _next_row(
    search: Search, loop: Loop, row: Poly, before: Mapping[Array, Chain]
) -> Mapping[Array, Chain]:
    """The chains to a row, each as far as it goes on from the row before."""
    fixed = [
        part
        for array, axis in loop.block.axes.items()
        for part in _of_row(search, [p for p in loop.later if p.equation.array is array], axis, row)
    ]
    order = {equation: k for k, equation in enumerate(loop.block.equations)}
    fixed.sort(key=lambda part: order[part.equation])
    return _row_alone(search, fixed, _going_on(loop.block, before))


def _row_of_loop(search: Search, loop: Loop, row: Poly) -> Mapping[Array, Chain]:
    """The longest chains to a row of a loop."""
    number = _value(search, row)
    if number is not None and number <= len(loop.rows):
        worked_out = loop.rows[number - 1] if number > 0 else {}
        return {array: chain.whole for array, chain in worked_out.items()}
    before = _unrolled_row(search, loop, row - 1)
    found = _next_row(search, loop, row, before)
    if _steps(found) == _steps(loop.rows[-1]) and all(c.origin for c in found.values()):
        return _unrolled_row(search, loop, row)
    return {array: chain.whole for array, chain in found.items()}


def _unrolled_row(search: Search, loop: Loop, row: Poly) -> Mapping[Array, Chain]:
    """The chains to a row that goes on like the rows before it."""
    number = _value(search, row)
    if number is not None and number <= len(loop.rows):
        return {array: chain.whole for array, chain in loop.rows[number - 1].items()}
    return {array: _unrolled(loop.rows, array, row) for array in loop.rows[-1]}


def _going_on(block: Block, before: Mapping[Array, Chain]) -> dict[tuple[Equation, Ref], Chain]:
    """What each reference to the row before goes on from."""
    return {
        (equation, ref): Chain(origin=ref.array, before=before.get(ref.array, Chain()))
        for equation in block.equations
        for ref in references(equation)
        if block.lag(equation, ref) == 1
    }


def _steps(row: Mapping[Array, Chain]) -> Mapping[Array, tuple[object, ...]]:
    """What each array goes on from and by which steps; nothing where its own operands are later."""
    return {
        array: (chain.steps, chain.origin) if chain.origin else () for array, chain in row.items()
    }


def _unrolled(rows: Sequence[Mapping[Array, Chain]], array: Array, number: Poly) -> Chain:
    """The chain to an array in the last row, as what comes before, a repeated block, and the rest.

    The block is a row in which an array goes on from itself.
    """
    tail: list[Chain] = []
    while (origin := rows[-1][array].origin) is not array:
        tail.insert(0, rows[-1][array])
        if origin is None or len(tail) > len(rows[-1]):
            break
        array = origin
    if rows[-1][array].origin is not array:
        return tail[-1].whole
    row = rows[-1][array]
    since = next(
        k for k, r in enumerate(rows) if all(x[array].origin is array for x in rows[k + 1 :])
    )
    start = rows[since][array].whole
    times = number - (since + 1) - len(tail)
    steps = (*start.steps, Repeat(times, row.steps), *(s for part in tail for s in part.steps))  # type: ignore[arg-type]
    levels = start.levels + row.levels * times
    ties = start.ties if row.ties == 1 else None
    for part in tail:
        levels = levels + part.levels
        ties = None if ties is None or part.ties is None else ties * part.ties
    return Chain(steps, levels, ties)
