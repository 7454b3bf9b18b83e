"""Was the device itself while a round of visits was taken, and what becomes of a round where it
was not?

Each visit is watched by itself, as a round of samples of latency is, and judged by what the visits
of its own candidate have shown: candidates may keep clocks of their own. A round in which a visit
of any candidate was disturbed is taken anew, once; disturbed again, it is kept, and the candidates
that it disturbed are labelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from profiler.meters.disturbance import Judge, Seen
from profiler.meters.latency_sampling import COOLING_S


class Timed(Protocol):
    """A visit, in seconds a call."""

    regions: int
    """Timed so far, over all visits."""

    def __call__(self) -> float: ...


@dataclass
class Watched:
    """The visits of a candidate, the device looked at on both sides of each."""

    visit: Timed
    judge: Judge
    seen: list[Seen] = field(default_factory=list)
    """Since the last round that was kept or dropped."""
    counted: int = 0
    """Regions that were timed until then."""

    def __call__(self) -> float:
        self.judge.watch.before()
        value = self.visit()
        self.seen.append(self.judge.watch.after())
        return value

    def disturbance(self) -> str:
        """What held the device back in the visits of this round, "" where nothing did."""
        return ", ".join(dict.fromkeys(filter(None, map(self.judge.disturbance, self.seen))))

    def drop(self) -> None:
        """The round is taken anew."""
        self.judge.repeated += 1
        self.forget()

    def keep(self, disturbance: str) -> None:
        """The round counts, unless the candidate failed before it was visited."""
        if self.seen:
            self.judge.keep(together(self.seen), self.visit.regions - self.counted, disturbance)
        self.forget()

    def forget(self) -> None:
        """The next visit is the first of a round."""
        self.seen, self.counted = [], self.visit.regions


@dataclass
class Watching:
    """Decides after each round of watched visits whether it is taken anew."""

    visits: Mapping[str, Watched]
    pause: Callable[[float], None] = time.sleep
    anew: bool = False
    """Whether the round before was dropped."""

    def again(self) -> bool:
        """Whether the round that was just taken is dropped; the device may cool a little then."""
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


def together(seen: Sequence[Seen]) -> Seen:
    """What several looks have shown: the lowest clock, and the sum of what is counted."""
    clocks = [one.clock_MHz for one in seen if one.clock_MHz is not None]
    return Seen(
        clock_MHz=min(clocks, default=None),
        slowed=tuple(dict.fromkeys(what for one in seen for what in one.slowed)),
        power_capped=any(one.power_capped for one in seen),
        switches=sum(one.switches for one in seen),
        page_faults=sum(one.page_faults for one in seen),
        others="; ".join(dict.fromkeys(one.others for one in seen if one.others)),
        notes=seen[-1].notes,
    )
