"""The base of the writers: a document is printed part by part, a `Line` (a sentence) cell by cell.

`Writer` prints plain text. A format is a subclass in a file of its own, which replaces the methods
whose text looks different in that format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, zip_longest

from costmodel.questions.question import Missing
from costmodel.report.document import (
    Code,
    Display,
    Document,
    Equal,
    Formula,
    Heading,
    Line,
    Marked,
    Math,
    Named,
    Page,
    Paragraph,
    Part,
    Strong,
    Table,
    Text,
    Verbatim,
    letter,
    number,
)
from costmodel.symbolic.pretty import formula_pretty
from costmodel.symbolic.printing import formula_latex

Marks = Mapping[str, int] | None
"""Footnote -> its number; None: the words of a footnote are printed in place."""


class Writer:
    """A writer of documents; `factored`: d*l + d is printed with its common factor, d*(l + 1)."""

    missing = "-"
    """The text of a missing value."""

    def __init__(self, page: Page, *, factored: bool = False) -> None:
        self.page = page
        self.factored = factored

    def write(self, document: Document) -> str:
        """The whole document as text."""
        return "".join(self.pieces(document))

    def pieces(self, document: Document) -> Iterator[str]:
        """Yield the text of a document piece by piece, so that a long text need not fit the memory:
        the beginning, then its parts with an empty line between them."""
        parts = _with_notes(document.parts())
        blocks = ((part, self.block(part, notes)) for part, notes in parts)
        yield from _spaced(chain(((None, text) for text in self.beginning(document)), blocks))

    def beginning(self, document: Document) -> Iterator[str]:
        """Yield the blocks before the parts of a document."""
        yield from ()

    def block(self, part: Part, notes: Sequence[Line]) -> str:
        """The text of one part of a document; `notes`, the footnotes of a table, stand below it."""
        if isinstance(part, Heading):
            return self.heading(part)
        if isinstance(part, Paragraph):
            return self.paragraph(part)
        if isinstance(part, Display):
            return self.display(part)
        return self.verbatim(part) if isinstance(part, Verbatim) else self.table(part, notes)

    def heading(self, part: Heading) -> str:
        """A heading."""
        raise NotImplementedError

    def paragraph(self, part: Paragraph) -> str:
        """A paragraph, an item of a list or a quotation."""
        return ("- " if part.item else "> " if part.quote else "") + self.text(part.line)

    def display(self, part: Display) -> str:
        """Displayed equations."""
        raise NotImplementedError

    def verbatim(self, part: Verbatim) -> str:
        """Text that is printed unchanged."""
        return part.text

    def table(self, part: Table, notes: Sequence[Line]) -> str:
        """A table with its title and its notes."""
        raise NotImplementedError

    def text(self, cell: Text, marks: Marks = None, *, rounded: bool = False) -> str:
        """The text of a cell, or of a line (a tuple of cells), in the format. `marks`: footnote ->
        its number, printed after a missing or marked cell; with `rounded`, all fractions are
        rounded. A cell of any other kind is mathematics, such as a formula."""
        if isinstance(cell, str):  # most cells; isinstance of Fraction is slow
            return self.words(cell)
        if isinstance(cell, tuple):
            return "".join([self.text(part, marks, rounded=rounded) for part in cell])
        if isinstance(cell, (int, Fraction)):
            return number(cell, rounded=rounded)
        if isinstance(cell, Missing):
            return self.missing + self.noted(cell.reason, marks)
        if isinstance(cell, Marked):
            return f"{self.text(cell.cell, marks)}{self.noted(cell.note, marks)}".lstrip()
        if isinstance(cell, Named):
            return self.name(cell)
        if isinstance(cell, Strong):
            return self.strong(cell.text)
        return self.code(cell.text) if isinstance(cell, Code) else self.math(cell)

    def words(self, words: str) -> str:
        """Words, without active characters of the format."""
        return words

    def noted(self, note: str, marks: Marks) -> str:
        """The mark of a footnote; without `marks`, the words of the footnote in parentheses."""
        return f" ({marks[note] if marks else note})"

    def name(self, cell: Named) -> str:
        """A name with a title."""
        return cell.text

    def strong(self, words: str) -> str:
        """Words in bold."""
        return words

    def code(self, words: str) -> str:
        """A command or a name in a program."""
        return words

    def math(self, cell: Formula | Math | Equal) -> str:
        """The plain text of a formula, of other notation, or of an equation between cells."""
        if isinstance(cell, Formula):
            found = formula_pretty(cell.value, factored=self.factored)
            return f"{cell.of}({found})" if cell.of else found
        return cell.text if isinstance(cell, Math) else " = ".join(map(self.text, cell.sides))


class Typeset(Writer):
    """A writer of notation in LaTeX, between dollar signs; names are printed by their titles, and
    the sizes in their braces after the titles: `Mamba-2, $n = 128$, $P = 64$`."""

    def text(self, cell: Text, marks: Marks = None, *, rounded: bool = False) -> str:
        """The text of a cell; where the user renames sizes, a size with its number is typeset
        inside a sentence too: `l = 129` becomes `$T = 129$`."""
        if self.page.names and isinstance(cell, str) and (found := _SIZED.split(cell))[1:]:
            words, sizes = map(self.words, found[::3]), zip(found[1::3], found[2::3], strict=True)
            at = (self.math(Equal((letter(x), number))) for x, number in sizes)
            return "".join(chain(*zip_longest(words, at, fillvalue="")))
        return super().text(cell, marks, rounded=rounded)

    def name(self, cell: Named) -> str:
        sizes = (Equal((letter(x), str(value))) for x, value in cell.sizes)
        return ", ".join([self.words(cell.title), *map(self.math, sizes)])

    def math(self, cell: Formula | Math | Equal) -> str:
        return f"${self.tex(cell)}$"

    def tex(self, cell: Formula | Math | Equal | str) -> str:
        """The LaTeX, without dollar signs, of a formula, other notation, an equation between cells
        (`l = 128`), or a text, which is LaTeX already."""
        if isinstance(cell, Formula):
            found = formula_latex(cell.value, self.page.names)
            return rf"{cell.of}({found})" if cell.of else found
        if isinstance(cell, Equal):
            return " = ".join(map(self.tex, cell.sides))
        return cell.latex if isinstance(cell, Math) else cell


_SIZED = re.compile(r"(?<![\w'.-])([A-Za-z]) = ([0-9]+(?:,[0-9]{3})*)(?![\w.])")
"""A size with its number in a sentence, such as `t = 129` in the reason for a missing value."""

PLAIN_TEXT, FACTORED_TEXT = Writer(Page()), Writer(Page(), factored=True)
"""The writers of plain text, by which the width of cells is estimated."""


def cited(number: str) -> str:
    """The number of an equation in its source, in LaTeX: `(3)-(5)` is printed as `3--5`."""
    return number.replace("(", "").replace(")", "").replace("-", "--")


def _spaced(blocks: Iterable[tuple[Part | None, str]]) -> Iterator[str]:
    """Yield the blocks of text, with an empty line between them unless both are list items."""
    before: Part | None = None
    for k, (part, block) in enumerate(blocks):
        points = all(isinstance(each, Paragraph) and each.item for each in (part, before))
        yield from ("" if not k else "\n" if points else "\n\n", block)
        before = part
    yield "\n"


def _with_notes(parts: Iterable[Part]) -> Iterator[tuple[Part, list[Line]]]:
    """Yield each part with the notes below it: for a table the notes that no later table repeats,
    for any other part none. What precedes the first table is yielded before the rest is known."""
    coming = iter(parts)
    rest: list[Part] = []
    for part in coming:
        if isinstance(part, Table):
            rest = [part, *coming]
        else:
            yield part, []
    last = {line: part for part in rest if isinstance(part, Table) for line in part.said}
    for part in rest:
        own = part.said if isinstance(part, Table) else []
        yield part, [line for line in own if last[line] is part]
