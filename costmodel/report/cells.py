"""What does a table hold: which cells and columns, and what is said below it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from costmodel.symbolic.cases import Formula
from costmodel.symbolic.latex_width import width as points
from costmodel.symbolic.printing import Names, cases_latex, formula_latex, formula_words


@dataclass(frozen=True)
class Math:
    """A formula in the plain notation and in LaTeX (without dollars).

    `cases` holds the value and the condition of every case in LaTeX, where there are several.
    """

    text: str
    latex: str
    cases: tuple[tuple[str, str], ...] = ()


def formula(value: Formula, names: Names | None = None) -> Math:
    """A count in both notations."""
    return Math(formula_words(value), formula_latex(value, names), cases_latex(value, names))


@dataclass(frozen=True)
class Dash:
    """A value that does not exist; `mark` numbers the note that says why."""

    mark: int


@dataclass(frozen=True)
class Below:
    """A formula that stands below the table, under a letter."""

    letter: str


Cell = str | Math | Dash | Below
Line = tuple[Cell, ...]
"""A sentence with formulas in it."""


@dataclass(frozen=True)
class Column:
    """A column: its name, its header, how it is set, and its name in CSV."""

    name: str
    header: Cell
    numeric: bool = True
    wide: bool = False
    """Text that LaTeX may break."""


@dataclass(frozen=True)
class Note:
    """What is said below a table; with `of` only while one of those columns is shown."""

    line: Line
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """A table: a title, columns, rows, and what must be said below it.

    `drop` names the columns that a narrow terminal loses, in this order. `below` are the formulas
    that cells stand for by a letter.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    reasons: tuple[str, ...] = ()
    notes: tuple[Line | Note, ...] = ()
    drop: tuple[str, ...] = ()
    below: Mapping[str, Math] = field(default_factory=dict)

    def lettered(self, most: float = inf) -> Grid:
        """The grid with formulas below it, each once, and letters in their places.

        Those are the formulas of several cases, and those wider than `most` points.
        """
        found = [c for row in self.rows for c in row if isinstance(c, Math)]
        away = dict.fromkeys(c for c in found if c.cases or points(c.latex) > most)
        letters: dict[Cell, str] = {formula: _letter(k) for k, formula in enumerate(away)}
        rows = tuple(
            tuple(Below(letters[cell]) if cell in letters else cell for cell in row)
            for row in self.rows
        )
        return replace(self, rows=rows, below={letters[formula]: formula for formula in away})

    @property
    def defined(self) -> list[tuple[str, Math]]:
        """The formulas that cells stand for, with their letters."""
        used = {cell.letter for row in self.rows for cell in row if isinstance(cell, Below)}
        return [(letter, found) for letter, found in self.below.items() if letter in used]

    def without(self, names: Sequence[str]) -> Grid:
        """The grid without some columns, and without the reasons that nothing refers to then."""
        kept = [k for k, column in enumerate(self.columns) if column.name not in names]
        rows = tuple(tuple(row[k] for k in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[k] for k in kept), rows=rows)

    @property
    def said(self) -> list[Line]:
        """The notes about what is shown."""
        shown = {column.name for column in self.columns}
        notes = [note if isinstance(note, Note) else Note(note) for note in self.notes]
        return [note.line for note in notes if not note.of or shown & set(note.of)]

    @property
    def marks(self) -> list[tuple[int, str]]:
        """The reasons that cells refer to, with their numbers."""
        used = {cell.mark for row in self.rows for cell in row if isinstance(cell, Dash)}
        return [(k, reason) for k, reason in enumerate(self.reasons, 1) if k in used]


def _letter(k: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    more, last = divmod(k, 26)
    return (_letter(more - 1) if more else "") + chr(ord("a") + last)


def plain(cell: Cell) -> str:
    """A cell on a terminal."""
    if isinstance(cell, Dash):
        return f"- ({cell.mark})"
    if isinstance(cell, Below):
        return f"({cell.letter})"
    return cell.text if isinstance(cell, Math) else cell


def as_sentence(line: Line) -> Line:
    """A line that begins with a capital and ends with a point and a space."""
    first, *others = line
    first = first[:1].upper() + first[1:] if isinstance(first, str) else first
    return (first, *others, ". ")


def sentence(line: Line) -> str:
    """A line on a terminal."""
    return "".join(map(plain, line))
