"""The parts of a document, before it is written in a format: headings, sentences, tables, records.

A cell holds a value and never its printed text: each writer decides how numbers, formulas and
missing values are printed in its format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from costmodel.questions.question import Missing
from costmodel.symbolic.cases import Formula as Answer
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Formula:
    """An exact answer in the sizes; `of` is a function printed around it, "O" for O(d*l)."""

    value: Answer
    of: str = ""


@dataclass(frozen=True)
class Math:
    """Notation that is already formatted: an array's name, a side of an equation.

    `text` is for a terminal, `latex` for LaTeX, without dollar signs.
    """

    text: str
    latex: str


@dataclass(frozen=True)
class Equal:
    """An equation between its sides: l = 128, h = d/n."""

    sides: tuple[Formula | Math | str, ...]


@dataclass(frozen=True)
class Named:
    """A name as users type it; its title in a paper, and the (size, value) in its braces."""

    text: str
    title: str
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Marked:
    """A cell with a footnote, whose text is `note`."""

    cell: Cell
    note: str


@dataclass(frozen=True)
class Strong:
    """Words in bold."""

    text: str


@dataclass(frozen=True)
class Code:
    """A command or a name in a program, in a typewriter font."""

    text: str


Cell = str | int | Fraction | Formula | Math | Equal | Named | Missing | Marked | Strong | Code
Line = tuple[Cell, ...]
"""A sentence; a cell of a table may be one too."""
Text = Cell | Line


def letter(name: str) -> Formula:
    """A size letter as a formula, so that LaTeX prints the symbol of `Page.names`."""
    return Formula(Poly.atom(name))


def sentence(line: Text) -> Line:
    """A line of one part or more as a sentence: a capital at its beginning; ". " added to its end,
    or " " after ".", "?" or "!": ("Sizes: ", 3, ". ") for ("sizes: ", 3)."""
    first, *others = line if isinstance(line, tuple) else (line,)
    first = first[:1].upper() + first[1:] if isinstance(first, str) else first
    last = others[-1] if others else first
    stop = " " if isinstance(last, str) and last.rstrip().endswith((".", "?", "!")) else ". "
    return (first, *others, stop)


def listed(cells: Iterable[Text], between: str = ", ") -> Line:
    """Cells or lines joined into one line, with `between` between them."""
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
        header: a short header, which a writer may break into lines.
        title: the header in a paper; if empty, `header`.
        numeric: whether the column is aligned to the right.
        wide: whether the column holds words that may be broken into several lines.
        names: whether the column is part of the name of a row, as mixer and form are.
        rounded: whether all its fractions are rounded, even short decimals.
    """

    name: str
    header: Text
    title: str = ""
    numeric: bool = True
    wide: bool = False
    names: bool = False
    rounded: bool = False


def naming(columns: Sequence[Column]) -> list[int]:
    """The indices of the columns with `Column.names`; [0], the first column, if there are none."""
    return [k for k, column in enumerate(columns) if column.names] or [0]


@dataclass(frozen=True)
class Section:
    """A heading across a table for the rows below; without words, a gap."""

    line: Line = ()


@dataclass(frozen=True)
class Note:
    """A note below a table; with `of`, only if the table has one of these columns."""

    line: Line
    of: tuple[str, ...] = ()


Row = tuple[Text, ...]


@dataclass(frozen=True)
class Table:
    """A table: a title, columns, rows, and notes below it.

    Args:
        slug: the end of the table's label in LaTeX, in a document with several tables.
        lead: sentences in the table's caption; if empty, the document's lead.
    """

    title: Text
    columns: tuple[Column, ...]
    rows: tuple[Row | Section, ...]
    notes: tuple[Note, ...] = ()
    slug: str = ""
    lead: tuple[Line, ...] = ()

    @property
    def body(self) -> list[Row]:
        """The rows without the section headings."""
        return [row for row in self.rows if not isinstance(row, Section)]

    @property
    def said(self) -> list[Line]:
        """The notes for any table, and the notes of a column that this table has."""
        here = {column.name for column in self.columns}
        return [note.line for note in self.notes if not note.of or here & {*note.of}]

    @property
    def footnotes(self) -> list[str]:
        """The reasons of missing cells and notes of marked cells, each once, in order of rows."""
        texts = (text for row in self.body for cell in row for text in _footnotes(cell))
        return list(dict.fromkeys(texts))

    @cached_property
    def marks(self) -> Mapping[str, int]:
        """Text of a footnote -> its number, from 1."""
        return {note: k for k, note in enumerate(self.footnotes, 1)}

    def without(self, names: Sequence[str]) -> Table:
        """The table without the columns `names`; section headings stay."""
        kept = [k for k, column in enumerate(self.columns) if column.name not in names]
        rows = tuple(
            row if isinstance(row, Section) else tuple(row[k] for k in kept) for row in self.rows
        )
        return replace(self, columns=tuple(self.columns[k] for k in kept), rows=rows)


def _footnotes(cell: Text) -> Iterator[str]:
    """Yield the footnotes of a cell, as texts in the order in which a table numbers them: the
    reason of a missing value, the note of a marked cell, and those of all parts of a line."""
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
    """A heading; level 1 is the title of the document."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Sentences; with `item` an item of a list, with `quote` a quotation."""

    line: Line
    item: bool = False
    quote: bool = False


@dataclass(frozen=True)
class Shown:
    """One displayed equation: left and right side, ranges of its indices, `cite` (its number in
    its source, or ""), and `closed`, the closed form of the right side, after another equals sign.
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
    """Text to be printed unchanged: a drawing, a program."""

    text: str


Part = Heading | Paragraph | Table | Display | Verbatim
Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""The header and the rows of CSV; a missing value is None."""


@dataclass(frozen=True)
class Document:
    """The answer of a command; each field is computed when a format needs it.

    Args:
        parts: computes the headings, sentences, tables and equations, one after another if it
            returns an iterator: what precedes the first table is then printed at once.
        lead: sentences that hold for all tables, such as the sizes; every caption repeats them.
        data: computes the object of JSON, without its `schema`; None if there is no JSON.
        rows: computes header and rows of CSV; None if there is no CSV.
    """

    parts: Callable[[], Iterable[Part]]
    lead: tuple[Line, ...] = ()
    data: Callable[[], Mapping[str, Any]] | None = None
    rows: Callable[[], Rows] | None = None


@dataclass(frozen=True)
class Page:
    """Options for the writers of a document.

    Args:
        width: the width of the terminal in characters; None for a pipe or a file.
        colour: whether the terminal shows colour and bold.
        command: the command line that writes the document.
        names: size letter -> its symbol in LaTeX.
        label: the label of LaTeX tables; with several tables, each appends its slug.
        caption: the caption of LaTeX tables, in place of the document's own.
        inches: the width of the text or of the column that LaTeX tables stand in.
        tell: prints a sentence for the user beside the document, such as that a table is wider.
    """

    width: int | None = None
    colour: bool = False
    command: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    caption: str = ""
    inches: float | None = None
    tell: Callable[[str], object] = str


DIGITS = 4
"""The significant digits to which a fraction is rounded; more if its integer part has more."""


def number(value: int | Fraction, *, rounded: bool = False) -> str:
    """A number as text: integers, and decimals with at most six places, in full; other fractions
    are rounded to `DIGITS` significant digits, or to an integer if that has more. With `rounded`,
    all fractions are rounded.

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
    """Whether a fraction needs more than six decimal places, so that the fraction is rounded."""
    return bool(10**6 % value.denominator)


def pieces(word: str) -> list[str]:
    """The pieces of a word between which a line may be broken: after signs such as `-`, `+`, `*`,
    but not within decimals; the whole word if it has at most `LONG` characters.

    >>> pieces("self-attention+bidirectional"), pieces("2308.07661"), pieces("4*d**2*l/n")
    (['self-', 'attention+', 'bidirectional'], ['2308.07661'], ['4*d**2*l/n'])
    """
    return _BREAK.split(word) if len(word) > LONG else [word]


LONG = 12
"""A word with more characters than this may be broken."""

_SIGNS = r"*/+=;:_)\-.,"
_BREAK = re.compile(
    rf"(?<=[*/+=;:_)\-])(?<!\*\*)(?![{_SIGNS}]|$)|(?<=[.,])(?![{_SIGNS}\d]|$)",
)
"""Matches after a sign, but not within `2308.07661`, `d**2` or a run of signs."""
