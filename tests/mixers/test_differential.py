"""Is differential attention that of Ye et al. 2024 (arXiv 2410.05258, section 2.1), with heads of
keys in groups?

Values are taken in loops over heads and rows, and costs from formulas by hand.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.errors import SizeError
from profiler.modules import build, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    equals_the_paper,
    everything_is_explained,
    gradients_pass,
    operations,
)

NAME = "differential-attention"
SIZES: list[Sizes] = [
    {"l": 5, "d": 8, "n": 4, "g": 2},
    {"l": 4, "d": 12, "n": 3, "g": 3},
    {"l": 1, "d": 3, "n": 1, "g": 1},
]
ROUNDING = 1e-12
"""Sums of at most 12 products, a softmax and a norm, in float64."""

each_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    found: Array = powers / powers.sum()
    return found


def turned(rows: Array) -> Array:
    """Rows of a head, channel c with c + h/2, by (i - 1) 10000^(-2(c-1)/h)."""
    half, found = rows.shape[1] // 2, rows.copy()
    for i, row in enumerate(rows):
        for c in range(half):
            angle = i * 10_000 ** (-c / half)
            u, v = row[c], row[c + half]
            found[i, c] = u * math.cos(angle) - v * math.sin(angle)
            found[i, c + half] = v * math.cos(angle) + u * math.sin(angle)
    return found


def paper(x: Array, W: Arrays, sizes: Sizes, *, rotary: bool = False) -> Array:
    """(softmax(Q_1 K_1) - lambda softmax(Q_2 K_2)) V of each head, normed, times 0.8."""
    n, g = sizes["n"], sizes["g"]
    h = sizes["d"] // n
    first, second = (math.exp(W["lambda_Q"][s] @ W["lambda_K"][s]) for s in range(2))
    weight = first - second + 0.8 - 0.6
    y = np.zeros((len(x), sizes["d"]))
    for head in range(n):
        j, o = divmod(head, n // g)
        own = slice(o * h, (o + 1) * h)
        Q = [x @ W["W_Q"][:, s, j, own] for s in range(2)]
        K = [x @ W["W_K"][:, s, j] for s in range(2)]
        if rotary:
            Q, K = ([turned(rows) for rows in of] for of in (Q, K))
        V = x @ W["W_V"][:, j]
        for i in range(len(x)):
            A = [softmax(K[s][: i + 1] @ Q[s][i] / math.sqrt(h)) for s in range(2)]
            o_i = (A[0] - weight * A[1]) @ V[: i + 1]
            o_i = o_i / math.sqrt((o_i**2).mean() + 2**-52)
            y[i] += 0.8 * o_i @ W["W_out"][j, o * 2 * h : (o + 1) * 2 * h]
    return y


@each_size
def test_both_forms_and_modules_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper(NAME, sizes, paper, ROUNDING, beyond=1)


def test_queries_and_keys_turn() -> None:
    equals_the_paper(
        f"{NAME}+rotary", SIZES[0], lambda x, W, sizes: paper(x, W, sizes, rotary=True), ROUNDING,
        beyond=0,
    )  # fmt: skip


def linear(a: int, b: int) -> Counter[str]:
    return Counter(mul=a * b, add=(a - 1) * b)


@pytest.mark.parametrize(("d", "n", "g", "h", "t"), [(7, 4, 2, 3, 5), (5, 8, 4, 2, 1)])
def test_a_token_counts_two_softmaxes_and_one_read(d: int, n: int, g: int, h: int, t: int) -> None:
    """lambda is work on parameters alone, and none of a token's."""
    scores = Counter(mul=t * h, add=t * (h - 1) + t - 1, div=2 * t, exp=t)
    norm = Counter(mul=4 * h, add=2 * h, div=2 * h + 1, sqrt=1)  # and times 0.8
    head = Counter(mul=t + 2 * h * t, add=t + 2 * h * (t - 1)) + norm
    for _ in range(2):
        head += scores
    maps = linear(d, 2 * n * h) + linear(d, 4 * g * h) + linear(2 * n * h, d)
    expected = maps + Counter({name: n * number for name, number in head.items()})
    name, sizes = f"{NAME}{{n={n},g={g},h={h}}}", {"d": d, "l": 9, "t": t}
    assert Counter(operations(name, sizes, phase="inference")) == +expected
    twice = Counter(operations(name, sizes, phase="inference", form="outputs"))
    more = {"mul": n * (4 * h * t + 2 * h - 2 * h * t - t),
            "add": n * (4 * h * (t - 1) + 2 * h - 2 * h * (t - 1) - t)}  # fmt: skip
    assert {each: twice[each] - expected[each] for each in more} == more


@pytest.mark.parametrize(("d", "n", "g", "h"), [(7, 4, 2, 3), (2048, 16, 4, 64)])
def test_parameters_and_state_are_those_of_the_shipped_layer(
    d: int, n: int, g: int, h: int
) -> None:
    mixer = cm.mixer(f"{NAME}{{n={n},g={g},h={h}}}")
    assert cm.parameters(mixer).at(d=d) == 4 * d * n * h + 4 * d * g * h + 4 * h
    assert cm.state(mixer).at(d=d, l=99, t=7) == 4 * g * h * 7


def test_nothing_is_left_unexplained() -> None:
    everything_is_explained(NAME, {**SIZES[2], "b": 2, "l": 3})


def test_gradients_of_both_pass_through() -> None:
    for name in registry.implementations(NAME):
        assert gradients_pass(NAME, name, {**SIZES[0], "l": 3})


def test_heads_that_make_no_groups_are_refused() -> None:
    with pytest.raises(SizeError, match="needs n/g to be whole"):
        cm.count(cm.mixer(NAME)).at(l=3, d=6, n=3, g=2)
    for described in registry.implementations(NAME).values():
        with pytest.raises(ValueError, match="n = 3 heads are not divisible into g = 2 groups"):
            build(described, {"l": 3, "d": 6, "n": 3, "g": 2}, device="cpu", dtype=torch.float64,
                  seed=0)  # fmt: skip
