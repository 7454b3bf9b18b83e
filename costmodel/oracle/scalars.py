"""Instrumented scalars (value, depth, steps, latest token, dependence), and the operations on them.

A `Scalar` remembers its depth and its token; an `Instance` tallies operations. Every operation is a
function of a point, composed from the functions of its operands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from costmodel.errors import OracleError
from costmodel.language.functions import TABLE
from costmodel.language.nodes import Array
from costmodel.oracle.places import At, Point

Entry = tuple[Array, tuple[int, ...]]
"""(array, positions on its axes, counted from 1)."""


class Scalar(NamedTuple):
    """A number with the record of its computation."""

    value: float
    depth: int = 0
    """The length of the longest chain of operations that leads to the number."""
    steps: int = 0
    """The length of that chain if a sum, a transform and a selection count as one step each."""
    token: int = 0
    """The latest input row that the number depends on; 0 for none."""
    given: bool = False
    """Whether the number depends on an input row or on a context."""
    empty: bool = False
    """Whether the number is an empty sum: adding it or multiplying by it is free."""


new = tuple.__new__
"""Constructs a `Scalar` from all six fields in half the time; there are millions of scalars."""


@dataclass(slots=True)
class Gathered:
    """The gathered reads of an instance."""

    read: set[Entry] = field(default_factory=set)
    """The entries that the values of the indices select."""
    may_read: set[Entry] = field(default_factory=set)
    """The entries that other values of the indices might have selected."""
    names: set[tuple[Array, object]] = field(default_factory=set)
    """The gathered arrays, each with the symbolic identity of the entry (see
    `Interpreter._identity`)."""


class Instance:
    """One equation at one point, and the record of its execution. For a transform or a selection:
    at one point of the indices that all of its results share."""

    __slots__ = (
        "depth",
        "equation",
        "gathered",
        "given",
        "operations",
        "placed",
        "point",
        "steps",
        "token",
        "writes",
    )

    def __init__(self, equation: int, point: Point) -> None:
        """An instance of the equation with this number, which has not yet done anything."""
        self.equation = equation
        self.point = point
        self.operations: dict[str, int] = defaultdict(int)  # class -> number
        self.placed: set[Entry] = set()
        """The entries read at positions that do not depend on values."""
        self.gathered: Gathered | None = None
        self.writes: list[Entry] = []
        # as `Scalar` has them, of the entry written last
        self.token = self.depth = self.steps = 0
        self.given = False

    @property
    def reads(self) -> set[Entry]:
        """The entries that the instance reads."""
        return self.placed | self.gathered.read if self.gathered else self.placed

    @property
    def reached(self) -> set[Entry]:
        """The entries that the instance reads or might gather."""
        found = self.gathered
        return self.placed.union(found.read, found.may_read) if found else self.placed

    def gathering(self) -> Gathered:
        """The record of gathered reads, created at the first call."""
        if self.gathered is None:
            self.gathered = Gathered()
        return self.gathered


Step = Callable[[Point, Instance], Scalar]
"""The value of an expression at a point; operations and reads are recorded in the instance."""


def after(scalars: Collection[Scalar], value: float) -> Scalar:
    """A scalar with this value that depends on all of `scalars` without an operation: with their
    greatest depth, steps and token, dependent on an input if one of them is. Without scalars, a
    constant: depth 0, token 0."""
    if not scalars:
        return Scalar(value)
    _, depths, steps, tokens, given, _ = zip(*scalars, strict=True)
    return new(Scalar, (value, max(depths), max(steps), max(tokens), any(given), False))


def placed(place: At) -> Step:
    """A compiled position as a scalar of depth 0 and token 0: the same at every sequence."""
    return lambda point, instance: Scalar(place(point))


def times(factor: float, body: Step) -> Step:
    """The compiled product of the value of `body` with a constant, a function of a point and an
    instance. The product is free: depth and steps stay, and the instance tallies no operation."""

    def step(point: Point, instance: Instance) -> Scalar:
        value, depth, steps, token, given, empty = body(point, instance)
        return new(Scalar, (value * factor, depth, steps, token, given, empty))

    return step


def called(function: str, body: Step) -> Step:
    """The compiled call of a named function, a function of a point: the instance tallies the
    function's steps (`functions.TABLE`; of sigmoid exp, add and div), and the result is as many
    operations deeper than the operand. OracleError for an operand without a value, as log of -1."""
    taken, value = TABLE[function].steps, FUNCTIONS[function]
    deep = len(taken)

    def step(point: Point, instance: Instance) -> Scalar:
        """The result at a point, `deep` operations, of the classes `taken`, after the operand."""
        operand, depth, steps, token, given, _ = body(point, instance)
        for name in taken:
            instance.operations[name] += 1
        try:
            result = value(operand)
        except ValueError:
            raise OracleError(f"{function} has no value at {operand:g}") from None
        return new(Scalar, (result, depth + deep, steps + deep, token, given, False))

    return step


def arithmetic(
    name: str, operation: Callable[[float, float], float], *, adds: bool = False
) -> Callable[[Step, Step], Step]:
    """The compiler of a binary operation of class `name`: (left, right) -> the operation as a
    function of a point. If an operand is an empty sum e, no operation is executed: where `adds`
    (for + and -), e + x is x and e - x is -x; otherwise e * x and e / x are empty sums too. A
    division by 0, as by an empty sum, raises ZeroDivisionError, of which `Interpreter.execute`
    makes an OracleError."""

    def made(left: Step, right: Step) -> Step:
        """The operation on two compiled operands, compiled."""

        def step(point: Point, instance: Instance) -> Scalar:
            """The result at a point; an empty operand makes it free, as `arithmetic` says. Without
            helpers, as most of an execution is spent here."""
            one, two = left(point, instance), right(point, instance)
            value, depth, steps, token, given, empty = one
            value_2, depth_2, steps_2, token_2, given_2, empty_2 = two
            value, given = operation(value, value_2), given or given_2
            token = token if token > token_2 else token_2
            if not (empty or empty_2):
                instance.operations[name] += 1
                depth = 1 + (depth if depth > depth_2 else depth_2)
                steps = 1 + (steps if steps > steps_2 else steps_2)
                return new(Scalar, (value, depth, steps, token, given, False))
            if not adds:
                return Scalar(0.0, 0, 0, token, given, empty=True)
            kept = two if empty else one
            return Scalar(value, kept.depth, kept.steps, token, given, kept.empty)

        return step

    return made


def larger(left: Step, right: Step) -> Step:
    """The compiled maximum of two values: one comparison, even if one is an empty sum."""

    def step(point: Point, instance: Instance) -> Scalar:
        both = left(point, instance), right(point, instance)
        found = after(both, max(scalar.value for scalar in both))
        instance.operations["compare"] += 1
        return found._replace(depth=found.depth + 1, steps=found.steps + 1)

    return step


def exp(value: float) -> float:
    """e to a power, infinite where no float holds it, as floating-point units and torch have it."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def sigmoid(value: float) -> float:
    """1 / (1 + e**-value), for every float."""
    return 1 / (1 + exp(-value))


FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "exp": exp,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "relu": lambda v: max(v, 0.0),
    "sigmoid": sigmoid,
    "silu": lambda v: v * sigmoid(v),
    "softplus": lambda v: max(v, 0.0) + math.log1p(math.exp(-abs(v))),
    "elu_plus_1": lambda v: v + 1 if v > 0 else math.exp(v),
    "gelu": lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    "silu_slope": lambda v: sigmoid(v) * (1 + v * (1 - sigmoid(v))),
    "erf_slope": lambda v: 2 / math.sqrt(math.pi) * math.exp(-v * v),
    "gelu_slope": lambda v: (
        (1 + math.erf(v / math.sqrt(2))) / 2 + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi)
    ),
}
