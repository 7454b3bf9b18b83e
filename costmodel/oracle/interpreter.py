"""An interpreter that runs equations at every point (values of indices), on instrumented scalars.

An instrumented scalar (`scalars.Scalar`) records with its value the depth, the steps, the latest
token, and whether the value depends on an input or a context. `Run` executes the equations in the
order in which they are written, those of `on_demand` when an entry is first needed, and records for
every instance what it did, read and wrote. Each equation is first compiled to steps, functions of a
point (index -> value) and of the instance that records reads and operations.
An empty sum (no term) is 0, and adding it or multiplying by it costs nothing.
`STEPS` and `ALONE` define every kind of node.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from costmodel.errors import OracleError
from costmodel.language.equations import Equation, System, told_at
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    OPAQUE,
    Add,
    Array,
    Binary,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Gather,
    Maximum,
    Mul,
    Neg,
    Node,
    Position,
    Reduce,
    Ref,
    Scan,
    Select,
    Sub,
    names_in,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules, refused
from costmodel.oracle.algorithms import (
    ALGORITHMS,
    CHOICES,
    PREFIXES,
    Combined,
    Comparisons,
    Contender,
    Span,
    Tally,
)
from costmodel.oracle.places import Places, Point
from costmodel.oracle.scalars import (
    Entry,
    Instance,
    Scalar,
    Step,
    after,
    arithmetic,
    called,
    larger,
    new,
    placed,
    times,
)
from costmodel.symbolic.effort import spend

if TYPE_CHECKING:
    import numpy as np


Values = Mapping[str, "np.ndarray[Any, Any]"]
"""Name of an array -> its values."""


Results = Callable[[Point, Sequence[Point], Instance], list[Scalar]]
"""A function that computes the entries of one instance: (the instance's point, the point of each of
its entries, the record of what it reads and does) -> the value of each entry."""


@dataclass(frozen=True)
class Work:
    """An equation compiled for execution."""

    array: Array
    points: Callable[[Point], list[Point]]
    """The point without indices -> the points with an instance each."""
    added: Callable[[Point], list[Point]]
    """The point of an instance -> the points of the entries that it defines: several for a
    transform or a selection, else the point itself."""
    place: Callable[[Point], tuple[int, ...]]
    """The point of an entry -> its positions in the array."""
    results: Results


def levels(terms: int) -> int:
    """The number of rounds in which pairs of terms are merged until one is left: ceil(log2 terms).

    >>> [levels(r) for r in (1, 2, 3, 4, 5, 9)]
    [0, 1, 2, 2, 3, 4]
    """
    steps = 0
    while terms > 1:
        terms = (terms + 1) // 2
        steps += 1
    return steps


class Interpreter:
    """The executor of a system's equations, each compiled to functions of a point, on one memory.

    Args:
        accounting: "strict" (R - 1 additions in a sum of R terms) or "mac" (R).
        dense: an entry that does not exist is read as 0; otherwise reading it is an error.
        values: values by name, of every array but the output.
        ready: the numbers of the equations whose results cost nothing (depth 0).
    """

    def __init__(
        self,
        system: System,
        sizes: Mapping[str, int],
        accounting: str,
        dense: bool,
        values: Values,
        ready: Container[int] = (),
    ) -> None:
        """Put the given `values` into memory, compile the equations, and run them in order; an
        instance of `on_demand` runs when one of its entries is first needed."""
        self.sizes = sizes
        self.accounting = accounting
        self.dense = dense
        self.ready = ready
        self.places = Places(sizes)
        self.equations = system.equations
        self.names = [equation.name for equation in system.equations]
        self.memory: dict[Entry, Scalar] = {}
        self.zeros: dict[Entry, str] = {}
        """Under `dense`: entry that was read as 0 since it did not exist -> the reading
        equation."""
        self.instances: list[Instance] = []
        self.selected_from: dict[Entry, Collection[int]] = {}
        """An entry that holds a position -> the positions among which it was selected."""
        self.of_a_sequence = of_a_sequence(system)
        for array in system.mixer.arrays.values():
            if array.role != "output":
                self._load(array, values[array.name])
        self.work = [self._work(equation) for equation in system.equations]
        self.waiting: dict[Entry, tuple[int, Point]] = {}
        """Entry of a loop, not computed yet -> (equation number, point) of its instance."""
        looped = on_demand(system)
        for number in looped:
            self._register(number)
        for number, work in enumerate(self.work):
            for point in work.points({}):
                if number not in looped or self._is_waiting(work, point):
                    self.execute(number, point)
        self._check_complete(system.mixer.role("output"))

    def shape(self, array: Array) -> tuple[int, ...]:
        """The extents of an array at the sizes of this run."""
        return self.places.shape(array)

    def _load(self, array: Array, values: np.ndarray[Any, Any]) -> None:
        """Put the given values of an array into memory, at depth 0, with their row (from 1) as the
        token of an input, else 0; OracleError for another shape, TooMuch beyond the budget."""
        if values.shape != self.shape(array):
            raise OracleError(
                f"{array.name} has shape {values.shape}, expected {self.shape(array)}"
            )
        given = array.role in ("input", "context")
        spend(values.size)
        for where in product(*(range(extent) for extent in values.shape)):
            position = tuple([p + 1 for p in where])
            token = position[0] if array.role == "input" else 0
            self.memory[array, position] = Scalar(float(values[where]), 0, 0, token, given)

    def _check_complete(self, output: Array) -> None:
        """Raise OracleError if an entry of the output is not defined, or if an entry was read as 0
        (under `dense`) and defined later."""
        for entry in product(*(range(extent) for extent in self.shape(output))):
            where = tuple(p + 1 for p in entry)
            if (output, where) not in self.memory:
                said = self.places.described()
                raise OracleError(f"{output.name}{list(where)} is never defined {said}")
        for entry_read, reader in self.zeros.items():
            if entry_read in self.memory:
                name, place = entry_read[0].name, list(entry_read[1])
                raise OracleError(f"{reader} reads {name}{place} before it is defined")

    def _work(self, equation: Equation) -> Work:
        """The compiled equation. An instance of a transform, scan or selection, which is the whole
        right side, defines an entry at each point of the indices `added` (`ALONE`), an instance of
        any other expression one entry (`STEPS`)."""
        value, place = equation.value, self.places.entry(equation.positions)
        if value.alone:
            shared, added, results = ALONE[type(value)](self, equation, value)
        else:
            shared, added, results = equation.indices, (), _one(self.step(value))
        points = self.places.points
        return Work(equation.array, points(shared), points(added), place, results)

    def _entries(self, work: Work, point: Point) -> list[tuple[Entry, Point]]:
        """The entries that the instance at a point defines, each with its own point."""
        return [((work.array, work.place(at)), at) for at in work.added(point)]

    def move_results(self) -> tuple[dict[Entry, Scalar], list[Instance]]:
        """The memory and the instances, which move to the caller: the interpreter forgets them and
        can run again (`Run.again`)."""
        found = self.memory, self.instances
        self.memory, self.instances = {}, []
        return found

    def _register(self, number: int) -> None:
        """Register the instances of a loop's equation under the entries that they define: one runs
        when such an entry is first needed. OracleError for an entry that two instances define."""
        work = self.work[number]
        for point in work.points({}):
            for entry, at in self._entries(work, point):
                if entry in self.waiting:
                    raise self._twice(entry, at)
                self.waiting[entry] = number, point

    def _is_waiting(self, work: Work, point: Point) -> bool:
        """Whether the instance of a loop at a point has not run yet."""
        return any(entry in self.waiting for entry, _ in self._entries(work, point))

    def execute(self, number: int, point: Point) -> None:
        """Run one instance, after the instances that it needs; OracleError, with the place of the
        equation, if it cannot read or write an entry, or divides by 0."""
        work, instance = self.work[number], Instance(number, point)
        entries = self._entries(work, point)
        if self.waiting:
            for entry, _ in entries:
                self.waiting.pop(entry, None)
        try:
            results = work.results(point, [at for _, at in entries], instance)
            for (entry, at), scalar in zip(entries, results, strict=True):
                self._write(entry, at, scalar, instance)
        except OracleError as error:
            raise told_at(error, self.equations[number]) from None
        except ArithmeticError as error:
            said = OracleError(f"{self.names[number]}: {error} {self.places.described(point)}")
            raise told_at(said, self.equations[number]) from None
        self.instances.append(instance)

    def _write(self, entry: Entry, point: Point, result: Scalar, instance: Instance) -> None:
        """Put a result into memory; `instance` notes depth, steps and token. In memory a result of
        a `ready` equation has depth and steps 0, for its readers; the instance keeps the counted
        ones, and `Execution.instances` omits the instance. A written entry is never an empty sum.
        OracleError if the entry lies outside its array or is defined already."""
        array, where = entry
        if not self.places.inside(array, where):
            said = f"outside its extents {self.shape(array)}, {self.places.described(point)}"
            raise OracleError(f"{array.name}{list(where)} is defined {said}")
        if entry in self.memory:
            raise self._twice(entry, point)
        value, depth, steps, token, given, empty = result
        if instance.equation in self.ready:
            result = Scalar(value, 0, 0, token, given)
        elif empty:
            result = Scalar(value, depth, steps, token, given)
        self.memory[entry] = result
        instance.writes.append(entry)
        instance.depth, instance.steps = depth, steps
        instance.token, instance.given = token, given

    def _twice(self, entry: Entry, point: Point) -> OracleError:
        """The error for an entry that is defined twice."""
        array, where = entry
        said = self.places.described(point)
        return OracleError(f"{array.name}{list(where)} is defined twice {said}")

    def step(self, expression: Node) -> Step:
        """Compile an expression to a function of a point."""
        return STEPS[type(expression)](self, expression)

    def constant(self, expression: Constant) -> float:
        """The value base ** (half_power / 2) of a constant in sizes."""
        return float(float(expression.base.rational(self.sizes)) ** (expression.half_power / 2))

    def reading(self, ref: Ref) -> Step:
        """The compiled reference: a function of a point (values of indices) that gives the scalar
        of the entry there, which the instance records as read. An entry that is not in memory is
        computed if it can be, else 0 under `dense`, else an OracleError."""
        if any(isinstance(position, Gather) for position in ref.positions):
            return self._gathering(ref)
        array, place = ref.array, self.places.entry(ref.positions)

        def step(point: Point, instance: Instance) -> Scalar:
            """The scalar of the entry at a point, which the instance records as read."""
            entry = array, place(point)
            found = self.memory.get(entry)
            if found is None:
                return self._read(entry, point, instance, instance.placed)
            instance.placed.add(entry)
            return found

        return step

    def _gathering(self, ref: Ref) -> Step:
        """The compiled reference with gathers: a function of a point that gives the selected
        entry's scalar. The instance records this entry, the entries that other values might select,
        and the index expression (`_identity`). The result has the greatest depth and latest token
        of all these entries, since any of them might be read."""
        read_positions = [
            self._gathered_position(p) if isinstance(p, Gather) else placed(self.places.position(p))
            for p in ref.positions
        ]
        possible = [self._possible(position) for position in ref.positions]
        name = self._identity(ref)

        def step(point: Point, instance: Instance) -> Scalar:
            """The value of the entry that `ref` selects, as deep and late as all of `known`: those
            in memory that it might select, with any values of the arrays that hold positions."""
            chosen = [position(point, instance) for position in read_positions]
            where = tuple([int(scalar.value) for scalar in chosen])
            noted = instance.gathering()
            found = self._read((ref.array, where), point, instance, noted.read)
            choices = [positions(point) for positions in possible]
            spend(math.prod(map(len, choices)))
            every = {(ref.array, at) for at in product(*choices)}
            known = {entry: self.memory[entry] for entry in every if entry in self.memory}
            noted.may_read.update(known)
            if known:
                noted.names.add((ref.array, name(point)))
            return after([found, *chosen, *known.values()], found.value)

        return step

    def _identity(self, ref: Ref) -> Callable[[Point], object]:
        """A function of a point whose result identifies a gathered entry without the values of
        index arrays: the array and its positions, with the index array's entry in place of its
        value: (v, ((g, 2), 1), 3) for v[g[i], j] at i = 2, j = 3."""

        def said(position: Position) -> Callable[[Point], object]:
            """A position as a function of a point; a gathered one by its index entry, not value."""
            if not isinstance(position, Gather):
                return self.places.position(position)
            at, inner = self._identity(position.at), self.places.value(position.inner)
            return lambda point: (at(point), inner(point))

        each = [said(position) for position in ref.positions]
        return lambda point: (ref.array, *(part(point) for part in each))

    def _gathered_position(self, position: Gather) -> Step:
        """The compiled position of a gather: a function of a point that gives the position which
        the index array's entry states, as a scalar with the depth and token of that entry."""
        read, place = self.reading(position.at), self._in_block(position)

        def step(point: Point, instance: Instance) -> Scalar:
            found = read(point, instance)
            return after([found], place(int(found.value), point))

        return step

    def _in_block(self, position: Gather) -> Callable[[int, Point], int]:
        """A function of (gathered value, point): the position in the block with this number."""
        extent, inner = map(self.places.value, (position.extent, position.inner))
        return lambda value, point: (value - 1) * extent(point) + inner(point)

    def _possible(self, position: Position) -> Callable[[Point], Collection[int]]:
        """A function of a point: the possible values of a position, as a cost must not depend on
        which of them data choose: of p[i] in x[p[i]] the positions among which a selection chose
        p[i], or all in 1..`below` of a given p; of any other position its one value."""
        if not isinstance(position, Gather):
            place = self.places.position(position)
            return lambda point: (place(point),)
        at = position.at
        last = self.places.value(at.array.last(at.positions))
        block = self._in_block(position)
        # of p[q[i]], whose entry data choose, no selection is known: all of 1..`below`
        gathered = any(isinstance(p, Gather) for p in at.positions)
        there = None if gathered else self.places.entry(at.positions)

        def every(point: Point) -> Collection[int]:
            chosen = self.selected_from.get((at.array, there(point))) if there else None
            return [block(value, point) for value in chosen or range(1, last(point) + 1)]

        return every

    def _read(self, entry: Entry, point: Point, instance: Instance, noted: set[Entry]) -> Scalar:
        """The scalar of an entry, which is added to the reads `noted`; an entry of a loop is
        computed first if needed. An entry that does not exist is 0 under `dense`, else an
        OracleError."""
        found = self.memory.get(entry)
        if found is None and entry in self.waiting:
            self.execute(*self.waiting[entry])
            found = self.memory[entry]
        if found is not None:
            noted.add(entry)
            return found
        array, where = entry
        if self.dense:
            self.zeros[entry] = self.names[instance.equation]
            return Scalar(0.0, given=array in self.of_a_sequence)
        inside = self.places.inside(array, where)
        reason = (
            "which is not defined yet" if inside else f"outside its extents {self.shape(array)}"
        )
        raise OracleError(
            f"{self.names[instance.equation]} reads {array.name}{list(where)}, {reason}, "
            f"{self.places.described(point)}"
        )


def _constant(interpreter: Interpreter, node: Constant) -> Step:
    """The compiled constant, or value of an index expression (i - j in x[j]*(i - j)): a function of
    a point (values of indices) that gives a scalar of depth 0 and token 0."""
    if node.base.variables:
        return placed(interpreter.places.value(node.base))
    constant = Scalar(interpreter.constant(node))
    return lambda point, instance: constant


def _binary(made: Callable[[Step, Step], Step]) -> Callable[[Interpreter, Binary], Step]:
    return lambda interpreter, node: made(interpreter.step(node.left), interpreter.step(node.right))


def _reduce(interpreter: Interpreter, node: Reduce) -> Step:
    """The compiled sum or maximum: a function of a point. Terms that are empty sums are left out; a
    sum without other terms is the empty sum (0 at depth 0), a maximum without them raises
    OracleError. In a scatter an index array's values decide which terms are empty: the depth counts
    empty terms too, so that no value changes the depth; the additions leave empty terms out."""
    body, points = interpreter.step(node.body), interpreter.places.visited(node.over)
    kind, scatters = node.kind, node.scatters
    spared = interpreter.accounting == "strict" and not scatters
    if kind not in ("sum", "max"):
        raise OracleError(f"unknown reduction '{kind}': expected sum or max")

    def step(point: Point, instance: Instance) -> Scalar:
        """The sum or maximum of R terms at a point; the instance tallies R - 1 operations (R for a
        sum under `mac` and for a scatter), and the result is ceil(log2 R) operations deeper."""
        every = [body(inner, instance) for inner in points(point)]
        filled = [term for term in every if not term.empty]
        terms = every if scatters else filled
        if not terms and kind == "sum":
            return after(every, 0.0)._replace(depth=0, steps=0, empty=True)
        if not terms:
            over = ", ".join(index.name for index in node.over)
            raise OracleError(
                f"{interpreter.names[instance.equation]}: a maximum over {over} has no term "
                f"{interpreter.places.described(point)}"
            )
        values, depths, steps, tokens, given, _ = zip(*terms, strict=True)
        if kind == "sum":
            instance.operations["add"] += len(filled) - spared
        else:
            instance.operations["compare"] += len(terms) - 1
        value = math.fsum(values) if kind == "sum" else max(values)
        if len(terms) < len(every):  # which inputs a result depends on: empty terms count
            _, _, _, tokens, given, _ = zip(*every, strict=True)
        deepest = max(depths) + levels(len(terms))
        return new(Scalar, (value, deepest, max(steps) + 1, max(tokens), any(given), False))

    return step


def _bracket(interpreter: Interpreter, node: Bracket) -> Step:
    """The compiled bracket, a function of a point: the body where the relation (left > right, left
    = right) holds, else the alternative, or an empty sum without an alternative. With indices
    `first` (of a maximum whose first largest term gets the gradient) the body is taken only at the
    first of these indices' points at which the relation holds, found by trials at no cost."""
    body, left, right = (interpreter.step(part) for part in (node.body, node.left, node.right))
    otherwise = None if node.otherwise is None else interpreter.step(node.otherwise)
    related = {">": operator.gt, "=": operator.eq}[node.relation]
    atoms, points = [index.atom for index in node.first], interpreter.places.points(node.first)

    def holds(point: Point) -> bool:
        noted = Instance(0, point)  # thrown away: trying further points costs nothing
        return bool(related(left(point, noted).value, right(point, noted).value))

    def is_first(point: Point) -> bool:
        """Whether the relation, which holds at a point, fails at all earlier points of `first`."""
        around = {name: value for name, value in point.items() if name not in atoms}
        here = [point[atom] for atom in atoms]
        return next(p for p in points(around) if [p[a] for a in atoms] == here or holds(p)) == point

    def step(point: Point, instance: Instance) -> Scalar:
        """The body where the relation holds (with `first`: at the first such point), else the
        alternative, or without one an empty sum; as deep as all parts: all are computed."""
        every = [part(point, instance) for part in (body, left, right)]
        inner, one, two = every
        chosen = bool(related(one.value, two.value)) and is_first(point)
        if otherwise is None:
            value, empty = (inner.value, inner.empty) if chosen else (0.0, True)
            return after(every, value)._replace(empty=empty)
        every.append(otherwise(point, instance))
        return after(every, (inner if chosen else every[-1]).value)

    return step


STEPS: Rules[Callable[..., Step]] = Rules(
    "the oracle",
    {
        Constant: _constant,
        Ref: Interpreter.reading,
        Add: _binary(arithmetic("add", operator.add, adds=True)),
        Sub: _binary(arithmetic("add", operator.sub, adds=True)),
        Mul: _binary(arithmetic("mul", operator.mul)),
        Div: _binary(arithmetic("div", operator.truediv)),
        Maximum: _binary(larger),
        Neg: lambda interpreter, node: times(-1.0, interpreter.step(node.body)),
        FreeScale: lambda interpreter, node: times(
            interpreter.constant(node.factor), interpreter.step(node.body)
        ),
        Call: lambda interpreter, node: called(node.function, interpreter.step(node.body)),
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: refused("a transform must be the whole right side of its equation"),
        Scan: refused("a scan must be the whole right side of its equation"),
        Select: refused("a selection must be the whole right side of its equation"),
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> its value as a function of a point."""


Alone = tuple[Sequence[Index], Sequence[Index], Results]
"""A right side with several results per instance, compiled: (the indices that all results of an
instance share, the indices that tell its results apart, the results)."""


def _fft(interpreter: Interpreter, equation: Equation, transform: Fft) -> Alone:
    """The compiled transform: an instance for each point of the free indices that its operand has
    too, whose results run over the other free indices (X[k, p, a] = rfft of x[j, a] over j: an
    instance for each a, results for k and p). OracleError for an unknown kind of transform, or a
    wrong number of indices."""
    if transform.kind not in ALGORITHMS:
        raise OracleError(
            f"{equation.name}: unknown transform '{transform.kind}': expected one of "
            f"{', '.join(ALGORITHMS)}"
        )
    over = [index.atom for index in transform.over]
    inside = {*names_in(transform.body.positions)} - {*over}
    shared = [index for index in equation.indices if index.atom in inside]
    by_atom = {index.atom: index for index in equation.indices}
    added = [by_atom[a] for a in names_in(equation.positions) if by_atom[a] not in shared]
    summed_number, added_number, algorithm = ALGORITHMS[transform.kind]
    if len(over) != summed_number or len(added) != added_number:
        raise OracleError(
            f"{equation.name}: {transform.kind} takes {summed_number} indices and gives "
            f"{added_number}, got {len(over)} and {len(added)}"
        )
    length = transform.length.at(interpreter.sizes)
    read, points = interpreter.reading(transform.body), interpreter.places.points(transform.over)

    def results(point: Point, at: Sequence[Point], instance: Instance) -> list[Scalar]:
        """The results of one transform at the points `at`, all as deep as its deepest chain of
        operations. Algorithms tally complex operations, of which a real transform counts half."""
        operands = {tuple(p[a] for a in over): read(p, instance) for p in points(point)}
        tally = Tally()
        values = algorithm({k: s.value for k, s in operands.items()}, length, tally)
        instance.operations.update(tally.halved())
        _, depth, steps, token, given, _ = after(operands.values(), 0.0)
        deep = depth + tally.deepest, steps + 1
        return [Scalar(values[tuple(p[i.atom] for i in added)], *deep, token, given) for p in at]

    return shared, added, results


def _scan(interpreter: Interpreter, equation: Equation, scan: Scan) -> Alone:
    """The compiled scan y[i, c] = decay[i] y[i - 1, c] + term[i, c]: an instance for each point of
    the free indices that the decays have too (`shared`), whose results run over the other free
    indices (`added`): that of the rows, and those of the columns."""
    inside, among = ({*names_in(part.positions)} for part in (scan.kept, scan.body))
    shared = [index for index in equation.indices if index.atom in inside]
    added = [index for index in equation.indices if index not in shared]
    # the index of rows, in whose place the body has `scan.over`
    (number,) = (index.atom for index in added if index.atom not in among)
    decay, term = interpreter.reading(scan.kept), interpreter.reading(scan.body)
    rows, order = interpreter.places.points(scan.over), -1 if scan.reverse else 1

    def column(point: Point) -> tuple[int, ...]:
        return tuple(point[index.atom] for index in added if index.atom != number)

    def results(point: Point, at: Sequence[Point], instance: Instance) -> list[Scalar]:
        """The results of one scan at the points `at`, all as deep as its deepest chain of
        operations. `columns`: column -> its terms in the rows of the scan."""
        columns = {column(p): [term(q, instance) for q in rows(p)] for p in at}
        decays = [decay(p, instance) for p in rows(at[0])]
        kept = [scalar.value for scalar in decays]
        kept = [*kept[1:], 1.0] if scan.reverse else kept  # back, row i has the decay of row i + 1
        terms = zip(*([s.value for s in terms] for terms in columns.values()), strict=True)
        spans, combine = [Span(*both) for both in zip(kept, terms, strict=True)], Combined()
        prefixes = PREFIXES[scan.kind](spans[::order], combine)[::order]  # the span up to each row
        for operation, number_of in combine.operations.items():
            instance.operations[operation] += number_of
        _, depth, steps, token, given, _ = after([*decays, *chain(*columns.values())], 0.0)
        deep, place = (depth + combine.deepest, steps + 1), [*columns].index
        sums = [prefixes[p[number] - 1].sums[place(column(p))] for p in at]
        return [Scalar(value, *deep, token, given) for value in sums]

    return shared, added, results


def _select(interpreter: Interpreter, equation: Equation, select: Select) -> Alone:
    """The compiled selection: an instance for each row, whose results are the positions kept in the
    row, in order of rank (`added`: the index of ranks, [] for an argmax). The instance raises
    OracleError for a row without entries, or with another number of positions than ranks."""
    shared = [index for index in equation.indices if index.atom != select.rank]
    added = [index for index in equation.indices if index.atom == select.rank]
    (over,) = select.over
    read, points = interpreter.reading(select.body), interpreter.places.points(select.over)
    place = interpreter.places.entry(equation.positions)

    def results(point: Point, at: Sequence[Point], instance: Instance) -> list[Scalar]:
        """The positions that the selection keeps of one row, one for each point of `at`, as
        scalars, all as deep as the deepest comparison. The comparisons are counted."""
        found = {p[over.atom]: read(p, instance) for p in points(point)}
        said = interpreter.places.described(point)
        if not found:
            raise OracleError(f"{equation.name}: {select.kind} has nothing to choose from {said}")
        comparisons = Comparisons()
        contenders = [Contender(scalar.value, position) for position, scalar in found.items()]
        chosen = CHOICES[select.kind](contenders, len(at), comparisons)
        if len(chosen) != len(at):
            raise OracleError(
                f"{equation.name}: {select.kind} gives {len(chosen)} positions, and the left side "
                f"has {len(at)} {said}"
            )
        instance.operations["compare"] += comparisons.number
        interpreter.selected_from.update({(equation.array, place(p)): found.keys() for p in at})
        _, depth, steps, token, given, _ = after(found.values(), 0.0)
        deep = depth + comparisons.deepest, steps + 1
        return [Scalar(position, *deep, token, given) for position in chosen]

    return shared, added, results


ALONE: Rules[Callable[..., Alone]] = Rules(
    "the oracle, for whole right sides",
    {Fft: _fft, Scan: _scan, Select: _select, Composite: WRITTEN_OUT},
    OPAQUE,
)
"""Kind of node that is a whole right-hand side -> the compiled equation."""


def _one(step: Step) -> Results:
    """The results of an expression: one scalar for each instance."""
    return lambda point, at, instance: [step(point, instance)]


class Run:
    """One execution: the memory of defined entries, and the instances that defined them."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self.memory, self.instances = interpreter.move_results()

    def shape(self, array: Array) -> tuple[int, ...]:
        """The extents of an array at the sizes of this run."""
        return self._interpreter.shape(array)

    def again(
        self, instances: Sequence[Instance], there: Collection[Entry]
    ) -> tuple[list[Instance], dict[Entry, Scalar]]:
        """Execute some instances again, in order, with nothing but the entries `there` in memory,
        at depth 0, such as one token's with the state of earlier tokens. Returns (the new
        instances, the memory afterwards).

        Raises:
            OracleError: an entry is read that is not in memory.
        """
        interpreter = self._interpreter
        interpreter.memory = {
            entry: self.memory[entry]._replace(depth=0, steps=0) for entry in there
        }
        try:
            for instance in instances:
                interpreter.execute(instance.equation, instance.point)
        finally:
            done = interpreter.move_results()
        return done[1], done[0]

    def without(self, ready: Container[int]) -> Run:
        """The run in which the results of the `ready` equations (by number) exist from the start,
        and all others are executed again."""
        found, later = copy(self), [i for i in self.instances if i.equation not in ready]
        computed = {entry for instance in later for entry in instance.writes}
        there = [entry for entry in self.memory if entry not in computed]
        found.instances, found.memory = self.again(later, there)
        return found


@lru_cache(maxsize=64)
def of_a_sequence(system: System) -> Collection[Array]:
    """The arrays that depend on an input or context, so that their values differ from sequence to
    sequence (work on all others is done once). Zeros read outside of such an array count as
    dependent too."""
    found = {a for a in system.mixer.arrays.values() if a.role in ("input", "context")}
    for _ in system.equations:  # dependence passes on by one array or more per round
        for equation in system.equations:
            if not found.isdisjoint(equation.value.arrays):
                found.add(equation.array)
    return found


@lru_cache(maxsize=64)
def on_demand(system: System) -> Collection[int]:
    """The numbers of the equations that run when an entry is first needed: those of loops, whose
    array depends on itself, directly or through others, and those of arrays that a loop reads but
    that are written after its first equation: all of S[i] = S[i-1]*x[i], T = x[1]*x[2], S[1] = T.
    """
    needs, loops = needed(system), dict[Array, int]()
    for k, e in enumerate(system.equations):
        if e.array in needs[e.array]:
            loops.setdefault(e.array, k)
    return [
        k
        for k, e in enumerate(system.equations)
        if e.array in loops or any(k > first and e.array in needs[a] for a, first in loops.items())
    ]


def needed(system: System) -> dict[Array, set[Array]]:
    """A dict: array that an equation defines -> the arrays it depends on, directly or not."""
    needs: dict[Array, set[Array]] = {}
    for equation in system.equations:
        needs.setdefault(equation.array, set()).update(equation.value.arrays)

    def reached(array: Array) -> set[Array]:
        """The arrays that an array depends on: the transitive closure of what equations read."""
        found: set[Array] = set()
        fresh = needs[array]
        while fresh:
            found |= fresh
            fresh = set().union(*(needs.get(a, set()) for a in fresh)) - found
        return found

    return {array: reached(array) for array in needs}
