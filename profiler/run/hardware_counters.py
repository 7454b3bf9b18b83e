"""The hardware's counts of a requested call, read in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profiler.hardware.counts import counts_of_call, not_asked
from profiler.hardware.result import HardwareCounts
from profiler.records.reading import Unavailable
from profiler.run.plan import request_of
from profiler.run.prepare import prepare
from profiler.run.request import Request, request_json


def make_call(asked: Mapping[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The call of a request that `request_json` described, and the function that restores the state
    that the call changes."""
    work = prepare(request_of(asked))
    return work.bare, work.restore


MAKE = f"{make_call.__module__}:{make_call.__name__}"
"""The name under which another process imports `make_call`."""


def hardware_counts(
    request: Request, note: Callable[[str], None] = lambda _: None
) -> HardwareCounts | Unavailable:
    """Count the instructions and the bytes of DRAM of one call of the request's phase (a training
    step, say), which runs again in processes under ncu, on NVIDIA GPUs alone. Unavailable, with the
    reason, without `counters` in the request, or where none can be read. `note` receives a line
    before each slow step, such as "reading hardware counters"."""
    if not request.counters:
        return not_asked()
    call = {"make": MAKE, "of": request_json(request)}
    return counts_of_call(request.device, request.dtype, call, note)
