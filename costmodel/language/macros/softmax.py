"""What are softmax and scaled scores in the language's own parts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costmodel.errors import EquationError
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.macros.macro import part_of
from costmodel.language.nodes import Call, Composite, Div, Flat, Node, Reduce, Ref, Sub, node
from costmodel.language.writing import indices_in
from costmodel.symbolic.polynomial import Poly


def scaled(body: Node, by: Poly) -> Node:
    """`body / sqrt(by)`: one division each unless a `scale=` rewrite says otherwise."""
    return Composite("scaled", node(body), by=Poly.of(by))


def softmax(body: Ref, over: Any) -> Node:
    """The softmax of array entries along `over`, an index of the left side or a tuple of them.

    Written out as exponentials, their sum and one division each (three equations).
    """
    if not isinstance(body, Ref):
        raise EquationError("softmax takes an array entry: define the scores first")
    return Composite("softmax", body, indices_in(over))


def write_softmax(
    equation: Equation, composite: Composite, rewrites: Sequence[str]
) -> list[Equation]:
    """The equations of a softmax; under `safe-softmax` its row's maximum is subtracted first."""
    if "safe-softmax" not in rewrites:
        return _normalised(equation, composite, composite.body)
    rows = _without(equation, composite.over)
    largest = _part(equation, "max", rows, Reduce("max", composite.body, composite.over))
    shifted = Sub(composite.body, Ref(largest.array, largest.positions))
    return [largest, *_normalised(equation, composite, shifted)]


def _normalised(equation: Equation, composite: Composite, exponent: Node) -> list[Equation]:
    """The exponentials, their sum over the composite's indices, and the quotients."""
    for index in composite.over:
        if index not in equation.indices:
            raise EquationError(
                f"{equation.name}: softmax runs over {index.name}, an index of its row"
            )
    powers = _part(equation, "exp", equation.indices, Call("exp", exponent))
    power = Ref(powers.array, powers.positions)
    total = Reduce("sum", power, composite.over)
    sums = _part(equation, "sum", _without(equation, composite.over), total)
    quotient = Div(power, Ref(sums.array, sums.positions))
    return [powers, sums, replace(equation, value=quotient)]


def _without(equation: Equation, over: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(i for i in equation.indices if i not in over)


def _part(equation: Equation, suffix: str, indices: Sequence[Index], value: Node) -> Equation:
    """An equation for an array of its own, indexed by `indices` and named after the composite."""
    extents = [
        extent
        for position, extent in zip(equation.positions, equation.array.shape, strict=True)
        if position in [i.as_poly() for i in indices]
    ]
    if len(extents) != len(indices):
        raise EquationError(f"{equation.name}: a softmax is indexed by plain indices only")
    ordered = [
        i
        for p in equation.positions
        for i in indices
        if not isinstance(p, Flat) and p == i.as_poly()
    ]
    array = part_of(equation, suffix, tuple(extents))
    positions = tuple(i.as_poly() for i in ordered)
    return Equation(array, positions, value, tuple(indices), equation.whole)
