"""The kinds of torch operations, by their schemas, and the costs of single calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from profiler.counting.call import Rule, is_view
from profiler.counting.forward_rules import free
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.rules import rule_for

COMPOSITE = "CompositeImplicitAutograd"
META = torch.device("meta")


@dataclass(frozen=True, eq=False)
class OperationKind:
    """The facts about a torch operation that hold for all calls; one object per operation."""

    func: Any
    name: str
    rule: Rule | None
    free: bool
    view: bool
    composite: bool
    writes: bool
    in_place: bool
    """Whether the operation writes only its first argument, and returns it unmoved."""
    label: Mapping[str, str]
    """Phase -> the operation's name, prefixed by the phase."""


KINDS: dict[int, OperationKind] = {}
"""id of an operation -> its kind, for every operation so far: hashing torch's operations is
slow."""


def kind_of_operation(func: Any) -> OperationKind:
    """The kind of an operation, made once per operation."""
    found = KINDS.get(id(func))
    if found is None:
        found = KINDS[id(func)] = make_kind(func)
    return found


def make_kind(func: Any) -> OperationKind:
    """The kind of an operation, from its schema and its counting rule."""
    name = func._schema.name
    rule = rule_for(name)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    view = is_view(func)
    composite = (rule is None or view) and has(func.name(), COMPOSITE)
    label = {phase: f"{phase} {name}" for phase in ("forward", "backward")}
    taken, given = func._schema.arguments, func._schema.returns
    numbers = any("Tensor" in str(value.type) for value in (*taken, *given))
    move = rule is free or view or not numbers
    written = [
        argument.alias_info is not None and argument.alias_info.is_write for argument in taken
    ]
    in_place = (
        written[:1] == [True] and sum(written) == len(given) == 1
        and torch.Tag.inplace_view not in func.tags
    )  # fmt: skip
    return OperationKind(
        func, name, rule, move, view, composite, any(written), in_place, label,
    )  # fmt: skip


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that is alive in a run, or `number` equal ones of `bytes` each; `made` is the
    operation that made it, prefixed by the phase."""

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
    """The operations of one call, or why they are not counted, and the bytes touched."""

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


@dataclass(frozen=True, eq=False)
class KnownCall:
    """The facts about one call that hold for all calls with equal arguments.

    `again` makes the results from the arguments without running the operation; None if the
    operation must run.
    """

    kind: OperationKind
    again: Callable[[tuple[Any, ...]], Any] | None
    cost: Cost


@dataclass(frozen=True)
class CountedOperation:
    """Totals over all calls of one operation in one phase; `known`: it has a counting rule."""

    calls: int = 0
    operations: Operations = NOTHING
    bytes_touched: int = 0
    known: bool = True
    products: int = 0
    ungrouped: int = 0


def summed_by_operation(
    calls: Iterable[tuple[str, str, int, Cost]],
) -> dict[tuple[str, str], CountedOperation]:
    """(phase, name) -> totals, from tuples of phase, name, number of calls and cost per call, moves
    left out."""
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
