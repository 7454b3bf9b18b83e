"""The values of figures of records: time, memory and energy against sizes, beside theory.

A *series* holds the records of one implementation that differ in one size alone; a *setting* is
what the series of a panel share: phase, dtype, device and the other sizes. A setting has a panel
for each quantity that was measured. A series has its measured values with their 95 % intervals, and
the theory, scaled by the one constant that the notes name. *Cut* values, such as those bound by
launches, do not show the growth of the work, and are drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.prediction.boards import Board
from costmodel.program.phases import phase_name
from costmodel.symbolic.sizes import LETTERS
from profiler.plots.picture import HOLLOW, SIZES, Axis, Line, Panel, Picture
from profiler.records.element_types import dtype_name
from profiler.records.measurement import Measurement
from profiler.records.quantities import COMPARED, MeasuredQuantity
from profiler.records.reading import MeasureError
from profiler.scaling.derived import LIVE, OPERATIONS, Predictions
from profiler.scaling.exponents import MeasuredValue
from profiler.scaling.floors import NO_JOULES, ScaledFloor, in_bytes, in_time
from profiler.scaling.series import NO_INTERVAL, Series, in_no_series, series_of, without_value

DRAWN = tuple({each.unit: each for each in reversed(COMPARED)}.values())[::-1]
"""The quantities drawn, one panel each: the first of each unit."""

THEORY: Mapping[str, str] = {"s": OPERATIONS, "J": OPERATIONS, "B": LIVE}
"""Unit of a quantity -> the derived quantity that is drawn beside it."""


@dataclass(frozen=True)
class PlotSelection:
    """The records to draw; an empty field excludes none."""

    along: tuple[str, ...] = ("l", "d")
    phases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Mixers, or MIXER:IMPLEMENTATION."""

    def kept(self, records: Sequence[Measurement]) -> list[Measurement]:
        """The records, failures too, of a chosen phase, a chosen dtype and a chosen name. Raises
        MeasureError: no record is left, or an unknown dtype; ValueError: an unknown phase."""
        phases, dtypes = self._phases, self._dtypes
        found = [
            record
            for record in records
            if (not phases or record.phase in phases)
            and (not dtypes or record.dtype in dtypes)
            and (not self.names or self._named(record))
        ]
        if not found:
            there = sorted({f"{r.mixer}:{r.implementation}, {r.phase}, {r.dtype}" for r in records})
            raise MeasureError(
                f"no record has the chosen mixer, phase and dtype: there are {'; '.join(there)}"
            )
        return found

    @cached_property
    def _phases(self) -> set[str]:
        """The chosen phases by the names that records have, for aliases too (decode: inference)."""
        return {phase_name(name) for name in self.phases}

    @cached_property
    def _dtypes(self) -> set[str]:
        """The chosen element types by their short names (float32: fp32)."""
        return {dtype_name(name) for name in self.dtypes}

    def _named(self, record: Measurement) -> bool:
        return record.mixer in self.names or f"{record.mixer}:{record.implementation}" in self.names


def picture(
    records: Sequence[Measurement], asked: PlotSelection, on: Board | None = None
) -> Picture:
    """Make the figure of the records that `asked` selects: for each letter on x and each setting
    (the sizes and options that the series of a panel share), a panel for each measured quantity,
    with predictions for the board `on` beside. Notes name what is derived, and which points are
    drawn hollow.

    Raises:
        MeasureError: no record is left, or nothing can be drawn.
    """
    records = asked.kept(records)
    missing: list[str] = []
    lost: dict[tuple[str, str], set[str]] = {}  # (quantity, why) -> ids of records without it
    without: dict[str, dict[str, None]] = {}  # why -> series without theory
    notes: dict[str, dict[str, None]] = {"derived": {}, HOLLOW: {}}
    panels: list[Panel] = []
    for letter in asked.along:
        groups: dict[str, list[Series]] = {}
        along = series_of(records, letter)
        for series in along:
            groups.setdefault(series.setting_at(shared_sizes(along, series)), []).append(series)
        if groups or all(record.failed for record in records):
            missing += in_no_series(records, along, letter)
        else:
            missing.append(f"no two records differ in {letter} alone: no panel against {letter}")
        for setting, group in groups.items():
            for quantity in DRAWN:
                for why, ids in without_value(group, quantity).items():
                    lost.setdefault((quantity.title, why), set()).update(ids)
                lines = _lines(group, quantity, on, notes, without)
                sizes = sorted({x for line in lines if not line.beside for x in line.x})
                if lines:
                    x = Axis(f"{LETTERS[letter].meaning}, {letter}", SIZES, tuple(sizes))
                    y = Axis(quantity.title, quantity.unit)
                    panels.append(Panel(setting, x, y, lines=tuple(lines)))
    missing += _words(lost)
    missing += [f"no theory beside {', '.join(names)}: {why}" for why, names in without.items()]
    if not panels:
        raise MeasureError(f"nothing can be drawn: {'; '.join(missing)}")
    said = tuple(f"{lead}: {'; '.join(parts)}" for lead, parts in notes.items() if parts)
    together = len({panel.y.name for panel in panels})  # a setting's panels stand side by side
    return Picture(tuple(panels), said, tuple(missing), together)


def _lines(
    group: Sequence[Series],
    quantity: MeasuredQuantity,
    on: Board | None,
    notes: Mapping[str, dict[str, None]],
    without: dict[str, dict[str, None]],
) -> list[Line]:
    """Make a panel's lines of a quantity of the series `group`: measured values, hollow where they
    do not show the work (`cut` says why, as for a call bound by launches), and theory. Adds these
    reasons and theory's constants (rates) to `notes`, and to `without[reason]` the series without
    theory."""
    found: list[Line] = []
    for series in group:
        values = series.values(quantity)
        if not values:
            continue
        xs, ys = tuple(v.size for v in values), tuple(v.value for v in values)
        cut = tuple(bool(v.cut) for v in values)
        found.append(Line(series.name, xs, ys, tuple(map(_ends, values)), cut))
        notes[HOLLOW] |= dict.fromkeys(v.cut.partition(" (")[0] for v in values if v.cut)
        theory = scaled_theory(series, quantity, values, on)
        if isinstance(theory, str):
            of = f"{quantity.title} of {series.name}"
            without.setdefault(theory, {})[of] = None
            continue
        at = sorted(theory.at)
        found.append(Line(series.name, tuple(at), tuple(theory.at[x] for x in at), beside=True))
        of = f"{THEORY[quantity.unit]} at" if theory.source else theory.name
        notes["derived"][f"{of} {theory.constant}"] = None
    return found


def _ends(value: MeasuredValue) -> tuple[float, float]:
    """The (low, high) of a value's interval; without an interval, the value as both."""
    bare = value.cut.startswith(NO_INTERVAL)
    return (value.value, value.value) if bare else (value.low, value.high)


def _words(lost: Mapping[tuple[str, str], set[str]]) -> list[str]:
    """A sentence for each (quantity, reason) in `lost` why a value is not drawn, with the number of
    its records; per quantity, the most frequent reasons first."""
    places = {quantity.title: place for place, quantity in enumerate(DRAWN)}
    ranked = sorted(lost.items(), key=lambda item: (places[item[0][0]], -len(item[1]), item[0][1]))
    return [
        f"{title} of {len(ids):,} record{'s' if len(ids) != 1 else ''} is not drawn: {why}"
        for (title, why), ids in ranked
    ]


def shared_sizes(along: Sequence[Series], series: Series) -> frozenset[str]:
    """The fixed sizes that decide which series share a panel: those common to all series of the
    same phase in which the same letters vary."""
    like = (each for each in along if each.phase == series.phase and each.moving == series.moving)
    return frozenset.intersection(*(frozenset(dict(each.fixed)) for each in like))


def scaled_theory(
    series: Series, quantity: MeasuredQuantity, values: Sequence[MeasuredValue], on: Board | None
) -> ScaledFloor | str:
    """The derived quantity beside the measured `values` of a series: bytes and times scaled by one
    constant, such as a rate of the board (`on`); or the reason why there is none."""
    derived = Predictions(series).of(THEORY[quantity.unit])
    if isinstance(derived, str):
        return derived
    if quantity.unit == "B":
        return in_bytes(values, derived)
    return NO_JOULES if quantity.unit == "J" else in_time(series, values, derived, on)
