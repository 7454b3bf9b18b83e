"""How much work may what somebody typed cause, before it is refused in a sentence?

The unit is one product of two terms, or one operation on numbers of 64 bits: some microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from costmodel.errors import TooMuch

MOST = 1_000_000
"""Units for everything that one claim asks for: its formulas, and all sizes that it is tried at."""

_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)


@contextmanager
def limited(units: int | None = MOST) -> Iterator[None]:
    """Within, more work than this raises TooMuch; None: what is done does not count."""
    before = _left.set(None if units is None else [units])
    try:
        yield
    finally:
        _left.reset(before)


def spend(units: int) -> None:
    """Count some work.

    Raises:
        TooMuch: there was more than allowed.
    """
    left = _left.get()
    if left is not None:
        left[0] -= units
        if left[0] < 0:
            raise TooMuch(
                f"it takes more than {MOST:,} steps of arithmetic: fewer terms, smaller numbers or "
                f"fewer sizes can be checked"
            )
