"""How does each kind of node hand its gradient on to what it is made of? One table, `RULES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from costmodel.adjoint.derivatives import OF_BOTH, OF_OPERAND, OF_RESULT, ZERO
from costmodel.adjoint.transpose import Cotangent, Scale, transposed
from costmodel.errors import Unsupported
from costmodel.language.equations import SEQUENCE, STEP, Equation, System
from costmodel.language.indices import Index, outer_first
from costmodel.language.nodes import (
    TRANSFORMS,
    Add,
    Array,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Maximum,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Select,
    Sub,
    names_in,
    walk,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules, refused
from costmodel.symbolic.constraints import Constraints


@dataclass(frozen=True)
class Scope:
    """Where a gradient is taken: the points of an equation, and the indices summed over."""

    equation: Equation
    free: tuple[Index, ...]
    around: Constraints
    sequence: bool
    over: tuple[Index, ...] = ()
    scale: Scale | None = None
    """What everything that is handed on is scaled by, once it is summed over its readers."""

    @property
    def indices(self) -> tuple[Index, ...]:
        """All indices, outer ones first."""
        return self.free + self.over

    def inside(self, over: tuple[Index, ...]) -> Scope:
        """Under a reduction."""
        inner = self.around.union(*(index.constraints for index in over))
        return replace(self, over=self.over + tuple(outer_first(over)), around=inner)


class Reversal(Protocol):
    """What the rules ask of the reversal that they are part of."""

    system: System
    rewrites: frozenset[str]
    written: dict[Equation, str]

    def hand(self, node: Node, gradient: Node, scope: Scope) -> None:
        """Hand the gradient of an expression on to what it is made of."""
        ...

    def hand_to(self, ref: Ref, gradient: Node, scope: Scope) -> None:
        """Hand a gradient to the entry that a reference reads."""
        ...

    def keep(self, cotangent: Cotangent | None, scope: Scope) -> None:
        """Note what is handed to an array, if anything is."""
        ...

    def named(self, gradient: Node, scope: Scope) -> Node:
        """A gradient that is used more than once, in an array of its own; others as they are."""
        ...

    def scale_of(self, node: Mul | Div, scope: Scope) -> Scale | None:
        """How a sum of scores is scaled, where what it hands on is to be scaled in its place."""
        ...

    def gradient(self, array: Array) -> Array:
        """The gradient of an array, as a whole."""
        ...

    def handed_by(self, array: Array) -> Array:
        """A new array for a part of the gradient of an array."""
        ...


def is_active(node: Node, arrays: frozenset[Array]) -> bool:
    """Whether a gradient flows into an expression, given the arrays that have one."""
    return not arrays.isdisjoint(node.arrays)


def is_free(gradient: Node) -> bool:
    """Whether an expression takes no operation, so that it may be written more than once."""
    if isinstance(gradient, (Neg, FreeScale)):
        return is_free(gradient.body)
    return isinstance(gradient, (Ref, Constant))


def _ref(builder: Reversal, node: Ref, gradient: Node, scope: Scope) -> None:
    builder.hand_to(node, gradient, scope)


def _add(builder: Reversal, node: Add | Sub, gradient: Node, scope: Scope) -> None:
    arrays = builder.system.active
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.named(gradient, scope)
    builder.hand(node.left, gradient, scope)
    builder.hand(node.right, gradient if isinstance(node, Add) else Neg(gradient), scope)


def _mul(builder: Reversal, node: Mul, gradient: Node, scope: Scope) -> None:
    if scale := builder.scale_of(node, scope):
        builder.hand(node.left, gradient, replace(scope, scale=scale))
        return
    arrays = builder.system.active
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.named(gradient, scope)
    builder.hand(node.left, Mul(gradient, node.right), scope)
    builder.hand(node.right, Mul(gradient, node.left), scope)


def _div(builder: Reversal, node: Div, gradient: Node, scope: Scope) -> None:
    """u = g / b for the numerator; -u times the stored quotient for the denominator."""
    if scale := builder.scale_of(node, scope):
        builder.hand(node.left, gradient, replace(scope, scale=scale))
        return
    arrays = builder.system.active
    both = is_active(node.left, arrays) and is_active(node.right, arrays)
    if "quotient-gradient" in builder.rewrites:
        gradient = builder.named(gradient, scope) if both else gradient
        builder.hand(node.left, Div(gradient, node.right), scope)
        builder.hand(node.right, Neg(Mul(gradient, Div(node, node.right))), scope)
        return
    cotangent: Node = Div(gradient, node.right)
    if both:
        cotangent = builder.named(cotangent, scope)
    builder.hand(node.left, cotangent, scope)
    quotient = Ref(scope.equation.array, scope.equation.positions)
    builder.hand(node.right, Neg(Mul(cotangent, quotient)), scope)


def _maximum(builder: Reversal, node: Maximum, gradient: Node, scope: Scope) -> None:
    """To the left side where it is larger, elsewhere to the right one."""
    arrays = builder.system.active
    if is_active(node.left, arrays) and is_active(node.right, arrays):
        gradient = builder.named(gradient, scope)
    builder.hand(node.left, Bracket(gradient, node.left, ">", node.right, ZERO), scope)
    builder.hand(node.right, Bracket(ZERO, node.left, ">", node.right, gradient), scope)


def _call(builder: Reversal, node: Call, gradient: Node, scope: Scope) -> None:
    """A function, from its stored result or its operand."""
    if node.function in OF_RESULT:
        by_cases = OF_BOTH if "cases-gradient" in builder.rewrites else {}
        rule = by_cases.get(node.function, OF_RESULT[node.function])
        known: Node = Ref(scope.equation.array, scope.equation.positions)
    elif node.function in OF_OPERAND:
        rule, known = OF_OPERAND[node.function], node.body
    else:
        raise Unsupported(f"the gradient of {node.function} is not known")
    handed = rule(gradient, known)
    if sum(part is gradient for part, _ in walk(handed)) > 1:
        handed = rule(builder.named(gradient, scope), known)
    builder.hand(node.body, handed, scope)


def _reduce(builder: Reversal, node: Reduce, gradient: Node, scope: Scope) -> None:
    """A sum broadcasts its gradient to every term; a maximum hands it to its first occurrence."""
    gradient = builder.named(gradient, scope)
    if node.kind == "sum":
        for part in node.parts:
            builder.hand(part.body, gradient, scope.inside(part.over))
        return
    if len(node.parts) > 1 or not isinstance(node.body, Ref) or len(node.over) > 1:
        raise Unsupported(f"{scope.equation.name}: the gradient of a maximum over several ranges")
    largest = Ref(scope.equation.array, scope.equation.positions)
    first = Bracket(gradient, node.body, "=", largest, first=node.over)
    builder.hand(node.body, first, scope.inside(node.over))


def _negated(builder: Reversal, node: Neg, gradient: Node, scope: Scope) -> None:
    builder.hand(node.body, Neg(gradient), scope)


def _free_scale(builder: Reversal, node: FreeScale, gradient: Node, scope: Scope) -> None:
    builder.hand(node.body, FreeScale(gradient, node.factor), scope)


def _fft(builder: Reversal, node: Fft, gradient: Node, scope: Scope) -> None:
    """The transposed transform, in an array of its own."""
    assert isinstance(gradient, Ref)
    read = set(names_in(node.body.positions))
    made = tuple(i for i in scope.free if i.atom not in read)
    by_place = names_in(scope.equation.positions)
    made = tuple(sorted(made, key=lambda i: by_place.index(i.atom)))
    indices = tuple(outer_first([*(i for i in scope.free if i.atom in read), *node.over]))
    back = TRANSFORMS[node.kind]
    kind = back.of_libraries if "fft-gradient" in builder.rewrites else back.adjoint
    value = Fft(kind, gradient, made, node.length)
    of = node.body.array
    array = builder.handed_by(of)
    equation = Equation(array, node.body.positions, value, indices, builder.gradient(of))
    builder.written[equation] = SEQUENCE if scope.sequence else STEP
    around = frozenset().union(*(index.constraints for index in indices))
    cotangent = transposed(node.body, indices, around, Ref(array, node.body.positions))
    builder.keep(cotangent, scope)


def _none(builder: Reversal, node: Constant | Select, gradient: Node, scope: Scope) -> None:
    """What depends on no array that gets a gradient hands nothing on."""


@dataclass(frozen=True)
class Reader:
    """Whose gradients read values: the arrays that get one, and whether that of a divisor reads the
    quotient (or else what was divided)."""

    active: frozenset[Array]
    quotients: bool

    def wants(self, node: Node) -> bool:
        """Whether a gradient flows into an expression."""
        return is_active(node, self.active)


@dataclass(frozen=True)
class Reads:
    """Which values the gradient of a node reads: of each operand, in order, and of its result."""

    operands: tuple[bool, ...] = ()
    result: bool = False


def _no_value(node: Node, reader: Reader) -> Reads:
    return Reads()


def _other_factor(node: Mul, reader: Reader) -> Reads:
    return Reads((reader.wants(node.right), reader.wants(node.left)))


def _divisor(node: Div, reader: Reader) -> Reads:
    """The divisor, and for its own gradient the quotient, or what was divided."""
    below = reader.wants(node.right)
    return Reads((below and not reader.quotients, True), below and reader.quotients)


def _both(node: Maximum, reader: Reader) -> Reads:
    return Reads((True, True))


def _result_or_operand(node: Call, reader: Reader) -> Reads:
    result = node.function in OF_RESULT
    return Reads((not result,), result)


def _largest(node: Reduce, reader: Reader) -> Reads:
    """Of a maximum its terms and the largest one."""
    return Reads((node.kind == "max",), node.kind == "max")


@dataclass(frozen=True)
class Adjoint:
    """How a kind of node hands its gradient on, and which values that reads."""

    hand: Callable[..., None]
    reads: Callable[..., Reads] = _no_value


_OF_GRADIENTS = refused("the gradient of a bracket, which gradients alone hold, is not derived")

RULES: Rules[Adjoint] = Rules(
    "adjoint",
    {
        Constant: Adjoint(_none),
        Ref: Adjoint(_ref),
        Add: Adjoint(_add),
        Sub: Adjoint(_add),
        Mul: Adjoint(_mul, _other_factor),
        Div: Adjoint(_div, _divisor),
        Maximum: Adjoint(_maximum, _both),
        Neg: Adjoint(_negated),
        FreeScale: Adjoint(_free_scale),
        Call: Adjoint(_call, _result_or_operand),
        Reduce: Adjoint(_reduce, _largest),
        Bracket: Adjoint(_OF_GRADIENTS, _OF_GRADIENTS),
        Fft: Adjoint(_fft),
        Select: Adjoint(_none),
        Composite: Adjoint(WRITTEN_OUT, WRITTEN_OUT),
    },
)
"""Kind of node -> what its gradient takes."""
