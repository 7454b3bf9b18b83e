"""What is the largest value of a depth while one index runs over its range, exactly?

A depth that only grows, or only falls, is largest at an end. The number of terms of a two-sided
window, Min(l, i+r, l-i+r+1, 2*r+1), grows first and falls later: a value s is reached where an
index exists at which every term is at least s, and bounds on an index with steps of one are
satisfied together exactly when each two of them are. Of a sum of logarithms, some of which grow
while others fall, `crossing` says where it is largest.

How deep are two sums at most of which one gets longer by as much as the other gets shorter?

ceil_log2(a) reaches s where a reaches some number t(s): 1 for s = 0, and 2**(s-1) + 1 otherwise. Of
two positive numbers with a given total, both reach s and r exactly where t(s) + t(r) is at most
that total. The pairs (s, r) than which none is better are three at most: with p the largest s of
all, so that n = total - 1 lies in 2**(p-1) + 1 .. 2**p,

- p, and what is then left for r;
- p - 1 twice, as 2 t(p-1) = 2**(p-1) + 2 is at most the total;
- what is left for s where r is p.

So every depth that grows with both logarithms and with nothing else is largest at one of three
pairs of numbers, whatever bounds the numbers have besides: a bound cuts each pair by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from costmodel.errors import Unsupported
from costmodel.symbolic.constraints import (
    ONE,
    Constraints,
    bounds,
    implied,
    implied_all,
    infeasible,
    nonnegative,
    projected,
    stride,
)
from costmodel.symbolic.polynomial import Fn, Monomial, Number, Poly, call, ceil_div, padded

LOG = "ceil_log2"


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
            consists of parts that are not proven to be largest together and are not the
            logarithms of two numbers of which one gets larger as the other gets smaller.
    """
    if variable not in depth.letters:
        return depth
    try:
        return _largest(depth, variable, constraints)
    except Unsupported:
        if (only := _only_value(variable, constraints)) is None:
            raise
        return depth.substitute({variable: only})


def _only_value(variable: str, constraints: Constraints) -> Poly | None:
    """The value of an index whose range is proven to hold no other one, if it holds any."""
    lower, upper, _ = bounds(sorted(constraints, key=str), variable)
    pairs = product(*([end for scale, end in side if scale == ONE] for side in (lower, upper)))
    return next((low for low, up in pairs if implied(constraints, low - up)), None)


def _largest(depth: Poly, variable: str, constraints: Constraints) -> Poly:
    """The same of a depth that may be told by its parts."""
    parts: dict[Terms, str] = {}
    shape = _split(depth, variable, parts)
    tops = {terms: _peak(terms, variable, constraints) for terms in parts}
    most = {parts[terms]: [c.value for c in top] for terms, top in tops.items()}
    if len(tops) < 2 or _together(tops, variable, constraints):
        return shape.substitute({part: call("Min", *top) for part, top in most.items()})
    if (end := _faster_end(shape, parts, variable, constraints)) is not None:
        return depth.substitute({variable: end})
    pairs = _crossing(shape, parts, variable)
    values = ({p: call("Min", *top, *pair[p]) for p, top in most.items()} for pair in pairs)
    return call("Max", *map(shape.substitute, values))


def _faster_end(
    shape: Poly, parts: Mapping[Terms, str], variable: str, constraints: Constraints
) -> Poly | None:
    """The end at which a depth is largest that moves by at least as many levels with each step as
    all of its logarithms together can: by one each, as their arguments move by one."""
    pace: Number = 0
    logs: Number = 0
    rest = shape
    for terms, part in parts.items():
        moves = [_slope(term, variable) for term in terms]
        alone, log = (((atom, 1),) for atom in (part, *call(LOG, Poly.atom(part)).atoms))
        steps, levels = (shape.terms.get(monomial, 0) for monomial in (alone, log))
        if any(slope not in (ONE, -ONE, Poly()) for slope, _ in moves) or (steps and moves[1:]):
            return None
        pace, logs = pace + steps * moves[0][1], logs + levels
        rest = rest - Poly({alone: steps, log: levels})
    if rest.letters & {*parts.values()} or max(pace, -pace) < logs:
        return None
    lower, upper = _ends(variable, constraints)
    known, sign = projected(constraints, [variable]), 1 if pace > 0 else -1
    ends = upper if sign > 0 else lower
    return next((x for x in ends if implied_all(known, [(y - x) * sign for y in ends])), None)


def _crossing(
    shape: Poly, parts: Mapping[Terms, str], variable: str
) -> Iterator[Mapping[str, Terms]]:
    """What each part is at most besides its own top, wherever parts that get longer and parts that
    get shorter by as much make the depth largest.

    Raises:
        Unsupported: the depth depends on more than the logarithms of two such numbers.
    """
    logs = {atom: Poly() for part in parts.values() for atom in call(LOG, Poly.atom(part)).atoms}
    sides: dict[frozenset[Poly], list[str]] = {}
    for terms, part in parts.items():
        sides.setdefault(frozenset(t for t in terms if variable in t.letters), []).append(part)
    moves = [_slope(term, variable) for side in sides for term in side]
    plain = all(slope in (ONE, -ONE) for slope, _ in moves)
    if not plain or len(sides) != 2 or shape.substitute(logs).letters & {*parts.values()}:
        raise _both(variable)
    (one, these), (two, those) = sides.items()
    totals = [
        up + down
        for rising, falling in ((one, two), (two, one))
        for up in rising
        for down in falling
        if _slope(up, variable)[1] > 0 > _slope(down, variable)[1]
    ]
    if not totals:
        yield dict.fromkeys(parts.values(), ())
        return
    for many, few in best_pairs(call("Min", *totals)):
        yield {**dict.fromkeys(these, (many,)), **dict.fromkeys(those, (few,))}


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
        if isinstance(atom, Fn) and atom.function in (LOG, "pow2"):
            inside = atom.args[0] * sign
            terms = _least_of(inside, variable)
            top = _part(terms, parts) if terms else _split(inside, variable, parts)
            found[atom] = call(atom.function, top * sign)
        elif here != poly:
            found[atom] = _split(here, variable, parts) * sign
        else:
            raise _both(variable)
    return poly.substitute(found)


def _least_of(poly: Poly, variable: str) -> Terms:
    """A sum of affine terms, of `Min` and of negated `Max`, as the least of affine terms; () where
    it is something else."""
    found = [Poly()]
    for monomial, number in poly.terms.items():
        term, options = Poly({monomial: number}), []
        if _is_affine(monomial, variable):
            options = [term]
        elif args := _least_args(monomial, number > 0):
            inside = [_least_of(argument * number, variable) for argument in args]
            options = [option for part in inside for option in part] if all(inside) else []
        if not options:
            return ()
        found = [sum_ + option for sum_ in found for option in options]
    return tuple(dict.fromkeys(found))


def _is_affine(monomial: Monomial, variable: str) -> bool:
    """Whether a product holds a variable at most once, and not inside a function."""
    return all(
        variable not in Poly.atom(atom).letters or (atom, power) == (variable, 1)
        for atom, power in monomial
    )


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
    """How fast an affine term moves with a variable, and the sign of that; a term that may stand
    still for some sizes, by floor(l/C) rows, moves by none there."""
    if variable not in term.letters:
        return Poly(), 0
    if _is_affine_in(term, variable):
        slope = term.coefficient(variable)
        for sign in (1, -1):
            if slope.constant() is None and not slope.variables and nonnegative(slope * sign):
                return slope, sign
    scale, sign = stride(term, variable)
    return scale * sign, sign


def _is_affine_in(poly: Poly, variable: str) -> bool:
    return all(_is_affine(monomial, variable) for monomial in poly.terms)


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


def best_pairs(total: Poly) -> Iterator[tuple[Poly, Poly]]:
    """The two numbers, as far as their logarithms go, wherever their total, at least 2, is best
    divided between them.

    >>> from costmodel.symbolic.polynomial import size
    >>> [(a.at({"l": 10}), b.at({"l": 10})) for a, b in best_pairs(size("l") + 1)]
    [(10, 2), (5, 5), (2, 10)]
    """
    most = total - 1
    half = ceil_div(most, 2)
    left = most - call("floor_div", padded(most), 2)
    yield most, left
    yield half, half
    yield left, most
