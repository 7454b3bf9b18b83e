"""Does the oracle execute small systems with the counts that a hand gives?"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel import Mixer, exp, irfft, max_, max_over, min_, rfft, softmax, sum_
from costmodel.errors import OracleError, TransformError
from costmodel.mixers import builtin
from costmodel.oracle import algorithms
from costmodel.oracle.execute import Compulsory, Execution, Unfused, execute
from costmodel.oracle.scalars import FUNCTIONS

SIZES = {"l": 3, "d": 4, "n": 2}


def executed(name: str, form: str = "direct", **options: object) -> Execution:
    return execute(builtin(name).forms[form], SIZES, **options)  # type: ignore[arg-type]


def one_column(name: str = "example") -> Mixer:
    """A mixer of one channel with its input and output declared."""
    mixer = Mixer(name)
    (l,) = mixer.sizes("l")
    mixer.input("x", l)
    mixer.output("y", l)
    return mixer


def dot_product() -> Mixer:
    """y[i] = sum_a x[i,a] w[a]."""
    mixer = Mixer("dot-product")
    l, d = mixer.sizes("l d")
    x, w, y = mixer.input("x", l, d), mixer.parameter("w", d), mixer.output("y", l)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i] = sum_(x[i, a] * w[a], over=a)
    return mixer


def test_dot_products_execute_a_count_by_hand() -> None:
    found = execute(dot_product().forms["direct"], {"l": 2, "d": 5})
    assert found.counts() == {"mul": 10, "add": 8}  # two rows of 5 products and 4 additions
    assert found.span() == 1 + 3  # a product, then 5 -> 3 -> 2 -> 1
    assert found.counts_inference(2) == {"mul": 5, "add": 4}
    assert found.state(1) == 0  # no row reads another
    assert found.compulsory() == Compulsory(10, 5, 0, 2, 0)
    assert np.allclose(found.output, found.arrays["x"] @ found.arrays["w"], rtol=1e-12)


def test_multiply_accumulate_adds_once_more_per_sum() -> None:
    found = execute(dot_product().forms["direct"], {"l": 2, "d": 5}, accounting="mac")
    assert found.counts() == {"mul": 10, "add": 10}


def test_me_executes_a_count_by_hand() -> None:
    """Rows of 1, 2 and 3 products in each of 2 channels."""
    found = execute(builtin("me").forms["direct"], {"l": 3, "d": 2})
    assert found.counts() == {"mul": 12, "add": 6}
    assert [found.counts_inference(t) for t in (1, 2, 3)] == [
        {"mul": 2},
        {"mul": 4, "add": 2},
        {"mul": 6, "add": 4},
    ]
    assert found.span() == 1 + 2
    assert [found.state(t) for t in (1, 2)] == [2, 4]
    assert found.causal
    assert found.compulsory_inference(2) == Compulsory(2, 2, 2, 2, 2)
    assert found.unfused_inference(2) == [Unfused("y", 2 + 2, 2, 2), Unfused("state", 0, 0, 2)]
    assert found.unfused() == [Unfused("y", 6 + 6, 3, 0)]


def softmax_of_a_row() -> Mixer:
    mixer = Mixer("softmax")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    with mixer.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = softmax(x[i, b], over=b)
    return mixer


def test_softmax_of_one_row() -> None:
    found = execute(softmax_of_a_row().forms["direct"], {"l": 1, "d": 5})
    assert found.counts() == {"exp": 5, "add": 4, "div": 5}
    assert found.span() == 1 + 3 + 1
    powers = np.exp(found.arrays["x"])
    assert np.allclose(found.output, powers / powers.sum(), rtol=1e-12)


def test_safe_softmax_of_one_row() -> None:
    form = softmax_of_a_row().forms["direct"]
    found = execute(form, {"l": 1, "d": 5}, rewrites=("safe-softmax",))
    assert found.counts() == {"compare": 4, "exp": 5, "add": 5 + 4, "div": 5}
    assert found.span() == 3 + 1 + 1 + 3 + 1
    assert np.allclose(found.output, execute(form, {"l": 1, "d": 5}).output, rtol=1e-12)


def test_complex_products_execute_a_count_by_hand() -> None:
    """4 multiplications and 2 additions, as two equations for one array."""
    mixer = Mixer("complex")
    l, _ = mixer.sizes("l d")
    x, w, y = mixer.input("x", l, 2), mixer.parameter("w", 2), mixer.output("y", l, 2)
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        y[i, 1] = x[i, 1] * w[1] - x[i, 2] * w[2]
        y[i, 2] = x[i, 1] * w[2] + x[i, 2] * w[1]
    found = execute(mixer.forms["direct"], {"l": 1, "d": 1})
    assert found.counts() == {"mul": 4, "add": 2}
    assert found.span() == 2
    x_, w_ = (found.arrays[n].reshape(2) for n in ("x", "w"))
    assert complex(*found.output[0]) == pytest.approx(complex(*x_) * complex(*w_), rel=1e-12)


def test_self_attention_is_table_3_and_table_4() -> None:
    """At d=4, l=3, n=2: l^2 d + 4 l d^2 + l d = 36 + 192 + 12, and so on."""
    found = executed("self-attention")
    assert found.counts() == {"mul": 240, "add": 174, "div": 24, "exp": 12}
    assert found.counts_inference(3) == {"mul": 88, "add": 66, "div": 12, "exp": 6}
    assert executed("self-attention", length=8).state(3) == 2 * 3 * 4
    assert found.span() == (1 + 2) + (1 + 1) + 1 + 1 + 2 + 1 + (1 + 2) + (1 + 2)


def test_she_is_table_3_and_table_4() -> None:
    """At d=4, l=3: l^2 d^2 / 2 + 5 l d^2 / 2 + l d = 72 + 120 + 12."""
    found = executed("she")
    assert found.counts() == {"mul": 204, "add": 156}
    assert found.counts_inference(3) == {"mul": 84, "add": 68}
    assert executed("she", length=8).state(3) == 3 * 4
    assert found.span() == (1 + 4) + 1 + (1 + 2)  # 12 terms in the last row


def test_dense_computes_the_masked_pairs() -> None:
    """d l^2 - d l more products in self-attention, each of the 6 masked scores divided twice."""
    causal, dense = executed("self-attention"), executed("self-attention", rewrites=("dense",))
    more = {c: dense.counts()[c] - causal.counts()[c] for c in causal.counts()}
    assert more == {"mul": 24, "add": 24, "div": 12, "exp": 6}
    assert executed("she", rewrites=("dense",)).counts()["mul"] == 204 + 3 * 16


@pytest.mark.parametrize("points", [1, 2, 4, 16])
def test_transform_is_nominal_and_true(points: int) -> None:
    signal = np.random.default_rng(0).normal(size=points)
    tally, stages = algorithms.Tally(), points.bit_length() - 1
    found = algorithms.rfft({(k + 1,): v for k, v in enumerate(signal)}, points, tally)
    expected = np.fft.rfft(signal)
    bins = [complex(found[k + 1, 1], found[k + 1, 2]) for k in range(points // 2 + 1)]
    assert np.allclose(bins, expected, rtol=1e-12, atol=1e-12)
    halved = {c: n for c, n in tally.halved().items() if n}
    nominal = {"mul": points * stages, "add": points * stages * 3 // 2}
    assert halved == {c: n for c, n in nominal.items() if n}
    assert tally.deepest == 3 * stages


@pytest.mark.parametrize("points", [1, 2, 3, 5, 6])
def test_real_transforms_of_an_odd_number_of_points_invert_and_transpose(points: int) -> None:
    """Of 3 points, bin 2 stands for two; of 6 points, bins 2 and 3, not bin 4."""
    draw, tally = np.random.default_rng(0).normal, algorithms.Tally()
    signal: algorithms.Bins = {(k + 1,): float(draw()) for k in range(points)}
    bins = algorithms.rfft(signal, points, tally)
    assert algorithms.irfft(bins, points, tally) == pytest.approx(signal, abs=1e-12)
    given: algorithms.Bins = {place: float(draw()) for place in signal}
    back, there = algorithms.irfft_adjoint(given, points, tally), {k: float(draw()) for k in bins}
    forth = algorithms.irfft(there, points, tally)
    assert sum(forth[k] * given[k] for k in given) == pytest.approx(
        sum(there[k] * back[k] for k in bins)
    )


def test_an_odd_number_of_operations_has_no_half() -> None:
    """5 points in 3 stages: 5 x 3 / 2 butterflies of 6 additions."""
    tally = algorithms.Tally()
    algorithms.rfft({(1,): 1.0}, 5, tally)
    with pytest.raises(TransformError, match=r"45 add.* choose an even number of points"):
        tally.halved()


@pytest.mark.parametrize("name", ["she", "he", "we", "me", "she-extraction", "he-extraction"])
def test_fft_form_has_the_values_of_the_direct_form(name: str) -> None:
    """Rounding of a 16-point transform of numbers near 1: a few 1e-16, with room."""
    direct, algorithms = executed(name), executed(name, "fft")
    assert np.allclose(direct.output, algorithms.output, rtol=0, atol=1e-12)
    assert algorithms.once() and not algorithms.causal


def test_me_fft_by_hand() -> None:
    """l=3 pads to 8 points, 5 bins: 2 channels there and back, 1 kernel, 10 complex products."""
    found = execute(builtin("me").forms["fft"], {"l": 3, "d": 2})
    assert found.counts() == {"mul": 4 * 24 + 10 * 4, "add": 4 * 36 + 10 * 2}
    assert found.once() == {"mul": 24, "add": 36}
    assert found.span() == 9 + 2 + 9


def test_a_window_keeps_one_row_fewer_than_are_visible() -> None:
    """At most w=2 rows are seen, so one row is kept."""
    mixer = one_column()
    l, w = mixer.sizes("l w")
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", max_(1, i - w + 1), i)
        mixer.arrays["y"][i] = max_over(mixer.arrays["x"][j], over=j)
    found = execute(mixer.forms["direct"], {"l": 5, "w": 2})
    assert found.counts() == {"compare": 4}
    assert [found.state(t) for t in (1, 2, 3, 4)] == [1, 1, 1, 1]
    x = found.arrays["x"]
    assert list(found.output) == [x[0], *(max(x[i], x[i + 1]) for i in range(4))]


def test_future_row_is_not_causal() -> None:
    mixer = one_column()
    (l,) = mixer.sizes("l")
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", i, min_(l, i + 1))
        mixer.arrays["y"][i] = sum_(mixer.arrays["x"][j], over=j)
    found = execute(mixer.forms["direct"], {"l": 3})
    assert not found.causal
    with pytest.raises(OracleError, match="causal"):
        found.state(1)
    with pytest.raises(OracleError, match=r"token 1 needs x\[2\], .*: expected a causal form"):
        found.counts_inference(1)


def test_work_on_weights_is_done_once() -> None:
    mixer = one_column()
    l, d = mixer.sizes("l d")
    p = mixer.parameter("p", d)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        g = f.array("g", 1)
        g[1] = sum_(exp(p[a]), over=a)
        mixer.arrays["y"][i] = mixer.arrays["x"][i] * g[1]
    found = execute(mixer.forms["direct"], {"l": 3, "d": 4})
    assert found.once() == {"exp": 4, "add": 3}
    assert found.counts() == {"mul": 3}
    assert found.span() == 4
    assert found.span_inference(2) == 1
    assert found.compulsory_inference(2) == Compulsory(1, 1, 0, 1, 0)


def test_rows_and_columns_that_are_twice_an_index() -> None:
    """y[i, a] = x[2i, 2a]: neither position is an index alone."""
    mixer = Mixer("every-other")
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", 2 * l, 2 * d), mixer.output("y", l, d)
    with mixer.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[2 * i, 2 * a] * 1
    found = execute(mixer.forms["direct"], {"l": 3, "d": 2})
    assert np.array_equal(found.output, found.arrays["x"][1::2, 1::2])


def test_a_value_may_be_a_product_of_indices() -> None:
    """y[i] = sum over j of x[j] (i j + i**2)."""
    mixer = one_column()
    (l,) = mixer.sizes("l")
    with mixer.form("direct") as f:
        i, j = f.index("i", 1, l), f.index("j", 1, l)
        mixer.arrays["y"][i] = sum_(mixer.arrays["x"][j] * (i * j + i * i), over=j)
    found = execute(mixer.forms["direct"], {"l": 3})
    rows = np.arange(1, 4)
    factors = np.outer(rows, rows) + rows[:, None] ** 2
    assert np.allclose(found.output, factors @ found.arrays["x"], rtol=1e-12)


def test_empty_reduction_is_free() -> None:
    """y[i] = sum over j < i of x[j], times 2: row 1 costs nothing."""
    mixer = one_column()
    (l,) = mixer.sizes("l")
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", 1, i - 1)
        mixer.arrays["y"][i] = 2 * sum_(mixer.arrays["x"][j], over=j)
    found = execute(mixer.forms["direct"], {"l": 3})
    assert found.counts() == {"mul": 2, "add": 1}


def _broken(write: str) -> Mixer:
    mixer = one_column()
    (l,) = mixer.sizes("l")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        g = f.array("g", l)
        if write == "outside":
            y[i] = x[i + 1] * 2
        elif write == "too early":
            y[i] = g[i] * 2
            g[i] = x[i]
        elif write == "twice":
            y[i] = x[i]
            y[1] = x[1]
        elif write == "never":
            y[1] = x[1]
        elif write == "recurrence on itself":
            g[1] = x[1]
            j = f.index("j", 2, l)
            y[i] = x[i]
            g[j] = g[l] + x[j]
    return mixer


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("outside", r"y reads x\[4\], outside its extents \(3,\), at sizes .* i=3"),
        ("too early", r"y reads g\[1\], which is not defined yet"),
        ("twice", r"y\[1\] is defined twice"),
        ("never", r"y\[2\] is never defined"),
        ("recurrence on itself", r"g reads g\[3\], which is not defined yet, .* j=3"),
    ],
)
def test_what_cannot_be_executed_says_why(write: str, message: str) -> None:
    with pytest.raises(OracleError, match=message):
        execute(_broken(write).forms["direct"], {"l": 3}).counts()


def test_recurrence_runs_row_by_row() -> None:
    mixer = one_column()
    (l,) = mixer.sizes("l")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        i = f.index("i", 2, l)
        y[1] = x[1] * 1
        y[i] = y[i - 1] + x[i]
    found = execute(mixer.forms["direct"], {"l": 4})
    assert found.counts() == {"mul": 1, "add": 3}
    assert found.span() == 4
    assert found.state(2) == 1
    assert found.span_inference(3) == 1


def test_transform_reads_its_own_shape() -> None:
    """An inverse after a transform gives the sequence back."""
    mixer = one_column()
    (l,) = mixer.sizes("l")
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        q, p = f.index("q", 1, 5), f.index("p", 1, 2)
        s = f.array("s", 5, 2)
        s[q, p] = rfft(mixer.arrays["x"][i], over=i, length=8)
        mixer.arrays["y"][i] = irfft(s[q, p], over=(q, p), length=8)
    found = execute(mixer.forms["direct"], {"l": 6})
    assert np.allclose(found.output, found.arrays["x"], rtol=0, atol=1e-14)


def test_an_index_up_to_the_smaller_of_a_half_and_a_rest() -> None:
    """The turning channels of a head of width d, r of which turn in pairs."""
    m = Mixer("turning")
    l, d, r = m.sizes("l d r")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, c = f.index("i", 1, l), f.index("c", 1, cm.min_(d - r / 2, r / 2))
        e, u = f.index("e", 1, d), f.array("u", l, d)
        u[i, c] = x[i, c] * x[i, c]
        y[i, e] = cm.sum_(u[i, c], over=c) + x[i, e]
    for width, turning in ((2, 2), (4, 2), (5, 2), (8, 4), (8, 6), (6, 8)):
        found = cm.count(m).at(l=3, d=width, r=turning).mul
        assert found == 3 * min(width - turning // 2, turning // 2)


def test_functions_have_values_where_an_exponential_exceeds_floats() -> None:
    found = {
        name: FUNCTIONS[name](-1e6)
        for name in ("sigmoid", "silu", "silu_slope", "softplus", "elu_plus_1")
    }
    assert not any(found.values()) and FUNCTIONS["exp"](1e6) == math.inf
    for value in (-3.0, 0.5):
        assert math.isclose(FUNCTIONS["silu"](value), value / (1 + math.exp(-value)))
        above, below = (FUNCTIONS["silu"](value + step) for step in (1e-5, -1e-5))
        assert math.isclose(FUNCTIONS["silu_slope"](value), (above - below) / 2e-5, rel_tol=1e-6)
