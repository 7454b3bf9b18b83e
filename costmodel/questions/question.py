"""The records that make up a question about a mixer: `Question`, `Figure`, `Case`, `Answers`.

A question (operations, state, ...) has figures, quantities such as mul and total, each a column of
tables. `Answers` are about a form of a mixer in a phase under a convention, a `Case` is these at
sizes. Each file of this folder defines one question as a `Question` record. `registry` lists the
records; tables, explanations, claims, exports and proofs read that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from math import ceil
from typing import Any, Generic, Literal, Self, TypeVar

from costmodel.errors import TOO_LITTLE, EquationError, Unanswered, Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.language.notation import Notation
from costmodel.paths.chains import CriticalPath
from costmodel.program.conventions import Convention
from costmodel.program.element_types import Dtypes
from costmodel.program.phases import Overrun, inference_reason, overruns
from costmodel.questions.kept import kept, knows
from costmodel.questions.subject import system_of
from costmodel.symbolic.cases import Quotient
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.piecewise_max import Level, guarded
from costmodel.symbolic.polynomial import Poly

BATCH = Poly.atom("b")
FORWARD = ("training", "inference")
"""The phases of the papers' tables."""
EVERY = (*FORWARD, "backward", "training-step")
"""All phases."""
T = TypeVar("T")


@dataclass(frozen=True)
class Missing:
    """The value of a figure that does not exist; the reason is one sentence."""

    reason: str


FOUND = "found at these sizes by search"
"""The note that documents print beside a `Searched` number."""


class Searched(int):
    """A number found by search at given sizes; `reason` says why no formula is derived."""

    reason: str

    def __new__(cls, number: int, reason: str) -> Self:
        found = super().__new__(cls, number)
        found.reason = reason
        return found


CASES = 20
"""A maximum of more polynomials than this is not printed as a formula."""
SPLITS = 200
"""A sum whose guards part the sizes into more cases than this is not printed as a formula."""
SELECTS = "give a number for every size, which selects one"
"""The end of the reason why a formula of many cases is not printed: what prints a number."""


@dataclass(frozen=True)
class Largest:
    """The maximum of several terms."""

    terms: tuple[Exact, ...]

    def values(self, most: int | None = None) -> tuple[Poly, ...]:
        """Polynomials whose maximum is that of the terms, which are 0 or more: for each term and
        each case (conditions on sizes under which the term is one polynomial) the term there and 0
        elsewhere. Stops at `most` + 1 polynomials, if given: more than `most`."""
        found: dict[Poly, None] = {}
        for term in self.terms:
            for where, value in term.chambers():
                found[guarded(Level(value, where))] = None
                if most is not None and len(found) > most:
                    return tuple(found)
        return tuple(found)


Answer = Exact | Largest | CriticalPath | Quotient | Fraction | int | str
"""A figure for all sizes. Figures that need numbers, such as a ratio at given sizes, are numbers
(int, Fraction) already; str is a text."""
Value = int | Fraction | str | Exact | Quotient | tuple[Poly, ...] | CriticalPath | Missing | None
"""The content of a table's cell: a number at sizes, a formula (a tuple: the maximum of its
polynomials), a text, `Missing` with a reason, or None for an empty cell."""


@dataclass(frozen=True)
class Adding:
    """How operations of several classes are added up to one number.

    `weighting` is one of `counts.WEIGHTINGS`. `once` says whether work on weights alone, done once
    for all sequences, is included; None includes that work in the total, and in no single class.
    """

    weighting: str = "total"
    once: bool | None = None


PLAIN = Adding()
"""Every operation counts 1; work on weights alone is part of the total only."""


@dataclass(frozen=True, eq=False)
class Answers:
    """A cache of the answers about one form of a mixer in one phase under one convention."""

    mixer: Mixer
    form: str
    phase: str
    convention: Convention
    _known: dict[str, Any] = field(default_factory=dict, repr=False)

    def of(self, question: Callable[[Answers], T]) -> T:
        """The answer of a question (a function of these `Answers`), from the cache or derived. The
        cache key is the function's name, so `question` is a named function.

        Raises:
            Unanswered, Unsupported: there is no answer; the message is the reason.
        """
        name = f"{question.__module__}.{question.__qualname__}"
        return self.derived(name, lambda: question(self))

    def derived(self, name: str, derive: Callable[[], T]) -> T:
        """The answer cached in memory or on disk under `name`; else the result of `derive`.

        Raises:
            Unanswered, Unsupported: there is no answer; the message is the reason (also cached).
        """
        if name not in self._known:

            def attempt() -> T | Unanswered | Unsupported:
                try:
                    return derive()
                except (Unanswered, Unsupported) as reason:
                    return reason

            self._known[name] = kept(self.mixer, f"{self._key} {name}", attempt)
        found: Any = self._known[name]
        if isinstance(found, (Unanswered, Unsupported)):
            raise found.with_traceback(None)
        return found  # type: ignore[no-any-return]  # the dictionary holds answers of many types

    @property
    def _key(self) -> str:
        """The beginning of the answers' keys on disk, behind the name of the mixer."""
        return f"{self.form} {self.phase} {','.join(self.convention.names)}"

    @property
    def new(self) -> bool:
        """Whether the cache on disk, if it is on, has none of these answers."""
        return not knows(self.mixer, f"{self._key} ")

    def chained(
        self,
        path: Callable[[Answers, Mapping[str, int] | None], CriticalPath],
        sizes: Mapping[str, int] | None,
    ) -> CriticalPath:
        """The critical path `path(self, sizes)`, from the cache or derived; a network chains the
        paths of its parts. `sizes` choose between paths; None: large sizes.

        Raises:
            Unanswered, Unsupported: there is no path; the message is the reason.
        """
        return self.derived(f"critical path at {sizes}", lambda: path(self, sizes))

    def attempt(self, question: Callable[[Answers], T]) -> T | Missing:
        """The answer to a question, or `Missing` with the reason why there is none."""
        try:
            return self.of(question)
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    def about(self, phase: str) -> Answers:
        """The answers about the same form and convention in another phase."""
        return answers(self.mixer, self.form, phase, self.convention)

    @property
    def system(self) -> System:
        """The equations of the form in the phase, after the rewrites of the convention.

        Raises:
            Unanswered: the output depends on none of the arrays whose gradients are asked for, or
                the answers are about a network, which has no equations beside those of its parts.
        """
        return system_of(self.mixer, self.form, self.convention.rewrites, self.phase)

    def searched(self, figure: Figure, case: Case) -> int | None:
        """A figure without a formula, found at the sizes of a case about these answers; None if the
        figure has no search. Unsupported if the search takes too long."""
        return None if figure.search is None else figure.search(case)

    @cached_property
    def malformed(self) -> str:
        """The reason why the form's equations are not well formed, or why an array that the
        convention recomputes is none of theirs; "" if neither, and for a network, which has no
        equations of its own."""
        found = self.attempt(_malformed)
        return found if isinstance(found, str) else ""

    @cached_property
    def unanswered(self) -> str | None:
        """In phase `inference`, the reason why the form has no one-token inference; None if it has
        one, and in other phases."""
        return None if self.phase != "inference" else self.of(_unanswered)

    def beyond(self, sizes: Mapping[str, int]) -> str | None:
        """In phase `inference`, the reason why weights do not cover position t at these sizes, as a
        table of 512 positions at t = 513; None if they do, if the form has no inference, and in
        other phases."""
        return next((o.reason(sizes) for o in self.overruns if o.at(sizes)), None)

    @property
    def overruns(self) -> tuple[Overrun, ...]:
        """The reads of one new token that lie outside of the weights at some positions t, such as a
        table of positions that is too short; () in other phases and if the form has no inference.
        """
        if self.phase != "inference" or self.unanswered:
            return ()
        return self.of(_overruns)


def _malformed(about: Answers) -> str:
    """Why a form's equations are malformed, or lack an array to recompute; "" if neither is so."""
    try:
        system_of(about.mixer, about.form, (), "training")
        if about.convention.backward.recompute:
            system_of(about.mixer, about.form, about.convention.rewrites, about.phase)
    except EquationError as reason:
        return str(reason)
    return ""


def _unanswered(about: Answers) -> str | None:
    return inference_reason(system_of(about.mixer, about.form, (), about.phase))


def _overruns(about: Answers) -> tuple[Overrun, ...]:
    """The reads of one new token that lie outside of the weights at some positions t; () if the
    points that the token executes are not derived, which other questions report."""
    try:
        return overruns(about.system)
    except Unsupported:  # questions that need the iteration domains report this reason
        return ()


class Whole(Mixer):
    """A mixer whose answers follow from those of its parts: a network where a mixer may stand."""

    def answers(self, phase: str, convention: Convention) -> Answers:
        """The answers about all parts together, in a phase and under a convention."""
        raise NotImplementedError

    def opened(self, letter: str) -> Whole:
        """This mixer with the size `letter` open that its configuration gives; Unanswered, with the
        sizes that may be open, for another letter."""
        raise NotImplementedError


@cache
def answers(mixer: Mixer, form: str, phase: str, convention: Convention) -> Answers:
    """The `Answers` about one form of a mixer, one object per process."""
    if isinstance(mixer, Whole):
        return mixer.answers(phase, convention)
    return Answers(mixer, form, phase, convention)


@dataclass(frozen=True)
class Share(Generic[T]):
    """The answer of one part of a network, in the part's own sizes.

    Args:
        name: the part's name.
        sizes: the part's letter -> its value in sizes of the network.
        runs: how often the part runs for one sequence; of a chain (`Join`), how often on its path.
        copies: how many sets of parameters the part has.
        elsewhere: the names of parameters that are counted at another part.
        common: key of a table that all copies of the part, and all parts with an equal key, share
            -> the number of its entries that the answer counts.
    """

    name: str
    answer: T
    sizes: Mapping[str, Poly] = field(default_factory=dict)
    runs: Poly = Poly.of(1)
    copies: Poly = Poly.of(1)
    elsewhere: frozenset[str] = frozenset()
    common: Mapping[object, Exact] = field(default_factory=dict)


@dataclass(frozen=True)
class Join(Generic[T]):
    """How the answers of a network's parts become the network's answer: for counts, a sum.

    Args:
        rule: the answer from the shares of all parts; of a chain, such as a critical path, from
            those on one path through the network, in which each part begins when the part before
            it has ended.
        larger: of a chain, the maximum of the answers for several paths; None: no chain.
    """

    rule: Callable[[Sequence[Share[T]]], T]
    larger: Callable[[Sequence[T]], T] | None = None


JOINS: dict[Callable[[Answers], Any], Join[Any]] = {}
"""Question about a form -> how the answers of a network's parts are joined."""


def over_parts(
    rule: Callable[[Sequence[Share[T]]], T], larger: Callable[[Sequence[T]], T] | None = None
) -> Callable[[Callable[[Answers], T]], Callable[[Answers], T]]:
    """A decorator that registers how answers of a network's parts are joined to the network's
    answer.

    Args:
        rule: the network's answer from the parts' answers (`Share`).
        larger: the maximum of the answers for several paths; None if the answer is no chain.
    """

    def decorate(question: Callable[[Answers], T]) -> Callable[[Answers], T]:
        JOINS[question] = Join(rule, larger)
        return question

    return decorate


@dataclass(frozen=True, eq=False)
class Case:
    """One row of a table: a form in a phase (`about`), the sizes, and the units of its figures.

    Args:
        sizes: all sizes of the mixer; with `symbolic`, only the sizes to substitute.
        symbolic: figures are formulas in the sizes that are not given; else numbers.
        per_token: divide operations and bytes by the tokens of the phase: b for inference, else
            b*l.
        dtypes: element types for figures in bytes; None counts elements instead.
        optimiser: the optimiser whose state a training step holds; None if none is named.
        adding: how operations of several classes are added up.
        baseline: returns the case that ratios divide by, or raises Unanswered.
        ties: with `symbolic`, size -> the size that is not given and takes its place in formulas.
        board: the board (`prediction.boards.Board`) whose figures some columns need; None without.
        implementation: the module whose time is predicted; "": known kernels, or the fastest
            module.
    """

    about: Answers
    sizes: Mapping[str, int] = field(default_factory=dict)
    symbolic: bool = True
    per_token: bool = False
    dtypes: Dtypes | None = None
    optimiser: str | None = None
    adding: Adding = PLAIN
    baseline: Callable[[Case], Case] | None = None
    ties: Mapping[str, str] = field(default_factory=dict)
    board: object | None = None
    implementation: str = ""

    def __post_init__(self) -> None:
        """Complete the element types with those of the mixer or network."""
        if self.dtypes is not None:
            object.__setattr__(self, "dtypes", self.dtypes.of(self.mixer.dtypes))

    @property
    def mixer(self) -> Mixer:
        """The mixer."""
        return self.about.mixer

    @property
    def form(self) -> str:
        """The form's name."""
        return self.about.form

    @property
    def phase(self) -> str:
        """One of EVERY."""
        return self.about.phase

    @cached_property
    def gathers(self) -> bool:
        """Whether the form's equations read entries that data or a table choose."""
        equations = self.mixer.forms[self.form].equations
        return any(array.below is not None for e in equations for array in e.value.arrays)

    @cached_property
    def base(self) -> Case:
        """The case that ratios divide by; Unanswered if there is none."""
        if self.baseline is None:
            raise Unanswered("no ratio: there is no mixer to compare with")
        return self.baseline(self)

    @cached_property
    def blocked(self) -> str | None:
        """The reason why only figures with `Figure.always` exist here: no one-token inference, or
        weights that do not cover position t. None if all figures may exist."""
        return self.about.unanswered or (None if self.symbolic else self.about.beyond(self.sizes))

    def answer(self, figure: Figure) -> Answer:
        """The answer of a figure (a quantity, shown as a table's column) for all sizes, such as a
        polynomial; operations and bytes are divided by the tokens if the case is per token.

        Raises:
            Unanswered, Unsupported: the figure does not exist; the message is the reason.
        """
        if self.phase not in figure.phases:
            raise Unanswered(figure.elsewhere)
        if not figure.always and self.blocked:
            raise Unanswered(self.blocked)
        found = figure.value(self)
        return self.by_tokens(found) if figure.per_token and isinstance(found, Exact) else found

    def sizes_of(self, figure: Figure) -> frozenset[str]:
        """The sizes that a figure depends on; all sizes of the case if the figure has no formula,
        and none if it does not exist. Of a path they are the sizes in the numbers of its steps, and
        those of `Figure.decided_by`."""
        try:
            found = self.answer(figure)
        except Unanswered:
            return frozenset()
        except Unsupported:  # the value is found by search
            return frozenset(self.sizes)
        if isinstance(found, CriticalPath) and figure.decided_by is not None:
            return found.length.letters | self.sizes_of(figure.decided_by)
        if isinstance(found, Quotient):
            return found.above.letters | found.below.letters
        if isinstance(found, Largest):
            return frozenset().union(*(term.letters for term in found.terms))
        return found.letters if isinstance(found, Exact) else frozenset(self.sizes)

    def figure(self, figure: Figure) -> Value:
        """The value of a figure (a quantity, shown as a table's column) at the case's sizes: a
        number, or a formula if the case is symbolic; an order of growth is a formula in both. Where
        no formula is derived, a number found by the figure's search (`Searched`) if it has one;
        else `Missing` with the reason."""
        if figure not in self._values:
            self._values[figure] = self._value(figure)
        return self._values[figure]

    @cached_property
    def _values(self) -> dict[Figure, Value]:
        """A figure -> its value, as far as it was asked for."""
        return {}

    def _value(self, figure: Figure) -> Value:
        """The value of a figure, as `figure` describes it: a number is an int if whole, else a
        Fraction (bytes are rounded up, but not per token); an order of growth stays a formula."""
        try:
            found = self.answer(figure)
            if figure.kind == "order" and isinstance(found, Exact):
                return found
            value = self.settled(found)
            whole = figure.unit == "bytes" and not self.per_token  # blocks of a type may not fill
            return ceil(value) if whole and isinstance(value, Fraction) else value
        except Unanswered as reason:
            return Missing(str(reason))
        except MemoryError:
            return Missing(TOO_LITTLE)
        except Unsupported as reason:
            return self._searched(figure, str(reason))

    def _searched(self, figure: Figure, reason: str) -> Searched | Missing:
        """The number that a figure's search finds at the case's sizes. `Missing` if the figure has
        no search, the case is symbolic, or the search takes too long; `reason`: why no formula."""
        if self.symbolic:
            if figure.search is None or self.phase == "inference":
                return Missing(reason)
            return Missing(f"{reason}; with a number for every size, a search finds {figure.name}")
        try:
            found = self.about.searched(figure, self)
            return Missing(reason) if found is None else Searched(found, reason)
        except Unsupported as further:
            return Missing("; ".join(dict.fromkeys((reason, str(further)))))
        except MemoryError:
            return Missing(f"{reason}; for a search {TOO_LITTLE}")

    def parts(self, figure: Figure) -> dict[str, Value] | Missing:
        """Name -> term, at the case's sizes, of a figure that is a sum (has `Figure.parts`);
        `Missing` with the reason if there is no answer."""
        assert figure.parts is not None
        if self.blocked:
            return Missing(self.blocked)
        try:
            found = figure.parts(self)
            if figure.per_token:
                found = {name: self.by_tokens(part) for name, part in found.items()}
            return {name: self.settled(part) for name, part in found.items()}
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))
        except MemoryError:
            return Missing(TOO_LITTLE)

    def by_tokens(self, answer: Exact) -> Exact:
        """`answer`, divided by the tokens of the phase (b, or b*l) if the case is per token."""
        if not self.per_token:
            return answer
        tokens = BATCH if self.phase == "inference" else BATCH * Poly.atom("l")
        return answer * (Poly.of(1) / tokens)

    def settled(self, answer: Answer) -> Value:
        """The value of an answer at the case's sizes: a formula if the case is symbolic, else a
        number. Numbers, texts, paths and quotients are returned unchanged. Unanswered for a formula
        of too many cases."""
        if isinstance(answer, Exact):
            return self._formula(answer) if self.symbolic else answer.rational(self.sizes)
        if isinstance(answer, Largest):
            return self._largest(answer)
        return answer

    def _formula(self, answer: Exact) -> Exact:
        """An answer with the case's sizes substituted: a formula in the other sizes. Unanswered if
        it has more than `SPLITS` cases."""
        found = answer.substitute(self.known)
        if found.has_more_cases(SPLITS):
            raise Unanswered(f"the formula has more than {SPLITS} cases: {SELECTS}")
        return found

    def _largest(self, answer: Largest) -> Value:
        """A maximum at the case's sizes: an int, rounded up, or if the case is symbolic a tuple of
        polynomials whose maximum it is. Unanswered for more than `CASES` polynomials."""
        if not self.symbolic:
            return max(ceil(term.rational(self.sizes)) for term in answer.terms)
        terms = tuple(term.substitute(self.known) for term in answer.terms)
        values = Largest(terms).values(CASES)
        if len(values) > CASES:
            raise Unanswered(f"the value is the largest of more than {CASES} formulas: {SELECTS}")
        return values

    @property
    def known(self) -> dict[str, Poly]:
        """Size -> its value in formulas: a number, or the size that it is tied to."""
        tied = {letter: Poly.atom(other) for letter, other in self.ties.items()}
        return tied | {letter: Poly.of(size) for letter, size in self.sizes.items()}


def in_bytes(case: Case, role: str, elements: Exact) -> Exact:
    """A number of elements of a role, in bytes; unchanged if the case has no element types."""
    return elements * Poly.of(case.dtypes.bytes_of(role) if case.dtypes else 1)


def quotient(above: Value, below: Value) -> Answer:
    """The exact quotient `above / below` of two values of one case: of two numbers a number, of two
    equal formulas 1, of two other formulas a `Quotient`.

    Raises:
        Unanswered: a value is missing, or `below` is 0 (other formulas may be 0 at some sizes).
    """
    for value in (above, below):
        if isinstance(value, Missing):
            raise Unanswered(value.reason)
    if below == 0 or (isinstance(below, Exact) and below.is_zero):
        raise Unanswered("no ratio: the value to divide by is 0")
    if isinstance(above, Exact) and isinstance(below, Exact):
        return Exact.of(Poly.of(1)) if above == below else Quotient(above, below)
    # values of one case are both formulas or both numbers
    assert isinstance(above, (int, Fraction)) and isinstance(below, (int, Fraction))
    ratio = Fraction(above) / Fraction(below)
    return ratio.numerator if ratio.denominator == 1 else ratio


@dataclass(frozen=True)
class Name:
    """The name of an array in a sentence; if `cited`, followed by its equation's number."""

    name: str
    cited: bool = False


Said = str | Exact | Poly | tuple[Poly, ...] | Name
"""A part of a sentence: a text, a formula, or an array's name."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of an explanation, independent of the output format."""

    words: tuple[Said, ...]
    item: bool = False
    """Whether the sentence is an item of a list."""
    detail: bool = False
    """Whether only a full explanation has the sentence."""


@dataclass(frozen=True)
class Source:
    """The number of an array's equation in its source, as a cell of a `Listing`."""

    name: str


@dataclass(frozen=True)
class Listing:
    """A table of an explanation, independent of the output format.

    Args:
        columns: (name, header, whether its cells are numbers) of each column.
        detail: whether only a full explanation has the table.
    """

    title: str
    columns: tuple[tuple[str, str, bool], ...]
    rows: tuple[tuple[Said | Source, ...], ...]
    notes: tuple[str, ...] = ()
    detail: bool = False


@dataclass(frozen=True)
class Written:
    """A displayed equation of a full explanation, whose sides are functions of the notation.

    Args:
        right: the right side; None: `closed` alone is the right side.
        closed: the closed form of the right side.
    """

    left: Callable[[Notation], str]
    right: Callable[[Notation], str] | None
    closed: Exact


Explained = Iterator[Sentence | Listing | tuple[Written, ...]]
"""The sentences, tables and displayed equations of an explanation."""


def listed(arrays: Mapping[str, Exact] | Mapping[str, Poly]) -> tuple[Said, ...]:
    """Arrays with their numbers of entries, as parts of a sentence: `W (d**2), c (d)`."""
    words: list[Said] = []
    for name, entries in arrays.items():
        words += [", " if words else "", Name(name), " (", entries, ")"]
    return tuple(words)


Kind = Literal["number", "ratio", "order", "steps", "names", "label"]
"""How a figure is printed: "ratio" rounded; "order" inside O(...); "steps" as a chain of steps;
"names" as parts with names, such as `512 compare`; "label" as text."""


Notes = Callable[[Sequence[Case], Sequence[str]], Iterable[str]]
"""The sentences below a table, from its rows and the names of its columns."""


def never(cases: Sequence[Case]) -> bool:
    """`Figure.usual` of a column that tables show only if the user names the column."""
    return False


def always(cases: Sequence[Case]) -> bool:
    """`Figure.usual` of a column that every default table shows."""
    return True


@dataclass(frozen=True)
class Figure:
    """One figure of an answer: a column of tables, a key of JSON, a quantity of claims.

    Args:
        name: its name in `--columns` and in claims, and its header in CSV.
        meaning: a phrase that says what the figure counts.
        value: computes the figure of a case; raises Unanswered or Unsupported if there is none.
        header: the column's header on a terminal; the name if empty.
        heading: the column's header in a paper, in words; the header if empty.
        key: the path of its JSON value, such as `counts.mul`; the name if empty.
        parts: computes the terms of a figure that is a sum, by name; JSON then holds the terms.
        unit: "operations", "elements", "bytes", "operations/byte" or "".
        phases: the phases in which the figure exists.
        varies: what the figure depends on, besides the sizes: "phase", "form", "convention".
        always: whether the figure exists even if the form lacks the phase (parameters do).
        per_token: whether a table per token divides the figure by the tokens.
        usual: whether the default table of some cases shows the column.
        claimed: whether claims may be about the figure; `kind`: how the figure is printed.
        within: the name of a figure that has this one as a part, or that is this one in another
            unit. Explanations show only that figure; JSON holds this one inside its parts.
        search: finds the figure at a case's sizes if no formula is derived; raises Unsupported if
            the search takes too long.
        notes: the sentences that a reader needs below a table with the figure's column.
        by_form: whether tables name other forms that have less of the figure.
        decided_by: of a path, the figure whose sizes decide which path is the longest.
    """

    name: str
    meaning: str
    value: Callable[[Case], Answer]
    header: str = ""
    heading: str = ""
    key: str = ""
    parts: Callable[[Case], Mapping[str, Exact]] | None = None
    unit: str = ""
    kind: Kind = "number"
    phases: tuple[str, ...] = EVERY
    varies: frozenset[str] = frozenset({"phase", "form", "convention"})
    always: bool = False
    per_token: bool = False
    usual: Callable[[Sequence[Case]], bool] = never
    claimed: bool = False
    within: str = ""
    search: Callable[[Case], int] | None = None
    notes: tuple[Notes, ...] = ()
    by_form: bool = False
    decided_by: Figure | None = None

    @property
    def title(self) -> str:
        """The figure's name as the beginning of a sentence, without its unit."""
        text = " ".join((self.heading or self.header or self.name).split()).partition(" (")[0]
        return text[:1].upper() + text[1:]

    def sentence(self, case: Case) -> Sentence:
        """A sentence with the formula of a figure of kind "number", and its number at the case's
        sizes where the formula has letters; with the reason in place of the formula, or of both,
        where there is none."""
        lead, unit = f"{self.title}, {self.meaning}: ", self.unit
        if unit == "bytes" and case.dtypes is None:
            unit = "elements"
        # the formula is that of the case's batch: b has its number, the other sizes are letters
        batch = {letter: size for letter, size in case.sizes.items() if letter == "b"}
        formula = replace(case, sizes=batch, symbolic=True).figure(self)
        number = case.figure(self)
        if isinstance(number, Searched):
            return Sentence((f"{lead}{number:,}, {FOUND} (no formula: {number.reason}).",))
        if isinstance(number, Missing):
            return Sentence((f"{lead}not derived: {number.reason}.",))
        assert isinstance(number, int)
        if isinstance(formula, Missing):
            return Sentence((f"{lead}{number:,} at these sizes (no formula: {formula.reason}).",))
        assert isinstance(formula, (Exact, tuple))
        terms = (formula,) if isinstance(formula, Exact) else formula
        here = f", {number:,} at these sizes" if any(term.letters for term in terms) else ""
        return Sentence((lead, formula, f"{unit and ' '}{unit}{here}."))

    @property
    def elsewhere(self) -> str:
        """The reason why the figure does not exist in other phases than its own."""
        *others, last = self.phases
        where = f"{', '.join(others)} and {last}" if others else last
        return f"{self.name} ({self.meaning}) exists in {where} only"


@dataclass(frozen=True)
class Tally:
    """A derived answer that `check` compares with the tally of an instrumented execution.

    Args:
        name: its name in the output of `check`.
        derived: computes the derived answer at sizes: a number, or numbers by name.
        quantity: the quantity of `oracle.quantities` that must be equal; the name if empty.
    """

    name: str
    derived: Callable[[Answers, Mapping[str, int]], object]
    quantity: str = ""


@dataclass(frozen=True)
class Question:
    """One question: the function that answers it, and the figures of its answer.

    Args:
        name: the function's name in `costmodel`, and the name of its file.
        title: the question's name in a heading.
        ask: the function that users call; None if no function of `costmodel` answers the question.
        tallies: the derived answers that `check` compares with the oracle.
        untallied: the reason why there are no tallies, if there are none.
        explained: what `explain` says of a case below its table of usual figures; None: a sentence
            for each other number.
        place: where `explain` prints the sentences: in its introduction, among the answers of each
            phase, or under a heading at the end.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    ask: Callable[..., Any] | None = None
    tallies: tuple[Tally, ...] = ()
    untallied: str = ""
    explained: Callable[[Case], Explained] | None = None
    place: Literal["introduction", "phase", "end"] = "phase"

    def __post_init__(self) -> None:
        """Raises ValueError for a question that names no quantity of the execution to compare with
        and gives no reason."""
        if not self.tallies and not self.untallied:
            raise ValueError(
                f"question '{self.name}': expected tallies, the quantities of the oracle that the "
                "answer equals, or untallied, the reason why there are none"
            )

    def sentences(self, case: Case) -> Explained:
        """Yield the sentences, tables and equations of `explain` about a case; nothing in a phase
        in which no figure exists.

        Raises:
            Unanswered, Unsupported: there is no answer; the message is the reason.
        """
        if not any(case.phase in figure.phases for figure in self.figures):
            return
        if self.explained is not None:
            if case.blocked and not all(figure.always for figure in self.figures):
                raise Unanswered(case.blocked)
            yield from self.explained(case)
            return
        for figure in self.figures:  # the numbers that the table of usual figures does not show
            own = not figure.within and figure.kind == "number" and case.phase in figure.phases
            if own and not figure.usual([case]):
                yield figure.sentence(case)
