"""How does a grid of cells become text for a terminal, markdown, LaTeX or CSV?

Numbers are never truncated, wrapped or rounded here: a terminal that is too narrow loses whole
columns, in the order that the grid states, and a note says which.
"""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from math import inf

from costmodel.rules.breaking import LINE, width as points
from costmodel.rules.printing import Formula, Names, cases_latex, formula_latex, formula_words

TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textquoteleft{}",
    "\n": " ",
    '"': "''",
}
"""What LaTeX would take for a command, in any text font."""

OUTSIDE = {
    "→": r"$\to$",
    "–": "--",
    "—": "---",
    "×": r"$\times$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "µ": r"$\mu$",
}
"""Characters outside ASCII that occur in titles and units."""


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


def markdown_cell(cell: Cell) -> str:
    """A cell in markdown."""
    if isinstance(cell, Dash):
        return f"– [{cell.mark}]"
    if isinstance(cell, Math):
        return f"${cell.latex}$"
    if isinstance(cell, Below):
        return f"({cell.letter})"
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def escaped(text: str) -> str:
    """Text as LaTeX prints it: no character acts as a command.

    >>> escaped("100% of d_model & more")
    '100\\\\% of d\\\\_model \\\\& more'
    """
    known = {**TEX, **OUTSIDE}
    return "".join(known.get(c) or (c if c.isascii() else _unaccented(c)) for c in text)


def _unaccented(character: str) -> str:
    """A letter that every LaTeX font has; a question mark where there is none."""
    plain_letter = unicodedata.normalize("NFKD", character)[0]
    return plain_letter if plain_letter.isascii() else "?"


def latex_cell(cell: Cell) -> str:
    """A cell in LaTeX."""
    if isinstance(cell, Dash):
        return rf"--\textsuperscript{{{cell.mark}}}"
    if isinstance(cell, Below):
        return f"({cell.letter})"
    return f"${cell.latex}$" if isinstance(cell, Math) else escaped(cell)


def as_sentence(line: Line) -> Line:
    """A line that begins with a capital and ends with a point and a space."""
    first, *others = line
    first = first[:1].upper() + first[1:] if isinstance(first, str) else first
    return (first, *others, ". ")


def sentence(line: Line) -> str:
    """A line on a terminal."""
    return "".join(map(plain, line))


def terminal(grid: Grid, width: int | None = None, *, colour: bool = False) -> str:
    """The grid for a terminal of this width, or at full width where there is none (a pipe)."""
    dropped: list[str] = []
    if width is not None and _width(grid, WRAPPED) > width:
        grid = grid.lettered()
    for name in grid.drop:
        if width is None or _width(grid, WRAPPED) <= width:
            break
        if any(column.name == name for column in grid.columns):
            grid = grid.without([name])
            dropped.append(name)
    natural = _width(grid)
    narrow = width is not None and _width(grid, WRAPPED) <= width < natural
    text = _drawn(grid, width if narrow and width else natural, colour)
    lines = [f"({letter}) {formula.text}" for letter, formula in grid.defined]
    lines += [f"({mark}) {reason}" for mark, reason in grid.marks]
    lines += [sentence(line) for line in grid.said]
    if dropped:
        lines.append(
            f"{width} columns are too narrow: left out {', '.join(dropped)} (in this order); a "
            f"wider terminal or a pipe shows all"
        )
    return text + "".join(f"{line}\n" for line in lines)


WRAPPED = 24
"""The width to which a column of words may shrink before columns are dropped."""


def _width(grid: Grid, words: int | None = None) -> int:
    """The width with columns of words at most so wide; two spaces stand between columns."""
    widths = []
    for k, column in enumerate(grid.columns):
        cells = [plain(column.header), *(plain(row[k]) for row in grid.rows)]
        natural = max(len(line) for cell in cells for line in cell.split("\n"))
        widths.append(min(natural, words) if words and column.wide else natural)
    return sum(widths) + 2 * max(len(widths) - 1, 0)


def _drawn(grid: Grid, width: int, colour: bool) -> str:
    """The table itself, drawn by rich at a width in which every number fits."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        header_style="bold" if colour else "",
    )
    for column in grid.columns:
        justify = "right" if column.numeric else "left"
        header = Text(plain(column.header))
        table.add_column(
            header,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=not column.wide,
            overflow="fold",
            vertical="bottom" if column.numeric else "top",
        )
    for row in grid.rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    file = StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    console.print(table)
    lines = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
    title = f"\x1b[1m{grid.title}\x1b[0m" if colour else grid.title
    return f"{title}\n\n{lines}\n" if grid.title else f"{lines}\n"


def markdown(grid: Grid, heading: str = "##") -> str:
    """The grid as a markdown table, reasons and notes below it."""
    head = [markdown_cell(column.header) for column in grid.columns]
    rule = ["---:" if column.numeric else "---" for column in grid.columns]
    body = [[markdown_cell(cell) for cell in row] for row in grid.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]
    below = [f"[{mark}] {markdown_cell(reason)}" for mark, reason in grid.marks]
    below += ["".join(map(markdown_cell, line)) for line in grid.said]
    title = [f"{heading} {grid.title}", ""] if grid.title else []
    return "\n".join([*title, *lines, *(f"\n{line}" for line in below)]) + "\n"


PACKAGES = ("amsmath", "array", "booktabs", "graphicx", "longtable")
"""What a document must load to take in the fragments written here."""


def preamble(command: str) -> str:
    """The first lines of a LaTeX fragment: the command that makes it again, what it needs."""
    return f"% {' '.join(command.split())}\n% needs \\usepackage{{{','.join(PACKAGES)}}}"


def latex(grid: Grid, caption: Line, label: str = "", *, long: bool = False) -> str:
    """The grid as a booktabs table, a fragment, shrunk where it is wider than the text.

    `long` lets it run over pages instead, all columns of words then sharing the width. Formulas of
    several cases stand below the table, where they may break into lines; so do long formulas where
    the table would get too small to read.
    """
    tried = [grid.lettered(most) for most in ((inf,) if long else LONG)]
    grid = next((found for found in tried if _points(found) <= SHRUNK * LINE), tried[-1])
    align = "".join(_alignment(grid, k, long) for k in range(len(grid.columns)))
    head = " & ".join(_latex_header(column) for column in grid.columns)
    body = [" & ".join(map(latex_cell, row)) + r" \\" for row in grid.rows]
    below = [rf"\textsuperscript{{{mark}}}\,{escaped(reason)}" for mark, reason in grid.marks]
    words = "".join(map(latex_cell, caption)).strip()
    defined = [rf"\par\smallskip\raggedright {_defined(*each)}" for each in grid.defined]
    many = sum(max(len(formula.cases), 1) for _, formula in grid.defined) > MANY
    if long:
        return _long_table(align, head, body, words, label)
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{words}}}",
        *([rf"\label{{{label}}}"] if label else []),
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *([] if many else defined),
        *(rf"\par\smallskip\raggedright {line}." for line in below),
        r"\end{table}",
    ]
    if many:
        begin = r"\begingroup\footnotesize\noindent Formulas of Table~\thetable:"
        lines += [begin, *defined, r"\par\endgroup"]
    return "\n".join(lines) + "\n"


def _defined(letter: str, formula: Math) -> str:
    """The cases of a formula, one a line, each free to break at its signs."""
    shown = r";\newline ".join(rf"${value}$ \ if ${when}$" for value, when in formula.cases)
    shown = shown or f"${formula.latex}$"
    return rf"\noindent\hangindent=2.5em\makebox[2.5em][l]{{({letter})}}{shown}."


def _points(grid: Grid) -> float:
    """How wide a table is in LaTeX before it is shrunk, about, in points."""
    total = 0.0
    for k, column in enumerate(grid.columns):
        cells = [*plain(column.header).split("\n"), *(row[k] for row in grid.rows)]
        widest = max(
            SMALL * points(c.latex) if isinstance(c, Math) else LETTER * LINE * len(plain(c))
            for c in cells
        )
        total += min(widest, (0.2 if column.wide else 0.3) * LINE) + 6
    return total


SMALL = 0.8
"""The size of the type in a table, to that of the text."""

SHRUNK = 1.6
"""A table that is wider than the text by more than this gets too small to read."""

LONG = (inf, 120.0, 100.0, 80.0, 60.0)
"""The width in points above which formulas leave the table: the first with which it fits."""

MANY = 24
"""With more lines of formulas than this the table would be too large for a page."""


def _alignment(grid: Grid, k: int, long: bool) -> str:
    """How a column is set: numbers to the right, words and long formulas in lines of their own."""
    column = grid.columns[k]
    formulas = [row[k] for row in grid.rows if isinstance(row[k], Math)]
    lengthy = any(len(cell.latex) > LENGTHY for cell in formulas if isinstance(cell, Math))
    if not (column.wide or lengthy):
        return "r" if column.numeric else "l"
    share = 0.65 / sum(c.wide for c in grid.columns) if long else 0.2 if column.wide else 0.3
    words = [word for row in grid.rows if isinstance(row[k], str) for word in str(row[k]).split()]
    if column.wide and not long:
        share = max(share, LETTER * max(map(len, words), default=0))
    return rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\textwidth}}"


LETTER = 0.0125
"""The width of a letter as a share of the text's: a column is as wide as its longest word."""

LENGTHY = 60
"""A formula with more characters of LaTeX than this is broken into lines."""


def _long_table(align: str, head: str, body: Sequence[str], caption: str, label: str) -> str:
    lines = [
        r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\begin{{longtable}}{{@{{}}{align}@{{}}}}",
        rf"\caption{{{caption}}}" + (rf"\label{{{label}}}" if label else "") + r" \\",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        r"\endhead",
        *body,
        r"\bottomrule",
        r"\end{longtable}",
        r"\endgroup",
    ]
    return "\n".join(lines) + "\n"


def _latex_header(column: Column) -> str:
    if isinstance(column.header, str) and "\n" in column.header:
        parts = r"\\".join(map(escaped, column.header.split("\n")))
        side = "r" if column.numeric else "l"
        return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{parts}\end{{tabular}}"
    return latex_cell(column.header)


def as_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Comma-separated values; what does not exist is an empty cell."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return file.getvalue()
