"""How many bytes do a state and its module hold in tensors after each decoded token?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from profiler.proofs.cases import ModuleCase


def room(*holders: Any) -> int:
    """The number of bytes of all storages of the tensors that these objects hold, directly or in
    objects inside them, each storage once and whole."""
    storages = {}
    for tensor in tensors_held(*holders):
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def tensors_held(*holders: Any) -> Iterator[Tensor]:
    """Yield every tensor object that these are or hold at any depth, each once: as values of
    mappings, in lists, tuples, sets, deques, attributes, slots and partial calls, and in objects
    of bound methods; not in functions, classes, Python modules and attributes of tensors."""
    left, seen = [*holders], dict[int, Any]()  # to be searched; id -> object searched, kept alive
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (str, bytes, type, ModuleType, FunctionType)):
            continue
        seen[id(one)] = one
        if isinstance(one, Tensor):
            yield one
            continue
        if isinstance(one, Mapping):
            left.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset)) or hasattr(one, "popleft"):
            left.extend(one)
        if isinstance(one, MethodType):
            left.append(one.__self__)
        else:  # attributes, of containers of a class of the user's too
            left.extend(getattr(one, "__dict__", {}).values())
            slots = (slot for kind in type(one).__mro__ for slot in vars(kind).items())
            left.extend(getattr(one, k, None) for k, v in slots if type(v) is MemberDescriptorType)


def decoded_room(case: ModuleCase) -> list[int]:
    """Decode the case's sequences token by token, and return the bytes that the state and the
    module hold after each token, one number per token."""
    with torch.no_grad():
        state = case.initial_state()
        found = []
        for row in case.x.unbind(1):
            case.module.step(row.clone(), state)  # type: ignore[operator]
            found.append(room(state, case.module))
    return found
