"""The document that shows a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.report.document import Column, Document, Table
from profiler.doctor.findings import Diagnosis, merged
from profiler.host.probes import MachineFinding


def document(found: Diagnosis) -> Document:
    """Make the document of a diagnosis: a table of quantities, with equal findings merged, and one
    of disturbances; JSON has every finding separately."""
    return Document(
        lambda: tables(found),
        data=lambda: {
            "device": found.device,
            "healthy": found.healthy,
            "measures": [each.to_json() for each in found.findings],
            "disturbances": [each.to_json() for each in found.disturbances],
        },
    )


def tables(found: Diagnosis) -> list[Table]:
    """A table of quantities and their findings, and a table of disturbances if there are any."""
    measured = _table(f"Measured on {found.device}", "here", merged(found.findings))
    if not found.disturbances:
        return [measured]
    return [measured, _table("What disturbs or limits measurements", "it", found.disturbances)]


def _table(title: str, verdict: str, findings: Sequence[MachineFinding]) -> Table:
    """Make a table with a row per finding; `verdict` heads the column of verdicts. The column of
    remedies is left out if no finding has a remedy."""
    fixes = any(each.fix for each in findings)
    columns = (
        Column("what", "what", numeric=False, wide=True, names=True),
        Column("verdict", verdict, numeric=False),
        Column("said", "how, or why not", numeric=False, wide=True),
        *([Column("fix", "what would help", numeric=False, wide=True)] if fixes else []),
    )
    rows = tuple((f.what, f.verdict, f.said, *([f.fix] if fixes else [])) for f in findings)
    return Table(title, columns, rows)
