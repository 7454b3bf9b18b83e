"""Does `costmodel model` print the derived answers in every format, and refuse a mistake in a
sentence?"""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel import networks
from tests.typesetting import compiled, needs_latex

TINY = "decoder --L 2 --l 4 --d 6 --n 3 --u 7"

TRAINING = """\
Decoder (decoder)
decoder of self-attention; look-up embedding; positions: learned; norm before each sublayer and at \
the end; FFN with relu; head over the vocabulary, cross-entropy in a forward pass; biases in FFN \
and norms, a mixer's own by its options; no dropout
sizes: sequence length l = 4, model width d = 6, heads n = 3, vocabulary u = 7, layers L = 2; \
by default batch b = 1; with FFN width f = 4d = 24
convention: strict (a sum of R terms takes R-1 additions; one division per score; no maximum is \
subtracted in softmax; masked pairs are not computed); no backward pass
source: none: a network of plain choices, to be changed by options

Forward pass over l tokens

part               times  parameters    mul    add  div  exp  other                        total
────────────────────────────────────────────────────────────────────────────────────────────────
embedding              1          42      0      0    0    0  0                                0
learned positions      1          24      0     24    0    0  0                               24
norm, before           4          48    192    368  128    0  16 sqrt                        704
self-attention         2         288  1,392  1,128  120   60  0                            2,700
FFN                    2         636  2,304  2,304    0    0  192 compare                  4,800
residual sum           4           0      0     96    0    0  0                               96
norm at the end        1          12     48     92   32    0  4 sqrt                         176
head                   1          42    168    140    0    0  0                              308
loss                   1           0      0     55    1   28  4 log                           88
total                          1,092  4,104  4,207  281   88  20 sqrt, 192 compare, 4 log  8,896
parameters: of these, tables of embeddings have 66
other: compare, log, sqrt; total includes them
"""
"""By hand: norms 2*6 products, 4*6 - 1 sums, 6 + 2 quotients, a root a row, 16 + 4 rows; two
attentions of Table 3; 2*4*2*6*24 products; 2*4*24 comparisons; 4*6*7 products of the head."""


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(shlex.split(f"model {command}")) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def refused(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(shlex.split(f"model {command}")) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


def test_a_small_network_prints_the_expected_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{TINY} --phase training", capsys) == TRAINING


def test_generation_prints_prefill_and_decode_with_their_sum(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run(f"{TINY} --phase generate --prompt 2 --new 2", capsys)
    net = networks.model("decoder")
    at = {"L": 2, "l": 4, "d": 6, "n": 3, "u": 7, "p": 2, "q": 2}
    made = networks.generation(net)
    prompt, new = (counts.at(**at).total for counts in (made.prompt, made.new))
    assert f"{prompt:,}" in text and f"{new:,}" in text
    assert f"first token: {prompt:,} operations; the further ones: {new:,}" in text
    assert f"prefill and decode together: {prompt + new:,} operations" in text
    assert "Prefill: the p tokens of the prompt in one pass" in text
    assert "layers L = 2, prompt length p = 2, new tokens after the prompt q = 2" in text
    assert text == run(f"{TINY} --phase generate --p 2 --q 2", capsys)


def rows(command: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    found = json.loads(run(f"{command} --format json", capsys))
    assert found["schema"] == 1
    return list(found["models"])


@pytest.mark.parametrize("options", ["", "--phase generate", "--symbolic", "--convention torch",
                                     "--phase inference --t 9", "--l l", "--b 3"])  # fmt: skip
def test_json_gives_every_count_or_its_reason(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in rows(f"{TINY} {options}", capsys):
        symbolic = "--symbolic" in options or "--l l" in options
        letters = {"--symbolic": "t", "--l l": "lt"}.get(options, "")
        unknown = {x for x, v in row["sizes"].items() if isinstance(v, str)}
        assert unknown <= set(letters) | ({"p", "q"} if symbolic else set())
        assert {"L", "l", "d", "n", "u", "b"} <= set(row["sizes"])
        for entry in (row, *row["parts"]):
            assert set(entry["counts"]) == {"mul", "add", "div", "exp", "other"}
            for name in ("mul", "add", "div", "exp"):
                value = entry["counts"][name]
                assert (value is None) == (name in entry["reasons"])
            assert (entry["total"] is None) == ("total" in entry["reasons"])
            assert all(isinstance(text, str) and text for text in entry["reasons"].values())
        if not symbolic and row["total"] is not None and "torch" not in options:
            assert row["total"] == sum(part["total"] for part in row["parts"])
            assert row["parameters"] == sum(part["parameters"] for part in row["parts"])


def test_json_is_what_the_network_derives(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows("gpt-2 --phase training --b 2", capsys)
    counts = networks.model("gpt-2").count().at(b=2)
    assert row["total"] == counts.total
    assert row["counts"]["mul"] == counts.mul and row["counts"]["other"] == counts.other
    assert row["parameters"] == 124_439_808
    assert row["parameters_of_tables"] == (50257 + 1024) * 768
    assert row["model"] == "gpt-2" and row["mixers"] == ["self-attention+bias"]
    (row,) = rows("gpt-2 --phase inference --t 10", capsys)
    assert row["state_elements"] == 2 * 12 * 10 * 768


def test_phases_that_a_mixer_lacks_are_dashes_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (row,) = rows("bert-base --phase inference", capsys)
    reason = "not causal: an output depends on later tokens"
    mixer = next(part for part in row["parts"] if part["part"].startswith("self-attention"))
    assert mixer["total"] is None and mixer["reasons"]["total"] == reason
    assert row["total"] is None and row["reasons"]["total"].endswith(reason)
    assert row["parameters"] == 109_482_240
    text = run("bert-base --phase inference", capsys)
    assert f"(1) {reason}\n" in text


def test_positions_past_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    prefill, decode = rows(f"{TINY} --phase generate --prompt 3 --new 3", capsys)
    assert prefill["total"] is not None and decode["total"] is None
    reason = decode["reasons"]["total"]
    assert reason.startswith("learned positions: position t = 5 would read past the end of P")
    (row,) = rows("chen-v1-extractor --phase inference --t 129", capsys)
    assert "position t = 129 would read past" in row["reasons"]["total"]


def test_sweeps_are_one_line_for_each_combination(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("chen-v2-heads --phase training", capsys)
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [line[0] for line in lines] == ["1", "2", "4", "8", "16", "32", "64", "128"]
    for line in lines:
        counts = networks.model("chen-v2").count().at(n=int(line[0]))
        assert line[-1] == f"{counts.total:,}"
    found = rows("decoder --L 1,3 --d 8,16 --n 2 --phase training", capsys)
    assert [(r["sizes"]["d"], r["sizes"]["L"]) for r in found] == [(8, 1), (8, 3), (16, 1), (16, 3)]


def test_layers_in_turn_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows("chen-v1 --mixer she,self-attention --L 5 --phase training", capsys)
    runs = {part["part"]: part["runs"] for part in row["parts"]}
    assert (runs["she"], runs["self-attention"], runs["FFN"]) == (3, 2, 5)
    sweep = rows("chen-v1 --mixer she,self-attention --L 1:3 --phase training", capsys)
    assert [row["sizes"]["L"] for row in sweep] == [1, 2, 3]
    for options in ("--symbolic", "--L L"):
        said = refused(f"chen-v1 --mixer she,self-attention {options}", capsys)
        assert "has layers of she, self-attention in turn" in said and "such as --L 12" in said
        assert "or 'chen-v1{L=12}' where a command has no --L" in said


def test_options_change_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows("gpt-2 --mixer she --no-biases --untied --norm none --phase training", capsys)
    names = {part["part"] for part in row["parts"]}
    assert "she" in names and not any("norm" in name for name in names)
    net = networks.model("gpt-2", mixers=("she",), biases=False, norm_bias=False, tied=False,
                       norm="none")  # fmt: skip
    assert row["parameters"] == net.parameters().at()
    (row,) = rows("transformer-base --encoder-mixer self-attention --head none --phase training",
                  capsys)  # fmt: skip
    parts = {part["part"] for part in row["parts"]}
    assert "encoder: self-attention" in parts and "head" not in parts


def test_csv_parts_add_up_to_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(csv.DictReader(io.StringIO(run(f"{TINY} --format csv", capsys))))
    assert {row["phase"] for row in found} == {"training", "inference"}
    for phase in ("training", "inference"):
        here = [row for row in found if row["phase"] == phase]
        *parts, total = here
        assert total["part"] == "total"
        for column in ("parameters", "mul", "add", "total", "other_sqrt"):
            assert int(total[column]) == sum(int(row[column]) for row in parts)
    assert int(found[0]["l"]) == 4 and found[0]["t"] == ""


@pytest.mark.parametrize("options", ["", "--symbolic", "--phase generate --symbolic"])
def test_markdown_has_tables_of_equal_columns(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(f"gpt-2 {options} --format markdown --symbols L=m", capsys)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table if "state" not in line}) <= 2
    assert ("$12 m d^{2}" in text or "12 d^{2} m" in text) == bool(options)


@needs_latex
@pytest.mark.parametrize("command", ["transformer-base --symbolic --label tab:base",
                                     "chen-v2-heads --phase training --caption 'My heads'",
                                     "bert-base", "--list"])  # fmt: skip
def test_latex_of_a_network_compiles(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(f"{command} --format latex", capsys)
    (tmp_path / "part.tex").write_text(text, encoding="utf-8")
    compiled(tmp_path)
    assert text.startswith("% costmodel model ")


def test_latex_labels_and_captions(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(f"{TINY} --format latex --label tab:x --caption 'Mine.'", capsys)
    assert r"\label{tab:x-training}" in text and r"\label{tab:x-inference}" in text
    assert text.count(r"\caption{Mine.}") == 2 and "no backward pass" in text
    assert "may hold letters" in refused(f"{TINY} --format latex --label 'a b'", capsys)


def test_narrow_terminals_lose_no_column() -> None:
    from costmodel.report.document import Page
    from costmodel.report.formats import write
    from costmodel.report.networks import document as network_document, table as network_table

    given, kept = network_table.asked({"l": "4"})
    made = network_table.sheets(
        network_table.Request(networks.described("gpt-2", None, {}), given, kept, ("training",))
    )
    text = write(network_document.document(made), "rich", Page(60))
    shown = ("times", "mul", "add", "div", "exp", "other", "embedding", "124,439,808")
    assert all(name in text for name in shown)
    assert max(map(len, text.splitlines())) <= 60


def test_list_names_every_network_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("--list", capsys)
    assert all(name in text for name in networks.names())
    listed = json.loads(run("--list --format json", capsys))["models"]
    assert [entry["name"] for entry in listed] == list(networks.names())
    assert not {"parameters", "total", "counts"} & set(listed[0])
    shown = list(csv.DictReader(io.StringIO(run("--list --format csv", capsys))))
    assert shown[0]["name"] == networks.names()[0]
    assert "| gpt-2 |" in run("--list --format markdown", capsys)


def test_a_published_configuration_is_printed_with_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 6,
        "vocab_size": 11,
    }))  # fmt: skip
    (row,) = rows(f"--hf {path} --phase training", capsys)
    assert row["parameters"] == 2 * (12 * 64 + 13 * 8) + 6 * 8 + 11 * 8 + 2 * 8
    path.write_text(json.dumps({"model_type": "new", "hc_mult": 4}))
    assert "no part of a network here is several residual" in refused(f"--hf {path}", capsys)


@pytest.mark.parametrize(("phase", "ends"), [
    ("inference", ["learned positions", "she"]),
    ("training", ["learned positions"]),
    ("training-step", ["learned positions"]),
])  # fmt: skip
def test_a_part_whose_positions_end_is_its_own_dash(
    phase: str, ends: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """GPT-2 has 1024 learned positions; SHE, between the layers, as many as a text has tokens."""
    words = f"gpt-2 --phase {phase} --l 2000 --t 3000 --mixer self-attention,she"
    (row,) = rows(words, capsys)
    parts = {part["part"]: part for part in row["parts"]}
    assert [name for name, part in parts.items() if part["total"] is None] == ends
    held = {name: part.get("state_elements", 0) for name, part in parts.items()}
    assert [name for name, state in held.items() if state is None] == ends[1:]
    assert parts["self-attention"]["total"] and row["total"] is None
    assert row["reasons"]["total"].startswith("learned positions: position ")
    inside = rows(words.replace("2000", "1000").replace("3000", "1000"), capsys)[0]["parts"]
    assert all(part["total"] is not None for part in inside)
    if phase == "inference":
        (row,) = rows("gpt-2 --phase inference --l 2000 --t 3000", capsys)
        assert row["state_elements"] == 12 * 2 * 768 * 3000 and row["total"] is None


REFUSED = [
    ("", "give one of two: the name of a network"),
    ("gpt-2 --hf x.json", "give one of two"),
    ("gpt2", "unknown network 'gpt2'; did you mean 'gpt-2'?"),
    ("--hf nowhere.json", "nowhere.json is not a readable configuration"),
    ("gpt-2 --norm after", "norm 'after' is unknown"),
    ("gpt-2 --mixer nobody", "unknown mixer 'nobody'"),
    ("gpt-2 --mixer ,", "name at least one mixer"),
    ("gpt-2 --d 100", "needs d/n to be whole, got 25/3"),
    ("gpt-2 --d 0", "size d must lie in 1..2**40"),
    ("gpt-2 --d ten", "size d must be a positive integer"),
    ("gpt-2 --phase prefill", "choose --phase generate"),
    ("gpt-2 --phase learning", "--phase 'learning': expected one of"),
    ("gpt-2 --convention dropout=none", "one rule for the cost of dropout, dropout=free"),
    ("gpt-2 --convention stricht", "did you mean 'strict' or 'torch'?"),
    ("gpt-2 --format xml", "--format 'xml'"),
    ("gpt-2 --label x", "--label is for latex only"),
    ("gpt-2 --state-dtype bf16", "add such a column, --columns state_bytes,traffic"),
    ("bert-base --phase generate", "has no head over the vocabulary"),
    ("bert-base --head classes --kind x", "model has no option --kind"),
    ("gpt-2 --mixer self-attention+cross", "reads a second sequence, and a layer has only one"),
    ("transformer-base --cross she", "she reads no second sequence, and --cross needs a"),
    ("gpt-2 --cross she", "--cross is about an encoder beside a decoder, which this network lacks"),
    ("bert-base --encoder-mixer she", "--encoder-mixer is about an encoder beside a decoder"),
    ("gpt-2 --no-ffn --activation relu", "--activation is about feed-forward sublayers"),
    ("gpt-2 --head none --loss", "--loss is about a head"),
    ("gpt-2 --mixer self-attention+bais", "did you mean 'bias'?"),
    ("gpt-2 --form fft", "none of its mixers has a form 'fft'"),
]


@pytest.mark.parametrize(("command", "sentence"), REFUSED)
def test_a_bad_command_is_refused_in_a_sentence(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(command, capsys)


def test_other_commands_do_not_offer_the_sizes_of_networks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("table", "explain she", "profile"):
        assert cli.run([*command.split(), "--L", "3"]) == 2
        assert f"{command.split()[0]} has no option --L" in capsys.readouterr().err
    assert "p is a size of none of its parts" in run(f"{TINY} --prompt 3", capsys)
    assert cli.run(["memory", "decoder", "--context", "8", "--L=3"]) == 2
    assert "braces, such as 'decoder{L=3}'" in capsys.readouterr().err
