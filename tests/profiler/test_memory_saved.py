"""Are the bytes that a forward pass keeps those that a hand adds up, seen and unseen?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiler.counting.saved_tensors import collecting_saved, tensor_key
from profiler.meters.memory.saved_bytes import KeptBytes, saved_bytes


def test_activations_parameters_and_inputs_apart() -> None:
    """Linear, GELU, square: x and W for the product, its result for GELU, GELU's for the square."""
    layer = nn.Linear(16, 32)
    x = torch.randn(8, 16, requires_grad=True)
    found = saved_bytes(
        lambda: nn.functional.gelu(layer(x)).square(), parameters=layer.parameters(), inputs=[x]
    )
    assert found.activations == KeptBytes(2 * 8 * 32 * 4, 2 * 8 * 32 * 4, 2)
    assert found.parameters == KeptBytes(16 * 32 * 4, 16 * 32 * 4, 1)
    assert found.inputs == KeptBytes(8 * 16 * 4, 8 * 16 * 4, 1)
    assert (found.unseen, found.reason) == (0, "")


def test_a_result_that_is_saved_counts_once() -> None:
    """exp and softmax save what they return."""
    x = torch.randn(8, 16, requires_grad=True)
    found = saved_bytes(lambda: x.exp(), inputs=[x])
    assert found.activations == KeptBytes(512, 512, 1)
    assert (found.inputs, found.unseen) == (KeptBytes(), 0)


def test_a_storage_saved_twice_counts_once() -> None:
    x = torch.randn(8, requires_grad=True)
    found = saved_bytes(lambda: x * x, inputs=[x])
    assert found.inputs == KeptBytes(32, 32, 1)
    assert found.activations == KeptBytes()


def test_a_view_saved_holds_its_whole_storage() -> None:
    """A slice of 10 x 10 of 1000 x 1000: 4,000,000 B are held for 400."""
    x = torch.randn(1000, 1000)
    weight = torch.randn(10, 10, requires_grad=True)
    found = saved_bytes(lambda: x.exp()[:10, :10] * weight, parameters=[weight])
    assert found.activations == KeptBytes(4_000_000, 400, 1)
    assert found.unseen == 0


def test_an_expanded_tensor_has_the_entries_of_what_it_expands() -> None:
    row = torch.randn(1, 4)
    weight = torch.randn(3, 4, requires_grad=True)
    found = saved_bytes(lambda: row.exp().expand(3, 4) * weight, parameters=[weight])
    assert found.activations == KeptBytes(16, 16, 1)


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
    found = saved_bytes(lambda: hiding(x), inputs=[x])
    assert found.activations == KeptBytes()
    assert found.unseen == 8 * 16 * 4


def test_what_dies_with_its_graph_is_not_kept() -> None:
    """A branch whose result is dropped saves its exp, and loses it."""
    x = torch.randn(8, 16, requires_grad=True)

    def call() -> Tensor:
        (x.exp() * 2).sum()
        return x.sin()

    found = saved_bytes(call, inputs=[x])
    assert found.activations == KeptBytes()
    assert found.inputs == KeptBytes(512, 512, 1)
    assert found.unseen == 0


def test_what_a_first_call_caches_is_not_unseen() -> None:
    cache: list[Tensor] = []
    x = torch.randn(8, requires_grad=True)

    def call() -> Tensor:
        if not cache:
            cache.append(torch.zeros(1000))
        return x.sin()

    assert saved_bytes(call, inputs=[x]).unseen == 0


def test_a_buffer_that_is_not_named_leaves_the_unseen_untold() -> None:
    table = torch.randn(8)
    x = torch.randn(8, requires_grad=True)
    found = saved_bytes(lambda: x * table, inputs=[x])
    assert found.unseen is None
    assert found.reason.startswith("32 bytes that were saved or returned were there before")
    assert saved_bytes(lambda: x * table, parameters=[table], inputs=[x]).unseen == 0


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
        saved_bytes(lambda: x.exp(), inputs=[x])


def test_it_is_told_as_json() -> None:
    x = torch.randn(8, requires_grad=True)
    assert asdict(saved_bytes(lambda: x.exp(), inputs=[x])) == {
        "activations": {"stored": 32, "logical": 32, "storages": 1},
        "parameters": {"stored": 0, "logical": 0, "storages": 0},
        "inputs": {"stored": 0, "logical": 0, "storages": 0},
        "unseen": 0,
        "reason": "",
    }


@pytest.mark.gpu
def test_saved_bytes_on_a_gpu() -> None:
    layer = nn.Linear(16, 32, device="cuda")
    x = torch.randn(8, 16, device="cuda", requires_grad=True)
    found = saved_bytes(
        lambda: nn.functional.gelu(layer(x)).square(), parameters=layer.parameters(), inputs=[x]
    )
    assert found.activations == KeptBytes(2 * 8 * 32 * 4, 2 * 8 * 32 * 4, 2)
    assert found.unseen == 0
    hidden = saved_bytes(lambda: hiding(x), inputs=[x])
    assert hidden.unseen == 8 * 16 * 4
