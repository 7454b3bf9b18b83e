"""Observes one call of a module, forward and backward, at one set of sizes."""

from __future__ import annotations

import gc
import sys
import warnings
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from costmodel.errors import as_exception
from profiler.counting.saved_tensors import (
    PackedTensor,
    SavedTensors,
    StorageKey,
    tensor_key,
    tensor_keys,
)
from profiler.tracing.meta_run.operation import CountedOperation, KnownCall, TracedTensor
from profiler.tracing.meta_run.recorder import Backend, CallKey, Recorder
from profiler.tracing.meta_run.shape_values import on_meta
from profiler.tracing.meta_run.target import (
    Built,
    Sizes,
    Target,
    TraceError,
    Untraceable,
    as_trace_error,
    build_target,
    listed_sizes,
    make,
    nested_tensors,
)

Quantity = tuple[str, str]
"""A counted quantity as (part, kind): ("forward", "mul"), ("bytes", "activations")."""

BYTES = "bytes"
"""The part of the quantities of memory."""

PEAK: Quantity = (BYTES, "peak")
MADE: Quantity = (BYTES, "made")
"""The bytes of all storages made, alive or not: they show which powers of sizes the live bytes
need."""


MOST_BYTES = 2**63 - 1
"""The largest number of live bytes that is counted."""


@dataclass(frozen=True)
class Observation:
    """One call at one point: every quantity, and the bytes alive after each operation.

    `shapes` are the shapes of all results in order, empty unless asked for; `decomposed` the
    operations that were counted through torch's decomposition; `by_op` holds every operation that
    is not a move, by phase and name.
    """

    quantities: Mapping[Quantity, int]
    alive: Sequence[int] = ()
    names: Sequence[str] = ()
    """The operation dispatched before each moment of `alive`."""
    shapes: Sequence[tuple[int, ...]] = ()
    decomposed: frozenset[str] = frozenset()
    stepped: frozenset[str] = frozenset()
    """Recurrent layers that ran step by step, as on the meta device."""
    misread: frozenset[str] = frozenset()
    """Layers that read the batch axis of x as its length."""
    by_op: Mapping[tuple[str, str], CountedOperation] = field(default_factory=dict)
    at_peak: Sequence[TracedTensor] = ()
    """The tensors alive at the peak."""
    differentiated: frozenset[str] = frozenset()
    """Which gradients the backward pass computes: of `parameters`, `inputs`, both or none."""
    modes: frozenset[str] = frozenset()
    """The modes of the layers: `train`, `eval` or both."""


def owned_tensors(built: Built) -> Iterator[Tensor]:
    """Yield the parameters, buffers and inputs of a module that was built."""
    yield from built.module.parameters()
    yield from built.module.buffers()
    yield from built.inputs()


COMPILER = "torch._dynamo"
"""The module that torch imports at the first call that its compiler must skip, such as a
checkpoint; in torch 2.6 the import itself dispatches operations, which must not be counted."""


def observe(
    target: Target,
    sizes: Sizes,
    backend: Backend,
    *,
    shapes: bool = False,
    met: dict[CallKey, KnownCall] | None = None,
) -> Observation:
    """Build the module at these sizes on the meta device, and run it forward and backward.

    Every result that requires a gradient receives one; the gradients that the target asks for are
    computed. No memory is allocated and no arithmetic done. `met` holds the calls of earlier runs,
    and receives those of this run; with `shapes` the shapes of all results are kept. Raises
    TraceError: the module cannot be built or run on the meta device; one sentence."""
    with torch.enable_grad(), without_garbage_collection():
        loaded = COMPILER in sys.modules
        found = _observed(target, sizes, backend, shapes, met)
        # a run that imported the compiler may have counted operations of the import
        if not loaded and COMPILER in sys.modules:
            found = _observed(target, sizes, backend, shapes, met)
        return found


def _observed(
    target: Target,
    sizes: Sizes,
    backend: Backend,
    shapes: bool,
    met: dict[CallKey, KnownCall] | None,
) -> Observation:
    """Run the module, forward and backward on the meta device, and return what it dispatches and
    holds; after the return nothing refers to the module, so that its storages are freed. `shapes`:
    whether the shapes of all results are kept; `met`: the calls of earlier runs, which receives
    those of this run. TraceError: the module cannot be built or run, or more than `MOST_BYTES` are
    alive."""
    built = build_target(target, sizes)
    with as_trace_error(target, sizes):
        recorder = Recorder(list(owned_tensors(built)), shapes=shapes, met=met)
        with backend(recorder):
            activations = run_recorded(built, recorder)
        if max(recorder.alive, default=0) > MOST_BYTES:
            raise Untraceable(
                f"at {listed_sizes(sizes)} the module holds more than 2**63 bytes at once"
            )
    by_op = recorder.by_operation()
    passed_back = bool(recorder.names) and recorder.names[-1].startswith("backward ")
    return Observation(
        numbers_of(
            by_op,
            sum(p.numel() for p in built.module.parameters()),
            built.frozen,
            activations,
            recorder.bytes_made,
            recorder.alive,
        ),
        array("q", recorder.alive),
        tuple(recorder.names),
        tuple(recorder.shapes or ()),
        recorder.decomposed,
        frozenset(recorder.stepped),
        frozenset(built.misread),
        by_op,
        tuple(recorder.at_peak()),
        built.differentiated if passed_back else frozenset(),
        built.modes,
    )


def numbers_of(
    by_op: Mapping[tuple[str, str], CountedOperation],
    parameters: int,
    frozen: int,
    activations: int,
    made: int,
    alive: Sequence[int],
) -> dict[Quantity, int]:
    """(part, kind) -> number, for every quantity of a call: operations, parameters, bytes. `by_op`:
    (phase, operation) -> its counts. `parameters` and `frozen` are numbers of entries,
    `activations` and `made` bytes; `alive` holds the bytes alive after each operation. A count of 0
    is left out, except the parameters, and the bytes of activations, of all results and of the
    peak."""
    found = totals(by_op)
    found["parameters", ""] = parameters
    if frozen:
        found["parameters", "frozen"] = frozen
    found["bytes", "activations"] = activations
    found[MADE], found[PEAK] = made, max(alive, default=made)
    return found


def totals(by_op: Mapping[tuple[str, str], CountedOperation]) -> dict[Quantity, int]:
    """A dict without zeros: (phase, class of scalar operation) -> number, as ("forward", "mul"); an
    operation without a counting rule has its calls and bytes, as ("forward calls", its name) and
    ("forward bytes", its name). `by_op`: (phase, name of an operation) -> the counts."""
    found: Counter[Quantity] = Counter()
    for (phase, name), counted in by_op.items():
        if not counted.known:
            found[f"{phase} calls", name] += counted.calls
            found[f"{phase} bytes", name] += counted.bytes_touched
            continue
        operations = counted.operations.to_json()
        for class_, number in (*operations.pop("other").items(), *operations.items()):
            found[phase, class_] += number
    return {quantity: number for quantity, number in found.items() if number}


def run_recorded(built: Built, recorder: Recorder, inner: Any = None) -> int:
    """Run a module forward, then backward from an empty gradient of every result that requires one
    (no backward if none does).

    Args:
        recorder: receives the operations and storages of both passes.
        inner: a dispatch mode that sees calls before the recorder does.

    Returns:
        The bytes that the forward pass saves for the backward: each storage once and whole, without
        parameters and buffers.
    """
    followed = recorder.accumulation.watching()
    with eager(), refusing_autocast(), followed, on_meta(), recorder, inner or nullcontext():
        saved = UnwrittenTensors()
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            results = built.module(*built.args, **built.kwargs)
        owned = tensor_keys((*built.module.parameters(), *built.module.buffers()))
        storages = saved.storages_beside(owned)
        activations: int = sum(storage.nbytes() for storage in storages)
        wanted = list(differentiable(results))
        storages.clear()  # so that the backward pass frees them
        recorder.phase = "backward"
        if wanted:
            torch.autograd.backward(wanted, [torch.empty_like(t) for t in wanted])
    return activations


def eager() -> AbstractContextManager[None]:
    """A context in which functions marked for compilation run eagerly: compiled code does not
    dispatch operations, and the compiler must not trace the modes that record calls."""
    asked = COMPILER in sys.modules
    return torch.compiler.set_stance("force_eager") if asked else nullcontext()


@contextmanager
def refusing_autocast() -> Iterator[None]:
    """A context that refuses torch.autocast: on the meta device autocast converts nothing, so
    operations would be counted in another dtype than on other devices. With device type "meta", for
    which torch raises, a disabled autocast does nothing, and torch.is_autocast_enabled answers
    False."""
    home: Any = torch
    kind: Any = torch.autocast
    enter, init, is_enabled = kind.__enter__, kind.__init__, torch.is_autocast_enabled

    def init_as_cpu(region: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(region, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    def enabled(*device_type: str) -> bool:
        return device_type != ("meta",) and is_enabled(*device_type)

    def enter_disabled(region: Any) -> Any:
        """Refuse an enabled autocast region, which converts nothing here."""
        if region._enabled:
            raise Untraceable(
                "torch.autocast converts nothing on the meta device: leave out autocast, and build "
                "the module and its inputs in the wanted dtype"
            )
        return enter(region)

    kind.__enter__, kind.__init__, home.is_autocast_enabled = enter_disabled, init_as_cpu, enabled
    try:
        yield
    finally:
        kind.__enter__, kind.__init__, home.is_autocast_enabled = enter, init, is_enabled


class Versioned(PackedTensor):
    """A saved tensor as passed by torch, with the version of its contents."""

    __slots__ = ("version",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version


class UnwrittenTensors(SavedTensors):
    """The tensors that autograd saves; as in autograd, unpacking fails after a write into one."""

    packs = Versioned

    @staticmethod
    def unpack(packed: PackedTensor) -> Tensor:
        """Return the tensor that autograd saved as `packed`; RuntimeError if it changed since."""
        if isinstance(packed, Versioned) and packed.tensor._version != packed.version:
            raise RuntimeError(
                f"a tensor {tuple(packed.tensor.shape)} that a gradient needs has been modified by "
                f"an inplace operation"
            )
        return packed.tensor

    def storages_beside(self, owned: Container[StorageKey]) -> list[Any]:
        """The storages that are still referenced, except those in `owned`."""
        with torch._C.DisableTorchFunction():
            found = {tensor_key(t): t.untyped_storage() for t in self.tensors()}
        return [storage for place, storage in found.items() if place not in owned]


def differentiable(results: Any) -> Iterator[Tensor]:
    """Yield each tensor of the results through which gradients flow back."""
    for tensor in nested_tensors(results):
        if tensor.requires_grad and tensor.grad_fn is not None:
            yield tensor


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A context without the garbage collector, which would free tensors at arbitrary moments; if
    the collector was on, it collects young objects afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
            gc.collect(0)


SMALL = 10**7
"""The most parameter entries of a module that is made on a CPU to see whether it runs there."""


def beside_meta(target: Target, sizes: Sizes) -> str:
    """The words to append to the error of a module that fails on the meta device: that it runs on a
    CPU, and in which dtypes it runs on the meta device; "" if it fails on a CPU too, cannot be
    built, or has more than `SMALL` parameter entries."""

    def runs(dtype: torch.dtype | None, device: str) -> bool:
        """Whether a forward pass in this dtype (None: the module's own) runs on this device."""
        quiet = warnings.catch_warnings(action="ignore")
        try:
            with as_exception(), torch.no_grad(), torch.device(device), quiet:
                built = build_target(target, sizes) if device == "meta" else make(target, sizes)
                module = built.module if dtype is None else built.module.to(dtype)
                args, kwargs = tree_map(
                    lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x,
                    (tuple(built.args), dict(built.kwargs)),
                )
                module(*args, **kwargs)
        except Exception:  # any failure means that the module does not run
            return False
        return True

    try:
        small = sum(p.numel() for p in build_target(target, sizes).module.parameters()) <= SMALL
    except TraceError:
        return ""
    if not (small and runs(None, "cpu")):
        return ""
    said = "; the module runs on a CPU, but not on the meta device, where it is traced"
    types = [d for d in (torch.bfloat16, torch.float16, torch.float64) if runs(d, "meta")]
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in types)
    return f"{said}: it can be traced in {names}" if names else said
