"""The causes of the gap between the dispatched operations (rung 3) and the executed ones (rung 4).

A cause is a re-count of the dispatched operations with an observation of this chip:

- a division by a number is a multiplication by its inverse;
- a function executes several instructions: each dispatched function counts as the operations that
  the calibration kernel of this function executed;
- a sum of products begins at zero: one addition for every product, instead of one fewer per result;
- products of matrices are computed in whole tiles: each product is counted in the tile that its
  kernel's name states, if there are as many such kernels as products.

Everything else (scales that a kernel folds in, sums and maxima that each lane of a warp takes,
comparisons within a division) is left unexplained.
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
INVERSE = "inverse of a number"
PADDING = "whole tiles"
UNFUSED = "every equation reads its operands and writes its results"
CACHED = "results that the last cache holds when their kernel ends are written later"
DISPATCHED = "every dispatched operation reads its operands and writes its result, views none"


def hardware_causes(measurement: Measurement) -> tuple[Cause, ...]:
    """The causes (re-counts by class) that lead from the dispatched operations to those that the
    hardware executed: divisions by numbers, functions that execute several instructions, sums that
    begin at zero, padded tiles. Causes that change no count are left out; () if the record has no
    hardware counters."""
    counters, dispatch = measurement.counts.get("hardware"), measurement.counts["dispatch"]
    if counters is None:
        return ()
    by_inverse = divisions_by_number(dispatch["by_op"])
    found = (
        by_inverse,
        *calibrated_functions(counters, dispatch["operations"], by_inverse.counts["div"]),
        sums_from_zero(dispatch["by_op"]),
        whole_tiles(counters),
    )
    return tuple(cause for cause in found if any(cause.counts.values()))


def divisions_by_number(by_op: Mapping[str, Any]) -> Cause:
    """The cause "inverse of a number": torch on a GPU multiplies by the inverse of a Python number.
    A torch operation divides by numbers alone if all of its calls read as many bytes as they write:
    a tensor of divisors would be read besides."""
    number = 0
    for name in ("aten::div", "aten::div_"):
        found = by_op.get(name)
        if found and found["bytes_read"] == found["bytes_written"]:
            number += found["operations"]["div"]
    meaning = "a division by a number is a multiplication by its inverse"
    return Cause(3, 4, INVERSE, {"div": -number, "mul": number}, meaning)


def calibrated_functions(
    counters: Mapping[str, Any], operations: Mapping[str, Any], spared: int
) -> Iterator[Cause]:
    """Yield a cause for each function with a calibration kernel (a kernel that does nothing else):
    the operations that this kernel executed per call replace the dispatched calls of the function.

    `counters`: what ncu read, in `calibration` the operations by class that `entries` calls of each
    function executed; `operations`: the dispatched operations by class, those beyond `CLASSES` in
    `other`; `spared`: the change of the number of divisions by `divisions_by_number`, -3 if 3 of
    them are executed as multiplications. For instance, if one `div` executes 1 div and 8 mul on
    this chip, 10 dispatched divisions add 80 multiplications and leave the divisions.
    """
    calibration = counters["calibration"]
    entries = calibration["entries"]
    dispatched = {**{name: operations[name] for name in CLASSES}, **operations["other"]}
    dispatched["div"] += spared
    for name, counts in calibration["functions"].items():
        number = dispatched.get(name, 0)
        executed = {each: round(number * n / entries) for each, n in counts.items()}
        added = {each: n - number * (each == name) for each, n in executed.items()}
        one = ", ".join(f"{n / entries:.4g} {each}" for each, n in counts.items() if n)
        meaning = f"in the calibration, one {name} executes {one or 'no counted operation'}"
        # a function that executes no operation of its own class loses all its dispatched calls
        yield Cause(3, 4, f"{name} on this chip", {name: -number} | added, meaning)


def sums_from_zero(by_op: Mapping[str, Any]) -> Cause:
    """The cause "sums begin at zero", with the number of additions that it adds: a kernel executes
    R additions for a sum of R products, where the count of the dispatched contraction has R - 1.

    `by_op`: name of a torch operation, with its namespace ("aten::mm"), -> its counts. With 30 mul
    and 24 add of `aten::mm` the cause adds 6; `aten::addmm` adds nothing, since its count has the
    R-th addition, that of its first operand.
    """
    added = 0
    for name, found in by_op.items():
        rule = rule_for(name)
        if isinstance(rule, partial) and rule.func is contraction:
            added += found["operations"]["mul"] - found["operations"]["add"]
    return Cause(3, 4, FROM_ZERO, {"add": added}, "a multiply-add for every product of a sum")


def whole_tiles(counters: Mapping[str, Any]) -> Cause:
    """The cause "whole tiles", since kernels pad matrix products to whole tiles: the multiply-adds
    beyond the edges of the matrices. The k-th product has the tile of the k-th kernel; if the
    numbers of kernels and products differ, the cause counts 0. `counters`: what ncu read."""
    products = [Product(*shape) for shape in counters.get("products", ())]
    sides = [(down, across, deep) for down, across, deep in counters["tiles"]]
    padded = padding(products, sides) if len(products) == len(sides) else 0
    meaning = "products of matrices in the tiles that their kernels' names tell"
    return Cause(3, 4, PADDING, {"mul": padded, "add": padded}, meaning)


def moved(measurement: Measurement, least: Mapping[str, int]) -> dict[str, MovedMemory]:
    """The bytes that one call moves in device memory, by the equations and by the hardware
    counters, with the causes of the difference: under `dram_cold` with caches flushed before each
    kernel, under `dram_in_sequence` with caches as kernels leave them; without a reading, measured
    is None with the reason. {} if no counters were read or `least` is {}, unknown. `least`: the
    derived bytes, `compulsory` (inputs and weights read once, outputs written once) and `unfused`
    (each equation reads its operands and writes its result); `MOVED`: caches -> reading."""
    if "hardware" not in measurement.counts or not least:
        return {}
    found: dict[str, MovedMemory] = {}
    for caches, name in MOVED.items():
        reading = measurement.readings.get(name)
        why = measurement.reason(name) if reading is None else ""
        found[f"dram_{caches}"] = MovedMemory(
            least["compulsory"],
            None if reading is None else round(reading.value),
            () if reading is None else tuple(more_bytes(measurement, least, caches)),
            why,
        )
    return found


def more_bytes(
    measurement: Measurement, least: Mapping[str, int], caches: str
) -> Iterator[MemoryCause]:
    """Yield the causes that lead from the compulsory bytes of `least` (inputs and weights read
    once, outputs written once) to the measured bytes, each with the bytes that it adds to the sum:
    `unfused`, every equation reads its operands from memory and writes its result; `as dispatched`,
    every torch operation does; and if `caches` is "cold" (flushed before each kernel; the other
    state is "in_sequence") `cached`, which is negative: results that fit in the last cache are not
    written before the kernel ends. A cause of 0 B is left out."""
    by_op = measurement.counts["dispatch"]["by_op"].values()
    dispatched = sum(found["bytes_read"] + found["bytes_written"] for found in by_op)
    held = measurement.environment.get("l2_bytes", 0) if caches == "cold" else 0
    kept = sum(
        found["bytes_written"] for found in by_op if found["bytes_written"] <= held * found["calls"]
    )
    for name, number, meaning in (
        ("unfused", least["unfused"] - least["compulsory"], UNFUSED),
        ("as dispatched", dispatched - least["unfused"], DISPATCHED),
        ("cached", -kept, CACHED),
    ):
        if number:
            yield MemoryCause(name, number, meaning)


def unexplained_by_class(
    third: Classes, found: HardwareLevel, causes: tuple[Cause, ...]
) -> Classes:
    """The number of operations that no cause explains, by class: those that the hardware executed
    (`found`) less the dispatched ones (`third`) less the causes. Classes fully explained, and
    classes of unknown number in the hardware, are left out."""
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
