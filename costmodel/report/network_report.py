"""How does a network's cost read on a terminal, in markdown and in LaTeX?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from costmodel.networks.choices import Choices
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.question import Missing
from costmodel.report import cells, render, typeset
from costmodel.report.network_captions import (
    convention_line,
    described,
    sizes_line,
    source_lines,
    training_notes,
)
from costmodel.report.network_table import Line, Sheet
from costmodel.report.table_formats import cell, checked_label, plain_number
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import Names, poly_latex
from costmodel.symbolic.sizes import LETTERS

TITLES: Mapping[str, str] = {
    "training": "Forward pass over l tokens",
    "inference": "One new token at position t",
    "backward": "Backward pass: the gradients of the forward pass",
    "training-step": "Training step: forward and backward pass over l tokens",
    "prefill": "Prefill: the p tokens of the prompt in one pass",
    "decode": "Decode: q new tokens, at positions p+1 to p+q",
}

HEADERS: Mapping[str, str] = {
    "part": "part",
    "runs": "times",
    "parameters": "parameters",
    "mul": "mul",
    "add": "add",
    "div": "div",
    "exp": "exp",
    "other": "other",
    "once": "once",
    "total": "total",
    "state": "state kept\n(elements)",
    "kept": "activations\n(elements)",
}
"""Column -> its header, in order."""

DROP = ("other", "exp", "div", "once", "state", "runs", "add", "kept", "mul")
"""What a narrow terminal loses, first to last; parts, sizes, parameters and total stay."""


def grids(sheets: Sequence[Sheet], names: Names | None = None) -> list[cells.Grid]:
    """One table a stage: its parts, or one line for each combination of sizes where there are
    several; and what a training step holds, at each of them."""
    return [grid for _, grid in _labelled(sheets, names)]


def _labelled(
    sheets: Sequence[Sheet], names: Names | None = None
) -> Iterator[tuple[str, cells.Grid]]:
    """Every table, with what its label ends in."""
    for stage in dict.fromkeys(sheet.stage for sheet in sheets):
        here = [sheet for sheet in sheets if sheet.stage == stage]
        make = _parts if len(here) == 1 else _sweep
        yield stage, make(here, names)
        held = [sheet for sheet in here if sheet.memory]
        for k, sheet in enumerate(held, 1):
            number = f"-{k}" if len(held) > 1 else ""
            yield f"memory{number}", _memory(sheet, names, swept=len(held) > 1)


def _memory(sheet: Sheet, names: Names | None, *, swept: bool) -> cells.Grid:
    """What a training step holds, line by line, in elements and in bytes."""
    size = sheet.request.holding.bytes_each
    columns = [cells.Column("held", "held", numeric=False), cells.Column("elements", "elements")]
    if size is not None:
        columns.append(cells.Column("bytes", f"bytes\n({sheet.request.holding.dtype})"))
    reasons: list[str] = []
    rows = []
    for one in sheet.memory:
        row: list[cells.Cell] = [one.name, cell(one.elements, names or {}, reasons)]
        if size is not None:
            row.append(cell(one.times(size), names or {}, reasons))
        rows.append(tuple(row))
    notes = [_note(said) for one in sheet.memory for said in one.says]
    at = [f"{x} = {sheet.sizes[x]}" for x in LETTERS if x in sheet.sizes and x in sheet.letters]
    title = f"Memory of a training step{' at ' + ', '.join(at) if swept else ''}"
    return cells.Grid(title, tuple(columns), tuple(rows), tuple(reasons), tuple(notes))


def _columns(sheets: Sequence[Sheet], lines: Sequence[Line]) -> list[str]:
    """`other` and `once` where there are any, the state where tokens follow."""
    there = []
    for name in HEADERS:
        values = [line.value(name) for line in lines]
        if name in ("other", "once") and all(v == 0 or isinstance(v, Missing) for v in values):
            continue
        if name == "state" and sheets[0].stage not in ("inference", "decode"):
            continue
        if name == "kept" and sheets[0].stage not in TRAINING_STEP:
            continue
        there.append(name)
    return there


def _parts(sheets: Sequence[Sheet], names: Names | None) -> cells.Grid:
    (sheet,) = sheets
    lines = (*sheet.lines, sheet.total)
    columns = _columns(sheets, lines)
    reasons: list[str] = []
    rows = tuple(tuple(_cell(line, c, names, reasons) for c in columns) for line in lines)
    head = tuple(cells.Column(c, HEADERS[c], numeric=c not in ("part", "other")) for c in columns)
    return cells.Grid(
        _title(sheet), head, rows, tuple(reasons), tuple(_notes(sheet, columns)), DROP
    )


def _sweep(sheets: Sequence[Sheet], names: Names | None) -> cells.Grid:
    letters = [x for x in LETTERS if len({sheet.sizes.get(x) for sheet in sheets}) > 1]
    columns = [c for c in _columns(sheets, [s.total for s in sheets]) if c not in ("part", "runs")]
    reasons: list[str] = []
    rows = tuple(
        (
            *(f"{sheet.sizes[x]:,}" for x in letters),
            *(_cell(sheet.total, c, names, reasons) for c in columns),
        )
        for sheet in sheets
    )
    head = [cells.Column(x, cells.Math(x, poly_latex(Poly.atom(x), names))) for x in letters]
    head += [cells.Column(c, HEADERS[c], numeric=c != "other") for c in columns]
    notes = _notes(sheets[0], columns, sweep=True)
    title = f"{_title(sheets[0])}: all parts together"
    return cells.Grid(title, tuple(head), rows, tuple(reasons), tuple(notes), DROP)


def _title(sheet: Sheet) -> str:
    return TITLES.get(sheet.stage, sheet.stage)


def _cell(line: Line, column: str, names: Names | None, reasons: list[str]) -> cells.Cell:
    found = line.other if column == "other" else None
    if isinstance(found, Mapping) and all(isinstance(value, int) for value in found.values()):
        return ", ".join(f"{plain_number(v)} {name}" for name, v in found.items() if v) or "0"
    return cell(line.value(column), names or {}, reasons)


def _notes(sheet: Sheet, columns: Sequence[str], *, sweep: bool = False) -> Iterator[cells.Note]:
    """What a reader has to know about the columns shown."""
    c = sheet.network.choices
    if not sweep and sheet.tables != 0:
        apart: cells.Line = ("parameters: of these, tables of embeddings have ",
                              cell(sheet.tables, {}, []))  # fmt: skip
        yield cells.Note(apart, ("parameters",))
    if c.tied and not sweep:
        yield _note("head: its weights are the embedding's and are counted there", "parameters")
    if c.kind == "encoder-decoder" and sheet.stage in ("inference", "decode"):
        yield _note(
            "encoder: it reads its e tokens once, with the prompt; a new token runs none of it, "
            "and the keys and values that the decoder takes from it are held"
        )
    if sheet.stage == "prefill":
        source = ", and an encoder its e tokens" if c.kind == "encoder-decoder" else ""
        yield _note(
            f"prefill: the network reads p tokens{source}, without loss and dropout; the head "
            f"scores the last position alone, for the first new token"
        )
    if sheet.stage == "decode" and not isinstance(sheet.total.total, Missing):
        yield _note("decode: a step reads one token and scores the next; the state is that after "
                    "p+q tokens")  # fmt: skip
    if sheet.stage in TRAINING_STEP and not sweep:
        yield from map(_note, training_notes(sheet))
    if "once" in columns:
        yield _note("once: work on weights alone, which mul, add, div and exp leave out; total "
                    "includes it", "once")  # fmt: skip
    named = sheet.total.other
    if "other" in columns and not isinstance(named, Missing):
        yield _note(f"other: {', '.join(sorted(named))}; total includes them", "other")


def _note(text: str, *of: str) -> cells.Note:
    return cells.Note((text,), of)


def together(sheets: Sequence[Sheet]) -> cells.Line | None:
    """Prefill and decode in one figure, where both are there once."""
    totals = [s.total.total for s in sheets if s.stage in ("prefill", "decode")]
    if len(totals) != 2 or any(isinstance(total, Missing) for total in totals):
        return None
    first, second = totals
    if isinstance(first, int) and isinstance(second, int):
        return ("prefill and decode together: ", f"{first + second:,}", " operations")
    return None


def heading(sheets: Sequence[Sheet]) -> str:
    """The network's title and name."""
    net = sheets[0].network
    return net.title if net.title == net.name else f"{net.title} ({net.name})"


def as_terminal(sheets: Sequence[Sheet], width: int | None, *, colour: bool) -> str:
    """All tables for a terminal of this width, or for a pipe."""
    request, c = sheets[0].request, sheets[0].network.choices
    lead = [
        heading(sheets),
        described(c),
        cells.sentence(sizes_line(list(sheets))),
        convention_line(request),
        *source_lines(c),
    ]
    parts = ["\n".join(lead)]
    parts += [render.terminal(grid, width, colour=colour).rstrip("\n") for grid in grids(sheets)]
    if line := together(sheets):
        parts.append(cells.sentence(line))
    return "\n\n".join(parts) + "\n"


def as_markdown(sheets: Sequence[Sheet], *, names: Names | None = None) -> str:
    """All tables in markdown, formulas between dollars."""
    request, c = sheets[0].request, sheets[0].network.choices
    lines = [
        render.markdown_cell(described(c)),
        "".join(map(render.markdown_cell, sizes_line(list(sheets), names))),
        *map(render.markdown_cell, (convention_line(request), *source_lines(c))),
    ]
    parts = [f"## {render.markdown_cell(heading(sheets))}\n", "  \n".join(lines) + "\n"]
    parts += [render.markdown(grid, "###") for grid in grids(sheets, names)]
    if line := together(sheets):
        parts.append("".join(map(render.markdown_cell, line)) + "\n")
    return "\n".join(parts)


def as_latex(sheets: Sequence[Sheet], command: str, *, names: Names | None = None, label: str = "",
             caption: str = "") -> str:  # fmt: skip
    """One booktabs table a stage; the first line is the command that makes them again.

    Args:
        caption: stands for the caption's first sentence; the rest follows it.
        label: the label; with several stages "-training" and so on are added.

    Raises:
        TableError: a label with characters that LaTeX would not take.
    """
    request, c = sheets[0].request, sheets[0].network.choices
    checked_label(label)
    made = list(_labelled(sheets, names))
    parts = [typeset.preamble(command)]
    for ending, grid in made:
        first = caption.rstrip(".") or f"Cost of {heading(sheets)}"
        line: list[cells.Cell] = [f"{first}. {grid.title}. "]
        line += cells.as_sentence((described(c),))
        line += cells.as_sentence(sizes_line(list(sheets), names))
        line += cells.as_sentence((convention_line(request),))
        for said in (*((text,) for text in source_lines(c)), *grid.said):
            line += cells.as_sentence(said)
        own = f"{label}-{ending}" if label and len(made) > 1 else label
        parts.append(typeset.latex(grid, tuple(line), own))
    return "\n".join(parts)


def listed(found: Mapping[str, Choices]) -> cells.Grid:
    """Every network that has a name: its kind, mixers and sizes, and where it is printed."""
    columns = (
        cells.Column("name", "name", numeric=False),
        cells.Column("title", "title", numeric=False, wide=True),
        cells.Column("kind", "kind", numeric=False),
        cells.Column("mixers", "mixers", numeric=False),
        cells.Column("sizes", "sizes", numeric=False, wide=True),
        cells.Column("source", "source", numeric=False, wide=True),
    )
    rows = tuple(
        (
            name,
            c.title,
            c.kind,
            ", ".join(c.mixers),
            ", ".join(_size(x, c) for x in LETTERS if x in c.sizes or x in c.widths),
            f"{c.source}, {c.place}" if c.place else c.source,
        )
        for name, c in found.items()
    )
    notes = (cells.Note(("sizes that are not listed take their defaults, or are given",)),)
    return cells.Grid("Networks", columns, rows, notes=notes, drop=("source", "kind", "title"))


def _size(letter: str, c: Choices) -> str:
    value = c.widths.get(letter) or c.sizes[letter]
    if isinstance(value, tuple):
        return f"{letter} = {' '.join(map(str, value))}"
    return f"{letter} = {value}"
