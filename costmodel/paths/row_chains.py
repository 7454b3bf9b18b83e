"""The longest path to a row far into a loop: steps to one of the first rows, then a repeated block
of steps."""

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
    """How a chain repeats through a loop of identical rows: `array` continues from itself by the
    steps `row`; `tail` leads through the last rows from `array` to the array asked for."""

    array: Array
    row: Chain
    tail: tuple[Chain, ...] = ()


def ways_on(following: RowDepths) -> Mapping[Array, Way | None]:
    """Array -> how its chain repeats from row to row; None if several arrays alternate. Arrays
    without a chain are left out."""
    chains = {array: _chain(levels) for array, levels in following.items()}
    via = {array: chain.via for array, chain in chains.items() if chain}
    return {array: _way(array, via) for array in via}


def _way(array: Array, via: Mapping[Array, tuple[Array, Chain] | None]) -> Way | None:
    """Follow `via` back from an array to one that continues from itself; None if there is none."""
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
    """The chains to the rows after the last row that was computed one by one. `rows` are the
    computed rows; `beyond` are as many further rows as the longest tail has."""

    ways: Mapping[Array, Way | None]
    rows: Sequence[RowDepths]
    beyond: Sequence[RowDepths]

    def to(self, array: Array, further: Poly) -> Chain | None:
        """The chain to an array in the row `further` rows after the last computed row; None if
        chains are not carried."""
        if array not in self.ways:
            return None
        way = self.ways[array]
        if way is None:
            return Chain(lost="the longest chain through a recurrence changes from row to row")
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
        nested = (
            "a recurrence inside a row of another recurrence"
            if len(block) < len(way.row.steps)
            else ""
        )
        return Chain((passage,), way.row.ties, lost=nested)


def _chain(levels: Depth) -> Chain | None:
    """The chain of the deepest level, with ties broken at the chain's sizes."""
    chains = [(level.depth, level.witness) for level in levels if isinstance(level.witness, Chain)]
    if len(chains) < 2:
        return chains[0][1] if chains else None
    return chains[chains[0][1].ties.largest(tuple(depth for depth, _ in chains))][1]


def going_further(level: Level, rate: Level) -> Level:
    """A depth of the previous row plus `rate`, the depth that a row adds; their chains are
    joined."""
    chain = None
    if isinstance(row := rate.witness, Chain):
        chain = row.after(level.witness if isinstance(level.witness, Chain) else None)
    return Level(level.depth + rate.depth, level.where, chain)
