"""Does a replayed operation return what running the operation returns?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiler.counting.mode import kind_of_operation
from profiler.tracing.meta_run.fused import math_backend
from profiler.tracing.meta_run.observe import PEAK, observe
from profiler.tracing.meta_run.operation import KnownCall
from profiler.tracing.meta_run.recorder import CallKey, Recorder
from profiler.tracing.meta_run.target import Target
from tests.profiler.tracing import modules
from tests.profiler.tracing.test_memory import Function

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("operation", "in_place"),
    [
        (ATEN.mul_.Tensor, True),
        (ATEN.bernoulli_.float, True),
        (ATEN.copy_.default, True),
        (ATEN.mul.Tensor, False),
        (ATEN.mul.out, False),  # writes into another argument than the first
        (ATEN.t_.default, False),  # gives its argument back in another shape
        (ATEN.resize_.default, False),
        (ATEN.set_.source_Tensor, False),  # in another storage
        (ATEN._foreach_mul_.Scalar, False),  # gives nothing back
    ],
    ids=lambda value: value.name() if not isinstance(value, bool) else None,
)
def test_what_gives_its_first_argument_back_as_it_was(operation: Any, in_place: bool) -> None:
    assert kind_of_operation(operation).in_place == in_place


def twice(call: Callable[[Tensor], Any]) -> tuple[Any, Any]:
    """What a call gives when it is run, and when it is met again; its arguments are alike."""
    given = [torch.empty(3, 5, device="meta") for _ in range(2)]
    with Recorder():
        first, second = map(call, given)
    return first, second


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x * 2.0,
        lambda x: x.sum(1),
        lambda x: x.t().contiguous(),
        lambda x: torch.var_mean(x, 1),
        lambda x: x.mul_(2.0),
        lambda x: x.t().mul_(2.0),
        lambda x: x.t_(),
        lambda x: x.resize_(2, 2),
        lambda x: x.to(torch.float64),
    ],
)
def test_what_is_met_again_gives_the_same_layouts(call: Callable[[Tensor], Any]) -> None:
    first, second = (t if isinstance(t, tuple) else (t,) for t in twice(call))
    for one, other in zip(first, second, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert one.untyped_storage()._cdata != other.untyped_storage()._cdata


def test_what_is_written_into_is_given_back_each_time() -> None:
    given = [torch.empty(3, 5, device="meta") for _ in range(3)]
    with Recorder():
        assert all(x.mul_(2.0) is x and x._version == 1 for x in given)


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_layers_that_write_into_what_they_make(layers: int) -> None:
    """A layer makes y, 4*5*7 bytes, and writes into it: a factor and a term an entry."""

    def made(x: Tensor) -> Tensor:
        for _ in range(layers):
            x = x.clone().mul_(2.0).add_(1.0)
        return x

    target = Target("module", lambda: (Function(made), torch.empty(1, 5, 7)), grad="both")
    found = observe(target, {}, math_backend)
    assert found.quantities["forward", "mul"] == found.quantities["forward", "add"] == layers * 35
    assert found.names.count("forward aten::mul_") == layers
    assert found.quantities[PEAK] >= 2 * 140


def test_what_is_compiled_is_counted_as_it_stands() -> None:
    """The compiler neither takes anything away nor looks at what counts."""
    seen: list[Any] = []

    def compiled(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph

    def plain(x: Tensor) -> Tensor:
        return x.sin() * 2.0 + x.cos()

    def observed(fn: Callable[[Tensor], Tensor]) -> Any:
        target = Target(
            "module", lambda: (nn.Sequential(Function(fn)), torch.empty(1, 5, 7)), grad="both"
        )
        return observe(target, {}, math_backend)

    expected, found = observed(plain), observed(torch.compile(plain, backend=compiled))
    assert found.quantities == expected.quantities and found.names == expected.names
    assert not seen


def test_runs_may_share_the_calls_that_they_have_met() -> None:
    """The same is seen as without, at other sizes too; a second run meets nothing new."""
    target, met = Target("linear", modules.linear, grad="both"), dict[CallKey, KnownCall]()
    for d in (3, 5, 3):
        known = len(met)
        sizes = {"b": 1, "l": 4, "d": d}
        shared = observe(target, sizes, math_backend, met=met)
        alone = observe(target, sizes, math_backend)
        assert (shared.quantities, shared.alive) == (alone.quantities, alone.alive)
    assert len(met) == known
