"""The peak of the bytes that one call allocates, above the bytes allocated before the call.

On a GPU the driver's figure checks the allocator's. The allocator counts requests, which it serves
from segments of the driver (`reserved`). The driver counts all memory of the process: these
segments, the context, the code of kernels, and allocations of libraries outside torch. So the
driver's figure is larger, by at most what contexts and libraries take; any other difference means
that one of the two figures does not count what it is assumed to count.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from profiler.meters.energy.protocol import SensorError
from profiler.meters.failure import why_failed
from profiler.meters.nvml import ALLOWANCE_BYTES, Board
from profiler.meters.torch_profile import torch_profiled
from profiler.records.reading import Reading, Unavailable, reason_of

Call = Callable[[], Any]


MOST_RUNS = 6
"""The most measured calls: fewer if two consecutive peaks are equal."""


OWN_ALLOCATOR = "name no backend in PYTORCH_CUDA_ALLOC_CONF, so that torch's own is in use"
"""The remedy where another CUDA allocator than torch's is in use."""

STATISTICS = ("requested_bytes", "allocated_bytes", "reserved_bytes")
"""Statistics of torch's CUDA allocator, each with a current value and a peak."""


class NotTold(RuntimeError):
    """Allocations cannot be counted here; the message is one sentence."""


@dataclass(frozen=True)
class MeasuredPeak:
    """The peak above the baseline of one measured call in bytes, and details."""

    peak: int
    details: Mapping[str, Any] = field(default_factory=dict)


def peak_memory(
    fn: Call,
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
) -> Reading | Unavailable:
    """Measure the peak of the bytes held by tensors that `fn()` allocates, its result included.

    Inputs, parameters and state from before the call are not included. On a GPU the value is the
    unrounded size requested from torch's allocator; the details have allocated bytes (multiples of
    512 B) and reserved bytes, the workspaces that cuBLAS keeps, and the driver's figure for the
    process (`driver_check`). On a CPU the value is the largest running sum of the allocations and
    releases that torch's profiler recorded. Scratch memory that a library (oneDNN, MKL, cuDNN)
    takes from another allocator is not counted.

    One or two unmeasured calls first; then calls until two consecutive peaks are equal, six at
    most. If none are, the value is the largest, with the label "runs disagree" and `agree` false.
    Unavailable if the call fails, or torch does not count the device's allocations.
    """
    place = torch.device(device)
    try:
        if place.type == "cuda":
            beside = warm_cuda(fn, reset, place)
            once = partial(cuda_peak, fn, reset, place)
        else:
            if place.type != "cpu":
                raise NotTold(f"peak memory is of a CPU or an NVIDIA GPU; the device is {place}")
            require_cpu_accounting()
            beside = {}
            run_once(fn, reset)
            once = partial(cpu_peak, fn, reset)
        runs = steady_runs(once)
        beside |= driver_check(place) if place.type == "cuda" else {}
    except NotTold as error:
        return Unavailable(str(error))
    except Exception as error:  # a module of a user's own may raise anything
        return Unavailable(why_failed(error, "while its memory was measured", place))
    return peak_reading(runs, beside)


def steady_runs(once: Callable[[], MeasuredPeak]) -> list[MeasuredPeak]:
    """Call `once`, which measures the peak of a call, until two consecutive peaks are equal, at
    most `MOST_RUNS` times; return all results."""
    runs = [once()]
    while len(runs) < MOST_RUNS:
        runs.append(once())
        if runs[-1].peak == runs[-2].peak:
            break
    return runs


def peak_reading(runs: list[MeasuredPeak], beside: Mapping[str, Any]) -> Reading:
    """Make the reading of peak memory from two or more runs: the peak of the last two if these
    agree, even if an earlier peak was larger; else the largest peak. The samples are the last two
    peaks, or all. `beside`: further details of the reading.
    """
    agree = runs[-1].peak == runs[-2].peak
    told = runs[-2:] if agree else runs
    chosen = max(told, key=lambda run: run.peak)
    labels = ["" if agree else "runs disagree", beside.get("driver_label", "")]
    details = dict(chosen.details) | dict(beside) | {
        "agree": agree,
        "runs": len(runs),
        "labels": [label for label in labels if label],
    }  # fmt: skip
    return Reading("peak_memory", chosen.peak, "B", tuple(float(r.peak) for r in told), details)


def run_once(fn: Call, reset: Call | None) -> Any:
    """One call on a restored state; the result is returned so that the caller keeps it alive."""
    if reset is not None:
        reset()
    return fn()


@lru_cache(maxsize=1)
def profiler_sees_allocations() -> bool:
    """Whether torch's profiler records the allocation and the release of a buffer of known size."""
    size = 4096
    with torch_profiled(memory=True) as trace:
        buffer = torch.empty(size, dtype=torch.uint8)
        del buffer
    return allocations(trace) == [size, -size]


def require_cpu_accounting() -> None:
    """Raise NotTold if torch's profiler records no allocations, so that a peak of 0 would be
    wrong."""
    if not profiler_sees_allocations():
        raise NotTold(
            "this build of torch has a profiler that records no allocation on the CPU: install a "
            "build with Kineto (the ones from pytorch.org have it)"
        )


def cpu_peak(fn: Call, reset: Call | None) -> MeasuredPeak:
    """Measure the peak of the bytes that one call allocates on the CPU; details: bytes alive
    afterwards (`kept`, with the result), and the number of allocations. `reset` runs first."""
    if reset is not None:
        reset()
    gc.collect()  # no reference cycle from before is freed during the call
    with torch_profiled(memory=True) as trace:
        kept = fn()
    changes = allocations(trace)
    del kept
    details = {
        "kept": sum(changes),
        "allocations": sum(change > 0 for change in changes),
        "method": "torch.profiler",
    }
    return MeasuredPeak(peak_of(changes), details)


def allocations(trace: Any) -> list[int]:
    """The bytes of each allocation (positive) and release (negative) on the CPU that a trace of
    torch's profiler recorded, in order of time."""
    events = trace.profiler.kineto_results.events()
    recorded = [
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]" and event.device_type().name == "CPU"
    ]
    return [change for _, change in sorted(recorded, key=lambda pair: pair[0])]


def peak_of(changes: Iterable[int]) -> int:
    """The highest running sum of changes in bytes, at least 0 (also of no changes).

    >>> peak_of([8, 4, -8, 6])
    12
    """
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak


def statistics_of(device: torch.device) -> Mapping[str, int]:
    """A dict: name -> value in bytes of the statistics of torch's CUDA allocator, current and peak.

    A build of torch without CUDA would return 0 for some statistics, so it is refused.

    Raises:
        NotTold: there is no GPU, or its allocator lacks a statistic.
    """
    if torch.version.cuda is None and not torch.cuda.is_available():
        raise NotTold(f"peak memory on {device}: this torch was built without CUDA")
    if not torch.cuda.is_available():
        raise NotTold(f"peak memory on {device}: torch finds no NVIDIA GPU")
    found = torch.cuda.memory_stats(device)
    wanted = [f"{name}.all.{kind}" for name in STATISTICS for kind in ("current", "peak")]
    if missing := [name for name in wanted if name not in found]:
        raise NotTold(f"the CUDA allocator in use does not count {missing[0]}: {OWN_ALLOCATOR}")
    return {name: int(found[name]) for name in wanted}


def warm_cuda(fn: Call, reset: Call | None, device: torch.device) -> dict[str, Any]:
    """Call `fn`, so that libraries allocate their workspaces before a measurement; return the size
    of the workspaces and how it was found, as details of a reading.

    cuBLAS keeps a workspace per handle and stream in torch's allocator from the first product on.
    If torch can release workspaces (by a private function), earlier ones are released first, the
    size is the amount that a release after the call frees, and another call allocates them again.
    Otherwise the size is the growth over the first call, which includes memory that a module keeps
    from its first call on.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    start = requested_now(device)
    run_once(fn, reset)
    left = requested_now(device) - start
    if clear is None:
        return {
            "workspace": left,
            "workspace_method": "bytes that the first call left allocated, of unknown owner",
        }
    before = requested_now(device)
    clear()
    freed = before - requested_now(device)
    run_once(fn, reset)
    requested_now(device)  # the result is gone, and the queue is empty
    return {
        "workspace": freed,
        "workspace_method": "what torch._C._cuda_clearCublasWorkspaces released",
        "left_by_first_call": left,
    }


def requested_now(device: torch.device) -> int:
    """Requested bytes that are allocated now, after the device has finished its work."""
    statistics_of(device)  # raises where there is no GPU
    torch.cuda.synchronize(device)
    return statistics_of(device)["requested_bytes.all.current"]


def cuda_peak(fn: Call, reset: Call | None, device: torch.device) -> MeasuredPeak:
    """Measure the peak of the bytes requested from torch's CUDA allocator in a call, above those
    from before the call; details: the same of allocated and reserved bytes, `reserved_total` with
    those from before, and the requested bytes alive afterwards, with the result. `reset` first."""
    if reset is not None:
        reset()
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = statistics_of(device)
    kept = fn()
    torch.cuda.synchronize(device)
    after = statistics_of(device)
    refuse_foreign_allocator(kept, after)
    del kept
    over = {name: after[f"{name}.all.peak"] - before[f"{name}.all.current"] for name in STATISTICS}
    details = {
        "allocated": over["allocated_bytes"],
        "reserved": over["reserved_bytes"],
        "reserved_total": after["reserved_bytes.all.peak"],
        "kept": after["requested_bytes.all.current"] - before["requested_bytes.all.current"],
        "method": "torch.cuda.memory_stats",
    }
    return MeasuredPeak(over["requested_bytes"], details)


def refuse_foreign_allocator(kept: Any, after: Mapping[str, int]) -> None:
    """Raise NotTold if a result lies on the GPU although torch's allocator holds no bytes (its
    statistics `after` the call): another allocator is in use."""
    on_gpu = any(isinstance(leaf, torch.Tensor) and lies_on_gpu(leaf) for leaf in tree_leaves(kept))
    if on_gpu and after["allocated_bytes.all.current"] == 0:
        raise NotTold(
            "torch counts no allocation though the result lies on the GPU, so another allocator is "
            f"in use: {OWN_ALLOCATOR}"
        )


def lies_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor has at least one entry on a CUDA device."""
    return tensor.is_cuda and tensor.numel() > 0


LESS = "driver says less"
"""The label if the driver attributes fewer bytes to the process than the allocator has reserved."""


MORE = "memory beside the allocator"
"""The label if the driver attributes more bytes than allocator, context and libraries explain."""


def driver_check(device: torch.device, own: int | None = None) -> Mapping[str, Any]:
    """Details for a reading of memory: `driver_bytes`, the process's memory by NVML;
    `driver_reserved`, the allocator's reserved bytes; `driver_gap`, the first minus the second;
    `driver_gap_holds`, the content of the gap in words; `driver_label`, "" if the gap is plausible.
    Without an answer of NVML: `driver_bytes` None and `driver_reason`.

    Args:
        own: the id of this process, by default the operating system's.
    """
    try:
        told = Board.of(device).own_bytes(own)
    except (SensorError, RuntimeError, AssertionError) as error:
        return {"driver_bytes": None, "driver_reason": f"NVML: {reason_of(error)}"}
    reserved = int(torch.cuda.memory_reserved(device))
    gap = told - reserved
    label = LESS if gap < 0 else MORE if gap > ALLOWANCE_BYTES else ""
    return {
        "driver_bytes": told,
        "driver_reserved": reserved,
        "driver_gap": gap,
        "driver_gap_holds": beside_allocator(torch.cuda.get_device_properties(device)),
        "driver_label": label,
    }


def beside_allocator(properties: Any) -> str:
    """Words on what a process's GPU memory outside torch's allocator holds. The context keeps the
    local memory of the kernel that needs most of it, for as many threads as the GPU can run at
    once."""
    threads = properties.multi_processor_count * properties.max_threads_per_multi_processor
    return (
        "the context, the code of kernels, what libraries allocate by themselves (plans of cuFFT), "
        f"and local memory for {threads:,} threads: {threads * 2**10:,} B for a KiB each"
    )
