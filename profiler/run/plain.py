"""What is measured of a module without equations, and what stands in the place of these?

The module is made as `costmodel trace` makes it: a class, or a function of the sizes that its
parameters name, which may return the inputs, too. Its operations as traced, formulas at the sizes,
stand beside those that were dispatched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from costmodel.errors import SizeError
from costmodel.program.chosen_sizes import Given, combinations
from costmodel.program.phases import phase_name
from costmodel.symbolic.sizes import LETTERS
from profiler.counting.operations import Operations
from profiler.modules.registry import Implementation, draw_parameters
from profiler.records.measurement import Measurement
from profiler.records.reading import Unavailable
from profiler.run.inputs import Built
from profiler.tracing.meta_run.target import (
    Built as BuiltOnMeta,
    Made,
    Target,
    TraceError,
    build_target,
    listed_sizes,
    make,
    parameters_of,
    parse_variables,
)
from profiler.tracing.result import Trace
from profiler.tracing.trace import trace_case

MODULE = "module"
"""The name of the only implementation of a module without equations."""

PASSES = {
    "training": ("forward",),
    "backward": ("backward",),
    "training-step": ("forward", "backward"),
}
"""Phase -> the passes of a trace that it consists of."""

BACKEND = "fused"
"""Attention, recurrent cells and norms are one operation each, as a device dispatches them."""


def without_equations(name: str) -> str:
    """Why nothing is held against theory, and what can be asked for instead."""
    return (
        f"{name} has no equations to be held against: `costmodel trace {name} --over l,d` counts "
        f"it as formulas, and --impl {name} measures it as an implementation of a mixer"
    )


@dataclass(frozen=True)
class PlainModule:
    """A module without equations, by the class or function that makes it."""

    target: Target

    @property
    def origin(self) -> str:
        """How a user names it: FILE.py:NAME."""
        return self.target.name

    @property
    def name(self) -> str:
        """The name of the class or function."""
        return self.origin.rpartition(":")[2]

    def implementations(self) -> dict[str, Implementation]:
        """The module itself, which executes no form of any equations."""
        made = cast(type[nn.Module], self.target.make)
        only = Implementation(self.origin, MODULE, made, "", (), None, None, (), None)
        return {MODULE: only}

    def combinations(self, phase: str, given: Given) -> list[dict[str, int]]:
        """Every combination of its sizes: those that its parameters name, with the defaults that
        they have, and b, l and d of an x (b, l, d) that is made for it.

        Raises:
            SizeError: more than 100,000 of them, or a function that cannot be asked for its inputs.
        """
        named = named_sizes(self.target, given)
        given = {x: (usual,) for x, usual in named.items() if usual is not None} | dict(given)
        letters = [x for x in LETTERS if x in {*named, "b", "l", "d"}]
        found = combinations(letters, given)
        if isinstance(self.target.make, type) or not self._on_meta(found[0]).own_inputs:
            return found
        return combinations([x for x in letters if x in named], given)

    def fit(self, sizes: Mapping[str, int]) -> None:
        """Refuse sizes at which the module cannot be built, or is called with other inputs than it
        takes.

        Raises:
            SizeError: one sentence.
        """
        self._on_meta(sizes)

    def _on_meta(self, sizes: Mapping[str, int]) -> BuiltOnMeta:
        try:
            return build_target(self.target, sizes)
        except TraceError as error:
            raise SizeError(str(error)) from error

    def without_token(self, implementation: Implementation) -> str:
        """Why it cannot mix one new token."""
        return "it has no equations"

    def build(
        self,
        implementation: Implementation,
        sizes: Mapping[str, int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        seed: int,
    ) -> Built:
        """The module with random parameters, as those of the catalogue have them, and its inputs.

        Raises:
            TraceError: the module cannot be built.
        """
        where = torch.device(device)
        with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []), where:
            torch.manual_seed(seed)
            made = make(self.target, sizes)
        module = made.module.to(device=where, dtype=dtype)
        draw_parameters(module, seed)
        return with_inputs(module, made, where)

    def traced(self, phase: str, sizes: Mapping[str, int]) -> Operations | Unavailable:
        """The operations of a phase by the formulas of its trace, at these sizes."""
        try:
            return traced_at(self.target, phase_name(phase), sizes)
        except TraceError as error:
            return Unavailable(str(error))

    def flagged(self, measurement: Measurement) -> Measurement:
        """The measurement as it is: without equations no reading has a floor."""
        return measurement


def named_sizes(target: Target, given: Given) -> dict[str, int | None]:
    """The sizes that the parameters of a class or function name, each with its default; of those
    whose default is no whole number, the sizes that are given."""
    found: dict[str, int | None] = {}
    for name, taken in parameters_of(target).items():
        if name not in LETTERS or LETTERS[name].networks or name == "h":
            continue
        whole = isinstance(taken.default, int) and not isinstance(taken.default, bool)
        if whole or taken.default is taken.empty or name in given:
            found[name] = taken.default if whole else None
    return found


class Bound(nn.Module):
    """A module whose inputs are more than tensors one after the other, as one that takes the
    tensors alone."""

    def __init__(
        self, module: nn.Module, leaves: Sequence[Any], places: Sequence[int | None], structure: Any
    ) -> None:
        """`places`: of each leaf of the inputs, which of the tensors it is; None where it is
        none."""
        super().__init__()
        self.module = module
        self.leaves, self.places, self.structure = leaves, places, structure

    def forward(self, *tensors: Tensor) -> Any:
        """The module's result, with these tensors in the places of its own."""
        pairs = zip(self.leaves, self.places, strict=True)
        leaves = [leaf if place is None else tensors[place] for leaf, place in pairs]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return self.module(*args, **kwargs)


def with_inputs(module: nn.Module, made: Made, device: torch.device) -> Built:
    """The module as one of tensors, and these by the names that its forward gives them; a tensor
    that is given twice is one."""
    paths, structure = tree_flatten_with_path((made.args, dict(made.kwargs)))
    names = [*positional(module), *(f"input {n + 1}" for n in range(len(made.args)))]
    found: dict[str, Tensor] = {}
    places: list[int | None] = []
    known: dict[int, int] = {}
    path: Any
    for path, leaf in paths:
        if not isinstance(leaf, Tensor):
            places.append(None)
            continue
        if id(leaf) not in known:
            known[id(leaf)] = len(found)
            name = names[path[1].idx] if path[0].idx == 0 else path[1].key
            found[name + keystr(path[2:])] = leaf.to("meta" if leaf.is_floating_point() else device)
        places.append(known[id(leaf)])
    if all(isinstance(each, Tensor) for each in made.args) and places == [*range(len(made.args))]:
        return Built(module, found)
    leaves = [None if isinstance(leaf, Tensor) else leaf for _, leaf in paths]
    return Built(Bound(module, leaves, places, structure), found)


def positional(module: nn.Module) -> list[str]:
    """The names of what a module's forward takes one after the other."""
    try:
        taken = inspect.signature(module.forward).parameters.values()
    except ValueError:  # a forward of torch's own, written in C++
        return []
    return [p.name for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def traced_at(target: Target, phase: str, sizes: Mapping[str, int]) -> Operations | Unavailable:
    """The operations of a phase by the formulas in l and d, or in all sizes where it has neither;
    the other sizes have their values in them.

    Raises:
        TraceError: the module cannot be traced, or something in it has no formula.
    """
    over = [x for x in ("l", "d") if x in sizes] or list(sizes)
    fixed = tuple((x, value) for x, value in sizes.items() if x not in over)
    found = formulas(target, tuple(over), fixed, phase != "training")
    at = {x: sizes[x] for x in over}
    if any(at[x] < least for x, least in found.since.items()):
        return Unavailable(f"the formulas of its trace hold from {listed_sizes(found.since)} on")
    if found.uncounted:
        listed = ", ".join(dict.fromkeys(each.name for each in found.uncounted))
        return Unavailable(f"its trace has no counting rule for {listed}")
    return sum((found.at(part, **at) for part in PASSES[phase]), Operations())


@functools.cache
def formulas(
    target: Target, over: tuple[str, ...], fixed: tuple[tuple[str, int], ...], train: bool
) -> Trace:
    """The trace of a module in train mode or in eval mode, the one in which a phase runs it."""
    sizes = parse_variables(over, {x: str(value) for x, value in fixed})
    asked = replace(target, grad="both", mode="train" if train else "eval")
    return trace_case(asked, sizes, BACKEND, frozenset())
