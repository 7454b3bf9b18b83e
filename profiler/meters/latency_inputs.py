"""With which inputs may a call be timed, and how do calls take turns with several of them?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor


class ConstantInput(ValueError):
    """An input whose entries are all equal."""


def refuse_constant(inputs: Iterable[Any]) -> None:
    """ConstantInput where a tensor of floating-point numbers has equal entries throughout.

    Zeros, or any constant, switch fewer transistors: a GPU then draws less power, keeps higher
    clocks, and looks faster and thriftier than it is on real data. Tensors of one entry, of
    integers and of truth values are let through.
    """
    for number, value in enumerate(inputs, start=1):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() < 2:
            continue
        first = value.flatten()[0]
        if bool((value == first).all()):
            raise ConstantInput(
                f"input {number}, {tuple(value.shape)}, is {float(first):g} throughout: expected "
                f"random values of realistic scale, because constant data draws less power and "
                f"runs faster than real data; fill it with torch.randn"
            )


def rotated(fn: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Callable[[], Any]:
    """A call of `fn` that takes the next set of arguments each time, in a ring.

    Two sets or more, of the same shapes and types, so that no call finds what the one before it
    has computed with or left in a cache.

    Raises:
        ConstantInput: an input has equal entries throughout.
        ValueError: there are fewer than two sets, or they differ in shape or type.
    """
    if len(sets) < 2:
        raise ValueError(f"expected at least two sets of inputs to rotate, got {len(sets)}")
    for arguments in sets:
        refuse_constant(arguments)
    if len({tuple(map(layout, arguments)) for arguments in sets}) > 1:
        raise ValueError("expected sets of inputs of the same shapes and types, got different ones")
    ring = cycle([tuple(arguments) for arguments in sets])
    return lambda: fn(*next(ring))


def layout(value: Any) -> Any:
    """What two sets must have in common."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return type(value)


def another(tensor: Tensor, seed: int) -> Tensor:
    """Normal numbers of the mean and the deviation of a tensor, in its shape and type."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    values = drawn * float(tensor.float().std()) + float(tensor.float().mean())
    return values.to(device=tensor.device, dtype=tensor.dtype)
