"""Do the derived gradients of every module equal those of autograd in float64?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Unpack

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import costmodel as cm
from costmodel.questions.subject import Training
from profiler.modules import Implementation
from tests.implementations import completed, equations, every, held, label, made, sequences
from tests.small import by_sizes

SIZES = [{"d": 6, "l": 5, "n": 2}, {"d": 5, "l": 2, "n": 5}, {"d": 2, "l": 1, "n": 1}]
BATCH = 3
ROUNDING = 1e-10
"""Sums of a few dozen products of numbers of size one in float64, and quotients of them."""


@pytest.mark.grid(24)
@by_sizes(SIZES)
@pytest.mark.parametrize("described", every(), ids=label)
def test_gradients_are_those_of_autograd(described: Implementation, sizes: dict[str, int]) -> None:
    """Of the input, every context, and, added up over the batch, every parameter."""

    def begun(y: Tensor) -> Begun:
        gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=y.dtype)
        return (y * gradient).sum(), [({}, g.numpy()) for g in gradient]

    held_against_autograd(described, sizes, begun)


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared-error": functional.mse_loss,
    "cross-entropy": functional.cross_entropy,
}


@pytest.mark.grid(24)
@pytest.mark.parametrize(
    ("described", "loss"),
    [*zip(every(), cycle(LOSSES))],
    ids=lambda v: v if isinstance(v, str) else label(v),
)
def test_gradients_of_a_loss_are_those_of_autograd(described: Implementation, loss: str) -> None:
    """Each sequence has a loss; their sum is what the module is trained with."""
    target = f"{equations(described).role('output').name}.target"

    def begun(y: Tensor) -> Begun:
        chance = torch.Generator().manual_seed(6)
        targets, first = torch.randn(y.shape, generator=chance, dtype=y.dtype), 0
        if loss == "cross-entropy":
            targets = torch.randint(0, y.shape[-1], y.shape[:-1], generator=chance)
            first = 1  # the equations count classes from one
        total = torch.stack([LOSSES[loss](a, b) for a, b in zip(y, targets, strict=True)]).sum()
        return total, [({target: t.numpy() + first}, np.ones(1)) for t in targets]

    held_against_autograd(described, SIZES[0], begun, loss=loss)


Begun = tuple[Tensor, list[tuple[dict[str, np.ndarray], np.ndarray]]]
"""What torch takes gradients of, and what the equations are given of each sequence: arrays, and the
gradient that theirs begin at."""


def held_against_autograd(
    described: Implementation,
    sizes: dict[str, int],
    begun: Callable[[Tensor], Begun],
    **training: Unpack[Training],
) -> None:
    """Fail unless the derived gradients of a module's equations are those that torch takes."""
    mixer, known, module = equations(described), completed(described, sizes), made(described, sizes)
    given = [tensor.requires_grad_() for tensor in sequences(described, sizes, BATCH)]
    total, each = begun(module(*given))
    total.backward()  # type: ignore[no-untyped-call]
    weights = {name: p.detach().numpy() for name, p in held(described, module).items()}
    names = [mixer.role("input").name, *(array.name for array in mixer.beside)]
    summed = {name: np.zeros_like(value) for name, value in weights.items()}
    for b, (more, gradient) in enumerate(each):
        own = {n: t.detach()[b].numpy() for n, t in zip(names, given, strict=True)}
        found = cm.gradients(
            mixer, weights | own | more, gradient, known, described.form, **training
        )
        for name, tensor in zip(names, given, strict=True):
            assert tensor.grad is not None
            close(found[name], tensor.grad[b].numpy())
        for name in weights:
            summed[name] += found.get(name, 0)
    for name, parameter in module.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        close(summed[name], expected.numpy())


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Fail unless the numbers agree, to rounding of the largest of them."""
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= ROUNDING * scale
