"""Which sums do an equation's counts come from, before they are closed?

A product is done at every point of the ranges around it; a sum of R terms takes R - 1 additions (R
under `mac`) at every point of the ranges outside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from costmodel.domains import Unsupported, implied, variables_of
from costmodel.expressions import Fft, Index, Node, Reduce
from costmodel.functions import TABLE
from costmodel.polynomial import Poly, call
from costmodel.rules.count import RULES, transforms
from costmodel.rules.latex import Notation
from costmodel.rules.points import Points
from costmodel.rules.span import terms_of
from costmodel.tokens import Instances, T


@dataclass(frozen=True)
class Sum:
    """`body` for every point of `ranges`, outer ones first, where all of `guards` are >= 0."""

    ranges: tuple[Index, ...]
    body: Poly
    guards: tuple[Poly, ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value, every sum run term by term (slow: for small sizes)."""
        if any(guard.at(sizes) < 0 for guard in self.guards):
            return 0
        return self._at(dict(sizes), self.ranges)

    def _at(self, values: dict[str, int], ranges: tuple[Index, ...]) -> int:
        if not ranges:
            return self.body.at(values)
        first, *rest = ranges
        low = max(bound.at(values) for bound in first.lower)
        up = min(bound.at(values) for bound in first.upper)
        return sum(self._at({**values, first.atom: k}, tuple(rest)) for k in range(low, up + 1))

    def printed(self, notation: Notation) -> str:
        """The sum in a notation; `[t <= 1]` is 1 where that holds and 0 elsewhere."""
        body = notation.poly(self.body)
        brackets = "".join(f"[{notation.condition(guard)}] " for guard in self.guards)
        if not (self.ranges or brackets):
            return body
        body = f"({body})" if len(self.body.terms) > 1 else body
        return brackets + (notation.reduction("sum", self.ranges, body) if self.ranges else body)


@dataclass(frozen=True)
class _Around:
    """The free indices that still run, those that are pinned, and the reductions around."""

    part: Instances
    ranges: tuple[Index, ...]
    pinned: Mapping[str, Poly]
    guards: tuple[Poly, ...]
    over: tuple[Index, ...]
    accounting: str

    def sum(self, body: Poly) -> Sum:
        ranges = tuple(_at(index, self.pinned) for index in self.ranges + self.over)
        return Sum(ranges, body.substitute(self.pinned), self.guards)

    @property
    def points(self) -> Points:
        points = Points(self.part.equation, self.part.variables, self.part.constraints, "")
        return points.inside(self.over)


def sums(part: Instances, accounting: str = "strict") -> dict[str, list[Sum]]:
    """Class -> the sums that its operations of one equation come from.

    Raises:
        Unsupported: the points that a phase executes are not ranges of the equation's indices.
    """
    pinned = {
        index.atom: T
        for index in part.equation.indices
        if {index.as_poly() - T, T - index.as_poly()} <= part.constraints
    }
    ranges = tuple(index for index in part.equation.indices if index.atom not in pinned)
    bounds = frozenset[Poly]().union(*(index.constraints for index in ranges))
    rest = {c.substitute(pinned) for c in part.constraints - bounds}
    guards = tuple(sorted((c for c in rest if not implied(frozenset(), c)), key=str))
    if variables_of(guards):
        raise Unsupported(f"{part.equation.name}: its points for one token are no plain ranges")
    found: dict[str, dict[tuple[Index, ...], Poly]] = {}
    around = _Around(part, ranges, pinned, guards, (), accounting)
    for name, value in _walk(part.equation.value, around):
        bodies = found.setdefault(name, {})
        bodies[value.ranges] = bodies.get(value.ranges, Poly()) + value.body
    return {name: [Sum(*item, guards) for item in bodies.items()] for name, bodies in found.items()}


def _walk(node: Node, around: _Around) -> Iterator[tuple[str, Sum]]:
    """The sums of a node and of those inside it; RULES says which nodes cost something."""
    if isinstance(node, Reduce):
        terms = terms_of(node.over)
        spared = node.kind == "max" or around.accounting == "strict"
        name = {"sum": "add", "max": "compare"}[node.kind]
        yield name, around.sum(terms - 1 if spared else terms)
        around = replace(around, over=around.over + node.over)
    elif isinstance(node, Fft):
        yield from _transform(node, around)
    else:
        for name in _steps(node, around.points):
            yield name, around.sum(Poly.of(1))
    for child in node.children:
        yield from _walk(child, around)


def _steps(node: Node, points: Points) -> list[str]:
    """The operations of a node at one point, as the count's own rule gives them."""
    if type(node) not in RULES:
        raise Unsupported(f"{type(node).__name__} has no rule in count")
    function = getattr(node, "function", None)
    if function is not None:
        return list(TABLE[function].steps)
    return [name for name, _ in RULES[type(node)](node, points)]


def _transform(node: Fft, around: _Around) -> Iterator[tuple[str, Sum]]:
    (piece,) = transforms(around.points, node).pieces
    work = node.length * call("ceil_log2", node.length)
    yield "mul", Sum((), piece[1] * work)
    yield "add", Sum((), piece[1] * work * 3 / 2)


def _at(index: Index, values: Mapping[str, Poly]) -> Index:
    """An index whose bounds name no pinned index any more."""
    low, up = (tuple(b.substitute(values) for b in ends) for ends in (index.lower, index.upper))
    return Index(index.name, low, up)
