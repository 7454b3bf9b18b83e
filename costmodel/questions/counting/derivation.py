"""The sums over index ranges that `explain` prints; their closed forms are an equation's counts.

The additions of y[i] = sum(j = 1..i) x[j], for i = 1..l, are the sum(i = 1..l) of i - 1.
Operations executed at some points only, as beside a sum that may be empty, are multiplied by an
Iverson bracket: `[i >= 2]` is 1 for i >= 2, else 0.
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
    """The sum of `body`, a number of operations, over the points of `ranges` (outer first) at which
    all `guards` are >= 0. Without ranges it is the body, or 0 where a guard is negative."""

    ranges: tuple[Index, ...]
    body: Poly
    guards: tuple[Poly, ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value at given sizes, by a loop over all points (for small sizes)."""
        return self._at(dict(sizes), self.ranges)

    def _at(self, values: dict[str, int], ranges: tuple[Index, ...]) -> int:
        """The value of the sum over the remaining `ranges`, outer first, with `values` for sizes
        and outer indices; without ranges the body, or 0 where a guard (a condition) is negative."""
        if not ranges:
            counted = all(guard.rational(values) >= 0 for guard in self.guards)
            return self.body.at(values) if counted else 0
        first, *rest = ranges
        low = max(bound.at(values) for bound in first.lower)
        up = min(bound.at(values) for bound in first.upper)
        return sum(self._at({**values, first.atom: k}, tuple(rest)) for k in range(low, up + 1))

    def printed(self, notation: Notation) -> str:
        """The sum as text in a notation (plain or LaTeX). Guards, the conditions under which a term
        counts, are printed as Iverson brackets, those in sizes alone before the sum sign, those
        with an index after it: `[l >= 3] sum(i = 1..l) [i >= 2] (i - 1)`."""
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
    """Class of operations ("mul") -> the sums over index ranges which, added up, are the number of
    these operations of one equation at the points that a phase executes (`part` has both). For l
    sums of d products, "mul" has the sum over i = 1..l and j = 1..d of 1, and "add" the sum over i
    = 1..l of d - 1. `accounting`: R terms take R - 1 additions ("strict") or R ("mac").

    Raises:
        Unsupported: the points that the phase executes are not a product of index ranges.
    """
    # `pinned`: index -> the only value it takes; `guards`: conditions that the ranges do not imply
    pinned, ranges = _ranges(part)
    constraints = frozenset(c.substitute(pinned) for c in part.constraints)
    known = frozenset[Poly]().union(*(index.constraints for index in ranges))
    guards = tuple(by_text([c for c in constraints if not implied(known, c)]))
    found: dict[str, dict[tuple[tuple[Index, ...], tuple[Poly, ...]], Poly]] = {}
    points = Points(part.equation, part.variables, part.constraints, accounting)
    for one in executed(part.equation.value, points):
        for over, body, place in _terms(one):
            # a transform or sort gives several entries at once: executed once per point of `along`
            kept = one.points.variables if one.along is None else one.along
            free = [index for index in ranges if index.atom in kept]
            # a scatter adds over an index of the equation too: its sums get ranges of their own
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
    """Yield the summands whose sum over their indices is the number of the operations in `one`, as
    (indices of the enclosing reductions, or () for a scan, transform or sort; operations per point;
    conditions): for the sum of x[j] z[i] over j in 1..i, 1 product at each point (i, j). Operations
    of a reduction itself, one for each of its terms (`times` is 1), are summed without its index if
    the number of terms is one formula: i additions at each i, less 1 by another `Executed`."""
    over = () if one.along is not None else one.points.over
    if one.terms is None:
        yield over, one.times, one.place
    elif (number := _number(one)) is None:
        yield over + one.terms.over, one.times, one.place
    else:
        # `present` refuses a maximum without terms, but one range of a maximum may be empty
        one_range = replace(one.terms, kind="sum")
        for place in one.points.present(one_range):
            yield over, number, place


def _number(one: Executed) -> Poly | None:
    """The number of terms of the reduction `one.terms`, as a polynomial in the indices around it;
    None if there is no such reduction, if the number differs by case, or if only some terms execute
    the operations."""
    if one.place or one.terms is None:
        return None
    try:
        return terms_of(one.terms.over)
    except Unsupported:
        return None


def _pinned(part: IterationDomain) -> dict[str, Poly]:
    """Index -> the value in sizes, such as t or t + 1, that two constraints of `part` fix; other
    indices are left out. For the row of one new token, i - t >= 0 and t - i >= 0 give i -> t."""
    found: dict[str, Poly] = {}
    equal = by_text(c for c in part.constraints if -c in part.constraints)
    for index in part.equation.indices:
        for value in (c + index.as_poly() for c in equal):
            if not variables_of([value]):
                found[index.atom] = value
    return found


def _ranges(part: IterationDomain) -> tuple[dict[str, Poly], tuple[Index, ...]]:
    """The indices of an equation at the points that a phase executes (`part` has both), as (index
    -> value for indices that have one value, the other indices with their ranges, outer first).

    An index keeps the range of the equation if the constraints of the part contain it; else the
    constraints alone bound the index: for one new token, row i <= l of the equation becomes i <= t.
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
    """The index in the bounds that the constraints imply without the `inner` indices. Unsupported
    without a lower or upper bound, or with one such as 2*i <= j; 2*i <= l is i <= floor(l/2)."""
    there = projected(constraints, [other.atom for other in inner])
    lower, upper, _ = bounds(there, index.atom)
    if not (lower and upper) or any(scale != ONE for scale, _ in (*lower, *upper)):
        raise Unsupported(
            f"{index.name} takes some values of a range and leaves out others: split the equation "
            "so that each part runs over a range"
        )
    return Index(index.name, _needed(lower, 1, there), _needed(upper, -1, there))


def _needed(ends: Sequence[Bound], sign: int, where: Constraints) -> tuple[Poly, ...]:
    """The lower (`sign` 1) or upper (`sign` -1) bounds of a range that are needed: a bound that
    another bound implies at the sizes of `where` is left out, 1 of the lower bounds 1 and 2."""
    known = frozenset(c for c in where if not variables_of([c]))
    kept = by_text({bound for _, bound in ends})
    for end in tuple(kept):
        if any(implied(known, (other - end) * sign) for other in kept if other != end):
            kept.remove(end)
    return tuple(kept)


def _at(index: Index, values: Mapping[str, Poly]) -> Index:
    """An index with values substituted for other indices in its bounds."""
    low, up = (tuple(b.substitute(values) for b in ends) for ends in (index.lower, index.upper))
    return Index(index.name, low, up)
