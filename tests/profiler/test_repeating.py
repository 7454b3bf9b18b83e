"""Does a second measurement come later, stay in the file, and widen what the first one said?"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

import cli
import costmodel as cm
from profiler.compare.records import medians
from profiler.meters.intervals import median_interval
from profiler.meters.repetition import (
    BEYOND,
    BY_CHANCE,
    DISAGREES,
    REPETITION,
    beyond_chance,
    disagrees,
    interval_ends,
    repetition_in,
    widened,
)
from profiler.reconcile.cost import cost_of
from profiler.reconcile.ladder import ladders
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading, Unavailable
from profiler.records.store import read
from profiler.run import measure as measuring
from profiler.run.measure import measure
from profiler.run.plan import implementation_of
from profiler.run.request import Request
from profiler.studies.grid import GridStudy
from profiler.studies.ratios import ratio
from profiler.studies.study import Manner, StudyError
from profiler.studies.thesis_training import STUDY as THESIS
from profiler.sweep import order, session
from profiler.sweep.failures import MEMORY, Failure, failed_record
from profiler.sweep.points import Point
from profiler.sweep.repetitions import joined, repetition_of
from profiler.sweep.results import Results
from profiler.sweep.session import recorded as records_of, run, sweep
from tests.printing import statement
from tests.profiler.test_measure import BRIEF
from tests.profiler.test_work import asked
from tests.recorded import ATTENTION
from tests.sweeping import (
    Thread,
    grid,
    measure as pretended,
    one_worker,
    points_of,
    record_of,
    request,
)


def timed(*samples: float, **details: Any) -> Reading:
    """A hot latency with the interval of its median."""
    middle, interval = sorted(samples)[len(samples) // 2], median_interval(samples)
    low, high = interval or (None, None)
    found: dict[str, Any] = {
        "p20": samples[0], "p80": samples[-1], "n": len(samples), "ci_low": low, "ci_high": high,
        "stop_rule": "median settled", "labels": [], "blocks": [1] * len(samples),
    }  # fmt: skip
    return Reading("latency", middle, "s", samples, found | details)


def around(middle: float, width: float = 0.1) -> Reading:
    """Seven samples within `width` of their median: the interval is from the least to the most."""
    return timed(*(middle + width * k / 3 for k in range(-3, 4)))


def taken(reading: Reading, of: Request | None = None, **more: Any) -> Measurement:
    """A record of a request with this reading."""
    of = of or request()
    place = Point(of).place
    return record_of(of, **{"readings": {reading.name: reading}, "sweep": place, **more})


def again(reading: Reading, of: Request | None = None, **more: Any) -> Measurement:
    """The record of its repetition."""
    return taken(reading, repetition_of(of or request()), **more)


TOLD = {"id": "again", "created": "2024-01-02T03:04:05+00:00"}

# One reading


def test_a_second_value_outside_widens_the_interval_to_both() -> None:
    first, second = around(1.0), around(1.25)
    found = widened(first, second, TOLD)
    assert interval_ends(found) == pytest.approx((0.9, 1.35))
    assert found.value == 1.0 and found.samples == first.samples
    assert found.details["labels"] == [DISAGREES] and disagrees(found)
    assert found.details["ci_alone"] == pytest.approx([0.9, 1.1])
    held = repetition_in(found)
    assert held is not None and held["value"] == 1.25 and held["samples"] == list(second.samples)


@pytest.mark.parametrize("middle", [0.91, 1.0, 1.09])
def test_a_second_value_inside_leaves_the_interval(middle: float) -> None:
    second = around(middle)
    found = widened(around(1.0), second, TOLD)
    assert interval_ends(found) == interval_ends(around(1.0)) and not disagrees(found)
    assert found.details["labels"] == [] and repetition_in(found) is not None


def test_without_an_interval_both_values_stand() -> None:
    found = widened(timed(1.0, 1.1), around(9.0), TOLD)
    assert (
        interval_ends(found) is None and not disagrees(found) and repetition_in(found) is not None
    )


@pytest.mark.parametrize(("second", "apart"), [(4096, False), (4097, True)])
def test_bytes_disagree_where_they_are_not_equal(second: int, apart: bool) -> None:
    first, other = (
        Reading("peak_memory", n, "B", (float(n),) * 2, {"agree": True, "labels": []})
        for n in (4096, second)
    )
    found = widened(first, other, TOLD)
    assert (disagrees(found), found.details["agree"]) == (apart, not apart)
    assert "ci_high" not in found.details or found.details["ci_high"] == second


@pytest.mark.parametrize(("middle", "outside", "beyond"), [
    (1.05, False, False), (1.12, True, False), (0.88, True, False), (1.15, True, True),
    (0.85, True, True),
])  # fmt: skip
def test_the_record_says_whether_noise_of_both_explains_the_difference(
    middle: float, outside: bool, beyond: bool
) -> None:
    """Two intervals of 0.1 on each side allow for 0.1 * sqrt(2) between their values."""
    found = widened(around(1.0), around(middle), TOLD)
    held = repetition_in(found)
    assert held is not None and held[BEYOND] is beyond
    assert (disagrees(found), beyond_chance(found)) == (outside, beyond)
    assert repetition_in(widened(timed(1.0, 1.1), around(9.0), TOLD))[BEYOND] is None  # type: ignore[index]  # it was repeated


def test_without_drift_as_many_lie_outside_as_is_said() -> None:
    """Medians of 101 lognormal samples, measured twice; 600 times, the seed fixed."""
    chance = random.Random(3)
    outside = far = 0
    for _ in range(600):
        first, second = (
            timed(*(chance.lognormvariate(0, 0.3) for _ in range(101))) for _ in range(2)
        )
        found = widened(first, second, TOLD)
        outside, far = outside + disagrees(found), far + beyond_chance(found)
    assert (
        stats.binom.ppf(0.005, 600, BY_CHANCE) <= outside <= stats.binom.ppf(0.995, 600, BY_CHANCE)
    )
    assert far <= stats.binom.ppf(0.995, 600, 0.05)


# Records


def test_a_repetition_joins_the_last_measurement_of_its_point_before_it() -> None:
    other = request(l=5)
    records = [
        taken(around(1.0)), taken(around(2.0)), taken(around(3.0), other),
        again(around(5.0), other), again(around(6.0)),
    ]  # fmt: skip
    found, alone = joined(records)
    assert [r.id for r in found] == [r.id for r in records[:3]] and not alone
    second = [repetition_in(r.readings["latency"]) for r in found]
    assert [None if s is None else s["value"] for s in second] == [None, 6.0, 5.0]


def test_records_without_a_repetition_are_as_they_were() -> None:
    records = [taken(around(1.0)), ATTENTION]
    assert joined(records) == (records, [])


def test_a_repetition_of_nothing_is_told_and_left_out() -> None:
    records = [taken(around(1.0), request(l=5)), again(around(1.0))]
    found, (said,) = joined(records)
    assert found == records[:1] and "repeats no measurement that is there" in said


def test_rounds_in_turn_are_not_repeated() -> None:
    """A record of `compare` in the same file has the same point."""
    turns = taken(timed(1.0, 1.0, comparison="c"))
    found, alone = joined([taken(around(1.0)), turns, again(around(9.0))])
    assert [disagrees(r.readings["latency"]) for r in found] == [True, False] and not alone


def test_a_repetition_that_failed_leaves_its_reason() -> None:
    failure = Failure(MEMORY, "me toeplitz: out of memory")
    second = repetition_of(request())
    lost = replace(failed_record(Point(second), failure, {}), sweep=Point(second).place)
    (found,), alone = joined([taken(around(1.0)), lost])
    assert found.reasons[REPETITION] == "me toeplitz: out of memory" and not alone
    assert not disagrees(found.readings["latency"])
    (found,), alone = joined([taken(around(1.0)), lost, again(around(9.0))])
    assert disagrees(found.readings["latency"]) and not alone


def test_a_point_that_failed_twice_is_one_failure() -> None:
    failure = Failure(MEMORY, "me toeplitz: out of memory")
    both = [
        replace(failed_record(Point(r), failure, {}), sweep=Point(r).place)
        for r in (request(), repetition_of(request()))
    ]
    assert joined(both) == (both[:1], [])
    measured_later = taken(around(1.0))
    assert joined([*both, measured_later])[0][0] is both[0]


def test_a_reading_that_the_repetition_lacks_says_why() -> None:
    lacking = again(around(1.0), readings={}, reasons={"latency": "the call failed"})
    (found,), _ = joined([taken(around(1.0)), lacking])
    assert found.reasons["repetition of latency"] == "the call failed"


# Measuring


@pytest.mark.parametrize("phase", ["training", "training-step", "inference"])
def test_a_repetition_measures_memory_time_and_energy_alone(phase: str) -> None:
    first = measure(asked("me", "toeplitz", phase=phase), limits=BRIEF)
    second = measure(repetition_of(asked("me", "toeplitz", phase=phase)), limits=BRIEF)
    assert set(second.readings) <= {"peak_memory", "latency", "latency_cold"}
    assert {"peak_memory", "latency"} <= set(second.readings)
    assert set(second.reasons) <= {"latency_cold", "latency_graph", "energy", "energy_net", "power"}
    assert set(second.counts) == {"seed", "call"} and "dispatch" in first.counts
    first, second = (
        replace(r, sweep={"options": o} if o else {})
        for r, o in ((first, {}), (second, {REPETITION: True}))
    )
    (found,), alone = joined([first, second])
    assert not alone and repetition_in(found.readings["peak_memory"]) is not None
    assert not disagrees(found.readings["peak_memory"])


def test_a_repetition_that_cannot_be_compiled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        measuring, "compiled_work", lambda work, *_: (work, Unavailable("no C++ compiler"))
    )
    wanted = replace(asked("me", "toeplitz"), compile=True, repetition=True)
    found = measure(wanted, limits=BRIEF)
    assert set(found.readings) == {"peak_memory"} and "launch_estimate" not in found.reasons
    assert found.reasons["latency"] == found.reasons["energy"] == "no C++ compiler"


def test_repetitions_come_after_all_others_and_both_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds are those since the session began: what comes later takes longer."""
    done: list[tuple[int, bool]] = []

    def slower(asked: Request, **_: Any) -> Measurement:
        done.append((asked.sizes["l"], asked.repetition))
        return record_of(asked, readings={"latency": around(len(done))})

    monkeypatch.setattr(session, "measure", slower)
    path = tmp_path / "runs.jsonl"
    firsts = [request(l=length) for length in (2, 3, 5)]
    found = run([*firsts, *map(repetition_of, firsts)], path)
    assert done == [(2, False), (3, False), (5, False), (2, True), (3, True), (5, True)]
    assert len(read(path)[0]) == 6 and not found.failures
    told: list[str] = []
    assert records_of([path], told.append) == (found.measurements, []) and not told
    spans = [interval_ends(r.readings["latency"]) for r in found.measurements]
    for span, (low, high) in zip(spans, [(0.9, 4.1), (1.9, 5.1), (2.9, 6.1)], strict=True):
        assert span == pytest.approx((low, high))


def test_a_sweep_repeats_what_is_left_by_the_same_worker(tmp_path: Path) -> None:
    path, firsts = tmp_path / "runs.jsonl", grid((2, 3), rounds=2)
    blocks = [*firsts, *order.again(firsts)]
    keys = [point.key for point in points_of(blocks)]
    assert len(set(keys)) == len(keys) == 2 * len(points_of(firsts))
    assert [p.first.key for p in points_of(order.again(firsts))] == keys[: len(keys) // 2]
    begun = len(points_of(firsts)) + 1
    interrupted = Stopping(begun)
    with pytest.raises(KeyboardInterrupt):
        sweep(blocks, Results(path), one_worker(interrupted))
    assert len(read(path)[0]) == begun
    worked: list[str] = []

    def named(worker: str) -> Any:
        def measured(asked: Request, **given: Any) -> Measurement:
            worked.append(worker)
            return pretended(asked, **given)

        return lambda: Thread(measured)

    sweep(blocks, Results(path), {"cpu": named("cpu"), "idle": named("idle")})
    assert set(worked) == {"cpu"} and len(worked) == len(keys) - begun
    records = read(path)[0]
    assert [r.sweep.get("options", {}) for r in records[begun - 1 :]] == [{REPETITION: True}] * (
        len(keys) - begun + 1
    )
    found = records_of([path])[0]
    assert len(found) == begun - 1 and all(repetition_in(r.readings["latency"]) for r in found)


class Stopping:
    """Measures so often, and is interrupted then."""

    def __init__(self, often: int) -> None:
        self.left = often

    def __call__(self, asked: Request, **given: Any) -> Measurement:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return pretended(asked, **given)


# Who reads the interval


def pair(first: float, second: float, **of: Any) -> Measurement:
    """A record whose repetition took so many seconds."""
    found, _ = joined([taken(around(first), **of), again(around(second), **of)])
    return found[0]


@pytest.mark.parametrize(("second", "differs"), [(1.05, True), (2.0, False)])
def test_two_files_differ_only_beyond_what_a_repetition_says(second: float, differs: bool) -> None:
    """1 s and 1.5 s with intervals of 0.1 s; measured again, the first takes as long as said."""
    x, y = (r.readings["latency"] for r in (pair(1.0, second), pair(1.5, 1.5)))
    verdict = medians("a", "b", x, y, 0.1, 1)
    assert verdict.differs == differs
    by = ratio([pair(1.0, second)], [pair(1.5, 1.5)], ("latency",))
    assert by.refused or by.more == differs


def test_the_statement_says_how_often_intervals_were_widened() -> None:
    said = statement([pair(1.0, 1.0), pair(1.0, 2.0)])
    assert "2 readings of these were measured again after all others: in 1 the second value" in said
    assert "(noise alone puts it there in 17%); in 1 the two differ by more than the noise" in said
    assert "the widest is 110.0% of its median" not in said
    assert "the widest is 1.1 times its median" in said  # 2.1 s is the end of the second one's
    assert "repetition disagrees (1)" in said
    assert "measured again" not in statement([taken(around(1.0))])


def test_the_time_of_a_repetition_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (timed(*[t] * 7, sampled_s=10 * t) for t in (1.0, 2.0))
    found, _ = joined([taken(first), again(second)])
    assert "The timed calls took 30 s in all" in statement(found)


def test_a_ladder_shows_the_interval_that_holds_both() -> None:
    base = replace(ATTENTION, readings={**ATTENTION.readings, "latency": around(1.0)})
    found = replace(
        base, readings={**base.readings, "latency": widened(around(1.0), around(2.0), TOLD)}
    )
    mixer = cm.mixer("self-attention")
    cost, why = cost_of(found, mixer, mixer.default_form, 1)
    assert cost is not None and "latency_ci_low_s" not in why
    assert (cost["latency_ci_low_s"], cost["latency_ci_high_s"]) == pytest.approx((0.9, 2.1))
    assert cost["latency_repetition_s"] == 2.0
    once, why = cost_of(base, mixer, mixer.default_form, 1)
    assert once is not None and once["latency_repetition_s"] is None
    assert why["latency_repetition_s"] == "it was measured once (--repeat measures again)"


# The command line


def run_cli(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints."""
    assert cli.run(words.split()) == 0
    return capsys.readouterr().out


def test_profile_and_reconcile_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.jsonl"
    sizes = "me we --impl toeplitz --d 4 --l 3 --seconds 0.02 --device cpu --no-energy"
    out = run_cli(f"profile {sizes} --repeat --format json -o {path}", capsys)
    printed = json.loads(out)["measurements"]
    assert [m["mixer"] for m in printed] == ["me", "we"]
    assert all("repetition" in m["readings"]["latency"]["details"] for m in printed)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [m["mixer"] for m in kept] == ["me", "we", "me", "we"]
    assert kept[2]["sweep"]["options"] == {"energy": False, "repetition": True}
    out = run_cli(f"reconcile --from {path} --full", capsys)
    assert out.count("latency, measured again") == 2


def test_a_sweep_plans_every_point_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = "sweep me we --impl toeplitz --l 2,3 --d 2 --device cpu --rounds 1 --plan"
    assert "4 points in 2 blocks" in run_cli(words, capsys)
    out = run_cli(f"{words} --repeat", capsys)
    assert "8 points in 4 blocks" in out and "and all of them again" in out
    out = run_cli(f"{words} --repeat --format json", capsys)
    options = [point["options"] for point in json.loads(out)["points"]]
    assert options == [{}] * 4 + [{"repetition": True}] * 4


def test_each_part_of_a_sweep_repeats_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = "sweep me --impl toeplitz --l 2,3,5 --d 2 --device cpu --rounds 1 --plan --repeat"
    for part in ("1/2", "2/2"):
        out = run_cli(f"{words} --shard {part} --format json", capsys)
        points = json.loads(out)["points"]
        half = len(points) // 2
        lengths = [point["sizes"]["l"] for point in points]
        assert lengths[:half] == lengths[half:] and half


# Studies


def test_studies_repeat_on_a_gpu_unless_they_are_told_not_to() -> None:
    assert Manner("cuda").repeats and not Manner("cpu").repeats
    assert Manner("cpu", repeat=True).repeats and not Manner("cuda", repeat=False).repeats


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        (Manner("cpu", repeat=True), "takes turns in rounds"),
        (Manner("cpu", ceilings=True), "no use for ceilings"),
    ],
)
def test_rounds_of_training_have_no_repetition_and_no_ceilings(
    asked_for: Manner, said: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=said):
        THESIS.measure(asked_for, tmp_path / "f.jsonl", lambda *_: None, lambda _: None)


def test_the_switch_of_a_study_reaches_its_manner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiler.commands import studying
    from profiler.studies.study import Done

    given: list[Manner] = []

    def measured(study: Any, manner: Manner, output: Path) -> Done:
        given.append(manner)
        return Done()

    monkeypatch.setattr(studying, "measured", measured)
    words = f"study extractors --device cpu -o {tmp_path / 'f.jsonl'}"
    for switch, wanted in (("", None), ("--ceilings", True), ("--no-ceilings", False)):
        assert cli.run(f"{words} {switch}".split()) == 0
        assert given[-1].ceilings is wanted


def test_a_study_repeats_its_grid_and_its_page_shows_each_point_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiler.studies.extractors import STUDY
    from profiler.sweep import processes

    assert isinstance(STUDY, GridStudy)

    def starts(*_: Any, **__: Any) -> Any:
        return one_worker(measured)

    def measured(asked: Request, **_: Any) -> Measurement:
        implementation_of(asked.mixer, asked.implementation.name)
        return record_of(asked, readings={"latency": around(2.0 if asked.repetition else 1.0)})

    monkeypatch.setattr(processes, "processes", starts)
    path = tmp_path / "study.jsonl"
    manner = Manner("cpu", largest=128, repeat=True)
    for _ in range(2):  # the second finds everything done
        done = STUDY.measure(manner, path, lambda *_: None, lambda _: None)
        assert done.complete and not done.failures
    records, kept = records_of([path])[0], read(path)[0]
    assert len(kept) == 2 * len(records)
    assert all(disagrees(r.readings["latency"]) for r in records)
    points = [p for block in STUDY.planned(manner).blocks for p in block.points]
    assert len(points) == len(records)


@pytest.mark.parametrize(
    ("kind", "ceilings", "again", "tops"),
    [
        ("cuda", None, True, True), ("cpu", None, False, False), ("cpu", True, False, True),
        ("cuda", False, True, False),
    ],
)  # fmt: skip
def test_a_study_on_a_gpu_repeats_and_measures_ceilings_unless_it_is_told_otherwise(
    kind: str,
    ceilings: bool | None,
    again: bool,
    tops: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from profiler.studies.additive_against_dot_product import STUDY
    from profiler.sweep.devices import Device

    given: list[str] = []

    def starts(devices: Any, kind: str, limits: Any, measure: str) -> Any:
        given.append(measure.partition(":")[2])
        return one_worker()

    monkeypatch.setattr("profiler.host.device.device_name", lambda name: name)
    monkeypatch.setattr("profiler.sweep.devices.devices", lambda place: [Device(place, {})])
    monkeypatch.setattr("profiler.sweep.processes.processes", starts)
    path = tmp_path / "study.jsonl"
    manner = Manner(kind, rounds=1, largest=64, ceilings=ceilings)
    done = STUDY.measure(manner, path, lambda *_: None, lambda _: None)
    assert done.complete
    assert given == ["measure_with_ceilings" if tops else "measure"]
    options = [r.sweep.get("options", {}) for r in read(path)[0]]
    assert options.count({REPETITION: True}) == (len(options) // 2 if again else 0)


def test_ladders_of_repeated_records_are_those_of_the_first() -> None:
    second = replace(
        ATTENTION, id="again", sweep={"options": {REPETITION: True}},
        counts={"seed": 0}, readings={"latency": around(1.0)},
    )  # fmt: skip
    found, problems = ladders(joined([ATTENTION, second])[0])
    assert len(found) == 1 and not problems
