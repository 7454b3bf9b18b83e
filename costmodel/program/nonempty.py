"""Where is an expression more than a sum over no term?

A reduction over no term is 0 and costs nothing, and adding it or multiplying by it costs nothing.
It is followed inside one equation; an entry that an equation writes is a number like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.indices import outer_first
from costmodel.language.nodes import (
    Add,
    Binary,
    Div,
    First,
    Folded,
    Joined,
    Mul,
    Neg,
    Node,
    Reduce,
    Reduction,
    Sub,
    walk,
)
from costmodel.symbolic.constraints import Constraints, implied, infeasible, outside, projected

Places = tuple[Constraints, ...]
"""Disjoint conditions, besides those around an expression, of which one holds where it is."""

EVERYWHERE: Places = (frozenset(),)


@cache
def may_be_empty(equation: Equation) -> bool:
    """Whether some reduction of an equation is not proven to have a term at every point."""
    for part, over in walk(equation.value):
        if isinstance(part, First):
            return True
        if isinstance(part, Reduce):
            around = equation.domain.union(*(index.constraints for index in over))
            if _bare(part, around):
                return True
    return False


def _bare(node: Reduce, around: Constraints) -> bool:
    """Whether a range of a reduction is not proven to hold a term."""
    known = around
    for index in outer_first(node.over):
        for low in index.lower:
            for up in index.upper:
                if not implied(known, up - low):
                    return True
        known = known | index.constraints
    return False


def present(node: Node, around: Constraints) -> Places:
    """Where, among the points with `around`, an expression is no empty sum.

    Raises:
        Unsupported: a maximum that may be over no term.
    """
    rule = RULES.get(type(node))
    return EVERYWHERE if rule is None else rule(node, around)


def both(node: Binary, around: Constraints) -> Places:
    """Where both sides of an operation are there, so that it is carried out."""
    left, right = (present(child, around) for child in node.children)
    return _joined(left, right, around)


def _joined(left: Places, right: Places, around: Constraints) -> Places:
    if left == EVERYWHERE or right == EVERYWHERE:
        return right if left == EVERYWHERE else left
    pairs = (one | two for one in left for two in right)
    return tuple(pair for pair in pairs if not infeasible(around | pair))


def _either(node: Binary, around: Constraints) -> Places:
    left, right = (present(child, around) for child in node.children)
    if EVERYWHERE in (left, right):
        return EVERYWHERE
    return _disjoint((*left, *right), around)


def _disjoint(places: Sequence[Constraints], around: Constraints) -> Places:
    kept: list[Constraints] = []
    for place in places:
        kept += [part - around for part in outside(place | around, [k | around for k in kept])]
    return tuple(kept)


def _inside(node: Neg | Folded, around: Constraints) -> Places:
    return present(node.body, around)


def with_terms(node: Reduction, around: Constraints) -> Places:
    """Where, among the points with `around`, a reduction has any term."""
    found: list[Constraints] = []
    for part in node.parts:
        inner = around.union(*(index.constraints for index in part.over))
        body = present(part.body, inner)
        if body == EVERYWHERE and not _bare(part, around):
            return EVERYWHERE
        hidden = [index.atom for index in reversed(outer_first(part.over))]
        for place in body:
            if not infeasible(inner | place):
                terms = projected(inner | place, hidden)
                found.append(frozenset(c for c in terms if not implied(around, c)))
    if frozenset() in found or _covered(around, found):
        return EVERYWHERE
    return _disjoint(found, around)


def _covered(around: Constraints, found: Sequence[Constraints]) -> bool:
    """Whether one of several conditions is proven to hold at every point."""
    return len(found) > 1 and not outside(around, [around | place for place in found])


def _reduce(node: Reduction, around: Constraints) -> Places:
    found = with_terms(node, around)
    if node.kind != "sum" and found != EVERYWHERE:
        names = ", ".join(index.name for index in node.over)
        raise Unsupported(f"a maximum over {names}, which may have no term")
    return found


def _first(node: First, around: Constraints) -> Places:
    """At one of the points that its indices run over: which one, no cost depends on. Here it is the
    first one, where each index is the largest of its lower bounds."""
    places = present(node.body, around)
    for index in node.over:
        first = (
            frozenset({low - index.as_poly(), *(low - other - 1 for other in index.lower[:k])})
            for k, low in enumerate(index.lower)
        )
        places = _joined(tuple(first), places, around)
    return places


RULES: Mapping[type[Node], Callable[..., Places]] = {
    Add: _either,
    Sub: _either,
    Mul: both,
    Div: both,
    Neg: _inside,
    Folded: _inside,
    First: _first,
    Reduce: _reduce,
    Joined: _reduce,
}
"""Nodes that may be 0 because a reduction has no term; all others are always there."""
