"""What runs in a process under ncu: one call, or the kernels of a calibration?

Started as `python -m profiler.hardware.child JSON`. ncu counts what is launched within NVTX ranges,
each around one call that comes after a few warm-up calls.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiler.hardware.calibration import makers, range_of
from profiler.hardware.ncu import RANGE
from profiler.host.device import on_device
from profiler.records.reading import reason_of

WARMUPS = 3
"""Calls before the one that is counted: libraries choose and allocate in the first calls."""


def count_call(name: str, call: Callable[[], Any], reset: Callable[[], Any] = lambda: None) -> None:
    """Make one call within a range, after warm-up calls."""
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
    """Run what the JSON asks for on its `device`: one call, or the kernels of a calibration for a
    `dtype`.

    `make`, a "module:function", makes the call, and what restores what the call changes, from the
    JSON values `of`. A calibration kernel that cannot be made or run prints why, and the others
    still run.
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
