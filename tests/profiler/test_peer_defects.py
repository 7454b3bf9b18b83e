"""Which defects of other counters does the ladder name? Each reproduced by the smallest call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

from costmodel.conventions import PEERS
from profiler.counters.dispatch import count_dispatch
from profiler.counters.peers import CallAsModule, PeerCount, flop_counter_mode, fvcore_count
from profiler.modules import implementations
from tests.profiler.test_reconcile import reconciled


def fvcore(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> int:
    found = fvcore_count(CallAsModule(fn), *(torch.zeros(shape) for shape in shapes))
    assert isinstance(found, PeerCount)
    return found.total


def test_fvcore_rounds_einsum_to_four_digits() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("ij,jk->ki", x, y)

    assert 3 * 7 * 1234 == 25_914
    assert fvcore(product, (3, 7), (7, 1234)) == 25_915
    assert PEERS["fvcore"].rule("einsum", "cpu").rounded(25_914) == 25_915


def test_fvcore_ignores_a_broadcast_batch() -> None:
    """(5,1,3,7) @ (1,4,7,2) and (3,7) @ (5,7,2): only the first operand's batch is seen."""
    assert fvcore(torch.matmul, (5, 1, 3, 7), (1, 4, 7, 2)) == 5 * 3 * 7 * 2 != 5 * 4 * 3 * 7 * 2
    assert fvcore(torch.matmul, (3, 7), (5, 7, 2)) == 3 * 7 * 2 != 5 * 3 * 7 * 2


def test_flop_counter_mode_counts_nothing_for_attention_on_a_cpu() -> None:
    q = torch.randn(1, 2, 5, 4)
    found = flop_counter_mode(lambda: F.scaled_dot_product_attention(q, q, q))
    assert isinstance(found, PeerCount)
    assert found.total == 0
    assert count_dispatch(lambda: F.scaled_dot_product_attention(q, q, q)).operations.mul > 0
    assert PEERS["torch"].rule("fused-attention", "cpu").per_product is None
    assert PEERS["torch"].rule("fused-attention", "cuda").per_product is not None


def test_a_rounded_einsum_has_a_named_cause() -> None:
    """Predicted by the rule for the kernel class, so that nothing is left unexplained."""
    rule = PEERS["fvcore"].rule("einsum", "cpu")
    exact = 1 * 37 * 36 * 36
    assert rule.rounded(exact) != exact
    described = implementations("she")["direct"]
    kernels = {**(described.kernels or {}), "y": "einsum"}
    module = replace(described, kernels=kernels)
    sizes = {"b": 1, "l": 37, "d": 36}
    (peer,) = (p for p in reconciled("she", module, sizes).peers if p.name == "fvcore")
    named = dict(peer.causes)
    assert named["fvcore rounds to 4 digits"] == rule.rounded(exact) - exact
