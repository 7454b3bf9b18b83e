"""The document of a network's costs: tables, headings and notes.

A sheet has the costs of a network in one stage (a phase, or prefill or decode) at one combination
of sizes: a line for each part of the network, and a line for the total (table.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.networks.choices import Choices
from costmodel.networks.network import Network
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.question import FOUND, Missing, Searched
from costmodel.questions.registry import FIGURES
from costmodel.questions.traffic import OF_TABLES
from costmodel.report.document import (
    Cell,
    Column,
    Document,
    Formula,
    Line,
    Note,
    Paragraph,
    Strong,
    Table,
    Text,
    letter,
    listed,
)
from costmodel.report.mixer_document import cell, column as figure_column
from costmodel.report.networks import changes, mfu, records as network_records
from costmodel.report.networks.captions import (
    convention_line,
    described,
    sizes_line,
    source_lines,
    training_notes,
)
from costmodel.report.networks.table import USUAL, Line as SheetLine, Sheet
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS, is_letter

P, Q = Poly.atom("p"), Poly.atom("q")

TITLES: Mapping[str, Line] = {
    "training": ("Forward pass over ", letter("l"), " tokens"),
    "inference": ("One new token at position ", letter("t")),
    "backward": ("Backward pass: the gradients of the forward pass",),
    "training-step": ("Training step: forward and backward pass over ", letter("l"), " tokens"),
    "prefill": ("Prefill: the ", letter("p"), " tokens of the prompt in one pass"),
    "decode": (
        "Decode: ", Formula(Q - 1), " steps of one token for the new tokens after the first, at "
        "positions ", Formula(P + 1), " to ", Formula(P + Q - 1),
    ),
}  # fmt: skip


def document(sheets: Sequence[Sheet], before: Sequence[Sheet] = ()) -> Document:
    """The document of a network's costs. `sheets` has the costs in one stage (a phase; or prefill
    and decode, which make up generation) at one combination of sizes each. A table per stage: a row
    per part, or with several combinations a row per combination; then the memory of a training
    step and, if asked for, formulas for MFU; a sentence on prefill and decode together.

    Args:
        before: the sheets of another network, at the same stages and sizes, to which the figures
            are compared in a table of their own.
    """
    request, c = sheets[0].request, sheets[0].network.described
    about = (convention_line(request), *source_lines(c))
    return Document(
        lambda: [
            *_tables(sheets),
            *([Paragraph(line)] if (line := together(sheets)) else []),
            *([changes.table(before, sheets)] if before else []),
        ],
        lead=(
            (Strong(heading_of(sheets[0].network)),), (described(c),), sizes_line(list(sheets)),
            *((line,) for line in about),
        ),
        data=lambda: {
            "models": [network_records.record(sheet) for sheet in sheets],
            **({"changes": changes.data(before, sheets)} if before else {}),
        },
        rows=lambda: network_records.rows(sheets),
    )  # fmt: skip


def _tables(sheets: Sequence[Sheet]) -> Iterator[Table]:
    """Yield all tables of the document: for each stage (a phase, or prefill and decode) the costs,
    then for each of its sheets (combinations of sizes) the memory and the formulas for MFU, if it
    has them."""
    for stage in dict.fromkeys(sheet.stage for sheet in sheets):
        here = [sheet for sheet in sheets if sheet.stage == stage]
        yield cost_table(here[0]) if len(here) == 1 else _sweep(here)
        held = [sheet for sheet in here if sheet.memory]
        for k, sheet in enumerate(held, 1):
            number = f"-{k}" if len(held) > 1 else ""
            yield _memory(sheet, f"memory{number}", swept=len(held) > 1)
        for k, sheet in enumerate(compared_ := [sheet for sheet in here if sheet.formulas], 1):
            yield from mfu.tables(sheet.formulas, f"-{k}" if len(compared_) > 1 else "")


def _memory(sheet: Sheet, slug: str, *, swept: bool) -> Table:
    """The table of the memory of a training step: a row for each kind of entries held, in elements
    and, if element types are given, in bytes. `slug` ends the table's label in LaTeX; `swept`: the
    sizes stand in the title."""
    typed = sheet.request.memory_options.types
    columns = [Column("held", "held", numeric=False), Column("elements", "elements")]
    if typed:
        columns.append(Column("bytes", f"bytes ({typed})"))
    rows = []
    for one in sheet.memory:
        elements: Cell = cell(one.elements)
        rows.append((one.name, elements, *([cell(one.bytes)] if one.bytes is not None else [])))
    notes = tuple(Note((said,)) for one in sheet.memory for said in one.says)
    at = [f"{x} = {sheet.sizes[x]}" for x in LETTERS if x in sheet.sizes and x in sheet.letters]
    title = f"Memory of a training step{' at ' + ', '.join(at) if swept else ''}"
    return Table(title, tuple(columns), tuple(rows), notes, slug)


def _columns(sheets: Sequence[Sheet], lines: Sequence[SheetLine]) -> list[str]:
    """The names of the columns of figures: those asked for that exist in the stage of `sheets` (a
    phase, or prefill or decode), and letters of sizes; else those of `USUAL` that exist there,
    `other` and `once` only where one of the `lines` (parts) has such operations."""
    request, phase = sheets[0].request, sheets[0].total.phase
    if request.columns is not None:
        return [x for x in request.columns if is_letter(x) or phase in FIGURES[x].phases]
    found = [name for name in USUAL if phase in FIGURES[name].phases]
    return [x for x in found if x not in ("other", "once") or FIGURES[x].usual(lines)]


def cost_table(sheet: Sheet) -> Table:
    """The table of a network's costs in one stage at one combination of sizes, part by part."""
    lines = (*sheet.lines, sheet.total)
    names = ["part", "runs", *_columns([sheet], lines)]
    rows = tuple(tuple(_cell(line, name, names) for name in names) for line in lines)
    columns = tuple(_column(name) for name in names)
    return Table(_title(sheet), columns, rows, tuple(_notes(sheet, names)), sheet.stage)


def _column(name: str) -> Column:
    """The column of a figure or a size, of a part's name, or of how often the part runs."""
    if name in ("part", "runs"):
        return Column(name, {"part": "part", "runs": "times"}[name], numeric=name == "runs")
    return replace(figure_column(name, names=False), wide=False, numeric=name != "other")


def _sweep(sheets: Sequence[Sheet]) -> Table:
    """The table of a network's costs in one stage at several combinations of sizes: a row for each
    sheet, with the sizes that vary and the totals of all parts."""
    letters = [x for x in LETTERS if len({sheet.sizes.get(x) for sheet in sheets}) > 1]
    names = _columns(sheets, [s.total for s in sheets])
    rows = tuple(
        (*(sheet.sizes[x] for x in letters), *(_cell(sheet.total, x, names) for x in names))
        for sheet in sheets
    )
    columns = (*(Column(x, letter(x), names=True) for x in letters), *map(_column, names))
    notes = tuple(_notes(sheets[0], names, sweep=True))
    title = (*_title(sheets[0]), ": all parts together")
    return Table(title, columns, rows, notes, sheets[0].stage)


def _title(sheet: Sheet) -> Line:
    return TITLES.get(sheet.stage, (sheet.stage,))


def _cell(line: SheetLine, column: str, shown: Sequence[str]) -> Text:
    """The value of a column as a cell. In tables of numbers, `other` (operations of further
    classes) is listed by class, `16 sqrt, 8 compare`, without the classes that are columns in
    `shown`."""
    if column == "other" and not line.symbolic:
        found = line.rest(FIGURES["other"], shown)
        if isinstance(found, Missing):
            return found
        return listed([(cell(value), f" {name}") for name, value in found.items() if value]) or 0
    of = "O" if column in FIGURES and FIGURES[column].kind == "order" else ""
    return cell(line.value(column, shown), of=of)


def _notes(sheet: Sheet, columns: Sequence[str], *, sweep: bool = False) -> Iterator[Note]:
    """Yield the notes that a reader of a network's costs needs for the stage and the `columns`
    shown; `sweep`: the table has totals at several sizes, no parts."""
    c = sheet.network.described
    if not sweep and sheet.tables != 0:
        apart = ("parameters: of these, tables of embeddings have ", cell(sheet.tables))
        yield Note(apart, ("parameters",))
    if c.tied and not sweep:
        yield _note("head: shares the embedding's weights, which are counted there", "parameters")
    if c.kind == "encoder-decoder" and sheet.stage in ("inference", "decode"):
        yield _note(
            "encoder: runs once, with the prompt, over its e tokens; a new token only reads the "
            "keys and values that the decoder holds from the encoder"
        )
    if sheet.stage == "prefill":
        source = ", and an encoder its e tokens" if c.kind == "encoder-decoder" else ""
        yield _note(
            f"prefill: the network reads p tokens{source}, without loss and dropout; the head "
            f"scores the last position alone, for the first new token"
        )
    if sheet.stage == "decode" and not isinstance(sheet.total.value("total"), Missing):
        yield _note(
            "decode: the prompt gives the first of q new tokens; each of q-1 steps reads one "
            "token and scores the next; the state is that after p+q-1 tokens"
        )
    if sheet.stage in TRAINING_STEP and not sweep:
        yield from map(_note, training_notes(sheet))
    if "once" in columns:
        yield _note("once: work on weights alone, which mul, add, div and exp leave out; total "
                    "includes it", "once")  # fmt: skip
    named = sheet.total.parts(FIGURES["other"])
    if "other" in columns and not isinstance(named, Missing):
        yield _note(f"other: {', '.join(sorted(named))}; total includes them", "other")
    yield from _of_figures(sheet, columns)


def _of_figures(sheet: Sheet, columns: Sequence[str]) -> Iterator[Note]:
    """Yield the notes on figures that a table shows only if they are asked for (paths, traffic,
    weights read, bytes), and on totals of `columns` that were found by search."""
    asked = sheet.request.columns or ()
    if {"span", "sequential"} & {*asked}:
        yield _note(
            "span, sequential: along the longest path, on which a part begins when the part before "
            "it has ended; a part's own row has its runs on this path"
        )
    if {"traffic", "intensity"} & {*asked}:
        yield _note(
            "traffic: arrays between parts need not move, so that the total is less than the sum "
            "of parts, of which each reads its input and writes its output"
        )
    read = {"weights", "weights_bytes"} & {*asked}
    if read and any(use.mixer.buffers for use in sheet.network.uses):
        yield _note(OF_TABLES, *read)
    if any(FIGURES[x].unit in ("bytes", "operations/byte") for x in asked if x in FIGURES):
        yield _note(f"bytes: {sheet.request.dtypes.of(sheet.request.described.dtypes).caption}")
    for name in columns:
        value = sheet.total.value(name, columns)
        if isinstance(value, Searched):
            yield _note(f"{name}: {FOUND} (no formula: {value.reason})", name)


def _note(text: str, *of: str) -> Note:
    return Note((text,), of)


def together(sheets: Sequence[Sheet]) -> Line | None:
    """A line with the operations of the first token (prefill), of the further ones (decode), and of
    both together; None unless both are there once and are numbers."""
    totals = [s.total.value("total") for s in sheets if s.stage in ("prefill", "decode")]
    if len(totals) != 2 or any(isinstance(total, Missing) for total in totals):
        return None
    first, second = totals
    if isinstance(first, int) and isinstance(second, int):
        return (
            "first token: ", first, " operations; the further ones: ", second,
            "; prefill and decode together: ", first + second, " operations",
        )  # fmt: skip
    return None


def heading_of(net: Network) -> str:
    """The network's title, with its name in parentheses if it differs."""
    return net.title if net.title == net.name else f"{net.title} ({net.name})"


def networks(found: Mapping[str, Choices]) -> Document:
    """The document of all named networks: a table, CSV and JSON of their kinds, mixers, sources and
    sizes (numbers, or formulas as in f = 4*d). `found`: name of a network -> its choices."""
    columns = tuple(
        Column(name, name, numeric=False, wide=name != "name", names=name == "name")
        for name in ("name", "title", "kind", "mixers", "sizes", "source")
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
    notes = (Note(("sizes that are not listed have a default or must be given",)),)
    return Document(
        lambda: [Table("Networks", columns, rows, notes)],
        data=lambda: {"models": [network_records.choices(*entry) for entry in found.items()]},
        rows=lambda: ([column.name for column in columns], rows),
    )


def _size(letter: str, c: Choices) -> str:
    value = c.widths.get(letter) or c.sizes[letter]
    if isinstance(value, tuple):
        return f"{letter} = {' '.join(map(str, value))}"
    return f"{letter} = {value}"
