"""Which sums do an equation's counts come from, before they are closed?

A product is done at every point of the ranges around it; a sum of R terms takes R - 1 additions (R
under `mac`) at every point of the ranges outside it. What is done at some of these points only, as
beside a sum that may have no term, stands in brackets: `[i >= 2]` is 1 there and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import Unsupported
from costmodel.language.indices import Index, one_by_one
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
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Select,
    Sub,
)
from costmodel.language.notation import Notation
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.program.nonempty import EVERYWHERE, both, may_be_empty
from costmodel.program.phases import IterationDomain
from costmodel.program.trip_count import Points, network, terms_of
from costmodel.questions.count import RULES as COUNT, rows_of, sorted_entries, transforms
from costmodel.symbolic.constraints import (
    ONE,
    Bound,
    Constraints,
    bounds,
    implied,
    projected,
    variables_of,
)
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Sum:
    """`body` for every point of `ranges`, outer ones first, where all of `guards` are >= 0."""

    ranges: tuple[Index, ...]
    body: Poly
    guards: tuple[Poly, ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value, every sum run term by term (slow: for small sizes)."""
        return self._at(dict(sizes), self.ranges)

    def _at(self, values: dict[str, int], ranges: tuple[Index, ...]) -> int:
        if not ranges:
            there = all(guard.rational(values) >= 0 for guard in self.guards)
            return self.body.at(values) if there else 0
        first, *rest = ranges
        low = max(bound.at(values) for bound in first.lower)
        up = min(bound.at(values) for bound in first.upper)
        return sum(self._at({**values, first.atom: k}, tuple(rest)) for k in range(low, up + 1))

    def printed(self, notation: Notation) -> str:
        """The sum in a notation; brackets that name an index of it stand inside."""
        body = notation.poly(self.body)
        inside = frozenset(guard for guard in self.guards if variables_of([guard]))
        before, within = (
            f"[{notation.conditions(guards)}] " if guards else ""
            for guards in (frozenset(self.guards) - inside, inside)
        )
        if not (self.ranges or before):
            return body
        body = f"({body})" if len(self.body.terms) > 1 else body
        body = within + body
        return before + (notation.reduction("sum", self.ranges, body) if self.ranges else body)


@dataclass(frozen=True)
class _Around:
    """The free indices that still run, those that are pinned, and the reductions around."""

    part: IterationDomain
    ranges: tuple[Index, ...]
    pinned: Mapping[str, Poly]
    guards: tuple[Poly, ...]
    over: tuple[Index, ...]
    accounting: str

    def sum(self, body: Poly, place: Constraints = frozenset()) -> Sum:
        """`body` at these points, or at some of them."""
        ranges = tuple(_at(index, self.pinned) for index in self.ranges + self.over)
        there = sorted((c.substitute(self.pinned) for c in place), key=str)
        guards = tuple(dict.fromkeys((*self.guards, *there)))
        return Sum(ranges, body.substitute(self.pinned), guards)

    @property
    def points(self) -> Points:
        """The same points, for the rules of the count."""
        points = Points(self.part.equation, self.part.variables, self.part.constraints, "")
        return points.inside(self.over)

    def inside(self, over: tuple[Index, ...]) -> _Around:
        """The points of an expression under a reduction."""
        return replace(self, over=self.over + over)


def sums(part: IterationDomain, accounting: str = "strict") -> dict[str, list[Sum]]:
    """Class -> the sums that its operations of one equation come from.

    Raises:
        Unsupported: the points that a phase executes are not among ranges of the indices.
    """
    pinned, ranges = _ranges(part)
    constraints = frozenset(c.substitute(pinned) for c in part.constraints)
    known = frozenset[Poly]().union(*(index.constraints for index in ranges))
    guards = tuple(sorted((c for c in constraints if not implied(known, c)), key=str))
    found: dict[str, dict[tuple[tuple[Index, ...], tuple[Poly, ...]], Poly]] = {}
    around = _Around(part, ranges, pinned, guards, (), accounting)
    for name, value in _walk(part.equation.value, around):
        bodies, where = found.setdefault(name, {}), (value.ranges, value.guards)
        bodies[where] = bodies.get(where, Poly()) + value.body
    return {
        name: [Sum(ranges, body, guards) for (ranges, guards), body in bodies.items()]
        for name, bodies in found.items()
    }


def _pinned(part: IterationDomain) -> dict[str, Poly]:
    """The indices that run over one value, such as t or t + 1 for one token, and that value."""
    found: dict[str, Poly] = {}
    for index in part.equation.indices:
        for value in (c + index.as_poly() for c in part.constraints if -c in part.constraints):
            if not variables_of([value]):
                found[index.atom] = value
    return found


def _ranges(part: IterationDomain) -> tuple[dict[str, Poly], tuple[Index, ...]]:
    """The indices that have one value, such as t for one token, and those that run, outer first.

    An index runs over its own range as far as that holds: one new token may lie beyond the length,
    where the constraints alone say how far.
    """
    pinned = _pinned(part)
    constraints = frozenset(c.substitute(pinned) for c in part.constraints)
    running = [index for index in part.equation.indices if index.atom not in pinned]
    found = []
    for k, index in enumerate(running):
        if index.constraints <= part.constraints:
            found.append(index)
            continue
        there = projected(constraints, [inner.atom for inner in running[k + 1 :]])
        lower, upper, _ = bounds(there, index.atom)
        if not (lower and upper) or any(scale != ONE for scale, _ in (*lower, *upper)):
            raise Unsupported(f"{part.equation.name}: its points for one token are no plain ranges")
        lows, ups = _needed(lower, 1, there), _needed(upper, -1, there)
        if lows == ups and not variables_of(lows):
            pinned[index.atom] = lows[0]
            constraints = frozenset(c.substitute(pinned) for c in constraints)
        else:
            found.append(Index(index.name, lows, ups))
    return pinned, tuple(_at(index, pinned) for index in found)


def _needed(ends: Sequence[Bound], sign: int, where: Constraints) -> tuple[Poly, ...]:
    """The lower (1) or upper (-1) ends of a range that are not proven to be weaker than others."""
    known = frozenset(c for c in where if not variables_of([c]))
    kept = sorted({bound for _, bound in ends}, key=str)
    for end in tuple(kept):
        if any(implied(known, (other - end) * sign) for other in kept if other != end):
            kept.remove(end)
    return tuple(kept)


def _walk(node: Node, around: _Around) -> Iterator[tuple[str, Sum]]:
    """The sums of a node and of those inside it."""
    yield from RULES[type(node)](node, around)
    for over in one_by_one(node.binders):
        for child in node.children:
            yield from _walk(child, around.inside(over))


def _at_each_point(node: Node, around: _Around) -> Iterator[tuple[str, Sum]]:
    """What the node's own rule counts, at each of the points where it is carried out."""
    points, places = around.points, EVERYWHERE
    if isinstance(node, Binary) and may_be_empty(points.equation):
        places = both(node, points.constraints)
    for place in places:
        for name, _ in COUNT[type(node)](node, points):
            yield name, around.sum(Poly.of(1), place)


def _reduce(node: Reduce, around: _Around) -> Iterator[tuple[str, Sum]]:
    for value in _reduction(node, around):
        yield {"sum": "add", "max": "compare"}[node.kind], value


def _reduction(node: Reduce, around: _Around) -> Iterator[Sum]:
    """R - 1 operations where there are R terms, and none where there is no term."""
    there = around.points.present(node)
    spared = node.kind == "max" or around.accounting == "strict"
    number = _number(node, around)
    if number is not None:
        for place in there:
            yield around.sum(number - 1 if spared else number, place)
        return
    for part in node.parts:
        inner = around.inside(part.over)
        for place in inner.points.present(part.body):
            yield inner.sum(Poly.of(1), place)
    for place in there if spared else ():
        yield around.sum(Poly.of(-1), place)


def _select(node: Select, around: _Around) -> Iterator[tuple[str, Sum]]:
    """What a maximum over the entries takes, for each position; a network for each sorted row."""
    if node.kind != "sort":
        yield from _reduce(node.maximum, around)
        return
    kept, _ = rows_of(around.points)
    ranges = tuple(index for index in around.ranges if index.atom in kept)
    number = network(sorted_entries(node, around.points))
    yield "compare", replace(around, ranges=ranges).sum(number)


def _number(node: Reduce, around: _Around) -> Poly | None:
    """How many terms a reduction has; None where that depends on cases, or adds up over ranges."""
    if len(node.parts) > 1 or around.inside(node.over).points.present(node.body) != EVERYWHERE:
        return None
    try:
        return terms_of(node.over)
    except Unsupported:
        return None


def _fft(node: Fft, around: _Around) -> Iterator[tuple[str, Sum]]:
    (piece,) = transforms(around.points, node).pieces
    for name, work in node.work.items():
        yield name, Sum((), piece[1] * work)


RULES: Rules[Callable[..., Iterator[tuple[str, Sum]]]] = Rules(
    "derivation",
    {
        Constant: _at_each_point,
        Ref: _at_each_point,
        Add: _at_each_point,
        Sub: _at_each_point,
        Mul: _at_each_point,
        Div: _at_each_point,
        Neg: _at_each_point,
        FreeScale: _at_each_point,
        Call: _at_each_point,
        Reduce: _reduce,
        Bracket: _at_each_point,
        Fft: _fft,
        Select: _select,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> the sums that its own operations come from."""


def _at(index: Index, values: Mapping[str, Poly]) -> Index:
    """An index whose bounds name no pinned index any more."""
    low, up = (tuple(b.substitute(values) for b in ends) for ends in (index.lower, index.upper))
    return Index(index.name, low, up)
