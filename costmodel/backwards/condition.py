"""The condition on one size under which a polynomial in several sizes is positive, case by case.

In the size the polynomial has a degree of at most two: a*x**2 + b*x + c. Where the signs of a, b
and c are not proven, they stand as further conditions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from costmodel.errors import Unsupported
from costmodel.symbolic.cases import conditions
from costmodel.symbolic.constraints import Constraints, implied, narrowed
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, Style
from costmodel.symbolic.pretty import Pretty
from costmodel.symbolic.printing import Latex
from costmodel.symbolic.ranges.one_size import coefficients, sign_changes
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import primitive, without_known_signs


@dataclass(frozen=True)
class Bound:
    """A bound of a size: letter < or > (above + sign*sqrt(root))/below, where below is positive."""

    letter: str
    relation: str
    above: Poly
    below: Poly
    root: Poly = Poly()
    sign: int = 1

    def written(self, style: Style) -> str:
        """The bound in a style, such as `t > 3/2 + 5/(b*d)`. A bound that is a number is rounded,
        since sizes are integers: l > 3/2 is printed as l >= 2."""
        relation = self.relation
        value = self.above / self.below if self.is_sum else None
        number = None if value is None else value.constant()
        if isinstance(number, Fraction) and relation in ("<", ">"):
            value = Poly.of(ceil(number) if relation == ">" else floor(number))
            relation += "="
        left = style.poly(Poly.atom(self.letter))
        right = self._ratio(style) if value is None else self.value(style, value)
        return f"{left} {style.relations.get(relation, relation)} {right}"

    @property
    def is_sum(self) -> bool:
        """Whether the value is a polynomial."""
        return not self.root.terms and len(self.below.terms) == 1

    def value(self, style: Style, poly: Poly) -> str:
        """A polynomial in a style. For readers (LaTeX and terminals) a polynomial with fractions
        whose coefficients all are at least `LARGE` is followed by its rounded form."""
        exact = style.poly(poly)
        rounded = {m: round(Fraction(number)) for m, number in poly.terms.items()}
        large = all(abs(number) >= LARGE for number in rounded.values())
        whole = all(isinstance(number, int) for number in poly.terms.values())
        if whole or not large or not isinstance(style, (Latex, Pretty)):
            return exact
        about = style.poly(Poly(rounded))
        return rf"{exact} \approx {about}" if isinstance(style, Latex) else f"{exact} (≈ {about})"

    def _ratio(self, style: Style) -> str:
        """The value as a quotient: `(d + sqrt(d**2 + 24))/2`."""
        latex = isinstance(style, Latex)
        above, below = style.poly(self.above), style.poly(self.below)
        if self.root.terms:
            root = style.poly(self.root)
            root = rf"\sqrt{{{root}}}" if latex else f"sqrt({root})"
            lead = f"{above} " if self.above.terms else ""
            sign = ("+ " if lead else "") if self.sign > 0 else "- "
            above = f"{lead}{sign}{root}"
        if latex:
            return rf"\frac{{{above}}}{{{below}}}"
        plain = len(self.above.terms) == 1 and not self.root.terms
        return f"{above if plain else f'({above})'}/{below if below.isalnum() else f'({below})'}"


LARGE = 100
"""Fractions are rounded to whole numbers from this number on."""

LEGIBLE = 12
"""A square root of more terms is not printed."""


@dataclass(frozen=True)
class Case:
    """All bounds hold together, where the constraints do; without bounds every size is right."""

    bounds: tuple[Bound, ...]
    where: Constraints

    def written(self, style: Style) -> str:
        """The bounds and the conditions on other sizes, joined by "and", in a style; "" if there
        are none, so that the case holds at all sizes."""
        joint = r" \text{ and } " if isinstance(style, Latex) else " and "
        parts = [bound.written(style) for bound in self.bounds]
        if self.where:
            parts.append(conditions(self.where, style))
        return joint.join(parts)


def positive_in(difference: Exact, letter: str) -> tuple[Case, ...]:
    """The cases in which a difference is positive, as conditions on one size; none for never.

    Raises:
        Unsupported: a floor stands in the difference, or another function of the size, or its
            degree in the size is above two.
    """
    for guards, poly in difference.pieces:
        for part in (poly, *guards):
            if any(isinstance(atom, Fn) and atom.function == "floor_div" for atom in part.atoms):
                raise Unsupported("a floor stands in the difference")
    found: list[tuple[Constraints, Poly]] = [*difference.chambers()]
    for _, general in found:
        if all(general == poly or _alike(poly, general, letter, where) for where, poly in found):
            found = [(frozenset(), general)]
            break
    return tuple(case for where, poly in found for case in where_positive(poly, letter, where))


FEW = 64
"""A case that holds at no more values of the size is compared at each of them."""


def _alike(poly: Poly, general: Poly, letter: str, where: Constraints) -> bool:
    """Whether a polynomial is proven to be positive exactly where `general` is positive, at each
    value of the size that satisfies `where`; each value is tried. False if that is not proven, and
    if `where` names other sizes or holds at more than `FEW` values."""
    if any(guard.letters != {letter} for guard in where):
        return False
    sizes = [x for x in range(1, FEW + 2) if all(g.rational({letter: x}) >= 0 for g in where)]
    if FEW + 1 in sizes or any(_ends_later(guard, letter) for guard in where):
        return False
    return all(
        any(
            all(implied(frozenset(), one.substitute({letter: Poly.of(x)}) * way - least)
                for one in (primitive(poly), primitive(general)))
            for way, least in ((1, 1), (-1, 0))
        )
        for x in sizes
    )  # fmt: skip


def _ends_later(guard: Poly, letter: str) -> bool:
    """Whether a guard, a polynomial >= 0 in the size, holds again at a size beyond `FEW` + 1."""
    changes = sign_changes(coefficients(guard, letter), FEW + 1, LARGEST)
    return any(guard.rational({letter: x}) >= 0 for x in changes)


def where_positive(poly: Poly, letter: str, where: Constraints = frozenset()) -> Iterator[Case]:
    """The cases in which a polynomial is positive, as conditions on one size; none for never.

    Args:
        where: what is known of the sizes.

    Raises:
        Unsupported: the degree in the size is above two, or a function of the size stands in the
            polynomial.

    >>> from costmodel.symbolic.pretty import ORDERED
    >>> b, d, t = map(Poly.atom, "bdt")
    >>> [case.written(ORDERED) for case in where_positive(2 * b * d * t - 3 * b * d - 10, "t")]
    ['t > 3/2 + 5/(b*d)']
    >>> [case.written(ORDERED) for case in where_positive(t**2 - d * t - 6, "t")]
    ['t > (d + sqrt(d**2 + 24))/2']
    """
    poly = without_known_signs(primitive(poly))
    if implied(where, -poly):
        return
    if implied(where, poly - 1):
        yield Case((), where)
        return
    a, b, c = _coefficients(poly, letter)
    for sign, there in _signs(a, where):
        if sign:
            yield from _quadratic(letter, a * sign, b * sign, c * sign, sign, there)
            continue
        for slope, inside in _signs(b, there):
            if slope:
                bound = Bound(letter, ">" if slope > 0 else "<", -c * slope, b * slope)
                yield Case((bound,), inside)
            elif (kept := narrowed(inside, primitive(c) - 1)) is not None:
                yield Case((), kept)


def _coefficients(poly: Poly, letter: str) -> tuple[Poly, Poly, Poly]:
    """The coefficients (a, b, c) of a polynomial a*x**2 + b*x + c in the size x = `letter`.

    Raises:
        Unsupported: a function of the size, or another power.
    """
    terms: tuple[Poly, ...] = (Poly(), Poly(), Poly())
    found = [*terms]
    for monomial, number in poly.terms.items():
        powers = dict(monomial)
        power = powers.pop(letter, 0)
        if any(isinstance(atom, Fn) and letter in Poly.atom(atom).letters for atom in powers):
            raise Unsupported(f"a function of {letter} stands in the difference")
        if not 0 <= power <= 2:
            raise Unsupported(f"the difference has a degree of {power} in {letter}")
        found[2 - power] = found[2 - power] + Poly({tuple(powers.items()): number})
    return found[0], found[1], found[2]


def _signs(poly: Poly, where: Constraints) -> Iterator[tuple[int, Constraints]]:
    """The signs 1, -1 and 0 that a polynomial may have where `where` holds, each with the
    constraints under which the polynomial has this sign, `where` included. If one sign is proven,
    it is the only one."""
    if not poly.terms:
        yield 0, where
        return
    poly = primitive(poly)
    for sign in (1, -1):
        if (kept := narrowed(where, poly * sign - 1)) is not None:
            yield sign, kept
            if kept is where:
                return
    if implied(where, poly - 1) or implied(where, -poly - 1):
        return
    zero = narrowed(where, poly)
    zero = None if zero is None else narrowed(zero, -poly)
    if zero is not None:
        yield 0, zero


def _quadratic(
    letter: str, a: Poly, b: Poly, c: Poly, sign: int, where: Constraints
) -> Iterator[Case]:
    """The cases of sign*(a*x**2 + b*x + c) > 0 with a positive a, for x >= 1.

    With sign 1: beyond the larger root, below the smaller one, or everywhere without real roots.
    With sign -1: between both roots. If c <= 0, the smaller root is not positive and left out.

    Raises:
        Unsupported: the discriminant has more than `LEGIBLE` terms.
    """
    root, twice = b * b - 4 * a * c, 2 * a
    if len(root.terms) > LEGIBLE:
        raise Unsupported(f"the condition has a square root of {len(root.terms)} terms")
    below, above = Bound(letter, "<", -b, twice, root, -1), Bound(letter, ">", -b, twice, root)
    one_root = implied(where, -c)
    if sign > 0:
        if one_root:
            yield Case((above,), where)
            return
        if (real := narrowed(where, root)) is not None:
            yield from (Case((one,), real) for one in (below, above))
        if (none := narrowed(where, -root - 1)) is not None:
            yield Case((), none)
        return
    inner = (Bound(letter, ">", -b, twice, root, -1), Bound(letter, "<", -b, twice, root))
    if one_root:
        yield Case(inner[1:], where)
    elif (real := narrowed(where, root - 1)) is not None:
        yield Case(inner, real)
