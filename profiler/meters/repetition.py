"""What does a second reading, taken after all others of a plan, say of the first?

An interval tells the noise within one measurement; what drifts from hour to hour is in none. Where
the second value lies outside the interval of the first, the reading gets the interval that holds
those of both, and a label: whoever reads its ends then reads the wider ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from profiler.meters.interface import Reading
from profiler.store import reading_to_json

REPETITION = "repetition"
"""The option of a request that measures again, and the detail of a reading that holds the other."""
DISAGREES = "repetition disagrees"
"""The label of a reading whose repetition lies outside the interval that it had by itself."""


def widened(reading: Reading, other: Reading, record: Mapping[str, str]) -> Reading:
    """A reading beside the one of its repetition, its interval as wide as both together where the
    second value lies outside it.

    Bytes repeat exactly, so that they disagree where they are not equal. Where one of the two has
    no interval, there is none to widen, and both values stand in the record.

    Args:
        record: what names the record of the repetition, as JSON values.
    """
    own, theirs = ends(reading), ends(other)
    details: dict[str, Any] = {
        **reading.details,
        REPETITION: {**record, **reading_to_json(other)},
    }
    if own is None or theirs is None or own[0] <= other.value <= own[1]:
        return replace(reading, details=details)
    details |= {
        "ci_low": min(*own, *theirs),
        "ci_high": max(*own, *theirs),
        "ci_alone": list(own),
        "labels": [*details.get("labels", ()), DISAGREES],
    }
    return replace(reading, details=details | ({"agree": False} if reading.unit == "B" else {}))


def ends(reading: Reading) -> tuple[float, float] | None:
    """The ends of a reading's interval, None where it has none; bytes that have none lie between
    the least and the most that was read."""
    low, high = (reading.details.get(end) for end in ("ci_low", "ci_high"))
    if low is not None and high is not None:
        return float(low), float(high)
    read = (*reading.samples, reading.value)
    return (min(read), max(read)) if reading.unit == "B" else None


def repetition_in(reading: Reading) -> Mapping[str, Any] | None:
    """The reading of the repetition, as JSON values; None where there was none."""
    found: Mapping[str, Any] | None = reading.details.get(REPETITION)
    return found


def disagrees(reading: Reading) -> bool:
    """Whether the repetition lies outside the interval that the reading had by itself."""
    return DISAGREES in reading.details.get("labels", ())


def apart(reading: Reading) -> list[Sequence[float]]:
    """The samples of every measurement that an interval must hold: those of the reading, and those
    of its repetition where the two disagree."""
    again = repetition_in(reading)
    return [reading.samples, *([again["samples"]] if again and disagrees(reading) else [])]
