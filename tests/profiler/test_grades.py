"""Is an estimate from a busy device distinguished from a time of the call alone, and printed as an
estimate?"""

from __future__ import annotations

import pytest

from profiler.meters.intervals import KEPT, busy_estimate
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
        (Reading("latency", 999.6e-6, "s", details={"grade": "busy"}), BUSY, "≈ 1 ms (busy)"),
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
    assert low == KEPT * 100e-6 and high > 3e-3


@pytest.mark.parametrize(
    ("alone", "value", "high"),
    [(False, 0.94, 1.1), (True, 0.52, 0.6)],  # the time on the processor is of the whole call
)
def test_a_long_call_takes_part_of_the_time_that_it_was_on_a_processor(
    alone: bool, value: float, high: float
) -> None:
    """The caches of a preempted call are cold: the quiet call may be shorter."""
    found = busy_estimate([0.9, 1.1, 1.4], [0.5, 0.6, 0.7], alone=alone)
    assert found == pytest.approx((value, KEPT * 0.5, high))
