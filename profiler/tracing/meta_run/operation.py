"""What is known of an operation before it is called, and what does one call of it give?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from profiler.counting.backward_rules import TRACED_RULES
from profiler.counting.forward_rules import Rule, free, rule_for
from profiler.counting.operations import NOTHING, Operations

COMPOSITE = "CompositeImplicitAutograd"
META = torch.device("meta")


@dataclass(frozen=True, eq=False)
class Kind:
    """What is known of an operation before it is called; each operation has one."""

    func: Any
    name: str
    rule: Rule | None
    free: bool
    view: bool
    composite: bool
    writes: bool
    in_place: bool
    """Whether it writes into its first argument alone, and gives that back as it lay in memory."""
    decomposition: Callable[..., Any] | None
    label: Mapping[str, str]
    """Its name in either phase."""


KINDS: dict[int, Kind] = {}
"""The kind of every operation that was met, by its identity: torch hashes them slowly."""


def kind_of(func: Any) -> Kind:
    """What is known of an operation, looked up once."""
    found = KINDS.get(id(func))
    if found is None:
        found = KINDS[id(func)] = described(func)
    return found


def described(func: Any) -> Kind:
    """The rule of an operation, or torch's own decomposition of it where there is no rule."""
    name = func._schema.name
    rule = rule_for(name, TRACED_RULES)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = (rule is None or func.is_view) and has(func.name(), COMPOSITE)
    decomposition = decomposition_table.get(func)
    label = {phase: f"{phase} {name}" for phase in ("forward", "backward")}
    taken, given = func._schema.arguments, func._schema.returns
    numbers = any("Tensor" in str(value.type) for value in (*taken, *given))
    move = rule is free or func.is_view or not numbers
    written = [
        argument.alias_info is not None and argument.alias_info.is_write for argument in taken
    ]
    in_place = (
        written[:1] == [True] and sum(written) == len(given) == 1
        and torch.Tag.inplace_view not in func.tags
    )  # fmt: skip
    return Kind(
        func, name, rule, move, func.is_view, composite, any(written), in_place, decomposition,
        label,
    )  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Shape, strides and type of a result in new memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> Tensor:
        """A tensor of this layout on the meta device."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=META)

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Those of the memory that it spans."""
        spanned = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return spanned * self.dtype.itemsize if self.entries else 0


@dataclass(frozen=True)
class Cost:
    """The operations of one call, or why they are not counted, and what it touches."""

    operations: Operations | None
    reason: str = ""
    touched: int = 0
    products: int = 0
    """Multiplications of two entries, in a contraction or convolution those of its sums alone."""
    ungrouped: int = 0
    """How many more the gradient of a convolution's weight would have without groups."""


@dataclass(frozen=True, eq=False)
class Made:
    """What one call of an operation gives, shared by all calls with the same arguments.

    `again` makes its results from its arguments; None where only running it does. `arguments` are
    those of the call, tensors on the meta device by their layouts; of a move none.
    """

    kind: Kind
    again: Callable[[tuple[Any, ...]], Any] | None
    cost: Cost
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Counted:
    """All calls of one operation in one phase; not `known` where it has no rule."""

    calls: int = 0
    operations: Operations = NOTHING
    bytes_touched: int = 0
    known: bool = True
    products: int = 0
    ungrouped: int = 0


def by_operation(
    calls: Iterable[tuple[str, str, int, Cost]],
) -> dict[tuple[str, str], Counted]:
    """Everything that is no move, by phase and name, from phase, name, how often, and the cost."""
    found: dict[tuple[str, str], Counted] = {}
    for phase, name, times, cost in calls:
        place = (phase, name if cost.operations is not None else f"{name}: {cost.reason}")
        before = found.get(place, Counted(known=cost.operations is not None))
        found[place] = Counted(
            before.calls + times,
            before.operations + (cost.operations or NOTHING) * times,
            before.bytes_touched + cost.touched * times,
            before.known,
            before.products + cost.products * times,
            before.ungrouped + cost.ungrouped * times,
        )
    return found
