"""Distribution-free confidence intervals of a median.

The ends of an interval are two order statistics, chosen by the number of values: the interval holds
the median of any continuous distribution from which the values were drawn independently. A value is
the median of a block of regions (each a timed interval of a few calls), or the value of a round, a
trial or a process. Consecutive regions are correlated, so a block of regions counts as one value.

Influences slower than a whole measurement shift all of its blocks alike, so its interval misses
them: where arrays and code lie in memory (Mytkowicz et al., "Producing Wrong Data Without Doing
Anything Obviously Wrong!" (2009)), other load on the machine. Fresh processes show them, one value
each. benchmarks/interval_coverage.py measures the coverage of intervals within and over processes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from msgspec.structs import replace

from profiler.records.grades import BUSY, ONE_SAMPLE, QUIET, undisturbed
from profiler.records.quantities import LATENCIES
from profiler.records.reading import Reading, quantile

CONFIDENCE = 0.95

ROUND = 10
"""Samples per block in records that do not state the size of blocks."""


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The ranks (from 1) of the two order statistics that bracket the median of any continuous
    distribution with at least this confidence; None if n is too small.

    The lower rank k is the largest with P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.

    >>> median_ranks(6), median_ranks(30)
    ((1, 6), (10, 21))
    """
    # (1 - confidence) / 2 of all 2**n outcomes, in whole numbers, as 2**n may exceed every float
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
    """The confidence interval of the median of these values; None if there are too few.

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
    """The smallest number of values whose median has a confidence interval.

    >>> least_number()
    6
    """
    number = 1
    while median_ranks(number, confidence) is None:
        number += 1
    return number


def no_interval(number: int, what: str = "block", confidence: float = CONFIDENCE) -> str:
    """A sentence on why the median of this few values (`what` names them) has no confidence
    interval.

    >>> no_interval(5)
    '5 blocks are too few: 6 are needed'
    """
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    said = f"{number} {what} is" if number == 1 else f"{number} {plural} are"
    return f"{said} too few: {least_number(confidence)} are needed"


def widest_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(lower end, upper end, confidence) of the interval of the median of these values: with a
    confidence of `CONFIDENCE`; for too few values, their range, with the confidence of the range.

    >>> widest_interval([3.0, 1.0, 2.0])
    (1.0, 3.0, 0.75)
    """
    ends = median_interval(values) or (min(values), max(values))
    return *ends, confidence_of(len(values))


def confidence_of(number: int) -> float:
    """The least confidence with which an interval of this many values holds their distribution's
    median; for too few values, the interval is their range. All of n values lie on one side of the
    median with probability 2 ** (1 - n).

    >>> confidence_of(3), confidence_of(6)
    (0.75, 0.95)
    """
    return CONFIDENCE if number >= least_number() else 1 - 2.0 ** (1 - number)


def over_processes(found: Mapping[int, Reading]) -> Reading:
    """Join the readings of one quantity from several processes into one: the median of the
    processes' values, which become the samples, with an interval over processes. A count or bytes
    on which all processes agree is kept as the first process read it.

    Times: if most processes were quiet, the quiet ones (undisturbed by other programs) alone; else
    an estimate for a busy machine from the timed regions of all processes. The reading of a single
    process is returned unchanged, a busy one too.

    Args:
        found: process -> the reading.
    """
    timed = next(iter(found.values())).unit == "s"
    quiet = {p: r for p, r in found.items() if not timed or undisturbed(r)}
    if 2 * len(quiet) > len(found):
        found = quiet
    elif len(found) > 1:
        return all_regions(found)
    first = next(iter(found.values()))
    values = [reading.value for reading in found.values()]
    exact = first.unit not in ("s", "J", "W")  # a count or bytes
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
        **united,
    }
    details["labels"] = [label for label in details["labels"] if label != ONE_SAMPLE]
    details |= {"grade": QUIET} if "grade" in details else {}
    details = of_processes(details, found)
    return replace(first, value=statistics.median(values), samples=tuple(values), details=details)


def all_regions(found: Mapping[int, Reading]) -> Reading:
    """One reading of a time on a machine that other programs use, estimated from the timed regions
    of all processes together by `busy_estimate`: a low quantile, and the median as upper end.

    Threads that wait for one another on one processor may make one process much slower than the
    others: that process has few regions in the same time, so its weight is small. The lower end is
    the least lower end of a process, or its fastest region where the process has no interval.
    """
    told = [reading.details for reading in found.values()]
    regions = [sample for reading in found.values() for sample in reading.samples]
    low = min(each.get("ci_low") or min(reading.samples)
              for each, reading in zip(told, found.values(), strict=True))  # fmt: skip
    ran = [each.get("alone_s", ()) for each in told]  # s a call that a lone thread ran
    joined = [seconds for each in ran for seconds in each] if all(ran) else []
    value, _, high = busy_estimate(regions, joined, alone=True)
    details = {
        **next(iter(found.values())).details,
        "grade": BUSY,
        "ci_low": low,
        "ci_high": high,
        "n": len(regions),
        "blocks": [size for each in told for size in each.get("blocks", ())],
        "waiting": [share for each in told for share in each.get("waiting", ())],
        "alone_s": joined,
        **spread(regions),
        "labels": list(
            dict.fromkeys(
                label for each in told for label in each.get("labels", ()) if label != ONE_SAMPLE
            )
        ),
    }
    details = of_processes(details, found)
    first = next(iter(found.values()))
    return replace(first, value=value, samples=tuple(regions), details=details)


def of_processes(details: Mapping[str, Any], found: Mapping[int, Reading]) -> dict[str, Any]:
    """A copy of the details of a reading over processes, to which are added the value and samples
    in each process, and the seconds of the timed calls of all processes if every process tells its
    own."""
    each = [
        {"process": number, "value": reading.value, "samples": list(reading.samples)}
        for number, reading in found.items()
    ]
    spent = [r.details["sampled_s"] for r in found.values() if "sampled_s" in r.details]
    kept = {name: of for name, of in details.items() if name not in ("ci_missing", "sampled_s")}
    total = {"sampled_s": sum(spent)} if len(spent) == len(found) else {}
    return {**kept, "stop_rule": "processes done", "processes": each, **total}


def spread(values: Sequence[float]) -> dict[str, float]:
    """A dict with the quantiles of 20 % and 80 %, `p20` and `p80`, and the interquartile range
    `iqr`."""
    return {
        "p20": quantile(values, 0.2),
        "p80": quantile(values, 0.8),
        "iqr": quantile(values, 0.75) - quantile(values, 0.25),
    }


def processes_in(reading: Reading) -> int:
    """The number of processes that a reading's interval spans."""
    return len(reading.details.get("processes", ())) or 1


LOW = 0.1
"""The quantile of all regions that estimates the time of a call on a busy device. While four
processes spun on two processors, the quantiles 0.1 and 0.2 differed by 2 % (median of 20 processes)
from the times of quiet processes before and after, the minimum by 5 %, the median by 12 %."""


KEPT = 0.75
"""The lower end of an estimate, as a part of the least time. After a preemption the caches hold the
data of other programs, and the call reads its own again: while four processes spun on two
processors, calls of 2 to 14 ms on one thread ran up to a quarter longer than on the idle machine,
although the time that they waited was left out."""


def busy_estimate(
    regions: Sequence[float], ran: Sequence[float] = (), *, alone: bool = False
) -> tuple[float, float, float]:
    """(value, lower end, upper end) of the time of a call in seconds, estimated on a device that
    other programs use too.

    Preemption only lengthens a region, and most regions shorter than a time slice hold none: the
    value is the quantile `LOW`, the lower end the part `KEPT` of the least time, the upper end the
    median. A call longer than a time slice is preempted in every region: if one thread takes all of
    its time, the value and the upper end are those of the time on the processor where these are
    less.

    Args:
        regions: seconds per call, of all timed regions.
        ran: seconds per call that the busiest thread ran, of each block; empty if the system does
            not tell.
        alone: whether this thread took all the time of the calls.

    >>> busy_estimate([3.0, 1.0, 2.0, 9.0, 9.0, 9.0], [0.5])
    (1.5, 0.375, 6.0)
    >>> busy_estimate([9.0, 9.0, 9.0], [2.0, 2.0, 2.5], alone=True)
    (2.0, 1.5, 2.0)
    """
    told = [regions, ran] if alone and ran else [regions]
    return (
        min(quantile(each, LOW) for each in told),
        KEPT * min([*regions, *ran]),
        min(statistics.median(each) for each in told),
    )


def block_medians(reading: Reading) -> list[float]:
    """The values from which the interval of a reading's median is made: the median of each block of
    samples, or the samples themselves if each is of a round, a trial or a process.

    In a record without the sizes of blocks, a latency has blocks of `ROUND` samples, unless its
    samples are of rounds (`comparison`).
    """
    samples, details = reading.samples, reading.details
    sizes = details.get("blocks")
    if sizes is None:
        in_rows = reading.name in LATENCIES and "comparison" not in details
        step = ROUND if in_rows else 1
        starts = range(0, len(samples), step)
        sizes = [min(step, len(samples) - start) for start in starts]
    return medians_of(samples, sizes)


def medians_of(samples: Sequence[float], blocks: Sequence[int]) -> list[float]:
    """The median of each block of consecutive samples; `blocks` lists the numbers of samples.

    >>> medians_of([1.0, 2.0, 3.0, 9.0, 7.0], [3, 2])
    [2.0, 8.0]
    """
    ends = accumulate(blocks, initial=0)
    return [statistics.median(samples[start:end]) for start, end in pairwise(ends)]
