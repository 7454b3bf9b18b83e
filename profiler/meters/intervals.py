"""Between which values does a median lie?

The ends of an interval are two of the ordered values, chosen by how many there are: the interval
holds the median of any continuous distribution from which the values were drawn independently.
Values are medians of blocks, or one of each round, trial or process. Regions timed one after
another resemble one another, so that they are no such values: a block of them counts once.

What is slower than a whole measurement moves all of its blocks alike and is in no interval of it.
benchmarks/interval_coverage.py shows how often intervals of repeated runs hold their common median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from profiler.records.reading import Reading

CONFIDENCE = 0.95

ROUND = 10
"""Samples of a block in records that do not say it."""


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The ranks (from 1) of the two order statistics that bracket the median of any continuous
    distribution with at least this confidence; None where n values are too few.

    The rank k is the largest with P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.

    >>> median_ranks(6), median_ranks(30)
    ((1, 6), (10, 21))
    """
    allowed = math.floor((1 - confidence) / 2 * 2**64) * 2**n >> 64
    below, term, k = 0, 1, 0  # term = comb(n, k)
    while below + term <= allowed:
        below += term
        term = term * (n - k) // (k + 1)
        k += 1
    return (k, n + 1 - k) if k else None


def median_interval(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of the median of these values; None where they are too few.

    >>> median_interval([5.0, 1.0, 3.0, 2.0, 6.0, 4.0])
    (1.0, 6.0)
    """
    ranks = median_ranks(len(values), confidence)
    if ranks is None:
        return None
    ordered = sorted(values)
    return ordered[ranks[0] - 1], ordered[ranks[1] - 1]


@lru_cache
def least_number(confidence: float = CONFIDENCE) -> int:
    """The smallest number of values whose median has an interval.

    >>> least_number()
    6
    """
    number = 1
    while median_ranks(number, confidence) is None:
        number += 1
    return number


def no_interval(number: int, what: str = "block", confidence: float = CONFIDENCE) -> str:
    """Why the median of so few values has no interval.

    >>> no_interval(5)
    '5 blocks are too few: 6 are needed'
    """
    said = f"{number} {what} is" if number == 1 else f"{number} {what}s are"
    return f"{said} too few: {least_number(confidence)} are needed"


def block_medians(reading: Reading) -> list[float]:
    """The values that the interval of a reading's median is made of: a median for each block of
    samples; the samples themselves where each is of a round or a trial."""
    samples, details = reading.samples, reading.details
    sizes = details.get("blocks")
    if sizes is None:
        in_rows = reading.name.startswith("latency") and "comparison" not in details
        step = ROUND if in_rows else 1
        starts = range(0, len(samples), step)
        sizes = [min(step, len(samples) - start) for start in starts]
    return medians_of(samples, sizes)


def medians_of(samples: Sequence[float], blocks: Sequence[int]) -> list[float]:
    """The median of each block, of which the first has so many samples, and so on.

    >>> medians_of([1.0, 2.0, 3.0, 9.0, 7.0], [3, 2])
    [2.0, 8.0]
    """
    ends = accumulate(blocks, initial=0)
    return [statistics.median(samples[start:end]) for start, end in pairwise(ends)]
