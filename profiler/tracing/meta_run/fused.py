"""The operations and the saved tensors of fused kernels, forward and backward.

Attention, norms and recurrent layers are counted as one operation each, at the calls of torch's
functions: the arithmetic is that of the documented definition, in which a kernel does repeated work
once and skips masked pairs. `BACKENDS` selects this or torch's own decompositions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from profiler.counting import attention_rules, norm_rules
from profiler.counting.call import HIGHER_ORDER, Call
from profiler.counting.operations import Operations
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
    """Make the record (operations, result layout, saved tensors) of a call of scaled dot-product
    attention as one operation; if causal, row i has i pairs with keys, and masked pairs cost
    nothing. `scale` and `enable_gqa` are not used: the signature is torch's.

    Args:
        query: (..., l, h), with the head axis before l if it has four axes: (b, n, l, h).
        key: (..., k, h).
        value: (..., k, v).
        attn_mask: broadcast to (..., l, k); booleans, saved as numbers, or numbers to add.

    Results and gradients have the memory layout of torch's CPU kernel, if that kernel accepts the
    arguments (four axes, v = h, no gradient of the mask): the result has the query's order of axes
    in memory, and gradients and the saved logarithms of row sums lie as (b, l, n, h) and (b, l, n).
    """
    # `kernel`: whether torch's CPU kernel accepts the arguments; masks: `learned`, one with a
    # gradient; `truths`, of booleans; `added`, of numbers
    rows, keys, width, values = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
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
    pairs = attention_rules.visible_pairs(rows, keys, is_causal) * prod(query.shape[:-2])
    added = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
    call = Call("scaled_dot_product_attention", {
        "query": query, "key": key, "value": value, "attn_mask": added, "dropout_p": dropout_p,
        "is_causal": is_causal,
    }, None)  # fmt: skip
    masked = 0 if added is None else added.numel()

    def backward(wanted: Sequence[bool]) -> Operations:
        """`wanted`: which of query, key, value and mask get a gradient."""
        arguments = {**call.arguments, "grad_input_mask": wanted}
        steps = attention_rules.attention_backward(replace(call, arguments=arguments))
        # an entry of the mask gets the sum of the gradients of all scores that it was added to
        return steps + Operations(add=pairs - masked if wanted[3] and masked else 0)

    return FusedCall(
        "fused attention", (query, key, value, attn_mask), (result,),
        attention_rules.attention(call), backward,
        keeps=(0, 1, 2) if truths else (0, 1, 2, 3), keeps_results=(0,),
        workspace=tuple(workspace), orders=dict.fromkeys(range(3), (0, 2, 1, 3)) if kernel else {},
    )  # fmt: skip


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> FusedCall:
    """Make the record (operations, result layout, saved tensors) of a layer norm as one operation,
    y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias along each row of x, the last axes with
    `normalized_shape`. The signature is torch's; eps and cudnn_enable are not used."""
    entries, rows = input.numel(), input.numel() // max(1, prod(normalized_shape))
    return FusedCall(
        "fused layer norm", (input, weight, bias), (dense_layout(input, input.shape),),
        norm_rules.row_norm(entries, rows, weight, bias),
        lambda wanted: norm_rules.row_norm_backward(entries, rows, weight, wanted),
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
    """Make the record (operations, result layout, saved tensors) of a group norm as one operation,
    y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias, where a row is one of `num_groups` groups
    of channels, and weights are per channel. `eps` and `cudnn_enabled` are not used: the signature
    is torch's."""
    entries, rows = input.numel(), input.shape[0] * num_groups
    return FusedCall(
        "fused group norm", (input, weight, bias), (dense_layout(input, input.shape),),
        norm_rules.row_norm(entries, rows, weight, bias),
        lambda wanted: norm_rules.row_norm_backward(entries, rows, weight, wanted),
        keeps=(0, 1), workspace=(dense_layout(input, (2 * rows,)),),
    )  # fmt: skip


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> FusedCall:
    """Make the record (operations, result layout, saved tensors) of an RMS norm as one operation,
    y = x / sqrt(mean(x * x) + eps) * weight along each row of x, the last axes with
    `normalized_shape`. `eps` is not used: the signature is torch's."""
    entries, rows = input.numel(), input.numel() // max(1, prod(normalized_shape))
    return FusedCall(
        "fused RMS norm", (input, weight), (dense_layout(input, input.shape),),
        norm_rules.rms_norm(entries, rows, weight),
        lambda wanted: norm_rules.rms_norm_backward(entries, rows, weight, wanted),
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
    """Make the record (operations, result layout, saved tensors) of a batch norm as one operation,
    y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias, where a row is one channel over the whole
    batch; without `training`, E and Var are the running ones. Weight and bias count where given; no
    gradient reads the bias. `running_var`, `momentum`, `eps` are unused: torch's signature."""
    entries, rows = input.numel(), input.shape[1]
    forward = norm_rules.batch_norm(
        entries, rows, weight, bias, training=training, running=running_mean is not None
    )
    return FusedCall(
        "fused batch norm", (input, weight, bias), (dense_layout(input, input.shape),),
        forward,
        lambda wanted: norm_rules.batch_norm_backward(
            entries, rows, weight, wanted, training=training
        ),
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
"""torch's function -> a function that returns the fused call that replaces it, or None for
arguments that it does not cover: torch's own decomposition is then counted."""


class FusedMode(TorchFunctionMode):
    """Replaces torch's functions with fused calls."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.called(func, *args, **(kwargs or {}))

    def called(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function of torch in the run on the meta device: the result of the fused call that
        replaces it; the result of the function itself if there is no rule for it (`RULES`), or the
        rule returns None. torch's errors for wrong arguments are raised as without the replacement,
        but for whole recurrent layers (`RECURRENT`), whose steps would all run for the check."""
        rule = RULES.get(func) if func.__hash__ is not None else None
        if rule is not None and func not in RECURRENT:
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                func(*args, **kwargs)  # raises torch's errors for arguments that the rule accepts
        with self.recorder.quiet():
            call = rule(*args, **kwargs) if rule is not None else None
        if call is None:
            return func(*args, **kwargs)
        apply: Any = FusedFunction.apply
        return apply(self.recorder, call, *call.tensors)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A context in which fused calls replace torch's functions. Attention is replaced under its
        name in torch.nn.functional too: a mode is off inside a function that it runs, and so does
        not see the attention that torch's multi-head attention calls."""
        plain = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = partial(self.called, plain)
        try:
            with self:
                yield
        finally:
            F.scaled_dot_product_attention = plain


RECURRENT: Mapping[Any, str] = {getattr(torch, name): name for name in CELLS}
"""torch's function that runs a whole recurrent layer -> the layer's name."""


class Steps(TorchFunctionMode):
    """Notes the recurrent layers that torch decomposes into steps."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch. The name of a recurrent layer is noted for the trace, which says
        that its operations are counted step by step: no rule counts the layer as a whole."""
        if func.__hash__ is not None and func in RECURRENT:
            self.recorder.stepped.add(RECURRENT[func])
        return func(*args, **(kwargs or {}))


FLEX_ATTENTION = "torch.nn.attention.flex_attention"


@contextmanager
def naming_flex_attention(recorder: Recorder) -> Iterator[None]:
    """A context in which flex_attention returns empty results of the right shapes, and is recorded
    as an operation without a count: torch runs it only compiled, with functions of the user. The
    context changes nothing if flex_attention was not imported."""
    home: Any = sys.modules.get(FLEX_ATTENTION)
    if home is None:
        yield
        return

    def stand_in(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
        """Empty tensors of the shapes of flex_attention's results (rows, logarithms of sums,
        maxima); the call is recorded without a count."""
        rows = dense_layout(query, query.shape[:-1])
        results = (dense_layout(query, (*query.shape[:-1], value.shape[-1])), rows, rows)
        call = FusedCall(
            "flex_attention", (query, key, value), results, None, lambda wanted: None,
            keeps=(0, 1, 2), keeps_results=(0, 1), reason=HIGHER_ORDER,
        )  # fmt: skip
        apply: Any = FusedFunction.apply
        return apply(recorder, call, *call.tensors)

    replaced: dict[str, Any] = {
        "flex_attention_hop": stand_in,
        "_validate_device": lambda *tensors: None,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,  # no compiler is asked
    }
    with patch.multiple(home, **{n: v for n, v in replaced.items() if hasattr(home, n)}):
        yield


@contextmanager
def math_backend(recorder: Recorder) -> Iterator[None]:
    """A context in which torch runs its own decompositions: attention as products, softmax and
    products. Recurrent layers that run step by step are noted in `recorder`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), Steps(recorder), naming_flex_attention(recorder):
        yield


@contextmanager
def fused_backend(recorder: Recorder) -> Iterator[None]:
    """Attention, recurrent cells and norms as one operation each; the rest as in `math`."""
    with math_backend(recorder), FusedMode(recorder).inside():
        yield


BACKENDS: Mapping[str, Backend] = {"math": math_backend, "fused": fused_backend}
"""Name of a backend -> the context in which the module runs."""
