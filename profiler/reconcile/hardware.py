"""The causes of the gap between the dispatched operations (rung 3) and the executed ones (rung 4).

A cause is a re-count of the dispatched operations with an observation of this chip:

- a function executes several instructions: each dispatched function counts as the operations that
  the calibration kernel of this function executed;
- a sum of products begins at zero: one addition for every product, instead of one fewer per result;
- products of matrices are computed in whole tiles: each product is counted in the tile that its
  kernel's name states, if there are as many such kernels as products.

Everything else (scales that a kernel folds in, constants, unused lanes) is left unexplained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from costmodel.language.functions import CLASSES
from profiler.counting.forward_rules import contraction
from profiler.counting.operations import Classes
from profiler.counting.rules import rule_for
from profiler.hardware.result import MOVED, HardwareLevel
from profiler.hardware.tiles import Product, padding
from profiler.reconcile.levels import Cause, MemoryCause, MovedMemory
from profiler.records.measurement import Measurement

FROM_ZERO = "sums begin at zero"


PADDING = "whole tiles"


UNFUSED = "every equation reads its operands and writes its results"


DISPATCHED = "every dispatched operation reads its operands and writes its result, views none"


def hardware_causes(measurement: Measurement) -> tuple[Cause, ...]:
    """The causes of the gap between dispatched and executed operations, without causes that change
    no count; () if the record has no hardware counters."""
    record, dispatch = measurement.counts.get("hardware"), measurement.counts["dispatch"]
    if record is None:
        return ()
    found = (
        *functions(record, dispatch["operations"]),
        from_zero(dispatch["by_op"]),
        tiles(record),
    )
    return tuple(cause for cause in found if any(cause.counts.values()))


def functions(record: Mapping[str, Any], operations: Mapping[str, Any]) -> Iterator[Cause]:
    """A cause for each calibrated function: the operations that its calibration kernel executed,
    scaled to the number of dispatched calls, replace the dispatched calls.

    For instance, if one `div` executes 1 div and 8 mul on this chip, 10 dispatched divisions add 80
    multiplications.
    """
    calibration = record["calibration"]
    entries = calibration["entries"]
    dispatched = {**{name: operations[name] for name in CLASSES}, **operations["other"]}
    for name, counts in calibration["functions"].items():
        number = dispatched.get(name, 0)
        executed = {each: round(number * n / entries) for each, n in counts.items()}
        added = {each: n - number * (each == name) for each, n in executed.items()}
        one = ", ".join(f"{n / entries:.4g} {each}" for each, n in counts.items() if n)
        meaning = f"in the calibration, one {name} executes {one or 'no counted operation'}"
        # a function that executes no operation of its own class loses all its dispatched calls
        yield Cause(3, 4, f"{name} on this chip", {name: -number} | added, meaning)


def from_zero(by_op: Mapping[str, Any]) -> Cause:
    """The cause that sums begin at zero: a kernel executes R additions for a sum of R products,
    where the dispatched contraction counts R - 1."""
    added = 0
    for name, found in by_op.items():
        rule = rule_for(name)
        if isinstance(rule, partial) and rule.func is contraction:
            added += found["operations"]["mul"] - found["operations"]["add"]
    return Cause(3, 4, FROM_ZERO, {"add": added}, "a multiply-add for every product of a sum")


def tiles(record: Mapping[str, Any]) -> Cause:
    """The cause that matrix products are padded to whole tiles: the multiply-adds beyond the edges
    of the matrices. The k-th product has the tile of the k-th kernel; if the numbers of kernels and
    products differ, the cause counts 0."""
    products = [Product(*shape) for shape in record.get("products", ())]
    sides = [(down, across, deep) for down, across, deep in record["tiles"]]
    beyond = padding(products, sides) if len(products) == len(sides) else 0
    meaning = "products of matrices in the tiles that their kernels' names tell"
    return Cause(3, 4, PADDING, {"mul": beyond, "add": beyond}, meaning)


def moved(measurement: Measurement, least: Mapping[str, int]) -> dict[str, MovedMemory]:
    """`dram_cold` and `dram_in_sequence` -> the bytes that the memory moved, by the hardware
    counters and by the equations; {} if no counters were read.

    `least`: the derived bytes, `compulsory` and `unfused`.
    """
    if "hardware" not in measurement.counts:
        return {}
    found: dict[str, MovedMemory] = {}
    for caches, name in MOVED.items():
        reading = measurement.readings.get(name)
        why = measurement.reason(name) if reading is None else ""
        found[f"dram_{caches}"] = MovedMemory(
            least["compulsory"],
            None if reading is None else round(reading.value),
            () if reading is None else tuple(more_bytes(measurement, least)),
            why,
        )
    return found


def more_bytes(measurement: Measurement, least: Mapping[str, int]) -> Iterator[MemoryCause]:
    """The causes between the compulsory and the measured bytes: first every equation reads its
    operands and writes its result, then every dispatched operation does. A cause of 0 B is left
    out."""
    by_op = measurement.counts["dispatch"]["by_op"].values()
    dispatched = sum(found["bytes_read"] + found["bytes_written"] for found in by_op)
    for name, number, meaning in (
        ("unfused", least["unfused"] - least["compulsory"], UNFUSED),
        ("as dispatched", dispatched - least["unfused"], DISPATCHED),
    ):
        if number:
            yield MemoryCause(name, number, meaning)


def beyond(third: Classes, found: HardwareLevel, causes: tuple[Cause, ...]) -> Classes:
    """The operations that no cause explains, by class: those that the hardware executed (`found`)
    less the dispatched ones (`third`) less the causes. Classes without a rest, and classes of
    unknown number in the hardware, are left out."""
    explained: Classes = {}
    for cause in causes:
        for name, number in cause.counts.items():
            explained[name] = explained.get(name, 0) + number
    names = dict.fromkeys([*found.counts, *third, *explained])
    rest = {
        name: found.counts.get(name, 0) - third.get(name, 0) - explained.get(name, 0)
        for name in names
        if not found.lacks(name)
    }
    return {name: number for name, number in rest.items() if number}
