"""From which size on do the known floors no longer explain what was measured?

A floor is something that a call cannot do without, at every size of a series: the launches of its
operations, the bytes that it moves, its arithmetic. Launches are in seconds as estimated with each
record. What is derived is scaled by one constant a series, the best rate that the series itself
reaches, not by a ceiling of the machine, which few records have (`meters.ceilings`). What cannot
overlap adds up, so a value is explained as long as it lies no higher than all floors together, with
`NEAR` to spare.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from profiler.scaling.curves import Quantity, Series, readings_of
from profiler.scaling.exponents import Value
from profiler.scaling.predicted import COMPULSORY, LIVE, OPERATIONS, UNFUSED, Derived
from profiler.words import scaled

LAUNCHES, TRAFFIC, ARITHMETIC = "launch overhead", "memory traffic", "arithmetic"
HELD, IDLE = "the equations' live set", "idle power"

NEAR = 1.05
"""A value this many times what its floors explain needs no cause of its own."""

DERIVED: Mapping[str, str] = {
    UNFUSED: TRAFFIC,
    COMPULSORY: TRAFFIC,
    OPERATIONS: ARITHMETIC,
    LIVE: HELD,
}
"""What is derived -> the floor that it is."""

RATES: Mapping[str, Mapping[str, str]] = {
    "s": {OPERATIONS: "op/s", UNFUSED: "B/s", COMPULSORY: "B/s"},
    "J": {OPERATIONS: "op/J", UNFUSED: "B/J", COMPULSORY: "B/J"},
    "B": {LIVE: "B/B"},
}
"""Unit of a quantity -> the unit of the rate that a derived answer is scaled by."""


@dataclass(frozen=True)
class Floor:
    """A floor at every size of a series, in the quantity's unit."""

    name: str
    at: Mapping[int, float]
    constant: str
    """What it is scaled by, in words."""


@dataclass(frozen=True)
class Departure:
    """Where a series is explained by its floors and where it is not."""

    floors: tuple[Floor, ...]
    values: tuple[Value, ...]
    highest: Mapping[int, str] = field(default_factory=dict)
    """Explained size -> its highest floor."""
    above: Mapping[int, float] = field(default_factory=dict)
    """Size that is not explained -> how many times all floors together it is."""

    @property
    def left(self) -> int | None:
        """The first size, after one that is explained, that is explained no longer."""
        first = min(self.highest, default=None)
        later = [size for size in self.above if first is not None and size > first]
        return min(later, default=None)

    @property
    def words(self) -> str:
        """What a table says."""
        said = [regimes(self.highest)] if self.highest else []
        before = [size for size in sorted(self.above) if size < min(self.highest, default=0)]
        after = [size for size in sorted(self.above) if size not in before]
        if before:
            said.append(f"not explained below: {self.times(before)}")
        if after:
            said.append(f"leaves it at {after[0]}: {self.times(after)}")
        elif self.highest:
            said.append("explained to the largest size")
        return "; ".join(said)

    def times(self, sizes: Sequence[int]) -> str:
        """How far above the floors."""
        listed = ", ".join(f"{self.above[size]:.2f} at {size}" for size in sizes)
        return f"all floors together times {listed}"


def regimes(highest: Mapping[int, str]) -> str:
    """Which floor is the highest from where to where.

    >>> regimes({128: "launch overhead", 256: "launch overhead", 512: "arithmetic"})
    'launch overhead 128 to 256, arithmetic at 512'
    """
    said = []
    for name, group in groupby(sorted(highest), key=lambda size: highest[size]):
        sizes = list(group)
        ends = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"at {sizes[0]}"
        said.append(f"{name} {ends}")
    return ", ".join(said)


def departure(floors: Sequence[Floor], values: Sequence[Value]) -> Departure:
    """Which values lie no higher than `NEAR` times all floors together, by the low ends of their
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


def best(derived: Derived, values: Sequence[Value], unit: str) -> Floor:
    """A derived answer scaled by the best rate of the series, so that it touches one value."""
    numbers = {value.size: derived.at(value.size) for value in values}
    rate = max(numbers[value.size] / value.value for value in values)
    words = f"{scaled(rate, RATES[unit][derived.name])}, the best of the series"
    return Floor(
        DERIVED[derived.name], {size: number / rate for size, number in numbers.items()}, words
    )


def launches(series: Series, values: Sequence[Value]) -> Floor | None:
    """What launching the operations takes by itself; None where a size has no estimate."""
    return averaged(series, values, LAUNCHES, "launch_estimate", 1.0, "as estimated by the records")


def idle(series: Series, values: Sequence[Value]) -> Floor | None:
    """What the board draws without work, for as long as a call takes; None where it is unknown."""
    net = [record.readings.get("energy_net") for record in series.records]
    watts = [n.details["idle_W"] for n in net if n is not None and "idle_W" in n.details]
    if not watts:
        return None
    mean = statistics.fmean(watts)
    return averaged(series, values, IDLE, "latency", mean, f"{scaled(mean, 'W')} over the latency")


def averaged(
    series: Series, values: Sequence[Value], name: str, reading: str, factor: float, words: str
) -> Floor | None:
    """A floor from a reading of the records themselves."""
    found: dict[int, float] = {}
    for value in values:
        read = [r.value for r in readings_of(series.at(value.size), reading)]
        if not read:
            return None
        found[value.size] = factor * statistics.fmean(read)
    return Floor(name, found, words)


OWN: Mapping[str, tuple[object, ...]] = {
    "latency": (launches,),
    "latency_cold": (launches,),
    "energy": (idle,),
}
"""Reading -> its floors beside what is derived."""


def floors_of(
    series: Series, quantity: Quantity, values: Sequence[Value], derived: Sequence[Derived]
) -> list[Floor]:
    """Every floor of a quantity that is known for a series."""
    own = [rule(series, values) for rule in OWN.get(quantity.reading, ())]  # type: ignore[operator]  # the functions above
    return [*filter(None, own), *(best(each, values, quantity.unit) for each in derived)]
