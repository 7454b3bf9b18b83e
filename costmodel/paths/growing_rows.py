"""The depths (longest paths of operations) of rows of a loop, where each row depends on the row
before.

Rows are computed one by one until all arrays become deeper by one constant per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.errors import Unsupported
from costmodel.language.nodes import Array
from costmodel.paths.row_chains import RowChains, RowDepths, going_further, row_ways
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.piecewise_max import Depth, Level, is_at_least, pruned
from costmodel.symbolic.polynomial import Poly, axis_atom

ROWS_WORKED_OUT = 4
"""The number of rows that are computed one by one before `growing_rows` gives up."""


ROW = axis_atom("row")
"""The row number of a loop, as a variable in the depths of the loop's arrays."""


Steps = Mapping[Array, Sequence[tuple[Array, Level]]]
"""Array of a loop -> the ways to it from the previous row, each as (array of the previous row,
depth that is added)."""


@dataclass(frozen=True)
class GrowingRows:
    """The depths of consecutive rows of a loop, and of all rows after them."""

    rows: Sequence[RowDepths]
    rate: Poly | None
    """The depth that each row after the last of `rows` adds; None if no row depends on the last
    one."""
    chains: RowChains
    """The longest paths to the rows after the last of `rows`."""

    def levels(self, low: Poly, where: Constraints) -> Iterator[tuple[Array, Level]]:
        """Yield the depths of all rows of the loop as (array, level), where a level is a depth in
        the row number `#row` and its conditions; `low` is the number of the first of `rows`, and
        `where` the conditions on sizes under which the rows exist."""
        for number, row in enumerate(self.rows):
            here = Poly.atom(ROW) - low - number  # how many rows `#row` lies behind this row
            going_on = self.rate if number == len(self.rows) - 1 else None
            # this row and all after it, or this row alone
            these = where | ({here} if going_on is not None else {here, -here})
            for array, depths in row.items():
                for level in depths:
                    if going_on is None:
                        yield array, level.under(these)
                    else:
                        chain = self.chains.to(array, here)
                        yield array, Level(level.depth + here * going_on, these, chain)


def growing_rows(steps: Steps, entering: Sequence[RowDepths]) -> GrowingRows:
    """The depths of consecutive rows of a loop: of all rows of `entering` (for each row, array ->
    depths from outside the loop), and of further rows until all deepen by one rate or none follows.
    `steps`: array -> (array of the previous row, depth that is added) for each way from row to row.

    Raises:
        Unsupported: there is no common rate after `ROWS_WORKED_OUT` further rows.
    """
    known: list[RowDepths] = []
    while len(known) < len(entering) + ROWS_WORKED_OUT:
        row = dict(_next_depths(known[-1], steps)) if known else {}
        for array, depths in entering[len(known)].items() if len(known) < len(entering) else ():
            row[array] = deepest((*row.get(array, ()), *depths))
        known.append(row)
        if len(known) < len(entering):
            continue
        following = _next_depths(row, steps)
        rate = _rate(row, following)
        if rate is None and following:  # the arrays do not deepen alike yet: one more row
            continue
        ways, beyond = row_ways(following), [following]
        longest = max((len(way.tail) for way in ways.values() if way), default=0)
        while len(beyond) < longest:  # as many further rows as the longest tail needs
            beyond.append(_next_depths(beyond[-1], steps))
        return GrowingRows(known, rate, RowChains(ways, known, beyond))
    names = ", ".join(array.name for array in steps)
    raise Unsupported(
        f"{names}: the longest chains of operations do not come to gain equally many operations a "
        f"row within the first {len(known)} rows, and no formula is derived from later rows"
    )


def deepest(depths: Iterable[Level]) -> Depth:
    """The maximum of several depths in sizes alone."""
    return pruned(frozenset(), depths)


def _next_depths(before: RowDepths, steps: Steps) -> RowDepths:
    """The depths of a loop's next row, for arrays that read a row with the depths `before`: the
    largest of the depths of arrays read there, each plus the depth added on the way (`steps`)."""
    found = {
        array: deepest(
            going_further(level, added)
            for origin, added in sources
            for level in before.get(origin, ())
        )
        for array, sources in steps.items()
    }
    return {array: depths for array, depths in found.items() if depths}


def _rate(row: RowDepths, following: RowDepths) -> Poly | None:
    """The depth, a polynomial, by which every array of the row `following` is deeper than in `row`;
    None if the rows have different arrays or no such depth is proven."""
    if row.keys() != following.keys():
        return None
    # a common rate is a difference of two levels of any one array: the first
    rates = [
        deep.depth - level.depth for a in list(row)[:1] for deep in following[a] for level in row[a]
    ]
    return next(
        (
            rate
            for rate in rates
            if all(
                _equally_deep(following[a], tuple(level + rate for level in row[a])) for a in row
            )
        ),
        None,
    )


def _equally_deep(one: Depth, two: Depth) -> bool:
    """Whether two maxima of depths, whose levels have no conditions in a loop, are proven to be
    equal at all sizes: each level is at most some level of the other maximum."""
    return all(
        any(is_at_least(frozenset(), rival.depth, level.depth) for rival in rivals)
        for levels, rivals in ((one, two), (two, one))
        for level in levels
    )
