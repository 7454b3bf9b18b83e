"""Does a separate process measure, whatever modules print or raise, or however they exit?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from profiler.meters.sampler import LatencyLimits
from profiler.records.keys import key_of
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.store import read
from profiler.run.request import request_json
from profiler.sweep import order, session
from profiler.sweep.child import Measuring, printable, setup
from profiler.sweep.devices import Device, devices, recovered
from profiler.sweep.failures import DIED, FAULT, MEMORY, Failure
from profiler.sweep.points import Point
from profiler.sweep.processes import Child, processes, unpacked
from profiler.sweep.results import Results
from tests import sweeping
from tests.sweeping import grid, keys_in, points_of, record_of, request

ROOT = Path(__file__).parents[2]
FAKE = "tests.sweeping:measure"
FAKE_DEVICES = [Device(name, {"CUDA_VISIBLE_DEVICES": name}) for name in ("GPU-aaaa", "GPU-bbbb")]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """A process that invents its measurements."""
    made = Child(Device("cpu"), setup("cpu", LatencyLimits(max_seconds=7), FAKE))
    try:
        made.begin()
        yield made
    finally:
        made.stop()


def test_a_process_answers_with_the_record_and_says_what_it_does(child: Child) -> None:
    told: list[tuple[Point, str]] = []
    point = Point(request(l=5), round=1)
    found = child.measure(point, lambda *what: told.append(what))
    assert isinstance(found, Measurement)
    assert key_of(found) == Point(request(l=5)).key  # the round is known here, not there
    assert found.counts["seen"]["limits"] == 7
    assert told == [(point, "inventing")]
    assert child.environment["device"] == "cpu" and child.environment["torch"]


def test_a_failure_reaches_the_one_who_asked_and_the_process_goes_on(child: Child) -> None:
    for length, kind in ((sweeping.MEMORY, MEMORY), (sweeping.FAULT, FAULT)):
        found = child.measure(Point(request(l=length)), lambda *what: None)
        assert isinstance(found, Failure) and found.kind == kind
    assert isinstance(child.measure(Point(request(l=2)), lambda *what: None), Measurement)


def test_a_process_that_its_device_refuses_is_replaced(child: Child) -> None:
    before, child.leaving = child.process.process.pid, True
    assert isinstance(child.measure(Point(request(l=2)), lambda *what: None), Measurement)
    assert child.process.process.pid != before and not child.leaving


def test_a_process_that_does_not_start_is_a_sentence() -> None:
    gone = Child(Device("cpu"), setup("cpu", None, "tests.sweeping:nothing_of_this_name"))
    with pytest.raises(MeasureError, match=r"ended with code 1: .*nothing_of_this_name"):
        gone.begin()
    gone.stop()


def test_two_devices_are_two_processes_that_fill_one_file(tmp_path: Path) -> None:
    """Both share the grid; one point kills its process, and the rest is measured all the same."""
    path = tmp_path / "runs.jsonl"
    blocks = [*order.blocks([request(l=sweeping.KILLED)], 1, 0), *grid((2, 3, 5, 7), rounds=1)]
    starts = processes(FAKE_DEVICES, "cpu", None, FAKE)
    found = session.sweep(blocks, Results(path), starts)
    records, problems = read(path)
    assert problems == [] and found.kinds == {DIED: 1}
    assert found.failures == [
        "the measuring process was killed: the machine's memory may have run out (at training, "
        f"b = 1, l = {sweeping.KILLED}, d = 2)"
    ]
    assert sorted(keys_in(path)) == sorted(point.key for point in points_of(blocks))
    for record in records:
        if record.failure:
            assert record.environment["torch"]  # what the process said before it died
        else:
            assert record.counts["seen"]["shown"] == record.sweep["worker"]
    for block in blocks:
        keys = {point.key for point in block.points}
        assert len({r.sweep["worker"] for r in records if key_of(r) in keys}) == 1


SWEEP = """
import signal, sys, pathlib
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
from profiler.sweep import session
from profiler.sweep.devices import Device
from profiler.sweep.processes import processes
from profiler.sweep.results import Results
from tests.sweeping import SLOW, grid
SEED = int(sys.argv[2])
results = Results(pathlib.Path(sys.argv[1]))
try:
    starts = processes([Device("cpu")], "cpu", None, "tests.sweeping:measure")
    session.sweep(grid((2, 3, SLOW), seed=SEED), results, starts,
                  progress=lambda done, of, what: print(what, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


SEED = 4
"""Of an order in which other blocks come before the one that never ends."""


@pytest.mark.grid(2)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_of_a_point_loses_that_point_alone(
    how: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    blocks = grid((2, 3, sweeping.SLOW), seed=SEED)
    lengths = [block.points[0].request.sizes["l"] for block in blocks]
    before = points_of(blocks[: lengths.index(sweeping.SLOW)])
    assert before
    command = [sys.executable, "-c", SWEEP, str(path), str(SEED)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for _ in (*before, None):  # each point is told of once; the last one never ends
                assert "inventing" in process.stdout.readline()
            (pid,) = children_of(process.pid)
            process.send_signal(how)
            rest = process.stdout.read()
        finally:
            process.kill()
    assert rest == ("interrupted\n" if how == signal.SIGINT else "")
    wait_until_gone(pid)
    assert keys_in(path) == [point.key for point in before]
    assert read(path)[1] == []


def children_of(pid: int) -> list[int]:
    """The processes that a process started."""
    listed = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not listed:
        pytest.skip("the system does not list children under /proc")
    return [int(word) for path in listed for word in path.read_text().split()]


def wait_until_gone(pid: int) -> None:
    """Until a process has ended; a minute is for ever."""
    for _ in range(3000):
        if not running(pid):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} goes on")


def running(pid: int) -> bool:
    """Whether a process runs; one that nobody has asked after is over."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


# What the process itself does


def test_a_record_that_is_no_line_is_a_fault() -> None:
    record = record_of(request(), environment={"clock": float("nan")})
    found = printable(record)
    assert isinstance(found, Failure) and found.kind == FAULT
    assert "environment.clock is not a finite number" in found.sentence
    whole = record_of(request())
    assert printable(whole) is whole


def test_after_a_failure_the_device_gets_its_memory_back_or_the_process_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recovered("cpu")
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(device))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty"))
    assert recovered("cuda") and done == ["cuda", "empty"]

    def refuse(device: str) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    assert not recovered("cuda")
    worker = Measuring(setup("cpu", None, FAKE))
    worker.device = "cuda"
    assert worker.answer(request_json(request(l=sweeping.FAILED)))["leaving"] is True


@pytest.mark.gpu
def test_a_gpu_goes_on_after_out_of_memory_and_after_an_error_in_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    found = devices("cuda")
    blocks = grid((2, sweeping.MEMORY, 3, sweeping.FAILED, 5), rounds=1)
    starts = processes(found, "cuda", None, "tests.sweeping:on_gpu")
    session_ = session.sweep(blocks, Results(path), starts)
    assert session_.kinds == {MEMORY: 3, FAULT: 3}  # torch's own errors, wrapped by nobody
    records, _ = read(path)
    assert len(records) == 15
    for record in records:
        if record.failure and record.sweep["worker"].startswith("GPU-"):
            assert record.environment["gpu"]["uuid"] == record.sweep["worker"]
        if record.failure.get("kind") == MEMORY:
            assert record.failure["requested"] and record.failure["free"]


def test_a_mixer_that_is_not_there_is_refused_not_fatal() -> None:
    worker = Measuring(setup("cpu", None, FAKE))
    answer = worker.answer(request_json(request()) | {"mixer": "gone.py:mine"})
    assert answer["failed"]["kind"] == "refused" and answer["leaving"] is False
    assert "no file 'gone.py'" in answer["failed"]["sentence"]
    assert json.dumps(answer)


def test_a_record_that_no_file_would_give_back_is_a_fault() -> None:
    answer = {"found": record_of(request()).to_json() | {"sizes": {"l": 0}}}
    assert unpacked(answer) == Failure(
        FAULT, "the measuring process sent no valid record: sizes.l: expected `int` >= 1"
    )
