"""How deep is something at most, if its depth is the largest of polynomials that hold somewhere?

Branches that are provably smaller are dropped; variables are eliminated at their ends.

How deep is the deepest of some ends, in as few terms as are proven to do?

An end is a depth in sizes alone, with the sizes for which it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from costmodel.errors import Unsupported
from costmodel.symbolic.constraints import (
    ONE,
    Constraints,
    bounds,
    implied,
    infeasible,
    irredundant,
    is_plain,
    nonnegative,
    projected,
    variables_of,
)
from costmodel.symbolic.maximise import direction, highest
from costmodel.symbolic.polynomial import Fn, Poly, by_text, call


class Level(NamedTuple):
    """A depth in the indices around an expression, at the points where `where` holds too."""

    depth: Poly
    where: Constraints = frozenset()

    def __add__(self, levels: Poly | int) -> Level:  # type: ignore[override]  # it is no sequence
        return Level(self.depth + levels, self.where)

    def substitute(self, values: Mapping[str, Poly]) -> Level:
        """Replace indices or axes in both."""
        where = frozenset([c.substitute(values) for c in self.where]) if self.where else self.where
        return Level(self.depth.substitute(values), where)


Depth = tuple[Level, ...]
"""The largest of these."""


def dominates(constraints: Constraints, larger: Poly, smaller: Poly) -> bool:
    """Whether `larger >= smaller` is proven, matching logarithms by their arguments."""
    difference = larger - smaller
    if isinstance(number := difference.constant(), int):
        return number >= 0
    return _never_negative(constraints, difference)


@lru_cache(maxsize=100_000)
def _never_negative(constraints: Constraints, difference: Poly) -> bool:
    logs = [
        (atom, number)
        for monomial, number in difference.terms.items()
        for atom, power in monomial
        if isinstance(atom, Fn) and atom.function == "ceil_log2" and len(monomial) == power == 1
    ]
    spare = {atom: number for atom, number in logs if number > 0}
    for atom, number in logs:
        if number > 0:
            continue
        for rival, available in spare.items():
            if available >= -number and proven(constraints, rival.args[0] - atom.args[0]):
                spare[rival] = available + number
                moved = Poly.atom(atom) * -number - Poly.atom(rival) * -number
                difference = difference + moved
                break
    difference = with_positive_extrema(difference, constraints)
    if any(a[0] in "@#" for a in difference.letters):
        return False
    return nonnegative(difference)


def with_positive_extrema(poly: Poly, known: Constraints) -> Poly:
    """The same with a variable, at least 0, for every minimum or maximum of what is at least 0."""
    extrema = [
        atom
        for atom in sorted(poly.atoms)
        if isinstance(atom, Fn)
        and atom.function in ("Min", "Max")
        and all(proven(known, argument) for argument in atom.args)
    ]
    return poly.substitute({a: Poly.atom(f"^extremum {k}") for k, a in enumerate(extrema)})


def proven(constraints: Constraints, claim: Poly) -> bool:
    """Whether a claim is at least 0 at all points; what cannot be told is not proven."""
    if claim in constraints:
        return True
    try:
        return implied(constraints, claim)
    except Unsupported:
        return False


def pruned(constraints: Constraints, levels: Iterable[Level]) -> Depth:
    """Drop the levels that another one provably reaches wherever they exist."""

    def reached(level: Level, rival: Level) -> bool:
        if rival.where and not _names(rival.where) <= _names(level.where) | _names(constraints):
            return False
        known = constraints | level.where
        if not all(proven(known, c) for c in rival.where):
            return False
        if not level.where or not (least := _least(level.where)):
            return dominates(known, rival.depth, level.depth)
        known = frozenset(c.substitute(least) for c in known)
        return dominates(known, rival.depth.substitute(least), level.depth.substitute(least))

    several = tuple(dict.fromkeys(levels))
    if len(several) < 2:
        return several
    kept: list[Level] = []
    for level in several:
        if not any(reached(level, rival) for rival in kept):
            kept = [k for k in kept if not reached(k, level)]
            kept.append(level)
    return tuple(kept)


@lru_cache(maxsize=20_000)
def _names(constraints: Constraints) -> frozenset[str]:
    return frozenset(variables_of(constraints))


def _least(where: Constraints) -> Mapping[str, Poly]:
    """Sizes moved so that guards such as `l >= 3` hold for every positive integer."""
    found: dict[str, Poly] = {}
    for guard in by_text(where):
        for letter in guard.letters:
            least = (Poly.atom(letter) - guard).constant()
            if isinstance(least, int) and least > 1:
                found[letter] = Poly.atom(letter) + (least - 1)
    return found


def maximised(level: Level, variables: Iterable[str], constraints: Constraints) -> Level:
    """The largest depth over variables.

    The last variable is eliminated first; where that does not tell, those first that the depth does
    not depend on; or all of them are as large, or as small, as they can be.
    """
    inner = tuple(reversed(tuple(variables)))
    if not level.where and level.depth.letters.isdisjoint(inner):
        return level
    reasons = []
    for way in (_eliminated, _with_the_rest_first, _at_the_corner):
        try:
            return way(level, inner, constraints)
        except Unsupported as reason:
            reasons.append(reason)
    raise reasons[0]


def maxima(level: Level, variables: Iterable[str], constraints: Constraints) -> Depth:
    """The largest depth over variables, as the largest of several: where a minimum or a maximum
    bends the depth so that no one place is proven to be the deepest, each side by itself."""
    names = tuple(variables)
    try:
        return _one_by_one(maximised(level, names, constraints))
    except Unsupported as reason:
        try:
            sides = tuple(_side_by_side(level, names[::-1], constraints))
        except Unsupported:
            raise reason from None
    return tuple(one for side in sides for one in _one_by_one(side))


def _one_by_one(level: Level) -> Depth:
    """The terms of a depth that is a maximum, each by itself."""
    if len(level.depth.terms) == 1:
        (lone,) = level.depth.terms
        for atom, _ in lone:
            if isinstance(atom, Fn) and atom.function == "Max" and level.depth == Poly.atom(atom):
                return tuple(x for t in atom.args for x in _one_by_one(Level(t, level.where)))
    return (level,)


def _side_by_side(
    level: Level, waiting: Sequence[str], constraints: Constraints
) -> Iterator[Level]:
    """The variables eliminated one by one, on each side of a bend apart."""
    full = constraints | level.where
    if infeasible(full):
        return
    if not waiting:
        yield _beside(level.depth, full, constraints)
        return
    variable = _next_one(full, waiting)
    rest = [v for v in waiting if v != variable]
    try:
        top = highest(level.depth, variable, full)
    except Unsupported:
        sides = _sides(level, variable)
        if not sides:
            raise
        for side in sides:
            yield from _side_by_side(side, waiting, constraints)
        return
    there, plain = projected(full, [variable]), projected(constraints, [variable])
    yield from _side_by_side(Level(top, there), rest, plain)


def _sides(level: Level, variable: str) -> Depth:
    """The same depth without a minimum or a maximum of affine terms that bends it over a variable:
    each of the terms, where that is the one taken."""
    for atom in _bends(level.depth):
        if variable not in Poly.atom(atom).letters:
            continue
        sign = 1 if atom.function == "Min" else -1
        return tuple(
            Level(
                exchanged(level.depth, {atom: taken}),
                level.where | {(other - taken) * sign for other in atom.args if other != taken},
            )
            for taken in atom.args
        )
    return ()


def exchanged(depth: Poly, values: Mapping[str, Poly]) -> Poly:
    """A depth with other values for some functions, inside other functions too."""
    found: dict[str, Poly] = {
        atom: values[atom]
        if atom in values
        else call(atom.function, *(exchanged(argument, values) for argument in atom.args))
        for atom in depth.atoms
        if isinstance(atom, Fn)
    }
    return depth.substitute(found)


def _bends(depth: Poly) -> Iterator[Fn]:
    """The minima and maxima of affine terms inside a depth, in the order of their text."""
    for atom in sorted(depth.atoms):
        if isinstance(atom, Fn):
            if atom.function in ("Min", "Max") and all(map(_is_affine, atom.args)):
                yield atom
            for argument in atom.args:
                yield from _bends(argument)


def _with_the_rest_first(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """Eliminate the variables first that the depth does not depend on, a row in a chunk being one
    variable."""
    by_row, names = _by_row(level, waiting)
    still = [v for v in names if v not in by_row.depth.letters]
    both_sides = (irredundant(c) for c in (constraints | by_row.where, constraints))
    full, plain = (projected(c, still) for c in both_sides)
    rest = [v for v in names if v not in still]
    return _eliminated(Level(by_row.depth, full - plain), rest, plain)


def _at_the_corner(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """Where a depth only grows, or only falls, with each variable, and a point is proven to exist
    at which every one of them is at its end, it is the deepest."""
    full, plain = (irredundant(c) for c in (constraints | level.where, constraints))
    exists, known = projected(full, waiting), projected(plain, waiting)
    corner: dict[str, Poly] = {}
    for variable in waiting:
        if sign := direction(level.depth, variable):
            lower, upper, _ = bounds(
                projected(full, [v for v in waiting if v != variable]), variable
            )
            ends = upper if sign > 0 else lower
            if any(scale != ONE for scale, _ in ends):
                raise Unsupported(f"index {variable[1:]} is bounded with a stride")
            corner[variable] = the_tightest([end for _, end in ends], exists, -sign)
    there = frozenset(c.substitute(corner) for c in full)
    if not all(
        proven(exists, c) for c in projected(there, [v for v in waiting if v not in corner])
    ):
        raise Unsupported("a depth that is largest at no proven point")
    where = frozenset(c for c in exists if c not in known and not proven(known, c))
    return Level(level.depth.substitute(corner), where)


def _by_row(level: Level, variables: Sequence[str]) -> tuple[Level, Sequence[str]]:
    """The same depth in one variable more, for a sum of indices that it depends on in no other way:
    the row of a place in a chunk."""
    sums = {moving for part in _affine(level.depth) if (moving := _moving(part)).terms}
    names = variables_of(sums)
    if len(sums) != 1 or len(names) < 2 or not names <= {*variables}:
        return level, variables
    (joint,) = sums
    last = next((v for v in variables if joint.terms.get(((v, 1),)) == 1), None)
    if last is None or last in (joint - Poly.atom(last)).letters:
        return level, variables
    row = "@row of " + " and ".join(name[1:] for name in sorted(names))
    apart = Poly.atom(row) - joint
    depth = level.depth.substitute({last: apart + Poly.atom(last)})
    return Level(depth, level.where | {apart, -apart}), (row, *variables)


def _is_affine(poly: Poly) -> bool:
    """Whether no function in a polynomial depends on a variable."""
    return not any(isinstance(a, Fn) and variables_of([Poly.atom(a)]) for a in poly.atoms)


def _moving(poly: Poly) -> Poly:
    """What is left of a polynomial without its terms in sizes alone."""
    return Poly({m: x for m, x in poly.terms.items() if variables_of([Poly({m: 1})])})


def _affine(poly: Poly) -> Iterator[Poly]:
    """The polynomials inside a depth's functions, and what stands outside of them."""
    functions = [a for a in poly.atoms if isinstance(a, Fn) and variables_of([Poly.atom(a)])]
    for atom in functions:
        for argument in atom.args:
            yield from _affine(argument)
    yield Poly({m: x for m, x in poly.terms.items() if not any(a in functions for a, _ in m)})


def _eliminated(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    term, full, plain = level.depth, constraints | level.where, constraints
    waiting = list(waiting)
    while waiting:
        variable = _next_one(full, waiting)
        waiting.remove(variable)
        term = highest(term, variable, full)
        full, plain = projected(full, [variable]), projected(plain, [variable])
    return _beside(term, full, plain)


def _next_one(full: Constraints, waiting: Sequence[str]) -> str:
    """The variable to eliminate next: the first one that no stride bounds."""
    return next((v for v in waiting if is_plain(full, v)), waiting[0])


def _beside(depth: Poly, full: Constraints, known: Constraints) -> Level:
    """A depth with those of its conditions that are not known around it."""
    return Level(depth, frozenset(c for c in full if c not in known and not proven(known, c)))


def largest(depth: Poly, variables: Iterable[str], constraints: Constraints) -> Poly:
    """The largest value of a depth that exists everywhere."""
    return maximised(Level(depth), variables, constraints).depth


def guarded(level: Level) -> Poly:
    """The depth where all of its size conditions hold, else 0."""
    term = level.depth
    if not level.where:
        return term
    clamped: dict[str, Poly] = {
        atom: call("ceil_log2", call("Max", 1, atom.args[0]))
        for atom in term.atoms
        if isinstance(atom, Fn) and atom.function == "ceil_log2"
        and not nonnegative(atom.args[0] - 1)
    }  # fmt: skip
    term = term.substitute(clamped)
    for guard in by_text(level.where):
        term = term * call("Min", 1, call("Max", 0, guard + 1))
    return term


def tightest(ends: Sequence[Poly], where: Constraints, sign: int) -> Poly | None:
    """The largest (1) or smallest (-1) of some ends, if one is proven to be it."""
    found = (x for x in ends if all(proven(where, (x - other) * sign) for other in ends))
    return next(found, None)


def the_tightest(ends: Sequence[Poly], where: Constraints, sign: int) -> Poly:
    """The same; Unsupported where none is proven to be it."""
    found = tightest(ends, where, sign)
    if found is None:
        raise Unsupported("which rows of a loop have an operand depends on the sizes")
    return found


MOST = 4
"""Rows of a loop that are worked out, and the guards `size >= 4` and below that are tried."""


READY: Depth = (Level(Poly()),)


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
