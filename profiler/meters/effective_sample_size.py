"""How well is a median known whose samples were taken one after another, and so resemble one
another?

Consecutive samples of a latency depend on each other: while a machine is slow, all samples are
slow, and a thousand tell no more than some dozens taken far apart would. The variance of a median
is that of the share of samples below it, which dependence multiplies by 1 + 2 (r1 + r2 + ...), r
the autocorrelations of "is below the median"; the number of samples divided by this factor is the
effective sample size. Heidelberger and Lewis, "Quantile Estimation in Dependent Sequences" (1984).
The sum ends where pairs of autocorrelations are no longer positive, and no pair counts more than
the one before: Geyer, "Practical Markov Chain Monte Carlo" (1992), section 3.3.

An interval of 95 % comes near to that where the factor is less than about a thirtieth of the number
of samples; where it is a tenth, the interval holds the median in eight or nine of ten cases.
Without the factor it would be four of ten (tests/profiler/test_dependence.py and
test_stopping_coverage.py have the figures). Samples taken for less time than a machine stays slow
do not show the slowness, nor does one process show how processes differ: where arrays lie in memory
moves a process's median by some tenths of a percent, which no interval of one run contains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95

LEAST = 12
"""Fewer samples than this, less than twice what an interval needs, do not show dependence: they are
taken as independent."""

MARKEDLY = 0.5
"""An effective sample size below this share of the number of samples is reported."""


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The ranks (from 1) of the two order statistics that bracket the median of any continuous
    distribution with at least this confidence; None where n samples are too few.

    Exact for independent samples: the rank k is the largest with
    P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.

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


def variance_factor(samples: Sequence[float]) -> tuple[float, int]:
    """The factor, at least 1, by which dependence multiplies the variance of the median, and the
    number of autocorrelations in its sum: 0 where there are fewer samples than `LEAST`, or all lie
    on one side."""
    number = len(samples)
    taken = np.asarray(samples, dtype=float)
    below = (taken <= np.median(taken)).astype(float)
    below -= below.mean()
    spread = float(below @ below)
    if number < LEAST or spread == 0:
        return 1.0, 0

    def pair(lag: int) -> float:
        """Autocorrelations of a lag and of the next."""
        lags = (lag, lag + 1)
        return sum(float(below[: number - k] @ below[k:]) for k in lags) / spread

    total, before, last = 0.0, math.inf, 0
    for lag in range(0, number - 1, 2):
        now = min(pair(lag), before)
        if now <= 0:
            break
        total, before, last = total + now, now, lag + 1
    return max(2 * total - 1, 1.0), last


def effective_number(samples: Sequence[float]) -> float:
    """The effective sample size of samples in the order taken; at most their number.

    >>> effective_number([1, 2] * 20), round(effective_number([1] * 20 + [2] * 20), 1)
    (40.0, 3.0)
    """
    return len(samples) / variance_factor(samples)[0]


def cautious_effective_number(samples: Sequence[float]) -> float:
    """A lower estimate of the effective sample size, which allows for the error of the estimate
    itself; for deciding when to stop, and for samples that stopped because their interval was
    narrow.

    A sum of L autocorrelations of n samples has bias and error like a variance with n / 2L degrees
    of freedom: Priestley, "Spectral Analysis and Time Series" (1981), section 6.2. A rule that
    stops as soon as an interval is narrow stops where that sum came out too small; so the rule asks
    for more samples, in the ratio of Student's quantile to the normal one, as approximated, for few
    degrees of freedom from above, by Wallace (1959).
    """
    factor, lags = variance_factor(samples)
    number = len(samples) / factor
    if lags == 0:
        return number
    freedom = max(len(samples) / (2 * lags), 1.0)
    normal = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    exponent = (normal * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom
    return number * (1 - 1 / freedom) * normal**2 / (freedom * math.expm1(exponent))


def median_ends(
    samples: Sequence[float], as_many: float, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The order statistics at the shares that bracket the median of `as_many` independent samples;
    None where so many are too few.

    The share of rank k of a is (k - 1/2) / a: that less than k of a samples lie below the median is
    about as likely as that their share, taken as continuous, is less than this.
    """
    number = int(as_many)
    ranks = median_ranks(number, confidence)
    if ranks is None:
        return None
    low = max(((2 * ranks[0] - 1) * len(samples) + number) // (2 * number), 1)
    ordered = sorted(samples)
    return ordered[low - 1], ordered[-low]


def median_interval(
    samples: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of the median of samples in the order taken; None where they are worth less than
    six independent samples (for 95 %)."""
    return median_ends(samples, effective_number(samples), confidence)


def separate_interval(
    samples: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of the median of independent samples, such as one per process; None where they
    are too few."""
    return median_ends(samples, len(samples), confidence)


@lru_cache
def least_number(confidence: float = CONFIDENCE) -> int:
    """The smallest number of independent samples whose median has an interval.

    >>> least_number()
    6
    """
    number = 1
    while median_ranks(number, confidence) is None:
        number += 1
    return number


def no_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> str:
    """Why the median of these samples has no interval."""
    least = least_number(confidence)
    number = len(samples)
    if number < least:
        return f"{number} sample{'s are' if number != 1 else ' is'} too few: {least} are needed"
    return (
        f"{number} samples that resemble the ones before them tell as much as "
        f"{int(effective_number(samples))} independent ones: {least} are needed"
    )


def markedly_fewer(number: int, as_many: float | None) -> int | None:
    """The effective sample size, where it is markedly below the number of samples; None where it is
    not, or is unknown.

    >>> markedly_fewer(1000, 180.3), markedly_fewer(1000, 700.0), markedly_fewer(1000, None)
    (180, None, None)
    """
    return None if as_many is None or as_many >= MARKEDLY * number else int(as_many)
