"""Which bytes does a forward pass keep for its backward pass, seen by autograd's hooks or not?

torch's hooks show every tensor that autograd saves, and only these: what a custom Function keeps as
an attribute of its context is alive too, and not seen by them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from profiler.counting.saved_tensors import StorageKey, collecting_saved, tensor_key, tensor_keys
from profiler.meters.memory.allocator import allocations, requested_now, require_cpu_accounting
from profiler.meters.torch_profile import torch_profiled


@dataclass(frozen=True)
class KeptBytes:
    """Bytes of storages held whole, and of the entries in them that were saved.

    A saved slice holds all of its storage: `stored` is then more than `logical`.
    """

    stored: int = 0
    logical: int = 0
    storages: int = 0


@dataclass(frozen=True)
class SavedBytes:
    """What a forward pass keeps for its backward pass, every storage once, by class.

    `unseen` are bytes that were allocated during the forward pass, are alive at its end, and belong
    neither to what the hooks showed nor to the result: attributes of a context, caches of a module.
    None with a `reason` where they cannot be counted.
    """

    activations: KeptBytes
    parameters: KeptBytes
    inputs: KeptBytes
    unseen: int | None
    reason: str = ""


OWNED = ("parameters", "inputs")


def saved_bytes(
    call: Callable[[], Any],
    *,
    parameters: Iterable[Tensor] = (),
    inputs: Iterable[Tensor] = (),
) -> SavedBytes:
    """Bytes that `call()`, a forward pass whose result requires gradients, keeps for its backward
    pass.

    Args:
        call: returns the result; it runs once unmeasured, then once measured.
        parameters: parameters and buffers, which stay in memory in any case.
        inputs: what is given to the call.

    Raises:
        ValueError: no tensor of the result requires a gradient, so that nothing would be kept.
    """
    owned = {"parameters": tensor_keys(parameters), "inputs": tensor_keys(inputs)}
    require_graph(call())
    gc.collect()
    devices = {device for found in owned.values() for device, _ in found}
    alive = counted_on_gpu if any(d.startswith("cuda") for d in devices) else counted_on_cpu
    with collecting_saved() as saved:
        result, allocated = alive(call)
    by_class: dict[str, dict[StorageKey, list[Tensor]]] = {
        name: {} for name in ("activations", *OWNED)
    }
    for place, tensors in saved.storages().items():
        name = next((name for name in OWNED if place in owned[name]), "activations")
        by_class[name][place] = tensors
    unseen, reason = unseen_bytes(allocated, by_class["activations"], result, owned)
    kept = {name: kept_in(found) for name, found in by_class.items()}
    return SavedBytes(**kept, unseen=unseen, reason=reason)


def require_graph(result: Any) -> None:
    """ValueError where no backward pass can follow."""
    if not any(isinstance(t, Tensor) and t.requires_grad for t in tree_leaves(result)):
        raise ValueError(
            "expected a call whose result wants a gradient, got one without: leave out "
            "torch.no_grad, and let a parameter or an input require a gradient"
        )


def counted_on_cpu(call: Callable[[], Any]) -> tuple[Any, int]:
    """The call's result, and the bytes that the call allocated and that are still alive."""
    require_cpu_accounting()
    gc.collect()
    with torch_profiled(memory=True) as trace:
        result = call()
    return result, sum(allocations(trace))


def counted_on_gpu(call: Callable[[], Any]) -> tuple[Any, int]:
    """The same by torch's allocator on the current CUDA device, in requested bytes."""
    device = torch.device("cuda", torch.cuda.current_device())
    before = requested_now(device)
    result = call()
    return result, requested_now(device) - before


def kept_in(storages: dict[StorageKey, list[Tensor]]) -> KeptBytes:
    """Bytes of storages, each once and whole, and of their entries that were saved."""
    stored = logical = 0
    for tensors in storages.values():
        size = tensors[0].untyped_storage().nbytes()
        stored += size
        logical += min(size, sum(view_bytes(t) for t in distinct(tensors)))
    return KeptBytes(stored, logical, len(storages))


def distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors without repeated views."""
    views = {(t.storage_offset(), t.shape, t.stride(), t.dtype): t for t in tensors}
    return list(views.values())


def view_bytes(tensor: Tensor) -> int:
    """Bytes of a view's entries; an expanded axis counts once."""
    entries = 1
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        entries *= extent if stride else min(extent, 1)
    return entries * tensor.element_size()


def unseen_bytes(
    allocated: int,
    activations: dict[StorageKey, list[Tensor]],
    result: Any,
    owned: dict[str, set[StorageKey]],
) -> tuple[int | None, str]:
    """The bytes alive besides the result and the activations that the hooks showed; or None and why
    these cannot be told."""
    shown = {place: tensors[0].untyped_storage().nbytes() for place, tensors in activations.items()}
    before = set().union(*owned.values())
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and tensor_key(leaf) not in before:
            shown[tensor_key(leaf)] = leaf.untyped_storage().nbytes()
    unseen = allocated - sum(shown.values())
    if unseen >= 0:
        return unseen, ""
    return None, (
        f"{-unseen} bytes that were saved or returned were there before the call and are neither "
        "among its parameters nor among its inputs: name them there"
    )
