"""How often is a call found to differ from itself, and how near is a known ratio: in turns with the
paired test of `costmodel compare`, and one after the other with a rank test of the samples?

The known ratio is that of calls of more parts and of fewer. What a call takes beside its parts is
measured by the same means: T = a + b * parts, fitted to several numbers of parts in long turns. The
calls of every comparison are built anew, for where arrays lie in memory makes some of them slower
than others: that is in a ratio, and in no interval of it.

With `--load`, while twice as many processes as there are cores compute without end: in how many of
twenty comparisons over fresh processes a call differs from itself, and in how many of ten it
differs from one of a tenth more parts.

python -m benchmarks.compare_with_itself [--load]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import nn

from benchmarks.timing import environment, spinning
from profiler.compare.rows import PROCESSES
from profiler.compare.verdict import (
    LEVEL,
    Rounds,
    Verdict,
    location,
    log_ratios,
    rounds_needed,
    verdicts,
)
from profiler.host.device import default_device
from profiler.meters.disturbances import watch_for
from profiler.meters.rounds import VISIT, Visitor, equal_regions, visitor
from profiler.meters.sampler import Disturbed, Instruments
from profiler.meters.timers import timer_for
from profiler.run.prepare import PreparedCall

REPEATS = 20
FEWER = 10
"""Comparisons of calls that differ, under load."""
ROUNDS = 12
PARTS = 20
"""Products in a call; the longer call has one more."""
CALIBRATED = (10, 20, 30, 40)
"""Parts of the calls that show what a call takes beside them."""
CALIBRATING = 60
"""Rounds of these."""

Pair = tuple[Visitor, Visitor]


def call(products: int, device: torch.device) -> PreparedCall:
    """So many products of (96, 96) matrices."""
    x = torch.randn(96, 96, device=device) / math.sqrt(96)

    def several() -> torch.Tensor:
        y = x
        for _ in range(products):
            y = y @ x
        return y

    return PreparedCall(nn.Identity(), several, (), None)


def warm(products: int, device: torch.device) -> Visitor:
    """Visits to such a call."""
    setting = Instruments(VISIT, timer_for(device), watch_for(device))
    return visitor(call(products, device), setting)


@dataclass(frozen=True)
class Line:
    """T = a + b * parts, as far as ratios tell it."""

    beside: float
    """a / b: what a call takes beside its parts, in parts."""
    off: float
    """The largest relative distance of a measured time from the line."""

    def ratio(self, first: int, second: int) -> float:
        """Of calls of so many parts."""
        return (self.beside + second) / (self.beside + first)


def line(device: torch.device) -> Line:
    """Fitted by least squares of relative distances."""
    visits = {str(n): warm(n, device) for n in CALIBRATED}
    equal_regions(visits.values())
    made = Rounds(visits)
    made.take(CALIBRATING)
    first, *_ = made.values
    times = [math.exp(location(log_ratios(made.values[first], v))) for v in made.values.values()]
    rows = [[1 / time, n / time] for n, time in zip(CALIBRATED, times, strict=True)]
    (a, b), *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    distances = [abs((a + b * n) / time - 1) for n, time in zip(CALIBRATED, times, strict=True)]
    return Line(float(a / b), float(max(distances)))


def in_turn(pair: Pair, seed: int) -> Verdict:
    """Both in rounds, there and back."""
    made = Rounds({"first": pair[0], "second": pair[1]}, seed)
    made.take(ROUNDS)
    (found,) = verdicts(made.values)
    return found


def taken(visit: Visitor) -> list[float]:
    """Two visits for each round, without those that stayed disturbed."""
    found = []
    for _ in range(2 * ROUNDS):
        with suppress(Disturbed):
            found.append(visit())
    return found


def one_after_the_other(pair: Pair) -> tuple[float, bool]:
    """As many visits of the one and then of the other: ratio of medians, and what a test says."""
    first, second = (taken(visit) for visit in pair)
    ratio = statistics.median(second) / statistics.median(first)
    return ratio, bool(mannwhitneyu(first, second).pvalue <= LEVEL)


def printed(name: str, ratios: list[float], claims: int, truth: float) -> None:
    """A line of the result."""
    off = sorted(abs(math.log(ratio / truth)) for ratio in ratios)
    print(
        f"{name:<24}{claims:>4} of {len(ratios)} found to differ; ratio off by "
        f"{statistics.median(off):.2%} (median), {off[-1]:.2%} (most)"
    )


def holding(found: list[Verdict], truth: float) -> int:
    """How many intervals hold a ratio."""
    return sum((v.ci_low or math.inf) <= truth <= (v.ci_high or 0.0) for v in found)


ROUNDS_UNDER_LOAD = 3
"""Of a comparison, in each process."""
UNDER_LOAD = (("itself", 0, REPEATS), ("a tenth more", PARTS // 10, FEWER))
"""Of calls that are compared: title, parts that the second has more, how many comparisons."""


def in_one_process(number: int) -> tuple[list[tuple[float, float]], float]:
    """Of each comparison the geometric means of the rounds of both calls in this process, and for
    which share of a visit the calls waited. As with `costmodel compare`, every second process
    builds the calls the other way round."""
    device = torch.device(default_device())
    torch.set_num_threads(1)
    found: list[tuple[float, float]] = []
    built: list[Visitor] = []
    for seed, more in enumerate(more for _, more, repeats in UNDER_LOAD for _ in range(repeats)):
        parts = (PARTS, PARTS + more)
        pair = [warm(each, device) for each in (parts[::-1] if number % 2 else parts)]
        first, second = pair[::-1] if number % 2 else pair
        equal_regions(pair)
        made = Rounds({"first": first, "second": second}, 1000 * number + seed)
        made.take(ROUNDS_UNDER_LOAD)
        means = [statistics.geometric_mean(values) for values in made.values.values()]
        found.append((means[0], means[1]))
        built += pair  # what is built next lies elsewhere in memory
    return found, statistics.median(share for each in built for share in each.waiting)


def under_load() -> None:
    """Print what `costmodel compare` claims over processes while others have the processors."""
    processes = rounds_needed(1)
    with spinning() as others:
        print(f"{others} processes compute without end; {processes} fresh processes compare")
        began, context = time.monotonic(), multiprocessing.get_context("spawn")
        taken: list[list[tuple[float, float]]] = []
        waits: list[float] = []
        for number in range(processes):
            with context.Pool(1) as pool:
                found, waited = pool.apply(in_one_process, (number,))
            taken.append(found)
            waits.append(waited)
    compared = sum(repeats for *_, repeats in UNDER_LOAD)
    each_s = (time.monotonic() - began) / compared
    print(
        f"{each_s:.0f} s a comparison; for {statistics.median(waits):.0%} of a visit's regions a "
        f"call was ready and others had the processor"
    )
    values = iter(zip(*taken, strict=True))
    for title, more, repeats in UNDER_LOAD:
        verdicts_ = []
        for _ in range(repeats):
            first, second = zip(*next(values), strict=True)
            verdicts_ += verdicts({"first": first, "second": second}, unit=PROCESSES)
        print(f"\nA call and {title}:")
        ratios = [v.ratio for v in verdicts_ if v.ratio is not None]
        printed("in turns", ratios, sum(v.differs for v in verdicts_), 1 + more / PARTS)
        right = sum(v.differs and (v.ratio or 0) > 1 for v in verdicts_)
        print(f"{'':<24}{right:>4} of {repeats} found the second slower")


def main() -> None:
    """Print claims, and how far the ratios are off."""
    device = torch.device(default_device())
    torch.set_num_threads(1)

    asked = argparse.ArgumentParser()
    asked.add_argument("--load", action="store_true", help="beside processes that compute")
    load = asked.parse_args().load
    print(environment("torch", "scipy", "numpy"))
    if load:
        under_load()
        return
    print(f"{REPEATS} comparisons of {ROUNDS} rounds each on {device.type}, level {LEVEL:.0%}")
    fitted = line(device)
    print(
        f"a call takes {fitted.beside:+.3f} parts beside its parts, by {CALIBRATING} rounds of "
        f"calls of {', '.join(map(str, CALIBRATED))} parts: all within {fitted.off:.2%} of a line",
        flush=True,
    )
    built: list[Pair] = []  # all at once: what is built next lies elsewhere in memory
    for title, products in (("itself", (PARTS, PARTS)), ("one part more", (PARTS, PARTS + 1))):
        truth = fitted.ratio(*products)
        found, others = [], []
        for seed in range(REPEATS):
            built.append((warm(products[0], device), warm(products[1], device)))
            equal_regions(built[-1])
            found.append(in_turn(built[-1], seed))
            others.append(one_after_the_other(built[-1]))
        ratios = [v.ratio for v in found if v.ratio is not None]
        nominal, middle = products[1] / products[0], statistics.median(ratios)
        print(f"\nA call and {title}: the ratio is {truth:.5f}, of the parts alone {nominal:g}")
        printed("in turns", ratios, sum(v.differs for v in found), truth)
        print(
            f"{'':<24}{holding(found, truth):>4} of {len(found)} intervals of 95 % hold the ratio, "
            f"{holding(found, nominal)} that of the parts, {holding(found, middle)} the median "
            f"{middle:.5f}"
        )
        refused = sum(v.ratio is None for v in found)
        print(f"{'':<24}{refused:>4} of {len(found)} refused: too few undisturbed rounds")
        printed("one after the other", [r for r, _ in others], sum(d for _, d in others), truth)


if __name__ == "__main__":
    main()
