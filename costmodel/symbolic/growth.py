"""How do formulas grow: which terms dominate, and in which limit do two formulas grow alike?

A *growth* is a product of powers of sizes and of logarithms, without coefficient. Sizes are at
least 1 and grow at any rates that respect what is known of them (n <= d, t <= l, and what a case
adds, such as w <= l). One growth *dominates* another where their quotient is bounded along every
such path; that is decided exactly, by eliminating the rates one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

from costmodel.errors import NoGrowth
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Fn, Poly

MOST = 200
"""A formula with more growths than this is refused."""


class Log(str):
    """The logarithm of a growth; equal by its text."""

    of: Growth

    def __new__(cls, of: Growth) -> Log:
        self = super().__new__(cls, f"log({of})")
        self.of = of
        return self


@dataclass(frozen=True)
class Growth:
    """A product of powers; a factor is a size letter or a `Log`."""

    factors: tuple[tuple[str, Fraction], ...] = ()

    @staticmethod
    def of(*factors: tuple[str, int | Fraction]) -> Growth:
        """A growth from factors and their powers.

        >>> str(Growth.of(("l", 2), ("d", 1), ("w", -1)))
        'd*l**2/w'
        """
        found: dict[str, Fraction] = {}
        for name, power in factors:
            found[name] = found.get(name, Fraction(0)) + power
        return Growth(tuple(sorted((x, p) for x, p in found.items() if p)))

    def __mul__(self, other: Growth) -> Growth:
        return Growth.of(*self.factors, *other.factors)

    def __pow__(self, power: int | Fraction) -> Growth:
        return Growth.of(*((x, p * power) for x, p in self.factors))

    def __truediv__(self, other: Growth) -> Growth:
        return self * other**-1

    @property
    def letters(self) -> frozenset[str]:
        """The sizes that occur, inside logarithms too."""
        found = [x.of.letters if isinstance(x, Log) else {x} for x, _ in self.factors]
        return frozenset().union(*found)

    @property
    def rates(self) -> dict[str, Fraction]:
        """The powers of the sizes; logarithms left out."""
        return {x: p for x, p in self.factors if not isinstance(x, Log)}

    @property
    def logs(self) -> dict[Log, Fraction]:
        """The powers of the logarithms."""
        return {x: p for x, p in self.factors if isinstance(x, Log)}

    @property
    def above(self) -> Growth:
        """The factors with positive powers."""
        return Growth(tuple((x, p) for x, p in self.factors if p > 0))

    @property
    def below(self) -> Growth:
        """The growth that divides."""
        return Growth(tuple((x, -p) for x, p in self.factors if p < 0))

    def __str__(self) -> str:
        top, bottom = (_product(part.factors) for part in (self.above, self.below))
        if not bottom:
            return top or "1"
        return f"{top or '1'}/{bottom if len(self.below.factors) == 1 else f'({bottom})'}"


def _product(factors: Sequence[tuple[str, Fraction]]) -> str:
    return "*".join(x if p == 1 else f"{x}**{p}" if p.denominator == 1 else f"{x}**({p})"
                    for x, p in factors)  # fmt: skip


ONE = Growth()


ALWAYS = (Growth.of(("d", 1), ("n", -1)), Growth.of(("l", 1), ("t", -1)))
"""Quotients of sizes that are at least 1: heads divide the width, a position lies in the text."""


@dataclass(frozen=True)
class Sizes:
    """What is known of the sizes while they grow.

    `quotients` are growths that are at least 1; sizes in `fixed` do not grow.
    """

    quotients: tuple[Growth, ...] = ALWAYS
    fixed: frozenset[str] = frozenset()

    def where(self, guards: Constraints) -> Sizes:
        """The same, and each guard is at least 0: `l - w` says that l/w is at least 1."""
        found = []
        for guard in guards:
            positive = [m for m, c in guard.terms.items() if c > 0 and m]
            if len(positive) == 1:
                lesser = [m for m, c in guard.terms.items() if c < 0 and m]
                found += [q for m in lesser for q in _quotients(positive[0], m)]
        return Sizes((*self.quotients, *found), self.fixed)

    def holding(self, fixed: Iterable[str]) -> Sizes:
        """The same, with these sizes fixed."""
        return Sizes(self.quotients, self.fixed | frozenset(fixed))

    def allow(self, rows: Sequence[Row]) -> bool:
        """Whether the sizes may grow so that every row holds."""
        wanted = [row.without(self.fixed) for row in rows]
        letters = {x for row in wanted for x in row.rates}
        waiting = [Row(q.rates, strict=False).without(self.fixed) for q in self.quotients]
        while joined := [row for row in waiting if letters & row.rates.keys()]:
            waiting = [row for row in waiting if row not in joined]
            wanted += joined
            letters |= {x for row in joined for x in row.rates}
        return _solvable(wanted)


def _quotients(
    larger: Iterable[tuple[str, int]], smaller: Iterable[tuple[str, int]]
) -> list[Growth]:
    """Their quotient, or nothing where a function occurs."""
    factors = [*larger, *((x, -p) for x, p in smaller)]
    return [] if any(isinstance(x, Fn) for x, _ in factors) else [Growth.of(*factors)]


@dataclass(frozen=True)
class Row:
    """A sum of rates, each times its number, is positive, or (not `strict`) at least 0."""

    rates: Mapping[str, Fraction]
    strict: bool = True

    def without(self, letters: Iterable[str]) -> Row:
        """The row where these letters do not grow."""
        return Row({x: p for x, p in self.rates.items() if x not in letters}, self.strict)

    def plus(self, other: Row, times: Fraction, others: Fraction) -> Row:
        """A combination with positive factors."""
        found = {
            x: self.rates.get(x, Fraction(0)) * times + other.rates.get(x, Fraction(0)) * others
            for x in (*self.rates, *other.rates)
        }
        return Row({x: p for x, p in found.items() if p}, self.strict or other.strict)


def _solvable(rows: Sequence[Row]) -> bool:
    """Whether rates that are at least 0 satisfy every row: Fourier-Motzkin, exact."""
    letters = sorted({x for row in rows for x in row.rates})
    remaining = [*rows, *(Row({x: Fraction(1)}, strict=False) for x in letters)]
    for letter in letters:
        above = [row for row in remaining if row.rates.get(letter, 0) > 0]
        below = [row for row in remaining if row.rates.get(letter, 0) < 0]
        remaining = [row for row in remaining if letter not in row.rates]
        remaining += [
            up.plus(down, -down.rates[letter], up.rates[letter]) for up in above for down in below
        ]
        remaining = [row for row in remaining if row.rates or row.strict]
    return not any(row.strict for row in remaining)


def dominates(larger: Growth, smaller: Growth, sizes: Sizes) -> bool:
    """Whether `smaller / larger` is bounded however the sizes grow.

    >>> l, d, w = (Growth.of((x, 1)) for x in "ldw")
    >>> dominates(l * d, l, Sizes()), dominates(l * d, d * d, Sizes())
    (True, False)
    >>> dominates(l, Growth.of((Log(l), 5)), Sizes())
    True
    """
    return _bounded(smaller / larger, sizes)


@lru_cache(maxsize=100_000)
def _bounded(quotient: Growth, sizes: Sizes) -> bool:
    """Whether a growth is bounded however the sizes grow."""
    if all(power < 0 for _, power in quotient.factors):
        return True
    rates = quotient.rates
    if sizes.allow([Row(rates)]):
        return False
    level = Row(rates, strict=False)
    spare = {log: -power for log, power in quotient.logs.items() if power < 0}
    for log, power in quotient.logs.items():
        if power < 0:
            continue
        for rival, available in spare.items():
            if available >= power and dominates(rival.of, log.of, sizes):
                spare[rival] = available - power
                break
        else:
            if sizes.allow([level, Row(log.of.rates)]):
                return False
    return True


def leading(growths: Iterable[Growth], sizes: Sizes) -> tuple[Growth, ...]:
    """The growths that no other one dominates; of several that grow alike, the first."""
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


def beyond(some: Iterable[Growth], others: Sequence[Growth], sizes: Sizes) -> tuple[Growth, ...]:
    """Those of `some` that none of the others dominates."""
    return tuple(g for g in some if not any(dominates(o, g, sizes) for o in others))


def vanishing(quotient: Growth) -> Row | None:
    """What the rates must satisfy for a quotient to vanish; None where no row says it."""
    if rates := quotient.rates:
        return Row({x: -p for x, p in rates.items()})
    logs = quotient.logs
    if len(logs) == 1 and next(iter(logs.values())) < 0:
        return Row(next(iter(logs)).of.rates)
    return None


def limit(
    vanish: Sequence[Growth], kept: Sequence[Growth], sizes: Sizes
) -> list[tuple[Growth, Growth]] | None:
    """Beside which kept growth each of some growths vanishes, all in one limit; None if in none.

    >>> l, d = Growth.of(("l", 1)), Growth.of(("d", 1))
    >>> [(str(a), str(b)) for a, b in limit([l * d * d], [l * l * d], Sizes())]
    [('d**2*l', 'd*l**2')]
    """
    for chosen in product(kept, repeat=len(vanish)):
        rows = [vanishing(away / stays) for away, stays in zip(vanish, chosen, strict=True)]
        if all(row is not None for row in rows) and sizes.allow([row for row in rows if row]):
            return list(zip(vanish, chosen, strict=True))
    return None


def growths(poly: Poly, sizes: Sizes) -> tuple[Growth, ...]:
    """The leading growths of a polynomial; (): it is 0.

    Raises:
        NoGrowth: a function that grows otherwise, such as 2**l.
    """
    found: dict[Growth, None] = {}
    for monomial in poly.terms:
        parts = [_atom(atom, power, sizes) for atom, power in monomial]
        for chosen in product(*parts):
            factors = (pair for growth in chosen for pair in growth.factors)
            found[Growth.of(*factors)] = None
    if len(found) > MOST:
        raise NoGrowth(f"more than {MOST} terms grow in '{poly}'")
    return leading(found, sizes)


def _atom(atom: str, power: int, sizes: Sizes) -> tuple[Growth, ...]:
    """The growths that a power of an atom is a sum of."""
    if not isinstance(atom, Fn):
        return (Growth.of((atom, power)),)
    inside = _FUNCTIONS[atom.function](atom, sizes)
    if power < 0 and len(inside) != 1:
        raise NoGrowth(f"a division by '{atom}', which has several leading terms")
    return tuple(growth**power for growth in inside)


def _logarithm(atom: Fn, sizes: Sizes) -> tuple[Growth, ...]:
    return logarithms(growths(atom.args[0], sizes))


def logarithms(inside: Iterable[Growth]) -> tuple[Growth, ...]:
    """The growths of the logarithm of a sum: log(l**2*d) grows like log(l) + log(d)."""
    found: dict[Growth, None] = {}
    for growth in inside:
        if growth.logs:
            raise NoGrowth(f"a logarithm of {growth}")
        whole = all(power > 0 for power in growth.rates.values())
        parts = [Growth.of((x, 1)) for x in growth.rates] if whole else [growth]
        found.update({Growth.of((Log(part), 1)): None for part in parts})
    return tuple(found) or (ONE,)


def _power_of_two(atom: Fn, sizes: Sizes) -> tuple[Growth, ...]:
    """2**(ceil_log2(p) + 3) grows like p."""
    results: tuple[Growth, ...] = (ONE,)
    for monomial, number in atom.args[0].terms.items():
        if not monomial:
            continue
        ((inner, power), *rest) = monomial
        logarithm = isinstance(inner, Fn) and inner.function == "ceil_log2"
        if rest or power != 1 or not logarithm or not isinstance(number, int) or number < 1:
            raise NoGrowth(f"'{Poly.atom(atom)}' grows faster than any power")
        assert isinstance(inner, Fn)
        for _ in range(number):
            inside = growths(inner.args[0], sizes)
            results = leading((a * b for a in results for b in inside), sizes)
    return results


def _quotient(atom: Fn, sizes: Sizes) -> tuple[Growth, ...]:
    above, below = (growths(argument, sizes) for argument in atom.args)
    if len(below) != 1:
        raise NoGrowth(f"a division by '{atom.args[1]}', which has several leading terms")
    return tuple(growth / below[0] for growth in above)


def _largest(atom: Fn, sizes: Sizes) -> tuple[Growth, ...]:
    return leading((g for argument in atom.args for g in growths(argument, sizes)), sizes)


def _smallest(atom: Fn, sizes: Sizes) -> tuple[Growth, ...]:
    """The argument whose growths each other argument dominates."""
    parts = [growths(argument, sizes) for argument in atom.args]
    for part in parts:
        if not any(beyond(part, other, sizes) for other in parts):
            return part
    raise NoGrowth(f"'{atom}': which of them is smaller depends on the sizes")


_FUNCTIONS = {
    "ceil_log2": _logarithm,
    "pow2": _power_of_two,
    "floor_div": _quotient,
    "Max": _largest,
    "Min": _smallest,
}
