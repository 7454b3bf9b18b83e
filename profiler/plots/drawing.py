"""Draws a figure: panels of one size, one legend below them, and a file that repeats to the byte.

Each name has one colour, marker and line style, so that a figure can be read in grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from profiler.plots.picture import SIZES, Axis, Bar, Line, Panel, Picture

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F",
)  # fmt: skip
"""Distinguishable with any colour vision: those of Okabe and Ito, "Color Universal Design" (2008),
with a brown in place of their yellow, which is too light for lines."""
SIGNS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "p")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---", "|||", "***", "OO")
"""The numbers of colours, markers and line styles, and of colours and hatches, have no common
divisor: names of one colour differ in marker, line style and hatch."""

WIDEST, LOW = 3.4, 2.4
"""Inches: the width of a panel where no width is given, and the least width at which two panels
stand side by side."""
SQUARE, BAR = 0.72, 0.17
"""The height of a panel of lines or regions in widths, and the height of a bar in inches."""
BESIDE = 1.1
"""Inches that title, ticks and names take from a panel's height."""
LABELS, TICKS = 1.3, 0.65
"""Inches to the left of a panel: for the names of bars, and for the ticks and name of a y axis."""
CROWDED = 60
"""The number of values of a line above which only some have a marker, or all points a small one."""
BETWEEN = 0.1
"""The distance between two markers of a crowded line, in diagonals of the panel."""
MOST = 24
"""The largest number of panels in one figure."""
SMALL, NORMAL = 6.5, 7.5
"""Points: the size of ticks, legend and notes, and that of titles and names of axes."""
EM = 0.55
"""The mean width of a character in heights of the type."""
TICK = 0.36
"""Inches: the least distance between two labelled ticks of an x axis."""
ROWS = 12
"""The number of labelled ticks of a y axis of sizes, at most."""
APART = 0.1
"""Inches: the least distance between two numbers of marks, which stand upright if they are closer
than `TICK`."""

UNDATED: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""Metadata without dates, so that equal figures give equal files."""

STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "costmodel",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # venues refuse the outlines of type 3
    "font.size": SMALL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "axes.formatter.use_mathtext": True,
}

Draw = Callable[["Axes", Panel, "Look"], None]


class Look:
    """The colour, marker, line and hatch of each name, the same in every panel; they follow from
    the place of the name in `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.place = {name: k for k, name in enumerate(names)}

    def line(self, name: str) -> dict[str, Any]:
        """The colour, marker and line style of a name, as keywords of matplotlib's `plot`."""
        k = self.place[name]
        return {
            "color": COLOURS[k % len(COLOURS)],
            "marker": SIGNS[k % len(SIGNS)],
            "linestyle": LINES[k % len(LINES)],
            "markersize": 4.4 - 0.4 * (k % 6),  # so that a line shows beside another on its place
            "linewidth": 1.5 - 0.15 * (k % 6),
        }

    def region(self, name: str) -> dict[str, Any]:
        """The colour and hatch of a name, as keyword arguments of a matplotlib patch."""
        k = self.place[name]
        return {
            "facecolor": COLOURS[k % len(COLOURS)] + "66",
            "edgecolor": COLOURS[k % len(COLOURS)],
            "hatch": HATCHES[k % len(HATCHES)],
            "linewidth": 0.0,
        }


def shortened(picture: Picture) -> Picture:
    """The picture with the first `MOST` of its panels; a sentence of `missing` tells of others."""
    number = len(picture.panels)
    if number <= MOST:
        return picture
    said = (
        f"drawn are the first {MOST} of {number} panels: for others, name mixers and sizes, or "
        "choose records by --only, --phase, --dtype or --over"
    )
    return replace(picture, panels=picture.panels[:MOST], missing=(*picture.missing, said))


def write(picture: Picture, draw: Draw, output: Path, width: float | None = None) -> None:
    """Write a figure to a file, whose suffix is one of `FORMATS`.

    Args:
        draw: draws one panel.
        width: inches; by default as many panels side by side as make the longer side shortest.

    Equal pictures give equal files, byte by byte, with one version of matplotlib.
    """
    import matplotlib as mpl

    suffix = output.suffix.lower().lstrip(".")
    with mpl.rc_context(cast(Any, dict(STYLE))):
        figure = drawn(picture, draw, width)
        figure.savefig(output, format=suffix, dpi=300, metadata=UNDATED[suffix])


def grid(picture: Picture, width: float | None) -> tuple[int, int, float, float]:
    """Lay out a figure's panels: return the number of rows, the panels in a row, and in inches the
    width of the figure and the height of a panel. `width`: the figure's width in inches, in which
    as many panels stand side by side as have the width `LOW`; None: as many panels of the width
    `WIDEST` as make the longer side shortest."""
    number = len(picture.panels)

    def height(wide: float) -> float:
        bars = max((len(panel.bars) for panel in picture.panels), default=0)
        return BESIDE + BAR * bars if bars else BESIDE + SQUARE * (wide - BESIDE)

    # panels in a row: 1, or a multiple of the number of panels that belong side by side
    beside = [n for n in range(1, number + 1) if n == 1 or n % picture.together == 0] or [1]
    if width is None:
        across = min(beside, key=lambda n: max(n * WIDEST, ceil(number / n) * height(WIDEST)))
        width = across * WIDEST
    else:
        across = max(n for n in beside if n == 1 or n * LOW <= width)
    return ceil(number / across), across, width, height(width / across)


def drawn(picture: Picture, draw: Draw, width: float | None = None) -> Figure:
    """Draw a figure and return it: its panels in a grid, each by the function `draw`, and below
    them its legend and notes, for which the figure grows. `width`: inches; None chooses it;
    `look` gives each name one colour and marker in all panels."""
    from matplotlib.figure import Figure

    rows, across, wide, high = grid(picture, width)
    look = Look(picture.names)
    figure = Figure(figsize=(wide, rows * high), layout="constrained")
    places = figure.subplots(rows, across, squeeze=False).ravel()
    for axes, panel in zip(places, picture.panels, strict=False):
        room = wide / across - (LABELS if panel.bars else TICKS)
        axes.set_title(folded(panel.title, room, NORMAL), fontsize=NORMAL, loc="left")
        axes.set_xlabel(panel.x.name)
        axes.set_ylabel(panel.y.name)
        draw(axes, panel, look)
    for axes in places[len(picture.panels) :]:
        axes.remove()
    below = _legend(figure, picture, look, wide)
    if below:
        figure.set_size_inches(wide, rows * high + below)
    return figure


def _legend(figure: Figure, picture: Picture, look: Look, wide: float) -> float:
    """Draw the legend of all panels, in as many columns, up to 6, as fit into `wide` inches, and
    the notes below the figure; returns the height of both in inches, 0 without either."""
    handles = _handles(picture, look)
    notes = "\n".join(folded(note, wide - 0.2, SMALL) for note in picture.notes)
    if not handles and not notes:
        return 0.0
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    entries: dict[str, Any] = {
        "handles": handles,
        "labels": [folded(str(each.get_label()), wide - 0.6, SMALL) for each in handles],
        "frameon": False,
        "handlelength": 2.8,
        "title": notes or None,
        "title_fontsize": SMALL,
    }
    if not handles:
        blank = Line2D([], [], linestyle="none")
        entries |= {"handles": [blank], "labels": [notes], "title": None, "handlelength": 0.0}
    trial = Figure(figsize=(wide, 1.0))  # without the panels, whose layout takes long
    for columns in range(max(1, min(len(handles), 6)), 0, -1):
        legend = trial.legend(**entries, ncols=columns)
        trial.draw_without_rendering()
        box = legend.get_window_extent()
        legend.remove()
        if box.width <= wide * trial.dpi:
            break
    figure.legend(**entries, ncols=columns, loc="outside lower center")
    return float(box.height / trial.dpi) + 0.08


def _handles(picture: Picture, look: Look) -> list[Artist]:
    """Make the legend's entries: one for each name (a patch for a region, a line in the look of a
    limit for a limit, a marker alone for points), and one for derived lines if there are any."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Artist] = []
    regions = {region.name for panel in picture.panels for region in panel.regions}
    lines = [line for panel in picture.panels for line in panel.lines]
    points = {line.name for line in lines if line.points}
    ends = {line.name for line in lines if line.limit}
    for name in picture.names:
        if name in regions:
            found.append(Patch(label=name, **look.region(name)))
        else:
            style = look.line(name) | ({"linestyle": "none"} if name in points else {})
            style |= LIMIT_LOOK if name in ends else {}
            found.append(Line2D([], [], label=name, **style))
    if any(line.beside for line in lines):
        found.append(Line2D([], [], label="derived: same marker", color="0.3", **BESIDE_LOOK))
    return found


LIMIT_LOOK = {"color": "0.2", "marker": "none", "linewidth": 1.2}
"""The look of a limit, beside the line style of its name."""

BESIDE_LOOK: Mapping[str, Any] = {"linewidth": 0.8, "linestyle": (0, (1, 1)), "markersize": 2.2}
"""The look of theory beside measurement, whose last value has the marker of the measurement."""


def draw_lines(axes: Axes, panel: Panel, look: Look) -> None:
    """Draw a panel's lines, intervals and marks (places on x) on two logarithmic axes. Theory
    (`beside`) has the measured line's colour and a marker at its end; `points` are not joined; a
    line of over `CROWDED` values has few markers, empty where `hollow` (bound by launches, ...)."""
    for line in panel.lines:
        style = look.line(line.name)
        if line.beside:
            same = {"color": style["color"], "marker": style["marker"]}
            axes.plot(line.x, line.y, **{**BESIDE_LOOK, **same}, markevery=[-1])
            continue
        if line.points:
            style["linestyle"] = "none"
        if len(line.x) > CROWDED and line.points:
            style |= {"markersize": 1.0, "markeredgewidth": 0.0}
        elif len(line.x) > CROWDED:
            # (first marker, distance), as shares of the diagonal: first markers stand apart
            place = look.place[line.name]
            style["markevery"] = (BETWEEN * (place % len(LINES)) / len(LINES), BETWEEN)
        if line.limit:
            style |= LIMIT_LOOK
        if line.intervals:
            pairs = list(zip(line.y, line.intervals, strict=True))
            bars = [[y - low for y, (low, _) in pairs], [high - y for y, (_, high) in pairs]]
            axes.errorbar(line.x, line.y, yerr=bars, capsize=1.5, elinewidth=0.7, **style)
        else:
            axes.plot(line.x, line.y, **style)
        _hollow(axes, line, style)
    _scale(axes, "x", panel.x)
    _scale(axes, "y", panel.y)
    if panel.marks:
        _mark(axes, panel)


def _hollow(axes: Axes, line: Line, style: Mapping[str, Any]) -> None:
    """Draw white markers over measured values that do not show the work (`line.hollow`)."""
    places = [(x, y) for x, y, no in zip(line.x, line.y, line.hollow, strict=False) if no]
    if places:
        axes.plot(
            [x for x, _ in places], [y for _, y in places], linestyle="none", zorder=5,
            marker=style["marker"], color=style["color"], markerfacecolor="white",
        )  # fmt: skip


def draw_regions(axes: Axes, panel: Panel, look: Look) -> None:
    """Draw a map over two sizes: the panel's rectangles, one or more, each in the look of its name,
    on logarithmic axes that end where the rectangles end."""
    from matplotlib.patches import Rectangle

    for region in panel.regions:
        (left, right), (bottom, top) = region.x, region.y
        place = (left, bottom), right - left, top - bottom
        axes.add_patch(Rectangle(*place, **look.region(region.name)))
    ends = [(*region.x, *region.y) for region in panel.regions]
    axes.set_xlim(min(e[0] for e in ends), max(e[1] for e in ends))
    axes.set_ylim(min(e[2] for e in ends), max(e[3] for e in ends))
    axes.grid(visible=False)
    _scale(axes, "x", panel.x)
    _scale(axes, "y", panel.y)


def draw_bars(axes: Axes, panel: Panel, look: Look) -> None:
    """Draw a waterfall from the top: totals from zero, between them what is added or taken away. A
    thin line joins the end of a bar to the next bar where they touch."""
    largest = max((abs(x) for bar in panel.bars for x in (bar.start, bar.end)), default=0.0) or 1.0
    least = min(0.0, *(min(bar.start, bar.end) for bar in panel.bars))
    for k, bar in enumerate(panel.bars):
        axes.barh(k, bar.end - bar.start, left=bar.start, height=0.7, **_bar_look(bar))
        if k + 1 < len(panel.bars) and bar.end in (panel.bars[k + 1].start, panel.bars[k + 1].end):
            axes.plot([bar.end] * 2, [k - 0.35, k + 1.35], color="0.4", linewidth=0.5)
        axes.annotate(
            bar.text, (max(bar.start, bar.end), k), xytext=(2, 0), textcoords="offset points",
            va="center", fontsize=SMALL - 0.5,
        )  # fmt: skip
    axes.set_yticks(range(len(panel.bars)), [folded(b.name, LABELS, SMALL) for b in panel.bars])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlim(least, largest + 0.42 * (largest - least))
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(_formatter(panel.x))
    axes.locator_params(axis="x", nbins=4)


def _bar_look(bar: Bar) -> dict[str, Any]:
    """The look of a bar as keyword arguments of matplotlib's `barh`: a total is dark; what is added
    is light, and what is taken away is hatched."""
    if bar.total:
        return {"color": "0.35"}
    if bar.end >= bar.start:
        return {"facecolor": COLOURS[5], "edgecolor": "0.2", "linewidth": 0.5}
    return {"facecolor": "white", "edgecolor": COLOURS[1], "linewidth": 0.5, "hatch": "////"}


def _scale(axes: Axes, of: str, axis: Axis) -> None:
    """Make axis `of` ("x" or "y") logarithmic. Ticks: of sizes such as l, those of `axis` that have
    room for labels; else powers of ten with units (in a narrow range also 2 and 5 times these)."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    scale = axes.set_xscale if of == "x" else axes.set_yscale
    scale("log", base=2 if axis.unit == SIZES else 10)
    one = axes.xaxis if of == "x" else axes.yaxis
    low, high = axes.get_xlim() if of == "x" else axes.get_ylim()
    decades = log10(high / low)
    if axis.unit == SIZES:
        inches = axes.get_window_extent().width / axes.figure.dpi * 0.8
        ticks = _thinned(axis.ticks, decades * (TICK / inches if of == "x" else 1 / ROWS))
        one.set_ticks(ticks, size_words(ticks))
        one.set_minor_locator(NullLocator())
        return
    subs = (1.0, 2.0, 5.0) if decades < 1.3 else (1.0,)
    one.set_major_locator(LogLocator(base=10, subs=subs))
    one.set_major_formatter(_formatter(axis))
    one.set_minor_formatter(NullFormatter())


def _formatter(axis: Axis) -> Any:
    """Make the formatter of an axis's ticks, which writes values with the prefix of their unit: 20
    µs, 5 MB, 3 G; fractions without unit as such."""
    from matplotlib.ticker import EngFormatter, FuncFormatter

    usual = EngFormatter(unit=axis.unit)
    if axis.unit:
        return usual
    return FuncFormatter(lambda x, _: f"{x:g}" if 1e-4 <= abs(x) < 1 else usual.format_eng(x))


def _thinned(ticks: Sequence[float], gap: float) -> list[float]:
    """The first of the ticks, and each later tick whose decimal logarithm is at least `gap` above
    that of the tick kept before."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or log10(tick / kept[-1]) >= gap:
            kept.append(tick)
    return kept


def _mark(axes: Axes, panel: Panel) -> None:
    """Draw a line at each mark, and its number above the panel; close numbers stand upright, and of
    numbers that would overlap the first stands there."""
    low, high = axes.get_xlim()
    inch = log10(high / low) / (axes.get_window_extent().width / axes.figure.dpi * 0.8)
    shown: list[float] = []
    for mark in panel.marks:
        axes.axvline(mark, color="0.45", linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
        if not shown or log10(mark / shown[-1]) >= APART * inch:
            shown.append(mark)
    gaps = [log10(two / one) / inch for one, two in pairwise(shown)]
    above = axes.secondary_xaxis("top")
    above.set_xscale("log", base=2)
    upright = min(gaps, default=TICK) < TICK
    above.set_xticks(shown, [f"{mark:,}" for mark in shown], rotation=90 if upright else 0)
    above.set_xticks([], minor=True)
    above.tick_params(length=2)


def size_words(sizes: Sequence[float]) -> list[str]:
    """The texts of the sizes on an axis: if one is beyond 99,999 and all are powers of two, all as
    powers, to be short.

    >>> size_words([256, 4096]), size_words([256, 2**20]), size_words([256, 100_000])
    (['256', '4,096'], ['$2^{8}$', '$2^{20}$'], ['256', '100,000'])
    """
    found = [int(size) for size in sizes]
    powers = [size.bit_length() - 1 for size in found]
    if max(found, default=0) > 99_999 and found == [2**power for power in powers]:
        return [f"$2^{{{power}}}$" for power in powers]
    return [f"{size:,}" for size in found]


def folded(text: str, inches: float, points: float) -> str:
    """The text folded into lines of at most this many inches, at a type size of `points`; `d = 128`
    stays together.

    >>> folded("forward pass, b = 1, d = 128", 1.0, 7.5).splitlines()
    ['forward pass,', 'b\\xa0=\\xa01, d\\xa0=\\xa0128']
    """
    width = max(8, int(inches * 72 / (points * EM)))
    return "\n".join(textwrap.wrap(text.replace(" = ", "\u00a0=\u00a0"), width))
