"""The document of `crossover`: which candidate has the least of a figure, range by range, and the
values on both sides of each break-even. A candidate is a mixer or network in one form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from costmodel.backwards.crossover import Crossover, Stretch
from costmodel.program.chosen_sizes import Given
from costmodel.report.backwards.sizes import words
from costmodel.report.document import (
    Column,
    Document,
    Line,
    Math,
    Note,
    Paragraph,
    Part,
    Row,
    Rows,
    Table,
    letter,
    listed,
    number,
)
from costmodel.report.mixer_document import TITLES, convention_line, sizes_of
from costmodel.report.records import exact
from costmodel.symbolic.pretty import ORDERED, PRETTY
from costmodel.symbolic.printing import Latex, Names
from costmodel.symbolic.ranges.solve import Range
from costmodel.symbolic.sizes import LETTERS

FEW, MANY = 6, 40
"""Up to FEW ranges are one sentence, more are a table, which shows the first MANY ranges alone."""

LISTED = 3
"""The most ranges in a cell of a map."""


def document(crossovers: Sequence[Crossover], given: Given) -> Document:
    """The document of crossovers (which candidate has the least of a figure at which values of a
    size), one for each combination of the sizes `given`: of one, a sentence and the values on both
    sides of each break-even; of several, a table with a row for each combination."""
    one = crossovers[0]
    forms = [(form.mixer, form.form) for form in one.forms]
    return Document(
        lambda: [*_parts(crossovers)],
        lead=(
            sizes_of(  # along t, the new token is the last one unless l is given
                forms, [one.phase], {"l": "t", **given} if one.over == "t" else given, {one.over}
            ),
            (convention_line(one.forms[0].convention),),
        ),
        data=lambda: {"crossovers": [_record(each) for each in crossovers]},
        rows=lambda: _rows(crossovers),
    )


def symbolic(one: Crossover, given: Given, names: Names) -> Document:
    """The document of the conditions on sizes under which a candidate has less of the figure than
    another. Sizes that `given` (size -> values, or the size it is tied to) lacks stay letters,
    printed in LaTeX as `names` says."""
    forms = [(form.mixer, form.form) for form in one.forms]
    letters = {x for mixer, _ in forms for x in mixer.letters} | {*LETTERS}
    lead = (
        sizes_of(forms, [one.phase], given, letters),
        (convention_line(one.forms[0].convention),),
    )
    return Document(
        lambda: [_conditions(one, names)],
        lead=lead,
        data=lambda: {"conditions": [*_condition_records(one)]},
        rows=lambda: (CONDITION, [[*each.values()] for each in _condition_records(one)]),
    )


CONDITION = ("by", "phase", "convention", "over", "least", "against", "where")


def _condition_records(one: Crossover) -> Iterator[dict[str, str]]:
    """Yield the conditions for CSV and JSON: for each case in which a candidate has less than
    another, an object, name of a column (`CONDITION`) -> text ("" for `where`: at every size)."""
    convention = ",".join(one.forms[0].convention.names)
    for each in one.conditions:
        for case in each.cases:
            values = (each.name, each.other, case.written(ORDERED))
            lead = (one.figure.name, one.phase, convention, one.over)
            yield dict(zip(CONDITION, (*lead, *values), strict=True))


def _conditions(one: Crossover, names: Names) -> Table:
    """The table of conditions: a row (candidate, other candidate, condition on the sizes, or "at
    every size") for each case in which the first has less of the figure than the second."""
    columns = (
        Column("least", f"less {one.figure.name}", numeric=False, names=True),
        Column("against", "than", numeric=False, names=True),
        Column("where", "where", numeric=False, wide=True),
    )
    rows: list[Row] = []
    for pair in one.conditions:
        for case in pair.cases:
            where = Math(case.written(PRETTY), case.written(Latex(names)))
            rows.append((pair.name, pair.other, where if where.text else "at every size"))
    bytes_ = [Note(line) for line in _notes_on_bytes(one)]
    return Table(_title(one), columns, tuple(rows), tuple(bytes_))


def _parts(crossovers: Sequence[Crossover]) -> Iterator[Part]:
    """Yield the parts of the document: for several combinations of sizes the table by combination;
    for one, a sentence if it has at most `FEW` ranges, then the values beside each break-even; the
    table of the ranges if there is one range, more than `FEW`, or one with gaps; notes below it."""
    (one, *others) = crossovers
    few = not others and len(one.ranges) <= FEW
    if few:
        yield Paragraph((f"By {one.figure.name}, ", *_clause(one), "."))
    if others:
        table = _table_of_combinations(crossovers)
    else:
        beside = few and len(one.ranges) > 1 and all(x.step == 1 for x in one.ranges)
        table = _both_sides(one) if beside else _ranges(one)
    notes: dict[Line, None] = {}
    if never := [name for name in one.names if name not in _candidates_shown(crossovers)]:
        notes[(f"never the least: {', '.join(never)}",)] = None
    notes |= dict.fromkeys(note for each in crossovers for note in _notes(each))
    yield replace(table, notes=(*table.notes, *map(Note, notes)))


def _clause(one: Crossover) -> Line:
    """A clause that says which candidate has the least at which sizes: `A is cheaper for l = 1 to
    65, B from l = 66 on` (of three `the cheapest`, of ratios `lower`, `the lowest`), or `at every
    l`; the sizes at which all candidates are equal come last."""
    compared = "cheaper" if len(one.names) == 2 else "the cheapest"
    if one.figure.kind == "ratio":
        compared = "lower" if len(one.names) == 2 else "the lowest"
    if len(one.ranges) == 1:
        least = one.ranges[0].least
        verb = "is" if len(least) == 1 else "are"
        return (f"{' and '.join(least)} {verb} {compared} at every ", letter(one.over))
    places: dict[tuple[str, ...], list[Line]] = {}  # candidates with the least -> their ranges
    for stretch in one.ranges:
        places.setdefault(stretch.least, []).append(_place(one, stretch))
    equal = places.pop(one.names, [])
    clauses: list[Line] = []
    for least, where in places.items():
        verb = "" if clauses else f" {'is' if len(least) == 1 else 'are'} {compared}"
        clauses.append((f"{' and '.join(least)}{verb} ", *_and(where)))
    said = listed(clauses, ", " if all(len(where) == 1 for where in places.values()) else "; ")
    return (*said, "; they are equal ", *_and(equal)) if equal else said


def _and(where: Sequence[Line]) -> Line:
    return listed(where, " and " if len(where) < 3 else ", ")


def _place(one: Crossover, stretch: Stretch) -> Line:
    """A range as a phrase: for t = 1 to 65, from t = 66 on."""
    if stretch.step == 1 and stretch.last > stretch.first and one.goes_on(stretch):
        return ("from ", letter(one.over), f" = {number(stretch.first)} on")
    return ("for ", letter(one.over), f" = {_range(one, stretch)}")


def _range(one: Crossover, stretch: Stretch) -> str:
    """A range of sizes at which the same candidates have the least, as text: 1 to 65; 66 on; 17 to
    24, and so every 16 on (then 33 to 40, 49 to 56, ...), of `width` 8 and `step` 16."""
    on = one.goes_on(stretch)
    if stretch.width == 1:
        return words(Range(stretch.first, stretch.last, stretch.step), on=on)
    assert isinstance(one.domain, range)
    end = stretch.first + (stretch.width - 1) * one.domain.step
    every = stretch.step * one.domain.step
    until = "on" if on else f"to {number(stretch.last)}"
    return f"{number(stretch.first)} to {number(end)}, and so every {every:,} {until}"


def _title(one: Crossover) -> Line:
    """The title of a table: the phase, and the figure with its meaning."""
    result = "loss" if one.forms[0].convention.backward.loss else "output"
    parts = (p.format(result=result) if isinstance(p, str) else p for p in TITLES[one.phase])
    return (*parts, f": the least {one.figure.name} ({one.figure.meaning})")


def _varying(crossovers: Sequence[Crossover]) -> tuple[str, ...]:
    """The sizes that differ between combinations."""
    return tuple(x for x in crossovers[0].given if len({each.given[x] for each in crossovers}) > 1)


def _ranges(one: Crossover) -> Table:
    """The table with a row for each range of the size and the candidates that have the least there;
    of more than `MANY` ranges the first, with a note."""
    columns = (
        Column(one.over, letter(one.over), names=True),
        Column("least", f"least {one.figure.name}", numeric=False),
    )
    rows = [(_range(one, stretch), " = ".join(stretch.least)) for stretch in one.ranges[:MANY]]
    notes = []
    if len(one.ranges) > MANY:
        shown = f"{len(one.ranges):,} ranges, of which the first {MANY} are shown"
        notes.append(Note((f"{shown}: CSV and JSON have all",)))
    return Table(_title(one), columns, tuple(rows), tuple(notes))


def _table_of_combinations(crossovers: Sequence[Crossover]) -> Table:
    """The table with a row for each combination of sizes and a column for each candidate shown, of
    the first `LISTED` ranges in which the candidate has the least, alone or as another ("1 to 64
    (equal)"), and the number of more."""
    one, varying = crossovers[0], _varying(crossovers)
    columns = (
        *(Column(x, letter(x), names=True) for x in varying),
        *(Column(name, name, numeric=False, wide=True) for name in _candidates_shown(crossovers)),
    )
    rows: list[Row] = []
    for each in crossovers:
        cells = []
        for name in _candidates_shown(crossovers):
            least = [stretch for stretch in each.ranges if name in stretch.least]
            said = [_range(each, x) + " (equal)" * (len(x.least) > 1) for x in least[:LISTED]]
            more = [f"{len(least) - LISTED:,} more ranges"] if len(least) > LISTED else []
            cells.append("; ".join((*said, *more)))
        rows.append((*(each.given[x] for x in varying), *cells))
    at = Note(("the ranges of ", letter(one.over), " in which each has the least"))
    return Table(_title(one), columns, tuple(rows), (at,))


def _candidates_shown(crossovers: Sequence[Crossover]) -> list[str]:
    """The names of the candidates with a column: all of up to `FEW`; of more, those that have the
    least at some size, so that the table stays narrow."""
    names = crossovers[0].names
    if len(names) <= FEW:
        return [*names]
    least = {name for each in crossovers for stretch in each.ranges for name in stretch.least}
    return [name for name in names if name in least]


def _both_sides(one: Crossover) -> Table:
    """The table with a row for each size beside a break-even, the border of two ranges (4 and 5 for
    1 to 4 and 5 on; no range has gaps): the values of the candidates in `_candidates_shown`, and
    the names of the candidates with the least."""
    columns = (
        Column(one.over, letter(one.over), names=True),
        *(Column(name, name) for name in _candidates_shown([one])),
        Column("least", f"least {one.figure.name}", numeric=False),
    )
    sizes: dict[int, None] = {}
    for before, after in pairwise(one.ranges):
        sizes |= {before.last: None, after.first: None}
    rows = [
        (x, *(one.values(x)[name] for name in _candidates_shown([one])), " = ".join(one.least(x)))
        for x in sizes
    ]
    return Table(_title(one), columns, tuple(rows))


def _notes(one: Crossover) -> Iterator[Line]:
    """Yield the notes below the table: the element types of bytes, the values of the size at which
    the mixers exist (unless all do), and the first `LISTED` ranges of the size at which a mixer has
    no answer, with the reason."""
    yield from _notes_on_bytes(one)
    lead = ("values of ", letter(one.over), " that fit: ")
    if not isinstance(one.domain, range):
        yield (*lead, ", ".join(map(number, one.domain)))
    elif one.domain.step > 1:
        yield (*lead, f"the multiples of {one.domain.step:,}")
    for stretch, reason in one.beyond[:LISTED]:
        yield (letter(one.over), f" = {_range(one, stretch)}: no answer, {reason}")


def _notes_on_bytes(one: Crossover) -> Iterator[Line]:
    if one.figure.unit.endswith(("bytes", "/byte")):
        yield (f"bytes: {one.dtypes.caption_of(form.mixer for form in one.forms)}",)


def _record(one: Crossover) -> Mapping[str, Any]:
    """The object of JSON for one crossover: what is compared, the values of the solved size that
    fit ({"multiples_of": 8} or a list), and the ranges (`Stretch`) with the figure of each
    candidate at both ends."""
    domain = one.domain
    return {
        "by": one.figure.name,
        "over": one.over,
        "phase": one.phase,
        "convention": list(one.forms[0].convention.names),
        "candidates": [
            {"name": each.name, "mixer": each.about.mixer.name, "form": each.about.form,
             "sizes": dict(each.line.given),
             "dtypes": one.dtypes.record_of(each.about.mixer.dtypes)}
            for each in one.candidates
        ],
        "fitting": {"multiples_of": domain.step} if isinstance(domain, range) else list(domain),
        "ranges": [
            {"first": each.first, "last": each.last, "step": each.step, "width": each.width,
             "least": list(each.least),
             "at_first": _values(one, each.first), "at_last": _values(one, each.last)}
            for each in one.ranges
        ],
    }  # fmt: skip


def _values(one: Crossover, size: int) -> dict[str, Any]:
    return {name: exact(value) for name, value in one.values(size).items()}


def _rows(crossovers: Sequence[Crossover]) -> Rows:
    """The header and the rows of CSV: a row for each range of each crossover, with the figure of
    all candidates at both ends."""
    one = crossovers[0]
    letters = [*one.given]
    header = ["by", "phase", "convention", *letters, "over"]
    header += ["first", "last", "step", "width", "least"]
    header += [f"{name} at {end}" for end in ("first", "last") for name in one.names]
    rows = []
    for each in crossovers:
        convention = ",".join(each.forms[0].convention.names)
        lead = [each.figure.name, each.phase, convention, *(each.given[x] for x in letters)]
        for x in each.ranges:
            ends = [v for end in (x.first, x.last) for v in _values(each, end).values()]
            stretch = [each.over, x.first, x.last, x.step, x.width, " = ".join(x.least)]
            rows.append([*lead, *stretch, *ends])
    return header, rows
