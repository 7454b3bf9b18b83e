"""At which points of a domain is an expression evaluated?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.domains import Constraints, Exact, total
from costmodel.equations import Equation
from costmodel.expressions import Index
from costmodel.polynomial import Poly

ONE = Poly.of(1)


@dataclass(frozen=True)
class Points:
    """Where an expression is evaluated: variables (outer first) and their constraints."""

    equation: Equation
    variables: tuple[str, ...]
    constraints: Constraints
    accounting: str

    def number(self) -> Exact:
        """How many points there are."""
        return total(self.variables, self.constraints, ONE)

    def inside(self, over: tuple[Index, ...]) -> Points:
        """The points of an expression under a reduction."""
        constraints = self.constraints.union(*(index.constraints for index in over))
        variables = self.variables + tuple(index.atom for index in over)
        return replace(self, variables=variables, constraints=constraints)
