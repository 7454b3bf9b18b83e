"""Is restricted self-attention that of section 4 of Vaswani et al. 2017, and torch's own?

"a neighborhood of size r in the input sequence centered around the respective output position": r
is w here. Values and operations are written row by row; nothing is shared with the package.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import costmodel as cm
from costmodel.proofs.against_oracle import nonzero
from profiler.modules import State, build, registry
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
)
from tests.small import by_sizes

CENTRED, CAUSAL = NAMES = ("restricted-attention", "restricted-attention-causal")
FORMS = ("direct", "banded")
IMPLEMENTATIONS = ("explicit", "banded")
SIZES: list[Sizes] = [
    {"l": 7, "d": 6, "n": 2, "w": 3},
    {"l": 6, "d": 4, "n": 1, "w": 4},
    {"l": 5, "d": 6, "n": 3, "w": 2},
    {"l": 3, "d": 2, "n": 2, "w": 3},
    {"l": 3, "d": 2, "n": 1, "w": 7},
    {"l": 4, "d": 2, "n": 1, "w": 6},
    {"l": 5, "d": 2, "n": 2, "w": 1},
    {"l": 1, "d": 3, "n": 1, "w": 4},
    {"l": 1, "d": 1, "n": 1, "w": 1},
]
"""Odd and even neighbourhoods, smaller than the sequence, as large, larger; size 1 and length 1."""
ROUNDING = 1e-12
"""Sums of at most some dozen products of normal numbers, in float64."""

each_name = pytest.mark.parametrize("name", NAMES)
each_form = pytest.mark.parametrize("form", FORMS)
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
each_size = by_sizes(SIZES)


def seen(name: str, i: int, l: int, w: int) -> list[int]:
    """The positions that position i attends to, counted from 1.

    Centred: of w positions, floor(w/2) follow i and the others, i among them, end with i: an odd w
    has as many on either side. Causal: the last w positions.
    """
    last = i if name == CAUSAL else i + w // 2
    return [k for k in range(last - w + 1, last + 1) if 1 <= k <= l]


def paper(name: str, x: Array, W: Arrays, n: int, w: int) -> Array:
    """MultiHead(Q, K, V) of section 3.2, each softmax over the positions that are seen."""
    (l, d), h = x.shape, x.shape[1] // n
    heads = np.zeros((l, d))
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        Q, K, V = (x @ W[key][:, own] for key in ("W_Q", "W_K", "W_V"))
        for i in range(l):
            rows = [k - 1 for k in seen(name, i + 1, l, w)]
            powers = np.array([math.exp(Q[i] @ K[k] / math.sqrt(h)) for k in rows])
            heads[i, own] = (powers / powers.sum()) @ V[rows]
    return heads @ W["W_out"]


def test_a_neighbourhood_has_the_positions_counted_by_hand() -> None:
    """By hand: a neighbourhood of 3 has one position on either side, one of 4 two ahead."""
    assert [seen(CENTRED, i, 5, 3) for i in (1, 3, 5)] == [[1, 2], [2, 3, 4], [4, 5]]
    assert [seen(CENTRED, i, 5, 4) for i in (1, 3, 5)] == [[1, 2, 3], [2, 3, 4, 5], [4, 5]]
    assert [seen(CAUSAL, i, 5, 3) for i in (1, 3, 5)] == [[1], [1, 2, 3], [3, 4, 5]]


@each_name
@each_form
@each_size
def test_equations_equal_the_paper(name: str, form: str, sizes: Sizes) -> None:
    arrays = drawn(name, sizes)
    found = cm.evaluate(cm.mixer(name), arrays, sizes, form)
    expected = paper(name, arrays["x"], arrays, sizes["n"], sizes["w"])
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


@each_name
@each_implementation
@each_size
def test_modules_equal_the_paper(name: str, implementation: str, sizes: Sizes) -> None:
    """Sequences of every length, two at once, and token by token; no weight ends at l."""
    arrays = drawn(name, sizes)
    module = module_of(name, implementation, sizes, arrays)

    def expected(x: Array) -> Array:
        return paper(name, x, arrays, sizes["n"], sizes["w"])

    equal_at_every_length(module, arrays["x"], expected, ROUNDING, steps=name == CAUSAL)


@each_name
@each_implementation
def test_autograd_of_restricted_attention_equals_finite_differences(
    name: str, implementation: str
) -> None:
    sizes = {"l": 4, "d": 2, "n": 2, "w": 3}
    assert gradients_pass(name, implementation, sizes)


@each_name
@each_implementation
@pytest.mark.parametrize(("d", "n", "w", "length"), [(6, 3, 3, 7), (6, 2, 4, 9), (4, 1, 9, 5)])
def test_modules_of_restricted_attention_equal_torch(
    name: str, implementation: str, d: int, n: int, w: int, length: int
) -> None:
    """torch.nn.MultiheadAttention under a mask of what is not seen."""
    sizes = {"l": length, "d": d, "n": n, "w": w}
    arrays = drawn(name, sizes)
    theirs = nn.MultiheadAttention(d, n, bias=False, batch_first=True, dtype=torch.float64)
    maps = [torch.from_numpy(arrays[key]) for key in ("W_Q", "W_K", "W_V")]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat(maps, dim=1).t())
        theirs.out_proj.weight.copy_(torch.from_numpy(arrays["W_out"]).t())
    hidden = torch.ones(length, length, dtype=torch.bool)
    for i in range(length):
        hidden[i, [k - 1 for k in seen(name, i + 1, length, w)]] = False
    x = torch.from_numpy(arrays["x"])[None]
    with torch.no_grad():
        expected = theirs(x, x, x, attn_mask=hidden, need_weights=False)[0][0].numpy()
    module = module_of(name, implementation, sizes, arrays)
    np.testing.assert_allclose(forward(module, arrays["x"])[0], expected, atol=ROUNDING)
    assert cm.mixer(name).references == ("torch.nn.MultiheadAttention",)


def test_a_neighbourhood_of_everything_is_self_attention() -> None:
    """Causal and w >= l: the same numbers and the same operations."""
    sizes = {"l": 5, "d": 6, "n": 2, "w": 5}
    arrays, whole = drawn(CAUSAL, sizes), cm.mixer("self-attention")
    np.testing.assert_allclose(
        cm.evaluate(cm.mixer(CAUSAL), arrays, sizes),
        cm.evaluate(whole, arrays, {"l": 5, "d": 6, "n": 2}),
        atol=ROUNDING,
    )
    assert operations(CAUSAL, sizes) == operations("self-attention", sizes)


# The counts. Four maps of l rows: 4 l d^2 products. A row that sees m positions has, in each of n
# heads, m scores of h products and a division, a softmax of m powers, m - 1 additions and m
# divisions, and h sums of m products.


def closed(rows: list[int], d: int, n: int) -> dict[str, int]:
    l, h, pairs = len(rows), d // n, sum(rows)
    softmax = n * (pairs - l)
    found = {
        "mul": 4 * l * d * d + 2 * n * pairs * h,
        "add": 4 * l * d * (d - 1) + n * pairs * (h - 1) + softmax + n * h * (pairs - l),
        "div": 2 * n * pairs,
        "exp": n * pairs,
    }
    return nonzero(found)


def pairs(name: str, l: int, w: int) -> list[int]:
    """How many positions each row sees."""
    return [len(seen(name, i, l, w)) for i in range(1, l + 1)]


@each_name
@each_form
@each_size
def test_operations_of_restricted_attention_equal_a_count_by_hand(
    name: str, form: str, sizes: Sizes
) -> None:
    """The same in both forms, which differ in how the scores lie."""
    expected = closed(pairs(name, sizes["l"], sizes["w"]), sizes["d"], sizes["n"])
    assert operations(name, sizes, form=form) == expected


@each_name
@each_size
def test_operations_on_what_is_masked(name: str, sizes: Sizes) -> None:
    """`dense`: a square has l scores in each of its rows, a band w."""
    l, d, n, w = (sizes[letter] for letter in "ldnw")
    dense = ("strict", "dense")
    assert operations(name, sizes, form="direct", convention=dense) == closed([l] * l, d, n)
    assert operations(name, sizes, form="banded", convention=dense) == closed([w] * l, d, n)


def test_operations_of_a_small_case() -> None:
    """l = 4, w = 3, d = 2, n = 1: centred rows see 2, 3, 3, 2 positions, causal ones 1, 2, 3, 3.

    Centred: maps 4*4*4 = 64 products and 4*4*2 = 32 additions; 10 pairs: 20 products and 10
    additions of scores, 10 - 4 of softmaxes, 20 products and 2*6 additions of values.
    """
    sizes = {"l": 4, "d": 2, "n": 1, "w": 3}
    assert pairs(CENTRED, 4, 3) == [2, 3, 3, 2] and pairs(CAUSAL, 4, 3) == [1, 2, 3, 3]
    assert operations(CENTRED, sizes) == {
        "mul": 64 + 20 + 20, "add": 32 + 10 + 6 + 12, "div": 20, "exp": 10,
    }  # fmt: skip
    assert operations(CAUSAL, sizes) == {
        "mul": 64 + 18 + 18, "add": 32 + 9 + 5 + 10, "div": 18, "exp": 9,
    }  # fmt: skip


@pytest.mark.parametrize("l", [5, 6, 11])
def test_the_closed_forms_of_long_sequences(l: int) -> None:
    """w l - p (p+1)/2 - q (q+1)/2 pairs, p positions behind and q ahead; w l - w (w-1)/2 causal."""
    for w in (1, 2, 3, 4, 5):
        p, q = w - 1 - w // 2, w // 2
        assert sum(pairs(CENTRED, l, w)) == w * l - p * (p + 1) // 2 - q * (q + 1) // 2
        sizes = {"l": l, "d": 2, "n": 2, "w": w}
        assert operations(CENTRED, sizes)["exp"] == 2 * sum(pairs(CENTRED, l, w))
        assert operations(CAUSAL, sizes)["exp"] == 2 * (w * l - w * (w - 1) // 2)


@each_form
@each_size
def test_one_token_of_restricted_attention_costs_a_count_by_hand(form: str, sizes: Sizes) -> None:
    """Keys and values are kept, of the last w-1 tokens."""
    d, w, mixer = sizes["d"], sizes["w"], cm.mixer(CAUSAL)
    for t in range(1, sizes["l"] + 4):
        at = {**sizes, "l": max(t, sizes["l"]), "t": t}
        found = operations(CAUSAL, at, phase="inference", form=form)
        assert found == closed([min(w, t)], d, sizes["n"])
        assert cm.state(mixer, form).at(**at) == 2 * d * min(t, w - 1)


@each_form
def test_the_centred_one_has_no_token_of_its_own(form: str) -> None:
    with pytest.raises(cm.Unanswered, match=r"not causal: an output depends on later tokens$"):
        cm.count(cm.mixer(CENTRED), "inference", form)


@each_name
@each_size
def test_parameters_of_restricted_attention_equal_a_count_by_hand(name: str, sizes: Sizes) -> None:
    assert cm.parameters(cm.mixer(name)).at(**sizes) == 4 * sizes["d"] ** 2


PATH = "mul sum mul sum div exp sum div mul sum mul sum"


@each_name
@each_form
def test_critical_path_and_span(name: str, form: str) -> None:
    """Maps of 6 rows: 1 + 3 levels each; scores of 3: 1 + 2, and the scale; a softmax of m powers:
    1 + lg m + 1; values: 1 + lg m."""
    mixer = cm.mixer(name)
    assert cm.critical_path(mixer, form=form).steps == tuple(PATH.split())
    for l, w, m in ((9, 5, 5), (4, 9, 4), (8, 1, 1)):
        levels = (m - 1).bit_length()
        expected = (1 + 3) + (1 + 2 + 1) + (1 + levels + 1) + (1 + levels) + (1 + 3)
        assert cm.span(mixer, form=form).at(l=l, d=6, n=2, w=w) == expected


# The modules


@pytest.mark.parametrize("w", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("name", "phase"), [(CENTRED, "training"), (CAUSAL, "training"), (CAUSAL, "inference")]
)
def test_nothing_is_left_unexplained(name: str, phase: str, w: int) -> None:
    sizes = {"l": 5, "d": 6, "n": 2, "w": w, "b": 2} | ({"t": 4} if phase == "inference" else {})
    for found in reconciled(name, sizes, phase):
        assert found.explained, found.unexplained
        masked = phase == "training" and (found.implementation, w) != ("banded", 1)
        assert [cause.name for cause in found.causes] == ["dense", "safe-softmax"][not masked :]


@each_implementation
def test_state_of_restricted_attention_keeps_the_latest_rows_only(implementation: str) -> None:
    """Keys and values of w-1 tokens, oldest first, however many tokens come."""
    sizes = {"l": 2, "d": 2, "n": 2, "w": 3}
    module = module_of(CAUSAL, implementation, sizes, drawn(CAUSAL, sizes))
    state = module.initial_state(1)
    assert isinstance(state, State)
    tokens = torch.arange(8, dtype=torch.float64).view(4, 1, 2)
    for token in tokens:
        module.step(token, state)
    kept = (tokens[2:, 0] @ module.W_K).detach()  # heads are one wide
    torch.testing.assert_close(state.held("K")[0, :, :, 0].T, kept, atol=ROUNDING, rtol=0)
    assert state.elements == 2 * 2 * 2 and state.position == 4


def test_bad_sizes_are_refused() -> None:
    described = registry.implementations(CENTRED)["banded"]
    with pytest.raises(ValueError, match="size w must be a positive integer and is 0"):
        described.module(d=2, l=3, n=1, w=0)
    with pytest.raises(ValueError, match="restricted-attention banded needs the size w"):
        build(described, {"d": 2, "l": 3, "n": 1}, device="cpu", dtype=torch.float64, seed=0)
    with pytest.raises(ValueError, match="d must be divisible by n: d = 3 and n = 2"):
        described.module(d=3, l=3, n=2, w=1)
