"""What is a document: headings, sentences, tables, equations and records, in no format yet?

A cell is a value and never its print: each writer says how numbers, formulas and what is missing
read in its format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from costmodel.questions.question import Missing
from costmodel.symbolic.cases import Formula as Answer
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Formula:
    """An exact answer in the sizes; `of` is a function that stands around it, as in O(d*l)."""

    value: Answer
    of: str = ""


@dataclass(frozen=True)
class Math:
    """Notation that is printed already: an array's name, a side of an equation.

    `text` is for a terminal, `latex` stands without dollars.
    """

    text: str
    latex: str


@dataclass(frozen=True)
class Equal:
    """Sides that are equal: l = 128, h = d/n."""

    sides: tuple[Formula | Math | str, ...]


@dataclass(frozen=True)
class Named:
    """What users type, and what a paper calls it."""

    text: str
    title: str


@dataclass(frozen=True)
class Marked:
    """A cell with a footnote."""

    cell: Cell
    note: str


@dataclass(frozen=True)
class Strong:
    """Words that stand out."""

    text: str


@dataclass(frozen=True)
class Code:
    """A command, a name in a program."""

    text: str


Cell = str | int | Fraction | Formula | Math | Equal | Named | Missing | Marked | Strong | Code
Line = tuple[Cell, ...]
"""A sentence; a cell of a table may be one too."""
Text = Cell | Line


def letter(name: str) -> Formula:
    """A size letter, which LaTeX may rename."""
    return Formula(Poly.atom(name))


def sentence(line: Text) -> Line:
    """A line that begins with a capital and ends with a full stop and a space."""
    first, *others = line if isinstance(line, tuple) else (line,)
    first = first[:1].upper() + first[1:] if isinstance(first, str) else first
    last = others[-1] if others else first
    stop = " " if isinstance(last, str) and last.rstrip().endswith((".", "?", "!")) else ". "
    return (first, *others, stop)


def listed(cells: Iterable[Text], between: str = ", ") -> Line:
    """Cells or lines with commas between them."""
    line: list[Cell] = []
    for cell in cells:
        line += [between] if line else []
        line += cell if isinstance(cell, tuple) else (cell,)
    return tuple(line)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: its name in CSV and for users who choose columns.
        header: short words above it; a writer breaks them where it likes.
        title: the words above it in a paper; the header where there are none.
        numeric: whether it is set to the right.
        wide: whether it holds words that may take several lines.
        names: whether it says what a row is about.
        rounded: whether its fractions are always rounded, even short ones.
    """

    name: str
    header: Text
    title: str = ""
    numeric: bool = True
    wide: bool = False
    names: bool = False
    rounded: bool = False


@dataclass(frozen=True)
class Section:
    """Words across a table that head the rows below; without words a thin rule."""

    line: Line = ()


@dataclass(frozen=True)
class Note:
    """What is said below a table; with `of` only while one of those columns is there."""

    line: Line
    of: tuple[str, ...] = ()


Row = tuple[Text, ...]


@dataclass(frozen=True)
class Table:
    """A table: a title, columns, rows, and what must be said below it.

    Args:
        slug: what its label ends in where a document has several tables.
        lead: what its caption says in place of the document's lead.
    """

    title: Text
    columns: tuple[Column, ...]
    rows: tuple[Row | Section, ...]
    notes: tuple[Note, ...] = ()
    slug: str = ""
    lead: tuple[Line, ...] = ()

    @property
    def body(self) -> list[Row]:
        """The rows that have cells."""
        return [row for row in self.rows if not isinstance(row, Section)]

    @property
    def said(self) -> list[Line]:
        """The notes about the columns that are there."""
        here = {column.name for column in self.columns}
        return [note.line for note in self.notes if not note.of or here & {*note.of}]

    @property
    def footnotes(self) -> list[str]:
        """Why cells are missing and what is said of marked ones, each once, in order."""
        texts = (text for row in self.body for cell in row for text in _footnotes(cell))
        return list(dict.fromkeys(texts))

    def without(self, names: Sequence[str]) -> Table:
        """The table without some columns."""
        kept = [k for k, column in enumerate(self.columns) if column.name not in names]
        rows = tuple(
            row if isinstance(row, Section) else tuple(row[k] for k in kept) for row in self.rows
        )
        return replace(self, columns=tuple(self.columns[k] for k in kept), rows=rows)


def _footnotes(cell: Text) -> Iterator[str]:
    if isinstance(cell, tuple):
        for part in cell:
            yield from _footnotes(part)
    elif isinstance(cell, Missing):
        yield cell.reason
    elif isinstance(cell, Marked):
        yield from _footnotes(cell.cell)
        yield cell.note


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the document's."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Sentences; `item` makes it one point of a list, `quote` somebody else's words."""

    line: Line
    item: bool = False
    quote: bool = False


@dataclass(frozen=True)
class Shown:
    """One displayed equation: left and right side, ranges, number in its source.

    `closed` is what the right side comes to, after another equals sign.
    """

    left: Math
    right: Math | Formula
    ranges: tuple[Math, ...] = ()
    cite: str = ""
    closed: Formula | None = None


@dataclass(frozen=True)
class Display:
    """Displayed equations."""

    equations: tuple[Shown, ...]


@dataclass(frozen=True)
class Verbatim:
    """Lines that stand as they are: a drawing, the text of a program."""

    text: str


Part = Heading | Paragraph | Table | Display | Verbatim
Rows = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""The header and the rows of CSV; what does not exist is None."""


@dataclass(frozen=True)
class Document:
    """What a command answers; each part is made when a format asks for it.

    Args:
        parts: headings, sentences, tables and equations.
        lead: what holds for all tables, such as sizes and conventions; every caption says it.
        data: the object of JSON, without its `schema`; None where there is no JSON.
        rows: header and rows of CSV; None where there is no CSV.
    """

    parts: Callable[[], Sequence[Part]]
    lead: tuple[Line, ...] = ()
    data: Callable[[], Mapping[str, Any]] | None = None
    rows: Callable[[], Rows] | None = None


@dataclass(frozen=True)
class Page:
    """How a document is to be written.

    Args:
        width: of a terminal in characters; None for a pipe or a file.
        colour: whether a terminal shows it.
        command: what makes the document again.
        names: size letter -> what LaTeX prints for it.
        label: of LaTeX tables; several get the table's slug behind it.
        caption: the first sentence of LaTeX captions.
    """

    width: int | None = None
    colour: bool = False
    command: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    caption: str = ""


DIGITS = 4
"""Significant digits of a fraction that is rounded."""


def number(value: int | Fraction, *, rounded: bool = False) -> str:
    """A number on a page: whole numbers in full, fractions in full where they are short decimals.

    >>> number(1234567), number(Fraction(12345, 8)), number(Fraction(12345, 8), rounded=True)
    ('1,234,567', '1,543.125', '1,543')
    >>> number(Fraction(278888448, 21119488)), number(Fraction(123456788, 3))
    ('13.21', '41,152,263')
    """
    if isinstance(value, int) or value.denominator == 1:
        return f"{int(value):,}"
    if not rounded and not is_rounded(value):
        whole, rest = divmod(abs(value.numerator) * (10**6 // value.denominator), 10**6)
        return f"{'-' if value < 0 else ''}{whole:,}.{rest:06d}".rstrip("0")
    from decimal import Context, Decimal

    digits = max(DIGITS, len(str(abs(int(value)))) if abs(value) >= 1 else 0)
    context = Context(prec=digits)
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)):,f}"


def is_rounded(value: Fraction) -> bool:
    """Whether a fraction has more than six places after the point, so that it is rounded."""
    return bool(10**6 % value.denominator)


def pieces(word: str) -> list[str]:
    """A long word where it may break, which is in no number and after a sign.

    >>> pieces("self-attention+bidirectional"), pieces("2308.07661"), pieces("4*d**2*l/n")
    (['self-', 'attention+', 'bidirectional'], ['2308.07661'], ['4*d**2*l/n'])
    """
    return _BREAK.split(word) if len(word) > LONG else [word]


LONG = 12
"""A word with more characters may break."""

_SIGNS = r"*/+=;:_)\-.,"
_BREAK = re.compile(
    rf"(?<=[*/+=;:_)\-])(?<!\*\*)(?![{_SIGNS}]|$)|(?<=[.,])(?![{_SIGNS}\d]|$)",
)
"""After a sign, not within `2308.07661`, `d**2` or a run of signs."""
