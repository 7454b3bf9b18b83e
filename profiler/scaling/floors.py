"""Finds the size from which on the known floors no longer explain the measured values.

A floor is the least time or memory that a call needs for one purpose, at every size of a series:
the launches of its operations, the bytes that it moves, its arithmetic. The time of launches is
estimated in each record. A derived quantity becomes seconds by the rate of a board that the user
names, as measured (`costmodel calibrate`) or from a data sheet. With an unknown rate, always so for
joules, there is no floor. All of a series may lie above its floors; and bytes in a cache move
faster than bytes in memory. Launches overlap with work, whose floors add up, so a value is
explained if it is at most `NEAR` times the larger of launches and the sum of the other floors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean

from costmodel.prediction.boards import Board
from costmodel.prediction.columns import NO_BOARD
from profiler.records.measurement import readings_of
from profiler.records.quantities import MeasuredQuantity
from profiler.records.words import scaled
from profiler.scaling.derived import COMPULSORY, EXPONENTIALS, LIVE, OPERATIONS, UNFUSED, Derived
from profiler.scaling.exponents import MeasuredValue
from profiler.scaling.series import Series

LAUNCHES, TRAFFIC, ARITHMETIC = "launch overhead", "memory traffic", "arithmetic"
EXPONENTIATION = "exponentials"
HELD = "the equations' live set"

NEAR = 1.05
"""A value up to this many times the larger of launches and the sum of the other floors is
explained."""

DERIVED: Mapping[str, str] = {
    UNFUSED: TRAFFIC,
    COMPULSORY: TRAFFIC,
    OPERATIONS: ARITHMETIC,
    EXPONENTIALS: EXPONENTIATION,
    LIVE: HELD,
}
"""Derived quantity -> its floor."""

RATES: Mapping[str, str] = {
    OPERATIONS: "op/s",
    EXPONENTIALS: "op/s",
    UNFUSED: "B/s",
    COMPULSORY: "B/s",
}
"""Derived quantity -> the unit of its rate in time."""

LESS_HELD = (
    "at {} the call holds less than the live set of the equations, which is then no lower bound: "
    "the implementation keeps fewer arrays than the equations name"
)
NO_JOULES = "the least energy of an operation is unknown"

FIGURES: Mapping[str, Callable[[Board, str], Sequence[str]]] = {
    UNFUSED: lambda on, dtype: ("memory_bandwidth",),
    COMPULSORY: lambda on, dtype: ("memory_bandwidth",),
    OPERATIONS: lambda on, dtype: on.product_units(dtype) or (f"matrix.{dtype}",),
    EXPONENTIALS: lambda on, dtype: ("special",),
}
"""Derived quantity -> the figures of a board, for a dtype, that bound its rate; the highest counts.
"""


@dataclass(frozen=True)
class ScaledFloor:
    """A floor at every size of a series, in the measured quantity's unit."""

    name: str
    at: Mapping[int, float]
    constant: str
    """The rate that scales the floor, in words; of an unscaled floor, its unit or origin."""
    source: str = ""
    """The figure that is the rate, its board and label; "" for an unscaled floor."""


@dataclass(frozen=True)
class Departure:
    """The sizes at which a series is explained by its floors, and those at which it is not."""

    floors: tuple[ScaledFloor, ...]
    values: tuple[MeasuredValue, ...]
    highest: Mapping[int, str] = field(default_factory=dict)
    """Explained size -> the highest floor of those that explain the value: launches, or work."""
    above: Mapping[int, float] = field(default_factory=dict)
    """Size that is not explained -> the value divided by all floors together."""

    @property
    def left(self) -> int | None:
        """The first size above the smallest explained one at which the value exceeds its lower
        bounds (floors) together; None if there is none, or no size is explained."""
        first = min(self.highest, default=None)
        later = [size for size in self.above if first is not None and size > first]
        return min(later, default=None)

    @property
    def rates(self) -> list[str]:
        """Each floor that a rate scales, with the rate and its source."""
        return [f"{f.name} {f.constant}" for f in self.floors if f.source]

    @property
    def words(self) -> str:
        """A sentence: which floors (lower bounds) explain the values at which sizes, at which sizes
        the values exceed all floors together, how many times, and the rates of floors."""
        said = [regimes(self.highest)] if self.highest else []
        before = [size for size in sorted(self.above) if size < min(self.highest, default=0)]
        after = [size for size in sorted(self.above) if size not in before]
        if before:
            said.append(f"not explained below: {self.times(before)}")
        if after and self.highest:
            said.append(f"leaves it at {after[0]}: {self.times(after)}")
        elif after:
            said.append(f"explained nowhere: {self.times(after)}")
        elif self.highest:
            said.append("explained to the largest size")
        if self.rates:
            said.append(f"floors: {', '.join(self.rates)}")
        return "; ".join(said)

    def times(self, sizes: Sequence[int]) -> str:
        """How far the values at some sizes lie above the floors: `all floors together times 1.20 at
        256, 1.40 at 512`."""
        listed = ", ".join(f"{self.above[size]:.2f} at {size}" for size in sizes)
        return f"all floors together times {listed}"


def regimes(highest: Mapping[int, str]) -> str:
    """Words from a dict, size -> name of the highest floor (lower bound) there: neighbouring sizes
    with one name are joined.

    >>> regimes({128: "launch overhead", 256: "launch overhead", 512: "arithmetic"})
    'launch overhead 128 to 256, arithmetic at 512'
    """
    said = []
    for name, group in groupby(sorted(highest), key=lambda size: highest[size]):
        sizes = list(group)
        ends = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"at {sizes[0]}"
        said.append(f"{name} {ends}")
    return ", ".join(said)


def departure(floors: Sequence[ScaledFloor], values: Sequence[MeasuredValue]) -> Departure:
    """A `Departure`: the sizes at which lower bounds (floors) explain the measured values, each
    with the highest floor of launches or of work, whichever of the two explains; and the sizes at
    which not, with value / floors. A value is explained if the low end of its interval is at most
    `NEAR` times the larger of launches, which overlap with work, and the sum of the others."""
    highest: dict[int, str] = {}
    above: dict[int, float] = {}
    for value in values:
        launches = [floor for floor in floors if floor.name == LAUNCHES]
        work = [floor for floor in floors if floor.name != LAUNCHES]
        # launches overlap with work, whose floors add up: the larger of both explains the value
        longest = max((launches, work), key=lambda group: sum(f.at[value.size] for f in group))
        together = sum(f.at[value.size] for f in longest)
        if value.low <= NEAR * together:
            highest[value.size] = max(longest, key=lambda f: f.at[value.size]).name
        else:
            above[value.size] = value.value / together
    return Departure(tuple(floors), tuple(values), highest, above)


def scaled_by(
    rate: float, source: str, derived: Derived, numbers: Mapping[int, float]
) -> ScaledFloor:
    """The lower bound in seconds at each size that a derived quantity gives: its numbers (size ->
    operations or bytes) divided by a rate per second, whose origin `source` states in words."""
    words = f"{scaled(rate, RATES[derived.name])}, {source}"
    at = {size: number / rate for size, number in numbers.items()}
    return ScaledFloor(DERIVED[derived.name], at, words, source)


def rate_on(on: Board | None, name: str, dtype: str) -> tuple[float, str] | str:
    """The rate of a derived quantity on a board, and its figure, board and label in words; or the
    reason why the rate is unknown."""
    if on is None:
        return NO_BOARD
    wanted = FIGURES[name](on, dtype)
    known = [(on[figure], figure) for figure in wanted if figure in on.figures]
    if not known:
        return f"board {on.name} has no figure '{wanted[0]}': add it to {on.path_shown}"
    rate, figure = max(known)
    return rate, f"{figure} of {on.name}, {on.figures[figure].label}"


def in_time(
    series: Series,
    values: Sequence[MeasuredValue],
    derived: Derived,
    on: Board | None,
    apart: Derived | None = None,
) -> ScaledFloor | str:
    """The floor (lower bound of the time) that a derived quantity, such as operations, gives in
    seconds at each size of `values`, by its rate on a board; or the reason why there is none.

    `apart`: operations with a floor of their own, which are subtracted from the operations.
    """
    found = rate_on(on, derived.name, series.dtype)
    if isinstance(found, str):
        return found
    numbers: dict[int, float] = {value.size: derived.at(value.size) for value in values}
    if derived.name == OPERATIONS and apart is not None:
        numbers = {size: number - apart.at(size) for size, number in numbers.items()}
    return scaled_by(*found, derived, numbers)


def in_bytes(values: Sequence[MeasuredValue], derived: Derived) -> ScaledFloor:
    """The floor of the live set: the derived bytes themselves."""
    held = {value.size: float(derived.at(value.size)) for value in values}
    return ScaledFloor(DERIVED[derived.name], held, "in bytes, not scaled")


def launch_floor(series: Series, values: Sequence[MeasuredValue]) -> ScaledFloor | None:
    """The floor (lower bound of the time) `LAUNCHES`: size -> the seconds to launch a call's
    kernels, the mean of the records' estimates; None if any size has no estimate."""
    found: dict[int, float] = {}
    for value in values:
        read = [r.value for r in readings_of(series.at(value.size), "launch_estimate")]
        if not read:
            return None
        found[value.size] = fmean(read)
    return ScaledFloor(LAUNCHES, found, "as estimated by the records")


def floors_of(
    series: Series,
    quantity: MeasuredQuantity,
    values: Sequence[MeasuredValue],
    derived: Sequence[Derived],
    on: Board | None,
    exponentials: Derived | None = None,
) -> list[ScaledFloor] | str:
    """Every floor (lower bound at each size) of a measured quantity along a series; or, as a
    string, why one of them is unknown or why bytes lie below their floor.

    Bytes have the floor of the live set (what the equations hold at one time); joules have none.
    Times have the floors of the `derived` quantities on a board, of launches if launches affect the
    quantity and are known at every size, and of `exponentials` if the board has rates of
    exponentials and of operations.
    """
    if quantity.unit == "B":
        held = [in_bytes(values, each) for each in derived]
        less = [v.size for v in values if any(v.high < floor.at[v.size] for floor in held)]
        sizes = ", ".join(map(str, less))
        return LESS_HELD.format(sizes) if less else held
    if quantity.unit == "J":
        return NO_JOULES
    rates = [rate_on(on, name, series.dtype) for name in (EXPONENTIALS, OPERATIONS)]
    # without both rates, exponentials stay among the operations
    apart = None if any(isinstance(rate, str) for rate in rates) else exponentials
    each_of = (*derived, *filter(None, [apart]))
    timed = [in_time(series, values, each, on, apart) for each in each_of]
    if missing := [each for each in timed if isinstance(each, str)]:
        return missing[0]
    launches = launch_floor(series, values) if quantity.launches else None
    return [*filter(None, [launches]), *(each for each in timed if isinstance(each, ScaledFloor))]
