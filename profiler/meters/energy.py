"""How many joules does one call take, gross and net of idle, by a counter that is read in steps?

The counter of current NVIDIA GPUs moves about every 100 ms. Both ends of the window are therefore
placed on such a step, read by polling while the load goes on, which removes the step's size from
the error; what remains is the sensor's gain (5 % is what the makers' meters have been held to).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from profiler.meters.interface import Reading, Unavailable

SENSOR_GAIN = 0.05


class Sensor(Protocol):
    """A device's meters. Each method raises SensorError where the device refuses."""

    def energy_mJ(self) -> int:
        """Millijoules since some moment in the past, never decreasing."""
        ...

    def power_mW(self) -> float:
        """Milliwatts now."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds of a monotonic clock."""
        ...


class SensorError(RuntimeError):
    """A sensor that cannot be read, or whose readings cannot be used; the message says why."""


@dataclass(frozen=True)
class EnergyLimits:
    """How long to load and to idle, in seconds, and what counts as steady."""

    min_periods: int = 20  # of the counter's update period, in one window
    min_window_s: float = 2.0
    window_s: float | None = None  # None: the shortest window that the two lines above allow
    settle_s: float = 1.0
    idle_s: float = 3.0
    patience_s: float = 2.0  # longest wait for the counter to move
    poll_s: float = 0.001
    steady: float = 0.10  # relative standard deviation of power between parts of the window
    parts: int = 10
    sensors_agree: float = 0.05


@dataclass
class Polled:
    """What the counter showed: every moment it moved, and the calls that were done by then."""

    sensor: Sensor
    work: Callable[[], Any]
    limits: EnergyLimits
    calls: int = 0
    last_mJ: int | None = None
    polled_ns: int = 0
    edges: list[tuple[int, int, int]] = field(default_factory=list)  # ns, mJ, calls
    powers_mW: list[float] = field(default_factory=list)

    def step(self) -> bool:
        """Work once and read the counter if it is time; whether the counter moved."""
        self.work()
        self.calls += 1
        now = self.sensor.now_ns()
        if now - self.polled_ns < self.limits.poll_s * 1e9:
            return False
        self.polled_ns = now
        energy = self.sensor.energy_mJ()
        before, self.last_mJ = self.last_mJ, energy
        if before is None or energy == before:
            return False
        if energy < before:
            raise SensorError(
                f"the energy counter went down from {before} to {energy} mJ: the driver was "
                "reloaded or the counter wrapped"
            )
        self.edges.append((self.sensor.now_ns(), energy, self.calls))
        self.powers_mW.append(self.sensor.power_mW())
        return True

    def until_edge(self) -> tuple[int, int, int]:
        """Work on until the counter moves; SensorError if it does not."""
        deadline = self.sensor.now_ns() + self.limits.patience_s * 1e9
        while not self.step():
            if self.sensor.now_ns() > deadline:
                raise SensorError(
                    f"the energy counter did not move in {self.limits.patience_s:g} s"
                )
        return self.edges[-1]

    def during(self, seconds: float) -> None:
        """Work on for so long."""
        end = self.sensor.now_ns() + seconds * 1e9
        while self.sensor.now_ns() < end:
            self.step()


@dataclass(frozen=True)
class Window:
    """Energy between two steps of the counter, and how steady the power was in between."""

    energy_J: float
    elapsed_s: float
    calls: int
    spread: float  # relative standard deviation of the parts' power
    sensor_W: float  # mean of the power readings

    @property
    def power_W(self) -> float:
        """Mean power by the counter."""
        return self.energy_J / self.elapsed_s


def estimate_energy(
    sensor: Sensor,
    work: Callable[[], Any],
    *,
    calls_per_work: int = 1,
    pause: Callable[[float], None] = time.sleep,
    limits: EnergyLimits | None = None,
) -> Reading | Unavailable:
    """Joules per call, gross, with net of active idle and mean power (W) in details.

    `work()` keeps the device busy for a few milliseconds and makes `calls_per_work` calls; it is
    repeated without a gap. `pause(s)` lets the device idle. Unavailable where the counter cannot
    be read, stands still, goes down, where the window would be shorter than 20 update periods, or
    where power is not steady over the window (load in bursts aliases with the sensor).
    """
    limits = limits or EnergyLimits()
    try:
        load = Polled(sensor, work, limits)
        load.during(limits.settle_s)
        period_s = update_period(load)
        window_s = window_length(limits, period_s)
        idle_before = idle_power(sensor, pause, limits)
        load = Polled(sensor, work, limits)
        load.during(limits.settle_s)
        window = measured_window(load, window_s)
        idle_after = idle_power(sensor, pause, limits)
    except SensorError as error:
        return Unavailable(f"energy: {error}")
    if window.spread > limits.steady:
        return Unavailable(
            f"energy: power varied by {window.spread:.0%} between parts of the window (at most "
            f"{limits.steady:.0%} is accepted): the load comes in bursts, and a sensor that looks "
            f"every {period_s:.3g} s misreads bursts"
        )
    idle_W = (idle_before + idle_after) / 2
    return energy_reading(
        window, idle_W, (idle_before, idle_after), period_s, calls_per_work, limits
    )


def energy_reading(
    window: Window,
    idle_W: float,
    idles_W: tuple[float, float],
    period_s: float,
    calls_per_work: int,
    limits: EnergyLimits,
) -> Reading:
    """The reading and everything that it was derived from."""
    calls = window.calls * calls_per_work
    gross = window.energy_J / calls
    labels = []
    if abs(window.sensor_W - window.power_W) > limits.sensors_agree * window.power_W:
        labels.append("sensor disagreement")
    if window.power_W < 2 * idle_W:
        labels.append("mostly idle")
    return Reading(
        "energy",
        gross,
        "J",
        (gross,),
        {
            "net_J": gross - idle_W * window.elapsed_s / calls,
            "power_W": window.power_W,
            "idle_W": idle_W,
            "idle_before_W": idles_W[0],
            "idle_after_W": idles_W[1],
            "idle": "active: context up, no work",
            "sensor_power_W": window.sensor_W,
            "calls": calls,
            "window_s": window.elapsed_s,
            "update_period_s": period_s,
            "power_spread": window.spread,
            "sensor_gain": SENSOR_GAIN,
            "labels": labels,
        },
    )


def split(energy: Reading) -> tuple[Reading, ...]:
    """Gross and net energy (J per call) and mean power (W), as readings of their own."""
    net, power = energy.details["net_J"], energy.details["power_W"]
    return (
        energy,
        replace(energy, name="energy_net", value=net, samples=(net,), details={}),
        replace(energy, name="power", value=power, unit="W", samples=(power,), details={}),
    )


def update_period(load: Polled, edges: int = 6) -> float:
    """Seconds between steps of the counter under load, the mean over a few of them."""
    moments = [load.until_edge()[0] for _ in range(edges)]
    return (moments[-1] - moments[0]) * 1e-9 / (len(moments) - 1)


def window_length(limits: EnergyLimits, period_s: float) -> float:
    """Seconds to measure for; SensorError if a window that was asked for is too short."""
    least = max(limits.min_window_s, limits.min_periods * period_s)
    if limits.window_s is not None and limits.window_s < least:
        raise SensorError(
            f"a window of {limits.window_s:g} s is too short: the counter moves every "
            f"{period_s:.3g} s, and {least:.3g} s or more are needed"
        )
    return limits.window_s or least


def measured_window(load: Polled, window_s: float) -> Window:
    """From one step of the counter to the first one after `window_s`, the load going on."""
    first = load.until_edge()
    start = len(load.edges) - 1
    load.during(window_s)
    last = load.until_edge()
    edges = load.edges[start:]
    energy_mJ = last[1] - first[1]
    if energy_mJ <= 0:
        raise SensorError("the energy counter shows 0 J over the window")
    return Window(
        energy_J=energy_mJ * 1e-3,
        elapsed_s=(last[0] - first[0]) * 1e-9,
        calls=last[2] - first[2],
        spread=power_spread(edges, load.limits.parts),
        sensor_W=statistics.fmean(load.powers_mW[start + 1 :]) * 1e-3,
    )


def power_spread(edges: list[tuple[int, int, int]], parts: int) -> float:
    """Relative standard deviation of mean power over equal groups of the counter's steps."""
    size = max((len(edges) - 1) // parts, 1)
    marks = edges[::size]
    powers = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(marks)]
    return statistics.pstdev(powers) / statistics.fmean(powers) if len(powers) > 1 else 0.0


def idle_power(sensor: Sensor, pause: Callable[[float], None], limits: EnergyLimits) -> float:
    """Watts with the context up and no work, by the counter between two of its steps."""
    pause(limits.settle_s)
    rest = Polled(sensor, lambda: pause(limits.poll_s), limits)
    first = rest.until_edge()
    rest.during(limits.idle_s)
    last = rest.until_edge()
    return (last[1] - first[1]) * 1e-3 / ((last[0] - first[0]) * 1e-9)
