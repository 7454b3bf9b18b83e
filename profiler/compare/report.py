"""The document that shows a comparison: a row per quantity and two candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Document, Note, Table
from profiler.compare.in_turns import METHOD
from profiler.compare.rows import BUSY_TIMES, Comparison, Row
from profiler.records.grades import BUSY, QUIET, label_meanings, marked
from profiler.records.measurement import readings_of
from profiler.records.quantities import QUANTITIES
from profiler.records.words import PHASES, sizes_apart, sizes_words, value_words

FIELDS = (
    "quantity", "point", "first", "second", "unit", "first_value", "second_value", "pairs",
    "ratio", "ci_low", "ci_high", "confidence", "p", "p_corrected", "differs", "refused", "of",
    "first_grade", "second_grade",
)  # fmt: skip


def as_record(row: Row) -> dict[str, Any]:
    """A row as JSON values, with the keys `FIELDS`; the grade is None for a row without times."""
    values = {"first_value": row.first, "second_value": row.second}
    found = row.to_json() | row.verdict.to_json() | values
    for name, mark in zip(("first", "second"), row.marks, strict=True):
        timed = row.unit == "s" and values[f"{name}_value"] is not None
        found[f"{name}_grade"] = (BUSY if mark else QUIET) if timed else None
    return {name: found[name] for name in FIELDS}


def document(made: Comparison) -> Document:
    """Make the document of a comparison: tables of text, one per quantity; JSON has its level,
    rows, records, notes and failures, CSV its rows."""
    return Document(
        lambda: tables(made),
        data=lambda: {
            "level": made.level,
            "rows": [as_record(row) for row in made.rows],
            "measurements": [record.to_json() for record in made.records],
            "notes": list(made.notes),
            "failures": list(made.failures),
        },
        rows=lambda: (FIELDS, [list(as_record(row).values()) for row in made.rows]),
    )


def tables(made: Comparison) -> list[Table]:
    """Make the tables, one per quantity; notes on the whole comparison stand below the last."""
    quantities = list(dict.fromkeys(row.quantity for row in made.rows))
    notes = (*_about(made), *(Note((note,)) for note in made.notes))
    found = []
    for quantity in quantities:
        rows = [row for row in made.rows if row.quantity == quantity]
        last = quantity == quantities[-1]
        found.append(_table(quantity, rows, made, notes if last else ()))
    return found


def _table(quantity: str, rows: Sequence[Row], made: Comparison, notes: Sequence[Note]) -> Table:
    """Make the table of one quantity, with columns of points, intervals and p-values only if a row
    has one. `notes` follow the notes on this quantity."""
    by_point = any(row.point for row in rows)
    tested = any(row.verdict.p is not None for row in rows)
    intervals = any(row.verdict.ci_low is not None for row in rows)
    columns = (
        *([Column("point", "point", numeric=False, wide=True, names=True)] if by_point else []),
        Column("first", "first", numeric=False, names=True),
        Column("second", "second", numeric=False, names=True),
        Column("of first", "of first"),
        Column("of second", "of second"),
        Column("ratio", "second / first"),
        *([Column("interval", "interval of the ratio")] if intervals else []),
        *([Column("p", "p"), Column("corrected", "p corrected")] if tested else []),
        Column("verdict", "verdict", numeric=False, wide=True),
    )
    lines = tuple(_line(row, by_point, intervals, tested) for row in rows)
    where = _where(made)
    title = f"Compared: {QUANTITIES[quantity].title}{where}"
    own = _explained(quantity, rows, made.level)
    return Table(title, columns, lines, (*own, *notes))


def _where(made: Comparison) -> str:
    """The text at the end of a table's title: phase, sizes that have one value, device and machine;
    "" in a comparison of files."""
    if not made.records:
        return ""
    record = made.records[0]
    machine = record.environment.get("device_name") or record.environment.get("cpu")
    common, _ = sizes_apart([each.sizes for each in made.records])
    phase = PHASES[record.phase]
    return f", {phase}, {sizes_words(common)}, on {record.device} ({machine or 'unnamed'})"


def _line(row: Row, by_point: bool, intervals: bool, tested: bool) -> tuple[Cell, ...]:
    """The cells of a row: point (if `by_point`), first and second candidate, their values, ratio,
    interval (if `intervals`), p and corrected p (if `tested`), verdict in words. A refused verdict
    leaves `Missing` cells with its reason, a verdict without a test leaves `-`."""
    v = row.verdict
    none: Cell = Missing(v.refused) if v.refused else "-"
    interval: Cell = none
    if v.ci_low is not None and v.ci_high is not None:
        interval = f"{v.ci_low:.4f} to {v.ci_high:.4f}"
    return (
        *([row.point] if by_point else []),
        v.first,
        v.second,
        *(
            "-" if value is None else _value(value, row.unit, mark)
            for value, mark in zip((row.first, row.second), row.marks, strict=True)
        ),
        none if v.ratio is None else f"{v.ratio:.4f}",
        *([interval] if intervals else []),
        *([_p(v.p, none), _p(v.p_corrected, none)] if tested else []),
        verdict_words(row),
    )


def _value(value: float, unit: str, mark: str) -> str:
    """A value in words with its unit; a time with a `mark` as an estimate."""
    return marked(value, mark) if unit == "s" else value_words(value, unit)


def _p(p: float | None, none: Cell) -> Cell:
    """The cell of a p-value in two digits; `none` without one."""
    return none if p is None else f"{p:.2g}"


TESTED = (
    "p: exact Wilcoxon signed-rank test of the log ratios; corrected: Holm, for all pairs; ratio "
    "and interval: Hodges and Lehmann"
)

HERE = (
    "ratios and intervals hold for this process and its memory layout: a ratio may shift in "
    "another process (--processes)"
)
SPANNING = (
    "each fresh process gives one ratio, that of the geometric means of its rounds; test and "
    "interval take one value from each process"
)
WITHIN = {
    "rounds": ", in this process",
    "pairs of rounds": ", in this process",
    "blocks": ", in these processes",
}
"""The source of a test's values -> the scope of its verdicts."""

LESS = {"s": ("faster", "slower"), "J": ("takes less", "takes more"), "B": ("less", "more")}
"""Unit -> the words for a second candidate with a smaller and with a larger value."""


def verdict_words(row: Row) -> str:
    """The verdict on the second candidate in words, such as `second faster, in this process` for a
    test over rounds of one process; `busy: no claim` where the times are estimates, since other
    programs had the processor."""
    v = row.verdict
    if v.refused:
        return "not compared"
    if row.unit == "B":
        return _bytes_words(row)
    if v.of == BUSY_TIMES:
        return "busy: no claim"
    if not v.differs or v.ratio is None:
        return "no difference shown"
    less, more = LESS.get(row.unit, ("smaller", "larger"))
    return f"second {less if v.ratio < 1 else more}{WITHIN.get(v.of, '')}"


def _bytes_words(row: Row) -> str:
    """How many bytes the second candidate has less or more than the first, in words."""
    difference = (row.second or 0) - (row.first or 0)
    if not difference:
        return "equal to the byte"
    return f"second {abs(difference):,.0f} B {'less' if difference < 0 else 'more'}"


def _explained(quantity: str, rows: Sequence[Row], level: float) -> list[Note]:
    """Notes on how the ratios, intervals and p-values of a quantity were computed: times are
    compared by a signed-rank test, energies by Student's t interval without p, exact bytes by no
    test. `level`: the accepted probability of a false difference, such as 0.05."""
    if QUANTITIES[quantity].exact:
        return [Note(("bytes repeat exactly: they are compared without a test",))]
    found = []
    widths = {row.verdict.confidence for row in rows if row.verdict.confidence is not None}
    for confidence in sorted(widths):
        words = f"intervals of {confidence:.2%} each, which hold together at {1 - level:.0%}"
        found.append(Note((words,)))
    if QUANTITIES[quantity].unit == "J":
        said = (
            "ratio: geometric mean over trials in turn; interval: Student's t, and at least the "
            "errors that all trials of a candidate may share"
        )
        found.append(Note((said,)))
    elif any(row.verdict.p is not None for row in rows):
        found.append(Note((TESTED,)))
    return found


def _about(made: Comparison) -> list[Note]:
    """Notes below a comparison: sizes in which mixers differ, how the records were taken, visits
    left out, and the labels of unreliable readings with their meanings; [] in a comparison of
    files."""
    if not made.records:
        return []
    several = any(record.sweep.get("processes", 1) > 1 for record in made.records)
    _, own = sizes_apart([record.sizes for record in made.records])
    # `mixer` names the sizes that were set for it: its candidates and processes have the same sizes
    said = {r.mixer: f"{r.mixer}: {sizes_words(n)}" for r, n in zip(made.records, own, strict=True)}
    found = [Note((f"sizes of {'; of '.join(said.values())}",))] if any(own) else []
    found += [Note((f"latency: {METHOD}",)), Note((SPANNING if several else HERE,))]
    for record in made.records:
        name = record.implementation
        if latency := record.readings.get("latency"):
            name = latency.details.get("candidate", name)
            found += _left_out(name, latency.details)
        for quantity, reading in record.readings.items():
            where = "" if quantity == "latency" else f"{quantity.replace('_', ' ')} of "
            for label in reading.labels:
                found.append(Note((f"{where}{name} is {label}",)))
    explained = [r for name in ("latency", "energy") for r in readings_of(made.records, name)]
    meant = label_meanings(label for reading in explained for label in reading.labels)
    return found + [Note((sentence,)) for sentence in meant]


def _left_out(name: str, details: Mapping[str, Any]) -> list[Note]:
    """A note on the visits that were left out because a candidate was disturbed, if any were."""
    number, by = details["left_out_blocks"], "; ".join(details["disturbances"])
    visits = f"{number} visit{'s' if number != 1 else ''}"
    said = f"{visits} discarded and repeated, because {name} was disturbed ({by})"
    return [Note((said,))] if by else []
