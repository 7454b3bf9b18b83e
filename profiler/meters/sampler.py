"""Samples durations: the warm-up, the blocks of timed regions, and the stopping rules.

A region is one timed interval: one call, or several short calls in a row. A block is a number of
regions between two observations of the device. If enough blocks had the device to themselves, the
time is quiet: only these blocks count, the value is the median of their medians, and sampling stops
once its interval (`intervals.py`) is narrow. Otherwise the time is busy: an estimate from all
regions. A pause follows a block under heat, in which the clock was held down. No pause follows
preemption, as a pause keeps no program off the processors.
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
    KEPT,
    busy_estimate,
    least_number,
    median_interval,
    medians_of,
    no_interval,
    spread,
)
from profiler.meters.limits import refuse_impossible
from profiler.meters.timers import Call, CudaTimer, Timer, do_nothing
from profiler.records.grades import BUSY, INTERRUPTED, ONE_SAMPLE, ONE_THREAD, QUIET, THROTTLED

BLOCK_TICKS = 50  # the shortest timed region, in ticks of the timer


CLOCK_EVERY_S = 0.1  # seconds between two readings of a GPU's clock during warm-up
CLOCKS = 3  # readings that must agree for the clock to have settled
WAITED = 2.0  # a value above this many times its lower end contains preemption
SEEN = 1.1  # several threads were undisturbed up to this many times the time of one thread
APART = 2.7  # a busy time is vague if its upper end is more than this many times its lower end
COOLING_S = 0.05  # the pause after a block under heat, 1.5 times as long after each in a row
COOLINGS = 3  # pauses of different lengths


@dataclass(frozen=True)
class Instruments:
    """The instruments and limits of a latency measurement; tests supply their own."""

    limits: LatencyLimits
    timer: Timer
    watch: Watch
    pause: Callable[[float], None] = time.sleep


@dataclass
class Clock:
    """A GPU's clock during warm-up: it rises from idling, and may fall again with heat."""

    watch: Watch
    steady: float
    """The last readings agree if they differ by at most this share of the highest."""
    read_MHz: list[float] = field(default_factory=list)
    next_s: float = 0.0  # the time before which the clock is not read again
    told: bool = True
    """Whether the last reading gave a clock."""

    def look(self, now_s: float) -> None:
        """Read the GPU's clock frequency, unless the last reading is less than `CLOCK_EVERY_S`
        seconds old at `now_s`."""
        if not self.told or now_s < self.next_s:
            return
        self.next_s = now_s + CLOCK_EVERY_S
        found = self.watch.clock()
        self.told = found is not None
        self.read_MHz += [] if found is None else [found]

    @property
    def settled(self) -> bool | None:
        """Whether the GPU's clock frequency has settled: its last `CLOCKS` readings are there and
        agree within the part `steady`; None if the clock is unknown."""
        last = self.read_MHz[-CLOCKS:]
        if not self.told:
            return None
        return len(last) == CLOCKS and max(last) - min(last) <= self.steady * max(last)

    @property
    def details(self) -> dict[str, Any]:
        """The details of the reading about the clock, as JSON values."""
        return {"warmup_clocks_MHz": self.read_MHz[-CLOCKS:], "warmup_clock_settled": self.settled}


@dataclass(frozen=True, eq=False)
class Block:
    """Regions timed one after another between two observations of the device."""

    samples: Sequence[float]
    """Seconds per call, one per region."""
    spent_s: float
    """Seconds from the start to the end of the block, untimed work included."""
    seen: BlockObservation
    heat: str
    """The reason why the clock was held down; "" if it was not."""
    waiting: float
    """The share of the timed seconds in which a thread was ready but preempted."""
    processor_s: float | None
    """Seconds per call that the busiest thread ran on a processor; None if the system counted
    none."""

    alone: bool = False
    """Whether one thread worked, and was running or ready to run all the time."""

    @property
    def alone_s(self) -> list[float]:
        """[`processor_s`] if one thread took all the time of the calls; else []."""
        return [self.processor_s] if self.alone and self.processor_s is not None else []

    @property
    def quiet(self) -> bool:
        """Whether the block had the device to itself."""
        return not self.heat and self.waiting <= NOTICED


class Disturbed(RuntimeError):
    """The clock stayed held down."""


@dataclass
class Sampled:
    """The result of sampling: the blocks, and how sampling went."""

    log: DisturbanceLog
    block: int
    """Calls in a region."""
    needed: int = 1
    """The number of quiet blocks that make a time quiet; all blocks, if fewer were taken."""
    threads: int = 1
    """The call's usual number of threads, if it was timed with one thread instead; otherwise 1."""
    several_s: float = math.inf
    """Seconds per call of the fastest region with `threads` threads; infinite if unknown."""
    taken: list[Block] = field(default_factory=list)
    rule: str = ""  # the name of the rule that stopped sampling
    late: list[str] = field(default_factory=list)
    """The label of a first sample that is much longer than the others; [] without one."""
    warmup: int = 0
    """Calls before sampling began."""
    extended: int = 0
    """The number of times that the warm-up turned out too short."""
    clock: Mapping[str, Any] = field(default_factory=dict)
    """A GPU's clock at the end of the warm-up."""

    @property
    def quiet(self) -> list[Block]:
        """The blocks that had the device to themselves."""
        return [block for block in self.taken if block.quiet]

    @property
    def undisturbed(self) -> bool:
        """Whether `needed` blocks, or all, were quiet, with the usual number of threads."""
        enough = len(self.quiet) >= min(self.needed, len(self.taken))
        return enough and self.threads == 1

    @property
    def grade(self) -> str:
        """`quiet` if the time is undisturbed and has two samples or more, else `busy`."""
        return QUIET if self.undisturbed and len(self.samples) > 1 else BUSY

    @property
    def kept(self) -> list[Block]:
        """The blocks of regions that count. Of an undisturbed time, the quiet ones (neither
        preempted nor with the clock held down); else the blocks whose clock was not held down if
        there are enough, else all."""
        if self.undisturbed:
            return self.quiet
        cool = [block for block in self.taken if not block.heat]
        return cool if len(cool) >= self.needed else self.taken

    @property
    def samples(self) -> list[float]:
        """Seconds per call of each region of the kept blocks, in the order taken."""
        return [sample for block in self.kept for sample in block.samples]

    @property
    def processor_s(self) -> list[float]:
        """Seconds per call that the busiest thread ran, of each block that counts."""
        return [block.processor_s for block in self.kept if block.processor_s is not None]

    @property
    def alone_s(self) -> list[float]:
        """Seconds per call without waiting, of each block in which one thread took all the time of
        the calls; [] if most blocks are not so."""
        found = [seconds for block in self.kept for seconds in block.alone_s]
        return found if 2 * len(found) > len(self.kept) else []

    def estimate(self) -> tuple[float, float, float]:
        """(value, lower end, upper end) of a time measured while other programs ran, in seconds per
        call.

        A time of one thread in place of several has a smaller lower end: the fastest region of
        several threads if it took at most `SEEN` times the value, and so was hardly disturbed; else
        the least time divided by the number of threads, the best that threads can do.
        """
        ran = self.alone_s or self.processor_s
        value, low, high = busy_estimate(self.samples, ran, alone=ran == self.alone_s)
        if self.several_s <= SEEN * value:
            return value, min(low, self.several_s), high
        # `low` is KEPT times the least time; `threads` is 1 unless one thread stood in for several
        return value, low if self.threads == 1 else low / KEPT / self.threads, high

    @property
    def vague(self) -> bool:
        """Whether the time is too uncertain to prefer to that of one thread: disturbed, and its
        upper end more than `APART` times, or its value more than `WAITED` times, its lower end."""
        if self.undisturbed:
            return False
        value, low, high = self.estimate()
        return high > APART * low or value > WAITED * low

    @property
    def value(self) -> float:
        """Seconds per call: the median of the blocks' medians, or the estimate of a busy time."""
        if self.grade == BUSY:
            return self.estimate()[0]
        return statistics.median(medians_of_blocks(self.kept))

    @property
    def labels(self) -> list[str]:
        """The labels (words for a reader) of the disturbances in the blocks that count, of one
        thread in place of several, and of a single sample."""
        found = [*self.late] + [ONE_SAMPLE] * (len(self.samples) == 1)
        found += [THROTTLED] if any(block.heat for block in self.kept) else []
        if self.threads > 1:
            return [*found, INTERRUPTED, ONE_THREAD]
        return found + ([INTERRUPTED] if any(b.waiting > NOTICED for b in self.kept) else [])

    def arrange(self) -> None:
        """Tell the log which blocks are kept and which are left out."""
        kept = self.kept
        self.log.kept = [block.seen for block in kept]
        self.log.left_out = [b.heat or INTERRUPTED for b in self.taken if b not in kept]

    @property
    def details(self) -> dict[str, Any]:
        """The details of the reading, as JSON values: spread, interval and grade of the time; of
        each kept block, `waiting`, the share of time preempted; `processor_s`, the median seconds a
        call that the busiest thread ran; stopping rule, warm-up, calls in a region (`block`),
        labels, and the disturbances of all blocks, left out or not."""
        kept = self.kept
        found = latency_summary(self.samples, [len(block.samples) for block in kept])
        if self.grade == BUSY and len(self.samples) > 1:
            _, low, high = self.estimate()
            found |= {"ci_low": low, "ci_high": high}
            found.pop("ci_missing", None)
        used = self.processor_s
        return found | {
            "grade": self.grade,
            "waiting": [round(block.waiting, 4) for block in kept],
            "processor_s": statistics.median(used) if used else None,
            "alone_s": self.alone_s,
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
    """Warm up, and time blocks of regions of `work` (a region is one or more calls) until a
    stopping rule holds; `prepare` runs before every region, untimed; with `alone`, a region is one
    call.

    If the first sample is more than `limits.late` (five) medians long, it contains compiling or
    tuning: warm-up and sampling start again, `limits.retries` (three) times at most.
    """
    limits = setting.limits
    warmup = extended = 0
    while True:
        clock = Clock(setting.watch, limits.warmup_clock)
        durations = warm_up(setting, work, prepare, clock)
        warmup += len(durations)
        block = calls_per_region(setting, durations[-3:], alone=alone)
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
    """Call `work`, after `prepare` untimed, until three consecutive durations agree, or a cap is
    reached; return the durations in seconds. `setting`: the limits, timer, watch and pause.

    A GPU continues until it has worked for `warmup_gpu_seconds` and its clock, if known, has
    settled. Nothing warms up for longer than `warmup_seconds`, and a CPU for longer than
    `busy_seconds` if a thread was preempted for more than half of the time.
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
    """Whether the last three durations are there and within `warmup_steady` of the longest."""
    last = durations[-3:]
    return len(last) == 3 and max(last) - min(last) <= limits.warmup_steady * max(last)


def calls_per_region(setting: Instruments, durations: Sequence[float], *, alone: bool) -> int:
    """The number of calls per timed region, from the seconds of some calls (`durations`): as many
    as take `BLOCK_TICKS` ticks of the timer and last as long as a region should; one with
    `alone`."""
    if alone:
        return 1
    tick = setting.timer.tick_s
    needed = max(BLOCK_TICKS * tick, region_seconds(setting))
    typical = max(min(durations), tick)
    return max(1, math.ceil(needed / typical - 1e-9))  # a rounding error adds no call


def region_seconds(setting: Instruments) -> float:
    """Seconds of a region of several calls: short regions mostly contain no preemption."""
    return min(setting.timer.region_s, setting.limits.region_seconds)


def take_blocks(
    setting: Instruments, work: Call, prepare: Call, size: int, *, patient: bool
) -> Sampled | None:
    """Time blocks of regions of `size` calls of `work` until a stopping rule holds, and return the
    samples. None, if `patient`, where the warm-up was too short: the first sample is much longer
    than the median; else such a sample is kept and labelled. `prepare` runs before every region,
    untimed. `setting`: the limits, timer, watch and pause."""
    limits, timer = setting.limits, setting.timer
    log = DisturbanceLog(setting.watch, limits.slow_clock)
    found = Sampled(log, size, min(least_number(), limits.min_blocks))
    region = work if size == 1 else calls_as_one(work, size)
    began = timer.now_s()
    in_a_row = 0  # blocks under heat, the last ones
    looked = False  # whether the first sample was compared with the median

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
    """Time one block of regions of `size` calls, with the disturbances of the device during the
    block. If threads were preempted, each working thread is then moved to a processor of its own.

    `prepare` runs before every region, untimed; `log` judges from the clock whether the block was
    under heat; `spent_s()` is the time since sampling began, which `max_seconds` of the limits in
    `setting` bounds.
    """
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
    ran_s = seen.processor_s or 0.0
    return Block(
        [round(region_s / size, DIGITS) for region_s in regions],
        spent,
        seen,
        log.heat(seen),
        waiting,
        processor_s=ran_s / (len(regions) * size) if ran_s else None,
        # one thread worked, and ran or was ready to run all the time
        alone=len(seen.threads) == 1 and ran_s > (1 - NOTICED - waiting) * timed,
    )


def calls_as_one(work: Call, times: int) -> Call:
    """Return a call that makes `times` calls of `work`."""

    def region() -> None:
        for _ in range(times):
            work()

    return region


DIGITS = 11
"""Decimals of a sample in seconds: clocks do not resolve hundredths of a nanosecond."""

SETTLED = "median settled"
"""The rule that stops sampling once the interval of the median is narrow."""

MORE = 1.5
"""The ratio of the numbers of blocks at consecutive checks of the interval: the more often the
interval is checked, the more often it is narrow by chance."""

MOST_REGIONS = 2
"""A block ends after this many times the regions that fill a block, even before its time is
over."""

LATE_AMONG = 5
"""The number of quiet samples after which the first sample is checked."""


@dataclass(frozen=True)
class LatencyLimits:
    """The stopping rules of a latency measurement; seconds are of the timer's clock.

    `min_seconds` is the least total time of quiet blocks, work between calls (flushing) included.
    Two exceptions: a shorter `max_seconds` replaces it, and blocks of short calls that cannot share
    a region end after `MOST_REGIONS` times their regions.
    """

    min_blocks: int = 20
    max_blocks: int = 100
    regions: int = 25  # per block, if calls can share regions
    min_seconds: float = 0.5
    max_seconds: float = 15.0
    busy_seconds: float = 1.0  # after this, sampling on a busy device may stop
    settled: float = 0.01  # most that an end of the interval differs from the median, as a share
    warmup_calls: int = 50
    warmup_seconds: float = 5.0
    warmup_steady: float = 0.05  # three calls in a row differ by at most this share
    warmup_gpu_seconds: float = 1.0  # a GPU's least warm-up, up to `warmup_seconds`
    warmup_clock: float = 0.02  # a GPU's last clocks differ by at most this share
    retries: int = 3  # of a warm-up that ended too early
    late: float = 5.0  # a first sample this many medians long belongs to the warm-up
    slow_clock: float = 0.75  # a clock below this part of its median is a disturbance
    cold: bool = True  # whether calls are also timed from cold caches

    def __post_init__(self) -> None:
        """Raise ValueError for a number that no measurement can have (`refuse_impossible`): below 1
        block, region or call of warm-up, `max_seconds` not above 0 or infinite, any other field
        below 0; and for fewer `max_blocks` than `min_blocks`."""
        least = dict.fromkeys(("min_blocks", "max_blocks", "regions", "warmup_calls"), 1)
        refuse_impossible(self, least, ("max_seconds",))
        if self.min_blocks > self.max_blocks:
            raise ValueError(
                f"expected min_blocks <= max_blocks, got {self.min_blocks} and {self.max_blocks}"
            )

    @classmethod
    def within(cls, seconds: float) -> LatencyLimits:
        """The limits for at most this many seconds of sampling: warm-up takes at most twice as
        long, and half is enough on a busy device."""
        return cls(
            max_seconds=seconds,
            warmup_seconds=min(cls.warmup_seconds, 2 * seconds),
            busy_seconds=min(cls.busy_seconds, seconds / 2),
        )

    @property
    def block_seconds(self) -> float:
        """Seconds of a block: `min_blocks` blocks fill `min_seconds`."""
        return min(self.min_seconds, self.max_seconds) / self.min_blocks

    @property
    def region_seconds(self) -> float:
        """The longest time of a region of several calls: `regions` regions fill a block."""
        return self.block_seconds / self.regions

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of blocks at which the interval is checked.

        >>> LatencyLimits().looks
        (20, 30, 45, 68, 100)
        """
        found = [self.min_blocks]
        while found[-1] < self.max_blocks:
            found.append(min(math.ceil(found[-1] * MORE), self.max_blocks))
        return tuple(found)


def is_settled(medians: Sequence[float], tolerance: float) -> bool:
    """Whether both ends of the confidence interval of the median of `medians` lie within the part
    `tolerance` of the median; False if there are too few for an interval."""
    interval = median_interval(medians)
    if interval is None:
        return False
    middle = statistics.median(medians)
    return max(interval[1] - middle, middle - interval[0]) <= tolerance * middle


HOPELESS = "busy device"
"""The rule that stops sampling when too few blocks will be quiet."""


FEWEST = 3
"""The least number of preempted blocks that identifies a busy device."""


def why_busy(taken: Sequence[Block], spent_s: float, limits: LatencyLimits) -> str:
    """The name of the rule that stops sampling on a busy machine if, at the current rate of quiet
    (undisturbed) blocks, `max_seconds` will end before `min_blocks` are quiet; "" if sampling
    continues. It continues for `busy_seconds` at least, and until half of the blocks, and `FEWEST`,
    were preempted."""
    waited = [block for block in taken if not (block.heat or block.quiet)]
    quiet = sum(block.quiet for block in taken)
    if spent_s < limits.busy_seconds or len(waited) < max(FEWEST, len(taken) / 2):
        return ""
    return HOPELESS if quiet * limits.max_seconds < limits.min_blocks * spent_s else ""


def why_stop(medians: Sequence[float], spent_s: float, limits: LatencyLimits) -> str:
    """The name of the rule that stops sampling after these quiet blocks, given by their medians:
    the interval is narrow, or a cap on blocks or time is reached; "" if sampling continues.

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
    """A dict with the spread of the samples in seconds, and the interval of the median of the
    blocks' medians.

    With too few blocks the interval's ends are None, and `ci_missing` says why.

    Args:
        blocks: the number of samples of each block; by default a block per sample.
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
