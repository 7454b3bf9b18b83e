"""Which parts of what was computed do operations read together, and which is each read alone?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

from costmodel.language.equations import Equation
from profiler.reconcile.allocations.formulas import Key
from profiler.reconcile.allocations.reading import Part, multiplies, operands, part_of
from profiler.reconcile.allocations.rows import Operation, Rows


@dataclass(eq=False)
class Reads:
    """What the operations of a forward pass read at once.

    Args:
        order: the equations in the order in which they run; what runs with the rows of one loop is
            one step.
        loops: such a step -> the rows.
        in_place: what overwrites an operand that stands on the way to it.
    """

    order: Sequence[Operation]
    loops: Mapping[Operation, Rows]
    sizes: Mapping[str, int]
    in_place: AbstractSet[Equation]
    known: dict[frozenset[Key], bool] = field(default_factory=dict)
    """Parts -> whether each is read alone, as far as that was asked."""

    @cached_property
    def together(self) -> set[frozenset[Part]]:
        """What operations read together, of each operand."""
        found = (nodes for o in self._kinds for one in self.parts(o) for nodes in operands(one))
        return {frozenset(map(part_of, nodes)) for nodes in found}

    def alone(self, parts: Collection[Key]) -> bool:
        """Whether no operation reads several of some parts."""
        keys = frozenset(parts)
        if keys not in self.known:
            self.known[keys] = all(len(read & keys) < 2 for read in self.together)
        return self.known[keys]

    def parts(self, operation: Operation) -> Sequence[Operation]:
        """An operation, or its equations one by one, where they overwrite only some parts of what
        was computed together."""
        return self._apart.get(operation, [operation])

    @cached_property
    def _apart(self) -> Mapping[Operation, Sequence[Operation]]:
        """The operations whose equations run one by one, each with these."""
        found: dict[Operation, Sequence[Operation]] = {}
        together: dict[Part, set[Part]] = {}
        for operation in self._kinds:
            if not self.in_place.isdisjoint(operation) and not multiplies(operation[0].value):
                parts = [{*map(part_of, nodes)} for nodes in operands(operation)]
                if any(together.get(part, read) != read for read in parts for part in read):
                    found[operation] = [(e,) for e in operation]
            for one in found.get(operation, [operation]):
                own: set[Part] = {(e.array,) for e in one}
                for part in own:
                    together[part] = own
        return found

    @cached_property
    def _kinds(self) -> list[Operation]:
        """The operations, those once that rows share."""
        found: list[Operation] = []
        for step in self.order:
            rows = self.loops.get(step)
            found += [step] if rows is None else replace(rows, sizes=self.sizes).kinds()
        return found
