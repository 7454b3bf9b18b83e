"""The energy counter and power sensor of torch's NVIDIA board, and a load that keeps it busy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from profiler.meters.energy.estimate import PairedEnergy, estimate_energy, paired_energy
from profiler.meters.energy.protocol import EnergyLimits, SensorError
from profiler.meters.failure import why_failed
from profiler.meters.nvml import (
    BOARD,
    INSTANT,
    MODULE,
    SLOWDOWNS,
    VIRTUAL,
    Board,
    board_handle,
    decoded,
    load_nvml,
)
from profiler.records.grades import SHARED
from profiler.records.reading import Reading, Unavailable

MODULES = ("GH200", "GB200", "GB300")
"""Boards on a module with a CPU, whose counter covers both: seen on GH200 (Zeus, pull request 172),
assumed of the other two."""

BUSY_PERCENT = 5
"""The highest utilisation of a board at rest; above, another process works on the board."""


class NvmlSensor(Board):
    """The energy counter and the power sensor of one whole NVIDIA board: an
    `energy.protocol.Sensor`. With `force`, other users of the board cause a label instead of an
    error."""

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        *,
        force: bool = False,
        own_bytes: Callable[[], int] = lambda: 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Find the sensors of the board `handle` by the library `nvml`. `own_bytes()` is the device
        memory that this process holds, and `clock` gives nanoseconds. Raises SensorError: the board
        is split into parts (MIG), has no sensor, or, unless `force`, is used by other processes."""
        super().__init__(nvml, handle)
        self.force, self.reserved, self.clock = force, own_bytes, clock
        self.shared = ""
        self.require_whole()
        self.refuse_others()
        self.counter = self.answers(self.energy_mJ)
        self.scope = self.power_scope()
        instant = self.field(INSTANT, self.scope) is not None
        averaged = not instant and self.answers(self.power_mW_averaged)
        self.power = "instant" if instant else "averaged" if averaged else None
        if not self.counter and self.power is None:
            raise SensorError("this board has neither an energy counter nor a power sensor")
        limit_mW = self.maybe("nvmlDeviceGetEnforcedPowerLimit")
        self.limit_W = None if limit_mW is None else limit_mW * 1e-3

    def answers(self, question: Callable[[], Any]) -> bool:
        """Whether the board has the sensor that `question` reads: False if NVML answers that the
        device (code 3) or the driver (code 13) does not support it; other errors are raised."""
        try:
            question()
        except SensorError as error:
            if error.code in (3, 13):
                return False
            raise
        return True

    def power_scope(self) -> int:
        """MODULE if the module tells instant power, and the board tells none or 0; else BOARD."""
        board = self.field(INSTANT, BOARD)
        module = None if board else self.field(INSTANT, MODULE)
        return BOARD if module is None else MODULE

    def require_whole(self) -> None:
        """Raise SensorError if the device is a part of a board, or its board is split into parts
        (MIG): the sensors cover the whole board."""
        if self.maybe("nvmlDeviceIsMigDeviceHandle") or self.split:
            raise SensorError(
                "unsupported (shared): MIG mode is on, and NVML measures the whole board only: "
                "take a whole GPU"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels for whatever the figures cover besides this board and this process: "whole
        module", "vGPU", and `SHARED` for other processes."""
        model = decoded(self.maybe("nvmlDeviceGetName") or "")
        mode = VIRTUAL.get(self.maybe("nvmlDeviceGetVirtualizationMode"), "")
        found = {
            "whole module": self.scope == MODULE or any(x in MODULES for x in model.split()),
            "vGPU": mode.startswith("vGPU"),
            SHARED: bool(self.shared),
        }
        return tuple(label for label, holds in found.items() if holds)

    def require_alone(self) -> None:
        """Raise SensorError, or with `force` note the reason, if other processes use the board or
        keep it busy while this process is at rest."""
        self.refuse_others()
        rates = self.maybe("nvmlDeviceGetUtilizationRates")
        if rates is not None and rates.gpu > BUSY_PERCENT:
            self.refuse_or_note(f"the board is {rates.gpu} % busy while this process is idle")

    def refuse_others(self) -> None:
        """Raise SensorError, or with `force` note the reason, if other processes use the board."""
        if found := self.signs_of_others(self.reserved()):
            self.refuse_or_note(found)

    def refuse_or_note(self, reason: str) -> None:
        """Raise SensorError with the reason why other processes seem to share the board; with
        `force`, note the reason instead, for a label."""
        if not self.force:
            raise SensorError(
                f"{reason}; the energy would include that work: stop it, or measure with --shared"
            )
        self.shared = reason

    def energy_mJ(self) -> int:
        """Millijoules that the energy counter has counted since the driver was loaded."""
        return int(self.ask("nvmlDeviceGetTotalEnergyConsumption"))

    def power_mW(self) -> float | None:
        """Milliwatts: the instant power if the board has it (None if a reading fails), else the
        driver's mean over up to 1 s."""
        if self.power == "instant":
            return self.field(INSTANT, self.scope)
        return self.power_mW_averaged()

    def power_mW_averaged(self) -> float:
        """Milliwatts by the driver's default: a mean over 1 s on most boards since Ampere."""
        return float(self.ask("nvmlDeviceGetPowerUsage"))

    def temperature_C(self) -> float | None:
        """The chip's temperature in degrees Celsius; None if the board does not tell."""
        found = self.maybe("nvmlDeviceGetTemperature", 0)
        return None if found is None else float(found)

    def slowdowns(self) -> dict[str, int]:
        """A dict: label -> nanoseconds for which the clocks were held down since the driver was
        loaded."""
        found: dict[str, int] = {}
        for number, held in self.held_clocks().items():
            found[SLOWDOWNS[number]] = found.get(SLOWDOWNS[number], 0) + held
        return found

    def now_ns(self) -> int:
        """Nanoseconds of the host's monotonic clock."""
        return self.clock()


def open_sensor(device: str | torch.device, *, force: bool = False) -> NvmlSensor | Unavailable:
    """Open the energy and power sensors of torch's CUDA device, found by UUID, or return
    Unavailable with the reason. With `force`, other processes on the board cause a label."""
    place = torch.device(device)
    try:
        nvml = load_nvml()
        if place.type != "cuda":
            return Unavailable(f"NVML reads NVIDIA GPUs, and the device is {place}")
        if not torch.cuda.is_available():
            return Unavailable("NVML: a board is present, but torch finds no usable NVIDIA GPU")
        return NvmlSensor(
            nvml,
            board_handle(nvml, place),
            force=force,
            own_bytes=lambda: torch.cuda.memory_reserved(place),
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
    """Joules per call of `fn()` on an NVIDIA GPU, the mean over trials of a window of load;
    Unavailable with the reason.

    `reset` runs before every call, and its energy is in the result. With `force`, energy is
    measured and labelled even if other processes use the board. `limits`: how long and how often to
    measure. `pause(seconds)` waits.
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
    """Measure joules per call of several candidates whose trials take turns, so that drift cancels
    in ratios; Unavailable with the reason. All candidates stay in the device's memory throughout.

    Args:
        calls: name of a candidate -> its call, and the reset before every call, or None.
        limits: how long and how often to measure, and which deviations get no label.
        force: measure, and label the result, even if other processes use the board.
        pause: lets the device idle for a number of seconds.
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
"""The target duration of a batch in seconds: NVML answers faster, so that the queue stays filled
during a reading. If a batch has more launches than the queue holds, the host waits while enqueueing
and reads less often, which `edge_error` shows; the load has no gap."""


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

    `reset` runs before every call, as part of the load. `fn` may replay a CUDA graph.
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
        """Find by timed calls how many calls of `fn` make a batch of about `BATCH_S` seconds.
        `marker` puts a marker behind a batch in the device's queue; `clock` gives seconds."""
        self.fn = fn
        self.reset = reset
        self.device = device
        self.marker = marker
        self.clock = clock
        self.queue: deque[Marker] = deque()
        self.calls = 1
        self.calls = self.fitting(self.fitting(1))  # a longer batch gives a better estimate

    def submit(self) -> None:
        """Put one batch of calls into the GPU's queue, and a marker behind it that tells when the
        batch is done."""
        with torch.cuda.device(self.device):
            for _ in range(self.calls):
                if self.reset is not None:
                    self.reset()
                self.fn()
            self.queue.append(self.marker(self.device))

    def ready(self) -> bool:
        """Whether another batch may be queued: the queue is not full, or its oldest batch is done
        and leaves the queue."""
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
        """The number of calls (1 or more) that take about `BATCH_S` seconds, from a timed batch of
        `calls` after an untimed batch; sets `self.calls` to `calls`."""
        self.calls = calls
        self.submit()
        self.drain()
        began = self.clock()
        self.submit()
        self.drain()
        elapsed_s = self.clock() - began
        return max(1, round(calls * BATCH_S / elapsed_s)) if elapsed_s > 0 else calls
