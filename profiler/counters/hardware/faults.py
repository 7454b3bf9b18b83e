"""What does it mean when ncu reads no counters, and what would help?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiler.machine.host import NO_CONTAINER, Host, container

HOST_OPTION = (
    "on the host: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, and "
    "reload the driver"
)
INSTALL = "install Nsight Compute, whose command is ncu, and put it on PATH"
UPDATE = "update Nsight Compute (ncu) to one as new as the driver"


@dataclass(frozen=True)
class Fault:
    """What ncu says, the cause in words, what to do, and whether patched code may count still."""

    words: str
    cause: str
    fix: str = ""
    patched: bool = False


PERMISSION = "reading the performance counters is forbidden"
FAULTS = (
    Fault("ERR_NVGPUCTRPERM", f"{PERMISSION} (ERR_NVGPUCTRPERM)", HOST_OPTION, patched=True),
    Fault("INSUFFICIENT_PRIVILEGES", PERMISSION, HOST_OPTION, patched=True),
    Fault(
        "driver resource was unavailable",
        "another profiler holds the performance counters, often DCGM",
        "dcgmi profile --pause",
        patched=True,
    ),
    Fault(
        "LibraryNotLoaded",
        "ncu cannot load its library: a sandbox such as gVisor",
        "leave the sandbox",
    ),
    Fault("Failed to load Nsight Compute CUDA modules", "ncu is older than the driver", UPDATE),
    Fault("driver is not compatible with Nsight Compute", "ncu is older than the driver", UPDATE),
    Fault("is not supported on device", "this ncu does not know the GPU", UPDATE),
    Fault("unrecognised option", "ncu is too old: it refuses an option", UPDATE),
    Fault("unrecognized option", "ncu is too old: it refuses an option", UPDATE),
    Fault("lock file", "ncu's lock file belongs to another user",
          "set TMPDIR to a folder of your own"),
    Fault("No kernels were profiled", "ncu saw no kernel"),
)  # fmt: skip
"""The first that is found in what ncu says is the cause."""


def fault_in(texts: Iterable[str]) -> Fault | None:
    """What went wrong by ncu's own words; None where it does not tell."""
    said = "\n".join(texts)
    return next((fault for fault in FAULTS if fault.words in said), None)


def in_container(fix: str, host: Host) -> str:
    """What to do, and what a container needs in its place."""
    inside = container(host) not in (None, NO_CONTAINER)
    if fix == HOST_OPTION and inside:
        return f"{fix}; or start the container with --cap-add=SYS_ADMIN"
    return fix
