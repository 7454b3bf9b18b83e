"""Exact answers as text for a terminal.

As a sum, `4d²l + dl² + dl`, or with the common factor outside of brackets, `dl(4d + l + 1)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm

from costmodel.symbolic.cases import Formula, Quotient, cases, conditions, largest
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import TEXT, Fn, Monomial, Number, Poly, Style, atom_name

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def ordered_terms(poly: Poly) -> list[tuple[Monomial, Number]]:
    """The terms in printing order, a positive one first: t - j + 1, not -j + t + 1."""
    terms = list(poly.terms.items())
    first = next((k for k, (_, number) in enumerate(terms) if number > 0), 0)
    return [*terms[first : first + 1], *terms[:first], *terms[first + 1 :]]


def factors(poly: Poly) -> tuple[Poly, Poly]:
    """(the common factor of all terms of a polynomial, the polynomial divided by it). ValueError
    for the polynomial 0.

    >>> from costmodel.symbolic.polynomial import size
    >>> l, d = size("l"), size("d")
    >>> " and ".join(map(str, factors(d * l**2 / 2 + d**2 * l * 3 / 2)))
    'd*l/2 and 3*d + l'
    """
    numbers = [Fraction(number) for number in poly.terms.values()]
    above, below = gcd(*(n.numerator for n in numbers)), lcm(*(n.denominator for n in numbers))
    shared = Poly.of(Fraction(above, below))
    powers = [dict(monomial) for monomial in poly.terms]
    for atom in sorted(poly.atoms):
        found = [power.get(atom, 0) for power in powers]
        if min(found) > 0 or max(found) < 0:
            shared = shared * Poly.atom(atom) ** min(found, key=abs)
    return shared, poly / shared


def shortest(poly: Poly) -> tuple[Poly, Poly] | None:
    """(common factor, rest) if their product is shorter in print than the polynomial, with the
    common number inside the brackets or outside, whichever is shorter; else None.

    >>> from costmodel.symbolic.polynomial import size
    >>> l, d = size("l"), size("d")
    >>> shortest(d * l + d), shortest(d**2 * l * 4 + d * l**2 + d * l)
    (None, (Poly(d*l), Poly(4*d + l + 1)))
    """
    if len(poly.terms) < 2:
        return None
    shared, rest = factors(poly)
    letters = Poly(dict.fromkeys(shared.terms, 1))  # the common factor without its number
    ways = [(_outside(a, b), a, b) for a, b in ((letters, poly / letters), (shared, rest))]
    text, outside, inside = min(ways, key=lambda way: len(way[0]))
    return (outside, inside) if len(text) < len(PRETTY.poly(poly)) else None


def _outside(shared: Poly, rest: Poly) -> str:
    """The text of a common factor (of one term) before the rest in brackets: dl(4d + 1)."""
    ((monomial, number),) = shared.terms.items()
    return PRETTY.term(monomial, number, f"({PRETTY.poly(rest)})")


def poly_pretty(poly: Poly, *, factored: bool = False) -> str:
    """A polynomial as text for a terminal; `factored`: the common factor outside, if shorter.

    >>> from costmodel.symbolic.polynomial import size
    >>> from costmodel.symbolic.polynomial import call
    >>> l, d, n = size("l"), size("d"), size("n")
    >>> poly_pretty(4 * d**2 * l + d * l**2 + d * l)
    '4d²l + dl² + dl'
    >>> poly_pretty(4 * d**2 * l + d * l**2 + d * l, factored=True)
    'dl(4d + l + 1)'
    >>> poly_pretty(l * d / n * 3 / 2 - call("ceil_log2", d / n))
    '3dl/(2n) - ⌈log₂(d/n)⌉'
    """
    if factored and (found := shortest(poly)):
        return _outside(*found)
    return PRETTY.poly(poly)


_WORD = re.compile(r"[A-Za-z]\w", re.ASCII)
"""The beginning of a name with several letters, which needs a point before and after the name."""


class Ordered(Style):
    """Plain text with a positive term first, outside of functions: t - j + 1, not -j + t + 1."""

    def ordered(self, poly: Poly) -> list[tuple[Monomial, Number]]:
        return ordered_terms(poly)

    def function(self, atom: Fn) -> str:
        return TEXT.function(atom)


class Pretty(Ordered):
    """Text for a terminal."""

    relations: Mapping[str, str] = {">=": "≥", "<=": "≤"}

    def term(self, monomial: Monomial, number: Number, last: str = "") -> str:
        letters_first = sorted(monomial, key=lambda pair: isinstance(pair[0], Fn))
        return super().term(tuple(letters_first), number, last)

    def product(self, factors: list[str]) -> str:
        """Factors side by side, with a point between two that would read as one name or number."""
        text = ""
        for before, factor in zip(["", *factors], factors, strict=False):
            sign = "^" in before or _WORD.match(before) or _WORD.match(factor)
            text += f"·{factor}" if text and (sign or factor[0].isdigit()) else factor
        return text

    def power(self, atom: str, power: int) -> str:
        if isinstance(atom, Fn) and atom.function == "pow2":
            return f"2^{self._parenthesised(atom.args[0] * power)}"
        base = self.function(atom) if isinstance(atom, Fn) else atom_name(atom)
        return base if power == 1 else base + str(power).translate(RAISED)

    def function(self, atom: Fn) -> str:
        """The text of a function: ⌈log₂ x⌉, ⌊x/y⌋, max(x, y) or min(x, y)."""
        inside = [self.poly(argument) for argument in atom.args]
        if atom.function == "ceil_log2":
            return f"⌈log₂ {inside[0]}⌉" if inside[0].isalnum() else f"⌈log₂({inside[0]})⌉"
        if atom.function == "floor_div":
            return f"⌊{_bracketed(inside[0])}/{self._parenthesised(atom.args[1])}⌋"
        return f"{atom.function.lower()}({', '.join(inside)})"


ORDERED, PRETTY = Ordered(), Pretty()


def formula_pretty(value: Formula, *, factored: bool = False) -> str:
    """An answer as text for a terminal; a piecewise answer case by case. `factored`: common factors
    outside of brackets, where that is shorter."""
    return "; ".join(
        f"{_case(part, factored)} if {conditions(guards, PRETTY)}"
        if guards
        else _case(part, factored)
        for guards, part in cases(value)
    )


def _case(value: Formula, factored: bool) -> str:
    """The text for a terminal of one case of an answer, which has a single formula there."""
    if isinstance(value, Quotient):
        above, below = (_case(part, factored) for part in (value.above, value.below))
        return f"{_bracketed(above)}/{below if len(below) == 1 else f'({below})'}"
    if isinstance(value, Exact):
        return poly_pretty(value.chambers()[0][1], factored=factored)
    return poly_pretty(largest(value), factored=factored)


def _bracketed(text: str) -> str:
    """The text, in brackets unless it is one name or number."""
    return text if text.isalnum() else f"({text})"
