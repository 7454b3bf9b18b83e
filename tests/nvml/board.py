"""What does a simulated board do, what do its sensors read, and what are the true values?

The library `simulated.c` stands in for NVML. Loads write the true power of the board into it ahead
of its simulated clock, and into a `Truth` of their own, which integrates without the library.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.meters.board_energy import NvmlSensor
from profiler.meters.nvml import handle_of

SOURCE = Path(__file__).parent / "simulated.c"
MS = 1_000_000
EVER = 2**62
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
INTEGRATING, SAMPLING = 0, 1


def built(folder: Path) -> Path:
    """The library, named as NVML's is; skips the test where there is no C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang): the simulated NVML cannot be built")
    library = folder / "libnvidia-ml.so.1"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-lm"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return library


class Truth:
    """The power of a board as straight pieces, and its exact integral."""

    def __init__(self) -> None:
        self.starts: list[int] = []  # ns
        self.pieces: list[tuple[float, float]] = []  # W at the start, W/s
        self.before: list[float] = []  # J until the start

    def start(self, ns: int, watts: float, slope: float) -> None:
        """From now on power is `watts` and grows by `slope`; what was said of later is dropped."""
        before = self.energy(ns)
        keep = bisect_left(self.starts, ns)
        del self.starts[keep:], self.pieces[keep:], self.before[keep:]
        self.starts.append(ns)
        self.pieces.append((watts, slope))
        self.before.append(before)

    def energy(self, ns: float) -> float:
        """Joules until a moment."""
        place = bisect_right(self.starts, ns) - 1
        if place < 0:
            return 0.0
        s = (ns - self.starts[place]) * 1e-9
        watts, slope = self.pieces[place]
        return self.before[place] + watts * s + slope * s * s / 2

    def power(self, start: float, end: float) -> float:
        """Mean watts between two moments."""
        return (self.energy(end) - self.energy(start)) / ((end - start) * 1e-9)


@dataclass
class Simulated:
    """The library and one of its boards; every wattage is the board's, and drifts with it."""

    nvml: Any
    library: Any
    index: int = 0
    idle_W: float = 80.0
    drift_W_per_s: float = 0.0
    warming_C: Callable[[float], float] | None = None
    """Temperature from the power of the last 50 ms, where it matters."""
    truth: Truth = field(default_factory=Truth)
    later: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    started_ns: int = 0

    def __post_init__(self) -> None:
        self.started_ns = self.now_ns()
        self.draw(self.started_ns, self.idle_W)

    def now_ns(self) -> int:
        """The simulated clock."""
        return int(self.library.sim_time_ns())

    def call(self, name: str, *values: Any) -> None:
        """A control function of the library for this board."""
        getattr(self.library, name)(self.index, *values)

    def draw(self, ns: int, watts: float) -> None:
        """Power from a moment on, drift added."""
        drifted = watts + self.drift_W_per_s * (ns - self.started_ns) * 1e-9
        self.truth.start(ns, drifted, self.drift_W_per_s)
        self.call("sim_power_from", ns, drifted * 1e3, self.drift_W_per_s * 1e3)

    def advance(self, ns: int) -> None:
        """Let time pass, and do what is due."""
        self.library.sim_set_time_ns(self.now_ns() + ns)
        while self.later and self.later[0][0] <= self.now_ns():
            self.later.pop(0)[1]()
        if self.warming_C is not None:
            now = self.now_ns()
            self.call(
                "sim_temperature", round(self.warming_C(self.truth.power(now - 50 * MS, now)))
            )

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something once so much time has passed since the start."""
        self.later.append((self.started_ns + round(seconds * 1e9), what))
        self.later.sort(key=lambda entry: entry[0])

    def pause(self, seconds: float) -> None:
        """Idle."""
        end = self.now_ns() + round(seconds * 1e9)
        while self.now_ns() < end:
            self.advance(min(end - self.now_ns(), 100 * MS))

    def counter(
        self,
        period_ms: float = 100,
        *,
        phase_ms: float = 37,
        window_ms: float = 100,
        gain: float = 1.0,
        mode: int = INTEGRATING,
        quantum_mJ: float = 1.0,
        late_ms: float = 0.0,
    ) -> None:
        """What kind of energy counter the board has. A step shows up to `late_ms` after its end,
        each by another delay, and counts until its end."""
        times = [round(each * MS) for each in (period_ms, phase_ms, window_ms)]
        self.call("sim_counter", *times, gain, mode, quantum_mJ)
        self.call("sim_late", round(late_ms * MS))

    def instant(
        self,
        period_ms: float = 100,
        *,
        phase_ms: float = 12,
        window_ms: float = 25,
        gain: float = 1.0,
    ) -> None:
        """What kind of instant power reading the board has."""
        times = [round(each * MS) for each in (period_ms, phase_ms, window_ms)]
        self.call("sim_instant", *times, gain)

    def fault(self, function: str, code: int, since_s: float = 0.0, until_s: float = 1e9) -> None:
        """A function of NVML fails between two moments, counted from the start."""
        since, until = (self.started_ns + round(s * 1e9) for s in (since_s, until_s))
        self.library.sim_fault(function.encode(), code, since if since_s else 0, min(until, EVER))

    def sensor(self, **options: Any) -> NvmlSensor:
        """The meter under test, on the simulated clock."""
        handle = handle_of(self.nvml, properties(self.index))
        return NvmlSensor(self.nvml, handle, clock=self.now_ns, **options)


def uuid(index: int) -> str:
    """Of a board, as torch prints it: without the prefix."""
    return f"{index:08x}-0000-1111-2222-333344445555"


def properties(index: int, **other: Any) -> Any:
    """What torch tells of a device."""
    bus = {"pci_domain_id": 0, "pci_bus_id": 0x1B + 0x10 * index, "pci_device_id": 0}
    size = {"multi_processor_count": 132, "max_threads_per_multi_processor": 2048}
    return SimpleNamespace(**{"uuid": uuid(index), **bus, **size, **other})


class Busy:
    """A load whose batches have a known profile of power: (seconds, watts) in order."""

    def __init__(
        self,
        board: Simulated,
        profile: Sequence[tuple[float, float]] = ((0.01, 400.0),),
        calls: int = 6,
        step_ms: float = 1.0,
    ) -> None:
        self.board = board
        self.profile = profile
        self.calls = calls
        self.step_ns = round(step_ms * MS)
        self.queue: deque[int] = deque()
        self.until_ns = 0

    @property
    def call_s(self) -> float:
        """Seconds of a call, true."""
        return sum(seconds for seconds, _ in self.profile) / self.calls

    @property
    def call_J(self) -> float:
        """Joules of a call, true, without drift."""
        return sum(seconds * watts for seconds, watts in self.profile) / self.calls

    def submit(self) -> None:
        """The power of one more batch, behind what is queued."""
        moment = max(self.board.now_ns(), self.until_ns)
        for seconds, watts in self.profile:
            self.board.draw(moment, watts)
            moment += round(seconds * 1e9)
        self.board.draw(moment, self.board.idle_W)
        self.until_ns = moment
        self.queue.append(moment)

    def ready(self) -> bool:
        """Let the host's time pass until the oldest of two batches ends."""
        if len(self.queue) < 2:
            return True
        left = self.queue[0] - self.board.now_ns()
        if left > 0:
            self.board.advance(min(left, self.step_ns))
        if self.queue[0] > self.board.now_ns():
            return False
        self.queue.popleft()
        return True

    def drain(self) -> None:
        """Wait for the last batch."""
        self.queue.clear()
        self.board.advance(max(self.until_ns - self.board.now_ns(), 0))


class Thermal:
    """A chip that nears `ambient + resistance x power` as 1 - exp(-t / tau)."""

    def __init__(
        self,
        board: Simulated,
        start_C: float,
        *,
        ambient_C: float = 30.0,
        C_per_W: float = 0.08,
        tau_s: float = 15.0,
    ) -> None:
        self.board, self.now_C = board, start_C
        self.ambient_C, self.C_per_W, self.tau_s = ambient_C, C_per_W, tau_s
        self.last_ns = board.now_ns()

    def __call__(self, watts: float) -> float:
        now = self.board.now_ns()
        share = 1 - math.exp(-(now - self.last_ns) * 1e-9 / self.tau_s)
        self.now_C += share * (self.ambient_C + self.C_per_W * watts - self.now_C)
        self.last_ns = now
        return self.now_C


def opened(path: Path) -> Any:
    """The library with its control functions declared."""
    library = ctypes.CDLL(str(path))
    i, n, d, u, text = (
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_double,
        ctypes.c_uint32,
        ctypes.c_char_p,
    )
    signatures: dict[str, list[Any]] = {
        "sim_reset": [i],
        "sim_set_time_ns": [n],
        "sim_cost_ns": [n],
        "sim_power_from": [i, n, d, d],
        "sim_counter": [i, n, n, n, d, i, d],
        "sim_late": [i, n],
        "sim_instant": [i, n, n, n, d],
        "sim_averaged": [i, n, n, n, d],
        "sim_counter_event": [i, n, d, i],
        "sim_fault": [text, u, n, n],
        "sim_field_fault": [u, u, u],
        "sim_name": [i, text],
        "sim_uuid": [i, text],
        "sim_temperature": [i, u],
        "sim_limit": [i, u],
        "sim_mig": [i, u, u],
        "sim_virtualization": [i, u],
        "sim_busy": [i, u],
        "sim_processes": [i, u],
        "sim_process": [i, u, u, ctypes.c_uint64],
        "sim_memory": [i, ctypes.c_uint64],
        "sim_clock": [i, u],
        "sim_held": [i, u, ctypes.c_uint64],
        "sim_module": [i, u, d],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.sim_time_ns.restype = n
    library.sim_calls.restype = ctypes.c_uint64
    return library
