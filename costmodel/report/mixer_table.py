"""The rows and columns of a table of costs, and their values.

A row is one form of one mixer in one phase at one combination of sizes. Values are integers, exact
fractions, or formulas (`symbolic`); a value that does not exist is `Missing`, with a reason. A
column shows a figure (`Figure`: a quantity such as `total`), a size, or a label of the row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial

from costmodel.backwards.candidates import candidate
from costmodel.errors import (
    EquationError,
    SizeError,
    TableError,
    Unanswered,
    UnknownMixer,
    UnreadFile,
    Unsupported,
)
from costmodel.language.equations import Mixer
from costmodel.mixers import BASELINE, DEFAULT, builtin, groups, names
from costmodel.mixers.load import unread
from costmodel.paths.chains import CriticalPath
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import COLUMNS as OF_A_BOARD, form_executed
from costmodel.program.chosen_sizes import (
    Given,
    combinations,
    default,
    fit,
    letters_of,
    listed,
    refuse_unknown,
    ties,
)
from costmodel.program.conventions import Convention
from costmodel.program.element_types import Dtypes
from costmodel.questions.kept import ahead
from costmodel.questions.question import (
    FORWARD,
    Answer,
    Case,
    Figure,
    Missing,
    Value,
    Whole,
    answers,
)
from costmodel.questions.registry import BEST, BY, FIGURES, meant
from costmodel.questions.subject import system_of, well_formed_at
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.sizes import LETTERS, in_order, is_letter


@dataclass(frozen=True)
class Request:
    """The options of a table.

    Args:
        named: whether the user named the mixers; then a mixer without the form is an error.
        given: the sizes given by the user; the others have their defaults.
        form: None for each mixer's default form, "all", or a name.
        symbolic: show formulas in the sizes that are not given (b is 1 unless given).
        per_token: divide operations and bytes by the tokens of the phase.
        columns: the columns in order; None for the usual ones.
        sort: a column to sort by, with "-" in front for descending order; None keeps the order.
        optimiser: the optimiser whose state a training step holds; None if none is named.
        own: mixer -> the forms that its names in the request have, as NAME:FORM; None for `form`.
        board: the board whose figures the columns of a board need.
        implementation: the module whose times are predicted; "": known kernels, or the fastest.
        unreadable: mixer that stands for a name -> why the file of this name gives none.
    """

    mixers: tuple[Mixer, ...]
    named: bool = True
    given: Given = field(default_factory=dict)
    phases: tuple[str, ...] = FORWARD
    form: str | None = None
    convention: Convention = Convention()
    dtypes: Dtypes = Dtypes()
    columns: tuple[str, ...] | None = None
    sort: str | None = None
    symbolic: bool = False
    per_token: bool = False
    optimiser: str | None = None
    own: Mapping[Mixer, Sequence[str | None]] = field(default_factory=dict)
    board: Board | None = None
    implementation: str = ""
    unreadable: Mapping[Mixer, Exception] = field(default_factory=dict)


def with_forms(
    typed: Sequence[str | Mixer], unreadable: dict[Mixer, Exception] | None = None
) -> dict[Mixer, list[str | None]]:
    """Mixer -> the forms that its names have, ["fft"] for `she:fft`; None for a name alone.

    Args:
        typed: names, `she:fft` and FILE.py:NAME among them, or mixers.
        unreadable: gets an empty mixer -> the reason, for each user's file that raises an
            exception, unless all mixers are such files; None: the exception is raised.

    Raises:
        UnknownMixer, EquationError: an unknown mixer or form; UnreadFile: a user's file raises;
            ModelError: a configuration that cannot be read.
    """
    found: dict[Mixer, list[str | None]] = {}
    faults: dict[Mixer, Exception] = {}
    for name in typed:
        try:
            mixer, form = candidate(name)
        except UnreadFile as reason:
            if unreadable is None:
                raise
            mixer, form = unread(str(name)), None
            faults[mixer] = reason
        found.setdefault(mixer, []).append(form)
    if faults and len(faults) == len(found):
        raise next(iter(faults.values()))
    if unreadable is not None:
        unreadable.update(faults)
    return found


def selection(
    given: Iterable[Mixer], group: str | None = None, everything: bool = False
) -> tuple[tuple[Mixer, ...], bool]:
    """(The mixers to show, whether the user named them one by one): those `given`, of a `group`,
    or `everything`; without any of the three, the mixers of `DEFAULT`.

    Raises:
        UnknownMixer: an unknown group; TableError: more than one of mixers, group and everything.
    """
    given = tuple(dict.fromkeys(given))
    if sum((bool(given), group is not None, bool(everything))) > 1:
        raise TableError("give mixers by name, or --group, or --all: one of the three")
    if given:
        return given, True
    known = groups() if group or everything else {}
    if group is not None and group not in known:
        raise UnknownMixer(f"unknown group '{group}': expected one of {', '.join(known)}")
    if group is not None:
        return known[group], False
    return tuple(map(builtin, names() if everything else DEFAULT)), False


LABELS: Mapping[str, Figure] = {
    "mixer": Figure("mixer", "the mixer", lambda case: case.mixer.name, kind="label", always=True),
    "form": Figure("form", "the form", lambda case: case.form, kind="label", always=True),
    "phase": Figure("phase", "the phase", lambda case: case.phase, kind="label", always=True),
}
"""Name -> column, for the columns that identify a row, besides the sizes."""

USUAL_OF_A_BOARD = ("floor", "bound", "predicted_time")
"""The columns that a table with a board has by default besides the usual ones."""

COLUMNS: Mapping[str, Figure] = {**LABELS, **FIGURES, **BEST, **OF_A_BOARD}
"""Name in `--columns` -> the column; size letters, which are columns too, are not listed here."""


@dataclass(frozen=True, eq=False)
class Row(Case):
    """One row of a table: a case, and the values of its columns. `fault` says why the request asks
    for what the mixer lacks (a form, fitting sizes, equations); None if the mixer has all of it."""

    fault: Exception | None = None

    @cached_property
    def malformed(self) -> str:
        """The reason why every figure is missing: the fault, or a user's own equations answer
        nothing (an entry that is missing, defined twice or read before it exists); "" for neither.
        """
        if self.fault:
            return str(self.fault)
        try:
            if not self.symbolic:
                well_formed_at(self.mixer, self.form, self.sizes)
            return self.about.malformed
        except EquationError as reason:
            return str(reason)

    @cached_property
    def blocked(self) -> str | None:
        """The reason why no figure exists (malformed equations) or only figures with
        `Figure.always` do; None if all figures may exist."""
        return self.malformed or super().blocked

    def answer(self, figure: Figure) -> Answer:
        """The answer of a figure as `Case` has it; Unanswered too for malformed equations."""
        if self.malformed and figure.kind != "label":
            raise Unanswered(self.malformed)
        return super().answer(figure)

    def value(self, name: str, shown: Sequence[str] = ()) -> Value:
        """The value of a column: of a size its number, or the letter that it is tied to, None if
        the row lacks the size. A figure that is a sum, such as `other`, leaves out the parts that
        are columns in `shown`."""
        if is_letter(name):
            return self.sizes.get(name, self.ties.get(name))
        figure = COLUMNS[name]
        if not (figure.parts and any(x in COLUMNS and COLUMNS[x].within == name for x in shown)):
            return self.figure(figure)
        rest = self.rest(figure, shown)
        if isinstance(rest, Missing):
            return rest
        if self.symbolic:
            return sum((part for part in rest.values() if isinstance(part, Exact)), Exact())
        return sum(part for part in rest.values() if isinstance(part, (int, Fraction)))

    def rest(self, figure: Figure, shown: Sequence[str]) -> Mapping[str, Value] | Missing:
        """Name -> part, of a figure that is a sum, without the parts that are columns in `shown`;
        Missing if the figure has no answer."""
        found = self.parts(figure)
        if isinstance(found, Missing):
            return found
        return {name: part for name, part in found.items() if name not in shown}


def baseline(request: Request) -> Callable[[Case], Case]:
    """The function that gives, for a case, the case of self-attention that its ratios divide by.
    If self-attention is requested only with sizes in braces, the first such mixer is the baseline.
    The baseline's other sizes are those of the case, else the given sizes, else the defaults; a
    letter with which the case's mixer means a size of its own (`own_sizes`) is not taken over.

    The function raises Unanswered if self-attention does not exist at these sizes or in the phase.
    """
    plain = builtin(BASELINE)
    requested = [m for m in request.mixers if m.builtin and (m.base, m.options) == (BASELINE, ())]
    mixer = plain if plain in requested else next(iter(requested), plain)

    def of(case: Case) -> Case:
        """The case of self-attention (`mixer`) whose figures the ratios of `case` divide by, in its
        phase; Unanswered also if `case` is that of a network. Of a symbolic request, a size that is
        neither in braces, nor in `case`, nor given stays a letter."""
        if isinstance(case.mixer, Whole):
            raise Unanswered(
                f"no ratio: ratios compare a mixer with {BASELINE}, and this is a network"
            )
        sizes: dict[str, int] = {}
        form = mixer.default_form
        for letter in letters_of(mixer, case.phase, form):
            if letter in mixer.given:
                sizes[letter] = mixer.given[letter]
            elif letter in case.sizes and letter not in case.mixer.own_sizes:
                sizes[letter] = case.sizes[letter]
            elif letter in listed(request.given):
                values = listed(request.given)[letter]  # of several, the default or the first
                usual = LETTERS[letter].default
                sizes[letter] = usual if usual is not None and usual in values else values[0]
            elif not request.symbolic:
                sizes[letter] = default(letter, sizes)
        try:
            if not request.symbolic:
                fit(mixer, sizes)
            system_of(mixer, form, case.about.convention.rewrites, case.phase)
        except (SizeError, EquationError, Unanswered, Unsupported) as error:
            raise Unanswered(f"no ratio: {error}") from None
        about = answers(mixer, form, case.phase, case.about.convention)
        return replace(case, about=about, sizes=sizes)

    return of


Meaning = Callable[[str], str | None]
"""The column that a word of a user means; None for an unknown word."""
MEANT: Meaning = partial(meant, known=COLUMNS)


def column_names(
    text: str, known: Collection[str] = COLUMNS, meaning: Meaning = MEANT
) -> tuple[str, ...]:
    """The columns that `text`, "a,b,c" of `--columns`, names, each once. `known`: the columns of
    the table besides size letters; `meaning`: the column that a word means.

    Raises:
        TableError: an unknown column, with the nearest known one and the list, or a word that may
            mean several.
    """
    typed = [part.strip() for part in text.split(",") if part.strip()]
    if not typed:
        raise TableError(f"no column is named: choose from {_listed(known)} and size letters")
    return tuple(dict.fromkeys(column_name(word, known, meaning) for word in typed))


def column_name(word: str, known: Collection[str] = COLUMNS, meaning: Meaning = MEANT) -> str:
    """The column that a word means, or a size letter; h is a word, since it is d/n and no size.
    `known`: the columns besides size letters; `meaning`: the column that a word means. Raises
    TableError: an unknown word, or one that may mean several columns."""
    if is_letter(word) and word != "h":
        return word
    if (found := meaning(word)) is not None:
        return found
    # all columns of best chunks begin alike: the cost behind tells which is near
    lead = BY if word.startswith(BY) else ""
    ends = [name.removeprefix(lead) for name in known if name.startswith(lead)]
    near = difflib.get_close_matches(word.removeprefix(lead), ends, 1)
    hint = f"; did you mean '{lead}{near[0]}'? The" if near else ": the"
    columns = _listed(known)
    raise TableError(f"unknown column '{word}'{hint} columns are {columns}, and the size letters")


def _listed(known: Collection[str]) -> str:
    """The columns by name, but those of best sizes by their pattern."""
    names = [name for name in known if name not in BEST]
    return ", ".join(names) + ", best_chunk_COST for each cost" * (len(names) < len(known))


@dataclass(frozen=True)
class Block:
    """The rows of one phase and the columns shown for them."""

    phase: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The blocks of a table, one per phase, and sentences on what was left out."""

    request: Request
    blocks: tuple[Block, ...]
    left_out: tuple[str, ...] = ()

    @property
    def malformed(self) -> tuple[str, ...]:
        """A sentence for each mixer and reason for which rows have no values."""
        rows = (row for block in self.blocks for row in block.rows)
        said = (f"{row.mixer.name} has no values: {row.malformed}" for row in rows if row.malformed)
        return tuple(dict.fromkeys(said))


def table(request: Request) -> Table:
    """The table that a request asks for: for each phase, rows (mixer, form, sizes) and columns.

    Raises:
        SizeError: sizes that do not fit the first mixer of a group, or that fit none of the mixers.
        EquationError: a form that all mixers lack, or only malformed equations; if every row of a
            phase has a `fault`, the first of these, which may be a SizeError or `UnreadFile`.
        TableError: formulas to sort by, a column of no phase asked for, `--optimiser` without its
            column, or a column of a board without a board.
    """
    if request.optimiser and request.columns and "optimiser" not in request.columns:
        raise TableError("--optimiser needs the column 'optimiser': add it to --columns")
    if request.board is None and {*OF_A_BOARD} & {*(request.columns or ())}:
        raise TableError(f"--columns {', '.join(OF_A_BOARD)} need --board, such as --board h100")
    refuse_unknown(request.given, request.mixers)
    _refuse_absent_columns(request)
    left_out: dict[str, None] = {}
    forms = [(mixer, name) for mixer in request.mixers for name in _forms(mixer, request, left_out)]
    if not forms:
        raise EquationError(
            f"none of these mixers has a form '{request.form}': their forms are "
            f"{', '.join(dict.fromkeys(name for mixer in request.mixers for name in mixer.forms))}"
        )
    found = {}
    for phase in request.phases:
        of_phase = dict.fromkeys(
            (mixer, _executed(mixer, form, phase, request)) for mixer, form in forms
        )
        found[phase] = [row for each in of_phase for row in _rows(*each, phase, request, left_out)]
        if not found[phase]:
            raise SizeError([*left_out][-1])
        if all(row.malformed for row in found[phase]):
            first = found[phase][0]
            raise first.fault or EquationError(first.malformed)
    _derive_ahead([row for rows in found.values() for row in rows], request)
    blocks = []
    for phase, rows in found.items():
        rows = _sorted(rows, request) if request.sort else rows
        blocks.append(Block(phase, tuple(rows), _columns(rows, phase, request)))
    return Table(request, tuple(blocks), tuple(left_out))


def _executed(mixer: Mixer, form: str, phase: str, request: Request) -> str:
    """The form of a mixer's row in a phase: that of the module whose time is asked for, if the
    mixer has this module and neither request nor name names a form; else `form`."""
    named = request.form or {*request.own.get(mixer, (None,))} != {None}
    if named or not request.implementation:
        return form
    return form_executed(mixer, request.implementation, phase) or form


MANY = 16
"""The least number of rows without an answer in the cache that several processes derive."""


def _derive_ahead(rows: Sequence[Row], request: Request) -> None:
    """If `MANY` rows or more have no answer in the cache, derive the values of these rows into the
    cache, in several processes. The rows of one mixer, which share derivations, share a process."""
    new: dict[Mixer, list[Row]] = {}
    for row in rows:
        if row.about.new:
            new.setdefault(row.mixer, []).append(row)
    if sum(map(len, new.values())) >= MANY:
        ahead([partial(_values, of_one, request) for of_one in new.values()])


def _values(rows: Sequence[Row], request: Request) -> list[Value]:
    """The values of rows, in the columns that each row has in a table of its own. In another
    process, asking for the values fills the cache on disk."""
    return [row.value(name) for row in rows for name in _columns([row], row.phase, request)]


def _refuse_absent_columns(request: Request) -> None:
    """Raise TableError if a requested column exists in none of the requested phases."""
    for name in request.columns or ():
        has = () if is_letter(name) else COLUMNS[name].phases
        if has and not {*has} & {*request.phases}:
            raise TableError(f"{COLUMNS[name].elsewhere}: choose another --phase")


def forms_of(mixer: Mixer, request: Request) -> tuple[str, ...]:
    """The forms of a mixer that get rows: those named, else the default; () if it lacks these."""
    usual = request.form or mixer.default_form
    named = {form or usual for form in request.own.get(mixer, (None,))}
    return tuple(name for name in mixer.forms if {"all", name} & named)


def _forms(mixer: Mixer, request: Request, left_out: dict[str, None]) -> tuple[str, ...]:
    """The names of the forms of a mixer that the request asks for: one, or all. For a mixer that
    lacks the form: () and a sentence added to `left_out`, or, if the user named the mixer, the
    default form, whose rows then have this fault."""
    if found := forms_of(mixer, request):
        return found
    if request.named:
        return (mixer.default_form,)
    left_out[f"{mixer.name} has no form '{request.form}'"] = None
    return ()


def _rows(
    mixer: Mixer, form: str, phase: str, request: Request, left_out: dict[str, None]
) -> list[Row]:
    """The rows of a form in a phase, one for each combination of sizes that fits the mixer.

    For a combination that does not fit, the reason is added to `left_out`; or it is the fault of a
    row, if the given sizes alone do not fit a mixer that the user named; or SizeError is raised, if
    the mixer is the first of a group.
    """
    # why the whole form has no answer; `fault` below: why a row has none
    lacking: Exception | None = request.unreadable.get(mixer)
    if not lacking and not forms_of(mixer, request):
        lacking = EquationError(
            f"{mixer.name} has no form '{request.form}': expected all, {', '.join(mixer.forms)}"
        )
    about = answers(mixer, form, phase, request.convention)
    letters = letters_of(mixer, phase, form)
    rows = []
    for sizes in combinations(letters, request.given, mixer):
        open_ties: Mapping[str, str] = {}
        fault = lacking
        if request.symbolic:
            sizes, open_ties = _with_numbers(sizes, mixer, request)
        else:
            try:
                fit(mixer, sizes)
            except SizeError as error:
                if not request.named and mixer is request.mixers[0]:
                    raise
                typed = {x: size for x, size in sizes.items() if x in request.given}
                if not request.named or not (fault := lacking or misfit(mixer, typed)):
                    left_out[str(error)] = None
                    continue
        rows.append(
            Row(
                about,
                sizes,
                request.symbolic,
                request.per_token,
                request.dtypes,
                request.optimiser,
                baseline=baseline(request),
                ties=open_ties,
                board=request.board,
                implementation=request.implementation,
                fault=fault,
            )
        )
    return rows


def _with_numbers(
    sizes: Mapping[str, int], mixer: Mixer, request: Request
) -> tuple[dict[str, int], dict[str, str]]:
    """(the sizes that have a number in a row of formulas: those given, in braces, b, or tied to
    such a size; size -> the size that it equals and that stays a letter, as which it is printed).
    Under `--n 8 --t l`: (b, n; {"t": "l"})."""
    known = {"b", *listed(request.given), *mixer.given}
    tied = {x: y for x, y in ties(request.given).items() if x in {*sizes} - {*mixer.given}}
    open_ties = {x: y for x, y in tied.items() if y not in known}
    known |= tied.keys() - open_ties.keys()
    return {x: size for x, size in sizes.items() if x in known}, open_ties


def misfit(mixer: Mixer, sizes: Mapping[str, int]) -> SizeError | None:
    """Why these sizes of a mixer do not fit together; None if they do."""
    try:
        fit(mixer, sizes)
    except SizeError as error:
        return error
    return None


def _columns(rows: Sequence[Row], phase: str, request: Request) -> tuple[str, ...]:
    """The names of the columns in a phase: the requested ones that exist in it; else the mixer, the
    form if some row's is not the default, the sizes that vary, and the usual figures, with a board
    those of `USUAL_OF_A_BOARD` too."""
    if request.columns is not None:
        return tuple(
            name for name in request.columns if is_letter(name) or phase in COLUMNS[name].phases
        )
    forms = any(row.form != row.mixer.default_form for row in rows)
    answering = [row for row in rows if not row.malformed]
    shown = [name for name, one in FIGURES.items() if phase in one.phases and one.usual(answering)]
    of_board = USUAL_OF_A_BOARD if request.board else ()
    shown += [name for name in of_board if phase in COLUMNS[name].phases]
    return ("mixer", *(("form",) if forms else ()), *varying(rows), *shown)


def varying(rows: Sequence[Row]) -> tuple[str, ...]:
    """The letters of the sizes that differ between rows of one mixer."""
    values: dict[str, dict[Mixer, set[int]]] = {}
    for row in rows:
        for letter, value in row.sizes.items():
            values.setdefault(letter, {}).setdefault(row.mixer, set()).add(value)
    return in_order(x for x, found in values.items() if any(len(v) > 1 for v in found.values()))


def _sorted(rows: Sequence[Row], request: Request) -> list[Row]:
    """The rows sorted by the column `request.sort`, ascending for "total", descending for "-total";
    rows without a value come last. TableError if a value is a formula."""
    assert request.sort is not None
    name, down = column_name(request.sort.removeprefix("-")), request.sort.startswith("-")
    keyed = [(row, _comparable(row.value(name))) for row in rows]
    valued = [(row, value) for row, value in keyed if isinstance(value, (int, Fraction, str))]
    without = [(row, value) for row, value in keyed if isinstance(value, Missing) or value is None]
    if len(valued) + len(without) < len(keyed):
        raise TableError(
            f"formulas in column '{name}' cannot be sorted: give numbers for the sizes"
        )
    valued.sort(key=lambda pair: pair[1], reverse=down)
    return [row for row, _ in valued + without]


def _comparable(value: Value) -> Value:
    return value.text if isinstance(value, CriticalPath) else value
