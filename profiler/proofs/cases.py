"""At which small sizes is a module compared with its equations, and where does it fail first?

A case is a module in float64 at one choice of sizes, with its inputs and with the equations' arrays
of the same numbers (`ModuleCase`). A context is an input that is complete before the first token,
such as an encoder's rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
from profiler.modules.building import build
from profiler.modules.registry import Implementation
from profiler.proofs.rounding import SingleInside
from profiler.records.reading import reason_of
from profiler.records.words import told_apart

if TYPE_CHECKING:
    import numpy as np

    Values = Mapping[str, np.ndarray[Any, Any]]

TOLERANCE = 1e-9
"""Allowed error relative to the largest output: float64 sums of some dozen terms round by less
when the terms are added in another order."""

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
    """Whether gradients of inputs and contexts are taken, in addition to those of parameters."""

    @cached_property
    def registered(self) -> Values:
        """A dict: name -> values of the equations' buffers (untrained arrays) that the module
        registers. Positions, which torch counts from 0, are counted from 1, as in the equations."""
        held = {name: tensor.numpy() for name, tensor in self.module.named_buffers()}
        return {
            array.name: held[array.name] + (array.below is not None)
            for array in self.mixer.buffers
            if array.name in held
        }

    def arrays(self, sample: int = 0) -> Values:
        """A dict: name -> values of the equations' given arrays: the inputs of sequence `sample`,
        the parameters and the buffers. A buffer takes its values from the equations if they define
        it, else from the module; it is left out if the module has none of its name."""
        named = {name: p.detach().numpy() for name, p in self.module.named_parameters()}
        own = {
            a.name: buffer_values(a, self.sizes) for a in self.mixer.buffers if a.value is not None
        }
        named |= {**self.registered, **own}
        given = {array.name: tensor[sample].numpy() for array, tensor in self.given().items()}
        # torch counts positions from 0, the equations from 1
        counted = {a.name: given[a.name] + (a.below is not None) for a in self.given()}
        return named | counted

    def given(self) -> dict[Array, torch.Tensor]:
        """The arguments of a call by array: the input, the further inputs, the contexts."""
        return dict(zip((self.mixer.role("input"), *self.mixer.beside), self.call, strict=True))

    @property
    def call(self) -> tuple[torch.Tensor, ...]:
        """The arguments of a call, in order."""
        return (self.x, *self.beside.values())

    def forward(self) -> Any:
        """The module's result for these sequences."""
        return self.module(*self.call)

    def counted(self) -> ModuleCase:
        """The case whose operations are counted: this one or, of a module that computes in float32
        inside a call in float64, a copy in float32, where it converts nothing."""
        with torch.no_grad(), SingleInside() as inside:
            self.forward()
        if not inside.found:
            return self
        given = [t.float() if t.is_floating_point() else t for t in self.call]
        beside = dict(zip(self.beside, given[1:], strict=True))
        return replace(self, module=copy.deepcopy(self.module).float(), x=given[0], beside=beside)

    def initial_state(self) -> Any:
        """The module's empty state for these sequences."""
        make: Any = self.module.initial_state
        return make(*self.x.shape[:2], *self.beside.values())

    def step(self, t: int, state: Any) -> Any:
        """The module's row (batch, ...) for token t, counted from 1; `state` is updated."""
        return self.module.step(self.x[:, t - 1], state)  # type: ignore[operator]


Kept = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""Name of a tensor -> the tensor, and a copy of its values."""


def _differing(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape hold different values, as booleans; NaN equals NaN."""
    return (one != two) & ~((one != one) & (two != two))


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors hold the same values, where NaN equals NaN."""
    return not _differing(one, two).any()


def unwritten(case: ModuleCase, **more: torch.Tensor) -> Kept:
    """The tensors into which a call must not write: the arguments of a call and `more` tensors of
    the caller, the parameters, and the buffers that the equations name."""
    buffers = {array.name for array in case.mixer.buffers}
    given = {array.name: tensor for array, tensor in case.given().items()}
    named = {f"its caller's {name}": tensor for name, tensor in (given | more).items()}
    named |= {f"the parameter {name}": p for name, p in case.module.named_parameters()}
    named |= {f"the buffer {n}": b for n, b in case.module.named_buffers() if n in buffers}
    return {name: (tensor.detach(), tensor.detach().clone()) for name, tensor in named.items()}


def write_in_words(kept: Kept, who: str, does: str = "writes into") -> str:
    """A sentence on the first tensor of `kept` that a call has changed, which is restored; "" if
    none was: "forward writes into the parameter W: W[1, 2] was ...". `who` and `does` are its
    subject and verb."""
    for name, (tensor, copied) in kept.items():
        if not same(tensor, copied):
            found = tensor.clone()
            tensor.copy_(copied)
            where = tuple(int(k) for k in _differing(found, copied).nonzero()[0])
            entry = f"[{', '.join(str(k + 1) for k in where)}]" if where else ""
            both = told_apart(float(copied[where]), "now", float(found[where]))
            return f"{who} {does} {name}: {name.split()[-1]}{entry} was {both}"
    return ""


def case(mixer: Mixer, implementation: Implementation, sizes: Mapping[str, int]) -> ModuleCase:
    """Build a module of these sizes, with random parameters, and `BATCH` random sequences."""
    given = dict(sizes) | {"b": BATCH}
    module = build(implementation, given, device="cpu", dtype=torch.float64, seed=1).eval()
    return ModuleCase(mixer, sizes, module, *inputs(mixer, sizes, BATCH))


def inputs(
    mixer: Mixer, sizes: Mapping[str, int], batch: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Random inputs of a call: the input (batch, l, ...), and by name the further inputs and
    contexts (batch, ...): normal numbers in float64 or, for an array of positions, random ones,
    counted from 0 as torch does."""
    generator = torch.Generator().manual_seed(2)

    def random(array: Array) -> torch.Tensor:
        """Random values (batch, ...) of one array."""
        shape = (batch, *(extent.at(sizes) for extent in array.shape))
        if array.below is None:
            return torch.randn(shape, generator=generator, dtype=torch.float64)
        last = torch.from_numpy(last_positions(array, sizes)).expand(shape)
        last = last.clamp(min=1)  # an entry that no position is allowed for is 0
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * last).long()

    x = random(mixer.role("input"))
    return x, {array.name: random(array) for array in mixer.beside}


def prove_cases(
    name: str,
    mixer: Mixer,
    implementation: Implementation,
    compare: Callable[[ModuleCase], str],
    done: str = f"to {TOLERANCE:g} in float64",
    blamed: Callable[[Mapping[str, int]], str] = lambda sizes: "",
) -> Proof:
    """Make the proof `name`: `compare` the module with its equations at each set of small sizes.

    The proof fails at the smallest sizes at which `compare` returns a sentence. Its detail is this
    sentence, followed by the words of `blamed` (the wrong equation) at these sizes. An error of the
    module, and sizes that the mixer refuses, are failures too. The proof holds if every sentence is
    empty; `done` then says what was compared. The proof stays open (passed None: neither proven nor
    refuted) if the equations cannot be evaluated.
    """
    proven = []

    def apart(sizes: Mapping[str, int]) -> str:
        """Words on what is wrong at these sizes; "" if nothing is. Sizes that were compared are
        added to `proven`. Raises Unsupported: `compare` does."""
        try:
            with as_exception():
                said = compare(case(mixer, implementation, sizes))
        except Unsupported:
            raise
        except Exception as error:  # a module of a user's own may raise anything
            return higher_order_reason(error) or f"the module fails: {reason_with_kind(error)}"
        proven.append(sizes)
        return said

    try:
        found = first_apart(mixer, apart, module_sizes(mixer))
    except SizeError as error:
        return Proof(name, False, str(error))
    except Unsupported as reason:
        return Proof(name, None, f"the equations cannot be evaluated: {reason}")
    if found is not None:
        return Proof(name, False, f"at {words(found[0])}: {found[1]}{blamed(found[0])}")
    return Proof(name, True, f"{done} at {len(proven)} sets of sizes")


def reason_with_kind(error: Exception) -> str:
    """An error's reason, preceded by the error's type: `KeyError: 'w'`. The type is left out for
    ValueError and RuntimeError, whose reasons are whole sentences. Torch's advice after an error of
    its own, "Hint: ...", is left out."""
    reason = reason_of(error)
    if isinstance(error, RuntimeError):
        reason = reason.partition(" Hint: ")[0]
    plain = isinstance(error, (ValueError, RuntimeError)) or reason == type(error).__name__
    return reason if plain else f"{type(error).__name__}: {reason}"
