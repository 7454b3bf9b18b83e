"""What is a polynomial over, and how is it written?

Over sizes, indices, axes, and functions of polynomials, which are equal by their text.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodel.polynomial import Poly

Number = int | Fraction
Monomial = tuple[tuple[str, int], ...]


class Fn(str):
    """An atom that is a function of polynomials; equal by its text, indices told from sizes."""

    function: str
    args: tuple[Poly, ...]

    def __new__(cls, function: str, args: tuple[Poly, ...]) -> Fn:
        self = super().__new__(cls, f"{function}({', '.join(map(_named, args))})")
        self.function = function
        self.args = args
        return self


def _order(term: tuple[Monomial, Number]) -> tuple[int, list[tuple[int, str]]]:
    """Higher degree first, then by name: how papers print a sum."""
    monomial, _ = term
    return -sum(p for _, p in monomial), [(-p, a) for a, p in monomial]


def sorted_terms(poly: Poly) -> list[tuple[Monomial, Number]]:
    """The terms in printing order."""
    return sorted(poly.terms.items(), key=_order)


def by_text(polys: Collection[Poly]) -> Collection[Poly]:
    """Polynomials in one order, whatever the order in which they came."""
    return polys if len(polys) < 2 else sorted(polys, key=str)


def to_text(poly: Poly) -> str:
    """The polynomial with `+ - * / **`, `ceil_log2`, `Max`, `Min`, `floor`, as formats promise."""
    text = ""
    for monomial, number in sorted_terms(poly):
        sign = "-" if number < 0 else "+"
        text += f" {sign} " if text else ("-" if number < 0 else "")
        text += _term_text(monomial, -number if number < 0 else number)
    return text or "0"


def _term_text(monomial: Monomial, number: Number) -> str:
    above: list[str] = []
    below: list[str] = []
    fraction = Fraction(number)
    if fraction.numerator != 1:
        above.append(str(fraction.numerator))
    if fraction.denominator != 1:
        below.append(str(fraction.denominator))
    for atom, power in monomial:
        name = _atom_text(atom)
        (above if power > 0 else below).append(name + (f"**{abs(power)}" if abs(power) > 1 else ""))
    top = "*".join(above) or "1"
    if not below:
        return top
    return f"{top}/{below[0] if len(below) == 1 else '(' + '*'.join(below) + ')'}"


def _named(poly: Poly) -> str:
    """The polynomial with the atoms' own names, in which an index is no size."""
    return " + ".join(
        "*".join([str(number), *(f"{atom}**{power}" if power != 1 else atom for atom, power in m)])
        for m, number in sorted_terms(poly)
    )


def _atom_text(atom: str) -> str:
    if not isinstance(atom, Fn):
        return atom.lstrip("@#")
    if atom.function == "pow2":
        return f"2**{_wrapped(atom.args[0])}"
    return _call_text(atom.function, atom.args)


def _call_text(function: str, args: tuple[Poly, ...]) -> str:
    if function == "floor_div":
        above = to_text(args[0])
        above = above if len(args[0].terms) == 1 and "/" not in above else f"({above})"
        return f"floor({above}/{_wrapped(args[1])})"
    return f"{function}({', '.join(map(to_text, args))})"


def _wrapped(poly: Poly) -> str:
    """The text, in parentheses unless it is one atom or a whole number."""
    plain = any(poly.terms == {((atom, 1),): 1} for atom in poly.atoms)
    number = poly.constant()
    if plain or (isinstance(number, int) and number >= 0):
        return to_text(poly)
    return f"({to_text(poly)})"
