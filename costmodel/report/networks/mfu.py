"""Formulas for MFU beside the exact operations of a training step, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodel.networks.numerators import Compared
from costmodel.report.document import Cell, Column, Note, Table


def tables(found: Sequence[Compared], number: str) -> Iterator[Table]:
    """Yield two tables: a row for each formula for MFU (of `found`) with its operations beside the
    exact number (a note for one without), and a row for each term in which a formula differs from
    the exact operations; `number`, such as "-2" or "", ends the labels of the tables."""
    # all formulas have the same exact terms beside them, and "6N" has a number for every network
    exact = sum(one.exact for one in next(f for f in found if f.differences).differences)
    columns = (
        Column("formula", "formula", numeric=False, names=True),
        Column("operations", "operations"),
        Column("ratio", "over the exact"),
        Column("pairs", "pairs of tokens", numeric=False),
        Column("source", "source", numeric=False, wide=True),
    )
    rows: list[tuple[Cell, ...]] = [("exact", exact, "1.0000", "those that are there", "")]
    notes = []
    for one in found:
        formula = one.numerator
        if one.missing:
            notes.append(Note((f"{formula.name}: {one.missing}",)))
            continue
        ratio, source = f"{one.total / exact:.4f}", f"{formula.formula}; {formula.source}"
        rows.append((formula.name, one.total, ratio, formula.pairs, source))
    title = "MFU: operations of a training step of one sequence, by formula"
    yield Table(title, columns, tuple(rows), tuple(notes), f"mfu{number}")
    of_terms = (
        Column("formula", "formula", numeric=False, names=True),
        Column("term", "term", numeric=False),
        Column("counted", "formula counts"),
        Column("exact", "exact"),
        Column("more", "difference"),
        Column("share", "of the exact total"),
        Column("why", "why", numeric=False, wide=True),
    )
    rows = [
        (one.numerator.name, d.term, d.counted, d.exact, d.more, f"{d.more / exact:+.4%}", d.why)
        for one in found
        for d in one.differences
        if d.more
    ]
    title = "MFU: where the formulas differ from the exact operations"
    yield Table(title, of_terms, tuple(rows), (), f"mfu-terms{number}")
