"""Does `costmodel trace` print formulas, and one sentence where it cannot?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import run

FILE = str(Path(__file__).with_name("modules.py"))


def test_formulas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", f"{FILE}:linear", "--over", "l,d"]) == 0
    said = capsys.readouterr().out
    assert "2d²l" in said
    assert "torch's own decompositions" in said
    assert "l=1021" in said
    assert "FlopCounterMode prints" in said


def test_json_of_a_trace_has_formulas_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["trace", f"{FILE}:attention", "--over", "l,h", "--let", "d=2*h,n=2"]
    assert run([*command, "--format", "json", "--backend", "fused"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["backend"] == "fused"
    assert said["parameters"] == "16*h**2 + 8*h"
    assert said["uncounted"] == [] and said["reasons"] == {}
    assert said["let"] == {"d": "2*h", "n": "2"}
    assert any("without the workspace of kernels" in note for note in said["notes"])


def test_what_has_no_formula_is_null_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", f"{FILE}:AtSquares", "--over", "l,d", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["forward"]["exp"] is None
    assert "breaks at l=" in said["reasons"]["forward exp"]


def test_an_operation_without_a_rule_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", f"{FILE}:Unruled", "--over", "l,d", "--format", "markdown"]) == 0
    said = capsys.readouterr().out
    assert "Dispatched without a counting rule" in said and "aten::polygamma" in said


def test_a_trace_against_a_mixer_explains_every_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = "profiler.mixers.self_attention:ExplicitSelfAttention"
    command = ["trace", module, "--over", "l,h,n", "--let", "d=n*h"]
    assert run([*command, "--against", "self-attention"]) == 0
    said = capsys.readouterr().out
    assert "dense: masked pairs computed" in said
    assert "nothing is unexplained" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([f"{FILE}:Branching", "--over", "l,d"], "depend on the values of its input"),
        ([f"{FILE}:linar", "--over", "l,d"], "did you mean 'linear'?"),
        ([f"{FILE}:linear", "--over", "l,d", "--backend", "x"], "expected one of math, fused"),
        ([f"{FILE}:linear", "--over", "l,d", "--against", "shee"], "unknown mixer 'shee'"),
        ([f"{FILE}:linear", "--over", "l,d", "--against", "self-attention"], "give n"),
        ([f"{FILE}:linear", "--over", "l,d", "--format", "x"], "expected one of rich"),
    ],
)
def test_a_bad_trace_is_refused_in_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
