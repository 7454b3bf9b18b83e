"""Does a user's text stay text in every program that opens a document?"""

from __future__ import annotations

import csv
from io import StringIO

import pytest

from costmodel.commands.streams import harmless
from costmodel.report.document import (
    Code,
    Column,
    Document,
    Heading,
    Math,
    Page,
    Paragraph,
    Table,
    Verbatim,
)
from costmodel.report.formats import write

CELLS = {
    "=1+1": "'=1+1", "@SUM(A1)": "'@SUM(A1)", "+1+cmd": "'+1+cmd", "-d*l": "'-d*l",
    "\t=1": "'\t=1", "\r=1": "'\\r=1", "-12": "-12", "+1.5e-3": "+1.5e-3", "-2/3": "-2/3",
    "-": "-", "d = 3": "d = 3", "": "",
}  # fmt: skip


def test_a_spreadsheet_computes_no_text() -> None:
    rows = [[text, 7] for text in CELLS]
    document = Document(list, rows=lambda: (["=name", "number"], rows))
    said = harmless(write(document, "csv", Page()))
    read = list(csv.reader(StringIO(said, newline="")))
    assert read == [["'=name", "number"], *([shown, "7"] for shown in CELLS.values())]


TAG = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    "part",
    [
        Heading(TAG, 2),
        Table(TAG, (Column("a", TAG, numeric=False),), ((TAG,),)),
        Verbatim(f"```\n{TAG}"),
        Code(f"`{TAG}"),
    ],
)
def test_markdown_has_no_html_of_others(part: Heading | Table | Verbatim | Code) -> None:
    """A tag is escaped, or stands in code that what it holds does not end."""
    shown = [Table("", (Column("a", "a"),), ((part,),))] if isinstance(part, Code) else [part]
    said = write(Document(lambda: shown), "markdown", Page(command=f"costmodel --> {TAG}"))
    first, _, rest = said.partition("\n")
    assert first == rf"<!-- costmodel --\> {TAG} -->"
    if isinstance(part, Verbatim):
        assert rest.strip() == f"````text\n```\n{TAG}\n````"
    elif isinstance(part, Code):
        assert f"`` `{TAG} ``" in rest
    else:
        assert TAG in rest and rest.count("<") == rest.count(r"\<")


ESCAPED = {
    "[x](javascript:1)": r"[x\](javascript:1)",
    "![x](javascript:1)": r"![x\](javascript:1)",
    "[x]: javascript:1": r"[x\]: javascript:1",
    "[x][y]": r"[x\][y]",
    "$x$ __init__ W_in ~~z~~": r"\$x\$ \_\_init\_\_ W_in \~~z\~~",
    "&lt;b&gt; a & b": r"\&lt;b\&gt; a & b",
    "a ` b": r"a \` b",
    "```": r"\`\`\`",
    "give `a`, [5]": "give `a`, [5]",
}


@pytest.mark.parametrize("text", ESCAPED)
def test_markdown_reads_no_text_of_others_as_its_own(text: str) -> None:
    shown: list[Paragraph | Table] = [
        Paragraph((text,)),
        Table("", (Column("a", "a"),), ((text,),)),
    ]
    said = write(Document(lambda: shown), "markdown", Page()).splitlines()
    assert (said[0], said[-1]) == (ESCAPED[text], f"| {ESCAPED[text]} |")


@pytest.mark.parametrize("text", ["# a", "> a", "- a", "=== a", "~~~ a"])
def test_a_paragraph_of_markdown_begins_no_other_block(text: str) -> None:
    said = write(Document(lambda: [Paragraph((text,))]), "markdown", Page())
    assert said.lstrip("\\")[0] == text[0] and said.startswith("\\")


def test_a_symbol_ends_no_cell_and_begins_no_tag_of_markdown() -> None:
    symbol = Math("x", r"|x|<y \|z\|")
    said = write(
        Document(lambda: [Table("", (Column("a", "a"),), ((symbol,),))]), "markdown", Page()
    )
    assert said.splitlines()[-1] == r"| $\vert x\vert < y \Vert z\Vert $ |"
