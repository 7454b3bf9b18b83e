"""How often does the interval that a measurement prints hold the median of all measurements of the
same call?

Every run is a whole measurement, as `costmodel profile` makes it: warm-up, blocks, a rule that
stops. The truth is not known on a real machine: the median of all runs takes its place, which each
interval of its own run holds a little more often than the truth. What is slower than one run, such
as another load of the machine, moves whole runs and is in no interval: how far the runs' medians
lie apart is told beside the widths of the intervals.

python -m benchmarks.interval_coverage
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import torch
from scipy import stats

from benchmarks.timing import environment
from profiler.host.device import default_device
from profiler.meters.intervals import CONFIDENCE
from profiler.meters.latency import latency
from profiler.records.reading import Measured, Reading
from profiler.records.words import scaled

RUNS = 40
SIDES = (64, 512)
"""Matrices whose product is a call of microseconds, and of a millisecond."""


def main() -> None:
    """Print shares of held intervals, with the range that the level allows for so many runs."""
    device = default_device()
    print(environment("torch", "numpy"))
    for side in SIDES:
        x = torch.randn(side, side, device=device)
        found = [latency(lambda x=x: x @ x, device=device) for _ in range(RUNS)]  # type: ignore[misc]  # bound at once
        print(f"({side}, {side}) @ ({side}, {side}) on {device}: {told(found)}")


def told(found: Sequence[Measured]) -> str:
    """One call's runs in a sentence."""
    known = [one for one in found if isinstance(one, Reading) and one.details["ci_low"] is not None]
    lost = f"{len(found) - len(known)} of {len(found)} runs have no interval"
    if not known:
        return lost
    middle = statistics.median(one.value for one in known)
    holding = sum(one.details["ci_low"] <= middle <= one.details["ci_high"] for one in known)
    least = stats.binom.ppf(0.025, len(known), CONFIDENCE)
    width = statistics.median(
        (one.details["ci_high"] - one.details["ci_low"]) / one.value for one in known
    )
    values = sorted(one.value for one in known)
    rules = Counter(one.details["stop_rule"] for one in known)
    stops = ", ".join(f"{rule} {number}" for rule, number in rules.most_common())
    return (
        f"{holding} of {len(known)} intervals ({holding / len(known):.0%}) hold the median of all, "
        f"{scaled(middle, 's')}; intervals of {CONFIDENCE:.0%} do in {least:.0f} or more but for "
        f"one time in 40. Intervals are {width:.2%} wide (median), the runs' medians lie from "
        f"{scaled(values[0], 's')} to {scaled(values[-1], 's')}; stopped by {stops}; {lost}; left "
        f"out {sum(one.details['left_out_blocks'] for one in known)} disturbed blocks"
    )


if __name__ == "__main__":
    main()
