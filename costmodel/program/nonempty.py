"""Empty sums: the points at which an expression has a term.

A sum over no term is 0 and free, and so is adding it or multiplying by it. An expression is
*present* where it has a term. Its *places* are conditions on the points around it: the sum over j
in 2..i is present at the places i - 2 >= 0. Emptiness is tracked within one equation; an entry that
an equation writes is always present.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.indices import Index, outer_first
from costmodel.language.nodes import (
    Add,
    Binary,
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
    Scan,
    Select,
    Sub,
    walk,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.symbolic.constraints import Constraints, implied, infeasible, outside, projected

Places = tuple[Constraints, ...]
"""Disjoint conditions on the points around an expression, which has a term where one is met; () if
the expression has a term nowhere."""

EVERYWHERE: Places = (frozenset(),)


@cache
def may_be_empty(equation: Equation) -> bool:
    """Whether an equation may have an empty sum: a reduction that is not proven to have a term at
    every point (the sum over j in 2..i has none at i = 1), or a bracket (a value under a condition)
    without a value where the condition fails. False spares the callers all other tests for empty
    sums. Only nodes that can be empty by themselves count: reductions, unless each range has a
    value, and brackets without an alternative."""
    for part, over in walk(equation.value):
        if RULES[type(part)] in (_always, both, _either, _inside):
            continue  # empty only where operands are
        around = equation.domain.union(*(index.constraints for index in over))
        bare = (
            any(_may_lack_values(one.binders, around) for one in part.parts)
            if part.binders
            else True
        )
        if bare and not (isinstance(part, Bracket) and part.otherwise is not None):
            return True
    return False


def never_empty(over: Sequence[Index], equation: Equation) -> bool:
    """Whether sums over the indices `over`, one within another, are proven to have a term at every
    point of an equation, whatever its other sums have. Not proven of an equation with a bracket (a
    value under a condition), or of an index over a union of ranges."""
    if not over or not may_be_empty(equation):
        return True
    known = not any(isinstance(node, Bracket) for node, _ in walk(equation.value))
    single = all(len(index.pieces) == 1 for index in over)
    return known and single and not _may_lack_values(over, equation.domain)


def _may_lack_values(over: Sequence[Index], around: Constraints) -> bool:
    """Whether some range of the indices that a node, such as a sum, binds is not proven, from the
    constraints `around`, to be nonempty."""
    known = around
    for index in outer_first(over):
        for low in index.lower:
            for up in index.upper:
                if not implied(known, up - low):
                    return True
        known = known | index.constraints
    return False


def present(node: Node, around: Constraints) -> Places:
    """The places (disjoint conditions), among the points that satisfy `around`, at which an
    expression is not an empty sum.

    Raises:
        Unsupported: a maximum that is not proven to have a term.
    """
    return RULES[type(node)](node, around)


def _always(node: Node, around: Constraints) -> Places:
    return EVERYWHERE


def both(node: Binary, around: Constraints) -> Places:
    """The places (disjoint conditions), among the points that satisfy `around`, at which
    no operand is an empty sum, so that the operation is executed."""
    left, right = (present(child, around) for child in node.children)
    return _joined(left, right, around)


def _joined(left: Places, right: Places, around: Constraints) -> Places:
    """The conditions under which both unions of conditions hold, at points that satisfy `around`:
    (i >= 2,) and (i >= 3, i <= 1) give (i >= 2 and i >= 3,)."""
    if left == EVERYWHERE or right == EVERYWHERE:
        return right if left == EVERYWHERE else left
    pairs = (one | two for one in left for two in right)
    return tuple(pair for pair in pairs if not infeasible(around | pair))


def _either(node: Binary, around: Constraints) -> Places:
    """The places (disjoint conditions), among the points that satisfy `around`, at which a
    sum or difference is no empty sum: where at least one operand is no empty sum."""
    left, right = (present(child, around) for child in node.children)
    if EVERYWHERE in (left, right):
        return EVERYWHERE
    return _disjoint((*left, *right), around)


def _disjoint(places: Sequence[Constraints], around: Constraints) -> Places:
    """The union of several conditions as disjoint conditions, at points that satisfy `around`."""
    kept: list[Constraints] = []
    for place in places:
        kept += [part - around for part in outside(place | around, [k | around for k in kept])]
    return tuple(kept)


def _inside(node: Neg | FreeScale, around: Constraints) -> Places:
    return present(node.body, around)


def with_terms(node: Reduce, around: Constraints) -> Places:
    """The places (disjoint conditions), among the points that satisfy `around`, at which a
    reduction has a term: `EVERYWHERE` if at all, () if at none; i >= 2 for a sum over j in 2..i."""
    found: list[Constraints] = []
    for part in node.parts:
        inner = around.union(*(index.constraints for index in part.over))
        body = present(part.body, inner)
        if body == EVERYWHERE and not _may_lack_values(part.binders, around):
            return EVERYWHERE  # the ranges of this part alone give each point a term
        hidden = [index.atom for index in reversed(outer_first(part.over))]
        for place in body:
            if not infeasible(inner | place):
                terms = projected(inner | place, hidden)
                found.append(frozenset(c for c in terms if not implied(around, c)))
    if frozenset() in found or _covered(around, found):
        return EVERYWHERE
    return _disjoint(found, around)


def _covered(around: Constraints, found: Sequence[Constraints]) -> bool:
    """Whether the union of several conditions is proven to cover every point."""
    return len(found) > 1 and not outside(around, [around | place for place in found])


def _reduce(node: Reduce, around: Constraints) -> Places:
    """The places (disjoint conditions), among the points that satisfy `around`, at which a sum has
    a term; Unsupported for a maximum that is not proven to have a term at each of these points."""
    found = with_terms(node, around)
    if node.kind != "sum" and found != EVERYWHERE:
        names = ", ".join(index.name for index in node.over)
        raise Unsupported(
            f"the maximum over {names} may have no term: give {names} at least one value at every "
            "entry"
        )
    return found


def _bracket(node: Bracket, around: Constraints) -> Places:
    """The places (disjoint conditions) at which a bracket, `body` under a condition, is not an
    empty sum: everywhere, if it has a value where the condition fails (`otherwise`); else the
    places of the body. With indices `first`, as in the gradient of a maximum over j, the bracket
    holds at one point of these indices, which values decide. No cost depends on which point, so the
    point is taken where each index equals the largest of its lower bounds."""
    if node.otherwise is not None:
        return EVERYWHERE
    places = present(node.body, around)
    for index in node.first:
        # a condition per lower bound: the index equals it, and it exceeds the bounds listed before
        first = (
            frozenset({low - index.as_poly(), *(low - other - 1 for other in index.lower[:k])})
            for k, low in enumerate(index.lower)
        )
        places = _joined(tuple(first), places, around)
    return places


RULES: Rules[Callable[..., Places]] = Rules(
    "nonempty",
    {
        Constant: _always,
        Ref: _always,
        Add: _either,
        Sub: _either,
        Mul: both,
        Div: both,
        Maximum: _always,
        Neg: _inside,
        FreeScale: _inside,
        Call: _always,
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: _always,
        Scan: _always,
        Select: _always,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> the places at which it is not an empty sum."""
