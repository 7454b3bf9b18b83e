"""An upper bound on the duration of measurements, from the meters' limits."""

from __future__ import annotations

from collections.abc import Collection

from profiler.meters.energy.protocol import EnergyLimits
from profiler.meters.sampler import LatencyLimits
from profiler.records.quantities import LATENCIES
from profiler.run.request import Request


def longest_s(request: Request, limits: LatencyLimits) -> float:
    """The most seconds that the latencies of one request (hot, cold if `limits.cold`, on a GPU as a
    graph) take, if no warm-up restarts, and the expected seconds of its energy, on a GPU alone.
    Building, counting, compiling and hardware counters take additional time."""
    on_gpu = request.device.startswith("cuda")
    kinds = len(LATENCIES) - (not on_gpu) - (not limits.cold)  # no graph on a CPU
    kinds *= 1 if on_gpu else 2  # a disturbed call is timed again, with one thread
    timed = kinds * (limits.warmup_seconds + limits.max_seconds)
    if not (on_gpu and request.energy):
        return timed
    return timed + EnergyLimits.asked(request.energy_window_s, request.energy_trials).seconds()


def estimate(asked: Collection[Request], limits: LatencyLimits) -> str:
    """A sentence with the number of points (requests), the most time that timing them takes, and
    what takes additional time."""
    total = sum(longest_s(request, limits) for request in asked)
    points = f"{len(asked):,} point{'s' if len(asked) != 1 else ''}"
    metered = any(each.energy and each.device.startswith("cuda") for each in asked)
    more = ", counting, cooling and repeated trials of energy" if metered else " and counting"
    return (
        f"{points}: timing takes at most {duration_words(total)} on one device; "
        f"building{more} take additional time"
    )


def duration_words(seconds: float) -> str:
    """The text of a duration: in seconds, or in whole minutes or hours from two of them on.

    >>> duration_words(90), duration_words(600), duration_words(126_000)
    ('90 s', '10 min', '35 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
