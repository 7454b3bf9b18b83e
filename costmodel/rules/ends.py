"""How deep is the deepest of some ends, in as few terms as are proven to do?

An end is a depth in sizes alone, with the sizes for which it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from costmodel.atoms import Fn, by_text
from costmodel.constraints import Constraints, infeasible, irredundant, nonnegative
from costmodel.polynomial import Poly, call
from costmodel.rules.levels import MOST, Depth, Level, dominates, exchanged, proven, pruned


def settled(ends: Sequence[Level]) -> Depth:
    """The deepest ends; a guard is dropped where below it another end is as deep anyway."""
    kept = _fewest(pruned(frozenset(), ends))
    for k, level in enumerate(kept):
        for guard in by_text(level.where):
            others = [x for j, x in enumerate(kept) if j != k and not x.where]
            if _needless(guard, kept[k], others):
                kept[k] = Level(level.depth, kept[k].where - {guard})
    return pruned(frozenset(), kept)


def _needless(guard: Poly, level: Level, others: Sequence[Level]) -> bool:
    """Whether an end is no deeper than another one at the few sizes that its guard excludes."""
    for letter in guard.letters:
        least = Poly.atom(letter) - guard
        number = least.constant()
        if not isinstance(number, int) or not 2 <= number <= MOST:
            return False
        for value in range(1, number):
            at = {letter: Poly.of(value)}
            if not _proper(level.depth, at):
                return False
            depth = level.depth.substitute(at)
            deepest = [x.depth.substitute(at) for x in others if _proper(x.depth, at)]
            if not any(dominates(frozenset(), other, depth) for other in deepest):
                return False
    return True


def _proper(depth: Poly, at: Mapping[str, Poly]) -> bool:
    """Whether every logarithm in a depth is one of a positive integer at some sizes."""
    return all(
        nonnegative(atom.args[0].substitute(at) - 1)
        for atom in depth.atoms
        if isinstance(atom, Fn) and atom.function == "ceil_log2"
    )


def _fewest(levels: Sequence[Level]) -> list[Level]:
    """Drop the ends that others reach, by all that is known of the sizes at which they exist."""
    kept: list[Level] = []
    for level in map(_tidied, levels):
        if not any(_reached(level, rival) for rival in kept):
            kept = [k for k in kept if not _reached(k, level)]
            kept.append(level)
    for level in tuple(kept):
        others = [k for k in kept if k is not level]
        if any(_reached_on_both_sides(level, guard, others) for guard in _guards(others)):
            kept = others
    return kept


def _guards(levels: Sequence[Level]) -> Collection[Poly]:
    """The conditions under which some ends exist."""
    return by_text(frozenset[Poly]().union(*(level.where for level in levels)))


def _reached_on_both_sides(level: Level, guard: Poly, rivals: Sequence[Level]) -> bool:
    """Whether one end reaches another one where a guard holds, and one where it does not."""
    return all(
        infeasible(there) or any(_reached(Level(level.depth, there), rival) for rival in rivals)
        for there in (level.where | {side} for side in (guard, -guard - 1))
    )


def _reached(level: Level, rival: Level) -> bool:
    return all(proven(level.where, c) for c in rival.where) and _at_least(
        level.where, rival.depth, level.depth
    )


def _at_least(where: Constraints, larger: Poly, smaller: Poly) -> bool:
    """Whether a depth is proven to be at least another one, each logarithm that is taken away being
    made up for by one of at least as many terms."""
    difference = larger - smaller
    logs = [
        (atom, number)
        for ((atom, power), *others), number in (
            (monomial, x) for monomial, x in difference.terms.items() if monomial
        )
        if not others and power == 1 and isinstance(atom, Fn)
        and atom.function == "ceil_log2" and isinstance(number, int)
    ]  # fmt: skip
    spare = {atom: number for atom, number in logs if number > 0}
    for atom, number in logs:
        missing = -number
        for rival, available in spare.items():
            if missing > 0 and available and _no_fewer(where, rival.args[0], atom.args[0]):
                spare[rival] = available - min(available, missing)
                missing -= min(available, missing)
        if missing > 0:
            return False
    rest = difference - sum((Poly.atom(a) * n for a, n in logs), Poly())
    return nonnegative(rest) or proven(where, rest)


def _no_fewer(where: Constraints, many: Poly, few: Poly) -> bool:
    """Whether a number of terms is proven to be at least another one, either a minimum."""
    return all(any(proven(where, one - two) for two in _least_of(few)) for one in _least_of(many))


def _least_of(number: Poly) -> tuple[Poly, ...]:
    """What a number of terms is the least of."""
    for atom in sorted(number.atoms):
        rest = number - Poly.atom(atom)
        if isinstance(atom, Fn) and atom.function == "Min" and atom not in rest.atoms:
            return tuple(argument + rest for argument in atom.args)
    return (number,)


def _tidied(level: Level) -> Level:
    """The same end, without what its guards say is 0, without the terms of a minimum that are never
    the least, and with guards that hold no factor."""
    where = irredundant(frozenset(map(_without_factor, level.where)))
    zeros = {a: Poly() for guard in where for a in guard.atoms if -guard == Poly.atom(a)}
    depth = exchanged(level.depth, {a: x for a, x in zeros.items() if nonnegative(Poly.atom(a))})
    return Level(exchanged(depth, {a: _tidied_least(a, where) for a in _minima(depth)}), where)


def _minima(depth: Poly) -> Iterator[Fn]:
    """The minima that a depth takes the logarithms of."""
    for atom in sorted(depth.atoms):
        if isinstance(atom, Fn):
            if atom.function == "Min":
                yield atom
            for argument in atom.args:
                yield from _minima(argument)


def _tidied_least(atom: Fn, where: Constraints) -> Poly:
    kept = list(atom.args)
    for term in atom.args:
        others = [other for other in kept if other != term]
        if any(proven(where, term - other) for other in others):
            kept = others
    return call("Min", *kept)


def _without_factor(guard: Poly) -> Poly:
    """Sizes times a whole number are at least 1 exactly where that number is."""
    number = guard + 1
    shared: Counter[str] | None = None
    for monomial, times in number.terms.items():
        if not isinstance(times, int) or any(power < 0 for _, power in monomial):
            return guard
        powers = Counter({a: power for a, power in monomial if not isinstance(a, Fn)})
        shared = powers if shared is None else shared & powers
    return number / Poly({tuple(sorted(shared.items())): 1}) - 1 if shared else guard
