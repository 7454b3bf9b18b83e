"""What does a training step cost where some parts are frozen, or some layers recomputed?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import costmodel as cm
from cli import app
from costmodel import networks
from costmodel.errors import ModelError
from costmodel.networks.memory_budget import MemoryBudget, MemoryOptions
from costmodel.networks.network import Network, network
from costmodel.networks.part_costs import counting, part_sizes
from costmodel.questions.count import counted
from costmodel.questions.critical_path import _path_of
from costmodel.questions.question import Case
from costmodel.questions.registry import FIGURES
from costmodel.questions.traffic import traffic_of
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


def test_no_gradient_of_a_frozen_table_is_written() -> None:
    """A backward pass reads E of a tied head, and W of a head with its own weights, once each."""
    moved = []
    for tied in (True, False):
        plain = networks.model("decoder", head="vocabulary", tied=tied, sizes=SIZES)
        net = network(replace(plain.described, trained=("layers.*.ffn",)))
        traffic = net.answers("backward").of(traffic_of)
        moved.append(traffic.compulsory.kinds["weights"].at({**net.sizes, **SIZES}))
    assert moved[0] == moved[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("decoder --train head", "--train is about gradients: add --phase training-step"),
        ("decoder --train , --phase backward", "--train ',': no part has this name: expected"),
        ("decoder --train tail --phase backward", "--train 'tail': no part has this name: expect"),
        ("gpt-2 --train head --phase backward", "the head shares the embedding's weights: name"),
    ],
)
def test_patterns_that_are_refused(words: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["model", *words.split()])
    assert isinstance(result.exception, ModelError) and sentence in str(result.exception)


def test_parts_that_share_a_parameter_are_trained_together(tmp_path: Path) -> None:
    """The learned numbers of T5's positions, which are no table of embeddings."""
    described = read(tmp_path, {"model_type": "t5", "num_layers": 3}).described
    phases = ("training-step",)
    assert networks.trained(described, phases, "layers.*.attn").trained == ("layers.*.attn",)
    apart = networks.apart(described, 3, "layers.2.attn", None)
    with pytest.raises(ModelError, match="shares b_rel with the first layer: name both"):
        networks.trained(apart, phases, "layers.2.attn")


def test_layers_whose_norms_share_within_the_layer_are_trained_one_by_one(tmp_path: Path) -> None:
    """X-MOD's: two gradients in a layer for one gain, each layer with a gain of its own."""
    fields = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 5}
    described = read(tmp_path, {"model_type": "xmod", **fields}).described
    apart = networks.apart(described, 5, "layers.2.norm,layers.4.norm", None)
    frozen = networks.trained(apart, ("backward",), "layers.2.norm,layers.4.norm")
    found: Any = {part.use.label: part for part in network(frozen).costs("backward")}
    shared = found["sum of gradients: shared gain_R"].counts
    assert shared.once.at(**{**SIZES, "d": 6}).add == 2 * 6


def test_layers_that_share_their_weights_are_not_told_apart(tmp_path: Path) -> None:
    described = read(tmp_path, {"model_type": "albert"}).described
    for train, recompute in (("layers.2.attn", None), ("*", "layers.2")):
        with pytest.raises(
            ModelError, match=r"layers\.2: the layers share their weights, so that no"
        ):
            networks.apart(described, 12, train, recompute)


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


def by_number(train: str, recompute: str = "none", name: str = "decoder") -> Network:
    plain = networks.model(name, head="vocabulary", ffn=True, sizes=SIZES).described
    told = networks.apart(plain, L, train, recompute)
    return network(networks.trained(told, ("training-step",), train))


def total(net: Network, phase: str = "backward") -> int:
    return net.count(phase).exact_total.at({**net.sizes, **SIZES})


def test_parts_of_some_layers_are_trained() -> None:
    """Layer by layer, no gradient runs back before the first that is named, and what the layers
    behind it hand on is that of a frozen part; all layers by number are all layers."""
    every = by_number("layers.1-3.attn")
    assert total(every) == total(trained("layers.*.attn"))
    assert elements(every) == elements(trained("layers.*.attn"))
    each = [by_number(f"layers.{k}.attn") for k in (1, 2, 3)]
    gradients = [elements(net)["their gradients"] for net in each]
    assert {3 * one for one in gradients} == {elements(every)["their gradients"]}
    costs = [total(net) for net in each]
    assert costs[0] - costs[1] == costs[1] - costs[2] > 0
    assert elements(each[2])["activations"] < elements(each[0])["activations"]
    rows = multiplied_by_name(each[1])
    assert rows["self-attention, layer 1"] == 0
    assert rows["self-attention, layer 2"] > rows["self-attention"] > 0
    assert total(by_number("layers.2.attn,layers.3.attn")) < total(by_number("layers.2-3.attn"))


def multiplied_by_name(net: Network) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in net.costs("backward"):
        counts: Any = part.counts
        found[part.use.name] = counts.at(**{**net.sizes, **SIZES}).mul
    return found


def test_layers_are_recomputed_by_number() -> None:
    """Each layer that is run again costs the same and lets go of as much; all of them are all."""
    held, cost = [], []
    for recompute in ("none", "layers.1", "layers.2-3", "layers.1-3", "layers"):
        net = by_number("*", recompute)
        sizes = {**net.sizes, **SIZES}
        budget = MemoryBudget(net, counting(), MemoryOptions(recompute=recompute), sizes)
        lines = {one.name: one.at(sizes, settled=True).elements for one in budget.lines()}
        assert isinstance(lines["activations"], int)
        held.append(lines["activations"])
        counts = net.answers("training-step", recompute=recompute).of(counted)
        cost.append(counts.exact_total.at(sizes))
    for found in (held, cost):
        none, one, two, three, every = found
        assert three == every != none
        assert one - none == (two - none) // 2 == (three - none) // 3


def test_dropout_of_recomputed_layers_alone_comes_again() -> None:
    described = networks.model("gpt-2", sizes={**SIZES, "l": 8}).described
    net = network(networks.apart(described, L, None, "layers.2-3"))
    sizes, dropped = {**net.sizes, "b": 1}, counting("dropout=mul")
    plain, again = (net.answers("backward", dropped, r).parts for r in ("none", "layers.2-3"))
    forward = {part.use.name: part for part in net.answers("training", dropped).parts}
    cost = [
        {part.use.name: part.of(counted).exact_total.at(sizes) for part in of}
        for of in (plain, again)
    ]
    more = {name: cost[1][name] - cost[0][name] for name in cost[0] if "dropout" in name}
    once = forward["dropout, layers 2-3"].of(counted).exact_total.at(sizes)
    assert more == {"dropout": 0, "dropout, layer 1": 0, "dropout, layers 2-3": once}


@pytest.mark.parametrize("figure", ["span", "sequential"])
def test_no_path_passes_gradients_that_are_not_needed(figure: str) -> None:
    """Each layer before the first that is trained takes as much from the longest path."""
    found: list[Any] = []
    for layers in ("1-3", "1", "2", "3"):
        net = by_number(f"layers.{layers}.attn")
        sizes = {**net.sizes, **SIZES}
        length = Case(net.answers("backward"), sizes, symbolic=False).figure(FIGURES[figure])
        found.append(length)
        if figure == "sequential":
            path = _path_of(Case(net.answers("backward"), sizes, symbolic=False))
            assert path.length.at(sizes) == length
    every, one, two, three = found
    # of layers 1-3 the first norm of layer 1 is passed too, as one part stands for all three
    assert every > one and one - two == two - three > 0


def test_no_path_passes_gradients_of_frozen_weights() -> None:
    """Over a long text, the longest chains within an FFN are sums over positions, for gradients of
    weights; a frozen FFN computes the gradient of its input alone."""
    sizes = {**SIZES, "l": 5000}
    net = trained("layers.*.attn")
    about = net.answers("backward")
    (part,) = (part for part in about.parts if part.use.label == "FFN")
    own = {x: sizes[x] for x in "dfl"}
    only = cm.span(part.use.mixer, "backward", only="inputs")
    assert only.at(**own) < cm.span(part.use.mixer, "backward").at(**own)
    lengths: list[Any] = [
        Case(asked, {**net.sizes, **sizes}, symbolic=False).figure(FIGURES["span"])
        for asked in (part, about, trained().answers("backward"))
    ]
    frozen, whole, plain = lengths
    assert frozen == L * only.at(**own) and whole < plain
    steps = {
        one.use.label: _path_of(Case(one, {**net.sizes, **sizes}, symbolic=False)).steps
        for one in about.parts  # the sums of gradients, which have no equations, among them
    }
    assert steps["head"] and not steps["embedding"]


def test_layers_without_gradients_are_not_recomputed() -> None:
    """Before the first layer that is trained nothing is kept, nor is a forward pass repeated."""
    net = by_number("layers.3.attn", "layers.1-2")
    sizes = {**net.sizes, **SIZES}
    found = []
    for recompute in ("layers", "layers.3", "layers.1-2", "none"):
        budget = MemoryBudget(net, counting(), MemoryOptions(recompute=recompute), sizes)
        lines = [one.at(sizes, settled=True).elements for one in budget.lines()]
        counts = net.answers("training-step", recompute=recompute).of(counted)
        found.append((counts.exact_total.at(sizes), lines))
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--train layers.4.attn",
            "layers.4: there is no layer 4, since the network has layers 1 to 3",
        ),
        ("--train layers.3-2.attn", "--train '3-2': expected numbers of layers from 1 to 10,000,"),
        ("--adapter layers.1=4", "--adapter 'layers.1': no part with a linear map has this name: "),
        ("--recompute layers.0", "--recompute '0': expected numbers of layers from 1 to 10,000,"),
        (f"--train layers.{'9' * 5000}", "expected numbers of layers from 1 to 10,000,"),
        ("--recompute layers.2.attn", "--recompute 'layers.2.attn': expected one of none, layers,"),
    ],
)
def test_layers_that_are_refused(words: str, sentence: str) -> None:
    command = f"model decoder --L 3 --phase training-step {words}"
    result = CliRunner().invoke(app, command.split())
    assert isinstance(result.exception, ModelError) and sentence in str(result.exception)


def test_layers_by_number_need_their_number() -> None:
    plain = networks.model("decoder").described
    with pytest.raises(ModelError, match=r"layers\.2 needs a number of layers: give --L"):
        networks.apart(plain, None, "layers.2.attn", None)


def test_recomputation_that_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TURNS)
    words = ["model", "--hf", path, "--phase", "training-step", "--recompute"]
    one = CliRunner().invoke(app, [*words, "odd layers"])
    assert "--recompute 'odd layers': expected one of none, layers, " in str(one.exception)
    two = CliRunner().invoke(app, [*words, "none,layers"])
    assert "--recompute takes none, layers, or names of blocks" in str(two.exception)


@pytest.mark.parametrize("name", ["bert-base", "simpletron-matching"])
def test_frozen_parts_that_read_first_rows_hand_their_gradient_on(name: str) -> None:
    """A pooler, or a head over the first rows of two texts: the layers before it are trained."""
    plain = networks.model(name, sizes={"L": 2})
    net = network(networks.trained(plain.described, ("backward",), "layers.*.ffn"))
    use = net.described.ending[0]
    (part,) = (part for part in net.answers("backward").parts if part.use.label == use.name)
    sizes = {**net.sizes, "l": 16, "b": 1}
    own = part_sizes(part.use, sizes)
    only: Any = cm.count(part.use.mixer, "backward", only="inputs")
    wanted = only.at(**{x: own[x] for x in (*part.use.mixer.letters, "l")}).total
    assert part.of(counted).exact_total.at(sizes) == wanted > 0
    assert Case(net.answers("backward"), sizes, symbolic=False).figure(FIGURES["span"])
