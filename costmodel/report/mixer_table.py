"""Which rows and columns does a table of costs have, and what stands in each cell?

A row is one form of one mixer in one phase at one combination of sizes. Values are integers, exact
fractions, or formulas (`symbolic`); what does not exist is `Missing` with its reason, never 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from costmodel.errors import (
    EquationError,
    SizeError,
    TableError,
    Unanswered,
    UnknownMixer,
    Unsupported,
)
from costmodel.language.equations import Mixer
from costmodel.mixers import BASELINE, DEFAULT, builtin, groups, names
from costmodel.paths.witness import CriticalPath
from costmodel.program.chosen_sizes import Given, combinations, default, fit, letters_of
from costmodel.program.conventions import Convention
from costmodel.questions.peak import OPTIMISERS
from costmodel.questions.registry import BATCH, Answers, Dtypes, Missing, answers
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact, rational
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import Quotient
from costmodel.symbolic.sizes import LETTERS

PHASES = ("training", "inference")
"""The phases of the papers' tables, which `both` means."""


EVERY = (*PHASES, "backward", "training-step")
"""All phases, which `all` means."""


Value = int | Fraction | str | Exact | Quotient | tuple[Poly, ...] | Missing | None


@dataclass(frozen=True)
class Request:
    """What a table is to show.

    Args:
        named: whether the user named the mixers, so that a missing form is an error.
        given: sizes that were given; the others take their defaults.
        form: None for each mixer's default form, "all", or a name.
        symbolic: formulas in the sizes that were not given (b is 1 unless given).
        per_token: operations and bytes of the forward pass divided by its b*l tokens.
        sort: a column, "-" in front for descending.
        optimiser: whose state a training step holds; None where it is not asked for.
    """

    mixers: tuple[Mixer, ...]
    named: bool = True
    given: Given = field(default_factory=dict)
    phases: tuple[str, ...] = PHASES
    form: str | None = None
    convention: Convention = Convention()
    dtypes: Dtypes = Dtypes()
    columns: tuple[str, ...] | None = None
    sort: str | None = None
    symbolic: bool = False
    per_token: bool = False
    optimiser: str | None = None


def selection(
    given: Sequence[Mixer], group: str | None = None, everything: bool = False
) -> tuple[tuple[Mixer, ...], bool]:
    """The mixers to show, and whether they were named one by one.

    Raises:
        UnknownMixer: no such group; TableError: mixers and a group at once.
    """
    if sum((bool(given), group is not None, everything)) > 1:
        raise TableError("give mixers by name, or --group, or --all: one of the three")
    if given:
        return tuple(dict.fromkeys(given)), True
    known = groups() if group or everything else {}
    if group is not None and group not in known:
        raise UnknownMixer(f"unknown group '{group}': expected one of {', '.join(known)}")
    if group is not None:
        return known[group], False
    return tuple(map(builtin, names() if everything else DEFAULT)), False


@dataclass(frozen=True, eq=False)
class Row:
    """One row: the answers about a form in a phase, at sizes."""

    request: Request
    answers: Answers
    sizes: Mapping[str, int]
    """Every size that the row depends on; with `symbolic` only those that were given."""

    @property
    def mixer(self) -> Mixer:
        """The mixer."""
        return self.answers.mixer

    @property
    def phase(self) -> str:
        """One of EVERY."""
        return self.answers.phase

    @cached_property
    def blocked(self) -> Missing | None:
        """Why nothing but the parameters exists, or None."""
        reason = self.answers.unanswered
        if not reason and not self.request.symbolic:
            reason = self.answers.beyond(self.sizes)
        return Missing(reason) if reason else None

    def value(self, name: str) -> Value:
        """The value of a column (see COLUMNS, or a size letter)."""
        if name in LETTERS:
            return self.sizes.get(name)
        column = COLUMNS[name]
        if self.blocked and not column.always:
            return self.blocked
        return column.value(self)

    def settled(self, answer: Exact | Missing) -> Value:
        """An answer at the row's sizes."""
        if isinstance(answer, Missing):
            return answer
        if self.request.symbolic:
            return answer.substitute({k: Poly.of(v) for k, v in self.sizes.items()})
        return rational(answer, self.sizes)

    def shared(self, answer: Exact | Missing) -> Value:
        """An answer that `per_token` divides by the tokens of the phase."""
        if isinstance(answer, Missing) or not self.request.per_token:
            return self.settled(answer)
        letters = ("b",) if self.phase == "inference" else ("b", "l")
        tokens = Poly.of(1)
        for letter in letters:
            tokens = tokens * Poly.atom(letter)
        return self.settled(answer * (Poly.of(1) / tokens))

    def by_class(self, found: Mapping[str, Exact] | Missing) -> dict[str, Value] | Missing:
        """Operations by name, at the row's sizes."""
        if self.blocked or isinstance(found, Missing):
            return self.blocked or found  # type: ignore[return-value]
        return {name: self.shared(value) for name, value in found.items()}

    @cached_property
    def baseline(self) -> Row | Missing:
        """The mixer that ratios are taken to, at the same sizes."""
        mixer = builtin(BASELINE)
        sizes: dict[str, int] = {}
        form = mixer.default_form
        for letter in letters_of(mixer, self.phase, form):
            if letter in self.sizes:
                sizes[letter] = self.sizes[letter]
            elif letter in self.request.given:
                values = self.request.given[letter]
                usual = LETTERS[letter].default
                sizes[letter] = usual if usual is not None and usual in values else values[0]
            elif not self.request.symbolic:
                sizes[letter] = default(letter, sizes)
        if not self.request.symbolic:
            try:
                fit(mixer, sizes)
            except SizeError as error:
                return Missing(f"no ratio: {error}")
        convention = self.answers.convention
        try:
            system_of(mixer, form, convention.rewrites, self.phase)
        except (EquationError, Unanswered, Unsupported) as error:
            return Missing(f"no ratio: {error}")
        return Row(self.request, answers(mixer, form, self.phase, convention), sizes)


def quotient(above: Value, below: Value) -> Value:
    """One value over another one, exact; Missing where either is, or where the lower one is 0."""
    for value in (above, below):
        if isinstance(value, Missing):
            return value
    if isinstance(above, Exact) and isinstance(below, Exact):
        return Quotient(above, below)
    assert isinstance(above, (int, Fraction)) and isinstance(below, (int, Fraction))
    if below == 0:
        return Missing("nothing to divide by: the other value is 0")
    ratio = Fraction(above) / Fraction(below)
    return ratio.numerator if ratio.denominator == 1 else ratio


@dataclass(frozen=True)
class Column:
    """A column: what it says, its header, and its value in a row."""

    meaning: str
    header: str
    value: Callable[[Row], Value]
    phases: tuple[str, ...] = EVERY
    numeric: bool = True
    always: bool = False
    """Whether it exists even where the phase does not."""


def _operations(name: str) -> Callable[[Row], Value]:
    return lambda row: row.shared(row.answers.operations(name))


def _sum(found: Mapping[str, Exact] | Missing) -> Exact | Missing:
    if isinstance(found, Missing):
        return found
    result = Exact()
    for value in found.values():
        result = result + value
    return result


def _ratio(row: Row) -> Value:
    base = row.baseline
    if isinstance(base, Missing):
        return base
    return quotient(row.value("total"), base.value("total"))


def _to_forward(row: Row) -> Value:
    forward = answers(row.mixer, row.answers.form, "training", row.answers.convention)
    return quotient(row.value("total"), row.shared(forward.total))


def path_of(row: Row) -> CriticalPath | Missing:
    """The critical path of a row, at its sizes unless the table is symbolic."""
    sizes = {k: v for k, v in row.sizes.items() if k != "b"}
    return row.answers.path(None if row.request.symbolic else sizes)


def _path(row: Row) -> Value:
    path = path_of(row)
    return path if isinstance(path, Missing) else path.text


def _span(row: Row) -> Value:
    span = row.answers.span
    if isinstance(span, Missing):
        return span
    if row.request.symbolic:
        values = {k: Poly.of(v) for k, v in row.sizes.items()}
        return tuple(dict.fromkeys(term.substitute(values) for term in span.terms))
    return max(term.at(row.sizes) for term in span.terms)


def _peak(row: Row) -> Value:
    found = row.answers.peak
    if isinstance(found, Missing):
        return found
    if not row.request.symbolic:
        return max(moment.at(row.sizes) for moment in found.moments)
    values = {k: Poly.of(v) for k, v in row.sizes.items()}
    terms = []
    for moment in found.moments:
        pieces = (moment.each * BATCH + moment.once).substitute(values).pieces
        if len(pieces) != 1 or pieces[0][0]:
            return Missing("the largest live set depends on cases: give the sizes")
        terms.append(pieces[0][1])
    return tuple(dict.fromkeys(terms))


def _optimiser(row: Row) -> Value:
    if row.request.optimiser is None:
        return Missing("no optimiser is named: give --optimiser sgd, momentum or adamw")
    size = row.request.dtypes.bytes_of("weights")
    return row.settled(row.answers.parameters * OPTIMISERS[row.request.optimiser] * size)


def _bytes(kind: str) -> Callable[[Row], Value]:
    return lambda row: row.shared(row.answers.bytes_moved(kind, row.request.dtypes))


def _intensity(row: Row) -> Value:
    moved = row.answers.bytes_moved("compulsory", row.request.dtypes)
    return quotient(row.settled(row.answers.total), row.settled(moved))


def _order(row: Row) -> Value:
    found = row.answers.order
    if isinstance(found, Missing):
        return found
    return Exact.of(sum(found.monomials, Poly()))


COLUMNS: Mapping[str, Column] = {
    "mixer": Column("the mixer", "mixer", lambda r: r.mixer.name, numeric=False, always=True),
    "form": Column("the form", "form", lambda r: r.answers.form, numeric=False, always=True),
    "phase": Column("the phase", "phase", lambda r: r.phase, numeric=False, always=True),
    "mul": Column("multiplications", "mul", _operations("mul")),
    "add": Column("additions and subtractions", "add", _operations("add")),
    "div": Column("divisions", "div", _operations("div")),
    "exp": Column("exponentiations", "exp", _operations("exp")),
    "other": Column("every other operation", "other", lambda r: r.shared(_sum(r.answers.other))),
    "once": Column(
        "work on weights alone, done once a forward pass",
        "once",
        lambda r: r.shared(_sum(r.answers.once)),
    ),
    "total": Column("all operations, each counted 1", "total", lambda r: r.shared(r.answers.total)),
    "ratio": Column("total over that of self-attention", f"ratio to\n{BASELINE}", _ratio),
    "to_forward": Column(
        "total over that of the forward pass",
        "ratio to\nforward",
        _to_forward,
        phases=("backward", "training-step"),
    ),
    "parameters": Column(
        "trainable numbers", "parameters", lambda r: r.settled(r.answers.parameters), always=True
    ),
    "path": Column("the longest chain of steps", "critical path", _path, numeric=False),
    "span": Column("levels of dependent operations", "span", _span),
    "sequential": Column(
        "steps that follow one another",
        "sequential\noperations",
        lambda r: r.settled(r.answers.sequential),
    ),
    "path_length": Column(
        "hops between the two positions furthest apart",
        "maximum\npath length",
        lambda r: r.settled(r.answers.path_length),
        phases=("training",),
    ),
    "weights": Column(
        "distinct weights read, in elements",
        "weights read\n(elements)",
        lambda r: r.settled(r.answers.weights),
    ),
    "state": Column(
        "held after t tokens, in elements",
        "state kept\n(elements)",
        lambda r: r.settled(r.answers.state),
        phases=("inference",),
    ),
    "activations": Column(
        "kept of the forward pass for its gradients, in elements",
        "activations\n(elements)",
        lambda r: r.settled(r.answers.activations),
        phases=("backward", "training-step"),
    ),
    "peak": Column(
        "largest live set, in elements; parameters and their gradients apart",
        "peak\n(elements)",
        _peak,
        phases=("training", "backward", "training-step"),
    ),
    "optimiser": Column(
        "state of the optimiser beside parameters and their gradients, in bytes",
        "optimiser\n(B)",
        _optimiser,
        phases=("training-step",),
        always=True,
    ),
    "traffic": Column(
        "compulsory traffic, in bytes", "compulsory\ntraffic (B)", _bytes("compulsory")
    ),
    "unfused": Column("unfused traffic, in bytes", "unfused\ntraffic (B)", _bytes("unfused")),
    "intensity": Column("total over compulsory traffic", "intensity\n(operations/B)", _intensity),
    "order": Column("dominant monomials of the total", "order", _order),
}
"""Name for --columns -> the column. A size letter is a column too."""


SHOWN = ("mul", "add", "div", "exp", "other", "once", "total", "ratio", "to_forward", "parameters",
         "path", "span", "weights", "state", "activations", "optimiser")  # fmt: skip
"""The columns of the plain table, in order."""


def column_names(text: str) -> tuple[str, ...]:
    """Read `--columns a,b,c`.

    Raises:
        TableError: an unknown column, with the nearest known one and the list.
    """
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in found:
        _known_column(name)
    if not found:
        raise TableError(f"no column is named: choose from {', '.join(COLUMNS)} and size letters")
    return found


def _known_column(name: str) -> None:
    if name in COLUMNS or (name in LETTERS and name != "h"):
        return
    near = difflib.get_close_matches(name, COLUMNS, 1)
    hint = f"; did you mean '{near[0]}'? The" if near else ": the"
    raise TableError(
        f"unknown column '{name}'{hint} columns are {', '.join(COLUMNS)}, and the size letters"
    )


@dataclass(frozen=True)
class Block:
    """The rows of one phase and the columns shown for them."""

    phase: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Blocks, one a phase, and what was left out of them."""

    request: Request
    blocks: tuple[Block, ...]
    left_out: tuple[str, ...] = ()


def table(request: Request) -> Table:
    """Make the rows.

    Raises:
        SizeError: sizes that do not fit; EquationError: a form that a named mixer lacks;
        TableError: a column to sort by that cannot be sorted, or an optimiser with columns that do
        not have it.
    """
    if request.optimiser and request.columns and "optimiser" not in request.columns:
        raise TableError(
            "an optimiser's state is shown in the column 'optimiser', which is not among the "
            "columns"
        )
    left_out: list[str] = []
    forms = [(mixer, name) for mixer in request.mixers for name in _forms(mixer, request, left_out)]
    if not forms:
        raise EquationError(f"none of these mixers has a form '{request.form}'")
    blocks = []
    for phase in request.phases:
        rows = [row for mixer, form in forms for row in _rows(mixer, form, phase, request)]
        rows = _sorted(rows, request) if request.sort else rows
        blocks.append(Block(phase, tuple(rows), _columns(rows, phase, request)))
    return Table(request, tuple(blocks), tuple(left_out))


def forms_of(mixer: Mixer, request: Request) -> tuple[str, ...]:
    """The forms of a mixer that have rows: its default one unless others are asked for."""
    if request.form is None:
        return (mixer.default_form,)
    return tuple(name for name in mixer.forms if request.form in ("all", name))


def _forms(mixer: Mixer, request: Request, left_out: list[str]) -> tuple[str, ...]:
    if found := forms_of(mixer, request):
        return found
    if request.named:
        raise EquationError(
            f"{mixer.name} has no form '{request.form}': expected all, {', '.join(mixer.forms)}"
        )
    left_out.append(f"{mixer.name} has no form '{request.form}'")
    return ()


def _rows(mixer: Mixer, form: str, phase: str, request: Request) -> list[Row]:
    about = answers(mixer, form, phase, request.convention)
    letters = letters_of(mixer, phase, form)
    rows = []
    for sizes in combinations(letters, request.given):
        if request.symbolic:
            sizes = {k: v for k, v in sizes.items() if k in request.given or k == "b"}
        else:
            fit(mixer, sizes)
        rows.append(Row(request, about, sizes))
    return rows


def _columns(rows: Sequence[Row], phase: str, request: Request) -> tuple[str, ...]:
    """The columns of a block: those asked for, or the usual ones and whatever varies."""
    if request.columns is not None:
        return tuple(
            name for name in request.columns if name in LETTERS or phase in COLUMNS[name].phases
        )
    varying = [
        letter
        for letter in LETTERS
        if len({row.sizes[letter] for row in rows if letter in row.sizes}) > 1
    ]
    forms = any(row.answers.form != row.mixer.default_form for row in rows)
    shown = [n for n in SHOWN if phase in COLUMNS[n].phases and _worth(n, rows, request, phase)]
    return ("mixer", *(("form",) if forms else ()), *varying, *shown)


def _worth(name: str, rows: Sequence[Row], request: Request, phase: str) -> bool:
    """`other` and `once` are shown where there are any, and no ratio of formulas."""
    if name == "weights":
        return phase == "inference"
    if name == "optimiser":
        return request.optimiser is not None
    if name in ("ratio", "to_forward"):
        return not request.symbolic
    if name not in ("other", "once"):
        return True
    found = (getattr(row.answers, name) for row in rows if not row.blocked)
    return any(not isinstance(value, Missing) and value for value in found)


def _sorted(rows: Sequence[Row], request: Request) -> list[Row]:
    """Rows by a column; those without a value come last."""
    assert request.sort is not None
    name, down = request.sort.removeprefix("-"), request.sort.startswith("-")
    _known_column(name)
    keyed = [(row, row.value(name)) for row in rows]
    here = [(row, value) for row, value in keyed if isinstance(value, (int, Fraction, str))]
    away = [(row, value) for row, value in keyed if isinstance(value, Missing) or value is None]
    if len(here) + len(away) < len(keyed):
        raise TableError(f"formulas in column '{name}' have no order: give numbers for the sizes")
    here.sort(key=lambda pair: pair[1], reverse=down)
    return [row for row, _ in here + away]
