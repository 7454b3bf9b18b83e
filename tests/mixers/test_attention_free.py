"""Do AFT-full, -local and -simple equal section 3 of Zhai et al. 2021 (arXiv 2105.14103)?"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import costmodel as cm
from costmodel.questions.counting.counts import with_once
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
from tests.small import by_sizes

FULL = ("aft-full", "aft-full+causal", "aft-full+factorized", "aft-full+causal+factorized")
LOCAL = ("aft-local", "aft-local+causal")
NAMES = (*FULL, *LOCAL, "aft-simple", "aft-simple+causal")
CAUSAL = tuple(name for name in NAMES if "causal" in name)
SIZES: list[Sizes] = [
    {"l": 5, "d": 3, "r": 2, "w": 2},
    {"l": 3, "d": 2, "r": 7, "w": 4},
    {"l": 1, "d": 1, "r": 1, "w": 1},
]
ROUNDING = 1e-10
"""Weighted means of normal numbers, the weights up to exp of some products, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_size = by_sizes(SIZES)


def paper(name: str, x: Array, W: Arrays, sizes: Sizes) -> Array:
    """Equation (2), channel by channel; w is 0, given, or a product."""
    (l, d), found = x.shape, np.zeros_like(x)
    Q, K, V = (x @ W[f"W_{letter}"] for letter in "QKV")
    w = W.get("w", np.zeros((l, l))) if "U" not in W else W["U"] @ W["T"].T
    for i in range(l if name in LOCAL else 0):
        for k in range(l):
            if abs(i - k) < sizes["w"] and (k <= i or name not in CAUSAL):
                w[i, k] = W["u"][i, k - i + sizes["w"] - 1]
    for i in range(l):
        for c in range(d):
            above = below = 0.0
            for k in range(i + 1 if name in CAUSAL else l):
                power = math.exp(K[k, c] + w[i, k])
                above += power * V[k, c]
                below += power
            found[i, c] = above / below / (1 + math.exp(-Q[i, c]))
    return found


@each_name
@each_size
def test_equations_and_module_equal_the_paper(name: str, sizes: Sizes) -> None:
    """In both forms; token by token where causal."""
    beyond = 2 if name.startswith("aft-simple") else 0
    equals_the_paper(name, sizes, lambda *given: paper(name, *given), ROUNDING, beyond=beyond)


@each_name
def test_autograd_of_attention_free_mixers_equals_finite_differences(name: str) -> None:
    (described,) = registry.implementations(cm.mixer(name))
    assert gradients_pass(name, described, {"l": 3, "d": 2, "r": 2, "w": 2})


def by_hand(name: str, form: str, l: int, d: int, r: int, w: int) -> dict[str, int]:
    """Operations of a forward pass, those on weights alone among them, row by row."""
    found = dict.fromkeys(("mul", "add", "div", "exp"), 0)

    def count(**more: int) -> None:
        for operation, number in more.items():
            found[operation] += number

    for i in range(1, l + 1):
        seen = i if name in CAUSAL else l
        count(mul=3 * d * d, add=3 * d * (d - 1))  # three maps
        count(exp=d, add=d, div=d, mul=d)  # the gate, and its product
        if name in LOCAL:
            near = sum(abs(i - k) < w for k in range(1, seen + 1))
            count(div=d)
            if form == "direct":  # E_K of the rows that are far from some row that sees them
                far = any(abs(k - i) >= w for k in range(i if name in CAUSAL else 1, l + 1))
                count(exp=near * d + far * d, add=near * d + 2 * d * (seen - 1), mul=seen * d)
            else:
                count(exp=d + near, add=near)  # exp(u) - 1 of the rows in the window
                count(mul=d + 2 * near * d, add=2 * near * d + 2 * d * (i > 1))
        elif "simple" not in name:
            count(div=d, add=2 * d * (seen - 1))
            if "factorized" in name:
                count(mul=seen * r, add=seen * (r - 1))
            if form == "direct":
                count(exp=seen * d, add=seen * d, mul=seen * d)
            else:
                count(exp=d + seen, mul=d + 2 * seen * d)
        elif name in CAUSAL:
            count(exp=d, mul=d, div=d, add=2 * d * (i > 1))
        else:
            count(exp=d, mul=d, div=d)
    if name == "aft-simple":
        count(add=2 * d * (l - 1))
    return {name: number for name, number in found.items() if number}


@each_name
@each_size
def test_operations_of_attention_free_mixers_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    mixer = cm.mixer(name)
    for form in mixer.forms:
        counted = cm.count(mixer, form=form).at(**{k: sizes[k] for k in mixer.letters})
        assert with_once(counted) == by_hand(name, form, **sizes)


PHASES = ("training", "backward", "training-step")
PAIRS = [(option, phase) for option in ("", "+causal") for phase in PHASES]


@pytest.mark.parametrize(("option", "phase"), [*PAIRS, ("+causal", "inference")])
def test_a_window_over_all_rows_is_aft_full(option: str, phase: str) -> None:
    """With w >= l no row is far from another one."""
    near, full = (cm.count(cm.mixer(f"aft-{x}{option}"), phase) for x in ("local", "full"))
    for l, w in ((1, 1), (1, 3), (4, 4), (4, 7)):
        for t in range(1, l + 1):
            at = {"l": l, "d": 3, "t": t}
            assert near.at(**at, w=w).by_class() == full.at(**at).by_class()


def test_operations_of_a_small_case() -> None:
    """l = 2, d = 1: 6 products of maps and 2 of gates; 4 pairs, each an addition, an exponential
    and a product; of each row two additions and a division; sigmoids."""
    assert operations("aft-full", {"l": 2, "d": 1}) == {
        "mul": 6 + 2 + 4, "add": 4 + 4 + 2, "div": 2 + 2, "exp": 4 + 2,
    }  # fmt: skip


@each_size
def test_parameters_of_attention_free_mixers_equal_a_count_by_hand(sizes: Sizes) -> None:
    l, d, r, w = (sizes[letter] for letter in "ldrw")
    for name in NAMES:
        mixer, weights = cm.mixer(name), 0
        if name in FULL:
            weights = 2 * l * r if "factorized" in name else l * l
        if name in LOCAL:
            weights = l * (w if name in CAUSAL else 2 * w - 1)
        given = {letter: sizes[letter] for letter in mixer.letters}
        assert cm.parameters(mixer).at(**given) == 3 * d * d + weights


@pytest.mark.parametrize("name", LOCAL)
def test_weights_beyond_the_sequence_are_held_and_never_read(name: str) -> None:
    """At w >= l every row sees all rows, as in AFT-full."""
    mixer, full = cm.mixer(name), cm.mixer(name.replace("local", "full"))
    (described,) = registry.implementations(mixer).values()
    for w in (5, 6, 11):
        sizes = {"b": 1, "l": 5, "d": 3, "w": w}
        module = build(described, sizes, device="cpu", dtype=torch.float64, seed=0)
        assert cm.parameters(mixer).at(**sizes) == sum(p.numel() for p in module.parameters())
        read = cm.traffic(mixer).compulsory.at(**sizes)
        assert read == cm.traffic(full).compulsory.at(l=5, d=3)


@each_size
def test_state_of_attention_free_mixers_equals_a_count_by_hand(sizes: Sizes) -> None:
    """Keys and values of all tokens, however exponentials are taken; two sums of AFT-simple, and of
    AFT-local besides the last w-1 rows."""
    full, simple = cm.mixer("aft-full+causal"), cm.mixer("aft-simple+causal")
    at = {letter: sizes[letter] for letter in "ld"}
    for t in range(1, sizes["l"] + 1):
        for form in full.forms:
            assert cm.state(full, form).at(**at, t=t) == 2 * t * sizes["d"]
        assert cm.state(simple).at(**at, t=t) == 2 * sizes["d"]
        held = 1 + min(t, sizes["w"] - 1)
        found = cm.state(cm.mixer("aft-local+causal"), "windowed").at(**at, w=sizes["w"], t=t)
        assert found == 2 * sizes["d"] * held


def test_operations_of_attention_free_mixers_grow_as_the_paper_claims() -> None:
    """Table 1 has O(T^2 d) for AFT-full and O(T d) for AFT-simple: of degree 2 and 1 in l."""
    for name, growth in (("aft-full", 2), ("aft-simple", 1), ("aft-simple+causal", 1)):
        totals = [cm.count(cm.mixer(name)).at(l=l, d=3).total for l in range(2, 8)]
        assert np.diff(totals, growth).all() and not np.diff(totals, growth + 1).any()


@each_name
def test_nothing_is_left_unexplained(name: str) -> None:
    everything_is_explained(name, {"b": 2, "l": 5, "d": 3, "r": 2, "w": 2})
