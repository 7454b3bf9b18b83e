"""Maxima of levels, depths (polynomials) that each exist only where the level's conditions hold.

A depth is a number of dependent operations: the length of the longest path to an entry. A `Level`
is one depth with its conditions, a `Depth` the maximum of several levels, such as

    ceil_log2(#0) where #0 >= 2, and 3 everywhere.

`pruned` drops a level if another level is proven to be at least as deep. `maximised` and `maxima`
eliminate indices by taking the maximum over them: the result depends on sizes alone. An unproven
level is kept; an unproven maximum raises `Unsupported`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import combinations
from operator import gt
from typing import Any, NamedTuple, Self

from costmodel.errors import Unsupported
from costmodel.symbolic.constraints import (
    Constraints,
    bounds,
    implied,
    infeasible,
    irredundant,
    is_plain,
    nonnegative,
    projected,
    require_plain,
    variables_of,
)
from costmodel.symbolic.maximise import direction, highest
from costmodel.symbolic.polynomial import (
    Fn,
    Number,
    Poly,
    atom_name,
    by_text,
    call,
    index_atom,
    is_variable,
    stand_in,
    sum_of,
)


class Witness(ABC):
    """The path that attains a depth, carried along with the depth."""

    @abstractmethod
    def substitute(self, values: Mapping[str, Poly]) -> Self:
        """The path with indices or axes replaced."""

    @abstractmethod
    def at_most(self, where: Constraints, variables: Sequence[str], known: Constraints) -> Self:
        """The witness of the maximum over `variables` of a depth that exists where the conditions
        `where` and the constraints `known` hold."""

    @abstractmethod
    def joined(self, other: Any) -> Self:
        """The witness to keep of two witnesses of equal depths."""


class Level(NamedTuple):
    """A depth, a polynomial in indices, axes and sizes, that exists where every condition of
    `where` holds; `witness` is the path that attains the depth, if paths are asked for."""

    depth: Poly
    where: Constraints = frozenset()
    witness: Witness | None = None

    def __add__(self, levels: Poly | int) -> Level:  # type: ignore[override]  # it is no sequence
        return Level(self.depth + levels, self.where, self.witness)

    def under(self, where: Constraints) -> Level:
        """The same depth under other conditions."""
        return Level(self.depth, where, self.witness)

    def substitute(self, values: Mapping[str, Poly]) -> Level:
        """Replace indices or axes in the depth, the conditions and the witness."""
        where = frozenset([c.substitute(values) for c in self.where]) if self.where else self.where
        witness = self.witness.substitute(values) if self.witness else None
        return Level(self.depth.substitute(values), where, witness)


Depth = tuple[Level, ...]
"""The maximum of the levels that exist at a point."""


def is_at_least(constraints: Constraints, larger: Poly, smaller: Poly) -> bool:
    """Whether `larger >= smaller` is proven, for two depths, polynomials with logarithms. Each
    subtracted logarithm is cancelled against added logarithms whose arguments are proven to be at
    least as large: (ceil_log2(a) + 3) - (ceil_log2(b) + 1) is positive if a >= b. A subtracted
    logarithm that is left is cancelled against two added ones, as ceil_log2(a*b) is at most
    ceil_log2(a) + ceil_log2(b)."""
    difference = larger - smaller
    if isinstance(number := difference.constant(), int):
        return number >= 0
    return _never_negative(constraints, difference)


@lru_cache(maxsize=100_000)
def _never_negative(constraints: Constraints, difference: Poly) -> bool:
    """Whether a difference of depths is proven to be at least 0. Each subtracted logarithm is
    cancelled against added logarithms that are at least as large. A rest with an index or axis is
    not proven; else its coefficients decide, or the constraints, if they are in sizes alone."""
    if any(map(is_variable, difference.atoms)):
        return False  # cancellations leave an index outside of logarithms where it is
    logs = [
        (atom, number)
        for monomial, number in difference.terms.items()
        for atom, power in monomial
        if isinstance(atom, Fn) and atom.function == "ceil_log2" and len(monomial) == power == 1
    ]
    spare = {atom: number for atom, number in logs if number > 0}  # added, and not yet cancelled
    for atom, number in logs:
        missing = -number
        for rival, available in spare.items():
            if missing > 0 < available and _no_fewer(constraints, rival.args[0], atom.args[0]):
                taken = min(available, missing)
                spare[rival], missing = available - taken, missing - taken
                difference = difference + (Poly.atom(atom) - Poly.atom(rival)) * taken
        for one, two in combinations(spare, 2):
            taken = min(missing, spare[one], spare[two])
            if taken > 0 and _no_fewer(constraints, one.args[0] * two.args[0], atom.args[0]):
                spare[one], spare[two] = spare[one] - taken, spare[two] - taken
                missing = missing - taken
                pair = Poly.atom(one) + Poly.atom(two)
                difference = difference + (Poly.atom(atom) - pair) * taken
    difference = with_positive_extrema(difference, constraints)
    if any(is_variable(a) for a in difference.letters):
        return False
    if nonnegative(difference) or not constraints or _variable_names(constraints):
        return nonnegative(difference)
    left = (Poly.atom(atom) * number for atom, number in spare.items())  # each at least 0
    return proven(constraints, difference - sum_of(left))


def _no_fewer(where: Constraints, many: Poly, few: Poly) -> bool:
    """Whether `many >= few` is proven where `where` holds; each of the two numbers may be a `Min`:
    every argument of `many` must reach some argument of `few`."""
    return all(
        any(proven(where, one - two) for two in _arguments_of_min(few))
        for one in _arguments_of_min(many)
    )


@lru_cache(maxsize=20_000)
def _arguments_of_min(number: Poly) -> tuple[Poly, ...]:
    """The terms whose minimum is the number: `Min(a, b) + rest` gives a + rest and b + rest; any
    other number gives itself."""
    for atom in sorted(number.atoms):
        rest = number - Poly.atom(atom)
        if isinstance(atom, Fn) and atom.function == "Min" and atom not in rest.atoms:
            return tuple(argument + rest for argument in atom.args)
    return (number,)


def with_positive_extrema(poly: Poly, known: Constraints) -> Poly:
    """The polynomial with a fresh nonnegative variable in place of each `Min` or `Max` all of whose
    arguments are proven to be at least 0; any other `Min` or `Max` stays."""
    extrema = [
        atom
        for atom in sorted(poly.atoms)
        if isinstance(atom, Fn)
        and atom.function in ("Min", "Max")
        and all(proven(known, argument) for argument in atom.args)
    ]
    return poly.substitute({a: Poly.atom(stand_in(f"extremum {k}")) for k, a in enumerate(extrema)})


def proven(constraints: Constraints, claim: Poly) -> bool:
    """Whether the constraints prove `claim >= 0`; False also if the proof is not supported."""
    if claim in constraints:
        return True
    try:
        return implied(constraints, claim)
    except Unsupported:
        return False


MOST_LEVELS = 300
"""The largest number of levels of a depth; more are refused, as each is compared with all."""


def pruned(constraints: Constraints, levels: Iterable[Level]) -> Depth:
    """The same maximum with fewer levels: without each level L if another level is proven to exist
    wherever L exists, and to be at least as deep.

    Raises:
        Unsupported: more than `MOST_LEVELS` levels are left.
    """
    several = tuple(levels)
    found = several if len(several) < 2 else _pruned(constraints, tuple(dict.fromkeys(several)))
    if len(found) > MOST_LEVELS:
        raise Unsupported(f"the depth has more than {MOST_LEVELS} cases: give each size a value")
    return found


@lru_cache(maxsize=20_000)
def _pruned(constraints: Constraints, several: Depth) -> Depth:
    """The maximum of distinct levels (depths, each under conditions), without each level that
    another one reaches: the other is proven to exist wherever the level exists, and to be at least
    as deep. Of levels that are equal but for their witnesses (the chains of that depth), one stays,
    with one of the witnesses."""
    kept: list[_Placed] = []
    for level in map(partial(_Placed, constraints), several):
        reaching = next((rival for rival in kept if level.reached_by(rival)), None)
        if reaching is None:
            kept = [k for k in kept if not k.reached_by(level)]
            kept.append(level)
        elif reaching.level.witness and reaching.level[:2] == level.level[:2]:
            reaching.level = reaching.level._replace(witness=_joined(reaching.level, level.level))
    return tuple(one.level for one in kept)


def _joined(one: Level, other: Level) -> Witness | None:
    """The witness of two levels with equal depth and conditions; None if neither has a witness."""
    if one.witness is None or other.witness is None:
        return one.witness or other.witness
    return one.witness.joined(other.witness)


class _Placed:
    """A level within `constraints`, prepared for comparisons with other levels."""

    def __init__(self, constraints: Constraints, level: Level) -> None:
        """A level (a depth under conditions) with what comparisons need: the constraints where it
        exists, their variables, and a shift of sizes for its conditions (l -> l + 2 for l >= 3)."""
        self.level = level
        self.known = constraints | level.where if level.where else constraints
        self.names = _variable_names(level.where)
        self.known_names = _variable_names(constraints) | self.names
        self.least = _from_least_sizes(level.where)
        self.number_and_logarithms = _number_and_logarithms(level.depth)

    def reached_by(self, rival: _Placed) -> bool:
        """Whether the level (a depth under conditions) `rival` is proven to exist wherever this
        level exists, and to be at least as deep."""
        if not rival.names <= self.known_names:
            return False  # nothing bounds a variable of the rival's conditions
        # a shortcut: no proof succeeds if this depth has the larger number or more logarithms, as
        # 5 beside ceil_log2(l) + 3: numbers and logarithms cancel their own kind alone
        own, theirs = self.number_and_logarithms, rival.number_and_logarithms
        if own and theirs and any(map(gt, own, theirs)):
            return False
        if not all(proven(self.known, c) for c in rival.level.where):
            return False
        other, depth, known = rival.level.depth, self.level.depth, self.known
        if self.least:  # size -> polynomial, l -> l + 2 for a level with l >= 3
            # l - 2 for l >= 3 becomes l for l >= 1, as proofs know that sizes are at least 1;
            # ValueError: a size that divides other sizes cannot be shifted
            with suppress(ValueError):
                other, depth, known = (
                    other.substitute(self.least),
                    depth.substitute(self.least),
                    _known_there(known, self.level.where),
                )
        return is_at_least(known, other, depth)


@lru_cache(maxsize=20_000)
def _number_and_logarithms(depth: Poly) -> tuple[Number, Number] | None:
    """The number in a depth and the number of its logarithms, such as (3, 2) of ceil_log2(i) +
    ceil_log2(j) + 3; None for a depth with other terms."""
    number: Number = 0
    logarithms: Number = 0
    for monomial, times in depth.terms.items():
        if not monomial:
            number = times
            continue
        atom, power = monomial[0]
        if len(monomial) > 1 or power != 1 or not isinstance(atom, Fn):
            return None
        if atom.function != "ceil_log2":
            return None
        logarithms += times
    return number, logarithms


def reached(level: Level, rival: Level) -> bool:
    """Whether `rival` is proven to exist wherever `level` exists, and to be at least as deep."""
    return _Placed(frozenset(), level).reached_by(_Placed(frozenset(), rival))


@lru_cache(maxsize=20_000)
def _variable_names(constraints: Constraints) -> frozenset[str]:
    """`variables_of`, cached."""
    return frozenset(variables_of(constraints))


@lru_cache(maxsize=20_000)
def _known_there(known: Constraints, where: Constraints) -> Constraints:
    """The constraints `known` after the substitution of `_from_least_sizes(where)`."""
    return frozenset(c.substitute(_from_least_sizes(where)) for c in known)


@lru_cache(maxsize=20_000)
def _from_least_sizes(where: Constraints) -> Mapping[str, Poly]:
    """A substitution l -> l + 2 for each condition l >= 3 on a size or an axis, so that the
    condition holds at every positive integer; {} without such conditions."""
    found: dict[str, Poly] = {}
    for guard in by_text(where):
        for letter in guard.letters:
            least = (Poly.atom(letter) - guard).constant()
            if isinstance(least, int) and least > 1:
                found[letter] = Poly.atom(letter) + (least - 1)
    return found


def maximised(level: Level, variables: Iterable[str], constraints: Constraints) -> Level:
    """The maximum of a level (a depth under conditions) over `variables` (indices, outermost first)
    that satisfy `constraints`, by the first of three methods that succeeds. The conditions of the
    result are those that `constraints` do not prove.

    1. Eliminate one variable after another, the innermost first.
    2. Eliminate first the variables on which the depth does not depend.
    3. Put every variable at the end of its range at which the depth is largest.

    Raises:
        Unsupported: no method succeeds; the reason is that of the first method.
    """
    inner = tuple(reversed(tuple(variables)))
    if not level.where and level.depth.letters.isdisjoint(inner):
        return level._replace(witness=_at_most(level, inner[::-1], constraints))
    reasons = []
    for way in (_innermost_first, _independent_first, _at_ends):
        try:
            found = way(level, inner, constraints)
        except Unsupported as reason:
            reasons.append(reason)
        else:
            return found._replace(witness=_at_most(level, inner[::-1], constraints))
    raise reasons[0]


def _at_most(level: Level, variables: Sequence[str], known: Constraints) -> Witness | None:
    """The witness of the maximum of a level over variables; None for a level without a witness."""
    return level.witness.at_most(level.where, variables, known) if level.witness else None


def maxima(level: Level, variables: Iterable[str], constraints: Constraints) -> Depth:
    """The maximum of a level (a depth under conditions) over variables, as several levels. If one
    formula is not derived because a `Min` or `Max` is not monotone, its arguments are maximised
    case by case: Min(i, l - i) as i where i <= l - i, and as l - i elsewhere. Unsupported, with the
    first reason, if that fails too."""
    names = tuple(variables)
    try:
        return _arguments_of_max(maximised(level, names, constraints))
    except Unsupported as reason:
        try:
            sides = tuple(_case_by_case(level, names[::-1], constraints))
        except Unsupported:
            raise reason from None
    witness = _at_most(level, names, constraints)
    found = (one for side in sides for one in _arguments_of_max(side))
    return tuple(one._replace(witness=witness) for one in found)


def _arguments_of_max(level: Level) -> Depth:
    """A level (a depth under conditions) whose depth is a single `Max` as one level for each
    argument; any other level alone."""
    if len(level.depth.terms) == 1:
        (lone,) = level.depth.terms
        for atom, _ in lone:
            if isinstance(atom, Fn) and atom.function == "Max" and level.depth == Poly.atom(atom):
                return tuple(
                    x for t in atom.args for x in _arguments_of_max(level._replace(depth=t))
                )
    return (level,)


def _case_by_case(
    level: Level, waiting: Sequence[str], constraints: Constraints
) -> Iterator[Level]:
    """Yield the maximum of a level (a depth under conditions) over the variables `waiting`,
    eliminated one by one, as one level per case: a `Min` or `Max` that prevents elimination splits
    into cases. Nothing where the level does not exist; Unsupported if an elimination fails without
    such a function."""
    full = constraints | level.where
    if infeasible(full):
        return
    if not waiting:
        yield _under_new_conditions(level.depth, full, constraints)
        return
    variable = _next_variable(full, waiting)
    rest = [v for v in waiting if v != variable]
    try:
        top = highest(level.depth, variable, full)
    except Unsupported:
        sides = _cases_of_extremum(level, variable)
        if not sides:
            raise
        for side in sides:
            yield from _case_by_case(side, waiting, constraints)
        return
    there, plain = projected(full, [variable]), projected(constraints, [variable])
    yield from _case_by_case(Level(top, there), rest, plain)


def _cases_of_extremum(level: Level, variable: str) -> Depth:
    """A level (a depth under conditions) split at the first `Min` or `Max` of affine terms that
    depends on a variable: one level for each argument, where this is the minimum or maximum; () if
    there is no such function."""
    for atom in _affine_extrema(level.depth):
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
    """The depth with functions replaced by `values` (atom -> value), inside functions too."""
    found: dict[str, Poly] = {
        atom: values[atom]
        if atom in values
        else call(atom.function, *(exchanged(argument, values) for argument in atom.args))
        for atom in depth.atoms
        if isinstance(atom, Fn)
    }
    return depth.substitute(found)


def _affine_extrema(depth: Poly) -> Iterator[Fn]:
    """Yield every `Min` and `Max` in a depth, inside other functions too, whose arguments contain
    no function of an index or axis. The order is the same in every run."""
    for atom in sorted(depth.atoms):
        if isinstance(atom, Fn):
            if atom.function in ("Min", "Max") and all(map(_functions_are_fixed, atom.args)):
                yield atom
            for argument in atom.args:
                yield from _affine_extrema(argument)


def _independent_first(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """The maximum of a level (a depth under conditions) over the variables `waiting`: those on
    which the depth does not depend are eliminated first. A row (q - 1)*C + e that the depth names
    as a whole counts as one variable. Unsupported if the maximum over a variable, or the range of
    the others, is not derived."""
    by_row, names = _with_row_variable(level, waiting)
    independent = [v for v in names if v not in by_row.depth.letters]
    rest = [v for v in names if v not in independent]
    # the level exists in `full`, a part of `plain`: what `plain` lacks are its own conditions
    both = (irredundant(c) for c in (constraints | by_row.where, constraints))
    full, plain = (projected(c, independent) for c in both)
    return _innermost_first(Level(by_row.depth, full - plain), rest, plain)


def _at_ends(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """The maximum of a level (a depth under conditions) over the variables `waiting`: each is put
    at the upper end of its range if the depth grows with the variable, at the lower end if the
    depth falls. Raises Unsupported: the depth grows and falls, a bound is on a multiple of a
    variable, which bound is the end depends on the sizes, or it is not proven that all variables
    can be at these ends at once."""
    full, plain = (irredundant(c) for c in (constraints | level.where, constraints))
    # what the level needs in order to exist at some values of the variables, and what is known
    exists, known = projected(full, waiting), projected(plain, waiting)
    corner: dict[str, Poly] = {}
    for variable in waiting:
        if sign := direction(level.depth, variable):
            lower, upper, _ = bounds(
                projected(full, [v for v in waiting if v != variable]), variable
            )
            ends = upper if sign > 0 else lower
            require_plain(variable, ends)
            corner[variable] = the_tightest([end for _, end in ends], exists, -sign)
    there = frozenset(c.substitute(corner) for c in full)
    if not all(
        proven(exists, c) for c in projected(there, [v for v in waiting if v not in corner])
    ):
        raise Unsupported(
            f"the largest of the depths {level.depth} has no formula, since the indices are not "
            "proven to reach their bounds at the same time: give each size a value"
        )
    where = frozenset(c for c in exists if c not in known and not proven(known, c))
    return Level(level.depth.substitute(corner), where)


def _with_row_variable(level: Level, variables: Sequence[str]) -> tuple[Level, Sequence[str]]:
    """(level, variables) with a fresh variable for the only sum of indices in its depth, whose
    value is a further condition: ceil_log2((q - 1)*C + e) becomes ceil_log2(row - C) where row =
    q*C + e. Both unchanged if the depth has no such sum or its indices also in another way."""
    sums = {moving for part in _affine_parts(level.depth) if (moving := _moving_terms(part)).terms}
    names = variables_of(sums)
    if len(sums) != 1 or len(names) < 2 or not names <= {*variables}:
        return level, variables
    (joint,) = sums
    # an index with coefficient 1, for which joint = row is solved
    last = next((v for v in variables if joint.terms.get(((v, 1),)) == 1), None)
    if last is None or last in (joint - Poly.atom(last)).letters:
        return level, variables
    row = index_atom("row of " + " and ".join(atom_name(name) for name in sorted(names)))
    apart = Poly.atom(row) - joint
    depth = level.depth.substitute({last: apart + Poly.atom(last)})
    return Level(depth, level.where | {apart, -apart}), (row, *variables)


def _functions_are_fixed(poly: Poly) -> bool:
    """Whether no function in a polynomial depends on an index or axis."""
    return not any(isinstance(a, Fn) and variables_of([Poly.atom(a)]) for a in poly.atoms)


def _moving_terms(poly: Poly) -> Poly:
    """The terms of a polynomial that name an index or axis."""
    return Poly({m: x for m, x in poly.terms.items() if variables_of([Poly({m: 1})])})


def _affine_parts(poly: Poly) -> Iterator[Poly]:
    """Yield the arguments of functions of indices in a depth, innermost first, then other terms."""
    functions = [a for a in poly.atoms if isinstance(a, Fn) and variables_of([Poly.atom(a)])]
    for atom in functions:
        for argument in atom.args:
            yield from _affine_parts(argument)
    yield Poly({m: x for m, x in poly.terms.items() if not any(a in functions for a, _ in m)})


def _innermost_first(level: Level, waiting: Sequence[str], constraints: Constraints) -> Level:
    """The maximum of a level (a depth under conditions) over the variables `waiting`, one after
    another, the innermost first. Unsupported if the maximum over a variable, or the range of the
    others, is not derived."""
    term, full, plain = level.depth, constraints | level.where, constraints
    waiting = list(waiting)
    while waiting:
        variable = _next_variable(full, waiting)
        waiting.remove(variable)
        term = highest(term, variable, full)
        full, plain = projected(full, [variable]), projected(plain, [variable])
    return _under_new_conditions(term, full, plain)


def _next_variable(full: Constraints, waiting: Sequence[str]) -> str:
    """The variable to eliminate next: the first with bounds of stride 1, else the first of all."""
    return next((v for v in waiting if is_plain(full, v)), waiting[0])


def _under_new_conditions(depth: Poly, full: Constraints, known: Constraints) -> Level:
    """A depth under those conditions of `full` that `known` does not prove."""
    return Level(depth, frozenset(c for c in full if c not in known and not proven(known, c)))


def guarded(level: Level) -> Poly:
    """One polynomial for a level, a depth under conditions in sizes: the depth where they hold, 0
    elsewhere. A condition g >= 0 becomes the factor Min(1, Max(0, g + 1)). Unsupported if a
    condition names an index, as floor(i/3) does."""
    term = level.depth
    if not level.where:
        return term
    for guard in by_text(level.where):
        if guard.variables:
            names = ", ".join(sorted(map(atom_name, guard.variables)))
            raise Unsupported(
                f"the depth depends on the chunk in which index {names} lies, so that sizes alone "
                "give no formula of it"
            )
    term = _with_logarithms_everywhere(term)
    for guard in by_text(level.where):
        term = term * call("Min", 1, call("Max", 0, guard + 1))
    return term


def _with_logarithms_everywhere(poly: Poly) -> Poly:
    """The polynomial with ceil_log2(Max(1, x)) for ceil_log2(x), inside functions too, so that the
    polynomial has a value at all sizes."""
    found: dict[str, Poly] = {}
    for atom in poly.atoms:
        if isinstance(atom, Fn):
            args = [_with_logarithms_everywhere(argument) for argument in atom.args]
            if atom.function == "ceil_log2" and not nonnegative(args[0] - 1):
                args = [call("Max", 1, args[0])]
            found[atom] = call(atom.function, *args)
    return poly.substitute(found)


def tightest(ends: Sequence[Poly], where: Constraints, sign: int) -> Poly | None:
    """The element of `ends` that is proven to be the largest (`sign` 1) or smallest (`sign` -1) of
    them; None if there is no such proof."""
    found = (x for x in ends if all(proven(where, (x - other) * sign) for other in ends))
    return next(found, None)


def the_tightest(ends: Sequence[Poly], where: Constraints, sign: int) -> Poly:
    """The element of `ends` that is proven, at all sizes of `where`, to be the largest (`sign` 1)
    or smallest (`sign` -1) of them; Unsupported if there is no such proof."""
    found = tightest(ends, where, sign)
    if found is None:
        raise Unsupported(
            "the tightest bound of an index depends on the sizes: it is one of "
            f"{', '.join(sorted(map(str, ends)))}"
        )
    return found


READY: Depth = (Level(Poly()),)
"""The depth of an entry that is available before the first step: 0."""
