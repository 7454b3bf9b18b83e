"""Is an estimate from a busy device distinguished from a time of the call alone, and printed as an
estimate?"""

from __future__ import annotations

import pytest

from profiler.meters.intervals import busy_estimate
from profiler.records.grades import BUSY, QUIET, grade_of, time_words
from profiler.records.reading import Reading


def timed(**details: object) -> Reading:
    return Reading("latency", 651.44e-6, "s", details=details)


@pytest.mark.parametrize(
    ("reading", "grade", "words"),
    [
        (timed(), QUIET, "651.4 µs"),
        (timed(grade="quiet", labels=["launch-bound"]), QUIET, "651.4 µs"),
        (timed(grade="busy", labels=["preempted"]), BUSY, "≈ 651 µs (busy)"),
        (timed(labels=["preempted"]), BUSY, "≈ 651 µs (busy)"),
        (timed(labels=["throttled"]), BUSY, "≈ 651 µs (throttled)"),
        (timed(labels=["preempted", "shared device"]), BUSY, "≈ 651 µs (shared device)"),
    ],
)
def test_a_time_says_what_it_is(reading: Reading, grade: str, words: str) -> None:
    """Records of old say no grade: their labels tell."""
    assert (grade_of(reading), time_words(reading)) == (grade, words)


def test_the_fast_regions_of_a_busy_device_are_those_of_the_call() -> None:
    """Two in three regions hold a wait of some milliseconds; a third of them none."""
    regions = [100e-6 + (k % 7) * 1e-6 + (0, 3e-3, 9e-3)[k % 3] for k in range(300)]
    value, low, high = busy_estimate(regions)
    assert value == pytest.approx(102e-6, rel=0.02)
    assert low == 100e-6 and high > 3e-3


def test_a_long_call_is_at_least_as_long_as_it_was_on_a_processor() -> None:
    value, low, high = busy_estimate([0.9, 1.1, 1.4], processor_s=0.5)
    assert low == 0.5 < value < high == 1.1
