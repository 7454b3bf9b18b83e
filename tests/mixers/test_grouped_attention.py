"""Is `self-attention+grouped` the grouped-query and multi-query attention of the papers?

Ainslie et al. 2023 (arXiv 2305.13245, section 2.2): the n heads of queries are divided into g
groups, each of which shares one head of keys and one of values. Shazeer 2019 (arXiv 1911.02150,
sections 2.4 and 3) lists one token and a whole sequence with g = 1. Values and operations are
written here from them, with the scale of Vaswani et al. 2017 (arXiv 1706.03762, eq. (1)), which
Shazeer's code leaves out (section 2.2: it can be folded into P_q or P_k).
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from tests.mixers import held
from tests.mixers.held import Array, Arrays, Sizes, drawn, operations, same
from tests.small import by_sizes

NAME = "self-attention+grouped"
EXTENTS = ((5, 8, 4, 2), (4, 12, 6, 2), (3, 12, 6, 3), (4, 4, 4, 2), (1, 8, 4, 2), (4, 6, 3, 1),
           (1, 6, 3, 1), (4, 6, 3, 3), (1, 6, 2, 2), (2, 1, 1, 1))  # fmt: skip
each_size = by_sizes([dict(zip("ldng", extents, strict=True)) for extents in EXTENTS])
each_name = pytest.mark.parametrize("name", [NAME, f"{NAME}+bidirectional"])
PHASES = ("training", "inference", "training-step")
ROUNDING = 1e-11
"""Sums of at most 12 products of sums of 12, and an exponential of them, in float64."""


def by_head(W: Arrays, sizes: Sizes) -> list[Array]:
    """P_q (n, d, h), P_k (g, d, h), P_v (g, d, h) and P_o (n, d, h), as Shazeer writes them; head u
    of the queries stands in group u // (n/g) at place u % (n/g), so that heads follow in order."""
    d, n, g = (sizes[letter] for letter in "dng")
    heads = {"W_Q": n, "W_K": g, "W_V": g}
    P = [W[name].reshape(d, number, d // n).swapaxes(0, 1) for name, number in heads.items()]
    return [*P, W["W_out"].reshape(n, d // n, d).swapaxes(1, 2)]


class Decoder:
    """Attention that keeps keys and values and tallies each operation that it computes."""

    def __init__(self, W: Arrays, sizes: Sizes) -> None:
        self.P_q, self.P_k, self.P_v, self.P_o = by_head(W, sizes)
        self.K: list[list[list[float]]] = []  # by token, head and channel
        self.V: list[list[list[float]]] = []
        self.tally: Counter[str] = Counter()

    def sum(self, terms: list[float]) -> float:
        self.tally["add"] += len(terms) - 1
        return sum(terms[1:], start=terms[0])

    def dot(self, a: list[float] | Array, b: list[float] | Array) -> float:
        products = [float(p) * float(q) for p, q in zip(a, b, strict=True)]
        self.tally["mul"] += len(products)
        return self.sum(products)

    def remember(self, x: Array) -> None:
        """new_K and new_V: a key and a value of the token for every group."""
        for kept, heads in ((self.K, self.P_k), (self.V, self.P_v)):
            kept.append([[self.dot(x, column) for column in P.T] for P in heads])

    def attend(self, x: Array) -> list[float]:
        """y of one token over all that is remembered."""
        O: list[float] = []
        for u, P in enumerate(self.P_q):
            j = u // (len(self.P_q) // len(self.P_k))
            q = [self.dot(x, column) for column in P.T]
            powers = [math.exp(self.dot(q, k[j]) / math.sqrt(len(q))) for k in self.K]
            total = self.sum(powers)
            weights = [power / total for power in powers]
            self.tally.update(exp=len(powers), div=len(powers) + len(weights))
            O += [self.dot(weights, [v[j][c] for v in self.V]) for c in range(len(q))]
        return [self.dot(O, self.P_o[:, b].reshape(-1)) for b in range(len(x))]

    def rows(self, x: Array, causal: bool) -> Array:
        """Rows that see those up to themselves, or all."""
        y = []
        for row in x:
            self.remember(row)
            y += [self.attend(row)] if causal else []
        return np.array(y if causal else [self.attend(row) for row in x])


@each_name
@each_size
def test_equations_of_grouped_attention_give_the_values_of_the_paper(
    name: str, sizes: Sizes
) -> None:
    """Equations and modules, at every length, two sequences at once and token by token."""
    causal = name == NAME
    held.equals_the_paper(name, sizes, lambda x, W, s: Decoder(W, s).rows(x, causal), ROUNDING)


@pytest.mark.parametrize("l", [1, 4])
def test_one_group_is_the_listing_of_multi_query_attention(l: int) -> None:
    """MultiqueryAttentionBatched of Shazeer's section 3, its logits over sqrt(k) with k = 2."""
    sizes = {"l": l, "d": 6, "n": 3, "g": 1}
    arrays = drawn(NAME, sizes)
    X, (P_q, P_k, P_v, P_o) = arrays["x"], by_head(arrays, sizes)
    logits = np.einsum("hnk,mk->hnm", np.einsum("nd,hdk->hnk", X, P_q) / math.sqrt(2), X @ P_k[0])
    powers = np.exp(logits + np.triu(np.full((l, l), -np.inf), 1))
    O = np.einsum("hnm,mv->hnv", powers / powers.sum(-1, keepdims=True), X @ P_v[0])
    Y = np.einsum("hnv,hdv->nd", O, P_o)
    same(cm.evaluate(cm.mixer(NAME), arrays, sizes), Y, ROUNDING)


@each_size
def test_operations_parameters_and_state(sizes: Sizes) -> None:
    """Those of the loops, of each token by itself and of whole sequences."""
    arrays, grouped = drawn(NAME, sizes), cm.mixer(NAME)
    assert cm.parameters(grouped).at(**sizes) == sum(P.size for P in by_head(arrays, sizes))
    decoder, total = Decoder(arrays, sizes), Counter[str]()
    for t, row in enumerate(arrays["x"], start=1):
        decoder.rows(row[None], causal=True)
        assert operations(NAME, {**sizes, "t": t}, phase="inference") == decoder.tally - total
        assert cm.state(grouped).at(**sizes, t=t) == np.size(decoder.K) + np.size(decoder.V)
        total = Counter(decoder.tally)
    assert operations(NAME, sizes) == +total
    (whole := Decoder(arrays, sizes)).rows(arrays["x"], causal=False)
    assert operations(f"{NAME}+bidirectional", sizes) == +whole.tally


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("l", [1, 4])
def test_a_group_for_every_head_is_plain_self_attention(l: int, n: int) -> None:
    plain, grouped = cm.mixer("self-attention"), cm.mixer(NAME)
    sizes, t = {"l": l, "d": 6, "n": n}, {"t": l + 2}
    both = sizes | {"g": n}
    for phase in PHASES:
        expected = operations("self-attention", sizes | t, phase=phase)
        assert operations(NAME, both | t, phase=phase) == expected
        assert cm.span(grouped, phase).at(**both, **t) == cm.span(plain, phase).at(**sizes, **t)
    assert cm.parameters(grouped).at(**both) == cm.parameters(plain).at(**sizes)
    assert cm.state(grouped).at(**both, **t) == cm.state(plain).at(**sizes, **t)
    W = drawn("self-attention", sizes)
    apart = {"W_Q": W["W_Q"].reshape(6, n, -1), "W_out": W["W_out"].reshape(n, -1, 6)}

    def values(x: Array) -> Array:
        return cm.evaluate(plain, W | {"x": x}, sizes)

    same(cm.evaluate(grouped, W | apart, both), values(W["x"]), ROUNDING)
    for name in ("explicit", "sdpa"):
        module = held.module_of(NAME, name, both, W | apart)
        held.equal_whole_and_stepped(module, W["x"], values, ROUNDING)


@each_name
@pytest.mark.parametrize("implementation", ["explicit", "sdpa"])
@pytest.mark.parametrize("g", [1, 2, 4])
def test_autograd_of_grouped_attention_equals_finite_differences(
    name: str, implementation: str, g: int
) -> None:
    assert held.gradients_pass(name, implementation, {"l": 3, "d": 8, "n": 4, "g": g})


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("g", [1, 2, 4])
def test_nothing_is_left_unexplained(phase: str, g: int) -> None:
    for found in held.reconciled(NAME, {"b": 2, "l": 5, "d": 8, "n": 4, "g": g}, phase):
        assert found.explained, (found.implementation, found.unexplained)
