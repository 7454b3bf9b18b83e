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
    """How the longest chain to an array repeats through a loop of identical rows: from row to row
    it stays at `array`, by the steps `row`; over the last rows it leads from there to the array
    asked for, by one chain of `tail` per row."""

    array: Array
    row: Chain
    tail: tuple[Chain, ...] = ()


def row_ways(following: RowDepths) -> Mapping[Array, Way | None]:
    """Array -> how the longest chain (path of steps) to it repeats from row to row of a loop; None
    if the chain alternates between arrays. `following` is a row whose depths come from the row
    before; arrays without a chain are left out."""
    chains = {array: _chain(levels) for array, levels in following.items()}
    via = {array: chain.via for array, chain in chains.items() if chain}
    return {array: _way(array, via) for array in via}


def _way(array: Array, via: Mapping[Array, tuple[Array, Chain] | None]) -> Way | None:
    """How the longest chain to an array repeats: `via` (array -> its origin in the previous row,
    chain between) leads back to an array that is its own origin; None if it leads to none."""
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
        """The chain to an array in the row `further` rows after the last row computed one by one: a
        chain to a computed row, the steps of one row repeated, and those of the last rows (`tail`):
        `mul` to row 1, then `[mul add]` for each row, of y[1] = x[1]*a, y[i] = y[i-1]*x[i] + x[i].
        None for an array without chains. A chain with a reason in `lost` if it alternates between
        arrays, or a row contains another recurrence."""
        if array not in self.ways:
            return None
        way = self.ways[array]
        if way is None:
            return Chain(lost="the longest chain through a recurrence changes from row to row")
        chains = [_chain(row.get(way.array, ())) or Chain() for row in self.rows]
        since = last = len(chains) - 1
        # the computed rows at the end that repeat already are counted as repetitions
        while since and chains[since].via == (way.array, way.row):
            since -= 1
        block = tuple(step for step in way.row.steps if isinstance(step, Step))
        # of all rows after row `since`, the last ones belong to the tail
        times = further + (last - since - len(way.tail))
        tail = [step for row in way.tail for step in row.steps]
        repeated = (Repeat(times, block),) if block else ()  # a row may copy the row before
        later = (*chains[since].steps, *repeated, *tail)
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
    """The chain of the deepest level (the first of equally deep ones); the sizes of the chains'
    `ties` decide which is the deepest. None if no level has a chain."""
    chains = [(level.depth, level.witness) for level in levels if isinstance(level.witness, Chain)]
    if len(chains) < 2:
        return chains[0][1] if chains else None
    return chains[chains[0][1].ties.largest(tuple(depth for depth, _ in chains))][1]


def going_further(level: Level, rate: Level) -> Level:
    """A level (a depth, its conditions, its chain of steps) of the previous row plus `rate`, the
    depth that a row adds, with the chain of the row appended."""
    chain = None
    if isinstance(row := rate.witness, Chain):
        chain = row.after(level.witness if isinstance(level.witness, Chain) else None)
    return Level(level.depth + rate.depth, level.where, chain)
