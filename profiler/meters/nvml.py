"""The energy counter and power sensor of torch's NVIDIA board, and a load that keeps it busy."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from profiler.meters.energy.estimate import PairedEnergy, estimate_energy, paired_energy
from profiler.meters.energy.protocol import EnergyLimits, SensorError
from profiler.meters.failure import why_failed
from profiler.records.grades import SHARED
from profiler.records.reading import Reading, Unavailable, reason_of

INSTALL = "pip install nvidia-ml-py"


NOT_FOUND = (2, 6)
""""Invalid argument" and "not found": drivers return either one if no board has the UUID."""


EXPLAINED = {
    1: "NVML is not initialised",
    3: "not supported by this device",
    4: "no permission to read this device",
    6: "NVML knows no such board",
    9: "the NVIDIA driver is not loaded",
    10: "NVML did not answer in time",
    12: "library not found: there is no NVIDIA driver on this machine",
    13: "the driver is too old for this function",
    15: "the GPU is lost",
    16: "the GPU must be reset",
    18: "driver and library versions differ: reload the driver",
}


INSTANT, AVERAGE = 186, 185
"""The fields NVML_FI_DEV_POWER_INSTANT and _AVERAGE, in mW."""


BOARD, MODULE = 0, 1
"""The scopes NVML_POWER_SCOPE_GPU and _MODULE."""


VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The union member of a field's value, indexed by nvmlValueType_t."""


SLOWDOWNS = {
    74: "power-capped",  # NVML_FI_DEV_PERF_POLICY_POWER
    75: "throttled",  # NVML_FI_DEV_PERF_POLICY_THERMAL
    269: "throttled",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    270: "throttled",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    271: "throttled",  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
}
"""Field that counts the time for which the clocks were held down -> label."""


VIRTUAL = {2: "vGPU", 3: "vGPU"}
"""nvmlGpuVirtualizationMode_t -> label: virtual machines share the board."""


MODULES = ("GH200", "GB200", "GB300")
"""Boards on a module with a CPU, whose counter covers both: seen on GH200 (Zeus, pull request 172),
assumed of the other two."""


ALLOWANCE_BYTES = 2 * 2**30
"""An upper bound on the memory of contexts, libraries and the driver, besides torch's; more memory
belongs to another process."""


NOT_LISTED = "NVML does not list this process by its number here (as in a container)"


BUSY_PERCENT = 5
"""The highest utilisation of a board at rest; above, another process works on the board."""


def load_nvml() -> Any:
    """NVIDIA's Python binding, initialised; SensorError, with one sentence, if that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # older packages announce a replacement
            import pynvml  # type: ignore[import-untyped]  # no stubs
    except ImportError:
        raise SensorError(f"the package nvidia-ml-py is not installed ({INSTALL})") from None
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise SensorError(
            f"another package named pynvml hides NVIDIA's (pip uninstall pynvml; {INSTALL})"
        )
    ask_nvml(pynvml, pynvml.nvmlInit)
    return pynvml


def ask_nvml(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The value of an NVML function; an NVMLError becomes a SensorError with one sentence."""
    try:
        return function(*args)
    except nvml.NVMLError as error:
        code = int(getattr(error, "value", 0) or 0)
        raise SensorError(EXPLAINED.get(code, reason_of(error)), code) from None


def handle_of(nvml: Any, properties: Any) -> Any:
    """NVML's handle of the board with the UUID, or else the PCI bus id, of torch's device.

    An index would be wrong: NVML counts boards by bus, and CUDA_VISIBLE_DEVICES hides and reorders
    devices. The UUID may be that of a part of a board (MIG).
    """
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        address = (
            f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}"
            f":{properties.pci_device_id:02x}.0"
        )
        return ask_nvml(nvml, nvml.nvmlDeviceGetHandleByPciBusId, address.encode())
    text = str(uuid)
    names = [text] if text.startswith(("GPU-", "MIG-")) else [f"GPU-{text}", f"MIG-{text}"]
    for name in names[:-1]:
        try:
            return ask_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, name.encode())
        except SensorError as error:
            if error.code not in NOT_FOUND:
                raise
    return ask_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, names[-1].encode())


def field_of(nvml: Any, handle: Any, number: int, scope: int = BOARD) -> float | None:
    """The value of a field; None if the board does not have the field.

    The call succeeds even for a failed field, with the value 0: each field has its own return code.
    """
    try:
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
    except nvml.NVMLError:
        return None
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return float(getattr(field.value, VALUES[field.valueType]))


def answer_of(nvml: Any, question: Callable[..., Any], handle: Any, *args: Any) -> Any:
    """The value of an NVML function for a board; None if the board refuses to answer."""
    try:
        return question(handle, *args)
    except nvml.NVMLError:
        return None


def others_on(nvml: Any, handle: Any, own_bytes: int) -> str | None:
    """Evidence that other processes compute on a board: more than one process, or more memory in
    use than this process explains. "" without evidence, None if the board tells neither.

    Process ids are no evidence: inside a container NVML gives the host's ids, or lists no or only
    some processes, so that a plausible list does not identify the owner of the memory.
    """
    processes = answer_of(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    memory = answer_of(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if processes is not None and len(processes) > 1:
        return f"{len(processes)} processes compute on this board, one was expected"
    if memory is not None and memory.used > own_bytes + ALLOWANCE_BYTES:
        return f"{memory.used - own_bytes} bytes of the board's memory are held by others"
    return None if processes is None and memory is None else ""


class NvmlSensor:
    """The energy counter and the power sensor of one whole NVIDIA board: an
    `energy.protocol.Sensor`.

    The constructor finds out which sensors the board has. With `force`, other users of the board
    cause a label instead of an error. `own_bytes()` is the device memory that this process holds.

    Raises:
        SensorError: the board has no sensor of energy or power, or other processes use the board.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        *,
        force: bool = False,
        own_bytes: Callable[[], int] = lambda: 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.nvml, self.handle = nvml, handle
        self.force, self.own_bytes, self.clock = force, own_bytes, clock
        self.shared = ""
        self.require_whole()
        self.others()
        self.counter = self.answers(self.energy_mJ)
        self.scope = self.power_scope()
        instant = field_of(nvml, handle, INSTANT, self.scope) is not None
        averaged = not instant and self.answers(self.power_mW_averaged)
        self.power = "instant" if instant else "averaged" if averaged else None
        if not self.counter and self.power is None:
            raise SensorError("this board has neither an energy counter nor a power sensor")
        limit_mW = self.maybe(nvml.nvmlDeviceGetEnforcedPowerLimit)
        self.limit_W = None if limit_mW is None else limit_mW * 1e-3

    def maybe(self, question: Callable[..., Any], *args: Any) -> Any:
        """The value of an NVML function for this board; None if the board refuses to answer."""
        return answer_of(self.nvml, question, self.handle, *args)

    def answers(self, question: Callable[[], Any]) -> bool:
        """Whether the board has this sensor; errors other than "not supported" are raised."""
        try:
            question()
        except SensorError as error:
            if error.code in (3, 13):
                return False
            raise
        return True

    def power_scope(self) -> int:
        """MODULE if only the module's instant power is readable, else BOARD."""
        board = field_of(self.nvml, self.handle, INSTANT, BOARD)
        module = None if board else field_of(self.nvml, self.handle, INSTANT, MODULE)
        return BOARD if module is None else MODULE

    def require_whole(self) -> None:
        """SensorError if the device is a part of a board: the sensors cover the whole board."""
        part = self.maybe(self.nvml.nvmlDeviceIsMigDeviceHandle)
        mode = self.maybe(self.nvml.nvmlDeviceGetMigMode)
        if part or (mode and mode[0]):
            raise SensorError(
                "unsupported (shared): MIG mode is on, and NVML measures the whole board only"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """Warnings about what the figures cover besides this board and this process."""
        name = self.maybe(self.nvml.nvmlDeviceGetName)
        model = name.decode() if isinstance(name, bytes) else str(name)
        module = self.scope == MODULE or any(word in model.split() for word in MODULES)
        virtual = VIRTUAL.get(self.maybe(self.nvml.nvmlDeviceGetVirtualizationMode) or 0)
        found = (
            "whole module" if module else None,
            virtual,
            SHARED if self.shared else None,
        )
        return tuple(label for label in found if label)

    def require_alone(self) -> None:
        """SensorError if others work on the board; called while this process is at rest."""
        self.others()
        rates = self.maybe(self.nvml.nvmlDeviceGetUtilizationRates)
        if rates is not None and rates.gpu > BUSY_PERCENT:
            self.share(f"the board is {rates.gpu} % busy though this process is at rest")

    def others(self) -> None:
        """Refuse to measure, or with `force` note it, if other processes use the board."""
        if found := others_on(self.nvml, self.handle, self.own_bytes()):
            self.share(found)

    def share(self, reason: str) -> None:
        """SensorError; with `force`, note the reason instead."""
        if not self.force:
            raise SensorError(
                f"{reason}; its energy would be in the figure: stop it, or measure with --shared"
            )
        self.shared = reason

    def energy_mJ(self) -> int:
        """Millijoules since the driver was loaded."""
        return int(ask_nvml(self.nvml, self.nvml.nvmlDeviceGetTotalEnergyConsumption, self.handle))

    def power_mW(self) -> float | None:
        """Milliwatts: the instant power if the board has it, else the driver's mean (up to 1 s)."""
        if self.power == "instant":
            return field_of(self.nvml, self.handle, INSTANT, self.scope)
        return self.power_mW_averaged()

    def power_mW_averaged(self) -> float:
        """Milliwatts by the driver's default: a mean over 1 s on most boards since Ampere."""
        return float(ask_nvml(self.nvml, self.nvml.nvmlDeviceGetPowerUsage, self.handle))

    def temperature_C(self) -> float | None:
        """The chip's temperature; None if the board does not tell."""
        found = self.maybe(self.nvml.nvmlDeviceGetTemperature, 0)
        return None if found is None else float(found)

    def slowdowns(self) -> dict[str, int]:
        """Label -> nanoseconds for which the clocks were held down since the driver was loaded."""
        found: dict[str, int] = {}
        for number, label in SLOWDOWNS.items():
            held = field_of(self.nvml, self.handle, number)
            if held is not None:
                found[label] = found.get(label, 0) + int(held)
        return found

    def now_ns(self) -> int:
        """The host's monotonic clock."""
        return self.clock()


def open_sensor(device: str | torch.device, *, force: bool = False) -> NvmlSensor | Unavailable:
    """The sensor of torch's CUDA device, found by UUID, or Unavailable with the reason."""
    place = torch.device(device)
    try:
        nvml = load_nvml()
        if place.type != "cuda":
            return Unavailable(f"NVML reads NVIDIA GPUs, and the device is {place}")
        if not torch.cuda.is_available():
            return Unavailable("NVML: a board is present, but torch finds no usable NVIDIA GPU")
        index = torch.cuda.current_device() if place.index is None else place.index
        handle = handle_of(nvml, torch.cuda.get_device_properties(index))
        return NvmlSensor(
            nvml, handle, force=force, own_bytes=lambda: torch.cuda.memory_reserved(index)
        )
    except SensorError as error:
        return Unavailable(f"NVML: {error}")


def energy(
    fn: Callable[[], Any],
    *,
    device: str | torch.device,
    reset: Callable[[], Any] | None = None,
    limits: EnergyLimits | None = None,
    force: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Reading | Unavailable:
    """Joules per call of `fn()` on an NVIDIA GPU, by `estimate_energy`; Unavailable with the
    reason.

    `reset` runs before every call, and its energy is in the result. With `force`, energy is
    measured and labelled even if other processes use the board.
    """
    sensor = open_sensor(device, force=force)
    if isinstance(sensor, Unavailable):
        return sensor
    place = torch.device(device)
    try:
        load = QueuedLoad(fn, reset, place)
        return estimate_energy(sensor, load, pause=pause, limits=limits)
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(why_failed(error, "while its energy was measured", place))


def energies_in_turn(
    calls: Mapping[str, tuple[Callable[[], Any], Callable[[], Any] | None]],
    *,
    device: str | torch.device,
    limits: EnergyLimits | None = None,
    force: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> PairedEnergy | Unavailable:
    """Joules per call of several `(fn, reset)` whose trials take turns (`paired_energy`).

    All candidates stay in the device's memory for the whole measurement.
    """
    sensor = open_sensor(device, force=force)
    if isinstance(sensor, Unavailable):
        return sensor
    place = torch.device(device)
    try:
        loads = {name: QueuedLoad(fn, reset, place) for name, (fn, reset) in calls.items()}
        return paired_energy(sensor, loads, pause=pause, limits=limits)
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(why_failed(error, "while energies were measured in turns", place))


BATCH_S = 0.01
"""The target duration of a batch: longer than NVML takes to answer, so that the queue never runs
empty during a reading. If a batch has more launches than the queue holds, the host waits while
enqueueing and reads less often, which `edge_error` shows; the load has no gap."""


DEPTH = 2
"""Batches in the queue, including the running batch."""


class Marker(Protocol):
    """A marker in the queue, behind a batch."""

    def query(self) -> bool:
        """Whether all work before the marker is done."""
        ...

    def synchronize(self) -> object:
        """Wait until all work before the marker is done."""
        ...


def cuda_marker(device: torch.device) -> Marker:
    """A CUDA event at the end of the device's current stream."""
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record(torch.cuda.current_stream(device))
    marker: Marker = event
    return marker


class QueuedLoad:
    """Keeps a GPU's queue filled with batches of calls of `fn`: an `energy.protocol.Load`.

    `reset` runs before every call, as part of the load. `fn` may replay a graph.
    """

    def __init__(
        self,
        fn: Callable[[], Any],
        reset: Callable[[], Any] | None,
        device: torch.device,
        *,
        marker: Callable[[torch.device], Marker] = cuda_marker,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.fn = fn
        self.reset = reset
        self.device = device
        self.marker = marker
        self.clock = clock
        self.queue: deque[Marker] = deque()
        self.calls = 1
        self.calls = self.fitting(self.fitting(1))

    def submit(self) -> None:
        """Queue one batch of calls and a marker behind it."""
        with torch.cuda.device(self.device):
            for _ in range(self.calls):
                if self.reset is not None:
                    self.reset()
                self.fn()
            self.queue.append(self.marker(self.device))

    def ready(self) -> bool:
        """Whether the oldest batch is done, or the queue is not full."""
        if len(self.queue) < DEPTH:
            return True
        if not self.queue[0].query():
            return False
        self.queue.popleft()
        return True

    def drain(self) -> None:
        """Wait until the queue is empty."""
        while self.queue:
            self.queue.popleft().synchronize()

    def fitting(self, calls: int) -> int:
        """The number of calls that take about `BATCH_S`, from a timed batch of `calls` after a
        warm-up."""
        self.calls = calls
        self.submit()
        self.drain()
        began = self.clock()
        self.submit()
        self.drain()
        elapsed_s = self.clock() - began
        return max(1, round(calls * BATCH_S / elapsed_s)) if elapsed_s > 0 else calls
