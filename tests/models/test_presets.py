"""Do the files of networks state what the papers print, and is a bad file refused with its
mistake?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from costmodel import networks
from costmodel.data import data_dir
from costmodel.errors import ModelError
from costmodel.networks import huggingface
from costmodel.networks.blocks import Description
from costmodel.networks.choices import VALUES, Choices
from costmodel.networks.presets import load, preset

NAMES = networks.names()


@pytest.mark.parametrize("name", NAMES)
def test_every_network_can_be_built(name: str) -> None:
    net = networks.model(name)
    assert net.parameters().poly.terms
    assert net.count().exact_total.pieces
    assert net.choices.source and net.title


def test_every_file_is_read_and_cited() -> None:
    files = sorted(data_dir("models").glob("*.json"))
    found = [name for path in files for name in load(path)]
    assert sorted(found) == sorted(NAMES)
    for path in files:
        if path.stem != "plain":
            first = next(iter(load(path).values()))
            assert any(c.isdigit() for c in first.source) and first.place, path.name


PRINTED: dict[str, dict[str, Any]] = {
    # Version 1, Table 1.
    "chen-v1": {"u": 5000, "l": 128, "d": 128, "f": 512, "L": 6},
    # Version 2, section 6: the heads of Fig. 7; two layers and 32 tokens for Figs. 10 and 11.
    "chen-v2-heads": {"n": (1, 2, 4, 8, 16, 32, 64, 128)},
    "chen-v2-lengths": {"L": 2, "l": 32},
    "chen-v2-layers": {"L": 2, "l": 32},
    # Vaswani et al. 2017, Table 3.
    "transformer-base": {"L": 6, "d": 512, "f": 2048, "n": 8},
    "transformer-big": {"L": 6, "d": 1024, "f": 4096, "n": 16},
    "transformer-b-k16": {"K": 16, "V": 64, "n": 8},
    # Section 6.2 of the dissertation, and its Tables 5.1 and 6.1.
    "terroa-confirmatory": {"L": 4, "d": 256, "n": 4, "l": 254, "u": 340},
    "terroa-shakespeare-128": {"L": 2, "d": 128, "n": 2, "l": 128, "u": 65},
    "terroa-pbooks-384": {"L": 6, "d": 384, "n": 6, "l": 256, "u": 68},
    "terroa-chess-512": {"L": 8, "d": 512, "n": 8, "l": 256, "u": 1973},
    # Yorsh et al. 2021, Table 3.
    "simpletron-classification": {"l": 4000, "L": 4, "n": 4, "d": 256, "f": 1024},
    "simpletron-matching": {"l": 4000, "L": 4, "n": 4, "d": 128, "f": 512},
    "simpletron-listops": {"l": 2000, "L": 6, "n": 8, "d": 512, "f": 2048},
}


@pytest.mark.parametrize("name", PRINTED)
def test_sizes_are_those_printed(name: str) -> None:
    found = networks.preset(name).sizes
    assert {letter: found[letter] for letter in PRINTED[name]} == PRINTED[name]


def test_choices_are_those_printed() -> None:
    v1, v2 = networks.preset("chen-v1"), networks.preset("chen-v2")
    assert (v1.norm, v1.dropout, v1.biases, v1.head_bias) == ("none", False, False, False)
    assert (v2.norm, v2.dropout, v2.biases, v2.head_bias) == ("pre", True, True, True)
    assert not v2.norm_eps and v2.scale == "all"
    base = networks.preset("transformer-base")
    assert (base.norm, base.positions, base.tied, base.shared_vocabulary) == (
        "post", "sinusoidal", True, True,
    )  # fmt: skip
    assert networks.preset("transformer-e").positions == "learned"
    assert not networks.preset("transformer-d-drop0").dropout
    assert not networks.preset("transformer-d-smooth0").smoothing
    assert networks.preset("simpletron-matching").towers == 2


def test_rows_a_of_vaswani_have_the_printed_head_widths() -> None:
    for heads, width in ((1, 512), (4, 128), (16, 32), (32, 16)):
        sizes = networks.model(f"transformer-a-n{heads}").sizes
        assert sizes["d"] == heads * width == sizes["n"] * width


def test_unknown_networks_and_choices(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"'{tmp_path}' is a directory: give the name of a net"):
        networks.model(str(tmp_path))
    with pytest.raises(ModelError, match=r"unknown network 'gpt2'; did you mean 'gpt-2'\?"):
        networks.model("gpt2")
    with pytest.raises(ModelError, match="has no choice 'normalisation'"):
        networks.model("gpt-2", normalisation="pre")
    for choices, message in (
        ({"mixers": "she"}, "mixers must be a tuple of names, such as ('she',), got 'she'"),
        ({"towers": "2"}, "towers must be an integer, got '2'"),
        ({"hidden": 1.5}, "hidden must be an integer, got 1.5"),
        ({"tied": "no"}, "tied must be True or False, got 'no'"),
        ({"widths": 3}, "widths must be a dict, got 3"),
    ):
        with pytest.raises(ModelError, match=re.escape(message)):
            networks.model("gpt-2", **choices)
    with pytest.raises(ModelError, match="norm 'after' is unknown: it is one of pre, post, none"):
        networks.model("gpt-2", norm="after")
    with pytest.raises(ModelError, match="tied to the embedding, and the head is 'none'"):
        networks.model("gpt-2", head="none")
    with pytest.raises(ModelError, match="3 towers need a classifier"):
        networks.model("decoder", towers=3)
    with pytest.raises(ModelError, match="segments is -1: expected 0 or more"):
        networks.model("decoder", segments=-1)
    with pytest.raises(ModelError, match="a pooler stands on an encoder"):
        networks.model("decoder", pooler=True)
    with pytest.raises(ModelError, match="label smoothing needs output scores"):
        networks.model("chen-v1", smoothing=True)
    with pytest.raises(ModelError, match="name at least one mixer"):
        networks.model("decoder", mixers=())
    with pytest.raises(ModelError, match="has no choice 'normalisation'"):
        networks.model({"model_type": "gpt2"}, normalisation="pre")
    with pytest.raises(ModelError, match="llama is read from its configuration and takes no"):
        networks.model({"model_type": "llama"}, norm="pre")
    changed = networks.model({"model_type": "gpt2"}, mixers=("she",))
    assert (changed.described.mixers, changed.described.model_type) == (("she",), "gpt2")
    assert set(VALUES) <= set(Choices.__dataclass_fields__)


GOOD: dict[str, Any] = {"schema": 1, "citation": "nobody 1999", "models": [{"name": "a"}]}

BAD = [
    ({**GOOD, "schema": 2}, "'schema' must be 1, got 2"),
    (
        {**GOOD, "citation": ""},
        "'citation' must be a string that says where the networks are printed, got ''",
    ),
    ({**GOOD, "models": {}}, "'models' must be a list of networks"),
    ({**GOOD, "models": [{"title": "x"}]}, "expected an object with a name"),
    ({**GOOD, "models": [{"name": "a"}, {"name": "a"}]}, "x.json, a: the name is taken already"),
    ({**GOOD, "models": [{"name": "a", "from": "b"}]}, "'from' names 'b', which no entry above"),
    ({**GOOD, "models": [{"name": "a", "normm": "pre"}]}, "'normm': did you mean 'norm'?"),
    ({**GOOD, "models": [{"name": "a", "norm": 1}]}, "'norm' must be a string, got 1"),
    ({**GOOD, "models": [{"name": "a", "tied": "yes"}]}, "'tied' must be true or false, got 'yes'"),
    ({**GOOD, "models": [{"name": "a", "mixers": "she"}]}, "'mixers' must be a list, got 'she'"),
    ({**GOOD, "models": [{"name": "a", "sizes": [1]}]}, "'sizes' must be an object, got"),
    (
        {**GOOD, "models": [{"name": "a", "segments": True}]},
        "'segments' must be a number, got True",
    ),
    ({**GOOD, "models": [{"name": "a", "sizes": {"d": 0}}]}, "size d must lie in 1"),
    ({**GOOD, "models": [{"name": "a", "sizes": {"d": "x"}}]}, "size d must be a positive integer"),
    ({**GOOD, "models": [{"name": "a", "sizes": {"d": []}}]}, "size d needs at least one value"),
    ({**GOOD, "models": [{"name": "a", "sizes": {"D": 1}}]}, "unknown size 'D'"),
    ({**GOOD, "models": [{"name": "a", "widths": {"f": "4*"}}]}, "the width f = 4*: '4*': expect"),
    ({**GOOD, "models": [{"name": "a", "widths": {"D": "4*d"}}]}, "unknown size 'D' in widths"),
    (
        {**GOOD, "models": [{"name": "a", "widths": {"f": "4*f"}}]},
        "names f, which is a width too",
    ),
    ({**GOOD, "models": [{"name": "a", "head": "classes"}]}, "a classifier (head classes) stands"),
]


@pytest.mark.parametrize(("data", "sentence"), BAD)
def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path, data: Any, sentence: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError) as raised:
        load(path)
    assert sentence in str(raised.value) and str(raised.value).startswith((str(path), "x.json"))


def test_a_file_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(GOOD)[:-5])
    with pytest.raises(ModelError, match="not a readable file of networks"):
        load(path)


def test_an_entry_builds_on_another(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    first = {"name": "a", "norm": "post", "sizes": {"d": 8}, "widths": {"f": "4*d"}}
    second = {"name": "b", "from": "a", "sizes": {"f": 5, "n": 2}}
    path.write_text(json.dumps({**GOOD, "models": [first, second]}))
    b = load(path)["b"]
    assert (b.norm, b.sizes, b.widths) == ("post", {"d": 8, "f": 5, "n": 2}, {})
    assert b.source == "nobody 1999"


GPT2: dict[str, Any] = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
    "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_ctx": 1024,
    "vocab_size": 50257, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_act": "gelu",
    "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 512,
    "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
    "hidden_dropout_prob": 0.1,
}  # fmt: skip


def configured(folder: Path, config: Any) -> Choices | Description:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return huggingface.read(path)


def same_parts(one: Choices | Description, name: str) -> None:
    """A configuration comes to the network that is known by a name."""
    ours, theirs = networks.network(one), networks.model(name)
    assert ours.parameters().arrays == theirs.parameters().arrays
    for phase in ("training", "prefill"):
        assert ours.count(phase).classes == theirs.count(phase).classes
    assert ours.parameters().at() == theirs.parameters().at()


def test_presets_equal_published_configurations(tmp_path: Path) -> None:
    same_parts(configured(tmp_path, GPT2), "gpt-2")
    bert = {**BERT, "intermediate_size": 3072}
    masked = networks.network(configured(tmp_path, bert))
    assert masked.parameters().at() == networks.model("bert-base-masked-lm").parameters().at()
    pooled = networks.network(configured(tmp_path, {**BERT, "architectures": ["BertModel"]}))
    assert pooled.parameters().at() == 109_482_240
    unnamed = {k: v for k, v in BERT.items() if k != "architectures"}
    assert networks.network(configured(tmp_path, unnamed)).parameters().at() == 109_482_240


def test_published_configurations_that_differ(tmp_path: Path) -> None:
    inner = configured(tmp_path, {**GPT2, "n_inner": 100, "tie_word_embeddings": False})
    found = networks.network(inner).parameters()
    assert found.at() == 124_439_808 + 50257 * 768 - 12 * (2 * 768 + 1) * (3072 - 100)
    headless = configured(tmp_path, {**GPT2, "architectures": ["GPT2Model"], "resid_pdrop": 0.0,
                                     "embd_pdrop": 0.0})  # fmt: skip
    assert isinstance(headless, Choices)
    assert (headless.head, headless.loss, headless.dropout) == ("none", False, False)
    renamed = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    kept = {k: v for k, v in GPT2.items() if k not in ("n_embd", "n_layer", "n_head")}
    same_parts(configured(tmp_path, {**kept, **renamed}), "gpt-2")


REFUSED = [
    ({"hidden_size": 4}, "expected an object with a 'model_type'"),
    ({"model_type": "new", "hc_mult": 4},
     "no part of a network here is several residual streams, and model_type 'new' is not known"),
    ({"model_type": "new"}, "model_type 'new' is not known: known are afmoe, albert, "),
    ({**GPT2, "architectures": ["GPT2ForTokens"]}, "architecture 'GPT2ForTokens' is not supported"),
    ({**GPT2, "n_embd": None}, "the size 'n_embd' is missing"),
    ({**GPT2, "n_layer": 1.5}, "'n_layer' must be a positive integer, got 1.5"),
    ({**GPT2, "activation_function": "mish"}, "activation_function 'mish' is unknown"),
    ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "= True is not supported"),
    ({**BERT, "position_embedding_type": "relative_key"}, "expected 'absolute'"),
    ({**BERT, "is_decoder": True}, "is_decoder = True is not supported: expected False"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "sentence"), REFUSED)
def test_configurations_that_are_refused(tmp_path: Path, config: Any, sentence: str) -> None:
    with pytest.raises(ModelError) as raised:
        configured(tmp_path, config)
    assert sentence in str(raised.value)


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ModelError, match="not a readable configuration"):
        huggingface.read(path)
    path.write_text("{")
    with pytest.raises(ModelError, match="not a readable configuration"):
        huggingface.read(path)


def test_a_file_in_place_of_a_name_is_told_the_option_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match=f"`costmodel model --hf {re.escape(str(file))}` reads"):
        preset(str(file))
