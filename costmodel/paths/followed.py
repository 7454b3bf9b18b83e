"""How many hops do the two positions furthest apart need at given sizes, found by following reads?

Where `path_length` derives no formula, every read is followed at every point. An entry on a token
axis belongs to its row. Another one that rows on one side alone read, of those that it is made of,
belongs to the nearest of these, as `paths.reachability` has it; else it hands all of them on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import prod
from typing import Any

from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Position, position_value
from costmodel.paths.reachability import Rows, length, regions_that_read, rows_on_axes
from costmodel.program.dependence import Read
from costmodel.program.grid import Budget, points
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import axis_atom

Pairs = Sequence[tuple[int, int]]
"""A node that reads, and one that it reads."""


@dataclass(frozen=True, eq=False)
class Joint:
    """A reference that joins rows where one of some regions holds, in which ranges are left out."""

    equation: Equation
    read: Read
    regions: Sequence[Constraints]

    @property
    def ends(self) -> tuple[tuple[Array, tuple[Position, ...]], ...]:
        """The entry that reads, and the one that is read."""
        ref = self.read.ref
        return (self.equation.array, self.equation.positions), (ref.array, ref.positions)

    @property
    def indices(self) -> Sequence[Index]:
        """The indices around the reference."""
        return tuple(dict.fromkeys((*self.equation.indices, *self.read.over)))

    def letters(self, axes: Mapping[Array, set[int]]) -> set[str]:
        """The indices that places on some axes depend on, or where rows are joined; and those whose
        range depends on an index, with this."""
        values = [
            *(constraint for region in self.regions for constraint in region),
            *(position_value(at[axis]) for array, at in self.ends for axis in axes[array]),
        ]
        every = {index.atom: index for index in self.indices}
        found = every.keys() & frozenset[str]().union(*(value.letters for value in values))
        for index in self.indices:
            if others := every.keys() & frozenset[str]().union(*(e.letters for e in index.ends)):
                found |= others | {index.atom}
        return found


@dataclass(frozen=True, eq=False)
class Graph:
    """What reads what at some sizes.

    A node is a row, from 0 on, or after these the entries of an array without a token axis that are
    made of the same rows. A set of rows is a number with a bit for each.
    """

    known: Rows
    sizes: Mapping[str, int]
    budget: Budget = field(default_factory=Budget)

    @cached_property
    def length(self) -> int:
        """The number of rows."""
        return length(self.known.system).at(self.sizes)

    @cached_property
    def joints(self) -> Sequence[Joint]:
        """Every reference that may join rows, in the order of the equations."""
        found = []
        for equation in self.known.system.equations:
            for read in self.known.certain(equation) if equation.array in self.known.places else ():
                around = equation.domain | read.constraints
                regions = regions_that_read(self.known.system, equation, read)
                found.append(Joint(equation, read, [region - around for region in regions]))
        return found

    @cached_property
    def axes(self) -> Mapping[Array, set[int]]:
        """The axes that tell the nodes of an array apart: its token axis; else those at which its
        equations define parts of it, or at which a row depends on the place."""
        found = {
            array: {
                axis
                for axis in range(len(array.shape))
                if (axis_atom(axis) in place.letters if place else not self._alike(array, axis))
            }
            for array, place in self.known.places.items()
        }
        number = -1
        while number != (number := sum(map(len, found.values()))):
            for joint in self.joints:
                letters = joint.letters(found)
                for array, at in joint.ends:
                    if self.known.places[array] is None:
                        found[array] |= {k for k, p in enumerate(at) if letters & _letters(p)}
        return found

    def _alike(self, array: Array, axis: int) -> bool:
        """Whether all equations of an array define entries at the same places of an axis."""
        places = {
            (at, *(index for index in equation.indices if index.atom in _letters(at)))
            for equation in self.known.system.defining[array]
            for at in [equation.positions[axis]]
        }
        return len(places) == 1

    @cached_property
    def apart(self) -> Mapping[Array, range]:
        """The nodes of each array without a token axis, the last array first."""
        found, free = dict[Array, range](), self.length
        for array, place in self.known.places.items():
            if place is None:
                found[array] = range(free, free + prod(self._shape(array)))
                free = found[array].stop
        return found

    def _shape(self, array: Array) -> tuple[int, ...]:
        return tuple(max(0, array.shape[k].at(self.sizes)) for k in sorted(self.axes[array]))

    @cached_property
    def joined(self) -> Sequence[tuple[Array, Array, Pairs]]:
        """Two arrays, and which nodes of the first read which of the second."""
        return [(j.equation.array, j.read.ref.array, self._pairs(j)) for j in self.joints]

    def _pairs(self, joint: Joint) -> Pairs:
        import numpy as np

        letters, known = joint.letters(self.axes), tuple(sorted(self.sizes.items()))
        kept = tuple(index for index in joint.indices if index.atom in letters)
        if not all(points((i,), known).shape[0] for i in joint.indices if i not in kept):
            return []
        at = points(kept, known)
        self.budget.spend(at)
        inside: Any = np.asarray(False)
        for region in joint.regions:
            inside = inside | reduce(np.logical_and, [at.value(c) >= 0 for c in region], at.mask)
        number = self.length + sum(map(len, self.apart.values()))
        code: Any = 0
        for array, positions in joint.ends:
            shape = self._shape(array)
            where, outside = at.entries(
                tuple(positions[k] for k in sorted(self.axes[array])), shape
            )
            node: Any = 0
            for place, extent in zip(where, shape, strict=True):
                node = node * extent + place
            code = code * number + node + (self.apart[array].start if array in self.apart else 0)
            inside = inside if outside is None else inside & ~outside
        inside, code = np.broadcast_arrays(inside, code)
        return [divmod(one, number) for one in np.unique(code[inside]).tolist()]

    def handed_on(self, homes: Mapping[int, int]) -> list[int]:
        """The rows that each node hands on: a row, or an entry that belongs to one, this alone."""
        rows = [1 << row for row in range(self.length)]
        found = rows + [0] * sum(map(len, self.apart.values()))
        for node, row in homes.items():
            found[node] = rows[row]
        changed = True
        while changed:
            changed = False
            for reading, _, pairs in self.joined:
                for here, there in pairs if reading in self.apart else ():
                    if here not in homes and found[there] & ~found[here]:
                        found[here] |= found[there]
                        changed = True
        return found

    @cached_property
    def homes(self) -> Mapping[int, int]:
        """Entry -> the row that it belongs to, for arrays of which no entry is read on both sides
        of the rows that it is made of."""
        made, homes = self.handed_on({}), dict[int, int]()
        readers = made[: self.length] + [0] * (len(made) - self.length)
        for array, nodes in self.apart.items():
            for reading, other, pairs in self.joined:
                for here, there in pairs if other is array is not reading else ():
                    readers[there] |= readers[here]
            own = [node for node in nodes if made[node] and readers[node]]
            homes |= _nearest({node: (made[node], readers[node]) for node in own})
            for node in homes.keys() & own:
                readers[node] = 1 << homes[node]
        return homes

    def hops(self) -> int:
        """The hops between the two rows furthest apart, of those that are joined."""
        handed, before = self.handed_on(self.homes), [0] * self.length
        for _, _, pairs in self.joined:
            for here, there in pairs:
                row = self.homes.get(here, here)
                if row < self.length:
                    before[row] |= handed[there]
        return max(_distance(before, row) for row in range(self.length))


def _letters(position: Position) -> frozenset[str]:
    """What a place depends on; nothing where values choose it."""
    return frozenset() if isinstance(position, Gather) else position_value(position).letters


def _rows(of: int) -> Iterator[int]:
    """The rows of a set."""
    while of:
        yield _first(of)
        of &= of - 1


def _first(rows: int) -> int:
    return (rows & -rows).bit_length() - 1


def _last(rows: int) -> int:
    return rows.bit_length() - 1


def _nearest(entries: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Of the rows that each of some entries is made of the one that is nearest to the rows that
    read it; nothing where these stand on both sides of some."""
    if all(_last(made) <= _first(readers) for made, readers in entries.values()):
        return {node: _last(made) for node, (made, _) in entries.items()}
    if all(_last(readers) <= _first(made) for made, readers in entries.values()):
        return {node: _first(made) for node, (made, _) in entries.items()}
    return {}


def _distance(before: Sequence[int], row: int) -> int:
    """The hops to a row from the one that is furthest away, given the rows that each row reads."""
    found = latest = 1 << row
    hops = -1
    while latest:
        hops += 1
        fresh = 0
        for here in _rows(latest):
            fresh |= before[here]
        latest = fresh & ~found
        found |= latest
    return hops


def furthest_apart(system: System, sizes: Mapping[str, int]) -> int:
    """The hops between the two positions furthest apart, at these sizes.

    Raises:
        Unsupported: more reads than are followed, rows on one of several axes that cannot be told
            apart, or entries without a row among which values choose.
    """
    return Graph(rows_on_axes(system), dict(sizes)).hops()
