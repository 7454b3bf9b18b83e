"""How does a table of costs read on a terminal, in markdown and in LaTeX?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction

from costmodel.errors import SizeError, TableError, Unanswered
from costmodel.language.equations import Mixer
from costmodel.language.functions import CLASSES
from costmodel.language.nodes import SELECTIONS, Fft, Select, walk
from costmodel.mixers import BASELINE
from costmodel.paths.witness import CriticalPath
from costmodel.program.chosen_sizes import default, letters_of
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.peak import OPTIMISERS
from costmodel.questions.question import Figure, Missing, Value
from costmodel.questions.registry import FIGURES
from costmodel.report import cells, render, typeset
from costmodel.report.mixer_table import COLUMNS, Block, Request, Row, Table, forms_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import Names, formula_latex, formula_words, poly_latex
from costmodel.symbolic.sizes import LETTERS

DIGITS = 4
"""Significant digits of a ratio, stated below every table that has one."""

DROP = ("path_length", "sequential", "peak", "activations", "to_forward", "order", "path",
        "unfused", "traffic", "intensity", "other", "exp", "div", "weights", "state", "span",
        "parameters", "add", "mul", "once", "ratio", "form")  # fmt: skip
"""What a narrow terminal loses, first to last; mixer, sizes and total stay."""

TITLES = {
    "training": "Forward pass over l tokens (the papers' training phase)",
    "inference": "One new token at position t (inference)",
    "backward": "Backward pass: the gradients of the forward pass, from that of its {result}",
    "training-step": "Training step: forward and backward pass over l tokens",
}

HINT = (
    "shown: self-attention and the Extractor family; --group extractor adds its ablations, --all "
    "shows every mixer, names choose, `costmodel list` says what there is"
)
"""What the plain command says about what it leaves out."""

_LABEL = re.compile(r"[A-Za-z0-9:._/-]+")
_NAME = re.compile(r"([A-Za-z]|\\[A-Za-z]+)(_[A-Za-z0-9]+)?|[A-Za-z]+")


def rounded(value: Fraction | int, digits: int = DIGITS) -> str:
    """A fraction with so many significant digits, never losing digits before the point.

    >>> rounded(Fraction(278888448, 21119488)), rounded(Fraction(1, 1)), rounded(Fraction(1, 300))
    ('13.21', '1', '0.003333')
    """
    if isinstance(value, int) or value.denominator == 1:
        return f"{int(value):,}"
    whole = len(str(abs(int(value)))) if abs(value) >= 1 else 0
    context = Context(prec=max(digits, whole))
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)):,f}"


def _short(value: Fraction) -> str | None:
    """A fraction as a finite decimal of at most six places, or None."""
    if 10**6 % value.denominator:
        return None
    whole, rest = divmod(abs(value.numerator) * (10**6 // value.denominator), 10**6)
    return f"{'-' if value < 0 else ''}{whole:,}.{rest:06d}".rstrip("0")


def cell(value: Value, names: Names, reasons: list[str]) -> cells.Cell:
    """A value as a cell; its reason is added to `reasons` where it does not exist."""
    if value is None:
        return ""
    if isinstance(value, Missing):
        if value.reason not in reasons:
            reasons.append(value.reason)
        return cells.Dash(reasons.index(value.reason) + 1)
    if isinstance(value, str):
        return value
    if isinstance(value, CriticalPath):
        return value.text
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Fraction):
        return _short(value) or rounded(value)
    return cells.formula(value, names)


def _cell_of(row: Row, name: str, names: Names, reasons: list[str], titles: bool) -> cells.Cell:
    value = row.value(name)
    kind = COLUMNS[name].kind if name in COLUMNS else "number"
    if name == "mixer" and titles:
        return row.mixer.title
    if kind == "ratio" and isinstance(value, Fraction):
        return rounded(value)
    if kind == "order" and isinstance(value, Exact):
        text, latex = formula_words(value), formula_latex(value, names)
        return cells.Math(f"O({text})", rf"O\left({latex}\right)")
    if kind == "names" and not row.symbolic:
        return _by_name(row, COLUMNS[name], reasons)
    return cell(value, names, reasons)


def _by_name(row: Row, figure: Figure, reasons: list[str]) -> cells.Cell:
    """The parts of a figure by name: `1,056,768 compare`."""
    found = row.parts(figure)
    if isinstance(found, Missing):
        return cell(found, {}, reasons)
    parts = [f"{plain_number(number)} {name}" for name, number in found.items()]
    return ", ".join(parts) or "0"


def plain_number(value: Value) -> str:
    """A number in a sentence."""
    return cells.plain(cell(value, {}, []))


def grid(block: Block, request: Request, *, names: Names | None = None, titles: bool = False,
         sizes: str = "") -> cells.Grid:  # fmt: skip
    """One block as cells.

    Args:
        titles: whether mixers go by their titles, as papers print them.
    """
    reasons: list[str] = []
    rows = tuple(
        tuple(_cell_of(row, name, names or {}, reasons, titles) for name in block.columns)
        for row in block.rows
    )
    columns = tuple(_column(name, names or {}) for name in block.columns)
    per_token = ", per token" if request.per_token else ""
    return cells.Grid(
        f"{_about(TITLES, block, request)}{per_token}{sizes}",
        columns,
        rows,
        tuple(reasons),
        tuple(notes(block, request)),
        DROP,
    )


def _about(words: Mapping[str, str], block: Block, request: Request) -> str:
    """What is said of a block's phase, whose gradients begin at the output or at a loss."""
    result = "loss" if request.convention.backward.loss else "output"
    return words[block.phase].format(result=result)


def _column(name: str, names: Names) -> cells.Column:
    if name in LETTERS:
        return cells.Column(name, cells.Math(name, poly_latex(Poly.atom(name), names)))
    column = COLUMNS[name]
    numeric = column.kind not in ("steps", "label")
    header = column.header or name
    return cells.Column(name, header, numeric, wide=column.kind == "steps")


def notes(block: Block, request: Request) -> Iterator[cells.Note]:
    """What a reader has to know about the columns shown."""
    shown = block.columns
    yield _note(
        "critical path: sum is one cumulation, a whole sum however many terms it has", "path"
    )
    ratios = [name for name in shown if name in COLUMNS and COLUMNS[name].kind == "ratio"]
    fractions = [] if request.symbolic else ratios
    for name in fractions:
        if any(isinstance(row.value(name), Fraction) for row in block.rows):
            exact = "CSV and JSON have them exact"
            yield _note(f"{name}: rounded to {DIGITS} significant digits ({exact})", name)
    if "ratio" in shown and (text := _baseline_sizes(block, request)):
        yield _note(text, "ratio")
    yield from _apart(block)
    if request.per_token:
        yield from _divided(block)
    if request.per_token and any(_long(row, name) for row in block.rows for name in shown):
        where = "where no short decimal exists"
        yield _note(f"per token: rounded to {DIGITS} significant digits {where}")
    yield _note(f"bytes: {request.dtypes.caption}", *_IN_BYTES)
    if block.phase in TRAINING_STEP:
        yield _note(request.convention.backward.given)
    if request.optimiser:
        each = OPTIMISERS[request.optimiser]
        yield _note(f"optimiser {request.optimiser}: {each} times the parameters", "optimiser")
    if block.phase == "inference" and "dense" in request.convention.rewrites:
        yield _note("one new token has no masked pairs: dense changes nothing here")
    if any(_transforms(row) for row in block.rows):
        yield _note(
            "Fourier transforms are nominal: radix-2 at the next power of two, a complex product "
            "is 4 mul and 2 add"
        )
    chosen = {kind for row in block.rows for kind in _selections(row)}
    for kind in SELECTIONS:
        if kind in chosen:
            yield _note(f"comparisons of {kind} are nominal: {SELECTIONS[kind]}")


def _apart(block: Block) -> Iterator[cells.Note]:
    """What the columns of single classes leave out, and total has."""
    rows = [row for row in block.rows if not row.blocked]
    classes = [name for name in (*CLASSES, "other") if name in block.columns]
    if any(once and not isinstance(once, Missing) for once in _parts(rows, "once")):
        where = "stands under once" if "once" in block.columns else "column once would show"
        work = f"the work done once for the weights, which {where}"
        lead = f"{', '.join(classes)} leave out {work}; total includes it"
        yield _note(
            f"once: {lead if classes else f'total includes {work}'}", *classes, "once", "total"
        )
    found = _parts(rows, "other")
    names = sorted({name for other in found if not isinstance(other, Missing) for name in other})
    if names:
        here = "" if "other" in block.columns else " (column other would show them)"
        yield _note(
            f"other: operations without a class of their own, here {', '.join(names)}{here}; total "
            "includes them",
            *("other", "total"),
        )


def _divided(block: Block) -> Iterator[cells.Note]:
    """What is per token in a table per token, and what is not."""
    tokens = "b new tokens" if block.phase == "inference" else "b*l tokens"
    figures = [FIGURES[name] for name in block.columns if name in FIGURES]
    shared = [figure.name for figure in figures if figure.per_token]
    kept = [one.name for one in figures if one.kind == "number" and not one.per_token]
    if shared:
        rest = f"; {', '.join(kept)} are not" if kept else ""
        yield _note(f"per token: {', '.join(shared)} are divided by the {tokens}{rest}")


def _parts(rows: Sequence[Row], name: str) -> list[Mapping[str, Value] | Missing]:
    return [row.parts(FIGURES[name]) for row in rows]


_IN_BYTES = tuple(one.name for one in FIGURES.values() if one.unit in ("bytes", "operations/byte"))
"""The columns that depend on the element types."""


def _note(text: str, *of: str) -> cells.Note:
    return cells.Note((text,), of)


def _long(row: Row, name: str) -> bool:
    value = row.value(name)
    ratio = name in FIGURES and FIGURES[name].kind == "ratio"
    return isinstance(value, Fraction) and not ratio and not _short(value)


def _baseline_sizes(block: Block, request: Request) -> str:
    """Which sizes the baseline takes that a row lacks, where the rows do not show them."""
    used: dict[str, int] = {}
    for row in block.rows:
        try:
            base = row.base
        except Unanswered:
            continue
        used.update({x: v for x, v in base.sizes.items() if x not in row.sizes})
    there = any(row.mixer.name == BASELINE for row in block.rows)
    used = {x: v for x, v in used.items() if not there or len(request.given.get(x, ())) > 1}
    if not used:
        return ""
    text = ", ".join(f"{x} = {v}" for x, v in used.items())
    return f"ratio: mixers without {', '.join(used)} are compared with {BASELINE} at {text}"


def _transforms(row: Row) -> bool:
    form = row.mixer.forms[row.form]
    return any(isinstance(node, Fft) for e in form.equations for node, _ in walk(e.value))


def _selections(row: Row) -> set[str]:
    form = row.mixer.forms[row.form]
    parts = (node for e in form.equations for node, _ in walk(e.value))
    return {node.kind for node in parts if isinstance(node, Select)}


def sizes_line(request: Request, phases: Sequence[str], names: Names | None = None) -> cells.Line:
    """Every size that the rows depend on: first what was given, then the defaults taken."""
    forms = [(m, form) for m in request.mixers for form in forms_of(m, request)]
    letters = {x for phase in phases for m, form in forms for x in letters_of(m, phase, form)}
    ordered = [x for x in LETTERS if x in letters]
    given = [_size(x, request.given[x], names) for x in ordered if x in request.given]
    taken = [
        _size(x, _default(x, request), names)
        for x in ordered
        if x not in request.given and not (request.symbolic and x != "b")
    ]
    line: list[cells.Cell] = ["sizes: ", *_joined(given)]
    if request.symbolic:
        kept = [_size(x, (), names) for x in ordered if x not in request.given and x != "b"]
        line += ["; " if given else "", "as letters ", *_joined(kept)]
    if taken:
        line += ["; " if len(line) > 1 else "", "by default ", *_joined(taken)]
    unused = [x for x in request.given if x not in letters and not (x == "t" and "l" in letters)]
    others = {x for m in request.mixers for phase in phases for x in letters_of(m, phase)}
    for what, named in (("mixers", {*unused} - others), ("forms", {*unused} & others)):
        if named:
            listed = ", ".join(x for x in unused if x in named)
            line.append(f" ({listed} is a size of none of these {what})")
    return tuple(line)


def _default(letter: str, request: Request) -> tuple[int, ...] | str:
    if letter != "t":
        return (default(letter, {"l": 1}),)
    return "l"


def _size(letter: str, values: tuple[int, ...] | str, names: Names | None) -> cells.Math:
    shown = poly_latex(Poly.atom(letter), names)
    if isinstance(values, str):
        return cells.Math(
            f"{letter} = {values}", f"{shown} = {poly_latex(Poly.atom(values), names)}"
        )
    if not values:
        return cells.Math(letter, shown)
    text = ", ".join(map(str, values))
    return cells.Math(f"{letter} = {text}", f"{shown} = {text}")


def _joined(parts: Sequence[cells.Math]) -> list[cells.Cell]:
    joined: list[cells.Cell] = []
    for k, part in enumerate(parts):
        joined += [", ", part] if k else [part]
    return joined


def convention_line(request: Request) -> str:
    """The convention's name and what it says."""
    return f"convention: {','.join(request.convention.names)} ({request.convention.caption})"


def as_terminal(table: Table, width: int | None, *, colour: bool, hint: str = "") -> str:
    """The whole table for a terminal of this width, or for a pipe."""
    phases = [block.phase for block in table.blocks]
    parts = [
        cells.sentence(sizes_line(table.request, phases)) + "\n" + convention_line(table.request)
    ]
    for block in table.blocks:
        parts.append(render.terminal(grid(block, table.request), width, colour=colour).rstrip("\n"))
    parts += [f"left out: {reason}" for reason in table.left_out]
    if hint:
        parts.append(hint)
    return "\n\n".join(parts) + "\n"


def as_markdown(table: Table, *, names: Names | None = None) -> str:
    """The whole table in markdown, formulas between dollars."""
    phases = [block.phase for block in table.blocks]
    sizes = "".join(map(render.markdown_cell, sizes_line(table.request, phases, names)))
    parts = [f"{sizes}  \n{render.markdown_cell(convention_line(table.request))}\n"]
    parts += [
        render.markdown(grid(block, table.request, names=names, titles=True), "###")
        for block in table.blocks
    ]
    parts += [f"left out: {reason}\n" for reason in table.left_out]
    return "\n".join(parts)


def checked_label(label: str) -> None:
    """Raise TableError for a label with characters that LaTeX would not take."""
    if label and not _LABEL.fullmatch(label):
        raise TableError(f"label '{label}' may hold letters, digits and : . _ / - only")


def as_latex(table: Table, command: str, *, names: Names | None = None, label: str = "",
             caption: str = "") -> str:  # fmt: skip
    """One booktabs table a phase; the first line is the command that makes them again.

    Args:
        caption: stands for the caption's first sentence; phase, sizes and convention follow it.
        label: the label; with several phases "-training" and "-inference" are added.

    Raises:
        TableError: a label with characters that LaTeX would not take.
    """
    checked_label(label)
    several = bool(label) and len(table.blocks) > 1
    labels = [f"{label}-{b.phase}" if several else label for b in table.blocks]
    note = f"% one table a phase, labelled {' and '.join(labels)}\n" if several else ""
    parts = [f"{typeset.preamble(command)}\n{note}"]
    for block, own in zip(table.blocks, labels, strict=True):
        shown = grid(block, table.request, names=names, titles=True)
        parts.append(
            typeset.latex(shown, _caption(shown, block, table.request, names, caption), own)
        )
    return "\n".join(parts)


def _caption(shown: cells.Grid, block: Block, request: Request, names: Names | None,
             caption: str) -> cells.Line:  # fmt: skip
    phases = {
        "training": "Cost of one forward pass (the papers' training phase)",
        "inference": "Cost of one new token (the papers' inference phase)",
        "backward": "Cost of one backward pass, given the gradient of the {result}",
        "training-step": "Cost of one training step: a forward pass and its backward pass",
    }
    words = _about(phases, block, request)
    first = caption or words
    phase = "" if not caption else f" {words.removeprefix('Cost of ').capitalize()}."
    per_token = ", per token" if request.per_token and not caption else ""
    line: list[cells.Cell] = [f"{first.rstrip('.')}{per_token}.{phase} "]
    line += cells.as_sentence(sizes_line(request, [block.phase], names))
    line += cells.as_sentence((convention_line(request),))
    for said in shown.said:
        line += cells.as_sentence(said)
    return tuple(line)


def symbol_names(text: str, mixers: Sequence[Mixer]) -> dict[str, str]:
    r"""Read `--symbols l=N,d=d_model,t=\tau` into what LaTeX prints for each letter.

    Raises:
        SizeError: an unknown letter, a name that LaTeX would not take, or one name for two sizes
            of these mixers.
    """
    found: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        letter, separator, name = part.partition("=")
        if not separator or letter not in LETTERS or not _NAME.fullmatch(name):
            raise SizeError(
                f"--symbols takes letter=name, such as l=N,d=d_model or t=\\tau, got '{part}'"
            )
        head, _, tail = name.partition("_")
        head = head if len(head) == 1 or head.startswith("\\") else rf"\mathrm{{{head}}}"
        found[letter] = rf"{head}_{{\mathrm{{{tail}}}}}" if tail else head
    printed: dict[str, str] = {}
    used = {letter for mixer in mixers for letter in letters_of(mixer, "inference")}
    for letter in filter(used.__contains__, LETTERS):
        name = found.get(letter, letter)
        if name in printed and (letter in found or printed[name] in found):
            clash = f"--symbols would print {letter} and {printed[name]} both as {name}"
            raise SizeError(f"{clash}: rename the other one too")
        printed.setdefault(name, letter)
    return found
