"""How deep is an entry of an array, in its axes, and at the place where a reference reads it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from costmodel.atoms import by_text
from costmodel.constraints import Constraints, infeasible, variables_of
from costmodel.equations import Equation
from costmodel.expressions import (
    Gather,
    Ref,
    position_value,
)
from costmodel.phases import Instances
from costmodel.polynomial import Poly
from costmodel.projections import projected
from costmodel.rules.levels import Level, maxima, proven
from costmodel.wellformed import region


def on_axes(part: Instances, level: Level, *, split: bool) -> Iterator[Level]:
    """A depth in the axes of the array that the equation defines; where several equations do
    (`split`), at the entries of this one.

    Indices inside a flattened axis, as the place in a chunk, have names of their own there if the
    depth depends on them; of others it takes the largest.
    """
    equation = part.equation
    values = _solved(equation)
    placed = _placed(equation, variables_of([level.depth, *level.where]) - values.keys())
    others = [v for v in part.variables if v not in values and v not in placed]
    entries: Constraints = frozenset()
    if split:
        names = sorted(part.variables, reverse=True)
        entries = region(equation.array, equation.positions, part.constraints, names) or entries
    there: Constraints = frozenset()
    if placed:
        known = projected(part.constraints, sorted(others, reverse=True))
        apart = _positions(equation, placed)
        entries = frozenset(c for c in entries if not variables_of([c]) & variables_of(apart))
        there = frozenset([c for c in known if c.letters & placed]) | apart
        values = {**values, **{v: Poly.atom(f"{v} of {equation.name}") for v in placed}}
    for found in maxima(level, others, part.constraints):
        where = frozenset([c.substitute(values) for c in found.where | there])
        yield Level(found.depth.substitute(values), entries | where)


@cache
def _solved(equation: Equation) -> Mapping[str, Poly]:
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


def at_places(level: Level, ref: Ref, around: Constraints) -> Level | None:
    """A depth of an array at a reference, whose own indices take the place of those inside a
    flattened axis where they are proven to be the same; None where it does not hold there."""
    values = {
        f"#{k}": position_value(p) for k, p in enumerate(ref.positions) if not isinstance(p, Gather)
    }
    where = frozenset([c.substitute(values) for c in level.where])
    if infeasible(around | where):
        return None
    here = Level(level.depth.substitute(values), where)
    for apart in by_text(level.where):
        if -apart in level.where and variables_of([apart]) & values.keys():
            for name, value in _same_place(apart.substitute(values), around):
                known, further = around | here.where, Poly.atom(name) - value
                if proven(known, further) and proven(known, -further):
                    here = here.substitute({name: value})
    return Level(here.depth, here.where - {Poly()})


def _same_place(apart: Poly, around: Constraints) -> Iterator[tuple[str, Poly]]:
    """What the indices of one flattening may be, so that it equals another one."""
    names = variables_of([apart])
    outer = variables_of(around)
    own = sorted(names - outer)
    slopes = {name: apart.coefficient(name) for name in names}
    values = {name: _partner(name, slopes, names & outer) for name in own}
    rest = apart.substitute(values)
    if variables_of([rest]):
        return
    for name in sorted(own, key=lambda name: slopes[name] in (1, -1)):
        if len(slopes[name].terms) == 1:
            shift = _quotient(rest, slopes[name])
            rest = rest - shift * slopes[name]
            yield name, values[name] - shift


def _partner(name: str, slopes: Mapping[str, Poly], others: set[str]) -> Poly:
    """The index around that an own one moves with, or against; 0 if there is none."""
    for sign in (1, -1):
        for other in sorted(others):
            if slopes[other] * sign == -slopes[name]:
                return Poly.atom(other) * sign
    return Poly()


def _quotient(above: Poly, below: Poly) -> Poly:
    """The quotient by a product of sizes where that is whole, else 0."""
    quotient = above / below
    whole = all(
        isinstance(number, int) and all(power > 0 for _, power in monomial)
        for monomial, number in quotient.terms.items()
    )
    return quotient if whole else Poly()
