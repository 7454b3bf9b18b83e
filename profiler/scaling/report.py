"""The document that shows measured exponents beside derived ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.questions.question import Missing
from costmodel.report.document import Cell, Column, Document, Note, Paragraph, Part, Table
from profiler.scaling.derived import LOCAL, MEANINGS
from profiler.scaling.exponents import AGREE, LEAST, Exponent, Unsettled
from profiler.scaling.floors import NEAR
from profiler.scaling.growth import BESIDE, DerivedGrowth, Scaling

FIELDS = (
    "quantity", "along", "mixer", "implementation", "form", "phase", "dtype", "device", "fixed",
    "exponent", "ci_low", "ci_high", "first", "last", "sizes", "derived", "derived_exponent",
    "derived_first", "derived_last", "leaves_at", "reason",
)  # fmt: skip

METHOD = (
    "exponent: slope of a line through the logarithms, by least squares weighted with the "
    "intervals of the medians; settled range: sizes from the largest down, as long as the next "
    f"value lies on the line through the larger ones (slope within {AGREE:g}) and is not "
    f"launch-bound, {LEAST} sizes or more; 95 % interval: the wider of those by the medians' "
    "intervals and by the scatter about the line"
)
FLOORS = (
    "floors (lower bounds): of a time, the recorded launch overhead, and the time of the derived "
    "operations and bytes at the rates of the board that --board names; of memory, the live set of "
    f"the equations; floors explain a value if its interval reaches down to {NEAR:g} times the "
    "larger of launches and the sum of the other floors"
)


def document(found: Sequence[Scaling]) -> Document:
    """Make the document: one table per measured quantity and varied size, with a row for each
    series; JSON has everything, CSV a row for each derived quantity of a series."""
    return Document(
        lambda: tables(found),
        data=lambda: {"scalings": [each.to_json() for each in found]},
        rows=lambda: (FIELDS, [row for each in found for row in csv_rows(each)]),
    )


def tables(found: Sequence[Scaling]) -> list[Part]:
    """One table per measured quantity and varied size; sentences instead if nothing was measured.
    The notes of the last table list the quantities that were measured nowhere, and the methods."""
    groups: dict[tuple[str, str], list[Scaling]] = {}
    for each in found:
        groups.setdefault((each.quantity.reading, each.series.letter), []).append(each)
    tabled = [group for group in groups.values() if any(each.values for each in group)]
    absent = [group[0] for group in groups.values() if group not in tabled]
    nowhere = [Note((f"{each.quantity.title}, in {each.series.letter}: {why_no_values(each)}",))
               for each in absent]  # fmt: skip
    if not tabled:
        said = (
            "Scaling: no quantity was measured at several sizes",
            *(note.line[0] for note in nowhere),
        )
        return [Paragraph((sentence,)) for sentence in said]
    last = (Note((METHOD,)), Note((FLOORS,), ("floors",)), *nowhere)
    return [table_of(group, last if group is tabled[-1] else ()) for group in tabled]


def why_no_values(each: Scaling) -> str:
    """The reason why the quantity of a series without values has none."""
    assert isinstance(each.measured, Unsettled)
    return each.measured.reason


def table_of(group: Sequence[Scaling], last: Sequence[Note]) -> Table:
    """Make the table of one quantity along one size, with a row for each series of `group`: the
    measured exponent over its settled range (`METHOD`), the exponents of derived quantities, and
    the floors (`FLOORS`: lower bounds) that explain values. `last`: notes at the table's end."""
    names = BESIDE[group[0].quantity.unit]
    quantity, letter = group[0].quantity, group[0].series.letter
    columns = (
        Column("mixer", "mixer", numeric=False, names=True),
        Column("implementation", "implementation", numeric=False, names=True),
        Column("setting", "setting", numeric=False, wide=True, names=True),
        Column("range", f"settled {letter}"),
        Column("exponent", "measured exponent"),
        Column("interval", "95 % interval"),
        *(Column(name, f"{name} (derived)") for name in names),
        Column("agrees", "agrees with", numeric=False, wide=True),
        Column("floors", "explained by its floors", numeric=False, wide=True),
    )
    rows = tuple(row(each, names) for each in group)
    ends = "in brackets the local exponents at both ends, if they differ"
    notes = [Note((f"{name}: {MEANINGS[name]}; {ends}",), (name,)) for name in names]
    steps = sorted({g.how for each in group for g in each.derived.values()
                    if isinstance(g, DerivedGrowth) and g.how != LOCAL})  # fmt: skip
    notes += [Note((f"some derived exponents are those {how}",)) for how in steps]
    notes += last
    title = f"Scaling of {quantity.title}, in {letter}"
    return Table(title, columns, rows, tuple(notes))


def row(each: Scaling, names: Sequence[str]) -> tuple[Cell, ...]:
    """The row of one series: mixer, implementation, setting; range of sizes, measured exponent, its
    interval; the exponent of each derived quantity in `names`; which of these the interval holds;
    where values leave their lower bounds. A cell without a value is a dash with the reason."""
    measured: tuple[Cell, Cell, Cell]
    if isinstance(each.measured, Unsettled):
        dash = Missing(each.measured.reason)
        measured = (dash, dash, dash)
    else:
        m = each.measured
        measured = (f"{m.first} to {m.last}", f"{m.value:.2f}", f"{m.low:.2f} to {m.high:.2f}")
    derived: list[Cell] = []
    for name in names:
        growth = each.derived.get(name, "not compared, because nothing was measured")
        derived.append(Missing(growth) if isinstance(growth, str) else growth.words)
    agrees: Cell = measured[1]
    if isinstance(each.measured, Exponent):
        agrees = ", ".join(each.agrees_with) or "none"
    left = each.departure
    floors: Cell = Missing(left) if isinstance(left, str) else left.words
    s = each.series
    return (s.mixer, s.implementation, s.setting + s.asked, *measured, *derived, agrees, floors)


def csv_rows(each: Scaling) -> list[list[Any]]:
    """The rows of CSV of one series, one for each derived quantity (one if there is none): series,
    measured exponent, interval and sizes; derived exponent and ends; the size at which values leave
    their lower bounds; why an exponent is missing. An empty cell is None."""
    printed = each.to_json()
    s, m = each.series, printed["measured"] or {}
    lead = [
        each.quantity.reading, s.letter, s.mixer, s.implementation, s.form, s.phase, s.dtype,
        s.device, " ".join(f"{x}={n}" for x, n in s.fixed),
        *(m.get(key) for key in ("exponent", "ci_low", "ci_high", "first", "last", "sizes")),
    ]  # fmt: skip
    left = (printed["departure"] or {}).get("leaves_at")
    why = printed["reasons"]
    rows = []
    for name in each.derived or ("",):
        g = printed["derived"].get(name) or {}
        own = [name, g.get("power"), g.get("first"), g.get("last")]
        rows.append([*lead, *own, left, why.get("measured") or why.get(name)])
    return rows
