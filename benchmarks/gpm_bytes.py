"""Do NVML's GPM samples tell how many bytes a loop of a second moves?

    python -m benchmarks.gpm_bytes

Copies of an array that no cache holds, for about a second, between two samples: the utilisation of
memory bandwidth times the bandwidth by clock and bus times the time, over the bytes copied. Where
there is no GPU, or no GPM, the reason.
"""

from __future__ import annotations

import time
from typing import Any

import pynvml  # type: ignore[import-untyped]  # no stubs
import torch

from benchmarks.timing import environment

BYTES = 1 << 30
SECONDS = 1.0
KEPT = 20
"""Copies that are timed to find how many take a second."""


def obstacle(board: Any) -> str | None:
    """Why a board gives no samples: one sentence."""
    support = pynvml.nvmlGpmQueryDeviceSupport(board)
    return None if support.isSupportedDevice else "it needs a GPU with GPM, of Hopper or later"


def bandwidth(board: Any) -> float:
    """Bytes a second by the memory's clock, two transfers each, and the width of its bus."""
    clock = pynvml.nvmlDeviceGetMaxClockInfo(board, pynvml.NVML_CLOCK_MEM) * 1e6
    return float(2 * clock * pynvml.nvmlDeviceGetMemoryBusWidth(board) / 8)


def utilisation(before: Any, after: Any) -> float:
    """The share of the bandwidth that was used between two samples."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = 1
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    found = pynvml.nvmlGpmMetricsGet(asked).metrics[0]
    pynvml._nvmlCheckReturn(found.nvmlReturn)
    return float(found.value) / 100


def copied(source: torch.Tensor, target: torch.Tensor, times: int) -> float:
    """How many seconds the copies took."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        target.copy_(source)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compared(board: Any) -> str:
    """Bytes by GPM over bytes that were read and written, in words with the figures behind it."""
    source = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied(source, target, KEPT)
    times = max(KEPT, round(KEPT * SECONDS / copied(source, target, KEPT)))
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    try:
        start = time.perf_counter()
        pynvml.nvmlGpmSampleGet(board, samples[0])
        elapsed_s = copied(source, target, times)
        pynvml.nvmlGpmSampleGet(board, samples[1])
        apart_s = time.perf_counter() - start
        used = utilisation(*samples)
    finally:
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)
    moved = used * bandwidth(board) * elapsed_s
    return (
        f"GPM tells {moved / (2 * BYTES * times):.3f} of the bytes: {used:.1%} of "
        f"{bandwidth(board):.4g} B/s for {elapsed_s:.4f} s, samples {apart_s:.4f} s apart"
    )


def main() -> None:
    """Print the ratio, or why there is none."""
    if not torch.cuda.is_available():
        print("not compared: it needs an NVIDIA GPU, and torch finds none")
        return
    print(environment())
    try:
        pynvml.nvmlInit()
        board = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        reason = obstacle(board)
        print(f"not compared: {reason}" if reason else compared(board))
    except pynvml.NVMLError as error:
        print(f"not compared: NVML says {error}")


if __name__ == "__main__":
    main()
