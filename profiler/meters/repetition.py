"""What does a second reading, taken after all others of a plan, say of the first?

An interval tells the noise within one measurement; what drifts from hour to hour is in none. Where
the second value lies outside the interval of the first, the reading gets the interval that holds
those of both, and a label: whoever reads its ends then reads the wider ones.

The second value has noise of its own, which the interval of the first knows nothing of: of two that
are equally well known, it lies outside in `BY_CHANCE` of all cases with no drift at all, so that
intervals are rather too wide than too narrow. Whether the two differ by more than the noise of both
explains is another question, and the record answers it (`BEYOND`): at the same level, by the halves
of both intervals that face each other, squared and added. Zou and Donner, "Construction of
Confidence Limits About Effect Measures" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from profiler.meters.effective_sample_size import CONFIDENCE
from profiler.records.reading import Reading
from profiler.records.store import reading_to_json

REPETITION = "repetition"
"""The option of a request that measures again, and the detail of a reading that holds the other."""
DISAGREES = "repetition disagrees"
"""The label of a reading whose repetition lies outside the interval that it had by itself."""
BEYOND = "beyond_chance"
"""What is kept of a repetition: whether it differs by more than the noise of both explains; None
where that is not known."""


def by_chance(confidence: float) -> float:
    """How often the second of two equally well known values lies outside the interval of the first,
    with normal noise alone: their difference spreads sqrt(2) times as far as each of them.

    >>> round(by_chance(0.95), 3)
    0.166
    """
    normal = NormalDist()
    return 2 * normal.cdf(normal.inv_cdf((1 - confidence) / 2) / math.sqrt(2))


BY_CHANCE = by_chance(CONFIDENCE)
"""Of intervals of 95 %: about one in six."""


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
        REPETITION: {**record, **reading_to_json(other), BEYOND: beyond(reading, other)},
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


def beyond(reading: Reading, other: Reading) -> bool | None:
    """Whether two values differ by more than the noise of both explains; None where one of them
    has no interval."""
    own, theirs = ends(reading), ends(other)
    if own is None or theirs is None:
        return None
    (low, lower), (high, higher) = sorted(
        ((reading.value, own), (other.value, theirs)), key=lambda each: each[0]
    )
    return high - low > math.hypot(lower[1] - low, high - higher[0])


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


def beyond_chance(reading: Reading) -> bool:
    """Whether the repetition differs by more than the noise of both explains."""
    again = repetition_in(reading)
    return bool(again and again.get(BEYOND))


def apart(reading: Reading) -> list[Sequence[float]]:
    """The samples of every measurement that an interval must hold: those of the reading, and those
    of its repetition where the two disagree."""
    again = repetition_in(reading)
    return [reading.samples, *([again["samples"]] if again and disagrees(reading) else [])]
