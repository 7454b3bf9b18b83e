"""The document of `explain` for a network: its blocks, and what each of them costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from costmodel.networks.answers import PartAnswers
from costmodel.networks.blocks import Use
from costmodel.networks.network import Network
from costmodel.networks.part_costs import Counting, own_parameters
from costmodel.questions.question import Figure, Missing, Sentence
from costmodel.questions.registry import FIGURES, QUESTIONS
from costmodel.report.document import Cell, Column, Formula, Heading, Line, Paragraph, Part, Table
from costmodel.report.explanation import PHASE_TITLES
from costmodel.report.mixer_document import cell
from costmodel.report.networks.captions import described, source_lines
from costmodel.report.networks.document import cost_table, heading_of
from costmodel.report.networks.table import Line as SheetLine, Request, Sheet, sheet_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of

IN_BLOCKS = ("total", "state")
"""The figures that are shown block by block: sums over the parts of a block."""


@dataclass(frozen=True)
class Group:
    """Equal blocks: their name, how many there are, and part -> how often one block has it."""

    name: str
    times: Poly
    parts: Mapping[Use, int]


@dataclass(frozen=True)
class NetworkExplanation:
    """A network's answers at sizes in phases under a convention, block by block."""

    network: Network
    phases: tuple[str, ...]
    sizes: Mapping[str, int]
    counting: Counting

    def parts(self) -> Iterator[Part]:
        """Yield the document's parts: title, description, source, sizes; an item for each group of
        blocks; for each phase tables of costs by block and by part, and its other figures."""
        net = self.network
        yield Heading(f"{heading_of(net)}, block by block", 1)
        yield Paragraph((f"{described(net.described)}.",))
        for line in source_lines(net.described):
            yield Paragraph((f"{line}.",))
        numbers = ", ".join(f"{letter} = {size}" for letter, size in self.sizes.items())
        title = self.counting.convention.title
        yield Paragraph((f"Numbers are given at {numbers}. Convention {title}: "
                         f"{self.counting.caption(dropout=net.described.dropout)}.",))  # fmt: skip
        yield Heading("Blocks")
        for group in self.groups:
            yield self._in_words(group)
        for phase in dict.fromkeys(("training", *self.phases)):
            sheet = self._sheet(phase)
            if phase == "training":  # the number of parameters, whichever phases are asked for
                yield from self._told(sheet, "introduction")
            if phase not in self.phases:
                continue
            yield Heading(PHASE_TITLES[phase], 2)
            yield self._of_blocks(sheet)
            yield cost_table(sheet)
            yield from self._told(sheet, "phase", *(["end"] if phase == "inference" else []))

    def _in_words(self, group: Group) -> Paragraph:
        """An item for a group of equal blocks: how many they are (if not 1), the parts of one, and
        its parameters, without those counted at another part, as a formula and a number."""
        names = [f"{n} x {use.label}" if n > 1 else use.label for use, n in group.parts.items()]
        times: Line = (" (", Formula(group.times), " of them)") if group.times != ONE else ()
        own = sum_of(own_parameters(use) / use.copies * n for use, n in group.parts.items())
        held: Line = ("; parameters: ", Formula(own)) if own.terms else ()
        if own.letters:
            held = (*held, f" = {own.at(self.sizes):,}")
        return Paragraph((group.name, *times, f": {', '.join(names)}", *held, "."), item=True)

    @property
    def groups(self) -> tuple[Group, ...]:
        """What a sequence passes through in order: of each stack the entry, each different layer
        with the number of equal ones, and the end of the layers; then the ending (head, loss)."""
        net = self.network
        blocks = []  # (name, how often, section of the network, parts)
        for stack in net.described.stacks:
            section = f"{stack.section}: " if stack.section else ""
            blocks.append((f"{section}entry", ONE, stack.section, stack.entry))
            number = LAYERS if net.layers is None else Poly.of(net.layers)
            for block, times in stack.numbers(number):
                uses = tuple(
                    use for one in block.sublayers for use in one.around if use is not None
                )
                blocks.append((f"{section}layer of {block.name}", times, stack.section, uses))
            if stack.end:
                blocks.append((f"{section}end of the layers", ONE, stack.section, stack.end))
        if net.described.ending:
            blocks.append(("ending", ONE, "", net.described.ending))
        groups = []
        for name, times, section, uses in blocks:
            parts: dict[Use, int] = {}  # part -> how often the block has it
            for use in uses:
                part = net.use(section, use)
                parts[part] = parts.get(part, 0) + 1
            groups.append(Group(name, times, parts))
        return tuple(groups)

    def _sheet(self, phase: str) -> Sheet:
        described = self.network.described
        request = Request(described, phases=(phase,), counting=self.counting)
        return sheet_of(request, self.network, phase, self.sizes)

    def _of_blocks(self, sheet: Sheet) -> Table:
        """The table of costs by block: a row for each group of equal blocks, with its figures for
        one block and for all, and a row for the sums of gradients between blocks (`total` alone).
        """
        names = [name for name in IN_BLOCKS if sheet.total.phase in FIGURES[name].phases]
        columns = [Column("block", "block", numeric=False, names=True), Column("times", "times")]
        for name in names:
            columns += [
                Column(name, f"{name} of one"), Column(f"{name}_all", f"{name} of all"),
            ]  # fmt: skip
        rows: list[tuple[Cell, ...]] = []
        for group in self.groups:
            row: list[Cell] = [group.name, group.times.at(self.sizes)]
            for name in names:
                for times in (ONE, group.times):
                    row.append(cell(self._of_group(sheet.lines, group, FIGURES[name], times)))
            rows.append(tuple(row))
        between = [line for line in sheet.lines if _is_sum(line)]
        if between:
            total = sum(value for one in between if isinstance(value := one.value("total"), int))
            pairs = [("", total) if name == "total" else ("", "") for name in names]
            rows.append(("sums of gradients", "", *(x for pair in pairs for x in pair)))
        return Table("Costs by block", tuple(columns), tuple(rows))

    @cached_property
    def _places(self) -> Mapping[Use, int]:
        """Part -> how often the part stands in all blocks together: of gpt-2's FFN, L."""
        found = Counter[Use]()
        for group in self.groups:
            times = group.times.at(self.sizes)
            found.update({use: times * number for use, number in group.parts.items()})
        return found

    def _of_group(
        self, lines: Sequence[SheetLine], group: Group, figure: Figure, times: Poly
    ) -> int | Fraction | Missing:
        """A figure of `times` of the equal blocks of a group: for each part of the block its share
        of the part's figure over all runs; the first `Missing` part if one has no value."""
        found = Fraction(0)
        for line in lines:
            part = line.about
            if not isinstance(part, PartAnswers) or part.use not in group.parts:
                continue
            value = line.figure(figure)
            if isinstance(value, Missing):
                return value
            assert isinstance(value, (int, Fraction))
            share = times.at(self.sizes) * group.parts[part.use]
            # `copies` would be fewer than the places of a part where layers share parameters
            found += Fraction(value) * share / self._places[part.use]
        return found.numerator if found.denominator == 1 else found

    def _told(self, sheet: Sheet, *places: str) -> Iterator[Part]:
        """Yield the sentences of the questions whose `place` in the document is one of `places`:
        one for each figure that is a number or a list of steps and has a value. Operations are left
        out, since they stand in tables. Amounts are in elements, also where tables have bytes."""
        case = replace(sheet.total, dtypes=None, optimiser=None)
        for question in QUESTIONS:
            if question.place not in places or question.name == "count":
                continue
            for figure in question.figures:
                if figure.within or case.phase not in figure.phases:
                    continue
                if isinstance(case.figure(figure), Missing):
                    continue
                if figure.kind == "number":
                    yield self._sentence(figure.sentence(case))
                elif figure.kind == "steps" and question.explained is not None:
                    said = (x for x in question.explained(case) if isinstance(x, Sentence))
                    yield from map(self._sentence, said)

    def _sentence(self, said: Sentence) -> Paragraph:
        words = [Formula(x) if isinstance(x, (Exact, Poly, tuple)) else x for x in said.words]
        return Paragraph(tuple(x for x in words if isinstance(x, (str, Formula))))


ONE, LAYERS = Poly.of(1), Poly.atom("L")


def _is_sum(line: SheetLine) -> bool:
    return isinstance(line.about, PartAnswers) and line.about.made is not None
