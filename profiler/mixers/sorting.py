"""How does attention to blocks that are sorted first run in PyTorch?

Sinkhorn: all whole blocks are scored together, against themselves and against the sorted ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from profiler.mixers.pairs import KERNELS, InBlocks
from profiler.modules.attention import dense_attention
from profiler.modules.base import require_sizes
from profiler.modules.registry import implementation


@implementation(
    "sinkhorn",
    "explicit",
    rewrites=("safe-softmax",),
    kernels=KERNELS
    | dict.fromkeys(("L", "K_S", "V_S", "Z_S", "O"), "contraction")
    | dict.fromkeys(("X", "N_r", "N_c"), "reduction")
    | dict.fromkeys(("S", "P"), "elementwise")
    | {"A_S": "softmax"},
)
class Sinkhorn(InBlocks):
    """n heads; W_S is (h, l // B), of which a shorter sequence takes the first columns."""

    bounded = True
    causal = False

    def __init__(
        self,
        *,
        d: int,
        l: int,
        n: int,
        B: int,
        T: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d=d, l=l, n=n, B=B, device=device, dtype=dtype)
        require_sizes(T=T)
        self.T = T
        self.W_S = self.weight(self.K, l // B)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """R (b, n, s, h): of each row's own block, and of the block sorted to its place."""
        rows = super().attend(q, k, v, causal=causal)
        end = q.shape[2] // self.B * self.B
        if end == 0:
            return rows
        shape = (*q.shape[:2], -1, self.B, self.K)
        q, k, v = (each[:, :, :end].reshape(shape) for each in (q, k, v))
        shares = self.shares(k).transpose(2, 3)
        k, v = (torch.matmul(shares, each.flatten(3)).view_as(each) for each in (k, v))
        moved = dense_attention(q, k, v, by=self.K, causal=causal).flatten(2, 3)
        return torch.cat([rows[:, :, :end] + moved, rows[:, :, end:]], dim=2)

    def shares(self, k: Tensor) -> Tensor:
        """How much of block p goes to place q, (b, n, p, q), of keys (b, n, p, B, h)."""
        found = torch.exp(k.sum(3) @ self.W_S[:, : k.shape[2]])
        for _ in range(self.T):
            found = found / found.sum(3, keepdim=True)
            found = found / found.sum(2, keepdim=True)
        return found
