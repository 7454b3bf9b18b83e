"""Write a document in markdown, with formulas between dollar signs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from costmodel.questions.question import Missing
from costmodel.report.document import (
    Code,
    Display,
    Document,
    Heading,
    Line,
    Marked,
    Named,
    Page,
    Paragraph,
    Part,
    Section,
    Strong,
    Table,
    Text,
    Verbatim,
    number,
)
from costmodel.report.latex import math
from costmodel.report.terminal import spaced, with_notes


def write(document: Document, page: Page) -> str:
    """The document in markdown; a first line names the command that writes it, in a comment."""
    command = page.command.replace("-->", r"--\>")
    first = [(None, f"<!-- {command} -->")] if command else []
    lead = (
        [(None, "  \n".join(text(line, page) for line in document.lead))] if document.lead else []
    )
    parts = [(part, _block(part, notes, page)) for part, notes in with_notes(document.parts())]
    return spaced([*first, *lead, *parts])


def _block(part: Part, notes: Sequence[Line], page: Page) -> str:
    if isinstance(part, Heading):
        return f"{'#' * part.level} {escaped(part.text)}"
    if isinstance(part, Paragraph):
        return ("- " if part.item else "> " if part.quote else "") + text(part.line, page)
    if isinstance(part, Display):
        return f"$$\n\\begin{{aligned}}\n{_equations(part, page)}\n\\end{{aligned}}\n$$"
    if isinstance(part, Verbatim):
        fence = "`" * max(3, longest_run(part.text) + 1)
        return f"{fence}text\n{part.text}\n{fence}"
    return _table(part, notes, page)


def _table(table: Table, notes: Sequence[Line], page: Page) -> str:
    marks = {note: k for k, note in enumerate(table.footnotes, 1)}
    head = [text(column.header, page) for column in table.columns]
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    body = [
        [f"**{text(row.line, page)}**" if row.line else "", *[""] * (len(head) - 1)]
        if isinstance(row, Section)
        else [
            text(cell, page, marks, rounded=column.rounded)
            for column, cell in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]
    title = [f"### {words}", ""] if (words := text(table.title, page)) else []
    below = [f"[{k}] {text(note, page)}" for note, k in marks.items()]
    below += [text(line, page) for line in notes]
    return "\n".join([*title, *lines, *(f"\n{line}" for line in below)])


def text(cell: Text, page: Page, marks: Mapping[str, int] | None = None, *,
         rounded: bool = False) -> str:  # fmt: skip
    """A cell or a sentence; `marks`: footnote -> its number; None prints its words in place."""
    if isinstance(cell, tuple):
        return "".join(text(part, page, marks, rounded=rounded) for part in cell)
    if isinstance(cell, (int, Fraction)):
        return number(cell, rounded=rounded)
    if isinstance(cell, Missing):
        return f"– [{marks[cell.reason] if marks else cell.reason}]"
    if isinstance(cell, Marked):
        return f"{text(cell.cell, page, marks)} [{marks[cell.note] if marks else cell.note}]"
    if isinstance(cell, Named):
        return escaped(cell.title)
    if isinstance(cell, Strong):
        return f"**{escaped(cell.text)}**"
    if isinstance(cell, Code):
        return code(cell.text)
    return escaped(cell) if isinstance(cell, str) else f"${math(cell, page)}$"


def longest_run(words: str) -> int:
    """The length of the longest run of backticks."""
    return max(map(len, re.findall("`+", words)), default=0)


def code(words: str) -> str:
    """Words as inline code; the fence is longer than any run of backticks in the words.

    >>> code("costmodel"), code("a`b")
    ('`costmodel`', '``a`b``')
    """
    fence = "`" * (longest_run(words) + 1)
    space = " " if words.startswith("`") or words.endswith("`") else ""
    inside = words.replace("\n", " ")
    return f"{fence}{space}{inside}{space}{fence}"


def escaped(words: str) -> str:
    """Words without active characters of markdown; two or more leading spaces become `&nbsp;`."""
    inside = words.lstrip(" ")
    lead = "&nbsp;" * (len(words) - len(inside)) if inside and words.startswith("  ") else ""
    plain = inside if lead else words
    for character in ("\\", "|", "*", "<"):
        plain = plain.replace(character, f"\\{character}")
    return lead + plain.replace("\n", " ")


def _equations(part: Display, page: Page) -> str:
    lines = []
    for shown in part.equations:
        sides = " = ".join(math(s, page) for s in (shown.right, shown.closed) if s is not None)
        ranges = (
            rf", && {_ranges}" if (_ranges := r",\ ".join(r.latex for r in shown.ranges)) else ""
        )
        number_of = shown.cite.replace("(", "").replace(")", "").replace("-", "--")
        cite = rf" && \text{{({number_of})}}" if number_of else ""
        lines.append(f"{shown.left.latex} &= {sides}{ranges}{cite}")
    return " \\\\\n".join(lines)
