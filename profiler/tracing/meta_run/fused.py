"""Which operations does a fused kernel perform, forward and backward, and what does it save?

Attention, norms and recurrent layers are counted as one operation each, where torch's functions are
called: the arithmetic is that of the documented definition, with work that a kernel need not repeat
done once and masked pairs not done. `BACKENDS` chooses between this and torch's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it
from torch.overrides import TorchFunctionMode

from profiler.counting.backward_rules import attention_backward
from profiler.counting.call import Call
from profiler.counting.forward_rules import fused_attention, visible_pairs
from profiler.counting.operations import FUNCTIONS, NOTHING, Operations, named_operation
from profiler.tracing.meta_run.fused_call import FusedCall, FusedFunction, dense_layout
from profiler.tracing.meta_run.recorder import Backend, Recorder
from profiler.tracing.meta_run.recurrent_cells import (
    CELLS,
    recurrent_cell_rule,
    recurrent_layer_rule,
)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> FusedCall:
    """Scaled dot-product attention; where causal, row i has i pairs and masked pairs cost nothing.

    Results and gradients have the memory layout of torch's CPU kernel, where that kernel accepts
    the arguments: a result like the query, gradients and logarithms (b, l, n, h). A boolean mask is
    saved as numbers.
    """
    rows, keys, width, values = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
    heads = prod(query.shape[:-2])
    learned = attn_mask is not None and attn_mask.requires_grad
    kernel = query.dim() == 4 and width == values and not learned
    strides = query.stride()
    axes = sorted(range(query.dim()), key=lambda axis: -strides[axis]) if kernel else ()
    result = dense_layout(query, (*query.shape[:-1], values), axes)
    logarithms = dense_layout(query, query.shape[:-1], (0, 2, 1) if kernel else ())
    workspace = [replace(logarithms, dtype=get_computation_dtype(query.dtype))]
    truths = attn_mask is not None and attn_mask.dtype == torch.bool
    if attn_mask is not None and truths:
        workspace.append(dense_layout(query, attn_mask.shape))
    pairs = visible_pairs(rows, keys, is_causal) * heads
    added = attn_mask is not None and attn_mask.is_floating_point()
    arguments = {
        "query": query,
        "key": key,
        "value": value,
        "attn_mask": attn_mask if added else None,
        "dropout_p": 0.0,
        "is_causal": is_causal,
    }
    forward = fused_attention(Call("scaled_dot_product_attention", arguments, None))
    if dropout_p:
        forward += (named_operation("random") + Operations(mul=1)) * pairs
    seen = min(rows, keys) if is_causal else keys
    groups = prod(key.shape[:-2])
    dropped = Operations(mul=2 * pairs) if dropout_p else NOTHING
    masked = attn_mask.numel() if attn_mask is not None and added else 0

    def backward(wanted: Sequence[bool]) -> Operations:
        steps = attention_backward(
            pairs, rows * heads, seen * groups, width, values, tuple(wanted[:3])
        )
        bias = Operations(add=pairs - masked) if wanted[3] and masked else NOTHING
        return steps + dropped + bias + (Operations(add=pairs) if added else NOTHING)

    return FusedCall(
        "fused attention", (query, key, value, attn_mask), (result,), forward, backward,
        keeps=(0, 1, 2) if truths else (0, 1, 2, 3), keeps_results=(0,),
        workspace=tuple(workspace), orders=dict.fromkeys(range(3), (0, 2, 1, 3)) if kernel else {},
    )  # fmt: skip


def normalised(entries: int, rows: int) -> Operations:
    """x' = (x - mean) rstd along `rows` rows: mean, differences, the mean of their squares, rstd,
    and the product with rstd."""
    mean = Operations(add=entries - rows, div=rows)
    spread = Operations(mul=entries, add=2 * entries - rows, div=rows)
    root = (Operations(add=1) + FUNCTIONS["rsqrt"]) * rows
    return mean + spread + root + Operations(mul=entries)


def gain_and_bias(entries: int, weight: Tensor | None, bias: Tensor | None) -> Operations:
    """A product with `weight` and a sum with `bias` at every entry, where they are given."""
    factor = Operations(mul=entries if weight is not None else 0)
    return factor + Operations(add=entries if bias is not None else 0)


def normalised_backward(
    entries: int, rows: int, weight: Tensor | None, wanted: Sequence[bool]
) -> Operations:
    """x' = (x - mean) rstd, g = weight dy: dx = (N g - sum g - x' sum(g x')) rstd/N along a row of
    N entries; dweight = sum(dy x'); dbias = sum dy. The kernels layer_norm_backward and
    group_norm_backward."""
    total = Operations(mul=entries, add=entries)
    if wanted[0]:
        total += Operations(mul=entries if weight is not None else 0)
        total += Operations(mul=entries, add=2 * (entries - rows))
        total += Operations(mul=3 * entries, add=2 * entries, div=rows)
    if weight is not None and wanted[1]:
        total += Operations(mul=entries, add=entries - weight.numel())
    if weight is not None and wanted[2]:
        total += Operations(add=entries - weight.numel())
    return total


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> FusedCall:
    """y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias along each row, as documented."""
    entries, rows = input.numel(), input.numel() // max(1, prod(normalized_shape))
    return FusedCall(
        "fused layer norm", (input, weight, bias), (dense_layout(input, input.shape),),
        normalised(entries, rows) + gain_and_bias(entries, weight, bias),
        lambda wanted: normalised_backward(entries, rows, weight, wanted),
        keeps=(0, 1, 2), workspace=(dense_layout(input, (2 * rows,)),),
    )  # fmt: skip


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> FusedCall:
    """As layer_norm, a row being a group of channels; weight and bias have one entry per
    channel."""
    entries, rows = input.numel(), input.shape[0] * num_groups
    return FusedCall(
        "fused group norm", (input, weight, bias), (dense_layout(input, input.shape),),
        normalised(entries, rows) + gain_and_bias(entries, weight, bias),
        lambda wanted: normalised_backward(entries, rows, weight, wanted),
        keeps=(0, 1), workspace=(dense_layout(input, (2 * rows,)),),
    )  # fmt: skip


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> FusedCall:
    """y = x / sqrt(mean(x * x) + eps) * weight along each row, as documented."""
    entries, rows = input.numel(), input.numel() // max(1, prod(normalized_shape))
    forward = Operations(mul=2 * entries, add=entries - rows, div=rows)
    forward += (Operations(add=1) + FUNCTIONS["rsqrt"]) * rows + gain_and_bias(
        entries, weight, None
    )

    def backward(wanted: Sequence[bool]) -> Operations:
        """x' = x rstd, g = weight dy: dx = (g - x' sum(g x') / N) rstd, dweight = sum(dy x')."""
        total = Operations(mul=entries)
        if wanted[0]:
            total += Operations(mul=entries if weight is not None else 0)
            total += Operations(mul=entries, add=entries - rows, div=rows)
            total += Operations(mul=2 * entries, add=entries)
        if weight is not None and wanted[1]:
            total += Operations(mul=entries, add=entries - weight.numel())
        return total

    return FusedCall(
        "fused RMS norm", (input, weight), (dense_layout(input, input.shape),), forward, backward,
        keeps=(0, 1), workspace=(dense_layout(input, (rows,)),),
    )  # fmt: skip


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> FusedCall:
    """As layer_norm, a row being one channel over the whole batch; in training the running mean and
    variance become (1 - m) r + m new, the variance corrected by n / (n - 1)."""
    entries, rows = input.numel(), input.shape[1]
    if training:
        forward = normalised(entries, rows)
        if running_mean is not None:
            forward += Operations(mul=5, add=2) * rows
    else:
        forward = Operations(mul=entries, add=entries)
        forward += (Operations(add=1) + FUNCTIONS["rsqrt"]) * rows

    def backward(wanted: Sequence[bool]) -> Operations:
        """dx = weight rstd / N (N dy - dbias - x' dweight) in training, dy weight rstd else."""
        kept = (Operations(add=1) + FUNCTIONS["rsqrt"]) * (0 if training else rows)
        total = kept
        if training or (weight is not None and wanted[1]):
            total += Operations(mul=2 * entries, add=2 * entries - rows)  # x', sum(dy x')
        if training or (bias is not None and wanted[2]):
            total += Operations(add=entries - rows)
        if wanted[0]:
            total += Operations(mul=rows if weight is not None else 0)
            whole = Operations(mul=3 * entries, add=2 * entries, div=rows)
            total += whole if training else Operations(mul=entries)
        return total

    return FusedCall(
        "fused batch norm", (input, weight, bias), (dense_layout(input, input.shape),),
        forward + gain_and_bias(entries, weight, bias), backward,
        keeps=(0, 1), workspace=(dense_layout(input, (2 * rows,)),) if training else (),
    )  # fmt: skip


RULES: Mapping[Any, Callable[..., FusedCall | None]] = {
    F.scaled_dot_product_attention: attention,
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    F.batch_norm: batch_norm,
    **{getattr(torch, name): recurrent_layer_rule(name) for name in CELLS},
    **{getattr(torch, f"{name}_cell"): recurrent_cell_rule(name) for name in CELLS},
}
"""torch's functions -> the fused call that replaces each; None where the rule does not cover the
arguments and torch's own decomposition is counted."""


class FusedMode(TorchFunctionMode):
    """Replaces torch's functions by fused calls."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.called(func, *args, **(kwargs or {}))

    def called(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of the fused call that replaces a function, or else of the function itself."""
        rule = RULES.get(func) if func.__hash__ is not None else None
        with self.recorder.quiet():
            call = rule(*args, **kwargs) if rule is not None else None
        if call is None:
            return func(*args, **kwargs)
        apply: Any = FusedFunction.apply
        return apply(self.recorder, call, *call.tensors)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Replace the attention inside torch's own multi-head attention too: modes do not see what
        a function of torch calls by its name in torch.nn.functional."""
        plain = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = partial(self.called, plain)
        try:
            with self:
                yield
        finally:
            F.scaled_dot_product_attention = plain


RECURRENT: Mapping[Any, str] = {getattr(torch, name): name for name in CELLS}
"""torch's functions that run a whole recurrent layer."""


class Steps(TorchFunctionMode):
    """Notes which recurrent layers torch decomposes into steps."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__hash__ is not None and func in RECURRENT:
            self.recorder.stepped.add(RECURRENT[func])
        return func(*args, **(kwargs or {}))


@contextmanager
def math_backend(recorder: Recorder) -> Iterator[None]:
    """torch's own decompositions: attention as products, softmax and products."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), Steps(recorder):
        yield


@contextmanager
def fused_backend(recorder: Recorder) -> Iterator[None]:
    """Attention, recurrent cells and norms as one operation each; all else as `math`."""
    with math_backend(recorder), FusedMode(recorder).inside():
        yield


BACKENDS: Mapping[str, Backend] = {"math": math_backend, "fused": fused_backend}
"""Name of a backend -> the context in which the module runs."""
