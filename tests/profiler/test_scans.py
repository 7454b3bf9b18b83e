"""Does the scan of modules equal a loop over rows, in values and in gradients?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from profiler.modules.scans import scan


def looped(kept: Tensor, added: Tensor) -> Tensor:
    rows = [added[:, 0]]
    for decay, row in zip(kept[:, 1:].unbind(1), added[:, 1:].unbind(1), strict=True):
        rows.append(decay * rows[-1] + row)
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9])
def test_a_scan_equals_a_loop(length: int, shared: bool) -> None:
    """With a decay for each entry, and with one that three columns share."""
    drawn = torch.Generator().manual_seed(length)
    kept = torch.rand(2, length, 2, 1 if shared else 3, dtype=torch.float64, generator=drawn)
    added = torch.randn(2, length, 2, 3, dtype=torch.float64, generator=drawn)
    weights = torch.randn(added.shape, dtype=torch.float64, generator=drawn)
    found = []
    for rows in (scan, looped):
        one, other = kept.clone().requires_grad_(), added.clone().requires_grad_()
        result = rows(one, other)
        slopes = torch.autograd.grad(
            (result * weights).sum(), (one, other), allow_unused=True, materialize_grads=True
        )
        found.append((result.detach(), *slopes))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
