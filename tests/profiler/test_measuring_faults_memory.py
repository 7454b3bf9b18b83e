"""Is memory freed after a call ran out of memory, so that the next measurement fits?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch

from profiler.meters import failure
from profiler.meters.caches import Flush
from profiler.meters.latency import latency, latency_cold
from profiler.meters.memory.allocator import peak_memory
from tests.fake_devices import read, refused
from tests.stand_ins import Instead

METERS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "hot": latency,
    "cold": lambda fn: latency_cold(fn, flush=Flush(lambda: None, 64, 32, "invented")),
    "peak memory": peak_memory,
}


class Greedy:
    """Holds a tensor in its frame when the allocator refuses the next one."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.held: list[ref[torch.Tensor]] = []

    def __call__(self) -> None:
        held = torch.ones(1000)
        self.held.append(ref(held))
        raise self.error

    @property
    def alive(self) -> int:
        """How many of the tensors are."""
        return sum(each() is not None for each in self.held)


@pytest.mark.parametrize("meter", METERS)
def test_what_a_call_held_when_memory_ran_out_is_let_go_of(meter: str) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")
    call = Greedy(error)  # it keeps the error, whose frames hold the tensor
    assert "20.00 GiB could not be had" in refused(METERS[meter](call))
    assert (len(call.held), call.alive) == (1, 0)


def test_the_cache_of_a_gpu_is_given_back_where_memory_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And only there: emptying it after every other failure would cost the next call its blocks."""
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    place = torch.device("cuda")
    failure.why_failed(RuntimeError("no kernel for this size"), "while it ran", place)
    assert emptied == []
    failure.why_failed(torch.OutOfMemoryError("CUDA out of memory."), "while it ran", place)
    assert emptied == [True]


def test_the_next_call_is_measured_after_memory_ran_out() -> None:
    error = RuntimeError("can't allocate memory: you tried to allocate 8000 bytes")
    assert "8,000 B could not be had" in refused(latency(Greedy(error)))
    assert read(peak_memory(lambda: torch.ones(8))).value == 32


def test_a_flush_that_finds_no_room_is_a_reason(instead: Instead) -> None:
    """The buffer that empties the caches may be what does not fit beside a large module."""

    def no_room(place: torch.device) -> Flush:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has")

    instead(flush_for=no_room)
    assert "256.00 MiB could not be had" in refused(latency_cold(lambda: None))
