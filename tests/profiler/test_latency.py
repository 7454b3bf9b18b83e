"""Does sampling find a known duration, name the rule that stopped it, and bear disturbances?"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from profiler.meters.disturbances import RoundObservation
from profiler.meters.effective_sample_size import median_interval, median_ranks
from profiler.meters.latency import latency
from profiler.meters.sampler import (
    LatencyLimits,
    StoppingRules,
    is_settled,
    is_stable_noise,
    latency_summary,
    noises,
    quantile,
)
from profiler.meters.timers import tick_of
from profiler.records.reading import Reading, Unavailable
from tests.fake_devices import MS, UNWATCHED, US, Clock, ScriptedWatch, Work, read, refused

QUICK = LatencyLimits(min_seconds=0.0)
"""Thirty samples are enough, however short they are."""


def timed(
    work: Callable[[], Any], clock: Clock, limits: LatencyLimits = QUICK, **changes: Any
) -> Reading | Unavailable:
    """A reading on a fake clock that nobody watches."""
    given: dict[str, Any] = {
        "clock": clock,
        "limits": limits,
        "watch": UNWATCHED,
        "pause": lambda s: None,
    }
    return latency(work, **(given | changes))


# The median and its interval


def test_ranks_of_the_median() -> None:
    # P(Binomial(30, 1/2) <= 9) = 0.0214 <= 0.025 < P(<= 10); tables of the sign test
    assert median_ranks(5) is None
    assert median_ranks(6) == (1, 6)
    assert median_ranks(10) == (2, 9)
    assert median_ranks(30) == (10, 21)
    assert median_ranks(100) == (40, 61)
    assert median_interval([5.0, 1.0, 3.0, 2.0, 6.0, 4.0]) == (1.0, 6.0)


def test_ranks_cover_the_median() -> None:
    draw = random.Random(7)
    ranks = median_ranks(30)
    assert ranks is not None
    hits = 0
    for _ in range(2000):
        ordered = sorted(draw.expovariate(1.0) for _ in range(30))
        hits += ordered[ranks[0] - 1] <= 0.6931 <= ordered[ranks[1] - 1]
    assert 0.94 < hits / 2000 < 0.975  # 0.957 exactly for n = 30; standard error 0.0045


def test_settled_needs_both_ends() -> None:
    assert is_settled([1.0] * 30, 0.01)
    assert is_settled([1.0, 5.0, 1.0] * 100, 0.01)
    assert not is_settled([1.0, 5.0] * 150, 0.01)
    assert not is_settled([1.0] * 5, 0.01)


def test_settled_needs_samples_that_tell_enough() -> None:
    """The same values, but first all of one kind: as few independent ones would tell."""
    assert not is_settled([1.0] * 200 + [5.0] * 100, 0.01)


def test_what_tells_too_little_has_no_interval_and_a_reason() -> None:
    alike = latency_summary([1.0] * 21 + [5.0] * 9)
    assert (alike["ci_low"], alike["ci_high"]) == (None, None)
    assert alike["n_independent"] < 6
    assert alike["ci_missing"] == (
        "30 samples that resemble the ones before them tell as much as 3 independent ones: 6 are "
        "needed"
    )
    few = latency_summary([1.0] * 5)
    assert few["ci_low"] is None and few["ci_missing"] == "5 samples are too few: 6 are needed"
    known = latency_summary([1.0, 2.0] * 15)
    assert (known["n"], known["n_independent"]) == (30, 30.0)
    assert (known["ci_low"], known["ci_high"]) == (1.0, 2.0) and "ci_missing" not in known


def test_quantile_interpolates() -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert quantile([1.0], 0.2) == 1.0


# When sampling stops


def test_noise_is_the_relative_deviation_of_the_samples_so_far() -> None:
    # 1..5: mean 3, variance 10 / 4; 1..6: mean 3.5, variance 17.5 / 5
    found = noises([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert found == pytest.approx([math.sqrt(2.5) / 3, math.sqrt(3.5) / 3.5])


def test_noise_is_stable_once_it_has_stopped_changing() -> None:
    two_speeds = [1.0, 2.0] * 200
    assert not is_stable_noise(two_speeds[:68], 0.05)  # 64 spreads are not yet enough
    assert is_stable_noise(two_speeds, 0.05)
    assert not is_stable_noise([1.0 + 0.01 * n * n for n in range(400)], 0.05)  # it still grows
    assert not is_stable_noise([1.0] * 400, 0.05)  # no noise at all: the median settles


def rule_that_stops(
    samples: list[float], sampled_s: float, spent_s: float, limits: LatencyLimits
) -> str | None:
    """At the first look."""
    return StoppingRules(limits).that_stops(samples, sampled_s, spent_s)


def test_the_rules_in_their_order() -> None:
    limits = LatencyLimits()
    steady, two_speeds = [0.01] * 30, [0.01, 0.02] * 200
    assert rule_that_stops(steady, 0.4, 0.4, limits) is None
    assert rule_that_stops(steady, 0.5, 0.5, limits) == "median settled"
    assert rule_that_stops(steady[:29], 0.5, 0.5, limits) is None
    assert rule_that_stops(steady, 0.4, 15.0, limits) == "median settled"  # the rest was pauses
    assert rule_that_stops(two_speeds, 0.6, 0.6, limits) == "stable noise"
    assert rule_that_stops(two_speeds[:40], 0.6, 15.0, limits) == "time cap"
    assert rule_that_stops([1.0, 2.0] * 500, 0.1, 0.1, limits) == "sample cap"


def test_between_two_looks_lie_a_tenth_of_the_samples() -> None:
    """Of two speeds the median settles as soon as one of them is seen oftener: it is looked at
    after 30 samples, 40, ... 100, and then after 110, 121 at least, 133 at least, ..."""
    rules = StoppingRules(LatencyLimits(min_seconds=0.0, noise=0.0))
    looks = []
    for number in range(30, 200):
        due = rules.due
        assert rules.that_stops([1.0, 2.0] * (number // 2), 0.0, 0.0) is None
        looks += [number] if rules.due != due else []
    assert looks[:8] == [30, 40, 50, 60, 70, 80, 90, 100]
    assert all(b - a >= max(10, a // 10) for a, b in pairwise(looks))
    full = LatencyLimits(max_samples=35, min_seconds=0.0)
    rules = StoppingRules(full)
    assert rules.that_stops([1.0, 2.0] * 15, 0.0, 0.0) is None
    assert rules.that_stops([1.0] * 35, 0.0, 0.0) == "median settled"  # a cap is a look


def test_stable_noise_ends_nothing_before_the_median_has_an_interval() -> None:
    slow, quick = (
        [1 + 0.05 * math.sin(2 * math.pi * k / period) for k in range(600)] for period in (500, 50)
    )
    limits = LatencyLimits(noise=0.5)
    assert is_stable_noise(slow, limits.noise) and is_stable_noise(quick, limits.noise)
    assert median_interval(slow) is None
    assert rule_that_stops(quick, 0.6, 0.6, limits) == "stable noise"
    assert rule_that_stops(slow, 0.6, 0.6, limits) is None


def test_half_a_second_is_sampled_at_least() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 2 * MS), clock, LatencyLimits()))
    assert found.unit == "s"
    assert found.value == pytest.approx(2e-3, rel=1e-12)
    assert found.details["n"] == len(found.samples) == 250
    assert found.details["sampled_s"] == pytest.approx(0.5)
    assert found.details["stop_rule"] == "median settled"


def test_steady_work_needs_thirty_samples() -> None:
    clock = Clock()
    work = Work(clock, 40 * MS)
    found = read(timed(work, clock, LatencyLimits()))
    assert found.details["n"] == 30
    assert (found.details["warmup"], found.details["block"]) == (3, 1)
    assert found.details["ci_low"] == found.details["ci_high"] == found.value
    assert work.calls == 33


def test_two_speeds_stop_once_their_noise_is_stable() -> None:
    clock = Clock()
    limits = LatencyLimits(warmup_calls=3)
    found = read(timed(Work(clock, *[MS, 3 * MS] * 500), clock, limits))
    assert found.details["stop_rule"] == "stable noise"
    assert 68 < found.details["n"] < 1000


def test_two_speeds_run_into_the_sample_cap() -> None:
    clock = Clock()
    limits = LatencyLimits(max_samples=60, warmup_calls=3, min_seconds=0.0)
    found = read(timed(Work(clock, *[MS, 2 * MS] * 500), clock, limits))
    assert (found.details["stop_rule"], found.details["n"]) == ("sample cap", 60)


def test_time_cap_keeps_what_was_measured() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 1000 * MS), clock, LatencyLimits(max_seconds=2)))
    assert (found.details["stop_rule"], found.details["n"]) == ("time cap", 2)
    assert found.details["ci_low"] is None
    assert found.value == pytest.approx(1.0)


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="min_samples"):
        LatencyLimits(min_samples=10, max_samples=5)


# Warming up


def test_warm_up_ends_when_three_agree() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 90 * MS, 9 * MS, 2 * MS), clock))
    assert found.details["warmup"] == 5
    assert found.value == pytest.approx(2e-3, rel=1e-12)


def test_warm_up_has_a_cap() -> None:
    falling = [200 * MS, 170 * MS, 140 * MS, 110 * MS, 80 * MS]
    clock, limits = Clock(), LatencyLimits(warmup_calls=4, min_seconds=0.0)
    assert read(timed(Work(clock, *falling), clock, limits)).details["warmup"] == 4
    clock, limits = Clock(), LatencyLimits(warmup_seconds=0.3, min_seconds=0.0)
    assert read(timed(Work(clock, *falling), clock, limits)).details["warmup"] == 2


def test_autotune_inside_timing_extends_the_warm_up() -> None:
    """Three calls agree, the fourth compiles for a second: it is no sample."""
    clock = Clock()
    found = read(timed(Work(clock, *[2 * MS] * 3, 1000 * MS, 2 * MS), clock))
    assert found.details["warmup_extended"] == 1
    assert found.details["warmup"] == 6
    assert max(found.samples) == pytest.approx(2e-3)
    assert found.details["labels"] == []


def test_autotune_in_every_attempt_is_kept_with_a_label() -> None:
    """Each of four warm-ups is followed by a slow call: the last one stays in the samples."""
    clock = Clock()
    attempt = [2 * MS] * 3 + [1000 * MS] + [2 * MS] * 29
    found = read(timed(Work(clock, *attempt * 4, 2 * MS), clock))
    assert found.details["warmup_extended"] == 3
    assert found.details["labels"] == ["first call slow"]
    assert max(found.samples) == pytest.approx(1.0)
    assert found.value == pytest.approx(2e-3)


def test_four_times_the_median_is_no_autotune() -> None:
    clock = Clock()
    found = read(timed(Work(clock, *[2 * MS] * 3, 8 * MS, 2 * MS), clock))
    assert found.details["warmup_extended"] == 0
    assert max(found.samples) == pytest.approx(8e-3)


# Regions


def test_short_calls_share_a_region() -> None:
    clock = Clock()

    class Ticking(Clock):
        """A clock whose every reading costs 100 ns."""

        def __call__(self) -> int:
            clock.ns += 100
            return clock.ns

    ticking = Ticking()
    assert tick_of(ticking) == pytest.approx(100e-9)
    found = read(timed(Work(clock, 900), ticking))
    # a region holds 50 ticks, 5000 ns; a call and the reading after it take 1000 ns
    assert found.details["block"] == 5
    assert found.value == pytest.approx((5 * 900 + 100) / 5 * 1e-9)


def test_regions_are_long_enough_for_half_a_second_in_five_hundred_samples() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 10 * US), clock, LatencyLimits()))
    assert found.details["block"] == 100  # 0.5 s / 500 = 1 ms = 100 calls
    assert (found.details["n"], found.details["stop_rule"]) == (500, "median settled")
    assert found.value == pytest.approx(10e-6)


def test_reset_runs_before_every_call_and_is_not_timed() -> None:
    clock = Clock()
    order: list[str] = []

    def reset() -> None:
        order.append("reset")
        clock.ns += 7 * MS

    def call() -> None:
        order.append("call")
        clock.ns += 2 * MS

    found = read(timed(call, clock, reset=reset))
    assert found.value == pytest.approx(2e-3)
    assert order == ["reset", "call"] * (len(order) // 2)
    assert found.details["reset"] == "outside"


def test_trivial_reset_may_share_the_region() -> None:
    clock = Clock()
    resets: list[int] = []
    work = Work(clock, 10)
    found = read(timed(work, clock, reset=lambda: resets.append(1), reset_is_trivial=True))
    assert found.details["reset"] == "inside"
    assert found.details["block"] == 5  # the tick of this clock is 1 ns
    assert len(resets) == work.calls


# Disturbances


HOT = RoundObservation(clock_MHz=1000.0, slowed=("hardware thermal slowdown",))
FINE = RoundObservation(clock_MHz=1000.0)


def test_throttling_repeats_the_round_and_throws_it_away() -> None:
    """A round of 30 slow calls under heat, then a cool one: the slow ones are no samples."""
    clock = Clock()
    work = Work(clock, *[2 * MS] * 3, *[6 * MS] * 30, 2 * MS)
    pauses: list[float] = []
    watch = ScriptedWatch(HOT, FINE)
    found = read(timed(work, clock, watch=watch, pause=pauses.append))
    assert found.samples == pytest.approx([2e-3] * 30)
    assert (found.details["repeated_rounds"], found.details["disturbed_rounds"]) == (1, 0)
    assert found.details["labels"] == []
    assert pauses == [0.05]


def test_throttling_for_ever_is_kept_with_a_label_and_not_all_samples_are_discarded() -> None:
    clock = Clock()
    pauses: list[float] = []
    work = Work(clock, 6 * MS)
    found = read(timed(work, clock, LatencyLimits(), watch=ScriptedWatch(HOT), pause=pauses.append))
    assert found.value == pytest.approx(6e-3)
    assert math.isfinite(found.value) and found.details["n"] >= 30
    assert found.details["labels"] == ["throttled"]
    assert found.details["disturbances"] == ["hardware thermal slowdown"]
    assert found.details["repeated_rounds"] == 3  # of the first round; later ones are kept at once
    assert pauses == pytest.approx([0.05, 0.075, 0.1125])


def test_a_clock_below_three_quarters_of_its_median_is_a_disturbance() -> None:
    clock = Clock()
    seen = [RoundObservation(clock_MHz=mhz) for mhz in (1000.0, 1000.0, 1000.0, 700.0, 1000.0)]
    found = read(timed(Work(clock, 2 * MS), clock, LatencyLimits(), watch=ScriptedWatch(*seen)))
    assert found.details["repeated_rounds"] == 1
    assert found.details["lowest_clock_MHz"] == 1000.0
    assert found.details["labels"] == []


def test_a_clock_at_three_quarters_is_none() -> None:
    clock = Clock()
    seen = [RoundObservation(clock_MHz=mhz) for mhz in (1000.0, 1000.0, 750.0)]
    found = read(timed(Work(clock, 2 * MS), clock, LatencyLimits(), watch=ScriptedWatch(*seen)))
    assert found.details["repeated_rounds"] == 0


def test_power_cap_alone_is_a_label_and_nothing_is_repeated() -> None:
    clock = Clock()
    watch = ScriptedWatch(RoundObservation(clock_MHz=1000.0, power_capped=True))
    found = read(timed(Work(clock, 20 * MS), clock, watch=watch))
    assert found.details["labels"] == ["power-capped"]
    assert (found.details["repeated_rounds"], found.details["disturbed_rounds"]) == (0, 0)


def test_a_processor_taken_away_in_every_other_region_is_a_label() -> None:
    clock = Clock()
    often, seldom = (ScriptedWatch(RoundObservation(switches=n)) for n in (16, 15))
    assert read(timed(Work(clock, MS), clock, watch=often)).details["labels"] == ["preempted"]
    assert read(timed(Work(clock, MS), clock, watch=seldom)).details["labels"] == []


def test_the_time_cap_holds_for_repeated_rounds_too() -> None:
    clock = Clock()
    found = read(
        timed(Work(clock, 100 * MS), clock, LatencyLimits(max_seconds=4), watch=ScriptedWatch(HOT))
    )
    # a round of 30 takes 3 s; its repetition ends at 4 s, after 10 calls, and is kept
    assert (found.details["n"], found.details["stop_rule"]) == (10, "time cap")
    assert found.details["labels"] == ["throttled"]


# Failures, and the real clock


def test_a_failing_call_is_a_reason() -> None:
    def fail() -> None:
        raise RuntimeError("no kernel for this size\nstack")

    assert refused(latency(fail)) == "the call failed while it was timed: no kernel for this size"


def test_out_of_memory_names_the_size_that_could_not_be_had() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8 GiB"
        )

    assert refused(latency(fail)) == (
        "out of memory while it was timed: 20.00 GiB could not be had; take smaller sizes, a "
        "smaller --b first"
    )


def test_real_clock_gives_a_positive_time_and_says_the_threads() -> None:
    limits = LatencyLimits(max_samples=30, max_seconds=0.5)
    found = read(latency(lambda: torch.ones(8) + 1, limits=limits))
    assert found.value > 0
    assert found.details["p20"] <= found.value <= found.details["p80"]
    assert found.details["threads"] == torch.get_num_threads()
    assert found.details["interop_threads"] == torch.get_num_interop_threads()
    assert found.details["watched_by"] == "operating system"
