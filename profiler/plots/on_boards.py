"""The values of figures that hold calls against the limits of a board: rooflines, and the floors of
a call's time.

A *limit* is the peak rate of one kind of units, or the bandwidth of the memory; the *floor* of a
call's time by a limit is the time that the call would take if this limit alone held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from costmodel.errors import BoardError, Unanswered
from costmodel.prediction.boards import BY_DTYPE, Board
from costmodel.prediction.columns import NO_BOARD, limits, together
from costmodel.questions.question import Case
from profiler.plots.picture import HOLLOW, Axis, Bar, Line, Panel, Picture
from profiler.reconcile.cost import COMPARABLE
from profiler.reconcile.ladder import ladders
from profiler.reconcile.levels import Ladder
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.words import PHASES, scaled, sizes_words
from profiler.run.in_record import candidate_in_record
from profiler.run.lower_bounds import limits_on

Limits = Mapping[str, tuple[float, float]]
"""Name of a limit -> its highest operations a second, and bytes a second."""

Point = tuple[float, float, bool]
"""Of a call: operations for each byte, operations a second, and whether its marker is hollow."""

BESIDE = 4.0
"""How far the lines of a roofline reach beyond the outermost points, as a factor."""


def roofline(records: Sequence[Measurement], on: Board | None) -> Picture:
    """Make the figure of rooflines, a panel for each phase, element type and device of the records:
    the operations a second of each call over its operations for each compulsory byte, below the
    limits of a board (`on`), which the device need not be.

    Raises:
        MeasureError: no board is named, no record has time, bytes and operations, or no limit is
            known.
    """
    if on is None:
        raise MeasureError(NO_BOARD)
    found, problems = ladders(records)
    groups, undrawn = _drawable(found)
    missing, panels = [*problems, *undrawn], []
    for (phase, dtype, device), group in groups.items():
        title = f"{PHASES[phase]}, {dtype}, measured on {device}; limits of {on.title}"
        points = _points(group)
        try:
            panels.append(roofline_panel(title, points, _limits(dtype, on)))
        except BoardError as reason:
            missing.append(f"{title} is not drawn: {reason}")
    missing = list(dict.fromkeys(missing))
    if not panels:
        raise MeasureError(f"nothing can be drawn: {'; '.join(missing)}")
    verdicts = [ladder.rungs["5"]["verdict"] for group in groups.values() for ladder in group]
    hollow = dict.fromkeys(verdict for verdict in verdicts if verdict != COMPARABLE)
    notes = (f"{HOLLOW}: {'; '.join(hollow)}",) if hollow else ()
    return Picture(tuple(panels), notes, tuple(missing))


def _drawable(
    found: Sequence[Ladder],
) -> tuple[dict[tuple[str, str, str], list[Ladder]], list[str]]:
    """((phase, dtype, device) -> the ladders with time, bytes and operations; a sentence on each
    other ladder)."""
    groups: dict[tuple[str, str, str], list[Ladder]] = {}
    undrawn = []
    for ladder in found:
        # rung 5: measured seconds and bytes; rung 3: dispatched operations by class
        cost = ladder.rungs["5"]
        if cost["latency_s"] and cost["compulsory_bytes"] and sum(ladder.rungs["3"].values()):
            groups.setdefault((ladder.phase, ladder.dtype, ladder.device), []).append(ladder)
        else:
            reasons = [ladder.reasons.get(name) for name in ("latency_s", "compulsory_bytes")]
            why = next(filter(None, reasons), "no operation was dispatched")
            undrawn.append(f"{ladder.mixer} {ladder.implementation} is not drawn: {why}")
    return groups, undrawn


def roofline_panel(title: str, points: Mapping[str, Sequence[Point]], limits: Limits) -> Panel:
    """Make a panel of points (name -> for each call operations per byte, operations per second, and
    whether its marker is hollow), below the limits of a board (name -> peak rate in operations per
    second, bandwidth in bytes per second); a limit bends where its rate is reached."""
    all_x = [x for several in points.values() for x, _, _ in several]
    kinks = [rate / bandwidth for rate, bandwidth in limits.values()]
    low, high = min([*all_x, *kinks]) / BESIDE, max([*all_x, *kinks]) * BESIDE
    lines = [
        Line(name, (low, rate / bandwidth, high), (low * bandwidth, rate, rate), limit=True)
        for name, (rate, bandwidth) in limits.items()
    ]
    for name, several in points.items():
        xs, ys, hollow = zip(*sorted(several), strict=True)
        lines.append(Line(name, xs, ys, hollow=hollow, points=True))
    rate_axis = Axis("operations a second", "op/s")
    return Panel(title, Axis("operations for each compulsory byte"), rate_axis, lines=tuple(lines))


def _points(group: Sequence[Ladder]) -> dict[str, list[Point]]:
    """A dict: mixer and implementation -> a point for each of its calls: dispatched operations per
    compulsory byte, per second, and whether the time does not show the work (drawn hollow). Rung 3
    of a ladder has the dispatched operations, rung 5 time and bytes."""
    found: dict[str, list[Point]] = {}
    for ladder in group:
        executed, cost = sum(ladder.rungs["3"].values()), ladder.rungs["5"]
        rate = executed / cost["latency_s"]
        point = executed / cost["compulsory_bytes"], rate, cost["verdict"] != COMPARABLE
        found.setdefault(f"{ladder.mixer} {ladder.implementation}", []).append(point)
    return found


def _limits(dtype: str, on: Board) -> Limits:
    """A dict of a board's limits for a dtype: name -> the peak rate of one kind of units in
    operations per second, and the bandwidth of the memory in bytes per second.

    Raises:
        BoardError: the board has no bandwidth, or no rate in `dtype`.
    """
    # without any rate, that of matrices is asked for, so that the board's error names it
    units = [kind for kind in BY_DTYPE if f"{kind}.{dtype}" in on.figures] or ["matrix"]
    moved = on["memory_bandwidth"]
    return {f"peak of {kind} units, {dtype}": (on[f"{kind}.{dtype}"], moved) for kind in units}


NO_BAR = "no bar of the span, which is not known"


def floors_of_cases(cases: Mapping[str, Case], on: Board | None) -> Picture:
    """Make the figure of floors with a panel for each title and case: what each limit of the cases'
    board (`on`) alone takes, and the predicted time, at or above the longest.

    Raises:
        MeasureError: no case has limits.
    """
    panels, missing = [], []
    for title, case in cases.items():
        try:
            found = limits(case)
        except Unanswered as reason:
            missing.append((title, f"not drawn: {reason}"))
            continue
        try:
            predicted = together(case)["seconds"]
        except Unanswered as reason:
            missing.append((title, f"no predicted time: {reason}"))
            predicted = None
        if "span" not in found:
            missing.append((title, NO_BAR))
        panels.append(floor_panel(title, found, predicted, "predicted"))
    return _floors(panels, missing, on)


def floors_of_records(records: Sequence[Measurement], on: Board | None) -> Picture:
    """Make the figure of floors, with a panel for each record: a bar for the time that the call
    needs by each limit of the board alone (arithmetic, memory traffic, ...), and a bar for the
    measured time.

    Raises:
        MeasureError: no record has a time and limits, as without a board (`on` is None).
    """
    panels, missing = [], []
    for record in records:
        names = f"{record.mixer} {record.implementation}"
        title = f"{names}, {PHASES[record.phase]}, {sizes_words(record.sizes)}, "
        title += f"{record.dtype} on {record.device}"
        try:
            mixer, _ = candidate_in_record(record.mixer, record.implementation, record.form)
            found = limits_on(record, mixer, record.form or mixer.default_form, on)
        except (ValueError, Unanswered) as reason:  # ValueError: of the mixers' names
            missing.append((title, f"not drawn: {reason}"))
            continue
        if "latency" not in record.readings:
            missing.append((title, f"no time: {record.reason('latency')}"))
            continue
        if "span" not in found:
            missing.append((title, NO_BAR))
        latency = record.readings["latency"].value
        panels.append(floor_panel(title, found, latency, "measured"))
    return _floors(panels, missing, on)


def _floors(
    panels: Sequence[Panel], missing: Sequence[tuple[str, str]], on: Board | None
) -> Picture:
    """Make the figure of panels of floors by the limits of a board; `missing` has pairs (title of a
    panel, what it lacks and why). Raises MeasureError: there is no panel, as without a board."""
    lacking: dict[str, dict[str, None]] = {}
    for title, reason in missing:
        lacking.setdefault(reason, {})[title] = None
    said = [
        f"{title}{f', and {len(more)} more' if more else ''}: {reason}"
        for reason, (title, *more) in lacking.items()
    ]
    if not panels or on is None:
        raise MeasureError(f"nothing can be drawn: {'; '.join(said)}")
    note = (
        f"limits of {on.title}: each limit alone takes its time; they overlap and are not added; "
        "the longest is the floor"
    )
    return Picture(tuple(panels), (note,), tuple(said))


def floor_panel(title: str, found: Mapping[str, float], whole: float | None, name: str) -> Panel:
    """The panel of a call's floors `found` (limit -> seconds), the longest last; with the call's
    time `whole`, also of the rest above the longest floor and of the time, called `name`."""
    return Panel(title, Axis("time", "s"), bars=tuple(_floor_bars(found, whole, name)))


def _floor_bars(found: Mapping[str, float], whole: float | None, name: str) -> Iterator[Bar]:
    """Yield a bar for each floor (a limit's seconds in `found`), from zero; and, if the time
    `whole` is known, one for the rest above the longest floor and one for the time, called
    `name`."""
    ranked = sorted(found, key=lambda limit: found[limit])
    for limit in ranked:
        longest = limit == ranked[-1]
        words = f"{limit}: binds" if longest else limit
        share = f", {found[limit] / whole:.0%}" if longest and whole else ""
        yield Bar(words, 0.0, found[limit], scaled(found[limit], "s", 3) + share, total=longest)
    if whole is None:
        return
    floor = found[ranked[-1]]
    rest = whole - floor
    sign = "+" if rest >= 0 else "-"
    yield Bar("above the floor", floor, whole, f"{sign}{scaled(abs(rest), 's', 3)}")
    yield Bar(name, 0.0, whole, scaled(whole, "s", 3), total=True)
