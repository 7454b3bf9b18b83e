"""Softmax and scaled scores as macros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.errors import EquationError
from costmodel.language.arguments import checked
from costmodel.language.equations import Equation
from costmodel.language.macros.macro import Parts
from costmodel.language.nodes import Call, Composite, Div, Node, Reduce, Ref, Sub, node
from costmodel.language.writing import indices_in
from costmodel.symbolic.polynomial import Poly


@checked
def scaled(body: Node, by: Poly) -> Node:
    """`body / sqrt(by)`: one division each unless a `scale=` rewrite says otherwise."""
    return Composite("scaled", node(body), by=Poly.of(by))


@checked
def softmax(body: Ref, over: Any) -> Node:
    """The softmax of array entries along `over`, an index of the left side or a tuple of them. It
    is expanded to three equations: exponentials, their sum, and one division each."""
    if not isinstance(body, Ref):
        raise EquationError("softmax takes an array entry: define the scores first")
    return Composite("softmax", body, indices_in(over))


def write_softmax(
    equation: Equation, composite: Composite, rewrites: Sequence[str]
) -> list[Equation]:
    """Expand a softmax: exponentials, their sum over the composite's indices, and quotients. Under
    `safe-softmax` the row's maximum is subtracted first."""
    parts, over, exponent = Parts(equation), composite.over, composite.body
    for index in over:
        if index not in equation.indices:
            raise EquationError(
                f"{equation.name}: softmax runs over {index.name}, an index of its row"
            )
    if "safe-softmax" in rewrites:
        largest = parts.define("max", Reduce("max", composite.body, over), *over)
        exponent = Sub(composite.body, largest)
    power = parts.define("exp", Call("exp", exponent))
    return parts.finish(Div(power, parts.define("sum", Reduce("sum", power, over), *over)))
