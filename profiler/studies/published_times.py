"""The printed claims and training times that studies compare with, from tables/published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.claims.claim import Claim
from costmodel.claims.numeric_claims import NetworkClaim
from costmodel.claims.published import published_files
from costmodel.claims.records import load
from costmodel.errors import did_you_mean
from profiler.studies.study import StudyError


def claims() -> Iterator[Claim]:
    """Yield the claims in the files under tables/published."""
    for path in published_files():
        yield from load(path)


def claim(name: str) -> Claim:
    """The claim with an id; StudyError if no claim has the id."""
    for each in claims():
        if each.id == name:
            return each
    hint = did_you_mean(name, (each.id for each in claims()))
    raise StudyError(f"no claim has the id '{name}': {hint}tables/published lists all claims")


@dataclass(frozen=True)
class PrintedTime:
    """A printed training time: the time of `model` over the time of `against`."""

    model: str
    against: str
    ratio: float
    low: float
    high: float
    """`low` to `high` is the interval of ratios that round to the printed figure."""
    claim: Claim


def printed_times(place: str) -> list[PrintedTime]:
    """Read the training times of a paper's table as ratios to another model's: +12 % as 1.12.

    Args:
        place: the table, with which, before a comma, the `place` of its claims begins: `Table 7.4`.

    Raises:
        StudyError: no training time of the table is transcribed.
    """
    found = []
    for each in claims():
        if not isinstance(each, NetworkClaim) or not each.place.startswith(f"{place},"):
            continue
        if each.quantity == "time" and each.compare == "percent":
            figure = each.figure
            changes = (figure.value, figure.low, figure.high)
            ratio, low, high = (float(1 + change / 100) for change in changes)
            found.append(PrintedTime(each.model, each.against, ratio, low, high, each))
    if not found:
        raise StudyError(
            f"tables/published has no training time of {place}: expected claims with quantity = "
            "time and compare = percent"
        )
    return found
