"""The program that runs under ncu: one call, or the kernels of a calibration.

Started as `python -m profiler.hardware.child JSON`. ncu counts the kernels that are launched within
NVTX ranges; a range holds one call, and warm-up calls precede the range.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiler.hardware.calibration import range_of
from profiler.hardware.kernels import makers
from profiler.hardware.ncu import RANGE
from profiler.host.device import on_device
from profiler.records.reading import reason_of

WARMUPS = 3
"""Warm-up calls: in the first calls, libraries choose kernels and allocate workspaces."""


def count_call(name: str, call: Callable[[], Any], reset: Callable[[], Any] = lambda: None) -> None:
    """Make one call within the NVTX range `name`, after warm-up calls; `reset` undoes what a call
    changed, before each call."""
    for _ in range(WARMUPS):
        reset()
        call()
    reset()
    torch.cuda.synchronize()
    started = torch.cuda.nvtx.range_start(name)
    try:
        call()
        torch.cuda.synchronize()
    finally:
        torch.cuda.nvtx.range_end(started)


def run_asked(asked: Mapping[str, Any]) -> None:
    """Run one call, or the kernels of a calibration, on the `device` that the JSON names.

    With `make`, a "module:function": the function takes the JSON value `of` and returns the call
    and a function that undoes the call's changes. With `dtype`: the calibration. A calibration
    kernel that fails prints its error, and the remaining kernels still run.
    """
    with on_device(asked["device"]):
        if "make" in asked:
            count_call(RANGE, *pkgutil.resolve_name(asked["make"])(asked["of"]))
            return
        for name, make in makers(torch.device(asked["device"]), asked["dtype"]).items():
            try:
                count_call(range_of(name), make())
            except Exception as error:  # a library that compiles kernels may be missing
                print(f"{name}: {reason_of(error)}")


if __name__ == "__main__":
    run_asked(json.loads(sys.argv[1]))
