"""Write the rows of a document for data frames, in Parquet; needs pyarrow.

A column of whole numbers is int64, a column with fractions or measured values is float64, and any
other column (texts, formulas, numbers beyond int64) holds text; a missing value is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from costmodel.report.document import Document
from costmodel.symbolic.at_sizes import LARGEST_INTEGER


def parquet(document: Document, path: Path) -> None:
    """Write the rows of a document to the file `path` in Parquet, each column in one type.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """
    import pyarrow
    from pyarrow import parquet as files

    assert document.rows is not None
    header, rows = document.rows()
    whole = [*rows]
    columns = {name: column([row[k] for row in whole]) for k, name in enumerate(header)}
    files.write_table(pyarrow.table(columns), path)


def column(values: Sequence[Any]) -> list[Any]:
    """A column's values in one type: int, if all are integers within +-(2**63 - 1); else float,
    if all are numbers and some are no integers; else text. None stays None.

    >>> column([1, None, 2]), column([1, "1/2", 0.25]), column([2**70, 1]), column([1, "d*l"])
    ([1, None, 2], [1.0, 0.5, 0.25], ['1180591620717411303424', '1'], ['1', 'd*l'])
    """
    numbers = [None if value is None else number(value) for value in values]
    there = [each for value, each in zip(values, numbers, strict=True) if value is not None]
    if all(isinstance(each, int) and abs(each) <= LARGEST_INTEGER for each in there):
        return numbers
    if None not in there and any(not isinstance(each, int) for each in there):
        return [None if each is None else float(each) for each in numbers]
    return [None if value is None else str(value) for value in values]


def number(value: Any) -> int | float | Fraction | None:
    """A value of a row as a number; a text such as `1/2` becomes a fraction, any other text and
    None become None."""
    if isinstance(value, int | float):
        return value
    above, sign, below = str(value).partition("/")
    if sign and above.removeprefix("-").isdecimal() and below.isdecimal():
        return Fraction(int(above), int(below))
    return None
