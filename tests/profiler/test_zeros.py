"""Is the work on zeros that fill up gradients counted, and nothing else?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from profiler.counting.operations import NOTHING, Operations
from profiler.counting.zero_gradients import (
    ZeroGradientCounter,
    mask_if_any,
    set_mask,
    spent_on_zeros,
    subtracted,
)

ROWS, WIDTH = 4, 3


def spent(call: Callable[[Tensor, Tensor], Tensor], device: str) -> Operations:
    """What the backward pass of `call(x, w)` does with zeros; x is (4, 3) and w (3, 3)."""
    x, w = (torch.randn(n, WIDTH, device=device).requires_grad_() for n in (ROWS, WIDTH))
    y = call(x, w)
    gradient = torch.randn(y.shape, device=device)
    return spent_on_zeros(lambda: torch.autograd.backward(y, gradient))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        # no part: nothing is filled up
        (lambda x, w: torch.tanh(x @ w) + x, NOTHING),
        # two halves of one array: every entry of their sum is one of them and a zero
        (lambda x, w: x[:2] + x[2:] * 2, Operations(add=ROWS * WIDTH)),
        # parts that overlap in one row: added to zeros everywhere else
        (lambda x, w: x[:3] + x[1:] * 2, Operations(add=2 * WIDTH)),
        # a row alone through a function of the whole: the other rows' products
        (lambda x, w: torch.tanh(x)[:1], Operations(mul=2 * 3 * WIDTH, add=3 * WIDTH)),
        # a row alone of a product: 3 rows of w.grad and x.grad
        (
            lambda x, w: (x @ w)[:1],
            Operations(
                mul=2 * 3 * WIDTH * WIDTH,
                add=(ROWS - 1) * WIDTH * WIDTH + 3 * WIDTH * (WIDTH - 1),
            ),
        ),
        # zeros that a mask makes are numbers
        (
            lambda x, w: torch.tanh(x).masked_fill(
                torch.eye(ROWS, WIDTH, dtype=torch.bool, device=x.device), 0.0
            ),
            NOTHING,
        ),
        # zeros that padding makes are numbers
        (
            lambda x, w: torch.nn.functional.pad(x, (1, 1)) @ torch.ones(5, 2, device=x.device),
            NOTHING,
        ),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_work_on_zeros(
    call: Callable[[Tensor, Tensor], Tensor], expected: Operations, device: str
) -> None:
    """On the meta device masks alone are computed."""
    assert spent(call, device) == expected


def test_gradients_stay_what_they_are() -> None:
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64).requires_grad_()
    y = torch.tanh(x)[:2] + torch.exp(x)[1:3]
    (plain,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    with ZeroGradientCounter() as zeros:
        (followed,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(plain, followed)
    assert zeros.spent != NOTHING


def test_a_tensor_that_has_all_its_gradients_has_no_mask() -> None:
    tensor = torch.zeros(2)
    set_mask(tensor, torch.tensor([True, False]))
    assert mask_if_any(tensor) is not None
    set_mask(tensor, torch.tensor([True, True]))
    assert mask_if_any(tensor) is None


def test_what_is_left_of_a_total() -> None:
    total = Operations(mul=3, add=2, other={"exp2": 4, "sqrt": 1})
    assert subtracted(total, Operations(mul=1, other={"sqrt": 1})) == Operations(
        mul=2, add=2, other={"exp2": 4}
    )
