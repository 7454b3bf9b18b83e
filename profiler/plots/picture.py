"""A figure as data: panels with their axes and values, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SIZES = "sizes"
"""The unit of an axis of sizes, which has a tick at powers of two or at the sizes drawn."""

HOLLOW = "hollow markers, no evidence on the work"
"""The words before the reasons why values are drawn hollow."""


@dataclass(frozen=True)
class Axis:
    """An axis: its name, the unit of its values in base units (s, B, J, "" for counts, `SIZES`),
    and the values that get a tick; () for the usual ticks."""

    name: str
    unit: str = ""
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Line:
    """Values of one name along x.

    Args:
        intervals: the (low, high) of each value; () for values without an interval.
        hollow: for each value whether it does not show the work (bound by launches); () for none.
        beside: whether the line is the theory beside the measured line of the same name.
        points: whether the values are single points, drawn without a line.
        limit: whether the line is a limit of a board, such as its peak rate.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] = ()
    hollow: tuple[bool, ...] = ()
    beside: bool = False
    points: bool = False
    limit: bool = False


@dataclass(frozen=True)
class Region:
    """A part of a map: the ends of x and of y, and the name of what holds there."""

    name: str
    x: tuple[float, float]
    y: tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """A bar of a waterfall, `start` to `end`, with `text` beside it; a `total` starts at zero."""

    name: str
    start: float
    end: float
    text: str
    total: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes with lines, regions or bars.

    Args:
        marks: places on the x axis that are marked, with a line and the number.
    """

    title: str
    x: Axis
    y: Axis = Axis("")
    lines: tuple[Line, ...] = ()
    regions: tuple[Region, ...] = ()
    bars: tuple[Bar, ...] = ()
    marks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Picture:
    """All of a figure.

    Args:
        notes: the sentences under the legend that explain the lines.
        missing: a sentence for everything that is not drawn.
        together: the number of panels that follow each other and belong side by side.
    """

    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    together: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of lines and regions, in the order in which they first occur."""
        named: Iterator[Line | Region] = (
            each for panel in self.panels for part in (panel.lines, panel.regions) for each in part
        )
        return tuple(dict.fromkeys(each.name for each in named))
