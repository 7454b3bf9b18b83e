"""Are S4D, DSS and H3 those of Gu et al. 2022 (arXiv 2206.11893, section 3), of Gupta et al. 2022
(arXiv 2203.14343, proposition 1) and of Fu et al. 2022 (arXiv 2212.14052, algorithm 1)?

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
)
from tests.small import by_sizes

NAMES = ("s4d", "dss")
SIZES: list[Sizes] = [{"l": 5, "d": 3, "N": 2}, {"l": 3, "d": 2, "N": 7}, {"l": 1, "d": 1, "N": 1}]
ROUNDING = 1e-10
"""Exponentials of some normal numbers, their quotients, sums of at most 7 terms, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def model(u: Array, W: Arrays, N: int) -> Array:
    """x_k = exp(step A) x_(k-1) + (exp(step A) - 1) / A u_k and y_k = Re(C x_k) + D u_k, channel by
    channel; twice the real part where a channel has an A of its own."""
    own = W["log_A"].ndim == 2
    found = W["D"] * u
    for c in range(u.shape[1]):
        for n in range(N):
            at = (c, n) if own else n
            A = complex(-math.exp(W["log_A"][at]), W["A_im"][at])
            turned = cmath.exp(math.exp(W["log_step"][c]) * A)
            state = 0j
            for i in range(len(u)):
                state = turned * state + (turned - 1) / A * u[i, c]
                found[i, c] += (2 if own else 1) * (complex(*W["C"][c, n]) * state).real
    return found


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """The model, gelu, and a gated linear unit."""
    rows = model(x, W, sizes["N"])
    rows = rows * np.vectorize(lambda z: (1 + math.erf(z / math.sqrt(2))) / 2)(rows)
    found: Array = (rows @ W["W_1"]) / (1 + np.exp(-rows @ W["W_2"]))
    return found


def hungry(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """q times the diagonal model of v times the shifted keys; heads of one channel."""
    Q, K, V = (x @ W[f"W_{name}"] for name in "QKV")
    shifted = W["D_K"] * K
    for i in range(len(x)):
        for back in range(min(i + 1, sizes["k"])):
            shifted[i] += W["w_K"][back] * K[i - back]
    found: Array = (Q * model(shifted * V, W, sizes["N"])) @ W["W_out"]
    return found


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


def test_nothing_of_h3_is_left_unexplained() -> None:
    everything_is_explained("h3", {"b": 2, "l": 5, "d": 3, "k": 2, "N": 2})


@each_name
@each_size
def test_equations_and_modules_equal_the_paper(name: str, sizes: Sizes) -> None:
    """In all forms and token by token; no weight ends at l."""
    equals_the_paper(name, sizes, paper, ROUNDING)


@each_name
def test_gradients_pass_through(name: str) -> None:
    for implementation in registry.implementations(name):
        assert gradients_pass(name, implementation, {"l": 3, "d": 2, "N": 2})


def discretised(name: str, d: int, N: int) -> int:
    """exp(log_step), exp(log_A), |A|^2; of each n step A, its exponential, less 1, times the
    conjugate of A, over |A|^2."""
    own = d * N if name == "s4d" else N
    return d + 4 * own + d * N * (2 + (1 + 1 + 1 + 2) + 1 + 6 + 2)


@each_name
@each_size
def test_operations(name: str, sizes: Sizes) -> None:
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
def test_parameters_and_state(name: str, sizes: Sizes) -> None:
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


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"b": 2, "l": 5, "d": 3, "N": 2})
