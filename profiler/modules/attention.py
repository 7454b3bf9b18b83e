"""How do queries attend to keys and values in PyTorch: step by step, or in one fused call?

Shared by the mixers that attend with softmax. Queries are (b, n, s, w), keys (b, g, t, w), values
(b, g, t, u), and the result is (b, n, s, u); each of g heads of keys and values serves the next n/g
heads of queries, uncopied.
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
    """Values weighted by the softmax of scores, which are first divided by sqrt(`by`)."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, by: int, causal: bool) -> Tensor:
        """The heads' rows, (b, n, s, u)."""
        ...


@dataclass(frozen=True)
class Attention:
    """A way to attend: the rewrites that it means, and the kernel classes of the scores Z, the
    attention A and the heads' rows R."""

    name: str
    compute: Attend
    rewrites: tuple[str, ...]
    kernels: dict[str, str] = field(hash=False)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, by: int, causal: bool) -> Tensor:
    """Every score is computed and divided, then those of later tokens are masked."""
    scores = products(q, k) / math.sqrt(by)
    if causal:
        length = scores.shape[-1]
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return by_groups(torch.softmax(scores, dim=-1), v)


def products(q: Tensor, k: Tensor) -> Tensor:
    """Every query times every key, (b, n, s, t)."""
    return by_groups(q, k.transpose(-2, -1))


def by_groups(rows: Tensor, shared: Tensor) -> Tensor:
    """Rows (b, n, s, x) times what their group of heads shares, (b, g, x, y): (b, n, s, y)."""
    if shared.shape[1] == rows.shape[1]:
        return rows @ shared
    batch, groups = shared.shape[:2]
    found = rows.reshape(batch, groups, -1, rows.shape[-1]) @ shared
    return found.view(*rows.shape[:-1], -1)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, *, by: int, causal: bool) -> Tensor:
    """One call of PyTorch's scaled_dot_product_attention: masked pairs are skipped.

    Counted by the reference arithmetic in that function's documentation, which multiplies each
    score by the scale. Raises Unsupported where the device has no fused kernel for these operands:
    PyTorch would silently take a dense path that the count does not describe.
    """
    if not _has_fused_kernel(q, k, v, causal):
        values = "" if v.shape[-1] == q.shape[-1] else f" and values of width {v.shape[-1]}"
        raise Unsupported(
            f"no fused attention kernel on {q.device.type} for {q.dtype} with heads of width "
            f"{q.shape[-1]}{values}: take the implementation 'explicit' or another dtype"
        )
    attend = F.scaled_dot_product_attention
    if k.shape[1] != q.shape[1]:
        attend = partial(attend, enable_gqa=True)  # fvcore reads calls without this word alone
    return attend(q, k, v, is_causal=causal, scale=by**-0.5)


def _has_fused_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether one of PyTorch's fused kernels accepts these operands.

    The CPU's kernel accepts only values as wide as the queries.
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
