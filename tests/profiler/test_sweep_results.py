"""Does a file know its points, wherever it was cut off and whoever else writes to it?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.records.store import StoreError, append, line_of, read
from profiler.sweep.failures import (
    DIED,
    FAILED,
    FAULT,
    LOST,
    MEMORY,
    REFUSED,
    Failure,
    failed_record,
)
from profiler.sweep.points import Point
from profiler.sweep.recorded import recorded
from profiler.sweep.results import MEASURED, Results
from tests.sweeping import ENVIRONMENT, grid, keys_in, points_of, record_of, request


def test_a_file_cut_at_any_byte_lacks_that_line_alone(tmp_path: Path) -> None:
    """Every offset within the second line, its newline included."""
    points = points_of(grid((2,), rounds=1))
    path, whole = tmp_path / "runs.jsonl", tmp_path / "whole.jsonl"
    records = [record_of(point.request, sweep=point.place, labels=("café",)) for point in points]
    for record in records[:2]:
        append(whole, record)
    data = whole.read_bytes()
    first = data.index(b"\n") + 1
    for size in range(first, len(data) + 1):
        path.write_bytes(data[:size])
        results = Results(path)
        there = size >= len(data) - 1  # the newline alone may be missing
        assert [results.lacks(point) for point in points] == [False, not there, True]
        cut = first < size < len(data) - 1
        assert results.problems == ([f"{path} line 2 is cut off and was skipped"] if cut else [])
        for record in records[1:]:
            results.add(record)
        assert path.read_bytes().startswith(data[:size])  # earlier bytes are untouched
        assert sorted(keys_in(path)) == sorted(point.key for point in points)
        assert not any(map(results.lacks, points))
        assert len(results.problems) == cut  # the line's end is no second problem
        assert read(path)[1] == []


def test_what_holds_no_measurement_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for text in ("import costmodel\n", "{}\n", "x"):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"mine\.py exists and holds no measurement"):
            Results(path)
        assert path.read_text() == text
    for cut in ("", "\n", '{"schema', '{"schema": 1, "i'):
        path.write_text(cut)
        Results(path)
    record = json.loads(line_of(record_of(request())))
    path.write_text("a title\n" + json.dumps(record, separators=(",", ":")) + "\n")
    Results(path)


def test_points_of_another_command_are_told_apart(tmp_path: Path) -> None:
    results, blocks = Results(tmp_path / "runs.jsonl"), grid((2,), rounds=1)
    typed = ("sweep --seconds 0.1", "sweep --retry --format csv", "sweep me --l 2:8 --rounds 4")
    for point, command in zip(points_of(blocks), typed, strict=True):
        environment = ENVIRONMENT | {"command": command}
        results.add(record_of(point.request, sweep=point.place, environment=environment))
    assert results.by_others(blocks, "sweep") == {"sweep --seconds 0.1": 1}


def test_what_failed_before_it_was_measured_is_shown_no_more(tmp_path: Path) -> None:
    """A resumed sweep: each point by its newest record, in order; `every` keeps its history."""
    path = tmp_path / "runs.jsonl"
    points = points_of(grid((2, 3), rounds=1))
    failed = {"failure": {"kind": "fault"}, "readings": {}}
    for attempt in range(2):
        for number, point in enumerate(points):
            fails = attempt == 0 or number == 1
            append(path, record_of(point.request, sweep=point.place, **(failed if fails else {})))
    told: list[str] = []
    found, problems = recorded([path], told.append)
    half = len(points)
    assert (len(found), problems) == (half, [])
    assert sum(bool(record.failure) for record in found) == 1
    places = [(r.mixer, r.sizes["l"]) for r in found]
    assert places == sorted(places)
    assert told == [
        f"{path}: {half} of {2 * half} records are failures of points with a newer record"
    ]
    assert len(recorded([path], every=True)[0]) == 2 * half


def test_a_point_is_written_once_whoever_measured_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    mine, other = Results(path), Results(path)
    (point, next_one, _) = points_of(grid((2,), rounds=1))
    assert other.lacks(point) and mine.lacks(point)
    assert mine.add(record_of(point.request))
    assert not other.add(record_of(point.request))
    assert not other.lacks(point)
    assert other.add(record_of(next_one.request))
    assert not mine.lacks(next_one)
    assert len(read(path)[0]) == 2


def test_what_others_leave_half_written_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results = Results(path)
    first, second, third = points_of(grid((2,), rounds=1))
    results.add(record_of(first.request))
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "mix')
    assert results.lacks(second)
    assert results.problems == [f"{path} line 2 is cut off and was skipped"]
    results.add(record_of(second.request))
    with path.open("ab") as file:
        file.write(b"[]\n")
    assert not results.lacks(second) and results.lacks(third)
    assert [problem.split(" is ")[0] for problem in results.problems] == [
        f"{path} line 2", f"{path} line 4",
    ]  # fmt: skip


def test_a_file_that_becomes_shorter_is_no_file_to_write(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results = Results(path)
    results.add(record_of(request()))
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="became shorter while it was written"):
        results.lacks(Point(request(l=9)))


@pytest.mark.parametrize(
    ("kind", "again"),
    [(MEMORY, False), (REFUSED, False), (FAILED, False), (DIED, True), (LOST, True), (FAULT, True)],
)
def test_what_fails_the_same_way_again_is_not_tried_again(
    kind: str, again: bool, tmp_path: Path
) -> None:
    path, point = tmp_path / "runs.jsonl", Point(request())
    Results(path).add(failed_record(point, Failure(kind, "why"), ENVIRONMENT))
    results = Results(path)
    assert results.state == {point.key: kind}
    assert results.lacks(point) is again
    assert results.lacks(point, retry=True)
    assert results.add(record_of(point.request))
    assert not results.lacks(point, retry=True)
    assert Results(path).state == {point.key: MEASURED}


def test_a_failure_after_a_measurement_changes_nothing(tmp_path: Path) -> None:
    path, point = tmp_path / "runs.jsonl", Point(request())
    append(path, record_of(point.request))
    append(path, failed_record(point, Failure(MEMORY, "why"), ENVIRONMENT))
    assert Results(path).state == {point.key: MEASURED}


def test_another_environment_is_refused_or_labelled(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Results(path).add(record_of(request(l=2)))
    newer = {**ENVIRONMENT, "torch": "10.0"}
    Results(path).accept(dict(ENVIRONMENT))
    with pytest.raises(StoreError) as refused:
        Results(path).accept(newer)
    assert str(refused.value) == (
        f"{path} was measured in another environment (torch: 9.9 and 10.0): name another file by "
        f"-o, or add --allow-mixed, which labels new records with the difference"
    )
    results = Results(path, mixed=True)
    results.accept(newer)
    results.add(record_of(request(l=3), environment=newer))
    results.add(record_of(request(l=5)))
    assert [record.labels for record in read(path)[0]] == [
        (), ("mixed environments: torch: 9.9 and 10.0",), (),
    ]  # fmt: skip


def test_a_file_is_not_made_before_there_is_something_to_write(tmp_path: Path) -> None:
    results = Results(tmp_path / "runs.jsonl")
    assert results.lacks(Point(request()))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*: No such file"):
        Results(tmp_path / "none" / "runs.jsonl")


def test_a_failure_is_a_line_of_schema_1(tmp_path: Path) -> None:
    failure = Failure(MEMORY, "20.00 GiB could not be had", {"requested": "20.00 GiB"})
    record = failed_record(Point(request(phase="forward")), failure, ENVIRONMENT)
    append(tmp_path / "runs.jsonl", record)
    assert read(tmp_path / "runs.jsonl") == ([record], [])
    assert record.phase == "training" and record.readings == {}
    assert record.reasons == {"measurement": "20.00 GiB could not be had"}
    assert record.failure == {"kind": "out of memory", "requested": "20.00 GiB"}
    assert '"failure"' in line_of(record) and '"failure"' not in line_of(record_of(request()))
