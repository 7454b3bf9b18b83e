"""A module without equations as a subject of measurements.

The module is made as by `costmodel trace`: by a class, or by a function whose parameters name the
sizes and which may also return the inputs. Formulas from its trace, at the sizes, stand in place of
derived counts, beside the dispatched operations.
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
from profiler.modules.building import draw_parameters
from profiler.modules.registry import Implementation
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
"""Phase -> the passes of a trace that make up the phase."""

BACKEND = "fused"
"""The trace's backend: attention, recurrent cells and norms are one operation each, as
dispatched."""


@dataclass(frozen=True)
class PlainModule:
    """A module without equations, given by the class or function that makes it."""

    target: Target

    @property
    def origin(self) -> str:
        """The module as a user names it: FILE.py:NAME."""
        return self.target.name

    @property
    def name(self) -> str:
        """The name of the class or function."""
        return self.origin.rpartition(":")[2]

    def implementations(self) -> dict[str, Implementation]:
        """The only implementation: the module itself, with no form of equations."""
        made = cast(type[nn.Module], self.target.make)
        only = Implementation(self.origin, MODULE, made, "", (), None, None, (), None)
        return {MODULE: only}

    def combinations(self, phase: str, given: Given) -> list[dict[str, int]]:
        """Every combination of the sizes, as dicts letter -> size: the sizes that the parameters
        name, by default with the parameters' defaults, and b, l and d of the input x (b, l, d). A
        function that returns inputs of its own has only the sizes that its parameters name. `phase`
        is not used: all phases have the same sizes. Raises SizeError: there are more than 100,000,
        or the function fails when its inputs are asked for."""
        named = named_sizes(self.target, given)
        given = {x: (usual,) for x, usual in named.items() if usual is not None} | dict(given)
        letters = [x for x in LETTERS if x in {*named, "b", "l", "d"}]
        found = combinations(letters, given)
        # the first combination shows whether a function returns inputs of its own
        if isinstance(self.target.make, type) or not self._on_meta(found[0]).own_inputs:
            return found
        return combinations([x for x in letters if x in named], given)

    def fit(self, sizes: Mapping[str, int]) -> None:
        """SizeError, with one sentence, for sizes at which the module cannot be built, or does not
        accept its inputs."""
        self._on_meta(sizes)

    def _on_meta(self, sizes: Mapping[str, int]) -> BuiltOnMeta:
        try:
            return build_target(self.target, sizes)
        except TraceError as error:
            raise SizeError(str(error)) from error

    def without_token(self, implementation: Implementation) -> str:
        """Why the module cannot mix one new token."""
        return "it has no equations"

    def build(
        self,
        implementation: Implementation,
        sizes: Mapping[str, int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        seed: int,
        drawn: bool = True,
    ) -> Built:
        """Make the module and its inputs. Its parameters are drawn as those of the catalogue's
        modules or, without `drawn`, stay as its class makes them. `implementation` is not used, as
        there is one. Raises TraceError: the module cannot be built."""
        where = torch.device(device)
        with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []), where:
            torch.manual_seed(seed)
            made = make(self.target, sizes)
        module = made.module.to(device=where, dtype=dtype)
        if drawn:
            draw_parameters(module, seed)
        return with_inputs(module, made, where)

    def traced(self, phase: str, sizes: Mapping[str, int]) -> Operations | Unavailable:
        """The operations of a phase by the formulas of the module's trace, at these sizes, or the
        reason why they are unknown."""
        try:
            return traced_at(self.target, phase_name(phase), sizes)
        except TraceError as error:
            return Unavailable(str(error))

    def flagged(self, measurement: Measurement) -> Measurement:
        """The measurement itself: without equations no reading has a floor."""
        return measurement


def named_sizes(target: Target, given: Given) -> dict[str, int | None]:
    """A dict: size -> default, for the parameters of a class or function that name sizes of mixers
    (letters of `LETTERS`, except h and those of networks).

    The default is None for a parameter without default. A parameter whose default is no whole
    number (`n=None`) is left out, unless `given` has the size; its default is then None.
    """
    found: dict[str, int | None] = {}
    for name, taken in parameters_of(target).items():
        if name not in LETTERS or LETTERS[name].networks or name == "h":  # h follows from d and n
            continue
        whole = isinstance(taken.default, int) and not isinstance(taken.default, bool)
        if whole or taken.default is taken.empty or name in given:
            found[name] = taken.default if whole else None
    return found


class Bound(nn.Module):
    """A module with nested or keyword inputs, as a module of positional tensors. `leaves` and
    `structure` are the inputs as torch's pytree flattens them; `places` has for each leaf the
    number of its tensor among the positional tensors, or None for other values."""

    def __init__(
        self, module: nn.Module, leaves: Sequence[Any], places: Sequence[int | None], structure: Any
    ) -> None:
        """Wrap `module`."""
        super().__init__()
        self.module = module
        self.leaves, self.places, self.structure = leaves, places, structure

    def forward(self, *tensors: Tensor) -> Any:
        """The module's result, with these tensors in place of its input tensors."""
        pairs = zip(self.leaves, self.places, strict=True)
        leaves = [leaf if place is None else tensors[place] for leaf, place in pairs]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return self.module(*args, **kwargs)


def with_inputs(module: nn.Module, made: Made, device: torch.device) -> Built:
    """Make the module a module of positional tensors alone, and return it with the tensors of its
    call (`made`) by name: those of floating point on meta, as shapes, others on `device`.

    A tensor has the name of its parameter in `forward`, with its place inside a nested input
    (`pair[0]`); without a name in `forward` the second is `input 2`. A tensor that occurs twice is
    listed once. The module is returned as it is if it takes distinct tensors alone, by position.
    """
    paths, structure = tree_flatten_with_path((made.args, dict(made.kwargs)))
    names = positional(module)
    names += [f"input {n + 1}" for n in range(len(names), len(made.args))]
    found: dict[str, Tensor] = {}
    places: list[int | None] = []
    known: dict[int, int] = {}  # id of a tensor -> its index in `found`
    path: Any  # (0 for args or 1 for kwargs, index or keyword, keys inside the input ...)
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
    """The names of the positional parameters of a module's forward; [] if Python cannot tell."""
    try:
        taken = inspect.signature(module.forward).parameters.values()
    except ValueError:  # one of torch's forwards, written in C++
        return []
    return [p.name for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def traced_at(target: Target, phase: str, sizes: Mapping[str, int]) -> Operations | Unavailable:
    """The operations of a phase at these sizes, by the formulas of the module's trace. The formulas
    are in l and d, or in all sizes if there is neither l nor d; other sizes are numbers in them.
    Unavailable below the sizes from which the formulas hold, or if an operation has no counting
    rule. Raises TraceError: the module cannot be traced, or a part of it has no formula."""
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
    """Trace a module, and return its formulas in the letters `over`, with `fixed` (letter, size) as
    numbers, in train or eval mode: the mode in which the phase runs the module."""
    sizes = parse_variables(over, {x: str(value) for x, value in fixed})
    asked = replace(target, grad="both", mode="train" if train else "eval")
    return trace_case(asked, sizes, BACKEND, frozenset())
