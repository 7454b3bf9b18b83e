"""What do the papers print, as transcribed under tables/published, that a study stands beside?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.claims.claim import Claim, load, printed_figure
from costmodel.claims.published import published_files
from profiler.studies.study import StudyError


def claims() -> Iterator[Claim]:
    """Every claim that comes with the project."""
    for path in published_files():
        yield from load(path)


def claim(name: str) -> Claim:
    """The claim with this id; StudyError where there is none any more."""
    for each in claims():
        if each.id == name:
            return each
    raise StudyError(f"no claim '{name}' is transcribed under tables/published")


@dataclass(frozen=True)
class PrintedTime:
    """A training time as a paper prints it: that of a model over that of another."""

    model: str
    against: str
    ratio: float
    low: float
    high: float
    """The ratios that round to the printed figure."""
    claim: Claim


def printed_times(place: str) -> list[PrintedTime]:
    """The training times of a table, as ratios: what is printed is the change in percent.

    Args:
        place: how the claims' places begin, such as `Table 7.4`.
    """
    found = []
    for each in claims():
        timed = each.kind == "model" and each.quantity == "time" and each.compare == "percent"
        if timed and each.place.startswith(f"{place},"):
            figure = printed_figure(each.value, each.unit, each.rounding)
            changes = (figure.value, figure.low, figure.high)
            ratio, low, high = (float(1 + change / 100) for change in changes)
            found.append(PrintedTime(each.model, each.against, ratio, low, high, each))
    if not found:
        raise StudyError(f"no training time of {place} is transcribed under tables/published")
    return found
