"""Are two formulas in floor(x/2) equal, where their polynomials differ?

Of x = 2f and x = 2f + 1 one holds: (2f - x)(2f - x + 1) = 0, so that f**2 is given by f and x; and
floor((x + 1)/2) = x - floor(x/2). What is written by x and the first power of f alone is 0 at all
sizes only where it is 0 as a polynomial.
"""

from __future__ import annotations

from fractions import Fraction

from costmodel.atoms import Fn
from costmodel.polynomial import Poly, call


def by_halves(poly: Poly) -> Poly:
    """The same number at all sizes, written by the first powers of floor(x/2) alone.

    >>> k = Poly.atom("k")
    >>> up, down = (k + 1) // 2, k // 2
    >>> str(by_halves(up + down))
    'k'
    >>> str(by_halves((up * 2 - k) ** 2 - up * 2 + k))
    '0'
    """
    for atom in sorted(poly.atoms):
        if isinstance(atom, Fn) and atom.function == "floor_div" and atom.args[1] == 2:
            above = atom.args[0]
            if above.terms.get((), 0) == 1:
                poly = poly.substitute({atom: above - 1 - call("floor_div", above - 1, 2)})
    for atom in sorted(poly.atoms):
        if isinstance(atom, Fn) and atom.function == "floor_div" and atom.args[1] == 2:
            poly = first_powers(poly, atom, atom.args[0])
    return poly


def first_powers(poly: Poly, half: Fn, whole: Poly) -> Poly:
    """The same number without squares of floor(whole/2): 4f**2 = (4x - 2)f - x(x - 1)."""
    square = (Poly.atom(half) * (whole * 4 - 2) - whole * (whole - 1)) * Fraction(1, 4)
    while high := [m for m in poly.terms if dict(m).get(half, 0) > 1]:
        for monomial in high:
            powers = dict(monomial)
            powers[half] -= 2
            rest = tuple(sorted((a, p) for a, p in powers.items() if p))
            number = poly.terms[monomial]
            poly = poly - Poly({monomial: number}) + Poly({rest: number}) * square
    return poly
