"""Does a file of measurements keep every record, whatever happens to its end?"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.records.measurement import Measurement, divide
from profiler.records.reading import Reading, Unavailable
from profiler.records.schema import RecordError
from profiler.records.store import CUT, StoreError, append, line_of, read
from profiler.sweep.results import writable

ROOT = Path(__file__).parents[2]

WAS_CUT = (
    "line 2 was cut off as its writer was stopped, and was skipped; the records below it are whole"
)


DETAILS = {"n": 3, "p20": 0.25, "p80": 0.75, "stop_rule": "time cap"}

TORCH = {"total": 3, "unit": "flop", "uncounted": {}, "uncounted_time_share": None}


def measurement(**changes: object) -> Measurement:
    made = Measurement(
        mixer="she",
        implementation="conv",
        form="direct",
        sizes={"b": 1, "d": 3, "l": 5},
        dtype="float32",
        phase="training",
        device="cpu",
        readings={"latency": Reading("latency", 0.5, "s", (0.25, 0.5, 0.75), DETAILS)},
        reasons={"energy": "NVML: library not found"},
        counts={"operations": {"mul": 7}},
        environment={"python": "3.11"},
    )
    return replace(made, **changes)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, second = measurement(), measurement(phase="inference")
    append(path, first)
    append(path, second)
    assert read(path) == ([first, second], [])
    assert first.id != second.id
    assert path.read_bytes().count(b"\n") == 2


def test_the_garbage_collector_is_as_before_once_records_are_read(tmp_path: Path) -> None:
    before = gc.isenabled(), gc.get_freeze_count()
    append(tmp_path / "runs.jsonl", measurement())
    assert len(read(tmp_path / "runs.jsonl")[0]) == 1
    assert (gc.isenabled(), gc.get_freeze_count()) == before


def test_fields_of_schema_1() -> None:
    printed = measurement().to_json()
    assert printed["schema"] == 1
    assert printed.keys() >= {
        "id", "mixer", "implementation", "form", "sizes", "dtype", "phase", "device",
        "readings", "reasons", "environment", "created",
    }  # fmt: skip
    assert printed["readings"]["latency"] == {
        "value": 0.5,
        "unit": "s",
        "samples": [0.25, 0.5, 0.75],
        "details": DETAILS,
    }
    assert printed["created"].endswith("+00:00")


def test_every_cut_keeps_what_came_before(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    kept, lost = measurement(), measurement(mixer="me")
    append(whole, kept)
    after_first = whole.stat().st_size
    append(whole, lost)
    data = whole.read_bytes()
    for size in range(after_first + 1, len(data) - 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(data[:size])
        records, problems = read(cut)
        assert records == [kept]
        assert problems == ["line 2 is cut off and was skipped"]


def test_appending_after_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, second = measurement(), measurement(mixer="me")
    append(path, first)
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "mix')
    append(path, second)
    remarks: list[str] = []
    assert read(path, remarks.append) == ([first, second], [])
    assert remarks == [WAS_CUT]
    assert path.read_bytes().count(b'{"schema": 1, "mix' + CUT + b"\n") == 1


def test_going_on_from_a_file_cut_at_any_byte_leaves_no_problem(tmp_path: Path) -> None:
    """Every offset within the second record and within what marks it as cut off."""
    path = tmp_path / "results.jsonl"
    kept, lost, last = measurement(), measurement(mixer="café"), measurement(mixer="me")
    append(path, kept)
    first = path.stat().st_size
    whole = path.read_bytes() + line_of(lost).encode()
    for size in range(first, len(whole) + 1):
        path.write_bytes(whole[:size])
        append(path, last)
        remarks: list[str] = []
        there = [lost] if size == len(whole) else []  # the newline alone is missing
        assert read(path, remarks.append) == ([kept, *there, last], [])
        assert remarks == ([WAS_CUT] if first < size < len(whole) else [])
        assert path.read_bytes().startswith(whole[:size])  # earlier bytes are untouched
    for size in range(len(CUT) + 1):
        path.write_bytes(whole[:-9] + CUT[:size])
        append(path, last)
        assert read(path) == ([kept, last], [])


def test_a_cut_line_that_nobody_went_on_from_is_a_problem_whatever_it_ends_with(
    tmp_path: Path,
) -> None:
    path = tmp_path / "results.jsonl"
    append(path, measurement())
    path.write_bytes(path.read_bytes() + b'{"schema": 1, "mix' + CUT)
    assert read(path)[1] == ["line 2 is cut off and was skipped"]


@pytest.mark.parametrize(
    "garbage", [b"hello", b"[]", b"\xff\xfe", b'{"schema": 1}', b'{"weather": "fi', b"x" * 5000]
)
def test_what_never_was_a_record_stays_a_problem(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "results.jsonl"
    kept, last = measurement(), measurement(mixer="me")
    append(path, kept)
    path.write_bytes(path.read_bytes() + garbage)
    append(path, last)
    remarks: list[str] = []
    records, problems = read(path, remarks.append)
    assert records == [kept, last] and remarks == []
    assert len(problems) == 1 and problems[0].startswith("line 2 is no")


def test_a_whole_line_that_was_damaged_stays_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for mixer in ("she", "me", "lstm"):
        append(path, measurement(mixer=mixer))
    texts = path.read_bytes().split(b"\n")
    texts[1] = texts[1].replace(b'"mixer"', b'"mixer')
    path.write_bytes(b"\n".join(texts))
    assert read(path)[1] == ["line 2 is not valid JSON and was skipped"]


def test_a_whole_last_line_without_newline_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = measurement()
    append(path, first)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read(path) == ([first], [])
    append(path, first)
    assert read(path) == ([first, first], [])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[]", "line 1 is no measurement and was skipped: expected an object, got list"),
        (b'{"schema": 2}', "expected schema 1, got 2"),
        (b'{"schema": 1}', "id is missing"),
        (b"\xff\xfe", "line 1 is not valid JSON"),
        (b'{"schema": NaN}', "schema is not a finite number"),
        (b'{"id": ' + b"9" * 5000 + b"}", "id is not a finite number"),
        (b'{"id": ' + b"9" * 30 + b"}", "id is not a finite number"),
        (b'{"id": 12345678901234567890}', "id: expected a whole number of at most"),
        (b'{"value": 1e999}', "value is not a finite number"),
        (b'{"labels": ' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper than 30 levels"),
        (b"[" * 100_000, "line 1 is not valid JSON"),
    ],
)
def test_other_lines_are_problems(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(line + b"\n\n")
    kept = measurement()
    append(path, kept)
    records, problems = read(path)
    assert records == [kept]
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sizes": {"d": 1.5}}, "sizes.d: expected `int`, got `float`"),
        ({"sizes": {"d": 0}}, "sizes.d: expected `int` >= 1"),
        ({"sizes": [1]}, "sizes: expected `object`, got `array`"),
        ({"mixer": 3}, "mixer: expected `str`, got `int`"),
        ({"phase": "dreaming"}, "phase: expected training, inference, backward or training-step"),
        ({"device": "toaster"}, "device: expected cpu, cuda, or cuda with a number, cuda:0"),
        ({"readings": {"latency": 1}}, "readings.latency: expected `object`, got `int`"),
        ({"reasons": {"energy": 3}}, "reasons.energy: expected `str`, got `int`"),
        ({"environment": {"state": 4}}, "environment.state: expected `object | null`, got `int`"),
        ({"sweep": {"options": 3}}, "sweep.options: expected `object`, got `int`"),
        ({"sweep": {"round": -1}}, "sweep.round: expected `int` >= 0"),
        ({"counts": {"seed": [1]}}, "counts.seed: expected `int`, got `array`"),
        ({"counts": []}, "counts: expected `object`, got `array`"),
        ({"counts": {"dispatch": {"launched": 3}}}, "counts.dispatch: object missing required"),
        (
            {"counts": {"peers": {"one": TORCH, "two": TORCH | {"total": -1}}}},
            "counts.peers.two.total: expected `int` >= 0",
        ),
        ({"labels": [1]}, "labels[0]: expected `str`, got `int`"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(RecordError) as raised:
        Measurement.from_json(measurement().to_json() | changes)
    assert str(raised.value).startswith(problem)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"value": "0"}, ".value: expected `int | float`, got `str`"),
        ({"value": -0.5}, ": -0.5 s is too small: expected more than 0"),
        ({"samples": [0.5, 0.0]}, ": 0.0 s is too small: expected more than 0"),
        ({"samples": 3}, ".samples: expected `array`, got `int`"),
        ({"unit": "ms"}, ".unit: expected 's', got 'ms'"),
        ({"details": {**DETAILS, "labels": 3}}, ".details.labels: expected `array`, got `int`"),
        ({"details": {**DETAILS, "n": -3}}, ".details.n: expected `int` >= 0"),
        (
            {"details": {**DETAILS, "ci_low": 0.6, "ci_high": 0.4}},
            ".details: the value 0.5 lies outside",
        ),
        ({"details": {**DETAILS, "ci_low": 0.4}}, ".details: got ci_low alone"),
        ({"details": {**DETAILS, "graph_gain": "7"}}, ".details.graph_gain: expected"),
        (
            {"details": {**DETAILS, "ci_low": -1, "ci_high": 1}},
            ".details.ci_low: -1 s is too small",
        ),
    ],
)
def test_wrong_readings_are_named(changes: dict[str, object], problem: str) -> None:
    record = measurement().to_json()
    record["readings"]["latency"] |= changes
    with pytest.raises(RecordError) as raised:
        Measurement.from_json(record)
    assert str(raised.value).startswith(f"readings.latency{problem}")


def test_no_text_of_a_record_commands_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    told = {"energy": "\x1b[31mred\x9b, \ud800 and\ttab"}
    path.write_text(json.dumps(measurement(reasons=told).to_json()) + "\n")
    append(path, measurement(reasons=told))
    for record in read(path)[0]:
        assert record.reasons["energy"] == "\ufffd[31mred\ufffd, \ufffd and\ttab"
    plain = line_of(measurement(reasons={"energy": "X"}))
    for written, read_ in {"\\b": "\ufffd", "\\r": "\ufffd", "\x7f": "\ufffd", "\\t": "\t"}.items():
        path.write_text(plain.replace('"X"', f'"{written}"') + "\n")
        assert read(path)[0][0].reasons["energy"] == read_


@pytest.mark.parametrize("ascii_", [True, False])
def test_what_records_have_in_common_is_in_memory_once(tmp_path: Path, ascii_: bool) -> None:
    """However they are written: what two records say alike is one object, and no more is."""
    path = tmp_path / "results.jsonl"
    alike = {"energy": "no \u00b5J, \u20ac"}
    more = {"settings": {"a": [1, 2.5]}, "state": {"load_average": 1.5}}
    first = measurement(reasons=alike, environment=more)
    other = measurement(reasons=alike, environment={**more, "state": {"load_average": 2.5}})
    lines = [json.dumps(r.to_json(), ensure_ascii=ascii_) for r in (first, other)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (one, two), _ = read(path)
    assert (one, two) == (first, other)
    if not ascii_:
        assert one.environment["settings"] is two.environment["settings"]


def test_energy_beyond_idle_may_be_below_zero() -> None:
    net = Reading("energy_net", -0.5, "J", (-0.5,), {"ci_low": -1, "ci_high": 1})
    record = measurement(readings={"energy_net": net})
    assert Measurement.from_json(record.to_json()) == record


def test_new_keys_may_join_the_schema() -> None:
    first = measurement()
    assert Measurement.from_json(first.to_json() | {"weather": "fine"}) == first


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_number_that_is_none_is_written(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "results.jsonl"
    value = measurement(readings={"latency": Reading("latency", bad, "s")})
    sample = measurement(readings={"latency": Reading("latency", 1.0, "s", (1.0, bad))})
    hidden = measurement(environment={"clocks": [{"sm": bad}]})
    for record, where in (
        (value, "readings.latency.value"),
        (sample, r"readings.latency.samples\[1\]"),
        (hidden, r"environment.clocks\[0\].sm"),
    ):
        with pytest.raises(StoreError, match=f"not written: {where} is not a finite number"):
            append(path, record)
    assert not path.exists()


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not written: environment\.a: JSON has no object"):
        append(tmp_path / "results.jsonl", measurement(environment={"a": object()}))


def test_unwritable_and_unreadable_files(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "results.jsonl"
    with pytest.raises(StoreError, match=f"cannot write {missing}: No such file"):
        append(missing, measurement())
    with pytest.raises(StoreError, match=f"cannot read {missing}: No such file"):
        read(missing)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:20]))
    with pytest.raises(StoreError, match=r"20 of \d+ bytes fitted"):
        append(tmp_path / "results.jsonl", measurement())


def test_one_record_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[bytes] = []
    synced: list[int] = []
    write = os.write

    def noted(handle: int, data: bytes) -> int:
        lines.append(data)
        return write(handle, data)

    monkeypatch.setattr(os, "write", noted)
    monkeypatch.setattr(os, "fsync", synced.append)
    append(tmp_path / "results.jsonl", measurement(mixer="café"))
    assert len(lines) == len(synced) == 1
    assert json.loads(lines[0])["mixer"] == "café"


def test_divide_keeps_reasons_apart() -> None:
    reading = Reading("latency", 1.0, "s")
    assert divide({"latency": reading, "energy": Unavailable("no GPU")}) == (
        {"latency": reading},
        {"energy": "no GPU"},
    )


# What joined the schema later


def test_what_joined_the_schema_later_is_there_where_there_is_any(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    plain = measurement()
    assert not {"sweep", "failure", "labels"} & plain.to_json().keys()
    full = measurement(
        sweep={"round": 1}, failure={"kind": "refused"}, labels=("throttled", "shared device")
    )
    for record in (plain, full):
        append(path, record)
    assert read(path) == ([plain, full], [])


@pytest.mark.parametrize("key", ["sweep", "failure", "labels"])
def test_what_joined_the_schema_later_has_its_type(key: str) -> None:
    with pytest.raises(RecordError, match=f"{key}: expected"):
        Measurement.from_json(measurement().to_json() | {key: 3})


# Several writers

WRITER = """
import sys, threading
from tests.profiler.test_store import measurement
from profiler.records.store import append
path, name, threads, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def write(thread):
    for place in range(number):
        append(path, measurement(id=f"{name}-{thread}-{place}", reasons={"long": "x" * 20_000}))
running = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
for thread in running: thread.start()
for thread in running: thread.join()
"""


def test_processes_and_threads_append_at_the_same_time(tmp_path: Path) -> None:
    """Lines longer than a page, so that a write that is not whole would show."""
    path = tmp_path / "results.jsonl"
    append(path, measurement(id="first"))
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "cut')
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(name), "3", "8"], cwd=ROOT)
        for name in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    records, problems = read(path)
    assert problems == []
    expected = {
        f"{name}-{thread}-{n}" for name in range(3) for thread in range(3) for n in range(8)
    }
    assert len(records) == 1 + len(expected)
    assert {record.id for record in records} == {"first"} | expected
    for writer in range(9):  # what one thread wrote is there in its order
        own = [r.id for r in records if r.id.startswith(f"{writer // 3}-{writer % 3}-")]
        assert own == [f"{writer // 3}-{writer % 3}-{n}" for n in range(8)]


def test_a_writer_waits_for_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    appended = threading.Event()

    def write() -> None:
        append(path, measurement())
        appended.set()

    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=write)
        waiting.start()
        assert not appended.wait(0.2)
        assert path.read_bytes() == b""
    waiting.join()
    assert len(read(path)[0]) == 1


def test_a_file_deleted_while_its_lock_is_waited_for_gets_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "m.jsonl", fcntl.flock
    deleted: list[Path] = []

    def flock(handle: int, how: int) -> None:
        if not deleted:
            deleted.append(path)
            path.unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    append(path, measurement())
    assert len(read(path)[0]) == 1


def test_a_missing_file_is_tried_and_deleted_under_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, unlink = tmp_path / "m.jsonl", Path.unlink

    def locked(self: Path, missing_ok: bool = False) -> None:
        with self.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", locked)
    writable(path)
    assert not path.exists()


def test_a_file_system_without_locks_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=r"cannot write .*: No locks available"):
        append(tmp_path / "results.jsonl", measurement())
