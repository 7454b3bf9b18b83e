"""How is a GPU kept busy with the same call while the host reads sensors?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

BATCH_S = 0.01
"""A batch lasts about this long: longer than NVML takes to answer, so that the queue never runs dry
while it does."""
DEPTH = 2
"""Batches in the queue, the running one included."""


class Marker(Protocol):
    """What stands behind a batch in the queue."""

    def query(self) -> bool:
        """Whether everything before it is done."""
        ...

    def synchronize(self) -> object:
        """Wait until it is."""
        ...


def cuda_marker(device: torch.device) -> Marker:
    """A CUDA event at the end of the device's current stream."""
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record(torch.cuda.current_stream(device))
    marker: Marker = event
    return marker


class QueuedLoad:
    """Keeps a GPU's queue filled with batches of calls of `fn`; an `energy.Load`.

    `reset` runs before every call and is part of the load. `fn` may replay a graph.
    """

    def __init__(
        self,
        fn: Callable[[], Any],
        reset: Callable[[], Any] | None,
        device: torch.device,
        *,
        marker: Callable[[torch.device], Marker] = cuda_marker,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.fn = fn
        self.reset = reset
        self.device = device
        self.marker = marker
        self.clock = clock
        self.queue: deque[Marker] = deque()
        self.calls = 1
        self.calls = self.fitting(self.fitting(1))

    def submit(self) -> None:
        """Queue one batch of calls and a marker behind it."""
        with torch.cuda.device(self.device):
            for _ in range(self.calls):
                if self.reset is not None:
                    self.reset()
                self.fn()
            self.queue.append(self.marker(self.device))

    def ready(self) -> bool:
        """Whether the oldest batch is done, or the queue was not full."""
        if len(self.queue) < DEPTH:
            return True
        if not self.queue[0].query():
            return False
        self.queue.popleft()
        return True

    def drain(self) -> None:
        """Wait until the queue is empty."""
        while self.queue:
            self.queue.popleft().synchronize()

    def fitting(self, calls: int) -> int:
        """How many calls take about `BATCH_S`, by one batch of `calls` after one that warms up."""
        self.calls = calls
        self.submit()
        self.drain()
        began = self.clock()
        self.submit()
        self.drain()
        elapsed_s = self.clock() - began
        return max(1, round(calls * BATCH_S / elapsed_s)) if elapsed_s > 0 else calls
