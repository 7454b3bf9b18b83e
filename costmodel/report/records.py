"""How does a document read for a program, in CSV and in JSON? Nothing is rounded."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from io import StringIO
from typing import Any

from costmodel.paths.chains import CriticalPath
from costmodel.questions.question import Missing, Value
from costmodel.report.document import Document, Page
from costmodel.symbolic.printing import formula_text


def exact(value: Value) -> Any:
    """A value without rounding: an int, a string, or None where it does not exist."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Missing):
        return None
    if isinstance(value, CriticalPath):
        return value.text
    return str(value) if isinstance(value, Fraction) else formula_text(value)


def as_csv(document: Document, page: Page) -> str:
    """Comma-separated values; what does not exist is an empty cell."""
    assert document.rows is not None
    header, rows = document.rows()
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return file.getvalue()


def as_json(document: Document, page: Page) -> str:
    """One object of schema 1; the items of its lists stand on a line each."""
    assert document.data is not None
    entries = {"schema": 1, **document.data()}
    return (
        "{" + ", ".join(f"{_text(key)}: {_listed(value)}" for key, value in entries.items()) + "}\n"
    )


def _listed(value: Any) -> str:
    if not isinstance(value, list):
        return _text(value)
    return "[\n  " + ",\n  ".join(map(_text, value)) + "\n]" if value else "[]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
