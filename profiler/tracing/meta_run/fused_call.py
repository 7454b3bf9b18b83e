"""How does autograd see a fused operation: what it gives, keeps, and hands back?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from profiler.counting.operations import Operations
from profiler.tracing.meta_run.operation import Layout
from profiler.tracing.meta_run.recorder import Recorder


@dataclass(frozen=True)
class Fused:
    """One fused call: its operations, the layouts of its results, and what it keeps.

    `backward` is given, for each tensor argument, whether its gradient is wanted. `keeps` names
    the arguments and results that are saved, by position; `workspace` is saved besides. `orders`
    maps an argument whose gradient does not lie in memory axis by axis to the axes as it does, the
    one with the longest steps first.
    """

    name: str
    tensors: tuple[Tensor | None, ...]
    results: tuple[Layout, ...]
    forward: Operations
    backward: Callable[[Sequence[bool]], Operations]
    keeps: tuple[int, ...]
    keeps_results: tuple[int, ...] = ()
    workspace: tuple[Layout, ...] = ()
    orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def layout(like: Tensor, shape: Sequence[int], order: Sequence[int] = ()) -> Layout:
    """Numbers of a tensor's type with nothing between them, in the order of the axes or another."""
    strides, step = [1] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis], step = step, step * max(shape[axis], 1)
    return Layout(tuple(shape), tuple(strides), like.dtype)


class Applied(torch.autograd.Function):
    """A fused call as autograd sees it: empty results, and empty gradients of its arguments."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, call: Fused, *tensors: Tensor | None) -> Any:
        """Empty results; what the call keeps is saved."""
        with recorder.quiet():
            results = tuple(made.empty() for made in call.results)
            workspace = [made.empty() for made in call.workspace]
        recorder.add(call.name, call.forward)
        kept = [tensors[i] for i in call.keeps if tensors[i] is not None]
        ctx.save_for_backward(*kept, *(results[i] for i in call.keeps_results), *workspace)
        ctx.recorder, ctx.call = recorder, call
        ctx.gradients = [
            None if t is None else layout(t, t.shape, call.orders.get(place, ()))
            for place, t in enumerate(tensors)
        ]
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Empty gradients of what has one."""
        wanted = ctx.needs_input_grad[2:]
        ctx.recorder.add(f"{ctx.call.name} backward", ctx.call.backward(wanted))
        with ctx.recorder.quiet():
            made = [
                gradient.empty() if gradient is not None and needed else None
                for gradient, needed in zip(ctx.gradients, wanted, strict=True)
            ]
        return (None, None, *made)
