"""The ratio of two measured costs with its interval, and words that follow from the interval."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.questions.question import Missing
from costmodel.report.document import Cell
from profiler.compare.records import medians
from profiler.compare.rows import BUSY_TIMES
from profiler.compare.verdict import LEVEL
from profiler.meters.energy.protocol import DOWN_TO_ZERO
from profiler.records.measurement import Measurement, first_reason, readings_of
from profiler.records.reading import Reading
from profiler.scaling.series import waits_for_launches

LATENCY = ("latency_graph", "latency")
"""The readings of time, the preferred first: CUDA graph replay excludes the time of launches."""


@dataclass(frozen=True)
class Ratio:
    """The cost of the second candidate over the cost of the first, with the ends of its interval;
    or why the ratio is unknown (`refused`)."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reading: str = ""
    refused: str = ""
    exact: bool = False
    """Whether both costs are exactly reproducible, so that `low` = `value` = `high`."""

    @property
    def less(self) -> bool:
        """Whether the whole interval lies below 1: the second is shown to cost less."""
        return self.high is not None and self.high < 1

    @property
    def more(self) -> bool:
        """Whether the whole interval lies above 1: the second is shown to cost more."""
        return self.low is not None and self.low > 1

    def words(self, less: str = "faster", more: str = "slower") -> str:
        """Words on the interval, as factors above 1, with `less` and `more` for a ratio shown below
        and above 1; of a refused ratio the reason.

        >>> Ratio(0.5, 0.4, 0.625).words(), Ratio(1.0, 0.9, 1.1).words()
        ('faster by 1.60 to 2.50 times', 'no difference shown (0.90 to 1.10)')
        """
        if self.refused or self.low is None or self.high is None:
            return f"not compared: {self.refused}"
        low, high = (1 / self.high, 1 / self.low) if self.less else (self.low, self.high)
        if self.exact and low == high:
            by = f"by {low:.2f} times" if low != 1 else ""
        else:
            by = f"by {low:.2f} to {high:.2f} times"
        if self.less:
            return f"{less} {by}"
        if self.more:
            return f"{more} {by}"
        return "equal" if self.exact else f"no difference shown ({low:.2f} to {high:.2f})"

    def cell(self, less: str = "less", more: str = "more") -> Cell:
        """The words as a cell of a table, or a missing cell with the reason."""
        return Missing(self.refused) if self.refused else self.words(less, more)


def ends(found: Sequence[Ratio]) -> str:
    """Words on the range of factors over all intervals, where intervals below 1 are inverted; "" if
    no ratio has an interval.

    >>> ends([Ratio(0.5, 0.4, 0.625), Ratio(0.25, 0.2, 0.5)])
    ' (by 1.60 to 5.00 times)'
    """
    factors = [
        (1 / r.high, 1 / r.low) if r.less else (r.low, r.high)
        for r in found
        if r.low is not None and r.high is not None
    ]
    if not factors:
        return ""
    return f" (by {min(f[0] for f in factors):.2f} to {max(f[1] for f in factors):.2f} times)"


def by_round(records: Iterable[Measurement]) -> dict[int, Measurement]:
    """A dict: round -> record; the last record, if a round has several."""
    return {record.round: record for record in records}


def ratio(
    first: Sequence[Measurement],
    second: Sequence[Measurement],
    readings: Sequence[str] = LATENCY,
    comparisons: int = 1,
) -> Ratio:
    """The ratio of medians, second over first, of the first of `readings` that all records of the
    common rounds have: medians of 4 s and 2 s have the ratio 0.5.

    The value is the geometric mean of the rounds' ratios. The interval covers the intervals of all
    rounds, each wide enough that the level holds for all `comparisons` together (Bonferroni). The
    ratio is refused if there is no common round, no such reading, a round whose ratio is refused,
    or a time that is an estimate of a busy machine.
    """
    one, other = by_round(first), by_round(second)
    rounds = sorted(one.keys() & other.keys())
    if not rounds:
        return Ratio(refused="the two mixers have no round in common")
    both = [(one[r], other[r]) for r in rounds]
    name = next((n for n in readings if all(n in r.readings for pair in both for r in pair)), "")
    if not name:
        return Ratio(refused=first_reason([r for pair in both for r in pair], readings[-1]))
    found = [
        medians("", "", a.readings[name], b.readings[name], LEVEL, comparisons) for a, b in both
    ]
    if refused := next((v.refused for v in found if v.refused), ""):
        return Ratio(reading=name, refused=refused)
    if any(v.of == BUSY_TIMES for v in found):
        return Ratio(reading=name, refused="no claim: a time is an estimate of a busy machine")
    ratios = [v.ratio for v in found if v.ratio is not None]
    low = min(v.ci_low for v in found if v.ci_low is not None)
    high = max(v.ci_high for v in found if v.ci_high is not None)
    return Ratio(statistics.geometric_mean(ratios), low, high, name)


def bytes_ratio(first: Sequence[Measurement], second: Sequence[Measurement]) -> Ratio:
    """The ratio of peak memories, second over first; refused unless each side has peaks, equal in
    all its rounds and above 0 B."""
    name = "peak_memory"
    peaks = [[r.value for r in readings_of(side, name)] for side in (first, second)]
    if not all(peaks):
        return Ratio(refused=first_reason([*first, *second], name))
    if any(len(set(side)) > 1 for side in peaks):
        return Ratio(refused="peaks of memory differ from round to round")
    (one,), (other,) = map(set, peaks)
    if min(one, other) <= 0:
        return Ratio(refused="a peak of zero bytes has no ratio")
    return Ratio(other / one, other / one, other / one, name, exact=True)


def energy_ratio(first: Sequence[Measurement], second: Sequence[Measurement]) -> Ratio:
    """The ratio of the mean energies (idle power included), second over first; its interval goes
    from the lower end of the second over the upper end of the first to the upper over the lower, of
    the ends of all readings. A gain error of the sensor cancels. Refused if a side has no energy,
    or an end is 0 or less."""
    name = "energy"
    sides = [readings_of(side, name) for side in (first, second)]
    if not all(sides):
        return Ratio(refused=first_reason([*first, *second], name))
    (a, a_low, a_high), (b, b_low, b_high) = map(mean_and_ends, sides)
    if a_low <= 0 or b_low <= 0:
        return Ratio(refused=DOWN_TO_ZERO)
    return Ratio(b / a, b_low / a_high, b_high / a_low, name)


def mean_and_ends(readings: Sequence[Reading]) -> tuple[float, float, float]:
    """(mean value of readings, lowest and highest end of their intervals); for a reading without an
    interval, its samples and its value count as ends."""
    found = [end for r in readings for end in r.interval or (*r.samples, r.value)]
    return statistics.fmean(r.value for r in readings), min(found), max(found)


def fastest(
    candidates: Mapping[str, Sequence[Measurement]], readings: Sequence[str] = LATENCY
) -> str | None:
    """The implementation with the least geometric mean of the first of `readings` that any
    implementation has; None if no implementation has any."""
    for name in readings:
        times = {
            key: statistics.geometric_mean(values)
            for key, records in candidates.items()
            if (values := [r.value for r in readings_of(records, name)])
        }
        if times:
            return min(times, key=lambda key: times[key])
    return None


def bound(records: Iterable[Measurement]) -> bool:
    """Whether the device waits for launches most of the time in any of the records."""
    return any(waits_for_launches(record) for record in records)
