"""The formats of documents: the writer of each, and the field of a document that it needs.

To add a format, write its file in this folder and add a line to `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.report.document import Document, Page
    from costmodel.report.writer import Writer


@dataclass(frozen=True)
class Format:
    """A format: the file and the class of its writer, and the field of a document that is written.

    `of`: "parts", "rows" or "data", the field of `Document`; "frame" for a binary format, whose
    `writer` is a function that writes the rows to a file. `options`: the fields of a page that
    users set for this format, such as `--label`.
    """

    file: str
    writer: str
    of: str = "parts"
    options: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    "rich": Format("terminal", "Terminal"),
    "markdown": Format("markdown", "Markdown", options=("symbols",)),
    "latex": Format("latex", "Latex", options=("symbols", "label", "caption", "width")),
    "csv": Format("records", "Csv", of="rows"),
    "json": Format("records", "Json", of="data"),
    "parquet": Format("frames", "parquet", of="frame"),
}
"""Name in `--format` -> the format."""

SCREEN = "rich"
"""The default format, for a terminal."""


def formats(*has: str) -> tuple[str, ...]:
    """The names of the formats for a document with parts and with `has`: "rows", "data", and
    "frame" if the document is written to a file."""
    return tuple(name for name, found in FORMATS.items() if found.of in ("parts", *has))


def formats_with(option: str) -> list[str]:
    """The formats in which a page has an option, in alphabetical order."""
    return sorted(name for name, found in FORMATS.items() if option in found.options)


def write(document: Document, format_: str, page: Page) -> str:
    """The document as text in a format; imports the writer."""
    return "".join(pieces(document, format_, page))


def pieces(document: Document, format_: str, page: Page) -> Iterator[str]:
    """The pieces of the document's text in a format, in order; imports the writer."""
    writer: Writer = _writer(format_)(page)
    return writer.pieces(document)


def write_frame(document: Document, format_: str, path: Path) -> None:
    """Write the rows of a document to a file, in a format of "frame"."""
    _writer(format_)(document, path)


def _writer(format_: str) -> Any:
    """The class, or for a binary format the function, that writes a format."""
    found = FORMATS[format_]
    return getattr(import_module(f"costmodel.report.{found.file}"), found.writer)
