"""Is a formula rejected that fits only the sizes it was found at?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.symbolic.polynomial import Poly
from profiler.tracing import size_samples as points_
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.observe import observe
from profiler.tracing.meta_run.target import Target
from profiler.tracing.proof import first_failures
from profiler.tracing.trace import trace
from tests.profiler.tracing import modules
from tests.profiler.tracing.modules import Even
from tests.profiler.tracing.test_trace import formula
from tests.stand_ins import Instead


class Windows(nn.Module):
    """A product with a parameter, then of every window of w tokens with itself, the last one
    padded: ceil(l / w) of them."""

    def __init__(self, *, d: int, w: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(d))
        self.w = w

    def forward(self, x: Tensor) -> Tensor:  # (b, l, d) to (b, windows, w, w)
        b, l, d = x.shape
        parts = F.pad(x, (0, 0, 0, -l % self.w)).view(b, -1, self.w, d) * self.scale
        return parts @ parts.transpose(-1, -2)


def test_failures_at_one_point_keep_the_order_of_the_formulas() -> None:
    polys = {("operations", name): Poly.of(1) for name in "abcdefghij"}
    run = SimpleNamespace(quantities={})
    samples: Any = SimpleNamespace(named=lambda p: {"l": p[0]}, at=lambda p: run)
    assert [*first_failures(samples, polys, [(1,)])] == [*polys]


def test_one_size_over_another_has_a_formula_by_cases() -> None:
    """The length is below the window, a multiple of the window, or between two multiples."""
    found = trace(Windows, over="l,w", let={"d": "3"})
    for l, w in ((1, 1), (2, 5), (5, 5), (6, 5), (10, 5), (11, 5), (30, 4), (31, 4), (7, 1)):
        products = -(-l // w) * w * (3 + w * 3)
        assert found.at("forward", l=l, w=w).mul == products, (l, w)
        assert found.at("backward", l=l, w=w).mul > products


def test_a_length_over_a_window_of_a_given_size_has_one() -> None:
    found = trace(Windows, over="l", let={"d": "3", "w": "16"})
    sizes = {1: 1, 16: 1, 17: 2, 160: 10}
    assert {l: found.at("forward", l=l).mul for l in sizes} == {
        l: windows * 16 * (3 + 16 * 3) for l, windows in sizes.items()
    }


def larger(*, l: int, d: int) -> tuple[nn.Module, Tensor]:
    """A module over whichever of two sizes is the larger."""
    size = max(l, d)
    return nn.Linear(size, size), torch.empty(1, size, device="meta")


def test_the_larger_of_two_sizes_has_a_formula_by_cases() -> None:
    found = trace(larger, over="l,d")
    for l, d in ((3, 9), (9, 3), (4, 4)):
        assert found.at("forward", l=l, d=d).mul == max(l, d) ** 2


@pytest.mark.parametrize("short", [points_.SHORT, -1], ids=["quick", "slow"])
@pytest.mark.parametrize(("axis", "chunk"), [(1, 15), (2, 20)])
def test_what_happens_at_multiples_alone_is_found(
    chunk: int, axis: int, short: int, instead: Instead
) -> None:
    instead(short_run_s=short)
    found = trace(Even, over="l,d", let={"axis": str(axis), "chunk": str(chunk)})
    size = "ld"[axis - 1]
    even = f"(floor({size}/{chunk}) - floor(({size} + {chunk - 1})/{chunk}) + 1)"
    assert found.forward["exp"] == formula(f"l*d*{even}")


def test_what_happens_at_multiples_of_a_large_number_is_not_passed_over() -> None:
    found = trace(Even, over="l,d", let={"axis": "1", "chunk": "128"})
    for l in (1, 127, 128, 129, 1408, 1409):
        assert found.at("forward", l=l, d=5).exp == 5 * l * (l % 128 == 0)


def test_no_size_of_a_proof_is_one_that_the_others_were_varied_at() -> None:
    """Not even beside a large one: there a formula of single lines would hold."""
    found = trace(nn.Linear, over="l,d,f", let={"in_features": "d", "out_features": "f"})
    assert len(found.proven) == 12
    assert all(point[letter] != found.base[letter] for point in found.proven for letter in "ldf")


def test_no_run_dispatches_more_operations_than_the_patience_allows() -> None:
    """A layer that runs step by step is not proven at l=1021."""
    found = trace(modules.lstm, over="l,d")
    target, sizes = Target("lstm", modules.lstm), found.variables
    assert max(point["l"] for point in found.proven) < 1021
    for point in found.proven:
        seen = observe(target, sizes.sizes(point), BACKENDS["math"])
        assert len(seen.alive) <= points_.PATIENCE
