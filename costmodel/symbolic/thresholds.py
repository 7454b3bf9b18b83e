"""The sizes at which one quantity exceeds or equals another, exactly.

The difference of two counts is a polynomial p; the question is where p > 0. Nothing is sampled.

"Always" and "never" are proven by writing every size as 1 + a nonnegative number. Otherwise p, or
its factor of unproven sign, must be affine in the length (or another size), p = a*x + b, and is
solved for x. With numbers for all sizes but one, `symbolic/ranges` solves all p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count, product
from math import gcd, lcm
from typing import TYPE_CHECKING

from costmodel.symbolic.constraints import nonnegative
from costmodel.symbolic.polynomial import Monomial, Poly
from costmodel.symbolic.sympy_form import to_sympy

if TYPE_CHECKING:
    import sympy


SOLVED_FOR = ("l", "t", "d", "n")
"""The letters for which a condition is solved, in order of preference."""


BEYOND = 64
"""The largest width d that is tried as the one above which a slope is proven positive."""


@dataclass(frozen=True)
class Condition:
    """The sizes at which a relation holds: `text` is exact; `always` and `never` are proven.
    `solved` is True if `text` bounds one size, such as `l > d`; else `text` is the unsolved
    inequality, such as `d*l**2 - w > 0`."""

    text: str
    always: bool = False
    never: bool = False
    solved: bool = True


ALWAYS, NEVER = Condition("at every size", always=True), Condition("at no size", never=True)


def points(letters: frozenset[str], most: int | None = None) -> Iterator[dict[str, int]]:
    """Sizes by increasing sum, then in lexicographic order; n divides d, and t <= l. `most` is the
    largest value of a size, without which the sequence is infinite. Without letters it is one empty
    point.

    >>> list(points(frozenset("dn"), 2))
    [{'d': 1, 'n': 1}, {'d': 2, 'n': 1}, {'d': 2, 'n': 2}]
    """
    names = sorted(letters)
    if not names:
        yield {}
        return
    last = None if most is None else most * len(names)
    for total in count(len(names)):
        if last is not None and total > last:
            return
        for values in _compositions(total, len(names)):
            sizes = dict(zip(names, values, strict=True))
            if most is not None and max(values) > most:
                continue
            if sizes.get("d", 0) % sizes.get("n", 1) == 0 and sizes.get("t", 1) <= sizes.get(
                "l", total
            ):
                yield sizes


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ways to write `total` as `parts` positive numbers, in lexicographic order."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def where_positive(p: Poly) -> Condition:
    """The sizes (n a divisor of d, t at most l) at which the polynomial is positive.

    >>> d, l = Poly.atom("d"), Poly.atom("l")
    >>> where_positive(d * d * (l - 2)).text
    'l > 2'
    >>> where_positive(l * (d - 2) - d * 3).text
    'l > 3*d/(d - 2), for d > 2'
    >>> where_positive(l**2 - d**2).text
    'l > d'
    """
    p = without_known_signs(primitive(p))
    if nonnegative(p - 1):
        return ALWAYS
    if nonnegative(-p):
        return NEVER
    for letter in SOLVED_FOR:
        condition = _solved_for(p, letter)
        if condition is not None:
            return condition
    return Condition(f"{p} > 0", solved=False)


def where_zero(p: Poly) -> Condition:
    """The sizes at which the polynomial is zero.

    >>> d, l = Poly.atom("d"), Poly.atom("l")
    >>> where_zero(l**2 - d**2).text
    'l = d'
    """
    p = without_known_signs(primitive(p))
    if not p.terms:
        return ALWAYS
    if nonnegative(p - 1) or nonnegative(-p - 1):
        return NEVER
    for letter in SOLVED_FOR:
        slope, rest = _slope_and_rest(p, letter)
        if slope is not None and [abs(number) for number in slope.terms.values()] == [1]:
            return Condition(f"{letter} = {_quotient_text(-rest, slope)}")
    return Condition(f"{p} = 0", solved=False)


def primitive(p: Poly) -> Poly:
    """The polynomial divided by its positive common factors: a number, such that coprime whole
    coefficients remain, and powers of sizes. The sign stays."""
    if not p.terms:
        return p
    atoms = {atom for monomial in p.terms for atom, _ in monomial}
    lowest = Poly.of(1)
    for atom in atoms:
        lowest = lowest * Poly.atom(atom) ** min(dict(m).get(atom, 0) for m in p.terms)
    numbers = [Fraction(c) for c in p.terms.values()]
    content = Fraction(gcd(*(c.numerator for c in numbers)), lcm(*(c.denominator for c in numbers)))
    return p / lowest / Poly.of(content)


def without_known_signs(p: Poly) -> Poly:
    """The polynomial without the factors that are proven to be positive, or negative, at all sizes;
    its sign and its zeros stay."""
    kept = Poly.of(1)
    for factor in _factors_of(p):
        if nonnegative(-factor - 1):
            kept = -kept
        elif not nonnegative(factor - 1):
            kept = kept * factor
    return kept


@cache
def _factors_of(p: Poly) -> tuple[Poly, ...]:
    """Polynomials with whole coefficients whose product has the sign and the zeros of p; (p,) where
    p has functions of sizes or a single term."""
    if p.letters != p.atoms or len(p.terms) < 2:
        return (p,)
    import sympy

    content, found = sympy.factor_list(to_sympy(p))
    factors = [_from_sympy(factor) for factor, power in found for _ in range(2 - power % 2)]
    return (Poly.of(1 if content > 0 else -1), *factors)


def _from_sympy(factor: sympy.Expr) -> Poly:
    """A sympy polynomial with whole coefficients as a `Poly`."""
    import sympy

    symbols = sorted(factor.free_symbols, key=str)
    terms: dict[Monomial, int] = {}
    for powers, number in sympy.Poly(factor, *symbols).terms():
        raised = zip(map(str, symbols), powers, strict=True)
        terms[tuple((name, power) for name, power in raised if power)] = int(number)
    return Poly(terms)


def _slope_and_rest(p: Poly, letter: str) -> tuple[Poly | None, Poly]:
    """(slope, rest) of p = slope*letter + rest; (None, p) if p is not affine in the letter, lacks
    the letter, or contains functions of sizes."""
    if letter not in p.atoms or p.letters != p.atoms:
        return None, p
    try:
        slope = p.coefficient(letter)
    except ValueError:
        return None, p
    return slope, p - slope * Poly.atom(letter)


def _solved_for(p: Poly, letter: str) -> Condition | None:
    """p > 0 solved for one letter; None if p is not affine in the letter, or its slope is neither
    proven to be negative nor proven to be positive from some width d on."""
    slope, rest = _slope_and_rest(p, letter)
    if slope is None:
        return None
    if nonnegative(-slope - 1):
        return Condition(f"{letter} < {_quotient_text(rest, -slope)}")
    bound = f"{letter} > {_quotient_text(-rest, slope)}"
    if nonnegative(slope - 1):
        return Condition(bound)
    beyond = _positive_beyond(slope)
    if beyond is None:
        return None
    bound = "always" if nonnegative(rest) else bound
    elsewhere = _at_small_widths(slope, rest, letter, beyond)
    where = where_positive(slope).text
    return Condition("; ".join([f"{bound}, for {where}", *elsewhere]))


def _positive_beyond(slope: Poly) -> int | None:
    """The smallest D such that slope > 0 is proven for all d >= D and n <= d; None if there is
    none."""
    if not slope.atoms <= {"d", "n"}:
        return None
    degree = max(map(_degree, slope.terms))
    for least_d in range(1, BEYOND):
        width = Poly.atom("extra") + least_d
        shifted = slope.substitute({"d": width, "n": width - Poly.atom("fewer")})
        if any(c < 0 for m, c in shifted.terms.items() if _degree(m) == degree):
            return None  # the terms of the highest degree are the same for every D
        constant = shifted.terms.get((), 0)
        if constant > 0 and all(c >= 0 for c in shifted.terms.values()):
            return least_d
    return None


def _degree(monomial: Monomial) -> int:
    """The sum of the powers of a monomial."""
    return sum(power for _, power in monomial)


def _at_small_widths(slope: Poly, rest: Poly, letter: str, beyond: int) -> list[str]:
    """The conditions, as text, under which p = slope*letter + rest > 0 at the widths d < `beyond`
    (and the divisors n of d) at which the slope is not positive; widths without solutions left
    out."""
    found = []
    for d, n in product(range(1, beyond), repeat=2):
        sizes = {"d": d, "n": n}
        a, b = Fraction(slope.rational(sizes)), Fraction(rest.rational(sizes))
        if d % n or a > 0 or ("n" not in (slope.atoms | rest.atoms) and n > 1):
            continue
        given = ", ".join(f"{k} = {v}" for k, v in sizes.items() if k in slope.atoms | rest.atoms)
        if a == 0 and b > 0:
            found.append(f"always for {given}")
        elif a < 0 and b + a > 0:  # positive at letter = 1, the smallest size
            found.append(f"{letter} < {b / -a} for {given}")
    return found


def _quotient_text(above: Poly, below: Poly) -> str:
    """A quotient of polynomials in the notation of CSV and JSON, with common factors cancelled."""
    if len(below.terms) == 1:
        return str(above / below)
    shared = Poly.of(1)
    for atom in sorted(above.atoms & below.atoms):
        powers = [dict(m).get(atom, 0) for poly in (above, below) for m in poly.terms]
        shared = shared * Poly.atom(atom) ** min(powers)
    numbers = [Fraction(c) for poly in (above, below) for c in poly.terms.values()]
    content = Fraction(gcd(*(c.numerator for c in numbers)), lcm(*(c.denominator for c in numbers)))
    above, below = above / shared / Poly.of(content), below / shared / Poly.of(content)
    top = f"({above})" if len(above.terms) > 1 else str(above)
    return f"{top}/({below})"
