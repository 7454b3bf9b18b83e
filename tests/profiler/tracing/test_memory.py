"""Does the traced peak equal the peak of the step without a trace?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from costmodel.symbolic.polynomial import Poly
from profiler.counting.saved_tensors import tensor_key
from profiler.meters.memory.allocator import cpu_peak, profiler_sees_allocations
from profiler.tracing import trace
from profiler.tracing.meta_run.fused import math_backend
from profiler.tracing.meta_run.observe import COMPILER, PEAK, differentiable, observe
from profiler.tracing.meta_run.target import Target
from profiler.tracing.peak import greatest, outermost
from profiler.tracing.report import document
from profiler.tracing.result import Trace
from tests.printing import printed
from tests.profiler.tracing import modules
from tests.profiler.tracing.test_trace import formula


class Function(nn.Module):
    """A function of x as a module."""

    def __init__(self, fn: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Any:
        return self.fn(x)


def prefix(x: Tensor) -> Tensor:
    """Sums of ever longer stretches."""
    step = 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :step], x[:, step:] + x[:, :-step]], 1)
        step *= 2
    return x


def joined(x: Tensor) -> Tensor:
    """A gradient that is the same tensor for two, and so is not to be written into."""
    return x + x.sin() + x.transpose(1, 2).cos().transpose(1, 2) + x


def parts(x: Tensor) -> Tensor:
    """Every row with every row."""
    rows = x.unbind(1)
    return torch.stack([a * b for a in rows for b in rows], 1)


def nested(x: Tensor) -> Tensor:
    """A backward pass within the backward pass, in which gradients meet again."""

    def inner(x: Tensor) -> Tensor:
        return x.sin() * x.exp() + x.cos() * x

    held: Tensor = checkpoint(inner, x, use_reentrant=True, preserve_rng_state=False)
    return held + x.exp()


def again(x: Tensor) -> Tensor:
    """Zeros of a module's own that are added to where the forward pass is run again."""

    def inner(x: Tensor) -> Tensor:
        zeros = torch.zeros_like(x)
        y = zeros.index_add(1, torch.arange(x.shape[1], device=x.device), x.exp())
        return (y * zeros).sin() * y

    held: Tensor = checkpoint(inner, x, use_reentrant=False, preserve_rng_state=False)
    return held


def picked(x: Tensor) -> Tensor:
    """Gradients that are written where indices name places."""
    rows = torch.arange(4, device=x.device)
    places = rows[None, :, None].expand(1, 4, x.shape[2])
    kept = x[:, rows] + x.index_select(1, rows) * x.gather(1, places)
    return kept * x.topk(4, 1)[0] + x.cummax(1)[0][:, :4]


def described(x: Tensor) -> Tensor:
    """What has no rule, and what is counted by torch's decomposition of it."""
    y = nn.functional.gelu(nn.functional.gelu(x, approximate="tanh"), approximate="tanh")
    return y.cummax(1)[0].cummax(2)[0]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class Twice(nn.Module):
    """One weight used three times: its gradient is a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.map(self.map(x).relu())
        return self.map(y) + y, x.sum()


def cases() -> dict[str, Callable[[], nn.Module]]:
    made: dict[str, Callable[[], nn.Module]] = {
        fn.__name__: lambda fn=fn: Function(fn)  # type: ignore[misc]  # the loop's own value
        for fn in (prefix, joined, parts, nested, again, picked, described, softmax)
    }
    return {
        **made,
        "twice": Twice,
        "attention": lambda: nn.TransformerEncoderLayer(7, 1, 5, 0.0, batch_first=True),
        "norm": lambda: nn.Sequential(nn.RMSNorm(7), nn.LayerNorm(7)),
    }


def measured(module: nn.Module, x: Tensor) -> int:
    """Most bytes of tensors alive in a step on the CPU, as torch's profiler sees them."""

    def step() -> Any:
        results = module(x)
        wanted = list(differentiable(results))
        torch.autograd.backward(wanted, [torch.ones_like(t) for t in wanted])
        return results

    def reset() -> None:
        for tensor in (x, *module.parameters()):
            tensor.grad = None

    step()
    before = {tensor_key(t): t.untyped_storage().nbytes() for t in (x, *module.parameters())}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return sum(before.values()) + cpu_peak(step, reset).peak


@pytest.mark.parametrize("rows", [5, 23])
@pytest.mark.parametrize("name", cases())
def test_the_peak_is_that_of_the_step_itself(name: str, rows: int) -> None:
    if not profiler_sees_allocations():
        pytest.skip("torch's profiler sees no allocation")
    make = cases()[name]
    target = Target(name, lambda: (make(), torch.empty(1, rows, 7)), grad="both")
    found = observe(target, {}, math_backend).quantities[PEAK]
    assert found == measured(make(), torch.randn(1, rows, 7, requires_grad=True))


def test_tensors_on_another_device_are_let_go() -> None:
    """Each layer makes one on the CPU; the next one's takes its place."""

    def peak(layers: int) -> int:
        def stack(x: Tensor) -> Tensor:
            for k in range(layers):
                x = x + (torch.arange(4096, device="cpu", dtype=torch.float32) * 2.0 + k).numel()
            return x

        return bytes_at(lambda: Function(stack), 2, 3)

    assert peak(6) - peak(2) < 4096 * 4


def test_layers_that_run_step_by_step_are_named() -> None:
    """On the meta device a recurrent layer maps every step by itself."""
    note = "counted step by step, as on the meta device: gru"
    found = modules.traced(modules.gru, "l,d")
    assert note in printed(document(found), "markdown") and note in printed(document(found), "json")
    for other in (
        modules.traced(modules.gru, "l,d", backend="fused"),
        modules.traced(modules.linear, "l,d"),
    ):
        assert "on the meta device" not in printed(document(other), "markdown")


def test_the_sizes_that_bytes_hold_from_are_those_of_the_search() -> None:
    """It starts at l=5, where the last 12 tokens are all there are, and moves on."""
    found = modules.traced(modules.Windowed, "l,d")
    assert found.base["l"] >= 12
    assert f"bytes hold from l={found.base['l']}, d={found.base['d']} on" in printed(
        document(found), "markdown"
    )
    assert (
        f'"l": {found.base["l"]}' in printed(document(found), "json").split('"bytes_since"')[1][:60]
    )
    for size in range(found.base["l"], found.base["l"] + 7):
        held = bytes_at(modules.Windowed, size, 3)
        assert isinstance(found.peak_bytes, Poly)
        assert found.peak_bytes.at({"l": size, "d": 3}) == held


def bytes_at(make: Callable[[], nn.Module], l: int, d: int) -> int:
    target = Target("module", lambda: (make(), torch.empty(1, l, d)), grad="both")
    return observe(target, {}, math_backend).quantities[PEAK]


@pytest.mark.parametrize("make", [modules.linear, modules.Windowed, nn.Identity])
def test_the_tensors_that_are_alive_at_the_peak_add_up_to_it(make: Callable[..., Any]) -> None:
    found = trace(make, over="l,d")
    assert isinstance(found.peak_bytes, Poly)
    held = sum(one.bytes * one.number for one in found.at_peak)
    assert held == found.peak_bytes.at(found.base) > 0


def test_what_is_alive_at_the_traced_peak_is_listed_by_the_operation_that_made_it() -> None:
    """Two sines are held while the third is made; x was there before."""
    third = Function(lambda x: (x.detach().sin(), x.detach().sin(), x.detach().cos()))
    found = trace(lambda: third, over="l,d")
    assert [(one.made, one.number) for one in found.at_peak] == [
        ("there before", 1), ("forward aten::sin", 2), ("forward aten::cos", 1),
    ]  # fmt: skip
    listed = printed(document(found), "markdown")
    assert "Alive at the peak" in listed and "workspace of operations, which is unknown" in listed
    assert '"workspace": null' in printed(document(found), "json")


def test_a_module_that_does_nothing() -> None:
    found: Trace = trace(nn.Identity, over="l,d")
    assert found.complete
    assert set(found.forward.values()) == set(found.backward.values()) == {Poly()}
    assert found.activation_bytes == found.parameters == Poly()
    assert found.peak_bytes == formula("4*l*d")  # the input


class Taps(nn.Module):
    """Low-rank mixing beside a convolution by channels: which moment is the worst depends on all
    four sizes."""

    def __init__(self, *, d: int, f: int, w: int) -> None:
        super().__init__()
        self.taps = nn.Conv1d(d, d, w, groups=d)
        self.ranks = nn.Parameter(torch.empty(f, d))
        self.w = w

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.taps(nn.functional.pad(x.transpose(1, 2), (self.w - 1, 0))).transpose(1, 2)
        k = (x @ self.ranks.t()).softmax(1)
        return x + k @ (k.transpose(1, 2) @ x)


@pytest.mark.parametrize("sizes", [(9, 12, 12, 9), (40, 3, 50, 33), (12, 50, 2, 2), (5, 9, 2, 40)])
def test_a_moment_that_is_the_worst_where_nothing_was_tried_is_in_the_formula(
    taps: Trace, sizes: tuple[int, int, int, int]
) -> None:
    l, d, f, w = sizes
    target = Target("module", lambda: (Taps(d=d, f=f, w=w), torch.empty(1, l, d)), grad="both")
    held = observe(target, {}, math_backend).quantities[PEAK]
    assert isinstance(taps.peak_bytes, Poly)
    assert taps.peak_bytes.at({"l": l, "d": d, "f": f, "w": w}) == held


@pytest.fixture(scope="module")
def taps() -> Trace:
    return trace(Taps, over="l,d,f,w", grad="both")


def test_what_others_exceed_is_left_out_of_a_maximum() -> None:
    x, y, least = formula("l"), formula("d"), {"l": 1, "d": 1}
    mean, more, less = formula("l + d"), formula("l + d + 1"), formula("l + d - 1")
    assert greatest([x * 2, mean, y * 2, less], least) == [x * 2, y * 2]
    assert greatest([more, x * 2, y * 2], least) == [more, x * 2, y * 2]
    assert greatest([x, x * x], least) == [x * x]
    assert set(greatest([x * 5, x * x], least)) == {x * 5, x * x}  # x < 5
    assert greatest([x * 5, x * x], {"l": 5, "d": 1}) == [x * x]


def test_what_torch_imports_on_the_way_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's first call imports the compiler, in torch 2.6 with operations of its own."""
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)

    def first(x: Tensor) -> Tensor:
        if COMPILER not in sys.modules:
            monkeypatch.setitem(sys.modules, COMPILER, ModuleType(COMPILER))
            torch.ones(3).neg()
        return x * 2.0

    target = Target("first", lambda: (Function(first), torch.empty(1, 5, 7)), grad="both")
    found = observe(target, {}, math_backend)
    assert found.names.count("forward aten::mul") == 1
    assert "forward aten::neg" not in found.names


def test_moments_halfway_between_two_others_are_left_out() -> None:
    """Of equal layers each holds as much more as the one before: the last holds most."""
    layers = [(10 + 3 * k, 20 + 5 * k) for k in range(9)]
    assert outermost(layers) == [layers[0], layers[-1]]
    assert outermost([(1, 9), (2, 5), (4, 1)]) == [(1, 9), (2, 5), (4, 1)]
    assert outermost([]) == []


def test_a_function_of_a_size_is_compared_at_the_same_size() -> None:
    """At l = 2 the first is 0 and the second 1; at l = 8 the first is larger."""
    l = Poly.atom("l")
    both = [l - 2 + (l - 2) // 2, l // 2]
    assert {*greatest(both, {"l": 2})} == {*both}
