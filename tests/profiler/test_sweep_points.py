"""Is a point identified from its request and from its record alike?"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from profiler.modules import implementations
from profiler.records.keys import key_of
from profiler.records.reading import MeasureError
from profiler.run.plan import request_of
from profiler.run.request import Request, options_of, request_json
from profiler.sweep.points import Point
from tests.sweeping import record_of, request


def with_residuals(point: Point) -> str:
    """The point of a record of it, after a way through JSON."""
    record = record_of(point.request, sweep=point.place | {"worker": "w"})
    return key_of(type(record).from_json(json.loads(json.dumps(record.to_json()))))


@pytest.mark.parametrize("phase", ["training", "inference", "backward", "training-step"])
def test_a_record_names_the_point_of_its_request(phase: str) -> None:
    asked = request(phase=phase, dtype="bf16", seed=3, device="cuda:1")
    for number in (0, 5):
        assert with_residuals(Point(asked, number, 2, 9)) == Point(asked, number).key


def test_everything_that_makes_a_measurement_another_one_is_in_the_key() -> None:
    asked = request()
    others = [
        Point(asked, 1),
        *(
            Point(replace(asked, **change))
            for change in (
                {"sizes": {**asked.sizes, "l": 4}},
                {"phase": "inference"},
                {"dtype": "bf16"},
                {"device": "cuda"},
                {"seed": 1},
                {"implementation": implementations("me")["fft"]},
            )
        ),
        Point(request("we")),
    ]
    keys = {point.key for point in (Point(asked), *others)}
    assert len(keys) == 1 + len(others)


def test_what_makes_no_difference_is_not_in_the_key() -> None:
    """Which board of a kind, where in the round, and how a phase is called."""
    asked = request(device="cuda:0", phase="training")
    same = replace(asked, device="cuda:7", phase="forward")
    assert Point(asked, 0, 1, 2).key == Point(same, 0, 3, 4).key


def test_a_record_that_no_sweep_took_is_of_round_0() -> None:
    asked = request(seed=4)
    assert key_of(record_of(asked)) == Point(asked).key
    assert key_of(record_of(request(), counts={})) == Point(request()).key


@dataclass(frozen=True)
class More(Request):
    """A request with fields that no record has a place for."""

    backend: str = ""


def test_options_join_the_key_only_where_they_are_not_the_default() -> None:
    plain = request()
    values: dict[str, Any] = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    default, compiled = More(**values), More(**values, backend="inductor")
    assert Point(default).key == Point(plain).key != Point(compiled).key
    assert options_of(compiled) == {"backend": "inductor"} == request_json(compiled)["options"]
    assert with_residuals(Point(compiled)) == Point(compiled).key


@pytest.mark.parametrize(
    "limits", [{"energy": False}, {"energy_window_s": 2.5}, {"energy_trials": 4}]
)
def test_other_limits_of_energy_make_another_point(limits: dict[str, Any]) -> None:
    """Neither resumed nor merged as the same, and measured so by another process."""
    asked = request(**limits)
    assert Point(asked).key != Point(request()).key
    assert with_residuals(Point(asked)) == Point(asked).key
    assert request_of(json.loads(json.dumps(request_json(asked)))) == asked
    assert request(energy_window_s=5.0, energy_trials=5) == request()


def test_a_request_reaches_another_process_by_its_names() -> None:
    asked = request("self-attention", "sdpa", l=5, dtype="bf16", phase="inference", seed=2)
    assert request_of(json.loads(json.dumps(request_json(asked)))) == asked
    with pytest.raises(MeasureError, match="no implementation 'gone'"):
        request_of(request_json(asked) | {"implementation": "gone"})
