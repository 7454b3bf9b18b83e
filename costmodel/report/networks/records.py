"""A network's costs as rows of CSV and objects of JSON. Nothing is rounded.

A sheet has a line for each part of the network and one for the total, in one stage (table.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from costmodel.networks.choices import Choices
from costmodel.networks.numerators import Compared
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.question import Missing, Value
from costmodel.questions.registry import FIGURES
from costmodel.report.document import Rows
from costmodel.report.networks.table import USUAL, Line, Sheet
from costmodel.report.records import exact
from costmodel.report.table_data import figures_of
from costmodel.symbolic.sizes import LETTERS, is_letter


def _figures(line: Line, names: Iterable[str]) -> dict[str, Any]:
    """Key in JSON -> exact value, of the named figures that exist in the phase of a part or of the
    total (`line`), as in a table of mixers; null for a missing figure, with its reason in
    `reasons`. `activations` is another name of `activations_elements`."""
    found = figures_of(line, [FIGURES[x] for x in names if line.phase in FIGURES[x].phases])
    if "activations_elements" in found:
        found["activations"] = found["activations_elements"]
        if "activations_elements" in found["reasons"]:
            found["reasons"]["activations"] = found["reasons"]["activations_elements"]
    return found


def record(sheet: Sheet) -> dict[str, Any]:
    """The object of JSON for a network's costs in one stage at one combination of sizes (`sheet`):
    figures of the total, and of each part those usual or asked for. An open size is its letter."""
    net = sheet.network
    c = net.described
    of_parts = [x for x in (*USUAL, *(sheet.request.columns or ())) if x in FIGURES]
    return {
        "model": net.name,
        "title": net.title,
        "source": c.source,
        "place": c.place,
        "kind": c.kind,
        "mixers": list(c.mixers),
        **({"trained": list(c.trained)} if c.trained else {}),
        **({"adapters": list(c.adapters)} if c.adapters else {}),
        "phase": sheet.stage,
        "convention": list(sheet.request.counting.names),
        "sizes": {x: sheet.sizes.get(x, x) for x in sorted({*sheet.letters, *sheet.sizes})},
        "dtypes": sheet.request.dtypes.record_of(c.dtypes),
        **_figures(sheet.total, FIGURES),
        "parameters_of_tables": exact(sheet.tables),
        **({"memory": _memory(sheet)} if sheet.memory else {}),
        **({"mfu": [_formula(one) for one in sheet.formulas]} if sheet.formulas else {}),
        "parts": [
            {"part": line.name, "runs": exact(line.value("runs")), **_figures(line, of_parts)}
            for line in sheet.lines
        ],
    }


def _formula(one: Compared) -> dict[str, Any]:
    """The object of JSON for one formula for MFU: its operations for a training step of one
    sequence and its terms, each beside the exact number, or why it has none."""
    of = one.numerator
    lead = {"name": of.name, "formula": of.formula, "source": of.source, "pairs": of.pairs}
    if one.missing:
        return {**lead, "operations": None, "reason": one.missing}
    terms = [
        {"term": d.term, "counted": d.counted, "exact": d.exact, "more": d.more, "why": d.why}
        for d in one.differences
    ]
    return {**lead, "operations": one.total, "terms": terms}


def _memory(sheet: Sheet) -> dict[str, Any]:
    """The object of JSON for the memory of a training step: the options, and `lines`, one for each
    kind of entries held, with its elements, and its bytes if element types are given."""
    memory_options = sheet.request.memory_options
    lines = []
    for one in sheet.memory:
        line: dict[str, Any] = {"held": one.name, "elements": exact(one.elements)}
        if one.bytes is not None:
            line["bytes"] = exact(one.bytes)
        if isinstance(one.elements, Missing):
            line["reason"] = one.elements.reason
        lines.append(line)
    return {
        "optimiser": memory_options.optimiser,
        "recompute": memory_options.recompute,
        "dtype": memory_options.dtype,
        "precision": dict(memory_options.precision),
        "lines": lines,
    }


def rows(sheets: Sequence[Sheet]) -> Rows:
    """The header and rows of CSV: for each sheet (a network's costs in one stage at some sizes) a
    row per part and one for the total. Columns: the figures asked for, else `USUAL`, `activations`
    only with gradients; for `other` one for each class of operations in it; the reasons last."""
    letters = [x for x in LETTERS if any(x in s.letters or x in s.sizes for s in sheets)]
    lines = [(sheet, line) for sheet in sheets for line in (*sheet.lines, sheet.total)]
    asked = sheets[0].request.columns
    names = [x for x in asked or USUAL if x not in letters]
    if asked is None and not any(sheet.stage in TRAINING_STEP for sheet in sheets):
        names.remove("activations")
    others: dict[str, None] = {}
    for _, line in lines:
        found = line.parts(FIGURES["other"])
        others |= {} if isinstance(found, Missing) else dict.fromkeys(found)
    if "other" in names:
        at = names.index("other")
        names[at : at + 1] = [f"other_{name}" for name in others]
    header = ["model", "phase", "convention", *letters, "part", "runs", *names, "reasons"]
    return header, [_csv_row(sheet, line, letters, names) for sheet, line in lines]


def _csv_row(sheet: Sheet, line: Line, letters: Sequence[str], names: Sequence[str]) -> list[Any]:
    """The row of CSV for a part or the total (`line`). A kind of further operations (a column
    `other_erf`, say) that the line lacks is 0, or empty if the line has no counts; a size without a
    number is its letter, or empty if the network lacks the size."""
    by_name = line.parts(FIGURES["other"])
    values: dict[str, Value] = dict.fromkeys(names)
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name.startswith("other_"):
            if not isinstance(by_name, Missing):
                values[name] = by_name.get(name.removeprefix("other_"), 0)
            continue
        if is_letter(name) or line.phase in FIGURES[name].phases:
            values[name] = line.value(name)
        if isinstance(value := values[name], Missing):
            reasons.setdefault(value.reason, []).append(name)
    return [
        sheet.network.name,
        sheet.stage,
        ",".join(sheet.request.counting.names),
        *(sheet.sizes.get(x, x if x in sheet.letters else None) for x in letters),
        line.name,
        exact(line.value("runs")),
        *map(exact, values.values()),
        "; ".join(f"{' '.join(names)}: {reason}" for reason, names in reasons.items()),
    ]


def choices(name: str, c: Choices) -> dict[str, Any]:
    """The object of JSON for a named network: its choices, without derived figures. `sizes`: size
    -> value, or a list, the values of a sweep; `widths`: size -> formula in other sizes, a text;
    `assumed`: what -> where its value is taken from."""
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
