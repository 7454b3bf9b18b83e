"""Which points are left where variables are eliminated, or regions taken away?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from costmodel.atoms import by_text
from costmodel.constraints import (
    ONE,
    Constraints,
    Unsupported,
    between_bounds,
    bounds,
    fixed,
    implied,
    infeasible,
    irredundant,
    is_plain,
    nonnegative,
    variables_of,
)
from costmodel.polynomial import Poly


def projected(constraints: Constraints, hidden: Iterable[str]) -> Constraints:
    """Eliminate variables: the integer points of the image.

    Raises:
        Unsupported: strides on both sides of a variable may leave a gap between them.
    """
    present = variables_of(constraints)
    return _projected(constraints, tuple(v for v in hidden if v in present))


@lru_cache(maxsize=100_000)
def _projected(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    """A bound with a stride that the others imply may be the one that leaves a gap."""
    try:
        return _eliminated(constraints, hidden)
    except Unsupported:
        needed = irredundant(constraints)
        if needed == constraints:
            raise
        return _eliminated(needed, hidden)


def _eliminated(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    remaining = set(constraints)
    waiting = list(hidden)
    while waiting:
        if (found := fixed(frozenset(remaining), waiting)) is not None:
            variable, value = found
            waiting.remove(variable)
            remaining = {c.substitute({variable: value}) for c in remaining} - {Poly()}
            continue
        variable = next((v for v in waiting if is_plain(remaining, v)), waiting[0])
        waiting.remove(variable)
        lower, upper, rest = bounds(remaining, variable)
        known, remaining = frozenset(remaining), set(rest)
        for low_scale, low in lower:
            for up_scale, up in upper:
                if low_scale != ONE and up_scale != ONE:
                    if low_scale == up_scale and implied(known, up - low - low_scale + 1):
                        continue
                    raise Unsupported(f"a stride of index {variable[1:]} in an entry read")
                remaining.add(between_bounds(low_scale, low, up_scale, up))
        remaining = {c for c in remaining if c.variables or not nonnegative(c)}
    return frozenset(remaining)


def outside(region: Constraints, removed: Sequence[Constraints]) -> list[Constraints]:
    """The points of `region` in none of the removed regions, as disjoint regions."""
    pieces = [region]
    for other in removed:
        pieces = [piece for part in pieces for piece in _difference(part, other)]
    return pieces


def _difference(region: Constraints, removed: Constraints) -> list[Constraints]:
    """The points of `region` outside `removed`, as disjoint regions."""
    pieces: list[Constraints] = []
    kept = region
    for constraint in by_text(removed):
        if implied(kept, constraint):
            continue
        outside = kept | {-constraint - 1}
        if not infeasible(outside):
            pieces.append(outside)
        kept = kept | {constraint}
        if infeasible(kept):
            return [region]
    return pieces
