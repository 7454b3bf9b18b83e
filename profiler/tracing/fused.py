"""What does a fused operation do, forward and backward, and what does it keep?

Attention, norms and recurrent layers counted as one operation each, where torch's functions are
called: the arithmetic is that of the documented definition, with work that a kernel need not repeat
done once, and masked pairs not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor
from torch.overrides import TorchFunctionMode

from profiler.counters.backward_rules import attention_backward
from profiler.counters.call import Call
from profiler.counters.operations import FUNCTIONS, NOTHING, Operations, counted, other
from profiler.counters.rules import fused_attention, visible_pairs
from profiler.tracing.observe import Recorder
from profiler.tracing.target import TraceError


@dataclass(frozen=True)
class Fused:
    """One fused call: its operations, the shapes of its results, and what it keeps.

    `backward` is given, for each tensor argument, whether its gradient is wanted. `keeps` names
    the arguments and results that are saved, by position; `workspace` numbers are saved besides.
    """

    name: str
    tensors: tuple[Tensor | None, ...]
    results: tuple[tuple[int, ...], ...]
    forward: Operations
    backward: Callable[[Sequence[bool]], Operations]
    keeps: tuple[int, ...]
    keeps_results: tuple[int, ...] = ()
    workspace: int = 0


class Applied(torch.autograd.Function):
    """A fused call as autograd sees it: empty results, and empty gradients of the same shapes."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, call: Fused, *tensors: Tensor | None) -> Any:
        """Empty results; what the call keeps is saved."""
        given = [t for t in tensors if t is not None]
        with recorder.quiet():
            results = tuple(given[0].new_empty(shape) for shape in call.results)
            workspace = [given[0].new_empty(call.workspace)] if call.workspace else []
        recorder.add(call.name, call.forward)
        kept = [tensors[i] for i in call.keeps if tensors[i] is not None]
        ctx.save_for_backward(*kept, *(results[i] for i in call.keeps_results), *workspace)
        ctx.recorder, ctx.call = recorder, call
        ctx.shapes = [None if t is None else (t.shape, t.dtype) for t in tensors]
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Empty gradients of what has one."""
        wanted = ctx.needs_input_grad[2:]
        ctx.recorder.add(f"{ctx.call.name} backward", ctx.call.backward(wanted))
        with ctx.recorder.quiet():
            made = [
                torch.empty(shape[0], dtype=shape[1], device="meta") if needed else None
                for shape, needed in zip(ctx.shapes, wanted, strict=True)
            ]
        return (None, None, *made)


# attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Fused:
    """Scaled dot-product attention; causal, row i has i pairs and masked pairs cost nothing."""
    rows, keys, width, values = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
    heads = prod(query.shape[:-2])
    result = (*query.shape[:-1], values)
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
        forward += (other("random") + Operations(mul=1)) * pairs
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

    return Fused(
        "fused attention", (query, key, value, attn_mask), (result,), forward, backward,
        keeps=(0, 1, 2, 3), keeps_results=(0,), workspace=rows * heads,
    )  # fmt: skip


# norms


def centred(entries: int, rows: int) -> Operations:
    """Mean, differences, their squares' mean, its root's reciprocal, and the product with it."""
    mean = Operations(add=entries - rows, div=rows)
    spread = Operations(mul=entries, add=2 * entries - rows, div=rows)
    root = (Operations(add=1) + FUNCTIONS["rsqrt"]) * rows
    return mean + spread + root + Operations(mul=entries)


def affine(entries: int, weight: Tensor | None, bias: Tensor | None) -> Operations:
    """A factor and a term at every entry, where there are any."""
    factor = Operations(mul=entries if weight is not None else 0)
    return factor + Operations(add=entries if bias is not None else 0)


def centred_backward(
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
) -> Fused:
    """y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias along each row: its documentation."""
    entries, rows = input.numel(), input.numel() // max(1, prod(normalized_shape))
    return Fused(
        "fused layer norm", (input, weight, bias), (tuple(input.shape),),
        centred(entries, rows) + affine(entries, weight, bias),
        lambda wanted: centred_backward(entries, rows, weight, wanted),
        keeps=(0, 1, 2), workspace=2 * rows,
    )  # fmt: skip


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Fused:
    """As layer_norm, a row being a group of channels; weight and bias belong to channels."""
    entries, rows = input.numel(), input.shape[0] * num_groups
    return Fused(
        "fused group norm", (input, weight, bias), (tuple(input.shape),),
        centred(entries, rows) + affine(entries, weight, bias),
        lambda wanted: centred_backward(entries, rows, weight, wanted),
        keeps=(0, 1), workspace=2 * rows,
    )  # fmt: skip


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Fused:
    """y = x / sqrt(mean(x * x) + eps) * weight along each row: its documentation."""
    entries, rows = input.numel(), input.numel() // max(1, prod(normalized_shape))
    forward = Operations(mul=2 * entries, add=entries - rows, div=rows)
    forward += (Operations(add=1) + FUNCTIONS["rsqrt"]) * rows + affine(entries, weight, None)

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

    return Fused(
        "fused RMS norm", (input, weight), (tuple(input.shape),), forward, backward,
        keeps=(0, 1), workspace=rows,
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
) -> Fused:
    """As layer_norm, a row being a channel over all places of the batch; in training the running
    mean and variance take (1 - m) r + m new, the variance corrected by n / (n - 1)."""
    entries, rows = input.numel(), input.shape[1]
    if training:
        forward = centred(entries, rows)
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

    return Fused(
        "fused batch norm", (input, weight, bias), (tuple(input.shape),),
        forward + affine(entries, weight, bias), backward,
        keeps=(0, 1), workspace=2 * rows if training else 0,
    )  # fmt: skip


# recurrent layers


@dataclass(frozen=True)
class Cell:
    """A recurrent cell of width 1: gates, and operations per unit beside its linear maps."""

    gates: int
    forward: Operations
    backward: Operations
    states: int = 1


SIGMOID = FUNCTIONS["sigmoid"]
TANH = other("tanh")

CELLS: Mapping[str, Cell] = {
    # h = tanh(a), a the sum of both maps; dh (1 - h * h)
    "rnn_tanh": Cell(1, counted(("add",)) + TANH, counted(("mul", "add", "mul"))),
    "rnn_relu": Cell(1, counted(("add", "compare")), counted(("compare",))),
    # four sums of both maps, i, f, o sigmoids, g tanh; c = f c + i g; h = o tanh(c).
    # Backward: do = dh t, dc = dh o (1 - t t) + dc'; di = dc g, df = dc c', dg = dc i, dc f;
    # times (1 - y) y for i, f, o and (1 - g g): 16 mul, 6 add; t = tanh(c) again.
    "lstm": Cell(
        4,
        Operations(add=4) + SIGMOID * 3 + TANH * 2 + Operations(mul=3, add=1),
        Operations(mul=16, add=6) + TANH,
        states=2,
    ),
    # r, z sums of both maps; n = tanh(a + r b); h = (1 - z) n + z h'.
    # Backward: dz = dh (h' - n) (1 - z) z, dn = dh (1 - z) (1 - n n), dh z, dr = dn b (1 - r) r,
    # db = dn r: 11 mul, 4 add; dh' = dh z + W^T (...): 1 add.
    "gru": Cell(
        3,
        Operations(add=2) + SIGMOID * 2 + Operations(mul=1, add=1) + TANH
        + Operations(mul=2, add=2),
        Operations(mul=11, add=5),
    ),
}  # fmt: skip
"""Per unit, step and sequence: the equations in the documentation of torch.nn.RNN, LSTM and GRU,
and their derivatives as the kernels of the fused cells compute them."""


def recurrent(kind: str) -> Callable[..., Fused | None]:
    """A whole recurrent layer, its steps, layers and directions in one call."""
    cell = CELLS[kind]

    def rule(
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any = True,
        num_layers: Any = 1,
        dropout: float = 0.0,
        train: bool = False,
        bidirectional: bool = False,
        batch_first: bool = False,
        *more: Any,
    ) -> Fused | None:
        if isinstance(hx, Tensor) and not isinstance(params, list | tuple):
            return None  # sequences of several lengths, packed: torch's own steps
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        if isinstance(params, Tensor) or not isinstance(params[0], Tensor):
            return None
        batched = input.dim() == 3
        steps = input.shape[1 if batch_first and batched else 0]
        batch = (input.shape[0 if batch_first else 1]) if batched else 1
        sides = 2 if bidirectional else 1
        width = states[0].shape[-1]
        units = params[0].shape[0] // cell.gates
        if width != units:
            return None  # projected states: torch's own steps
        rows, wide = batch * steps, input.shape[-1]
        gates = cell.gates * units
        forward = NOTHING
        maps = []
        for layer in range(num_layers):
            inputs = wide if layer == 0 else sides * units
            maps += [inputs] * sides
            if layer and dropout and train:
                forward += (other("random") + Operations(mul=1)) * (rows * inputs)
        for inputs in maps:
            forward += Operations(
                mul=gates * (inputs + units),
                add=gates * (inputs - 1 + units - 1) + (2 * gates if has_biases else 0),
            ) * rows + cell.forward * (rows * units)

        def backward(wanted: Sequence[bool]) -> Operations:
            total = NOTHING
            for place, inputs in enumerate(maps):
                total += cell.backward * (rows * units) + Operations(add=rows * units)
                if place >= sides or wanted[0]:
                    total += Operations(mul=gates * inputs, add=(gates - 1) * inputs) * rows
                    again = bidirectional and place % sides
                    total += Operations(add=rows * inputs if again else 0)
                total += Operations(mul=gates * units, add=(gates - 1) * units) * rows
                total += Operations(mul=rows, add=rows - 1) * (gates * (inputs + units))
                total += Operations(add=2 * gates * (rows - 1) if has_biases else 0)
                if place >= sides and dropout and train and place % sides == 0:
                    total += Operations(mul=rows * inputs)
            return total

        shape = (*input.shape[:-1], sides * units)
        kept = rows * (gates + (cell.states - 1) * units) * len(maps)
        return Fused(
            f"fused {kind}", (input, *states, *params), (shape, *(tuple(s.shape) for s in states)),
            forward, backward, keeps=tuple(range(1 + len(states) + len(params))),
            keeps_results=(0,), workspace=kept,
        )  # fmt: skip

    return rule


def cell_call(kind: str) -> Callable[..., Fused]:
    """One step of a recurrent cell."""
    layer = recurrent(kind)

    def rule(input: Tensor, hx: Any, *params: Tensor | None) -> Fused:
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        weights = [p for p in params if p is not None]
        row, held = input.unsqueeze(0), [s.unsqueeze(0) for s in states]
        found = layer(row, held, weights, len(weights) > 2, 1)
        if found is None:
            raise TraceError(f"{kind}: a fused cell takes states as wide as its gates")
        return Fused(
            found.name, (input, *states, *weights), tuple(tuple(s.shape) for s in states),
            found.forward, found.backward, keeps=found.keeps, keeps_results=(0,),
            workspace=found.workspace,
        )  # fmt: skip

    return rule


RULES: Mapping[Any, Callable[..., Fused | None]] = {
    F.scaled_dot_product_attention: attention,
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    F.batch_norm: batch_norm,
    **{getattr(torch, name): recurrent(name) for name in CELLS},
    **{getattr(torch, f"{name}_cell"): cell_call(name) for name in CELLS},
}
"""torch's functions -> the fused call that stands for them; None where the rule does not reach and
torch's own decomposition is counted."""


class FusedMode(TorchFunctionMode):
    """Puts fused calls in the place of torch's functions."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.called(func, *args, **(kwargs or {}))

    def called(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """The fused call that stands for a function, or else the function itself."""
        rule = RULES.get(func) if func.__hash__ is not None else None
        with self.recorder.quiet():
            call = rule(*args, **kwargs) if rule is not None else None
        if call is None:
            return func(*args, **kwargs)
        apply: Any = Applied.apply
        return apply(self.recorder, call, *call.tensors)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Reach the attention within torch's own multi-head attention too: no mode is asked about
        what a function of torch calls by its name in torch.nn.functional."""
        plain = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = partial(self.called, plain)
        try:
            with self:
                yield
        finally:
            F.scaled_dot_product_attention = plain
