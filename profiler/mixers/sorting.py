"""Attention to rows that are sorted first, in PyTorch: Sinkhorn attention and Reformer.

Tay et al. 2020 and Kitaev et al. 2020, with the choices stated in costmodel.mixers.sorting.
Sinkhorn attention scores all complete blocks in one batch, against themselves and against the
sorted blocks. Reformer attends in three batches: the first chunk, the other complete chunks, the
short last chunk. Heads are (b, n, s, h).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from profiler.mixers.pairs import KERNELS, InBlocks
from profiler.modules.attention import EXPLICIT, dense_attention
from profiler.modules.base import Headed, require_sizes
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
    """Sinkhorn attention over blocks of B rows, whose order is a doubly stochastic matrix from T
    rounds of normalisation. W_S is (h, l // B); a shorter sequence uses its first columns."""

    bounded = True
    causal = False

    def __init__(self, *, d: int, l: int, n: int, B: int, T: int) -> None:
        super().__init__(d=d, l=l, n=n, B=B)
        require_sizes(T=T)
        self.T = T
        self.W_S = self.weight(self.K, l // B)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """The attention outputs (b, n, s, h) of queries q, keys k and values v: attention of each
        row to its block of B rows, plus attention to the mixture of blocks that sorting moves to
        its block's place; the short last block has the first term alone."""
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
        """The doubly stochastic matrix that sorts blocks, (b, n, p, q): the share of block p that
        goes to place q, from keys (b, n, p, B, h), p blocks of B rows. Each round divides by the
        sums over q, then by the sums over p."""
        found = torch.exp(k.sum(3) @ self.W_S[:, : k.shape[2]])
        for _ in range(self.T):
            found = found / found.sum(3, keepdim=True)
            found = found / found.sum(2, keepdim=True)
        return found


@implementation(
    "reformer",
    "explicit",
    rewrites=("safe-softmax",),
    kernels=EXPLICIT.kernels
    | dict.fromkeys(("Q", "V", "D", "O", "y"), "contraction")
    | dict.fromkeys(("K_S", "g", "at", "back"), "reduction")
    | dict.fromkeys(("Q_S", "V_S", "R"), "move")
    | {"P": "elementwise"},
)
class Reformer(Headed):
    """Reformer with one round of hashing: W_Q, W_V, W_out (d, d), random directions H (h, m)."""

    H: Tensor

    def __init__(self, *, d: int, l: int, n: int, C: int, m: int) -> None:
        require_sizes(C=C, m=m)
        self.C, self.m = C, m
        super().__init__(d=d, l=l, n=n)

    def declare(self) -> None:
        """The random directions (drawn first, to be equal on every device), three linear maps."""
        self.untrained("H", self.h, self.m)
        self.W_Q: nn.Parameter = self.weight(self.d, self.d)
        self.W_V: nn.Parameter = self.weight(self.d, self.d)
        self.W_out: nn.Parameter = self.weight(self.d, self.d)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): sort rows by bucket, attend in this order (to keys
        q/|q| of the own chunk of C sorted rows and the one before), undo the sort. A row's bucket,
        0 to 2m-1, is the number of its largest product with the directions H, then -H."""
        q, v = self.heads(x @ self.W_Q), self.heads(x @ self.W_V)
        products = q @ self.H
        buckets = torch.cat([products, -products], dim=-1).argmax(-1)
        at = torch.argsort(buckets, stable=True)
        q, v = gathered(q, at), gathered(v, at)
        k = q / torch.sqrt((q * q).sum(-1, keepdim=True))
        rows = gathered(self.attend(q, k, v), torch.argsort(at, stable=True))
        return rows.transpose(1, 2).flatten(2) @ self.W_out

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention outputs (b, n, s, h) of sorted queries q, keys k and values v: each row
        attends to its chunk of C rows and the chunk before (`near`), later rows included."""
        (batch, n, length, h), C = q.shape, self.C
        whole = length - length % C
        found = []
        for start, end in ((0, min(C, length)), (C, whole), (max(C, whole), length)):
            if start < end:
                size, behind = min(C, end - start), min(C, start)
                own = q[:, :, start:end].reshape(batch, n, -1, size, h)
                near = (
                    each[:, :, start - behind : end].unfold(2, behind + size, C).transpose(3, 4)
                    for each in (k, v)
                )
                found.append(dense_attention(own, *near, by=h, causal=False).flatten(2, 3))
        return torch.cat(found, dim=2)


def gathered(rows: Tensor, at: Tensor) -> Tensor:
    """Reorder rows (b, n, s, h): row i of the result is row at[b, n, i]."""
    return rows.gather(2, at.unsqueeze(3).expand_as(rows))
