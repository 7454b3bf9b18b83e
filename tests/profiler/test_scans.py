"""Do scans and triangular solves of modules equal loops over rows, in values and in gradients?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import costmodel as cm
from profiler.modules import registry
from profiler.modules.scans import scan
from profiler.modules.triangles import substituted
from profiler.run.called import dispatched_by
from profiler.run.prepare import prepare
from profiler.run.request import Request
from tests.small import complete


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_triangular_solve_reads_the_entries_below_the_diagonal(
    rows: int, dtype: torch.dtype
) -> None:
    """Of two systems, entries and right-hand sides whole numbers, exact in eight bits here."""
    drawn = torch.Generator().manual_seed(rows)
    below = torch.randint(-1, 2, (2, rows, rows - 1), generator=drawn).to(dtype)
    given = torch.randint(-2, 3, (2, rows, 3), generator=drawn).to(dtype)
    found = substituted(below, given)
    ones = torch.nn.functional.pad(below, (0, 1)).tril(-1) + torch.eye(rows, dtype=dtype)
    assert found.dtype == dtype and torch.equal(ones @ found, given)


@pytest.mark.parametrize(
    ("mixer", "name"), [("deltanet+core", "chunked-solve"), ("rwkv-7+core", "chunked")]
)
def test_as_many_operations_are_dispatched_for_longer_chunks(mixer: str, name: str) -> None:
    def launched(C: int) -> int:
        sizes = {"b": 1, "l": 2 * C + 2, "d": 2, "n": 1, "C": C}
        own, solve = cm.mixer(mixer), registry.implementations(mixer)[name]
        request = Request(own, solve, complete(own, sizes), "training", "fp32", "cpu")
        return dispatched_by(prepare(request)).launched

    assert launched(3) == launched(7)
