"""Is work on zeros that pad gradients counted, and no other work?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, pad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from profiler.counting.dispatch import count_dispatch
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


def none(x: Tensor) -> Tensor:
    """Indices of no row."""
    return x.new_zeros(0, dtype=torch.long)


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
        # the first half of running sums: the zeros of the other half are added up
        (lambda x, w: x.cumsum(0)[:2], Operations(add=2 * WIDTH)),
        # a row alone of the larger entries: choices among zeros, and the factor of the other rows
        (
            lambda x, w: torch.where(x > 0, x, w[:1])[:1] * 2,
            Operations(add=3 * WIDTH),
        ),
        # a row alone after entries are overwritten: the factor of the other rows
        (
            lambda x, w: x.scatter(1, x.new_zeros((ROWS, 1), dtype=torch.long), 0.0)[:1] * 2,
            NOTHING,
        ),
        (
            lambda x, w: (2 * x).scatter(1, x.new_zeros((2, 1), dtype=torch.long), w[:2, :1])[:1],
            Operations(mul=3 * WIDTH),
        ),
        # a factor of no row: its gradient is a sum of no term, and so is that of each entry of w;
        # x[:1] and x[:0] are added as parts of x
        (
            lambda x, w: torch.cat((x[:1], x[:0] * torch.exp(w)[0])),
            Operations(mul=WIDTH * WIDTH, add=ROWS * WIDTH),
        ),
        # a selection of no row, by each call that writes to rows that indices name: zeros are added
        (lambda x, w: torch.cat((x, x[none(x)])), Operations(add=ROWS * WIDTH)),
        (lambda x, w: torch.cat((x, x.index_select(0, none(x)))), Operations(add=ROWS * WIDTH)),
        (
            lambda x, w: torch.cat((x, x.gather(0, none(x)[:, None].expand(0, WIDTH)))),
            Operations(add=ROWS * WIDTH),
        ),
        (lambda x, w: torch.cat((x, embedding(none(x), x))), Operations(add=ROWS * WIDTH)),
        # a selected row that nothing reads: also the row's addition to zeros
        (
            lambda x, w: torch.cat((x, x[torch.ones(1, dtype=torch.long, device=x.device)][1:])),
            Operations(add=ROWS * WIDTH + WIDTH),
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
            lambda x, w: pad(x, (1, 1)) @ torch.ones(5, 2, device=x.device),
            NOTHING,
        ),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_work_on_masked_zeros_is_counted(
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


def test_tensors_of_one_storage_share_its_mask() -> None:
    """Also where a view is written into; a view of another entry size is taken as numbers."""
    whole = torch.zeros(ROWS, WIDTH)
    set_mask(whole, torch.zeros(ROWS, WIDTH, dtype=torch.bool))
    set_mask(whole[1:2], None)
    mask = mask_if_any(whole)
    assert mask is not None
    assert mask.sum(1).tolist() == [0, WIDTH, 0, 0]
    assert mask_if_any(whole.view(torch.complex32)) is not None  # as large as float32
    assert mask_if_any(whole.view(torch.float16)) is None


class Unwritten(TorchDispatchMode):
    """New memory that holds one value: True or not a number, else False or zero."""

    def __init__(self, *, there: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.there = there

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" in func._schema.name:
            number = result.is_floating_point()
            result.fill_((float("nan") if self.there else 0.0) if number else self.there)
        return result


def circular(x: Tensor) -> Tensor:
    """Padded by one row at both ends, circularly."""
    return pad(x.T[None], (1, 1), mode="circular")[0].T


def buffered(x: Tensor) -> Tensor:
    """A buffer of one row more, of which x fills the first rows."""
    buffer = x.new_zeros(ROWS + 1, WIDTH)
    buffer[:ROWS] = x
    return buffer


class FirstRows(torch.autograd.Function):
    """The first two rows; backward fills zeros of its own, slice by slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:2].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        whole = torch.zeros_like(grads[0].expand(2, -1).repeat(ROWS // 2, 1))
        whole[:1], whole[1:2] = grads[0][:1], grads[0][1:]
        return whole


def first_rows(x: Tensor) -> Tensor:
    """`FirstRows` of x."""
    found: Tensor = FirstRows.apply(x)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "circular": circular,
    "circular, cropped": lambda x: circular(x)[1:-1],
    "buffer": buffered,
    "buffer, cropped": lambda x: buffered(x)[:ROWS],
    "strided": lambda x: x.as_strided((WIDTH, ROWS), (1, WIDTH)),
    "strided, a part": lambda x: x.as_strided((2, WIDTH), (WIDTH, 1), WIDTH),
    "cropped by padding": lambda x: torch.cat((pad(x, (0, 0, 0, -1)), pad(x, (0, 0, -2, 0)))),
    "parts": lambda x: torch.cat((x[:3], x[2:], x[:1])),
    "custom": lambda x: torch.cat((first_rows(x), x[1:])),
    "rolled": lambda x: torch.cat((x.roll(1, 0)[:2], x.flip(0)[:2])),
    "expanded": lambda x: x[:2].expand(3, 2, WIDTH),
    "converted": lambda x: torch.cat((x[:3].double(), x[2:].double())),
}


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", MOVES)
def test_all_but_one_addition_less_than_uses(name: str, there: bool) -> None:
    """Where a call only moves products, a product that is used k times takes k - 1 additions and,
    where k > 0, a multiplication; all others are with zeros, whatever stood in memory before."""
    move = MOVES[name]
    numbers = torch.arange(1, ROWS * WIDTH + 1, dtype=torch.float32).view(ROWS, WIDTH)
    used = torch.bincount(move(numbers).flatten().long(), minlength=ROWS * WIDTH + 1)[1:]

    def backward() -> Callable[[], None]:
        y = move(numbers.clone().requires_grad_() * 2)
        return lambda: torch.autograd.backward(y, torch.ones_like(y))

    with Unwritten(there=there):
        dispatched, zeros = count_dispatch(backward()), spent_on_zeros(backward())
    assert dispatched.complete
    left = subtracted(dispatched.operations, zeros)
    assert left.add == int((used - 1).clamp_min(0).sum())
    assert left.mul == int((used > 0).sum())


@pytest.mark.parametrize("there", [False, True])
def test_what_is_written_into_zeros_is_a_number(there: bool) -> None:
    """A custom backward fills zeros, slice by slice, all of them: the product below it is work."""
    x, w = torch.randn(2, WIDTH, requires_grad=True), torch.randn(WIDTH, WIDTH)

    class Whole(FirstRows):
        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            whole = torch.zeros_like(grads[0])
            whole[:1], whole[1:] = grads[0][:1], grads[0][1:]
            return whole

    with Unwritten(there=there):
        y: Tensor = Whole.apply(x @ w)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        assert spent_on_zeros(lambda: torch.autograd.backward(y, torch.ones_like(y))) == NOTHING


def test_zeros_of_a_forward_pass_run_again_are_numbers() -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)

    def scanned(rows: Tensor) -> Tensor:
        state = torch.zeros(WIDTH)
        for row in rows:
            state = torch.tanh(state * 0.5 + row)
        return state

    y = checkpoint(scanned, x, use_reentrant=False)
    again = spent_on_zeros(lambda: torch.autograd.backward(y.sum()))
    y = scanned(x)
    assert again == spent_on_zeros(lambda: torch.autograd.backward(y.sum()))


def test_complex_numbers_are_counted_as_complex() -> None:
    """One of three rows has a gradient: its products and sums are work, all others are not."""
    x, w = (torch.randn(3, 3, dtype=torch.complex64, requires_grad=True) for _ in range(2))
    y = (x @ w)[:1]
    zeros = spent_on_zeros(lambda: torch.autograd.backward(y, torch.ones_like(y)))
    # x.grad: 2 rows of 3 entries, sums of 3; w.grad: 9 entries, 2 products and adds of each
    products, sums = 2 * 9 + 2 * 9, 2 * 6 + 2 * 9
    assert zeros == Operations(mul=4 * products, add=2 * products + 2 * sums)


def test_what_is_left_of_a_total() -> None:
    total = Operations(mul=3, add=2, other={"exp2": 4, "sqrt": 1})
    assert subtracted(total, Operations(mul=1, other={"sqrt": 1})) == Operations(
        mul=2, add=2, other={"exp2": 4}
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_terms_of_a_convolution_are_counted_where_the_mask_lies(
    monkeypatch: pytest.MonkeyPatch, transposed: bool
) -> None:
    """On a GPU, an array without a named device lies on the CPU, apart from the mask."""
    layer = torch.nn.ConvTranspose1d if transposed else torch.nn.Conv1d
    y = layer(2, 2, 3)(torch.randn(1, 2, 4, requires_grad=True) * 2)[..., :1]
    seed, ones, devices = torch.ones_like(y), torch.ones, []

    def noted(*shape: Any, device: Any, **more: Any) -> Tensor:
        devices.append(device)
        return ones(*shape, device=device, **more)

    monkeypatch.setattr(torch, "ones", noted)
    spent_on_zeros(lambda: torch.autograd.backward(y, seed))
    assert {*devices} == {torch.device("cpu")}
