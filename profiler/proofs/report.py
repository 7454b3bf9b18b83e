"""Which document shows the proofs of a mixer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from costmodel.proofs.check import Proof
from costmodel.report.document import Column, Document, Table

VERDICTS = {True: "holds", False: "FAILS", None: "not checked"}
COLUMNS = (
    Column("proof", "proof", numeric=False, names=True),
    Column("verdict", "verdict", numeric=False),
    Column("detail", "detail", numeric=False, wide=True),
)


def document(name: str, found: Sequence[Proof]) -> Document:
    """A row for each proof."""
    rows = tuple((p.name, VERDICTS[p.passed], p.detail) for p in found)
    return Document(
        lambda: [Table(f"{name}: proofs", COLUMNS, rows)],
        data=lambda: {"mixer": name, "proofs": [asdict(p) for p in found]},
    )
