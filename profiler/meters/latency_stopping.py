"""When has a duration been sampled often enough, and how well is its median known then?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

CONFIDENCE = 0.95
CHECK_EVERY = 10
"""Samples between two looks at the rules, once the least number has been taken."""

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


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The ranks (from 1) of the two order statistics that bracket the median of any continuous
    distribution with at least this confidence; None where n samples are too few.

    Exact: the rank k is the largest with P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.

    >>> median_ranks(30)
    (10, 21)
    """
    allowed = math.floor((1 - confidence) / 2 * 2**64) * 2**n >> 64
    below, term, k = 0, 1, 0  # term = comb(n, k)
    while below + term <= allowed:
        below += term
        term = term * (n - k) // (k + 1)
        k += 1
    return (k, n + 1 - k) if k else None


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median by order statistics, None for fewer than six samples."""
    ranks = median_ranks(len(samples))
    if ranks is None:
        return None
    ordered = sorted(samples)
    return ordered[ranks[0] - 1], ordered[ranks[1] - 1]


def is_settled(samples: Sequence[float], tolerance: float) -> bool:
    """Whether both ends of the interval lie within `tolerance` of the median."""
    interval = median_interval(samples)
    if interval is None:
        return False
    middle = statistics.median(samples)
    return max(interval[1] - middle, middle - interval[0]) <= tolerance * middle


def noises(samples: Sequence[float]) -> list[float]:
    """The relative standard deviation of the first n samples, for n from `FIRST_NOISE` on."""
    sums = accumulate(samples)
    squares = accumulate(sample * sample for sample in samples)
    found = []
    for n, (total, square) in enumerate(zip(sums, squares, strict=True), start=1):
        if n >= FIRST_NOISE and total > 0:
            variance = max(square - total * total / n, 0.0) / (n - 1)
            found.append(math.sqrt(variance) * n / total)
    return found


def is_stable_noise(samples: Sequence[float], tolerance: float) -> bool:
    """Whether the samples' spread has stopped changing, though the median has not settled.

    As nvbench's criterion `stdrel` decides it: the latest spreads, more than 64 of them, stay
    within `tolerance` of the last one (root mean square, relative).
    """
    latest = noises(samples)[-NOISES:]
    if len(latest) <= LEAST_NOISES or latest[-1] == 0:
        return False
    last = latest[-1]
    return math.sqrt(statistics.fmean((noise - last) ** 2 for noise in latest)) < tolerance * last


def rule_that_stops(
    samples: Sequence[float], sampled_s: float, spent_s: float, limits: LatencyLimits
) -> str | None:
    """The name of the rule by which sampling may stop now, None where it goes on.

    `sampled_s` is what the samples took in all; `spent_s` is the same with repeated rounds, pauses
    and readings of other sensors, which only the cap regards.
    """
    capped = spent_s >= limits.max_seconds
    if len(samples) >= limits.min_samples and (capped or sampled_s >= limits.least_seconds):
        if is_settled(samples, limits.settled):
            return "median settled"
        if is_stable_noise(samples, limits.noise):
            return "stable noise"
    if len(samples) >= limits.max_samples:
        return "sample cap"
    return "time cap" if capped else None


def round_size(taken: int, limits: LatencyLimits) -> int:
    """How many samples to take before the rules are looked at again."""
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


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Spread of the samples, in seconds; the interval's ends are None for fewer than six."""
    interval = median_interval(samples) or (None, None)
    return {
        "p20": quantile(samples, 0.2),
        "p80": quantile(samples, 0.8),
        "iqr": quantile(samples, 0.75) - quantile(samples, 0.25),
        "n": len(samples),
        "ci_low": interval[0],
        "ci_high": interval[1],
    }
