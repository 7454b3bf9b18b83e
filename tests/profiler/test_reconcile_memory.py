"""Has every byte that is kept, or held at the worst moment, its cause; does one more surface?"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import costmodel as cm
from costmodel.language.nodes import Mul, Node
from costmodel.language.writing import function, sum_
from costmodel.questions.subject import system_of
from profiler.modules.base import SequenceMixer
from profiler.modules.described import description_of, held_steps
from profiler.modules.extractor import MeToeplitz
from profiler.modules.registry import Implementation, implementations
from profiler.reconcile.allocations.schedule import Schedule, held_in_turn, moments, schedules
from profiler.reconcile.levels import Memory
from profiler.reconcile.memory import APART, memory
from profiler.records.measurement import Measurement, divide
from profiler.run.measure import activation_bytes, peak_of_call, tensors_at_peak
from profiler.run.prepare import prepare
from profiler.run.request import Request
from tests.implementations import every, label
from tests.small import complete

SIZES = {"b": 3, "l": 7, "d": 6, "n": 2}
WIDE = {"b": 2, "l": 5, "d": 12, "n": 3}
"""Sizes at which weights weigh more than sequences: the worst moment is another one."""
ONE = 4 * 3 * 7 * 6
"""Bytes of one array (b, l, d) in float32."""


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    """Meters collect garbage before they measure: not among all that was there before."""
    gc.freeze()
    yield
    gc.unfreeze()


def remembered(
    mixer: str,
    implementation: Implementation,
    phase: str,
    dtype: str = "fp32",
    sizes: Mapping[str, int] = SIZES,
    *,
    measured: bool = True,
    kept: bool = True,
) -> dict[str, Memory]:
    """The memory of one call, by the equations and as `measured`, what is `kept` as well."""
    equations = cm.mixer(mixer)
    known = complete(equations, sizes)
    work = prepare(Request(equations, implementation, known, phase, dtype))
    found = {"activations": activation_bytes(work)} if kept else {}
    found |= {
        "tensors_at_peak": tensors_at_peak(work, phase),
        "peak_memory": peak_of_call(work, "cpu"),
    }
    readings, reasons = divide(found if measured else {})
    record = Measurement(
        mixer, implementation.name, implementation.form, known, dtype, phase, "cpu",
        readings=readings, reasons=reasons,
    )  # fmt: skip
    does = description_of(equations, implementation, phase)
    steps = held_steps(equations, does)
    return memory(record, equations, steps, phase, does.kernels, does.rewrites, does.unbound)


@cache
def of(
    mixer: str, name: str, phase: str, dtype: str = "fp32", *, wide: bool = False
) -> dict[str, Memory]:
    """That of an implementation by name."""
    sizes = WIDE if wide else SIZES
    return remembered(mixer, implementations(mixer)[name], phase, dtype, sizes, kept=not wide)


def adds_up(found: Memory) -> bool:
    """Whether what is derived, the causes and what is unexplained make what was measured."""
    assert found.derived is not None and found.unexplained is not None
    return found.measured == found.derived + sum(c.bytes for c in found.causes) + found.unexplained


def named(found: Memory) -> dict[str, int]:
    """The bytes of each cause."""
    return {cause.name: cause.bytes for cause in found.causes}


# Every implementation

each = pytest.mark.parametrize("chosen", every(), ids=label)


@each
def test_what_every_implementation_keeps_is_explained_to_the_byte(chosen: Implementation) -> None:
    found = of(chosen.mixer, chosen.name, "training-step")["activations"]
    assert adds_up(found) and found.measured
    assert found.unexplained == 0


@pytest.mark.parametrize("phase", ["training", "training-step"])
@each
def test_what_every_implementation_holds_at_most_is_explained_to_the_byte(
    chosen: Implementation, phase: str
) -> None:
    """At sizes of two kinds; and no operation takes less than nothing for itself."""
    for wide in (False, True):
        found = of(chosen.mixer, chosen.name, phase, wide=wide)["peak"]
        assert adds_up(found) and found.measured
        assert found.unexplained == 0
        assert named(found).get("inside operations", 0) >= 0


# What is kept


def test_what_explicit_attention_keeps_in_bytes() -> None:
    """x, Q, K, V and R of b l d numbers, A of b n l^2, and one mask of l^2 bytes."""
    b, n, l, d = 3, 2, 7, 6
    memory = of("self-attention", "explicit", "backward")
    found = memory["activations"]
    assert named(found)["masks"] == l * l
    kept = 4 * (5 * b * l * d + b * n * l * l) + l * l
    assert found.measured == kept + named(found).get("unseen", 0)
    assert memory["peak"].unexplained is None
    assert memory["peak"].reason == APART["backward"]


def test_what_a_convolution_keeps_is_its_padded_input_and_turned_taps() -> None:
    """l - 1 rows of zeros before x, and W_ext (l, d, d) in another order."""
    b, l, d = 3, 7, 6
    found = named(of("she-extraction", "conv", "training-step")["activations"])
    assert found == {"copies": 4 * b * (l - 1) * d, "copies of parameters": 4 * l * d * d}


def test_transforms_keep_padded_operands_for_their_shape_alone() -> None:
    """x and w between zeros, 16 points each: no operation of the backward pass reads them."""
    found = named(of("me", "fft", "training-step")["activations"])
    assert found["unread"] == 4 * 16 * (3 * 6 + 1)


def test_a_gate_that_meets_no_gradient_is_kept_all_the_same() -> None:
    """The forget gate of the first row: one operation computes the three gates, (b, 3 d)."""
    assert named(of("lstm", "explicit", "training-step")["activations"])["unread"] == 4 * 3 * 6


def test_a_function_by_cases_keeps_the_branch_beside_its_result() -> None:
    """The exponentials of the features of queries and keys."""
    found = named(of("linear-attention", "parallel", "training-step")["activations"])
    assert found["branches"] == 2 * ONE


def test_a_row_that_is_another_one_is_kept_once() -> None:
    """Z_1 = K_1, d numbers a sequence: one storage where rows are carried, a copy in a running
    sum over all rows."""
    mixer = cm.mixer("linear-attention")
    once = cm.activations(mixer, "recurrent", renamed=True)
    twice = cm.activations(mixer, "recurrent")
    sizes = complete(mixer, SIZES)
    assert twice.at(**sizes) - once.at(**sizes) == 3 * 6
    assert "Z" in once.arrays and once.arrays["K"].at(sizes) == twice.arrays["K"].at(sizes)
    rows, sums = (
        named(of("linear-attention", name, "training-step")["activations"])
        for name in ("recurrent", "cumsum")
    )
    assert rows["renamed"] == sums["renamed"] == -4 * 3 * 6
    assert sums["copies"] - rows["copies"] == 4 * 3 * 6


def test_twice_the_bytes_in_float64() -> None:
    one, two = (of("he", "toeplitz", "training-step", t)["activations"] for t in ("fp32", "fp64"))
    assert one.derived is not None and one.measured is not None
    assert (two.derived, two.measured) == (2 * one.derived, 2 * one.measured)


# What is held at the worst moment


def test_an_implementation_s_schedule_by_hand() -> None:
    """y = (x W)(x V): x and y are there throughout, and both factors before their product."""
    mixer = cm.Mixer("twofold")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    W, V = mixer.parameter("W", d, d), mixer.parameter("V", d, d)
    with mixer.form("direct") as form:
        i, a, c = form.index("i", 1, l), form.index("a", 1, d), form.index("c", 1, d)
        y[i, a] = sum_(x[i, c] * W[c, a], over=c) * sum_(x[i, c] * V[c, a], over=c)
    system, sizes = system_of(mixer, "direct", (), "training"), {"b": 2, "l": 5, "d": 3}
    assert held_in_turn(system, "training", sizes) == 2 * (2 * 5 * 3)
    assert held_in_turn(system, "training", sizes, Schedule(operations=True)) == 4 * (2 * 5 * 3)


def test_autograd_s_order_by_hand() -> None:
    """P = x W, Q = x V, y = P Q. Backward, Q.grad and P.grad come first, from P and from Q; then
    V.grad and a share of x.grad, then W.grad and the other share, beside x, y and y.grad."""
    mixer = cm.Mixer("twofold")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    W, V = mixer.parameter("W", d, d), mixer.parameter("V", d, d)
    with mixer.form("direct") as form:
        i, a, c = form.index("i", 1, l), form.index("a", 1, d), form.index("c", 1, d)
        P, Q = form.array("P", l, d), form.array("Q", l, d)
        P[i, a] = sum_(x[i, c] * W[c, a], over=c)
        Q[i, a] = sum_(x[i, c] * V[c, a], over=c)
        y[i, a] = P[i, a] * Q[i, a]
    system, sizes = system_of(mixer, "direct", (), "training-step"), {"b": 2, "l": 5, "d": 3}
    found = moments(system, "training-step", sizes, Schedule(operations=True, nodes=True))
    names = [step[0].name for step, _ in found]
    assert names == [
        "P", "Q", "y", "Q.grad", "P.grad", "V.grad", "x.grad[1]", "W.grad", "x.grad[2]", "x.grad",
    ]  # fmt: skip
    rows, weight = 2 * 5 * 3, 3 * 3
    held = [sum(alive.values()) for _, alive in found]
    assert held == [
        3 * rows, 4 * rows, 5 * rows, 6 * rows, 6 * rows, 5 * rows + weight, 6 * rows + weight,
        5 * rows + 2 * weight, 6 * rows + 2 * weight, 6 * rows + 2 * weight,
    ]  # fmt: skip


def test_a_function_by_cases_holds_both_branches_by_hand() -> None:
    """y = elu(x W) + 1: x W, x W + 1 and exp(x W) are there before y, beside x."""
    mixer = cm.Mixer("cases")
    l, d = mixer.sizes("l d")
    x, y, W = mixer.input("x", l, d), mixer.output("y", l, d), mixer.parameter("W", d, d)
    with mixer.form("direct") as form:
        i, a, c = form.index("i", 1, l), form.index("a", 1, d), form.index("c", 1, d)
        y[i, a] = function("elu_plus_1", sum_(x[i, c] * W[c, a], over=c))
    system, sizes = system_of(mixer, "direct", (), "training"), {"b": 2, "l": 5, "d": 3}
    for branches, arrays in ((False, 3), (True, 4)):
        schedule = Schedule(operations=True, branches=branches)
        assert held_in_turn(system, "training", sizes, schedule) == arrays * (2 * 5 * 3)


def test_both_branches_are_a_cause_where_most_is_held_while_they_are_there() -> None:
    """Those of the keys, beside the queries, where weights are wider than sequences are long."""
    chosen, sizes = (
        implementations("linear-attention")["parallel"],
        {"b": 2, "l": 4, "d": 18, "n": 3},
    )
    found = remembered("linear-attention", chosen, "training", sizes=sizes, kept=False)["peak"]
    assert named(found)["both branches"] > 0 and found.unexplained == 0


def test_a_running_sum_holds_its_terms_by_hand() -> None:
    """S_1 = x_1 x_1 and S_i = S_{i-1} + x_i x_i: the products of all rows, but for the first one,
    which is S_1, beside S and x; row by row that of the last row alone."""
    mixer = cm.Mixer("squares")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("recurrent") as form:
        i, a = form.index("i", 2, l), form.index("a", 1, d)
        y[1, a] = x[1, a] * x[1, a]
        y[i, a] = y[i - 1, a] + x[i, a] * x[i, a]
    system, sizes = system_of(mixer, "recurrent", (), "training"), {"b": 2, "l": 5, "d": 3}
    for kernel, largest in (("elementwise", 2 * 5 + 1), ("running-sum", 2 * 5 + 4)):
        *_, (_, _, schedule) = schedules({"y": kernel}, lets_go=False)
        assert held_in_turn(system, "training", sizes, schedule) == 2 * largest * 3


def by_row(mixer: cm.Mixer, kernel: str, row_by_row: bool = True) -> int:
    """The elements that the forward pass of a loop y (5, 3) holds at most, for two sequences."""
    system, sizes = system_of(mixer, "recurrent", (), "training"), {"b": 2, "l": 5, "d": 3}
    kernels = {array.name: kernel for array in system.defining}
    return held_in_turn(
        system, "training", sizes, Schedule(kernels, operations=True, rows=row_by_row)
    )


def recurrence(gates: int) -> cm.Mixer:
    """G_i = tanh(x_i W + y_{i-1} U) of some gates, and their product y_i."""
    mixer = cm.Mixer("gated")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    W, U = mixer.parameter("W", gates, d, d), mixer.parameter("U", gates, d, d)
    with mixer.form("recurrent") as form:
        i, a, c = form.index("i", 2, l), form.index("a", 1, d), form.index("c", 1, d)
        made = [form.array(f"G{g}", l, d) for g in range(gates)]
        for row in (1, i):
            for g, G in enumerate(made, 1):
                inside = sum_(x[row, c] * W[g, c, a], over=c)
                if row is i:
                    inside = inside + sum_(y[i - 1, c] * U[g, c, a], over=c)
                G[row, a] = function("tanh", inside)
            factors: list[Node] = [G[row, a] for G in made]
            y[row, a] = reduce(Mul, factors)
    return mixer


def test_rows_run_operation_by_operation_by_hand() -> None:
    """Of two gates: x, x W of both and four rows of y, then y U and the sum of both gates, which
    are one operation each. As a loop: x and y, and one row of both gates."""
    row = 2 * 3
    assert by_row(recurrence(2), "contraction") == (5 + 2 * 5 + 4 + 2 + 2) * row
    assert by_row(recurrence(2), "contraction", row_by_row=False) == (5 + 5 + 2) * row


@pytest.mark.parametrize(
    ("mixer", "name"),
    [
        ("lstm", "explicit"), ("gru", "explicit"), ("gru+reset-before", "explicit"),
        ("recurrent+two-biases", "torch"), ("simple-causal", "recurrent"),
    ],
)  # fmt: skip
def test_of_two_rows_the_worst_moment_is_explained_too(mixer: str, name: str) -> None:
    """Most is held inside of a row there, and not while products of all rows are taken."""
    chosen, sizes = implementations(mixer)[name], {**SIZES, "l": 2}
    found = remembered(mixer, chosen, "training", sizes=sizes, kept=False)["peak"]
    assert named(found)["row by row"] and found.unexplained == 0


def test_a_layer_that_writes_rows_in_place_holds_a_row_less() -> None:
    """The sum of both gates stands where y U of both gates stood."""
    found = [by_row(recurrence(2), kernel) for kernel in ("contraction", "recurrent-layer")]
    assert found[0] - found[1] == 2 * (2 * 3)


def test_a_sum_over_what_a_row_has_runs_with_that_row_by_hand() -> None:
    """S_i = S_{i-1} + x_i x_i^T and y_i = S_i x_i: x, four rows of y, and of S the row before, the
    next one and the product that is added; all rows of S where the loop is whole."""
    mixer = cm.Mixer("products")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("recurrent") as form:
        i, j = form.index("i", 2, l), form.index("j", 1, l)
        a, c = form.index("a", 1, d), form.index("c", 1, d)
        S = form.array("S", l, d, d)
        S[1, a, c] = x[1, a] * x[1, c]
        S[i, a, c] = S[i - 1, a, c] + x[i, a] * x[i, c]
        y[j, a] = sum_(S[j, a, c] * x[j, c], over=c)
    row, matrix = 2 * 3, 2 * 3 * 3
    assert by_row(mixer, "contraction") == (5 + 4) * row + 3 * matrix
    assert by_row(mixer, "contraction", row_by_row=False) == (5 + 5) * row + 5 * matrix


def test_one_kernel_holds_what_it_reads_and_what_it_gives() -> None:
    """x, V, Z and A at once, as Z is read when A is written, and not the exponentials beside."""
    mixer = cm.mixer("self-attention")
    sizes = complete(mixer, SIZES)
    system = system_of(mixer, None, ("dense", "safe-softmax"), "training")
    rows, scores = 3 * 7 * 6, 3 * 2 * 7 * 7
    largest = 2 * rows + 2 * scores + 3 * 2 * 7  # the maxima while the exponentials are written
    assert held_in_turn(system, "training", sizes) == largest
    assert (
        held_in_turn(system, "training", sizes, Schedule({"A": "softmax"}, one_kernel=True))
        == 2 * rows + 2 * scores
    )


def test_a_call_that_ends_with_its_output_holds_it_throughout() -> None:
    last = [[step.lets_go for _, _, step in schedules({}, lets_go=x)][-1] for x in (False, True)]
    assert last == [False, True]


def test_differences_of_measurements_say_that_they_are_no_derivation() -> None:
    found = of("she", "conv", "training-step")["peak"]
    inside = next(cause for cause in found.causes if cause.name == "inside operations")
    assert inside.meaning.endswith("nothing derives it")


def test_causes_of_the_peak_start_at_the_equations() -> None:
    for phase in ("training", "training-step"):
        found = of("lstm", "explicit", phase)["peak"]
        mixer = cm.mixer("lstm")
        assert found.derived == 4 * cm.peak(mixer, phase).at(**complete(mixer, SIZES))
        assert named(found)["there before"] < 0


# What is put in surfaces


class KeepsMore(MeToeplitz):
    """Keeps one more array of b l d numbers for its backward pass, and gives the same."""

    def mix(self, x: Tensor) -> Tensor:
        y = super().mix(x)
        return y + 0 * torch.tanh(y)


class KeptUnseen(torch.autograd.Function):
    """The identity, which keeps a new array out of autograd's sight."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.kept = y + 1
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class KeepsUnseen(MeToeplitz):
    """Keeps b l d numbers as an attribute of a context."""

    def mix(self, x: Tensor) -> Tensor:
        kept: Tensor = KeptUnseen.apply(super().mix(x))  # type: ignore[no-untyped-call]  # torch's
        return kept


class KeptThroughout(torch.autograd.Function):
    """The identity, which saves a new array and reads it when its own gradient is taken."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x + 1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (kept,) = ctx.saved_tensors
        kept.isnan()
        return gradients[0]


def keeping_throughout(module: type[nn.Module]) -> type[nn.Module]:
    """A class that keeps b l d numbers from before its first operation until after the last
    gradient."""
    assert issubclass(module, SequenceMixer)
    plain = module.mix

    def mix(self: Any, x: Tensor) -> Tensor:
        return plain(self, KeptThroughout.apply(x))  # type: ignore[no-untyped-call]  # torch's

    return type(f"Keeping{module.__name__}", (module,), {"mix": mix})


class HoldsMore(MeToeplitz):
    """Computes b l d numbers first, and reads them last."""

    def mix(self, x: Tensor) -> Tensor:
        more = torch.tanh(x)
        return super().mix(x).add_(more, alpha=0)


class LooksBack(MeToeplitz):
    """Has b l d numbers by name while it runs, which nothing reads."""

    def mix(self, x: Tensor) -> Tensor:
        more = torch.tanh(x)
        y = super().mix(x)
        del more
        return y


def doctored(mixer: str, name: str, module: type[nn.Module], phase: str) -> dict[str, Memory]:
    """The memory of another module under an implementation's description."""
    return remembered(mixer, replace(implementations(mixer)[name], module=module), phase)


def test_a_tensor_that_is_saved_besides_is_unexplained() -> None:
    found = doctored("me", "toeplitz", KeepsMore, "training-step")["activations"]
    assert found.unexplained == ONE


def test_a_tensor_that_is_kept_unseen_is_named_so() -> None:
    found = doctored("me", "toeplitz", KeepsUnseen, "training-step")["activations"]
    assert named(found)["unseen"] == ONE
    assert found.unexplained == 0


@pytest.mark.parametrize(
    ("mixer", "name"),
    [
        ("self-attention", "explicit"), ("self-attention", "sdpa"), ("she", "conv"), ("we", "fft"),
        ("me", "toeplitz"), ("linear-attention", "cumsum"), ("linear-attention", "parallel"),
        ("restricted-attention", "banded"), ("simple-resl", "qk-first"),
    ],
)  # fmt: skip
def test_a_tensor_kept_until_the_last_gradient_is_unexplained_wherever_it_is_held(
    mixer: str, name: str
) -> None:
    """Forward and backward: kept for the gradients, and there at the worst moment of the step."""
    module = keeping_throughout(implementations(mixer)[name].module)
    found = doctored(mixer, name, module, "training-step")
    assert found["activations"].unexplained == ONE
    assert found["peak"].unexplained == ONE


@pytest.mark.parametrize(
    ("mixer", "name", "array", "kernel", "phase"),
    [
        ("simple-causal", "cumsum", "S", "elementwise", "training"),
        ("she", "conv", "ext", "contraction", "training-step"),
        ("self-attention", "explicit", "A", "elementwise", "training-step"),
        ("self-attention", "sdpa", "A", "softmax", "training-step"),
        ("lstm", "explicit", "I", "elementwise", "training"),
        ("recurrent+two-biases", "torch", "y", "contraction", "training"),
    ],
)
def test_another_description_leaves_bytes_unexplained(
    mixer: str, name: str, array: str, kernel: str, phase: str
) -> None:
    """A cause is a count under what is described: of something else it comes out otherwise."""
    chosen = implementations(mixer)[name]
    told = {**(chosen.kernels or {}), array: kernel}
    assert remembered(mixer, chosen, phase)["peak"].unexplained == 0
    assert remembered(mixer, replace(chosen, kernels=told), phase)["peak"].unexplained != 0


def test_a_tensor_held_while_the_forward_pass_runs_is_unexplained() -> None:
    found = doctored("me", "toeplitz", HoldsMore, "training")["peak"]
    assert found.unexplained == ONE
    assert adds_up(found)


def holding(module: type[nn.Module]) -> type[nn.Module]:
    """A class that computes b l d numbers first, and reads them last."""
    assert issubclass(module, SequenceMixer)
    plain = module.mix

    def mix(self: Any, x: Tensor) -> Tensor:
        more = torch.tanh(x)
        return plain(self, x).add_(more, alpha=0)

    return type(f"Holding{module.__name__}", (module,), {"mix": mix})


@pytest.mark.parametrize(
    ("mixer", "name"),
    [("recurrent", "explicit"), ("lstm", "explicit"), ("gru+two-biases", "torch"),
     ("simple-causal", "recurrent")],
)  # fmt: skip
def test_a_tensor_held_while_rows_run_is_unexplained(mixer: str, name: str) -> None:
    module = holding(implementations(mixer)[name].module)
    assert doctored(mixer, name, module, "training")["peak"].unexplained == ONE


def test_a_name_that_nothing_reads_is_held_on() -> None:
    plain, more = (
        doctored("me", "toeplitz", module, "training")["peak"] for module in (MeToeplitz, LooksBack)
    )
    assert plain.unexplained == more.unexplained == 0
    assert named(more)["held on"] - named(plain).get("held on", 0) == ONE


# What is missing says so


def test_memory_that_was_not_measured_says_so() -> None:
    chosen = implementations("me")["fft"]
    result = remembered("me", chosen, "training-step", measured=False)
    for found, words in ((result["activations"], "activations were not measured"),
                         (result["peak"], "peak memory was not measured")):  # fmt: skip
        assert found.reason == words and found.unexplained is None
        assert found.derived is not None and found.measured is None
    forward = remembered("me", chosen, "training", measured=False)
    assert forward["activations"].derived is None
    assert "only a phase with gradients" in forward["activations"].reason
