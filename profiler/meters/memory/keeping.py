"""What do the bytes consist of that a module keeps for its backward pass, or holds at its worst
moment: values, copies of values or of parameters, masks, parts of storages that nobody asked for?

A value is what an operation computed, or an input. A storage that an operation only moved entries
into is a copy of what it was moved from; where the original is not held, the copy stands for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from profiler.counting.saved_tensors import Key, saving
from profiler.meters.memory.origins import (
    CONSTANT,
    MASK,
    PARAMETER,
    Origin,
    Origins,
    held_while,
    most_held,
)
from profiler.meters.memory.unread import needed

CLASSES: Mapping[str, str] = {
    "values": "what an operation computed, and inputs, each once",
    "masks": "masks and positions, which are no numbers of the equations",
    "copies of parameters": "parameters moved into another order or shape, or padded",
    "copies": "entries held once more in another order or shape, and the zeros around them",
    "whole storages": "the rest of a storage of which only a part was saved",
    "unread": "saved, and needed by no gradient: only the shape is read, or zeros alone meet it",
    "branches": "what a condition chose entries from, beside what it chose",
    "constants": "zeros and other numbers that nothing was computed for",
    "beside results": "what an operation gives beside its result, and nothing reads",
}
"""Class of bytes -> what it means."""


@dataclass(frozen=True)
class Consists:
    """Bytes by class."""

    values: int = 0
    masks: int = 0
    of_parameters: int = 0
    copies: int = 0
    whole: int = 0
    unread: int = 0
    branches: int = 0
    constants: int = 0
    beside: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_class().values())

    def by_class(self) -> dict[str, int]:
        """Class -> bytes."""
        numbers = (getattr(self, entry.name) for entry in fields(self))
        return dict(zip(CLASSES, numbers, strict=True))


def told_apart(
    pieces: Iterable[tuple[int, Origin]],
    origins: Origins,
    *,
    whole: int = 0,
    unread: int = 0,
    apart: Container[int] = (),
    finished: bool = False,
) -> Consists:
    """Bytes that are held, by class, each with its origin.

    Args:
        whole, unread: the bytes of these classes.
        apart: roots of values that are held besides, so that all their bytes here are copies.
        finished: whether all that will be read has been.
    """
    found = {PARAMETER: 0, MASK: 0, CONSTANT: 0}
    sizes: dict[int, int] = {}
    of: dict[int, Origin] = {}
    for size, origin in pieces:
        if origin.kind in found:
            found[origin.kind] += size
        else:
            sizes[origin.root] = sizes.get(origin.root, 0) + size
            of[origin.root] = origin
    chosen = {root for origin in of.values() for root in origin.chosen} - origins.computed_from
    joined = {root for origin in of.values() for root in origin.joined}
    values = copies = branches = beside = 0
    for root, size in sizes.items():
        if root in chosen:
            branches += size
            continue
        if finished and of[root].beside and root not in origins.read_from:
            beside += size
            continue
        value = 0 if root in joined or root in apart else min(of[root].own, size)
        if of[root].begins in sizes:
            value -= min(of[root].moved, value)
        values, copies = values + value, copies + size - value
    return Consists(
        values, found[MASK], found[PARAMETER], copies, whole, unread, branches, found[CONSTANT],
        beside,
    )  # fmt: skip


def consists(
    origins: Origins, saved: Mapping[Key, list[Tensor]], read: Mapping[Key, Tensor]
) -> Consists:
    """What saved tensors consist of; parameters themselves are left out.

    Args:
        read: for each storage, which of its elements gradients need.
    """
    pieces: list[tuple[int, Origin]] = []
    whole = unread = 0
    for place, tensors in saved.items():
        if place in origins.parameter_keys:
            continue
        size, named = tensors[0].untyped_storage().nbytes(), entry_bytes(tensors)
        sought = min(named, int(read[place].sum()) * tensors[0].element_size())
        whole, unread = whole + size - named, unread + named - sought
        pieces.append((sought, origins.of(tensors[0])))
    return told_apart(pieces, origins, whole=whole, unread=unread)


def entry_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the entries that some views of one storage name; views of the same entries in
    another order or shape are one."""
    views = {extent_of(t): t for t in tensors}
    named = sum(t.element_size() * number_of(axes) for (_, axes, _), t in views.items())
    return min(next(iter(views.values())).untyped_storage().nbytes(), named)


Axes = tuple[tuple[int, int], ...]
"""Stride and extent of the axes that tell entries apart, the smallest stride first."""


def extent_of(tensor: Tensor) -> tuple[int, Axes, torch.dtype]:
    """Which entries of its storage a view names, whatever their order."""
    axes: list[tuple[int, int]] = []
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, extent in sorted((s, e) for s, e in pairs if s and e > 1):
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0], axes[-1][1] * extent)
        else:
            axes.append((stride, extent))
    return int(tensor.storage_offset()), tuple(axes), tensor.dtype


def number_of(axes: Axes) -> int:
    """How many entries lie along some axes."""
    number = 1
    for _, extent in axes:
        number *= extent
    return number


def kept_by(forward: Any, parameters: Iterable[Tensor], inputs: Iterable[Tensor]) -> Consists:
    """What `forward()`, a call whose result wants gradients, keeps for its backward pass: that of
    the parameters and inputs that want a gradient."""
    given = [*parameters], [*inputs]
    origins = Origins(*given)
    with saving() as saved, origins:
        result = forward()
    storages = saved.storages()
    read = needed(result, [t for tensors in given for t in tensors], storages)
    return consists(origins, storages, read)


LEFT_OUT: Mapping[str, str] = {
    "masks": "masks",
    "copies of parameters": "of_parameters",
    "constants": "constants",
    "branches": "branches",
    "beside results": "beside",
    "copies": "copies",
}
"""Class that the worst moment is counted again without -> its field, one after another."""


@dataclass(frozen=True)
class Worst:
    """The most bytes that tensors hold at once in a call and did not before, `total`, and the same
    counted again: sums of gradients apart from their terms, then one class of bytes after another
    left out. `causes` are the differences."""

    total: int
    causes: Mapping[str, int]

    @property
    def values(self) -> int:
        """What is left: the most that values hold at once, each once and until it is last read."""
        return self.total - sum(self.causes.values())


SUMMED, HELD_ON = "summed in place", "held on"


def held_at_most(call: Any, parameters: Iterable[Tensor], inputs: Iterable[Tensor]) -> Worst:
    """What is alive at the worst moment of a call, and was not before."""
    origins = Origins(list(parameters), list(inputs))
    with origins.accumulation.watching(), origins:
        result = call()
    pieces = list(origins.pieces)
    total, apart = (most_held(pieces, in_place=in_place) for in_place in (True, False))
    moments = [*held_while(pieces)]
    del result
    best = [0] * (len(LEFT_OUT) + 1)
    for alive in moments:
        left = sum(piece.size for piece in alive)
        if all(left <= known for known in best):
            continue
        found = told_apart(
            [(p.size, p.origin) for p in alive], origins, apart=origins.before, finished=True
        )
        best[0] = max(best[0], left)
        for k, name in enumerate(LEFT_OUT.values()):
            left -= getattr(found, name)
            best[k + 1] = max(best[k + 1], left)
    differences = (before - after for before, after in pairwise((total, apart, *best)))
    return Worst(total, dict(zip((SUMMED, HELD_ON, *LEFT_OUT), differences, strict=True)))
