"""Is a module called with the named sizes, and a wrong question refused in a sentence?"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel.symbolic.polynomial import Poly
from profiler.tracing import trace
from profiler.tracing.meta_run.target import TraceError
from tests.profiler.tracing import modules
from tests.profiler.tracing.test_memory import Function
from tests.profiler.tracing.test_trace import formula


def test_any_keyword_is_not_every_size() -> None:
    """torch.nn.LSTM takes any keyword: it gets what --let names, and not l or d."""
    found = trace("torch.nn:LSTM", over="l,d", let="input_size=d,hidden_size=d")
    assert found.parameters == formula("8*d**2 + 8*d")


def test_a_module_may_come_with_its_inputs() -> None:
    def make(l: int) -> tuple[nn.Module, dict[str, Tensor]]:
        return nn.Bilinear(2, 3, 5, bias=False), {
            "input1": torch.empty(l, 2),
            "input2": torch.empty(l, 3),
        }

    # every pair of entries times a weight, and times each other
    assert trace(make, over="l").parameters == Poly.of(2 * 3 * 5)


@dataclass
class Output:
    """Results as an object."""

    first: Tensor
    more: Any = None


class Named(dict[str, Any]):
    """A dict that torch's trees take for a leaf."""


class Slotted:
    """An object without a dict."""

    __slots__ = ("held", "unset")

    def __init__(self, held: Any) -> None:
        self.held = held


class Hidden:
    """An object whose only slot has a private name."""

    __slots__ = ("__held",)

    def __init__(self, held: Any) -> None:
        self.__held = held


@pytest.mark.parametrize(
    "give",
    [
        lambda y: Output(y, y),
        lambda y: Named(y=[y]),
        lambda y: UserDict(y=y),
        lambda y: {y},
        lambda y: (Slotted(Output(torch.zeros(1), [Named(y=y)])), 3),
        Hidden,
    ],
)
def test_gradients_flow_back_from_what_objects_hold(give: Callable[[Tensor], Any]) -> None:
    found = trace(lambda: Function(lambda x: give(x.exp())), over="l,d", grad="both")
    assert found.backward["mul"] == formula("l*d")


def test_inputs_that_an_object_holds_have_gradients() -> None:
    class Reading(nn.Module):
        def forward(self, given: Output) -> Tensor:
            return given.first.exp()[given.more]

    def make(l: int, d: int) -> tuple[nn.Module, tuple[Output]]:
        return Reading(), (Output(torch.empty(l, d), torch.zeros(l, dtype=torch.long)),)

    found = trace(make, over="l,d", grad="both")
    assert found.backward["mul"] == formula("l*d")


def test_a_batch_that_is_read_as_a_length_is_noted() -> None:
    note = "batch_first is False in MultiheadAttention: x (1, l, d) is read as l sequences"

    class Attending(nn.Module):
        def __init__(self, d: int, *, kept: bool, first: bool) -> None:
            super().__init__()
            self.first = first
            self.layer = nn.MultiheadAttention(d, 1, batch_first=kept)

        def forward(self, x: Tensor) -> Tensor:
            x = x if self.first else x.transpose(0, 1)
            y: Tensor = self.layer(x, x, x, need_weights=False)[0]
            return y

    misread = trace(lambda d: Attending(d, kept=False, first=True), over="l", let="d=3")
    assert any(note in said for said in misread.notes)
    assert misread.forward["exp"] == formula("l")  # every token attends to itself alone
    for kept in (False, True):
        found = trace(partial(Attending, kept=kept, first=kept), over="l", let="d=3")
        assert not any("batch_first" in said for said in found.notes)
        assert found.forward["exp"] == formula("l**2")


def test_a_letter_that_the_module_takes_is_a_size() -> None:
    """P is no letter that mixers share."""

    class Widened(nn.Module):
        def __init__(self, d: int, P: int) -> None:
            super().__init__()
            self.layer = nn.Linear(d, P, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y

    assert str(trace(Widened, over="l,d,P").forward["mul"]) == "P*d*l"
    with pytest.raises(TraceError, match=r"--over Q: expected sizes out of .* T P$"):
        trace(Widened, over="l,d,P,Q")


@pytest.mark.parametrize(
    ("target", "over", "let", "message"),
    [
        ("torch.nn:Nothing", "l,d", "", "has no 'Nothing'"),
        ("torch.nn.Linear", "l,d", "", "expected package.module:factory"),
        ("no_such_package:x", "l,d", "", "'no_such_package' is installed or in the working dir"),
        ("no_file.py:x", "l,d", "", "no file 'no_file.py'"),
        ("torch.nn:Linear", "l,d", "", "needs in_features, out_features: name a Python function "),
        ("torch.nn:Identity", "l", "", "needs d: add --over d"),
        ("torch.nn:Identity", "", "", "names no size: give the letters of formulas, such as l"),
        ("torch.nn:Identity", "l,x", "", "--over x: expected sizes out of"),
        ("torch.nn:Identity", "l,d:0", "", "LETTER:MULTIPLE"),
        ("torch.nn:Identity", "l,d:" + 5000 * "9", "", "LETTER:MULTIPLE"),
        ("torch.nn:Identity", "l,d,l", "", "--over names l twice"),
        (
            "torch.nn:Linear",
            "l,d",
            "in_features=d,out_features=d,bais=1",
            "takes no 'bais' (--let): did you mean 'bias'?",
        ),
        ("os:getcwd", "l,d", "width=1", "takes no 'width' (--let) and no other size"),
        ("torch.nn:Identity", "l,d", "n", "expected NAME=FORMULA"),
        ("torch.nn:Identity", "l,d", "d=4", "given twice"),
        ("torch.nn:Identity", "l", "d=n*h", "is not among the sizes: add it to --over"),
        ("torch.nn:Identity", "l", "d=1/2", "expected a positive whole number"),
        ("fractions:Fraction", "l,d", "", "expected a torch.nn.Module"),
        (
            "torch.nn:PairwiseDistance",
            "l,d",
            "",
            "called with x (b, l, d) alone: missing a required",
        ),
        ("torch:ones", "l,d", "", "does not say which sizes it takes"),
        ("torch:float32", "l,d", "", "give a class or a function that builds a module"),
    ],
)
def test_wrong_questions_get_one_sentence(target: str, over: str, let: str, message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)) as raised:
        trace(target, over=over, let=let)
    assert "\n" not in str(raised.value)


def test_a_parameter_that_layers_share_is_one_wherever_it_was_made() -> None:
    """A table of 7 d-entries, read at the head again; moved to the meta device torch makes two."""

    class Tied(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.table = nn.Embedding(7, d, device="cpu")
            self.head = nn.Linear(d, 7, bias=False, device="cpu")
            self.head.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            y: Tensor = self.head(self.table(tokens))
            return y

    def make(l: int, d: int) -> tuple[nn.Module, Tensor]:
        return Tied(d), torch.zeros(1, l, dtype=torch.long)

    assert trace(make, over="l,d").parameters == Poly.atom("d") * 7


def test_backends_gradients_and_modes_are_named() -> None:
    with pytest.raises(TraceError, match="expected one of math, fused"):
        trace(modules.linear, over="l,d", backend="cuda")
    for option in ("grad", "mode"):
        with pytest.raises(TraceError, match=f"--{option} '': expected one of"):
            trace(nn.Identity, over="l,d", **{option: ""})  # type: ignore[arg-type]


def test_a_module_that_refuses_sizes_says_so() -> None:
    def never(d: int) -> nn.Module:
        raise ValueError(f"{d} is not divisible")

    with pytest.raises(
        TraceError,
        match=r"^never cannot be built at l=5, d=3: 3 is not divisible; the module fails at each "
        r"of \d+ sizes tried, up to l=840, d=504: if the module needs multiples of a number, name "
        r"the number, as in --over l,d:17$",
    ):
        trace(never, over="l,d")


def in_parts_of(number: int, *, of: str) -> Callable[[int, int], nn.Module]:
    """A factory of linear maps of (l, d) whose sizes must be multiples of `number`."""

    def parts(l: int, d: int) -> nn.Module:
        if {"l": l, "d": d}[of] % number:
            raise ValueError(f"{of} is not in {number} parts")
        return nn.Linear(d, d, bias=False)

    return parts


@pytest.mark.parametrize(("of", "number"), [("d", 5), ("d", 7), ("l", 3), ("l", 9), ("d", 25)])
def test_a_module_that_needs_multiples_of_a_product_of_small_primes_is_traced(
    of: str, number: int
) -> None:
    found = trace(in_parts_of(number, of=of), over="l,d", memory=False)
    assert found.complete
    assert found.forward["mul"] == Poly.atom("d") ** 2 * Poly.atom("l")
    assert found.steps == {"l": 1, "d": 1, of: number}
    assert all(point[of] % number == 0 for point in found.proven)
    reason = f"{of} runs over multiples of {number}; at other sizes the module fails: "
    assert any(note.startswith(reason) for note in found.notes)


def test_a_multiple_that_is_not_found_can_be_named() -> None:
    for number, said in ((17, r"name the number, as in --over l,d:17"), (100, r"--over d:100")):
        with pytest.raises(TraceError, match=said):
            trace(in_parts_of(number, of="d"), over="l,d", memory=False)
        assert trace(in_parts_of(number, of="d"), over=f"l,d:{number}", memory=False).complete
