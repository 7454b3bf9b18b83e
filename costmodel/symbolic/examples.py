"""Example sizes: constraints that hold at an example need no search for a contradiction, and a
polynomial that differs from 0 there no search for a proof that it is 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice

from costmodel.symbolic.polynomial import Fn, Number, Poly, Values
from costmodel.symbolic.sizes import LETTERS


class _Sizes(dict[str, int]):
    """Letter -> size; a letter without an entry has size 1."""

    def __missing__(self, letter: str) -> int:
        return 1


def _mixed(number: int) -> _Sizes:
    """Example number `number`: a deterministic pseudo-random mix of small and large values."""
    # powers modulo a prime serve as random numbers that are the same in every run
    values = (1, 2, 3, 4, 5, 8, 17, 60)
    return _Sizes(
        (letter, values[(pow(number + 2, 3 * k + 1, 10_007) + k) % len(values)])
        for k, letter in enumerate(sorted(LETTERS))
    )


EXAMPLES = (
    _Sizes(),
    _Sizes(dict.fromkeys(LETTERS, 2)),
    _Sizes(dict.fromkeys(LETTERS, 8), l=2**20, t=2**19),
    *map(_mixed, range(16)),
)


class _Small(Values):
    """Example number `number` for proofs: small values of atoms, drawn when they are first read; n
    divides d, and t <= l."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __missing__(self, atom: str) -> int:
        drawn = pow(self.number + 2, 1 + sum(map(ord, atom)), 10_007) % 7
        rules = {"d": lambda: self["n"] * (drawn + 1), "l": lambda: self["t"] + drawn}
        value: int = rules.get(atom, lambda: drawn + 1)()
        self[atom] = value
        return value


SMALL = tuple(map(_Small, range(99)))

ENOUGH = 3
"""The number of examples at which one polynomial is tried."""


@lru_cache(maxsize=200_000)
def _holds(constraint: Poly, example: int) -> bool | None:
    """Whether a polynomial is at least 0 at the sizes of example number `example`; None if it has
    no exact value there."""
    value = _value(constraint, EXAMPLES[example])
    return None if value is None else value >= 0


def _value(poly: Poly, sizes: dict[str, int]) -> Number | None:
    """The value of a polynomial; None if it has no exact value at these sizes."""
    try:
        return poly.rational(sizes)
    except (TypeError, ValueError, ZeroDivisionError):
        return None


def hold(constraints: Iterable[Poly]) -> bool:
    """Whether at least one example satisfies all constraints."""
    every = tuple(constraints)
    return any(all(_holds(c, k) for c in every) for k in range(len(EXAMPLES)))


def differs_from_zero(poly: Poly, where: frozenset[Poly]) -> bool:
    """Whether the polynomial is at least 1 or at most -1 at an example that satisfies the
    constraints `where`, and at which quotients of sizes are integers: then no proof that the
    polynomial is 0 exists."""
    return differ(poly, Poly(), where)


def differ(one: Poly, two: Poly, where: frozenset[Poly]) -> bool:
    """Whether two polynomials differ by at least 1 at an example that satisfies the constraints
    `where`, and at which quotients of sizes are integers: then no proof that they are equal
    exists."""
    values = ((_whole(one, x.number), _whole(two, x.number)) for x in _examples_of(where))
    return any(a is not None and b is not None and not -1 < a - b < 1 for a, b in values)


@lru_cache(maxsize=20_000)
def _whole(poly: Poly, number: int) -> Number | None:
    """The value of a polynomial at one of the `SMALL` examples; None if the polynomial has no exact
    value there, or a quotient of sizes that is no integer."""
    sizes = SMALL[number]
    return _value(poly, sizes) if _has_whole_quotients(poly, sizes) else None


@lru_cache(maxsize=20_000)
def _examples_of(where: frozenset[Poly]) -> Sequence[_Small]:
    """The first `ENOUGH` of the `SMALL` examples that satisfy all constraints, whose quotients are
    integers."""
    found = (x for x in SMALL if all(_is_nonnegative(c, x) for c in where))
    return tuple(islice(found, ENOUGH))


def _is_nonnegative(constraint: Poly, sizes: _Small) -> bool:
    """Whether a constraint holds at an example, and its quotients of sizes are integers there."""
    value = _whole(constraint, sizes.number)
    return value is not None and value >= 0


def _has_whole_quotients(poly: Poly, sizes: _Small) -> bool:
    """Whether the product of sizes in each term of a polynomial is an integer at the example
    `sizes`, in the arguments of functions too: for 3*d/n, whether n divides d."""
    for monomial in poly.terms:
        if any(power < 0 for _, power in monomial):
            value = _value(Poly({monomial: 1}), sizes)
            if value is None or value % 1:
                return False
    arguments = chain.from_iterable(atom.args for atom in poly.atoms if isinstance(atom, Fn))
    return all(_has_whole_quotients(argument, sizes) for argument in arguments)
