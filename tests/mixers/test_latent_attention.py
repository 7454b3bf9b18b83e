"""Is `mla` the latent attention of DeepSeek-V2 and V3, in each of its three forms?

Values are computed from DeepSeek-V2, arXiv 2405.04434, eqs. (9)-(19), with the norms of the latent
rows that its section 3.1.2 adds and pairs of neighbouring channels rotated as complex numbers, in
loops that keep what a decoder keeps and tally each operation. Figures of checkpoints are those of
their configurations.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter

import numpy as np
import pytest

import costmodel as cm
from profiler.mixers.latent_attention import Absorbed
from tests.mixers import held
from tests.mixers.held import Array, Arrays, Sizes, drawn, operations

NAMES = (
    "mla", "mla+query-compression+bias", "mla+nope+bias+head-gate",
    "mla+query-compression+no-shared-key",
)  # fmt: skip
FORMS = ("expanded", "absorbed", "re-expanded")
SIZES = {"l": 4, "d": 6, "n": 3, "K": 2, "V": 3, "c": 5, "R": 4, "r": 7}
OTHERS = {"l": 3, "d": 5, "n": 2, "K": 4, "V": 1, "c": 3, "R": 2, "r": 2}
each_name = pytest.mark.parametrize("name", NAMES)
each_form = pytest.mark.parametrize("form", FORMS)
each_size = pytest.mark.parametrize("sizes", [SIZES, OTHERS], ids=["", "others"])
ROUNDING = 1e-11
"""Sums of at most 9 products of sums of 7, and an exponential of them, in float64."""

Row = list[float]

V3 = {"d": 7168, "n": 128, "K": 128, "V": 128, "R": 64, "c": 512, "r": 1536}
V3_LAYERS = 61
KIMI = {"d": 2304, "n": 32, "K": 128, "V": 128, "R": 64, "c": 512}


class Decoder:
    """Latent attention that keeps rows of tokens and tallies each operation that it computes."""

    def __init__(self, name: str, form: str, W: Arrays, sizes: Sizes) -> None:
        self.form, self.turned, self.n = form, name in NAMES[:2], sizes["n"]
        self.W, self.R = W, sizes["R"] if "W_KR" in W else 0
        self.scale = math.sqrt(sizes["K"] + self.R)
        self.kept: list[dict[str, Row]] = []
        self.tally: Counter[str] = Counter()

    def sum(self, terms: Row) -> float:
        self.tally["add"] += len(terms) - 1
        return sum(terms[1:], start=terms[0])

    def dot(self, a: Row, b: Row) -> float:
        self.tally["mul"] += len(a)
        return self.sum([p * q for p, q in zip(a, b, strict=True)])

    def times(self, row: Row, name: str, head: int | None = None) -> Row:
        """row W plus the bias of W, if there is one; or the columns of one head."""
        found = [self.dot(row, list(column)) for column in self.columns(name, head)]
        bias = self.W.get(name.replace("W", "b"))
        if bias is None:
            return found
        self.tally["add"] += len(found)
        return [u + b for u, b in zip(found, bias, strict=True)]

    def columns(self, name: str, head: int | None = None) -> Array:
        W = self.W[name].T
        return W if head is None else W.reshape(self.n, -1, W.shape[1])[head]

    def normed(self, row: Row, gain: Array) -> Row:
        self.tally.update(mul=2 * len(row), add=len(row), div=1 + len(row), sqrt=1)
        root = math.sqrt(sum(u * u for u in row) / len(row) + 1e-6)
        return [u / root * g for u, g in zip(row, gain, strict=True)]

    def placed(self, row: Row) -> Row:
        """RoPE at the position of the token that comes now, the first one being 0."""
        if not self.turned:
            return row
        found: Row = []
        for p in range(len(row) // 2):
            angle = len(self.kept) * 10_000 ** (-2 * p / len(row))
            pair = complex(*row[2 * p : 2 * p + 2]) * cmath.exp(1j * angle)
            self.tally.update(mul=4, add=2)
            found += [pair.real, pair.imag]
        return found

    def step(self, x: Row) -> Row:
        W, heads = self.W, range(self.n)
        row = self.normed(self.times(x, "W_DQ"), W["gain_Q"]) if "W_DQ" in W else x
        own = [self.times(row, "W_UQ", j) for j in heads]
        shared = [self.placed(self.times(row, "W_QR", j)) if self.R else [] for j in heads]
        new = {"C": self.normed(self.times(x, "W_DKV"), W["gain_KV"])}
        if self.R:
            new["R"] = self.placed(self.times(x, "W_KR"))
        if self.form == "expanded":
            C = new.pop("C")
            new |= {f"K{j}": self.times(C, "W_UK", j) for j in heads}
            new |= {f"V{j}": self.times(C, "W_UV", j) for j in heads}
        self.kept.append(new)
        sums: Row = []
        for j in heads:
            if self.form == "re-expanded":
                for kept in self.kept:
                    kept[f"K{j}"] = self.times(kept["C"], "W_UK", j)
                    kept[f"V{j}"] = self.times(kept["C"], "W_UV", j)
            if self.form == "absorbed":
                q = [self.dot(own[j], list(a)) for a in self.columns("W_UK", j).T]
                m = self.attend(q, shared[j], "C", "C")
                sums += self.times(m, "W_UV", j)
            else:
                sums += self.attend(own[j], shared[j], f"K{j}", f"V{j}")
        for kept in self.kept if self.form == "re-expanded" else ():
            for j in heads:
                del kept[f"K{j}"], kept[f"V{j}"]
        if "W_G" in W:
            powers = [math.exp(-number) for number in self.times(x, "W_G")]
            gates = [1 / (1 + power) for power in powers for _ in range(len(sums) // self.n)]
            self.tally.update(mul=len(sums), add=self.n, div=self.n, exp=self.n)
            sums = [gate * u for gate, u in zip(gates, sums, strict=True)]
        return self.times(sums, "W_O")

    def attend(self, own: Row, shared: Row, keys: str, values: str) -> Row:
        """Eq. (18) of one head, over what is kept."""
        scores = [self.dot(own + shared, k[keys] + k.get("R", [])) for k in self.kept]
        powers = [math.exp(score / self.scale) for score in scores]
        total = self.sum(powers)
        self.tally.update(exp=len(powers), div=2 * len(powers))
        weights = [power / total for power in powers]
        columns = zip(*(k[values] for k in self.kept), strict=True)
        return [self.dot(weights, list(column)) for column in columns]

    @property
    def state(self) -> int:
        return sum(len(row) for kept in self.kept for row in kept.values())


def own(name: str, sizes: Sizes) -> dict[str, int]:
    """The sizes that a mixer has."""
    return {letter: sizes[letter] for letter in cm.mixer(name).letters}


@each_name
@each_size
def test_equations_and_modules_give_the_values_of_the_paper(name: str, sizes: Sizes) -> None:
    """Every form; modules at every length, two sequences at once and token by token."""

    def paper(x: Array, W: Arrays, _: Sizes) -> Array:
        decoder = Decoder(name, "expanded", W, sizes)
        return np.array([decoder.step(list(row)) for row in x])

    held.equals_the_paper(name, sizes, paper, ROUNDING, beyond=0)


@each_name
@each_form
@each_size
def test_operations_and_state_of_each_token(name: str, form: str, sizes: Sizes) -> None:
    mixer, sizes = cm.mixer(name), own(name, sizes)
    W = drawn(name, sizes)
    decoder = Decoder(name, form, W, {"R": 0, **sizes})
    total = Counter[str]()
    for t, row in enumerate(W["x"], start=1):
        decoder.step(list(row))
        asked = {**sizes, "t": t}
        assert operations(name, asked, phase="inference", form=form) == decoder.tally - total
        assert cm.state(mixer, form).at(**asked) == decoder.state
        total = Counter(decoder.tally)
    assert operations(name, sizes, form=form) == +total


@each_size
def test_products_of_scores_and_values_of_one_token(sizes: Sizes) -> None:
    """As counted without the projections of the token itself, at 7 tokens: t n(d_n + d_R + d_v) as
    written, t n(2 d_c + d_R) + n d_c(d_n + d_v) absorbed, and t d_c n(d_n + d_v) more than as
    written where keys and values are made again."""
    n, K, V, R, c, d = (sizes[letter] for letter in "nKVRcd")
    t = 7
    projections = d * n * (K + R) + d * (c + R) + 2 * c + n * V * d + 2 * (n + 1) * R
    expansion = c * n * (K + V)
    cores = {
        "expanded": t * n * (K + R + V) + expansion,
        "absorbed": t * n * (2 * c + R) + expansion,
        "re-expanded": t * n * (K + R + V) + t * expansion,
    }
    for form, core in cores.items():
        found = cm.count(cm.mixer("mla"), "inference", form).at(**own("mla", sizes), t=t)
        assert found.mul == projections + core
        assert (found.exp, found.div) == (n * t, 2 * n * t + c + 1)


@each_size
def test_a_head_attends_as_wide_self_attention_does(sizes: Sizes) -> None:
    """The table's row `softmax attention` with keys of K + R channels, one product a score being
    the scale: r(K + R + 1 + V) products and r(K + R - 1) + (r - 1)(V + 1) additions a head."""
    n, K, V, R, c, d = (sizes[letter] for letter in "nKVRcd")
    r = 5
    at = {**own("mla", sizes), "t": r}
    found = cm.count(cm.mixer("mla"), "inference", "expanded", ("strict", "scale=mul")).at(**at)
    maps = [(d, n * (K + R)), (d, c + R), (c, n * (K + V)), (n * V, d)]
    mul, add = sum(a * b for a, b in maps), sum((a - 1) * b for a, b in maps)
    turned = (n + 1) * R
    assert found.mul == mul + 2 * c + 2 * turned + n * r * (K + R + 1 + V)
    assert found.add == add + c + turned + n * (r * (K + R - 1) + (r - 1) * (V + 1))
    assert (found.div, found.exp) == (c + 1 + n * r, n * r)


def test_parameters_and_states_of_checkpoints() -> None:
    """DeepSeek-V3 and Kimi-Linear: parameters of a layer, and the bytes of bf16 that 131,072 tokens
    keep; kept by n heads instead, they would be 57 times as many."""
    sizes = ",".join(f"{letter}={value}" for letter, value in V3.items() if letter != "d")
    compressed = cm.mixer(f"mla+query-compression{{{sizes}}}")
    d, n, K, V, R, c, r = V3.values()
    asked = {"d": d, "t": 131_072}
    norms = r + c
    maps = d * r + r * n * (K + R) + d * (c + R) + c * n * (K + V) + n * V * d
    assert cm.parameters(compressed).at(d=d) == maps + norms == 187_107_328
    assert cm.parameters(cm.mixer("mla+nope")).at(**KIMI) == 29_114_880
    for form in ("absorbed", "re-expanded"):
        assert 2 * V3_LAYERS * cm.state(compressed, form).at(**asked) == 9_210_691_584
    by_head = cm.state(compressed, "expanded").at(**asked)
    assert by_head == (n * (K + V) + R) * 131_072
    assert by_head // cm.state(compressed, "absorbed").at(**asked) == 57


@pytest.mark.parametrize("implementation", FORMS)
def test_autograd_equals_finite_differences(implementation: str) -> None:
    sizes = {"l": 2, "d": 2, "n": 2, "K": 1, "V": 2, "c": 2, "R": 2, "r": 1}
    assert held.gradients_pass("mla+query-compression", implementation, sizes)


def test_nothing_is_left_unexplained() -> None:
    name = "mla+query-compression"
    held.everything_is_explained(name, {"b": 2, **own(name, SIZES)})


@pytest.mark.parametrize(
    ("options", "changed", "said"),
    [
        ((), {"R": None}, "latent attention needs the size R"),
        ((), {"R": 3}, "pairs of channels are rotated, and R = 3 is odd"),
        ((), {"c": 0}, "size c must be a positive integer"),
        (("query-compression",), {"r": None}, "'query-compression' needs the size r"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    options: tuple[str, ...], changed: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Absorbed(**{**SIZES, **changed}, options=options)
