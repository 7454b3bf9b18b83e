"""Are the differences between a module and the equations named exactly by the switches of the
ladder?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import costmodel as cm
from costmodel import Mixer
from costmodel.language.equations import Form
from costmodel.language.macros.norms import rms_norm
from costmodel.language.macros.positions import short_convolution
from costmodel.symbolic.polynomial import Poly
from profiler.mixers.extractor import SheDirect
from profiler.mixers.self_attention import ExplicitSelfAttention, FusedSelfAttention
from profiler.modules import implementations
from profiler.tracing import trace
from profiler.tracing.cases import SizeCase, Traces
from profiler.tracing.compare_equations import (
    Difference,
    by_case,
    closest_switches,
    compare_pass,
    compare_passes,
    equation_counts,
    forward_rewrite_sets,
    reduced_halves,
)
from profiler.tracing.meta_run.target import TraceError, listed_sizes
from profiler.tracing.report import data, document
from profiler.tracing.result import Break, ZeroArithmetic
from tests.printing import printed
from tests.profiler.tracing.modules import CutConvolution, traced
from tests.profiler.tracing.test_trace import formula
from tests.stand_ins import Instead
from tests.typed import refused


class Doctored(ExplicitSelfAttention):
    """Twice an exponential, and one more sum at every entry of the output."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) + torch.ones_like(x)


def test_the_switches_name_all_of_it() -> None:
    found = compare_pass(traced(ExplicitSelfAttention, "l,h,n", "d=n*h"), "self-attention")
    assert found.explained
    assert [cause.name for cause in found.causes] == ["dense", "safe-softmax"]
    # masked pairs: l(l-1)/2 a head, each with h products for its score and h for its value
    assert found.difference["mul"] == formula("l**2*n*h - l*n*h")
    dense, safe = found.causes
    assert dense.counts["exp"] == formula("n*l*(l - 1)/2")
    assert safe.counts == {"add": formula("l**2*n"), "compare": formula("l**2*n - l*n")}
    total = {
        name: sum((c.counts.get(name, Poly()) for c in found.causes), Poly())
        for name in found.difference
    }
    assert total == found.difference


@pytest.mark.parametrize(("over", "let"), [("l,d,h,n", ""), ("l,d,n", "h=3")])
def test_a_trace_that_names_the_head_width_leaves_it_free(over: str, let: str) -> None:
    found = compare_pass(traced(ExplicitSelfAttention, over, let), "self-attention")
    assert found.explained
    h = "h" if "h" in over else "3"
    assert found.difference["mul"] == formula("l**2*n*H - l*n*H".replace("H", h))


def test_a_mixer_of_no_file_has_no_free_head_width() -> None:
    m = Mixer("mine")
    m.sizes("l d n h")
    with pytest.raises(TraceError, match=r"h is d/n in the equations of mine: .* --let d=n\*h"):
        compare_pass(traced(ExplicitSelfAttention, "l,d,h,n"), m)


def test_fused_attention_computes_visible_pairs_alone() -> None:
    whole = traced(FusedSelfAttention, "l,h,n", "d=n*h", "fused")
    found = compare_pass(whole, "self-attention")
    assert found.explained
    names = ["safe-softmax", "scale=mul", "logsumexp-gradient"]
    assert [cause.name for cause in found.causes] == names
    # kept for the gradients: the logarithm of each row's sum, and its maximum
    assert found.causes[-1].counts == {"add": formula("l*n"), "log": formula("l*n")}


class DoctoredFused(FusedSelfAttention):
    """One more exponential at every entry of what the heads read."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return super().attend(q, k, v, causal=causal).exp()


@pytest.mark.grid(3)
@pytest.mark.parametrize("module", [FusedSelfAttention, DoctoredFused])
def test_the_gradients_of_fused_attention_are_explained(module: Any) -> None:
    """And nothing but the gradient of what was added is left: a product with the result."""
    found = compare_passes(traced(module, "l,h,n", "d=n*h", "fused"), "self-attention")[1]
    assert [cause.name for cause in found.causes] == [
        "scale=mul", "logsumexp-gradient", "softmax-gradient", "weighted-sum-gradient",
        "scale-gradient",
    ]  # fmt: skip
    added = {"mul": formula("l*n*h")} if module is DoctoredFused else {}
    assert found.unexplained == added


class SquaredShe(SheDirect):
    """SHE lag by lag, every entry of the output times itself."""

    def mix(self, x: Tensor) -> Tensor:
        y = super().mix(x)
        return y * y


def test_zeros_that_fill_gradients_up_are_counted_as_formulas() -> None:
    """The gradient of W_ext is the sum of l whole arrays with one lag each, that of x of l whole
    sequences, of which the later lags reach l - lag rows."""
    found = compare_passes(traced(SheDirect, "l,d"), "she")[1]
    (zeros,), (note,) = found.causes, found.notes
    assert found.explained and "not tested at" in note
    assert (zeros.name, zeros.counts) == ("zeros", {"add": formula("(l - 1)*(l*d**2 + l*d/2)")})


def test_sizes_at_which_zeros_are_not_tested_are_named(instead: Instead) -> None:
    """Masks of all entries are too large there, and the trace says that the pass is proven."""
    instead(gradients_made=1)
    whole = replace(traced(SheDirect, "l,d"))
    found = compare_passes(whole, "she")[1]
    (note,) = found.notes
    assert note.startswith("zeros that pad gradients: not tested at l=")
    assert note.endswith("where a run allocates more than 32 MiB")
    largest = max(whole.proven, key=lambda sizes: sum(sizes.values()))
    assert listed_sizes(largest) in note
    (_, backward) = data(whole, compare_passes(whole, "she"))["against"]
    assert note in backward["notes"] and note in printed(document(whole, [found]), "json")


def test_a_product_beside_the_zeros_stays_unexplained() -> None:
    found = compare_passes(trace(SquaredShe, over="d", let="l=5", grad="both"), "she")[1]
    assert [cause.name for cause in found.causes] == ["zeros"]
    # y * y hands its gradient on twice, and adds both up
    assert found.unexplained == {"mul": formula("10*d"), "add": formula("5*d")}


def convolved() -> Mixer:
    """silu of a short convolution with a bias."""
    m = Mixer("convolved")
    l, d, k = m.sizes("l d k")
    x, y = m.input("x", l, d), m.output("y", l, d)
    w, c = m.parameter("w", k, d), m.parameter("c", d)
    with m.form("direct") as f:
        i, b, s = f.index("i", 1, l), f.index("b", 1, d), f.index("s", 1, k)
        u = f.array("u", l, d)
        u[i, b] = short_convolution(x[i, b], w[s, b], along=i, taps=s, bias=c[b])
        y[i, b] = cm.function("silu", u[i, b])
    return m


def test_what_explains_a_case_is_tried_first_in_the_next(instead: Instead) -> None:
    """l = 1, l = 2 and l >= 3: one search among all rewrites."""
    searched: list[Form] = []

    def noted(form: Form) -> Iterator[tuple[str, ...]]:
        searched.append(form)
        return forward_rewrite_sets(form)

    instead(forward_rewrites=noted)
    traces = Traces(traced(CutConvolution, "l", "d=2,k=4"))
    found = [*by_case(traces, convolved(), "forward", SizeCase())]
    assert len(found) == 3 and all(one.explained for one in found)
    assert len(searched) == 1


def test_rows_that_a_convolution_cuts_off_are_named() -> None:
    """Three rows behind the sequence, of four taps and a bias each; their gradients are zeros."""
    forward, *_, backward = compare_passes(traced(CutConvolution, "l", "d=2,k=4"), convolved())[:4]
    assert forward.explained and [cause.name for cause in forward.causes] == ["dense", "cut-rows"]
    rows, taps = 3 * 2, 4
    assert forward.causes[1].counts == {"mul": Poly.of(rows * taps), "add": Poly.of(rows * taps)}
    assert backward.explained
    assert [cause.name for cause in backward.causes] == ["dense", "padded", "zeros"]
    # for the gradients of rows and taps each; the bias adds its rows up, too
    zeros = {"mul": 2 * rows * taps, "add": 2 * rows * taps}
    assert backward.causes[2].counts == {name: Poly.of(n) for name, n in zeros.items()}


class Decayed(nn.Module):
    """S[i] = exp(x[i])*S[i-1] + x[i], which starts without a state: exp(x[1]) is not read."""

    def forward(self, x: Tensor) -> Tensor:
        decays, states = x.exp(), [x[:, 0]]
        for i in range(1, x.shape[1]):
            states.append(decays[:, i] * states[-1] + x[:, i])
        return torch.stack(states, 1)


def test_decays_of_row_1_that_nothing_reads_are_named() -> None:
    m = Mixer("decayed")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 2, l), f.index("b", 1, d)
        a = f.array("a", l, d)
        a[i, b] = cm.exp(x[i, b])
        y[1, b] = x[1, b]
        y[i, b] = a[i, b] * y[i - 1, b] + x[i, b]
    found = compare_pass(traced(Decayed, "l", "d=2"), m)
    assert [(cause.name, cause.counts) for cause in found.causes] == [
        ("unread-rows", {"exp": Poly.of(2)})
    ]
    assert found.explained


def test_a_switch_that_changes_no_count_of_a_case_stays_for_the_next() -> None:
    """Gradients of inputs have no sum that `dense` widens; `padded` is no rewrite without it."""
    cut = trace(CutConvolution, over="l", let="d=2,k=4", grad="inputs", memory=False)
    backward = [one for one in compare_passes(cut, convolved()) if one.phase == "backward"]
    assert len(backward) > 1 and all(one.explained for one in backward)
    assert {one.rewrites for one in backward} == {("dense", "cut-rows", "padded")}


class RmsNorm(nn.Module):
    """x / sqrt(mean of squares + 1e-6)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_switches_of_another_case_stay_where_they_leave_least() -> None:
    """d/2 products fewer than the switches count: the rewrites that are best one by one leave
    more."""
    m = Mixer("normed")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = rms_norm(x[i, b], over=b)
    whole = trace(RmsNorm, over="d", let="l=1", grad="inputs", memory=False)
    switches = ("direct", ("norm=rsqrt", "square-gradient", "mean-gradient"))
    counts = equation_counts(m, *switches, whole, "backward")
    fewer = {**counts, "mul": counts["mul"] - Poly.atom("d") / 2}
    assert closest_switches(m, whole, "backward", fewer) != switches
    assert closest_switches(m, whole, "backward", fewer, [switches]) == switches


def test_zeros_that_cannot_be_followed_are_said_to_be_so() -> None:
    whole = traced(SheDirect, "l,d")

    def refused() -> ZeroArithmetic:
        raise TraceError("not here")

    found = compare_passes(replace(whole, followed=refused), "she")[1]
    assert found.causes == () and found.unexplained.keys() == {"add"}
    assert found.notes == ("zeros that pad gradients are not counted separately: not here",)
    broken = Break({"l": 2, "d": 3}, "l", "2", 5)
    found = compare_passes(replace(whole, followed=lambda: ZeroArithmetic({"add": broken})), "she")[
        1
    ]
    assert found.causes == () and "breaks at l=2, d=3" in found.notes[0]
    assert "breaks at l=2, d=3" in printed(document(whole, [found]), "markdown")


def test_an_injected_operation_stays_unexplained() -> None:
    found = compare_pass(traced(Doctored, "l", "h=3,n=2,d=n*h"), "self-attention")
    assert found.unexplained == {"add": formula("6*l")}
    assert not found.explained


def test_a_linear_map_is_not_self_attention() -> None:
    class Map(nn.Linear):
        def __init__(self, d: int) -> None:
            super().__init__(d, d)

    found = compare_pass(trace(Map, over="l", let="h=3,n=2,d=n*h", grad="both"), "self-attention")
    assert not found.explained
    assert found.unexplained["exp"] != Poly()


def test_the_backward_pass_is_explained_by_the_switches_of_the_forward_pass() -> None:
    """torch takes the gradient of a softmax from its result: no quotient, no maximum."""
    whole = traced(ExplicitSelfAttention, "l,h,n", "d=n*h")
    forward, backward = compare_passes(whole, "self-attention")
    assert forward.explained and backward.explained
    names = [cause.name for cause in backward.causes]
    assert names == ["dense", "softmax-gradient"]
    # u = g / sum, one quotient a pair, of all l^2 pairs of n heads
    assert backward.causes[-1].counts["div"] == formula("-l**2*n")


def test_an_added_constant_has_no_backward_work() -> None:
    backward = compare_passes(traced(Doctored, "l,h,n", "d=n*h"), "self-attention")[1]
    assert backward.explained  # a constant that is added hands its gradient on, free


def test_a_recurrence_is_compared_from_two_rows_on() -> None:
    """Its equations count the first row apart; the gradient of U has no term at l = 1."""
    whole = trace(implementations("recurrent")["explicit"].module, over="l,d", grad="both")
    forward, backward = compare_passes(whole, "recurrent")
    assert forward.explained and backward.explained
    assert forward.causes == backward.causes == ()


def test_a_pass_that_cannot_be_compared_says_why(instead: Instead) -> None:
    """A gradient that is not derived, that of a running maximum: the backward pass is compared in
    no case, and need not be traced."""
    m = Mixer("pooled")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        j = f.index("j", 1, i)
        y[i, b] = cm.max_over(x[j, b], over=j)

    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    asked: list[str] = []

    def noted(*of: Any) -> Iterator[Difference]:
        asked.append(of[2])
        return by_case(*of)

    instead(cases_of_trace=noted)
    for grad in ("both", "none"):
        traced = trace(Pooled, over="l,d", grad=grad)
        assert any(phase == "backward" for phase, _ in traced.quantities) == (grad == "both")
        forward, backward = compare_passes(traced, m)
        assert not forward.explained and forward.reason == ""
        assert "which entry is the maximum of each row" in backward.reason
    assert {*asked} == {"forward"}


def test_a_backward_pass_of_too_many_cases_is_told_in_one_row(instead: Instead) -> None:
    whole = traced(SheDirect, "l,d")
    forward, backward = compare_passes(whole, "she")
    instead(cases_of_trace=lambda *of: iter([forward] if of[2] == "forward" else 3 * [backward]))
    assert compare_passes(whole, "she", most=3) == [forward, *3 * [backward]]
    kept, told = compare_passes(whole, "she", most=2)
    assert (kept, told.phase, told.explained) == (forward, "backward", False)
    assert told.reason.startswith("more than 2 cases of sizes: `costmodel trace` compares all")


def test_an_unknown_mixer_is_refused_before_the_trace(
    instead: Instead, capsys: pytest.CaptureFixture[str]
) -> None:
    instead(trace=lambda *given, **named: pytest.fail("traced"))
    words = ("trace", "torch.nn:Linear", "--over", "l", "--against", "config.json")
    assert "unknown mixer 'config.json'" in refused(capsys, *words)


def test_floors_inside_floors_occur_in_the_first_power() -> None:
    k, l = Poly.atom("k"), Poly.atom("l")
    reduced = reduced_halves(((k // 2 * l) // 2) ** 2)
    assert all(power == 1 for term in reduced.terms for atom, power in term if atom not in "kl")
    assert reduced.at({"k": 7, "l": 5}) == 49
