"""Is the convolution that of Table 1 of Vaswani et al. 2017, and torch's own?

Values, operations and what is kept are written here tap by tap; nothing is shared with the package.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
from profiler.modules import build, registry
from tests.mixers.held import (
    Array,
    Sizes,
    drawn,
    equal_at_every_length,
    forward,
    gradients_pass,
    module_of,
    operations,
    reconciled,
    stepped,
)
from tests.small import by_sizes

NAMES = ("convolution", "convolution-same")
IMPLEMENTATIONS = ("conv", "direct")
SIZES: list[Sizes] = [
    {"l": 7, "d": 3, "k": 3},
    {"l": 5, "d": 2, "k": 4},
    {"l": 4, "d": 2, "k": 2},
    {"l": 3, "d": 2, "k": 3},
    {"l": 3, "d": 1, "k": 7},
    {"l": 2, "d": 3, "k": 8},
    {"l": 5, "d": 2, "k": 1},
    {"l": 1, "d": 5, "k": 4},
    {"l": 1, "d": 1, "k": 1},
]
"""Odd and even widths, shorter than the sequence, as long, longer; width 1 and length 1."""
ROUNDING = 1e-12
"""Sums of at most some dozen products of normal numbers, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
each_size = by_sizes(SIZES)


def rows_read(name: str, i: int, l: int, k: int) -> list[int]:
    """Which row each tap reads, counted from 1; those outside 1..l are padding.

    Causal: taps 1, 2, ... read rows i, i-1, ... . Centred: torch pads k-1 rows of zeros, the
    smaller half of them in front, and lets tap s of row i read padded row i+s-1.
    """
    if name == "convolution":
        return [i - s + 1 for s in range(1, k + 1)]
    return [i + s - 1 - (k - 1) // 2 for s in range(1, k + 1)]


def taps(name: str, l: int, k: int) -> list[int]:
    """How many taps of each row read a row that exists."""
    return [sum(1 <= row <= l for row in rows_read(name, i, l, k)) for i in range(1, l + 1)]


def paper(name: str, x: Array, W: Array) -> Array:
    """Padded rows of zeros, and a matrix for each tap."""
    rows = []
    for i in range(1, len(x) + 1):
        read = rows_read(name, i, len(x), len(W))
        known = [(x[row - 1], tap) for row, tap in zip(read, W, strict=True) if 1 <= row <= len(x)]
        rows.append(sum((row @ tap for row, tap in known), np.zeros(x.shape[1])))
    return np.array(rows)


@each_name
@each_size
def test_equations_equal_the_layer(name: str, sizes: Sizes) -> None:
    arrays = drawn(name, sizes)
    found = cm.evaluate(cm.mixer(name), arrays, sizes)
    np.testing.assert_allclose(found, paper(name, arrays["x"], arrays["W"]), atol=ROUNDING)


@each_name
@each_implementation
@each_size
def test_modules_equal_the_layer(name: str, implementation: str, sizes: Sizes) -> None:
    """Sequences of every length, two at once; no weight ends at l."""
    arrays = drawn(name, sizes)
    module = module_of(name, implementation, sizes, arrays)
    causal = name == "convolution"
    equal_at_every_length(
        module, arrays["x"], lambda x: paper(name, x, arrays["W"]), ROUNDING, steps=causal
    )


@each_name
@each_implementation
def test_autograd_of_convolution_equals_finite_differences(name: str, implementation: str) -> None:
    sizes = {"l": 4, "d": 2, "k": 3}
    assert gradients_pass(name, implementation, sizes)


@each_implementation
@pytest.mark.parametrize(("d", "k", "length"), [(3, 3, 7), (2, 4, 5), (5, 1, 3), (2, 7, 3)])
def test_the_causal_one_equals_torch(implementation: str, d: int, k: int, length: int) -> None:
    """torch.nn.Conv1d with k-1 rows of padding, cut off behind; its taps run the other way."""
    sizes = {"l": length, "d": d, "k": k}
    arrays = drawn("convolution", sizes)
    theirs = nn.Conv1d(d, d, k, padding=k - 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(arrays["W"]).flip(0).permute(2, 1, 0))
        expected = theirs(torch.from_numpy(arrays["x"].T)[None])[0, :, :length].T.numpy()
    module = module_of("convolution", implementation, sizes, arrays)
    np.testing.assert_allclose(forward(module, arrays["x"])[0], expected, atol=ROUNDING)
    np.testing.assert_allclose(stepped(module, arrays["x"]), expected, atol=ROUNDING)
    assert cm.mixer("convolution").references == ("torch.nn.Conv1d",)


@each_implementation
@pytest.mark.parametrize(
    ("d", "k", "length"), [(3, 3, 7), (2, 4, 5), (2, 2, 3), (5, 1, 3), (2, 7, 3)]
)
def test_the_centred_one_equals_torch(implementation: str, d: int, k: int, length: int) -> None:
    """torch.nn.Conv1d with padding="same", which warns of a copy where the width is even."""
    sizes = {"l": length, "d": d, "k": k}
    arrays = drawn("convolution-same", sizes)
    theirs = nn.Conv1d(d, d, k, padding="same", bias=False, dtype=torch.float64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        theirs.weight.copy_(torch.from_numpy(arrays["W"]).permute(2, 1, 0))
        expected = theirs(torch.from_numpy(arrays["x"].T)[None])[0].T.numpy()
    module = module_of("convolution-same", implementation, sizes, arrays)
    np.testing.assert_allclose(forward(module, arrays["x"])[0], expected, atol=ROUNDING)
    assert cm.mixer("convolution-same").references == ("torch.nn.Conv1d",)


# The counts: a row with m taps that read something sums m*d products for each of d channels.


def closed(rows: list[int], d: int) -> dict[str, int]:
    found = {"mul": sum(m * d * d for m in rows), "add": sum((m * d - 1) * d for m in rows)}
    return nonzero(found)


@each_name
@each_size
def test_operations_of_convolution_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    rows = taps(name, sizes["l"], sizes["k"])
    assert operations(name, sizes) == closed(rows, sizes["d"])


@each_name
@each_size
def test_dense_counts_every_tap_that_reads_padding(name: str, sizes: Sizes) -> None:
    """`dense`: every tap is multiplied, whether it reads a row or zeros."""
    found = operations(name, sizes, convention=("strict", "dense"))
    assert found == closed([sizes["k"]] * sizes["l"], sizes["d"])


def test_operations_of_a_small_case() -> None:
    """l = 5, d = 2, k = 4: causal rows of 1, 2, 3, 4, 4 taps; centred ones of 3, 4, 4, 3, 2, as one
    row is padded in front and two behind."""
    sizes = {"l": 5, "d": 2, "k": 4}
    assert taps("convolution", 5, 4) == [1, 2, 3, 4, 4]
    assert taps("convolution-same", 5, 4) == [3, 4, 4, 3, 2]
    assert operations("convolution", sizes) == {"mul": 14 * 4, "add": 14 * 4 - 5 * 2}
    assert operations("convolution-same", sizes) == {"mul": 16 * 4, "add": 16 * 4 - 5 * 2}


@pytest.mark.parametrize("l", [4, 5, 9])
def test_the_closed_form_of_long_sequences(l: int) -> None:
    """k*l - k*(k-1)/2 taps where l >= k."""
    k, d = 4, 3
    assert operations("convolution", {"l": l, "d": d, "k": k})["mul"] == (
        d * d * (k * l - k * (k - 1) // 2)
    )


@each_size
def test_one_token_of_convolution_costs_a_count_by_hand(sizes: Sizes) -> None:
    """The taps that reach a row; k-1 rows are kept for the tokens to come."""
    d, k, mixer = sizes["d"], sizes["k"], cm.mixer("convolution")
    for t in range(1, sizes["l"] + 4):
        at = {**sizes, "l": max(t, sizes["l"]), "t": t}
        assert operations("convolution", at, phase="inference") == closed([min(k, t)], d)
        assert cm.state(mixer).at(**at) == min(t, k - 1) * d


def test_the_centred_one_has_no_token_of_its_own() -> None:
    with pytest.raises(cm.Unanswered, match="not causal: an output depends on later tokens"):
        cm.count(cm.mixer("convolution-same"), "inference")


@each_name
@each_size
def test_parameters_of_convolution_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    """A matrix for each tap and no bias."""
    assert cm.parameters(cm.mixer(name)).at(**sizes) == sizes["k"] * sizes["d"] ** 2


@each_name
def test_critical_path_and_span(name: str) -> None:
    """A product, then one sum over taps and channels: lg (5*3) = 4 levels; lg (2*3) = 3."""
    mixer = cm.mixer(name)
    assert cm.critical_path(mixer).steps == ("mul", "sum")
    assert cm.span(mixer).at(l=9, d=3, k=5) == 1 + 4
    assert cm.span(mixer).at(l=2, d=3, k=5) == 1 + 3
    assert cm.span(mixer).at(l=1, d=1, k=5) == 1


# The modules


@pytest.mark.parametrize("k", [2, 3, 8])
@pytest.mark.parametrize(
    ("name", "phase"),
    [("convolution", "training"), ("convolution", "inference"), ("convolution-same", "training")],
)
def test_nothing_is_left_unexplained(name: str, phase: str, k: int) -> None:
    sizes = {"l": 5, "d": 3, "k": k, "b": 2} | ({"t": 4} if phase == "inference" else {})
    for found in reconciled(name, sizes, phase):
        assert found.explained, found.unexplained
        padding = (found.implementation, phase) == ("conv", "training")
        assert [cause.name for cause in found.causes] == (["dense"] if padding else [])


@each_implementation
def test_state_of_convolution_keeps_the_latest_rows_only(implementation: str) -> None:
    """k-1 rows, newest first, however many tokens come."""
    module = module_of(
        "convolution",
        implementation,
        sizes := {"l": 2, "d": 1, "k": 3},
        drawn("convolution", sizes),
    )
    state = module.initial_state(1)
    for value in (1.0, 2.0, 3.0, 4.0):
        module.step(torch.full((1, 1), value, dtype=torch.float64), state)
    assert state.held("x").flatten().tolist() == [4.0, 3.0]
    assert state.elements == 2 and state.position == 4


def test_bad_sizes_are_refused() -> None:
    described = registry.implementations("convolution")["conv"]
    with pytest.raises(ValueError, match="size k must be a positive integer and is 0"):
        described.module(d=2, l=3, k=0)
    with pytest.raises(ValueError, match="convolution conv needs the size k"):
        build(described, {"d": 2, "l": 3}, device="cpu", dtype=torch.float64, seed=0)
