"""Are S4D, DSS, H3, GSS and SPADE those of Gu et al. 2022 (arXiv 2206.11893, section 3), of Gupta
et al. 2022 (arXiv 2203.14343, proposition 1), of Fu et al. 2022 (arXiv 2212.14052, algorithm 1), of
Mehta et al. 2022 (arXiv 2206.13947, section 3.2) and of Zuo et al. 2022 (arXiv 2212.08136, section
4)?

Values are taken with Python's complex numbers, row by row; nothing is shared with the package.
"""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

import costmodel as cm
from profiler.modules import registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    modules_of,
)
from tests.small import by_sizes

NAMES = ("s4d", "dss", "dss+softmax")
SIZES: list[Sizes] = [{"l": 5, "d": 3, "N": 2}, {"l": 3, "d": 2, "N": 7}, {"l": 1, "d": 1, "N": 1}]
ROUNDING = 1e-10
"""Exponentials of some normal numbers, their quotients, sums of at most 7 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def model(u: Array, W: Arrays, sizes: Sizes) -> Array:
    """x_k = exp(step A) x_(k-1) + (exp(step A) - 1) / A u_k and y_k = Re(C x_k) + D u_k, channel by
    channel; twice the real part where a channel has an A of its own. DSS_softmax: u_k / A over the
    sum of the powers of exp(step A) that are less than l."""
    own = W.get("A_im", W["D"]).ndim == 2
    N, l = sizes["N"], sizes["l"]
    found = W["D"] * u
    for c in range(u.shape[1]):
        for n in range(N):
            at = (c, n) if own else n
            real = W["A_re"][at] if "A_re" in W else -math.exp(W["log_A"][at])
            imaginary = W["A_im"][at] if "A_im" in W else math.exp(W["log_A_im"][at])
            A = complex(real, imaginary)
            turned = cmath.exp((math.exp(W["log_step"][c]) if "log_step" in W else 1) * A)
            taken = (turned - 1) / A
            if "A_re" in W:
                taken = 1 / A / sum(turned**s for s in range(l))
            state = 0j
            for i in range(len(u)):
                state = turned * state + taken * u[i, c]
                found[i, c] += (2 if own else 1) * (complex(*W["C"][c, n]) * state).real
    return found


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The model, gelu, and a gated linear unit."""
    rows = model(x, W, sizes)
    rows = gelu(rows)
    found: Array = (rows @ W["W_1"]) / (1 + np.exp(-rows @ W["W_2"]))
    return found


def hungry(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """q times the diagonal model of v times the shifted keys; heads of one channel."""
    Q, K, V = (x @ W[f"W_{name}"] for name in "QKV")
    shifted = W["D_K"] * K
    for i in range(len(x)):
        for back in range(min(i + 1, sizes["k"])):
            shifted[i] += W["w_K"][back] * K[i - back]
    found: Array = (Q * model(shifted * V, W, sizes)) @ W["W_out"]
    return found


def gelu(rows: Array) -> Array:
    found: Array = rows * np.vectorize(lambda z: (1 + math.erf(z / math.sqrt(2))) / 2)(rows)
    return found


def gated(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """gelu(x W_V) times the model of normalised gelu(x W_U), with a step of 1."""
    U = gelu(x @ W["W_U"])
    U = (U - U.mean(1, keepdims=True)) / np.sqrt(U.var(1, keepdims=True) + 1e-5)
    read = model(U * W["gain"] + W["bias"], W, sizes)
    found: Array = (read @ W["W_O"] * gelu(x @ W["W_V"])) @ W["W_out"]
    return found


GSS_SIZES: list[Sizes] = [
    {"l": 5, "d": 3, "f": 4, "r": 2, "N": 2},
    {"l": 3, "d": 2, "f": 1, "r": 3, "N": 5},
    {"l": 1, "d": 1, "f": 1, "r": 1, "N": 1},
]


@by_sizes(GSS_SIZES)
def test_gss_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("gss", sizes, gated, ROUNDING)


def test_gradients_of_gss_pass_through() -> None:
    for implementation in registry.implementations("gss"):
        assert gradients_pass("gss", implementation, {"l": 3, "d": 2, "f": 3, "r": 2, "N": 2})


@by_sizes(GSS_SIZES)
def test_operations_parameters_and_state_of_gss(sizes: Sizes) -> None:
    """Four maps, gelu of f and of r channels (3 mul each), a normalisation, D, the gate and the
    model; the powers of E are the same for all channels."""
    l, d, f, r, N = (sizes[letter] for letter in "ldfrN")
    maps = 2 * d * f + d * r + r * f
    counted = cm.count(cm.mixer("gss")).at(**sizes)
    model = l * r * 4 * N + (l - 1) * r * 4 * N
    assert counted.mul == l * (maps + 3 * (f + r) + 2 * r + r + f) + model
    assert counted.once is not None
    assert counted.once.total == N * (2 + 3 + (1 + 4) + 1 + 6 + 2)
    assert cm.parameters(cm.mixer("gss")).at(**sizes) == maps + 3 * r + 2 * N + 2 * r * N
    for t in range(1, l + 1):
        assert cm.state(cm.mixer("gss")).at(**sizes, t=t) == 2 * N * r
        assert cm.state(cm.mixer("gss"), "direct").at(**sizes, t=t) == t * r


H3_SIZES: list[Sizes] = [
    {"l": 5, "d": 3, "k": 2, "N": 2},
    {"l": 3, "d": 2, "k": 5, "N": 3},
    {"l": 1, "d": 1, "k": 1, "N": 1},
]


@by_sizes(H3_SIZES)
def test_h3_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("h3", sizes, hungry, ROUNDING)


def test_gradients_of_h3_pass_through() -> None:
    for implementation in registry.implementations("h3"):
        assert gradients_pass("h3", implementation, {"l": 3, "d": 2, "k": 2, "N": 2})


@by_sizes(H3_SIZES)
def test_operations_parameters_and_state_of_h3(sizes: Sizes) -> None:
    """Four maps, a short convolution, two times D, two products, and the diagonal model."""
    l, d, k, N = (sizes[letter] for letter in "ldkN")
    taps = sum(min(i, k) for i in range(1, l + 1))
    counted = cm.count(cm.mixer("h3")).at(**sizes)
    assert counted.mul == l * d * (4 * d + 4 + 4 * N + 1) + taps * d + (l - 1) * d * 4 * N
    model_adds = l * d * (2 * N - 1) + (l - 1) * d * 4 * N
    assert counted.add == 4 * l * d * (d - 1) + taps * d + l * d + model_adds
    assert counted.once is not None and counted.once.total == discretised("s4d", d, N)
    assert cm.parameters(cm.mixer("h3")).at(**sizes) == 4 * d * d + k * d + 3 * d + 4 * d * N
    for t in range(1, l + 1):
        assert cm.state(cm.mixer("h3")).at(**sizes, t=t) == (2 * N + min(t, k - 1)) * d


@each_name
@each_size
def test_equations_and_modules_equal_the_paper(name: str, sizes: Sizes) -> None:
    """In all forms and token by token; no weight ends at l."""
    equals_the_paper(name, sizes, paper, ROUNDING)


@each_name
def test_autograd_of_state_spaces_equals_finite_differences(name: str) -> None:
    for implementation in registry.implementations(name):
        assert gradients_pass(name, implementation, {"l": 3, "d": 2, "N": 2})


def discretised(name: str, d: int, N: int) -> int:
    """exp(log_step), exp(log_A), |A|^2; of each n step A, its exponential, less 1, times the
    conjugate of A, over |A|^2. DSS_softmax: of each n step A l, its exponential, less 1, times A,
    whose square takes that of A's place."""
    power = 1 + 1 + 1 + 2
    if name == "dss+softmax":
        return d + d * N * (2 + power + 1 + 2 + power + 1 + 6 + 3 + 6 + 2)
    own = d * N if name == "s4d" else N
    return d + 4 * own + d * N * (2 + power + 1 + 6 + 2)


@each_name
@each_size
def test_operations_of_state_spaces_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """Row by row: a complex number times E, B times a row, twice the real part of C times it; or
    sums over distances, the kernel's powers being complex exponentials."""
    l, d, N = (sizes[letter] for letter in "ldN")
    twice = 1 if name == "s4d" else 0
    around = {"mul": d + 3 * d + 2 * d * d + d, "add": d + d + 2 * d * (d - 1) + d}
    rows = {
        "mul": l * (around["mul"] + d * (2 * N + 2 * N + twice)) + (l - 1) * d * 4 * N,
        "add": l * (around["add"] + d * (N + N - 1)) + (l - 1) * d * (2 + 2) * N,
        "div": l * d, "exp": l * d, "erf": l * d,
    }  # fmt: skip
    summed = rows | {
        "mul": l * around["mul"] + d * l * (l + 1) // 2,
        "add": l * around["add"] + d * l * (l - 1) // 2,
    }
    power = 2 + (1 + 1 + 1 + 2)
    kernel = d * N * 6 + l * d * (N * power + 3 * N + N - 1 + twice)
    once = discretised(name, d, N)
    for form, found, alone in (("recurrent", rows, once), ("direct", summed, once + kernel)):
        counted = cm.count(cm.mixer(name), form=form).at(**sizes)
        assert {k: n for k, n in counted.by_class().items() if n} == {
            k: n for k, n in found.items() if n
        }
        assert counted.once is not None and counted.once.total == alone


@each_name
@each_size
def test_parameters_and_state_of_state_spaces_equal_a_count_by_hand(
    name: str, sizes: Sizes
) -> None:
    """N complex numbers of each channel, whatever the number of tokens; or the rows."""
    l, d, N = (sizes[letter] for letter in "ldN")
    own = d * N if name == "s4d" else N
    mixer = cm.mixer(name)
    assert cm.parameters(mixer).at(**sizes) == 2 * d + 2 * own + 2 * d * N + 2 * d * d
    for t in range(1, l + 1):
        assert cm.state(mixer).at(**sizes, t=t) == 2 * N * d
        assert cm.state(mixer, "direct").at(**sizes, t=t) == t * d


@each_name
def test_the_path_along_the_rows(name: str) -> None:
    """A row adds a product and two additions to the longest path."""
    span = cm.span(cm.mixer(name))
    assert [span.at(l=l + 1, d=2, N=2) - span.at(l=l, d=2, N=2) for l in range(2, 6)] == [3] * 4


@pytest.mark.grid(6)
@pytest.mark.parametrize(("name", "implementation"), modules_of((*NAMES, "gss", "h3", "spade")))
def test_nothing_is_left_unexplained(name: str, implementation: str) -> None:
    sizes = {"b": 2, "l": 5, "d": 4, "f": 4, "r": 2, "k": 2, "N": 2, "n": 2, "w": 3}
    everything_is_explained(name, sizes, implementation)


SPADE_SIZES: list[Sizes] = [
    {"l": 6, "d": 4, "N": 2, "n": 2, "w": 3},
    {"l": 3, "d": 3, "N": 1, "n": 1, "w": 5},
    {"l": 1, "d": 1, "N": 1, "n": 1, "w": 1},
]


def beside_a_window(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """W [LN(global), LN(local)]: S4D with its gated linear unit, and heads over the last w rows."""
    width, n = x.shape[1] // sizes["n"], sizes["n"]
    Q, K, V = (x @ W[f"W_{one}_w"] for one in "QKV")
    local = np.zeros_like(x)
    for i in range(len(x)):
        seen = range(max(0, i - sizes["w"] + 1), i + 1)
        for head in (slice(j * width, (j + 1) * width) for j in range(n)):
            weights = np.exp([Q[i, head] @ K[k, head] / math.sqrt(width) for k in seen])
            local[i, head] = weights @ V[seen, head] / weights.sum()

    def normed(rows: Array, name: str) -> Array:
        centred = rows - rows.mean(1, keepdims=True)
        scale = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return np.asarray(centred / scale * W[f"g_{name}"] + W[f"b_{name}"])

    both = normed(paper(x, W, sizes), "G"), normed(local @ W["W_out_w"], "L")
    return np.asarray(np.concatenate(both, axis=1) @ W["W"])


@by_sizes(SPADE_SIZES)
def test_spade_equals_the_paper(sizes: Sizes) -> None:
    equals_the_paper("spade", sizes, beside_a_window, ROUNDING)


def test_gradients_of_spade_pass_through() -> None:
    for implementation in registry.implementations("spade"):
        sizes = {"l": 4, "d": 4, "N": 2, "n": 2, "w": 3}
        assert gradients_pass("spade", implementation, sizes)


@by_sizes(SPADE_SIZES)
def test_operations_parameters_and_state_of_spade(sizes: Sizes) -> None:
    """Those of S4D and of the window by themselves, two norms, and the map of both."""
    l, d, N, n, w = (sizes[letter] for letter in "ldNnw")
    counted, parts = cm.count(cm.mixer("spade")).at(**sizes).by_class(), cm.count(cm.mixer("s4d"))
    pairs = sum(min(i, w) for i in range(1, l + 1))
    window = {
        "mul": 4 * l * d * d + 2 * pairs * d,
        "add": 4 * l * d * (d - 1) + pairs * (d - n) + (pairs - l) * (n + d),
        "div": 2 * n * pairs,
        "exp": n * pairs,
    }
    norm = {"mul": 2 * d, "add": 2 * (d - 1) + d + 1 + d, "div": 2 + d, "sqrt": 1}
    both = {"mul": 2 * l * d * d, "add": l * d * (2 * d - 1)}
    for name, number in counted.items():
        s4d = parts.at(l=l, d=d, N=N).by_class().get(name, 0)
        beside = window.get(name, 0) + 2 * l * norm.get(name, 0) + both.get(name, 0)
        assert number == s4d + beside, name
    weights = cm.parameters(cm.mixer("s4d")).at(l=l, d=d, N=N) + 4 * d * d + 4 * d + 2 * d * d
    assert cm.parameters(cm.mixer("spade")).at(**sizes) == weights
    for t in range(1, l + 1):
        assert cm.state(cm.mixer("spade")).at(**sizes, t=t) == 2 * N * d + 2 * d * min(t, w - 1)
