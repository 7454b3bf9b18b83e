"""Which operations does an expression execute, and at which points?

A point is a value for each index of the equation and of the reductions around the expression;
`Points` (trip_count.py) holds these indices and their constraints. There is one rule per kind of
node. A product is executed at every point of the enclosing ranges. A sum of R terms takes R - 1
additions (R under `mac`) at every point of the ranges outside of the sum. A scatter adds each term
to an entry that starts as 0: one addition per term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from costmodel.errors import Unsupported
from costmodel.language.equations import rows
from costmodel.language.functions import TABLE
from costmodel.language.nodes import (
    MERGE_SORT,
    Add,
    Along,
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
    names_in,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.program.trip_count import Points, comparators, merges, terms_of
from costmodel.symbolic.constraints import ONE, Constraints, variables_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import total
from costmodel.symbolic.polynomial import Poly, atom_name, by_text


@dataclass(frozen=True)
class Executed:
    """Operations of one class: `times` of them at each point that the other fields describe."""

    operation: str
    points: Points
    times: Poly = ONE
    """The operations per point (negative: fewer); a polynomial in sizes, not in indices."""
    place: Constraints = frozenset()
    """Further conditions on the points at which the operations are executed."""
    terms: Reduce | None = None
    """A reduction whose every term executes the operations; each index has one range."""
    along: tuple[str, ...] | None = None
    """For a node that yields several entries at once (a transform, a sort): the indices with one
    execution per point. None: all enclosing indices."""

    @property
    def number(self) -> Exact:
        """The operations at all points (values of the equation's indices) together, in sizes."""
        points = self.points
        if self.along is not None:
            kept, there = along(points, self.along)
            return total(kept, there, ONE) * self.times
        if self.terms is not None:
            points = points.inside(self.terms.over)
        return points.number((self.place,)) * self.times


def executed(node: Node, points: Points) -> Iterator[Executed]:
    """Yield the operations that an expression and its subexpressions execute at `points` (the
    values of the equation's indices), each with the points at which it is executed.

    Raises:
        Unsupported: the operations are not summed exactly, such as those of sorts whose length
            depends on the row.
    """
    yield from RULES[type(node)](node, points)
    for child, inner in points.under(node):
        yield from executed(child, inner)


def along(points: Points, names: tuple[str, ...]) -> tuple[tuple[str, ...], Constraints]:
    """(`names`, those constraints of the points that contain no other of their indices): the points
    at which a sort, scan or transform, whose one execution gives several entries, is executed."""
    dropped = {*points.variables} - {*names}
    return names, frozenset(c for c in points.constraints if not c.letters & dropped)


def _nothing(node: Node, points: Points) -> Iterator[Executed]:
    return iter(())


def _one_operation(operation: str, node: Binary, points: Points) -> Iterator[Executed]:
    """Yield one operation at the points where neither operand is an empty sum."""
    for place in points.carried_out(node):
        yield Executed(operation, points, place=place)


def _compared(node: Maximum, points: Points) -> Iterator[Executed]:
    yield Executed("compare", points)


def _call(node: Call, points: Points) -> Iterator[Executed]:
    for step in TABLE[node.function].steps:
        yield Executed(step, points)


def _reduce(node: Reduce, points: Points) -> Iterator[Executed]:
    """Yield the operations of a sum or maximum of R terms that are no empty sums: R additions or
    comparisons, less 1 where there is a term (under `strict`, and for every maximum). A scatter,
    which adds each term to the entry that data choose, takes 1 addition per term."""
    if node.scatters:
        assert isinstance(node.body, Bracket)
        # each term goes to the one entry that data choose: no point per value of its index
        yield Executed("add", points.inside(node.over).without(node.body.named))
        return
    operation = {"sum": "add", "max": "compare"}[node.kind]
    for part in node.parts:
        for place in points.inside(part.over).present(part.body):
            yield Executed(operation, points, place=place, terms=part)
    if node.kind == "max" or points.accounting == "strict":
        for place in points.present(node):
            yield Executed(operation, points, Poly.of(-1), place)


def _along(node: Along, points: Points) -> Iterator[Executed]:
    """Yield the operations of the algorithm of a transform or scan, executed once at each point of
    the indices that the operand shares with the left side."""
    for operation, work in node.work.items():
        yield Executed(operation, points, work, along=_shared(node.body, points))


def _scan(node: Scan, points: Points) -> Iterator[Executed]:
    """Yield the operations of a scan; the products of decays are taken once at each point of the
    indices that the decays share with the left side."""
    yield from _along(node, points)
    yield Executed("mul", points, node.combinations, along=_shared(node.kept, points))


def _shared(operand: Ref, points: Points) -> tuple[str, ...]:
    """The variables of the points that the positions of an operand name: ("@b",) of x[w, b] in the
    equation of X[f, c, b]."""
    return tuple(v for v in points.variables if v in names_in(operand.positions))


def _select(node: Select, points: Points) -> Iterator[Executed]:
    """Yield the comparisons of a selection: per kept position those of a maximum, R - 1 among R
    entries, those already chosen included; for a sort, those of its algorithm per row."""
    if node.sorts:
        kept = tuple(index.atom for index in rows(points.equation))
        algorithm = merges if node.kind == MERGE_SORT else comparators
        comparisons = algorithm(_sorted_entries(node, points))
        yield Executed("compare", points, comparisons, along=kept)
    else:
        yield from _reduce(node.maximum, points)


def _sorted_entries(node: Select, points: Points) -> Poly:
    """The number of entries of a sorted row, as a polynomial in sizes; an index that constraints
    fix (i = t for one token) is replaced by its value. Unsupported for any other index."""
    number = terms_of(node.over)
    for name in sorted(variables_of([number])):
        # an equation c = 0, as t - i = 0, gives the index's value c + i = t
        fixed = by_text(c for c in points.constraints if -c in points.constraints)
        rest = (c + Poly.atom(name) for c in fixed)
        value = next((v for v in rest if not variables_of([v])), None)
        if value is None:
            raise Unsupported(
                f"{points.equation.name}: the length of a sort depends on index "
                f"{atom_name(name)}, and the sum of its comparisons is not derived: sort rows of "
                "one length"
            )
        number = number.substitute({name: value})
    return number


_add, _mul, _div = (partial(_one_operation, operation) for operation in ("add", "mul", "div"))

RULES: Rules[Callable[..., Iterator[Executed]]] = Rules(
    "count",
    {
        Constant: _nothing,
        Ref: _nothing,
        Add: _add,
        Sub: _add,
        Mul: _mul,
        Div: _div,
        Maximum: _compared,
        Neg: _nothing,
        FreeScale: _nothing,
        Call: _call,
        Reduce: _reduce,
        Bracket: _nothing,
        Fft: _along,
        Scan: _scan,
        Select: _select,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> its own operations, without those of its operands."""
