"""The figures of the machine at hand, measured, as the file of a board: `costmodel calibrate`.

Rates are those of `meters.ceilings`. What the system says of cores, caches and memory stands
beside them under its own label. The file of a CPU says so (`kind = "cpu"`), and no time of a GPU's
kernel is predicted on a CPU. Other programs and other machines may share a CPU's last cache, so
that its size is measured: the largest matrix that products of one row read quickly.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from msgspec.structs import replace

from profiler.host.device import DTYPES
from profiler.host.system import Host, cpu_model
from profiler.meters.caches import CacheError, cache_bytes
from profiler.meters.ceilings import (
    ADDED,
    CHOSEN,
    COPY,
    NEW,
    READ,
    WRITE,
    elementwise_ceilings,
    exp_name,
    moving,
    multiply_add_name,
    narrow_name,
    of_the_work,
    ordinary,
    product_ceiling,
    product_name,
    words_of,
)
from profiler.meters.latency import latency, latency_graph
from profiler.meters.sampler import LatencyLimits
from profiler.records.grades import INTERRUPTED, ONE_SAMPLE, ONE_THREAD
from profiler.records.reading import Measured, Reading, Unavailable

MOST_SECONDS = 60.0
CALLS = 50
"""About how many calls are timed: products of a few sides, elementwise operations on a few sizes,
each in two element types, traffic, ordinary calls, and products of one row."""
TYPES = ("fp32", "bf16")
CHAIN = 64
"""Additions of one entry, one after the other, in a timed call."""
MEASURED, SYSTEM = "measured", "system"
"""The labels of figures: what was measured, and what the system says."""

OF_THREADS = ("matrix", "narrow", "vector", "special", "selection")
"""The figures that grow with the threads that execute a call. On a busy machine some calls are
timed on one thread; their rates are multiplied by torch's number of threads, on which the other
calls are timed, so that all are rates of one machine."""


@dataclass(eq=False)
class Within:
    """A meter of calls, made with a budget of `seconds` that begins at once. A call's time is the
    least of all samples: other programs that take turns only lengthen samples."""

    seconds: float
    meter: Callable[..., Measured] = latency
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def __call__(
        self,
        call: Callable[[], Any],
        *,
        device: torch.device,
        meter: Callable[..., Measured] | None = None,
        **_: Any,
    ) -> Measured:
        """The least duration of a call in seconds, sampled by `meter` (None: the meter of all
        calls) for one of `CALLS` shares of the budget; Unavailable with less than a share left.
        Other keywords are ignored; `INTERRUPTED` is no label of a least sample."""
        share = self.seconds / CALLS
        if self.clock() > self._begun + self.seconds - share:
            said = f"the {self.seconds:g} seconds of --seconds had passed"
            return Unavailable(f"{said} before this measurement: give a larger --seconds")
        limits = LatencyLimits(
            min_blocks=5, max_blocks=50, min_seconds=share / 4, max_seconds=share / 2,
            busy_seconds=share / 4, warmup_seconds=share / 2,
        )  # fmt: skip
        found = (meter or self.meter)(call, device=device, limits=limits)
        if isinstance(found, Unavailable) or not found.samples:
            return found
        labels = [label for label in found.labels if label != INTERRUPTED]
        return replace(found, value=min(found.samples), details={**found.details, "labels": labels})


@dataclass(frozen=True)
class Figure:
    """A figure of a board's file: `name` such as `matrix.fp32`, value in base units, and source."""

    name: str
    value: float
    label: str
    source: str


def chained_additions(place: torch.device, timing: Callable[..., Measured]) -> Measured:
    """The seconds of `CHAIN` additions of one entry, one after another, on a GPU replayed as a CUDA
    graph, by the meter `timing` (such as a `Within`, which keeps to a budget of time); Unavailable
    if other work or the host held them up."""
    start = torch.zeros(1, device=place)

    def chain() -> torch.Tensor:
        total = start
        for _ in range(CHAIN):
            total = total + 1.0
        return total

    graph = {"meter": latency_graph} if place.type == "cuda" else {}
    return of_the_work(timing(chain, device=place, **graph))


def cache_held(place: torch.device, timing: Callable[..., Measured]) -> Figure | Unavailable:
    """The bytes of the last cache that a CPU's programs have for themselves: the largest of five
    matrices, from a sixteenth of the cache's size to all of it, that a product of one row reads at
    half or more of the fastest rate, each by its median sample. Unavailable if the cache's size is
    unknown, or a product cannot be timed by the meter `timing`."""
    try:
        size, source = cache_bytes(place)
    except CacheError as error:
        return Unavailable(str(error))
    rates: dict[int, float] = {}  # bytes of a matrix -> entries read per second
    for share in (16, 8, 4, 2, 1):
        side = int((size / share / 4) ** 0.5)
        matrix, row = torch.ones(side, side), torch.ones(side)
        found = of_the_work(timing(lambda m=matrix, x=row: torch.mv(m, x), device=place))
        if isinstance(found, Unavailable):
            return found
        rates[size // share] = side**2 / statistics.median(found.samples)
    held = max(bytes_ for bytes_, rate in rates.items() if rate >= max(rates.values()) / 2)
    said = f"products of one row with matrices of {size // 16:,} to {size:,} B ({source})"
    return Figure("l2_bytes", held, MEASURED, f"costmodel calibrate: {said}")


def measured(
    place: torch.device, timing: Callable[..., Measured]
) -> tuple[list[Figure], dict[str, str]]:
    """Measure the rates of a device (`place`): (figures, figure -> the reason why it could not be
    measured). A figure is a number of a board's file; `costmodel.prediction.boards.UNITS` says unit
    and meaning: `kernel_time` in seconds, `memory_bandwidth` in bytes per second, ... The meter
    `timing`, a `Within`, gives the fastest sample of a call; of several calls for one figure, such
    as `copy`, `read` and `write`, the highest rate is the figure. A rate on one thread (the other
    processors were busy) is multiplied by the number of threads for figures of `OF_THREADS`."""
    figures, missing = [], {}
    chain = chained_additions(place, timing)
    if isinstance(chain, Unavailable):
        missing["kernel_time"] = chain.reason
    else:
        replayed = ", replayed as a CUDA graph" * (place.type == "cuda")
        facts = [f"{CHAIN} additions of one entry{replayed}", *_labels(chain)]
        source = f"costmodel calibrate: {'; '.join(facts)}"
        figures.append(Figure("kernel_time", chain.value / CHAIN, MEASURED, source))
    if place.type == "cpu":
        held = cache_held(place, timing)
        if isinstance(held, Figure):
            figures.append(held)
        else:
            missing["l2_bytes"] = held.reason
    rates = {
        **moving(place, timing),
        **ordinary(place, {dtype: DTYPES[dtype] for dtype in TYPES}, timing),
    }
    # figure -> (name of a rate, the rate) of each call tried for it
    timed: dict[str, list[tuple[str, Measured]]] = {
        figure: [(name, rates[name]) for name in names]
        for figure, names in {
            "memory_bandwidth": (COPY, READ, WRITE),
            "allocation": (NEW,),
            "l2_bandwidth": (ADDED,),
            "selection": (CHOSEN,),
            **{f"narrow.{dtype}": (narrow_name(dtype),) for dtype in TYPES},
        }.items()
    }
    for dtype in TYPES:
        kind = DTYPES[dtype]
        product = product_ceiling(place, dtype, kind, timing)
        entrywise = elementwise_ceilings(place, dtype, kind, timing)
        multiply_add, exp = multiply_add_name(dtype), exp_name(dtype)
        timed[f"matrix.{dtype}"] = [(product_name(dtype), product)]
        timed[f"vector.{dtype}"] = [(multiply_add, entrywise[multiply_add])]
        timed.setdefault("special", []).append((exp, entrywise[exp]))
    for figure, tried in timed.items():
        best = _best(figure, tried)
        if isinstance(best, Figure):
            figures.append(best)
        else:
            missing[figure] = best
    return figures, missing


def _best(figure: str, tried: Sequence[tuple[str, Measured]]) -> Figure | str:
    """The figure (such as "memory_bandwidth") of the highest of the rates `tried`, (name, rate)
    each; why it could not be measured if no rate was."""
    sound = [(one.value, name, one) for name, one in tried if isinstance(one, Reading)]
    if not sound:
        return "; ".join(x.reason for _, x in tried if isinstance(x, Unavailable))
    value, name, best = max(sound, key=lambda one: one[:2])
    facts = [words_of(name), f"samples: {len(best.samples)}, of which the fastest"]
    if threads := best.details.get("threads"):
        said = f"threads: {1 if ONE_THREAD in best.labels else threads}"
        if ONE_THREAD in best.labels and figure.partition(".")[0] in OF_THREADS:
            value, said = value * threads, f"{said}, the rate times {threads} threads"
        facts.append(said)
    source = f"costmodel calibrate: {'; '.join([*facts, *_labels(best)])}"
    return Figure(figure, value, MEASURED, source)


def _labels(reading: Reading) -> list[str]:
    """The labels of a reading that its source names."""
    return [label for label in reading.labels if label not in (ONE_THREAD, ONE_SAMPLE)]


def from_system(place: torch.device, host: Host) -> tuple[str, list[Figure]]:
    """(name of a device, figures that torch or the operating system states: multiprocessors, bytes
    of memory and cache, clock in Hz); unknown figures are left out. `host` reads a CPU's facts."""
    found: dict[str, tuple[float | None, str]] = {}  # figure -> (value, source)
    if place.type == "cuda":
        about: Any = torch.cuda.get_device_properties(place)
        name, source = about.name, "torch.cuda.get_device_properties"
        found["sms"] = about.multi_processor_count, source
        found["memory_bytes"] = about.total_memory, source
        found["clock"] = 1e3 * getattr(about, "clock_rate", 0), source
    else:
        name = cpu_model(host) or "CPU"
        speed = psutil.cpu_freq()
        found["memory_bytes"] = host.memory(), "psutil.virtual_memory"
        found["clock"] = 1e6 * (speed.max or speed.current) if speed else None, "psutil.cpu_freq"
    with suppress(CacheError):
        found["l2_bytes"] = cache_bytes(place)
    figures = [Figure(x, value, SYSTEM, said) for x, (value, said) in found.items() if value]
    return name, figures


def text(name: str, kind: str, figures: list[Figure]) -> str:
    """The text of the file (TOML) of a board, its kind being gpu or cpu, with these figures, in the
    form of the files in `tables/devices`; of two figures of one name, the first."""
    lines = [f"name = {json.dumps(name)}", f'kind = "{kind}"']
    for one in {one.name: one for one in reversed(figures)}.values():
        group, _, dtype = one.name.partition(".")
        value = f"{{ {dtype} = {one.value:.4e} }}" if dtype else f"{one.value:.4e}"
        lines += ["", "[[figures]]", f'label = "{one.label}"', f"source = {json.dumps(one.source)}"]
        lines.append(f"{group} = {value}")
    return "\n".join(lines) + "\n"
