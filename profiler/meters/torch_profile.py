"""Time per operation, launches and allocations of a call, as torch's profiler records them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.torch_version import TorchVersion

from profiler.meters.failure import failure_words
from profiler.records.reading import Reading, Unavailable, taken_once


@contextmanager
def torch_profiled(
    *, memory: bool = False, cuda: bool = False, shapes: bool = False
) -> Iterator[profile]:
    """A context whose body runs under torch's profiler, which it yields, without the profiler's
    messages on stderr; the options record allocations, the GPU's kernels, and the shapes of
    operands.

    Afterwards CUPTI is detached from the GPU, where it would slow all later launches. With a CUDA
    older than 12.6 CUPTI stays attached, because graphs would crash (pytorch/kineto #1264).
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once, when the profiler first starts
    if torch.version.cuda and TorchVersion(torch.version.cuda) >= "12.6":
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=activities, profile_memory=memory, record_shapes=shapes) as trace:
            yield trace
    if cuda:
        sleep(DETACHING_S)
        torch.cuda.synchronize()


DETACHING_S = 0.1
"""The wait at the end of a session: a thread detaches CUPTI, at the first CUDA call after the
session. A detachment during the next session would lose that session's kernels (kineto #1554)."""


def on_cuda(values: Any) -> bool:
    """Whether any tensor in a nest of lists and tuples lies on a CUDA device."""
    if isinstance(values, torch.Tensor):
        return bool(values.is_cuda)
    return isinstance(values, list | tuple) and any(on_cuda(value) for value in values)


@dataclass(frozen=True)
class OperationTimes:
    """Self time of each operation in seconds per call, keyed by the operation's chain of callers.

    `by_path` maps ("aten::matmul", "aten::mm") to the seconds spent in mm itself, called from
    matmul; names are the profiler's. `clock` is the device whose time is given: "cpu" or "cuda".
    """

    by_path: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    clock: str = "cpu"

    @property
    def total_s(self) -> float:
        """Seconds per call in all operations together."""
        return sum(self.by_path.values())

    @property
    def by_op(self) -> dict[str, float]:
        """A dict: operation -> its self time over all callers, in seconds per call."""
        seconds: dict[str, float] = {}
        for path, spent in self.by_path.items():
            seconds[path[-1]] = seconds.get(path[-1], 0.0) + spent
        return seconds

    def share(self, names: Collection[str]) -> float | None:
        """The share of the time spent in the operations `names` and in operations that they call,
        from 0 to 1; None if no time was recorded."""
        wanted, total = set(names), self.total_s
        if total <= 0:
            return None
        return sum(s for path, s in self.by_path.items() if wanted.intersection(path)) / total


AT_MOST, ENOUGH_S = 10, 0.5
"""The number of recorded calls: at most 10, or as many as take half a second. The events of all
calls, and memory that the allocator cannot reuse between calls, stay allocated until the end."""

BEFORE = "before the call"
"""The profiler range around `reset`, by which events before the call are recognised."""


def run_reset(reset: Callable[[], Any] | None) -> None:
    """Run `reset` in the profiler range `BEFORE`, which separates it from the call that follows."""
    if reset is not None:
        with torch.profiler.record_function(BEFORE):
            reset()


def operation_times(
    fn: Callable[..., Any],
    *args: Any,
    cuda: bool | None = None,
    reset: Callable[[], Any] | None = None,
) -> OperationTimes | Unavailable:
    """Measure the self time of each operation (without that of operations that it calls) in seconds
    per call: the mean of several calls after a warm-up.

    Time on the CPU, or of the device's kernels with `cuda` (by default: if an argument lies on a
    CUDA device). Tracing slows short operations down, so use shares, not absolute times. `reset`
    runs before every call and is not in the times. Unavailable if the call fails.
    """
    device = on_cuda(args) if cuda is None else cuda
    try:
        run_reset(reset)
        start = perf_counter()
        fn(*args)
        if device:
            torch.cuda.synchronize()
        repeats = min(AT_MOST, 1 + int(ENOUGH_S / (perf_counter() - start)))
        with torch_profiled(cuda=device) as trace:
            for _ in range(repeats):
                run_reset(reset)
                fn(*args)
            if device:
                torch.cuda.synchronize()
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(failure_words(error, " under torch.profiler"))
    return times_of(events_of(trace), repeats, device=device)


def times_of(events: Iterable[Any], repeats: int, *, device: bool) -> OperationTimes:
    """The self time of each operation in seconds per call, by its chain of callers, from the
    profiler's events of `repeats` calls; `device`: time of the GPU, not of the CPU."""
    by_path: dict[tuple[str, ...], float] = {}
    for event in events:
        self_us = event.self_device_time_total if device else event.self_cpu_time_total
        path = call_path(event)
        if path and self_us > 0:
            by_path[path] = by_path.get(path, 0.0) + self_us * 1e-6 / repeats
    return OperationTimes(by_path, "cuda" if device else "cpu")


def events_of(trace: profile) -> list[Any]:
    """The events that a profiler's session recorded; [] if none."""
    return list(trace.events() or [])  # type: ignore[no-untyped-call]  # torch leaves it untyped


def call_path(event: Any) -> tuple[str, ...]:
    """The names of an operation's callers and its own name, outermost first; () for an event that
    is no operation or belongs to the reset.

    A kernel is no operation: the operation that launched the kernel already has its time, and names
    of kernels contain `::`, as names of operations do.
    """
    if event.device_type.name != "CPU":
        return ()
    names: list[str] = []
    while event is not None:
        if event.name == BEFORE:
            return ()
        if "::" in event.name:
            names.append(event.name)
        elif not names:
            return ()
        event = event.cpu_parent
    return tuple(reversed(names))


def count_kernels(
    fn: Callable[..., Any], *args: Any, reset: Callable[[], Any] | None = None
) -> Reading | Unavailable:
    """Count the kernels that one call launches on an NVIDIA GPU; the details count copies and
    fills.

    A profiler that was attached before loses the first or all kernels of some sessions, so two
    consecutive sessions must agree. Unavailable if none do, the call fails, or without a GPU.
    `reset` runs before every call and is not counted.
    """
    if not torch.cuda.is_available():
        return Unavailable(
            "kernel launches are counted on an NVIDIA GPU, and torch finds none; for a CPU read "
            "the number of dispatched operations that are no views"
        )
    try:
        if reset is not None:
            reset()
        fn(*args)
        seen = [launched_in(fn, args, reset)]
        while len(seen) < MOST_SESSIONS and not settled(seen):
            seen.append(launched_in(fn, args, reset))
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(failure_words(error, " under torch.profiler"))
    if not any(seen):
        return Unavailable("torch.profiler recorded no kernel: CUPTI is not usable here")
    if not settled(seen):
        numbers = ", ".join(str(len(names)) for names in seen)
        return Unavailable(
            f"the runs of one call launched different kernels: torch.profiler counted {numbers} "
            "launches, so that no number is given"
        )
    moves = [name for name in seen[-1] if name.startswith(("Memcpy", "Memset"))]
    kernels = len(seen[-1]) - len(moves)
    return taken_once("kernels", kernels, {"copies_and_fills": len(moves)})


MOST_SESSIONS = 5
"""The most profiler sessions, until two consecutive ones record equal launches."""


def settled(seen: Sequence[list[str]]) -> bool:
    """Whether the last two of the sessions (`seen`: names of launches) are equal and not empty."""
    return len(seen) > 1 and seen[-1] == seen[-2] != []


def launched_in(
    fn: Callable[..., Any], args: tuple[Any, ...], reset: Callable[[], Any] | None
) -> list[str]:
    """Run a call `fn(*args)` once under torch's profiler, after `reset()` outside of it; return the
    sorted names of its kernels, copies and fills on the GPU, one for each launch."""
    if reset is not None:
        reset()
    torch.cuda.synchronize()
    with torch_profiled(cuda=True) as trace:
        fn(*args)
        torch.cuda.synchronize()
    launched = [e for e in events_of(trace) if e.device_type.name == "CUDA"]
    return sorted(e.name for e in launched if not e.is_user_annotation)
