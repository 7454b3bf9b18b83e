"""How does a test print a document of the profiler in a format?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.report.document import Document, Page
from costmodel.report.formats import write
from profiler.host.statement import document as stated
from profiler.reconcile.levels import Ladder
from profiler.reconcile.report import document as reconciled
from profiler.records.measurement import Measurement
from profiler.run.report import document as measured


def printed(document: Document, format_: str = "rich", **page: Any) -> str:
    """A document in a format."""
    return write(document, format_, Page(**page))


def measurements(found: Sequence[Measurement], format_: str = "rich", **page: Any) -> str:
    """A table of measurements in a format."""
    return printed(measured(found), format_, **page)


def ladders(found: Sequence[Ladder], format_: str = "rich", **page: Any) -> str:
    """A summary of ladders and every ladder below it, in a format."""
    return printed(reconciled(found, full=True), format_, **page)


def statement(records: Sequence[Measurement]) -> str:
    """The statement of what was measured, as plain text."""
    return printed(stated(records))
