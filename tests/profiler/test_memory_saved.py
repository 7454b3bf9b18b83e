"""Are the tensors that a forward pass keeps those of a list by hand?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiler.counting.saved_tensors import collecting_saved, tensor_key
from profiler.meters.memory.listed import LiveTensors
from profiler.meters.memory.live_tensors import kept


def rows(found: LiveTensors) -> list[tuple[Any, ...]]:
    """Operation, shape, bytes and cause of each tensor; they are all that is kept."""
    assert found.unnamed == found.rounding == 0
    return [(t.operation, t.shape, t.bytes * t.number, t.cause) for t in found.tensors]


def test_what_is_computed_and_inputs_are_kept_and_parameters_are_apart() -> None:
    """Linear, GELU, square: x for the product, its result for GELU, GELU's for the square."""
    layer = nn.Linear(16, 32)
    x = torch.randn(8, 16, requires_grad=True)
    found = kept(
        lambda: nn.functional.gelu(layer(x)).square(), "cpu", [*layer.parameters()], {"x": x}
    )
    assert rows(found) == [
        ("there before the call", (8, 16), 512, ""),
        ("addmm", (8, 32), 1024, ""),
        ("gelu", (8, 32), 1024, ""),
    ]
    assert [t.name for t in found.tensors] == ["x", "", ""]
    assert found.total == 2560


def test_a_result_that_is_saved_counts_once() -> None:
    """exp and softmax save what they return."""
    x = torch.randn(8, 16, requires_grad=True)
    assert rows(kept(lambda: x.exp(), "cpu", [], {})) == [("exp", (8, 16), 512, "")]


def test_a_storage_saved_twice_counts_once() -> None:
    x = torch.randn(8, requires_grad=True)
    found = kept(lambda: x * x, "cpu", [], {"x": x})
    assert rows(found) == [("there before the call", (8,), 32, "")]


def test_a_view_saved_holds_its_whole_storage() -> None:
    """A slice of 10 x 10 of 1000 x 1000: 4,000,000 B are held for 400."""
    x = torch.randn(1000, 1000)
    weight = torch.randn(10, 10, requires_grad=True)
    found = kept(lambda: x.exp()[:10, :10] * weight, "cpu", [weight], {})
    assert rows(found) == [("exp", (1000, 1000), 4_000_000, "part")]


def test_an_expanded_tensor_has_the_entries_of_what_it_expands() -> None:
    row = torch.randn(1, 4)
    weight = torch.randn(3, 4, requires_grad=True)
    found = kept(lambda: row.exp().expand(3, 4) * weight, "cpu", [weight], {})
    assert rows(found) == [("exp", (1, 4), 16, "")]


class Hiding(torch.autograd.Function):
    """Keeps x * 2 as an attribute of its context, as kernels written by hand often do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.hidden = x * 2
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.hidden


hiding: Any = Hiding.apply


def test_activations_as_attributes_of_a_context_are_unseen_by_hooks() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    found = kept(lambda: hiding(x), "cpu", [], {"x": x})
    assert rows(found) == [("mul", None, 8 * 16 * 4, "unseen")]


def test_what_dies_with_its_graph_is_not_kept() -> None:
    """A branch whose result is dropped saves its exp, and loses it."""
    x = torch.randn(8, 16, requires_grad=True)

    def call() -> Tensor:
        (x.exp() * 2).sum()
        return x.sin()

    assert rows(kept(call, "cpu", [], {"x": x})) == [("there before the call", (8, 16), 512, "")]


def test_what_a_first_call_caches_is_not_unseen() -> None:
    cache: list[Tensor] = []
    x = torch.randn(8, requires_grad=True)

    def call() -> Tensor:
        if not cache:
            cache.append(torch.zeros(1000))
        return x.sin()

    assert kept(call, "cpu", [], {"x": x}).total == 32


def test_a_buffer_that_is_not_a_modules_own_was_there_before() -> None:
    table = torch.randn(8)
    x = torch.randn(8, requires_grad=True)
    found = kept(lambda: x * table, "cpu", [], {"x": x})
    assert rows(found) == [("there before the call", (8,), 32, "")]
    assert kept(lambda: x * table, "cpu", [table], {"x": x}).total == 0


def test_backward_still_works_from_what_was_packed() -> None:
    x = torch.randn(5, requires_grad=True)
    with collecting_saved() as saved:
        y = (x.exp() * x).sum()
    assert {tensor_key(t) for t in saved.tensors()} >= {tensor_key(x)}
    torch.autograd.backward(y)
    assert x.grad is not None
    assert torch.allclose(x.grad, (x.exp() * (1 + x)).detach())
    assert list(saved.tensors()) == []  # the graph is used up


def test_storages_on_the_meta_device_have_keys_of_their_own() -> None:
    a, b = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    assert tensor_key(a) != tensor_key(b)
    assert tensor_key(a) == tensor_key(a.view(2, 2))


def test_a_call_without_gradients_is_refused() -> None:
    x = torch.randn(4)
    with pytest.raises(ValueError, match="whose result wants a gradient"):
        kept(lambda: x.exp(), "cpu", [], {})


@pytest.mark.gpu
def test_what_is_kept_on_a_gpu() -> None:
    layer = nn.Linear(16, 32, device="cuda")
    x = torch.randn(8, 16, device="cuda", requires_grad=True)
    found = kept(
        lambda: nn.functional.gelu(layer(x)).square(), "cuda", [*layer.parameters()], {"x": x}
    )
    assert found.total == 2560 and found.unnamed == 0
    hidden = kept(lambda: hiding(x), "cuda", [], {"x": x})
    assert [t.cause for t in hidden.tensors] == ["unseen"]
