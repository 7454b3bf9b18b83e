"""What does a large grid of sizes cost, next to formulas typed by hand and to FlopCounterMode?

python -m benchmarks.grid_of_sizes
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import environment, interleaved, ratio, spread
from costmodel.mixers import builtin
from costmodel.questions.count import count
from costmodel.symbolic.grid import axes, grid
from profiler.modules.registry import build, implementations

REPEATS = 15
LENGTHS, WIDTHS, HEADS = range(1, 2049), range(8, 8 * 257, 8), (1, 2, 4, 8)

Grid = Mapping[str, Any]
Total = NDArray[np.int64]

BY_HAND: Mapping[str, Callable[..., Total]] = {
    "self-attention": lambda l, d, n: (
        8 * d**2 * l + 2 * d * l**2 - 3 * d * l + n * (3 * l**2 + l) // 2
    ),
    "she": lambda l, d, n: d**2 * l**2 + 5 * d**2 * l - 2 * d * l,
    "he": lambda l, d, n: 6 * d**2 * l + d * l**2 - 2 * d * l,
    "we": lambda l, d, n: 4 * d**2 * l + d * l**2 - d * l,
    "me": lambda l, d, n: d * l**2,
    "she-no-output": lambda l, d, n: d**2 * l**2 + 3 * d**2 * l - d * l,
    "she-extraction": lambda l, d, n: d**2 * l**2 + d**2 * l - d * l,
    "he-extraction": lambda l, d, n: 2 * d**2 * l + d * l**2 - d * l,
}
"""Forward totals as somebody types them who wants them fast: expanded, one axis per size."""


def per_combination(mixer: str) -> float:
    """Seconds that FlopCounterMode takes at one combination of sizes; the median of a few.

    The mixer's default module runs on the meta device, where no memory is touched. Building it is
    not timed.
    """
    described = next(iter(implementations(mixer).values()))
    samples = []
    for l in (64, 128, 256, 512, 1024):
        sizes = {"l": l, "d": 128, "n": 8}
        module = build(described, sizes, device="meta", dtype=torch.float32, seed=0)
        x = torch.empty(1, l, 128, device="meta")
        start = time.perf_counter()
        with FlopCounterMode(display=False), torch.no_grad():
            module(x)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def main() -> None:
    """Print medians and ratios per mixer that was typed by hand, and in all."""
    print(environment("numpy", "torch"))
    sizes: Grid = axes(l=LENGTHS, d=WIDTHS, n=HEADS)
    grids = f"{len(LENGTHS)} lengths x {len(WIDTHS)} widths, x {len(HEADS)} numbers of heads if any"
    print(f"Forward totals at {grids}; {REPEATS} times in turn\n")
    sums: dict[str, list[list[float]]] = {"grid": [], "by hand": []}
    for mixer in BY_HAND:
        ours = partial(grid, count(builtin(mixer)).exact_total, sizes)
        typed = partial(BY_HAND[mixer], **sizes)
        assert (ours() == typed()).all(), mixer
        found = interleaved({"grid": ours, "by hand": typed}, REPEATS)
        each = per_combination(mixer)
        points = typed().size
        print(f"{mixer}: {points} points")
        for name, samples in found.items():
            sums[name].append(samples)
            print(f"  {name:<18}{spread(samples)}")
        seconds = statistics.median(found["grid"])
        print(f"  FlopCounterMode   {each * 1e3:9.3f} ms  for one point")
        print(f"  grid / by hand: {ratio(found['grid'], found['by hand']):.2f}")
        print(f"  FlopCounterMode per point / grid per point: {each / (seconds / points):,.0f}\n")
    in_all = {name: [sum(run) for run in zip(*each, strict=True)] for name, each in sums.items()}
    print(f"all of these, grid / by hand: {ratio(in_all['grid'], in_all['by hand']):.2f}")


if __name__ == "__main__":
    main()
