"""Ranges of sizes, in words."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.symbolic.ranges.solve import Range
from costmodel.symbolic.sizes import LARGEST

FEW = 4
"""The most ranges that are listed."""


def goes_on(part: Range) -> bool:
    """Whether a range ends only because its next size would be greater than 2**40."""
    return part.last + part.step > LARGEST


def words(part: Range, *, on: bool | None = None) -> str:
    """A range of sizes (first, last, step) in words; `on` says that the range goes on without end,
    by default if its last size is as large as sizes get.

    >>> words(Range(3, 3)), words(Range(3, 9)), words(Range(16, 2**40, 8))
    ('3', '3 to 9', '16 on, every 8th')
    """
    first, last, step = part
    if first == last:
        return f"{first:,}"
    every = f", every {ordinal(step)}" if step > 1 else ""
    on = goes_on(part) if on is None else on
    return (f"{first:,} on" if on else f"{first:,} to {last:,}") + every


def in_words(parts: Sequence[Range]) -> str:
    """Several ranges in words."""
    said = "; ".join(map(words, parts[:FEW]))
    more = len(parts) - FEW
    return f"{said}; and {more:,} more ranges" if more > 0 else said


def ordinal(count: int) -> str:
    """An ordinal number.

    >>> ordinal(3), ordinal(11), ordinal(1_002)
    ('3rd', '11th', '1,002nd')
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{'th' if 10 < count % 100 < 14 else ending}"
