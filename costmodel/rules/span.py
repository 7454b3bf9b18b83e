"""How many levels of dependent scalar operations are there, with unlimited processors?

A reduction of R terms ends ceil(log2 R) levels after its latest term; chains of binary operations
are taken as written. A span is a maximum of polynomials with `ceil_log2`; branches that are
provably smaller are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Unpack

from costmodel.constraints import (
    Constraints,
    Unsupported,
    infeasible,
    irredundant,
    nonnegative,
    simplified,
    variables_of,
)
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
    Flat,
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
)
from costmodel.functions import TABLE
from costmodel.latest import at_token
from costmodel.loops import Block, ascending, blocks, references
from costmodel.phases import Instances, T, phase_name, system_of
from costmodel.polynomial import Poly, call
from costmodel.presence import EVERYWHERE, Places, both, may_be_empty, present, with_terms
from costmodel.projections import outside, projected
from costmodel.quantity import Quantity
from costmodel.rules.asking import Training, asked
from costmodel.rules.ends import settled
from costmodel.rules.levels import (
    READY,
    Depth,
    Level,
    guarded,
    maxima,
    proven,
    pruned,
    with_positive_extrema,
)
from costmodel.rules.loop_rows import (
    ROW,
    at_rows,
    check_rows,
    first_row,
    in_turn,
    last_row,
    later_row,
    points_of,
    rows_written,
)
from costmodel.rules.places import at_places, on_axes
from costmodel.rules.row_depths import rows
from costmodel.rules.selections import levels as levels_of
from costmodel.rules.terms import number_kept, numbers_of_terms
from costmodel.symbols import to_sympy
from costmodel.tokens import tokens
from costmodel.wellformed import axes_of, whole

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Span(Quantity):
    """Levels of scalar operations: the largest of `terms`; exact.

    A term that exists for some sizes only is multiplied by `Min(1, Max(0, ...))`, 1 or 0.
    """

    terms: tuple[Poly, ...]

    @property
    def expr(self) -> sympy.Expr:
        """The span as a sympy expression."""
        import sympy

        result: sympy.Expr = sympy.Max(*map(to_sympy, self.terms))
        return result

    def at(self, **sizes: int) -> int:
        """The span at integer sizes."""
        return max(term.at(sizes) for term in self.terms)


class Depths:
    """The depth of every array's entries in a phase, in the axes of the array."""

    def __init__(self, system: System, phase: str) -> None:
        self.system = system = ascending(system)
        self.phase = phase
        self.arrays: dict[Array, Depth] = {}
        self.before: dict[Equation, dict[Ref, Depth]] = {}
        """The references of a loop to the row before, while its rows are being solved."""
        self.parts = Counter(p.equation.array for p in points_of(system, phase))
        self._ends: dict[Array, list[Level]] = {}
        for block in blocks(system):
            parts = [p for p in points_of(system, phase) if p.equation in block.equations]
            if in_turn(block, parts, system, phase):
                self._loop(block, parts)
            else:
                for part in parts:
                    self._equation(part)
        self.latest = self.deepest(*self._ends)

    def deepest(self, *arrays: Array) -> tuple[Poly, ...]:
        """How deep the deepest entry of some arrays is: the largest of these."""
        ends = [level for array in arrays for level in self._ends.get(array, ())]
        return tuple(guarded(end) for end in settled(ends)) or (Poly(),)

    def _levels(self, part: Instances) -> Depth:
        """The depth of an equation's value, in its free indices."""
        try:
            return self.depth(part.equation.value, part, part.constraints)
        except Unsupported as error:
            raise Unsupported(f"{part.equation.part_of}: {error}") from error

    def _equation(self, part: Instances, *, split: bool = False) -> None:
        equation, levels = part.equation, self._levels(part)
        split = split or self.parts[equation.array] > 1
        found = tuple(x for level in levels for x in on_axes(part, level, split=split))
        known = self.arrays.get(equation.array, ())
        self.arrays[equation.array] = pruned(frozenset(), known + found)
        for level in levels:
            self._end(equation.array, level, part.variables, part.constraints)

    def _end(
        self, array: Array, level: Level, variables: tuple[str, ...], constraints: Constraints
    ) -> None:
        """Note the largest value of a depth, and the sizes for which it exists."""
        known = constraints | level.where
        variables = (*variables, *sorted(variables_of([level.depth, *known]) - {*variables}))
        tops = maxima(Level(level.depth), variables, known)
        exists = simplified(projected(known, reversed(variables)))
        if exists is not None:
            for top in tops:
                where = irredundant(exists | top.where)
                self._ends.setdefault(array, []).append(Level(top.depth, where))

    def _loop(self, block: Block, parts: Sequence[Instances]) -> None:
        """The depths of a loop: its rows, and its last row by itself if that is computed otherwise,
        as where a gradient reaches the first row of a recurrence."""
        for part in parts:
            check_rows(block, part)
        last = last_row(block, parts)
        if last is None:
            self._alike(block, parts, block.last_rows)
            return
        before = [at_rows(block, p, lambda row: {last - 1 - row}) for p in parts]
        self._alike(block, [p for p in before if p], dict.fromkeys(block.axes, last - 1))
        for part in parts:
            for sizes in (last - 2, 1 - last):
                end = at_rows(block, part, lambda row: {row - last, last - row})
                if end is not None and not infeasible(end.constraints | {sizes}):
                    self._equation(replace(end, constraints=end.constraints | {sizes}), split=True)

    def _alike(
        self, block: Block, parts: Sequence[Instances], number: Mapping[Array, Poly]
    ) -> None:
        """The depths of rows that are all alike: the first row, one further row in terms of the row
        before, and from these every row."""
        first = self._rows(block, [p for p in map(partial(first_row, block), parts) if p])
        marked = {array: (Level(Poly.atom("^" + array.name)),) for array in block.axes}
        self.before = {
            e: {r: marked[r.array] for r in references(e) if block.lag(e, r) == 1}
            for e in block.equations
        }
        later = self._rows(block, [p for p in map(partial(later_row, block), parts) if p])
        self.before = {}
        for array, levels in rows(first, later, number).items():
            row = Poly.atom(f"#{block.axes[array]}")
            there = [x.substitute({ROW: row}) for x in levels]
            if number[array] != array.shape[block.axes[array]]:
                there = [Level(x.depth, x.where | {number[array] - row}) for x in there]
            self.arrays[array] = pruned(frozenset(), there)
            for level in self.arrays[array]:
                self._end(array, level, axes_of(array), whole(array))

    def _rows(self, block: Block, parts: Sequence[Instances]) -> dict[Array, Depth]:
        """The depths of the arrays of a loop at some rows, in the row `#row` and sizes alone."""
        for array in block.axes:
            self.arrays.pop(array, None)
        found: dict[Array, Depth] = {}
        several = Counter(part.equation.array for part in parts)
        for part in parts:
            array, row = part.equation.array, f"#{block.axes[part.equation.array]}"
            levels = tuple(x for y in self._levels(part) for x in on_axes(part, y, split=False))
            if several[array] > 1:
                there = rows_written(block, part, row)
                levels = tuple(Level(x.depth, x.where | there) for x in levels)
            self.arrays[array] = found[array] = found.get(array, ()) + levels
            for level in levels:
                if variables_of([level.depth, *level.where]) - {row}:
                    raise Unsupported(f"{array.name}: a depth that differs inside a row of a loop")
        for array in found:
            del self.arrays[array]
        named = {a: {f"#{axis}": Poly.atom(ROW)} for a, axis in block.axes.items()}
        return {a: tuple(x.substitute(named[a]) for x in levels) for a, levels in found.items()}

    def fresh(self, ref: Ref, constraints: Constraints) -> Sequence[Constraints]:
        """The points at which a referenced entry is computed in this phase, not ready before it."""
        if ref.array not in self.arrays:
            return ()
        if self.phase != "inference":
            return (constraints,)
        return at_token(constraints, tokens(self.system).at(ref), T)

    def may_be_fresh(self, ref: Ref) -> bool:
        """Whether it depends on the values of positions if an entry is computed in this phase."""
        fresh = ref.array in self.arrays and self.phase == "inference"
        return fresh and tokens(self.system).hidden(ref)

    def depth(self, node: Node, part: Instances, constraints: Constraints) -> Depth:
        """The depth at which an expression is known."""
        try:
            rule = RULES[type(node)]
        except KeyError:
            raise Unsupported(f"{type(node).__name__} has no rule in span") from None
        return pruned(constraints, rule(self, node, part, constraints))


def _ready(depths: Depths, node: Node, part: Instances, around: Constraints) -> Depth:
    return READY


def _ref(depths: Depths, node: Ref, part: Instances, around: Constraints) -> Depth:
    before = depths.before.get(part.equation, {}).get(node)
    if before is not None:
        return before
    gathers = [level for child in node.children for level in depths.depth(child, part, around)]
    if depths.may_be_fresh(node):
        found = (at_places(level, node, around) for level in depths.arrays[node.array])
        if not all(_there_before(x, gathers, around) for x in found if x):
            raise _depends_on_place(node)
        return pruned(around, gathers)
    return pruned(around, (*gathers, *_entry(depths, node, around)))


def _there_before(level: Level, gathers: Sequence[Level], around: Constraints) -> bool:
    """Whether an entry is proven to be there when the position is at which it is gathered."""
    known = around | level.where
    return any(
        all(proven(known, c) for c in gather.where)
        and nonnegative(with_positive_extrema(gather.depth - level.depth, known))
        for gather in gathers
    )


def _depends_on_place(node: Ref) -> Unsupported:
    return Unsupported(f"how deep an entry of {node.array.name} is depends on its position")


def _entry(depths: Depths, node: Ref, around: Constraints) -> Depth:
    fresh = depths.fresh(node, around)
    if not fresh:
        return READY
    flat = {f"#{k}" for k, p in enumerate(node.positions) if isinstance(p, Flat)}
    anywhere = {f"#{k}" for k, p in enumerate(node.positions) if isinstance(p, Gather)}
    if anywhere & variables_of(c for x in depths.arrays[node.array] for c in (x.depth, *x.where)):
        raise _depends_on_place(node)
    inside: Constraints = frozenset()
    if depths.phase != "inference":
        inside = frozenset(c for c in whole(node.array) if not (flat | anywhere) & c.letters)
    found = []
    for level in depths.arrays[node.array]:
        here = at_places(Level(level.depth, level.where | inside), node, around)
        if here is None:
            continue
        for part in fresh:
            where = frozenset(c for c in here.where | part if not proven(around, c))
            if not infeasible(around | where):
                found.append(Level(here.depth, where))
    older = depths.phase == "inference" and outside(around, [around | x.where for x in found])
    return (*found, *READY) if older or not found else tuple(found)


def _binary(depths: Depths, node: Binary, part: Instances, around: Constraints) -> Depth:
    sides = [depths.depth(child, part, around) for child in node.children]
    if not may_be_empty(part.equation):
        return tuple(level + 1 for side in sides for level in side)
    places = both(node, around)
    found = [level for side in sides for level in _where(side, places, 1, around)]
    if isinstance(node, (Add, Sub)):
        left, right = (present(child, around) for child in node.children)
        found += _where(sides[0], _absent(right, around), 0, around)
        found += _where(sides[1], _absent(left, around), 0, around)
    return (*found, *READY)


def _where(depth: Depth, places: Places, levels: int, around: Constraints) -> list[Level]:
    """Some levels more, at some of the places around an expression."""
    return [
        Level(level.depth + levels, level.where | place)
        for level in depth
        for place in places
        if not infeasible(around | level.where | place)
    ]


def _absent(places: Places, around: Constraints) -> Places:
    """The conditions under which none of some holds."""
    return tuple(part - around for part in outside(around, [around | p for p in places]))


def _same(depths: Depths, node: Neg | Folded, part: Instances, around: Constraints) -> Depth:
    return depths.depth(node.body, part, around)


def _where_node(depths: Depths, node: Where | First, part: Instances, around: Constraints) -> Depth:
    return tuple(x for child in node.children for x in depths.depth(child, part, around))


def _call(depths: Depths, node: Call, part: Instances, around: Constraints) -> Depth:
    steps = len(TABLE[node.function].steps)
    return tuple(level + steps for level in depths.depth(node.body, part, around))


def reduced(
    depths: Depths,
    node: Reduction | Fft | Select,
    part: Instances,
    around: Constraints,
    levels: Poly,
) -> Depth:
    """The latest term of what runs over indices, and some levels more."""
    if isinstance(node, Joined):
        return _latest_of_all(depths, node, part, around, levels)
    inner = around.union(*(index.constraints for index in node.over))
    hidden = [index.atom for index in node.over]
    found = [
        highest + levels
        for level in depths.depth(node.body, part, inner)
        for highest in maxima(level, hidden, inner)
    ]
    if may_be_empty(part.equation):
        found = [*_where(tuple(found), present(node, around), 0, around), *READY]
    return tuple(found)


def _latest_of_all(
    depths: Depths, node: Joined, part: Instances, around: Constraints, levels: Poly
) -> Depth:
    """The latest term of all ranges of a union, and some levels more, where there is any term."""
    found: list[Level] = [] if present(node, around) == EVERYWHERE else [*READY]
    for one in node.parts:
        for place in with_terms(one, around):
            if not infeasible(around | place):
                terms = reduced(depths, one, part, around | place, levels)
                found += _where(terms, (place,), 0, around)
    return tuple(found)


def _reduce(depths: Depths, node: Reduction, part: Instances, around: Constraints) -> Depth:
    found = tuple(
        Level(level.depth, level.where | where)
        for number, where in numbers_of_terms(node, part, around)
        for level in reduced(depths, node, part, around | where, call("ceil_log2", number))
    )
    return (*found, *READY) if may_be_empty(part.equation) else found


def _fft(depths: Depths, node: Fft, part: Instances, around: Constraints) -> Depth:
    """One transform after its latest operand."""
    return reduced(depths, node, part, around, node.levels)


def _select(depths: Depths, node: Select, part: Instances, around: Constraints) -> Depth:
    """All positions of a row are known at once, when the last one is."""
    return tuple(
        Level(level.depth, level.where | where)
        for number, where in numbers_of_terms(node.maximum, part, around)
        for level in reduced(
            depths, node, part, around | where, levels_of(node, number, number_kept(part))
        )
    )


RULES: Mapping[type[Node], Callable[..., Depth]] = {
    Constant: _ready,
    Ref: _ref,
    Neg: _same,
    Folded: _same,
    Where: _where_node,
    First: _where_node,
    Add: _binary,
    Sub: _binary,
    Mul: _binary,
    Div: _binary,
    Call: _call,
    Reduce: _reduce,
    Joined: _reduce,
    Fft: _fft,
    Select: _select,
}


@cache
def depths_of(system: System, phase: str) -> Depths:
    """The depths of a system's arrays in a phase."""
    return Depths(system, phase)


def span(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Span:
    """The span of a phase: levels of scalar operations with unlimited processors; exact.

    Raises:
        Unanswered: inference of a form that has none.

    >>> import costmodel as cm
    >>> cm.span(cm.mixer("she")).at(d=128, l=128)
    24
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, asked(convention, phase, training).rewrites, phase)
    return Span(depths_of(system, phase).latest)
