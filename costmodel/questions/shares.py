"""The operations of each equation, as counted here or by a peer (another tool's counter), and the
section of `explain` that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Equation, Mixer, System
from costmodel.language.functions import CLASSES
from costmodel.language.notation import Notation
from costmodel.program.conventions import PEERS
from costmodel.program.phases import TRAINING_STEP, IterationDomain, iteration_domains
from costmodel.questions.counting import derivation
from costmodel.questions.counting.by_equation import count_equations, count_instances
from costmodel.questions.counting.counts import Counts
from costmodel.questions.counting.peers import peer_counts
from costmodel.questions.question import (
    BATCH,
    Case,
    Explained,
    Listing,
    Name,
    Said,
    Sentence,
    Written,
)
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.printing import identifier

CLASS_WORDS = {"mul": "multiplications", "add": "additions", "div": "divisions",
               "exp": "exponentiations"}  # fmt: skip


def peer_equations(mixer: Mixer, phase: str, form: str | None, peer: str) -> Mapping[str, Counts]:
    """Array as the mixer's author wrote it -> the operations that a peer (the counter of another
    tool) counts for its equation, gradients included. A peer counts masked pairs too, hence
    `dense`."""
    one_pass = "inference" if phase == "inference" else "training"
    return peer_counts(system_of(mixer, form, ("dense",), one_pass), phase, peer)


Row = tuple[Said, ...]
"""The cells of a table's row: the equation's name, then a number or formula per column."""


@dataclass(frozen=True)
class Shares:
    """The operations of one phase by equation."""

    case: Case

    @cached_property
    def system(self) -> System:
        """The equations of the phase."""
        about = self.case.about
        return system_of(about.mixer, about.form, about.convention.rewrites, about.phase)

    @cached_property
    def counts(self) -> Mapping[str, Counts]:
        """Array as the mixer's author wrote it -> its operations by class: as a peer (the counter
        of another tool) counts them, if the convention names one."""
        about, convention = self.case.about, self.case.about.convention
        if convention.peer:
            return peer_equations(about.mixer, about.phase, about.form, convention.peer)
        return count_equations(self.system, about.phase, convention.accounting)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the tables: the classes of operations that occur, "once" if there is work
        on weights alone, and "total"."""
        found = {c for counts in self.counts.values() for c in counts.classes}
        ordered = [c for c in CLASSES if c in found] + sorted(found - set(CLASSES))
        once = any(counts.once and counts.once.classes for counts in self.counts.values())
        return (*ordered, *(("once",) if once else ()), "total")

    def value(self, name: str, column: str) -> Exact:
        """The number of operations of the equation of array `name` for one sequence: of the class
        `column`, on weights alone ("once"), or of all ("total")."""
        counts = self.counts[name]
        once = counts.once.exact_total if counts.once else Exact()
        if column in ("once", "total"):
            return once if column == "once" else counts.exact_total
        return counts.exact(column)

    def of_batch(self, name: str, column: str) -> Exact:
        """The number of operations of the equation of array `name` in a column (a class, "once" or
        "total") for b sequences: work on weights alone is counted once, and the gradients of
        weights take b - 1 further additions per entry, which add up the gradients of the sequences.
        """
        own = self.value(name, column)
        if column == "once":
            return own
        found = own * BATCH
        if column == "total":
            found = found - self.value(name, "once") * (BATCH - 1)
        if column in ("add", "total"):
            found = found + self.counts[name].joined * (BATCH - 1)
        return found

    def number(self, name: str, column: str) -> int:
        """`of_batch` at the sizes."""
        return self.of_batch(name, column).at(self.case.sizes)

    def parts(self) -> Explained:
        """Yield the section of `explain` on operations: the sums and their closed forms, tables by
        equation of formulas (all these with --full only) and of numbers with shares, and a sentence
        on a peer's gradients or, without a peer, on the classes that do not occur."""
        yield from self._derivation()
        yield replace(self._grid("Operations by equation", self._formulas()), detail=True)
        numbers = self._grid("Operations by equation, in numbers", self._numbers())
        note = "in brackets: the equation's share of its column, rounded to 0.1 %"
        yield replace(numbers, notes=(*numbers.notes, note))
        absent = [CLASS_WORDS[c] for c in CLASSES if c not in self.columns]
        peer = self.case.about.convention.peer
        if peer and self.case.phase in TRAINING_STEP:
            words = (
                f"{peer}: {PEERS[peer].gradients}; the counts stand at the equation of the "
                "forward pass"
            )
            yield Sentence((f"{words}.",))
        if absent and not peer:
            yield Sentence((f"There are no {' and no '.join(absent)}.",))

    def _grid(self, title: str, rows: tuple[Row, ...]) -> Listing:
        """A table of these rows, with a column for the equation and for each of `columns`."""
        columns = (("equation", "equation", False), *((name, name, True) for name in self.columns))
        return Listing(title, columns, rows, self._notes())

    def _notes(self) -> tuple[str, ...]:
        """The notes of a table: one, that the columns of single classes leave out work on weights
        alone, which the total includes; () without such work."""
        if "once" not in self.columns:
            return ()
        classes = ", ".join(name for name in self.columns if name not in ("once", "total"))
        work = "the work done once for the weights (column once)"
        return (f"once: {classes} leave out {work}; total includes it",)

    def _formulas(self) -> tuple[Row, ...]:
        """A row of formulas per equation, for one sequence, and a row "all" with their sums."""
        rows: list[Row] = [
            (Name(n), *(self.value(n, c) for c in self.columns)) for n in self.counts
        ]
        sums = []
        for column in self.columns:
            total = Exact()
            for name in self.counts:
                total = total + self.value(name, column)
            sums.append(total)
        return (*rows, ("all", *sums))

    def _numbers(self) -> tuple[Row, ...]:
        """A row per equation of numbers, for b sequences, with their shares of the column; and a
        row "all" with their sums."""
        sums = {c: sum(self.number(n, c) for n in self.counts) for c in self.columns}
        rows: list[Row] = [
            (Name(n), *(_share(self.number(n, c), sums[c]) for c in self.columns))
            for n in self.counts
        ]
        return (*rows, ("all", *(f"{total:,}" for total in sums.values())))

    def _derivation(self) -> Explained:
        """Yield a sentence and a tuple of the equations `class(array) = sum = closed form`, one per
        class of operations and equation. Nothing for a peer's counts; only a sentence with the
        reason if the points of an equation are no product of ranges."""
        if self.case.about.convention.peer:
            return
        shown, accounting = [], self.case.about.convention.accounting
        try:
            for parts in self._written():
                terms: dict[str, list[derivation.Sum]] = {}
                closed: dict[str, Exact] = {}
                for part in parts:
                    for name, pieces in derivation.sums(part, accounting).items():
                        terms[name] = terms.get(name, []) + pieces
                    for name, number in count_instances(part, accounting).items():
                        closed[name] = closed.get(name, Exact()) + number
                for name in sorted(terms, key=_class_order):
                    value = closed.get(name, Exact())
                    shown.append(_written(parts[0].equation, name, terms[name], value))
        except Unsupported as reason:
            words = f"The sums before their closed forms are not printed: {reason}."
            yield Sentence((words,), detail=True)
            return
        yield Sentence(("Counts are sums over the ranges of the equations:",), detail=True)
        yield tuple(shown)

    def _written(self) -> Iterator[list[IterationDomain]]:
        """Yield the equations with the points of their indices that the phase executes, in one list
        for each equation of the author. An index over a union of ranges makes several equations,
        which stand in one list."""
        parts = iteration_domains(self.system, self.case.phase)
        for written in self.system.written:
            own = [part for part in parts if part.equation in written]
            yield from [own] if len(written) > 1 and own else [[part] for part in own]


def explained(case: Case) -> Explained:
    """Yield the section of `explain` on a case's operations; if counts are not derived, a sentence
    with the reason."""
    try:
        yield from list(Shares(case).parts())
    except (Unsupported, Unanswered) as error:
        yield Sentence((f"Counts are not derived: {error}.",))


def _written(equation: Equation, name: str, sums: list[derivation.Sum], value: Exact) -> Written:
    """The printable equation `class(array) = sum = closed form`, or `class(array) = closed form`
    where no sum has a range. `name` is the class, `value` the closed form."""

    def left(notation: Notation) -> str:
        """`class(array)`; in LaTeX with the symbol of the author's array and the step of a
        composite."""
        array = equation.array
        if not notation.latex:
            return f"{name}({equation.name})"
        inside = array.latex or identifier((array, *array.made_for)[-1].name)
        if array.step and not array.latex:
            inside += rf",\,\mathrm{{{array.step}}}"
        return rf"\mathrm{{{name}}}({inside})"

    def right(notation: Notation) -> str:
        return " + ".join(s.printed(notation) for s in sums)

    return Written(left, right if any(s.ranges for s in sums) else None, value)


def _share(part: int, whole: int) -> str:
    """A number with its share of the whole, rounded half up to 0.1 %: "12 (3.4 %)"; without the
    share where one of them is 0."""
    if not whole or not part:
        return f"{part:,}"
    percent = Fraction(1000 * part, whole)
    tenths = int(percent + Fraction(1, 2))
    return f"{part:,} ({tenths // 10}.{tenths % 10} %)"


def _class_order(name: str) -> int:
    """Sort key: mul, add, div and exp in this order, then all other classes."""
    return CLASSES.index(name) if name in CLASSES else len(CLASSES)
