"""Repeated windows, arranged so that phase, temperature and drift do not decide the result.

Warm up; read idle power; take rounds of trials, in which candidates take turns, in reverse order
every second round, so that a linear drift cancels in ratios; read idle power again. A trial whose
counter decreased or jumped is void and is repeated once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from profiler.meters.energy.protocol import CounterFault, EnergyLimits, Load, Sensor, SensorError
from profiler.meters.energy.window import (
    Poller,
    Running,
    Stretch,
    Window,
    idling,
    loaded,
    update_period,
)
from profiler.records.words import scaled

Found = TypeVar("Found")

ATTEMPTS = 2
"""Attempts at one trial, or at one reading of idle power."""
THERMAL = "throttled"
"""The slowdown that a cooler start may cure. A power cap is caused by the load itself."""


@dataclass(frozen=True)
class Idle:
    """A reading of active idle power: the context is up, and no kernel runs."""

    stretch: Stretch
    temperature_C: float | None

    @property
    def at_ns(self) -> float:
        """The middle of the reading's time."""
        return (self.stretch.start_ns + self.stretch.end_ns) / 2


@dataclass(frozen=True)
class Trial:
    """One window of one candidate; temperatures are None if unknown."""

    name: str  # of the candidate
    window: Window
    start_C: float | None
    end_C: float | None
    slowdowns: tuple[str, ...]  # labels of what held the clocks down during the window


@dataclass(frozen=True)
class Trials:
    """All trials of a measurement, and the readings of idle power before and after the trials."""

    idles: tuple[Idle, Idle]
    rounds: tuple[Mapping[str, Trial], ...]  # in each: name of a candidate -> its trial
    period_s: float | None
    """The period of the energy counter; None without a counter."""
    batch_s: Mapping[str, float]  # name of a candidate -> seconds of a batch
    cooled_s: float  # pauses for cooling, all together
    discarded: tuple[str, ...]
    """The reason of each repeated warm-up, trial or reading of idle power, or failed repetition."""

    def of(self, name: str) -> tuple[Trial, ...]:
        """The trials of one candidate, in the order of the rounds."""
        return tuple(turn[name] for turn in self.rounds)

    def idle_W(self, at_ns: float) -> float:
        """Idle power in W at a time in ns, on the line through the two readings."""
        before, after = self.idles
        share = (at_ns - before.at_ns) / (after.at_ns - before.at_ns)
        return before.stretch.power_W + share * (after.stretch.power_W - before.stretch.power_W)


@dataclass
class Campaign:
    """One measurement of one or more loads that take turns on one device."""

    sensor: Sensor
    loads: Mapping[str, Load]
    pause: Callable[[float], None]
    limits: EnergyLimits
    period_s: float | None = None  # of the counter; known after the first warm-up
    batch_s: dict[str, float] = field(default_factory=dict)
    reference_C: float | None = None  # the temperature after warm-up; None if unknown
    cooled_s: float = 0.0
    discarded: list[str] = field(default_factory=list)
    rounds: list[dict[str, Trial]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.limits.seed)

    def run(self) -> Trials:
        """Carry out the whole protocol (warm-up, idle power, rounds of trials, idle power) and
        return all trials. Raises SensorError: a sensor is unusable or implausible, or another
        process uses the device."""
        for name in self.loads:
            self.retried(partial(self.warm_up, name), keep_first)
        self.reference_C = self.sensor.temperature_C()
        before = self.idle()
        for order in self.orders(self.limits.trials):
            self.rounds.append({})
            for name in order:
                self.rounds[-1][name] = self.trial(name)
        after = self.idle()
        cooled, discarded = self.cooled_s, tuple(self.discarded)
        rounds = tuple(self.rounds)
        return Trials((before, after), rounds, self.period_s, self.batch_s, cooled, discarded)

    def so_far(self) -> str:
        """The joules per call in the finished trials of each candidate, as the end of a sentence:
        `; measured before: she: 1 mJ to 2 mJ a call in 2 trials`; "" before the first."""
        said = []
        for name in self.loads:
            found = [turn[name].window.call_J for turn in self.rounds if name in turn]
            if found:
                ends = " to ".join(dict.fromkeys(scaled(x, "J") for x in (min(found), max(found))))
                trials = f"{len(found)} trial{'s' if len(found) > 1 else ''}"
                said.append(f"{name}{': ' if name else ''}{ends} a call in {trials}")
        return f"; measured before: {'; '.join(said)}" if said else ""

    def orders(self, rounds: int) -> list[list[str]]:
        """The order of the candidates' names in each of `rounds` rounds: shuffled once, then this
        order and its reverse in turns."""
        order = list(self.loads)
        self.chance.shuffle(order)
        return [order if turn % 2 == 0 else order[::-1] for turn in range(rounds)]

    def running(self, name: str) -> Running:
        """The load of the candidate `name`, together with a new poller."""
        return Running(self.loads[name], Poller(self.sensor, self.limits, self.period_s))

    def warm_up(self, name: str) -> None:
        """Run the load of the candidate `name` until the board is warm; measure the counter's
        period, if there is a counter and its period is unknown, and the duration of a batch."""
        with self.running(name) as running:
            self.warm(running)
            if self.sensor.counter and self.period_s is None:
                self.period_s = update_period(running)
        marks = running.marks[1:]  # the first mark precedes a full queue
        self.batch_s[name] = (marks[-1] - marks[0]) * 1e-9 / (len(marks) - 1)

    def warm(self, running: Running) -> None:
        """Load for `warm_s` seconds again and again, until the temperature changes by `warm_rise_C`
        at most, is unknown, or `warm_cap_s` seconds are over."""
        end = self.sensor.now_ns() + self.limits.warm_cap_s * 1e9
        while abs(self.rise_C(running)) > self.limits.warm_rise_C and self.sensor.now_ns() < end:
            pass

    def rise_C(self, running: Running) -> float:
        """The rise (negative: fall) of temperature over `warm_s` of load; 0 if unknown."""
        before = self.sensor.temperature_C()
        running.during(self.limits.warm_s, batches=3)
        after = self.sensor.temperature_C()
        return 0.0 if before is None or after is None else after - before

    def idle(self) -> Idle:
        """Read active idle power (a context, no work), after the device has rested; read once more
        after a fault of the counter. SensorError if another process works on the board."""

        def attempt() -> Idle:
            self.pause(self.limits.resting(self.sensor.power))
            stretch = idling(Poller(self.sensor, self.limits, self.period_s), self.pause)
            self.sensor.require_alone()
            return Idle(stretch, self.sensor.temperature_C())

        return self.retried(attempt, keep_first)

    def trial(self, name: str) -> Trial:
        """One window of a candidate, repeated once if the counter failed or heat slowed it."""
        return self.retried(lambda: self.attempt(name), throttled)

    def attempt(self, name: str) -> Trial:
        """Measure one window of load of the candidate `name`, begun near the temperature after
        warm-up and, after a random pause, at a random phase of the sensor's period."""
        limits, sensor = self.limits, self.sensor
        self.cool_down()
        self.pause(self.chance.uniform(0, limits.phase(self.period_s or 0.0)))
        with self.running(name) as running:
            running.during(limits.settling(sensor.power), batches=2)
            self.warm_again(running)
            start_C, before = sensor.temperature_C(), sensor.slowdowns()
            window = loaded(running, limits.window(self.period_s or 0.0, self.batch_s[name]))
            end_C, after = sensor.temperature_C(), sensor.slowdowns()
        slowed = tuple(label for label in after if after[label] > before.get(label, 0))
        return Trial(name, window, start_C, end_C, slowed)

    def cool_down(self) -> None:
        """Pause while the device is more than `temperature_C` / 2 above `reference_C`, for at most
        `cooldown_s` seconds over the whole measurement; nothing if the temperature is unknown."""
        if self.reference_C is None:
            return
        most = self.reference_C + self.limits.temperature_C / 2
        while self.cooled_s < self.limits.cooldown_s and (self.sensor.temperature_C() or 0) > most:
            seconds = min(1.0, self.limits.cooldown_s - self.cooled_s)
            self.pause(seconds)
            self.cooled_s += seconds

    def warm_again(self, running: Running) -> None:
        """Load for `warm_s` seconds again and again, while the device is more than
        `temperature_C` / 2 below `reference_C` (after warm-up), the last `warm_s` heated it and
        `warm_cap_s` seconds are not over; nothing if the temperature is unknown."""
        if self.reference_C is None:
            return
        least, limits = self.reference_C - self.limits.temperature_C / 2, self.limits
        end = self.sensor.now_ns() + limits.warm_cap_s * 1e9
        while (self.sensor.temperature_C() or least) < least and self.sensor.now_ns() < end:
            if self.rise_C(running) <= 0:
                return

    def retried(self, attempt: Callable[[], Found], again: Callable[[Found], bool]) -> Found:
        """The result of `attempt()`, which is made again, `ATTEMPTS` times in all, if it raises
        CounterFault or `again` holds for its result. Returns the last result that an attempt gave;
        SensorError if every attempt raised CounterFault."""
        earlier: list[Found] = []
        for left in reversed(range(ATTEMPTS)):
            try:
                found = attempt()
            except CounterFault as fault:
                if not left and not earlier:
                    raise SensorError(
                        f"{fault}; {ATTEMPTS} attempts failed in a row: costmodel "
                        f"doctor tells which sensors work"
                    ) from None
                self.discarded.append(str(fault))
                if not left:
                    return earlier[-1]
                continue
            if not left or not again(found):
                return found
            earlier.append(found)
            self.discarded.append(f"the clocks were held down: {THERMAL}")
        raise AssertionError("the last attempt returns or raises")


def keep_first(found: object) -> bool:
    """Never repeat: the `again` of attempts whose result is always kept."""
    return False


def throttled(trial: Trial) -> bool:
    """Whether heat held the clocks down, so that a cooler start may give a better trial."""
    return THERMAL in trial.slowdowns
