"""Do norms, short convolution, rotary embedding and gelu equal counts, executions and values by
hand?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

import cli
import costmodel as cm
from costmodel import EquationError, Mixer, function, softmax, union
from costmodel.language.equations import Form
from costmodel.language.macros.gates import gelu_tanh
from costmodel.language.macros.norms import RMS_EPS, l2_norm, layer_norm, rms_norm
from costmodel.language.macros.positions import rotary, short_convolution
from costmodel.language.nodes import Node
from costmodel.language.notation import COMPOSITES, equation
from costmodel.oracle.execute import random_arrays
from costmodel.program.lowering import lower
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.questions.evaluate import evaluate_all

Write = Callable[[Mixer, Form], Node]
"""The right side of y[i, b], from x (l, d) and the parameters gain and bias (d)."""


def system(write: Write, letters: str = "l d") -> Mixer:
    """y[i, b] = what is written."""
    m = Mixer("m")
    m.sizes(letters)
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    m.parameter("gain", d)
    m.parameter("bias", d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        assert x[i, b] is not None
        y[i, b] = write(m, f)
    return m


def of(m: Mixer, f: Form, name: str) -> Node:
    """An entry of x, gain or bias at row i and channel b."""
    i, b = f.indices["i"], f.indices["b"]
    return m.arrays[name][i, b] if name == "x" else m.arrays[name][b]


def affine(m: Mixer, f: Form) -> dict[str, Any]:
    """The arguments of a norm along b."""
    return {"over": f.indices["b"], "gain": of(m, f, "gain"), "bias": of(m, f, "bias")}


def plain(norm: Callable[..., Node], **constants: Any) -> Write:
    return lambda m, f: norm(of(m, f, "x"), over=f.indices["b"], **constants)


def normed(norm: Callable[..., Node], **constants: Any) -> Write:
    return lambda m, f: norm(of(m, f, "x"), **affine(m, f), **constants)


def convolved(m: Mixer, f: Form) -> Node:
    i, b = f.indices["i"], f.indices["b"]
    d, (k,) = m.arrays["x"].shape[1], m.sizes("k")
    weight, s = m.parameter("W", k, d), f.index("s", 1, k)
    return short_convolution(of(m, f, "x"), weight[s, b], along=i, taps=s, bias=of(m, f, "bias"))


def turned(layout: str) -> Write:
    def write(m: Mixer, f: Form) -> Node:
        l, d = m.arrays["x"].shape
        i, b, p = f.indices["i"], f.indices["b"], f.index("p", 1, d / 2)
        cos, sin = m.buffer("cos", l, d), m.buffer("sin", l, d)
        tables = {"cos": cos[i, b], "sin": sin[i, b]}
        return rotary(of(m, f, "x"), over=b, pairs=p, layout=layout, **tables)

    return write


SYSTEMS: Mapping[str, Write] = {
    "layer norm": normed(layer_norm),
    "layer norm, plain": plain(layer_norm),
    "RMS norm": normed(rms_norm),
    "RMS norm, plain": plain(rms_norm, eps=0),
    "l2 norm": normed(l2_norm),
    "l2 norm, under the root": plain(l2_norm, eps=1e-6, least=0),
    "l2 norm, both": plain(l2_norm, eps="0.5"),
    "short convolution": convolved,
    "rotary, halves": turned("halves"),
    "rotary, interleaved": turned("interleaved"),
    "gelu": lambda m, f: gelu_tanh(of(m, f, "x")),
    "gelu of an expression": lambda m, f: gelu_tanh(of(m, f, "x") + of(m, f, "bias")),
}

PRIMES = ({"l": 5, "d": 3, "k": 2}, {"l": 3, "d": 5, "k": 7}, {"l": 1, "d": 1, "k": 1})
EVEN = ({"l": 5, "d": 6}, {"l": 3, "d": 4}, {"l": 1, "d": 2})
"""Sizes of a row that is turned in pairs."""


def small(name: str) -> list[dict[str, int]]:
    sets = EVEN if "rotary" in name else PRIMES
    letters = "ldk" if "convolution" in name else "ld"
    return [{x: v for x, v in sizes.items() if x in letters} for sizes in sets]


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize(
    "rewrites", [(), ("dense", "cut-rows"), ("zero-state",), ("norm=rsqrt",)], ids=str
)
@pytest.mark.parametrize("accounting", ["strict", "mac"])
def test_rules_equal_execution(name: str, rewrites: tuple[str, ...], accounting: str) -> None:
    """Counts, span, state, traffic and values, whole sequence and token by token."""
    for sizes in small(name):
        made = OracleComparison(system(SYSTEMS[name]), "", rewrites, accounting).at(sizes)
        assert (made.apart, made.refused) == ([], []), sizes
        asked = {"counts", "span", "unfused traffic"}
        one_token = {"values", "counts of one token", "state of one token", "span of one token"}
        assert {*made.compared} >= (asked if "dense" in rewrites else asked | one_token)


def heads(layout: str) -> Mixer:
    """Attention of turned, normed queries: flattened operands, heads, a context in the cache."""
    m = Mixer("m")
    l, d, n, h = m.sizes("l d n h")
    x, y, W = m.input("x", l, d), m.output("y", l, d), m.parameter("W", d, d)
    cos, sin = m.buffer("cos", l, h), m.buffer("sin", l, h)
    with m.form("direct") as f:
        j, i, c = f.index("j", 1, n), f.index("i", 1, l), f.index("c", 1, h)
        a, b = f.index("a", 1, d), f.index("b", 1, d)
        k, p = f.index("k", 1, i), f.index("p", 1, h / 2)
        q, r = f.array("q", n, l, h), f.array("r", n, l, h)
        z, A, o = f.array("z", n, l, l), f.array("A", n, l, l), f.array("o", l, d)
        q[j, i, c] = rms_norm(x[i, (j - 1) * h + c], over=c)
        r[j, i, c] = rotary(
            q[j, i, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c], layout=layout
        )
        z[j, i, k] = cm.scaled(cm.sum_(r[j, i, c] * r[j, k, c], over=c), by=h)
        A[j, i, k] = softmax(z[j, i, k], over=k)
        o[i, (j - 1) * h + c] = cm.sum_(A[j, i, k] * q[j, k, c], over=k)
        y[i, b] = cm.sum_(o[i, a] * W[a, b], over=a)
    return m


def norm_of_a_flattened_axis() -> Mixer:
    """Each head's part of a row is normed, and of the rows before only the last is kept."""
    m = Mixer("m")
    l, d, _, h = m.sizes("l d n h")
    x, y, gain = m.input("x", l, d), m.output("y", l, d), m.parameter("gain", d)
    n = m.sizes("n")[0]
    with m.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        column = (j - 1) * h + c
        y[i, column] = layer_norm(x[i, column], over=c, gain=1 + gain[column])
    return m


def loop() -> Mixer:
    """A recurrence whose state is normed: the first row apart from the rest."""
    m = Mixer("m")
    l, d = m.sizes("l d")
    x, y, U = m.input("x", l, d), m.output("y", l, d), m.parameter("U", d, d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 2, l), f.index("a", 1, d), f.index("b", 1, d)
        s = f.array("s", l, d)
        s[1, b] = x[1, b]
        y[1, b] = rms_norm(s[1, b], over=b)
        s[i, b] = x[i, b] + cm.sum_(y[i - 1, a] * U[a, b], over=a)
        y[i, b] = rms_norm(s[i, b], over=b)
    return m


def length_over_a_union() -> Mixer:
    """A row is divided by its length, whose first term stands apart."""
    m = Mixer("m")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", union((1, 1), (2, d)))
        y[i, b] = l2_norm(x[i, b], over=b)
    return m


def norm_of_all_heads() -> Mixer:
    """One norm over the heads and their channels, with a weight for each."""
    m = Mixer("m")
    l, _, n, h = m.sizes("l d n h")
    x, y, w = m.input("x", l, n, h), m.output("y", l, n, h), m.parameter("w", n, h)
    with m.form("direct") as f:
        i, j, c = f.index("i", 1, l), f.index("j", 1, n), f.index("c", 1, h)
        y[i, j, c] = rms_norm(x[i, j, c], over=(j, c), gain=w[j, c])
    return m


def half_turned() -> Mixer:
    """The first half of each head's channels is turned, the other half is copied."""
    m = Mixer("m")
    l, n, h = m.sizes("l d n h")[0], *m.sizes("n h")
    x, y = m.input("x", l, n, h), m.output("y", l, n, h)
    cos, sin = m.buffer("cos", l, h / 2), m.buffer("sin", l, h / 2)
    with m.form("direct") as f:
        i, j, p = f.index("i", 1, l), f.index("j", 1, n), f.index("p", 1, h / 4)
        c = f.index("c", 1, h / 2)
        q = f.array("q", l, n, h / 2)
        q[i, j, c] = rotary(x[i, j, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c])
        y[i, j, c] = q[i, j, c]
        y[i, j, c + h / 2] = x[i, j, c + h / 2]
    return m


def turned_into_a_flattened_axis() -> Mixer:
    """Each head's channels are turned, and written as parts of one row."""
    m = Mixer("m")
    l, d, n, h = m.sizes("l d n h")
    x, y = m.input("x", l, n, h), m.output("y", l, d)
    cos, sin = m.buffer("cos", l, h), m.buffer("sin", l, h)
    with m.form("direct") as f:
        i, j, p = f.index("i", 1, l), f.index("j", 1, n), f.index("p", 1, h / 2)
        c = f.index("c", 1, h)
        y[i, (j - 1) * h + c] = rotary(
            x[i, j, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c], layout="interleaved"
        )
    return m


def joint() -> Mixer:
    """One softmax over the rows up to i and all heads."""
    m = Mixer("m")
    l, d, n = m.sizes("l d n")
    x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", n, d)
    with m.form("direct") as f:
        i, j, b = f.index("i", 1, l), f.index("j", 1, n), f.index("b", 1, d)
        k = f.index("k", 1, i)
        z, A = f.array("z", l, n, l), f.array("A", l, n, l)
        z[i, j, k] = cm.sum_(x[i, b] * x[k, b] * w[j, b], over=b)
        A[i, j, k] = softmax(z[i, j, k], over=(j, k))
        y[i, b] = cm.sum_(A[i, j, k] * x[k, b], over=(j, k))
    return m


LARGER: Mapping[str, tuple[Mixer, tuple[dict[str, int], ...]]] = {
    "heads, halves": (heads("halves"), ({"l": 3, "d": 4, "n": 2}, {"l": 1, "d": 2, "n": 1})),
    "heads, interleaved": (
        heads("interleaved"),
        ({"l": 3, "d": 4, "n": 2}, {"l": 1, "d": 2, "n": 1}),
    ),
    "flattened, turned": (
        turned_into_a_flattened_axis(),
        ({"l": 3, "d": 12, "n": 2}, {"l": 1, "d": 2, "n": 1}),
    ),
    "flattened": (
        norm_of_a_flattened_axis(),
        ({"l": 3, "d": 10, "n": 2}, {"l": 2, "d": 3, "n": 1}, {"l": 1, "d": 1, "n": 1}),
    ),
    "joint": (joint(), ({"l": 3, "d": 4, "n": 2}, {"l": 1, "d": 2, "n": 1})),
    "loop": (loop(), ({"l": 5, "d": 3}, {"l": 2, "d": 5}, {"l": 1, "d": 1})),
    "l2 norm, union": (length_over_a_union(), ({"l": 3, "d": 5}, {"l": 1, "d": 1})),
    "norm of all heads": (
        norm_of_all_heads(),
        ({"l": 3, "d": 6, "n": 2}, {"l": 1, "d": 2, "n": 1}, {"l": 2, "d": 1, "n": 1}),
    ),
    "half of the channels": (half_turned(), ({"l": 3, "d": 8, "n": 1}, {"l": 1, "d": 8, "n": 2})),
}


@pytest.mark.parametrize("name", LARGER)
@pytest.mark.parametrize(
    "rewrites", [(), ("dense", "safe-softmax"), ("zero-state", "norm=rsqrt")], ids=str
)
def test_rules_equal_execution_in_larger_systems(name: str, rewrites: tuple[str, ...]) -> None:
    made_of, sets = LARGER[name]
    for sizes in sets:
        made = OracleComparison(made_of, rewrites=rewrites).at(sizes)
        assert (made.apart, made.refused) == ([], []), sizes


BY_HAND: Mapping[str, tuple[dict[str, int], dict[str, int]]] = {
    # A row of m = 5: mean 4 add 1 div, x - mean 5 add, 5 squares, 4 add 1 div, eps 1 add, 1 root,
    # 5 quotients; gain 5 mul, bias 5 add.
    "layer norm": ({"l": 1, "d": 5}, {"mul": 10, "add": 19, "div": 7, "sqrt": 1}),
    "layer norm, plain": ({"l": 1, "d": 5}, {"mul": 5, "add": 14, "div": 7, "sqrt": 1}),
    # 5 squares, 4 add 1 div, eps 1 add, 1 root, 5 quotients; gain 5 mul, bias 5 add.
    "RMS norm": ({"l": 1, "d": 5}, {"mul": 10, "add": 10, "div": 6, "sqrt": 1}),
    "RMS norm, plain": ({"l": 1, "d": 5}, {"mul": 5, "add": 4, "div": 6, "sqrt": 1}),
    # 5 squares, 4 add, 1 root, 1 comparison with the least length, 5 quotients; gain and bias.
    "l2 norm": ({"l": 1, "d": 5}, {"mul": 10, "add": 9, "div": 5, "sqrt": 1, "compare": 1}),
    # eps takes 1 add in place of the comparison.
    "l2 norm, under the root": ({"l": 1, "d": 5}, {"mul": 5, "add": 5, "div": 5, "sqrt": 1}),
    # Rows 1, 2, 3 have 1, 2, 2 terms, of 3 channels: 15 mul, 6 add, and a bias for 9 entries.
    "short convolution": ({"l": 3, "d": 3, "k": 2}, {"mul": 15, "add": 15}),
    # 2 products and 1 sum (or difference) for each of 6 channels.
    "rotary, halves": ({"l": 1, "d": 6}, {"mul": 12, "add": 6}),
    "rotary, interleaved": ({"l": 1, "d": 6}, {"mul": 12, "add": 6}),
    # 0.5 x (1 + tanh(c (x + c' x x x))): 6 mul, 2 add, 1 tanh for each of 6 entries.
    "gelu": ({"l": 2, "d": 3}, {"mul": 36, "add": 12, "tanh": 6}),
    "gelu of an expression": ({"l": 2, "d": 3}, {"mul": 36, "add": 18, "tanh": 6}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_operations_of_composites_equal_a_count_by_hand(name: str) -> None:
    sizes, expected = BY_HAND[name]
    counts = cm.count(system(SYSTEMS[name])).at(**sizes)
    assert {c: v for c, v in counts.by_class().items() if v} == expected
    assert counts.once is not None and counts.once.total == 0


def test_a_short_convolution_holds_its_last_rows() -> None:
    """The next token reads k-1 = 2 rows of 3 channels, or the one that there is."""
    state = cm.state(system(convolved))
    assert [state.at(l=9, d=3, k=3, t=t) for t in (1, 2, 5)] == [3, 6, 6]


def test_tables_and_constants_are_no_parameters() -> None:
    assert cm.parameters(system(turned("halves"))).at(d=6, l=4) == 12  # gain and bias alone


ROWS, WIDTH, TAPS = 7, 6, 3
CLOSE = 1e-13
"""A dozen float64 operations on numbers of order 1."""


def arrays(m: Mixer, sizes: Mapping[str, int]) -> dict[str, Any]:
    generator = np.random.default_rng(3)
    return {
        name: generator.normal(size=tuple(extent.at(sizes) for extent in array.shape))
        for name, array in m.arrays.items()
        if array.role != "output"
    }


def evaluated(name: str, **given: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The arrays, random but for those given, and the values."""
    m, sizes = system(SYSTEMS[name]), {"l": ROWS, "d": WIDTH, "k": TAPS}
    found = {**arrays(m, sizes), **given}
    value = cm.evaluate(m, found, sizes)
    return {n: torch.from_numpy(a) for n, a in found.items()}, torch.from_numpy(value)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    assert found.dtype == expected.dtype == torch.float64 and found.shape == expected.shape
    return bool((found - expected).abs().max() < CLOSE)


def test_layer_norm_equals_torch() -> None:
    a, found = evaluated("layer norm")
    assert same(found, F.layer_norm(a["x"], (WIDTH,), a["gain"], a["bias"]))
    a, found = evaluated("layer norm, plain")
    assert same(found, F.layer_norm(a["x"], (WIDTH,)))


def test_rms_norm_equals_torch() -> None:
    a, found = evaluated("RMS norm")
    assert same(found, F.rms_norm(a["x"], (WIDTH,), a["gain"]) + a["bias"])
    assert torch.finfo(a["x"].dtype).eps == RMS_EPS
    a, found = evaluated("RMS norm, plain")
    assert same(found, F.rms_norm(a["x"], (WIDTH,), eps=0.0))


def test_l2_norm_equals_torch() -> None:
    """Rows of zeros and of a length below the least one too: eps is a lower bound in torch."""
    x = arrays(system(SYSTEMS["l2 norm"]), {"l": ROWS, "d": WIDTH})["x"]
    x[0], x[1] = 0, x[1] * 1e-13
    a, found = evaluated("l2 norm", x=x)
    assert same(found, F.normalize(a["x"], dim=-1) * a["gain"] + a["bias"])
    a, found = evaluated("l2 norm, under the root")
    assert same(found, a["x"] / (a["x"].square().sum(-1, keepdim=True) + 1e-6).sqrt())


def test_short_convolution_equals_torch() -> None:
    a, found = evaluated("short convolution")
    padded = F.pad(a["x"].T.unsqueeze(0), (TAPS - 1, 0))
    weight = a["W"].flip(0).T.unsqueeze(1)  # (d, 1, k); torch's last tap weighs the row itself
    expected = F.conv1d(padded, weight, a["bias"], groups=WIDTH)
    assert same(found, expected[0].T)


def angles() -> Any:
    """theta of Su et al. 2021, section 3.2.2, times the position (l, d/2)."""
    return np.arange(ROWS)[:, None] * 10_000.0 ** (-2 * np.arange(WIDTH // 2) / WIDTH)


PAIRS: Mapping[str, tuple[slice, slice]] = {
    "halves": (slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)),
    "interleaved": (slice(0, WIDTH, 2), slice(1, WIDTH, 2)),
}


def tables_of(layout: str) -> dict[str, Any]:
    """Both channels of a pair have the cosine and the sine of its angle."""
    found = {name: np.empty((ROWS, WIDTH)) for name in ("cos", "sin")}
    for channels in PAIRS[layout]:
        found["cos"][:, channels], found["sin"][:, channels] = np.cos(angles()), np.sin(angles())
    return found


@pytest.mark.parametrize("layout", PAIRS)
def test_rotary_turns_pairs_as_complex_numbers(layout: str) -> None:
    tables = tables_of(layout)
    a, found = evaluated(f"rotary, {layout}", **tables)
    one, other = PAIRS[layout]
    pairs = torch.complex(a["x"][:, one], a["x"][:, other])
    expected = torch.empty_like(a["x"])
    product = pairs * torch.exp(1j * torch.from_numpy(angles()))
    expected[:, one], expected[:, other] = product.real, product.imag
    assert same(found, expected)


@pytest.mark.parametrize("layout", PAIRS)
def test_products_of_turned_rows_depend_on_distance_alone(layout: str) -> None:
    """What the embedding is for: one row at all positions (Su et al. 2021, eq. (11))."""
    row = np.random.default_rng(5).normal(size=WIDTH)
    tables = tables_of(layout)
    _, found = evaluated(f"rotary, {layout}", x=np.tile(row, (ROWS, 1)), **tables)
    products = found @ found.T
    for distance in range(ROWS):
        diagonal = products.diagonal(distance)
        assert (diagonal - diagonal[0]).abs().max() < CLOSE * 10
    assert abs(products[0, 0] - products[0, 1]) > 0.01


def test_gelu_equals_torch() -> None:
    a, found = evaluated("gelu")
    assert same(found, F.gelu(a["x"], approximate="tanh"))
    a, found = evaluated("gelu of an expression")
    assert same(found, F.gelu(a["x"] + a["bias"], approximate="tanh"))


GATES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "gelu": F.gelu,
}


@pytest.mark.parametrize("name", GATES)
def test_gates_equal_torch(name: str) -> None:
    m = system(lambda m, f: function(name, of(m, f, "x")))
    given = arrays(m, {"l": ROWS, "d": WIDTH})
    found = torch.from_numpy(cm.evaluate(m, given, {"l": ROWS, "d": WIDTH}))
    assert same(found, GATES[name](torch.from_numpy(given["x"])))


def test_parts_belong_to_the_array_that_is_defined() -> None:
    m = system(normed(layer_norm))
    parts = lower(m.forms["direct"]).equations
    names = ["y.mean", "y.centred", "y.square", "y.variance", "y.root", "y"]
    assert [part.name for part in parts] == names
    assert {part.part_of for part in parts} == {"y"}


def test_a_peer_meets_no_contraction_in_a_norm() -> None:
    """torch's counter counts matrix products and convolutions, and no norm."""
    for norm in ("layer norm", "RMS norm", "l2 norm"):
        assert cm.count(system(SYSTEMS[norm]), convention="torch").at(l=3, d=5).mul == 0


PRINTED: Mapping[str, tuple[str, str]] = {
    "layer norm": (
        "layer_norm(x[i,b], gain[b], bias[b], over b)",
        r"\mathrm{LayerNorm}_{b}\left(x_{i,b}, \mathrm{gain}_{b}, \mathrm{bias}_{b}\right)",
    ),
    "RMS norm, plain": ("rms_norm(x[i,b], over b)", r"\mathrm{RMSNorm}_{b}\left(x_{i,b}\right)"),
    "l2 norm, both": ("l2_norm(x[i,b], over b)", r"\mathrm{L2Norm}_{b}\left(x_{i,b}\right)"),
    "short convolution": (
        "short_convolution(x[i,b], W[s,b], bias[b], over s)",
        r"\mathrm{ShortConv}_{s}\left(x_{i,b}, W_{s,b}, \mathrm{bias}_{b}\right)",
    ),
    "rotary, halves": (
        "rotary(x[i,b], cos[i,b], sin[i,b], over b,p)",
        r"\mathrm{RoPE}_{b,p}\left(x_{i,b}, \mathrm{cos}_{i,b}, \mathrm{sin}_{i,b}\right)",
    ),
    "gelu": ("gelu_tanh(x[i,b])", r"\mathrm{gelu}_{\tanh}\left(x_{i,b}\right)"),
    "gelu of an expression": (
        "gelu_tanh(x[i,b] + bias[b])",
        r"\mathrm{gelu}_{\tanh}\left(x_{i,b} + \mathrm{bias}_{b}\right)",
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_composites_are_printed_by_their_names(name: str) -> None:
    (line,) = system(SYSTEMS[name]).forms["direct"].equations
    assert (equation(line, latex=False).right, equation(line).right) == PRINTED[name]


def test_a_softmax_over_two_indices() -> None:
    """Weights of a row add up to 1 over both; in the printed sum both indices are primed."""
    made, sizes = joint(), {"l": 3, "d": 4, "n": 2}
    form = made.forms["direct"]
    A = evaluate_all(made, random_arrays(form, sizes), sizes)["A"]
    assert np.allclose(A.sum(axis=(1, 2)), 1, rtol=0, atol=1e-12)
    shown = equation(next(e for e in form.equations if e.name == "A"), latex=False)
    assert shown.right == "exp(z[i,j,k]) / (sum(j' = 1..n, k' = 1..i) exp(z[i,j',k']))"


def test_every_composite_is_printed_and_tried() -> None:
    from costmodel.language.macros import WRITTEN

    assert set(COMPOSITES) == {"scaled", *WRITTEN}
    tried = {text.partition("(")[0] for text, _ in PRINTED.values()}
    assert tried | {"softmax"} == set(WRITTEN)


def over_rows_seen(m: Mixer, f: Form) -> Node:
    l, i = m.arrays["x"].shape[0], f.indices["i"]
    z, j = f.array("z", l, l), f.index("j", 1, i)
    z[i, j] = m.arrays["x"][i, 1] * m.arrays["x"][j, 1]
    A = f.array("A", l, l)
    A[i, j] = layer_norm(z[i, j], over=j)
    return cm.sum_(A[i, j], over=j)


def wrong_width(m: Mixer, f: Form) -> Node:
    i, b = f.indices["i"], f.indices["b"]
    d, (k,) = m.arrays["x"].shape[1], m.sizes("k")
    s = f.index("s", 1, k + 1)
    return short_convolution(of(m, f, "x"), m.parameter("W", k, d)[s, b], along=i, taps=s)


def wrong_taps(m: Mixer, f: Form) -> Node:
    i, k = f.indices["i"], m.sizes("k")[0]
    return short_convolution(of(m, f, "x"), of(m, f, "gain"), along=i, taps=f.index("s", 1, k))


def rows_apart(m: Mixer, f: Form) -> Node:
    i, b, x = f.indices["i"], f.indices["b"], m.arrays["x"]
    d, (k,) = x.shape[1], m.sizes("k")
    s, weight = f.index("s", 1, k), m.parameter("W", k, d)
    return short_convolution(x[i + 1, b], weight[s, b], along=i, taps=s)


def wrong_pairs(m: Mixer, f: Form) -> Node:
    (l, d), i = m.arrays["x"].shape, f.indices["i"]
    b, p, table = f.indices["b"], f.index("p", 1, d), m.buffer("cos", l, d)
    return rotary(of(m, f, "x"), over=b, pairs=p, cos=table[i, b], sin=table[i, b])


def later_channels(m: Mixer, f: Form) -> Node:
    x, i = m.arrays["x"], f.indices["i"]
    d, table = x.shape[1], m.buffer("cos", *x.shape)
    e, p = f.index("e", 2, d), f.index("p", 1, (d - 1) / 2)
    return rotary(x[i, e], over=e, pairs=p, cos=table[i, e], sin=table[i, e])


MISTAKES: Mapping[str, tuple[Write, str]] = {
    "an operand without the axis": (
        lambda m, f: layer_norm(of(m, f, "gain"), over=f.indices["i"]),
        "layer_norm runs over i, which is no index of its operand gain: the indices of gain are b",
    ),
    "an expression as the operand": (
        lambda m, f: rms_norm(of(m, f, "x") * 2, over=f.indices["b"]),
        "rms_norm takes an entry of an array, got an expression: define the operand as an "
        "array first",
    ),
    "a left side without the axis": (
        lambda m, f: l2_norm(
            m.arrays["x"][f.indices["i"], f.index("c", 1, 3)], over=f.indices["c"]
        ),
        "y: l2_norm runs over c: put c on the left side too",
    ),
    "a length that differs from row to row": (
        over_rows_seen,
        "layer_norm runs over j, whose length is no size of the mixer: give j one range between "
        "sizes",
    ),
    "a negative constant": (
        lambda m, f: layer_norm(of(m, f, "x"), over=f.indices["b"], eps=-1e-5),
        "layer_norm: eps must be a number of at least 0, got -1e-05",
    ),
    "a fraction over 0": (
        lambda m, f: rms_norm(of(m, f, "x"), over=f.indices["b"], eps="1/0"),
        "rms_norm: eps must be a number of at least 0, got '1/0'",
    ),
    "no constant": (
        lambda m, f: l2_norm(of(m, f, "x"), over=f.indices["b"], least="small"),
        "l2_norm: least must be a number of at least 0, got 'small'",
    ),
    "inside an expression": (
        lambda m, f: 2 * layer_norm(of(m, f, "x"), over=f.indices["b"]),
        "y: layer_norm must be the whole right side: define its result as an array first",
    ),
    "gelu inside an expression": (
        lambda m, f: 2 * gelu_tanh(of(m, f, "x")),
        "y: gelu_tanh must be the whole right side: define its result as an array first",
    ),
    "inside another composite": (
        lambda m, f: layer_norm(
            of(m, f, "x"), over=f.indices["b"], gain=gelu_tanh(of(m, f, "gain"))
        ),
        "y: gelu_tanh must be the whole right side: define its result as an array first",
    ),
    "more taps than weights": (
        wrong_width,
        "short_convolution has k taps in W, but s does not run over 1..k: declare s with this "
        "range",
    ),
    "weights without taps": (
        wrong_taps,
        "short_convolution runs over s, which is no index of its operand gain: the indices "
        "of gain are b",
    ),
    "rows that are shifted": (
        rows_apart,
        "short_convolution runs over i: expected i alone as a position of x, got x[i + 1, b]",
    ),
    "as many pairs as channels": (
        wrong_pairs,
        "rotary turns the d channels of b in pairs, but p does not run over 1..d/2: declare p "
        "with this range",
    ),
    "channels that begin later": (
        later_channels,
        "rotary turns channels from 1 on, and e begins at 2: begin e at 1, and define an array of "
        "the channels to turn first",
    ),
    "an unknown layout": (
        turned("quarters"),
        "rotary has no layout 'quarters': expected halves or interleaved",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake: str) -> None:
    write, sentence = MISTAKES[mistake]
    with pytest.raises(EquationError) as raised:
        cm.count(system(write))
    assert str(raised.value) == sentence


USER = '''"""Attention of normed, convolved, turned queries, and a gated sublayer behind it."""
import costmodel as cm
from costmodel.language.macros.gates import gelu_tanh
from costmodel.language.macros.norms import l2_norm, layer_norm, rms_norm
from costmodel.language.macros.positions import rotary, short_convolution

m = cm.Mixer("all-composites", title="All composites")
l, d, n, h, k = m.sizes("l d n h k")
x, y = m.input("x", l, d), m.output("y", l, d)
gain, bias, W_conv = m.parameter("gain", d), m.parameter("bias", d), m.parameter("W_conv", k, d)
W_Q, W_out = m.parameter("W_Q", d, d), m.parameter("W_out", d, d)
cos, sin = m.buffer("cos", l, h), m.buffer("sin", l, h)
with m.form("direct") as f:
    i, a, b, s = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d), f.index("s", 1, k)
    j, c, p, q = f.index("j", 1, n), f.index("c", 1, h), f.index("p", 1, h / 2), f.index("q", 1, i)
    u, v, o, g, r = (f.array(name, l, d) for name in "uvogr")
    Q, N, R, T = (f.array(name, n, l, h) for name in "QNRT")
    Z, A = f.array("Z", n, l, l), f.array("A", n, l, l)
    u[i, b] = layer_norm(x[i, b], over=b, gain=gain[b], bias=bias[b])
    v[i, b] = short_convolution(u[i, b], W_conv[s, b], along=i, taps=s)
    Q[j, i, c] = cm.sum_(v[i, a] * W_Q[a, (j - 1) * h + c], over=a)
    N[j, i, c] = l2_norm(Q[j, i, c], over=c)
    R[j, i, c] = rotary(N[j, i, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c])
    T[j, i, c] = rotary(
        N[j, i, c], over=c, pairs=p, cos=cos[i, c], sin=sin[i, c], layout="interleaved"
    )
    Z[j, i, q] = cm.scaled(cm.sum_(R[j, i, c] * T[j, q, c], over=c), by=h)
    A[j, i, q] = cm.softmax(Z[j, i, q], over=q)
    o[i, (j - 1) * h + c] = cm.sum_(A[j, i, q] * Q[j, q, c], over=q)
    g[i, b] = gelu_tanh(o[i, b])
    r[i, b] = rms_norm(g[i, b], over=b)
    y[i, b] = cm.sum_(r[i, a] * W_out[a, b], over=a) * cm.function("silu", u[i, b])
'''


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check FILE", "counts equal instrumented execution"),
        ("table FILE", "all-composites"),
        ("table FILE --symbolic --format latex", "All composites"),
        ("explain FILE", "layer_norm(x[i,b], gain[b], bias[b], over b)"),
        ("explain FILE --format latex", r"\mathrm{RoPE}_{c,p}\left(N_{j,i,c}"),
    ],
)
def test_a_mixer_of_a_users_own(
    command: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.py"
    path.write_text(USER, encoding="utf-8")
    words = [word.replace("FILE", f"{path}:all-composites") for word in command.split()]
    assert cli.run(words) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and said in printed.out
