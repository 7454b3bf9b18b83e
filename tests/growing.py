"""Which invented records of known growth do the tests of scaling, plots and studies read?

Nothing is timed: a latency is what a formula says, with drawn noise, and its samples' interval.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import costmodel as cm
from costmodel.prediction.boards import BY_DTYPE, Board, Figure
from profiler.meters.sampler import latency_summary
from profiler.modules import implementations
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.run.request import form_of

ENVIRONMENT: Mapping[str, Any] = {
    "device": "cpu", "cpu": "Invented 1", "threads": 2, "torch": "9.9", "python": "3.11",
}  # fmt: skip

NO_ENERGY = "energy needs an NVIDIA GPU"
SAMPLES = 40


def latency(seconds: float, noise: float = 0.0, seed: int = 0, **details: Any) -> Reading:
    """A settled latency; `noise`: the relative deviation of a sample."""
    chance = random.Random(repr((seconds, seed)))
    samples = tuple(seconds * (1 + chance.gauss(0, noise)) for _ in range(SAMPLES))
    found = latency_summary(samples) | {"stop_rule": "median settled", "labels": [], "cache": "hot"}
    return Reading("latency", statistics.median(samples), "s", samples, found | details)


def joules(value: float) -> Reading:
    """An energy with an interval of 1 % to each side."""
    samples = (value * 0.99, value, value * 1.01)
    ends = {"ci_low": samples[0], "ci_high": samples[2], "labels": [], "systematic": 0.05}
    return Reading("energy", value, "J", samples, ends)


def record(
    mixer: str,
    implementation: str,
    sizes: Mapping[str, int],
    seconds: float,
    *,
    phase: str = "training",
    dtype: str = "fp32",
    round_: int = 0,
    noise: float = 0.0,
    memory: float | None = None,
    energy: float | None = None,
    launches: float | None = None,
    device: str = "cpu",
    **details: Any,
) -> Measurement:
    """A record of one point."""
    described = implementations(cm.mixer(mixer))[implementation]
    readings = {"latency": latency(seconds, noise, round_, **details)}
    reasons = {}
    if memory is not None:
        found = Reading("peak_memory", memory, "B", (memory, memory), {"agree": True})
        readings["peak_memory"] = found
    if energy is not None:
        readings["energy"] = joules(energy)
    else:
        reasons["energy"] = NO_ENERGY
    if launches is not None:
        own = Reading("launch_estimate", launches, "s", (launches,), {"operations": 7})
        readings["launch_estimate"] = own
    return Measurement(
        mixer=mixer,
        implementation=implementation,
        form=form_of(described, phase),
        sizes=dict(sizes),
        dtype=dtype,
        phase=phase,
        device=device,
        readings=readings,
        reasons=reasons,
        counts={"seed": 0},
        environment=dict(ENVIRONMENT) | {"device": device},
        sweep={"round": round_},
    )


def along_l(
    mixer: str,
    implementation: str,
    lengths: Iterable[int],
    seconds: Callable[[int], float],
    *,
    rounds: int = 2,
    d: int = 64,
    memory: Callable[[int], float] = lambda l: 4.0 * l,
    energy: Callable[[int], float] | None = None,
    launches: Callable[[int], float] | None = None,
    **more: Any,
) -> list[Measurement]:
    """A series over lengths, in rounds."""
    letters = cm.mixer(mixer).letters
    own = {x: n for x, n in {"n": 8, "f": 16}.items() if x in letters}
    token = more.get("phase") == "inference"
    return [
        record(
            mixer, implementation, {"b": 1, "l": l, "d": d} | own | ({"t": l} if token else {}),
            seconds(l), round_=r, memory=memory(l),
            energy=energy(l) if energy else None,
            launches=launches(l) if launches else None, **more,
        )
        for r in range(rounds)
        for l in lengths
    ]  # fmt: skip


def with_rates(**rates: float) -> Board:
    """A CPU with these figures, measured: `matrix_fp32` for `matrix.fp32`."""
    kinds = {f"{kind}_": f"{kind}." for kind in BY_DTYPE}
    figures = {}
    for name, rate in rates.items():
        for start, own in kinds.items():
            name = name.replace(start, own)
        figures[name] = Figure(rate, "measured", "a test")
    return Board("mine", "Mine", figures=figures, kind="cpu")
