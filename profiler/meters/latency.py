"""The duration of one call: back to back, from cold caches, and without launch overhead.

The three readings stay separate: `latency` (hot), `latency_cold` and `latency_graph` (CUDA graph).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from profiler.meters.caches import CacheError, Flush, flush_for
from profiler.meters.cuda_graph import Captured, ContextLost, GraphError, capture
from profiler.meters.disturbances import Watch, watch_for
from profiler.meters.failure import why_failed
from profiler.meters.sampler import BLOCK_TICKS, Instruments, LatencyLimits, Sampled, sample_latency
from profiler.meters.timers import (
    QUEUED_LAUNCHES,
    AheadTimer,
    Call,
    CudaTimer,
    Timer,
    ahead_timer_for,
    do_nothing,
    timer_for,
)
from profiler.records.grades import BUSY, GRAPH_GAIN, ONE_SAMPLE, ONE_THREAD, QUIET, disturbed_by
from profiler.records.reading import DeviceLost, Measured, Reading, Unavailable

__all__ = ["LatencyLimits", "latency", "latency_cold", "latency_graph", "latency_readings"]

SEVERAL, ONE = "several threads", "one thread"
"""The numbers of threads with which a CPU call may be timed."""

LAUNCHING = 1.3  # GPU time over enqueueing time below which the GPU waits for the host
LAUNCH_BOUND = "launch-bound"
"""The label of a call whose launches take longer than its work on the GPU."""
QUEUE_FULL = "more launches than a queue holds"
"""The label of a call with more launches than the queue holds: enqueueing then includes waiting for
the GPU, so whether the call is launch-bound is unknown."""


def latency(
    fn: Call,
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
    reset_is_trivial: bool = False,
    launches: int = 0,
    limits: LatencyLimits | None = None,
    clock: Callable[[], int] | None = None,
    timer: Timer | None = None,
    watch: Watch | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Reading | Unavailable:
    """Measure the duration of `fn()` back to back, in seconds, with caches as the calls leave them:
    the median on a quiet device, an estimate on a busy one (`records.grades`).

    Hot means that data that fits into the caches is cached when a call begins, because earlier
    calls read it. Inputs may still change between calls: `fn` may take several sets of inputs in
    turns, if all sets fit together (`run.inputs.why_one_set`). The values, which affect power and
    clocks, then change; the place of the data does not.

    A GPU is timed by events around regions of several calls, with a full queue; a call whose GPU
    time is below 1.3 times its enqueueing time is labelled "launch-bound", unless its known
    `launches` exceed a queue. A CPU is timed by the clock around each region.

    `reset` restores the state that a call changes (the position of a decoding state) and runs
    before every call: outside the timed region, one call per region, or, if the reset is trivial
    (an assignment), inside, so that short calls share a region. The details say which.

    `limits` are the stopping rules. `clock` (nanoseconds, monotonic), `timer`, `watch` and `pause`
    replace the real ones in tests. Unavailable if a call fails, for instance out of memory.
    """
    place = torch.device(device)
    alone = reset is not None and not reset_is_trivial
    try:
        setting = Instruments(
            limits or LatencyLimits(),
            timer or timer_for(place, clock),
            watch or watch_for(place),
            pause,
        )
        work = fn if reset is None or alone else calls_in_turn(reset, fn)
        before = (reset or do_nothing) if alone else do_nothing
        found = sample_with_threads(setting, work, before, alone=alone)
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(why_failed(error, "while it was timed", place))
    details = found.details | setting.timer.facts(len(found.samples)) | {
        "reset": "none" if reset is None else ("outside" if alone else "inside"),
        "timer": setting.timer.name,
        "cache": "hot",
    }  # fmt: skip
    if isinstance(setting.timer, CudaTimer):
        label = launching_label(found.value, details["enqueue_s"], launches)
        details["launch_bound"] = label == LAUNCH_BOUND
        details["labels"] += [label] if label else []
    return median_reading("latency", found, details)


def sample_with_threads(
    setting: Instruments,
    work: Call,
    prepare: Call,
    *,
    alone: bool,
    tried: Sequence[str] = (SEVERAL, ONE),
) -> Sampled:
    """Time regions (one call or more) of `work` and return the samples: with several threads, or,
    if the threads were preempted, with one thread where the time of one thread says more: where the
    time of several threads is vague (too wide an interval), and where one thread is faster than the
    lower end of several.

    The threads of a call wait for one another in spin loops, so all wait for the preempted one: a
    call may take hundreds of times as long, or in a whole process twice as long without a region
    that shows it. With one thread, regions between two preemptions are undisturbed: beside 4 to 7
    other programs on two processors, the fastest tenth took 1.0 to 1.3 times as long as two threads
    on an idle machine.

    Args:
        prepare: runs before every region, untimed.
        alone: whether a region is one call.
        tried: the numbers of threads to try: `SEVERAL`, `ONE`, or both.
    """
    threads = 1 if isinstance(setting.timer, CudaTimer) else torch.get_num_threads()
    found = None
    if SEVERAL in tried or threads == 1:
        found = sample_latency(setting, work, prepare, alone=alone)
        if ONE not in tried or threads == 1 or found.undisturbed:
            return found
    torch.set_num_threads(1)
    try:
        again = sample_latency(setting, work, prepare, alone=alone)
    finally:
        torch.set_num_threads(threads)
    again.threads = threads
    if found is not None:
        if not found.vague and found.estimate()[1] <= again.value:
            return found
        again.several_s = min(found.samples)
    again.arrange()
    return again


def launching_label(median_s: float, enqueue_s: float, launches: int) -> str:
    """`QUEUE_FULL` if the call has more launches than a queue holds, `LAUNCH_BOUND` if it takes
    less than 1.3 times its enqueueing time, "" for other calls."""
    if launches > QUEUED_LAUNCHES:
        return QUEUE_FULL
    return LAUNCH_BOUND if median_s < LAUNCHING * enqueue_s else ""


def latency_cold(
    fn: Call,
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
    limits: LatencyLimits | None = None,
    timer: Timer | None = None,
    watch: Watch | None = None,
    flush: Flush | None = None,
    pause: Callable[[float], None] = time.sleep,
    tried: Sequence[str] = (SEVERAL, ONE),
) -> Reading | Unavailable:
    """Measure the median duration of one call of `fn()` after the caches were flushed, in seconds.

    A buffer is read before each call: on a GPU at least twice the L2 and 256 MiB, on a CPU twice
    the last-level caches. A GPU sleeps until flush, events and launches are all in its queue. Only
    the first operations of `fn` find cold caches. The details hold the buffer's size and the source
    of the cache's size. Labels say if the GPU began with a call before all its launches were in the
    queue, and if the time is only a few ticks of the timer.

    Unavailable if a call fails, the buffer does not fit, or the size of the caches is unknown.

    Args:
        reset: runs before every call and flush, untimed.
        limits: the stopping rules; `timer`, `watch`, `flush`, `pause` replace real ones in tests.
        tried: the numbers of threads to try: several (`SEVERAL`), one (`ONE`), or both.
    """
    place = torch.device(device)
    try:
        setting = Instruments(
            limits or LatencyLimits(),
            timer or ahead_timer_for(place),
            watch or watch_for(place),
            pause,
        )
        caches = flush or flush_for(place)
        before = caches if reset is None else calls_in_turn(reset, caches)
        found = sample_with_threads(setting, fn, before, alone=True, tried=tried)
    except CacheError as error:
        return Unavailable(f"caches cannot be flushed: {error}")
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(why_failed(error, "while it was timed with cold caches", place))
    details = found.details | setting.timer.facts(len(found.samples)) | {
        "reset": "none" if reset is None else "outside",
        "timer": setting.timer.name,
        "cache": "cold",
        "flushed_bytes": caches.size,
        "cache_bytes": caches.cache_bytes,
        "cache_source": caches.source,
    }  # fmt: skip
    if isinstance(setting.timer, AheadTimer) and details["queued_ahead"] < 1:
        details["labels"].append("not queued ahead")
    if found.value < BLOCK_TICKS * setting.timer.tick_s:
        details["labels"].append("near the clock's step")
    return median_reading("latency_cold", found, details)


def latency_graph(
    fn: Call,
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
    reset_is_trivial: bool = False,
    limits: LatencyLimits | None = None,
    timer: Timer | None = None,
    watch: Watch | None = None,
    capturing: Callable[[Call, torch.device], Captured] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Reading | Unavailable:
    """Measure the median duration of a replay of `fn()` captured as a CUDA graph, in seconds.

    The host's work in a call, a trivial reset included, happens once, at the capture. A graph
    replays the buffers of its capture, so `fn` must use the same inputs every time. `cuda_graph.py`
    says how a failing capture is detected, and handled. `capturing` replaces `capture` in tests.

    Unavailable on a CPU, if the call cannot be captured, or if a non-trivial reset precedes every
    call (a forward pass before the backward pass), as the capture would contain the reset.

    Raises:
        ContextLost: this process can no longer use the device.
    """
    place = torch.device(device)
    if place.type != "cuda" and capturing is None:
        return Unavailable(f"a CUDA graph needs an NVIDIA GPU, and the device is {place}")
    if reset is not None and not reset_is_trivial:
        return Unavailable(
            "no CUDA graph of the call alone: the graph would include the work before every call"
        )
    try:
        captured = (capturing or capture)(fn if reset is None else calls_in_turn(reset, fn), place)
    except GraphError as error:
        return Unavailable(str(error))
    try:
        setting = Instruments(
            limits or LatencyLimits(), timer or timer_for(place), watch or watch_for(place), pause
        )
        found = sample_latency(setting, captured.replay, do_nothing, alone=False)
    except Exception as error:  # a replay fails as any call may
        return Unavailable(why_failed(error, "while its graph was replayed", place))
    finally:
        captured.release()
    details = found.details | setting.timer.facts(len(found.samples)) | dict(captured.facts) | {
        "reset": "none" if reset is None else "once, at the capture",
        "input_sets": 1,
        "one_set": STATIC,
        "timer": setting.timer.name,
        "cache": "hot",
    }  # fmt: skip
    details["labels"] += captured.labels
    timed = setting.timer
    if isinstance(timed, CudaTimer) and found.value < LAUNCHING * timed.enqueue_s:
        details["labels"].append(GRAPH_BOUND)
    return median_reading("latency_graph", found, details)


GRAPH_BOUND = "bound by the graph's launch"
"""The label of a graph whose replay takes less than 1.3 times as long as the host needs to launch
it."""

NO_COLD = "not asked for: `costmodel profile` times calls from cold caches, too"

STATIC = "a CUDA graph replays the buffers that it was captured with"


def latency_readings(
    fn: Call,
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
    reset_is_trivial: bool = False,
    launches: int = 0,
    limits: LatencyLimits | None = None,
    still: Call | None = None,
) -> dict[str, Measured]:
    """Measure the times of a call, name -> reading or Unavailable: back to back (`latency`,
    labelled if it is launch-bound), from cold caches (`latency_cold`), and as a CUDA graph
    (`latency_graph`). Without `limits.cold`, nothing is timed from cold caches.

    The graph comes last. If capturing made the device unusable, the graph's entry is `DeviceLost`
    and the earlier readings are kept.

    `still`: the same call with the same inputs every time, for the graph, if the inputs of `fn`
    take turns. `reset` runs before every call, untimed unless `reset_is_trivial` (an assignment);
    `launches`: the operations that a call launches.
    """
    same: dict[str, Any] = {"device": device, "reset": reset, "limits": limits}
    hot = latency(fn, reset_is_trivial=reset_is_trivial, launches=launches, **same)
    found: dict[str, Measured] = {"latency": hot, "latency_cold": Unavailable(NO_COLD)}
    if limits is None or limits.cold:
        found["latency_cold"] = latency_cold(fn, tried=threads_of(hot), **same)
    try:
        graph = latency_graph(still or fn, reset_is_trivial=reset_is_trivial, **same)
    except ContextLost as lost:
        return found | {"latency_graph": DeviceLost(str(lost))}
    return with_launches_labelled(found | {"latency_graph": graph})


def threads_of(hot: Measured) -> Sequence[str]:
    """The numbers of threads to try for the cold time: one alone if the hot time is of one thread
    in place of several, else several and then one. Threads that do not wait for one another in
    calls back to back may wait after a flush."""
    one = isinstance(hot, Reading) and ONE_THREAD in hot.details["labels"]
    return (ONE,) if one else (SEVERAL, ONE)


def with_launches_labelled(found: Mapping[str, Measured]) -> dict[str, Measured]:
    """A copy of the readings, in which the time of calls back to back (`latency`) is labelled
    "launch-bound" if, and only if, the same call as a CUDA graph is more than 1.2 times as fast.
    Without a graph the label of the enqueueing time stays: a call of large kernels fills the queue,
    so that enqueueing takes as long as the call."""
    hot, graph = found.get("latency"), found.get("latency_graph")
    if not (isinstance(hot, Reading) and isinstance(graph, Reading) and graph.value > 0):
        return dict(found)
    gain = hot.value / graph.value
    bound = gain > GRAPH_GAIN
    labels = [label for label in hot.details.get("labels", []) if label != LAUNCH_BOUND]
    details = dict(hot.details) | {
        "graph_gain": gain,
        "launch_bound": bound,
        "labels": [*labels, LAUNCH_BOUND] if bound else labels,
    }
    return dict(found) | {"latency": replace(hot, details=details)}


def median_reading(name: str, found: Sampled, details: Mapping[str, Any]) -> Reading:
    """The reading `name` of a sampled time, in seconds; its grade is busy (an estimate) if a label
    in `details` says that the device was disturbed, or that there is one sample; else quiet."""
    labels = details["labels"]  # also of a board that others use
    grade = BUSY if disturbed_by(labels) or ONE_SAMPLE in labels else QUIET
    return Reading(name, found.value, "s", tuple(found.samples), {**details, "grade": grade})


def calls_in_turn(*calls: Call) -> Call:
    """Return a call that makes these calls in order and returns the result of the last."""

    def all_of_them() -> Any:
        result = None
        for call in calls:
            result = call()
        return result

    return all_of_them
