"""The document of `explain A --against B`: the operations of two mixers, equation by equation.

An equation has the name of the array that its author defines; the equations into which a composite
(a softmax) is expanded share the name of the composite's array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import System
from costmodel.language.functions import CLASSES
from costmodel.language.nodes import Array
from costmodel.program.chosen_sizes import fit
from costmodel.questions.shares import Shares
from costmodel.questions.subject import system_of, well_formed_at
from costmodel.report.document import (
    Cell,
    Column,
    Equal,
    Formula,
    Heading,
    Line,
    Note,
    Paragraph,
    Part,
    Row,
    Section,
    Table,
    letter,
)
from costmodel.report.explanation import OCCASIONS, PHASE_TITLES, Explanation
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

Pair = tuple[str, str]
"""The names of two equations that are compared; "" if only the other mixer has the equation."""

LAST = ("once", "total")
"""The columns after those of the classes of operations, such as mul."""

OUTSIDE = ("parameter", "buffer")
"""The roles of arrays that the alignment leaves out of what an equation reads."""


@dataclass(frozen=True)
class ByName:
    """The arrays of one phase by name, and what each equation reads."""

    shares: Shares

    @property
    def system(self) -> System:
        """The equations of the phase."""
        return self.shares.system

    @cached_property
    def whole(self) -> Mapping[str, Array]:
        """Name of an equation -> the array that its author defines."""
        return {e.part_of: e.whole for e in self.system.equations}

    @cached_property
    def reads(self) -> Mapping[str, frozenset[str]]:
        """Name of an equation -> the names of the other equations and of the inputs that it reads;
        parameters and buffers are left out."""
        owner = {e.array.name: e.part_of for e in self.system.equations}
        reads: dict[str, set[str]] = {}
        for equation in self.system.equations:
            arrays = (a for a in equation.value.arrays if a.role not in OUTSIDE)
            names = {owner.get(array.name, array.name) for array in arrays}
            reads.setdefault(equation.part_of, set()).update(names - {equation.part_of})
        return {name: frozenset(names) for name, names in reads.items()}

    @cached_property
    def made_for(self) -> Mapping[tuple[str, str, str], str]:
        """(array, how, step) -> the name of the array that was derived from this array in this way:
        the key ("Q", "gradient", "") leads to "Q.grad", the gradient of Q."""
        arrays = (*self.whole.values(), *self.system.mixer.arrays.values())
        origins = {array.name: array.origin for array in arrays if array.origin}
        return {(o.of.name, o.how, o.step): name for name, o in origins.items()}

    def of_role(self, role: str) -> list[str]:
        """The arrays of a role, in the order in which they are declared."""
        return [a.name for a in self.system.mixer.arrays.values() if a.role == role]

    def operations(self, name: str) -> Mapping[str, Exact]:
        """Class -> operations of an equation, without zeros: {"mul": d*l**2} for scores."""
        found = {column: self.shares.value(name, column) for column in self.shares.columns}
        return {column: value for column, value in found.items() if not value.is_zero}


def aligned(one: Shares, two: Shares) -> list[Pair]:
    """Pairs (equation of the first mixer, equation of the second) that are compared: each equation
    of the first mixer in order, with its partner or "", then the rest of the second, after "".

    Inputs, contexts and outputs match in order, and arrays made for matching arrays, such as
    gradients. The partner of any other equation is the first of these that is not yet taken:

    1. the equation of equal name, if both read matching arrays;
    2. an equation whose name differs in its index or in capitals (K, K_p, k), if both read matching
       arrays and have operations of the same classes (mul, add, exp);
    3. the equation of equal name, if both read an array in common (matching or of equal name) or
       the mixers are variants of one mixer;
    4. an equation of any name, if both read matching arrays and have equally many operations.
    """
    left, right = ByName(one), ByName(two)
    partner: dict[str, str] = {}
    for role in ("input", "context", "output"):
        partner |= dict(zip(left.of_role(role), right.of_role(role), strict=False))
    variants = left.system.mixer.base == right.system.mixer.base
    free = dict.fromkeys(two.counts)

    def counterpart(name: str) -> str:
        """The name of the array of the second mixer (`right`) that matches the array `name` of the
        first (`left`): its `partner`, or of a derived array the same of what it is derived from,
        `K_p.grad` for `K.grad` once K and K_p are partners; "" if none."""
        array = left.whole.get(name) or left.system.mixer.arrays.get(name)
        if name in partner or array is None or array.origin is None:
            return partner.get(name, "")
        made = array.origin
        of = counterpart(made.of.name)
        return right.made_for.get((of, made.how, made.step), "")

    def match(name: str) -> str:
        """The partner of the equation `name` of the first mixer, among the equations of the second
        without a partner so far (`free`): the `counterpart` of its array, else the first equation
        by the rules of `aligned`, in order; "" if none. Rules 2 and 4 pass over a name that the
        first mixer has too: rules 1 and 3 are for equal names. `ways`: the finds of each rule."""
        if (known := counterpart(name)) in free:
            return known
        wanted = {counterpart(n) for n in left.reads[name]}
        alike = [n for n in free if n not in one.counts and right.reads[n] == wanted]
        stems = [n for n in alike if stem(n) == stem(name)]
        work = left.operations(name)
        ways = (
            [name] if name in free and right.reads[name] == wanted else [],
            [n for n in stems if right.operations(n).keys() == work.keys()],
            [name] if name in free and (variants or right.reads[name] & (wanted | left.reads[name]))
            else [],
            [n for n in alike if right.operations(n) == work],
        )  # fmt: skip
        return next((found for way in ways for found in way), "")

    pairs = []
    for name in one.counts:
        if found := match(name):
            partner[name] = found
            del free[found]
        pairs.append((name, found))
    return [*pairs, *(("", name) for name in free)]


def _in_order(classes: Set[str]) -> list[str]:
    """Columns in the order of tables: mul, add, ... (`CLASSES`), others by name, then `LAST`."""
    others = sorted(classes - {*CLASSES, *LAST})
    return [c for c in (*CLASSES, *others, *LAST) if c in classes]


def stem(name: str) -> str:
    """A name without its index, in lower case.

    >>> stem("K_p"), stem("Q.grad")
    ('k', 'q.grad')
    """
    return "".join(re.split(r"_[^.]*", name)).lower()


@dataclass(frozen=True)
class Differences:
    """The operations of one explained mixer minus those of another, in the same phases.

    With `symbolic`, differences are formulas in the sizes that are not in `given`; b is 1 unless
    given. `ties`: size -> the size that takes its place in formulas.
    """

    one: Explanation
    two: Explanation
    symbolic: bool = False
    given: Mapping[str, int] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> Pair:
        """The names of the two mixers; of two forms of one mixer, the names of the forms."""
        if self.one.mixer is self.two.mixer and self.one.form != self.two.form:
            return self.one.form, self.two.form
        return self.one.mixer.name, self.two.mixer.name

    @property
    def sides(self) -> tuple[tuple[str, Explanation], ...]:
        """The name and the explanation of both mixers."""
        return tuple(zip(self.names, (self.one, self.two), strict=True))

    def parts(self) -> list[Part]:
        """The parts of the document: an item about each mixer, the convention, and a section for
        each phase, with the reasons in place of a table where a mixer has no answer.

        Raises:
            SizeError: numbers that do not fit; EquationError: an unknown or malformed form.
            Unanswered: in no phase do both mixers have an answer.
        """
        for _, side in self.sides:
            system_of(side.mixer, side.form, (), "training")
            if not self.symbolic:
                fit(side.mixer, side.sizes)
                well_formed_at(side.mixer, side.form, side.sizes)
        parts: list[Part] = [Heading(f"{self.names[0]} against {self.names[1]}", 1)]
        parts += [Paragraph(self._about(*side), item=True) for side in self.sides]
        convention = self.one.convention
        parts.append(Paragraph((f"Convention {convention.title}: {convention.caption}.",)))
        reasons: list[str] = []
        for phase in self.one.phases:
            parts.append(Heading(PHASE_TITLES[phase]))
            shares, missing = self._of_sides(phase)
            if missing:
                parts += [Paragraph((f"There is no answer for {one}.",)) for one in missing]
                reasons += missing[:1]
            else:
                parts += self._phase(phase, *shares)
        if len(reasons) == len(self.one.phases):
            raise Unanswered(reasons[0])
        return parts

    def _about(self, name: str, side: Explanation) -> Line:
        """The sentence about one mixer: title, form, and its sizes."""
        line: list[Cell] = [f"{name}: {side.mixer.title}, form {side.form}"]
        for size, value in self._at(side).items():
            line += [", ", Equal((letter(size), str(value)))]
        for size, other in self._tied(side).items():
            line += [", ", Equal((letter(size), letter(other)))]
        return (*line, ".")

    def _at(self, side: Explanation) -> Mapping[str, int]:
        """The sizes that get numbers on one side (a mixer): all of them; with `symbolic` only b,
        the given sizes, and those in braces after the mixer's name."""
        if not self.symbolic:
            return side.sizes
        own = {"b": 1, **self.given, **side.mixer.given}
        return {size: value for size, value in own.items() if size in side.sizes}

    def _tied(self, side: Explanation) -> Mapping[str, str]:
        """Size of this side -> the size that takes its place in formulas; {} without `symbolic`."""
        own = side.sizes.keys() - side.mixer.given.keys()
        return {x: y for x, y in self.ties.items() if self.symbolic and x in own}

    def _of_sides(self, phase: str) -> tuple[list[Shares], list[str]]:
        """(The operations by equation of both sides in a phase, the reasons why a side has none,
        each with the name of the side)."""
        found, reasons = [], []
        for name, side in self.sides:
            try:
                found.append(self._shares(side, phase))
            except (Unanswered, Unsupported) as reason:
                reasons.append(f"{name}: {reason}")
        return found, reasons

    def _phase(self, phase: str, one: Shares, two: Shares) -> Iterator[Part]:
        """Yield the table of a phase and a sentence on the totals; no sentence if `symbolic`."""
        table = self._table(one, two, phase)
        yield table
        if not self.symbolic:
            yield Paragraph((self._totals_sentence(table, phase),))

    def _shares(self, side: Explanation, phase: str) -> Shares:
        """The operations of one mixer (`side`) in a phase, by equation; counted here, so that a
        mixer that cannot be counted is refused before its table begins.

        Raises:
            Unanswered: a form without one-token inference, or, of numbers, a token beyond the
                rows of the weights.
            Unsupported: an equation whose operations are not derived.
        """
        shares = Shares(side.case(phase))
        about = shares.case.about
        if reason := about.unanswered or (not self.symbolic and about.beyond(side.sizes)):
            raise Unanswered(reason)
        _ = shares.counts
        return shares

    def _values(self, side: Explanation, shares: Shares, name: str, column: str) -> Exact:
        """The operations of an equation in a column (a class, "once" or "total"): a number, or with
        `symbolic` a formula in the sizes that have no number; 0 for the name "", which stands for
        an equation that this mixer lacks."""
        if not name or column not in shares.columns:
            return Exact()
        if not self.symbolic:
            return Exact.of(Poly.of(shares.number(name, column)))
        tied = {size: Poly.atom(other) for size, other in self._tied(side).items()}
        at = {size: Poly.of(value) for size, value in self._at(side).items()}
        return shares.of_batch(name, column).substitute(tied).substitute(at)

    def _cell(self, value: Exact) -> Cell:
        return Formula(value) if self.symbolic else value.at({})

    def _table(self, one: Shares, two: Shares, phase: str) -> Table:
        """The table of one phase: for each pair of equations the operations of both mixers, and by
        class the first's minus the second's. Four sections: equations that differ, those of one
        mixer alone, of the other alone, those with equal counts; then the sums over all."""
        columns = _in_order({*one.columns, *two.columns})
        differ, left, right, alike = (list[Row]() for _ in range(4))
        sums = [Exact()] * (2 + len(columns))
        for pair in aligned(one, two):
            left_values, right_values = (
                [self._values(side, shares, name, column) for column in columns]
                for (_, side), shares, name in zip(self.sides, (one, two), pair, strict=True)
            )
            apart = [a - b for a, b in zip(left_values, right_values, strict=True)]
            # the last column is the total
            values = [left_values[-1], right_values[-1], *apart]
            sums = [total + value for total, value in zip(sums, values, strict=True)]
            same = not any(part.terms for value in apart for _, part in value.chambers())
            place = left if not pair[1] else right if not pair[0] else alike if same else differ
            place.append((self._name_cell(pair), *map(self._cell, values)))
        first, second = self.names
        words = ("differ", f"only in {first}", f"only in {second}", "alike")
        rows: list[Row | Section] = []
        for said, found in zip(words, (differ, left, right, alike), strict=True):
            rows += [Section((said,)), *found] if found else []
        rows += [Section(), ("all", *map(self._cell, sums))]
        title = PHASE_TITLES[phase]
        return Table(
            f"{first} minus {second} by equation, {title[:1].lower()}{title[1:]}",
            (
                Column("equation", "equation", numeric=False, names=True),
                *(Column(f"operations of {name}", name) for name in self.names),
                *(Column(name, name) for name in columns),
            ),
            tuple(rows),
            tuple(Note((note,)) for note in self._notes(columns)),
        )

    def _notes(self, columns: Sequence[str]) -> Iterator[str]:
        """Yield the notes below a table: what the columns hold, and how equations are paired."""
        first, second = self.names
        yield f"{first}, {second}: all operations of the equation"
        yield f"{', '.join(columns)}: operations of {first} minus operations of {second}"
        if "once" in columns:
            yield "once: work done once for the weights, which classes leave out; total includes it"
        yield (
            "equations are compared by the names of their arrays and by what they read; alike: as "
            "many operations of every class"
        )

    def _name_cell(self, pair: Pair) -> Line:
        """An equation's name as a cell: `Q / K` if the two mixers call it differently, ` / K` if
        only the second mixer has the equation."""
        one, two = pair
        own = [self.one.array(one)] if one else []
        if not two or one == two:
            return tuple(own)
        return (*own, *([" / "] if own else []), self.two.array(two))

    def _totals_sentence(self, table: Table, phase: str) -> str:
        """A sentence that compares the totals of both mixers, the last row of the table."""
        _, own, other, *_ = table.body[-1]
        assert isinstance(own, int) and isinstance(other, int)
        (one, two), occasion = self.names, OCCASIONS[phase]
        if own == other:
            return f"{occasion}, {one} takes as many operations as {two}: {own:,}."
        than = f"{abs(own - other):,} operations {'fewer' if own < other else 'more'} than {two}"
        return f"{occasion}, {one} takes {own:,} operations, {than} with {other:,}."
