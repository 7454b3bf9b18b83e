"""How often do printed intervals hold what they are of, on repeated runs of this machine?

The ratio of a call to itself is 1. Each of many fresh processes takes the rounds of such a
comparison: the interval of one process (`compare --processes 1`) and that of every six in a row
(`compare`) are held against 1.

The duration of a call is not known. The median of all processes takes its place, and the interval
of one process (`profile`) and of every six in a row (`profile --processes 6`) are held against it,
which holds them a little more often than the truth. What changes more slowly than six processes
take, such as another load of the machine, is in no interval: how far the processes' medians lie
apart is told beside the widths.

With `--busy`: on a busy machine a time is an estimate between two ends. Twice as many processes as
there are processors spin while a call is timed as `profile --seconds 1` times it, on one thread and
on as many as torch takes. Before and after, the call is timed on the machine as it is; the ends of
the estimate should hold these quiet times. Where the two quiet times lie more than a tenth apart,
the call has no known time, and the estimate is printed alone.

python -m benchmarks.interval_coverage [--busy]
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from msgspec import structs
from scipy import stats

import costmodel as cm
from benchmarks.timing import environment, spinning
from profiler.compare.in_turns import Run, candidates
from profiler.compare.rows import rows_of
from profiler.compare.run import in_fresh_process
from profiler.compare.verdict import LEVEL, Verdict
from profiler.host.device import default_device
from profiler.meters.disturbances import processors
from profiler.meters.intervals import CONFIDENCE, over_processes
from profiler.meters.latency import latency
from profiler.meters.sampler import LatencyLimits
from profiler.records.grades import QUIET, grade_of, time_words
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.records.words import scaled
from profiler.run.plan import Plan, requests
from profiler.run.prepare import PreparedCall, prepare
from profiler.sweep.devices import devices
from profiler.sweep.points import Point
from profiler.sweep.processes import processes

PROCESSES = 36
BUSY_CALLS = (
    ("self-attention", "sdpa", {"l": 64, "d": 64, "n": 4}),
    ("she", "conv", {"l": 32, "d": 32}),
    ("linear-attention", "cumsum", {"l": 128, "d": 128}),
    ("she", "direct", {"l": 128, "d": 128}),
    ("lstm", "explicit", {"l": 128, "d": 128}),
    ("self-attention", "explicit", {"l": 512, "d": 128}),
)
"""Calls of 0.1 to 15 ms, by mixer, implementation and sizes."""
BUSY_TIMES = 6
"""Times of each call and number of threads on a busy machine."""
AGREE = 1.1
"""The most that the quiet times before and after an estimate differ by, as a factor."""
TRIES = 2
"""The most times that are taken between two estimates until one is quiet."""
TOGETHER = 6
T = TypeVar("T")

SIZES = {"l": (64,), "d": (64,), "n": (4,)}
"""A call of some hundred microseconds."""


def main() -> None:
    """Print shares of intervals that hold what they are of."""
    device = default_device()
    asked = argparse.ArgumentParser()
    asked.add_argument("--busy", action="store_true", help="times of a CPU beside spinning work")
    print(environment("torch", "numpy"))
    if asked.parse_args().busy:
        of_busy()
        return
    mixer = cm.mixer("self-attention")
    twice = Plan([(mixer, "sdpa"), (mixer, "sdpa")], given=SIZES, device=device)
    run = Run(candidates(twice), energy=False)
    sizes = ", ".join(f"{letter} = {values[0]}" for letter, values in SIZES.items())
    print(f"{next(iter(run.asked))}, {sizes}, on {device}")
    of_itself(run)
    of_durations(run)


def of_busy() -> None:
    """Estimates of a busy machine beside what the same machine took before and after."""
    usual = torch.get_num_threads()
    print(f"{2 * len(processors())} processes spin, beside a load of {os.getloadavg()[0]:.1f}")
    found: dict[int, list[tuple[Reading, float]]] = {}
    for mixer, implementation, sizes in BUSY_CALLS:
        given = {letter: (size,) for letter, size in sizes.items()}
        plan = Plan([(cm.mixer(mixer), implementation)], given=given, device="cpu")
        call = prepare(requests(plan)[0])
        at = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
        for threads in sorted({1, usual}):
            torch.set_num_threads(threads)
            print(f"{mixer} {implementation}, {at}, threads: {threads}")
            found.setdefault(threads, []).extend(busy_times(call))
    torch.set_num_threads(usual)
    for threads, times in found.items():
        ends = [(r.details["ci_low"], quiet, r.details["ci_high"]) for r, quiet in times]
        told(f"threads: {threads}: busy interval", ends)
        if times:
            apart = statistics.median(high / low for low, _, high in ends)
            off = statistics.median(r.value / quiet for r, quiet in times)
            print(f"  its ends lie a factor {apart:.2f} apart (median)")
            print(f"  its value is {off:.2f} times the quiet time (median)")


def busy_times(call: PreparedCall) -> list[tuple[Reading, float]]:
    """Estimates of a call while others spin, each with the mean of the quiet times just before and
    after. Without two quiet times that agree, the estimate is printed alone."""
    found = []
    before = calm(call)
    for _ in range(BUSY_TIMES):
        with spinning():
            busy = timed(call)
        after = calm(call)
        ends = " to ".join(scaled(busy.details[end], "s", 3) for end in ("ci_low", "ci_high"))
        beside = f"{time_words(before)} and {time_words(after)}"
        print(f"  {time_words(busy)}, {ends}, beside {beside}", flush=True)
        quiet = sorted(each.value for each in (before, after) if grade_of(each) == QUIET)
        known = len(quiet) == 2 and quiet[1] <= AGREE * quiet[0]
        found += [(busy, statistics.mean(quiet))] if known else []
        before = after
    return found


def calm(call: PreparedCall) -> Reading:
    """The time of a call on the machine as it is: the first quiet one of `TRIES`, or the last."""
    for _ in range(TRIES):
        found = timed(call)
        if grade_of(found) == QUIET:
            break
    return found


def timed(call: PreparedCall) -> Reading:
    """The hot latency of a call, as `profile --seconds 1` samples it."""
    work, reset = call.timed()
    found = latency(
        work, reset=reset, reset_is_trivial=call.trivial, limits=LatencyLimits.within(1)
    )
    assert isinstance(found, Reading), found
    return found


def of_itself(run: Run) -> None:
    """Ratios of a call to itself."""
    found: list[dict[str, Measurement]] = []
    for number in range(PROCESSES):
        taken = in_fresh_process(replace(run, processes=PROCESSES), number)
        found += [] if taken.disturbed or taken.lost else [dict(taken.records)]
    print(f"ratio to itself: {PROCESSES - len(found)} of {PROCESSES} processes were disturbed")
    singles = [ratio(run, [one]) for one in found]
    sixes = [ratio(run, six) for six in groups(found)]
    for title, ratios in (("one process", singles), (f"{TOGETHER} processes", sixes)):
        ends = [(v.ci_low, v.ci_high) for v in ratios if v.ci_low and v.ci_high]
        told(f"  interval of {title}", [(low, 1.0, high) for low, high in ends])


def ratio(run: Run, found: Sequence[dict[str, Measurement]]) -> Verdict:
    """Of the two candidates, by the rounds of one process or by several processes."""
    alone = {"processes": len(found)}
    by = {
        name: {k: structs.replace(each[name], sweep=alone) for k, each in enumerate(found)}
        for name in run.asked
    }
    return rows_of(by, LEVEL)[0].verdict


def of_durations(run: Run) -> None:
    """Medians of one call."""
    (device, *_) = devices(default_device())
    kind = next(iter(run.asked.values())).device.partition(":")[0]
    point = Point(next(iter(run.asked.values())))
    found: list[Reading] = []
    for _ in range(PROCESSES):
        worker = processes([device], kind, None)[device.name]()
        try:
            worker.begin()
            record = worker.measure(point, lambda point, what: None)
        finally:
            worker.stop()
        if isinstance(record, Measurement) and "latency" in record.readings:
            found.append(record.readings["latency"])
    print(f"duration: {PROCESSES - len(found)} of {PROCESSES} processes have no median")
    if not found:
        return
    values = sorted(reading.value for reading in found)
    middle = statistics.median(values)
    sixes = [over_processes(dict(enumerate(six))) for six in groups(found)]
    for title, each in (("one process", found), (f"{TOGETHER} processes", sixes)):
        ends = [(r.details["ci_low"], middle, r.details["ci_high"]) for r in each]
        told(f"  interval of {title}", ends)
    print(
        f"  median {scaled(middle, 's')}; of the processes {scaled(values[0], 's')} to "
        f"{scaled(values[-1], 's')}"
    )


def groups(found: Sequence[T]) -> list[Sequence[T]]:
    """Every six in a row, none twice."""
    return [found[k : k + TOGETHER] for k in range(0, len(found) - TOGETHER + 1, TOGETHER)]


def told(title: str, found: Sequence[tuple[float, float, float]]) -> None:
    """How many of these hold what stands in their middle."""
    if not found:
        print(f"{title}: none")
        return
    holding = sum(low <= truth <= high for low, truth, high in found)
    width = statistics.median((high - low) / truth for low, truth, high in found)
    least = stats.binom.ppf(0.025, len(found), CONFIDENCE)
    print(
        f"{title}: {holding} of {len(found)} hold it ({least:.0f} or more of {CONFIDENCE:.0%} do, "
        f"but for one time in 40); {width:.2%} wide (median)"
    )


if __name__ == "__main__":
    main()
