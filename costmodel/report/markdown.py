"""Write a document in markdown, with formulas between dollar signs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from costmodel.report.document import (
    Display,
    Document,
    Heading,
    Line,
    Section,
    Table,
    Verbatim,
)
from costmodel.report.writer import Marks, Typeset, cited


class Markdown(Typeset):
    """A document in markdown; a first line names the command that writes it, in a comment."""

    missing = "–"

    def beginning(self, document: Document) -> Iterator[str]:
        if command := self.page.command.replace("-->", r"--\>"):
            yield f"<!-- {command} -->"
        if document.lead:
            yield "  \n".join(map(self.text, document.lead))

    def heading(self, part: Heading) -> str:
        return f"{'#' * part.level} {escaped(part.text)}"

    def display(self, part: Display) -> str:
        """The equations as one block of aligned LaTeX, a line each: `left &= right`, ranges,
        number."""
        lines = []
        for shown in part.equations:
            sides = " = ".join(self.tex(s) for s in (shown.right, shown.closed) if s is not None)
            ranges = r",\ ".join(r.latex for r in shown.ranges)
            where = f", && {ranges}" if ranges else ""
            cite = rf" && \text{{({cited(shown.cite)})}}" if shown.cite else ""
            lines.append(f"{shown.left.latex} &= {sides}{where}{cite}")
        body = " \\\\\n".join(lines)
        return f"$$\n\\begin{{aligned}}\n{body}\n\\end{{aligned}}\n$$"

    def verbatim(self, part: Verbatim) -> str:
        fence = "`" * max(3, longest_run(part.text) + 1)
        return f"{fence}text\n{part.text}\n{fence}"

    def table(self, part: Table, notes: Sequence[Line]) -> str:
        """A table with its title above, and below it its footnotes and `notes`."""
        head = [self.text(column.header) for column in part.columns]
        rule = ["---:" if column.numeric else "---" for column in part.columns]
        body = [
            [f"**{self.text(row.line)}**" if row.line else "", *[""] * (len(head) - 1)]
            if isinstance(row, Section)
            else [
                self.text(cell, part.marks, rounded=column.rounded)
                for column, cell in zip(part.columns, row, strict=True)
            ]
            for row in part.rows
        ]
        lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]
        title = [f"### {words}", ""] if (words := self.text(part.title)) else []
        below = [f"[{k}] {self.text(note)}" for note, k in part.marks.items()]
        below += map(self.text, notes)
        return "\n".join([*title, *lines, *(f"\n{line}" for line in below)])

    def words(self, words: str) -> str:
        return escaped(words)

    def noted(self, note: str, marks: Marks) -> str:
        return f" [{marks[note] if marks else note}]"

    def strong(self, words: str) -> str:
        return f"**{escaped(words)}**"

    def code(self, words: str) -> str:
        return code(words)


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
    """Words with the active characters of markdown escaped; two or more leading spaces become
    `&nbsp;`, and line breaks spaces."""
    inside = words.lstrip(" ")
    lead = "&nbsp;" * (len(words) - len(inside)) if inside and words.startswith("  ") else ""
    plain = inside if lead else words
    for character in ("\\", "|", "*", "<"):
        plain = plain.replace(character, f"\\{character}")
    return lead + plain.replace("\n", " ")
