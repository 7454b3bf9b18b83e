"""Do attention layers that ship have the parameters, the state and the operations that their own
sizes say, and does a softmax with a sink count as one?

The formulas are those of the layers' definitions in transformers 5.23 (gpt_oss, qwen3_next, llama4,
gemma2), written from the shapes of their projections; a linear map a -> b is ab products and
b(a - 1) additions. The scale of a score is a multiplication here, `scale=mul`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel.errors import SizeError, UnknownMixer
from costmodel.mixers import builtin
from costmodel.program.chosen_sizes import fitting
from profiler.mixers.self_attention import FusedSelfAttention
from profiler.modules import implementations
from tests.mixers import held
from tests.mixers.held import operations

STRICT = ("strict", "scale=mul")


@pytest.mark.parametrize(
    ("name", "d", "parameters"),
    [
        ("gpt-oss-attention{n=64,g=8,h=64}", 2880, 26_550_144),
        ("qwen3-next-attention{n=16,g=2,h=256}", 2048, 27_263_488),
        ("gqa{n=32,g=8,h=128}", 4096, 41_943_040),
        ("mqa{n=32,h=128}", 4096, 2 * 4096 * 4096 + 2 * 4096 * 128),
        ("gemma-4-attention{n=8,g=4,h=512}", 2304, 2 * 2304 * 4096 + 2304 * 2048 + 2 * 512),
        ("olmo-2-attention{n=32,h=128}", 4096, 4 * 4096 * 4096 + 2 * 4096),
    ],
)
def test_a_layer_has_the_parameters_that_it_ships_with(name: str, d: int, parameters: int) -> None:
    assert cm.parameters(cm.mixer(name)).at(d=d) == parameters


@pytest.mark.parametrize("t", [1, 2, 3, 4, 9])
def test_a_window_keeps_one_row_less_and_a_chunk_its_own_rows(t: int) -> None:
    """2 g h numbers a row: all rows, at most w-1, or those since the last chunk was complete."""
    n, g, h, w = 4, 2, 6, 3
    sizes = f"n={n},g={g},h={h}"
    rows = {"gqa": t, "gqa+window": min(t, w - 1), "gqa+chunked-window": t % w}
    for name, number in rows.items():
        braces = f"{{{sizes}}}" if name == "gqa" else f"{{{sizes},w={w}}}"
        assert cm.state(cm.mixer(f"{name}{braces}")).at(d=5, l=9, t=t) == 2 * g * h * number


def test_keys_that_are_values_are_kept_once_unless_they_are_normed_or_turned() -> None:
    rows = {"gqa": 2, "gqa+keys-as-values": 1, "gqa+keys-as-values+window": 1,
            "gqa+keys-as-values+rotary": 2, "gemma-4-attention": 2}  # fmt: skip
    for name, number in rows.items():
        braces = "{n=4,g=2,h=6,w=9}" if "window" in name else "{n=4,g=2,h=6}"
        assert cm.state(cm.mixer(f"{name}{braces}")).at(d=5, l=9, t=7) == number * 2 * 6 * 7


def linear(a: int, b: int) -> np.ndarray:
    """Products and additions, divisions, exponentials of a linear map."""
    return np.array([a * b, b * (a - 1), 0, 0])


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(("d", "n", "g", "h", "t", "w"), [(5, 4, 2, 6, 3, 4), (7, 2, 1, 4, 9, 4)])
def test_a_token_counts_its_projections_and_a_softmax_over_the_rows_that_it_sees(
    sink: bool, d: int, n: int, g: int, h: int, t: int, w: int
) -> None:
    r = min(t, w)
    core = np.array([r * (2 * h + 1), r * (h - 1) + (r - 1) * (h + 1), r, r])
    core += np.array([0, 1, 0, 1]) * sink
    expected = linear(d, n * h) + 2 * linear(d, g * h) + linear(n * h, d) + n * core
    name = f"gqa+window{'+sinks' * sink}{{n={n},g={g},h={h},w={w}}}"
    found = cm.count(cm.mixer(name), "inference", convention=STRICT).at(d=d, l=9, t=t)
    assert [found.mul, found.add, found.div, found.exp] == expected.tolist()


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    "name",
    [
        "gpt-oss-attention{n=4,g=2,h=4,w=3}",
        "qwen3-next-attention{n=2,g=1,h=8,r=6}",
        "llama-4-attention{n=2,g=1,h=4,w=2}",
        "gemma-2-attention{n=2,g=1,h=4,w=3}",
        "gemma-4-attention{n=2,g=1,h=4}",
        "olmo-2-attention+grouped+window{n=4,g=2,h=4,w=3}",
    ],
)
@pytest.mark.parametrize("phase", ["training", "inference", "training-step"])
def test_nothing_of_a_layer_stays_unexplained(name: str, phase: str) -> None:
    mixer = cm.mixer(name)
    for found in held.reconciled(name, {"b": 2, "l": 5, "d": 6, **mixer.given}, phase):
        assert found.explained, (found.implementation, found.unexplained)


@pytest.mark.parametrize(("h", "r"), [(128, 96), (128, 64), (6, 6)])
def test_r_channels_of_a_head_turn(h: int, r: int) -> None:
    """A channel that turns has 2 multiplications and an addition, in n heads of queries and g of
    keys; the others have none."""
    n, g, l, d = 4, 2, 3, 5
    braces = f"n={n},g={g},h={h}"
    turned = cm.count(cm.mixer(f"gqa+partial-rotary{{{braces},r={r}}}")).at(d=d, l=l)
    plain = cm.count(cm.mixer(f"gqa{{{braces}}}")).at(d=d, l=l)
    assert (turned.mul - plain.mul, turned.add - plain.add) == (
        2 * r * l * (n + g),
        r * l * (n + g),
    )


def test_more_channels_than_a_head_has_do_not_turn() -> None:
    mixer = cm.mixer("self-attention+partial-rotary")
    said = r"needs r to be at most d/n, got 20 and 16 \(d = 128, n = 8, r = 20\)"
    with pytest.raises(SizeError, match=said):
        cm.count(mixer).at(d=128, n=8, l=1, r=20)
    with pytest.raises(ValueError, match="r = 20 channels cannot turn: a head has 16"):
        FusedSelfAttention(d=128, n=8, l=1, r=20, options=("partial-rotary",))


def test_a_training_step_in_which_r_channels_turn_in_pairs_is_explained() -> None:
    """Neighbouring channels are two axes of r channels; that r is at most h is only declared."""
    sizes = {"b": 1, "l": 2, "d": 8, "n": 2, "r": 2}
    held.everything_is_explained("self-attention+rotary-pairs+partial-rotary", sizes, "explicit")


def test_bytes_without_a_formula_leave_the_operations_explained() -> None:
    """The values of a table decide which of T5's learned numbers are read."""
    sizes = {"l": 5, "d": 6, "n": 2, "B": 4, "b": 2}
    (found,) = held.reconciled("self-attention+relative-bias", sizes, "training", "explicit")
    assert found.explained and found.rungs["5"] is not None
    assert found.rungs["5"]["compulsory_bytes"] is None
    assert "the traffic has no formula" in found.reasons["compulsory_bytes"]


@pytest.mark.parametrize("letter", ["d", "n", "r"])
def test_the_sizes_at_which_r_channels_turn_are_those_that_a_scan_finds(letter: str) -> None:
    mixer, sizes = cm.mixer("self-attention+partial-rotary"), {"l": 5, "d": 24, "n": 2, "r": 8}
    found = fitting(mixer, letter, sizes)
    for size in range(1, 60):
        given = {**sizes, letter: size}
        fits = given["d"] % given["n"] == given["r"] % 2 == 0
        assert (size in found) == (fits and given["r"] <= given["d"] / given["n"]), size


# Names of variants.


def test_a_variant_has_a_name_of_its_own() -> None:
    grouped = cm.mixer("self-attention+grouped")
    assert cm.mixer("gqa") is grouped
    assert cm.mixer("mqa") is cm.mixer("self-attention+grouped{g=1}")
    assert cm.mixer("gqa+window{n=4,h=2}") is cm.mixer("self-attention+window+grouped{h=2,n=4}")
    assert cm.mixer("mqa+bias{n=4}").name == "self-attention+bias+grouped{n=4,g=1}"
    assert list(implementations("gqa")) == list(implementations(grouped)) == ["explicit", "sdpa"]
    assert list(implementations("gpt-oss-attention")) == ["explicit"]
    for name, stands_for in builtin("self-attention").variants.items():
        assert cm.mixer(name) is cm.mixer(stands_for)


USER = """
import costmodel as cm
from costmodel.language.options import offering


@offering({"twice": "two factors"}, variants={"double": "VARIANT"})
def mine(chosen):
    m = cm.Mixer("factors")
    l, d = m.sizes("l d")
    x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a] * w[a] * w[a] if "twice" in chosen else x[i, a] * w[a]
    return m
"""


def test_a_file_of_ones_own_may_name_a_variant(tmp_path: object) -> None:
    path = f"{tmp_path}/named.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write(USER.replace("VARIANT", "twice{d=3}"))
    found = cm.mixer(f"{path}:double")
    assert (found.name, found.origin) == ("factors+twice{d=3}", f"{path}:factors+twice{{d=3}}")
    assert cm.mixer(found.origin) is found
    assert cm.count(found).at(l=2).mul == 2 * 2 * 3
    wrong = f"{tmp_path}/wrong.py"
    with open(wrong, "w", encoding="utf-8") as file:
        file.write(USER.replace("VARIANT", "thrice"))
    with pytest.raises(UnknownMixer, match="'double' stands for 'thrice', but 'thrice' is no opt"):
        cm.mixer(f"{wrong}:double")


# A softmax with a sink.


def test_a_sink_is_in_the_denominator_alone_and_may_be_the_maximum() -> None:
    """Scores of some hundreds overflow unless the maximum, the sink's among them, is subtracted."""
    mixer, sizes = cm.mixer("self-attention+sinks"), {"l": 3, "d": 2, "n": 1}
    arrays = held.drawn("self-attention+sinks", sizes)
    zeros = arrays | {"W_Q": 0 * arrays["W_Q"], "b_sink": np.array([math.log(2)])}
    rows = np.cumsum(arrays["x"] @ arrays["W_V"], axis=0) / (np.arange(1, 4)[:, None] + 2)
    np.testing.assert_allclose(
        cm.evaluate(mixer, zeros, sizes), rows @ arrays["W_out"], rtol=0, atol=1e-14
    )
    high = zeros | {"b_sink": np.array([900.0])}
    module = held.module_of("self-attention+sinks", "explicit", sizes, high)
    (found,) = held.forward(module, arrays["x"])
    assert not found.any()  # exp(0 - 900) is 0 in float64


def test_a_sink_adds_one_exponential_and_one_addition_to_each_row_and_head() -> None:
    sizes = {"l": 5, "d": 6, "n": 3}
    plain, sunk = (operations(name, sizes) for name in ("self-attention", "self-attention+sinks"))
    more = {one: sunk[one] - plain[one] for one in plain}
    assert more == {"add": 15, "div": 0, "exp": 15, "mul": 0}
