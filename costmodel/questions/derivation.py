"""Which sums do an equation's counts come from, before they are closed?

What is done at some of the points only, as beside a sum that may have no term, stands in brackets:
`[i >= 2]` is 1 there and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import Unsupported
from costmodel.language.indices import Index
from costmodel.language.notation import Notation
from costmodel.program.phases import IterationDomain
from costmodel.program.trip_count import Points, terms_of
from costmodel.questions.counting.executed import Executed, executed
from costmodel.symbolic.constraints import (
    ONE,
    Bound,
    Constraints,
    bounds,
    implied,
    projected,
    variables_of,
)
from costmodel.symbolic.polynomial import Poly, by_text


@dataclass(frozen=True)
class Sum:
    """`body` for every point of `ranges`, outer ones first, where all of `guards` are >= 0."""

    ranges: tuple[Index, ...]
    body: Poly
    guards: tuple[Poly, ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value, every sum run term by term (slow: for small sizes)."""
        return self._at(dict(sizes), self.ranges)

    def _at(self, values: dict[str, int], ranges: tuple[Index, ...]) -> int:
        if not ranges:
            there = all(guard.rational(values) >= 0 for guard in self.guards)
            return self.body.at(values) if there else 0
        first, *rest = ranges
        low = max(bound.at(values) for bound in first.lower)
        up = min(bound.at(values) for bound in first.upper)
        return sum(self._at({**values, first.atom: k}, tuple(rest)) for k in range(low, up + 1))

    def printed(self, notation: Notation) -> str:
        """The sum in a notation; brackets that name an index of it stand inside."""
        body = notation.poly(self.body)
        inside = frozenset(guard for guard in self.guards if variables_of([guard]))
        before, within = (
            f"[{notation.conditions(guards)}] " if guards else ""
            for guards in (frozenset(self.guards) - inside, inside)
        )
        if not (self.ranges or before):
            return body
        body = f"({body})" if len(self.body.terms) > 1 else body
        body = within + body
        return before + (notation.reduction("sum", self.ranges, body) if self.ranges else body)


def sums(part: IterationDomain, accounting: str = "strict") -> dict[str, list[Sum]]:
    """Class -> the sums that its operations of one equation come from.

    Raises:
        Unsupported: the points that a phase executes are not among ranges of the indices.
    """
    pinned, ranges = _ranges(part)
    constraints = frozenset(c.substitute(pinned) for c in part.constraints)
    known = frozenset[Poly]().union(*(index.constraints for index in ranges))
    guards = tuple(by_text([c for c in constraints if not implied(known, c)]))
    found: dict[str, dict[tuple[tuple[Index, ...], tuple[Poly, ...]], Poly]] = {}
    points = Points(part.equation, part.variables, part.constraints, accounting)
    for one in executed(part.equation.value, points):
        for over, body, place in _terms(one):
            kept = one.points.variables if one.along is None else one.along
            free = [index for index in ranges if index.atom in kept]
            if not {*part.variables} <= {*kept} and one.along is None:
                there = one.points.constraints
                over = tuple(_range(i, over[k + 1 :], there) for k, i in enumerate(over))
            around = tuple(_at(index, pinned) for index in (*free, *over))
            at = by_text([c.substitute(pinned) for c in place])
            where = around, tuple(dict.fromkeys((*guards, *at)))
            bodies = found.setdefault(one.operation, {})
            bodies[where] = bodies.get(where, Poly()) + body.substitute(pinned)
    return {
        name: [Sum(ranges, body, guards) for (ranges, guards), body in bodies.items()]
        for name, bodies in found.items()
    }


def _terms(one: Executed) -> Iterator[tuple[tuple[Index, ...], Poly, Constraints]]:
    """The indices of the reductions around, what is added there, and where.

    The terms of one reduction are added as their number, where that is one formula."""
    over = () if one.along is not None else one.points.over
    if one.terms is None:
        yield over, one.times, one.place
    elif (number := _number(one)) is None:
        yield over + one.terms.over, one.times, one.place
    else:
        one_range = replace(one.terms, kind="sum")  # of a maximum, too, others may have the terms
        for place in one.points.present(one_range):
            yield over, number, place


def _number(one: Executed) -> Poly | None:
    """How many terms there are; None where that depends on cases."""
    if one.place or one.terms is None:
        return None
    try:
        return terms_of(one.terms.over)
    except Unsupported:
        return None


def _pinned(part: IterationDomain) -> dict[str, Poly]:
    """The indices that run over one value, such as t or t + 1 for one token, and that value."""
    found: dict[str, Poly] = {}
    for index in part.equation.indices:
        for value in (c + index.as_poly() for c in part.constraints if -c in part.constraints):
            if not variables_of([value]):
                found[index.atom] = value
    return found


def _ranges(part: IterationDomain) -> tuple[dict[str, Poly], tuple[Index, ...]]:
    """The indices that have one value, such as t for one token, and those that run, outer first.

    An index runs over its own range as far as that holds: one new token may lie beyond the length,
    where the constraints alone say how far.
    """
    pinned = _pinned(part)
    constraints = frozenset(c.substitute(pinned) for c in part.constraints)
    running = [index for index in part.equation.indices if index.atom not in pinned]
    found = []
    for k, index in enumerate(running):
        if index.constraints <= part.constraints:
            found.append(index)
            continue
        index = _range(index, running[k + 1 :], constraints)
        if index.lower == index.upper and not variables_of(index.lower):
            pinned[index.atom] = index.lower[0]
            constraints = frozenset(c.substitute(pinned) for c in constraints)
        else:
            found.append(index)
    return pinned, tuple(_at(index, pinned) for index in found)


def _range(index: Index, inner: Sequence[Index], constraints: Constraints) -> Index:
    """An index as far as constraints let it run, whatever the inner ones are."""
    there = projected(constraints, [other.atom for other in inner])
    lower, upper, _ = bounds(there, index.atom)
    if not (lower and upper) or any(scale != ONE for scale, _ in (*lower, *upper)):
        raise Unsupported(f"the points of index {index.name} are no plain ranges")
    return Index(index.name, _needed(lower, 1, there), _needed(upper, -1, there))


def _needed(ends: Sequence[Bound], sign: int, where: Constraints) -> tuple[Poly, ...]:
    """The lower (1) or upper (-1) ends of a range that are not proven to be weaker than others."""
    known = frozenset(c for c in where if not variables_of([c]))
    kept = by_text({bound for _, bound in ends})
    for end in tuple(kept):
        if any(implied(known, (other - end) * sign) for other in kept if other != end):
            kept.remove(end)
    return tuple(kept)


def _at(index: Index, values: Mapping[str, Poly]) -> Index:
    """An index whose bounds name no pinned index any more."""
    low, up = (tuple(b.substitute(values) for b in ends) for ends in (index.lower, index.upper))
    return Index(index.name, low, up)
