"""Which gradients have entries that are empty sums at given sizes, and are read nevertheless?

Every entry has a gradient at all sizes; the gradient of an entry that nothing reads is an empty
sum, 0. An equation that reads this 0 counts its operations as for any other value; a note below a
table names the arrays with such entries.
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array
from costmodel.program.dependence import reads
from costmodel.program.nonempty import may_be_empty
from costmodel.program.trip_count import Points


def empty_sums(system: System, sizes: Mapping[str, int]) -> list[Array]:
    """The arrays of gradients that at these sizes have entries without any term (empty sums) and
    are read by equations of the backward pass.

    Raises:
        Unsupported: the number of such entries is not summed exactly.
    """
    found: dict[Array, None] = {}
    for equation in system.backward:
        if may_be_empty(equation):
            points = _points(equation)
            there = points.number(points.present(equation.value))
            some = there.at(sizes) < points.number().at(sizes)
            if some and _is_read(system, equation.array, sizes):
                found[equation.array] = None
    return list(found)


def _is_read(system: System, array: Array, sizes: Mapping[str, int]) -> bool:
    """Whether some instance of an equation of the backward pass reads the array at these sizes."""
    return any(
        _points(equation).inside(read.over).number().at(sizes)
        for equation in system.backward
        for read in reads(equation)
        if read.ref.array is array
    )


def _points(equation: Equation) -> Points:
    return Points(equation, tuple(i.atom for i in equation.indices), equation.domain, "strict")
