"""Do the causal variants equal SimpleTRON's product (Yorsh et al. 2021, arXiv 2111.15588) under a
causal mask?

Section 3 without a mask is tests/mixers/test_simple.py. Here the sums of token i run over tokens
1..i; values and operations are written from that alone.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.symbolic.sizes import ceil_log2
from profiler.modules import build, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equal_whole_and_stepped,
    forward,
    module_of,
    operations,
    reconciled,
)
from tests.small import by_sizes

NAMES = ("simple-causal", "simple-causal-res", "simple-causal-resl")
FORMS = ("recurrent", "parallel")
MODULES = ("recurrent", "cumsum", "parallel")
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2},
    {"l": 2, "d": 6, "n": 3},
    {"l": 3, "d": 5, "n": 1},
    {"l": 1, "d": 3, "n": 3},
    {"l": 1, "d": 1, "n": 1},
]
ROUNDING = 1e-11
"""Three products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_form = pytest.mark.parametrize("form", FORMS)
each_module = pytest.mark.parametrize("implementation", MODULES)
each_size = by_sizes(SIZES)


def masked(name: str, W: Arrays, n: int, length: int) -> Array:
    """Heads (Q K^T o M) V / sqrt(l), M being 1 on and below the diagonal; then -Res or -ResL."""
    x = W["x"]
    Q, K, V = (x @ W[f"W_{a}"] + W[f"b_{a}"] for a in "QKV")
    heads = []
    for columns in np.split(np.arange(x.shape[1]), n):
        similar = np.tril(Q[:, columns] @ K[:, columns].T)
        heads.append(similar @ V[:, columns] / math.sqrt(length))
    rows: Array = np.concatenate(heads, axis=1)
    if name.endswith("resl"):
        rows = rows @ W["W_out"] + W["b_out"]
    return rows if name == "simple-causal" else x + rows


@each_name
@each_form
@each_size
def test_equations_of_causal_simple_attention_give_the_values_of_the_paper(
    name: str, form: str, sizes: Sizes
) -> None:
    arrays = drawn(name, sizes)
    found = cm.evaluate(cm.mixer(name), arrays, dict(sizes), form)
    expected = masked(name, arrays, sizes["n"], sizes["l"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@each_name
@each_module
@each_size
def test_modules_of_causal_simple_attention_give_the_values_of_the_paper(
    name: str, implementation: str, sizes: Sizes
) -> None:
    """Whole sequences, a batch of which does not mix, and token by token."""
    arrays = drawn(name, sizes)
    module = module_of(name, implementation, sizes, arrays)

    def expected(x: Array) -> Array:
        return masked(name, arrays | {"x": x}, sizes["n"], sizes["l"])

    equal_whole_and_stepped(module, arrays["x"], expected, ROUNDING)


@each_name
def test_the_last_row_is_the_paper_s(name: str) -> None:
    """The mask leaves the last token everything: it has the row of the mixer without a mask."""
    sizes = SIZES[0]
    arrays = drawn(name, sizes)
    unmasked = cm.evaluate(cm.mixer(name.replace("-causal", "")), arrays, dict(sizes))
    found = cm.evaluate(cm.mixer(name), arrays, dict(sizes))
    np.testing.assert_allclose(found[-1], unmasked[-1], rtol=0, atol=ROUNDING)
    assert np.abs(found[0] - unmasked[0]).max() > 0.01


@each_module
def test_a_part_of_a_sequence_has_the_same_rows(implementation: str) -> None:
    """The factor is that of the length the module is made for, not of the sequence."""
    arrays = drawn(NAMES[0], SIZES[0])
    module, x = module_of(NAMES[0], implementation, SIZES[0], arrays), arrays["x"]
    (whole,), (part,) = forward(module, x), forward(module, x[:3])
    np.testing.assert_allclose(part, whole[:3], rtol=0, atol=ROUNDING)


def token(name: str, form: str, t: int, d: int, n: int) -> Counter[str]:
    """What token t takes, with what is kept of the earlier ones."""
    h, done = d // n, Counter[str]()
    for _ in range(3 * d):  # q, k, v with their biases
        done.update(mul=d, add=d - 1 + 1)
    for _ in range(n):
        if form == "recurrent":
            done.update(mul=h * h, add=h * h * (t > 1))  # k v^T, and the sum grows
            for _ in range(h):
                done.update(mul=h, add=h - 1)
        else:
            for _ in range(t):
                done.update(mul=h, add=h - 1)  # a score
            for _ in range(h):
                done.update(mul=t, add=t - 1)  # weighted values
        done.update(mul=h)  # the factor
    if name.endswith("resl"):
        done.update(mul=d * d, add=d * (d - 1) + d)
    done.update(add=d * (name != "simple-causal"))
    return +done


@each_name
@each_form
@each_size
def test_operations_are_those_of_the_tokens(name: str, form: str, sizes: Sizes) -> None:
    l, d, n = sizes["l"], sizes["d"], sizes["n"]
    whole: Counter[str] = sum((token(name, form, t, d, n) for t in range(1, l + 1)), Counter())
    assert operations(name, sizes, form=form) == whole
    for t in (1, 2, 30):
        at = {**sizes, "t": t}
        assert operations(name, at, form=form, phase="inference") == token(name, form, t, d, n)


# l = 3, d = 4, n = 2 (h = 2). Maps 144 mul, 3 * 12 * 4 = 144 add; the factor 12 mul. Both heads:
#   recurrent: k v^T 24, q S 24 mul; S 2 * 8 = 16, q S 12 add.
#   parallel, 6 pairs: scores 24, weighted 24 mul; scores 12, weighted 12 add.
BY_HAND = {
    "recurrent": {"mul": 144 + 12 + 48, "add": 144 + 28},
    "parallel": {"mul": 144 + 12 + 48, "add": 144 + 24},
}


@each_form
def test_operations_of_a_small_case(form: str) -> None:
    assert operations(NAMES[0], {"l": 3, "d": 4, "n": 2}, form=form) == BY_HAND[form]


@each_name
def test_state_parameters_and_path(name: str) -> None:
    """One (h, h) matrix a head, or all keys and values; the parameters of the mixer without mask.

    Span: k with its bias 2 + lg d, k v^T 1, l - 1 sums, q S 1 + lg h, the factor 1; then the
    residual 1, or a map with bias 2 + lg d and the residual 1.
    """
    mixer = cm.mixer(name)
    for t in (1, 2, 70):
        assert cm.state(mixer, "recurrent").at(d=12, n=3, t=t) == 3 * 4 * 4
        assert cm.state(mixer, "parallel").at(d=12, n=3, t=t) == 2 * 12 * t
    layers = 4 if name.endswith("resl") else 3
    assert cm.parameters(mixer).at(d=6, n=2) == layers * (36 + 6)
    last = {"simple-causal": [], "simple-causal-res": ["add"]}.get(
        name, ["mul", "sum", "add", "add"]
    )
    steps = cm.critical_path(mixer).steps
    assert steps == (
        *("mul", "sum", "add", "mul"),
        {"times": "l - 1", "steps": ["add"]},
        *("mul", "sum", "mul", *last),
    )
    for l, d, n in ((1, 1, 1), (5, 6, 2), (16, 24, 3)):
        maps, heads = ceil_log2(d), ceil_log2(d // n)
        after = len(last) - (name.endswith("resl")) * (1 - maps)
        expected = 2 + maps + 1 + (l - 1) + 1 + heads + 1 + after
        assert cm.span(mixer).at(l=l, d=d, n=n) == expected


def test_where_carrying_the_sum_is_cheaper() -> None:
    """Exactly: at every small size the counts say the same as the derived condition."""
    names = [f"{NAMES[0]}:{form}" for form in ("recurrent", "parallel")]
    for l in range(1, 9):
        for h in range(1, 5):
            one, two = (
                sum(
                    sum(
                        (token(NAMES[0], f, t, 2 * h, 2) for t in range(1, l + 1)), Counter()
                    ).values()
                )
                for f in FORMS
            )
            found = cm.crossover(*names, d=2 * h, n=2)
            assert tuple(found.values(l).values()) == (one, two)


@each_name
@pytest.mark.parametrize(("phase", "t"), [("training", 5), ("inference", 1), ("inference", 4)])
def test_reconcile_explains_all_work_of_causal_simple_attention(
    name: str, phase: str, t: int
) -> None:
    at = {"b": 2, "l": 5, "d": 8, "n": 2} | ({"t": t} if phase == "inference" else {})
    found = reconciled(name, at, phase)
    assert {each.implementation for each in found} == set(MODULES)
    for each in found:
        assert each.explained, (each.implementation, each.unexplained, each.peers)


@each_module
def test_the_state_is_of_one_size_or_grows(implementation: str) -> None:
    described = registry.implementations(NAMES[0])[implementation]
    made: Any = build(
        described, {"d": 6, "n": 2, "l": 4}, device="cpu", dtype=torch.float64, seed=1
    )
    state = made.initial_state(2)
    for t in range(1, 5):
        made.step(torch.randn(2, 6, dtype=torch.float64), state)
        assert state.elements == (2 * 6 * t if implementation == "parallel" else 2 * 3 * 3)
    if implementation == "parallel":
        with pytest.raises(ValueError, match="the state is full"):
            made.step(torch.zeros(2, 6, dtype=torch.float64), state)
