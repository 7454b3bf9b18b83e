"""What happens when equations are run at every point with scalars that remember their history?

A tallying scalar is a number that remembers its depth and its token. `Run` executes the equations
in the order in which they are written and keeps, for every instance, what it did, read and wrote.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from costmodel.equations import Equation, System
from costmodel.execution.fft import ALGORITHMS, Tally
from costmodel.execution.select import CHOICES, Comparisons, Contender
from costmodel.expressions import (
    Add,
    Array,
    Binary,
    Call,
    Constant,
    Div,
    Fft,
    First,
    Flat,
    Folded,
    Gather,
    Index,
    Joined,
    Mul,
    Neg,
    Node,
    Position,
    Reduce,
    Reduction,
    Ref,
    Select,
    Sub,
    Where,
)
from costmodel.functions import TABLE
from costmodel.polynomial import Poly

if TYPE_CHECKING:
    import numpy as np

Entry = tuple[Array, tuple[int, ...]]
Point = dict[str, int]
Values = Mapping[str, "np.ndarray[Any, Any]"]


class OracleError(ValueError):
    """The equations cannot be executed as they stand; the message says where and at which sizes."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that remembers what it took: `depth` operations in a chain, rows up to `token`."""

    value: float
    depth: int = 0
    token: int = 0
    given: bool = False
    """Whether it depends on a row of the input or on a context."""
    empty: bool = False
    """The result of a reduction over no term: adding it or multiplying by it is free."""


@dataclass
class Instance:
    """One equation at one point (for a transform: at one point of the indices it shares)."""

    equation: int
    operations: Counter[str] = field(default_factory=Counter)
    reads: set[Entry] = field(default_factory=set)
    writes: list[Entry] = field(default_factory=list)
    token: int = 0
    depth: int = 0
    given: bool = False


def levels(terms: int) -> int:
    """How often a row of terms is halved, pair by pair, until one is left.

    >>> [levels(r) for r in (1, 2, 3, 4, 5, 9)]
    [0, 1, 2, 2, 3, 4]
    """
    steps = 0
    while terms > 1:
        terms = (terms + 1) // 2
        steps += 1
    return steps


class Run:
    """One execution: the memory of defined entries and the instances that defined them.

    `ready_before`: entries of older tokens than this count as ready, at depth 0; `ready`: so do
    those that these equations define, by their numbers.
    """

    def __init__(
        self,
        system: System,
        sizes: Mapping[str, int],
        accounting: str,
        dense: bool,
        values: Values,
        ready_before: int = 0,
        ready: Container[int] = (),
    ) -> None:
        self.sizes = sizes
        self.accounting = accounting
        self.dense = dense
        self.values = values
        self.ready_before = ready_before
        self.ready = ready
        self.names = [equation.name for equation in system.equations]
        self.memory: dict[Entry, Scalar] = {}
        self.looped: set[int] = set()
        self.zeros: dict[Entry, str] = {}
        self.instances: list[Instance] = []
        self.compiled: dict[Poly, Callable[[Point], int]] = {}
        self.shapes: dict[Array, tuple[int, ...]] = {}
        self.of_a_sequence = _of_a_sequence(system)
        for array in system.mixer.arrays.values():
            if array.role != "output":
                self._load(array)
        self.waiting: dict[Entry, tuple[int, Point]] = {}
        """Entries of loops that are not computed yet: who defines them, and at which point."""
        self.equations = system.equations
        for number in _in_loops(system):
            self._wait(number, system.equations[number])
        for number, equation in enumerate(system.equations):
            self._equation(number, equation)
        self._finish(system.mixer.role("output"))

    def shape(self, array: Array) -> tuple[int, ...]:
        """The extents of an array at the sizes of this run."""
        if array not in self.shapes:
            self.shapes[array] = tuple(extent.at(self.sizes) for extent in array.shape)
        return self.shapes[array]

    def _load(self, array: Array) -> None:
        values = self.values[array.name]
        if values.shape != self.shape(array):
            raise OracleError(f"{array.name}: got {values.shape}, expected {self.shape(array)}")
        for where in product(*(range(extent) for extent in values.shape)):
            value, position = values[where], tuple(p + 1 for p in where)
            token = position[0] if array.role == "input" else 0
            given = array.role in ("input", "context")
            self.memory[array, position] = Scalar(float(value), 0, token, given)

    def _finish(self, output: Array) -> None:
        for entry in product(*(range(extent) for extent in self.shape(output))):
            where = tuple(p + 1 for p in entry)
            if (output, where) not in self.memory:
                raise OracleError(f"{output.name}{list(where)} is never defined {self._at()}")
        for entry_read, reader in self.zeros.items():
            if entry_read in self.memory:
                name, place = entry_read[0].name, list(entry_read[1])
                raise OracleError(f"{reader} reads {name}{place} before it is defined")

    def _at(self, point: Point | None = None) -> str:
        where = ", ".join(f"{k.lstrip('@')}={v}" for k, v in (point or {}).items())
        return f"at sizes {dict(self.sizes)}" + (f", {where}" if where else "")

    def _equation(self, number: int, equation: Equation) -> None:
        if isinstance(equation.value, Fft):
            self._transform(number, equation, equation.value)
            return
        if isinstance(equation.value, Select):
            self._every_row(number, equation, equation.value)
            return
        for point in self._points(equation.indices, {}):
            where = tuple(self._position(p)(point) for p in equation.positions)
            if (equation.array, where) in self.waiting:
                self._compute((equation.array, where))
            elif number not in self.looped:
                self._instance(number, point)

    def _instance(self, number: int, point: Point) -> None:
        equation, instance = self.equations[number], Instance(number)
        if isinstance(equation.value, Select):
            self._row(number, equation, equation.value, point)
            return
        result = self._value(equation.value, point, instance)
        self._write(equation, equation.positions, point, result, instance)
        self.instances.append(instance)

    def _wait(self, number: int, equation: Equation) -> None:
        """Note which instance of a loop defines which entry: it runs when it is first needed."""
        self.looped.add(number)
        for point in self._points(equation.indices, {}):
            where = tuple(self._position(p)(point) for p in equation.positions)
            if (equation.array, where) in self.waiting:
                raise OracleError(
                    f"{equation.name}{list(where)} is defined twice {self._at(point)}"
                )
            self.waiting[equation.array, where] = number, point

    def _compute(self, entry: Entry) -> None:
        """Run the instance of a loop that defines an entry, and what it needs before."""
        self._instance(*self.waiting.pop(entry))

    def _write(
        self,
        equation: Equation,
        positions: tuple[Position, ...],
        point: Point,
        result: Scalar,
        instance: Instance,
    ) -> None:
        where = tuple(self._position(p)(point) for p in positions)
        entry = (equation.array, where)
        extents = self.shape(equation.array)
        if not all(1 <= p <= extent for p, extent in zip(where, extents, strict=True)):
            raise OracleError(
                f"{equation.name}: defines {list(where)} outside {extents} {self._at(point)}"
            )
        if entry in self.memory:
            raise OracleError(f"{equation.name}{list(where)} is defined twice {self._at(point)}")
        ready = instance.equation in self.ready or result.token < self.ready_before
        depth = 0 if ready else result.depth
        self.memory[entry] = replace(result, depth=depth, empty=False)
        instance.writes.append(entry)
        instance.token, instance.depth = result.token, result.depth
        instance.given = result.given

    def _affine(self, poly: Poly) -> Callable[[Point], int]:
        """The value of a position or bound as a function of the indices, sizes put in."""
        if poly not in self.compiled:
            self.compiled[poly] = _with_sizes(poly, self.sizes)
        return self.compiled[poly]

    def _position(self, position: Position) -> Callable[[Point], int]:
        if isinstance(position, Gather):
            raise OracleError(f"{position.at.array.name} gathers where an entry is defined")
        if not isinstance(position, Flat):
            return self._affine(position)
        outer, inner, extent = map(self._affine, (position.outer, position.inner, position.extent))
        return lambda point: (outer(point) - 1) * extent(point) + inner(point)

    def _points(self, indices: Sequence[Index], point: Point) -> Iterator[Point]:
        """Every point of nested ranges; an index waits for the ones that its bounds name."""
        if not indices:
            yield point
            return
        waiting = {i.atom for i in indices}
        for index in indices:
            if not waiting & {a for bound in index.ends for a in bound.letters}:
                break
        else:
            raise OracleError(f"ranges of {sorted(waiting)} name each other")
        rest = [i for i in indices if i is not index]
        for value in self._range(index, point):
            yield from self._points(rest, {**point, index.atom: value})

    def _range(self, index: Index, point: Point) -> list[int]:
        """The values of an index, those of all ranges of a union."""
        found: list[int] = []
        for piece in index.pieces:
            first = max(self._affine(bound)(point) for bound in piece.lower)
            last = min(self._affine(bound)(point) for bound in piece.upper)
            found += range(first, last + 1)
        if len(found) > len({*found}):
            raise OracleError(f"the ranges of {index.name} overlap {self._at(point)}")
        return found

    def _value(self, expression: Node, point: Point, instance: Instance) -> Scalar:
        if isinstance(expression, Ref):
            return self._read(expression, point, instance)
        if isinstance(expression, Binary):
            left = self._value(expression.left, point, instance)
            right = self._value(expression.right, point, instance)
            return _binary(type(expression), left, right, instance)
        if isinstance(expression, (Reduce, Joined)):
            return self._reduce(expression, point, instance)
        if isinstance(expression, Constant):
            return Scalar(self._constant(expression))
        if isinstance(expression, First):
            return self._first(expression, point, instance)
        if isinstance(expression, Where):
            return self._choose(expression, point, instance)
        body_only = {Neg: self._negate, Folded: self._fold, Call: self._call}
        if type(expression) not in body_only:
            raise OracleError(f"cannot execute a {type(expression).__name__} inside an expression")
        return body_only[type(expression)](expression, point, instance)

    def _constant(self, expression: Constant) -> float:
        return float(float(expression.base.rational(self.sizes)) ** (expression.half_power / 2))

    def _negate(self, expression: Any, point: Point, instance: Instance) -> Scalar:
        body = self._value(expression.body, point, instance)
        return replace(body, value=-body.value)

    def _fold(self, expression: Any, point: Point, instance: Instance) -> Scalar:
        body = self._value(expression.body, point, instance)
        factor = self._constant(expression.factor)
        return replace(body, value=body.value * factor)

    def _call(self, expression: Any, point: Point, instance: Instance) -> Scalar:
        body = self._value(expression.body, point, instance)
        steps = TABLE[expression.function].steps
        instance.operations.update(steps)
        value = FUNCTIONS[expression.function](body.value)
        return Scalar(value, body.depth + len(steps), body.token, body.given)

    def _first(self, expression: First, point: Point, instance: Instance) -> Scalar:
        every = [self._value(child, point, instance) for child in expression.children]
        body, entry, largest = every
        won = entry.value == largest.value
        around = {k: v for k, v in point.items() if k not in {i.atom for i in expression.over}}
        for other in self._points(expression.over, around):
            if all(other[i.atom] == point[i.atom] for i in expression.over):
                break
            won = won and self._value(expression.entry, other, Instance(0)).value != largest.value
        return replace(
            body,
            value=body.value if won else 0.0,
            depth=max(scalar.depth for scalar in every),
            token=max(scalar.token for scalar in every),
            given=any(scalar.given for scalar in every),
            empty=body.empty or not won,
        )

    def _choose(self, expression: Where, point: Point, instance: Instance) -> Scalar:
        every = [self._value(child, point, instance) for child in expression.children]
        on, then, otherwise = every
        chosen = then if on.value > expression.above.at(self.sizes) else otherwise
        return Scalar(
            chosen.value,
            max(scalar.depth for scalar in every),
            max(scalar.token for scalar in every),
            any(scalar.given for scalar in every),
        )

    def _read(self, expression: Ref, point: Point, instance: Instance) -> Scalar:
        array = expression.array
        chosen = [
            self._read(p.at, point, instance) if isinstance(p, Gather)
            else Scalar(self._position(p)(point))
            for p in expression.positions
        ]  # fmt: skip
        where = tuple(int(scalar.value) for scalar in chosen)
        entry = (array, where)
        if entry in self.waiting:
            self._compute(entry)
        if entry in self.memory:
            instance.reads.add(entry)
            found = self.memory[entry]
            every = [found, *chosen]
            return replace(
                found,
                depth=max(s.depth for s in every),
                token=max(s.token for s in every),
                given=any(s.given for s in every),
            )
        if self.dense:
            self.zeros[entry] = self.names[instance.equation]
            return Scalar(0.0, given=array in self.of_a_sequence)
        inside = all(1 <= p <= e for p, e in zip(where, self.shape(array), strict=True))
        reason = (
            "which is not defined yet" if inside else f"outside its extents {self.shape(array)}"
        )
        raise OracleError(
            f"{self.names[instance.equation]} reads {array.name}{list(where)}, {reason}, "
            f"{self._at(point)}"
        )

    def _reduce(self, expression: Reduction, point: Point, instance: Instance) -> Scalar:
        terms = [
            self._value(expression.body, p, instance) for p in self._points(expression.over, point)
        ]
        token = max((t.token for t in terms), default=0)
        given = any(t.given for t in terms)
        terms = [term for term in terms if not term.empty]
        if not terms and expression.kind == "sum":
            return Scalar(0.0, 0, token, given, empty=True)
        if not terms:
            raise OracleError(f"a maximum over no term {self._at(point)}")
        depth = max(t.depth for t in terms)
        if expression.kind == "sum":
            instance.operations["add"] += len(terms) - (self.accounting == "strict")
            value = math.fsum(t.value for t in terms)
        elif expression.kind == "max":
            instance.operations["compare"] += len(terms) - 1
            value = max(t.value for t in terms)
        else:
            raise OracleError(f"unknown reduction '{expression.kind}'")
        return Scalar(value, depth + levels(len(terms)), token, given)

    def _transform(self, number: int, equation: Equation, transform: Fft) -> None:
        """One instance for each point of the indices that both sides share."""
        summed = {i.atom for i in transform.over}
        inside = {a for p in transform.body.positions for a in _letters(p)} - summed
        shared = [i for i in equation.indices if i.atom in inside]
        added = [i for p in equation.positions for i in equation.indices if i.atom in _letters(p)]
        added = [i for i in added if i not in shared]
        if transform.kind not in ALGORITHMS:
            raise OracleError(f"unknown transform '{transform.kind}'")
        summed_number, added_number, algorithm = ALGORITHMS[transform.kind]
        if len(transform.over) != summed_number or len(added) != added_number:
            raise OracleError(
                f"{equation.name}: a {transform.kind} with other indices than its own"
            )
        points = transform.length.at(self.sizes)
        for point in self._points(shared, {}):
            instance = Instance(number)
            operands = {
                tuple(p[i.atom] for i in transform.over): self._read(transform.body, p, instance)
                for p in self._points(transform.over, point)
            }
            depth = max(s.depth for s in operands.values())
            token = max(s.token for s in operands.values())
            given = any(s.given for s in operands.values())
            tally = Tally()
            results = algorithm({k: s.value for k, s in operands.items()}, points, tally)
            instance.operations.update(tally.halved())
            depth += tally.deepest
            for p in self._points(added, point):
                value = results[tuple(p[i.atom] for i in added)]
                scalar = Scalar(value, depth, token, given)
                self._write(equation, equation.positions, p, scalar, instance)
            self.instances.append(instance)

    def _every_row(self, number: int, equation: Equation, select: Select) -> None:
        """Choose positions in every row that was not needed before."""
        outer = [i for i in equation.indices if i.atom != select.rank]
        for point in self._points(outer, {}):
            entries = self._numbered(equation, select, point)
            if number not in self.looped or any(e in self.waiting for e, _ in entries):
                self._row(number, equation, select, point)

    def _numbered(
        self, equation: Equation, select: Select, point: Point
    ) -> list[tuple[Entry, Point]]:
        """The entries of one row of positions, each with its point."""
        ranks = [i for i in equation.indices if i.atom == select.rank]
        return [
            ((equation.array, tuple(self._position(p)(at) for p in equation.positions)), at)
            for at in self._points(ranks, point)
        ]

    def _row(self, number: int, equation: Equation, select: Select, point: Point) -> None:
        """One instance: all positions that are chosen in one row."""
        instance = Instance(number)
        outer = {k: v for k, v in point.items() if k != select.rank}
        (over,) = select.over
        found = {
            p[over.atom]: self._read(select.body, p, instance)
            for p in self._points(select.over, outer)
        }
        if not found:
            raise OracleError(f"{equation.name}: {select.kind} among no entries {self._at(outer)}")
        made, entries = Comparisons(), self._numbered(equation, select, outer)
        contenders = [Contender(scalar.value, position) for position, scalar in found.items()]
        chosen = CHOICES[select.kind](contenders, len(entries), made)
        if len(chosen) != len(entries):
            raise OracleError(
                f"{equation.name}: {select.kind} gives {len(chosen)} positions, {len(entries)} are "
                f"defined {self._at(outer)}"
            )
        instance.operations["compare"] += made.number
        depth = max(s.depth for s in found.values()) + made.deepest
        token, given = max(s.token for s in found.values()), any(s.given for s in found.values())
        for (entry, at), position in zip(entries, chosen, strict=True):
            self.waiting.pop(entry, None)
            scalar = Scalar(position, depth, token, given)
            self._write(equation, equation.positions, at, scalar, instance)
        self.instances.append(instance)


def _of_a_sequence(system: System) -> set[Array]:
    """The arrays that each sequence has its own of: zeros around them are its own, too."""
    found = {a for a in system.mixer.arrays.values() if a.role in ("input", "context")}
    for _ in system.equations:
        for equation in system.equations:
            if not found.isdisjoint(_arrays(equation.value)):
                found.add(equation.array)
    return found


def _in_loops(system: System) -> list[int]:
    """The equations whose array needs itself, directly or through others."""
    needs: dict[Array, set[Array]] = {}
    for equation in system.equations:
        needs.setdefault(equation.array, set()).update(_arrays(equation.value))

    def reached(array: Array) -> set[Array]:
        found: set[Array] = set()
        fresh = needs[array]
        while fresh:
            found |= fresh
            fresh = set().union(*(needs.get(a, set()) for a in fresh)) - found
        return found

    return [k for k, e in enumerate(system.equations) if e.array in reached(e.array)]


def _arrays(expression: Node) -> Iterator[Array]:
    if isinstance(expression, Ref):
        yield expression.array
    for child in expression.children:
        yield from _arrays(child)


def _letters(position: Position) -> frozenset[str]:
    if isinstance(position, Gather):
        return frozenset().union(*map(_letters, position.at.positions))
    parts = (position.outer, position.inner) if isinstance(position, Flat) else (position,)
    return frozenset().union(*(part.letters for part in parts))


def _with_sizes(poly: Poly, sizes: Mapping[str, int]) -> Callable[[Point], int]:
    """Evaluate the sizes of an affine expression once, leaving its indices open."""
    open_atoms = sorted(a for a in poly.letters if a.startswith("@"))
    zero = dict.fromkeys(open_atoms, 0)
    constant = poly.rational({**sizes, **zero})
    slopes = []
    for atom in open_atoms:
        one, two = ({**sizes, **zero, atom: v} for v in (1, 2))
        slope = poly.rational(one) - constant
        if poly.rational(two) - constant != 2 * slope:
            raise OracleError(f"{poly} is not affine in {atom[1:]}")
        slopes.append((atom, slope))

    def value(point: Point) -> int:
        result = constant + sum(slope * point[atom] for atom, slope in slopes)
        if result != int(result):
            raise OracleError(f"{poly} is {result}, not a whole position, at {point}")
        return int(result)

    return value


_NAMES: Mapping[type, str] = {Add: "add", Sub: "add", Mul: "mul", Div: "div"}
_ARITHMETIC: Mapping[type, Callable[[float, float], float]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    Div: lambda a, b: a / b,
}
FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "relu": lambda v: max(v, 0.0),
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "silu": lambda v: v / (1 + math.exp(-v)),
    "softplus": lambda v: math.log(1 + math.exp(v)),
    "elu_plus_1": lambda v: v + 1 if v > 0 else math.exp(v),
    "gelu": lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    "silu_slope": lambda v: (1 + math.exp(-v) * (1 + v)) / (1 + math.exp(-v)) ** 2,
    "erf_slope": lambda v: 2 / math.sqrt(math.pi) * math.exp(-v * v),
    "gelu_slope": lambda v: (
        (1 + math.erf(v / math.sqrt(2))) / 2 + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi)
    ),
}


def _binary(kind: type, left: Scalar, right: Scalar, instance: Instance) -> Scalar:
    value = _ARITHMETIC[kind](left.value, right.value)
    token, given = max(left.token, right.token), left.given or right.given
    if left.empty or right.empty:
        if kind in (Add, Sub):
            kept = right if left.empty else left
            return replace(kept, value=value, token=token, given=given)
        return Scalar(0.0, 0, token, given, empty=True)
    instance.operations[_NAMES[kind]] += 1
    return Scalar(value, max(left.depth, right.depth) + 1, token, given)
