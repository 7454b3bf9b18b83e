"""How many bytes more than before does one call need at its worst moment?

On a GPU the driver's figure is a check on the allocator's. The allocator counts what was requested
from it, in segments that it got from the driver (`reserved`). The driver counts everything that the
process has: these segments, the context, the code of kernels, and what libraries take without
torch. So the driver says as much or more, by at most what contexts and libraries take; any other
difference means that one of the two does not count what it is assumed to count.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from profiler.meters.energy.protocol import SensorError
from profiler.meters.failure import why_failed
from profiler.meters.nvml import ALLOWANCE_BYTES, NOT_LISTED, ask_nvml, handle_of, load_nvml
from profiler.meters.torch_profile import torch_profiled
from profiler.records.reading import Reading, Unavailable, reason_of

Call = Callable[[], Any]


MOST_RUNS = 6
"""The most measured calls, until two in a row agree."""


STATISTICS = ("requested_bytes", "allocated_bytes", "reserved_bytes")
"""Statistics of torch's CUDA allocator, each with a current value and a peak."""


class NotTold(RuntimeError):
    """Allocations cannot be counted here; one sentence says why."""


@dataclass(frozen=True)
class MeasuredPeak:
    """One measured call: the peak over the baseline in bytes, and details."""

    peak: int
    details: Mapping[str, Any] = field(default_factory=dict)


def peak_memory(
    fn: Call,
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
) -> Reading | Unavailable:
    """Peak of the bytes that tensors allocated during `fn()` hold at once, its result included.

    Inputs, parameters and state that existed before are not included. On a GPU the value is the
    unrounded size requested from torch's allocator; details have allocated (512 B granules) and
    reserved bytes, the workspaces that cuBLAS keeps, and the driver's figure for the process
    (`driver_check`). On a CPU the value is the highest running sum of the allocations and
    releases that torch's profiler recorded. Scratch space that a library takes from elsewhere
    (oneDNN, MKL, cuDNN) is not seen.

    One unmeasured call first; then calls until two in a row agree to the byte, six at most. Where
    none do, the largest is given with the label "runs disagree" and `agree` false.
    """
    place = torch.device(device)
    try:
        if place.type == "cuda":
            beside = warm_cuda(fn, reset, place)
            once = partial(cuda_peak, fn, reset, place)
        else:
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
    """Measured calls until two in a row agree, or `MOST_RUNS` of them."""
    runs = [once()]
    while len(runs) < MOST_RUNS:
        runs.append(once())
        if runs[-1].peak == runs[-2].peak:
            break
    return runs


def peak_reading(runs: list[MeasuredPeak], beside: Mapping[str, Any]) -> Reading:
    """The largest of the runs as a reading; its samples are the last two runs where they agree,
    else all.

    `beside`: further details of the reading.
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
    """One call on a restored state; returns the result, so that the caller keeps it alive."""
    if reset is not None:
        reset()
    return fn()


@lru_cache(maxsize=1)
def profiler_sees_allocations() -> bool:
    """Whether torch's profiler records a buffer of known size, its release included."""
    size = 4096
    with torch_profiled(memory=True) as trace:
        buffer = torch.empty(size, dtype=torch.uint8)
        del buffer
    return allocations(trace) == [size, -size]


def require_cpu_accounting() -> None:
    """NotTold where the profiler would show no allocation: 0 bytes would mean nothing."""
    if not profiler_sees_allocations():
        raise NotTold(
            "this build of torch has a profiler that records no allocation on the CPU: install a "
            "build with Kineto (the ones from pytorch.org have it)"
        )


def cpu_peak(fn: Call, reset: Call | None) -> MeasuredPeak:
    """The peak in bytes, what the call keeps, and the number of allocations."""
    if reset is not None:
        reset()
    gc.collect()  # so that no reference cycle made earlier is freed meanwhile
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


def statistics_of(device: torch.device) -> Mapping[str, int]:
    """What torch's CUDA allocator counts.

    A build of torch without CUDA answers 0 to some of these questions, and is not asked.

    Raises:
        NotTold: there is no GPU, or its allocator does not count what is needed.
    """
    if torch.version.cuda is None and not torch.cuda.is_available():
        raise NotTold(f"peak memory on {device}: this torch was built without CUDA")
    if not torch.cuda.is_available():
        raise NotTold(f"peak memory on {device}: torch finds no NVIDIA GPU")
    found = torch.cuda.memory_stats(device)
    wanted = [f"{name}.all.{kind}" for name in STATISTICS for kind in ("current", "peak")]
    if missing := [name for name in wanted if name not in found]:
        raise NotTold(
            f"the CUDA allocator in use does not count {missing[0]}: leave "
            f"PYTORCH_CUDA_ALLOC_CONF without another backend than torch's own"
        )
    return {name: int(found[name]) for name in wanted}


def warm_cuda(fn: Call, reset: Call | None, device: torch.device) -> dict[str, Any]:
    """Call once, so that libraries have their workspaces, and return how large these are.

    cuBLAS keeps a workspace per handle and stream in torch's allocator from the first product on.
    Where torch can release the workspaces (by a private function), those of earlier calls are
    released first, the size is what a release after the call frees, and another call allocates them
    again. Elsewhere the size is what the first call leaves allocated, which may include what a
    module keeps for itself from its first call on.
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
            "workspace_method": "what the first call left; no way to tell whose it is",
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
    """Requested bytes allocated now, after the device has finished its work."""
    statistics_of(device)  # raises where there is no GPU
    torch.cuda.synchronize(device)
    return statistics_of(device)["requested_bytes.all.current"]


def cuda_peak(fn: Call, reset: Call | None, device: torch.device) -> MeasuredPeak:
    """Peaks over the baseline, in bytes: requested, allocated, reserved."""
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
    """NotTold where a result lies on the GPU although torch's allocator holds nothing."""
    on_gpu = any(isinstance(leaf, torch.Tensor) and lies_on_gpu(leaf) for leaf in tree_leaves(kept))
    if on_gpu and after["allocated_bytes.all.current"] == 0:
        raise NotTold(
            "torch counts no allocation though the result lies on the GPU: another allocator is in "
            "use, and its bytes are not told"
        )


def lies_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes on a CUDA device."""
    return tensor.is_cuda and tensor.numel() > 0


LESS = "driver says less"
"""The label where the driver counts less for the process than its allocator has reserved."""


MORE = "memory beside the allocator"
"""The label where the driver counts more than allocator, context and libraries together take."""


def driver_check(device: torch.device, own: int | None = None) -> Mapping[str, Any]:
    """Details for a reading of memory: `driver_bytes`, what NVML says that this process holds now;
    `driver_reserved`, what the allocator has reserved now; `driver_gap`, the first less the second;
    `driver_gap_holds`, what that is; and `driver_label`, "" where they agree. Or `driver_bytes`
    null with its `driver_reason`.

    Args:
        own: the id of this process.
    """
    try:
        nvml = load_nvml()
        properties = torch.cuda.get_device_properties(device)
        handle = handle_of(nvml, properties)
        told = process_bytes(nvml, handle, os.getpid() if own is None else own)
    except (SensorError, RuntimeError, AssertionError) as error:
        return {"driver_bytes": None, "driver_reason": f"NVML: {reason_of(error)}"}
    reserved = int(torch.cuda.memory_reserved(device))
    gap = told - reserved
    label = LESS if gap < 0 else MORE if gap > ALLOWANCE_BYTES else ""
    return {
        "driver_bytes": told,
        "driver_reserved": reserved,
        "driver_gap": gap,
        "driver_gap_holds": beside_allocator(properties),
        "driver_label": label,
    }


def beside_allocator(properties: Any) -> str:
    """What a process holds on a GPU beside torch's allocator: a context keeps the local memory of
    the kernel that needs most of it, for as many threads as the GPU can run at once."""
    threads = properties.multi_processor_count * properties.max_threads_per_multi_processor
    return (
        "the context, the code of kernels, what libraries allocate by themselves (plans of cuFFT), "
        f"and local memory for {threads:,} threads: {threads * 2**10:,} B for a KiB each"
    )


def process_bytes(nvml: Any, handle: Any, own: int) -> int:
    """The bytes of a board's memory that NVML attributes to a process.

    Raises:
        SensorError: the board lists no processes, or not this one (inside a container NVML has the
            host's ids), or does not tell the bytes of each.
    """
    listed = ask_nvml(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    mine = [process for process in listed if process.pid == own]
    if not mine:
        raise SensorError(NOT_LISTED)
    held = [process.usedGpuMemory for process in mine]
    if None in held:
        raise SensorError("the driver does not tell what each process holds")
    return int(sum(held))
