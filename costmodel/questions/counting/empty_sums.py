"""Which gradients have entries that are empty sums at given sizes, and are read nevertheless?

Every entry has a gradient at all sizes; the gradient of an entry that nothing reads is an empty
sum, 0. An equation that reads this 0 counts its operations as for any other value; a note below a
table names the arrays with such entries. Autograd computes no gradient of an array that nothing
reads: `spared` gives the operations that are counted on gradients that are empty sums throughout.
At l = 1 no row decays a row before it by A = -exp(log_A): A.grad is an empty sum, and log_A.grad =
A.grad A takes one multiplication per entry in the equations, and none in autograd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Constant, Node, Reduce, Ref, refs, rewrite, substitute
from costmodel.program.dependence import reads
from costmodel.program.nonempty import may_be_empty, present
from costmodel.program.phases import IterationDomain, iteration_domains
from costmodel.program.trip_count import Points
from costmodel.questions.counting.by_equation import count_part
from costmodel.questions.counting.counts import Counts
from costmodel.symbolic.constraints import Constraints, infeasible
from costmodel.symbolic.polynomial import Poly


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


NOTHING = Reduce("sum", Constant(Poly()), (Index("none", (Poly.of(1),), (Poly(),)),))
"""A sum of no term: 0, which costs nothing, as adding it or multiplying by it does."""


def reads_nothing(system: System, sizes: Mapping[str, int]) -> bool:
    """Whether some read of an equation has no instance at these sizes, as that of the row before by
    rows 2..l at l = 1. Where each read has one, `spared` is empty."""
    at = _numbers(sizes)

    def nowhere(around: Constraints) -> bool:
        return infeasible(frozenset(c.substitute(at) for c in around))

    return any(
        nowhere(equation.domain.union(*(index.constraints for index in over)))
        for equation in system.equations
        for _, over in refs(equation.value)
    )


def spared(system: System, phase: str, sizes: Mapping[str, int]) -> Counts:
    """The operations that a phase with gradients counts at these sizes, and would not count if
    gradients that are empty sums throughout were absent, and gradients made of these alone. The
    operations are numbers, of one sequence; those on weights alone stand in `once`.

    Raises:
        Unsupported: the operations of an equation are not summed exactly.
    """
    absent, found = _absent(system, sizes), Counts({}, Counts({}))
    for part in iteration_domains(system, phase):
        if part.equation.array in absent or not absent.isdisjoint(part.equation.value.arrays):
            part = _in_numbers(part, sizes)
            left = count_part(_without(part, absent))
            found += count_part(part) + left.scaled({}, Poly.of(-1), Poly.of(-1))
    return found


def _absent(system: System, sizes: Mapping[str, int]) -> frozenset[Array]:
    """The arrays of a backward pass whose entries are all empty sums at these sizes: no instance
    reads the array whose gradient they are, or all instances multiply them by absent arrays."""
    waiting: dict[Array, list[IterationDomain]] = {}
    for equation in system.backward:
        part = _in_numbers(IterationDomain(equation, equation.domain, once=False), sizes)
        waiting.setdefault(equation.array, []).append(part)

    def is_empty(part: IterationDomain) -> bool:
        return infeasible(part.constraints) or _without(part, found).equation.value == NOTHING

    found = frozenset[Array]()
    while more := {array for array, parts in waiting.items() if all(map(is_empty, parts))}:
        found |= more
        waiting = {array: parts for array, parts in waiting.items() if array not in found}
    return found


def _in_numbers(part: IterationDomain, sizes: Mapping[str, int]) -> IterationDomain:
    """The instances `part` of an equation, with numbers in place of sizes."""
    at = _numbers(sizes)
    equation = part.equation
    indices, value = substitute(equation.indices, at), substitute(equation.value, at)
    around = frozenset(c.substitute(at) for c in part.constraints)
    return replace(
        part, equation=replace(equation, indices=indices, value=value), constraints=around
    )


def _without(part: IterationDomain, absent: frozenset[Array]) -> IterationDomain:
    """The points of an equation, in numbers, with `NOTHING` for each read of an `absent` array, and
    for each expression that is then an empty sum at all points: its operands cost nothing either.
    A transform, scan or selection is executed as a whole, whatever it reads."""
    if part.equation.value.alone:
        return part

    def change(node: Node) -> Node:
        """The node, or `NOTHING` in its place; the node's operands have been changed before."""
        match node:
            case Ref() if node.array in absent:
                return NOTHING
            case _:
                try:
                    return node if present(node, part.constraints) else NOTHING
                except Unsupported:  # a maximum that may have no term
                    return node

    value = rewrite(part.equation.value, change)
    return replace(part, equation=replace(part.equation, value=value))


def _numbers(sizes: Mapping[str, int]) -> Mapping[str, Poly]:
    return {letter: Poly.of(value) for letter, value in sizes.items()}
