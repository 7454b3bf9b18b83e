"""Is a module that cannot be traced refused in one sentence with the reason?"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.tracing import trace
from profiler.tracing.meta_run.target import TraceError
from tests.profiler.tracing.test_memory import Function
from tests.profiler.tracing.test_trace import assert_classes, formula


def refused(fn: Callable[[Tensor], Any]) -> str:
    with pytest.raises(TraceError) as raised:
        trace(lambda: Function(fn), over="l,d", grad="both")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def chance(x: Tensor) -> Tensor:
    """As many steps as python's own generator says."""
    for _ in range(random.randint(1, 99)):
        x = x * 2
    return x


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        # where torch names a function besides, older ones name an operation
        (lambda x: x[x > 0], r"aten::index, (torch\.|aten::)nonzero"),
        (lambda x: x * (x > 0).nonzero()[0, 0], r"aten::nonzero(, torch\.nonzero)?"),
        (lambda x: torch.masked_select(x, x > 0), "aten::masked_select"),
        (lambda x: torch.unique(x), "aten::_unique2"),
        (lambda x: x.repeat_interleave((x[0, :, 0] > 0).long(), dim=1), "aten::repeat_interleave"),
        (lambda x: x * len(x.detach().tolist()), "a copy to the CPU"),
        (lambda x: x * float(x.detach().numpy()[0, 0, 0]), "Tensor.numpy"),
        (lambda x: x * int(torch.randint(1, 5, (1,))), "aten::_local_scalar_dense, Tensor.item"),
        (lambda x: x if torch.equal(x, x + 1) else x * 2, "aten::equal"),
    ],
)
def test_what_needs_values_is_named(fn: Callable[[Tensor], Any], named: str) -> None:
    said = refused(fn)
    assert "depend on the values of its input or weights" in said
    assert re.search(rf"not only on sizes \({named}, test_refusals.py line", said)
    assert "): trace a version without this operation" in said


def test_an_operation_that_needs_values_may_fail_for_another_reason() -> None:
    said = refused(lambda x: x[torch.zeros(3, dtype=torch.long), torch.zeros(7, dtype=torch.long)])
    assert "does not run at l=5, d=3" in said and "broadcast" in said


def test_a_size_that_must_divide_another_one_is_found_and_said() -> None:
    def blocks(l: int, d: int, r: int) -> tuple[nn.Module, Tensor]:
        if l % r:
            raise ValueError("r does not divide l")
        return nn.Linear(d, l // r), torch.empty(1, r, d)

    found = trace(blocks, over="l,d,r")
    assert found.complete
    assert_classes(found.forward, mul="d*l", add="d*l")
    assert all(point["l"] % point["r"] == 0 for point in found.proven)
    assert any(point["r"] > 1000 for point in found.proven)
    assert found.notes[0] == (
        "l runs over multiples of r; at other sizes the module fails: blocks cannot be built at "
        "l=5, d=3, r=2: r does not divide l"
    )
    at = found.peak_sizes
    assert (1, at["r"], at["l"] // at["r"]) in {one.shape for one in found.at_peak}
    with pytest.raises(TraceError, match="l must be a multiple of r"):
        found.sizes("l=5,d=3,r=2")


@pytest.mark.parametrize("backend", ["math", "fused"])
def test_heads_that_share_keys_are_traced_where_they_divide_evenly(backend: str) -> None:
    """Queries of n heads, keys and values of g: products, and a scale for each score or each query
    and key, know no g."""

    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def heads(l: int, n: int, g: int, h: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        kept = torch.empty(1, g, l, h)
        return Grouped(), (torch.empty(1, n, l, h), kept, kept.clone())

    found = trace(heads, over="l,n,g,h", backend=backend)
    scale = {"math": "2*h*l*n", "fused": "l**2*n"}[backend]
    assert found.complete
    assert found.forward["mul"] == formula(f"2*h*l**2*n + {scale}")
    assert not any("operations.py" in note for note in found.notes)


class Experts(nn.Module):
    """Half of the rows times one matrix, half times another."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(2, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([8, 16], dtype=torch.int32)
        return torch._grouped_mm(x, self.w.to(x.dtype), ends)


def test_what_the_meta_device_alone_refuses_is_said_with_what_works() -> None:
    """torch multiplies groups of float32 on a CPU, and of bfloat16 on the meta device too."""

    def experts(d: int, kind: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
        return Experts(), torch.empty(16 * d, 16, dtype=kind)

    with pytest.raises(TraceError) as raised:
        trace(experts, over="d")
    said = str(raised.value)
    assert "the module runs on a CPU, but not on the meta device" in said
    assert said.endswith("where it is traced: it can be traced in bfloat16")
    found = trace(lambda d: experts(d, torch.bfloat16), over="d")
    assert found.forward["mul"] == formula("16*d*16*16")


def test_a_module_that_turns_autocast_off_is_traced() -> None:
    """As rotary embeddings do, on the device of their input, whichever it is."""

    def quiet(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y = x * 2
        return y if torch.is_autocast_enabled(x.device.type) else y * 2

    assert_classes(trace(lambda: Function(quiet), over="l,d").forward, mul="2*d*l")


class Untold(BaseException):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "said"),
    [(SystemExit(0), "SystemExit: 0"), (Untold(), "Untold"), (RuntimeError("word " * 9999), "word"),
     (KeyError("k"), "KeyError: 'k'")],
    ids=["exit", "no text", "long", "kind"],
)  # fmt: skip
def test_whatever_a_module_raises_is_one_sentence(raised: BaseException, said: str) -> None:
    def stop(x: Tensor) -> Tensor:
        raise raised

    for words in (refused(stop), built_with(raised)):
        assert said in words and len(words) < 800
    at_each = r"test_refusals.py line \d+; the module fails at each of \d+ sizes"
    assert re.search(at_each, refused(stop))


def built_with(raised: BaseException) -> str:
    def make(d: int) -> nn.Module:
        raise raised

    with pytest.raises(TraceError) as found:
        trace(make, over="l,d")
    assert "\n" not in str(found.value)
    return str(found.value)


def test_what_torch_logs_of_symbols_is_not_shown() -> None:
    """torch logs a backtrace where padding takes a symbol for a size."""
    logged: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record)

    log, kept = logging.getLogger("torch._subclasses.fake_tensor"), Kept()
    log.addHandler(kept)
    try:
        found = trace(lambda: Function(lambda x: F.pad(x, (0, 0, 0, x.shape[1] % 4))), over="l,d")
    finally:
        log.removeHandler(kept)
    assert not logged
    (doubt,) = found.doubts
    assert re.fullmatch(r"comparisons of sizes cannot be traced after .*", doubt)
    assert "/" not in doubt and "RuntimeError" not in doubt


def test_chance_is_found_out_at_the_first_size() -> None:
    said = refused(chance)
    assert "at l=5, d=3 the module does something else each time it runs: forward" in said
    assert "times aten::mul, then" in said


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.poisson(torch.ones(3)).sum(),
        lambda: torch.zeros(1).log_normal_(),
        lambda: torch.zeros(1).geometric_(0.5),
        lambda: torch.nn.functional.dropout(torch.ones(1), 0.5),
    ],
)
def test_numbers_that_are_drawn_are_not_known(draw: Callable[[], Tensor]) -> None:
    assert "random numbers" in refused(lambda x: x * 2 if float(draw()) > 0 else x)


def test_types_that_nothing_is_converted_to_are_refused() -> None:
    """On the meta device torch.autocast is without effect; switched off it is nowhere."""

    def cast(x: Tensor, *, enabled: bool = True) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return x @ x.transpose(1, 2)

    assert "torch.autocast converts nothing on the meta device" in refused(cast)
    assert trace(lambda: Function(lambda x: cast(x, enabled=False)), over="l,d").complete


def test_shapes_of_a_first_call_are_asked_for() -> None:
    with pytest.raises(TraceError, match="get their shapes at its first call: give all"):
        trace(lambda d: nn.LazyLinear(2 * d), over="l,d")


def test_what_a_gradient_needs_must_not_be_written_into() -> None:
    """The gradient of an exponential is read off its result."""
    said = refused(lambda x: x.exp().mul_(2))
    assert "that a gradient needs has been modified by an inplace operation" in said


def test_a_sparse_gradient_is_named() -> None:
    def make(l: int) -> tuple[nn.Module, Tensor]:
        return nn.Embedding(7, 3, sparse=True), torch.zeros(1, l, dtype=torch.long)

    with pytest.raises(TraceError, match=r"aten::\w+ gives a tensor of layout torch.sparse_coo"):
        trace(make, over="l")


def test_numbers_on_the_cpu_are_told_apart() -> None:
    said = refused(lambda x: x * torch.from_numpy(np.ones(3, dtype=np.float32)))
    assert "aten::mul takes a tensor on the CPU" in said


# What is made without a device is made where the module runs.


def masked(x: Tensor) -> Tensor:
    mask = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool()
    scores = (x @ x.transpose(1, 2)).masked_fill(mask, float("-inf"))
    return torch.softmax(scores, -1) @ x


def test_a_mask_made_without_a_device() -> None:
    found = trace(lambda: Function(masked), over="l,d")
    assert found.complete
    assert found.forward["exp"] == formula("l**2")


def test_numbers_given_to_a_tensor_are_known() -> None:
    """A module may look at what it was given itself, while it is built and while it runs."""

    class Counting(nn.Module):
        steps: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.tensor(3))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(int(self.steps) + int(torch.tensor([1, 2]).sum())):
                x = x * 2
            return x * torch.tensor(np.linspace(0, 1, x.shape[1]), dtype=x.dtype)[:, None]

    found = trace(Counting, over="l,d")
    assert found.complete
    assert_classes(found.forward, mul="7*d*l", convert="l")


def test_numbers_of_an_input_are_not_taken_for_given_ones() -> None:
    def derived(x: Tensor) -> Tensor:
        held = torch.tensor([1.0, 2.0])
        held[0] = x.detach().sum()
        return x * float(held.sum())

    assert "depend on the values" in refused(derived)


def test_a_gradient_inside_forward_is_counted_without_the_peer() -> None:
    """FlopCounterMode does not run there; forward: y = x w, its square summed, and the gradient."""

    def inside(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
        return gradient

    found = trace(lambda: Function(inside), over="l,d", grad="both")
    assert found.complete and found.flops is None
    # x x, then g x for either factor, and their sum
    assert_classes(found.forward, mul="3*d*l", add="d*l - 1 + d*l")
    assert any("FlopCounterMode does not run on this module" in note for note in found.notes)


def test_more_bytes_than_can_be_counted_are_refused() -> None:
    def make(l: int) -> tuple[nn.Module, Tensor]:  # weights and their gradient: 2**62 bytes each
        return nn.Linear(2**30, 2**30, bias=False), torch.empty(1, l, 2**30)

    with pytest.raises(
        TraceError, match=r"at l=5 the module holds more than 2\*\*63 bytes at once"
    ):
        trace(make, over="l")
