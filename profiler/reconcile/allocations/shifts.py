"""What is held while a sum of products runs shift by shift?

A convolution multiplies rows by slices of a parameter, one slice for each shift between the row
that is read and the row that is written. Where not every row has every shift, no matrix product
runs over a window: one does for each shift, over the rows that have it. The first one, which all
rows have, is the result; each other one is added to it in place. Backward, each hands on slices of
gradients: autograd writes a slice whole, with zeros around it, and adds it to what it has, or, of a
parameter whose slices one operation took, writes all of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.nodes import Add, Array, Mul, Reduce, Ref, gradient_name
from costmodel.program.recurrences import references
from costmodel.program.wellformed import axes_of, region
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polyhedral_sums import union_size
from costmodel.symbolic.polynomial import Poly
from profiler.reconcile.allocations.carriers import PRODUCT, Carriers
from profiler.reconcile.allocations.nodes import ragged, windowed

SHIFT = "shift"
"""The letter of a shift: the place of its slice in the parameter."""

ONE = Poly.of(1)

Step = tuple[Equation, ...]
"""Equations that run together."""

Numbers = Mapping[Array, int]
"""Array -> how many of its elements there are."""


@dataclass(frozen=True)
class Around:
    """What is there while a step runs, in elements of a batch."""

    alive: Numbers
    """What the equations hold."""
    batch: Numbers
    """How many sequences an array tells apart."""
    ends: Collection[Array]
    """What is there until it is last read, in this step."""


@dataclass(frozen=True, eq=False)
class Shifts:
    """The shifts of a sum of products of `rows` with `slices` of a parameter."""

    equation: Equation
    rows: Ref
    slices: Ref
    axis: int
    """The axis of the parameter that is cut."""

    @staticmethod
    def of(equation: Equation, kernels: Mapping[str, str]) -> Shifts | None:
        """Those of an equation of the forward pass; None where it does not run shift by shift."""
        value = equation.value
        if not isinstance(value, Reduce) or kernels.get(equation.part_of) != PRODUCT:
            return None
        window = {index.atom for index in value.over if windowed(index, equation)}
        read = value.body.children if isinstance(value.body, Mul) else ()
        rows = [ref for ref in read if isinstance(ref, Ref) and ref.array.role != "parameter"]
        cut = [
            (ref, axis)
            for ref in read
            if isinstance(ref, Ref) and ref.array.role == "parameter"
            for axis, place in enumerate(ref.positions)
            if isinstance(place, Poly) and place.letters & window
        ]
        if len(rows) != 1 or len(cut) != 1 or not ragged((*equation.indices, *value.over)):
            return None
        return Shifts(equation, rows[0], *cut[0])

    @cached_property
    def entries(self) -> Mapping[Array, Exact]:
        """The entries of one sequence that a shift reads of each operand, and gives of the
        result."""
        value, place = self.equation.value, self.slices.positions[self.axis]
        assert isinstance(value, Reduce)
        assert isinstance(place, Poly)
        indices, apart = (*self.equation.indices, *value.over), place - Poly.atom(SHIFT)
        where = frozenset({apart, -apart}).union(*(index.constraints for index in indices))
        names = [index.atom for index in indices]
        found: dict[Array, Exact] = {}
        for one in (self.equation, self.rows, self.slices):
            here = region(one.array, one.positions, where, names)
            regions = [] if here is None else [here]
            found[one.array] = union_size(axes_of(one.array), regions, ONE)
        return found

    def each(self, sizes: Mapping[str, int]) -> Sequence[Numbers]:
        """The entries of one sequence that every shift has: the first one is that which runs first,
        and the order of the others changes nothing of what is held at most.

        Raises:
            Unsupported: no shift has all rows, so that there is none to start with.
        """
        result, extent = self.equation.array, self.slices.array.shape[self.axis].at(sizes)
        places = [{**sizes, SHIFT: place} for place in range(1, extent + 1)]
        found = [{a: number.at(at) for a, number in self.entries.items()} for at in places]
        found = sorted((one for one in found if one[result]), key=lambda one: -one[result])
        if not found or found[0][result] != _whole(result, sizes):
            raise Unsupported(f"{result.name}: a sum over shifts of which none has all rows")
        return found

    def moments(self, around: Around, sizes: Mapping[str, int]) -> Iterator[tuple[Step, Numbers]]:
        """What is held while each product runs, and is added to the result."""
        result, step = self.equation.array, (self.equation,)
        yield step, around.alive
        for one in self.each(sizes)[1:]:
            held = around.alive[result] + one[result] * around.batch[result]
            yield step, {**around.alive, result: held}


@dataclass(frozen=True, eq=False)
class Share:
    """What shifts hand on to the gradient of one operand."""

    operand: Array
    equation: Equation
    added: Equation | None
    """What adds it to that which others handed on before, if they did."""
    together: bool
    """Whether the slices of all shifts but the first one are written together."""

    @property
    def result(self) -> Array:
        """The sum of what was handed on until then."""
        return (self.added or self.equation).array

    @property
    def before(self) -> Array | None:
        """What others handed on before."""
        read = [ref.array for ref in references(self.added)] if self.added else []
        return next((array for array in read if array != self.equation.array), None)


@dataclass(frozen=True, eq=False)
class Handed:
    """The gradients that shifts hand on, that of the last operand first."""

    shifts: Shifts
    shares: Sequence[Share]

    @property
    def step(self) -> Step:
        """The equations of all shares, then their sums with what was there before."""
        added = [share.added for share in self.shares if share.added is not None]
        return (*(share.equation for share in self.shares), *added)

    def written(self, sizes: Mapping[str, int]) -> Numbers:
        """The entries that there are of each gradient from then on: those of its whole array, zeros
        too, or of a slice alone, where there is one shift and nothing to add it to."""
        first, *others = self.shifts.each(sizes)
        return {
            s.result: _whole(s.result, sizes) if others or s.added else first[s.operand]
            for s in self.shares
        }

    def moments(self, around: Around, sizes: Mapping[str, int]) -> Iterator[tuple[Step, Numbers]]:
        """What is held while the products of each shift run, and while they are added up: the
        shift that ran last comes first."""
        first, *others = self.shifts.each(sizes)
        sums = _Sums(self.shares, around, self.written(sizes))
        everything = {array for equation in self.step for array in _read(equation)}
        for one in reversed(others):
            for share in self.shares:
                yield sums.product(share, one, everything)
            for share in self.shares:
                if not share.together:
                    yield from sums.add(share, everything)
        for share in self.shares if others else ():
            if share.together:
                yield from sums.join(share, len(others), everything)
                yield from sums.add(share, everything)
        for k, share in enumerate(self.shares):
            later = {array for s in self.shares[k:] for array in _read(s.equation)}
            yield sums.product(share, first, later)
        for share in sorted(self.shares, key=lambda s: s.operand == self.shifts.slices.array):
            yield from sums.add(share, ())  # all rows need no zeros around them: they come first


@dataclass
class _Sums:
    """The gradients of operands while shifts hand on to them, in elements."""

    shares: Sequence[Share]
    around: Around
    whole: Numbers

    def __post_init__(self) -> None:
        before = {share: share.before for share in self.shares}
        own = {*before.values(), *(s.equation.array for s in self.shares)}
        own |= {share.result for share in self.shares}
        self.outer = {a: number for a, number in self.around.alive.items() if a not in own}
        self.sums = {s: self.around.alive[a] if a else 0 for s, a in before.items()}
        self.given = dict.fromkeys(self.shares, 0)

    def held(self, of: Share, later: Collection[Array], new: int = 0) -> tuple[Step, Numbers]:
        """What is there beside something new, where some arrays are read from then on."""
        found = {a: n for a, n in self.outer.items() if a not in self.around.ends or a in later}
        for share in self.shares:
            found[share.result] = self.sums[share] + self.given[share]
        found[of.result] += new
        return (of.equation,), found

    def product(self, of: Share, shift: Numbers, later: Collection[Array]) -> tuple[Step, Numbers]:
        """The product that one shift hands on runs."""
        self.given[of] += shift[of.operand] * self.around.batch[of.result]
        return self.held(of, later)

    def join(
        self, of: Share, slices: int, later: Collection[Array]
    ) -> Iterator[tuple[Step, Numbers]]:
        """All slices are written together: of one alone, it is moved between zeros."""
        if slices > 1:
            whole = self.whole[of.result] * self.around.batch[of.result]
            yield self.held(of, later, whole)
            self.given[of] = whole

    def add(self, to: Share, later: Collection[Array]) -> Iterator[tuple[Step, Numbers]]:
        """What was given is added to what is there already, if anything is."""
        if self.sums[to]:
            whole = self.whole[to.result] * self.around.batch[to.result]
            yield self.held(to, later, whole)
            self.given[to] = whole
        self.sums[to], self.given[to] = self.given[to], 0


def _whole(array: Array, sizes: Mapping[str, int]) -> int:
    """All entries of an array."""
    return prod(axis.at(sizes) for axis in array.shape)


def _read(equation: Equation) -> set[Array]:
    return {ref.array for ref in references(equation)}


def by_shift(
    order: Sequence[Step], carriers: Carriers, unbound: Collection[str], *, backward: bool
) -> tuple[list[Step], dict[Step, Shifts | Handed]]:
    """The steps, those as one in which a sum hands gradients on, and which of them run shift by
    shift.

    Args:
        unbound: the parameters whose slices one operation takes.
        backward: whether gradients are taken operation by operation.
    """
    sums = [shifts for (one, *_) in order if (shifts := Shifts.of(one, carriers.kernels))]
    found: dict[Step, Shifts | Handed] = {(shifts.equation,): shifts for shifts in sums}
    taken = list(order)
    for shifts in sums if backward else ():
        if not (shares := [*_shares(shifts, order, carriers, unbound)]):
            continue
        handed = Handed(shifts, shares)
        first = next(k for k, (one, *_) in enumerate(taken) if one in handed.step)
        taken[first] = handed.step
        taken = [s for s in taken if s == handed.step or s[0] not in handed.step]
        found[handed.step] = handed
    return taken, found


def _shares(
    shifts: Shifts, order: Sequence[Step], carriers: Carriers, unbound: Collection[str]
) -> Iterator[Share]:
    """What the shifts of one sum hand on, in the order in which they do."""
    operands = {gradient_name(ref.array): ref.array for ref in (shifts.rows, shifts.slices)}
    equations = [step[0] for step in order]
    for own in equations:
        value, operand = own.value, operands.get(own.part_of)
        if operand is None or carriers.part(own, value) != shifts.equation.part_of:
            continue
        if isinstance(value, Reduce) and any(windowed(index, own) for index in value.over):
            added = (e for e in equations if isinstance(e.value, Add) and own.array in _read(e))
            yield Share(operand, own, next(added, None), operand.name in unbound)
