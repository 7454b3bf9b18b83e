"""In which formats is a document written, and what does each of them need?

A new format is its file and one line of `FORMATS`.
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
    """A writer, by its file and function, and the field of a document that it writes."""

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
"""What `--format` takes -> the writer, of this folder."""


def formats(*has: str) -> tuple[str, ...]:
    """The formats of a document that has `rows` or `data` beside its parts."""
    return tuple(name for name, found in FORMATS.items() if found.of in ("parts", *has))


def write(document: Document, format_: str, page: Page) -> str:
    """The document in a format."""
    found = FORMATS[format_]
    text: str = getattr(import_module(f"costmodel.report.{found.file}"), found.function)(
        document, page
    )
    return text
