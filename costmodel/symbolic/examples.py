"""At which of some sizes do constraints hold? Where they do, nothing needs to be proven of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS


class _Sizes(dict[str, int]):
    """Sizes, of which those that are not given are 1."""

    def __missing__(self, letter: str) -> int:
        return 1


def _mixed(number: int) -> _Sizes:
    """Small and large sizes, in another order for each number."""
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
    """Whether a polynomial is at least 0 at an example; None where it has no value there."""
    try:
        value = constraint.rational(EXAMPLES[example])
    except (TypeError, ValueError):
        return None
    return None if isinstance(value, float) else value >= 0


def hold(constraints: Iterable[Poly]) -> bool:
    """Whether all constraints hold at one of the examples."""
    every = tuple(constraints)
    return any(all(_holds(c, k) for c in every) for k in range(len(EXAMPLES)))
