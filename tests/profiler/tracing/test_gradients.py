"""Does a trace count the requested gradients in the requested mode?"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from profiler.counting.dispatch import count_dispatch
from profiler.tracing import trace
from profiler.tracing.compare_equations import compare_pass
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.report import note_sentences, tables
from profiler.tracing.result import Trace
from tests.profiler.tracing.modules import Doctored, traced
from tests.profiler.tracing.test_trace import assert_classes, formula
from tests.typed import Capture, printed


class Adapted(nn.Module):
    """A frozen map with an adapter of rank r beside it, twice."""

    def __init__(self, d: int, r: int) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(d, d, bias=False).requires_grad_(False) for _ in "12")
        self.down = nn.ModuleList(nn.Linear(d, r, bias=False) for _ in "12")
        self.up = nn.ModuleList(nn.Linear(r, d, bias=False) for _ in "12")

    def forward(self, x: Tensor) -> Tensor:
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            x = base(x) + up(down(x))
        return x


def adapted(l: int, d: int, r: int) -> tuple[nn.Module, Tensor]:
    return Adapted(d, r), torch.empty(1, l, d)


def words(found: Trace) -> str:
    return "\n".join(note_sentences(found))


# Products by hand. A layer has W' g for up, its gradient, and for down its gradient: 3dlr. Where x
# needs a gradient, base gives d²l and down dlr besides. The first layer's x is the input.
EXPECTED = {
    None: "d*d*l + 7*d*l*r",
    "parameters": "d*d*l + 7*d*l*r",
    "both": "2*d*d*l + 8*d*l*r",
    "inputs": "2*d*d*l + 4*d*l*r",  # no gradient of up (dlr) and of down (dlr), twice
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("grad", EXPECTED, ids=str)
def test_only_the_gradients_that_are_asked_for_are_counted(grad: str | None) -> None:
    found = trace(adapted, over="l,d,r", grad=grad)
    assert found.backward["mul"] == formula(EXPECTED[grad])
    assert found.frozen == formula("2*d*d")
    assert found.parameters == formula("2*d*d + 4*d*r")
    inputs = {"inputs": "the inputs, none of the parameters", "both": "parameters and inputs"}
    expected = inputs.get(grad or "", "the parameters, none of the inputs")
    assert f"backward: the gradients of {expected}" in words(found)


def test_a_training_script_dispatches_what_is_traced_by_default() -> None:
    module, _ = adapted(5, 3, 2)
    x = torch.randn(1, 5, 3)
    whole = count_dispatch(lambda: torch.autograd.backward(module(x), torch.ones(1, 5, 3)))
    found = trace(adapted, over="l,d,r")
    passes = [found.at(phase, l=5, d=3, r=2) for phase in ("forward", "backward")]
    assert whole.complete
    assert whole.operations == passes[0] + passes[1]


def test_an_input_that_the_factory_marks_has_its_gradient() -> None:
    def marked(l: int, d: int) -> tuple[nn.Module, Tensor]:
        return nn.Linear(d, d, bias=False), torch.empty(l, d, requires_grad=True)

    assert trace(marked, over="l,d").backward["mul"] == formula("2*d*d*l")


def test_without_any_gradient_the_answer_says_so() -> None:
    found = trace(nn.Tanh, over="l,d")
    assert_classes(found.backward)
    assert "backward: nothing, no result depends on a parameter or input that" in words(found)
    with pytest.raises(TraceError, match="trace with grad='both'"):
        compare_pass(found, "self-attention", "backward")
    found = trace(nn.Tanh, over="l,d", grad="none")
    assert_classes(found.backward)
    assert "backward: nothing, no gradient was asked for (--grad none)" in words(found)
    with pytest.raises(TraceError, match="no gradient was asked for"):
        compare_pass(found, "self-attention", "backward")


@pytest.mark.parametrize(("grad", "times"), [("both", 2), (None, 1)], ids=str)
def test_a_transposed_convolution_is_once_or_twice_its_forward_pass(
    grad: str | None, times: int
) -> None:
    def made(b: int, d: int) -> tuple[nn.Module, Tensor]:
        return nn.ConvTranspose2d(d, 2 * d, (2, 2), stride=2), torch.empty(b, d, 6, 5)

    found = trace(made, over="b,d", grad=grad)
    assert found.forward["mul"] == formula("6*5*d*2*d*4*b")
    assert found.backward["mul"] == formula(f"{times}*6*5*d*2*d*4*b")


@pytest.mark.grid(3)
@pytest.mark.parametrize("grad", ["parameters", "inputs", "both"])
def test_the_equations_are_asked_for_the_same_gradients(grad: str) -> None:
    name = "profiler.mixers.self_attention:ExplicitSelfAttention"
    found = trace(name, over="l,h,n", let="d=n*h", grad=grad)
    assert compare_pass(found, "self-attention", "backward").explained


def test_a_pass_without_gradients_is_none() -> None:
    """Parameters require gradients, and what is computed does not lead to them."""

    class Quiet(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(x)

    found = trace(Quiet, over="l,d", let="in_features=d,out_features=d")
    assert_classes(found.backward)
    assert "backward: nothing" in words(found)


def test_the_mode_is_chosen_and_said() -> None:
    def made(d: int) -> nn.Module:
        return nn.Sequential(nn.Linear(d, d), nn.Dropout(0.5))

    as_made, quiet = trace(made, over="l,d"), trace(made, over="l,d", mode="eval")
    assert as_made.forward["random"] == formula("d*l")
    assert "random" not in quiet.forward
    assert "mode: train" in words(as_made)
    assert "mode: eval" in words(quiet)
    part = trace(lambda d: nn.Sequential(nn.Linear(d, d), nn.Dropout().eval()), over="l,d")
    assert "mode: train and eval, layer by layer as made" in words(part)


def test_formulas_of_gradients_give_the_numbers_at_sizes(capsys: Capture) -> None:
    words_ = ("trace", "torch.nn:Linear", "--over", "l,d", "--let", "in_features=d",
              "--let", "out_features=2*d")  # fmt: skip
    out = printed(capsys, *words_, "--at", "l=1000,d=64")
    rows = {tuple(line.split()[:2]): line.split()[-1] for line in out.splitlines() if line.strip()}
    assert rows["forward", "mul"] == f"{1000 * 64 * 128:,}"
    assert rows["backward", "mul"] == f"{1000 * 64 * 128:,}"  # the weight's alone
    made: dict[str, Any] = json.loads(
        printed(capsys, *words_, "--at", "d=64,l=1000", "--format", "json")
    )
    values = {(row["part"], row["kind"]): row["value"] for row in made["at"]["values"]}
    assert values["parameters", ""] == 64 * 128 + 128
    assert values["bytes", "saved for backward"] == 4 * 1000 * 64


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("at", "said"),
    [("l=5", "give d, too"), ("l=5,d=4,l=5", "expected each of l, d once"),
     ("l=5,d=x", "as in --at l="), ("l=5,n=3", "expected each of l, d once"),
     ("l=5,d=" + 5000 * "9", r"\(5,002 characters\): expected each of l, d once"),
     ("l=5,d=3", "the formulas hold for multiples of 2 from d="),
     ("l=0,d=4", r"--at l=0: the formulas hold from l=\d+ on")],
)  # fmt: skip
def test_sizes_without_a_number_are_refused(at: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        trace(Doctored, over="l,d:2").sizes(at)


def crossed(l: int, e: int, h: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Causal attention of l queries to e keys."""

    class Crossed(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    return Crossed(), (torch.empty(1, 1, l, h), torch.empty(1, 1, e, h))


@pytest.mark.grid
def test_causal_attention_to_other_rows_has_a_formula_by_cases() -> None:
    """Query i sees the keys 1..i that there are: one exponential each, and h products twice and a
    scale."""
    found = traced(crossed, "l,e", "h=3", "fused")
    assert found.complete
    for l, e in ((3, 5), (5, 5), (7, 4), (40, 6), (6, 40)):
        pairs = sum(min(i, e) for i in range(1, l + 1))
        counted = found.at(l=l, e=e)
        assert (counted.exp, counted.mul) == (pairs, pairs * 7)
        assert found.at("backward", l=l, e=e).exp == pairs
    rows = {row[:2] for row in next(tables(found)).rows if isinstance(row, tuple)}
    assert {("forward", "exp (l <= e)"), ("forward", "exp (l > e)")} <= rows
    assert "--backend math" in words(found)
