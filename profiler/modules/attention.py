"""Softmax attention in PyTorch, step by step or in one fused call, shared by several mixers.

Shapes: queries q (b, n, s, w), keys k (b, g, t, w), values v (b, g, t, u), result (b, n, s, u),
for n heads, s queries and t keys. With g < n (grouped-query attention), each of the g key and value
heads serves n/g consecutive query heads; keys and values are not copied. Source: Vaswani et al.
2017, arXiv 1706.03762, equation (1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from profiler.modules.base import Unsupported


class Attend(Protocol):
    """A function that computes softmax(q k^T / sqrt(`by`)) v, with a causal mask if `causal`."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, by: int, causal: bool) -> Tensor:
        """The rows of all heads, (b, n, s, u)."""
        ...


@dataclass(frozen=True)
class Attention:
    """An implementation of attention, with the rewrites of the equations that it executes and the
    kernel classes of the scores Z, the attention weights A and the heads' rows R."""

    name: str
    compute: Attend
    rewrites: tuple[str, ...]
    kernels: dict[str, str] = field(hash=False)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    by: int,
    causal: bool,
    window: int | None = None,
    cap: float | None = None,
    sink: Tensor | None = None,
    scaled: bool = True,
    both: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """Softmax attention from all scores q k^T: they are computed, divided, masked by -inf, and
    their softmax weighs the values.

    Args:
        q, k, v: as in the module's docstring; s = t if `causal` or `both`.
        by: scores are divided by sqrt(`by`).
        causal: whether the scores of later tokens are masked.
        window: if `causal`, the scores of all but the last `window` tokens are masked too, the
            query's own token included; None for no window.
        cap: scores s become cap * tanh(s / cap); None for no bound.
        sink: a further score per head (n, 1, 1), in the softmax's denominator alone.
        scaled: whether scores are divided.
        both: whether the scores of tokens `window` or more away on either side are masked.
        bias: what is added to the scores, (n, s, t) or broadcast to it; None for nothing.

    Returns:
        The rows of all heads, (b, n, s, u).
    """
    scores = products(q, k) / math.sqrt(by) if scaled else products(q, k)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    if causal or (both and window is not None):
        length = scores.shape[-1]
        after = 1 if causal or window is None else window
        outside = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(after)
        if window is not None:
            outside |= torch.ones_like(outside).tril(-window)
        scores = scores.masked_fill(outside, -math.inf)
    weights = torch.softmax(scores, dim=-1) if sink is None else sink_softmax(scores, sink)
    return by_groups(weights, v)


def sink_softmax(scores: Tensor, sink: Tensor) -> Tensor:
    """The softmax of scores (b, n, s, t) along t, with one more score per head (n, 1, 1) in the
    denominator. The maximum is subtracted without a gradient, since it cancels in the quotient."""
    largest = torch.maximum(scores.detach().amax(-1, keepdim=True), sink.detach())
    powers = torch.exp(scores - largest)
    return powers / (powers.sum(-1, keepdim=True) + torch.exp(sink - largest))


def products(q: Tensor, k: Tensor) -> Tensor:
    """The dot products of all queries and keys, (b, n, s, t)."""
    return by_groups(q, k.transpose(-2, -1))


def by_groups(rows: Tensor, shared: Tensor) -> Tensor:
    """Multiply rows (b, n, s, x) of n heads by the matrix `shared` (b, g, x, y) of their head's
    group: (b, n, s, y)."""
    if shared.shape[1] == rows.shape[1]:
        return rows @ shared
    batch, groups = shared.shape[:2]
    found = rows.reshape(batch, groups, -1, rows.shape[-1]) @ shared
    return found.view(*rows.shape[:-1], -1)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, *, by: int, causal: bool) -> Tensor:
    """Softmax attention by one call of PyTorch's scaled_dot_product_attention, which skips masked
    pairs: the rows of all heads, (b, n, s, u). Scores are divided by sqrt(`by`).

    The count follows the reference arithmetic in that function's documentation, which multiplies
    each score by the scale.

    Raises:
        Unsupported: the device has no fused kernel for the operands; PyTorch would silently take a
            dense path with other counts.
    """
    if not _has_fused_kernel(q, k, v, causal):
        values = "" if v.shape[-1] == q.shape[-1] else f" and values of width {v.shape[-1]}"
        raise Unsupported(
            f"no fused attention kernel on {q.device.type} for {q.dtype} with heads of width "
            f"{q.shape[-1]}{values}: take the implementation 'explicit' or another dtype"
        )
    attend = F.scaled_dot_product_attention
    if k.shape[1] != q.shape[1]:
        attend = partial(attend, enable_gqa=True)  # fvcore accepts only calls without it
    return attend(q, k, v, is_causal=causal, scale=by**-0.5)


def _has_fused_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether a fused kernel of PyTorch accepts the operands.

    The kernel of the CPU requires values as wide as the queries.
    """
    if q.device.type != "cuda":
        return v.shape[-1] == q.shape[-1]
    cuda = torch.backends.cuda
    operands = cuda.SDPAParams(q, k, v, None, 0.0, causal, k.shape[1] != q.shape[1])
    return (
        cuda.can_use_flash_attention(operands)
        or cuda.can_use_efficient_attention(operands)
        or cuda.can_use_cudnn_attention(operands)
    )


EXPLICIT = Attention(
    "explicit",
    dense_attention,
    ("dense", "safe-softmax"),
    {"Z": "contraction", "A": "softmax", "R": "contraction"},
)
SDPA = Attention(
    "sdpa",
    sdpa_attention,
    ("safe-softmax", "scale=mul"),
    dict.fromkeys(("Z", "A", "R"), "fused-attention"),
)
