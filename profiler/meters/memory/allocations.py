"""Which operation asked the allocator for which bytes, which tensors had them, and until when?

The truth is the allocator. torch's profiler records each allocation and each release with its
address, inside of the operation that asks for it, and the tensors that each operation reads, with
the address of their bytes. Both are joined by address, while the address is allocated: no name
comes from an identity that is used again. The profiler changes nothing of what a call allocates (a
dispatch mode would: under one, autograd adds gradients out of place).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from profiler.meters.memory.allocator import require_cpu_accounting
from profiler.meters.torch_profile import torch_profiled

Address = tuple[str, int]
"""Kind of device, and where the bytes begin."""

BLOCK, LARGE = 512, 2**20
"""Bytes to whose multiples torch's CUDA allocator rounds; and up to how many bytes it leaves at the
end of a block of more than that."""


@dataclass(frozen=True)
class AllocatorEvent:
    """Bytes allocated (positive) or released (negative) at an address.

    `operation` is the operation that asked for them and `ends` the time at which it ended; `node`
    is the node of the autograd graph that ran it, "" in a forward pass.
    """

    time: int
    address: Address
    bytes: int
    operation: str = ""
    ends: int = 0
    node: str = ""


@dataclass(frozen=True)
class TensorSeen:
    """A tensor with bytes at an address, as an operation read it; a repeated axis has length 1."""

    time: int
    address: Address
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of its entries."""
        entries = 1
        for extent in self.shape:
            entries *= extent
        return entries * self.dtype.itemsize


@dataclass
class Allocation:
    """Bytes that one operation asked for, and the tensors that had them."""

    made: AllocatorEvent
    released: int | None = None
    """The time of their release; None for what outlives the call."""
    seen: list[TensorSeen] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """As the allocator counts them."""
        return self.made.bytes

    @property
    def inside(self) -> bool:
        """Whether the operation that asked for them released them before it ended."""
        return self.released is not None and self.released <= self.made.ends

    @property
    def named(self) -> bool:
        """Whether anything is known of them: an operation, or a tensor."""
        return bool(self.made.operation or self.seen)

    @property
    def whole(self) -> TensorSeen | None:
        """The first of the largest tensors that had these bytes."""
        return max(self.seen, key=lambda tensor: tensor.bytes, default=None)

    @property
    def rounding(self) -> int:
        """Bytes that torch's CUDA allocator added to those of a tensor: it gives whole blocks. On a
        CPU nothing is added."""
        over = self.bytes - self.whole.bytes if self.whole is not None else 0
        rounded = self.made.address[0] == "cuda" and over < (BLOCK if self.bytes < LARGE else LARGE)
        return over if rounded else 0


def joined(events: Iterable[AllocatorEvent], seen: Iterable[TensorSeen]) -> list[Allocation]:
    """Every allocation, with the tensors seen at its address between allocation and release."""
    moments: list[AllocatorEvent | TensorSeen] = [*events, *seen]
    alive: dict[Address, Allocation] = {}
    found: list[Allocation] = []
    for moment in sorted(moments, key=lambda moment: moment.time):
        if isinstance(moment, TensorSeen):
            if moment.address in alive:
                alive[moment.address].seen.append(moment)
        elif moment.bytes > 0:
            alive[moment.address] = Allocation(moment)
            found.append(alive[moment.address])
        elif moment.address in alive:
            alive.pop(moment.address).released = moment.time
    return found


def alive_at_most(events: Iterable[AllocatorEvent]) -> tuple[int, int]:
    """The most bytes that are held at once, and the time from which they are; what is released
    without having been allocated here counts as fewer bytes."""
    held = most = when = 0
    for event in sorted(events, key=lambda event: event.time):
        held += event.bytes
        if held > most:
            most, when = held, event.time
    return most, when


def alive_at(found: Iterable[Allocation], time: int) -> list[Allocation]:
    """What is allocated at a time."""
    return [
        one for one in found
        if one.made.time <= time and (one.released is None or one.released > time)
    ]  # fmt: skip


@dataclass(frozen=True)
class WatchedRun:
    """What one call allocated, released and read; and its result, which is still alive."""

    result: Any
    events: Sequence[AllocatorEvent]
    allocations: Sequence[Allocation]

    def at_most(self) -> tuple[int, list[Allocation], int]:
        """The most bytes held at once, the allocations that are alive then, and the bytes of before
        the call that the call had released by then."""
        most, when = alive_at_most(self.events)
        alive = alive_at(self.allocations, when)
        return most, alive, sum(one.bytes for one in alive) - most

    def at_the_end(self) -> dict[Address, Allocation]:
        """What is alive when the call has ended, by address."""
        return {one.made.address: one for one in self.allocations if one.released is None}


def watched(call: Callable[[], Any], device: str = "cpu") -> WatchedRun:
    """Run a call under torch's profiler.

    Raises:
        NotTold: this build of torch has a profiler that records no allocation.
    """
    if device == "cpu":
        require_cpu_accounting()
    gc.collect()
    with torch_profiled(memory=True, shapes=True) as trace:
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
    recorded: Any = trace.profiler
    tree = recorded.kineto_results.experimental_event_tree()
    moments = list(recorded_moments(tree, device))
    events = [moment for moment in moments if isinstance(moment, AllocatorEvent)]
    seen = [moment for moment in moments if isinstance(moment, TensorSeen)]
    return WatchedRun(result, events, joined(events, seen))


ENGINE = "autograd::engine::evaluate_function: "
"""What precedes the name of a node of the autograd graph in the profiler's name of its run."""
NODES = "torch::autograd::"
"""What the names of some nodes begin with, which are no operations."""


def recorded_moments(
    tree: Iterable[Any], device: str, operation: Any = None, node: str = ""
) -> Iterator[AllocatorEvent | TensorSeen]:
    """What the profiler recorded inside of operations, each named by the outermost operation that
    is not made of others alone."""
    for event in tree:
        kind, inside, within = event.tag.name, operation, node
        if kind == "Allocation":
            fields = event.extra_fields
            if fields.device.type == device:
                place, made = (device, fields.ptr), ("", 0)
                if operation is not None:
                    made = (operation.name, operation.end_time_ns)
                yield AllocatorEvent(event.start_time_ns, place, fields.alloc_size, *made, node)
        elif kind == "TorchOp":
            if event.name.startswith(ENGINE):
                within = event.name.removeprefix(ENGINE).removeprefix(NODES)
            elif operation is None and is_operation(event.name):
                inside = event
            yield from tensors_read(event, device)
        yield from recorded_moments(event.children, device, inside, within)


def is_operation(name: str) -> bool:
    """Whether the profiler's name is that of an operation which is not made of others alone."""
    return "::" in name and not name.startswith(NODES) and name not in composites()


def tensors_read(event: Any, device: str) -> Iterator[TensorSeen]:
    """The tensors that an operation was given."""
    for given in tree_leaves(event.extra_fields.inputs):
        address = getattr(given, "storage_data_ptr", None)
        if address and given.device.type == device:
            shape = zip(given.sizes, given.strides, strict=True)
            yield TensorSeen(
                event.start_time_ns, (device, address),
                tuple(extent if stride else min(extent, 1) for extent, stride in shape),
                given.dtype,
            )  # fmt: skip


@cache
def composites() -> frozenset[str]:
    """The operations that only call others, whatever their overload: those are named instead."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    made_of_others = set(registered("CompositeImplicitAutograd"))
    found: dict[str, bool] = {}
    for name in torch._C._dispatch_get_all_op_names():
        stem, _, overload = name.partition(".")
        if not overload.endswith("out"):
            found[stem] = found.get(stem, True) and name in made_of_others
    return frozenset(name for name, all_are in found.items() if all_are)
