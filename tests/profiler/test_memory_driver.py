"""Does a memory reading include the driver's figure of the process where one exists?"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.meters.memory.allocator import (
    LESS,
    MORE,
    MeasuredPeak,
    driver_check,
    peak_memory,
    peak_reading,
)
from profiler.meters.nvml import ALLOWANCE_BYTES
from tests.fake_devices import read
from tests.nvml.board import Simulated
from tests.profiler.test_measuring_faults_board import on_the_board
from tests.profiler.test_memory import Allocator, on_gpu
from tests.stand_ins import Instead

__all__ = ["on_gpu"]  # a fixture

CUDA = torch.device("cuda")
RESERVED = 34 * 2**20
NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
NO_DRIVER, NOT_SUPPORTED = 12, 3


@pytest.fixture
def listed(board: Simulated, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """A board that lists this process and another one, and an allocator that reserved 34 MiB."""
    on_the_board(monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: RESERVED)
    board.call("sim_processes", 2)
    board.call("sim_process", 0, 4321, 7 * 2**30)
    board.call("sim_process", 1, os.getpid(), RESERVED + 500 * 2**20)
    return board


def test_the_driver_counts_the_context_too(listed: Simulated) -> None:
    found = dict(driver_check(CUDA))
    assert "for 270,336 threads: 276,824,064 B for a KiB each" in found.pop("driver_gap_holds")
    assert found == {
        "driver_bytes": RESERVED + 500 * 2**20,
        "driver_reserved": RESERVED,
        "driver_gap": 500 * 2**20,
        "driver_label": "",
    }


@pytest.mark.parametrize(
    ("gap", "label"),
    [(-1, LESS), (0, ""), (ALLOWANCE_BYTES, ""), (ALLOWANCE_BYTES + 1, MORE)],
)
def test_what_cannot_be_is_labelled(listed: Simulated, gap: int, label: str) -> None:
    listed.call("sim_process", 1, os.getpid(), RESERVED + gap)
    found = driver_check(CUDA)
    assert (found["driver_gap"], found["driver_label"]) == (gap, label)
    reading = peak_reading([MeasuredPeak(8), MeasuredPeak(8)], found)
    assert reading.details["labels"] == ([label] if label else [])
    disagreeing = peak_reading([MeasuredPeak(8), MeasuredPeak(9)], found).details["labels"]
    assert disagreeing == ["runs disagree", *([label] if label else [])]


def test_a_process_that_is_not_listed_is_a_reason(listed: Simulated) -> None:
    found = driver_check(CUDA, own=17)
    assert found["driver_bytes"] is None
    assert found["driver_reason"].startswith("NVML: NVML does not list this process by its number")
    assert "driver_label" not in found


def test_a_driver_that_does_not_tell_what_each_holds_is_a_reason(listed: Simulated) -> None:
    listed.call("sim_process", 1, os.getpid(), NOT_AVAILABLE)
    said = driver_check(CUDA)["driver_reason"]
    assert said == "NVML: the driver does not report how many bytes each process holds"


def test_a_board_that_lists_nobody_is_a_reason(listed: Simulated) -> None:
    listed.fault("nvmlDeviceGetComputeRunningProcesses_v3", NOT_SUPPORTED)
    assert driver_check(CUDA)["driver_reason"] == "NVML: not supported by this device"


def test_no_driver_is_a_reason(instead: Instead) -> None:
    from profiler.meters.energy.protocol import SensorError

    def missing() -> Any:
        raise SensorError("library not found", NO_DRIVER)

    instead(load_nvml=missing)
    assert driver_check(CUDA) == {
        "driver_bytes": None, "driver_reason": "NVML: library not found",
    }  # fmt: skip


def test_it_stands_beside_the_peak_of_a_gpu_alone(
    on_gpu: Any, board: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu: Allocator = on_gpu()
    on_the_board(monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: gpu.now["reserved_bytes"])
    board.call("sim_process", 0, os.getpid(), 400 * 2**20)
    found = read(peak_memory(lambda: gpu.product(700, 100), device="cuda"))
    assert found.value == 800
    assert found.details["driver_reserved"] == found.details["reserved_total"] == RESERVED
    assert found.details["driver_gap"] == 400 * 2**20 - RESERVED
    on_cpu = read(peak_memory(lambda: torch.ones(3)))
    assert not any(name.startswith("driver") for name in on_cpu.details)


def test_the_processes_that_are_simulated_are_those_that_were_told(listed: Simulated) -> None:
    """A test of the test."""
    handle = listed.nvml.nvmlDeviceGetHandleByIndex(0)
    found = listed.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    told = [SimpleNamespace(pid=p.pid, bytes=p.usedGpuMemory) for p in found]
    assert [p.pid for p in told] == [4321, os.getpid()]
    assert told[0].bytes == 7 * 2**30
