"""What is the largest value of a depth while one index runs over its range, exactly?

A depth that only grows, or only falls, is largest at an end. The number of terms of a two-sided
window, Min(l, i+r, l-i+r+1, 2*r+1), grows first and falls later: a value s is reached where an
index exists at which every term is at least s, and bounds on an index with steps of one are
satisfied together exactly when each two of them are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from costmodel.domains import (
    ONE,
    Constraints,
    Unsupported,
    bounds,
    implied_all,
    infeasible,
    projected,
    stride,
)
from costmodel.polynomial import Fn, Monomial, Poly, call

Terms = tuple[Poly, ...]
"""Affine in the index; the value is the least of them."""


@dataclass(frozen=True)
class Candidate:
    """floor(above / parts), parts being 1 or 2: the peak is the least of several."""

    above: Poly
    parts: int = 1

    @property
    def value(self) -> Poly:
        """As a polynomial."""
        return call("floor_div", self.above, self.parts)

    def at_most(self, bound: Candidate) -> Poly:
        """At least 0 where this is the smaller one, or as large; `self.parts` is 1."""
        return bound.above - self.above * bound.parts

    def below(self, bound: Candidate) -> Poly:
        """At least 0 wherever this is less than `bound`."""
        if self.parts == 1:
            return bound.above - (self.above + 1) * bound.parts
        return bound.above * (self.parts // bound.parts) - self.above - 1


def direction(poly: Poly, variable: str) -> int:
    """1 where the polynomial grows with a variable, -1 where it falls, 0 where it is constant.

    Sizes, indices and the functions of a depth are positive.

    Raises:
        Unsupported: it does both.
    """
    signs = {
        sign * direction(argument, variable)
        for atom, sign in _factors(poly)
        for argument in _growing(atom, variable)
    } | {sign for atom, sign in _factors(poly) if atom == variable}
    if len(signs - {0}) > 1:
        raise _both(variable)
    return sum(signs)


def _both(variable: str) -> Unsupported:
    return Unsupported(f"a depth that both grows and falls with index {variable[1:]}")


def _factors(poly: Poly) -> Iterable[tuple[str, int]]:
    """Every atom with the sign of what it multiplies."""
    for monomial, number in poly.terms.items():
        for atom, power in monomial:
            yield atom, 1 if (number > 0) == (power > 0) else -1


def _growing(atom: str, variable: str) -> Terms:
    """Polynomials in each of which a function of the variable grows."""
    if not isinstance(atom, Fn) or variable not in Poly.atom(atom).letters:
        return ()
    return (atom.args[0], -atom.args[1]) if atom.function == "floor_div" else atom.args


def highest(depth: Poly, variable: str, constraints: Constraints) -> Poly:
    """The largest value of a depth over the integers that satisfy the constraints.

    Raises:
        Unsupported: the depth grows and falls in a way that is not the least of affine terms, or
            consists of parts that are not proven to be largest together.
    """
    if variable not in depth.letters:
        return depth
    parts: dict[Terms, str] = {}
    shape = _split(depth, variable, parts)
    tops = {terms: _peak(terms, variable, constraints) for terms in parts}
    if len(tops) > 1 and not _together(tops, variable, constraints):
        raise _both(variable)
    return shape.substitute(
        {parts[terms]: call("Min", *(c.value for c in top)) for terms, top in tops.items()}
    )


def _split(poly: Poly, variable: str, parts: dict[Terms, str]) -> Poly:
    """The polynomial with a fresh atom for each part that moves; it grows with each of them."""
    if variable not in poly.letters:
        return poly
    moving = Poly.atom(variable)
    try:
        sign = direction(poly, variable)
    except Unsupported:
        terms = _least_of(poly, variable)
        return _part(terms, parts) if terms else _split_inside(poly, variable, parts)
    return poly.substitute({variable: _part((moving * sign,), parts) * sign})


def _part(terms: Terms, parts: dict[Terms, str]) -> Poly:
    return Poly.atom(parts.setdefault(terms, f"@part {len(parts)}"))


def _split_inside(poly: Poly, variable: str, parts: dict[Terms, str]) -> Poly:
    """The same for a sum of products of functions."""
    moving = {f for f in _factors(poly) if variable in Poly.atom(f[0]).letters}
    found: dict[str, Poly] = {}
    for atom, sign in sorted(moving):
        here = Poly.atom(atom) * sign
        if atom in found:
            raise _both(variable)
        if here != poly:
            found[atom] = _split(here, variable, parts) * sign
        elif isinstance(atom, Fn) and atom.function in ("ceil_log2", "pow2"):
            inside = _split(atom.args[0] * sign, variable, parts) * sign
            found[atom] = call(atom.function, inside)
        else:
            raise _both(variable)
    return poly.substitute(found)


def _least_of(poly: Poly, variable: str) -> Terms:
    """A sum of affine terms, of `Min` and of negated `Max`, as the least of affine terms; () where
    it is something else."""
    found = [Poly()]
    for monomial, number in poly.terms.items():
        term, options = Poly({monomial: number}), []
        if variable not in term.letters or monomial == ((variable, 1),):
            options = [term]
        elif args := _least_args(monomial, number > 0):
            inside = [_least_of(argument * number, variable) for argument in args]
            options = [option for part in inside for option in part] if all(inside) else []
        if not options:
            return ()
        found = [sum_ + option for sum_ in found for option in options]
    return tuple(dict.fromkeys(found))


def _least_args(monomial: Monomial, positive: bool) -> Terms:
    """What a lone `Min`, or `Max` below a minus, takes the least of; else ()."""
    ((atom, power), *others) = monomial
    if others or power != 1 or not isinstance(atom, Fn):
        return ()
    return atom.args if atom.function == ("Min" if positive else "Max") else ()


def _ends(variable: str, constraints: Constraints) -> tuple[list[Poly], list[Poly]]:
    """The lower and the upper ends of a variable's range."""
    lower, upper, _ = bounds(sorted(constraints, key=str), variable)
    if any(scale != ONE for scale, _ in lower + upper):
        raise Unsupported(f"index {variable[1:]} is bounded with a stride")
    return [low for _, low in lower], [up for _, up in upper]


def _slope(term: Poly, variable: str) -> tuple[Poly, int]:
    """How fast an affine term moves with a variable, and the sign of that."""
    if variable not in term.letters:
        return Poly(), 0
    scale, sign = stride(term, variable)
    return scale * sign, sign


def _peak(terms: Terms, variable: str, constraints: Constraints) -> tuple[Candidate, ...]:
    """Candidates whose least is the largest value of the least of terms."""
    lower, upper = _ends(variable, constraints)
    moves = {term: _slope(term, variable) for term in terms}
    slopes = {term: slope for term, (slope, _) in moves.items()}
    still = {term: term - Poly.atom(variable) * slope for term, slope in slopes.items()}
    rising = [term for term in terms if moves[term][1] > 0]
    falling = [term for term in terms if moves[term][1] < 0]
    if rising and falling and any(slopes[term] not in (ONE, -ONE) for term in rising + falling):
        raise _both(variable)
    crossing = [Candidate(still[up] + still[down], 2) for up in rising for down in falling]
    at_ends = [Candidate(still[up] + end * slopes[up]) for up in rising for end in upper]
    at_ends += [Candidate(still[down] + end * slopes[down]) for down in falling for end in lower]
    level = [Candidate(term) for term in terms if not moves[term][1]]
    if not (crossing or at_ends or level):
        raise Unsupported(f"index {variable[1:]} has no bound on one side")
    return _needed([*crossing, *at_ends, *level], projected(constraints, [variable]))


def _needed(candidates: Sequence[Candidate], known: Constraints) -> tuple[Candidate, ...]:
    """Drop the candidates that are never less than all of the others."""
    kept = list(dict.fromkeys(candidates))
    for candidate in tuple(kept):
        others = [other for other in kept if other != candidate]
        if others and infeasible(known | {candidate.below(other) for other in others}):
            kept = others
    return tuple(kept)


def _together(
    tops: Mapping[Terms, tuple[Candidate, ...]], variable: str, constraints: Constraints
) -> bool:
    """Whether one index is proven to exist at which every part is largest."""
    known = projected(constraints, [variable])
    if any(candidate.parts != 1 for top in tops.values() for candidate in top):
        return False
    for chosen in product(*tops.values()):
        least = {
            mine.at_most(other)
            for mine, top in zip(chosen, tops.values(), strict=True)
            for other in top
            if other != mine
        }
        reached = {
            term - mine.above for mine, terms in zip(chosen, tops, strict=True) for term in terms
        }
        case = known | least
        if not infeasible(case) and not implied_all(
            case, projected(constraints | reached, [variable])
        ):
            return False
    return True
