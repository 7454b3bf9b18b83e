"""How are durations sampled: after which warm-up, in which blocks, and until when?

A block is a number of timed regions between two looks at the device. Where enough blocks had the
device to themselves, the samples are those of these blocks alone, and the time is quiet: the
median, whose interval is made of the blocks' medians (`intervals.py`); sampling stops where it is
narrow. Otherwise the time is busy: an estimate from all regions. A block under heat is taken anew
after a pause; no pause keeps other programs from the processors.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiler.meters.disturbances import (
    NOTICED,
    BlockObservation,
    DisturbanceLog,
    Watch,
    spread_threads,
)
from profiler.meters.intervals import (
    busy_estimate,
    least_number,
    median_interval,
    medians_of,
    no_interval,
    spread,
)
from profiler.meters.timers import Call, CudaTimer, Timer, do_nothing
from profiler.records.grades import BUSY, INTERRUPTED, ONE_THREAD, QUIET, THROTTLED

BLOCK_TICKS = 50  # the shortest timed region, in ticks of the timer


CLOCK_EVERY_S = 0.1  # between two readings of a GPU's clock during warm-up
CLOCKS = 3  # readings that must agree for the clock to have settled
WAITED = 1.5  # a value so many times what the call needs holds waits
SEEN = 1.1  # a region of several threads that is hardly longer than that of one held no wait
APART = 2.0  # ends of a busy time that are farther apart tell little
COOLING_S = 0.05  # the pause after a block under heat; half as long again after each in a row
COOLINGS = 3  # so many times at most


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


@dataclass(frozen=True, eq=False)
class Block:
    """Regions timed one after another between two looks at the device."""

    samples: Sequence[float]
    """Seconds a call, of each region."""
    spent_s: float
    """Seconds that all of it took."""
    seen: BlockObservation
    heat: str
    """What held the clock down; "" where nothing did."""
    waiting: float
    """For which share of its regions' time a thread was ready and others had its processor."""
    processor_s: float | None
    """Seconds a call that the busiest thread was on a processor; None where nothing tells."""

    @property
    def quiet(self) -> bool:
        """Whether the block had the device to itself."""
        return not self.heat and self.waiting <= NOTICED


class Disturbed(RuntimeError):
    """A clock stayed held down."""


@dataclass
class Sampled:
    """The result of sampling: the blocks, and how sampling went."""

    log: DisturbanceLog
    block: int
    """Calls in a region."""
    needed: int = 1
    """So many quiet blocks make a quiet time."""
    threads: int = 1
    """How many threads the call has otherwise, where one took this time."""
    several_s: float = math.inf
    """Seconds a call of the fastest region that so many threads took."""
    taken: list[Block] = field(default_factory=list)
    rule: str = ""
    late: list[str] = field(default_factory=list)
    """The label of a first sample that is much longer than the others."""
    warmup: int = 0
    """Calls before sampling began."""
    extended: int = 0
    """How often the warm-up turned out to have ended too early."""
    clock: Mapping[str, Any] = field(default_factory=dict)
    """A GPU's clock at the end of the warm-up."""

    @property
    def quiet(self) -> list[Block]:
        """The blocks that had the device to themselves."""
        return [block for block in self.taken if block.quiet]

    @property
    def grade(self) -> str:
        """`quiet` where enough blocks are, or all; what one thread took for several is not."""
        enough = len(self.quiet) >= min(self.needed, len(self.taken))
        return QUIET if enough and self.threads == 1 else BUSY

    @property
    def kept(self) -> list[Block]:
        """The blocks that the time is made of: the quiet ones; of a busy time all, without those
        under heat where enough are under none."""
        if self.grade == QUIET:
            return self.quiet
        cool = [block for block in self.taken if not block.heat]
        return cool if len(cool) >= self.needed else self.taken

    @property
    def samples(self) -> list[float]:
        """Seconds a call of each region, in the order taken."""
        return [sample for block in self.kept for sample in block.samples]

    def estimate(self) -> tuple[float, float, float]:
        """Value, lower and upper end of a busy time."""
        used = [block.processor_s for block in self.kept if block.processor_s is not None]
        value, low, high = busy_estimate(self.samples, min(used, default=None))
        if self.several_s <= SEEN * value:
            return value, min(low, self.several_s), high
        return value, low / self.threads, high

    @property
    def vague(self) -> bool:
        """Whether the ends of a busy time lie far apart."""
        if self.grade == QUIET:
            return False
        value, low, high = self.estimate()
        return high > APART * low or value > WAITED * low

    @property
    def value(self) -> float:
        """Seconds a call: the median of the blocks' medians, or the estimate of a busy time."""
        if self.grade == BUSY:
            return self.estimate()[0]
        return statistics.median(medians_of_blocks(self.kept))

    @property
    def labels(self) -> list[str]:
        """What disturbed the blocks that the time is made of."""
        found = [*self.late]
        found += [THROTTLED] if any(block.heat for block in self.kept) else []
        if self.threads > 1:
            return [*found, INTERRUPTED, ONE_THREAD]
        return found + ([INTERRUPTED] if any(b.waiting > NOTICED for b in self.kept) else [])

    def arrange(self) -> None:
        """Tell the log which blocks the time is made of."""
        kept = self.kept
        self.log.kept = [block.seen for block in kept]
        self.log.left_out = [b.heat or INTERRUPTED for b in self.taken if b not in kept]

    @property
    def details(self) -> dict[str, Any]:
        """JSON values for the reading."""
        kept = self.kept
        found = latency_summary(self.samples, [len(block.samples) for block in kept])
        if self.grade == BUSY:
            _, low, high = self.estimate()
            found |= {"ci_low": low, "ci_high": high}
            found.pop("ci_missing", None)
        used = [block.processor_s for block in kept if block.processor_s is not None]
        return found | {
            "grade": self.grade,
            "waiting": [round(block.waiting, 4) for block in kept],
            "processor_s": statistics.median(used) if used else None,
            "stop_rule": self.rule,
            "sampled_s": sum(block.spent_s for block in kept),
            "warmup": self.warmup,
            "warmup_extended": self.extended,
            **self.clock,
            "block": self.block,
            "labels": [*self.labels, *self.log.labels],
            **self.log.details(),
            "disturbances": sorted({b.heat or INTERRUPTED for b in self.taken if not b.quiet}),
        }


def medians_of_blocks(blocks: Sequence[Block]) -> list[float]:
    """The median of each block."""
    return [statistics.median(block.samples) for block in blocks]


def sample_latency(setting: Instruments, work: Call, prepare: Call, *, alone: bool) -> Sampled:
    """Warm up and take blocks until a rule stops; with `alone`, one call per region.

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
        found = take_blocks(setting, work, prepare, block, patient=extended < limits.retries)
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
    most `warmup_seconds`. Where others have the processors for most of the time, calls do not come
    to agree: `busy_seconds` are enough.
    """
    limits, timer = setting.limits, setting.timer
    clock = clock or Clock(setting.watch, limits.warmup_clock)
    on_gpu = isinstance(timer, CudaTimer)
    least = min(limits.warmup_gpu_seconds, limits.warmup_seconds) if on_gpu else 0.0
    durations: list[float] = []
    setting.watch.before()
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
        if not on_gpu and now - began >= limits.busy_seconds:
            waited_s = setting.watch.after().waited_s or 0.0
            if waited_s > 0.5 * (now - began):
                return durations
        if now - began >= least and enough and not moving:
            return durations


def is_steady(durations: Sequence[float], limits: LatencyLimits) -> bool:
    """Whether the last three durations agree."""
    last = durations[-3:]
    return len(last) == 3 and max(last) - min(last) <= limits.warmup_steady * max(last)


def block_size(setting: Instruments, durations: Sequence[float], *, alone: bool) -> int:
    """How many calls share a timed region: one, unless a call is too short for the clock, or so
    short that a block would have more regions than it may."""
    if alone:
        return 1
    tick = setting.timer.tick_s
    needed = max(BLOCK_TICKS * tick, region_seconds(setting))
    typical = max(min(durations), tick)
    return max(1, math.ceil(needed / typical - 1e-9))


def region_seconds(setting: Instruments) -> float:
    """The length of a region of several calls: short ones mostly hold no wait."""
    return min(setting.timer.region_s, setting.limits.region_seconds)


def take_blocks(
    setting: Instruments, work: Call, prepare: Call, size: int, *, patient: bool
) -> Sampled | None:
    """Blocks until a rule stops, `size` calls in a region; None where the first sample belongs to
    the warm-up.

    Where not `patient`, such a sample is kept with a label.
    """
    limits, timer = setting.limits, setting.timer
    log = DisturbanceLog(setting.watch, limits.slow_clock)
    found = Sampled(log, size, min(least_number(), limits.min_blocks))
    region = work if size == 1 else calls_as_one(work, size)
    began = timer.now_s()
    in_a_row = 0
    looked = False

    def spent_s() -> float:
        return timer.now_s() - began

    while not found.rule:
        block = take_block(setting, log, region, prepare, size, spent_s)
        found.taken.append(block)
        if block.heat:
            setting.pause(COOLING_S * 1.5 ** min(in_a_row, COOLINGS - 1))
            in_a_row += 1
        else:
            in_a_row = 0
        quiet = found.quiet
        first = [sample for each in quiet for sample in each.samples]
        if not looked and len(first) >= LATE_AMONG:
            looked = True
            if is_late(first, limits.late):
                if patient:
                    return None
                found.late.append("first call slow")
        spent = spent_s()
        settled = why_stop(medians_of_blocks(quiet), spent, limits)
        found.rule = settled or why_busy(found.taken, spent, limits)
    found.arrange()
    return found


def take_block(
    setting: Instruments,
    log: DisturbanceLog,
    region: Call,
    prepare: Call,
    size: int,
    spent_s: Callable[[], float],
) -> Block:
    """Regions of `size` calls for the time of a block, and what disturbed the device meanwhile."""
    limits, timer, watch = setting.limits, setting.timer, setting.watch
    watch.before()
    began = timer.now_s()

    def over() -> bool:
        return timer.now_s() - began >= limits.block_seconds or spent_s() >= limits.max_seconds

    before = prepare if prepare is do_nothing else watch.aside(prepare)
    most = MOST_REGIONS * max(limits.regions, round(limits.block_seconds / timer.region_s))
    regions = timer.several_s(region, most, over, before)
    spent = timer.now_s() - began
    seen = watch.after()
    timed = sum(regions)
    waiting = (seen.waited_s or 0.0) / timed if timed > 0 else 0.0
    if waiting > NOTICED:
        spread_threads(seen.threads)
    return Block(
        [round(region_s / size, DIGITS) for region_s in regions],
        spent,
        seen,
        log.heat(seen),
        waiting,
        None if seen.processor_s is None else seen.processor_s / (len(regions) * size),
    )


def calls_as_one(work: Call, times: int) -> Call:
    """One call that makes `times` calls."""

    def region() -> None:
        for _ in range(times):
            work()

    return region


DIGITS = 11
"""Decimals of a second that a sample has: no clock tells hundredths of a nanosecond."""

SETTLED = "median settled"
"""The rule that stops sampling where the interval of the median is narrow."""

MORE = 1.5
"""The interval is looked at again when there are so many times as many blocks: the more often a
narrow one is looked for, the more often one is found that is too narrow."""

MOST_REGIONS = 2
"""A block ends after so many times as many regions as fill it, though its time is not over."""

LATE_AMONG = 5
"""Samples among which the first one is looked at."""


@dataclass(frozen=True)
class LatencyLimits:
    """When a measurement of latency may stop; seconds are read from the clock that times it.

    `min_seconds` is the least that quiet blocks take in all, work between calls (flushing caches)
    included, unless calls that cannot share a region are so short that a block ends after
    `MOST_REGIONS` times as many regions as it should have; a shorter `max_seconds` takes its place.
    """

    min_blocks: int = 20
    max_blocks: int = 100
    regions: int = 25  # of a block, where calls can share them
    min_seconds: float = 0.5
    max_seconds: float = 15.0
    busy_seconds: float = 1.0  # after which a busy device is not waited for
    settled: float = 0.01  # largest distance of the interval's ends, relative to the median
    warmup_calls: int = 50
    warmup_seconds: float = 5.0
    warmup_steady: float = 0.05  # three calls in a row differ by at most this share
    warmup_gpu_seconds: float = 1.0  # a GPU works at least this long, caps permitting
    warmup_clock: float = 0.02  # and until its last clocks differ by at most this share
    retries: int = 3  # for a warm-up that ended too early
    late: float = 5.0  # a first sample this many medians long belongs to the warm-up
    slow_clock: float = 0.75  # a clock below this part of its median is a disturbance

    def __post_init__(self) -> None:
        if not (1 <= self.min_blocks <= self.max_blocks and self.regions and self.warmup_calls):
            raise ValueError(
                f"expected 1 <= min_blocks <= max_blocks, regions and warmup_calls >= 1: {self}"
            )

    @classmethod
    def within(cls, seconds: float) -> LatencyLimits:
        """The limits where so many seconds are the most for sampling: warming up takes at most
        twice as long, and half is enough where others use the device."""
        return cls(
            max_seconds=seconds,
            warmup_seconds=min(cls.warmup_seconds, 2 * seconds),
            busy_seconds=min(cls.busy_seconds, seconds / 2),
        )

    @property
    def block_seconds(self) -> float:
        """The time of a block: the fewest blocks fill the least time."""
        return min(self.min_seconds, self.max_seconds) / self.min_blocks

    @property
    def region_seconds(self) -> float:
        """The longest time of a region of several calls: `regions` fill a block."""
        return self.block_seconds / self.regions

    @property
    def looks(self) -> tuple[int, ...]:
        """At so many blocks the interval is looked at.

        >>> LatencyLimits().looks
        (20, 30, 45, 68, 100)
        """
        found = [self.min_blocks]
        while found[-1] < self.max_blocks:
            found.append(min(math.ceil(found[-1] * MORE), self.max_blocks))
        return tuple(found)


def is_settled(medians: Sequence[float], tolerance: float) -> bool:
    """Whether both ends of the median's interval lie within `tolerance` of the median."""
    interval = median_interval(medians)
    if interval is None:
        return False
    middle = statistics.median(medians)
    return max(interval[1] - middle, middle - interval[0]) <= tolerance * middle


HOPELESS = "busy device"
"""The rule that stops sampling where too few blocks will be quiet."""


FEWEST = 3
"""Blocks that show that others use a device."""


def why_busy(taken: Sequence[Block], spent_s: float, limits: LatencyLimits) -> str:
    """The name of the rule that stops sampling where others use the device so much that its caps
    will be reached before enough blocks are quiet; "" where it goes on."""
    waited = [block for block in taken if not (block.heat or block.quiet)]
    quiet = sum(block.quiet for block in taken)
    if spent_s < limits.busy_seconds or len(waited) < max(FEWEST, len(taken) / 2):
        return ""
    return HOPELESS if quiet * limits.max_seconds < limits.min_blocks * spent_s else ""


def why_stop(medians: Sequence[float], spent_s: float, limits: LatencyLimits) -> str:
    """The name of the rule that stops sampling after these quiet blocks; "" where it goes on.

    `spent_s` is the time since sampling began, with all blocks and pauses.
    """
    number, capped = len(medians), spent_s >= limits.max_seconds
    looks = number in limits.looks or (capped and number >= limits.min_blocks)
    if looks and is_settled(medians, limits.settled):
        return SETTLED
    if number >= limits.max_blocks:
        return "block cap"
    return "time cap" if capped else ""


def latency_summary(
    samples: Sequence[float], blocks: Sequence[int] | None = None
) -> dict[str, Any]:
    """Spread of the samples, in seconds, and the interval of the median of their blocks.

    The ends are None where blocks are too few, and `ci_missing` says so.

    Args:
        blocks: how many samples each has; one each where nothing is said.
    """
    sizes = [1] * len(samples) if blocks is None else list(blocks)
    values = medians_of(samples, sizes)
    ends = median_interval(values)
    low, high = ends or (None, None)
    return {
        **spread(samples),
        "n": len(samples),
        "blocks": sizes,
        "ci_low": low,
        "ci_high": high,
    } | ({} if ends else {"ci_missing": no_interval(len(values))})
