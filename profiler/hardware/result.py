"""The counts of one call: executed instructions, DRAM bytes, and why a number is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.language.functions import CLASSES
from profiler.counting.operations import OTHER, Classes
from profiler.hardware.calibration import Calibration
from profiler.hardware.metrics import TENSOR, TF32, special_functions
from profiler.hardware.operations import UNTOLD, classes_of
from profiler.hardware.tiles import Tile
from profiler.records.measurement import Measurement
from profiler.records.reading import Measured, Unavailable, taken_once
from profiler.records.schema import Record

COLD, IN_SEQUENCE = "cold", "in_sequence"
"""States of the caches before a kernel: emptied, or as the kernels before it left them."""
COUNTERS, OPCODES_READ, EXECUTED = "counters", "opcodes", "executed"
"""Names of runs of ncu, and of parts of the counts that may be missing."""
Launch = tuple[str, str, str]
"""(name, grid, block) of a kernel."""
MOVED = {COLD: "dram_bytes_cold", IN_SEQUENCE: "dram_bytes_in_sequence"}
"""State of the caches -> the name of the reading of DRAM bytes."""


class HardwareCounts(Record, frozen=True):
    """The instructions that one call executed and the DRAM bytes that it moved, as far as read."""

    chip: str
    version: str
    executed: Mapping[str, int] | None
    """Counted instructions and tensor core totals; None if they were not read."""
    opcodes: Mapping[str, int] | None
    """Instructions per thread, by opcode; None if they were not read."""
    moved: Mapping[str, Mapping[str, int]]
    """`cold` and `in_sequence` -> DRAM bytes: `read` and `write`."""
    kernels: Mapping[Launch, int]
    """(name, grid, block) of a kernel -> number of launches."""
    tiles: Sequence[Tile]
    """The tiles of the matrix-product kernels with a tile in their name, in order of launch."""
    commands: Mapping[str, str]
    """Run of ncu (`counters`, `in_sequence`, `opcodes`) -> its command line."""
    metrics: Mapping[str, str]
    """Quantity -> ncu's metric for it."""
    calibration: Calibration
    reasons: Mapping[str, str] = {}
    """Missing part (`executed`, `opcodes`, `cold`, `in_sequence`, or a quantity of `metrics`) ->
    why it is missing."""

    @property
    def labels(self) -> list[str]:
        """Warnings beside the counts: failed checks of the calibration, and fp32 work in TF32."""
        rounded = (self.executed or {}).get(TENSOR + TF32, 0)
        said = f"{rounded:,} operations of tensor cores on fp32 rounded to TF32"
        return [*self.calibration.labels, *([said] if rounded else [])]

    def written(self) -> dict[str, Any]:
        """The counts as a dict for JSON: the fields (the version as `ncu`, moved bytes as `dram`),
        the labels (warnings of failed checks), and executed special functions as `mufu`."""
        return {
            "chip": self.chip,
            "ncu": self.version,
            "executed": self.executed,
            "opcodes": self.opcodes,
            "mufu": None if self.opcodes is None else special_functions(self.opcodes),
            "dram": self.moved,
            "kernels": [
                {"name": name, "grid": grid, "block": block, "launches": number}
                for (name, grid, block), number in self.kernels.items()
            ],
            "tiles": self.tiles,
            "commands": self.commands,
            "metrics": self.metrics,
            "calibration": self.calibration,
            "labels": self.labels,
            "reasons": self.reasons,
        }

    def readings(self) -> dict[str, Measured]:
        """A dict: name of a reading (`dram_bytes_cold`, `dram_bytes_in_sequence`) -> the DRAM bytes
        that the call read plus wrote, or the reason why they are missing."""
        found: dict[str, Measured] = {}
        for caches, name in MOVED.items():
            if caches not in self.moved:
                found[name] = Unavailable(self.reasons[caches])
                continue
            moved = self.moved[caches]
            value = float(sum(moved.values()))
            details = {**moved, "ncu": self.version, "labels": self.labels}
            found[name] = taken_once(name, value, details)
        return found


class HardwareLevel(Record, frozen=True):
    """Rung 4 of a reconciliation: the operations that the hardware executed, by class."""

    WRITTEN = ("chip", "ncu", "untold", "labels", "reasons")  # counts: with the other rungs'

    chip: str
    ncu: str
    """The version of ncu."""
    counts: Classes
    untold: Mapping[str, str] = {}
    """Class -> why its number is unknown; `other` stands for all classes without a column."""
    labels: tuple[str, ...] = ()
    """The warnings of `HardwareCounts.labels`."""
    reasons: Mapping[str, str] = {}
    """Missing part of the counts -> why it is missing."""

    def lacks(self, name: str) -> bool:
        """Whether the number of a class is unknown."""
        return bool(self.why(name))

    def why(self, name: str) -> str:
        """Why the number of a class is unknown; "" if it is known."""
        return self.untold.get(name) or (self.untold.get(OTHER, "") if name not in CLASSES else "")


def hardware_level(measurement: Measurement) -> HardwareLevel | None:
    """The numbers of operations by class that the hardware executed in a measurement; None if the
    record has no hardware counts. `untold` has a reason for each class of unknown number; classes
    that opcodes never identify are listed there only if torch dispatched some."""
    record = measurement.counts.get("hardware")
    if record is None:
        return None
    without = record["reasons"].get(EXECUTED, "")
    halves = record["calibration"]["halves"]
    dispatched = measurement.counts["dispatch"]["operations"]["other"]
    found = classes_of(record["executed"], record["opcodes"], measurement.dtype, halves, without)
    return HardwareLevel(
        chip=record["chip"],
        ncu=record["ncu"],
        counts=dict(found.known),
        untold={n: why for n, why in found.reasons.items() if n not in UNTOLD or n in dispatched},
        labels=tuple(record["labels"]),
        reasons=dict(record["reasons"]),
    )
