"""Is every byte that a call holds, or keeps for its backward pass, attributed to a named tensor?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import costmodel as cm
from profiler.meters.memory.allocations import (
    AllocatorEvent,
    TensorSeen,
    WatchedRun,
    alive_at_most,
    joined,
)
from profiler.meters.memory.allocator import peak_memory
from profiler.meters.memory.listed import LiveTensors
from profiler.meters.memory.live_tensors import described, kept, most_alive
from profiler.modules import Implementation
from profiler.records.reading import Reading, Unavailable
from profiler.run.measure import activation_bytes, peak_of_call, tensors_at_peak
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request
from tests.implementations import every, label
from tests.small import complete


def rows(found: LiveTensors) -> list[tuple[Any, ...]]:
    """Operation, shape, bytes and cause of each tensor."""
    return [(t.operation, t.shape, t.bytes * t.number, t.cause) for t in found.tensors]


# Allocations and tensors, joined by address while it is allocated


def event(time: int, address: int, size: int, operation: str = "", ends: int = 0) -> AllocatorEvent:
    return AllocatorEvent(time, ("cpu", address), size, operation, ends)


def seen(time: int, address: int, *shape: int, device: str = "cpu") -> TensorSeen:
    return TensorSeen(time, (device, address), shape, torch.float32)


def test_an_address_that_is_used_again_names_the_tensor_that_has_it_then() -> None:
    events = [event(1, 100, 24, "aten::mm"), event(5, 100, -24), event(7, 100, 40, "aten::exp")]
    tensors = [seen(0, 100, 9), seen(3, 100, 2, 3), seen(6, 100, 7), seen(9, 100, 10)]
    first, second = joined(events, tensors)
    assert [t.shape for t in first.seen] == [(2, 3)]
    assert [t.shape for t in second.seen] == [(10,)]
    assert (first.released, second.released) == (5, None)


def test_equal_addresses_of_two_devices_are_two() -> None:
    events = [event(1, 100, 24), AllocatorEvent(2, ("cuda", 100), 512)]
    on_cpu, on_gpu = joined(events, [seen(3, 100, 6), seen(4, 100, 5, device="cuda")])
    assert [t.shape for t in on_cpu.seen] == [(6,)]
    assert [t.shape for t in on_gpu.seen] == [(5,)]


def test_the_worst_moment_is_the_allocators() -> None:
    events = [event(1, 1, 8), event(2, 2, 4), event(3, 1, -8), event(4, 3, 6), event(5, 4, 2)]
    assert alive_at_most(events) == (12, 2)
    before = [event(0, 9, -20), *events]  # bytes that were there before the call, released
    assert alive_at_most(before) == (0, 0)
    most, alive, released = WatchedRun(None, events, joined(events, [])).at_most()
    assert most == sum(one.bytes for one in alive) == 12 and released == 0
    events = [event(0, 9, -5), *events]
    assert WatchedRun(None, events, joined(events, [])).at_most()[::2] == (7, 5)


def test_what_an_operation_releases_before_it_ends_is_its_workspace() -> None:
    events = [event(1, 1, 8, "aten::conv", 5), event(2, 2, 4, "aten::conv", 5), event(4, 1, -8)]
    inside, result = joined(events, [seen(3, 1, 2), seen(6, 2, 1)])
    assert (described(inside).cause, described(result).cause) == ("workspace", "")


@pytest.mark.parametrize(
    ("block", "shape", "rounding"),
    [(512, (25,), 412), (512, (128,), 0), (1024, (25,), 0), (3 * 2**20, (2**19 + 7,), 2**20 - 28)],
)
def test_blocks_of_the_cuda_allocator_are_tensors_and_rounding(
    block: int, shape: tuple[int, ...], rounding: int
) -> None:
    """Blocks of 512 B; a slice is no rounding; large blocks keep up to 1 MiB at their end."""
    given = AllocatorEvent(1, ("cuda", 7), block, "aten::mm")
    (one,) = joined([given], [seen(2, 7, *shape, device="cuda")])
    assert one.rounding == rounding
    assert described(one).bytes + one.rounding == block


def test_overlapping_windows_are_no_tensor_of_the_bytes() -> None:
    given = AllocatorEvent(1, ("cuda", 7), 512, "aten::mm")
    tensors = [seen(2, 7, 100, device="cuda"), seen(3, 7, 98, 3, device="cuda")]
    (one,) = joined([given], tensors)
    assert (described(one).shape, described(one).bytes, one.rounding) == ((100,), 400, 112)


def test_a_storage_without_values_at_the_address_of_a_released_one_counts() -> None:
    given = [torch.empty(10, device="meta") for _ in range(20)]

    def call() -> list[torch.Tensor]:
        for k, _ in enumerate(given):
            given[k].exp()
        given.clear()
        return [torch.empty(5, device="meta") for _ in range(30)]

    found = most_alive(call, "meta")
    assert (found.total, found.left) == (30 * 5 * 4, 0)


# Single calls, listed by hand


def test_what_is_alive_at_the_worst_moment_of_a_call() -> None:
    """While a square is computed, its operand is there too; torch computes it as a power."""
    x = torch.randn(5, 7)
    found = most_alive(lambda: torch.exp(torch.square(x + 1)), "cpu", lambda y: {"result": y})
    assert rows(found) == [("add", (5, 7), 140, ""), ("pow", (5, 7), 140, "")]
    found = most_alive(lambda: torch.exp(x), "cpu", lambda y: {"result": y})
    assert [(t.operation, t.name, t.shape) for t in found.tensors] == [("exp", "result", (5, 7))]


def test_views_are_nothing_and_a_view_is_not_named_as_the_maker() -> None:
    x = torch.randn(6, 7)
    assert most_alive(lambda: x.t()[1:], "cpu").total == 0
    found = most_alive(lambda: torch.exp(x).t()[1:].sum(), "cpu")
    assert [t.operation for t in found.tensors] == ["exp", "sum"]


def test_causes_follow_from_the_operation() -> None:
    x = torch.randn(6, 7)

    def call() -> Any:
        return torch.zeros(3), x.t().contiguous(), x > 0, x.pow(2)

    assert rows(most_alive(call, "cpu")) == [
        ("zeros", (3,), 12, "filled"),
        ("clone", (7, 6), 168, "copy"),
        ("gt", None, 42, ""),  # nothing reads it, so that nothing tells its type
        ("pow", None, 168, ""),
    ]


def test_equal_tensors_are_one_row() -> None:
    x = torch.randn(6, 7)
    (row,) = most_alive(lambda: [x.exp() for _ in range(4)], "cpu").tensors
    assert (row.bytes, row.number) == (168, 4)


def test_what_the_backward_pass_makes_has_its_node_and_its_name() -> None:
    """At most 3 arrays: the saved exp, the gradient that comes in, and x.grad."""
    x = torch.randn(6, 7, requires_grad=True)

    def call() -> None:
        torch.autograd.backward(x.exp(), torch.ones(6, 7))

    found = most_alive(call, "cpu", lambda _: {"x.grad": x.grad} if x.grad is not None else {})
    assert [(t.operation, t.node, t.name) for t in found.tensors] == [
        ("exp", "", ""), ("ones", "", ""), ("mul", "ExpBackward0", "x.grad"),
    ]  # fmt: skip


# What is put in on purpose surfaces by name


class Plain(nn.Module):
    """y = sin(x W)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 11))
        self.held: list[Tensor] = []

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.between(x @ self.weight))


class Holds(Plain):
    """Refers to the cosine of what it computed."""

    def between(self, h: Tensor) -> Tensor:
        self.held = [torch.cos(h.detach())]
        return h


class Saves(Plain):
    """Multiplies by a number that is a tensor, so that a gradient needs both factors."""

    def between(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(h.detach())


@torch.library.custom_op("costmodel_tests::scratch", mutates_args=())
def scratch(h: Tensor) -> Tensor:
    """h, computed through 1,000 numbers that nobody else sees."""
    inside = torch.zeros(1000)
    return h + inside[0]


class Scratches(Plain):
    """Calls an operation that allocates something for itself."""

    def between(self, h: Tensor) -> Tensor:
        made: Tensor = scratch(h)
        return made


def alive_in(module: Plain) -> list[tuple[Any, ...]]:
    x = torch.randn(3, 5)
    with torch.no_grad():
        return rows(most_alive(lambda: module(x), "cpu"))


def test_a_tensor_that_a_module_holds_is_listed() -> None:
    assert ("cos", None, 132, "") in alive_in(Holds())
    assert all(row[0] != "cos" for row in alive_in(Plain()))


def test_what_is_saved_besides_is_listed() -> None:
    x = torch.randn(3, 5)
    saved = {}
    for kind in (Plain, Saves):
        module = kind()
        saved[kind] = rows(kept(partial(module, x), "cpu", [module.weight], {"x": x}))
    assert [row for row in saved[Saves] if row not in saved[Plain]] == [
        ("sigmoid", (3, 11), 132, ""), ("mul", (3, 11), 132, ""),
    ]  # fmt: skip


def test_what_an_operation_takes_for_itself_is_its_workspace() -> None:
    found = alive_in(Scratches())
    assert ("costmodel_tests::scratch", (1000,), 4000, "workspace") in found


def test_numbers_that_no_operation_makes_are_unnamed() -> None:
    """A storage that torch's allocator gives without an operation, and nothing reads."""
    made: Any = torch.UntypedStorage
    found = most_alive(lambda: made(4096), "cpu")
    assert (found.total, found.unnamed, found.tensors) == (4096, 4096, ())


@pytest.mark.gpu
def test_all_is_named_on_a_gpu() -> None:
    """After a first call, in which cuBLAS allocates the workspace that the process keeps."""
    layer, x = nn.Linear(500, 300, device="cuda"), torch.randn(70, 500, device="cuda")
    with torch.no_grad():
        call: Callable[[], Any] = lambda: torch.softmax(layer(x), -1)  # noqa: E731  # one call
        measured, found = peak_memory(call, device="cuda"), most_alive(call, "cuda")
    assert not isinstance(measured, Unavailable)
    assert abs(found.unnamed) <= max(2**20, found.total // 50)
    assert found.total == measured.details["allocated"]


# Every implementation

SIZES = (
    {"b": 3, "l": 7, "d": 6, "n": 2},
    {"b": 2, "l": 5, "d": 12, "n": 3},
    {"b": 1, "l": 11, "d": 8, "n": 2},
)
"""Sizes of several kinds: in the second ones weights weigh more than sequences."""


def call_of(
    chosen: Implementation, sizes: Mapping[str, int], phase: str
) -> tuple[PreparedCall, Request]:
    equations = cm.mixer(chosen.mixer)
    request = Request(equations, chosen, complete(equations, sizes), phase, "fp32")
    return prepare(request), request


@pytest.mark.grid(48)
@pytest.mark.parametrize("chosen", every(), ids=label)
def test_all_that_an_implementation_holds_and_keeps_is_named(chosen: Implementation) -> None:
    """To the byte, at three sizes; and watching changes nothing."""
    for sizes in SIZES:
        for phase in ("training", "training-step"):
            work, request = call_of(chosen, sizes, phase)
            listed = [tensors_at_peak(work, request)]
            if phase == "training-step":
                listed.append(activation_bytes(work, request))
            for reading in listed:
                assert isinstance(reading, Reading)
                details = reading.details
                named = sum(t["bytes"] * t["number"] for t in details["tensors"])
                assert reading.value == named
                assert named > 0 or not cm.mixer(chosen.mixer).parameters  # linear: nothing is kept
                assert details["rounding"] == 0
            if sizes is SIZES[0]:
                measured = peak_of_call(work, "cpu")
                assert isinstance(measured, Reading) and isinstance(listed[0], Reading)
                assert measured.value == listed[0].value
