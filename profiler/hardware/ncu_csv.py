"""What does ncu's CSV page of raw values say of each kernel?

The table begins at its header, after ncu's own lines; a row of units follows, then one row per
kernel. Numbers have commas at thousands. A metric with a value per opcode is printed as the sum
and, in parentheses, as `OPCODE: number` for each (`--print-metric-instances details`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

HEAD = ("ID", "Kernel Name", "Grid Size", "Block Size")
"""Columns that every page has."""
RANGES = ("Start/Stop_Range", "Push/Pop_Range")
"""Parts of the names of the columns that tell in which NVTX ranges a kernel was launched."""
NOT_THERE = "n/a"
"""Printed in place of a value that the chip, or this ncu, does not have."""

SCALES: Mapping[str, int] = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
"""Prefix of a unit -> its factor: `byte` is a base unit, `Kbyte` is not."""


class ReportError(ValueError):
    """ncu's output is not what was asked for; one sentence says what is wrong."""


@dataclass(frozen=True)
class Kernel:
    """One launch of a kernel, its values in base units."""

    name: str
    grid: str
    block: str
    values: Mapping[str, int]
    """Metric -> value; a metric that the chip does not have is absent."""
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Metric -> its values by opcode."""
    ranges: str = ""
    """The text of the columns of NVTX ranges."""

    @property
    def launch(self) -> tuple[str, str, str]:
        """What is equal for the same launch in another run: name, grid, block."""
        return self.name, self.grid, self.block


def kernels(text: str, metrics: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels of a report, with these metrics.

    Raises:
        ReportError: no table, no kernel, a missing column, or a value that is no number.
    """
    rows = table_rows(text)
    header = next(rows, None)
    if header is None:
        raise ReportError("ncu wrote no table")
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
    """The rows from the header on; ncu's own lines, which begin with ==, are left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    start = next((k for k, line in enumerate(lines) if line.startswith(('"ID"', "ID,"))), None)
    return iter(()) if start is None else csv.reader(lines[start:])


def kernel(cells: Mapping[str, str], metrics: Sequence[str], units: Mapping[str, str]) -> Kernel:
    """The kernel of one row."""
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
    """A metric's value, and its parts by opcode where it has some: they must add up to the
    value."""
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
    """The factor of a unit: ncu was asked for base units, and may print others.

    >>> scale("bytes", "byte"), scale("bytes", "Mbyte")
    (1, 1000000)
    """
    found = re.fullmatch(r"([KMGT]?)[a-z]*", unit.strip())
    if not found:
        raise ReportError(f"ncu gives {name} in the unit {unit!r}, which is not known")
    return SCALES[found[1]]


def counted_number(name: str, text: str, factor: int = 1) -> int:
    """A whole number, printed with commas at thousands.

    >>> counted_number("bytes", "1,048,576"), counted_number("bytes", "1.5", 1000)
    (1048576, 1500)
    """
    stripped = text.strip()
    if not re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?|\d+(\.\d+)?", stripped):
        raise ReportError(f"ncu gives {name} as {stripped!r}, which is no number")
    return round(Fraction(stripped.replace(",", "")) * factor)


def absent(*metrics: str) -> str:
    """The sentence that ncu has no value of these metrics."""
    return f"ncu has no value of {', '.join(metrics)}: this chip, or this ncu, does not have it"
