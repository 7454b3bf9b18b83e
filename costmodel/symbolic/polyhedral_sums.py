"""Exact sums of polynomials over the integer points of a parametric polyhedron.

A domain is a conjunction of affine constraints `p >= 0` over index variables, with sizes as
parameters; summing 1 counts its points. Summation eliminates one variable at a time with
Faulhaber's formulas; where several bounds compete (`max(1, i-w+1)`), the sum splits into pieces
whose guards name the breakpoints. A bound with a stride and only sizes on its other side is
rounded: `C*p <= l` becomes `p <= floor(l/C)`. A sum without an exact closed form raises
`Unsupported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache, lru_cache, partial
from math import comb, gcd

from costmodel.errors import Unsupported
from costmodel.symbolic.constraints import (
    Constraints,
    bounds,
    fixed,
    implied,
    infeasible,
    is_plain,
    outside,
    require_plain,
    simplified,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, atom_name, by_text, call


@lru_cache(maxsize=50_000)
def total(variables: tuple[str, ...], constraints: Constraints, weight: Poly) -> Exact:
    """The sum of `weight` over the integer points of `variables` that satisfy `constraints`, exact
    in sizes: l*(l + 1)/2 for weight 1 over 1 <= j <= i <= l.

    Constraints in sizes alone become guards of the result. A variable that an equation gives is
    substituted; of the others the last is eliminated first: `variables` are given outermost first.

    Raises:
        Unsupported: a variable without a lower or an upper bound; a bound with a stride (`C*i <=
            j`) that cannot be rounded, of a variable without few values between two numbers; or a
            weight that is a function, or a negative power, of a variable.
    """
    if not weight.terms:
        return Exact()
    if not variables:
        kept = simplified(constraints)
        return Exact() if kept is None else Exact(((_needed_guards(kept, weight), weight),))
    if (solved := fixed(constraints, variables)) is not None:
        variable, value = solved
        left = tuple(v for v in variables if v != variable)
        reduced = simplified(frozenset(c.substitute({variable: value}) for c in constraints))
        if reduced is None:
            return Exact()
        return total(left, reduced, weight.substitute({variable: value}))
    plain = [v for v in reversed(variables) if is_plain(constraints, v)]
    if not plain:
        return _with_strides(variables, constraints, weight)
    variable = _next_variable(constraints, plain, every=len(plain) == len(variables))
    outer = [v for v in variables if v != variable]
    lows, highs, known = _competing_bounds(constraints, variable)
    if not lows or not highs:
        side = "upper" if lows else "lower"
        raise Unsupported(f"index {atom_name(variable)} has no {side} bound: give it both")
    result = Exact()
    # a case for each pair of a largest lower and a smallest upper bound; of equal bounds the first
    for a, low in enumerate(lows):
        for b, high in enumerate(highs):
            conditions = {high - low + 1}
            conditions |= {low - o - int(k < a) for k, o in enumerate(lows) if k != a}
            conditions |= {o - high - int(k < b) for k, o in enumerate(highs) if k != b}
            joined = known | {c for c in conditions if not implied(known, c)}
            if not infeasible(joined) and not implied(joined, low - high - 1):
                result = result + total(tuple(outer), joined, between(weight, variable, low, high))
    return result


SHORT = 64
"""The largest number of values of an index that are summed value by value."""


def _with_strides(variables: tuple[str, ...], constraints: Constraints, weight: Poly) -> Exact:
    """The sum where each variable has a bound on a multiple, 2*i <= j: with rounded constraints,
    else value by value of a variable between two numbers. Unsupported if there is neither."""
    if (rounded := frozenset(map(_rounded, constraints))) != constraints:
        return total(variables, rounded, weight)
    variable, values = _values(constraints, variables)
    left = tuple(v for v in variables if v != variable)
    result = Exact()
    for at in ({variable: Poly.of(value)} for value in values):
        reduced = simplified(frozenset(c.substitute(at) for c in constraints))
        if reduced is not None:
            result = result + total(left, reduced, weight.substitute(at))
    return result


def _values(constraints: Constraints, variables: Sequence[str]) -> tuple[str, Sequence[int]]:
    """(variable, its values from lowest to highest) for the variable with the fewest values, at
    most `SHORT`, between two bounds that are numbers; of several such variables the first.
    Unsupported without such a variable."""
    found = []
    for variable in variables:
        ends = []
        for side in bounds(constraints, variable)[:2]:
            plain = (bound.constant() for scale, bound in side if scale == Poly.of(1))
            ends.append([number for number in plain if isinstance(number, int)])
        if all(ends) and min(ends[1]) - max(ends[0]) < SHORT:
            found.append((variable, range(max(ends[0]), min(ends[1]) + 1)))
    if not found:
        below, above, _ = bounds(constraints, variables[-1])
        require_plain(variables[-1], below + above)
    return min(found, key=lambda each: len(each[1]))


def _rounded(constraint: Poly) -> Poly:
    """A constraint whose variables have multiples of one number, divided by it and rounded: of 8*p
    - 8*q - 4 >= 0, p - q - 1 >= 0. Any other constraint unchanged."""
    numbers = (constraint.coefficient(v).constant() for v in constraint.variables)
    by = gcd(*(number if isinstance(number, int) else 1 for number in numbers))
    if by < 2:
        return constraint
    rounded = call("floor_div", constraint, by)
    return rounded if all(not isinstance(atom, Fn) for atom in rounded.atoms) else constraint


def _bound_order(others: Sequence[Poly], bound: Poly) -> tuple[bool, int, str]:
    """The sort key of competing bounds, the first of which wins a tie: bounds that leave a single
    point first, then bounds in sizes alone, so that the cases stay few."""
    return bound not in others, len(bound.variables), str(bound)


def _competing_bounds(
    constraints: Constraints, variable: str
) -> tuple[list[Poly], list[Poly], Constraints]:
    """(lower bounds, upper bounds, constraints without the variable); bounds that are never the
    tightest are left out. Of equal bounds, the first in this order counts. Unsupported: a
    constraint is not affine in the variable, or has a coefficient without a proven sign."""
    lower, upper, rest = bounds(constraints, variable)
    known = frozenset(rest)
    below, above = ([bound for _, bound in side] for side in (lower, upper))
    lows = _strongest(sorted(below, key=partial(_bound_order, above)), known, 1)
    highs = _strongest(sorted(above, key=partial(_bound_order, below)), known, -1)
    return lows, highs, known


def _next_variable(constraints: Constraints, plain: Sequence[str], *, every: bool) -> str:
    """The variable to sum over next, of those without a bound on a multiple (`plain`, innermost
    first): the innermost. Unless `every` variable is plain, the innermost with exactly one lower
    and one upper bound is preferred, so that the cases stay few."""
    if not every:
        for variable in plain:
            lows, highs, _ = _competing_bounds(constraints, variable)
            if len(lows) == len(highs) == 1:
                return variable
    return plain[0]


def _needed_guards(guards: Constraints, weight: Poly) -> Constraints:
    """The guards (conditions on sizes of a sum of `weight`) without each `size >= 2` that is
    redundant: at size 1 the weight is 0, or another guard fails."""
    kept = set(guards)
    for guard in by_text(guards):
        for letter in guard.letters:
            one = {letter: Poly.of(1)}
            if guard != Poly.atom(letter) - 2:
                continue
            others = frozenset(g.substitute(one) for g in kept - {guard})
            if not weight.substitute(one).terms or infeasible(others):
                kept.discard(guard)
    return frozenset(kept)


def _strongest(bounds: Sequence[Poly], others: Constraints, sign: int) -> list[Poly]:
    """The lower (`sign` 1) or upper (`sign` -1) bounds of a variable that may be the tightest: a
    bound is left out if another is proven to be at least as tight; of equal bounds, the first
    stays. The proofs use `others`, the constraints without the variable, as the variable's range
    may be empty."""
    kept: list[Poly] = []
    unique = list(dict.fromkeys(bounds))
    for k, bound in enumerate(unique):
        dominated = any(
            implied(others, (rival - bound) * sign)
            and not (j > k and implied(others, (bound - rival) * sign))
            for j, rival in enumerate(unique)
            if j != k
        )
        if not dominated:
            kept.append(bound)
    return kept


@lru_cache(maxsize=50_000)
def between(weight: Poly, variable: str, low: Poly, high: Poly) -> Poly:
    """The sum of `weight` for `variable` in low..high (high >= low - 1), a polynomial, by
    Faulhaber's formulas: that of j for j in 1..l is l**2/2 + l/2.

    Raises:
        Unsupported: the weight holds a function, or a negative power, of the variable.
    """
    if low == high:
        return weight.substitute({variable: low})
    powers: dict[int, Poly] = {}
    for monomial, number in weight.terms.items():
        if any(isinstance(a, Fn) and variable in Poly.atom(a).letters for a, _ in monomial):
            raise Unsupported(
                f"the sum of '{Poly({monomial: number})}' over index {atom_name(variable)} has no "
                "formula that is known here"
            )
        power = dict(monomial).get(variable, 0)
        rest = Poly({tuple(p for p in monomial if p[0] != variable): number})
        powers[power] = powers[power] + rest if power in powers else rest
    result = Poly()
    for power, coefficient in powers.items():
        if power < 0:
            raise Unsupported(
                f"the sum of '{coefficient}*{atom_name(variable)}**{power}' over index "
                f"{atom_name(variable)} has no formula that is known here"
            )
        difference = _power_sum(power, high) - _power_sum(power, low - 1)
        result = result + coefficient * difference
    return result


def _power_sum(power: int, top: Poly) -> Poly:
    """1**power + 2**power + ... + top**power as a polynomial in `top`; also at negative `top`, so
    that a difference of two such sums is the sum between."""
    result = Poly()
    base = Poly.of(1)
    for exponent, coefficient in enumerate(faulhaber(power)):
        if exponent:
            base = base * top
        if coefficient:
            result = result + base * coefficient
    return result


@cache
def faulhaber(power: int) -> tuple[Fraction, ...]:
    """Coefficients c_0..c_{p+1} of sum_{v=1}^{n} v**p = sum_k c_k n**k.

    >>> [str(c) for c in faulhaber(2)]
    ['0', '1/6', '1/2', '1/3']
    """
    bernoulli = [Fraction(1)]
    for m in range(1, power + 1):
        bernoulli.append(
            -sum((comb(m + 1, k) * bernoulli[k] for k in range(m)), Fraction(0)) / (m + 1)
        )
    if power >= 1:
        bernoulli[1] = Fraction(1, 2)  # the recurrence gives -1/2, for sums to n - 1
    coefficients = [Fraction(0)] * (power + 2)
    for k in range(power + 1):
        coefficients[power + 1 - k] += Fraction(comb(power + 1, k), power + 1) * bernoulli[k]
    return tuple(coefficients)


def union_size(axes: tuple[str, ...], regions: Sequence[Constraints], weight: Poly) -> Exact:
    """The sum of `weight` over the distinct points in a union of regions over the same axes (for
    weight 1, the number of points), exact in sizes. Unsupported if an axis lacks a bound, or the
    sum has no closed form."""
    result = Exact()
    counted: list[Constraints] = []
    for region in regions:
        for part in outside(region, counted):
            result = result + total(axes, part, weight)
        counted.append(region)
    return result
