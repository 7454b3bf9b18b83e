"""How many scalar operations do torch's norms perform, forward and backward?

(x - E[x]) / sqrt(Var[x] + eps) * weight + bias, as torch's kernels compute it: one reciprocal root
per row, which the backward pass reads, and a product per entry. A row is the numbers that share a
mean; `entries` are the entries of all rows. `wanted` says whether the gradients of x, weight and
bias are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from profiler.counting.call import Call, Rule, is_tensor
from profiler.counting.forward_rules import refuse_complex
from profiler.counting.operations import FUNCTIONS, Operations

if TYPE_CHECKING:
    from torch import Tensor

RECIPROCAL_ROOT = Operations(add=1) + FUNCTIONS["rsqrt"]
"""1 / sqrt(variance + eps)."""


def normalised(entries: int, rows: int) -> Operations:
    """The operations of x' = (x - mean) / sqrt(variance + eps) along `rows` rows with `entries`
    entries together: mean, differences, the mean of their squares, the reciprocal root of this mean
    plus eps, and a product an entry."""
    mean = Operations(add=entries - rows, div=rows)
    spread = Operations(mul=entries, add=2 * entries - rows, div=rows)
    return mean + spread + RECIPROCAL_ROOT * rows + Operations(mul=entries)


def gain_and_bias(entries: int, weight: Tensor | None, bias: Tensor | None) -> Operations:
    """A product with `weight` and a sum with `bias` at every entry, where they are given."""
    factor = Operations(mul=entries if weight is not None else 0)
    return factor + Operations(add=entries if bias is not None else 0)


def row_norm(entries: int, rows: int, weight: Tensor | None, bias: Tensor | None) -> Operations:
    """The operations of a layer norm or group norm over `rows` rows of `entries` entries in all."""
    return normalised(entries, rows) + gain_and_bias(entries, weight, bias)


def row_norm_backward(
    entries: int, rows: int, weight: Tensor | None, wanted: Sequence[bool]
) -> Operations:
    """The operations of the gradients of a layer norm or a group norm, from the saved r = 1 /
    sqrt(variance + eps). With x' = (x - mean) r and g = weight dy: dx = (N g - sum g - x' sum(g
    x')) r / N along a row of N entries; dweight = sum(dy x'); dbias = sum dy. As torch's kernels
    layer_norm_backward and group_norm_backward compute them. `entries`: of all rows; `wanted`:
    whether dx, dweight and dbias are computed."""
    # x'
    total = Operations(mul=entries, add=entries) if wanted[0] or wanted[1] else Operations()
    if wanted[0]:  # g, both sums, dx
        total += Operations(mul=entries if weight is not None else 0)
        total += Operations(mul=entries, add=2 * (entries - rows))
        total += Operations(mul=3 * entries, add=2 * entries, div=rows)
    if weight is not None and wanted[1]:
        total += Operations(mul=entries, add=max(entries - weight.numel(), 0))
    if weight is not None and wanted[2]:
        total += Operations(add=max(entries - weight.numel(), 0))
    return total


def rms_norm(entries: int, rows: int, weight: Tensor | None) -> Operations:
    """The operations of x / sqrt(mean(x * x) + eps) * weight along each row, one root a row."""
    squares = Operations(mul=2 * entries, add=entries - rows, div=rows)
    return squares + RECIPROCAL_ROOT * rows + gain_and_bias(entries, weight, None)


def rms_norm_backward(
    entries: int, rows: int, weight: Tensor | None, wanted: Sequence[bool]
) -> Operations:
    """The operations of the gradients of an RMS norm over `rows` rows, from the saved r = 1 /
    sqrt(mean(x * x) + eps). With x' = x r and g = weight dy: dx = (g - x' sum(g x') / N) r along a
    row of N entries; dweight = sum(dy x'). `wanted`: whether dx and dweight are computed."""
    total = Operations(mul=entries)  # x'
    if wanted[0]:  # g, its sum, dx
        total += Operations(mul=entries if weight is not None else 0)
        total += Operations(mul=entries, add=entries - rows, div=rows)
        total += Operations(mul=2 * entries, add=entries)
    if weight is not None and wanted[1]:
        total += Operations(mul=entries, add=max(entries - weight.numel(), 0))
    return total


def batch_norm(
    entries: int,
    rows: int,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    training: bool,
    running: bool,
) -> Operations:
    """The operations of a batch norm, of which a row is one channel over the whole batch. In
    training it is a layer norm over these rows; with `running`, the running mean and variance r
    become (1 - m) r + m new, the new variance times n / (n - 1). Else the running ones are
    constants: a reciprocal root per row, and per entry a difference and a product."""
    if training:
        own = normalised(entries, rows) + Operations(mul=5, add=2) * (rows if running else 0)
    else:
        own = Operations(mul=entries, add=entries) + RECIPROCAL_ROOT * rows
    return own + gain_and_bias(entries, weight, bias)


def batch_norm_backward(
    entries: int, rows: int, weight: Tensor | None, wanted: Sequence[bool], *, training: bool
) -> Operations:
    """The operations of the gradients of a batch norm over `rows` channels of N = entries / rows
    numbers: in training dx = weight r / N (N dy - dbias - x' dweight) with the saved r = 1 /
    sqrt(variance + eps) and x' = (x - mean) r; else dx = dy weight r, for which r is computed
    again. dweight = sum(dy x'), dbias = sum dy. `wanted`: whether dx, dweight and dbias are
    computed."""
    total = RECIPROCAL_ROOT * (0 if training else rows)
    if (training and wanted[0]) or (weight is not None and wanted[1]):
        total += Operations(mul=2 * entries, add=2 * entries - rows)  # x', sum(dy x')
    if (training and wanted[0]) or wanted[2]:
        total += Operations(add=entries - rows)  # sum dy
    if wanted[0]:  # weight r, dx
        total += Operations(mul=rows if weight is not None else 0)
        whole = Operations(mul=3 * entries, add=2 * entries, div=rows)
        total += whole if training else Operations(mul=entries)
    return total


# The dispatched operations.


def given(call: Call, name: str) -> Tensor | None:
    """The tensor argument of this name; None if it is left out or empty."""
    found = call.arguments.get(name)
    return found if is_tensor(found) and found.numel() else None


def source_of(call: Call) -> Tensor:
    """The tensor that is normalised; CountError if it is complex."""
    source = call.tensor("input")
    refuse_complex(call, source)
    return source


def rows_of(call: Call, source: Tensor) -> int:
    """The number of rows, each normalised alone: groups of all sequences (group norm), rows of
    `normalized_shape` (layer and RMS norm), channels (batch norm)."""
    if "group" in call.arguments:
        return int(call.arguments["N"]) * int(call.arguments["group"])
    if "normalized_shape" in call.arguments:
        return int(source.numel() // max(1, prod(call.arguments["normalized_shape"])))
    return int(source.shape[1])


def forward_rule(call: Call, *, rms: bool = False) -> Operations:
    """The operations of a call of a layer norm, a group norm or, with `rms`, an RMS norm."""
    source = source_of(call)
    entries, rows, weight = source.numel(), rows_of(call, source), given(call, "weight")
    if rms:
        return rms_norm(entries, rows, weight)
    return row_norm(entries, rows, weight, given(call, "bias"))


def backward_rule(call: Call, *, rms: bool = False) -> Operations:
    """The operations of those gradients of a layer, group or RMS norm that the call's `output_mask`
    asks for."""
    source = source_of(call)
    entries, rows, weight = source.numel(), rows_of(call, source), given(call, "weight")
    backward = rms_norm_backward if rms else row_norm_backward
    return backward(entries, rows, weight, call.arguments["output_mask"])


def batch_rule(call: Call, *, training: bool | None = None) -> Operations:
    """The operations of a call of a batch norm, by any of torch's kernels; with `training` None,
    the call's own argument says whether it trains."""
    source = source_of(call)
    return batch_norm(
        source.numel(),
        rows_of(call, source),
        given(call, "weight"),
        given(call, "bias"),
        training=bool(call.arguments["training"]) if training is None else training,
        running=given(call, "running_mean") is not None,
    )


def batch_backward_rule(call: Call, mode: str = "") -> Operations:
    """The operations of a call for the gradients of a batch norm. `mode` names the argument that is
    true in training, "" for a kernel that runs in training alone."""
    source = source_of(call)
    return batch_norm_backward(
        source.numel(),
        rows_of(call, source),
        given(call, "weight"),
        call.arguments.get("output_mask", (True, True, True)),
        training=bool(call.arguments[mode]) if mode else True,
    )


NORM_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), forward_rule),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward"), backward_rule),
    "_fused_rms_norm": partial(forward_rule, rms=True),
    "_fused_rms_norm_backward": partial(backward_rule, rms=True),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm"),
        batch_rule,
    ),
    "_batch_norm_with_update": partial(batch_rule, training=True),
    "_batch_norm_no_update": partial(batch_rule, training=False),
    "native_batch_norm_backward": partial(batch_backward_rule, mode="train"),
    "batch_norm_backward": partial(batch_backward_rule, mode="update"),
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), batch_backward_rule
    ),
}
