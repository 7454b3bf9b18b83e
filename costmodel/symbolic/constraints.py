"""Affine integer constraints (each a polynomial >= 0): implication, infeasibility, projection.

A constraint is a polynomial p, read as `p >= 0`, affine in the variables (indices `@i` and axes
`#0`) with sizes as parameters. Proofs use Fourier-Motzkin elimination; False means "not proven".
`projected` eliminates variables, `outside` subtracts regions from a region; both are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache, lru_cache
from math import comb, gcd, lcm, prod

from costmodel.errors import Unsupported
from costmodel.symbolic.effort import spend
from costmodel.symbolic.examples import hold
from costmodel.symbolic.polynomial import (
    Fn,
    Monomial,
    Number,
    Poly,
    atom_name,
    by_text,
    call,
    ceil_div,
    is_stand_in,
    is_variable,
)

Constraints = frozenset[Poly]
"""A conjunction: each polynomial is at least 0."""


def irredundant(constraints: Constraints) -> Constraints:
    """The constraints without each that the others imply; the same points satisfy both."""
    kept = constraints
    for constraint in by_text(constraints):
        if implied(kept - {constraint}, constraint):
            kept = kept - {constraint}
    return kept


def narrowed(constraints: Constraints, extra: Poly) -> Constraints | None:
    """The constraints with `extra` added: the same object if implied, None if contradicted."""
    if implied(constraints, extra):
        return constraints
    joined = constraints | {extra}
    return None if infeasible(joined) else joined


@lru_cache(maxsize=200_000)
def nonnegative(poly: Poly) -> bool:
    """Whether `poly >= 0` is proven at all sizes, given that sizes are at least 1, n divides d, t
    <= l, and quotients of sizes such as l/C, h*n/g and d/(n*r) are integers. False means "not
    proven"."""
    if poly.constant() is not None:
        return poly.rational({}) >= 0
    if min(poly.terms.values()) >= 0 and all(map(_is_nonnegative, poly.atoms)):
        return True  # without the expansions below
    divided = poly
    for above, below in quotients(poly):
        divided = divided.substitute({above: Poly.atom(below) * Poly.atom(f"{above}/{below}")})
    # a product such as d*v/n, which is whole, becomes a size of its own
    for product, one in _whole_products(divided):
        whole = Poly.atom(f"whole {Poly({product: 1})}")
        rest = Poly({tuple((atom, power) for atom, power in product if atom != one): 1})
        divided = divided.substitute({one: whole / rest})
    return _nonnegative(poly) or (divided is not poly and _nonnegative(divided))


def _is_nonnegative(atom: str) -> bool:
    """Whether an atom other than a variable has a least value, which is at least 0."""
    least = None if is_variable(atom) else _least_value(atom)
    return least is not None and least >= 0


def _whole_products(poly: Poly) -> Iterator[tuple[Monomial, str]]:
    """Yield (monomial, its first size with a positive power) for each term of a polynomial that is,
    up to a factor, a product of two sizes over a third (h*n/g), or a size over two others
    (d/(n*r))."""
    for monomial in poly.terms:
        sizes = not any(is_variable(a) or isinstance(a, Fn) for a, _ in monomial)
        if sizes and sorted(power for _, power in monomial) in ([-1, 1, 1], [-1, -1, 1]):
            yield monomial, next(atom for atom, power in monomial if power == 1)


def quotients(poly: Poly) -> Iterator[tuple[str, str]]:
    """Yield the pairs (a, b) of sizes such that the quotient a/b occurs in a term by itself, up to
    a factor; such a quotient in a bound or an extent implies that b divides a."""
    for monomial in poly.terms:
        atoms = {power: atom for atom, power in monomial}
        sizes = not any(is_variable(a) or isinstance(a, Fn) for a in atoms.values())
        if sizes and len(monomial) == 2 and atoms.keys() == {1, -1}:
            yield atoms[1], atoms[-1]


def _nonnegative(poly: Poly) -> bool:
    """Whether all coefficients are >= 0 once each atom is written as its least value plus a rest of
    at least 0: l - 1 becomes (1 + rest) - 1 = rest (d is n times d/n, l is t or more). False, "not
    proven", also if an atom in a power other than 0 has no known least value."""
    letters = poly.letters
    values: dict[str, Poly] = {}
    if "n" in letters and "d" in letters:
        values["d"] = Poly.atom("n") * Poly.atom("d/n")
    if "t" in letters and "l" in letters:
        # every atom is taken to be at least 1, and l - t + 1 is
        values["l"] = Poly.atom("t") + Poly.atom("l-t") - 1
    try:
        poly = poly.substitute(values)
    except ValueError:  # l in a divisor, which must not become a sum: nothing is known of l - t
        poly = poly.substitute({x: y for x, y in values.items() if x != "l"})
    # over a common denominator, which is positive: atom k to the power monomial[k]
    atoms = sorted(poly.atoms)
    powers = [dict(monomial) for monomial in poly.terms]
    below = [min(0, *(each.get(atom, 0) for each in powers)) for atom in atoms]
    monomials = [
        tuple(each.get(atom, 0) - low for atom, low in zip(atoms, below, strict=True))
        for each in powers
    ]
    scale = lcm(*(Fraction(number).denominator for number in poly.terms.values()))
    terms = dict(zip(monomials, (int(x * scale) for x in poly.terms.values()), strict=True))
    least: list[int] = []  # of each atom
    for atom, of_atom in zip(atoms, zip(*monomials, strict=True), strict=True):
        value = (None if is_variable(atom) else _least_value(atom)) if any(of_atom) else 0
        if value is None:
            return False
        least.append(value)
    if sum(x * prod(map(pow, least, monomial)) for monomial, x in terms.items()) < 0:
        return False  # the value where each atom has its least value
    for k, value in enumerate(least):
        if value:
            terms = _above(terms, k, value)
    return all(number >= 0 for number in terms.values())


Powers = tuple[int, ...]
"""A monomial: the power of each of some atoms."""


def _above(terms: Mapping[Powers, int], k: int, least: int) -> dict[Powers, int]:
    """A polynomial with atom k (a size or a function) written as `least` plus a new atom k, so that
    the new atom is at least 0. Terms map the powers of all atoms, a tuple, to the coefficient: with
    `least` 1, x**2 ({(2,): 1}) becomes {(0,): 1, (1,): 2, (2,): 1}."""
    found: dict[Powers, int] = {}
    for monomial, number in terms.items():
        power = monomial[k]
        spend(power)
        for rest in range(power + 1):
            shifted = (*monomial[:k], rest, *monomial[k + 1 :])
            times = number * comb(power, rest) * least ** (power - rest)
            found[shifted] = found.get(shifted, 0) + times
    return found


def variables_of(constraints: Iterable[Poly]) -> set[str]:
    """The index and axis variables that occur."""
    return set().union(*[c.variables for c in constraints])


@lru_cache(maxsize=200_000)
def infeasible(constraints: Constraints) -> bool:
    """Whether the constraints are proven to have no solution: without variables (Fourier-Motzkin),
    conditions remain that no sizes satisfy. False means "not proven"."""
    return _contradict(part for part, _ in _parts(constraints))


def _contradict(parts: Iterable[Constraints]) -> bool:
    """Whether the conjunction of several parts, which share no variable, is proven to have no
    solution: one part has none, or the conditions on sizes of all parts contradict each other."""
    in_sizes: set[Poly] = set()
    for part in parts:
        shadow = _shadow(part)
        if shadow is None:
            return True
        in_sizes |= shadow
    return bool(in_sizes) and _sizes_contradict(frozenset(in_sizes))


@lru_cache(maxsize=200_000)
def _parts(constraints: Constraints) -> Sequence[tuple[Constraints, frozenset[str]]]:
    """The parts of the constraints that share no variable, as (constraints, their variables)."""
    parts: list[tuple[set[Poly], frozenset[str]]] = []
    for constraint in constraints:
        part, names = {constraint}, constraint.variables
        apart = []
        for one in parts:
            if names.isdisjoint(one[1]):
                apart.append(one)
            else:
                part |= one[0]
                names |= one[1]
        parts = [*apart, (part, names)]
    return tuple([(frozenset(part), names) for part, names in parts])


@lru_cache(maxsize=200_000)
def _shadow(constraints: Constraints) -> Constraints | None:
    """The constraints on sizes that remain when all variables (indices) are eliminated over the
    rationals (l - w >= 0 of w <= i <= l): they hold wherever the constraints have a solution.
    Constraints that all sizes satisfy are left out; None if one is proven to fail at all sizes.
    Unsupported: one is not affine in a variable, or has a coefficient without a proven sign."""
    waiting: set[Poly] = set()
    in_sizes: set[Poly] = set()
    for constraint in constraints:
        if constraint.variables:
            waiting.add(constraint)
        elif _is_violated(constraint):
            return None
        else:
            in_sizes.add(constraint)
    while waiting:
        times: dict[str, int] = {}
        for constraint in waiting:
            for name in constraint.variables:
                times[name] = times.get(name, 0) + 1
        variable = min(times, key=lambda v: (times[v], v))  # combines the fewest constraints
        lower, upper, rest = bounds(waiting, variable)
        waiting = set(rest)
        for low_scale, low in lower:
            for up_scale, up in upper:
                joined = between_bounds(low_scale, low, up_scale, up)
                if joined.variables:
                    waiting.add(joined)
                elif _is_violated(joined):
                    return None
                else:
                    in_sizes.add(joined)
    return frozenset([c for c in in_sizes if not nonnegative(c)])


@lru_cache(maxsize=200_000)
def _is_violated(constraint: Poly) -> bool:
    """Whether a constraint without variables is proven to fail at all sizes."""
    return nonnegative(-_without_fractions(constraint) - 1)


def _without_fractions(poly: Poly) -> Poly:
    """The polynomial times the least number that makes all coefficients whole; the sign stays. Of
    whole numbers, a polynomial with whole coefficients is whole: it is negative where it is at most
    -1, as -h is; -h/2 is negative at h = 1 too, and greater than -1."""
    return poly * lcm(*(Fraction(number).denominator for number in poly.terms.values()))


def between_bounds(low_scale: Poly, low: Poly, up_scale: Poly, up: Poly) -> Poly:
    """The constraint low/low_scale <= up/up_scale, as a polynomial that is at least 0 where it
    holds: a variable v is eliminated from low_scale*v >= low and up_scale*v <= up; scales are
    positive."""
    if low_scale is ONE and up_scale is ONE:
        return up - low
    return up * low_scale - low * up_scale


EACH_TERM = 5
"""Units of effort for each term of two constraints that are combined."""


@lru_cache(maxsize=50_000)
def _sizes_contradict(constraints: Constraints) -> bool:
    """Whether constraints in sizes alone are proven to contradict each other. Fourier-Motzkin
    elimination treats each monomial as a variable, column by column, and uses that sizes are at
    least 1, until a row -1 >= 0 remains; it gives up (False, "not proven") above 60 rows."""
    if hold(constraints):  # some example sizes satisfy all
        return False
    floors = _floor_facts(constraints)
    if len(constraints) < 2 and not floors:
        return False
    constraints = constraints | floors
    # a row {(d*l, 2), ((), -3)} is the inequality 2*d*l - 3 >= 0 in the variable d*l
    rows = {frozenset(_integer_terms(c.terms).items()) for c in constraints}
    atoms = {m[0][0] for row in rows for m, _ in row if len(m) == 1 and m[0][1] == 1}
    rows |= {
        frozenset([(((atom, 1),), 1), *([((), -least)] if least else [])])
        for atom in atoms
        if (least := _least_value(atom)) is not None
    }
    while rows:
        if any(len(row) == 1 and not m and x < 0 for row in rows for m, x in row):
            return True
        times = Counter(m for row in rows for m, _ in row if m)
        if not times or len(rows) > 60:
            return False
        column = min(times, key=lambda m: (times[m], m))
        held, others = [], set()
        for row in rows:
            terms = dict(row)
            if column in terms:
                held.append(terms)
            else:
                others.add(row)
        rows = others
        for up in held:
            for down in held:
                if up[column] > 0 > down[column]:
                    spend(EACH_TERM * (len(up) + len(down)))
                    scales = (-down[column], up[column])
                    merged = {
                        m: up.get(m, 0) * scales[0] + down.get(m, 0) * scales[1]
                        for m in {*up, *down}
                    }
                    rows.add(frozenset(_integer_terms(merged).items()))
        rows.discard(frozenset())
    return False


def _integer_terms(terms: Mapping[Monomial, Number]) -> Mapping[Monomial, int]:
    """The terms of a constraint (monomial -> coefficient), as coprime integers; the sign stays."""
    least = lcm(*(x.denominator for x in terms.values()))
    whole = {m: int(x * least) for m, x in terms.items() if x}
    shared = gcd(*whole.values())
    return {m: x // shared for m, x in whole.items()} if shared > 1 else whole


def _least_value(atom: str) -> int | None:
    """A lower bound on the values of an atom (a size or a function of sizes): 1 for a size, 0 for a
    `stand_in` (a variable that stands for a nonnegative function); of a function of sizes, a bound
    that follows from it. None if unknown."""
    if not isinstance(atom, Fn):
        return 0 if is_stand_in(atom) else 1
    if atom.function == "floor_div":
        return 0 if nonnegative(atom.args[0]) else None
    if atom.function == "Max":
        numbers = [arg.at({}) for arg in atom.args if isinstance(arg.constant(), int)]
        return max(numbers, default=None)
    if atom.function == "pow2":
        return int(nonnegative(atom.args[0]))
    if atom.function != "ceil_log2":
        return None
    # whole arguments are 1 or more; of a fraction such as 1/n the logarithm may be negative
    ((monomial, number), *more) = atom.args[0].terms.items()
    whole = more or (isinstance(number, int) and all(power > 0 for _, power in monomial))
    return 0 if whole or nonnegative(atom.args[0] - 1) else None


def _floor_facts(constraints: Constraints) -> Constraints:
    """Constraints that define each floor(a/s) in `constraints`: a - s + 1 <= s*floor(a/s) <= a.
    Each constraint that names floor(a/s) is added once more, multiplied by s, which is positive."""
    found: set[Poly] = set()
    for constraint in constraints:
        for atom in constraint.atoms:
            if isinstance(atom, Fn) and atom.function == "floor_div":
                above, below = atom.args
                product = below * Poly.atom(atom)
                found |= {above - product, product - above + below - 1, constraint * below}
    return frozenset(found)


Bound = tuple[Poly, Poly]
"""A positive scale, and the bound of `scale * variable`."""


def bounds(
    constraints: Iterable[Poly], variable: str
) -> tuple[list[Bound], list[Bound], list[Poly]]:
    """(lower bounds, upper bounds, constraints without the variable v): each lower bound is (scale,
    low) for scale*v >= low, each upper bound (scale, up) for scale*v <= up. A bound in sizes alone
    is divided by its scale and rounded, so that its scale is 1.

    Raises:
        Unsupported: a constraint is not affine in the variable, or the sign of the variable's
            coefficient depends on the sizes.
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
    """A constraint as a bound of a variable: (1, (scale, low)) for scale*variable >= low, or (-1,
    (scale, up)) for scale*variable <= up; the scale is positive."""
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
    """Whether `claim >= 0` is proven at all integers that satisfy the constraints, by a
    contradiction with claim <= -1: values of the claim are whole numbers at all sizes that the
    caller means, as R/2 - 1 is where R is even. False means "not proven"."""
    if claim in constraints or (claim := without_common_sizes(claim)) in constraints:
        return True
    if not claim.variables and nonnegative(claim):
        return True
    denied = -claim - 1
    touched, others = {denied}, []
    for part, names in _parts(constraints):
        if names.isdisjoint(denied.variables):
            others.append(part)
        else:
            touched |= part
    return _contradict([frozenset(touched), *others])


def without_common_sizes(claim: Poly) -> Poly:
    """The claim divided by the sizes that are factors of every term: d*i - d becomes i - 1, and
    d*i/2 - d becomes i - 2. Sizes are positive, so the sign stays. The claim stays as it is if a
    quotient of sizes would result: d*i/n - d keeps d, as i/n - 1 need not be an integer."""
    shared: dict[str, int] | None = None
    for monomial in claim.terms:
        powers = {a: p for a, p in monomial if not is_variable(a) and not isinstance(a, Fn)}
        if shared is None:
            shared = powers
        else:
            shared = {a: min(p, powers[a]) for a, p in shared.items() if a in powers}
    if not shared:
        return claim
    factor = Poly({tuple(sorted((a, -p) for a, p in shared.items() if p)): 1})
    divided = claim * factor
    whole = all(power > 0 for monomial in divided.terms for _, power in monomial)
    if not whole:
        return claim
    return _without_fractions(divided)


def implied_all(constraints: Constraints, claims: Iterable[Poly]) -> bool:
    """Whether every claim is proven."""
    return all(implied(constraints, claim) for claim in claims)


def simplified(constraints: Constraints) -> Constraints | None:
    """The constraints without those that all sizes satisfy; None if they contradict each other."""
    kept = frozenset(c for c in constraints if c.variables or not nonnegative(c))
    return None if kept and infeasible(kept) else kept


def is_plain(constraints: Iterable[Poly], variable: str) -> bool:
    """Whether every bound of a variable has the scale 1."""
    lower, upper, _ = bounds(constraints, variable)
    return all(scale == ONE for scale, _ in lower + upper)


def fixed(constraints: Constraints, variables: Sequence[str]) -> tuple[str, Poly] | None:
    """(variable, value) for the first equation (`c >= 0` and `-c >= 0`) that has a variable with
    coefficient 1 or -1, and the innermost such variable; None if there is no such equation. i - t =
    0 gives (i, t)."""
    for constraint in by_text([c for c in constraints if -c in constraints]):
        for variable in reversed(variables):
            if variable in constraint.letters:
                scale, sign = stride(constraint, variable)
                if scale == ONE:
                    return variable, (constraint - Poly.atom(variable) * sign) * -sign
    return None


@cache
def stride(constraint: Poly, variable: str) -> tuple[Poly, int]:
    """The coefficient of a variable that occurs in a constraint as (magnitude, sign): a positive
    polynomial in sizes, and 1 or -1. In l - 2*i >= 0 the index i has (2, -1).

    Raises:
        Unsupported: the constraint is not affine in the variable, or the sign depends on the sizes.
    """
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
    name = atom_name(variable)
    raise Unsupported(
        f"whether '{constraint} >= 0' bounds index {name} from below or from above depends on the "
        "sizes",
        f"multiply {name} by a factor that has one sign at all sizes"
        if name.isidentifier()
        else "",
    )


def _is_product(poly: Poly) -> bool:
    """Whether a polynomial is a positive multiple of a product of sizes, such as h = d/n."""
    return len(poly.terms) == 1 and all(number > 0 for number in poly.terms.values())


def projected(constraints: Constraints, hidden: Iterable[str]) -> Constraints:
    """The constraints that remain when the variables (indices) `hidden` are eliminated: they hold
    exactly where these variables have integer values that satisfy the given constraints. From j <=
    i <= l, without i, remains j <= l.

    Raises:
        Unsupported: between a lower and an upper bound on a multiple of a variable, 2*i, there may
            be no integer.
    """
    present = variables_of(constraints)
    return _projected(constraints, tuple(v for v in hidden if v in present))


@lru_cache(maxsize=100_000)
def _projected(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    """The constraints with the variables `hidden` eliminated, exactly over the integers. If bounds
    on a multiple of a variable (2*i <= j) prevent this, the elimination is tried without redundant
    constraints, then with the hidden variables that sizes determine replaced by their values;
    Unsupported if both fail too."""
    try:
        return _eliminated(constraints, hidden)
    except Unsupported:
        for needed in (irredundant(constraints), _with_known(constraints, hidden)):
            if needed != constraints:
                with suppress(Unsupported):
                    return _eliminated(needed, hidden)
        raise


def _with_known(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    """The constraints with each hidden variable (one to eliminate) that sizes determine replaced by
    its value: the chunk of row t is floor((t - 1)/C) + 1. An equation determines a variable, and so
    do two bounds that are equal when rounded: 2*i >= 5 and 2*i <= 7 are i = 3. Unsupported: a
    constraint is not affine in such a variable, or has a coefficient without a proven sign."""
    while True:
        among = frozenset(c for c in constraints if c.variables <= {*hidden})
        found = fixed(among, hidden) or next(
            (
                (variable, low)
                for variable in hidden
                for lower, upper, _ in [bounds(among, variable)]
                for low_scale, low in lower
                if low_scale == ONE and not low.variables and (ONE, low) in upper
            ),
            None,
        )
        if found is None:
            return constraints
        constraints = frozenset(c.substitute(dict([found])) for c in constraints) - {Poly()}


def strided(variable: str, stride: Poly) -> Unsupported:
    """The refusal of an index of which only the multiples by `stride` are positions, as q in
    K[q*C, c], with advice to read all positions."""
    name = atom_name(variable)
    # an author does not name the axis of an array, nor the indices that stand for a row
    if not name.isidentifier() or name.endswith(("_chunk", "_place")):
        return Unsupported(f"an index skips entries by a stride of {stride}")
    return Unsupported(
        f"index {name} skips entries by a stride of {stride}",
        f"read all entries, at ({name} - 1)*{stride} + e with an index e in 1..{stride}, into an "
        f"array [{name}, e], which may then be read in part",
    )


def require_plain(variable: str, ends: Iterable[Bound]) -> None:
    """Raise Unsupported (`strided`) if a bound is on a multiple of its variable, 2*i <= j."""
    for scale, _ in ends:
        if scale != ONE:
            raise strided(variable, scale)


def _eliminated(constraints: Constraints, hidden: tuple[str, ...]) -> Constraints:
    """The constraints with the variables `hidden` eliminated (i <= j <= l without j: i <= l), by
    equations where possible, else by Fourier-Motzkin. Unsupported where both bounds have strides
    and possibly no integer between them: i <= 2*j and 3*j <= k, unlike i <= 2*j <= i + 1."""
    remaining = set(constraints)
    waiting = list(hidden)
    while waiting:
        if (found := fixed(frozenset(remaining), waiting)) is not None:
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
                    # `scale` consecutive integers hold a multiple of the scale
                    if low_scale == up_scale and implied(known, up - low - low_scale + 1):
                        continue
                    raise strided(variable, low_scale)
                remaining.add(between_bounds(low_scale, low, up_scale, up))
        remaining = {c for c in remaining if c.variables or not nonnegative(c)}
    return frozenset(remaining)


def outside(region: Constraints, removed: Iterable[Constraints]) -> list[Constraints]:
    """The points of `region` that lie in none of the removed regions, as disjoint regions."""
    return [*_outside(region, tuple(removed))]


@lru_cache(maxsize=50_000)
def _outside(region: Constraints, removed: tuple[Constraints, ...]) -> Sequence[Constraints]:
    """The points of `region` that lie in none of the `removed` regions, as disjoint regions. The
    removed regions are subtracted one after another; results are cached."""
    pieces = [region]
    for other in removed:
        pieces = [piece for part in pieces for piece in _difference(part, other)]
    return pieces


def _difference(region: Constraints, removed: Constraints) -> list[Constraints]:
    """`region` without `removed`, as disjoint regions: part k fails the k-th constraint of
    `removed` and satisfies the constraints before it. [region] if the two are disjoint."""
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
