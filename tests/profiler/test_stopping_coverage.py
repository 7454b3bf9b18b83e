"""Does the recorded interval hold the true median although sampling stops once the interval is
narrow?

Whole measurements on a clock that a simulated machine moves: warm-up, blocks, rules. Nothing here
depends on how fast a machine is, and the seeds are fixed. What real machines do, which no
simulation knows, benchmarks/interval_coverage.py measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import lfilter

from profiler.meters.latency import latency
from profiler.meters.sampler import LatencyLimits
from tests.fake_devices import MS, UNWATCHED, read

RUNS = 120
CALLS = 3000
"""As many as a measurement makes at most, its warm-up included."""

Times = Callable[[np.random.Generator], NDArray[np.float64]]
"""What calls in a row take, of a median of one."""


def following(kept: float, spread: float) -> Times:
    """An autoregressive process: each call keeps so much of what the one before it was off."""

    def times(chance: np.random.Generator) -> NDArray[np.float64]:
        shocks = chance.normal(size=CALLS) * np.sqrt(1 - kept * kept)
        shocks[0] = chance.normal()
        return 1 + spread * np.asarray(lfilter([1.0], [1.0, -kept], shocks))

    return times


def waves(calls: float) -> Times:
    """Five percent slower and faster in waves of so many calls."""

    def times(chance: np.random.Generator) -> NDArray[np.float64]:
        turns = chance.random() + np.arange(CALLS) / calls
        return np.asarray(1 + 0.05 * np.sin(2 * np.pi * turns) + 0.005 * chance.normal(size=CALLS))

    return times


class Moved:
    """A clock in nanoseconds that calls move."""

    def __init__(self, durations_ns: list[int]) -> None:
        self.now, self.left = 0, iter(durations_ns)

    def __call__(self) -> int:
        return self.now

    def call(self) -> None:
        self.now += next(self.left)


def held(
    times: Times, call_ms: float, limits: LatencyLimits, runs: int = RUNS
) -> tuple[float, Counter[str]]:
    """The share of recorded intervals that hold the median, and why measurements stopped."""
    holding, rules = 0, Counter[str]()
    for seed in range(runs):
        taken = times(np.random.default_rng(seed)) * call_ms * MS
        clock = Moved([round(ns) for ns in taken])
        found = read(latency(clock.call, clock=clock, watch=UNWATCHED, limits=limits))
        holding += found.details["ci_low"] <= 1e-3 * call_ms <= found.details["ci_high"]
        rules[found.details["stop_rule"]] += 1
    return holding / runs, rules


NEAR = stats.binom.ppf(0.01, RUNS, 0.95) / RUNS
"""Of intervals of 95 %, a smaller share holds the median less than once in 100."""
SHORT, LONG = 1.25, 30.0
"""Milliseconds of calls of which twenty fill a block, and of those that are one each."""


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("kept", "spread", "call_ms", "least"),
    [
        (0.0, 0.03, SHORT, NEAR),
        (0.0, 0.03, LONG, NEAR),
        (0.6, 0.03, SHORT, NEAR),
        (0.9, 0.01, SHORT, 0.85),
    ],
)
def test_the_interval_holds_the_median_as_often_as_it_says(
    kept: float, spread: float, call_ms: float, least: float
) -> None:
    """Calls that resemble the ones before them do no harm where a block is longer than that, and
    little where a block of twenty is twice as long."""
    share, rules = held(following(kept, spread), call_ms, LatencyLimits())
    assert share >= least
    assert rules["median settled"] > 0.5 * RUNS


def test_of_single_calls_that_resemble_one_another_it_would_not() -> None:
    """Blocks of one region each: as if these were independent."""
    singly = LatencyLimits(min_blocks=200, max_blocks=200)
    assert held(following(0.9, 0.01), SHORT, singly, runs=30)[0] < 0.7


def test_what_is_slower_than_the_measurement_is_in_no_interval() -> None:
    """Waves of 5000 calls: each measurement sees a part of one, and its median is that part's."""
    assert held(waves(5000), LONG, LatencyLimits())[0] < 0.2
