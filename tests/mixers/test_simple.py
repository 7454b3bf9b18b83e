"""Are Simple, Simple-Res and Simple-ResL what Yorsh et al. 2021 (arXiv 2111.15588) write down?"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import cli
import costmodel as cm
from costmodel import Unanswered, order
from costmodel.commands.streams import FAILED, MISUSED
from costmodel.program.conventions import convention
from costmodel.program.phases import inference_reason
from costmodel.questions.subject import system_of
from costmodel.symbolic.pretty import ORDERED
from profiler.mixers.simple import SimpleKvFirst
from profiler.modules import Mixer, SequenceMixer, implementation, registry
from profiler.modules.registry import without_token
from profiler.proofs.equality import dispatched_equals, module_equals
from profiler.records.reading import MeasureError
from profiler.run.measure import measure
from profiler.run.request import Request
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    forward,
    gradients_pass,
    module_of,
    operations,
    reconciled,
)
from tests.small import by_sizes
from tests.stand_ins import substitute

Capture = pytest.CaptureFixture[str]

NAMES = ("simple", "simple-res", "simple-resl")
FORMS = ("kv-first", "qk-first")
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2},
    {"l": 2, "d": 6, "n": 3},
    {"l": 3, "d": 5, "n": 1},
    {"l": 4, "d": 3, "n": 3},
    {"l": 1, "d": 2, "n": 1},
    {"l": 1, "d": 1, "n": 1},
]
ROUNDING = 1e-11
"""Three products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_form = pytest.mark.parametrize("form", FORMS)
each_size = by_sizes(SIZES)


# The values, as section 3 prints them: I_h takes the columns of head h out of D_hid.


def selection(width: int, of: int, head: int) -> Array:
    """I_h: zero but for the identity on rows d(h-1)+1 to dh."""
    chosen = np.zeros((of, width))
    for k in range(width):
        chosen[width * head + k, k] = 1
    return chosen


def simple_attention(X: Array, W: Arrays, n: int) -> Array:
    """1/sqrt(L) (X Q* I_h + q* I_h) ((X K* I_h + k* I_h)^T (X V* I_h + v* I_h)), concatenated.

    The biases are L x D_hid there: one row, L times.
    """
    L, D = X.shape
    heads = []
    for h in range(n):
        I = selection(D // n, D, h)
        Q, K, V = (X @ W[f"W_{z}"] @ I + np.tile(W[f"b_{z}"], (L, 1)) @ I for z in ("Q", "K", "V"))
        heads.append(1 / np.sqrt(L) * (Q @ (K.T @ V)))
    return np.concatenate(heads, axis=1)


def paper(name: str, X: Array, W: Arrays, n: int) -> Array:
    """Table 1: -Res adds the input, -ResL puts the linear layer before it."""
    y = simple_attention(X, W, n)
    if name == "simple-resl":
        y = y @ W["W_out"] + np.tile(W["b_out"], (len(X), 1))
    return y if name == "simple" else X + y


@each_name
@each_form
@each_size
def test_equations_equal_the_paper(name: str, form: str, sizes: Sizes) -> None:
    arrays = drawn(name, sizes)
    found = cm.evaluate(cm.mixer(name), arrays, sizes, form)
    expected = paper(name, arrays["x"], arrays, sizes["n"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@each_name
@each_form
@each_size
def test_modules_equal_the_paper(name: str, form: str, sizes: Sizes) -> None:
    """At every length up to l: L is the length of the sequence that comes in."""
    arrays = drawn(name, sizes)
    module = module_of(name, form, sizes, arrays)
    for length in range(1, sizes["l"] + 1):
        one = arrays["x"][:length]
        for x, y in zip((one, 2 - one), forward(module, one, 2 - one), strict=True):
            expected = paper(name, x, arrays, sizes["n"])
            np.testing.assert_allclose(y, expected, rtol=0, atol=10 * ROUNDING)


@each_name
@each_form
def test_autograd_of_simple_attention_equals_finite_differences(name: str, form: str) -> None:
    sizes = {"l": 3, "d": 4, "n": 2}
    assert gradients_pass(name, form, sizes)


# The counts. By hand: three projections, l d^2 products and as many additions, a bias among them;
# K^T V sums l products in each of n h^2 = d h entries; Q M sums h in each of l d; one scale each.


def closed(name: str, form: str, l: int, d: int, n: int) -> dict[str, int]:
    h = d // n
    if form == "kv-first":
        mul, add = 2 * l * d * h, d * h * (l - 1) + l * d * (h - 1)
    else:  # Q K^T sums h products in each of n l^2 entries, the next product sums l in each of l d
        mul, add = 2 * l * l * d, n * l * l * (h - 1) + l * d * (l - 1)
    mul, add = mul + 3 * l * d * d + l * d, add + 3 * l * d * d
    if name == "simple-resl":
        mul, add = mul + l * d * d, add + l * d * d
    if name != "simple":
        add += l * d
    return {kind: number for kind, number in {"mul": mul, "add": add}.items() if number}


@each_name
@each_form
@each_size
def test_operations_of_simple_attention_equal_a_count_by_hand(
    name: str, form: str, sizes: Sizes
) -> None:
    """No division and no exponentiation: the paper multiplies by 1/sqrt(L)."""
    assert operations(name, sizes, form=form) == closed(name, form, **sizes)


LITERALS = {
    # l = 3, d = 4, n = 2, so h = 2.
    # 3 projections 3*16*3 = 144; K^T V 2*4*3 = 24; Q M 24; scale 12: 204
    # adds 144; K^T V 8 entries of 3 terms: 16; Q M 12 entries of 2 terms: 12: 172
    ("simple", "kv-first"): {"mul": 204, "add": 172},
    # Q K^T 2*9*2 = 36; S V 36; scale 12: 228. adds: 18 entries of 2: 18; 12 entries of 3: 24: 186
    ("simple", "qk-first"): {"mul": 228, "add": 186},
    ("simple-res", "kv-first"): {"mul": 204, "add": 184},
    # and a linear layer, 48 products and 48 additions
    ("simple-resl", "kv-first"): {"mul": 252, "add": 232},
}


@pytest.mark.parametrize(("which", "counts"), LITERALS.items(), ids=lambda i: "-".join(i))
def test_operations_of_a_small_case(which: tuple[str, str], counts: dict[str, int]) -> None:
    name, form = which
    assert operations(name, {"l": 3, "d": 4, "n": 2}, form=form) == counts


@each_name
def test_parameters_of_simple_attention_equal_a_count_by_hand(name: str) -> None:
    """Three matrices and three vectors, and one more of each with the linear layer."""
    layers = 4 if name == "simple-resl" else 3
    for d, n in ((6, 2), (5, 5), (1, 1)):
        assert cm.parameters(cm.mixer(name)).at(d=d, l=7, n=n) == layers * (d * d + d)


PATHS = {
    "simple": "mul sum add mul sum mul sum mul",
    "simple-res": "mul sum add mul sum mul sum mul add",
    "simple-resl": "mul sum add mul sum mul sum mul mul sum add add",
}


@each_name
@each_form
def test_critical_path_and_span(name: str, form: str) -> None:
    """(2 + lg d) + (1 + lg l) + (1 + lg h) + 1, and for the variants 1, or 2 + lg d + 1, more."""
    mixer = cm.mixer(name)
    assert " ".join(cm.critical_path(mixer, form=form).steps) == PATHS[name]
    sizes = {"l": 5, "d": 24, "n": 2}  # lg: 3, 5, and 4 of h = 12
    more = {"simple": 0, "simple-res": 1, "simple-resl": 2 + 5 + 1}[name]
    assert cm.span(mixer, form=form).at(**sizes) == 7 + 4 + 5 + 1 + more


@pytest.mark.parametrize("rewrite", ["dense", "safe-softmax", "scale=mul", "scale=folded"])
@each_form
def test_no_rewrite_touches_it(rewrite: str, form: str) -> None:
    """Nothing is masked, there is no softmax, and the factor is the one that the paper prints."""
    sizes = SIZES[0]
    plain = operations("simple", sizes, form=form)
    assert operations("simple", sizes, form=form, convention=("strict", rewrite)) == plain


@each_name
def test_the_claim_of_table_1(name: str) -> None:
    """O(L): the total is affine in l for the paper's order, quadratic for that of attention."""
    mixer = cm.mixer(name)
    for form, degree in zip(FORMS, (1, 2), strict=True):
        totals = [cm.count(mixer, form=form).at(l=l, d=6, n=2).total for l in range(1, 6)]
        assert not np.diff(totals, degree + 1).any() and np.diff(totals, degree).all()
    found = order(cm.count(mixer).exact_total).monomials
    assert {str(monomial) for monomial in found} == {"d**2*l"}


# Which order of products is the cheaper one?


@each_name
def test_the_orders_cross_where_the_length_is_the_head_width(name: str) -> None:
    """Exactly: at every small size the counts themselves say the same."""
    names = [f"{name}:{form}" for form in FORMS]
    kv_first, qk_first = cm.crossover(*names).conditions
    assert [case.written(ORDERED) for case in kv_first.cases] == ["l > d/n"]
    assert [case.written(ORDERED) for case in qk_first.cases] == ["l < d/n"]
    for l, h, n in product(range(1, 8), range(1, 6), range(1, 4)):
        sizes = {"l": l, "d": n * h, "n": n}
        kv, qk = (sum(closed(name, form, **sizes).values()) for form in FORMS)
        found = cm.crossover(*names, d=n * h, n=n)
        assert tuple(found.values(sizes["l"]).values()) == (kv, qk)
        assert (kv < qk) == (l > h) and (kv == qk) == (l == h)


@pytest.mark.parametrize("b", [1, 3])
def test_the_command_line_says_where(b: int, capsys: Capture) -> None:
    asked = f"explain simple-res --phase training --l 3 --d 4 --n 2 --b {b}"
    assert cli.run(asked.split()) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "In a forward pass, kv-first takes fewer operations than qk-first where l > d/n, as many "
        f"where l = d/n. At these sizes kv-first takes {388 * b:,}, qk-first {426 * b:,}." in text
    )


# Not causal


@each_name
@each_form
def test_one_token_has_a_reason_and_no_cost(name: str, form: str) -> None:
    mixer = cm.mixer(name)
    reason = inference_reason(system_of(mixer, form, (), "inference"))
    assert reason == "not causal: an output depends on later tokens"
    for question in (cm.count, cm.span, cm.traffic):
        with pytest.raises(Unanswered, match="not causal"):
            question(mixer, "inference", form, convention())
    with pytest.raises(Unanswered, match="not causal"):
        cm.state(mixer, form)


@each_name
def test_the_table_has_no_numbers_for_one_token(name: str, capsys: Capture) -> None:
    asked = f"table {name} --form all --phase inference --d 6 --n 2 --l 5 --format json"
    assert cli.run(asked.split()) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["counts"] is None or set(row["counts"].values()) == {None}
        assert row["total"] is None and row["state_elements"] is None
        assert "not causal: an output depends on later tokens" in row["reasons"].values()


@each_name
def test_modules_mix_whole_sequences_only(name: str) -> None:
    for described in registry.implementations(name).values():
        assert described.step_form is None
        assert issubclass(described.module, SequenceMixer)
        assert not issubclass(described.module, Mixer)
        assert not hasattr(described.module, "step")
        assert not hasattr(described.module, "initial_state")
        assert without_token(cm.mixer(name), described).startswith("not causal:")


@pytest.mark.parametrize("command", ["profile", "reconcile"])
def test_asking_for_one_token_is_answered_in_one_sentence(command: str, capsys: Capture) -> None:
    """One for both implementations, both types and both lengths."""
    asked = f"{command} simple --phase inference --d 4 --n 2 --l 3,4 --dtype fp32,fp64"
    assert cli.run([*asked.split(), "--seconds", "0.01"]) == FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "costmodel: simple: not causal: an output depends on later tokens, so that one new token "
        "cannot be measured\n"
    )


def test_a_step_of_a_class_does_not_make_the_equations_causal() -> None:
    class Stepping(SimpleKvFirst):
        def initial_state(self, batch: int, length: int) -> None: ...
        def step(self, x_t: torch.Tensor, state: None) -> torch.Tensor:
            return x_t

    copy = {mixer: dict(named) for mixer, named in registry._registry.items()}
    with pytest.MonkeyPatch.context() as patch:
        substitute(patch, described_modules=copy)
        implementation("simple", "stepping", form="kv-first")(Stepping)
        stepping = registry.implementations("simple")["stepping"]
        assert stepping.step_form == "kv-first"
        sizes = {"b": 1, "l": 3, "d": 4, "n": 2, "t": 3}
        with pytest.raises(MeasureError, match=r"^simple: not causal: an output"):
            measure(Request(cm.mixer("simple"), stepping, sizes, "inference"))


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    for found in reconciled(name, {"b": 2, "l": 5, "d": 6, "n": 2}, "training"):
        assert found.explained, found.unexplained
        switched = [cause.name for cause in found.causes]
        assert switched == (["form=qk-first"] if found.form == "qk-first" else [])
        assert [peer.unexplained for peer in found.peers] == [0, 0]


def test_an_operation_too_many_surfaces() -> None:
    described = registry.implementations("simple")["kv-first"]

    class Doubled(SimpleKvFirst):
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            return super().mix(x) * 0.5 * 2

    claimed = replace(described, made=Doubled)
    assert module_equals(cm.mixer("simple"), claimed).passed
    proof = dispatched_equals(cm.mixer("simple"), claimed, step=False)
    assert proof.passed is False
    assert "forward of a batch of 2 dispatches 4 mul more than its description" in proof.detail


def test_bad_sizes_are_refused(capsys: Capture) -> None:
    described = registry.implementations("simple")["kv-first"]
    with pytest.raises(ValueError, match="d must be divisible by n: d = 6 and n = 4"):
        described.module(d=6, l=3, n=4)
    with pytest.raises(ValueError, match="size n must be a positive integer and is 0"):
        described.module(d=6, l=3, n=0)
    assert cli.run(["table", "simple", "--d", "6", "--n", "4"]) == MISUSED
    assert "needs d/n to be whole" in capsys.readouterr().err
