"""Does a network, by its name or its configuration, stand where a mixer's name stands?"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import cli
import costmodel as cm
from costmodel import networks
from costmodel.networks.answers import whole
from costmodel.networks.blocks import Description
from costmodel.networks.network import Network, network
from costmodel.networks.part_costs import counting
from costmodel.program.chosen_sizes import one_combination
from costmodel.questions.question import Missing
from costmodel.report.networks.explanation import IN_BLOCKS, NetworkExplanation
from tests.models.test_architectures import TINY, read, written
from tests.stand_ins import Instead

WIDE = {"model_type": "llama", **TINY, "num_key_value_heads": 6}
MIXED = {
    "model_type": "qwen3_next", **TINY, "num_hidden_layers": 4, "num_experts": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "head_dim": 8, "moe_intermediate_size": 5,
    "num_experts_per_tok": 2, "shared_expert_intermediate_size": 5,
}  # fmt: skip


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(shlex.split(command)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def data(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(f"{command} --format json", capsys))
    return found


def paths(folder: Path) -> tuple[str, str]:
    """The files of a dense and of a hybrid configuration."""
    places = []
    for name, config in (("wide", WIDE), ("mixed", MIXED)):
        (folder / name).mkdir()
        places.append(written(folder / name, config))
    return str(places[0]), str(places[1])


def test_break_evens_of_two_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hybrid holds 1 of 4 layers' rows and a recurrent state: more up to a context, then
    less."""
    wide, mixed = paths(tmp_path)
    words = f"crossover {wide} {mixed} --phase inference --by state"
    (found,) = data(words, capsys)["crossovers"]
    names = [one["name"] for one in found["candidates"]]
    assert names == [wide, mixed]
    states = {path: network(read_at(path)).state() for path in names}
    first, second = found["ranges"]
    assert first["least"] == [wide] and second["least"] == [mixed]
    for t in (1, first["last"], second["first"], 10_000):
        at = {path: state.at(t=t) for path, state in states.items()}
        assert min(at, key=lambda path: at[path]) == (wide if t <= first["last"] else mixed)
        assert cm.crossover(wide, mixed, by="state", phase="inference").values(t) == at
    assert f"from t = {second['first']:,} on" in run(words, capsys)
    condition = run(f"{words} --symbolic", capsys)
    assert "t ≥" in condition and "t ≤" in condition


@pytest.mark.parametrize(
    "words",
    [
        "crossover {} linear-attention --by parameters --over l",
        "budget {} --weights 40GB --largest l",
        "match we --to {} --by parameters --vary d",
        "table {} --columns parameters",
    ],
)
def test_every_command_leaves_ignored_fields_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    plain, odd = tmp_path / "config.json", tmp_path / "odd.json"
    plain.write_text(json.dumps(WIDE), encoding="utf-8")
    odd.write_text(json.dumps({**WIDE, "attn_logit_cap": 30.0}), encoding="utf-8")
    found = run(f"{words.format(odd)} --ignore attn_logit_cap --format csv", capsys)
    assert found == run(f"{words.format(plain)} --format csv", capsys).replace(
        "config.json", "odd.json"
    )
    if words.startswith("table"):  # a field of one of two files, and a field of none
        both = f"table {plain} {odd} --columns parameters --ignore attn_logit"
        assert cli.run(shlex.split(f"{both}_cap")) == 0
        assert cli.run(shlex.split(both)) == 2
        assert "--ignore attn_logit: the file has no such field" in capsys.readouterr().err
    assert cli.run(shlex.split(words.format(odd))) == 2
    assert "--ignore attn_logit_cap counts without" in capsys.readouterr().err
    assert cli.run(shlex.split(f"{words.format('gpt-2')} --ignore x")) == 2
    assert "name a config.json" in capsys.readouterr().err


def test_a_plot_leaves_ignored_fields_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    odd, drawn = tmp_path / "odd.json", tmp_path / "drawn.svg"
    instead(draw=lambda *of: of[2].write_text("drawn"))
    odd.write_text(json.dumps({**WIDE, "attn_logit_cap": 30.0}), encoding="utf-8")
    words = ["plot", str(odd), "-o", str(drawn), "--by", "parameters"]
    assert cli.run(words) == 2
    assert "--ignore attn_logit_cap counts without" in capsys.readouterr().err
    assert not drawn.exists()
    assert cli.run([*words, "--ignore", "attn_logit_cap"]) == 0
    assert drawn.exists()


def read_at(path: str) -> Description:
    return networks.described(None, Path(path), {})


def test_a_budget_of_a_configuration_is_what_memory_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in paths(tmp_path):
        (row,) = data(f"budget {path} --memory 1MB --b 2", capsys)["rows"]
        words = f"memory {path} --fit 1MB --batch 2 --context 10"
        (held,) = data(words, capsys)["models"]
        assert row["largest"] == held["fit"]["largest_context"]
        assert row["bound_by"] == ["memory"]
    (row,) = data("budget gpt-2 --total 1T --largest l", capsys)["rows"]
    assert row["largest"] == 1024 and "1025 would lie beyond the table" in row["ends"]


def test_element_types_are_those_of_the_configuration_in_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hybrid says fp16, and its recurrent state is fp32; mixers are fp32; `--dtype` changes
    both but for the state, and quantised weights are counted in no type that nobody named."""
    path = str(written(tmp_path, {**MIXED, "dtype": "float16"}))
    (need,) = data(f"memory {path} --context 5", capsys)["models"]
    named = f"elements fp16, state fp32 ({path}); elements fp32 (self-attention)"
    budget = f"budget {path} self-attention --state 9kB"
    for words in (
        budget,
        f"crossover {path} self-attention --by state_bytes --phase inference",
        f"match self-attention --to {path} --by state_bytes --vary t",
        f"table {path} self-attention --phase inference --columns state_bytes",
    ):
        assert set(named.split("; ")) <= {*_note(run(words, capsys)).split("; ")}, words
        said = f"{words} --dtype bf16"
        assert "elements bf16 (self" in _note(run(said, capsys)), said
    words = f"model --hf {path} --phase inference --columns state_bytes --t 5"
    (model,) = data(words, capsys)["models"]
    row, _ = data(f"table {path} self-attention --phase inference --t 5", capsys)["rows"]
    assert model["state_bytes"] == row["state_bytes"] == need["sequence_bytes"]
    assert _note(run(words, capsys)) == "elements fp16, state fp32"
    written(tmp_path, {**MIXED, "dtype": "float16", "quantization_config": {"quant_method": "fp8"}})
    (row, _) = data(budget, capsys)["rows"]
    types = {"activations": "fp16", "cache": "fp16", "state": "fp32", "weights": None}
    assert row["dtypes"] == types
    refused = f"budget {path} --weights 1MB"
    assert cli.run(shlex.split(refused)) == 2
    assert "fp8 quantises some of the weights" in capsys.readouterr().err
    assert "weights fp8" in _note(run(f"{refused} --weight-dtype fp8", capsys))


@pytest.mark.parametrize(
    "types",
    ["", "--state-dtype fp32", "--state-dtype fp32 --cache-dtype fp8 --weight-dtype fp64"],
)
def test_a_mixer_of_a_network_has_the_bytes_of_its_row_in_a_table(
    types: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decoder of plain choices fixes no element type: its recurrent states have --dtype."""
    names, given = ["linear-attention", "self-attention"], "--d 6 --n 2 --t 5 --phase inference"
    asked = f"{given} --columns state_bytes,traffic,weights_bytes --dtype bf16 {types}"
    words = f"model decoder --mixer {','.join(names)} --L 2 {asked}"
    (found,) = data(words, capsys)["models"]
    parts = {part["part"]: part for part in found["parts"]}
    for row in data(f"table {' '.join(names)} {asked}", capsys)["rows"]:
        part = parts[row["mixer"]]
        assert (part["state_bytes"], part["weights_bytes"], part["traffic"]["compulsory"]) == (
            row["state_bytes"], row["weights_bytes"], row["traffic"]["compulsory"],
        )  # fmt: skip
    asks = f"table {' '.join(names)} {asked}"
    assert _note(run(words, capsys)) == _note(run(asks, capsys))


def _note(printed: str) -> str:
    """The element types that a document names."""
    (found,) = {line.removeprefix("bytes: ") for line in printed.splitlines()
                if line.startswith("bytes: ")}  # fmt: skip
    return found


def test_a_length_at_which_a_model_costs_as_much_as_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = data("match gpt-2 --to gpt-2{l=64,L=6} --by total --vary l", capsys)
    deep, half = networks.model("gpt-2"), networks.model("gpt-2", sizes={"L": 6})
    assert found["target"] == half.count().at(l=64).total
    below, above = found["candidates"]
    for one, beside in ((below, 1), (above, -1)):
        assert one["value"] == deep.count().at(l=one["first"]).total
        other = deep.count().at(l=one["first"] + beside).total - found["target"]
        assert one["difference"] * other <= 0


OF_FILE = {
    "f": "intermediate_size", "u": "vocab_size", "d": "hidden_size", "L": "num_hidden_layers",
}  # fmt: skip


@pytest.mark.parametrize(("letter", "field"), OF_FILE.items())
def test_a_size_that_a_configuration_gives_is_varied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], letter: str, field: str
) -> None:
    """A configuration with the size found has as many parameters as the other model, and the
    largest size within these weights is the same one; head widths stay as they are."""
    of, fixed = TINY[field], {**WIDE, "head_dim": 4}
    path = written(tmp_path, {**fixed, field: 2 * of})
    (folder := tmp_path / "more").mkdir()
    more = written(folder, {**fixed, field: 3 * of})
    found = data(f"match {path} --to {more} --by parameters --vary {letter}", capsys)
    (one,) = found["candidates"]
    number = networks.model(more).parameters().at()
    assert (one["first"], one["value"]) == (3 * of, number)
    weights = f"budget {path} --weights {2 * number}B --largest {letter} --dtype bf16"
    assert data(weights, capsys)["rows"][0]["largest"] == 3 * of


def test_a_size_that_cannot_be_varied_is_refused_with_those_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for config, letter, said in (
        (WIDE, "n", "size n cannot be varied: choose one of b, l, t, d, u, f, L"),
        (MIXED, "L", "size L cannot be varied: choose one of b, l, t, d, "),
    ):
        path = written(tmp_path, config)
        words = f"match {path} --to gpt-2 --by parameters --vary {letter}"
        assert cli.run(shlex.split(words)) == 2
        assert said in capsys.readouterr().err


def test_a_row_of_a_table_is_the_total_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    for phase in ("training", "inference", "backward", "training-step"):
        words = f"--phase {phase} --l 8 --t 5 --b 2"
        row, _ = data(f"table gpt-2 self-attention {words}", capsys)["rows"]
        words = words if phase == "inference" else words.replace("--t 5 ", "")
        (model,) = data(f"model gpt-2 {words}", capsys)["models"]
        for name in ("total", "parameters", "counts", "span", "weights_elements", "traffic"):
            assert row[name] == model[name], name
        for name in ("state_elements", "activations_elements", "peak_elements"):
            assert row[name] == model.get(name), name
        assert row["mixer"] == "gpt-2" and row["ratio"] is None


def test_weights_that_are_read_and_are_no_parameters_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token reads a cosine and a sine for each channel of a head, 2 * 4 once for all layers, and
    of the embedding one row of 24."""
    path = written(tmp_path, {**WIDE, "num_hidden_layers": 3})
    words = "--phase inference --columns weights,parameters --t 5"
    for command, said in ((f"table {path}", True), (f"model --hf {path}", True),
                          ("table self-attention", False), ("model gpt-2", False)):  # fmt: skip
        assert ("cosines and sines" in run(f"{command} {words}", capsys)) == said, command
    (model,) = data(f"model --hf {path} {words}", capsys)["models"]
    u = TINY["vocab_size"]
    assert model["weights_elements"] == model["parameters"] - (u - 1) * 24 + 2 * 4


EXPLAINED: dict[str, Any] = {
    "gpt-2": {},
    "transformer-base": {"mixers": ("self-attention",)},
    "decoder": {"mixers": ("self-attention", "she", "she")},
    "chen-v1": {},
    "simpletron-matching": {},
}


def small(folder: Path, name: str) -> Network:
    if name in EXPLAINED:
        return networks.model(name, sizes={"L": 4, "l": 4, "u": 11}, **EXPLAINED[name])
    if name == "nemotron_h":
        kinds = {"hybrid_override_pattern": "ME*-ME", "num_hidden_layers": 6}
        sizes = {
            "n_routed_experts": 3, "moe_intermediate_size": 5, "mamba_num_heads": 2,
            "moe_shared_expert_intermediate_size": 2, "mamba_head_dim": 4, "n_groups": 1,
        }  # fmt: skip
        return read(folder, {"model_type": name, **TINY, **sizes, **kinds})
    if name == "albert":  # the layers share two sets of parameters
        return read(folder, {"model_type": name, "num_hidden_groups": 2, "num_hidden_layers": 5})
    return read(folder, MIXED)


@pytest.mark.parametrize("name", [*EXPLAINED, "albert", "nemotron_h", "qwen3_next"])
def test_blocks_add_up_to_the_network(name: str, tmp_path: Path) -> None:
    net = small(tmp_path, name)
    given = {"e": (3,), "t": (4,), "d": (8,), "n": (2,), "l": (4,)}
    mixer = whole(net)
    at = one_combination(mixer, {x: size for x, size in given.items() if x not in mixer.given})
    told = NetworkExplanation(net, (), at, counting("strict"))
    for phase in ("training", "inference", "backward", "training-step"):
        sheet = told._sheet(phase)
        table = told._of_blocks(sheet)
        columns = [column.name for column in table.columns]
        for figure in IN_BLOCKS:
            total = sheet.total.value(figure)
            if isinstance(total, Missing):
                continue
            place = columns.index(f"{figure}_all")
            cells = [row[place] for row in table.rows if isinstance(row, tuple)]
            assert sum(cell for cell in cells if isinstance(cell, int)) == total
            assert all(isinstance(cell, int) or cell == "" for cell in cells)


def test_an_explanation_names_equal_blocks_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("explain gpt-2 --phase both --t 10", capsys)
    assert "layer of self-attention+bias (L of them): 2 x norm, before" in text
    assert "parameters: 12d² + 13d = 7,087,872" in text
    assert "State kept, held after t tokens: 2Ldt elements, 184,320 at these sizes." in text
    step = run("explain gpt-2 --phase training-step --l 8 --format latex", capsys)
    assert "found at these sizes by search" in step and "sums of gradients" in step
    mixed = run("explain decoder{L=3} --l 4 --phase training", capsys)
    assert "3" in mixed


REFUSED = [
    ("crossover nowhere.json she", "nowhere.json is not a readable configuration"),
    ("crossover gpt-2 gpt2", "unknown mixer 'gpt2'"),
    ("crossover gpt-2 gpt-2", "gpt-2 is given twice"),
    ("crossover gpt-2 she --form chunked", "gpt-2 has no form 'chunked'"),
    ("budget gpt-2 --total 1e12 --largest f", "f cannot be varied: choose one of b, l, t, d, n"),
    ("match gpt-2{d=12} --to gpt-2 --by total --vary d", "d has a value in braces already: choose"),
    ("explain gpt-2 --against she", "explain takes sizes, --phase and --convention for a network"),
    ("explain gpt-2{L=x}", "a size in braces is one whole number"),
]


@pytest.mark.parametrize(("command", "expected"), REFUSED, ids=[c for c, _ in REFUSED])
def test_a_mistake_is_a_sentence(
    command: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(shlex.split(command)) != 0
    found = capsys.readouterr()
    assert expected in found.err and found.err.count("\n") == 1


def test_a_question_about_equations_refuses_a_network() -> None:
    network_as_mixer = networks.as_mixer("gpt-2")
    assert network_as_mixer is not None
    for question in (cm.count, cm.parameters, cm.span):
        with pytest.raises(cm.errors.WrongKind, match="gpt-2 is a network, whose parts have them"):
            question(network_as_mixer)
