"""The key of a record's point, equal to the key of the planned point (`profiler/sweep/points.py`).

A *comparison in turns* (`costmodel compare`) visits its candidates alternately, so that its records
are of no point.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from costmodel.program.phases import phase_name
from profiler.records.measurement import Measurement


def in_turns(record: Measurement) -> bool:
    """Whether a record is of a comparison in turns, which is no point of a sweep."""
    latency = record.readings.get("latency")
    details = {} if latency is None else latency.details
    return "comparison" in record.sweep or "comparison" in details


def key_of(record: Measurement) -> str:
    """The text that identifies the point of a record, equal to the key of the planned point; the
    round is 0 if no sweep took the record."""
    return canonical(
        mixer=record.mixer,
        implementation=record.implementation,
        form=record.form,
        sizes=record.sizes,
        dtype=record.dtype,
        phase=record.phase,
        device=record.device,
        options=record.options,
        seed=record.counts.get("seed", 0),
        round_=record.round,
        process=record.sweep.get("process", 0),
    )


def canonical(
    *,
    mixer: str,
    implementation: str,
    form: str,
    sizes: Mapping[str, int],
    dtype: str,
    phase: str,
    device: str,
    options: Mapping[str, Any],
    seed: int,
    round_: int,
    process: int,
) -> str:
    """The key that identifies a measurement point, as one line of JSON: a planned point and its
    record get the same text. Of the device only the kind: boards of one machine are alike. `form`:
    "" for a module without equations; `options`: those of the request that are not defaults;
    `round_` and `process` of a sweep, from 0."""
    named = {
        "mixer": spelled(mixer),
        "implementation": spelled(implementation),
        "form": form,
        "sizes": dict(sizes),
        "dtype": dtype,
        "phase": phase_name(phase),
        "device": device.partition(":")[0],
        "options": dict(options),
        "seed": seed,
        "round": round_,
        "process": process,
    }
    return json.dumps(named, sort_keys=True, separators=(",", ":"))


def spelled(name: str) -> str:
    """The name, with a normalised path if it is FILE.py:NAME.

    >>> spelled("./mine/../mine/a.py:decay+bias"), spelled("she")
    ('mine/a.py:decay+bias', 'she')
    """
    path, colon, own = name.rpartition(":")
    return f"{posixpath.normpath(path)}:{own}" if colon and path.endswith(".py") else name
