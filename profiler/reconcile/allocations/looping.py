"""Which steps of a forward pass run row by row?

Those of a loop, operation by operation; and those whose rows have different lengths, for a tensor
has none: they run over the index that the ends of another one name. Loops over the same rows that
follow one another run together, as do those of which one reads the rows of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Flat, Position, walk
from costmodel.program.recurrences import references
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.carriers import FUSED
from profiler.reconcile.allocations.operations import Parts, places_of
from profiler.reconcile.allocations.rows import Operation, Rows, read, together


def in_rows(order: Sequence[Operation], parts: Parts) -> list[Operation]:
    """The steps, those that run in the rows of one loop as one, after what is computed of all rows
    before: like operations of these are one."""
    found = list(order)
    for loop in {parts.loops[e]: None for e in parts.inner}:
        before, inner = (
            [s for s in found if parts.loops.get(s[0]) == loop and s[0] in group]
            for group in (parts.before, parts.inner)
        )
        ran = sorted((e for s in inner for e in s), key=[*parts.inner].index)
        at = found.index(inner[-1]) + 1
        taken = [*together(before, read), tuple(ran)]
        ahead, behind = (
            [s for s in part if s not in (*before, *inner)] for part in (found[:at], found[at:])
        )
        found = [*ahead, *taken, *behind]
    return found


def loops_of(
    order: Sequence[Operation], parts: Parts, kernels: Mapping[str, str]
) -> tuple[list[Operation], dict[Operation, Rows]]:
    """The steps, those of a loop as one, and the rows of each loop.

    Args:
        kernels: array -> the kernel class that carries it.
    """
    like = {e.array: s[0].array for s in order for e in s if e in parts.before}
    found = [(step, _loop(step, parts, like, kernels)) for step in order]
    for mixed in (False, True):
        found = _merged(found, parts, mixed=mixed)
    steps = [step for step, _ in found]
    return steps, {step: _nested(rows) for step, rows in found if rows is not None}


Step = tuple[Operation, Rows | None]
"""A step, and its rows where it is a loop."""


def _merged(order: Sequence[Step], parts: Parts, *, mixed: bool) -> list[Step]:
    """The steps, loops that run together as one: of one kind, or of both."""
    found: list[Step] = []
    for step, rows in order:
        before = found[-1][1] if found else None
        if before is None or rows is None or (before.sliced != rows.sliced) != mixed:
            found.append((step, rows))
        elif _run_together(before, rows, parts):
            both = _joined(before, rows, parts)
            found[-1] = tuple(e for s in both.steps for e in s), both
        else:
            found.append((step, rows))
    return found


def _loop(
    step: Operation, parts: Parts, like: Mapping[Array, Array], kernels: Mapping[str, str]
) -> Rows | None:
    """The rows of a step; None where it runs at once."""
    if step[0] in parts.inner:
        rows = {e: parts.row(e) for e in step}
        return Rows([(e,) for e in step], rows, like, step=parts.loops[step[0]].step)
    if any(kernels.get(e.part_of) == FUSED for e in step):
        return None
    rows = {e: row for e in step if (row := _outermost(e, frozenset())) is not None}
    return Rows([step], rows, sliced=True) if len(rows) == len(step) else None


def _outermost(equation: Equation, known: frozenset[str]) -> Poly | None:
    """The index whose value the range of another one waits for, while its own waits for none; None
    where there is none, or where entries are read at sums of indices.

    Args:
        known: the indices of which each has one value.
    """
    summed = [i for _, over in walk(equation.value) for i in over]
    free = [i for i in equation.indices if i.atom not in known]
    if any(len(place.variables - known) > 1 for place in places_of(equation.value)):
        return None
    waited = {a for i in (*free, *summed) for end in i.ends for a in end.variables}
    outer = [i for i in free if i.atom in waited and not _waits(i, known)]
    return outer[0].as_poly() if outer else None


def _waits(index: Index, known: frozenset[str]) -> bool:
    return any(end.variables - known for end in index.ends)


def _run_together(one: Rows, two: Rows, parts: Parts) -> bool:
    """Whether two loops that follow one another run together."""
    crossing = [
        (e, ref.positions[axis])
        for e in two.rows
        for ref in references(e)
        if (axis := one.axes.get(ref.array)) is not None
    ]
    if one.step != two.step:
        return False
    if one.sliced or two.sliced:
        between = one.sliced == two.sliced or bool(crossing)
        return between and all(_lags(two, e, place) for e, place in crossing)
    ends = [
        {frozenset(b.last_rows.values()) for b in {parts.loops[e] for e in rows.rows}}
        for rows in (one, two)
    ]
    return ends[0] == ends[1] and not crossing


def _lags(rows: Rows, equation: Equation, place: Position) -> bool:
    """Whether a position is so many rows before that of an equation."""
    outer = place.outer if isinstance(place, Flat) else place
    return isinstance(outer, Poly) and (rows.rows[equation] - outer).constant() is not None


def _joined(one: Rows, two: Rows, parts: Parts) -> Rows:
    """Two loops as one: what other operations read of the row before waits until they have run."""
    steps = [*one.steps, *two.steps]
    rows = {**one.rows, **two.rows}
    if not one.sliced and not two.sliced:
        steps.sort(key=lambda step: [*parts.inner].index(step[0]))
    both = Rows(steps, rows, one.like, step=one.step, sliced=one.sliced or two.sliced)
    if any(_before(step, two, both) for step in one.steps):
        steps = [*two.steps, *one.steps]
    return replace(both, steps=steps, rows={e: rows[e] for s in steps for e in s})


def _before(step: Operation, reading: Rows, both: Rows) -> bool:
    """Whether a loop reads what a step computed in the row before."""
    own = {e.array for e in step}
    return any(ref.array in own and both.lag(e, ref) for e in reading.rows for ref in references(e))


def _nested(rows: Rows, known: frozenset[str] = frozenset()) -> Rows:
    """A loop with those of its steps as loops whose rows still have different lengths."""
    if not rows.sliced:
        return rows
    known |= {a for row in rows.rows.values() for a in row.variables}
    steps: list[Operation] = []
    inner: dict[Operation, dict[Equation, Poly]] = {}
    parts: dict[Operation, list[Operation]] = {}
    for step in rows.steps:
        own = {e: row for e in step if (row := _outermost(e, known)) is not None}
        if len(own) < len(step):
            steps.append(step)
            continue
        if steps and steps[-1] in inner:
            last = steps.pop()
            both = (*last, *step)
            inner[both], parts[both] = inner.pop(last) | own, [*parts.pop(last), step]
            step = both
        else:
            inner[step], parts[step] = own, [step]
        steps.append(step)
    loops = {s: _nested(Rows(parts[s], inner[s], sliced=True), known) for s in inner}
    return replace(rows, steps=steps, inner=loops)
