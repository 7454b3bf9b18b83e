"""Timers of a region of work: the host's clock, or events in a GPU's queue."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import torch

Call = Callable[[], Any]

CUDA_TICK_S = 0.5e-6  # resolution of CUDA events, by the documentation of cudaEventElapsedTime
QUEUED_REGIONS = 3
"""Regions in a GPU's queue at once: the host waits only for the oldest region."""

QUEUED_LAUNCHES = 1000
"""The number of launches that a GPU's queue holds, about: with a full queue the host waits for the
GPU before it enqueues the next launch. Regions of several calls stay below; one call may not."""

SLEEP_MARGIN_S = 50e-6
"""A GPU sleeps for twice the time of enqueueing, plus this margin."""
MOST_SLEEP_S = 0.1
CALIBRATED_CYCLES = 1_000_000


def do_nothing() -> None:
    """The `prepare` of a region without preparation."""


class Timer(Protocol):
    """Times regions of work; `tick_s` is the shortest time that the timer distinguishes from
    zero."""

    tick_s: float
    name: str
    region_s: float
    """The target duration in seconds of a region of several calls."""

    def now_s(self) -> float:
        """Seconds of a monotonic clock, for the time caps."""
        ...

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Seconds from the start of `work` to the end of all work that it started; `prepare()` runs
        before, untimed."""
        ...

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """Seconds of each of 1 to `count` regions; no region begins once `stop()` is true."""
        ...

    def facts(self, samples: int) -> dict[str, Any]:
        """Facts about the last `samples` regions, for the reading's details."""
        ...


class OneByOne(ABC):
    """A timer whose regions follow one another: each ends before the next begins."""

    @abstractmethod
    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Seconds of one region."""

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """Run `work` until `stop()` holds, at least once and at most `count` times, and return the
        seconds of each run; `prepare` runs before each, untimed."""
        found = [self.elapsed_s(work, prepare)]
        while len(found) < count and not stop():
            found.append(self.elapsed_s(work, prepare))
        return found


class ClockTimer(OneByOne):
    """Times work that ends when the call returns, with a clock in nanoseconds."""

    name = "perf_counter"
    region_s = 0.2e-3
    """On a busy machine a region of a millisecond contains preemption too often."""

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

    def facts(self, samples: int) -> dict[str, Any]:
        """The numbers of torch's threads. `samples` is not used: other timers need it."""
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
        """An event recorded on the device's current stream."""
        made: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        made.record(torch.cuda.current_stream(self.device))
        return made

    def wait(self) -> None:
        """Wait until every stream of the device is empty."""
        torch.cuda.synchronize(self.device)

    def sleep(self, cycles: int) -> None:
        """Enqueue a sleep by a private kernel of torch, which later versions may lack."""
        with torch.cuda.device(self.device):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def clock_ns(self) -> int:
        """The host's monotonic clock."""
        return time.perf_counter_ns()


class CudaTimer:
    """Times work on a GPU with a pair of events around each region, with a full queue.

    The host waits for a region only while others are queued behind it, so that the GPU never idles
    meanwhile. `elapsed_s`, one region on an empty queue, also notes the time that the host needs to
    enqueue the region.
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
        """Enqueue a region; the events before and after the region, not yet reached by the GPU."""
        start = self.stream.event()
        work()
        return start, self.stream.event()

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Run `work` on an empty queue of the GPU, and return the seconds between events before and
        after it, with `prepare()` before both. The noted time of enqueueing excludes the first
        event."""
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
        """Run `work` until `stop()` holds, at least once and at most `count` times, with up to
        `QUEUED_REGIONS` runs in the queue, and return the seconds between the events around each;
        `prepare` runs before each, untimed."""
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
        """Seconds that the host needs to enqueue a call: the median of the last calls on an empty
        queue."""
        return statistics.median(self.enqueued_s)

    def facts(self, samples: int) -> dict[str, Any]:
        """The time that the host needs to enqueue a call, and the number of queued regions."""
        return {"enqueue_s": self.enqueue_s, "queued_regions": QUEUED_REGIONS}


class AheadTimer(OneByOne, CudaTimer):
    """Times single calls whose launches are all queued before the GPU begins with the call.

    The queue holds a sleep, longer than the host needs to enqueue the rest; then the work of
    `prepare`; then the call between two events. `facts` says if torch has no sleep, or how often
    the sleep was too short (for a call that waits for the GPU, or launches more than the queue
    holds).
    """

    name = "cuda events, launches queued ahead"

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.ahead: list[bool] = []  # for each call, whether all of it was queued in time
        self.no_sleep = ""  # why torch's sleep cannot be used
        self.cycle_s = self.calibrated()

    def calibrated(self) -> float:
        """Measure the seconds of one cycle of torch's sleep on the GPU, by events around a long
        sleep; 0 if there is no sleep."""
        try:
            self.stream.sleep(CALIBRATED_CYCLES)
            slept = between_s(*self.enqueue(lambda: self.stream.sleep(CALIBRATED_CYCLES)))
        except (AttributeError, RuntimeError) as error:
            self.no_sleep = f"torch.cuda._sleep cannot be used: {error}"
            return 0.0
        return slept / CALIBRATED_CYCLES

    def sleep(self, seconds: float) -> None:
        """Enqueue a sleep of this many seconds, at most `MOST_SLEEP_S`, if torch has one."""
        if self.cycle_s > 0:
            self.stream.sleep(round(min(seconds, MOST_SLEEP_S) / self.cycle_s))

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Run `work` and return the seconds between events before and after it, with `prepare()`
        before both; the GPU sleeps while the host enqueues all this. Whether the sleep was long
        enough is appended to `ahead`; if not, the duration of a clock cycle is measured again."""
        self.stream.wait()
        called = self.stream.clock_ns()
        self.sleep(2 * max(self.enqueued_s, default=0.0) + SLEEP_MARGIN_S)
        prepare()
        start, end = self.enqueue(work)
        in_time = not start.query()  # all is in the queue before the GPU reaches the call
        self.enqueued_s.append((self.stream.clock_ns() - called) * 1e-9)
        self.ahead.append(in_time)
        elapsed = between_s(start, end)
        if not in_time and self.cycle_s > 0:  # a higher clock has shorter cycles
            self.cycle_s = min(self.cycle_s, self.calibrated())
        return elapsed

    def facts(self, samples: int) -> dict[str, Any]:
        """The share of calls that were wholly enqueued before the GPU began with them."""
        last = self.ahead[-samples:]
        found: dict[str, Any] = {"queued_ahead": sum(last) / max(len(last), 1)}
        return found | ({"no_sleep": self.no_sleep} if self.no_sleep else {})


def between_s(start: Any, end: Any) -> float:
    """Seconds between two recorded events; waits until the GPU has reached the second event."""
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3  # torch gives milliseconds


def timer_for(device: torch.device, clock: Callable[[], int] | None = None) -> Timer:
    """A timer by events for a GPU, by the clock otherwise."""
    if device.type == "cuda" and clock is None:
        return CudaTimer(TorchStream(device))
    return ClockTimer(clock or time.perf_counter_ns)


def ahead_timer_for(device: torch.device, clock: Callable[[], int] | None = None) -> Timer:
    """A timer of single calls: with launches queued ahead on a GPU, by the clock otherwise."""
    if device.type == "cuda" and clock is None:
        return AheadTimer(TorchStream(device))
    return ClockTimer(clock or time.perf_counter_ns)


def tick_of(clock: Callable[[], int], tries: int = 200) -> float:
    """The smallest step between readings of a clock in nanoseconds, in seconds.

    If the clock does not advance in `tries` readings, the step is taken as one nanosecond.
    """
    readings = [clock() for _ in range(tries)]
    steps = [b - a for a, b in pairwise(readings) if b > a]
    return (min(steps) if steps else 1) * 1e-9
