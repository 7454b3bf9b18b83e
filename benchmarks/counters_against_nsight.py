"""Does NVIDIA's nsight-python, attached to this process, count what we count in one of our own?

    python -m benchmarks.counters_against_nsight

Of one call, a product and a softmax, every counter that we read, by both; where nsight-python or a
GPU is missing, the reason. Written against nsight-python 1.1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

try:  # before torch, whose launches it must see
    import nsight  # type: ignore[import-not-found]  # not a dependency
except Exception as error:  # it looks for ncu when it is imported
    UNUSABLE = f"nsight-python cannot be imported ({error}): pip install nsight-python"
else:
    UNUSABLE = ""

import torch

from benchmarks.timing import environment
from profiler.hardware.child import WARMUPS
from profiler.hardware.counts import counts_of_call
from profiler.records.reading import Unavailable, reason_of

SIDE = 1024


def obstacle() -> str | None:
    """Why there is nothing to compare here: one sentence."""
    if not torch.cuda.is_available():
        return "it needs an NVIDIA GPU, and torch finds none"
    return UNUSABLE or None


def load(_: Any = None) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A product and a softmax of random fp32 matrices, and what restores what they change."""
    x = torch.randn(SIDE, SIDE, device="cuda")
    return lambda: torch.softmax(x @ x, -1), lambda: None


def theirs(metrics: list[str]) -> Mapping[str, float]:
    """Metric -> the sum over the call's kernels, as nsight-python counts it."""
    call, _ = load()
    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize()

    def counted() -> None:
        with nsight.annotate("call"):
            call()

    kernels = nsight.analyze.kernel(
        metrics=metrics, combine_kernel_metrics=operator.add, thermal_mode="off"
    )
    frame = kernels(counted)().to_dataframe()
    return dict(zip(frame["Metric"], frame["AvgValue"], strict=True))


def compared(
    ours: Mapping[str, int], metrics: Mapping[str, str], others: Mapping[str, float]
) -> list[str]:
    """A line for each counter that we read, and the largest difference as a part of the larger."""
    lines, apart = [], [0.0]
    for name, number in sorted(ours.items()):
        other = others.get(metrics[name])
        lines.append(f"{name:12} {number:>16,} {'-' if other is None else f'{other:>16,.0f}'}")
        most = max(number, other or 0, 1)
        apart.append(1.0 if other is None else abs(number - other) / most)
    return [*lines, f"they differ by at most {max(apart):.6f}"]


def main() -> None:
    """Print both counts, or why there are none."""
    made = {"make": "benchmarks.counters_against_nsight:load", "of": None}
    found = Unavailable(reason) if (reason := obstacle()) else counts_of_call("cuda", "fp32", made)
    if isinstance(found, Unavailable):
        print(f"not compared: {found.reason}")
    elif found.executed is None:
        print(f"not compared: {next(iter(found.reasons.values()), 'no counter was read')}")
    else:
        print(environment("torch", "nsight-python"), "\n")
        print(f"{'counter':12} {'ours':>16} {'nsight-python':>16}")
        ours = {name: n for name, n in found.executed.items() if name in found.metrics}
        try:
            others = theirs([found.metrics[name] for name in ours])
        except Exception as error:  # a version of ncu or a right that it needs and we do not
            print(f"not compared: nsight-python fails: {reason_of(error)}")
            return
        print("\n".join(compared(ours, found.metrics, others)))


if __name__ == "__main__":
    main()
