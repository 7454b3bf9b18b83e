"""Between which values does a median lie?

The ends of an interval are two of the ordered values, chosen by how many there are: the interval
holds the median of any continuous distribution from which the values were drawn independently.
Values are medians of blocks, or one of each round, trial or process. Regions timed one after
another resemble one another, so that they are no such values: a block of them counts once.

What is slower than a whole measurement moves all of its blocks alike and is in no interval of it:
where arrays and code lie in memory (Mytkowicz et al., "Producing Wrong Data Without Doing Anything
Obviously Wrong!" (2009)), what else the machine does. Fresh processes show it, each as one value.
benchmarks/interval_coverage.py shows how often either kind of interval holds the median of all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from profiler.records.grades import BUSY, QUIET, grade_of
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
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    said = f"{number} {what} is" if number == 1 else f"{number} {plural} are"
    return f"{said} too few: {least_number(confidence)} are needed"


def widest_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The interval of the median of these values, and with which probability it holds the median:
    at least `CONFIDENCE`, or of fewer values the largest that there is, from the least to the most.

    >>> widest_interval([3.0, 1.0, 2.0])
    (1.0, 3.0, 0.75)
    """
    ends = median_interval(values) or (min(values), max(values))
    return *ends, confidence_of(len(values))


def confidence_of(number: int) -> float:
    """With which probability the interval of so many values holds their median, at least: of few
    values, all of them lie on one side of it once in 2 ** (number - 1).

    >>> confidence_of(3), confidence_of(6)
    (0.75, 0.95)
    """
    return CONFIDENCE if number >= least_number() else 1 - 2.0 ** (1 - number)


def over_processes(found: Mapping[int, Reading]) -> Reading:
    """What several processes say of one reading: the median of their values, which become the
    samples, with the interval that spans processes. A number or bytes in which all agree stays as
    the first process found them.

    Of times the quiet ones alone are taken where most are quiet; otherwise the regions of all
    processes make one busy time.

    Args:
        found: process -> the reading.
    """
    timed = next(iter(found.values())).unit == "s"
    quiet = {p: r for p, r in found.items() if not timed or grade_of(r) == QUIET}
    if 2 * len(quiet) > len(found):
        found = quiet
    elif len(found) > 1:
        return all_regions(found)
    first = next(iter(found.values()))
    values = [reading.value for reading in found.values()]
    exact = first.unit not in ("s", "J", "W")
    if len(found) == 1:
        return first
    told = [reading.details for reading in found.values()]
    united: dict[str, Any] = {
        "labels": list(dict.fromkeys(label for each in told for label in each.get("labels", ())))
    }
    if any(each.get("launch_bound") for each in told):
        united["launch_bound"] = True
    if exact:
        agree = len(set(values)) == 1 and all(each.get("agree", True) for each in told)
        united |= {"agree": agree} if "agree" in first.details or not agree else {}
    if exact and len(set(values)) == 1:
        return replace(first, details={**first.details, **united})
    low, high, confidence = widest_interval(values)
    details = {
        **first.details,
        "ci_low": low,
        "ci_high": high,
        "confidence": confidence,
        "n": len(values),
        "blocks": [1] * len(values),
        **spread(values),
        "stop_rule": "processes done",
        **united,
        "processes": processes_of(found),
    }
    details.pop("ci_missing", None)
    sampled = [reading.details.get("sampled_s") for reading in found.values()]
    if None not in sampled:
        details["sampled_s"] = sum(filter(None, sampled))
    return replace(first, value=statistics.median(values), samples=tuple(values), details=details)


def all_regions(found: Mapping[int, Reading]) -> Reading:
    """The busy time of the regions of all processes together.

    Threads that wait for one another on one processor make a process that is much slower than the
    others: it has few regions in the same time, so that it counts for little.
    """
    told = [reading.details for reading in found.values()]
    regions = [sample for reading in found.values() for sample in reading.samples]
    least = min(each.get("ci_low") or min(reading.samples)
                for each, reading in zip(told, found.values(), strict=True))  # fmt: skip
    value, low, high = busy_estimate(regions, least)
    details = {
        **next(iter(found.values())).details,
        "grade": BUSY,
        "ci_low": low,
        "ci_high": high,
        "n": len(regions),
        "blocks": [size for each in told for size in each.get("blocks", ())],
        "waiting": [share for each in told for share in each.get("waiting", ())],
        **spread(regions),
        "stop_rule": "processes done",
        "labels": list(dict.fromkeys(label for each in told for label in each.get("labels", ()))),
        "processes": processes_of(found),
    }
    details.pop("ci_missing", None)
    first = next(iter(found.values()))
    return replace(first, value=value, samples=tuple(regions), details=details)


def processes_of(found: Mapping[int, Reading]) -> list[dict[str, Any]]:
    """Value and samples of a reading in each process."""
    return [
        {"process": number, "value": reading.value, "samples": list(reading.samples)}
        for number, reading in found.items()
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """p20, p80, iqr."""
    return {
        "p20": quantile(values, 0.2),
        "p80": quantile(values, 0.8),
        "iqr": quantile(values, 0.75) - quantile(values, 0.25),
    }


def processes_in(reading: Reading) -> int:
    """How many processes a reading's interval spans."""
    return len(reading.details.get("processes", ())) or 1


def quantile(samples: Sequence[float], part: float) -> float:
    """The value at `part` of the ordered samples, interpolated.

    >>> quantile([1.0, 2.0, 3.0], 0.25)
    1.5
    """
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


LOW = 0.1
"""The quantile of all regions that stands for a call on a busy device: while four processes spun on
two processors, this one and the quantile 0.2 lay 2 % (the median of 20 processes) from what quiet
processes took before and after, the least region 5 % and the median of regions 12 %."""


def busy_estimate(
    regions: Sequence[float], processor_s: float | None = None
) -> tuple[float, float, float]:
    """The time of a call on a device that others use too: value, lower end and upper end of an
    estimate. Waiting only adds to a region, and a region that is shorter than a time slice mostly
    holds none: the value is a low quantile, the lower end what the call needs at least, the upper
    end the median of all regions.

    Args:
        regions: seconds a call, of all timed regions.
        processor_s: the least seconds a call that the busiest thread was on a processor; None where
            the system does not tell.

    >>> busy_estimate([3.0, 1.0, 2.0, 9.0, 9.0, 9.0], 0.5)
    (1.5, 0.5, 6.0)
    """
    least = min(regions)
    low = least if processor_s is None else min(least, processor_s)
    return quantile(regions, LOW), low, statistics.median(regions)


def block_medians(reading: Reading) -> list[float]:
    """The values that the interval of a reading's median is made of: a median for each block of
    samples; the samples themselves where each is of a round, a trial or a process."""
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
