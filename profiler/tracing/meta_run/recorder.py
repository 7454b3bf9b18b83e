"""Records the operations dispatched while a module runs, and the live ranges of storages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from profiler.counting.call import (
    HIGHER_ORDER,
    CountError,
    bind,
    bytes_read,
    bytes_written,
    distinct_bytes,
    tensors_in,
)
from profiler.counting.dispatch import operations_or_parts
from profiler.counting.forward_rules import contraction
from profiler.counting.mode import OperationKind, name_of_functions
from profiler.counting.operations import NOTHING
from profiler.tracing.meta_run import shape_values
from profiler.tracing.meta_run.accumulation import ADD, INTO, ZEROS, Accumulation
from profiler.tracing.meta_run.operation import (
    Cost,
    CountedOperation,
    KnownCall,
    TensorLayout,
    TracedTensor,
    summed_by_operation,
)
from profiler.tracing.meta_run.target import OPERATION, Untraceable

THERE_BEFORE = "there before"
"""Stands for the operation of a parameter, a buffer or an input."""

Backend = Callable[["Recorder"], Any]
"""A context in which the module runs; it receives the recorder that counts."""

SCALED: Mapping[str, tuple[str, str]] = {
    "aten::addmm": ("mat1", "mat2"),
    "aten::addmv": ("mat", "vec"),
    "aten::baddbmm": ("batch1", "batch2"),
}
"""Contractions that may also scale their result -> the arguments that are multiplied."""


CallKey = tuple[Any, ...]


class Recorder(shape_values.MetaMode):
    """Counts the dispatched operations by class, and records the live range of every storage.

    An operation with the same arguments as an earlier call (tensors compared by layout) is not run
    again: its results are made from the layouts of the first call's. So a hundred equal layers cost
    little more than one layer; so does one layer at many sizes, as runs share known calls.

    After each operation the bytes alive are appended to `alive`, and the operation's name to
    `names`: their common index is a moment. Storage k has `sizes[k]` bytes, the shape and dtype
    `held[k]`, was made at moment `born[k]` and freed before moment `ended[k]`, if it was. `counted`
    holds the calls of operations by phase, `given` the calls that `add` received, `known` the
    storages that are alive, by id, `before` the number of storages from before the run.

    Args:
        held: tensors that exist before the run: parameters, buffers and inputs.
        shapes: whether to record the shapes of all results.
        met: the known calls of earlier runs, which receives those of this run.
    """

    def __init__(
        self,
        held: Sequence[Tensor] = (),
        *,
        shapes: bool = False,
        met: dict[CallKey, KnownCall] | None = None,
    ) -> None:
        """Start in the forward phase, with the storages of `held` alive. `shapes`: also record the
        shapes of results; `met`: costs of calls that earlier runs recorded, which this run extends.
        `bytes_alive`, `bytes_made`: of all storages alive now, and of all made so far; `stepped`:
        recurrent layers that ran step by step; `silent`: whether no operation is counted."""
        super().__init__()
        self.phase = "forward"
        self.counted: list[tuple[str, KnownCall]] = []
        self.met = {} if met is None else met
        self.given: list[tuple[str, str, Cost]] = []
        self.stepped: set[str] = set()
        self.known: dict[int, tuple[ref[Any], int]] = {}
        self.held: list[tuple[Any, ...]] = []
        self.sizes: list[int] = []
        self.born: list[int] = []
        self.ended: dict[int, int] = {}
        self.bytes_alive = self.bytes_made = 0
        self.alive: list[int] = []
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] | None = [] if shapes else None
        self.silent = False
        self.accumulation = Accumulation()
        for tensor in held:
            self.hold(tensor)
        self.before = len(self.born)

    def dispatched(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a dispatched operation and return its result. An error leaves with the innermost
        operation that raised it, as its attribute `OPERATION`."""
        try:
            return super().dispatched(func, types, args, kwargs)
        except Exception as error:
            if not (isinstance(func, HigherOrderOperator) or hasattr(error, OPERATION)):
                setattr(error, OPERATION, func)
            raise

    def ran(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation, count it unless it is a view, record the storages that it makes, and
        return its result, with its values if they follow from sizes alone. A sum of gradients or a
        write into zeros that torch without a dispatch mode would write in place (`added`) returns
        its first argument. Each call adds one moment to `alive` and `names`."""
        func = kind.func
        added = (func is ADD and self.accumulation.in_place(func, args)) or (
            kind.name in INTO and self.accumulation.into_zeros(args[0])
        )
        result = func(*args, **kwargs) if kind.view else self.called(kind, args, kwargs)
        if added:
            result = args[0]
            shape_values.drop_value(result)
        elif kind.writes or shape_values.known_all(args):
            shape_values.follow_values(func, args, kwargs, result)
        for item in result if isinstance(result, list | tuple) else (result,):
            if isinstance(item, Tensor):
                self.hold(item)
                if self.shapes is not None:
                    self.shapes.append(tuple(item.shape))
        if kind.name in ZEROS:
            self.accumulation.fill(result)
        self.alive.append(self.bytes_alive)
        self.names.append(kind.label[self.phase])
        return result

    def called(self, kind: OperationKind, args: Any, kwargs: Any) -> Any:
        """Run an operation that is not a view, or make its result from the layouts of an earlier
        call with equal arguments (tensors of equal layouts), and return the result. Append the call
        to `counted` unless it is free (it moves entries or makes no tensor) or the caller counts it
        (`silent`). A cost that follows from values of tensors (`by_values`) is found anew."""
        key = (kind, *_signature(args), *(_signature(kwargs.items()) if kwargs else ()))
        made = self.met.get(key)
        if made is not None and made.again is not None:
            result = made.again(args)
        else:
            result = kind.func(*args, **kwargs)
            require_strided(kind.name, result)
        if made is None or made.cost.by_values:
            made = self.met[key] = self.make_known(kind, args, kwargs, result)
        if not kind.free and not self.silent:
            self.counted.append((self.phase, made))
        return result

    def make_known(self, kind: OperationKind, args: Any, kwargs: Any, result: Any) -> KnownCall:
        """Make the record of a call, with the facts that hold for all calls with equal arguments
        (tensors of equal layouts): how to make its results without running it, if possible, and its
        cost (no operations if it only moves entries)."""
        again = remake_results(kind, args, kwargs, result)
        if kind.free:
            return KnownCall(kind, again, Cost(NOTHING))
        return KnownCall(kind, again, self.cost(kind, args, kwargs, result))

    def cost(self, kind: OperationKind, args: Any, kwargs: Any, result: Any) -> Cost:
        """The cost of a call: its operations, or why they are not counted; the bytes read and
        written; the multiplications of its products; whether values of tensors were asked for; and,
        for the backward pass of a convolution with groups, the multiplications that the weight's
        gradient would have in addition without groups."""
        asked: list[Tensor] = []

        def known(tensor: Tensor) -> Tensor | None:
            """The values of a tensor, if they follow from sizes alone; `asked` gets the tensor."""
            asked.append(tensor)
            return shape_values.known_value(tensor) if tensor.is_meta else tensor

        call = replace(bind(kind.func, args, kwargs, result), known=known)
        touched = bytes_read(call) + bytes_written(call)
        try:
            operations, decomposed = operations_or_parts(kind.func, call, args, kwargs)
        except CountError as reason:
            text = str(reason).replace(f"{kind.name}: ", "")
            return Cost(None, text, touched, by_values=bool(asked))
        products, ungrouped = operations.mul, 0
        # each wanted gradient of input and weight has equally many products; without groups the
        # weight's would have `groups` times as many
        if kind.name == "aten::convolution_backward" and call.arguments["output_mask"][1]:
            ungrouped = (
                (call.arguments["groups"] - 1) * products // sum(call.arguments["output_mask"][:2])
            )
        if kind.name in SCALED:  # without the multiplications that scale the result
            left, right = SCALED[kind.name]
            products = contraction(call, left, right, -1).mul
        return Cost(operations, "", touched, products, ungrouped, decomposed, bool(asked))

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage as alive until nothing refers to it, once per storage: a weak
        reference to the storage then notes that the storage was freed."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.known:
            return
        size, place = storage.nbytes(), len(self.born)
        self.known[key] = ref(storage, partial(self._release, key, size, place)), place
        self.held.append((tensor.shape, tensor.dtype))
        self.sizes.append(size)
        self.born.append(len(self.alive))
        self.bytes_alive += size
        self.bytes_made += size

    def _release(self, key: int, size: int, place: int, _: Any) -> None:
        """Note that storage number `place` of `size` bytes was freed; its weak reference calls."""
        self.bytes_alive -= size
        self.ended[place] = len(self.alive)
        self.known.pop(key, None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context in which storages are recorded and operations are not counted, as the caller
        adds their cost itself."""
        was, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = was

    def add(self, name: str, cost: Cost) -> None:
        """Add a call of a torch function in the phase; `cost` has operations or a reason."""
        self.given.append((self.phase, name, cost))

    def see_functions(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a higher-order operator (which takes functions), record its name without a count, and
        return its result. Raises Untraceable: the operator does not run on the meta device."""
        name = name_of_functions(func)
        try:
            result = super().see_functions(func, args, kwargs)
        except Exception as error:  # the operator runs functions of the user
            raise Untraceable(f"{name} is {HIGHER_ORDER}") from error
        touched = sum(map(distinct_bytes, tensors_in([*args, *kwargs.values(), result])))
        self.add(name, Cost(None, HIGHER_ORDER, touched))
        for tensor in tensors_in(result):
            self.hold(tensor)
        self.alive.append(self.bytes_alive)
        self.names.append(f"{self.phase} {name}")
        return result

    def calls(self) -> Iterator[tuple[str, str, int, Cost]]:
        """Yield phase, name, number of calls and cost of every operation but moves of entries."""
        for (phase, made), times in Counter(self.counted).items():
            yield phase, made.kind.name, times, made.cost
        for phase, name, cost in self.given:
            yield phase, name, 1, cost

    def at_peak(self) -> Iterator[TracedTensor]:
        """Yield the tensors alive at the first moment of the peak (`top`), in the order in which
        they were made; equal tensors of one operation are one entry with their number. Empty
        storages are left out; `made` is the operation that made one, or `THERE_BEFORE`."""
        top = self.alive.index(max(self.alive)) if self.alive else 0
        rows: Counter[TracedTensor] = Counter()
        for place, born in enumerate(self.born):
            if self.sizes[place] and born <= top < self.ended.get(place, top + 1):
                made = THERE_BEFORE if place < self.before else self.names[born]
                shape, dtype = self.held[place]
                kind = str(dtype).removeprefix("torch.")
                rows[TracedTensor(made, tuple(shape), kind, self.sizes[place])] += 1
        for row, number in rows.items():
            yield replace(row, number=number)

    @property
    def decomposed(self) -> frozenset[str]:
        """The operations that were counted through torch's decomposition."""
        return frozenset(made.kind.name for _, made in set(self.counted) if made.cost.decomposed)

    def by_operation(self) -> dict[tuple[str, str], CountedOperation]:
        """The totals of `calls`, by phase and name."""
        return summed_by_operation(self.calls())


def require_strided(name: str, result: Any) -> None:
    """Raise RuntimeError if a result is not strided, as it then has no storage to record."""
    for tensor in result if isinstance(result, list | tuple) else (result,):
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            raise RuntimeError(
                f"{name} gives a tensor of layout {tensor.layout}: only strided tensors are traced"
            )


def remake_results(
    kind: OperationKind, args: Any, kwargs: Any, result: Any
) -> Callable[[tuple[Any, ...]], Any] | None:
    """Make a function that makes the results of a call from its positional arguments without
    running it. None if the operation must run each time: an argument is not on the meta device, the
    operation writes into anything but its first argument, or a result is a view, conjugated,
    negated or no plain tensor. A view shares the storage of an argument."""
    given = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
    if any(not t.is_meta for t in given):
        return None
    if kind.writes:
        return itemgetter(0) if kind.in_place and result is args[0] else None
    several = type(result) if type(result) in (list, tuple) else None
    results = result if several else [result]
    places = {t.untyped_storage()._cdata for t in given}
    if not all(
        type(t) is Tensor
        and t.is_meta
        and t.untyped_storage()._cdata not in places
        and not (t.is_conj() or t.is_neg())
        for t in results
    ):
        return None
    made = [TensorLayout(tuple(t.shape), t.stride(), t.dtype) for t in results]
    if several is None:
        return lambda _: made[0].empty()
    return lambda _: several(layout.empty() for layout in made)


PLAIN = frozenset((int, float, complex, str, bool, type(None), torch.dtype))
"""Types of arguments that are compared by value."""


def _signature(values: Iterable[Any]) -> list[Any]:
    """A key of a call's arguments, equal for calls whose results have equal layouts: shape,
    strides, dtype and device of a tensor, type and value of a number, text or dtype, the entries of
    a list or tuple, and the text of anything else."""
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
