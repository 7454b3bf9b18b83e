"""What do the bytes consist of that a module keeps for its backward pass, or holds at its worst
moment: values, copies of values or of parameters, masks, parts of storages that nobody asked for?

A value is what an operation computed, or an input. A storage that an operation only moved entries
into is a copy of what it was moved from; where the original is not held, the copy stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.counters.backward_rules import TRACED_RULES
from profiler.counters.call import is_arithmetic, tensors_in
from profiler.counters.rules import conversion, free, rule_for
from profiler.meters.memory_saved import Saved, key_of, saving

CLASSES: Mapping[str, str] = {
    "values": "what an operation computed, and inputs, each once",
    "masks": "masks and positions, which are no numbers of the equations",
    "copies of parameters": "parameters moved into another order or shape, or padded",
    "copies": "entries held once more in another order or shape, and the zeros around them",
    "whole storages": "the rest of a storage of which only a part was saved",
}
"""Class of bytes -> what it means."""

MOVES = (free, conversion)
"""Rules of operations that compute nothing new."""

Key = tuple[str, int]


@dataclass(frozen=True)
class Consists:
    """Bytes by class."""

    values: int = 0
    masks: int = 0
    of_parameters: int = 0
    copies: int = 0
    whole: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.values + self.masks + self.of_parameters + self.copies + self.whole

    def by_class(self) -> dict[str, int]:
        """Class -> bytes."""
        numbers = (self.values, self.masks, self.of_parameters, self.copies, self.whole)
        return dict(zip(CLASSES, numbers, strict=True))


@dataclass(frozen=True)
class Origin:
    """Where the entries of a storage come from: the number of a value or of a parameter, and the
    bytes of its own storage; None for masks."""

    root: int | None
    own: int
    parameter: bool = False


@dataclass
class Group:
    """What is alive of one value: its own bytes, and those of its storage and of all copies."""

    own: int
    held: int = 0

    @property
    def value(self) -> int:
        """The bytes that stand for the value itself."""
        return min(self.own, self.held)


@dataclass
class Origins(TorchDispatchMode):
    """Follows where the entries of every storage come from, and what is alive.

    Args:
        parameters: parameters and buffers.
        inputs: what is given to the call. Neither is counted as alive: it was there before.
    """

    parameters: Iterable[Tensor] = ()
    inputs: Iterable[Tensor] = ()
    origin: dict[Key, Origin] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    known: dict[int, Any] = field(default_factory=dict)
    values: int = 0
    alive: Consists = field(default_factory=Consists)
    most: Consists = field(default_factory=Consists)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.parameter_keys = {key_of(t.untyped_storage()) for t in self.parameters}
        for tensors, parameter in ((self.parameters, True), (self.inputs, False)):
            for tensor in tensors:
                storage = tensor.untyped_storage()
                self.origin[key_of(storage)] = self.new(storage.nbytes(), parameter=parameter)

    def new(self, size: int, *, parameter: bool = False) -> Origin:
        """That of a value that nothing else is known of."""
        self.values += 1
        return Origin(self.values, size, parameter)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        rule = rule_for(name, TRACED_RULES)
        if rule is None:
            with self:
                parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
        given = list(tensors_in([*args, *kwargs.values()]))
        before = {key_of(t.untyped_storage()) for t in given}
        result = func(*args, **kwargs)
        moves = rule in MOVES
        for tensor in tensors_in(result):
            key = key_of(tensor.untyped_storage())
            if key not in before:
                self.made(tensor, key, given if moves else [])
            elif not (moves or func.is_view) and func._schema.is_mutable:
                self.overwritten(tensor, key)
        return result

    def made(self, tensor: Tensor, key: Key, sources: Iterable[Tensor]) -> None:
        """A new storage: a value of its own, unless moved from a single one."""
        storage = tensor.untyped_storage()
        numbers = [t for t in sources if is_arithmetic(t.dtype)]
        if not is_arithmetic(tensor.dtype):
            origin = Origin(None, storage.nbytes())
        elif len(numbers) == 1:
            source = numbers[0].untyped_storage()
            origin = self.origin.setdefault(key_of(source), self.new(source.nbytes()))
        else:
            origin = self.new(storage.nbytes())
        self.origin[key] = origin
        self.hold(storage, key)

    def overwritten(self, tensor: Tensor, key: Key) -> None:
        """A copy that something was computed into is a value of its own."""
        storage = tensor.untyped_storage()
        before, counted = self.origin.get(key), id(storage) in self.known
        if before is None or before.root is None or not counted:
            return
        self.count(before, -storage.nbytes())
        self.origin[key] = self.new(storage.nbytes())
        self.count(self.origin[key], storage.nbytes())

    def hold(self, storage: Any, key: Key) -> None:
        """Count a storage as alive until nothing refers to it."""
        number = id(storage)
        if number in self.known or not storage.nbytes():
            return
        size = storage.nbytes()
        self.known[number] = ref(storage, partial(self._released, number, key, size))
        self.count(self.origin[key], size)
        if self.alive.total > self.most.total:
            self.most = self.alive

    def _released(self, number: int, key: Key, size: int, _: Any) -> None:
        self.known.pop(number, None)
        self.count(self.origin[key], -size)

    def count(self, origin: Origin, size: int) -> None:
        """Add bytes of one origin to what is alive, or take them away."""
        now = self.alive
        if origin.root is None:
            self.alive = replace(now, masks=now.masks + size)
        elif origin.parameter:
            self.alive = replace(now, of_parameters=now.of_parameters + size)
        else:
            group = self.groups.setdefault(origin.root, Group(origin.own))
            value = group.value
            group.held += size
            grown = group.value - value
            self.alive = replace(now, values=now.values + grown, copies=now.copies + size - grown)

    def consists(self, saved: Saved) -> Consists:
        """What the saved tensors consist of; parameters themselves are left out."""
        groups: dict[int, Group] = {}
        masks = of_parameters = whole = total = 0
        for key, tensors in saved.storages().items():
            size, wanted = tensors[0].untyped_storage().nbytes(), entry_bytes(tensors)
            origin = self.origin.setdefault(key, self.new(size))
            if key in self.parameter_keys:
                continue
            whole += size - wanted
            if not is_arithmetic(tensors[0].dtype):
                masks += wanted
            elif origin.parameter:
                of_parameters += wanted
            elif origin.root is not None:
                groups.setdefault(origin.root, Group(origin.own)).held += wanted
                total += wanted
        values = sum(group.value for group in groups.values())
        return Consists(values, masks, of_parameters, total - values, whole)


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
    """What `forward()`, a call whose result wants gradients, keeps for its backward pass."""
    origins = Origins(list(parameters), list(inputs))
    with saving() as saved, origins:
        result = forward()
    found = origins.consists(saved)
    del result
    return found


def held_at_most(call: Any, parameters: Iterable[Tensor], inputs: Iterable[Tensor]) -> Consists:
    """What is alive at the worst moment of a call, and was not before."""
    origins = Origins(list(parameters), list(inputs))
    with origins:
        result = call()
    del result
    return origins.most
