"""The operations of one equation in a phase, by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from costmodel.language.equations import System
from costmodel.language.nodes import (
    Add,
    Binary,
    Bracket,
    Composite,
    FreeScale,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.program.nonempty import RULES as PRESENT
from costmodel.program.phases import IterationDomain, iteration_domains
from costmodel.program.trip_count import Points
from costmodel.questions.counting.counts import Counts
from costmodel.questions.counting.executed import executed
from costmodel.symbolic.piecewise import Exact


def _points(part: IterationDomain, accounting: str) -> Points:
    return Points(part.equation, part.variables, part.constraints, accounting)


def count_instances(part: IterationDomain, accounting: str = "strict") -> dict[str, Exact]:
    """Operations by class of the points of one equation in `part`; classes that are 0 left out."""
    found: dict[str, Exact] = {}
    for one in executed(part.equation.value, _points(part, accounting)):
        found[one.operation] = found.get(one.operation, Exact()) + one.number
    return {name: value for name, value in found.items() if not value.is_zero}


def _joined(node: Node, points: Points) -> Exact:
    """The additions that each sequence after the first adds to a sum over the batch (a gradient).

    One per entry: R terms a sequence make b*R - 1 = b*(R - 1) + (b - 1) additions. None under
    `mac` or for a scatter, whose terms are b*R additions; none for an empty sum. For `left + right`
    each side is summed over the batch first: one addition less than both sides take.
    """
    return JOINED[type(node)](node, points)


def _of_entries(node: Node, points: Points) -> Exact:
    return points.number(points.present(node))


def _of_sides(node: Binary, points: Points) -> Exact:
    shares = _joined(node.left, points) + _joined(node.right, points)
    return shares - points.number(points.carried_out(node))


def _of_body(node: Neg | FreeScale, points: Points) -> Exact:
    return _joined(node.body, points)


def _of_terms(node: Reduce, points: Points) -> Exact:
    none_left = points.accounting != "strict" or node.scatters
    return Exact() if none_left else _of_entries(node, points)


JOINED: Rules[Callable[..., Exact]] = Rules.like(
    "additions over a batch",
    PRESENT,
    {
        Ref: _of_entries,
        Mul: _of_entries,
        Bracket: _of_entries,
        Add: _of_sides,
        Neg: _of_body,
        Reduce: _of_terms,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> the additions of `_joined`. Kinds that are empty sums at the same places are
alike: a sum is one only where both sides are."""


@cache
def count_equations(system: System, phase: str, accounting: str = "strict") -> Mapping[str, Counts]:
    """Array as the mixer's author wrote it -> its counts, steps of its composites included."""
    found: dict[str, Counts] = {}
    for part in iteration_domains(system, phase):
        tally = count_instances(part, accounting)
        counts = Counts({}, Counts(tally)) if part.once else Counts(tally, Counts({}))
        if part.joined:
            counts = replace(counts, joined=_joined(part.equation.value, _points(part, accounting)))
        name = part.equation.part_of
        found[name] = found[name] + counts if name in found else counts
    return found
