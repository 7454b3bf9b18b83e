"""The inputs of a timed call: random values, and several sets that calls take in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from profiler.meters.caches import CacheError, cache_bytes

SETS = 2
"""The number of sets of inputs that take turns, if all fit into the cache."""


@dataclass(frozen=True)
class Built:
    """A module and its inputs: tensors by name, in the order of the call.

    Of a floating-point tensor only the shape is used, and values are drawn; others are used as
    given.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]


class ConstantInput(ValueError):
    """An input whose entries are all equal."""


def refuse_constant(inputs: Iterable[Any]) -> None:
    """Raise ConstantInput if all entries of a floating-point tensor among `inputs` are equal.

    Constant data switches fewer transistors: a GPU then draws less power, keeps higher clocks, and
    looks faster and more efficient than on real data. Tensors of one entry, of integers, of
    booleans, without values (meta) or with NaN are accepted.
    """
    for number, value in enumerate(inputs, start=1):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() < 2:
            continue
        if value.is_meta:  # without values
            continue
        first = value.flatten()[0]
        if bool((value == first).all()):
            raise ConstantInput(
                f"input {number}, {tuple(value.shape)}, is {float(first):g} throughout: expected "
                f"random values of realistic scale, because constant data draws less power and "
                f"runs faster than real data; fill it with torch.randn"
            )


def rotated(fn: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Callable[[], Any]:
    """A function without arguments that calls `fn` with the next set of arguments, cyclically.

    The sets hold inputs of equal layout, so that calls differ at most in values. Raises ValueError:
    there are fewer than two sets, or their `input_layout` differs."""
    if len(sets) < 2:
        raise ValueError(f"expected at least two sets of inputs to rotate, got {len(sets)}")
    if len({tuple(map(input_layout, arguments)) for arguments in sets}) > 1:
        raise ValueError(
            "the sets of inputs have different shapes or types: give each set those of the first"
        )
    ring = cycle([tuple(arguments) for arguments in sets])
    return lambda: fn(*next(ring))


def input_layout(value: Any) -> Any:
    """A tensor's shape, stride, dtype and device, or another input's type: equal in all sets."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return type(value)


def why_one_set(
    device: torch.device, inputs: Iterable[Tensor], beside: Iterable[Tensor] = ()
) -> str:
    """A sentence why all calls get the same inputs; "" if `SETS` sets of inputs may take turns.

    Sets take turns if all of them fit into the device's last-level cache together, along with the
    tensors that every call reads (`beside`: weights, buffers, a state): a hot call (one right after
    another, with a warm cache) then finds as much in the cache as with one set. Otherwise, or if
    the size of the cache is unknown, turns might make hot calls cold.
    """
    try:
        holds, source = cache_bytes(device)
    except CacheError as error:
        return f"the size of the cache is unknown: {error}"
    needed = SETS * size_of(inputs) + size_of(beside)
    if needed <= holds:
        return ""
    return (
        f"{SETS} sets of inputs and the weights take {needed:,} B, more than the {holds:,} B of "
        f"the cache ({source}): they would evict one another"
    )


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all entries."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
