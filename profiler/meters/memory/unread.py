"""Which of the entries that a forward pass saved does its backward pass need?

Some saved tensors are read by no operation: only their shape is used. Other entries meet only the
zeros with which torch fills up gradients of parts: they change no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiler.counting.backward_rules import DERIVATIVES
from profiler.counting.call import tensors_in
from profiler.counting.saved_tensors import StorageKey, tensor_key
from profiler.counting.zero_gradients import ZeroGradientCounter, mask_of
from profiler.meters.memory.origins import WRITTEN_DOWN

ENTRY_BY_ENTRY = ("mul", "div", *DERIVATIVES)
"""Elementwise operations: each entry of an operand meets only the same entries of the others."""


class NeededElements(TorchDispatchMode):
    """Marks the entries of saved storages that are combined with something that stands for a
    gradient.

    `of` maps a storage to one boolean for each of its elements.
    """

    def __init__(self, saved: Mapping[StorageKey, list[Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.held = [t for tensors in saved.values() for t in tensors]  # their addresses stay taken
        self.of: dict[StorageKey, Tensor] = {}
        for place, (tensor, *_) in saved.items():
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.of[place] = torch.zeros(elements, dtype=torch.bool, device=tensor.device)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if not (func.is_view or name in WRITTEN_DOWN):
            self.read(name.removeprefix("aten::").removesuffix("_"), [*args, *kwargs.values()])
        return func(*args, **kwargs)

    def read(self, name: str, arguments: list[Any]) -> None:
        """Mark the entries that an operation reads."""
        given = list(tensors_in(arguments))
        for tensor in given:
            found = self.of.get(tensor_key(tensor))
            if found is None:
                continue
            others = [t for t in given if t is not tensor] if name in ENTRY_BY_ENTRY else []
            view = found.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            set_where(view, meets(tensor, others))


def set_where(view: Tensor, mask: Tensor) -> None:
    """Set a view's elements to True where the mask is True."""
    for axis, stride in enumerate(view.stride()):
        if not stride and view.shape[axis] > 1:  # an expanded axis repeats its elements
            view, mask = view.narrow(axis, 0, 1), mask.any(axis, keepdim=True)
    view.logical_or_(mask)


def meets(tensor: Tensor, others: Iterable[Tensor]) -> Tensor:
    """Which entries of an operand meet an entry that stands for a gradient in every other
    operand."""
    mask = torch.ones_like(tensor, dtype=torch.bool)
    for other in others:
        mask = mask & mask_of(other)
    return mask.sum_to_size(tensor.shape) > 0


def needed_elements(
    result: Any, leaves: Iterable[Tensor], saved: Mapping[StorageKey, list[Tensor]]
) -> Mapping[StorageKey, Tensor]:
    """The elements of saved storages that the gradients of `leaves` need, as booleans.

    The graph of the result is used up.
    """
    found = NeededElements(saved)
    given = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    wanted = [t for t in leaves if t.requires_grad]
    with ZeroGradientCounter(), found:
        torch.autograd.grad(given, wanted, [torch.ones_like(t) for t in given], allow_unused=True)
    return found.of
