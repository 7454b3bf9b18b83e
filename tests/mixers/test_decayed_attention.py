"""Are RetNet, GLA and Lightning attention what their papers and shipped layers compute?

Values are computed here row by row from the papers: Sun et al. 2023 (arXiv 2307.08621), Yang et al.
2023 (arXiv 2312.06635), and MiniMax 2025 (arXiv 2501.08313), with the choices of the shipped layers
(flash-linear-attention; transformers). Operations of one token are written as formulas. Tests in
tests/references compare with the shipped code itself.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.language.options import split
from profiler.modules import build, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    modules_of,
    operations,
)

NAMES = ("retnet", "gla", "lightning", "retnet+core", "gla+core", "lightning+core")
ROUNDING = 1e-11
SIZES: list[Sizes] = [
    {"l": 7, "d": 8, "n": 2, "v": 2, "r": 2, "C": 3},
    {"l": 4, "d": 18, "n": 3, "v": 3, "r": 4, "C": 5},
    {"l": 1, "d": 2, "n": 1, "v": 1, "r": 1, "C": 1},
]
"""Chunks that end within the sequence, and a chunk longer than the sequence."""

each_name = pytest.mark.parametrize("name", NAMES)


def sized(name: str, sizes: Sizes) -> Sizes:
    """The sizes that a mixer has."""
    return {letter: value for letter, value in sizes.items() if letter in cm.mixer(name).letters}


# --------------------------------------------------------------------------------------------------
# Values
# --------------------------------------------------------------------------------------------------


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def silu(z: Array) -> Array:
    return z * sigmoid(z)


def rms(row: Array, gain: Array, eps: float) -> Array:
    return np.array([v / math.sqrt(np.mean(row**2) + eps) for v in row]) * gain


def rotated(row: Array, place: int) -> Array:
    """RoPE: channels p and p + K/2, as a complex number, turn by place 10000^(-2p/K), p from 0."""
    half = len(row) // 2
    turned = np.empty_like(row)
    for p in range(half):
        z = (row[p] + 1j * row[half + p]) * np.exp(1j * place * 10_000 ** (-2 * p / len(row)))
        turned[p], turned[half + p] = z.real, z.imag
    return turned


def carried(q: Array, k: Array, v: Array, decay: Array) -> Array:
    """S = decay S + k v^T and o = q S, row by row; decay (l, K)."""
    S = np.zeros((k.shape[1], v.shape[1]))
    rows = []
    for i in range(len(q)):
        S = decay[i][:, None] * S + np.outer(k[i], v[i])
        rows.append(q[i] @ S)
    return np.array(rows)


def columns(W: Array, j: int, n: int) -> Array:
    width = W.shape[-1] // n
    return W[..., j * width : (j + 1) * width]


def retention(x: Array, W: Arrays, sizes: Sizes, whole: bool) -> Array:
    """Section 2.1 with the rotation, section 2.2: gamma = 1 - 2^(-5-j), j from 0."""
    n, heads = sizes["n"], []
    for j in range(n):
        q, k, v = (x @ columns(W[f"W_{name}"], j, n) for name in "QKV")
        if whole:
            q, k = (np.array([rotated(row, i) for i, row in enumerate(rows)]) for rows in (q, k))
        decay = np.full(k.shape, 1 - 2.0 ** (-5 - j))
        o = carried(q / math.sqrt(q.shape[1]), k, v, decay)
        if whole:
            gate = silu(x @ columns(W["W_G"], j, n))
            o = np.array([rms(row, W["gain"], 1e-5) for row in o]) * gate
        heads.append(o)
    return np.concatenate(heads, axis=1) @ W["W_out"]


def gated(x: Array, W: Arrays, sizes: Sizes, whole: bool) -> Array:
    """Sections 4.1 and 4.4: alpha = sigmoid(x W_1 W_2 + b)^(1/16)."""
    n, heads = sizes["n"], []
    for j in range(n):
        q, k, v = (x @ columns(W[f"W_{name}"], j, n) for name in "QKV")
        alpha = sigmoid(x @ W["W_1"] @ columns(W["W_2"], j, n) + columns(W["b_2"], j, n))
        o = carried(q / math.sqrt(q.shape[1]), k, v, alpha ** (1 / 16))
        if whole:
            gate = silu(x @ columns(W["W_G"], j, n))
            o = np.array([rms(row, W["gain"], 1e-5) for row in o]) * gate
        heads.append(o)
    return np.concatenate(heads, axis=1) @ W["W_out"]


def lightning(x: Array, W: Arrays, sizes: Sizes, whole: bool) -> Array:
    """The slope of head j, from 1, in the first of many layers: 2^(-8j/n) (1 + 1e-5)."""
    n, heads = sizes["n"], []
    for j in range(n):
        q, k, v = (x @ columns(W[f"W_{name}"], j, n) for name in "QKV")
        if whole:
            q, k, v = silu(q), silu(k), silu(v)
        slope = 2 ** (-8 * (j + 1) / n) * (1 + 1e-5)
        heads.append(carried(q, k, v, np.full(k.shape, math.exp(-slope))))
    o = np.concatenate(heads, axis=1)
    if whole:
        o = np.array([rms(row, W["gain"], 1e-6) for row in o]) * sigmoid(x @ W["W_G"])
    return o @ W["W_out"]


PAPERS = {"retnet": retention, "gla": gated, "lightning": lightning}


@each_name
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_are_those_of_the_papers(name: str, sizes: Sizes) -> None:
    """Every form and every module, whole and token by token."""
    base, options = split(name)

    def paper(x: Array, W: Arrays, at: Sizes) -> Array:
        return PAPERS[base](x, W, at, not options)

    equals_the_paper(name, sizes, paper, ROUNDING, beyond=0)


# --------------------------------------------------------------------------------------------------
# Operations of one token; a sum of R terms takes R - 1 additions
# --------------------------------------------------------------------------------------------------


def maps(*shapes: tuple[int, int]) -> Counter[str]:
    """Linear maps (in, out) of one row."""
    return sum(
        (Counter(mul=a * b, add=b * (a - 1)) for a, b in shapes),
        Counter(),
    )


def heads(n: int, **done: int) -> Counter[str]:
    return Counter({name: n * many for name, many in done.items()})


def widths(name: str, at: Sizes) -> tuple[int, int, int, int]:
    """d, n, and the widths K and V of a head."""
    d, n = at["d"], at["n"]
    h = d // n
    K, V = {"retnet": (h, at["v"] * h), "gla": (h // at["v"], h), "lightning": (h, h)}[
        split(name)[0]
    ]
    return d, n, K, V


def outside(name: str, at: Sizes) -> Counter[str]:
    """What one token of the core takes outside of the recurrence: maps, and the logarithm of GLA's
    decay, which is log sigmoid(.)/16 of a map with a bias."""
    d, n, K, V = widths(name, at)
    done = maps((d, n * K), (d, n * K), (d, n * V), (n * V, d))
    if split(name)[0] == "gla":
        r = at["r"]
        logarithm = heads(n, add=2 * K, exp=K, log=K, div=K)  # + b, 1 + e^-u, log, over 16
        done += maps((d, r), (r, n * K)) + logarithm
    return done


def recurrence(name: str, at: Sizes) -> Counter[str]:
    """A later token's recurrence."""
    _, n, K, V = widths(name, at)
    of_base = {
        "retnet": {"mul": 3 * K * V + K, "add": 2 * K * V - V},
        "gla": {"mul": 3 * K * V + K, "add": 2 * K * V - V, "exp": K},
        "lightning": {"mul": 3 * K * V, "add": 2 * K * V - V},
    }
    return heads(n, **of_base[split(name)[0]])


def around(name: str, at: Sizes) -> Counter[str]:
    """What the whole layer has besides."""
    d, n, K, V = widths(name, at)
    m = n * V
    done = maps((d, m)) + Counter(mul=m)  # the gate, and its product
    silu_, sigmoid_ = {"exp": 1, "add": 1, "div": 1, "mul": 1}, {"exp": 1, "add": 1, "div": 1}
    rows, row = (1, m) if split(name)[0] == "lightning" else (n, V)
    norm = {"mul": 2 * row, "add": row, "div": 1 + row, "sqrt": 1}
    done += heads(rows, **norm)
    if split(name)[0] == "retnet":
        done += heads(2 * n, mul=2 * K, add=K)  # queries and keys are rotated
    if split(name)[0] == "lightning":
        return done + heads(m, **sigmoid_) + heads(3 * m, **silu_)
    return done + heads(m, **silu_)


WIDE: list[Sizes] = [SIZES[0], {"l": 1, "d": 24, "n": 3, "v": 4, "r": 4, "C": 4}]


@each_name
@pytest.mark.parametrize("sizes", WIDE, ids=str)
def test_operations_of_a_token_are_those_of_the_formulas(name: str, sizes: Sizes) -> None:
    expected = outside(name, sizes) + recurrence(name, sizes)
    if not split(name)[1]:
        expected += around(name, sizes)
    for t in (2, 30):
        at = {**sized(name, sizes), "t": t}
        assert operations(name, at, phase="inference") == expected


def in_pairs(name: str, at: Sizes, t: int) -> Counter[str]:
    """Token t by scores of all t keys: a decay for each score, or B, q B and k/B of the token."""
    _, n, K, V = widths(name, at)
    done = Counter(mul=t * K + t * V, add=t * (K - 1) + (t - 1) * V)
    if split(name)[0] == "gla":
        done += Counter(add=K * (t > 1), exp=K, mul=2 * K, div=K)
    else:
        done += Counter(mul=t + K * (split(name)[0] == "retnet"))
    return +heads(n, **done)


def in_chunks(name: str, at: Sizes, t: int) -> Counter[str]:
    """Token t within its chunk, what it reads of S, and S at the end of the chunk. GLA reads S by
    the queries times B that the pairs have, and sums the e logarithms of the chunk so far."""
    _, n, K, V = widths(name, at)
    C, earlier = at["C"], (t - 1) // at["C"]
    e, gla = t - C * earlier, split(name)[0] == "gla"
    done = Counter({k: many // n for k, many in in_pairs(name, at, e).items()})
    done += Counter(add=K * (e - 1 - (e > 1)) * gla)
    if earlier:
        done += Counter(mul=K * V + K * (not gla), add=K * V)  # q gamma^e, q S, and its sum
    if e == C:
        done += Counter(mul=C * K + C * K * V, add=(C - 1) * K * V)  # keys up to the end, k v^T
        done += Counter(mul=K * V, add=K * V) if earlier else Counter()
    return +heads(n, **done)


@pytest.mark.parametrize("name", NAMES[3:])
def test_operations_of_a_token_by_pairs_and_in_chunks(name: str) -> None:
    for t in (1, 2, 3, 4, 6, 7, 31):
        at = {**sized(name, SIZES[0]), "t": t}
        for form, token in (("parallel", in_pairs), ("chunked", in_chunks)):
            expected = outside(name, SIZES[0]) + token(name, SIZES[0], t)
            assert operations(name, at, phase="inference", form=form) == expected, (form, t)


# --------------------------------------------------------------------------------------------------
# Parameters and state
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "d", "expected"),
    [
        ("retnet{n=8,h=128,v=2}", 1024, 8_388_864),
        ("gla{n=4,h=256,v=2,r=16}", 1024, 4_219_648),
        ("lightning{n=64,h=128}", 6144, 5 * 6144 * 8192 + 8192),
    ],
)
def test_parameters_are_those_of_the_shipped_layers(name: str, d: int, expected: int) -> None:
    """fla's MultiScaleRetention and GatedLinearAttention by default, and a layer of
    MiniMax-Text-01."""
    assert cm.parameters(cm.mixer(name)).at(d=d) == expected


def test_parameters_of_the_default_widths() -> None:
    """8d^2 + 2d/n; 4d^2 + 16d + 16K n + K n + d/n where all keys are d/2 wide; 5d^2 + d."""
    for d, n in ((128, 8), (96, 4)):
        assert cm.parameters(cm.mixer("retnet")).at(d=d, n=n, v=2) == 8 * d**2 + 2 * d // n
        assert cm.parameters(cm.mixer("lightning")).at(d=d, n=n) == 5 * d**2 + d
        keys = d // 2
        gla = 4 * d**2 + 16 * d + 16 * keys + keys + d // n
        assert cm.parameters(cm.mixer("gla")).at(d=d, n=n, v=2, r=16) == gla


@each_name
def test_the_state_is_one_matrix_for_each_head(name: str) -> None:
    """n K V numbers at any position; by pairs the keys and values, and GLA's sum of logarithms."""
    _, n, K, V = widths(name, SIZES[0])
    sizes, gla = sized(name, SIZES[0]), split(name)[0] == "gla"
    for t in (1, 2, 90):
        assert cm.state(cm.mixer(name)).at(**sizes, t=t) == n * K * V
        pairs = cm.state(cm.mixer(name), "parallel").at(**sizes, t=t)
        assert pairs == n * ((K + V) * t + K * gla)


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_state_of_chunks_is_a_sawtooth(name: str) -> None:
    """S once a chunk of 3 is complete; keys and values of the current one, and GLA's logarithms."""
    _, n, K, V = widths(name, SIZES[0])
    held = cm.state(cm.mixer(name), "chunked")
    for t in range(1, 10):
        expected = n * (K * V * (t >= 3) + (K + V + K * (name == "gla")) * (t % 3))
        assert held.at(**sized(name, SIZES[0]), t=t) == expected


# --------------------------------------------------------------------------------------------------
# Modules
# --------------------------------------------------------------------------------------------------

SMALL: Sizes = {"l": 4, "d": 4, "n": 2, "v": 1, "r": 1, "C": 2}


@pytest.mark.grid(19)
@pytest.mark.parametrize(("name", "implementation"), modules_of(NAMES[:3]))
def test_a_training_step_is_explained(name: str, implementation: str) -> None:
    everything_is_explained(name, {**sized(name, SMALL), "b": 2}, implementation)


@pytest.mark.parametrize("name", NAMES[:3])
def test_gradients_of_the_modules_are_those_of_differences(name: str) -> None:
    for implementation in registry.implementations(name):
        assert gradients_pass(name, implementation, sized(name, SMALL)), implementation


def test_wrong_sizes_are_refused() -> None:
    for name, form, sizes, said in (
        ("retnet", "recurrent", {"n": 2, "v": 1}, "the width of a head is 3 and must be even"),
        ("gla", "recurrent", {"n": 2, "v": 1, "r": 0}, "size r must be a positive integer"),
        ("gla", "recurrent", {"n": 2, "v": 2, "r": 1}, "is 3 and must be divisible by v = 2"),
        ("gla", "chunked", {"n": 2, "v": 1, "r": 1}, "size C must be a positive integer"),
        ("lightning", "recurrent", {"n": 4}, "d must be divisible by n"),
        ("lightning", "chunked", {"n": 2}, "size C must be a positive integer"),
    ):
        described = registry.implementations(name)[form]
        with pytest.raises(ValueError, match=said):
            build(described, {"d": 6, "l": 3, **sizes}, device="cpu", dtype=torch.float64, seed=0)
