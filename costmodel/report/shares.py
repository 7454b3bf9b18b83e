"""The section of `explain` with operations by equation, and the sums that they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Equation, Mixer, System
from costmodel.language.functions import CLASSES
from costmodel.language.nodes import Array
from costmodel.language.notation import Notation
from costmodel.program.conventions import PEERS, Convention
from costmodel.program.phases import TRAINING_STEP, IterationDomain, iteration_domains
from costmodel.questions import derivation
from costmodel.questions.count import count_equations, count_instances, peer_equations
from costmodel.questions.counting.counts import Counts
from costmodel.questions.subject import system_of
from costmodel.report.document import (
    Column,
    Display,
    Formula,
    Line,
    Math,
    Note,
    Paragraph,
    Part,
    Shown,
    Table,
)
from costmodel.symbolic.piecewise import Exact, rational
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import Names, identifier

PHASE_TITLES = {
    "training": "Forward pass (the papers' training phase)",
    "inference": "One new token (the papers' inference phase)",
    "backward": "Backward pass",
    "training-step": "Training step (forward and backward pass)",
}


@dataclass(frozen=True)
class Subject:
    """The subject of an explanation: a form of a mixer at sizes, in phases, under a convention."""

    mixer: Mixer
    form: str
    phases: tuple[str, ...]
    sizes: Mapping[str, int]
    convention: Convention = Convention()
    names: Names | None = None
    optimiser: str | None = None
    """The optimiser whose state a training step holds; None if none is named."""

    def math(self, value: Exact | Poly | tuple[Poly, ...]) -> Formula:
        """A value as a cell."""
        return Formula(value)

    def array(self, name: str) -> Math:
        """The name of an array as a cell, with its LaTeX."""
        own = self._arrays[name].latex if name in self._arrays else ""
        return Math(name, own or identifier(name))

    @cached_property
    def _arrays(self) -> Mapping[str, Array]:
        """Name -> array, of the form and of all phases, gradients included."""
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


def lower(text: str) -> str:
    """A text with its first letter in lower case, for use within a sentence."""
    return text[:1].lower() + text[1:]


CLASS_WORDS = {"mul": "multiplications", "add": "additions", "div": "divisions",
               "exp": "exponentiations", "compare": "comparisons"}  # fmt: skip


@dataclass(frozen=True)
class Shares:
    """The operations of one phase by equation."""

    about: Subject
    system: System
    phase: str

    @cached_property
    def counts(self) -> Mapping[str, Counts]:
        """Array as the mixer's author wrote it -> its counts."""
        convention, about = self.about.convention, self.about
        if convention.peer:
            return peer_equations(about.mixer, self.phase, about.form, convention.peer)
        return count_equations(self.system, self.phase, convention.accounting)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The classes that occur, "once" if there is work on weights alone, and "total"."""
        found = {c for counts in self.counts.values() for c in counts.classes}
        ordered = [c for c in CLASSES if c in found] + sorted(found - set(CLASSES))
        once = any(counts.once and counts.once.classes for counts in self.counts.values())
        return (*ordered, *(("once",) if once else ()), "total")

    def value(self, name: str, column: str) -> Exact:
        """The operations of one equation in a column, for one sequence."""
        counts = self.counts[name]
        once = counts.once.exact_total if counts.once else Exact()
        if column in ("once", "total"):
            return once if column == "once" else counts.exact_total
        return counts.exact(column)

    def number(self, name: str, column: str) -> int:
        """`value` at the sizes, for b sequences; work on weights alone is not multiplied by b."""
        once = rational(self.value(name, "once"), self.about.sizes)
        own = rational(self.value(name, column), self.about.sizes)
        batch = self.about.sizes["b"]
        if column == "once":
            return int(own)
        return int((own - once) * batch + once if column == "total" else own * batch)

    def parts(self) -> Iterator[Part]:
        """The section: the sums, then tables of operations by equation, as formulas and numbers."""
        yield from self._derivation()
        yield self._grid("Operations by equation", self._formulas())
        numbers = self._grid("Operations by equation, in numbers", self._numbers())
        note = "in brackets: the equation's share of its column, rounded to 0.1 %"
        yield replace(numbers, notes=(*numbers.notes, Note((note,))))
        absent = [CLASS_WORDS[c] for c in CLASSES if c not in self.columns]
        peer = self.about.convention.peer
        if peer and self.phase in TRAINING_STEP:
            words = (
                f"{peer}: {PEERS[peer].gradients}; these stand at the equation of the forward pass"
            )
            yield Paragraph((f"{words}.",))
        if absent and not peer:
            yield Paragraph((f"There are no {' and no '.join(absent)}.",))

    def _grid(self, title: str, rows: tuple[Line, ...]) -> Table:
        columns = (
            Column("equation", "equation", numeric=False),
            *(Column(name, name) for name in self.columns),
        )
        title = f"{title}, {lower(PHASE_TITLES[self.phase])}"
        return Table(title, columns, rows, self._apart())

    def _apart(self) -> tuple[Note, ...]:
        """The note that single classes leave out work on weights alone, which the total has."""
        if "once" not in self.columns:
            return ()
        classes = ", ".join(name for name in self.columns if name not in ("once", "total"))
        work = "the work done once for the weights, which stands under once"
        return (Note((f"once: {classes} leave out {work}; total includes it",)),)

    def _formulas(self) -> tuple[Line, ...]:
        rows: list[Line] = [
            (self.about.array(n), *(self.about.math(self.value(n, c)) for c in self.columns))
            for n in self.counts
        ]
        sums = []
        for column in self.columns:
            total = Exact()
            for name in self.counts:
                total = total + self.value(name, column)
            sums.append(self.about.math(total))
        return (*rows, ("all", *sums))

    def _numbers(self) -> tuple[Line, ...]:
        sums = {c: sum(self.number(n, c) for n in self.counts) for c in self.columns}
        rows: list[Line] = [
            (self.about.array(n), *(_share(self.number(n, c), sums[c]) for c in self.columns))
            for n in self.counts
        ]
        return (*rows, ("all", *(f"{total:,}" for total in sums.values())))

    def _derivation(self) -> Iterator[Part]:
        """The equations `class(array) = sum = closed form`; nothing for a peer's counts."""
        if self.about.convention.peer:
            return
        shown, accounting = [], self.about.convention.accounting
        try:
            for parts in self._written():
                found: dict[str, list[derivation.Sum]] = {}
                closed: dict[str, Exact] = {}
                for part in parts:
                    for name, pieces in derivation.sums(part, accounting).items():
                        found[name] = found.get(name, []) + pieces
                    for name, number in count_instances(part, accounting).items():
                        closed[name] = closed.get(name, Exact()) + number
                for name in sorted(found, key=_class_order):
                    value = closed.get(name, Exact())
                    shown.append(self._shown(parts[0].equation, name, found[name], value))
        except Unsupported as reason:
            yield Paragraph((f"The sums before they are closed are not printed: {reason}.",))
            return
        yield Paragraph(("Counts are sums over the ranges of the equations:",))
        yield Display(tuple(shown))

    def _written(self) -> Iterator[list[IterationDomain]]:
        """The iteration domains, in one list per equation of the author (all ranges of a union)."""
        parts = iteration_domains(self.system, self.phase)
        for written in self.system.written:
            own = [part for part in parts if part.equation in written]
            yield from [own] if len(written) > 1 and own else [[part] for part in own]

    def _shown(
        self, written: Equation, name: str, sums: list[derivation.Sum], value: Exact
    ) -> Shown:
        text = " + ".join(s.printed(Notation(False, {})) for s in sums)
        tex = " + ".join(s.printed(Notation(True, self.about.names or {})) for s in sums)
        root = (written.array, *written.array.made_for)[-1]
        inside = written.array.latex or identifier(root.name)
        if written.array.step and not written.array.latex:
            inside += rf",\,\mathrm{{{written.array.step}}}"
        closed = self.about.math(value)
        left = Math(f"{name}({written.name})", rf"\mathrm{{{name}}}({inside})")
        if any(s.ranges for s in sums):
            return Shown(left, Math(text, tex), closed=closed)
        return Shown(left, closed)


def _share(part: int, whole: int) -> str:
    if not whole or not part:
        return f"{part:,}"
    percent = Fraction(1000 * part, whole)
    tenths = int(percent + Fraction(1, 2))
    return f"{part:,} ({tenths // 10}.{tenths % 10} %)"


def _class_order(name: str) -> int:
    return CLASSES.index(name) if name in CLASSES else len(CLASSES)
