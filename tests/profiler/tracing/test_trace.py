"""Do the formulas of traced modules equal derivations by hand?"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel.language.formula_text import parse
from costmodel.symbolic.formulas import poly as poly_of
from costmodel.symbolic.polynomial import Poly
from profiler.counting.rules import nominal_words
from profiler.tracing import trace
from profiler.tracing.compare_equations import compare_pass
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.report import document
from profiler.tracing.result import Trace
from tests.printing import printed
from tests.profiler.tracing import modules
from tests.profiler.tracing.modules import traced


def formula(text: str) -> Poly:
    """A polynomial in which h is a size of its own."""
    return poly_of(parse(text).tree, {"h": Poly.atom("h")})


def assert_classes(found: dict[str, Any], **expected: str) -> None:
    """These classes have these formulas, and no other class has any."""
    given = {name: value for name, value in found.items() if value != Poly()}
    assert given == {name: formula(text) for name, text in expected.items()}


def assert_sound(found: Trace) -> None:
    """Everything was counted, has a formula, and was proven at a large prime of every size."""
    assert found.complete, (found.uncounted, found.broken)
    for letter in found.variables.over:
        assert any(point[letter] >= 37 for point in found.proven), found.notes


# Derived by hand.


def test_a_linear_layer_equals_a_count_by_hand() -> None:
    # y = x W^T + b, x (l, d), W (2d, d): 2dl sums of d products and a bias.
    # dx = dy W: ld sums of 2d products. dW = dy^T x: 2d*d sums of l. db: 2d sums of l.
    found = traced(modules.linear, "l,d")
    assert_sound(found)
    assert_classes(found.forward, mul="2*d**2*l", add="2*d**2*l")
    assert_classes(
        found.backward, mul="4*d**2*l", add="l*d*(2*d - 1) + 2*d**2*(l - 1) + 2*d*(l - 1)"
    )
    assert found.parameters == formula("2*d**2 + 2*d")
    # kept for the backward: x, of 4 bytes a number
    assert found.activation_bytes == formula("4*d*l")
    # alive at the end: W, b, their gradients, x, dx, y, dy
    assert found.peak_bytes == formula("4*(2*(2*d**2 + 2*d) + 2*d*l + 2*2*d*l)")
    assert found.since == {"l": 1, "d": 1}


def test_multi_head_attention_equals_a_count_by_hand() -> None:
    # d = nh. Four linear maps: 4ld^2 products, 4ld(d - 1) adds and 4ld biases; the math path
    # multiplies q and k by the root of the scale: 2ld. Scores: n l^2 sums of h; weights times
    # values: ld sums of l. Softmax: l^2 n - l n comparisons and adds, l^2 n differences, exps and
    # divisions; the search for rows without keys is not counted, as in a fused kernel.
    found = trace(modules.attention, over="l,h,n", let="d=n*h", grad="both")
    assert_sound(found)
    assert_classes(
        found.forward,
        mul="4*l*n**2*h**2 + 2*l*n*h + 2*l**2*n*h",
        add="4*l*n**2*h**2 + l**2*n*(h - 1) + l*n*h*(l - 1) + 2*l**2*n - l*n",
        div="l**2*n",
        exp="l**2*n",
        compare="l**2*n - l*n",
    )
    # Maps: dx of the output's, ld sums of d, and of the packed one, ld sums of 3d; dW, 4d^2 sums
    # of l; db, 4d sums of l. dP, l^2 n sums of h; dV, dQ, dK: ld sums of l each; softmax:
    # (g - sum(g y)) y. The three parts of the packed map's gradient are added as wholes: 2 * 3ld.
    assert_classes(
        found.backward,
        mul="8*l*n**2*h**2 + 4*l**2*n*h + 2*l**2*n + 2*l*n*h",
        add="l*n*h*(n*h - 1) + l*n*h*(3*n*h - 1) + 4*n**2*h**2*(l - 1) + 4*n*h*(l - 1)"
        "+ l**2*n*(h - 1) + 3*l*n*h*(l - 1) + 2*l**2*n - l*n + 6*l*n*h",
    )
    assert found.parameters == formula("4*n**2*h**2 + 4*n*h")


def test_an_encoder_layer_equals_a_count_by_hand() -> None:
    # Attention as above, an FFN of width 4d with relu, two norms, two residual sums. A norm: mean
    # (d - 1, a division), variance (d differences, d squares, d - 1, a division), eps, root and its
    # reciprocal, d products, weight and bias.
    found = traced(modules.encoder_layer, "l,h,n", "d=n*h")
    assert_sound(found)
    assert found.flops is not None and found.flops.agrees
    assert_classes(
        found.forward,
        mul="12*l*n**2*h**2 + 2*l*n*h + 2*l**2*n*h + 2*3*l*n*h",
        add="4*l*n**2*h**2 + l**2*n*(h - 1) + l*n*h*(l - 1) + 2*l**2*n - l*n"
        "+ 8*l*n**2*h**2 + 2*l*n*h + 2*l*(4*n*h - 1)",
        div="l**2*n + 2*l*3",
        exp="l**2*n",
        compare="l**2*n - l*n + 4*l*n*h",
        sqrt="2*l",
    )
    assert found.parameters == formula("12*n**2*h**2 + 13*n*h")


def test_an_lstm_equals_a_count_by_hand() -> None:
    # A step: 4d sums of d + d products with two biases and one sum of both maps; three sigmoids
    # (exp, add, div), two tanh; c = f c + i g, h = o tanh(c): 3 products, one sum a unit.
    found = traced(modules.lstm, "l,d")
    assert_sound(found)
    assert_classes(
        found.forward,
        mul="l*(8*d**2 + 3*d)",
        add="l*(8*d*(d - 1) + 8*d + 4*d + 3*d + d)",
        div="3*d*l",
        exp="3*d*l",
        tanh="2*d*l",
    )
    # A step: i, f, o (1 - y) y g and twice (1 - y y) g: 10 products, 5 sums; dh t, dh o, dc i,
    # dc g, dc f', dc f: 6 products, the last not at the first step, whose c is no variable. Gates
    # to x: dl sums of 4d; to h at all steps but the first. dW_x: 4d^2 sums of l; dW_h: an outer
    # product a step, added to those before; biases: 4d sums of l, both. dh and dc are sums of two.
    assert_classes(
        found.backward,
        mul="16*d**2*l - 4*d**2 + 16*d*l - d",
        add="d*l*(4*d - 1) + d*(l - 1)*(4*d - 1) + 2*4*d**2*(l - 1) + 2*4*d*(l - 1) + 5*d*l+ 2*d*l",
    )
    assert found.parameters == formula("8*d**2 + 8*d")


def test_a_gru_equals_a_count_by_hand() -> None:
    # A step: 3d sums of d + d products, two biases; r, z and n are sums of both maps, the latter
    # after r b; h = (h' - n) z + n: one product, two sums.
    found = traced(modules.gru, "l,d")
    assert_sound(found)
    assert_classes(
        found.forward,
        mul="l*(6*d**2 + 2*d)",
        add="l*(6*d*(d - 1) + 6*d + 3*d + 2*d + 2*d)",
        div="2*d*l",
        exp="2*d*l",
        tanh="d*l",
    )
    assert found.parameters == formula("6*d**2 + 6*d")


def convolution(axes: int, transposed: bool = False, groups: int = 1, **options: int) -> Any:
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{axes}d")

    def make(l: int, d: int) -> tuple[nn.Module, Tensor]:
        module = kind(groups * d, 2 * groups * d, 3, groups=groups, bias=False, **options)
        return module, torch.empty(2, groups * d, *[l] * axes)

    return make


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("make", "products", "forward", "backward"),
    [
        # batch 2, 2d outputs of 3d products at l - 2 places; dx: the padded places, all of them
        # touched, are 2*d*l; dW: 2d*d*3
        (convolution(1), "2*2*d*(l - 2)*3*d", "2*2*d*(l - 2)", "2*d*l + 6*d**2"),
        # padding keeps l places; windows touch l + 2
        (convolution(1, padding=1), "2*2*d*l*3*d", "2*2*d*l", "2*d*(l + 2) + 6*d**2"),
        (convolution(2), "2*2*d*(l - 2)**2*9*d", "2*2*d*(l - 2)**2", "2*d*l**2 + 18*d**2"),
        (convolution(3, padding=1), "2*2*d*l**3*27*d", "2*2*d*l**3",
         "2*d*(l + 2)**3 + 54*d**2"),
        # five groups, each as one of d channels
        (convolution(1, groups=5), "5*2*2*d*(l - 2)*3*d", "5*2*2*d*(l - 2)",
         "5*(2*d*l + 6*d**2)"),
        # every second place: floor((l + 1)/2) windows, which touch twice as many and one
        (convolution(1, stride=2, padding=1), "2*2*d*floor((l + 1)/2)*3*d",
         "2*2*d*floor((l + 1)/2)", "2*d*(2*floor((l + 1)/2) + 1) + 6*d**2"),
        # transposed: every input times every tap, summed where they meet, at l + 2 places
        (convolution(1, transposed=True), "2*d*l*2*d*3", "2*2*d*(l + 2)", "2*d*l + 6*d**2"),
        (convolution(2, transposed=True, stride=2), "2*d*l**2*2*d*9", "2*2*d*(2*l + 1)**2",
         "2*d*l**2 + 18*d**2"),
        (convolution(1, transposed=True, groups=5), "5*2*d*l*2*d*3", "5*2*2*d*(l + 2)",
         "5*(2*d*l + 6*d**2)"),
    ],
    ids=["1d", "padded", "2d", "3d", "grouped", "strided", "transposed", "transposed 2d strided",
         "transposed grouped"],
)  # fmt: skip
def test_convolutions_equal_a_count_by_hand(
    make: Any, products: str, forward: str, backward: str
) -> None:
    # R products into one sum are R - 1 adds, so adds are products less sums; the backward has the
    # products twice, for the input's gradient and for the weight's.
    found = trace(make, over="l,d", grad="both")
    assert_sound(found)
    assert_classes(found.forward, mul=products, add=f"{products} - ({forward})")
    assert_classes(found.backward, mul=f"2*{products}", add=f"2*{products} - ({backward})")


def test_fused_causal_attention_equals_a_count_by_hand() -> None:
    # l(l+1)/2 pairs a head: scores and scale h + 1 products and h - 1 adds, values h products a
    # pair and h adds less l h; softmax: per pair a difference, an exp, a division, and per pair
    # less one a row a comparison and an add. Kept a row: its maximum plus the logarithm of its sum.
    found = trace(modules.causal, over="l,h,n", backend="fused", grad="both")
    assert_sound(found)
    pairs = "n*l*(l + 1)/2"
    assert_classes(
        found.forward,
        mul=f"{pairs}*(2*h + 1)",
        add=f"{pairs}*(h - 1) + ({pairs} - n*l)*h + {pairs} + {pairs} - n*l + n*l",
        div=pairs,
        exp=pairs,
        compare=f"{pairs} - n*l",
        log="n*l",
    )
    # scores again (h + 1 products), exp(S - L); dV, dP: h products a pair each, D: l h; dS: one;
    # dQ and dK: h a pair and l h for the scale each; q, k and v are one tensor: two sums of wholes
    assert_classes(
        found.backward,
        mul=f"{pairs}*(5*h + 2) + 3*n*l*h",
        add=f"{pairs}*(h - 1) + {pairs} + {pairs}*(h - 1) + n*l*(h - 1) + {pairs}"
        f"+ 3*({pairs} - n*l)*h + 2*n*l*h",
        exp=pairs,
    )
    # kept: q, k and v are one tensor, the result, and a logarithm a row
    assert found.activation_bytes == formula("4*(2*l*h*n + l*n)")


def test_the_math_path_computes_masked_pairs() -> None:
    found = trace(modules.causal, over="l,h,n")
    assert found.forward["exp"] == formula("l**2*n")
    assert found.forward["mul"] == formula("2*l**2*n*h + 2*l*n*h")


@pytest.mark.parametrize("make", [modules.lstm, modules.gru])
def test_fused_recurrences_have_the_products_of_their_cells(make: Any) -> None:
    gates = {"lstm": 4, "gru": 3}[make.__name__]
    found = traced(make, "l,d", backend="fused")
    assert_sound(found)
    # per unit and step: f c, i g, o t; and r b, (1 - z) n, z h
    assert found.forward["mul"] == formula(f"{gates}*2*d**2*l + 3*d*l")
    # maps to x and h, and both weights; 16 and 11 products a unit and step in the cells' kernels
    units = {"lstm": 16, "gru": 11}[make.__name__]
    assert found.backward["mul"] == formula(f"4*{gates}*d**2*l + {units}*d*l")
    assert found.forward["tanh"] == traced(make, "l,d").forward["tanh"]


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_fused_norms_centre_once(name: str) -> None:
    def make(d: int) -> nn.Module:
        module: nn.Module = getattr(nn, name)(d)
        return module

    found = trace(make, over="l,d", backend="fused")
    assert_sound(found)
    centred = {
        # mean and variance: d - 1 adds each, d differences; a bias; a product an entry
        "LayerNorm": {"mul": "3*d*l", "add": "2*l*(d - 1) + d*l + l + d*l", "div": "3*l"},
        "RMSNorm": {"mul": "3*d*l", "add": "l*(d - 1) + l", "div": "2*l"},
    }[name]
    assert_classes(found.forward, sqrt="l", **centred)


# Sizes that are no polynomials.


def test_a_padded_length_and_its_logarithm() -> None:
    # P = 2^ceil(log2 l), N = 2P: two forward transforms and one back, P + 1 complex products.
    found = trace(modules.LongConvolution, over="l,d")
    assert_sound(found)
    length = "2*2**ceil_log2(l)"
    # the kernel's transform has d rows as the input's has
    assert found.forward["mul"] == formula(
        f"3*d*{length}*(ceil_log2(l) + 1) + 4*d*(2**ceil_log2(l) + 1)"
    )


def test_a_chunked_module_gives_a_formula_with_floor() -> None:
    # ceil(l/7) chunks of 7 * 7 sums of d
    found = traced(modules.Chunked, "l,d")
    assert_sound(found)
    assert_classes(found.forward, mul="49*d*floor((l + 6)/7)", add="49*(d - 1)*floor((l + 6)/7)")


class Looped(nn.Module):
    """Attention within chunks of 7, the last one shorter, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        parts = (x[:, start : start + 7] for start in range(0, x.shape[1], 7))
        return torch.cat([(part @ part.transpose(1, 2)) @ part for part in parts], 1)


def test_a_loop_over_chunks() -> None:
    """A slice of everything is none, so that up to one chunk is a case of its own."""
    found = trace(Looped, over="l", let="d=3", grad="both")
    for l in (8, 14, 15, 20, 71, 500):
        pairs = sum(min(7, l - start) ** 2 for start in range(0, l, 7))
        assert found.forward["mul"].at({"l": l}) == 2 * 3 * pairs  # type: ignore[union-attr]  # a formula
        assert found.backward["mul"].at({"l": l}) == 4 * 3 * pairs  # type: ignore[union-attr]


def test_nested_strides_give_the_shortest_formula() -> None:
    # l x l images halved twice, rounding up: ceil(l/2)^2 places of 9 products, then ceil(l/4)^2
    def make(l: int) -> tuple[nn.Module, Tensor]:
        halves = (nn.Conv2d(1, 1, 3, stride=2, padding=1, bias=False) for _ in range(2))
        return nn.Sequential(*halves), torch.empty(1, 1, l, l)

    found = trace(make, over="l")
    assert found.complete
    assert found.forward["mul"] == formula("9*floor((l + 1)/2)**2 + 9*floor((l + 3)/4)**2")


def test_small_sizes_that_are_a_case_of_their_own() -> None:
    found = traced(modules.Windowed, "l,d")
    assert found.complete
    assert_classes(found.forward, mul="12*d")
    assert found.since == {"l": 12, "d": 1}
    assert any("l=12 on" in note and "l=11" in note for note in found.notes)


def test_what_fits_nothing_is_reported_with_the_first_size() -> None:
    found = trace(modules.Odd, over="l", let="d=2")
    assert not found.complete
    broken = found.forward["mul"]
    assert not isinstance(broken, Poly)
    assert not any("the formulas hold" in note for note in found.notes)
    said = printed(document(found), "markdown")
    assert "the formulas found are proven at" in said
    assert "no formula" in str(broken) and "breaks at l=" in str(broken)
    with pytest.raises(TraceError, match="no formula"):
        found.at(l=3)


def test_a_pass_that_a_trace_lacks_is_refused() -> None:
    """A phase of the equations, such as training, is no pass of a trace, and has no operations."""
    found = trace(nn.Identity, over="l,d")
    for asked in (lambda: found.at("training", l=3, d=4), lambda: compare_pass(found, "me", "x")):
        with pytest.raises(
            TraceError, match=r"'(training|x)' is no pass of a trace: expected forw"
        ):
            asked()


def test_multiples_are_found() -> None:
    found = trace(modules.Needing, over="l,d")
    assert found.complete
    assert_classes(found.forward, mul="d*l/2")
    assert any("d runs over multiples of 2" in note for note in found.notes)
    assert trace(modules.Needing, over="l,d:2").forward == found.forward


# Nothing is passed over.


@pytest.mark.parametrize(
    ("doctor", "forward", "backward"),
    [
        ("add", {"add": "d*l"}, {}),
        ("mul", {"mul": "d*l"}, {"mul": "d*l"}),
        ("exp", {"exp": "d*l"}, {"mul": "d*l"}),  # the derivative is g * y
        ("upcast", {"convert": "d*l"}, {"convert": "d*l"}),
        ("hook", {}, {"mul": "d*l"}),
    ],
)
def test_injected_operations_surface_exactly(
    doctor: str, forward: dict[str, str], backward: dict[str, str]
) -> None:
    def doctored(d: int) -> nn.Module:
        return modules.Doctored(d, doctor)

    plain, found = traced(modules.Doctored, "l,d"), trace(doctored, over="l,d", grad="both")
    for phase, expected in (("forward", forward), ("backward", backward)):
        clean, now = plain.classes(phase), found.classes(phase)
        more = {}
        for name, after in now.items():
            before = clean.get(name, Poly())
            assert isinstance(after, Poly) and isinstance(before, Poly)
            more[name] = after - before
        assert_classes(more, **expected)


def test_an_operation_without_a_rule_is_listed() -> None:
    found = trace(modules.Unruled, over="l,d")
    assert not found.complete
    (listed,) = found.uncounted
    assert listed.name.startswith("aten::polygamma: no counting rule")
    assert listed.phase == "forward"
    assert listed.calls == Poly.of(1)
    # 4 bytes a number in, 4 out
    assert listed.bytes_touched == formula("8*d*l")
    assert_classes(found.forward, mul="d*l")
    assert "| mul | $d l$, and what is listed below |" in printed(document(found), "markdown")
    assert "| add | $0$, and what is listed below |" in printed(document(found), "markdown")
    assert "its share of the others is unknown" in str(found.flops)


def test_what_touches_no_numbers_is_no_operation() -> None:
    """A profiler's marks are dispatched, too."""

    class Marked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.profiler.record_function("marked"):
                return x * 2

    assert trace(Marked, over="l,d").complete


class Transformed(nn.Module):
    """A Fourier transform."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.fft.rfft(x.detach(), dim=1).real
        return y


@pytest.mark.grid
def test_a_rule_that_reaches_even_sizes_alone_names_them() -> None:
    """An odd number of transforms of an odd length has no whole number of adds."""
    found = trace(Transformed, over="l,d")
    assert not found.complete
    assert [note for note in found.notes if note.startswith("--over")] == [
        f"--over {even} has sizes at which there is a rule for aten::_fft_r2c"
        for even in ("l:2", "d:2")
    ]
    assert traced(Transformed, "l:2,d").complete


def test_what_is_counted_nominally_says_so() -> None:
    """What is proven of a Fourier transform is the count by its definition."""
    found = traced(Transformed, "l:2,d")
    said = "nominal for Fourier transforms: counted by documented arithmetic, not observed"
    assert said in found.notes
    assert not any("nominal" in note for note in trace(nn.Tanh, over="l,d").notes)
    assert nominal_words(["aten::sort", "aten::linalg_lu"]).startswith("nominal for sorts and fact")
    assert not nominal_words(["aten::unique_consecutive", "aten::lu_unpack"])


def test_what_runs_at_small_sizes_alone_is_not_listed() -> None:
    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.polygamma(1, x) if x.shape[1] < 13 else x * 2

    found = trace(Small, over="l,d")
    assert found.complete and found.since["l"] == 13


@pytest.mark.parametrize("make", [modules.Branching, modules.Selecting, modules.Itemising])
def test_data_dependent_modules_are_refused(make: Any) -> None:
    with pytest.raises(TraceError, match="depend on the values of its input") as raised:
        trace(make, over="l,d")
    assert "modules.py line" in str(raised.value)


def test_weights_take_no_memory() -> None:
    found = trace(modules.vast, over="l")
    assert found.parameters == Poly.of(2**40)
    assert found.forward["mul"] == formula("1099511627776*l")


def test_equal_layers_count_as_many_times() -> None:
    one = traced(modules.encoder_layer, "l,h,n", "d=n*h")
    three = trace(modules.deep, over="l", let=["n=2", "d=6"])
    assert three.complete
    for name, single in one.forward.items():
        assert isinstance(single, Poly)
        assert three.forward[name] == single.substitute({"n": Poly.of(2), "h": Poly.of(3)}) * 3


@pytest.mark.parametrize("make", [modules.linear, modules.Chunked, modules.Windowed])
def test_slow_modules_are_run_at_fewer_sizes(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same is found of them, where few sizes show no period and no window too."""
    plain = traced(make, "l,d")
    monkeypatch.setattr(import_module("profiler.tracing.size_samples"), "SHORT", -1)
    found = trace(make, over="l,d", grad="both")
    assert_sound(found)
    assert found.quantities == plain.quantities
    assert found.since == plain.since
    if make is modules.linear:
        assert len(found.fitted) < len(plain.fitted)
