"""Is attention by random features that of its papers: Performer, Choromanski et al. 2020 (arXiv
2009.14794), and random feature attention, Peng et al. 2021 (arXiv 2103.02143)?

Values and operations are written row by row from the paper; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from costmodel import order
from costmodel.proofs.against_oracle import nonzero
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
from tests.small import by_sizes

FULL = ("performer", "rfa")
SUMMED, GATED = ("performer+causal", "rfa+causal"), "rfa+gate"
CAUSAL = (*SUMMED, GATED)
NAMES = (*FULL, *CAUSAL)
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "m": 4, "C": 2},
    {"l": 3, "d": 4, "n": 4, "m": 3, "C": 5},
    {"l": 1, "d": 1, "n": 1, "m": 1, "C": 1},
]
"""More features than channels of a head, and as many."""
ROUNDING = 1e-9
"""Exponentials of sums of a few products of normal numbers, the largest some hundred, their
quotients and five products in a row, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_causal = pytest.mark.parametrize("name", CAUSAL)
each_size = by_sizes(SIZES)


def at(name: str, sizes: Sizes) -> Sizes:
    """The sizes that the mixer has, and the batch."""
    return {letter: sizes[letter] for letter in sizes if letter in (*cm.mixer(name).letters, "b")}


def positive(w: Array, row: Array) -> Array:
    """exp(w u - |u|^2/2) / sqrt(m) of the row over the fourth root of its width."""
    u = row / len(row) ** 0.25
    return np.array([math.exp(one @ u - u @ u / 2) for one in w]) / math.sqrt(len(w))


def fourier(w: Array, row: Array) -> Array:
    """Sines, then cosines, of w u for the row over its length."""
    angles = w @ row / math.sqrt(row @ row)
    return np.array([*map(math.sin, angles), *map(math.cos, angles)]) / math.sqrt(len(w))


def features(name: str, W: Arrays, j: int, row: Array) -> Array:
    """Those of a row of head j."""
    if name.startswith("performer"):
        return positive(W["w"], row)
    return fourier(W["sigma"].reshape(-1, len(row))[j] * W["w"][j], row)


def left(name: str, gates: Array, k: int, i: int) -> float:
    """How much of row k is in the sums of row i: what k added, times what each row since kept."""
    return float((1 - gates[k]) * gates[k + 1 : i + 1].prod()) if name == GATED else 1


def paper(name: str, x: Array, W: Arrays, sizes: Sizes) -> Array:
    """A weight for every pair: phi(q) phi(k) over its sum, for all keys or the earlier ones, of
    which gates leave a part."""
    (l, d), n = x.shape, sizes["n"]
    h, heads = d // n, np.zeros((l, d))
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        queries, keys = (
            [features(name, W, j, row @ W[M][:, own]) for row in x] for M in ("W_Q", "W_K")
        )
        gates = np.zeros(l)
        if name == GATED:
            gates = 1 / (1 + np.exp(-x @ W["W_g"][:, j] - W["b_g"][j]))
        for i in range(l):
            seen = range(i + 1 if name in CAUSAL else l)
            weights = np.array([left(name, gates, k, i) * (queries[i] @ keys[k]) for k in seen])
            for k in seen:
                heads[i, own] += weights[k] / weights.sum() * (x[k] @ W["W_V"][:, own])
    return heads @ W["W_out"]


@each_name
@each_size
def test_equations_and_modules_equal_the_paper(name: str, sizes: Sizes) -> None:
    equals_the_paper(name, sizes, lambda x, W, sizes: paper(name, x, W, sizes), ROUNDING)


@each_name
def test_autograd_of_random_features_equals_finite_differences(name: str) -> None:
    implementation = "recurrent" if name in CAUSAL else "explicit"
    sizes = at(name, {"l": 3, "d": 2, "n": 2, "m": 2, "C": 2})
    assert gradients_pass(name, implementation, sizes)


def test_weights_are_those_of_the_softmax_on_average() -> None:
    """exp(q k / sqrt(h)), and of unit rows exp(q k - 1), within two hundredths for 20,000 features;
    the deviation of one is about 1."""
    q, k = np.array([0.3, -0.5, 0.2, 0.4]), np.array([0.1, 0.6, -0.7, 0.3])
    w = np.random.default_rng(2).normal(size=(20_000, 4))
    assert abs(positive(w, q) @ positive(w, k) - math.exp(q @ k / 2)) < 0.02
    cosine = q @ k / math.sqrt((q @ q) * (k @ k))
    assert abs(fourier(w, q) @ fourier(w, k) - math.exp(cosine - 1)) < 0.02


class Tally(Counter[str]):
    """Operations by name."""

    def dot(self, terms: int, times: int = 1) -> None:
        """So many sums of this many products."""
        self["mul"] += terms * times
        self["add"] += (terms - 1) * times

    def rows(self, name: str, l: int, sizes: Sizes) -> int:
        """Four maps of l rows, features of queries and keys, one division a channel; how many
        features there are."""
        d, n, m = sizes["d"], sizes["n"], sizes["m"]
        h = d // n
        self.dot(d, 4 * l * d)
        self["div"] += l * d
        if name.startswith("rfa"):
            for _ in range(2 * l * n):  # u over its length, then w u, sine and cosine over sqrt(m)
                self.dot(h, 1 + m)
                self["sqrt"] += 1
                self["div"] += h
                self["mul"] += 2 * m
                self["sin"] += m
                self["cos"] += m
            return 2 * m
        for _ in range(2 * l * n):  # u, its square over 2, then w u less that, exp, over sqrt(m)
            self["mul"] += h + m
            self.dot(h, 1 + m)
            self["div"] += 1
            self["add"] += m
            self["exp"] += m
        return m

    def found(self) -> dict[str, int]:
        """Those of which there are any."""
        return {name: number for name, number in self.items() if number}


@pytest.mark.parametrize("name", FULL)
@each_size
def test_operations_of_all_rows(name: str, sizes: Sizes) -> None:
    """m h products and m keys, each summed over l rows; a row reads both. Once, a product for each
    number that a frequency has by training."""
    (l, d, n), tally = (sizes[letter] for letter in "ldn"), Tally()
    m = tally.rows(name, l, sizes)
    tally.dot(l, n * m * (d // n))
    tally["add"] += n * m * (l - 1)
    tally.dot(m, l * d + l * n)
    found = cm.count(cm.mixer(name)).at(**at(name, sizes))
    assert nonzero(found.by_class()) == tally.found()
    once = {"mul": d * sizes["m"]} if name == "rfa" else {}
    assert nonzero(found.once.by_class() if found.once else {}) == once


@pytest.mark.parametrize("name", SUMMED)
@each_size
def test_operations_of_earlier_rows(name: str, sizes: Sizes) -> None:
    """A row adds its m h products and m keys, the first one nothing, and reads both; by pairs, m
    products a pair and head, their sum, and h values weighted by them."""
    l, d, n = (sizes[letter] for letter in "ldn")
    for form in ("recurrent", "parallel"):
        tally = Tally()
        m = tally.rows(name, l, sizes)
        if form == "recurrent":
            tally["mul"] += l * m * d
            tally["add"] += (l - 1) * (m * d + m * n)
            tally.dot(m, l * d + l * n)
        else:
            for i in range(1, l + 1):
                tally.dot(m, i * n)
                tally["add"] += n * (i - 1)
                tally.dot(i, d)
        found = cm.count(cm.mixer(name), form=form).at(**at(name, sizes))
        assert nonzero(found.by_class()) == tally.found(), form


@each_size
def test_operations_of_gated_rows(sizes: Sizes) -> None:
    """A gate a head, a sum of d products, a bias and a sigmoid, and 1 less it; 2m keys times that;
    and what the sums of a later row keep."""
    l, d, n = (sizes[letter] for letter in "ldn")
    tally = Tally()
    m = tally.rows(GATED, l, sizes)
    tally.dot(d, l * n)
    tally.update(add=3 * l * n, exp=l * n, div=l * n, mul=l * n * m)
    tally["mul"] += l * m * d + (l - 1) * (m * d + m * n)
    tally["add"] += (l - 1) * (m * d + m * n)
    tally.dot(m, l * d + l * n)
    assert nonzero(cm.count(cm.mixer(GATED)).at(**at(GATED, sizes)).by_class()) == tally.found()


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1, n = 1, m = 1: 8 products of maps; 2 features of queries, 2 of keys, of 4
    products, an exponential, a division and an addition each; two products of keys and values, two
    that read them, two that read the keys; one addition of each sum; two divisions."""
    found = operations("performer", {"l": 2, "d": 1, "n": 1, "m": 1})
    assert found == {"mul": 8 + 16 + 6, "add": 4 + 2, "div": 4 + 2, "exp": 4}


@each_causal
def test_one_token_adds_up_to_the_whole(name: str) -> None:
    """What is done once is in neither."""
    sizes, mixer = {"d": 6, "n": 2, "m": 3}, cm.mixer(name)
    for form in {*mixer.forms} & {"recurrent", "parallel"}:
        whole, tokens = cm.count(mixer, form=form).at(**sizes, l=7), Counter[str]()
        for t in range(1, 8):
            tokens.update(operations(name, {**sizes, "t": t}, phase="inference", form=form))
        assert nonzero(tokens) == nonzero(whole.by_class())


@each_causal
def test_state_of_random_features_equals_a_count_by_hand(name: str) -> None:
    """The sums of m h products and m keys a head; by pairs m and h numbers for every token; 2m in
    place of m with sines and cosines."""
    mixer, sizes = cm.mixer(name), {"d": 12, "n": 3, "m": 5}
    m = 10 if name.startswith("rfa") else 5
    for t in (1, 2, 90):
        assert cm.state(mixer, "recurrent").at(**sizes, t=t) == 3 * (m * 4 + m)
        if name in SUMMED:
            assert cm.state(mixer, "parallel").at(**sizes, t=t) == t * (3 * m + 12)


@each_name
def test_parameters_of_random_features_equal_a_count_by_hand(name: str) -> None:
    """Four maps; of random feature attention a sigma for each channel, and a gate's d + 1 numbers a
    head. What is drawn is not trained."""
    more = (6 if name.startswith("rfa") else 0) + (2 * 7 if name == GATED else 0)
    assert cm.parameters(cm.mixer(name)).at(d=6, n=2, m=5) == 4 * 36 + more


@each_name
def test_the_claim_is_linear_in_the_length_for_a_fixed_m(name: str) -> None:
    """Section 2.3: O(L m d) beside the maps; by pairs O(L^2)."""
    found = {str(m) for m in order(cm.count(cm.mixer(name)).exact_total).monomials}
    assert {"d**2*l", "d*l*m"} == found


@pytest.mark.parametrize("name", FULL)
def test_one_token_has_a_reason_and_no_cost(name: str) -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(name), "inference")


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "implementation"), modules_of(NAMES))
def test_nothing_is_left_unexplained(name: str, implementation: str) -> None:
    sizes = at(name, {"b": 2, "l": 5, "d": 6, "n": 2, "m": 3, "C": 2})
    everything_is_explained(name, sizes, implementation)
