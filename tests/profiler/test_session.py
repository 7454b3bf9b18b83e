"""Is a plan measured without losing records, and are kept records found again?"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import cli
import costmodel as cm
from profiler.meters.sampler import LatencyLimits
from profiler.modules import implementations
from profiler.reconcile.ladder import ladders
from profiler.reconcile.levels import row_classes
from profiler.reconcile.report import document
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError, Reading
from profiler.records.store import StoreError, append, read
from profiler.run.plan import implementation_of
from profiler.run.request import Request
from profiler.sweep import session
from profiler.sweep.recorded import recorded as records_of
from profiler.sweep.session import run
from tests.printing import printed
from tests.recorded import ATTENTION, LAUNCH_BOUND, UNTIMED, dispatch, recorded
from tests.stand_ins import Instead
from tests.user_mixers import written

ROOT = Path(__file__).parents[2]
BRIEF = LatencyLimits(
    min_blocks=2, max_blocks=2, max_seconds=0.02, warmup_calls=3, warmup_seconds=0.02
)


def request(implementation: str = "toeplitz") -> Request:
    """ME at small sizes."""
    chosen = implementations("me")[implementation]
    return Request(cm.mixer("me"), chosen, {"b": 1, "l": 3, "d": 2})


Outcome = Measurement | BaseException


@pytest.fixture
def outcomes(instead: Instead) -> Callable[..., None]:
    """Let measurements give what a test says, one after the other, instead of measuring."""

    def prepared(*listed: Outcome) -> None:
        waiting: Iterator[Outcome] = iter(listed)

        def next_one(asked: Request, **_: Any) -> Measurement:
            found = next(waiting)
            if isinstance(found, BaseException):
                raise found
            return found

        instead(measure=next_one)

    return prepared


def test_records_are_on_disk_before_the_next_measurement_starts(
    tmp_path: Path, instead: Instead
) -> None:
    path = tmp_path / "results.jsonl"
    before: list[int] = []

    def counting(asked: Request, **_: Any) -> Measurement:
        before.append(len(path.read_bytes().splitlines()) if path.exists() else 0)
        return ATTENTION

    instead(measure=counting)
    run([request()] * 3, path)
    assert before == [0, 1, 2]


def test_an_interrupt_loses_nothing_that_was_measured(
    tmp_path: Path, outcomes: Callable[..., None]
) -> None:
    path = tmp_path / "results.jsonl"
    outcomes(ATTENTION, KeyboardInterrupt(), UNTIMED)
    found = run([request()] * 3, path)
    assert found.interrupted and found.measurements == [ATTENTION]
    assert read(path) == ([ATTENTION], [])
    outcomes(LAUNCH_BOUND)
    run([request()], path)
    assert read(path) == ([ATTENTION, LAUNCH_BOUND], [])


def test_a_process_that_is_killed_loses_nothing_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    code = (
        "import os, sys, pathlib\n"
        "from profiler.sweep import session\n"
        "from tests.recorded import ATTENTION\n"
        "waiting = iter([lambda: ATTENTION, lambda: os._exit(9)])\n"
        "session.measure = lambda asked, **_: next(waiting)()\n"
        "from tests.profiler.test_session import request\n"
        "session.run([request()] * 2, pathlib.Path(sys.argv[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=False)
    assert done.returncode == 9
    assert read(path) == ([ATTENTION], [])


def test_a_failure_is_a_sentence_and_stops_nothing_else(
    tmp_path: Path, outcomes: Callable[..., None]
) -> None:
    path = tmp_path / "results.jsonl"
    outcomes(ATTENTION, MeasureError("me fft (bf16): torch has none"), UNTIMED)
    found = run([request()] * 3, path)
    assert found.measurements == [ATTENTION, UNTIMED] == read(path)[0]
    assert found.failures == ["me fft (bf16): torch has none"]
    assert found.lost == []  # another try at the same point was measured


def test_a_request_that_failed_has_a_record_with_its_reason(
    outcomes: Callable[..., None],
) -> None:
    outcomes(ATTENTION, MeasureError("worn out"), MeasureError("worn out"))
    found = run([request(), request("fft"), request("fft")])
    (lost,) = found.lost
    assert (lost.mixer, lost.implementation, lost.sizes) == ("me", "fft", request().sizes)
    assert lost.failed and lost.reason("latency") == "worn out"


def test_a_failed_call_names_its_points(outcomes: Callable[..., None]) -> None:
    failed = MeasureError("no luck")
    failed.__cause__ = RuntimeError("what torch raised")
    outcomes(*[failed] * 6)
    at = [dataclasses.replace(request(), sizes={"b": 1, "d": 2, "l": n}) for n in (3, 5, 7)]
    first = "no luck (at training, b = 1, l = 3, d = 2"
    assert run(at[:1]).failures == [f"{first})"]
    assert run(at[:2]).failures == [f"{first}, and at training, b = 1, l = 5, d = 2)"]
    assert run(at).failures == [f"{first}, and at 2 other points)"]


def test_progress_is_told(outcomes: Callable[..., None]) -> None:
    told: list[tuple[int, int, str]] = []
    outcomes(ATTENTION, MeasureError("no"))
    run([request()] * 2, progress=lambda *what: told.append(what))
    assert told == [(2, 2, "done")]
    real: list[tuple[int, int, str]] = []
    session.run([], progress=lambda *what: real.append(what))
    assert real == [(0, 0, "done")]


def test_a_live_session_says_what_it_measures(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "results.jsonl"
    found = run([request()], path, limits=BRIEF, progress=lambda done, of, what: told.append(what))
    assert told[0] == "me toeplitz: building" and told[-1] == "done"
    assert read(path) == (found.measurements, [])
    (ladder,) = ladders(found.measurements)[0]
    assert ladder.explained


@pytest.mark.parametrize("name", ["no-such-folder/results.jsonl", "."])
def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(
    name: str, tmp_path: Path, outcomes: Callable[..., None]
) -> None:
    outcomes(RuntimeError("it was measured"))
    with pytest.raises(StoreError, match=r"cannot write .*: (No such file|Is a directory)"):
        run([request()], tmp_path / name)


def test_a_file_that_is_not_needed_is_not_made(
    tmp_path: Path, outcomes: Callable[..., None]
) -> None:
    outcomes(MeasureError("no"))
    run([request()], tmp_path / "results.jsonl")
    assert list(tmp_path.iterdir()) == []


# Reading


def test_a_file_cut_off_mid_line_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for record in (ATTENTION, UNTIMED):
        append(path, record)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert records_of([path]) == ([ATTENTION], [f"{path}: line 2 is cut off and was skipped"])


def test_many_records_take_little_memory(tmp_path: Path) -> None:
    """Of 7 records with 1,009 samples each, what is kept takes 8 bytes a sample, and no list of
    tensors where the command reads none."""
    path, found = tmp_path / "many.jsonl", []
    samples = tuple(0.5 + i / 4096 for i in range(1009))
    details = {"blocks": [1] * 1009, "waiting": [*samples]}
    latency = Reading("latency", 0.5, "s", samples, details)
    listed = ATTENTION.readings["tensors_at_peak"]
    for i in range(7):
        found.append(replace(ATTENTION, id=str(i), readings={"latency": latency, "peak": listed}))
        append(path, found[-1])
    records_of([path], without=["tensors"])  # fills the caches
    tracemalloc.start()
    kept, _ = records_of([path], without=["tensors"])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 7 * (3 * 8 * 1009 + 8_000)
    assert [tuple(each.readings["latency"].samples) for each in kept] == [samples] * 7
    assert [*kept[0].readings["peak"].details] == ["rounding", "released"]
    assert records_of([path])[0][0].readings["peak"].details == listed.details


def test_records_share_equal_environments_and_counts(tmp_path: Path) -> None:
    """But for the facts that a command leaves out, such as the machine's state."""
    path = tmp_path / "many.jsonl"
    for i in range(3):
        facts = {"cores": 2 + i // 2, "state": {"load_average": i}}
        append(
            path,
            replace(ATTENTION, id=str(i), environment=facts, counts={"seed": 5, "call": {"i": i}}),
        )
    first, second, other = records_of([path], without=["state", "call"])[0]
    assert first.environment is second.environment and first.counts is other.counts
    assert (first.environment, other.environment) == ({"cores": 2}, {"cores": 3})
    assert first.counts == {"seed": 5} and records_of([path])[0][2].counts["call"] == {"i": 2}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no measurement"),
        (b'{"schema": 1, "id"', "holds no measurement: line 1 is cut off and was skipped"),
        (b"\x00\xff\n", "holds no measurement: line 1 is not valid JSON and was skipped"),
        (b'{"schema": 2}\n', "expected schema 1, got 2"),
        (b"[1, 2]\n", "expected an object, got list"),
    ],
)
def test_a_file_without_a_record_is_one_sentence(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoreError) as refused:
        records_of([path])
    assert sentence in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    with pytest.raises(StoreError, match=f"cannot read {path}: No such file"):
        records_of([path])
    with pytest.raises(StoreError, match=f"cannot read {tmp_path}: Is a directory"):
        records_of([tmp_path])


def problem_of(record: Measurement) -> str:
    """What is said of a record beside one that has a ladder."""
    found, problems = ladders([ATTENTION, record])
    assert [ladder.mixer for ladder in found] == ["self-attention"]
    (problem,) = problems
    assert problem.startswith(f"record {record.id[:8]} ({record.mixer})")
    return problem


def test_a_record_of_an_unknown_mixer() -> None:
    assert "unknown mixer 'shee'; did you mean 'she'?" in problem_of(
        replace(ATTENTION, mixer="shee")
    )


def test_a_record_of_an_unknown_implementation() -> None:
    sentence = "no implementation 'flash': self-attention has explicit, sdpa"
    assert sentence in problem_of(replace(ATTENTION, implementation="flash"))


def test_a_record_of_a_file_that_nobody_imported() -> None:
    found = problem_of(replace(ATTENTION, mixer="gone.py:mine"))
    assert "a data file names 'gone.py', and data run no code" in found


def test_a_record_of_a_class_that_is_gone() -> None:
    found = problem_of(replace(ATTENTION, implementation="gone.py:Mine"))
    assert "no file 'gone.py'" in found


def test_records_of_one_unknown_mixer_are_one_sentence() -> None:
    found = [replace(ATTENTION, mixer="shee", id=f"{k:08}-x") for k in range(3)]
    _, (said,) = ladders(found)
    assert said.startswith("record 00000000 (shee): unknown mixer 'shee'")
    assert said.endswith(" (and 2 more)")


def test_a_time_without_details_keeps_its_value(tmp_path: Path) -> None:
    """What every time tells beside its value is made of its samples."""
    path, plain = tmp_path / "plain.jsonl", json.loads(json.dumps(ATTENTION.to_json()))
    plain["readings"]["latency"]["details"] = {}
    path.write_text(json.dumps(plain) + "\n", encoding="utf-8")
    records, _ = records_of([path])
    (made,), problems = ladders(records)
    cost, samples = made.rungs["5"], plain["readings"]["latency"]["samples"]
    assert problems == [] and cost["latency_s"] == plain["readings"]["latency"]["value"]
    assert cost["latency_samples"] == len(samples) > 0
    assert min(samples) <= cost["latency_p20_s"] <= cost["latency_p80_s"] <= max(samples)
    assert "stopped by a rule that is not recorded" in printed(document([made], full=True), "rich")


def test_a_record_without_its_counts() -> None:
    said = problem_of(replace(ATTENTION, counts={}))
    assert "torch operations were not counted: run costmodel reconcile self-attention" in said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"counts": {"dispatch": {}}}, "lacks 'operations', which every measurement of schema 1"),
        ({"sizes": {"b": 1, "l": 8}}, "no value for size d"),
        ({"sizes": {"b": 1, "l": 8, "d": 8, "n": 3}}, "choose d divisible by n"),
        ({"phase": "dreaming"}, "unknown phase 'dreaming': did you mean 'training'? expected"),
        ({"dtype": "fp12"}, "unknown dtype 'fp12': expected one of"),
    ],
)
def test_a_record_that_was_tampered_with(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in problem_of(replace(ATTENTION, **changes))


# Mixers of a user's own


def test_a_mixer_of_ones_own_is_found_again_by_its_file(tmp_path: Path) -> None:
    name = written(tmp_path, "window-recorded")
    sizes = {"b": 1, "l": 5, "d": 2, "w": 3}
    counted = cm.count(cm.mixer(name)).at(**sizes)
    record = recorded(
        name, "direct", sizes,
        counts={"dispatch": dispatch(7, mul=counted.mul, add=counted.add), "peers": {}},
    )  # fmt: skip
    (ladder,), problems = ladders([record])
    assert problems == []
    assert ladder.mixer == name
    assert ladder.unexplained == {"1-2": {}, "2-3": {}}


def test_a_record_leads_from_another_process_to_a_class_in_a_file(tmp_path: Path) -> None:
    """A described class too: only its file's name is known elsewhere."""
    name = written(tmp_path, "window-elsewhere")
    chosen = name.replace(":window-elsewhere", ":Window")
    path = tmp_path / "results.jsonl"
    common = ["--seconds", "0.02", "--l", "3", "--d", "2", "--w", "2", "--format", "json"]
    profile = ["profile", name, "--impl", chosen, "-o", str(path), *common]
    own = ["--own", name.partition(":")[0]]
    assert cli.run(profile) == 0
    done = subprocess.run(
        [sys.executable, "cli.py", "reconcile", "--from", str(path), *own, "--format", "json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (ladder,) = json.loads(done.stdout)["ladders"]
    assert (ladder["mixer"], ladder["implementation"]) == (name, chosen)
    assert ladder["unexplained"] == dict.fromkeys(("1-2", "2-3"), row_classes({}))


def test_which_implementation_a_record_names() -> None:
    assert implementation_of(cm.mixer("we"), "fft").name == "fft"
    with pytest.raises(MeasureError, match="no implementation 'conv': we has toeplitz, fft"):
        implementation_of(cm.mixer("we"), "conv")


def test_a_busy_machine_is_told_once_at_the_first_time(outcomes: Callable[..., None]) -> None:
    """What it still lets be said, too."""
    details = {"grade": "busy", "labels": ["preempted"], "waiting": [0.5, 0.7, 0.6]}
    busy = Reading("latency", 1e-3, "s", (1e-3,), details)
    outcomes(ATTENTION, *[replace(ATTENTION, readings={"latency": busy})] * 2)
    said: list[str] = []
    run([request()] * 3, tell=said.append)
    (sentence,) = said
    assert sentence.startswith("other programs use the processors (a thread waited for 60% of")
    assert "estimates" in sentence and "operations and bytes are as on a quiet machine" in sentence
