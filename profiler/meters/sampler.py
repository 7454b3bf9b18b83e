"""How are durations sampled: after which warm-up, in which rounds, and until when?"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.meters.disturbances import DisturbanceLog, Watch
from profiler.meters.effective_sample_size import (
    cautious_effective_number,
    effective_number,
    median_ends,
    median_interval,
    no_interval,
)
from profiler.meters.timers import Call, CudaTimer, Timer

BLOCK_TICKS = 50  # the shortest timed region, in ticks of the timer


CLOCK_EVERY_S = 0.1  # between two readings of a GPU's clock during warm-up
CLOCKS = 3  # readings that must agree for the clock to have settled
COOLING_S = 0.05  # the pause before a disturbed round is repeated; half as long again each time


@dataclass(frozen=True)
class Instruments:
    """The instruments and limits of a measurement of latency; tests bring their own."""

    limits: LatencyLimits
    timer: Timer
    watch: Watch
    pause: Callable[[float], None] = time.sleep


@dataclass
class Clock:
    """A GPU's clock while it warms up: the clock rises from idling, and may fall again with
    heat."""

    watch: Watch
    steady: float
    """The last readings agree where they differ by at most this part of the highest."""
    read_MHz: list[float] = field(default_factory=list)
    next_s: float = 0.0
    told: bool = True

    def look(self, now_s: float) -> None:
        """Read the clock, unless it was read within `CLOCK_EVERY_S`."""
        if not self.told or now_s < self.next_s:
            return
        self.next_s = now_s + CLOCK_EVERY_S
        found = self.watch.clock()
        self.told = found is not None
        self.read_MHz += [] if found is None else [found]

    @property
    def settled(self) -> bool | None:
        """Whether the last readings agree; None where the clock is unknown."""
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
    """The result of sampling: seconds per call of each region, and how sampling went."""

    samples: list[float]
    rule: str
    sampled_s: float
    log: DisturbanceLog
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
        return latency_summary(self.samples, self.rule) | {
            "stop_rule": self.rule,
            "sampled_s": self.sampled_s,
            "warmup": self.warmup,
            "warmup_extended": self.extended,
            **self.clock,
            "block": self.block,
            "labels": [*self.labels, *self.log.labels],
            **self.log.details(),
        }


def sample_latency(setting: Instruments, work: Call, prepare: Call, *, alone: bool) -> Sampled:
    """Warm up and take samples until a rule stops; with `alone`, one call per region.

    Where the first sample is more than five medians long, it contains compiling or tuning that
    belongs to the warm-up: the warm-up is extended and sampling begins anew, three times at most.
    """
    limits = setting.limits
    warmup = extended = 0
    while True:
        clock = Clock(setting.watch, limits.warmup_clock)
        durations = warm_up(setting, work, prepare, clock)
        warmup += len(durations)
        block = block_size(setting, durations[-3:], alone=alone)
        found = take_rounds(setting, work, prepare, block, patient=extended < limits.retries)
        if found is not None:
            found.warmup, found.extended = warmup, extended
            found.clock = clock.details if isinstance(setting.timer, CudaTimer) else {}
            return found
        extended += 1


def is_late(samples: Sequence[float], late: float) -> bool:
    """Whether the first sample is more than `late` times the median of all."""
    return len(samples) >= 3 and samples[0] > late * statistics.median(samples)


def warm_up(
    setting: Instruments, work: Call, prepare: Call, clock: Clock | None = None
) -> list[float]:
    """Call until three calls in a row agree, or a cap is reached; the durations, in seconds.

    A GPU continues until it has worked for a second and its clock, where known, has settled; for at
    most `warmup_seconds`.
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
    """Whether the last three durations agree."""
    last = durations[-3:]
    return len(last) == 3 and max(last) - min(last) <= limits.warmup_steady * max(last)


def block_size(setting: Instruments, durations: Sequence[float], *, alone: bool) -> int:
    """How many calls share a timed region: one, unless a call is too short for the clock, or so
    short that the most samples allowed would not fill the least time."""
    if alone:
        return 1
    tick = setting.timer.tick_s
    needed = max(BLOCK_TICKS * tick, setting.limits.region_seconds)
    typical = max(statistics.median(durations), tick)
    return max(1, math.ceil(needed / typical - 1e-9))


def take_rounds(
    setting: Instruments, work: Call, prepare: Call, block: int, *, patient: bool
) -> Sampled | None:
    """Rounds of samples until a rule stops; None where the first sample belongs to the warm-up.

    Where not `patient`, such a sample is kept with a label.
    """
    limits, timer = setting.limits, setting.timer
    log, rules = DisturbanceLog(setting.watch, limits.slow_clock), StoppingRules(limits)
    region = work if block == 1 else calls_as_one(work, block)
    samples: list[float] = []
    sampled_s = 0.0
    began = timer.now_s()

    def capped() -> bool:
        return timer.now_s() - began >= limits.max_seconds

    while True:
        first, size = not samples, round_size(len(samples), limits)
        several = partial(timer.several_s, region, size, capped, prepare)
        taken, spent = one_round(setting, log, several, capped)
        samples.extend(region_s / block for region_s in taken)
        sampled_s += spent
        late = first and is_late(samples, limits.late)
        if late and patient:
            return None
        rule = rules.that_stops(samples, sampled_s, timer.now_s() - began)
        labels = ["first call slow"] if late else []
        if rule is not None:
            return Sampled(samples, rule, sampled_s, log, block, labels)


def one_round(
    setting: Instruments,
    log: DisturbanceLog,
    several: Callable[[], list[float]],
    capped: Callable[[], bool],
) -> tuple[list[float], float]:
    """The regions of one round and the seconds that they took. A disturbed round is repeated after
    a pause, at most three times; the last attempt is kept, and so are all later rounds."""
    tries = 0
    while True:
        setting.watch.before()
        began = setting.timer.now_s()
        regions = several()
        spent = setting.timer.now_s() - began
        seen = setting.watch.after()
        disturbance = log.disturbance(seen)
        if not disturbance or log.gave_up or tries == setting.limits.retries or capped():
            log.keep(seen, len(regions), disturbance)
            return regions, spent
        setting.pause(COOLING_S * 1.5**tries)
        tries += 1
        log.repeated += 1


def calls_as_one(work: Call, times: int) -> Call:
    """One call that makes `times` calls."""

    def region() -> None:
        for _ in range(times):
            work()

    return region


SETTLED = "median settled"
"""The rule that stops sampling where the interval of the median is narrow."""


Floats = NDArray[np.float64]


CHECK_EVERY = 10
"""Samples in a round, once the least number has been taken."""


LOOKS = 10
"""The rules are checked again after a tenth more samples, and at least a round more."""


FIRST_NOISE = 5
"""The number of samples from which on their spread is followed."""


NOISES = 512
"""The number of latest spreads that are compared with the last one."""


LEAST_NOISES = 64


@dataclass(frozen=True)
class LatencyLimits:
    """When a measurement of latency may stop; seconds are read from the clock that times it.

    `min_seconds` is the least that sampling takes in all, work between calls (flushing caches)
    included, and readings of other sensors and pauses excluded; a shorter `max_seconds` takes its
    place.
    """

    min_samples: int = 30
    max_samples: int = 1000
    min_seconds: float = 0.5
    max_seconds: float = 15.0
    settled: float = 0.01  # largest distance of the interval's ends, relative to the median
    noise: float = 0.05  # the relative change of the spread at which sampling stops
    warmup_calls: int = 50
    warmup_seconds: float = 5.0
    warmup_steady: float = 0.05  # three calls in a row differ by at most this share
    warmup_gpu_seconds: float = 1.0  # a GPU works at least this long, caps permitting
    warmup_clock: float = 0.02  # and until its last clocks differ by at most this share
    retries: int = 3  # for a disturbed round, and for a warm-up that ended too early
    late: float = 5.0  # a first sample this many medians long belongs to the warm-up
    slow_clock: float = 0.75  # a clock below this part of its median is a disturbance

    def __post_init__(self) -> None:
        if self.min_samples < 1 or self.max_samples < self.min_samples or self.warmup_calls < 1:
            raise ValueError(f"expected 1 <= min_samples <= max_samples, warmup_calls >= 1: {self}")

    @property
    def least_seconds(self) -> float:
        """The least time that sampling takes."""
        return min(self.min_seconds, self.max_seconds)

    @property
    def region_seconds(self) -> float:
        """The length of a timed region, such that the least time is reached before the most
        samples, and the least number of samples within that time."""
        return self.least_seconds / max(self.max_samples / 2, self.min_samples)


def is_settled(samples: Sequence[float], tolerance: float) -> bool:
    """Whether both ends of the median's interval lie within `tolerance` of the median, allowing for
    more dependence between samples than they show."""
    interval = median_ends(samples, cautious_effective_number(samples))
    if interval is None:
        return False
    middle = statistics.median(samples)
    return max(interval[1] - middle, middle - interval[0]) <= tolerance * middle


def noises(samples: Sequence[float]) -> Floats:
    """The relative standard deviation of the first n samples, for n from `FIRST_NOISE` on."""
    taken = np.asarray(samples, dtype=float)
    number = np.arange(1, len(taken) + 1)[FIRST_NOISE - 1 :]
    total = np.cumsum(taken)[FIRST_NOISE - 1 :]
    square = np.cumsum(taken * taken)[FIRST_NOISE - 1 :]
    told = total > 0
    number, total, square = number[told], total[told], square[told]
    variance = np.maximum(square - total * total / number, 0.0) / (number - 1)
    return np.asarray(np.sqrt(variance) * number / total)


def is_stable_noise(samples: Sequence[float], tolerance: float) -> bool:
    """Whether the samples' spread has stopped changing, though the median has not settled.

    Decided as by nvbench's criterion `stdrel`: the latest spreads, more than 64 of them, stay
    within `tolerance` of the last one (root mean square, relative).
    """
    latest = noises(samples)[-NOISES:]
    if len(latest) <= LEAST_NOISES or latest[-1] == 0:
        return False
    return float(np.sqrt(np.mean((latest - latest[-1]) ** 2))) < tolerance * float(latest[-1])


class StoppingRules:
    """The rules by which one measurement may stop. They are checked again when there are a tenth
    more samples than at the last check: a check takes time, and the more often a narrow interval is
    looked for, the more often one is found that is too narrow."""

    def __init__(self, limits: LatencyLimits) -> None:
        self.limits, self.due = limits, limits.min_samples

    def that_stops(self, samples: Sequence[float], sampled_s: float, spent_s: float) -> str | None:
        """The name of the rule that stops sampling now; None where sampling goes on.

        Noise that has stopped changing stops sampling only where the median has an interval.
        `sampled_s` is what the samples took in all; `spent_s` adds repeated rounds, pauses and
        readings of other sensors, and counts for the cap alone.
        """
        limits, number = self.limits, len(samples)
        capped, full = spent_s >= limits.max_seconds, number >= limits.max_samples
        due = number >= self.due or ((capped or full) and number >= limits.min_samples)
        if due and (capped or sampled_s >= limits.least_seconds):
            self.due = number + max(number // LOOKS, CHECK_EVERY)
            if is_settled(samples, limits.settled):
                return SETTLED
            if is_stable_noise(samples, limits.noise) and median_interval(samples):
                return "stable noise"
        if full:
            return "sample cap"
        return "time cap" if capped else None


def round_size(taken: int, limits: LatencyLimits) -> int:
    """How many samples to take in the next round."""
    wanted = limits.min_samples - taken if taken < limits.min_samples else CHECK_EVERY
    return max(min(wanted, limits.max_samples - taken), 1)


def quantile(samples: Sequence[float], part: float) -> float:
    """The value at `part` of the ordered samples, interpolated.

    >>> quantile([1.0, 2.0, 3.0], 0.25)
    1.5
    """
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def latency_summary(samples: Sequence[float], rule: str = "") -> dict[str, Any]:
    """Spread of the samples, in seconds, and how well their median is known.

    `n_independent` is the effective sample size (`effective_sample_size.py`). The interval's ends
    are None where that is too small, and `ci_missing` says so.

    Args:
        rule: why sampling stopped. Where it stopped because the interval was narrow, the ends given
            are those of the interval that the rule saw.
    """
    as_many = (cautious_effective_number if rule == SETTLED else effective_number)(samples)
    ends = median_ends(samples, as_many)
    low, high = ends or (None, None)
    return {
        "p20": quantile(samples, 0.2),
        "p80": quantile(samples, 0.8),
        "iqr": quantile(samples, 0.75) - quantile(samples, 0.25),
        "n": len(samples),
        "n_independent": as_many,
        "ci_low": low,
        "ci_high": high,
    } | ({} if ends else {"ci_missing": no_interval(samples)})
