"""Which tensors does autograd save while a call runs, each storage once?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor

Key = tuple[str, int]
"""Device and address of a storage's bytes; on the meta device, where there are no bytes, the
address of the storage object (negated)."""


def key_of(storage: Any) -> Key:
    """A key that storages share exactly while they share their bytes; valid while these are
    allocated."""
    return str(storage.device), storage.data_ptr() or -storage._cdata


def key(tensor: Tensor) -> Key:
    """The key of the tensor's storage."""
    return key_of(tensor.untyped_storage())


class Packed:
    """A saved tensor, detached: with its `grad_fn` the tensor would keep its own graph alive."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


class Saved:
    """The tensors that autograd has saved since this object was made, and still holds."""

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
        """The tensor that was packed."""
        return packed.tensor

    def tensors(self) -> Iterator[Tensor]:
        """The saved tensors that autograd still holds."""
        for reference in self.packed:
            if (packed := reference()) is not None:
                yield packed.tensor

    def storages(self) -> dict[Key, list[Tensor]]:
        """The saved tensors that autograd still holds, by storage."""
        found: dict[Key, list[Tensor]] = {}
        for tensor in self.tensors():
            found.setdefault(key(tensor), []).append(tensor)
        return found


@contextmanager
def saving() -> Iterator[Saved]:
    """Collect what autograd saves while the context is open."""
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        yield saved


def keys(tensors: Iterable[Tensor]) -> set[Key]:
    """The keys of the storages of all these tensors."""
    return {key(tensor) for tensor in tensors}
