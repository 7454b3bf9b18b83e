"""The depth of every array entry: the length of the longest path of operations to the entry.

A depth is a maximum of levels (`piecewise_max`): polynomials, each with conditions under which it
holds. Arrays are processed in topological order; the rows of a loop are solved in `loop_rows`. A
part (`IterationDomain`) is an equation with the constraints on its indices where a phase executes
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache, partial
from itertools import product

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Node, Position, Ref, position_value
from costmodel.language.rule_table import Rules
from costmodel.paths.growing_rows import ROW
from costmodel.paths.loop_rows import (
    at_rows,
    check_rows,
    depths_of_rows,
    first_row,
    in_turn,
    kept_axes,
    later_row,
    points_of,
    reads_of_previous_row,
    regions,
    rows_apart,
    rows_written,
    unequal_rows,
    within,
)
from costmodel.program.dependence import at_token
from costmodel.program.owners import owners
from costmodel.program.phases import IterationDomain, T, by_equation
from costmodel.program.recurrences import Block, ascending, blocks
from costmodel.program.wellformed import axes_of, region, whole
from costmodel.symbolic.constraints import (
    Constraints,
    implied,
    infeasible,
    irredundant,
    projected,
    simplified,
    variables_of,
)
from costmodel.symbolic.piecewise_max import (
    Depth,
    Level,
    guarded,
    maxima,
    proven,
    pruned,
)
from costmodel.symbolic.polynomial import Poly, axis_atom, by_text, is_index, stand_in
from costmodel.symbolic.simplify_max import simplify_max, with_simple_minima


class Depths:
    """The depth of every array's entries in a phase, in the axes of the array.

    Args:
        rules: kind of node -> its depth; a rule is called with the `Depths` so far, the node, the
            instances of its equation, and the constraints on the indices around the node.
    """

    def __init__(self, system: System, phase: str, rules: Rules[Callable[..., Depth]]) -> None:
        """Find the depths of all arrays in a phase, block by block (equations of one array or loop)
        in topological order; `rules`: class of nodes -> the function that gives its depth."""
        self.system = system = ascending(system)
        self.phase = phase
        self.rules = rules
        self.arrays: dict[Array, Depth] = {}
        """Array that the phase computes -> the depth of its entries, in its axes."""
        self.before: dict[Equation, dict[Ref, Depth]] = {}
        """While a loop is solved: equation -> references to the previous row and their depths."""
        points = by_equation(points_of(system, phase))
        # array -> number of its equations that the phase executes
        self.parts = Counter(p.equation.array for several in points.values() for p in several)
        self.values: dict[Array, list[tuple[Level, tuple[str, ...], Constraints]]] = {}
        """Array -> the depths of its values, each with the variables and constraints of its
        equation."""
        for block in blocks(system):
            parts = [p for e in dict.fromkeys(block.equations) for p in points.get(e, ())]
            if in_turn(block, parts, system, phase):
                self._loop(block, parts)
            else:
                for part in parts:
                    self._equation(part)

    @cached_property
    def overall(self) -> tuple[Poly, ...]:
        """Polynomials in sizes whose maximum is the depth of the deepest entry of all arrays that
        the phase computes: 2*l - 1 for y[1] = x[1]*a, y[i] = y[i-1]*x[i] + x[i]."""
        return self.deepest(*self.values)

    def deepest(self, *arrays: Array) -> tuple[Poly, ...]:
        """Polynomials whose maximum is the depth of the deepest entry of `arrays`."""
        ends = [level for array in arrays for level in self.largest_depths(array)]
        return tuple(guarded(end) for end in simplify_max(ends)) or (Poly(),)

    def _levels(self, part: IterationDomain) -> Depth:
        """The depth of the right-hand side of an equation, in its free indices, as levels (depths
        under conditions); Unsupported, with the name of the equation, if it is not derived."""
        try:
            return self.depth(part.equation.value, part, part.constraints)
        except Unsupported as error:
            raise Unsupported(f"{part.equation.part_of}: {error}", error.advice) from error

    def _equation(self, part: IterationDomain, *, split: bool = False) -> None:
        """Add the depth of the entries that an equation defines to `arrays` and `values`. With
        `split`, or if the phase executes several parts of the array, the added levels (depths under
        conditions) are limited to these entries."""
        equation, levels = part.equation, self._levels(part)
        split = split or self.parts[equation.array] > 1
        found = tuple(x for level in levels for x in on_axes(part, level, split=split))
        known = self.arrays.get(equation.array, ())
        self.arrays[equation.array] = pruned(frozenset(), known + found)
        values = self.values.setdefault(equation.array, [])
        values += [(level, part.variables, part.constraints) for level in levels]

    def largest_depths(self, array: Array) -> Iterator[Level]:
        """Yield the largest depths of an array's entries, in the sizes, each under the conditions
        under which such an entry exists: 2*l - 1 for y[i] of depth 2*i - 1 with i in 1..l."""
        for level, outer, constraints in self.values.get(array, ()):
            known = constraints | level.where
            # the level may also name the indices `@q of NAME` of the arrays that are read
            variables = (*outer, *sorted(variables_of([level.depth, *known]).difference(outer)))
            exists = _existing(known, variables[::-1])
            for top in maxima(level.under(frozenset()), variables, known):
                if exists is not None:
                    yield top.under(irredundant(exists | top.where))

    def _loop(self, block: Block, parts: Sequence[IterationDomain]) -> None:
        """Find the depths of a loop's arrays; separately for the last row if an equation of its own
        computes the row, as in gradients of a recurrence, or an equation ends before it. `parts`:
        the instances of the loop's equations that the phase executes."""
        for part in parts:
            check_rows(block, part)
        apart = rows_apart(block, parts)
        if apart is None:
            self._solve_rows(block, parts, block.last_rows)
            return
        # rows 1 .. last - number as a loop; then the last rows one by one, for more rows than
        # these and for each smaller number of rows
        last, number = apart
        end = last - number
        before = [at_rows(block, p, lambda row: {end - row}) for p in parts]
        self._solve_rows(block, [p for p in before if p], dict.fromkeys(block.axes, end))
        cases = [{end - 1}, *({last - k, k - last} for k in range(number, 0, -1))]
        for k in range(1, number + 1):
            self._row_alone(block, parts, end + k, cases)

    def _row_alone(
        self,
        block: Block,
        parts: Sequence[IterationDomain],
        row: Poly,
        cases: Sequence[set[Poly]],
    ) -> None:
        """Add the depths of one row of a loop, all of whose rows before are known: of the instances
        in `parts` at this row, in each of the disjoint `cases` of sizes (constraints) by itself."""
        for part, sizes in product(parts, cases):
            here = at_rows(block, part, lambda r: {r - row, row - r})
            if here is not None and not infeasible(here.constraints | sizes):
                self._equation(replace(here, constraints=here.constraints | sizes), split=True)

    def _solve_rows(
        self, block: Block, parts: Sequence[IterationDomain], number: Mapping[Array, Poly]
    ) -> None:
        """Find the depths of a loop whose rows from 2 on have the same equations: from the depths
        of row 1, and of a later row in terms of the row before, for each region of entries that do
        not need each other by itself. `parts`: the instances that the phase executes; `number`:
        array -> its last row."""
        first = self._rows(block, [p for p in map(partial(first_row, block), parts) if p])
        # in a later row, `marked` stands for the depth of each array in the row before
        marked = {array: (self.mark(array),) for array in block.axes}
        self.before = {e: {} for e in block.equations}
        for equation, ref in reads_of_previous_row(block, parts, self.system, self.phase):
            self.before[equation][ref] = marked[ref.array]
        later = self._rows(block, [p for p in map(partial(later_row, block), parts) if p])
        self.before = {}
        found: dict[Array, list[Level]] = {}
        every = [x for rows in (first, later) for levels in rows.values() for x in levels]
        for here in regions(parts[0].equation.array, every, kept_axes(block)):
            one, other = ({a: within(x, here) for a, x in r.items()} for r in (first, later))
            for array, levels in depths_of_rows(one, other, number).items():
                found.setdefault(array, []).extend(x.under(x.where | here) for x in levels)
        for array, levels in found.items():
            row = Poly.atom(axis_atom(block.axes[array]))
            at_row = [x.substitute({ROW: row}) for x in levels]
            if number[array] != array.shape[block.axes[array]]:  # the last row is added apart
                at_row = [x.under(x.where | {number[array] - row}) for x in at_row]
            self.arrays[array] = pruned(frozenset(), at_row)
            for entries in self._computed(array, parts):
                values = self.values.setdefault(array, [])
                values += [(level, axes_of(array), entries) for level in self.arrays[array]]

    def _computed(self, array: Array, parts: Sequence[IterationDomain]) -> Iterator[Constraints]:
        """Yield the regions of the entries of a loop's array that this phase computes, in the axes
        of the array: all entries, or in one-token inference those that the new token owns."""
        if self.phase != "inference":
            yield whole(array)
            return
        for part in parts:
            if part.equation.array is array:
                hidden = sorted(part.variables, reverse=True)
                found = region(array, part.equation.positions, part.constraints, hidden)
                if found is not None:
                    yield found

    def _rows(self, block: Block, parts: Sequence[IterationDomain]) -> dict[Array, Depth]:
        """A dict: array of a loop -> its depth in row 1, or in any later row. `parts`: the loop's
        equations limited to these rows. The depths are in the row number `#row` and sizes. In the
        meantime `arrays` holds them, for equations that read their own row. Where parts of a row
        do not need each other, the depths hold under conditions on `kept_axes`.

        Raises:
            Unsupported: entries of one row that need each other differ in depth.
        """
        for array in block.axes:
            self.arrays.pop(array, None)
        found: dict[Array, Depth] = {}
        several = Counter(part.equation.array for part in parts)
        kept = kept_axes(block)
        written: list[tuple[Array, Constraints, set[tuple[Poly, Constraints]]]] = []
        for part in parts:
            array, row = part.equation.array, axis_atom(block.axes[part.equation.array])
            levels = tuple(x for y in self._levels(part) for x in on_axes(part, y, split=False))
            if several[array] > 1:  # each level holds only at the entries that its equation writes
                there = rows_written(block, part, row, kept) - whole(array)
                depths = {(x.depth, x.where) for x in levels}
                for other, entries, earlier in written:
                    if other is array and earlier != depths and not infeasible(entries | there):
                        raise unequal_rows(array)
                written.append((array, there, depths))
                levels = tuple(x.under(x.where | there) for x in levels)
            elif kept:  # an array without entries on some of these axes
                there = rows_written(block, part, row, kept) - whole(array)
                there = frozenset(c for c in there if c.letters & kept and row not in c.letters)
                levels = tuple(x.under(x.where | there) for x in levels)
            levels = _joined(array, levels, row)
            self.arrays[array] = found[array] = found.get(array, ()) + levels
            for level in levels:  # a depth may name the row alone, a condition a kept axis too
                if variables_of([level.depth]) - {row} or any(
                    names != {row} and names - kept
                    for names in map(variables_of, ([c] for c in level.where))
                ):
                    raise unequal_rows(array)
        for array in found:
            del self.arrays[array]
        named = {a: {axis_atom(axis): Poly.atom(ROW)} for a, axis in block.axes.items()}
        return {a: tuple(x.substitute(named[a]) for x in levels) for a, levels in found.items()}

    def fresh(self, ref: Ref, constraints: Constraints) -> Sequence[Constraints]:
        """The disjoint regions within `constraints` in which this phase computes the entry that a
        reference reads: () for an array that exists before the phase; all of `constraints`; or, in
        inference, the part that the new token (at T) owns."""
        if ref.array not in self.arrays:
            return ()
        if self.phase != "inference":
            return (constraints,)
        return at_token(constraints, owners(self.system).at(ref), T)

    def mark(self, array: Array) -> Level:
        """A level with the atom `^name`, which stands for the depth of array `name` in the previous
        row while a loop is solved."""
        return Level(Poly.atom(stand_in(array.name)))

    def after(
        self,
        level: Level,
        node: Node,
        part: IterationDomain,
        around: Constraints,
        levels: Poly | int = 1,
    ) -> Level:
        """The level (a depth under conditions) after a node's operation, `levels` deeper: after a
        sum of R terms, ceil(log2 R) in a span and 1 in steps. Other arguments: for subclasses."""
        return level + levels

    def depth(self, node: Node, part: IterationDomain, constraints: Constraints) -> Depth:
        """The depth of the expression `node` of a part's equation, at the points that satisfy the
        `constraints` on the indices around it."""
        found = self.rules[type(node)](self, node, part, constraints)
        return pruned(constraints, [with_simple_minima(x, constraints) for x in found])


@lru_cache(maxsize=20_000)
def _existing(constraints: Constraints, variables: tuple[str, ...]) -> Constraints | None:
    """The conditions on sizes under which the constraints hold at some values of the variables;
    None if they hold at no sizes."""
    return simplified(projected(constraints, variables))


def _joined(array: Array, levels: Depth, row: str) -> Depth:
    """The levels (depths under conditions) of an array in a row of a loop (`row` is the axis), with
    two levels of equal depth merged if the entries of one begin directly behind those of the
    other."""
    waiting, found = list(levels), []
    while waiting:
        level = waiting.pop(0)
        for number, other in enumerate(waiting):
            where = _joined_conditions(level.where, other.where, whole(array), row)
            if level.depth == other.depth and where is not None:
                witness = level.witness and level.witness.joined(other.witness)
                waiting[number] = Level(level.depth, where, witness)
                break
        else:
            found.append(level)
    return tuple(found)


def _joined_conditions(
    one: Constraints, other: Constraints, around: Constraints, row: str
) -> Constraints | None:
    """The union of two conditions (sets of constraints) as one, if one begins directly behind the
    end of the other on some axis but `row`, and both hold alike otherwise (c <= 3 and c >= 4: no
    condition); None if not. `around`: constraints that hold in any case."""
    for end in one:
        rest = (one - {end}) | (other - {-end - 1})
        if (
            -end - 1 in other
            and variables_of([end]) - {row}
            and all(implied(around | part, c) for part in (one, other) for c in rest)
        ):
            return rest
    return None


def on_axes(part: IterationDomain, level: Level, *, split: bool) -> Iterator[Level]:
    """Yield a level (a depth and the conditions under which it holds), rewritten from the indices
    of an equation to the axes `#0`, `#1`, ... of the array that it defines: readers of the array
    know only the axes.

    `split`: other equations define entries of the array too, so the levels are limited to the
    entries of this equation. An index alone on its axis becomes that axis. Indices that share an
    axis, such as q and e in (q - 1)*C + e, become `@q of NAME` with the constraint
    `#0 = (q - 1)*C + e`, if the depth or its conditions depend on them, or if entries with a stride
    cannot be described without them. Over all other indices, the maximum is taken.
    """
    equation = part.equation
    values = _alone_on_an_axis(equation)
    if not (split or level.where or level.depth.variables):
        shared = [name for name in part.variables if name not in values]
        for found in maxima(level, shared, part.constraints):
            yield found.substitute(values)
        return
    placed = _sharing_an_axis(equation, variables_of([level.depth, *level.where]) - values.keys())
    others = [v for v in part.variables if v not in values and v not in placed]
    entries: Constraints = frozenset()
    if split:
        names = sorted(part.variables, reverse=True)
        try:
            written = region(equation.array, equation.positions, part.constraints, names)
            entries = (written or entries) - whole(equation.array)
        except Unsupported:  # a stride between entries: the indices of their axes stay
            placed |= _sharing_an_axis(equation, {*part.variables} - values.keys())
            others = [v for v in others if v not in placed]
    there: Constraints = frozenset()
    if placed:
        known = projected(part.constraints, sorted(others, reverse=True))
        apart = _axis_equations(equation, placed)
        # constraints on these axes follow from `known` and the equations `apart`
        entries = frozenset(c for c in entries if not variables_of([c]) & variables_of(apart))
        there = frozenset([c for c in known if c.letters & placed]) | apart
        values = {**values, **{v: Poly.atom(f"{v} of {equation.name}") for v in placed}}
    for found in maxima(level, others, part.constraints):
        where = frozenset([c.substitute(values) for c in found.where | there])
        # `under` replaces the conditions: first by none, since `where` has axes in them already
        yield found.under(frozenset()).substitute(values).under(entries | where)


@cache
def _alone_on_an_axis(equation: Equation) -> Mapping[str, Poly]:
    """Free index that is alone in a position, times 1 or -1 -> its value in the axes of the array
    that is defined: i -> #0 - 1 for y[i + 1], l - #0 for y[l - i]."""
    values: dict[str, Poly] = {}
    for axis, position in enumerate(equation.positions):
        poly = position_value(position)
        free = [a for a in poly.letters if is_index(a)]
        slope = poly.coefficient(free[0]) if len(free) == 1 else Poly()
        if slope in (1, -1):
            values[free[0]] = (
                Poly.atom(axis_atom(axis)) - (poly - slope * Poly.atom(free[0]))
            ) * slope
    return values


def _sharing_an_axis(equation: Equation, used: set[str]) -> set[str]:
    """The indices of positions with several indices, at least one of which is in `used`: q and e of
    y[(q - 1)*C + e] for `used` e."""
    solved = _alone_on_an_axis(equation)
    axes = [{*variables_of([position_value(p)])} - solved.keys() for p in equation.positions]
    return set().union(*(axis for axis in axes if axis & used))


def _axis_equations(equation: Equation, placed: set[str]) -> Constraints:
    """For each position on the left side that names an index of `placed`, the equality axis =
    position, as two constraints: #0 = (q - 1)*C + e for y[(q - 1)*C + e] with q and e placed."""
    found: set[Poly] = set()
    for axis, position in enumerate(equation.positions):
        if placed & position_value(position).letters:
            apart = Poly.atom(axis_atom(axis)) - position_value(position)
            found |= {apart, -apart}
    return frozenset(found)


def at_places(level: Level, ref: Ref, around: Constraints) -> Level | None:
    """A level of an array (a depth under conditions, in the array's axes) with the positions of a
    reference in place of the axes: depth i - 1 for y[i - 1] if y has depth #0. None if the level's
    conditions hold at no entry that the reference reads under the constraints `around`. A condition
    #0 = (p - 1)*C + f of the level becomes (q - 1)*C + e = (p - 1)*C + f for y[(q - 1)*C + e]; then
    p and f are replaced by q and e if they are proven to be equal."""
    values = {axis_atom(k): position_value(p) for k, p in enumerate(ref.positions)}
    where = _where_at(level.where, ref.positions)
    if infeasible(around | where):
        return None
    here = level.under(frozenset()).substitute(values).under(where)  # `where` has no axes any more
    for apart in by_text(level.where):
        # apart >= 0 and -apart >= 0: an equation
        if -apart in level.where and variables_of([apart]) & values.keys():
            for name, value in _matching_indices(apart.substitute(values), around):
                known, further = around | here.where, Poly.atom(name) - value
                if proven(known, further) and proven(known, -further):
                    here = here.substitute({name: value})
    return here.under(here.where - {Poly()})  # without 0 >= 0


@lru_cache(maxsize=20_000)
def _where_at(where: Constraints, positions: tuple[Position, ...]) -> Constraints:
    """Conditions on the axes of an array, with the given positions substituted for the axes."""
    values = {axis_atom(k): position_value(p) for k, p in enumerate(positions)}
    return frozenset([c.substitute(values) for c in where])


def _matching_indices(apart: Poly, around: Constraints) -> Iterator[tuple[str, Poly]]:
    """Yield (index, value) pairs that solve `apart = 0` for the indices that the conditions
    `around` do not name: with q and e in `around` and apart = (p - 1)*C + f - (q - 1)*C - e, the
    pairs p = q and f = e. Each value is an index of `around` with the opposite coefficient, plus a
    shift; no pair if an index without such a partner is left."""
    names = variables_of([apart])
    outer = variables_of(around)
    own = sorted(names - outer)
    slopes = {name: apart.coefficient(name) for name in names}
    values = {name: _partner(name, slopes, names & outer) for name in own}
    rest = apart.substitute(values)
    if variables_of([rest]):
        return
    # multiples of C take whole C's out of the shift first; an index with slope 1 takes the rest
    for name in sorted(own, key=lambda name: slopes[name] in (1, -1)):
        if len(slopes[name].terms) == 1:
            shift = _quotient_if_whole(rest, slopes[name])
            rest = rest - shift * slopes[name]
            yield name, values[name] - shift


def _partner(name: str, slopes: Mapping[str, Poly], others: set[str]) -> Poly:
    """The index in `others` whose coefficient (`slopes`) is the opposite of that of `name`, or
    minus an index with the same coefficient, as a polynomial: q for p in (p - 1)*C - (q - 1)*C. 0
    if there is none."""
    for sign in (1, -1):
        for other in sorted(others):
            if slopes[other] * sign == -slopes[name]:
                return Poly.atom(other) * sign
    return Poly()


def _quotient_if_whole(above: Poly, below: Poly) -> Poly:
    """above / below if the quotient has integer coefficients and positive powers, else 0: q + 1 for
    C*q + C and C."""
    quotient = above / below
    whole = all(
        isinstance(number, int) and all(power > 0 for _, power in monomial)
        for monomial, number in quotient.terms.items()
    )
    return quotient if whole else Poly()
