"""What of a traced backward pass is arithmetic with zeros that fill up gradients, as formulas?

Such zeros are followed in a backward pass of their own, entry by entry, and at fewer sizes than the
rest: along every size they need no higher power than the whole pass, of which they are a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from costmodel.language.functions import CLASSES
from costmodel.symbolic.polynomial import Poly
from profiler.counting.operations import Operations
from profiler.counting.zero_gradients import EMPTY, FILLING, spent_on_zeros
from profiler.tracing.interpolation import Axis, Point, shortest
from profiler.tracing.meta_run.observe import differentiable, eager
from profiler.tracing.meta_run.recorder import Backend, Recorder
from profiler.tracing.meta_run.shape_values import on_meta
from profiler.tracing.meta_run.target import Sizes, Target, build, explained
from profiler.tracing.result import Break
from profiler.tracing.size_samples import Points

FILLS = frozenset(f"backward aten::{name}" for name in (*FILLING, *EMPTY))
"""What a pass dispatches that fills gradients up, as an observation names it."""


def zeros(
    points: Points, axes: Sequence[Axis], held: Sequence[Point], *, whole: bool
) -> dict[str, Poly | Break]:
    """Class of operations -> how many of the backward pass are with such zeros; empty where it
    fills nothing up.

    Args:
        held: sizes that no formula is found from and every one is held against.
        whole: as `interpolate`.

    Raises:
        TraceError: the pass cannot be followed; one sentence.
    """
    if all(FILLS.isdisjoint(seen.names) for seen in points.seen.values()):
        return {}
    known: dict[Point, Mapping[str, int]] = {}

    def numbers(point: Point) -> Mapping[str, int]:
        if point not in known:
            sizes = points.variables.sizes(points.named(point))
            known[point] = by_class(followed(points.target, sizes, points.backend))
        return known[point]

    polys: dict[str, Poly] = shortest(axes, numbers, whole=whole)
    found: dict[str, Poly | Break] = dict(polys)
    for point in sorted(held, key=lambda p: (-sum(p), p)):
        sizes = points.named(point)
        for name in {*found, *numbers(point)}:
            poly, counted = polys.get(name, Poly()), numbers(point).get(name, 0)
            if (gives := poly.rational(sizes)) != counted:
                found[name] = Break(sizes, str(poly), str(gives), counted)
    return found


def by_class(operations: Operations) -> dict[str, int]:
    """Operations by class, those without a column of their own by name."""
    counted = operations.to_json()
    named = {**{name: counted[name] for name in CLASSES}, **counted["other"]}
    return {name: number for name, number in named.items() if number}


def followed(target: Target, sizes: Sizes, backend: Backend) -> Operations:
    """What the backward pass of a module does with such zeros at one set of sizes.

    Raises:
        TraceError: the module cannot be run so; one sentence.
    """
    with torch.enable_grad():
        built = build(target, sizes)
        recorder = Recorder()
        with explained(target, sizes):
            with eager(), on_meta(), backend(recorder), recorder:
                results = built.module(*built.args, **built.kwargs)
            wanted = list(differentiable(results))
            given = [torch.empty_like(t) for t in wanted]
            return spent_on_zeros(lambda: torch.autograd.backward(wanted, given))
