"""Are Mamba, Mamba-2 and Mamba-3 the layers of Gu and Dao 2023 (arXiv 2312.00752, algorithm 2 and
figure 3), of Dao and Gu 2024 (arXiv 2405.21060, listing 1 and figure 6) and of Lahoti et al. 2026
(arXiv 2603.15569, single input and output)?

Values are computed number by number from the papers' recurrences, counts as sums of what each line
costs; nothing is shared with the package.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel.mixers.load import mixer as load_mixer
from profiler.modules import registry
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
    same,
    stepped,
)
from tests.small import by_sizes

NAMES = (
    "mamba-3", "mamba-2+core", "mamba+norms", "mamba-2", "mamba-3+core", "mamba-2+no-norm",
    "mamba-3+mimo", "mamba-3+core+mimo", "mamba+core", "mamba",
    "mamba+no-conv-bias+in-bias+out-bias", "mamba-2+no-conv-bias+in-bias+out-bias",
)  # fmt: skip
"""In an order of which `grid(3)` below takes the names whose training steps are derived fastest;
the choice follows the name of the test (tests/conftest.py)."""
ROUNDING = 1e-10
"""Sums of at most 12 terms of normal numbers and of exponentials of their products, in float64."""

SIZES: list[Sizes] = [
    {
        "l": 5,
        "d": 3,
        "n": 4,
        "P": 2,
        "N": 3,
        "G": 2,
        "E": 5,
        "R": 2,
        "k": 3,
        "M": 3,
        "C": 2,
        "r": 3,
    },
    {
        "l": 3,
        "d": 2,
        "n": 3,
        "P": 3,
        "N": 2,
        "G": 1,
        "E": 3,
        "R": 4,
        "k": 5,
        "M": 2,
        "C": 4,
        "r": 2,
    },
    {
        "l": 1,
        "d": 1,
        "n": 1,
        "P": 1,
        "N": 1,
        "G": 1,
        "E": 1,
        "R": 1,
        "k": 1,
        "M": 1,
        "C": 1,
        "r": 1,
    },
]
"""Chunks of C rows, the last of which may be short, and a chunk longer than the sequence."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def silu(z: Array) -> Array:
    found: Array = z / (1 + np.exp(-z))
    return found


def softplus(z: float) -> float:
    return math.log(1 + math.exp(z))


def convolved(u: Array, taps: Array, bias: Array | int) -> Array:
    """silu(bias + sum over s of taps[s] u[i-s]), rows before the first being 0."""
    found = np.zeros_like(u) + bias
    for i in range(len(u)):
        for s in range(min(i + 1, len(taps))):
            found[i] += taps[s] * u[i - s]
    return silu(found)


def mamba(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """h = exp(Delta A) h + Delta B x, y = C h + D x, channel by channel and state by state."""
    rows = x @ W["W_X"] + W.get("p_X", 0)
    if "w_X" in W:
        rows = convolved(rows, W["w_X"], W.get("b_X", 0))
    E, N = W["log_A"].shape
    h = np.zeros((E, N))
    y = np.zeros_like(rows)
    for i, row in enumerate(rows):
        B, C, low = row @ W["W_B"], row @ W["W_C"], row @ W["W_R"]
        if "gain_T" in W:
            B, C, low = (
                of * W[f"gain_{one}"] / math.sqrt(np.mean(of**2) + 1e-5)
                for one, of in (("B", B), ("C", C), ("T", low))
            )
        for e in range(E):
            delta = softplus(low @ W["W_dt"][:, e] + W["b_dt"][e])
            for s in range(N):
                decay = math.exp(-delta * math.exp(W["log_A"][e, s]))
                h[e, s] = decay * h[e, s] + delta * B[s] * row[e]
                y[i, e] += C[s] * h[e, s]
            y[i, e] += W["D"][e] * row[e]
    if "W_Z" in W:
        y = y * silu(x @ W["W_Z"] + W.get("p_Z", 0))
    found: Array = y @ W["W_out"] + W.get("p_out", 0)
    return found


def mamba_2(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """h = exp(Delta A) h + Delta x B^T of each head, y = h C + D x; head j has B and C of group
    ceil(j G / n)."""
    n, P, N, G = (sizes[letter] for letter in "nPNG")
    X, B, C = (x @ W[f"W_{name}"] + W.get(f"p_{name}", 0) for name in "XKQ")
    if "w_X" in W:
        X, B, C = (
            convolved(rows, W[f"w_{name}"], W.get(f"b_{name}", 0))
            for rows, name in ((X, "X"), (B, "K"), (C, "Q"))
        )
    y = np.zeros_like(X)
    for j in range(n):
        group, h = -(-(j + 1) * G // n) - 1, np.zeros((P, N))
        for i in range(len(x)):
            bias = W["b_dt"][j] + (W["p_dt"][j] if "p_dt" in W else 0)
            delta = softplus(x[i] @ W["W_dt"][:, j] + bias)
            h *= math.exp(-delta * math.exp(W["log_A"][j]))
            for p in range(P):
                own = X[i, j * P + p]
                for s in range(N):
                    h[p, s] += delta * own * B[i, group * N + s]
                    y[i, j * P + p] += h[p, s] * C[i, group * N + s]
                y[i, j * P + p] += W["D"][j] * own
    if "W_Z" in W:
        y = y * silu(x @ W["W_Z"] + W.get("p_Z", 0))
    if "gain" in W:
        for i in range(len(x)):
            for part in np.split(np.arange(n * P), G):
                y[i, part] /= math.sqrt(np.mean(y[i, part] ** 2) + 1e-5)
        y = y * W["gain"]
    found: Array = y @ W["W_out"] + W.get("p_out", 0)
    return found


def mamba_3(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """S = al S + (1 - lam) Delta al v_(i-1) k_(i-1)^T + lam Delta v k^T and y = S q + D v of each
    head, where k and q are B and C, normalised, plus a bias, states r and R + r of which turn."""
    n, P, R, G = (sizes[letter] for letter in "nPRG")
    X, N = (x @ W["W_X"]).reshape(len(x), n, P), 2 * R + sizes["M"]
    y = np.zeros_like(X)
    for j in range(n):
        group = -(-(j + 1) * G // n) - 1
        theta, S, before = np.zeros(R), np.zeros((P, N)), (np.zeros(P), np.zeros(N))
        for i, row in enumerate(x):
            delta = softplus(row @ W["W_dt"][:, j] + W["b_dt"][j])
            lam = 1 / (1 + math.exp(-row @ W["W_lam"][:, j]))
            alpha = math.exp(-max(softplus(row @ W["W_A"][:, j]), 1e-4) * delta)
            theta = theta + math.pi * np.tanh(row @ W["W_turn"]) * delta
            k, q = (
                rotated(row @ W[f"W_{own}"][:, group], W.get(f"gain_{own}"), W[bias][j], theta)
                for own, bias in (("B", "b_K"), ("C", "b_Q"))
            )
            S = alpha * S + (1 - lam) * delta * alpha * np.outer(*before)
            S += lam * delta * np.outer(X[i, j], k)
            y[i, j] = S @ q + W["D"][j] * X[i, j]
            before = X[i, j], k
    rows = y.reshape(len(x), n * P)
    if "W_Z" in W:
        rows = rows * silu(x @ W["W_Z"])
    found: Array = rows @ W["W_out"]
    return found


def rotated(row: Array, gain: Array | None, bias: Array, theta: Array) -> Array:
    """A row over the root of its mean square, times the gain, if there is one; plus the bias, as
    complex numbers (r, R + r) times e^(i theta)."""
    if gain is not None:
        row = row / math.sqrt(np.mean(row**2) + 1e-5) * gain
    row, R = row + bias, len(theta)
    pairs = (row[:R] + 1j * row[R : 2 * R]) * np.exp(1j * theta)
    return np.concatenate([pairs.real, pairs.imag, row[2 * R :]])


def mamba_3_mimo(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """S = al S + (1 - lam) Delta al sum over m of v_(i-1),m k_(i-1),m^T + lam Delta sum over m of
    v_m k_m^T of each head, where v_m is x times up_X of the head and m, and k_m and q_m of m are
    turned like those of single input and output; y is the sum over m of down (S q_m + D v_m), times
    silu of the gate times up_Z, if there is a gate."""
    n, P, R, r, G = (sizes[letter] for letter in "nPRrG")
    rows, N = np.zeros((len(x), n, P)), 2 * R + sizes["M"]
    for j in range(n):
        group, own = -(-(j + 1) * G // n) - 1, slice(j * P, (j + 1) * P)
        theta, S, before = np.zeros(R), np.zeros((P, N)), np.zeros((P, N))
        for i, row in enumerate(x):
            delta = softplus(row @ W["W_dt"][:, j] + W["b_dt"][j])
            lam = 1 / (1 + math.exp(-row @ W["W_lam"][:, j]))
            alpha = math.exp(-max(softplus(row @ W["W_A"][:, j]), 1e-4) * delta)
            theta = theta + math.pi * np.tanh(row @ W["W_turn"]) * delta
            value, added, queries = (row @ W["W_X"])[own], np.zeros((P, N)), []
            for m in range(r):
                k, q = (
                    rotated(row @ W[f"W_{of}"][:, group, m], W.get(f"gain_{of}"), bias, theta)
                    for of, bias in (("B", W["b_K"][j, m]), ("C", W["b_Q"][j, m]))
                )
                added += np.outer(value * W["up_X"][j, m], k)
                queries.append(q)
            S = alpha * S + (1 - lam) * delta * alpha * before + lam * delta * added
            before = added
            for m, q in enumerate(queries):
                found = S @ q + W["D"][j] * value * W["up_X"][j, m]
                if "W_Z" in W:
                    found = found * silu((row @ W["W_Z"])[own] * W["up_Z"][j, m])
                rows[i, j] += found * W["down"][j, m]
    found = rows.reshape(len(x), n * P) @ W["W_out"]
    return found


PAPERS = {
    "mamba": mamba, "mamba-2": mamba_2, "mamba-3": mamba_3, "mamba-3+mimo": mamba_3_mimo,
    "mamba-3+core+mimo": mamba_3_mimo,
}  # fmt: skip
"""By the whole name, or by the name without options."""


@pytest.mark.grid(3)
@each_name
@each_size
def test_selective_state_spaces_equal_the_papers(name: str, sizes: Sizes) -> None:
    """In all forms, and every module whole and token by token."""
    paper = PAPERS.get(name, PAPERS.get(name.partition("+")[0]))
    assert paper is not None
    equals_the_paper(name, sizes, paper, ROUNDING, beyond=1)


@pytest.mark.grid(3)
@each_name
def test_gradients_of_selective_state_spaces_pass(name: str) -> None:
    for implementation in registry.implementations(name):
        assert gradients_pass(name, implementation, {**SIZES[1], "l": 3, "k": 2, "C": 2})


@pytest.mark.grid(12)
@pytest.mark.parametrize(("name", "implementation"), modules_of(NAMES))
def test_nothing_of_selective_state_spaces_is_left_unexplained(
    name: str, implementation: str
) -> None:
    """Chunks longer than the sequence, and one chunk after another."""
    sizes = {x: SIZES[0][x] for x in cm.mixer(name).letters} | {"b": 2, "l": 2}
    for chunk in (3, 1) if implementation == "chunked" else (1,):
        everything_is_explained(
            name, sizes | ({"C": chunk} if "C" in sizes else {}), implementation
        )


def test_equations_take_a_step_beyond_the_range_of_exp() -> None:
    """exp(800) is no number of float64; softplus(800) is 800."""
    sizes = {"l": 2, "d": 1, "E": 1, "R": 1, "N": 1}
    arrays = drawn("mamba+core", sizes) | {"b_dt": np.array([800.0])}
    module = module_of("mamba+core", "recurrent", sizes, arrays)
    same(cm.evaluate(cm.mixer("mamba+core"), arrays, sizes), stepped(module, arrays["x"]), ROUNDING)


# --------------------------------------------------------------------------------------------------
# One decoded token, parameters and state: sums of what each line costs
# --------------------------------------------------------------------------------------------------


def linear(a: int, b: int) -> dict[str, int]:
    return {"mul": a * b, "add": b * (a - 1)}


def convolution(k: int, channels: int) -> dict[str, int]:
    """k taps, a bias, and silu: a division by 1 + e^-z, and a multiplication."""
    return {x: y * channels for x, y in (("mul", k + 1), ("add", k + 1), ("div", 1), ("exp", 1))}


def total(*parts: dict[str, int]) -> dict[str, int]:
    """The sum of counts by operation."""
    names = {name for part in parts for name in part}
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def times(many: int, part: dict[str, int]) -> dict[str, int]:
    return {name: many * value for name, value in part.items()}


def of_token(name: str, at: Sizes, form: str = "recurrent", t: int = 99) -> dict[str, int]:
    """The operations of a token, here far from the first one, by name."""
    counted = cm.count(cm.mixer(name), "inference", form=form).at(**at, t=t)
    return {k: v for k, v in counted.by_class().items() if v and k != "once"}


SOFTPLUS = {"add": 2, "exp": 1, "log": 1}
"""A bias before the function, and log(1 + e^z)."""


@each_size
def test_a_decoded_token_of_mamba_2_costs_what_its_lines_cost(sizes: Sizes) -> None:
    """A head: 3NP + 2P + 1 mul, 2NP add and 1 exp, after softplus."""
    d, n, P, N, G, k = (sizes[letter] for letter in "dnPNGk")
    own = {"mul": 3 * N * P + 2 * P + 1, "add": 2 * N * P, "exp": 1}
    projections = [linear(d, n * P), linear(d, G * N), linear(d, G * N), linear(d, n)]
    core = total(times(n, total(own, SOFTPLUS)), *projections, linear(n * P, d))
    at = {"l": 100, "d": d, "n": n, "P": P, "N": N, "G": G}
    assert of_token("mamba-2+core", at) == core
    gate = total(linear(d, n * P), times(n * P, {"mul": 2, "add": 1, "div": 1, "exp": 1}))
    W = n * P // G  # channels of a group: squares, their mean, eps, a root, quotients, gains
    norm = times(G, {"mul": 2 * W, "add": W - 1 + 1, "div": W + 1, "sqrt": 1})
    layer = total(core, convolution(k, n * P + 2 * G * N), gate, norm)
    assert of_token("mamba-2", {**at, "k": k}) == layer


@each_size
def test_a_token_of_mamba_2_in_chunks_costs_what_its_lines_cost(sizes: Sizes) -> None:
    """Row e of its chunk: e steps are summed, times A; e products of Q and K of a group; e decays
    and products with U of a head. A later chunk reads the states, times the decay since its start.
    A complete chunk adds C rows, each times the decay to the end, to the states before."""
    d, n, P, N, G, C = (sizes[letter] for letter in "dnPNGC")
    projections = [linear(d, n * P), linear(d, G * N), linear(d, G * N), linear(d, n)]
    at = {"l": 100, "d": d, "n": n, "P": P, "N": N, "G": G, "C": C}
    for t in (1, 2, 3, 8, 9, 12, 13):
        earlier = (t - 1) // C
        e = t - C * earlier
        own = {"mul": 1 + e + e * P + 2 * P, "add": (e - 1) + e + (e - 1) * P + P, "exp": e}
        lines = [own, SOFTPLUS]
        if earlier:
            lines.append({"mul": N * P + P, "add": (N - 1) * P + P, "exp": 1})
        if e == C:
            lines.append({"mul": C * P + C * N * P, "add": C + (C - 1) * N * P, "exp": C})
            lines += [{"mul": N * P, "add": N * P, "exp": 1}] * (earlier > 0)
        pairs = times(G * e, {"mul": N, "add": N - 1})
        core = total(times(n, total(*lines)), pairs, *projections, linear(n * P, d))
        assert of_token("mamba-2+core", at, "chunked", t) == core, t


@each_size
def test_the_state_of_chunks_is_a_sawtooth(sizes: Sizes) -> None:
    """The states once a chunk is complete; a step, a sum of logarithms, K and U of each row of the
    current chunk; of the layer the k-1 rows before each convolution too."""
    n, P, N, G, C, k = (sizes[letter] for letter in "nPNGCk")
    for t in range(1, 10):
        rows = (t % C) * (2 * n + G * N + n * P)
        assert state("mamba-2+core", sizes, t, "chunked") == n * N * P * (t >= C) + rows
        columns = min(t, k - 1) * (n * P + 2 * G * N)
        assert state("mamba-2", sizes, t, "chunked") == n * N * P * (t >= C) + rows + columns


@each_size
def test_a_decoded_token_of_mamba_costs_what_its_lines_cost(sizes: Sizes) -> None:
    """A channel: Delta x, D x, and of each state the decay, its exponential, two products, and a
    product with C."""
    d, E, R, N, k = (sizes[letter] for letter in "dERNk")
    own = {"mul": 1 + 1 + 4 * N, "add": 2 * N, "exp": N}
    maps = [linear(d, E), linear(E, R), linear(E, N), linear(E, N), linear(R, E), linear(E, d)]
    core = total(times(E, total(own, SOFTPLUS)), *maps)
    at = {"l": 100, "d": d, "E": E, "R": R, "N": N}
    assert of_token("mamba+core", at) == core
    gate = total(linear(d, E), times(E, {"mul": 2, "add": 1, "div": 1, "exp": 1}))
    assert of_token("mamba", {**at, "k": k}) == total(core, convolution(k, E), gate)
    row = [{"mul": 2 * m, "add": m, "div": m + 1, "sqrt": 1} for m in (R, N, N)]
    normed = total(core, convolution(k, E), gate, *row)
    assert of_token("mamba+norms", {**at, "k": k}) == normed


@each_size
def test_a_decoded_token_of_mamba_3_costs_what_its_lines_cost(sizes: Sizes) -> None:
    """A head: 4NP + 5P + 4 + 10a mul, 3NP + 2N + P + 5a + 2 add, P + 1 div, P + 2 exp and 3a other
    functions for a = R turning pairs, with the gate's silu, if pi tanh is taken for each head; here
    once for all heads. The floor of A is a comparison."""
    d, n, P, R, M, G = (sizes[letter] for letter in "dnPRMG")
    N, a = 2 * R + M, R
    own = {"mul": 4 * N * P + 5 * P + 4 + 10 * a, "add": 3 * N * P + 2 * N + P + 5 * a + 2}
    own |= {"div": P + 1, "exp": P + 2, "tanh": a, "cos": a, "sin": a, "compare": 1}
    maps = [linear(d, n * P), linear(d, n * P), linear(d, G * N), linear(d, G * N)]
    maps += [linear(d, n), linear(d, n), linear(d, n), linear(d, a), linear(n * P, d)]
    softplus_A = {"add": 1, "exp": 1, "log": 1}
    shared = {"mul": -(n - 1) * a, "tanh": -(n - 1) * a}
    norm = times(2 * G, {"mul": 2 * N, "add": N, "div": N + 1, "sqrt": 1})
    layer = total(times(n, total(own, SOFTPLUS, softplus_A)), *maps, shared, norm)
    at = {"l": 100, "d": d, "n": n, "P": P, "R": R, "M": M, "G": G}
    assert of_token("mamba-3", at) == layer
    gate = times(n * P, {"mul": -2, "add": -1, "div": -1, "exp": -1})
    bare = total(layer, times(-1, norm), gate, times(-1, linear(d, n * P)))
    assert of_token("mamba-3+core", at) == {k: v for k, v in bare.items() if v}


@each_size
def test_a_decoded_token_of_mamba_3_with_r_inputs_costs_what_its_lines_cost(sizes: Sizes) -> None:
    """A head: (1+3r)NP + 8rP + 4 + 2a + 8ra mul, 3rNP + 2rN + 2rP - P + a + 4ra + 2 add, rP + 1
    div, rP + 2 exp and 3a other functions for a = R turning pairs, if V of the row before is held
    for each input; here X is held, as in mamba-ssm, which takes P mul more."""
    d, n, P, R, M, G, r = (sizes[letter] for letter in "dnPRMGr")
    N, a = 2 * R + M, R
    own = {"mul": (1 + 3 * r) * N * P + 8 * r * P + 4 + 2 * a + 8 * r * a + P}
    own |= {"add": 3 * r * N * P + 2 * r * N + 2 * r * P - P + a + 4 * r * a + 2}
    own |= {"div": r * P + 1, "exp": r * P + 2, "tanh": a, "cos": a, "sin": a, "compare": 1}
    maps = [linear(d, n * P), linear(d, n * P), linear(d, G * r * N), linear(d, G * r * N)]
    maps += [linear(d, n), linear(d, n), linear(d, n), linear(d, a), linear(n * P, d)]
    softplus_A = {"add": 1, "exp": 1, "log": 1}
    shared = {"mul": -(n - 1) * a, "tanh": -(n - 1) * a}
    norm = times(2 * G * r, {"mul": 2 * N, "add": N, "div": N + 1, "sqrt": 1})
    layer = total(times(n, total(own, SOFTPLUS, softplus_A)), *maps, shared, norm)
    at = {"l": 100, "d": d, "n": n, "P": P, "R": R, "M": M, "G": G, "r": r}
    assert of_token("mamba-3+mimo", at) == layer
    gate = times(n * r * P, {"mul": -3, "add": -1, "div": -1, "exp": -1})
    bare = total(layer, times(-1, norm), gate, times(-1, linear(d, n * P)))
    assert of_token("mamba-3+core+mimo", at) == {k: v for k, v in bare.items() if v}


def parameters(name: str, **at: int) -> int:
    """The parameters of a mixer with sizes in braces, without d."""
    found = load_mixer(f"{name}{{{','.join(f'{x}={v}' for x, v in at.items() if x != 'd')}}}")
    number = cm.parameters(found).at(d=at["d"])
    assert isinstance(number, int)
    return number


def test_parameters_of_mamba_2_equal_the_layer_that_ships() -> None:
    """d(2nP + 2GN + n) in the in-projection, k + 1 a convolved channel, three scalars a head, the
    gain and the out-projection."""
    assert parameters("mamba-2", d=4096, n=128, P=64, N=128, G=8, k=4) == 109_635_968
    for at in (SIZES[0], SIZES[1]):
        d, n, P, N, G, k = (at[letter] for letter in "dnPNGk")
        expected = d * (2 * n * P + 2 * G * N + n) + (k + 1) * (n * P + 2 * G * N)
        expected += 3 * n + n * P + n * P * d
        assert parameters("mamba-2", d=d, n=n, P=P, N=N, G=G, k=k) == expected


def test_parameters_of_mamba_equal_the_layer_that_ships() -> None:
    """At the sizes of mamba-130m and at small ones."""
    assert parameters("mamba", d=768, E=1536, R=48, N=16, k=4) == 3_770_880
    for at in (SIZES[0], SIZES[1]):
        d, E, R, N, k = (at[letter] for letter in "dERNk")
        expected = 2 * d * E + (k + 1) * E + E * (R + 2 * N) + R * E + E + E * N + E + E * d
        assert parameters("mamba", d=d, E=E, R=R, N=N, k=k) == expected


def test_parameters_of_mamba_3_equal_the_layer_that_ships() -> None:
    """The in-projection of d(2nP + 2GN + 3n + R), two biases a state of each head, two norms, b_dt,
    D and the out-projection."""
    assert parameters("mamba-3", d=1024, n=32, P=64, R=32, M=64, G=1) == 6_693_184
    for at in (SIZES[0], SIZES[1]):
        d, n, P, R, M, G = (at[letter] for letter in "dnPRMG")
        N = 2 * R + M
        expected = d * (2 * n * P + 2 * G * N + 3 * n + R) + 2 * n + 2 * n * N + 2 * N + n * P * d
        assert parameters("mamba-3", d=d, n=n, P=P, R=R, M=M, G=G) == expected


def test_parameters_of_mamba_3_with_r_inputs_equal_the_layer_that_ships() -> None:
    """Maps to B and C and biases of K and Q are r times as many; three arrays (n, r, P)."""
    assert parameters("mamba-3+mimo", d=1024, n=32, P=64, R=32, M=64, G=1, r=4) == 7_528_768
    for at in (SIZES[0], SIZES[1]):
        d, n, P, R, M, G, r = (at[letter] for letter in "dnPRMGr")
        N = 2 * R + M
        expected = d * (2 * n * P + 2 * G * N * r + 3 * n + R) + 2 * n + 2 * n * r * N + 2 * N
        expected += 3 * n * r * P + n * P * d
        assert parameters("mamba-3+mimo", d=d, n=n, P=P, R=R, M=M, G=G, r=r) == expected


@each_size
def test_a_state_is_the_recurrence_and_the_rows_of_the_convolutions(sizes: Sizes) -> None:
    """n N P + (k-1)(nP + 2GN) and E (N + k-1), once the convolutions are full; n (N P + r N + P +
    R) of Mamba-3 with r inputs, or with one."""
    n, P, N, G, E, k = (sizes[letter] for letter in "nPNGEk")
    for t in (1, 2, 9):
        held = min(t, k - 1)
        rows = held * (n * P + 2 * G * N)
        assert state("mamba-2", sizes, t) == n * N * P + rows
        assert state("mamba-2+core", sizes, t) == n * N * P
        own = 2 * sizes["R"] + sizes["M"]
        for name, r in (("mamba-3", 1), ("mamba-3+mimo", sizes["r"])):
            assert state(name, sizes, t) == n * (own * P + r * own + P + sizes["R"])
        assert state("mamba", sizes, t) == E * (N + held)
        assert state("mamba+core", sizes, t) == E * N


def state(name: str, sizes: Sizes, t: int, form: str = "recurrent") -> int:
    """The numbers that a form holds after t tokens."""
    found = cm.mixer(name)
    own = {letter: sizes[letter] for letter in found.letters if letter != "l"}
    number = cm.state(found, form).at(**own, t=t)
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("name", ["mamba-2", "mamba-3"])
def test_heads_that_no_groups_divide_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="n must be divisible by G: n = 4 and G = 3"):
        module_of(name, "recurrent", {**SIZES[0], "G": 3}, drawn(name, SIZES[0]))
