"""What does the driver say that this process holds on a GPU, beside what torch's allocator says?

The allocator counts what was asked of it, in segments that it got from the driver (`reserved`). The
driver counts all that the process has: those segments, the context, the code of kernels, and what
libraries take without asking torch. So it says as much or more, by no more than what contexts and
libraries take; anything else means that one of the two does not count what it is thought to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from profiler.meters.energy import SensorError
from profiler.meters.interface import reason_of
from profiler.meters.nvml import ALLOWANCE_BYTES, NOT_LISTED, asked, handle_of, load_nvml

LESS = "driver says less"
"""The label where the process has less than its allocator has reserved."""
MORE = "memory beside the allocator"
"""The label where it has more than its allocator, context and libraries together take."""


def second_opinion(device: torch.device, own: int | None = None) -> Mapping[str, Any]:
    """Details for a reading of memory: `driver_bytes`, what NVML says that this process holds now,
    `driver_reserved`, what the allocator has reserved now, `driver_gap`, the first less the second,
    and `driver_label`, "" where they agree; or `driver_bytes` null with its `driver_reason`.

    Args:
        own: the number of this process.
    """
    try:
        nvml = load_nvml()
        handle = handle_of(nvml, torch.cuda.get_device_properties(device))
        told = process_bytes(nvml, handle, os.getpid() if own is None else own)
    except (SensorError, RuntimeError, AssertionError) as error:
        return {"driver_bytes": None, "driver_reason": f"NVML: {reason_of(error)}"}
    reserved = int(torch.cuda.memory_reserved(device))
    gap = told - reserved
    label = LESS if gap < 0 else MORE if gap > ALLOWANCE_BYTES else ""
    return {
        "driver_bytes": told,
        "driver_reserved": reserved,
        "driver_gap": gap,
        "driver_label": label,
    }


def process_bytes(nvml: Any, handle: Any, own: int) -> int:
    """The bytes of a board's memory that NVML says a process holds.

    Raises:
        SensorError: the board does not tell its processes, not this one (inside a container NVML
            has the host's numbers), or not what each of them holds.
    """
    listed = asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    mine = [process for process in listed if process.pid == own]
    if not mine:
        raise SensorError(NOT_LISTED)
    held = [process.usedGpuMemory for process in mine]
    if None in held:
        raise SensorError("the driver does not tell what each process holds")
    return int(sum(held))
