"""The depth of every row of a loop, from its first row and a recurrence from row to row.

A loop is a block of equations whose arrays are computed row by row, each row from the row before. A
part is one equation of a loop, with constraints (polynomials >= 0) on its indices under which a
phase executes it. A depth, the length of the longest path of operations, is a maximum of levels:
polynomials, each with conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Ref, position_value
from costmodel.paths.growing_rows import ROW, ROWS_WORKED_OUT, Steps, deepest, growing_rows
from costmodel.paths.row_chains import RowDepths
from costmodel.program.dependence import at_token, reads
from costmodel.program.owners import owners
from costmodel.program.phases import IterationDomain, T, iteration_domains
from costmodel.program.recurrences import Block, references
from costmodel.program.wellformed import whole
from costmodel.symbolic.constraints import (
    ONE,
    Constraints,
    bounds,
    implied,
    infeasible,
    nonnegative,
    outside,
    projected,
    simplified,
    variables_of,
)
from costmodel.symbolic.piecewise_max import (
    Depth,
    Level,
    is_at_least,
    proven,
    the_tightest,
    tightest,
)
from costmodel.symbolic.polynomial import (
    Fn,
    Poly,
    axis_atom,
    by_text,
    is_index,
    is_stand_in,
    stand_in,
)


def points_of(system: System, phase: str) -> tuple[IterationDomain, ...]:
    """The iteration domains that a phase executes, work on parameters alone included."""
    if phase == "training":
        return tuple(IterationDomain(e, e.domain, once=False) for e in system.equations)
    return iteration_domains(system, phase)


def in_turn(block: Block, parts: Sequence[IterationDomain], system: System, phase: str) -> bool:
    """Whether a phase computes several rows of a block (a strongly connected component) one after
    another. False for a block that is no loop or of which the phase executes no `parts`, and in
    one-token inference if the previous row belongs to an older token.

    Raises:
        Unsupported: one token computes some rows only, or rows further back than one are read.
    """
    if not (parts and block.is_loop):
        return False
    if phase == "inference":
        fresh = [
            (known, at_token(known, owners(system).at(read.ref), T))
            for part in parts
            for read in reads(part.equation)
            if block.lag(part.equation, read.ref)
            for known in [part.constraints | read.constraints]
        ]
        # the rows before are the token's own at all points, or at none
        if any(found != [known] for known, found in fresh if found):
            name = parts[0].equation.name
            raise Unsupported(
                f"{name}: one new token computes only some rows of the recurrence, and the depth "
                "is derived only for all rows: ask for phase training"
            )
        if not any(found for _, found in fresh):
            return False
    if block.reach > 1:
        name = parts[0].equation.name
        raise Unsupported(
            f"{name}: the recurrence reads rows further back than the previous row, so that no "
            "formula of the depth is derived"
        )
    return True


def reads_of_previous_row(
    block: Block, parts: Sequence[IterationDomain], system: System, phase: str
) -> Iterator[tuple[Equation, Ref]]:
    """Yield (equation, reference) for each reference of a loop to entries of the previous row that
    this phase computes; in one-token inference, entries of older tokens are known already. `parts`:
    the instances of the loop's equations that the phase executes."""
    for equation in block.equations:
        points = [part.constraints for part in parts if part.equation is equation]
        for ref in references(equation):
            if block.lag(equation, ref) == 1 and (
                phase != "inference"
                or any(at_token(point, owners(system).at(ref), T) for point in points)
            ):
                yield equation, ref


def kept_axes(block: Block) -> frozenset[str]:
    """The axes along which a loop's entries do not depend on each other: each reference to an array
    of the loop has the position there that its equation defines, as axis 0 of S[i, r - 1] in S[i,
    r] = S[i, r - 1] + x[i, r]. The axes of rows are none of them."""
    kept = {*range(min(len(array.shape) for array in block.axes))} - {*block.axes.values()}
    for equation in block.equations:
        for ref in references(equation):
            if ref.array in block.axes:
                kept = {k for k in kept if ref.positions[k] == equation.positions[k]}
    kept = {k for k in kept if len({array.shape[k] for array in block.axes}) == 1}
    return frozenset(map(axis_atom, kept))


def rows_written(
    block: Block, part: IterationDomain, row: str, kept: Collection[str] = ()
) -> Constraints:
    """The rows of a loop that one equation writes, as constraints on the variable named `row`: at
    least 2 and at most l for y[i] with i in 2..l. With `kept`, the entries on these axes too, if
    they do not lie at a stride (every second entry)."""
    here = {row: block.row(part.equation)}
    for k, position in enumerate(part.equation.positions):
        if axis_atom(k) in kept:
            here[axis_atom(k)] = position_value(position)
    own = {a for value in here.values() for a in value.letters if is_index(a)}
    apart = (Poly.atom(axis) - value for axis, value in here.items())
    placed = part.constraints | {c for a in apart for c in (a, -a)}
    try:
        written = projected(placed, sorted({*part.variables} - own, reverse=True))
        return projected(written, sorted(own))
    except Unsupported:
        if not kept:
            raise
        return rows_written(block, part, row)


MOST_REGIONS = 16
"""The largest number of regions in which the rows of a loop are solved apart from each other."""


def regions(array: Array, levels: Iterable[Level], kept: Collection[str]) -> list[Constraints]:
    """Disjoint regions of the axes `kept` of a loop's arrays, of which `array` is one: within one
    region, each condition of a level (a depth under conditions) on these axes holds everywhere or
    nowhere. #0 >= 2 and its opposite give two regions. Unsupported for more than `MOST_REGIONS`."""
    found: list[Constraints] = [frozenset()]
    for c in by_text({c for level in levels for c in level.where}):
        if c.letters.isdisjoint(kept) or any(c in r or -c - 1 in r for r in found):
            continue
        halves = [r | {half} for r in found for half in (c, -c - 1)]
        found = [half for half in halves if not infeasible(half | whole(array))]
        if len(found) > MOST_REGIONS:
            raise unequal_rows(array)
    return found


def within(levels: Depth, region: Constraints) -> Depth:
    """The levels (depths under conditions) that exist in a region, without the conditions that hold
    in all of it."""
    there = [x for x in levels if not any(-c - 1 in region for c in x.where)]
    return tuple(x.under(x.where - region) for x in there)


def unequal_rows(array: Array) -> Unsupported:
    """The refusal of a loop in which no formula of the depths of one row is derived."""
    return Unsupported(
        f"{array.name}: the longest chains of operations to entries of one row of the recurrence "
        "differ in length, so that no formula of the depth is derived"
    )


def rows_apart(block: Block, parts: Sequence[IterationDomain]) -> tuple[Poly, int] | None:
    """(last row of a loop, number of last rows that are solved apart from the rows before); None if
    all equations go to the last row. A row is solved apart if an equation of its own computes the
    row, or an equation ends before it: for r <= l - 1 beside V[l] in a loop of l + 1 rows, the last
    2. `parts`: the instances that the phase executes.

    Raises:
        Unsupported: arrays end at different rows, or a row of its own is neither one of the first
            nor at a fixed distance from the last.
    """
    ends = {*block.last_rows.values()}
    most, last = 0, Poly()
    for part in parts:
        row, end = block.row(part.equation), block.last_rows[part.equation.array]
        if row.constant() is not None:  # such as row 1
            continue
        number = _rows_behind(part, row, end)
        if number and len(ends) > 1:
            named = (f"{array.name} at row {row}" for array, row in block.last_rows.items())
            raise Unsupported(
                "arrays of one recurrence end at different rows, so that no formula of "
                f"their depths is derived: {', '.join(named)}"
            )
        if number > most:
            most, last = number, end
    return (last, most) if most else None


def _rows_behind(part: IterationDomain, row: Poly, end: Poly) -> int:
    """The number of last rows, up to row `end` of a loop, that have other equations than the rows
    before because of one equation, of row `row`: 2 for V[l] alone and for V[i] with i <= l - 2
    where `end` is l."""
    if variables_of([row]):
        nearest = range(ROWS_WORKED_OUT)
        return next((k for k in nearest if not infeasible(part.constraints | {row - end + k})), 1)
    behind = (end - row).constant()
    if not isinstance(behind, int):
        raise _lone_row(part, row)
    return behind + 1


def at_rows(
    block: Block, part: IterationDomain, where: Callable[[Poly], set[Poly]]
) -> IterationDomain | None:
    """The instances of an equation at some rows of a loop; None if there are none. `where` gives
    the constraints (each >= 0) on the row that an instance defines, such as {l - 1 - row}."""
    joined = part.constraints | {c for c in where(block.row(part.equation)) if c.terms}
    kept = None if infeasible(joined) else simplified(joined)
    return None if kept is None else replace(part, constraints=kept)


def first_row(block: Block, part: IterationDomain) -> IterationDomain | None:
    """The instances of an equation at row 1; None if there are none. Unsupported for an equation
    that defines one row alone which is not row 1, such as s[3] = x[3]."""
    row = block.row(part.equation)
    joined = part.constraints | {row - 1, 1 - row}
    if row.constant() not in (None, 1):
        raise _lone_row(part, row)
    return None if infeasible(joined) else replace(part, constraints=joined)


def _lone_row(part: IterationDomain, row: Poly) -> Unsupported:
    """The refusal of a loop in which an equation computes one row alone, neither row 1 nor one of
    the last rows."""
    return Unsupported(
        f"{part.equation.name} defines row {row} of the recurrence by itself, and a formula "
        "of the depth is derived only if all rows after row 1 have the same equations"
    )


def later_row(block: Block, part: IterationDomain) -> IterationDomain | None:
    """The instances of an equation at the rows from 2 on; None if there are none.

    Raises:
        Unsupported: the equation begins after row 2, so that these rows are not all computed alike.
    """
    row = block.row(part.equation)
    if not variables_of([row]):
        return None
    joined = part.constraints | {row - 2}
    if infeasible(joined):
        return None
    if not all(implied(frozenset({row - 2}), c) for c in joined if _bounds_row_below(row, c)):
        raise Unsupported(
            f"{part.equation.name}: the rows of the recurrence begin after row 2, and rows from 2 "
            "on must be computed alike: start the index at row 2 or earlier"
        )
    return replace(part, constraints=joined)


def check_rows(block: Block, part: IterationDomain) -> None:
    """Raise Unsupported if a phase computes only some rows of a loop's equation: a recurrence is
    solved for all rows."""
    row, domain = block.row(part.equation), part.equation.domain
    if any(c.letters & variables_of([row]) for c in part.constraints - domain):
        raise Unsupported(
            f"{part.equation.name}: the phase computes only some rows of the recurrence, and the "
            "depth is derived only for all rows: ask for phase training"
        )


def _bounds_row_below(row: Poly, constraint: Poly) -> bool:
    """Whether a constraint is a lower bound on the row index and contains no other letter."""
    (index,) = (a for a in row.letters if is_index(a))
    return constraint.coefficient(index) == Poly.of(1) and constraint.letters == {index}


@dataclass(frozen=True)
class Entering:
    """A depth that an array of a loop has from operands outside the loop, at the rows `low` to
    `high`."""

    array: Array
    level: Level
    """The depth in the variable `#row`, without conditions."""
    low: Poly
    high: Poly | None
    """The last of these rows; None for the last row of the loop."""
    where: Constraints
    """The conditions on sizes under which the depth exists."""
    number: Poly
    """The number of rows of the array."""

    @property
    def depth(self) -> Poly:
        """The depth in the variable `#row`."""
        return self.level.depth

    @property
    def rows(self) -> Constraints:
        """The constraints on `#row` and on sizes under which the array has this depth."""
        ends = {Poly.atom(ROW) - self.low} | ({self.high - Poly.atom(ROW)} if self.high else set())
        return self.where | ends


def depths_of_rows(
    first: Mapping[Array, Depth], later: Mapping[Array, Depth], number: Mapping[Array, Poly]
) -> Mapping[Array, Sequence[Level]]:
    """Array -> the depth of every row of a loop, as levels (depths in `#row`, under conditions).

    The recurrence is depth(r) = max(own(r), depth(r-1) + rate), where own(r) is the depth that row
    r gets from operands outside the loop (they enter at row r), and `rate` the depth that one row
    adds. So depth(r) is the maximum of own(s) + (r-s)*rate over s <= r. Where own(s) grows more
    slowly in s than the rate, the best s is the first row with such operands; where own(s) grows
    faster, the best s is r; else, for own(s) affine in s, it is the first row or one of the last.

    Args:
        first: depths at row 1.
        later: depths at a row from 2 on; the atom `^name` is the depth of array `name` in the row
            before.
        number: the number of rows of each array.

    Raises:
        Unsupported: rows differ in their steps from row to row, or own(s) is none of the three.
    """
    steps = _steps_between_rows(later, number)
    entering = [
        entry
        for array, levels in later.items()
        for level in levels
        if (entry := _entering(array, level, number[array])) is not None
    ]
    starts: Starts = {}
    found: list[tuple[Array, Level]] = []
    for array, levels in first.items():
        for level in levels:
            where = frozenset(c.substitute({ROW: ONE}) for c in level.where)
            _note_start(starts, array, level, ONE, where)
    for entry in entering:
        slow = _slow(entry, entering, steps)
        fast = not slow and _fast(entry, entering, steps)
        if fast:
            found.append((entry.array, entry.level.under(entry.rows)))
        else:
            found += () if slow else _on_the_way(entry, steps)
            _note_start(starts, entry.array, entry.level, entry.low, _entry_conditions(entry))
        # operands that end before the loop go on from their last row
        if not slow and entry.high is not None:
            _note_start(starts, entry.array, entry.level, entry.high, _entry_conditions(entry))
    for low, where, begun in _runs_through_loop(starts):
        found += growing_rows(steps, begun).levels(low, where)
    result: dict[Array, list[Level]] = {array: [] for array, _ in found}
    for array, level in found:
        result[array].append(level)
    return result


Starts = dict[tuple[Poly, Constraints], dict[Array, list[Level]]]
"""(row, conditions on sizes) -> array -> depths that enter there and propagate from row to row."""


def _note_start(starts: Starts, array: Array, level: Level, row: Poly, where: Constraints) -> None:
    """Add to `starts` that an array of a loop gets the depth of `level`, in the variable `#row`, at
    the row `row` from operands outside the loop, under the conditions `where` on sizes, which
    replace those of `level`; nothing if no sizes satisfy them."""
    kept = simplified(where)
    if kept is not None:
        entries = starts.setdefault((row, kept), {}).setdefault(array, [])
        entries.append(level.under(frozenset()).substitute({ROW: row}))


def _runs_through_loop(starts: Starts) -> Iterator[tuple[Poly, Constraints, list[RowDepths]]]:
    """Yield the runs in which depths propagate from row to row, as (first row, conditions on sizes,
    the depths from outside the loop at each row from the first on). All starts at a row with a
    number, without conditions, make one run from row 1; each other start is a run by itself."""
    joint: dict[int, RowDepths] = {}
    for (low, where), entries in starts.items():
        row = {array: deepest(depths) for array, depths in entries.items()}
        number = low.constant()
        if where or not isinstance(number, int):
            yield low, where, [row]
        else:
            joint[number] = row
    if joint:
        yield ONE, frozenset(), [joint.get(k, {}) for k in range(1, max(joint) + 1)]


def _steps_between_rows(later: Mapping[Array, Depth], number: Mapping[Array, Poly]) -> Steps:
    """The recurrence from row to row: array -> pairs (array of the previous row, depth that is
    added), from the atoms `^name` (the depth of array `name` in the previous row) in the depths
    `later`: y -> [(y, 2)] for the depth ^y + 2 of y. `number`: array -> its number of rows.
    Unsupported if the added depth depends on the row, or holds at some rows only."""
    found: dict[Array, list[tuple[Array, Level]]] = {}
    named = {stand_in(array.name): array for array in later}
    for array, levels in later.items():
        for level in levels:
            for mark in sorted(level.depth.atoms & named.keys()):
                rate = level._replace(depth=level.depth - Poly.atom(mark))
                known = frozenset({Poly.atom(ROW) - 2, number[array] - Poly.atom(ROW)})
                alike = [other.where for other in levels if other.depth == level.depth]
                if ROW in rate.depth.letters or outside(known, alike):
                    raise Unsupported(
                        f"{array.name}: the chain of operations from one row of the recurrence to "
                        "the next is longer at some rows than at others, so that no formula "
                        "of the longest chain is derived"
                    )
                found.setdefault(array, []).append((named[mark], rate.under(frozenset())))
    return found


def _entering(array: Array, level: Level, number: Poly) -> Entering | None:
    """A depth that an array of a loop (with `number` rows) gets from operands outside, at rows from
    2 on, with the first and last row at which it holds; None if the level depends on the row
    before. Unsupported if its rows lie at a stride (every second row), or which bound of the rows
    is the tightest depends on the sizes."""
    if any(is_stand_in(atom) for atom in level.depth.atoms):
        return None
    lower, upper, rest = bounds(level.where | {Poly.atom(ROW) - 2}, ROW)
    for scale, _ in lower + upper:
        if scale != ONE:
            raise Unsupported(
                f"{array.name}: an operand of this recurrence is read at one row in {scale} alone: "
                "no formula of the longest chain of operations is derived for such reads"
            )
    where = frozenset(rest)
    lows, highs = ([end for _, end in side] for side in (lower, upper))
    # rows from 2 on exist for at least 2 rows, which may decide which bound is the tightest
    if tightest(lows, where, 1) is None or (highs and tightest(highs, where, -1) is None):
        where |= {number - 2}
    low = the_tightest(lows, where, 1)
    high = the_tightest(highs, where, -1) if highs else None
    return Entering(array, level.under(frozenset()), low, high, where, number)


def _entry_conditions(entry: Entering) -> Constraints:
    """The conditions on sizes under which the range `low` to `high` is not empty."""
    return entry.where | ({entry.high - entry.low} if entry.high is not None else frozenset())


def _slow(entry: Entering, entering: Sequence[Entering], steps: Steps) -> bool:
    """Whether a depth that enters the loop (comes from operands outside it) is proven to grow no
    faster from row to row than the loop adds per row, so that it counts at its first row alone: at
    each later row, some depth that enters at the row before, plus the depth added by `steps`, is at
    least as large. `entry` is the depth that is asked about, `entering` are all that enter."""
    around = _followed(entry)
    following = _at_most(entry.depth, around)
    return any(
        rival.array is origin
        and all(proven(around, c) for c in rival.rows)
        and is_at_least(around, rival.depth + rate.depth, following)
        for origin, rate in steps.get(entry.array, ())
        for rival in entering
    )


def _fast(entry: Entering, entering: Sequence[Entering], steps: Steps) -> bool:
    """Whether the depth `entry`, which enters the loop (comes from operands outside of it), is
    proven to grow from row to row at least by what the loop adds, so that each row is deepest by
    what enters there: for each way in `steps` (array -> ways to it from the previous row), the
    depth of `entry` plus that of the way is at most a depth in `entering`, all that enter, which
    enters the array at the next row."""
    around, following = _followed(entry), {ROW: Poly.atom(ROW) + 1}
    return all(
        any(
            rival.array is array
            and all(proven(around, c.substitute(following)) for c in rival.rows)
            and is_at_least(around, rival.depth.substitute(following), entry.depth + rate.depth)
            for rival in entering
        )
        for array, sources in steps.items()
        for origin, rate in sources
        if origin is entry.array
    )


def _followed(entry: Entering) -> Constraints:
    """The constraints on `#row` at the rows at which a depth enters the loop (comes from operands
    outside it) and enters at the next row too: all its rows but the last."""
    ends = [entry.number] if entry.high is None else [entry.number, entry.high]
    return entry.rows | {end - Poly.atom(ROW) - 1 for end in ends}


def _at_most(depth: Poly, around: Constraints) -> Poly:
    """An upper bound, in `#row`, on a depth at row `#row` + 1; factors of ceil_log2 are >= 0. A log
    grows by at most 1 if its argument at most doubles, by 0 if the argument does not grow under the
    constraints `around`: ceil_log2(#row) gives ceil_log2(#row) + 1. All else is of the next row."""
    logs = {
        atom: next((n for n in (0, 1) if _at_most_times(2**n, atom.args[0], around)), None)
        for atom in sorted(depth.atoms)
        if isinstance(atom, Fn) and atom.function == "ceil_log2" and ROW in Poly.atom(atom).letters
    }
    kept = [
        (stand_in(f"log {k}"), atom) for k, (atom, n) in enumerate(logs.items()) if n is not None
    ]
    moved = depth.substitute({atom: Poly.atom(mark) for mark, atom in kept})
    return moved.substitute({ROW: Poly.atom(ROW) + 1}).substitute(
        {mark: Poly.atom(atom) + logs[atom] for mark, atom in kept}
    )


def _at_most_times(times: int, argument: Poly, around: Constraints) -> bool:
    """Whether an argument (of a ceil_log2) at row `#row` + 1 is proven to be at most `times` its
    value at row `#row`, under the constraints `around` on `#row`: for `#row` and 2 where #row >= 1.
    A `Min` is proven to be if each of its terms is."""
    least = [a for a in argument.atoms if isinstance(a, Fn) and ROW in Poly.atom(a).letters]
    if not least:
        moved = argument.substitute({ROW: Poly.atom(ROW) + 1})
        return proven(around, argument * times - moved)
    (atom, *others) = least
    factor = argument.coefficient(atom)
    rest = argument - Poly.atom(atom) * factor
    if others or atom.function != "Min" or not nonnegative(factor):
        return False
    return all(_at_most_times(times, factor * term + rest, around) for term in atom.args)


def _on_the_way(entry: Entering, steps: Steps) -> Iterator[tuple[Array, Level]]:
    """Yield (array, level): the depth, under conditions, of a loop's array at row `#row` by paths
    that enter the loop from operands outside, at `entry`, in row `#row` or one of the few rows
    before, and go on by `steps`. The depth at which paths enter is affine in the row, so that the
    best row to enter is the first (from which the caller starts) or one of these. Raises
    Unsupported: that depth is not affine."""
    slope = entry.depth.coefficient(ROW)
    if ROW in (entry.depth - slope * Poly.atom(ROW)).letters | slope.letters:
        raise Unsupported(
            f"{entry.array.name}: the longest chain of operations that ends at an operand of the "
            "recurrence has no length linear in the row number, and no other length is solved"
        )
    ways = growing_rows(steps, [{entry.array: (entry.level._replace(depth=Poly()),)}])
    for number, row in enumerate(ways.rows):
        before = {ROW: Poly.atom(ROW) - number}
        where = frozenset(c.substitute(before) for c in entry.rows)
        for array, depths in row.items():
            for level in depths:
                here = level.under(frozenset()).substitute(before)
                yield (
                    array,
                    here._replace(depth=entry.depth.substitute(before) + level.depth, where=where),
                )
