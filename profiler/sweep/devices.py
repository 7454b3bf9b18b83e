"""The devices of this machine for parallel processes, each of which sees only its own, and whether
a device still answers."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import all_boards
from profiler.records.reading import MeasureError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """A device: its name in later runs, and the variables that show only it to a process."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)


def devices(
    wanted: str,
    environment: Mapping[str, str] = os.environ,
    count: Callable[[], int] = torch.cuda.device_count,
    boards: Callable[[], Sequence[str]] | None = None,
) -> list[Device]:
    """List the devices that a word stands for: one for `cpu`, every GPU that this process sees for
    `cuda`, one of these for `cuda:N`.

    A GPU is named by its word in CUDA_VISIBLE_DEVICES; without such words by its UUID, if all GPUs
    are wanted and NVML lists as many whole boards as torch finds, else by its number. `environment`
    has the variable; `count` gives the number of GPUs, `boards` their UUIDs (None: by NVML). Raises
    MeasureError: there is no such GPU. With "3,5" in the variable, cuda:1 is "5"."""
    kind, _, number = wanted.partition(":")
    if kind == "cpu":
        return [Device("cpu")]
    found = count()
    listed = [word.strip() for word in environment.get(VISIBLE, "").split(",") if word.strip()]
    names = listed[:found] if listed else [str(place) for place in range(found)]
    if number:
        if int(number) >= len(names):
            known = " or ".join(f"cuda:{place}" for place in range(len(names))) or "cpu"
            raise MeasureError(f"there is no '{wanted}': torch finds {found} GPUs: use {known}")
        names = [names[int(number)]]
    elif not listed:
        uuids = list((boards or board_uuids)())
        names = uuids if len(uuids) == found else names
    if not names:
        raise MeasureError("device 'cuda' was asked for, but torch finds no NVIDIA GPU: use cpu")
    return [Device(name, {VISIBLE: name}) for name in names]


def board_uuids() -> list[str]:
    """The UUIDs of all boards; [] if NVML does not tell, or a board is split (MIG)."""
    try:
        boards = all_boards()
        split = any(board.split for board in boards)  # parts of a board have other UUIDs
        return [] if split else [board.text("nvmlDeviceGetUUID") for board in boards]
    except SensorError:
        return []


def recovered(device: str) -> bool:
    """Free the memory of the last call, and return whether the device still answers.

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
