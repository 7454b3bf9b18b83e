"""What changes from one network to another at the same stages and sizes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from costmodel.questions.question import Value
from costmodel.questions.registry import FIGURES
from costmodel.report.document import Column, Table, Text
from costmodel.report.mixer_document import cell, column
from costmodel.report.networks.table import Sheet
from costmodel.report.records import exact
from costmodel.symbolic.sizes import LETTERS

COMPARED = ("parameters", "total", "state", "activations")
"""The figures that are compared unless columns are asked for."""

Change = tuple[Sheet, str, Value, Value]
"""The sheet of the new network, a figure's name, its value before and its value after."""


def changes(before: Sequence[Sheet], after: Sequence[Sheet]) -> Iterator[Change]:
    """Yield (sheet, figure, value before, value after) for every figure asked for (`--columns`),
    else of `COMPARED`, of all parts together, in each pair of sheets (a network's costs in one
    stage at some sizes) in whose stage the figure exists; equal numbers of parameters once."""
    parameters: list[tuple[Value, Value]] = []
    names = [x for x in after[0].request.columns or () if x in FIGURES] or COMPARED
    for one, two in zip(before, after, strict=True):
        for name in names:
            values = one.total.value(name, names), two.total.value(name, names)
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
    rows: list[tuple[Text, ...]] = []
    varied = [x for x in LETTERS if len({sheet.sizes.get(x) for sheet in after}) > 1]
    pairs = [*changes(before, after)]
    several = sum(name == "parameters" for _, name, *_ in pairs) > 1
    for sheet, name, one, two in pairs:
        difference: Text = ""
        ratio = ""
        if isinstance(one, int) and isinstance(two, int):
            difference, ratio = two - one, f"{two / one:.4f}" if one else ""
        at = ", ".join(f"{x} = {sheet.sizes[x]}" for x in varied if x in sheet.sizes)
        stage = "" if name == "parameters" else sheet.stage
        if at and (several or name != "parameters"):
            stage = f"{stage} at {at}".lstrip()
        of = "O" if FIGURES[name].kind == "order" else ""
        label = column(name, names=False).header  # with the unit
        rows.append((label, stage, cell(one, of), cell(two, of), difference, ratio))
    return Table("What changes", columns, tuple(rows), (), "changes")


def data(before: Sequence[Sheet], after: Sequence[Sheet]) -> list[dict[str, Any]]:
    """The changes as objects of JSON: figure, stage, sizes, value before and after."""
    return [
        {"figure": name, "stage": sheet.stage, "sizes": dict(sheet.sizes), "before": exact(one),
         "after": exact(two)}
        for sheet, name, one, two in changes(before, after)
    ]  # fmt: skip
