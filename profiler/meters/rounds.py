"""How are candidates timed in turns, round after round, and when is a round taken anew?

A visit to a candidate is short, so that the visits of a round lie close together, and gives a
median, so that the few regions in which something else happened do not count. Each visit is
watched, as a block of samples of latency is, and compared with the visits of its own candidate:
candidates may run at different clocks. A round in which the visit of any candidate was disturbed is
left out and taken anew, so that all candidates have equally many; `compare.verdict.Rounds` says how
often.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from profiler.meters.disturbances import (
    BlockObservation,
    DisturbanceLog,
    NoWatch,
    switches_and_faults,
)
from profiler.meters.latency import calls_in_turn
from profiler.meters.sampler import (
    COOLING_S,
    Instruments,
    LatencyLimits,
    block_size,
    calls_as_one,
    warm_up,
)
from profiler.meters.timers import CudaTimer, Timer, do_nothing

VISIT = LatencyLimits(min_blocks=1, regions=20, min_seconds=0.02, max_seconds=0.1)
"""A visit is the median of twenty regions, or of as many as begin within a tenth of a second.

Short calls share regions of a millisecond, which is shorter than the time slice that a scheduler
gives a process (a few milliseconds): where another process takes turns on the processor, most
regions are then free of it, and the median is. Regions as long as a time slice would hold one wait
each, whatever is timed, so that ratios shrink towards 1 by far more than their intervals tell.
"""


def involuntary_switches() -> int:
    """How often the system has taken a processor away from this process so far; 0 where it does not
    count."""
    try:
        return switches_and_faults()[0]
    except ImportError:
        return 0


class Timeable(Protocol):
    """A call that is ready to be timed."""

    @property
    def reset(self) -> Callable[[], object] | None: ...

    @property
    def trivial(self) -> bool: ...

    def timed(self) -> tuple[Callable[[], object], Callable[[], object] | None]:
        """The call, and what restores what the call changes, if anything."""
        ...


class Visitor:
    """Times one candidate: warms it up when made, then gives a median per visit, in seconds per
    call."""

    def __init__(
        self,
        work: Timeable,
        timer: Timer,
        limits: LatencyLimits = VISIT,
        switched: Callable[[], int] = involuntary_switches,
    ) -> None:
        """`switched()` counts how often the processor was given to others."""
        self.alone = work.reset is not None and not work.trivial
        timed, restored = work.timed()
        reset = restored or do_nothing
        self.call = timed if self.alone or restored is None else calls_in_turn(reset, timed)
        self.prepare = reset if self.alone else do_nothing
        self.timer, self.limits, self.switched = timer, limits, switched
        self.regions = self.left_out = 0
        self.timed_s = 0.0
        setting = Instruments(limits, timer, NoWatch("a warm-up is not watched"))
        self.call_s = max(min(warm_up(setting, self.call, self.prepare)), timer.tick_s)
        self.in_regions_of(block_size(setting, [self.call_s], alone=self.alone))

    def in_regions_of(self, block: int) -> None:
        """Let `block` calls share a timed region."""
        self.block = block
        self.region = self.call if block == 1 else calls_as_one(self.call, block)

    def __call__(self) -> float:
        began = self.timer.now_s()

        def over() -> bool:
            return self.timer.now_s() - began >= self.limits.max_seconds

        # one untimed region after the others' turns; `elapsed_s` would note its enqueueing time
        self.timer.several_s(self.region, 1, over, self.prepare)
        if isinstance(self.timer, CudaTimer):
            taken = self.timer.several_s(self.region, self.limits.regions, over, self.prepare)
            self.count(taken)
        else:
            taken = self.undisturbed(over)
        return statistics.median(taken) / self.block

    def undisturbed(self, over: Callable[[], bool]) -> list[float]:
        """Seconds of the regions of a visit on a processor shared with others, without the regions
        that waited for it, unless most did. A wait is as long in a short region as in a long one:
        kept, the few would move the median, and ratios with it."""
        taken: list[float] = []
        alone: list[float] = []
        while not taken or (len(taken) < self.limits.regions and not over()):
            before = self.switched()
            taken.append(self.timer.elapsed_s(self.region, self.prepare))
            alone += taken[-1:] if self.switched() == before else []
        kept = alone if 2 * len(alone) >= len(taken) else taken
        self.count(taken)
        self.left_out += len(taken) - len(kept)
        return kept

    def count(self, taken: Sequence[float]) -> None:
        """Regions of these seconds were timed."""
        self.regions += len(taken)
        self.timed_s += sum(taken)


def equal_regions(visitors: Iterable[Visitor]) -> None:
    """Let the regions of all candidates last about as long as those of the fastest, or one call.

    Disturbances then hit as many regions of one candidate as of another. Were calls of equal cost
    grouped by twos for one candidate and by threes for another, as their warm-ups happened to end,
    the longer regions would be hit more often, and their median would be longer.
    """
    listed = list(visitors)
    fastest = min(listed, key=lambda visitor: visitor.call_s)
    span_s = fastest.block * fastest.call_s
    for visitor in listed:
        if not visitor.alone:
            visitor.in_regions_of(max(1, round(span_s / visitor.call_s)))


class Timed(Protocol):
    """A visit, in seconds a call."""

    regions: int
    """Regions timed so far, over all visits."""
    timed_s: float
    """Seconds that they took."""

    def __call__(self) -> float: ...


@dataclass
class Watched:
    """The visits of a candidate, the device observed before and after each."""

    visit: Timed
    log: DisturbanceLog
    seen: list[BlockObservation] = field(default_factory=list)
    """What was seen since the last round that was kept or left out."""
    disturbances: list[str] = field(default_factory=list)
    """What disturbed these visits."""

    def __call__(self) -> float:
        regions, timed_s = self.visit.regions, self.visit.timed_s
        self.log.watch.before()
        value = self.visit()
        seen = self.log.watch.after()
        timed = self.visit.timed_s - timed_s
        found = self.log.disturbance(seen, self.visit.regions - regions, timed, timed)
        self.seen.append(seen)
        self.disturbances += [found] if found else []
        return value

    def end_round(self, *, kept: bool) -> None:
        """Count the round, unless the candidate failed before its visit, and begin a new one."""
        if self.seen and kept:
            self.log.keep(observed_together(self.seen))
        elif self.seen:
            self.log.leave_out(", ".join(dict.fromkeys(self.disturbances)))
        self.seen, self.disturbances = [], []


@dataclass
class Watching:
    """Decides after each round of watched visits whether it is left out."""

    visits: Mapping[str, Watched]
    pause: Callable[[float], None] = time.sleep

    def disturbed(self) -> bool:
        """Whether the round just taken is left out; the device then cools for a moment."""
        found = any(watched.disturbances for watched in self.visits.values())
        for watched in self.visits.values():
            watched.end_round(kept=not found)
        if found:
            self.pause(COOLING_S)
        return found


def undisturbed_too_few(logs: Mapping[str, DisturbanceLog], needed: int) -> str:
    """Why no round tells anything, with the candidates that were disturbed; "" where enough were
    undisturbed."""
    found = {name: log.too_few(needed, "round") for name, log in logs.items()}
    return "; ".join(f"{name}: {why}" for name, why in found.items() if why)


def observed_together(seen: Sequence[BlockObservation]) -> BlockObservation:
    """Several observations as one: the lowest clock, and the sum of what is counted."""
    clocks = [one.clock_MHz for one in seen if one.clock_MHz is not None]
    waits = [one.waited_s for one in seen if one.waited_s is not None]
    return BlockObservation(
        clock_MHz=min(clocks, default=None),
        slowed=tuple(dict.fromkeys(what for one in seen for what in one.slowed)),
        power_capped=any(one.power_capped for one in seen),
        switches=sum(one.switches for one in seen),
        waited_s=sum(waits) if waits else None,
        page_faults=sum(one.page_faults for one in seen),
        others="; ".join(dict.fromkeys(one.others for one in seen if one.others)),
        notes=seen[-1].notes,
    )
