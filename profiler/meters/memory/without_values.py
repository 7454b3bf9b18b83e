"""Live ranges of a call's storages on torch's meta device, whose tensors have shapes and no values.

A storage of the meta device has a size and no bytes. A dispatch mode sees which operation makes the
storage, and a weak reference when nothing refers to it any longer. What a kernel allocates and
releases within one operation is not seen: the caller compares with a run at small sizes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from profiler.counting.call import tensors_in
from profiler.counting.mode import DispatchMode, OperationKind
from profiler.meters.memory.allocations import (
    NODES,
    AllocatorEvent,
    TensorSeen,
    WatchedRun,
    address_of,
    joined,
    seen_now,
)


class LiveStorages(DispatchMode):
    """Notes the storages that operations make, until nothing refers to them, and the tensors that
    operations read; times count the events. `known`: address of a living storage -> reference."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0
        self.events: list[AllocatorEvent] = []
        self.seen: list[TensorSeen] = []
        self.known: dict[int, ref[Any]] = {}

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation, note the tensors that it reads (in `seen`, their storages in `known`)
        and the storages that it makes, in the autograd node around it, and return its result."""
        read = tensors_in([*args, *kwargs.values()])
        for tensor in read:
            storage, place = tensor.untyped_storage(), tensor.untyped_storage()._cdata
            self.known.setdefault(place, ref(storage, partial(self._forget, place)))
            self.seen.append(seen_now(address_of(tensor), tensor, self._now()))
        node = torch._C._current_autograd_node()
        within = "" if node is None else node.name().removeprefix(NODES)
        result = kind.func(*args, **kwargs)
        for tensor in tensors_in(result if isinstance(result, list | tuple) else [result]):
            self._made(tensor, kind.name, within)
        return result

    def _now(self) -> int:
        self.time += 1
        return self.time

    def _made(self, tensor: Tensor, name: str, node: str) -> None:
        """Note the storage of a result, made by the operation `name` inside the autograd node
        `node` ("" outside), unless it was there before or has no bytes."""
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place in self.known or not size:
            return
        self.known[place] = ref(storage, partial(self._released, place, size))
        now = self._now()
        self.events.append(AllocatorEvent(now, ("meta", place), size, name, now, node))

    def _forget(self, place: int, _: Any) -> None:
        """Forget a storage from before the call, whose address a new storage may take."""
        self.known.pop(place, None)

    def _released(self, place: int, size: int, _: Any) -> None:
        """Note that nothing refers to a storage any longer."""
        self.known.pop(place, None)
        self.events.append(AllocatorEvent(self._now(), ("meta", place), -size))


def watched_without_values(call: Callable[[], Any]) -> WatchedRun:
    """Run a call on tensors of the meta device, and return its storages as allocations, with their
    reads and the result."""
    gc.collect()
    with LiveStorages() as live:
        result = call()
    events = [*live.events]
    return WatchedRun(result, events, joined(events, live.seen))
