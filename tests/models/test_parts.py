"""Do a network's parts equal counts by hand, values in torch, and execution entry by entry?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import ModelError
from costmodel.networks import parts
from costmodel.networks.experts import active, experts
from costmodel.oracle.execute import execute, random_arrays
from costmodel.proofs.against_oracle import OracleComparison

SIZES = (
    {"l": 5, "d": 3, "u": 7, "f": 2, "E": 7, "c": 3, "S": 2, "r": 3},
    {"l": 3, "d": 2, "u": 5, "f": 7, "E": 3, "c": 2, "S": 5, "r": 2},
)
"""Distinct small primes."""

ONES = {"l": 1, "d": 1, "u": 1, "f": 1, "E": 1, "c": 1, "S": 1, "r": 1}

PARTS: dict[str, Mixer] = {
    "look-up": parts.look_up(),
    "look-up, scaled": parts.look_up(True),
    "one-hot": parts.one_hot(),
    "one-hot, scaled": parts.one_hot(True),
    "learned": parts.positions("learned"),
    "learned, product, scaled": parts.positions("learned", True, True),
    "sinusoidal": parts.positions("sinusoidal"),
    "learned, behind two rows": parts.positions("learned", offset=2),
    "segments": parts.segments(2),
    "appended": parts.appended(3),
    "unread": parts.unread(),
    "norm": parts.layer_norm(),
    "norm without bias and eps": parts.layer_norm(bias=False, eps=False),
    "norm, repeated": parts.layer_norm(repeated=True),
    "norm without weights": parts.layer_norm(bias=False, gain=""),
    "norm, 1 + w": parts.layer_norm(gain="1 + w"),
    "rms norm without weights": parts.rms_norm(gain=""),
    "rms norm": parts.rms_norm(),
    "rms norm, 1 + w": parts.rms_norm(gain="1 + w"),
    "residual": parts.residual(),
    "residual, scaled": parts.residual("output"),
    "residual, both scaled": parts.residual("both"),
    "residual, gated": parts.residual(gated=True),
    "dropout": parts.dropout(),
    "dense": parts.dense(),
    "dense, tanh": parts.dense("tanh", bias=False),
    "ffn": parts.ffn(),
    "ffn, squared": parts.ffn("relu", bias=False, squared=True),
    "ffn, gelu": parts.ffn("gelu", bias=False),
    "ffn, gelu-tanh": parts.ffn("gelu-tanh"),
    "ffn, xielu": parts.ffn("xielu", bias=False),
    "patches": parts.patches(),
    "scale": parts.scale(),
    "gated ffn": parts.gated_ffn(),
    "gated ffn, gelu-tanh, biases": parts.gated_ffn("gelu-tanh", bias=True),
    "experts": experts("softmax"),
    "experts, shared": experts("softmax-normalised", shared="gated"),
    "experts, by sigmoids": experts("sigmoid-normalised", shared="plain"),
    "experts, squared": experts("sigmoid", "relu", squared=True, shared="plain"),
    "experts, clamped": experts("chosen-softmax", clamped=True, biased=True),
    "experts, clamped, shared": experts("sigmoid-normalised", clamped=True, shared="plain"),
    "gated ffn, clamped": parts.gated_ffn(clamped=True),
    "experts, by chosen sigmoids": experts("chosen-sigmoid", shared="plain"),
    "experts, by a softmax and a trained bias": experts("softmax", correction="parameter"),
    "head": parts.head(),
    "head, bounded": parts.head(cap=True),
    "head, divided": parts.head(scale="divided"),
    "head, multiplied": parts.head(scale="multiplied"),
    "head, of divided rows": parts.head(scale="rows"),
    "head, tied": parts.head(tied=True, bias=True),
    "probabilities": parts.probabilities(),
}
LOSSES = {
    "scores": parts.loss_of_scores(),
    "scores, smoothed": parts.loss_of_scores(smoothed=True),
    "probabilities": parts.loss_of_probabilities(),
}


def executed(part: Mixer, sizes: dict[str, int], form: str = "") -> dict[str, int]:
    chosen = part.forms[form or part.default_form]
    given = {name: abs(array) for name, array in random_arrays(chosen, sizes).items()}
    run = execute(chosen, sizes, arrays=given)
    found: dict[str, int] = {}
    for counts in (run.counts(), run.once()):
        for name, number in counts.items():
            found[name] = found.get(name, 0) + number
    return {name: number for name, number in found.items() if number}


def test_equal_arguments_make_one_part() -> None:
    assert parts.layer_norm() is parts.layer_norm(True, eps=True) is not parts.layer_norm(False)


@pytest.mark.grid(12)
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("rewrites", [(), ("dense",), ("safe-softmax",)])
def test_parts_are_counted_as_their_execution_counts_them(
    name: str, rewrites: tuple[str, ...]
) -> None:
    """Counts, once, span, state and values; only traffic of rows read by number has no answer."""
    for sizes in (*SIZES, ONES):
        if name == "norm without bias and eps" and sizes["d"] == 1:
            continue  # one entry deviates by 0 from its mean, and is divided by that
        own = {x: sizes[x] for x in ("l", *PARTS[name].letters)}
        made = OracleComparison(PARTS[name], rewrites=rewrites).at(own)
        assert made.apart == [], sizes
        assert all("traffic" in line and "values of" in line for line in made.refused)
        assert "counts" in made.compared


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", [*SIZES, ONES], ids=str)
def test_losses_are_counted_as_their_execution_counts_them(
    name: str, sizes: dict[str, int]
) -> None:
    part = LOSSES[name]
    sizes = {x: sizes[x] for x in part.letters}
    for form in part.forms:
        counts = cm.count(part, "training", form).at(**sizes)
        found = {c: v for c, v in counts.by_class().items() if v}
        assert found == executed(part, sizes, form), form


BY_HAND = [
    # A row of m entries: mean m-1 adds, centred m, variance m-1, eps 1, bias m: 4m-1; squares and
    # gain 2m products; two means and m quotients; one root.
    ("norm", {"l": 1, "d": 5}, {"mul": 10, "add": 19, "div": 7, "sqrt": 1}),
    # Without eps one addition less, without a bias m less.
    ("norm without bias and eps", {"l": 1, "d": 5}, {"mul": 10, "add": 13, "div": 7, "sqrt": 1}),
    # 3*5 and 5*3 products; 5*(2+1) and 3*(4+1) additions with biases; a comparison a hidden entry.
    ("ffn", {"l": 1, "d": 3, "f": 5}, {"mul": 30, "add": 30, "compare": 5}),
    ("ffn, squared", {"l": 1, "d": 3, "f": 5}, {"mul": 35, "add": 22, "compare": 5}),
    # The hidden entries take x * 0.5 * (1 + erf(x * c)) each: 3 mul, 1 add; no biases.
    ("ffn, gelu", {"l": 1, "d": 3, "f": 5}, {"mul": 45, "add": 27, "erf": 5}),
    # 0.5 x (1 + tanh(c (x + k x x x))): 6 mul, 2 add, 1 tanh.
    ("ffn, gelu-tanh", {"l": 1, "d": 3, "f": 5}, {"mul": 60, "add": 40, "tanh": 5}),
    # Squares and gain 2m products, m-1 additions and eps; the mean and m quotients; one root.
    ("rms norm", {"l": 1, "d": 5}, {"mul": 10, "add": 5, "div": 6, "sqrt": 1}),
    # 3 maps of 15 products, 10, 10 and 12 additions; silu: exp, 1 +, quotient, product; the gate.
    ("gated ffn", {"l": 1, "d": 3, "f": 5}, {"mul": 55, "add": 37, "div": 5, "exp": 5}),
    # Rows of 7 ones and zeros times (7, 3); nothing for a row that is read by number.
    ("one-hot", {"l": 2, "d": 3, "u": 7}, {"mul": 42, "add": 36}),
    # 3 patches of 2 numbers to 5 channels, each 2 products, 1 addition and a bias.
    ("patches", {"l": 4, "d": 5, "r": 2}, {"mul": 30, "add": 30}),
    ("scale", {"l": 2, "d": 3}, {"div": 6}),
    ("look-up", {"l": 2, "d": 3, "u": 7}, {}),
    ("look-up, scaled", {"l": 2, "d": 3, "u": 7}, {"mul": 6}),
    ("residual", {"l": 2, "d": 3}, {"add": 6}),
    ("residual, scaled", {"l": 2, "d": 3}, {"add": 6, "mul": 6}),
    ("head, bounded", {"l": 2, "d": 3, "u": 7}, {"mul": 56, "add": 28, "div": 14, "tanh": 14}),
    ("head, divided", {"l": 2, "d": 3, "u": 7}, {"mul": 42, "add": 28, "div": 14}),
    ("head, multiplied", {"l": 2, "d": 3, "u": 7}, {"mul": 56, "add": 28}),
    ("head, of divided rows", {"l": 2, "d": 3, "u": 7}, {"mul": 42, "add": 28, "div": 6}),
    ("dropout", {"l": 2, "d": 3}, {"mul": 6}),
    ("segments", {"l": 2, "d": 3}, {"add": 6}),
    ("unread", {"l": 2, "d": 3, "r": 4}, {}),
    ("sinusoidal", {"l": 2, "d": 3}, {"add": 6}),
    ("head", {"l": 2, "d": 3, "u": 7}, {"mul": 42, "add": 28}),
    ("head, tied", {"l": 2, "d": 3, "u": 7}, {"mul": 42, "add": 42}),
    ("probabilities", {"l": 2, "u": 7}, {"exp": 14, "add": 12, "div": 14}),
]


@pytest.mark.parametrize(("name", "sizes", "expected"), BY_HAND)
def test_operations_of_parts_equal_a_count_by_hand(
    name: str, sizes: dict[str, int], expected: dict[str, int]
) -> None:
    counts = cm.count(PARTS[name]).at(**sizes)
    assert {c: v for c, v in counts.by_class().items() if v} == expected
    assert counts.once is not None and counts.once.total == 0


def test_learned_positions_as_a_product_are_work_done_once() -> None:
    """Eq. (5): one-hot (4, 4) times (4, 3), scaled: no token's work; then one sum an entry."""
    counts = cm.count(PARTS["learned, product, scaled"]).at(l=4, d=3, u=4)
    assert counts.by_class() == {"mul": 0, "add": 12, "div": 0, "exp": 0}
    assert counts.once is not None
    assert counts.once.by_class() == {"mul": 4 * 4 * 3 + 12, "add": 4 * 3 * 3, "div": 0, "exp": 0}


def test_operations_of_losses_equal_a_count_by_hand() -> None:
    """l = 2 rows of u = 7 scores."""
    plain = cm.count(LOSSES["scores"], form="plain").at(l=2, u=7)
    # exp of each score, their sum (6), its log, 7 differences; the sum of 2 targets, one division.
    assert plain.by_class() == {
        "mul": 0, "add": 2 * (6 + 7) + 1, "div": 1, "exp": 14, "log": 2,
    }  # fmt: skip
    stable = cm.count(LOSSES["scores"], form="stable").at(l=2, u=7)
    assert stable.other == {"log": 2, "compare": 12}
    assert stable.add == plain.add + 14
    smoothed = cm.count(LOSSES["scores, smoothed"], form="plain").at(l=2, u=7)
    # Both factors once a row, the row's sum (6) and one sum of the two.
    assert (smoothed.mul, smoothed.add) == (4, plain.add + 14)
    given = cm.count(LOSSES["probabilities"]).at(l=2, u=7)
    assert given.by_class() == {"mul": 0, "add": 1, "div": 1, "exp": 0, "log": 2}


def arrays(part: Mixer, sizes: dict[str, int]) -> dict[str, Any]:
    generator = np.random.default_rng(7)
    found: dict[str, Any] = {}
    for name, array in part.arrays.items():
        shape = tuple(extent.at(sizes) for extent in array.shape)
        if array.role == "output":
            continue
        if array.below is not None:
            found[name] = generator.integers(1, array.below.at(sizes) + 1, shape)
        else:
            found[name] = generator.normal(size=shape)
    return found


SMALL = {"l": 4, "d": 6, "u": 5, "f": 3, "r": 2}
CLOSE = 1e-12
"""Sums of a few terms of order 1 in float64 round far below this."""


def values(part: Mixer, form: str | None = None) -> tuple[dict[str, Any], Any]:
    given = arrays(part, SMALL)
    return given, cm.evaluate(part, given, SMALL, form)


def test_layer_norm_equals_its_definition() -> None:
    given, found = values(PARTS["norm"])
    x = given["x"]
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-5) * given["gain"] + given["offset"]
    assert abs(found - expected).max() < CLOSE


def test_rms_norms_equal_their_definition() -> None:
    for name, more in (("rms norm", 0), ("rms norm, 1 + w", 1)):
        given, found = values(PARTS[name])
        x = given["x"]
        expected = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * (more + given["gain"])
        assert abs(found - expected).max() < CLOSE
    counts = cm.count(PARTS["rms norm, 1 + w"]).at(l=4, d=6)
    assert counts.once is not None and counts.once.by_class()["add"] == 6


def test_a_gated_ffn_equals_its_definition() -> None:
    given, found = values(PARTS["gated ffn"])
    gate = given["x"] @ given["W_gate"]
    hidden = gate / (1 + np.exp(-gate)) * (given["x"] @ given["W_up"])
    assert abs(found - hidden @ given["W_down"]).max() < CLOSE


def test_xielu_equals_its_definition() -> None:
    """In 5 hidden entries: 2 compare, 4 mul, 4 add, 1 exp; its two factors are made once."""
    given, found = values(PARTS["ffn, xielu"])
    x = given["x"] @ given["W_1"]
    plus, minus = (math.log1p(math.exp(given[name][0])) for name in ("alpha_p", "alpha_n"))
    negative = (np.expm1(x) - x) * (0.5 + minus)
    expected = (np.where(x > 0, plus * x * x, negative) + 0.5 * x) @ given["W_2"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)
    counts = cm.count(PARTS["ffn, xielu"]).at(l=1, d=3, f=5)
    assert counts.by_class() == {
        "mul": 30 + 20, "add": 22 + 20, "div": 0, "exp": 5, "compare": 10,
    }  # fmt: skip
    assert counts.once is not None and counts.once.total == 2 * 3 + 1


def test_patches_stand_behind_the_class_token() -> None:
    given, found = values(PARTS["patches"])
    np.testing.assert_array_equal(found[0], given["token"])
    np.testing.assert_allclose(found[1:], given["x"][1:] @ given["E"] + given["b_E"], atol=CLOSE)


def test_experts_equal_their_definition() -> None:
    """Each token through its 2 best of 5 experts; a softmax of the chosen scores is the same as the
    chosen entries of the softmax of all over their sum."""
    part, sizes = PARTS["experts, shared"], {"l": 4, "d": 3, "f": 2, "E": 5, "c": 2, "S": 6}
    generator = np.random.default_rng(5)
    given = {
        name: generator.normal(size=[extent.at(sizes) for extent in array.shape])
        for name, array in part.arrays.items()
        if array.role in ("input", "parameter")
    }
    found = cm.evaluate(part, given, sizes)

    def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (x @ gate / (1 + np.exp(-x @ gate)) * (x @ up)) @ down

    for x, y in zip(given["x"], found, strict=True):
        scores = x @ given["W_R"]
        best = np.argsort(-scores)[:2]
        weights = np.exp(scores[best]) / np.exp(scores[best]).sum()
        names = [[given[f"{W}_{part}"] for part in ("gate", "up", "down")] for W in "WV"]
        routed = [gated(x, *(W[k] for W in names[0])) for k in best]
        shared = gated(x, *names[1]) / (1 + np.exp(-x @ given["v"]))
        assert abs(weights @ np.array(routed) + shared - y).max() < CLOSE


def test_active_parameters_leave_out_experts_that_are_not_chosen() -> None:
    sizes = {"l": 1, "d": 3, "f": 2, "E": 7, "c": 2, "S": 5}
    assert active(PARTS["experts"]).at(sizes) == 3 * 7 + 2 * (3 * 3 * 2)
    assert active(PARTS["experts, clamped"]).at(sizes) == 3 * 7 + 7 + 2 * (3 * 3 * 2 + 2 + 2 + 3)
    assert active(PARTS["experts, shared"]).at(sizes) == 3 * 7 + 2 * 18 + 3 * 3 * 5 + 3
    assert active(PARTS["ffn"]).at(sizes) == 2 * 3 * 2 + 2 + 3
    assert active(PARTS["look-up"]).at({"u": 7, "d": 3}) == 7 * 3


def test_gelu_tanh_equals_its_definition() -> None:
    given, found = values(PARTS["ffn, gelu-tanh"])
    z = given["x"] @ given["W_1"] + given["b_1"]
    gelu = 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    assert abs(found - (gelu @ given["W_2"] + given["b_2"])).max() < CLOSE


def test_rows_are_read_by_number() -> None:
    given, found = values(PARTS["look-up, scaled"])
    expected = given["E"][given["tokens"] - 1] * math.sqrt(6)
    assert abs(found - expected).max() < CLOSE
    given, found = values(PARTS["segments"])
    assert abs(found - given["x"] - given["S"][given["which"] - 1]).max() < CLOSE


def test_tied_head_takes_the_embedding_transposed() -> None:
    given, found = values(PARTS["head, tied"])
    assert abs(found - (given["x"] @ given["E"].T + given["b"])).max() < CLOSE


@pytest.mark.parametrize("form", ["plain", "stable"])
@pytest.mark.parametrize("smoothed", [False, True])
def test_cross_entropy_equals_its_definition(form: str, smoothed: bool) -> None:
    given, found = values(parts.loss_of_scores(smoothed), form)
    logs = given["x"] - np.log(np.exp(given["x"]).sum(1, keepdims=True))
    mine = logs[np.arange(4), given["target"] - 1]
    expected = -(0.9 * mine + 0.1 * logs.mean(1)).mean() if smoothed else -mine.mean()
    assert found.shape == (1,) and abs(found[0] - expected) < CLOSE


def test_cross_entropy_of_probabilities_equals_its_definition() -> None:
    part = LOSSES["probabilities"]
    given = arrays(part, SMALL)
    given["x"] = abs(given["x"])
    found = cm.evaluate(part, given, SMALL)
    mine = given["x"][np.arange(4), given["target"] - 1]
    assert abs(found[0] + np.log(mine).mean()) < CLOSE


def test_residual_adds_its_two_rows() -> None:
    part = PARTS["residual"]
    x = np.random.default_rng(1).normal(size=(4, 2, 6))
    assert (cm.evaluate(part, {"x": x}, SMALL) == x[:, 0] + x[:, 1]).all()


@pytest.mark.parametrize("part", [parts.dense, parts.ffn, parts.gated_ffn])
def test_unknown_activations_are_refused(part: Callable[[str], Mixer]) -> None:
    own = ", xielu" if part is parts.ffn else ""
    expected = f"^unknown activation 'swish': expected one of {', '.join(parts.ACTIVATIONS)}{own}$"
    with pytest.raises(ModelError, match=expected):
        part("swish")
