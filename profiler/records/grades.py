"""Is a time that of the call alone, or an estimate from a device that was disturbed?

A quiet time is the median of blocks that had the device to themselves. A busy time is a low
quantile of all regions, whose interval goes from what the call needs at least to the median of all
of them: it is printed as an estimate, `≈ 651 µs (busy)`.
"""

from __future__ import annotations

from collections.abc import Iterable

from profiler.records.reading import Reading
from profiler.records.words import scaled

QUIET, BUSY = "quiet", "busy"
"""What `details["grade"]` of a reading of time says."""
INTERRUPTED, THROTTLED, SHARED = "preempted", "throttled", "shared device"
"""Labels of a time: others had the processors, a clock was held down, others computed on the
board."""
ONE_THREAD = "one thread"
"""The label of a busy time that one thread took, where the call otherwise has several."""
DISTURBED_LABELS = (THROTTLED, INTERRUPTED, SHARED)
"""Labels of a reading whose value is not that of the call alone."""
ROUGHLY = 3
"""Significant digits of an estimate."""


def disturbed_by(labels: Iterable[str]) -> str:
    """Which of these labels say that a value is not that of the call alone: in words, "" where none
    does."""
    there = set(labels)
    return ", ".join(label for label in DISTURBED_LABELS if label in there)


def grade_of(reading: Reading) -> str:
    """`quiet` or `busy`: as a reading of time says, or by its labels where an older record does not
    say it."""
    said = reading.details.get("grade")
    return said or (BUSY if disturbed_by(reading.details.get("labels", ())) else QUIET)


def mark_of(reading: Reading) -> str:
    """What stands behind an estimate, in brackets; "" behind a quiet time."""
    if grade_of(reading) == QUIET:
        return ""
    return mark(reading.details.get("labels", ()))


def mark(labels: Iterable[str]) -> str:
    """What stands behind an estimate with these labels.

    >>> mark(["preempted", "one thread"]), mark(["throttled"])
    ('busy, one thread', 'throttled')
    """
    there = set(labels)
    held = disturbed_by(there - {INTERRUPTED}) or BUSY
    return f"{held}, {ONE_THREAD}" if ONE_THREAD in there else held


def time_words(reading: Reading) -> str:
    """A time as it is printed.

    >>> time_words(Reading("latency", 651.4e-6, "s")), time_words(
    ...     Reading("latency", 651.4e-6, "s", details={"grade": "busy"})
    ... )
    ('651.4 µs', '≈ 651 µs (busy)')
    """
    return marked(reading.value, mark_of(reading))


def marked(seconds: float, mark: str) -> str:
    """Seconds in words, as an estimate where a `mark` says what disturbed them."""
    return f"≈ {scaled(seconds, 's', ROUGHLY)} ({mark})" if mark else scaled(seconds, "s")
