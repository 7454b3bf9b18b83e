"""The options that a user chooses for a study, its outcome, and words that all studies share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.meters.energy.protocol import EnergyLimits
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.words import options_words

Progress = Callable[[int, int, str], None]
"""A function that shows progress, from (steps done, number of steps, the current step)."""


class StudyError(MeasureError):
    """A study that cannot be measured or reported; the message is one sentence."""


@dataclass(frozen=True)
class Manner:
    """The user's options for a study; None stands for the study's own value for the device."""

    device: str
    """cpu or cuda."""
    rounds: int | None = None
    seconds: float | None = None
    """The time limit for the samples of one latency."""
    shard: str | None = None
    """`i/n`: measure the i-th of n parts of the grid."""
    largest: int | None = None
    """For a short run: the largest length of a grid, or the training steps of a visit."""
    energy: bool | None = None
    """Whether energy is measured; None: on a CPU only, since on a GPU energy takes most time."""
    energy_window_s: float | None = None
    energy_trials: int | None = None
    processes: int = 1
    """The number of fresh processes, each of which measures all points."""

    @property
    def with_energy(self) -> bool:
        """Whether energy is measured, with the default for the device."""
        return not self.on_gpu if self.energy is None else self.energy

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    def __post_init__(self) -> None:
        """Raise StudyError for an energy window, or a number of trials, out of range."""
        window_s, trials = self.energy_window_s, self.energy_trials
        try:
            EnergyLimits.asked(
                EnergyLimits.window_s if window_s is None else window_s,
                EnergyLimits.trials if trials is None else trials,
            )
        except ValueError as error:
            raise StudyError(str(error)) from None

    @property
    def options(self) -> dict[str, Any]:
        """A dict of the energy options that replace the study's own: field of a request -> value.
        `energy` is False if energy is not measured, as by default on a GPU, else absent; window and
        trials are absent unless the user gives them."""
        asked = {
            "energy": None if self.with_energy else False,
            "energy_window_s": self.energy_window_s,
            "energy_trials": self.energy_trials,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Done:
    """The outcome of a run: one sentence per failure, and whether all points are measured; of a
    grid, a point that is out of memory or refused counts as measured."""

    failures: tuple[str, ...] = ()
    complete: bool = True


def kind_of(records: Sequence[Measurement]) -> str:
    """The one kind of device (cpu, cuda) of all records. StudyError: several kinds, or none."""
    kinds = sorted({record.kind for record in records})
    if len(kinds) != 1:
        there = " and ".join(kinds) or "none"
        raise StudyError(
            f"expected records of one kind of device, got records of {there}: measure each kind "
            "into a file of its own"
        )
    return kinds[0]


def manner_words(options: Mapping[str, Any]) -> str:
    """Words on the options of a measurement that differ from their defaults.

    >>> manner_words({"energy_trials": 3}), manner_words({})
    ('energy_trials=3', "the study's own options")
    """
    return options_words(options).removeprefix(", ") or "the study's own options"


def manners(records: Sequence[Measurement]) -> list[str]:
    """The distinct `manner_words` of records; records of different manners are not compared."""
    return sorted({manner_words(record.options) for record in records})


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 point`, `2 points`."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def grouped(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """One sentence per distinct reason, with the names that have the reason, from name -> reasons.

    >>> grouped({"latency": ["no GPU"], "energy": ["no GPU", "no sensor"]})
    ['latency, energy: no GPU', 'energy: no sensor']
    """
    about: dict[str, list[str]] = {}
    for what, found in reasons.items():
        for reason in dict.fromkeys(found):
            about.setdefault(reason, []).append(what)
    return [f"{', '.join(whats)}: {reason}" for reason, whats in about.items()]
