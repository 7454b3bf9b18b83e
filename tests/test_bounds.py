"""Does every input from a command line or a file get an answer or one sentence, however extreme the
input is?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel.errors import ModelError, UnknownMixer
from costmodel.networks.presets import load
from costmodel.symbolic.effort import MOST
from tests.stand_ins import Instead
from tests.test_cli import USER
from tests.typed import Capture, printed, refused

SCHEMA = {"schema": 1, "source": "a paper"}


def claims_file(tmp_path: Path, **claim: Any) -> str:
    path = tmp_path / "paper.json"
    own = {"id": "a", "place": "p", "kind": "formula", "claimed": "c", "phase": "training",
           "mixer": "restricted-attention", "quantity": "mul", "formula": "l", **claim}  # fmt: skip
    path.write_text(json.dumps({**SCHEMA, "claims": [own]}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "formula",
    [
        "sum(2^t, t, 1, 100000)",
        "sum(sum(t, t, 1, 1000), k, 1, 1000)",
        "l*sum((t + d)^60, t, 1, 90000 + l)",
    ],
)
def test_a_claim_that_takes_too_much_is_not_checkable(
    formula: str, tmp_path: Path, capsys: Capture, instead: Instead
) -> None:
    """A tenth of what is allowed is waited for, and far more is asked."""
    instead(defaults_of_limited=(MOST // 10,))
    out = printed(capsys, "check", claims_file(tmp_path, formula=formula), "--format", "json")
    (claim,) = json.loads(out)["claims"]
    assert claim["verdict"] == "not-checkable" and "steps of arithmetic" in claim["note"]


def test_a_formula_with_very_many_terms_is_compared_at_points(
    tmp_path: Path, capsys: Capture
) -> None:
    formula = "(b + l + d + n + w)^40*(b + l + d + n + w)^40"
    out = printed(capsys, "check", claims_file(tmp_path, formula=formula), "--format", "json")
    (claim,) = json.loads(out)["claims"]
    assert claim["verdict"] == "disagrees"


def test_lists_of_sizes_are_counted_first(tmp_path: Path, capsys: Capture) -> None:
    many = list(range(1, 1001))
    path = claims_file(tmp_path, sizes=dict.fromkeys("ldnkw", many))
    said = "1,000,000,000,000,000 combinations of sizes: a claim gives at most 10,000"
    assert said in refused(capsys, "check", path)


DIGITS = "9" * 4301


@pytest.mark.parametrize(
    "words",
    [
        ("table", "--l", DIGITS),
        ("table", "--l", f"1:{DIGITS}"),
        ("check", "she", "--claim", f"mul = {DIGITS}"),
        ("check", "she", "--claim", f"mul = l^{DIGITS}"),
        ("profile", "she", "--seed", DIGITS),
        ("compare", "she", "me", "--rounds", DIGITS),
        ("sweep", "she", "-o", "x.jsonl", "--shard", f"1/{DIGITS}"),
        ("trace", "torch.nn:Linear", "--over", "n,l", "--let", f"d={DIGITS}*n"),
    ],
)
def test_numbers_of_many_digits_are_refused(words: tuple[str, ...], capsys: Capture) -> None:
    assert "set_int_max_str_digits" not in refused(capsys, *words)


@pytest.mark.parametrize("command", ["model --hf", "check", "verify"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": 1, "x": ' + DIGITS + "}", "a number has more digits than Python reads"),
        ("[" * 100_000, "the file nests too deeply"),
    ],
)
def test_files_of_data_that_cannot_be_held(
    command: str, text: str, said: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert said in refused(capsys, *command.split(), str(path))


@pytest.mark.parametrize("words", [
    ("model", "--hf"), ("verify",), ("reconcile", "--from"), ("statement", "--from"),
])  # fmt: skip
def test_a_file_without_an_end(words: tuple[str, ...], capsys: Capture) -> None:
    said = refused(capsys, *words, "/dev/zero")
    assert "the file has more than 67,108,864 bytes, or no end" in said


GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 4, "n_positions": 8,
        "vocab_size": 9}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tie_word_embeddings", "false", "must be true or false, got 'false'"),
        ("resid_pdrop", "0", "must be a number from 0 to 1, got '0'"),
        ("activation_function", ["gelu"], "is unknown"),
        ("architectures", [["GPT2Model"]], "is not supported"),
        ("architectures", {"a": 1}, "is not supported"),
        ("n_layer", [2], "must be a positive integer"),
        ("n_layer", 10**20, "must be a positive integer of 10,000 at most"),
        ("model_type", ["gpt2"], "expected an object with a 'model_type'"),
    ],
)
def test_values_of_another_type_in_a_configuration(
    key: str, value: Any, said: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GPT2, key: value}), encoding="utf-8")
    assert said in refused(capsys, "model", "--hf", str(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mixers", [["self-attention"]]),
        ("encoder_mixers", [{"a": 1}]),
        ("cross", ["self-attention"]),
        ("widths", {"f": ["4*d"]}),
        ("sizes", {"l": [[1]]}),
        ("sizes", {"l": "3"}),
        ("from", ["plain"]),
        ("tied", "false"),
        ("towers", True),
    ],
)
def test_values_of_another_type_in_a_file_of_networks(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "nets.json"
    entry = {"name": "x", key: value}
    path.write_text(json.dumps({"schema": 1, "citation": "c", "models": [entry]}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"nets\.json"):
        load(path)


RAN = "import pathlib; pathlib.Path(__file__ + '.ran').touch()\n"


def test_a_file_of_claims_runs_no_code_that_nobody_named(tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(RAN + USER, encoding="utf-8")
    for key in ("mixer", "against"):
        path = claims_file(tmp_path, **{key: f"{mine}:decay"})
        if key == "against":  # a ratio is of two mixers, a formula of one
            ratio = Path(path).read_text(encoding="utf-8").replace('"formula": "l"', '"value": "2"')
            Path(path).write_text(ratio.replace('"kind": "formula"', '"kind": "ratio"'), "utf-8")
        for command in ("check", "verify"):
            said = refused(capsys, command, path)
            assert f"and data run no code: allow the code by --own {mine}" in said
    entry = {"name": "x", "mixers": [f"{mine}:decay"]}
    nets = tmp_path / "nets.json"
    nets.write_text(json.dumps({"schema": 1, "citation": "c", "models": [entry]}), encoding="utf-8")
    with pytest.raises(UnknownMixer, match="data run no code"):
        load(nets)
    assert not (tmp_path / "mine.py.ran").exists()
    path = claims_file(tmp_path, mixer=f"{mine}:decay", quantity="parameters", formula="l")
    assert "agrees" in printed(capsys, "check", path, "--own", str(mine))
    assert list(load(nets)) == ["x"] and (tmp_path / "mine.py.ran").exists()


def test_a_network_of_very_many_layers_in_turn(capsys: Capture) -> None:
    words = ("model", "gpt-2", "--mixer", "self-attention,me", "--L", str(2**40))
    assert cli.run([*words, "--phase", "training"]) == 0
    assert "me" in capsys.readouterr().out
