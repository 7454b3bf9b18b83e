"""The base of the dispatch modes: a mode sees every operation that torch runs, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.counting.call import Rule, dispatch_themselves, is_view
from profiler.counting.forward_rules import free
from profiler.counting.rules import rule_for

COMPOSITE = "CompositeImplicitAutograd"


@dataclass(frozen=True, eq=False)
class OperationKind:
    """The facts about a torch operation that hold for all calls; one object per operation.

    `func` is torch's operation, `name` its name (`aten::mm`), `rule` its counting rule or None.
    `free`: it is a move, a view, or has no tensor among its arguments and results. `view`: its
    result is a view. `writes`: it writes into an argument.
    """

    func: Any
    name: str
    rule: Rule | None
    free: bool
    view: bool
    composite: bool
    """Whether torch has the operation's parts, and no counting rule covers the whole of it."""
    writes: bool
    in_place: bool
    """Whether the operation writes only its first argument, and returns it unmoved."""
    label: Mapping[str, str]
    """Phase -> the operation's name, prefixed by the phase."""


@cache
def kind_of_operation(func: Any) -> OperationKind:
    """Derive the facts about an operation (`OperationKind`) from its schema and its counting rule.
    An operation is composite, so that its parts are dispatched instead, if torch has its parts and
    it is a view or has no counting rule."""
    name = func._schema.name
    rule = rule_for(name)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    view = is_view(func)
    composite = (rule is None or view) and has(func.name(), COMPOSITE)
    label = {phase: f"{phase} {name}" for phase in ("forward", "backward")}
    arguments, results = func._schema.arguments, func._schema.returns
    # without a tensor among arguments and results there is no arithmetic to count
    has_tensor = any("Tensor" in str(value.type) for value in (*arguments, *results))
    move = rule is free or view or not has_tensor
    written = [
        argument.alias_info is not None and argument.alias_info.is_write for argument in arguments
    ]
    in_place = (
        written[:1] == [True] and sum(written) == len(results) == 1
        and torch.Tag.inplace_view not in func.tags
    )  # fmt: skip
    return OperationKind(func, name, rule, move, view, composite, any(written), in_place, label)


def name_of_functions(func: HigherOrderOperator) -> str:
    """The name of a higher-order operator, in the style of torch's names of operations.

    >>> name_of_functions(torch.ops.higher_order.cond)
    'higher_order::cond'
    """
    return f"higher_order::{func}"


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Runs every dispatched operation unchanged; a subclass records the operations.

    `see` receives each operation. An operation on a tensor subclass is left to the subclass, and a
    composite operation without a counting rule is decomposed: `see` then receives the parts. An
    operator that runs functions (torch.cond, which torch compiles outside of a mode) goes to
    `see_functions`: the mode does not see the operations of these functions.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.dispatched(func, types, args, kwargs or {})

    def dispatched(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a dispatched operation and return its result; a composite one is decomposed, and its
        parts are dispatched in turn. NotImplemented for tensor subclasses: torch then calls their
        own dispatch."""
        if dispatch_themselves(types):
            return NotImplemented
        if isinstance(func, HigherOrderOperator):
            return self.see_functions(func, args, kwargs)
        kind = kind_of_operation(func)
        if kind.composite:
            with self:  # inference mode dispatches composite operations whole
                return func.decompose(*args, **kwargs)
        return self.see(kind, args, kwargs)

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation that is not decomposed, and return its result."""
        return kind.func(*args, **kwargs)

    def see_functions(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a higher-order operator, and return its result."""
        return func(*args, **kwargs)
