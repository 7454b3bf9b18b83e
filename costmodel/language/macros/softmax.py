"""Softmax and scaled scores as macros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.errors import EquationError, described
from costmodel.language.arguments import checked
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.macros.macro import Parts
from costmodel.language.nodes import (
    MASKED,
    Call,
    Composite,
    Constant,
    Div,
    Node,
    Operands,
    Reduce,
    Ref,
    Sub,
    node,
    record,
)
from costmodel.language.writing import indices_in, maximum
from costmodel.symbolic.polynomial import Poly


@checked
def scaled(body: Node, by: Poly) -> Node:
    """`body / sqrt(by)`: one division an entry unless a `scale=` rewrite says otherwise."""
    return Composite("scaled", node(body), by=Poly.of(by))


@record
class WithSink(Operands):
    """The operands of a softmax with a sink: an entry of the scores, and the sink's score."""

    scores: Ref
    sink: Ref


@checked
def softmax(body: Ref, over: Any, *, sink: Ref | None = None) -> Node:
    """The node of the softmax of array entries along `over`, an index of the left side or a tuple
    of them. It is expanded to three equations: exponentials, their sum, and one division each.

    With a `sink`, an array entry, the sum has the exponential of this entry as one more term, which
    takes 1 add and 1 exp for each row.

    Raises:
        EquationError: the scores or the sink are no array entry.
    """
    if not isinstance(body, Ref):
        raise EquationError(
            f"softmax takes an entry of an array, got {described(body)}: define the scores first"
        )
    if not isinstance(sink, Ref | None):
        raise EquationError(
            f"the sink of a softmax must be an entry of an array, got {described(sink)}: define an "
            "array of sinks"
        )
    return Composite("softmax", body if sink is None else WithSink(body, sink), indices_in(over))


def scores_and_sink(composite: Composite) -> tuple[Ref, Ref | None]:
    """(scores of a softmax, its sink: a further entry in the sum of exponentials, or None)."""
    body = composite.body
    if isinstance(body, WithSink):
        return body.scores, body.sink
    assert isinstance(body, Ref)
    return body, None


def write_softmax(
    equation: Equation, composite: Composite, rewrites: Sequence[str]
) -> list[Equation]:
    """The equations that replace `equation`, whose right side is the softmax `composite`:
    exponentials, their sum over the composite's indices (with the sink's, a score that only the sum
    has), and quotients. Under `safe-softmax` the maximum of row and sink is subtracted first, which
    cancels in the quotients, and gets no gradient; under `mask=add` the 0 of a visible pair is
    added to each score of a row over some keys (j <= i).

    Raises:
        EquationError: the softmax runs over an index that the left side lacks.
    """
    parts, over, (scores, sink) = Parts(equation), composite.over, scores_and_sink(composite)
    for index in over:
        if index not in equation.indices:
            raise EquationError(
                f"{equation.name}: softmax runs over {index.name}: put {index.name} on the left "
                "side too"
            )

    if "mask=add" in rewrites and _masked(equation, over):
        scores = parts.define(MASKED, scores + Constant(Poly.of(0)))

    def exponential(score: Ref) -> Node:
        return Call("exp", score if largest is None else Sub(score, largest))

    largest = None
    if "safe-softmax" in rewrites:
        row: Node = Reduce("max", scores, over)
        name, row = ("max", row) if sink is None else ("shift", maximum(row, sink))
        largest = parts.define(name, row, *over, cancels=True)
    above = parts.define("exp", exponential(scores))
    total: Node = Reduce("sum", above, over)
    total = total if sink is None else total + exponential(sink)
    return parts.finish(Div(above, parts.define("sum", total, *over)))


def _masked(equation: Equation, over: Sequence[Index]) -> bool:
    """Whether a bound of an index in `over` names another index of the equation, as j <= i does."""
    free = {index.atom for index in equation.indices}
    bounds = (b for index in over for part in index.pieces for b in (*part.lower, *part.upper))
    return any(bound.letters & free for bound in bounds)
