"""How does a grid of cells become text for a terminal, markdown, LaTeX or CSV?

Numbers are never truncated, wrapped or rounded here: a terminal that is too narrow loses whole
columns, in the order that the grid states, and a note says which.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO

from costmodel.report.cells import (
    Below,
    Cell,
    Column,
    Dash,
    Grid,
    Line,
    Math,
    Note,
    as_sentence,
    formula,
    plain,
    sentence,
)
from costmodel.report.typeset import PACKAGES, escaped, latex, latex_cell, preamble

__all__ = [
    "PACKAGES",
    "Below",
    "Cell",
    "Column",
    "Dash",
    "Grid",
    "Line",
    "Math",
    "Note",
    "as_csv",
    "as_sentence",
    "escaped",
    "formula",
    "latex",
    "latex_cell",
    "markdown",
    "markdown_cell",
    "plain",
    "preamble",
    "sentence",
    "terminal",
]


def markdown_cell(cell: Cell) -> str:
    """A cell in markdown."""
    if isinstance(cell, Dash):
        return f"– [{cell.mark}]"
    if isinstance(cell, Math):
        return f"${cell.latex}$"
    if isinstance(cell, Below):
        return f"({cell.letter})"
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


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
    widths = [
        min(natural, words) if words and column.wide else natural
        for column, natural in zip(grid.columns, _widths(grid), strict=True)
    ]
    return sum(widths) + 2 * max(len(widths) - 1, 0)


def _widths(grid: Grid) -> list[int]:
    """The width of the longest line of each column."""
    columns = [
        [plain(column.header), *(plain(row[k]) for row in grid.rows)]
        for k, column in enumerate(grid.columns)
    ]
    return [max(len(line) for cell in cells for line in cell.split("\n")) for cells in columns]


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
    fitting = width >= _width(grid)
    for column, natural in zip(grid.columns, _widths(grid), strict=True):
        justify = "right" if column.numeric else "left"
        header = Text(plain(column.header))
        table.add_column(
            header,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=not column.wide,
            overflow="fold",
            width=natural if fitting else None,
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


def as_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Comma-separated values; what does not exist is an empty cell."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return file.getvalue()
