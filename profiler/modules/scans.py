"""How is a linear recurrence computed by a parallel scan, with a scan back for its gradient?

Kogge and Stone 1973: in rounds, each row is combined with the row 1, 2, 4, ... rows before it. The
gradient is a scan from the last row to the first with the same decays, as in the backward kernel of
Mamba (selective_scan_bwd_kernel.cuh of mamba-ssm), and nothing of the rounds is kept for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scan(kept: Tensor, added: Tensor) -> Tensor:
    """S (b, s, ...) with S_1 = added_1 and S_i = kept_i S_(i-1) + added_i. `added` is (b, s, ...);
    `kept` has as many axes, of the same extent or 1 behind the second, and its first row changes no
    result."""
    found: Tensor = _Scan.apply(kept, added)  # type: ignore[no-untyped-call] # torch has no types
    return found


def _rounds(kept: Tensor, added: Tensor) -> Tensor:
    """The rows of the scan, (b, s, ...), round by round."""
    apart = 1
    while apart < added.shape[1]:
        late = kept[:, apart:]
        sums = late * added[:, :-apart] + added[:, apart:]
        added = torch.cat((added[:, :apart], sums), dim=1)
        kept = torch.cat((kept[:, :apart], late * kept[:, :-apart]), dim=1)
        apart *= 2
    return added


class _Scan(torch.autograd.Function):
    """The scan, and its gradients for decays and rows."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, added: Tensor) -> Tensor:
        """The rows of the scan; decays and rows are saved."""
        found = _rounds(kept, added)
        ctx.save_for_backward(kept, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of `kept` and `added`: those of the first row's decay are 0."""
        kept, found = ctx.saved_tensors
        (gradient,) = gradients
        after = torch.cat((kept[:, 1:], torch.ones_like(kept[:, :1])), dim=1)
        back = _rounds(after.flip(1), gradient.flip(1)).flip(1)
        of_kept = (back[:, 1:] * found[:, :-1]).sum_to_size(kept[:, 1:].shape)
        return torch.cat((torch.zeros_like(kept[:, :1]), of_kept), dim=1), back
