"""What does one call of a module do, forward and backward, at one set of sizes?"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from profiler.meters.memory_saved import keys, saving
from profiler.tracing.constants import on_meta
from profiler.tracing.recorder import Backend, Counted, Recorder
from profiler.tracing.target import Built, Sizes, Target, build, explained

Quantity = tuple[str, str]
"""What is counted and of which kind: ("forward", "mul"), ("bytes", "activations")."""

PEAK: Quantity = ("bytes", "peak")
MADE: Quantity = ("bytes", "made")
"""Everything that is made, alive or not: it shows which powers the bytes alive may have."""


@dataclass(frozen=True)
class Observation:
    """One call at one point: every quantity, and the bytes alive after each operation.

    `shapes` are those of all results in order, where they were asked for; `by_op` holds every
    operation that is no move, by phase and name.
    """

    quantities: Mapping[Quantity, int]
    alive: Sequence[int] = ()
    names: Sequence[str] = ()
    """What was dispatched at each of those moments."""
    shapes: Sequence[tuple[int, ...]] = ()
    decomposed: frozenset[str] = frozenset()
    stepped: frozenset[str] = frozenset()
    """Recurrent layers that ran step by step, as they do on the meta device."""
    misread: frozenset[str] = frozenset()
    """Layers that took the batch of x for its length."""
    by_op: Mapping[tuple[str, str], Counted] = field(default_factory=dict)


def tensors_of(built: Built) -> Iterator[Tensor]:
    """Parameters, buffers and inputs."""
    yield from built.module.parameters()
    yield from built.module.buffers()
    yield from (t for t in tree_leaves((built.args, built.kwargs)) if isinstance(t, Tensor))


def observe(target: Target, sizes: Sizes, backend: Backend, *, shapes: bool = False) -> Observation:
    """Build the module at these sizes on the meta device, and run it forward and backward.

    A gradient comes in for every result that has one; the gradients of all parameters and of the
    inputs are made. Nothing is allocated and nothing is computed.

    Raises:
        TraceError: the module cannot be built or run so; one sentence.
    """
    with torch.enable_grad(), unswept():
        return _observed(target, sizes, backend, shapes)


def _observed(target: Target, sizes: Sizes, backend: Backend, shapes: bool) -> Observation:
    """The same; nothing of the module is left when this returns."""
    built = build(target, sizes)
    with explained(target, sizes):
        recorder = Recorder(list(tensors_of(built)), shapes=shapes)
        with backend(recorder):
            run(built, recorder)
        activations = saved_bytes(built, backend, recorder)
    by_op = recorder.by_operation()
    quantities = totals(by_op)
    quantities["parameters", ""] = sum(p.numel() for p in built.module.parameters())
    quantities["bytes", "activations"] = activations
    quantities[MADE] = recorder.bytes_made
    quantities[PEAK] = max(recorder.alive, default=recorder.bytes_alive)
    return Observation(
        quantities,
        array("q", recorder.alive),
        tuple(recorder.names),
        tuple(recorder.shapes or ()),
        frozenset(recorder.decomposed),
        frozenset(recorder.stepped),
        frozenset(built.misread),
        by_op,
    )


def totals(by_op: Mapping[tuple[str, str], Counted]) -> dict[Quantity, int]:
    """Operations by phase and class, with calls and bytes of what has no rule."""
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


def run(built: Built, recorder: Recorder, inner: Any = None) -> None:
    """Forward, then backward from a gradient of every result that has one; `inner` is a mode that
    sees the calls before the recorder."""
    with recorder.accumulation.watching(), on_meta(), recorder, inner or nullcontext():
        results = built.module(*built.args, **built.kwargs)
        wanted = list({id(t): t for t in differentiable(results)}.values())
        recorder.phase = "backward"
        if wanted:
            torch.autograd.backward(wanted, [torch.empty_like(t) for t in wanted])


def differentiable(results: Any) -> Iterator[Tensor]:
    """Every tensor of the results that a gradient flows back from."""
    for leaf in tree_leaves(results):
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is not None:
            yield leaf


def saved_bytes(built: Built, backend: Backend, before: Recorder) -> int:
    """Bytes that the forward pass saves for the backward, each storage once and whole,
    parameters and buffers left out."""
    owned = keys((*built.module.parameters(), *built.module.buffers()))
    again = Recorder(like=before)
    with saving() as saved, on_meta(), backend(again), again:
        results = built.module(*built.args, **built.kwargs)
    storages = saved.storages()
    del results  # and with them the graph that held what was saved
    return sum(
        tensors[0].untyped_storage().nbytes()
        for place, tensors in storages.items()
        if place not in owned
    )


@contextmanager
def unswept() -> Iterator[None]:
    """Without the garbage collector, whose moments are no part of what a module does; what is left
    is collected afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
            gc.collect(0)
