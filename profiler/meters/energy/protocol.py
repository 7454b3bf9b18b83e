"""By which protocol is the energy of a call measured, and which errors are left?

The sensors of an NVIDIA board are slow: its energy counter moves in steps, every 20 or 100 ms, and
its power reading is a mean over a window of 10 ms to 1 s, refreshed as rarely. A call takes micro-
to milliseconds. So the call is repeated without a gap, and energy per call is

    E = P x t,    P = joules between two steps of the counter / seconds between them,
                  t = seconds between the ends of two batches of calls / calls between them.

Both steps are found by polling while the load goes on, so the counter's period is not an error.
The errors, and the details of a reading that show them:

- When a step happened, between two polls: half a poll at each end over the window's length
  (`edge_error`). Calls are counted exactly (`calls`, `call_s`): whole batches, two completions.
- A driver that answers slowly: meanwhile nothing is queued, and a GPU whose queue runs empty idles
  (`slowest_reading_s`; labelled where it is longer than a batch).
- The sensor's gain, the same in every trial, so that no repetition removes it: 5 % at best, more on
  consumer boards (`systematic`). It cancels in ratios of loads that took turns.
- Drift, clocks, other work: what repeated trials show (`sd`, `ci_low`, `ci_high`: Student t).
- A load in bursts, in step with a sensor that looks at a part of the time: wrong by up to 100 %.
  Trials start at random phases, and the integral of the power reading over the counter's own
  window is a second opinion (`relative_sd`, `power_spread`, `check_J`, `check_gap`).
- Leakage, which grows with temperature: trials start within 3 C of each other (`start_C`).

Net energy subtracts *active idle*, the power of the board with the context up and no work, drawn as
a line in time from its reading before the trials to that after them (`idle_before_W`,
`idle_after_W`), labelled where it is not steady (`idle_spread`, `idle_change`). For the sensors'
periods, windows and gains see Yang, Adamek and Armour,
"Part-time Power Measurements: nvidia-smi's Lack of Attention" (2023, arXiv 2312.02741).

The files: `window` watches one window, `trials` repeats it, `estimate` draws the conclusion; `nvml`
is the board and its load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from profiler.records.reading import Reading

SYSTEMATIC = 0.05
"""Relative error of the sensor's gain, at best: boards differ from an external meter by this
much."""


MOST_S = 3600.0
"""Seconds of load, in all trials of a call: nobody waits for more."""

FEWEST_TRIALS = 5
"""A reading of fewer trials gets a label: its interval is wide, and bursts may not show."""
TRIALS_IN_TURNS = 6
"""Trials of each of several loads that take turns, unless another number is given."""


class SensorError(RuntimeError):
    """A sensor cannot be read, or its readings cannot be used; the message says why.

    `code` is NVML's number of the error, where NVML gave one.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class CounterFault(SensorError):
    """The energy counter went down or jumped: what was read around that moment is void."""


class Sensor(Protocol):
    """A device's meters. Each method raises SensorError where the device refuses."""

    counter: bool
    """Whether the device counts energy."""
    power: str | None
    """The kind of its power reading: "instant", "averaged" (over about 1 s), or None."""
    limit_W: float | None
    """The most that the board may draw continuously; None where it is unknown."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What a reader must know of what the sensor covers: "whole module", "vGPU", ..."""
        ...

    def energy_mJ(self) -> int:
        """Millijoules since some moment in the past, never decreasing."""
        ...

    def power_mW(self) -> float | None:
        """Milliwatts, of the kind that `power` names; None where this reading failed."""
        ...

    def temperature_C(self) -> float | None:
        """The chip's temperature; None where the board does not tell it."""
        ...

    def slowdowns(self) -> Mapping[str, int]:
        """Label of a slowdown -> how long it has held the clocks down, since some moment in the
        past."""
        ...

    def require_alone(self) -> None:
        """SensorError where somebody else works on the board; called while this process idles."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds of a monotonic clock."""
        ...


class Load(Protocol):
    """Work that keeps a device busy: batches of calls, each queued before the one before it
    ends."""

    calls: int
    """Calls in a batch."""

    def submit(self) -> None:
        """Queue one more batch."""
        ...

    def ready(self) -> bool:
        """Whether the queue needs another batch; becomes true as a batch completes."""
        ...

    def drain(self) -> None:
        """Wait until nothing is queued."""
        ...


@dataclass(frozen=True)
class EnergyLimits:
    """How long to load and to idle (seconds), how often, and which deviations are accepted."""

    trials: int = 5
    window_s: float = 5.0
    min_window_s: float = 2.0
    min_periods: int = 20  # steps of the counter in one window
    min_batches: int = 8  # whole batches in one window
    max_window_s: float = 60.0  # the longest window for the sake of `min_batches`
    phase_s: float = 0.1  # the longest random pause before a trial
    seed: int = 0  # draws the pauses and the order of candidates
    settle_s: float = 1.0  # load before a window
    # load, or rest, before a reading of averaged power: its mean covers the last second, and is
    # shown up to one update late
    averaged_settle_s: float = 1.5
    warm_s: float = 1.0
    warm_cap_s: float = 10.0  # longest warm-up while the temperature still rises
    warm_rise_C: float = 1.0  # a rise in `warm_s` seconds below which the board is warm
    idle_discard_s: float = 1.0
    idle_s: float = 3.0
    temperature_C: float = 3.0  # the largest difference between the starts of trials
    cooldown_s: float = 60.0  # longest wait for the board to cool, all trials together
    patience_s: float = 2.0  # longest wait for the counter to move
    poll_s: float = 0.001
    power_poll_s: float = 0.02
    # the largest relative sd of power between the parts of a window (also of an idle one) and of
    # energy between trials, and the largest relative difference of the two idle powers
    steady: float = 0.10
    parts: int = 10
    accept: float = 0.02  # relative sd between trials up to which there is no label
    sensors_agree: float = 0.05
    edge_error: float = 0.01
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise ValueError(f"expected 2 trials or more, for their spread; got {self.trials}")
        times = ("window_s", "min_window_s", "settle_s", "warm_s", "idle_s", "poll_s")
        for name in times:
            if not getattr(self, name) > 0:
                raise ValueError(f"expected {name} > 0 seconds, got {getattr(self, name)}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"expected a confidence between 0 and 1, got {self.confidence}")

    @classmethod
    def asked(cls, window_s: float, trials: int) -> EnergyLimits:
        """The limits for a user's window and number of trials.

        Raises:
            ValueError: windows too short for any sensor, too few trials for a spread, or more
                load than anybody waits for; the sentence names the options of the command line.
        """
        if not (math.isfinite(window_s) and window_s >= cls.min_window_s):
            raise ValueError(
                f"--energy-window {window_s:g}: expected {cls.min_window_s:g} s or more: a shorter "
                f"window holds too few steps of the energy counter"
            )
        if trials < 2:
            raise ValueError(
                f"--energy-trials {trials}: expected 2 or more, for their spread; fewer than "
                f"{FEWEST_TRIALS} are labelled"
            )
        if trials * window_s > MOST_S:
            raise ValueError(
                f"--energy-trials {trials} of {window_s:g} s: expected {MOST_S:g} s of load a call "
                f"at most"
            )
        return cls(trials=trials, window_s=window_s)

    @classmethod
    def in_turns(cls, window_s: float, trials: int) -> EnergyLimits:
        """The limits for loads that take turns, with an even number of trials of each: every second
        round goes backwards, so that a drift cancels over two.

        Raises:
            ValueError: as `asked`, or an odd number.
        """
        if trials % 2:
            raise ValueError(
                f"--energy-trials {trials}: expected an even number, for what is compared takes "
                f"turns there and back"
            )
        return cls.asked(window_s, trials)

    def window(self, period_s: float, batch_s: float = 0.0) -> float:
        """Seconds of one window, where the counter moves every `period_s` and a batch takes
        `batch_s`.

        A window shorter than the sensor needs is lengthened.

        >>> EnergyLimits(window_s=0.05).window(0.1)
        2.0
        """
        batches = min(self.min_batches * batch_s, self.max_window_s)
        return max(self.window_s, self.min_window_s, self.min_periods * period_s, batches)

    def settling(self, power: str | None) -> float:
        """Seconds of load before a window, for a sensor with this kind of power reading."""
        return max(self.settle_s, self.reach(power))

    def resting(self, power: str | None) -> float:
        """Seconds of rest before idle power is read, for a sensor with this kind of power
        reading."""
        return max(self.idle_discard_s, self.reach(power))

    def reach(self, power: str | None) -> float:
        """Seconds of the past that a power reading averages over."""
        return self.averaged_settle_s if power == "averaged" else 0.0

    def seconds(
        self, period_s: float = 0.1, *, candidates: int = 1, power: str | None = "instant"
    ) -> float:
        """How long a measurement takes, cooling and repeated trials not counted.

        >>> round(EnergyLimits().seconds(0.1))
        41
        """
        trial = self.phase_s / 2 + self.settling(power) + self.window(period_s) + period_s
        idle = 2 * (self.resting(power) + self.idle_s + period_s)
        return candidates * (2 * self.warm_s + self.trials * trial) + idle


def energy_readings(energy: Reading) -> tuple[Reading, ...]:
    """Gross and net energy (J per call) and mean power (W), as separate readings."""
    details = energy.details
    shared = {key: details[key] for key in ("method", "stop_rule", "systematic", "labels")}
    return (
        energy,
        replace(
            energy,
            name="energy_net",
            value=details["net_J"],
            samples=tuple(details["net_samples_J"]),
            details=shared
            | {key: details[f"net_{key}"] for key in ("sd", "ci_low", "ci_high")}
            | {key: details[key] for key in ("idle", "idle_W", "idle_before_W", "idle_after_W")},
        ),
        replace(
            energy,
            name="power",
            value=details["power_W"],
            unit="W",
            samples=tuple(details["trial_power_W"]),
            details=shared,
        ),
    )
