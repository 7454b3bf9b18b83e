"""The page of a study of mixers: comparisons with the base mixer, growth, and all times.

A ratio is the cost of a mixer over the base's, each by its fastest implementation at a point; a
`Pair` has all ratios of one mixer at one point. Launches *bind* a time if the device waits for them
most of the time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Heading, Note, Paragraph, Part, Strong, Table
from profiler.records.grades import mark_of_all, marked
from profiler.records.measurement import REASON, Measurement, divide, readings_of
from profiler.records.quantities import COMPARED, QUANTITIES
from profiler.records.words import scaled
from profiler.run.energy_tokens import per_token
from profiler.scaling import report
from profiler.scaling.growth import scalings
from profiler.studies.pairs import Cells, Pair, Rounds, measured, pairs, settings
from profiler.studies.plan import StudyPlan
from profiler.studies.published_times import claim
from profiler.studies.ratios import Ratio, bound, ends
from profiler.studies.study import counted

TITLES: Mapping[str, tuple[str, str]] = {
    **{each.reading: (each.page, each.unit) for each in COMPARED if each.page},
    "J_per_token": ("Energy, gross, a token", "J"),
}
"""Reading -> (title, unit) of its table."""


def parts(plan: StudyPlan, records: Sequence[Measurement]) -> Iterator[Part]:
    """Yield the parts of a study's page: the published claim, if the plan names one; a sentence per
    mixer beside the base, and tables of pairs; tables of growth, or why there are none; and per
    setting a table over lengths for each reading of `TITLES` that a record has."""
    found = pairs(records, plan.base, plan.others)
    if plan.claim:
        printed = claim(plan.claim)
        yield Paragraph((printed.claimed,), quote=True)
        yield Paragraph((f"{printed.source}, {printed.place}",), quote=True)
    yield Heading(f"How do they compare with {plan.base}?")
    for name in plan.others:
        own = [pair for pair in found if pair.second[0] == name]
        yield Paragraph((Strong(name), f": {standing(own, plan.base)}."))
    yield from compared(found, plan)
    yield Heading("How does it grow?")
    growths, problems = scalings(measured(records))
    yield from report.tables(growths) if growths else (Paragraph((each,)) for each in problems)
    yield Heading("Every implementation")
    for cells in settings([with_joules_a_token(record) for record in records]):
        yield from filter(None, (over_lengths(cells, reading) for reading in TITLES))


def standing(own: Sequence[Pair], base: str) -> str:
    """Clauses, joined by "; ", on the comparison of one mixer with the base over `own`, all of its
    pairs: at how many points its critical path is shorter, it is faster, needs less memory and
    energy, and where launches or fewer operations may explain the time instead of the path."""
    if not own:
        return f"no point was measured at which this mixer and {base} can be compared"
    shorter = [pair for pair in own if pair.shorter]
    unknown = [pair.steps for pair in own].count(None)
    said = [
        f"its critical path has fewer steps than that of {base} at {len(shorter)} of "
        f"{counted(len(own), 'point')}{f', not derived at {unknown}' if unknown else ''}",
        tally([p.time for p in own], "it is faster", "slower"),
        tally([p.memory for p in own], "it needs less memory", "more"),
    ]
    if any(not pair.energy.refused for pair in own):
        said.append(tally([p.energy for p in own], "it takes less energy", "more"))
    if ratios := [p.operations for p in own if p.operations is not None]:
        said.append(
            f"it takes {min(ratios):.3g} to {max(ratios):.3g} times the operations, as derived"
        )
    if launches := [p for p in own if p.bound and not p.time.refused]:
        said.append(f"at {len(launches)} launches dominate and hide the effect of the path")
    if shorter:
        shown, fewer = ([shows(p) for p in shorter].count(words) for words in (SHOWN, FEWER))
        said.append(
            f"the shorter path shows at {shown}, where the mixer is faster with as many operations "
            f"or more; at {fewer} it is faster with fewer operations, and either may be why"
        )
    return "; ".join(said)


def tally(found: Sequence[Ratio], less: str, more: str) -> str:
    """A sentence: at how many points the ratio is shown to be less than 1 (`less`: "it is faster"),
    more than 1 (`more`: "slower"), or neither, and at how many it is refused: the first reason."""
    fewer, larger = [r for r in found if r.less], [r for r in found if r.more]
    reasons = [r.refused for r in found if r.refused]
    same = len(found) - len(fewer) - len(larger) - len(reasons)
    unknown = f", not compared at {len(reasons)} ({reasons[0]})" if reasons else ""
    return (
        f"{less} at {len(fewer)}{ends(fewer)}, {more} at {len(larger)}{ends(larger)}, and no "
        f"difference is shown at {same}{unknown}"
    )


SHOWN, FEWER = "yes", "faster, with fewer operations"
"""Of a faster mixer with a shorter path: the path alone explains the time, or operations may."""


def shows(pair: Pair) -> str:
    """Words on whether a pair's shorter critical path shows in its time: `SHOWN` if the mixer is
    faster with no fewer operations, which would explain the time too; else why not, or that it is
    not known (of a refused ratio of times, the column of the time has the reason)."""
    if pair.steps is None:
        return "not known: paths not derived"
    if not pair.shorter:
        return "its path is no shorter"
    if pair.time.refused:
        return "not known"
    if pair.bound:
        return "not known: bound by launches"
    if not pair.time.less:
        return "no"
    if pair.operations is None:
        return "faster; operations not derived"
    return SHOWN if pair.operations >= 1 else FEWER


COLUMNS: Sequence[tuple[Column, Callable[[Pair], Cell]]] = (
    (Column("mixer", "mixer", numeric=False, names=True), lambda p: p.second[0]),
    (Column("l", "l", names=True), lambda p: str(p.l)),
    (
        Column("fastest", "its fastest / the base's", numeric=False),
        lambda p: f"{p.second[1]} / {p.first[1]}",
    ),
    (
        Column("steps", "steps of the path"),
        lambda p: f"{p.steps[1]} / {p.steps[0]}" if p.steps else Missing("not derived"),
    ),
    (Column("span", "span, derived"), lambda p: times(p.span)),
    (Column("operations", "operations, derived"), lambda p: times(p.operations)),
    (Column("time", "time", numeric=False), lambda p: p.time.cell("faster", "slower")),
    (Column("shows", "the path shows", numeric=False), shows),
    (Column("memory", "peak memory", numeric=False), lambda p: p.memory.cell()),
    (Column("energy", "energy", numeric=False), lambda p: p.energy.cell()),
)
"""The columns, each with the function from a pair to its cell."""


def times(value: float | None) -> Cell:
    """A derived ratio in words, `0.5 times`; `Missing` if it is not derived (None)."""
    return Missing("not derived") if value is None else f"{value:.3g} times"


def compared(found: Sequence[Pair], plan: StudyPlan) -> Iterator[Table]:
    """Yield one table per setting (phase, dtype and width) with a row for each of the pairs
    `found`, without the columns that are empty in all tables; the last table has the note."""
    rows = {id(pair): tuple(show(pair) for _, show in COLUMNS) for pair in found}
    empty = [
        column.name for k, (column, _) in enumerate(COLUMNS)
        if all(isinstance(row[k], Missing) for row in rows.values())
    ]  # fmt: skip
    wide = "".join(f"with {letter} = d; " for letter in plan.as_wide)
    note = (
        f"ratios: the mixer's value over that of {plan.base}, each by its implementation of the "
        f"least median; {wide}derived ratios by the equations alone; time: CUDA graph replay if "
        "both have it, else hot latency; the intervals of all points of the page hold together at "
        "95 %; memory repeats to the byte"
    )
    for setting in dict.fromkeys(pair.setting for pair in found):
        own = tuple(rows[id(pair)] for pair in found if pair.setting == setting)
        notes = (Note((note,)),) if setting == found[-1].setting else ()
        title = f"Beside {plan.base}: {setting.words}"
        yield Table(title, tuple(column for column, _ in COLUMNS), own, notes).without(empty)


def with_joules_a_token(record: Measurement) -> Measurement:
    """The record with the readings of energy per token added, or the reasons for their absence."""
    found, why = divide(per_token(record))
    readings, reasons = {**record.readings, **found}, {**record.reasons, **why}
    return replace(record, readings=readings, reasons=reasons)


def over_lengths(cells: Cells, reading: str) -> Table | None:
    """Make the table of a reading in one setting (`cells`: its records), with a row per
    implementation and a column per length; None if no record has the reading.

    A cell is the geometric mean of the rounds' medians, as `cell` makes it.
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
    """The cell of a point: the geometric mean of a reading over the rounds (the largest value, if
    one is 0), with its `unit`; or the reason for its absence.

    A time is marked as an estimate if the device was busy in some round. A value that launches
    affect (hot latency and energy, not a CUDA graph's replay or memory) is in brackets if launches
    bound the hot latency of some round.
    """
    found = readings_of(records, reading)
    if not found:
        return Missing(absence(records, reading))
    read = [each.value for each in found]
    mean = statistics.geometric_mean(read) if min(read) > 0 else max(read)  # a peak may be 0 B
    busy = mark_of_all(found) if unit == "s" else ""
    words = marked(mean, busy) if busy else scaled(mean, unit)
    launches = reading not in QUANTITIES or QUANTITIES[reading].launches  # energy per token: yes
    return f"({words})" if launches and bound(measured(records)) else words


def absence(records: Rounds, reading: str) -> str:
    """Words on why a point lacks a reading: the kind of its failure (else the reason of the
    failure), or the recorded reason for the missing reading."""
    for record in records:
        if record.failure:
            kind = str(record.failure.get("kind", ""))
            return kind or record.reasons.get(REASON, "it failed")
    given = (record.reasons.get(reading) for record in records)
    return next(filter(None, given), "not in the records (see below)")
