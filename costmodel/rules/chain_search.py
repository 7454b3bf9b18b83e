"""Which of two chains is the longer one, and what is known of the chains to every array?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from costmodel.constraints import Constraints, Unsupported, infeasible, variables_of
from costmodel.equations import Equation, System
from costmodel.expressions import Array, Binary, Node, Ref
from costmodel.loops import Block
from costmodel.phases import Instances
from costmodel.polynomial import Poly
from costmodel.presence import both, may_be_empty
from costmodel.projections import projected
from costmodel.rules.chains import Chain
from costmodel.rules.depths import Depths
from costmodel.rules.levels import dominates
from costmodel.rules.sequential import steps_of

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Loop:
    """A loop some of whose rows are worked out."""

    block: Block
    later: Sequence[Instances]
    rows: list[Mapping[Array, Chain]]


@dataclass(frozen=True)
class Search:
    """The chains of a phase, array by array.

    Args:
        sizes: numbers that break ties by span; without them only proven differences do.
        alike: whether all entries of an array have equally many steps before them.
        rules: how a chain goes on through each kind of node.
    """

    system: System
    phase: str
    sizes: Sizes | None
    alike: bool
    rules: Mapping[type[Node], Callable[..., Chain]]
    arrays: dict[Array, Chain] = field(default_factory=dict)
    """The longest chain to any entry."""
    parts: dict[Array, list[Instances]] = field(default_factory=dict)
    loops: dict[Array, Loop] = field(default_factory=dict)
    at_row: dict[tuple[Array, Poly], Chain] = field(default_factory=dict)
    """The longest chain to the entries of one row of a loop."""
    in_region: dict[tuple[Array, Constraints], Chain] = field(default_factory=dict)
    """The longest chain to the entries in a region, in the axes of the array, where they differ."""
    before: dict[tuple[Equation, Ref], Chain] = field(default_factory=dict)
    """While a row of a loop is worked out: what a reference to the row before goes on from."""
    open: set[Array] = field(default_factory=set)
    """The arrays of which a single row is being worked out."""

    @property
    def steps(self) -> Depths:
        """After how many steps every entry is known."""
        return steps_of(self.system, self.phase)

    def reads(self, ref: Ref, around: Constraints) -> bool:
        """Whether a reference reads an entry, at some point, that this phase computes."""
        if ref.array not in self.arrays:
            return False
        return self.alike or any(self.exists(p) for p in self.steps.fresh(ref, around))

    def longer(self, first: Chain, second: Chain, *, alike: bool = False) -> Chain:
        """The chain with more steps, then the larger span, then the first.

        `alike`: they go through the same nodes, at two ranges of a union, and are no tie.
        """
        steps = self._sign(second.length - first.length)
        if steps:
            return second if steps > 0 else first
        ties = None
        if first.ties is not None and second.ties is not None:
            ties = max(first.ties, second.ties) if alike else first.ties + second.ties
        if self.sizes is None:
            larger = not dominates(frozenset(), first.deepest, second.deepest) and dominates(
                frozenset(), second.deepest, first.deepest
            )
        else:
            at = dict(self.sizes)
            larger = second.deepest.at(at) > first.deepest.at(at)
        chosen = second if larger else first
        return Chain(chosen.steps, chosen.levels, ties, chosen.origin, chosen.before)

    def _sign(self, difference: Poly) -> int:
        """-1, 0 or 1; without sizes, what holds for large ones."""
        if self.sizes is not None or difference.constant() is not None:
            number = difference.at(dict(self.sizes or ()))
        else:
            number = difference.at(large(difference.letters))
        return (number > 0) - (number < 0)

    def carried_out(self, node: Binary, part: Instances, around: Constraints) -> bool:
        """Whether both sides of an operation are there at some point."""
        if not may_be_empty(part.equation):
            return True
        return any(self.somewhere(part, around | place) for place in both(node, around))

    def somewhere(self, part: Instances, around: Constraints) -> bool:
        """Whether some point with these constraints exists, at the sizes or at some sizes."""
        return not may_be_empty(part.equation) or self.exists(around)

    def exists(self, points: Constraints) -> bool:
        """Whether there is any point, at the sizes or at some sizes."""
        if self.sizes is None:
            return not infeasible(points)
        conditions = projected(points, sorted(variables_of(points), reverse=True))
        return all(c.rational(dict(self.sizes)) >= 0 for c in conditions)

    def chain(self, node: Node, part: Instances, around: Constraints) -> Chain:
        """The longest chain that ends in an expression."""
        try:
            rule = self.rules[type(node)]
        except KeyError:
            raise Unsupported(f"{type(node).__name__} has no rule in critical_path") from None
        return rule(self, node, part, around)


LARGE = 2**20
"""The size at which lengths are compared that no number was given for."""


def large(letters: Iterable[str]) -> dict[str, int]:
    """Large sizes, a sequence being longer still: it has many windows, and many chunks."""
    huge = {"l": LARGE**2, "t": LARGE**2, "d": LARGE * 2**8}
    return {letter: huge.get(letter, LARGE) for letter in letters}
