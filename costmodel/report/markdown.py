"""Write a document in markdown, with formulas between dollar signs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from costmodel.report.document import (
    Display,
    Document,
    Equal,
    Formula,
    Heading,
    Line,
    Math,
    Paragraph,
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
        """The equations as one block of aligned LaTeX, a line each: `left &= right = closed form`,
        ranges of indices, number in the source."""
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
        """The table as text: its title above, and below it its numbered footnotes and `notes`; a
        section is a row with its bold heading in the first cell."""
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

    def paragraph(self, part: Paragraph) -> str:
        """A paragraph whose first character begins no other block, such as a heading."""
        text = super().paragraph(part)
        return text if part.item or part.quote else re.sub(r"\A(?=[#>+=~-])", r"\\", text)

    def words(self, words: str) -> str:
        return escaped(words)

    def tex(self, cell: Formula | Math | Equal | str) -> str:
        return in_math(super().tex(cell))

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


ACTIVE = re.compile(r"[\\|*<$]|\](?=[(\[:])|&(?=#?\w+;)|~(?=~)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters that markdown reads as more than text: of escapes, cells, tags, formulas, the end of a
link's or an image's words, entities, and of emphasis."""

IN_CODE = re.compile(r"[^`]*(`[^`]+`[^`]*)*")
"""Words whose backticks, if any, enclose code."""


def escaped(words: str) -> str:
    r"""Words with the active characters of markdown escaped; two or more leading spaces become
    `&nbsp;`, and line breaks spaces. Backticks are escaped unless each pair encloses code.

    >>> escaped("[a](b) <c> d|e"), escaped("`f` g"), escaped("`f` g`")
    ('[a\\](b) \\<c> d\\|e', '`f` g', '\\`f\\` g\\`')
    """
    inside = words.lstrip(" ")
    lead = "&nbsp;" * (len(words) - len(inside)) if inside and words.startswith("  ") else ""
    plain = ACTIVE.sub(r"\\\g<0>", inside if lead else words)
    if not IN_CODE.fullmatch(words):
        plain = plain.replace("`", r"\`")
    return lead + plain.replace("\n", " ")


def in_math(tex: str) -> str:
    r"""LaTeX in which markdown finds no tag, no link and no cell of a table, also where it knows no
    formulas.

    >>> in_math(r"|x|<y"), in_math(r"\|x\|[1](2)")
    ('\\vert x\\vert < y', '\\Vert x\\Vert [1] (2)')
    """
    barred = re.sub(r"(\\?)\|", lambda bar: r"\Vert " if bar[1] else r"\vert ", tex)
    return re.sub(r"<(?=[A-Za-z/!?])|\](?=[(\[:])", r"\g<0> ", barred)
