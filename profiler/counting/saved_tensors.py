"""Which tensors does autograd save while a call runs, each storage once?

Their bytes are the measured activations of a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor

StorageKey = tuple[str, int]
"""Device and address of a storage's bytes; on the meta device, where there are no bytes, the
address of the storage object (negated)."""


def storage_key(storage: Any) -> StorageKey:
    """A key that is equal for storages exactly if they share their bytes; valid while the bytes are
    allocated."""
    return str(storage.device), storage.data_ptr() or -storage._cdata


def tensor_key(tensor: Tensor) -> StorageKey:
    """The key of the tensor's storage."""
    return storage_key(tensor.untyped_storage())


class PackedTensor:
    """A saved tensor, detached: with its `grad_fn` the tensor would keep its own graph alive."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


class SavedTensors:
    """The tensors that autograd has saved since this object was made, and still holds."""

    packs: type[PackedTensor] = PackedTensor

    def __init__(self) -> None:
        self.packed: list[ref[PackedTensor]] = []

    def pack(self, tensor: Tensor) -> PackedTensor:
        """Hold a tensor as autograd would: until its graph is gone."""
        made = self.packs(tensor)
        self.packed.append(ref(made))
        return made

    @staticmethod
    def unpack(packed: PackedTensor) -> Tensor:
        """The tensor that was packed."""
        return packed.tensor

    def tensors(self) -> Iterator[Tensor]:
        """Yield the saved tensors that autograd still holds."""
        for reference in self.packed:
            if (packed := reference()) is not None:
                yield packed.tensor

    def storages(self) -> dict[StorageKey, list[Tensor]]:
        """The saved tensors that autograd still holds, by storage."""
        found: dict[StorageKey, list[Tensor]] = {}
        for tensor in self.tensors():
            found.setdefault(tensor_key(tensor), []).append(tensor)
        return found


@contextmanager
def collecting_saved() -> Iterator[SavedTensors]:
    """Collect what autograd saves while the context is open."""
    saved = SavedTensors()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        yield saved


def tensor_keys(tensors: Iterable[Tensor]) -> set[StorageKey]:
    """The keys of the storages of all these tensors."""
    return {tensor_key(tensor) for tensor in tensors}
