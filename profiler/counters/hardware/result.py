"""What was read of one call: executed instructions, moved bytes, and the reasons for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiler.counters.hardware.calibration import Calibration
from profiler.counters.hardware.metrics import special_functions
from profiler.counters.hardware.tiles import Tile
from profiler.meters.interface import Measured, Reading, Unavailable

COLD, IN_SEQUENCE = "cold", "in_sequence"
COUNTERS, OPCODES_READ, EXECUTED = "counters", "opcodes", "executed"
Launch = tuple[str, str, str]
MOVED = {COLD: "dram_bytes_cold", IN_SEQUENCE: "dram_bytes_in_sequence"}
"""Bytes of which caches -> the reading that they are."""


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
    """Of the kernels that multiply matrices and tell their tile, in order."""
    commands: Mapping[str, str]
    metrics: Mapping[str, str]
    """Quantity -> the metric that it is."""
    calibration: Calibration
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why something is missing: `executed`, `opcodes`, `cold`, `in_sequence`, or a quantity of
    `metrics`."""

    @property
    def labels(self) -> list[str]:
        """What must be known of the counts."""
        return self.calibration.labels

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
        """The bytes, each a reading or the reason why not."""
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
