"""How often is a call found to differ from itself, and how near is a known ratio: in turns with the
paired test of `costmodel compare`, and one after the other with a rank test of the samples?

python -m benchmarks.compare_with_itself
"""

from __future__ import annotations

import math
import statistics

import torch
from scipy.stats import mannwhitneyu
from torch import nn

from benchmarks.timing import environment
from profiler.comparing.compare import Visitor
from profiler.comparing.comparison import LEVEL, Rounds, Verdict, verdicts
from profiler.meters.latency_timers import timer_for
from profiler.work import Work, default_device

REPEATS = 20
ROUNDS = 12
PARTS = 20
"""Products in a call; the longer call has one more, so that the ratio is 21/20."""

Pair = tuple[Visitor, Visitor]


def call(products: int, device: torch.device) -> Work:
    """So many products of (96, 96) matrices."""
    x = torch.randn(96, 96, device=device) / math.sqrt(96)

    def several() -> torch.Tensor:
        y = x
        for _ in range(products):
            y = y @ x
        return y

    return Work(nn.Identity(), several, (), None)


def in_turn(pair: Pair, seed: int) -> Verdict:
    """Both in rounds, there and back."""
    made = Rounds({"first": pair[0], "second": pair[1]}, seed)
    for _ in range(ROUNDS):
        made.once()
    (found,) = verdicts(made.values)
    return found


def one_after_the_other(pair: Pair) -> tuple[float, bool]:
    """As many visits of the one and then of the other: ratio of medians, and what a test says."""
    first, second = ([visitor() for _ in range(2 * ROUNDS)] for visitor in pair)
    ratio = statistics.median(second) / statistics.median(first)
    return ratio, bool(mannwhitneyu(first, second).pvalue <= LEVEL)


def printed(name: str, ratios: list[float], claims: int, truth: float) -> None:
    """A line of the result."""
    off = sorted(abs(math.log(ratio / truth)) for ratio in ratios)
    print(
        f"{name:<24}{claims:>4} of {len(ratios)} found to differ; ratio off by "
        f"{statistics.median(off):.2%} (median), {off[-1]:.2%} (most)"
    )


def main() -> None:
    """Print claims, and how far the ratios are off."""
    device = torch.device(default_device())
    torch.set_num_threads(1)

    print(environment("torch", "scipy", "numpy"))
    print(f"{REPEATS} comparisons of {ROUNDS} rounds each on {device.type}, level {LEVEL:.0%}")
    for title, products in (("itself", (PARTS, PARTS)), ("one part more", (PARTS, PARTS + 1))):
        truth = products[1] / products[0]
        first, second = (Visitor(call(n, device), timer_for(device)) for n in products)
        found, others = [], []
        for seed in range(REPEATS):
            found.append(in_turn((first, second), seed))
            others.append(one_after_the_other((first, second)))
        held = sum((v.ci_low or 0) <= truth <= (v.ci_high or 0) for v in found)
        print(f"\nA call and {title}: the ratio is {truth:g}", flush=True)
        ratios = [v.ratio for v in found if v.ratio is not None]
        printed("in turns", ratios, sum(v.differs for v in found), truth)
        print(f"{'':<24}{held:>4} of {len(found)} intervals of 95 % hold the ratio")
        printed("one after the other", [r for r, _ in others], sum(d for _, d in others), truth)


if __name__ == "__main__":
    main()
