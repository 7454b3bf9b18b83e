"""The table of `table --from`: measurements beside their derived costs, and ratios of both.

A record (`Measurement`) is one measured call, with readings (`latency`, `energy`, ...); a figure is
a derived quantity, such as `total`. Ratios are to records of self-attention (`BASELINE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from costmodel.errors import UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.mixers import BASELINE
from costmodel.mixers.load import known
from costmodel.program.chosen_sizes import fit, letters_of
from costmodel.program.conventions import Convention
from costmodel.program.element_types import Dtypes, entry_bytes
from costmodel.program.phases import phase_name
from costmodel.questions.question import Missing, Value, answers
from costmodel.questions.registry import FIGURES, meant
from costmodel.report import mixer_document
from costmodel.report.document import (
    Cell,
    Column,
    Document,
    Equal,
    Line,
    Marked,
    Note,
    Rows,
    Table,
    letter,
)
from costmodel.report.mixer_table import Request, Row, baseline, column_name
from costmodel.report.records import exact
from costmodel.symbolic.sizes import in_order, is_letter
from profiler.host.machine_groups import machine_groups
from profiler.records.grades import BUSY, QUIET, grade_of
from profiler.records.measurement import Measurement, readings_of
from profiler.records.quantities import COMPARED, QUANTITIES, MeasuredQuantity
from profiler.records.reading import INTERVAL, Reading
from profiler.records.words import PHASES, options_words, without_equations
from profiler.run.report import measured, named

READ: Mapping[str, MeasuredQuantity] = {
    f"measured_{each.cost_key}" if each.cost_key in FIGURES else each.cost_key: each
    for each in QUANTITIES.values()
}
"""Column -> the reading that it shows; the name carries the unit."""

RATIOS: Mapping[str, MeasuredQuantity] = {f"{each.reading}_ratio": each for each in COMPARED}
"""Column -> the reading that is divided by that of self-attention."""

FACTS: Mapping[str, str] = {
    "machine": "machine", "mixer": "mixer", "implementation": "implementation", "form": "form",
    "phase": "phase", "dtype": "dtype", "device": "device", "round": "round",
}  # fmt: skip
"""Column -> its header, for the columns that identify a row, besides the sizes."""

ENDS: Mapping[str, tuple[str, int]] = {
    f"{each.reading}_{end}_{each.unit}": (each.reading, which)
    for each in COMPARED
    if each.graded
    for which, end in enumerate(INTERVAL)
}
"""Column of CSV and JSON -> the reading, and the end of the reading's interval: 0 or 1."""

GRADES: Mapping[str, str] = {
    f"{column.removesuffix(f'_{each.unit}')}_grade": column
    for columns in (READ, RATIOS)
    for column, each in columns.items()
    if each.graded
}
"""Column of CSV and JSON -> the column whose value has this grade, `quiet` or `busy`."""

COLUMNS = (*FACTS, *READ, *RATIOS, *FIGURES)
"""The names in `--columns`; size letters are columns too."""

WORDS: Mapping[str, str] = {
    **{name: column for column, each in READ.items() if (name := each.reading) not in FIGURES},
    "time": "latency_s", "runtime": "latency_s", "memory": "peak_memory_bytes",
    "mixers": "mixer", "machines": "machine",
}  # fmt: skip
"""Word -> the column of a measurement that it means, before the words for derived figures."""


def grades_of(column: str) -> list[str]:
    """The columns of CSV and JSON with the ends of the interval and the grade of a column's values.

    >>> grades_of("latency_s"), grades_of("latency_ratio"), grades_of("total")
    (['latency_ci_low_s', 'latency_ci_high_s', 'latency_grade'], ['latency_ratio_grade'], [])
    """
    ends = [end for end, (of, _) in ENDS.items() if column in READ and of == READ[column].reading]
    return [*ends, *(grade for grade, of in GRADES.items() if of == column)]


def meaning(word: str) -> str | None:
    """The column that a word means: a column's name as it is, or a synonym ("runtime" ->
    "latency_s"); None for an unknown word. TableError for one that may mean several columns."""
    plain = word.strip().lower().replace("-", "_").replace(" ", "_")
    return word if word in COLUMNS else WORDS.get(plain) or meant(word)


def named_in_records(mixers: Sequence[str]) -> set[str]:
    """The names under which records keep these mixers, as typed on the command line (with options,
    say); a name that is no mixer, such as a module without equations, is kept as typed."""
    found = set()
    for name in mixers:
        try:
            found.add(known(name).origin)
        except UnknownMixer:
            found.add(name)
    return found


@dataclass(frozen=True, eq=False)
class MeasuredRow:
    """One record: what was measured, and the derived costs of its mixer at its sizes.

    Args:
        machine: the machine in words.
        derived: the row of derived costs; or why there is none.
        against: the records of self-attention that its readings are divided by.
    """

    record: Measurement
    machine: str
    derived: Row | Missing
    against: tuple[Measurement, ...]

    def value(self, name: str) -> Value | float:
        """The value of this row in a column: a size, a fact of the record, a measured reading, its
        ratio to self-attention, or a derived cost; `Missing` with a reason where there is none. A
        size that the record lacks, and the end or grade of a missing value, are None."""
        record = self.record
        if is_letter(name):
            return record.sizes.get(name)
        if name == "machine":
            return self.machine
        if name == "implementation":
            return named(record) + options_words(
                {x: y for x, y in record.options.items() if x != "compile"}
            )
        if name in FACTS:
            found: str | int = getattr(record, name)
            return found
        if name in READ:
            return self._reading(READ[name].reading)
        if name in RATIOS:
            return self._ratio(RATIOS[name].reading)
        if name in ENDS:
            return self._end(*ENDS[name])
        if name in GRADES:
            return self._grade(GRADES[name])
        return self.derived if isinstance(self.derived, Missing) else self.derived.value(name)

    def _reading(self, name: str) -> float | Missing:
        """The value of the reading `name`; `Missing` with the reason why there is none."""
        if name not in self.record.readings:
            return Missing(self.record.reason(name))
        return self.record.readings[name].value

    def _end(self, name: str, which: int) -> float | Missing | None:
        """An end of the interval of the reading `name`, 0 or 1; None without the reading."""
        reading = self.record.readings.get(name)
        if reading is None:
            return None
        ends = reading.interval
        return Missing(reading.why_no_interval) if ends is None else ends[which]

    def _grade(self, column: str) -> str | None:
        """The grade of the value in a column of readings or ratios: quiet if each reading in the
        value is quiet; None without a value."""
        if isinstance(self.value(column), Missing):
            return None
        return QUIET if all(grade_of(each) == QUIET for each in self._readings(column)) else BUSY

    def _readings(self, column: str) -> list[Reading]:
        """The readings that the value in a column of readings or ratios is computed from."""
        if column in READ:
            return readings_of([self.record], READ[column].reading)
        name = RATIOS[column].reading
        below = least(self.against, name)
        return readings_of([self.record, *([below] if below else [])], name)

    def _ratio(self, name: str) -> float | Missing:
        """The record's reading `name` divided by the least such reading of self-attention at equal
        sizes, from the same round; `Missing` with the reason if either is absent, or the divisor is
        0."""
        own = self._reading(name)
        if isinstance(own, Missing):
            return own
        found = least(self.against, name)
        if found is None:
            return Missing(f"{BASELINE} was not measured at these sizes, in this round")
        below = found.readings[name].value
        return own / below if below else Missing(f"the {name} of {BASELINE} is 0")

    def cell(self, name: str, shown: Sequence[str]) -> Cell | Line:
        """The value of the column `name` as a cell of a table with the columns `shown`. Footnotes
        mark a mixer that is not causal, and a ratio unless the machine was quiet for both."""
        if name in READ:
            return measured(self.record, READ[name].reading)
        found = self.value(name)
        if name in RATIOS and isinstance(found, float):
            ratio = Fraction(found)
            return ratio if self._grade(name) == QUIET else Marked(ratio, ESTIMATED)
        if name in FIGURES and isinstance(self.derived, Row):
            return mixer_document.row_cell(self.derived, name, shown)
        assert not isinstance(found, float)
        shows = mixer_document.cell(found)
        if name == "mixer" and isinstance(self.derived, Row):
            why = mixer_document.not_causal(self.derived.mixer)
            return Marked(shows, why) if why else shows
        return shows


ESTIMATED = "of an estimate: a device was disturbed, or there is one sample"


def least(records: Sequence[Measurement], name: str) -> Measurement | None:
    """The record with the least reading of a name; None if none has the reading."""
    there = [record for record in records if name in record.readings]
    return min(there, key=lambda record: record.readings[name].value, default=None)


def rows_of(records: Sequence[Measurement]) -> list[MeasuredRow]:
    """Make a `MeasuredRow` for each record, in order, with the derived costs at the record's sizes
    and, for ratios, the records of self-attention (`BASELINE`) of the same machine, device, type,
    phase, options and round at equal sizes (`against`). Derived ratios are to the fastest of these
    (`base`), else the first. A record without such records has `against` ()."""
    machines = _machines(records)
    baselines: dict[tuple[object, ...], list[Measurement]] = {}
    for record in records:
        if record.mixer == BASELINE:
            baselines.setdefault(_setting(record, machines), []).append(record)
    mixers: dict[tuple[str, str], Mixer | Missing] = {}
    derived: dict[tuple[object, ...], Row | Missing] = {}
    rows = []
    for record in records:
        in_setting = baselines.get(_setting(record, machines), [])
        against = tuple(one for one in in_setting if _at_same_sizes(record, one))
        subject = (record.mixer, record.form)
        if subject not in mixers:
            mixers[subject] = _mixer(*subject)
        base = least(against, "latency") or next(iter(against), None)
        sizes = tuple(record.sizes.items()), base and tuple(base.sizes.items())
        key = (*subject, record.phase, record.dtype, *sizes)
        if key not in derived:
            derived[key] = _derived(record, mixers[subject], base)
        rows.append(MeasuredRow(record, machines[record.id], derived[key], against))
    return rows


def _machines(records: Sequence[Measurement]) -> dict[str, str]:
    """A dict: id of a record -> its machine in words, the name of its GPU or CPU; of several groups
    of one name (other machines, or other software) the second is `NAME (2)`."""
    found: dict[str, str] = {}
    taken: dict[str, int] = {}
    for group in machine_groups(records):
        name = str(group.fact("device_name" if group.on_gpu else "cpu") or "unknown machine")
        taken[name] = number = taken.get(name, 0) + 1
        words = name if number == 1 else f"{name} ({number})"
        found |= {record.id: words for record in group.records}
    return found


def _setting(record: Measurement, machines: Mapping[str, str]) -> tuple[object, ...]:
    """What two records must share for a ratio: machine, device, element type, phase, options, round
    and the sizes b, l, t and d. `_at_same_sizes` compares the sizes that only some mixers have."""
    options = repr(sorted(record.options.items()))
    where = (machines[record.id], record.device, record.dtype, record.phase, options)
    return (*where, record.round, *(record.sizes.get(x) for x in ("b", "l", "t", "d")))


def _at_same_sizes(one: Measurement, two: Measurement) -> bool:
    """Whether the sizes that both records have are equal."""
    return all(one.sizes[x] == two.sizes[x] for x in one.sizes.keys() & two.sizes.keys())


def _mixer(name: str, form: str) -> Mixer | Missing:
    """The mixer that a record names; or `Missing` with the reason why no costs are derived: no
    equations, an unknown mixer, or no such form."""
    if not form:
        return Missing(without_equations(name))
    try:
        found = known(name)
    except ValueError as error:
        return Missing(str(error))
    if form not in found.forms:
        return Missing(f"{name} has no form '{form}': it has {', '.join(found.forms)}")
    return found


def _derived(
    record: Measurement, mixer: Mixer | Missing, base: Measurement | None
) -> Row | Missing:
    """The row of derived costs, at the record's sizes, of the form that its implementation
    executes; ratios are to self-attention at the sizes of the record `base`. `Missing` with a
    reason if there is no mixer, or the record lacks a size, or has one that the mixer refuses or a
    type that is unknown. Without `base`, sizes of self-attention alone are defaults."""
    if isinstance(mixer, Missing):
        return mixer
    phase = phase_name(record.phase)
    wanted = letters_of(mixer, phase, record.form)
    if lacking := [x for x in wanted if x not in record.sizes]:
        return Missing(f"the record has no size {lacking[0]}")
    sizes = {x: record.sizes[x] for x in wanted}
    try:
        fit(mixer, sizes)
        entry_bytes(record.dtype)
    except ValueError as error:
        return Missing(str(error))
    given = {x: (size,) for x, size in base.sizes.items()} if base else {}
    return Row(
        answers(mixer, record.form, phase, Convention()),
        sizes,
        symbolic=False,
        dtypes=Dtypes(record.dtype),
        baseline=baseline(Request((mixer,), given=given)),
    )


def points(records: Sequence[Measurement]) -> list[dict[str, Any]]:
    """A dict for each record, for pictures: mixer, implementation, form, phase, machine, dtype,
    sizes, and `readings`, the title of a measured quantity -> [value, its unit]."""
    machines = _machines(records)
    return [
        {
            "mixer": record.mixer,
            "implementation": record.implementation,
            "form": record.form,
            "phase": phase_name(record.phase),
            "machine": machines[record.id],
            "dtype": record.dtype,
            "sizes": dict(record.sizes),
            "readings": {
                each.title: [record.readings[each.reading].value, each.unit]
                for each in READ.values()
                if each.title and each.reading in record.readings
            },
        }
        for record in records
    ]


USUAL = ("latency_s", "latency_ratio", "ratio", "total", "peak_memory_bytes", "traffic", "energy_J",
         "energy_ratio")  # fmt: skip
"""The columns of the default table, behind those that identify a row; those of energy only if a
record has energy."""


@dataclass(frozen=True)
class Records:
    """The rows of a table of records, and its columns.

    Args:
        asked: the columns by name; None for the usual ones.
    """

    rows: tuple[MeasuredRow, ...]
    asked: tuple[str, ...] | None = None

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row: facts and sizes."""
        letters = in_order({x for row in self.rows for x in row.record.sizes})
        return (*FACTS, *letters)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The columns of `identity` whose values differ between rows; the mixer always."""
        values = {name: {row.value(name) for row in self.rows} for name in self.identity}
        return tuple(x for x, found in values.items() if x == "mixer" or len(found) > 1)

    @cached_property
    def usual(self) -> tuple[str, ...]:
        """The usual columns."""
        energy = any("energy" in row.record.readings for row in self.rows)
        return tuple(name for name in USUAL if energy or not name.startswith("energy"))

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of a printed table; the phase is its title."""
        own = tuple(name for name in self.varying if name != "phase")
        return (*own, *self.usual) if self.asked is None else self.asked

    def sorted(self, column: str | None) -> Records:
        """A copy with the rows sorted by a column, in descending order with "-" in front
        ("-latency"); rows without a value come last. None: unchanged. Raises TableError: an unknown
        column."""
        if column is None:
            return self
        name, down = column_name(column.removeprefix("-"), COLUMNS, meaning), column.startswith("-")
        keyed = [(row, row.value(name)) for row in self.rows]
        valued = [(row, v) for row, v in keyed if isinstance(v, int | float | str | Fraction)]
        without = [row for row, v in keyed if not isinstance(v, int | float | str | Fraction)]
        valued.sort(key=lambda pair: pair[1], reverse=down)
        return replace(self, rows=(*(row for row, _ in valued), *without))

    def document(self) -> Document:
        """Make the document: a table per phase. JSON and CSV have exact values, all columns that
        identify a row, and the reasons for missing values."""
        return Document(
            self.tables,
            lead=(self.lead,),
            data=lambda: {"rows": self.data()},
            rows=self.in_csv,
        )

    @property
    def lead(self) -> Line:
        """The line above the tables that names columns with one value in all rows: "all rows: dtype
        fp32, ..."; () if there is no such column."""
        same = [name for name in self.identity if name not in (*self.varying, "phase", "round")]
        cells: list[Cell] = []
        for name in same:
            value = str(self.rows[0].value(name))
            own: Cell = Equal((letter(name), value)) if is_letter(name) else f"{name} {value}"
            cells += [", " if cells else "all rows: ", own]
        return tuple(cells)

    def tables(self) -> list[Table]:
        """One table per phase."""
        phases = dict.fromkeys(row.record.phase for row in self.rows)
        return [self._table(phase) for phase in phases]

    def _table(self, phase: str) -> Table:
        """Make the table of the rows of one phase. Columns of sizes that no row has are left out,
        unless `--columns` names them."""
        rows = [row for row in self.rows if row.record.phase == phase]
        shown = [
            name
            for name in self.shown
            if self.asked is not None
            or not is_letter(name)
            or any(name in row.record.sizes for row in rows)
        ]
        return Table(
            f"Measured and derived: {PHASES[phase]}",
            tuple(map(self._column, shown)),
            tuple(tuple(row.cell(name, shown) for name in shown) for row in rows),
            NOTES,
            phase,
            (self.lead,),
        )

    def _column(self, name: str) -> Column:
        """The header of a column, which is a reading, a ratio to self-attention, a fact of the
        record, or a derived cost."""
        if name in READ:
            return Column(name, READ[name].title or READ[name].heading or READ[name].reading)
        if name in RATIOS:
            header = f"{RATIOS[name].title}, ratio to {BASELINE}"
            return Column(name, header, rounded=True)
        if name in FACTS:
            return Column(name, FACTS[name], numeric=False, names=True)
        names = name in self.identity
        return replace(mixer_document.column(name, names=names), names=names)

    def in_csv(self) -> Rows:
        """(header, rows) of CSV: first the columns that identify a row, then the usual columns or
        those of `--columns`, then the reasons for missing values in one cell, then of each time and
        energy the ends of its interval and its grade, and the grades of their ratios."""
        columns = [name for name in self.identity if self.asked is None or name not in self.asked]
        columns += self.usual if self.asked is None else self.asked
        grades = [each for name in columns for each in grades_of(name)]
        here = len(columns)
        rows = []
        for row in self.rows:
            values, reasons = row_values(row, (*columns, *grades))
            exactly = [*map(exact_value, values)]
            rows.append([*exactly[:here], reasons, *exactly[here:]])
        return [*columns, "reasons", *grades], rows

    def data(self) -> list[dict[str, Any]]:
        """The rows of JSON, by column."""
        header, rows = self.in_csv()
        return [dict(zip(header, row, strict=True)) for row in rows]


def row_values(row: MeasuredRow, columns: Sequence[str]) -> tuple[list[Value | float], str]:
    """The values of a row, one for each column, and the reasons for missing ones in one string:
    "columns: reason; ..."."""
    values = {name: row.value(name) for name in columns}
    reasons: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Missing):
            reasons.setdefault(value.reason, []).append(name)
    said = "; ".join(f"{' '.join(names)}: {why}" for why, names in reasons.items())
    return [*values.values()], said


def exact_value(value: Value | float) -> Any:
    """A value without rounding, for CSV and JSON: a number, a string, or None."""
    return value if isinstance(value, float) else exact(value)


NOTES = (
    Note(("latency, hot: the median of the samples; with \u2248 an estimate",), ("latency_s",)),
    Note(
        (
            f"ratios to {BASELINE}: measured, over the least value of its implementations at the "
            "same sizes on the same machine, in the same round of a sweep; derived, over its total "
            "at these sizes",
        ),
        (*RATIOS, "ratio"),
    ),
    Note(
        ("derived: by the equations of the form that the implementation executes, convention "
         "strict",),
        tuple(FIGURES),
    ),
)  # fmt: skip
