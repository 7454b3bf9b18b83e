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
from costmodel.domains import Constraints, Unsupported, implied, nonnegative, projected, total
from costmodel.equations import Equation, Mixer, System
from costmodel.expressions import (
    Add,
    Array,
    Binary,
    Call,
    Constant,
    Div,
    Fft,
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

if TYPE_CHECKING:
    import sympy

Depth = tuple[Poly, ...]
"""The largest of these, in the indices around an expression."""


@dataclass(frozen=True)
class Span(Quantity):
    """Levels of scalar operations: the largest of `terms`; exact."""

    terms: Depth

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


def pruned(constraints: Constraints, terms: Iterable[Poly]) -> Depth:
    """Drop the terms that another one provably reaches."""
    kept: list[Poly] = []
    for term in dict.fromkeys(terms):
        if any(dominates(constraints, rival, term) for rival in kept):
            continue
        kept = [k for k in kept if not dominates(constraints, term, k)]
        kept.append(term)
    return tuple(kept)


def direction(poly: Poly, variable: str) -> int:
    """1 where the polynomial grows with a variable, -1 where it falls, 0 where it is constant."""
    signs: set[int] = set()
    for monomial, number in poly.terms.items():
        for atom, power in monomial:
            inner = 0
            if atom == variable:
                inner = 1
            elif isinstance(atom, Fn):
                inner = max((direction(a, variable) for a in atom.args), key=abs)
            if inner:
                signs.add(inner if (number > 0) == (power > 0) else -inner)
    if len(signs) > 1:
        raise Unsupported(f"a depth that both grows and falls with index {variable[1:]}")
    return signs.pop() if signs else 0


def maximised(term: Poly, variables: Iterable[str], constraints: Constraints) -> Poly:
    """The largest value of a depth over variables, the last one eliminated first."""
    for variable in reversed(tuple(variables)):
        sign = direction(term, variable)
        if sign:
            term = term.substitute({variable: _end(variable, constraints, sign)})
        constraints = projected(constraints, [variable])
    return term


def _end(variable: str, constraints: Constraints, sign: int) -> Poly:
    """The upper (sign 1) or lower end of a variable's range."""
    ends = []
    for constraint in sorted(constraints, key=str):
        slope = constraint.coefficient(variable).constant()
        if slope == -sign:
            ends.append((constraint + Poly.atom(variable) * sign) * sign)
    best = [e for e in ends if all(implied(constraints, (o - e) * sign) for o in ends)]
    return best[0] if best else call("Min" if sign > 0 else "Max", *ends)


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
        self.latest: list[Poly] = []
        for part in instances(system, phase):
            equation = part.equation
            terms = self.depth(equation.value, part, part.constraints)
            on_axes = tuple(_on_axes(equation, part, term) for term in terms)
            known = self.arrays.get(equation.array, ())
            self.arrays[equation.array] = pruned(frozenset(), known + on_axes)
            ends = (maximised(term, part.variables, part.constraints) for term in terms)
            self.latest = list(pruned(frozenset(), [*self.latest, *ends]))

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


def _on_axes(equation: Equation, part: Instances, term: Poly) -> Poly:
    """A depth in the axes of the array; indices hidden in a flattened axis take their maximum."""
    values: dict[str, Poly] = {}
    for axis, position in enumerate(equation.positions):
        poly = position_value(position)
        free = [a for a in poly.letters if a[0] == "@"]
        if len(free) == 1:
            slope = poly.coefficient(free[0])
            values[free[0]] = (Poly.atom(f"#{axis}") - (poly - slope * Poly.atom(free[0]))) * slope
    hidden = [v for v in part.variables if v in term.letters and v not in values]
    return maximised(term, hidden, part.constraints).substitute(values)


def _ready(depths: Depths, node: Node, part: Instances, around: Constraints) -> Depth:
    return (Poly(),)


def _ref(depths: Depths, node: Ref, part: Instances, around: Constraints) -> Depth:
    if not depths.fresh(node, around):
        return (Poly(),)
    values = {f"#{k}": position_value(p) for k, p in enumerate(node.positions)}
    return tuple(term.substitute(values) for term in depths.arrays[node.array])


def _binary(depths: Depths, node: Binary, part: Instances, around: Constraints) -> Depth:
    sides = [depths.depth(child, part, around) for child in node.children]
    return tuple(term + 1 for side in sides for term in side)


def _same(depths: Depths, node: Neg | Folded, part: Instances, around: Constraints) -> Depth:
    return depths.depth(node.body, part, around)


def _call(depths: Depths, node: Call, part: Instances, around: Constraints) -> Depth:
    levels = len(TABLE[node.function].steps)
    return tuple(term + levels for term in depths.depth(node.body, part, around))


def _reduce(depths: Depths, node: Reduce, part: Instances, around: Constraints) -> Depth:
    inner = around.union(*(index.constraints for index in node.over))
    levels = call("ceil_log2", terms_of(node.over))
    hidden = [index.atom for index in node.over]
    return tuple(
        maximised(term, hidden, inner) + levels for term in depths.depth(node.body, part, inner)
    )


def _fft(depths: Depths, node: Fft, part: Instances, around: Constraints) -> Depth:
    """Every radix-2 level is a product of twiddles (2) and a sum (1)."""
    inner = around.union(*(index.constraints for index in node.over))
    levels = call("ceil_log2", node.length) * 3
    hidden = [index.atom for index in node.over]
    return tuple(
        maximised(term, hidden, inner) + levels for term in depths.depth(node.body, part, inner)
    )


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
    return Span(tuple(depths_of(system, phase).latest))
