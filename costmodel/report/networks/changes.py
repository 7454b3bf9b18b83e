"""What changes from one network to another at the same stages and sizes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from costmodel.questions.question import Value
from costmodel.questions.registry import FIGURES
from costmodel.report.document import Cell, Column, Table
from costmodel.report.mixer_document import cell
from costmodel.report.networks.table import Sheet
from costmodel.report.records import exact
from costmodel.symbolic.sizes import LETTERS

COMPARED = ("parameters", "total", "state", "activations")
"""The figures that are compared, each in the stages in which it exists."""

Change = tuple[Sheet, str, Value, Value]
"""The sheet of the new network, a figure's name, its value before and its value after."""


def changes(before: Sequence[Sheet], after: Sequence[Sheet]) -> Iterator[Change]:
    """Yield (sheet, figure, value before, value after) for every figure of `COMPARED` of all parts
    together, for each pair of sheets (a network's costs in one stage at some sizes); equal numbers
    of parameters once."""
    parameters: list[tuple[Value, Value]] = []
    for one, two in zip(before, after, strict=True):
        for name in COMPARED:
            values = one.total.value(name), two.total.value(name)
            if name == "parameters":
                if values in parameters:
                    continue
                parameters.append(values)
            elif two.total.phase not in FIGURES[name].phases:
                continue
            yield two, name, *values


def table(before: Sequence[Sheet], after: Sequence[Sheet]) -> Table:
    """The table of changes: a row for each figure and stage (a phase, or prefill and decode) of the
    pairs of sheets, with difference and ratio (after/before) where both values are numbers."""
    columns = (
        Column("figure", "figure", numeric=False, names=True),
        Column("stage", "stage", numeric=False),
        Column("before", "before"),
        Column("after", "after"),
        Column("difference", "difference"),
        Column("ratio", "after/before"),
    )
    rows: list[tuple[Cell, ...]] = []
    varied = [x for x in LETTERS if len({sheet.sizes.get(x) for sheet in after}) > 1]
    pairs = [*changes(before, after)]
    several = sum(name == "parameters" for _, name, *_ in pairs) > 1
    for sheet, name, one, two in pairs:
        difference: Cell = ""
        ratio = ""
        if isinstance(one, int) and isinstance(two, int):
            difference, ratio = two - one, f"{two / one:.4f}" if one else ""
        at = ", ".join(f"{x} = {sheet.sizes[x]}" for x in varied if x in sheet.sizes)
        stage = "" if name == "parameters" else sheet.stage
        if at and (several or name != "parameters"):
            stage = f"{stage} at {at}".lstrip()
        rows.append((name, stage, cell(one), cell(two), difference, ratio))
    return Table("What changes", columns, tuple(rows), (), "changes")


def data(before: Sequence[Sheet], after: Sequence[Sheet]) -> list[dict[str, Any]]:
    """The changes as objects of JSON: figure, stage, sizes, value before and after."""
    return [
        {"figure": name, "stage": sheet.stage, "sizes": dict(sheet.sizes), "before": exact(one),
         "after": exact(two)}
        for sheet, name, one, two in changes(before, after)
    ]  # fmt: skip
