"""Is a module compared with equations in each of their cases?"""

from __future__ import annotations

import json
import tracemalloc
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel import mixer as load_mixer
from costmodel.symbolic.constraints import floor_div
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import conditions_words
from profiler.mixers.convolution import CausalConvolutionByTaps, CausalConvolutionPadded
from profiler.modules import implementations
from profiler.tracing.cases import ByCases, SizeCase, Traces, narrow_lines
from profiler.tracing.compare_equations import (
    Difference,
    by_case,
    classes_minus,
    compare_pass,
    compare_passes,
    floors_to_divide,
)
from profiler.tracing.divisions import floors_in
from profiler.tracing.meta_run.fused import BACKENDS
from profiler.tracing.meta_run.target import Target, TraceError, Variables, parse_variables
from profiler.tracing.proof import LARGE
from profiler.tracing.report import document
from profiler.tracing.result import Cases
from profiler.tracing.size_samples import SizeSamples
from profiler.tracing.trace import FormulaSearch, pinned, trace, trace_case
from tests.printing import printed
from tests.profiler.tracing.modules import traced
from tests.profiler.tracing.test_trace import formula
from tests.stand_ins import Instead

LET = "d=3"


class Added(CausalConvolutionPadded):
    """A sum more at every entry of the output."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) + torch.ones_like(x)


class Doubled(CausalConvolutionPadded):
    """A product more at every entry, where there are more taps than tokens."""

    def mix(self, x: Tensor) -> Tensor:
        y = super().mix(x)
        return y * 2.0 if self.k > x.shape[1] + 1 else y


class Refusing(CausalConvolutionPadded):
    """Few more taps than tokens."""

    def __init__(self, *, d: int, l: int, k: int) -> None:
        if k > l + 9:
            raise ValueError(f"k = {k} taps are too many for l = {l} tokens")
        super().__init__(d=d, l=l, k=k)


@cache
def forward(module: Any) -> dict[str, Difference]:
    """Case -> what lies between the forward pass of a convolution and its equations."""
    traces, mixer = Traces(traced(module, "l,k", LET)), load_mixer("convolution")
    return {one.case: one for one in by_case(traces, mixer, "forward", SizeCase())}


MANY, FEW = "l + 1 >= k", "l + 2 <= k"
"""At l = k - 1 the formulas of both cases are equal."""


def test_the_difference_is_a_formula_in_each_case() -> None:
    """Row i has min(k, i) taps; padded, it has k of them. Each is d^2 products."""
    found = forward(CausalConvolutionPadded)
    assert found.keys() == {MANY, FEW}
    assert found[MANY].difference["mul"] == formula("9*k*(k - 1)/2")
    assert found[FEW].difference["mul"] == formula("9*(k*l - l*(l + 1)/2)")
    for one in found.values():
        assert one.explained and [cause.name for cause in one.causes] == ["dense"]
        assert len(one.proven) >= 3
        fits = [condition.rational(p) >= 0 for p in one.proven for condition in one.region]
        assert all(fits)


def test_both_passes_have_cases_and_say_so() -> None:
    whole = traced(CausalConvolutionPadded, "l,k", LET)
    with pytest.raises(ByCases, match="l \\+ 1 >= k or l \\+ 2 <= k"):
        compare_pass(whole, "convolution")
    found = compare_passes(whole, "convolution")
    assert [(one.phase, one.case) for one in found] == [
        ("forward", MANY), ("forward", FEW), ("backward", "l >= k"), ("backward", "l < k"),
    ]  # fmt: skip
    assert all(one.explained for one in found)
    made = printed(document(whole, found), "markdown")
    assert "The backward pass less the equations of convolution, where l \\< k" in made
    assert "traced in this case and proven at sizes beside the fitted ones: l=" in made
    listed = json.loads(printed(document(whole, found), "json"))["against"]
    assert [one["case"] for one in listed] == [one.case for one in found]
    assert all(one["proven"] and one["unexplained"] == {} for one in listed)


@pytest.mark.grid
def test_what_has_no_formula_at_all_sizes_has_one_in_each_case() -> None:
    """Tap by tap, as many products as there are taps that reach a row. Without the grid, cases of a
    whole trace are those of test_proof.py, cases of a comparison those above."""
    products = traced(CausalConvolutionByTaps, "l,k", LET).forward["mul"]
    assert isinstance(products, Cases)
    reached = [sum(9 * min(i, 4) for i in range(1, l + 1)) for l in (3, 9)]
    assert [products.at({"l": l, "k": 4}) for l in (3, 9)] == reached
    found = forward(CausalConvolutionByTaps)
    assert found.keys() == {MANY, FEW}
    assert all(one.explained and not one.causes for one in found.values())


def test_an_injected_sum_stays_unexplained_in_every_case() -> None:
    assert [one.unexplained for one in forward(Added).values()] == [{"add": formula("3*l")}] * 2


def test_an_injected_product_of_one_case_is_unexplained_there_alone() -> None:
    target = Target("Doubled", Doubled)
    for case, one in forward(CausalConvolutionPadded).items():
        found = trace_case(target, parse_variables("l,k", LET), "math", one.region)
        unexplained = {"mul": formula("3*l")} if case == FEW else {}
        assert compare_pass(found, "convolution").unexplained == unexplained


def test_a_case_that_cannot_be_traced_says_so() -> None:
    found = forward(Refusing)
    assert found[MANY].explained
    assert not found[FEW].explained and "taps are too many for" in found[FEW].reason


def test_a_case_without_room_says_so() -> None:
    l, k = Poly.atom("l"), Poly.atom("k")
    one = frozenset((l - k, k + 9 - l))
    with pytest.raises(
        TraceError, match=r"where l >= k and l <= k \+ 9, which holds for fewer than the 9"
    ):
        traced(CausalConvolutionPadded, "l,k", LET).within(one)


def test_a_case_that_bounds_a_size_by_another_is_proven_where_both_are_large() -> None:
    l, k = Poly.atom("l"), Poly.atom("k")
    found = traced(CausalConvolutionPadded, "l,k", LET).within(frozenset({k - l - 2}))
    assert max(point["l"] for point in found.proven) >= LARGE[1]
    assert all(point["k"] >= point["l"] + 2 for point in found.proven)


def test_the_first_sizes_of_a_case_are_made_one_after_another() -> None:
    """Of four scales for each of ten letters there are a million points."""
    sizes = parse_variables("l,d,n,g,k,w,s,r,m,v", ())
    region = frozenset({Poly.atom("l") - Poly.atom("k") * 3})
    samples = SizeSamples(Target("none", dict), sizes, BACKENDS["math"], region)
    tracemalloc.start()
    starts = [*islice(FormulaSearch(samples, "math", divided=False).starts(), 4)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20
    assert [*map(sum, starts)] == sorted(map(sum, starts)) and len({*starts}) == 4
    assert all(samples.named(point)["l"] >= 3 * samples.named(point)["k"] for point in starts)


def test_a_trace_without_memory_has_the_formulas_of_operations_alone() -> None:
    whole, lean = (trace(nn.Sigmoid, over="l", let=LET, memory=memory) for memory in (True, False))
    assert {q for q in whole.quantities if q[0] == "bytes"} and whole.peak_bytes != 0
    kept = {q: value for q, value in whole.quantities.items() if q[0] != "bytes"}
    assert lean.quantities == kept
    for name in ("peak_bytes", "activation_bytes"):
        with pytest.raises(TraceError, match="bytes were not traced: call trace with memory=True"):
            getattr(lean, name)


def test_a_case_of_even_sizes_alone_is_written_by_the_half() -> None:
    l, w, c = map(Poly.atom, "lwc")
    half, chunks = w // 2, floor_div(l, c)
    line = frozenset((half + l + 1 - w, w - half - l - 1))
    assert floors_to_divide(line) == []
    assert floors_to_divide(line | {half - l - 1}) == floors_in([half])
    assert floors_to_divide(frozenset((chunks - 1,))) == floors_in([chunks])


def test_a_narrow_case_is_taken_apart_into_lines() -> None:
    """l = k and l = k + 1, on each of which l follows from k."""
    l, k = Poly.atom("l"), Poly.atom("k")
    lines = narrow_lines(frozenset((l - k, k + 1 - l)))
    assert {conditions_words(line) for line in lines} == {"l = k", "l = k + 1"}
    assert narrow_lines(frozenset((l - k,))) == [frozenset((l - k,))]
    for line, products in zip(
        lines, ("9*k*(k - 1)/2", "9*(k + 1)*k - 9*(k*(k + 1)/2 + k)"), strict=True
    ):
        found = trace_case(
            Target("line", CausalConvolutionPadded), parse_variables("l,k", LET), "math", line
        )
        assert list(found.variables.over) == ["k"] and found.region == line
        assert compare_pass(found, "convolution").difference["mul"] == formula(products)


def test_of_forms_that_count_the_same_forward_the_backward_pass_tells_which_ran() -> None:
    """At l = w the band holds as many pairs as the whole triangle."""
    name, l, w = "restricted-attention-causal", Poly.atom("l"), Poly.atom("w")
    sizes = parse_variables("l,w", {"n": "1", "h": "3", "d": "3"})
    target = Target("band", implementations(name)["banded"].module)
    found = trace_case(target, sizes, "math", frozenset((l - w, w - l)))
    assert compare_pass(found, name).explained
    backward = compare_pass(found, name, "backward")
    assert backward.explained and backward.form == "banded"


def test_formulas_in_halves_are_compared_by_their_values() -> None:
    """A centred convolution has floor(k/2) taps ahead of a token."""
    k = Poly.atom("k")
    ahead, behind = k // 2, (k + 1) // 2
    assert classes_minus({"mul": ahead * behind * 4}, {"mul": k * k - (behind - ahead)}) == {}
    odd = classes_minus({"mul": k}, {"mul": ahead * 2})["mul"]
    assert [odd.at({"k": size}) for size in (2, 3, 4, 5)] == [0, 1, 0, 1]


def test_a_search_ends_after_the_most_runs(instead: Instead) -> None:
    instead(traced_runs=12)
    with pytest.raises(TraceError, match=r"12 runs .* do not suffice .*: name fewer letters"):
        trace(nn.Sigmoid, over="l,d")


@pytest.mark.parametrize(
    ("steps", "over", "let"),
    [
        ({"l": 8, "w": 1}, {"l": 8}, ["w"]),
        ({"w": 8, "l": 1}, {"w": 8}, ["l"]),
        ({"l": 4, "w": 6}, {"w": 12}, ["l"]),
    ],
)
def test_a_letter_that_equals_another_keeps_its_step(
    steps: dict[str, int], over: dict[str, int], let: list[str]
) -> None:
    l, w = Poly.atom("l"), Poly.atom("w")
    region, sizes = pinned(frozenset({l - w, w - l}), Variables(steps))
    assert not region and (dict(sizes.over), [*sizes.let]) == (over, let)


def test_a_formula_by_cases_gives_no_rounded_count() -> None:
    with pytest.raises(ValueError, match="not an integer"):
        Cases(((frozenset(), Poly.atom("l") * Fraction(1, 2)),)).at({"l": 3})
