"""Do several processes measure one plan, keep every record, and give intervals across processes?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import cli
from costmodel.prediction.columns import NO_BOARD
from profiler.compare.records import medians
from profiler.meters.intervals import busy_estimate, median_interval, over_processes, processes_in
from profiler.reconcile.cost import cost_of
from profiler.reconcile.ladder import ladders
from profiler.records.grades import grade_of
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.records.store import read
from profiler.run.request import Request
from profiler.studies.grid import GridStudy
from profiler.studies.ratios import ratio
from profiler.studies.registry import study
from profiler.studies.study import Manner, StudyError
from profiler.sweep import order
from profiler.sweep.failures import MEMORY, Failure, failed_record
from profiler.sweep.joined import joined
from profiler.sweep.points import Point
from profiler.sweep.recorded import recorded as records_of
from profiler.sweep.results import Results
from profiler.sweep.session import run, sweep
from tests.ladders import theory
from tests.printing import statement
from tests.recorded import ATTENTION
from tests.stand_ins import Instead
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


def taken(
    reading: Reading, process: int = 0, of: Request | None = None, **more: Any
) -> Measurement:
    """A record of a request with this reading, by the process of a number."""
    of = of or request()
    place = Point(of, process=process).place
    return record_of(of, **{"readings": {reading.name: reading}, "sweep": place, **more})


def spanned(*seconds: float, **of: Any) -> Measurement:
    """The record of a point that took so long in each process."""
    (found,) = joined([taken(around(value), k, **of) for k, value in enumerate(seconds)])
    return found


# Times of busy processes


def busy(regions: Sequence[float], low: float) -> Reading:
    """A busy time of these regions."""
    value, _, high = busy_estimate(regions)
    told = {"grade": "busy", "labels": ["preempted"], "ci_low": low, "ci_high": high, "blocks": [1]}
    return Reading("latency", value, "s", tuple(regions), told)


def test_a_process_whose_threads_waited_for_one_another_counts_for_little() -> None:
    """Three regions of it beside a hundred of each of the others."""
    fast = [1.0 + k / 1000 for k in range(100)]
    found = over_processes({0: busy([500.0] * 3, 90.0), 1: busy(fast, 0.9), 2: busy(fast, 0.95)})
    assert grade_of(found) == "busy" and processes_in(found) == 3
    assert found.value == pytest.approx(1.01, abs=0.01)
    assert found.details["ci_low"] == 0.9 and found.details["ci_high"] < 1.1


def test_busy_processes_spend_their_time_together() -> None:
    told = {k: busy([1.0 + k] * 3, 0.9) for k in range(2)}
    spent = {k: replace(r, details={**r.details, "sampled_s": 1.5 + k}) for k, r in told.items()}
    assert over_processes(spent).details["sampled_s"] == 4.0
    assert "sampled_s" not in over_processes({**spent, 2: busy([1.0] * 3, 0.9)}).details


def test_quiet_processes_are_taken_where_they_are_most() -> None:
    quiet = around(1.0), around(1.2)
    found = over_processes({0: quiet[0], 1: busy([5.0] * 9, 2.0), 2: quiet[1]})
    assert (grade_of(found), found.value, processes_in(found)) == ("quiet", 1.1, 2)


# One reading


@pytest.mark.parametrize(
    ("seconds", "ends", "confidence"),
    [
        ((1.0, 3.0), (1.0, 3.0), 0.5),
        ((1.0, 3.0, 2.0), (1.0, 3.0), 0.75),
        ((1.0, 3.0, 2.0, 5.0, 4.0), (1.0, 5.0), 0.9375),
        ((1.0, 3.0, 2.0, 5.0, 4.0, 6.0), (1.0, 6.0), 0.95),
        (tuple(map(float, range(1, 10))), (2.0, 8.0), 0.95),
    ],
)
def test_the_interval_is_of_the_processes(
    seconds: Sequence[float], ends: tuple[float, float], confidence: float
) -> None:
    """The median lies between the least and the most of k but for one time in 2^(k - 1)."""
    found = over_processes({k: around(value) for k, value in enumerate(seconds)})
    assert found.value == sorted(seconds)[len(seconds) // 2] or len(seconds) % 2 == 0
    assert (found.details["ci_low"], found.details["ci_high"]) == ends
    assert found.details["confidence"] == confidence
    assert found.samples == tuple(seconds) and processes_in(found) == len(seconds)


@pytest.mark.parametrize(("second", "agree"), [(4096, True), (4097, False)])
def test_bytes_agree_where_they_are_equal(second: int, agree: bool) -> None:
    first, other = (
        Reading("peak_memory", n, "B", (float(n),) * 2, {"agree": True, "labels": []})
        for n in (4096, second)
    )
    found = over_processes({0: first, 1: other})
    assert found.details["agree"] is agree
    assert (found == first) is agree


# Records


def test_a_record_joins_the_last_measurement_of_its_point_that_lacks_its_process() -> None:
    other = request(l=5)
    records = [
        taken(around(1.0)), taken(around(2.0)), taken(around(3.0), of=other),
        taken(around(5.0), 1, of=other), taken(around(6.0), 1), taken(around(8.0), 1),
    ]  # fmt: skip
    found = joined(records)
    assert [r.id for r in found] == [r.id for r in records[:3]]
    assert [r.readings["latency"].samples for r in found] == [(1.0, 8.0), (2.0, 6.0), (3.0, 5.0)]


def test_records_of_one_process_are_as_they_were() -> None:
    records = [taken(around(1.0)), ATTENTION]
    assert joined(records) == records


def test_rounds_in_turn_stand_alone() -> None:
    """A record of `compare` in the same file has the same point."""
    turns = taken(timed(1.0, 1.0, comparison="c"))
    found = joined([taken(around(1.0)), turns, taken(around(9.0), 1)])
    assert [processes_in(r.readings["latency"]) for r in found] == [2, 1]


def lost(process: int) -> Measurement:
    """A record of a point that failed."""
    point = Point(request(), process=process)
    failure = Failure(MEMORY, "me toeplitz: out of memory")
    return replace(failed_record(point, failure, {}), sweep=point.place)


def test_a_process_that_failed_leaves_its_reason() -> None:
    (found,) = joined([taken(around(1.0)), lost(1), taken(around(3.0), 2)])
    assert found.reasons["process 2"] == "me toeplitz: out of memory"
    assert found.readings["latency"].samples == (1.0, 3.0)
    (found,) = joined([lost(1), lost(2)])
    assert found.failure
    first, second = joined([lost(0), lost(1)])
    assert first.failure and second.failure
    failed, then = joined([lost(0), taken(around(1.0)), taken(around(2.0), 1)])
    assert failed.failure and then.readings["latency"].samples == (1.0, 2.0)


def test_what_was_measured_at_last_takes_the_place_of_a_failure() -> None:
    """The same command tries a disturbed point again: one record of all processes is left."""
    found = joined([
        taken(around(1.0)), lost(1), taken(around(3.0), 2), taken(around(2.0), 1),
    ])  # fmt: skip
    (only,) = found
    assert only.readings["latency"].samples == (1.0, 2.0, 3.0) and "process 2" not in only.reasons


def test_a_reading_that_some_processes_lack_is_that_of_the_others() -> None:
    lacking = [
        taken(around(1.0), k, readings={}, reasons={"latency": "the call failed"}) for k in range(3)
    ]
    (found,) = joined([taken(around(1.0)), lacking[1]])
    assert found.reasons["latency in process 2"] == "the call failed"
    (found,) = joined([lacking[0], taken(around(1.0), 1), taken(around(3.0), 2)])
    assert found.readings["latency"].samples == (1.0, 3.0)
    assert found.reasons["latency in process 1"] == "the call failed"


def test_other_environments_and_other_plans_are_not_joined() -> None:
    old: dict[str, Any] = {"environment": {"torch": "2.1"}}
    found = joined([taken(around(1.0), **old), taken(around(2.0), 1), taken(around(3.0), 2)])
    assert [r.readings["latency"].samples for r in found][1:] == [(2.0, 3.0)]
    assert processes_in(found[0].readings["latency"]) == 1
    apart = [
        replace(taken(around(1.0 + k), process), sweep={"process": process, "plan": plan})
        for k, (process, plan) in enumerate([(0, "a"), (1, "b"), (2, "b"), (1, "a")])
    ]
    assert [r.readings["latency"].samples for r in joined(apart)] == [(1.0, 4.0), (2.0, 3.0)]


def test_labels_of_all_processes_stay() -> None:
    first = taken(timed(*[1.0] * 7, labels=["power-capped"]))
    second = taken(timed(*[2.0] * 7, labels=["launch-bound"], launch_bound=True), 1)
    (found,) = joined([replace(first, labels=("mixed environments: torch",)), second])
    details = found.readings["latency"].details
    assert details["labels"] == ["power-capped", "launch-bound"] and details["launch_bound"]
    assert found.labels == ("mixed environments: torch",)


# Measuring


def test_each_process_measures_all_and_every_record_is_kept(tmp_path: Path) -> None:
    """Seconds are those since the plan began: what comes later takes longer."""
    done: list[int] = []

    def slower(asked: Request, **_: Any) -> Measurement:
        done.append(asked.sizes["l"])
        return record_of(asked, readings={"latency": around(len(done))})

    path, begun = tmp_path / "runs.jsonl", []

    def start() -> Thread:
        begun.append(len(done))
        return Thread(slower)

    lengths = [2, 3, 5, 7, 11, 13]
    asked = [request(l=length) for length in lengths]
    found = run(asked, path, processes=3, starts={"cpu": start})
    assert begun == [0, 6, 12]  # a fresh one each
    orders = [done[:6], done[6:12], done[12:]]
    assert all(sorted(each) == lengths for each in orders)
    assert orders[0] == lengths and len({tuple(each) for each in orders}) == 3
    assert len(read(path)[0]) == 18 and not found.failures
    assert [r.sizes["l"] for r in found.measurements] == lengths
    assert {processes_in(r.readings["latency"]) for r in found.measurements} == {3}
    assert len({r.sweep["plan"] for r in found.measurements}) == 1
    assert records_of([path]) == (found.measurements, [])


def test_a_sweep_goes_on_in_the_process_that_it_lacks_by_the_same_worker(tmp_path: Path) -> None:
    path, lengths = tmp_path / "runs.jsonl", (2, 3)
    firsts = grid(lengths, rounds=2)
    asked = [point.request for point in points_of(firsts)]
    blocks = order.grid(asked, 2, 0, 2, None)
    keys = [point.key for point in points_of(blocks)]
    assert len(set(keys)) == len(keys) == 2 * len(points_of(firsts))
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
    assert [r.sweep.get("process", 0) for r in records[begun - 1 :]] == [1] * (
        len(keys) - begun + 1
    )
    found = records_of([path])[0]
    assert len(found) == begun - 1
    assert all(processes_in(r.readings["latency"]) == 2 for r in found)


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


@pytest.mark.parametrize(("seconds", "differs"), [((1.0, 1.1) * 4, True), ((1.0, 2.0) * 4, False)])
def test_two_files_differ_only_beyond_what_their_processes_say(
    seconds: Sequence[float], differs: bool
) -> None:
    """1 s and 1.5 s, each with intervals of 0.1 s within its processes."""
    both = spanned(*seconds), spanned(*[1.5, 1.51] * 4)
    x, y = (r.readings["latency"] for r in both)
    verdict = medians("a", "b", x, y, 0.2, 1)
    assert (verdict.differs, verdict.of) == (differs, "processes")
    by = ratio([both[0]], [both[1]], ("latency",))
    assert by.refused or by.more == differs


def test_two_processes_are_too_few_to_compare_files() -> None:
    x, y = (spanned(*each).readings["latency"] for each in ((1.0, 1.0), (9.0, 9.0)))
    assert "2 processes are too few" in medians("a", "b", x, y, 0.05, 1).refused


def test_the_statement_says_how_many_processes_error_bars_span() -> None:
    said = statement([spanned(1.0, 2.0, 3.0)])
    assert "Error bars of 1 reading span 3 fresh processes" in said and "75.0%" in said
    assert "Differences between machines and days" in said
    said = statement([taken(around(1.0)), spanned(1.0, 2.0, of=request(l=5))])
    assert "within one process" in said and "Differences between processes, machines" in said


def test_the_time_of_all_processes_counts() -> None:
    first, second = (timed(*[t] * 7, sampled_s=10 * t) for t in (1.0, 2.0))
    found = joined([taken(first), taken(second, 1)])
    assert "The timed calls took 30 s in all" in statement(found)


def test_a_ladder_has_the_interval_of_the_processes() -> None:
    base = replace(ATTENTION, readings={**ATTENTION.readings, "latency": around(1.0)})
    latency = over_processes({k: around(value) for k, value in enumerate((1.0, 2.0, 3.0))})
    found = replace(base, readings={**base.readings, "latency": latency})
    cost, why = cost_of(found, theory(found), 1, NO_BOARD)
    assert cost is not None and "latency_ci_low_s" not in why
    ends = (cost["latency_ci_low_s"], cost["latency_s"], cost["latency_ci_high_s"])
    assert ends == (1.0, 2.0, 3.0) and cost["latency_processes"] == 3
    once, _ = cost_of(base, theory(base), 1, NO_BOARD)
    assert once is not None and once["latency_processes"] == 1


def test_ladders_of_joined_records_are_those_of_the_first() -> None:
    second = replace(ATTENTION, id="second", sweep={"process": 1}, readings={
        "latency": around(1.0)})  # fmt: skip
    found, problems = ladders(joined([ATTENTION, second]))
    assert len(found) == 1 and not problems


# The command line


def run_cli(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints."""
    assert cli.run(words.split()) == 0
    return capsys.readouterr().out


def test_profile_in_fresh_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    """The processes are threads here; `sweep` starts real ones in test_sweep.py."""
    path, begun = tmp_path / "runs.jsonl", []

    def start() -> Thread:
        begun.append("cpu")
        return Thread(lambda asked, **_: record_of(asked, readings={"latency": around(1.0)}))

    instead(processes=lambda *_, **__: {"cpu": start})
    sizes = "me --impl toeplitz --d 4 --l 3 --seconds 0.02 --device cpu --no-energy"
    out = run_cli(f"profile {sizes} --processes 2 --format json -o {path}", capsys)
    printed = json.loads(out)["measurements"]
    assert [m["mixer"] for m in printed] == ["me"]
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [m["sweep"].get("process", 0) for m in kept] == [0, 1]
    assert len(begun) == 2
    assert [len(m["readings"]["latency"]["details"]["processes"]) for m in printed] == [2]


def test_a_sweep_plans_every_point_in_each_process(capsys: pytest.CaptureFixture[str]) -> None:
    words = "sweep me we --impl toeplitz --l 2,3 --d 2 --device cpu --rounds 1 --plan"
    assert "4 points in 2 blocks" in run_cli(words, capsys)
    out = run_cli(f"{words} --processes 3", capsys)
    assert "12 points in 6 blocks" in out and "in each of 3 processes" in out
    out = run_cli(f"{words} --processes 3 --format json", capsys)
    numbers = [point["process"] for point in json.loads(out)["points"]]
    assert numbers == [0] * 4 + [1] * 4 + [2] * 4


def test_each_part_of_a_sweep_is_the_same_in_each_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "sweep me --impl toeplitz --l 2,3,5 --d 2 --device cpu --rounds 1 --plan --processes 2"
    for part in ("1/2", "2/2"):
        out = run_cli(f"{words} --shard {part} --format json", capsys)
        points = json.loads(out)["points"]
        half = len(points) // 2
        lengths = [point["sizes"]["l"] for point in points]
        assert sorted(lengths[:half]) == sorted(lengths[half:]) and half


# Studies


def test_rounds_of_training_have_one_process(tmp_path: Path) -> None:
    thesis, several = study("thesis-training"), Manner("cpu", processes=2)
    with pytest.raises(StudyError, match="leave out --processes"):
        thesis.measure(several, tmp_path / "f.jsonl", lambda *_: None, lambda _: None)


def test_a_page_shows_each_point_of_all_processes_once(tmp_path: Path, instead: Instead) -> None:

    found = study("extractors")
    assert isinstance(found, GridStudy)
    instead(processes=lambda *_, **__: one_worker())
    path = tmp_path / "study.jsonl"
    manner = Manner("cpu", largest=128, processes=2)
    for _ in range(2):  # the second finds everything done
        done = found.measure(manner, path, lambda *_: None, lambda _: None)
        assert done.complete and not done.failures
    records, kept = records_of([path])[0], read(path)[0]
    assert len(kept) == 2 * len(records)
    assert all(processes_in(r.readings["latency"]) == 2 for r in records)
    points = [p for block in found.planned(manner).blocks for p in block.points]
    assert len(points) == len(kept)


@pytest.mark.parametrize(
    ("seconds", "grade", "labels", "again"),
    [
        (0.01, "quiet", [], True),
        (0.1, "quiet", [], False),
        (0.01, "busy", ["preempted"], False),
        (0.01, "busy", ["1 sample"], True),
    ],
)
def test_short_calls_of_a_quiet_device_are_timed_in_two_more_processes(
    seconds: float,
    grade: str,
    labels: list[str],
    again: bool,
    instead: Instead,
    tmp_path: Path,
) -> None:
    asked, path = request(), tmp_path / "results.jsonl"
    first = replace(around(seconds, seconds / 100), details={"grade": grade, "labels": labels})
    instead(measure=lambda of, **_: taken(first, of=of))
    later = iter([0.02, 0.03])
    workers = one_worker(lambda of, **_: taken(around(next(later), 1e-4), of=of))
    (found,) = run([asked], path, further=workers).measurements
    timed = found.readings["latency"]
    assert processes_in(timed) == (3 if again else 1)
    if again:
        assert (timed.value, timed.details["ci_low"], timed.details["ci_high"]) == (
            0.02,
            0.01,
            0.03,
        )
        assert timed.details["confidence"] == 0.75
    kept, problems = records_of([path])
    assert ([one.compact([]) for one in kept], problems) == ([found.compact([])], [])
