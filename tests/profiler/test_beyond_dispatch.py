"""Is work outside torch's dispatcher recognised and reported?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_float
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as higher_order_map
from torch.nn.attention.flex_attention import flex_attention

import cli
from costmodel import mixer
from costmodel.proofs.check import Proof
from costmodel.symbolic.polynomial import Poly
from profiler.counting.call import CountError
from profiler.counting.dispatch import count_dispatch
from profiler.counting.operations import NOTHING, Operations
from profiler.counting.zero_gradients import spent_on_zeros
from profiler.mixers.extractor import HeToeplitz
from profiler.modules import implementations
from profiler.proofs.equality import module_equals
from profiler.tracing import trace
from profiler.tracing.meta_run.target import TraceError


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


def through_an_array(x: Tensor) -> Tensor:
    return torch.as_tensor(np.exp(np.asarray(x)))


def through_a_list(x: Tensor) -> Tensor:
    return torch.tensor([[2 * number for number in row] for row in x.tolist()])


def through_a_number(x: Tensor) -> Tensor:
    return x * (2 * x[0, 0].item())


def through_an_address(x: Tensor) -> Tensor:
    y = x.clone()
    numbers = (c_float * 6).from_address(y.data_ptr())
    for k in range(6):
        numbers[k] *= 2
    return y


@pytest.mark.parametrize(
    ("call", "exit_"),
    [
        (through_numpy, "Tensor.numpy"),
        (through_an_array, "Tensor.numpy"),
        (through_a_list, "Tensor.tolist"),
        (through_a_number, "aten::_local_scalar_dense"),
        (through_an_address, "Tensor.data_ptr"),
        (lambda x: np.from_dlpack(x) * 2, "Tensor.__dlpack__"),
    ],
)
def test_numbers_that_leave_torch_are_listed(call: Callable[[Tensor], Any], exit_: str) -> None:
    found = count_dispatch(call, torch.ones(2, 3))
    assert list(found.unknown) == [exit_]
    assert "is not counted" in found.unknown[exit_].reason
    assert "local_scalar" not in exit_ or "as by x.item()" in found.unknown[exit_].reason
    assert "count_dispatch" not in repr(Tensor.numpy)


def test_indices_and_truth_values_may_leave() -> None:
    """They steer; what they steer is dispatched."""

    def call(x: Tensor) -> Tensor:
        places = torch.arange(2)
        assert places.tolist() == places.numpy().tolist() == [0, 1]
        return x[int(places[1])] + 1 if bool((x > 0).all()) else x

    found = count_dispatch(call, torch.ones(2, 3))
    assert found.complete
    assert found.operations == Operations(add=3, other={"compare": 6})


class Doubled(Tensor):
    """A tensor that holds another one; every operation runs on twice its entries."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Doubled:
        made: Doubled = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch leaves it untyped
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*(a.held * 2 if isinstance(a, Doubled) else a for a in args))


def test_a_subclass_is_counted_by_what_it_dispatches() -> None:
    """A product of its own for each entry, and the one that was asked for."""
    found = count_dispatch(lambda: torch.add(Doubled(torch.ones(2, 3)), 1))
    assert found.operations == Operations(mul=6, add=6)
    assert spent_on_zeros(lambda: torch.add(Doubled(torch.ones(2, 3)), 1)) == NOTHING


@pytest.fixture
def claims_a_view() -> Iterator[Any]:
    """An operator that says that it only looks at its operand, and doubles it."""
    libraries: Any = torch.library  # torch leaves it untyped
    library = libraries.Library("costmodel_test", "FRAGMENT")
    library.define("seen(Tensor(a) x) -> Tensor(a)")
    library.impl("seen", lambda x: x.mul_(2), "CompositeExplicitAutograd")
    library.impl("seen", libraries.fallthrough_kernel, "Autograd")
    yield torch.ops.costmodel_test.seen
    library._destroy()


def test_a_view_is_believed_of_torch_alone(claims_a_view: Any) -> None:
    found = count_dispatch(claims_a_view, torch.ones(2, 3))
    assert list(found.unknown) == ["costmodel_test::seen"]

    class Seen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = claims_a_view(x.clone())
            return y

    traced = trace(lambda d: (Seen(), torch.empty(2, d)), over="d")
    assert [u.name for u in traced.uncounted] == [
        "costmodel_test::seen: no counting rule for this operation"
    ]


class Chosen(nn.Module):
    """One of two branches."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.cond(torch.tensor(True), lambda x: x * 2, lambda x: x + 1, (x,))
        return y


class Flexible(nn.Module):
    """Attention by torch's flex_attention."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = flex_attention(x[:, None], x[:, None], x[:, None])
        return y


SAID = "a higher-order operator: operations of the functions it calls are not counted"


def test_a_trace_refuses_a_branch_that_numbers_choose() -> None:
    with pytest.raises(TraceError) as refused:
        trace(lambda l: (Chosen(), torch.empty(1, l, 16)), over="l")
    assert f"cond is {SAID}" in str(refused.value)


@pytest.mark.parametrize("backend", ["math", "fused"])
def test_what_is_beside_flex_attention_is_traced(backend: str) -> None:
    """l rows of 5 x 5 products before it and their gradients; itself it is named, twice."""

    def made(l: int) -> tuple[nn.Module, Tensor]:
        return nn.Sequential(nn.Linear(5, 5, bias=False), Flexible()), torch.empty(1, l, 5)

    found = trace(made, over="l", backend=backend, grad="both")
    assert not found.broken
    assert found.forward["mul"] == Poly.atom("l") * 25
    assert found.backward["mul"] == Poly.atom("l") * 50
    assert [(u.phase, u.name, u.calls) for u in found.uncounted] == [
        ("forward", f"flex_attention: {SAID}", Poly.of(1)),
        ("backward", f"flex_attention backward: {SAID}", Poly.of(1)),
    ]


def tripled(row: Tensor, *_: Any) -> Tensor:
    return row * 3


def test_an_operator_that_runs_is_named_beside_what_is_counted() -> None:
    """What is mapped over the rows is not counted, the product before is."""

    class Mapped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = higher_order_map(tripled, x * 2)
            return y

    found = trace(lambda l: (Mapped(), torch.empty(l, 4)), over="l")
    assert found.forward["mul"] == Poly.atom("l") * 4
    assert [u.name for u in found.uncounted] == [f"higher_order::map_impl: {SAID}"]


def test_a_count_names_operators_that_run_functions() -> None:
    found = count_dispatch(Chosen(), torch.ones(1, 16, 16))
    assert {name: op.reason for name, op in found.unknown.items()} == {"higher_order::cond": SAID}
    assert spent_on_zeros(lambda: Chosen()(torch.ones(1, 16, 16))) == NOTHING


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_refused_as_what_it_is() -> None:
    """Under a mode torch cannot compile it, and does not run it otherwise."""
    with pytest.raises(CountError, match=f"^flex_attention is {SAID}$"):
        count_dispatch(Flexible(), torch.ones(1, 16, 16))


class FlexibleHE(HeToeplitz):
    """HE with flex_attention inside."""

    def _enter(self, x: Tensor) -> Tensor:
        y: Tensor = Flexible()(super()._enter(x))[:, 0]
        return y


class ChosenHE(HeToeplitz):
    """HE that chooses between two equal branches."""

    def _enter(self, x: Tensor) -> Tensor:
        y: Tensor = torch.cond(torch.tensor(True), torch.clone, torch.clone, (super()._enter(x),))
        return y


def proof_of(module: type[HeToeplitz]) -> Proof:
    """Whether a variant of HE's module equals the equations."""
    he = mixer("he")
    known = next(i for i in implementations(he).values() if i.module is HeToeplitz)
    return module_equals(he, replace(known, made=module))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_proof_names_operators_that_run_functions() -> None:
    found = proof_of(FlexibleHE)
    assert found.passed is False
    assert f": flex_attention is {SAID}" in found.detail


def test_a_proof_runs_operators_that_run_functions() -> None:
    assert proof_of(ChosenHE).passed


RUNS_FUNCTIONS = """
import torch
from torch.nn.attention.flex_attention import flex_attention
import costmodel as cm
from profiler.modules import State, implementation

mine = cm.Mixer("mine", source="a test")
l, d = mine.sizes("l d")
x, y, w = mine.input("x", l, d), mine.output("y", l, d), mine.parameter("w", d, d)
with mine.form("direct") as f:
    i, a, c = f.index("i", 1, l), f.index("a", 1, d), f.index("c", 1, d)
    y[i, a] = cm.sum_(x[i, c] * w[c, a], over=c)


class Product(torch.nn.Module):
    def __init__(self, *, l, d):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(d, d))

    def initial_state(self, batch, length):
        return State({})

    def step(self, x_t, state):
        return x_t @ self.w


@implementation("mine", "cond", kernels={"y": "contraction"})
class Cond(Product):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x @ self.w, lambda x: 1 * (x @ self.w), (x,))


@implementation("mine", "flex", kernels={"y": "contraction"})
class Flex(Product):
    def forward(self, x):
        return flex_attention(x[:, None], x[:, None], x[:, None])[:, 0] @ self.w
"""


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("command", ["profile", "reconcile"])
@pytest.mark.parametrize("name", ["cond", "flex"])
def test_operators_that_run_functions_are_told_of_in_a_sentence(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RUNS_FUNCTIONS, encoding="utf-8")
    words = [command, f"{path}:mine", "--impl", name, "--l", "8", "--d", "4", "--seconds", "0.1"]
    assert cli.run(words) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and SAID in said
