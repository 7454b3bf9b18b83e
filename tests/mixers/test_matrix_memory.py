"""Is the mLSTM that of Beck et al. 2024 (arXiv 2405.04517, eqs. 19 to 27) in the layer of xLSTM 7B
(Beck et al. 2025, arXiv 2503.13427, section 3), and RWKV-7 the time mixing of Peng et al. 2025
(arXiv 2503.14456, section 4)?

Values and operations are taken row by row and head by head; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.language.options import braces, joined
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    module_of,
    modules_of,
    operations,
)
from tests.small import by_sizes

ROUNDING = 1e-10
"""Exponentials of at most 30, quotients and sums of at most some ten terms, in float64."""

MLSTM_SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "h": 3, "K": 2, "C": 2},
    {"l": 3, "d": 2, "n": 1, "h": 2, "K": 3, "C": 4},
    {"l": 1, "d": 1, "n": 1, "h": 1, "K": 1, "C": 1},
]
"""Chunks of C rows, the last of which may be short, and a chunk longer than the sequence."""
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
    sizes = {"l": 3, "d": 3, "n": 2, "h": 4, "K": 3, "C": 2}
    equals_the_paper(f"mlstm{WIDER}", sizes, layer, ROUNDING)


def test_gradients_pass_through_the_mlstm() -> None:
    for name, implementation in modules_of(("mlstm", "mlstm+core")):
        sizes = {"l": 3, "d": 2, "n": 1, "K": 2, "C": 2}
        assert gradients_pass(name, implementation, sizes)


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
    a logarithm, two maxima, and |q n|, which the shipped step takes by `abs`. PRODUCTION.md's 3
    leaves out the last."""
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


def cell_in_chunks(K: int, V: int, C: int, t: int) -> Counter[str]:
    """Row e of its chunk in one head, its gates given: a sum of e forget gates, e exponents and the
    largest; e products of queries and keys, scaled and gated, which weigh the values. A later chunk
    reads C and n of the chunk before. At the end of a chunk, C gated keys and the values are added
    up, and join what is kept of the chunk before."""
    earlier = (t - 1) // C
    e = t - C * earlier
    done = Counter(exp=1, add=1, log=1) + Counter(add=e - 1 + 1 + e, compare=e - 1 + 1)
    done += Counter(mul=e * K + e + e + e * V, exp=e)
    done += Counter(add=e * (K - 1) + 2 * e + (e - 1) * V + e - 1)
    done += Counter(compare=2, exp=1, add=1, div=V)
    if earlier:
        done += Counter(add=1 + 2, exp=1, mul=3 * K + K * V)
        done += Counter(add=K + K * V)
    if e == C:
        done += Counter(compare=1, add=2 * C, exp=C, mul=C * K + C * K * V)
        done += Counter(add=(C - 1) * (K * V + K))
        if earlier:
            done += Counter(add=1 + 2 + K * V + K, exp=1, mul=K * V + K)
    return +done


@pytest.mark.parametrize("sizes", MLSTM_SIZES, ids=str)
def test_a_token_of_the_mlstm_in_chunks_takes_these_operations(sizes: Sizes) -> None:
    d, n, h, K, C = (sizes[letter] for letter in ("d", "n", "h", "K", "C"))
    maps = times(linear(d, n * K), 2) + linear(d, n * h) + times(linear(d, n), 2)
    for t in (1, 2, 3, 4, 5, 8, 9, 12):
        expected = +(maps + times(cell_in_chunks(K, h, C, t), n) + linear(n * h, d))
        at = {"l": 12, "t": t, "d": d, "n": n, "K": K, "C": C}
        found = operations(
            f"mlstm+core{{h={h}}}", at, phase="inference", form="chunked", convention="scale=mul"
        )
        assert found == expected, t


# --------------------------------------------------------------------------------------------------
# Parameters and state
# --------------------------------------------------------------------------------------------------


def test_the_state_of_chunks_is_a_sawtooth() -> None:
    """n(KV + K + 1) once a chunk of 3 is complete; K + V and two numbers of the gates of each row
    of the current one."""
    held, n, K, h = cm.state(cm.mixer("mlstm+core"), "chunked"), 2, 5, 3
    for t in range(1, 10):
        expected = n * ((K * h + K + 1) * (t >= 3) + (K + h + 2) * (t % 3))
        assert held.at(d=n * h, n=n, K=K, C=3, t=t) == expected


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


EXPLAINED = [
    (name, implementation, C)
    for name, implementation in modules_of(("mlstm", "mlstm+core"))
    for C in ((3, 1) if implementation == "chunked" else (1,))
]


@pytest.mark.grid(9)
@pytest.mark.parametrize(("name", "implementation", "C"), EXPLAINED)
def test_nothing_of_the_mlstm_is_left_unexplained(name: str, implementation: str, C: int) -> None:
    sizes = {"b": 2, "l": 2, "d": 4, "n": 2, "K": 1, "C": C}
    everything_is_explained(name, sizes, implementation)


# --------------------------------------------------------------------------------------------------
# RWKV-7
# --------------------------------------------------------------------------------------------------

RWKV_SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "h": 3, "A": 2, "G": 5, "M": 4, "C": 2},
    {"l": 3, "d": 2, "n": 1, "h": 2, "A": 3, "G": 2, "M": 1, "C": 4},
    {"l": 1, "d": 1, "n": 1, "h": 1, "A": 1, "G": 1, "M": 1, "C": 1},
    {"l": 7, "d": 2, "n": 1, "h": 2, "A": 1, "G": 1, "M": 1, "C": 3},
    {"l": 3, "d": 2, "n": 1, "h": 2, "A": 1, "G": 1, "M": 1, "C": 1},
]


def recurrence(r: Array, w: Array, k: Array, v: Array, kappa: Array, alpha: Array) -> Array:
    """S = S diag(w) - (S kappa)(kappa alpha)^T + v k^T, values by keys, of one head; S r."""
    S, rows = np.zeros((v.shape[1], k.shape[1])), []
    for t in range(len(r)):
        removed = np.outer(S @ kappa[t], kappa[t] * alpha[t])
        S = S * w[t] - removed + np.outer(v[t], k[t])
        rows.append(S @ r[t])
    return np.array(rows)


def unit_length(rows: Array) -> Array:
    found: Array = rows / np.sqrt((rows**2).sum(-1, keepdims=True))
    return found


def decay(z: Array) -> Array:
    found: Array = np.exp(-math.exp(-0.5) * sigmoid(z))
    return found


def time_mixing(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The layer, head by head; v_first is read where there is one."""
    n, h = sizes["n"], W["W_r"].shape[1] // sizes["n"]
    before = np.concatenate([np.zeros((1, x.shape[1])), x[:-1]])
    mixed = {name: x + (before - x) * W[f"mu_{name}"] for name in "rwkvag"}
    r, k, v = (mixed[name] @ W[f"W_{name}"] for name in "rkv")
    w = decay(np.tanh(mixed["w"] @ W["A_w"]) @ W["B_w"] + W["b_w"])
    alpha = sigmoid(mixed["a"] @ W["A_a"] @ W["B_a"] + W["b_a"])
    gate = sigmoid(mixed["g"] @ W["A_g"]) @ W["B_g"]
    if "v_first" in W:
        v = v + (W["v_first"] - v) * sigmoid(mixed["v"] @ W["A_v"] @ W["B_v"] + W["b_v"])
    kappa, k = k * W["k_k"], k * (1 + (alpha - 1) * W["k_a"])
    rows = np.zeros_like(v)
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        o = recurrence(
            r[:, own], w[:, own], k[:, own], v[:, own], unit_length(kappa[:, own]), alpha[:, own]
        )
        centred = o - o.mean(1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 64e-5)
        bonus = (r[:, own] * k[:, own] * W["r_k"][j]).sum(1, keepdims=True) * v[:, own]
        rows[:, own] = normed * W["gain"][own] + W["bias"][own] + bonus
    found: Array = (rows * gate) @ W["W_out"]
    return found


def of_maps(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The recurrence between linear maps."""
    n, h = sizes["n"], W["W_r"].shape[1] // sizes["n"]
    r, w, k, v, a = ((x @ W[f"W_{name}"]).reshape(len(x), n, h) for name in "rwkva")
    heads = [
        recurrence(
            r[:, j], decay(w[:, j]), k[:, j], v[:, j], unit_length(k[:, j]), sigmoid(a[:, j])
        )
        for j in range(n)
    ]
    found: Array = np.concatenate(heads, axis=1) @ W["W_out"]
    return found


@by_sizes(RWKV_SIZES)
def test_rwkv_7_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("rwkv-7", sizes, time_mixing, ROUNDING)
    equals_the_paper("rwkv-7+core", sizes, of_maps, ROUNDING)


def test_heads_of_another_width_equal_the_paper() -> None:
    sizes = {"l": 3, "d": 3, "n": 2, "h": 4, "A": 2, "G": 1, "C": 2}
    equals_the_paper(f"rwkv-7{WIDER}", sizes, time_mixing, ROUNDING)


@by_sizes(RWKV_SIZES)
def test_a_later_layer_of_rwkv_7_equals_the_paper(sizes: Sizes) -> None:
    """By the equations, and by the modules as a whole and token by token."""
    sizes = {letter: size for letter, size in sizes.items() if letter != "h"}
    arrays = drawn("rwkv-7+later", sizes)
    expected = time_mixing(arrays["x"], arrays, sizes)
    mixer = cm.mixer("rwkv-7+later")
    for form in mixer.forms:
        found = cm.evaluate(mixer, arrays, sizes, form)
        np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
    x, first = (torch.from_numpy(arrays[name])[None] for name in ("x", "v_first"))
    for implementation in ("recurrent", "chunked"):
        module = module_of("rwkv-7+later", implementation, sizes, arrays)
        with torch.no_grad():
            np.testing.assert_allclose(module(x, first)[0], expected, rtol=0, atol=ROUNDING)
        state = module.initial_state(1, None, first)
        rows = [module.step(row, state)[0] for row in x.unbind(1)]
        np.testing.assert_allclose(torch.stack(rows), expected, rtol=0, atol=ROUNDING)


def test_a_later_layer_refuses_values_of_another_shape() -> None:
    sizes = {"l": 3, "d": 4, "n": 2, "A": 1, "G": 1, "M": 1}
    module = module_of("rwkv-7+later", "recurrent", sizes, drawn("rwkv-7+later", sizes))
    x = torch.zeros(1, 3, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"v_first must be \(1, 3, 4\) and is \(1, 2, 4\)"):
        module(x, x[:, :2])
    with pytest.raises(ValueError, match=r"v_first is torch.float32 and the parameters are"):
        module.initial_state(1, 3, x.float())
    state = module.initial_state(1, 3, x[:, :1])
    module.step(x[:, 0], state)
    with pytest.raises(ValueError, match=r"the state began with 1 row of v_first"):
        module.step(x[:, 1], state)


def test_gradients_pass_through_rwkv_7() -> None:
    sizes = {"l": 3, "d": 2, "n": 1, "A": 1, "G": 1, "C": 2}
    for implementation in ("recurrent", "chunked"):
        assert gradients_pass("rwkv-7", implementation, sizes)


def of_rwkv_7(h: int) -> Counter[str]:
    """One head, its decays before the exponential, r, k, v, a and b given: e^w S, a^T S, b times
    it, k v^T, their sums, and r S."""
    return Counter(mul=5 * h * h, add=4 * h * h - 2 * h, exp=h)


@pytest.mark.parametrize(("d", "n", "h", "A", "G", "M"), [(6, 2, 3, 4, 5, 3), (10, 3, 4, 2, 1, 2)])
def test_a_token_of_rwkv_7_takes_these_operations(
    d: int, n: int, h: int, A: int, G: int, M: int
) -> None:
    """The recurrence with maps, decay, alpha and kappa; then the layer; then a later one."""
    sizes = {"l": 9, "t": 9, "d": d, "n": n}
    width, logistic = n * h, Counter(exp=1, add=1, div=1)
    kappa = Counter(mul=h, add=h - 1, sqrt=1, compare=1, div=h)
    gates = times(logistic + Counter(mul=1) + logistic + Counter(mul=1), width) + times(kappa, n)
    own = times(of_rwkv_7(h), n) + gates + linear(width, d)
    alone = times(linear(d, width), 5) + own
    assert operations(f"rwkv-7+core{{h={h}}}", sizes, phase="inference") == alone
    norm = Counter(mul=2 * h, add=4 * h - 1, div=h + 2, sqrt=1)
    whole = times(linear(d, width), 3) + own + Counter(add=d) + times(Counter(mul=d, add=d), 6)
    whole += linear(d, A) + Counter(tanh=A) + linear(A, width) + Counter(add=width)
    whole += linear(d, A) + linear(A, width) + Counter(add=width)
    whole += linear(d, G) + times(logistic, G) + linear(G, width)
    whole += Counter(mul=(1 + 2 + 1 + 1) * width, add=(2 + 1) * width) + times(norm, n)
    whole += times(Counter(mul=2 * h, add=h - 1), n)
    ranks = {"A": A, "G": G}
    assert operations(f"rwkv-7{{h={h}}}", sizes | ranks, phase="inference") == whole
    mixed = linear(d, M) + linear(M, width) + Counter(add=width) + times(logistic, width)
    later = whole + mixed + Counter(mul=width, add=2 * width)
    given = sizes | ranks | {"M": M}
    assert operations(f"rwkv-7+later{{h={h}}}", given, phase="inference") == later


def of_rwkv_7_in_chunks(h: int, C: int, t: int) -> Counter[str]:
    """Row e of its chunk in one head, with r, k, v and the maps of decay and alpha given: the sum
    of logarithms and its exponential, r times and k over it. All rows but the first of the sequence
    remove something: kappa, alpha and their product, of which the e - 1 rows before are weighed;
    in a later chunk S of the chunk before is read too. Last, what is read of the e rows."""
    earlier = (t - 1) // C
    e = t - C * earlier
    others, removed = e - 1 if earlier else e - 2, e if earlier else e - 1
    logistic = Counter(exp=1, add=1, div=1)

    def rows(number: int, width: int) -> Counter[str]:
        """Products of a row of `width` with some rows, and the sum of rows that they weigh."""
        products = Counter(mul=number * width, add=number * (width - 1))
        return products + Counter(mul=number * h, add=max(number - 1, 0) * h)

    done = times(logistic + Counter(mul=1, exp=1) + Counter(mul=1, div=1), h)
    done += Counter(add=h * (e > 1))
    if t > 1:
        done += Counter(mul=h, add=h - 1, sqrt=1, compare=1, div=h) + times(logistic, h)
        done += Counter(mul=h + h * (e > 1), div=h)
    if others > 0:
        done += Counter(mul=others * h, add=others * (h - 1))
    if e > 1:
        done += rows(e - 1, h)
    if e > 2:
        done += Counter(mul=(e - 2) * h, add=(e - 3) * h + h)
    if earlier:
        done += Counter(mul=others * h, add=others * h)
        done += Counter(mul=h * h, add=h * (h - 1) + h * (e > 1))
        done += Counter(mul=h * h, add=h * (h - 1) + h)
    done += rows(e, h)
    if removed:
        done += rows(removed, h) + Counter(add=h)
    if e == C:
        done += Counter(mul=C * h + C * h * h, add=(C - 1) * h * h)
        done += Counter(mul=removed * (h + h * h), add=removed * h * h)
        if earlier:
            done += Counter(mul=h * h, add=h * h)
    return +done


@pytest.mark.parametrize("sizes", [{"n": 2, "h": 3, "C": 4}, {"n": 1, "h": 2, "C": 1}], ids=str)
def test_a_token_of_rwkv_7_in_chunks_takes_these_operations(sizes: Sizes) -> None:
    n, h, C = (sizes[letter] for letter in "nhC")
    d = 5
    for t in (1, 2, 3, 4, 5, 6, 7, 8, 9):
        maps = 5 if t > 1 else 4
        expected = times(linear(d, n * h), maps) + linear(n * h, d)
        expected += times(of_rwkv_7_in_chunks(h, C, t), n)
        at = {"l": 12, "t": t, "d": d, "n": n, "C": C}
        found = operations(f"rwkv-7+core{{h={h}}}", at, phase="inference", form="chunked")
        assert found == +expected, t


@pytest.mark.parametrize(
    ("name", "d"),
    [
        ("rwkv-7+later{n=16,A=64,G=160,M=64}", 1024),
        ("rwkv-7+later{n=3,h=5,A=2,G=4,M=1}", 4),
    ],
)
def test_parameters_and_state_of_rwkv_7(name: str, d: int) -> None:
    """With D = n h: 4dD + 6d + 3D, A(d + D) + D of w and of a, the same with M of v, G(d + D) and
    2D; the first layer has no M. A matrix of each head, and the row before."""
    given = braces(name)
    n, D = given["n"], given["n"] * given.get("h", d // given["n"])
    expected = 4 * d * D + 6 * d + 3 * D + 2 * D + given["G"] * (d + D)
    expected += sum(given[rank] * (d + D) + D for rank in "AAM")
    of_first = {letter: size for letter, size in given.items() if letter != "M"}
    later, first = cm.mixer(name), cm.mixer(joined("rwkv-7", (), of_first))
    assert cm.parameters(later).at(d=d) == expected
    assert cm.parameters(first).at(d=d) == expected - given["M"] * (d + D) - D
    for t in (1, 2, 30):
        for mixer in (later, first):
            assert cm.state(mixer).at(d=d, l=30, t=t) == D * (D // n) + d


def test_parameters_of_a_layer_of_1024_channels() -> None:
    """Ranks 64, 64, 64 and 160."""
    mixer = cm.mixer("rwkv-7+later{n=16,A=64,M=64,G=160}")
    assert cm.parameters(mixer).at(d=1024) == 4_929_536


@pytest.mark.parametrize(
    ("name", "implementation", "sizes"),
    [
        ("rwkv-7", "recurrent", {"b": 2, "l": 2, "d": 4, "n": 2, "A": 1, "G": 3}),
        *(
            pytest.param("rwkv-7+core", "chunked", {"b": 1, "d": 2, "n": 1, "l": l, "C": C},
                         marks=pytest.mark.grid)
            for l, C in ((8, 3), (2, 1), (1, 2))
        ),
    ],
)  # fmt: skip
def test_nothing_of_rwkv_7_is_left_unexplained(
    name: str, implementation: str, sizes: Sizes
) -> None:
    everything_is_explained(name, sizes, implementation)
