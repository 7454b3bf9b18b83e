"""Allocations of a call: the operation that requested each, the tensors in it, and its live range.

torch's profiler records each allocation and release with its address, inside the operation that
requests it, and the input tensors of each operation with the address of their bytes. Both are
joined by address during the live range of the allocation, so a reused address is not confused. The
profiler does not change the allocations of a call (a dispatch mode would: under one, autograd adds
gradients out of place).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from profiler.meters.memory.allocator import require_cpu_accounting
from profiler.meters.torch_profile import torch_profiled

Address = tuple[str, int]
"""Type of the device, and the address of the first byte."""

BLOCK, LARGE = 512, 2**20
"""torch's CUDA allocator rounds sizes up to multiples of `BLOCK` bytes, and leaves a remainder of
up to `LARGE` bytes at the end of a block that is larger than `LARGE`."""


@dataclass(frozen=True)
class AllocatorEvent:
    """Bytes allocated (positive) or released (negative) at an address; times are in ns.

    `operation` is the operation that requested the bytes and `ends` the time at which it ended;
    `node` is the autograd node that ran the operation, "" in a forward pass.
    """

    time: int
    address: Address
    bytes: int
    operation: str = ""
    ends: int = 0
    node: str = ""


@dataclass(frozen=True)
class TensorSeen:
    """A tensor that an operation read at a time in ns; an expanded axis (stride 0) has length 1."""

    time: int
    address: Address
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of all entries; overlapping windows have more than their storage."""
        entries = 1
        for extent in self.shape:
            entries *= extent
        return entries * self.dtype.itemsize


def address_of(tensor: Tensor) -> Address:
    """The address of the first byte of a tensor's storage; on the meta device, where a storage has
    no bytes, that of the storage itself."""
    storage = tensor.untyped_storage()
    return tensor.device.type, storage._cdata if tensor.is_meta else storage.data_ptr()


def seen_now(address: Address, tensor: Tensor, time: int = 0) -> TensorSeen:
    """A tensor as an operation would read it at a time."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    shape = tuple(extent if stride else min(extent, 1) for extent, stride in pairs)
    return TensorSeen(time, address, shape, tensor.dtype)


@dataclass
class Allocation:
    """Bytes that one operation requested, and the tensors that were seen in them."""

    made: AllocatorEvent
    released: int | None = None
    """The time of the release; None for bytes that outlive the call."""
    seen: list[TensorSeen] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The size as the allocator counts it."""
        return self.made.bytes

    @property
    def inside(self) -> bool:
        """Whether the bytes were released before the operation that requested them ended."""
        return self.released is not None and self.released <= self.made.ends

    @property
    def named(self) -> bool:
        """Whether an operation or a tensor is known for the bytes."""
        return bool(self.made.operation or self.seen)

    @property
    def whole(self) -> TensorSeen | None:
        """The first of the largest tensors seen that fit into these bytes; None without one."""
        fitting = (tensor for tensor in self.seen if tensor.bytes <= self.bytes)
        return max(fitting, key=lambda tensor: tensor.bytes, default=None)

    @property
    def rounding(self) -> int:
        """Bytes beyond those of `whole`, if the CUDA allocator's rounding explains them; else 0."""
        over = self.bytes - self.whole.bytes if self.whole is not None else 0
        rounded = self.made.address[0] == "cuda" and over < (BLOCK if self.bytes < LARGE else LARGE)
        return over if rounded else 0


def joined(events: Iterable[AllocatorEvent], seen: Iterable[TensorSeen]) -> list[Allocation]:
    """The list of allocations in order of time, each with the tensors seen at its address during
    its live range, and the time of its release, if any (an event of negative bytes); releases and
    tensors at other addresses are left out."""
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
    """(the most bytes alive at one time, the first such time in ns), from the running sum; (0, 0)
    if no sum is positive. Releases of bytes from before the recording count as negative."""
    held = most = when = 0
    for event in sorted(events, key=lambda event: event.time):
        held += event.bytes
        if held > most:
            most, when = held, event.time
    return most, when


def alive_at(found: Iterable[Allocation], time: int) -> list[Allocation]:
    """The allocations that are alive at a time."""
    return [
        one for one in found
        if one.made.time <= time and (one.released is None or one.released > time)
    ]  # fmt: skip


@dataclass(frozen=True)
class WatchedRun:
    """The allocations, releases and reads of one call; the call's result, which is still alive."""

    result: Any
    events: Sequence[AllocatorEvent]
    allocations: Sequence[Allocation]

    def at_most(self) -> tuple[int, list[Allocation], int]:
        """The peak in bytes, the allocations alive then, and the bytes from before the call whose
        release was recorded by then, which the peak counts as negative."""
        most, when = alive_at_most(self.events)
        alive = alive_at(self.allocations, when)
        return most, alive, sum(one.bytes for one in alive) - most

    def at_the_end(self) -> dict[Address, Allocation]:
        """A dict: address -> allocation, for the allocations alive when the call has ended."""
        return {one.made.address: one for one in self.allocations if one.released is None}


def watched(call: Callable[[], Any], device: str = "cpu") -> WatchedRun:
    """Run a call under torch's profiler, and return its result, the events of allocation and
    release on the device ("cpu", "cuda"), and the allocations with the tensors read in them;
    NotTold if the profiler records no allocations on the CPU."""
    if device == "cpu":
        require_cpu_accounting()
    gc.collect()
    with torch_profiled(memory=True, shapes=True) as trace:
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
    recorded: Any = trace.profiler
    tree = recorded.kineto_results.experimental_event_tree()
    moments = recorded_moments(tree, device)
    events = [moment for moment in moments if isinstance(moment, AllocatorEvent)]
    seen = [moment for moment in moments if isinstance(moment, TensorSeen)]
    return WatchedRun(result, events, joined(events, seen))


ENGINE = "autograd::engine::evaluate_function: "
"""The prefix of the profiler's name for the run of an autograd node."""
NODES = "torch::autograd::"
"""The prefix of some autograd nodes' names; such names are no operations."""


def recorded_moments(
    tree: Iterable[Any], device: str, operation: Any = None, node: str = ""
) -> list[AllocatorEvent | TensorSeen]:
    """List the allocations, releases and reads in the profiler's tree of events, each allocation
    with the outermost enclosing operation that is not a composite, and with the autograd node
    around it.

    Args:
        operation, node: of the events around `tree`; None and "" at the root.
    """
    found: list[AllocatorEvent | TensorSeen] = []
    pending = [(event, operation, node) for event in tree]
    pending.reverse()  # the last one is the next: each event before its children
    while pending:
        event, operation, node = pending.pop()
        kind, inside, within = event.tag.name, operation, node
        if kind == "Allocation":
            fields = event.extra_fields
            if fields.device.type == device:
                place, made = (device, fields.ptr), ("", 0)  # an operation, and its end in ns
                if operation is not None:
                    made = (operation.name, operation.end_time_ns)
                time, size = event.start_time_ns, fields.alloc_size
                found.append(AllocatorEvent(time, place, size, *made, node))
        elif kind == "TorchOp":
            name = event.name
            if name.startswith(ENGINE):
                within = name.removeprefix(ENGINE).removeprefix(NODES)
            elif operation is None and is_operation(name):
                inside = event
            found += tensors_read(event, device)
        pending += [(child, inside, within) for child in reversed(event.children)]
    return found


def is_operation(name: str) -> bool:
    """Whether a name in the profiler has the form of an operation's (`aten::mm`), and is neither an
    autograd node's nor a composite's."""
    return "::" in name and not name.startswith(NODES) and name not in composites()


def tensors_read(event: Any, device: str) -> Iterator[TensorSeen]:
    """Yield the input tensors of an operation (an event of torch's profiler) that lie on the
    device. An axis of stride 0 has the extent 1: all its entries are one number in memory."""
    for given in event.extra_fields.inputs:
        for one in given if isinstance(given, list) else (given,):
            address = getattr(one, "storage_data_ptr", None)
            if address and one.device.type == device:
                shape = zip(one.sizes, one.strides, strict=True)
                yield TensorSeen(
                    event.start_time_ns, (device, address),
                    tuple(extent if stride else min(extent, 1) for extent, stride in shape),
                    one.dtype,
                )  # fmt: skip


@cache
def composites() -> frozenset[str]:
    """The names (`aten::matmul`) of operations all of whose overloads, except those that write into
    a given `out`, only call other operations; the called operations are named instead."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    made_of_others = set(registered("CompositeImplicitAutograd"))
    found: dict[str, bool] = {}
    for name in torch._C._dispatch_get_all_op_names():
        stem, _, overload = name.partition(".")
        if not overload.endswith("out"):
            found[stem] = found.get(stem, True) and name in made_of_others
    return frozenset(name for name, all_are in found.items() if all_are)
