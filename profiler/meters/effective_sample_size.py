"""How well is the median of samples known that follow one another and so resemble one another?

Samples of a latency are taken one after the other: while a machine is slow, all of them are, and a
thousand tell no more than some dozens would that were taken far apart. The variance of a median is
that of the share of samples below it, which dependence multiplies by 1 + 2 (r1 + r2 + ...), r the
autocorrelations of "is below the median": so many times fewer independent samples would tell as
much. Heidelberger and Lewis, "Quantile Estimation in Dependent Sequences" (1984); the sum ends
where pairs of autocorrelations are no longer positive, and no pair counts more than the one before:
Geyer, "Practical Markov Chain Monte Carlo" (1992), section 3.3.

An interval of 95 % comes near to that where dependence multiplies the variance by less than about a
thirtieth of the number of samples; where by a tenth, it holds the median in eight or nine of ten
cases, and not in four, as without a thought of dependence (tests/profiler/test_dependence.py and
test_stopping_coverage.py have the figures). Samples that were taken for less long than a machine
stays slow do not show that it does, nor does a process show what another one would: where its
arrays lie in memory moves its median by some tenths of a percent. That no interval of one run can
tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95

LEAST = 12
"""Fewer samples, less than twice what an interval needs, do not tell whether they resemble one
another: they are taken as they are."""

MARKEDLY = 0.5
"""Samples that tell as much as less than this part of them would resemble one another markedly."""


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


def summed(samples: Sequence[float]) -> tuple[float, int]:
    """By how much dependence multiplies the variance of the median, at least 1, and from how many
    autocorrelations that was summed: none where the samples are fewer than `LEAST`, or all on one
    side."""
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


def independent(samples: Sequence[float]) -> float:
    """How many independent samples tell as much of the median as these, in the order taken: their
    effective number, at most as many as there are.

    >>> independent([1, 2] * 20), round(independent([1] * 20 + [2] * 20), 1)
    (40.0, 3.0)
    """
    return len(samples) / summed(samples)[0]


def surely_independent(samples: Sequence[float]) -> float:
    """The same, allowing for what is not known of it: the number by which to stop, and that of
    samples which ended because their interval was narrow.

    A sum of L autocorrelations of n samples has a bias and an error of its own, those of a variance
    with n / 2L degrees of freedom: Priestley, "Spectral Analysis and Time Series" (1981), section
    6.2. Whoever stops as soon as an interval is narrow stops where that sum came out too small; so
    a rule asks for as many more samples as Student's t does beside the normal quantile, which
    Wallace (1959) approximates, for few degrees of freedom from above.
    """
    factor, lags = summed(samples)
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
    """The order statistics at the shares that bracket the median of so many independent samples;
    None where these would be too few.

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
    """The interval of the median of samples in the order taken; None where they tell too little:
    less than six independent ones would for 95 %."""
    return median_ends(samples, independent(samples), confidence)


def separate_interval(
    samples: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of the median of samples that were each begun anew, and so are independent;
    None where they are too few."""
    return median_ends(samples, len(samples), confidence)


@lru_cache
def least_number(confidence: float = CONFIDENCE) -> int:
    """How many independent samples it takes for their median to have an interval.

    >>> least_number()
    6
    """
    number = 1
    while median_ranks(number, confidence) is None:
        number += 1
    return number


def no_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> str:
    """Why the median of samples has no interval, where it has none."""
    least = least_number(confidence)
    number = len(samples)
    if number < least:
        return f"{number} sample{'s are' if number != 1 else ' is'} too few: {least} are needed"
    return (
        f"{number} samples that resemble the ones before them tell as much as "
        f"{int(independent(samples))} independent ones: {least} are needed"
    )


def markedly_fewer(number: int, as_many: float | None) -> int | None:
    """How many independent samples tell as much, where these are markedly fewer; None where they
    are not, or where it is not known.

    >>> markedly_fewer(1000, 180.3), markedly_fewer(1000, 700.0), markedly_fewer(1000, None)
    (180, None, None)
    """
    return None if as_many is None or as_many >= MARKEDLY * number else int(as_many)
