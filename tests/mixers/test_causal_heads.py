"""Do the heads of the thesis have its values, counts and gradients?

Joao Terroa, "Exploring Causal Attention Models in Transformers for Large Language Models", 2024.
Values, operations, levels, parameters and what is kept are written here from chapters 2, 4, 6 and
7 of the thesis alone, and from the shape of the author's code; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import costmodel as cm
from costmodel import mixer
from costmodel.errors import UnknownMixer
from profiler.modules import Implementation, Mixer, Unsupported, attention, build, registry
from tests.small import by_sizes

Array = NDArray[np.float64]
Weights = dict[str, Array]
Sizes = dict[str, int]

NAMES = ("ssa", "ssa-split", "lsa", "vsa", "slsa", "vlsa", "vlsa-trained")
LAYERED = {"lsa", "slsa", "vlsa", "vlsa-trained"}
ALL = [it for name in NAMES for it in registry.implementations(name).values()]
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "v": 3},
    {"l": 7, "d": 6, "n": 3, "v": 2},
    {"l": 3, "d": 5, "n": 1, "v": 2},
    {"l": 2, "d": 5, "n": 5, "v": 3},
    {"l": 4, "d": 6, "n": 2, "v": 1},
    {"l": 1, "d": 1, "n": 1, "v": 1},
]
ROUNDING = 1e-12
"""Sums of at most some dozen products of size about one, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)
each = pytest.mark.parametrize("described", ALL, ids=lambda i: f"{i.mixer}-{i.name}")

# --------------------------------------------------------------------------------------------------
# The values, in matrices as the thesis prints them. A head's weights are columns of an array.
# --------------------------------------------------------------------------------------------------


def causal_attention(scores: Array, d_k: int, V: Array) -> Array:
    """(2.2)-(2.3): softmax(scores / sqrt(d_k) + M) V, M above the diagonal minus infinity."""
    length = len(scores)
    M = np.array([[-math.inf if i < j else 0.0 for j in range(length)] for i in range(length)])
    powers = np.exp(scores / math.sqrt(d_k) + M)
    attention: Array = powers / powers.sum(axis=1, keepdims=True)
    return attention @ V


def columns(W: Array, head: int, n: int) -> Array:
    """The weights of one head, of n equal blocks of columns."""
    width = W.shape[1] // n
    return W[:, head * width : (head + 1) * width]


def layers(v: Array, L1: Array, L2: Array) -> Array:
    """Section 4.2.1, Figure 4.3: L1's output is added to V; L2's, through a sigmoid, gates it."""
    gate: Array = 1 / (1 + np.exp(-(v @ L2)))
    return (v + v @ L1) * gate


def thesis(name: str, X: Array, W: Weights, sizes: Sizes) -> Array:
    """(2.4): the heads side by side, times W_out."""
    n, d = sizes["n"], sizes["d"]
    heads = []
    for head in range(n):
        mine = {key: columns(value, head, n) for key, value in W.items() if key != "W_out"}
        V = X @ mine["W_V"]  # (4.6)
        if name in LAYERED:
            V = layers(V, mine["L_1"], mine["L_2"])
        if name in ("ssa", "slsa"):
            scores, d_k = X @ mine["W_U"] @ X.T, d // n  # (4.5), (4.7)
        elif name == "ssa-split":  # heads/ssa.py: the head's channels of x W_U and of x itself
            scores, d_k = (X @ mine["W_U"]) @ columns(X, head, n).T, d
        else:
            Q, K = X @ mine["W_Q"], X @ mine["W_K"]  # (4.2)
            scores, d_k = Q @ K.T, K.shape[1]  # (4.1)
        heads.append(causal_attention(scores, d_k, V))
    return np.concatenate(heads, axis=1) @ W["W_out"]


def shapes(name: str, d: int, n: int, v: int) -> dict[str, tuple[int, int]]:
    """What a layer learns: n matrices d_in x d_out side by side, and the output projection.

    W_U is d x d in every head, or once; v widens queries and keys, or the whole head.
    """
    h = d // n
    value = v * h if name == "vlsa-trained" else h
    scores = {
        "ssa": {"W_U": (d, n * d)},
        "slsa": {"W_U": (d, n * d)},
        "ssa-split": {"W_U": (d, d)},
        "lsa": {"W_Q": (d, d), "W_K": (d, d)},
    }.get(name, {"W_Q": (d, v * d), "W_K": (d, v * d)})
    inner = {"L_1": (value, n * value), "L_2": (value, n * value)} if name in LAYERED else {}
    return scores | {"W_V": (d, n * value)} | inner | {"W_out": (n * value, d)}


def random_weights(name: str, sizes: Sizes) -> Weights:
    """Entries of about 1/sqrt(terms)."""
    given = np.random.default_rng(5)
    d, n, v = (sizes[letter] for letter in "dnv")
    return {
        key: given.standard_normal(shape) / math.sqrt(shape[0])
        for key, shape in shapes(name, d, n, v).items()
    }


def sequence(sizes: Sizes) -> Array:
    """(l, d)."""
    return np.random.default_rng(7).standard_normal((sizes["l"], sizes["d"]))


@each_name
@each_size
def test_the_equations_are_the_thesis_s(name: str, sizes: Sizes) -> None:
    X, W = sequence(sizes), random_weights(name, sizes)
    found = cm.evaluate(mixer(name), {"x": X, **W}, sizes)
    np.testing.assert_allclose(found, thesis(name, X, W, sizes), atol=ROUNDING)


@each_name
def test_a_bias_on_the_output_is_added_to_it(name: str) -> None:
    X, W = sequence(SIZES[0]), random_weights(name, SIZES[0])
    bias = np.arange(6.0)
    arrays = {"x": X, **W, "b_out": bias}
    found = cm.evaluate(mixer(f"{name}+output-bias"), arrays, SIZES[0])
    np.testing.assert_allclose(found, thesis(name, X, W, SIZES[0]) + bias, atol=ROUNDING)


def test_other_readings_of_the_gate_are_told_apart() -> None:
    """L2 reads v, not v + L1 v; and W_U stands between x and x^T, not the other way about."""
    X, W = sequence(SIZES[0]), random_weights("slsa", SIZES[0])
    expected = thesis("slsa", X, W, SIZES[0])
    for changed in ("W_U", "L_1", "L_2"):
        n = SIZES[0]["n"]
        turned = [columns(W[changed], head, n).T for head in range(n)]
        other = {**W, changed: np.concatenate(turned, axis=1)}
        assert abs(thesis("slsa", X, other, SIZES[0]) - expected).max() > 1e-3
    V = X @ columns(W["W_V"], 0, 2)
    L1, L2 = (columns(W[key], 0, 2) for key in ("L_1", "L_2"))
    after = (V + V @ L1) / (1 + np.exp(-((V + V @ L1) @ L2)))
    assert abs(after - layers(V, L1, L2)).max() > 1e-3


# --------------------------------------------------------------------------------------------------
# The operations, one loop per printed product. A sum of R terms is R - 1 additions.
# --------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Operations by class."""

    mul: int = 0
    add: int = 0
    div: int = 0
    exp: int = 0

    def row_times_matrix(self, terms: int, columns: int) -> None:
        for _ in range(columns):
            self.mul += terms
            self.add += terms - 1

    def token(self, name: str, t: int, d: int, n: int, v: int) -> None:
        """What token t takes: its rows, then its attention to tokens 1..t."""
        h = d // n
        key = {"ssa": d, "slsa": d, "vsa": v * h, "vlsa": v * h, "vlsa-trained": v * h}.get(name, h)
        value = v * h if name == "vlsa-trained" else h
        for _ in range(n):
            self.row_times_matrix(d, key)  # queries, or x W_U
            if "ssa" not in name and name != "slsa":
                self.row_times_matrix(d, key)  # keys
            self.row_times_matrix(d, value)
            if name in LAYERED:
                self.row_times_matrix(value, value)  # L1
                self.row_times_matrix(value, value)  # L2
                for _ in range(value):
                    self.add += 1  # v + L1 v
                    self.exp += 1  # 1 / (1 + e^-z)
                    self.add += 1
                    self.div += 1
                    self.mul += 1  # times the gate
            for _ in range(t):
                self.row_times_matrix(key, 1)  # a score
                self.div += 1  # by sqrt(d_k)
                self.exp += 1
                self.div += 1  # by their sum
            self.add += t - 1
            self.row_times_matrix(t, value)  # weighted values
        self.row_times_matrix(n * value, d)  # output projection


def tallied(name: str, tokens: range, sizes: Sizes) -> dict[str, int]:
    tally = Tally()
    for t in tokens:
        tally.token(name, t, sizes["d"], sizes["n"], sizes["v"])
    return {"mul": tally.mul, "add": tally.add, "div": tally.div, "exp": tally.exp}


@each_name
@each_size
def test_operations_are_those_of_the_loops(name: str, sizes: Sizes) -> None:
    known = mixer(name)
    whole = cm.count(known).at(**sizes)
    assert whole.by_class() == tallied(name, range(1, sizes["l"] + 1), sizes)
    for t in (1, 2, sizes["l"]):
        token = cm.count(known, "inference").at(**{**sizes, "t": t})
        assert token.by_class() == tallied(name, range(t, t + 1), sizes)


# l = 3, d = 4, n = 2 (h = 2), v = 3, so 6 pairs of tokens and 3 rows in each of 2 heads. By hand:
#   a map of 4 to k channels: 12 k mul, 9 k add; scores of width w: 12 w mul, 12 (w - 1) add;
#   scale and softmax: 24 div, 12 exp, 6 add; values of width u: 12 u mul, 6 u add;
#   L1, L2 of width u: 12 u^2 mul, 12 u (u-1) add; then v + L1 v and the gate, 6 u of each of
#   mul, div and exp, 12 u of add.
BY_HAND = {
    # W_U: k = 8; V and output: k = 4; w = 4, u = 2
    "ssa": {"mul": 96 + 96 + 48 + 24, "add": 72 + 72 + 36 + 6 + 12, "div": 24, "exp": 12},
    # W_U, V and output: k = 4; w = 2, u = 2
    "ssa-split": {"mul": 144 + 24 + 24, "add": 108 + 12 + 6 + 12, "div": 24, "exp": 12},
    # Q, K, V and output: k = 4; w = 2, u = 2; 48 + 12 mul and 24 + 24 add of the layers
    "lsa": {"mul": 240 + 60, "add": 174 + 48, "div": 36, "exp": 24},
    # Q, K: k = 12; V and output: k = 4; w = 6, u = 2
    "vsa": {"mul": 288 + 96 + 72 + 24, "add": 216 + 72 + 60 + 6 + 12, "div": 24, "exp": 12},
    "slsa": {"mul": 264 + 60, "add": 198 + 48, "div": 36, "exp": 24},
    "vlsa": {"mul": 480 + 60, "add": 366 + 48, "div": 36, "exp": 24},
    # Q, K, V: k = 12; output of 12 to 4: 144 mul, 132 add; w = u = 6; layers 432 + 36, 360 + 72
    "vlsa-trained": {
        "mul": 432 + 144 + 72 + 72 + 468,
        "add": 324 + 132 + 60 + 6 + 36 + 432,
        "div": 60,
        "exp": 48,
    },
}


@each_name
def test_operations_are_those_counted_by_hand(name: str) -> None:
    found = cm.count(mixer(name)).at(l=3, d=4, n=2, v=3)
    assert found.by_class() == BY_HAND[name]


# --------------------------------------------------------------------------------------------------
# Parameters, state, critical path
# --------------------------------------------------------------------------------------------------

# One layer of the thesis's network (section 6.2): d = 256, n = 4, so h = 64, without its bias.
PER_LAYER = [
    ("self-attention", 1, 4 * 256**2),
    ("ssa", 1, 4 * 256**2 + 2 * 256**2),
    ("ssa-split", 1, 3 * 256**2),
    ("lsa", 1, 4 * 256**2 + 2 * 4 * 64**2),
    ("slsa", 1, 6 * 256**2 + 2 * 4 * 64**2),
    ("vsa", 2, 2 * 2 * 256**2 + 2 * 256**2),
    ("vlsa", 2, 6 * 256**2 + 2 * 4 * 64**2),
    ("vlsa-trained", 1, 4 * 256**2 + 2 * 4 * 64**2),
    ("vlsa-trained", 2, 4 * 2 * 256**2 + 2 * 4 * 128**2),
    ("vlsa-trained", 3, 4 * 3 * 256**2 + 2 * 4 * 192**2),
]


@pytest.mark.parametrize(("name", "v", "parameters"), PER_LAYER)
def test_parameters_of_a_layer_equal_those_of_the_thesis(
    name: str, v: int, parameters: int
) -> None:
    assert cm.parameters(mixer(name)).at(d=256, n=4, v=v) == parameters
    if name == "self-attention":
        return
    biased = cm.parameters(mixer(f"{name}+output-bias")).at(d=256, n=4, v=v)
    assert biased == parameters + 256


def network(attention: int) -> int:
    """Section 6.2: 4 layers, d = 256, 254 positions; an alphabet of 340 characters.

    Karpathy's ng-video-lecture, which the thesis names: embeddings, per layer the heads, an FFN of
    4 d with biases and two norms, a last norm and a head with bias.
    """
    d, u, length = 256, 340, 254
    layer = attention + (4 * d * d + 4 * d) + (4 * d * d + d) + 4 * d
    return u * d + length * d + 4 * layer + 2 * d + d * u + u


@pytest.mark.parametrize(
    ("name", "v", "printed", "exact"),
    [
        ("self-attention", 1, "3.3959", 3_395_924),
        ("ssa", 1, "3.9202", 3_920_212),
        ("vlsa-trained", 1, "3.5270", 3_526_996),
        ("vlsa-trained", 2, "4.9688", 4_968_788),
        ("vlsa-trained", 3, "6.6727", 6_672_724),
    ],
)
def test_parameters_equal_table_7_4_of_the_thesis(
    name: str, v: int, printed: str, exact: int
) -> None:
    """Millions of parameters, with the output projection's bias, to the printed digit."""
    parameters = network(cm.parameters(mixer(name)).at(d=256, n=4, v=v) + 256)
    assert (parameters, f"{parameters / 1e6:.4f}") == (exact, printed)


@pytest.mark.parametrize(("v", "printed"), [(2, "4.9688"), (3, "6.6727")])
def test_the_text_s_vlsa_is_not_the_table_s(v: int, printed: str) -> None:
    """Section 4.2.2 widens queries and keys alone; Table 7.4 cannot be reproduced so."""
    parameters = network(cm.parameters(mixer("vlsa")).at(d=256, n=4, v=v) + 256)
    assert f"{parameters / 1e6:.4f}" != printed


def test_vsa_at_2_has_half_as_many_parameters_again() -> None:
    """Section 4.2.2: "a 50% increase"."""
    wide, baseline = (cm.parameters(mixer(name)) for name in ("vsa", "self-attention"))
    assert 2 * wide.at(d=96, n=4, v=2) == 3 * baseline.at(d=96, n=4)


@each_name
@each_size
def test_what_is_kept_between_tokens(name: str, sizes: Sizes) -> None:
    """x, shared by the heads, or the keys; and the values, layered where there are layers."""
    t, d, v = 4, sizes["d"], sizes["v"]
    keys, values = {
        "vsa": (v * d, d),
        "vlsa": (v * d, d),
        "vlsa-trained": (v * d, v * d),
    }.get(name, (d, d))
    state = cm.state(mixer(name))
    assert state.at(**{**sizes, "t": t}) == t * keys + t * values
    held = "x" if name in ("ssa", "ssa-split", "slsa") else "K"
    assert set(state.arrays) == {held, "V_gated" if name in LAYERED else "V"}


SCORES = ("mul", "sum", "mul", "sum", "div", "exp", "sum", "div")
VALUES = ("mul", "sum", "mul", "sum", "exp", "add", "div", "mul")
END = ("mul", "sum", "mul", "sum")


@each_name
def test_the_critical_path_runs_through_the_scores(name: str) -> None:
    assert cm.critical_path(mixer(name)).steps == SCORES + END


@pytest.mark.parametrize("t", [1, 3])
def test_gating_the_values_takes_as_many_steps(t: int) -> None:
    """The chains of queries, of keys and of gated values are equally long."""
    found = cm.critical_path(mixer("lsa"), "inference", sizes={"l": 4, "d": 6, "n": 2, "t": t})
    assert found.steps in (SCORES + END, VALUES + END) and len(SCORES) == len(VALUES)


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        # h = 4, d = 8: a projection 1 + 3, a score 1 + 2, scale 1, exp 1, sum over 5 tokens 3,
        # division 1, weighted values 1 + 3, output 1 + 3
        ("lsa", 4 + 3 + 1 + 1 + 3 + 1 + 4 + 4),
        ("ssa-split", 4 + 3 + 1 + 1 + 3 + 1 + 4 + 4),
        # a score is 8 wide
        ("ssa", 4 + 4 + 1 + 1 + 3 + 1 + 4 + 4),
        ("slsa", 4 + 4 + 1 + 1 + 3 + 1 + 4 + 4),
        # 12 wide: 1 + 4
        ("vsa", 4 + 5 + 1 + 1 + 3 + 1 + 4 + 4),
        # the output projection sums 24 terms: 1 + 5
        ("vlsa-trained", 4 + 5 + 1 + 1 + 3 + 1 + 4 + 6),
    ],
)
def test_span_of_the_thesis_heads_equals_levels_counted_by_hand(name: str, levels: int) -> None:
    assert cm.span(mixer(name)).at(l=5, d=8, n=2, v=3) == levels


# --------------------------------------------------------------------------------------------------
# Modules
# --------------------------------------------------------------------------------------------------


def made(described: Implementation, sizes: Sizes, **given: Any) -> Mixer:
    options: dict[str, Any] = {"device": "cpu", "dtype": torch.float64, "seed": 3, **given}
    module = build(described, sizes, **options)
    assert isinstance(module, Mixer)
    return module


def tokens(batch: int, sizes: Sizes) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    shape = (batch, sizes["l"], sizes["d"])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@each
@each_size
@pytest.mark.parametrize("batch", [1, 3])
def test_modules_equal_the_thesis(described: Implementation, sizes: Sizes, batch: int) -> None:
    module, x = made(described, sizes), tokens(batch, sizes)
    weights = {key: value.detach().numpy() for key, value in module.named_parameters()}
    d, n, v = (sizes[letter] for letter in "dnv")
    assert {key: value.shape for key, value in weights.items()} == shapes(described.mixer, d, n, v)
    expected = np.stack([thesis(described.mixer, X, weights, sizes) for X in x.numpy()])
    np.testing.assert_allclose(module(x).detach().numpy(), expected, atol=ROUNDING)
    state = module.initial_state(batch)
    for array in state.arrays.values():
        array.fill_(math.nan)
    for t in range(1, sizes["l"] + 1):
        y_t = module.step(x[:, t - 1], state)
        np.testing.assert_allclose(y_t.numpy(), expected[:, t - 1], atol=ROUNDING)
        kept = sum(int(array.isfinite().sum()) for array in state.arrays.values())
        assert kept == batch * state.elements
        assert state.elements == cm.state(mixer(described.mixer)).at(**{**sizes, "t": t})
    assert set(state.arrays) == set(cm.state(mixer(described.mixer)).arrays)


@each
def test_autograd_of_the_thesis_heads_equals_finite_differences(described: Implementation) -> None:
    sizes = {"l": 3, "d": 2, "n": 2, "v": 2}
    module, x = made(described, sizes), tokens(2, sizes).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))
    module(x).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert not module.step(x[:, 0], module.initial_state(2)).requires_grad


def test_the_thesis_s_network_has_a_bias_on_the_output() -> None:
    sizes = SIZES[0]
    x = tokens(2, sizes)
    for name in NAMES:
        for described in registry.implementations(f"{name}+output-bias").values():
            module = made(described, sizes)
            plain = made(registry.implementations(name)[described.name], sizes)
            held = module.state_dict()
            bias = held.pop("b_out")
            plain.load_state_dict(held)
            assert bias.count_nonzero() == sizes["d"]
            torch.testing.assert_close(module(x), plain(x) + bias, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("ssa", "slsa")])
def test_what_stands_in_for_self_attention(name: str) -> None:
    """Its own parts switched off, a variant is multi-head attention as torch has it.

    L1 = 0 and L2 = 0 halve the values; v = 1 widens nothing. W_U = 0 (split) attends evenly.
    """
    sizes: Sizes = {"l": 5, "d": 6, "n": 3, "v": 1}
    module = made(registry.implementations(name)["explicit"], sizes)
    weights = dict(module.named_parameters())
    theirs = nn.MultiheadAttention(6, 3, bias=False, batch_first=True, dtype=torch.float64)
    nothing = torch.zeros(6, 6, dtype=torch.float64)
    with torch.no_grad():
        for layer in ("L_1", "L_2", "W_U"):
            if layer in weights:
                weights[layer].zero_()
        inner = [weights.get("W_Q", nothing), weights.get("W_K", nothing), weights["W_V"]]
        theirs.in_proj_weight.copy_(torch.cat(inner, dim=1).t())
        theirs.out_proj.weight.copy_(weights["W_out"].t())
    x = tokens(2, sizes)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=later, need_weights=False)
    scale = 0.5 if name in LAYERED else 1.0
    torch.testing.assert_close(module(x), scale * expected, atol=ROUNDING, rtol=0)


def test_ssa_is_self_attention_where_W_U_is_a_product() -> None:
    """(4.4): W_U = W_Q W_K^T of each head gives back the baseline."""
    sizes = SIZES[1]
    n, h, x = sizes["n"], sizes["d"] // sizes["n"], tokens(2, SIZES[1])
    baseline = made(registry.implementations("self-attention")["explicit"], sizes)
    known = baseline.state_dict()
    W_Q, W_K = (known[name].view(-1, n, h) for name in ("W_Q", "W_K"))
    W_U = torch.cat([W_Q[:, j] @ W_K[:, j].t() for j in range(n)], dim=1)
    ssa = made(registry.implementations("ssa")["explicit"], sizes)
    ssa.load_state_dict({"W_U": W_U, "W_V": known["W_V"], "W_out": known["W_out"]})
    torch.testing.assert_close(ssa(x), baseline(x), atol=ROUNDING, rtol=0)


# Our own reading of how the author builds these heads: for the exploratory phase all heads in one
# module of torch.nn.Linear with biases, L1 and L2 shared by them; for the confirmatory phase a
# module per head without biases.


class AllHeads(nn.Module):
    """The exploratory phase: `kind` says what makes scores, `k` widens queries and keys."""

    def __init__(self, d: int, n: int, *, split: bool, layered: bool, k: int = 1) -> None:
        super().__init__()
        self.n, self.split, self.layered = n, split, layered
        self.score = nn.Linear(d, d if split else 2 * k * d)
        self.value, self.out = nn.Linear(d, d), nn.Linear(d, d)
        if layered:
            self.l1, self.l2 = nn.Linear(d // n, d // n), nn.Linear(d // n, d // n)

    def forward(self, x: Tensor) -> Tensor:
        made, v = self.score(x), self.value(x)
        left, right = (made, x) if self.split else made.chunk(2, dim=-1)
        left, right, v = (torch.stack(part.chunk(self.n, dim=-1), 1) for part in (left, right, v))
        width = x.shape[-1] if self.split else right.shape[-1]
        scores = torch.einsum("bntc,bnsc->bnts", left, right) * width**-0.5
        after = torch.ones(scores.shape[-2:]).tril() == 0
        weights = scores.masked_fill(after, -torch.inf).softmax(dim=-1)
        if self.layered:
            v = (v + self.l1(v)) * self.l2(v).sigmoid()
        return self.out(torch.cat((weights @ v).unbind(1), dim=-1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ssa-split", {"split": True, "layered": False}),
        ("lsa", {"split": False, "layered": True}),
        ("vsa", {"split": False, "layered": False, "k": 3}),
        ("vlsa", {"split": False, "layered": True, "k": 3}),
    ],
)
def test_exploratory_heads_equal_the_authors_code(name: str, given: dict[str, Any]) -> None:
    """With one L1 and L2 in every head and no bias, ours are the heads of the author's code."""
    sizes = SIZES[0]
    d, n, x = sizes["d"], sizes["n"], tokens(2, SIZES[0])
    theirs = AllHeads(d, n, **given).double()
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if key.endswith("bias"):
                parameter.zero_()
    linear = {key: value.t() for key, value in theirs.state_dict().items() if value.dim() == 2}
    held = {"W_V": linear["value.weight"], "W_out": linear["out.weight"]}
    if given["split"]:
        held["W_U"] = linear["score.weight"]
    else:
        held["W_Q"], held["W_K"] = linear["score.weight"].chunk(2, dim=1)
    if given["layered"]:
        held |= {
            L: linear[f"{key}.weight"].repeat(1, n) for L, key in (("L_1", "l1"), ("L_2", "l2"))
        }
    for described in registry.implementations(name).values():
        ours = made(described, sizes)
        ours.load_state_dict(held)
        torch.testing.assert_close(ours(x), theirs(x), atol=ROUNDING, rtol=0)


@pytest.mark.parametrize(
    ("given", "percent"),
    [
        ({"split": False, "layered": True}, "0.20"),  # section 4.2.1
        ({"split": False, "layered": False, "k": 2}, "50.00"),  # section 4.2.2
    ],
)
def test_the_percentages_of_section_4_2(given: dict[str, Any], percent: str) -> None:
    """They are those of an attention sublayer with biases, d = 768 and n = 16, L1, L2 shared."""
    changed, baseline = (
        sum(parameter.numel() for parameter in module.parameters())
        for module in (
            AllHeads(768, 16, **given),
            AllHeads(768, 16, split=False, layered=False),
        )
    )
    assert f"{100 * (changed / baseline - 1):.2f}" == percent


class OneHead(nn.Module):
    """The confirmatory phase: one head without biases, `width` wide."""

    def __init__(self, d: int, width: int, *, unified: bool, layered: bool) -> None:
        super().__init__()
        self.key = None if unified else nn.Linear(d, width, bias=False)
        self.query = nn.Linear(d, d if unified else width, bias=False)
        self.value = nn.Linear(d, width, bias=False)
        self.layers = (
            nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
            if layered
            else None
        )
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        keys = x if self.key is None else self.key(x)
        scores = self.query(x) @ keys.mT / self.width**0.5
        after = torch.ones(scores.shape[-2:]).tril() == 0
        weights = scores.masked_fill(after, -torch.inf).softmax(dim=-1)
        v = self.value(x)
        if self.layers is not None:
            v = (v + self.layers[0](v)) * self.layers[1](v).sigmoid()
        return weights @ v  # type: ignore[no-any-return]


CONFIRMATORY = [
    ("ssa", 1, {"unified": True, "layered": False}),
    ("slsa", 1, {"unified": True, "layered": True}),
    ("lsa", 1, {"unified": False, "layered": True}),
    ("vlsa-trained", 3, {"unified": False, "layered": True}),
]


@pytest.mark.parametrize(("name", "v", "given"), CONFIRMATORY)
def test_confirmatory_heads_equal_the_authors_code(
    name: str, v: int, given: dict[str, bool]
) -> None:
    """A module per head and an output projection with bias: equal values, as many parameters."""
    sizes: Sizes = {"l": 5, "d": 6, "n": 2, "v": v}
    d, n, x = 6, 2, tokens(2, sizes)
    heads = [OneHead(d, v * d // n, **given).double() for _ in range(n)]
    projection = nn.Linear(v * d, d).double()
    expected = projection(torch.cat([head(x) for head in heads], dim=-1))
    names = {"key": "W_K", "query": "W_U" if given["unified"] else "W_Q", "value": "W_V"}
    names |= {"layers.0": "L_1", "layers.1": "L_2"}
    held = {
        names[key.removesuffix(".weight")]: torch.cat(
            [head.state_dict()[key].t() for head in heads], dim=1
        )
        for key in heads[0].state_dict()
    }
    held |= {"W_out": projection.weight.t(), "b_out": projection.bias}
    theirs = [*projection.parameters(), *(p for head in heads for p in head.parameters())]
    biased = f"{name}+output-bias"
    assert cm.parameters(mixer(biased)).at(d=d, n=n, v=v) == sum(p.numel() for p in theirs)
    for described in registry.implementations(biased).values():
        ours = made(described, sizes)
        ours.load_state_dict(held)
        torch.testing.assert_close(ours(x), expected, atol=ROUNDING, rtol=0)


# What is dispatched: literal tables of the calls that compute.

FREE = {"view", "_unsafe_view", "expand", "transpose", "t", "slice", "select", "unsqueeze"}
FREE |= {"squeeze", "clone", "copy_", "ones", "triu", "masked_fill", "detach", "cat"}
LAYERS = {"bmm": 2, "add": 1, "sigmoid": 1, "mul": 1}
DENSE = {"bmm": 2, "div": 1, "_softmax": 1}
FUSED = {"_scaled_dot_product_flash_attention_for_cpu": 1}
PROJECTIONS = {"ssa": 3, "ssa-split": 3, "slsa": 3}


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """The names of the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    def counted(self) -> Counter[str]:
        return Counter({name: n for name, n in self.calls.items() if name not in FREE})


@each
@pytest.mark.parametrize("batch", [1, 2])
def test_the_calls_are_few_and_known(described: Implementation, batch: int) -> None:
    sizes = SIZES[0]
    module, x = made(described, sizes), tokens(batch, sizes)
    expected = Counter({"mm": PROJECTIONS.get(described.mixer, 4)})
    expected.update(FUSED if described.name == "sdpa" else DENSE)
    expected.update(LAYERS if described.mixer in LAYERED else {})
    with Dispatched() as whole:
        module(x)
    assert whole.counted() == expected
    state = module.initial_state(batch)
    for t in range(2):
        module.step(x[:, t], state)
    with Dispatched() as one:
        module.step(x[:, 2], state)
    assert one.counted() == expected
    assert not {"clone", "cat"} & one.calls.keys(), "the state is copied"


def test_a_fused_call_is_offered_where_a_kernel_takes_it() -> None:
    """Queries and values of one width: the CPU's fused kernel takes no other heads."""
    fused = {name for name in NAMES if "sdpa" in registry.implementations(name)}
    assert fused == {"ssa-split", "lsa", "vlsa-trained"}
    q, v = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 4)
    refused = r"no fused attention kernel on cpu for torch.float32 with heads of width 8 and values"
    with pytest.raises(Unsupported, match=refused):
        attention.sdpa_attention(q, q, v, by=8, causal=True)


@pytest.mark.parametrize("causal", [True, False])
def test_one_row_of_keys_serves_all_heads(causal: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    q, k, v = (
        torch.randn(2, n, 5, width, generator=generator, dtype=torch.float64)
        for n, width in ((3, 4), (1, 4), (3, 2))
    )
    attend: Callable[..., Tensor] = attention.dense_attention
    shared = attend(q, k, v, by=7, causal=causal)
    repeated = attend(q, k.expand(2, 3, 5, 4).clone(), v, by=7, causal=causal)
    torch.testing.assert_close(shared, repeated, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("lsa", {"l": 5, "d": 6, "n": 4}, "d must be divisible by n: d = 6 and n = 4"),
        ("vsa", {"l": 5, "d": 6, "n": 2}, "vsa explicit needs the size v and was given l, d, n"),
        ("vlsa-trained", {"l": 5, "d": 6, "n": 2, "v": 0}, "size v must be a positive integer"),
        ("vlsa-trained", {"l": 5, "d": 7, "n": 3, "v": 2}, "v\\*d must be divisible by n: v = 2, "),
        ("vlsa", {"l": 5, "d": 7, "n": 3, "v": 3}, "d must be divisible by n: d = 7 and n = 3"),
        ("ssa", {"l": 5, "d": 6, "n": 0}, "size n must be a positive integer and is 0"),
    ],
)
def test_bad_sizes_are_refused(name: str, sizes: Sizes, message: str) -> None:
    for described in registry.implementations(name).values():
        with pytest.raises(ValueError, match=message):
            made(described, sizes)


@pytest.mark.parametrize("described", registry.implementations("vlsa-trained").values())
def test_wide_heads_fit_where_their_own_width_is_whole(described: Implementation) -> None:
    """Of v = 3, d = 7 and n = 3 a head is 7 wide, though d/n is a fraction."""
    sizes = {"l": 5, "d": 7, "n": 3, "v": 3}
    module, x = made(described, sizes), tokens(2, sizes)
    weights = {key: value.detach().numpy() for key, value in module.named_parameters()}
    assert sum(map(np.size, weights.values())) == cm.parameters(mixer("vlsa-trained")).at(**sizes)
    expected = np.stack([thesis("vlsa-trained", X, weights, sizes) for X in x.numpy()])
    np.testing.assert_allclose(module(x).detach().numpy(), expected, atol=ROUNDING)
    assert cm.count(mixer("vlsa-trained")).at(**sizes).total > 0


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownMixer, match=r"lsa has no option 'bias'.*output-bias"):
        mixer("lsa+bias")
