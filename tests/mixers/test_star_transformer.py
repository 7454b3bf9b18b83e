"""Is the Star-Transformer that of the paper: its values, and every operation counted?

Written from Algorithm 1 of Guo et al. 2019, node by node; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
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

NAME = "star-transformer"
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "T": 3},
    {"l": 3, "d": 4, "n": 4, "T": 2},
    {"l": 2, "d": 6, "n": 3, "T": 5},
    {"l": 4, "d": 2, "n": 1, "T": 1},
    {"l": 1, "d": 1, "n": 1, "T": 2},
]
"""A ring of several rows, of three, of two that are neighbours twice; one round; a row that is its
own neighbour."""
ROUNDING = 1e-9
"""Five rounds of sums of some dozen products; a norm divides by at least sqrt(1e-5)."""
each_size = by_sizes(SIZES)


def multi_att(query: Array, context: Array, W: Arrays, by: str, n: int) -> Array:
    """MultiAtt(q, C): softmax(q W_Q (C W_K)^T / sqrt(h)) C W_V of every head, side by side, W_O."""
    heads = []
    for columns in np.split(np.arange(len(query)), n):
        q, k, v = (
            rows @ W[f"W_{one}{by}"][:, columns]
            for one, rows in (("Q", query), ("K", context), ("V", context))
        )
        powers = np.exp(k @ q / math.sqrt(len(columns)))
        heads.append(powers / powers.sum() @ v)
    return np.concatenate(heads) @ W[f"W_out{by}"]


def normed(row: Array, W: Arrays, by: str) -> Array:
    """LayerNorm(ReLU(row))."""
    row = np.maximum(row, 0)
    unit = (row - row.mean()) / np.sqrt(row.var() + 1e-5)
    return np.asarray(unit * W[f"gain{by}"] + W[f"bias{by}"])


def paper(x: Array, W: Arrays, sizes: Sizes) -> Array:
    """H^T of Algorithm 1."""
    l, n = len(x), sizes["n"]
    h, s = list(x), x.mean(axis=0)
    for _ in range(sizes["T"]):
        contexts = [np.array([h[i - 1], h[i], h[(i + 1) % l], x[i], s]) for i in range(l)]
        h = [normed(multi_att(h[i], contexts[i], W, "", n), W, "") for i in range(l)]
        s = normed(multi_att(s, np.array([s, *h]), W, "_s", n), W, "_s")
    return np.array(h)


@each_size
def test_equations_and_module_equal_the_paper(sizes: Sizes) -> None:
    equals_the_paper(NAME, sizes, paper, ROUNDING)


def test_the_first_and_the_last_row_are_neighbours() -> None:
    """Where the last two rows change and the mean stays, so does the second row of a round, and the
    first does not."""
    sizes: Sizes = {"l": 5, "d": 6, "n": 2, "T": 1}
    chance = np.random.default_rng(1)
    arrays = {
        name: chance.normal(size=tuple(extent.at(sizes) for extent in array.shape))
        for name, array in cm.mixer(NAME).arrays.items()
        if array.role in ("input", "parameter")
    }
    moved = arrays["x"].copy()
    moved[4] += 1
    moved[3] -= 1
    before, after = (
        cm.evaluate(cm.mixer(NAME), {**arrays, "x": x}, sizes) for x in (arrays["x"], moved)
    )
    apart = abs(after - before).max(axis=1)
    assert apart[1] < 1e-12 < 1e-6 < apart[[0, 2, 3, 4]].min()


def test_gradients_pass_through() -> None:
    assert gradients_pass(NAME, "explicit", {"l": 3, "d": 4, "n": 2, "T": 2})


@each_size
def test_operations(sizes: Sizes) -> None:
    """T rounds of the rows, T - 1 of the relay; the input's keys and values are mapped once, every
    other row once a round, and the relay for the rows and for itself."""
    l, d, n, T = (sizes[letter] for letter in "ldnT")
    h, found = d // n, Counter[str]()

    def dot(terms: int, times: int) -> None:
        found.update(mul=terms * times, add=(terms - 1) * times)

    def attend(keys: int) -> None:
        for _ in range(n):
            dot(h, keys)
            found.update(div=2 * keys, exp=keys, add=keys - 1)
            dot(keys, h)

    def norm() -> None:
        dot(d, d)
        found.update(compare=d, mul=2 * d, add=d - 1 + d + d - 1 + 1 + d, div=2 + d, sqrt=1)

    found.update(add=d * (l - 1), div=d)
    dot(d, 2 * l * d)
    for number in range(T):
        dot(d, 3 * l * d + 2 * d)
        for _ in range(l):
            attend(5)
            norm()
        if number < T - 1:
            dot(d, d + 2 * (l + 1) * d)
            attend(l + 1)
            norm()
    assert operations(NAME, sizes) == nonzero(found)


def test_operations_of_a_small_case() -> None:
    """Two rows of one channel, one round. Products: 4 of the input's maps, 6 and 2 of the round's,
    20 of the pairs, 2 of W_out, 4 of norms. Exponentials: one for each of 10 pairs."""
    found = operations(NAME, {"l": 2, "d": 1, "n": 1, "T": 1})
    assert found == {
        "mul": 38,
        "add": 1 + 16 + 6,
        "div": 1 + 20 + 6,
        "exp": 10,
        "sqrt": 2,
        "compare": 2,
    }


@each_size
def test_parameters(sizes: Sizes) -> None:
    """Four maps and a norm for the rows, and for the relay; all rounds share them."""
    d = sizes["d"]
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == 8 * d * d + 4 * d


@pytest.mark.parametrize("T", [1, 2, 5])
def test_it_is_linear_in_the_length(T: int) -> None:
    totals = [cm.count(cm.mixer(NAME)).at(l=l, d=6, n=2, T=T).total for l in range(1, 7)]
    assert not np.diff(totals, 2).any()


def test_every_row_is_one_hop_away() -> None:
    """The first relay is the mean of all rows."""
    assert cm.path_length(cm.mixer(NAME)).at(l=9, d=2, n=1, T=3) == 1


def test_one_token_has_a_reason_and_no_cost() -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(NAME), "inference")


@by_sizes([sizes for sizes in SIZES if sizes["T"] > 1])
def test_nothing_is_left_unexplained(sizes: Sizes) -> None:
    everything_is_explained(NAME, {**sizes, "b": 2})
