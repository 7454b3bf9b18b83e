"""Are LFM2's convolution and the RG-LRU those of Amini et al. 2025 (arXiv 2511.23404) and of De et
al. 2024 (arXiv 2402.19427, section 2.4, eqs. 1 to 4)?

Values and operations are taken row by row and channel by channel; nothing is shared with the
package.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from costmodel.language.options import braces
from profiler.modules import registry
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

ROUNDING = 1e-11
"""Sums of at most some ten terms, sigmoids and exponentials of normal numbers, in float64."""

LFM2_SIZES: list[Sizes] = [
    {"l": 7, "d": 3, "k": 3},
    {"l": 3, "d": 2, "k": 5},
    {"l": 1, "d": 1, "k": 1},
]
"""Past the taps, fewer rows than taps, and a single one."""
UNIT_SIZES: list[Sizes] = [
    {"l": 6, "d": 6, "n": 3, "h": 2, "k": 3},
    {"l": 3, "d": 2, "n": 1, "h": 2, "k": 5},
    {"l": 1, "d": 1, "n": 1, "h": 1, "k": 1},
]
WIDER = "{h=4}"
"""Blocks of 4 channels, whatever d and n are."""


def silent(rows: Array) -> Array:
    """A row of zeros where there is no row."""
    return np.zeros(rows.shape[1])


def taps(rows: Array, i: int, w: Array) -> Array:
    """The convolution at row i (0 the first): tap s weighs the row s back."""
    k = len(w)
    found: Array = np.sum(
        [w[s] * (rows[i - s] if i >= s else silent(rows)) for s in range(k)], axis=0
    )
    return found


# --------------------------------------------------------------------------------------------------
# Values
# --------------------------------------------------------------------------------------------------


def short(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """[B | C | u] = W x + b; W_out (C (conv(B u) + b_w)) + b_out, biases 0 where there are none."""
    b = {name: W.get(f"b_{name}", 0.0) for name in ("B", "C", "X", "w", "out")}
    B, C, u = (x @ W[f"W_{name}"] + b[name] for name in "BCX")
    rows = [C[i] * (taps(B * u, i, W["w"]) + b["w"]) for i in range(len(x))]
    return np.array(rows) @ W["W_out"] + b["out"]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def unit(u: Array, W: Arrays, n: int) -> Array:
    """a = exp(-8 r softplus(Lambda)); h = a h + sqrt(1 - a^2) (i u); the first row is i u."""
    width = u.shape[1]
    h, rows = np.zeros(width), []
    for number, row in enumerate(u):
        new = np.zeros(width)
        for e in range(width):
            j, c = divmod(e, width // n)
            block = row[j * (width // n) : (j + 1) * (width // n)]
            r, i = (
                sigmoid(float(block @ W[f"W_{gate}"][j][:, c]) + W[f"b_{gate}"][j, c])
                for gate in "RI"
            )
            a = math.exp(-8 * r * math.log(1 + math.exp(W["Lambda"][e])))
            first = number == 0
            new[e] = i * row[e] if first else a * h[e] + math.sqrt(1 - a * a) * i * row[e]
        h = new
        rows.append(h)
    return np.array(rows)


def block(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """W_out (h * gelu(W_Z x)), gelu by tanh, h of the convolved rows."""
    mapped = x @ W["W_X"] + W["b_X"]
    u = np.array([taps(mapped, i, W["w"]) + W["b_w"] for i in range(len(x))])
    z = x @ W["W_Z"] + W["b_Z"]
    gelu = z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    found: Array = (unit(u, W, sizes["n"]) * gelu) @ W["W_out"] + W["b_out"]
    return found


def core(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The unit between two maps."""
    found: Array = unit(x @ W["W_X"], W, sizes["n"]) @ W["W_out"]
    return found


@by_sizes(LFM2_SIZES)
def test_lfm2_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("lfm2", sizes, short, ROUNDING)
    equals_the_paper("lfm2+bias", sizes, short, ROUNDING)


@by_sizes(UNIT_SIZES)
def test_the_rg_lru_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("rg-lru", sizes, block, ROUNDING)
    equals_the_paper("rg-lru+core", sizes, core, ROUNDING)


def test_blocks_of_another_width_equal_the_paper() -> None:
    sizes = {"l": 3, "d": 3, "n": 2, "h": 4, "k": 2}
    equals_the_paper(f"rg-lru{WIDER}", sizes, block, ROUNDING)


def test_gradients_pass_through_gated_recurrences() -> None:
    for name in ("lfm2", "rg-lru", "rg-lru+core"):
        for implementation in registry.implementations(name):
            assert gradients_pass(name, implementation, {"l": 3, "d": 2, "n": 1, "k": 2})


# --------------------------------------------------------------------------------------------------
# Operations of one token, after at least k earlier ones. A sum of R terms is R - 1 additions.
# --------------------------------------------------------------------------------------------------


def linear(a: int, b: int, *, bias: bool = False) -> Counter[str]:
    return Counter(mul=a * b, add=b * (a - 1 + bias))


def times(counts: Counter[str], number: int) -> Counter[str]:
    return Counter({name: number * count for name, count in counts.items()})


SIGMOID = Counter(exp=1, add=1, div=1)
CHANNEL = Counter(mul=5, add=4, div=2, exp=4, sqrt=1)
"""Of the RG-LRU, the values inside both sigmoids given: two sigmoids; r times -8 softplus(Lambda),
an exponential; twice that, an exponential, 1 minus it, a root; i u, times the root; a h, an
addition."""


@pytest.mark.parametrize(("d", "k"), [(6, 3), (10, 4)])
def test_a_token_of_lfm2_takes_these_operations(d: int, k: int) -> None:
    expected = times(linear(d, d), 4) + Counter(mul=(k + 2) * d, add=(k - 1) * d)
    at = {"l": 9, "t": 9, "d": d, "k": k}
    assert operations("lfm2", at, phase="inference") == expected
    assert operations("lfm2+bias", at, phase="inference") == expected + Counter(add=5 * d)


@pytest.mark.parametrize(("d", "n", "h", "k"), [(6, 2, 3, 4), (10, 3, 4, 2)])
def test_a_token_of_the_rg_lru_takes_these_operations(d: int, n: int, h: int, k: int) -> None:
    """The recurrence alone; then with maps and biases, convolution, gelu (6 mul, 2 add, tanh) and
    its product."""
    width, at = n * h, {"l": 9, "t": 9, "d": d, "n": n}
    gates = times(linear(h, h, bias=True), 2 * n)
    assert CHANNEL - times(SIGMOID, 2) == Counter(mul=5, add=2, exp=2, sqrt=1)
    alone = linear(d, width) + gates + times(CHANNEL, width) + linear(width, d)
    assert operations(f"rg-lru+core{{h={h}}}", at, phase="inference") == alone
    whole = linear(d, width, bias=True) + linear(d, width, bias=True)
    whole += Counter(mul=k * width, add=k * width) + gates + times(CHANNEL, width)
    whole += Counter(mul=7 * width, add=2 * width, tanh=width) + linear(width, d, bias=True)
    assert operations(f"rg-lru{{h={h}}}", at | {"k": k}, phase="inference") == whole


# --------------------------------------------------------------------------------------------------
# Parameters and state
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "k"), [(2048, 3), (6, 7)])
def test_parameters_and_state_of_lfm2(d: int, k: int) -> None:
    """4d^2 + k d; the last k-1 rows of B u."""
    mixer = cm.mixer(f"lfm2{{k={k}}}")
    assert cm.parameters(mixer).at(d=d) == 4 * d * d + k * d
    for t in (1, 2, 30):
        assert cm.state(mixer).at(d=d, l=30, t=t) == min(t, k - 1) * d


@pytest.mark.parametrize(("name", "d"), [("rg-lru{n=10,k=4}", 2560), ("rg-lru{n=3,h=5,k=2}", 4)])
def test_parameters_and_state_of_the_rg_lru(name: str, d: int) -> None:
    """2(dW + W) + kW + W + 2(W^2/n + W) + W + Wd + d; W, and k-1 rows of it."""
    given = braces(name)
    n, k = given["n"], given["k"]
    W = n * given.get("h", d // n)
    expected = 2 * (d * W + W) + k * W + W + 2 * (W * W // n + W) + W + W * d + d
    mixer = cm.mixer(name)
    assert cm.parameters(mixer).at(d=d) == expected
    for t in (1, 2, 30):
        assert cm.state(mixer).at(d=d, l=30, t=t) == W + min(t, k - 1) * W


def test_parameters_of_the_shipped_layers() -> None:
    """RecurrentGemma's block and LFM2's convolution of 2,048 channels, 3 taps."""
    assert cm.parameters(cm.mixer("rg-lru{n=10,k=4}")).at(d=2560) == 20_999_680
    assert cm.parameters(cm.mixer("lfm2{k=3}")).at(d=2048) == 4 * 2048**2 + 3 * 2048


def test_nothing_of_gated_recurrences_is_left_unexplained() -> None:
    everything_is_explained("lfm2", {"b": 2, "l": 3, "d": 2, "k": 2})
    everything_is_explained("rg-lru", {"b": 2, "l": 3, "d": 4, "n": 2, "k": 2})
    everything_is_explained("rg-lru+core", {"b": 2, "l": 3, "d": 4, "n": 2})
