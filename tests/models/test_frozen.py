"""What does a training step cost where some parts are frozen, or some layers recomputed?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import app
from costmodel import networks
from costmodel.errors import ModelError
from costmodel.networks.memory_budget import MemoryBudget, MemoryOptions
from costmodel.networks.network import Network, network
from costmodel.networks.part_costs import counting
from costmodel.questions.count import counted
from tests.models.test_architectures import read, written

SIZES = {"l": 16, "b": 1, "d": 12, "n": 3, "f": 20, "u": 31, "L": 3}
d, f, L, u, l = (SIZES[x] for x in "dfLul")


def trained(*patterns: str, name: str = "decoder") -> Network:
    plain = networks.model(name, head="vocabulary", ffn=True, sizes=SIZES)
    return network(replace(plain.described, trained=patterns))


def multiplied(net: Network, phase: str = "backward") -> dict[str, int]:
    found: dict[str, int] = {}
    for part in net.costs(phase):
        counts: Any = part.counts
        found[part.use.label] = counts.at(**{**net.sizes, **SIZES}).mul
    return found


def elements(net: Network, **options: Any) -> dict[str, Any]:
    sizes = {**net.sizes, **SIZES}
    budget = MemoryBudget(net, counting(), MemoryOptions(**options), sizes)
    return {one.name: one.at(sizes, settled=True).elements for one in budget.lines()}


def test_all_parts_cost_what_no_pattern_costs() -> None:
    every, none = trained("*"), trained()
    for phase in ("backward", "training-step"):
        assert every.count(phase).at(**SIZES).total == none.count(phase).at(**SIZES).total
    assert elements(every) == elements(none)


def test_a_frozen_part_hands_its_gradient_on() -> None:
    """Of an FFN that is frozen below trained attention, half of the products are left: those for
    the gradient of the input. Its input is not kept for them."""
    plain, net = trained(), trained("layers.*.attn")
    both, one = multiplied(plain)["FFN"], multiplied(net)["FFN"]
    assert both == 2 * one == L * 4 * d * f * l
    (attention,) = (part for part in plain.costs() if "attention" in part.use.label)
    found = elements(net)
    assert found["their gradients"] == attention.parameters.at({**plain.sizes, **SIZES})
    assert found["state of the optimiser (adamw)"] == 2 * found["their gradients"]
    assert found["parameters"] == elements(plain)["parameters"]
    assert found["activations"] < elements(plain)["activations"]


def test_nothing_runs_back_beyond_the_first_trained_part() -> None:
    """Of a head alone: the gradient of its weights, not of its input."""
    net = trained("head")
    found = multiplied(net)
    assert found["head"] == l * d * u == multiplied(trained())["head"] / 2
    assert not any(found[use.label] for use in net.uses if "attention" in use.label)
    assert not any(name.startswith("sum of gradients") for name in found)
    held, all_held = elements(net), elements(trained())
    assert held["their gradients"] == d * u
    assert held["largest live set"] < all_held["largest live set"]
    assert held["activations"] < all_held["activations"] / 2


def test_an_embedding_alone_needs_every_gradient_of_rows() -> None:
    found, plain = multiplied(trained("embedding")), multiplied(trained())
    assert found["head"] == plain["head"] / 2 and found["FFN"] == plain["FFN"] / 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("decoder --train head", "--train is about gradients: it needs --phase training-step"),
        ("decoder --train tail --phase backward", "--train 'tail': no part has this name: embeddi"),
        ("gpt-2 --train head --phase backward", "the head shares the embedding's weights: name"),
    ],
)
def test_patterns_that_are_refused(words: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["model", *words.split()])
    assert isinstance(result.exception, ModelError) and sentence in str(result.exception)


def test_the_table_says_what_is_trained() -> None:
    words = "model gpt-2 --train layers.*.attn,embedding,head --phase training-step --l 8"
    result = CliRunner().invoke(app, words.split())
    assert "trained: layers.*.attn, embedding, head; other parts are frozen" in result.output


TURNS = {
    "model_type": "gpt_oss", "num_hidden_layers": 7, "hidden_size": 12, "num_attention_heads": 3,
    "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 5, "num_local_experts": 3,
    "num_experts_per_tok": 2, "vocab_size": 17, "sliding_window": 4,
}  # fmt: skip


def test_blocks_are_recomputed_by_their_names(tmp_path: Path) -> None:
    """What each kind of layer costs again and no longer keeps adds up to that of all layers; as
    does each of the kinds, run through at all layers of a shallow network."""
    net = read(tmp_path, TURNS)
    kinds = net.described.blocks
    assert len(kinds) == 2
    held: dict[str, int] = {}
    total: dict[str, int] = {}
    for recompute in ("none", *kinds, ",".join(kinds), "layers"):
        sizes = {**net.sizes, "b": 1, "l": 8}
        budget = MemoryBudget(net, counting(), MemoryOptions(recompute=recompute), sizes)
        lines = {one.name: one.at(sizes, settled=True).elements for one in budget.lines()}
        assert isinstance(lines["activations"], int)
        held[recompute] = lines["activations"]
        counts = net.answers("training-step", recompute=recompute).of(counted)
        total[recompute] = counts.exact_total.at(sizes)
    for found in (held, total):
        assert found[",".join(kinds)] == found["layers"]
        assert sum(found[kind] - found["none"] for kind in kinds) == found["layers"] - found["none"]
    forward = net.count("training").at(l=8).total
    assert total["layers"] - total["none"] < forward < total["layers"] - total["none"] + 9_000
    deep = read(tmp_path, {**TURNS, "num_hidden_layers": 41})
    again = deep.answers("training-step", recompute=kinds[0]).of(counted)
    plain = deep.count("training-step").at(l=8).total
    more = again.exact_total.at({**deep.sizes, "l": 8})
    assert (more - plain) * 4 == (total[kinds[0]] - total["none"]) * 21, "21 layers of 41, 4 of 7"


def test_recomputation_that_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TURNS)
    words = ["model", "--hf", path, "--phase", "training-step", "--recompute"]
    one = CliRunner().invoke(app, [*words, "odd layers"])
    assert "--recompute 'odd layers': expected one of none, layers, " in str(one.exception)
    two = CliRunner().invoke(app, [*words, "none,layers"])
    assert "--recompute takes none, layers, or names of blocks" in str(two.exception)
