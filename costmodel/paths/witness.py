"""Which steps make up the longest path to each array: multiplication, sum, division, and so on?

A `Chain` is one path of steps; the rows of a loop are one block of steps that repeats. A `Search`
finds the longest chain to each array, to a region of an array, or to one row of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Binary, Gather, Node, Ref, position_value
from costmodel.paths.longest_path import Depths
from costmodel.paths.loop_rows import ROWS_WORKED_OUT, first_row, going_on, later_row
from costmodel.program.nonempty import both, may_be_empty
from costmodel.program.phases import IterationDomain
from costmodel.program.recurrences import Block
from costmodel.program.wellformed import region, whole
from costmodel.symbolic.constraints import Constraints, implied, infeasible, projected, variables_of
from costmodel.symbolic.piecewise_max import is_at_least, largest_value
from costmodel.symbolic.polynomial import Poly, axis_atom

STEP_WORDS: Mapping[str, str] = {
    "mul": "multiplication",
    "sum": "cumulation",
    "add": "addition",
    "div": "division",
    "exp": "exponentiation",
    "max": "maximum",
    "compare": "comparison",
    "fft": "Fourier transform",
    "select": "selection",
}
"""Step -> its name in papers; a function's step has the function's name."""


@dataclass(frozen=True)
class Step:
    """One step, and the name of the equation in which the step stands."""

    name: str
    equation: str


@dataclass(frozen=True)
class Repeat:
    """Steps that are repeated `times` times, once for each row of a loop."""

    times: Poly
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Chain:
    """A path of steps, its depth in levels, and the number of longest paths that tie.

    `ties` is None where paths tie in every row of a loop. While the rows of a loop are worked out,
    a chain holds the steps of one row; `origin` is the array of the row before from which the chain
    goes on, and `before` the chain to that array.
    """

    steps: tuple[Step | Repeat, ...] = ()
    levels: Poly = Poly()
    ties: int | None = 1
    origin: Array | None = None
    before: Chain | None = None

    def then(self, equation: str, names: tuple[str, ...], levels: Poly) -> Chain:
        """The chain with further steps at its end."""
        steps = self.steps + tuple([Step(name, equation) for name in names])
        return Chain(steps, self.levels + levels, self.ties, self.origin, self.before)

    @cached_property
    def length(self) -> Poly:
        """The number of steps, `before` included and repeated steps multiplied out."""
        repeats = [step for step in self.steps if isinstance(step, Repeat)]
        length = Poly.of(len(self.steps) - len(repeats))
        for step in repeats:
            length = length + step.times * len(step.steps)
        return length + self.before.length if self.before else length

    @property
    def deepest(self) -> Poly:
        """The levels of the chain, `before` included."""
        return self.levels + (self.before.deepest if self.before else Poly())

    @property
    def whole(self) -> Chain:
        """The chain with the steps of `before` in front."""
        if self.before is None:
            return self
        start = self.before.whole
        ties = None if start.ties is None or self.ties is None else start.ties * self.ties
        return Chain(start.steps + self.steps, self.deepest, ties)


@dataclass(frozen=True)
class CriticalPath:
    """The steps of the longest chain; `ties` counts the chains with as many steps, and is None
    where they branch in every row of a loop."""

    chain: Chain

    @property
    def steps(self) -> tuple[Any, ...]:
        """Step names (mul sum add div exp max compare, a function's name, fft, select); the rows of
        a loop are one entry {"times": "l - 1", "steps": [...]}."""
        return tuple(
            {"times": str(step.times), "steps": [s.name for s in step.steps]}
            if isinstance(step, Repeat)
            else step.name
            for step in self.chain.steps
        )

    @property
    def length(self) -> Poly:
        """How many steps the path has, rows of loops multiplied out."""
        return self.chain.length

    @property
    def places(self) -> tuple[tuple[str, str, str], ...]:
        """Every step with the equation in which it stands and how often it follows itself."""
        found: list[tuple[str, str, str]] = []
        for step in self.chain.steps:
            if isinstance(step, Repeat):
                found += [(s.name, s.equation, str(step.times)) for s in step.steps]
            else:
                found.append((step.name, step.equation, "1"))
        return tuple(found)

    @property
    def ties(self) -> int | None:
        """How many chains have as many steps."""
        return self.chain.ties

    @property
    def text(self) -> str:
        """The path in one line: `mul sum`, and `(l - 1)*[mul sum]` for rows of a loop."""
        return " ".join(
            f"({step['times']})*[{' '.join(step['steps'])}]" if isinstance(step, dict) else step
            for step in self.steps
        )

    @property
    def words(self) -> str:
        """The path as papers print it."""
        return " - ".join(
            f"{step['times']} times ({_in_words(step['steps'])})"
            if isinstance(step, dict)
            else _in_words([step])
            for step in self.steps
        )

    def _repr_latex_(self) -> str:
        return r"$\text{" + self.words.replace(" - ", " -- ") + "}$"


def _in_words(steps: Iterable[str]) -> str:
    return " - ".join(STEP_WORDS.get(name, name) for name in steps)


Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Loop:
    """A loop, with the chains of its first rows."""

    block: Block
    later: Sequence[IterationDomain]
    rows: list[Mapping[Array, Chain]]


@dataclass(frozen=True)
class Search:
    """The chains of a phase, array by array.

    Args:
        steps: the number of steps before every entry.
        sizes: numbers at which ties in the number of steps are broken by span; None: ties are
            broken by proven differences of span.
        alike: whether all entries of each array have equally many steps before them.
        rules: kind of node -> how a chain goes on through the node.
    """

    system: System
    phase: str
    steps: Depths
    sizes: Sizes | None
    alike: bool
    rules: Mapping[type[Node], Callable[..., Chain]]
    arrays: dict[Array, Chain] = field(default_factory=dict)
    """The longest chain to any entry."""
    parts: dict[Array, list[IterationDomain]] = field(default_factory=dict)
    loops: dict[Array, Loop] = field(default_factory=dict)
    at_row: dict[tuple[Array, Poly], Chain] = field(default_factory=dict)
    """The longest chain to the entries of one row of a loop."""
    in_region: dict[tuple[Array, Constraints], Chain] = field(default_factory=dict)
    """The longest chain to the entries in a region, in the axes of the array, where they differ."""
    before: dict[tuple[Equation, Ref], Chain] = field(default_factory=dict)
    """While a row of a loop is worked out: the chains of references to the row before."""
    open: set[Array] = field(default_factory=set)
    """The arrays of which one row is being worked out."""

    def reads(self, ref: Ref, around: Constraints) -> bool:
        """Whether a reference reads, at some point, an entry that this phase computes."""
        if ref.array not in self.arrays:
            return False
        return self.alike or any(self.exists(p) for p in self.steps.fresh(ref, around))

    def longer(self, first: Chain, second: Chain, *, alike: bool = False) -> Chain:
        """The chain with more steps; of equally many, that with the larger span, else the first.

        `alike`: the chains go through the same nodes, at two ranges of a union, and are no tie.
        """
        steps = self._sign(second.length - first.length)
        if steps:
            return second if steps > 0 else first
        ties = None
        if first.ties is not None and second.ties is not None:
            ties = max(first.ties, second.ties) if alike else first.ties + second.ties
        if self.sizes is None:
            larger = not is_at_least(frozenset(), first.deepest, second.deepest) and is_at_least(
                frozenset(), second.deepest, first.deepest
            )
        else:
            at = dict(self.sizes)
            larger = second.deepest.at(at) > first.deepest.at(at)
        chosen = second if larger else first
        return Chain(chosen.steps, chosen.levels, ties, chosen.origin, chosen.before)

    def _sign(self, difference: Poly) -> int:
        """The sign (-1, 0, 1) of a difference at the sizes, or at large sizes if there are none."""
        if self.sizes is not None or difference.constant() is not None:
            number = difference.at(dict(self.sizes or ()))
        else:
            number = difference.at(large(difference.letters))
        return (number > 0) - (number < 0)

    def carried_out(self, node: Binary, part: IterationDomain, around: Constraints) -> bool:
        """Whether both operands of an operation exist at some point."""
        if not may_be_empty(part.equation):
            return True
        return any(self.somewhere(part, around | place) for place in both(node, around))

    def somewhere(self, part: IterationDomain, around: Constraints) -> bool:
        """Whether an equation has a point with these constraints, at the sizes or at any sizes."""
        return not may_be_empty(part.equation) or self.exists(around)

    def exists(self, points: Constraints) -> bool:
        """Whether there is any point with these constraints, at the sizes or at any sizes."""
        if self.sizes is None:
            return not infeasible(points)
        conditions = projected(points, sorted(variables_of(points), reverse=True))
        return all(c.rational(dict(self.sizes)) >= 0 for c in conditions)

    def chain(self, node: Node, part: IterationDomain, around: Constraints) -> Chain:
        """The longest chain that ends in an expression."""
        return self.rules[type(node)](self, node, part, around)


LARGE = 2**20
"""The value of sizes not given, at which the lengths of chains are compared."""


def large(letters: Iterable[str]) -> dict[str, int]:
    """Large values of sizes; the length is so much larger that it holds many windows and chunks."""
    huge = {"l": LARGE**2, "t": LARGE**2, "d": LARGE * 2**8}
    return {letter: huge.get(letter, LARGE) for letter in letters}


def chain_to_entries(search: Search, node: Ref, around: Constraints) -> Chain:
    """The longest chain to the entries that a reference reads: in a loop, to the last row that is
    read; in another array whose entries differ in depth, to the region that is read."""
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
    if axes != {axis_atom(axis)} or isinstance(position, Gather):
        return search.arrays[array]
    last = largest_value(
        position_value(position), sorted(variables_of(around), reverse=True), around
    )
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


def exists_at(part: IterationDomain, sizes: Mapping[str, int]) -> bool:
    """Whether instances of an equation exist at these sizes."""
    conditions = projected(part.constraints, reversed(part.variables))
    return all(condition.rational(sizes) >= 0 for condition in conditions)


def to_arrays(search: Search, parts: Sequence[IterationDomain]) -> dict[Array, Chain]:
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
    search: Search, parts: Sequence[IterationDomain], before: Mapping[tuple[Equation, Ref], Chain]
) -> dict[Array, Chain]:
    """The longest chains to the arrays of some instances; the state of the search is kept."""
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


def _of_row(
    search: Search, parts: Sequence[IterationDomain], axis: int, row: Poly
) -> list[IterationDomain]:
    """The instances that define one row of an axis."""
    here = Poly.atom(axis_atom(axis)) - row
    return _at_entries(search, parts, frozenset({here, -here}))


def _at_entries(
    search: Search, parts: Sequence[IterationDomain], entries: Constraints
) -> list[IterationDomain]:
    """The instances that define the entries in a region given in the axes of the array."""
    found = []
    for part in parts:
        at = {axis_atom(k): position_value(p) for k, p in enumerate(part.equation.positions)}
        here = frozenset(c.substitute(at) for c in entries)
        fixed = replace(part, constraints=part.constraints | here)
        exists = search.sizes is None or exists_at(fixed, dict(search.sizes))
        if exists and not infeasible(fixed.constraints):
            found.append(fixed)
    return found


def through_loop(
    search: Search, block: Block, parts: Sequence[IterationDomain]
) -> Mapping[Array, Chain]:
    """The longest chains to the last row of a loop.

    Rows are worked out until a row goes on from the same arrays, by the same steps, as the row
    before; the further rows are a block that repeats.
    """
    first = [part for part in map(partial(first_row, block), parts) if part]
    later = [part for part in map(partial(later_row, block), parts) if part]
    loop = Loop(block, later, [_row_alone(search, first, {})])
    number = max(_row_number(search, row) or ROWS_WORKED_OUT for row in block.last_rows.values())
    while len(loop.rows) < min(ROWS_WORKED_OUT, number):
        loop.rows.append(_next_row(search, loop, Poly.of(len(loop.rows) + 1), loop.rows[-1]))
    if number >= ROWS_WORKED_OUT and _steps_of_row(loop.rows[-1]) != _steps_of_row(loop.rows[-2]):
        raise Unsupported("the longest chain through the rows of a loop changes from row to row")
    search.loops.update(dict.fromkeys(block.axes, loop))
    lasts = block.last_rows
    rows = {row: _row_of_loop(search, loop, row) for row in dict.fromkeys(lasts.values())}
    return {array: rows[row].get(array, Chain()) for array, row in lasts.items()}


def _row_number(search: Search, row: Poly) -> int | None:
    """A row as a number; None where it depends on sizes that are not given."""
    if search.sizes is not None:
        return row.at(dict(search.sizes))
    number = row.constant()
    return number if isinstance(number, int) else None


def _next_row(
    search: Search, loop: Loop, row: Poly, before: Mapping[Array, Chain]
) -> Mapping[Array, Chain]:
    """The chains to a row, given the chains to the row before."""
    fixed = [
        part
        for array, axis in loop.block.axes.items()
        for part in _of_row(search, [p for p in loop.later if p.equation.array is array], axis, row)
    ]
    order = {equation: k for k, equation in enumerate(loop.block.equations)}
    fixed.sort(key=lambda part: order[part.equation])
    return _row_alone(search, fixed, _going_on(search, loop, before))


def _row_of_loop(search: Search, loop: Loop, row: Poly) -> Mapping[Array, Chain]:
    """The longest chains to a row of a loop."""
    number = _row_number(search, row)
    if number is not None and number <= len(loop.rows):
        worked_out = loop.rows[number - 1] if number > 0 else {}
        return {array: chain.whole for array, chain in worked_out.items()}
    before = _unrolled_row(search, loop, row - 1)
    found = _next_row(search, loop, row, before)
    if _steps_of_row(found) == _steps_of_row(loop.rows[-1]) and all(
        c.origin for c in found.values()
    ):
        return _unrolled_row(search, loop, row)
    return {array: chain.whole for array, chain in found.items()}


def _unrolled_row(search: Search, loop: Loop, row: Poly) -> Mapping[Array, Chain]:
    """The chains to a row that goes on from the row before like the last row worked out."""
    number = _row_number(search, row)
    if number is not None and number <= len(loop.rows):
        return {array: chain.whole for array, chain in loop.rows[number - 1].items()}
    return {array: _unrolled(loop.rows, array, row) for array in loop.rows[-1]}


def _going_on(
    search: Search, loop: Loop, before: Mapping[Array, Chain]
) -> dict[tuple[Equation, Ref], Chain]:
    """(Equation, reference to the row before) -> the chain that goes on from it."""
    return {
        (equation, ref): Chain(origin=ref.array, before=before.get(ref.array, Chain()))
        for equation, ref in going_on(loop.block, loop.later, search.system, search.phase)
    }


def _steps_of_row(row: Mapping[Array, Chain]) -> Mapping[Array, tuple[object, ...]]:
    """Array -> the steps of its row and the array of the row before from which they go on; () where
    the longest chain does not come from the row before."""
    return {
        array: (chain.steps, chain.origin) if chain.origin else () for array, chain in row.items()
    }


def _unrolled(rows: Sequence[Mapping[Array, Chain]], array: Array, number: Poly) -> Chain:
    """The chain to an array in row `number`: the first rows, a repeated block, and the last rows.

    The block is the row of an array that goes on from itself; the last rows lead from this array to
    the array asked for.
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
