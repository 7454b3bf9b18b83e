"""Which chain leads to a row far into a loop? Steps to one of the first rows, then a block of steps
that repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.language.nodes import Array
from costmodel.paths.chains import Chain, Passage, Repeat, Step
from costmodel.symbolic.piecewise_max import Depth, Level
from costmodel.symbolic.polynomial import Poly

RowDepths = Mapping[Array, Depth]
"""Array -> depths in sizes alone; the largest is the array's depth in one row of a loop."""


@dataclass(frozen=True)
class Way:
    """How a chain goes on through a loop whose rows are all alike: by an array that goes on from
    itself, and through the last rows from this array to the one asked for."""

    array: Array
    row: Chain
    tail: tuple[Chain, ...] = ()


def ways_on(following: RowDepths) -> Mapping[Array, Way | None]:
    """Array whose chain is carried -> how the chain goes on from row to row; None where it goes on
    from several arrays in turns."""
    chains = {array: _chain(levels) for array, levels in following.items()}
    via = {array: chain.via for array, chain in chains.items() if chain}
    return {array: _way(array, via) for array in via}


def _way(array: Array, via: Mapping[Array, tuple[Array, Chain] | None]) -> Way | None:
    tail: list[Chain] = []
    while len(tail) <= len(via):
        step = via.get(array)
        if step is None:
            return None
        origin, row = step
        if origin is array:
            return Way(array, row, tuple(tail))
        tail.insert(0, row)
        array = origin
    return None


@dataclass(frozen=True)
class RowChains:
    """The chains to the rows after the last one that was worked out.

    `rows` are those worked out; `beyond` are as many rows after them as the longest tail has.
    """

    ways: Mapping[Array, Way | None]
    rows: Sequence[RowDepths]
    beyond: Sequence[RowDepths]

    def to(self, array: Array, further: Poly) -> Chain | None:
        """The chain to an array in a row that comes some rows after the last one; None where no
        chain is carried."""
        if array not in self.ways:
            return None
        way = self.ways[array]
        if way is None:
            return Chain(
                lost="the longest chain through the rows of a loop changes from row to row"
            )
        chains = [_chain(row.get(way.array, ())) or Chain() for row in self.rows]
        since = last = len(chains) - 1
        while since and chains[since].via == (way.array, way.row):
            since -= 1
        block = tuple(step for step in way.row.steps if isinstance(step, Step))
        times = further + (last - since - len(way.tail))
        tail = [step for row in way.tail for step in row.steps]
        later = (*chains[since].steps, Repeat(times, block), *tail)
        rows = (self.rows[last], *self.beyond)[: len(way.tail)]
        early = [_chain(row.get(array, ())) or Chain() for row in rows]
        passage = Passage(further, tuple(chain.steps for chain in early), later)
        nested = "a loop inside a row of a loop" if len(block) < len(way.row.steps) else ""
        return Chain((passage,), way.row.ties, lost=nested)


def _chain(levels: Depth) -> Chain | None:
    """The chain of the deepest level, at large sizes if none are given."""
    chains = [(level.depth, level.witness) for level in levels if isinstance(level.witness, Chain)]
    if len(chains) < 2:
        return chains[0][1] if chains else None
    return chains[chains[0][1].ties.largest(tuple(depth for depth, _ in chains))][1]


def going_further(level: Level, rate: Level) -> Level:
    """A depth of the row before and what goes on from it."""
    chain = None
    if isinstance(row := rate.witness, Chain):
        chain = row.after(level.witness if isinstance(level.witness, Chain) else None)
    return Level(level.depth + rate.depth, level.where, chain)
