"""From which size on do the known floors no longer explain what was measured?

A floor is the least that a call needs of something, at every size of a series: the launches of its
operations, the bytes that it moves, its arithmetic. Launches are in seconds as estimated with each
record. A derived quantity becomes seconds by the best rate of the device: as measured beside the
records, where they carry it (`meters.ceilings`); else, for bytes, as the data sheet says; else by
one constant per series, the best rate that the series itself reaches, as always for joules. Each
floor names its source. With a rate that was not fitted to the series, all of a series may lie above
its floors; and bytes held in a cache move faster than those in memory. Floors that cannot overlap
add up, so a value is explained as long as it is at most `NEAR` times the sum of all floors.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from profiler.meters.ceilings import COPY, READ, WRITE, exp_name, multiply_add_name, product_name
from profiler.records.reading import Reading
from profiler.records.words import scaled
from profiler.run.lower_bounds import bandwidth, ceiling
from profiler.scaling.derived import COMPULSORY, EXPONENTIALS, LIVE, OPERATIONS, UNFUSED, Derived
from profiler.scaling.exponents import MeasuredValue
from profiler.scaling.series import MeasuredQuantity, Series, readings_of

LAUNCHES, TRAFFIC, ARITHMETIC = "launch overhead", "memory traffic", "arithmetic"
EXPONENTIATION = "exponentials"
HELD, IDLE = "the equations' live set", "idle power"

MEASURED = "from measured ceilings"
SHEET = "from the device's data sheet"
BEST = "the best of the series"
"""The sources of a floor's rate."""

NEAR = 1.05
"""A value up to this many times the sum of its floors needs no further cause."""

DERIVED: Mapping[str, str] = {
    UNFUSED: TRAFFIC,
    COMPULSORY: TRAFFIC,
    OPERATIONS: ARITHMETIC,
    EXPONENTIALS: EXPONENTIATION,
    LIVE: HELD,
}
"""Derived quantity -> its floor."""

RATES: Mapping[str, Mapping[str, str]] = {
    "s": {OPERATIONS: "op/s", EXPONENTIALS: "op/s", UNFUSED: "B/s", COMPULSORY: "B/s"},
    "J": {OPERATIONS: "op/J", UNFUSED: "B/J", COMPULSORY: "B/J"},
    "B": {LIVE: "B/B"},
}
"""Unit of a measured quantity -> derived quantity -> the unit of the rate between the two."""


CEILINGS: Mapping[str, Callable[[str], Sequence[str]]] = {
    UNFUSED: lambda dtype: (COPY, READ, WRITE),
    COMPULSORY: lambda dtype: (COPY, READ, WRITE),
    OPERATIONS: lambda dtype: (product_name(dtype), multiply_add_name(dtype)),
    EXPONENTIALS: lambda dtype: (exp_name(dtype),),
}
"""Derived quantity -> the ceilings, for a type of number, that bound its rate in time; the highest
counts."""


@dataclass(frozen=True)
class ScaledFloor:
    """A floor at every size of a series, in the measured quantity's unit."""

    name: str
    at: Mapping[int, float]
    constant: str
    """The rate that scales the floor, in words."""
    source: str = ""
    """The source of the rate: `MEASURED`, `SHEET` or `BEST`; "" where nothing is scaled."""


@dataclass(frozen=True)
class Departure:
    """Where a series is explained by its floors and where it is not."""

    floors: tuple[ScaledFloor, ...]
    values: tuple[MeasuredValue, ...]
    highest: Mapping[int, str] = field(default_factory=dict)
    """Explained size -> its highest floor."""
    above: Mapping[int, float] = field(default_factory=dict)
    """Size that is not explained -> the value divided by the sum of all floors."""

    @property
    def left(self) -> int | None:
        """The first size, above an explained one, that is not explained."""
        first = min(self.highest, default=None)
        later = [size for size in self.above if first is not None and size > first]
        return min(later, default=None)

    @property
    def absolute(self) -> list[str]:
        """The floors whose rates were not fitted to the series, each with rate and source."""
        return [f"{f.name} {f.constant}" for f in self.floors if f.source not in ("", BEST)]

    @property
    def words(self) -> str:
        """The text in a table."""
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
        if self.absolute:
            said.append(f"floors: {', '.join(self.absolute)}")
        return "; ".join(said)

    def times(self, sizes: Sequence[int]) -> str:
        """How far above the floors the values at some sizes lie, in words."""
        listed = ", ".join(f"{self.above[size]:.2f} at {size}" for size in sizes)
        return f"all floors together times {listed}"


def regimes(highest: Mapping[int, str]) -> str:
    """Which floor is the highest, over which sizes.

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
    """Which values are at most `NEAR` times the sum of all floors, by the low ends of their
    intervals."""
    highest: dict[int, str] = {}
    above: dict[int, float] = {}
    for value in values:
        together = sum(floor.at[value.size] for floor in floors)
        if value.low <= NEAR * together:
            highest[value.size] = max(floors, key=lambda f: f.at[value.size]).name
        else:
            above[value.size] = value.value / together
    return Departure(tuple(floors), tuple(values), highest, above)


def best_floor(derived: Derived, values: Sequence[MeasuredValue], unit: str) -> ScaledFloor:
    """A derived quantity scaled by the best rate of the series, so that the floor touches one
    value."""
    numbers = {value.size: derived.at(value.size) for value in values}
    rate = max(numbers[value.size] / value.value for value in values)
    return scaled_by(rate, BEST, derived, numbers, unit)


def scaled_by(
    rate: float, source: str, derived: Derived, numbers: Mapping[int, float], unit: str
) -> ScaledFloor:
    """The numbers of a derived quantity divided by a rate."""
    words = f"{scaled(rate, RATES[unit][derived.name])}, {source}"
    at = {size: number / rate for size, number in numbers.items()}
    return ScaledFloor(DERIVED[derived.name], at, words, source)


def measured_ceiling(series: Series, name: str) -> Reading | None:
    """The highest of the ceilings that bound the rate of a derived quantity, as measured beside any
    record of a series; None where none was measured."""
    found = [
        ceiling(record.environment, each)
        for record in series.records
        for each in CEILINGS[name](series.dtype)
    ]
    known = [each for each in found if isinstance(each, Reading)]
    return max(known, key=lambda reading: reading.value, default=None)


def sheet_bandwidth(series: Series) -> float | None:
    """The most bytes per second in the data sheet of a series' device."""
    found = [bandwidth(record.environment) for record in series.records]
    return max((rate for rate in found if rate is not None), default=None)


def in_time(
    series: Series, values: Sequence[MeasuredValue], derived: Derived, apart: Derived | None
) -> ScaledFloor:
    """A floor in seconds, by the best-known rate.

    `apart`: operations that have a floor of their own and are taken out of this one.
    """
    numbers: dict[int, float] = {value.size: derived.at(value.size) for value in values}
    if (top := measured_ceiling(series, derived.name)) is not None:
        if derived.name == OPERATIONS and apart is not None:
            numbers = {size: number - apart.at(size) for size, number in numbers.items()}
        return scaled_by(top.value, f"{MEASURED} ({top.name})", derived, numbers, "s")
    if DERIVED[derived.name] == TRAFFIC and (rate := sheet_bandwidth(series)) is not None:
        return scaled_by(rate, SHEET, derived, numbers, "s")
    return best_floor(derived, values, "s")


def launch_floor(series: Series, values: Sequence[MeasuredValue]) -> ScaledFloor | None:
    """The time of launching the operations alone; None where a size has no estimate."""
    return reading_floor(
        series, values, LAUNCHES, "launch_estimate", 1.0, "as estimated by the records"
    )


def idle_floor(series: Series, values: Sequence[MeasuredValue]) -> ScaledFloor | None:
    """The board's power without work, for the duration of a call; None where the power is
    unknown."""
    net = [record.readings.get("energy_net") for record in series.records]
    watts = [n.details["idle_W"] for n in net if n is not None and "idle_W" in n.details]
    if not watts:
        return None
    mean = statistics.fmean(watts)
    return reading_floor(
        series, values, IDLE, "latency", mean, f"{scaled(mean, 'W')} over the latency"
    )


def reading_floor(
    series: Series,
    values: Sequence[MeasuredValue],
    name: str,
    reading: str,
    factor: float,
    words: str,
) -> ScaledFloor | None:
    """A floor from a reading of the records themselves."""
    found: dict[int, float] = {}
    for value in values:
        read = [r.value for r in readings_of(series.at(value.size), reading)]
        if not read:
            return None
        found[value.size] = factor * statistics.fmean(read)
    return ScaledFloor(name, found, words)


OWN: Mapping[str, tuple[object, ...]] = {
    "latency": (launch_floor,),
    "latency_cold": (launch_floor,),
    "energy": (idle_floor,),
}
"""Reading -> its floors besides those of derived quantities."""


def floors_of(
    series: Series,
    quantity: MeasuredQuantity,
    values: Sequence[MeasuredValue],
    derived: Sequence[Derived],
    exponentials: Derived | None = None,
) -> list[ScaledFloor]:
    """Every known floor of a measured quantity along a series.

    `exponentials`: their number, which has a floor of its own where the device's ceiling of
    exponentials was measured.
    """
    own = [rule(series, values) for rule in OWN.get(quantity.reading, ())]  # type: ignore[operator]  # the functions above
    known = [*filter(None, own)]
    if quantity.unit != "s":
        return [*known, *(best_floor(each, values, quantity.unit) for each in derived)]
    both = all(measured_ceiling(series, name) is not None for name in (EXPONENTIALS, OPERATIONS))
    apart = exponentials if both else None
    timed = [*derived, *([apart] if apart else [])]
    return [*known, *(in_time(series, values, each, apart) for each in timed)]
