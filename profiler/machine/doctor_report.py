"""How does a diagnosis read: on one screen, in markdown, as JSON?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from costmodel import render
from costmodel.render import Column, Grid
from profiler.machine.doctor import Diagnosis, merged
from profiler.machine.surroundings import Finding


def as_json(found: Diagnosis) -> str:
    """Schema 1: every finding by itself."""
    return (
        json.dumps(
            {
                "schema": 1,
                "device": found.device,
                "healthy": found.healthy,
                "measures": [asdict(each) for each in found.findings],
                "disturbances": [asdict(each) for each in found.disturbances],
            },
            indent=1,
        )
        + "\n"
    )


def grids(found: Diagnosis) -> list[Grid]:
    """What can be measured, and what disturbs."""
    measured = _grid(f"Measured on {found.device}", "here", merged(found.findings))
    if not found.disturbances:
        return [measured]
    return [measured, _grid("What disturbs or limits measurements", "it", found.disturbances)]


def _grid(title: str, verdict: str, findings: Sequence[Finding]) -> Grid:
    fixes = any(each.fix for each in findings)
    columns = (
        Column("what", "what", numeric=False, wide=True),
        Column("verdict", verdict, numeric=False),
        Column("said", "how, or why not", numeric=False, wide=True),
        *([Column("fix", "what would help", numeric=False, wide=True)] if fixes else []),
    )
    rows = tuple((f.what, f.verdict, f.said, *([f.fix] if fixes else [])) for f in findings)
    return Grid(title, columns, rows)


def text(found: Diagnosis, format_: str, width: int | None = None, *, colour: bool = False) -> str:
    """A diagnosis in one of the formats rich, markdown, json."""
    if format_ == "json":
        return as_json(found)
    if format_ == "markdown":
        return "\n".join(render.markdown(grid, "###") for grid in grids(found))
    return "\n".join(render.terminal(grid, width, colour=colour) for grid in grids(found))
