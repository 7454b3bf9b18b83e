"""The costs of single calls of torch operations, and the layouts of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from profiler.counting.mode import OperationKind
from profiler.counting.operations import NOTHING, Operations

META = torch.device("meta")


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that is alive in a run, or `number` equal ones of `bytes` each; `made` is the
    operation that made it, prefixed by the phase: `forward aten::mm`."""

    made: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    number: int = 1


@dataclass(frozen=True)
class TensorLayout:
    """Shape, strides and dtype of a tensor with its own memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of all entries."""
        return prod(self.shape) * self.dtype.itemsize

    def empty(self) -> Tensor:
        """A tensor of this layout on the meta device."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=META)


@dataclass(frozen=True)
class Cost:
    """The operations of one call, or None with the `reason`; and the bytes touched."""

    operations: Operations | None
    reason: str = ""
    touched: int = 0
    products: int = 0
    """Multiplications of two entries; for a contraction or convolution, only those inside its
    sums."""
    ungrouped: int = 0
    """The additional products of a convolution's weight gradient if it had no groups."""
    decomposed: bool = False
    """Whether the operations were counted through torch's decomposition."""
    by_values: bool = False
    """Whether values were asked for, so that a call of equal layouts may have another cost."""


@dataclass(frozen=True, eq=False)
class KnownCall:
    """The facts about one call that hold for all calls with equal arguments.

    `again` makes the results from the positional arguments without running the operation; None if
    the operation must run.
    """

    kind: OperationKind
    again: Callable[[tuple[Any, ...]], Any] | None
    cost: Cost


@dataclass(frozen=True)
class CountedOperation:
    """Totals of `Cost` over the calls of one operation in a phase; `known`: a rule counts it."""

    calls: int = 0
    operations: Operations = NOTHING
    bytes_touched: int = 0
    known: bool = True
    products: int = 0
    ungrouped: int = 0


def summed_by_operation(
    calls: Iterable[tuple[str, str, int, Cost]],
) -> dict[tuple[str, str], CountedOperation]:
    """(phase, name of an operation) -> totals over its calls, from tuples of phase, name, number of
    calls and cost per call. The name of an operation without a counting rule ends in `: reason`."""
    found: dict[tuple[str, str], CountedOperation] = {}
    for phase, name, times, cost in calls:
        place = (phase, name if cost.operations is not None else f"{name}: {cost.reason}")
        before = found.get(place, CountedOperation(known=cost.operations is not None))
        found[place] = CountedOperation(
            before.calls + times,
            before.operations + (cost.operations or NOTHING) * times,
            before.bytes_touched + cost.touched * times,
            before.known,
            before.products + cost.products * times,
            before.ungrouped + cost.ungrouped * times,
        )
    return found
