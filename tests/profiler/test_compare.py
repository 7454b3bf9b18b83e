"""Does `compare` name candidates, measure them in turns, and keep every record?

What decides pass or fail is told by fake clocks and fake visits; real calls show only that all fits
together.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from profiler.compare.in_turns import (
    InProcess,
    Run,
    candidates,
    latency_reading,
    measured,
)
from profiler.compare.records import compare_files
from profiler.compare.report import document, verdict_words
from profiler.compare.rows import Comparison, exact
from profiler.compare.run import in_fresh_process, run
from profiler.compare.verdict import Rounds, Verdict, rounds_needed
from profiler.meters.disturbances import BlockObservation, NvmlWatch, Watch
from profiler.meters.energy.estimate import PairedEnergy
from profiler.meters.rounds import VISIT, Visitor, equal_regions, visitor
from profiler.meters.sampler import Instruments
from profiler.meters.timers import Call, ClockTimer, CudaTimer, do_nothing
from profiler.records.reading import Measured, MeasureError, Reading, Unavailable
from profiler.records.store import read
from profiler.run.plan import Plan
from profiler.run.prepare import PreparedCall, prepare as prepare_work
from profiler.run.subject import named
from tests.fake_devices import UNWATCHED, US, Gpu, ScriptedWatch
from tests.printing import printed
from tests.profiler.test_latency_disturbance import Board
from tests.stand_ins import Instead
from tests.user_mixers import written

GIVEN = {"d": (4,), "l": (3,), "n": (2,)}


def asked(*words: str, **fields: Any) -> Plan:
    """`mixer` or `mixer:implementation`, on a CPU."""
    return Plan([named(word) for word in words], **{"given": GIVEN, "device": "cpu"} | fields)


# Which candidates


def test_candidates_are_those_named_or_all_of_a_mixer() -> None:
    assert list(candidates(asked("me:fft", "self-attention"))) == [
        "me fft", "self-attention explicit", "self-attention sdpa",
    ]  # fmt: skip
    assert list(candidates(asked("we", "me", implementation="fft"))) == ["we fft", "me fft"]
    assert list(candidates(asked("me:fft", dtype="fp32,fp64"))) == ["me fft fp32", "me fft fp64"]


def test_one_twice_is_compared_with_itself() -> None:
    assert list(candidates(asked("me:fft", "me:fft"))) == ["me fft", "me fft #2"]


def test_a_module_that_is_not_its_equations_is_left_out(tmp_path: Path) -> None:
    wrong = written(tmp_path, "compare-times-3", ("return s @", "return 3 * s @"))
    told: list[str] = []
    assert list(candidates(asked("me", wrong), told.append)) == ["me toeplitz", "me fft"]
    (said,) = told
    assert said.startswith("the module Window does not compute compare-times-3: ")
    with pytest.raises(MeasureError, match="does not compute compare-times-3"):
        candidates(asked("me:fft", wrong))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (asked("me:fft"), "compare needs two mixers, implementations or dtypes, and got 1: me fft"),
        (asked("me", given=GIVEN | {"l": (3, 5)}), "--l has several"),
        (asked("me:ftf", "me"), "did you mean 'fft'"),
    ],
)
def test_what_cannot_be_compared_is_said(wanted: Plan, said: str) -> None:
    with pytest.raises(MeasureError, match=said):
        candidates(wanted)


# A visit


def visiting(clock: FakeClock, work: PreparedCall, watch: Watch = UNWATCHED) -> Visitor:
    """Visits to a call on that clock."""
    return visitor(work, Instruments(VISIT, ClockTimer(clock), watch, lambda seconds: None))


class ToldTimer:
    """A visit is five regions that each take what is told for its number."""

    tick_s = 1e-9
    region_s = 0.2e-3
    name = "told"

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.cost, self.visits = cost, 0

    def now_s(self) -> float:
        """No time passes."""
        return 0.0

    def elapsed_s(self, work: Call, prepare: Call = do_nothing) -> float:
        """Of a call of the warm-up."""
        return 1e-3

    def several_s(
        self, work: Call, count: int, stop: Callable[[], bool], prepare: Call = do_nothing
    ) -> list[float]:
        """Of a visit, unless one region is asked for, which is the untimed one."""
        if count == 1:
            return [0.0]
        self.visits += 1
        return [self.cost(self.visits)] * 5

    def facts(self, samples: int) -> dict[str, Any]:
        """None."""
        return {}


class FakeClock:
    """Nanoseconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def worked(clock: FakeClock, durations_ns: Callable[[int], int], **fields: Any) -> PreparedCall:
    """A call that takes as long as a test says, by the number of the call."""
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock.now += durations_ns(calls[0])

    return PreparedCall(torch.nn.Identity(), call, (), **{"reset": None} | fields)


def test_a_visit_is_the_median_of_its_regions_without_the_first() -> None:
    clock = FakeClock()
    slow = [0]

    def duration(call: int) -> int:
        slow[0] += 1
        return 90_000_000 if slow[0] == 1 else 10_000_000

    visit = visiting(clock, worked(clock, duration))
    assert visit.block == 1
    slow[0] = 0
    assert visit() == pytest.approx(0.01)


def test_a_visit_to_a_call_longer_than_a_time_slice_is_without_its_waiting() -> None:
    """One thread is on its processor for five sixths of each of three regions."""
    clock = FakeClock()
    seen = BlockObservation(waited_s=12e-3, processor_s=60e-3, threads=(7,))
    visit = visiting(clock, worked(clock, lambda call: 24_000_000), ScriptedWatch(seen))
    assert visit() == pytest.approx(20e-3)


def test_short_calls_share_a_region_and_long_ones_are_timed_once() -> None:
    clock = FakeClock()
    visit = visiting(clock, worked(clock, lambda call: 1_000))
    assert visit.block == 200  # regions of 0.2 ms
    assert visit() == pytest.approx(1e-6)
    for call_s, calls in ((0.9, 2), (2.0, 1)):  # one that is not timed, if short, and one region
        duration = round(call_s * 1e9)
        long = visiting(clock, worked(clock, partial(max, duration)))
        before = clock.now
        assert long() == pytest.approx(call_s)
        assert clock.now - before == calls * duration


def test_regions_of_all_candidates_are_about_as_long() -> None:
    """Of 0.1 ms, as one warm-up may find it, and 0.099: by threes, not by twos and by threes."""
    clock = FakeClock()

    def of(*durations_us: int, **fields: Any) -> Visitor:
        waiting = list(durations_us)

        def duration(call: int) -> int:
            return 1000 * (waiting.pop(0) if len(waiting) > 1 else waiting[0])

        return visiting(clock, worked(clock, duration, **fields))

    alike = [of(100), of(99), of(180, 101)]
    assert [v.block for v in alike] == [2, 3, 2]  # of 0.2 ms, each by itself
    equal_regions(alike)
    assert [v.block for v in alike] == [3, 3, 3]
    others = [of(10), of(35), of(700), of(9000)]
    equal_regions(others)
    assert [v.block for v in others] == [20, 6, 1, 1]
    alone = of(10, reset=lambda: None, trivial=False)
    equal_regions([alone, of(10)])
    assert alone.block == 1


@pytest.mark.parametrize(("device_us", "bound"), [(25, True), (50, False), (5000, False)])
def test_a_gpu_that_waits_for_launches_is_told_from_one_that_works(
    device_us: int, bound: bool
) -> None:
    """20 µs of the host each: by calls, not by regions of many."""
    gpu = Gpu()
    call = gpu.kernels(device_ns=device_us * US)
    work = PreparedCall(torch.nn.Identity(), call, (), None)
    watch = ScriptedWatch(CALM)
    visit = visitor(work, Instruments(VISIT, CudaTimer(gpu), watch, lambda seconds: None))
    assert visit() == pytest.approx(max(device_us, 20) * 1e-6)
    assert (visit.block > 1) == (device_us < 1000)
    rounds = Rounds({"a": visit})
    rounds.once()
    details = latency_reading("a", rounds, visit, "run", launches=1).details
    assert details["enqueue_s"] == pytest.approx(20e-6)
    assert details.get("launch_bound", False) is bound
    assert ("launch-bound" in details["labels"]) is bound


def test_what_goes_before_a_call_is_timed_only_where_it_is_nothing_much() -> None:
    clock = FakeClock()

    def reset() -> None:
        clock.now += 5_000_000

    outside = worked(clock, lambda call: 10_000_000, reset=reset, trivial=False)
    assert visiting(clock, outside)() == pytest.approx(0.010)
    within = worked(clock, lambda call: 10_000_000, reset=reset, trivial=True)
    assert visiting(clock, within)() == pytest.approx(0.015)


# A run


@pytest.fixture
def costs(instead: Instead) -> dict[str, Callable[[int], float]]:
    """Implementation -> the seconds of its visit number k, in place of the clock."""
    told: dict[str, Callable[[int], float]] = {}

    def fake(work: PreparedCall, setting: Instruments) -> Visitor:
        timer = ToldTimer(told[type(work.module).__name__])
        return Visitor(replace(setting, timer=timer), do_nothing, alone=True)

    instead(visitor=fake, peak_of_call=lambda work, device: Reading("peak_memory", 8, "B", (8.0,)))
    return told


def attention(rounds: int = 8, **fields: Any) -> Run:
    return Run(candidates(asked("self-attention")), rounds, **fields)


def modules() -> dict[str, str]:
    """Implementation -> the name of its class."""
    found = candidates(asked("self-attention"))
    return {r.implementation.name: r.implementation.module.__name__ for r in found.values()}


def test_a_run_is_compared_and_kept(tmp_path: Path, costs: dict[str, Any]) -> None:
    costs[modules()["explicit"]] = lambda k: 2e-3 * (1 + 0.01 * k)
    costs[modules()["sdpa"]] = lambda k: 1e-3 * (1 + 0.01 * k)
    path = tmp_path / "rounds.jsonl"
    found = run(attention(seed=3), path)
    latency, memory = found.rows
    assert latency.verdict.differs
    assert latency.verdict.ratio == pytest.approx(0.5)
    assert memory.verdict.ratio == 1.0 and not memory.verdict.differs
    assert found.failures == () and "NVML" in found.notes[0]
    records, problems = read(path)
    assert problems == []
    assert [record.implementation for record in records] == ["explicit", "sdpa"]
    details = [record.readings["latency"].details for record in records]
    assert details[0]["comparison"] == details[1]["comparison"]
    assert details[0]["order_seed"] == 3
    places = zip(details[0]["places"], details[1]["places"], strict=True)
    assert {frozenset(each) for each in places} == {frozenset({0, 1})}
    assert all(len(record.readings["latency"].samples) == 8 for record in records)
    assert all(record.counts["dispatch"]["complete"] for record in records)
    assert all(record.environment["torch"] == torch.__version__ for record in records)


def test_too_few_rounds_are_refused_before_anything_is_measured(
    tmp_path: Path, instead: Instead
) -> None:
    instead(prepare=lambda request: pytest.fail("it was measured"))
    with pytest.raises(MeasureError, match=r"5 rounds are too few to show a difference.*6 rounds"):
        run(attention(rounds=5), tmp_path / "rounds.jsonl")
    assert not (tmp_path / "rounds.jsonl").exists()


def test_one_that_cannot_be_built_leaves_the_others(
    costs: dict[str, Any], instead: Instead
) -> None:
    costs |= dict.fromkeys(modules().values(), lambda k: 1e-3)
    real = prepare_work
    seen = [0]

    def prepare(request: Any) -> PreparedCall:
        seen[0] += 1
        if seen[0] == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(request)

    instead(prepare=prepare)
    with pytest.raises(
        MeasureError, match=r"fewer than two of the compared modules.*out of memory"
    ):
        run(attention())
    seen[0] = 0
    three = Run(candidates(asked("self-attention:explicit", "self-attention")), 8)
    found = run(three)
    assert [r.verdict.refused[:40] for r in found.rows if r.quantity == "latency"] == [
        "self-attention explicit: out of memory: ", "self-attention explicit: out of memory: ", "",
    ]  # fmt: skip
    assert len(found.failures) == 1 and len(found.records) == 2


def test_one_that_fails_under_way_leaves_the_others(tmp_path: Path, costs: dict[str, Any]) -> None:
    def failing(k: int) -> float:
        if k == 5:
            raise RuntimeError("device-side assert")
        return 1e-3

    costs[modules()["explicit"]] = failing
    costs[modules()["sdpa"]] = lambda k: 1e-3
    path = tmp_path / "rounds.jsonl"
    found = run(attention(), path)
    assert found.rows[0].verdict.refused.startswith("self-attention explicit: the call failed")
    lengths = [len(record.readings["latency"].samples) for record in read(path)[0]]
    assert lengths == [2, 8]
    places = [record.readings["latency"].details["places"] for record in read(path)[0]]
    assert [len(each) for each in places] == [2, 8]


def test_an_interruption_keeps_the_whole_rounds(tmp_path: Path, costs: dict[str, Any]) -> None:
    def interrupted(k: int) -> float:
        if k == 15:  # in the eighth round
            raise KeyboardInterrupt
        return 1e-3

    costs[modules()["explicit"]] = interrupted
    costs[modules()["sdpa"]] = lambda k: 2e-3
    path = tmp_path / "rounds.jsonl"
    found = run(attention(rounds=20), path)
    assert found.failures == ("interrupted after 7 of 20 rounds",)
    assert [len(record.readings["latency"].samples) for record in read(path)[0]] == [7, 7]
    assert found.rows[0].verdict.pairs == 7
    (refused,) = {row.verdict.refused for row in found.rows if row.quantity == "peak_memory"}
    assert "interrupted before" in refused


def test_an_interruption_after_the_rounds_keeps_them(
    tmp_path: Path, costs: dict[str, Any], instead: Instead
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    costs |= dict.fromkeys(modules().values(), lambda k: 1e-3)
    instead(energies_in_turn=interrupted)
    found = run(attention(), tmp_path / "rounds.jsonl")
    assert found.failures == ("interrupted after the last round: no memory and no energy",)
    assert found.rows[0].verdict.pairs == 8
    assert len(read(tmp_path / "rounds.jsonl")[0]) == 2


def test_one_that_fails_while_it_warms_up_is_told(instead: Instead) -> None:
    def failing(work: PreparedCall, setting: Instruments) -> Any:
        raise RuntimeError("CUDA out of memory")

    instead(visitor=failing)
    with pytest.raises(
        MeasureError, match=r"fewer than two of the compared modules .* out of memory"
    ):
        run(attention())


@pytest.mark.parametrize(("shared", "said"), [
    (0.0, "second takes more"), (0.3, "no difference shown"), (1.2, "not compared"),
])  # fmt: skip
def test_energy_takes_turns_too(
    shared: float, said: str, costs: dict[str, Any], instead: Instead
) -> None:
    """Trials of 1 and 2 J a call, which may share an error: 1.3 J and 2 - 0.6 J lie apart, but not
    the ratio 2, of an interval from 2 x 0.7^2."""
    costs |= dict.fromkeys(modules().values(), lambda k: 1e-3)
    told: dict[str, Any] = {}

    def in_turn(calls: Any, **fields: Any) -> PairedEnergy:
        told.update(fields, names=list(calls))
        trials = {name: (1.0 + k, 1.01 + k, 0.99 + k) for k, name in enumerate(calls)}
        details = {"common_error": shared, "labels": ["bursty load"]}
        readings = {n: Reading("energy", sum(t) / 3, "J", t, details) for n, t in trials.items()}
        return PairedEnergy(readings, fields["limits"].confidence)

    instead(energies_in_turn=in_turn)
    found = run(attention(seed=5))
    (row,) = (row for row in found.rows if row.quantity == "energy")
    assert verdict_words(row) == said
    assert shared > 1 or row.verdict.ratio == pytest.approx(2.0, rel=1e-3)
    page = printed(document(found), "rich")
    assert "is bursty load" in page and "power came in bursts" in page
    assert told["names"] == ["self-attention explicit", "self-attention sdpa"]
    assert told["limits"].trials % 2 == 0 and told["limits"].seed == 5
    assert all("energy" in record.readings for record in found.records)
    assert run(attention(energy=False)).notes == ("energy: energy was not asked for (--energy)",)


# What the device did meanwhile

CALM, HOT = (
    BlockObservation(clock_MHz=1900),
    BlockObservation(clock_MHz=1900, slowed=("hardware thermal slowdown",)),
)


def watched(costs: dict[str, Any], *seen: BlockObservation) -> Comparison:
    """Eight rounds of two candidates, four visits each, under a watch that sees this, in turn."""
    costs |= dict.fromkeys(modules().values(), lambda k: 1e-3 * (1 + 0.01 * k))
    return run(attention(watch=ScriptedWatch(*seen), pause=lambda seconds: None))


def told_of(found: Comparison, name: str) -> list[Any]:
    return [record.readings["latency"].details[name] for record in found.records]


def test_a_disturbed_visit_is_taken_anew(costs: dict[str, Any]) -> None:
    """The third visit of all is disturbed, and nothing after it."""
    found = watched(costs, *[CALM] * 2, HOT, CALM)
    assert sorted(told_of(found, "left_out_blocks")) == [0, 1]
    assert told_of(found, "labels") == [[], []]
    (disturbed,) = (k for k, left in enumerate(told_of(found, "left_out_blocks")) if left)
    first = [record.readings["latency"].samples[0] for record in found.records]
    # of one candidate the round is visits 1 and 2, of the other 1 and 3
    assert first[disturbed] == pytest.approx(1.02e-3)
    assert first[1 - disturbed] == pytest.approx(1.015e-3)
    assert all(len(record.readings["latency"].samples) == 8 for record in found.records)
    said = printed(document(found), "rich", width=200)
    assert "1 visit discarded and repeated, because " in said
    assert "was disturbed (hardware thermal slowdown)" in said


def test_a_round_with_a_visit_that_stays_disturbed_is_left_out(costs: dict[str, Any]) -> None:
    """Three attempts of the first visit of round 2, which begins anew with the other visits."""
    found = watched(costs, *[CALM] * 4, *[HOT] * 3, CALM)
    assert sorted(told_of(found, "left_out_blocks")) == [0, 3]
    assert found.rows[0].verdict.pairs == 8


def test_a_device_that_stays_disturbed_gives_no_median_and_no_ratio(costs: dict[str, Any]) -> None:
    """Sixteen rounds are tried for eight."""
    found = watched(costs, HOT)
    row = found.rows[0]
    assert (row.quantity, row.first, row.second, row.verdict.ratio) == ("latency", None, None, None)
    assert "0 rounds were undisturbed, and 6 are needed" in row.verdict.refused
    assert "hardware thermal slowdown in " in row.verdict.refused
    assert all("latency" not in record.readings for record in found.records)
    assert all("0 rounds were" in record.reasons["latency"] for record in found.records)
    assert "not compared" in printed(document(found), "rich", width=200)


def test_as_many_undisturbed_rounds_as_can_show_something_are_compared(
    costs: dict[str, Any],
) -> None:
    """Of sixteen tried, ten begin with a visit that is disturbed three times."""
    found = watched(costs, *[HOT] * 30, CALM)
    assert found.rows[0].verdict.pairs == 6 and found.rows[0].verdict.ratio is not None
    fewer = watched(costs, *[HOT] * 33, CALM)
    assert fewer.rows[0].verdict.ratio is None


def on_a_board(costs: dict[str, Any], moved: dict[int, int]) -> Comparison:
    """A run on a board of which a counter moves in some visits of `explicit`: visit -> counter."""
    board = Board()

    def hot(k: int) -> float:
        if k in moved:
            board.counters[moved[k]] += 1
        return 2e-3

    costs |= {modules()["explicit"]: hot, modules()["sdpa"]: lambda k: 1e-3}
    watch = NvmlWatch(board, "handle")
    return run(attention(watch=watch, pause=lambda seconds: None))


def test_a_thermal_counter_that_moves_in_a_visit_drops_the_visit(costs: dict[str, Any]) -> None:
    once = on_a_board(costs, {3: 75})
    assert (told_of(once, "left_out_blocks"), told_of(once, "labels")) == ([1, 0], [[], []])
    twice = on_a_board(costs, {3: 75, 6: 270})
    assert told_of(twice, "left_out_blocks") == [2, 0]
    assert told_of(twice, "disturbances") == [["a throttling counter moved"], []]  # explicit, sdpa
    assert told_of(twice, "labels") == [[], []]


def test_a_power_cap_is_labelled_and_leaves_nothing_out(costs: dict[str, Any]) -> None:
    found = on_a_board(costs, {3: 74})
    assert told_of(found, "left_out_blocks") == [0, 0]
    assert told_of(found, "labels") == [["power-capped"], []]


def test_candidates_are_judged_by_clocks_of_their_own() -> None:
    """One that draws so much power that its clock is 70 % of the other's is not disturbed; one
    whose own clock falls to 70 % is."""
    one = seeing(*[2000] * 6), seeing(*[1400] * 6)
    for _ in range(3):
        assert [each() for each in one] == pytest.approx([0.01, 0.01])
    assert one[1].log.details()["clock_MHz"] == 1400
    falling = seeing(2000, 2000, 2000, 1400, 2000)
    for _ in range(4):
        falling()
    assert falling.log.left_out == ["clock at 1400 of 2000 MHz"]


def seeing(*clocks_MHz: int) -> Visitor:
    """A call of 10 ms whose visits see these clocks."""
    clock = FakeClock()
    watch = ScriptedWatch(*(BlockObservation(clock_MHz=MHz) for MHz in clocks_MHz))
    return visiting(clock, worked(clock, lambda call: 10_000_000), watch)


def test_a_visit_that_waits_for_a_processor_is_kept(costs: dict[str, Any]) -> None:
    waiting = watched(costs, BlockObservation(switches=3, waited_s=0.02))
    assert told_of(waiting, "left_out_blocks") == [0, 0]
    assert told_of(waiting, "involuntary_switches") == [3 * 16, 3 * 16]
    assert told_of(waiting, "watched_by") == ["script", "script"]
    assert waiting.rows[0].verdict.refused == ""


def test_where_others_have_the_processors_all_are_timed_on_one_thread(
    costs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads wait for the one whose processor others hold: all processes take one, as the
    first one found, and torch has its threads back after."""
    on: list[int] = []

    def seen(k: int) -> float:
        on.append(torch.get_num_threads())
        return 1e-3

    on_now = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: on_now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: on_now.__setitem__(0, number))
    for waited, threads in ((0.02, 1), (0.0, 4)):
        costs |= dict.fromkeys(modules().values(), seen)
        on.clear()
        found = measured(attention(watch=ScriptedWatch(BlockObservation(waited_s=waited))))
        assert (on[-1], found.threads, on_now) == (threads, threads, [4])
        assert any("are timed on one thread" in note for note in found.notes) is (threads == 1)
        grades = {r.readings["latency"].details["grade"] for r in found.records.values()}
        assert grades == {"busy" if waited else "quiet"}


def test_bytes_are_compared_exactly() -> None:
    def held(value: float, **details: Any) -> Reading:
        return Reading("peak_memory", value, "B", (value,), details)

    def verdict(first: Measured, second: Measured) -> Verdict:
        return exact("peak_memory", "a", "b", first, second).verdict

    assert not verdict(held(4), held(4)).differs
    assert verdict(held(4), held(5)).differs
    assert "b: no counter" in verdict(held(4), Unavailable("no counter")).refused
    assert "different numbers of bytes" in verdict(held(4, agree=False), held(4)).refused
    assert verdict(held(0), held(4)).ratio is None


# In fresh processes


def in_six(
    instead: Instead,
    costs: dict[str, Any],
    ratios: Sequence[float],
    hot: Collection[int] = (),
    died: Collection[int] = (),
    path: Path | None = None,
    tell: Callable[[str], object] = lambda sentence: None,
    **more: Any,
) -> Comparison:
    """A run whose process k finds this ratio of the second candidate to the first; those that are
    hot find nothing."""

    def fresh(made: Run, number: int) -> InProcess:
        if number in died:
            return InProcess({}, lost="it was killed")
        if number == len(ratios):
            raise KeyboardInterrupt
        costs[modules()["explicit"]] = lambda k: 1e-3 * (1 + 0.01 * k)
        costs[modules()["sdpa"]] = lambda k: ratios[number] * 1e-3 * (1 + 0.01 * k)
        watch = ScriptedWatch(HOT if number in hot else CALM)
        pause: Callable[[float], None] = lambda seconds: None  # noqa: E731
        again = replace(made, process=number, watch=watch, pause=pause)
        return measured(replace(again, identity=made.identity))

    instead(in_fresh_process=fresh)
    return run(attention(processes=6), path, tell, **more)


def test_the_ratio_of_each_process_is_one_value(
    instead: Instead, costs: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "rounds.jsonl"
    found = in_six(instead, costs, [1.1, 1.3, 1.2, 1.15, 1.25, 1.12], path=path)
    v = found.rows[0].verdict
    assert (v.pairs, v.of, v.differs, v.p) == (6, "processes", True, 2 / 2**6)
    assert (v.ci_low, v.ci_high) == pytest.approx((1.1, 1.3))  # the range of six
    said = printed(document(found), "rich", width=200)
    assert "second slower\n" in said and "in this process" not in said
    assert "each fresh process gives one ratio" in said
    records, problems = read(path)
    assert problems == [] and len(records) == 12
    assert sorted({r.sweep.get("process", 0) for r in records}) == list(range(6))
    (again,) = (row for row in compare_files([path])[0].rows if row.quantity == "latency")
    assert again.verdict == v


def test_a_ratio_on_either_side_of_one_shows_nothing(
    instead: Instead, costs: dict[str, Any]
) -> None:
    """However narrow the interval is within each process."""
    found = in_six(instead, costs, [1.1, 1.3, 1.2, 0.99, 1.25, 1.12])
    assert not found.rows[0].verdict.differs


def test_a_disturbed_process_is_taken_anew(instead: Instead, costs: dict[str, Any]) -> None:
    found = in_six(instead, costs, [1.1, 9.0, 1.2, 1.15, 1.25, 9.0, 1.12, 1.3], hot=(1, 5))
    assert found.rows[0].verdict.pairs == 6
    assert found.rows[0].verdict.ci_high == pytest.approx(1.3)
    assert any(
        note.startswith("process 2 is left out of the test: 0 rounds") for note in found.notes
    )


def test_of_a_machine_that_stays_disturbed_nothing_is_said(
    instead: Instead, costs: dict[str, Any]
) -> None:
    """After the first one nobody is made to wait for more."""
    found = in_six(instead, costs, [1.0] * 20, hot=range(20))
    assert "0 of 1 processes were undisturbed, and 6 are needed" in found.rows[0].verdict.refused
    assert found.rows[0].verdict.ratio is None


def test_five_processes_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(MeasureError, match=r"5 processes are too few .* 6 processes are needed"):
        run(attention(processes=5))


def test_a_real_process_takes_rounds() -> None:
    found = in_fresh_process(attention(rounds=2, processes=6), 3)
    assert list(found.records) == ["self-attention explicit", "self-attention sdpa"]
    for record in found.records.values():
        assert (record.sweep["process"], record.sweep["processes"]) == (3, 6)
        if "latency" in record.readings:  # a busy machine may leave it without
            assert len(record.readings["latency"].samples) == 2
            assert record.readings["latency"].details["order_seed"] not in (0, 3)
        assert "first process alone" in record.reasons["peak_memory"]


def test_a_process_that_cannot_measure_says_why(instead: Instead) -> None:
    huge = candidates(asked("self-attention", given={"d": (4,), "l": (2**40,), "n": (2,)}))
    lost = in_fresh_process(Run(huge, processes=6), 0)
    assert (
        "fewer than two of the compared modules can be measured" in lost.lost and not lost.records
    )
    instead(in_fresh_process=lambda made, number: lost)
    with pytest.raises(
        MeasureError, match="fewer than two of the compared modules can be measured"
    ):
        run(Run(huge, processes=6))


def test_a_process_that_dies_is_taken_anew_and_loses_nothing(
    instead: Instead, costs: dict[str, Any]
) -> None:
    said: list[str] = []
    ratios = [1.1, 1.3, 1.2, 1.15, 1.25, 1.12, 1.3]
    found = in_six(instead, costs, ratios, died=(2,), begin=said.append)
    assert [int(sentence.split(" of 6 ")[0]) for sentence in said] == [0, 1, 2, 2, 3, 4, 5]
    assert said[0].endswith("processes done; the next one measures 2 candidates, --rounds 8")
    assert found.rows[0].verdict.pairs == 6 and len(found.records) == 12
    assert found.failures == ("process 3: it was killed",)


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_after_the_first_process_the_time_of_the_others_is_told_once(
    seconds: float, instead: Instead, costs: dict[str, Any]
) -> None:
    said: list[str] = []
    now = iter(seconds * k for k in range(100))
    in_six(instead, costs, [1.1] * 6, tell=said.append, clock=lambda: next(now))
    assert said == [
        "the first process took 20 s: at that pace the other 5 take 100 s; fewer --rounds than 8 "
        "or --processes 1 take less"
    ] * (seconds > 6)


def test_after_the_first_process_a_busy_machine_is_told_once(
    instead: Instead, costs: dict[str, Any]
) -> None:
    costs |= dict.fromkeys(modules().values(), lambda k: 1e-3 * (1 + 0.01 * k))
    watch = ScriptedWatch(BlockObservation(waited_s=0.02))
    instead(
        in_fresh_process=lambda made, number: measured(replace(made, process=number, watch=watch))
    )
    said: list[str] = []
    order = lambda sentence: said.append(sentence[:20])  # noqa: E731
    run(attention(processes=6), None, order, order)
    assert said == [
        "0 of 6 processes don", "other programs use t",
        *(f"{k} of 6 processes don" for k in range(1, 6)),
    ]  # fmt: skip


def test_a_run_that_is_interrupted_is_not_tested(
    instead: Instead, costs: dict[str, Any], tmp_path: Path
) -> None:
    """Neither at once nor from its file: who stops when it suits finds differences."""
    path = tmp_path / "rounds.jsonl"
    found = in_six(instead, costs, [1.1, 1.3], path=path)
    assert found.failures == ("interrupted after 2 of 6 processes",)
    assert "2 of 2 processes were undisturbed, and 6 are needed" in found.rows[0].verdict.refused
    (again,) = (row for row in compare_files([path])[0].rows if row.quantity == "latency")
    assert again.verdict == found.rows[0].verdict


def test_candidates_are_built_in_every_order_equally_often() -> None:
    made = attention(processes=6)
    orders = [replace(made, process=number).building for number in range(6)]
    assert orders.count(list(made.asked)) == 3
    assert all(sorted(order) == sorted(made.asked) for order in orders)


# In each format


@pytest.fixture
def compared(costs: dict[str, Any]) -> Comparison:
    costs[modules()["explicit"]] = lambda k: 2e-3 + 1e-6 * (k % 3)
    costs[modules()["sdpa"]] = lambda k: 1e-3 + 1e-6 * (k % 3)
    return run(attention())


def test_words_say_what_was_shown(compared: Comparison) -> None:
    said = printed(document(compared), "rich")
    assert "second faster" in said
    assert "equal to the byte" in said
    assert "exact Wilcoxon signed-rank test" in said
    assert "which hold together at 95%" in " ".join(said.split())
    assert "no difference shown" not in said
    assert "hold for this process and its memory layout" in said
    assert "hold a wait" not in said
    assert "sizes of" not in said


def test_a_title_has_the_sizes_of_all_candidates(compared: Comparison) -> None:
    first, second = compared.records
    two = (
        structs.replace(first, mixer="m{n=3}", sizes={"d": 7, "n": 3}),
        structs.replace(second, mixer="m{n=5}", sizes={"d": 7, "n": 5}),
    )
    said = printed(document(replace(compared, records=two)), "rich", width=200)
    assert "forward pass, d = 7, on" in said
    assert "sizes of m{n=3}: n = 3; of m{n=5}: n = 5" in said


def test_what_a_power_cap_does_to_times_is_said(costs: dict[str, Any]) -> None:
    capped = printed(document(on_a_board(costs, {3: 74})), "rich")
    assert "is power-capped" in capped and "a chip lowers its clock, depending" in capped


def test_noise_is_called_that(costs: dict[str, Any]) -> None:
    costs[modules()["explicit"]] = lambda k: 1e-3 + 1e-4 * ((k // 2) % 2)
    costs[modules()["sdpa"]] = lambda k: 1e-3 + 1e-4 * ((k // 2 + 1) % 2)
    assert "no difference shown" in printed(document(run(attention(rounds=12))), "rich")


def test_every_format_says_the_same(compared: Comparison) -> None:
    rows = list(csv.DictReader(StringIO(printed(document(compared), "csv"))))
    said = json.loads(printed(document(compared), "json"))
    assert said["schema"] == 1
    for row, record in zip(rows, said["rows"], strict=True):
        assert row["ratio"] == str(record["ratio"])
        assert row["differs"] == str(record["differs"])
        grades = [record["first_grade"], record["second_grade"]]
        assert grades == (["quiet"] * 2 if record["unit"] == "s" else [None] * 2)
    assert [record["implementation"] for record in said["measurements"]] == ["explicit", "sdpa"]
    ratio = f"{said['rows'][0]['ratio']:.4f}"
    for format_ in ("rich", "markdown", "latex"):
        assert ratio in printed(document(compared), format_)
    assert "\\toprule" in printed(document(compared), "latex")


def test_a_narrow_terminal_keeps_names_ratio_and_verdict(compared: Comparison) -> None:
    said = printed(document(compared), width=90)
    assert max(len(line) for line in said.splitlines() if "second faster" in line) <= 90
    assert "0.50" in said


# With real calls


def test_real_calls_fit_together(tmp_path: Path) -> None:
    wanted = candidates(asked("me:fft", "me:toeplitz", phases=("inference",)))
    made = Run(wanted, rounds_needed(1))
    told: list[str] = []
    made.progress = lambda done, of, what: told.append(what)
    found = run(made, tmp_path / "rounds.jsonl")
    assert {row.quantity for row in found.rows} >= {"latency"}
    assert "round 6 of 6" in told
    assert all(record.phase == "inference" for record in found.records)


@pytest.mark.gpu
def test_one_against_itself_on_a_gpu() -> None:
    wanted = candidates(
        asked("self-attention:sdpa", "self-attention:sdpa", device="cuda", given={"l": (64,)})
    )
    found = run(Run(wanted, 12, energy=False))
    (latency,) = (row for row in found.rows if row.quantity == "latency")
    assert latency.verdict.pairs == 12 and latency.verdict.ratio is not None
    assert 0.5 < latency.verdict.ratio < 2


# What the records of a comparison keep


def test_energy_is_measured_as_asked(instead: Instead) -> None:
    given: list[Any] = []

    def metered(calls: Any, *, limits: Any, **_: Any) -> Unavailable:
        given.append(limits)
        return Unavailable("not now")

    instead(energies_in_turn=metered)
    wanted = candidates(asked("self-attention"))
    asks: list[dict[str, Any]] = [{}, {"energy_window_s": 2.5, "energy_trials": 8}]
    for more in asks:
        made = Run(wanted, rounds_needed(1), **more)
        made.works = {name: prepare_work(request) for name, request in wanted.items()}
        made.energies()
    assert [(limits.window_s, limits.trials) for limits in given] == [(5.0, 6), (2.5, 8)]
    assert {limits.confidence for limits in given} == {0.95}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"energy_trials": 5}, "--energy-trials 5: expected an even number"),
        (
            {"energy_trials": 10**9},
            "of load for each measured call: expected at most 3600 s, by fewer trials",
        ),
        ({"energy_trials": 0}, "--energy-trials 0: expected 2 or more"),
        ({"energy_window_s": 0.5}, "--energy-window 0.5: expected 2 s or more"),
    ],
)
def test_energy_that_cannot_take_turns_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(MeasureError, match=said):
        Run(candidates(asked("self-attention")), **more)


def test_records_keep_the_command_and_what_is_below_its_floor(
    tmp_path: Path, instead: Instead
) -> None:
    def doctored(work: PreparedCall, device: str) -> Reading:
        return Reading("peak_memory", 8, "B", (8.0, 8.0), {"labels": []})

    instead(peak_of_call=doctored)
    path = tmp_path / "rounds.jsonl"
    made = Run(candidates(asked("self-attention")), rounds_needed(1), command="costmodel compare")
    found = run(made, path)
    for record in (*found.records, *read(path)[0]):
        assert record.environment["command"] == "costmodel compare"
        assert record.readings["peak_memory"].details["labels"] == ["below the floor"]
    said = printed(document(found), "markdown")
    assert "peak memory of self-attention sdpa is below the floor" in said
