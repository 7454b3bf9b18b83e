"""Is every point of a grid measured once, however often the sweep is interrupted?"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import cli
from costmodel.report.formats import formats
from profiler.reconcile import ladder
from profiler.records.keys import key_of
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.store import StoreError, append, read
from profiler.run.request import Request
from profiler.sweep import session
from profiler.sweep.failures import DISTURBED, FAILED, MEMORY, REFUSED, Failure, failed_record
from profiler.sweep.results import Results
from tests import sweeping
from tests.stand_ins import Instead
from tests.sweeping import Thread, grid, keys_in, measure, one_worker, points_of, record_of


def swept(path: Path, lengths: Any = (2, 3, 5), starts: Any = None, **more: Any) -> session.Session:
    """The grid measured into a file."""
    return session.sweep(grid(lengths), Results(path), starts or one_worker(), **more)


def until(number: int, how: BaseException) -> Callable[..., Measurement]:
    """Measures so many points, then is interrupted."""
    left = [number]

    def measured(asked: Request, **more: Any) -> Measurement:
        if not left[0]:
            raise how
        left[0] -= 1
        return measure(asked, **more)

    return measured


def test_a_sweep_measures_the_plan_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    found = swept(path)
    assert keys_in(path) == [point.key for point in points_of(grid())]
    assert (found.failures, found.measurements) == ([], [])
    for record, point in zip(read(path)[0], points_of(grid()), strict=True):
        assert record.sweep == {
            "round": point.round, "turn": point.turn, "order_seed": 0, "worker": "cpu",
        }  # fmt: skip


@pytest.mark.parametrize("number", range(0, 19, 3))
def test_interrupted_and_resumed_is_as_never_interrupted(number: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    interrupted = one_worker(until(number, KeyboardInterrupt()))
    if number < 18:  # all points of the grid
        with pytest.raises(KeyboardInterrupt):
            swept(path, starts=interrupted)
    else:
        swept(path, starts=interrupted)
    assert len(keys_in(path) if path.exists() else []) == number
    swept(path)
    assert keys_in(path) == [point.key for point in points_of(grid())]
    before = path.read_bytes()
    swept(path, starts=one_worker(until(0, AssertionError("nothing is left to measure"))))
    assert path.read_bytes() == before


@given(cuts=st.lists(st.integers(0, 20_000), max_size=4))
def test_cut_anywhere_and_resumed_no_point_is_there_twice(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "runs.jsonl"
    for cut in cuts:
        swept(path)
        path.write_bytes(path.read_bytes()[:cut])
    swept(path)
    assert sorted(keys_in(path)) == sorted(point.key for point in points_of(grid()))


def test_a_wider_grid_adds_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    swept(path, (2, 3))
    swept(path, (2, 3, 5, 7))
    assert sorted(keys_in(path)) == sorted(p.key for p in points_of(grid((2, 3, 5, 7))))


def test_failures_are_lines_and_are_not_tried_again_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    lengths = (2, sweeping.MEMORY, sweeping.REFUSED, sweeping.FAILED)
    found = swept(path, lengths)
    assert found.kinds == {MEMORY: 6, REFUSED: 6, FAILED: 6}
    assert len(found.failures) == 3  # each said once
    records, problems = read(path)
    assert (len(records), problems) == (24, [])
    assert swept(path, lengths).kinds == {} and len(keys_in(path)) == 24
    assert swept(path, lengths, retry=True).kinds == found.kinds
    assert len(keys_in(path)) == 24 + 18  # the history of failures; nothing measured twice
    assert len({key_of(r) for r in read(path)[0] if not r.failure}) == 6


def test_what_others_measure_meanwhile_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    plan = points_of(grid())
    seen: list[str] = []

    def measured(asked: Request, **more: Any) -> Measurement:
        if not seen:
            append(path, record_of(plan[1].request, sweep=plan[1].place))
        seen.append("")
        return measure(asked, **more)

    swept(path, starts=one_worker(measured))
    assert len(seen) == len(plan) - 1
    assert sorted(keys_in(path)) == sorted(point.key for point in plan)


def test_a_point_that_two_measure_at_once_is_kept_once_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    point = points_of(grid())[0]

    def measured(asked: Request, **more: Any) -> Measurement:
        if asked == point.request and not path.exists():
            append(path, record_of(asked))
        return measure(asked, **more)

    told: list[str] = []
    swept(path, starts=one_worker(measured), tell=told.append)
    assert sorted(keys_in(path)) == sorted(p.key for p in points_of(grid()))
    assert [sentence.split(": ")[1:] for sentence in told] == [
        [
            "another process measured the same point meanwhile, so this record was dropped",
            "give each process its own --shard",
        ]
    ]


def test_another_machine_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    swept(path, (2,))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"in another environment \(torch: 9.9 and 1"):
        swept(path, starts=one_worker(environment={"torch": "10"}))
    assert path.read_bytes() == before


def test_two_devices_that_differ_are_refused_unless_mixed(tmp_path: Path) -> None:
    """Whichever of them begins first."""
    path = tmp_path / "runs.jsonl"
    meeting = threading.Barrier(2, timeout=60)

    class Meeting(Thread):
        def begin(self) -> None:
            meeting.wait()

    starts = {name: partial(Meeting, environment={"device_name": name}) for name in ("A", "B")}
    with pytest.raises(StoreError, match=r"\(device_name: (A and B|B and A)\)"):
        swept(path, range(2, 12), starts=starts)
    done = path.read_bytes() if path.exists() else b""
    results = Results(path, mixed=True)
    session.sweep(grid(range(2, 12)), results, starts)
    assert path.read_bytes().startswith(done)
    assert len(keys_in(path)) == 60


def test_shards_fill_the_file_that_one_would(tmp_path: Path) -> None:
    from profiler.sweep.order import part

    path = tmp_path / "runs.jsonl"
    for number in (2, 1, 3):
        session.sweep(part(grid(), number, 3), Results(path), one_worker())
    assert sorted(keys_in(path)) == sorted(point.key for point in points_of(grid()))


# Progress


def test_what_happens_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    swept(tmp_path / "runs.jsonl", (2,), progress=lambda *what: told.append(what))
    assert [done for done, _, _ in told] == [0, 1, 2, 3, 4, 5, 6]
    assert {of for _, of, _ in told} == {6}
    assert all(what.endswith(": inventing") for _, _, what in told[:-1])
    assert told[-1] == (6, 6, "done")


# The commands


@pytest.fixture
def invented(instead: Instead) -> None:
    """Commands invent what they measure."""
    instead(processes=lambda *_: one_worker())


def run(*words: str) -> int:
    """The exit code of a command."""
    return cli.run([str(word) for word in words])


SMALL = ("me", "self-attention", "--d", "2", "--n", "1", "--device", "cpu")


@pytest.mark.usefixtures("invented")
def test_a_sweep_says_what_it_measured_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    words = ("sweep", *SMALL, "-o", str(path))
    assert run(*words, "--l", "2,3") == 0
    out = capsys.readouterr()
    assert out.out == f"{path} holds 16 of 16 points\n"
    assert {*out.err.splitlines()} == {"a module that prints"}  # standard output holds answers
    assert run(*words, "--l", f"2,{sweeping.MEMORY}") == 0
    out = capsys.readouterr()
    assert f"{path} holds 8 of 16 points; out of memory: 8\n" in out.out
    assert "20.00 GiB" in out.err
    assert run(*words, "--l", f"2,{sweeping.MEMORY}") == 0
    assert "failed before and not tried again: 8 points (--retry" in capsys.readouterr().err
    assert run(*words, "--l", f"2,{sweeping.FAILED}") == 1
    out = capsys.readouterr()
    assert "call failed: 8" in out.out and "torch has none" in out.err
    assert run(*words, "--l", str(sweeping.MEMORY)) == 1  # nothing at all was measured


@pytest.mark.usefixtures("invented")
def test_sizes_that_one_mixer_refuses_are_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    words = ("sweep", "me", "self-attention", "--d", "4,5", "--n", "2", "--l", "2", "-o", str(path))
    assert run(*words, "--rounds", "1", "--device", "cpu") == 0
    assert "holds 6 of 8 points; refused: 2" in capsys.readouterr().out
    (sentence,) = {r.reasons["measurement"] for r in read(path)[0] if r.failure}
    assert "choose d divisible by n" in sentence
    assert run(*words[:2], "self-attention", *words[3:4], "5", *words[5:], "--device", "cpu") == 2


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    starts = one_worker(until(5, KeyboardInterrupt()))
    instead(processes=lambda *_: starts)
    path = tmp_path / "runs.jsonl"
    assert run("sweep", *SMALL, "--l", "2,3", "-o", str(path)) == 130
    said = f"interrupted: {path} holds 5 of 16 points; the same command goes on from there"
    assert said in capsys.readouterr().err


def test_a_plan_is_printed_and_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    instead(fleet=None)
    path = tmp_path / "runs.jsonl"
    words = ("sweep", *SMALL, "--l", "2:8:x2", "--rounds", "3", "-o", str(path))
    assert run(*words, "--plan") == 0
    out = capsys.readouterr().out
    assert "Plan of a sweep: 36 points in 3 blocks" in out and not path.exists()
    assert run(*words, "--dry-run", "--shard", "1/2", "--format", "json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert len(points) == 24 and {point["round"] for point in points} == {0, 1, 2}
    for point in points[:5]:
        sizes = {**point["sizes"]}
        asked = sweeping.request(point["mixer"], point["implementation"], l=sizes["l"])
        append(path, record_of(asked, sweep={"round": point["round"]}))
    assert run(*words, "--plan", "--format", "csv") == 0
    rows = capsys.readouterr().out.splitlines()
    # me at l = 2, 4, 8, and self-attention with a size more, at as many
    assert rows[-1].split(",")[-5:] == ["6", "36", "5", "0", "31"]
    assert run(*words, "--plan", "--format", "markdown") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--l", "2"), "sweep needs a file for its records: name one, -o FILE.jsonl"),
        (("--l", "2", "--plan", "--shard", "0/4"), "expected i/n, the i-th of n parts"),
        (("--l", "2", "--plan", "--format", "pdf"), ", ".join(formats("rows", "data"))),
        (("--l", "2", "--plan", "--impl", "none"), "no implementation 'none'"),
        (("--l", "0", "--plan"), "size l must lie in 1..2**40, got 0"),
        (("--l", "2", "-o", "missing/runs.jsonl"), "cannot write missing/runs.jsonl: No such file"),
        (("--l", "2", "--plan", "--rounds", "0"), "--rounds"),
        (("--l", "2", "--plan", "--rounds", "1000000000"), "expected at most 100,000"),
        (("--l", "1:1000", "--plan", "--processes", "1000"), "expected at most 100,000"),
        (
            ("--l", "1:30000", "--phase", "both", "--plan", "--rounds", "1000"),
            "(120,000 in a round, rounds: 1,000, processes: 1): expected at most 100,000",
        ),
        (("--l", "2", "--plan", "--shard", ""), "--shard is empty: give it a value, or leave it"),
        (("--l", "2", "--plan", "--ray="), "--ray is empty: give it a value, or leave it out"),
        (("--l", "2", "--plan", "--device", ""), "--device is empty: give it a value"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sweep", *SMALL, *words) == 2
    err = capsys.readouterr().err
    assert sentence in err and len(err.strip().splitlines()) == 1


def test_a_worker_that_cannot_measure_is_a_sentence(
    tmp_path: Path, instead: Instead, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = {"cpu": lambda: Thread(unfit="the measuring process did not start: it ended")}
    instead(processes=lambda *_: starts)
    assert run("sweep", *SMALL, "--l", "2", "-o", str(tmp_path / "runs.jsonl")) == 2
    assert "cpu: the measuring process did not start: it ended" in capsys.readouterr().err
    with pytest.raises(MeasureError):
        swept(tmp_path / "runs.jsonl", starts=starts)


# Real modules


def test_real_modules_are_measured_by_a_process_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    words = ("sweep", "me", "--impl", "toeplitz", "--d", "2", "--l", "3", "--seconds", "0.02",
             "--phase", "both", "--rounds", "1", "--device", "cpu", "-o", str(path))  # fmt: skip
    assert run(*words) == 0  # on a busy machine too: every call that ran has a time
    assert f"{path} holds 2 of 2 points" in capsys.readouterr().out
    records, problems = read(path)
    assert problems == [] and {r.phase for r in records} == {"training", "inference"}
    assert all("latency" in r.readings for r in records)
    assert run("reconcile", "--from", str(path), "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["ladders"]) == 2
    before = path.read_bytes()
    assert run(*words, "--format", "csv") == 0  # a record a line, and no word of another command
    assert path.read_bytes() == before
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert header.startswith("mixer,implementation,") and lines
    assert "2 of 2 points" in err and "another command" not in err


def test_a_point_that_an_older_version_left_without_a_latency_is_tried_again(
    tmp_path: Path,
) -> None:
    path, blocks = tmp_path / "runs.jsonl", grid((2, 3), rounds=1)
    waited = Failure(DISTURBED, "1 of 9 blocks were undisturbed, and a median needs 6")
    for point in points_of(blocks)[:3]:
        append(path, failed_record(point, waited, sweeping.ENVIRONMENT))
    assert sorted(Results(path).state.values()) == ["disturbed"] * 3
    assert not session.sweep(blocks, Results(path), one_worker()).failures
    assert set(Results(path).state.values()) == {"measured"}


def test_a_recorded_failure_has_no_ladder_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    swept(path, (sweeping.MEMORY,))
    found, problems = ladder.ladders(read(path)[0])
    assert found == [] and len(problems) == 2  # of one mixer's records a sentence
    failed = "keeps a failure: me toeplitz (fp32): out of memory"
    for problem, (mixer, more) in zip(problems, (("self-attention", 1), ("me", 3)), strict=True):
        assert f"({mixer}) {failed}" in problem and problem.endswith(f" (and {more} more)")
