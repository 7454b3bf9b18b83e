"""How well is the median of samples known that follow one another and so resemble one another?

The ranks that bracket a median take samples to be independent (`meters.latency_stopping`). Samples
of a latency are taken one after the other: while a machine is slow, all of them are, and a thousand
tell no more than some dozens would that were taken far apart. The variance of a median is that of
the share of samples below it, which dependence multiplies by 1 + 2 (r1 + r2 + ...), r the
autocorrelations of "is below the median": so many times fewer independent samples would tell as
much. Heidelberger and Lewis, "Quantile Estimation in Dependent Sequences" (1984); the sum ends
where pairs of autocorrelations are no longer positive, and no pair counts more than the one before:
Geyer, "Practical Markov Chain Monte Carlo" (1992), section 3.3. Samples that were taken for less
long than a machine stays slow do not show that it does: that no interval of one run can tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from profiler.meters.latency_stopping import LatencyLimits, median_ranks

LEAST = LatencyLimits.min_samples
"""Fewer samples do not tell whether they resemble one another: a call so long that a measurement
ends with fewer is taken to be long enough for them not to."""


def independent(samples: Sequence[float]) -> float:
    """How many independent samples tell as much of the median as these, in the order taken.

    At most as many as there are; all of them where they are fewer than `LEAST`, or all on one side.

    >>> independent([1, 2] * 20), round(independent([1] * 20 + [2] * 20), 1)
    (40.0, 3.0)
    """
    number = len(samples)
    middle = statistics.median(samples)
    below = np.array([sample <= middle for sample in samples], dtype=float)
    below -= below.mean()
    spread = float(below @ below)
    if number < LEAST or spread == 0:
        return float(number)

    def pair(lag: int) -> float:
        """Autocorrelations of a lag and of the next."""
        lags = (lag, lag + 1)
        return sum(float(below[: number - k] @ below[k:]) for k in lags) / spread

    total, before = 0.0, float("inf")
    for lag in range(0, number - 1, 2):
        now = min(pair(lag), before)
        if now <= 0:
            break
        total, before = total + now, now
    return number / max(2 * total - 1, 1.0)


def dependent_median_ends(
    samples: Sequence[float], confidence: float
) -> tuple[float, float] | None:
    """The interval of the median of samples in the order taken; None where they tell too little.

    Its ends are the order statistics at the shares that bracket the median of as many independent
    samples: for independent ones the interval of `median_ranks`.
    """
    as_many = int(independent(samples))
    ranks = median_ranks(as_many, confidence)
    if ranks is None:
        return None
    low = max(ranks[0] * len(samples) // as_many, 1)
    ordered = sorted(samples)
    return ordered[low - 1], ordered[-low]
