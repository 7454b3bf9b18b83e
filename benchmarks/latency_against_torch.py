"""Do our latencies agree with those of torch.utils.benchmark, and of Triton on a GPU?

python -m benchmarks.latency_against_torch
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch.utils.benchmark import Timer

from benchmarks.timing import environment
from costmodel.mixers.load import mixer as load_mixer
from profiler.meters.latency import latency, latency_cold
from profiler.meters.sampler import LatencyLimits
from profiler.modules.registry import implementations
from profiler.records.reading import Unavailable
from profiler.run.prepare import PreparedCall, prepare
from profiler.run.request import Request

ROUNDS = 9
SECONDS = 0.3
"""What each tool may sample for, each time that it is its turn."""

CASES = (
    ("self-attention", "explicit"),
    ("self-attention", "sdpa"),
    ("she", "direct"),
    ("linear-attention", "cumsum"),
    ("lstm", "explicit"),
)
SIZES: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "cpu": ({"b": 1, "l": 64, "d": 64}, {"b": 4, "l": 256, "d": 128}),
    "cuda": ({"b": 8, "l": 256, "d": 128}, {"b": 8, "l": 1024, "d": 1024}),
}

Tool = Callable[[PreparedCall], float]


def ours(kind: Callable[..., Any], device: str, work: PreparedCall) -> float:
    """Our median, in seconds."""
    limits = LatencyLimits(max_seconds=SECONDS)
    found = kind(work.bare, device=device, reset=work.reset, limits=limits)
    if isinstance(found, Unavailable):
        raise SystemExit(found.reason)
    return float(found.value)


def torch_benchmark(work: PreparedCall) -> float:
    """The median of torch's own timer, hot, in the same number of threads."""
    timer = Timer("call()", globals={"call": work.once}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=SECONDS).median)


def triton_benchmark(work: PreparedCall) -> float:
    """The median of Triton's, its caches flushed before each call."""
    testing = importlib.import_module("triton.testing")
    milliseconds = testing.do_bench(work.once, rep=round(SECONDS * 1e3), return_mode="median")
    return float(milliseconds) * 1e-3


def pairs(device: str) -> dict[str, tuple[Tool, Tool]]:
    """What measures the same kind: ours, then theirs."""
    hot: tuple[Tool, Tool] = (partial(ours, latency, device), torch_benchmark)
    found = {"hot / torch.utils.benchmark": hot}
    if device == "cuda" and importlib.util.find_spec("triton"):
        cold = partial(ours, latency_cold, device)
        found["cold / triton.testing.do_bench"] = (cold, triton_benchmark)
    return found


def in_turns(tools: tuple[Tool, Tool], work: PreparedCall) -> tuple[list[float], list[float]]:
    """Medians of both, in turns; who begins changes every round, and the first does not count."""
    found: tuple[list[float], list[float]] = ([], [])
    for round_ in range(ROUNDS + 1):
        order = (0, 1) if round_ % 2 else (1, 0)
        for place in order:
            seconds = tools[place](work)
            if round_:
                found[place].append(seconds)
    return found


def quartiles(values: list[float]) -> str:
    """Median and quartiles of the ratios."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:6.3f}  ({low:.3f} to {high:.3f})"


def spread(values: list[float]) -> float:
    """Interquartile range over the median: what a tool differs from itself by."""
    low, median, high = statistics.quantiles(values, n=4)
    return (high - low) / median


def compare(device: str) -> None:
    """A line for each mixer, sizes and pair of tools, each mixer in a process of its own.

    In one process for all, the two tools' loops differed by a factor of four for one mixer, with
    little spread; in processes of their own they agree on an idle machine. Where something else
    takes the processor away, torch's few long blocks hold the interruptions, and most of our many
    short regions do not: the spread of theirs shows it.
    """
    print(f"on {device}: ratio of medians round by round, with quartiles, and each tool's spread")
    header = f"{'mixer':<34}{'l':>6}{'d':>6}  {'ours, theirs (ms)':<20}{'ratio':<26}spread"
    print(header, flush=True)
    for case in CASES:
        child = get_context("spawn").Process(target=compare_one, args=(device, *case))
        child.start()
        child.join()


def compare_one(device: str, mixer: str, implementation: str) -> None:
    """The lines of one mixer; one thread, as torch's timer takes by default."""
    torch.set_num_threads(1)
    chosen, letters = implementations(mixer)[implementation], load_mixer(mixer).letters
    for sizes in SIZES[device]:
        known = {"n": 4, **sizes}
        given = {letter: n for letter, n in known.items() if letter == "b" or letter in letters}
        work = prepare(Request(load_mixer(mixer), chosen, given, device=device))
        for name, tools in pairs(device).items():
            mine, theirs = in_turns(tools, work)
            ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
            both = f"{statistics.median(mine) * 1e3:.4f}, {statistics.median(theirs) * 1e3:.4f}"
            print(
                f"{mixer + ' ' + implementation:<34}{sizes['l']:>6}{sizes['d']:>6}  {both:<20}"
                f"{quartiles(ratios):<26}{spread(mine):.1%}, {spread(theirs):.1%}  {name}",
                flush=True,
            )


def main() -> None:
    """Print the comparison, on a GPU too where there is one."""
    print(environment("torch"))
    print(f"1 thread, {ROUNDS} rounds, {SECONDS:g} s for each turn\n")
    compare("cpu")
    if torch.cuda.is_available():
        print(f"\n{torch.cuda.get_device_name()}")
        compare("cuda")


if __name__ == "__main__":
    main()
