"""What changes in a model whose layers get another mixer?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import app
from costmodel import networks
from costmodel.errors import ModelError
from costmodel.networks.network import network
from tests.models.test_architectures import LLAMA, read, written

MAMBA = "mamba-2{n=128,P=64,N=128,G=8,k=4}"


def changed(*words: str) -> Any:
    result = CliRunner().invoke(app, ["model", *words, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_three_layers_of_llama_with_mamba_2(tmp_path: Path) -> None:
    """Each loses 41,943,040 weights of attention and its rows, and gets Mamba-2's, of which the
    state does not grow."""
    path = written(tmp_path, LLAMA)
    where = ("--replace", f"self-attention={MAMBA}", "--layers", "2,4,6", "--t", "4096")
    found = changed("--hf", path, "--phase", "inference", *where)
    of = {one["figure"]: (one["before"], one["after"]) for one in found["changes"]}
    d, inner = 4096, 128 * 64
    mamba = d * (2 * inner + 2 * 8 * 128 + 128) + (inner + 2 * 8 * 128) * 5 + inner * d
    mamba += 3 * 128 + inner
    assert of["parameters"][1] - of["parameters"][0] == 3 * (mamba - 41_943_040)
    state = 128 * 64 * 128 + 3 * (inner + 2 * 8 * 128)
    assert of["state"][1] - of["state"][0] == 3 * (state - 2 * 1024 * 4096)
    assert found["models"][0]["total"] == of["total"][1] != of["total"][0]
    plain = read(tmp_path, LLAMA)
    assert of["total"][0] == plain.count("inference").at(t=4096).total


def test_equal_mixers_change_nothing() -> None:
    described = networks.model("decoder", sizes={"L": 4}).described
    new = networks.exchanged(described, "self-attention=self-attention", "2,3", 4)
    assert new is not None and new.period == 1
    one, two = (
        network(x).count("training").at(l=9, d=12, n=3, u=7).total for x in (described, new)
    )
    assert one == two
    every = networks.exchanged(described, "self-attention=retnet", None, 4)
    assert every is not None and every.mixers == ("retnet",)


def test_a_new_mixer_has_the_heads_that_its_layer_loses(tmp_path: Path) -> None:
    heads = {"num_key_value_heads": 4, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
    described = read(tmp_path, {"model_type": "gemma4_text", **heads}).described
    for layers, g in (("5", 4), ("6", 2), ("5-6", 4)):  # every sixth layer attends to all tokens
        new = networks.exchanged(described, "self-attention=self-attention+grouped", layers, 30)
        assert new is not None
        last = new.decoder.blocks[int(layers[-1]) - 1]
        assert last.sublayers[0].part.label == f"self-attention+grouped{{n=8,g={g}}}"


@pytest.mark.parametrize(
    ("old", "layers"),
    [
        ("self-attention", [1, 2, 3, 4, 5, 6]),
        ("self-attention+window", [1, 2, 3, 4, 5]),
        ("self-attention+grouped+window{g=4,w=512}", [1, 2, 3, 4, 5]),
        ("gqa{g=2}", [6]),
        ("gqa{g=3}", []),
    ],
)
def test_a_name_with_options_and_sizes_stands_for_the_layers_that_have_these(
    old: str, layers: list[int], tmp_path: Path
) -> None:
    """Every sixth layer attends to all tokens, with two heads of keys."""
    heads = {"num_key_value_heads": 4, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
    fields = {"model_type": "gemma4_text", "num_hidden_layers": 6, "sliding_window": 512, **heads}
    described = read(tmp_path, fields).described
    exchange = f"{old}=self-attention+window{{w=8}}"
    if not layers:
        with pytest.raises(
            ModelError, match=r"no layer has .* the layers have self-.*\{n=8,g=4,w=512,"
        ):
            networks.exchanged(described, exchange, None, 6)
        return
    new = networks.exchanged(described, exchange, None, 6)
    assert new is not None
    labels = [block.sublayers[0].part.label for block in new.decoder.blocks]
    assert [k for k, label in enumerate(labels, 1) if "w=8" in label] == layers


def test_layers_that_share_their_weights_are_not_exchanged_one_by_one(tmp_path: Path) -> None:
    described = read(tmp_path, {"model_type": "albert"}).described
    with pytest.raises(ModelError, match="the layers share weights, so that no single"):
        networks.exchanged(described, "self-attention=fnet", "2", 12)


def test_the_table_says_what_changes() -> None:
    words = "model gpt-2 --replace self-attention=retnet --layers 1,12 --phase training --l 8"
    output = CliRunner().invoke(app, words.split()).output
    assert "What changes" in output and "after/before" in output
    unanswered = "model gpt-2 --replace self-attention=fnet --phase inference --t 8"
    result = CliRunner().invoke(app, [*unanswered.split(), "--format", "markdown"])
    assert "What changes" in result.output and "fnet: not causal" in result.output


def test_the_changes_are_those_of_the_columns_with_their_units() -> None:
    net = ["gpt-2", "--t", "8", "--l", "8", "--phase"]
    words = ["--replace", "self-attention=retnet", "--layers", "1"]
    asked = ["--columns", "t,state_bytes,traffic,mul,other"]
    found = changed(*net, "both", *words, *asked)["changes"]
    figures = ["state_bytes", "traffic", "mul", "other"]  # a forward pass keeps no state
    assert [one["figure"] for one in found] == [*figures[1:], *figures]
    plain = changed(*net, "inference")["models"][0]
    assert [found[k]["before"] for k in (3, 5)] == [
        plain["state_bytes"],
        plain["counts"]["mul"],
    ]
    page = CliRunner().invoke(app, ["model", *net, "inference", *words, *asked]).output
    changes = page.partition("What changes")[2]
    assert "\nstate kept (B) " in changes and "\ncompulsory traffic (B) " in changes
    page = CliRunner().invoke(app, ["model", *net, "inference", *words]).output
    changes = page.partition("What changes")[2]
    assert "\nstate kept (elements) " in changes and "\nparameters " in changes


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("gpt-2 --layers 1", "--layers says where a mixer is replaced: add --replace OLD=NEW"),
        (
            "gpt-2 --replace she",
            "--replace 'she': expected OLD=NEW, such as self-attention=mamba-2",
        ),
        (
            "gpt-2 --replace mla=she",
            "--replace mla: no layer has the mixer mla: the layers have self-attention",
        ),
        ("gpt-2 --replace self-attention=she --layers 13", "the network has layers 1 to 12"),
        ("gpt-2 --replace self-attention=she --layers one", "--layers 'one': expected numbers of"),
        (
            "gpt-2 --replace self-attention=self-attention+cross",
            "gpt-2: self-attention+cross reads a second sequence, and a layer has only one",
        ),
        ("gpt-2 --replace self-attention=she --layers ,", "--layers ',': expected numbers of"),
        (
            "gpt-2 --replace self-attention=she --L L",
            "--replace needs a number of layers: give --L",
        ),
        ("gpt-2 --replace self-attention=she --layers 1-1000000000", "'1-1000000000': expected"),
        ("decoder --replace x=y --layers 2,0", "'0': expected numbers of layers from 1 to 10,000"),
    ],
)
def test_exchanges_that_are_refused(words: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["model", *words.split()])
    assert isinstance(result.exception, ModelError) and sentence in str(result.exception)


def test_sizes_that_nobody_gives_are_those_of_the_lost_mixer_or_defaults(tmp_path: Path) -> None:
    """Llama has 32 heads in its attention alone, and no option of a network gives P or G."""
    described = read(tmp_path, LLAMA).described
    for typed, label in (
        ("mamba-2", "mamba-2{n=32,P=64,G=1}"),
        ("mamba-2{P=8}", "mamba-2{n=32,P=8,G=1}"),
    ):
        found = networks.exchanged(described, f"self-attention={typed}", "2", 32)
        assert found is not None and found.mixers[1] == label


def test_changes_at_several_sizes_name_the_size_and_the_parameters_of_each() -> None:
    replaced = ("decoder", "--replace", "self-attention=retnet", "--phase", "training")
    words = (*replaced, *["--L", "2", "--n", "2", "--u", "16", "--l", "8", "--d", "8,16"])
    found = [one for one in changed(*words)["changes"] if one["figure"] == "parameters"]
    alone = [changed(*words[:-1], d)["changes"][0] for d in ("8", "16")]
    assert found == alone and [one["sizes"]["d"] for one in found] == [8, 16]
    output = CliRunner().invoke(app, ["model", *words]).output
    assert "at d = 16" in next(row for row in output.splitlines() if f"{found[1]['after']:,}" in row
                               and row.startswith("parameters"))  # fmt: skip
    batches = changed(*words[:-1], "8", "--b", "1,2")["changes"]
    assert [one["figure"] for one in batches] == ["parameters", "total", "total"]


@pytest.mark.parametrize(
    ("new", "left"),
    [
        ("she", ["she", "self-attention+cross", "FFN"]),
        ("self-attention+bias+cross", ["self-attention", "self-attention+bias+cross", "FFN"]),
    ],
)
def test_a_mixer_of_two_sequences_takes_the_place_of_such_a_mixer(
    new: str, left: list[str]
) -> None:
    described = networks.described("encoder-decoder", None, {})
    found = networks.exchanged(described, f"self-attention={new}", "2", 2)
    assert found is not None
    kept, changed = ([s.part.label for s in b.sublayers] for b in found.decoder.blocks)
    assert kept == ["self-attention", "self-attention+cross", "FFN"] and changed == left
