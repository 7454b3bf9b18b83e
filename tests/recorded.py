"""Which recorded measurements do the tests replay in place of live ones?

Their counts are what the modules dispatch; times, bytes and joules are invented literals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.records.measurement import Measurement
from profiler.records.reading import Reading

RUNS = Path(__file__).with_suffix(".jsonl")
"""Three runs of a CPU, as they were written before files were held against a schema."""

NO_NVML = "NVML: library not found: there is no NVIDIA driver on this machine"
NO_GPU = {"energy": NO_NVML, "energy_net": NO_NVML, "power": NO_NVML}
NO_COUNTERS = "hardware counters were not read: they need an NVIDIA GPU and ncu"
NO_STATE = "a forward pass keeps no state between tokens"


def latency(*samples: float, **details: Any) -> Reading:
    """A reading of seconds whose median, fifth and four fifths are its second, first and last."""
    spread = {"p20": samples[0], "p80": samples[-1], "n": len(samples)}
    found = spread | {"stop_rule": "median settled"} | details
    return Reading("latency", samples[1], "s", samples, found)


def reading(name: str, value: float, unit: str, **details: Any) -> Reading:
    """A reading of one sample."""
    return Reading(name, value, unit, (float(value),), details)


def live(
    operation: str,
    shape: list[int] | None,
    size: int,
    cause: str = "",
    number: int = 1,
    **known: Any,
) -> dict[str, Any]:
    """A tensor as `LiveTensors.to_json` gives it."""
    found = {"operation": operation, "node": "", "shape": shape, "dtype": "float32", "bytes": size}
    return found | {"cause": cause, "name": "", "views": [], "number": number} | known


def dispatch(
    launched: int,
    unknown: Mapping[str, Any] | None = None,
    by_op: Sequence[str] = (),
    **operations: Any,
) -> dict[str, Any]:
    """What `DispatchCounts.to_json` gives, as far as reports read it."""
    counted = {"mul": 0, "add": 0, "div": 0, "exp": 0, "other": {}} | operations
    unknown = dict(unknown or {})
    return {
        "operations": counted,
        "complete": not unknown,
        "launched": launched,
        "by_op": {name: {} for name in (*by_op, *unknown)},
        "unknown": unknown,
    }


def peer(total: int, unit: str, share: float | None, **uncounted: int) -> dict[str, Any]:
    """What `peer_json` gives; `uncounted` are operations of aten."""
    named = {f"aten::{name}": calls for name, calls in uncounted.items()}
    return {"total": total, "unit": unit, "uncounted": named, "uncounted_time_share": share}


def recorded(mixer: str, implementation: str, sizes: dict[str, int], **fields: Any) -> Measurement:
    """A measurement on a machine that never was."""
    given: dict[str, Any] = {
        "form": "direct",
        "dtype": "fp32",
        "phase": "training",
        "device": "cpu",
        "environment": {"cpu": "Example CPU"},
        "id": f"{mixer}-{implementation}",
        "created": "2024-01-02T03:04:05+00:00",
    }
    reasons = {"hardware": NO_COUNTERS} | fields.pop("reasons", NO_GPU | {"state": NO_STATE})
    return Measurement(
        mixer=mixer, implementation=implementation, sizes=sizes, reasons=reasons, **given | fields
    )


ATTENTION = recorded(
    "self-attention",
    "explicit",
    {"b": 1, "l": 8, "d": 8, "n": 2},
    readings={
        "latency": latency(0.000120, 0.000125, 0.000137),
        "peak_memory": reading("peak_memory", 2112, "B"),
        "tensors_at_peak": reading(
            "tensors_at_peak",
            2112,
            "B",
            rounding=0,
            released=0,
            tensors=[
                live("mm", [8, 8], 256, number=3, views=[[1, 2, 8, 4]]),
                live("triu", [8, 8], 64, "mask", dtype="bool"),
                live("masked_fill", [1, 2, 8, 8], 512, "copy"),
                live("_softmax", [1, 2, 8, 8], 512),
                live("bmm", [2, 8, 4], 200),
                live("bmm", None, 56, "workspace", dtype=None),
            ],
        ),
        "weights": reading("weights", 1024, "B"),
        "kernels": reading("kernels", 19, "1"),
        "launch_estimate": reading("launch_estimate", 0.00002, "s", operations=19),
    },
    counts={
        "dispatch": dispatch(19, mul=3072, add=2864, div=256, exp=128, other={"compare": 112}),
        "peers": {
            "torch": peer(6144, "flop", 0.21, div=1, _softmax=1),
            "fvcore": peer(3072, "mac", None, div=1, softmax=1),
        },
    },
)
"""Explicit attention, kept busy; its workspace is invented."""

LAUNCH_BOUND = recorded(
    "me",
    "toeplitz",
    {"b": 1, "l": 8, "d": 8, "t": 8},
    phase="inference",
    device="cuda:0",
    readings={
        "latency": latency(0.000009, 0.000010, 0.000011, launch_bound=True),
        "peak_memory": reading("peak_memory", 512, "B"),
        "weights": reading("weights", 32, "B"),
        "state": reading("state", 256, "B", allocated=256),
        "energy": reading("energy", 0.00123, "J"),
    },
    reasons={
        "kernels": "CUPTI is not usable here",
        "energy_net": "idle power was not steady",
        "power": "idle power was not steady",
        "peer fvcore": "fvcore could not trace the call: some_op",
    },
    counts={
        "dispatch": dispatch(2, mul=64, add=56),
        "peers": {"torch": peer(128, "flop", 0.0)},
    },
    environment={"device_name": "Example GPU"},
)
"""A call so short that its rates mean nothing."""

UNTIMED = recorded(
    "we",
    "fft",
    {"b": 1, "l": 4, "d": 2},
    form="fft",
    reasons=NO_GPU | {
        "state": NO_STATE,
        "latency": "the call failed while it was timed: out of memory",
        "peak_memory": "the call failed while its memory was measured: out of memory",
        "kernels": "not counted",
    },
    readings={"weights": reading("weights", 64, "B")},
    counts={
        "dispatch": dispatch(9, {"aten::_fft_r2c": {"calls": 2}}, mul=140, add=96),
        "peers": {"torch": peer(32, "flop", None), "fvcore": peer(16, "mac", None)},
    },
)  # fmt: skip
"""A call that was counted and not timed, with an operation that no rule knows."""
