"""The document that shows the plan of a sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence

from costmodel.program.phases import phase_name
from costmodel.report.document import Cell, Column, Document, Note, Table
from profiler.meters.sampler import LatencyLimits
from profiler.records.words import PHASES, sizes_words
from profiler.run.duration import estimate
from profiler.sweep.points import Block, Point
from profiler.sweep.results import MEASURED, Results

COLUMNS = (
    Column("mixer", "mixer", numeric=False, names=True),
    Column("implementation", "implementation", numeric=False, names=True),
    Column("phase", "phase", numeric=False, names=True),
    Column("dtype", "dtype", numeric=False),
    Column("sets of sizes", "sets of sizes"),
    Column("points", "points"),
    Column("measured", "measured"),
    Column("failed", "failed"),
    Column("left", "left"),
)


def document(
    blocks: Sequence[Block], results: Results | None, title: str, limits: LatencyLimits
) -> Document:
    """Make the document of a plan: a row per candidate with the number of its points, how many are
    done, and the time that the remaining points take at most, by the `limits` of a latency. JSON
    has every point, in the order of measurement. `results`: of the file; None without a file."""
    return Document(
        lambda: [table(blocks, results, title, limits)],
        data=lambda: {
            "points": [
                {"block": block.name, "state": state_of(point, results)} | json.loads(point.key)
                for block in blocks
                for point in block.points
            ]
        },
        rows=lambda: ([c.name for c in COLUMNS], table(blocks, results, title, limits).body),
    )


def table(
    blocks: Sequence[Block], results: Results | None, title: str, limits: LatencyLimits
) -> Table:
    """Make the table of a plan, a row per (mixer, implementation, phase, dtype) and one for all:
    the numbers of sets of sizes and of points, and of points measured, failed and left. `results`
    is None without a file; `limits` bound the time that the points left take, in a note."""
    groups: dict[tuple[str, str, str, str], list[Point]] = {}
    for point in (point for block in blocks for point in block.points):
        asked = point.request
        phase = PHASES[phase_name(asked.phase)]
        row = (asked.mixer.origin, asked.implementation.name, phase, asked.dtype)
        groups.setdefault(row, []).append(point)
    rows = [(*row, *numbers(points, results)) for row, points in sorted(groups.items())]
    every = [point for points in groups.values() for point in points]
    rows.append(("all", "", "", "", *numbers(every, results)))
    processes = 1 + max((point.process for point in every), default=0)
    each = f", in each of {processes} processes" if processes > 1 else ""
    said = f"points: sets of sizes, each once a round{each}"
    left = f"left: {left_words(blocks, results, limits)}"
    return Table(title, COLUMNS, tuple(rows), (Note((said,)), Note((left,))))


def left_words(blocks: Sequence[Block], results: Results | None, limits: LatencyLimits) -> str:
    """The number of points left to measure, and the time that they take at most."""
    points = [point for block in blocks for point in block.points]
    left = [p.request for p in points if results is None or not results.settled(p)]
    return estimate(left, limits)


def numbers(points: Sequence[Point], results: Results | None) -> tuple[Cell, ...]:
    """The cells with the numbers of sets of sizes, points, and points measured, failed and left."""
    states = [state_of(point, results) for point in points]
    left = sum(results is None or not results.settled(point) for point in points)
    measured = states.count(MEASURED)
    failed = sum(bool(state) and state != MEASURED for state in states)
    sets = len({sizes_words(point.request.sizes) for point in points})
    return (sets, len(points), measured, failed, left)


def state_of(point: Point, results: Results | None) -> str:
    """`MEASURED`, the kind of the point's failure, or "" if it was not tried."""
    return "" if results is None else results.state.get(point.key, "")
