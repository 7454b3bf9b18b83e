"""Do the words that people bring mean a column, a claim or a mixer, or say which one to name?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.questions.registry import CLAIMED, FIGURES, MEASURED, WORDS, meant
from tests.typed import Capture, printed, refused

ONE = {word: means[0] for word, means in WORDS.items() if len(means) == 1}
ROWS = """
import costmodel as cm

m = cm.Mixer("m", source="none")
l, d = m.sizes("l d")
x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", l, d)
with m.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    j = f.index("j", 1, i)
    y[i, a] = cm.sum_(x[j, a] * w[j, a], over=j)
"""
SEVERAL = {word: means for word, means in WORDS.items() if len(means) > 1}


def phase_of(name: str) -> str:
    return FIGURES[name].phases[0]


@pytest.mark.parametrize("word", ["FLOPs", "macs", "KV cache", "params", "path", "compulsory"])
def test_a_word_is_the_column_that_it_means(word: str, capsys: Capture) -> None:
    name = ONE["-".join(word.lower().split())]
    asked = ("table", "she", "--phase", phase_of(name), "--format", "csv")
    spelled, own = (
        printed(capsys, *asked, "--columns", f"mixer,{column}", f"--sort=-{column}")
        for column in (word, name)
    )
    assert spelled == own and name in own.splitlines()[0]


TRUE = {
    "FLOPs": "total = d*l**2", "MACs": "mul = d*l*(l + 1)/2", "params": "parameters = d*l",
    "kv_cache": "state = d*t", "path": "critical_path = mul sum",
    "compulsory": "traffic = 3*d*l",
}  # fmt: skip
"""Word -> a claim about a sum over rows with a weight for each pair of a row and a channel."""


@pytest.mark.parametrize("word", TRUE)
def test_a_word_is_the_claim_that_it_means(word: str, tmp_path: Path, capsys: Capture) -> None:
    name, _, formula = TRUE[word].partition(" = ")
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    asked = ("check", f"{path}:m", "--phase", phase_of(name), "--claim")
    spelled, own = (printed(capsys, *asked, f"{n} = {formula}") for n in (word, name))
    assert spelled == own and f"{name.replace('_', ' ')} = " in own and "verdict: agrees:" in own


@pytest.mark.parametrize("word", SEVERAL)
def test_an_ambiguous_word_names_its_columns(word: str, capsys: Capture) -> None:
    said = refused(capsys, "table", "she", "--columns", f"mixer,{word}")
    assert said.startswith(f"'{word}' may mean ") and said.endswith(": name one of them")
    assert all(f"{name} ({FIGURES[name].meaning})" in said for name in SEVERAL[word])
    assert said == refused(capsys, "table", "she", f"--sort={word}")
    claimed = refused(capsys, "check", "she", "--claim", f"{word} = l")
    assert "may mean" in claimed
    assert all((f"{name} (" in claimed) == (name in CLAIMED) for name in SEVERAL[word])


@pytest.mark.parametrize("word", MEASURED)
def test_a_measured_quantity_says_what_measures_it(word: str, capsys: Capture) -> None:
    said = refused(capsys, "table", "she", "--columns", word)
    assert said == f"'{word}' {MEASURED[word]}"


def test_a_word_for_a_column_is_found_by_list(capsys: Capture) -> None:
    said = refused(capsys, "list", "kv-cache")
    assert said == (
        "'kv-cache' is no mixer but a column: `costmodel table --columns mixer,state` shows state "
        "(held after t tokens)"
    )
    assert "no mixer has a word that begins with 'xyzzy'" in refused(capsys, "list", "xyzzy")


def test_a_file_of_claims_may_use_other_words(tmp_path: Path, capsys: Capture) -> None:
    claims = [
        {"id": name, "place": "here", "kind": "formula", "claimed": "as written", "mixer": "me",
         "phase": "training", "quantity": name, "formula": "d*l**2 - d*l"}
        for name in ("FLOPs", "total")
    ]  # fmt: skip
    claims[0]["formula"] = claims[1]["formula"] = "d*l**2"
    memory = {"id": "m", "place": "here", "kind": "model", "claimed": "as written",
              "model": "gpt-2", "phase": "training-step", "quantity": "memory",
              "unchecked": "only read"}  # fmt: skip
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"schema": 1, "source": "ours", "claims": [*claims, memory]}))
    out = printed(capsys, "check", str(path))
    assert out.count("total = d*l**2") == 2 and "2 agrees" in out
    claims[0]["quantity"] = "memory"
    path.write_text(json.dumps({"schema": 1, "source": "ours", "claims": claims}))
    assert "claim FLOPs: 'memory' may mean state" in refused(capsys, "check", str(path))


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("GQA", "gqa"), ("MQA", "mqa"), ("MHA", "self-attention"), ("SHE", "she"),
        ("Self-Attention+Rotary{n=4}", "self-attention+rotary{n=4}"), ("GDN", "gated-deltanet"),
        ("mla{R=16}", "mla{R=16}"),
    ],
)  # fmt: skip
def test_the_name_of_a_mixer_is_read_in_any_case(spelled: str, name: str) -> None:
    assert cm.mixer(spelled) is cm.mixer(name)


@pytest.mark.parametrize("name", ["multi-head-attention", "Transformer", "softmax_attention"])
def test_the_name_of_a_mixer_in_papers_is_answered_with_the_mixer(
    name: str, capsys: Capture
) -> None:
    said = refused(capsys, "table", name)
    assert said.startswith(f"unknown mixer '{name}'; did you mean 'self-attention'? ")


def test_every_word_means_a_figure() -> None:
    assert {name for means in WORDS.values() for name in means} <= {*FIGURES}
    assert not {word.replace("-", "_") for word in (*WORDS, *MEASURED)} & {*FIGURES}
    assert all(meant(word) == name for word, name in ONE.items())
