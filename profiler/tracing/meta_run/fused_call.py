"""A fused operation as autograd sees it: its results, its saved tensors and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from profiler.counting.call import distinct_bytes
from profiler.counting.operations import Operations
from profiler.tracing.meta_run.operation import Cost, TensorLayout
from profiler.tracing.meta_run.recorder import Recorder


@dataclass(frozen=True)
class FusedCall:
    """One fused call: its operations, the layouts of its results, and its saved tensors.

    `tensors` are the tensor arguments. `forward` holds the operations of the forward pass; None for
    a function that is recorded without a count, for `reason`. `backward` receives, per tensor
    argument, whether its gradient is wanted, and returns the operations of the backward pass, or
    None likewise. `keeps` and `keeps_results` list the positions of the saved arguments and
    results; `workspace` are further saved tensors. `orders` maps the position of an argument whose
    gradient is not contiguous to the order of the gradient's axes in memory, largest stride first.
    """

    name: str
    tensors: tuple[Tensor | None, ...]
    results: tuple[TensorLayout, ...]
    forward: Operations | None
    backward: Callable[[Sequence[bool]], Operations | None]
    keeps: tuple[int, ...]
    keeps_results: tuple[int, ...] = ()
    workspace: tuple[TensorLayout, ...] = ()
    orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    reason: str = ""

    def cost(self, operations: Operations | None) -> Cost:
        """The cost of one pass, forward or backward: `operations` or, if these are None, the reason
        why they are not counted and the bytes of arguments and results."""
        if operations is not None:
            return Cost(operations)
        given = (t for t in self.tensors if t is not None)
        made = sum(layout.bytes for layout in self.results)
        return Cost(None, self.reason, made + sum(map(distinct_bytes, given)))


def dense_layout(like: Tensor, shape: Sequence[int], order: Sequence[int] = ()) -> TensorLayout:
    """A layout (shape, strides, dtype) of this shape without gaps, with the dtype of `like`.
    `order` lists the axes by falling stride; () stands for 0, 1, 2, ..., a contiguous tensor."""
    strides, step = [1] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis], step = step, step * max(shape[axis], 1)
    return TensorLayout(tuple(shape), tuple(strides), like.dtype)


class FusedFunction(torch.autograd.Function):
    """A fused call as autograd sees it: empty results, and empty gradients for its arguments."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, call: FusedCall, *tensors: Tensor | None) -> Any:
        """Record the call in `recorder`, save the tensors that it keeps for backward, and return
        results without values: a tensor, or a tuple of several. `tensors`: the call's arguments;
        `ctx.gradients` gets the layout of the gradient of each, None for an argument None."""
        with recorder.quiet():
            results = tuple(made.empty() for made in call.results)
            workspace = [made.empty() for made in call.workspace]
        recorder.add(call.name, call.cost(call.forward))
        kept = [tensors[i] for i in call.keeps if tensors[i] is not None]
        ctx.save_for_backward(*kept, *(results[i] for i in call.keeps_results), *workspace)
        ctx.recorder, ctx.call = recorder, call
        ctx.gradients = [
            None if t is None else dense_layout(t, t.shape, call.orders.get(place, ()))
            for place, t in enumerate(tensors)
        ]
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Record the backward pass, and return an empty gradient for each argument of the forward
        pass that requires one, None for others: its first two arguments, recorder and call, are no
        tensors."""
        wanted = ctx.needs_input_grad[2:]
        name = f"{ctx.call.name} backward"
        ctx.recorder.add(name, ctx.call.cost(ctx.call.backward(wanted)))
        with ctx.recorder.quiet():
            made = [
                gradient.empty() if gradient is not None and needed else None
                for gradient, needed in zip(ctx.gradients, wanted, strict=True)
            ]
        return (None, None, *made)
