r"""Read the cells of a table in CSV or LaTeX, with the phase, sizes and convention of each."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from costmodel.language.formula_text import Symbols, symbol_name
from costmodel.symbolic.sizes import is_letter

LABELS = ("convention", "form", "phase", "reasons")
"""Columns that qualify the other cells of their row, such as by the phase."""

EMPTY = ("", "-", "--", "\u2013", "\u2014", "n/a", "?")
"""Texts of cells that state nothing."""

CAPTIONS = {
    "Forward pass": "training",
    "One new token": "inference",
    "Backward pass": "backward",
    "Training step": "training-step",
}
"""Beginning of a caption -> the phase of its table."""

_RULES = re.compile(
    r"\\(?:toprule|midrule|bottomrule|hline|endfirsthead|endhead|endfoot|endlastfoot)\b"
    r"|\\addlinespace\b(?:\[[^\]]*\])?"
    r"|\\c(?:mid)?(?:rule|line)(?:\([lr]+\))?\{[^}]*\}"
)
_STACKED = re.compile(
    r"\\begin\{tabular\}\[\w\]\{(?:[^{}]|\{[^{}]*\})*\}(.*?)\\end\{tabular\}"
    r"|\\(?:makecell|shortstack)(?:\[\w\])?\{([^{}]*)\}",
    re.DOTALL,
)
_TABULAR = re.compile(r"\\begin\{(tabular[*x]?|longtable)\}(.*?)\\end\{\1\}", re.DOTALL)
_MARKED = re.compile(r"(\$[^$]+\$)\\,\\textsuperscript\{([a-z]+)\}")
_FLOOR = re.compile(r"\$([^$=]+) = (\\lfloor[^$]+)\$")
_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:\{[^{}]*\})?(?:_\{(?:[^{}]|\{[^{}]*\})*\})?")
_SIZE = re.compile(r"\$([^$=]+) = ([^$=]+)\$")
_OF_MIXERS = re.compile(rf"(?:\(([^()$]*)\)\s+)?{_SIZE.pattern}")
_OWN_SIZES = re.compile(r"(?:, \$[^$=]+ = \d+\$)+")
_WHOLE = re.compile(r"[0-9]{1,99}")
"""A text that is read as a size, if it has at most so many digits."""


@dataclass(frozen=True)
class Cell:
    """One cell: its row and heading as printed, its text, the values of `LABELS` and sizes;
    `of_mixers`: mixer ("" for all) -> sizes, as a letter may have several meanings. A cell whose
    column is not known has no heading, and the reason in `unread`."""

    row: str
    heading: str
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    of_mixers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unread: str = ""


def of_csv(text: str) -> Iterator[Cell]:
    """Yield the cells of a CSV with commas, semicolons or tabs: each with the names of its row and
    column, its text, the labels of its row (phase, form, convention), and the sizes of its row,
    integers in columns with a size as heading. The column `mixer`, else the first, names rows. In a
    short row the last cells are empty. csv.Error: more cells than headings, a stray quote."""
    lines = text.splitlines()
    delimiter = max(",;\t", key="".join(lines[:1]).count)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    columns = next(reader, [])
    named = [name for name in columns if name]
    if not named:
        return
    lead = "mixer" if "mixer" in named else named[0]
    for cells in filter(None, reader):
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise csv.Error(
                f"line {reader.line_num} has more cells than the line of headings: put quotation "
                f"marks around a cell that contains '{delimiter}'"
            )
        pairs = [*zip_longest(columns, cells[: len(columns)], fillvalue="")]  # (heading, cell)
        row = dict(pairs)
        labels = {x: row[x] for x in LABELS if row.get(x, "").lower() not in EMPTY}
        sizes = {x: int(row[x]) for x in named if is_letter(x) and _WHOLE.fullmatch(row[x])}
        for name, cell in pairs:
            if name and name not in (lead, *LABELS) and not is_letter(name) and cell.strip():
                yield Cell(row[lead].strip(), name, cell.strip(), labels, sizes)


def of_latex(text: str, symbols: Symbols) -> Iterator[Cell]:
    """Yield the cells of every table of a LaTeX file, row by row; left out are empty cells and
    `--`. In a short row the last cells are empty. In a row with a \\multicolumn beside other cells,
    or with more cells than headings, it is not known which column a cell is in (`Cell.unread`).
    `symbols`: printed symbol -> our letter of a size.

    The phase follows from the beginning of the caption (`CAPTIONS`), which also holds for a table
    without a caption behind it. Sizes come from the caption (`$l = 128$`) and from columns with a
    size as heading, labels from the columns of `LABELS`.
    """
    text = re.sub(r"(?<!\\)%.*", "", text)  # comments
    text = re.sub(r"\\allowbreak(?![a-zA-Z])(?:\{\})?", "", text)
    # a cell of several lines becomes one line
    text = _STACKED.sub(lambda m: re.sub(r"-?\\\\", _joint, m[1] or m[2]), text)
    sizes: dict[str, dict[str, int]] = {}  # mixer, or "" for all -> letter -> size
    labels: dict[str, str] = {}  # {"phase": phase of the caption}
    end = 0
    for found in _TABULAR.finditer(text):
        around = text[end : found.end()]  # from the table before to the end of this table
        end = found.end()
        if r"\caption{" in around:
            caption = _group(around, around.index(r"\caption{"))
            sizes = _sizes(caption, symbols)
            labels = {}
            for begin, phase in CAPTIONS.items():
                if caption.startswith(begin):
                    labels = {"phase": phase}
        below = text[end:].partition(r"\caption{")[0]  # the notes, up to the next table
        rows = [_cells(row) for row in re.split(r"\\\\(?:\[[^\]]*\])?", _body(found[2]))]
        yield from _cells_of_table(rows, below, symbols, labels, sizes)


def _cells_of_table(
    rows: list[list[str]],
    below: str,
    symbols: Symbols,
    labels: Mapping[str, str],
    sizes: Mapping[str, Mapping[str, int]],
) -> Iterator[Cell]:
    """Yield the cells of one LaTeX table. `rows`: the texts of all its cells, headings included;
    `below`: the text of its notes; `labels`, `sizes`: those of its caption."""
    head = _head(rows)  # the headings, no longer in `rows`
    headed = {k: _letter(heading, symbols) for k, heading in enumerate(head) if "$" in heading}
    # number of a column -> its letter of a size, or its label
    letters = {k: letter for k, letter in headed.items() if is_letter(letter)}
    said = {k: name for k, cell in enumerate(head) if (name := _plain(cell).lower()) in LABELS}
    for row in rows:
        fewer = 1 < len(row) < len(head)
        if len(row) > len(head) or (fewer and r"\multicolumn" in "".join(row)):
            name = _named(row[0], symbols)
            why = f"row '{name}' has {len(row)} cells below {len(head)} headings"
            texts = [_plain(cell) for cell in row[1:] if cell and not cell.startswith("--")]
            yield from (Cell(name, "", cell, unread=why) for cell in texts)
        elif len(head) > 1 and _plain(row[0]) != _plain(head[0]):
            row += [""] * (len(head) - len(row))
            own = {x: int(row[k]) for k, x in letters.items() if _WHOLE.fullmatch(row[k])}
            of = {x: word for k, x in said.items() if (word := _plain(row[k])).lower() not in EMPTY}
            for k in range(1, len(row)):
                shown = _below(row[k], below, symbols)
                for short, floor in _FLOOR.findall(below):  # names that notes explain
                    shown = shown.replace(short, floor)
                if k not in letters and k not in said and not shown.startswith("--") and shown:
                    name, heading = _named(row[0], symbols), _plain(head[k])
                    general = {**sizes.get("", {}), **own}
                    yield Cell(name, heading, shown, {**labels, **of}, general, sizes)


def _head(rows: list[list[str]]) -> list[str]:
    """Remove the header from the rows and return the heading of each column: the first row of
    cells, joined with rows below it that have an empty first cell and contain only words."""
    first = next((k for k, row in enumerate(rows) if len(row) > 1), len(rows))
    below = first + 1
    while below < len(rows) and _continues(rows[below], rows[first]):
        below += 1
    lines = [*zip(*rows[first:below], strict=True)]
    del rows[first:below]
    return [" ".join(filter(None, parts)) for parts in lines]


def _continues(row: Sequence[str], head: Sequence[str]) -> bool:
    """Whether a row continues the header, as `["", "per token"]` does: an empty first cell, and
    words without numbers or formulas behind it."""
    words = "".join(row)
    return len(row) == len(head) and not row[0] and bool(re.fullmatch(r"[^\d$\\]+", words))


def _joint(line: re.Match[str]) -> str:
    """The text in place of a line break: nothing after a hyphen, which goes too, else a space."""
    return "" if line[0].startswith("-") else " "


def _letter(symbol: str, symbols: Symbols) -> str:
    """Our letter for a printed symbol; the symbol itself if `symbols` lacks it."""
    name = symbol_name(symbol)
    return symbols.get(name, name)


def _in_our_letters(formula: str, symbols: Symbols) -> str:
    """A formula in LaTeX with our letters for the symbols in `symbols`: `N d` as `l d` for N=l."""

    def ours(symbol: re.Match[str]) -> str:
        letter = _letter(symbol[0], symbols)
        return letter if is_letter(letter) else symbol[0]

    return _SYMBOL.sub(ours, formula)


def _sizes(caption: str, symbols: Symbols) -> dict[str, dict[str, int]]:
    """The sizes in a caption, by the name of the mixer that they are for: `sinks $s = 4$, groups
    (mamba-2) $G = 1$, rank (rwkv-7) $G = 64$` gives mamba-2 and rwkv-7 their values of G. Under ""
    stands the first value of each letter; `$t = l$` gives t the value of l. Letters are ours, by
    `symbols`."""
    said = [
        (names, _letter(x, symbols), _letter(value, symbols))
        for names, x, value in _OF_MIXERS.findall(caption)
    ]
    first = {x: value for _, x, value in reversed(said)}
    found: dict[str, dict[str, int]] = {}
    for names, x, value in said:
        number = first.get(value, value)
        if is_letter(x) and _WHOLE.fullmatch(number):
            for name in ("", *_plain(names).split(", ")):
                found.setdefault(name, {}).setdefault(x, int(number))
    return found


def _body(inside: str) -> str:
    """The inside of a tabular without its column specification and rules; a caption that it holds
    is kept, in a spelling that is not read as the table's caption."""
    rest = inside.partition("{" + _group(inside) + "}")[2]
    return _RULES.sub("", re.sub(r"\\caption(?:\[\])?\{", r"\\caption {", rest))


def _group(text: str, start: int = 0) -> str:
    """The inside of the first group in braces behind `start`; all the rest, if it is not closed."""
    depth, begin = 0, text.index("{", start) + 1
    for k in range(begin, len(text)):
        depth += (text[k] == "{") - (text[k] == "}")
        if depth < 0:
            return text[begin:k]
    return text[begin:]


def _named(cell: str, symbols: Symbols) -> str:
    """The name of a row, as the command line takes it, with sizes in braces: `Mamba-2{n=8,P=64}`
    for `Mamba-2, $n = 8$, $P = 64$`. `symbols`: printed symbol -> size letter."""

    def in_braces(sizes: re.Match[str]) -> str:
        pairs = (f"{_letter(x, symbols)}={value}" for x, value in _SIZE.findall(sizes[0]))
        return f"{{{','.join(pairs)}}}"

    return _OWN_SIZES.sub(in_braces, _plain(cell))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)&", row)]


def _plain(cell: str) -> str:
    r"""The words of a cell: texts inside LaTeX commands such as \textbf{...} without the commands,
    without superscripts and rules, and with single spaces."""
    cell = re.sub(r"\\textsuperscript\{[^}]*\}|\\rule(?:\[[^]]*\])?\{[^}]*\}\{[^}]*\}", "", cell)
    cell = re.sub(r"\\multi(?:row|column)\{[^}]*\}\{[^}]*\}\{([^{}]*)\}", r"\1", cell)
    cell = re.sub(r"\\(?:textbf|textit|texttt|textsc|emph|text)\{([^{}]*)\}", r"\1", cell)
    return " ".join(cell.replace("\\_", "_").split())


def _below(cell: str, below: str, symbols: Symbols) -> str:
    """The text of a cell without dollar signs; for a cell `(a)`, the text that follows `(a)` below
    the table, or `(a)` if there is none. A formula marked with a letter, $w$ and the note `a: If $l
    > w$; $l$ if $l \\le w$.`, becomes `$w$ if $l > w$; $l$ if $l \\le w$`."""
    if marked := _MARKED.fullmatch(cell.strip()):
        mark = re.escape(rf"\textsuperscript{{{marked[2]}}}\, If ")
        note = re.search(rf"{mark}(\$[^$]+\$)(.*)\.$", below, re.M)
        return f"{marked[1]} if {note[1]}{note[2]}" if note else marked[1].strip("$")
    cell = _plain(cell)
    if re.fullmatch(r"\([a-z]+\)", cell):
        lines = [line for line in below.splitlines() if f" {cell} $" in line]
        return lines[0].partition(f" {cell} ")[2].strip().rstrip(".") if lines else cell
    if "*[" in cell:  # a path, in which the repetitions of a loop are a formula
        return re.sub(r"\$([^$]+)\$", lambda m: _in_our_letters(m[1], symbols), cell)
    return cell.strip("$") if cell.count("$") == 2 else cell
