"""How do tests compare a mixer's equations and modules with values written independently?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
from profiler.modules import SequenceMixer, build, registry
from profiler.reconcile.levels import Ladder
from tests import ladders

Array = NDArray[np.float64]
Arrays = dict[str, Array]
Sizes = Mapping[str, int]


def drawn(mixer: str, sizes: Sizes) -> Arrays:
    """Numbers for the input, every parameter and every buffer without values of a mixer, none of
    them special."""
    generator = np.random.default_rng(sum(sizes.values()))
    return {
        name: generator.normal(size=tuple(extent.at(sizes) for extent in array.shape))
        for name, array in cm.mixer(mixer).arrays.items()
        if array.role in ("input", "parameter", "buffer") and array.value is None
    }


def module_of(mixer: str, implementation: str, sizes: Sizes, arrays: Arrays) -> Any:
    """The module in float64 that holds these parameters and buffers."""
    described = registry.implementations(mixer)[implementation]
    made = build(described, dict(sizes), device="cpu", dtype=torch.float64, seed=0)
    assert isinstance(made, SequenceMixer)
    with torch.no_grad():
        for name, held in chain(made.named_parameters(), made.named_buffers()):
            if name in arrays or isinstance(held, torch.nn.Parameter):
                held.copy_(torch.from_numpy(arrays[name]))
    return made


def forward(module: Any, *sequences: Array) -> list[Array]:
    """The module's outputs for a batch of sequences."""
    with torch.no_grad():
        return list(module(torch.from_numpy(np.stack(sequences))).numpy())


def stepped(module: Any, x: Array) -> Array:
    """The module's rows for one sequence, token by token."""
    state = module.initial_state(1, len(x))
    rows = [module.step(row, state) for row in torch.from_numpy(x).unsqueeze(1)]
    return torch.cat(rows).numpy()


def same(found: Array, expected: Array, rounding: float) -> None:
    """Fail unless the numbers agree to a rounding, in parts of themselves where they are above 1:
    libraries add up in another order on another processor."""
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding)


def equal_at_every_length(
    module: Any,
    x: Array,
    paper: Callable[[Array], Array],
    rounding: float,
    *,
    steps: bool,
    beyond: int = 2,
) -> None:
    """The module gives the paper's rows for sequences of every length up to two more than x has, or
    `beyond` more, two at once, and with `steps` token by token."""
    for length in range(1, len(x) + 1 + beyond):
        one = np.resize(x, (length, x.shape[1]))
        for given, y in zip((one, 1 - one), forward(module, one, 1 - one), strict=True):
            same(y, paper(given), rounding)
        if steps:
            same(stepped(module, one), paper(one), rounding)


def equal_whole_and_stepped(
    module: Any, x: Array, paper: Callable[[Array], Array], rounding: float
) -> None:
    """The module gives the paper's rows for whole sequences, a batch of which does not mix, and
    token by token."""
    both = forward(module, x, -x)
    for found, own in zip(both, (x, -x), strict=True):
        same(found, paper(own), rounding)
    same(stepped(module, x), both[0], rounding)


def equals_the_paper(
    mixer: str,
    sizes: Sizes,
    paper: Callable[[Array, Arrays, Sizes], Array],
    rounding: float,
    *,
    beyond: int = 2,
) -> None:
    """Every form, and every module at every length, gives the paper's rows, which are computed from
    x, the parameters and the sizes; where one token has a cost, token by token too."""
    equations = cm.mixer(mixer)
    sizes = {letter: sizes[letter] for letter in equations.letters}
    arrays = drawn(mixer, sizes)

    def expected(x: Array) -> Array:
        return paper(x, arrays, sizes)

    for form in equations.forms:
        same(cm.evaluate(equations, arrays, sizes, form), expected(arrays["x"]), rounding)
    for name, described in registry.implementations(equations).items():
        module, steps = module_of(mixer, name, sizes, arrays), described.step_form is not None
        equal_at_every_length(module, arrays["x"], expected, rounding, steps=steps, beyond=beyond)


def everything_is_explained(mixer: str, sizes: Sizes, only: str = "") -> None:
    """Nothing stays unexplained of a training step of any implementation, or of `only` one. A
    forward pass and a token are swept for every implementation in
    tests/profiler/test_reconcile.py."""
    for found in reconciled(mixer, sizes, "training-step", only):
        assert found.explained, (found.implementation, found.unexplained)


def gradients_pass(mixer: str, implementation: str, sizes: Sizes) -> bool:
    """Whether torch's gradients of a batch of two are those of finite differences."""
    module = module_of(mixer, implementation, sizes, drawn(mixer, sizes))
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(2, sizes["l"], sizes["d"], dtype=torch.float64, generator=chance)
    return torch.autograd.gradcheck(module, (x.requires_grad_(),))


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    """The same numbers as tensors."""
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def operations(mixer: str, sizes: Sizes, **asked: Any) -> dict[str, int]:
    """Operations of one sequence by name, those that are 0 left out."""
    return nonzero(cm.count(cm.mixer(mixer), **asked).at(**sizes).by_class())


def reconciled(mixer: str, sizes: Sizes, phase: str, only: str = "") -> list[Ladder]:
    """The ladder of every implementation of a mixer, or of `only` one."""
    found = registry.implementations(cm.mixer(mixer))
    chosen = [found[only]] if only else found.values()
    return [ladders.reconciled(mixer, each, sizes, phase) for each in chosen]


def modules_of(mixers: Iterable[str]) -> list[tuple[str, str]]:
    """(mixer, implementation) for every implementation of some mixers."""
    return [(name, each) for name in mixers for each in registry.implementations(name)]
