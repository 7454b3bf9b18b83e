"""What do the bytes consist of that a module keeps for backward, or holds at its worst moment?

Values, copies of values or of parameters, masks, or parts of storages that no gradient needs. A
value is what an operation computed, or an input. A storage into which an operation only moved
entries is a copy of their source; where the source is no longer held, the copy counts as the value.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from profiler.counting.saved_tensors import StorageKey, collecting_saved
from profiler.meters.memory.origins import (
    CONSTANT,
    MASK,
    PARAMETER,
    EntryOrigin,
    OriginTracker,
    held_while,
    most_held,
)
from profiler.meters.memory.unread import needed_elements

CLASSES: Mapping[str, str] = {
    "values": "what an operation computed, and inputs, each once",
    "masks": "masks and positions: integers and booleans, not arrays of the equations",
    "copies of parameters": "parameters moved into another order or shape, or padded",
    "copies": "entries held once more in another order or shape, and the zeros around them",
    "whole storages": "the rest of a storage of which only a part was saved",
    "unread": "saved, and needed by no gradient: only its shape is used, or it multiplies zeros",
    "branches": "both operands of a where(), held besides its result",
    "constants": "zeros and other numbers that were filled in, not computed",
    "beside results": "further outputs of an operation, which nothing reads",
}
"""Class of bytes -> what it means."""


@dataclass(frozen=True)
class ByteClasses:
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
        """The bytes of all classes."""
        return sum(self.by_class().values())

    def by_class(self) -> dict[str, int]:
        """Class -> bytes."""
        numbers = (getattr(self, entry.name) for entry in fields(self))
        return dict(zip(CLASSES, numbers, strict=True))


def classified(
    pieces: Iterable[tuple[int, EntryOrigin]],
    origins: OriginTracker,
    *,
    whole: int = 0,
    unread: int = 0,
    apart: Container[int] = (),
    finished: bool = False,
) -> ByteClasses:
    """Classify bytes that are held, each with its origin.

    Args:
        whole, unread: the bytes of these classes, found before.
        apart: roots of values that are held elsewhere too, so that all their bytes here are copies.
        finished: whether every operation that reads these bytes has run.
    """
    found = {PARAMETER: 0, MASK: 0, CONSTANT: 0}
    sizes: dict[int, int] = {}
    of: dict[int, EntryOrigin] = {}
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
    return ByteClasses(
        values, found[MASK], found[PARAMETER], copies, whole, unread, branches, found[CONSTANT],
        beside,
    )  # fmt: skip


def classified_saved(
    origins: OriginTracker,
    saved: Mapping[StorageKey, list[Tensor]],
    read: Mapping[StorageKey, Tensor],
) -> ByteClasses:
    """Classify what saved tensors hold; parameters themselves are left out.

    Args:
        read: for each storage, which of its elements gradients need.
    """
    pieces: list[tuple[int, EntryOrigin]] = []
    whole = unread = 0
    for place, tensors in saved.items():
        if place in origins.parameter_keys:
            continue
        size, named = tensors[0].untyped_storage().nbytes(), named_entry_bytes(tensors)
        sought = min(named, int(read[place].sum()) * tensors[0].element_size())
        whole, unread = whole + size - named, unread + named - sought
        pieces.append((sought, origins.of(tensors[0])))
    return classified(pieces, origins, whole=whole, unread=unread)


def named_entry_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the entries in some views of one storage; views of the same entries in another order
    or shape count once."""
    views = {extent_of(t): t for t in tensors}
    named = sum(t.element_size() * entries_along(axes) for (_, axes, _), t in views.items())
    return min(next(iter(views.values())).untyped_storage().nbytes(), named)


Axes = tuple[tuple[int, int], ...]
"""Stride and extent of the axes of a view, merged where contiguous, smallest stride first."""


def extent_of(tensor: Tensor) -> tuple[int, Axes, torch.dtype]:
    """The entries of its storage that a view holds, whatever their order: offset, axes, dtype."""
    axes: list[tuple[int, int]] = []
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, extent in sorted((s, e) for s, e in pairs if s and e > 1):
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0], axes[-1][1] * extent)
        else:
            axes.append((stride, extent))
    return int(tensor.storage_offset()), tuple(axes), tensor.dtype


def entries_along(axes: Axes) -> int:
    """The number of entries along some axes."""
    number = 1
    for _, extent in axes:
        number *= extent
    return number


def kept_by(forward: Any, parameters: Iterable[Tensor], inputs: Iterable[Tensor]) -> ByteClasses:
    """Classify what `forward()`, a call whose result requires gradients, saves for the gradients of
    the parameters and inputs that require one."""
    given = [*parameters], [*inputs]
    origins = OriginTracker(*given)
    with collecting_saved() as saved, origins:
        result = forward()
    storages = saved.storages()
    read = needed_elements(result, [t for tensors in given for t in tensors], storages)
    return classified_saved(origins, storages, read)


LEFT_OUT: Mapping[str, str] = {
    "masks": "masks",
    "copies of parameters": "of_parameters",
    "constants": "constants",
    "branches": "branches",
    "beside results": "beside",
    "copies": "copies",
}
"""Class -> its field of `ByteClasses`, in the order in which classes are left out one after
another."""


@dataclass(frozen=True)
class WorstMoment:
    """The most bytes that tensors made in a call hold at once, `total`, and why so many.

    The maximum over moments is taken again with sums of gradients not written in place, then with
    every storage released after its last reader, then with one class of bytes after another left
    out; `causes` are the differences from step to step.
    """

    total: int
    causes: Mapping[str, int]

    @property
    def values(self) -> int:
        """What is left: the most that values hold at once, each once and until its last reader."""
        return self.total - sum(self.causes.values())


SUMMED, HELD_ON = "summed in place", "held on"


def held_at_most(call: Any, parameters: Iterable[Tensor], inputs: Iterable[Tensor]) -> WorstMoment:
    """What is alive at the worst moment of a call, and was not before the call."""
    origins = OriginTracker(list(parameters), list(inputs))
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
        found = classified(
            [(p.size, p.origin) for p in alive], origins, apart=origins.before, finished=True
        )
        best[0] = max(best[0], left)
        for k, name in enumerate(LEFT_OUT.values()):
            left -= getattr(found, name)
            best[k + 1] = max(best[k + 1], left)
    differences = (before - after for before, after in pairwise((total, apart, *best)))
    return WorstMoment(total, dict(zip((SUMMED, HELD_ON, *LEFT_OUT), differences, strict=True)))
