"""Which sweeps do the tests run, and what replaces the measurement?

`measure` stands in for `profiler.run.measure.measure`, in this process and in others: it takes no
time and invents its figures. At some lengths it ends otherwise.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import costmodel as cm
from profiler.modules import implementations
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError, Reading
from profiler.run.request import Request, record_of as made_of
from profiler.sweep.failures import Failure
from profiler.sweep.order import blocks
from profiler.sweep.points import Block, Point
from profiler.sweep.workers import Note, Worker, WorkerGone, attempt

ENVIRONMENT = {"torch": "9.9", "device": "cpu", "threads": 2}

MEMORY, REFUSED, FAILED, KILLED, FAULT, SLOW = 101, 103, 107, 109, 113, 127
"""Lengths at which measuring ends otherwise."""

CUDA_SAYS = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 3.20 GiB is free."
)


def request(
    mixer: str = "me", implementation: str = "toeplitz", l: int = 3, **more: Any
) -> Request:
    """One implementation at small sizes."""
    found = cm.mixer(mixer)
    sizes = {"b": 1, "d": 2, "l": l} | {x: 1 for x in found.letters if x not in "bdl"}
    return Request(found, implementations(found)[implementation], sizes, **more)


CANDIDATES = (("me", "toeplitz"), ("me", "fft"), ("self-attention", "explicit"))


def grid(lengths: Sequence[int] = (2, 3, 5), rounds: int = 2, seed: int = 0) -> list[Block]:
    """The candidates at some lengths."""
    return blocks([request(*names, l=l) for l in lengths for names in CANDIDATES], rounds, seed)


def points_of(found: Sequence[Block]) -> list[Point]:
    """All points, in order."""
    return [point for block in found for point in block.points]


def record_of(asked: Request, **more: Any) -> Measurement:
    """A measurement of a request, on a machine that never was."""
    given: dict[str, Any] = {
        "readings": {"latency": Reading("latency", 0.5, "s", (0.5,), {"n": 1})},
        "counts": {"seed": asked.seed},
        "environment": ENVIRONMENT,
    }
    return made_of(asked, **given | more)


def out_of_memory(_: Request) -> None:
    """As `measure` raises it."""
    try:
        raise torch.OutOfMemoryError(CUDA_SAYS)
    except torch.OutOfMemoryError as error:
        raise MeasureError("me toeplitz (fp32): out of memory: 20.00 GiB") from error


def refused(_: Request) -> None:
    """A size that a module refuses."""
    raise MeasureError("me toeplitz (fp32): l must be even") from ValueError("l must be even")


def failed(_: Request) -> None:
    """A module that raises."""
    raise MeasureError("me toeplitz (fp32): the call failed: torch has none") from RuntimeError()


def killed(_: Request) -> None:
    """As the system ends a process where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def fault(_: Request) -> None:
    """A mistake in measuring itself."""
    raise TypeError("expected a number")


def slow(asked: Request) -> None:
    """For ever."""
    print("a module that prints\n" * 3)
    time.sleep(1000)


OTHERWISE: Mapping[int, Callable[[Request], None]] = {
    MEMORY: out_of_memory, REFUSED: refused, FAILED: failed, KILLED: killed, FAULT: fault,
    SLOW: slow,
}  # fmt: skip


def measure(asked: Request, *, limits: Any = None, note: Callable[[str], None]) -> Measurement:
    """What stands in for measuring; it says which device it was shown."""
    note("inventing")
    print("a module that prints")
    if (otherwise := OTHERWISE.get(asked.sizes["l"])) is not None:
        otherwise(asked)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = {"limits": None if limits is None else limits.max_seconds, "shown": shown}
    return record_of(asked, counts={"seed": asked.seed, "seen": seen})


def on_gpu(asked: Request, *, limits: Any = None, note: Callable[[str], None]) -> Measurement:
    """What stands in for measuring on a GPU: real failures of the device, and what it holds."""
    note("inventing")
    x = torch.zeros(4, device=asked.device)
    if asked.sizes["l"] == MEMORY:
        torch.empty(2**50, device=asked.device)
    if asked.sizes["l"] == FAILED:
        x[torch.tensor([9], device=asked.device)].sum().item()  # the kernel's own assertion
    held = torch.cuda.memory_reserved()
    return record_of(asked, counts={"seed": asked.seed, "held": held, "sum": float(x.sum())})


class Thread:
    """A worker that is no process: everything happens in the thread that waits for it."""

    def __init__(
        self,
        measured: Callable[..., Measurement] = measure,
        environment: Mapping[str, Any] = ENVIRONMENT,
        unfit: str = "",
    ) -> None:
        self.measured, self.environment, self.unfit = measured, environment, unfit
        self.stopped = 0

    def begin(self) -> None:
        """Ready, unless it is unfit."""
        if self.unfit:
            raise MeasureError(self.unfit)

    def measure(self, point: Point, note: Note) -> Measurement | Failure:
        """What is measured; a point that kills ends the worker."""
        if point.request.sizes["l"] == KILLED:
            raise WorkerGone("the measuring process was killed")

        def told(what: str) -> None:
            note(point, what)

        return attempt(point.request, self.measured, None, told, Exception)

    def stop(self) -> None:
        """Count how often."""
        self.stopped += 1


def one_worker(
    measured: Callable[..., Measurement] = measure, **more: Any
) -> dict[str, Callable[[], Worker]]:
    """What starts a single worker."""
    return {"cpu": lambda: Thread(measured, **more)}


def keys_in(path: Path) -> list[str]:
    """The points of a file's records, in order."""
    from profiler.records.keys import key_of
    from profiler.records.store import read

    return [key_of(record) for record in read(path)[0]]
