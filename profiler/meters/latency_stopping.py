"""When has a duration been sampled often enough, and how well is its median known then?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.meters.dependence import (
    independent,
    median_ends,
    median_interval,
    no_interval,
    surely_independent,
)

SETTLED = "median settled"
"""The rule that stops where the interval of the median is narrow."""

Floats = NDArray[np.float64]

CHECK_EVERY = 10
"""Samples in a round, once the least number has been taken."""
LOOKS = 10
"""A tenth more samples, and not less than a round, lie between two looks at the rules."""

FIRST_NOISE = 5
"""Samples from which on their spread is followed."""
NOISES = 512
"""The latest so many spreads are compared with the last one."""
LEAST_NOISES = 64


@dataclass(frozen=True)
class LatencyLimits:
    """When a measurement of latency may stop; seconds are read from the clock that times it.

    `min_seconds` is what sampling takes in all, with what is done between calls (flushed caches)
    and without readings of other sensors and pauses; a shorter `max_seconds` takes its place.
    """

    min_samples: int = 30
    max_samples: int = 1000
    min_seconds: float = 0.5
    max_seconds: float = 15.0
    settled: float = 0.01  # both ends of the median's interval within this part of the median
    noise: float = 0.05  # the spread's own relative spread, where the median does not settle
    warmup_calls: int = 50
    warmup_seconds: float = 5.0
    warmup_steady: float = 0.05  # three calls in a row within this part of the longest
    warmup_gpu_seconds: float = 1.0  # a GPU works for so long before it is timed, if it may
    warmup_clock: float = 0.02  # and until its clock stays within this part of the highest
    retries: int = 3  # of a disturbed round of samples, and of a warm-up that ended too early
    late: float = 5.0  # a first sample this many medians long belongs to the warm-up
    slow_clock: float = 0.75  # a clock below this part of its median is a disturbance

    def __post_init__(self) -> None:
        if self.min_samples < 1 or self.max_samples < self.min_samples or self.warmup_calls < 1:
            raise ValueError(f"expected 1 <= min_samples <= max_samples, warmup_calls >= 1: {self}")

    @property
    def least_seconds(self) -> float:
        """Sampling goes on for so long."""
        return min(self.min_seconds, self.max_seconds)

    @property
    def region_seconds(self) -> float:
        """How long a timed region lasts, so that the least time is reached with samples to spare
        and the least number of samples within that time."""
        return self.least_seconds / max(self.max_samples / 2, self.min_samples)


def is_settled(samples: Sequence[float], tolerance: float) -> bool:
    """Whether both ends of the median's interval lie within `tolerance` of the median, even if the
    samples resemble one another somewhat more than they show."""
    interval = median_ends(samples, surely_independent(samples))
    if interval is None:
        return False
    middle = statistics.median(samples)
    return max(interval[1] - middle, middle - interval[0]) <= tolerance * middle


def noises(samples: Sequence[float]) -> Floats:
    """The relative standard deviation of the first n samples, for n from `FIRST_NOISE` on."""
    taken = np.asarray(samples, dtype=float)
    number = np.arange(1, len(taken) + 1)[FIRST_NOISE - 1 :]
    total = np.cumsum(taken)[FIRST_NOISE - 1 :]
    square = np.cumsum(taken * taken)[FIRST_NOISE - 1 :]
    told = total > 0
    number, total, square = number[told], total[told], square[told]
    variance = np.maximum(square - total * total / number, 0.0) / (number - 1)
    return np.asarray(np.sqrt(variance) * number / total)


def is_stable_noise(samples: Sequence[float], tolerance: float) -> bool:
    """Whether the samples' spread has stopped changing, though the median has not settled.

    As nvbench's criterion `stdrel` decides it: the latest spreads, more than 64 of them, stay
    within `tolerance` of the last one (root mean square, relative).
    """
    latest = noises(samples)[-NOISES:]
    if len(latest) <= LEAST_NOISES or latest[-1] == 0:
        return False
    return float(np.sqrt(np.mean((latest - latest[-1]) ** 2))) < tolerance * float(latest[-1])


class Rules:
    """By which rule may one measurement stop now? The samples are looked at when there are a tenth
    more than at the last look: looking costs time, and the oftener one looks for an interval that
    is narrow, the oftener one is found that is too narrow."""

    def __init__(self, limits: LatencyLimits) -> None:
        self.limits, self.due = limits, limits.min_samples

    def that_stops(self, samples: Sequence[float], sampled_s: float, spent_s: float) -> str | None:
        """The name of the rule, None where sampling goes on.

        Noise that has stopped changing ends it only where the samples tell anything of the median.
        `sampled_s` is what the samples took in all; `spent_s` is the same with repeated rounds,
        pauses and readings of other sensors, which only the cap regards.
        """
        limits, number = self.limits, len(samples)
        capped, full = spent_s >= limits.max_seconds, number >= limits.max_samples
        due = number >= self.due or ((capped or full) and number >= limits.min_samples)
        if due and (capped or sampled_s >= limits.least_seconds):
            self.due = number + max(number // LOOKS, CHECK_EVERY)
            if is_settled(samples, limits.settled):
                return SETTLED
            if is_stable_noise(samples, limits.noise) and median_interval(samples):
                return "stable noise"
        if full:
            return "sample cap"
        return "time cap" if capped else None


def round_size(taken: int, limits: LatencyLimits) -> int:
    """How many samples to take in the next round."""
    wanted = limits.min_samples - taken if taken < limits.min_samples else CHECK_EVERY
    return max(min(wanted, limits.max_samples - taken), 1)


def quantile(samples: Sequence[float], part: float) -> float:
    """The value at `part` of the way through the ordered samples, interpolated.

    >>> quantile([1.0, 2.0, 3.0], 0.25)
    1.5
    """
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(samples: Sequence[float], rule: str = "") -> dict[str, Any]:
    """Spread of the samples, in seconds, and how well their median is known.

    `n_independent`: as many independent samples would tell as much (`dependence`). The interval's
    ends are None where these are too few, and `ci_missing` says so.

    Args:
        rule: why no more samples were taken. Where their interval was narrow, its ends are those
            that the rule saw.
    """
    as_many = (surely_independent if rule == SETTLED else independent)(samples)
    ends = median_ends(samples, as_many)
    low, high = ends or (None, None)
    return {
        "p20": quantile(samples, 0.2),
        "p80": quantile(samples, 0.8),
        "iqr": quantile(samples, 0.75) - quantile(samples, 0.25),
        "n": len(samples),
        "n_independent": as_many,
        "ci_low": low,
        "ci_high": high,
    } | ({} if ends else {"ci_missing": no_interval(samples)})
