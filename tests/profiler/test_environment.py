"""Does the environment say what a reader needs, with a reason for what is missing, and no more?"""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler import environment as described
from profiler.environment import environment, git_revision

FACTS = {"python", "torch", "numpy", "package", "revision", "platform", "cpu", "cores", "threads"}


def test_cpu_facts() -> None:
    facts = environment("cpu")
    assert facts.keys() >= FACTS
    assert facts["python"] == platform.python_version()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["device"] == "cpu"
    assert json.loads(json.dumps(facts)) == facts


def test_what_is_missing_has_a_reason() -> None:
    facts = environment("cpu")
    for name in ("numpy", "package", "revision", "cpu", "gpu"):
        key = described.PACKAGE if name == "package" else name
        assert (facts[name] is None) == (key in facts["reasons"])


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


def test_revision(tmp_path: Path) -> None:
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
    assert facts["reasons"]["cuda"] == "torch finds no NVIDIA GPU"
    assert "nvidia-ml-py is not installed" in facts["reasons"]["gpu"]


def test_board_values_that_nvml_refuses_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        value = 3

    def refuse(*args: Any) -> Any:
        raise NVMLError

    answers: dict[str, Any] = {
        "nvmlDeviceGetUUID": lambda handle: b"GPU-1",
        "nvmlSystemGetDriverVersion": lambda: "575.1",
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
        "nvmlDeviceGetClockInfo": lambda handle, clock: 345,
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [1, 2],
    }
    nvml = SimpleNamespace(NVMLError=NVMLError, **answers)
    monkeypatch.setattr(described, "load_nvml", lambda: nvml)
    monkeypatch.setattr(described, "handle_of", lambda nvml, properties: "board")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: None)
    reasons: dict[str, str] = {}
    assert described.board_facts(torch.device("cuda"), reasons) == {
        "uuid": "GPU-1",
        "driver": "575.1",
        "power_limit_W": 700.0,
        "temperature_C": 41,
        "sm_clock_MHz": 345,
        "memory_clock_MHz": 345,
        "mig_mode": None,
        "compute_processes": 2,
    }
    assert reasons == {"gpu.mig_mode": "not supported by this device"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gpu_facts() -> None:
    facts = environment("cuda")
    assert facts["device_name"]
    assert facts["cuda"] == torch.version.cuda
