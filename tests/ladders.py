"""The ladder of a call on this machine, counted but not timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import costmodel as cm
from profiler.counting.other_counters import PeerCount
from profiler.modules import Implementation
from profiler.reconcile.derived import Derived, derived
from profiler.reconcile.ladder import ladder
from profiler.reconcile.levels import Ladder
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading, Unavailable
from profiler.run.called import dispatched_beside_torch, fvcore_of, zeros_of
from profiler.run.in_record import candidate_in_record
from profiler.run.measure import peer_json
from profiler.run.prepare import prepare
from profiler.run.request import Request
from tests.small import complete


def reconciled(
    mixer: str,
    implementation: Implementation,
    sizes: Mapping[str, int],
    phase: str = "training",
    dtype: str = "fp32",
    readings: Mapping[str, Reading] | None = None,
    device: str = "cpu",
) -> Ladder:
    """The ladder of one call, counted but not timed."""
    equations = cm.mixer(mixer)
    sizes = complete(equations, sizes)
    if phase == "inference":
        sizes = {"t": max(1, sizes["l"] - 1)} | sizes
    work = prepare(Request(equations, implementation, sizes, phase, dtype, device))
    dispatched, peer = dispatched_beside_torch(work)
    peers = {
        name: peer_json(p, Unavailable("not timed"))
        for name, p in {"torch": peer, "fvcore": fvcore_of(work)}.items()
        if isinstance(p, PeerCount)
    }
    counts: dict[str, Any] = {
        "dispatch": dispatched.to_json(),
        "zeros": zeros_of(work).to_json(),
        "peers": peers,
    }
    record = Measurement(
        mixer=mixer,
        implementation=implementation.name,
        form=implementation.form,
        sizes=sizes,
        dtype=dtype,
        phase=phase,
        device=device,
        readings=readings or {},
        counts=counts,
    )
    return ladder(record, equations, implementation)


def theory(record: Measurement) -> Derived:
    """The answers of the equations about the call of a record."""
    return derived(record, *candidate_in_record(record.mixer, record.implementation, record.form))
