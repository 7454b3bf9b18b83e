"""On which small cases is a module compared with its equations, and where does it fail first?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from costmodel.errors import SizeError, Unsupported, as_exception
from costmodel.language.buffers import buffer_values, last_positions
from costmodel.language.equations import Mixer
from costmodel.language.nodes import Array
from costmodel.proofs.check import Proof, first_apart
from costmodel.proofs.tried_sizes import module_sizes, words
from profiler.counting.call import higher_order_reason
from profiler.modules.registry import Implementation, build
from profiler.records.reading import reason_of

if TYPE_CHECKING:
    import numpy as np

    Values = Mapping[str, np.ndarray[Any, Any]]

TOLERANCE = 1e-9
"""Relative to the largest output: the rounding of float64 sums of some dozen terms in another
order."""

BATCH = 2
"""Sequences per call, so that a module that mixes sequences of one batch fails."""


@dataclass(frozen=True)
class ModuleCase:
    """A module in float64, and the equations' arrays with the same weights."""

    mixer: Mixer
    sizes: Mapping[str, int]
    module: nn.Module
    x: torch.Tensor
    """(batch, l, d)"""
    beside: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The further inputs, then the contexts, by name: (batch, ...)."""
    asks: bool = True
    """Whether gradients of what is given are asked for, beside those of parameters."""

    @cached_property
    def registered(self) -> Values:
        """The buffers of the equations that the module registers, by name; positions, which torch
        counts from 0, from 1."""
        held = {name: tensor.numpy() for name, tensor in self.module.named_buffers()}
        return {
            array.name: held[array.name] + (array.below is not None)
            for array in self.mixer.buffers
            if array.name in held
        }

    def arrays(self, sample: int = 0) -> Values:
        """One sequence of x, the parameters and the buffers, as the equations name them; a buffer
        has the equations' values, or else the module's."""
        named = {name: p.detach().numpy() for name, p in self.module.named_parameters()}
        own = {
            a.name: buffer_values(a, self.sizes) for a in self.mixer.buffers if a.value is not None
        }
        named |= {**self.registered, **own}
        given = {array.name: tensor[sample].numpy() for array, tensor in self.given().items()}
        counted = {a.name: given[a.name] + (a.below is not None) for a in self.given()}
        return named | counted

    def given(self) -> dict[Array, torch.Tensor]:
        """What the module is called with, by array: the input, the further inputs, the contexts."""
        return dict(zip((self.mixer.role("input"), *self.mixer.beside), self.call, strict=True))

    @property
    def call(self) -> tuple[torch.Tensor, ...]:
        """What the module is called with, in order."""
        return (self.x, *self.beside.values())

    def forward(self) -> Any:
        """The module's result for these sequences."""
        return self.module(*self.call)

    def initial_state(self) -> Any:
        """The module's empty state for these sequences."""
        make: Any = self.module.initial_state
        return make(*self.x.shape[:2], *self.beside.values())

    def step(self, t: int, state: Any) -> Any:
        """The module's row for token t, whose state is updated."""
        return self.module.step(self.x[:, t - 1], state)  # type: ignore[operator]


def case(mixer: Mixer, implementation: Implementation, sizes: Mapping[str, int]) -> ModuleCase:
    """The module at these sizes and random sequences."""
    given = dict(sizes) | {"b": BATCH}
    module = build(implementation, given, device="cpu", dtype=torch.float64, seed=1).eval()
    return ModuleCase(mixer, sizes, module, *inputs(mixer, sizes, BATCH))


def inputs(
    mixer: Mixer, sizes: Mapping[str, int], batch: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The input (batch, l, ...) and what is given beside it, by name: normal numbers, or any
    positions, which torch counts from 0."""
    generator = torch.Generator().manual_seed(2)

    def random(array: Array) -> torch.Tensor:
        shape = (batch, *(extent.at(sizes) for extent in array.shape))
        if array.below is None:
            return torch.randn(shape, generator=generator, dtype=torch.float64)
        last = torch.from_numpy(last_positions(array, sizes)).expand(shape).clamp(min=1)
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * last).long()

    x = random(mixer.role("input"))
    return x, {array.name: random(array) for array in mixer.beside}


def prove_cases(
    name: str,
    mixer: Mixer,
    implementation: Implementation,
    compare: Callable[[ModuleCase], str],
    done: str = f"to {TOLERANCE:g} in float64",
) -> Proof:
    """A proof that fails at the smallest sizes at which `compare` returns a sentence; `done` is
    what it shows otherwise. Equations that the rules do not cover leave the proof open."""
    proven = []

    def apart(sizes: Mapping[str, int]) -> str:
        try:
            with as_exception():
                said = compare(case(mixer, implementation, sizes))
        except Unsupported:
            raise
        except Exception as error:  # a module of a user's own may raise anything
            return higher_order_reason(error) or f"it does not run: {reason_with_kind(error)}"
        proven.append(sizes)
        return said

    try:
        found = first_apart(mixer, apart, module_sizes(mixer))
    except SizeError as error:
        return Proof(name, False, str(error))
    except Unsupported as reason:
        return Proof(name, None, f"the equations are not evaluated: {reason}")
    if found is not None:
        return Proof(name, False, f"at {words(found[0])}: {found[1]}")
    return Proof(name, True, f"{done} at {len(proven)} sets of sizes")


def reason_with_kind(error: Exception) -> str:
    """An error's reason, led by the error's type where the reason alone says too little."""
    reason = reason_of(error)
    plain = isinstance(error, (ValueError, RuntimeError)) or reason == type(error).__name__
    return reason if plain else f"{type(error).__name__}: {reason}"
