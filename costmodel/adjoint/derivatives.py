"""The derivative rules of operations: operand gradients from the result's gradient g.

The count of a training step is defined by this table. `a * b` gives g * b and g * a. `a / b` gives
u = g / b and -u times the stored quotient. A function gives g times its derivative, from the stored
result y where that saves work (exp: g * y), else from the stored operand x (log: g / x). A sum
broadcasts g without cost; a maximum gives g to its first occurrence, whose position the forward
pass has found. No other terms are shared or simplified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from costmodel.language.nodes import Add, Bracket, Call, Constant, Div, Maximum, Mul, Neg, Node, Sub
from costmodel.symbolic.polynomial import Poly

ONE, TWO, ZERO = (Constant(Poly.of(number)) for number in (1, 2, 0))
MINUS_HALF = Constant(Poly.of(Fraction(-1, 2)))


def where_larger(value: Node, left: Node, right: Node, otherwise: Node) -> Node:
    """`value` where left > right, `otherwise` elsewhere, by a comparison: max(left, right)."""
    return Bracket(value, Maximum(left, right), ">", right, otherwise)


def _exp(g: Node, y: Node) -> Node:
    return Mul(g, y)


def _sqrt(g: Node, y: Node) -> Node:
    return Div(g, Mul(TWO, y))


def _rsqrt(g: Node, y: Node) -> Node:
    return Mul(Mul(MINUS_HALF, g), Mul(Mul(y, y), y))


def _tanh(g: Node, y: Node) -> Node:
    return Mul(g, Sub(ONE, Mul(y, y)))


def _sigmoid(g: Node, y: Node) -> Node:
    return Mul(Mul(g, y), Sub(ONE, y))


def _relu(g: Node, y: Node) -> Node:
    return Bracket(g, y, ">", ZERO, ZERO)


def _elu_plus_1(g: Node, y: Node) -> Node:
    return Bracket(g, y, ">", ONE, Mul(g, y))


def _log(g: Node, x: Node) -> Node:
    return Div(g, x)


def _sin(g: Node, x: Node) -> Node:
    return Mul(g, Call("cos", x))


def _cos(g: Node, x: Node) -> Node:
    return Neg(Mul(g, Call("sin", x)))


def _softplus(g: Node, x: Node) -> Node:
    return Mul(g, Call("sigmoid", x))


def _slope(function: str) -> Callable[[Node, Node], Node]:
    """The rule g * slope(x) of a function whose slope is a function of its own."""
    return lambda g, x: Mul(g, Call(function, x))


OF_RESULT: Mapping[str, Callable[[Node, Node], Node]] = {
    "exp": _exp,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "relu": _relu,
    "elu_plus_1": _elu_plus_1,
}
"""Function -> (gradient of the result, stored result) -> gradient of the operand."""

OF_OPERAND: Mapping[str, Callable[[Node, Node], Node]] = {
    "log": _log,
    "sin": _sin,
    "cos": _cos,
    "softplus": _softplus,
    "erf": _slope("erf_slope"),
    "silu": _slope("silu_slope"),
    "gelu": _slope("gelu_slope"),
}
"""Function -> (gradient of the result, stored operand) -> gradient of the operand."""


def _both_of_elu_plus_1(g: Node, y: Node) -> Node:
    return Add(Bracket(g, y, ">", ONE, ZERO), Bracket(ZERO, y, ">", ONE, Mul(g, y)))


OF_BOTH: Mapping[str, Callable[[Node, Node], Node]] = {"elu_plus_1": _both_of_elu_plus_1}
"""Function by cases -> gradient of the operand as a sum over both branches, each zero where the
other branch holds; from the stored result."""

COMPARED: Mapping[str, Callable[[Node, Node], Node]] = {
    "relu": lambda g, y: where_larger(g, y, ZERO, ZERO)
}
"""Function by cases -> gradient of the operand from the stored result, compared and counted again;
`OF_RESULT` takes the branch that the forward pass has found."""

CALLS = {**OF_RESULT, **OF_OPERAND}
