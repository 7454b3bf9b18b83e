"""Is what lies between a module and the equations named by the ladder's switches, exactly?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costmodel.polynomial import Poly
from profiler.modules.self_attention import ExplicitSelfAttention, FusedSelfAttention
from profiler.tracing import trace
from profiler.tracing.against import against
from tests.profiler.tracing.test_trace import formula


class Doctored(ExplicitSelfAttention):
    """Twice an exponential, and one more sum at every entry of the output."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) + torch.ones_like(x)


def test_the_switches_name_all_of_it() -> None:
    found = against(trace(ExplicitSelfAttention, over="l,h,n", let="d=n*h"), "self-attention")
    assert found.explained
    assert [cause.name for cause in found.causes] == ["dense", "safe-softmax"]
    # masked pairs: l(l-1)/2 a head, each with h products for its score and h for its value
    assert found.difference["mul"] == formula("l**2*n*h - l*n*h")
    dense, safe = found.causes
    assert dense.counts["exp"] == formula("n*l*(l - 1)/2")
    assert safe.counts == {"add": formula("l**2*n"), "compare": formula("l**2*n - l*n")}
    total = {
        name: sum((c.counts.get(name, Poly()) for c in found.causes), Poly())
        for name in found.difference
    }
    assert total == found.difference


def test_fused_attention_computes_visible_pairs_alone() -> None:
    traced = trace(FusedSelfAttention, over="l,h,n", let="d=n*h", backend="fused")
    found = against(traced, "self-attention")
    assert found.explained
    assert [cause.name for cause in found.causes] == ["safe-softmax", "scale=mul"]


def test_an_injected_operation_stays_unexplained() -> None:
    found = against(trace(Doctored, over="l,h,n", let="d=n*h"), "self-attention")
    assert found.unexplained == {"add": formula("l*n*h")}
    assert not found.explained


def test_a_linear_map_is_not_self_attention() -> None:
    class Map(nn.Linear):
        def __init__(self, d: int) -> None:
            super().__init__(d, d)

    found = against(trace(Map, over="l,h,n", let="d=n*h"), "self-attention")
    assert not found.explained
    assert found.unexplained["exp"] != Poly()
