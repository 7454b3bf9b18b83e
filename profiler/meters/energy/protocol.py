"""The protocol of energy measurements, and the errors that remain.

The sensors of an NVIDIA board are slow: the energy counter moves in steps, every 20 or 100 ms, and
the power reading is a mean over 10 ms to 1 s, refreshed as rarely. A call takes micro- to
milliseconds. So the call is repeated without a gap, and energy per call is

    E = P x t,    P = joules between two steps of the counter / seconds between them,
                     t = seconds between the ends of two batches of calls / calls between them.

Both steps are found by polling while the load runs, so the counter's period is not an error. The
errors, and the details of a reading that show them:

- The time of a step, known to lie between two polls: half a poll at each end, relative to the
  window (`edge_error`). Calls are counted exactly (`calls`, `call_s`): whole batches between two
  completions.
- A slow driver: the host queues nothing while it waits for a reading, and a GPU whose queue runs
  empty idles (`slowest_reading_s`; labelled if longer than a batch).
- The sensor's gain: equal in every trial, so that repetition does not remove it; 5 % at best, more
  on consumer boards (`systematic`). It cancels in ratios of loads that took turns.
- Drift, clocks, other work: the spread of repeated trials (`sd`, `ci_low`, `ci_high`: Student t).
- A load in bursts, cut by the ends of a window, or in step with a sensor that samples a part of the
  time: wrong by up to 100 %. Trials start at random phases, and the integral of the power reading
  over the counter's window is a second opinion (`relative_sd`, `power_spread`, `check_J`,
  `check_gap`). Nothing is refused: the interval spans what windows and sensors show
  (`common_error`), with the labels "unsteady" and "bursty load".
- Steps that become visible late, by a part of their period: single steps then last longer or
  shorter at equal energy, which is no change of power (`window.unsteadiness`; `steps`, as seen).
- Leakage, which grows with temperature: trials start within 3 C of each other (`start_C`).

Net energy subtracts *active idle*, the power of the board with a context and no work: a line in
time through the readings before and after the trials (`idle_before_W`, `idle_after_W`), labelled if
unsteady (`idle_spread`, `idle_change`). For the sensors' periods, windows and gains see Yang,
Adamek and Armour, "Part-time Power Measurements: nvidia-smi's Lack of Attention" (2023, arXiv
2312.02741).

The files: `window` measures one window, `trials` repeats it, `estimate` computes energy and labels;
`meters/board_energy.py` implements the sensor and the load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from profiler.meters.limits import refuse_impossible
from profiler.records.reading import Reading

SYSTEMATIC = 0.05
"""The relative error of the sensor's gain at best, by comparison with external power meters."""


MOST_S = 3600.0
"""The largest accepted time of load for one call, all trials together, in seconds."""

FEWEST_TRIALS = 5
"""A reading of fewer trials gets a label: the interval is wide, and bursts may go unnoticed."""
TRIALS_IN_TURNS = 6
"""The default number of trials of each load, if several loads take turns."""
DOWN_TO_ZERO = "an interval of energy reaches down to zero"
"""Why two energies have no ratio."""


class SensorError(RuntimeError):
    """A sensor cannot be read, or its readings are unusable; the message says why.

    `code` is NVML's error number, or None if the error is not NVML's.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class CounterFault(SensorError):
    """The energy counter decreased or jumped, so that the readings around this time are void."""


class Sensor(Protocol):
    """The meters of a device. A method raises SensorError if the device refuses to answer."""

    counter: bool
    """Whether the device counts energy."""
    power: str | None
    """The kind of the power reading: "instant", "averaged" (over about 1 s), or None."""
    limit_W: float | None
    """The largest power that the board may draw continuously; None if unknown."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Warnings about the scope of the readings: "whole module", "vGPU", ..."""
        ...

    def energy_mJ(self) -> int:
        """Millijoules since a fixed moment in the past, never decreasing."""
        ...

    def power_mW(self) -> float | None:
        """Milliwatts, of the kind `power`; None if this reading failed."""
        ...

    def temperature_C(self) -> float | None:
        """The chip's temperature; None if the board has no such reading."""
        ...

    def slowdowns(self) -> Mapping[str, int]:
        """A dict: label of a slowdown -> nanoseconds for which it has held the clocks down so
        far."""
        ...

    def require_alone(self) -> None:
        """SensorError if another process works on the board; called while this process idles."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds of a monotonic clock."""
        ...


class Load(Protocol):
    """Work that keeps a device busy: batches of calls, each queued before its predecessor ends."""

    calls: int
    """Calls in a batch."""

    def submit(self) -> None:
        """Queue one more batch, without waiting for its end."""
        ...

    def ready(self) -> bool:
        """Whether the queue needs another batch; turns true when a batch completes."""
        ...

    def drain(self) -> None:
        """Wait until nothing is queued."""
        ...


@dataclass(frozen=True)
class EnergyLimits:
    """Lengths of load and rest (seconds), numbers of repetitions, and accepted deviations."""

    trials: int = 5
    window_s: float = 5.0
    min_window_s: float = 2.0
    min_periods: int = 20  # steps of the counter in one window
    min_batches: int = 8  # whole batches in one window
    max_window_s: float = 60.0  # `min_batches` lengthen a window up to this
    phase_s: float = 0.1  # the longest random pause before a trial, unless a period is longer
    seed: int = 0  # draws the pauses and the order of candidates
    settle_s: float = 1.0  # load before a window
    # load, or rest, before a reading of averaged power: the mean covers the last second and is
    # published up to one update late
    averaged_settle_s: float = 1.5
    warm_s: float = 1.0  # load between two readings of temperature in warm-up
    warm_cap_s: float = 10.0  # after this time warm-up begins no further `warm_s`
    warm_rise_C: float = 1.0  # a change in `warm_s` seconds up to which the board is warm
    idle_discard_s: float = 1.0  # rest before a reading of idle power
    idle_s: float = 3.0  # length of a reading of idle power
    temperature_C: float = 3.0  # largest range of temperatures at trial starts, around warm-up's
    cooldown_s: float = 60.0  # longest wait for the board to cool, all trials together
    patience_s: float = 2.0  # longest wait for the counter to move
    poll_s: float = 0.001  # shortest time between two polls of the counter
    power_poll_s: float = 0.02  # the same for the power reading, or half a period of the counter
    # the largest relative sd of power between the parts of a window (also of an idle one), and the
    # largest relative difference of the two idle powers, without a label
    steady: float = 0.10
    parts: int = 10  # parts of a window whose powers are compared
    accept: float = 0.02  # relative sd between trials up to which there is no label
    sensors_agree: float = 0.05  # relative gap of two sensors up to which there is no label
    edge_error: float = 0.01  # relative error of a window's length, likewise
    confidence: float = 0.95  # of the intervals

    def __post_init__(self) -> None:
        """Raise ValueError for a number that no measurement can have (`refuse_impossible`): fewer
        than 2 trials, for their spread, no parts, steps or batches in a window, lengths of load or
        rest that are not above 0 s, or a confidence outside (0, 1)."""
        least = {"trials": 2, "parts": 1, "min_periods": 1, "min_batches": 1}
        times = ("window_s", "min_window_s", "max_window_s", "warm_s", "idle_s", "poll_s")
        refuse_impossible(self, least, ("settle_s", *times))
        if not 0 < self.confidence < 1:
            raise ValueError(f"expected a confidence between 0 and 1, got {self.confidence}")

    @classmethod
    def asked(cls, window_s: float, trials: int) -> EnergyLimits:
        """The limits for a user's window (seconds) and number of trials.

        Raises:
            ValueError: a window below `min_window_s` or infinite, fewer than 2 trials, or more than
                `MOST_S` seconds of load; the message names the command line's options.
        """
        if not (math.isfinite(window_s) and window_s >= cls.min_window_s):
            raise ValueError(
                f"--energy-window {window_s:g}: expected {cls.min_window_s:g} s or more, and a "
                f"finite number: a shorter window holds too few steps of the energy counter"
            )
        if trials < 2:
            raise ValueError(
                f"--energy-trials {trials}: expected 2 or more, for their spread; results of "
                f"fewer than {FEWEST_TRIALS} are labelled 'few trials'"
            )
        if trials * window_s > MOST_S:
            raise ValueError(
                f"--energy-trials {trials} of {window_s:g} s are {trials * window_s:g} s of load "
                f"for each measured call: expected at most {MOST_S:g} s, by fewer trials or a "
                "shorter --energy-window"
            )
        return cls(trials=trials, window_s=window_s)

    @classmethod
    def in_turns(cls, window_s: float, trials: int) -> EnergyLimits:
        """The limits for loads that take turns, with an even number of trials of each load: every
        second round runs in reverse order, so that a linear drift cancels over two rounds.

        Raises:
            ValueError: the window is too short for any sensor, the number of trials is odd or below
                two, or the load takes more than `MOST_S`.
        """
        if trials % 2:
            raise ValueError(
                f"--energy-trials {trials}: expected an even number, since every second round "
                "measures in reverse order"
            )
        return cls.asked(window_s, trials)

    def window(self, period_s: float, batch_s: float = 0.0) -> float:
        """Seconds of one window, at least `window_s` and `min_window_s`, for a counter that steps
        every `period_s` and batches of `batch_s`. The window holds `min_periods` steps, and
        `min_batches` batches if these take at most `max_window_s`.

        >>> EnergyLimits(window_s=0.05).window(0.1)
        2.0
        """
        batches = min(self.min_batches * batch_s, self.max_window_s)
        return max(self.window_s, self.min_window_s, self.min_periods * period_s, batches)

    def phase(self, period_s: float) -> float:
        """Seconds of the longest random pause before a trial, for a counter that steps every
        `period_s`: at least one period, so that a trial may begin at any phase of the counter.

        >>> EnergyLimits().phase(0.02), EnergyLimits().phase(0.5)
        (0.1, 0.5)
        """
        return max(self.phase_s, period_s)

    def settling(self, power: str | None) -> float:
        """Seconds of load before a window, for a sensor with this kind of power reading."""
        return max(self.settle_s, self.reach(power))

    def resting(self, power: str | None) -> float:
        """Seconds of rest before idle power is read, for a sensor with this kind of power
        reading."""
        return max(self.idle_discard_s, self.reach(power))

    def reach(self, power: str | None) -> float:
        """Seconds after which a power reading no longer covers the time before: those of averaged
        power, and 0 for instant power or none."""
        return self.averaged_settle_s if power == "averaged" else 0.0

    def seconds(
        self, period_s: float = 0.1, *, candidates: int = 1, power: str | None = "instant"
    ) -> float:
        """The expected seconds of a measurement of `candidates` loads, without cooling, repetition
        and long batches, for a counter that steps every `period_s` and power of the kind `power`.

        >>> round(EnergyLimits().seconds(0.1))
        41
        """
        trial = self.phase(period_s) / 2 + self.settling(power) + self.window(period_s) + period_s
        idle = 2 * (self.resting(power) + self.idle_s + period_s)
        return candidates * (2 * self.warm_s + self.trials * trial) + idle


def energy_readings(energy: Reading) -> tuple[Reading, ...]:
    """Three readings from the reading of gross energy: gross energy and net energy (J per call; net
    is without idle power), and mean power (W)."""
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
