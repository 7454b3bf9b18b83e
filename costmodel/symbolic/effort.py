"""A limit on the arithmetic that a typed formula or claim may cause.

One unit is one product of two terms, one operation on 64-bit numbers, or, where equations are
executed, one entry of an array or one point of a range: some microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from costmodel.errors import TooMuch

MOST = 1_000_000
"""Units that one claim may spend, its formulas and all sizes of its evaluation together."""

_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)


@contextmanager
def limited(units: int | None = MOST) -> Iterator[None]:
    """A context in which `spend` raises TooMuch after `units` steps of arithmetic; with None there
    is no limit inside, not even that of an enclosing context."""
    before = _left.set(None if units is None else [units])
    try:
        yield
    finally:
        _left.reset(before)


def spend(units: int) -> None:
    """Subtract `units`, steps of arithmetic, from the budget of the enclosing `limited`, if there
    is one.

    Raises:
        TooMuch: the budget is exhausted.
    """
    left = _left.get()
    if left is not None:
        left[0] -= units
        if left[0] < 0:
            raise TooMuch(
                f"the calculation takes more than {MOST:,} steps of arithmetic: use fewer terms, "
                "smaller numbers or fewer sizes"
            )
