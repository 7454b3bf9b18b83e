"""A table of costs as rows of CSV and objects of JSON. Nothing is rounded.

A block of the table has the rows of one phase, a row is a form of a mixer at sizes
(mixer_table.py), and a figure (`Figure`) is a quantity such as `total` or `state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from costmodel.paths.chains import CriticalPath
from costmodel.prediction.columns import COLUMNS as OF_A_BOARD
from costmodel.program.chosen_sizes import letters_of
from costmodel.questions.question import FOUND, Figure, Missing, Searched, Value
from costmodel.questions.registry import BEST, FIGURES
from costmodel.report.document import Rows
from costmodel.report.mixer_table import LABELS, Block, Row, Table
from costmodel.report.records import exact
from costmodel.symbolic.sizes import in_order, is_letter


def rows(table: Table) -> Rows:
    """The header and all rows of CSV, as `valued` with every value in exact text."""
    header, found = valued(table)
    return header, [[exact(value) for value in row] for row in found]


def valued(table: Table) -> tuple[list[str], list[list[Value]]]:
    """The header and rows of CSV, for `rows` and for the table that Python code gets: the names of
    the convention; columns shown in any phase; if `other` (operations such as sqrt) is shown, one
    for each of its classes; and a text of reasons. Values are numbers, texts, paths or formulas;
    `Missing` where a figure has no value, None where phase or mixer have no such column.

    Mixer, form, phase and sizes always have columns: where `--columns` names them, else first."""
    found = [(row, block) for block in table.blocks for row in block.rows]
    columns = list(dict.fromkeys(name for block in table.blocks for name in block.columns))
    lead = [*LABELS, *in_order({x for row, _ in found for x in row.sizes})]
    if table.request.columns is None:
        columns = [name for name in columns if name not in lead]
    else:
        columns = [name for name in table.request.columns if name in columns]
    columns = [name for name in lead if name not in columns] + columns
    names = dict.fromkeys(n for row, _ in found for n in _names(row))
    others = [name for name in names if name not in columns]
    others = others if "other" in columns else []
    header = ["convention", *columns, *(f"other_{n}" for n in others), "reasons"]
    return header, [_valued(row, block, columns, others) for row, block in found]


def _valued(row: Row, block: Block, columns: Sequence[str], others: Sequence[str]) -> list[Value]:
    """The values of one row of CSV in order: convention, `columns`, the classes of operations
    `others`, and one text of the reasons for missing values and for values found by search. A
    column that the row's phase (`block`) does not show is None; a class that the row lacks is 0, or
    None if the counts are missing."""
    named = (*block.columns, *LABELS)
    values = {
        name: row.value(name, columns) if name in named or is_letter(name) else None
        for name in columns
    }
    found = row.parts(FIGURES["other"])
    absent = None if isinstance(found, Missing) else 0
    by_name: Mapping[str, Value] = {} if isinstance(found, Missing) else found
    reasons: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Missing):
            reasons.setdefault(value.reason, []).append(name)
        elif isinstance(value, Searched):
            reasons.setdefault(f"{FOUND} ({value.reason})", []).append(name)
    return [
        ",".join(row.about.convention.names),
        *values.values(),
        *(by_name.get(name, absent) for name in others),
        "; ".join(f"{' '.join(columns)}: {reason}" for reason, columns in reasons.items()),
    ]


def _names(row: Row) -> list[str]:
    """The classes of operations in the figure `other` of a row, such as `sqrt`: each has a column;
    [] if the counts are missing."""
    found = row.parts(FIGURES["other"])
    return [] if isinstance(found, Missing) else list(found)


def json_row(row: Row, columns: Sequence[str] = ()) -> dict[str, Any]:
    """A row of JSON: every figure under its key, null with a reason if it does not exist;
    `searched` holds the reasons why figures found by search have no formula. `columns`: those that
    the table shows, of which the best chunks by a cost (`BEST`) are included."""
    result: dict[str, Any] = {
        "mixer": row.mixer.name,
        "form": row.form,
        "phase": row.phase,
        "convention": list(row.about.convention.names),
        "sizes": _json_sizes(row),
        **({"dtypes": row.dtypes.record_of(row.mixer.dtypes)} if row.dtypes else {}),
    }
    asked = (BEST[name] for name in columns if name in BEST)
    of_board = OF_A_BOARD.values() if row.board else ()
    result |= figures_of(row, (*FIGURES.values(), *asked, *of_board))
    if row.per_token:
        result["per_token"] = True
    return {**result, "reasons": result.pop("reasons")}


def figures_of(row: Row, figures: Iterable[Figure]) -> dict[str, Any]:
    """Key of a figure in JSON -> the row's value (of `counts.mul`, the key `mul` of the object
    `counts`), and `reasons` for missing values; if figures were found by search, also `searched`,
    the reasons why they have no formula."""
    result: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    searched: dict[str, str] = {}
    for figure in figures:
        # a figure within another (compare in `other`) stands in the object of that figure
        if figure.within and FIGURES[figure.within].parts:
            continue
        group, _, key = (figure.key or figure.name).rpartition(".")
        found = row.parts(figure) if figure.parts else row.figure(figure)
        (result.setdefault(group, {}) if group else result)[key] = _json_value(found)
        if isinstance(found, Missing):
            # counts have a reason each, the figures of another group have one together
            reasons[key if group in ("", "counts") else group] = found.reason
        elif isinstance(found, Searched):
            searched[key] = found.reason
    if searched:
        result["searched"] = searched
    return {**result, "reasons": reasons}


def _json_value(value: Value | Mapping[str, Value]) -> Any:
    """A value in JSON: a critical path as a list of steps, parts as an object by name."""
    if isinstance(value, CriticalPath):
        return list(value.steps)
    if isinstance(value, Mapping):
        return {name: exact(part) for name, part in value.items()}
    return exact(value)


def _json_sizes(row: Row) -> dict[str, int | str]:
    """Letter -> size; for a letter that stays in formulas itself, or the letter it is tied to."""
    letters = letters_of(row.mixer, row.phase, row.form)
    return {x: row.sizes.get(x, row.ties.get(x, x)) for x in sorted(letters)}


def data(table: Table) -> dict[str, Any]:
    """The object of JSON: all rows with all figures, independent of `--columns` but for `BEST`."""
    return {"rows": [json_row(row, each.columns) for each in table.blocks for row in each.rows]}
