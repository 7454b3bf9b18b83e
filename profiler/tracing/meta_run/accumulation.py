"""Recognises the gradients that torch would write in place if no dispatch mode were active.

If several gradients of one tensor meet, autograd adds the next gradient to the sum so far, in place
if nothing else refers to that sum. Under a dispatch mode autograd never adds in place, and more
bytes are alive. A sum of gradients is recognised by its moment: after one node of the graph has run
and before the next. The conditions are those of can_accumulate_inplace in
torch/csrc/autograd/input_buffer.cpp.

The gradient of an indexed selection is written into zeros; under a mode torch copies the zeros
first: areAnyTensorSubclassLike in torch/csrc/autograd/FunctionsManual.cpp and in
aten/src/ATen/native/ReduceOps.cpp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from profiler.counting.mode import DispatchMode, OperationKind

ADD = torch.ops.aten.add.Tensor
ZEROS = frozenset(("aten::zeros", "aten::zeros_like", "aten::new_zeros"))
INTO = frozenset(
    f"aten::{name}"
    for name in ("index_add", "index_fill", "index_put", "put", "scatter", "scatter_add")
)
"""Operations that a node calls, under a mode, instead of the in-place variant."""
LEAF = "torch::autograd::AccumulateGrad"
"""The node that adds a gradient to a leaf's `.grad`, in place also under a mode."""


ENTRY: Any = torch.autograd
"""The module in which torch.autograd.backward and torch.autograd.grad look up the engine's entry
point."""


class Accumulation:
    """Tracks the nodes of every backward pass that starts inside `watching`."""

    def __init__(self) -> None:
        """Begin with no node (a step of a backward pass) run and no zeros made."""
        self.ended: int | None = None
        """The number of the last node that ran, among nodes whose gradients may meet others."""
        self.alone = (0, 0)
        """The `reference_counts` of a tensor that only autograd's sum refers to."""
        self.zeros: tuple[int | None, Any] = (None, None)
        """The number of the last node that made zeros, and the id of their storage."""

    def fill(self, zeros: Tensor) -> None:
        """Note that a tensor of zeros was made."""
        self.zeros = number_of_current(), id(zeros.untyped_storage())

    def into_zeros(self, target: Any) -> bool:
        """Whether a tensor consists of zeros that the running node of a backward pass has made.
        False for a node of a user's autograd.Function, whose writes torch leaves as they are."""
        if torch.is_grad_enabled() or not isinstance(target, Tensor):  # a recomputed forward pass
            return False
        node: Any = torch._C._current_autograd_node()
        if isinstance(node, BackwardCFunction):
            return False
        number = number_of_current()
        return number is not None and self.zeros == (number, id(target.untyped_storage()))

    def sums(self, func: Any) -> bool:
        """Whether a call of `func` is autograd's own addition of two gradients of one tensor: an
        add after a node has run and before the next, so that this node is still the current one.
        False in a recomputed forward pass, which records gradients."""
        if func is not ADD or self.ended is None or torch.is_grad_enabled():
            return False
        return number_of_current() == self.ended

    def in_place(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether the call is a sum of two gradients that torch, without a dispatch mode, would
        write into its first term."""
        return (
            self.sums(func)
            and not args[1].is_sparse
            and is_dense(args[0])
            and reference_counts(args[0]) == self.alone
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which the outputs of every backward pass, nested ones too, are passed to
        `follow`, which hooks into their graph, before the pass runs."""
        self.alone = unshared_counts()
        plain = ENTRY._engine_run_backward

        def followed(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self.follow(outputs)
            return plain(outputs, *args, **kwargs)

        ENTRY._engine_run_backward = followed
        try:
            yield
        finally:
            ENTRY._engine_run_backward = plain

    def follow(self, outputs: Sequence[Any]) -> None:
        """Register the hook `note_end`, which notes that a node has run, on every node of the graph
        of `outputs` (tensors, or edges with `node` and `output_nr`) one of whose gradients is added
        to another node's, but for `LEAF`, which adds in place also under a mode. Two gradients meet
        if two nodes have the same edge: the same next node and input of it."""
        roots = [
            (t.grad_fn, t.output_nr) if isinstance(t, Tensor) else (t.node, t.output_nr)
            for t in outputs
        ]
        given: dict[Any, list[tuple[Any, int]]] = {}
        waiting = [node for node, _ in roots]
        while waiting:
            node = waiting.pop()
            if node is None or node in given:
                continue
            given[node] = [edge for edge in node.next_functions if edge[0] is not None]
            waiting += [inner for inner, _ in given[node]]
        meeting = Counter(edge for edges in (roots, *given.values()) for edge in edges)
        for node, edges in given.items():
            if any(meeting[edge] > 1 for edge in edges) and node.name() != LEAF:
                node.register_hook(self.note_end)

    def note_end(self, *_: Any) -> None:
        """The hook: a node has run, so autograd now adds its gradients to those of other nodes."""
        self.ended = number_of_current()


def number_of_current() -> int | None:
    """The sequence number of the running node, unique except among leaves; None if no node runs."""
    node: Any = torch._C._current_autograd_node()
    number: int | None = None if node is None else node._sequence_nr()
    return number


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's entries fill a contiguous range of memory, each entry once."""
    filled = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1 and stride != filled:
            return False
        filled *= extent
    return True


def reference_counts(tensor: Tensor) -> tuple[int, int]:
    """The numbers of references to a tensor and to its storage, including the caller's."""
    use_count: Any = tensor._use_count  # type: ignore[attr-defined]  # torch leaves it untyped
    storage = tensor.untyped_storage()
    return use_count(), torch._C._storage_Use_Count(storage._cdata)


class FirstTermObserver(DispatchMode):
    """Records the `reference_counts` of the first term of a backward pass's only sum of two."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulation = Accumulation()
        self.found = (0, 0)

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The result of an operation; notes the counts if it is the sum of two gradients."""
        if self.accumulation.sums(kind.func):
            self.found = reference_counts(args[0])
        return super().see(kind, args, kwargs)


@cache
def unshared_counts() -> tuple[int, int]:
    """The numbers of references (to the first of two added gradients, to its storage), if nothing
    else refers to them, as a dispatch mode sees them; found by the gradient of sin(x) + cos(x)."""
    seen = FirstTermObserver()
    with torch.enable_grad(), seen:
        leaf = torch.empty(1, device="meta", requires_grad=True)
        total, gradient = leaf.sin() + leaf.cos(), torch.empty(1, device="meta")
        seen.accumulation.follow([total])
        torch.autograd.backward([total], [gradient])
    return seen.found
