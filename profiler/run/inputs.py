"""With which inputs may a call be timed, and how do calls take turns with several of them?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from profiler.meters.caches import CacheError, cache_bytes

SETS = 2
"""Sets of inputs that take turns, where they fit into the cache."""


@dataclass(frozen=True)
class Built:
    """A module, and what it is called with: tensors by name, in order.

    Of a tensor of real numbers the shape alone is meant: its values are drawn. Every other one is
    given as it is.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]


class ConstantInput(ValueError):
    """An input whose entries are all equal."""


def refuse_constant(inputs: Iterable[Any]) -> None:
    """ConstantInput where a floating-point tensor has equal entries throughout.

    Zeros, or any constant, switch fewer transistors: a GPU then draws less power, keeps higher
    clocks, and looks faster and thriftier than on real data. Tensors of one entry, of integers and
    of booleans are accepted.
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

    Two sets or more, of the same shapes and types, so that no call computes with the values of the
    one before it.

    Raises:
        ValueError: there are fewer than two sets, or they differ in shape or type.
    """
    if len(sets) < 2:
        raise ValueError(f"expected at least two sets of inputs to rotate, got {len(sets)}")
    if len({tuple(map(input_layout, arguments)) for arguments in sets}) > 1:
        raise ValueError("expected sets of inputs of the same shapes and types, got different ones")
    ring = cycle([tuple(arguments) for arguments in sets])
    return lambda: fn(*next(ring))


def input_layout(value: Any) -> Any:
    """What the sets of inputs must have in common: shape, stride, dtype and device of a tensor."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return type(value)


def why_one_set(
    device: torch.device, inputs: Iterable[Tensor], beside: Iterable[Tensor] = ()
) -> str:
    """Why calls get the same inputs every time; "" where `SETS` sets of them may take turns.

    They may where all the sets fit into the device's last-level cache together with what every call
    reads `beside` them (weights, buffers, a state): a hot call then finds the same in the cache as
    with one set. Where they do not fit, turns would make hot calls cold.
    """
    try:
        holds, source = cache_bytes(device)
    except CacheError as error:
        return f"whether several would stay in the cache is not known: {error}"
    needed = SETS * size_of(inputs) + size_of(beside)
    if needed <= holds:
        return ""
    return (
        f"{SETS} sets and what every call reads take {needed:,} B, and the cache holds {holds:,} B "
        f"({source}): in turns they would push each other out"
    )


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all entries."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
