"""Tracks values of meta tensors that follow from sizes alone, so that a module may branch on them.

Positions, masks and other index arithmetic of a module do not depend on inputs. While they are
small, their values are computed on the CPU beside the meta tensors, and answer `.item()` and
branches. A tensor that depends on an input, or is random, has no value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from profiler.counting.mode import DispatchMode, OperationKind

NAME = "_costmodel_value"
"""The attribute of a meta tensor that holds its value."""

MOST_WHOLE, MOST_REAL = 2**20, 2**12
"""The most entries of a tensor of integers or booleans, and of a real tensor, with a value."""

UNKNOWN = ("empty", "new_empty")
"""Prefixes of the names of operations that return uninitialised memory."""

READ = torch.ops.aten._local_scalar_dense.default


def known_value(tensor: Tensor) -> Tensor | None:
    """The value of a meta tensor, if it follows from sizes alone; else None.

    Values of views share memory as the views do; after an unknown write into one view, all of these
    values are dropped.
    """
    value: Tensor | None = getattr(tensor, NAME, None)
    if value is not None and value.numel() and not value.untyped_storage().nbytes():
        return None
    return value


def known_number(func: Any, args: tuple[Any, ...]) -> Any:
    """The number that a call of `READ` (the operation of `.item()`) reads from a meta tensor whose
    value follows from sizes alone; None for any other call, or without a value."""
    if func is not READ or not isinstance(args[0], Tensor):
        return None
    known = known_value(args[0])
    return None if known is None else known.item()


def follow_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Give the result of `func(*args, **kwargs)` a value (its numbers, which follow from sizes
    alone) if all arguments have values; otherwise tensors that the operation writes lose theirs."""
    if give_value(func, args, kwargs, result) or not func._schema.is_mutable:
        return
    named = {argument.name: argument for argument in func._schema.arguments}
    given = [*zip(named.values(), args, strict=False)]
    given += [(named[name], value) for name, value in kwargs.items()]
    for argument, value in given:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tree_leaves(value):
                drop_value(tensor)


def give_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Give `result`, the result of `func(*args, **kwargs)` on the meta device, a value (its
    numbers) by computing it on the CPU (an operation in place changes the value), and return
    whether it got one: False if an argument has no value, the result is no single tensor, large
    (`MOST_REAL`, `MOST_WHOLE`), random or uninitialised (`UNKNOWN`), or if computing it fails."""
    if not (known_all(args) and known_all(kwargs.values())):
        return False
    if not isinstance(result, Tensor) or not result.is_meta:
        return False
    real = result.dtype.is_floating_point or result.dtype.is_complex
    if result.numel() > (MOST_REAL if real else MOST_WHOLE):
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:  # random
        return False
    if func._schema.name.removeprefix("aten::").lstrip("_").startswith(UNKNOWN):
        return False
    try:
        own_args = _on_cpu(args)
        own_kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
        if "device" in own_kwargs:
            own_kwargs = {**own_kwargs, "device": torch.device("cpu")}
        setattr(result, NAME, func(*own_args, **own_kwargs))
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return False
    return True


def known_all(values: Iterable[Any]) -> bool:
    """Whether every tensor among the arguments, in lists and tuples too, has a known value, one
    that follows from sizes alone; tensors that are not on the meta device have one."""
    for value in values:
        if isinstance(value, Tensor):
            if value.is_meta and known_value(value) is None:
                return False
        elif isinstance(value, list | tuple) and not known_all(value):
            return False
    return True


def _on_cpu(value: Any) -> Any:
    """A call's argument, converted for a computation on the CPU: a meta tensor's value, the CPU for
    a device; of a list or tuple, each of its entries."""
    if isinstance(value, Tensor):
        return known_value(value) if value.is_meta else value
    if type(value) in (list, tuple):
        return type(value)(map(_on_cpu, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def drop_value(tensor: Any) -> None:
    """Drop the value of a tensor and of all tensors that share its memory, after an unknown write:
    the value's storage, which all of them share, is emptied (`known_value` tests this)."""
    if isinstance(tensor, Tensor) and (value := known_value(tensor)) is not None:
        value.untyped_storage().resize_(0)


class ValuesOfNumbers(TorchFunctionMode):
    """Keeps the value of a tensor that torch.tensor makes from numbers, as no dispatched call has
    these numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch and return its result; a small result of torch.tensor on the meta
        device, made of numbers alone, keeps its numbers as its value."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.tensor and not any(isinstance(t, Tensor) for t in tree_leaves(args)):
            real = result.dtype.is_floating_point or result.dtype.is_complex
            if result.is_meta and result.numel() <= (MOST_REAL if real else MOST_WHOLE):
                with suppress(RuntimeError, TypeError, ValueError), _disable_current_modes():
                    setattr(result, NAME, torch.tensor(*args, **{**kwargs, "device": "cpu"}))
        return result


@contextmanager
def on_meta() -> Iterator[None]:
    """A context in which tensors are made on the meta device by default, and torch.tensor keeps its
    numbers as the value. Warnings are ignored: torch gives them the lines of this package, once for
    every set of sizes."""
    with torch.device("meta"), ValuesOfNumbers(), warnings.catch_warnings(action="ignore"):
        yield


class MetaMode(DispatchMode):
    """A mode of calls on the meta device: numbers that follow from sizes alone are known."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise torch would tell its compiler at every call to skip this mode. Nothing
        compiled runs under the mode: a module is built, or `eager` tells the compiler to skip
        everything."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:  # torch wraps a method of the base in a call of its compiler
        return self.dispatched(func, types, args, kwargs or {})

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The number that a call reads, if sizes alone determine it; else the result of `ran`."""
        known = known_number(kind.func, args)
        return self.ran(kind, args, kwargs) if known is None else known

    def ran(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation, give its result a value if sizes alone determine one, and return it."""
        result = kind.func(*args, **kwargs)
        follow_values(kind.func, args, kwargs, result)
        return result
