"""How is a linear recurrence computed by a parallel scan, with a scan back for its gradient?

Kogge and Stone 1973: in rounds, each row is combined with the row 1, 2, 4, ... rows before it. The
gradient is a scan from the last row to the first with the same decays, as in the backward kernel of
Mamba (selective_scan_bwd_kernel.cuh of mamba-ssm), and nothing of the rounds is kept for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scan(kept: Tensor, added: Tensor, dim: int = 1) -> Tensor:
    """S with S_1 = added_1 and S_i = kept_i S_(i-1) + added_i for rows i along the axis `dim`.
    `kept` has as many axes as `added`, of the same extent, or of 1 after `dim`; its first row
    changes no result."""
    found: Tensor = _Scan.apply(kept, added, dim)  # type: ignore[no-untyped-call] # torch has none
    return found


def _rounds(kept: Tensor, added: Tensor, dim: int) -> Tensor:
    """The rows S_i = kept_i S_(i-1) + added_i along the axis `dim`. After a round, row i of `added`
    is the sum of twice as many terms, and row i of `kept` the product of as many decays."""
    rows, apart = added.shape[dim], 1
    while apart < rows:
        first, late, early = (0, apart), (apart, rows - apart), (0, rows - apart)
        decays = kept.narrow(dim, *late)
        sums = decays * added.narrow(dim, *early) + added.narrow(dim, *late)
        products = decays * kept.narrow(dim, *early)
        added = torch.cat((added.narrow(dim, *first), sums), dim)
        kept = torch.cat((kept.narrow(dim, *first), products), dim)
        apart *= 2
    return added


class _Scan(torch.autograd.Function):
    """The scan, and its gradients for decays and rows."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, added: Tensor, dim: int) -> Tensor:
        """The rows of the scan; decays and, for their gradient, rows are saved."""
        rows = _rounds(kept, added, dim)
        ctx.dim = dim
        ctx.save_for_backward(kept, *([rows] if ctx.needs_input_grad[0] else []))
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        """The gradients of `kept` (None if not asked for) and of `added`, from d_i, the gradient of
        row S_i = kept_i S_(i-1) + added_i. That of added_i is g_i = d_i + kept_(i+1) g_(i+1), a
        scan from the last row back; that of kept_i is g_i S_(i-1), and 0 for the first row."""
        (kept, *rows), (gradient,), dim = ctx.saved_tensors, gradients, ctx.dim
        later = (dim, 1, kept.shape[dim] - 1)
        first = kept.narrow(dim, 0, 1)
        # kept_(i+1) in row i; after the last row any number, as a scan's first decay has no effect
        after = torch.cat((kept.narrow(*later), torch.ones_like(first)), dim)
        back = _rounds(after.flip(dim), gradient.flip(dim), dim).flip(dim)
        if not rows:
            return None, back, None
        before = rows[0].narrow(dim, 0, kept.shape[dim] - 1)
        of_kept = (back.narrow(*later) * before).sum_to_size(kept.narrow(*later).shape)
        return torch.cat((torch.zeros_like(first), of_kept), dim), back, None
