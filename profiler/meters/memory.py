"""How many bytes more than before does one call need at its worst moment?"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch

from profiler.counters.trace import traced
from profiler.meters.interface import Reading, Unavailable, reason_of


def peak_memory(
    fn: Callable[[], Any],
    *,
    device: str | torch.device = "cpu",
    reset: Callable[[], Any] | None = None,
) -> Reading | Unavailable:
    """Peak of the bytes that tensors allocated during `fn()` hold at once, its result included.

    Inputs, parameters and state that existed before are not in it. On a GPU the unrounded size
    that was requested from torch's allocator, with allocated (512 B granules) and reserved bytes
    in details; on a CPU the sum of every allocation and release that torch's profiler recorded.
    Scratch space that a library takes from elsewhere (oneDNN, MKL, cuDNN) is not seen.

    One unmeasured call first, then two; `details["agree"]` says whether both gave the same.
    """
    place = torch.device(device)
    measure = cuda_peak if place.type == "cuda" else cpu_peak
    try:
        run_once(fn, reset)
        first, second = (measure(fn, reset, place) for _ in range(2))
    except RuntimeError as error:
        return Unavailable(f"the call failed while its memory was measured: {reason_of(error)}")
    if "unavailable" in first:
        return Unavailable(first["unavailable"])
    peaks = (first["peak"], second["peak"])
    details: dict[str, Any] = {key: n for key, n in first.items() if key != "peak"}
    details["agree"] = peaks[0] == peaks[1]
    return Reading("peak_memory", max(peaks), "B", tuple(float(p) for p in peaks), details)


def run_once(fn: Callable[[], Any], reset: Callable[[], Any] | None) -> Any:
    """One call on a restored state; the result, so that the caller keeps it alive."""
    if reset is not None:
        reset()
    return fn()


def cpu_peak(
    fn: Callable[[], Any], reset: Callable[[], Any] | None, device: torch.device
) -> dict[str, Any]:
    """The peak in bytes, what the call keeps, and the number of allocations."""
    if reset is not None:
        reset()
    gc.collect()  # so that no cycle of somebody else's is released while we look
    with traced(memory=True) as trace:
        kept = fn()
    changes = allocations(trace)
    del kept
    return {
        "peak": peak_of(changes),
        "kept": sum(changes),
        "allocations": sum(change > 0 for change in changes),
        "method": "torch.profiler",
    }


def allocations(trace: Any) -> list[int]:
    """Signed bytes of every allocation and release on the CPU, in the order of time."""
    events = trace.profiler.kineto_results.events()
    recorded = [
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]" and event.device_type().name == "CPU"
    ]
    return [change for _, change in sorted(recorded, key=lambda pair: pair[0])]


def peak_of(changes: Iterable[int]) -> int:
    """The highest running sum, at least 0.

    >>> peak_of([8, 4, -8, 6])
    12
    """
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak


def cuda_peak(
    fn: Callable[[], Any], reset: Callable[[], Any] | None, device: torch.device
) -> dict[str, Any]:
    """Peaks over the baseline, in bytes: requested, allocated, reserved."""
    if not torch.cuda.is_available():
        return {"unavailable": f"peak memory on {device}: torch finds no NVIDIA GPU"}
    if reset is not None:
        reset()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    kept = fn()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)
    del kept
    requested, allocated, reserved = (
        int(after[f"{name}.all.peak"]) - int(before[f"{name}.all.current"])
        for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")
    )
    return {
        "peak": requested,
        "allocated": allocated,
        "reserved_growth": reserved,
        "reserved_total": int(after["reserved_bytes.all.peak"]),
        "method": "torch.cuda.memory_stats",
    }
