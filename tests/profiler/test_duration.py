"""Is the duration of a plan predicted, and does every GPU test run alone?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import costmodel as cm
from profiler.commands.measuring import energy_wanted
from profiler.counting.dispatch import count_dispatch
from profiler.meters.energy.protocol import EnergyLimits
from profiler.meters.latency import latency_readings
from profiler.meters.sampler import LatencyLimits
from profiler.modules import implementations
from profiler.run.duration import estimate, longest_s
from profiler.run.prepare import prepare
from profiler.run.request import Request
from profiler.studies.grid import GridStudy, Launches, within
from profiler.studies.registry import study
from profiler.studies.study import Manner
from tests import conftest

README = Path(__file__).parents[2] / "README.md"
LIMITS = LatencyLimits(max_seconds=2.0, warmup_seconds=4.0)


def request(device: str, *, energy: bool) -> Request:
    chosen = implementations("me")["fft"]
    sizes = {"b": 1, "l": 8, "d": 4}
    return Request(cm.mixer("me"), chosen, sizes, device=device, energy=energy)


def test_a_point_takes_its_latencies_and_on_a_gpu_its_energy_where_asked_for() -> None:
    assert longest_s(request("cpu", energy=True), LIMITS) == 2 * 2 * 6.0  # each time twice
    assert longest_s(request("cuda", energy=False), LIMITS) == 3 * 6.0
    joules = EnergyLimits().seconds()
    assert longest_s(request("cuda", energy=True), LIMITS) == 3 * 6.0 + joules
    short = replace(request("cuda", energy=True), energy_window_s=2.0, energy_trials=2)
    assert longest_s(short, LIMITS) < 3 * 6.0 + joules / 2


def test_each_latency_of_a_cpu_may_be_timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several threads that others disturb, then with one thread, which is no faster."""
    timed: list[bool] = []
    known = {"undisturbed": False, "vague": False, "estimate": lambda: (1.0, 0.5, 2.0)}
    known |= {"value": 1.0, "samples": [1.0], "details": {"labels": []}, "arrange": lambda: None}

    def sampled(*_: object, alone: bool) -> SimpleNamespace:
        timed.append(alone)
        return SimpleNamespace(**known)

    flush = SimpleNamespace(size=1, cache_bytes=1, source="")
    monkeypatch.setattr("profiler.meters.latency.sample_latency", sampled)
    monkeypatch.setattr("profiler.meters.latency.flush_for", lambda _: flush)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    latency_readings(lambda: None, limits=LIMITS)
    assert timed == [False, False, True, True]
    assert longest_s(request("cpu", energy=True), LIMITS) == len(timed) * 6.0


def test_the_number_of_points_and_their_time_are_one_sentence() -> None:
    points = [request("cuda", energy=False)] * 100
    assert estimate(points, LIMITS).startswith(
        "100 points: timing takes at most 30 min on one device; building and counting take addit"
    )
    # the time of an energy is an expected one
    assert estimate([request("cuda", energy=True)], LIMITS).endswith(
        "building, counting, cooling and repeated trials of energy take additional time"
    )


def test_energy_is_read_on_a_gpu_where_it_was_asked_for() -> None:
    assert [energy_wanted(asked, "cuda:1") for asked in (None, True, False)] == [False, True, False]
    assert energy_wanted(None, "cpu")  # it takes no time, and the reason is told
    assert Manner("cuda").options == {"energy": False} and Manner("cpu").options == {}


@pytest.mark.parametrize("name", ["extractors", "additive-against-dot-product"])
def test_a_grid_on_a_gpu_takes_at_most_two_hours(name: str) -> None:
    found = study(name)
    assert isinstance(found, GridStudy)
    scale = found.scale("cuda")
    limits = LatencyLimits.within(scale.seconds)
    blocks = found.planned(Manner("cuda")).blocks
    asked = [point.request for block in blocks for point in block.points]
    assert sum(longest_s(each, limits) for each in asked) < 2 * 3600


def test_the_main_job_takes_at_most_two_minutes_on_a_gpu() -> None:
    """What README's first command times, by its limits."""
    line = next(line for line in README.read_text().splitlines() if "costmodel reconcile" in line)
    mixers, seconds = line.split("reconcile ")[1].split(" --")[0], line.split("--seconds ")[1]
    chosen = [(name, one) for name in mixers.split() for one in implementations(name).values()]
    asked = [Request(cm.mixer(name), one, {}, device="cuda", energy=False) for name, one in chosen]
    assert len(asked) > 10
    limits = LatencyLimits.within(float(seconds))
    assert sum(longest_s(each, limits) for each in asked) <= 2 * 60


def test_launches_are_those_that_a_call_dispatches() -> None:
    """Continued from l = 3 and 5: a loop over rows launches so many for each."""
    rows = implementations("dot-product-attention")["rows"]
    sizes = {"b": 1, "l": 41, "d": 4, "f": 4}
    asked = Request(cm.mixer("dot-product-attention"), rows, sizes)
    expected = count_dispatch(prepare(asked).bare).launched
    assert Launches()(asked) == expected > 41
    assert Launches()(replace(asked, sizes={**sizes, "l": 82})) > 1.9 * expected


def test_what_takes_its_time_in_launching_is_left_out() -> None:
    """Row by row, some ten launches each, at l = 131072: over a second a call."""
    rows = implementations("dot-product-attention")["rows"]
    long = {"b": 1, "l": 131072, "d": 4, "f": 4}
    asked = Request(cm.mixer("dot-product-attention"), rows, long)
    found = study("additive-against-dot-product")
    assert isinstance(found, GridStudy)
    kept, (said,) = within([asked, replace(asked, sizes={**long, "l": 64})], found.scale("cuda"))
    assert [request.sizes["l"] for request in kept] == [64]
    assert "launches more than 100,000 operations" in said


def test_beside_other_tests_nothing_is_measured_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert conftest._why_no_gpu() is None
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    assert "pytest -m gpu" in str(conftest._why_no_gpu())
