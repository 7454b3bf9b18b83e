"""The sizes at which one quantity exceeds or equals another, exactly, as conditions with letters.

The difference of two counts is a polynomial p; the question is where p > 0. Nothing is sampled.

`positive_cases` solves p > 0 for one size x, in which p has a degree of at most two:
a*x**2 + b*x + c. Where the signs of a, b and c are not proven, they stand as further conditions.
With numbers for all sizes but one, `symbolic/ranges` solves all p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING

from costmodel.errors import Unsupported
from costmodel.symbolic.cases import conditions
from costmodel.symbolic.constraints import Constraints, implied, narrowed, nonnegative
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import TEXT, Fn, Monomial, Poly, Style
from costmodel.symbolic.pretty import Pretty
from costmodel.symbolic.printing import Latex
from costmodel.symbolic.ranges.one_size import coefficients, sign_changes
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.sympy_form import to_sympy

if TYPE_CHECKING:
    import sympy


SOLVED_FOR = ("l", "t", "d", "n")
"""The letters for which a condition is solved, in order of preference."""

WIDTHS = frozenset("dn")
"""The letters on whose values the sign of a slope may depend."""


@dataclass(frozen=True)
class Condition:
    """The sizes at which a relation holds: `text` is exact, `always` and `never` are proven."""

    text: str
    always: bool = False
    never: bool = False


ALWAYS, NEVER = Condition("at every size", always=True), Condition("at no size", never=True)


def points(letters: frozenset[str], most: int | None = None) -> Iterator[dict[str, int]]:
    """Yield points, sizes as letter -> value, by increasing sum, then in lexicographic order; n
    divides d, and t <= l. `most` is the largest value of a size; without it the sequence is
    infinite. Without letters there is one empty point.

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
    """Yield the ways to write `total` as `parts` positive numbers, in lexicographic order."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def where_positive(p: Poly) -> Condition:
    """The condition on the sizes (n a divisor of d, t at most l) under which the polynomial is
    positive: solved for the letter of `SOLVED_FOR` with the fewest cases for which it can be
    solved, else the inequality itself.

    >>> d, l = Poly.atom("d"), Poly.atom("l")
    >>> where_positive(d * d * (l - 2)).text
    'l > 2'
    >>> where_positive(l * (d - 2) - d * 3).text
    'l > 3*d/(d - 2) and d >= 3'
    >>> where_positive(l**2 - d**2).text
    'l > d'
    """
    p = without_known_signs(primitive(p))
    solved = [[*positive_cases(p, x)] for x in SOLVED_FOR if _is_solved_for(p, x)]
    if solved:
        cases = min(solved, key=len)
    elif implied(frozenset(), p - 1):
        cases = [Case((), frozenset())]
    elif implied(frozenset(), -p):
        cases = []
    else:
        return Condition(f"{p} > 0")
    if not cases:
        return NEVER
    # a case without text holds at all sizes
    return Condition("; ".join(texts)) if all(texts := [c.written(TEXT) for c in cases]) else ALWAYS


def where_zero(p: Poly) -> Condition:
    """The condition on the sizes under which the polynomial is zero: always, never, an equation
    solved for the first letter of `SOLVED_FOR` for which it can be, or `p = 0` itself.

    >>> d, l = Poly.atom("d"), Poly.atom("l")
    >>> where_zero(l**2 - d**2).text, where_zero(d*l - 6).text, where_zero(2*l - 3).text
    ('l = d', 'l = 6/d', '2*l - 3 = 0')
    """
    p = without_known_signs(primitive(p))
    if not p.terms:
        return ALWAYS
    if nonnegative(p - 1) or nonnegative(-p - 1):
        return NEVER
    for letter in SOLVED_FOR:
        if (found := _affine(p, letter)) is not None:
            slope, rest = found
            for sign in (1, -1):
                # a product, with the factor 1, of sizes and functions that are never 0
                if [*(slope * sign).terms.values()] == [1] and all(map(_is_never_0, slope.atoms)):
                    return Condition(Bound(letter, "=", -rest * sign, slope * sign).written(TEXT))
    return Condition(f"{p} = 0")


def _is_never_0(atom: str) -> bool:
    """Whether an atom is a size, or a function that is proven to be at least 1 at all sizes."""
    return not isinstance(atom, Fn) or nonnegative(Poly.atom(atom) - 1)


def primitive(p: Poly) -> Poly:
    """The polynomial divided by its positive common factors: a number, such that coprime whole
    coefficients remain, and powers of sizes and of functions that are proven to be positive. The
    sign stays: 6*d*l - 4*d gives 3*l - 2. ceil_log2(l), which is 0 at l = 1, stays."""
    if not p.terms:
        return p
    atoms = {atom for monomial in p.terms for atom, _ in monomial if _is_never_0(atom)}
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
    """Polynomials with whole coefficients whose product has the sign and the zeros of p, a
    polynomial without negative powers: -1, d, d - l and d + l of d*l**2 - d**3; (p,) where p has
    functions of sizes or a single term."""
    if p.letters != p.atoms or len(p.terms) < 2:
        return (p,)
    import sympy

    content, found = sympy.factor_list(to_sympy(p))
    # an odd power has the sign of its base, an even power that of the base's square
    factors = [_from_sympy(factor) for factor, power in found for _ in range(2 - power % 2)]
    return (Poly.of(1 if content > 0 else -1), *factors)


def _from_sympy(factor: sympy.Expr) -> Poly:
    """A sympy polynomial with whole coefficients as a `Poly` over the names of its symbols."""
    import sympy

    symbols = sorted(factor.free_symbols, key=str)
    terms: dict[Monomial, int] = {}
    for powers, number in sympy.Poly(factor, *symbols).terms():
        raised = zip(map(str, symbols), powers, strict=True)
        terms[tuple((name, power) for name, power in raised if power)] = int(number)
    return Poly(terms)


@dataclass(frozen=True)
class Bound:
    """A bound of a size: letter <, > or = (above + sign*sqrt(root))/below; `below` is positive."""

    letter: str
    relation: str
    above: Poly
    below: Poly
    root: Poly = Poly()
    sign: int = 1

    def written(self, style: Style) -> str:
        """The bound as text in a style (plain, LaTeX or a terminal's), such as `t > 3/2 + 5/(b*d)`.
        A fraction as a lower or upper bound is rounded, since sizes are integers: l > 3/2 is
        printed as l >= 2, l < 3/2 as l <= 1; l > 3 and l = 3/2 stay."""
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
        """Whether the value is a polynomial: without a root, and with a divisor of one term."""
        return not self.root.terms and len(self.below.terms) == 1

    def value(self, style: Style, poly: Poly) -> str:
        """The text of a polynomial in a style (plain, LaTeX or a terminal's). In LaTeX and
        terminals, a polynomial with a fraction whose coefficients all are at least `LARGE` in size
        is followed by its rounded form: `200d + 1001/2 (≈ 200d + 500)`."""
        exact = style.poly(poly)
        rounded = {m: round(Fraction(number)) for m, number in poly.terms.items()}
        large = all(abs(number) >= LARGE for number in rounded.values())
        whole = all(isinstance(number, int) for number in poly.terms.values())
        if whole or not large or not isinstance(style, (Latex, Pretty)):
            return exact
        about = style.poly(Poly(rounded))
        return rf"{exact} \approx {about}" if isinstance(style, Latex) else f"{exact} (≈ {about})"

    def _ratio(self, style: Style) -> str:
        """The text of the bound's value, (above + sign*sqrt(root))/below, as a quotient in a style:
        `(d + sqrt(d**2 + 24))/2`, in LaTeX a \\frac; without a root, `above/below`."""
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
    """The sizes at which all `bounds` and all constraints `where` hold; all sizes without both."""

    bounds: tuple[Bound, ...]
    where: Constraints

    def written(self, style: Style) -> str:
        """The text of a case in a style (plain, LaTeX or a terminal's): its bounds and its
        conditions on other sizes, joined by "and"; "" if there are none, so that the case holds at
        all sizes."""
        joint = r" \text{ and } " if isinstance(style, Latex) else " and "
        parts = [bound.written(style) for bound in self.bounds]
        if self.where:
            parts.append(conditions(self.where, style))
        return joint.join(parts)


def positive_in(difference: Exact, letter: str) -> tuple[Case, ...]:
    """The cases in which a difference is positive, as conditions on the size `letter`; () if none.

    Raises:
        Unsupported: a floor stands in the difference, or another function of the size; its degree
            in the size is above two; or a square root has more than `LEGIBLE` terms.
    """
    for guards, poly in difference.pieces:
        for part in (poly, *guards):
            if any(isinstance(atom, Fn) and atom.function == "floor_div" for atom in part.atoms):
                raise Unsupported(
                    "the difference of the two formulas has a floor, and only polynomials of "
                    f"degree 1 or 2 are solved for {letter}"
                )
    found: list[tuple[Constraints, Poly]] = [*difference.chambers()]
    # one polynomial whose sign is right in all chambers gives shorter conditions than all of them
    for _, general in found:
        if all(general == poly or _alike(poly, general, letter, where) for where, poly in found):
            found = [(frozenset(), general)]
            break
    return tuple(case for where, poly in found for case in positive_cases(poly, letter, where))


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
    # at each value both are proven to be at least 1, or both to be at most 0
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


def positive_cases(poly: Poly, letter: str, where: Constraints = frozenset()) -> Iterator[Case]:
    """Yield the cases in which a polynomial is positive, as conditions on the size `letter`.

    Args:
        where: constraints (polynomials that are at least 0) that the sizes satisfy.

    Raises:
        Unsupported: the degree in the size is above two, a function of the size stands in the
            polynomial, or a square root has more than `LEGIBLE` terms.

    >>> from costmodel.symbolic.pretty import ORDERED
    >>> b, d, t = map(Poly.atom, "bdt")
    >>> [case.written(ORDERED) for case in positive_cases(2 * b * d * t - 3 * b * d - 10, "t")]
    ['t > 3/2 + 5/(b*d)']
    >>> [case.written(ORDERED) for case in positive_cases(t**2 - d * t - 6, "t")]
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
                yield from _affine_cases(letter, b * slope, c * slope, slope, inside)
                continue
            # a and b are 0: the sign of c decides where b is 0, as d - 2 is at {d: 2}; n heads
            # divide the width d, so n - 5 is positive at no n that divides d = 4
            known = _root(primitive(b))
            rest = primitive(c.substitute(known))
            kept = narrowed(inside, rest - 1)
            if kept is not None and _occurs(rest, known.get("d")):
                yield Case((), kept)


def _occurs(poly: Poly, width: Poly | None) -> bool:
    """Whether a polynomial may be positive at sizes that exist: False if it depends on n alone, the
    width d is a number, and it is positive at no divisor n of d."""
    d = None if width is None else width.constant()
    if not isinstance(d, int) or poly.letters != {"n"}:
        return True
    return any(poly.rational({"n": n}) > 0 for n in range(1, d + 1) if d % n == 0)


def _coefficients(poly: Poly, letter: str) -> tuple[Poly, Poly, Poly]:
    """The coefficients (a, b, c) of a polynomial a*x**2 + b*x + c in the size x = `letter`: (d, -3,
    7) of d*l**2 - 3*l + 7 in l. Raises Unsupported: a function of the size, or another power."""
    terms: tuple[Poly, ...] = (Poly(), Poly(), Poly())
    found = [*terms]
    for monomial, number in poly.terms.items():
        powers = dict(monomial)
        power = powers.pop(letter, 0)
        if any(isinstance(atom, Fn) and letter in Poly.atom(atom).letters for atom in powers):
            raise Unsupported(
                f"the difference of the two formulas has a function of {letter}, and only "
                f"polynomials of degree 1 or 2 are solved for {letter}"
            )
        if not 0 <= power <= 2:
            raise Unsupported(
                f"the difference of the two formulas has {letter} to the power {power}, and only "
                f"polynomials of degree 1 or 2 are solved for {letter}"
            )
        found[2 - power] = found[2 - power] + Poly({tuple(powers.items()): number})
    return found[0], found[1], found[2]


def _is_solved_for(poly: Poly, letter: str) -> bool:
    """Whether a polynomial is affine in a size, with a slope of one sign or in widths alone."""
    slope, _ = _affine(poly, letter) or (Poly(), Poly())
    known = any(implied(frozenset(), slope * sign - 1) for sign in (1, -1))
    return known or (slope.terms != {} and slope.letters <= WIDTHS)


def _affine(poly: Poly, letter: str) -> tuple[Poly, Poly] | None:
    """(b, c) of a polynomial b*x + c in the size x = `letter`; None for another polynomial."""
    try:
        a, b, c = _coefficients(poly, letter)
    except Unsupported:
        return None
    return None if a.terms or not b.terms else (b, c)


def _root(poly: Poly) -> dict[str, Poly]:
    """{size: value} that makes a polynomial 0, such as {d: 2} for d - 2; {} if none is found."""
    for letter in sorted(poly.letters):
        slope, rest = _affine(poly, letter) or (Poly(), Poly())
        if slope.constant() in (1, -1):
            return {letter: -rest * slope}
    return {}


def _affine_cases(letter: str, b: Poly, c: Poly, sign: int, where: Constraints) -> Iterator[Case]:
    """Yield the cases of sign*(b*x + c) > 0 with a positive b, for sizes x >= 1. With sign 1: x
    above -c/b, or no bound if x = 1 satisfies the condition already. With sign -1: x below -c/b;
    nothing if no x >= 1 is below."""
    if sign > 0:
        bounds = (Bound(letter, ">", -c, b),)
        yield Case(() if implied(where, b + c - 1) else bounds, where)
    elif not implied(where, b + c):
        yield Case((Bound(letter, "<", -c, b),), where)


def _signs(poly: Poly, where: Constraints) -> Iterator[tuple[int, Constraints]]:
    """Yield the signs 1, -1 and 0 that a polynomial may have where `where` holds, each with the
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
    """Yield the cases of sign*(a*x**2 + b*x + c) > 0 with a positive a, for x >= 1.

    With sign 1: beyond the larger root, below the smaller one, or everywhere without real roots.
    With sign -1: between both roots. If c <= 0, the smaller root is not positive and left out.

    Raises:
        Unsupported: the discriminant has more than `LEGIBLE` terms.
    """
    root, twice = b * b - 4 * a * c, 2 * a
    if len(root.terms) > LEGIBLE:
        raise Unsupported(
            f"the solution has a square root of {len(root.terms)} terms, and at most {LEGIBLE} are "
            "printed"
        )
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
