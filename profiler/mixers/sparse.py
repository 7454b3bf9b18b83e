"""How does sparse attention run in PyTorch?

Every pair is scored, then the pairs outside the pattern are masked.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from profiler.mixers.self_attention import PROJECTIONS, Heads
from profiler.modules.attention import EXPLICIT, dense_attention, products
from profiler.modules.base import require_sizes
from profiler.modules.registry import implementation

KERNELS = PROJECTIONS | EXPLICIT.kernels


@implementation(
    "longformer",
    "explicit",
    rewrites=EXPLICIT.rewrites,
    kernels=KERNELS | dict.fromkeys(("Q_g", "K_g", "V_g"), "contraction"),
)
class Longformer(Heads):
    """A window of w rows, and s rows that see all and are seen by all."""

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        w: int,
        s: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, n=n, device=device, dtype=dtype)
        require_sizes(w=w, s=s)
        self.w, self.s = w, s
        self.W_Q_g, self.W_K_g, self.W_V_g = (self.weight(d, d) for _ in range(3))

    def mix(self, x: Tensor) -> Tensor:
        """The global rows by their own projections, then the others; y (b, s, d)."""
        first = (x[:, : self.s] @ self.W_Q_g, x @ self.W_K_g, x @ self.W_V_g)
        q, k, v = (self._split(rows).transpose(1, 2) for rows in first)
        found = [dense_attention(q, k, v, by=self.K, causal=False)]
        rest = (self._queries(x[:, self.s :]), *self._keys_and_values(x))
        found.append(self.near(*(rows.transpose(1, 2) for rows in rest)))
        return torch.cat(found, dim=2).transpose(1, 2).flatten(2) @ self.W_out

    def near(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The rows behind the global ones over these and their windows."""
        length, side = int(k.shape[2]), self.w // 2
        apart = torch.ones(length, length, dtype=torch.bool, device=q.device)
        outside = (apart.triu(side + 1) | apart.tril(-side - 1))[self.s :, self.s :]
        outside = F.pad(outside, (min(self.s, length), 0))
        scores = products(q, k) / math.sqrt(self.K)
        return torch.softmax(scores.masked_fill(outside, -math.inf), dim=-1) @ v
