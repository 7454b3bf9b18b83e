"""What is dispatched while a module runs: which operations, how often, and what is alive?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from profiler.counters.backward_rules import TRACED_RULES
from profiler.counters.call import CountError, bind, bytes_read, bytes_written
from profiler.counters.operations import NOTHING, Operations
from profiler.counters.rules import Rule, contraction, free, operations_of, rule_for
from profiler.tracing import constants
from profiler.tracing.accumulation import Accumulation
from profiler.tracing.target import OPERATION

Backend = Callable[["Recorder"], Any]
"""A context in which the module runs, given the recorder that counts."""

SCALED: Mapping[str, tuple[str, str]] = {
    "aten::addmm": ("mat1", "mat2"),
    "aten::addmv": ("mat", "vec"),
    "aten::baddbmm": ("batch1", "batch2"),
}
"""Contractions that may scale their result besides."""

COMPOSITE = "CompositeImplicitAutograd"


@dataclass(frozen=True, eq=False)
class Kind:
    """What is known of an operation before it is called; each operation has one."""

    func: Any
    name: str
    rule: Rule | None
    free: bool
    view: bool
    composite: bool
    decomposition: Callable[..., Any] | None
    label: Mapping[str, str]
    """Its name in either phase."""


KINDS: dict[int, Kind] = {}
"""The kind of every operation that was met, by its identity: torch hashes them slowly."""


def kind_of(func: Any) -> Kind:
    """The rule of an operation, or torch's own decomposition of it where there is no rule."""
    name = func._schema.name
    rule = rule_for(name, TRACED_RULES)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = (rule is None or func.is_view) and has(func.name(), COMPOSITE)
    decomposition = decomposition_table.get(func)
    label = {phase: f"{phase} {name}" for phase in ("forward", "backward")}
    taken, given = func._schema.arguments, func._schema.returns
    numbers = any("Tensor" in str(value.type) for value in (*taken, *given))
    move = rule is free or func.is_view or not numbers
    return Kind(func, name, rule, move, func.is_view, composite, decomposition, label)


@dataclass(frozen=True)
class Made:
    """What one call of an operation gives: layouts of its results, where they are all that need be
    known, and its operations, or why they are not counted."""

    layouts: tuple[Layout, ...] | None
    several: type | None
    operations: Operations | None
    reason: str = ""
    touched: int = 0
    products: int = 0
    """Multiplications of two entries, in a contraction or convolution those of its sums alone."""
    ungrouped: int = 0
    """How many more the gradient of a convolution's weight would have without groups."""


@dataclass(frozen=True)
class Layout:
    """Shape, strides and type of a result in new memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> Tensor:
        """A tensor of this layout on the meta device."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


Key = tuple[Any, ...]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts what is dispatched by class, and holds account of every storage that is alive.

    An operation that was seen before with the same arguments, tensors by their layouts, is not
    run again: its results are made anew from what it gave. So a hundred equal layers cost little
    more than one.
    """

    def __init__(self, held: Sequence[Tensor] = (), *, shapes: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.phase = "forward"
        self.times: Counter[tuple[str, str, Key]] = Counter()
        self.seen: dict[Key, Made] = {}
        self.given: dict[tuple[str, str], list[Operations]] = {}
        self.decomposed: set[str] = set()
        self.stepped: set[str] = set()
        self.known: dict[int, ref[Any]] = {}
        self.bytes_alive = self.bytes_made = 0
        self.alive: list[int] = []
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] | None = [] if shapes else None
        self.silent = False
        self.accumulation = Accumulation()
        for tensor in held:
            self.hold(tensor)

    def kind(self, func: Any) -> Kind:
        """What is known of an operation, looked up once."""
        found = KINDS.get(id(func))
        if found is None:
            found = KINDS[id(func)] = kind_of(func)
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return self.dispatched(func, args, kwargs or {})
        except Exception as error:
            if not hasattr(error, OPERATION):  # the innermost one
                setattr(error, OPERATION, func)
            raise

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The result of a call, which is counted."""
        kind = self.kind(func)
        if kind.composite:
            with self:
                return func.decompose(*args, **kwargs)
        if (known := constants.answer(func, args)) is not None:
            return known
        added = self.accumulation.in_place(func, args)
        result = func(*args, **kwargs) if kind.view else self.called(func, kind, args, kwargs)
        if added:
            result = args[0]
            constants.spoil(result)
        else:
            constants.follow(func, args, kwargs, result)
        for item in result if isinstance(result, list | tuple) else (result,):
            if isinstance(item, Tensor):
                self.hold(item)
                if self.shapes is not None:
                    self.shapes.append(tuple(item.shape))
        self.alive.append(self.bytes_alive)
        self.names.append(kind.label[self.phase])
        return result

    def called(self, func: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """The result of an operation that is no view; its operations are noted."""
        key = (kind, *_signature(args), *(_signature(kwargs.items()) if kwargs else ()))
        made = self.seen.get(key)
        if made is None or made.layouts is None:
            result = func(*args, **kwargs)
            require_strided(kind.name, result)
            if made is None:
                made = self.seen[key] = self.learned(func, kind, args, kwargs, result)
        elif made.several is None:
            result = made.layouts[0].empty()
        else:
            result = made.several(layout.empty() for layout in made.layouts)
        if not kind.free and not self.silent:
            self.times[self.phase, kind.name, key] += 1
        return result

    def learned(self, func: Any, kind: Kind, args: Any, kwargs: Any, result: Any) -> Made:
        """What a first call shows of all calls with the same arguments."""
        layouts, several = self.layouts(func, args, kwargs, result)
        if kind.free:
            return Made(layouts, several, NOTHING)
        call = bind(func, args, kwargs, result)
        touched = bytes_read(call) + bytes_written(call)
        try:
            operations = self.operations(func, kind, args, kwargs, result)
        except CountError as reason:
            said = str(reason).replace(f"{kind.name}: ", "")
            return Made(layouts, several, None, said, touched)
        products, groups = operations.mul, 0
        if kind.name == "aten::convolution_backward" and call.arguments["output_mask"][1]:
            groups = (
                (call.arguments["groups"] - 1) * products // sum(call.arguments["output_mask"][:2])
            )
        if kind.name in SCALED:
            left, right = SCALED[kind.name]
            products = contraction(call, left, right, -1).mul
        return Made(layouts, several, operations, "", touched, products, groups)

    def layouts(
        self, func: Any, args: Any, kwargs: Any, result: Any
    ) -> tuple[tuple[Layout, ...] | None, type | None]:
        """The layouts of results in memory of their own; None where a result is something else."""
        several = type(result) if type(result) in (list, tuple) else None
        results = result if several else [result]
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        places = {t.untyped_storage()._cdata for t in given}
        plain = not func._schema.is_mutable and all(
            type(t) is Tensor
            and t.is_meta
            and t.untyped_storage()._cdata not in places
            and not (t.is_conj() or t.is_neg())
            for t in results
        )
        if not plain or any(not t.is_meta for t in given):
            return None, None
        return tuple(Layout(tuple(t.shape), t.stride(), t.dtype) for t in results), several

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage as alive until nothing refers to it."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.known:
            return
        size = storage.nbytes()
        self.known[key] = ref(storage, partial(self._release, key, size))
        self.bytes_alive += size
        self.bytes_made += size

    def _release(self, key: int, size: int, _: Any) -> None:
        self.bytes_alive -= size
        self.known.pop(key, None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What is dispatched inside is held account of, and counted under another name."""
        was, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = was

    def add(self, name: str, operations: Operations) -> None:
        """Add operations that a rule at the level of torch's functions gives."""
        self.given.setdefault((self.phase, name), []).append(operations)

    def operations(self, func: Any, kind: Kind, args: Any, kwargs: Any, result: Any) -> Operations:
        """By the rule, else by torch's own decomposition; CountError where there is neither."""
        reason = CountError("no rule for this operation")
        if kind.rule is not None:
            try:
                found = operations_of(bind(func, args, kwargs, result), TRACED_RULES)
            except CountError as error:
                reason = error
            else:
                if found is not None:
                    return found
        if kind.decomposition is None:
            raise reason
        self.decomposed.add(kind.name)
        return self.taken_apart(kind, args, kwargs, reason)

    def taken_apart(self, kind: Kind, args: Any, kwargs: Any, reason: CountError) -> Operations:
        """The operations of torch's decomposition, run beside the call on tensors of its own."""
        assert kind.decomposition is not None
        inner = Recorder()
        own_args, own_kwargs = tree_map(_twin, (args, kwargs))
        try:
            with inner:
                kind.decomposition(*own_args, **own_kwargs)
        except Exception as error:  # torch's decompositions raise anything
            raise CountError(f"{reason}; its decomposition fails: {error}") from error
        total, unknown = NOTHING, []
        for _, name, times, made in inner.calls():
            if made.operations is None:
                unknown.append(f"{name}: {made.reason}")
            else:
                total += made.operations * times
        if unknown:
            raise CountError(f"{reason}; its decomposition holds {', '.join(unknown)}")
        return total

    def calls(self) -> Iterator[tuple[str, str, int, Made]]:
        """Phase, name, how often and what it gave, of everything that is no move."""
        for (phase, name, key), times in self.times.items():
            yield phase, name, times, self.seen[key]
        for (phase, name), each in self.given.items():
            for operations in each:
                yield phase, name, 1, Made(None, None, operations)

    def by_operation(self) -> dict[tuple[str, str], Counted]:
        """Everything that is no move, by phase and name."""
        found: dict[tuple[str, str], Counted] = {}
        for phase, name, times, made in self.calls():
            place = (phase, name if made.operations is not None else f"{name}: {made.reason}")
            before = found.get(place, Counted(known=made.operations is not None))
            found[place] = Counted(
                before.calls + times,
                before.operations + (made.operations or NOTHING) * times,
                before.bytes_touched + made.touched * times,
                before.known,
                before.products + made.products * times,
                before.ungrouped + made.ungrouped * times,
            )
        return found


@dataclass(frozen=True)
class Counted:
    """All calls of one operation in one phase; not `known` where it has no rule."""

    calls: int = 0
    operations: Operations = NOTHING
    bytes_touched: int = 0
    known: bool = True
    products: int = 0
    ungrouped: int = 0


def require_strided(name: str, result: Any) -> None:
    """RuntimeError where a result has no storage of its own to hold account of."""
    for tensor in result if isinstance(result, list | tuple) else (result,):
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            raise RuntimeError(
                f"{name} gives a tensor of layout {tensor.layout}: only strided ones are followed"
            )


PLAIN = frozenset((int, float, complex, str, bool, type(None), torch.dtype))
"""Types of arguments that are told apart by their values."""


def _signature(values: Iterable[Any]) -> list[Any]:
    """What tells two calls apart: layouts of tensors, values and types of everything else."""
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if isinstance(value, Tensor):
            device = value.is_meta or value.device.type
            found.append((value.shape, value.stride(), value.dtype, device))
        elif kind in PLAIN:
            found += (kind, value)
        elif isinstance(value, list | tuple):
            found.append((kind, *_signature(value)))
        else:
            found.append(str(value))
    return found


def _twin(leaf: Any) -> Any:
    """An empty tensor of the same shape and layout on the meta device."""
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
