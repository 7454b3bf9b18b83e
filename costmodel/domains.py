"""How many points has a domain, and what does a polynomial sum to over it, exactly?

A domain is a conjunction of affine constraints `p >= 0` over index variables, with sizes as
parameters. Summation eliminates one variable at a time with Faulhaber's formulas; where several
bounds compete (`max(1, i-w+1)`), the sum splits into pieces whose guards name the breakpoints.
A bound with a stride (`C*p <= l`) is rounded where nothing but sizes is left on its other side
(`p <= floor(l/C)`). Everything is exact; what would not be raises `Unsupported`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import permutations
from math import comb, gcd, lcm
from typing import TYPE_CHECKING

from costmodel.polynomial import Fn, Monomial, Number, Poly, by_text, call, ceil_div, to_sympy

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

    def chambers(self, where: Constraints = frozenset()) -> list[tuple[Constraints, Poly]]:
        """Disjoint cases that cover all sizes, or those of some constraints; one unguarded case
        where nothing splits."""
        cases: list[tuple[Constraints, Poly]] = [(where, Poly())]
        for guards, poly in self.pieces:
            for guard in sorted(guards, key=str):
                cases = [
                    (kept, value)
                    for constraints, value in cases
                    for side in (guard, -guard - 1)
                    if (kept := _joined(constraints, side)) is not None
                ]
            cases = [
                (cs, value + poly if implied_all(cs, guards) else value) for cs, value in cases
            ]
        return _merged([(irredundant(constraints), value) for constraints, value in cases])


Case = tuple[Constraints, Poly]
"""Sizes, and the value there."""


def _merged(cases: Sequence[Case]) -> list[Case]:
    """Join cases of which one has the value of the other too, and no size lies between them."""
    found = list(cases)
    for one, two in permutations(found, 2):
        if (joined := _union(one, two)) is not None:
            rest = [case for case in found if case is not two]
            return _merged([joined if case is one else case for case in rest])
    return found


def _union(one: Case, two: Case) -> Case | None:
    """One case for both, with the value of the first."""
    (here, value), (there, other) = one, two
    if not _vanishes(value - other, there):
        return None
    around = frozenset(c for c in here | there if implied(here, c) and implied(there, c))
    return None if outside(around, [here, there]) else (irredundant(around), value)


def _vanishes(poly: Poly, where: Constraints) -> bool:
    """Whether a polynomial is proven to be 0 at some sizes, by the equations that hold there."""
    pinned = [Poly.atom(letter) - n for letter in sorted(poly.letters) for n in (1, 2)]
    floors = (a for a in poly.atoms if isinstance(a, Fn) and a.function == "floor_div")
    pinned += [Poly.atom(floor) - n for floor in sorted(floors) for n in (0, 1)]
    waiting = [*sorted(where, key=str), *pinned]
    while waiting and poly.terms:
        equation = waiting.pop()
        if implied(where, equation) and implied(where, -equation):
            values = _solution(equation)
            try:
                poly, where = poly.substitute(values), _substituted(where, values)
                waiting = [c.substitute(values) for c in waiting]
            except ValueError:  # no value there: a quotient by 0, the logarithm of 0
                return False
    return not poly.terms


def _substituted(constraints: Constraints, values: Mapping[str, Poly]) -> Constraints:
    return frozenset(c.substitute(values) for c in constraints)


def _solution(equation: Poly) -> Mapping[str, Poly]:
    """The atom that `equation = 0` gives, a size before a function; empty if there is none."""
    for atom in sorted(equation.atoms, key=lambda atom: (isinstance(atom, Fn), atom)):
        slope = equation.terms.get(((atom, 1),))
        if slope in (1, -1):
            rest = equation - Poly.atom(atom) * slope
            if not {atom, *Poly.atom(atom).letters} & ({*rest.atoms} | rest.letters):
                return {atom: rest * -slope}
    return {}


def irredundant(constraints: Constraints) -> Constraints:
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
        least = None if atom[0] in "@#" else _least(atom)
        if least is None:
            return False
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
    return set().union(*[c.variables for c in constraints])


@lru_cache(maxsize=200_000)
def infeasible(constraints: Constraints) -> bool:
    """Whether the constraints are proven to have no solution (Fourier-Motzkin, then sizes)."""
    waiting: set[Poly] = set()
    in_sizes: set[Poly] = set()
    for constraint in constraints:
        if constraint.variables:
            waiting.add(constraint)
        elif _never(constraint):
            return True
        else:
            in_sizes.add(constraint)
    while waiting:
        times = Counter(v for c in waiting for v in c.variables)
        variable = min(times, key=lambda v: (times[v], v))
        lower, upper, rest = bounds(waiting, variable)
        waiting = set(rest)
        for low_scale, low in lower:
            for up_scale, up in upper:
                joined = _between_bounds(low_scale, low, up_scale, up)
                if joined.variables:
                    waiting.add(joined)
                elif _never(joined):
                    return True
                else:
                    in_sizes.add(joined)
    return _sizes_contradict(frozenset(c for c in in_sizes if not nonnegative(c)))


@lru_cache(maxsize=200_000)
def _never(constraint: Poly) -> bool:
    """Whether sizes alone prove that a constraint without variables is violated."""
    return nonnegative(-constraint - 1)


def _between_bounds(low_scale: Poly, low: Poly, up_scale: Poly, up: Poly) -> Poly:
    """What a lower and an upper bound of a variable say of each other."""
    if low_scale is ONE and up_scale is ONE:
        return up - low
    return up * low_scale - low * up_scale


@lru_cache(maxsize=50_000)
def _sizes_contradict(constraints: Constraints) -> bool:
    """Fourier-Motzkin over monomials in the sizes, each bare letter being at least 1."""
    floors = _floor_facts(constraints)
    if len(constraints) < 2 and not floors:
        return False
    constraints = constraints | floors
    rows = {frozenset(_whole(c.terms).items()) for c in constraints}
    atoms = {m[0][0] for row in rows for m, _ in row if len(m) == 1 and m[0][1] == 1}
    rows |= {
        frozenset([(((atom, 1),), 1), *([((), -least)] if least else [])])
        for atom in atoms
        if (least := _least(atom)) is not None
    }
    while rows:
        if any(len(row) == 1 and not m and x < 0 for row in rows for m, x in row):
            return True
        times = Counter(m for row in rows for m, _ in row if m)
        if not times or len(rows) > 60:
            return False
        column = min(times, key=lambda m: (times[m], m))
        held = [terms for row in rows if column in (terms := dict(row))]
        rows = {row for row in rows if all(m != column for m, _ in row)}
        for up in held:
            for down in held:
                if up[column] > 0 > down[column]:
                    scales = (-down[column], up[column])
                    merged = {
                        m: up.get(m, 0) * scales[0] + down.get(m, 0) * scales[1]
                        for m in {*up, *down}
                    }
                    rows.add(frozenset(_whole(merged).items()))
        rows.discard(frozenset())
    return False


def _whole(terms: Mapping[Monomial, Number]) -> Mapping[Monomial, int]:
    """The terms of a constraint times a positive number, as integers with no common factor."""
    least = lcm(*(x.denominator for x in terms.values()))
    whole = {m: int(x * least) for m, x in terms.items() if x}
    shared = gcd(*whole.values())
    return {m: x // shared for m, x in whole.items()} if shared > 1 else whole


def _least(atom: str) -> int | None:
    """The least value of a size or of a function of sizes; None if it is not known."""
    if not isinstance(atom, Fn):
        return 0 if atom[0] == "^" else 1
    if atom.function == "floor_div":
        return 0 if nonnegative(atom.args[0]) else None
    return {"ceil_log2": 0, "pow2": 1}.get(atom.function)


def _floor_facts(constraints: Constraints) -> Constraints:
    """What holds of the quotients in some constraints: s*floor(a/s) lies in a-s+1..a.

    The constraints that hold a quotient are given times its divisor too, which is positive.
    """
    found: set[Poly] = set()
    for constraint in constraints:
        for atom in constraint.atoms:
            if isinstance(atom, Fn) and atom.function == "floor_div":
                above, below = atom.args
                product = below * Poly.atom(atom)
                found |= {above - product, product - above + below - 1, constraint * below}
    return frozenset(found)


Bound = tuple[Poly, Poly]
"""A positive scale and what `scale * variable` is bounded by."""


def bounds(
    constraints: Iterable[Poly], variable: str
) -> tuple[list[Bound], list[Bound], list[Poly]]:
    """Split into `scale*v >= low`, `scale*v <= up` and constraints without the variable.

    A bound in sizes alone is rounded, so that its scale is 1.
    """
    lower: list[Bound] = []
    upper: list[Bound] = []
    rest = []
    for constraint in constraints:
        if variable not in constraint.letters:
            rest.append(constraint)
            continue
        sign, bound = _bound(constraint, variable)
        (lower if sign > 0 else upper).append(bound)
    return lower, upper, rest


@lru_cache(maxsize=200_000)
def _bound(constraint: Poly, variable: str) -> tuple[int, Bound]:
    """What a constraint says of a variable: 1 for a lower bound, -1 for an upper one."""
    scale, sign = stride(constraint, variable)
    other = constraint - Poly.atom(variable) * (scale * sign)
    if sign > 0:
        other = -other
    if scale != ONE and not other.variables:
        return sign, (ONE, ceil_div(other, scale) if sign > 0 else floor_div(other, scale))
    return sign, (scale, other)


ONE = Poly.of(1)


def floor_div(above: Poly, below: Poly) -> Poly:
    """The largest integer that is at most a quotient."""
    return call("floor_div", above, below)


@lru_cache(maxsize=200_000)
def implied(constraints: Constraints, claim: Poly) -> bool:
    """Whether the constraints prove `claim >= 0` over the integers; False is "not proven"."""
    claim = _without_common_sizes(claim)
    if claim in constraints:
        return True
    if not claim.variables and nonnegative(claim):
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
    kept = frozenset(c for c in constraints if c.variables or not nonnegative(c))
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
    if (solved := _solved(constraints, variables)) is not None:
        variable, value = solved
        left = tuple(v for v in variables if v != variable)
        reduced = simplified(frozenset(c.substitute({variable: value}) for c in constraints))
        if reduced is None:
            return Exact()
        return total(left, reduced, weight.substitute({variable: value}))
    variable = _plain_one(constraints, variables)
    outer = [v for v in variables if v != variable]
    lows, highs, known = _range(constraints, variable)
    if not lows or not highs:
        raise Unsupported(f"index {variable[1:]} has no bound on one side")
    result = Exact()
    for a, low in enumerate(lows):
        for b, high in enumerate(highs):
            conditions = {high - low + 1}
            conditions |= {low - o - int(k < a) for k, o in enumerate(lows) if k != a}
            conditions |= {o - high - int(k < b) for k, o in enumerate(highs) if k != b}
            joined = known | {c for c in conditions if not implied(known, c)}
            if not infeasible(joined) and not implied(joined, low - high - 1):
                result = result + total(tuple(outer), joined, between(weight, variable, low, high))
    return result


def _rank(others: Sequence[Poly], bound: Poly) -> tuple[bool, int, str]:
    """Where two bounds are equal the first one counts: rather one that leaves a single point, then
    one in sizes alone, so that the cases stay few."""
    return bound not in others, len(bound.variables), str(bound)


def _range(constraints: Constraints, variable: str) -> tuple[list[Poly], list[Poly], Constraints]:
    """The bounds of a variable of which any may be the strongest, lower and upper ones, and the
    constraints without it."""
    lower, upper, rest = bounds(constraints, variable)
    known = frozenset(rest)
    below, above = ([bound for _, bound in side] for side in (lower, upper))
    lows = _strongest(sorted(below, key=partial(_rank, above)), known, 1)
    highs = _strongest(sorted(above, key=partial(_rank, below)), known, -1)
    return lows, highs, known


def _plain_one(constraints: Constraints, variables: Sequence[str]) -> str:
    """The innermost variable that no stride bounds; where one bounds another variable, rather the
    innermost with one lower and one upper bound, so that the cases stay few."""
    plain = [v for v in reversed(variables) if is_plain(constraints, v)]
    if not plain:
        raise Unsupported(f"index {variables[-1][1:]} is bounded with a stride")
    if len(plain) < len(variables):
        for variable in plain:
            lows, highs, _ = _range(constraints, variable)
            if len(lows) == len(highs) == 1:
                return variable
    return plain[0]


def is_plain(constraints: Iterable[Poly], variable: str) -> bool:
    """Whether no stride bounds a variable."""
    lower, upper, _ = bounds(constraints, variable)
    return all(scale == ONE for scale, _ in lower + upper)


def _solved(constraints: Constraints, variables: Sequence[str]) -> tuple[str, Poly] | None:
    """The innermost variable that an equality fixes, and its value; None if there is none."""
    for constraint in by_text([c for c in constraints if -c in constraints]):
        for variable in reversed(variables):
            if variable in constraint.letters:
                scale, sign = stride(constraint, variable)
                if scale == ONE:
                    return variable, (constraint - Poly.atom(variable) * sign) * -sign
    return None


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
    if low == high:
        return weight.substitute({variable: low})
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


@cache
def stride(constraint: Poly, variable: str) -> tuple[Poly, int]:
    """The positive scale of a variable in a constraint, and its sign."""
    try:
        scale = constraint.coefficient(variable)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    if isinstance(number := scale.constant(), int):
        if number in (1, -1):
            return ONE, number
        return (scale, 1) if number > 0 else (-scale, -1)
    if not scale.variables:
        for sign in (1, -1):
            if nonnegative(scale * sign - 1) or _is_product(scale * sign):
                return scale * sign, sign
    raise Unsupported(f"an index whose stride has no known sign in '{constraint} >= 0'")


def _is_product(poly: Poly) -> bool:
    """Whether a polynomial is a product of sizes, such as h = d/n: a positive integer."""
    return len(poly.terms) == 1 and all(number > 0 for number in poly.terms.values())


def projected(constraints: Constraints, hidden: Iterable[str]) -> Constraints:
    """Eliminate variables: the integer points of the image.

    Raises:
        Unsupported: strides on both sides of a variable may leave a gap between them.
    """
    present = variables_of(constraints)
    return _projected(constraints, tuple(v for v in hidden if v in present))


@lru_cache(maxsize=100_000)
def _projected(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    """A bound with a stride that the others imply may be the one that leaves a gap."""
    try:
        return _eliminated(constraints, hidden)
    except Unsupported:
        needed = irredundant(constraints)
        if needed == constraints:
            raise
        return _eliminated(needed, hidden)


def _eliminated(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    remaining = set(constraints)
    waiting = list(hidden)
    while waiting:
        if (found := _solved(frozenset(remaining), waiting)) is not None:
            variable, value = found
            waiting.remove(variable)
            remaining = {c.substitute({variable: value}) for c in remaining} - {Poly()}
            continue
        variable = next((v for v in waiting if is_plain(remaining, v)), waiting[0])
        waiting.remove(variable)
        lower, upper, rest = bounds(remaining, variable)
        known, remaining = frozenset(remaining), set(rest)
        for low_scale, low in lower:
            for up_scale, up in upper:
                if low_scale != ONE and up_scale != ONE:
                    if low_scale == up_scale and implied(known, up - low - low_scale + 1):
                        continue
                    raise Unsupported(f"a stride of index {variable[1:]} in an entry read")
                remaining.add(_between_bounds(low_scale, low, up_scale, up))
        remaining = {c for c in remaining if c.variables or not nonnegative(c)}
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
    for constraint in by_text(removed):
        if implied(kept, constraint):
            continue
        outside = kept | {-constraint - 1}
        if not infeasible(outside):
            pieces.append(outside)
        kept = kept | {constraint}
        if infeasible(kept):
            return [region]
    return pieces
