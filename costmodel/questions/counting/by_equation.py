"""The operations of one equation in a phase, by class (mul, add, ...), for tables and `explain`.

A point is a value for each index of the equation. A phase executes some points: of y[i], a forward
pass all i in 1..l, one new token i = t alone. An `IterationDomain` (`part` here) is an equation
with the points that a phase executes.
"""

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


@cache
def count_instances(part: IterationDomain, accounting: str = "strict") -> Mapping[str, Exact]:
    """Class (mul, add, ...) -> the number of operations of one equation at the points of its
    indices that a phase executes (`part` has both), exact in the sizes; zeros left out.
    `accounting`: R terms take R - 1 additions ("strict") or R ("mac")."""
    found: dict[str, Exact] = {}
    for one in executed(part.equation.value, _points(part, accounting)):
        found[one.operation] = found.get(one.operation, Exact()) + one.number
    return {name: value for name, value in found.items() if not value.is_zero}


def _joined(node: Node, points: Points) -> Exact:
    """The additions that each sequence after the first takes to join a sum over the batch.

    The gradient of a weight is summed over b sequences. An entry with R terms per sequence takes
    b*R - 1 additions in all: b*(R - 1), which the counts of b sequences hold, and b - 1 further
    ones. So the answer is 1 per entry; but 0 under `mac` or for a scatter, where R terms take R
    additions, and 0 where the entry is an empty sum. Of `left + right` each side is summed over the
    batch, which saves the addition of the two sides for each sequence after the first.
    """
    return JOINED[type(node)](node, points)


def _of_entries(node: Node, points: Points) -> Exact:
    """One addition per point at which the node is no empty sum."""
    return points.number(points.present(node))


def _of_sides(node: Binary, points: Points) -> Exact:
    """The additions of both sides, less one where neither side is an empty sum."""
    shares = _joined(node.left, points) + _joined(node.right, points)
    return shares - points.number(points.carried_out(node))


def _of_body(node: Neg | FreeScale, points: Points) -> Exact:
    return _joined(node.body, points)


def _of_terms(node: Reduce, points: Points) -> Exact:
    """One addition per entry with a term under `strict`; none under `mac` and for a scatter."""
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
"""Kind of node -> the additions of `_joined`. Kinds that share a rule in the table of empty sums
share one here, such as Sub with Add."""


def count_part(part: IterationDomain, accounting: str = "strict") -> Counts:
    """The counts of one equation at the points that a phase executes; of points that are executed
    once for all sequences in `once`."""
    tally = count_instances(part, accounting)
    counts = Counts({}, Counts(tally)) if part.once else Counts(tally, Counts({}))
    if part.joined:
        counts = replace(counts, joined=_joined(part.equation.value, _points(part, accounting)))
    return counts


@cache
def count_equations(system: System, phase: str, accounting: str = "strict") -> Mapping[str, Counts]:
    """Array as the mixer's author wrote it -> the counts of its equation in a phase, work on
    parameters alone in their `once`: in training `me` has {"y": d*l**2/2 + d*l/2 mul, d*l**2/2 -
    d*l/2 add}, with `accounting` "mac" as many add as mul. A composite such as softmax is written
    out in several equations, which all count for the author's array."""
    found: dict[str, Counts] = {}
    for part in iteration_domains(system, phase):
        counts = count_part(part, accounting)
        name = part.equation.part_of
        found[name] = found[name] + counts if name in found else counts
    return found
