"""How many levels of dependent scalar operations are there, with unlimited processors?

A reduction of R terms ends ceil(log2 R) levels after its latest term; chains of binary operations
are taken as written. A span is a maximum of polynomials with `ceil_log2`; branches that are
provably smaller are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from costmodel.conventions import Convention, convention as named_convention
from costmodel.domains import (
    ONE,
    Constraints,
    Exact,
    Unsupported,
    bounds,
    implied,
    infeasible,
    irredundant,
    is_plain,
    nonnegative,
    outside,
    projected,
    simplified,
    total,
    variables_of,
)
from costmodel.equations import Equation, Mixer, System, rank
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
    Index,
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
from costmodel.polynomial import Fn, Poly, call, to_sympy
from costmodel.presence import EVERYWHERE, Places, both, may_be_empty, present, with_terms
from costmodel.quantity import Quantity
from costmodel.rules.peaks import direction, highest
from costmodel.rules.selections import levels as levels_of
from costmodel.tokens import Instances, T, at_token, instances, phase_name, system_of, tokens
from costmodel.wellformed import axes_of, region, whole

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Level:
    """A depth in the indices around an expression, at the points where `where` holds too."""

    depth: Poly
    where: Constraints = frozenset()

    def __add__(self, levels: Poly | int) -> Level:
        return Level(self.depth + levels, self.where)

    def substitute(self, values: Mapping[str, Poly]) -> Level:
        """Replace indices or axes in both."""
        where = frozenset(c.substitute(values) for c in self.where)
        return Level(self.depth.substitute(values), where)


Depth = tuple[Level, ...]
"""The largest of these."""


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


def dominates(constraints: Constraints, larger: Poly, smaller: Poly) -> bool:
    """Whether `larger >= smaller` is proven, matching logarithms by their arguments."""
    difference = larger - smaller
    logs = [
        (atom, number)
        for monomial, number in difference.terms.items()
        for atom, power in monomial
        if isinstance(atom, Fn) and atom.function == "ceil_log2" and len(monomial) == power == 1
    ]
    spare = {atom: number for atom, number in logs if number > 0}
    for atom, number in logs:
        if number > 0:
            continue
        for rival, available in spare.items():
            if available >= -number and _proven(constraints, rival.args[0] - atom.args[0]):
                spare[rival] = available + number
                moved = Poly.atom(atom) * -number - Poly.atom(rival) * -number
                difference = difference + moved
                break
    difference = _with_positive_extrema(difference, constraints)
    if any(a[0] in "@#" for a in difference.letters):
        return False
    return nonnegative(difference)


def _with_positive_extrema(poly: Poly, known: Constraints) -> Poly:
    """The same with a variable, at least 0, for every minimum or maximum of what is at least 0."""
    extrema = [
        atom
        for atom in sorted(poly.atoms)
        if isinstance(atom, Fn)
        and atom.function in ("Min", "Max")
        and all(_proven(known, argument) for argument in atom.args)
    ]
    return poly.substitute({a: Poly.atom(f"^extremum {k}") for k, a in enumerate(extrema)})


def _proven(constraints: Constraints, claim: Poly) -> bool:
    try:
        return implied(constraints, claim)
    except Unsupported:
        return False


def pruned(constraints: Constraints, levels: Iterable[Level]) -> Depth:
    """Drop the levels that another one provably reaches wherever they exist."""

    def reached(level: Level, rival: Level) -> bool:
        known = constraints | level.where
        if not all(_proven(known, c) for c in rival.where):
            return False
        least = _least(level.where)
        known = frozenset(c.substitute(least) for c in known)
        return dominates(known, rival.depth.substitute(least), level.depth.substitute(least))

    kept: list[Level] = []
    for level in dict.fromkeys(levels):
        if not any(reached(level, rival) for rival in kept):
            kept = [k for k in kept if not reached(k, level)]
            kept.append(level)
    return tuple(kept)


def _least(where: Constraints) -> Mapping[str, Poly]:
    """Sizes moved so that guards such as `l >= 3` hold for every positive integer."""
    found: dict[str, Poly] = {}
    for guard in sorted(where, key=str):
        for letter in guard.letters:
            least = (Poly.atom(letter) - guard).constant()
            if isinstance(least, int) and least > 1:
                found[letter] = Poly.atom(letter) + (least - 1)
    return found


def maximised(level: Level, variables: Iterable[str], constraints: Constraints) -> Level:
    """The largest depth over variables.

    The last variable is eliminated first; where that does not tell, those first that the depth does
    not depend on; or all of them are as large, or as small, as they can be.
    """
    inner = tuple(reversed(tuple(variables)))
    reasons = []
    for way in (_eliminated, _with_the_rest_first, _at_the_corner):
        try:
            return way(level, inner, constraints)
        except Unsupported as reason:
            reasons.append(reason)
    raise reasons[0]


def _with_the_rest_first(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """Eliminate the variables first that the depth does not depend on, a row in a chunk being one
    variable."""
    by_row, names = _by_row(level, waiting)
    still = [v for v in names if v not in by_row.depth.letters]
    both_sides = (irredundant(c) for c in (constraints | by_row.where, constraints))
    full, plain = (projected(c, still) for c in both_sides)
    rest = [v for v in names if v not in still]
    return _eliminated(Level(by_row.depth, full - plain), rest, plain)


def _at_the_corner(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """Where a depth only grows, or only falls, with each variable, and a point is proven to exist
    at which every one of them is at its end, it is the deepest."""
    full, plain = (irredundant(c) for c in (constraints | level.where, constraints))
    exists, known = projected(full, waiting), projected(plain, waiting)
    corner: dict[str, Poly] = {}
    for variable in waiting:
        if sign := direction(level.depth, variable):
            lower, upper, _ = bounds(
                projected(full, [v for v in waiting if v != variable]), variable
            )
            ends = upper if sign > 0 else lower
            if any(scale != ONE for scale, _ in ends):
                raise Unsupported(f"index {variable[1:]} is bounded with a stride")
            corner[variable] = _the_tightest([end for _, end in ends], exists, -sign)
    there = frozenset(c.substitute(corner) for c in full)
    if not all(
        _proven(exists, c) for c in projected(there, [v for v in waiting if v not in corner])
    ):
        raise Unsupported("a depth that is largest at no proven point")
    where = frozenset(c for c in exists if c not in known and not _proven(known, c))
    return Level(level.depth.substitute(corner), where)


def _by_row(level: Level, variables: Sequence[str]) -> tuple[Level, Sequence[str]]:
    """The same depth in one variable more, for a sum of indices that it depends on in no other way:
    the row of a place in a chunk."""
    sums = {moving for part in _affine(level.depth) if (moving := _moving(part)).terms}
    names = variables_of(sums)
    if len(sums) != 1 or len(names) < 2 or not names <= {*variables}:
        return level, variables
    (joint,) = sums
    last = next((v for v in variables if joint.terms.get(((v, 1),)) == 1), None)
    if last is None or last in (joint - Poly.atom(last)).letters:
        return level, variables
    row = "@row of " + " and ".join(name[1:] for name in sorted(names))
    apart = Poly.atom(row) - joint
    depth = level.depth.substitute({last: apart + Poly.atom(last)})
    return Level(depth, level.where | {apart, -apart}), (row, *variables)


def _moving(poly: Poly) -> Poly:
    """What is left of a polynomial without its terms in sizes alone."""
    return Poly({m: x for m, x in poly.terms.items() if variables_of([Poly({m: 1})])})


def _affine(poly: Poly) -> Iterator[Poly]:
    """The polynomials inside a depth's functions, and what stands outside of them."""
    functions = [a for a in poly.atoms if isinstance(a, Fn) and variables_of([Poly.atom(a)])]
    for atom in functions:
        for argument in atom.args:
            yield from _affine(argument)
    yield Poly({m: x for m, x in poly.terms.items() if not any(a in functions for a, _ in m)})


def _eliminated(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    term, full, plain = level.depth, constraints | level.where, constraints
    waiting = list(waiting)
    while waiting:
        variable = next((v for v in waiting if is_plain(full, v)), waiting[0])
        waiting.remove(variable)
        term = highest(term, variable, full)
        full, plain = projected(full, [variable]), projected(plain, [variable])
    return Level(term, frozenset(c for c in full if c not in plain and not _proven(plain, c)))


def largest(depth: Poly, variables: Iterable[str], constraints: Constraints) -> Poly:
    """The largest value of a depth that exists everywhere."""
    return maximised(Level(depth), variables, constraints).depth


def guarded(level: Level) -> Poly:
    """The depth where all of its size conditions hold, else 0."""
    term = level.depth
    if not level.where:
        return term
    clamped: dict[str, Poly] = {
        atom: call("ceil_log2", call("Max", 1, atom.args[0]))
        for atom in term.atoms
        if isinstance(atom, Fn) and atom.function == "ceil_log2"
        and not nonnegative(atom.args[0] - 1)
    }  # fmt: skip
    term = term.substitute(clamped)
    for guard in sorted(level.where, key=str):
        term = term * call("Min", 1, call("Max", 0, guard + 1))
    return term


def terms_of(over: tuple[Index, ...]) -> Poly:
    """How many terms a reduction has, in the indices around it."""
    names = {index.atom for index in over}
    coupled = any(names & b.letters for i in over for b in i.lower + i.upper)
    if coupled:
        constraints: Constraints = frozenset().union(*(index.constraints for index in over))
        outer = {a: Poly.atom("outer " + a) for c in constraints for a in c.letters - names}
        exact = total(
            tuple(index.atom for index in over),
            frozenset(
                c.substitute({k: v for k, v in outer.items() if k[0] == "@"}) for c in constraints
            ),
            Poly.of(1),
        )
        if len(exact.pieces) != 1:
            raise Unsupported("the number of terms of a reduction depends on cases")
        return exact.pieces[0][1].substitute({f"outer {a}": Poly.atom(a) for a in outer})
    number = Poly.of(1)
    for index in over:
        number = number * call("Min", *(u - low + 1 for u in index.upper for low in index.lower))
    return number


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
        return tuple(guarded(end) for end in _settled(ends)) or (Poly(),)

    def _levels(self, part: Instances) -> Depth:
        """The depth of an equation's value, in its free indices."""
        try:
            return self.depth(part.equation.value, part, part.constraints)
        except Unsupported as error:
            raise Unsupported(f"{part.equation.part_of}: {error}") from error

    def _equation(self, part: Instances, *, split: bool = False) -> None:
        equation, levels = part.equation, self._levels(part)
        split = split or self.parts[equation.array] > 1
        on_axes = tuple(_on_axes(part, level, split=split) for level in levels)
        known = self.arrays.get(equation.array, ())
        self.arrays[equation.array] = pruned(frozenset(), known + on_axes)
        for level in levels:
            self._end(equation.array, level, part.variables, part.constraints)

    def _end(
        self, array: Array, level: Level, variables: tuple[str, ...], constraints: Constraints
    ) -> None:
        """Note the largest value of a depth, and the sizes for which it exists."""
        known = constraints | level.where
        variables = (*variables, *sorted(variables_of([level.depth, *known]) - {*variables}))
        top = largest(level.depth, variables, known)
        exists = simplified(projected(known, reversed(variables)))
        if exists is not None:
            self._ends.setdefault(array, []).append(Level(top, irredundant(exists)))

    def _loop(self, block: Block, parts: Sequence[Instances]) -> None:
        """The depths of a loop: its rows, and its last row by itself if that is computed otherwise,
        as where a gradient reaches the first row of a recurrence."""
        for part in parts:
            check_rows(block, part)
        last = last_row(block, parts)
        if last is None:
            number = {array: array.shape[axis] for array, axis in block.axes.items()}
            self._alike(block, parts, number)
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
            levels = tuple(_on_axes(part, level, split=False) for level in self._levels(part))
            if several[array] > 1:
                there = _rows_written(block, part, row)
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


def _on_axes(part: Instances, level: Level, *, split: bool) -> Level:
    """A depth in the axes of the array that the equation defines; where several equations do
    (`split`), at the entries of this one.

    Indices inside a flattened axis, as the place in a chunk, have names of their own there if the
    depth depends on them; of others it takes the largest.
    """
    equation = part.equation
    values = _solved(equation)
    placed = _placed(equation, variables_of([level.depth, *level.where]) - values.keys())
    others = [v for v in part.variables if v not in values and v not in placed]
    found = maximised(level, others, part.constraints)
    entries: Constraints = frozenset()
    if split:
        names = sorted(part.variables, reverse=True)
        entries = region(equation.array, equation.positions, part.constraints, names) or entries
    where = found.where
    if placed:
        known = projected(part.constraints, sorted(others, reverse=True))
        apart = _positions(equation, placed)
        entries = frozenset(c for c in entries if not variables_of([c]) & variables_of(apart))
        where |= {c for c in known if c.letters & placed} | apart
        values |= {v: Poly.atom(f"{v} of {equation.name}") for v in placed}
    return Level(found.depth.substitute(values), entries | {c.substitute(values) for c in where})


def _solved(equation: Equation) -> dict[str, Poly]:
    """The free indices that stand alone on an axis, in the axes of the array."""
    values: dict[str, Poly] = {}
    for axis, position in enumerate(equation.positions):
        poly = position_value(position)
        free = [a for a in poly.letters if a[0] == "@"]
        slope = poly.coefficient(free[0]) if len(free) == 1 else Poly()
        if slope in (1, -1):
            values[free[0]] = (Poly.atom(f"#{axis}") - (poly - slope * Poly.atom(free[0]))) * slope
    return values


def _placed(equation: Equation, used: set[str]) -> set[str]:
    """The free indices that some of them share an axis with."""
    solved = _solved(equation)
    axes = [{*variables_of([position_value(p)])} - solved.keys() for p in equation.positions]
    return set().union(*(axis for axis in axes if axis & used))


def _positions(equation: Equation, placed: set[str]) -> Constraints:
    """On which entries of the array such indices stand."""
    found: set[Poly] = set()
    for axis, position in enumerate(equation.positions):
        if placed & position_value(position).letters:
            apart = Poly.atom(f"#{axis}") - position_value(position)
            found |= {apart, -apart}
    return frozenset(found)


def _at_places(level: Level, ref: Ref, around: Constraints) -> Level | None:
    """A depth of an array at a reference, whose own indices take the place of those inside a
    flattened axis where they are proven to be the same; None where it does not hold there."""
    values = {
        f"#{k}": position_value(p) for k, p in enumerate(ref.positions) if not isinstance(p, Gather)
    }
    if infeasible(around | {c.substitute(values) for c in level.where}):
        return None
    here = level.substitute(values)
    for apart in sorted(level.where, key=str):
        if -apart in level.where and variables_of([apart]) & values.keys():
            for name, value in _same_place(apart.substitute(values), around):
                known, further = around | here.where, Poly.atom(name) - value
                if _proven(known, further) and _proven(known, -further):
                    here = here.substitute({name: value})
    return Level(here.depth, here.where - {Poly()})


def _same_place(apart: Poly, around: Constraints) -> Iterator[tuple[str, Poly]]:
    """What the indices of one flattening may be, so that it equals another one."""
    names = variables_of([apart])
    outer = variables_of(around)
    own = sorted(names - outer)
    slopes = {name: apart.coefficient(name) for name in names}
    partner = {
        name: next((x for x in sorted(names & outer) if slopes[x] == -slopes[name]), None)
        for name in own
    }
    values = {name: Poly.atom(x) if x else Poly() for name, x in partner.items()}
    rest = apart.substitute(values)
    if variables_of([rest]):
        return
    for name in sorted(own, key=lambda name: slopes[name] in (1, -1)):
        if len(slopes[name].terms) == 1:
            shift = (rest / slopes[name]).constant()
            yield name, values[name] - shift if isinstance(shift, int) else values[name]


def points_of(system: System, phase: str) -> tuple[Instances, ...]:
    """The points that a phase executes, whether they depend on an input or not."""
    if phase == "training":
        return tuple(Instances(e, e.domain, once=False) for e in system.equations)
    return instances(system, phase)


def in_turn(block: Block, parts: Sequence[Instances], system: System, phase: str) -> bool:
    """Whether the rows of a block are computed one after another in a phase.

    For one token they are not where the row before belongs to an older token.
    """
    if not block.is_loop or phase != "inference":
        return bool(parts) and block.is_loop
    fresh = [
        (part, at_token(part.constraints, tokens(system).at(ref), T))
        for part in parts
        for ref in references(part.equation)
        if block.lag(part.equation, ref) == 1
    ]
    if any(found != [part.constraints] for part, found in fresh if found):
        raise Unsupported("a loop of which one token computes some rows")
    return any(found for _, found in fresh)


ROW = "#row"
"""The row of a loop, in the depths of its arrays."""


def _rows_written(block: Block, part: Instances, row: str) -> Constraints:
    """The rows of a loop that one of several equations of an array writes."""
    here = block.row(part.equation)
    of_row = {a for a in here.letters if a[0] == "@"}
    hidden = sorted({*part.variables} - of_row, reverse=True)
    written = projected(part.constraints | {Poly.atom(row) - here, here - Poly.atom(row)}, hidden)
    return projected(written, sorted(of_row))


def last_row(block: Block, parts: Sequence[Instances]) -> Poly | None:
    """The number of the last row of a loop if that is computed otherwise than the rows before."""
    ends = {array.shape[axis] for array, axis in block.axes.items()}
    for part in parts:
        row, end = (
            block.row(part.equation),
            part.equation.array.shape[block.axes[part.equation.array]],
        )
        number = row.constant() is not None
        if (row == end and not number) or (
            not number and infeasible(part.constraints | {row - end})
        ):
            if len(ends) > 1:
                raise Unsupported(f"{part.equation.name}: a loop of rows of different numbers")
            return end
    return None


def at_rows(block: Block, part: Instances, where: Callable[[Poly], set[Poly]]) -> Instances | None:
    """The instances of a loop at some of its rows, if there are any."""
    joined = part.constraints | {c for c in where(block.row(part.equation)) if c.terms}
    kept = None if infeasible(joined) else simplified(joined)
    return None if kept is None else replace(part, constraints=kept)


def first_row(block: Block, part: Instances) -> Instances | None:
    """The instances of the first row of a loop, if there are any."""
    row = block.row(part.equation)
    joined = part.constraints | {row - 1, 1 - row}
    if row.constant() not in (None, 1):
        raise Unsupported(f"{part.equation.name}: a loop with more than one first row")
    return None if infeasible(joined) else replace(part, constraints=joined)


def later_row(block: Block, part: Instances) -> Instances | None:
    """The instances of the rows from 2 on, which are all alike."""
    row = block.row(part.equation)
    if not variables_of([row]):
        return None
    joined = part.constraints | {row - 2}
    if infeasible(joined):
        return None
    if not all(implied(frozenset({row - 2}), c) for c in joined if _starts(row, c)):
        raise Unsupported(f"{part.equation.name}: a loop whose rows begin after the second")
    return replace(part, constraints=joined)


def check_rows(block: Block, part: Instances) -> None:
    """Raise Unsupported unless all rows of a part are those of its equation."""
    row, domain = block.row(part.equation), part.equation.domain
    if any(c.letters & variables_of([row]) for c in part.constraints - domain):
        raise Unsupported(f"{part.equation.name}: a loop whose rows are not computed alike")


def _starts(row: Poly, constraint: Poly) -> bool:
    """Whether a constraint is a lower bound of the row alone."""
    (index,) = (a for a in row.letters if a[0] == "@")
    return constraint.coefficient(index) == Poly.of(1) and constraint.letters == {index}


Row = Mapping[Array, tuple[Poly, ...]]
"""How deep each array is in one row of a loop: the largest of these, in sizes alone."""
Steps = Mapping[Array, Sequence[tuple[Array, Poly]]]
"""For each array of a loop, the arrays of the row before that it reads, and how much deeper it is
than each."""


@dataclass(frozen=True)
class Entering:
    """A depth, in the row, that an array has by its own operands at the rows from `low` on."""

    array: Array
    depth: Poly
    low: Poly
    high: Poly | None
    """The last of the rows, if it is not the last of the loop."""
    where: Constraints
    """Conditions in sizes."""
    number: Poly
    """How many rows the array has."""

    @property
    def rows(self) -> Constraints:
        """The rows at which it holds."""
        ends = {Poly.atom(ROW) - self.low} | ({self.high - Poly.atom(ROW)} if self.high else set())
        return self.where | ends


@dataclass(frozen=True)
class Growth:
    """Some rows, one after another, and how much deeper each is after the last of them; nothing
    follows from the last where that is None."""

    rows: tuple[Row, ...]
    rate: Poly | None

    def levels(self, low: Poly, where: Constraints) -> Iterator[tuple[Array, Level]]:
        """The depths in the row, the first of the rows being `low`."""
        for number, row in enumerate(self.rows):
            here = Poly.atom(ROW) - low - number
            going_on = self.rate if number == len(self.rows) - 1 else None
            these = where | ({here} if going_on is not None else {here, -here})
            for array, depths in row.items():
                for depth in depths:
                    grown = depth if going_on is None else depth + here * going_on
                    yield array, Level(grown, these)


def rows(
    first: Mapping[Array, Depth], later: Mapping[Array, Depth], number: Mapping[Array, Poly]
) -> Mapping[Array, Sequence[Level]]:
    """The depth of every row of a loop, in the row.

    A row is as deep as its own operands, or some levels deeper than what it reads of the row
    before. So its depth is the largest of those that enter at some row and go on from there. Where
    operands get deeper more slowly than the loop does, it is those of their first row that count;
    where they do so faster, those of the row itself.

    Args:
        first: depths at row 1.
        later: depths at a row from 2 on, `^name` standing for the array's depth one row before.
        number: how many rows there are.
    """
    steps = _steps(later)
    entering = [
        entry
        for array, levels in later.items()
        for level in levels
        if (entry := _entering(array, level, number[array])) is not None
    ]
    starts: dict[tuple[Poly, Constraints], dict[Array, list[Poly]]] = {}
    found: list[tuple[Array, Level]] = []
    for array, levels in first.items():
        for level in levels:
            where = frozenset(c.substitute({ROW: ONE}) for c in level.where)
            _start(starts, array, level.depth, ONE, where)
    for entry in entering:
        slow = _slow(entry, entering, steps)
        fast = not slow and _fast(entry, entering, steps)
        if fast:
            found.append((entry.array, Level(entry.depth, entry.rows)))
        else:
            found += () if slow else _on_the_way(entry, steps)
            _start(starts, entry.array, entry.depth, entry.low, _ends(entry))
        if not slow and entry.high is not None:
            _start(starts, entry.array, entry.depth, entry.high, _ends(entry))
    for low, where, begun in _runs(starts):
        found += _growth(steps, begun).levels(low, where)
    result: dict[Array, list[Level]] = {array: [] for array, _ in found}
    for array, level in found:
        result[array].append(level)
    return result


Starts = dict[tuple[Poly, Constraints], dict[Array, list[Poly]]]
"""What enters at a row, under conditions in sizes, to go on from there."""


def _start(starts: Starts, array: Array, depth: Poly, row: Poly, where: Constraints) -> None:
    """Note that a depth enters at a row, if there is such a row."""
    kept = simplified(where)
    if kept is not None:
        entries = starts.setdefault((row, kept), {}).setdefault(array, [])
        entries.append(depth.substitute({ROW: row}))


def _runs(starts: Starts) -> Iterator[tuple[Poly, Constraints, list[Row]]]:
    """The first row of each run through a loop, its conditions and what enters row by row.

    What enters at numbered rows without conditions is one run from row 1.
    """
    joint: dict[int, Row] = {}
    for (low, where), entries in starts.items():
        row = {array: _deepest(depths) for array, depths in entries.items()}
        number = low.constant()
        if where or not isinstance(number, int):
            yield low, where, [row]
        else:
            joint[number] = row
    if joint:
        yield ONE, frozenset(), [joint.get(k, {}) for k in range(1, max(joint) + 1)]


def _steps(later: Mapping[Array, Depth]) -> Steps:
    found: dict[Array, list[tuple[Array, Poly]]] = {}
    named = {"^" + array.name: array for array in later}
    for array, levels in later.items():
        for level in levels:
            for mark in sorted(level.depth.atoms & named.keys()):
                rate = level.depth - Poly.atom(mark)
                known = frozenset({Poly.atom(ROW) - 2})
                if ROW in rate.letters or not all(_proven(known, c) for c in level.where):
                    raise Unsupported("a loop whose rows do not all go on in the same way")
                found.setdefault(array, []).append((named[mark], rate))
    return found


def _entering(array: Array, level: Level, number: Poly) -> Entering | None:
    """A depth that goes on from no row before, with the rows where it holds."""
    if any(atom[0] == "^" for atom in level.depth.atoms):
        return None
    lower, upper, rest = bounds(level.where | {Poly.atom(ROW) - 2}, ROW)
    if any(scale != ONE for scale, _ in lower + upper):
        raise Unsupported("a loop some of whose rows lie at a stride")
    where = frozenset(rest)
    lows, highs = ([end for _, end in side] for side in (lower, upper))
    if _tightest(lows, where, 1) is None or (highs and _tightest(highs, where, -1) is None):
        where |= {number - 2}
    low = _the_tightest(lows, where, 1)
    high = _the_tightest(highs, where, -1) if highs else None
    return Entering(array, level.depth, low, high, where, number)


def _the_tightest(ends: Sequence[Poly], where: Constraints, sign: int) -> Poly:
    """The same; Unsupported where none is proven to be it."""
    found = _tightest(ends, where, sign)
    if found is None:
        raise Unsupported("which rows of a loop have an operand depends on the sizes")
    return found


def _tightest(ends: Sequence[Poly], where: Constraints, sign: int) -> Poly | None:
    """The largest (1) or smallest (-1) of some ends, if one is proven to be it."""
    proven = (x for x in ends if all(_proven(where, (x - other) * sign) for other in ends))
    return next(proven, None)


def _ends(entry: Entering) -> Constraints:
    """The conditions under which an operand has a row."""
    return entry.where | ({entry.high - entry.low} if entry.high is not None else frozenset())


def _slow(entry: Entering, entering: Sequence[Entering], steps: Steps) -> bool:
    """Whether, after its first row, an operand is proven to be no deeper than what goes on from the
    row before."""
    around = _followed(entry)
    following = _at_most(entry.depth, around)
    return any(
        rival.array is origin
        and all(_proven(around, c) for c in rival.rows)
        and dominates(around, rival.depth + rate, following)
        for origin, rate in steps.get(entry.array, ())
        for rival in entering
    )


def _fast(entry: Entering, entering: Sequence[Entering], steps: Steps) -> bool:
    """Whether what goes on from an operand is proven to be no deeper than one of the next row."""
    around, following = _followed(entry), {ROW: Poly.atom(ROW) + 1}
    return all(
        any(
            rival.array is array
            and all(_proven(around, c.substitute(following)) for c in rival.rows)
            and dominates(around, rival.depth.substitute(following), entry.depth + rate)
            for rival in entering
        )
        for array, sources in steps.items()
        for origin, rate in sources
        if origin is entry.array
    )


def _followed(entry: Entering) -> Constraints:
    """The rows of an operand after which it has another one."""
    ends = [entry.number] if entry.high is None else [entry.number, entry.high]
    return entry.rows | {end - Poly.atom(ROW) - 1 for end in ends}


def _at_most(depth: Poly, around: Constraints) -> Poly:
    """A bound on a depth one row later: a logarithm grows by at most 1 if its argument at most
    doubles."""
    logs = [
        atom
        for atom in sorted(depth.atoms)
        if isinstance(atom, Fn)
        and atom.function == "ceil_log2"
        and ROW in Poly.atom(atom).letters
        and _at_most_doubles(atom.args[0], around)
    ]
    kept: dict[str, Poly] = {atom: Poly.atom(f"^log {k}") for k, atom in enumerate(logs)}
    moved = depth.substitute(kept).substitute({ROW: Poly.atom(ROW) + 1})
    return moved.substitute({f"^log {k}": Poly.atom(atom) + 1 for k, atom in enumerate(logs)})


def _at_most_doubles(argument: Poly, around: Constraints) -> bool:
    """Whether a number of terms is proven to be at most twice as large one row later."""
    least = [a for a in argument.atoms if isinstance(a, Fn) and ROW in Poly.atom(a).letters]
    if not least:
        moved = argument.substitute({ROW: Poly.atom(ROW) + 1})
        return _proven(around, argument * 2 - moved)
    (atom, *others) = least
    factor = argument.coefficient(atom)
    rest = argument - Poly.atom(atom) * factor
    if others or atom.function != "Min" or not nonnegative(factor):
        return False
    return all(_at_most_doubles(factor * term + rest, around) for term in atom.args)


def _on_the_way(entry: Entering, steps: Steps) -> Iterator[tuple[Array, Level]]:
    """What goes on from an operand that gets deeper by the same number of levels in each row.

    Of the rows where it can have entered, the first or one of the last is the best; this is for the
    last ones.
    """
    slope = entry.depth.coefficient(ROW)
    if ROW in (entry.depth - slope * Poly.atom(ROW)).letters | slope.letters:
        raise Unsupported("a loop whose operands get deeper from row to row")
    for number, row in enumerate(_growth(steps, [{entry.array: (Poly(),)}]).rows):
        before = {ROW: Poly.atom(ROW) - number}
        where = frozenset(c.substitute(before) for c in entry.rows)
        for array, depths in row.items():
            for depth in depths:
                yield array, Level(entry.depth.substitute(before) + depth, where)


def _growth(steps: Steps, begun: Sequence[Row]) -> Growth:
    """Rows are worked out until each array is equally much deeper in the next one."""
    known: list[Row] = []
    while len(known) < len(begun) + MOST:
        row = dict(_next_row(known[-1], steps)) if known else {}
        for array, depths in begun[len(known)].items() if len(known) < len(begun) else ():
            row[array] = _deepest((*row.get(array, ()), *depths))
        known.append(row)
        if len(known) < len(begun):
            continue
        following = _next_row(row, steps)
        rate = _rate(row, following)
        if rate is not None or not following:
            return Growth(tuple(known), rate)
    raise Unsupported("the deepest chain through the rows of a loop changes from row to row")


def _deepest(depths: Iterable[Poly]) -> tuple[Poly, ...]:
    return tuple(level.depth for level in pruned(frozenset(), map(Level, depths)))


def _next_row(before: Row, steps: Steps) -> Row:
    """The depths of a row that go on from those of the row before it."""
    found = {
        array: _deepest(
            depth + rate for origin, rate in sources for depth in before.get(origin, ())
        )
        for array, sources in steps.items()
    }
    return {array: depths for array, depths in found.items() if depths}


def _rate(row: Row, following: Row) -> Poly | None:
    """How much deeper the next row is, if it is so for every array; None if that is not proven."""
    if row.keys() != following.keys():
        return None
    rates = [deep - depth for a in list(row)[:1] for deep in following[a] for depth in row[a]]
    return next(
        (
            rate
            for rate in rates
            if all(_equally_deep(following[a], [depth + rate for depth in row[a]]) for a in row)
        ),
        None,
    )


def _equally_deep(one: Sequence[Poly], two: Sequence[Poly]) -> bool:
    """Whether the largest of some depths is the largest of others, for all sizes."""
    return all(
        any(dominates(frozenset(), rival, depth) for rival in rivals)
        for depths, rivals in ((one, two), (two, one))
        for depth in depths
    )


def _settled(ends: Sequence[Level]) -> Depth:
    """The deepest ends; a guard is dropped where below it another end is as deep anyway."""
    kept = list(pruned(frozenset(), ends))
    for k, level in enumerate(kept):
        for guard in sorted(level.where, key=str):
            others = [x for j, x in enumerate(kept) if j != k and not x.where]
            if _needless(guard, kept[k], others):
                kept[k] = Level(level.depth, kept[k].where - {guard})
    return pruned(frozenset(), kept)


def _needless(guard: Poly, level: Level, others: Sequence[Level]) -> bool:
    """Whether an end is no deeper than another one at the few sizes that its guard excludes."""
    for letter in guard.letters:
        least = Poly.atom(letter) - guard
        number = least.constant()
        if not isinstance(number, int) or not 2 <= number <= MOST:
            return False
        for value in range(1, number):
            at = {letter: Poly.of(value)}
            if not _proper(level.depth, at):
                return False
            depth = level.depth.substitute(at)
            deepest = [x.depth.substitute(at) for x in others if _proper(x.depth, at)]
            if not any(dominates(frozenset(), other, depth) for other in deepest):
                return False
    return True


def _proper(depth: Poly, at: Mapping[str, Poly]) -> bool:
    """Whether every logarithm in a depth is one of a positive integer at some sizes."""
    return all(
        nonnegative(atom.args[0].substitute(at) - 1)
        for atom in depth.atoms
        if isinstance(atom, Fn) and atom.function == "ceil_log2"
    )


MOST = 4
"""Rows of a loop that are worked out, and the guards `size >= 4` and below that are tried."""

READY: Depth = (Level(Poly()),)


def _ready(depths: Depths, node: Node, part: Instances, around: Constraints) -> Depth:
    return READY


def _ref(depths: Depths, node: Ref, part: Instances, around: Constraints) -> Depth:
    before = depths.before.get(part.equation, {}).get(node)
    if before is not None:
        return before
    gathers = [level for child in node.children for level in depths.depth(child, part, around)]
    if depths.may_be_fresh(node):
        found = (_at_places(level, node, around) for level in depths.arrays[node.array])
        if not all(_there_before(x, gathers, around) for x in found if x):
            raise _depends_on_place(node)
        return pruned(around, gathers)
    return pruned(around, (*gathers, *_entry(depths, node, around)))


def _there_before(level: Level, gathers: Sequence[Level], around: Constraints) -> bool:
    """Whether an entry is proven to be there when the position is at which it is gathered."""
    known = around | level.where
    return any(
        all(_proven(known, c) for c in gather.where)
        and nonnegative(_with_positive_extrema(gather.depth - level.depth, known))
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
        here = _at_places(Level(level.depth, level.where | inside), node, around)
        if here is None:
            continue
        for part in fresh:
            where = frozenset(c for c in here.where | part if not _proven(around, c))
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
        maximised(level, hidden, inner) + levels for level in depths.depth(node.body, part, inner)
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


def numbers_of_terms(
    node: Reduction, part: Instances, around: Constraints
) -> Iterator[tuple[Poly, Constraints]]:
    """How many terms a reduction has, in the indices around it, and where; sums over no term are no
    terms."""
    there = dict.fromkeys(node.parts, EVERYWHERE)
    if may_be_empty(part.equation):
        for one in node.parts:
            inner = around.union(*(index.constraints for index in one.over))
            there[one] = present(one.body, inner)
    if isinstance(node, Reduce) and there[node] == EVERYWHERE:
        try:
            yield terms_of(node.over), frozenset()
            return
        except Unsupported:
            pass
    number_of_all = Exact()
    for one, places in there.items():
        number_of_all = number_of_all + _terms_at(one.over, places)
    cases = number_of_all.chambers()
    if isinstance(node, Joined) and _smallest(cases, around):
        cases = [(frozenset(), call("Min", *(number for _, number in cases)))]
    for guards, number in cases:
        where = frozenset(c for c in guards if not _proven(around, c))
        if number.terms and not infeasible(around | where):
            yield number, where


def _smallest(cases: Sequence[tuple[Constraints, Poly]], around: Constraints) -> bool:
    """Whether each of some cases is proven to give the smallest number wherever it holds."""
    return all(
        _proven(around | guards, other - number) for guards, number in cases for _, other in cases
    )


def _terms_at(over: tuple[Index, ...], places: Places) -> Exact:
    """How many points the ranges of a reduction have at some places, in the indices around it."""
    ranges: Constraints = frozenset().union(*(index.constraints for index in over))
    names = tuple(index.atom for index in over)
    around = {a for c in ranges.union(*places) for a in variables_of([c])} - {*names}
    fixed = {a: Poly.atom("outer " + a) for a in around}
    number = Exact()
    for place in places:
        inside = frozenset(c.substitute(fixed) for c in ranges | place)
        number = number + total(names, inside, ONE)
    if len(number.pieces) > MOST:
        raise Unsupported("the number of terms of a reduction depends on cases")
    return number.substitute({f"outer {a}": Poly.atom(a) for a in around})


def _fft(depths: Depths, node: Fft, part: Instances, around: Constraints) -> Depth:
    """Every radix-2 level is a product of twiddles (2) and a sum (1)."""
    return reduced(depths, node, part, around, call("ceil_log2", node.length) * 3)


def _select(depths: Depths, node: Select, part: Instances, around: Constraints) -> Depth:
    """All positions of a row are known at once, when the last one is."""
    return tuple(
        Level(level.depth, level.where | where)
        for number, where in numbers_of_terms(node.maximum, part, around)
        for level in reduced(
            depths, node, part, around | where, levels_of(node, number, number_kept(part))
        )
    )


def number_kept(part: Instances) -> Poly:
    """How many positions are chosen in each row, in the indices of the row."""
    numbers = rank(part.equation)
    return ONE if numbers is None else terms_of((numbers,))


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
) -> Span:
    """The span of a phase: levels of scalar operations with unlimited processors; exact.

    Raises:
        Unanswered: inference of a form that has none.

    >>> import costmodel as cm
    >>> cm.span(cm.mixer("she")).at(d=128, l=128)
    24
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, named_convention(convention).rewrites, phase)
    return Span(depths_of(system, phase).latest)
