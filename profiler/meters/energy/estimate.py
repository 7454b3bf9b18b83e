"""Energy per call from the trials, with its interval, its systematic error and its labels."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from profiler.meters.energy.protocol import (
    DOWN_TO_ZERO,
    FEWEST_TRIALS,
    SYSTEMATIC,
    EnergyLimits,
    Load,
    Sensor,
    SensorError,
)
from profiler.meters.energy.trials import Campaign, Trial, Trials
from profiler.meters.energy.window import Stretch, relative_sd
from profiler.records.grades import BURSTY, UNSTEADY
from profiler.records.reading import Reading, Unavailable

IDLE_SHARE = 0.5
"""A load is labelled "mostly idle" if idle power is more than this share of its power."""
BURSTS = 3.0
"""A load is bursty if trials spread this many times more than the parts of a window explain."""
METHODS = {
    True: "steps of the energy counter",
    "instant": "integral of instant power",
    "averaged": "integral of averaged power",
}
"""The source of the power over a window: the energy counter (True), or a kind of power reading."""


def estimate_energy(
    sensor: Sensor,
    load: Load,
    *,
    pause: Callable[[float], None] = time.sleep,
    limits: EnergyLimits | None = None,
) -> Reading | Unavailable:
    """Measure the joules per call of a load, gross (idle power included); the details hold net
    energy, power, interval and labels.

    The samples are the trials; `ci_low` and `ci_high` bound the mean over trials (Student t), by
    at least `common_error`, the relative error that all trials may share.
    `systematic` is the relative error of the sensor's gain, equal in every trial and not part of
    the interval.

    Args:
        sensor: the meters of the device that the load keeps busy.
        pause: lets the device idle for a number of seconds.

    Returns:
        Unavailable if a sensor fails, the counter stands still, two attempts at a window fail, a
            window has fewer than two batches, or another process uses the device.
    """
    found = paired_energy(sensor, {"": load}, pause=pause, limits=limits)
    return found if isinstance(found, Unavailable) else found.readings[""]


def paired_energy(
    sensor: Sensor,
    loads: Mapping[str, Load],
    *,
    pause: Callable[[float], None] = time.sleep,
    limits: EnergyLimits | None = None,
) -> PairedEnergy | Unavailable:
    """Measure the joules per call of several loads that take turns, so that drift and the sensor's
    gain cancel in ratios.

    Use an even number of trials: each round runs in the reverse order of its predecessor, and a
    linear drift cancels over two rounds. `pause` lets the device idle for a number of seconds.
    Unavailable if a sensor fails, attempts at a window do, or another process uses the device.
    """
    limits = limits or EnergyLimits()
    campaign = Campaign(sensor, loads, pause, limits)
    try:
        trials = campaign.run()
    except SensorError as error:
        return Unavailable(f"energy: {error}{campaign.so_far()}")
    readings = {name: energy_reading(sensor, name, trials, loads[name], limits) for name in loads}
    return PairedEnergy(readings, limits.confidence)


@dataclass(frozen=True)
class EnergyRatio:
    """The energy of one candidate divided by the energy of another: `value`, the geometric mean of
    the rounds, and the ends of its confidence interval."""

    value: float
    ci_low: float
    ci_high: float
    samples: tuple[float, ...]
    """One ratio per round."""


@dataclass(frozen=True)
class PairedEnergy:
    """Readings of candidates (by name) that took turns: sample k of each is from round k."""

    readings: Mapping[str, Reading]
    confidence: float

    def ratio(self, name: str, other: str, *, net: bool = False) -> EnergyRatio:
        """The energy per call of `name` over that of `other`, gross or `net` of idle power: the
        geometric mean over rounds, and its interval by Student t on logarithms, widened to the
        common errors. The sensor's gain cancels. ValueError: a round of 0 J or less, or a
        `common_error` of 1 (100 %) or more."""
        tops, bottoms = (self.samples(each, net) for each in (name, other))
        if min(*tops, *bottoms) <= 0:
            raise ValueError(
                f"{name} / {other}: expected positive {'net' if net else 'gross'} joules per call "
                f"in every round, got {min(*tops, *bottoms):g}: raise --energy-window"
            )
        ratios = tuple(top / bottom for top, bottom in zip(tops, bottoms, strict=True))
        errors = [self.common_error(each, net) for each in (name, other)]
        if max(errors) >= 1:
            raise ValueError(f"{name} / {other}: {DOWN_TO_ZERO}")
        logs = [math.log(ratio) for ratio in ratios]
        low, high = student_interval(logs, self.confidence)
        mean = statistics.fmean(logs)
        common = -sum(math.log1p(-error) for error in errors)
        low, high = min(low, mean - common), max(high, mean + common)
        return EnergyRatio(math.exp(mean), math.exp(low), math.exp(high), ratios)

    def common_error(self, name: str, net: bool = False) -> float:
        """The error that all samples of a candidate may share, relative to gross or net energy."""
        found = self.readings[name]
        share = float(found.details.get("common_error", 0.0))
        return share * found.value / found.details["net_J"] if net else share

    def samples(self, name: str, net: bool = False) -> tuple[float, ...]:
        """Joules per call of a candidate, gross or net, one sample per round."""
        found = self.readings[name]
        return tuple(found.details["net_samples_J"]) if net else found.samples


def student_interval(samples: Sequence[float], confidence: float) -> tuple[float, float]:
    """(low, high): the confidence interval of the mean of two or more samples, by Student's t.

    >>> low, high = student_interval([1.0, 2.0, 3.0], 0.95)
    >>> round(low, 3), round(high, 3)  # t of 2 degrees of freedom: 4.303; 4.303 / sqrt(3) = 2.484
    (-0.484, 4.484)
    """
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(samples) - 1, (1 + confidence) / 2))
    half = quantile * statistics.stdev(samples) / math.sqrt(len(samples))
    middle = statistics.fmean(samples)
    return middle - half, middle + half


def energy_reading(
    sensor: Sensor, name: str, found: Trials, load: Load, limits: EnergyLimits
) -> Reading:
    """The reading of the candidate `name`, the mean of gross joules per call, from the trials of
    all (`found`); the details hold the values that it was computed from, and the joules net of idle
    power, interpolated to the middle of each trial."""
    trials = found.of(name)
    gross = tuple(trial.window.call_J for trial in trials)
    stretches = [trial.window.stretch for trial in trials]
    idles = [found.idle_W((stretch.start_ns + stretch.end_ns) / 2) for stretch in stretches]
    net = [
        joules - idle_W * trial.window.call_s
        for joules, idle_W, trial in zip(gross, idles, trials, strict=True)
    ]
    common = common_error(trials, relative_sd(gross), limits)
    common_J = common * statistics.fmean(gross)
    details = {
        # True: an energy counter; else the kind of the power reading, such as "instant"
        "method": METHODS[True if sensor.counter else sensor.power or ""],
        "stop_rule": f"{len(trials)} trials",
        "n": len(trials),
        "relative_sd": relative_sd(gross),
        "confidence": limits.confidence,
        "systematic": SYSTEMATIC,
        "common_error": common,
        **spread_of_mean(gross, common_J, limits),
        "net_J": statistics.fmean(net),
        "net_samples_J": net,
        **{f"net_{key}": value for key, value in spread_of_mean(net, common_J, limits).items()},
        **power_details(trials),
        **idle_details(found, idles),
        **window_details(trials, found, load, limits),
        **power_check(sensor, trials),
    }
    details["labels"] = rule_labels(sensor, trials, found, details, limits)
    return Reading("energy", statistics.fmean(gross), "J", gross, details)


def spread_of_mean(
    samples: Sequence[float], common_J: float, limits: EnergyLimits
) -> dict[str, float]:
    """A dict: `sd`, the samples' standard deviation; `ci_low`, `ci_high`, the confidence interval
    of their mean, at least `common_J`, the error that all samples may share, to each side."""
    low, high = student_interval(samples, limits.confidence)
    mean = statistics.fmean(samples)
    ends = {"ci_low": min(low, mean - common_J), "ci_high": max(high, mean + common_J)}
    return {"sd": statistics.stdev(samples), **ends}


def common_error(trials: Sequence[Trial], across: float, limits: EnergyLimits) -> float:
    """The relative error that all trials may share although their phases are random. `across` is
    the relative standard deviation of energy between trials.

    For each trial the error of its length by polling, or the error by bursts that the ends of the
    window cut (at most the range by which the energy since the start strays from a straight line),
    whichever is larger; then the mean over trials. If bursts make the trials differ, each sensor
    sees a part of the time: the error is then at least the largest distance of either sensor's
    power in any trial from the mean power.
    """
    stretches = [trial.window.stretch for trial in trials]
    found = statistics.fmean(max(each.stray, each.edge_error) for each in stretches)
    if across < limits.accept or not bursty(trials, across, limits):
        return found
    powers_W = [each.power_W for each in stretches]
    mean_W = statistics.fmean(powers_W)
    return max(found, *(abs(each / mean_W - 1) for each in (*powers_W, *checks_of(trials))))


def power_details(trials: Sequence[Trial]) -> dict[str, Any]:
    """Details on power in W: the mean over trials, the value of each trial, and the largest
    relative spread between the parts of a window."""
    each = [trial.window.stretch.power_W for trial in trials]
    return {
        "power_W": statistics.fmean(each),
        "trial_power_W": each,
        "power_spread": max(trial.window.stretch.spread for trial in trials),
    }


def idle_details(found: Trials, idles_W: Sequence[float]) -> dict[str, Any]:
    """Details on the power of the idle board with a context (active idle) in W: its mean at the
    times of the trials (`idles_W`), and the powers and temperatures before and after them."""
    before, after = found.idles
    return {
        "idle": "active: context up, no work",
        "idle_W": statistics.fmean(idles_W),
        "idle_before_W": before.stretch.power_W,
        "idle_after_W": after.stretch.power_W,
        "idle_before_C": before.temperature_C,
        "idle_after_C": after.temperature_C,
        "idle_spread": max(idle.stretch.spread for idle in found.idles),
        "idle_change": idle_change(found),
    }


def window_details(
    trials: Sequence[Trial], found: Trials, load: Load, limits: EnergyLimits
) -> dict[str, Any]:
    """Details on the windows of load, as JSON values whose names end with the unit, if any: calls
    in all windows, the mean seconds of a call and of a window, the sensor's edges and slowest
    reading, temperatures of each trial, pauses for cooling, and the trials that were repeated."""
    stretches = [trial.window.stretch for trial in trials]
    return {
        "calls": sum(trial.window.calls for trial in trials),
        "calls_per_batch": load.calls,
        "call_s": statistics.fmean(trial.window.call_s for trial in trials),
        "window_s": statistics.fmean(stretch.elapsed_s for stretch in stretches),
        "window_asked_s": limits.window_s,
        "update_period_s": found.period_s,
        "edge_error": max(stretch.edge_error for stretch in stretches),
        "steps": [steps_of(stretch) for stretch in stretches],
        "slowest_reading_s": max(trial.window.slowest_s for trial in trials),
        "start_C": [trial.start_C for trial in trials],
        "end_C": [trial.end_C for trial in trials],
        "cooled_s": found.cooled_s,
        "discarded": list(found.discarded),
    }


MOST_STEPS = 60
"""A record holds at most this many steps of each trial: of more, some in a row count as one."""


def steps_of(stretch: Stretch) -> dict[str, list[float]]:
    """A dict of lists with an entry for each of at most `MOST_STEPS` steps of the energy counter in
    a window, for a later judgement of the sensor: milliseconds and joules since the step before,
    and `width_ms` between the polls that bound the step. Empty lists without a counter."""
    edges = stretch.edges[:: 1 + len(stretch.edges) // MOST_STEPS]
    pairs = list(pairwise(edges))
    return {
        "ms": [round((b.ns - a.ns) * 1e-6, 1) for a, b in pairs],
        "J": [round((b.energy_mJ - a.energy_mJ) * 1e-3, 3) for a, b in pairs],
        "width_ms": [round(b.width_s * 1e3, 1) for _, b in pairs],
    }


def power_check(sensor: Sensor, trials: Sequence[Trial]) -> dict[str, Any]:
    """Details that check the energy counter by a second sensor, the power reading: `check_J`, its
    integral over the counter's windows in J per call; `check_gap`, the relative gap to the counter
    that is largest in magnitude. Both are None, with a reason, if a trial lacks the reading."""
    checks = checks_of(trials)
    if not checks:
        only = "there is no power reading" if sensor.counter else "there is no energy counter"
        return {"check_J": None, "check_gap": None, "check_reason": f"one sensor: {only}"}
    call_J = [check * t.window.call_s for check, t in zip(checks, trials, strict=True)]
    gaps = [check / t.window.stretch.power_W - 1 for check, t in zip(checks, trials, strict=True)]
    return {
        "check_J": statistics.fmean(call_J),
        "check_gap": max(gaps, key=abs),
        "check_method": METHODS[sensor.power or ""],
    }


def checks_of(trials: Sequence[Trial]) -> list[float]:
    """Mean power in W by the second sensor, one value per trial; [] if any trial has none."""
    found = [trial.window.stretch.check_W for trial in trials]
    return [check for check in found if check is not None] if None not in found else []


def rule_labels(
    sensor: Sensor,
    trials: Sequence[Trial],
    found: Trials,
    details: Mapping[str, Any],
    limits: EnergyLimits,
) -> list[str]:
    """The names of the warnings for a reader: the sensor's labels, each label whose condition holds
    for the candidate's `trials` and their `details`, or for `found`, the trials of all candidates
    with idle power, and the slowdowns that any trial saw. Conditions compare with `limits`."""
    batches = min(trial.window.batches for trial in trials)
    needed = limits.window(found.period_s or 0.0)
    batch_s = details["calls_per_batch"] * details["call_s"]
    checked = details["check_gap"] is not None
    rules = {
        "integrated power": not sensor.counter,
        "averaged power": sensor.power == "averaged",
        "one sensor": not checked,
        "sensor disagreement": checked and abs(details["check_gap"]) > limits.sensors_agree,
        "idle sensor disagreement": idle_gap(found) > limits.sensors_agree,
        "unsteady idle": max(details["idle_spread"], details["idle_change"]) > limits.steady,
        "few trials": len(trials) < FEWEST_TRIALS,
        UNSTEADY: details["relative_sd"] >= limits.accept,
        BURSTY: bursty(trials, details["relative_sd"], limits),
        "mostly idle": details["idle_W"] > IDLE_SHARE * details["power_W"],
        "start temperature": temperature_range(details["start_C"]) > limits.temperature_C,
        "idle temperature": idle_temperature_gap(found, details["start_C"]) > limits.temperature_C,
        "window lengthened": needed > limits.window_s,
        "few calls": batches < limits.min_batches,
        "coarse edges": details["edge_error"] > limits.edge_error,
        "slow sensor": details["slowest_reading_s"] > batch_s,
    }
    slowed = {label for trial in trials for label in trial.slowdowns}
    return [*sensor.labels, *(name for name, holds in rules.items() if holds), *sorted(slowed)]


def bursty(trials: Sequence[Trial], across: float, limits: EnergyLimits) -> bool:
    """Whether power comes in bursts: within a window (`Stretch.bursts`, the relative spread of the
    shortest pieces that the sensor resolves, exceeds `limits.steady`), or between windows, which
    begin at different phases of the load and differ by the first or the second sensor.

    `across` is the relative standard deviation of energy between trials.
    """
    stretches = [trial.window.stretch for trial in trials]
    if max(stretch.bursts for stretch in stretches) > limits.steady:
        return True
    # a trial is the mean of `parts` parts; without a second sensor, its spread is 0
    within = max(stretch.spread for stretch in stretches) / math.sqrt(limits.parts)
    other = relative_sd(checks_of(trials) or [1.0])
    return max(across, other) > max(limits.accept, BURSTS * within)


def idle_gap(found: Trials) -> float:
    """The largest gap in magnitude between the two sensors' idle powers, relative to the first
    sensor; 0 without a second sensor."""
    pairs = [(idle.stretch.check_W, idle.stretch.power_W) for idle in found.idles]
    return max(abs(check / power - 1) if check is not None else 0.0 for check, power in pairs)


def idle_change(found: Trials) -> float:
    """The magnitude of the change of idle power from before to after the trials, relative to the
    mean of both readings.

    Leakage changes idle power slowly; a large difference is other work, or another board state.
    """
    before, after = (idle.stretch.power_W for idle in found.idles)
    return abs(after - before) / statistics.fmean((before, after))


def temperature_range(temperatures_C: Sequence[float | None]) -> float:
    """The range of the known temperatures; 0 if none is known."""
    known = [each for each in temperatures_C if each is not None]
    return max(known) - min(known) if known else 0.0


def idle_temperature_gap(found: Trials, starts_C: Sequence[float | None]) -> float:
    """The largest difference in degrees between a temperature at which idle power was read and the
    mean starting temperature of the trials; 0 if either is unknown."""
    known = [each for each in starts_C if each is not None]
    idles = [idle.temperature_C for idle in found.idles if idle.temperature_C is not None]
    return (
        max((abs(idle - statistics.fmean(known)) for idle in idles), default=0.0) if known else 0.0
    )
