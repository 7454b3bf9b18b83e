"""What does a reconciliation hold: rungs, causes, unexplained rests, other counters' figures?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from costmodel.language.functions import CLASSES
from profiler.counting.operations import OTHER, Classes
from profiler.hardware.result import HardwareLevel
from profiler.records.schema import Record
from profiler.records.words import signed_words

EXHAUSTED = (
    "the causes are the equations counted again, switch by switch, and the last of these counts is "
    "rung 2: nothing can be left unexplained; what is observed is the gap 2-3"
)


def row_classes(counts: Mapping[str, int], untold: Collection[str] = ()) -> dict[str, Any]:
    """Counts as a table's row prints them: mul, add, div, exp, other; None for what is untold.

    >>> row_classes({"mul": 3, "compare": 2})
    {'mul': 3, 'add': 0, 'div': 0, 'exp': 0, 'other': {'compare': 2}}
    """
    named = {name: n for name, n in counts.items() if name not in CLASSES and n}
    other = named | {name: None for name in untold if name not in (*CLASSES, OTHER)}
    known = {name: None if name in untold else counts.get(name, 0) for name in CLASSES}
    return known | {OTHER: None if OTHER in untold else other}


class Cause(Record, frozen=True):
    """A named re-count: `counts` is what the switch adds, per class."""

    start: int
    end: int
    name: str
    counts: Classes
    meaning: str = ""

    def written(self) -> dict[str, Any]:
        """from, to, name, counts, meaning."""
        ends = {"from": self.start, "to": self.end}
        return ends | {
            "name": self.name, "counts": row_classes(self.counts), "meaning": self.meaning
        }  # fmt: skip


class PeerFigure(Record, frozen=True):
    """What a peer was predicted to print, what it printed, and why it is not rung 3's total.

    `reasons` says for `predicted` and `printed` why one of them is None.
    """

    WRITTEN = (
        "name", "predicted", "printed", "unit", "causes", "unexplained", "uncounted",
        "uncounted_time_share", "reasons",
    )  # fmt: skip

    name: str
    predicted: int | None
    printed: int | None
    unit: str
    causes: tuple[tuple[str, int], ...]
    """From rung 2's total to the prediction: re-counts, in operations."""
    uncounted: Mapping[str, int] = {}
    uncounted_time_share: float | None = None
    reasons: Mapping[str, str] = {}

    @property
    def unexplained(self) -> int | None:
        """printed - predicted."""
        if self.printed is None or self.predicted is None:
            return None
        return self.printed - self.predicted

    def written(self) -> dict[str, Any]:
        """The fields, with causes as objects."""
        causes = [{"name": name, "counts": {"total": n}} for name, n in self.causes]
        return super().written() | {"causes": causes}


class MemoryCause(Record, frozen=True):
    """What a named re-count adds to the bytes that are moved."""

    name: str
    bytes: int
    meaning: str = ""


MEMORY_WORDS = {
    "activations": "kept for the backward pass",
    "peak": "held at the worst moment of the call",
    "dram_cold": "moved, caches flushed before each kernel",
    "dram_in_sequence": "moved, caches as kernels leave them",
}
"""Quantity of memory -> its words."""


class MovedMemory(Record, frozen=True):
    """Bytes moved by the equations and as measured, and the causes of what lies between.

    `reason` says why one of the two is None.
    """

    WRITTEN = ("unit", "derived", "measured", "causes", "unexplained", "reason")
    unit: ClassVar[str] = "B"

    derived: int | None = None
    measured: int | None = None
    causes: tuple[MemoryCause, ...] = ()
    reason: str = ""

    @property
    def unexplained(self) -> int | None:
        """What no cause names; None where there is nothing to compare."""
        if self.derived is None or self.measured is None:
            return None
        return self.measured - self.derived - sum(cause.bytes for cause in self.causes)


class ListedTensor(Record, frozen=True):
    """A tensor that is alive, or `number` equal ones of `bytes` each.

    `array` names the equations' arrays that have its shape, `cause` says why its bytes are more
    than, or other than, those of an array.
    """

    operation: str
    shape: tuple[int, ...] | None
    dtype: str | None
    bytes: int
    number: int
    array: str
    cause: str
    workspace: bool = False


class HeldMemory(Record, frozen=True):
    """Bytes held by the equations and as measured, and the tensors that hold them.

    `listed` are the tensors of a run of its own, in which the allocator counted `watched` bytes and
    added `rounding` to those of tensors and got back `released`, which was there before the call;
    None where there is no list. `reason` says why something is None.
    """

    derived: int | None = None
    measured: int | None = None
    listed: tuple[ListedTensor, ...] | None = None
    rounding: int = 0
    released: int = 0
    watched: int | None = None
    reason: str = ""

    def total(self, *, workspace: bool) -> int:
        """The bytes of all tensors of the list, or of all workspaces inside operations."""
        rows = [row for row in self.listed or () if row.workspace == workspace]
        return sum(row.bytes * row.number for row in rows)

    @property
    def difference(self) -> int | None:
        """How many bytes fewer or more were measured than in the run whose tensors were listed."""
        if self.measured is None or self.watched is None:
            return None
        return self.measured - self.watched

    @property
    def unexplained(self) -> int | None:
        """What the allocator holds and no name is known of; None where nothing is listed."""
        if self.watched is None:
            return None
        named = self.total(workspace=False) + self.total(workspace=True)
        return self.watched + self.released - self.rounding - named

    def written(self) -> dict[str, Any]:
        """The fields, the sums of the list, and what is unexplained, in bytes."""
        sums = {
            "listed": self.total(workspace=False),
            "rounding": self.rounding,
            "released": self.released,
            "workspace": self.total(workspace=True),
        }
        return {
            "unit": "B",
            "derived": self.derived,
            "measured": self.measured,
            "tensors": self.listed,
            **(dict.fromkeys(sums) if self.listed is None else sums),
            "unexplained": self.unexplained,
            "watching": self.difference,
            "reason": self.reason,
        }


Memory = MovedMemory | HeldMemory


class Ladder(Record, frozen=True):
    """Theory and measurement of one implementation, rung by rung.

    Rung 2 is the last of the re-counts that are the causes of the gap 1-2, so nothing of that gap
    can be unexplained. The gap 2-3 is observed; 3-4 is there where hardware counters were read.
    """

    mixer: str
    implementation: str
    form: str
    phase: str
    sizes: Mapping[str, int]
    dtype: str
    device: str
    rungs: Mapping[str, Any]
    causes: tuple[Cause, ...]
    unexplained: Mapping[str, Classes]
    peers: tuple[PeerFigure, ...]
    reasons: Mapping[str, str]
    """Why something is missing, nominal or empty: by rung, by gap, by quantity of rung 5."""
    uncounted: tuple[str, ...] = ()
    """Dispatched operations without a counting rule: what they did is in no rung."""
    memory: Mapping[str, Memory] = {}
    """`activations` (what is kept for the backward pass), `peak`, and the bytes that the memory
    moved where these were counted: by quantity."""
    hardware: HardwareLevel | None = None
    """Rung 4; None where no hardware counters were read."""

    @property
    def unexplained_operations(self) -> int:
        """How many operations lie in the gaps of rungs 1 to 3 without a cause, more and fewer
        alike."""
        return sum(abs(n) for gap in ("1-2", "2-3") for n in self.unexplained[gap].values())

    @property
    def findings(self) -> list[str]:
        """What has no cause, in words: operations, other counters' figures, bytes."""
        found = [f"unexplained: {signed_words(g)}" for g in self.unexplained.values() if g]
        if self.uncounted:
            found.append(f"no counting rule for {', '.join(self.uncounted)}")
        found += [
            f"{peer.name} prints {peer.unexplained:+,} {peer.unit} beside what is predicted"
            for peer in self.peers
            if peer.unexplained
        ]
        found += [
            f"unexplained: {memory.unexplained:+,} B {MEMORY_WORDS[name]}"
            for name, memory in self.memory.items()
            if memory.unexplained
        ]
        return found

    @property
    def explained(self) -> bool:
        """Whether everything dispatched was counted, nothing is unexplained on rungs 1 to 3, and
        every peer that printed a figure printed its prediction."""
        gaps = self.uncounted or any(self.unexplained[gap] for gap in ("1-2", "2-3"))
        return not gaps and not any(peer.unexplained for peer in self.peers)

    def written(self) -> dict[str, Any]:
        """The ladder as schema 1 prints it."""
        counted = {rung: row_classes(self.rungs[rung]) for rung in "123"}
        untold = {} if self.hardware is None else {"3-4": self.hardware.untold}
        fourth = None
        if self.hardware is not None:
            fourth = row_classes(self.hardware.counts, self.hardware.untold)
        found = super().written()
        found["rungs"] = counted | {"4": fourth, "5": self.rungs["5"]}
        found["unexplained"] = {
            gap: row_classes(counts, untold.get(gap, ()))
            for gap, counts in self.unexplained.items()
        }
        if self.hardware is None:
            del found["hardware"]
        return found
