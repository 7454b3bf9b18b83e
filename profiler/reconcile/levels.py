"""The results of a reconciliation: rungs, causes, unexplained rests, other counters' figures.

The words (rung, gap, cause) are defined in `reconcile/ladder.py`. A *peer* is another tool's
counter of operations: torch's FlopCounterMode, or fvcore.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from costmodel.language.functions import CLASSES
from profiler.counting.operations import OTHER, Classes
from profiler.hardware.result import HardwareLevel
from profiler.records.schema import Record
from profiler.records.words import signed_words

EXHAUSTED = (
    "each cause is the difference between two counts of the equations, the second with one more "
    "rewrite or in another form; the last count is rung 2, so that the causes explain the whole "
    "gap; gap 2-3 is the measured one"
)
"""Why the gap 1-2 has no unexplained rest."""


def row_classes(counts: Mapping[str, int], untold: Collection[str] = ()) -> dict[str, Any]:
    """The numbers of operations by class as JSON prints them: a dict with the keys mul, add, div,
    exp and other; `other` is a dict of all further classes.

    The number of a class in `untold` is unknown, and so None; `other` is None if "other" is in
    `untold`.

    >>> row_classes({"mul": 3, "compare": 2})
    {'mul': 3, 'add': 0, 'div': 0, 'exp': 0, 'other': {'compare': 2}}
    """
    named = {name: n for name, n in counts.items() if name not in CLASSES and n}
    other = named | {name: None for name in untold if name not in (*CLASSES, OTHER)}
    known = {name: None if name in untold else counts.get(name, 0) for name in CLASSES}
    return known | {OTHER: None if OTHER in untold else other}


class Cause(Record, frozen=True):
    """A named re-count between rungs `start` and `end`: the operations that it adds, by class."""

    start: int
    end: int
    name: str
    counts: Classes
    meaning: str = ""

    def written(self) -> dict[str, Any]:
        """The fields, with `start` and `end` written as `from` and `to`."""
        ends = {"from": self.start, "to": self.end}
        return ends | {
            "name": self.name, "counts": row_classes(self.counts), "meaning": self.meaning
        }  # fmt: skip


class PeerFigure(Record, frozen=True):
    """The predicted and the printed figure of a peer, and the causes that lead to the prediction.

    `reasons` gives a reason for each figure that is None.
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
    """(name, added operations): added to the total of rung 2, they give the prediction."""
    uncounted: Mapping[str, int] = {}
    """Operation that the peer did not count -> number of calls."""
    uncounted_time_share: float | None = None
    reasons: Mapping[str, str] = {}

    @property
    def unexplained(self) -> int | None:
        """The counter's printed figure less its prediction; None if either is missing."""
        if self.printed is None or self.predicted is None:
            return None
        return self.printed - self.predicted

    def written(self) -> dict[str, Any]:
        """The fields and the unexplained rest, with each cause as an object: name, counts."""
        causes = [{"name": name, "counts": {"total": n}} for name, n in self.causes]
        return super().written() | {"causes": causes}


class MemoryCause(Record, frozen=True):
    """The bytes that a named re-count adds to the derived bytes moved."""

    name: str
    bytes: int
    meaning: str = ""


MEMORY_WORDS = {
    "activations": "kept for the backward pass",
    "peak": "held at the worst moment of the call",
    "dram_cold": "moved, caches flushed before each kernel",
    "dram_in_sequence": "moved, caches as kernels leave them",
}
"""Quantity of memory -> its words: the first two are held bytes, the others moved bytes."""


class MovedMemory(Record, frozen=True):
    """Bytes moved by the equations and as measured, and the causes of the difference.

    `reason` says why one of the two figures is None.
    """

    WRITTEN = ("unit", "derived", "measured", "causes", "unexplained", "reason")
    unit: ClassVar[str] = "B"

    derived: int | None = None
    measured: int | None = None
    causes: tuple[MemoryCause, ...] = ()
    reason: str = ""

    @property
    def unexplained(self) -> int | None:
        """The difference that no cause explains; None if a figure is missing."""
        if self.derived is None or self.measured is None:
            return None
        return self.measured - self.derived - sum(cause.bytes for cause in self.causes)


class ListedTensor(Record, frozen=True):
    """A live tensor, or `number` equal tensors of `bytes` each.

    `array` names the equations' arrays that have the tensor's shape; `cause` says why the tensor is
    larger than an array, or no array at all.
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

    `listed` are the tensors of a separate run, or None. In this run the allocator held `watched`
    bytes, of which it added `rounding` to the tensors' bytes; the call released `released` bytes
    that were allocated before. `reason` says why a field is None.
    """

    derived: int | None = None
    measured: int | None = None
    listed: tuple[ListedTensor, ...] | None = None
    rounding: int = 0
    released: int = 0
    watched: int | None = None
    reason: str = ""

    def total(self, *, workspace: bool) -> int:
        """The bytes of the listed workspaces inside operations, or of all other listed tensors; 0
        without a list."""
        rows = [row for row in self.listed or () if row.workspace == workspace]
        return sum(row.bytes * row.number for row in rows)

    @property
    def difference(self) -> int | None:
        """The measured bytes less those of the run whose tensors are listed; None without both."""
        if self.measured is None or self.watched is None:
            return None
        return self.measured - self.watched

    @property
    def unexplained(self) -> int | None:
        """The bytes alive in the run that listed its tensors (`watched`, and `released` bytes that
        the call freed) that belong to no listed tensor, nor to the allocator's rounding; None
        without a list."""
        if self.watched is None:
            return None
        named = self.total(workspace=False) + self.total(workspace=True)
        return self.watched + self.released - self.rounding - named

    def written(self) -> dict[str, Any]:
        """A dict for JSON, in bytes: derived and measured, the listed tensors and their sums (None
        without a list), and the unexplained rest; `watching` is the measured bytes less those of
        the run whose tensors are listed."""
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
    """Theory and measurement of one implementation in one phase, rung by rung.

    `rungs` has the keys "1" to "5": operations by class on "1" to "4" (None on "4" without hardware
    counters), quantity -> value on "5". `unexplained` has a key for each gap, "1-2", "2-3" and,
    with hardware counters, "3-4": the operations without a cause, by class.
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
    """A rung ("3", "4"), a quantity of rung 5 or a gap -> the reason: why the rung is incomplete or
    nominal, the quantity missing, the gap "1-2" without an unexplained rest, or which rewrites
    would explain the rest of the gap "2-3"."""
    uncounted: tuple[str, ...] = ()
    """Dispatched operations without a counting rule: no rung counts them."""
    memory: Mapping[str, Memory] = {}
    """Quantity -> bytes: `activations` (kept for the backward pass), `peak`, and the bytes moved if
    hardware counters were read."""
    hardware: HardwareLevel | None = None
    """Rung 4 with its labels and reasons; None if no hardware counters were read."""

    @property
    def unexplained_operations(self) -> int:
        """The sum of the absolute unexplained differences between rungs 1 to 3, in operations."""
        return sum(abs(n) for gap in ("1-2", "2-3") for n in self.unexplained[gap].values())

    @property
    def findings(self) -> list[str]:
        """Sentences on all that no cause explains: operations gap by gap (of the gap 2-3 with the
        rewrites that would explain them, if known), operations without a counting rule, figures of
        other projects' counters, bytes. [] if all is explained."""
        found = [
            "; ".join([f"unexplained: {signed_words(rest)}", *self._remedies(gap)])
            for gap, rest in self.unexplained.items()
            if rest
        ]
        if self.uncounted:
            found.append(f"no counting rule for {', '.join(self.uncounted)}")
        found += [
            f"{peer.name} differs from its prediction by {peer.unexplained:+,} {peer.unit}"
            for peer in self.peers
            if peer.unexplained
        ]
        found += [
            f"unexplained: {memory.unexplained:+,} B {MEMORY_WORDS[name]}"
            for name, memory in self.memory.items()
            if memory.unexplained
        ]
        return found

    def _remedies(self, gap: str) -> list[str]:
        """The sentence on what explains the unexplained rest of a gap, if it is known."""
        return [self.reasons[gap]] if gap == "2-3" and gap in self.reasons else []

    @property
    def explained(self) -> bool:
        """Whether everything dispatched was counted, nothing is unexplained on rungs 1 to 3, and no
        peer's printed figure differs from its prediction (a peer that lacks either passes). Bytes
        and rung 4 are not judged."""
        gaps = self.uncounted or any(self.unexplained[gap] for gap in ("1-2", "2-3"))
        return not gaps and not any(peer.unexplained for peer in self.peers)

    def written(self) -> dict[str, Any]:
        """The ladder as a dict for JSON (schema 1). Numbers of operations have the keys mul, add,
        div, exp and other, with None for classes that the hardware counters do not know; the key
        `hardware` is present only if hardware counters were read."""
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
