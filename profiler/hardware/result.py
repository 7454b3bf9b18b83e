"""What was read of one call: executed instructions, moved bytes, and reasons for what is
missing?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.language.functions import CLASSES
from profiler.counting.operations import OTHER, Classes
from profiler.hardware.calibration import Calibration
from profiler.hardware.metrics import TENSOR, TF32, special_functions
from profiler.hardware.operations import UNTOLD, classes_of
from profiler.hardware.tiles import Tile
from profiler.records.measurement import Measurement
from profiler.records.reading import Measured, Reading, Unavailable

COLD, IN_SEQUENCE = "cold", "in_sequence"


COUNTERS, OPCODES_READ, EXECUTED = "counters", "opcodes", "executed"


Launch = tuple[str, str, str]


MOVED = {COLD: "dram_bytes_cold", IN_SEQUENCE: "dram_bytes_in_sequence"}
"""State of the caches -> the name of the reading of moved bytes."""


@dataclass(frozen=True)
class HardwareCounts:
    """What one call executed and moved, as far as it could be read."""

    chip: str
    version: str
    executed: Mapping[str, int] | None
    """Counted instructions and totals of tensor cores; None where they were not read."""
    opcodes: Mapping[str, int] | None
    """Threads' instructions by opcode; None where they were not read."""
    moved: Mapping[str, Mapping[str, int]]
    """`cold` and `in_sequence`: bytes read and written."""
    kernels: Mapping[Launch, int]
    """Name, grid and block of a kernel -> how often it was launched."""
    tiles: Sequence[Tile]
    """The tiles of the matrix-product kernels whose names tell them, in order."""
    commands: Mapping[str, str]
    metrics: Mapping[str, str]
    """Quantity -> ncu's metric for it."""
    calibration: Calibration
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why something is missing: `executed`, `opcodes`, `cold`, `in_sequence`, or a quantity of
    `metrics`."""

    @property
    def labels(self) -> list[str]:
        """What a reader must know of the counts."""
        rounded = (self.executed or {}).get(TENSOR + TF32, 0)
        said = f"{rounded:,} operations of tensor cores on fp32 rounded to TF32"
        return [*self.calibration.labels, *([said] if rounded else [])]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "chip": self.chip,
            "ncu": self.version,
            "executed": None if self.executed is None else dict(self.executed),
            "opcodes": None if self.opcodes is None else dict(self.opcodes),
            "mufu": None if self.opcodes is None else special_functions(self.opcodes),
            "dram": {name: dict(moved) for name, moved in self.moved.items()},
            "kernels": [
                {"name": name, "grid": grid, "block": block, "launches": number}
                for (name, grid, block), number in self.kernels.items()
            ],
            "tiles": [list(tile) for tile in self.tiles],
            "commands": dict(self.commands),
            "metrics": dict(self.metrics),
            "calibration": self.calibration.to_json(),
            "labels": self.labels,
            "reasons": dict(self.reasons),
        }

    def readings(self) -> dict[str, Measured]:
        """The moved bytes, each a reading or the reason why there is none."""
        found: dict[str, Measured] = {}
        for caches, name in MOVED.items():
            if caches not in self.moved:
                found[name] = Unavailable(self.reasons[caches])
                continue
            moved = self.moved[caches]
            value = float(sum(moved.values()))
            details = {**moved, "ncu": self.version, "labels": self.labels}
            found[name] = Reading(name, value, "B", (value,), details)
        return found


@dataclass(frozen=True)
class HardwareLevel:
    """Level 4 of a reconciliation: what the hardware executed, by class, and how that is known."""

    chip: str
    ncu: str
    """The version of ncu."""
    counts: Classes
    untold: Mapping[str, str] = field(default_factory=dict)
    """Class, or `other` for all without a column -> why its number is unknown."""
    labels: tuple[str, ...] = ()
    """What the calibration found wrong with the counters."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why something was not read."""

    def lacks(self, name: str) -> bool:
        """Whether the number of a class is unknown."""
        return bool(self.why(name))

    def why(self, name: str) -> str:
        """Why the number of a class is unknown; "" where it is known."""
        return self.untold.get(name) or (self.untold.get(OTHER, "") if name not in CLASSES else "")

    def to_json(self) -> dict[str, Any]:
        """The fields but the counts, which stand with the level."""
        return {
            "chip": self.chip,
            "ncu": self.ncu,
            "untold": dict(self.untold),
            "labels": list(self.labels),
            "reasons": dict(self.reasons),
        }


def hardware_level(measurement: Measurement) -> HardwareLevel | None:
    """Level 4 of a measurement; None where no counters were read."""
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
