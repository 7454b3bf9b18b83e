"""What is a question: which figures does its answer give, and of what are they asked?

A question is one record in its own file. `registry` lists the records, and everything that shows,
sorts, writes, claims or proves an answer reads that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, Literal, Self, TypeVar

from costmodel.errors import TOO_LITTLE, Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.paths.chains import CriticalPath
from costmodel.program.conventions import Convention
from costmodel.program.phases import Overrun, inference_reason, overruns
from costmodel.questions.kept import kept
from costmodel.questions.subject import system_of
from costmodel.symbolic.cases import Quotient
from costmodel.symbolic.piecewise import Exact, rational
from costmodel.symbolic.piecewise_max import Level, guarded
from costmodel.symbolic.polynomial import Poly

BATCH = Poly.atom("b")
FORWARD = ("training", "inference")
"""The phases of the papers' tables."""
EVERY = (*FORWARD, "backward", "training-step")
"""All phases."""
BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Element type -> the size of an element in bytes."""

T = TypeVar("T")


def element_bytes(dtype: str) -> int:
    """The size of an element in bytes; ValueError lists the known types."""
    if dtype not in BYTES:
        raise ValueError(f"unknown dtype '{dtype}': expected one of {', '.join(BYTES)}")
    return BYTES[dtype]


@dataclass(frozen=True)
class Missing:
    """A figure that does not exist; the reason is one sentence."""

    reason: str


FOUND = "found at these sizes by search"
"""What is said of a `Searched` number."""


class Searched(int):
    """A number found at the sizes by search; `reason` says why there is no formula for all."""

    reason: str

    def __new__(cls, number: int, reason: str) -> Self:
        found = super().__new__(cls, number)
        found.reason = reason
        return found


CASES = 20
"""Of how many values, each where the sizes fit it, a largest one is printed."""


@dataclass(frozen=True)
class Largest:
    """The largest of some terms."""

    terms: tuple[Exact, ...]

    @property
    def values(self) -> tuple[Poly, ...]:
        """Polynomials with the same maximum: the value of each case of a term, and 0 elsewhere."""
        cases = [case for term in self.terms for case in term.chambers()]
        return tuple(dict.fromkeys(guarded(Level(value, where)) for where, value in cases))


Answer = Exact | Largest | CriticalPath | Quotient | Fraction | int | str
"""What a figure is for all sizes; a number where it was settled on the way."""
Value = int | Fraction | str | Exact | Quotient | tuple[Poly, ...] | CriticalPath | Missing | None
"""What stands in a cell: a number at sizes, or a formula."""


@dataclass(frozen=True)
class Dtypes:
    """Element types by role; None where the role has the type of the activations."""

    activations: str = "fp32"
    state: str | None = None
    weights: str | None = None

    @property
    def caption(self) -> str:
        """What a caption says about the element types."""
        roles = {"state": self.state, "weights": self.weights}
        named = [f"{role} {dtype}" for role, dtype in roles.items() if dtype]
        return ", ".join([f"elements {self.activations}", *named])

    def bytes_of(self, kind: str) -> int:
        """The size of an element of a kind, in bytes; ValueError lists the known types."""
        own = {"state": self.state, "weights": self.weights}.get(kind)
        return element_bytes(own or self.activations)


@dataclass(frozen=True)
class Adding:
    """How operations of several classes become one number.

    `weighting` is one of `counts.WEIGHTINGS`. `once` says whether the work done once, on weights
    alone, is included; None: in the total, and not in single classes.
    """

    weighting: str = "total"
    once: bool | None = None


PLAIN = Adding()
"""Every operation counts 1; the work done once stands in the total alone."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What is derived about one form of a mixer in one phase under one convention, each once."""

    mixer: Mixer
    form: str
    phase: str
    convention: Convention
    _known: dict[str, Any] = field(default_factory=dict, repr=False)

    def of(self, question: Callable[[Answers], T]) -> T:
        """The answer to a question, a function with a name of its own.

        Raises:
            Unanswered, Unsupported: there is none; the message is the reason.
        """
        name = f"{question.__module__}.{question.__qualname__}"
        return self.derived(name, lambda: question(self))

    def derived(self, name: str, derive: Callable[[], T]) -> T:
        """The answer of this name, derived when no process and no disk has it.

        Raises:
            Unanswered, Unsupported: there is none; the message is the reason.
        """
        if name not in self._known:

            def attempt() -> T | Unanswered | Unsupported:
                try:
                    return derive()
                except (Unanswered, Unsupported) as reason:
                    return reason

            key = f"{self.form} {self.phase} {','.join(self.convention.names)} {name}"
            self._known[name] = kept(self.mixer, key, attempt)
        found: Any = self._known[name]
        if isinstance(found, (Unanswered, Unsupported)):
            raise found.with_traceback(None)
        return found  # type: ignore[no-any-return]  # the dictionary holds answers of many types

    def attempt(self, question: Callable[[Answers], T]) -> T | Missing:
        """The answer to a question, or the reason for which there is none."""
        try:
            return self.of(question)
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))

    def about(self, phase: str) -> Answers:
        """The answers about another phase."""
        return answers(self.mixer, self.form, phase, self.convention)

    @cached_property
    def unanswered(self) -> str | None:
        """Why this form has no such phase, or None."""
        return None if self.phase != "inference" else self.of(_unanswered)

    def beyond(self, sizes: Mapping[str, int]) -> str | None:
        """Why position t lies beyond what the weights cover at these sizes, or None."""
        if self.phase != "inference" or self.unanswered:
            return None
        return next((o.reason(sizes) for o in self.of(_overruns) if o.at(sizes)), None)


def _unanswered(about: Answers) -> str | None:
    return inference_reason(system_of(about.mixer, about.form, (), about.phase))


def _overruns(about: Answers) -> tuple[Overrun, ...]:
    try:
        return overruns(system_of(about.mixer, about.form, about.convention.rewrites, about.phase))
    except Unsupported:  # the question about the points of the phase says why
        return ()


@cache
def answers(mixer: Mixer, form: str, phase: str, convention: Convention) -> Answers:
    """The answers about one form of a mixer, derived once a process."""
    return Answers(mixer, form, phase, convention)


@dataclass(frozen=True, eq=False)
class Case:
    """Of what a figure is asked: a form in a phase, at which sizes, and how it is to be expressed.

    Args:
        sizes: every size that the case depends on; with `symbolic` those alone that are put in.
        symbolic: formulas in the sizes that were not given.
        per_token: operations and bytes divided by the b*l tokens of a pass, the b new ones of
            inference.
        dtypes: element types, for bytes; None for elements.
        optimiser: whose state a training step holds; None where that is not asked for.
        adding: how operations are added up.
        baseline: the case that ratios are taken to; it raises Unanswered where there is none.
    """

    about: Answers
    sizes: Mapping[str, int] = field(default_factory=dict)
    symbolic: bool = True
    per_token: bool = False
    dtypes: Dtypes | None = None
    optimiser: str | None = None
    adding: Adding = PLAIN
    baseline: Callable[[Case], Case] | None = None

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
    def base(self) -> Case:
        """The case that ratios are taken to; Unanswered where there is none."""
        if self.baseline is None:
            raise Unanswered("no ratio: no mixer is named to compare with")
        return self.baseline(self)

    @cached_property
    def blocked(self) -> str | None:
        """Why nothing but the parameters exists, or None."""
        return self.about.unanswered or (None if self.symbolic else self.about.beyond(self.sizes))

    def answer(self, figure: Figure) -> Answer:
        """A figure for all sizes; per token where that is asked for.

        Raises:
            Unanswered, Unsupported: it does not exist; the message is the reason.
        """
        if self.phase not in figure.phases:
            raise Unanswered(figure.elsewhere)
        if not figure.always and self.blocked:
            raise Unanswered(self.blocked)
        found = figure.value(self)
        return self.shared(found) if figure.per_token and isinstance(found, Exact) else found

    def figure(self, figure: Figure) -> Value:
        """A figure at the case's sizes, or the reason for which it does not exist."""
        try:
            found = self.answer(figure)
            if figure.kind == "order" and isinstance(found, Exact):
                return found
            return self.settled(found)
        except Unanswered as reason:
            return Missing(str(reason))
        except MemoryError:
            return Missing(TOO_LITTLE)
        except Unsupported as reason:
            return self._searched(figure, str(reason))

    def _searched(self, figure: Figure, reason: str) -> Searched | Missing:
        """A figure without a formula, found at the case's sizes by search."""
        if figure.search is None or self.symbolic:
            return Missing(reason)
        try:
            return Searched(figure.search(self), reason)
        except Unsupported as further:
            return Missing(f"{reason}; {further}")
        except MemoryError:
            return Missing(f"{reason}; of a search, {TOO_LITTLE}")

    def parts(self, figure: Figure) -> dict[str, Value] | Missing:
        """The parts of a figure by name, at the case's sizes."""
        assert figure.parts is not None
        if self.blocked:
            return Missing(self.blocked)
        try:
            found = figure.parts(self)
        except (Unanswered, Unsupported) as reason:
            return Missing(str(reason))
        if figure.per_token:
            found = {name: self.shared(part) for name, part in found.items()}
        return {name: self.settled(part) for name, part in found.items()}

    def shared(self, answer: Exact) -> Exact:
        """An answer divided by the tokens of the phase where the case is per token."""
        if not self.per_token:
            return answer
        tokens = BATCH if self.phase == "inference" else BATCH * Poly.atom("l")
        return answer * (Poly.of(1) / tokens)

    def settled(self, answer: Answer) -> Value:
        """An answer at the case's sizes; a formula where the case is symbolic."""
        if isinstance(answer, Exact):
            return (
                answer.substitute(self._letters) if self.symbolic else rational(answer, self.sizes)
            )
        if isinstance(answer, Largest):
            return self._largest(answer)
        return answer

    def _largest(self, answer: Largest) -> Value:
        if not self.symbolic:
            return max(int(rational(term, self.sizes)) for term in answer.terms)
        values = Largest(tuple(term.substitute(self._letters) for term in answer.terms)).values
        if len(values) > CASES:
            raise Unanswered(
                f"it is the largest of more than {CASES} values, which one only sizes tell"
            )
        return values

    @property
    def _letters(self) -> dict[str, Poly]:
        return {letter: Poly.of(size) for letter, size in self.sizes.items()}


def in_bytes(case: Case, role: str, elements: Exact) -> Exact:
    """Elements of a role in bytes; elements where the case has no types."""
    return elements * (case.dtypes.bytes_of(role) if case.dtypes else 1)


def quotient(above: Value, below: Value) -> Answer:
    """One settled value over another one, exact.

    Raises:
        Unanswered: one of them is missing, or the lower one is 0.
    """
    for value in (above, below):
        if isinstance(value, Missing):
            raise Unanswered(value.reason)
    if isinstance(above, Exact) and isinstance(below, Exact):
        return Exact.of(Poly.of(1)) if above == below else Quotient(above, below)
    assert isinstance(above, (int, Fraction)) and isinstance(below, (int, Fraction))
    if below == 0:
        raise Unanswered("nothing to divide by: the other value is 0")
    ratio = Fraction(above) / Fraction(below)
    return ratio.numerator if ratio.denominator == 1 else ratio


@dataclass(frozen=True)
class Name:
    """An array of a mixer, as the mixer prints it; `cited` with its equation's number."""

    name: str
    cited: bool = False


Said = str | Exact | Poly | tuple[Poly, ...] | Name
"""A word of a sentence: a text, a formula, or an array."""


@dataclass(frozen=True)
class Sentence:
    """What an explanation says of an answer, whatever it is written in."""

    words: tuple[Said, ...]
    item: bool = False
    """Whether it is one of a list."""


def listed(arrays: Mapping[str, Exact] | Mapping[str, Poly]) -> tuple[Said, ...]:
    """Arrays and their entries: `W (d**2), c (d)`."""
    words: list[Said] = []
    for name, entries in arrays.items():
        words += [", " if words else "", Name(name), " (", entries, ")"]
    return tuple(words)


Kind = Literal["number", "ratio", "order", "steps", "names", "label"]
"""How a figure is printed: a ratio is rounded, an order stands in O(...), steps are a chain, names
are parts by name, such as `512 compare`; a label is a text."""


def never(cases: Sequence[Case]) -> bool:
    """A column that is shown where it is named alone."""
    return False


def always(cases: Sequence[Case]) -> bool:
    """A column of the plain table."""
    return True


@dataclass(frozen=True)
class Figure:
    """One thing that an answer holds: a column, a key of records, a quantity of claims.

    Args:
        name: as `--columns` takes it and CSV heads it.
        meaning: what it is, in a few words.
        value: the figure of a case; raises Unanswered or Unsupported where there is none.
        header: heads the column on a terminal; the name if empty.
        heading: heads the column of a paper, in words; the header if empty.
        key: where it stands in a row of JSON, `counts.mul`; the name if empty.
        parts: what it is the sum of, by name; JSON then holds the parts.
        unit: "operations", "elements", "bytes", or none.
        phases: those in which it exists.
        varies: what it depends on, beside the sizes.
        always: whether it exists even where the phase does not.
        per_token: whether a table per token divides it.
        usual: whether the plain table of some cases shows it.
        claim: the word for it in claims; none where claims are not about it.
        within: the figure that it is one of the parts of, or says in another unit: explanations
            have that one, and JSON has the parts there.
        panel: which part of a LaTeX table of many columns it stands in.
        search: finds it at a case's sizes where no formula is derived; raises Unsupported where
            that takes too long.
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
    claim: str = ""
    within: str = ""
    panel: int = 0
    search: Callable[[Case], int] | None = None

    @property
    def title(self) -> str:
        """The figure's name in a sentence, its unit left out."""
        text = " ".join((self.heading or self.header or self.name).split()).partition(" (")[0]
        return text[:1].upper() + text[1:]

    def sentence(self, case: Case) -> Sentence:
        """The figure as a formula, and as a number at the case's sizes."""
        lead, unit = f"{self.title}, {self.meaning}: ", self.unit
        if unit == "bytes" and case.dtypes is None:
            unit = "elements"
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
        """Why it does not exist in the phases that are not its own."""
        *others, last = self.phases
        where = f"{', '.join(others)} and {last}" if others else last
        return f"{self.name} ({self.meaning}) stands in the rows of {where}"


@dataclass(frozen=True)
class Tally:
    """What instrumented execution tallies of a question, beside what is derived of it.

    Args:
        name: what proofs call it.
        derived: the derived answer at sizes: a number, or numbers by name.
        quantity: what it equals, as `oracle.quantities` lists it; the name if empty.
    """

    name: str
    derived: Callable[[Answers, Mapping[str, int]], object]
    quantity: str = ""


@dataclass(frozen=True)
class Question:
    """One question: the function that answers it, the figures that the answer gives.

    Args:
        name: the function's name in `costmodel`; that of its file.
        title: the question's name in a heading.
        ask: the function; None where the figures are made of other questions' answers.
        tallies: which quantities of the oracle the answers equal.
        untallied: why there are none.
        explained: what an explanation says of a case; None: each figure that is a number.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    ask: Callable[..., Any] | None = None
    tallies: tuple[Tally, ...] = ()
    untallied: str = ""
    explained: Callable[[Case], Iterator[Sentence]] | None = None

    def __post_init__(self) -> None:
        if not self.tallies and not self.untallied:
            raise ValueError(
                f"question '{self.name}': name the quantities of the oracle that it equals "
                f"(tallies), or say why there are none (untallied)"
            )

    def sentences(self, case: Case) -> Iterator[Sentence]:
        """What an explanation says of a case.

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
        for figure in self.figures:
            if not figure.within and figure.kind == "number" and case.phase in figure.phases:
                yield figure.sentence(case)
