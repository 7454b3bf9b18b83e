"""How are candidates timed in turns, round after round, and when is a round taken anew?

A visit to a candidate is short, so that the visits of a round lie close together, and gives a
median, so that the few regions in which something else happened do not count. Each visit is
watched, as a round of samples of latency is, and compared with the visits of its own candidate:
candidates may run at different clocks. A round in which the visit of any candidate was disturbed is
taken anew, once; disturbed again, the round is kept, and the candidates that were disturbed are
labelled.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from profiler.meters.disturbances import (
    DisturbanceLog,
    NoWatch,
    RoundObservation,
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

VISIT = LatencyLimits(min_samples=20, max_samples=40, min_seconds=0.02, max_seconds=0.1)
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
            taken = self.timer.several_s(self.region, self.limits.min_samples, over, self.prepare)
            self.regions += len(taken)
        else:
            taken = self.undisturbed(over)
        return statistics.median(taken) / self.block

    def undisturbed(self, over: Callable[[], bool]) -> list[float]:
        """Seconds of the regions of a visit on a processor shared with others, without the regions
        that waited for it, unless most did. A wait is as long in a short region as in a long one:
        kept, the few would move the median, and ratios with it."""
        taken: list[float] = []
        alone: list[float] = []
        while not taken or (len(taken) < self.limits.min_samples and not over()):
            before = self.switched()
            taken.append(self.timer.elapsed_s(self.region, self.prepare))
            alone += taken[-1:] if self.switched() == before else []
        kept = alone if 2 * len(alone) >= len(taken) else taken
        self.regions += len(taken)
        self.left_out += len(taken) - len(kept)
        return kept


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

    def __call__(self) -> float: ...


@dataclass
class Watched:
    """The visits of a candidate, the device observed before and after each."""

    visit: Timed
    log: DisturbanceLog
    seen: list[RoundObservation] = field(default_factory=list)
    """What was seen since the last round that was kept or dropped."""
    counted: int = 0
    """Regions that were timed until then."""

    def __call__(self) -> float:
        self.log.watch.before()
        value = self.visit()
        self.seen.append(self.log.watch.after())
        return value

    def disturbance(self) -> str:
        """What held the device back in the visits of this round; "" where nothing did."""
        return ", ".join(dict.fromkeys(filter(None, map(self.log.disturbance, self.seen))))

    def drop(self) -> None:
        """Forget the visits of this round, which is taken anew."""
        self.log.repeated += 1
        self.forget()

    def keep(self, disturbance: str) -> None:
        """Count this round, unless the candidate failed before its visit."""
        if self.seen:
            self.log.keep(
                observed_together(self.seen), self.visit.regions - self.counted, disturbance
            )
        self.forget()

    def forget(self) -> None:
        """Begin a new round."""
        self.seen, self.counted = [], self.visit.regions


@dataclass
class Watching:
    """Decides after each round of watched visits whether it is taken anew."""

    visits: Mapping[str, Watched]
    pause: Callable[[float], None] = time.sleep
    anew: bool = False
    """Whether the round before was dropped."""

    def again(self) -> bool:
        """Whether the round just taken is dropped; the device is then left to cool for a moment."""
        found = {name: watched.disturbance() for name, watched in self.visits.items()}
        self.anew = not self.anew and any(found.values())
        for name, watched in self.visits.items():
            if self.anew:
                watched.drop()
            else:
                watched.keep(found[name])
        if self.anew:
            self.pause(COOLING_S)
        return self.anew


def observed_together(seen: Sequence[RoundObservation]) -> RoundObservation:
    """Several observations as one: the lowest clock, and the sum of what is counted."""
    clocks = [one.clock_MHz for one in seen if one.clock_MHz is not None]
    return RoundObservation(
        clock_MHz=min(clocks, default=None),
        slowed=tuple(dict.fromkeys(what for one in seen for what in one.slowed)),
        power_capped=any(one.power_capped for one in seen),
        switches=sum(one.switches for one in seen),
        page_faults=sum(one.page_faults for one in seen),
        others="; ".join(dict.fromkeys(one.others for one in seen if one.others)),
        notes=seen[-1].notes,
    )
