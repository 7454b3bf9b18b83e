"""How many points has a domain, and what does a polynomial sum to over it, exactly?

A domain is a conjunction of affine constraints `p >= 0` over index variables, with sizes as
parameters. Summation eliminates one variable at a time with Faulhaber's formulas; where several
bounds compete (`max(1, i-w+1)`), the sum splits into pieces whose guards name the breakpoints.
Everything is exact for constraints in which the eliminated variable has coefficient +1 or -1;
anything else raises `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from math import comb
from typing import TYPE_CHECKING

from costmodel.polynomial import Fn, Poly, to_sympy

if TYPE_CHECKING:
    import sympy

Constraints = frozenset[Poly]
"""Each polynomial is at least 0."""


class Unsupported(ValueError):
    """The language allows it but exact summation does not cover it; the message says where."""


@dataclass(frozen=True)
class Exact:
    """A sum of guarded polynomials: each counts where all of its guards are >= 0."""

    pieces: tuple[tuple[Constraints, Poly], ...] = ()

    @staticmethod
    def of(poly: Poly) -> Exact:
        """The unguarded polynomial."""
        return Exact(((frozenset(), poly),)) if poly.terms else Exact()

    def __add__(self, other: Exact) -> Exact:
        merged: dict[Constraints, Poly] = {}
        for guards, poly in self.pieces + other.pieces:
            merged[guards] = merged[guards] + poly if guards in merged else poly
        return Exact(tuple((g, p) for g, p in merged.items() if p.terms))

    def __sub__(self, other: Exact) -> Exact:
        return self + other * Poly.of(-1)

    def __mul__(self, factor: Poly | int) -> Exact:
        return Exact(tuple((g, p * factor) for g, p in self.pieces if (p * factor).terms))

    def at(self, sizes: Mapping[str, int]) -> int:
        """The integer value at integer sizes."""
        total: int | Fraction = 0
        for guards, poly in self.pieces:
            if all(guard.rational(sizes) >= 0 for guard in guards):
                total = total + poly.rational(sizes)
        if isinstance(total, Fraction) and total.denominator != 1:
            raise ValueError(f"a count came out fractional at {dict(sizes)}: {total}")
        return int(total)

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that the value depends on."""
        found: set[str] = set()
        for guards, poly in self.pieces:
            found |= poly.letters.union(*(g.letters for g in guards))
        return frozenset(found)

    @property
    def is_zero(self) -> bool:
        """True when no piece is left."""
        return not self.pieces

    def substitute(self, values: Mapping[str, Poly]) -> Exact:
        """Replace sizes in values and guards."""
        total = Exact()
        for guards, poly in self.pieces:
            kept = simplified(frozenset(g.substitute(values) for g in guards))
            if kept is not None:
                total = total + Exact(((kept, poly.substitute(values)),))
        return total

    @property
    def expr(self) -> sympy.Expr:
        """The value as a sympy expression, piecewise with its breakpoints where it must be."""
        import sympy

        plain = self.chambers()
        if len(plain) == 1 and not plain[0][0]:
            return to_sympy(plain[0][1])
        cases = [
            (to_sympy(poly), sympy.And(*(sympy.Ge(to_sympy(g), 0) for g in sorted(gs, key=str))))
            for gs, poly in plain
        ]
        return sympy.Piecewise(*cases)

    def chambers(self) -> list[tuple[Constraints, Poly]]:
        """Disjoint cases that cover all sizes; one unguarded case where nothing splits."""
        cases: list[tuple[Constraints, Poly]] = [(frozenset(), Poly())]
        for guards, poly in self.pieces:
            for guard in guards:
                cases = [
                    (kept, value)
                    for constraints, value in cases
                    for side in (guard, -guard - 1)
                    if (kept := _joined(constraints, side)) is not None
                ]
            cases = [
                (cs, value + poly if implied_all(cs, guards) else value) for cs, value in cases
            ]
        return [(_irredundant(constraints), value) for constraints, value in cases]


def _irredundant(constraints: Constraints) -> Constraints:
    """Drop what the other constraints imply."""
    kept = constraints
    for constraint in sorted(constraints, key=str):
        if implied(kept - {constraint}, constraint):
            kept = kept - {constraint}
    return kept


def _joined(constraints: Constraints, extra: Poly) -> Constraints | None:
    """The constraints with one more, or None when they contradict it."""
    if implied(constraints, extra):
        return constraints
    joined = constraints | {extra}
    return None if infeasible(joined) else joined


@lru_cache(maxsize=200_000)
def nonnegative(poly: Poly) -> bool:
    """Whether sizes >= 1, n | d and t <= l prove `poly >= 0`; False means only "not proven"."""
    if poly.constant() is not None:
        return poly.rational({}) >= 0
    letters = poly.letters
    values: dict[str, Poly] = {}
    if "n" in letters and "d" in letters:
        values["d"] = Poly.atom("n") * Poly.atom("h")
    if "t" in letters and "l" in letters:
        values["l"] = Poly.atom("t") + Poly.atom("l-t") - 1
    poly = poly.substitute(values)
    poly = _without_denominators(poly)
    shifted = {}
    for atom in poly.atoms:
        if atom[0] in "@#" or (isinstance(atom, Fn) and atom.function in ("Max", "Min")):
            return False
        least = 0 if isinstance(atom, Fn) and atom.function == "ceil_log2" else 1
        shifted[atom] = Poly.atom(atom) + least
    return all(coefficient >= 0 for coefficient in _shift(poly, shifted).terms.values())


def _shift(poly: Poly, values: Mapping[str, Poly]) -> Poly:
    """Substitute at the top level only: function atoms are variables here."""
    result = Poly()
    for monomial, number in poly.terms.items():
        term = Poly.of(number)
        for atom, power in monomial:
            term = term * values[atom] ** power
        result = result + term
    return result


def _without_denominators(poly: Poly) -> Poly:
    """Multiply by the atoms that occur with negative powers; they are positive."""
    factor = Poly.of(1)
    lowest: dict[str, int] = {}
    for monomial in poly.terms:
        for atom, power in monomial:
            lowest[atom] = min(lowest.get(atom, 0), power)
    for atom, power in lowest.items():
        factor = factor * Poly.atom(atom) ** -power
    return poly * factor


def variables_of(constraints: Iterable[Poly]) -> set[str]:
    """The index and axis variables that occur."""
    return {a for c in constraints for a in c.letters if a[0] in "@#"}


@lru_cache(maxsize=200_000)
def infeasible(constraints: Constraints) -> bool:
    """Whether the constraints are proven to have no solution (Fourier-Motzkin, then sizes)."""
    remaining = set(constraints)
    while True:
        if any(nonnegative(-c - 1) for c in remaining if not variables_of([c])):
            return True
        present = variables_of(remaining)
        if not present:
            return _sizes_contradict(frozenset(c for c in remaining if not nonnegative(c)))
        variable = min(present, key=lambda v: (sum(v in c.letters for c in remaining), v))
        lower, upper, rest = _bounds(remaining, variable)
        remaining = set(rest)
        for low_scale, low in lower:
            for up_scale, up in upper:
                remaining.add(up * low_scale - low * up_scale)


@lru_cache(maxsize=50_000)
def _sizes_contradict(constraints: Constraints) -> bool:
    """Fourier-Motzkin over monomials in the sizes, each bare letter being at least 1."""
    if len(constraints) < 2:
        return False
    rows = {tuple(sorted((m, Fraction(x)) for m, x in c.terms.items())) for c in constraints}
    letters = {m for row in rows for m, _ in row if len(m) == 1 and m[0][1] == 1}
    rows |= {((m, Fraction(1)), ((), Fraction(-1))) for m in letters}
    while rows:
        if any(len(r) == 1 and not r[0][0] and r[0][1] < 0 for r in rows):
            return True
        columns = sorted({m for row in rows for m, _ in row if m})
        if not columns or len(rows) > 60:
            return False
        column = min(columns, key=lambda m: (sum(m in dict(r) for r in rows), m))
        above = [dict(r) for r in rows if dict(r).get(column, 0) > 0]
        below = [dict(r) for r in rows if dict(r).get(column, 0) < 0]
        rows = {r for r in rows if column not in dict(r)}
        for up in above:
            for down in below:
                merged = {
                    m: up.get(m, Fraction(0)) / up[column] - down.get(m, Fraction(0)) / down[column]
                    for m in {*up, *down} - {column}
                }
                rows.add(tuple(sorted((m, c) for m, c in merged.items() if c)))
        rows.discard(())
    return False


def _bounds(
    constraints: Iterable[Poly], variable: str
) -> tuple[list[tuple[int, Poly]], list[tuple[int, Poly]], list[Poly]]:
    """Split into `scale*v >= low`, `scale*v <= up` and constraints without the variable."""
    lower, upper, rest = [], [], []
    for constraint in constraints:
        if variable not in constraint.letters:
            rest.append(constraint)
            continue
        scale = _slope(constraint, variable)
        other = constraint - Poly.atom(variable) * scale
        if scale > 0:
            lower.append((scale, -other))
        else:
            upper.append((-scale, other))
    return lower, upper, rest


@lru_cache(maxsize=200_000)
def implied(constraints: Constraints, claim: Poly) -> bool:
    """Whether the constraints prove `claim >= 0` over the integers; False is "not proven"."""
    claim = _without_common_sizes(claim)
    if claim in constraints:
        return True
    if not variables_of([claim]) and nonnegative(claim):
        return True
    return infeasible(constraints | {-claim - 1})


def _without_common_sizes(claim: Poly) -> Poly:
    """Divide by the sizes that occur in every term: they are positive (d*i - d is i - 1)."""
    shared: dict[str, int] | None = None
    for monomial in claim.terms:
        powers = {a: p for a, p in monomial if a[0] not in "@#" and not isinstance(a, Fn)}
        if shared is None:
            shared = powers
        else:
            shared = {a: min(p, powers[a]) for a, p in shared.items() if a in powers}
    if not shared:
        return claim
    factor = Poly({tuple(sorted((a, -p) for a, p in shared.items() if p)): 1})
    return claim * factor


def implied_all(constraints: Constraints, claims: Iterable[Poly]) -> bool:
    """Whether every claim is proven."""
    return all(implied(constraints, claim) for claim in claims)


def simplified(constraints: Constraints) -> Constraints | None:
    """Drop what sizes alone prove; None when the constraints contradict each other."""
    kept = frozenset(c for c in constraints if variables_of([c]) or not nonnegative(c))
    return None if kept and infeasible(kept) else kept


@lru_cache(maxsize=50_000)
def total(variables: tuple[str, ...], constraints: Constraints, weight: Poly) -> Exact:
    """Sum `weight` over the integer points of `variables` that satisfy `constraints`.

    Constraints that name none of the variables (and no variable at all) become guards. The last
    variable is eliminated first, so pass them outermost first.

    Raises:
        Unsupported: a variable without a bound on one side, or with a stride.
    """
    if not weight.terms:
        return Exact()
    if not variables:
        kept = simplified(constraints)
        return Exact() if kept is None else Exact(((_needed(kept, weight), weight),))
    *outer, variable = variables
    lower, upper, rest = _bounds(constraints, variable)
    if any(scale != 1 for scale, _ in lower + upper):
        raise Unsupported(f"index {variable[1:]} is bounded with a stride")
    known = frozenset(rest)
    lows = _strongest(sorted((low for _, low in lower), key=str), known, 1)
    highs = _strongest(sorted((up for _, up in upper), key=str), known, -1)
    if not lows or not highs:
        raise Unsupported(f"index {variable[1:]} has no bound on one side")
    result = Exact()
    for a, low in enumerate(lows):
        for b, high in enumerate(highs):
            conditions = set() if implied(known, high - low + 1) else {high - low}
            conditions |= {low - o - int(k < a) for k, o in enumerate(lows) if k != a}
            conditions |= {o - high - int(k < b) for k, o in enumerate(highs) if k != b}
            joined = known | {c for c in conditions if not implied(known, c)}
            if not infeasible(joined):
                result = result + total(tuple(outer), joined, between(weight, variable, low, high))
    return result


def _needed(guards: Constraints, weight: Poly) -> Constraints:
    """Drop a guard `size >= 2` where at size 1 the value vanishes, or other guards fail, anyway."""
    kept = set(guards)
    for guard in sorted(guards, key=str):
        for letter in guard.letters:
            one = {letter: Poly.of(1)}
            if guard != Poly.atom(letter) - 2:
                continue
            others = frozenset(g.substitute(one) for g in kept - {guard})
            if not weight.substitute(one).terms or infeasible(others):
                kept.discard(guard)
    return frozenset(kept)


def _strongest(bounds: Sequence[Poly], others: Constraints, sign: int) -> list[Poly]:
    """Drop bounds that another one provably dominates (sign 1: lower bounds).

    Only constraints on `others` count as known: those on the variable itself may contradict.
    """
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
    """The sum of `weight` for `variable` in low..high (high >= low - 1), by Faulhaber."""
    powers: dict[int, Poly] = {}
    for monomial, number in weight.terms.items():
        if any(isinstance(a, Fn) and variable in Poly.atom(a).letters for a, _ in monomial):
            raise Unsupported(f"a function of index {variable[1:]} inside a sum")
        power = dict(monomial).get(variable, 0)
        rest = Poly({tuple(p for p in monomial if p[0] != variable): number})
        powers[power] = powers[power] + rest if power in powers else rest
    result = Poly()
    for power, coefficient in powers.items():
        if power < 0:
            raise Unsupported(f"a negative power of index {variable[1:]} inside a sum")
        difference = _power_sum(power, high) - _power_sum(power, low - 1)
        result = result + coefficient * difference
    return result


def _power_sum(power: int, top: Poly) -> Poly:
    """1**p + 2**p + ... + top**p as a polynomial in `top` (valid at every integer)."""
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
        bernoulli[1] = Fraction(1, 2)
    coefficients = [Fraction(0)] * (power + 2)
    for k in range(power + 1):
        coefficients[power + 1 - k] += Fraction(comb(power + 1, k), power + 1) * bernoulli[k]
    return tuple(coefficients)


def _slope(constraint: Poly, variable: str) -> int:
    try:
        scale = constraint.coefficient(variable).constant()
    except ValueError as error:
        raise Unsupported(str(error)) from error
    if not isinstance(scale, int):
        raise Unsupported(f"an index with a symbolic stride in '{constraint} >= 0'")
    return scale


def projected(constraints: Constraints, hidden: Iterable[str]) -> Constraints:
    """Eliminate variables: the integer points of the image, exact for unit coefficients."""
    remaining = set(constraints)
    for variable in hidden:
        lower, upper, rest = _bounds(remaining, variable)
        remaining = set(rest)
        for low_scale, low in lower:
            for up_scale, up in upper:
                if low_scale != 1 and up_scale != 1:
                    raise Unsupported(f"a stride of index {variable[1:]} in an entry read")
                remaining.add(up * low_scale - low * up_scale)
        remaining = {c for c in remaining if variables_of([c]) or not nonnegative(c)}
    return frozenset(remaining)


def union_size(axes: tuple[str, ...], regions: Sequence[Constraints], weight: Poly) -> Exact:
    """The weighted number of distinct points in a union of regions over the same axes."""
    result = Exact()
    counted: list[Constraints] = []
    for region in regions:
        for part in outside(region, counted):
            result = result + total(axes, part, weight)
        counted.append(region)
    return result


def outside(region: Constraints, removed: Sequence[Constraints]) -> list[Constraints]:
    """The points of `region` in none of the removed regions, as disjoint regions."""
    pieces = [region]
    for other in removed:
        pieces = [piece for part in pieces for piece in _difference(part, other)]
    return pieces


def _difference(region: Constraints, removed: Constraints) -> list[Constraints]:
    """The points of `region` outside `removed`, as disjoint regions."""
    pieces: list[Constraints] = []
    kept = region
    for constraint in sorted(removed, key=str):
        if implied(kept, constraint):
            continue
        outside = kept | {-constraint - 1}
        if not infeasible(outside):
            pieces.append(outside)
        kept = kept | {constraint}
        if infeasible(kept):
            return [region]
    return pieces
