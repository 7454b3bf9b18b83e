"""Exact maxima of a depth while one index runs over its range.

Three shapes of depths are solved:

1. A monotone depth is largest at an end of the range.
2. A minimum of affine terms, such as the number of terms of a two-sided window Min(l, i+r, l-i+r+1,
   2*r+1), grows first and falls later. It reaches a value s where some index i makes every term at
   least s. Each term gives one bound on i; bounds with steps of one have a common integer exactly
   where each two of them have.
3. ceil_log2(a) + ceil_log2(b), where a grows by as much as b falls, so that a + b is a constant
   total (`best_pairs`). ceil_log2(a) reaches s where a reaches t(s), with t(0) = 1 and t(s) =
   2**(s-1) + 1 otherwise. So both logarithms reach s and r exactly where t(s) + t(r) <= total. With
   p the largest s such that total - 1 lies in 2**(p-1) + 1 .. 2**p, the best pair (s, r) is one of

   - s = p, and b = total - t(p);
   - s = r = p - 1, as 2 t(p-1) = 2**(p-1) + 2 is at most the total;
   - r = p, and a = total - t(p).

   So a depth in these logarithms alone that grows with both is largest at one of three pairs of
   numbers; further bounds on a or b cut each pair separately.
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
    require_plain,
    stride,
)
from costmodel.symbolic.polynomial import (
    Fn,
    Monomial,
    Number,
    Poly,
    atom_name,
    by_text,
    call,
    ceil_div,
    index_atom,
    padded,
)

LOG = "ceil_log2"


Terms = tuple[Poly, ...]
"""Polynomials that are affine in the index; the tuple stands for their minimum."""


@dataclass(frozen=True)
class Candidate:
    """floor(above / parts), with parts 1 or 2: an upper bound on a minimum of terms that are affine
    in the index. The smallest of all candidates is the maximum over the index."""

    above: Poly
    parts: int = 1

    @property
    def value(self) -> Poly:
        """floor(above / parts) as a polynomial."""
        return call("floor_div", self.above, self.parts)

    def at_most(self, bound: Candidate) -> Poly:
        """A polynomial that is at least 0 exactly where self <= bound, for `self.parts` = 1."""
        return bound.above - self.above * bound.parts

    def below(self, bound: Candidate) -> Poly:
        """A polynomial that is at least 0 wherever self < bound (and perhaps elsewhere)."""
        if self.parts == 1:
            return bound.above - (self.above + 1) * bound.parts
        return bound.above * (self.parts // bound.parts) - self.above - 1


def direction(poly: Poly, variable: str) -> int:
    """How a polynomial moves with a variable: 1 if it grows, -1 if it falls, 0 if it does not
    depend on the variable. Sizes, indices and the functions in the polynomial are assumed to be
    positive.

    Raises:
        Unsupported: some terms grow with the variable while others fall.
    """
    signs = {
        sign * direction(argument, variable)
        for atom, sign in _signed_atoms(poly)
        for argument in _increasing_arguments(atom, variable)
    } | {sign for atom, sign in _signed_atoms(poly) if atom == variable}
    if len(signs - {0}) > 1:
        raise _grows_and_falls(variable)
    return sum(signs)


def _grows_and_falls(variable: str) -> Unsupported:
    """The error for a depth that both grows and falls with an index."""
    return Unsupported(f"the depth is not monotone in index {atom_name(variable)}")


def _signed_atoms(poly: Poly) -> Iterable[tuple[str, int]]:
    """Yield (atom, 1) for each atom with which its monomial grows, else (atom, -1)."""
    for monomial, number in poly.terms.items():
        for atom, power in monomial:
            yield atom, 1 if (number > 0) == (power > 0) else -1


def _increasing_arguments(atom: str, variable: str) -> Terms:
    """The polynomials with which a function atom grows, a for floor(a/b) and also -b; () if the
    atom is no function of the variable."""
    if not isinstance(atom, Fn) or variable not in Poly.atom(atom).letters:
        return ()
    return (atom.args[0], -atom.args[1]) if atom.function == "floor_div" else atom.args


def highest(depth: Poly, variable: str, constraints: Constraints) -> Poly:
    """The largest value of a depth (a number of dependent operations, as a polynomial in sizes and
    an index) while one index runs over the integers that satisfy the constraints, a polynomial
    without the index; of a depth of another shape, its value at the only integer, if there is one.

    Raises:
        Unsupported: the depth is neither monotone in the index, nor a minimum of affine terms, nor
            made of logarithms of two numbers with a constant sum; or its parts have no common best
            index.
    """
    if variable not in depth.letters:
        return depth
    try:
        return _largest_by_parts(depth, variable, constraints)
    except Unsupported:
        if (only := _only_value(variable, constraints)) is None:
            raise
        return depth.substitute({variable: only})


def _only_value(variable: str, constraints: Constraints) -> Poly | None:
    """The value of an index that is proven to have at most one; None if that is not proven."""
    lower, upper, _ = bounds(by_text(constraints), variable)
    pairs = product(*([end for scale, end in side if scale == ONE] for side in (lower, upper)))
    return next((low for low, up in pairs if implied(constraints, low - up)), None)


def _largest_by_parts(depth: Poly, variable: str, constraints: Constraints) -> Poly:
    """The largest value of a depth that grows with each of its parts (minima of terms that are
    affine in the variable). If one index attains the maxima of all parts, these are substituted. If
    not, the depth is largest at an end of the range, or depends on the logarithms of two numbers
    with a constant sum, of which one of three pairs is best. Raises Unsupported: a part has no
    maximum, or the depth has none of these shapes."""
    parts: dict[Terms, str] = {}
    shape = _with_atoms_for_parts(depth, variable, parts)
    tops = {terms: _max_of_min(terms, variable, constraints) for terms in parts}
    most = {parts[terms]: [c.value for c in top] for terms, top in tops.items()}
    if len(tops) < 2 or _largest_together(tops, variable, constraints):
        return shape.substitute({part: call("Min", *top) for part, top in most.items()})
    if (end := _faster_end(shape, parts, variable, constraints)) is not None:
        return depth.substitute({variable: end})
    pairs = _crossing(shape, parts, variable)
    values = ({p: call("Min", *top, *pair[p]) for p, top in most.items()} for pair in pairs)
    return call("Max", *map(shape.substitute, values))


def _faster_end(
    shape: Poly, parts: Mapping[Terms, str], variable: str, constraints: Constraints
) -> Poly | None:
    """The end of the range at which the depth `shape`, slope*index + logarithms, is largest, if the
    linear part dominates, as i = l for i + ceil_log2(l - i + 1): in one step of the index, the
    logarithms together change at most by `logs`, and the linear part by `pace` or more. `parts`:
    terms in the index -> the atom that stands for them. None if the linear part does not dominate,
    the depth has other parts, or which bound is the end depends on the sizes. Unsupported if a
    bound is on a multiple of the index."""
    pace: Number = 0
    logs: Number = 0
    rest = shape
    for terms, part in parts.items():
        moves = [_slope_and_sign(term, variable) for term in terms]
        alone, log = (((atom, 1),) for atom in (part, *call(LOG, Poly.atom(part)).atoms))
        # the factors of the part itself and of its logarithm in the depth
        steps, levels = (shape.terms.get(monomial, 0) for monomial in (alone, log))
        # outside of a logarithm, a part must be one term, whose change per step is known
        if any(slope not in (ONE, -ONE, Poly()) for slope, _ in moves) or (steps and moves[1:]):
            return None
        pace, logs = pace + steps * moves[0][1], logs + levels
        rest = rest - Poly({alone: steps, log: levels})
    if rest.letters & {*parts.values()} or max(pace, -pace) < logs:
        return None
    lower, upper = _ends_of_range(variable, constraints)
    known, sign = projected(constraints, [variable]), 1 if pace > 0 else -1
    ends = upper if sign > 0 else lower
    return next((x for x in ends if implied_all(known, [(y - x) * sign for y in ends])), None)


def _crossing(
    shape: Poly, parts: Mapping[Terms, str], variable: str
) -> Iterator[Mapping[str, Terms]]:
    """Yield, for a depth `shape` in the logarithms of two numbers with a constant sum, the three
    pairs of numbers of which one is best, each as part -> further bounds on it. For ceil_log2(i) +
    ceil_log2(l + 1 - i) at l = 10, i and l + 1 - i are bounded by (10, 2), (5, 5) or (2, 10). One
    mapping without bounds if no term of one number grows while a term of the other falls. Raises
    Unsupported: the depth depends on more than the logarithms of two numbers with a constant
    sum."""
    logs = {atom: Poly() for part in parts.values() for atom in call(LOG, Poly.atom(part)).atoms}
    sides: dict[frozenset[Poly], list[str]] = {}
    for terms, part in parts.items():
        sides.setdefault(frozenset(t for t in terms if variable in t.letters), []).append(part)
    moves = [_slope_and_sign(term, variable) for side in sides for term in side]
    plain = all(slope in (ONE, -ONE) for slope, _ in moves)
    if not plain or len(sides) != 2 or shape.substitute(logs).letters & {*parts.values()}:
        raise _grows_and_falls(variable)
    (one, parts_of_one), (two, parts_of_two) = sides.items()
    totals = [
        up + down
        for rising, falling in ((one, two), (two, one))
        for up in rising
        for down in falling
        if _slope_and_sign(up, variable)[1] > 0 > _slope_and_sign(down, variable)[1]
    ]
    if not totals:
        yield dict.fromkeys(parts.values(), ())
        return
    for first, second in best_pairs(call("Min", *totals)):
        yield {**dict.fromkeys(parts_of_one, (first,)), **dict.fromkeys(parts_of_two, (second,))}


def _with_atoms_for_parts(poly: Poly, variable: str, parts: dict[Terms, str]) -> Poly:
    """The polynomial with a fresh atom (a new variable) for each part (minimum of affine terms)
    that depends on the variable; the result grows with each of these atoms. `parts` (terms of the
    part -> its atom) is extended. Min(i, l - i) + 1 becomes one atom, for the terms i + 1 and l - i
    + 1. Unsupported if the polynomial does not consist of such parts."""
    if variable not in poly.letters:
        return poly
    moving = Poly.atom(variable)
    try:
        sign = direction(poly, variable)
    except Unsupported:
        terms = _as_min_of_affine(poly, variable)
        return (
            _atom_of_part(terms, parts)
            if terms
            else _with_atoms_inside_functions(poly, variable, parts)
        )
    return poly.substitute({variable: _atom_of_part((moving * sign,), parts) * sign})


def _atom_of_part(terms: Terms, parts: dict[Terms, str]) -> Poly:
    """The atom that stands for a part; a new one at the first call."""
    return Poly.atom(parts.setdefault(terms, index_atom(f"part {len(parts)}")))


def _with_atoms_inside_functions(poly: Poly, variable: str, parts: dict[Terms, str]) -> Poly:
    """The polynomial with fresh atoms for the parts (minima of affine terms) of the argument of
    each function that depends on the variable, which join `parts` (terms -> atom): in i,
    ceil_log2(Min(i, w)) becomes ceil_log2(p), with p for the terms i and w. Unsupported if a
    function grows and falls, or one function occurs with both signs."""
    moving = {f for f in _signed_atoms(poly) if variable in Poly.atom(f[0]).letters}
    found: dict[str, Poly] = {}
    for atom, sign in sorted(moving):
        here = Poly.atom(atom) * sign
        if atom in found:
            raise _grows_and_falls(variable)
        if isinstance(atom, Fn) and atom.function in (LOG, "pow2"):
            inside = atom.args[0] * sign  # minus a function grows with minus its argument
            terms = _as_min_of_affine(inside, variable)
            top = (
                _atom_of_part(terms, parts)
                if terms
                else _with_atoms_for_parts(inside, variable, parts)
            )
            found[atom] = call(atom.function, top * sign)
        elif here != poly:  # else a function that is the whole polynomial has no smaller part
            found[atom] = _with_atoms_for_parts(here, variable, parts) * sign
        else:
            raise _grows_and_falls(variable)
    return poly.substitute(found)


def _as_min_of_affine(poly: Poly, variable: str) -> Terms:
    """The affine terms whose minimum is a sum of affine terms, multiples of `Min` and negative ones
    of `Max`: l - 2*Max(i, w) gives l - 2*i and l - 2*w. () for any other sum."""
    found = [Poly()]
    for monomial, number in poly.terms.items():
        term, options = Poly({monomial: number}), []
        if _product_is_affine(monomial, variable):
            options = [term]
        elif args := _arguments_of_extremum(monomial, number > 0):
            inside = [_as_min_of_affine(argument * number, variable) for argument in args]
            options = [option for part in inside for option in part] if all(inside) else []
        if not options:
            return ()
        found = [sum_ + option for sum_ in found for option in options]
    return tuple(dict.fromkeys(found))


def _product_is_affine(monomial: Monomial, variable: str) -> bool:
    """Whether a monomial contains a variable at most to the power 1, and not inside a function."""
    return all(
        variable not in Poly.atom(atom).letters or (atom, power) == (variable, 1)
        for atom, power in monomial
    )


def _arguments_of_extremum(monomial: Monomial, positive: bool) -> Terms:
    """The arguments of a monomial that is one `Min` (`Max` if `positive` is False); else ()."""
    ((atom, power), *others) = monomial
    if others or power != 1 or not isinstance(atom, Fn):
        return ()
    return atom.args if atom.function == ("Min" if positive else "Max") else ()


def _ends_of_range(variable: str, constraints: Constraints) -> tuple[list[Poly], list[Poly]]:
    """(lower bounds, upper bounds) of a variable; Unsupported for a bound with a stride by another
    variable, 2*i <= j; a bound in sizes, 2*i <= l, is rounded to i <= floor(l/2)."""
    lower, upper, _ = bounds(by_text(constraints), variable)
    require_plain(variable, lower + upper)
    return [low for _, low in lower], [up for _, up in upper]


def _slope_and_sign(term: Poly, variable: str) -> tuple[Poly, int]:
    """The coefficient of a variable in an affine term, a polynomial in sizes, and its sign: 0 if
    the variable does not occur, else 1 or -1, even where a coefficient such as floor(l/C) is 0."""
    if variable not in term.letters:
        return Poly(), 0
    if _sum_is_affine(term, variable):
        slope = term.coefficient(variable)
        for sign in (1, -1):
            if slope.constant() is None and not slope.variables and nonnegative(slope * sign):
                return slope, sign
    scale, sign = stride(term, variable)
    return scale * sign, sign


def _sum_is_affine(poly: Poly, variable: str) -> bool:
    """Whether a polynomial is affine in a variable, which no function contains."""
    return all(_product_is_affine(monomial, variable) for monomial in poly.terms)


def _max_of_min(terms: Terms, variable: str, constraints: Constraints) -> tuple[Candidate, ...]:
    """The candidates (upper bounds, whose smallest is the result) for the maximum of Min(terms)
    over the variable: the value where a growing and a falling term cross, and each term at the end
    towards which it grows. Raises Unsupported: a bound is missing or on a multiple of the variable,
    or terms that cross have other slopes than 1 and -1."""
    lower, upper = _ends_of_range(variable, constraints)
    moves = {term: _slope_and_sign(term, variable) for term in terms}
    slopes = {term: slope for term, (slope, _) in moves.items()}
    rests = {term: term - Poly.atom(variable) * slope for term, slope in slopes.items()}
    rising = [term for term in terms if moves[term][1] > 0]
    falling = [term for term in terms if moves[term][1] < 0]
    if rising and falling and any(slopes[term] not in (ONE, -ONE) for term in rising + falling):
        raise _grows_and_falls(variable)
    # a + i and b - i cross at (a + b)/2
    crossing = [Candidate(rests[up] + rests[down], 2) for up in rising for down in falling]
    at_ends = [Candidate(rests[up] + end * slopes[up]) for up in rising for end in upper]
    at_ends += [Candidate(rests[down] + end * slopes[down]) for down in falling for end in lower]
    level = [Candidate(term) for term in terms if not moves[term][1]]
    if not (crossing or at_ends or level):
        side = "upper" if rising else "lower"
        raise Unsupported(f"index {atom_name(variable)} has no {side} bound: give it both")
    return _needed_candidates([*crossing, *at_ends, *level], projected(constraints, [variable]))


def _needed_candidates(
    candidates: Sequence[Candidate], known: Constraints
) -> tuple[Candidate, ...]:
    """The candidates (upper bounds, of which the smallest is a maximum) without each that is
    proven, where `known` holds, never to be smaller than all others."""
    kept = list(dict.fromkeys(candidates))
    for candidate in tuple(kept):
        others = [other for other in kept if other != candidate]
        if others and infeasible(known | {candidate.below(other) for other in others}):
            kept = others
    return tuple(kept)


def _largest_together(
    tops: Mapping[Terms, tuple[Candidate, ...]], variable: str, constraints: Constraints
) -> bool:
    """Whether, at all sizes, one index is proven to attain the maxima of all parts (`tops`: the
    terms of a part -> candidates, of which the smallest is its maximum). Each choice of one
    candidate per part, as the smallest, is a case. False also if a candidate is the floor of a half
    (`parts` = 2), which this search does not follow. Unsupported: between two bounds on 2*i may be
    no integer."""
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
        # an index attains all maxima if each term of each part is at least the part's maximum
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
    """Yield three divisions (a, b) of a total >= 2: each depth that grows with ceil_log2(a) and
    ceil_log2(b) is largest at one of the three. A number stands for all numbers with the same
    ceil_log2.

    >>> from costmodel.symbolic.polynomial import by_text, size
    >>> [(a.at({"l": 10}), b.at({"l": 10})) for a, b in best_pairs(size("l") + 1)]
    [(10, 2), (5, 5), (2, 10)]
    """
    most = total - 1
    half = ceil_div(most, 2)
    left = most - call("floor_div", padded(most), 2)
    yield most, left
    yield half, half
    yield left, most
