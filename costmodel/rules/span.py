"""How many levels of dependent scalar operations are there, with unlimited processors?

A reduction of R terms ends ceil(log2 R) levels after its latest term; chains of binary operations
are taken as written. A span is a maximum of polynomials with `ceil_log2`; branches that are
provably smaller are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from costmodel.conventions import Convention, convention as named_convention
from costmodel.domains import (
    Constraints,
    Unsupported,
    implied,
    infeasible,
    nonnegative,
    projected,
    simplified,
    total,
)
from costmodel.equations import Mixer, System
from costmodel.expressions import (
    Add,
    Array,
    Binary,
    Call,
    Constant,
    Div,
    Fft,
    Flat,
    Folded,
    Index,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Sub,
    position_value,
)
from costmodel.functions import TABLE
from costmodel.polynomial import Fn, Poly, call, to_sympy
from costmodel.quantity import Quantity
from costmodel.tokens import Instances, T, at_token, instances, phase_name, system_of, tokens
from costmodel.wellformed import defined

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Level:
    """A depth in the indices around an expression, at the points where `where` holds too."""

    depth: Poly
    where: Constraints = frozenset()

    def __add__(self, levels: Poly | int) -> Level:
        return Level(self.depth + levels, self.where)

    def substitute(self, values: Mapping[str, Poly]) -> Level:
        """Replace indices or axes in both."""
        where = frozenset(c.substitute(values) for c in self.where)
        return Level(self.depth.substitute(values), where)


Depth = tuple[Level, ...]
"""The largest of these."""


@dataclass(frozen=True)
class Span(Quantity):
    """Levels of scalar operations: the largest of `terms`; exact.

    A term that exists for some sizes only is multiplied by `Min(1, Max(0, ...))`, 1 or 0.
    """

    terms: tuple[Poly, ...]

    @property
    def expr(self) -> sympy.Expr:
        """The span as a sympy expression."""
        import sympy

        result: sympy.Expr = sympy.Max(*map(to_sympy, self.terms))
        return result

    def at(self, **sizes: int) -> int:
        """The span at integer sizes."""
        return max(term.at(sizes) for term in self.terms)


def dominates(constraints: Constraints, larger: Poly, smaller: Poly) -> bool:
    """Whether `larger >= smaller` is proven, matching logarithms by their arguments."""
    difference = larger - smaller
    logs = [
        (atom, number)
        for monomial, number in difference.terms.items()
        for atom, power in monomial
        if isinstance(atom, Fn) and atom.function == "ceil_log2" and len(monomial) == power == 1
    ]
    spare = {atom: number for atom, number in logs if number > 0}
    for atom, number in logs:
        if number > 0:
            continue
        for rival, available in spare.items():
            if available >= -number and _proven(constraints, rival.args[0] - atom.args[0]):
                spare[rival] = available + number
                moved = Poly.atom(atom) * -number - Poly.atom(rival) * -number
                difference = difference + moved
                break
    if any(a[0] in "@#" for a in difference.letters):
        return False
    return nonnegative(difference)


def _proven(constraints: Constraints, claim: Poly) -> bool:
    try:
        return implied(constraints, claim)
    except Unsupported:
        return False


def pruned(constraints: Constraints, levels: Iterable[Level]) -> Depth:
    """Drop the levels that another one provably reaches wherever they exist."""

    def reached(level: Level, rival: Level) -> bool:
        known = constraints | level.where
        return rival.where <= level.where and dominates(known, rival.depth, level.depth)

    kept: list[Level] = []
    for level in dict.fromkeys(levels):
        if not any(reached(level, rival) for rival in kept):
            kept = [k for k in kept if not reached(k, level)]
            kept.append(level)
    return tuple(kept)


def direction(poly: Poly, variable: str) -> int:
    """1 where the polynomial grows with a variable, -1 where it falls, 0 where it is constant.

    Raises:
        Unsupported: it does both.
    """
    signs: set[int] = set()
    for monomial, number in poly.terms.items():
        for atom, power in monomial:
            inner = {1} if atom == variable else set()
            if isinstance(atom, Fn):
                inner = {direction(a, variable) for a in atom.args} - {0}
            grows = (number > 0) == (power > 0)
            signs |= {sign if grows else -sign for sign in inner}
    if len(signs) > 1:
        raise Unsupported(f"a depth that both grows and falls with index {variable[1:]}")
    return signs.pop() if signs else 0


def maximised(level: Level, variables: Iterable[str], constraints: Constraints) -> Level:
    """The largest depth over variables, the last one eliminated first."""
    term, full, plain = level.depth, constraints | level.where, constraints
    for variable in reversed(tuple(variables)):
        sign = direction(term, variable)
        if sign:
            term = term.substitute({variable: _end(variable, full, sign)})
        full, plain = projected(full, [variable]), projected(plain, [variable])
    return Level(term, frozenset(c for c in full if c not in plain and not _proven(plain, c)))


def largest(depth: Poly, variables: Iterable[str], constraints: Constraints) -> Poly:
    """The largest value of a depth that exists everywhere."""
    return maximised(Level(depth), variables, constraints).depth


def _end(variable: str, constraints: Constraints, sign: int) -> Poly:
    """The upper (sign 1) or lower end of a variable's range."""
    ends = []
    for constraint in sorted(constraints, key=str):
        slope = constraint.coefficient(variable).constant()
        if slope == -sign:
            ends.append((constraint + Poly.atom(variable) * sign) * sign)
    best = [e for e in ends if all(implied(constraints, (o - e) * sign) for o in ends)]
    return best[0] if best else call("Min" if sign > 0 else "Max", *ends)


def guarded(level: Level) -> Poly:
    """The depth where all of its size conditions hold, else 0."""
    term = level.depth
    if not level.where:
        return term
    clamped: dict[str, Poly] = {
        atom: call("ceil_log2", call("Max", 1, atom.args[0]))
        for atom in term.atoms
        if isinstance(atom, Fn) and atom.function == "ceil_log2"
        and not nonnegative(atom.args[0] - 1)
    }  # fmt: skip
    term = term.substitute(clamped)
    for guard in sorted(level.where, key=str):
        term = term * call("Min", 1, call("Max", 0, guard + 1))
    return term


def terms_of(over: tuple[Index, ...]) -> Poly:
    """How many terms a reduction has, in the indices around it."""
    names = {index.atom for index in over}
    coupled = any(names & b.letters for i in over for b in i.lower + i.upper)
    if coupled:
        constraints: Constraints = frozenset().union(*(index.constraints for index in over))
        outer = {a: Poly.atom("outer " + a) for c in constraints for a in c.letters - names}
        exact = total(
            tuple(index.atom for index in over),
            frozenset(
                c.substitute({k: v for k, v in outer.items() if k[0] == "@"}) for c in constraints
            ),
            Poly.of(1),
        )
        if len(exact.pieces) != 1:
            raise Unsupported("the number of terms of a reduction depends on cases")
        return exact.pieces[0][1].substitute({f"outer {a}": Poly.atom(a) for a in outer})
    number = Poly.of(1)
    for index in over:
        number = number * call("Min", *(u - low + 1 for u in index.upper for low in index.lower))
    return number


class Depths:
    """The depth of every array's entries in a phase, in the axes of the array."""

    def __init__(self, system: System, phase: str) -> None:
        self.system = system
        self.phase = phase
        self.arrays: dict[Array, Depth] = {}
        ends: list[Level] = []
        for part in instances(system, phase):
            equation = part.equation
            try:
                levels = self.depth(equation.value, part, part.constraints)
            except Unsupported as error:
                raise Unsupported(f"{equation.part_of}: {error}") from error
            split = len(system.defining[equation.array]) > 1
            on_axes = tuple(_on_axes(part, level, split=split) for level in levels)
            known = self.arrays.get(equation.array, ())
            self.arrays[equation.array] = pruned(frozenset(), known + on_axes)
            for level in levels:
                top = largest(level.depth, part.variables, part.constraints | level.where)
                where = projected(part.constraints | level.where, reversed(part.variables))
                exists = simplified(where)
                if exists is not None:
                    ends.append(Level(top, exists))
        self.latest = tuple(guarded(end) for end in pruned(frozenset(), ends)) or (Poly(),)

    def fresh(self, ref: Ref, constraints: Constraints) -> bool:
        """Whether a referenced entry may be computed in this phase (not ready beforehand)."""
        if ref.array not in self.arrays:
            return False
        if self.phase == "training":
            return True
        return bool(at_token(constraints, tokens(self.system).at(ref), T))

    def depth(self, node: Node, part: Instances, constraints: Constraints) -> Depth:
        """The depth at which an expression is known."""
        try:
            rule = RULES[type(node)]
        except KeyError:
            raise Unsupported(f"{type(node).__name__} has no rule in span") from None
        return pruned(constraints, rule(self, node, part, constraints))


def _on_axes(part: Instances, level: Level, *, split: bool) -> Level:
    """A depth in the axes of the array that the equation defines; where several equations do
    (`split`), at the entries of this one. Indices inside a flattened axis take their maximum."""
    equation = part.equation
    values: dict[str, Poly] = {}
    for axis, position in enumerate(equation.positions):
        poly = position_value(position)
        free = [a for a in poly.letters if a[0] == "@"]
        if len(free) == 1:
            slope = poly.coefficient(free[0])
            values[free[0]] = (Poly.atom(f"#{axis}") - (poly - slope * Poly.atom(free[0]))) * slope
    found = maximised(level, [v for v in part.variables if v not in values], part.constraints)
    entries = (defined(equation) or frozenset()) if split else frozenset()
    return Level(
        found.depth.substitute(values),
        entries | {c.substitute(values) for c in found.where},
    )


READY: Depth = (Level(Poly()),)


def _ready(depths: Depths, node: Node, part: Instances, around: Constraints) -> Depth:
    return READY


def _ref(depths: Depths, node: Ref, part: Instances, around: Constraints) -> Depth:
    if not depths.fresh(node, around):
        return READY
    flat = {f"#{k}" for k, p in enumerate(node.positions) if isinstance(p, Flat)}
    values = {f"#{k}": position_value(p) for k, p in enumerate(node.positions)}
    found = []
    for level in depths.arrays[node.array]:
        plain = frozenset(c for c in level.where if not flat & c.letters)
        here = Level(level.depth, plain).substitute(values)
        where = frozenset(c for c in here.where if not _proven(around, c))
        if not infeasible(around | where):
            found.append(Level(here.depth, where))
    return tuple(found) or READY


def _binary(depths: Depths, node: Binary, part: Instances, around: Constraints) -> Depth:
    sides = [depths.depth(child, part, around) for child in node.children]
    return tuple(level + 1 for side in sides for level in side)


def _same(depths: Depths, node: Neg | Folded, part: Instances, around: Constraints) -> Depth:
    return depths.depth(node.body, part, around)


def _call(depths: Depths, node: Call, part: Instances, around: Constraints) -> Depth:
    steps = len(TABLE[node.function].steps)
    return tuple(level + steps for level in depths.depth(node.body, part, around))


def _over(
    depths: Depths, node: Reduce | Fft, part: Instances, around: Constraints, levels: Poly
) -> Depth:
    """The latest term of what runs over indices, and some levels more."""
    inner = around.union(*(index.constraints for index in node.over))
    hidden = [index.atom for index in node.over]
    return tuple(
        maximised(level, hidden, inner) + levels for level in depths.depth(node.body, part, inner)
    )


def _reduce(depths: Depths, node: Reduce, part: Instances, around: Constraints) -> Depth:
    return _over(depths, node, part, around, call("ceil_log2", terms_of(node.over)))


def _fft(depths: Depths, node: Fft, part: Instances, around: Constraints) -> Depth:
    """Every radix-2 level is a product of twiddles (2) and a sum (1)."""
    return _over(depths, node, part, around, call("ceil_log2", node.length) * 3)


RULES: Mapping[type[Node], Callable[..., Depth]] = {
    Constant: _ready,
    Ref: _ref,
    Neg: _same,
    Folded: _same,
    Add: _binary,
    Sub: _binary,
    Mul: _binary,
    Div: _binary,
    Call: _call,
    Reduce: _reduce,
    Fft: _fft,
}


@cache
def depths_of(system: System, phase: str) -> Depths:
    """The depths of a system's arrays in a phase."""
    return Depths(system, phase)


def span(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
) -> Span:
    """The span of a phase: levels of scalar operations with unlimited processors; exact.

    Raises:
        Unanswered: inference of a form that has none.

    >>> import costmodel as cm
    >>> cm.span(cm.mixer("she")).at(d=128, l=128)
    24
    """
    phase = phase_name(phase)
    system = system_of(mixer, form, named_convention(convention).rewrites, phase)
    return Span(depths_of(system, phase).latest)
