"""What does a second reading, taken after all others of a plan, say of the first?

An interval covers the noise within one measurement, and no drift from hour to hour. Where the
second value lies outside the interval of the first, the reading gets the interval that holds both,
and a label.

The second value has noise too, which the interval of the first does not contain: of two equally
well known values the second lies outside in `BY_CHANCE` of all cases without any drift, so that
intervals are rather too wide than too narrow. Whether the two differ by more than the noise of both
explains is recorded apart (`BEYOND`): at the same level, by the half-widths of both intervals that
face each other, squared and added. Zou and Donner, "Construction of Confidence Limits About Effect
Measures" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from profiler.meters.intervals import CONFIDENCE
from profiler.records.reading import Reading

REPETITION = "repetition"
"""The option of a request that measures again, and the detail of a reading that holds the second
reading."""
DISAGREES = "repetition disagrees"
"""The label of a reading whose repetition lies outside the reading's own interval."""
BEYOND = "beyond_chance"
"""The key under which a repetition tells whether it differs by more than the noise of both
explains; null where that is unknown."""


def by_chance(confidence: float) -> float:
    """How often, with normal noise alone, the second of two equally well known values lies outside
    the interval of the first: their difference spreads sqrt(2) times as far as each of them.

    >>> round(by_chance(0.95), 3)
    0.166
    """
    normal = NormalDist()
    return 2 * normal.cdf(normal.inv_cdf((1 - confidence) / 2) / math.sqrt(2))


BY_CHANCE = by_chance(CONFIDENCE)
"""For intervals of 95 %: about one in six."""


def widened(reading: Reading, other: Reading, record: Mapping[str, str]) -> Reading:
    """A reading with its repetition in details, and an interval that covers both where the second
    value lies outside the reading's own.

    Bytes repeat exactly, so they disagree where they are not equal. Where one of the two readings
    has no interval, nothing is widened, and both values stand in the record.

    Args:
        record: identifies the record of the repetition, as JSON values.
    """
    own, theirs = interval_ends(reading), interval_ends(other)
    details: dict[str, Any] = {
        **reading.details,
        REPETITION: {**record, **other.to_json(), BEYOND: exceeds_noise(reading, other)},
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


def exceeds_noise(reading: Reading, other: Reading) -> bool | None:
    """Whether two values differ by more than the noise of both explains; None where one of them has
    no interval."""
    own, theirs = interval_ends(reading), interval_ends(other)
    if own is None or theirs is None:
        return None
    (low, lower), (high, higher) = sorted(
        ((reading.value, own), (other.value, theirs)), key=lambda each: each[0]
    )
    return high - low > math.hypot(lower[1] - low, high - higher[0])


def interval_ends(reading: Reading) -> tuple[float, float] | None:
    """The ends of a reading's interval, None where it has none; for bytes without an interval, the
    least and the most that was read."""
    low, high = (reading.details.get(end) for end in ("ci_low", "ci_high"))
    if low is not None and high is not None:
        return float(low), float(high)
    read = (*reading.samples, reading.value)
    return (min(read), max(read)) if reading.unit == "B" else None


def repetition_in(reading: Reading) -> Mapping[str, Any] | None:
    """The second reading, as JSON values; None where there was none."""
    found: Mapping[str, Any] | None = reading.details.get(REPETITION)
    return found


def disagrees(reading: Reading) -> bool:
    """Whether the repetition lies outside the reading's own interval."""
    return DISAGREES in reading.details.get("labels", ())


def beyond_chance(reading: Reading) -> bool:
    """Whether the repetition differs by more than the noise of both explains."""
    again = repetition_in(reading)
    return bool(again and again.get(BEYOND))


def readings_to_cover(reading: Reading) -> list[Reading]:
    """Every measurement that an interval must cover: the reading, and its repetition where the two
    disagree."""
    again = repetition_in(reading)
    second = [Reading.from_json(reading.name, again)] if again and disagrees(reading) else []
    return [reading, *second]
