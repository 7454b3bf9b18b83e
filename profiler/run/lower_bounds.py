"""Which measurement is below the least that its call can need, and so is wrong?

Three floors follow from the equations alone:

- memory: what a call leaves was allocated in it, that is the output of a forward pass, and every
  gradient taken in a backward pass. One new token has no such floor: its row may be a view of the
  state, which existed before.
- time, on a GPU that tells the width and clock of its memory: inputs, touched weights and state are
  read once and results written once (`compulsory`), and what the board's L2 cache cannot hold goes
  through its memory. Tables of constants are left out: a module may compute them instead.
- bytes that a GPU's memory moved, as counted: the same bytes. From flushed caches only what is
  written may stay in the cache; in sequence, all that the cache can hold may have been there
  before.

The best that a CPU's memory can do is unknown, so its times have no floor. What a device was
*measured* to reach at best (`ceiling`) is read here beside what its board tells (`bandwidth`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.language.nodes import Array
from costmodel.program.phases import phase_name
from costmodel.questions.question import BYTES
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import traffic
from profiler.hardware.result import COLD, IN_SEQUENCE, MOVED
from profiler.meters.latency import KINDS
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading, Unavailable
from profiler.records.words import scaled

BELOW = "below the floor"
"""The label of a reading that cannot be true."""
CLOSE = 1.05
"""A time is below its floor where it is this many times smaller: a board's clock and the clock that
times it are accurate to a few per cent."""
COUNTED = 0.97
"""Counted bytes are below their floor where they are less than this share of it."""
PER_CYCLE = 2
"""Transfers over each line of the memory bus per cycle of the clock that NVML tells."""


@dataclass(frozen=True)
class LowerBound:
    """The least possible value of a reading, in its unit, and why."""

    value: float
    why: str


def lower_bounds(
    measurement: Measurement, mixer: Mixer, form: str | None = None
) -> Mapping[str, LowerBound]:
    """The known floors, by the name of the reading."""
    chosen = form or measurement.form
    try:
        return (
            memory_floor(measurement, mixer, chosen)
            | time_floors(measurement, mixer, chosen)
            | byte_floors(measurement, mixer, chosen)
        )
    except (Unanswered, Unsupported):  # the equations do not say what moves, or what is left
        return {}


def memory_floor(measurement: Measurement, mixer: Mixer, form: str) -> dict[str, LowerBound]:
    """The bytes that the call leaves."""
    if phase_name(measurement.phase) == "inference":
        return {}
    number = left_bytes(measurement, mixer, form)
    return {"peak_memory": LowerBound(number, f"what the call leaves takes {number:,} B")}


def left_bytes(measurement: Measurement, mixer: Mixer, form: str) -> int:
    """The bytes of the output of a forward pass, or of the gradients that a backward pass takes."""
    phase = phase_name(measurement.phase)
    system = system_of(mixer, form, (), phase)
    left = [a for a in system.results(phase) if phase == "training" or a.role != "output"]
    return array_bytes(left, system.weights, measurement)


def array_bytes(arrays: Iterable[Array], once: Container[Array], measurement: Measurement) -> int:
    """Bytes of arrays: those in `once` (weights, their gradients, tables) once, the others per
    sequence."""
    sizes = dict(measurement.sizes)
    entries = sum(
        math.prod(extent.at(sizes) for extent in array.shape) * (1 if array in once else sizes["b"])
        for array in arrays
    )
    return entries * BYTES[measurement.dtype]


def time_floors(measurement: Measurement, mixer: Mixer, form: str) -> dict[str, LowerBound]:
    """Seconds to move what the cache cannot hold; no floor where the board does not tell its
    bandwidth."""
    rate, held = bandwidth(measurement.environment), measurement.environment.get("l2_bytes")
    if rate is None or held is None:
        return {}
    moved = least_moved(measurement, mixer, form) - held
    if moved <= 0:
        return {}
    why = (
        f"to move {moved:,} B beyond its cache takes {scaled(moved / rate, 's')} at "
        f"{scaled(rate, 'B/s')}"
    )
    return dict.fromkeys(KINDS, LowerBound(moved / rate / CLOSE, why))


def least_moved(measurement: Measurement, mixer: Mixer, form: str) -> int:
    """The bytes that must move, without tables of constants."""
    phase = phase_name(measurement.phase)
    sizes: dict[str, Any] = dict(measurement.sizes)
    moved = traffic(mixer, phase, form).at(dtype=measurement.dtype, **sizes)["compulsory"]
    tables = [array for array in mixer.arrays.values() if array.role == "buffer"]
    return moved - array_bytes(tables, tables, measurement)


def byte_floors(measurement: Measurement, mixer: Mixer, form: str) -> dict[str, LowerBound]:
    """Bytes that a GPU's memory moves at least; no floor where its cache may hold them all."""
    held = measurement.environment.get("l2_bytes")
    if held is None or "hardware" not in measurement.counts:
        return {}
    moved = least_moved(measurement, mixer, form)
    token = phase_name(measurement.phase) == "inference"
    written = moved if token else left_bytes(measurement, mixer, form)
    found: dict[str, LowerBound] = {}
    for caches, may_stay in ((COLD, min(held, written)), (IN_SEQUENCE, held)):
        if moved > may_stay:
            why = f"{moved:,} B must move, and its cache may hold {may_stay:,} B of them"
            found[MOVED[caches]] = LowerBound(COUNTED * (moved - may_stay), why)
    return found


def bandwidth(environment: Mapping[str, Any]) -> float | None:
    """The highest rate of a board's memory in bytes per second; None where the board does not tell
    it.

    >>> bandwidth({"gpu": {"max_memory_clock_MHz": 3201, "memory_bus_bits": 6144}})
    4916736000000.0
    """
    board = environment.get("gpu") or {}  # null in records of old
    clock, width = board.get("max_memory_clock_MHz"), board.get("memory_bus_bits")
    return None if not (clock and width) else PER_CYCLE * clock * 1e6 * width / 8


NOT_ASKED = "no ceiling was measured beside it (--ceilings measures them)"


def ceiling(environment: Mapping[str, Any], name: str) -> Reading | Unavailable:
    """What the device reached at best beside a measurement: `product fp32`, `copy`, ...

    A ceiling is no floor of a time: a call may find data in a cache that copying did not, or run at
    a faster hour.
    """
    held = environment.get("ceilings")
    if held is None:
        return Unavailable(NOT_ASKED)
    if found := held.get("readings", {}).get(name):
        return Reading.from_json(name, found)
    return Unavailable(held.get("reasons", {}).get(name, f"no ceiling '{name}' was measured"))


def readings_below(
    measurement: Measurement, mixer: Mixer, form: str | None = None
) -> dict[str, str]:
    """The readings that are below their floor, each with a sentence."""
    found: dict[str, str] = {}
    for name, floor in lower_bounds(measurement, mixer, form).items():
        reading = measurement.readings.get(name)
        if reading is not None and reading.value < floor.value:
            said = scaled(reading.value, reading.unit)
            found[name] = f"{name.replace('_', ' ')} of {said} is below its floor: {floor.why}"
    return found


def flagged(measurement: Measurement, mixer: Mixer) -> Measurement:
    """The measurement, with a label on each reading that is below its floor."""
    readings = dict(measurement.readings)
    for name, sentence in readings_below(measurement, mixer).items():
        details = readings[name].details
        labels = [*details.get("labels", ()), BELOW]
        more = {**details, "labels": labels, "floor": sentence}
        readings[name] = replace(readings[name], details=more)
    return replace(measurement, readings=readings)
