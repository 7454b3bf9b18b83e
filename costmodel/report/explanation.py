"""The document of `explain`: a mixer's costs, traced to equations, steps and arrays.

A question (`Question`: operations, span, state, ...) has figures (`Figure`: mul, total, ...) and
says sentences, tables and equations about a case (`Case`): a form of the mixer in a phase at sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from costmodel.backwards.crossover import Crossover, Stretch
from costmodel.backwards.figures import usual_size
from costmodel.errors import SizeError, Unanswered, Unsupported
from costmodel.language.equations import Equation, Mixer, System
from costmodel.language.nodes import Array
from costmodel.language.notation import Notation, equation
from costmodel.paths.chains import CriticalPath
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import (
    OF_BACKWARD,
    limits,
    longest,
    prediction_sentences,
    span_unknown,
)
from costmodel.program.chosen_sizes import fit, letters_of
from costmodel.program.conventions import Convention
from costmodel.program.element_types import Dtypes
from costmodel.program.phases import TRAINING_STEP, inference_reason
from costmodel.questions.question import (
    FOUND,
    Case,
    Figure,
    Listing,
    Missing,
    Name,
    Question,
    Said,
    Searched,
    Source,
    Written,
    answers,
)
from costmodel.questions.registry import FIGURES, QUESTIONS
from costmodel.questions.subject import system_of, well_formed_at
from costmodel.report.document import (
    Cell,
    Column,
    Display,
    Equal,
    Formula,
    Heading,
    Line,
    Math,
    Note,
    Paragraph,
    Part,
    Row,
    Section,
    Shown,
    Table,
    letter,
    listed,
)
from costmodel.report.mixer_document import cell, steps
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.pretty import ORDERED
from costmodel.symbolic.printing import Latex, Names, identifier, prints_head_width
from costmodel.symbolic.thresholds import Bound, Case as Holding

PHASE_TITLES = {
    "training": "Forward pass (the papers' training phase)",
    "inference": "One new token (the papers' inference phase)",
    "backward": "Backward pass",
    "training-step": "Training step (forward and backward pass)",
}
OCCASIONS = {
    "training": "In a forward pass",
    "inference": "For one new token",
    "backward": "In a backward pass",
    "training-step": "In a training step",
}
MORE = "--full adds the sum of every count, formulas by equation, and the steps of critical paths."
TILDE = "Arrays of the forward pass that are computed again have a tilde. "


@dataclass(frozen=True)
class Explanation:
    """The answers to all questions about a form of a mixer at sizes, in phases, under a
    convention. `names`: size letter -> its symbol in LaTeX."""

    mixer: Mixer
    form: str
    phases: tuple[str, ...]
    sizes: Mapping[str, int]
    convention: Convention = Convention()
    names: Names | None = None
    optimiser: str | None = None
    """The optimiser whose state a training step holds; None if none is named."""
    full: bool = True
    """Whether sums behind counts, formulas by equation and steps of critical paths are printed."""
    on: Board | None = None
    """The board whose limits are told, with entries of the types `dtypes`; None: no board's."""
    dtypes: Dtypes = Dtypes()
    implementation: str = ""
    """The module whose time on the board is predicted; "": known kernels, or the fastest module."""

    def array(self, name: str) -> Math:
        """The name of an array as a cell, with its LaTeX."""
        own = self._arrays[name].latex if name in self._arrays else ""
        return Math(name, own or identifier(name))

    @cached_property
    def _arrays(self) -> Mapping[str, Array]:
        """Name -> array, of the form and of all phases, gradients included; of two arrays with one
        name the mixer's or form's. A phase without an answer adds none (`_costs` tells why)."""
        found = {**self.mixer.arrays, **self.mixer.forms[self.form].arrays}
        for phase in self.phases:
            try:
                system = system_of(self.mixer, self.form, self.convention.rewrites, phase)
            except (Unanswered, Unsupported):
                continue
            written = {equation.name: equation.array for equation in system.equations}
            found = {**system.mixer.arrays, **written, **found}
        return found

    def cite(self, name: str) -> str:
        """The number of the array's equation in the mixer's source; "" if it has none."""
        return self._arrays[name].cite

    def parts(self) -> list[Part]:
        """The explanation: introduction, the table of costs, equations, where the costs of each
        phase with an answer come from, and the forms; unless `full`, a hint at --full at the end.

        Raises:
            SizeError: sizes that do not fit; EquationError: an unknown form, or any malformed one.
        """
        system_of(self.mixer, self.form, (), "training")
        fit(self.mixer, self.sizes)
        well_formed_at(self.mixer, self.form, self.sizes)
        found: list[Part] = [Heading(f"{self.mixer.title}, form {self.form}", 1)]
        found += [self._introduction(), *self._costs(), *self._placed("introduction")]
        found += [Heading("Equations"), self._equations()]
        for phase in self.phases:
            if self._reason(phase) is None:
                found += [Heading(f"{PHASE_TITLES[phase]}, in detail"), *self._phase(phase)]
        found += [*self._placed("end"), Heading("Forms"), *self._forms()]
        return found if self.full else [*found, Paragraph((MORE,))]

    def _placed(self, place: str) -> Iterator[Part]:
        """Yield the answers of the questions that stand outside of the phases: `place` is
        "introduction", or "end", where each has a heading."""
        for question in QUESTIONS:
            if question.place == place:
                yield from [Heading(question.title)] if place == "end" else []
                # the answer is the same in all phases that the figure has
                yield from self._told(question, question.figures[0].phases[0])

    def _introduction(self) -> Paragraph:
        """A paragraph about the mixer: source, aliases, the sizes with their meanings, h = d/n if
        the formulas print h, the numbers at which figures are given, and the convention."""
        line: list[Cell] = [f"Source: {self.mixer.source}. " if self.mixer.source else ""]
        if self.mixer.aliases:
            line.append(f"Also called {', '.join(self.mixer.aliases)}. ")
        line.append("Sizes: ")
        for name in self.mixer.letters:
            line += [letter(name), f" {self.mixer.letter(name).meaning}, "]
        own = self.mixer.letters
        if "n" in own and "h" not in own and prints_head_width(self.names or {}):
            line += [Equal((letter("h"), Formula(Poly.atom("d") / Poly.atom("n")))), ", "]
        line[-1] = f"{str(line[-1]).removesuffix(', ')}. Numbers are given at "
        for name, value in self.sizes.items():
            line += [Equal((letter(name), str(value))), ", "]
        line[-1] = ". "
        line.append(f"Convention {self.convention.title}: {self.convention.caption}.")
        return Paragraph(tuple(line))

    def case(self, phase: str) -> Case:
        """The case that questions of a phase are asked about."""
        about = answers(self.mixer, self.form, phase, self.convention)
        return Case(about, self.sizes, symbolic=False, optimiser=self.optimiser)

    def _reason(self, phase: str) -> str | None:
        """Why a phase has no answer or is not derived, as the end of a sentence; else None."""
        try:
            system_of(self.mixer, self.form, self.convention.rewrites, phase)
        except Unsupported as error:
            return f"not derived: {error}"
        except Unanswered as error:
            return f"no answer: {error}"
        about = answers(self.mixer, self.form, phase, self.convention)
        reason = about.unanswered or about.beyond(self.sizes)
        return f"no answer: {reason}" if reason else None

    def _costs(self) -> Iterator[Part]:
        """Yield the table of the usual figures, with notes on their meanings: first those that are
        equal in all phases, then a section for each phase with an answer; below it why the
        other phases have none, and the limits of a board."""
        reasons = {phase: self._reason(phase) for phase in self.phases}
        cases = [self.case(phase) for phase, reason in reasons.items() if reason is None]
        rows: list[Row | Section] = []
        meanings: dict[str, None] = {}
        notes: dict[str, None] = {}
        # `anywhere`: first the figures that all phases share, of the case of any phase
        for case, anywhere in [(self.case(self.phases[0]), True), *((x, False) for x in cases)]:
            rows += [] if anywhere else [Section((PHASE_TITLES[case.phase],))]
            for figure in summarised(case, anywhere=anywhere):
                rows += _rows(case, figure)
                if figure.kind != "names":
                    meanings[f"{_header(figure)}: {figure.meaning}"] = None
                if figure.kind == "steps":
                    notes |= {line: None for note in figure.notes for line in note([case], ())}
        said = ("; ".join(meanings), *notes)
        yield Table("Costs", COST_COLUMNS, tuple(rows), tuple(Note((line,)) for line in said))
        for phase, reason in reasons.items():
            if reason is not None:
                yield Paragraph((f"{PHASE_TITLES[phase]}: {reason}.",))
        for case in cases:
            yield from self._limits(case.phase)

    def _limits(self, phase: str) -> Iterator[Part]:
        """Yield, if a board is asked for, the least time on the board with the microseconds of each
        limit (arithmetic, memory) alone; why the span is unknown; a remark on backward passes; the
        predicted time and its constants. A time without an answer gives way to the reason."""
        if self.on is None:
            return
        occasion = f"{OCCASIONS[phase]}, with {self.dtypes.caption_of([self.mixer])}"
        lead = f"{occasion} on the board {self.on.caption}: "
        case = replace(
            self.case(phase), dtypes=self.dtypes, board=self.on, implementation=self.implementation
        )
        try:
            found = limits(case)
        except Unanswered as reason:
            yield Paragraph((f"{lead}no floor: {reason}.",))
            return
        each = ", ".join(f"{name} {1e6 * seconds:.4g} us" for name, seconds in found.items())
        name, seconds = longest(found)
        text = f"{lead}at least {1e6 * seconds:.4g} us, bound by {name}; alone take {each}."
        yield Paragraph((text,))
        if unknown := span_unknown(case):
            yield Paragraph((f"The span is not known: {unknown}.",))
        if phase == "backward":
            yield Paragraph((f"{OF_BACKWARD[:1].upper()}{OF_BACKWARD[1:]}.",))
        try:
            for sentence in prediction_sentences(case):
                yield Paragraph((f"{sentence[:1].upper()}{sentence[1:]}.",))
        except Unanswered as reason:
            yield Paragraph((f"No predicted time: {reason}.",))

    def _told(self, question: Question, phase: str) -> Iterator[Part]:
        """Yield what a question says about its answer in a phase, as parts of the document (details
        only in a full explanation); or a sentence with the reason why there is no answer."""
        try:
            for said in question.sentences(self.case(phase)):
                if not self.full and (isinstance(said, tuple) or said.detail):
                    continue
                if isinstance(said, Listing):
                    yield self._listing(said, phase)
                elif isinstance(said, tuple):
                    yield Display(tuple(map(self._shown_equation, said)))
                else:
                    line = tuple(cell for word in said.words for cell in self._cells(word))
                    yield Paragraph(line, item=said.item)
        except Unanswered as error:
            yield Paragraph((f"{question.title}: none: {error}.",))
        except Unsupported as error:
            yield Paragraph((f"{question.title}: not derived: {error}.",))

    def _listing(self, listing: Listing, phase: str) -> Table:
        """The table of the document for a question's listing (a row of words for each row), with
        the phase in its title: "Operations by equation, forward pass (...)"."""
        title = PHASE_TITLES[phase]
        columns = tuple(
            Column(name, header, numeric=number) for name, header, number in listing.columns
        )
        rows = tuple(tuple(x for word in row for x in self._cells(word)) for row in listing.rows)
        return Table(
            f"{listing.title}, {title[:1].lower()}{title[1:]}",
            columns,
            rows,
            tuple(Note((note,)) for note in listing.notes),
        )

    def _shown_equation(self, said: Written) -> Shown:
        """An equation that a question adds (such as a sum and its closed form), in plain text and
        in LaTeX; without a right side, the closed form is the right side."""
        notations = Notation(False, {}), Notation(True, self.names or {})
        left, closed = Math(*map(said.left, notations)), Formula(said.closed)
        if said.right is None:
            return Shown(left, closed)
        return Shown(left, Math(*map(said.right, notations)), closed=closed)

    def _cells(self, word: Said | Source) -> Iterator[Cell]:
        """Yield a word of a question's sentence as cells: a text; an array's name, with the number
        of its equation if `cited`; the number alone (`Source`); or a formula."""
        if isinstance(word, str):
            yield word
        elif isinstance(word, Name):
            yield self.array(word.name)
            if word.cited and (cite := self.cite(word.name)):
                yield f" {cite}"
        else:
            yield self.cite(word.name) if isinstance(word, Source) else Formula(word)

    def _equations(self) -> Display:
        return self._shown(self.mixer.forms[self.form].equations)

    def _shown(self, equations: Iterable[Equation]) -> Display:
        """The equations of the mixer for display, with their ranges and their numbers in the paper,
        in plain text and in LaTeX."""
        shown = []
        for entry in equations:
            text = equation(entry, latex=False)
            tex = equation(entry, names=self.names)
            shown.append(
                Shown(
                    Math(text.left, tex.left),
                    Math(text.right, tex.right),
                    tuple(map(Math, text.ranges, tex.ranges)),
                    text.cite,
                )
            )
        return Display(tuple(shown))

    def _phase(self, phase: str) -> Iterator[Part]:
        """Yield what explains a phase's costs: equations of a loss, in backward and training-step;
        of gradients in backward, a sentence on them in training-step; none in training, the forward
        pass, and inference; then the answers of the questions with `place` "phase"."""
        system = system_of(self.mixer, self.form, self.convention.rewrites, phase)
        if phase in TRAINING_STEP:
            yield from self._loss(system)
        if phase == "backward":
            yield from self._gradients(system)
        elif phase in TRAINING_STEP:
            yield self._names_of_gradients(system)
        for question in QUESTIONS:
            if question.place == "phase":
                yield from self._told(question, phase)

    def _names_of_gradients(self, system: System) -> Paragraph:
        """The sentence that explains the names of a training step which the mixer's own equations
        lack: gradients, and arrays of the forward pass that are computed again."""
        again = dict.fromkeys(e.array.name for e in system.backward if e.array.again)
        line = (
            "The equations above, then the equations of the gradients: NAME.grad is the "
            "gradient of NAME"
        )
        if again:
            line += f"; {', '.join(again)}: arrays of the forward pass, computed again"
        return Paragraph((f"{line}. The phase backward prints them.",))

    def _loss(self, system: System) -> Iterator[Part]:
        """Yield the equations that a loss adds to the forward pass; nothing without a loss, where
        the result is the mixer's own output."""
        result = system.mixer.role("output")
        if result.name not in self.mixer.arrays:
            yield Paragraph(("The loss that follows the output:",))
            yield self._shown(e for e in system.forward.equations if e.whole is result)

    def _gradients(self, system: System) -> Iterator[Part]:
        """Yield a paragraph on how gradients are derived, and the equations of the gradients."""
        forward = system.forward.equations
        divided = "quotient-gradient" in self.convention.rewrites
        yield Paragraph(
            (
                f"The gradient of an array has a bar; {self.convention.of_gradients}. "
                f"{TILDE if self.convention.backward.recompute else ''}A factor of a product "
                "gets the product's gradient times the other factor; in a quotient a/b, a gets "
                "the gradient divided by b, and b gets that times "
                f"{'a/b, divided again' if divided else 'the stored quotient'}; the argument of "
                "a function gets the gradient times the slope, from the stored result where "
                "possible; each term of a sum gets the sum's gradient.",
            )
        )
        yield self._shown(e for e in system.equations if e not in forward)

    def _forms(self) -> Iterator[Part]:
        """Yield an item for each form: whether it has one-token inference, or why not; then a
        sentence on each other form against this one, in each phase."""
        for name in self.mixer.forms:
            system = system_of(self.mixer, name, (), "inference")
            reason = inference_reason(system)
            default = " (the default)" if name == self.mixer.default_form else ""
            has = f"no one-token inference: {reason}" if reason else "has one-token inference"
            yield Paragraph((f"{name}{default}: {has}.",), item=True)
        for phase in self.phases:
            for other in self.mixer.forms:
                if other != self.form:
                    yield from self._against(other, phase)

    def _against(self, other: str, phase: str) -> Iterator[Part]:
        """Yield a paragraph that says where this form takes fewer operations than the form `other`,
        as a condition on the sizes, or else by ranges of lengths, and how many both take at these
        sizes. Nothing if a form has no answer in the phase at these sizes."""
        forms = [answers(self.mixer, name, phase, self.convention) for name in (self.form, other)]
        if any(about.beyond(self.sizes) for about in forms):
            return
        over = usual_size(phase)
        letters = {x for name in (self.form, other) for x in letters_of(self.mixer, phase, name)}
        free = letters - {over, *self.mixer.given}
        at_sizes = Crossover(
            tuple(forms), FIGURES["total"], over, {x: self.sizes[x] for x in sorted(free)}
        )
        try:
            values = at_sizes.values(self.sizes[over]).values()
        except Unanswered:
            return
        numbers = f"{self.form} takes {{:,}}, {other} {{:,}}".format(*values)
        open_ = replace(at_sizes, given={"b": self.sizes["b"]})
        lengths: Line = ()
        words = _fewer(self.form, other, open_, self.names or {})
        if not words:
            words = (f"whether {self.form} or {other} takes fewer operations depends on the sizes",)
            ranges = _ranges(self.form, other, at_sizes)
            lengths = (" With all sizes but ", letter(over), " fixed, ", *ranges, ".")
        here = f". At these sizes {numbers}."
        yield Paragraph((f"{OCCASIONS[phase]}, ", *words, here, *lengths))


COST_COLUMNS = (
    Column("cost", "cost", numeric=False, names=True),
    Column("number", "number"),
    Column("formula", "formula", numeric=False, wide=True),
)


def summarised(case: Case, *, anywhere: bool) -> list[Figure]:
    """The figures of the table of costs that opens an explanation: those that a default table
    shows for the case, without ratios; with `anywhere` those that are equal in all phases, which
    the introduction tells, else the others."""
    return [
        figure
        for question in QUESTIONS
        for figure in question.figures
        if anywhere == (question.place == "introduction")
        and figure.kind in ("number", "names", "steps")
        and case.phase in figure.phases
        and figure.usual([case])
    ]


def _header(figure: Figure) -> str:
    """The name of a figure in the table of costs, with its unit: amounts are in elements."""
    name = " ".join((figure.header or figure.name).split()).partition(" (")[0]
    return f"{name} (elements)" if figure.unit in ("elements", "bytes") else name


def _rows(case: Case, figure: Figure) -> Iterator[Row]:
    """Yield the rows of a figure: its name, its number at the case's sizes, and its formula, or why
    it has none; a row for each part of a figure with names, such as `erf`; of a critical path, the
    length as number and formula, and the steps behind the formula."""
    batch = {letter: size for letter, size in case.sizes.items() if letter == "b"}
    symbolic = replace(case, sizes=batch, symbolic=True)
    if figure.kind == "names":
        numbers, formulas = case.parts(figure), symbolic.parts(figure)
        if not isinstance(numbers, Missing) and not isinstance(formulas, Missing):
            yield from ((name, cell(numbers[name]), cell(formulas[name])) for name in numbers)
            return
    number = case.figure(figure)
    if isinstance(number, CriticalPath):
        count = Formula(number.length)
        yield _header(figure), number.length.at(case.sizes), listed([count, steps(number)], ": ")
        return
    formula = symbolic.figure(figure)
    if isinstance(number, Searched):
        formula = Missing(f"{FOUND} (no formula: {number.reason})")
    elif isinstance(formula, Missing) and not isinstance(number, Missing):
        formula = Missing(f"no formula: {formula.reason}")
    yield _header(figure), cell(number), cell(formula)


def _fewer(form: str, other: str, about: Crossover, names: Names) -> Line:
    """A clause that says where `form` takes fewer operations than `other`: never, always, or under
    a condition on the sizes; or that both take equally many. () if the condition is not derived,
    has several cases or a square root. `names`: size letter -> its symbol in LaTeX."""
    try:
        own, rival = (each.cases for each in about.conditions)  # where `form`, `other` takes fewer
    except Unanswered:
        return (f"{form} takes as many operations as {other}",)
    except SizeError:
        return ()
    if not own and not rival:
        return (f"{form} takes as many operations as {other}",)
    if not own:
        return (f"{form} never takes fewer operations than {other}",)
    if own == (Holding((), frozenset()),):
        return (f"{form} always takes fewer operations than {other}",)
    bounds = [bound for case in (*own, *rival) for bound in case.bounds]
    if len(own) > 1 or any(bound.root.terms for bound in bounds):
        return ()
    many: Line = ()
    # a single bound of one size, such as l > d: both forms take as many operations at l = d; if the
    # other form never takes fewer, at all l <= d (of l > 1, only l = 1 is left). A bound with a
    # number as divisor (`Bound.below`), such as t > 3/4 + d, is no whole size
    if (
        own[0].bounds
        and len(bounds) < 3
        and not own[0].where
        and [*bounds[0].below.terms.values()] == [1]
    ):
        alone = rival or bounds[0].above == 1
        equal = "=" if alone else "<=" if bounds[0].relation == ">" else ">="
        many = (", as many where ", _condition(replace(bounds[0], relation=equal), names))
    fewer = _condition(own[0], names)
    return (f"{form} takes fewer operations than {other} where ", fewer, *many)


def _condition(of: Bound | Holding, names: Names) -> Math:
    """A condition on sizes as a cell."""
    return Math(of.written(ORDERED), of.written(Latex(names)))


def _ranges(form: str, other: str, about: Crossover) -> Line:
    """A clause that says at which lengths `other` takes fewer operations than `form` (the first of
    `about.names`), in the first `MANY` ranges: "B takes fewer operations than A for l = 53..64 and
    from l = 79 on", or "at no length"; that both take equally many at every length; that the
    remainder of the length decides; or why no ranges are derived."""
    try:
        # the second name is the other form's, which takes fewest alone in these ranges
        found = [one for one in about.ranges if one.least == about.names[1:]]
    except Unanswered:
        return (f"{form} takes as many operations as {other} at every length",)
    except Unsupported as reason:
        return (f"no ranges are derived: {reason}",)
    if steps := {one.step for one in about.ranges if one.step > 1}:
        lead = f"{form} or {other} takes fewer operations, as the remainder of "
        return (lead, letter(about.over), f" by {lcm(*steps)} decides")
    said = [_range(about, one) for one in found[:MANY]]
    if len(found) > MANY:
        said.append((f"in {len(found) - MANY:,} more ranges",))
    joined = [listed(said[:-1]), said[-1]] if len(said) > 1 else said or [("at no length",)]
    return (f"{other} takes fewer operations than {form} ", *listed(joined, " and "))


MANY = 10
"""The most ranges of lengths in a sentence."""


def _range(about: Crossover, one: Stretch) -> Line:
    """A range of lengths as a clause: `for l = 53..64`, `from l = 79 on`."""
    first, over = str(one.first), letter(about.over)
    if about.goes_on(one):
        return ("from ", Equal((over, first)), " on")
    if one.last == one.first:
        return ("for ", Equal((over, first)))
    several = Math(f"{first}..{one.last}", rf"{first}, \dots, {one.last}")
    return ("for ", Equal((over, several)))
