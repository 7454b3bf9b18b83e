"""How a machine is examined, and how a finding on what it can measure is recorded.

Tests replace the functions of `Surroundings` by fakes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from profiler.host.children import ChildExit, run_child
from profiler.host.device import default_device
from profiler.host.environment import package_version
from profiler.host.system import Host
from profiler.meters.board_energy import NvmlSensor, open_sensor
from profiler.meters.energy.protocol import SensorError
from profiler.meters.nvml import INSTALL, Board, board_handle, load_nvml
from profiler.records.reading import Unavailable
from profiler.records.schema import Record

YES, PARTLY, NO, UNTRIED = "yes", "partly", "no", "not tried"


@dataclass(frozen=True)
class Surroundings:
    """The functions by which an examination queries a machine: by default the real machine."""

    device: str = field(default_factory=default_device)
    host: Host = field(default_factory=Host)
    cuda_build: str | None = torch.version.cuda
    """The CUDA version that torch was built with; None for a build without CUDA."""
    cuda_usable: Callable[[], bool] = torch.cuda.is_available
    nvml: Callable[[], Any] = load_nvml
    handle: Callable[[Any, str], Any] = board_handle
    sensor: Callable[[str], NvmlSensor | Unavailable] = open_sensor
    version: Callable[[str], str | None] = package_version
    which: Callable[[str], str | None] = shutil.which
    child: Callable[[Sequence[str], float, Mapping[str, str]], ChildExit] = run_child
    python: str = sys.executable
    threads: Callable[[], int] = torch.get_num_threads

    @property
    def board(self) -> Board:
        """The board of the device; SensorError if NVML does not find it."""
        nvml = self.nvml()
        return Board(nvml, self.handle(nvml, self.device))

    @property
    def on_gpu(self) -> bool:
        """Whether the examined device is a GPU."""
        return torch.device(self.device).type == "cuda"


class MachineFinding(Record, frozen=True):
    """Whether a quantity can be measured, or a fact disturbs: verdict, explanation, remedy."""

    what: str
    verdict: str
    said: str
    fix: str = ""


CODES: Mapping[int | None, str] = {
    9: "load the NVIDIA driver (sudo modprobe nvidia), or reboot",
    12: "install the NVIDIA driver; in a container, start it with the GPU (docker run --gpus all)",
    13: "update the NVIDIA driver",
    15: "reboot: the GPU is off the bus",
    16: "reset the GPU (sudo nvidia-smi -r), or reboot",
    18: "reload the driver (reboot): its library was updated under it",
    4: "ask for read access to the GPU",
}
"""NVML's error code -> the remedy."""


def nvml_fault(around: Surroundings) -> tuple[str, str] | None:
    """(the reason why NVML, the library of NVIDIA's sensors, cannot be loaded; the remedy or "");
    None if NVML can be loaded."""
    try:
        around.nvml()
    except SensorError as error:
        if error.code is not None:
            return f"NVML: {error}", CODES.get(error.code, "")
        hidden = "hides" in str(error)
        fix = f"pip uninstall pynvml; {INSTALL} --force-reinstall" if hidden else INSTALL
        return f"NVML: {error.args[0].partition(' (pip')[0]}", fix
    return None
