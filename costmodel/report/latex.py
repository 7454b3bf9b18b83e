r"""Write a document in LaTeX, as a fragment that a paper can include unchanged.

LaTeX breaks lines and pages: columns of formulas and of words are paragraphs, long tables use
longtable, and equations are paragraphs. This file decides, from numbers of characters and rows,
which columns are printed side by side (panels), how the page's width is divided among them, and
which formulas are printed below the table under a letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from costmodel.errors import TableError
from costmodel.report.document import (
    Column,
    Display,
    Document,
    Equal,
    Formula,
    Heading,
    Line,
    Math,
    Note,
    Paragraph,
    Section,
    Shown,
    Table,
    Text,
    Verbatim,
    listed,
    naming,
    pieces,
    sentence,
)
from costmodel.report.writer import FACTORED_TEXT, PLAIN_TEXT, Marks, Typeset, cited
from costmodel.symbolic.cases import cases
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import (
    conditions_latex,
    floors,
    formula_latex,
    poly_latex,
    short_floor,
    unpaired_braces,
)
from costmodel.symbolic.sizes import LETTERS

PACKAGES = ("amsmath", "array", "booktabs", "longtable", "pdflscape")
"""The LaTeX packages that the fragments need, the last one for tables on turned pages."""

COLUMNS: Mapping[str, float] = {
    "article": 4.77, "neurips": 5.5, "iclr": 5.5, "icml": 3.25, "acl": 3.03, "ieee": 3.49,
    "acm": 3.33,
}  # fmt: skip
"""Class of documents -> `\\linewidth` in inches: the text of article at 10 points, neurips, iclr; a
column of icml2025, acl, IEEEtran and acmart sigconf."""


PLAIN = {
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
    "→": r"$\to$",
    "–": "--",
    "—": "---",
    "×": r"$\times$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "≈": r"$\approx$",
    "µ": r"$\mu$",
}
"""Character -> LaTeX, for active characters and for the characters outside ASCII that occur."""


def escaped(words: str) -> str:
    """Words with all active characters escaped, and characters outside ASCII replaced.

    >>> escaped("100% of d_model & more")
    '100\\\\% of d\\\\_model \\\\& more'
    """
    return "".join(PLAIN.get(c) or (c if c.isascii() else _unaccented(c)) for c in words)


def _unaccented(character: str) -> str:
    """The ASCII letter below an accent; a question mark for any other character."""
    plain = unicodedata.normalize("NFKD", character)[0]
    return plain if plain.isascii() else "?"


_LABEL = re.compile(r"[A-Za-z0-9:._/-]+")


def checked(label: str, caption: str) -> None:
    """Check the label and the caption, which is LaTeX, of a table; "" for none.

    Raises:
        TableError: a label of other characters than letters, digits and : . _ / -; a caption that
            would end the LaTeX around the caption early, or never, or holds control characters.
    """
    if label and not _LABEL.fullmatch(label):
        raise TableError(f"label '{label}' may hold letters, digits and : . _ / - only")
    rest = re.sub(r"\\.", "", " ".join(caption.split()))
    faults = {
        "braces without a partner": unpaired_braces(rest),
        r"a % that begins a comment: write \% for per cent": "%" in rest,
        r"a \ at its end": rest.endswith("\\"),
        r"a $ without a partner: write \$ for the sign": rest.count("$") % 2,
        "a control character": any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in rest),
    }
    for fault, found in faults.items():
        if found:
            raise TableError(f"caption '{caption}' is LaTeX and has {fault}")


class Latex(Typeset):
    """A document as a fragment; its first line names the command that writes it."""

    missing = "--"

    def pieces(self, document: Document) -> Iterator[str]:
        """Yield the document in LaTeX, in one piece: a preamble in comments, then its parts,
        successive list items in an itemize environment."""
        parts = list(document.parts())
        self.lead = document.lead
        self.several = sum(isinstance(part, Table) for part in parts) > 1
        blocks = []
        for is_item, group in groupby(parts, lambda p: isinstance(p, Paragraph) and p.item):
            inside = [self.block(part, ()) for part in group]
            blocks += [r"\begin{itemize}", *inside, r"\end{itemize}"] if is_item else inside
        text = "\n\n".join(blocks) + "\n"
        yield f"{preamble(self.page.command, turned='{landscape}' in text)}\n\n{text}"

    def heading(self, part: Heading) -> str:
        words = escaped(part.text)
        return rf"\subsection*{{{words}}}" if part.level == 1 else rf"\paragraph{{{words}.}}"

    def paragraph(self, part: Paragraph) -> str:
        words = self.text(part.line)
        if part.item:
            return rf"\item {words}"
        return f"\\begin{{quote}}{words}\\end{{quote}}" if part.quote else _loosely(words)

    def display(self, part: Display) -> str:
        return "\n".join(map(self.equation, part.equations))

    def verbatim(self, part: Verbatim) -> str:
        return f"\\begin{{verbatim}}\n{part.text}\n\\end{{verbatim}}"

    def table(self, part: Table, notes: Sequence[Line]) -> str:
        """A table with its caption above, footnotes and notes below: a float if its estimated
        lines and widths fit a page, else a longtable, in landscape if a table of numbers then has
        at most two panels. The user is told if the width asked for is too small. `notes` is not
        used: a table prints all its own notes."""
        inches = self.page.inches
        part, names = _with_short_floors(part, self.page.names)
        writer = Latex(replace(self.page, names=names))
        layout = _Layout(part, writer, round(inches * PER_INCH) if inches else ROOM)
        slug = f"-{part.slug}" if self.several and part.slug else ""
        label = rf"\label{{{self.page.label}{slug}}}" if self.page.label else ""
        caption = self._caption(part)
        # the title and the lead stand below the table if the user gives another caption
        own = self.about(part) if self.page.caption else []
        if inches and layout.fits(caption, own):
            return _float(layout, caption, label, own, "")
        asked, narrow = layout, inches is not None and inches < COLUMN
        if inches:  # both columns of a text with two, or at least the usual page
            layout = replace(layout, room=2 * layout.room if narrow else max(layout.room, ROOM))
        if layout.fits(caption, own):
            if narrow:
                fitting = asked.columns_that_fit(caption, own)
                self._tell_misfit(part, "takes the width of the page (table*)", fitting)
            return _float(layout, caption, label, own, "*")
        # too long for a page, a table of numbers alone is turned if two panels then suffice
        formulas = any(isinstance(cell, Formula) for row in part.body for cell in row)
        if len(part.rows) > LINES and len(layout.panels) > 2 and not formulas:
            wide = turned_page(layout)
            layout = wide if len(wide.panels) <= 2 else layout
        if inches and (narrow or layout.line == TURNED_LINE):
            turned = ", on turned pages" if layout.line == TURNED_LINE else ""
            fitting = asked.columns_that_fit(caption, own)
            self._tell_misfit(part, f"runs over pages in one column (longtable{turned})", fitting)
        return _long(layout, caption, label, own)

    def _tell_misfit(self, table: Table, instead: str, fitting: int) -> None:
        """Tell the user that a table does not fit the asked width: what it does `instead`, such as
        "takes the width of the page (table*)", and the names of its `fitting` first columns."""
        which = f" of phase {table.slug}" if self.several and table.slug else ""
        names = ",".join(column.name for column in table.columns[:fitting])
        helps = f"its first {fitting} columns fit: --columns {names}"
        if fitting < 2:
            helps = "fewer rows or a larger --width may fit"
        self.page.tell(
            f"--width {self.page.inches:g}in: the table{which} does not fit and {instead}; {helps}"
        )

    def _caption(self, table: Table) -> str:
        """The page's caption as given; without one, the title and the lead (`about`)."""
        return " ".join(self.page.caption.split()) or "".join(self.about(table)).strip()

    def about(self, table: Table) -> list[str]:
        """The sentences of the caption: the table's title, then the table's lead if it has one,
        else the document's."""
        title = table.title if isinstance(table.title, tuple) else (table.title,)
        return [
            self.text(sentence(line)) for line in (title, *(table.lead or self.lead)) if any(line)
        ]

    def words(self, words: str) -> str:
        """Escaped words, indented if they begin with two spaces."""
        inside = words.lstrip(" ")
        return r"\quad " + escaped(inside) if inside and words.startswith("  ") else escaped(words)

    def noted(self, note: str, marks: Marks) -> str:
        return _mark(marks[note]) if marks else f" ({escaped(note)})"

    def strong(self, words: str) -> str:
        return rf"\textbf{{{escaped(words)}}}"

    def code(self, words: str) -> str:
        return rf"\texttt{{{_breaking(words)}}}"

    def math(self, cell: Formula | Math | Equal) -> str:
        return "; ".join(self.cases(cell)) if isinstance(cell, Formula) else super().math(cell)

    def cases(self, cell: Formula) -> list[str]:
        """The cases of a formula in LaTeX, each in dollar signs with its condition; one without a
        condition if the formula is not piecewise."""
        found, names = cases(cell.value), self.page.names
        if cell.of or not found[0][0]:
            return [super().math(cell)]
        return [
            f"${formula_latex(value, names)}$ if ${conditions_latex(guards, names)}$"
            for guards, value in found
        ]

    def equation(self, shown: Shown) -> str:
        """A displayed equation `left = right = closed form, ranges (number)` as a paragraph, so
        that LaTeX breaks it at its signs; the cases of a closed form (`closed`, or a `right` that
        is a `Formula`) are joined by semicolons."""
        right, closed = shown.right, shown.closed
        sides = []
        if isinstance(right, Math):
            sides.append(f"$\\displaystyle {shown.left.latex} = {_breakable(right.latex)}$")
        else:
            closed = right
        if closed is not None:
            left = "{}" if sides else shown.left.latex
            first, *others = self.cases(closed)
            sides.append("; ".join([f"${left} = {first.removeprefix('$')}", *others]))
        ranges = r",\ ".join(f"${r.latex}$" for r in shown.ranges)
        where = rf",\quad {ranges}" if ranges else ""
        cite = rf"\hfill({cited(shown.cite)})" if shown.cite else ""
        lead = r"\par{\smallskip\raggedright\leftskip=2em\hangindent=2em\noindent "
        return f"{lead}{' '.join(sides)}{where}{cite}\\par}}"


def _breaking(words: str) -> str:
    """Escaped words; LaTeX may break long ones after their signs."""
    return " ".join(r"\allowbreak{}".join(map(escaped, pieces(word))) for word in words.split(" "))


def _mark(number_of: int) -> str:
    return rf"\textsuperscript{{{number_of}}}"


def preamble(command: str, *, turned: bool = False) -> str:
    """Two lines of comments: the command that writes the fragment, if `command` has one, and the
    packages that the fragment needs; `turned`: whether it has pages in landscape."""
    packages = PACKAGES if turned else PACKAGES[:-1]
    written = f"% {' '.join(command.split())}\n" if command else ""
    return f"{written}% needs \\usepackage{{{','.join(packages)}}}"


def _loosely(words: str) -> str:
    """A paragraph; with spaces that stretch (\\sloppy) if it is long and has formulas."""
    return rf"{{\sloppy {words}\par}}" if len(words) > LONG and "$" in words else words


def _breakable(formula: str) -> str:
    """A formula; if it is longer than `LONG`, with parentheses inside of which lines may break."""
    if len(formula) <= LONG:
        return formula
    return formula.replace(r"\left(", r"\Bigl(").replace(r"\right)", r"\Bigr)")


LONG = 100
"""A formula with more LaTeX characters than this may be too wide for a column of the page."""

ROOM = 82
"""The width of a table in characters, on the narrowest usual page."""

PER_INCH = ROOM / COLUMNS["article"]
"""The characters in an inch of a table's width."""

LINE = 20
"""The width in characters of a column of formulas or words, whose cells are broken into lines."""

CAPTION = 0.85
"""The characters of a caption in a line, over those of a table's smaller type."""

TURNED, TURNED_LINE = 144, 12
"""`ROOM` and `LINE` on the same page turned to landscape, in a smaller type."""

GAP = 2
"""The width of the gap beside a column, in characters."""

SHORT = 9
"""The least width in characters to which the lines of a heading are broken."""

HIGHEST = 400
"""A formula with more characters than this is printed below the table."""

COLUMN = 4
"""A width of fewer inches is that of a column of a text with two."""

LINES = 48
"""A table of more estimated lines, its caption and its notes included, becomes a longtable."""

SET = (
    r"\emergencystretch=3em\setlength{\tabcolsep}{3pt}\setlength{\extrarowheight}{2.5pt}"
    r"\setlength{\lineskiplimit}{1.5pt}\setlength{\normallineskip}{1.5pt}"
)
"""LaTeX that sets the rows of tables slightly apart, and the lines of a cell with fractions."""


@dataclass(frozen=True)
class _Layout:
    """The layout of a table: its panels, the widths of its columns, and its rows in LaTeX."""

    table: Table
    writer: Latex
    room: int = ROOM
    line: int = LINE
    """The width in characters of the table, and of a column whose cells are broken into lines."""
    type: str = r"\footnotesize"

    @cached_property
    def letters(self) -> Mapping[Text, str]:
        """Formula that is printed in a paragraph below the table (piecewise, or longer than
        `HIGHEST` characters) -> the letter that stands in its cell."""
        found = dict.fromkeys(
            cell for row in self.table.body for cell in row
            if isinstance(cell, Formula)
            and (len(cases(cell.value)) > 1 or len(self._plain(cell)) > HIGHEST)
        )  # fmt: skip
        return {cell: _letter(k) for k, cell in enumerate(found)}

    def _plain(self, cell: Text) -> str:
        """A cell as text, for estimates of its width."""
        return FACTORED_TEXT.text(cell, self.table.marks)

    def height(self, caption: int, own: Sequence[str]) -> float:
        """The estimated lines of the table on a page: a caption of `caption` characters, the
        panels, and the paragraphs below, `own` among them."""
        below = [*self.table.marks, *own, *(PLAIN_TEXT.text(line) for line in self.table.said)]
        below += [self._plain(cell) for cell in self.letters]
        words = caption / CAPTION + sum(-(-len(each) // self.room) * self.room for each in below)
        return words / self.room + sum(map(self._lines, self.panels))

    def fits(self, caption: str, own: Sequence[str]) -> bool:
        """Whether the table, with a caption and the paragraphs `own` below, fits one page, and its
        columns fit the page's width if those that LaTeX may break are made narrow (`SHORT`)."""
        least = [
            min(width, SHORT + GAP) if self.table.columns[k].names or self.breaks(k) else width
            for k, width in enumerate(self.widths)
        ]
        widest = max(sum(least[k] for k in panel) for panel in self.panels)
        return widest <= self.room and self.height(len(caption), own) <= LINES

    def columns_that_fit(self, caption: str, own: Sequence[str]) -> int:
        """How many of the first columns fit one page together, with the caption and the paragraphs
        `own` below; 0 if not even one."""
        names = [column.name for column in self.table.columns]
        for k in range(len(names) - 1, 0, -1):
            if replace(self, table=self.table.without(names[k:])).fits(caption, own):
                return k
        return 0

    def _lines(self, panel: Sequence[int]) -> float:
        """The estimated lines of a panel (the numbers of its columns): rules, headings, rows."""
        room = self._rooms(panel)
        head = max(len(_heading(self.table.columns[k], room[k])) for k in panel)
        sections = len(self.table.rows) - len(self.table.body)
        return 1.5 + head + 1.5 * sections + sum(
            max(-(-self._length(row[k]) // room[k]) for k in panel)
            for row in self.table.body
        )  # fmt: skip

    def _rooms(self, panel: Sequence[int]) -> Mapping[int, int]:
        """Column -> the estimated width in characters in which its heading and its cells stand: its
        share of the page's width, or the width of its longest unbroken line."""
        shares = self._shares(panel)
        widths = {k: round(shares[k] * self.room) if shares else self.widths[k] for k in panel}
        return {k: max(width - GAP, 1) for k, width in widths.items()}

    def breaks(self, k: int) -> bool:
        """Whether a column holds words or formulas that LaTeX breaks into lines."""
        cells = (row[k] for row in self.table.body)
        return self.table.columns[k].wide or any(isinstance(c, Formula) for c in cells)

    @cached_property
    def natural(self) -> list[int]:
        """The estimated width of each column in characters, if no cell is broken into lines."""
        return [
            max((self._length(row[k]) for row in self.table.body), default=0)
            for k in range(len(self.table.columns))
        ]

    def _length(self, cell: Text) -> int:
        """The estimated width of a cell on one line, in characters; 3 for the letter `(a)` of a
        formula that is printed below."""
        if cell not in self.letters:
            return len(self._plain(cell))
        main = self.main(cell)
        return 3 if main is None else 4 + len(self._plain(Formula(main[1])))

    def main(self, cell: Text) -> tuple[Constraints, Any] | None:
        """The case (guards, value) of a piecewise formula that its cell prints: its `usual` case.
        None for any other cell, and for a case longer than `HIGHEST` characters."""
        found = self.usual(cell)
        short = found is not None and len(self._plain(Formula(found[1]))) <= HIGHEST
        return found if short else None

    def usual(self, cell: Text) -> tuple[Constraints, Any] | None:
        """The case (guards, value) of a piecewise formula that holds at the default sizes; None if
        no case does, and for any other cell (texts, orders O(...), one formula at all sizes)."""
        if not isinstance(cell, Formula) or cell.of:
            return None
        # 16 for letters without a default; the new token is the last one
        usual = defaultdict(lambda: 16, {x: y.default for x, y in LETTERS.items() if y.default})
        usual["t"] = usual["l"]
        holding = (
            (guards, value)
            for guards, value in cases(cell.value)
            if guards and all(guard.rational(usual) >= 0 for guard in guards)
        )
        return next(holding, None)

    @cached_property
    def widths(self) -> list[int]:
        """The least width of each column in characters, its gap included: that of the longest cell,
        if LaTeX may break the cells at most `LINE` (names) or `line` (words, formulas), and at
        least that of the longest line of the heading."""
        widths = []
        for k, column in enumerate(self.table.columns):
            widest = self.natural[k]
            if column.names or self.breaks(k):
                widest = min(widest, LINE if column.names else self.line)
            widths.append(max(widest, *map(len, _heading(column, widest))) + GAP)
        return widths

    @cached_property
    def panels(self) -> list[list[int]]:
        """The columns of each panel, a part of the table that is as wide as the page: as few
        panels as possible, each with the columns that name the rows. The widths are made similar:
        the room is reduced until one more panel would be needed. On a turned page, columns of cells
        that are longer than a line (critical paths) are the last panel."""
        names = naming(self.table.columns)
        rest = [k for k in range(len(self.table.columns)) if k not in names]
        room = max(self.room - sum(self.widths[k] for k in names), 1)
        if self.line == TURNED_LINE:
            long = [k for k in rest if self.natural[k] > ROOM]
            short = [k for k in rest if k not in long]
            return [[*names, *panel] for panel in (*self._packed(short, room), long) if panel]
        panels = found = self._packed(rest, room)
        while room > 0 and len(found) == len(panels) > 1:
            panels, room = found, room - 1
            found = self._packed(rest, room)
        return [[*names, *panel] for panel in panels]

    def _packed(self, columns: Sequence[int], room: int) -> list[list[int]]:
        """The columns in order, each in the last panel if their widths then have at most `room`
        characters, else in a new panel: [[0, 1], [2]] for widths of 9 and a room of 20."""
        panels: list[list[int]] = [[]]
        for k in columns:
            if panels[-1] and sum(self.widths[j] for j in (*panels[-1], k)) > room:
                panels.append([])
            panels[-1].append(k)
        return panels

    def columns(self, panel: Sequence[int]) -> str:
        """The column specification of a panel: `r` and `l` if there is one panel, whose cells need
        no break; else shares of the page's width, which are equal in all panels for columns naming
        rows."""
        shares, found = self._shares(panel), ""
        if not shares:
            return "".join("r" if self.table.columns[k].numeric else "l" for k in panel)
        for k in panel:
            gaps = rf"{1 if k in (panel[0], panel[-1]) else 2}\tabcolsep"
            right = self.table.columns[k].numeric and not self.breaks(k)
            side = r"\raggedleft" if right else r"\raggedright"
            found += rf">{{{side}\arraybackslash}}p{{\dimexpr{shares[k]:.3f}\linewidth-{gaps}}}"
        return found

    def _shares(self, panel: Sequence[int]) -> Mapping[int, float]:
        """Number of a column -> its share (of 1) of the page's width, for columns that name rows
        the same in all panels; {} for a single panel of unbroken cells that the page has room for.
        """
        fits = sum(self.natural[k] + GAP for k in panel) <= self.room
        if len(self.panels) == 1 and fits and not any(map(self.breaks, panel)):
            return {}
        names = naming(self.table.columns)
        widest = max(sum(self.widths[k] for k in other) for other in self.panels)
        lead = sum(self.widths[k] for k in names) / max(widest, self.room)
        rest = self._stretched([k for k in panel if k not in names], self.room * (1 - lead))
        naming_rows = {k: self.widths[k] / max(widest, self.room) for k in names}
        return {k: naming_rows[k] if k in names else (1 - lead) * rest[k] for k in panel}

    def _stretched(self, columns: Sequence[int], room: float) -> Mapping[int, float]:
        """Column -> its share (of 1) of the panel's width beside the columns that name rows.
        `room`, in characters: what exceeds the least widths goes to columns of broken cells, in
        proportion to the width that each lacks."""
        least = sum(self.widths[k] for k in columns)
        lacking = {k: max(self.natural[k] - self.widths[k], 0) for k in columns}
        more = max(room - least, 0) / (sum(lacking.values()) or 1)
        widths = {k: self.widths[k] + more * lacking[k] for k in columns}
        return {k: width / (sum(widths.values()) or 1) for k, width in widths.items()}

    def head(self, panel: Sequence[int]) -> str:
        """The row of headings of a panel."""
        return " & ".join(self._head(k, room) for k, room in self._rooms(panel).items()) + r" \\"

    def _head(self, k: int, room: int) -> str:
        """The heading in LaTeX of column number `k`, which is `room` characters wide: one line, or
        a tabular of its own for several lines; a header with formulas is not broken."""
        column = self.table.columns[k]
        if not column.title and not isinstance(column.header, str):
            return self.writer.text(column.header)
        lines = [escaped(line) for line in _heading(column, room)]
        if len(lines) == 1:
            return lines[0]
        side = "r" if column.numeric and not self.breaks(k) else "l"
        inside = r"\\".join(lines)
        return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{inside}\end{{tabular}}"

    def body(self, panel: Sequence[int]) -> str:
        """The rows of a panel (numbers of columns) in LaTeX, with section headings across it."""
        lines = []
        for row in self.table.rows:
            if not isinstance(row, Section):
                cells = " & ".join(self._cell(self.table.columns[k], row[k]) for k in panel)
                gap = r" \addlinespace[1.5pt]" if r"\frac" in cells else ""
                lines.append(rf"{cells} \\{gap}")
                continue
            lines += [r"\addlinespace"] if lines else []
            if row.line:
                across = rf"\multicolumn{{{len(panel)}}}{{@{{}}l@{{}}}}"
                lines.append(rf"{across}{{\emph{{{self.writer.text(row.line)}}}}} \\")
        return "\n".join(lines)

    def _cell(self, column: Column, cell: Text) -> str:
        """A cell in LaTeX; for a formula that is printed below the table its letter, for a
        piecewise formula its case at the default sizes with the letter. LaTeX may break the words
        of a wide column after signs."""
        if cell in self.letters:
            letter, main = self.letters[cell], self.main(cell)
            if main is None:
                return f"({letter})"
            shown = formula_latex(main[1], self.writer.page.names)
            return rf"${shown}$\,\textsuperscript{{{letter}}}"
        if column.wide and isinstance(cell, str):
            return _breaking(cell)
        return self.writer.text(cell, self.table.marks, rounded=column.rounded)

    def below(self, own: Sequence[str]) -> str:
        """The paragraphs below the table: footnotes, notes, and formulas after their letters."""
        text, marks = self.writer.text, self.table.marks
        lines = [*own, *(f"{_mark(k)}\\,{text(sentence(note))}" for note, k in marks.items())]
        lines += [text(sentence(line)) for line in self.table.said]
        lines += [self._letter(cell, letter) for cell, letter in self.letters.items()]
        lead = r"\par\hangindent=1.5em\hangafter=1\noindent"
        return "\n".join(f"{lead} {line.strip()}" for line in lines)

    def _letter(self, cell: Text, letter: str) -> str:
        """The paragraph below the table of a letter, for the formula `cell`: its cases, that at the
        default sizes first; of this case the condition alone where the cell prints it (`main`)."""
        assert isinstance(cell, Formula)
        main, names = self.main(cell), self.writer.page.names
        written = self.writer.cases(cell)
        if (usual := self.usual(cell)) is not None:
            at = [guards for guards, _ in cases(cell.value)].index(usual[0])
            others = written[:at] + written[at + 1 :]
            lead = written[at] if main is None else f"If ${conditions_latex(usual[0], names)}$"
            written = [lead, *others]
        mark = f"({letter})" if main is None else rf"\textsuperscript{{{letter}}}\,"
        return f"{mark} {'; '.join(written).replace(', ', ALLOWED)}."


ALLOWED = r",\allowbreak "
"""A comma after which LaTeX may break a formula."""


def _with_short_floors(table: Table, names: Mapping[str, str]) -> tuple[Table, Mapping[str, str]]:
    """The table with a note on the quotients rounded down that its formulas hold more than once,
    and `names` (text of a size or quotient -> LaTeX) with a short name for each."""
    values = (cell.value for row in table.body for cell in row if isinstance(cell, Formula))
    often = [atom for atom, times in Counter(chain.from_iterable(map(floors, values))).items()
             if times > 1]  # fmt: skip
    if not often:
        return table, names
    short = {str(atom): short_floor(atom, names) for atom in often}
    said = (
        Equal((Math(atom, short[atom]), Math(atom, poly_latex(Poly.atom(atom), names))))
        for atom in often
    )
    note = Note((*listed(said), ": quotients rounded down"))
    return replace(table, notes=(*table.notes, note)), {**names, **short}


def turned_page(made: _Layout) -> _Layout:
    """The layout of the same table on a page turned to landscape, in a smaller type."""
    return replace(made, room=TURNED, line=TURNED_LINE, type=r"\scriptsize")


def _letter(k: int) -> str:
    """The letters of number k: a, b, ..., z, aa, ab, ..."""
    more, last = divmod(k, 26)
    return (_letter(more - 1) if more else "") + chr(ord("a") + last)


def _heading(column: Column, room: int) -> list[str]:
    """The heading of a column, with a capital first, broken into lines of at most `room` characters
    (`SHORT` if that is more); a longer word is abbreviated if `SHORTER` has it."""
    room, lines = max(room, SHORT), [""]
    for word in (column.title or PLAIN_TEXT.text(column.header)).split():
        piece = SHORTER.get(word.lower(), word) if len(word) > room else word
        beside = f"{lines[-1]} {piece}".strip()
        if not lines[-1] or len(beside) <= room:
            lines[-1] = beside
        else:
            lines.append(piece)
    return [lines[0][:1].upper() + lines[0][1:], *lines[1:]]


SHORTER = {"multiplications": "mult.", "exponentiations": "exp."}
"""Long word of headings -> its abbreviation, for columns that are narrower than the word."""


def _float(made: _Layout, caption: str, label: str, own: Sequence[str], star: str) -> str:
    """The LaTeX of a table on one page, as a float, with its caption above and the paragraphs `own`
    below; `star` is "*" for a float across both columns of a two-column text, "" for one as wide as
    a column."""
    tabulars = [
        f"\\begin{{tabular}}{{@{{}}{made.columns(panel)}@{{}}}}\n\\toprule\n{made.head(panel)}\n"
        f"\\midrule\n{made.body(panel)}\n\\bottomrule\n\\end{{tabular}}"
        for panel in made.panels
    ]
    below = made.below(own)
    lines = [
        rf"\begin{{table{star}}}[tp]",
        r"\centering",
        r"\setlength{\abovecaptionskip}{0pt}\setlength{\belowcaptionskip}{8pt}",
        rf"\caption{{{caption}}}{label}",
        f"{made.type}{SET}",
        "\n\\par\\medskip\n".join(tabulars),
        *([r"\par\smallskip\raggedright", below, r"\par"] if below else []),
        rf"\end{{table{star}}}",
    ]
    return "\n".join(lines)


def _long(made: _Layout, caption: str, label: str, own: Sequence[str]) -> str:
    """The LaTeX of a table over several pages (longtable), in landscape if laid out for that; a
    two-column text has one column meanwhile. The first panel has the caption and `label`
    (`\\label{...}` or ""); the paragraphs `own` stand below the last, before notes and formulas."""
    lines = [
        r"\csname if@twocolumn\endcsname\onecolumn\let\tableends\twocolumn"
        r"\else\let\tableends\relax\fi",
        *([r"\begin{landscape}"] if made.line == TURNED_LINE else []),
        rf"\begingroup{made.type}{SET}\setlength{{\LTcapwidth}}{{\linewidth}}",
        r"\setlength{\LTpost}{\smallskipamount}",
    ]
    for k, panel in enumerate(made.panels):
        head = f"\\toprule\n{made.head(panel)}\n\\midrule"
        lines += [
            # further panels have the number of the first
            *([r"\addtocounter{table}{-1}\setlength{\LTpre}{0pt}"] if k else []),
            rf"\begin{{longtable}}{{@{{}}{made.columns(panel)}@{{}}}}",
            *([] if k else [rf"\caption{{{caption}}}{label} \\"]),
            f"{head}\n\\endfirsthead",
            f"\\caption[]{{Continued.}} \\\\\n{head}\n\\endhead",
            r"\bottomrule",
            r"\endfoot",
            made.body(panel),
            r"\end{longtable}",
        ]
    ends = r"\end{landscape}" if made.line == TURNED_LINE else ""
    below = made.below(own)
    return "\n".join([*lines, *([below] if below else []), rf"\par\endgroup{ends}\tableends"])
