"""Which parts do the pages of mixers share: every implementation over lengths, and how it grows?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Heading, Note, Paragraph, Part, Table
from profiler.records.measurement import REASON, Measurement
from profiler.records.words import PHASES, scaled
from profiler.run.energy_tokens import tokens
from profiler.scaling import report
from profiler.scaling.growth import Scaling
from profiler.studies.ratios import bound

Rounds = list[Measurement]

TITLES: Mapping[str, tuple[str, str]] = {
    "latency": ("Latency, hot", "s"),
    "latency_graph": ("Latency, graph", "s"),
    "peak_memory": ("Peak memory", "B"),
    "energy": ("Energy, gross, a call", "J"),
}
"""Reading -> title and unit of its table."""


@dataclass(frozen=True)
class Setting:
    """What the points of one table have in common."""

    phase: str
    dtype: str
    d: int

    @property
    def words(self) -> str:
        """In a title."""
        return f"{PHASES[self.phase]}, {self.dtype}, d = {self.d}"


@dataclass(frozen=True)
class Cells:
    """The records of a setting: (mixer, implementation) -> length -> rounds."""

    setting: Setting
    candidates: Mapping[tuple[str, str], Mapping[int, Rounds]]

    @property
    def lengths(self) -> list[int]:
        """Every length of any candidate."""
        return sorted({l for found in self.candidates.values() for l in found})

    def at(self, mixer: str, length: int) -> dict[str, Rounds]:
        """The implementations of a mixer that were measured at a length."""
        return {
            implementation: kept
            for (name, implementation), found in self.candidates.items()
            if name == mixer and (kept := measured(found.get(length, [])))
        }


def measured(records: Sequence[Measurement]) -> Rounds:
    """Those that are no failures."""
    return [record for record in records if not record.failure]


def settings(records: Sequence[Measurement]) -> Iterator[Cells]:
    """The records by phase, element type and width."""
    groups: dict[Setting, dict[tuple[str, str], dict[int, Rounds]]] = {}
    for record in records:
        setting = Setting(record.phase, record.dtype, record.sizes["d"])
        candidate = groups.setdefault(setting, {}).setdefault(
            (record.mixer, record.implementation), {}
        )
        candidate.setdefault(record.sizes["l"], []).append(record)
    for setting in sorted(groups, key=lambda s: (list(PHASES).index(s.phase), s.dtype, s.d)):
        yield Cells(setting, groups[setting])


def every_implementation(records: Sequence[Measurement], readings: Sequence[str]) -> Sequence[Part]:
    """The part with a table for each setting and reading that anybody has."""
    found = (over_lengths(cells, reading) for cells in settings(records) for reading in readings)
    return [Heading("Every implementation"), *(table for table in found if table is not None)]


def growing(found: Sequence[Scaling], problems: Sequence[str]) -> Sequence[Part]:
    """The part with measured exponents beside derived ones, or why there are none."""
    told = [Paragraph((problem,)) for problem in problems]
    return [Heading("How does it grow?"), *(report.tables(found) if found else told)]


def over_lengths(cells: Cells, reading: str) -> Table | None:
    """A row for each implementation, a column for each length; None where nobody has the reading.

    A cell is the geometric mean of the rounds' medians; what is bound by launches is in brackets.
    """
    if not any(
        reading in r.readings
        for found in cells.candidates.values()
        for rs in found.values()
        for r in rs
    ):
        return None
    title, unit = TITLES[reading]
    lengths = cells.lengths
    columns = (
        Column("mixer", "mixer", numeric=False, names=True),
        Column("implementation", "implementation", numeric=False, names=True),
        *(Column(f"l={l}", f"l = {l}") for l in lengths),
    )
    rows = tuple(
        (*names, *(cell(found.get(l, []), reading, unit) for l in lengths))
        for names, found in cells.candidates.items()
    )
    shown = [text for row in rows for text in row[2:] if isinstance(text, str)]
    bracketed = any(text.startswith("(") for text in shown)
    notes = [Note(("in brackets: bound by launches",))] if bracketed else []
    return Table(f"{title}: {cells.setting.words}", columns, rows, tuple(notes))


def cell(records: Rounds, reading: str, unit: str) -> Cell:
    """The value of a point, or the reason why there is none."""
    read = [r.readings[reading].value for r in records if reading in r.readings]
    if not read:
        return Missing(absence(records, reading))
    words = scaled(statistics.geometric_mean(read) if min(read) > 0 else max(read), unit)
    return f"({words})" if reading != "peak_memory" and bound(measured(records)) else words


def absence(records: Rounds, reading: str) -> str:
    """Why a point has no value."""
    for record in records:
        if record.failure:
            kind = str(record.failure.get("kind", ""))
            return kind or record.reasons.get(REASON, "it failed")
    given = (record.reasons.get(reading) for record in records)
    return next(filter(None, given), "not in the records (see below)")


def per_token(records: Sequence[Measurement]) -> float | None:
    """Gross joules a token, the mean of the rounds; None where energy was not measured."""
    found = [
        r.readings["energy"].value / tokens(r.phase, r.sizes)
        for r in records
        if "energy" in r.readings
    ]
    return statistics.fmean(found) if found else None
