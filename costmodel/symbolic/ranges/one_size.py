"""Where does a polynomial in one whole number change its sign?

Between two changes of the sign of p(x + 1) - p(x) the values of p at whole numbers are monotone, so
that bisection finds every change. The difference has a lower degree: the same question again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb, lcm

from costmodel.errors import Unsupported
from costmodel.symbolic.polynomial import Poly

Coefficients = Sequence[int]
"""The coefficients of 1, x, x**2, ... of a polynomial in one whole number."""


def ratio(poly: Poly, letter: str) -> tuple[Coefficients, Coefficients]:
    """A polynomial in the size `letter`, negative powers included, as (numerator, denominator): the
    whole coefficients of each from power 0 on; the denominator is positive at every size.

    Raises:
        Unsupported: the polynomial has other letters, or functions.

    >>> ratio(Poly.atom("l") / 2 - Poly.of(3) / Poly.atom("l"), "l")
    ([-6, 0, 1], [0, 2])
    """
    powers: dict[int, Fraction] = {}
    for monomial, number in poly.terms.items():
        if any(atom != letter for atom, _ in monomial):
            raise Unsupported(f"'{poly}' is no polynomial in {letter} alone")
        powers[sum(power for _, power in monomial)] = Fraction(number)
    scale, lowest = lcm(*(number.denominator for number in powers.values())), min(0, 0, *powers)
    found = [powers.get(power, Fraction(0)) for power in range(lowest, max(0, 0, *powers) + 1)]
    return [int(number * scale) for number in found], [0] * -lowest + [scale]


def coefficients(poly: Poly, letter: str) -> Coefficients:
    """Whole coefficients, constant first, with the sign of `poly`; Unsupported: other letters."""
    return ratio(poly, letter)[0]


def product(p: Coefficients, q: Coefficients) -> Coefficients:
    """The coefficients of the product of two polynomials, constant term first."""
    found = [0] * (len(p) + len(q) - 1)
    for i, one in enumerate(p):
        for j, two in enumerate(q):
            found[i + j] += one * two
    return found


def value(p: Coefficients, x: int) -> int:
    """The value at `x` of the polynomial with the coefficients `p`, constant term first."""
    total = 0
    for number in reversed(p):
        total = total * x + number
    return total


def sign(number: int | Fraction) -> int:
    """-1, 0 or 1."""
    return (number > 0) - (number < 0)


def _next(p: Coefficients) -> Coefficients:
    """The coefficients of p(x + 1), constant term first."""
    return [
        sum(p[power] * comb(power, below) for power in range(below, len(p)))
        for below in range(len(p))
    ]


def turns(p: Coefficients, below: Coefficients, first: int, last: int) -> list[int]:
    """Whole numbers from first to last, both among them, such that between two consecutive ones the
    quotient p/below is monotone: [0, 3, 10] for x**2 - 6*x over 1 at 0..10. p, below: coefficients,
    constant term first; the value of `below` is positive at first..last."""
    # p/below grows from x to x + 1 where p(x + 1)*below(x) - p(x)*below(x + 1) is positive
    one, two = product(_next(p), below), product(p, _next(below))
    rise = [x - y for x, y in zip(one, two, strict=True)]
    while len(rise) > 1 and not rise[-1]:
        rise.pop()
    return [first, *sign_changes(rise, first, last - 1), last]


def sign_changes(p: Coefficients, first: int, last: int) -> list[int]:
    """Each x of first+1..last at which the sign (-1, 0 or 1) of a polynomial differs from that at x
    - 1; `p`: coefficients, constant term first.

    >>> sign_changes([21, -10, 1], 1, 100)
    [3, 4, 7, 8]
    """
    if len(p) < 2 or last <= first:
        return []
    found: list[int] = []
    for start, end in pairwise(turns(p, [1], first, last)):
        found += changes(lambda x: sign(value(p, x)), start, end)
    return found


def changes(of: Callable[[int], object], first: int, last: int) -> list[int]:
    """Each x of first+1..last at which the value of a function differs from the value at x - 1, by
    bisection, for a function that takes equal values only at consecutive x."""
    found: list[int] = []
    end, before = of(last), of(first)
    while before != end:
        low, high = first, last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if of(middle) == before else (low, middle)
        found.append(high)
        first, before = high, of(high)
    return found
