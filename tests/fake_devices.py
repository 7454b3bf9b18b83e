"""Which simulated clocks and devices, on which every duration is known, do the tests of the meters
use?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from profiler.meters.disturbances import BlockObservation, NoWatch
from profiler.records.reading import Reading, Unavailable

US = 1_000
MS = 1_000_000


def read(measured: Reading | Unavailable) -> Reading:
    """A measurement that was made."""
    assert isinstance(measured, Reading), measured
    return measured


def refused(measured: Any) -> str:
    """The reason of one that was not."""
    assert isinstance(measured, Unavailable), measured
    return measured.reason


class Clock:
    """Nanoseconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Work:
    """Takes the listed nanoseconds, call by call, the last for ever."""

    def __init__(self, clock: Clock, *durations: int) -> None:
        self.clock = clock
        self.durations = list(durations)
        self.calls = 0

    def __call__(self) -> None:
        self.clock.ns += self.durations[min(self.calls, len(self.durations) - 1)]
        self.calls += 1


class ScriptedWatch:
    """Sees what it is told to, round by round, the last for ever."""

    name = "script"

    def __init__(self, *seen: BlockObservation) -> None:
        self.seen = seen
        self.rounds = 0

    def clock(self) -> float | None:
        """Told round by round alone."""
        return None

    def before(self) -> None:
        """Nothing to note."""

    def aside(self, prepare: Callable[[], Any]) -> Callable[[], Any]:
        """The same."""
        return prepare

    def after(self) -> BlockObservation:
        """The next of the script."""
        self.rounds += 1
        return self.seen[min(self.rounds, len(self.seen)) - 1]

    def missing(self) -> Mapping[str, str]:
        """Nothing is."""
        return {}


UNWATCHED = NoWatch("nobody looks")


class Event:
    """A moment in a GPU's queue."""

    def __init__(self, gpu: Gpu, at_ns: int) -> None:
        self.gpu = gpu
        self.at_ns = at_ns

    def synchronize(self) -> None:
        """The host waits for it."""
        self.gpu.host.ns = max(self.gpu.host.ns, self.at_ns)

    def query(self) -> bool:
        """Whether the GPU has passed it."""
        return self.gpu.host.ns >= self.at_ns

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, as torch gives them."""
        return (end.at_ns - self.at_ns) * 1e-6


class Gpu:
    """A queue that the host fills and a device works off, one after the other."""

    def __init__(
        self,
        cycle_ns: float = 0.5,
        *,
        sleeps: bool = True,
        event_ns: int = 0,
        holds: int | None = None,
    ) -> None:
        self.host = Clock()
        self.pending: deque[int] = deque(maxlen=holds)
        self.busy_until = 0
        self.idle_ns = 0
        self.cycle_ns = cycle_ns
        self.sleeps = sleeps
        self.event_ns = event_ns
        self.slept: list[int] = []
        self.warm = False

    def launch(self, host_ns: int, device_ns: int) -> None:
        """The host takes so long to enqueue something that takes the device so long, and waits
        first where the queue holds no more."""
        if len(self.pending) == self.pending.maxlen:
            self.host.ns = max(self.host.ns, self.pending[0])
        self.host.ns += host_ns
        self.idle_ns += max(self.host.ns - self.busy_until, 0)
        self.busy_until = max(self.busy_until, self.host.ns) + device_ns
        self.pending.append(self.busy_until)

    def event(self) -> Event:
        """At the end of the queue; the host takes `event_ns` to make it."""
        self.host.ns += self.event_ns
        return Event(self, max(self.busy_until, self.host.ns))

    def wait(self) -> None:
        """Until the queue is empty."""
        self.host.ns = max(self.host.ns, self.busy_until)

    def sleep(self, cycles: int) -> None:
        """By the device's clock; not every torch can."""
        if not self.sleeps:
            raise AttributeError("module 'torch.cuda' has no attribute '_sleep'")
        self.slept.append(cycles)
        self.launch(5 * US, round(cycles * self.cycle_ns))

    def clock_ns(self) -> int:
        """The host's."""
        return self.host.ns

    def flush(self) -> None:
        """Overwrite the caches."""
        self.launch(5 * US, 100 * US)
        self.warm = False

    def kernels(
        self, number: int = 1, *, host_ns: int = 20 * US, device_ns: int, cold_ns: int = 0
    ) -> Callable[[], None]:
        """A call of so many launches; the first one takes longer from cold caches."""

        def call() -> None:
            for _ in range(number):
                self.launch(host_ns, device_ns + (0 if self.warm else cold_ns))
                self.warm = True

        return call


class ScriptedGraphs:
    """Captures as it is told to: each step may raise, and the device may be lost."""

    def __init__(
        self,
        replay: Callable[[], Any] = lambda: None,
        *,
        rehearsal: Exception | None = None,
        capture: Exception | None = None,
        lost: bool = False,
        results: Sequence[torch.Tensor] = (),
    ) -> None:
        self.replay = replay
        self.errors = {"rehearsal": rehearsal, "capture": capture}
        self.lost = lost
        self.results = list(results)
        self.released = False

    def step(self, name: str) -> None:
        """Raise what was told."""
        error = self.errors[name]
        if error is not None:
            raise error

    def rehearse(self, fn: Callable[[], Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The first result, from two calls; of three results or more, the first two."""
        self.step("rehearsal")
        fn()
        last = 1 if len(self.results) > 2 else 0
        return self.results[:1], self.results[last : last + 1]

    def record(self, fn: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
        """The last result stands where replays write."""
        self.step("capture")
        found = self.results[-1:]
        static = [torch.empty_like(tensor) for tensor in found]

        def replay() -> None:
            for place, tensor in zip(static, found, strict=True):
                place.copy_(tensor)
            self.replay()

        def release() -> None:
            self.released = True

        return replay, release, static

    def probe(self) -> None:
        """The device answers, or does not."""
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
