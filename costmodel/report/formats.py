"""The formats of documents: the writer of each, and the field of a document that it needs.

To add a format, write its file in this folder and add a line to `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodel.report.document import Document, Page


@dataclass(frozen=True)
class Format:
    """A writer: its file, its function, and the field of a document that it writes."""

    file: str
    function: str = "write"
    of: str = "parts"


FORMATS: Mapping[str, Format] = {
    "rich": Format("terminal"),
    "markdown": Format("markdown"),
    "latex": Format("latex"),
    "csv": Format("records", "as_csv", of="rows"),
    "json": Format("records", "as_json", of="data"),
}
"""Name in `--format` -> the writer."""


def formats(*has: str) -> tuple[str, ...]:
    """The formats for a document with parts and the fields `has`, of "rows" and "data"."""
    return tuple(name for name, found in FORMATS.items() if found.of in ("parts", *has))


def write(document: Document, format_: str, page: Page) -> str:
    """The document as text in a format; imports the writer."""
    found = FORMATS[format_]
    text: str = getattr(import_module(f"costmodel.report.{found.file}"), found.function)(
        document, page
    )
    return text
