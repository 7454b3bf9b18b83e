"""How long does one call take, measured until the median is settled or a cap says stop?"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import torch

from profiler.meters.interface import Reading, Unavailable, reason_of

CONFIDENCE = 0.95
CHECK_EVERY = 10
BLOCK_TICKS = 50  # a timed block lasts at least so many ticks of the clock
CUDA_TICK_S = 0.5e-6  # resolution of CUDA events, by the documentation of cudaEventElapsedTime


@dataclass(frozen=True)
class LatencyLimits:
    """When a measurement of latency may stop; seconds are read from the clock that times it."""

    min_samples: int = 30
    max_samples: int = 1000
    max_seconds: float = 15.0
    settled: float = 0.01  # both ends of the median's interval within this part of the median
    warmup_calls: int = 50
    warmup_seconds: float = 5.0
    warmup_steady: float = 0.05  # three calls in a row within this part of the longest

    def __post_init__(self) -> None:
        if self.min_samples < 1 or self.max_samples < self.min_samples or self.warmup_calls < 1:
            raise ValueError(f"expected 1 <= min_samples <= max_samples, warmup_calls >= 1: {self}")


class Timer(Protocol):
    """Times a block of work; `tick_s` is the smallest interval that it tells from zero."""

    tick_s: float
    name: str

    def elapsed_s(self, work: Callable[[], Any]) -> float:
        """Seconds from the start of `work` to the end of everything that it started."""
        ...

    def now_s(self) -> float:
        """Seconds of a monotonic clock, for the caps."""
        ...


class ClockTimer:
    """Times work that is done when the call returns, with a clock in nanoseconds."""

    name = "perf_counter"

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.tick_s = tick_of(clock)

    def elapsed_s(self, work: Callable[[], Any]) -> float:
        """Seconds between two readings of the clock, one on each side of `work`."""
        start = self.clock()
        work()
        return (self.clock() - start) * 1e-9

    def now_s(self) -> float:
        """The clock in seconds."""
        return self.clock() * 1e-9


class CudaTimer:
    """Times work on a GPU's current stream with a pair of events around it."""

    name = "cuda events"
    tick_s = CUDA_TICK_S

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.enqueue_s: list[float] = []

    def elapsed_s(self, work: Callable[[], Any]) -> float:
        """Seconds between the two events; the time to enqueue is noted beside it."""
        with torch.cuda.device(self.device):
            start, end = timing_event(), timing_event()
            torch.cuda.synchronize()
            called = time.perf_counter_ns()
            start.record()
            work()
            end.record()
            self.enqueue_s.append((time.perf_counter_ns() - called) * 1e-9)
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

    def now_s(self) -> float:
        """The host's monotonic clock in seconds."""
        return time.perf_counter_ns() * 1e-9


def timing_event() -> Any:
    """A CUDA event that notes the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def tick_of(clock: Callable[[], int], tries: int = 200) -> float:
    """The smallest step, in seconds, between readings of a clock in nanoseconds.

    A clock that stands still while it is read counts as exact to the nanosecond.
    """
    readings = [clock() for _ in range(tries)]
    steps = [b - a for a, b in pairwise(readings) if b > a]
    return (min(steps) if steps else 1) * 1e-9


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The ranks (from 1) of the two order statistics that bracket the median of any continuous
    distribution with at least this confidence; None where n samples are too few.

    Exact: the rank k is the largest with P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.

    >>> median_ranks(30)
    (10, 21)
    """
    allowed = math.floor((1 - confidence) / 2 * 2**64) * 2**n >> 64
    below, term, k = 0, 1, 0  # term = comb(n, k)
    while below + term <= allowed:
        below += term
        term = term * (n - k) // (k + 1)
        k += 1
    return (k, n + 1 - k) if k else None


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median by order statistics, None for fewer than six samples."""
    ranks = median_ranks(len(samples))
    if ranks is None:
        return None
    ordered = sorted(samples)
    return ordered[ranks[0] - 1], ordered[ranks[1] - 1]


def is_settled(samples: Sequence[float], tolerance: float) -> bool:
    """Whether both ends of the interval lie within `tolerance` of the median."""
    interval = median_interval(samples)
    if interval is None:
        return False
    middle = statistics.median(samples)
    return max(interval[1] - middle, middle - interval[0]) <= tolerance * middle


def quantile(samples: Sequence[float], part: float) -> float:
    """The value at `part` of the way through the ordered samples, interpolated.

    >>> quantile([1.0, 2.0, 3.0], 0.25)
    1.5
    """
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def latency(
    fn: Callable[[], Any],
    *,
    device: str | torch.device = "cpu",
    reset: Callable[[], Any] | None = None,
    reset_is_trivial: bool = False,
    limits: LatencyLimits | None = None,
    clock: Callable[[], int] | None = None,
    timer: Timer | None = None,
) -> Reading | Unavailable:
    """The median duration of `fn()`, in seconds, caches warm.

    `reset` restores what a call changes (the position of a decoding state) and runs before every
    call. It stays outside the timed region, one call to a region; a trivial one (an assignment)
    may be timed along, so that short calls can share a region. Details tell which.
    `clock` (nanoseconds, monotonic) and `timer` replace the real ones in tests.

    Unavailable when a call fails, out of memory for instance.
    """
    limits = limits or LatencyLimits()
    place = torch.device(device)
    try:
        if timer is None:
            timer = timer_for(place, clock)
        warmup = warm_up(timer, fn, reset, limits)
        block = block_size(timer, warmup[-3:], alone=reset is not None and not reset_is_trivial)
        samples, rule = sample(timer, fn, reset, block, limits)
    except RuntimeError as error:
        return Unavailable(f"the call failed while it was timed: {reason_of(error)}")
    details = summary(samples) | {
        "stop_rule": rule,
        "warmup": len(warmup),
        "block": block,
        "reset": "none" if reset is None else ("inside" if block > 1 else "outside"),
        "timer": timer.name,
        "cache": "hot",
    }
    if isinstance(timer, CudaTimer):
        details["enqueue_s"] = statistics.median(timer.enqueue_s[-len(samples) :]) / block
        details["launch_bound"] = statistics.median(samples) < 1.3 * details["enqueue_s"]
    return Reading("latency", statistics.median(samples), "s", tuple(samples), details)


def timer_for(device: torch.device, clock: Callable[[], int] | None) -> Timer:
    """Events on a GPU, the clock elsewhere."""
    if device.type == "cuda" and clock is None:
        return CudaTimer(device)
    return ClockTimer(clock or time.perf_counter_ns)


def warm_up(
    timer: Timer,
    fn: Callable[[], Any],
    reset: Callable[[], Any] | None,
    limits: LatencyLimits,
) -> list[float]:
    """Call until three in a row agree, or a cap is reached; the durations, in seconds."""
    durations: list[float] = []
    began = timer.now_s()
    while True:
        if reset is not None:
            reset()
        durations.append(timer.elapsed_s(fn))
        last = durations[-3:]
        if len(last) == 3 and max(last) - min(last) <= limits.warmup_steady * max(last):
            return durations
        spent = timer.now_s() - began
        if len(durations) >= limits.warmup_calls or spent >= limits.warmup_seconds:
            return durations


def block_size(timer: Timer, durations: Sequence[float], *, alone: bool) -> int:
    """How many calls share a timed region: one, unless a call is too short for the clock."""
    needed = BLOCK_TICKS * timer.tick_s
    typical = max(statistics.median(durations), timer.tick_s)
    return 1 if alone or typical >= needed else math.ceil(needed / typical)


def sample(
    timer: Timer,
    fn: Callable[[], Any],
    reset: Callable[[], Any] | None,
    block: int,
    limits: LatencyLimits,
) -> tuple[list[float], str]:
    """Seconds per call, one entry per timed region, and the name of the rule that stopped."""

    def run_block() -> None:
        for _ in range(block):
            if reset is not None:
                reset()
            fn()

    samples: list[float] = []
    began = timer.now_s()
    while True:
        if block > 1:
            samples.append(timer.elapsed_s(run_block) / block)
        else:
            if reset is not None:
                reset()
            samples.append(timer.elapsed_s(fn))
        count = len(samples)
        due = count == limits.min_samples or (count - limits.min_samples) % CHECK_EVERY == 0
        if count >= limits.min_samples and due and is_settled(samples, limits.settled):
            return samples, "median settled"
        if count >= limits.max_samples:
            return samples, "sample cap"
        if timer.now_s() - began >= limits.max_seconds:
            return samples, "time cap"


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Spread of the samples, in seconds; the interval's ends are None for fewer than six."""
    interval = median_interval(samples) or (None, None)
    return {
        "p20": quantile(samples, 0.2),
        "p80": quantile(samples, 0.8),
        "iqr": quantile(samples, 0.75) - quantile(samples, 0.25),
        "n": len(samples),
        "ci_low": interval[0],
        "ci_high": interval[1],
    }
