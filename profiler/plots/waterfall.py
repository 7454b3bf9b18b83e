"""The values of a waterfall: from the operations of the equations to those of a call, by cause.

A *ladder* is one reconciled record; its *rungs* are the counts in `RUNGS`, each larger or smaller
than the one before by the operations of named causes and an unexplained rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profiler.plots.picture import Axis, Bar, Panel, Picture
from profiler.reconcile.ladder import ladders
from profiler.reconcile.levels import Ladder
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.words import PHASES, scaled, sizes_words

RUNGS: Mapping[str, str] = {
    "1": "equations",
    "2": "executed algorithm",
    "3": "dispatched",
    "4": "in the hardware",
}
"""Rung -> the name of its bar."""


def picture(records: Sequence[Measurement]) -> Picture:
    """A panel for each record that can be reconciled, one for records that differ in nothing that
    the panel shows, such as rounds of a sweep. Raises MeasureError: no record can be."""
    found, problems = ladders(records)
    if not found:
        raise MeasureError(f"nothing can be drawn: {'; '.join(problems)}")
    return Picture(tuple(dict.fromkeys(map(panel, found))), (), tuple(dict.fromkeys(problems)))


def panel(ladder: Ladder) -> Panel:
    """Make the panel with the waterfall of one ladder, the operations of a call from the equations
    to the hardware."""
    title = (
        f"{ladder.mixer} {ladder.implementation}, {PHASES[ladder.phase]}, "
        f"{sizes_words(ladder.sizes)}, {ladder.dtype} on {ladder.device}"
    )
    return Panel(title, Axis("operations"), bars=tuple(bars(ladder)))


def bars(ladder: Ladder) -> Iterator[Bar]:
    """Yield a bar for each known rung (the operations at one step from the equations to the
    hardware), and between two rungs one for each cause and for the unexplained rest."""
    known = [rung for rung in RUNGS if ladder.rungs[rung] is not None]
    for rung in known:
        total = sum(ladder.rungs[rung].values())
        yield Bar(RUNGS[rung], 0, total, words(total), total=True)
        if rung == known[-1]:
            return
        at = total
        for name, change in _changes(ladder, int(rung)):
            yield Bar(name, at, at + change, f"{'+-'[change < 0]}{words(abs(change))}")
            at += change


def _changes(ladder: Ladder, start: int) -> Iterator[tuple[str, int]]:
    """Yield (name, operations added) for each cause of the change from rung number `start` to the
    next, and for the rest without a cause."""
    for cause in ladder.causes:
        if cause.start == start:
            yield cause.name, sum(cause.counts.values())
    rest = sum(ladder.unexplained[f"{start}-{start + 1}"].values())
    if rest:
        yield "unexplained", rest


def words(number: float) -> str:
    """The text of a number of operations, with three digits and a prefix.

    >>> words(4_210_688), words(128)
    ('4.21 M', '128')
    """
    return scaled(number, "", 3).strip()
