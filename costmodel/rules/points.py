"""At which points of a domain is an expression evaluated?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodel.constraints import Constraints
from costmodel.domains import total
from costmodel.equations import Equation
from costmodel.exact import Exact
from costmodel.expressions import Binary, Joined, Node, Reduce
from costmodel.indices import Index
from costmodel.polynomial import Poly
from costmodel.presence import EVERYWHERE, Places, both, may_be_empty, present

ONE = Poly.of(1)


@dataclass(frozen=True)
class Points:
    """Where an expression is evaluated: variables (outer first) and their constraints."""

    equation: Equation
    variables: tuple[str, ...]
    constraints: Constraints
    accounting: str

    def number(self, places: Places = EVERYWHERE) -> Exact:
        """How many points there are, at some places among them."""
        result = Exact()
        for place in places:
            result = result + total(self.variables, self.constraints | place, ONE)
        return result

    def present(self, node: Node) -> Places:
        """Where among the points an expression is no sum over no term."""
        return present(node, self.constraints) if may_be_empty(self.equation) else EVERYWHERE

    def carried_out(self, node: Binary) -> Exact:
        """At how many points both sides of an operation are there."""
        return self.number(
            both(node, self.constraints) if may_be_empty(self.equation) else EVERYWHERE
        )

    def inside(self, over: tuple[Index, ...]) -> Points:
        """The points of an expression under a reduction."""
        constraints = self.constraints.union(*(index.constraints for index in over))
        variables = self.variables + tuple(index.atom for index in over)
        return replace(self, variables=variables, constraints=constraints)

    def under(self, node: Node) -> Iterator[tuple[Node, Points]]:
        """What stands inside a node, with its points: the terms of a union, range by range."""
        if isinstance(node, (Reduce, Joined)):
            for part in node.parts:
                yield part.body, self.inside(part.over)
            return
        for child in node.children:
            yield child, self
