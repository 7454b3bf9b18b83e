"""Do the intervals of `compare` hold the true ratio at the stated confidence level under
disturbances?

Real visits and rounds, on a clock that a simulated machine moves: nothing here depends on how fast
a machine is, and the seeds are fixed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from profiler.compare.verdict import Rounds, Verdict, verdicts
from profiler.meters.disturbances import CpuWatch, ThreadTime
from profiler.meters.rounds import VISIT, equal_regions, visitor
from profiler.meters.sampler import Instruments
from profiler.meters.timers import ClockTimer
from profiler.run.prepare import PreparedCall

MS = 1_000_000
"""Nanoseconds."""

Advance = Callable[[int, float], int]
"""The time after so many nanoseconds of work that begins at a time."""
Machine = Callable[[random.Random, "Moved"], Advance]


class Moved:
    """A clock in nanoseconds that passes only while a simulated machine works."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.now = 0
        self.switches = 0
        """How often others were given the processor."""
        self.waited_ns = 0.0
        """For how long they had it."""
        self.advance = machine(random.Random(seed), self)

    def __call__(self) -> int:
        return self.now

    def work(self, cost_ms: float) -> PreparedCall:
        """A call of that cost."""

        def call() -> None:
            self.now = self.advance(self.now, cost_ms * MS)

        return PreparedCall(torch.nn.Identity(), call, (), None)

    def instruments(self) -> Instruments:
        """What times on this clock, and watches the machine."""
        counted = lambda: (self.switches, 0)  # noqa: E731
        threads = lambda: {1: ThreadTime(self.now, round(self.waited_ns))}  # noqa: E731
        watch = CpuWatch(lambda: None, counted, lambda: 0.0, threads)
        return Instruments(VISIT, ClockTimer(self), watch, self.pause)

    def pause(self, seconds: float) -> None:
        """The machine rests."""
        self.now += round(seconds * 1e9)


# What slows all calls alike while it lasts


def steady(chance: random.Random, clock: Moved) -> Advance:
    return lambda now, ns: now + round(ns * math.exp(chance.gauss(0, 0.02)))


def heavy_tails(chance: random.Random, clock: Moved) -> Advance:
    """One call in ten takes longer, by a Pareto law that has hardly a mean."""

    def advance(now: int, ns: float) -> int:
        longer = 0.5 * chance.paretovariate(1.1) if chance.random() < 0.1 else 0.0
        return now + round(ns * (math.exp(chance.gauss(0, 0.01)) + longer))

    return advance


def drifting(chance: random.Random, clock: Moved) -> Advance:
    """Slower by the second, and in waves of a fraction of a round to many rounds."""
    phase, period = 2 * math.pi * chance.random(), chance.uniform(50, 2000) * MS

    def advance(now: int, ns: float) -> int:
        slow = 1 + 0.05e-9 * now + 0.1 * math.sin(phase + 2 * math.pi * now / period)
        return now + round(ns * slow * math.exp(chance.gauss(0, 0.01)))

    return advance


def correlated(over_ms: float) -> Machine:
    """The speed's logarithm is an autoregressive process of 10 %, forgotten over so long."""

    def machine(chance: random.Random, clock: Moved) -> Advance:
        level, last = 0.0, 0

        def advance(now: int, ns: float) -> int:
            nonlocal level, last
            kept = math.exp((last - now) / (over_ms * MS))
            level = kept * level + math.sqrt(1 - kept * kept) * chance.gauss(0, 0.1)
            last = now
            return now + round(ns * math.exp(level))

        return advance

    return machine


# What others take


def taking_turns(own_ms: float, others_ms: float, uneven: float) -> Machine:
    """Another process has the processor after every so many milliseconds of this one's work."""

    def machine(chance: random.Random, clock: Moved) -> Advance:
        left = own_ms * MS * chance.random()

        def advance(now: int, ns: float) -> int:
            nonlocal left
            while ns > left:
                ns -= left
                clock.switches += 1
                others_ns = others_ms * MS * (1 + chance.uniform(-uneven, uneven))
                clock.waited_ns += others_ns
                now += round(left + others_ns)
                left = own_ms * MS * (1 + chance.uniform(-uneven, uneven))
            left -= ns
            return now + round(ns * (1 + chance.gauss(0, 0.003)))

        return advance

    return machine


ALIKE: dict[str, Machine] = {
    "steady": steady,
    "heavy tails": heavy_tails,
    "drifting": drifting,
    "correlated within a visit": correlated(20),
    "correlated over visits": correlated(200),
    "correlated over rounds": correlated(5000),
    "others now and then": taking_turns(20, 0.4, 0.5),
}
TURNS: dict[str, Machine] = {
    "turns of 4 ms": taking_turns(4, 4, 0.005),
    "uneven turns": taking_turns(4, 4, 0.3),
}

RUNS, ROUNDS = 240, 12
RATIO = 1.05


def compared(machine: Machine, costs_ms: tuple[float, float], seed: int) -> Verdict:
    """Two calls of known costs in turns, as `compare` takes them."""
    clock = Moved(machine, seed)
    visits = {
        name: visitor(clock.work(cost), clock.instruments())
        for name, cost in zip("ab", costs_ms, strict=True)
    }
    equal_regions(visits.values())
    made = Rounds(visits, seed)
    made.take(ROUNDS)
    (found,) = verdicts(made.values)
    return found


def held(machine: Machine, ratio: float, cost_ms: float = 4.0) -> int:
    """How many of `RUNS` intervals hold the true ratio."""
    count = 0
    for seed in range(RUNS):
        found = compared(machine, (cost_ms, cost_ms * ratio), seed)
        assert found.ci_low is not None and found.ci_high is not None
        count += found.ci_low <= ratio <= found.ci_high
    return count


FEWEST = int(stats.binom.ppf(0.01, RUNS, 0.95))
"""Of so many intervals of 95 %, fewer hold the truth less than once in 100."""


@pytest.mark.grid(6)
@pytest.mark.parametrize("name", ALIKE)
def test_intervals_hold_the_ratio_however_noise_hangs_together(name: str) -> None:
    assert held(ALIKE[name], RATIO) >= FEWEST


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("cost_ms", [0.5, 5.0])
def test_the_faster_call_is_found_while_another_process_takes_turns(
    name: str, cost_ms: float
) -> None:
    """Short regions mostly hold no wait. A wait is as long in a short region as in a long one, so
    that it bends the ratio of calls that all wait: towards 1."""
    for seed in range(RUNS // 10):
        found = compared(TURNS[name], (cost_ms, cost_ms * RATIO), seed)
        assert found.ratio is not None and found.ratio < RATIO + 0.01
        if cost_ms < 4:
            assert found.differs and found.ratio > RATIO - 0.01
        else:
            assert found.ratio > 1 or not found.differs


def test_what_stays_for_a_whole_process_is_in_the_ratio_and_in_no_interval() -> None:
    """Each call is slower or faster by some tenths of a percent, as its arrays lie in memory: what
    is compared are these calls, and a process of its own has others."""
    these = all_ = 0
    for seed in range(RUNS):
        chance = random.Random(seed)
        first, second = (0.5 * cost * math.exp(chance.gauss(0, 0.003)) for cost in (1, RATIO))
        found = compared(steady, (first, second), seed)
        assert found.ci_low is not None and found.ci_high is not None
        these += found.ci_low <= second / first <= found.ci_high
        all_ += found.ci_low <= RATIO <= found.ci_high
    assert these >= FEWEST
    assert all_ < FEWEST
