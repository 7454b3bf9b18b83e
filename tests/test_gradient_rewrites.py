"""Do rewrites keep the values of the backward pass, and cost what execution costs?"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.adjoint.softmax import softmaxes
from costmodel.errors import ConventionError
from costmodel.language.macros.norms import l2_norm, layer_norm
from costmodel.language.nodes import Constant
from costmodel.mixers import builtin
from costmodel.program.conventions import OF_GRADIENTS, PADDINGS, convention
from costmodel.program.lowering import lower, padded
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.subject import system_of
from tests import small
from tests.test_adjoint import agree
from tests.test_composites import LARGER, SYSTEMS, system

FUSED = ("softmax-gradient", "weighted-sum-gradient", "logsumexp-gradient", "scale-gradient")
"""What kernels do that never write the weights of an attention out."""

CASES = [
    ("linear-attention", "recurrent", ("quotient-gradient",)),
    ("linear-attention", "recurrent", ("cases-gradient",)),
    ("linear-attention", "parallel", ("cases-gradient", "quotient-gradient")),
    ("self-attention", "direct", ("quotient-gradient",)),
    ("self-attention", "direct", ("softmax-gradient",)),
    ("self-attention", "direct", ("softmax-gradient", "weighted-sum-gradient")),
    ("self-attention", "direct", ("logsumexp-gradient",)),
    ("self-attention", "direct", ("scale-gradient",)),
    ("self-attention+cross", "direct", ("safe-softmax", "scale=mul", *FUSED)),
    ("self-attention+bias", "direct", ("dense", "safe-softmax", *FUSED)),
    ("self-attention", "direct", ("recompute=Q", *FUSED)),
    ("vlsa-trained", "direct", ("scale=folded", *FUSED)),
    ("slsa", "direct", FUSED),
    ("dot-product-attention", "direct", FUSED),
    ("additive-attention", "direct", ("safe-softmax", *FUSED)),
    ("restricted-attention-causal", "banded", FUSED),
    ("fastformer", "direct", FUSED),
    ("he", "fft", ("fft-gradient",)),
    ("she-extraction", "fft", ("fft-gradient",)),
    ("me", "direct", ("dense", "padded")),
    ("he-extraction", "direct", ("dense", "padded-rows")),
    ("she-extraction", "direct", ("dense", "padded-rows")),
    ("convolution", "direct", ("dense", "padded-rows")),
    ("convolution-same", "direct", ("dense", "padded-rows")),
    ("deltanet+core", "chunked-solve", ("triangle-gradient",)),
]


@pytest.mark.grid(4)
@pytest.mark.parametrize(("name", "form", "rewrites"), CASES)
def test_costs_are_those_of_execution(name: str, form: str, rewrites: tuple[str, ...]) -> None:
    agree(builtin(name), form, rewrites)


LARGE = ("mamba-2", "chunked", ("dense", "padded-rows"))
"""A case whose counts a reconciliation compares with what torch dispatches."""


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "form", "rewrites"), [*CASES, LARGE])
def test_rewrites_keep_the_values_of_gradients(
    name: str, form: str, rewrites: tuple[str, ...]
) -> None:
    """The gradients under a rewrite are those without it, to rounding of float64."""
    mixer = builtin(name)
    sizes = small.complete(mixer, {"l": 4, "d": 4, "n": 2})
    generator = np.random.default_rng(3)
    arrays = {
        array.name: generator.normal(size=tuple(e.at(sizes) for e in array.shape))
        for array in mixer.arrays.values()
        if array.role in ("input", "context", "parameter", "buffer") and array.value is None
    }
    given = generator.normal(size=tuple(e.at(sizes) for e in mixer.role("output").shape))
    known = {k: v for k, v in sizes.items() if k in ("l", *mixer.letters)}
    plain = cm.gradients(mixer, arrays, given, known, form)
    other = cm.gradients(mixer, arrays, given, known, form, ("strict", *rewrites))
    assert plain.keys() == other.keys()
    for array, value in plain.items():
        np.testing.assert_allclose(other[array], value, rtol=1e-12, atol=1e-12)


KERNELS = ("norm=rsqrt", "layer-norm-gradient", "rms-norm-gradient")
"""What torch's norms do where each is one kernel."""

APART = ("norm=rsqrt", "mean-gradient", "square-gradient", "length-gradient", "comparison-gradient")
"""What they do where they are dispatched one operation at a time."""

NORMS = {
    "layer norm", "layer norm, plain", "RMS norm", "RMS norm, plain", "l2 norm",
    "l2 norm, under the root", "l2 norm, union", "flattened", "joint", "loop",
}  # fmt: skip


@pytest.mark.grid(3)
@pytest.mark.parametrize("rewrites", [KERNELS, APART], ids=["kernels", "apart"])
@pytest.mark.parametrize("name", sorted(NORMS))
def test_gradients_of_norms_cost_what_execution_does_and_stay(
    name: str, rewrites: tuple[str, ...]
) -> None:
    mixer = system(SYSTEMS[name]) if name in SYSTEMS else LARGER[name][0]
    agree(mixer, "direct", rewrites)
    sizes = {"l": 4, "d": 6} | ({"n": 2} if "n" in mixer.letters else {})
    generator = np.random.default_rng(3)
    full = small.complete(mixer, sizes)
    arrays = {
        array.name: generator.normal(size=tuple(e.at(full) for e in array.shape))
        for array in mixer.arrays.values()
        if array.role in ("input", "context", "parameter", "buffer") and array.value is None
    }
    given = generator.normal(size=tuple(e.at(full) for e in mixer.role("output").shape))
    plain = cm.gradients(mixer, arrays, given, sizes)
    other = cm.gradients(mixer, arrays, given, sizes, convention=("strict", *rewrites))
    for array, value in plain.items():
        np.testing.assert_allclose(other[array], value, rtol=1e-11, atol=1e-11)


def test_a_layer_norm_computed_again_in_numbers() -> None:
    """A row of m = 5, gain and bias: x' a difference and a product; g y a product; g x' a product,
    sum g and sum g x' 4 additions each; m g, x' times the latter, times r / m: 3 products, 2
    additions, a quotient a row; a product for the gain's gradient. torch/_decomp/decompositions.py,
    native_layer_norm_backward."""
    found = cm.count(system(SYSTEMS["layer norm"]), "backward", convention=KERNELS).at(l=1, d=5)
    own = {"mul": 5 * (1 + 1 + 1 + 3 + 1), "add": 5 + 4 + 4 + 2 * 5, "div": 1}
    assert {k: v for k, v in found.by_class().items() if v} == own
    kept = cm.activations(system(SYSTEMS["layer norm"]), convention=KERNELS)
    assert kept.at(l=3, d=5) == 3 * 5 + 2 * 3  # x, and of each row its mean and r


def exponential_of_a_norm() -> Mixer:
    """y = exp(n) x, n the layer norm of a row: the gradient reads n, and its rows again."""
    m = Mixer("m")
    l, d = m.sizes("l d")
    x, y, gain = m.input("x", l, d), m.output("y", l, d), m.parameter("gain", d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        n, e = f.array("n", l, d), f.array("e", l, d)
        n[i, b] = layer_norm(x[i, b], over=b, gain=gain[b])
        e[i, b] = cm.exp(n[i, b])
        y[i, b] = e[i, b] * x[i, b]
    return m


@pytest.mark.parametrize(
    ("mixer", "names", "sizes", "more"),
    [
        # x - mean and the product with r are computed again anyway. A row of 5: squares, gain; two
        # sums, eps; three quotients; a root; exp.
        (
            exponential_of_a_norm(),
            KERNELS,
            {"l": 3, "d": 5},
            {"mul": 3 * 10, "add": 3 * 9, "div": 3 * 3, "sqrt": 3, "exp": 15},
        ),
        # Scores and weights exp(s - L) are computed again anyway. 6 pairs of 2 heads of 2 channels:
        # three projections, the exponentials, their sums, L, and the weighted sums.
        (
            builtin("self-attention"),
            ("softmax-gradient", "logsumexp-gradient"),
            {"l": 3, "d": 4, "n": 2},
            {"mul": 3 * 48 + 24, "add": 3 * 36 + 6 + 12, "exp": 12, "log": 6},
        ),
    ],
    ids=["norm", "softmax"],
)
def test_all_computed_again_includes_what_a_rewrite_computes_again(
    mixer: Mixer, names: tuple[str, ...], sizes: dict[str, int], more: dict[str, int]
) -> None:
    """Once: under `recompute=all` too."""
    kept, again = (
        Counter(cm.count(mixer, "backward", convention=(*names, *all_)).at(**sizes).by_class())
        for all_ in ((), ("recompute=all",))
    )
    assert again - kept == Counter(more)
    assert not kept - again
    agree(mixer, "direct", (*names, "recompute=all"))


def test_without_products_a_norm_keeps_its_gradient() -> None:
    mixer = system(SYSTEMS["layer norm"])
    plain, other = (
        cm.count(mixer, "backward", convention=names).at(l=3, d=5)
        for names in ("strict", ("strict", *KERNELS[1:]))
    )
    assert plain.by_class() == other.by_class()


def test_norms_of_shared_rows_that_each_head_repeats() -> None:
    """Of 2 groups of 2 heads, 3 rows of 5 entries each: 6 norms more of 5 squares and 4 sums, with
    a root and 5 quotients. The rows of a group get the sum of its heads' gradients."""
    m = Mixer("shared")
    l, d, n = m.sizes("l d n")
    g = m.size("g", "groups", 2)
    x, y = m.input("x", l, d), m.output("y", l, n)
    W, V = m.parameter("W", g, d), m.parameter("V", n, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        j, o = f.index("j", 1, g), f.index("o", 1, n / g)
        K, N = f.array("K", g, l, d), f.array("N", g, l, d)
        K[j, i, b] = W[j, b] * x[i, b]
        N[j, i, b] = l2_norm(K[j, i, b], over=b, least=0)
        head = (j - 1) * (n / g) + o
        y[i, head] = cm.sum_(N[j, i, b] * V[head, b], over=b)
    sizes = {"l": 3, "d": 5, "n": 4, "g": 2}
    plain, each = (
        Counter(cm.count(m, convention=("strict", *names)).at(**sizes).by_class())
        for names in ((), ("repeated-rows",))
    )
    assert each - plain == {"mul": 6 * 5, "add": 6 * 4, "div": 6 * 5, "sqrt": 6}
    for compared in (OracleComparison, GradientComparison):
        assert compared(m, "direct", ("repeated-rows",)).at(sizes).apart == []


@pytest.mark.parametrize(("norm", "fewer"), [("RMS norm", 3 * 5), ("l2 norm", 0)])
def test_squares_of_rms_norms_alone(norm: str, fewer: int) -> None:
    """g (2 x) in place of g x + g x: one addition an entry less, where a mean follows."""
    plain, other = (
        cm.count(system(SYSTEMS[norm]), "backward", convention=names).at(l=3, d=5).by_class()
        for names in ("strict", ("strict", "rms-square-gradient"))
    )
    assert plain | {"add": plain["add"] - fewer} == other


def test_a_zero_row_has_a_gradient_by_its_length() -> None:
    """torch.nn.functional.normalize at a row of zeros: none by the length, g / least by the
    quotient."""
    mixer = system(SYSTEMS["l2 norm"])
    arrays = {"x": np.zeros((1, 2)), "gain": np.ones(2), "bias": np.zeros(2)}
    given, sizes = np.ones((1, 2)), {"l": 1, "d": 2}
    found = cm.gradients(mixer, arrays, given, sizes, convention=("strict", *APART))
    np.testing.assert_allclose(found["x"], 1e12, rtol=1e-12)


def test_a_quotient_taken_again_in_numbers() -> None:
    """y = N / D with D for h entries of a head: two more quotients an entry, nothing else.

    torch's derivatives.yaml: div(self, other) gives -grad * ((self / other) / other).
    """
    mixer, sizes = builtin("linear-attention"), {"d": 6, "l": 5, "n": 2}
    plain = cm.count(mixer, "backward", "recurrent").at(**sizes)
    again = cm.count(mixer, "backward", "recurrent", "quotient-gradient").at(**sizes)
    assert again.div - plain.div == 2 * 5 * 6
    assert (again.mul, again.add, again.exp) == (plain.mul, plain.add, plain.exp)


def test_both_branches_in_numbers() -> None:
    """elu + 1 of queries and of keys: one more addition for each of their l d entries."""
    mixer, sizes = builtin("linear-attention"), {"d": 6, "l": 5, "n": 2}
    plain = cm.count(mixer, "backward", "recurrent").at(**sizes)
    both = cm.count(mixer, "backward", "recurrent", "cases-gradient").at(**sizes)
    assert both.add - plain.add == 2 * 5 * 6
    assert both.mul == plain.mul


ATTENDING = {"d": 6, "l": 7, "n": 2}
PAIRS = 2 * 7 * 8 // 2
"""Of two heads, each three wide."""


def more(rewrites: tuple[str, ...], switch: str, phase: str = "backward") -> dict[str, int]:
    """What a switch adds to self-attention, by class."""
    mixer = builtin("self-attention")
    plain, other = (
        cm.count(mixer, phase, convention=("strict", *names)).at(**ATTENDING).by_class()
        for names in (rewrites, (*rewrites, switch))
    )
    found = {name: other.get(name, 0) - plain.get(name, 0) for name in {*plain, *other}}
    return {name: number for name, number in found.items() if number}


def test_row_sums_from_what_is_weighed_in_numbers() -> None:
    """A row's sum of g A over its i pairs is that of g_o o over the 3 entries of its head."""
    found = more(("softmax-gradient",), "weighted-sum-gradient")
    rows = 2 * 7
    assert found == {"mul": 3 * rows - PAIRS, "add": 2 * rows - (PAIRS - rows)}
    assert more((), "weighted-sum-gradient") == {}


def test_a_softmax_computed_again_in_numbers() -> None:
    """A score is 3 products, 2 additions and its scale; its weight a subtraction and an
    exponential. The forward pass takes the logarithm of each row's sum, and adds its maximum."""
    rewrites = ("safe-softmax", "scale=mul", "softmax-gradient")
    again = {"mul": 4 * PAIRS, "add": 3 * PAIRS, "exp": PAIRS}
    assert more(rewrites, "logsumexp-gradient") == again
    step = more(rewrites, "logsumexp-gradient", "training-step")
    assert step == again | {"add": 3 * PAIRS + 2 * 7, "log": 2 * 7}
    kept = cm.activations(builtin("self-attention"), convention=(*rewrites, *FUSED[1:]))
    assert kept.at(**ATTENDING) == 5 * 6 * 7 + 2 * 7  # x, Q, K, V, R, and a logarithm a row


@pytest.mark.parametrize(
    ("rewrites", "named"),
    [
        (("safe-softmax",), {"A.max"}),
        (("online=4",), {"A.max"}),
        (("loss=cross-entropy", "safe-softmax"), {"A.max", "y.loss.largest"}),
    ],
)
def test_the_maximum_that_a_softmax_subtracts_gets_no_gradient(
    rewrites: tuple[str, ...], named: set[str]
) -> None:
    """exp(s - m) / sum exp(s - m) is the same for any m, and so is x - m - log sum exp(x - m)."""
    step = system_of(builtin("self-attention+bidirectional"), "direct", rewrites, "backward")
    maxima = {e.array for e in step.forward.equations if e.array.cancels}
    assert {array.name for array in maxima} == named
    assert not any({*e.array.made_for} & maxima for e in step.backward)


def test_a_safe_softmax_in_numbers() -> None:
    """A subtraction for each pair, and comparisons of all pairs of a row but one, all forward."""
    assert more((), "safe-softmax") == {}
    step = more((), "safe-softmax", "training-step")
    assert step == {"add": PAIRS, "compare": PAIRS - 2 * 7}


def test_captions_name_the_gradient_that_is_left_out() -> None:
    kept, out = ("strict", "mac,dense"), ("safe-softmax", "online=4")
    assert all("gets no gradient" in convention(name).of_gradients for name in out)
    assert not any("gets no gradient" in convention(name).of_gradients for name in kept)


def test_a_scale_applied_to_what_scores_hand_on_in_numbers() -> None:
    """One quotient for every entry of the gradients of Q and K, in place of one a pair."""
    assert more((), "scale-gradient") == {"div": 2 * 6 * 7 - PAIRS}
    assert more(("scale=mul",), "scale-gradient") == {"mul": 2 * 6 * 7 - PAIRS}
    assert more(("scale=folded",), "scale-gradient") == {}


def attending(*, twice: bool) -> cm.Mixer:
    """Attention of n heads with n channels each, where one index numbers the heads of the weights,
    then the channels of what they weigh; `twice` reads the weights for their squares, too."""
    m = cm.Mixer("attending")
    l, d, n = m.sizes("l d n")
    x, y = m.input("x", l, d), m.output("y", l, n * n)
    W = m.parameter("W", d, n)
    with m.form("direct") as f:
        i, k, a = f.index("i", 1, l), f.index("k", 1, l), f.index("a", 1, d)
        j, g = f.index("j", 1, n), f.index("g", 1, n)
        v, Z, A = f.array("v", l, n), f.array("Z", n, l, l), f.array("A", n, l, l)
        v[i, j] = cm.sum_(x[i, a] * W[a, j], over=a)
        Z[j, i, k] = cm.scaled(cm.sum_(v[i, j] * x[k, a], over=a), by=d)
        A[j, i, k] = cm.softmax(Z[j, i, k], over=k)
        weighed = cm.sum_(A[g, i, k] * v[k, j], over=k)
        squares = cm.sum_(A[g, i, k] * A[g, i, k], over=k)
        y[i, (g - 1) * n + j] = weighed + squares if twice else weighed
    return m


@pytest.mark.parametrize("twice", [False, True])
def test_weights_that_are_read_for_something_else_keep_their_row_sums(twice: bool) -> None:
    mixer = attending(twice=twice)
    made = GradientComparison(mixer, "direct", FUSED)
    for l in (1, 4):
        made.at({"l": l, "d": 6, "n": 2})
    assert made.apart == []
    plain, other = (
        cm.count(mixer, "backward", convention=names).at(l=7, d=6, n=2)
        for names in (FUSED[:1], FUSED[:2])
    )
    assert other.mul - plain.mul == (0 if twice else 2 * 7 * 2 - 2 * 7 * 7)


def test_a_transform_back_in_numbers() -> None:
    """ME at l = 4, N = 8: N log2 N = 24 multiplications more for each of the d transforms of x and
    the one of w; N - 2 doublings for each of the d inverses."""
    mixer, sizes = builtin("me"), {"d": 3, "l": 4}

    def total(convention: str) -> tuple[int, int]:
        found = cm.count(mixer, "backward", "fft", convention).at(**sizes)
        assert found.once is not None
        return found.mul + found.once.mul, found.add + found.once.add

    plain, other = total("strict"), total("fft-gradient")
    assert other[0] - plain[0] == (3 + 1) * 24 + 3 * 6
    assert other[1] - plain[1] == (3 + 1) * 36


@pytest.mark.parametrize("points", [1, 3, 4])
def test_a_transform_back_of_an_odd_number_of_points(points: int) -> None:
    """Bins that stand for two count twice: 1 of 3 points (2 numbers), 1 of 4. The gradient of a
    linear map is its transpose: <y, given> = <x, gradient>."""
    m = Mixer("spectral")
    (l,) = m.sizes("l")
    x, y, w = m.input("x", l), m.output("y", l), m.parameter("w", 2)
    with m.form("direct") as f:
        i, q, p = f.index("i", 1, l), f.index("q", 1, l // 2 + 1), f.index("p", 1, 2)
        s, turned = f.array("s", l // 2 + 1, 2), f.array("turned", l // 2 + 1, 2)
        s[q, p] = cm.rfft(x[i], over=i, length=l)
        turned[q, p] = s[q, p] * w[p]
        y[i] = cm.irfft(turned[q, p], over=(q, p), length=l)
    assert agree(m, "direct", ("fft-gradient",), at=[{"l": points}]).refused == []
    draw = np.random.default_rng(0).normal
    values, given = {"x": draw(size=points), "w": draw(size=2)}, draw(size=points)
    found = cm.gradients(m, values, given, {"l": points})["x"]
    assert cm.evaluate(m, values, {"l": points}) @ given == pytest.approx(values["x"] @ found)


def test_zeros_around_a_weight_in_numbers() -> None:
    """ME: the gradients of all l l entries of its Toeplitz matrix, each a sum of d products, and
    not of those on and below the diagonal alone."""
    mixer, (d, l) = builtin("me"), (3, 5)
    plain = cm.count(mixer, "backward", convention="dense").at(d=d, l=l)
    whole = cm.count(mixer, "backward", convention="dense,padded").at(d=d, l=l)
    assert whole.mul - plain.mul == d * l * (l - 1) // 2
    # all products, less one for each of the 2 l - 1 diagonals, in place of the l lower ones
    assert whole.add - plain.add == (d * l * l - (2 * l - 1)) - (d * l * (l + 1) // 2 - l)


def test_padding_is_free_forward() -> None:
    for name in ("me", "she-extraction", "convolution"):
        plain, whole = (
            cm.count(builtin(name), convention=c).total for c in ("dense", "dense,padded-rows")
        )
        assert plain == whole


def test_what_reads_inside_alone_is_not_padded() -> None:
    mixer = builtin("self-attention")
    system = lower(mixer.forms[mixer.default_form], ("dense",))
    assert padded(system).equations == system.equations


def test_the_zeros_are_constants_around_the_array() -> None:
    """A Toeplitz matrix of l lags reads 2 l - 1 places, l - 1 of them before the first lag."""
    mixer = builtin("me")
    system = padded(lower(mixer.forms["direct"], ("dense",)))
    made = [e for e in system.equations if e.array.name == "w_ext.pad"]
    assert sum(isinstance(e.value, Constant) for e in made) == 2
    (extent,) = made[0].array.shape
    assert extent.at({"l": 5}) == 9


@pytest.mark.parametrize("ahead", [False, True])
def test_a_window_that_misses_a_short_array_holds_zeros_alone(ahead: bool) -> None:
    """Row i reads x[i-2], x[i-3], ..., or x[i+2], x[i+3], ...: at l = 1 no row of x."""
    mixer = Mixer("late")
    l, k = mixer.sizes("l k")
    x, y, W = mixer.input("x", l), mixer.output("y", l), mixer.parameter("W", k)
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        s = f.index("s", 3, cm.min_(k, l - i + 1 if ahead else i))
        y[i] = cm.sum_(W[s] * x[i + s - 1 if ahead else i - s + 1], over=s)
    compared = OracleComparison(mixer, rewrites=("dense", "padded"))
    for sizes in ({"l": 1, "k": 3}, {"l": 1, "k": 6}, {"l": 3, "k": 6}):
        assert compared.at(sizes).apart == []


def test_every_rewrite_of_gradients_leaves_the_forward_pass_as_it_is() -> None:
    mixer = builtin("linear-attention")
    for rewrite in OF_GRADIENTS:
        assert rewrite in PADDINGS or rewrite.endswith("-gradient")
        given = ("dense",) if rewrite in PADDINGS else ()
        plain = cm.count(mixer, convention=given or "strict")
        assert cm.count(mixer, convention=(*given, rewrite)).total == plain.total


def test_zeros_that_nobody_multiplies_are_not_padded() -> None:
    wrong = {
        "padded": "write dense,padded",
        "dense,padded,padded-rows": "'padded' and 'padded-rows' exclude each other",
    }
    for names, said in wrong.items():
        with pytest.raises(ConventionError, match=said):
            cm.count(builtin("me"), "backward", convention=names)


def test_what_is_recomputed_has_a_name() -> None:
    mixer = builtin("self-attention")
    for wrong in ("", ",", (), 5, (1,)):
        with pytest.raises(ConventionError, match="recompute"):
            cm.activations(mixer, recompute=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConventionError, match="unknown option 'recompue'"):
        cm.activations(mixer, recompue="all")  # type: ignore[call-arg]
    assert cm.activations(mixer, recompute=None).exact == cm.activations(mixer).exact  # type: ignore[arg-type]


def test_a_softmax_whose_rows_lie_by_chunk_and_place_is_known() -> None:
    made = cm.Mixer("softmax-in-chunks")
    l, C = made.sizes("l C")
    x, y = made.input("x", l, 1), made.output("y", l, 1)
    with made.form("direct") as f:
        i, Z, A = f.index("i", 1, l), f.array("Z", l, l), f.array("A", l, l)
        k = f.index("k", (i - 1) // C * C + 1, i)
        Z[i, k] = x[i, 1] * x[k, 1]
        A[i, k] = cm.softmax(Z[i, k], over=k)
        y[i, 1] = cm.sum_(A[i, k] * x[k, 1], over=k)
    system = lower(made.forms["direct"])
    assert [len(array.shape) for array in system.defining if array.name == "A"] == [3]
    assert [equation.name for equation, _ in softmaxes(system)] == ["A"]
