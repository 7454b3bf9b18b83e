"""Lower bounds (floors) of readings; a reading below its floor is wrong.

Three floors follow from the equations alone:

- memory: a call allocates what it leaves: the output of a forward pass, or every gradient of a
  backward pass. One new token has no such floor: its row may be a view of the state, which existed
  before.
- time, on a GPU that tells the width and clock of its memory: inputs, touched weights and state are
  read once and results written once (`compulsory`); the bytes that exceed the L2 cache go through
  the board's memory. Tables of constants do not count, as a module may compute them instead.
- bytes that a GPU's memory moved, as counted: the same bytes. After a flush only written bytes may
  stay in the cache; in sequence, the whole cache may hold bytes from before.

The peak rate of a CPU's memory is unknown, so its times have no such floor. `limits_on` tells what
a board that the user names allows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.language.nodes import Array
from costmodel.prediction.boards import Board
from costmodel.prediction.columns import NO_BOARD, limits
from costmodel.program.conventions import convention
from costmodel.program.element_types import BYTES, Dtypes
from costmodel.program.phases import phase_name
from costmodel.questions.question import BATCH, Case, answers
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import traffic_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from profiler.hardware.result import COLD, IN_SEQUENCE, MOVED
from profiler.modules.described import answers_about
from profiler.records.measurement import Measurement
from profiler.records.quantities import LATENCIES
from profiler.records.words import scaled

BELOW = "below the floor"
"""The label of a reading that is below its floor, and so cannot be true."""
CLOSE = 1.05
"""A time is below its floor if the floor is more than this many times the time: the board's clock
and the timing clock are accurate to a few per cent."""
COUNTED = 0.97
"""The floor of counted bytes is this share of the least bytes: counters may miss a few per cent."""
PER_CYCLE = 2
"""Transfers per line of the memory bus and cycle of the clock that NVML states."""


@dataclass(frozen=True)
class LowerBound:
    """The least possible value of a reading, in its unit, and the reason."""

    value: float
    why: str


def lower_bounds(
    measurement: Measurement, mixer: Mixer, form: str | None = None
) -> Mapping[str, LowerBound]:
    """A dict: name of a reading, such as "latency" -> its floor (lower bound). Without a formula
    for the bytes that the call moves, the floors by these bytes are left out; without one for the
    bytes of its results, the floor of the memory.

    `form`: the form of the equations; by default that of `measurement`.
    """
    chosen = form or measurement.form
    found: dict[str, LowerBound] = {}
    for floors in (memory_floor, time_floors, byte_floors):
        with suppress(Unanswered, Unsupported):
            found |= floors(measurement, mixer, chosen)
    return found


def memory_floor(measurement: Measurement, mixer: Mixer, form: str) -> dict[str, LowerBound]:
    """The floor of the peak memory: the bytes that the call leaves; {} for one new token."""
    if phase_name(measurement.phase) == "inference":
        return {}
    number = left_bytes(measurement, mixer, form)
    return {"peak_memory": LowerBound(number, f"the results of the call take {number:,} B")}


def left_bytes(measurement: Measurement, mixer: Mixer, form: str) -> int:
    """The bytes that a call leaves: of a forward pass's output, or a backward pass's gradients."""
    elements = _left(mixer, form, phase_name(measurement.phase))
    return elements.at(measurement.sizes) * BYTES[measurement.dtype]


@lru_cache(maxsize=1024)
def _left(mixer: Mixer, form: str, phase: str) -> Exact:
    """The elements that a call leaves, for b sequences."""
    system = system_of(mixer, form, (), phase)
    # of a phase with gradients, only gradients are certain to be left
    left = [a for a in system.results(phase) if phase == "training" or a.role != "output"]
    return elements_of(left, system.shared_gradients)


def elements_of(arrays: Iterable[Array], once: Container[Array]) -> Exact:
    """The elements of arrays: b copies of each array, one for each sequence, but a single copy of
    those in `once` (weights, gradients of weights, tables)."""
    entries = Poly()
    for array in arrays:
        entries += math.prod(array.shape, start=Poly.of(1)) * (1 if array in once else BATCH)
    return Exact.of(entries)


def time_floors(measurement: Measurement, mixer: Mixer, form: str) -> dict[str, LowerBound]:
    """A dict: name of each latency -> its floor (lower bound): the seconds to move those of the
    bytes that a call must move, by the equations `form` of the mixer, that exceed the L2 cache,
    divided by `CLOSE`; {} if all bytes fit, or the bandwidth or the cache's size is unknown."""
    rate, held = bandwidth(measurement.environment), measurement.environment.get("l2_bytes")
    if rate is None or held is None:
        return {}
    moved = least_moved(measurement, mixer, form) - held
    if moved <= 0:
        return {}
    why = (
        f"moving the {moved:,} B that exceed the cache takes {scaled(moved / rate, 's')} at "
        f"{scaled(rate, 'B/s')}"
    )
    return dict.fromkeys(LATENCIES, LowerBound(moved / rate / CLOSE, why))


def least_moved(measurement: Measurement, mixer: Mixer, form: str) -> int:
    """The fewest bytes that a call moves: each input read once, each result written once, without
    tables of constants and, in a backward pass, values that the forward pass kept: a module may
    compute these instead."""
    elements = _moved(mixer, form, phase_name(measurement.phase))
    return elements.at(measurement.sizes) * BYTES[measurement.dtype]


@lru_cache(maxsize=1024)
def _moved(mixer: Mixer, form: str, phase: str) -> Exact:
    """The fewest elements that a call moves, for b sequences."""
    tables = [array for array in mixer.arrays.values() if array.role == "buffer"]
    found = answers_about(mixer, form, phase).of(traffic_of)
    return found.least.exact - elements_of(tables, tables)


def byte_floors(measurement: Measurement, mixer: Mixer, form: str) -> dict[str, LowerBound]:
    """A dict: name of a reading of moved bytes -> its floor (lower bound): `COUNTED` times the rest
    of the bytes that a call must move, by the equations, less those that the cache can hold, for
    each state of the caches before the call (emptied, or as the calls before left them) with such a
    rest; {} if no bytes were counted or the size of the cache is unknown."""
    held = measurement.environment.get("l2_bytes")
    if held is None or "hardware" not in measurement.counts:
        return {}
    moved = least_moved(measurement, mixer, form)
    token = phase_name(measurement.phase) == "inference"
    # how many bytes one new token writes is not derived: at most all of them
    written = moved if token else left_bytes(measurement, mixer, form)
    found: dict[str, LowerBound] = {}
    for caches, may_stay in ((COLD, min(held, written)), (IN_SEQUENCE, held)):
        if moved > may_stay:
            why = f"{moved:,} B must move, of which the cache may hold {may_stay:,} B"
            found[MOVED[caches]] = LowerBound(COUNTED * (moved - may_stay), why)
    return found


def bandwidth(environment: Mapping[str, Any]) -> float | None:
    """The highest rate of a board's memory in bytes per second; None if the board does not state
    its clock or bus width.

    >>> bandwidth({"gpu": {"max_memory_clock_MHz": 3201, "memory_bus_bits": 6144}})
    4916736000000.0
    """
    board = environment.get("gpu") or {}  # null in older records
    clock, width = board.get("max_memory_clock_MHz"), board.get("memory_bus_bits")
    return None if not (clock and width) else PER_CYCLE * clock * 1e6 * width / 8


def limits_on(
    measurement: Measurement, mixer: Mixer, form: str, on: Board | None
) -> Mapping[str, float]:
    """A dict: limit -> the seconds of a measured call if this limit alone held on a board (`on`),
    as `costmodel.prediction.columns.limits` has them for a table, with the kernels that the record
    counts (of a compiled call: one). The work overlaps, so the longest limit is the floor of the
    time; a call whose bytes a cache holds may be faster. Raises Unanswered: no board is named, the
    board lacks a figure, or an answer is missing."""
    if on is None:
        raise Unanswered(NO_BOARD)
    about = answers(mixer, form, measurement.phase, convention("strict"))
    dtypes = Dtypes(measurement.dtype)
    case = Case(about, measurement.sizes, symbolic=False, dtypes=dtypes, board=on)
    dispatch = {} if measurement.compiled else measurement.counts.get("dispatch", {})
    return limits(case, kernels=dispatch.get("launched", 1))


def readings_below(
    measurement: Measurement, mixer: Mixer, form: str | None = None
) -> dict[str, str]:
    """A dict: name of each reading of a record that is below its lower bound by the equations ->
    a sentence that says so; {} if none is. `form`: of the equations; None: the record's."""
    found: dict[str, str] = {}
    for name, floor in lower_bounds(measurement, mixer, form).items():
        reading = measurement.readings.get(name)
        if reading is not None and reading.value < floor.value:
            said = scaled(reading.value, reading.unit)
            title = name.replace("_", " ")
            found[name] = f"{title} of {said} is below its lower bound: {floor.why}"
    return found


def flagged(measurement: Measurement, mixer: Mixer) -> Measurement:
    """A copy in which readings below their floor have a label, and a sentence as detail `floor`."""
    readings = dict(measurement.readings)
    for name, sentence in readings_below(measurement, mixer).items():
        details = readings[name].details
        labels = [*readings[name].labels, BELOW]
        more = {**details, "labels": labels, "floor": sentence}
        readings[name] = replace(readings[name], details=more)
    return replace(measurement, readings=readings)
