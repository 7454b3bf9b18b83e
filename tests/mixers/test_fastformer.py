"""Is Fastformer what Wu et al. 2021 (arXiv 2108.09084) write and run?"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cli
import costmodel as cm
from costmodel import Unanswered
from costmodel.commands.streams import FAILED
from costmodel.proofs.against_oracle import nonzero
from profiler.modules import Mixer, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equal_at_every_length,
    forward,
    gradients_pass,
    module_of,
    operations,
    reconciled,
    tensors,
)
from tests.small import by_sizes

NAME = "fastformer"
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2},
    {"l": 2, "d": 6, "n": 3},
    {"l": 3, "d": 5, "n": 1},
    {"l": 4, "d": 3, "n": 3},
    {"l": 1, "d": 2, "n": 1},
    {"l": 1, "d": 1, "n": 1},
]
ROUNDING = 1e-11
"""Five products in a row of normal numbers, sums of at most 6 terms, in float64."""

each_size = by_sizes(SIZES)


# The values, token by token: alpha_i = exp(w_q^T q_i / sqrt(h)) / sum_j ..., q = sum alpha_i q_i,
# p_i = q * k_i, beta and k in the same way, u_i = k * v_i, r_i a linear map of u_i, and r_i + q_i.
# The values are the queries. A head has weights of its own for its own channels.


def pooled(rows: list[Array], w: Array, b: Array, n: int) -> Array:
    """Every head's weighted sum of its channels, one after another."""
    width = len(rows[0]) // n
    whole = []
    for head in range(n):
        scores = [(row @ w[:, head] + b[head]) / math.sqrt(width) for row in rows]
        powers = [math.exp(score) for score in scores]
        weights = [power / sum(powers) for power in powers]
        for channel in range(head * width, (head + 1) * width):
            whole.append(sum(a * row[channel] for a, row in zip(weights, rows, strict=True)))
    return np.array(whole)


def paper(X: Array, W: Arrays, n: int) -> Array:
    queries = [x @ W["W_Q"] + W["b_Q"] for x in X]
    keys = [x @ W["W_K"] + W["b_K"] for x in X]
    q = pooled(queries, W["w_q"], W["b_q"], n)
    p = [q * key for key in keys]
    k = pooled(p, W["w_k"], W["b_k"], n)
    return np.array([(k * value) @ W["W_U"] + W["b_U"] + value for value in queries])


@each_size
def test_equations_equal_the_paper(sizes: Sizes) -> None:
    arrays = drawn(NAME, sizes)
    found = cm.evaluate(cm.mixer(NAME), arrays, sizes)
    expected = paper(arrays["x"], arrays, sizes["n"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@each_size
def test_the_module_equals_the_paper(sizes: Sizes) -> None:
    arrays = drawn(NAME, sizes)
    module = module_of(NAME, "explicit", sizes, arrays)
    equal_at_every_length(
        module, arrays["x"], lambda x: paper(x, arrays, sizes["n"]), ROUNDING, steps=False
    )  # no weight ends at l


class InTheShapeOfTheCode(nn.Module):
    """Our own words for what the authors' FastSelfAttention does, layer for layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.of_head = heads, width // heads
        self.query, self.key, self.transform = (nn.Linear(width, width) for _ in range(3))
        self.query_att, self.key_att = (nn.Linear(width, heads) for _ in range(2))
        self.double()

    def summed(self, rows: Tensor, layer: nn.Module) -> Tensor:
        scores = layer(rows).transpose(1, 2) / self.of_head**0.5
        parted = rows.reshape(*rows.shape[:2], self.heads, self.of_head)
        return torch.einsum("bhs,bshc->bhc", nn.functional.softmax(scores, -1), parted).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query(x), self.key(x)
        aware = key * self.summed(query, self.query_att)[:, None]
        y: Tensor = self.transform(self.summed(aware, self.key_att)[:, None] * query) + query
        return y


LAYERS = {
    "query": ("W_Q", "b_Q"),
    "key": ("W_K", "b_K"),
    "transform": ("W_U", "b_U"),
    "query_att": ("w_q", "b_q"),
    "key_att": ("w_k", "b_k"),
}


def loaded(theirs: Any, arrays: Arrays) -> None:
    """Give every linear layer of another implementation our weights; it has no others."""
    ours = tensors(arrays)
    with torch.no_grad():
        for layer, (weight, bias) in LAYERS.items():
            getattr(theirs, layer).weight.copy_(ours[weight].t())
            getattr(theirs, layer).bias.copy_(ours[bias])
    held = sum(parameter.numel() for parameter in theirs.parameters())
    assert held == sum(value.size for name, value in arrays.items() if name != "x")


@each_size
def test_it_equals_linear_layers_in_the_shape_of_the_code(sizes: Sizes) -> None:
    arrays = drawn(NAME, sizes)
    theirs = InTheShapeOfTheCode(sizes["d"], sizes["n"])
    loaded(theirs, arrays)
    x = arrays["x"]
    for ours, expected in zip(
        forward(module_of(NAME, "explicit", sizes, arrays), x, 1 - x),
        forward(theirs, x, 1 - x),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=ROUNDING)


def test_autograd_of_fastformer_equals_finite_differences() -> None:
    sizes = {"l": 3, "d": 4, "n": 2}
    assert gradients_pass(NAME, "explicit", sizes)


# The counts. Three d x d layers with bias: l d^2 products and as many additions each. Two scores of
# n heads with bias: l d n each of both, and l n divisions by sqrt(h). Two softmaxes of n rows of l.
# Two sums of l rows of d. Two products entry by entry. The queries added at the end.


def closed(l: int, d: int, n: int) -> dict[str, int]:
    found = {
        "mul": 3 * l * d * d + 2 * l * d * n + 2 * l * d + 2 * l * d,
        "add": 3 * l * d * d + 2 * l * d * n + 2 * n * (l - 1) + 2 * d * (l - 1) + l * d,
        "div": 2 * l * n + 2 * l * n,
        "exp": 2 * l * n,
    }
    return nonzero(found)


@each_size
def test_operations_of_fastformer_equal_a_count_by_hand(sizes: Sizes) -> None:
    assert operations(NAME, sizes) == closed(**sizes)


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 4, n = 2: layers 3*2*16 = 96; scores 2*2*4*2 = 32; sums 2*2*4 = 16 products and
    2*4 = 8 additions; products entry by entry 2*8 = 16; the softmaxes 4 additions and 8 divisions,
    as many as scales; the residual 8."""
    assert operations(NAME, {"l": 2, "d": 4, "n": 2}) == {
        "mul": 96 + 32 + 16 + 16, "add": 96 + 32 + 4 + 8 + 8, "div": 8 + 8, "exp": 8,
    }  # fmt: skip


def test_the_scale_is_one_division_a_score() -> None:
    l, d, n = 5, 6, 2
    sizes, plain = {"l": l, "d": d, "n": n}, closed(l, d, n)
    multiplied = operations(NAME, sizes, convention=("strict", "scale=mul"))
    assert multiplied["div"] == plain["div"] - 2 * l * n
    assert multiplied["mul"] == plain["mul"] + 2 * l * n
    folded = operations(NAME, sizes, convention=("strict", "scale=folded"))
    assert folded == {**plain, "div": plain["div"] - 2 * l * n}
    safe = operations(NAME, sizes, convention=("strict", "safe-softmax"))
    assert safe["compare"] == 2 * n * (l - 1) and safe["add"] == plain["add"] + 2 * n * l


@each_size
def test_parameters_of_fastformer_equal_a_count_by_hand(sizes: Sizes) -> None:
    """Five linear layers with bias, three of d units and two of n, and no values of their own."""
    d, n = sizes["d"], sizes["n"]
    expected = 3 * (d * d + d) + 2 * (d * n + n)
    assert cm.parameters(cm.mixer(NAME)).at(**sizes) == expected


def test_critical_path_and_span() -> None:
    """Query, its score, weights, global query, its product with the keys; then the same for the
    global key; then the last layer, its bias, and the query. lg d = 5, lg l = 4."""
    mixer = cm.mixer(NAME)
    score = "mul sum add div exp sum div mul sum mul"
    expected = f"mul sum add {score} {score} mul sum add add"
    assert " ".join(cm.critical_path(mixer).steps) == expected
    one = (1 + 5 + 1) + 1 + (1 + 4 + 1) + (1 + 4) + 1
    sizes = {"l": 9, "d": 24, "n": 2}
    assert cm.span(mixer).at(**sizes) == (1 + 5 + 1) + 2 * one + (1 + 5 + 1 + 1)


def test_the_claim_of_linear_complexity() -> None:
    """O(N d), as the paper counts it, is what lies between the layers: affine in l, for one head
    affine in d."""
    lengths = [cm.count(cm.mixer(NAME)).at(l=l, d=6, n=2).total for l in range(1, 6)]
    assert not np.diff(lengths, 2).any()

    def between(d: int) -> int:
        whole = cm.count(cm.mixer(NAME)).at(l=7, d=d, n=1).total
        return whole - 3 * 7 * d * (2 * d)  # three linear layers with bias

    assert not np.diff([between(d) for d in range(1, 6)], 2).any()


# Not causal


def test_one_token_has_a_reason_and_no_cost(capsys: pytest.CaptureFixture[str]) -> None:
    mixer = cm.mixer(NAME)
    for question in (cm.count, cm.span, cm.traffic, cm.critical_path):
        with pytest.raises(Unanswered, match="not causal: an output depends on later tokens"):
            question(mixer, "inference")
    with pytest.raises(Unanswered, match="not causal"):
        cm.state(mixer)
    (described,) = registry.implementations(NAME).values()
    assert described.step_form is None and not issubclass(described.module, Mixer)
    assert cli.run(f"table {NAME} --phase inference --format json".split()) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["total"] is None
    assert cli.run(f"profile {NAME} --phase inference --d 4 --n 2 --l 3".split()) == FAILED
    out, err = capsys.readouterr()
    assert out == "" and err == (
        "costmodel: fastformer: not causal: an output depends on later tokens, so that one new "
        "token cannot be measured\n"
    )


def test_nothing_is_left_unexplained() -> None:
    (found,) = reconciled(NAME, {"b": 2, "l": 5, "d": 6, "n": 2}, "training")
    assert found.explained, found.unexplained
    assert [cause.name for cause in found.causes] == ["safe-softmax"]
    assert [peer.unexplained for peer in found.peers] == [0, 0]


def test_bad_sizes_are_refused() -> None:
    (described,) = registry.implementations(NAME).values()
    with pytest.raises(ValueError, match="d must be divisible by n: d = 6 and n = 4"):
        described.module(d=6, l=3, n=4)
