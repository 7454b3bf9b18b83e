"""How are candidates timed in turns, round after round, and when is a round taken anew?

A visit to a candidate is a block of samples (`sampler.py`), short, so that the visits of a round
lie close together, and gives a low quantile of its regions: what others do on the processors makes
regions longer, and never shorter, so that the fastest of both candidates are alike undisturbed. No
visit is refused for waiting. Heat is judged by the visits of the own candidate, since candidates
may run at different clocks; a visit under heat is taken anew at once, and where the heat stays, its
round is left out and taken anew, so that all candidates have equally many.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from profiler.meters.disturbances import NOTICED, DisturbanceLog
from profiler.meters.intervals import LOW, quantile
from profiler.meters.latency import calls_in_turn
from profiler.meters.sampler import (
    COOLING_S,
    Disturbed,
    Instruments,
    LatencyLimits,
    block_size,
    calls_as_one,
    take_block,
    warm_up,
)
from profiler.meters.timers import Call, do_nothing
from profiler.records.grades import BUSY, QUIET

VISIT = LatencyLimits(min_blocks=1, regions=50, min_seconds=0.05, max_seconds=0.1)
"""A visit is of the regions that begin within a twentieth of a second."""

ATTEMPTS = 3
"""A visit under heat is taken so many times at most."""


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
    """Times one candidate: warmed up when made, then a low quantile per visit, in seconds per
    call."""

    def __init__(
        self, setting: Instruments, call: Call, prepare: Call = do_nothing, *, alone: bool = False
    ) -> None:
        """`prepare()` runs before every region, untimed; with `alone` a region is one call."""
        self.setting, self.call, self.prepare, self.alone = setting, call, prepare, alone
        self.log = DisturbanceLog(setting.watch, setting.limits.slow_clock)
        durations = warm_up(setting, call, prepare)
        self.call_s = max(min(durations), setting.timer.tick_s)
        self.block = block_size(setting, [self.call_s], alone=alone)
        """Calls in a region."""
        self.waiting: list[float] = []
        """For which share of each visit a thread was ready and others had its processor."""

    @property
    def grade(self) -> str:
        """`quiet` where most visits had the device to themselves."""
        return BUSY if self.waiting and statistics.median(self.waiting) > NOTICED else QUIET

    def __call__(self) -> float:
        """One visit, after an untimed call that follows the others' turns.

        Raises:
            Disturbed: the clock stayed held down.
        """
        timer = self.setting.timer
        for _ in range(ATTEMPTS):
            timer.several_s(self.call, 1, lambda: True, self.prepare)
            region = self.call if self.block == 1 else calls_as_one(self.call, self.block)
            found = take_block(
                self.setting, self.log, region, self.prepare, self.block, lambda: 0.0
            )
            if not found.heat:
                self.log.keep(found.seen)
                self.waiting.append(found.waiting)
                return quantile(found.samples, LOW)
            self.log.leave_out(found.heat)
            self.setting.pause(COOLING_S)
        raise Disturbed(found.heat)


def visitor(work: Timeable, setting: Instruments) -> Visitor:
    """Of a prepared call: a reset that is not trivial stays outside, one call a region."""
    alone = work.reset is not None and not work.trivial
    timed, restored = work.timed()
    reset = restored or do_nothing
    if alone:
        return Visitor(setting, timed, reset, alone=True)
    return Visitor(setting, timed if restored is None else calls_in_turn(reset, timed))


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
            visitor.block = max(1, round(span_s / visitor.call_s))


def undisturbed_too_few(logs: Mapping[str, DisturbanceLog], rounds: int, needed: int) -> str:
    """Why so few rounds tell nothing, with the candidates that were disturbed; "" where enough were
    undisturbed, or none was disturbed."""
    disturbed = [f"{name}: {log.by} visits" for name, log in logs.items() if log.left_out]
    if rounds >= needed or not disturbed:
        return ""
    said = "; ".join(disturbed)
    return f"{rounds} rounds were undisturbed, and {needed} are needed ({said})"
