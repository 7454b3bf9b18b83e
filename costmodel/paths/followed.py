"""The number of hops between the two positions furthest apart, at given sizes, by following reads.

The fallback where `path_length` derives no formula: every reference is evaluated at every point. An
entry with a token axis belongs to its row. An entry without a token axis belongs to the nearest of
the rows that it is computed from, if all its readers lie on one side of these rows, as in
`paths.reachability`; else the entry is transparent: its readers read all these rows.
A *node* of the graph of reads is a row, or a group of entries without a token axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Gather, Position, position_value
from costmodel.paths.reachability import Rows, length, regions_that_read, rows_on_axes
from costmodel.program.dependence import Read
from costmodel.program.grid import Points, points
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import axis_atom

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[Any]
    Pairs = tuple[Integers, Integers]

MOST = 30_000_000
"""The largest number of reads, entries and pairs of rows: some seconds of work."""


@dataclass(frozen=True, eq=False)
class Joint:
    """A reference that joins rows: it reads where the indices lie in their ranges and one of the
    `regions` (sets of constraints on the indices) holds."""

    equation: Equation
    read: Read
    regions: Sequence[Constraints]

    @property
    def ends(self) -> tuple[tuple[Array, tuple[Position, ...]], ...]:
        """The entry that is written and the entry that is read, each as (array, positions)."""
        ref = self.read.ref
        return (self.equation.array, self.equation.positions), (ref.array, ref.positions)

    @property
    def indices(self) -> Sequence[Index]:
        """The free indices of the equation and the indices of the sums around the reference."""
        return tuple(dict.fromkeys((*self.equation.indices, *self.read.over)))

    def letters(self, axes: Mapping[Array, set[int]]) -> set[str]:
        """The names of the indices that decide which nodes the reference joins (a node is a row, or
        entries without a row): indices in positions on `axes` (array -> axes that distinguish
        nodes) and in the regions, and indices whose ranges depend on each other."""
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
class Span:
    """The first and the last row of a set of rows, for each node; last = -1 for an empty set."""

    first: Integers
    last: Integers

    @classmethod
    def of_rows(cls, rows: int, nodes: int) -> Span:
        """For each of `nodes` nodes, the range of rows that belong to it: row k for node k below
        `rows`, no row (an empty range) for the other nodes, entries without rows."""
        import numpy as np

        first, last = np.full(nodes, rows), np.full(nodes, -1)
        first[:rows] = last[:rows] = np.arange(rows)
        return cls(first, last)

    def at(self, nodes: Integers) -> Span:
        """The sets of rows of the nodes with these numbers."""
        return Span(self.first[nodes], self.last[nodes])

    def widen(self, nodes: Integers, others: Integers) -> bool:
        """Widen the range of rows (first..last) of nodes[k] to include the range of others[k], for
        each k. Returns whether a range changes."""
        import numpy as np

        other = self.at(others)
        if not ((other.first < self.first[nodes]) | (other.last > self.last[nodes])).any():
            return False
        np.minimum.at(self.first, nodes, other.first)
        np.maximum.at(self.last, nodes, other.last)
        return True


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph of reads at given sizes. Nodes 0 .. length - 1 are the rows; each further node is a
    group of entries of an array without a token axis, computed from the same rows."""

    rows: Rows
    sizes: Mapping[str, int]

    @cached_property
    def length(self) -> int:
        """The number of rows."""
        return length(self.rows.system).at(self.sizes)

    @cached_property
    def joints(self) -> Sequence[Joint]:
        """Every reference through which a row may read another row, in the order of the equations,
        with the regions, inside the indices' ranges, where the entry read depends on a token."""
        found = []
        for equation in self.rows.system.equations:
            for read in self.rows.certain(equation) if equation.array in self.rows.places else ():
                around = equation.domain | read.constraints
                regions = regions_that_read(self.rows.system, equation, read)
                found.append(Joint(equation, read, [region - around for region in regions]))
        return found

    @cached_property
    def axes(self) -> Mapping[Array, set[int]]:
        """Array -> the axes whose positions tell its nodes (groups of entries) apart: its token
        axis; without a token axis, the axes on which equations define different parts, or positions
        share indices with nodes or regions, in rounds until no array gets a further axis."""
        found = {
            array: {
                axis
                for axis in range(len(array.shape))
                if (axis_atom(axis) in place.letters if place else not self._alike(array, axis))
            }
            for array, place in self.rows.places.items()
        }
        # an index that tells nodes apart at one end of a reference does so at the other end too
        number = -1
        while number != (number := sum(map(len, found.values()))):
            for joint in self.joints:
                letters = joint.letters(found)
                for array, at in joint.ends:
                    if self.rows.places[array] is None:
                        found[array] |= {k for k, p in enumerate(at) if letters & _letters(p)}
        return found

    def _alike(self, array: Array, axis: int) -> bool:
        """Whether all equations of an array define the same range of positions on an axis."""
        places = {
            (at, *(index for index in equation.indices if index.atom in _letters(at)))
            for equation in self.rows.system.defining[array]
            for at in [equation.positions[axis]]
        }
        return len(places) == 1

    @cached_property
    def node_numbers(self) -> Mapping[Array, range]:
        """Array without a token axis -> the numbers of its nodes, one for each position on the
        axes `self.axes[array]`: from `length` on, behind the rows 0 .. length - 1; as in
        `rows.places`, the array of a later equation comes first."""
        found, free = dict[Array, range](), self.length
        for array, place in self.rows.places.items():
            if place is None:
                found[array] = range(free, free + prod(self._shape(array)))
                free = found[array].stop
        return found

    def _shape(self, array: Array) -> tuple[int, ...]:
        """The extents of the axes that distinguish the nodes of an array."""
        return tuple(max(0, array.shape[k].at(self.sizes)) for k in sorted(self.axes[array]))

    @cached_property
    def number(self) -> int:
        """The number of nodes, rows included."""
        return max((nodes.stop for nodes in self.node_numbers.values()), default=self.length)

    @cached_property
    def joined(self) -> Sequence[tuple[Array, Array, Pairs]]:
        """The edges of the graph, as (reading array, array read, `_pairs`) per reference that
        reads something; Unsupported if reads, entries and pairs of rows are more than `MOST`."""
        number = self.length**2 + self.number
        # all are counted before the pairs of the first reference take memory
        for joint in self.joints:
            number += prod(at.shape) if (at := self._points(joint)) else 0
        _refuse_many(number, "reads, entries and pairs of rows")
        return [
            (joint.equation.array, joint.read.ref.array, self._pairs(joint, at))
            for joint in self.joints
            if (at := self._points(joint))
        ]

    def _points(self, joint: Joint) -> Points | None:
        """The points of the indices that decide which nodes a reference joins; None if another
        index has no value, so that the reference reads nothing."""
        letters, known = joint.letters(self.axes), tuple(sorted(self.sizes.items()))
        kept = tuple(index for index in joint.indices if index.atom in letters)
        others = (points((index,), known) for index in joint.indices if index not in kept)
        return points(kept, known) if all(other.shape[0] for other in others) else None

    def _pairs(self, joint: Joint, at: Points) -> Pairs:
        """The pairs (reading node, node read) of a reference at the points `at`, as two arrays of
        equal length. Points outside the ranges and regions, and entries outside of arrays, are left
        out. A node is a row, from 0 on, or a group of entries without a row (`node_numbers`)."""
        import numpy as np

        inside: Any = np.asarray(False)
        for region in joint.regions:
            inside = inside | reduce(np.logical_and, [at.value(c) >= 0 for c in region], at.mask)
        nodes = []
        for array, positions in joint.ends:
            shape = self._shape(array)
            where, outside = at.entries(
                tuple(positions[k] for k in sorted(self.axes[array])), shape
            )
            node: Any = np.asarray(0)
            for place, extent in zip(where, shape, strict=True):
                node = node * extent + place
            nodes.append(
                node + (self.node_numbers[array].start if array in self.node_numbers else 0)
            )
            inside = inside if outside is None else inside & ~outside
        inside, reading, read = np.broadcast_arrays(inside, *nodes)
        return reading[inside], read[inside]

    @cached_property
    def sources(self) -> Span:
        """For each node (a row, or entries without a row), the first and the last row from which
        the node is computed, a row from itself; widened in rounds until no node's range changes."""
        joined, moved = self.joined, {*self.rows.places}  # refuses large graphs first
        found = Span.of_rows(self.length, self.number)
        while moved:
            before, moved = moved, set[Array]()
            for reading, read, (reading_nodes, nodes_read) in joined:
                # only reads of arrays whose sources grew in this or the last round can widen
                if (
                    reading in self.node_numbers
                    and read in before | moved
                    and found.widen(reading_nodes, nodes_read)
                ):
                    moved.add(reading)
        return found

    @cached_property
    def homes(self) -> Integers:
        """The row to which each node (a row, or entries of an array without a token axis) belongs,
        by node number; -1 for transparent entries (their array has an entry with readers on both
        sides of its rows) and for entries without rows or readers. Arrays are visited from the last
        to the first, so that the row of a reading entry is known before that of the entry read."""
        import numpy as np

        made, readers = self.sources, Span.of_rows(self.length, self.number)
        homes = np.full(self.number, -1)
        homes[: self.length] = np.arange(self.length)
        for array, nodes in self.node_numbers.items():
            for reading, read, (reading_nodes, nodes_read) in self.joined:
                if read is array and reading is not array:
                    readers.widen(nodes_read, reading_nodes)
            own = np.arange(nodes.start, nodes.stop)
            own = own[(made.last[own] >= 0) & (readers.last[own] >= 0)]
            nearest = _nearest(made.at(own), readers.at(own))
            if nearest is not None:  # as readers, these entries count as their row from here on
                homes[own] = readers.first[own] = readers.last[own] = nearest
        return homes

    @cached_property
    def reads(self) -> Sequence[int]:
        """For each row, the bit set of the rows that it reads, directly or through transparent
        entries (those that belong to no row: their readers read all rows they are computed from).
        Pairs of two rows fill a matrix at once; pairs with a transparent entry pass its rows on
        until no bit set grows. Unsupported if the bit sets need more than `MOST` words."""
        import numpy as np

        # transparent entries with rows are numbered behind the rows; all other entries count
        # nowhere
        rows, homeless = self.length, np.flatnonzero((self.homes < 0) & (self.sources.last >= 0))
        _refuse_many(homeless.size * -(-rows // 64), "words for the rows that entries are made of")
        place = self.homes.copy()
        place[homeless] = rows + np.arange(homeless.size)
        at_once, others = np.zeros((rows, rows), dtype=bool), dict[tuple[int, int], None]()
        for _, _, pairs in self.joined:
            reading, read = (place[nodes] for nodes in pairs)
            plain = (reading < rows) & (read < rows) & (reading >= 0) & (read >= 0)
            at_once[reading[plain], read[plain]] = True
            rest = ~plain & (reading >= 0) & (read >= 0)
            # each pair as one number, to drop duplicates; places are below the number of nodes
            codes = np.unique(reading[rest] * self.number + read[rest])
            others.update(dict.fromkeys(divmod(code, self.number) for code in codes.tolist()))
        packed = np.packbits(at_once, axis=1, bitorder="little")
        found = [int.from_bytes(row.tobytes(), "little") for row in packed] + [0] * homeless.size
        changed = True
        while changed:
            changed = False
            for one, other in others:
                handed = found[other] if other >= rows else 1 << other
                if handed & ~found[one]:
                    found[one] |= handed
                    changed = True
        return found[: self.length]


def _letters(position: Position) -> frozenset[str]:
    """The letters (indices and sizes) of a position; none for a gathered position."""
    return frozenset() if isinstance(position, Gather) else position_value(position).letters


def _nearest(made: Span, readers: Span) -> Integers | None:
    """For each entry, the row nearest to its readers among the rows that the entry is computed
    from. None unless all readers lie at or after the rows of their entries, or all at or before
    them."""
    if (made.last <= readers.first).all():
        return made.last
    return made.first if (readers.last <= made.first).all() else None


def _furthest(reads: Sequence[int]) -> int:
    """The largest distance in hops, along reads, from a row to a row that it reaches; 0 if no row
    reads another, 2 for [0b001, 0b001, 0b010]. `reads`: for each row, the bit set of the rows that
    it reads. Each round adds to each row's set the rows one hop further, until no set grows."""
    reached, grew = [1 << row for row in range(len(reads))], [True] * len(reads)
    read = [_rows(rows & ~own, len(reads)) for rows, own in zip(reads, reached, strict=True)]
    for hops in count():
        wider = []
        for rows, others in zip(reached, read, strict=True):
            for other in others:
                if grew[other]:
                    rows |= reached[other]
            wider.append(rows)
        grew = [one != other for one, other in zip(reached, wider, strict=True)]
        if not any(grew):
            return hops
        reached = wider
    raise AssertionError


def _rows(bits: int, number: int) -> Sequence[int]:
    """The members, in ascending order, of a bit set with `number` bits: [0, 2] for 0b101."""
    import numpy as np

    octets = np.frombuffer(bits.to_bytes(-(-number // 8), "little"), dtype=np.uint8)
    found: Sequence[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return found


def _refuse_many(number: int, what: str) -> None:
    """Raise Unsupported if `number` exceeds `MOST`; `what` says what is counted."""
    if number > MOST:
        raise Unsupported(
            f"{number:,} {what} at these sizes, and at most {MOST:,} are followed: choose smaller "
            "sizes"
        )


def furthest_apart(system: System, sizes: Mapping[str, int]) -> int:
    """The number of hops between the two positions furthest apart, at these sizes; in a hop, a row
    reads another row.

    Raises:
        Unsupported: more reads than `MOST`; an array of which several axes may count the rows; or a
            read among entries without a row, at a position that data choose.
    """
    return _furthest(Graph(rows_on_axes(system), dict(sizes)).reads)
