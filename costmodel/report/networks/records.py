"""A network's costs as rows of CSV and objects of JSON. Nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.language.functions import CLASSES
from costmodel.networks.choices import Choices
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.question import Missing, Value
from costmodel.report.document import Rows
from costmodel.report.networks.table import Line, Sheet
from costmodel.report.records import exact
from costmodel.symbolic.sizes import LETTERS


def _by_name(found: Mapping[str, Value] | Missing) -> dict[str, Any] | None:
    """Values by class without rounding; None if the counts are missing."""
    if isinstance(found, Missing):
        return None
    return {name: exact(value) for name, value in found.items()}


def _figures(line: Line, stage: str) -> dict[str, Any]:
    """The figures of a part, or of the total, for JSON: exact values, null for a figure that does
    not exist, with its reason in `reasons`; `state_elements` only in inference and decoding,
    `activations` only in phases with gradients."""
    values = {name: line.value(name) for name in (*CLASSES, "total")}
    if stage in ("inference", "decode"):
        values["state_elements"] = line.value("state")
    if stage in TRAINING_STEP:
        values["activations"] = line.value("kept")
    reasons = {name: value.reason for name, value in values.items() if isinstance(value, Missing)}
    if isinstance(line.other, Missing):
        reasons["other"] = line.other.reason
    if isinstance(line.once, Missing):
        reasons["once"] = line.once.reason
    figures = {
        "parameters": exact(line.parameters),
        "counts": {**{c: exact(values[c]) for c in CLASSES}, "other": _by_name(line.other)},
        "once": _by_name(line.once),
        "total": exact(values["total"]),
    }
    for name in ("state_elements", "activations"):
        if name in values:
            figures[name] = exact(values[name])
    return {**figures, "reasons": reasons}


def record(sheet: Sheet) -> dict[str, Any]:
    """The object of JSON for a network in one stage, with its parts."""
    net = sheet.network
    c = net.described
    return {
        "model": net.name,
        "title": net.title,
        "source": c.source,
        "place": c.place,
        "kind": c.kind,
        "mixers": list(c.mixers),
        "phase": sheet.stage,
        "convention": list(sheet.request.counting.names),
        "sizes": {x: sheet.sizes.get(x, x) for x in sorted({*sheet.letters, *sheet.sizes})},
        **_figures(sheet.total, sheet.stage),
        "parameters_of_tables": exact(sheet.tables),
        **({"memory": _memory(sheet)} if sheet.memory else {}),
        "parts": [
            {"part": line.name, "runs": exact(line.runs), **_figures(line, sheet.stage)}
            for line in sheet.lines
        ],
    }


def _memory(sheet: Sheet) -> dict[str, Any]:
    """The memory of a training step: elements by line, and bytes if an element type is given."""
    memory_options = sheet.request.memory_options
    lines = []
    for one in sheet.memory:
        line: dict[str, Any] = {"held": one.name, "elements": exact(one.elements)}
        if memory_options.bytes_each is not None:
            line["bytes"] = exact(one.times(memory_options.bytes_each))
        if isinstance(one.elements, Missing):
            line["reason"] = one.elements.reason
        lines.append(line)
    return {
        "optimiser": memory_options.optimiser,
        "recompute": memory_options.recompute,
        "dtype": memory_options.dtype,
        "lines": lines,
    }


def rows(sheets: Sequence[Sheet]) -> Rows:
    """The header and rows of CSV: a row per part and one for the total; reasons come last."""
    letters = [x for x in LETTERS if any(x in s.letters or x in s.sizes for s in sheets)]
    lines = [(sheet, line) for sheet in sheets for line in (*sheet.lines, sheet.total)]
    others = list(dict.fromkeys(n for _, line in lines for n in _by_name(line.other) or ()))
    header = ["model", "phase", "convention", *letters, "part", "runs", "parameters", *CLASSES]
    header += [*(f"other_{name}" for name in others), "once", "total", "state"]
    trained = any(sheet.stage in TRAINING_STEP for sheet in sheets)
    header += [*(["activations"] if trained else []), "reasons"]
    return header, [_csv_row(s, line, letters, others, trained=trained) for s, line in lines]


def _csv_row(
    sheet: Sheet, line: Line, letters: Sequence[str], others: Sequence[str], *, trained: bool
) -> list[Any]:
    """One row of CSV. A class of `other` that the line lacks is 0, or empty if the counts are
    missing; a size without a number is its letter, or empty if the network lacks the size."""
    values: dict[str, Value] = {name: line.value(name) for name in (*CLASSES, "once", "total")}
    if sheet.stage in ("inference", "decode"):
        values["state"] = line.value("state")
    if sheet.stage in TRAINING_STEP:
        values["activations"] = line.value("kept")
    reasons: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Missing):
            reasons.setdefault(value.reason, []).append(name)
    by_name = _by_name(line.other)
    absent = None if by_name is None else 0
    return [
        sheet.network.name,
        sheet.stage,
        ",".join(sheet.request.counting.names),
        *(sheet.sizes.get(x, x if x in sheet.letters else None) for x in letters),
        line.name,
        exact(line.runs),
        exact(line.parameters),
        *(exact(values[name]) for name in CLASSES),
        *((by_name or {}).get(name, absent) for name in others),
        exact(values["once"]),
        exact(values["total"]),
        exact(values.get("state")),
        *([exact(values.get("activations"))] if trained else []),
        "; ".join(f"{' '.join(names)}: {reason}" for reason, names in reasons.items()),
    ]


def choices(name: str, c: Choices) -> dict[str, Any]:
    """The object of JSON for a named network: its configuration, without derived figures."""
    return {
        "name": name,
        "title": c.title,
        "source": c.source,
        "place": c.place,
        "kind": c.kind,
        "mixers": list(c.mixers),
        "sizes": {x: list(v) if isinstance(v, tuple) else v for x, v in c.sizes.items()},
        "widths": dict(c.widths),
        "assumed": dict(c.assumed),
        "remark": c.remark,
    }
