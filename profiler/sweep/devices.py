"""On which devices of this machine may processes measure side by side, how is each one shown to its
process alone, and does it still answer that process?"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from profiler.host.board import decoded
from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import ask_nvml, load_nvml
from profiler.records.reading import MeasureError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """A device by a name that later runs find it by, and what a process of its own is told."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)


def devices(
    wanted: str,
    environment: Mapping[str, str] = os.environ,
    count: Callable[[], int] = torch.cuda.device_count,
    boards: Callable[[], Sequence[str]] | None = None,
) -> list[Device]:
    """`cpu` is one device; `cuda` is every GPU that this process sees, `cuda:N` one of them.

    What is listed in CUDA_VISIBLE_DEVICES is handed on word by word; else a board is named by its
    UUID where NVML lists as many whole boards as torch finds, and by its number where it does not.

    Raises:
        MeasureError: there is no such GPU.
    """
    kind, _, number = wanted.partition(":")
    if kind == "cpu":
        return [Device("cpu")]
    found = count()
    listed = [word.strip() for word in environment.get(VISIBLE, "").split(",") if word.strip()]
    names = listed[:found] if listed else [str(place) for place in range(found)]
    if number:
        if int(number) >= len(names):
            raise MeasureError(f"there is no '{wanted}': torch finds {found} GPUs")
        names = [names[int(number)]]
    elif not listed:
        uuids = list((boards or board_uuids)())
        names = uuids if len(uuids) == found else names
    if not names:
        raise MeasureError("device 'cuda' was asked for, but torch finds no NVIDIA GPU: use cpu")
    return [Device(name, {VISIBLE: name}) for name in names]


def board_uuids() -> list[str]:
    """The UUIDs of all boards; none where NVML does not tell, or a board is split (MIG)."""
    try:
        nvml = load_nvml()
        found = []
        for place in range(ask_nvml(nvml, nvml.nvmlDeviceGetCount)):
            board = ask_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, place)
            if split_up(nvml, board):
                return []
            found.append(decoded(ask_nvml(nvml, nvml.nvmlDeviceGetUUID, board)))
    except SensorError:
        return []
    return found


def split_up(nvml: object, board: object) -> bool:
    """Whether MIG is on: torch then sees parts, which the board's UUID does not name."""
    try:
        current, _ = ask_nvml(nvml, nvml.nvmlDeviceGetMigMode, board)  # type: ignore[attr-defined]
    except SensorError:
        return False  # boards without MIG refuse the question
    return bool(current)


def recovered(device: str) -> bool:
    """Give back what a call held, and say whether the device still answers.

    After an error inside a kernel CUDA refuses every call of the process.
    """
    gc.collect()
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
