"""Compares the bytes that the equations hold with the measured ones, tensor by tensor, for the
bytes kept for the backward pass and for the bytes held at the peak."""

from __future__ import annotations

from profiler.reconcile.arrays import listed_tensors
from profiler.reconcile.derived import Derived, Held
from profiler.reconcile.levels import HeldMemory
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading

NO_LIST = "no list of tensors in this old record: run costmodel reconcile again"
READ = {"activations": ("activations", "activations"), "peak": ("tensors_at_peak", "peak_memory")}
"""Quantity -> the reading that lists its tensors, and the reading of its bytes."""


def memory(measurement: Measurement, derived: Derived) -> dict[str, HeldMemory]:
    """A dict with the keys `activations` (bytes kept for the backward pass) and `peak` (the most
    bytes at one time): the bytes by the equations beside the measured ones, and the tensors that
    the module held; only a reason if the quantity is not compared in this phase."""
    return {
        name: held_memory(measurement, held, *READ[name])
        if held.compared
        else HeldMemory(reason=held.reason)
        for name, held in derived.held.items()
    }


def held_memory(measurement: Measurement, held: Held, listed: str, total: str) -> HeldMemory:
    """Put the bytes that the equations hold (`held`) beside the measured bytes and the tensors that
    the module held; `total` and `listed` are the names of the record's readings that contain the
    bytes and the list of tensors. Missing parts are None.

    The reason is that of the first missing part: the reading `total`, the derived bytes or arrays,
    the list of tensors.
    """
    lists, reading = measurement.readings.get(listed), measurement.readings.get(total)
    reason = held.reason
    if reading is None:
        reason = measurement.reason(total)
    measured = figure(reading)
    if lists is None or "tensors" not in lists.details:
        why = NO_LIST if lists is not None else measurement.reasons.get(listed, NO_LIST)
        return HeldMemory(held.bytes, measured, reason=reason or why)
    rows = listed_tensors(lists.details["tensors"], held.arrays)
    beside = (lists.details["rounding"], lists.details["released"], round(lists.value))
    return HeldMemory(held.bytes, measured, rows, *beside, reason)


def figure(reading: Reading | None) -> int | None:
    """The bytes of a reading, in whole blocks of the allocator if recorded; None for None."""
    return None if reading is None else round(reading.details.get("allocated", reading.value))
