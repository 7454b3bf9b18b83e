"""The kinds of figures: which values each one shows, and how they are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from costmodel.backwards.candidates import candidate
from costmodel.backwards.crossover import Crossover, compared, figure_named, powers_of_two
from costmodel.backwards.curves import curves as curves_of, winners as winners_of
from costmodel.errors import SizeError
from costmodel.language.equations import Mixer
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import COLUMNS
from costmodel.program.chosen_sizes import Given
from costmodel.questions.question import Case, Figure
from profiler.plots import measured, on_boards, theory, waterfall
from profiler.plots.drawing import Draw, draw_bars, draw_lines, draw_regions
from profiler.plots.measured import PlotSelection
from profiler.plots.picture import Picture
from profiler.records.measurement import OF_CALLS, STATES, Measurement
from profiler.records.words import sizes_words


@dataclass(frozen=True)
class OfMixers:
    """A figure of theory.

    Args:
        by: a figure, or a column of a board: floor, predicted_time.
        over: one size, or two for a map.
        dtypes: element types of activations, state, weights and cache; None for the default.
        sizes: the sizes given; several values of a size in `over` are the ticks of its axis.
    """

    mixers: tuple[str | Mixer, ...]
    by: str = "total"
    over: tuple[str, ...] = ("l",)
    phase: str | None = None
    form: str | None = None
    convention: str = "strict"
    dtypes: tuple[str | None, str | None, str | None, str | None] = (None,) * 4
    sizes: Given = field(default_factory=dict)
    board: Board | None = None

    def __post_init__(self) -> None:
        """SizeError for a size in `over` that is tied to another one."""
        for letter in self.over:
            if isinstance(tied := self.sizes.get(letter), str):
                raise SizeError(
                    f"size {letter} is an axis of the plot, and is set equal to size {tied}: leave "
                    f"out {letter}={tied}, or plot over {tied}"
                )

    @property
    def figure(self) -> Figure:
        """The figure that is drawn."""
        return COLUMNS[self.by] if self.by in COLUMNS else figure_named(self.by)

    def at(self, over: str, **more: int) -> Crossover:
        """Compare the mixers over a size (the letter `over`) at the given sizes, those in `more`
        first; another letter of `self.over` has its default unless it is in `more`."""
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

    def called(self, found: Crossover, own: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
        """Candidate -> its entry in a legend: its name, which is the variant's name if that was
        typed, and its sizes in `own` that the name does not show: gqa (n = 8), mqa, gqa{n=4}."""
        typed = {}
        for name in self.mixers:
            mixer, form = candidate(name)
            bare = (name if isinstance(name, str) else name.name).removesuffix(f":{form}")
            if re.split("[+{]", bare)[0] in mixer.variants:
                typed[mixer.name] = bare
        entries = {}
        for one in found.candidates:
            mixer = one.about.mixer
            name = one.name.replace(mixer.name, typed.get(mixer.name, mixer.name), 1)
            sizes = {x: n for x, n in own.get(one.name, {}).items() if f"{x}={n}" not in name}
            entries[one.name] = f"{name} ({sizes_words(sizes)})" if sizes else name
        return entries

    def said(self, found: Crossover) -> tuple[str, ...]:
        """The words for a title of `found`: element types, the accounting (which operations count)
        and the board, each where the figure depends on it."""
        typed = self.figure.unit.endswith(("bytes", "/byte")) or self.figure.name in COLUMNS
        return (
            *([found.dtypes.caption] if typed and found.dtypes else []),
            *([self.convention] if self.convention != "strict" else []),
            *([self.board.title] if self.figure.name in COLUMNS and self.board else []),
        )

    def values(self, letter: str) -> tuple[int, ...]:
        """The values given for a size in `over`; () if none are."""
        given = self.sizes.get(letter, ())
        assert not isinstance(given, str)  # refused when this was made
        return given


@dataclass(frozen=True)
class OfRecords:
    """A figure of measurements."""

    records: Sequence[Measurement]
    selection: PlotSelection
    board: Board | None = None

    @property
    def chosen(self) -> list[Measurement]:
        """The records to draw; MeasureError if none is left."""
        return self.selection.kept(self.records)


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Args:
        of: whether the figure shows mixers by name, records, or either.
        values: the values of what is asked.
        draw: draws one panel.
    """

    name: str
    meaning: str
    of: tuple[Literal["mixers", "records"], ...]
    values: Callable[..., Picture]
    draw: Draw
    without: tuple[str, ...] = STATES
    """What the figure does not read of records."""


def curves(asked: OfMixers) -> Picture:
    """A figure of mixers over one size, whose curves are named as typed, with sizes that differ."""
    (over,) = asked.over
    found = asked.at(over)
    drawn = curves_of(found, asked.values(over), asked.board)
    called = asked.called(found, drawn.own)
    return theory.curve_picture(drawn, called, theory.mixers_of(found), asked.said(found))


def winners(asked: OfMixers) -> Picture:
    """Make the map of winners: the mixers of least figure over two sizes (x axis, then rows)."""
    over, across = asked.over
    values = asked.values(across) or powers_of_two(asked.at(across))
    rows = {value: asked.at(over, **{across: value}) for value in values}
    found = winners_of(rows, across, asked.values(over))
    one = rows[values[0]]
    called = asked.called(one, found.own)
    return theory.winner_picture(found, called, theory.mixers_of(one), asked.said(one))


def floors(asked: OfMixers | OfRecords) -> Picture:
    """Make the figure of floors (lower bounds of the time by each limit of a board) of mixers at
    the sizes asked for (128 where none is), or of measured calls. SizeError: a size does not fit a
    mixer."""
    if isinstance(asked, OfRecords):
        return on_boards.floors_of_records(asked.chosen, asked.board)
    asked = replace(asked, by="floor")
    (over,) = asked.over
    found = asked.at(over)
    types = found.dtypes
    called, cases = asked.called(found, {}), {}
    for one in found.candidates:
        for size in asked.values(over) or (128,):
            if size not in one.line.values:
                fitting = ", ".join(map(str, one.line.values[:3])) or "none"
                raise SizeError(
                    f"{over} = {size} is not allowed in {one.name}: the first allowed are {fitting}"
                )
            sizes = one.line.sizes(size)
            case = Case(one.about, sizes, symbolic=False, dtypes=types, board=asked.board)
            dtype = types.of(case.mixer.dtypes).name_of("activations")
            lead = f"{called[one.name]}, {theory.title_of(found.phase, sizes, (dtype,))}"
            cases[lead] = case
    return on_boards.floors_of_cases(cases, asked.board)


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("curves", "a figure over one size, with break-evens", ("mixers",), curves, draw_lines),
        Kind("winners", "who has the least, over two sizes", ("mixers",), winners, draw_regions),
        Kind(
            "measured", "time, memory and energy beside theory", ("records",),
            lambda asked: measured.picture(asked.records, asked.selection, asked.board), draw_lines,
            without=(*OF_CALLS, *STATES),
        ),
        Kind(
            "waterfall", "operations from equations to call, by cause", ("records",),
            lambda asked: waterfall.picture(asked.chosen), draw_bars,
        ),
        Kind(
            "roofline", "rates of calls below the limits of a board", ("records",),
            lambda asked: on_boards.roofline(asked.chosen, asked.board), draw_lines,
        ),
        Kind("floors", "the times that a board's limits set", ("mixers", "records"), floors,
             draw_bars),
    )
}  # fmt: skip
"""Name of a kind -> the kind."""
