"""Write a document for programs, in CSV and in JSON. Nothing is rounded."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from io import StringIO
from itertools import chain
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

    def pieces(self, document: Document) -> Iterator[str]:
        """Yield the rows of a document in CSV, the header first; the document must have rows."""
        assert document.rows is not None
        header, rows = document.rows()
        file = StringIO()
        writer = csv.writer(file, lineterminator="\n")
        for row in chain([header], rows):
            writer.writerow(map(spreadsheet_cell, row))
            yield file.getvalue()
            file.seek(0)
            file.truncate()


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

    def pieces(self, document: Document) -> Iterator[str]:
        """Yield the object of JSON as text, with the number of its schema; `data` must be given."""
        assert document.data is not None
        for k, (name, value) in enumerate({"schema": 1, **document.data()}.items()):
            yield f"{', ' if k else '{'}{_text(name)}: "
            yield from _listed(value)
        yield "}\n"


def _listed(value: Any) -> Iterator[str]:
    """Yield a value in JSON; a list with one line per item."""
    if not isinstance(value, list) or not value:
        yield _text(value)
        return
    for k, item in enumerate(value):
        yield f"{',' if k else '['}\n  {_text(item)}"
    yield "\n]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
