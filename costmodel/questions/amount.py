"""What does an answer have that is one amount of elements, steps or levels?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.symbolic.at_sizes import at_sizes
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.sympy_form import Symbolic

if TYPE_CHECKING:
    import sympy


class Amount(Symbolic):
    """So many for each sequence of a batch (`each`), and so many for all of them (`alone`); exact.

    A subclass says at least one of the two.
    """

    @property
    def each(self) -> Exact:
        """The part that every sequence of a batch has."""
        return Exact()

    @property
    def alone(self) -> Exact:
        """The part that a batch has once."""
        return Exact()

    @property
    def exact(self) -> Exact:
        """The amount for one sequence."""
        return self.each + self.alone

    @property
    def expr(self) -> sympy.Expr:
        """The amount for one sequence as a sympy expression in the size letters."""
        return self.exact.expr

    @at_sizes
    def at(self, *, b: int = 1, **sizes: int) -> int:
        """The amount at integer sizes, for `b` sequences."""
        return b * self.each.at(sizes) + self.alone.at(sizes)
