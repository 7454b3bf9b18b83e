"""The document that shows measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from costmodel.language.functions import CLASSES
from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Document, Note, Table
from profiler.counting.operations import UNSEEN
from profiler.hardware.operations import UNTOLD
from profiler.hardware.result import hardware_level
from profiler.meters.intervals import processes_in
from profiler.records.grades import QUIET, grade_of, label_meanings, time_words
from profiler.records.measurement import REASON, Measurement, readings_of
from profiler.records.quantities import QUANTITIES, Meter, read_by
from profiler.records.reading import INTERVAL, Measured, Reading, Unavailable, details_of_time
from profiler.records.words import DIGITS, PHASES, scaled, sizes_words, value_words
from profiler.run.caveats import contention, no_quiet_time, processes_words
from profiler.run.energy_tokens import per_token

LEAD = ("mixer", "implementation", "form", "phase", "sizes", "dtype", "device")
"""The columns of CSV that identify a row's measurement."""


def document(found: Sequence[Measurement]) -> Document:
    """Make the document of measurements: one table per phase and device; CSV has a row per reading
    (SI units) and missing reading, and beside a time or an energy the ends of its interval and its
    grade (`quiet` or `busy`). A measurement that failed is a row with its reason."""
    header = (*LEAD, "reading", "value", "unit", "samples", "reason", *INTERVAL, "grade")
    return Document(
        lambda: tables(found),
        data=lambda: {"measurements": [m.to_json() for m in found]},
        rows=lambda: (header, [row for m in found for row in csv_rows(m)]),
    )


def tables(measurements: Sequence[Measurement]) -> list[Table]:
    """One table per phase and device."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.phase, measurement.device), []).append(measurement)
    return [_table(phase, device, found) for (phase, device), found in groups.items()]


def _table(phase: str, device: str, found: Sequence[Measurement]) -> Table:
    """Make the table of these measurements of one phase and device, a row each, without the columns
    of rare readings, of hardware counters and of traces that no measurement fills."""
    counted = any(m.options.get("counters") or "hardware" in m.counts for m in found)
    hidden = {
        *(name for name, of in RARE.items() if not any(of in m.readings for m in found)),
        *(() if counted else COUNTED),
        *(() if any("traced" in {**m.counts, **m.reasons} for m in found) else TRACED),
    }
    shown = [(column, cell) for column, cell in COLUMNS if column.name not in hidden]
    machine = found[0].environment
    where = machine.get("device_name") or machine.get("cpu") or device
    return Table(
        f"Measured: {PHASES[phase]}, on {device} ({where})",
        tuple(column for column, _ in shown),
        tuple(tuple(_cell(m, *each) for each in shown) for m in found),
        tuple(_notes([m for m in found if not m.failed])),
    )


def _cell(m: Measurement, column: Column, cell: Callable[[Measurement], Cell]) -> Cell:
    """The cell of a measurement; of one that failed, the reason in each column of figures."""
    return missing(m, REASON) if m.failed and column.numeric else cell(m)


def named(m: Measurement) -> str:
    """The implementation, marked if compiled."""
    return f"{m.implementation}, compiled" if m.compiled else m.implementation


def measured(m: Measurement, name: str) -> Cell:
    """A table's cell with a reading in words: bytes and counts as whole numbers, others with four
    significant digits, a disturbed time with its mark; or why the reading is missing."""
    if name not in m.readings:
        return missing(m, name)
    reading = m.readings[name]
    return time_words(reading) if reading.unit == "s" else value_words(reading.value, reading.unit)


def missing(m: Measurement, name: str) -> Missing:
    """Why a measurement lacks this reading."""
    return Missing(m.reason(name))


def _of_latency(words: Callable[[Reading], Cell]) -> Callable[[Measurement], Cell]:
    """Return the function from a measurement to a cell: `words(latency)`, or the reason why the
    measurement has no latency."""

    def cell(m: Measurement) -> Cell:
        latency = m.readings.get("latency")
        return missing(m, "latency") if latency is None else words(latency)

    return cell


def _range(latency: Reading) -> Cell:
    """The cell of a latency's range: the 20 % and 80 % quantiles of the samples; of an estimate,
    the ends of its interval; missing if they are unknown."""
    ends = ("p20", "p80") if grade_of(latency) == QUIET else ("ci_low", "ci_high")
    low, high = map(details_of_time(latency).get, ends)
    if low is None or high is None:
        return Missing("1 sample" if len(latency.samples) == 1 else "its interval is not recorded")
    return f"{scaled(low, 's')} - {scaled(high, 's')}"


def _operations(m: Measurement) -> Cell:
    """The cell of the number of dispatched operations; missing if one has no counting rule."""
    dispatch = m.counts["dispatch"]
    if dispatch["unknown"]:
        listed = ", ".join(dispatch["unknown"])
        return Missing(f"no counting rule for {listed} in {m.mixer} {m.implementation}")
    operations = dispatch["operations"]
    return int(sum(operations[c] for c in CLASSES) + sum(operations["other"].values()))


def _traced(m: Measurement) -> Cell:
    """The number of operations by tracing; missing for a mixer, which has equations."""
    found = m.counts.get("traced")
    if found is None:
        return Missing(m.reasons.get("traced", "it has equations: `reconcile` counts them"))
    return int(sum(found[c] for c in CLASSES) + sum(found["other"].values()))


def _peer(m: Measurement, name: str) -> Cell:
    """The number of operations by torch's or fvcore's counter, or why the number is missing."""
    peer = m.counts["peers"].get(name)
    if peer is None:
        return Missing(m.reasons.get(f"peer {name}", f"{name} was not asked"))
    return int(peer["total"])


def _executed(m: Measurement) -> Cell:
    """The cell of the number of operations that the hardware executed, without conversions, which
    opcodes do not identify; missing if another class is unknown."""
    found = hardware_level(m)
    if found is None:
        return _uncounted_by_hardware(m)
    lacking = [why for name, why in found.untold.items() if name not in UNTOLD]
    return Missing(lacking[0]) if lacking else sum(found.counts.values())


def _moved(m: Measurement, name: str) -> Cell:
    """The bytes that the device's memory moved, under one cache state."""
    return _uncounted_by_hardware(m) if hardware_level(m) is None else measured(m, name)


def _uncounted_by_hardware(m: Measurement) -> Missing:
    return Missing(m.reasons.get("hardware", "hardware counters were not read"))


def _per_token(m: Measurement, name: str, unit: str) -> Cell:
    found: Measured = per_token(m)[name]
    return Missing(found.reason) if isinstance(found, Unavailable) else scaled(found.value, unit)


Shown = tuple[Column, Callable[[Measurement], Cell]]
"""A column with the function that fills its cells."""

BEHIND: Mapping[str, Sequence[Shown]] = {
    "latency": (
        (Column("range", "range"), _of_latency(_range)),
        (
            Column("n samples", "n samples"),
            _of_latency(lambda latency: str(details_of_time(latency)["n"])),
        ),
    ),
}
"""Reading -> the columns that stand behind its own."""


def _reading_columns(*meters: Meter, cell: Callable[..., Cell] = measured) -> Iterator[Shown]:
    """Yield the columns of the readings of these meters, each as a pair (column, function from a
    measurement to its cell), each followed by further columns of the reading (`BEHIND`), such as
    its range; `cell` makes a reading's cell from a measurement and the name of the reading."""
    for each in (QUANTITIES[name] for name in read_by(*meters)):
        if each.column:
            heading = each.heading or each.title or each.column
            yield Column(each.column, heading), partial(cell, name=each.reading)
            yield from BEHIND.get(each.reading, ())


COLUMNS: tuple[Shown, ...] = (
    (Column("mixer", "mixer", numeric=False, names=True), lambda m: m.mixer),
    (Column("implementation", "implementation", numeric=False, names=True), named),
    (Column("sizes", "sizes", numeric=False, names=True), lambda m: sizes_words(m.sizes)),
    (Column("dtype", "dtype", numeric=False), lambda m: m.dtype),
    *_reading_columns("clock", "compiler", "memory", "profiler"),
    (Column("operations", "operations"), _operations),
    (Column("traced", "traced"), _traced),
    (Column("torch", "torch"), lambda m: _peer(m, "torch")),
    (Column("fvcore", "fvcore"), lambda m: _peer(m, "fvcore")),
    *_reading_columns("energy"),
    (Column("per token", "energy a token"), lambda m: _per_token(m, "J_per_token", "J")),
    (Column("per watt", "tokens/s per W"), lambda m: _per_token(m, "tokens_per_s_per_W", "/J")),
    (Column("executed", "executed"), _executed),
    *_reading_columns("counters", cell=_moved),
)

RARE = {each.column: each.reading for each in QUANTITIES.values() if each.rare}
RARE |= dict.fromkeys(("per token", "per watt"), "energy")
"""Column -> the reading without which the column is hidden."""

COUNTED = ("executed", *(QUANTITIES[name].column for name in read_by("counters")))
"""Columns that are hidden unless hardware counters were asked for."""

TRACED = ("traced",)
"""Columns that are hidden unless a module without equations was measured."""

MEMORY = (
    "peak memory: what the call allocates at its worst moment, its result included; weights, "
    "inputs and state were there before and are not in it; of a large forward pass on a CPU, "
    "from live ranges of tensors without values, if shorter calls give the same there (the "
    "record's method says so)"
)
ABOUT_COLUMNS = (
    Note(("latency, hot: calls back to back, caches as the calls leave them; latency, cold: caches "
          "flushed before each call",)),
    Note(("latency: the median of the samples; with ≈ an estimate: a low quantile of short "
          "regions on a busy machine, or one sample",)),
    Note(("range: the 20 % to 80 % quantiles of the samples of the hot latency; where it "
          "is an estimate (≈), from below the fastest sample to at most the median sample",)),
    Note((MEMORY,)),
    Note(("compiling: time of the first calls, until the compiled call's time is steady; in no "
          "latency",), ("compile",)),
    Note((f"operations: as dispatched, every class counted 1; {UNSEEN}",)),
    Note(("traced: operations of a module without equations, by the formulas of `costmodel trace "
          "--backend fused` at its sizes, in the mode in which it ran",),
         TRACED),
    Note(("torch: FlopCounterMode, a multiply-add is 2",)),
    Note(("fvcore: FlopCountAnalysis, a multiply-add is 1",)),
    Note(("executed: operations by hardware counters, without conversions; DRAM: bytes that the "
          "memory read and wrote, caches flushed before each kernel, and as kernels leave them",),
         COUNTED),
    Note((f"measured values: {DIGITS} significant digits; -o keeps every sample",)),
)  # fmt: skip
STATE = "state: bytes held after the new token is appended"
COMPILED = (
    "compiled: time and energy are of the compiled module, all other values of the module itself"
)


def _notes(found: Sequence[Measurement]) -> Iterator[Note]:
    """Yield the table's notes: the meaning of the columns, with the processes of latencies, the
    state and compilation only if a measurement has them; then warnings about single ones."""
    yield from ABOUT_COLUMNS
    timed = readings_of(found, "latency")
    said = processes_words((processes_in(each), grade_of(each)) for each in timed)
    yield from (Note((sentence,)) for sentence in said)
    if any("state" in m.readings for m in found):
        yield Note((STATE,))
    if any("compile" in m.readings for m in found):
        yield Note((COMPILED,))
    doubts = [*_labelled(found), *_contended(found), *_left_out(found)]
    yield from (Note((sentence,)) for sentence in doubts)


def _about(found: Sequence[Measurement]) -> list[tuple[Measurement, str]]:
    """Pairs of each measurement and words that identify it in its table: `she conv`, with sizes and
    dtype if the table has several rows of this implementation."""
    rows = Counter((m.mixer, named(m)) for m in found)
    named_rows = []
    for m in found:
        row = f" ({sizes_words(m.sizes)}, {m.dtype})" if rows[m.mixer, named(m)] > 1 else ""
        named_rows.append((m, f"{m.mixer} {named(m)}{row}"))
    return named_rows


def _labelled(found: Sequence[Measurement]) -> Iterator[str]:
    """Yield a sentence for each label (a doubt about a reading), with the measurements whose
    readings carry it; then the meanings of the labels of latencies and energies."""
    carried: dict[str, list[str]] = {}
    for m, row in _about(found):
        for name, reading in m.readings.items():
            for label in reading.labels:
                carried.setdefault(f"{name.replace('_', ' ')} {label}", []).append(row)
    for label, rows in carried.items():
        yield f"{label}: {'all' if len(rows) == len(found) > 1 else ', '.join(rows)}"
    explained = [*readings_of(found, "latency"), *readings_of(found, "energy")]
    yield from label_meanings(label for reading in explained for label in reading.labels)


def _contended(found: Sequence[Measurement]) -> Iterator[str]:
    """Yield a sentence for each latency that is not comparable."""
    for m, row in _about(found):
        if "latency" in m.readings and (why := contention(m)):
            yield f"latency of {row}: {why}"


def _left_out(found: Sequence[Measurement]) -> Iterator[str]:
    """Yield a sentence for each measurement and other program's counter with the operations that
    the counter did not count, and the operations' share of the time: "an unknown share" if it was
    not measured on a quiet device, and no words on the time without a latency."""
    for m, row in _about(found):
        for name, peer in m.counts["peers"].items():
            if not peer["uncounted"]:
                continue
            listed = ", ".join(f"{op} x{n}" for op, n in peer["uncounted"].items())
            share = peer["uncounted_time_share"]
            known = share is not None and not no_quiet_time(m)
            time = f" ({f'{share:.1%}' if known else 'an unknown share'} of the time)"
            timed = time if "latency" in m.readings else ""
            yield f"{name} did not count in {row}: {listed}{timed}"


def csv_rows(m: Measurement) -> list[tuple[Any, ...]]:
    """A row for each reading, and a row for each missing reading. After the cells that identify the
    record: name, value, unit, number of samples, reason, ends of the interval, grade ("quiet")."""
    lead = (m.mixer, m.implementation, m.form, m.phase, sizes_words(m.sizes), m.dtype, m.device)
    rows = []
    for name, r in m.readings.items():
        graded = name in QUANTITIES and QUANTITIES[name].graded
        spread = (*(r.interval or (None, None)), grade_of(r)) if graded else (None,) * 3
        rows.append((*lead, name, r.value, r.unit, len(r.samples), None, *spread))
    absent = m.reasons.items()
    return rows + [(*lead, name, None, None, None, why, None, None, None) for name, why in absent]
