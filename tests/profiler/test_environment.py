"""Does the environment record every fact that a reader needs, with a reason for a missing fact?"""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.host.device import on_device
from profiler.host.environment import CHECKOUT, cuda_facts, environment, git_revision
from profiler.meters.nvml import IDENTITY, STATE, Board
from profiler.records.environments import environment_differences, flat
from tests.stand_ins import Instead

FACTS = {"python", "torch", "numpy", "package", "platform", "cpu", "cores", "threads"}


def test_environment_has_every_fact_of_a_cpu() -> None:
    facts = environment("cpu")
    assert facts.keys() >= FACTS
    assert facts["python"] == platform.python_version()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["interop_threads"] == torch.get_num_interop_threads()
    assert facts["device"] == "cpu"
    assert json.loads(json.dumps(facts)) == facts


def test_fp32_is_fp32_while_measuring_and_what_the_user_chose_afterwards() -> None:
    """torch's own default lets cuDNN round to TF32, in convolutions and recurrent layers alone."""
    chosen = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    assert chosen == ("highest", True)
    torch.set_float32_matmul_precision("high")
    try:
        with on_device("cpu"):
            inside = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        after = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        settings = environment("cpu")["settings"]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (inside, after) == (("highest", False), ("high", True))
    recorded = settings["float32_matmul_precision"], settings["cudnn_allow_tf32"]
    assert recorded == ("highest", False)


@pytest.mark.parametrize("library", ["cuBLAS", "cuFFT"])
def test_where_warnings_are_errors_what_torch_mends_itself_ends_no_call(library: str) -> None:
    said = f"Attempting to run {library}, but there was no current CUDA context! Attempting to set"
    with on_device("cpu"):
        warnings.warn(said, stacklevel=1)
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)
    with pytest.raises(UserWarning, match=library):
        warnings.warn(said, stacklevel=1)


def test_what_is_missing_is_absent_and_has_a_reason() -> None:
    facts = environment("cpu")
    for name in ("numpy", "package", "triton", "revision", "cpu", "cuda", "cudnn", "gpu"):
        assert (name in facts) != (name in facts["reasons"])
    assert all(value is not None for value in flat(facts).values())
    assert all(reason.strip() for reason in facts["reasons"].values())


def test_says_nothing_about_whose_machine_it_is() -> None:
    printed = json.dumps(environment("cpu"))
    words = printed.replace('"', " ").replace(",", " ").split()
    assert platform.node() not in words
    assert getpass.getuser() not in words
    assert str(Path(__file__).resolve().parent) not in printed
    assert str(Path.home()) + os.sep not in printed


def git(where: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    hooks = ["-c", "core.hooksPath=/dev/null"]
    subprocess.run(["git", *identity, *hooks, *arguments], cwd=where, check=True, timeout=60)


def test_the_revision_is_that_of_the_checkout_with_this_code() -> None:
    assert Path(__file__).parents[2] == CHECKOUT


def test_revision_names_the_commit_or_says_why_not(tmp_path: Path) -> None:
    reasons: dict[str, str] = {}
    assert git_revision(tmp_path, reasons) is None
    assert reasons == {"revision": "not run from a checkout"}
    git(tmp_path, "init", "-q")
    assert git_revision(tmp_path, reasons) is None
    assert "no commit" in reasons["revision"]
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "a")
    clean = git_revision(tmp_path, {})
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "a").write_text("b")
    assert git_revision(tmp_path, {}) == clean + "+changes"


def test_a_missing_gpu_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    facts = environment("cuda")
    assert facts["device"] == "cuda"
    assert facts["reasons"]["cuda_device"] == "torch finds no NVIDIA GPU"
    assert "gpu" not in facts and "device_name" not in facts
    assert "nvidia-ml-py is not installed" in facts["reasons"]["gpu"]


class NVMLError(Exception):
    """NVML's, with the number of `not supported`."""

    value = 3


def refuse(*args: Any) -> Any:
    raise NVMLError


def nvml(**changes: Any) -> SimpleNamespace:
    """A board that answers; this process has the number 7."""
    answers: dict[str, Any] = {
        "nvmlDeviceGetUUID": lambda board: b"GPU-1",
        "nvmlSystemGetDriverVersion": lambda: "575.1",
        "nvmlDeviceGetEnforcedPowerLimit": lambda board: 700_000,
        "nvmlDeviceGetPowerUsage": lambda board: 71_500,
        "nvmlDeviceGetTemperature": lambda board, sensor: 41,
        "nvmlDeviceGetClockInfo": lambda board, clock: {1: 345, 2: 3201}[clock],
        "nvmlDeviceGetMaxClockInfo": lambda board, clock: {1: 1980, 2: 3201}[clock],
        "nvmlDeviceGetMemoryBusWidth": lambda board: 6144,
        "nvmlDeviceGetMigMode": lambda board: [0, 1],
        "nvmlDeviceGetVirtualizationMode": lambda board: 2,
        "nvmlDeviceGetEccMode": lambda board: [1, 1],
        "nvmlDeviceGetPersistenceMode": lambda board: 0,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda board: 0x4 | 0x20 | 0x1000,
        "nvmlDeviceGetMemoryInfo": lambda board: SimpleNamespace(used=600),
        "nvmlDeviceGetComputeRunningProcesses": lambda board: [
            SimpleNamespace(pid=7, usedGpuMemory=100), SimpleNamespace(pid=8, usedGpuMemory=500),
        ],
    }  # fmt: skip
    return SimpleNamespace(NVMLError=NVMLError, **answers | changes)


def test_a_board_says_what_it_is_and_apart_from_that_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    reasons: dict[str, str] = {}
    assert Board(nvml(), "board").facts(IDENTITY, reasons, "gpu.") == {
        "uuid": "GPU-1",
        "driver": "575.1",
        "power_limit_W": 700.0,
        "mig_mode": "off",
        "virtualisation": "vGPU",
        "ecc": "on",
        "persistence": "off",
        "max_sm_clock_MHz": 1980,
        "max_memory_clock_MHz": 3201,
        "memory_bus_bits": 6144,
    }
    assert Board(nvml(), "board").facts(STATE, reasons, "state.") == {
        "temperature_C": 41,
        "power_W": 71.5,
        "sm_clock_MHz": 345,
        "memory_clock_MHz": 3201,
        "clock_events": ["software power cap", "software thermal slowdown", "0x1000"],
        "used_memory_bytes": 600,
        "compute_processes": 2,
        "other_processes": 1,
        "other_memory_bytes": 500,
    }
    assert reasons == {}


def test_what_nvml_refuses_is_absent_with_its_reason() -> None:
    reasons: dict[str, str] = {}
    some = nvml(nvmlDeviceGetMigMode=refuse, nvmlDeviceGetEccMode=refuse)
    del some.nvmlDeviceGetPersistenceMode
    found = Board(some, "board").facts(IDENTITY, reasons, "gpu.")
    assert found.keys() & {"mig_mode", "ecc", "persistence"} == set()
    assert reasons["gpu.mig_mode"] == reasons["gpu.ecc"] == "not supported by this device"
    assert "nvmlDeviceGetPersistenceMode" in reasons["gpu.persistence"]


def test_older_drivers_say_what_throttles() -> None:
    older = nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda board: 0x8)
    del older.nvmlDeviceGetCurrentClocksEventReasons
    assert Board(older, "board").clock_events() == ["hardware slowdown"]
    older.nvmlDeviceGetCurrentClocksEventReasons = refuse
    assert Board(older, "board").clock_events() == ["hardware slowdown"]
    rested = nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda board: 0)
    assert Board(rested, "board").clock_events() == []


def others_on(board: SimpleNamespace) -> tuple[dict[str, Any], dict[str, str]]:
    """The facts of other users, and the reasons for missing ones."""
    reasons: dict[str, str] = {}
    questions = {name: STATE[name] for name in ("other_processes", "other_memory_bytes")}
    return Board(board, "board").facts(questions, reasons, "state."), reasons


def test_other_users_are_counted_without_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    assert others_on(nvml()) == ({"other_processes": 1, "other_memory_bytes": 500}, {})
    alone = nvml(nvmlDeviceGetComputeRunningProcesses=lambda board: [])
    assert others_on(alone) == ({"other_processes": 0, "other_memory_bytes": 0}, {})


def test_in_a_container_the_others_cannot_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    found, reasons = others_on(nvml())
    assert found == {}
    assert "does not list this process by its number" in reasons["state.other_processes"]
    found, reasons = others_on(nvml(nvmlDeviceGetComputeRunningProcesses=refuse))
    assert found == {}
    assert reasons["state.other_processes"] == "not supported by this device"


def test_what_others_hold_is_unknown_where_the_driver_hides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    listed = [SimpleNamespace(pid=7, usedGpuMemory=1), SimpleNamespace(pid=8, usedGpuMemory=None)]
    found, reasons = others_on(nvml(nvmlDeviceGetComputeRunningProcesses=lambda board: listed))
    assert found == {"other_processes": 1}
    assert "does not report" in reasons["state.other_memory_bytes"]


PROPERTIES = SimpleNamespace(
    name="Example GPU", major=9, minor=0, multi_processor_count=132, total_memory=140 * 2**30,
    L2_cache_size=50 * 2**20, uuid="1",
)  # fmt: skip


def test_a_gpu_is_described_by_torch_and_nvml(
    monkeypatch: pytest.MonkeyPatch, instead: Instead
) -> None:
    instead(load_nvml=nvml, board_of=lambda place: Board(nvml(), "board"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: PROPERTIES)
    facts = environment("cuda")
    assert facts["device_name"] == "Example GPU"
    assert facts["compute_capability"] == "9.0"
    assert (facts["multiprocessors"], facts["l2_bytes"]) == (132, 50 * 2**20)
    assert facts["gpu"]["uuid"] == "GPU-1"
    assert facts["state"]["temperature_C"] == 41
    assert "temperature_C" not in facts["gpu"]
    assert json.loads(json.dumps(facts)) == facts
    monkeypatch.setattr(PROPERTIES, "L2_cache_size", 0)
    reasons: dict[str, str] = {}
    assert "l2_bytes" not in cuda_facts(torch.device("cuda"), reasons)
    assert "L2" in reasons["l2_bytes"]


# Two environments


def test_a_machine_does_not_differ_from_itself() -> None:
    first, second = environment("cpu"), environment("cpu")
    second["state"] = {"load_average": 99.0, "temperature_C": 90}
    second["reasons"] = {"anything": "else"}
    assert environment_differences(first, second) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"torch": "2.6.0"}, "torch: 2.13.0 and 2.6.0"),
        ({"threads": 4}, "threads: 2 and 4"),
        ({"gpu": {"uuid": "GPU-1", "power_limit_W": 500.0}}, "gpu.power_limit_W: 700.0 and 500.0"),
        ({"revision": "b+changes"}, "revision: a and b+changes"),
        ({"variables": {}}, "variables.OMP_NUM_THREADS: 2 and not set"),
    ],
)
def test_differences_are_named(changed: dict[str, Any], said: str) -> None:
    facts = {
        "torch": "2.13.0",
        "threads": 2,
        "gpu": {"uuid": "GPU-1", "power_limit_W": 700.0},
        "revision": "a",
        "variables": {"OMP_NUM_THREADS": "2"},
    }
    assert environment_differences(facts, facts | changed) == [said]


def test_what_one_does_not_know_cannot_differ() -> None:
    old = {"torch": "2.13.0", "gpu": None, "package": None}
    new = {"torch": "2.13.0", "gpu": {"uuid": "GPU-1"}, "package": "0.1.0", "variables": {"A": "1"}}
    assert environment_differences(old, new) == environment_differences(new, old) == []


def test_equal_boards_differ_only_where_that_is_asked_for() -> None:
    one = {"gpu": {"uuid": "GPU-1"}, "variables": {"CUDA_VISIBLE_DEVICES": "0"}}
    other = {"gpu": {"uuid": "GPU-2"}, "variables": {"CUDA_VISIBLE_DEVICES": "1"}}
    assert environment_differences(one, other) == []
    assert environment_differences(one, other, boards=True) == [
        "gpu.uuid: GPU-1 and GPU-2",
        "variables.CUDA_VISIBLE_DEVICES: 0 and 1",
    ]


@pytest.mark.gpu
def test_environment_has_every_fact_of_a_gpu() -> None:
    facts = environment("cuda")
    assert facts["device_name"]
    assert facts["cuda"] == torch.version.cuda
    assert facts["gpu"]["uuid"].startswith(("GPU-", "MIG-"))
    assert facts["l2_bytes"] > 0
    assert facts["state"]["temperature_C"] > 0
    assert environment_differences(facts, environment("cuda"), boards=True) == []
