"""The environment of a measurement: the machine, its software, and its state at the time.

The environment is a nested mapping. Facts that identify machine and software stand at the top level
and under `gpu`; facts that vary from run to run (temperature, clocks, load, other users of the
device) stand under `state`. A measurement adds `state_before` (the state before the first call),
and the `command` that was typed. An unknown fact is absent, with a sentence in `reasons`.
"""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from profiler.host.device import full_precision
from profiler.host.system import Host, host_facts, host_state, speed_variables
from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import IDENTITY, STATE, Board, load_nvml

PACKAGE = "costmodel"
PACKAGES = {
    "numpy": "numpy",
    "triton": "triton",
    "nvidia_ml_py": "nvidia-ml-py",
    "package": PACKAGE,
}
"""Fact -> the distribution whose version is recorded."""


def environment(device: str | torch.device = "cpu", host: Host | None = None) -> dict[str, Any]:
    """The facts of machine, software and state at this moment as a dict of JSON values, with
    `reasons` for missing facts; of the board, those of the GPU `device`. `host` reads the facts of
    the system, None for this machine. Host names, user names and paths are left out.
    """
    place, host = torch.device(device), host or Host()
    reasons: dict[str, str] = {}
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **versions(reasons),
        **revision(reasons),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        **host_facts(host, reasons),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "variables": speed_variables(host),
        "settings": torch_settings(),
        "device": place.type,
    }
    state = host_state(host, reasons)
    if place.type == "cuda":
        facts |= cuda_facts(place, reasons)
    identity, now = board_facts(place, reasons)
    facts |= {"gpu": identity} if identity else {}
    return facts | {"state": state | now, "reasons": reasons}


def current_state(device: str | torch.device = "cpu", host: Host | None = None) -> dict[str, Any]:
    """The current `state` of host and board, as `environment` has it; unknown facts are absent,
    without a reason."""
    reasons: dict[str, str] = {}
    return host_state(host or Host(), reasons) | board_facts(torch.device(device), reasons)[1]


@cache
def package_version(package: str) -> str | None:
    """The version of an installed package, looked up once per process; None if missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(reasons: dict[str, str]) -> dict[str, str]:
    """A dict: fact -> version of the `PACKAGES` that affect measurements, of the CUDA that torch
    was built with, and of the cuDNN that torch loads; `reasons` says why one is missing."""
    found: dict[str, str] = {}
    for fact, package in PACKAGES.items():
        version = package_version(package)
        if version is None:
            reasons[fact] = f"{package} is not installed as a package"
        else:
            found[fact] = version
    if torch.version.cuda is None:
        reasons["cuda"] = reasons["cudnn"] = "this torch was built without CUDA"
        return found
    found["cuda"] = torch.version.cuda
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if cudnn is None:
        reasons["cudnn"] = "torch finds no cuDNN"
        return found
    return found | {"cudnn": str(cudnn)}


def torch_settings() -> dict[str, Any]:
    """A dict: name -> value of the settings of torch that change speed or precision, as they hold
    while a call is timed."""
    with full_precision():
        return {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }


def revision(reasons: dict[str, str]) -> dict[str, str]:
    """{"revision": the commit of this code, looked up once per process}; {} if it is unknown, and
    `reasons` receives why."""
    found, reason = _own_revision()
    reasons |= {"revision": reason} if reason else {}
    return {} if found is None else {"revision": found}


CHECKOUT = Path(__file__).resolve().parents[2]
"""The root of the checkout, if the code was not installed from a wheel."""


@cache
def _own_revision() -> tuple[str | None, str]:
    """(commit of this code, ""), or (None, why the commit is unknown)."""
    reasons: dict[str, str] = {}
    found = git_revision(CHECKOUT, reasons)
    return found, reasons.get("revision", "")


def git_revision(checkout: Path, reasons: dict[str, str]) -> str | None:
    """The commit of a checkout, followed by `+changes` if tracked files differ from the commit;
    None, with the reason in `reasons`, if the folder is no checkout or git fails."""
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
    """The stripped output of a git command; CalledProcessError if the command fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=checkout, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def board_facts(
    place: torch.device, reasons: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """NVML's facts about a device's board: (facts that identify the board, facts on its state now);
    both empty, with the reason as `gpu`, if NVML fails (asked first) or the device is no GPU."""
    try:
        load_nvml()
        if place.type != "cuda" or not torch.cuda.is_available():
            reasons["gpu"] = f"the device is {place}"
            return {}, {}
        board = Board.of(place)
    except SensorError as error:
        reasons["gpu"] = f"NVML: {error}"
        return {}, {}
    state = board.facts(STATE, reasons, "state.")
    return board.facts(IDENTITY, reasons, "gpu."), state


def cuda_facts(place: torch.device, reasons: dict[str, str]) -> dict[str, Any]:
    """A dict with the name, compute capability, multiprocessors, memory and L2 size (bytes) that
    torch reports; `reasons` receives a sentence on a missing L2 size, or one (`cuda_device`) for
    all facts if torch finds no GPU."""
    if not torch.cuda.is_available():
        reasons["cuda_device"] = "torch finds no NVIDIA GPU"
        return {}
    properties = torch.cuda.get_device_properties(place)
    found = {
        "device_name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "device_memory_bytes": properties.total_memory,
    }
    l2 = getattr(properties, "L2_cache_size", 0)
    if l2 > 0:
        return found | {"l2_bytes": l2}
    reasons["l2_bytes"] = "this version of torch does not report the size of the board's L2 cache"
    return found
