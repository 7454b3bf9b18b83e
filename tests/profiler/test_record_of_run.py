"""Does a record name its command and the state of the machine before and after?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cli
from profiler.records.environments import environment_differences
from profiler.records.store import read
from profiler.run import prepare as preparing
from profiler.run.measure import measure
from profiler.sweep.session import run
from tests.profiler.test_measure import BRIEF
from tests.profiler.test_sweep import swept
from tests.profiler.test_work import asked
from tests.stand_ins import Instead
from tests.sweeping import record_of, request

COMMAND = "costmodel profile me --impl fft --l 3"


def test_the_state_is_read_before_anything_runs_and_again_at_the_end(
    instead: Instead,
) -> None:
    done: list[str] = []
    temperatures = iter((40, 71))

    def prepare(*given: Any) -> Any:
        done.append("module built")
        return preparing.prepare(*given)

    def state_of(device: str) -> dict[str, int]:
        done.append(f"state of {device}")
        return {"temperature_C": next(temperatures)}

    def environment(device: str) -> dict[str, Any]:
        done.append("measured")
        return {"torch": "9.9", "state": state_of(device)}

    instead(prepare=prepare, current_state=state_of, environment=environment)
    found = measure(asked("me", "fft"), limits=BRIEF).environment
    assert done == ["state of cpu", "module built", "measured", "state of cpu"]
    assert (found["state_before"], found["state"]) == ({"temperature_C": 40}, {"temperature_C": 71})
    other = {**found, "state_before": {"temperature_C": 50}, "command": "another"}
    assert environment_differences(found, other) == []


def test_both_states_tell_the_same_things() -> None:
    found = measure(asked("me", "fft"), limits=BRIEF).environment
    assert found["state"].keys() == found["state_before"].keys()
    assert found["state"]


def test_every_record_keeps_the_command(tmp_path: Path, instead: Instead) -> None:
    instead(measure=lambda asked, **_: record_of(asked))
    path, grid = tmp_path / "one.jsonl", tmp_path / "grid.jsonl"
    run([request(), request(l=5)], path, command=COMMAND)
    swept(grid, (2,), command=COMMAND)
    assert commands(path) == {COMMAND} and commands(grid) == {COMMAND}
    assert "command" not in run([request()]).measurements[0].environment


def test_the_command_is_what_was_typed_without_where_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    typed = "profile me --impl fft --d 4 --l 3 --seconds 0.02 --device cpu --no-energy"
    assert cli.run([*typed.split(), "-o", str(path)]) == 0
    assert commands(path) == {f"costmodel {typed}"}
    capsys.readouterr()


def commands(path: Path) -> set[str]:
    """What the records of a file were measured by."""
    records, problems = read(path)
    assert records and not problems
    return {each.environment["command"] for each in records}
