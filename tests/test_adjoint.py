"""Do the values and costs of the gradients' equations equal their execution?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import costmodel as cm
from costmodel import Mixer, function, max_over, min_, sum_, union
from costmodel.adjoint import derivatives
from costmodel.adjoint.reverse import adjoint
from costmodel.language.functions import TABLE
from costmodel.language.nodes import Mul, Node, Ref
from costmodel.mixers import builtin
from costmodel.oracle.scalars import FUNCTIONS
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import Sizes
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.numeric import VALUES
from tests import small, systems
from tests.systems import examples

SIZES: tuple[Sizes, ...] = (
    {"l": 3, "d": 4, "n": 2},
    {"l": 4, "d": 2, "n": 1, "w": 3},
    {"l": 1, "d": 2, "n": 1, "w": 3, "C": 3},
    {"l": 5, "d": 4, "n": 2, "k": 3, "C": 2},
)


def agree(
    mixer: Mixer, form: str, rewrites: tuple[str, ...] = (), at: Sequence[Sizes] = SIZES
) -> GradientComparison:
    """Every question at some sizes."""
    made = GradientComparison(mixer, form, rewrites)
    for sizes in at:
        known = {k: v for k, v in sizes.items() if k in ("l", *mixer.letters)}
        made.at(small.complete(mixer, known))
    assert made.apart == []
    return made


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "rewrites", [("safe-softmax",), ("scale=mul",), ("scale=folded",), ("dense",)]
)
@pytest.mark.parametrize("name", ["self-attention", "linear-attention", "lsa", "convolution-same"])
def test_gradients_under_rewrites_equal_execution(name: str, rewrites: tuple[str, ...]) -> None:
    """Of the forms that they change; of a form of no such part there is nothing new to compare."""
    for form, written in builtin(name).forms.items():
        if lower(written, rewrites).equations != lower(written).equations:
            agree(builtin(name), form, rewrites, SIZES[3:])


@pytest.mark.parametrize("name", ["relu", "elu_plus_1"])
def test_a_function_by_cases_may_stand_under_a_sum(name: str) -> None:
    """A bracket of its gradient says on which side an entry lies, not which entry is largest."""
    mixer = Mixer("cases")
    l, d = mixer.sizes("l d")
    x, y, w = mixer.input("x", l, d), mixer.output("y", l, d), mixer.parameter("w", d, d)
    with mixer.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        j = f.index("j", 1, i)
        y[i, b] = sum_(function(name, x[j, a]) * w[a, b], over=(j, a))
    assert agree(mixer, "direct").refused == []


@pytest.mark.grid(96)
@pytest.mark.parametrize("variant", [v for v in small.variants() if "+" in v])
def test_gradients_of_options_equal_execution(variant: str) -> None:
    mixer = builtin(variant)
    agree(mixer, mixer.default_form, at=SIZES[3:])


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(systems.mixers(), systems.sizes())
def test_gradients_of_random_systems_equal_execution(mixer: Mixer, sizes: dict[str, int]) -> None:
    made = GradientComparison(mixer, "direct")
    made.at({k: v for k, v in sizes.items() if k in ("l", *mixer.letters)})
    assert made.apart == []


def linear() -> Mixer:
    """y[i,b] = sum over a of x[i,a] W[a,b]."""
    m = Mixer("linear")
    l, d = m.sizes("l d")
    x, y, W = m.input("x", l, d), m.output("y", l, d), m.parameter("W", d, d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        y[i, b] = sum_(x[i, a] * W[a, b], over=a)
    return m


def test_a_linear_map_by_hand() -> None:
    """x.grad = y.grad W^T: l d^2 products, l d (d-1) additions; W.grad = x^T y.grad: l d^2 and
    (l-1) d^2. Both read what the other factor is: l d entries of x are kept."""
    counts = cm.count(linear(), "backward").at(l=5, d=3)
    assert counts.by_class() == {"mul": 2 * 5 * 9, "add": 5 * 3 * 2 + 4 * 9, "div": 0, "exp": 0}
    step = cm.count(linear(), "training-step").at(l=5, d=3)
    assert step.mul == 3 * 5 * 9 and step.add == counts.add + 5 * 3 * 2
    assert cm.activations(linear()).at(l=5, d=3) == 15
    assert cm.span(linear(), "backward").at(l=5, d=3) == 1 + 3  # ceil(log2 5) of W.grad


def test_a_batch_adds_the_gradients_of_weights_up() -> None:
    """Of b sequences, each entry of W.grad takes b l products and b l - 1 additions."""
    counts = cm.count(linear(), "backward").at(l=5, d=3, b=4)
    assert counts.mul == 4 * 2 * 5 * 9
    assert counts.add == 4 * 5 * 3 * 2 + (4 * 5 - 1) * 9
    assert cm.activations(linear()).at(l=5, d=3, b=4) == 60


def test_work_on_weights_is_differentiated_once_a_step() -> None:
    """A softmax over weights is computed once a step, and so is its gradient; what the sequences
    hand to it is added up over the batch first: b l - 1 additions an entry of its d."""
    m = Mixer("weighted")
    l, d = m.sizes("l d")
    x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        p = f.array("p", d)
        p[a] = cm.softmax(w[a], a)
        y[i, a] = x[i, a] * p[a]
    one, four = (cm.count(m, "backward").at(l=5, d=3, b=b) for b in (1, 4))
    assert one.once is not None and four.once is not None
    # p.exp.grad: a quotient and an addition an entry; p.sum.grad: products and d-1 additions;
    # w.grad: a product an entry.
    assert one.once.by_class() == {"mul": 2 * 3, "add": 3 + 2, "div": 3, "exp": 0}
    assert four.once == one.once
    assert one.add == (5 - 1) * 3 and four.add == (4 * 5 - 1) * 3
    assert one.mul == 2 * 5 * 3 and four.mul == 4 * one.mul
    kept = cm.activations(m)
    assert kept.at(l=5, d=3) == 15 + 3 + 3 + 1  # x; p, p.exp, p.sum
    assert kept.at(l=5, d=3, b=4) == 60 + 7


def test_a_recurrence_runs_backwards() -> None:
    """y_i = y_{i-1} w + x_i: the gradient of y_i is that given plus that of y_{i+1} times w."""
    m = Mixer("decay")
    (l,) = m.sizes("l")
    x, y, w = m.input("x", l), m.output("y", l), m.parameter("w", 1)
    with m.form("recurrent") as f:
        i = f.index("i", 2, l)
        y[1] = 1 * x[1]
        y[i] = y[i - 1] * w[1] + x[i]
    counts = cm.count(m, "backward").at(l=6)
    # 5 products to the row before, 5 with y for w.grad, 1 of x[1]; 5 additions of rows, 4 of w.grad
    assert (counts.mul, counts.add) == (11, 9)
    # a product and an addition in each of five rows, then the product of x[1], or that of w.grad
    # and the three levels of its sum of five
    assert cm.span(m, "backward").at(l=6) == max(2 * 5 + 1, 2 * 4 + 1 + 3)
    # rows 1 to 5 of y
    assert cm.activations(m).at(l=6) == 5


def test_a_window_turns_round() -> None:
    """What ran over the last w rows runs over the next w rows."""
    m = Mixer("window")
    l, w = m.sizes("l w")
    x, y, k = m.input("x", l), m.output("y", l), m.parameter("k", w)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", cm.max_(1, i - w + 1), i)
        y[i] = sum_(x[j] * k[i - j + 1], over=j)
    step = adjoint(lower(m.forms["direct"]))
    (of_x,) = (e for e in step.backward if e.name == "x.grad")
    assert of_x.value.over[0].lower == (of_x.indices[0].as_poly(),)  # type: ignore[attr-defined]
    counts = cm.count(m, "backward").at(l=7, w=3)
    assert counts.mul == 2 * (1 + 2 + 3 * 5) and counts.add == 18 - 7 + 18 - 3


def test_a_union_turns_round_range_by_range() -> None:
    m = Mixer("sinks")
    l, w = m.sizes("l w")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", union((1, min_(1, i - w)), (cm.max_(1, i - w + 1), i)))
        y[i] = sum_(x[j] * x[i], over=j)
    for length, window in ((1, 1), (4, 2), (5, 3), (3, 5)):
        made = GradientComparison(m, "direct").at({"l": length, "w": window})
        assert made.apart == []


def test_a_transform_is_turned_round_once_however_it_is_read() -> None:
    """Backwards from the first row on, in two equations; imaginary parts are read by none."""
    m = Mixer("reversed")
    (l,) = m.sizes("l")
    x, y, w = m.input("x", l), m.output("y", l), m.parameter("w", 2)
    with m.form("fft") as f:
        i, k, p, q = (f.index(name, 1, end) for name, end in zip("ikpq", (l, l, 2, 2), strict=True))
        s = f.index("s", 2, l)
        X, F = f.array("X", l, 2), f.array("F", l, 2)
        X[k, p] = x[k] * w[p]
        F[i, q] = cm.fft(X[k, p], over=(k, p), length=l)
        y[1] = F[1, 1]
        y[s] = F[l - s + 2, 1]
    agree(m, "fft", at=[{"l": length} for length in (1, 2, 3, 8)])
    assert cm.count(m, "backward").at(l=8).add == 3 * 8 * 3 + 8 + 2 * 7


def test_a_maximum_hands_its_gradient_to_its_first_occurrence() -> None:
    """Ties go to the first; one entry a row gets the gradient, and adding it costs one addition."""
    m = Mixer("pooled")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        top = f.array("top", l)
        top[i] = max_over(x[i, a], over=a)
        y[i, b] = x[i, b] - top[i]
    x_ = np.array([[1.0, 3.0, 3.0], [5.0, 2.0, 5.0]])
    found = cm.gradients(m, {"x": x_}, np.ones((2, 3)), {"l": 2, "d": 3})["x"]
    assert found.tolist() == [[1.0, -2.0, 1.0], [-2.0, 1.0, 1.0]]
    counts = cm.count(m, "backward").at(l=2, d=3)
    assert counts.by_class() == {"mul": 0, "add": 2 * 2 + 2, "div": 0, "exp": 0}


def test_what_no_output_depends_on_gets_no_gradient() -> None:
    m = Mixer("idle")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    m.parameter("unused", l)
    table = m.buffer("table", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        y[i] = x[i] * table[i]
    names = {e.name for e in adjoint(lower(m.forms["direct"])).backward}
    assert names == {"x.grad"}


def test_every_function_has_a_gradient_and_a_value() -> None:
    slopes = {name for name in TABLE if name.endswith("_slope")}
    assert {*derivatives.OF_RESULT, *derivatives.OF_OPERAND} == {*TABLE} - slopes
    assert {*FUNCTIONS} == {*TABLE}
    assert all(np.isfinite(VALUES[name](np.array([0.5]))).all() for name in TABLE)


@pytest.mark.parametrize("name", [n for n in TABLE if not n.endswith("_slope")])
def test_the_gradient_of_every_function(name: str) -> None:
    m = Mixer("scalar")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        y[i] = function(name, x[i]) * x[i]
    values = {"x": np.array([0.3, 0.7, 1.9])}
    given = np.array([1.0, -2.0, 0.5])
    found = cm.gradients(m, values, given, {"l": 3})["x"]
    step = 1e-6
    ends = [cm.evaluate(m, {"x": values["x"] + s * step}, {"l": 3}) for s in (1, -1)]
    assert np.allclose(found, given * (ends[0] - ends[1]) / (2 * step), rtol=1e-8)
    if name not in ("sqrt", "rsqrt", "log"):  # the execution's inputs are negative, too
        assert GradientComparison(m, "direct").at({"l": 3}).apart == []


def _wrong_product(g: Node, y: Node) -> Node:
    return Mul(Mul(g, y), y)


def test_a_wrong_gradient_turns_red(mutated: pytest.MonkeyPatch) -> None:
    mutated.setitem(derivatives.OF_RESULT, "exp", _wrong_product)
    made = GradientComparison(builtin("self-attention"), "direct").at({"l": 3, "d": 4, "n": 2})
    assert any("gradient of W_Q" in line for line in made.apart)


def test_a_lost_share_turns_red(mutated: pytest.MonkeyPatch) -> None:
    """An array whose second reader hands nothing back."""
    from costmodel.adjoint import node_rules

    kept = node_rules.RULES[Ref].hand

    def lost(builder: object, node: Ref, gradient: Node, scope: object) -> None:
        if node.array.name != "K":
            kept(builder, node, gradient, scope)

    mutated.setitem(node_rules.RULES, Ref, node_rules.Adjoint(lost))
    made = GradientComparison(builtin("self-attention"), "direct").at({"l": 3, "d": 4, "n": 2})
    assert any("gradient of x" in line for line in made.apart)


def test_the_backward_pass_is_not_twice_the_forward_pass() -> None:
    """A widespread estimate, exact for a product of matrices without its additions."""
    assert (
        cm.count(linear(), "backward").at(l=5, d=3).mul == 2 * cm.count(linear()).at(l=5, d=3).mul
    )
    me = {p: cm.count(cm.mixer("me"), p).at(l=4, d=2).total for p in ("training", "backward")}
    assert me["backward"] != 2 * me["training"]


def test_peaks_of_training_equal_a_count_by_hand() -> None:
    """ME: x and y in the forward pass; x, y, their gradients in the training step. The gradient of
    the one parameter, of l entries, stands apart."""
    me = cm.mixer("me")
    assert cm.peak(me).at(l=4, d=3) == 24 and cm.peak(me, "training-step").at(l=4, d=3) == 48
    assert cm.peak(me, "training-step").gradients.at({"l": 4, "d": 3}) == 4
    # RNN: x, y and nothing else: the state before is a row of y
    rnn = cm.peak(cm.mixer("recurrent"))
    assert rnn.at(l=4, d=3) == 24 and rnn.at(l=4, d=3, b=5) == 120
    # LSTM: four gates and C hold one row each
    assert cm.peak(cm.mixer("lstm")).at(l=4, d=3) == 24 + 5 * 3
    with pytest.raises(ValueError, match="unknown optimiser 'adam'"):
        rnn.optimiser("adam")
    trained = cm.peak(cm.mixer("recurrent"), "training-step")
    assert trained.optimiser("adamw").at({"d": 3}) == 2 * (3 * 3 + 3 * 3 + 3)
    with pytest.raises(cm.Unanswered):
        cm.peak(me, "inference")
