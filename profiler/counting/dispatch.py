"""Which operations, of each class, does a module dispatch to torch, and which have no rule?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from msgspec.structs import replace
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from profiler.counting.call import (
    HIGHER_ORDER,
    Call,
    CountError,
    bind,
    bytes_read,
    bytes_written,
    higher_order_reason,
    is_arithmetic,
)
from profiler.counting.constants import Constants
from profiler.counting.mode import DispatchMode, OperationKind, name_of_functions
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.rules import operations_of
from profiler.records.reading import reason_of
from profiler.records.schema import Record


class DispatchedOperation(Record, frozen=True):
    """All calls of one torch operation: number, operations, bytes read and written (view: 0)."""

    calls: int = 0
    operations: Operations = NOTHING
    bytes_read: int = 0
    bytes_written: int = 0
    view: bool = False
    products: tuple[tuple[int, int, int, int, int], ...] = ()
    """The shapes of the products of two matrices: batch, rows, columns, terms, and the number of
    calls of this shape, in order of the first call."""


class UncountedOperation(Record, frozen=True):
    """A torch operation that was dispatched and could not be counted, and why."""

    calls: int
    bytes_touched: int
    reason: str


class DispatchCounts(Record, frozen=True):
    """The operations that one call dispatched.

    `operations` is the sum over the operations with a counting rule; `complete` says whether these
    are all. `constants` is the part of them on constants of the sizes (`Constants`), by operation.
    `by_op` and `unknown` are keyed by torch's names (`aten::mm`). `dispatched` is the
    number of dispatched operations, `launched` their number without views (on a CPU each of these
    runs its own kernel; on a GPU use `count_kernels`).
    """

    WRITTEN = (
        "operations", "constants", "by_op", "unknown", "dispatched", "launched", "complete"
    )  # fmt: skip

    operations: Operations = NOTHING
    constants: Mapping[str, Operations] = {}
    by_op: Mapping[str, DispatchedOperation] = {}
    unknown: Mapping[str, UncountedOperation] = {}
    dispatched: int = 0
    launched: int = 0

    @property
    def complete(self) -> bool:
        """Whether every dispatched operation was counted."""
        return not self.unknown


MATRICES = {
    "aten::mm": ("self", "mat2"), "aten::bmm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"), "aten::baddbmm": ("batch1", "batch2"),
}  # fmt: skip
"""Operation of torch -> the arguments that are the two matrices, or batches of matrices."""


def product_shape(call: Call) -> tuple[int, int, int, int] | None:
    """(batch, rows, columns, terms) of a product of two matrices or of two batches of matrices:
    (1, 2, 3, 5) of a 2 x 5 and a 5 x 3 matrix; None for another operation."""
    if (names := MATRICES.get(call.name)) is None:
        return None
    left, right = (call.tensor(name).shape for name in names)
    return left[0] if len(left) > 2 else 1, left[-2], right[-1], left[-1]


EXITS = ("numpy", "tolist", "data_ptr", "__dlpack__")
"""Methods by which a tensor's numbers leave torch: to numpy, to Python, to a foreign kernel."""

LEFT = "numbers leave torch here: arithmetic outside of torch is not counted"
"""Why a method of `EXITS` is listed as uncounted."""


class DispatchRecorder(DispatchMode):
    """Counts each operation that torch runs, by name: its calls in `by_op`, calls without a count
    in `unknown`, operations on constants of the sizes in `on_constants`."""

    def __init__(self) -> None:
        super().__init__()
        self.by_op: dict[str, DispatchedOperation] = {}
        self.unknown: dict[str, UncountedOperation] = {}
        self.products: dict[str, Counter[tuple[int, int, int, int]]] = {}
        """Operation -> the shapes of its products of two matrices, with their numbers."""
        self.constants, self.on_constants = Constants(), dict[str, Operations]()

    def see_functions(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a higher-order operator, and note the operator as uncounted."""
        self.uncounted(name_of_functions(func), HIGHER_ORDER)
        return super().see_functions(func, args, kwargs)

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation, and add the call to `by_op`, with its operations and bytes (0 for a
        view); without a counting rule also to `unknown`."""
        result = super().see(kind, args, kwargs)
        # a counter around this one sees none of the rules' own work; a view needs no rule
        with nullcontext() if kind.view else _disable_current_modes():
            self.note(kind, args, kwargs, result)
        return result

    def note(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        """Add a call to `by_op`, to `unknown` too if it cannot be counted, a product of matrices to
        `products` by its shape, and the operations to `on_constants` if the results are constants
        of the sizes. Bytes are those of the tensors read and written; 0 for a view."""
        call = bind(kind.func, args, kwargs, result)
        read, written = (0, 0) if kind.view else (bytes_read(call), bytes_written(call))
        counted = NOTHING
        if not kind.view:
            try:
                counted = operations_or_parts(kind.func, call, args, kwargs)[0]
            except CountError as error:
                self.uncounted(call.name, str(error), read + written)
        if self.constants.see(kind.func, call) and counted != NOTHING:
            self.on_constants[call.name] = self.on_constants.get(call.name, NOTHING) + counted
        before = self.by_op.get(call.name, DispatchedOperation(view=kind.view))
        if shape := product_shape(call):
            self.products.setdefault(call.name, Counter())[shape] += 1
        self.by_op[call.name] = DispatchedOperation(
            calls=before.calls + 1,
            operations=before.operations + counted,
            bytes_read=before.bytes_read + read,
            bytes_written=before.bytes_written + written,
            view=before.view,
        )

    def uncounted(self, name: str, reason: str, touched: int = 0) -> None:
        """Note an uncounted call of an operation on `touched` bytes; its first reason is kept."""
        before = self.unknown.get(name, UncountedOperation(0, 0, reason))
        self.unknown[name] = UncountedOperation(
            before.calls + 1, before.bytes_touched + touched, before.reason
        )

    @contextmanager
    def watching_exits(self) -> Iterator[None]:
        """A context in which each call of a method by which numbers leave torch (`EXITS`, such as
        `Tensor.numpy`) on a floating or complex tensor is noted as an uncounted operation. Such a
        call on data of any type ends the constants of the sizes (`Constants.told`)."""

        def noting(name: str) -> Any:
            """Return a replacement for a method of Tensor (`numpy`) that notes each call, then
            makes it: uncounted bytes of floating or complex numbers, and in `told` that numbers
            were taken from data, unless the tensor is a constant of the sizes."""
            leave = getattr(Tensor, name)

            def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                self.constants.told |= not self.constants.holds(tensor)
                if is_arithmetic(tensor.dtype):
                    touched = tensor.numel() * tensor.element_size()
                    self.uncounted(f"Tensor.{name}", LEFT, touched)
                return leave(tensor, *args, **kwargs)

            return noted

        with patch.multiple(Tensor, **{name: noting(name) for name in EXITS}):
            yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which all dispatched operations and all exits of numbers are noted."""
        with self, self.watching_exits():
            yield

    def shapes_of(self, name: str) -> tuple[tuple[int, int, int, int, int], ...]:
        """An operation's products: (batch, rows, columns, terms, calls) for each shape."""
        return tuple((*shape, calls) for shape, calls in self.products.get(name, {}).items())

    def counts(self) -> DispatchCounts:
        """The operations recorded so far, in total and by torch operation. `launched` leaves out
        views, which run no kernel."""
        total = NOTHING
        for op in self.by_op.values():
            total += op.operations
        return DispatchCounts(
            operations=total,
            constants=dict(self.on_constants),
            by_op={
                name: replace(op, products=self.shapes_of(name)) for name, op in self.by_op.items()
            },
            unknown=dict(self.unknown),
            dispatched=sum(op.calls for op in self.by_op.values()),
            launched=sum(op.calls for op in self.by_op.values() if not op.view),
        )


def operations_or_parts(
    func: Any, call: Call, args: tuple[Any, ...], kwargs: Any
) -> tuple[Operations, bool]:
    """(operations of a call, whether they were counted by parts, which a trace notes): counted by
    the call's counting rule or, if the rule does not cover the call, by running torch's
    decomposition into operations with rules on empty tensors. Raises CountError: neither the rule
    nor the decomposition covers the call."""
    # kept as text: an error would keep its tensors alive
    reason = "no counting rule for this operation"
    try:
        found = operations_of(call)
    except CountError as error:
        reason = str(error)
    else:
        if found is not None:
            return found, False
    decomposition = decomposition_table.get(func)
    if decomposition is None:
        raise CountError(reason)
    inner = DispatchRecorder()
    own_args, own_kwargs = tree_map(empty_on_meta, (args, kwargs))
    try:
        with inner:
            decomposition(*own_args, **own_kwargs)
    except Exception as error:  # torch's decompositions raise anything
        raise CountError(
            f"{reason}; torch's decomposition of this operation fails: {reason_of(error)}"
        ) from error
    if inner.unknown:
        held = ", ".join(f"{name}: {found.reason}" for name, found in inner.unknown.items())
        raise CountError(
            f"{reason}; torch's decomposition of this operation holds operations without a rule: "
            f"{held}"
        )
    return inner.counts().operations, True


def empty_on_meta(leaf: Any) -> Any:
    """A call's argument (a leaf of the nest) on torch's meta device, which holds shapes and no
    values: an empty tensor of the same shape, strides and dtype for a tensor, the meta device for a
    device, any other value unchanged."""
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")


def count_dispatch(fn: Callable[..., Any], *args: Any) -> DispatchCounts:
    """Run `fn(*args)` once and count what it dispatches, backward passes inside it included.

    Operations with a rule in `counting/rules.py` are counted exactly. Operations without a rule,
    and numbers that leave torch (to numpy, Python, a foreign kernel), are listed in `unknown`, and
    `complete` is then false. Arithmetic without tensors is not seen. The gradient mode is left as
    it is.

    Raises:
        CountError: torch cannot run a higher-order operator while the call is counted; one
            sentence.
    """
    recorder = DispatchRecorder()
    try:
        with recorder.watching():
            fn(*args)
    except RuntimeError as error:
        if reason := higher_order_reason(error):
            raise CountError(reason) from error
        raise
    return recorder.counts()
