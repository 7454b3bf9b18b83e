"""How many scalar operations of each class does a mixer execute?

One rule per kind of node: what it costs at every point of the domain around it. Counts are exact
polynomials (piecewise where they must be) in the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from costmodel.conventions import Convention, convention as named_convention
from costmodel.domains import Constraints, Exact, Unsupported, implied, total
from costmodel.equations import (
    Add,
    Call,
    Constant,
    Div,
    Equation,
    Fft,
    Folded,
    Index,
    Mixer,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Sub,
    System,
)
from costmodel.functions import CLASSES, TABLE
from costmodel.polynomial import Poly, call
from costmodel.quantity import Quantity
from costmodel.tokens import Instances, instances, phase_name, system_of

if TYPE_CHECKING:
    import sympy

ONE = Poly.of(1)
Tally = dict[str, Exact]


@dataclass(frozen=True)
class CountsAt:
    """Operations at given sizes; every field a number of scalar operations."""

    mul: int
    add: int
    div: int
    exp: int
    other: Mapping[str, int] = field(default_factory=dict)
    once: CountsAt | None = None

    @property
    def total(self) -> int:
        """Every operation, each counted 1, with the work done once."""
        own = self.mul + self.add + self.div + self.exp + sum(self.other.values())
        return own + (self.once.total if self.once else 0)

    def by_class(self) -> dict[str, int]:
        """Class -> operations, `other` classes by their own names, `once` left out."""
        return {c: getattr(self, c) for c in CLASSES} | dict(self.other)


@dataclass(frozen=True)
class Counts(Quantity):
    """Operations per class. `.mul .add .div .exp` and `.total` are sympy expressions.

    `classes` holds work that depends on the input, for one sequence; `.once` the work on
    parameters alone (None inside itself). `.total` includes `once`.
    """

    classes: Mapping[str, Exact]
    once: Counts | None = None

    def exact(self, name: str) -> Exact:
        """The operations of one class as an exact sum."""
        return self.classes.get(name, Exact())

    @property
    def mul(self) -> sympy.Expr:
        """Multiplications."""
        return self.exact("mul").expr

    @property
    def add(self) -> sympy.Expr:
        """Additions and subtractions."""
        return self.exact("add").expr

    @property
    def div(self) -> sympy.Expr:
        """Divisions."""
        return self.exact("div").expr

    @property
    def exp(self) -> sympy.Expr:
        """Exponentiations."""
        return self.exact("exp").expr

    @property
    def other(self) -> dict[str, sympy.Expr]:
        """Every other operation by name."""
        return {c: e.expr for c, e in self.classes.items() if c not in CLASSES}

    @property
    def exact_total(self) -> Exact:
        """All classes, each counted 1, and the work done once."""
        result = Exact()
        for value in self.classes.values():
            result = result + value
        return result + (self.once.exact_total if self.once else Exact())

    @property
    def total(self) -> sympy.Expr:
        """mul + add + div + exp + every other, each 1, with the work done once."""
        return self.exact_total.expr

    @property
    def expr(self) -> sympy.Expr:
        """The total."""
        return self.total

    def at(self, *, b: int = 1, **sizes: int) -> CountsAt:  # type: ignore[override]
        """Integers at given sizes; work on the input is done for each of `b` sequences."""
        values = {c: e.at(sizes) * b for c, e in self.classes.items()}
        once = self.once.at(**sizes) if self.once else None
        other = {c: v for c, v in values.items() if c not in CLASSES and v}
        mul, add, div, exp = (values.get(c, 0) for c in CLASSES)
        return CountsAt(mul, add, div, exp, other, once)

    def __add__(self, other: Counts) -> Counts:
        once = self.once + other.once if self.once and other.once else self.once or other.once
        return Counts(_merged(self.classes, other.classes), once)


def _merged(first: Mapping[str, Exact], second: Mapping[str, Exact]) -> Tally:
    merged = dict(first)
    for name, value in second.items():
        merged[name] = merged[name] + value if name in merged else value
    return {name: value for name, value in merged.items() if not value.is_zero}


@dataclass(frozen=True)
class Points:
    """Where an expression is evaluated: variables (outer first) and their constraints."""

    equation: Equation
    variables: tuple[str, ...]
    constraints: Constraints
    accounting: str

    def number(self) -> Exact:
        """How many points there are."""
        return total(self.variables, self.constraints, ONE)

    def inside(self, over: tuple[Index, ...]) -> Points:
        """The points of an expression under a reduction."""
        constraints = self.constraints.union(*(index.constraints for index in over))
        variables = self.variables + tuple(index.atom for index in over)
        return replace(self, variables=variables, constraints=constraints)


def _leaf(node: Node, points: Points) -> Iterator[tuple[str, Exact]]:
    return iter(())


def _one(name: str) -> Callable[[Node, Points], Iterator[tuple[str, Exact]]]:
    def rule(node: Node, points: Points) -> Iterator[tuple[str, Exact]]:
        yield name, points.number()

    return rule


def _call(node: Call, points: Points) -> Iterator[tuple[str, Exact]]:
    for step in TABLE[node.function].steps:
        yield step, points.number()


def nonempty(over: tuple[Index, ...], points: Points) -> None:
    """Raise Unsupported unless every point has at least one term."""
    known = points.constraints
    for index in over:
        for low in index.lower:
            for up in index.upper:
                if not implied(known, up - low):
                    raise Unsupported(
                        f"{points.equation.name}: the range of {index.name} may be empty"
                    )
        known = known | index.constraints


def _reduce(node: Reduce, points: Points) -> Iterator[tuple[str, Exact]]:
    nonempty(node.over, points)
    terms = points.inside(node.over).number()
    name = {"sum": "add", "max": "compare"}[node.kind]
    spared = node.kind == "max" or points.accounting == "strict"
    yield name, terms - points.number() if spared else terms


def transforms(points: Points, node: Fft) -> Exact:
    """How many transforms an equation runs: the points of the indices its operand shares."""
    shared = {a for p in node.body.positions for a in _letters(p)}
    produced = [v for v in points.variables if v not in shared]
    kept = tuple(v for v in points.variables if v in shared)
    constraints = frozenset(c for c in points.constraints if not c.letters & set(produced))
    return total(kept, constraints, ONE)


def _letters(position: object) -> frozenset[str]:
    from costmodel.equations import Flat

    if isinstance(position, Flat):
        return position.outer.letters | position.inner.letters
    assert isinstance(position, Poly)
    return position.letters


def _fft(node: Fft, points: Points) -> Iterator[tuple[str, Exact]]:
    """N log2 N multiplications and 3/2 N log2 N additions: half of a complex radix-2 transform."""
    work = node.length * call("ceil_log2", node.length)
    number = transforms(points, node)
    yield "mul", number * work
    yield "add", number * (work * 3 / 2)


RULES: Mapping[type[Node], Callable[..., Iterator[tuple[str, Exact]]]] = {
    Constant: _leaf,
    Ref: _leaf,
    Neg: _leaf,
    Folded: _leaf,
    Add: _one("add"),
    Sub: _one("add"),
    Mul: _one("mul"),
    Div: _one("div"),
    Call: _call,
    Reduce: _reduce,
    Fft: _fft,
}
"""Node -> the operations that it executes itself, at all points around it."""


def _tally(node: Node, points: Points) -> Iterator[tuple[str, Exact]]:
    try:
        rule = RULES[type(node)]
    except KeyError:
        raise Unsupported(f"{type(node).__name__} has no rule in count") from None
    yield from rule(node, points)
    inner = points.inside(node.over) if isinstance(node, Reduce) else points
    for child in node.children:
        yield from _tally(child, inner)


def count_instances(part: Instances, accounting: str = "strict") -> Tally:
    """Operations per class of some points of one equation."""
    points = Points(part.equation, part.variables, part.constraints, accounting)
    found: Tally = {}
    for name, number in _tally(part.equation.value, points):
        found[name] = found[name] + number if name in found else number
    return {name: value for name, value in found.items() if not value.is_zero}


def count_equations(system: System, phase: str, accounting: str = "strict") -> Mapping[str, Counts]:
    """Counts per equation as the file writes them (composites under their own name)."""
    found: dict[str, Counts] = {}
    for part in instances(system, phase):
        tally = count_instances(part, accounting)
        counts = Counts({}, Counts(tally)) if part.once else Counts(tally, Counts({}))
        name = part.equation.part_of
        found[name] = found[name] + counts if name in found else counts
    return found


def count(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
) -> Counts:
    """Count a mixer's operations in a phase.

    Args:
        phase: `training` (the forward pass over l tokens) or `inference` (one token at t).
        form: the form's name; the default form if None.
        convention: one accounting and any rewrites, or one peer.

    Returns:
        Exact counts for one sequence; the work on parameters alone apart in `.once`.

    Raises:
        Unanswered: inference of a form that has none.

    Source of the default convention: Chen 2023, arXiv 2308.07661v1, Tables 3 and 4.

    >>> import costmodel as cm
    >>> cm.count(cm.mixer("self-attention")).mul
    4*d**2*l + d*l**2 + d*l
    """
    chosen = named_convention(convention)
    phase = phase_name(phase)
    if chosen.peer:
        from costmodel.rules.peers import peer_count

        return peer_count(mixer, phase, form, chosen.peer)
    system = system_of(mixer, form, chosen.rewrites, phase)
    result = Counts({}, Counts({}))
    for counts in count_equations(system, phase, chosen.accounting).values():
        result = result + counts
    return result
