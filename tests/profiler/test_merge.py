"""Does `merge` join files unchanged, without duplicates, and report mixtures?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import cli
from profiler.records.measurement import Measurement
from profiler.records.store import StoreError, append, line_of, read
from profiler.sweep.failures import MEMORY, Failure, failed_record
from profiler.sweep.merge import merged, placed
from profiler.sweep.points import Point
from profiler.sweep.results import Results
from tests.recorded import ATTENTION
from tests.sweeping import ENVIRONMENT, record_of, request


def written(path: Path, *records: Measurement) -> Path:
    """A file of these records."""
    for record in records:
        append(path, record)
    return path


def run(*words: object) -> int:
    """The exit code of `costmodel merge`."""
    return cli.run(["merge", *map(str, words)])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two files of different points, and a place for the one that they become."""
    first = written(tmp_path / "a.jsonl", record_of(request(l=2)), record_of(request(l=3)))
    second = written(tmp_path / "b.jsonl", record_of(request(l=5)))
    return first, second, tmp_path / "all.jsonl"


def test_files_become_one_line_by_line(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, whole = files
    later = json.loads(line_of(record_of(request(l=7)))) | {"weather": "fine"}
    with second.open("a", encoding="utf-8") as file:
        file.write(json.dumps(later) + "\n")
    assert run(first, second, "-o", whole) == 0
    assert whole.read_bytes() == first.read_bytes() + second.read_bytes()  # unknown keys too
    assert "4 records of 2 files" in capsys.readouterr().err
    assert run(whole, "-o", whole.with_name("again.jsonl")) == 0


def test_no_reading_is_held_while_files_are_merged(tmp_path: Path) -> None:
    found, _ = placed([written(tmp_path / "a.jsonl", ATTENTION)], str)
    assert ATTENTION.readings and [one.record.readings for one in found] == [{}]


def test_a_file_that_changes_while_it_is_merged_is_refused(files: tuple[Path, Path, Path]) -> None:
    first, second, _ = files
    texts, number, _ = merged([first, second])
    append(first, record_of(request(l=7)))
    second.write_text(second.read_text().replace("training", "backward"))
    assert (next(texts), next(texts), number) == (*first.read_text().splitlines(True)[:2], 3)
    with pytest.raises(StoreError, match=r"b.jsonl was changed while it was merged: merge it"):
        next(texts)


def test_pipes_are_merged(files: tuple[Path, Path, Path]) -> None:
    first, second, whole = files
    ends = [os.pipe() for _ in range(2)]
    for (_, into), file in zip(ends, (first, second), strict=True):
        os.write(into, file.read_bytes())
        os.close(into)
    assert run(*(f"/dev/fd/{out}" for out, _ in ends), "-o", whole) == 0
    assert whole.read_bytes() == first.read_bytes() + second.read_bytes()
    for out, _ in ends:
        os.close(out)


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence with which a merge is refused."""
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    return err


def test_a_record_twice_is_refused(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, whole = files
    said = refusal(capsys, first, second, first, "-o", whole)
    assert "was given twice, " in said and f"{first} line 1 and {first} line 1" in said
    assert not whole.exists()


def test_a_point_measured_twice_is_refused_wherever_it_was(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, whole = files
    append(second, record_of(request(l=3, device="cpu:0")))
    said = refusal(capsys, first, second, "-o", whole)
    assert f"a point was measured twice, {first} line 2 and {second} line 2 (me toeplitz" in said
    assert not whole.exists()


def test_rounds_of_compare_are_no_points(tmp_path: Path) -> None:
    """Nor does a sweep take them for measured, disturbed or not."""
    nothing: dict[str, Any] = {}
    made = [
        record_of(request(), sweep={"comparison": name}, **more)
        for name, more in (("a", nothing), ("b", nothing), ("c", {"readings": {}}))
    ]
    paths = [written(tmp_path / f"{k}.jsonl", record) for k, record in enumerate(made)]
    assert run(*paths, "-o", tmp_path / "all.jsonl") == 0
    assert len(read(tmp_path / "all.jsonl")[0]) == 3
    assert not Results(tmp_path / "all.jsonl").state


def test_rounds_and_seeds_are_points_of_their_own(files: tuple[Path, Path, Path]) -> None:
    first, second, whole = files
    append(second, record_of(request(l=2), sweep={"round": 1}))
    append(second, record_of(request(l=2, seed=1)))
    append(second, record_of(request(l=2), sweep={"options": {"backend": "inductor"}}))
    append(second, record_of(request(l=2), sweep={"options": {"energy_trials": 3}}))
    assert run(first, second, "-o", whole) == 0
    assert len(read(whole)[0]) == 7


def test_a_failure_and_what_was_measured_later_are_a_history(
    files: tuple[Path, Path, Path],
) -> None:
    first, second, whole = files
    for _ in range(2):
        failure = failed_record(Point(request(l=2)), Failure(MEMORY, "too large"), ENVIRONMENT)
        append(second, failure)
    assert run(first, second, "-o", whole) == 0
    assert [bool(record.failure) for record in read(whole)[0]] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"torch": "10.0"}, "torch: 9.9 and 10.0"),
        ({"threads": 8}, "threads: 2 and 8"),
        ({"gpu": {"driver": "2"}}, "gpu.driver: 1 and 2"),
        ({"device_name": "H200"}, "device_name: A100 and H200"),
    ],
)
def test_different_machines_are_refused_or_labelled(
    changes: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {**ENVIRONMENT, "gpu": {"driver": "1"}, "device_name": "A100"}
    first = written(tmp_path / "a.jsonl", record_of(request(l=2), environment=base))
    other = record_of(request(l=3), environment=base | changes, labels=("throttled",))
    second = written(tmp_path / "b.jsonl", other)
    whole = tmp_path / "all.jsonl"
    said = refusal(capsys, first, second, "-o", whole)
    assert f"{first} line 1 and {second} line 1 were measured in different" in said
    assert f"environments ({named}): merge records of one environment, or add" in said
    assert not whole.exists()
    assert run(first, second, "-o", whole, "--allow-mixed") == 0
    records, problems = read(whole)
    assert problems == [] and [record.labels for record in records] == [
        ("mixed environments: as the first record",),
        ("throttled", f"mixed environments: {named}"),
    ]
    assert [r.environment for r in records] == [base, base | changes]


def test_what_varies_from_run_to_run_is_no_other_environment(tmp_path: Path) -> None:
    states = ({"temperature_C": 40}, {"temperature_C": 80})
    paths = [
        written(
            tmp_path / f"{number}.jsonl",
            record_of(request(l=number + 2), environment={**ENVIRONMENT, "state": state}),
        )
        for number, state in enumerate(states)
    ]
    assert run(*paths, "-o", tmp_path / "all.jsonl") == 0


def test_lines_that_are_no_records_are_left_out_and_named(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, whole = files
    with first.open("ab") as file:
        file.write(b'{"schema": 1, "mix')
    assert run(first, second, "-o", whole) == 1
    assert f"{first} line 3 is cut off and was skipped" in capsys.readouterr().err
    assert len(read(whole)[0]) == 3 and read(whole)[1] == []


def test_bad_input_is_one_sentence(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, whole = files
    assert "name one, -o FILE.jsonl" in refusal(capsys, first, second)
    assert "is an input of this command: write to another file" in refusal(
        capsys, first, second, "-o", first
    )
    missing = whole.with_name("none.jsonl")
    assert "No such file" in refusal(capsys, first, missing, "-o", whole)
    empty = whole.with_name("empty.jsonl")
    empty.write_bytes(b"[]\n")
    assert f"{empty} holds no measurement: line 1 is no meas" in refusal(
        capsys, first, empty, "-o", whole
    )
    whole.write_text("mine", encoding="utf-8")
    assert "exists already" in refusal(capsys, first, second, "-o", whole)
    assert whole.read_text(encoding="utf-8") == "mine"
    assert run(first, second, "-o", whole, "--force") == 0
