"""Candidates timed in turns, round after round; rounds under heat are repeated.

A visit to a candidate is one short block of samples (`sampler.py`), so that the visits of a round
are close in time, and returns the value of a busy time (`busy_estimate`): preemption only lengthens
regions (timed intervals), so the fastest regions of all candidates are equally undisturbed, and no
visit is dropped for preemption. Heat, by which a clock is held down, is judged among a candidate's
own visits, as clocks may differ. A visit under heat is repeated at once, then the whole round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from profiler.meters.disturbances import NOTICED, DisturbanceLog
from profiler.meters.intervals import busy_estimate
from profiler.meters.latency import calls_in_turn
from profiler.meters.sampler import (
    COOLING_S,
    Disturbed,
    Instruments,
    LatencyLimits,
    calls_as_one,
    calls_per_region,
    take_block,
    warm_up,
)
from profiler.meters.timers import Call, do_nothing
from profiler.records.grades import BUSY, QUIET

VISIT = LatencyLimits(min_blocks=1, regions=50, min_seconds=0.05, max_seconds=0.1)
"""The limits of a visit: regions that begin within a twentieth of a second."""

LONG_S = 1.0
"""A call of this many seconds or more takes the caches that other candidates left within less than
a hundredth of its time: no untimed call comes before it."""

ATTEMPTS = 3
"""The most attempts at a visit under heat."""


class Timeable(Protocol):
    """A call that is ready to be timed. `reset` restores the state that the call changes, `trivial`
    says whether the reset is too short to matter inside a timed region."""

    @property
    def reset(self) -> Callable[[], object] | None: ...

    @property
    def trivial(self) -> bool: ...

    def timed(self) -> tuple[Callable[[], object], Callable[[], object] | None]:
        """The call, and a function that restores the state that the call changes, or None."""
        ...


class Visitor:
    """Times one candidate: warmed up when made, then a low quantile per visit, in s per call."""

    def __init__(
        self, setting: Instruments, call: Call, prepare: Call = do_nothing, *, alone: bool = False
    ) -> None:
        """Warm the call up (its least time: `call_s`), and find how many calls make a timed region.
        `prepare()` runs before every region, untimed; with `alone` a region is one call."""
        self.setting, self.call, self.prepare, self.alone = setting, call, prepare, alone
        self.log = DisturbanceLog(setting.watch, setting.limits.slow_clock)
        durations = warm_up(setting, call, prepare)
        self.call_s = max(min(durations), setting.timer.tick_s)
        self.block = calls_per_region(setting, [self.call_s], alone=alone)
        """Calls in a region."""
        self.waiting: list[float] = []
        """For each visit, the share of its time in which a thread was ready but preempted."""

    @property
    def grade(self) -> str:
        """`quiet` if most visits had the device to themselves, else `busy`."""
        return BUSY if self.waiting and statistics.median(self.waiting) > NOTICED else QUIET

    def __call__(self) -> float:
        """Time one visit to the candidate: seconds per call, a low quantile of a block of regions,
        or of the time on the processor if that is less (`busy_estimate`). An untimed call comes
        first, as the caches hold what other candidates read, unless a call takes `LONG_S`. Raises
        Disturbed: the clock was held down at all `ATTEMPTS`."""
        timer = self.setting.timer
        for _ in range(ATTEMPTS):
            if self.call_s < LONG_S:  # the untimed call
                timer.several_s(self.call, 1, lambda: True, self.prepare)
            region = self.call if self.block == 1 else calls_as_one(self.call, self.block)
            # the time since sampling began counts as 0: a visit is bounded by its block alone
            found = take_block(
                self.setting, self.log, region, self.prepare, self.block, lambda: 0.0
            )
            if not found.heat:
                self.log.keep(found.seen)
                self.waiting.append(found.waiting)
                return busy_estimate(found.samples, found.alone_s, alone=True)[0]
            self.log.leave_out(found.heat)
            self.setting.pause(COOLING_S)
        raise Disturbed(found.heat)


def visitor(work: Timeable, setting: Instruments) -> Visitor:
    """Make the visitor (which times a candidate, visit by visit) of a prepared call. A timed region
    holds several calls, each behind a reset if the call has a `trivial` one (too short to matter);
    with any other reset, a region is one call, and the reset runs before it, untimed."""
    alone = work.reset is not None and not work.trivial
    timed, reset = work.timed()
    if alone:
        return Visitor(setting, timed, reset or do_nothing, alone=True)
    return Visitor(setting, timed if reset is None else calls_in_turn(reset, timed))


def equal_regions(visitors: Iterable[Visitor]) -> None:
    """Set the number of calls in a timed region of each candidate, so that all regions have about
    the duration of the fastest candidate's regions, of one call at least; a candidate whose reset
    runs between calls keeps regions of one call.

    Disturbances then hit equally many regions of each candidate. If warm-up had grouped calls of
    equal cost by twos for one candidate and by threes for another, the longer regions would be hit
    more often, and their median would be longer.
    """
    listed = list(visitors)
    fastest = min(listed, key=lambda visitor: visitor.call_s)
    span_s = fastest.block * fastest.call_s
    for visitor in listed:
        if not visitor.alone:
            visitor.block = max(1, round(span_s / visitor.call_s))


def undisturbed_too_few(logs: Mapping[str, DisturbanceLog], rounds: int, needed: int) -> str:
    """A sentence on why the undisturbed rounds (`rounds`) are fewer than `needed`, with the
    disturbed candidates (`logs`: name -> log); "" if they suffice, or if none was disturbed."""
    disturbed = [f"{name}: {log.by} visits" for name, log in logs.items() if log.left_out]
    if rounds >= needed or not disturbed:
        return ""
    said = "; ".join(disturbed)
    return f"{rounds} rounds were undisturbed, and {needed} are needed ({said})"
