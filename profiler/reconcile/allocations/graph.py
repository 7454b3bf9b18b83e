"""In which order does autograd's engine run the gradients of operations, and what do they write?

Of the nodes whose gradients are complete, the one that was made last runs first. Where several
gradients meet, each is added as it comes, to a new value.
Source: torch/csrc/autograd/engine.cpp and input_buffer.cpp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from profiler.reconcile.allocations.tape import Tape, Value

Gradients = Sequence[Value | None]
"""One for each result, or for each operand; None where there is none."""

LAST = 1 << 62
"""A number that no operation reaches: leaves have larger ones."""

Edge = tuple["Node", int]
"""A node, and which one of its results."""


@dataclass(eq=False)
class Node:
    """What hands on gradients: of an operation to its operands, of a leaf to nobody."""

    number: int
    edges: tuple[Edge | None, ...]
    """Where the gradients of the operands go; None of an operand that wants none."""
    sizes: tuple[int, ...]
    """How many elements each of its results has."""
    backward: Callable[[Gradients], Gradients] | None = None
    """The gradients of the operands; None of a leaf."""


@dataclass(eq=False)
class Graph:
    """The nodes of a forward pass, and the tape that operations are written on."""

    tape: Tape = field(default_factory=Tape)
    made: int = 0

    def leaf(self, size: int) -> Node:
        """The node of what was given and wants a gradient: it runs as soon as it can."""
        self.made += 1
        return Node(LAST + self.made, (), (size,))

    def node(
        self,
        edges: Sequence[Edge | None],
        sizes: Sequence[int],
        backward: Callable[[Gradients], Gradients],
    ) -> Node | None:
        """The node of one more operation; None where no operand wants a gradient."""
        if not any(edges):
            return None
        self.made += 1
        return Node(self.made, tuple(edges), tuple(sizes), backward)

    def backward(self, edge: Edge, gradient: Value) -> dict[Node, Value]:
        """Run the backward pass from one result: leaf -> its gradient."""
        root, slot = edge
        waiting = _waiting(root)
        buffers: dict[Node, list[Value | None]] = {root: [None] * len(root.sizes)}
        buffers[root][slot] = gradient
        found: dict[Node, Value] = {}
        ready = [(-root.number, root)]
        while ready:
            _, node = heappop(ready)
            gradients = buffers.pop(node)
            if node.backward is None:
                if (own := gradients[0]) is not None:
                    found[node] = own
                continue
            for to, handed in zip(node.edges, self._run(node, gradients), strict=True):
                if to is None:
                    continue
                target, k = to
                buffer = buffers.setdefault(target, [None] * len(target.sizes))
                if handed is not None:
                    buffer[k] = self._added(buffer[k], handed, target.sizes[k])
                waiting[target] -= 1
                if not waiting[target]:
                    heappush(ready, (-target.number, target))
        return found

    def _run(self, node: Node, gradients: Gradients) -> Gradients:
        """What a node hands on: nothing, where nothing was handed to it."""
        assert node.backward is not None
        if all(gradient is None for gradient in gradients):
            return [None] * len(node.edges)
        return node.backward(gradients)

    def _added(self, held: Value | None, more: Value, size: int) -> Value:
        return more if held is None else self.tape.write(size, [held, more])


def _waiting(root: Node) -> Counter[Node]:
    """How many gradients each node is handed in all."""
    found: Counter[Node] = Counter()
    seen, left = {root}, [root]
    while left:
        for to in left.pop().edges:
            if to is not None:
                found[to[0]] += 1
                if to[0] not in seen:
                    seen.add(to[0])
                    left.append(to[0])
    return found
