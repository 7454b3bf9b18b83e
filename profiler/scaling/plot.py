"""Plots latency, memory and energy against l and d, theory beside measurement.

One row of panels per quantity; one column per varied size and setting (phase, dtype, device and the
other sizes); columns that exceed the width continue below in bands. A series has one colour, one
marker and one line style; its measured values have their 95 % intervals as bars, and the thin line
of the same colour is the theory, scaled by the one constant that the legend names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from costmodel.program.phases import phase_name
from profiler.host.device import dtype_name
from profiler.records.measurement import Measurement
from profiler.records.quantities import COMPARED, MeasuredQuantity
from profiler.records.reading import MeasureError
from profiler.scaling.derived import LIVE, OPERATIONS, Predictions
from profiler.scaling.exponents import MeasuredValue
from profiler.scaling.floors import NO_JOULES, ScaledFloor, in_bytes, in_time
from profiler.scaling.series import (
    NO_INTERVAL,
    Series,
    has_nothing,
    in_no_series,
    series_of,
    without_value,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DRAWN = tuple({each.unit: each for each in reversed(COMPARED)}.values())[::-1]
"""The quantities of the rows, from the top: the first of each unit."""

THEORY: Mapping[str, str] = {"s": OPERATIONS, "J": OPERATIONS, "B": LIVE}
"""Unit of a quantity -> the derived quantity that is drawn beside it."""

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F",
)  # fmt: skip
"""Distinguishable with any colour vision: those of Okabe and Ito, "Color Universal Design" (2008),
with a brown in place of their yellow, which is too light for lines."""
SIGNS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")

WIDTH, AXES, EMPTY, ENTRY = 4.8, 3.4, 1.0, 0.13
"""Inches: width of a column, height of a row with and without values, height of a line of the
legend."""
BELOW = -0.16
"""Where the legend begins below the axes, in heights of the axes."""

MOST = 12
"""The largest number of columns in one figure."""

UNDATED: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""Metadata without dates, so that equal records give equal files."""

STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "costmodel",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 6,
}


@dataclass(frozen=True)
class PlotSelection:
    """The records to draw; an empty field excludes none."""

    along: tuple[str, ...] = ("l", "d")
    phases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Mixers, or MIXER:IMPLEMENTATION."""

    def kept(self, records: Sequence[Measurement]) -> list[Measurement]:
        """The records to draw.

        Raises:
            MeasureError: none is left, or an unknown dtype.
        """
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
            raise MeasureError(f"no record is left to draw: there are {'; '.join(there)}")
        return found

    @cached_property
    def _phases(self) -> set[str]:
        return {phase_name(name) for name in self.phases}

    @cached_property
    def _dtypes(self) -> set[str]:
        return {dtype_name(name) for name in self.dtypes}

    def _named(self, record: Measurement) -> bool:
        return record.mixer in self.names or f"{record.mixer}:{record.implementation}" in self.names


@dataclass(frozen=True)
class Panel:
    """One quantity in one setting: the series drawn, and the reasons for others."""

    quantity: MeasuredQuantity
    letter: str
    setting: str
    drawn: tuple[tuple[Series, tuple[MeasuredValue, ...]], ...]
    missing: Mapping[str, frozenset[str]]
    """Reason why records are not drawn -> their ids."""


def draw(records: Sequence[Measurement], asked: PlotSelection, output: Path) -> list[str]:
    """Write a figure; returns a sentence for everything that is left out.

    Equal records give equal files, byte by byte, with one version of matplotlib.

    Raises:
        MeasureError: nothing to draw, or too many panels for one figure.
    """
    columns, problems = panels(asked.kept(records), asked.along)
    if not columns:
        raise MeasureError(f"nothing can be drawn: {'; '.join(problems)}")
    if len(columns) > MOST:
        raise MeasureError(
            f"a figure holds at most {MOST} columns, not {len(columns)}: choose by --along, "
            f"--phase, --dtype or --only"
        )
    import matplotlib as mpl

    suffix = output.suffix.lower().lstrip(".")
    with mpl.rc_context(cast(Any, dict(STYLE))):
        figure = drawn_figure(columns, Colours(panel for column in columns for panel in column))
        figure.savefig(output, format=suffix, dpi=150, metadata=UNDATED[suffix])
    return [*problems, *not_drawn([panel for column in columns for panel in column])]


def not_drawn(shown: Sequence[Panel]) -> list[str]:
    """A sentence for each quantity and reason, with the number of records; per quantity, the most
    frequent reasons first."""
    lost: dict[tuple[str, str], set[str]] = {}
    for each in sorted(shown, key=lambda panel: DRAWN.index(panel.quantity)):
        for why, ids in each.missing.items():
            lost.setdefault((each.quantity.title, why), set()).update(ids)
    places = {title: place for place, (title, _) in enumerate(lost)}
    ranked = sorted(lost.items(), key=lambda item: (places[item[0][0]], -len(item[1]), item[0][1]))
    return [
        f"{title} of {len(ids):,} record{'s' if len(ids) != 1 else ''} is not drawn: {why}"
        for (title, why), ids in ranked
    ]


def panels(
    records: Sequence[Measurement], letters: Sequence[str]
) -> tuple[list[list[Panel]], list[str]]:
    """The columns of the figure, one for each letter and setting (what its series share), each with
    one panel per quantity; and sentences on letters without a series, and on records in none."""
    columns, problems = [], []
    for letter in letters:
        groups: dict[str, list[Series]] = {}
        along = series_of(records, letter)
        for series in along:
            groups.setdefault(series.setting_at(shared_sizes(along, series)), []).append(series)
        if groups or all(map(has_nothing, records)):
            problems += in_no_series(records, along, letter)
        else:
            problems.append(f"no two records differ in {letter} alone: no panel against {letter}")
        columns += [
            [panel(each, letter, setting, group) for each in DRAWN]
            for setting, group in groups.items()
        ]
    return columns, problems


def shared_sizes(along: Sequence[Series], series: Series) -> frozenset[str]:
    """The fixed sizes that decide which series share a panel: those common to all series of the
    same phase in which the same letters vary."""
    like = (each for each in along if each.phase == series.phase and each.moving == series.moving)
    return frozenset.intersection(*(frozenset(dict(each.fixed)) for each in like))


def panel(quantity: MeasuredQuantity, letter: str, setting: str, group: Sequence[Series]) -> Panel:
    """One panel: its drawn series, and the reasons for missing records."""
    found = [(series, tuple(v)) for series in group if (v := series.values(quantity))]
    missing = {why: frozenset(ids) for why, ids in without_value(group, quantity).items()}
    return Panel(quantity, letter, setting, tuple(found), missing)


class Colours:
    """The look of each series by its name, the same in every panel."""

    def __init__(self, shown: Iterator[Panel]) -> None:
        names = dict.fromkeys(series.name for panel in shown for series, _ in panel.drawn)
        self.place = {name: k for k, name in enumerate(names)}

    def of(self, name: str) -> dict[str, Any]:
        """Colour, marker and line style of a series, as keyword arguments of a plot."""
        k = self.place[name]
        line = LINES[k // len(COLOURS) % len(LINES)]
        return {
            "color": COLOURS[k % len(COLOURS)],
            "marker": SIGNS[k % len(SIGNS)],
            "linestyle": line,
        }


def drawn_figure(columns: Sequence[Sequence[Panel]], look: Colours) -> Figure:
    """The figure, with as many columns side by side as make its longer side shortest."""
    from matplotlib.figure import Figure

    across = min(range(1, len(columns) + 1), key=lambda n: max(inches(rows_of_panels(columns, n))))
    rows = rows_of_panels(columns, across)
    figure = Figure(figsize=inches(rows), layout="constrained")
    grid = figure.subplots(len(rows), across, squeeze=False, height_ratios=list(map(height, rows)))
    for j, row in enumerate(rows):
        for k, axes in enumerate(grid[j]):
            if k < len(row):
                draw_panel(axes, row[k], look, title=j % len(DRAWN) == 0)  # atop a band
            else:
                axes.remove()
    return figure


def rows_of_panels(columns: Sequence[Sequence[Panel]], across: int) -> list[list[Panel]]:
    """The rows of panels: `across` columns side by side form a band of one row per quantity, and
    further columns form bands below."""
    bands = [columns[k : k + across] for k in range(0, len(columns), across)]
    return [[column[j] for column in band] for band in bands for j in range(len(DRAWN))]


def height(row: Sequence[Panel]) -> float:
    """Inches of a row's axes."""
    return AXES if any(each.drawn for each in row) else EMPTY


def inches(rows: Sequence[Sequence[Panel]]) -> tuple[float, float]:
    """Width and height in inches of a figure of these rows, with the legends below them, in which
    each series has two lines: measurement and theory."""
    entries = sum(2 * max(len(each.drawn) for each in row) for row in rows)
    return WIDTH * max(map(len, rows)), sum(map(height, rows)) + ENTRY * entries


def draw_panel(axes: Axes, panel: Panel, look: Colours, *, title: bool) -> None:
    """Draw one panel, under its setting if `title`; if it would be empty, write the reasons."""
    if title:
        axes.set_title(folded(panel.setting, 56), fontsize=8)
    axes.set_xlabel(panel.letter)
    axes.set_ylabel(f"{panel.quantity.title} ({panel.quantity.unit})")
    if not panel.drawn:
        words = folded("not drawn: " + "; ".join(panel.missing), 44)
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=7)
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for series, values in panel.drawn:
        draw_measured(axes, series, values, look.of(series.name))
        draw_theory(axes, series, panel.quantity, values, look.of(series.name))
    sizes = sorted({value.size for _, values in panel.drawn for value in values})
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    for why in panel.missing:
        axes.plot([], [], alpha=0, label=folded(f"not drawn: {why}", 80))
    axes.legend(loc="upper left", bbox_to_anchor=(0, BELOW), borderaxespad=0, frameon=False)


def draw_measured(
    axes: Axes, series: Series, values: Sequence[MeasuredValue], look: dict[str, Any]
) -> None:
    """Draw values with their intervals; values that do not show the work are hollow."""
    xs, ys = [v.size for v in values], [v.value for v in values]
    bars = [
        [bar_length(v, v.value - v.low) for v in values],
        [bar_length(v, v.high - v.value) for v in values],
    ]
    cuts = dict.fromkeys(v.cut.partition(" (")[0] for v in values if v.cut)
    label = series.name + (f" (hollow: {' or '.join(cuts)})" if cuts else "")
    axes.errorbar(xs, ys, yerr=bars, label=label, markersize=3.5, capsize=2, linewidth=1, **look)
    hollow = [v for v in values if v.cut]
    if hollow:
        axes.plot(
            [v.size for v in hollow], [v.value for v in hollow], linestyle="none",
            marker=look["marker"], color=look["color"], markerfacecolor="white", markersize=3.5,
            zorder=5,
        )  # fmt: skip


def bar_length(value: MeasuredValue, length: float) -> float:
    """The length of a bar; 0 for a value without an interval."""
    return 0.0 if value.cut.startswith(NO_INTERVAL) else length


def draw_theory(
    axes: Axes,
    series: Series,
    quantity: MeasuredQuantity,
    values: Sequence[MeasuredValue],
    look: dict[str, Any],
) -> None:
    """Draw the derived quantity, divided by the best rate of the device to have the measured unit;
    if it is unknown, write the reason in the legend."""
    found = scaled_theory(series, quantity, values)
    if isinstance(found, str):
        axes.plot([], [], label=f"{series.name}: no theory ({folded(found, 60)})", alpha=0)
        return
    xs = sorted(found.at)
    label = f"{series.name}: {THEORY[quantity.unit]} at {found.constant}"
    axes.plot(
        xs, [found.at[x] for x in xs], color=look["color"], linewidth=0.7, alpha=0.7,
        linestyle=(0, (1, 1)), label=label,
    )  # fmt: skip


def scaled_theory(
    series: Series, quantity: MeasuredQuantity, values: Sequence[MeasuredValue]
) -> ScaledFloor | str:
    """The derived quantity of a panel at the best rate of the device, or the reason why there is
    none."""
    derived = Predictions(series).of(THEORY[quantity.unit])
    if isinstance(derived, str):
        return derived
    if quantity.unit == "B":
        return in_bytes(values, derived)
    return NO_JOULES if quantity.unit == "J" else in_time(series, values, derived)


def folded(text: str, width: int) -> str:
    """Text in lines of at most this many characters."""
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
