"""The document of a table of costs: titles, headings, cells and notes.

The table has a block for each phase; a row of a block is a form of a mixer at sizes, and a column
shows a figure (`Figure`), a size or a label (mixer_table.py). A line is a sentence as a tuple of
cells, so that each format prints its formulas and names in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

from costmodel.errors import SizeError
from costmodel.language.equations import Mixer
from costmodel.language.nodes import walk
from costmodel.mixers import BASELINE
from costmodel.paths.chains import CriticalPath
from costmodel.prediction.columns import notes as of_a_board
from costmodel.program.chosen_sizes import Given, combinations, letters_of, ties, usual
from costmodel.program.conventions import PEERS, Convention, computes_masked
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.question import (
    FOUND,
    Figure,
    Kind,
    Missing,
    Searched,
    Value,
    Whole,
    answers,
)
from costmodel.questions.registry import BEST, FIGURES
from costmodel.report import document as doc, table_data
from costmodel.report.document import (
    DIGITS,
    Column,
    Document,
    Equal,
    Formula,
    Line,
    Named,
    Note,
    Text,
)
from costmodel.report.mixer_table import (
    COLUMNS,
    LABELS,
    Block,
    Request,
    Row,
    Table,
    forms_of,
    misfit,
    varying,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.printing import identifier, polynomials
from costmodel.symbolic.sizes import LETTERS, Letter, in_order, is_letter

TITLES: Mapping[str, Line] = {
    "training": ("Forward pass over ", doc.letter("l"), " tokens (the papers' training phase)"),
    "inference": ("One new token at position ", doc.letter("t"), " (inference)"),
    "backward": (
        "Backward pass: the gradients of the forward pass, from the gradient of its {result}",
    ),
    "training-step": (
        "Training step: forward and backward pass over ", doc.letter("l"), " tokens",
    ),
}  # fmt: skip

HINT = (
    "shown: self-attention and the Extractor family; --group extractor adds its ablations, "
    "--all shows every mixer, names choose mixers, `costmodel list` lists them"
)
"""The hint below the default table about the mixers that it does not show."""


def document(
    table: Table, hint: str = "", printable: Callable[[Text], Text] | None = None
) -> Document:
    """The document of a table of costs: a table per phase; below them the mixers that were left
    out, and the `hint` if there is one. `printable`: the cell of a value -> the cell printed."""
    phases = [block.phase for block in table.blocks]
    return Document(
        lambda: [
            *(shown(block, table.request, printable) for block in table.blocks),
            *(doc.Paragraph((f"left out: {reason}",)) for reason in table.left_out),
            *([doc.Paragraph((hint,))] if hint else []),
        ],
        lead=(sizes_line(table.request, phases), (convention_line(table.request.convention),)),
        data=lambda: table_data.data(table),
        rows=lambda: table_data.rows(table),
    )


def shown(
    block: Block, request: Request, printable: Callable[[Text], Text] | None = None
) -> doc.Table:
    """The table of one phase. Sizes that vary have a column even if it is not requested; the form
    has a column only if that is requested, and otherwise stands behind the mixer's name. Rows
    without the phase stand in a note if no mixer was named; with a column `ratio`, causal mixers
    stand above the others. `printable`: as `document` has it."""
    names = _names_shown(block, request)
    letters = in_order({x for row in block.rows for x in row.sizes})
    sweeps = [x for x in letters if len({row.sizes.get(x) for row in block.rows}) > 1]
    naming = ("mixer", "form", *sweeps)
    columns = tuple(column(name, names=name in naming) for name in names)
    unanswered = {} if request.named else _unanswered(block)
    kept = [row for row in block.rows if row not in unanswered]
    rows = [
        part if isinstance(part, doc.Section) else tuple(row_cell(part, x, names) for x in names)
        for part in (_by_causality(kept) if "ratio" in names else kept)
    ]
    if printable is not None:
        rows = [x if isinstance(x, doc.Section) else tuple(map(printable, x)) for x in rows]
    per_token = ", per token" if request.per_token else ""
    result = "loss" if request.convention.backward.loss else "output"
    title = tuple(
        part.format(result=result) if isinstance(part, str) else part
        for part in TITLES[block.phase]
    )
    sizes = sizes_line(request, [block.phase], _used(kept, names, rows))
    lead = (sizes, (convention_line(request.convention),))
    absent = without_answer((named_form(r.mixer, r.form), why) for r, why in unanswered.items())
    said = tuple(dict.fromkeys([*absent, *notes(block, request)]))
    return doc.Table((*title, per_token), columns, tuple(rows), said, block.phase, lead)


def _names_shown(block: Block, request: Request) -> list[str]:
    """The names of the columns shown: mixer and form, if they are among the first two asked for,
    the sizes that vary, and the others asked for, form only if the user names columns."""
    chosen = [x for x in block.columns if x != "form" or request.columns is not None]
    first = [name for name in ("mixer", "form") if name in chosen[:2]]
    more = [x for x in varying(block.rows) if x not in chosen]
    return [*first, *more, *(name for name in chosen if name not in first)]


def _used(
    rows: Sequence[Row], names: Sequence[str], cells: Sequence[tuple[Text, ...] | doc.Section]
) -> set[str]:
    """The sizes that the values of the columns `names` of the `rows` depend on, which the caption
    then names. In a table of formulas, of these only the sizes that have a number or another size
    in their place, and all sizes that the `cells` print."""
    used: set[str] = set()
    for row in rows:
        open_ = {*row.sizes, *row.ties}
        for name in names:
            if not open_ <= used:
                used.update(_depends(row, name))
    if not any(row.symbolic for row in rows):
        return used
    return used & {x for row in rows for x in (*row.sizes, *row.ties)} | _letters(cells)


def _depends(row: Row, name: str) -> Collection[str]:
    """The sizes that the value of the column `name` depends on, all sizes of the row if the value
    has no formula; () for a label and for a missing value."""
    if is_letter(name):
        return [name]
    value = None if name in LABELS else row.value(name)
    if value is None or isinstance(value, Missing):
        return ()
    return row.sizes_of(COLUMNS[name])


def _letters(rows: Iterable[tuple[Text, ...] | doc.Section]) -> set[str]:
    """The sizes in the formulas of the cells."""
    cells = [cell for row in rows if isinstance(row, tuple) for cell in row]
    parts = [part for cell in cells for part in (cell if isinstance(cell, tuple) else (cell,))]
    formulas = [part.value for part in parts if isinstance(part, Formula)]
    return {x for value in formulas for poly in polynomials(value) for x in poly.letters}


def _by_causality(rows: Sequence[Row]) -> Iterator[Row | doc.Section]:
    """Yield the rows of causal mixers, then those of bidirectional mixers, each group below a
    heading, since ratios are to causal self-attention; without headings if no bidirectional mixer
    has a ratio."""
    later = [row for row in rows if not_causal(row.mixer) and not row.blocked]
    groups = {
        "causal": [row for row in rows if row not in later],
        f"bidirectional (the ratio is to causal {BASELINE})": later,
    }
    for words, group in groups.items():
        if later and group:
            yield doc.Section((words,))
        yield from group


def _unanswered(block: Block) -> dict[Row, str]:
    """Row -> the reason why the form has no such phase: the rows that the table leaves out. {} if
    every row would be left out, or if all columns are figures that exist without the phase, such as
    parameters."""
    figures = [COLUMNS[name] for name in block.columns if name in {**FIGURES, **BEST}]
    found = {row: row.blocked for row in block.rows if row.blocked}
    if all(figure.always for figure in figures) or len(found) == len(block.rows):
        return {}
    return found


def without_answer(reasons: Iterable[tuple[Line, str]]) -> Iterator[Note]:
    """Yield one note on mixers without an answer, grouped by reason; nothing if there are none.

    Args:
        reasons: pairs (a mixer in words, the reason).
    """
    named: dict[str, dict[Line, None]] = {}
    for words, reason in reasons:
        named.setdefault(reason, {})[words] = None
    if named:
        said = ((*doc.listed(mixers), f" ({reason})") for reason, mixers in named.items())
        yield Note(("without an answer: ", *doc.listed(said, "; ")))


def named(mixer: Mixer) -> Named:
    """A mixer's name and title, with the sizes in the braces of the name."""
    return Named(mixer.name, mixer.title, tuple(mixer.given.items()))


def named_form(mixer: Mixer, form: str) -> Line:
    """A mixer's name, with the form if it is not the default one."""
    own = (f" in form {form}",) if form != mixer.default_form else ()
    return (named(mixer), *own)


def column(name: str, *, names: bool) -> Column:
    """The column of a figure or a size; `names`: whether it names rows, as a varying size does."""
    if is_letter(name):
        return Column(name, doc.letter(name), names=names)
    figure = COLUMNS[name]
    header = (figure.header or name).replace("\n", " ")
    numeric = figure.kind not in ("steps", "label")
    wide = figure.kind in ("steps", "names")
    return Column(name, header, figure.heading, numeric, wide, names,
                  rounded=figure.kind == "ratio")  # fmt: skip


def row_cell(row: Row, name: str, shown: Sequence[str]) -> Text:
    """The value of the column `name` of a row as a cell. The figure `other` (operations of further
    classes) leaves out the classes that have a column of their own in `shown`."""
    if name == "mixer":
        return _mixer(row, form="form" in shown)
    kind = COLUMNS[name].kind if name in COLUMNS else "number"
    if kind == "names" and not row.symbolic:
        return _by_name(row, COLUMNS[name], shown)
    value = row.value(name, shown)
    if isinstance(value, CriticalPath):
        return steps(value)
    return cell(value, of="O" if kind == "order" else "")


def steps(path: CriticalPath) -> Text:
    """A path as `CriticalPath.text` has it, with the formulas of its loops as formulas."""
    line = tuple(piece if isinstance(piece, str) else Formula(piece) for piece in path.written)
    return path.text if all(isinstance(piece, str) for piece in line) else line


def cell(value: Value, of: str = "") -> doc.Cell:
    """A figure's value as a cell: a number, text or reason unchanged, a path as text, a formula as
    `Formula`, "" for None. `of` is a function around a formula, such as "O"."""
    if value is None:
        return ""
    if isinstance(value, (int, str, Fraction, Missing)):
        return value
    if isinstance(value, CriticalPath):
        return value.text
    return Formula(value, of)


def _mixer(row: Row, *, form: bool) -> Text:
    """A mixer's name as a cell, with a footnote if it is not causal, and followed by the form if
    that is not the default and has no column of its own (`form`)."""
    cell: doc.Cell = named(row.mixer)
    if reason := not_causal(row.mixer):
        cell = doc.Marked(cell, reason)
    if form or row.form == row.mixer.default_form:
        return cell
    return (cell, f", {row.form}")


@cache
def not_causal(mixer: Mixer) -> str:
    """Why no form of a mixer has one-token inference; "" if one has or all are faulty."""
    reasons = []
    for about in (answers(mixer, form, "inference", Convention()) for form in mixer.forms):
        if not about.malformed:
            if not about.unanswered:
                return ""
            reasons.append(about.unanswered)
    return reasons[0] if reasons else ""


def _by_name(row: Row, figure: Figure, shown: Sequence[str]) -> Text:
    """The parts of a figure as a cell, `1,056,768 compare, 16 sqrt`, without those that are columns
    in `shown`; 0 if there are none, Missing if they are not known."""
    found = row.rest(figure, shown)
    if isinstance(found, Missing):
        return found
    return doc.listed((cell(number), f" {name}") for name, number in found.items()) or 0


def notes(block: Block, request: Request) -> Iterator[Note]:
    """Yield the notes below the table of a phase: on its figures, rounding, numbers found by
    search, forms that hold less, a new token beyond the length, division by tokens, element types,
    a board, gradients (also of a backward pass alone), and `dense` in inference. A note with
    columns (`Note.of`) is printed only if the table has one of them."""
    shown = block.columns
    yield from _of_figures(block, "steps")
    yield from () if request.symbolic else _rounded(block)
    yield from _of_figures(block, "ratio")
    yield from _searched(block)
    yield from _of_figures(block, "number", "names", "order")
    if request.named and not request.symbolic:
        figures = (FIGURES[name] for name in shown if name in FIGURES)
        for name in dict.fromkeys(figure.within or figure.name for figure in figures):
            if FIGURES[name].by_form:
                yield from _less_in_other_forms(FIGURES[name], block.rows, request.given)
    without_length = _without_length(request, [block.phase])  # no row depends on l
    if not without_length and any(_after_the_last(row) for row in block.rows):
        t, l = doc.letter("t"), doc.letter("l")
        beyond = ": the new token lies beyond the length "
        its = "; without weights per position, its cost does not depend on "
        yield Note((t, " > ", l, beyond, l, its, l))
    if request.per_token:
        yield from _divided(block)
    if request.per_token and any(
        _has_rounded_fraction(row, name) for row in block.rows for name in shown
    ):
        where = "where no short decimal exists"
        yield _note(f"per token: rounded to {DIGITS} significant digits {where}")
    yield _note(f"bytes: {request.dtypes.caption_of(row.mixer for row in block.rows)}", *_IN_BYTES)
    yield from map(_note, of_a_board(block.rows, shown))
    if block.phase in TRAINING_STEP:
        yield _note(request.convention.of_gradients)
        if (peer := request.convention.peer) and PEERS[peer].gradients:
            yield _note(f"{peer}: {PEERS[peer].gradients}")
    if block.phase == "inference" and computes_masked(request.convention.rewrites):
        yield _note("dense: one new token has no masked pairs, so nothing changes")


def _rounded(block: Block) -> Iterator[Note]:
    """Yield a note for each column of ratios with fractions, that these are printed rounded."""
    for name in (x for x in block.columns if x in COLUMNS and COLUMNS[x].kind == "ratio"):
        if any(isinstance(row.value(name), Fraction) for row in block.rows):
            words = COLUMNS[name].title.lower() if COLUMNS[name].heading else name
            exact = "CSV and JSON have them exact"
            yield _note(f"{words}: rounded to {DIGITS} significant digits ({exact})", name)


def _of_figures(block: Block, *kinds: Kind) -> Iterator[Note]:
    """Yield the notes of the figures of some kinds that the columns show."""
    figures = (COLUMNS[name] for name in block.columns if name in {**FIGURES, **BEST})
    for note in dict.fromkeys(n for one in figures if one.kind in kinds for n in one.notes):
        yield from map(_note, note(block.rows, block.columns))


def _less_in_other_forms(figure: Figure, rows: Sequence[Row], given: Given) -> Iterator[Note]:
    """Yield a note for each mixer of which other forms, without a row, hold less of a figure (the
    state) than a row does, with the amount: a formula for one sequence, or a number where the
    formula has several cases. Rows that hold as much at twice the length are passed over. `given`:
    letter -> the values given, for the sizes that a row's form lacks."""
    shown = {(row.mixer, row.form) for row in rows}
    lesser: dict[Mixer, dict[Line, dict[str, None]]] = {}  # mixer -> amount -> forms
    for row in rows:
        held = row.figure(figure)
        others = [form for form in row.mixer.forms if (row.mixer, form) not in shown]
        if not others or not isinstance(held, int):
            continue
        longer = {x: size * 2 if x in "lt" else size for x, size in row.sizes.items()}
        if replace(row, sizes=longer).figure(figure) == held:
            continue
        at: Given = {**given, **{x: (size,) for x, size in row.sizes.items()}}
        for form in others:
            sizes, *_ = combinations(letters_of(row.mixer, row.phase, form), at, row.mixer)
            about = answers(row.mixer, form, row.phase, row.about.convention)
            other = replace(row, about=about, sizes=sizes)
            less = None if misfit(row.mixer, sizes) else other.figure(figure)
            if isinstance(less, int) and less < held:
                lesser.setdefault(row.mixer, {}).setdefault(_amount(other, figure), {})[form] = None
    for mixer, amounts in lesser.items():
        for words, forms in amounts.items():
            listed = " or ".join(forms)
            lead = f"{figure.name}: "
            yield Note((lead, named(mixer), f" in form {listed} holds less, ", *words))


def _amount(row: Row, figure: Figure) -> Line:
    """The figure of a row with its unit: the formula for one sequence if it has no cases, else the
    number."""
    formula = replace(row, sizes={"b": 1}, symbolic=True).figure(figure)
    if isinstance(formula, Exact) and len(formula.pieces) == 1:
        return Formula(formula), f" {figure.unit} of each sequence"
    return cell(row.figure(figure)), f" {figure.unit}"


def _searched(block: Block) -> Iterator[Note]:
    """Yield the notes on numbers that were found by search, since no formula is derived: for each
    column and reason the mixers."""
    for name in block.columns:
        by_reason: dict[str, dict[str, None]] = {}
        for row in block.rows:
            value = row.value(name)
            if isinstance(value, Searched):
                by_reason.setdefault(value.reason, {})[row.mixer.name] = None
        for reason, mixers in by_reason.items():
            what = f"{name} of {', '.join(mixers)}"
            yield _note(f"{what}: {FOUND} (no formula: {reason})", name)


def _divided(block: Block) -> Iterator[Note]:
    """Yield the note on which columns of a table per token are divided by the number of tokens (b
    new ones in inference, else b*l) and which are not; nothing if none is divided."""
    new = block.phase == "inference"
    tokens = (" new",) if new else (" × ", doc.letter("l"))
    figures = [COLUMNS[name] for name in block.columns if name in COLUMNS]
    shared = [figure.name for figure in figures if figure.per_token]
    kept = [one.name for one in figures if one.kind == "number" and not one.per_token]
    if shared:
        verbs = ["is" if len(names) == 1 else "are" for names in (shared, kept)]
        rest = f"; {', '.join(kept)} {verbs[1]} not" if kept else ""
        lead = f"per token: {', '.join(shared)} {verbs[0]} divided by the "
        yield Note((lead, doc.letter("b"), *tokens, f" tokens{rest}"))


_IN_BYTES = tuple(one.name for one in FIGURES.values() if one.unit in ("bytes", "operations/byte"))
"""The columns whose values depend on the element types."""


def _note(text: str, *of: str) -> Note:
    return Note((text,), of)


def _after_the_last(row: Row) -> bool:
    """Whether a row has a cost and its new token lies beyond the length: t > l."""
    sizes = row.sizes
    return not row.blocked and "l" in sizes and "t" in sizes and sizes["t"] > sizes["l"]


def _has_rounded_fraction(row: Row, name: str) -> bool:
    """Whether a value, other than a ratio, is a fraction that is printed rounded."""
    value = row.value(name)
    ratio = name in FIGURES and FIGURES[name].kind == "ratio"
    return isinstance(value, Fraction) and not ratio and doc.is_rounded(value)


def sizes_line(
    request: Request, phases: Sequence[str], used: Collection[str] | None = None
) -> Line:
    """A line with the sizes of the rows: first the sizes given, or left as letters in a table of
    formulas, then those with defaults. `used`: the sizes to keep, None for all; () without any."""
    forms = [(m, form) for m in request.mixers for form in forms_of(m, request)]
    open_ = _open_sizes(request) if request.symbolic else set()
    given, unused = request.given, {"l"} if _without_length(request, phases) else set()
    if used is not None:
        # t = l keeps l beside t; of a table of formulas `used` has the sizes that formulas print
        tied = {} if request.symbolic else {"t": "l", **given}
        used = {*used, *(y for x, y in tied.items() if x in used and isinstance(y, str))}
        given = {x: value for x, value in given.items() if x in used}
        unused |= _all_sizes(request) - used
    found = sizes_of(forms, phases, given, open_, unused)
    return () if used is not None and len(found) == 1 else found  # "sizes: " alone


def _without_length(request: Request, phases: Sequence[str]) -> bool:
    """Whether no row depends on the length l, which is not given: one-token inference alone, at
    given positions, of mixers whose weights do not depend on l."""
    given, mixers = request.given, request.mixers
    at_positions = [*phases] == ["inference"] and "l" not in given and "t" in given
    return at_positions and not ("t" in ties(given) or any(map(_has_weights_by_length, mixers)))


def _has_weights_by_length(mixer: Mixer) -> bool:
    """Whether a mixer's weights or its tables depend on the length l."""
    kept = (a for a in mixer.arrays.values() if a.role in ("parameter", "buffer"))
    return isinstance(mixer, Whole) or any("l" in x.letters for a in kept for x in a.shape)


def _open_sizes(request: Request) -> set[str]:
    """The sizes that stay letters in a table of formulas."""
    return _all_sizes(request) - {"b", *request.given}


def _all_sizes(request: Request) -> set[str]:
    """All sizes that the mixers may have."""
    return {*LETTERS, *(x for mixer in request.mixers for x in mixer.letters)}


def sizes_of(
    forms: Sequence[tuple[Mixer, str]],
    phases: Sequence[str],
    given: Given,
    open_: Collection[str] = (),
    unused: Collection[str] = (),
) -> Line:
    """A line with the sizes of forms (mixer, name of its form) in phases, `sizes: sequence length l
    = 8; by default model width d = 128`: those `given` (letter -> values) or `open_` (letters of
    formulas), then those with defaults, without the sizes `unused` and those that stand in a
    mixer's braces; at the end the given sizes that none of the forms has."""
    letters: dict[str, dict[Mixer, None]] = {}
    for mixer, form in forms:
        for x in {x for phase in phases for x in letters_of(mixer, phase, form)}:
            having = letters.setdefault(x, {})
            having |= {} if x in mixer.given else {mixer: None}
    ordered = in_order(x for x, having in letters.items() if having and x not in unused)
    taken = [x for x in ordered if x not in given and x not in open_]
    groups = {
        "": [size(said, *_values(given.get(x, ()))) for x in ordered if x not in taken
             for said in _meanings(x, letters[x], defaults=False)],
        "by default ": [
            size(said, doc.letter("l") if x == "t" else usual(said))
            for x in taken for said in _meanings(x, letters[x])
        ],
    }  # fmt: skip
    parts = [(lead, *doc.listed(members)) for lead, members in groups.items() if members]
    line: Line = ("sizes: ", *doc.listed(parts, "; "))
    # t, of one new token, may be given beside phases that have l alone
    lacking = [x for x in given if x not in letters and not (x == "t" and "l" in letters)]
    others = {x for m, _ in forms for phase in phases for x in letters_of(m, phase)}
    for what, named in (("mixers", {*lacking} - others), ("forms", {*lacking} & others)):
        if named:
            listed = ", ".join(x for x in lacking if x in named)
            line = (*line, f" ({listed} is a size of none of these {what})")
    return line


def _values(given: tuple[int, ...] | str) -> tuple[int | Formula, ...]:
    """The values of a size, (1, 8), or the size that it is tied to, as a formula."""
    return (doc.letter(given),) if isinstance(given, str) else given


def _meanings(letter: str, mixers: Iterable[Mixer], *, defaults: bool = True) -> list[Letter]:
    """The meanings that a letter has in these mixers: one if they agree; else the usual meaning
    (`LETTERS`), if a mixer has it, then each other one with the names of its mixers. Without
    `defaults`, the usual meaning with another default value counts as the usual one."""
    found: dict[Letter, list[str]] = {}
    for mixer in mixers:
        said = mixer.letter(letter)
        usual = LETTERS.get(letter)
        if not defaults and usual is not None and said.meaning == usual.meaning:
            said = usual
        found.setdefault(said, []).append(mixer.name)
    shared = [one for one in found if one == LETTERS.get(letter)]
    if len(found) == 1:
        return [*found]
    others = (
        replace(one, meaning=f"{one.meaning} ({', '.join(of)})")
        for one, of in found.items()
        if one not in shared
    )
    return [*shared, *others]


def size(said: Letter, *values: int | Formula) -> Line:
    """A size as a line: `sequence length l = 128`, or `sequence length l` without values."""
    meaning, letter = said.meaning.partition(":")[0], said.letter
    if not values:
        return (f"{meaning} ", doc.letter(letter))
    first, *more = values
    if isinstance(first, Formula):
        return (f"{meaning} ", Equal((doc.letter(letter), first)))
    return (f"{meaning} ", Equal((doc.letter(letter), ", ".join(map(str, (first, *more))))))


def convention_line(convention: Convention) -> str:
    """The convention's name and its meaning."""
    return f"convention: {convention.title} ({convention.caption})"


_NAME = re.compile(r"([A-Za-z]|\\[A-Za-z]+)(_[A-Za-z0-9]+)?|[A-Za-z]+")


def symbol_names(text: str, mixers: Sequence[Mixer], *, explained: bool = False) -> dict[str, str]:
    r"""Read `--symbols l=N,d=d_model,t=\tau` as letter -> its symbol in LaTeX: `N` of l,
    `d_{\mathrm{model}}` of d, `\tau` of t; {} for "".

    Args:
        explained: whether the equations of the mixers are printed, with the names of their indices.

    Raises:
        SizeError: an unknown letter, or one with two names; a name that LaTeX does not allow; or
            one name for two sizes of these mixers, or for a size and an index of their equations.
    """
    found: dict[str, str] = {}
    used = {letter for mixer in mixers for letter in letters_of(mixer, "inference")}
    for part in filter(None, (p.strip() for p in text.split(","))):
        letter, separator, name = part.partition("=")
        if not separator or letter not in {*LETTERS, *used} or not _NAME.fullmatch(name):
            raise SizeError(
                f"--symbols takes letter=name, such as l=N,d=d_model or t=\\tau, got '{part}'"
            )
        if letter in found:
            raise SizeError(f"--symbols '{text}' names {letter} twice: leave out one name")
        head, _, tail = name.partition("_")
        head = head if len(head) == 1 or head.startswith("\\") else rf"\mathrm{{{head}}}"
        found[letter] = rf"{head}_{{\mathrm{{{tail}}}}}" if tail else head
    for letter, name in found.items():
        if letter in used:
            _refuse_taken_name(letter, name, found, used - {letter}, text, mixers)
        if letter in used and explained:
            _refuse_index_name(letter, name, mixers)
    return found


def _refuse_taken_name(
    letter: str,
    name: str,
    found: Mapping[str, str],
    others: Collection[str],
    text: str,
    mixers: Sequence[Mixer],
) -> None:
    """Raise SizeError, with an option to try, if the name of size `letter` is that of another
    size. `found`: letter -> its new name, from `--symbols` with `text`; `others`: the other sizes
    of the mixers."""
    for other in in_order(others):
        if found.get(other, other) != name:
            continue
        if other in found:
            raise SizeError(
                f"--symbols gives {letter} and {other} one name, {name}: give {other} another name"
            )
        mixer, *more = (one for one in mixers if other in letters_of(one, "inference"))
        meaning = mixer.letter(other).meaning.partition(":")[0]
        of = f"{meaning} of {mixer.name}" + (f" and {len(more)} more" if more else "")
        free = f"{other}_1" if len(other) == 1 else f"{other}1"
        raise SizeError(
            f"--symbols {letter}={name}: {name} is already the {of}; "
            f"rename both, as in --symbols '{text},{other}={free}', or give {letter} another name"
        )


def _refuse_index_name(letter: str, name: str, mixers: Sequence[Mixer]) -> None:
    """Raise SizeError if `name`, in place of the size `letter`, is the name of an index in the
    equations of a mixer: a formula would have one name for two things."""
    for mixer in mixers:
        for equation in (e for form in mixer.forms.values() for e in form.equations):
            inside = (index for _, over in walk(equation.value) for index in over)
            if any(identifier(index.name) == name for index in (*equation.indices, *inside)):
                raise SizeError(
                    f"--symbols {letter}={name}: {name} is an index of the equations of "
                    f"{mixer.name}; give {letter} another name"
                )
