"""Write a document for programs, in CSV and in JSON. Nothing is rounded."""

from __future__ import annotations

import csv
import json
import re
from fractions import Fraction
from io import StringIO
from typing import Any

from costmodel.paths.chains import CriticalPath
from costmodel.questions.question import Missing, Value
from costmodel.report.document import Document
from costmodel.report.writer import Writer
from costmodel.symbolic.printing import formula_text


def exact(value: Value) -> Any:
    """A value without rounding, for CSV and JSON: an int, or a text for a fraction ("1/3"), formula
    ("d*l") or path; None for a missing value."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Missing):
        return None
    if isinstance(value, CriticalPath):
        return value.text
    return str(value) if isinstance(value, Fraction) else formula_text(value)


class Csv(Writer):
    """The rows of a document as comma-separated values; a missing value is an empty cell."""

    def write(self, document: Document) -> str:
        """The rows of the document in CSV, the header first; for documents with rows alone."""
        assert document.rows is not None
        header, rows = document.rows()
        file = StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(spreadsheet_cell, header))
        writer.writerows(map(spreadsheet_cell, row) for row in rows)
        return file.getvalue()


NUMBER = r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?(/[0-9]+)?"
COMPUTED = re.compile(rf"[=@\t\r]|[+-](?!{NUMBER}\Z).")
"""The beginning of a text that a spreadsheet would take for a formula; numbers do not match."""


def spreadsheet_cell(cell: Any) -> Any:
    """A cell of CSV that spreadsheets open as text: "" for None; a text that a spreadsheet would
    execute as a formula gets an apostrophe before it.

    >>> [*map(spreadsheet_cell, ("=1+1", "-2/3", "-d*l", None))]
    ["'=1+1", '-2/3', "'-d*l", '']
    """
    if cell is None:
        return ""
    return f"'{cell}" if isinstance(cell, str) and COMPUTED.match(cell) else cell


class Json(Writer):
    """The data of a document as one JSON object of schema 1, with one line per item of a list."""

    def write(self, document: Document) -> str:
        """The object of a document with `data` as text in JSON, with the number of its schema."""
        assert document.data is not None
        entries = {"schema": 1, **document.data()}
        return (
            "{" + ", ".join(f"{_text(k)}: {_listed(value)}" for k, value in entries.items()) + "}\n"
        )


def _listed(value: Any) -> str:
    """A value in JSON; a list with one line per item."""
    if not isinstance(value, list):
        return _text(value)
    return "[\n  " + ",\n  ".join(map(_text, value)) + "\n]" if value else "[]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
