"""Do the options of a mixer's name mean what they state, in every combination?

The values and operations of the variants of self-attention are written here with one loop per
printed index, Vaswani et al. 2017 section 3.2 with biases as torch.nn.MultiheadAttention adds them.
A norm, a rotary embedding and a gate count as the docstrings of their macros say. Nothing is shared
with the package.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import cli
import costmodel as cm
from costmodel import EquationError, Mixer
from costmodel.errors import UnknownMixer
from costmodel.language.options import Family, offering, split
from costmodel.mixers import builtin, names
from costmodel.mixers.self_attention import self_attention
from costmodel.oracle.execute import random_arrays
from costmodel.program.chosen_sizes import raised
from costmodel.proofs.against_oracle import differences
from tests.small import by_sizes

Array = npt.NDArray[np.float64]

AT_ONCE = [
    tuple(text.split("+"))
    for text in (
        "bias+wide+grouped",
        "output-bias+bidirectional+grouped",
        "bias+wide+grouped+window+sinks+gate+heads-norm+qk-norm+soft-cap+rotary-pairs",
        "bias+grouped+chunked-window+sinks+head-gate+heads-norm+qk-norm+soft-cap+rotary",
        "bias+bidirectional+wide+sinks+gate+heads-norm+qk-norm+v-norm+soft-cap+partial-rotary",
        "bias+wide+grouped+window+sinks+biased-gate+heads-norm+qk-norm+soft-cap+partial-rotary",
        "bias+grouped+window+sinks+gate+heads-norm+keys-as-values+v-norm+unscaled+soft-cap",
        "output-bias+wide+cross+grouped+sinks+head-gate+heads-norm+qk-norm+soft-cap",
        "bias+grouped+window+sinks+gate+heads-norm+whole-qk-norm+v-norm+soft-cap+rotary",
        "wide+cross+grouped+whole-qk-norm",
        "bias+grouped+window+sinks+gate+qk-layer-norm+v-norm+clipped+soft-cap+rotary",
        "bias+grouped+window+gate+heads-norm+qk-layer-norm+v-norm+clipped+soft-cap+alibi+rotary",
        "output-bias+bidirectional+grouped+heads-norm+keys-as-values+clipped+soft-cap+"
        "relative-bias+rotary",
        "bias+bidirectional+window+sinks+gate+clipped+partial-rotary",
        "bias+window+gate+clipped+alibi+rotary-pairs+partial-rotary",
        "wide+grouped+chunked-window+sinks+head-gate+qk-layer-norm+unscaled",
        "wide+grouped+chunked-window+head-gate+qk-layer-norm+unscaled+alibi",
        "qk-layer-norm+relative-bias",
        "bias+grouped+keys-as-values+heads-qk-layer-norm+v-norm+clipped+rotary",
        "wide+grouped+window+head-gate+heads-norm+heads-qk-layer-norm+soft-cap+alibi",
    )
]
"""Sets of options in which every two that go together do so."""
ALONE = [(), *((option,) for option in self_attention.offers)]
NAMED = [split(stands)[1] for stands in self_attention.plain.variants.values()]
CHOICES = [*dict.fromkeys([*ALONE, *NAMED]), *AT_ONCE]
SIZES = [
    {"l": 5, "d": 8, "n": 4, "g": 2, "w": 2, "r": 2, "K": 5, "V": 7, "e": 2, "B": 4},
    {"l": 3, "d": 2, "n": 2, "g": 1, "w": 1, "r": 4, "K": 1, "V": 3, "e": 7, "B": 2},
    {"l": 1, "d": 1, "n": 1, "g": 1, "w": 3, "r": 2, "K": 1, "V": 1, "e": 1, "B": 1},
]

every_choice = pytest.mark.parametrize("options", CHOICES, ids=lambda o: "+".join(o) or "plain")
every_size = by_sizes(SIZES)


def own(mixer: Mixer, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes that a mixer has, greater where the channels of a head turn in pairs."""
    return raised(mixer, {x: value for x, value in sizes.items() if x in mixer.letters})


# The equations, loop by loop.


def linear(row: Array, weight: Array, bias: Array | None, done: Counter[str]) -> Array:
    """row W + b: a sum of R terms takes R-1 additions."""
    terms, columns = weight.shape
    out = np.zeros(columns)
    for b in range(columns):
        for a in range(terms):
            out[b] += row[a] * weight[a, b]
    done.update(mul=terms * columns, add=(terms - 1) * columns)
    if bias is not None:
        done.update(add=columns)
        out = out + bias
    return out


def attend(
    query: Array,
    keys: list[Array],
    values: list[Array],
    done: Counter[str],
    sink: float | None = None,
    capped: bool = False,
    scaled: bool = True,
    biases: list[float] | None = None,
) -> Array:
    """One query over the keys that it sees, eq. (1) of Vaswani et al.; with the sink's power in the
    sum, scores of at most 50, and a bias on the score of each key."""
    scores = []
    for number, key in enumerate(keys):
        scores.append(sum(query[c] * key[c] for c in range(len(key))))
        done.update(mul=len(key), add=len(key) - 1, exp=1)
        if scaled:
            scores[-1] /= math.sqrt(len(key))
            done.update(div=1)
        if capped:
            scores[-1] = 50 * math.tanh(scores[-1] / 50)
            done.update(div=1, tanh=1, mul=1)
        if biases is not None:
            scores[-1] += biases[number]
            done.update(add=1)
    powers = [math.exp(score) for score in scores]
    done.update(add=len(powers) - 1, div=len(powers))
    total = sum(powers)
    if sink is not None:
        total += math.exp(sink)
        done.update(exp=1, add=1)
    out = np.zeros(len(values[0]))
    for power, value in zip(powers, values, strict=True):
        out += power / total * value
    done.update(mul=len(values) * len(out), add=(len(values) - 1) * len(out))
    return out


def normed(row: Array, weight: Array | None, done: Counter[str]) -> Array:
    """An RMS norm, its weight last, if there is one."""
    m = len(row)
    done.update(mul=m, add=m, div=m + 1, sqrt=1)
    out = np.array([row[c] / math.sqrt(sum(row**2) / m + 2**-52) for c in range(m)])
    if weight is None:
        return out
    done.update(mul=m)
    return out * weight


def centred(row: Array, weight: Array, offset: Array | None, done: Counter[str]) -> Array:
    """A layer norm, with weights and, unless it is None, an offset."""
    m = len(row)
    done.update(mul=m, add=m - 1 + m + m - 1 + 1, div=1 + 1 + m, sqrt=1)
    done.update(mul=m, add=0 if offset is None else m)
    centre = row - sum(row) / m
    found = centre / math.sqrt(sum(centre**2) / m + 1e-5) * weight
    return np.asarray(found if offset is None else found + offset)


def slopes(n: int) -> list[float]:
    """The factors of ALiBi's n heads, Press et al. 2021, section 3 and the authors' code."""
    near = 2 ** int(math.log2(n))
    found = [2 ** (-8 * (j + 1) / near) for j in range(near)]
    return found if near == n else found + slopes(2 * near)[::2][: n - near]


def bucket_of(distance: int, buckets: int, both: bool) -> int:
    """T5's bucket of a key so many tokens before the query, from 0; with few buckets at least one
    on each side, as far as there are so many."""
    first = 0
    if both:
        each = max(buckets // 2, 1)
        first = each if distance < 0 else 0
        return min(first + bucket_of(abs(distance), each, both=False), buckets - 1)
    exact = max(buckets // 2, 1)
    if distance < exact:
        return min(distance, buckets - 1)
    far = math.log(distance / exact) / math.log(max(128 / exact, 2)) * (buckets - exact)
    return min(exact + int(far), buckets - 1)


def turned(row: Array, position: int, m: int, neighbours: bool, done: Counter[str]) -> Array:
    """A row whose first m channels, in pairs, turn by angles of its position, counted from 0."""
    out = row.copy()
    for p in range(m // 2):
        one, two = (2 * p, 2 * p + 1) if neighbours else (p, p + m // 2)
        angle = position * 10_000 ** (-2 * p / m)
        out[one] = row[one] * math.cos(angle) - row[two] * math.sin(angle)
        out[two] = row[two] * math.cos(angle) + row[one] * math.sin(angle)
    done.update(mul=2 * m, add=m)
    return out


def gated(row: Array, gates: Array, done: Counter[str]) -> Array:
    """A head times the sigmoid of its gates, one a channel or one in all."""
    done.update(mul=len(row), exp=len(gates), add=len(gates), div=len(gates))
    return np.asarray(row / (1 + np.exp(-gates)))


def seen_by(i: int, options: tuple[str, ...], tokens: int, w: int | None) -> range:
    """The tokens that token i sees, from 0."""
    if {"bidirectional", "window"} <= {*options} and w is not None:
        return range(max(0, i - w + 1), min(tokens, i + w))
    if {"cross", "bidirectional"} & {*options}:
        return range(tokens)
    if w is None:
        return range(i + 1)
    return range(max(0, i - w + 1) if "window" in options else i // w * w, i + 1)


def reference(
    options: tuple[str, ...], arrays: dict[str, Array], sizes: dict[str, int]
) -> tuple[Array, list[Counter[str]], Counter[str]]:
    """y, the operations that each token adds, and those that read the second sequence alone."""
    n, groups = sizes["n"], sizes["g"] if "grouped" in options else sizes["n"]
    x, source = arrays["x"], arrays.get("z")
    given = {name: arrays.get(f"b_{name}") for name in ("Q", "K", "V", "G", "out")}
    bias = {name: None if own is None else own.ravel() for name, own in given.items()}
    weight = {
        name: arrays[f"W_{name}"].reshape(x.shape[1], -1)
        for name in "QKVG"
        if f"W_{name}" in arrays
    }
    layouts = [option for option in options if "rotary" in option]
    added, apart = [Counter[str]() for _ in x], Counter[str]()
    heads = {"Q": [], "K": [], "V": []}  # type: dict[str, list[list[Array]]]
    keys_as_mapped: list[list[Array]] = []
    for name in heads:
        rows = source if source is not None and name != "Q" else x
        for i, row in enumerate(rows):
            done = added[i] if rows is x else apart
            if name == "V" and "keys-as-values" in options:
                of_row = keys_as_mapped[i]
            else:
                whole = linear(row, weight[name], bias[name], done)
                of_row = np.split(whole, n if name == "Q" else groups)
            if name == "K":
                keys_as_mapped.append(of_row)
            if name == "V" and "v-norm" in options:
                of_row = [normed(head, None, done) for head in of_row]
            if name != "V":
                if "qk-norm" in options:
                    of_row = [normed(head, arrays[f"w_{name}"], done) for head in of_row]
                if "qk-layer-norm" in options:
                    own_norm = arrays[f"w_{name}"], arrays[f"o_{name}"]
                    of_row = [centred(head, *own_norm, done) for head in of_row]
                if "heads-qk-layer-norm" in options:
                    gains = arrays[f"w_{name}"].reshape(len(of_row), -1)
                    pairs_of = zip(of_row, gains, strict=True)
                    of_row = [centred(head, gain, None, done) for head, gain in pairs_of]
                if "whole-qk-norm" in options:
                    of_all = normed(np.concatenate(of_row), arrays[f"w_{name}"].ravel(), done)
                    of_row = np.split(of_all, len(of_row))
            if "clipped" in options:
                of_row = [np.clip(head, -8, 8) for head in of_row]
                # the bounded keys are the values, unless one of the two has a norm
                alone = name == "V" and "keys-as-values" in options and "w_K" not in arrays
                again = not alone or "v-norm" in options
                done.update(compare=2 * sum(map(len, of_row)) if again else 0)
            if name != "V" and layouts:
                m = sizes["r"] if "partial-rotary" in layouts else len(of_row[0])
                pairs = "rotary-pairs" in layouts
                of_row = [turned(head, i, m, pairs, done) for head in of_row]
            heads[name].append(of_row)
    y = []
    for i in range(len(x)):
        seen = seen_by(i, options, len(heads["K"]), sizes.get("w"))
        sinks = arrays["b_sink"].ravel() if "sinks" in options else [None] * n
        biases: list[list[float] | None] = [None] * n
        if "alibi" in options:
            biases = [[factor * k for k in seen] for factor in slopes(n)]
        if "relative-bias" in options:
            learned, both = arrays["b_rel"].reshape(-1, n), "bidirectional" in options
            of = [bucket_of(i - k, len(learned), both) for k in seen]
            biases = [[learned[number, j] for number in of] for j in range(n)]
        read = [
            attend(
                heads["Q"][i][j],
                [heads["K"][k][j * groups // n] for k in seen],
                [heads["V"][k][j * groups // n] for k in seen],
                added[i],
                sinks[j],
                "soft-cap" in options,
                "unscaled" not in options,
                biases[j],
            )
            for j in range(n)
        ]
        if "G" in weight:
            opened = bias["G"]
            if opened is not None:
                opened = opened.repeat(weight["G"].shape[1] // opened.size)  # one a head, or each
            gates = np.split(linear(x[i], weight["G"], opened, added[i]), n)
            read = [gated(row, gate, added[i]) for row, gate in zip(read, gates, strict=True)]
        W_out, joined = arrays["W_out"].reshape(-1, x.shape[1]), np.concatenate(read)
        if "w_R" in arrays:
            joined = normed(joined, arrays["w_R"].ravel(), added[i])
        y.append(linear(joined, W_out, bias["out"], added[i]))
    return np.array(y), added, apart


def arrays_of(mixer: Mixer, sizes: dict[str, int]) -> dict[str, Array]:
    return random_arrays(mixer.forms["direct"], own(mixer, sizes))


def references(
    mixer: Mixer, sizes: dict[str, int]
) -> tuple[dict[str, Array], Array, list[Counter[str]], Counter[str]]:
    """Numbers for the arrays, and the answers of the loops."""
    arrays = arrays_of(mixer, sizes)
    return arrays, *reference(mixer.options, arrays, own(mixer, sizes))


@every_choice
@every_size
def test_values_are_those_of_the_loops(options: tuple[str, ...], sizes: dict[str, int]) -> None:
    mixer = self_attention.of(options)
    arrays, expected, _, _ = references(mixer, sizes)
    found = cm.evaluate(mixer, arrays, own(mixer, sizes))
    # sums of at most 7 * 8 products of size about one, in float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.grid(3)
@every_choice
@every_size
def test_counts_are_those_of_the_loops(options: tuple[str, ...], sizes: dict[str, int]) -> None:
    mixer = self_attention.of(options)
    given = own(mixer, sizes)
    _, _, added, apart = references(mixer, sizes)
    counts = cm.count(mixer).at(**given)
    assert +Counter(counts.by_class()) == +sum(added, apart)
    assert counts.once is None or not counts.once.total
    if "bidirectional" in options:
        with pytest.raises(cm.Unanswered, match="an output depends on later tokens"):
            cm.count(mixer, "inference")
        return
    for t, done in enumerate(added, 1):
        token = cm.count(mixer, "inference").at(**given, t=t)
        assert +Counter(token.by_class()) == +done


@pytest.mark.grid(24)
@every_choice
def test_rules_equal_the_oracle(options: tuple[str, ...]) -> None:
    """But for the traffic of learned numbers by distance, which is refused by name."""
    mixer = self_attention.of(options)
    found = [words for sizes in SIZES for words in differences(mixer, own(mixer, sizes))]
    found += differences(mixer, own(mixer, SIZES[0]), rewrites=("dense", "safe-softmax"))
    assert bool(found) == ("relative-bias" in options)
    for words in found:
        assert re.fullmatch(f".*traffic.*: {REFUSED}", words)


REFUSED = (
    "which entries of b_rel are read depends on the values of bucket, so that the traffic has no "
    "formula"
)


# What each option changes, by hand.


BY_HAND = {"l": 5, "d": 6, "n": 3, "g": 1, "K": 5, "V": 7, "e": 2}


def totals(name: str) -> tuple[int, int, int, int, int]:
    mixer = cm.mixer(name)
    sizes = own(mixer, BY_HAND)
    counts = cm.count(mixer).at(**sizes)
    return counts.mul, counts.add, counts.div, counts.exp, cm.parameters(mixer).at(**sizes)


def changed(name: str) -> tuple[int, ...]:
    """By how much an option changes multiplications, additions, divisions, exponentials and
    parameters."""
    pairs = zip(totals(name), totals("self-attention"), strict=True)
    return tuple(one - two for one, two in pairs)


def test_biases_add_a_count_by_hand() -> None:
    """A bias adds one number to each of the l d entries that its map gives, and has d numbers."""
    assert changed("self-attention+bias") == (0, 4 * 5 * 6, 0, 0, 4 * 6)
    assert changed("self-attention+output-bias") == (0, 5 * 6, 0, 0, 6)


def test_bidirectional_adds_a_count_by_hand() -> None:
    """10 later pairs for each of 3 heads: a score of width 2, its share of a row, its softmax."""
    pairs = 3 * (5 * 5 - 5 * 6 // 2)
    mul, add = pairs * (2 + 2), pairs * (1 + 1 + 2)
    assert changed("self-attention+bidirectional") == (mul, add, 2 * pairs, pairs, 0)


def test_grouped_saves_a_count_by_hand() -> None:
    """Keys and values for 1 head in place of 3: each has 5 rows of 2 in place of 6 columns."""
    fewer = 2 * 5 * (6 - 2)
    assert changed("self-attention+grouped") == (-6 * fewer, -5 * fewer, 0, 0, -2 * 6 * (6 - 2))


def test_wide_adds_a_count_by_hand() -> None:
    """Keys are 5 and values 7 wide in each of 3 heads, in place of 2: l d n more products for each
    column of W_Q, W_K and W_V and row of W_out, and the pairs' products."""
    pairs, more = 3 * 15, 2 * (5 - 2) + 2 * (7 - 2)
    mul = 5 * 6 * 3 * more + pairs * (5 - 2 + 7 - 2)
    added = 5 * 5 * 3 * (more - (7 - 2))  # Q, K, V: R-1 additions for R = 6
    added += 5 * 6 * 3 * (7 - 2)  # y: R = 21 in place of 6
    added += pairs * (5 - 2) + (pairs - 3 * 5) * (7 - 2)
    assert changed("self-attention+wide") == (mul, added, 0, 0, 6 * 3 * more)


def test_wide_with_the_usual_widths_is_plain() -> None:
    plain, wide = cm.mixer("self-attention"), cm.mixer("self-attention+wide")
    sizes = {"l": 5, "d": 6, "n": 3}
    arrays = random_arrays(plain.forms["direct"], sizes)
    expected = cm.evaluate(plain, arrays, sizes)
    assert np.array_equal(cm.evaluate(wide, arrays, {**sizes, "K": 2, "V": 2}), expected)
    assert cm.count(wide).at(**sizes, K=2, V=2).total == cm.count(plain).at(**sizes).total


def test_heads_of_a_width_of_their_own_need_not_divide_d() -> None:
    found = cm.count(cm.mixer("self-attention+wide")).at(l=2, d=5, n=3, K=2, V=2)
    assert found.mul == 2 * 5 * 3 * (2 + 2 + 2 + 2) + 3 * 3 * (2 + 2)


# Names.


def test_options_come_in_any_order_and_are_printed_in_one() -> None:
    for order in itertools.permutations(("bias", "bidirectional", "wide")):
        found = cm.mixer("+".join(("self-attention", *order)))
        assert found is cm.mixer("self-attention+bias+bidirectional+wide")
    assert found.name == found.origin == "self-attention+bias+bidirectional+wide"
    assert (found.base, found.options) == ("self-attention", ("bias", "bidirectional", "wide"))
    assert found.title == "Self-attention (bias, bidirectional, wide)"
    assert cm.mixer("self-attention").options == ()


def test_every_combination_is_a_mixer_of_its_own() -> None:
    assert len({self_attention.of(options).name for options in CHOICES}) == len(CHOICES)
    assert [*CHOICES[:3], CHOICES[-1]] == [(), ("bias",), ("output-bias",), AT_ONCE[-1]]
    assert {option for options in CHOICES for option in options} == {*self_attention.offers}
    assert all(builtin(self_attention.of(options).name).options == options for options in CHOICES)


def test_no_mixer_changes_by_its_options() -> None:
    before = cm.count(cm.mixer("self-attention")).at(l=5, d=6, n=3)
    list(map(self_attention.of, CHOICES))
    assert cm.count(cm.mixer("self-attention")).at(l=5, d=6, n=3) == before
    assert [name for name in names() if "+" in name] == []


BAD = {
    "self-attention+bais": "self-attention has no option 'bais'; did you mean 'bias'? It takes "
    "bias (b_Q, b_K, b_V, b_out and, with a gate, b_G: a bias on each linear map), output-bias (",
    "self-attention+xpos": "self-attention has no option 'xpos': it takes bias (b_Q,",
    "self-attention+": "self-attention has no option '': it takes bias (",
    "self-attention+bias+wide+bias": "self-attention+bias+wide+bias names the option 'bias' twice",
    "self-attention+output-bias+bias": "self-attention takes 'bias' or 'output-bias', not both: "
    "'bias' has b_out among its biases",
    "self-attention+cross+bidirectional": "takes 'bidirectional' or 'cross', not both: with",
    "gqa+bidirectional+chunked-window": "self-attention takes 'bidirectional' or 'chunked-window', "
    "not both: a chunk ends with the token",
    "mqa+grouped": "'mqa' is self-attention+grouped{g=1}: leave out 'grouped'",
    "gqa+window+mqa": "'mqa' is a mixer, and no option of self-attention: write its name first, "
    "mqa+window",
    "gqa+mha": "'mha' is a mixer, and no option of self-attention",
    "mqa+window{g=2,w=3}": "'mqa' is self-attention+grouped{g=1}: leave g out of its braces",
    "gpa": "unknown mixer 'gpa'; did you mean 'gqa'?",
    "she+bias": "she takes no options, got 'bias'",
    "extractor+bias+wide": "she takes no options, got 'bias+wide'",
    "self-atention+bias": "unknown mixer 'self-atention+bias'; did you mean 'self-attention+bias'?",
    "self-atention+bais": "did you mean 'self-attention+bias'? `costmodel list`",
    "nosuch+bias": "unknown mixer 'nosuch+bias': `costmodel list` shows them all",
}


@pytest.mark.parametrize("name", BAD)
def test_names_that_mean_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownMixer) as raised:
        cm.mixer(name)
    assert BAD[name] in str(raised.value)
    assert cli.run(["table", name]) == 2
    said = capsys.readouterr()
    assert said.err == f"costmodel: {raised.value}\n" and not said.out


# Commands.


def test_the_list_shows_options_and_their_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "--format", "json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["mixers"]}
    assert listed["self-attention"]["options"] == dict(self_attention.offers)
    assert listed["she"]["options"] == {}
    assert cli.run(["list", "self-attention"]) == 0
    shown = capsys.readouterr().out
    assert ", ".join(self_attention.offers) in shown
    assert "options of self-attention: bias (b_Q, b_K, b_V, b_out and, with a gate, b_G" in shown


def test_a_table_takes_a_name_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    name = "self-attention+wide+bias"
    typed = ["table", name, "--l", "5", "--d", "6", "--n", "3", "--K", "5", "--V", "7"]
    assert cli.run([*typed, "--phase", "training", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["mixer"] == "self-attention+bias+wide"
    assert row["sizes"] == {"b": 1, "l": 5, "d": 6, "n": 3, "K": 5, "V": 7}
    expected = totals("self-attention+bias+wide")
    assert tuple(row["counts"][name] for name in ("mul", "add", "div", "exp")) == expected[:4]
    assert row["parameters"] == expected[4]


TEX = r"+ b^{[\mathrm{out}]}_{b}"


@pytest.mark.parametrize("format_", ["rich", "markdown", "latex"])
def test_explain_shows_the_biases(format_: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", "self-attention+bias+bidirectional", "--format", format_]) == 0
    shown = capsys.readouterr().out
    assert {"rich": "+ b_out[b]", "markdown": TEX, "latex": TEX}[format_] in shown
    assert "an output depends on later tokens" in shown


# A file of a user's own.

USER = """
import costmodel as cm
from costmodel.language.options import offering


@offering({"gate": "a gate", "two-steps": "the row before joins"}, {("gate", "two-steps"): "no"})
def mine(chosen):
    m = cm.Mixer("mine-with-options", aliases=("my-own",))
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    w = m.parameter("w", d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a] * w[a] * x[i, a] if "gate" in chosen else x[i, a] * w[a]
    return m
"""


def test_a_file_of_ones_own_may_offer_options(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(USER, encoding="utf-8")
    plain, gated = cm.mixer(f"{path}:mine"), cm.mixer(f"{path}:mine+gate")
    assert (plain.name, gated.name) == ("mine-with-options", "mine-with-options+gate")
    assert (gated.origin, gated.home) == (f"{path}:mine+gate", plain.home)
    assert gated.aliases == ("my-own+gate",)
    assert cm.mixer(gated.origin) is gated
    assert cm.count(gated).at(l=2, d=3).mul == 2 * cm.count(plain).at(l=2, d=3).mul == 2 * 6
    with pytest.raises(UnknownMixer, match="no option 'gaet'; did you mean 'gate'"):
        cm.mixer(f"{path}:mine+gaet")
    with pytest.raises(UnknownMixer, match=r"no mixer 'yours\+gate': it defines mine-with"):
        cm.mixer(f"{path}:yours+gate")
    with pytest.raises(UnknownMixer, match=r"is a file: give .*, it defines mine-with-options"):
        cm.mixer(str(path))


def test_options_that_cannot_be_typed_or_are_not_offered_are_refused() -> None:
    with pytest.raises(EquationError, match=r"letters, digits and hyphens, got 'a\+b'"):
        offering({"a+b": "two"})(lambda chosen: Mixer("never"))
    with pytest.raises(
        EquationError, match="apart= names 'two', which is no option: expected some of one"
    ):
        offering({"one": "1"}, {("one", "two"): "why"})(lambda chosen: Mixer("never"))


def test_a_variant_is_written_once() -> None:
    written = []

    def make(chosen: frozenset[str]) -> Mixer:
        written.append(chosen)
        return Mixer("counted")

    family = Family(make, {"one": "1", "two": "2"})
    assert family.of(("two", "one")) is family.of(("one", "two"))
    assert family.plain is family.of(())
    assert written == [frozenset(), frozenset({"one", "two"})]
