"""Activations that are not a single function of `functions.TABLE`.

sigmoid, silu, softplus, relu, tanh and gelu with the error function are functions, allowed anywhere
in an expression: `function("silu", ...)`. An activation that reads its operand several times must
be a whole right-hand side.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from costmodel.language.arguments import checked
from costmodel.language.equations import Equation
from costmodel.language.macros.macro import Macro, Parts, under_any
from costmodel.language.nodes import Composite, Constant, Node, Ref, node
from costmodel.language.writing import function
from costmodel.symbolic.polynomial import Poly

SQRT_2_OVER_PI = Constant(Poly.of(Fraction("0.7978845608028654")))
"""sqrt(2/pi) in double precision, one constant."""

CUBIC = Constant(Poly.of(Fraction("0.044715")))
HALF = Constant(Poly.of(Fraction(1, 2)))


@checked
def gelu_tanh(x: Node) -> Node:
    """The node of 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x x x))), the approximation of gelu.

    Counted for each entry: 6 mul, 2 add, 1 tanh. The operand may be any expression; one that is no
    array entry gets an array of its own, since it is read five times.

    Source: Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2;
    torch.nn.functional.gelu(approximate="tanh").
    """
    return Composite("gelu_tanh", node(x))


def _gelu_tanh(equation: Equation, composite: Composite) -> list[Equation]:
    """The equations that replace `equation`, whose right side is the composite `gelu_tanh`, 0.5 x
    (1 + tanh(sqrt(2/pi) (x + 0.044715 x x x))); an operand that is an expression is defined first,
    as an array of its own."""
    parts = Parts(equation)
    match composite.body:
        case Ref() as x:
            pass
        case expression:
            x = parts.define("in", expression)
    inner = SQRT_2_OVER_PI * (x + CUBIC * x * x * x)
    return parts.finish(HALF * x * (1 + function("tanh", inner)))


MACROS: Mapping[str, Macro] = {
    "gelu_tanh": Macro(under_any(_gelu_tanh), latex=r"\mathrm{gelu}_{\tanh}"),
}
