"""Example sizes: constraints that hold at one of them need no search for a contradiction."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS


class _Sizes(dict[str, int]):
    """Letter -> size; a letter without an entry has size 1."""

    def __missing__(self, letter: str) -> int:
        return 1


def _mixed(number: int) -> _Sizes:
    """Example number `number`: a deterministic pseudo-random mix of small and large values for all
    sizes."""
    # powers modulo a prime serve as random numbers that are the same in every run
    values = (1, 2, 3, 4, 5, 8, 17, 60)
    return _Sizes(
        (letter, values[(pow(number + 2, 3 * k + 1, 10_007) + k) % len(values)])
        for k, letter in enumerate(sorted(LETTERS))
    )


EXAMPLES = (
    _Sizes(),
    _Sizes(dict.fromkeys(LETTERS, 2)),
    _Sizes(dict.fromkeys(LETTERS, 8), l=2**20, t=2**19),
    *map(_mixed, range(16)),
)


@lru_cache(maxsize=200_000)
def _holds(constraint: Poly, example: int) -> bool | None:
    """Whether a polynomial is at least 0 at the sizes of example number `example`; None if it has
    no exact value there."""
    try:
        value = constraint.rational(EXAMPLES[example])
    except (TypeError, ValueError):
        return None
    return None if isinstance(value, float) else value >= 0


def hold(constraints: Iterable[Poly]) -> bool:
    """Whether at least one example satisfies all constraints."""
    every = tuple(constraints)
    return any(all(_holds(c, k) for c in every) for k in range(len(EXAMPLES)))
