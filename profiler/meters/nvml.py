"""Which NVIDIA board is torch's device, and what do its energy and power sensors read?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from profiler.meters.energy import EnergyLimits, SensorError, estimate_energy
from profiler.meters.interface import Reading, Unavailable, reason_of

POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
INSTALL = "pip install nvidia-ml-py"
EXPLAINED = {
    1: "NVML is not initialised",
    3: "not supported by this device",
    4: "no permission to read this device",
    9: "the NVIDIA driver is not loaded",
    12: "library not found: there is no NVIDIA driver on this machine",
    13: "the driver is too old for this function",
    15: "the GPU is lost",
    18: "driver and library versions differ: reload the driver",
}


def load_nvml() -> Any:
    """NVIDIA's Python binding, initialised; SensorError with one sentence where that fails."""
    try:
        import pynvml  # type: ignore[import-untyped]  # no stubs
    except ImportError:
        raise SensorError(f"the package nvidia-ml-py is not installed ({INSTALL})") from None
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise SensorError(
            f"another package named pynvml hides NVIDIA's (pip uninstall pynvml; {INSTALL})"
        )
    asked(pynvml, pynvml.nvmlInit)
    return pynvml


def asked(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The function's value; NVML's errors as a SensorError with one sentence."""
    try:
        return function(*args)
    except nvml.NVMLError as error:
        code = int(getattr(error, "value", 0) or 0)
        raise SensorError(EXPLAINED.get(code, reason_of(error))) from None


def handle_of(nvml: Any, properties: Any) -> Any:
    """The board with the UUID of torch's device, or its PCI bus id where torch knows no UUID."""
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        text = str(uuid)
        name = text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
        return asked(nvml, nvml.nvmlDeviceGetHandleByUUID, name.encode())
    address = (
        f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}"
        f":{properties.pci_device_id:02x}.0"
    )
    return asked(nvml, nvml.nvmlDeviceGetHandleByPciBusId, address.encode())


class NvmlSensor:
    """The energy counter and the power sensor of one whole NVIDIA board, through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.refuse_shared()
        self.refuse_others()
        self.energy_mJ()
        self.instant = self.instant_mW() is not None

    def refuse_shared(self) -> None:
        """SensorError where the board is split (MIG): its sensors then cover all the parts."""
        try:
            current, _ = self.nvml.nvmlDeviceGetMigMode(self.handle)
        except self.nvml.NVMLError:
            return  # boards without MIG refuse the question
        if current:
            raise SensorError("MIG mode is on, and NVML measures the whole board only")

    def refuse_others(self) -> None:
        """SensorError where other processes compute on the board: its sensors cover them too.

        Inside a container NVML names processes by the host's ids, so only their number counts.
        """
        try:
            processes = len(self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle))
        except self.nvml.NVMLError:
            return  # not every board tells
        if processes > 1:
            raise SensorError(f"{processes} processes compute on this board, one was expected")

    def energy_mJ(self) -> int:
        """Millijoules since the driver was loaded."""
        return int(asked(self.nvml, self.nvml.nvmlDeviceGetTotalEnergyConsumption, self.handle))

    def instant_mW(self) -> int | None:
        """The instantaneous power field, None where the board has none."""
        try:
            (field,) = self.nvml.nvmlDeviceGetFieldValues(self.handle, [POWER_INSTANT])
        except self.nvml.NVMLError:
            return None
        return int(field.value.uiVal) if field.nvmlReturn == self.nvml.NVML_SUCCESS else None

    def power_mW(self) -> float:
        """Milliwatts now where the board can tell, else averaged by its driver (up to 1 s)."""
        instant = self.instant_mW() if self.instant else None
        if instant is not None:
            return float(instant)
        return float(asked(self.nvml, self.nvml.nvmlDeviceGetPowerUsage, self.handle))

    def now_ns(self) -> int:
        """The host's monotonic clock."""
        return time.monotonic_ns()


def open_sensor(device: str | torch.device) -> NvmlSensor | Unavailable:
    """The sensor of torch's CUDA device, found by UUID; Unavailable with the reason otherwise."""
    place = torch.device(device)
    try:
        nvml = load_nvml()
        if place.type != "cuda":
            return Unavailable(f"NVML reads NVIDIA GPUs, and the device is {place}")
        if not torch.cuda.is_available():
            return Unavailable("NVML: a board is present, but torch finds no usable NVIDIA GPU")
        index = torch.cuda.current_device() if place.index is None else place.index
        return NvmlSensor(nvml, handle_of(nvml, torch.cuda.get_device_properties(index)))
    except SensorError as error:
        return Unavailable(f"NVML: {error}")


def energy(
    fn: Callable[[], Any],
    *,
    device: str | torch.device,
    reset: Callable[[], Any] | None = None,
    limits: EnergyLimits | None = None,
) -> Reading | Unavailable:
    """Joules per call of `fn()` on an NVIDIA GPU, by `estimate_energy`; else why not.

    `reset` runs before every call and its energy is in the result.
    """
    sensor = open_sensor(device)
    if isinstance(sensor, Unavailable):
        return sensor
    try:
        load = QueuedLoad(fn, reset, torch.device(device))
        return estimate_energy(sensor, load, calls_per_work=load.batch, limits=limits)
    except RuntimeError as error:
        return Unavailable(f"the call failed while its energy was measured: {reason_of(error)}")


class QueuedLoad:
    """Keeps a GPU's queue filled: each call enqueues one batch and waits for the one before."""

    def __init__(
        self, fn: Callable[[], Any], reset: Callable[[], Any] | None, device: torch.device
    ) -> None:
        self.fn = fn
        self.reset = reset
        self.device = device
        self.batch = 1
        self.pending: Any = None
        self.batch = self.fitting()

    def enqueue(self) -> Any:
        """One batch of calls and the event behind it."""
        for _ in range(self.batch):
            if self.reset is not None:
                self.reset()
            self.fn()
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(torch.cuda.current_stream(self.device))
        return event

    def fitting(self, target_s: float = 0.005) -> int:
        """How many calls take about `target_s`."""
        self.enqueue().synchronize()
        began = time.perf_counter()
        for _ in range(3):
            self.enqueue().synchronize()
        return max(1, round(target_s * 3 / (time.perf_counter() - began)))

    def __call__(self) -> None:
        event = self.enqueue()
        if self.pending is not None:
            self.pending.synchronize()
        self.pending = event
