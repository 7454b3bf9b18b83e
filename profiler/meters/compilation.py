"""The time that torch.compile takes for a call, and the compiled call for the meters."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from profiler.meters.sampler import LatencyLimits
from profiler.meters.timers import Call, Timer, do_nothing, timer_for
from profiler.records.reading import Reading, Unavailable, reason_of, taken_once

CALLS = 50
"""The most calls made until three consecutive durations agree."""


@dataclass(frozen=True)
class Compiled:
    """A compiled call, ready for the meters, and the `compile` reading (s)."""

    fn: Callable[..., Any]
    reading: Reading


def compile_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    *,
    device: str | torch.device = "cpu",
    reset: Call | None = None,
    limits: LatencyLimits | None = None,
    timer: Timer | None = None,
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> Compiled | Unavailable:
    """Compile `fn` by torch.compile; return the compiled call, and the seconds up to its first
    settled call, less one call.

    Calls are settled once three consecutive durations agree within `warmup_steady` (5 %); earlier
    calls contain compiling and tuning. Code compiled before, by this process or on disk, is not
    reused. The details hold the largest difference from the results of `fn`, relative to the
    largest entry. `reset` runs before every call, untimed; `timer` and `compiler` replace the
    device's timer and torch.compile, `limits` holds `warmup_steady`; a call is `fn(*args)`.

    Unavailable without a compiler (C++ on a CPU, Triton on a GPU), if compiling fails, or if the
    call does not settle in 50 calls.
    """
    place = torch.device(device)
    steady = (limits or LatencyLimits()).warmup_steady
    prepare = reset or do_nothing
    try:
        prepare()
        expected = [leaf.detach().clone() for leaf in float_tensors(fn(*args))]
        with compiling_anew() as facts:
            clock = timer or timer_for(place)
            compiled = (compiler or torch.compile)(fn)
            durations = until_settled(clock, lambda: compiled(*args), prepare, steady)
            prepare()
            found = float_tensors(compiled(*args))
    except Exception as error:  # whatever compilers raise
        return Unavailable(f"torch.compile: {innermost_reason(error)}")
    if durations is None:
        return Unavailable(
            f"torch.compile: in {CALLS} calls, no three in a row had times within {steady:.0%}"
        )
    settled = statistics.median(durations[-3:])
    seconds = max(sum(durations[:-2]) - settled, 0.0)  # the first settled call is durations[-3]
    details = facts | {
        "calls": len(durations) - 2,
        "settled_call_s": settled,
        "difference": relative_difference(expected, found),
        "labels": [],
    }
    return Compiled(compiled, taken_once("compile", seconds, details))


def until_settled(timer: Timer, call: Call, prepare: Call, steady: float) -> list[float] | None:
    """Time calls until three consecutive durations differ by at most the share `steady` of the
    longest; return the seconds of each call, or None if no three of `CALLS` calls agree."""
    durations: list[float] = []
    while len(durations) < CALLS:
        durations.append(timer.elapsed_s(call, prepare))
        last = durations[-3:]
        if len(last) == 3 and max(last) - min(last) <= steady * max(last):
            return durations
    return None


@contextmanager
def compiling_anew() -> Iterator[dict[str, Any]]:
    """A context in which torch.compile starts from empty caches. It yields a dict of facts, which
    receives the numbers of graph breaks and graphs at the end.

    The compiler's warnings concern torch's own code and are suppressed.
    """
    facts: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch._dynamo.utils import counters

        torch.compiler.reset()
        counters.clear()
        with without_disk_caches(facts):
            yield facts
    facts["graph_breaks"] = sum(counters["graph_break"].values())
    facts["graphs"] = int(counters["stats"].get("unique_graphs", 0))


@contextmanager
def without_disk_caches(facts: dict[str, Any]) -> Iterator[None]:
    """A context in which the caches on disk are disabled, if this torch can disable them; `facts`
    receives `caches`, which says whether they are used."""
    try:
        from torch._inductor import config

        patched = config.patch(force_disable_caches=True)
    except (ImportError, AttributeError) as error:
        facts["caches"] = f"used: this torch cannot bypass them ({reason_of(error)})"
        yield
        return
    facts["caches"] = "left out"
    with patched:
        yield


def float_tensors(result: Any) -> list[torch.Tensor]:
    """The floating-point tensors in a nested result."""
    tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
    return [leaf for leaf in tensors if leaf.is_floating_point()]


def relative_difference(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float | None:
    """The largest difference between tensors of equal shape at equal places of two lists, relative
    to the largest finite entry of these tensors in the first list unless all are 0. Equal entries,
    infinities and NaN too, differ by 0. None if other entries are not finite, the lists have
    different lengths, or no two tensors with an entry have equal shapes."""
    pairs = [(a.double(), b.detach().double()) for a, b in zip(expected, found, strict=False)]
    pairs = [(a, b) for a, b in pairs if a.numel() and a.shape == b.shape]
    if not pairs or len(expected) != len(found):
        return None
    scale = max(float(a.abs().where(a.isfinite(), 0.0).max()) for a, _ in pairs)
    equal = [(a == b) | (a.isnan() & b.isnan()) for a, b in pairs]
    off = [float((a - b).abs().masked_fill(at, 0.0).max())
           for (a, b), at in zip(pairs, equal, strict=True)]  # fmt: skip
    if not all(map(math.isfinite, off)):
        return None
    return max(off) / scale if scale > 0 else max(off)


def innermost_reason(error: BaseException) -> str:
    """The reason of the innermost cause: the compiler's own error, which dynamo wraps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {reason_of(error)}"
