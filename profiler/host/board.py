"""The identity and the current state of an NVIDIA board, as torch and NVML report them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import NOT_LISTED, ask_nvml
from profiler.records.reading import reason_of

Question = Callable[[Any, Any], Any]
"""A function of the NVML bindings and the handle of a board that returns a fact."""

VIRTUAL = {0: "none", 1: "passthrough", 2: "vGPU", 3: "vGPU host", 4: "vSGA host"}
"""The values of nvmlGpuVirtualizationMode_t."""

SWITCH = {0: "off", 1: "on"}
"""The values of nvmlEnableState_t, and of the MIG mode."""

EVENTS: Mapping[int, str] = {
    0x1: "idle", 0x2: "application clocks", 0x4: "software power cap", 0x8: "hardware slowdown",
    0x10: "sync boost", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "hardware power brake", 0x100: "display clocks",
}  # fmt: skip
"""Bit of nvmlDeviceGetCurrentClocksEventReasons -> the cause of a lowered clock."""


def decoded(value: str | bytes) -> str:
    """A string of NVML as str; older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def mode_name(names: Mapping[int, str], number: int) -> str:
    """The name of a mode, or its number where it has none."""
    return names.get(number, f"mode {number}")


def events(nvml: Any, handle: Any) -> list[str]:
    """The current causes of throttling: names of `EVENTS`, or unknown bits in hexadecimal."""
    question = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    try:
        if question is None:
            raise SensorError("this NVML has no such call")
        bits = int(ask_nvml(nvml, question, handle))
    except SensorError:
        older = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        if older is None:
            raise
        bits = int(ask_nvml(nvml, older, handle))
    unknown = bits & ~sum(EVENTS)
    named_ = [name for bit, name in EVENTS.items() if bits & bit]
    return named_ + ([f"0x{unknown:x}"] if unknown else [])


def power_limit_W(nvml: Any, handle: Any) -> float:
    """The enforced power cap in watts."""
    return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000


IDENTITY: Mapping[str, Question] = {
    "uuid": lambda nvml, board: decoded(nvml.nvmlDeviceGetUUID(board)),
    "driver": lambda nvml, board: decoded(nvml.nvmlSystemGetDriverVersion()),
    "power_limit_W": power_limit_W,
    "mig_mode": lambda nvml, board: mode_name(SWITCH, nvml.nvmlDeviceGetMigMode(board)[0]),
    "virtualisation": lambda nvml, board: mode_name(
        VIRTUAL, nvml.nvmlDeviceGetVirtualizationMode(board)
    ),
    "ecc": lambda nvml, board: mode_name(SWITCH, nvml.nvmlDeviceGetEccMode(board)[0]),
    "persistence": lambda nvml, board: mode_name(SWITCH, nvml.nvmlDeviceGetPersistenceMode(board)),
    "max_sm_clock_MHz": lambda nvml, board: nvml.nvmlDeviceGetMaxClockInfo(board, 1),
    "max_memory_clock_MHz": lambda nvml, board: nvml.nvmlDeviceGetMaxClockInfo(board, 2),
    "memory_bus_bits": lambda nvml, board: nvml.nvmlDeviceGetMemoryBusWidth(board),
}
"""Facts that identify a board; clocks 1 and 2 are NVML_CLOCK_SM and NVML_CLOCK_MEM."""

STATE: Mapping[str, Question] = {
    "temperature_C": lambda nvml, board: nvml.nvmlDeviceGetTemperature(board, 0),
    "power_W": lambda nvml, board: nvml.nvmlDeviceGetPowerUsage(board) / 1000,
    "sm_clock_MHz": lambda nvml, board: nvml.nvmlDeviceGetClockInfo(board, 1),
    "memory_clock_MHz": lambda nvml, board: nvml.nvmlDeviceGetClockInfo(board, 2),
    "clock_events": events,
    "used_memory_bytes": lambda nvml, board: nvml.nvmlDeviceGetMemoryInfo(board).used,
    "compute_processes": lambda nvml, board: len(nvml.nvmlDeviceGetComputeRunningProcesses(board)),
}
"""Facts that vary from run to run; sensor 0 is NVML_TEMPERATURE_GPU."""


def board_answers(
    questions: Mapping[str, Question], nvml: Any, board: Any, reasons: dict[str, str], prefix: str
) -> dict[str, Any]:
    """Name -> fact, for the facts that NVML returns; for the other facts, `reasons` gets the error
    under `prefix` + name."""
    found = {}
    for name, question in questions.items():
        try:
            found[name] = ask_nvml(nvml, question, nvml, board)
        except (SensorError, AttributeError) as error:
            reasons[f"{prefix}{name}"] = reason_of(error)
    return found


def other_users(
    nvml: Any, board: Any, reasons: dict[str, str], prefix: str, own: int | None = None
) -> dict[str, Any]:
    """The number of other processes that compute on the board, and the bytes that they hold.

    In a container NVML lists the process ids of the host. If the own id is not in the list, this
    process cannot be subtracted: the answer is empty, with a reason.
    """
    try:
        listed = ask_nvml(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, board)
    except (SensorError, AttributeError) as error:
        reasons[f"{prefix}other_processes"] = reason_of(error)
        return {}
    mine = os.getpid() if own is None else own
    others = [process for process in listed if process.pid != mine]
    if listed and len(others) == len(listed):
        why = f"{NOT_LISTED}, so that the others cannot be told from it"
        reasons[f"{prefix}other_processes"] = why
        return {}
    found: dict[str, Any] = {"other_processes": len(others)}
    held = [process.usedGpuMemory for process in others]
    if None in held:
        reasons[f"{prefix}other_memory_bytes"] = "the driver does not tell what each process holds"
    else:
        found["other_memory_bytes"] = sum(held)
    return found


def cuda_facts(place: torch.device, reasons: dict[str, str]) -> dict[str, Any]:
    """The name, compute capability, multiprocessors, memory and L2 size that torch reports."""
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
    reasons["l2_bytes"] = "torch does not tell the size of this board's L2 cache"
    return found
