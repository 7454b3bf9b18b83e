"""How often do printed intervals hold what they are of, on repeated runs of this machine?

The ratio of a call to itself is 1. Each of many fresh processes takes the rounds of such a
comparison: the interval of one process (`compare --processes 1`) and that of every six in a row
(`compare`) are held against 1.

The duration of a call is not known. The median of all processes takes its place, and the interval
of one process (`profile`) and of every six in a row (`profile --processes 6`) are held against it,
which holds them a little more often than the truth. What changes more slowly than six processes
take, such as another load of the machine, is in no interval: how far the processes' medians lie
apart is told beside the widths.

On a busy machine a time is an estimate between two ends. Twice as many processes as there are
processors spin while a fresh process times the call; processes before and after time it on the
machine as it is, whose quiet times the estimate's ends should hold.

python -m benchmarks.interval_coverage
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

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
from profiler.meters.sampler import LatencyLimits
from profiler.records.grades import QUIET, grade_of, time_words
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.records.words import scaled
from profiler.run.plan import Plan
from profiler.sweep.child import TIME_AGAIN
from profiler.sweep.devices import devices
from profiler.sweep.points import Point
from profiler.sweep.processes import processes

PROCESSES = 36
SPUN = 20
"""Busy times that are held against quiet ones."""
TOGETHER = 6
T = TypeVar("T")

SIZES = {"l": (64,), "d": (64,), "n": (4,)}
"""A call of some hundred microseconds."""


def main() -> None:
    """Print shares of intervals that hold what they are of."""
    device = default_device()
    print(environment("torch", "numpy"))
    mixer = cm.mixer("self-attention")
    twice = Plan([(mixer, "sdpa"), (mixer, "sdpa")], given=SIZES, device=device)
    run = Run(candidates(twice), energy=False)
    sizes = ", ".join(f"{letter} = {values[0]}" for letter, values in SIZES.items())
    print(f"{next(iter(run.asked))}, {sizes}, on {device}")
    of_itself(run)
    of_durations(run)
    if device == "cpu":
        of_busy(run)


def of_busy(run: Run) -> None:
    """Estimates of a busy machine beside what the same machine took before and after."""
    found: list[tuple[float, float, float]] = []
    graded: list[str] = []
    quiet = 0
    for _ in range(SPUN):
        before = timed(run)
        with spinning():
            busy = timed(run)
        after = timed(run)
        calm = [each.value for each in (before, after) if grade_of(each) == QUIET]
        quiet += len(calm)
        ends = " to ".join(scaled(busy.details[end], "s") for end in ("ci_low", "ci_high"))
        graded.append(
            f"{time_words(busy)}, {ends}, beside {time_words(before)} and {time_words(after)}"
        )
        if calm:
            low, high = busy.details["ci_low"], busy.details["ci_high"]
            found.append((low, statistics.median(calm), high))
    print(
        f"{2 * len(processors())} processes spin; without them {quiet} of {2 * SPUN} runs are quiet"
    )
    print("".join(f"  {words}\n" for words in graded), end="")
    if not found:
        print("  no run was quiet: nothing is known of what estimates hold")
        return
    told("  busy interval", found)
    print(
        f"  its ends lie a factor {statistics.median(high / low for low, _, high in found):.2f} "
        f"apart (median)"
    )


def timed(run: Run) -> Reading:
    """The hot latency of the call in a fresh process, as `profile --seconds 1` samples it."""
    request = next(iter(run.asked.values()))
    (device, *_) = devices(request.device)
    starts = processes([device], "cpu", LatencyLimits.within(1), TIME_AGAIN)
    worker = starts[device.name]()
    try:
        worker.begin()
        found = worker.measure(Point(request), lambda point, what: None)
    finally:
        worker.stop()
    assert isinstance(found, Measurement), found
    return found.readings["latency"]


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
