"""Does sampling find a known duration, name its stopping rule, and withstand disturbances?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from profiler.meters.disturbances import BlockObservation
from profiler.meters.intervals import (
    block_medians,
    median_interval,
    median_ranks,
    no_interval,
    over_processes,
)
from profiler.meters.latency import latency
from profiler.meters.sampler import (
    LatencyLimits,
    is_settled,
    latency_summary,
    why_stop,
)
from profiler.meters.timers import tick_of
from profiler.records.grades import grade_of, time_words
from profiler.records.reading import Reading, Unavailable, quantile
from tests.fake_devices import MS, UNWATCHED, US, Clock, ScriptedWatch, Work, read, refused

QUICK = LatencyLimits(min_seconds=0.0)
"""Twenty blocks of one region are enough, however short they are."""


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


def test_settled_needs_both_ends() -> None:
    assert is_settled([1.0] * 20, 0.01)
    assert is_settled([1.0, 5.0, 1.0] * 100, 0.01)
    assert not is_settled([1.0, 5.0] * 150, 0.01)
    assert not is_settled([1.0] * 5, 0.01)


def test_a_block_counts_once_however_many_samples_it_has() -> None:
    """Thirty samples of one block are one value, and five blocks too few."""
    found = latency_summary([1.0] * 30 + [2.0] * 4, [30, 1, 1, 1, 1])
    assert (found["n"], found["ci_low"], found["ci_high"]) == (34, None, None)
    assert found["ci_missing"] == "5 blocks are too few: 6 are needed"
    assert no_interval(1, "trial") == "1 trial is too few: 6 are needed"
    known = latency_summary([1.0, 2.0, 3.0] * 6, [3] * 6)
    assert (known["ci_low"], known["ci_high"]) == (2.0, 2.0) and "ci_missing" not in known


def test_samples_are_taken_apart_into_their_blocks() -> None:
    samples = (1.0, 2.0, 3.0, 9.0, 7.0)
    told = Reading("latency", 1.0, "s", samples, {"blocks": [3, 2]})
    assert block_medians(told) == [2.0, 8.0]
    in_turns = Reading("latency", 1.0, "s", samples, {"comparison": "a sample a round"})
    assert block_medians(in_turns) == list(samples)
    assert block_medians(Reading("energy", 1.0, "J", samples)) == list(samples)
    old = Reading("latency", 1.0, "s", (1.0,) * 10 + (5.0,) * 4)
    assert block_medians(old) == [1.0, 5.0]  # a record that does not say its blocks


def test_a_quantile_interpolates_between_samples() -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert quantile([1.0], 0.2) == 1.0


# When sampling stops


def test_the_rules_in_their_order() -> None:
    limits = LatencyLimits()
    steady, two_speeds = [0.01] * 20, [0.01, 0.02] * 10
    assert why_stop(steady, 0.5, limits) == "median settled"
    assert why_stop(steady[:19], 0.5, limits) == ""
    assert why_stop([*steady, 0.01], 0.5, limits) == ""  # it is looked at again at 30
    assert why_stop([*steady, 0.01], 15.0, limits) == "median settled"  # the cap is a look
    assert why_stop(two_speeds, 0.6, limits) == ""
    assert why_stop(two_speeds, 15.0, limits) == "time cap"
    assert why_stop([1.0, 2.0] * 50, 2.5, limits) == "block cap"


def test_half_a_second_is_sampled_at_least() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 2 * MS), clock, LatencyLimits()))
    assert found.unit == "s"
    assert found.value == pytest.approx(2e-3, rel=1e-12)
    assert found.details["blocks"] == [13] * 20  # 25 ms each: the last begins after 24 ms
    assert found.details["n"] == len(found.samples) == 260
    assert found.details["sampled_s"] == pytest.approx(0.52)
    assert found.details["stop_rule"] == "median settled"


def test_steady_work_needs_twenty_blocks() -> None:
    clock = Clock()
    work = Work(clock, 40 * MS)
    found = read(timed(work, clock, LatencyLimits()))
    assert (found.details["n"], found.details["blocks"]) == (20, [1] * 20)
    assert (found.details["warmup"], found.details["block"]) == (3, 1)
    assert found.details["ci_low"] == found.details["ci_high"] == found.value
    assert work.calls == 23


def test_two_speeds_run_into_the_block_cap() -> None:
    clock = Clock()
    limits = LatencyLimits(max_blocks=60, warmup_calls=3, min_seconds=0.0)
    found = read(timed(Work(clock, *[MS, 2 * MS] * 500), clock, limits))
    assert (found.details["stop_rule"], found.details["n"]) == ("block cap", 60)
    assert (found.details["ci_low"], found.details["ci_high"]) == (1e-3, 2e-3)


def test_time_cap_keeps_what_was_measured() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 1000 * MS), clock, LatencyLimits(max_seconds=2)))
    assert (found.details["stop_rule"], found.details["n"]) == ("time cap", 2)
    assert found.details["ci_low"] is None
    assert found.value == pytest.approx(1.0)


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="min_blocks"):
        LatencyLimits(min_blocks=10, max_blocks=5)


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
    attempt = [2 * MS] * 3 + [1000 * MS] + [2 * MS] * 4
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


def test_calls_share_regions_of_a_fifth_of_a_millisecond_however_long_a_block_is() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 10 * US), clock, LatencyLimits()))
    assert found.details["block"] == 20
    assert set(found.details["blocks"]) <= {125, 126} and len(found.details["blocks"]) == 20
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


HOT = BlockObservation(clock_MHz=1000.0, slowed=("hardware thermal slowdown",))
FINE = BlockObservation(clock_MHz=1000.0)


def test_a_disturbed_block_is_taken_anew_and_is_no_sample() -> None:
    """A block of five slow calls under heat, then cool ones."""
    clock = Clock()
    work = Work(clock, *[2 * MS] * 3, *[6 * MS] * 5, 2 * MS)
    pauses: list[float] = []
    watch = ScriptedWatch(HOT, FINE)
    found = read(timed(work, clock, LatencyLimits(), watch=watch, pause=pauses.append))
    assert max(found.samples) == pytest.approx(2e-3)
    assert len(found.details["blocks"]) == 20
    assert found.details["left_out_blocks"] == 1
    assert found.details["disturbances"] == ["hardware thermal slowdown"]
    assert found.details["labels"] == []
    assert pauses == [0.05]


def test_what_stays_hot_is_told_with_its_label() -> None:
    clock = Clock()
    pauses: list[float] = []
    work = Work(clock, 6 * MS)
    found = read(timed(work, clock, LatencyLimits(), watch=ScriptedWatch(HOT), pause=pauses.append))
    assert found.value == pytest.approx(6e-3) and grade_of(found) == "busy"
    assert found.details["labels"] == ["throttled"]
    assert time_words(found) == "≈ 6 ms (throttled)"
    assert pauses[:4] == pytest.approx([0.05, 0.075, 0.1125, 0.1125])


@pytest.mark.parametrize(("cool", "grade"), [(5, "busy"), (6, "quiet")])
def test_six_quiet_blocks_make_a_quiet_time(cool: int, grade: str) -> None:
    clock = Clock()
    seen = [*[HOT, FINE] * cool, HOT]
    work = Work(clock, 100 * MS)
    found = read(timed(work, clock, LatencyLimits(), watch=ScriptedWatch(*seen)))
    assert grade_of(found) == grade
    assert (len(found.details["blocks"]) == 6) == (grade == "quiet")


def test_a_few_long_calls_that_nothing_disturbed_have_a_median_without_interval() -> None:
    clock = Clock()
    found = read(timed(Work(clock, 1000 * MS), clock, LatencyLimits(max_seconds=3)))
    assert found.value == pytest.approx(1.0) and found.details["ci_low"] is None
    assert found.details["ci_missing"] == "3 blocks are too few: 6 are needed"


def test_a_clock_below_three_quarters_of_its_median_is_a_disturbance() -> None:
    clock = Clock()
    seen = [BlockObservation(clock_MHz=mhz) for mhz in (1000.0, 1000.0, 1000.0, 700.0, 1000.0)]
    found = read(timed(Work(clock, 2 * MS), clock, LatencyLimits(), watch=ScriptedWatch(*seen)))
    assert found.details["left_out_blocks"] == 1
    assert found.details["disturbances"] == ["clock at 700 of 1000 MHz"]
    assert found.details["lowest_clock_MHz"] == 1000.0
    assert found.details["labels"] == []


def test_a_clock_at_three_quarters_is_none() -> None:
    clock = Clock()
    seen = [BlockObservation(clock_MHz=mhz) for mhz in (1000.0, 1000.0, 750.0)]
    found = read(timed(Work(clock, 2 * MS), clock, LatencyLimits(), watch=ScriptedWatch(*seen)))
    assert found.details["left_out_blocks"] == 0


def test_power_cap_alone_is_a_label_and_nothing_is_left_out() -> None:
    clock = Clock()
    watch = ScriptedWatch(BlockObservation(clock_MHz=1000.0, power_capped=True))
    found = read(timed(Work(clock, 20 * MS), clock, watch=watch))
    assert found.details["labels"] == ["power-capped"]
    assert found.details["left_out_blocks"] == 0


class Shared(ScriptedWatch):
    """A processor of which others get one slice in so many regions."""

    threads: tuple[int, ...] = ()
    """The threads that work."""
    asleep = (0, 1)
    """Nanoseconds neither on a processor nor ready to run, after one call in so many."""

    def __init__(self, clock: Clock, call: Work, every: int, slice_ms: int = 4) -> None:
        super().__init__()
        self.time, self.call, self.every, self.slice_ns = clock, call, every, slice_ms * MS
        self.waited_ns = self.ran_ns = 0

    def __call__(self) -> None:
        """The call, after a wait where it is its turn."""
        if self.call.calls % self.every == 0:
            self.time.ns += self.slice_ns
            self.waited_ns += self.slice_ns
        before = self.time.ns
        self.call()
        self.ran_ns += self.time.ns - before
        asleep_ns, calls = self.asleep
        self.time.ns += asleep_ns if self.call.calls % calls == 0 else 0

    def before(self) -> None:
        self.waited_ns = self.ran_ns = 0

    def after(self) -> BlockObservation:
        return BlockObservation(
            waited_s=self.waited_ns * 1e-9, processor_s=self.ran_ns * 1e-9, threads=self.threads
        )


def shared(
    durations: Sequence[int],
    every: int,
    limits: LatencyLimits | None = None,
    *,
    threads: tuple[int, ...] = (),
    asleep: tuple[int, int] = (0, 1),
) -> Reading:
    """The time of calls that share their processor, in nanoseconds one by one."""
    clock = Clock()
    watch = Shared(clock, Work(clock, *durations), every)
    watch.threads, watch.asleep = threads, asleep
    return read(timed(watch, clock, limits or LatencyLimits(), watch=watch))


def test_a_call_of_200_us_that_waits_for_4_ms_every_third_time_is_said_to_take_200_us() -> None:
    found = shared([200 * US + k % 11 * US for k in range(10**5)], every=3)
    assert grade_of(found) == "busy" and found.details["labels"] == ["preempted"]
    assert found.value == pytest.approx(201e-6, abs=1e-6)
    assert found.details["ci_low"] == pytest.approx(150e-6)
    assert found.details["ci_high"] >= found.value
    assert found.details["waiting"][0] == pytest.approx(0.87, abs=0.05)


@pytest.mark.parametrize(
    ("threads", "asleep", "expected"),
    [
        ((7,), (0, 1), (15e-3, 20e-3, 20e-3)),
        ((7,), (5 * MS, 5), (15e-3, 20e-3, 20e-3)),  # the system stops a thread now and then
        ((7,), (5 * MS, 1), (15e-3, 29e-3, 29e-3)),  # the call waits for something else, too
        ((7, 11), (0, 1), (15e-3, 24e-3, 24e-3)),  # another thread may be the one that all wait for
    ],
)
def test_a_long_call_whose_every_run_waits_takes_what_one_thread_was_on_its_processor(
    threads: tuple[int, ...], asleep: tuple[int, int], expected: tuple[float, ...]
) -> None:
    found = shared([20 * MS], 1, threads=threads, asleep=asleep)
    low, high = found.details["ci_low"], found.details["ci_high"]
    assert (low, found.value, high) == pytest.approx(expected)
    joined = over_processes({0: found, 1: found})
    assert (joined.details["ci_low"], joined.value) == pytest.approx(expected[:2])


def test_a_time_of_one_sample_is_an_estimate_without_an_interval() -> None:
    clock = Clock()
    limits = LatencyLimits(max_seconds=1)
    found = read(
        timed(Work(clock, 3000 * MS), clock, limits, watch=ScriptedWatch(BlockObservation()))
    )
    assert (len(found.samples), grade_of(found)) == (1, "busy")
    assert time_words(found) == "≈ 3 s (1 sample)"
    assert (found.details["ci_low"], found.details["ci_high"]) == (None, None)
    joined = over_processes(dict.fromkeys(range(3), found))
    assert (grade_of(joined), joined.details["labels"], joined.details["n"]) == ("quiet", [], 3)


def test_a_processor_time_of_zero_is_no_lower_end() -> None:
    """The system counts in steps: a thread may run for less than a step."""
    clock = Clock()
    watch = ScriptedWatch(BlockObservation(waited_s=1.0, processor_s=0.0))
    found = read(timed(Work(clock, 20 * MS), clock, LatencyLimits(), watch=watch))
    assert grade_of(found) == "busy"
    assert found.details["ci_low"] == pytest.approx(15e-3)
    assert found.details["processor_s"] is None


@pytest.mark.parametrize(("call_ms", "grade"), [(40, "busy"), (500, "quiet")])
def test_a_wait_that_a_long_call_does_not_notice_is_no_disturbance(
    call_ms: int, grade: str
) -> None:
    """One slice of 4 ms is a tenth of 40 ms, and less than a hundredth of 500 ms."""
    found = shared([call_ms * MS], every=1)
    assert grade_of(found) == grade


def test_switches_alone_are_no_disturbance() -> None:
    clock = Clock()
    watch = ScriptedWatch(BlockObservation(switches=1000, waited_s=1e-3))
    found = read(timed(Work(clock, MS), clock, LatencyLimits(), watch=watch))
    assert grade_of(found) == "quiet" and found.details["labels"] == []


def test_a_busy_device_is_not_waited_for() -> None:
    """Of 15 s that sampling may take, one shows that no block will be quiet."""
    found = shared([200 * US], every=3)
    assert found.details["stop_rule"] == "busy device"
    assert found.details["sampled_s"] == pytest.approx(1, rel=0.05)
    few = shared([200 * US], 3, LatencyLimits(max_seconds=0.5))
    assert (few.details["stop_rule"], grade_of(few)) == ("time cap", "busy")


def test_the_time_cap_holds_for_disturbed_blocks_too() -> None:
    clock = Clock()
    limits = LatencyLimits(max_seconds=4)
    found = read(timed(Work(clock, 100 * MS), clock, limits, watch=ScriptedWatch(HOT)))
    assert found.details["n"] == 40
    assert clock.ns == 4300 * MS  # three calls of warm-up


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
    limits = LatencyLimits(max_blocks=30, max_seconds=0.5)
    found = read(latency(lambda: torch.ones(8) + 1, limits=limits))
    assert found.value > 0
    assert found.details["p20"] <= found.value <= found.details["p80"]
    assert found.details["threads"] == torch.get_num_threads()
    assert found.details["interop_threads"] == torch.get_num_interop_threads()
    assert found.details["watched_by"] == "operating system"


@pytest.mark.parametrize(
    ("several_us", "every", "slice_ms", "words", "low_us"),
    [
        (110, 1, 60, "≈ 130 µs (busy, one thread)", 65),  # each call waits
        (210, 20, 4, "≈ 130 µs (busy, one thread)", 65),  # one thread is faster
        (110, 20, 4, "≈ 110 µs (busy)", 82.5),
    ],
)
def test_a_disturbed_call_is_timed_with_one_thread_where_several_wait_for_one_another(
    several_us: int, every: int, slice_ms: int, words: str, low_us: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two threads of which one waits for a slice in one of `every` calls, and one that does not
    wait and takes 130 µs."""
    clock, threads = Clock(), [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: threads.__setitem__(0, n))
    spinning = Shared(clock, Work(clock, several_us * US), every=every, slice_ms=slice_ms)
    single = Work(clock, 130 * US)

    def call() -> None:
        if threads[0] == 2:
            spinning()
            return
        single()
        spinning.ran_ns += 130 * US

    found = read(timed(call, clock, LatencyLimits.within(1), watch=spinning))
    assert threads == [2]
    assert time_words(found) == words
    assert found.details["ci_low"] == pytest.approx(low_us * 1e-6)
