"""On what machine, with what software and in what state was something measured?"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from profiler.meters.energy import SensorError
from profiler.meters.interface import reason_of
from profiler.meters.nvml import asked, handle_of, load_nvml

PACKAGE = "costmodel"


def environment(device: str | torch.device = "cpu") -> dict[str, Any]:
    """JSON values that describe machine and software, with `reasons` for what is missing (null).

    Holds no host name, no user name and no path.
    """
    place = torch.device(device)
    reasons: dict[str, str] = {}
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": version_of("numpy", reasons),
        "package": version_of(PACKAGE, reasons),
        "revision": git_revision(Path(__file__).resolve().parent.parent, reasons),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(reasons),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": place.type,
    }
    facts |= cuda_facts(place, reasons) if place.type == "cuda" else {}
    facts["gpu"] = board_facts(place, reasons)
    facts["reasons"] = reasons
    return facts


def version_of(package: str, reasons: dict[str, str]) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        reasons[package] = "not installed as a package"
        return None


def git_revision(checkout: Path, reasons: dict[str, str]) -> str | None:
    """The commit of a checkout, `+changes` appended where tracked files differ from it."""
    if not (checkout / ".git").exists():
        reasons["revision"] = "not run from a checkout"
        return None
    try:
        commit = git(checkout, "rev-parse", "HEAD")
        changed = git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        reasons["revision"] = "git is missing, or the checkout has no commit"
        return None
    return commit + ("+changes" if changed else "")


def git(checkout: Path, *arguments: str) -> str:
    """What a git command prints."""
    done = subprocess.run(
        ["git", *arguments], cwd=checkout, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def cpu_model(reasons: dict[str, str]) -> str | None:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    if not platform.processor():
        reasons["cpu"] = "the system does not name its processor"
    return platform.processor() or None


def cuda_facts(place: torch.device, reasons: dict[str, str]) -> dict[str, Any]:
    """What torch knows about a CUDA device."""
    if not torch.cuda.is_available():
        reasons["cuda"] = "torch finds no NVIDIA GPU"
        return {}
    properties = torch.cuda.get_device_properties(place)
    return {
        "device_name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "device_memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # torch leaves it untyped
    }


def board_facts(place: torch.device, reasons: dict[str, str]) -> dict[str, Any] | None:
    """What NVML knows about the board; values that it refuses are null, with a reason."""
    try:
        nvml = load_nvml()
        if place.type != "cuda" or not torch.cuda.is_available():
            reasons["gpu"] = f"the device is {place}"
            return None
        handle = handle_of(nvml, torch.cuda.get_device_properties(place))
    except SensorError as error:
        reasons["gpu"] = f"NVML: {error}"
        return None
    questions: dict[str, Callable[[], Any]] = {
        "uuid": lambda: text(nvml.nvmlDeviceGetUUID(handle)),
        "driver": lambda: text(nvml.nvmlSystemGetDriverVersion()),
        "power_limit_W": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "temperature_C": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        "sm_clock_MHz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 1),
        "memory_clock_MHz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 2),
        "mig_mode": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
        "compute_processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    facts: dict[str, Any] = {}
    for name, question in questions.items():
        try:
            facts[name] = asked(nvml, question)
        except (SensorError, AttributeError) as error:
            facts[name] = None
            reasons[f"gpu.{name}"] = reason_of(error)
    return facts


def text(value: str | bytes) -> str:
    """NVML's strings, which older bindings give as bytes."""
    return value.decode() if isinstance(value, bytes) else value
