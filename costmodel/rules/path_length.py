"""How far apart are two positions at most, in hops of what a row reads of other rows?

The "maximum path length" of Table 1 of Vaswani et al. 2017, a property of the dependency graph; the
span counts operations, this counts positions. The nodes are the positions 1..l. One hop goes from
position p to q when an instance that belongs to row q of some array reads an entry that belongs to
row p. A row is what lies at one place of an array's token axis; what has none (a sum over all
tokens, a Fourier transform) belongs to every row that reads it, and so joins each to all rows that
it was made of. What depends on no token belongs to no row. Layers of the same kind may be
stacked, so that a path goes on from any array of a row to any other of the same row.

The distance of two positions is the least number of hops from the one to the other, in one layer or
in as many as it takes; the answer is the largest distance of all ordered pairs that are joined: 1
for self-attention, l-1 for a recurrence, which reads the row before; where a row reads the r rows
on either side, ceil((l-1)/r); 0 where no two positions are joined, as at l = 1.

Table 1 has O(log_k n) for a convolution of width k. That is a stack of layers whose dilation grows
from layer to layer, as section 4 says; one layer, stacked as it is, has contiguous kernels and
needs O(n/k) hops, by the same section. This is what follows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from costmodel.domains import (
    Constraints,
    Exact,
    Unsupported,
    implied,
    implied_all,
    infeasible,
    nonnegative,
    projected,
)
from costmodel.equations import Equation, Mixer, System
from costmodel.expressions import Array, Gather, Position, position_value
from costmodel.polynomial import Poly, call, ceil_div
from costmodel.presence import may_be_empty
from costmodel.quantity import Quantity
from costmodel.tokens import Read, after_token, reads, system_of, tokens

if TYPE_CHECKING:
    import sympy

ROW, BACK = "#row", "#back"
"""The row that reads, and how many rows away, at least one, it reads: in one direction."""

Reach = Poly | None
"""How far a row reads in one direction; None where it reads every row there."""

NOWHERE = Poly()


@dataclass(frozen=True)
class PathLength(Quantity):
    """Hops between the two positions that are furthest apart; exact."""

    exact: Exact

    @property
    def expr(self) -> sympy.Expr:
        """The hops as a sympy expression."""
        return self.exact.expr

    def at(self, **sizes: int) -> int:
        """The hops at integer sizes."""
        return self.exact.at(sizes)


@dataclass(frozen=True, eq=False)
class Rows:
    """On which axis of each array the tokens lie; None where on none."""

    system: System
    axes: Mapping[Array, int | None]

    def reading(self, equation: Equation) -> Poly | None:
        """The row that an instance belongs to, in its free indices."""
        return self._place(equation.array, equation.positions)

    def read(self, read: Read) -> Poly | None:
        """The row of the entry that is read."""
        return self._place(read.ref.array, read.ref.positions)

    def _place(self, array: Array, positions: Sequence[Position]) -> Poly | None:
        axis = self.axes[array]
        return None if axis is None else position_value(positions[axis])


@cache
def rows(system: System) -> Rows:
    """The token axes of a system's arrays, derived from what reads what.

    An axis may hold the tokens if it is l long and indexed by what indexes the rows of something
    that is read; of several such axes it is the one that has the row of whoever reads the array.

    Raises:
        Unsupported: an array with rows that lie on no axis, or on one of several.
    """
    possible, indexed = _possible(system)
    chosen: dict[Array, int | None] = {system.mixer.role("output"): 0}
    for equation in reversed(system.equations):
        array = equation.array
        if array in chosen or array not in possible:
            continue
        axes = _of_readers(system, array, possible[array], chosen)
        if not axes and array in indexed:
            raise Unsupported(f"the rows of {array.name} lie on no axis of one entry per token")
        if len(axes) > 1:
            raise Unsupported(f"the rows of {array.name} lie on one of several axes")
        chosen[array] = next(iter(axes), None)
    chosen[system.mixer.role("input")] = 0
    return Rows(system, chosen)


def _possible(system: System) -> tuple[Mapping[Array, set[int]], set[Array]]:
    """The axes that may hold the tokens, and the arrays of which an index counts rows."""
    source, output = system.mixer.role("input"), system.mixer.role("output")
    dynamic, length = tokens(system).dynamic, source.shape[0]
    possible: dict[Array, set[int]] = {array: set() for array in dynamic}
    possible |= {source: {0}, output: {0}}
    indexed: set[Array] = set()
    changed = True
    while changed:
        changed = False
        for equation in system.equations:
            if equation.array not in dynamic:
                continue
            counting = _counting(equation, possible)
            found = {
                axis
                for axis, position in enumerate(equation.positions)
                if not isinstance(position, Gather)
                and equation.array.shape[axis] == length
                and position_value(position).letters & counting
            }
            if counting & {index.atom for index in equation.indices}:
                indexed.add(equation.array)
            if equation.array is not output and not found <= possible[equation.array]:
                possible[equation.array] |= found
                changed = True
    return possible, indexed


def _counting(equation: Equation, possible: Mapping[Array, set[int]]) -> set[str]:
    """The indices that stand where rows of something read may lie, and those that bound them."""
    found: set[str] = set()
    for read in reads(equation):
        for axis in possible.get(read.ref.array, ()):
            place = position_value(read.ref.positions[axis])
            found |= {letter for letter in place.letters if letter[0] == "@"}
        for index in reversed(read.over):
            if index.atom in found:
                bounds = frozenset[str]().union(*(b.letters for b in index.lower + index.upper))
                found |= {letter for letter in bounds if letter[0] == "@"}
    return found


def _of_readers(
    system: System, array: Array, axes: set[int], chosen: Mapping[Array, int | None]
) -> set[int]:
    """The axes at which readers have their own row; all of them where none has."""
    known = Rows(system, chosen)
    for equation in system.equations:
        if equation.array is array or chosen.get(equation.array) is None:
            continue
        here = known.reading(equation)
        for read in reads(equation):
            if read.ref.array is not array or len(axes) < 2:
                continue
            own = {a for a in axes if position_value(read.ref.positions[a]) == here}
            axes = own or axes
    return axes


@dataclass(frozen=True)
class Hops:
    """Which rows one reference reads in one direction: rows and distances, and who reads whom."""

    where: Constraints
    words: str

    def reach(self, sign: int, length: Poly) -> tuple[Reach] | None:
        """The largest distance, where every row reads at all distances from 1 to there, as far as
        the sequence goes; None where it is not so."""
        row, back = Poly.atom(ROW), Poly.atom(BACK)
        inside = frozenset({row - 1, length - row, back - 1})
        inside |= {row - back * sign - 1, length - row + back * sign}
        own = {c for c in self.where if BACK in c.letters and ROW not in c.letters}
        kept = frozenset(c for c in own if not implied(inside, c))
        if not implied_all(inside | kept, self.where - own):
            return None
        if any(c.coefficient(BACK) != Poly.of(-1) for c in kept):
            return None
        return (call("Min", *(c + back for c in kept)) if kept else None,)

    def within(self, reach: Reach) -> bool:
        """Whether no distance is larger than a reach."""
        return reach is None or implied(self.where, reach - Poly.atom(BACK))


def _hops(known: Rows, sign: int) -> Iterator[Hops]:
    """What every reference reads of earlier rows (sign 1), or of later ones (-1)."""
    whole = frozenset({Poly.atom(ROW) - 1, _length(known.system) - Poly.atom(ROW)})
    for equation in known.system.equations:
        if known.axes.get(equation.array) is None:
            continue
        here = known.reading(equation)
        assert here is not None
        for read in reads(equation):
            if read.ref.array not in known.axes:
                continue
            words = f"{equation.name} reads of {read.ref.array.name}"
            there = known.read(read)
            if there is None:
                _require_whole(known, read.ref.array)
                yield Hops(whole | {Poly.atom(BACK) - 1}, words)
                continue
            away = Poly.atom(BACK) - (here - there) * sign
            apart = {Poly.atom(ROW) - here, here - Poly.atom(ROW), away, -away}
            for around in _reading(known.system, equation, read):
                where = around | apart | {Poly.atom(BACK) - 1}
                if not infeasible(where):
                    yield Hops(projected(where, _indices(equation, read)), words)


def _indices(equation: Equation, read: Read) -> list[str]:
    names = {index.atom for index in (*equation.indices, *read.over)}
    return sorted(names, reverse=True)


def _reading(system: System, equation: Equation, read: Read) -> list[Constraints]:
    """Where an entry is read that depends on some token: a sum over no term belongs to no row."""
    around = equation.domain | read.constraints
    if not any(map(may_be_empty, system.equations)):
        return [around]
    terms = tokens(system).at(read.ref)
    if any(implied_all(around, term.over(Poly())) for term in terms):
        return [around]
    return after_token(around, terms, Poly())


def _length(system: System) -> Poly:
    return system.mixer.role("input").shape[0]


def _require_whole(known: Rows, array: Array, asked: frozenset[Array] = frozenset()) -> None:
    """Raise Unsupported unless every entry of an array of no rows is made of all of them.

    What is asked already has itself among what it is made of: a loop, whose first row decides.
    """
    for equation in known.system.defining[array]:
        made_of = [read for read in reads(equation) if read.ref.array in known.axes]
        without = {r.ref.array for r in made_of if known.read(r) is None} - asked
        for other in without - {array}:
            _require_whole(known, other, asked | {array})
        looped = any(read.ref.array in asked | {array} for read in made_of)
        if not (without or looped or any(_reads_all(known, equation, r) for r in made_of)):
            raise Unsupported(f"{array.name} is made of some rows and belongs to none")


def _reads_all(known: Rows, equation: Equation, read: Read) -> bool:
    """Whether every instance reads all rows."""
    row, there = Poly.atom(ROW), known.read(read)
    assert there is not None
    given = equation.domain | {row - 1, _length(known.system) - row}
    over = sorted((index.atom for index in read.over), reverse=True)
    for around in _reading(known.system, equation, read):
        if implied_all(given, projected(around | {row - there, there - row}, over)):
            return True
    return False


def _furthest(hops: Sequence[Hops], sign: int, length: Poly) -> Reach:
    """How far one hop goes at most in one direction, where it may go any shorter way too."""
    if not hops:
        return NOWHERE
    found = {hop: hop.reach(sign, length) for hop in hops}
    even = [reach[0] for reach in found.values() if reach is not None]
    for hop, reach in found.items():
        if reach is None and not any(hop.within(other) for other in even):
            raise Unsupported(f"which rows {hop.words} depends on more than how far away they are")
    bounded = [reach for reach in even if reach is not None]
    return call("Max", *bounded) if len(bounded) == len(even) else None


def _nearer(one: Reach, two: Reach, known: Constraints) -> Reach:
    """The smaller of two reaches, one that is nowhere left out."""
    if one is None or two == NOWHERE:
        return one if two == NOWHERE else two
    if two is None or one == NOWHERE:
        return two if one == NOWHERE else one
    if implied(known, two - one):
        return one
    return two if implied(known, one - two) else call("Min", one, two)


def _cases(reach: Reach) -> list[tuple[Constraints, Reach]]:
    """A reach where it is at least 1, and nowhere where it is not."""
    if reach is None or reach == NOWHERE or nonnegative(reach - 1):
        return [(frozenset(), reach)]
    return [(frozenset({reach - 1}), reach), (frozenset({-reach}), NOWHERE)]


@cache
def _answer(system: System) -> PathLength:
    length, known = _length(system), rows(system)
    ways = [_cases(_furthest(list(_hops(known, sign)), sign, length)) for sign in (1, -1)]
    result = Exact()
    for (some, back), (others, ahead) in product(*ways):
        guards = some | others
        reach = _nearer(back, ahead, guards)
        if infeasible(guards) or reach == NOWHERE:
            continue
        if reach is None:
            result = result + Exact(((guards | {length - 2}, Poly.of(1)),))
        else:
            result = result + Exact(((guards, ceil_div(length - 1, reach)),))
    return PathLength(result)


def path_length(mixer: Mixer, form: str | None = None) -> PathLength:
    """The largest distance of two positions in hops, for layers of one kind.

    Errors: Unsupported where the rows that a row reads depend on more than their distance, or where
    an array has an entry for each chunk of tokens, which is no row.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 4 and Table 1.

    >>> import costmodel as cm
    >>> cm.path_length(cm.mixer("self-attention")).at(l=9)
    1
    >>> cm.path_length(cm.mixer("convolution")).at(l=9, k=3)
    4
    """
    return _answer(system_of(mixer, form, (), "training"))
