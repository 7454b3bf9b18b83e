"""Exponents of latency, memory and energy in l and d, measured beside derived.

A *series* has records that differ in one size alone. A *floor* is a lower bound of a value at each
size. A value is *cut* if it shows no growth of the work, as where launches bound its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.prediction.boards import Board
from costmodel.program.conventions import FUSED_ATTENTION
from profiler.records.measurement import Measurement
from profiler.records.quantities import COMPARED, MeasuredQuantity
from profiler.scaling.derived import (
    COMPULSORY,
    EXPONENTIALS,
    LIVE,
    LOCAL,
    OPERATIONS,
    UNFUSED,
    Derived,
    Predictions,
)
from profiler.scaling.exponents import Exponent, MeasuredValue, Unsettled, exponent, power_of
from profiler.scaling.floors import Departure, departure, floors_of
from profiler.scaling.series import (
    LAUNCH_BOUND,
    Series,
    in_no_series,
    series_of,
    without_value,
)

LETTERS = ("l", "d")

BESIDE: Mapping[str, tuple[str, ...]] = {
    "s": (OPERATIONS, UNFUSED, COMPULSORY),
    "J": (OPERATIONS, UNFUSED, COMPULSORY),
    "B": (LIVE,),
}
"""Unit of a measured quantity -> the derived quantities beside its exponent."""


@dataclass(frozen=True)
class DerivedGrowth:
    """The growth of a derived quantity over the range of a measured exponent."""

    name: str
    power: float
    """The slope of the weighted line of the measured values, through the derived values."""
    first: float
    last: float
    """The local exponents at both ends; without local ones, both are that between the ends."""
    how: str
    """`local`, or a phrase on how the exponent was found instead."""

    @property
    def words(self) -> str:
        """The exponent of a derived quantity as a table prints it, and behind it the local
        exponents at the smallest and largest size (ends) if these differ: "1.60 (1.42 to 1.85)".

        A formula with steps has one exponent between the ends in place of two local ones: "1.60
        (1.61 between the ends)".
        """
        power, first, last = (f"{number:.2f}" for number in (self.power, self.first, self.last))
        if power == first == last:
            return power
        return f"{power} ({first} {'between the ends' if self.how != LOCAL else f'to {last}'})"


@dataclass(frozen=True)
class Scaling:
    """One measured quantity along one series."""

    series: Series
    quantity: MeasuredQuantity
    values: tuple[MeasuredValue, ...]
    measured: Exponent | Unsettled
    derived: Mapping[str, DerivedGrowth | str] = field(default_factory=dict)
    """Name -> growth, or the reason why there is none."""
    departure: Departure | str = ""
    """The sizes at which the quantity leaves its floors, or the reason why these are unknown."""

    @property
    def agrees_with(self) -> list[str]:
        """The names of the derived quantities whose exponent lies in the 95 % interval of the
        measured one; [] without a measured exponent."""
        if isinstance(self.measured, Unsettled):
            return []
        known = [g for g in self.derived.values() if isinstance(g, DerivedGrowth)]
        return [growth.name for growth in known if self.measured.contains(growth.power)]

    def to_json(self) -> dict[str, Any]:
        """A dict for JSON: the series; its `values` [size, value, low, high] in `unit`; `measured`,
        the exponent with its interval over the sizes from `first` to `last`; `derived`, name of a
        quantity -> its `DerivedGrowth`; `departure`, where the values leave their lower bounds (of
        `floors`: name -> rate in words). A missing part is None, with its reason in `reasons`."""
        reasons: dict[str, str] = {}
        measured: dict[str, Any] | None = None
        if isinstance(self.measured, Unsettled):
            reasons["measured"] = self.measured.reason
        else:
            m = self.measured
            measured = {
                "exponent": m.value, "ci_low": m.low, "ci_high": m.high, "first": m.first,
                "last": m.last, "sizes": m.sizes, "ended": m.ended,
            }  # fmt: skip
        derived: dict[str, Any] = {}
        for name, growth in self.derived.items():
            derived[name] = None if isinstance(growth, str) else vars(growth)
            if isinstance(growth, str):
                reasons[name] = growth
        left = None
        if isinstance(self.departure, str):
            reasons["departure"] = self.departure
        else:
            left = {
                "leaves_at": self.departure.left,
                "explained": {str(k): v for k, v in self.departure.highest.items()},
                "above": {str(k): v for k, v in self.departure.above.items()},
                "floors": {f.name: f.constant for f in self.departure.floors},
            }
        s = self.series
        return {
            "mixer": s.mixer, "implementation": s.implementation, "form": s.form,
            "phase": s.phase, "dtype": s.dtype, "device": s.device, "along": s.letter,
            "fixed": dict(s.fixed), "quantity": self.quantity.reading, "unit": self.quantity.unit,
            "values": [[v.size, v.value, v.low, v.high] for v in self.values],
            "measured": measured, "derived": derived, "departure": left, "reasons": reasons,
        }  # fmt: skip


def scalings(
    records: Sequence[Measurement], letters: Sequence[str] = LETTERS, on: Board | None = None
) -> tuple[list[Scaling], list[str]]:
    """(growths, sentences): the growth of every measured quantity along every series of the records
    (a series varies one of the sizes `letters` alone); a sentence on each letter without a series,
    and on each reason why records or values are left out. `on`: the board for lower bounds."""
    found: list[Scaling] = []
    problems = []
    every: list[Series] = []
    for letter in letters:
        along = series_of(records, letter)
        every += along
        if along or all(record.failed for record in records):
            problems += in_no_series(records, along, letter)
        else:
            problems.append(
                f"no two records differ in {letter} alone: no exponent in {letter}; measure "
                f"several, such as --{letter} 128:2048:x2"
            )
        for series in along:
            predicted = Predictions(series)
            known: dict[str, Derived | str] = {}
            found += [scaling_along(series, q, predicted, known, on) for q in COMPARED]
    ids = {record.id for series in every for record in series.records}
    for quantity in COMPARED:
        lost = without_value(every, quantity)
        if len(set().union(*lost.values())) < len(ids):  # if all lack it, the tables say why
            problems += [
                f"{quantity.title} of {len(those):,} of {len(ids):,} records is left out: {why}"
                for why, those in lost.items()
            ]
    return found, list(dict.fromkeys(problems))


def scaling_along(
    series: Series,
    quantity: MeasuredQuantity,
    predicted: Predictions,
    known: dict[str, Derived | str],
    on: Board | None,
) -> Scaling:
    """The measured exponent of one quantity along one series; beside it the derived growths, over
    the exponent's range or, without one, over all sizes; and the sizes at which the values leave
    their lower bounds; each may be the reason why there is none.

    `predicted` derives quantities; `known`: those derived for this series, to which the call adds;
    `on`: the board for lower bounds; `BESIDE`: unit -> the derived quantities that are compared.
    """
    for name in BESIDE[quantity.unit]:
        if name not in known:
            known[name] = predicted.of(name)
    derived = {name: known[name] for name in BESIDE[quantity.unit]}
    values = series.values(quantity)
    reason = series.missing(quantity)
    if not values:
        reason = reason or f"{quantity.title} is zero at every size, which has no exponent"
        return Scaling(series, quantity, (), Unsettled(reason), {}, reason)
    measured = exponent(values)
    first, last = values[0].size, values[-1].size
    if isinstance(measured, Exponent):
        first, last = measured.first, measured.last
    growths = {name: derived_growth(each, values, first, last) for name, each in derived.items()}
    if EXPONENTIALS not in known:
        known[EXPONENTIALS] = predicted.of(EXPONENTIALS)
    left = departure_of(
        series, quantity, values, derived, predicted.kernels, known[EXPONENTIALS], on
    )
    return Scaling(series, quantity, tuple(values), measured, growths, left)


def derived_growth(
    derived: Derived | str, values: Sequence[MeasuredValue], first: int, last: int
) -> DerivedGrowth | str:
    """The power with which a derived quantity grows from the size `first` to `last`, fitted at the
    sizes and with the weights of the measured values; or the reason why there is none (`derived`
    itself if it is a reason)."""
    if isinstance(derived, str):
        return derived
    if first == last:
        return f"the growth needs two sizes, and there is one: {first}"
    low, high, how = derived.between(first, last)
    return DerivedGrowth(derived.name, power_of(derived.at, values, first, last), low, high, how)


def departure_of(
    series: Series,
    quantity: MeasuredQuantity,
    values: Sequence[MeasuredValue],
    derived: Mapping[str, Derived | str],
    kernels: frozenset[str],
    exponentials: Derived | str,
    on: Board | None,
) -> Departure | str:
    """The sizes at which the measured values exceed their lower bounds (floors), or, as a string,
    the reason why the floors are unknown.

    The floor of bytes moved is the compulsory traffic (inputs, weights, outputs) for a fused
    kernel, else the unfused traffic (every equation reads and writes memory). Values that launches
    bound are kept, as launches have a floor; others that may not be fitted (`cut` says why) are
    left out.

    Args:
        kernels: the kernel classes of the implementation.
        exponentials: their number, or the reason why it was not derived.
        on: the board whose rates are floors.
    """
    left_out = UNFUSED if FUSED_ATTENTION in kernels else COMPULSORY
    wanted = {name: each for name, each in derived.items() if name != left_out}
    if missing := [each for each in wanted.values() if isinstance(each, str)]:
        return missing[0]
    known = [each for each in wanted.values() if isinstance(each, Derived)]
    usable = [value for value in values if value.cut in ("", LAUNCH_BOUND)]
    if not usable:
        return f"every value is left out: {'; '.join({value.cut: None for value in values})}"
    apart = None if isinstance(exponentials, str) else exponentials
    floors = floors_of(series, quantity, usable, known, on, apart)
    return floors if isinstance(floors, str) else departure(floors, usable)
