"""Orders of growth: the terms of a formula that dominate, and limits in which formulas grow alike.

A *growth* is a product of powers of sizes and of logarithms, without coefficient: d*l**2. Sizes are
at least 1 and grow at any rates that respect the known relations of the sizes (g <= n <= d, t <= l,
and the conditions of a case, such as w <= l). One growth *dominates* another if their quotient is
bounded at all such rates; Fourier-Motzkin elimination of the rates decides that exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from costmodel.errors import NoGrowth
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.hashed_once import hashed_once
from costmodel.symbolic.polynomial import Fn, Number, Poly

MOST_GROWTHS = 200
"""A formula with more growths than this is refused."""


class Log(str):
    """A factor that is the logarithm of a growth; its text is `log(...)`."""

    of: Growth

    def __new__(cls, of: Growth) -> Log:
        self = super().__new__(cls, f"log({of})")
        self.of = of
        return self


@hashed_once
@dataclass(frozen=True)
class Growth:
    """A product of powers; a factor is a size letter or a `Log`."""

    factors: tuple[tuple[str, Number], ...] = ()

    @staticmethod
    def of(*factors: tuple[str, Number]) -> Growth:
        """The growth that is the product of `factors` (name, power), of which a name is a size or a
        `Log`. Powers of the same name are added; powers of 0 are dropped.

        >>> str(Growth.of(("l", 3), (Log(Growth.of(("d", 1))), 1), ("w", -1), ("l", -1)))
        'l**2*log(d)/w'
        """
        found: dict[str, Number] = {}
        for name, power in factors:
            found[name] = found.get(name, 0) + power
        return Growth(tuple(sorted((x, p) for x, p in found.items() if p)))

    def __mul__(self, other: Growth) -> Growth:
        return Growth.of(*self.factors, *other.factors)

    def __pow__(self, power: Number) -> Growth:
        return Growth.of(*((x, p * power) for x, p in self.factors))

    def __truediv__(self, other: Growth) -> Growth:
        return self * other**-1

    def put(self, values: Mapping[str, Growth]) -> Growth:
        """The growth (a product of powers of sizes and logarithms) with growths substituted for
        sizes, inside logarithms too.

        Raises:
            NoGrowth: a logarithm becomes a sum of several logarithms.

        >>> from fractions import Fraction
        >>> str(Growth.of(("l", 2), ("B", -1)).put({"B": Growth.of(("l", 1)) ** Fraction(1, 2)}))
        'l**(3/2)'
        """
        found = ONE
        for name, power in self.factors:
            one = values.get(name, Growth.of((name, 1)))
            if isinstance(name, Log) and not name.of.letters.isdisjoint(values):
                one, *more = logarithms([name.of.put(values)])
                if more:
                    raise NoGrowth(
                        f"with the growths given, {name} is a sum of several logarithms: let "
                        "each size grow as a power of one size, as in 'B growing as sqrt(l)'"
                    )
            found *= one**power
        return found

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that occur, inside logarithms too."""
        found = [x.of.letters if isinstance(x, Log) else {x} for x, _ in self.factors]
        return frozenset().union(*found)

    @cached_property
    def rates(self) -> dict[str, Number]:
        """The powers of the sizes, without the logarithms."""
        return {x: p for x, p in self.factors if not isinstance(x, Log)}

    @cached_property
    def logs(self) -> dict[Log, Number]:
        """The powers of the logarithms."""
        return {x: p for x, p in self.factors if isinstance(x, Log)}

    @property
    def above(self) -> Growth:
        """The factors with positive powers."""
        return Growth(tuple((x, p) for x, p in self.factors if p > 0))

    @property
    def below(self) -> Growth:
        """The reciprocal of the factors with negative powers: the denominator."""
        return Growth(tuple((x, -p) for x, p in self.factors if p < 0))

    def __str__(self) -> str:
        top, bottom = (_product_text(part.factors) for part in (self.above, self.below))
        if not bottom:
            return top or "1"
        return f"{top or '1'}/{bottom if len(self.below.factors) == 1 else f'({bottom})'}"


def _product_text(factors: Sequence[tuple[str, Number]]) -> str:
    """Factors with their powers, joined by `*`; "" for none."""
    return "*".join(x if p == 1 else f"{x}**{p}" if p.denominator == 1 else f"{x}**({p})"
                    for x, p in factors)  # fmt: skip


ONE = Growth()


ALWAYS = tuple(Growth.of((large, 1), (small, -1)) for large, small in ("dn", "ng", "lt"))
"""Quotients of sizes that are at least 1: heads divide the width, key-value heads the heads, a
position lies in the text."""


@hashed_once
@dataclass(frozen=True)
class Assumptions:
    """Assumptions about sizes that grow.

    `quotients` are growths known to be at least 1, up to a constant factor, such as d/n; sizes in
    `fixed` do not grow. The *rate* of a size is the power of one growing number with which the size
    grows: if l = x**2 and d = x, the rates are 2 and 1, and d/n >= 1 means that the rate of d is at
    least that of n.
    """

    quotients: tuple[Growth, ...] = ALWAYS
    fixed: frozenset[str] = frozenset()

    @cached_property
    def _rows(self) -> list[RateInequality]:
        """The quotients as inequalities of rates."""
        return [RateInequality(q.rates, strict=False).without(self.fixed) for q in self.quotients]

    def where(self, guards: Constraints) -> Assumptions:
        """The assumptions, extended by what each guard (a condition g >= 0) implies: `l - w` adds
        l/w >= 1, and so does `2*l - w + 3`, as factors and numbers do not change rates. Guards
        without exactly one positive term besides a number add nothing."""
        found = []
        for guard in guards:
            positive = [m for m, c in guard.terms.items() if c > 0 and m]
            if len(positive) == 1:
                lesser = [m for m, c in guard.terms.items() if c < 0 and m]
                found += [q for m in lesser for q in _quotient_of_sizes(positive[0], m)]
        return Assumptions((*self.quotients, *found), self.fixed)

    def with_divisors(self, divisors: Mapping[str, str]) -> Assumptions:
        """The assumptions, extended by size/divisor >= 1 for each size -> its divisor."""
        found = (Growth.of((size, 1), (by, -1)) for size, by in divisors.items())
        return Assumptions(tuple(dict.fromkeys((*self.quotients, *found))), self.fixed)

    def with_fixed(self, fixed: Iterable[str]) -> Assumptions:
        """The assumptions with further sizes that do not grow."""
        return Assumptions(self.quotients, self.fixed | frozenset(fixed))

    def allow(self, rows: Sequence[RateInequality]) -> bool:
        """Whether sizes may grow (each at a rate, the power of a common variable) such that the
        assumptions and every inequality of `rows` hold. An assumed quotient joins only if one of
        the sizes in its denominator occurs in the inequalities: otherwise that size need not grow,
        and the quotient constrains nothing."""
        wanted = [row.without(self.fixed) for row in rows]
        letters = {x for row in wanted for x in row.rates}
        waiting = self._rows
        while joined := [row for row in waiting if row.below & letters]:
            waiting = [row for row in waiting if row not in joined]
            wanted += joined
            letters |= {x for row in joined for x in row.rates}
        return _has_rates(wanted)


def _quotient_of_sizes(
    larger: Iterable[tuple[str, int]], smaller: Iterable[tuple[str, int]]
) -> list[Growth]:
    """[The growth larger/smaller of two monomials]; [] if one has a function of sizes."""
    factors = [*larger, *((x, -p) for x, p in smaller)]
    return [] if any(isinstance(x, Fn) for x, _ in factors) else [Growth.of(*factors)]


@dataclass(frozen=True)
class RateInequality:
    """The sum of number*rate over `rates` (size -> number) is > 0, or, if not `strict`, >= 0."""

    rates: Mapping[str, Number]
    strict: bool = True

    @cached_property
    def below(self) -> frozenset[str]:
        """The sizes with negative numbers."""
        return frozenset(x for x, p in self.rates.items() if p < 0)

    def without(self, letters: Iterable[str]) -> RateInequality:
        """The inequality where the rates of these letters are 0."""
        return RateInequality(
            {x: p for x, p in self.rates.items() if x not in letters}, self.strict
        )

    def plus(self, other: RateInequality, times: Number, others: Number) -> RateInequality:
        """The sum of `times` times this inequality and `others` times `other`, inequalities such as
        2*rate(l) - rate(d) > 0 in the rates at which sizes grow; both factors are positive."""
        found = {
            x: self.rates.get(x, 0) * times + other.rates.get(x, 0) * others
            for x in (*self.rates, *other.rates)
        }
        return RateInequality({x: p for x, p in found.items() if p}, self.strict or other.strict)


def _has_rates(rows: Sequence[RateInequality]) -> bool:
    """Whether some rates of growth, one for each size and at least 0, satisfy every inequality,
    such as 2*rate(l) - rate(d) > 0; exact, by Fourier-Motzkin elimination."""
    letters = sorted({x for row in rows for x in row.rates})
    remaining = [*rows, *(RateInequality({x: 1}, strict=False) for x in letters)]
    for letter in letters:
        above = [row for row in remaining if row.rates.get(letter, 0) > 0]
        below = [row for row in remaining if row.rates.get(letter, 0) < 0]
        remaining = [row for row in remaining if letter not in row.rates]
        remaining += [
            up.plus(down, -down.rates[letter], up.rates[letter]) for up in above for down in below
        ]
        remaining = [row for row in remaining if row.rates or row.strict]
    return not any(row.strict for row in remaining)


@lru_cache(maxsize=100_000)
def dominates(larger: Growth, smaller: Growth, sizes: Assumptions) -> bool:
    """Whether `smaller` is at most a constant times `larger`, however the sizes grow under the
    assumptions `sizes`.

    >>> l, d, w = (Growth.of((x, 1)) for x in "ldw")
    >>> dominates(l * d, l, Assumptions()), dominates(l * d, d * d, Assumptions())
    (True, False)
    >>> dominates(l, Growth.of((Log(l), 5)), Assumptions())
    True
    """
    quotient = smaller / larger  # bounded, unless some rates make it grow
    if all(power < 0 for _, power in quotient.factors):
        return True
    rates = quotient.rates
    if sizes.allow([RateInequality(rates)]):
        return False
    # where the powers of sizes cancel, the logarithms decide: each in the numerator is matched with
    # one in the denominator that grows too wherever the first grows, or must not grow there
    level = RateInequality(rates, strict=False)
    spare = {log: -power for log, power in quotient.logs.items() if power < 0}
    for log, power in quotient.logs.items():
        if power < 0:
            continue
        alone = [level, RateInequality(log.of.rates)]
        for rival, available in spare.items():
            not_growing = RateInequality({x: -p for x, p in rival.of.rates.items()}, strict=False)
            if available >= power and not sizes.allow([*alone, not_growing]):
                spare[rival] = available - power
                break
        else:
            if sizes.allow(alone):
                return False
    return True


def leading(growths: Iterable[Growth], sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths that no other growth of them dominates under the assumptions `sizes`; of several
    that dominate each other, the first."""
    found = list(dict.fromkeys(growths))
    return tuple(
        one
        for k, one in enumerate(found)
        if not any(
            dominates(rival, one, sizes) and not (j > k and dominates(one, rival, sizes))
            for j, rival in enumerate(found)
            if j != k
        )
    )


def undominated(
    some: Iterable[Growth], others: Sequence[Growth], sizes: Assumptions
) -> tuple[Growth, ...]:
    """The growths of `some` that no growth of `others` dominates."""
    return tuple(g for g in some if not any(dominates(o, g, sizes) for o in others))


def vanishing(quotient: Growth) -> RateInequality | None:
    """An inequality in rates of growth under which a quotient, a product of powers of sizes and
    logarithms, tends to 0: for d/l that l grows at a higher rate than d; for one logarithm to a
    negative power that the logarithm grows. None if no single inequality states this."""
    if rates := quotient.rates:
        return RateInequality({x: -p for x, p in rates.items()})
    logs = quotient.logs
    if len(logs) == 1 and next(iter(logs.values())) < 0:
        return RateInequality(next(iter(logs)).of.rates)
    return None


def limit(
    vanish: Sequence[Growth], kept: Sequence[Growth], sizes: Assumptions
) -> list[tuple[Growth, Growth]] | None:
    """A limit in which every growth of `vanish` becomes small beside some growth of `kept`, as
    pairs (vanishing growth, growth of `kept`); None if no such limit is found under the
    assumptions.

    >>> l, d = Growth.of(("l", 1)), Growth.of(("d", 1))
    >>> [(str(a), str(b)) for a, b in limit([l * d * d], [l * l * d], Assumptions())]
    [('d**2*l', 'd*l**2')]
    """
    for chosen in product(kept, repeat=len(vanish)):
        rows = [vanishing(away / stays) for away, stays in zip(vanish, chosen, strict=True)]
        if all(row is not None for row in rows) and sizes.allow([row for row in rows if row]):
            return list(zip(vanish, chosen, strict=True))
    return None


def monomials(poly: Poly) -> list[Poly]:
    """The monomials of a polynomial without coefficients, in printing order, after cancellation
    of a size l with B*floor(l/B), where all floors have one divisor B.

    With q = floor(l/B), the remainder l - B*q is less than B, so l**2 - 2*B*l*q + B**2*q**2 grows
    like B**2, not like l**2. Hence l is replaced by B*q + r, and a remaining r by B. Another
    quotient of l by B, such as floor((l - 1)/B), is replaced by q plus a number, in the end 1.
    """
    rounded = [atom for atom in poly.atoms if isinstance(atom, Fn) and atom.function == "floor_div"]
    by_divisor = {atom.args[1] for atom in rounded}
    if len(by_divisor) == 1 and (found := _parted(poly, sorted(rounded), *by_divisor)) is not None:
        poly = found
    return [Poly({m: 1}) for m in poly.terms]


QUOTIENT, REST, NUMBER = "quotient", "rest", "number"
"""The variables for q, for the remainder r, and for another quotient's difference from q."""


def _parted(poly: Poly, quotients: Sequence[Fn], below: Poly) -> Poly | None:
    """A polynomial with the monomials that remain after the substitution l = B*q + r, where q is
    the first of the `quotients` floor((l + c)/B), and `below` = B is a size or a number. In the
    result B*q is l again, r grows like B, and coefficients are 1: l**2 - 2*B*l*q + B**2*q**2
    becomes B**2. None for quotients of another shape. Monomials with l inside another function
    stay. `left` is the size l, `beside` the c of each quotient."""
    lengths = {x for q in quotients for x in q.args[0].letters - below.letters}
    divisor, length = min(below.letters, default=""), min(lengths, default="")
    left = Poly.atom(length)
    beside = [q.args[0] - left for q in quotients]
    # functions of l besides the quotients
    inside = {a for a in poly.atoms - {*quotients} if length in Poly.atom(a).letters - {a}}
    kept = {m: 1 for m in poly.terms if any(atom in inside for atom, _ in m)}
    poly = Poly({m: number for m, number in poly.terms.items() if m not in kept})
    if (
        len(lengths) != 1
        or (divisor and below != Poly.atom(divisor))
        or any(length in rest.letters for rest in beside)
        or any(x == length and power < 0 for m in poly.terms for x, power in m)
    ):
        return None
    whole = Poly.atom(QUOTIENT)
    put = {length: below * whole + Poly.atom(REST) - beside[0], quotients[0]: whole}
    put |= {other: whole + Poly.atom(NUMBER) for other in quotients[1:]}
    found: dict[Poly, None] = {}
    for monomial in poly.substitute(put).terms:
        powers = dict(monomial)
        quotient, rest, _ = (powers.pop(name, 0) for name in (QUOTIENT, REST, NUMBER))
        # B*q grows like l, and r like B; q alone stays floor((l + c)/B)
        rows = min(quotient, powers.get(divisor, 0)) if divisor else quotient
        times = Poly.atom(quotients[0]) ** (quotient - rows) * left**rows
        times = times * Poly.atom(divisor) ** (rest - rows) if divisor else times
        found[Poly({tuple(powers.items()): 1}) * times] = None
    return Poly(kept | {m: 1 for one in found for m in one.terms})


@lru_cache(maxsize=20_000)
def growths(poly: Poly, sizes: Assumptions) -> tuple[Growth, ...]:
    """The leading growths of a polynomial, products of powers of sizes and logarithms that no other
    term dominates; () for the polynomial 0.

    Raises:
        NoGrowth: a function that grows like no product of powers and logarithms, such as 2**l; a
            division by several leading terms; a `Min` whose smaller argument depends on the sizes;
            or more than `MOST_GROWTHS` terms.
    """
    found: dict[Growth, None] = {}
    for monomial in (m for one in monomials(poly) for m in one.terms):
        parts = [_growths_of_power(atom, power, sizes) for atom, power in monomial]
        for chosen in product(*parts):
            factors = (pair for growth in chosen for pair in growth.factors)
            found[Growth.of(*factors)] = None
    if len(found) > MOST_GROWTHS:
        raise NoGrowth(f"'{poly}' has more than {MOST_GROWTHS} growing terms")
    return leading(found, sizes)


def _growths_of_power(atom: str, power: int, sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths whose sum is of the same order as a power of an atom. NoGrowth if the atom has no
    growth, and for a division by several leading terms."""
    if not isinstance(atom, Fn):
        return (Growth.of((atom, power)),)
    inside = _FUNCTIONS[atom.function](atom, sizes)
    if power < 0 and len(inside) != 1:
        raise NoGrowth(
            f"a quotient has no derived growth, since its divisor '{Poly.atom(atom)}' has several "
            "leading terms: say how its sizes grow, as in 'B growing as sqrt(l)'"
        )
    return tuple(growth**power for growth in inside)


def _growths_of_logarithm(atom: Fn, sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths of ceil_log2(p)."""
    return logarithms(growths(atom.args[0], sizes))


def logarithms(inside: Iterable[Growth]) -> tuple[Growth, ...]:
    """The growths of the logarithm of a sum of growths: log(l**2*d) has log(l) and log(d), and
    log(l/w) is one growth. (ONE,) for a sum of constants; NoGrowth for a logarithm of a
    logarithm."""
    found: dict[Growth, None] = {}
    for growth in inside:
        if growth.logs:
            raise NoGrowth(
                f"the growth of log({growth}) is not derived, since {growth} holds a logarithm "
                "itself: take logarithms of powers of sizes, such as log(l**2)"
            )
        whole = all(power > 0 for power in growth.rates.values())
        parts = [Growth.of((x, 1)) for x in growth.rates] if whole else [growth]
        found.update({Growth.of((Log(part), 1)): None for part in parts})
    return tuple(found) or (ONE,)


def _growths_of_pow2(atom: Fn, sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths (each a product of powers, none dominated by another) of a power of two:
    2**(2*ceil_log2(p) + 3) has the growths of p*p. NoGrowth for an exponent with a term that is no
    positive whole multiple of a logarithm and no number."""
    results: tuple[Growth, ...] = (ONE,)
    for monomial, number in atom.args[0].terms.items():
        if not monomial:
            continue
        ((inner, power), *rest) = monomial
        logarithm = isinstance(inner, Fn) and inner.function == "ceil_log2"
        if rest or power != 1 or not logarithm or not isinstance(number, int) or number < 1:
            raise NoGrowth(
                f"'{Poly.atom(atom)}' grows faster than any power of a size, and only powers and "
                "logarithms are compared"
            )
        assert isinstance(inner, Fn)  # as `logarithm` says
        for _ in range(number):
            inside = growths(inner.args[0], sizes)
            results = leading((a * b for a in results for b in inside), sizes)
    return results


def _growths_of_quotient(atom: Fn, sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths of floor(a/b), those of a/b; NoGrowth if b has several leading terms."""
    above, below = (growths(argument, sizes) for argument in atom.args)
    if len(below) != 1:
        raise NoGrowth(
            f"a quotient has no derived growth, since its divisor '{atom.args[1]}' has several "
            "leading terms: say how its sizes grow, as in 'B growing as sqrt(l)'"
        )
    return tuple(growth / below[0] for growth in above)


def _growths_of_max(atom: Fn, sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths of a maximum: the leading ones of all arguments."""
    return leading((g for argument in atom.args for g in growths(argument, sizes)), sizes)


def _growths_of_min(atom: Fn, sizes: Assumptions) -> tuple[Growth, ...]:
    """The growths of a minimum: those of the argument that every other argument dominates; NoGrowth
    if there is no such argument."""
    parts = [growths(argument, sizes) for argument in atom.args]
    for part in parts:
        if not any(undominated(part, other, sizes) for other in parts):
            return part
    raise NoGrowth(
        f"which argument of '{Poly.atom(atom)}' is smaller depends on the sizes: write "
        "how these sizes grow behind O(...), as in 'total = O(l*B), B growing as sqrt(l)'"
    )


_FUNCTIONS = {
    "ceil_log2": _growths_of_logarithm,
    "pow2": _growths_of_pow2,
    "floor_div": _growths_of_quotient,
    "Max": _growths_of_max,
    "Min": _growths_of_min,
}
