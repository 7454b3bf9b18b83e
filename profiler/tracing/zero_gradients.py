"""Formulas of the part of a backward pass that computes with zeros that pad gradients.

Example: the gradient of x[:, :k] is padded with zeros to the shape of x, and the operations that
follow also compute with these zeros. Masks follow them entry by entry in a separate backward pass
(`counting/zero_gradients.py`), run at fewer sizes than the rest: this part needs no higher power of
any size than the whole pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from costmodel.language.functions import CLASSES
from costmodel.symbolic.polynomial import Poly
from profiler.counting.operations import Operations
from profiler.counting.zero_gradients import EMPTY, FILLING, spent_on_zeros
from profiler.tracing.interpolation import Axis, Point, shortest_formulas
from profiler.tracing.meta_run.observe import MADE, differentiable, eager
from profiler.tracing.meta_run.recorder import Backend, Recorder
from profiler.tracing.meta_run.shape_values import on_meta
from profiler.tracing.meta_run.target import Sizes, Target, as_trace_error, build_target
from profiler.tracing.result import Break, ZeroArithmetic
from profiler.tracing.size_samples import SizeSamples

FILLS = frozenset(f"backward aten::{name}" for name in (*FILLING, *EMPTY))
"""Operations of a backward pass that pad gradients with zeros, as an observation names them."""

MOST_MADE = 2**25
"""Formulas are not tested at sizes at which the passes make more bytes than this, as masks of all
entries are written and read several times."""


def zero_arithmetic(
    samples: SizeSamples,
    axes: Sequence[Axis],
    held: Sequence[Point],
    proven: Sequence[Point],
    *,
    whole: bool,
) -> ZeroArithmetic:
    """Find formulas, by class, of the number of the backward pass's operations on zeros that pad
    gradients; empty if no run pads a gradient. A formula that fails at a tested point becomes a
    `Break`, the record of the failure. `axes` are the functions of each letter that formulas are
    made of.

    Args:
        held: points at or below the first sizes.
        proven: points at which the whole pass is proven. Formulas are tested at points of both
            whose runs make at most `MOST_MADE` bytes; others of `proven` become `untested`.
        whole: whether all products of the axes' functions are tried in a formula.

    Raises:
        TraceError: the pass cannot be followed; one sentence.
    """
    if all(FILLS.isdisjoint(seen.names) for seen in samples.seen.values()):
        return ZeroArithmetic()
    known: dict[Point, Mapping[str, int]] = {}

    def numbers(point: Point) -> Mapping[str, int]:
        """A dict: class -> number of operations with zeros at a point, by a run there."""
        if point not in known:
            sizes = samples.variables.sizes(samples.named(point))
            known[point] = samples.joined_counts(
                [by_class(zero_arithmetic_at(t, sizes, samples.backend)) for t in samples.targets]
            )
        return known[point]

    polys: dict[str, Poly] = shortest_formulas(axes, numbers, whole=whole)
    found: dict[str, Poly | Break] = dict(polys)
    made = {point: samples.at(point).quantities[MADE] for point in (*held, *proven)}
    most = max(MOST_MADE, min(made.values(), default=0))  # at least one point is tested
    few = [point for point in made if made[point] <= most]
    for point in sorted(few, key=lambda p: (-sum(p), p)):
        sizes = samples.named(point)
        for name in dict.fromkeys((*found, *numbers(point))):
            poly, counted = polys.get(name, Poly()), numbers(point).get(name, 0)
            if (gives := poly.rational(sizes)) != counted:
                found[name] = Break(sizes, str(poly), str(gives), counted)
    untested = [point for point in proven if made[point] > most]
    return ZeroArithmetic(found, [samples.variables.sizes(samples.named(p)) for p in untested])


def by_class(operations: Operations) -> dict[str, int]:
    """Operations by class, those of 0 left out; classes outside `CLASSES` under their own names."""
    counted = operations.to_json()
    named = {**{name: counted[name] for name in CLASSES}, **counted["other"]}
    return {name: number for name, number in named.items() if number}


def zero_arithmetic_at(target: Target, sizes: Sizes, backend: Backend) -> Operations:
    """Run a module, and count the operations of its backward pass on zeros that pad gradients, at
    one set of sizes. Raises TraceError: the module does not run while its zeros are followed entry
    by entry; one sentence."""
    with torch.enable_grad():
        built = build_target(target, sizes)
        recorder = Recorder()
        with as_trace_error(target, sizes):
            with eager(), on_meta(), backend(recorder), recorder:
                results = built.module(*built.args, **built.kwargs)
            wanted = list(differentiable(results))
            given = [torch.empty_like(t) for t in wanted]
            return spent_on_zeros(lambda: torch.autograd.backward(wanted, given))
