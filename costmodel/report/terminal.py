"""Write a document for a terminal. Numbers are printed in full; a table that is too wide is drawn
in another shape, with all its columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from costmodel.report.document import (
    Column,
    Display,
    Document,
    Formula,
    Heading,
    Line,
    Marked,
    Page,
    Paragraph,
    Section,
    Table,
    Text,
    naming,
    pieces,
)
from costmodel.report.writer import FACTORED_TEXT, PLAIN_TEXT, Writer

text = PLAIN_TEXT.text

GAP = "  "
"""The text between two columns."""

NARROWEST = 9
"""The least width of a column of words, in characters."""


class Terminal(Writer):
    """A document as text, for a terminal of `page.width` characters or for a pipe (None)."""

    def beginning(self, document: Document) -> Iterator[str]:
        if document.lead:
            yield "\n".join(wrapped(text(line), self.page.width) for line in document.lead)

    def heading(self, part: Heading) -> str:
        lines = wrapped(part.text, self.page.width)
        under = "=" * max(map(len, lines.splitlines()), default=0)
        return bold(f"{lines}\n{under}" if part.level == 1 else lines, self.page)

    def paragraph(self, part: Paragraph) -> str:
        lead = "- " if part.item else "> " if part.quote else ""
        return wrapped(text(part.line), self.page.width, lead)

    def display(self, part: Display) -> str:
        return _equations(part, self.page.width)

    def table(self, part: Table, notes: Sequence[Line]) -> str:
        """The text of a table: its title above, its footnotes and `notes` below. A formula longer
        than the page's width becomes a footnote."""
        part = _with_long_formulas_below(part, self.page.width)
        title = wrapped(text(part.title), self.page.width)
        titled = [bold(title, self.page), ""] if title else []
        marked = [f"({k}) {reason}" for reason, k in part.marks.items()]
        below = (wrapped(line, self.page.width, hang=GAP) for line in (*marked, *map(text, notes)))
        return "\n".join([*titled, *_drawn(part, self.page), *below])


def bold(words: str, page: Page) -> str:
    """Words in bold if the terminal shows colour; else unchanged."""
    return f"\x1b[1m{words}\x1b[0m" if page.colour and words else words


def wrapped(words: str, width: int | None, lead: str = "", hang: str | None = None) -> str:
    """A sentence, after `lead` (up to half a line), in lines of at most `width` characters, broken
    between words. A word longer than a line is broken after a sign such as `-` or `+`, a number
    after a comma, and what is still longer, such as the name of a commit, where the line ends.

    Args:
        width: the width in characters, taken as 20 if less; None leaves the sentence in one line.
        hang: the beginning of further lines, shortened if a word needs the room; by default as
            many spaces as `lead` is long.

    >>> print(wrapped("read at commit 00902f36e65d08b95a83;", 20))
    read at commit
    00902f36e65d08b95a83
    ;
    """
    if width is None:
        return lead + words
    width, hang = max(width, 20), " " * len(lead) if hang is None else hang
    # words are broken to fit behind the lead (up to half a line) and an indentation of at most two
    # gaps; a deeper one is shortened
    room = width - max(min(len(lead), width // 2), min(len(hang), 2 * len(GAP)))
    found = [(len(gap), _fragments(word, room)) for gap, word in _WORDS.findall(words)]
    longest = max((len(part) for _, parts in found for part in parts), default=0)
    hang = hang[: max(width - longest, 0)]
    lines, line = [], lead
    for gap, parts in found:
        for k, part in enumerate(parts):
            added = " " * (0 if k else gap) + part
            if line.strip() and line != lead and len(line) + len(added) > width:
                lines.append(line)
                line = hang + part
            else:
                line += added
    return "\n".join([*lines, line])


_WORDS = re.compile(r"(\s*)(\S+)")


def _fragments(word: str, room: int) -> list[str]:
    """The word; if longer than `room`, cut after signs such as `-` (`pieces`), pieces still longer
    after commas between digits, and parts still longer after every `room` characters."""
    if len(word) <= room:
        return [word]
    return [
        part[start : start + room]
        for piece in pieces(word)
        for part in (re.split(r"(?<=,)(?=\d)", piece) if len(piece) > room else [piece])
        for start in range(0, len(part), room)
    ]


def _equations(part: Display, width: int | None) -> str:
    """The text of displayed equations, one line each; an equation that is too long is broken, with
    its ranges on lines below. `width` None: no line is broken."""
    left = max((len(shown.left.text) for shown in part.equations), default=0)
    lines = []
    for shown in part.equations:
        sides = " = ".join(text(s) for s in (shown.right, shown.closed) if s is not None)
        ranges = f"for {', '.join(r.text for r in shown.ranges)}" if shown.ranges else ""
        tail = "    ".join(filter(None, (ranges, shown.cite)))
        line = "    ".join(filter(None, (f"  {shown.left.text:<{left}} = {sides}", tail)))
        if width is None or len(line) <= width:
            lines.append(line)
            continue
        lines.append(wrapped(f"{shown.left.text} = {sides}", width, GAP, 3 * GAP))
        lines += [wrapped(tail, width, 3 * GAP, 4 * GAP)] if tail else []
    return "\n".join(lines)


def _with_long_formulas_below(table: Table, width: int | None) -> Table:
    """The table with each cell that is one formula of more than `width` characters moved to a
    footnote, and a mark in the cell."""
    if width is None:
        return table

    def short(cell: Text) -> Text:
        formula = FACTORED_TEXT.text(cell) if isinstance(cell, Formula) else ""
        return Marked("", formula) if len(formula) > width else cell

    rows = (row if isinstance(row, Section) else tuple(map(short, row)) for row in table.rows)
    return replace(table, rows=tuple(rows))


def _drawn(table: Table, page: Page) -> list[str]:
    """The lines of a table in the first of these shapes that fits the page: natural widths; columns
    of words wrapped; both shapes with factored formulas; up to `MOST_BANDS` bands of columns, one
    below the other; a block for each row."""
    every = range(len(table.columns))
    for factored in (False, True):
        cells = _cells(table, factored=factored)
        natural = _natural(table.columns, cells)
        if page.width is None or _total(natural) <= page.width:
            return _grid(table, cells, every, natural, page)
        least = _least(table.columns, natural, cells)
        widths = _shrunk(natural, least, page.width)
        if _total(widths) <= page.width:
            return _grid(table, cells, every, widths, page)
    assert page.width is not None
    bands = _bands(table.columns, least, page.width)
    if not 0 < len(bands) <= MOST_BANDS:
        return _stacked(table, cells, page)
    lines: list[str] = []
    for band in bands:
        widths = _shrunk([natural[k] for k in band], [least[k] for k in band], page.width)
        lines += [*([""] if lines else []), *_grid(table, cells, band, widths, page)]
    return lines


MOST_BANDS = 3
"""A table that takes more bands than this gets a block for each row."""


def _bands(columns: Sequence[Column], least: Sequence[int], room: int) -> list[list[int]]:
    """The columns in bands (groups of column numbers) whose `least` widths fit the room, each band
    with the columns that name the rows; [] if some column does not fit next to these."""
    names = naming(columns)
    bands: list[list[int]] = []
    for k in (k for k in range(len(columns)) if k not in names):
        if bands and _total([least[j] for j in (*bands[-1], k)]) <= room:
            bands[-1].append(k)
        elif _total([least[j] for j in (*names, k)]) <= room:
            bands.append([*names, k])
        else:
            return []
    return bands


def _cells(table: Table, *, factored: bool) -> list[list[str]]:
    """The cells of all rows but sections as text; formulas are sums, or `factored`: d*(l + 1)."""
    writer = FACTORED_TEXT if factored else PLAIN_TEXT
    return [
        [
            writer.text(cell, table.marks, rounded=column.rounded)
            for column, cell in zip(table.columns, row, strict=True)
        ]
        for row in table.body
    ]


def _natural(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """The natural width of each column in characters, in which no cell is broken: that of its
    longest cell, or of its header in two lines if that is more."""
    widths = []
    for k, column in enumerate(columns):
        words = text(column.header).split()
        halves = [(" ".join(words[:j]), " ".join(words[j:])) for j in range(len(words))]
        head = min((max(map(len, two)) for two in halves), default=0)
        widths.append(max([head, *[len(row[k]) for row in cells]]))
    return widths


def _least(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Sequence[str]]
) -> list[int]:
    """The least width of each column in characters: its natural width (`widths`), but for a column
    of words that of the longest piece between two places where a line may be broken."""
    least = list(widths)
    for k, column in enumerate(columns):
        if column.wide:
            words = (word for row in cells for word in row[k].split())
            longest = max((len(p) for w in words for p in pieces(w)), default=0)
            header = max(map(len, text(column.header).split()), default=0)
            least[k] = min(widths[k], max(NARROWEST, longest, header))
    return least


def _shrunk(widths: Sequence[int], least: Sequence[int], room: int | None) -> list[int]:
    """The widths, reduced so that all columns with the gaps between them fit the room (characters):
    1 at a time from the widest column above its `least` width; unchanged if `room` is None. They
    stay too wide if none can shrink."""
    widths = list(widths)
    while room is not None and _total(widths) > room:
        wide = [k for k, width in enumerate(widths) if width > least[k]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * max(len(widths) - 1, 0)


def _grid(
    table: Table,
    cells: Sequence[Sequence[str]],
    shown: Sequence[int],
    widths: Sequence[int],
    page: Page,
) -> list[str]:
    """The lines of a table with the columns numbered `shown` side by side: headings, a rule, rows
    and section headings. `widths`: of the columns shown, in characters; a longer cell is broken
    into lines. `cells`: the texts of all columns, for each row that is no section."""
    columns = [table.columns[k] for k in shown]
    head = [_heading(text(c.header), w) for c, w in zip(columns, widths, strict=True)]
    height = max(map(len, head), default=0)
    head = [[""] * (height - len(lines)) + lines for lines in head]
    rule = "─" * _total(widths)
    lines = [*(bold(line, page) for line in _row(head, columns, widths)), rule]
    body = iter(cells)
    for row in table.rows:
        if isinstance(row, Section):
            said = [bold(wrapped(text(row.line), page.width), page)] if row.line else []
            lines += [""] * (lines[-1] != rule) + said  # a gap, except directly below the rule
        else:
            row_cells = next(body)
            texts = [row_cells[k] for k in shown]
            if all(len(cell) <= width for cell, width in zip(texts, widths, strict=True)):
                lines.append(_line(texts, columns, widths))
            else:
                lines += _row(list(map(_lines, texts, widths)), columns, widths)
    return lines


@lru_cache(maxsize=1024)
def _heading(header: str, width: int) -> list[str]:
    """The text of a header as lines of at most `width` characters."""
    return textwrap.wrap(header, width, break_on_hyphens=False)


def _lines(cell: str, width: int) -> list[str]:
    """The text of a cell as lines of at most `width` characters, broken between words and, in long
    words, after signs such as `-`, `+` and `*`; a longer piece of a word has a line of its own."""
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for word in cell.split(" "):
        for k, piece in enumerate(pieces(word)):
            gap = "" if k or not lines[-1] else " "
            if lines[-1] and len(lines[-1]) + len(gap) + len(piece) > width:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
    return lines


def _row(
    cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a row whose cells have several lines; numbers are set to the right."""
    for k in range(max(map(len, cells), default=0)):
        yield _line([cell[k] if k < len(cell) else "" for cell in cells], columns, widths)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    """One line of a row; numbers are set to the right."""
    parts = [
        cell.rjust(width) if column.numeric else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    return GAP.join(parts).rstrip()


def _stacked(table: Table, cells: Sequence[Sequence[str]], page: Page) -> list[str]:
    """The lines of a table that is too wide for columns, a block per row: its name in bold, then
    pairs `header  value`, as many side by side as fit; a number longer than the line is broken,
    below its header. `cells`: the texts of all columns, for each row that is no section."""
    assert page.width is not None
    about = naming(table.columns)
    rest = [k for k in range(len(table.columns)) if k not in about]
    headers = [text(table.columns[k].header) for k in rest]
    widest = max(map(len, headers), default=0)
    room = max(page.width - 2 * len(GAP) - widest, 0)
    numbers = [len(row[k]) for row in cells for k in rest if _is_number(row[k])]
    wide = max((number for number in numbers if number <= room), default=0)
    pairs = [
        [
            f"{header:<{widest}}{GAP}{row[k]:{'>' if table.columns[k].numeric else '<'}{wide}}"
            for row in cells
        ]
        for k, header in zip(rest, headers, strict=True)
    ]
    # the most pairs in a line for which all lines fit the page; else one
    beside = next((n for n in range(len(rest), 1, -1) if _width(pairs, n) <= page.width), 1)
    named, lines = iter(range(len(cells))), []
    for row in table.rows:
        if isinstance(row, Section):
            lines += ["", bold(wrapped(text(row.line), page.width), page)] if row.line else []
            continue
        k = next(named)
        title = ", ".join(_name(table.columns[j], cells[k][j]) for j in about)
        lines += ["", bold(wrapped(title, page.width), page)]
        for start in range(0, len(pairs), beside):
            line = GAP + PAIRS.join(
                pair[k].ljust(max(len(line) for other in pairs[j::beside] for line in other))
                for j, pair in enumerate(pairs[start : start + beside])
            )
            value = cells[k][rest[start]]
            if beside == 1 and _is_number(value) and len(value) > room:
                lines.append(wrapped(f"{headers[start]}{GAP}{value}", page.width, GAP, 2 * GAP))
                continue
            lines.append(wrapped(line.rstrip(), page.width, hang=" " * (2 * len(GAP) + widest)))
    return [*lines[1:], ""]


PAIRS = "    "
"""The text between two pairs of header and value."""


def _is_number(cell: str) -> bool:
    return " " not in cell and any(map(str.isdigit, cell))


def _width(pairs: Sequence[Sequence[str]], beside: int) -> int:
    """The width of lines with `beside` pairs side by side; `pairs`: for each column, its pair
    `header  value` in each row."""
    lines = ([len(line) for p in pairs[k::beside] for line in p] for k in range(beside))
    widest = [max(found, default=0) for found in lines]
    return len(GAP) + sum(widest) + len(PAIRS) * (beside - 1)


def _name(column: Column, cell: str) -> str:
    """A cell in the name of a row: `self-attention`, or `l = 128` for a number."""
    return f"{text(column.header)} = {cell}" if column.numeric else cell
