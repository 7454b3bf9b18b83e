"""Residuals: the forward values that gradients read, each in an array of its own.

A product needs its other factor, a quotient itself, an exponential its result. Where such a value
is a subexpression, it gets an array: everything kept for the backward pass has a name, and the
number of operations stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.adjoint.node_rules import RULES, Reader
from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.indices import Index, UnionIndex, one_by_one, outer_first
from costmodel.language.nodes import Array, Node, Ref, derived
from costmodel.program.recurrences import in_order
from costmodel.symbolic.constraints import implied, nonnegative
from costmodel.symbolic.polynomial import Poly


@dataclass
class Shared:
    """Residual arrays shared between equations of one array: the same expression in the equation of
    the first row and of the later rows goes to one array."""

    known: dict[tuple[Array, object, tuple[Poly, ...]], Array] = field(default_factory=dict)
    """(array of the equation, structure of the expression, shape) -> the array that holds it."""
    used: set[tuple[Equation, Array]] = field(default_factory=set)
    """(equation, residual array that the equation has already)."""

    def array(
        self,
        of: Array,
        value: Node,
        shape: tuple[Poly, ...],
        equation: Equation,
        make: Callable[[], Array],
    ) -> Array:
        """The array for an expression `value` in an equation of `of`: the array that holds the same
        structure for another equation of `of`, if `equation` does not use that array yet; else a
        new one, by `make`. exp(x[1]) for y[1] and exp(x[i]) for y[i] share y.1."""
        key = (of, value.fold(_outline), shape)
        found = self.known.get(key)
        if found is None or (equation, found) in self.used:
            found = self.known[key] = make()
        self.used.add((equation, found))
        return found


def _outline(node: Node, inside: Sequence[object] = ()) -> object:
    """The structure of an expression: its arrays and operations, without positions and numbers."""
    match node:
        case Ref():
            return node.array
        case _:
            return (type(node), *node.names, *inside)


def with_residuals(system: System, *, quotients: bool = True) -> System:
    """The system with an array of its own for every value that a gradient reads (exp(x) of 1 +
    exp(x)), its equations in topological order. The gradient of a divisor reads the quotient, or
    without `quotients` the numerator."""
    equations: list[Equation] = []
    shared = Shared()
    for equation in system.equations:
        splitter = _Splitter(system, equation, equations, shared, quotients)
        value = splitter.rewritten(equation.value, (), top=True)
        equations.append(replace(equation, value=value))
    return replace(system, equations=in_order(replace(system, equations=tuple(equations))))


@dataclass
class _Splitter:
    """Splits off the subexpressions that the gradient of one equation reads."""

    system: System
    equation: Equation
    written: list[Equation]
    """All equations so far, to which those of residual arrays are added."""
    shared: Shared
    quotients: bool = True  # whether the gradient of a divisor reads the quotient
    made: dict[Node, Ref] = field(default_factory=dict)
    """Subexpression -> the reference that stands in its place."""

    def rewritten(self, node: Node, over: tuple[Index, ...], *, top: bool = False) -> Node:
        """The expression, with references in place of the values that its gradient reads: by kind
        of node operands, the result or both; the equation's own array holds the result of the whole
        right-hand side (`top`). y = exp(x) * x becomes y.1 * x, and y.1 = exp(x) joins `written`.
        `over`: the indices of the reductions around the expression, each an axis of a new array."""
        if self.system.active.isdisjoint(node.arrays):
            return node
        reads = RULES[type(node)].reads(node, Reader(self.system.active, self.quotients))
        inner = over + tuple(outer_first(node.binders))
        needed = iter(reads.operands)  # operands that `reads` does not list are not read
        kept = node.map(lambda operand: self._operand(operand, inner, needed=next(needed, False)))
        return self._stored(kept, over) if reads.result and not top else kept

    def _operand(self, node: Node, over: tuple[Index, ...], *, needed: bool) -> Node:
        """An operand, as a reference if `needed` for a gradient."""
        kept = self.rewritten(node, over)
        return self._readable(kept, over) if needed else kept

    def _readable(self, node: Node, over: tuple[Index, ...]) -> Node:
        """The node, changed so that its value can be read again: itself if it costs nothing, with
        its operands in arrays; else a reference to an array that holds it."""
        if node.free:
            return node.map(lambda operand: self._readable(operand, over))
        return self._stored(node, over)

    def _stored(self, node: Node, over: tuple[Index, ...]) -> Ref:
        """A reference to the residual array for a value `node`, with the axes of the equation's
        array and one for each index of `over`, the reductions around the value; the first call for
        a value writes the equations of the array, one per range of a union. Equations of one array
        share it for like values: exp(x[1]) in that of y[1], exp(x[i]) in that of y[i]."""
        if node in self.made:
            return self.made[node]
        indices = tuple(outer_first([*self.equation.indices, *over]))
        ranges = tuple(i.hull if isinstance(i, UnionIndex) else i for i in indices)
        of = self.equation.array
        inner = ranges[len(self.equation.indices) :]
        shape = of.shape + tuple(extent(index, ranges) for index in inner)
        array = self.shared.array(of, node, shape, self.equation, lambda: self._new(of, shape))
        positions = self.equation.positions + tuple(index.as_poly() for index in over)
        self.written += [
            Equation(array, positions, node, choice, self.equation.whole)
            for choice in one_by_one(indices)
        ]
        self.made[node] = Ref(array, positions)
        return self.made[node]

    def _new(self, of: Array, shape: tuple[Poly, ...]) -> Array:
        """A new residual array of `of`, with the next number in its name."""
        taken = {e.array for e in self.written if of in e.array.made_for}
        return derived(of, "residual", str(len(taken) + 1), shape=shape)


def extent(index: Index, outer: Iterable[Index]) -> Poly:
    """The largest value of an index, a polynomial in sizes: the extent of an axis that the index
    can run over (l for j in 1..i with i in 1..l).

    Args:
        outer: all indices around, on which the bounds of the index may depend.

    Raises:
        Unsupported: an index that may be 0 or less, so that it cannot index an axis.
    """
    by_atom: Mapping[str, Index] = {i.atom: i for i in outer}
    around = frozenset().union(*(i.constraints for i in by_atom.values()))
    if not implied(around, index.as_poly() - 1):
        raise Unsupported(
            f"the backward pass stores an array with an axis for index {index.name}, and axes "
            f"begin at 1, but {index.name} may be less than 1: number {index.name} from 1"
        )
    return next(_tops(index, by_atom))


def _tops(index: Index, by_atom: Mapping[str, Index]) -> Iterator[Poly]:
    """Yield upper bounds of an index in sizes alone, those with the fewest outer indices first. An
    outer index is put at its largest value if its coefficient in the bound is proven to be at least
    0, else at 1: for i in 1..l, the bound i*C gives l*C, and l - i gives l - 1.

    Args:
        by_atom: atom of an outer index (`@i`) -> the index.
    """
    named = [[a for a in bound.letters if a in by_atom] for bound in index.upper]
    for bound, names in sorted(zip(index.upper, named, strict=True), key=lambda pair: len(pair[1])):
        top = bound
        for name in names:
            grows = nonnegative(top.coefficient(name))
            end = next(_tops(by_atom[name], by_atom)) if grows else Poly.of(1)
            top = top.substitute({name: end})
        yield top
