"""How does an estimate compare with the true value in the same windows?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from profiler.meters.board_energy import NvmlSensor
from profiler.meters.energy.estimate import energy_reading, estimate_energy
from profiler.meters.energy.protocol import EnergyLimits
from profiler.meters.energy.trials import Campaign, Trials
from profiler.records.reading import Reading, Unavailable
from tests.nvml.board import Busy, Simulated


@dataclass(frozen=True)
class Compared:
    """A reading, the trials behind it, and the truth over the same windows."""

    found: Reading
    trials: Trials
    gross_J: float
    net_J: float


def compared(
    board: Simulated, load: Busy, sensor: NvmlSensor | None = None, **limits: Any
) -> Compared:
    """Measure, and integrate the true power over the windows that were used."""
    sensor, chosen = sensor or board.sensor(), EnergyLimits(**limits)
    trials = Campaign(sensor, {"": load}, board.pause, chosen).run()
    found = energy_reading(sensor, "", trials, load, chosen)
    ends = [(t.window.stretch.start_ns, t.window.stretch.end_ns) for t in trials.of("")]
    gross = [board.truth.power(*each) for each in ends]
    idle = [
        board.idle_W + board.drift_W_per_s * ((a + b) / 2 - board.started_ns) * 1e-9
        for a, b in ends
    ]
    net = [loaded - resting for loaded, resting in zip(gross, idle, strict=True)]
    return Compared(
        found,
        trials,
        statistics.fmean(gross) * load.call_s,
        statistics.fmean(net) * load.call_s,
    )


def estimated(board: Simulated, load: Busy, **limits: Any) -> Reading | Unavailable:
    """What the meter answers."""
    return estimate_energy(board.sensor(), load, pause=board.pause, limits=EnergyLimits(**limits))


def read(measured: Reading | Unavailable) -> Reading:
    """A reading, and no reason."""
    assert isinstance(measured, Reading), measured
    return measured


def refused(measured: Any) -> str:
    """A reason, and no reading."""
    assert isinstance(measured, Unavailable), measured
    return measured.reason
