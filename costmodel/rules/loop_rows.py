"""Which rows of a loop does a phase compute one after another, and which are alike?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodel.constraints import (
    Constraints,
    Unsupported,
    implied,
    infeasible,
    simplified,
    variables_of,
)
from costmodel.equations import System
from costmodel.latest import at_token
from costmodel.loops import Block, references
from costmodel.phases import Instances, T, instances
from costmodel.polynomial import Poly
from costmodel.projections import projected
from costmodel.tokens import tokens


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


def rows_written(block: Block, part: Instances, row: str) -> Constraints:
    """The rows of a loop that one of several equations of an array writes."""
    here = block.row(part.equation)
    of_row = {a for a in here.letters if a[0] == "@"}
    hidden = sorted({*part.variables} - of_row, reverse=True)
    written = projected(part.constraints | {Poly.atom(row) - here, here - Poly.atom(row)}, hidden)
    return projected(written, sorted(of_row))


def last_row(block: Block, parts: Sequence[Instances]) -> Poly | None:
    """The number of the last row of a loop if that is computed otherwise than the rows before."""
    ends = {*block.last_rows.values()}
    for part in parts:
        row, end = block.row(part.equation), block.last_rows[part.equation.array]
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
