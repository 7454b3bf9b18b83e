"""Do operations that are written down hold what torch's hold, forward and backward?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from profiler.meters.memory.keeping import held_at_most
from profiler.modules.linear_attention import elu_plus_1
from profiler.reconcile.allocations.formulas import BRANCHES, CALLS, Operations, Tensor as Written
from profiler.reconcile.allocations.graph import Graph
from profiler.reconcile.allocations.tape import Tape, Value

B, R, D, E = 3, 5, 2, 7
"""Sequences, rows, and two widths."""

Sizes = tuple[tuple[int, ...], ...]
"""The shapes of operands."""


def doubled(does: Operations, of: Written) -> Written:
    """Twice a tensor, so that what follows reads a value of the call's own."""
    return does.by_number(of, of.size)


def held_by(operands: Sequence[int], call: Callable[..., Written]) -> int:
    """The elements that a training step holds at most by what is written down; the first operand
    has a batch, the others are given once for all."""
    does = Operations(Graph(), trained=True)
    given = [does.given(size, once=k > 0) for k, size in enumerate(operands)]
    result = call(does, *(doubled(does, t) for t in given))
    tape, gradient = does.graph.tape, Value(result.size, given=True)
    assert result.edge is not None
    tape.kept |= {*does.graph.backward(result.edge, gradient).values()}
    return tape.most()


def held_in_torch(shapes: Sizes, call: Callable[..., Tensor]) -> int:
    """The elements that values take at most in the same call of torch."""
    operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
    gradient = torch.randn(call(*operands).shape)

    def step() -> None:
        torch.autograd.backward([call(*(t * 2 for t in operands))], [gradient])

    worst = held_at_most(step, operands, [gradient])
    return worst.values // gradient.element_size()


N = B * R * D

CASES: dict[str, tuple[Sizes, Callable[..., Tensor], Callable[..., Written]]] = {
    "add": (((B, R, D),) * 2, torch.add, lambda does, x, y: does.add(x, y, N)),
    "subtract": (((B, R, D),) * 2, torch.sub, lambda does, x, y: does.subtract(x, y, N)),
    "multiply": (((B, R, D),) * 2, torch.mul, lambda does, x, y: does.multiply(x, y, N)),
    "divide": (((B, R, D),) * 2, torch.div, lambda does, x, y: does.divide(x, y, N)),
    "of itself": (((B, R, D),), lambda x: x * x, lambda does, x: does.multiply(x, x, N)),
    "repeated": (((B, R, D), (D,)), torch.add, lambda does, x, y: does.add(x, y, N)),
    "multiply by repeated": (
        ((B, R, D), (D,)), torch.mul, lambda does, x, y: does.multiply(x, y, N)
    ),
    "product": (
        ((B, R, D), (D, E)), torch.matmul,
        lambda does, x, y: does.product(x, y, B * R * E, folded=False),
    ),
    "affine": (
        ((B, D), (D, E), (E,)), lambda x, y, z: torch.addmm(z, x, y),
        lambda does, x, y, z: does.affine(x, y, z, B * E),
    ),
    "total": (((B, R, D),), lambda x: x.sum(-1), lambda does, x: does.total(x, B * R)),
    "softmax": (((B, R, D),), lambda x: x.softmax(-1), lambda does, x: does.softmax(x, N)),
    "rows": (
        ((B, R, D),), lambda x: torch.stack([row * 3 for row in x.unbind(1)], dim=1),
        lambda does, x: does.stack([does.by_number(t, t.size) for t in does.rows(x, R)]),
    ),
    "a row that nothing reads": (
        ((B, R, D),), lambda x: torch.stack([row * 3 for row in x.unbind(1)[1:]], dim=1),
        lambda does, x: does.stack([does.by_number(t, t.size) for t in does.rows(x, R)[1:]]),
    ),
    "slices": (
        ((B, R, D),), lambda x: x[:, :2].sum(1) * x[:, 2],
        lambda does, x: does.multiply(
            does.total(does.slice(x, 2 * B * D, {}), B * D), does.slice(x, B * D, {}), B * D
        ),
    ),
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log": torch.log,
    "softplus": torch.nn.functional.softplus,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "elu_plus_1": elu_plus_1,
}


@pytest.mark.parametrize("case", CASES)
def test_an_operation_holds_what_torch_s_holds(case: str) -> None:
    shapes, plain, written = CASES[case]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    assert held_by(sizes, written) == held_in_torch(shapes, plain)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_holds_what_torch_s_holds(function: str) -> None:
    found = held_by([N], lambda does, x: does.call(function, x, N))
    assert found == held_in_torch(((B, R, D),), FUNCTIONS[function])


def test_every_function_that_is_known_is_tried() -> None:
    assert FUNCTIONS.keys() == CALLS.keys() | BRANCHES.keys()


# By hand


def test_what_is_read_last_is_released() -> None:
    """Three values, each read by the next: two at a time."""
    tape = Tape()
    first = tape.write(2, [])
    second = tape.write(3, [first])
    tape.kept.add(tape.write(5, [second]))
    assert list(tape.held()) == [2, 2 + 3, 3 + 5]


def test_a_copy_stands_for_its_source() -> None:
    """Entries of a value of 6 elements, four of them moved: with it they count once, and four when
    it is gone."""
    tape = Tape()
    source = tape.write(6, [])
    copy = tape.write(4, [source], of=source)
    last = tape.write(1, [copy])
    tape.kept |= {copy, last}
    assert list(tape.held()) == [6, 6, 4 + 1]


def test_what_is_joined_counts_with_the_whole() -> None:
    """Two rows that are put together; with zeros beside them they are values of their own."""
    for size, whole in ((5, 5), (7, 7 + 5)):
        tape = Tape()
        rows = [tape.write(2, []), tape.write(3, [])]
        tape.join(size, [(row, row.size) for row in rows])
        assert [*tape.held()][-1] == whole


def test_the_node_that_was_made_last_runs_first() -> None:
    """Of x and its rows: what the product reads waits until both factors have their gradient."""
    does = Operations(Graph(), trained=True)
    x = does.given(4, once=False)
    one, two = does.call("exp", x, 4), does.call("tanh", x, 4)
    result = does.multiply(one, two, 4)
    assert result.edge is not None
    before = len(does.graph.tape.steps)
    does.graph.backward(result.edge, Value(4, given=True))
    order = [step.reads[-1] for step in does.graph.tape.steps[before:]]
    assert order[:4] == [one.value, two.value, two.value, one.value]
