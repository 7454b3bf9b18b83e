"""How does a table of costs read for another program, in CSV and JSON? Nothing is rounded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from costmodel.language.functions import CLASSES
from costmodel.program.chosen_sizes import letters_of
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.registry import Missing
from costmodel.report import render
from costmodel.report.mixer_table import COLUMNS, Block, Row, Table, Value, path_of
from costmodel.symbolic.printing import formula_text
from costmodel.symbolic.sizes import LETTERS

HELD = {"activations": "activations_elements", "peak": "peak_elements",
        "optimiser": "optimiser_bytes"}  # fmt: skip
"""Column -> the key of a row of a phase with gradients."""


def as_csv(table: Table) -> str:
    """All rows with every column of the table, `other` by name, fractions exact, reasons last."""
    rows = [(row, block) for block in table.blocks for row in block.rows]
    columns = list(dict.fromkeys(name for block in table.blocks for name in block.columns))
    if table.request.columns is not None:
        columns = [name for name in table.request.columns if name in columns]
    if table.request.columns is None:
        letters = [x for x in LETTERS if any(x in row.sizes for row, _ in rows)]
        lead = ["mixer", "form", "phase", *letters]
        columns = lead + [name for name in columns if name not in lead]
    elif len(table.blocks) > 1 and "phase" not in columns:
        columns = ["phase", *columns]
    others = list(dict.fromkeys(n for row, _ in rows for n in _names(row)))
    others = others if "other" in columns else []
    header = ["convention", *columns, *(f"other_{n}" for n in others), "reasons"]
    return render.as_csv(header, [_csv_row(row, block, columns, others) for row, block in rows])


def _csv_row(row: Row, block: Block, columns: Sequence[str], others: Sequence[str]) -> list[Any]:
    named = (*block.columns, "mixer", "form", "phase", *LETTERS)
    values = {name: row.value(name) if name in named else None for name in columns}
    found = row.by_class(row.answers.other)
    absent = None if isinstance(found, Missing) else 0
    by_name: Mapping[str, Value] = {} if isinstance(found, Missing) else found
    reasons: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Missing):
            reasons.setdefault(value.reason, []).append(name)
    return [
        ",".join(row.request.convention.names),
        *(_exact(value) for value in values.values()),
        *(_exact(by_name.get(name, absent)) for name in others),
        "; ".join(f"{' '.join(columns)}: {reason}" for reason, columns in reasons.items()),
    ]


def _names(row: Row) -> list[str]:
    found = row.by_class(row.answers.other)
    return [] if isinstance(found, Missing) else list(found)


def _exact(value: Value) -> Any:
    """A value without rounding: an int, a string, or None where it does not exist."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Missing):
        return None
    return str(value) if isinstance(value, Fraction) else formula_text(value)


def json_row(row: Row) -> dict[str, Any]:
    """A row of schema 1."""
    reasons: dict[str, str] = {}

    def exact(key: str, value: Value) -> Any:
        if isinstance(value, Missing):
            reasons[key] = value.reason
        return _exact(value)

    def by_name(key: str, found: Mapping[str, Value] | Missing) -> Any:
        if isinstance(found, Missing):
            return exact(key, found)
        return {name: _exact(value) for name, value in found.items()}

    path = path_of(row)
    if isinstance(path, Missing):
        reasons["critical_path"] = path.reason
    result = {
        "mixer": row.mixer.name,
        "form": row.answers.form,
        "phase": row.phase,
        "convention": list(row.request.convention.names),
        "sizes": _json_sizes(row),
        "counts": {
            **{name: exact(name, row.value(name)) for name in CLASSES},
            "other": by_name("other", row.by_class(row.answers.other)),
        },
        "once": by_name("once", row.by_class(row.answers.once)),
        "total": exact("total", row.value("total")),
        "ratio": exact("ratio", row.value("ratio")),
        "parameters": exact("parameters", row.value("parameters")),
        "critical_path": None if isinstance(path, Missing) else list(path.steps),
        "span": exact("span", row.value("span")),
        "state_elements": exact("state_elements", row.value("state")),
        "weights_elements": exact("weights_elements", row.value("weights")),
        "traffic": {
            "compulsory": exact("traffic", row.value("traffic")),
            "unfused": exact("traffic", row.value("unfused")),
        },
        "intensity": exact("intensity", row.value("intensity")),
        "order": exact("order", row.value("order")),
    }
    if row.phase in TRAINING_STEP:
        for name, key in HELD.items():
            if row.phase in COLUMNS[name].phases and (name != "optimiser" or row.request.optimiser):
                result[key] = exact(key, row.value(name))
    if row.request.per_token:
        result["per_token"] = True
    return {**result, "reasons": reasons}


def _json_sizes(row: Row) -> dict[str, int | str]:
    """The sizes; a letter that a formula keeps stands for itself."""
    letters = letters_of(row.mixer, row.phase, row.answers.form)
    return {x: row.sizes.get(x, x) for x in sorted(letters)}


def as_json(table: Table) -> str:
    """All rows, complete whatever columns are shown elsewhere; one row a line."""
    rows = [json.dumps(json_row(row)) for block in table.blocks for row in block.rows]
    inside = ",\n  ".join(rows)
    return f'{{"schema": 1, "rows": [\n  {inside}\n]}}\n'
