"""Does a network answer the questions about mixers, as sums, chains and maxima over its parts?"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel import networks
from costmodel.errors import ModelError
from costmodel.language.nodes import Array
from costmodel.networks import part_costs
from costmodel.networks.answers import whole
from costmodel.networks.blocks import Use
from costmodel.networks.live_set import largest_live_set
from costmodel.networks.network import Network, network
from costmodel.networks.part_costs import part_answers, part_sizes
from costmodel.networks.schedule import Wire, paths, readers, schedule
from costmodel.networks.training import graph_of
from costmodel.oracle.execute import random_arrays
from costmodel.oracle.interpreter import Interpreter
from costmodel.oracle.scalars import Scalar
from costmodel.paths.chains import CriticalPath
from costmodel.program.chosen_sizes import one_combination
from costmodel.program.element_types import Dtypes
from costmodel.program.lowering import lower
from costmodel.questions.question import Case, Searched
from costmodel.questions.registry import FIGURES
from costmodel.questions.traffic import traffic_of
from tests.models.test_architectures import TINY, read
from tests.test_unrolled import HILL

Memory = Mapping[tuple[int, ...], Scalar]
"""The entries of an array, by their positions counted from 1."""

STRICT = part_costs.counting("strict")
SIZES = {"k": 2, "l": 4, "t": 4, "e": 3, "d": 8, "n": 2, "u": 11, "f": 6, "z": 3, "b": 1}
DEEP = {
    "decoder": {},
    "chen-v1-extractor": {},
    "transformer-base": {},
    "simpletron-matching": {},
    "mixed": {"mixers": ("self-attention", "she", "convolution")},
}
"""Networks in which paths go side by side: an encoder, two towers; and one of several mixers."""


def made(name: str, layers: int, **sizes: int) -> Network:
    changes: Any = DEEP.get(name, {})
    return networks.model("decoder" if changes else name, sizes={"L": layers, **sizes}, **changes)


def value(net: Network, figure: str, phase: str, at: Mapping[str, int], **more: Any) -> Any:
    return Case(net.answers(phase), at, symbolic=False, **more).figure(FIGURES[figure])


def of_part(
    use: Use, figure: str, phase: str, at: Mapping[str, int], given: frozenset[str] = frozenset()
) -> int:
    own = part_sizes(use, at) | ({"t": at["t"]} if phase == "inference" else {})
    about = part_answers(use, phase, STRICT, given)
    found = Case(about, own, symbolic=False).figure(FIGURES[figure])
    assert isinstance(found, int)
    return found


def longest(net: Network, figure: str, phase: str, layers: int, at: Mapping[str, int]) -> int:
    """The longest path through every run of every part, one after another."""
    runs = schedule(net, layers)
    depth: dict[Wire, int] = {}
    wanted = "inference" if phase == "inference" else "training"
    for run in runs:
        before = [depth.get(one, 0) for ws in run.reads.values() for w in ws
                  for one in w.first or (w,)]  # fmt: skip
        depth[run.writes] = 0
        if wanted in run.use.when:
            depth[run.writes] = max(before, default=0) + of_part(run.use, figure, wanted, at)
    return max(depth.values())


def longest_backward(net: Network, figure: str, layers: int, at: Mapping[str, int]) -> int:
    """The same through their gradients, without those of the network's own inputs; the last of
    several gradients of an array is added to the sum of the others."""
    runs = schedule(net, layers)
    sources = [
        frozenset(name for name, wires in run.reads.items() if all(w.source for w in wires))
        for run in runs
    ]
    by_run: dict[int, int] = {}
    found: dict[Wire, list[int]] = {}
    for wire, reading in readers(runs).items():
        for one in wire.first or (wire,):
            found.setdefault(one, []).extend(number for number, _ in reading)
    for number in reversed(range(len(runs))):
        later = found.get(runs[number].writes, [])
        begins = max((by_run[k] for k in later), default=0) + (len(later) > 1)
        use, given = runs[number].use, sources[number]
        by_run[number] = begins + of_part(use, figure, "backward", at, given)
    return max(by_run.values())


@pytest.mark.parametrize("layers", [1, 2, 7, 20])
@pytest.mark.parametrize("name", DEEP)
def test_lengths_are_those_of_the_longest_path(name: str, layers: int) -> None:
    net = made(name, layers, f=6)
    at = {**SIZES, "L": layers}
    for figure in ("span", "sequential"):
        forward = longest(net, figure, "training", layers, at)
        backward = longest_backward(net, figure, layers, at)
        expected = {"training": forward, "backward": backward, "training-step": forward + backward}
        if name not in ("simpletron-matching", "mixed"):
            expected["inference"] = longest(net, figure, "inference", layers, at)
        assert {phase: value(net, figure, phase, at) for phase in expected} == expected
        if figure == "sequential":
            paths = {phase: value(net, "critical_path", phase, at) for phase in expected}
            assert {phase: path.length.at(at) for phase, path in paths.items()} == expected


class Following(Interpreter):
    """Runs a part whose inputs have the depths that the parts before gave them."""

    def __init__(self, before: Mapping[str, list[Memory]], *asked: Any) -> None:
        self.before = before
        super().__init__(*asked)

    def _load(self, array: Array, values: Any) -> None:
        super()._load(array, values)
        for k, memory in enumerate(self.before.get(array.name, ())):
            several = len(self.before[array.name]) > 1
            for place, scalar in memory.items():
                where = (place[0], k + 1, *place[1:]) if several else place
                self.memory[array, where] = scalar


@pytest.mark.parametrize("name", ["decoder", "transformer-base"])
def test_lengths_are_those_of_an_execution_from_entry_to_entry(name: str) -> None:
    """Every part is executed on the scalars that the parts before computed, with their depths."""
    net, at = made(name, 2), {**SIZES, "L": 2}
    wires: dict[Wire, Memory] = {}
    for run in schedule(net, 2):
        form = run.use.mixer.forms[run.use.form or run.use.mixer.default_form]
        own = part_sizes(run.use, at)
        read = {name: [wires[w] for w in ws if not w.source] for name, ws in run.reads.items()}
        found = Following(read, lower(form, ()), own, "strict", False, random_arrays(form, own))
        out = run.use.mixer.role("output")
        wires[run.writes] = {x: s for (array, x), s in found.memory.items() if array is out}
    ends = wires[run.writes].values()
    assert value(net, "span", "training", at) == max(scalar.depth for scalar in ends)
    path = value(net, "critical_path", "training", at)
    assert path.length.at(at) == max(scalar.steps for scalar in ends)


def test_a_path_of_steps_goes_from_part_to_part(tmp_path: Path) -> None:
    """Through equal layers as one block; with a mixer's loops inside; from an encoder into the
    attention of the first layer that reads the encoder's output."""
    net = networks.model("gpt-2")
    row = {part.use.label: part for part in net.costs("training")}

    def said(label: str, rows: Mapping[str, Any] = row) -> str:
        path = Case(rows[label], symbolic=True).figure(FIGURES["critical_path"])
        assert isinstance(path, CriticalPath)
        return path.text

    norm, add = said("norm, before"), said("residual sum")
    layer = f"{norm} {said('self-attention+bias')} {add} {norm} {said('FFN')} {add}"
    ends = said("learned positions"), f"{said('norm at the end')} {said('head')} {said('loss')}"
    at = {**net.sizes, "l": 8}
    assert value(net, "critical_path", "training", at).text == f"{ends[0]} 12*[{layer}] {ends[1]}"
    (whole_path,) = [Case(net.answers("training")).figure(FIGURES["critical_path"])]
    assert isinstance(whole_path, CriticalPath)
    assert whole_path.text == f"{ends[0]} (L)*[{layer}] {ends[1]}"
    assert [key for key in whole_path.steps if isinstance(key, dict)] == [
        {"times": "L", "steps": layer.split()}
    ]
    hybrid = read(tmp_path, {"model_type": "qwen3_next"})
    at = {**one_combination(whole(hybrid), {}), "l": 8}
    found = value(hybrid, "critical_path", "training", at)
    assert found.text.startswith("12*[3*[") and found.text.count("(l - 1)*[") == 1
    t5 = read(tmp_path, {"model_type": "t5", "num_layers": 4})
    rows = {part.use.name: part for part in t5.costs("training")}
    at = {**t5.sizes, "l": 8, "e": 8}
    text = value(t5, "critical_path", "training", at).text
    cross = said("decoder: self-attention+cross+unscaled{n=8,h=64}", rows)
    assert f"] {said('encoder: norm at the end', rows)} {cross}" in text and " 3*[" in text


@pytest.mark.parametrize("kind", ["cohere2", "gpt_neox"])
def test_lengths_where_a_layers_parts_are_beside_each_other(tmp_path: Path, kind: str) -> None:
    """Attention and FFN of a layer read one array; which path is longer changes with the sizes,
    but the number of paths does not double with every layer."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 11, "num_hidden_layers": 6}
    more = {"intermediate_size": 12, "max_position_embeddings": 4}
    net = read(tmp_path, {"model_type": kind, **sizes, **more})
    assert len(paths(net, "training-step")) <= 2
    for change in ({}, {"l": 2}, {"f": 64}, {"d": 32}):
        at = {**one_combination(whole(net), {}), "b": 1, "l": 4, **change}
        for figure in ("span", "sequential"):
            forward = longest(net, figure, "training", 6, at)
            backward = longest_backward(net, figure, 6, at)
            assert value(net, figure, "training", at) == forward
            assert value(net, figure, "training-step", at) == forward + backward


def test_recomputed_layers_are_on_the_path_once_more() -> None:
    net, at = made("decoder", 3), {**SIZES, "L": 3, "f": 6}
    again = Case(net.answers("training-step", recompute="layers"), at, symbolic=False)
    inside = {run.use: run for run in schedule(net, 3) if run.layer is not None}
    layers = [run.use for run in schedule(net, 3) if run.use in inside]
    more = sum(of_part(use, "span", "training", at) for use in layers)
    assert again.figure(FIGURES["span"]) == value(net, "span", "training-step", at) + more


def test_blocks_that_are_not_there_cannot_be_recomputed() -> None:
    net = made("decoder", 3)
    names = "none, layers, self-attention"
    with pytest.raises(ModelError, match=f"^recompute 'typo': expected one of {names}$"):
        net.answers("backward", recompute="typo")


@pytest.mark.parametrize(
    ("fields", "hops"),
    [
        ({"model_type": "llama"}, 1),
        ({"model_type": "mistral", "sliding_window": 4}, 4),  # 3 rows a hop, 10 rows apart
        ({"model_type": "gpt_oss", "sliding_window": 4, "num_local_experts": 3,
          "num_experts_per_tok": 2}, 1),
    ],
)  # fmt: skip
def test_hops_are_those_of_the_layers_that_reach_furthest(
    tmp_path: Path, fields: dict[str, Any], hops: int
) -> None:
    net = read(tmp_path, {**TINY, **fields})
    found = value(net, "path_length", "training", {**one_combination(whole(net), {}), "l": 11})
    assert found == hops


def test_each_stack_has_hops_of_its_own() -> None:
    """One hop of the encoder joins none of the decoder's tokens."""
    net = networks.model(
        "encoder-decoder",
        mixers=("self-attention+window",),
        encoder_mixers=("self-attention+bidirectional",),
        sizes={"L": 2},
    )
    sizes = {**one_combination(whole(net), {}), "l": 11, "e": 5, "w": 2}
    assert value(net, "path_length", "training", sizes) == 10


def test_side_branches_in_many_layers_leave_few_paths(tmp_path: Path) -> None:
    """Gemma 3n: each layer has a residual of low rank beside attention, and reads a table of its
    own. Further layers add no candidate for the longest path, which is that through all runs."""
    small = {"model_type": "gemma3n_text", **TINY, "num_key_value_heads": 6, "sliding_window": 3,
             "hidden_size_per_layer_input": 3, "vocab_size_per_layer_input": 31, "laurel_rank": 2,
             "altup_num_inputs": 2, "num_kv_shared_layers": 0}  # fmt: skip
    nets = {n: read(tmp_path, {**small, "num_hidden_layers": n}) for n in (3, 10)}
    few, many = (paths(net, "training-step") for net in nets.values())
    assert len(many) == len(few) == 4
    at = {**nets[3].sizes, "l": 5, "t": 5}
    steps = (longest(nets[3], "span", "training", 3, at), longest_backward(nets[3], "span", 3, at))
    assert value(nets[3], "span", "training-step", at) == sum(steps)


def test_hops_through_layers_that_reach_differently_far_are_not_derived(tmp_path: Path) -> None:
    fields = {
        "model_type": "recurrent_gemma", "vocab_size": 7, "hidden_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "attention_window_size": 9,
        "intermediate_size": 10,
    }  # fmt: skip
    net = read(tmp_path, fields)
    found = Case(net.answers("training"), {**one_combination(whole(net), {}), "l": 11})
    reason = found.figure(FIGURES["path_length"])
    assert "a path may go through any layer: ask for each mixer by itself" in str(reason)


def test_a_length_that_is_searched_in_a_part_is_searched_in_the_network(tmp_path: Path) -> None:
    """The longest path through `hill` has no formula; the numbers of the parts are added up."""
    file = tmp_path / "hill.py"
    file.write_text(HILL)
    net = networks.model("decoder", mixers=(f"{file}:m",), sizes={"L": 2})
    at = {**net.sizes, **SIZES, "L": 2, "f": 32, "w": 1}
    found = value(net, "span", "training", at)
    assert isinstance(found, Searched) and found == longest(net, "span", "training", 2, at)
    (row,) = [part for part in net.costs("training") if "hill" in part.use.name]
    assert Case(row, at, symbolic=False).figure(FIGURES["span"]) == 2 * of_part(
        row.use, "span", "training", at
    )


def test_traffic_of_one_new_token_by_hand() -> None:
    """Weights once, but of tables the rows read: the head reads the embedding's; the state of the
    tokens before, and the new token's; the token's number, and its scores."""
    net = networks.model("gpt-2")
    t, b, d, u, layers = 100, 3, 768, 50_257, 12
    at = {**net.sizes, "t": t, "b": b}
    weights = net.parameters().at() - (1024 - 1) * d
    state = layers * 2 * d * t
    assert value(net, "weights", "inference", at) == weights
    moved = weights + b * (state + 1 + u)
    assert value(net, "traffic", "inference", at) == moved
    types = Dtypes("bf16", weights="int8", cache="fp32")
    in_bytes = weights + b * (4 * state + 2 * (1 + u))
    assert value(net, "traffic", "inference", at, dtypes=types) == in_bytes


@pytest.mark.parametrize("b", [1, 3])
def test_a_step_reads_weights_and_writes_their_gradients_once(b: int) -> None:
    """Of tied weights too; the gradient of the positions has a row a token. Tokens, targets and
    loss are those of each sequence."""
    net = networks.model("gpt-2")
    d, l = 768, 64
    at = {**net.sizes, "l": l, "b": b}
    weights = net.parameters().at() - (1024 - l) * d
    tokens_targets_loss = b * (2 * l + 1)
    assert value(net, "weights", "training", at) == weights
    assert value(net, "traffic", "training-step", at) == 2 * weights + tokens_targets_loss
    kept = value(net, "activations", "backward", at)
    assert value(net, "traffic", "backward", at) >= weights + kept


def test_each_sequence_has_segments_and_masks_of_its_own() -> None:
    """A further sequence brings tokens, segments, targets and a loss, and without fusion a mask at
    each dropout: after the embedding and after both sublayers of a layer. No weight comes along."""
    net = networks.model("bert-base-masked-lm", sizes={"L": 2})
    l, d = 5, net.sizes["d"]
    sizes = {**net.sizes, "l": l}
    one, two = ({**sizes, "b": b} for b in (1, 2))
    more = value(net, "traffic", "training", two) - value(net, "traffic", "training", one)
    assert more == 3 * l + 1
    free, drawn = (net.answers("training", part_costs.counting(f"dropout={how}"))
                   for how in ("free", "mul"))  # fmt: skip
    moved = (about.of(traffic_of).unfused for about in (free, drawn))
    less, dropped = (elements.kinds for elements in moved)
    assert (dropped["weights"] - less["weights"]).is_zero
    masked = (dropped["activations"] - less["activations"]).at({**sizes, "b": 1})
    assert masked == (1 + 2 * 2) * 3 * l * d  # read rows and mask, write rows


@pytest.mark.parametrize(
    ("config", "depth"),
    [
        ({"model_type": "t5", "d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 4, "num_layers": 1,
          "relative_attention_num_buckets": 1000}, "num_decoder_layers"),
        ({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2,
          "intermediate_size": 4}, "num_hidden_layers"),
    ],
    ids=["t5", "llama"],
)  # fmt: skip
def test_tables_that_layers_share_move_once(
    tmp_path: Path, config: dict[str, Any], depth: str
) -> None:
    """T5's learned numbers of positions and where they stand, and Llama's cosines and sines: a
    further layer moves its own weights, and in a training step their gradients."""
    found = []
    for layers in (1, 2, 3, 5):
        net = read(tmp_path, {**config, "vocab_size": 11, depth: layers})
        at = {**net.sizes, "l": 4, "e": 4, "b": 2}
        asked = (("weights", "training"), ("traffic", "training"), ("traffic", "training-step"))
        found.append((net.parameters().at(), *(value(net, *one, at) for one in asked)))
    for less, more in pairwise(found):
        parameters, weights, moved, in_step = (y - x for x, y in zip(less, more, strict=True))
        assert (weights, moved, in_step) == (parameters, parameters, 2 * parameters)


@pytest.mark.parametrize("b", [1, 2, 4, 9])
def test_a_token_reads_the_experts_that_it_goes_through(tmp_path: Path, b: int) -> None:
    """Of E experts b tokens read at most b c, of an embedding's u rows at most b; and a row of the
    tables of angles, which all layers share."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
    config = {"model_type": "qwen3_moe", **TINY, **experts, "tie_word_embeddings": False}
    net = read(tmp_path, config)
    at = {**net.sizes, "t": 5, "l": 5, "b": b}
    d, u, each = net.sizes["d"], net.sizes["u"], 3 * net.sizes["d"] * 5
    layers = net.sizes["L"]
    idle = max(0, 6 - 2 * b) * each * layers + max(0, u - b) * d
    angles = 2 * 4
    assert value(net, "weights", "inference", at) == net.parameters().at() - idle + angles


def test_the_peak_of_a_step_is_its_largest_live_set() -> None:
    net = networks.model("gpt-2", sizes={"l": 8})
    at = {**net.sizes, "b": 2}
    found = value(net, "peak", "training-step", at)
    assert found == largest_live_set(graph_of(net, STRICT), at).elements
    assert isinstance(found, Searched)
    (between,) = [part for part in net.answers("backward").parts if part.made is not None]
    assert Case(between, at, symbolic=False).figure(FIGURES["peak"]) == 0
    assert "is derived for a training step alone" in value(net, "peak", "backward", at).reason


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(shlex.split(command)) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


COLUMNS = "total,parameters,state,traffic,activations,span,sequential,intensity,order"


def test_json_has_the_names_of_a_table_of_mixers(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--phase all --format json --l 8"
    models = json.loads(printed(f"model gpt-2 {words}", capsys))["models"]
    mixers = json.loads(printed(f"table self-attention {words}", capsys))["rows"]
    for model, mixer in zip(models, mixers, strict=True):
        there = {name for name, one in FIGURES.items() if mixer["phase"] in one.phases}
        keys = {(FIGURES[name].key or name).partition(".")[0] for name in there
                if not FIGURES[name].within or name.endswith("_bytes")}  # fmt: skip
        assert keys <= model.keys() and keys <= mixer.keys()
        assert model["span"] > 0 and model["traffic"]["compulsory"] > 0


def test_columns_are_those_of_a_table_of_mixers(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"model decoder --L 2 --l 4 --d 8 --n 2 --u 7 --phase all --columns {COLUMNS}"
    (*_, step) = json.loads(printed(f"{words} --format json", capsys))["models"]
    rows = [*csv.DictReader(io.StringIO(printed(f"{words} --format csv", capsys)))]
    total = rows[-1]
    assert total["part"] == "total" and int(total["span"]) == step["span"]
    assert int(total["traffic"]) == step["traffic"]["compulsory"]
    parts = [row for row in rows if row["phase"] == "training-step"][:-1]
    sums_of_gradients = next(row for row in parts if row["part"].startswith("sum of gradients"))
    assert sums_of_gradients["span"] == sums_of_gradients["sequential"] == "4"  # 2 a layer
    assert sum(int(row["span"]) for row in parts) == step["span"]
    text = printed(words, capsys)
    assert "compulsory traffic (B)" in " ".join(text.split()) or "traffic" in text
    assert printed("model decoder --columns kv-cache,flops --phase inference", capsys)


REFUSED = [
    ("gpt-2 --columns mixer", "'mixer' is no column of a network"),
    ("gpt-2 --columns state --phase training", "exists in inference only: choose another --phase"),
    ("gpt-2 --columns floor", "'floor' is a column of mixers alone: `costmodel model --board`"),
    ("gpt-2 --columns best_chunk_mul", "'best_chunk_mul' is a column of mixers alone"),
    ("gpt-2 --columns spam", "unknown column 'spam'"),
    ("gpt-2 --columns ,", "no column is named"),
]


@pytest.mark.parametrize(("command", "expected"), REFUSED, ids=[c for c, _ in REFUSED])
def test_columns_that_there_are_not(
    command: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(shlex.split(f"model {command}")) == 2
    assert expected in capsys.readouterr().err


def test_a_network_of_many_layers_has_the_lengths_of_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = networks.preset("gpt-2")
    one, two, many = (
        value(network(chosen, L=n), "span", "training-step", {**SIZES, "L": n, "f": 6})
        for n in (9, 10, 100_000)
    )
    assert many == one + (100_000 - 9) * (two - one)
