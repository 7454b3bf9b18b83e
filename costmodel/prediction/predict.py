"""The predicted time of calls, with an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.data import data_dir, read_data
from costmodel.errors import BoardError
from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls
from costmodel.prediction.families import FAMILIES, Family, family_of
from costmodel.prediction.power import watts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of N calls, arrays (N,), and the ends of their intervals."""

    seconds: Floats
    low: Floats
    high: Floats
    joules: Floats | None
    """The predicted energy; None on a board without a power limit."""


@dataclass(frozen=True)
class Fit:
    """Constants of a family, the boards that they were fitted on, and the ratios of measured to
    predicted time between which nine of ten calls on another board are expected."""

    boards: tuple[str, ...]
    constants: Mapping[str, float]
    interval: tuple[float, float]


@cache
def _read() -> Any:
    """The contents of the file of constants."""
    return read_data(data_dir("predictions") / "kernels.json")


@cache
def fits() -> Mapping[str, tuple[Fit, ...]]:
    """Family -> its fits: one on all boards, and for each board one on all other boards."""
    return {
        name: tuple(
            Fit(tuple(one["boards"]), one["constants"], (one["interval"][0], one["interval"][1]))
            for one in found["fits"]
        )
        for name, found in _read()["families"].items()
    }


def fit_for(family: Family, on: str) -> Fit:
    """The fit by which a family predicts times on the board named `on`: of the fits without this
    board, the one on the most boards. If the family has none, the fit of the family `family.like`,
    with the constants `family.stand_in` in place of its own and a wider interval.

    Raises:
        BoardError: neither family was fitted on another board.
    """
    others = [one for one in fits().get(family.name, ()) if on not in one.boards]
    if others:
        return max(others, key=lambda one: len(one.boards))
    alike = next((one for one in FAMILIES if one.name == family.like), None)
    found = alike and [one for one in fits().get(alike.name, ()) if on not in one.boards]
    if not found:
        raise BoardError(f"no constants of {family.name} were fitted on a board other than {on}")
    fit = max(found, key=lambda one: len(one.boards))
    low, high = _read()["stand_in_interval"]
    return replace(fit, constants={**fit.constants, **family.stand_in}, interval=(low, high))


def predict(calls: Calls, on: Board, source: str = "") -> Prediction:
    """The predicted time and energy of calls on a board, by constants fitted on other boards.

    Args:
        source: the name of the implementation, which may choose the family of kernels.

    Raises:
        BoardError: the board has no figure that is needed, or no family predicts the kernel.
    """
    family = family_of(calls.kernel, source)
    if family is None:
        raise BoardError(f"no family of kernels predicts {calls.kernel} by '{source}'")
    fit = fit_for(family, on.name)
    seconds = family.seconds(fit.constants, calls, on)
    joules = None
    if "power_limit" in on.figures:
        joules = seconds * power(calls, on, seconds)
    return Prediction(seconds, seconds * fit.interval[0], seconds * fit.interval[1], joules)


def power(calls: Calls, on: Board, seconds: Floats) -> Floats:
    """The board's mean watts, (N,), while each of N calls, which takes `seconds`, is repeated.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    return watts(_read()["power"]["values"], calls, on, seconds)
