"""How do measurements, ladders and proofs read in each format: terminal, markdown, LaTeX, CSV,
JSON?"""

from __future__ import annotations

import json
from collections.abc import Sequence

from costmodel import render
from costmodel.check import Proof
from costmodel.render import Column, Grid, Line
from profiler.ladders.ladder import Ladder
from profiler.ladders.report_ladders import csv_ladder, ladder_grids
from profiler.report_measurements import csv_readings, measurement_grids
from profiler.store import Measurement

LEAD = ("mixer", "implementation", "form", "phase", "sizes", "dtype", "device")
"""The columns of CSV that say what a row is about."""


def measurements(
    found: Sequence[Measurement],
    format_: str,
    command: str,
    width: int | None = None,
    *,
    colour: bool = False,
) -> str:
    """Measurements in one of the formats rich, markdown, latex, csv, json.

    CSV has a row for each reading, in SI units, and a row with the reason for each missing one.
    """
    if format_ == "json":
        records = [m.to_json() for m in found]
        return json.dumps({"schema": 1, "measurements": records}, indent=1) + "\n"
    if format_ == "csv":
        header = (*LEAD, "reading", "value", "unit", "samples", "reason")
        return render.as_csv(header, [row for m in found for row in csv_readings(m)])
    return _text(measurement_grids(found), format_, command, width, colour=colour)


def ladders(
    found: Sequence[Ladder],
    format_: str,
    command: str,
    width: int | None = None,
    *,
    colour: bool = False,
) -> str:
    """Ladders in one of the formats rich, markdown, latex, csv, json (schema 1).

    CSV has a row for each class of each rung, cause and unexplained rest, for each peer's figures,
    and for each cost in its own unit; what was not measured is a row with its reason.
    """
    if format_ == "json":
        return json.dumps({"schema": 1, "ladders": [x.to_json() for x in found]}, indent=1) + "\n"
    if format_ == "csv":
        header = (*LEAD, "rung", "entry", "quantity", "value", "reason")
        return render.as_csv(header, [row for x in found for row in csv_ladder(x)])
    return _text(ladder_grids(found), format_, command, width, colour=colour)


def proofs(
    name: str,
    found: Sequence[Proof],
    format_: str,
    width: int | None = None,
    *,
    colour: bool = False,
) -> str:
    """Proofs in one of the formats rich, markdown, json."""
    words = {True: "holds", False: "FAILS", None: "not checked"}
    if format_ == "json":
        listed = [{"name": p.name, "passed": p.passed, "detail": p.detail} for p in found]
        return json.dumps({"schema": 1, "mixer": name, "proofs": listed}, indent=1) + "\n"
    columns = (
        Column("proof", "proof", numeric=False),
        Column("verdict", "verdict", numeric=False),
        Column("detail", "detail", numeric=False, wide=True),
    )
    rows = tuple((p.name, words[p.passed], p.detail) for p in found)
    return _text([Grid(f"{name}: proofs", columns, rows)], format_, "", width, colour=colour)


def _text(
    grids: Sequence[Grid], format_: str, command: str, width: int | None, *, colour: bool
) -> str:
    """Grids for a terminal of this width (or a pipe), in markdown or in LaTeX."""
    if format_ == "markdown":
        return "\n".join(render.markdown(grid, "###") for grid in grids)
    if format_ == "latex":
        return "\n".join(
            [
                render.preamble(command),
                *(render.latex(grid, _caption(grid)) for grid in grids),
            ]
        )
    return "\n".join(render.terminal(grid, width, colour=colour) for grid in grids)


def _caption(grid: Grid) -> Line:
    """The title and what must be said below, as sentences."""
    return (f"{grid.title}.", *(part for line in grid.said for part in (" ", *line, ".")))
