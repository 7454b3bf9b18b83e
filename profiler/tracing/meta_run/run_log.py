"""What did a run do, in order, and with which whole numbers: shapes, strides, arguments?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

from profiler.tracing.meta_run.operation import KnownCall, TensorLayout


class Unlike(Exception):
    """Runs differ in more than their whole numbers, or these numbers do not extrapolate."""


@dataclass(frozen=True)
class RunLog:
    """One run, in order.

    `calls` are, for every call that is not a move, its phase and what is known of it. `held` are
    the layouts of the tensors that first showed each storage; storage k is alive from moment
    `born[k]` to `ended[k]`; `saved` are the storages saved for the backward pass. `parameters` are
    layouts too.
    """

    names: Sequence[str]
    calls: Sequence[tuple[str, KnownCall]]
    held: Sequence[TensorLayout]
    born: Sequence[int]
    ended: Sequence[int]
    saved: frozenset[int]
    parameters: Sequence[TensorLayout]

    def like(self, other: RunLog) -> bool:
        """Whether another run dispatched the same operations in the same order, and its storages
        were alive between the same moments."""
        return (
            self.names == other.names
            and len(self.calls) == len(other.calls)
            and len(self.parameters) == len(other.parameters)
            and self.born == other.born
            and self.ended == other.ended
            and self.saved == other.saved
        )

    def alive(self, sizes: Sequence[int]) -> list[int]:
        """The bytes alive at every moment, if the storages had these sizes."""
        change = [0] * (len(self.names) + 1)
        for size, born, ended in zip(sizes, self.born, self.ended, strict=True):
            change[born] += size
            change[ended] -= size
        return list(accumulate(change[:-1]))


def whole_numbers(value: Any) -> Iterator[int]:
    """The whole numbers in a nest of arguments, in order. A tensor gives its shape, and each stride
    divided by the number of entries of the axes inside it: 1 where there are no gaps.

    Raises:
        Unlike: a stride is no multiple of that number.
    """
    if isinstance(value, TensorLayout):
        yield from value.shape
        for axis, stride in enumerate(value.strides):
            unit = prod(value.shape[k] for k in inner_axes(value, axis))
            if stride % max(unit, 1):
                raise Unlike
            yield stride // max(unit, 1)
    elif type(value) is int:
        yield value
    elif isinstance(value, Mapping):
        yield from whole_numbers(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from whole_numbers(item)


def inner_axes(layout: TensorLayout, axis: int) -> Iterator[int]:
    """The axes whose entries lie between two neighbours along `axis`."""
    extents = list(zip(layout.strides, layout.shape, range(len(layout.shape)), strict=True))
    for stride, extent, other in extents:
        if stride and (stride, extent, -other) < (*extents[axis][:2], -axis):
            yield other


def renumbered(value: Any, numbers: Iterator[int]) -> Any:
    """The same nest with `numbers` in place of its whole numbers."""
    if isinstance(value, TensorLayout):
        shape = tuple(next(numbers) for _ in value.shape)
        strides = (
            next(numbers) * prod(shape[k] for k in inner_axes(value, axis))
            for axis in range(len(shape))
        )
        return TensorLayout(shape, tuple(strides), value.dtype)
    if type(value) is int:
        return next(numbers)
    if isinstance(value, Mapping):
        return {name: renumbered(item, numbers) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([renumbered(item, numbers) for item in value])
    return value


def alike_but_for_numbers(one: Any, other: Any) -> bool:
    """Whether two nests differ in numbers alone. Floats may differ too: they may follow from sizes,
    like the root of a width."""
    if type(one) is not type(other):
        return False
    if isinstance(one, TensorLayout):
        return len(one.shape) == len(other.shape) and one.dtype == other.dtype
    if isinstance(one, Mapping):
        return list(one) == list(other) and alike_but_for_numbers(
            list(one.values()), list(other.values())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike_but_for_numbers, one, other))
    return type(one) in (int, float) or bool(one == other)
