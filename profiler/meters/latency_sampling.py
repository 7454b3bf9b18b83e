"""How are samples of a duration taken: after which warm-up, in which rounds, and until when?"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from profiler.meters.disturbance import Judge, Watch
from profiler.meters.latency_stopping import (
    LatencyLimits,
    Rules,
    round_size,
    summary,
)
from profiler.meters.latency_timers import Call, CudaTimer, Timer

BLOCK_TICKS = 50  # a timed region lasts at least so many ticks of the clock
CLOCK_EVERY_S = 0.1  # between two looks at a GPU's clock while it warms up
CLOCKS = 3  # so many looks in a row tell whether it has settled
COOLING_S = 0.05  # the pause before a disturbed round is repeated; half as long again each time


@dataclass(frozen=True)
class Setting:
    """What a measurement of latency is made with; tests bring their own."""

    limits: LatencyLimits
    timer: Timer
    watch: Watch
    pause: Callable[[float], None] = time.sleep


@dataclass
class Clock:
    """A GPU's clock while it warms up: it rises from idling, and may fall again with heat."""

    watch: Watch
    steady: float
    """The last looks agree where they lie within this part of the highest."""
    read_MHz: list[float] = field(default_factory=list)
    next_s: float = 0.0
    told: bool = True

    def look(self, now_s: float) -> None:
        """Read it, unless that was only just done."""
        if not self.told or now_s < self.next_s:
            return
        self.next_s = now_s + CLOCK_EVERY_S
        found = self.watch.clock()
        self.told = found is not None
        self.read_MHz += [] if found is None else [found]

    @property
    def settled(self) -> bool | None:
        """Whether the last looks agree; None where nobody tells the clock."""
        last = self.read_MHz[-CLOCKS:]
        if not self.told:
            return None
        return len(last) == CLOCKS and max(last) - min(last) <= self.steady * max(last)

    @property
    def details(self) -> dict[str, Any]:
        """JSON values for the reading."""
        return {"warmup_clocks_MHz": self.read_MHz[-CLOCKS:], "warmup_clock_settled": self.settled}


@dataclass
class Sampled:
    """What sampling gave: seconds per call of each region, and how it went."""

    samples: list[float]
    rule: str
    sampled_s: float
    judge: Judge
    block: int
    labels: list[str] = field(default_factory=list)
    warmup: int = 0
    """Calls before sampling began."""
    extended: int = 0
    """How often the warm-up turned out to have ended too early."""
    clock: Mapping[str, Any] = field(default_factory=dict)
    """A GPU's clock at the end of the warm-up."""

    @property
    def details(self) -> dict[str, Any]:
        """JSON values for the reading."""
        return summary(self.samples, self.rule) | {
            "stop_rule": self.rule,
            "sampled_s": self.sampled_s,
            "warmup": self.warmup,
            "warmup_extended": self.extended,
            **self.clock,
            "block": self.block,
            "labels": [*self.labels, *self.judge.labels],
            **self.judge.details(),
        }


def sampled(setting: Setting, work: Call, prepare: Call, *, alone: bool) -> Sampled:
    """Warm up and take samples until a rule stops; `alone`: one call to a region.

    Where the first sample is more than five medians long, what took so long (compiling, tuning)
    belongs to the warm-up: it is extended and sampling begins anew, three times at most.
    """
    limits = setting.limits
    warmup = extended = 0
    while True:
        clock = Clock(setting.watch, limits.warmup_clock)
        durations = warm_up(setting, work, prepare, clock)
        warmup += len(durations)
        block = block_size(setting, durations[-3:], alone=alone)
        found = take(setting, work, prepare, block, patient=extended < limits.retries)
        if found is not None:
            found.warmup, found.extended = warmup, extended
            found.clock = clock.details if isinstance(setting.timer, CudaTimer) else {}
            return found
        extended += 1


def is_late(samples: Sequence[float], late: float) -> bool:
    """Whether the first sample is that many times as long as the median of all."""
    return len(samples) >= 3 and samples[0] > late * statistics.median(samples)


def warm_up(setting: Setting, work: Call, prepare: Call, clock: Clock | None = None) -> list[float]:
    """Call until three in a row agree, or a cap is reached; the durations, in seconds.

    A GPU goes on until it has worked for a second and its clock has settled, if it is told, for
    `warmup_seconds` at most.
    """
    limits, timer = setting.limits, setting.timer
    clock = clock or Clock(setting.watch, limits.warmup_clock)
    on_gpu = isinstance(timer, CudaTimer)
    least = min(limits.warmup_gpu_seconds, limits.warmup_seconds) if on_gpu else 0.0
    durations: list[float] = []
    began = timer.now_s()
    while True:
        durations.append(timer.elapsed_s(work, prepare))
        now = timer.now_s()
        if on_gpu:
            clock.look(now)
        enough = is_steady(durations, limits) or len(durations) >= limits.warmup_calls
        moving = on_gpu and clock.settled is False
        if now - began >= limits.warmup_seconds:
            return durations
        if now - began >= least and enough and not moving:
            return durations


def is_steady(durations: Sequence[float], limits: LatencyLimits) -> bool:
    """Whether the last three agree."""
    last = durations[-3:]
    return len(last) == 3 and max(last) - min(last) <= limits.warmup_steady * max(last)


def block_size(setting: Setting, durations: Sequence[float], *, alone: bool) -> int:
    """How many calls share a timed region: one, unless a call is too short for the clock, or so
    short that the most samples allowed would not fill the least time."""
    if alone:
        return 1
    tick = setting.timer.tick_s
    needed = max(BLOCK_TICKS * tick, setting.limits.region_seconds)
    typical = max(statistics.median(durations), tick)
    return max(1, math.ceil(needed / typical - 1e-9))


def take(
    setting: Setting, work: Call, prepare: Call, block: int, *, patient: bool
) -> Sampled | None:
    """Rounds of samples until a rule stops; None where the first sample belongs to the warm-up.

    Where no more `patient`, such a sample is kept with a label.
    """
    limits, timer = setting.limits, setting.timer
    judge, rules = Judge(setting.watch, limits.slow_clock), Rules(limits)
    region = work if block == 1 else repeated(work, block)
    samples: list[float] = []
    sampled_s = 0.0
    began = timer.now_s()

    def capped() -> bool:
        return timer.now_s() - began >= limits.max_seconds

    while True:
        first, size = not samples, round_size(len(samples), limits)
        several = partial(timer.several_s, region, size, capped, prepare)
        taken, spent = one_round(setting, judge, several, capped)
        samples.extend(region_s / block for region_s in taken)
        sampled_s += spent
        late = first and is_late(samples, limits.late)
        if late and patient:
            return None
        rule = rules.that_stops(samples, sampled_s, timer.now_s() - began)
        labels = ["first call slow"] if late else []
        if rule is not None:
            return Sampled(samples, rule, sampled_s, judge, block, labels)


def one_round(
    setting: Setting, judge: Judge, several: Callable[[], list[float]], capped: Callable[[], bool]
) -> tuple[list[float], float]:
    """The regions of one round and what they took; a disturbed one is repeated after a pause, at
    most three times, and the last one kept, as are those that come after it."""
    tries = 0
    while True:
        setting.watch.before()
        began = setting.timer.now_s()
        regions = several()
        spent = setting.timer.now_s() - began
        seen = setting.watch.after()
        disturbance = judge.disturbance(seen)
        if not disturbance or judge.gave_up or tries == setting.limits.retries or capped():
            judge.keep(seen, len(regions), disturbance)
            return regions, spent
        setting.pause(COOLING_S * 1.5**tries)
        tries += 1
        judge.repeated += 1


def repeated(work: Call, times: int) -> Call:
    """So many calls as one."""

    def region() -> None:
        for _ in range(times):
            work()

    return region
