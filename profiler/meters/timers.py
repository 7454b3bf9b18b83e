"""How is a region of work timed: by the host's clock, or by events in a GPU's queue?"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import torch

Call = Callable[[], Any]

CUDA_TICK_S = 0.5e-6  # resolution of CUDA events, by the documentation of cudaEventElapsedTime
QUEUED_REGIONS = 3
"""Regions in a GPU's queue at once: the host waits for the oldest only."""

QUEUED_LAUNCHES = 1000
"""Launches that a GPU's queue holds, about: with so many pending the host waits for the GPU before
it adds another. Regions of several calls are too short to reach it; one call may be longer."""

SLEEP_MARGIN_S = 50e-6
"""A GPU sleeps for twice the time of enqueueing, and for this long besides."""
MOST_SLEEP_S = 0.1
CALIBRATED_CYCLES = 1_000_000


def do_nothing() -> None:
    """The `prepare` of a region that needs none."""


class Timer(Protocol):
    """Times regions of work; `tick_s` is the smallest interval that the timer can tell from
    zero."""

    tick_s: float
    name: str
    region_s: float
    """How long a region is where calls share it."""

    def now_s(self) -> float:
        """Seconds of a monotonic clock, for the caps."""
        ...

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Seconds from the start of `work` to the end of everything that it started; `prepare()`
        runs before, untimed."""
        ...

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """Seconds of each of up to `count` regions, at least one; none is begun once `stop()` is
        true."""
        ...

    def facts(self, samples: int) -> dict[str, Any]:
        """What else was seen during the last `samples` regions, for the reading's details."""
        ...


class ClockTimer:
    """Times work that is done when the call returns, with a clock in nanoseconds."""

    name = "perf_counter"
    region_s = 0.2e-3
    """On a busy machine a region of a millisecond holds a wait too often."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.tick_s = tick_of(clock)

    def now_s(self) -> float:
        """The clock in seconds."""
        return self.clock() * 1e-9

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Seconds between two readings of the clock, one on each side of `work`."""
        prepare()
        start = self.clock()
        work()
        return (self.clock() - start) * 1e-9

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """One region after the other."""
        found = [self.elapsed_s(work, prepare)]
        while len(found) < count and not stop():
            found.append(self.elapsed_s(work, prepare))
        return found

    def facts(self, samples: int) -> dict[str, Any]:
        """The threads that torch works with."""
        return {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
        }


class Stream(Protocol):
    """The operations on a GPU's queue that timing needs."""

    def event(self) -> Any:
        """An event with a timestamp, recorded at the end of the queue."""
        ...

    def wait(self) -> None:
        """Wait until the queue is empty."""
        ...

    def sleep(self, cycles: int) -> None:
        """Enqueue a wait of this many clock cycles; AttributeError where the device cannot."""
        ...

    def clock_ns(self) -> int:
        """The host's clock in nanoseconds."""
        ...


class TorchStream:
    """The current stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def event(self) -> Any:
        """Recorded on the device's current stream."""
        made: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        made.record(torch.cuda.current_stream(self.device))
        return made

    def wait(self) -> None:
        """Wait until every stream of the device is empty."""
        torch.cuda.synchronize(self.device)

    def sleep(self, cycles: int) -> None:
        """By a private kernel of torch, which may disappear."""
        with torch.cuda.device(self.device):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def clock_ns(self) -> int:
        """The host's monotonic clock."""
        return time.perf_counter_ns()


class CudaTimer:
    """Times work on a GPU with a pair of events around each region, the queue kept full.

    The host waits for a region only when others are queued behind it, so that the GPU never idles
    while the host waits. `elapsed_s`, one region on an empty queue, also notes the time that the
    host needs to enqueue the region.
    """

    name = "cuda events"
    tick_s = CUDA_TICK_S
    region_s = 1e-3

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.enqueued_s: deque[float] = deque(maxlen=3)

    def now_s(self) -> float:
        """The host's monotonic clock in seconds."""
        return self.stream.clock_ns() * 1e-9

    def enqueue(self, work: Call) -> tuple[Any, Any]:
        """Enqueue a region; the events before and after it, which the GPU has yet to reach."""
        start = self.stream.event()
        work()
        return start, self.stream.event()

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Seconds between the two events; making these is not in the time of enqueueing."""
        prepare()
        self.stream.wait()
        start = self.stream.event()
        called = self.stream.clock_ns()
        work()
        self.enqueued_s.append((self.stream.clock_ns() - called) * 1e-9)
        return between_s(start, self.stream.event())

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """Seconds between the events of each region, `QUEUED_REGIONS` of them in the queue."""
        found: list[float] = []
        queued: deque[tuple[Any, Any]] = deque()
        for place in range(count):
            if place and stop():
                break
            prepare()
            queued.append(self.enqueue(work))
            if len(queued) == QUEUED_REGIONS:
                found.append(between_s(*queued.popleft()))
        found.extend(between_s(*events) for events in queued)
        return found

    @property
    def enqueue_s(self) -> float:
        """Seconds that the host needs to enqueue one call: the median of the last calls on an empty
        queue."""
        return statistics.median(self.enqueued_s)

    def facts(self, samples: int) -> dict[str, Any]:
        """The time that the host needs to enqueue a call."""
        return {"enqueue_s": self.enqueue_s, "queued_regions": QUEUED_REGIONS}


class AheadTimer(CudaTimer):
    """Times single calls, all of whose launches are queued before the GPU begins with them.

    The GPU sleeps first, for longer than the host needs to enqueue what follows: the sleep, then
    what `prepare` enqueues, then the call between its events. Where torch has no sleep, or the
    sleep was too short (for a call that itself waits for the GPU, or launches more than its queue
    holds), `facts` says so.
    """

    name = "cuda events, launches queued ahead"

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.ahead: list[bool] = []
        self.no_sleep = ""
        self.cycle_s = self.calibrated()

    def calibrated(self) -> float:
        """Seconds of one cycle of the sleep, by events around a long one; 0 where there is no
        sleep."""
        try:
            self.stream.sleep(CALIBRATED_CYCLES)
            slept = between_s(*self.enqueue(lambda: self.stream.sleep(CALIBRATED_CYCLES)))
        except (AttributeError, RuntimeError) as error:
            self.no_sleep = f"torch.cuda._sleep cannot be used: {error}"
            return 0.0
        return slept / CALIBRATED_CYCLES

    def sleep(self, seconds: float) -> None:
        """Enqueue a sleep, if there is one."""
        if self.cycle_s > 0:
            self.stream.sleep(round(min(seconds, MOST_SLEEP_S) / self.cycle_s))

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Seconds between the two events, the GPU asleep while the host enqueues."""
        self.stream.wait()
        called = self.stream.clock_ns()
        self.sleep(2 * max(self.enqueued_s, default=0.0) + SLEEP_MARGIN_S)
        prepare()
        start, end = self.enqueue(work)
        in_time = not start.query()
        self.enqueued_s.append((self.stream.clock_ns() - called) * 1e-9)
        self.ahead.append(in_time)
        elapsed = between_s(start, end)
        if not in_time and self.cycle_s > 0:  # cycles are shorter than at the clocks of before
            self.cycle_s = min(self.cycle_s, self.calibrated())
        return elapsed

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """One call after the other, each on an empty queue."""
        found = [self.elapsed_s(work, prepare)]
        while len(found) < count and not stop():
            found.append(self.elapsed_s(work, prepare))
        return found

    def facts(self, samples: int) -> dict[str, Any]:
        """The share of calls that were wholly enqueued before the GPU began with them."""
        last = self.ahead[-samples:]
        found: dict[str, Any] = {"queued_ahead": sum(last) / max(len(last), 1)}
        return found | ({"no_sleep": self.no_sleep} if self.no_sleep else {})


def between_s(start: Any, end: Any) -> float:
    """Seconds between two recorded events; waits until the GPU has reached the second."""
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3  # torch gives milliseconds


def timer_for(device: torch.device, clock: Callable[[], int] | None = None) -> Timer:
    """A timer by events on a GPU, by the clock elsewhere."""
    if device.type == "cuda" and clock is None:
        return CudaTimer(TorchStream(device))
    return ClockTimer(clock or time.perf_counter_ns)


def ahead_timer_for(device: torch.device, clock: Callable[[], int] | None = None) -> Timer:
    """A timer of single calls, with launches queued ahead on a GPU."""
    if device.type == "cuda" and clock is None:
        return AheadTimer(TorchStream(device))
    return ClockTimer(clock or time.perf_counter_ns)


def tick_of(clock: Callable[[], int], tries: int = 200) -> float:
    """The smallest step, in seconds, between readings of a clock in nanoseconds.

    Where the clock does not advance in `tries` readings, a step of one nanosecond is assumed.
    """
    readings = [clock() for _ in range(tries)]
    steps = [b - a for a, b in pairwise(readings) if b > a]
    return (min(steps) if steps else 1) * 1e-9
