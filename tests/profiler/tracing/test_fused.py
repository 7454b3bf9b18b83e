"""Does a traced fused operation return, keep and free what torch's own kernel does?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.symbolic.polynomial import Poly
from profiler.counting.saved_tensors import collecting_saved, tensor_keys
from profiler.tracing import trace
from profiler.tracing.meta_run.fused import fused_backend
from profiler.tracing.meta_run.recorder import Recorder

Layouts = list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]

B, N, L, H = 2, 3, 5, 7


def layouts(tensors: Any) -> Layouts:
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]


def run(fn: Callable[..., Any], tensors: list[Tensor]) -> tuple[Layouts, Layouts, Layouts]:
    """The layouts of results, of what is saved, in any order, and of gradients."""
    given = [t.detach().requires_grad_() for t in tensors]
    with collecting_saved() as saved:
        made = fn(*given)
    results = made if isinstance(made, tuple) else (made,)
    kept = [tensor for tensors in saved.storages().values() for tensor in tensors[:1]]
    ones = [torch.ones_like(t) for t in results]
    gradients = torch.autograd.grad(results, given, ones)
    return layouts(results), sorted(layouts(kept), key=str), layouts(gradients)


def fused(fn: Callable[..., Any], tensors: list[Tensor]) -> tuple[Layouts, Layouts, Layouts]:
    """The same on the meta device, as one fused operation."""
    recorder = Recorder()
    with recorder, fused_backend(recorder):
        return run(fn, [torch.empty_strided(t.shape, t.stride(), device="meta") for t in tensors])


def heads(rows: int, last: int = H) -> Tensor:
    """(b, n, rows, last) in memory."""
    return torch.randn(B, N, rows, last)


def split(rows: int) -> Tensor:
    """Heads as a linear map leaves them: (b, rows, n, h) in memory."""
    return torch.randn(B, rows, N, H).transpose(1, 2)


def packed(rows: int) -> Tensor:
    """Heads out of one map for queries, keys and values: other numbers lie between them."""
    return torch.randn(B, rows, 3, N, H).unbind(2)[1].transpose(1, 2)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
@pytest.mark.parametrize("make", [heads, split, packed])
def test_attention_lies_in_memory_as_on_a_cpu(
    make: Callable[[int], Tensor], options: dict[str, Any]
) -> None:
    tensors = [make(L), make(L + 2), make(L + 2)]
    real = run(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), tensors)
    assert fused(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), tensors) == (
        real
    )


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_a_mask_is_saved_as_numbers(kind: torch.dtype) -> None:
    tensors = [split(L), split(L), split(L)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(L, L, dtype=kind, device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    real = run(attend, tensors)
    assert ((L, L), (L, 1), torch.float32) in real[1]
    assert fused(attend, tensors) == real


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_lie_in_memory_as_on_a_cpu(kind: type, batch_first: bool) -> None:
    module = kind(3, H, batch_first=batch_first)
    x = torch.randn(B, L, 3)
    real = run(lambda x: module(x)[0], [x])
    module = module.to("meta")
    found = fused(lambda x: module(x)[0], [x])
    assert (found[0], found[2]) == (real[0], real[2])


@pytest.mark.grid(2)
@pytest.mark.parametrize("joined", [1, 3])
def test_merging_the_heads_of_a_result_is_free(joined: int) -> None:
    """What is saved for the backward is what hooks see saved on a CPU."""

    class Merged(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.out = nn.Linear(width, width, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            q = x.view(*x.shape[:2], joined, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, q, q)
            result: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
            return result

    def make(l: int, h: int) -> tuple[nn.Module, Tensor]:
        return Merged(joined * h), torch.empty(1, l, joined * h)

    found = trace(make, over="l,h", backend="fused", grad="both")
    for l, h in ((9, 3), (20, 4)):
        module, x = make(l, h)
        own = tensor_keys(module.parameters())
        with collecting_saved() as saved:
            result = module(x.requires_grad_())
        held = [ts[0] for place, ts in saved.storages().items() if place not in own]
        size = sum(t.untyped_storage().nbytes() for t in held)
        del result
        assert isinstance(found.activation_bytes, Poly)
        assert found.activation_bytes.rational({"l": l, "h": h}) == size
