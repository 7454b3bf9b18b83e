"""The predicted time of calls, with an interval.

No prediction for a board uses constants that were fitted on this board, so that the interval, from
boards that a fit had not seen, holds for a board that nobody measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.data import data_dir, read_data
from costmodel.errors import BoardError
from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls
from costmodel.prediction.families import BY_NAME, Family, family_of
from costmodel.prediction.power import CONSTANTS, watts

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
    joules_low: Floats | None
    joules_high: Floats | None


@dataclass(frozen=True)
class Fit:
    """Constants of a family, the boards that they were fitted on (none where constants of other
    families stand in), and the ratios of measured to predicted time between which nine of ten calls
    on another board are expected."""

    boards: tuple[str, ...]
    constants: Mapping[str, float]
    interval: tuple[float, float]


@cache
def _read() -> Any:
    """The contents of the file of constants."""
    return read_data(data_dir("predictions") / "kernels.json")


def among_kernels() -> tuple[float, Sequence[str]]:
    """(share, boards): the share of a small kernel's launch and tail that is left where kernels
    follow one another, and the boards on which the share was measured. An interval reaches from no
    launch to that of a kernel alone."""
    found = _read()["among_kernels"]
    return found["share"], found["boards"]


Fits = Mapping[str, tuple[Fit, ...]]
"""Family -> its fits: one on all boards, and for each board one on all others and one alone."""


@cache
def fits() -> Fits:
    """The fits that ship."""
    return read_fits(_read()["families"])


def read_fits(families: Mapping[str, Any]) -> Fits:
    """Family -> its fits, each the constants of its formula with the boards that they were fitted
    on and the interval, from the parsed contents of a file of constants: the one that ships, or one
    that `benchmarks.fit_kernels` writes."""
    return {
        name: tuple(
            Fit(tuple(one["boards"]), one["constants"], (one["interval"][0], one["interval"][1]))
            for one in found["fits"]
        )
        for name, found in families.items()
    }


def fitted_elsewhere(name: str, on: str, known: Fits) -> Fit | None:
    """Of a family's fits without the board named `on`, the one on the most boards; None if the
    family, of which `name` is the name, was fitted on no other board."""
    others = [one for one in known[name] if on not in one.boards]
    return max(others, key=lambda one: len(one.boards), default=None)


def stand_in(family: Family, on: str, known: Fits) -> Mapping[str, float] | None:
    """Constants for a family that was fitted on no board but the one named `on`: those of similar
    families, fitted without that board; None if there is no similar family, or one of them was
    fitted nowhere else."""
    found: dict[str, float] = {}
    for name in family.constants:
        other, theirs = family.stand_in(name)
        fit = fitted_elsewhere(other, on, known) if other else None
        if fit is None:
            return None
        found[name] = fit.constants[theirs]
    return found


def fit_for(family: Family, on: str) -> Fit:
    """The fit by which a family predicts times on the board named `on`: of the fits without this
    board, the one on the most boards; if there is none, constants that stand in, with a wider
    interval.

    Raises:
        BoardError: neither the family nor those that stand in were fitted on another board.
    """
    if found := fitted_elsewhere(family.name, on, fits()):
        return found
    constants = stand_in(family, on, fits())
    if constants is None:
        raise BoardError(
            f"no time of {family.name} is predicted on {on}, the only board to which this "
            "prediction was fitted: choose another --board"
        )
    low, high = _read()["stand_in_interval"]
    return Fit((), constants, (low, high))


def meanings(family: Family) -> str:
    """The constants of a family with their meanings, for an explanation: "start: launch ..."."""
    return "; ".join(f"{name}: {one.meaning}" for name, one in family.constants.items())


def constants_in_words(family: Family, on: str) -> str:
    """The constants by which a family predicts times on the board named `on`, with a remark at an
    end of the range in which they are fitted, and the boards that they were fitted on or the
    families that they are taken from, as a phrase; BoardError if there are neither."""
    fit = fit_for(family, on)
    if fit.boards:
        own = family.constants
        each = ", ".join(f"{name} {own[name].in_words(v)}" for name, v in fit.constants.items())
        return f"fitted on {', '.join(fit.boards)}: {each}"
    told = []
    for name, value in fit.constants.items():
        other, theirs = family.stand_in(name)
        number = BY_NAME[other].constants[theirs].in_words(value)
        told.append(f"{name} {number} ({theirs} of {other})")
    return f"fitted on no other board, others stand in: {', '.join(told)}"


def predict(calls: Calls, on: Board, source: str = "", *, repeated: bool = False) -> Prediction:
    """The predicted seconds, interval and joules of each call on a board, by constants fitted on
    other boards; joules are None without a power limit. Seconds and both ends of their interval are
    at least the roofline, or, if `repeated`, the time of arithmetic.

    Args:
        source: the name of the implementation, which may choose the family of kernels.
        repeated: each call was timed in a loop over the same entries, as published times were: the
            L2 cache then serves bytes.

    Raises:
        BoardError: the board has no figure that is needed, or no family predicts the kernel.
    """
    family = family_of(calls.kernel, source)
    if family is None:
        raise BoardError(
            f"no time is predicted of kernel {calls.kernel} by '{source}': predicted are "
            f"{', '.join(BY_NAME)}"
        )
    on.refuse_cpu()
    fit = fit_for(family, on.chip)
    least = calls.arithmetic(on) if repeated else calls.roofline(on)
    fitted = family.seconds(fit.constants, calls, on)
    below, above = fit.interval
    low, seconds, high = (np.maximum(least, ratio * fitted) for ratio in (below, 1, above))
    if "power_limit" not in on.figures:
        return Prediction(seconds, low, high, None, None, None)
    return Prediction(seconds, low, high, *energy(calls, on, seconds, low, high))


def energy(
    calls: Calls, on: Board, seconds: Floats, low: Floats, high: Floats
) -> tuple[Floats, Floats, Floats]:
    """(joules, least, most), each (N,): the energy of each call, which takes `seconds` (expected
    between `low` and `high`), and its interval. The interval joins two ratios, whose logarithms add
    as independent ones: of the joules at the ends of the time, and of measured to predicted power.
    No end is above the power limit for the longest time.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    joules = seconds * power(calls, on, seconds)
    at_ends = [one * power(calls, on, one) / joules for one in (low, high)]
    less, more = np.minimum(1, np.minimum(*at_ends)), np.maximum(1, np.maximum(*at_ends))
    below, above = np.log(_read()["power"]["interval"])
    most = joules * np.exp(np.hypot(np.log(more), above))
    return (
        joules,
        joules * np.exp(-np.hypot(np.log(less), below)),
        np.minimum(most, high * on["power_limit"]),
    )


def power(calls: Calls, on: Board, seconds: Floats, *, gaps: bool = False) -> Floats:
    """The board's mean watts, (N,), while each of N calls, which takes `seconds`, runs; with
    `gaps`, while the host repeats it, as published power was measured.

    Raises:
        BoardError: the board has no figure that is needed.
    """
    constants = _read()["power"]["values"]
    return watts(constants if gaps else {**constants, "gap": 0.0}, calls, on, seconds)


def power_in_words() -> str:
    """The constants of the power, with their meanings and what they were fitted on."""
    found = _read()["power"]
    each = (
        f"{CONSTANTS[x].meaning}: {CONSTANTS[x].in_words(v)}" for x, v in found["values"].items()
    )
    return f"fitted on {found['calls']} calls of {', '.join(found['boards'])}; {'; '.join(each)}"
