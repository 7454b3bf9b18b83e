"""What does a measurement return: a reading with unit and raw samples, or the reason why not?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """One measured quantity.

    `value` is in `unit` (s, B, J, W, 1 for a count); `samples` are the raw values it was derived
    from, in the same unit; `details` holds JSON values that say how it was obtained.
    """

    name: str
    value: float
    unit: str
    samples: tuple[float, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unavailable:
    """A quantity that was not measured, and one sentence that says why and what it would need."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("Unavailable needs a reason: one sentence, not an empty string")


@dataclass(frozen=True)
class DeviceLost(Unavailable):
    """The same, after which this process cannot use the device any more: nothing follows it."""


Measured = Reading | Unavailable


def reason_of(error: BaseException) -> str:
    """The first line of an exception, as a reason, with the exception's kind where it says nothing.

    >>> reason_of(RuntimeError("out of memory\\nat frame 3"))
    'out of memory'
    """
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


class MeasureError(ValueError):
    """A measurement that cannot be made; one sentence says what was expected and what came."""
