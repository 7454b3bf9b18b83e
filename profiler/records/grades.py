"""The grade of a time: quiet (of the call alone) or busy (estimated on a disturbed device).

A *region* is one timed interval of a few calls, a *block* some regions in a row (`meters.sampler`).
A quiet time is the median of blocks that had the device to themselves. A busy time is a low
quantile of all regions, or of the times on a processor; its interval goes from a bound below the
least time to the median (`meters.intervals.busy_estimate`). A busy time is printed as an estimate,
`≈ 651 µs (busy)`. A time of one sample shows no spread: the time is an estimate too, without an
interval, `≈ 651 µs (1 sample)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profiler.records.reading import Reading
from profiler.records.words import scaled

QUIET, BUSY = "quiet", "busy"
"""The values of `details["grade"]` of a time."""
INTERRUPTED, THROTTLED, SHARED = "preempted", "throttled", "shared device"
"""Labels of a time: threads were preempted, a clock was held down, other processes computed on the
board."""
ONE_THREAD = "one thread"
"""The label of a busy time taken with one thread, of a call that usually has several."""
ONE_SAMPLE = "1 sample"
"""The label of a time of a single sample; the grade is busy, as nothing shows that it was quiet."""
GRAPH_DIFFERS = "graph differs from the call"
"""The label of a replayed CUDA graph whose result is another than the call's."""
GRAPH_GAIN = 1.2
"""Launches bound a call that takes more than this many times as long as its CUDA graph."""
CAPPED = "power-capped"
"""The label of a reading during which a power limit held the clock down."""
UNSTEADY, BURSTY = "unsteady", "bursty load"
"""Labels of an energy: trials differ by 2 % or more; power varied by more than 10 % within a
window, or more between windows than within one."""
DISTURBED_LABELS = (THROTTLED, INTERRUPTED, SHARED)
"""The labels of a reading that a disturbance has changed."""
MEANT: Mapping[str, str] = {
    INTERRUPTED: "preempted by other programs for more than 5 % of the time: the estimate is the "
    "fastest tenth of the timed regions or, for one thread, of the times on a processor; its "
    "range, from three quarters of the least time (preempted calls find cold caches) to the median",
    ONE_THREAD: "timed on one thread, because several would wait for the preempted thread; the "
    "interval begins at the time of one thread divided by the number of threads, and nothing here "
    "tells how much several gain: with OMP_NUM_THREADS=1 the call is of one thread, and the "
    "interval narrow",
    CAPPED: "at its power limit a chip lowers its clock, depending on the numbers in the data: the "
    "times hold for random numbers",
    UNSTEADY: "the energies of the trials differ by 2 % or more (relative standard deviation): the "
    "interval is as wide as the trials say",
    BURSTY: "power came in bursts: the interval spans what the ends of a window may have cut off "
    "and, where trials differ, every trial and what the second sensor saw; bursts longer than a "
    "window need a longer --energy-window; an energy counter that looks at a part of the time, in "
    "step with the load, may miss the same bursts in every trial: the record's check_gap then says "
    "by how much the second sensor differs",
}
"""Label -> the meaning for a reading, for the labels that need an explanation."""
ROUGHLY = 3
"""Significant digits of an estimate."""


def disturbed_by(labels: Iterable[str]) -> str:
    """The disturbances among these labels, in words; "" if there is none."""
    there = set(labels)
    return ", ".join(label for label in DISTURBED_LABELS if label in there)


def label_meanings(labels: Iterable[str]) -> list[str]:
    """A sentence for each of these labels that needs an explanation."""
    there = set(labels)
    return [f"{label}: {words}" for label, words in MEANT.items() if label in there]


def grade_of(reading: Reading) -> str:
    """`quiet` or `busy`: the reading's grade, or of an older record the grade by its labels."""
    said = reading.details.get("grade")
    return said or (BUSY if disturbed_by(reading.labels) else QUIET)


def mark_of(reading: Reading) -> str:
    """The words in brackets after an estimate; "" for a quiet time."""
    if grade_of(reading) == QUIET:
        return ""
    return mark(reading.labels)


def mark_of_all(readings: Iterable[Reading]) -> str:
    """The words in brackets after a value from several readings: those of the first reading that
    is not quiet; "" if all are quiet."""
    return next(filter(None, map(mark_of, readings)), "")


def mark(labels: Iterable[str]) -> str:
    """The words in brackets after an estimated time whose measurement has these labels: the
    disturbances other than preemption, else `1 sample` if nothing disturbed it, else `busy`; then
    `one thread` and `1 sample` if these labels are not said yet.

    >>> mark(["preempted", "one thread"]), mark(["throttled"]), mark(["1 sample"])
    ('busy, one thread', 'throttled', '1 sample')
    """
    there = set(labels)
    held = disturbed_by(there - {INTERRUPTED})
    held = held or (ONE_SAMPLE if disturbed_by(there) == "" and ONE_SAMPLE in there else BUSY)
    also = [label for label in (ONE_THREAD, ONE_SAMPLE) if label in there and label != held]
    return ", ".join([held, *also])


def undisturbed(reading: Reading) -> bool:
    """Whether a time is quiet, or is busy only because the time has one sample."""
    labels = reading.labels
    return grade_of(reading) == QUIET or (ONE_SAMPLE in labels and not disturbed_by(labels))


def time_words(reading: Reading) -> str:
    """A time in words, as an estimate if it is busy.

    >>> time_words(Reading("latency", 651.4e-6, "s")), time_words(
    ...     Reading("latency", 651.4e-6, "s", details={"grade": "busy"})
    ... )
    ('651.4 µs', '≈ 651 µs (busy)')
    """
    return marked(reading.value, mark_of(reading))


def marked(seconds: float, mark: str) -> str:
    """Seconds in words; with a `mark`, which names the disturbance, as an estimate."""
    return f"≈ {scaled(seconds, 's', ROUGHLY)} ({mark})" if mark else scaled(seconds, "s")
