"""Which equation solves a triangular system (1 + A) x = b, whose A gets its gradient at all pairs?

A kernel that solves the system takes the gradient of A, minus that of b times x, as one product
over all pairs of rows, and drops the pairs that A does not have. Source: FunctionsManual.cpp of
torch, linalg_solve_triangular_backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import Mul, Node, Reduce, Ref, Sub, names_in
from costmodel.program.recurrences import Block
from costmodel.symbolic.constraints import Constraints


@dataclass(frozen=True)
class Solved:
    """The parts of x[e] = b[e] - sum over z < e of A[e, z] x[z]."""

    right: Node
    """The entry of b."""
    matrix: Ref
    """The entry of A."""
    earlier: Ref
    """The entry of x in row z."""
    row: Index
    """The index e of the row that is solved for."""
    over: Index
    """The index z of the earlier rows."""

    @property
    def any_row(self) -> Index:
        """The index z over all rows, as e runs over them."""
        return Index(self.over.name, self.row.lower, self.row.upper)

    @property
    def several_rows(self) -> Constraints:
        """The conditions under which A has entries: there is more than one row."""
        return frozenset(last - first - 1 for first in self.row.lower for last in self.row.upper)

    @property
    def columns(self) -> frozenset[str]:
        """The indices of the columns of x, at all of which A has the same entry."""
        return frozenset({*names_in(self.earlier.positions)} - {*names_in(self.matrix.positions)})


def solved(block: Block, equation: Equation) -> Solved | None:
    """The parts of an equation x[e] = b[e] - sum over z of A[e, z] x[z], which solves a triangular
    system by forward substitution in a loop of its own, whose gradient `triangle-gradient` changes;
    None for any other equation."""
    value = equation.value
    if [*block.axes] != [equation.array] or not isinstance(value, Sub):
        return None
    total, row = value.right, block.row(equation)
    if not isinstance(total, Reduce) or total.kind != "sum" or len(total.over) != 1:
        return None
    body, (over,) = total.body, total.over
    index = next((i for i in equation.indices if i.as_poly() == row), None)
    if index is None or not isinstance(body, Mul):
        return None
    matrix, earlier = body.left, body.right
    if not (isinstance(matrix, Ref) and isinstance(earlier, Ref)):
        return None
    axis = block.axes[equation.array]
    at_z = (*equation.positions[:axis], over.as_poly(), *equation.positions[axis + 1 :])
    if earlier != Ref(equation.array, at_z) or equation.array in value.left.arrays:
        return None
    return Solved(value.left, matrix, earlier, index, over)
