"""Is the mLSTM that of Beck et al. 2024 (arXiv 2405.04517, eqs. 19 to 27) in the layer of xLSTM 7B
(Beck et al. 2025, arXiv 2503.13427, section 3)?

Values and operations are taken row by row and head by head; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from costmodel.language.options import braces
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

ROUNDING = 1e-10
"""Exponentials of at most 30, quotients and sums of at most some ten terms, in float64."""

MLSTM_SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "h": 3, "K": 2},
    {"l": 3, "d": 2, "n": 1, "h": 2, "K": 3},
    {"l": 1, "d": 1, "n": 1, "h": 1, "K": 1},
]
WIDER = "{h=4}"
"""Values of 4 channels, whatever d and n are."""


def sigmoid(z: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-z))
    return found


# --------------------------------------------------------------------------------------------------
# Values
# --------------------------------------------------------------------------------------------------


def cells(x: Array, W: Arrays, n: int, gates: tuple[Array, Array]) -> Array:
    """Without the stabiliser: C = f C + i v k^T and n = f n + i k, with i = exp(its gate) and f a
    sigmoid; h = C q / max(|n q|, 1). The code's small number is added to the denominator that
    exp(-m) multiplies, m being the larger of the input gates and 0, each after later forget
    gates."""
    q, k, v = (x @ W[f"W_{name}"] for name in "QKV")
    rows = np.zeros_like(v)
    K, h = k.shape[1] // n, v.shape[1] // n
    for j in range(n):
        keys, values = slice(j * K, (j + 1) * K), slice(j * h, (j + 1) * h)
        C, total, m = np.zeros((h, K)), np.zeros(K), 0.0
        for t in range(len(x)):
            i, f = gates[0][t, j], 1 / (1 + math.exp(-gates[1][t, j]))
            m = max(m + math.log(f), i)
            C = f * C + math.exp(i) * np.outer(v[t, values], k[t, keys])
            total = f * total + math.exp(i) * k[t, keys]
            query = q[t, keys] / math.sqrt(K)
            least = max(abs(float(total @ query)), 1.0) + 1e-6 * math.exp(m)
            rows[t, values] = C @ query / least
    return rows


def layer(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """W_out (sigmoid(W_O x) * norm of each head)."""
    n = sizes["n"]
    capped = [15 * np.tanh((x @ W[f"W_{name}"] + W[f"b_{name}"]) / 15) for name in "IF"]
    H = cells(x, W, n, (capped[0], capped[1])).reshape(len(x), n, -1)
    centred = H - H.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    normed = normed.reshape(len(x), -1) * W["gain"]
    found: Array = (sigmoid(x @ W["W_O"]) * normed) @ W["W_out"]
    return found


def core(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The cells between linear maps."""
    found: Array = cells(x, W, sizes["n"], (x @ W["W_I"], x @ W["W_F"])) @ W["W_out"]
    return found


@by_sizes(MLSTM_SIZES)
def test_the_mlstm_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("mlstm", sizes, layer, ROUNDING)
    equals_the_paper("mlstm+core", sizes, core, ROUNDING)


def test_values_of_another_width_equal_the_paper() -> None:
    sizes = {"l": 3, "d": 3, "n": 2, "h": 4, "K": 3}
    equals_the_paper(f"mlstm{WIDER}", sizes, layer, ROUNDING)


def test_gradients_pass_through_the_mlstm() -> None:
    for implementation in ("recurrent", "parallel"):
        assert gradients_pass("mlstm", implementation, {"l": 3, "d": 2, "n": 1, "K": 2})


# --------------------------------------------------------------------------------------------------
# Operations of one token. A sum of R terms is R - 1 additions; q is multiplied by 1/sqrt(K).
# --------------------------------------------------------------------------------------------------


def linear(a: int, b: int) -> Counter[str]:
    return Counter(mul=a * b, add=b * (a - 1))


def times(counts: Counter[str], number: int) -> Counter[str]:
    return Counter({name: number * count for name, count in counts.items()})


def cell(K: int, V: int) -> Counter[str]:
    """One head, its gates given: i k, f C + (i k) v^T and f n + i k, q scaled, q C and q n; log
    sigmoid (exp, add, log), m and two exponentials, f + m twice; the quotient. Other operations:
    a logarithm, two maxima, and the comparison of |q n|."""
    return Counter(
        mul=3 * K * V + 4 * K, add=2 * K * V - V + 2 * K + 5, div=V, exp=4, log=1, compare=3
    )


@pytest.mark.parametrize(("d", "n", "h", "K"), [(6, 2, 3, 4), (10, 3, 4, 2)])
def test_a_token_of_the_mlstm_takes_these_operations(d: int, n: int, h: int, K: int) -> None:
    """The cells alone; then with biases and caps of gates, norm and output gate."""
    sizes = {"l": 9, "t": 9, "d": d, "n": n, "K": K}
    maps = times(linear(d, n * K), 2) + linear(d, n * h) + times(linear(d, n), 2)
    alone = maps + times(cell(K, h), n) + linear(n * h, d)
    said = {"phase": "inference", "convention": "scale=mul"}
    assert operations(f"mlstm+core{{h={h}}}", sizes, **said) == alone
    norm = Counter(mul=2 * h, add=3 * h - 1, div=h + 2, sqrt=1)
    whole = alone + times(Counter(add=1, div=1, mul=1, tanh=1), 2 * n) + times(norm, n)
    whole += linear(d, n * h) + times(Counter(exp=1, add=1, div=1, mul=1), n * h)
    assert operations(f"mlstm{{h={h}}}", sizes, **said) == whole


# --------------------------------------------------------------------------------------------------
# Parameters and state
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "d"), [("mlstm{n=8,K=256}", 4096), ("mlstm{n=3,h=5,K=2}", 4)])
def test_parameters_and_state_of_the_mlstm(name: str, d: int) -> None:
    """2 d d_k + 2 d d_v + 2(dn + n) + d_v + d_v d; n(KV + K + 1)."""
    given = braces(name)
    n, K = given["n"], given["K"]
    h = given.get("h", d // n)
    expected = 2 * d * n * K + 2 * d * n * h + 2 * (d * n + n) + n * h + n * h * d
    mixer = cm.mixer(name)
    assert cm.parameters(mixer).at(d=d) == expected
    for t in (1, 2, 30):
        assert cm.state(mixer).at(d=d, l=30, t=t) == n * (K * h + K + 1)


def test_parameters_of_xlstm_7b() -> None:
    """4,096 channels, 8 heads, keys half as wide as values."""
    assert cm.parameters(cm.mixer("mlstm{n=8,K=256}")).at(d=4096) == 67_178_512


def test_nothing_of_the_mlstm_is_left_unexplained() -> None:
    everything_is_explained("mlstm", {"b": 2, "l": 2, "d": 4, "n": 2, "K": 1})
