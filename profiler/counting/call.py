"""What was one dispatched torch operation called with, and what did it return?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from sys import modules
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeGuard

from costmodel.errors import text_of
from profiler.counting.operations import Operations

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FILLS = "bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ uniform_ zero_"
OVERWRITTEN_UNREAD = frozenset(f"aten::{name}" for name in FILLS.split())


class CountError(ValueError):
    """An operation whose rule does not cover these arguments; the message says which."""


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor of torch; False without torch, which the rules do not need."""
    torch = modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def own_values(tensor: Tensor) -> Tensor | None:
    """The tensor; None on the meta device, where tensors have no values."""
    return None if tensor.is_meta else tensor


@dataclass(frozen=True)
class Call:
    """One dispatched operation: name (`aten::mm`), arguments by their names in the schema, result.
    `known` gives a tensor with the values of an argument, or None without values."""

    name: str
    arguments: Mapping[str, Any]
    result: Any
    known: Callable[[Tensor], Tensor | None] = own_values

    def tensor(self, argument: str) -> Tensor:
        """The tensor passed as `argument`; CountError if something else was passed."""
        value = self.arguments[argument]
        if not is_tensor(value):
            raise CountError(f"{self.name}: expected a tensor {argument}, got {value!r}")
        return value

    def values(self, tensor: Tensor, what: str, remedy: str = "") -> Tensor:
        """A tensor with the values of the argument `tensor`; CountError, which says that `what`
        depends on values, and the remedy, if the values are not known."""
        found = self.known(tensor)
        if found is None:
            raise CountError(
                f"{self.name}: {what} depends on values, which meta tensors lack{remedy}"
            )
        return found

    @property
    def output(self) -> Tensor:
        """The first tensor of the result; CountError if the result has none."""
        for tensor in tensors_in(self.result):
            return tensor
        raise CountError(
            f"{self.name}: expected a tensor as its result, got {type(self.result).__name__}"
        )

    @property
    def inputs(self) -> list[Tensor]:
        """Every tensor argument, lists flattened."""
        return list(tensors_in(list(self.arguments.values())))


Rule = Callable[[Call], Operations]
"""The counting rule of an operation: a call -> its operations, over the whole result. A rule raises
CountError for arguments that it does not cover, so the reason is shown in place of a number."""


def bind(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Call:
    """The Call of `func(*args, **kwargs)`, which returned `result`: its name without the overload,
    each argument under its name in the schema, and defaults (or None) for those not passed."""
    schema = func._schema
    bound: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(args):
            bound[argument.name] = args[position]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return Call(schema.name, bound, result)


HIGHER_ORDER = "a higher-order operator: operations of the functions it calls are not counted"
"""Why `torch.cond`, `flex_attention` and their like are not counted."""


FLEX_ATTENTION = ("found no compiled frames", "FlexAttention is only supported on")
"""What torch says where it cannot run flex_attention: under a dispatch mode, on the meta device."""


def higher_order_reason(error: BaseException) -> str:
    """A sentence on why the call is not counted (`torch.cond is ` and `HIGHER_ORDER`), if `error`
    shows that torch cannot run a higher-order operator (which takes functions) while operations are
    recorded: by its traceback and torch's message or compiler; "" for any other error."""
    frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    names = [code.co_name for code in frames]
    if "flex_attention" in names and any(sign in text_of(error) for sign in FLEX_ATTENTION):
        return f"flex_attention is {HIGHER_ORDER}"
    own = [code.co_name for code in frames if "_higher_order_ops" in code.co_filename]
    compiled = type(error).__module__ == "torch._dynamo.exc"  # torch compiles it before it runs it
    return f"torch.{own[0]} is {HIGHER_ORDER}" if own and compiled else ""


def dispatch_themselves(types: Iterable[type]) -> bool:
    """Whether one of these types of tensors overrides `__torch_dispatch__`."""
    from torch import Tensor

    return any(t.__torch_dispatch__ is not Tensor.__torch_dispatch__ for t in types)  # type: ignore[attr-defined]  # of tensors


def is_view(func: Any) -> bool:
    """Whether an operation of torch returns a view: by its schema, or as `_unsafe_view`, whose
    schema hides the view from autograd. False for a custom operator, whose schema may be wrong."""
    of_torch: bool = func.namespace == "aten"
    return of_torch and (bool(func.is_view) or func._schema.name == "aten::_unsafe_view")


def written(func: Any, call: Call) -> list[Tensor]:
    """The tensor arguments that a call writes into."""
    arguments = [a for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    return list(tensors_in([call.arguments[argument.name] for argument in arguments]))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in a nest of lists and tuples, in order."""
    if is_tensor(value):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def distinct_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's entries: one of an expanded axis (stride 0), all of each window."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size if stride or not size else 1 for size, stride in axes) * tensor.element_size()


def bytes_read(call: Call) -> int:
    """Bytes of all tensor arguments, each in full (of x * x, twice those of x), except tensors that
    are overwritten unread: `out`, and the target of a copy, or of a fill, random or not."""
    skipped = call.arguments.get("self" if call.name in OVERWRITTEN_UNREAD else "out")
    read = [t for t in call.inputs if t is not skipped]
    return sum(distinct_bytes(t) for t in read)


def bytes_written(call: Call) -> int:
    """Bytes of every tensor in the result."""
    return sum(distinct_bytes(t) for t in tensors_in(call.result))


def is_arithmetic(dtype: torch.dtype) -> bool:
    """Whether numbers of this type are the mixer's values (floating or complex), rather than
    indices or masks (integers, booleans)."""
    return dtype.is_floating_point or dtype.is_complex
