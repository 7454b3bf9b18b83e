"""What is a study: which points does it measure on a device, and what becomes of its records?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.meters.energy.protocol import EnergyLimits
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.words import options_words

Progress = Callable[[int, int, str], None]


class StudyError(MeasureError):
    """A study that cannot be made or written down; one sentence says why."""


@dataclass(frozen=True)
class Manner:
    """How a study is measured; None takes the study's own for the device."""

    device: str
    """cpu or cuda."""
    rounds: int | None = None
    seconds: float | None = None
    """Most seconds to sample one latency for."""
    shard: str | None = None
    """`i/n`: the i-th of n parts of a grid."""
    largest: int | None = None
    """Of lengths, or of training steps a round: a smaller run than the study's own."""
    energy: bool | None = None
    """Whether energy is measured: on a GPU only where it is said, for it takes most of the time."""
    energy_window_s: float | None = None
    energy_trials: int | None = None
    processes: int = 1
    """Fresh processes that each measure everything."""
    ceilings: bool | None = None
    """Whether records also say what the device reaches at best: on a GPU, unless it is said."""

    @property
    def with_ceilings(self) -> bool:
        """Whether ceilings are measured."""
        return self.on_gpu if self.ceilings is None else self.ceilings

    @property
    def with_energy(self) -> bool:
        """Whether energy is measured."""
        return not self.on_gpu if self.energy is None else self.energy

    @property
    def on_gpu(self) -> bool:
        """Whether the device is one."""
        return self.device.startswith("cuda")

    def __post_init__(self) -> None:
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
        """What is asked of energy in place of the study's own, by the names of a request."""
        asked = {
            "energy": None if self.with_energy else False,
            "energy_window_s": self.energy_window_s,
            "energy_trials": self.energy_trials,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Done:
    """What measuring gave: sentences for what failed, and whether anything is missing that another
    run of the same command would add."""

    failures: tuple[str, ...] = ()
    complete: bool = True


def kind_of(records: Sequence[Measurement]) -> str:
    """The kind of device of all records; StudyError where there are several, or no record."""
    kinds = sorted({record.device.partition(":")[0] for record in records})
    if len(kinds) != 1:
        there = " and ".join(kinds) or "none"
        raise StudyError(f"a page is about one kind of device, and the records are of {there}")
    return kinds[0]


def manner_words(options: Mapping[str, Any]) -> str:
    """What the records of a point say of how it was measured.

    >>> manner_words({"energy_trials": 3}), manner_words({})
    ('energy_trials=3', "the study's own options")
    """
    return options_words(options).removeprefix(", ") or "the study's own options"


def manners(records: Sequence[Measurement]) -> list[str]:
    """How records were measured, in words; two are not to be taken for one."""
    return sorted({manner_words(record.sweep.get("options", {})) for record in records})


def counted(number: int, noun: str) -> str:
    """`1 point`, `2 points`."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def grouped(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """`what: reason`, equal reasons said once for all that they are about."""
    about: dict[str, list[str]] = {}
    for what, found in reasons.items():
        for reason in dict.fromkeys(found):
            about.setdefault(reason, []).append(what)
    return [f"{', '.join(whats)}: {reason}" for reason, whats in about.items()]
