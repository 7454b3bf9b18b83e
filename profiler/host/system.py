"""Facts about the processor, the memory and the operating system, and how much may be used.

Files and variables are read through a `Host`, which tests replace.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

VARIABLES = (
    "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_PROC_BIND",
    "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY",
    "KMP_BLOCKTIME", "MKL_NUM_THREADS", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR",
    "OPENBLAS_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
    "MALLOC_CONF", "MALLOC_ARENA_MAX", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING",
    "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLAS_WORKSPACE_CACHE", "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_CPP_WRAPPER",
    "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "PYTHONOPTIMIZE", "PYTHONMALLOC",
)  # fmt: skip
"""Environment variables that change how fast a call is, or where it runs."""

UNLIMITED = "unlimited"
NO_CONTAINER = "none found"
"""Printed if no sign of a container is found; an undetected container remains possible."""

SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Host:
    """The sources of facts about a machine: files under `root`, environment variables, and what
    psutil says of load, cores (`cores` counts hardware threads, `physical` cores, `usable` the
    hardware threads that this process may use) and memory in bytes."""

    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    load: Callable[[], tuple[float, float, float]] = psutil.getloadavg
    usable: Callable[[], int] = lambda: len(psutil.Process().cpu_affinity())
    cores: Callable[[], int | None] = psutil.cpu_count
    physical: Callable[[], int | None] = lambda: psutil.cpu_count(logical=False)
    memory: Callable[[], int | None] = lambda: psutil.virtual_memory().total

    def text(self, path: str) -> str | None:
        """The stripped text of a file; None if the file cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer in a file; None if the file holds something else or cannot be read."""
        text = self.text(path)
        return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        return (self.root / path).exists()


CPU = "sys/devices/system/cpu"
SCALING = f"{CPU}/cpu0/cpufreq"


def host_facts(host: Host, reasons: dict[str, str]) -> dict[str, Any]:
    """A dict: name -> value of the facts that identify processor, memory and limits; for a missing
    fact, `reasons` receives why."""
    found = {
        "cpu": cpu_model(host),
        "cores": host.cores(),
        "usable_cores": usable_cores(host),
        "physical_cores": host.physical(),
        "cpu_limit": cpu_limit(host),
        "caches": caches(host) or None,
        "host_memory_bytes": host.memory(),
        "cpu_governor": host.text(f"{SCALING}/scaling_governor"),
        "cpu_max_MHz": megahertz(host, f"{SCALING}/cpuinfo_max_freq"),
        "cpu_boost": boost(host),
        "container": container(host),
    }
    return known_facts(found, WHY, reasons)


def host_state(host: Host, reasons: dict[str, str]) -> dict[str, Any]:
    """A dict: name -> value of the facts that vary from run to run: load average and the clock of
    the first core (MHz); for a missing fact, `reasons` receives why."""
    found = {
        "load_average": load_average(host),
        "cpu_MHz": megahertz(host, f"{SCALING}/scaling_cur_freq"),
    }
    return known_facts(found, WHY, reasons, "state.")


WHY = {
    "cpu": "the system does not name its processor",
    "cores": "the system does not tell",
    "usable_cores": "the system has no processor affinity",
    "physical_cores": "the system shows no topology of its cores",
    "cpu_limit": "no control group tells a limit",
    "caches": "the system does not describe its caches",
    "host_memory_bytes": "the system does not tell",
    "cpu_governor": "the system shows no frequency scaling, as in most virtual machines",
    "cpu_max_MHz": "the system shows no frequency scaling, as in most virtual machines",
    "cpu_boost": "the system does not show whether cores may boost",
    "container": "the system has no /proc",
    "load_average": "the system does not tell its load",
    "cpu_MHz": "the system shows no frequency scaling, as in most virtual machines",
}
"""Fact -> the reason why it may be missing."""


def known_facts(
    found: Mapping[str, Any], why: Mapping[str, str], reasons: dict[str, str], prefix: str = ""
) -> dict[str, Any]:
    """The facts that are not None; for each fact that is None, `reasons` gets its sentence of
    `why`, under `prefix` + name."""
    reasons |= {f"{prefix}{name}": why[name] for name, value in found.items() if value is None}
    return {name: value for name, value in found.items() if value is not None}


def cpu_model(host: Host) -> str | None:
    """The name of the processor, as /proc/cpuinfo or else Python tells it; None if unknown."""
    for line in (host.text("proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or None


def usable_cores(host: Host) -> int | None:
    """The number of cores on which the process may run; None if the system does not tell."""
    try:
        return host.usable()
    except (AttributeError, OSError):
        return None


def caches(host: Host) -> dict[str, int]:
    """A dict: cache of the first core (`L1d`, `L1i`, `L2`, `L3`), if known -> size in bytes."""
    found: dict[str, int] = {}
    base = f"{CPU}/cpu0/cache"
    for folder in sorted((host.root / base).glob("index[0-9]*")):
        level, kind, size = (
            host.text(f"{base}/{folder.name}/{name}") for name in ("level", "type", "size")
        )
        parts = re.fullmatch(r"(\d+)([KMG]?)", size or "")
        if level and kind and parts:
            letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
            found[f"L{level}{letter}"] = int(parts[1]) * SUFFIXES[parts[2]]
    return found


def megahertz(host: Host, path: str) -> float | None:
    """The frequency in MHz from a file in kHz; None if the file cannot be read."""
    number = host.number(path)
    return None if number is None else number / 1000


def boost(host: Host) -> str | None:
    """Whether cores may run above their base frequency: on or off; None if unknown."""
    allowed = host.number(f"{CPU}/cpufreq/boost")
    forbidden = host.number(f"{CPU}/intel_pstate/no_turbo")
    if allowed is None and forbidden is None:
        return None
    return "on" if allowed == 1 or forbidden == 0 else "off"


def load_average(host: Host) -> float | None:
    """The number of running and waiting processes, averaged over the last minute; None if the
    system does not tell."""
    try:
        return round(host.load()[0], 2)
    except (AttributeError, OSError):
        return None


def cpu_limit(host: Host) -> float | str | None:
    """How many processors the control groups (cgroups) grant the process, or `unlimited`; None if
    no group states a limit.

    A group's limit holds for its subgroups too. The answer is the least limit of the process's
    group and the groups that contain it.
    """
    limits: list[float | None] = []
    for line in (host.text("proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        for folder in upwards(path):
            if number == "0":  # version 2 of cgroups; version 1 lists each controller
                limits += quota(host.text(f"sys/fs/cgroup{folder}/cpu.max"))
            elif "cpu" in controllers.split(","):
                base = f"sys/fs/cgroup/{controllers}{folder}"
                base = base if host.exists(base) else f"sys/fs/cgroup/cpu{folder}"
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                limits += quota(" ".join(host.text(f"{base}/{name}") or "" for name in names))
    if not limits:
        return None
    return min((limit for limit in limits if limit is not None), default=UNLIMITED)


def upwards(path: str) -> list[str]:
    """The paths of a control group's folder and of its parent folders, the innermost first.

    >>> upwards("/a/b")
    ['/a/b', '/a', '']
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["".join(f"/{part}" for part in parts[:k]) for k in range(len(parts), -1, -1)]


def quota(text: str | None) -> list[float | None]:
    """A CPU limit in processors, from `QUOTA PERIOD` in microseconds, as a list of one: [None] is
    "unlimited", [] a text of another form.

    >>> quota("150000 100000"), quota("max 100000"), quota("-1 100000"), quota(None)
    ([1.5], [None], [None], [])
    """
    parts = re.fullmatch(r"(max|-?\d+) (\d+)", text or "")
    if not parts or int(parts[2]) == 0:
        return []
    return [None] if parts[1] == "max" or int(parts[1]) <= 0 else [int(parts[1]) / int(parts[2])]


KINDS = ("docker", "podman", "kubepods", "containerd", "crio", "lxc", "garden", "machine.slice")


def container(host: Host) -> str | None:
    """The kind of container that the process runs in, or `NO_CONTAINER`; None without /proc."""
    if host.exists(".dockerenv"):
        return "docker"
    if host.exists("run/.containerenv"):
        return "podman"
    if named := host.variables.get("container"):
        return named
    if "KUBERNETES_SERVICE_HOST" in host.variables:
        return "kubernetes"
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if name in host.variables:
            return "apptainer"
    groups = host.text("proc/self/cgroup")
    if groups is None:
        return None
    return next((kind for kind in KINDS if kind in groups), NO_CONTAINER)


def speed_variables(host: Host) -> dict[str, str]:
    """The variables of `VARIABLES` that are set, with paths shortened by `pathless`."""
    return {name: pathless(host.variables[name]) for name in VARIABLES if name in host.variables}


def pathless(value: str) -> str:
    """A text in which each path that begins with /, ~, . or .. and a slash, also within quotation
    marks or brackets, is replaced by its last part; `lib/a.so`, which does not, stays.

    >>> pathless("/vendor/lib/libjemalloc.so.2:other"), pathless("max_split_size_mb:64")
    ('libjemalloc.so.2:other', 'max_split_size_mb:64')
    """
    return re.sub(r"(?<![^\s:,='\"(])(?:~[^/\s:,]*|\.{1,2})?(?:/[^\s:,/]*)+", _last_part, value)


def _last_part(found: re.Match[str]) -> str:
    """The last name of a path that was found; "(a folder)" for a path of slashes alone."""
    return found[0].rstrip("/").rpartition("/")[2] or "(a folder)"
