"""Which tensors does a nest of arguments or of results hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType)
"""What is not looked into for tensors: a module's parameters are its own."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest, in order and each once, those too that a set, an unknown kind of
    dict or an object holds."""
    seen: set[int] = set()

    def within(nest: Any) -> Iterator[Tensor]:
        for leaf in tree_leaves(nest):
            if id(leaf) in seen or isinstance(leaf, OPAQUE):
                continue
            if isinstance(leaf, Tensor):
                seen.add(id(leaf))
                yield leaf
            elif isinstance(leaf, Mapping):
                seen.add(id(leaf))
                yield from within(list(leaf.values()))
            elif isinstance(leaf, Set):
                yield from within(list(leaf))
            elif held := attributes(leaf):
                seen.add(id(leaf))
                yield from within(held)

    yield from within(value)


def attributes(item: Any) -> list[Any]:
    """What an object of a class of somebody's own holds, in slots too."""
    kinds = (kind for kind in type(item).__mro__ if "__slots__" in vars(kind))
    slots = (
        v for kind in kinds for v in vars(kind).values() if isinstance(v, MemberDescriptorType)
    )
    held = [getattr(item, slot.__name__) for slot in slots if hasattr(item, slot.__name__)]
    return [*held, *getattr(item, "__dict__", {}).values()]


def numbers(tensor: Tensor) -> bool:
    """Whether a tensor carries numbers that a gradient may be of."""
    return tensor.is_floating_point() or tensor.is_complex()


def fresh(value: Any) -> Any:
    """The same inputs on the meta device, one tensor given twice still one; the gradient of those
    that carry numbers is wanted."""
    made: dict[int, Tensor] = {}

    def leaf(item: Any) -> Any:
        if not isinstance(item, Tensor):
            for tensor in tensors_in(item):  # of an object, which holds them itself
                tensor.requires_grad_(tensor.requires_grad or numbers(tensor))
            return item
        if id(item) not in made:
            moved = item.detach().to("meta")
            made[id(item)] = moved.requires_grad_(numbers(moved))
        return made[id(item)]

    return tree_map(leaf, value)
