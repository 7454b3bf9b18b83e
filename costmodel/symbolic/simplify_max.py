"""A maximum of levels, depths under conditions on sizes, with fewer levels or conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from costmodel.symbolic.constraints import Constraints, infeasible, irredundant, nonnegative
from costmodel.symbolic.piecewise_max import (
    Depth,
    Level,
    exchanged,
    is_at_least,
    proven,
    pruned,
    reached,
)
from costmodel.symbolic.polynomial import Fn, Poly, by_text, call

LARGEST_GUARD = 4
"""The largest n for which a condition `size >= n` is tested at each smaller size."""
MOST_COMPARED = 100_000
"""The largest number of comparisons of two levels that are made on both sides of conditions."""


def simplify_max(ends: Sequence[Level]) -> Depth:
    """The maximum of levels (depths, each under conditions on sizes) with fewer levels and
    conditions, as far as proofs allow. The condition `size >= n` of a level is dropped if another
    level is at least as deep at every smaller size. Unsupported: over `MOST_LEVELS` are left."""
    # reversed, as the last levels are most often the deepest
    kept = _without_reached(pruned(frozenset(), [*dict.fromkeys(ends)][::-1])[::-1])
    for k, level in enumerate(kept):
        for guard in by_text(level.where):
            others = [x for j, x in enumerate(kept) if j != k and not x.where]
            if _guard_is_needless(guard, kept[k], others):
                kept[k] = kept[k].under(kept[k].where - {guard})
    return pruned(frozenset(), kept)


def _guard_is_needless(guard: Poly, level: Level, others: Sequence[Level]) -> bool:
    """Whether a guard `size >= n` of a level, n in 2..4, may be dropped: at each smaller size the
    level's logarithms exist, and one of `others` is proven to be at least as deep. False for any
    other guard on sizes; a number has no size to try, and may be dropped."""
    for letter in guard.letters:  # with two letters, the first return is reached: no number is left
        least = Poly.atom(letter) - guard
        number = least.constant()
        if not isinstance(number, int) or not 2 <= number <= LARGEST_GUARD:
            return False
        for value in range(1, number):
            at = {letter: Poly.of(value)}
            if not _logarithms_exist(level.depth, at):
                return False
            depth = level.depth.substitute(at)
            deepest = [x.depth.substitute(at) for x in others if _logarithms_exist(x.depth, at)]
            if not any(is_at_least(frozenset(), other, depth) for other in deepest):
                return False
    return True


def _logarithms_exist(depth: Poly, at: Mapping[str, Poly]) -> bool:
    """Whether every logarithm in a depth, inside functions too, has an argument of at least 1 at
    these sizes: not ceil_log2(ceil_log2(l - 1) + 1) at l = 1."""
    return all(
        all(_logarithms_exist(argument, at) for argument in atom.args)
        and (atom.function != "ceil_log2" or nonnegative(atom.args[0].substitute(at) - 1))
        for atom in depth.atoms
        if isinstance(atom, Fn)
    )


def _without_reached(levels: Sequence[Level]) -> list[Level]:
    """The levels (depths under conditions) that are needed for the maximum. A level is left out if
    another level *reaches* it: is proven to exist and to be at least as deep wherever it exists; or
    if one level reaches it where some condition holds, and one where this condition fails. The
    second proof is left out where it takes more than `MOST_COMPARED` comparisons: the maximum is
    then the same, of more levels."""
    kept = [*pruned(frozenset(), map(_simplified, levels))]
    if 2 * len(_guards(kept)) * len(kept) ** 2 > MOST_COMPARED:
        return kept
    for level in tuple(kept):
        others = [k for k in kept if k is not level]
        if any(_reached_on_both_sides(level, guard, others) for guard in _guards(others)):
            kept = others
    return kept


def _guards(levels: Sequence[Level]) -> Collection[Poly]:
    """All conditions of some levels."""
    return by_text(frozenset[Poly]().union(*(level.where for level in levels)))


def _reached_on_both_sides(level: Level, guard: Poly, rivals: Sequence[Level]) -> bool:
    """Whether some rival is proven to exist, and to be at least as deep as a level, where the guard
    holds, and some rival where the guard fails."""
    return all(
        infeasible(there) or any(reached(Level(level.depth, there), rival) for rival in rivals)
        for there in (level.where | {side} for side in (guard, -guard - 1))
    )


def _simplified(level: Level) -> Level:
    """An equal level in simpler terms: atoms that the conditions fix at 0 and arguments of a `Min`
    that never attain the minimum are dropped; a condition d*(l - 1) >= 1 becomes l - 1 >= 1."""
    where = irredundant(frozenset(map(_without_factor, level.where)))
    # a condition is a polynomial >= 0: with a >= 0, the condition -a fixes a at 0
    zeros = {a: Poly() for guard in where for a in guard.atoms if -guard == Poly.atom(a)}
    depth = exchanged(level.depth, {a: x for a, x in zeros.items() if nonnegative(Poly.atom(a))})
    # nothing is known beyond the conditions of the level
    return with_simple_minima(Level(depth, where, level.witness), known=frozenset())


def with_simple_minima(level: Level, known: Constraints) -> Level:
    """The level (a depth under conditions) with each `Min` in its depth reduced to the arguments
    that may attain the minimum under its conditions and the `known` ones."""
    if not any(True for _ in _minima(level.depth)):
        return level
    return level._replace(depth=_with_simple_minima(level.depth, known | level.where))


@lru_cache(maxsize=20_000)
def _with_simple_minima(depth: Poly, where: Constraints) -> Poly:
    return exchanged(depth, {atom: _simplified_min(atom, where) for atom in _minima(depth)})


def _minima(depth: Poly) -> Iterator[Fn]:
    """Yield every `Min` in a depth (a polynomial), inside functions too."""
    for atom in sorted(depth.atoms):
        if isinstance(atom, Fn):
            if atom.function == "Min":
                yield atom
            for argument in atom.args:
                yield from _minima(argument)


def _simplified_min(atom: Fn, where: Constraints) -> Poly:
    """A `Min` reduced to the arguments that may attain the minimum at the sizes of `where`."""
    kept = list(atom.args)
    for term in atom.args:
        others = [other for other in kept if other != term]
        if any(proven(where, term - other) for other in others):
            kept = others
    return call("Min", *kept)


def _without_factor(guard: Poly) -> Poly:
    """An equivalent condition g >= 0 without common sizes: d*l - d >= 1 becomes l - 1 >= 1. A
    condition with fractions or quotients stays, as it may hold at other sizes without the
    factor."""
    number = guard + 1  # the condition reads number >= 1
    shared: Counter[str] | None = None
    for monomial, times in number.terms.items():
        if not isinstance(times, int) or any(power < 0 for _, power in monomial):
            return guard
        powers = Counter({a: power for a, power in monomial if not isinstance(a, Fn)})
        shared = powers if shared is None else shared & powers
    return number / Poly({tuple(sorted(shared.items())): 1}) - 1 if shared else guard
