"""The largest depth of an entry at given sizes, by visiting all entries.

The fallback if no formula is derived: equations are unrolled over the grids of their indices as in
`evaluate`, with depths in place of values, which gives the longest path in the graph of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from math import prod
from typing import Any

from costmodel.errors import Unsupported
from costmodel.language.equations import System
from costmodel.language.functions import TABLE
from costmodel.language.nodes import (
    MERGE_SORT,
    Add,
    Along,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Gather,
    Maximum,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Scan,
    Select,
    Sub,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.paths.alike import alike, number_of
from costmodel.program.dependence import Read, anywhere
from costmodel.program.grid import EACH_ROW, Budget, Grid, in_turn, points
from costmodel.program.phases import iteration_domains
from costmodel.program.recurrences import blocks

NOTHING = -1
"""The depth of an empty sum; adding an empty sum or multiplying by it is no operation."""


@dataclass
class Depths:
    """The depths of expressions at given sizes.

    With `steps`, a sum, transform or selection counts as 1 step in place of its levels (ceil(log2
    R) of a sum of R terms). A depth over a grid is an integer, or an array of integers that is
    broadcastable to the grid. `budget` limits the points that are visited. Sizes in `alike` count
    entries of one depth: a grid has one of these entries, and `sizes` gives their number.
    """

    system: System
    sizes: Mapping[str, int]
    steps: bool
    alike: frozenset[str] = frozenset()
    budget: Budget = field(default_factory=Budget)

    def of(self, grid: Grid, node: Node) -> Any:
        """The depth of an expression at the points of a grid (all values of the indices around it);
        `NOTHING` at points where it is an empty sum."""
        return RULES[type(node)](self, grid, node)


def _ready(depths: Depths, grid: Grid, node: Node) -> Any:
    """Depth 0: the value exists before the phase."""
    return 0


def _ref(depths: Depths, grid: Grid, node: Ref) -> Any:
    """The depth of the entry that a reference reads, at every point of the grid (all values of the
    indices around it); 0 outside of the array. Of a gather (x[p[i]], a position that is itself
    read), the depth of the deepest entry that it may read, or of its position if that is deeper."""
    import numpy as np

    array = grid.known[node.array.name]
    if not array.size:
        return 0
    if gathers := [p.at for p in node.positions if isinstance(p, Gather)]:
        there = reduce(np.maximum, (depths.of(grid, at) for at in gathers))
        # where all entries have depth 0, none is deeper than its position
        return np.maximum(there, _gathered(depths, grid, node)) if array.any() else there
    where, outside = grid.points.entries(node.positions, array.shape)
    return array[where] if outside is None else np.where(outside, 0, array[where])


def _gathered(depths: Depths, grid: Grid, node: Ref) -> Any:
    """The largest depth of the entries that a gather, x[p[i]], may read."""
    read = anywhere(depths.system, Read(node, ()))
    return _terms(depths, grid, Reduce("max", read.ref, read.over))[0]


def _product(depths: Depths, grid: Grid, node: Mul | Div) -> Any:
    """The depth of a product or quotient: 1 more than the deeper operand; -1 (`NOTHING`) where an
    operand is an empty sum."""
    import numpy as np

    left, right = (depths.of(grid, child) for child in node.children)
    nothing = np.minimum(left, right) == NOTHING
    return np.where(nothing, NOTHING, np.maximum(left, right) + 1)


def _sum(depths: Depths, grid: Grid, node: Add | Sub) -> Any:
    """The depth of a sum or difference: 1 more than the deeper operand; the depth of the other
    operand where one is an empty sum."""
    import numpy as np

    left, right = (depths.of(grid, child) for child in node.children)
    return np.maximum(left, right) + (np.minimum(left, right) != NOTHING)


def _maximum(depths: Depths, grid: Grid, node: Maximum) -> Any:
    """The depth of a maximum of two: 1 more than the deeper operand; an empty sum has depth 0."""
    import numpy as np

    left, right = (depths.of(grid, child) for child in node.children)
    return np.maximum(np.maximum(left, right), 0) + 1


def _same(depths: Depths, grid: Grid, node: Neg | FreeScale) -> Any:
    return depths.of(grid, node.body)


def _call(depths: Depths, grid: Grid, node: Call) -> Any:
    """The depth of a function: the operand's depth (0 for an empty sum) plus the number of the
    function's steps."""
    import numpy as np

    return np.maximum(depths.of(grid, node.body), 0) + len(TABLE[node.function].steps)


def _reduce(depths: Depths, grid: Grid, node: Reduce) -> Any:
    """The depths of a sum or maximum, an integer for each point of the grid: ceil(log2 R) levels
    (1 if `depths.steps`) after the deepest of R terms; -1 (`NOTHING`) without terms."""
    import numpy as np

    found = [_terms(depths, grid, part) for part in node.parts]
    top = reduce(np.maximum, (latest for latest, _ in found))
    terms = sum(number for _, number in found)
    # frexp gives the bit length of R - 1, which is ceil(log2 R)
    levels = 1 if depths.steps else np.frexp(np.maximum(terms, 1) - 1)[1]
    return np.where(terms > 0, top + levels, NOTHING)


def _terms(depths: Depths, grid: Grid, node: Reduce | Along) -> tuple[Any, Any]:
    """(depth of the deepest term, number of terms) of a node whose indices have one range each, at
    every point of the grid (all values of the indices around it); (-1, 0) without terms."""
    import numpy as np

    inner = grid.extended(node.over)
    at = inner.points
    depths.budget.spend(at)
    body = reduce(np.maximum, (depths.of(inner, operand) for operand in node.children))
    body = np.broadcast_to(body if at.full else np.where(at.mask, body, NOTHING), at.shape)
    axes = tuple(range(len(grid.points.indices), len(at.indices)))
    # one value of an index stands for all values alike, whose number is counted
    counted = (number_of(index, depths.alike) for index in node.over)
    copies = prod(number.at(depths.sizes) for number in counted if number)
    return body.max(axis=axes, initial=NOTHING), (body != NOTHING).sum(axis=axes) * copies


def _bracket(depths: Depths, grid: Grid, node: Bracket) -> Any:
    """The depth of a bracket: the deepest of its body, both sides of its condition, and its
    alternative. Unsupported for the first of several points (`first`): values decide which."""
    import numpy as np

    if node.first:
        raise Unsupported(
            f"the depth of the gradient of a maximum over "
            f"{', '.join(index.name for index in node.first)} depends on values: ask for phase "
            "training"
        )
    return reduce(np.maximum, (depths.of(grid, child) for child in node.children))


def _along(depths: Depths, grid: Grid, node: Along) -> Any:
    """The depth of a transform or scan: its levels, or 1 step, after its deepest operand."""
    latest, _ = _terms(depths, grid, node)
    return latest + (1 if depths.steps else node.levels.at(depths.sizes))


def _select(depths: Depths, grid: Grid, node: Select) -> Any:
    """The depth of a selection among R entries, for all positions kept: after the deepest entry
    1 step, or the levels of a merge sort, a bitonic sort, or a knockout per position kept (the
    index `node.rank` numbers these positions). frexp gives ceil(log2 R)."""
    import numpy as np

    latest, number = _terms(depths, grid, node.maximum)
    if depths.steps:
        return latest + 1
    levels = np.frexp(np.maximum(number, 1) - 1)[1]
    if node.kind == MERGE_SORT:
        return latest + 2**levels + levels - 1
    if node.sorts:
        return latest + levels * (levels + 1) // 2
    at = grid.points
    axis = tuple(k for k, index in enumerate(at.indices) if index.atom == node.rank)
    kept = np.broadcast_to(at.mask, at.shape).sum(axis=axis, keepdims=True) if axis else 1
    return latest + levels * kept


RULES: Rules[Callable[..., Any]] = Rules(
    "a search",
    {
        Constant: _ready,
        Ref: _ref,
        Add: _sum,
        Sub: _sum,
        Mul: _product,
        Div: _product,
        Maximum: _maximum,
        Neg: _same,
        FreeScale: _same,
        Call: _call,
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: _along,
        Scan: _along,
        Select: _select,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> its depth over a grid of points."""


@cache
def _deepest(system: System, phase: str, sizes: tuple[tuple[str, int], ...], steps: bool) -> int:
    """The largest depth of the entries that a phase computes, cached by sizes: every array is
    filled with the depths of its entries, equation by equation, one entry for all that are alike
    (the sizes `one_of` count such entries, and are 1 in `at`); arrays that the phase does not
    compute keep depth 0. `steps`: a sum, transform or selection has depth 1."""
    import numpy as np

    one_of = alike(system)
    depths = Depths(system, dict(sizes), steps, one_of)
    at = {letter: 1 if letter in one_of else size for letter, size in sizes}
    sizes = tuple(at.items())
    arrays = {*system.mixer.arrays.values(), *(e.array for e in system.equations)}
    shapes = {a.name: [max(0, extent.at(at)) for extent in a.shape] for a in arrays}
    depths.budget.count(sum(map(prod, shapes.values())))
    known = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}  # the depths
    computed = {part.equation.array for part in iteration_domains(system, phase)}
    for block in blocks(system):
        if computed.isdisjoint(equation.array for equation in block.equations):
            continue
        depths.budget.count(EACH_ROW * block.rows(at) * len(block.equations))
        for equation in in_turn(block, at):
            grid = Grid(points(equation.indices, sizes), known)
            depths.budget.spend(grid.points)
            # an entry that is an empty sum, of depth -1 (`NOTHING`), exists at depth 0
            grid.put(equation, np.maximum(depths.of(grid, equation.value), 0))
    return max((int(known[array.name].max(initial=0)) for array in computed), default=0)


def deepest(system: System, phase: str, sizes: Mapping[str, int], *, steps: bool = False) -> int:
    """The largest depth of the entries that a phase computes, at the given sizes. With `steps`, a
    sum, transform or selection has depth 1 in place of its levels.

    Raises:
        Unsupported: the phase is inference, there are too many entries to visit, or a depth
            depends on values.
    """
    if phase == "inference":
        raise Unsupported(
            "paths are searched in whole sequences, not for one new token: ask for phase training"
        )
    # depths do not depend on the batch: all batches share one entry of the cache
    of_one = {letter: size for letter, size in sizes.items() if letter != "b"}
    return _deepest(system, phase, tuple(sorted(of_one.items())), steps)
