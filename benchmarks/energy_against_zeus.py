"""Do we and Zeus find the same energy of one load on this GPU, and who is right in short windows?

python -m benchmarks.energy_against_zeus
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata, util
from typing import Any

import torch

from benchmarks.timing import environment
from profiler.meters.board_energy import energy
from profiler.meters.energy.protocol import EnergyLimits
from profiler.records.reading import Reading, Unavailable

SIDE = 8192
LONG_S = 12.0
ROUNDS = 3
SHORT_S = (0.15, 0.35, 0.75)
"""No multiples of a counter's period: there a plain window is right by accident."""
SHORT_REPEATS = 20

Window = Callable[[str, int], float]
"""Joules of so many calls, in a window of that name."""


def obstacle() -> str | None:
    """Why there is nothing to compare here: one sentence."""
    if not torch.cuda.is_available():
        return "energy_against_zeus needs an NVIDIA GPU, and torch finds none"
    if util.find_spec("zeus") is None or util.find_spec("zeus.monitor") is None:
        return "energy_against_zeus compares with Zeus, which is not installed: pip install zeus"
    return None


def load() -> Callable[[], Any]:
    """A product of random bfloat16 matrices."""
    x = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    return lambda: torch.mm(x, x, out=out)


def seconds_of(call: Callable[[], Any], calls: int = 200) -> float:
    """Seconds a call, back to back, once warm."""
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def zeus_window(call: Callable[[], Any]) -> Window:
    """A window of Zeus's monitor around calls."""
    from zeus.monitor import ZeusMonitor  # type: ignore[import-not-found]  # not a dependency

    monitor = ZeusMonitor(gpu_indices=[torch.cuda.current_device()], cpu_indices=[])

    def window(name: str, calls: int) -> float:
        monitor.begin_window(name)
        for _ in range(calls):
            call()
        return float(monitor.end_window(name).total_energy)

    return window


def ours(call: Callable[[], Any], limits: EnergyLimits) -> Reading:
    """Our reading; ends the script with the reason where there is none."""
    found = energy(call, device="cuda", limits=limits)
    if isinstance(found, Unavailable):
        sys.exit(f"energy_against_zeus: {found.reason}")
    return found


def off(values: Sequence[float], reference: float) -> str:
    """How far values lie from a reference: the mean, and the worst."""
    errors = [value / reference - 1 for value in values]
    return f"{statistics.fmean(errors):+8.2%} mean {max(errors, key=abs):+8.2%} worst"


def main() -> None:
    """Print both energies, their ratio, and both errors in short windows."""
    if reason := obstacle():
        sys.exit(reason)
    call = load()
    call_s = seconds_of(call)
    window = zeus_window(call)
    calls = round(LONG_S / call_s)
    package = metadata.packages_distributions()["zeus"][0]  # it was zeus-ml once
    print(environment("torch", "nvidia-ml-py", package))
    print(
        f"{torch.cuda.get_device_name()}: {SIDE} x {SIDE} bfloat16 product, {call_s * 1e3:.3f} ms\n"
    )
    limits = EnergyLimits(window_s=LONG_S)
    theirs: list[float] = []
    mine: list[Reading] = []
    for turn in range(ROUNDS):
        window(f"warm {turn}", calls // 4)
        theirs.append(window(f"long {turn}", calls) / calls)
        mine.append(ours(call, limits))
    reference = statistics.median(reading.value for reading in mine)
    labels = sorted({label for reading in mine for label in reading.details["labels"]})
    print(f"windows of {LONG_S:g} s, in turn, {ROUNDS} times; J a call")
    print(f"  costmodel    {reference:.5f}  labels: {', '.join(labels) or 'none'}")
    print(f"  ZeusMonitor  {statistics.median(theirs):.5f}")
    print(f"  ratio        {reference / statistics.median(theirs):.4f}\n")
    print("short windows, against the long reference")
    for short_s in SHORT_S:
        few = max(1, round(short_s / call_s))
        plain = [window(f"{short_s} {n}", few) / few for n in range(SHORT_REPEATS)]
        brief = EnergyLimits(window_s=short_s, min_window_s=short_s, min_periods=1, idle_s=1.0)
        found = ours(call, brief)
        print(f"  {short_s:g} s  ZeusMonitor {off(plain, reference)} of {SHORT_REPEATS}")
        print(f"        costmodel   {off(found.samples, reference)} of {len(found.samples)}")


if __name__ == "__main__":
    main()
