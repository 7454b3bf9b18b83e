"""What do low-rank adapters compute, and what do they cost in a training step of a network?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import costmodel as cm
from cli import app
from costmodel import networks
from costmodel.errors import ModelError
from costmodel.language.equations import Mixer
from costmodel.networks import parts
from costmodel.networks.network import Network, network
from costmodel.oracle.execute import random_arrays
from costmodel.program.adapters import adapted
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.questions.evaluate import evaluate
from tests.models.test_architectures import LLAMA, printed, written
from tests.models.test_frozen import SIZES, elements

RANK = 2

MIXERS = {
    "grouped": cm.mixer("self-attention+grouped+gate+qk-norm+rotary+bias{n=4,g=2,h=4}"),
    "mla": cm.mixer("mla+query-compression{n=2,K=3,V=2,c=4,R=2,r=3}"),
    "mamba-2": cm.mixer("mamba-2{n=2,P=3,N=2,G=1,k=2}"),
    "gated-deltanet": cm.mixer("gated-deltanet{n=4,K=3,V=2,g=2,k=2}"),
    "convolution": cm.mixer("convolution{k=2}"),
    "FFN": parts.gated_ffn(),
    "head": parts.head(tied=True),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_an_adapter_is_a_map_of_low_rank_added_to_the_weights(mixer: Mixer) -> None:
    """With W + A B in place of each W the mixer has the same output."""
    made, names = adapted(mixer, RANK)
    sizes = {"l": 3, "d": 6, "f": 5, "u": 4, **mixer.given}
    arrays: dict[str, Any] = random_arrays(made.forms[made.default_form], sizes)
    maps = sorted(name[2:] for name in names if name.startswith("A_"))
    assert maps and names == {f"{side}_{name}" for side in "AB" for name in maps}
    merged = {name: values for name, values in arrays.items() if name in mixer.arrays}
    for name in maps:
        A, B = arrays[f"A_{name}"], arrays[f"B_{name}"]
        if name == "E":  # a tied head maps by the columns of its table (u, d)
            merged[name] = merged[name] + np.tensordot(A, B, 1).T
        else:
            merged[name] = merged[name] + np.tensordot(A, B, 1)
    found, expected = evaluate(made, arrays, sizes), evaluate(mixer, merged, sizes)
    assert np.abs(expected).max() > 1e-3
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-11)  # float64, sums in another order


def test_names_of_adapters_are_their_own() -> None:
    """The mixer has an array A_W, and reads W both ways, each of which has an adapter."""
    m = Mixer("tied")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W, own = m.parameter("W", d, d), m.parameter("A_W", d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        z = f.array("z", l, d)
        z[i, b] = cm.sum_(x[i, a] * W[a, b], over=a) + own[b]
        y[i, a] = cm.sum_(z[i, b] * W[a, b], over=b)
    made, names = adapted(m, RANK)
    assert len(names) == 4 and "A_W" not in names
    assert OracleComparison(made).at({"l": 3, "d": 4}).apart == []


def test_names_of_adapters_are_those_of_no_array_of_a_form() -> None:
    """A form has arrays A_W and B_W of its own, and the mixer a parameter x_A_V."""
    m = Mixer("named")
    l, d = m.sizes("l d")
    x, y = m.input("x", l, d), m.output("y", l, d)
    W, V, own = m.parameter("W", d, d), m.parameter("V", d, d), m.parameter("x_A_V", d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        A, B = f.array("A_W", l, d), f.array("B_W", l, d)
        A[i, b] = cm.sum_(x[i, a] * W[a, b], over=a) + own[b]
        B[i, b] = A[i, b] * A[i, b]
        y[i, b] = cm.sum_(B[i, a] * V[a, b], over=a)
    made, names = adapted(m, RANK)
    arrays = [*made.arrays, *made.forms["direct"].arrays]
    assert names == {"A_W'", "B_W'", "A_V", "B_V"} and len(arrays) == len({*arrays})
    assert OracleComparison(made).at({"l": 3, "d": 4}).apart == []


@pytest.mark.parametrize("name", ["grouped", "mla", "convolution", "FFN"])
def test_adapters_are_counted_as_their_execution_counts_them(name: str) -> None:
    made, _ = adapted(MIXERS[name], RANK)
    sizes = {"l": 3, "d": 6, "f": 5}
    own = {x: sizes[x] for x in ("l", *made.letters) if x in sizes} | dict(made.given)
    compared = OracleComparison(made).at(own)
    assert compared.apart == []
    assert {"counts", "span"} <= {*compared.compared}


def with_adapters(adapter: str, train: str | None = None, **sizes: int) -> Network:
    plain = networks.model("decoder", head="vocabulary", ffn=True, sizes={**SIZES, **sizes})
    told = networks.apart(plain.described, {**SIZES, **sizes}["L"], train, None, adapter)
    return network(networks.trained(networks.with_adapters(told, adapter), ("backward",), train))


def multiplied(net: Network, name: str) -> int:
    (part,) = (part for part in net.costs("backward") if part.use.name == name)
    counts: Any = part.counts
    return int(counts.at(**{**SIZES, **net.sizes}).mul)


def test_two_frozen_maps_with_adapters_cost_what_a_training_script_does() -> None:
    """d^2 l + 7 d l r, as `trace` counts in profiler/tracing/test_gradients.py: nothing before
    the first map is trained, so that its input has no gradient."""
    d, l = SIZES["d"], SIZES["l"]
    net = with_adapters(f"layers.2.ffn={RANK}", L=2, f=d)
    assert multiplied(net, "FFN, layer 2") == d**2 * l + 7 * d * l * RANK
    assert multiplied(net, "FFN, layer 1") == multiplied(net, "self-attention, layer 2") == 0


def test_only_adapters_have_gradients_and_states_of_the_optimiser() -> None:
    d, f, L = SIZES["d"], SIZES["f"], SIZES["L"]
    net, plain = with_adapters(f"layers.*.ffn={RANK}"), with_adapters("head=1", "*")
    held, whole = elements(net), elements(plain)
    assert held["their gradients"] == L * 2 * RANK * (d + f)
    assert held["state of the optimiser (adamw)"] == 2 * held["their gradients"]
    assert held["parameters"] - held["their gradients"] == whole["parameters"] - (d + SIZES["u"])
    assert whole["their gradients"] == whole["parameters"]
    one = elements(with_adapters(f"layers.3.ffn={RANK}"))
    assert one["their gradients"] * L == held["their gradients"]
    assert one["activations"] < held["activations"] < whole["activations"]


def test_adapters_of_a_published_model(tmp_path: Path) -> None:
    """Rank 16 beside the maps of queries, keys, values and output of Llama 3.1 8B: 13,631,488
    parameters, as peft prints them."""
    words = ("model", "--hf", written(tmp_path, LLAMA), "--phase", "training-step", "--l", "64")
    found, plain = printed(*words, "--adapter", "layers.*.attn=16"), printed(*words)
    assert found["parameters"] - plain["parameters"] == 13_631_488
    assert found["adapters"] == ["layers.*.attn=16"]


@pytest.mark.parametrize(
    ("adapter", "sentence"),
    [
        ("layers.*.attn", "--adapter 'layers.*.attn': expected PATTERN=RANK, such as layers.*.at"),
        (",", "--adapter ',': expected PATTERN=RANK"),
        ("layers.*.attn=" + "9" * 5000, "(5,014 characters)': expected PATTERN=RANK"),
        ("layers.*.attn=0", "--adapter 'layers.*.attn=0': expected PATTERN=RANK"),
        ("embedding=4", "expected one of layers.*.attn"),
        ("layers.*.attn=4,*=2", "--adapter '*': an earlier pattern names self-attention too: name"),
    ],
)
def test_adapters_that_are_refused(adapter: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["model", "decoder", "--adapter", adapter])
    assert isinstance(result.exception, ModelError) and sentence in str(result.exception)


def test_maps_that_tokens_choose_take_no_adapter(tmp_path: Path) -> None:
    path = written(tmp_path, {"model_type": "mixtral"})
    result = CliRunner().invoke(app, ["model", "--hf", path, "--adapter", "layers.*.ffn=4"])
    assert "the maps of experts are chosen for each token" in str(result.exception)
