"""Do additive, dot-product and general attention have the scores of Bahdanau and of Luong?

Bahdanau et al. 2014 (arXiv 1409.0473, section 3.1, appendix A.1.2), Luong et al. 2015 (arXiv
1508.04025, section 3.1): values and operations are written here entry by entry from the papers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
from profiler.modules import State, build, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equal_at_every_length,
    forward,
    gradients_pass,
    module_of,
    operations,
    reconciled,
    stepped,
)
from tests.small import by_sizes

NAMES = ("additive-attention", "dot-product-attention", "general-attention")
IMPLEMENTATIONS = ("explicit", "rows")
SIZES: list[Sizes] = [
    {"l": 5, "d": 3, "f": 2},
    {"l": 3, "d": 2, "f": 7},
    {"l": 4, "d": 1, "f": 1},
    {"l": 1, "d": 5, "f": 3},
    {"l": 1, "d": 1, "f": 1},
]
ROUNDING = 1e-11
"""Sums of at most 7 products of normal numbers, and an exponential of them, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
each_size = by_sizes(SIZES)


def of(name: str, sizes: Sizes) -> dict[str, int]:
    """The sizes that a mixer has."""
    return {k: v for k, v in sizes.items() if k in cm.mixer(name).letters}


# The values: e_ij = a(s_i, h_j), alpha_ij = exp(e_ij) / sum_k exp(e_ik), c_i = sum_j alpha_ij h_j,
# with the rows of one sequence as states and annotations, j up to i.


def alignment(name: str, s: Array, h: Array, W: Arrays) -> float:
    """The score of a query and a key."""
    if name == "additive-attention":  # v^T tanh(W s + U h), W and U written (n', n) in the paper
        inner = [math.tanh(a) for a in W["W_a"].T @ s + W["U_a"].T @ h]
        return float(sum(v * a for v, a in zip(W["v_a"], inner, strict=True)))
    if name == "dot-product-attention":  # s^T h
        return float(sum(a * b for a, b in zip(s, h, strict=True)))
    return float(s @ W["W_a"] @ h)  # s^T W h


def paper(name: str, X: Array, W: Arrays) -> Array:
    rows = []
    for i in range(len(X)):
        e = [alignment(name, X[i], X[j], W) for j in range(i + 1)]
        alpha = [math.exp(e_ij) / sum(map(math.exp, e)) for e_ij in e]
        rows.append(sum(a * X[j] for j, a in enumerate(alpha)))
    return np.array(rows)


@each_name
@each_size
def test_equations_equal_the_papers(name: str, sizes: Sizes) -> None:
    arrays = drawn(name, sizes)
    found = cm.evaluate(cm.mixer(name), arrays, of(name, sizes))
    np.testing.assert_allclose(found, paper(name, arrays["x"], arrays), rtol=0, atol=ROUNDING)


@each_name
@each_implementation
@each_size
def test_modules_equal_the_papers(name: str, implementation: str, sizes: Sizes) -> None:
    """Whole sequences of every length, two at once, and token by token."""
    arrays = drawn(name, sizes)
    module = module_of(name, implementation, of(name, sizes), arrays)
    equal_at_every_length(
        module, arrays["x"], lambda x: paper(name, x, arrays), ROUNDING, steps=True
    )  # no weight ends at l


@each_name
@each_implementation
def test_autograd_of_additive_attention_equals_finite_differences(
    name: str, implementation: str
) -> None:
    sizes = of(name, {"l": 3, "d": 2, "f": 3})
    assert gradients_pass(name, implementation, sizes)


@pytest.mark.parametrize("name", ["dot-product-attention", "general-attention"])
@each_implementation
def test_modules_of_additive_attention_equal_torch(name: str, implementation: str) -> None:
    """torch's scaled_dot_product_attention with a scale of 1; general attention projects first."""
    sizes = {"l": 7, "d": 5}
    arrays = drawn(name, sizes)
    x = torch.from_numpy(arrays["x"])
    query = x @ torch.from_numpy(arrays["W_a"]) if name == "general-attention" else x
    expected = nn.functional.scaled_dot_product_attention(
        query[None, None], x[None, None], x[None, None], is_causal=True, scale=1.0
    )[0, 0].numpy()
    module = module_of(name, implementation, sizes, arrays)
    np.testing.assert_allclose(forward(module, arrays["x"])[0], expected, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(stepped(module, arrays["x"]), expected, rtol=0, atol=ROUNDING)
    assert cm.mixer(name).references == ("torch.nn.functional.scaled_dot_product_attention",)


SINGLE = 1e-5
"""Keras on torch multiplies matrices in float32, whatever its layers' type: some ten roundings of
2**-24 of numbers of size one."""


@each_implementation
def test_it_equals_keras_in_single_precision(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """keras.layers.AdditiveAttention, which takes queries and keys that are projected already."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="keras is not installed (pip install keras)")
    sizes = {"l": 7, "d": 5, "f": 3}
    arrays = drawn("additive-attention", sizes)
    x = torch.from_numpy(arrays["x"]).unsqueeze(0)
    query, key = (x @ torch.from_numpy(arrays[name]) for name in ("W_a", "U_a"))
    theirs = keras.layers.AdditiveAttention(use_scale=True, dtype="float64")
    theirs.build([tuple(part.shape) for part in (query, x, key)])
    theirs.set_weights([arrays["v_a"]])
    with torch.no_grad():
        expected = theirs([query, x, key], use_causal_mask=True)[0].cpu().numpy()
    module = module_of("additive-attention", implementation, sizes, arrays)
    np.testing.assert_allclose(forward(module, arrays["x"])[0], expected, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(stepped(module, arrays["x"]), expected, rtol=0, atol=SINGLE)
    assert cm.mixer("additive-attention").references == (), "no code that equals it in float64"


# The counts: P = l (l + 1) / 2 pairs in l rows. A softmax of r scores takes r exponentials, r - 1
# additions and r divisions; the weighted sum of r rows r d products and (r - 1) d additions.


def closed(name: str, l: int, d: int, f: int) -> dict[str, int]:
    P = l * (l + 1) // 2
    mul, add, tanh = P * d, (P - l) * (1 + d), 0
    if name == "additive-attention":
        # W s and U h once a row; then f sums, f tanh, f products and f - 1 additions a pair
        mul, add = mul + 2 * l * d * f + P * f, add + 2 * l * (d - 1) * f + P * f + P * (f - 1)
        tanh = P * f
    else:
        mul, add = mul + P * d, add + P * (d - 1)
    if name == "general-attention":  # x_i^T W once a row
        mul, add = mul + l * d * d, add + l * d * (d - 1)
    found = {"mul": mul, "add": add, "div": P, "exp": P, "tanh": tanh}
    return nonzero(found)


@each_name
@each_size
def test_operations_of_additive_attention_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    assert operations(name, sizes) == closed(name, **sizes)


@each_name
@each_size
def test_operations_of_one_token(name: str, sizes: Sizes) -> None:
    """Keys and values are kept: one token costs what it adds to a forward pass, in every class."""
    for t in range(1, sizes["l"] + 1):
        longer, shorter = (closed(name, **{**sizes, "l": length}) for length in (t, t - 1))
        added = {kind: n - shorter.get(kind, 0) for kind, n in longer.items()}
        found = operations(name, {**sizes, "t": t}, phase="inference")
        assert found == {kind: n for kind, n in added.items() if n}


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 3, f = 2: 3 pairs.

    Additive: projections 2 * 2*3*2 = 24 products and 2 * 2*2*2 = 16 additions; a pair takes 2 sums,
    2 tanh, 2 products and 1 addition: 6 products, 9 additions, 6 tanh; the one row of two weights 1
    addition; values 3*3 = 9 products, 1*3 additions.
    """
    sizes = {"l": 2, "d": 3, "f": 2}
    assert operations("additive-attention", sizes) == {
        "mul": 24 + 6 + 9, "add": 16 + 9 + 1 + 3, "div": 3, "exp": 3, "tanh": 6,
    }  # fmt: skip
    assert operations("dot-product-attention", sizes) == {
        "mul": 9 + 9, "add": 6 + 1 + 3, "div": 3, "exp": 3,
    }  # fmt: skip
    assert operations("general-attention", sizes) == {
        "mul": 18 + 9 + 9, "add": 12 + 6 + 1 + 3, "div": 3, "exp": 3,
    }  # fmt: skip


@each_name
def test_no_scale_is_counted_or_rewritten(name: str) -> None:
    sizes = SIZES[0]
    for rewrite in ("scale=mul", "scale=folded"):
        found = operations(name, sizes, convention=("strict", rewrite))
        assert found == operations(name, sizes)


@each_name
@each_size
def test_parameters_of_additive_attention_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    d, f = sizes["d"], sizes["f"]
    expected = {
        "additive-attention": 2 * d * f + f,
        "dot-product-attention": 0,
        "general-attention": d * d,
    }
    assert cm.parameters(cm.mixer(name)).at(**sizes) == expected[name]


@each_name
@each_size
def test_state_of_additive_attention_equals_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """U h for every key, and the rows; where the keys are the rows, the rows alone."""
    width = sizes["d"] + (sizes["f"] if name == "additive-attention" else 0)
    for t in range(1, sizes["l"] + 4):
        assert cm.state(cm.mixer(name)).at(**sizes, t=t) == t * width


PATHS = {
    "additive-attention": "mul sum add tanh mul sum exp sum div mul sum",
    "dot-product-attention": "mul sum exp sum div mul sum",
    "general-attention": "mul sum mul sum exp sum div mul sum",
}


@each_name
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_critical_path_and_span(name: str, phase: str) -> None:
    """Projection, score, softmax, weighted sum: lg d = 3, lg f = 2, lg of 9 keys = 4."""
    mixer = cm.mixer(name)
    assert " ".join(cm.critical_path(mixer, phase).steps) == PATHS[name]
    score = {
        "additive-attention": (1 + 3) + 1 + 1 + (1 + 2),
        "dot-product-attention": 1 + 3,
        "general-attention": (1 + 3) + (1 + 3),
    }
    sizes = {"l": 9, "d": 7, "f": 3, "t": 9}
    assert cm.span(mixer, phase).at(**sizes) == score[name] + (1 + 4 + 1) + (1 + 4)


def test_additive_attention_costs_more_than_the_dot_product_by_its_network() -> None:
    """One addition and one tanh more for each pair and channel of equal width, and W and U."""
    sizes = {"l": 6, "d": 5, "f": 5}
    P = 6 * 7 // 2
    one, other = operations(NAMES[0], sizes), operations(NAMES[1], sizes)
    assert one["mul"] - other["mul"] == 2 * 6 * 25
    assert one["add"] - other["add"] == P * 5 + 2 * 6 * 20
    assert one["tanh"] == P * 5 and "tanh" not in other


# The modules


@each_name
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_nothing_is_left_unexplained(name: str, phase: str) -> None:
    sizes = of(name, {"l": 5, "d": 3, "f": 2}) | {"b": 2}
    sizes |= {"t": 4} if phase == "inference" else {}
    for found in reconciled(name, sizes, phase):
        assert found.explained, found.unexplained
        switched = ["safe-softmax"]
        if (found.implementation, phase) == ("explicit", "training"):
            switched = ["dense", "safe-softmax"]
        assert [cause.name for cause in found.causes] == switched
        assert [peer.unexplained for peer in found.peers] == [0, 0]


@each_name
@each_implementation
def test_the_state_holds_rows_of_their_own_width(name: str, implementation: str) -> None:
    sizes = of(name, {"l": 4, "d": 3, "f": 2})
    module = module_of(name, implementation, sizes, drawn(name, sizes))
    state = module.initial_state(2)
    assert isinstance(state, State)
    widths = {key: tuple(array.shape) for key, array in state.arrays.items()}
    own = {"K": (2, 4, 2)} if name == "additive-attention" else {}
    assert widths == {**own, "x": (2, 4, 3)}
    for _ in range(4):
        module.step(torch.zeros(2, 3, dtype=torch.float64), state)
    with pytest.raises(ValueError, match="the state is full, with 4 tokens of at most 4"):
        module.step(torch.zeros(2, 3, dtype=torch.float64), state)


@each_implementation
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mixer_without_parameters_has_a_type(implementation: str, dtype: torch.dtype) -> None:
    described = registry.implementations("dot-product-attention")[implementation]
    module = build(described, {"l": 3, "d": 2}, device="cpu", dtype=dtype, seed=0)
    x = torch.ones(1, 3, 2, dtype=dtype)
    assert not list(module.parameters()) and module.state_dict() == {}
    assert module(x).dtype == dtype
    assert module.initial_state(1).arrays["x"].dtype == dtype  # type: ignore[operator]
    other = torch.float32 if dtype == torch.float64 else torch.float64
    with pytest.raises(ValueError, match=rf"x is {other} and the parameters are {dtype}"):
        module(x.to(other))


def test_bad_sizes_are_refused() -> None:
    described = registry.implementations("additive-attention")["explicit"]
    with pytest.raises(ValueError, match="size f must be a positive integer and is 0"):
        described.module(d=2, l=3, f=0)
