"""The document of `explain`: a mixer's costs, traced to equations, steps and arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from costmodel.claims.crossover import Crossover
from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.notation import equation
from costmodel.paths.chains import STEP_WORDS
from costmodel.program.chosen_sizes import fit
from costmodel.program.phases import TRAINING_STEP, inference_reason
from costmodel.questions.critical_path import critical_path
from costmodel.questions.parameters import PARAMETERS
from costmodel.questions.question import Case, Name, Question, Said, answers
from costmodel.questions.registry import QUESTIONS
from costmodel.questions.state import STATE
from costmodel.questions.subject import system_of
from costmodel.report.document import (
    Cell,
    Column,
    Display,
    Equal,
    Heading,
    Math,
    Paragraph,
    Part,
    Shown,
    Table,
    letter,
)
from costmodel.report.shares import PHASE_TITLES, Shares, Subject, lower
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS

OCCASIONS = {
    "training": "In a forward pass",
    "inference": "For one new token",
    "backward": "In a backward pass",
    "training-step": "In a training step",
}
TILDE = "What is computed again of the forward pass has a tilde. "


@dataclass(frozen=True)
class Explanation(Subject):
    """The answers to all questions about a subject, as paragraphs, equations and tables."""

    def parts(self) -> list[Part]:
        """The whole explanation.

        Raises:
            SizeError: sizes that do not fit the mixer; EquationError: an unknown form.
        """
        system_of(self.mixer, self.form, (), "training")
        fit(self.mixer, self.sizes)
        found: list[Part] = [Heading(f"{self.mixer.title}, form {self.form}", 1)]
        found += [self._introduction(), *self._told(PARAMETERS, "training")]
        found += [Heading("Equations"), self._equations()]
        for phase in self.phases:
            found += [Heading(PHASE_TITLES[phase], 2), *self._phase(phase)]
        found += [
            Heading("State"),
            *self._told(STATE, "inference"),
            Heading("Forms"),
            *self._forms(),
        ]
        return found

    def _introduction(self) -> Paragraph:
        line: list[Cell] = [f"Source: {self.mixer.source}. " if self.mixer.source else ""]
        if self.mixer.aliases:
            line.append(f"Also called {', '.join(self.mixer.aliases)}. ")
        line.append("Sizes: ")
        for name in self.mixer.letters:
            line += [letter(name), f" {LETTERS[name].meaning}, "]
        if "n" in self.mixer.letters:
            line += [Equal((letter("h"), self.math(Poly.atom("d") / Poly.atom("n")))), ", "]
        line[-1] = f"{str(line[-1]).removesuffix(', ')}. Numbers are given at "
        for name, value in self.sizes.items():
            line += [Equal((letter(name), str(value))), ", "]
        line[-1] = ". "
        line.append(f"Convention {self.convention.title}: {self.convention.caption}.")
        return Paragraph(tuple(line))

    def _case(self, phase: str) -> Case:
        about = answers(self.mixer, self.form, phase, self.convention)
        return Case(about, self.sizes, symbolic=False, optimiser=self.optimiser)

    def _told(self, question: Question, phase: str) -> Iterator[Part]:
        """The sentences of a question about its answer, or the reason why there is no answer."""
        try:
            for sentence in question.sentences(self._case(phase)):
                line = tuple(cell for word in sentence.words for cell in self._cells(word))
                yield Paragraph(line, item=sentence.item)
        except Unanswered as error:
            yield Paragraph((f"{question.title}: none: {error}.",))
        except Unsupported as error:
            yield Paragraph((f"{question.title}: not derived: {error}.",))

    def _cells(self, word: Said) -> Iterator[Cell]:
        if isinstance(word, str):
            yield word
        elif isinstance(word, Name):
            yield self.array(word.name)
            if word.cited and (cite := self.cite(word.name)):
                yield f" {cite}"
        else:
            yield self.math(word)

    def _equations(self) -> Display:
        return self._shown(self.mixer.forms[self.form].equations)

    def _shown(self, equations: Iterable[Equation]) -> Display:
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
        try:
            system = system_of(self.mixer, self.form, self.convention.rewrites, phase)
        except Unanswered as error:
            yield Paragraph((f"It has none: {error}.",))
            return
        except Unsupported as error:
            yield Paragraph((f"It is not derived: {error}.",))
            return
        if phase in TRAINING_STEP:
            yield from self._loss(system)
        if phase == "backward":
            yield from self._gradients(system)
        elif phase in TRAINING_STEP:
            yield self._named(system)
        about = answers(self.mixer, self.form, phase, self.convention)
        if reason := about.unanswered or about.beyond(self.sizes):
            yield Paragraph((f"It has none: {reason}.",))
            return
        for question in QUESTIONS:
            if question.name == "count":
                yield from self._counts(system, phase)
            elif question.name == "critical_path":
                yield from self._path(phase)
            elif question not in (PARAMETERS, STATE):
                yield from self._told(question, phase)

    def _counts(self, system: System, phase: str) -> Iterator[Part]:
        try:
            yield from list(Shares(self, system, phase).parts())
        except (Unsupported, Unanswered) as error:
            yield Paragraph((f"Counts are not derived: {error}.",))

    def _named(self, system: System) -> Paragraph:
        """The meaning of names of a training step that the mixer's own equations do not have."""
        again = dict.fromkeys(e.array.name for e in system.backward if e.array.again)
        line = "The equations above, then those of the gradients: NAME.grad is the gradient of NAME"
        if again:
            line += f"; {', '.join(again)}: computed again of the forward pass"
        return Paragraph((f"{line}. The phase backward prints them.",))

    def _loss(self, system: System) -> Iterator[Part]:
        """The equations that a loss adds to the forward pass."""
        result = system.mixer.role("output")
        if result.name not in self.mixer.arrays:
            yield Paragraph(("The loss that follows the output:",))
            yield self._shown(e for e in system.forward.equations if e.whole is result)

    def _gradients(self, system: System) -> Iterator[Part]:
        """The equations of the gradients."""
        forward = system.forward.equations
        divided = "quotient-gradient" in self.convention.rewrites
        yield Paragraph(
            (
                f"The gradient of an array has a bar; {self.convention.backward.given}. "
                f"{TILDE if self.convention.backward.recompute else ''}A product hands "
                "on its gradient times the other factor, a quotient a/b its gradient over b, and "
                f"that times {'a/b, divided again' if divided else 'the stored quotient'}, a "
                "function its gradient times its slope, from the stored result where that is "
                "enough; a sum hands on its gradient as it is.",
            )
        )
        yield self._shown(e for e in system.equations if e not in forward)

    def _path(self, phase: str) -> Iterator[Part]:
        """The critical path, step by step."""
        sizes = {letter: size for letter, size in self.sizes.items() if letter != "b"}
        try:
            path = critical_path(self.mixer, phase, self.form, self.convention, sizes)
        except Unsupported as error:
            yield Paragraph((f"Critical path: not derived: {error}.",))
            return
        yield Paragraph(
            (
                f"Critical path: {path.words}. No chain is longer than its {path.length} steps; "
                f"others may be as long.",
            )
        )
        rows = tuple(
            (str(k), STEP_WORDS.get(step, step), times, self.array(name), self.cite(name))
            for k, (step, name, times) in enumerate(path.places, 1)
        )
        repeated = (Column("times", "times"),) if any(r[2] != "1" for r in rows) else ()
        listed: tuple[tuple[Cell, ...], ...] = tuple(
            row if repeated else (*row[:2], *row[3:]) for row in rows
        )
        columns = (
            Column("number", "step"),
            Column("step", "operation", numeric=False),
            *repeated,
            Column("equation", "computes", numeric=False),
            Column("cite", "equation", numeric=False),
        )
        yield Table(f"Critical path, {lower(PHASE_TITLES[phase])}", columns, listed)

    def _forms(self) -> Iterator[Part]:
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
        """Where this form takes fewer operations than another; nothing if one lacks the phase."""
        about = Crossover(self.mixer, self.form, other, phase, self.convention)
        if any(found.beyond(self.sizes) for found in about.answers):
            return
        try:
            numbers = f"{self.form} takes {{:,}}, {other} {{:,}}".format(*about.at(self.sizes))
        except Unanswered:
            return
        lengths = self._over_lengths(about) if about.is_open else ""
        words = f"{OCCASIONS[phase]}, {about.words}. At these sizes {numbers}.{lengths}"
        yield Paragraph((words,))

    def _over_lengths(self, about: Crossover) -> str:
        """The lengths at which the other form takes fewer operations, all other sizes fixed."""
        other = Crossover(self.mixer, about.other, about.form, about.phase, self.convention)
        sizes = {name: size for name, size in self.sizes.items() if name not in ("l", "t")}
        try:
            return f" With all sizes but l as they are, {other.over_lengths(sizes)}."
        except (Unsupported, Unanswered):
            return ""
