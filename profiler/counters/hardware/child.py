"""What runs under ncu? One call as it is measured elsewhere, or the kernels of a calibration.

Started as `python -m profiler.counters.hardware.child JSON`; ncu counts what is launched within the
NVTX ranges, each around one call that comes after a few of its kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from profiler.counters.hardware.calibration import makers, range_of
from profiler.counters.hardware.command import RANGE
from profiler.meters.interface import reason_of
from profiler.sweeps.points import request_of
from profiler.work import on_device, prepare

WARMUPS = 3
"""Calls before the one that is counted: libraries choose and allocate in the first ones."""


def counted(name: str, call: Callable[[], Any], reset: Callable[[], Any] = lambda: None) -> None:
    """One steady call within a range."""
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


def run(asked: Mapping[str, Any]) -> None:
    """Do what is asked: a `request`, or a calibration of a `dtype` on a `device`, whose kernels
    that cannot be made or run say why in its output and stop no other."""
    if "request" in asked:
        request = request_of(asked["request"])
        with on_device(request.device):
            work = prepare(request)
            counted(RANGE, work.bare, work.restore)
        return
    with on_device(asked["device"]):
        for name, make in makers(torch.device(asked["device"]), asked["dtype"]).items():
            try:
                counted(range_of(name), make())
            except Exception as error:  # a library that compiles kernels may be missing
                print(f"{name}: {reason_of(error)}")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
