"""What is the longest chain of dependent steps, in the papers' words?

A product is one multiplication, a reduction one cumulation (`sum`) however many indices it has.
Among chains with equally many steps the one with the larger span is shown, then the one whose
equations come first; how many tie is kept. Rows of a loop are a block of steps, repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Unpack

from costmodel.constraints import Constraints, Unsupported, implied, infeasible, variables_of
from costmodel.conventions import Convention
from costmodel.equations import Equation, Mixer, System
from costmodel.expressions import (
    Add,
    Array,
    Binary,
    Call,
    Constant,
    Div,
    Fft,
    First,
    Folded,
    Gather,
    Joined,
    Mul,
    Neg,
    Node,
    Reduce,
    Reduction,
    Ref,
    Select,
    Sub,
    Where,
    position_value,
)
from costmodel.functions import TABLE
from costmodel.loops import Block, ascending, blocks, references
from costmodel.phases import Instances, phase_name, system_of
from costmodel.polynomial import Poly, call
from costmodel.presence import EVERYWHERE, Places, both, may_be_empty, present
from costmodel.projections import projected
from costmodel.rules.asking import Training, asked
from costmodel.rules.chains import Chain, CriticalPath, Repeat
from costmodel.rules.levels import MOST, Level, dominates, guarded, largest, maximised
from costmodel.rules.loop_rows import first_row, in_turn, later_row, points_of
from costmodel.rules.selections import levels as levels_of
from costmodel.rules.sequential import Steps
from costmodel.rules.terms import number_kept, numbers_of_terms
from costmodel.wellformed import region, whole

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Loop:
    """A loop some of whose rows are worked out."""

    block: Block
    later: Sequence[Instances]
    rows: list[Mapping[Array, Chain]]


@dataclass(frozen=True)
class _Context:
    system: System
    phase: str
    sizes: Sizes | None
    alike: bool
    """Whether all entries of an array have equally many steps before them."""
    arrays: dict[Array, Chain] = field(default_factory=dict)
    """The longest chain to any entry."""
    parts: dict[Array, list[Instances]] = field(default_factory=dict)
    loops: dict[Array, _Loop] = field(default_factory=dict)
    at_row: dict[tuple[Array, Poly], Chain] = field(default_factory=dict)
    """The longest chain to the entries of one row of a loop."""
    in_region: dict[tuple[Array, Constraints], Chain] = field(default_factory=dict)
    """The longest chain to the entries in a region, in the axes of the array, where they differ."""
    before: dict[tuple[Equation, Ref], Chain] = field(default_factory=dict)
    """While a row of a loop is worked out: what a reference to the row before goes on from."""
    open: set[Array] = field(default_factory=set)
    """The arrays of which a single row is being worked out."""

    @cached_property
    def steps(self) -> Steps:
        """After how many steps every entry is known."""
        return Steps(self.system, self.phase)

    def reads(self, ref: Ref, around: Constraints) -> bool:
        """Whether a reference reads an entry, at some point, that this phase computes."""
        if ref.array not in self.arrays:
            return False
        return self.alike or any(self.exists(p) for p in self.steps.fresh(ref, around))

    def longer(self, first: Chain, second: Chain, *, alike: bool = False) -> Chain:
        """The chain with more steps, then the larger span, then the first.

        `alike`: they go through the same nodes, at two ranges of a union, and are no tie.
        """
        steps = self._sign(second.length - first.length)
        if steps:
            return second if steps > 0 else first
        ties = None
        if first.ties is not None and second.ties is not None:
            ties = max(first.ties, second.ties) if alike else first.ties + second.ties
        if self.sizes is None:
            larger = not dominates(frozenset(), first.deepest, second.deepest) and dominates(
                frozenset(), second.deepest, first.deepest
            )
        else:
            at = dict(self.sizes)
            larger = second.deepest.at(at) > first.deepest.at(at)
        chosen = second if larger else first
        return Chain(chosen.steps, chosen.levels, ties, chosen.origin, chosen.before)

    def _sign(self, difference: Poly) -> int:
        """-1, 0 or 1; without sizes, what holds for large ones."""
        if self.sizes is not None or difference.constant() is not None:
            number = difference.at(dict(self.sizes or ()))
        else:
            number = difference.at(_large(difference.letters))
        return (number > 0) - (number < 0)

    def carried_out(self, node: Binary, part: Instances, around: Constraints) -> bool:
        """Whether both sides of an operation are there at some point."""
        if not may_be_empty(part.equation):
            return True
        return any(self.somewhere(part, around | place) for place in both(node, around))

    def somewhere(self, part: Instances, around: Constraints) -> bool:
        """Whether some point with these constraints exists, at the sizes or at some sizes."""
        return not may_be_empty(part.equation) or self.exists(around)

    def exists(self, points: Constraints) -> bool:
        """Whether there is any point, at the sizes or at some sizes."""
        if self.sizes is None:
            return not infeasible(points)
        conditions = projected(points, sorted(variables_of(points), reverse=True))
        return all(c.rational(dict(self.sizes)) >= 0 for c in conditions)

    def chain(self, node: Node, part: Instances, around: Constraints) -> Chain:
        """The longest chain that ends in an expression."""
        try:
            rule = RULES[type(node)]
        except KeyError:
            raise Unsupported(f"{type(node).__name__} has no rule in critical_path") from None
        return rule(self, node, part, around)


LARGE = 2**20
"""The size at which lengths are compared that no number was given for."""


def _large(letters: Iterable[str]) -> dict[str, int]:
    """Large sizes, a sequence being longer still: it has many windows, and many chunks."""
    huge = {"l": LARGE**2, "t": LARGE**2, "d": LARGE * 2**8}
    return {letter: huge.get(letter, LARGE) for letter in letters}


def _ready(context: _Context, node: Node, part: Instances, around: Constraints) -> Chain:
    return Chain()


def _ref(context: _Context, node: Ref, part: Instances, around: Constraints) -> Chain:
    if (part.equation, node) in context.before:
        return context.before[part.equation, node]
    if not context.alike and context.steps.may_be_fresh(node):
        return _gathered(context, node, part, around)
    longest = _entries(context, node, around) if context.reads(node, around) else Chain()
    for child in node.children:
        gather = context.chain(child, part, around)
        longest = context.longer(longest, gather) if gather.steps else longest
    return longest


def _gathered(context: _Context, node: Ref, part: Instances, around: Constraints) -> Chain:
    """The longest chain to the positions at which something is read that is there before them: the
    number of steps, worked out before, says so."""
    context.steps.depth(node, part, around)
    longest = Chain()
    for child in node.children:
        longest = context.longer(longest, context.chain(child, part, around))
    return longest


def _entries(context: _Context, node: Ref, around: Constraints) -> Chain:
    """The longest chain to the entries that a reference reads: of a loop to the last row among
    them, of another array to those in their region, where entries differ."""
    array = node.array
    if context.alike or array in context.open:
        return context.arrays[array]
    levels = context.steps.arrays.get(array, ())
    axes = variables_of([c for level in levels for c in (level.depth, *level.where)])
    loop = context.loops.get(array)
    if loop is None:
        return _in_region(context, node, around) if axes else context.arrays[array]
    axis = loop.block.axes[array]
    position = node.positions[axis]
    if axes != {f"#{axis}"} or isinstance(position, Gather):
        return context.arrays[array]
    last = largest(position_value(position), sorted(variables_of(around), reverse=True), around)
    if (array, last) not in context.at_row:
        context.at_row[array, last] = _row_of_loop(context, loop, last).get(array, Chain())
    return context.at_row[array, last]


def _in_region(context: _Context, node: Ref, around: Constraints) -> Chain:
    """The longest chain to the entries that a reference reads while its indices run."""
    array, hidden = node.array, sorted(variables_of(around), reverse=True)
    try:
        read = region(array, node.positions, around, hidden)
    except Unsupported:  # a region with gaps
        return context.arrays[array]
    where = frozenset(c for c in read or () if not implied(whole(array), c))
    if not where:
        return context.arrays[array]
    if (array, where) not in context.in_region:
        parts = _at_entries(context, context.parts[array], where)
        context.in_region[array, where] = _row_alone(context, parts, {}).get(array, Chain())
    return context.in_region[array, where]


def _binary(name: str) -> Callable[[_Context, Binary, Instances, Constraints], Chain]:
    def rule(context: _Context, node: Binary, part: Instances, around: Constraints) -> Chain:
        left, right = (context.chain(child, part, around) for child in node.children)
        if not context.carried_out(node, part, around):
            return context.longer(left, right) if isinstance(node, (Add, Sub)) else Chain()
        if left == right == Chain():
            return Chain().then(part.equation.part_of, (name,), Poly.of(1))
        return context.longer(left, right).then(part.equation.part_of, (name,), Poly.of(1))

    return rule


def _same(context: _Context, node: Neg | Folded, part: Instances, around: Constraints) -> Chain:
    return context.chain(node.body, part, around)


def _branches(
    context: _Context, node: Where | First, part: Instances, around: Constraints
) -> Chain:
    on, then, otherwise = (context.chain(child, part, around) for child in node.children)
    return context.longer(context.longer(on, then), otherwise)


def _call(context: _Context, node: Call, part: Instances, around: Constraints) -> Chain:
    steps = TABLE[node.function].steps
    before = context.chain(node.body, part, around)
    return before.then(part.equation.part_of, steps, Poly.of(len(steps)))


def _reduce(context: _Context, node: Reduction, part: Instances, around: Constraints) -> Chain:
    before: Chain | None = None
    for one in node.parts:
        inner = around.union(*(index.constraints for index in one.over))
        places = _there(one.body, part, inner)
        if any(context.somewhere(part, inner | place) for place in places):
            chain = context.chain(one.body, part, inner)
            before = chain if before is None else context.longer(before, chain, alike=True)
    if before is None:
        return Chain()
    names = (*part.variables, *sorted(variables_of(around) - {*part.variables}))
    levels = [
        guarded(maximised(Level(call("ceil_log2", number), where), names, around))
        for number, where in numbers_of_terms(node, part, around)
    ]
    return before.then(part.equation.part_of, (node.kind,), call("Max", 0, *levels))


def _there(node: Node, part: Instances, around: Constraints) -> Places:
    return present(node, around) if may_be_empty(part.equation) else EVERYWHERE


def _fft(context: _Context, node: Fft, part: Instances, around: Constraints) -> Chain:
    inner = around.union(*(index.constraints for index in node.over))
    before = context.chain(node.body, part, inner)
    return before.then(part.equation.part_of, ("fft",), call("ceil_log2", node.length) * 3)


def _select(context: _Context, node: Select, part: Instances, around: Constraints) -> Chain:
    inner = around.union(*(index.constraints for index in node.over))
    before = context.chain(node.body, part, inner)
    names = (*part.variables, *sorted(variables_of(around) - {*part.variables}))
    levels = [
        guarded(maximised(Level(levels_of(node, number, number_kept(part)), where), names, around))
        for number, where in numbers_of_terms(node.maximum, part, around)
    ]
    return before.then(part.equation.part_of, ("select",), call("Max", 0, *levels))


RULES: Mapping[type[Node], Callable[..., Chain]] = {
    Constant: _ready,
    Ref: _ref,
    Neg: _same,
    Folded: _same,
    Where: _branches,
    First: _branches,
    Add: _binary("add"),
    Sub: _binary("add"),
    Mul: _binary("mul"),
    Div: _binary("div"),
    Call: _call,
    Reduce: _reduce,
    Joined: _reduce,
    Fft: _fft,
    Select: _select,
}


FORWARD = ("training", "inference")
"""The phases that end with the output; the others end with the gradients."""


def _exists(part: Instances, sizes: Mapping[str, int]) -> bool:
    """Whether an equation has any point at these sizes."""
    conditions = projected(part.constraints, reversed(part.variables))
    return all(condition.rational(sizes) >= 0 for condition in conditions)


def _alike(system: System, phase: str) -> bool:
    """Whether all entries of an array are computed by the same steps: each by one equation, without
    loops, without sums that some entries lack and without zeros that are read outside of arrays,
    in a forward pass over whole arrays."""
    return (
        phase == "training"
        and not system.beyond
        and not any(block.is_loop for block in blocks(system))
        and all(len(equations) == 1 for equations in system.defining.values())
        and not any(map(may_be_empty, system.equations))
    )


@cache
def _path(system: System, phase: str, sizes: Sizes | None) -> CriticalPath:
    system = ascending(system)
    context = _Context(system, phase, sizes, _alike(system, phase))
    for block in blocks(system):
        parts = [p for p in points_of(system, phase) if p.equation in block.equations]
        if sizes is not None:
            parts = [part for part in parts if _exists(part, dict(sizes))]
        for part in parts:
            context.parts.setdefault(part.equation.array, []).append(part)
        if in_turn(block, parts, system, phase):
            context.arrays.update(_loop(context, block, parts))
        else:
            _row(context, parts)
    ends = [system.mixer.role("output")] if phase in FORWARD else list(context.arrays)
    chain = Chain()
    for array in ends:
        chain = context.longer(chain, context.arrays.get(array, Chain()))
    path = CriticalPath(chain)
    if not context.alike:
        _check(path, context.steps.deepest(*ends), sizes)
    return path


def _check(path: CriticalPath, steps: Sequence[Poly], sizes: Sizes | None) -> None:
    """Raise Unsupported unless the path has as many steps as are derived entry by entry."""
    letters = path.length.letters.union(*(term.letters for term in steps))
    at = dict(sizes) if sizes else _large(letters)
    if path.length.at(at) != max(term.at(at) for term in steps):
        raise Unsupported("the longest chain goes through rows that are not told apart here")


def _row(context: _Context, parts: Sequence[Instances]) -> dict[Array, Chain]:
    """The longest chain to each array that some instances define."""
    found: dict[Array, Chain] = {}
    written: set[object] = set()
    for part in parts:
        array, alike = part.equation.array, part.equation.written
        chain = context.chain(part.equation.value, part, part.constraints)
        if array in found:
            chain = context.longer(found[array], chain, alike=alike in written)
        context.arrays[array] = found[array] = chain
        written.add(alike)
    return found


def _row_alone(
    context: _Context, parts: Sequence[Instances], before: Mapping[tuple[Equation, Ref], Chain]
) -> dict[Array, Chain]:
    """The longest chains to the entries of some rows, other rows left as they are."""
    arrays, going_on, opened = dict(context.arrays), dict(context.before), set(context.open)
    context.before.update(before)
    context.open.update(part.equation.array for part in parts)
    found = _row(context, parts)
    for live, kept in ((context.arrays, arrays), (context.before, going_on)):
        live.clear()
        live.update(kept)  # type: ignore[arg-type]
    context.open.clear()
    context.open.update(opened)
    return found


def _of_row(context: _Context, parts: Sequence[Instances], axis: int, row: Poly) -> list[Instances]:
    """The instances that define one row of an axis."""
    here = Poly.atom(f"#{axis}") - row
    return _at_entries(context, parts, frozenset({here, -here}))


def _at_entries(
    context: _Context, parts: Sequence[Instances], entries: Constraints
) -> list[Instances]:
    """The instances that define some entries, given in the axes of the array."""
    found = []
    for part in parts:
        at = {f"#{k}": position_value(p) for k, p in enumerate(part.equation.positions)}
        here = frozenset(c.substitute(at) for c in entries)
        fixed = replace(part, constraints=part.constraints | here)
        exists = context.sizes is None or _exists(fixed, dict(context.sizes))
        if exists and not infeasible(fixed.constraints):
            found.append(fixed)
    return found


def _loop(context: _Context, block: Block, parts: Sequence[Instances]) -> Mapping[Array, Chain]:
    """The longest chains to the last row of a loop.

    Rows are worked out until each goes on from the same arrays by the same steps as the one before;
    the rows between are a block that is repeated.
    """
    first = [part for part in map(partial(first_row, block), parts) if part]
    later = [part for part in map(partial(later_row, block), parts) if part]
    loop = _Loop(block, later, [_row_alone(context, first, {})])
    number = max(_value(context, row) or MOST for row in block.last_rows.values())
    while len(loop.rows) < min(MOST, number):
        loop.rows.append(_next_row(context, loop, Poly.of(len(loop.rows) + 1), loop.rows[-1]))
    if number >= MOST and _steps(loop.rows[-1]) != _steps(loop.rows[-2]):
        raise Unsupported("the longest chain through the rows of a loop changes from row to row")
    context.loops.update(dict.fromkeys(block.axes, loop))
    lasts = block.last_rows
    rows = {row: _row_of_loop(context, loop, row) for row in dict.fromkeys(lasts.values())}
    return {array: rows[row].get(array, Chain()) for array, row in lasts.items()}


def _value(context: _Context, row: Poly) -> int | None:
    """The number of a row; None where it depends on sizes that are not given."""
    if context.sizes is not None:
        return row.at(dict(context.sizes))
    number = row.constant()
    return number if isinstance(number, int) else None


def _next_row(
    context: _Context, loop: _Loop, row: Poly, before: Mapping[Array, Chain]
) -> Mapping[Array, Chain]:
    """The chains to a row, each as far as it goes on from the row before."""
    fixed = [
        part
        for array, axis in loop.block.axes.items()
        for part in _of_row(
            context, [p for p in loop.later if p.equation.array is array], axis, row
        )
    ]
    order = {equation: k for k, equation in enumerate(loop.block.equations)}
    fixed.sort(key=lambda part: order[part.equation])
    return _row_alone(context, fixed, _going_on(loop.block, before))


def _row_of_loop(context: _Context, loop: _Loop, row: Poly) -> Mapping[Array, Chain]:
    """The longest chains to a row of a loop."""
    number = _value(context, row)
    if number is not None and number <= len(loop.rows):
        worked_out = loop.rows[number - 1] if number > 0 else {}
        return {array: chain.whole for array, chain in worked_out.items()}
    before = _unrolled_row(context, loop, row - 1)
    found = _next_row(context, loop, row, before)
    if _steps(found) == _steps(loop.rows[-1]) and all(c.origin for c in found.values()):
        return _unrolled_row(context, loop, row)
    return {array: chain.whole for array, chain in found.items()}


def _unrolled_row(context: _Context, loop: _Loop, row: Poly) -> Mapping[Array, Chain]:
    """The chains to a row that goes on like the rows before it."""
    number = _value(context, row)
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


def critical_path(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    sizes: Mapping[str, int] | None = None,
    **training: Unpack[Training],
) -> CriticalPath:
    """The longest chain of dependent steps to the output.

    Args:
        sizes: numbers that break ties by span; without them only proven differences do.

    Raises:
        Unanswered: inference of a form that has none.

    Source of the wording: Chen 2023, arXiv 2308.07661v1, section 7.

    >>> import costmodel as cm
    >>> cm.critical_path(cm.mixer("she")).steps
    ('mul', 'sum', 'mul', 'mul', 'sum')
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return _path(system, phase, tuple(sorted(sizes.items())) if sizes else None)
