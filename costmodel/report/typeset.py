"""How does a grid of cells become a table in LaTeX, and what fits on its pages?

Widths and heights are estimates: they decide what is broken, shrunk or continued on a further page.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf, sqrt

from costmodel.report.cells import Below, Cell, Column, Dash, Grid, Line, Math, plain
from costmodel.symbolic.latex_width import LINE, width as points

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


PACKAGES = ("amsmath", "array", "booktabs", "graphicx", "longtable")
"""What a document must load to take in the fragments written here."""


def preamble(command: str) -> str:
    """The first lines of a LaTeX fragment: the command that makes it again, what it needs."""
    return f"% {' '.join(command.split())}\n% needs \\usepackage{{{','.join(PACKAGES)}}}"


def latex(grid: Grid, caption: Line, label: str = "", *, long: bool = False) -> str:
    """The grid as a booktabs table, a fragment, shrunk where it is wider than the text.

    `long` lets it run over pages instead, all columns of words then sharing the width. A table that
    is too high for a page is continued in a further one. Formulas of several cases stand below the
    table, where they may break into lines; so do long formulas where the table would get too small
    to read.
    """
    tried = [grid.lettered(most) for most in ((inf,) if long else LONG)]
    grid = next((found for found in tried if _points(found) <= SHRUNK * LINE), tried[-1])
    words = "".join(map(latex_cell, caption)).strip()
    if long:
        return _long_table(grid, words, label)
    shares = [_share(grid, k) for k in range(len(grid.columns))]
    defined = [rf"\par\smallskip\raggedright {_defined(*each)}" for each in grid.defined]
    parts = _pages(grid, shares, len(words))
    few = sum(max(len(formula.cases), 1) for _, formula in grid.defined) <= MANY
    beside = few and len(parts) == 1
    lines = [
        _float(part, shares, "" if k else words, "" if k else label, defined if beside else ())
        for k, part in enumerate(parts)
    ]
    if defined and not beside:
        begin = r"\begingroup\footnotesize\noindent Formulas of Table~\thetable:"
        lines += ["\n".join([begin, *defined, r"\par\endgroup"])]
    return "\n".join(lines) + "\n"


def _float(
    grid: Grid, shares: Sequence[float], caption: str, label: str, defined: Sequence[str]
) -> str:
    """One table on a page; without a caption it continues the one before."""
    align = "".join(map(_alignment, grid.columns, shares))
    below = [rf"\textsuperscript{{{mark}}}\,{escaped(reason)}" for mark, reason in grid.marks]
    again = [r"\addtocounter{table}{-1}", r"\caption{Continued.}"]
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        *([rf"\caption{{{caption}}}"] if caption else again),
        *([rf"\label{{{label}}}"] if label else []),
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
        r"\toprule",
        _head(grid) + r" \\",
        r"\midrule",
        *_body(grid),
        r"\bottomrule",
        r"\end{tabular}}",
        *defined,
        *(rf"\par\smallskip\raggedright {line}." for line in below),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _head(grid: Grid) -> str:
    return " & ".join(_latex_header(column) for column in grid.columns)


def _body(grid: Grid) -> list[str]:
    return [" & ".join(map(_body_cell, grid.columns, row)) + r" \\" for row in grid.rows]


def _body_cell(column: Column, cell: Cell) -> str:
    """A cell; in a column of words, long words may break after their signs."""
    if not (column.wide and isinstance(cell, str)):
        return latex_cell(cell)
    return " ".join(r"\allowbreak{}".join(map(escaped, _pieces(word))) for word in cell.split(" "))


def _pieces(word: str) -> list[str]:
    """A word where it may break, which is in no number: `self-`, `attention+`, `bidirectional`."""
    return _BREAK.split(word) if len(word) > WORD else [word]


_SIGNS = r"*/+=;:_)\-.,"
_BREAK = re.compile(
    rf"(?<=[*/+=;:_)\-])(?<!\*\*)(?![{_SIGNS}]|$)|(?<=[.,])(?![{_SIGNS}\d]|$)",
)
"""After a sign, not within `2308.07661`, `d**2` or a run of signs."""

WORD = 12
"""A word with more characters than this may break."""


def _pages(grid: Grid, shares: Sequence[float], caption: int) -> list[Grid]:
    """The grid, or rows of it that fit on a page each."""
    shrunk = min(1.0, LINE / _points(grid))
    room = PAGE - ROW * (LETTER * (caption + sum(len(said) for _, said in grid.marks)) + 3)
    pages: list[list[Line]] = []
    left = 0.0
    for row in grid.rows:
        height = ROW * shrunk * _rows(row, shares)
        if height > left:
            pages.append([])
            left = room
        pages[-1].append(row)
        left -= height
    return [replace(grid, rows=tuple(rows)) for rows in pages] or [grid]


def _rows(row: Line, shares: Sequence[float]) -> float:
    """How many lines a row takes, about."""
    found = [1.4 if any(r"\frac" in cell.latex for cell in row if isinstance(cell, Math)) else 1.0]
    for cell, share in zip(row, shares, strict=True):
        if share:
            found.append(ceil(_cell_points(cell) / (share * LINE)) * found[0])
    return max(found)


PAGE = 480.0
"""The height that a table may have, in points."""

ROW = 11.0
"""The height of a line of a table, in points."""


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
        widest = max(map(_cell_points, cells))
        total += min(widest, (0.2 if column.wide else 0.3) * LINE) + 6
    return total


def _cell_points(cell: Cell) -> float:
    """How wide a cell is in one line, about, in points."""
    if isinstance(cell, Math):
        return SMALL * points(cell.latex)
    return LETTER * LINE * len(plain(cell))


SMALL = 0.8
"""The size of the type in a table, to that of the text."""

SHRUNK = 1.6
"""A table that is wider than the text by more than this gets too small to read."""

LONG = (inf, 120.0, 100.0, 80.0, 60.0)
"""The width in points above which formulas leave the table: the first with which it fits."""

MANY = 24
"""With more lines of formulas than this the table would be too large for a page."""


def _alignment(column: Column, share: float) -> str:
    """How a column is set: numbers to the right, words and long formulas in lines of their own."""
    if not share:
        return "r" if column.numeric else "l"
    return rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\textwidth}}"


def _share(grid: Grid, k: int) -> float:
    """The width of a column of words or long formulas as a share of the text's; 0 of others."""
    column = grid.columns[k]
    formulas = [row[k] for row in grid.rows if isinstance(row[k], Math)]
    lengthy = any(len(cell.latex) > LENGTHY for cell in formulas if isinstance(cell, Math))
    if column.wide:
        return max(0.2, _least(grid, k))
    return 0.3 if lengthy else 0.0


def _least(grid: Grid, k: int) -> float:
    """The share of the text's width that the longest piece of a column of words takes."""
    words = [word for row in grid.rows if isinstance(row[k], str) for word in str(row[k]).split()]
    return LETTER * max((len(piece) for word in words for piece in _pieces(word)), default=0)


def _shared(grid: Grid) -> list[float]:
    """The widths of columns of words that fill a line together, more where there is more text."""
    columns = range(len(grid.columns))
    wide = [k for k in columns if grid.columns[k].wide]
    narrow = [max(_cell_points(row[k]) for row in grid.rows) for k in columns if k not in wide]
    least = {k: _least(grid, k) for k in wide}
    text = {k: sqrt(sum(len(plain(row[k])) for row in grid.rows)) for k in wide}
    taken = (sum(narrow) + 6 * len(grid.columns)) / LINE + sum(least.values())
    rest = max(1 - taken, 0.0) / (sum(text.values()) or 1)
    return [least[k] + rest * text[k] if k in wide else 0.0 for k in columns]


LETTER = 0.0125
"""The width of a letter as a share of the text's: a column is as wide as its longest word."""

LENGTHY = 60
"""A formula with more characters of LaTeX than this is broken into lines."""


def _long_table(grid: Grid, caption: str, label: str) -> str:
    columns = tuple(replace(column, wide=not column.numeric) for column in grid.columns)
    grid = replace(grid, columns=columns)
    align = "".join(map(_alignment, columns, _shared(grid)))
    lines = [
        r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\begin{{longtable}}{{@{{}}{align}@{{}}}}",
        rf"\caption{{{caption}}}" + (rf"\label{{{label}}}" if label else "") + r" \\",
        r"\toprule",
        _head(grid) + r" \\",
        r"\midrule",
        r"\endhead",
        *_body(grid),
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
