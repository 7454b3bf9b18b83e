"""Which tensors does autograd save while a call runs, each storage once?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor

Key = tuple[str, int]
"""Device and address of a storage's bytes; the storage's own where it has no bytes (meta)."""


def key_of(storage: Any) -> Key:
    """Equal for storages that share their bytes, while these are alive."""
    return str(storage.device), storage.data_ptr() or -storage._cdata


def key(tensor: Tensor) -> Key:
    """That of the tensor's storage."""
    return key_of(tensor.untyped_storage())


class Packed:
    """A saved tensor, held without its place in the graph, which would hold itself then."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


class Saved:
    """What autograd has saved since, and still holds."""

    packs: type[Packed] = Packed

    def __init__(self) -> None:
        self.packed: list[ref[Packed]] = []

    def pack(self, tensor: Tensor) -> Packed:
        """Hold a tensor as autograd would: until its graph is gone."""
        made = self.packs(tensor)
        self.packed.append(ref(made))
        return made

    @staticmethod
    def unpack(packed: Packed) -> Tensor:
        """The tensor."""
        return packed.tensor

    def tensors(self) -> Iterator[Tensor]:
        """Those that are still held."""
        for reference in self.packed:
            if (packed := reference()) is not None:
                yield packed.tensor

    def storages(self) -> dict[Key, list[Tensor]]:
        """They again, by the storage that they lie in."""
        found: dict[Key, list[Tensor]] = {}
        for tensor in self.tensors():
            found.setdefault(key(tensor), []).append(tensor)
        return found


@contextmanager
def saving() -> Iterator[Saved]:
    """What autograd saves inside."""
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        yield saved


def keys(tensors: Iterable[Tensor]) -> set[Key]:
    """Of all their storages."""
    return {key(tensor) for tensor in tensors}
