"""The kinds of figures: which values each one shows, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from costmodel.backwards.crossover import Crossover, compared, figure_named, steps
from costmodel.backwards.curves import curves as curves_of, winners as winners_of
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import COLUMNS
from costmodel.program.chosen_sizes import Given
from costmodel.questions.question import Figure
from profiler.plots import measured, theory, waterfall
from profiler.plots.drawing import Draw, draw_bars, draw_lines, draw_regions
from profiler.plots.measured import PlotSelection
from profiler.plots.picture import Picture
from profiler.records.measurement import Measurement


@dataclass(frozen=True)
class OfMixers:
    """A figure of theory.

    Args:
        by: a figure, or a column of a board: floor, predicted_time.
        over: one size, or two for a map.
        dtypes: element types of activations, state, weights and cache; None for the default.
        sizes: the sizes given; several values of a size in `over` are the ticks of its axis.
    """

    mixers: tuple[str, ...]
    by: str = "total"
    over: tuple[str, ...] = ("l",)
    phase: str | None = None
    form: str | None = None
    convention: str = "strict"
    dtypes: tuple[str | None, str | None, str | None, str | None] = (None,) * 4
    sizes: Given = field(default_factory=dict)
    board: Board | None = None

    @property
    def figure(self) -> Figure:
        """The figure that is drawn."""
        return COLUMNS[self.by] if self.board and self.by in COLUMNS else figure_named(self.by)

    def at(self, over: str, **more: int) -> Crossover:
        """The mixers over a size, with `more` sizes given; other open sizes have their defaults."""
        others = {x: n for x, n in self.sizes.items() if x not in (over, *self.over, *more)}
        return compared(
            *self.mixers,
            figure=self.figure,
            over=over,
            phase=self.phase,
            form=self.form,
            convention=self.convention,
            dtypes=self.dtypes,
            sizes={**others, **more},
        )

    def said(self, found: Crossover) -> tuple[str, ...]:
        """The words for a title: element types, the accounting and the board, where they count."""
        typed = self.figure.unit.endswith(("bytes", "/byte")) or self.figure.name in COLUMNS
        return (
            *([found.dtypes.caption] if typed and found.dtypes else []),
            *([self.convention] if self.convention != "strict" else []),
            *([self.board.title] if self.figure.name in COLUMNS and self.board else []),
        )

    def values(self, letter: str) -> tuple[int, ...]:
        """The values given for a size; () if none are."""
        given = self.sizes.get(letter, ())
        return () if isinstance(given, str) else given


@dataclass(frozen=True)
class OfRecords:
    """A figure of measurements."""

    records: Sequence[Measurement]
    selection: PlotSelection


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Args:
        of: whether the figure shows mixers by name, or records.
        values: the values of what is asked.
        draw: draws one panel.
    """

    name: str
    meaning: str
    of: Literal["mixers", "records"]
    values: Callable[..., Picture]
    draw: Draw


def curves(asked: OfMixers) -> Picture:
    """A figure of mixers over one size."""
    (over,) = asked.over
    found = asked.at(over)
    drawn = curves_of(found, asked.values(over), asked.board)
    return theory.curve_picture(drawn, theory.mixers_of(found), asked.said(found))


def winners(asked: OfMixers) -> Picture:
    """The map of winners over two sizes."""
    over, across = asked.over
    values = asked.values(across) or steps(asked.at(across))
    rows = {value: asked.at(over, **{across: value}) for value in values}
    found = winners_of(rows, across, asked.values(over))
    one = rows[values[0]]
    return theory.winner_picture(found, theory.mixers_of(one), asked.said(one))


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("curves", "a figure over one size, with break-evens", "mixers", curves, draw_lines),
        Kind("winners", "who has the least, over two sizes", "mixers", winners, draw_regions),
        Kind(
            "measured", "time, memory and energy beside theory", "records",
            lambda asked: measured.picture(asked.records, asked.selection), draw_lines,
        ),
        Kind(
            "waterfall", "operations from equations to call, by cause", "records",
            lambda asked: waterfall.picture(asked.selection.kept(asked.records)), draw_bars,
        ),
    )
}  # fmt: skip
"""Name of a kind -> the kind."""
