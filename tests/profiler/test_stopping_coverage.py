"""Does the interval that a measurement records hold the true median, although sampling stops when
it is narrow and samples resemble one another?

Whole measurements on a clock that a simulated machine moves: warm-up, rounds, rules. Nothing here
depends on how fast a machine is, and the seeds are fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import lfilter

from profiler.meters import sampler
from profiler.meters.effective_sample_size import effective_number
from profiler.meters.latency import latency
from profiler.records.reading import Reading
from tests.fake_devices import MS, UNWATCHED, read

RUNS = 200
CALLS = 1100
"""As many as a measurement makes at most, its warm-up included."""

Floats = NDArray[np.float64]
Times = Callable[[np.random.Generator], Floats]
"""What calls in a row take, of a median of one."""


def following(kept: float, spread: float) -> Times:
    """An autoregressive process: each call keeps so much of what the one before it was off."""

    def times(chance: np.random.Generator) -> Floats:
        shocks = chance.normal(size=CALLS) * np.sqrt(1 - kept * kept)
        shocks[0] = chance.normal()
        return 1 + spread * np.asarray(lfilter([1.0], [1.0, -kept], shocks))

    return times


BUSY, SLOWER, SPREAD = 0.25, 0.1, 0.01
"""The part of the time in which something else runs, how much slower calls are then, and noise."""


def mixed_median() -> float:
    """Of quiet and busy calls together: where half of both lies below."""
    low, high = 1.0, 1 + SLOWER
    for _ in range(60):
        middle = (low + high) / 2
        quiet, busy = (NormalDist(m, m * SPREAD).cdf(middle) for m in (1.0, 1 + SLOWER))
        below = (1 - BUSY) * quiet + BUSY * busy < 0.5
        low, high = (middle, high) if below else (low, middle)
    return low


def two_states(calls: float) -> Times:
    """Busy for so many calls in a row on average, and quiet for three times as many."""

    def times(chance: np.random.Generator) -> Floats:
        ends = chance.random(CALLS)
        state, states = chance.random() < BUSY, np.empty(CALLS)
        for k in range(CALLS):
            states[k] = state
            state ^= ends[k] < (1 if state else BUSY / (1 - BUSY)) / calls
        slow = (1 + SLOWER * states) * (1 + SPREAD * chance.normal(size=CALLS))
        return np.asarray(slow / mixed_median())

    return times


def waves(calls: float) -> Times:
    """Five percent slower and faster in waves of so many calls."""

    def times(chance: np.random.Generator) -> Floats:
        turns = chance.random() + np.arange(CALLS) / calls
        noise = 0.005 * chance.normal(size=CALLS)
        return np.asarray(1 + 0.05 * np.sin(2 * np.pi * turns) + noise)

    return times


class Moved:
    """A clock in nanoseconds that calls move."""

    def __init__(self, durations_ns: list[int]) -> None:
        self.now, self.left = 0, iter(durations_ns)

    def __call__(self) -> int:
        return self.now

    def call(self) -> None:
        self.now += next(self.left)


def measured(times: Times, call_ms: float, seed: int) -> Reading:
    """One measurement of calls of so many milliseconds."""
    taken = times(np.random.default_rng(seed)) * call_ms * MS
    clock = Moved([round(ns) for ns in taken])
    return read(latency(clock.call, clock=clock, watch=UNWATCHED, pause=lambda s: None))


def held(times: Times, call_ms: float) -> tuple[float, float, Counter[str]]:
    """The share of recorded intervals that hold the median, the share of measurements that have
    one, and why they stopped."""
    found = [measured(times, call_ms, seed).details for seed in range(RUNS)]
    known = [d for d in found if d["ci_low"] is not None]
    median_s = 1e-3 * call_ms
    holding = sum(d["ci_low"] <= median_s <= d["ci_high"] for d in known)
    return holding / len(known), len(known) / RUNS, Counter(d["stop_rule"] for d in found)


NEAR = stats.binom.ppf(0.01, RUNS, 0.95) / RUNS
"""Of intervals of 95 %, a smaller share holds the median less than once in 100."""


SHORT, LONGER, LONG = 1.25, 4.0, 20.0
"""Milliseconds of calls of which 400, 125 and the least number, 30, fill the least time."""


def as_if_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule and the interval that take samples to be independent."""
    for number in ("effective_number", "cautious_effective_number"):
        monkeypatch.setattr(sampler, number, len)


WEAK = {
    "independent": following(0.0, 0.03),
    "0.3 kept": following(0.3, 0.03),
    "0.6 kept": following(0.6, 0.03),
    "0.6 kept, steady": following(0.6, 0.01),
    "busy for five calls": two_states(5),
}


@pytest.mark.parametrize("call_ms", [SHORT, LONGER, LONG])
@pytest.mark.parametrize("name", WEAK)
def test_the_interval_holds_the_median_as_often_as_it_says(name: str, call_ms: float) -> None:
    share, known, stopped = held(WEAK[name], call_ms)
    assert known == 1
    assert share >= NEAR
    assert set(stopped) <= {"median settled", "stable noise"}  # no cap
    assert stopped["median settled"] > 0.85 * RUNS


@pytest.mark.parametrize("call_ms", [SHORT, LONGER, LONG])
def test_as_if_independent_it_would_not(call_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_independent(monkeypatch)
    assert held(WEAK["0.6 kept"], call_ms)[0] < 0.8


@pytest.mark.parametrize(
    ("times", "call_ms", "as_if", "least"),
    [
        (following(0.9, 0.01), SHORT, 0.5, NEAR),
        (following(0.9, 0.01), LONGER, 0.5, NEAR),
        (following(0.9, 0.01), LONG, 0.5, 0.88),
        (following(0.9, 0.03), LONG, 0.5, 0.9),
        (two_states(20), SHORT, 0.55, 0.85),
        (two_states(20), LONGER, 0.55, 0.76),
        (two_states(20), LONG, 0.6, 0.82),
    ],
)
def test_it_falls_short_where_samples_resemble_one_another_for_long(
    times: Times, call_ms: float, as_if: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many samples as resemble one another, about 13 and 20, are much of what a measurement of
    30 to 400 of them sees; as if they were independent, about half of the intervals hold it."""
    assert held(times, call_ms)[0] >= least
    as_if_independent(monkeypatch)
    assert held(times, call_ms)[0] < as_if


def test_a_rule_that_trusts_the_sum_stops_where_it_came_out_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = following(0.9, 0.01)
    monkeypatch.setattr(sampler, "cautious_effective_number", effective_number)
    assert held(slow, LONGER)[0] < 0.9 < NEAR
    assert held(slow, LONG)[0] < 0.8


def test_what_is_slower_than_the_measurement_is_in_no_interval() -> None:
    """Waves of 5000 calls: each measurement sees a part of one, and its median is that part's."""
    share, _, _ = held(waves(5000), LONG)
    assert share < 0.1
