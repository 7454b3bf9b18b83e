"""Is token mixing that of Tolstikhin et al. 2021 (arXiv 2105.01601, equation (1), first line), and
gating that of Liu et al. 2021 (arXiv 2105.08050, equations (1)-(4) and appendix)?"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    operations,
)
from tests.small import by_sizes

NAME = "mlp-mixer"
CAUSAL = ("gmlp+causal", "amlp+causal")
GATED = ("gmlp", "amlp", *CAUSAL)
SIZES: list[Sizes] = [{"l": 5, "d": 3, "f": 7}, {"l": 3, "d": 2, "f": 1}, {"l": 1, "d": 1, "f": 1}]
ROUNDING = 1e-11
"""Three products in a row of normal numbers, sums of at most 7 terms, in float64."""

each_size = by_sizes(SIZES)
each_gated = pytest.mark.parametrize("name", GATED)
by_gated_sizes = by_sizes(
    [
        {"l": 5, "d": 3, "f": 4, "K": 2},
        {"l": 3, "d": 2, "f": 5, "K": 3},
        {"l": 1, "d": 1, "f": 1, "K": 1},
    ]
)


def gelu(number: float) -> float:
    return number * (1 + math.erf(number / math.sqrt(2))) / 2


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """U_{*,i} = W_2 gelu(W_1 X_{*,i}) for every channel i, with biases; a shorter sequence meets
    the first positions of both."""
    l, found = len(x), np.zeros_like(x)
    for c, column in enumerate(x.T):
        hidden = [
            gelu(sum(column[k] * W["W_1"][k, s] for k in range(l)) + W["b_1"][s])
            for s in range(sizes["f"])
        ]
        for i in range(l):
            found[i, c] = sum(g * w for g, w in zip(hidden, W["W_2"][:, i], strict=True))
            found[i, c] += W["b_2"][i]
    return found


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper(NAME, sizes, paper, ROUNDING, beyond=0)


def test_autograd_of_token_maps_equals_finite_differences() -> None:
    assert gradients_pass(NAME, "explicit", {"l": 3, "d": 2, "f": 2})


@each_size
def test_operations_and_parameters_of_token_maps_equal_a_count_by_hand(sizes: Sizes) -> None:
    """For each channel two layers of l f products, whose sums and bias are as many additions; gelu
    is 3 products, 1 addition and 1 error function."""
    l, d, f = (sizes[letter] for letter in "ldf")
    expected = {"mul": d * (2 * l * f + 3 * f), "add": d * (2 * l * f + f), "erf": d * f}
    assert operations(NAME, sizes) == expected
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == 2 * l * f + f + l


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, f = 1: two products, a bias and gelu; two products, and a bias each."""
    found = operations(NAME, {"l": 2, "d": 1, "f": 1})
    assert found == {"mul": 2 + 3 + 2, "add": 1 + 1 + 1 + 2, "erf": 1}


def test_one_token_has_a_reason_and_no_cost() -> None:
    for name in (NAME, "gmlp", "amlp"):
        with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
            cm.count(cm.mixer(name), "inference")


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained(NAME, {"b": 2, "l": 5, "d": 3, "f": 7})


def gated(name: str, x: Array, W: Arrays, sizes: Sizes) -> Array:
    """Y = (Z_1 * (W norm(Z_2) + b)) V; with aMLP's single head added to the gate. W and attention
    read the positions of a causal one that are not later."""
    l, found = len(x), []
    halves = [
        [[gelu(number) for number in row @ W[f"W_{half}"] + W[f"b_{half}"]] for row in x]
        for half in "UG"
    ]
    normed = []
    for row in np.array(halves[1]):
        variance = sum((number - row.mean()) ** 2 for number in row) / len(row)
        normed.append((row - row.mean()) / math.sqrt(variance + 1e-5) * W["gain"] + W["bias"])
    for i in range(l):
        seen = range(i + 1 if name in CAUSAL else l)
        gate = sum(W["W"][i, k] * normed[k] for k in seen) + W["w"][i]
        if name.startswith("amlp"):
            query, keys = x[i] @ W["W_Q"], [x[k] @ W["W_K"] for k in seen]
            powers = [math.exp(query @ key / math.sqrt(sizes["K"])) for key in keys]
            gate = gate + W["b_T"]
            for power, k in zip(powers, seen, strict=True):
                gate = gate + power / sum(powers) * (x[k] @ W["W_V"] @ W["W_T"])
        found.append((np.array(halves[0][i]) * gate) @ W["W_out"] + W["b_out"])
    return np.array(found)


@each_gated
@by_gated_sizes
def test_gating_equals_the_paper(name: str, sizes: Sizes) -> None:
    """Token by token where causal."""
    equals_the_paper(name, sizes, lambda *given: gated(name, *given), ROUNDING, beyond=0)


@each_gated
def test_gradients_pass_through_the_gate(name: str) -> None:
    assert gradients_pass(name, "explicit", {"l": 3, "d": 2, "f": 2, "K": 2})


def by_hand(name: str, l: int, d: int, f: int, K: int) -> dict[str, int]:
    """Operations of a forward pass, row by row."""
    found = dict.fromkeys(("mul", "add", "div", "exp", "sqrt", "erf"), 0)

    def count(**more: int) -> None:
        for operation, number in more.items():
            found[operation] += number

    for i in range(1, l + 1):
        seen = i if name in CAUSAL else l
        count(mul=3 * d * f, add=3 * d * f)  # three layers with bias
        count(mul=6 * f, add=2 * f, erf=2 * f)  # two of them with gelu
        count(mul=2 * f, add=4 * f - 1, div=f + 2, sqrt=1)  # the norm, with gain and bias
        count(mul=seen * f + f, add=seen * f)  # mixing, its bias, and the product
        if name.startswith("amlp"):
            count(mul=3 * d * K, add=3 * (d - 1) * K)
            count(mul=2 * seen * K, add=seen * (K - 1) + (seen - 1) * (K + 1))
            count(div=2 * seen, exp=seen)
            count(mul=K * f, add=K * f + f)
    return {name: number for name, number in found.items() if number}


@each_gated
@by_gated_sizes
def test_operations_of_gating_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """And what a token adds to a sequence; and what is held for the next one."""
    mixer = cm.mixer(name)
    given = {letter: sizes[letter] for letter in mixer.letters}
    assert operations(name, given) == by_hand(name, **sizes)
    for t in range(1, sizes["l"] + 1) if name in CAUSAL else ():
        one, less = (by_hand(name, **{**sizes, "l": s}) if s else {} for s in (t, t - 1))
        at = {**given, "t": t}
        added = cm.count(mixer, "inference").at(**at).total
        assert added == sum(one.values()) - sum(less.values())
        keys = 2 * sizes["K"] if name.startswith("amlp") else 0
        assert cm.state(mixer).at(**at) == t * (sizes["f"] + keys)


def test_operations_of_a_small_case_of_gating() -> None:
    """l = 1, d = 1, f = 1: three layers of a product and a bias; two gelus of 3 products and 1
    addition; a norm of 2 products, 3 additions and 3 divisions; the gate, its bias, its product."""
    assert operations("gmlp", {"l": 1, "d": 1, "f": 1}) == {
        "mul": 3 + 6 + 2 + 2, "add": 3 + 2 + 3 + 1, "div": 3, "sqrt": 1, "erf": 2,
    }  # fmt: skip


@by_gated_sizes
def test_parameters_of_gating_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Three layers, a norm, an (l, l) matrix, each with bias; aMLP's four maps, one with bias."""
    l, d, f, K = (sizes[letter] for letter in "ldfK")
    plain = 3 * d * f + 2 * f + d + 2 * f + l * l + l
    for name, expected in (("gmlp", plain), ("amlp", plain + 3 * d * K + K * f + f)):
        mixer = cm.mixer(name)
        given = {letter: sizes[letter] for letter in mixer.letters}
        assert cm.parameters(mixer).at(**given) == expected


@each_gated
def test_nothing_of_gating_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"b": 2, "l": 5, "d": 3, "f": 4, "K": 2})
