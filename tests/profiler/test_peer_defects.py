"""Which defects of other counters does the ladder name, each reproduced by the smallest call?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from costmodel.program.conventions import PEERS
from profiler.counting.dispatch import count_dispatch
from profiler.counting.other_counters import (
    CallAsModule,
    PeerCount,
    flop_counter_mode,
    fvcore_count,
)
from profiler.counting.rules import nominal
from profiler.meters.torch_profile import (
    OperationTimes,
    events_of,
    operation_times,
    torch_profiled,
)
from profiler.modules import implementations
from profiler.records.reading import Unavailable
from tests.ladders import reconciled


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


@pytest.fixture(params=[False, True], ids=["before torch 2.15", "since torch 2.15"])
def formula(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether FlopCounterMode has a formula for attention on a CPU: both, whatever torch it is."""
    cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if request.param:
        monkeypatch.setitem(
            flop_registry, cpu, flop_registry[torch.ops.aten._scaled_dot_product_flash_attention]
        )
    else:
        monkeypatch.delitem(flop_registry, cpu, raising=False)
    return bool(request.param)


def test_flop_counter_mode_counts_all_pairs_or_nothing_for_attention_on_a_cpu(
    formula: bool,
) -> None:
    """Causal all the same: two products of 2 heads, 5 x 5 x 4, a multiply-add being two."""
    q = torch.randn(1, 2, 5, 4)
    found = flop_counter_mode(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert isinstance(found, PeerCount)
    assert found.total == (2 * 2 * 2 * 5 * 5 * 4 if formula else 0)
    assert list(map(nominal, found.by_op)) == ["fused attention"] * formula
    assert list(map(nominal, found.uncounted)) == ["fused attention"] * (not formula)
    assert count_dispatch(lambda: F.scaled_dot_product_attention(q, q, q)).operations.mul > 0
    assert PEERS["torch"].rule("fused-attention", "cpu").per_product is None
    assert PEERS["torch"].rule("fused-attention", "cuda").per_product is not None


@pytest.mark.parametrize(
    ("mixer", "phase"),
    [
        ("self-attention", "training"),
        ("self-attention", "inference"),
        ("self-attention+bidirectional", "training"),
    ],
)
def test_what_is_printed_for_attention_is_predicted_whatever_the_version(
    mixer: str, phase: str, formula: bool
) -> None:
    sizes = {"b": 2, "l": 7, "d": 6, "n": 2}
    found = reconciled(mixer, implementations(mixer)["sdpa"], sizes, phase)
    (peer,) = (p for p in found.peers if p.name == "torch")
    assert peer.unexplained == 0
    lacks = "FlopCounterMode has no formula for attention on a CPU"
    assert (lacks in dict(peer.causes)) != formula


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


def test_events_that_a_mode_doubles_are_counted_once() -> None:
    """torch's profiler records an operation again where a dispatch mode runs it: neither a count
    that runs beside it nor a time made of its events may hold both."""
    a = torch.ones(512, 512)
    spent: list[float] = []

    def moded() -> None:
        start = perf_counter()
        with FlopCounterMode(display=False):
            a @ a
        spent.append(perf_counter() - start)

    with torch_profiled() as trace:
        (op,) = count_dispatch(lambda: a @ a).by_op.values()
        peer = flop_counter_mode(lambda: a @ a)
    assert op.calls == 1
    assert isinstance(peer, PeerCount)
    assert peer.total == 2 * op.operations.mul
    recorded = [event for event in events_of(trace) if event.name == "aten::mm"]
    assert len(recorded) >= 2  # a call each, and more where the profiler sees both
    times = operation_times(moded)
    assert isinstance(times, OperationTimes)
    # what operations spend themselves never overlaps; the first call is not recorded
    assert times.total_s * (len(spent) - 1) <= sum(spent[1:])
    share = times.share(["aten::mm"])
    assert share is not None
    assert share <= 1


def _object(x: Tensor) -> Any:
    return {"rows": object()}


def _unread(x: Tensor) -> Any:
    return {"rows": x, "number": 3}


def _cond(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


FAILS: list[tuple[Callable[[Tensor], Any], str]] = [
    (_object, "an argument or a result of the call is no tensor"),
    (_unread, "a result does not depend on the inputs"),
    (_cond, "the call runs an operator such as torch.cond, a higher-order operator"),
    (lambda x: torch.matmul(x, x[0]), "fvcore's rule matmul_flop_jit fails for operands of these"),
]


@pytest.mark.parametrize(("call", "said"), FAILS)
def test_what_fvcore_cannot_count_is_told_in_words(
    call: Callable[[Tensor], Any], said: str
) -> None:
    found = fvcore_count(torch.nn.Identity(), torch.ones(4, 4), call=call)
    assert isinstance(found, Unavailable)
    assert found.reason.startswith(f"fvcore could not count the call: {said}")
    assert "\n" not in found.reason
