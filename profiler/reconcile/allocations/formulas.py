"""What does each operation write, forward and when its gradient is taken, and what does it read?

The gradients of one operation are those of torch's derivatives.yaml: the last operand's is taken
first; those of operands that were repeated are summed up afterwards, the first operand's first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.errors import Unsupported
from profiler.reconcile.allocations.graph import Edge, Gradients, Graph
from profiler.reconcile.allocations.tape import Value

Key = Hashable
"""What tells the parts of a tensor apart."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A result, or a view of one."""

    value: Value
    size: int
    edge: Edge | None
    """Where its gradient goes; None where it wants none."""
    once: bool = False
    """Whether it has no batch."""
    parts: Mapping[Key, int] = field(default_factory=dict)
    """The parts that were computed together, in order, and the elements of each."""


Formula = Callable[["Operations", Value, Tensor, Tensor], Value]
"""The gradient of an operand from that of the result, the operand and the result."""


def _of_result(does: Operations, g: Value, operand: Tensor, result: Tensor) -> Value:
    return does.write(operand.size, [g, result.value])


def _of_operand(does: Operations, g: Value, operand: Tensor, result: Tensor) -> Value:
    return does.write(operand.size, [g, operand.value])


CALLS: Mapping[str, Formula] = {
    "tanh": _of_result,
    "sigmoid": _of_result,
    "exp": _of_result,
    "log": _of_operand,
    "softplus": _of_operand,
    "silu": _of_operand,
    "gelu": _of_operand,
    "relu": _of_result,
}
"""Function -> its gradient, in one operation."""

BRANCHES: Mapping[str, str] = {"elu_plus_1": "exp"}
"""Function by cases of two branches, of which the first adds a number -> the function of the
second."""


@dataclass(frozen=True, eq=False)
class Operations:
    """Runs operations one after another."""

    graph: Graph
    trained: bool
    """Whether gradients are taken."""

    def write(self, size: int, reads: Sequence[Value]) -> Value:
        """The result of one more operation of a backward pass."""
        return self.graph.tape.write(size, reads)

    def given(self, size: int, *, once: bool, parts: Mapping[Key, int] | None = None) -> Tensor:
        """What was there before."""
        edge = (self.graph.leaf(size), 0)
        return Tensor(Value(size, given=True), size, edge, once, parts or {})

    def result(
        self,
        size: int,
        operands: Sequence[Tensor],
        backward: Callable[[Tensor, Value], Gradients],
        *,
        over: Tensor | None = None,
    ) -> Tensor:
        """The result of an operation that reads all its operands.

        Args:
            backward: called with the result and its gradient.
            over: what it is written over.
        """
        read = [t.value for t in operands]
        if over is None:
            value = self.graph.tape.write(size, read)
        else:
            value = over.value
            self.graph.tape.read(*read)
        return self._made(value, size, [t.edge for t in operands], backward)

    def _made(
        self,
        value: Value,
        size: int,
        edges: Sequence[Edge | None],
        backward: Callable[[Tensor, Value], Gradients],
    ) -> Tensor:
        """A result with its node."""

        def run(gradients: Gradients) -> Gradients:
            (g,) = gradients
            assert g is not None
            return backward(made, g)

        node = self.graph.node(edges, [size], run)
        made = Tensor(value, size, None if node is None else (node, 0))
        return made

    def _summed(self, gradients: Gradients, operands: Sequence[Tensor], size: int) -> Gradients:
        """Gradients of the result's size, summed up where their operand was repeated.

        Raises:
            Unsupported: an operand has more entries than the result, so that some are not read.
        """
        if any(t.size > size for t in operands):
            raise Unsupported("an operation that reads more entries than it writes")
        return [
            self.write(t.size, [g]) if g is not None and (t.size != size or t.once) else g
            for g, t in zip(gradients, operands, strict=True)
        ]

    def add(self, one: Tensor, two: Tensor, size: int, **how: Any) -> Tensor:
        """A sum entry by entry: both operands are handed the gradient itself."""

        def backward(made: Tensor, g: Value) -> Gradients:
            return self._summed([g if t.edge else None for t in (one, two)], (one, two), size)

        return self.result(size, (one, two), backward, **how)

    def subtract(self, one: Tensor, two: Tensor, size: int, **how: Any) -> Tensor:
        """A difference entry by entry: the second gradient changes its sign."""

        def backward(made: Tensor, g: Value) -> Gradients:
            second = self.write(size, [g]) if two.edge else None
            return self._summed([g if one.edge else None, second], (one, two), size)

        return self.result(size, (one, two), backward, **how)

    def by_number(self, one: Tensor, size: int, *, same: bool = False, **how: Any) -> Tensor:
        """An operation with a number: its gradient is another value, or the `same`."""
        return self.result(size, (one,), lambda _, g: [g if same else self.write(size, [g])], **how)

    def multiply(self, one: Tensor, two: Tensor, size: int, over: Tensor | None = None) -> Tensor:
        """A product entry by entry; written over a factor, which is the first then, a copy of that
        is read for the gradient of the other."""
        if over is two:
            one, two = two, one
        left, right = one.value, two.value
        if over and two.edge and self.trained:
            left = self.write(size, [left])

        def backward(made: Tensor, g: Value) -> Gradients:
            second = self.write(size, [g, left]) if two.edge else None
            first = self.write(size, [g, right]) if one.edge else None
            return self._summed([first, second], (one, two), size)

        return self.result(size, (one, two), backward, over=over)

    def divide(self, one: Tensor, two: Tensor, size: int, **how: Any) -> Tensor:
        """A quotient entry by entry: the gradient of the divisor is that of the result, its sign
        changed, times the quotient divided once more."""

        def backward(made: Tensor, g: Value) -> Gradients:
            second = None
            if two.edge:
                quotient = self.write(size, [one.value, two.value])
                again = self.write(size, [quotient, two.value])
                second = self.write(size, [self.write(size, [g]), again])
            first = self.write(size, [g, two.value]) if one.edge else None
            return self._summed([first, second], (one, two), size)

        return self.result(size, (one, two), backward, **how)

    def product(self, one: Tensor, two: Tensor, size: int, *, folded: bool) -> Tensor:
        """A product of matrices.

        Args:
            folded: whether it runs over several axes beside those of the matrices: it reads them as
                one, and so a copy of what was cut out along them.
        """

        def read(value: Value, taken: int) -> Value:
            cut = folded and not value.given and value.size != taken
            return self.graph.tape.write(taken, [value], of=value) if cut else value

        left, right = (read(t.value, t.size) for t in (one, two))

        def backward(gradients: Gradients) -> Gradients:
            (g,) = gradients
            assert g is not None
            g = read(g, size)
            second = self.write(two.size, [g, left]) if two.edge else None
            first = self.write(one.size, [g, right]) if one.edge else None
            return [first, second]

        node = self.graph.node([one.edge, two.edge], [size], backward)
        edge = None if node is None else (node, 0)
        return Tensor(self.graph.tape.write(size, [left, right]), size, edge)

    def affine(self, one: Tensor, two: Tensor, more: Tensor, size: int) -> Tensor:
        """A product of matrices that is added to another operand at once: the gradient of that is
        taken last, and handed on first."""

        def backward(made: Tensor, g: Value) -> Gradients:
            first = self.write(one.size, [g, two.value]) if one.edge else None
            second = self.write(two.size, [g, one.value]) if two.edge else None
            (last,) = self._summed([g if more.edge else None], (more,), size)
            return [last, first, second]

        return self.result(size, (more, one, two), backward)

    def total(self, one: Tensor, size: int) -> Tensor:
        """A sum over some indices: its gradient is read where it stands."""
        return self.result(size, (one,), lambda _, g: [g])

    def call(self, function: str, one: Tensor, size: int, **how: Any) -> Tensor:
        """A function entry by entry.

        Raises:
            Unsupported: its gradient is not known.
        """
        if function in BRANCHES:
            return self._by_cases(BRANCHES[function], one, size)
        if function not in CALLS:
            raise Unsupported(f"the operations of the gradient of {function}")
        formula = CALLS[function]
        return self.result(size, (one,), lambda made, g: [formula(self, g, one, made)], **how)

    def _by_cases(self, function: str, one: Tensor, size: int) -> Tensor:
        """Both branches, then one of them entry by entry: each is handed its entries of the
        gradient, moved."""
        plus = self.by_number(one, size, same=True)
        other = self.call(function, one, size)
        branches = (plus, other)
        unread = [t.value.root for t in branches if not (self.trained and t is other)]
        value = self.graph.tape.write(size, [t.value for t in branches], joined=unread)
        return self._made(value, size, [t.edge for t in branches], lambda _, g: [g, g])

    def softmax(self, one: Tensor, size: int) -> Tensor:
        """The softmax of one kernel: its gradient is one operation."""
        return self.result(size, (one,), lambda made, g: [self.write(size, [g, made.value])])

    def rows(self, of: Tensor, number: int) -> list[Tensor]:
        """All rows of a tensor, cut by one operation; its gradient puts those of rows together."""
        size = of.size // number
        inner = {key: n // number for key, n in of.parts.items()}
        return self._cut(of, dict.fromkeys(range(number), size), inner)

    def chunks(self, of: Tensor) -> Mapping[Key, Tensor]:
        """The parts of a tensor, cut by one operation."""
        return dict(zip(of.parts, self._cut(of, of.parts, {}), strict=True))

    def _cut(self, of: Tensor, sizes: Mapping[Key, int], parts: Mapping[Key, int]) -> list[Tensor]:
        numbers = [*sizes.values()]

        def backward(gradients: Gradients) -> Gradients:
            taken = [(g, n) for g, n in zip(gradients, numbers, strict=True) if g is not None]
            return [self.graph.tape.join(of.size, taken)]

        node = self.graph.node([of.edge], numbers, backward)
        return [
            Tensor(of.value, n, None if node is None else (node, k), of.once, parts)
            for k, n in enumerate(numbers)
        ]

    def slice(self, of: Tensor, size: int, parts: Mapping[Key, int]) -> Tensor:
        """Some entries of a tensor: their gradient is written between zeros, as large as all; that
        of all entries is handed on as it is."""

        def backward(gradients: Gradients) -> Gradients:
            (g,) = gradients
            assert g is not None
            return [g if size == of.size else self.graph.tape.write(of.size, [g], of=g)]

        node = self.graph.node([of.edge], [size], backward)
        return Tensor(of.value, size, None if node is None else (node, 0), of.once, parts)

    def stack(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows put together by one operation; each is handed its part of the gradient."""
        size = sum(row.size for row in rows)
        value = self.graph.tape.join(size, [(row.value, row.size) for row in rows])
        return self._made(value, size, [row.edge for row in rows], lambda _, g: [g] * len(rows))
