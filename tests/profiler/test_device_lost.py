"""Which records are kept, and which are still measured, after a process lost its device?

A capture that fails halfway may leave the GPU answering nothing more; here it only says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiler.meters import latency as meter
from profiler.meters.cuda_graph import ContextLost
from profiler.records.reading import DeviceLost, MeasureError, Reading
from profiler.run.measure import measure
from profiler.run.request import Request
from profiler.sweep.failures import FAULT, LOST, REPEATS, failure_of
from profiler.sweep.session import run
from tests import sweeping
from tests.profiler.test_measure import BRIEF
from tests.profiler.test_work import asked
from tests.stand_ins import Instead

GONE = "the call failed while a CUDA graph was captured; run the rest in a new process"


@pytest.fixture
def losing(instead: Instead) -> None:
    """Capturing a graph costs the device."""

    def lost(*_: Any, **__: Any) -> Any:
        raise ContextLost(GONE)

    instead(latency_graph=lost)


def test_a_capture_that_loses_the_device_keeps_what_was_read_before(losing: None) -> None:
    found = meter.latency_readings(lambda: None, limits=BRIEF)
    assert found["latency_graph"] == DeviceLost(GONE)
    assert isinstance(found["latency"], Reading) and isinstance(found["latency_cold"], Reading)


@pytest.mark.parametrize("phase", ["training", "training-step"])
def test_nothing_is_asked_of_a_lost_device_and_each_reason_says_so(
    losing: None, instead: Instead, phase: str
) -> None:
    """Time and memory read before stand in the record; no call follows the capture."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    instead(launch_estimate=refuse, energies_of_work=refuse)
    found = measure(asked("me", "fft", phase=phase), limits=BRIEF)
    assert {"latency", "latency_cold", "peak_memory", "weights"} <= set(found.readings)
    for name in ("latency_graph", "launch_estimate", "energy", "energy_net", "power"):
        assert found.reasons[name] == GONE


def test_a_lost_device_is_no_failure_that_repeats() -> None:
    try:
        try:
            raise ContextLost(GONE)
        except RuntimeError as error:
            raise MeasureError("me fft (fp32): the call failed") from error
    except MeasureError as error:
        kind = failure_of(error).kind
    assert kind == LOST
    assert not REPEATS[kind]


def test_a_process_measures_nothing_more_on_a_device_that_it_lost(
    instead: Instead,
) -> None:
    """The second of three calls costs the GPU; what is asked of the CPU goes on."""
    tried: list[int] = []

    def measure(request: Request, **_: Any) -> Any:
        tried.append(request.sizes["l"])
        return sweeping.record_of(request)

    instead(measure=measure, recovered=lambda device: device == "cpu" or 3 not in tried)
    on_gpu = [sweeping.request(l=length, device="cuda") for length in (2, 3, 5, 7)]
    found = run([*on_gpu, replace(on_gpu[0], device="cpu", sizes={"b": 1, "d": 2, "l": 11})])
    assert tried == [2, 3, 11]
    assert [record.sizes["l"] for record in found.measurements] == tried
    assert found.kinds == {LOST: 2}
    assert FAULT not in found.kinds
    assert found.failures == [
        "device 'cuda' stopped answering this process when me toeplitz was measured: the rest "
        "needs a new process (at training, b = 1, l = 5, d = 2, and at training, b = 1, l = 7, "
        "d = 2)"
    ]


def test_a_fault_names_the_limit_of_memory(instead: Instead) -> None:
    instead(limit_words=lambda: "ulimit -v allows 7 KB")
    found = failure_of(SystemError("error return without exception set"))
    assert found.kind == FAULT
    assert found.sentence.endswith("without exception set; ulimit -v allows 7 KB")
