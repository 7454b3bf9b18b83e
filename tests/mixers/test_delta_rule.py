"""Are DeltaNet, Gated DeltaNet and KDA those of Yang et al. 2024 (arXiv 2406.06484 and 2412.06464)
and of the Kimi Team 2025 (arXiv 2510.26692), in the layers that ship?

Values are taken in loops over rows, heads and channels, and costs from formulas by hand; nothing is
shared with the package.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.program.conventions import convention
from costmodel.questions.best_size import COSTS, best
from costmodel.questions.evaluate import evaluate_all
from costmodel.questions.question import Case, answers
from profiler.modules import build, registry
from tests.ladders import reconciled
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equals_the_paper,
    gradients_pass,
    operations,
    same,
)

ROUNDING = 1e-11
"""Some dozen roundings in a row, of numbers below 100, in float64."""

NAMES = ("deltanet", "gated-deltanet", "kda")
SIZES: dict[str, list[Sizes]] = {
    "deltanet": [
        {"l": 6, "d": 6, "n": 2, "k": 3, "C": 3},
        {"l": 1, "d": 4, "n": 1, "k": 2, "C": 1},
    ],
    "gated-deltanet": [
        {"l": 6, "d": 3, "n": 4, "g": 2, "K": 2, "V": 3, "k": 3, "C": 2},
        {"l": 3, "d": 2, "n": 3, "g": 1, "K": 3, "V": 2, "k": 5, "C": 1},
    ],
    "kda": [
        {"l": 6, "d": 6, "n": 2, "k": 3, "C": 4},
        {"l": 3, "d": 4, "n": 1, "k": 5, "C": 1},
    ],
}
CASES = [(name, sizes) for name in NAMES for sizes in SIZES[name]]
each_case = pytest.mark.parametrize(("name", "sizes"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
each_name = pytest.mark.parametrize("name", NAMES)


def sigmoid(z: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-z))
    return found


def of_last_rows(rows: Array, taps: Array) -> Array:
    """The sum of the last k rows, each times its tap, then silu; the first tap is the row's own."""
    found = np.zeros_like(rows)
    for i in range(len(rows)):
        for back in range(min(i + 1, len(taps))):
            found[i] += taps[back] * rows[i - back]
    return found * sigmoid(found)


def unit(row: Array) -> Array:
    found: Array = row / math.sqrt((row * row).sum() + 1e-6)
    return found


def paper(
    name: str, core: bool, negative: bool = False, safe: bool = False
) -> Callable[[Array, Arrays, Sizes], Array]:
    """The layer, or its core, as a function of x, the weights and the sizes."""

    def layer(x: Array, W: Arrays, sizes: Sizes) -> Array:
        n = sizes["n"]
        g = sizes.get("g", n)
        K, V = (sizes.get(letter, sizes["d"] // n) for letter in "KV")
        q, k, v = (x @ W[f"W_{one}"] for one in "QKV")
        if not core:
            q, k, v = (of_last_rows(x @ W[f"W_{one}"], W[f"w_{one}"]) for one in "QKV")
        beta = sigmoid(x @ W["W_b"]) * (2 if negative else 1)
        rows = np.zeros((len(x), n * V))
        for head in range(n):
            of, own = head * g // n, slice(head * V, (head + 1) * V)
            S = np.zeros((K, V))
            for i in range(len(x)):
                S = decay(name, x[i], W, head, K, safe)[:, None] * S
                key = unit(k[i, of * K : (of + 1) * K])
                S = S + np.outer(key, beta[i, head] * (v[i, own] - key @ S))
                o = unit(q[i, of * K : (of + 1) * K]) / math.sqrt(K) @ S
                rows[i, own] = o if core else normed(name, o, x[i], W, own)
        found: Array = rows @ W["W_out"]
        return found

    return layer


def decay(name: str, x: Array, W: Arrays, head: int, K: int, safe: bool) -> Array:
    """The factor of each row of S."""
    if name == "deltanet":
        return np.ones(K)
    if name == "gated-deltanet":
        inside = np.full(K, (x @ W["W_a"] + W["dt"])[head])
    else:
        inside = (mapped(x, W, "F") + W["dt"])[head * K : (head + 1) * K]
    rate = math.exp(W["A_log"][head])
    log = -5 * sigmoid(rate * inside) if safe else -rate * np.log(1 + np.exp(inside))
    found: Array = np.exp(log)
    return found


def normed(name: str, o: Array, x: Array, W: Arrays, own: slice) -> Array:
    """The RMS norm of o, times the gate."""
    eps = 1e-6 if name == "gated-deltanet" else 1e-5
    found: Array = W["gain"] * o / math.sqrt((o * o).mean() + eps)
    if name == "gated-deltanet":
        z = (x @ W["W_z"])[own]
        return found * z * sigmoid(z)
    return found if name == "deltanet" else found * sigmoid(mapped(x, W, "G")[own])


def mapped(x: Array, W: Arrays, name: str) -> Array:
    """x times one matrix, or two."""
    found: Array = x @ W[f"W_{name}"]
    return found @ W[f"U_{name}"] if f"U_{name}" in W else found


@pytest.mark.parametrize("core", [False, True], ids=["layer", "core"])
@each_case
def test_delta_rules_equal_the_papers(name: str, sizes: Sizes, core: bool) -> None:
    equals_the_paper(name + "+core" * core, sizes, paper(name, core), ROUNDING, beyond=1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deltanet", "negative"),
        ("gated-deltanet", "core+negative"),
        ("kda", "safe-gate"),
        ("kda", "negative+safe-gate"),
        ("kda", "full-maps"),
        ("kda", "core+safe-gate+full-maps"),
    ],
)
def test_options_are_those_of_layers(name: str, options: str) -> None:
    layer = paper(name, "core" in options, "negative" in options, "safe" in options)
    equals_the_paper(f"{name}+{options}", SIZES[name][0], layer, ROUNDING, beyond=0)


@pytest.mark.grid(3)
@pytest.mark.parametrize("l", [5, 6, 7])
@pytest.mark.parametrize("form", ["chunked-solve", "chunked-rows", "chunked-wy"])
@each_name
def test_each_chunk_has_the_matrices_of_the_papers(name: str, form: str, l: int) -> None:
    """Chunks of 3, the last one a row short, complete, or followed by a row: T = (1 + tril(beta K
    K^T, -1))^-1 diag(beta), U = T V and W = T K in DeltaNet (section 3.2), with the decays since
    the chunk's start, gamma, in the others (Gated DeltaNet, section 3.3; KDA, section 3.1)."""
    sizes = {**SIZES[name][0], "l": l, "C": 3}
    mixer = cm.mixer(f"{name}+core")
    sizes = {letter: sizes[letter] for letter in mixer.letters}
    arrays = drawn(f"{name}+core", sizes)
    held = evaluate_all(mixer, arrays, sizes, form)
    x, width = arrays["x"], (held["W"].shape[-1], held["U"].shape[-1])
    heads = [*np.ndindex(held["U"].shape[:-3])]  # (head,), or (group of queries and keys, head)
    for head, own in enumerate(heads):
        K = x @ arrays["W_K"][:, own[0] * width[0] : (own[0] + 1) * width[0]]
        K = np.array([unit(row) for row in K])
        V = x @ arrays["W_V"][:, head * width[1] : (head + 1) * width[1]]
        beta = sigmoid(x @ arrays["W_b"][:, head])
        factors = [decay(name, row, arrays, head, width[0], False) for row in x]
        S = np.zeros(width)
        for chunk, first in enumerate(range(0, l, 3)):
            rows = slice(first, first + 3)
            gamma, b = np.cumprod(factors[rows], axis=0), beta[rows]
            e, k = len(gamma), K[rows]
            inner = np.tril((b[:, None] * gamma * k) @ (k / gamma).T, -1)
            T = np.linalg.inv(np.eye(e) + inner) * b
            U, W = T @ V[rows], T @ (gamma * k)
            same(held["U"][*own, chunk, :e], U, ROUNDING)
            if chunk:
                same(held["W"][*own, chunk, :e], W, ROUNDING)
            S = gamma[-1][:, None] * S + (gamma[-1] / gamma * k).T @ (U - W @ S)
            if e == 3:
                same(held["S"][*own, chunk], S, ROUNDING)


# --------------------------------------------------------------------------------------------------
# Costs
# --------------------------------------------------------------------------------------------------

Counts = Counter[str]
TOKENS: list[dict[str, int]] = [
    {"l": 9, "t": 9, "d": 12, "n": 4, "g": 2, "K": 3, "V": 5, "k": 4},
    {"l": 7, "t": 6, "d": 10, "n": 6, "g": 6, "K": 7, "V": 2, "k": 3},
]


def sizes_of(name: str, given: dict[str, int]) -> tuple[dict[str, int], int, int, int]:
    """The mixer's sizes, and g, K and V."""
    if name == "gated-deltanet":
        return given, given["g"], given["K"], given["V"]
    n, h = given["n"], given["K"]
    return {**{x: given[x] for x in "ltnk"}, "d": n * h}, n, h, h


def linear(a: int, b: int) -> Counts:
    """A linear map from a to b channels."""
    return Counter(mul=a * b, add=(a - 1) * b)


def times(number: int, **counts: int) -> Counts:
    return Counter({name: number * count for name, count in counts.items()})


def cell(name: str, K: int, V: int) -> Counts:
    """The recurrence of one head at a token after the first: S times e^g, k^T S, v less that, times
    beta, k u^T, added, q S, and q times the scale."""
    decays = {"deltanet": 0, "gated-deltanet": 1, "kda": K}[name]
    kept = K * V if decays else 0
    return Counter(mul=3 * K * V + kept + V + K, add=3 * K * V - V, exp=decays)


def around(name: str, d: int, n: int, g: int, K: int, V: int) -> Counts:
    """Linear maps, l2 norms of q and k, degrees, and logarithms of decays, of one token."""
    found = linear(d, 2 * g * K + n * V + n) + linear(n * V, d)
    found += times(2 * g, mul=K, add=K, sqrt=1, div=K) + times(n, exp=1, add=1, div=1)
    if name == "gated-deltanet":
        found += linear(d, n) + times(n, add=2, exp=1, log=1, mul=1)
    if name == "kda":
        found += linear(d, K) + linear(K, n * K) + times(n * K, add=2, exp=1, log=1, mul=1)
    return found


def outside(name: str, d: int, n: int, g: int, K: int, V: int, k: int) -> Counts:
    """What `core` leaves out: convolutions with silu, the norm of o, and the gate."""
    found = times(2 * g * K + n * V, mul=k + 1, add=k, div=1, exp=1)
    found += times(n, mul=2 * V, add=V, div=V + 1, sqrt=1)
    if name == "gated-deltanet":
        found += linear(d, n * V) + times(n * V, exp=1, add=1, div=1, mul=2)
    if name == "kda":
        found += linear(d, V) + linear(V, n * V) + times(n * V, exp=1, add=1, div=1, mul=1)
    return found


@pytest.mark.parametrize("given", TOKENS, ids=str)
@each_name
def test_one_token_takes_what_the_recurrence_prints(name: str, given: dict[str, int]) -> None:
    """Cell by cell; the scale of q multiplies each channel, which `scale=mul` says. Heads that
    share a query share its scale."""
    sizes, g, K, V = sizes_of(name, given)
    d, n, k = (sizes[letter] for letter in "dnk")
    own = {x: value for x, value in sizes.items() if x != "k"}
    core = operations(f"{name}+core", own, phase="inference", convention="scale=mul")
    cells = Counter({x: n * count for x, count in cell(name, K, V).items()})
    cells["mul"] -= (n - g) * K
    assert Counter(core) == cells + around(name, d, n, g, K, V)
    layer = operations(name, sizes, phase="inference", convention="scale=mul")
    assert Counter(layer) == Counter(core) + outside(name, d, n, g, K, V, k)


@each_name
def test_a_degree_up_to_two_takes_a_product_more(name: str) -> None:
    sizes = SIZES[name][0]
    plain, twice = (operations(each, sizes) for each in (name, f"{name}+negative"))
    more = {each: twice[each] - plain[each] for each in plain if twice[each] != plain[each]}
    assert more == {"mul": sizes["l"] * sizes["n"]}


def test_a_bounded_decay_takes_a_sigmoid_for_a_softplus() -> None:
    """Of each channel 5 operations: times exp(A_log), exp, add, div, times -5; and 4: exp, add,
    log, times -exp(A_log)."""
    sizes = {"d": 6, "n": 2, "k": 3, "l": 9, "t": 7}
    plain, safe = (
        Counter(operations(each, sizes, phase="inference")) for each in ("kda", "kda+safe-gate")
    )
    assert safe - plain == Counter(mul=6, div=6)
    assert plain - safe == Counter(log=6)


def test_one_head_of_gated_deltanet_takes_7_K_V_and_K() -> None:
    """7KV + K operations and one exponential: not 8V^2, 8KV, 6KV + 2K or 5KV, as others print."""
    found = cell("gated-deltanet", 128, 128)
    assert found["mul"] + found["add"] == 7 * 128 * 128 + 128


IN_CHUNKS = ("chunked-solve", "chunked-rows", "chunked-wy")
each_form = pytest.mark.parametrize("form", IN_CHUNKS)


def in_chunks(name: str, form: str, l: int, C: int, K: int, V: int) -> Counts:
    """One head of values over l rows, in chunks of C. Row e of a chunk has the products of its key
    with the e-1 keys before; U, and after the first chunk W, from these; N = U - W S; the products
    of its query with e keys, which weigh e rows of N; and after the first chunk a read of S."""
    by_head, by_channel, found = name == "gated-deltanet", name == "kda", Counts()
    for i in range(l):
        e, before, later = i % C + 1, i % C, i >= C
        columns = V + K * later
        found += Counter(mul=(before + e) * K + e * V, add=(before + e) * (K - 1) + before * V)
        found += Counter(mul=columns + before * columns, add=before * columns)  # beta, U and W
        if form != "chunked-wy":
            found += Counter(mul=before)  # beta times the products
        if form == "chunked-rows":
            entries = before * (before - 1) // 2  # those of M between a row and a column
            found += Counter(mul=entries, add=entries)
        if later:
            found += Counter(mul=2 * K * V, add=2 * K * V)
        if name != "deltanet" and before:
            found += Counter(add=1 if by_head else K)  # the sum of the logarithms
        if by_head:
            found += Counter(exp=e + later, add=e, mul=before + e + 2 * K * later)
        if by_channel:
            found += Counter(exp=K, div=K, mul=K + K * (i > 0))
        if e == C:  # S
            found += Counter(mul=C * K * V, add=(C - 1) * K * V + K * V * later)
            if name != "deltanet":
                found += Counter(mul=C * K + K * V * later)
            if by_head:
                found += Counter(exp=C, add=C)
    return found


@pytest.mark.parametrize("C", [1, 3])
@each_form
@each_name
def test_chunks_take_what_a_loop_over_rows_counts(name: str, form: str, C: int) -> None:
    """A sequence that ends within a chunk, and the token that ends a chunk, or begins one."""
    sizes, g, K, V = sizes_of(name, TOKENS[0])
    sizes = {x: value for x, value in {**sizes, "l": 8, "C": C}.items() if x not in "tk"}
    d, n, q = sizes["d"], sizes["n"], Counter(mul=g * K)
    row = around(name, d, n, g, K, V) + q

    def chunks(rows: int) -> Counts:
        return Counter({x: n * v for x, v in in_chunks(name, form, rows, C, K, V).items()})

    mixer, asked = f"{name}+core", {"form": form, "convention": "scale=mul"}
    assert operations(mixer, sizes, **asked) == times(8, **row) + chunks(8)
    for t in (1, 6, 7):
        token = operations(mixer, {**sizes, "t": t}, phase="inference", **asked)
        assert token == row + (chunks(t) - chunks(t - 1))


@each_form
@each_name
def test_a_chunk_holds_its_rows_and_one_matrix(name: str, form: str) -> None:
    """The keys so far, N, what U and W are computed from, and the sums of the decays' logarithms;
    all but S are dropped at the end of the chunk."""
    sizes, g, K, V = sizes_of(name, TOKENS[0])
    sizes = {x: value for x, value in {**sizes, "C": 4}.items() if x not in "tk"}
    n = sizes["n"]
    for t in range(1, 14):
        p, later = t % 4, t >= 4
        keys = n * K * p if name == "kda" else g * K * p
        logarithms = {"deltanet": 0, "gated-deltanet": p, "kda": K * min(p, 1)}[name]
        M = p * (p - 1) // 2 * (form == "chunked-rows")
        rows = 2 * V * p + K * p * later + M + logarithms
        held = cm.state(cm.mixer(f"{name}+core"), form).at(**sizes, t=t)
        assert held == keys + n * (rows + K * V * later)


def test_a_state_of_zeros_is_multiplied_in_the_first_chunk() -> None:
    """Under `zero-state` the first chunk has rows of W, which its later rows read."""
    sizes, _, K, _ = sizes_of("deltanet", TOKENS[0])
    sizes = {x: value for x, value in {**sizes, "C": 4, "t": 2}.items() if x != "k"}
    held = [
        cm.state(cm.mixer("deltanet+core"), "chunked-wy", convention).at(**sizes)
        for convention in ("strict", "zero-state")
    ]
    assert held[1] - held[0] == 2 * sizes["n"] * K


def test_the_best_chunk_of_a_delta_rule_is_that_of_a_loop() -> None:
    """Over the sums of a head alone, since all else does not depend on the chunk."""
    sizes, _, K, V = sizes_of("deltanet", TOKENS[0])
    asked = {x: value for x, value in {**sizes, "b": 1, "l": 40, "C": 1}.items() if x not in "tk"}
    mixer = cm.mixer("deltanet+core")
    for form in IN_CHUNKS:
        about = answers(mixer, form, "training", convention("strict"))
        found = best(Case(about, asked, symbolic=False), COSTS["total"])
        totals = {C: sum(in_chunks("deltanet", form, 40, C, K, V).values()) for C in range(1, 41)}
        assert found.size == min(totals, key=lambda C: totals[C])


@each_case
def test_parameters_and_state_of_delta_rules(name: str, sizes: Sizes) -> None:
    """The sheets' formulas; a state is S and the last k-1 rows that each convolution reads."""
    d, n, k = (sizes[letter] for letter in "dnk")
    g = sizes.get("g", n)
    K, V = (sizes.get(letter, d // n) for letter in "KV")
    held = {
        "deltanet": 4 * d**2 + d * n + 3 * k * d + V,
        "gated-deltanet": d * (2 * g * K + 3 * n * V)
        + 2 * d * n
        + k * (2 * g * K + n * V)
        + 2 * n
        + V,
        "kda": 3 * d * n * K
        + 3 * k * n * K
        + 2 * (d * K + K * n * K)
        + d * n
        + n
        + n * K
        + K
        + n * K * d,
    }
    mixer = cm.mixer(name)
    assert cm.parameters(mixer).at(**sizes) == held[name]
    for t in range(1, 8):
        columns = min(t, k - 1) * (2 * g * K + n * V)
        assert cm.state(mixer).at(**sizes, t=t) == n * K * V + columns


@pytest.mark.parametrize(
    ("name", "d", "parameters", "state"),
    [
        ("gated-deltanet{n=32,g=16,K=128,V=128}", 2048, 33_718_464, 32 * 128**2 + 3 * 8192),
        ("gated-deltanet{n=30,g=30,K=96,V=192}", 3840, 88_750_332, 30 * 96 * 192 + 3 * 11_520),
        ("gated-deltanet{n=6,g=6,K=128,V=256}", 1024, 6_316_300, 6 * 128 * 256 + 3 * 3072),
        ("kda{n=32,h=128}", 2304, 39_514_272, 32 * 128**2 + 9 * 4096),
        ("deltanet{n=4}", 1024, 4_210_944, 4 * 256**2 + 9 * 1024),
    ],
)
def test_parameters_and_state_of_shipped_layers(
    name: str, d: int, parameters: int, state: int
) -> None:
    """Qwen3-Next, OLMo-Hybrid, flash-linear-attention's defaults, Kimi-Linear."""
    mixer = cm.mixer(name)
    assert cm.parameters(mixer).at(d=d, k=4) == parameters
    assert cm.state(mixer).at(d=d, k=4, t=100) == state


def test_gated_deltanet_has_a_short_name() -> None:
    assert cm.mixer("gdn+core{n=4}").base == "gated-deltanet"


# --------------------------------------------------------------------------------------------------
# Modules
# --------------------------------------------------------------------------------------------------


IMPLEMENTED = [(name, own) for name in NAMES for own in registry.implementations(name)]


CORES = [
    pytest.param(name, own, marks=pytest.mark.grid(*[3] * (own == "recurrent")))
    for name, own in IMPLEMENTED
]
"""Derivatives of a chunk's products take seconds: the suite runs one recurrence."""


@pytest.mark.parametrize(("name", "implementation"), CORES)
def test_nothing_is_left_unexplained(name: str, implementation: str) -> None:
    """Of the core; a forward pass and a token of the layer are swept in
    tests/profiler/test_reconcile.py."""
    described = registry.implementations(f"{name}+core")[implementation]
    sizes = {**SIZES[name][0], "b": 2}
    found = reconciled(f"{name}+core", described, {**sizes, "l": sizes["C"] + 2}, "training-step")
    assert found.explained, found.unexplained


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "implementation"), IMPLEMENTED)
def test_gradients_of_delta_rules_pass_through(name: str, implementation: str) -> None:
    assert gradients_pass(name, implementation, {**SIZES[name][0], "l": 3})


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("gated-deltanet", {"d": 4, "l": 3, "n": 3, "g": 2, "K": 2, "V": 2, "k": 2},
         "n = 3 heads are not divisible into g = 2 groups"),
        ("kda", {"d": 4, "l": 3, "n": 3, "k": 2}, "d must be divisible by n: d = 4 and n = 3"),
        ("deltanet", {"d": 4, "l": 3, "n": 2}, "without the option 'core' needs the size k"),
    ],
)  # fmt: skip
def test_bad_sizes_of_delta_rules_are_refused(name: str, sizes: Sizes, message: str) -> None:
    for described in registry.implementations(name).values():
        with pytest.raises(ValueError, match=message):
            build(described, dict(sizes), device="cpu", dtype=torch.float64, seed=0)
