"""A parser for the CSV page of raw values that ncu prints.

After ncu's log lines come a header, a row of units, and one row per kernel. Numbers have commas at
thousands. A metric by opcode is printed as its sum and, in parentheses, the value of each opcode:
`30 (FADD: 10; FMUL: 20)` (`--print-metric-instances details`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

HEAD = ("ID", "Kernel Name", "Grid Size", "Block Size")
"""The columns that every page has."""
RANGES = ("Start/Stop_Range", "Push/Pop_Range")
"""Substrings of the names of the columns with the NVTX ranges of a kernel."""
LONGEST_CELL = 2**31 - 1
"""Characters that a cell may have: the csv module's 2**17 is too low for values by opcode."""
NOT_THERE = "n/a"
"""The cell of a metric that the chip or this version of ncu does not have."""

SCALES: Mapping[str, int] = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
"""Prefix of a unit -> factor: 1 for `byte`, 1000 for `Kbyte`."""


class ReportError(ValueError):
    """ncu's output has an unexpected form; the message is one sentence."""


@dataclass(frozen=True)
class Kernel:
    """One launch of a kernel, with its metrics in base units."""

    name: str
    grid: str
    block: str
    values: Mapping[str, int]
    """Metric -> value; metrics that the chip does not have are absent."""
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Metric -> opcode -> value; the values of a metric add up to its entry in `values`."""
    ranges: str = ""
    """The cells of the columns of NVTX ranges, joined by blanks."""

    @property
    def launch(self) -> tuple[str, str, str]:
        """Name, grid and block, by which launches of two runs are compared."""
        return self.name, self.grid, self.block


def kernels(text: str, metrics: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels of a report, in order of launch, with the given metrics. A row without an ID
    holds the units of the rows below. Raises ReportError: no table, no kernel, a missing column or
    cell, or a value that is no number."""
    rows = table_rows(text)
    header = next(rows, None)
    if header is None:
        raise ReportError("ncu wrote no table: its messages say why")
    if missing := [name for name in (*HEAD, *metrics) if name not in header]:
        raise ReportError(f"ncu's table has no column {', '.join(missing)}")
    found, units = [], dict.fromkeys(metrics, "")
    for row in rows:
        if len(row) != len(header):
            raise ReportError(f"a row of ncu's table has {len(row)} of {len(header)} columns")
        cells = dict(zip(header, row, strict=True))
        if cells["ID"]:
            found.append(kernel(cells, metrics, units))
        else:
            units = {name: cells[name] for name in metrics}
    if not found:
        raise ReportError("ncu's table holds no kernel")
    return tuple(found)


def table_rows(text: str) -> Iterator[list[str]]:
    """The rows of the table from the header on, without ncu's log lines (they begin with ==)."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    start = next((k for k, line in enumerate(lines) if line.startswith(('"ID"', "ID,"))), None)
    csv.field_size_limit(LONGEST_CELL)
    return iter(()) if start is None else csv.reader(lines[start:])


def kernel(cells: Mapping[str, str], metrics: Sequence[str], units: Mapping[str, str]) -> Kernel:
    """Read the launch of a kernel in one row of the table: `cells` maps a column to its text,
    `units` a metric to its unit: `1.5` in `Kbyte` gives 1500. A metric without a value ("" or
    `NOT_THERE`) is left out; ReportError for other text than a number."""
    values: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for name in metrics:
        text = cells[name].strip()
        if text in (NOT_THERE, ""):
            continue
        values[name], parts[name] = metric_value(name, text, scale(name, units[name]))
    ranges = " ".join(v for k, v in cells.items() if any(part in k for part in RANGES))
    return Kernel(
        cells["Kernel Name"], cells["Grid Size"], cells["Block Size"], values,
        {name: found for name, found in parts.items() if found}, ranges,
    )  # fmt: skip


def metric_value(name: str, text: str, factor: int) -> tuple[int, dict[str, int]]:
    """Read the cell `text` of metric `name`: (value times `factor`, its parts by opcode), {} if no
    parts are given; ReportError for a part without an opcode, or parts that do not add up to it."""
    whole, _, inside = text.partition("(")
    value = counted_number(name, whole, factor)
    if not inside:
        return value, {}
    parts: dict[str, int] = {}
    for each in inside.rstrip(") ").split(";"):
        key, colon, figure = each.rpartition(":")
        if not colon or not key.strip():
            raise ReportError(f"ncu gives {name} without its opcodes: {text[:40]!r}")
        opcode = key.strip()
        parts[opcode] = parts.get(opcode, 0) + counted_number(name, figure, factor)
    if sum(parts.values()) != value:
        raise ReportError(f"ncu's parts of {name} add up to {sum(parts.values()):,}, not {value:,}")
    return value, parts


def scale(name: str, unit: str) -> int:
    """The factor of a unit (ncu may print scaled units despite `--print-units base`); ReportError
    for an unknown unit. `name`: the metric, for the message.

    >>> scale("bytes", "byte"), scale("bytes", "Mbyte")
    (1, 1000000)
    """
    found = re.fullmatch(r"([KMGT]?)[a-z]*", unit.strip())
    if not found:
        raise ReportError(f"ncu gives {name} in the unit {unit!r}: expected letters, such as Mbyte")
    return SCALES[found[1]]


def counted_number(name: str, text: str, factor: int = 1) -> int:
    """A number with commas at thousands, times a factor, rounded to an integer; ReportError for
    other text. `name`: the metric, for the message.

    >>> counted_number("bytes", "1,048,576"), counted_number("bytes", "1.5", 1000)
    (1048576, 1500)
    """
    stripped = text.strip()
    if not re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?|\d+(\.\d+)?", stripped):
        raise ReportError(f"ncu gives {name} as {stripped!r}, which is no number")
    return round(Fraction(stripped.replace(",", "")) * factor)


def absent(*metrics: str) -> str:
    """A sentence which says that ncu has no value for these metrics."""
    return f"ncu has no value of {', '.join(metrics)}: this chip, or this ncu, does not have it"
