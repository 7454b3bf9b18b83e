"""Are claims read from TOML, JSON and a command line, and is a wrong one refused in a sentence?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.claims.line import claims_of
from costmodel.claims.records import KINDS, TYPES, keys_of, load
from costmodel.data import data_dir
from costmodel.errors import PublishedError

PAPER = """schema = 1
source = "a paper"
citation = "N. N.: A paper. 2024"

[[claims]]
id = "t1.mul"
place = "Table 1"
kind = "formula"
claimed = "$4ld^2 + 2l^2d$"
mixer = "self-attention"
phase = "training"
quantity = "mul"
formula = "4*l*d^2 + 2*l^2*d"

[[claims]]
id = "t1.total"
place = "Table 1"
kind = "order"
claimed = "$O(l^2 d)$"
mixer = "self-attention"
phase = "training"
quantity = "total"
formula = "l^2*d"
convention = ["mac"]
sizes = { n = [1, 8] }
"""


def paper(folder: Path, *changes: tuple[str, str]) -> Path:
    """The paper with each first text, which must occur in it, replaced by the second."""
    text = PAPER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "paper.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_toml_and_json_are_the_same(tmp_path: Path) -> None:
    import tomllib

    other = tmp_path / "paper.json"
    other.write_text(json.dumps(tomllib.loads(PAPER)), encoding="utf-8")
    found: list[Any] = [*load(paper(tmp_path))]
    assert found == load(other)
    assert found[0].formula == "4*l*d^2 + 2*l^2*d" and found[0].convention == ("strict",)
    assert found[0].citation == "N. N.: A paper. 2024"
    assert found[1].convention == ("mac",) and found[1].sizes == {"n": [1, 8]}


BAD = {
    "cut off": (('formula = "l^2*d"', 'formula = "l^2'), "not a readable file of claims"),
    "no schema": (("schema = 1", "schema = 2"), "'schema' must be 1, got 2"),
    "no source": (('source = "a paper"', ""), "'source' must name the paper"),
    "citation": (
        ('citation = "N. N.: A paper. 2024"', "citation = 3"),
        "'citation' must be a string",
    ),
    "missing": (('place = "Table 1"\n', ""), "claim t1.mul lacks place: every claim needs these"),
    "no formula": (('formula = "4*l*d^2 + 2*l^2*d"', ""), "a claim of kind formula needs formula"),
    "no mixer": (('mixer = "self-attention"', ""), "kind formula needs mixer or model"),
    "bad formula": (("4*l*d^2 +", "4*l*d^2"), "expected an operator or the end at character 9"),
    "log in a count": (("4*l*d^2", "l*log(l)"), "log and sqrt may stand in O(...) only"),
    "unknown kind": (
        ('kind = "formula"', 'kind = "guess"'),
        "kind 'guess': expected one of formula",
    ),
    "unknown key": (('claimed = "$4', 'colour = "red"\nclaimed = "$4'), "unknown key colour"),
    "list": (('["mac"]', '"mac"'), "'convention' must be a list, got 'mac'"),
    "list of numbers": (('["mac"]', "[1]"), "'convention' must be a list of strings, got [1]"),
    "convention": (('["mac"]', '["mak"]'), "unknown convention 'mak'; did you mean 'mac'?"),
    "convention's value": (
        ('["mac"]', '["loss=mse"]'),
        "'loss=mse'; did you mean 'loss=squared-error' or 'loss=cross-entropy'?",
    ),
    "convention's word": (('["mac"]', '["mask"]'), "'mask'; did you mean 'mask=add'?"),
    "phase": (
        ('"training"\nquantity = "mul"', '"fwd"\nquantity = "parameters"'),
        "unknown phase 'fwd': did you mean 'forward'? expected one of training",
    ),
    "phase without it": (
        ('"training"\nquantity = "mul"', '"backward"\nquantity = "state"'),
        "'state' has no phase backward: expected inference",
    ),
    "relation": (('"4*l*d^2', '"<= 4*l*d^2'), "character 1: a formula has no sign <: leave it out"),
    "sign of growth": (
        ('formula = "l^2*d"', 'formula = "O(l^2*d)"'),
        "a claim of kind order has what stands in O(...): write 'l^2*d'",
    ),
    "size": (("[1, 8]", "[1, 2.5]"), "size n must be a positive integer, got 2.5"),
    "letter": (("{ n =", "{ z9 ="), "unknown size 'z9'"),
    "growing": (
        ('"mul"', '"mul"\ngrowing = { B = "l" }'),
        "'growing' is for a claim of kind order",
    ),
    "growing letter": (("sizes = { n = [1, 8] }", 'growing = { z9 = "l" }'), "unknown size 'z9'"),
    "growing text": (
        ("sizes = { n = [1, 8] }", "growing = { B = 2 }"),
        "'growing' must give a string for each size, got B = 2",
    ),
}


@pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_sentence(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(PublishedError) as caught:
        load(paper(tmp_path, change))
    assert said in str(caught.value) and "paper.toml" in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_all_bad_keys_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """A line for each claim."""
    wrong = ('claimed = "$4', 'colour = "red"\nletter = "l"\nclaimed = 4\nx = "$4')
    with pytest.raises(PublishedError) as caught:
        load(paper(tmp_path, wrong, ('["mac"]', '"mac"')))
    first, second = str(caught.value).splitlines()
    assert "claim t1.mul: 'letter' is for a claim of kind interval: leave out the key; " in first
    assert (
        "'claimed' must be a string, got 4, a number: write \"4\"; unknown key colour, x" in first
    )
    assert second.endswith("'convention' must be a list, got 'mac'")
    with pytest.raises(PublishedError, match="'schema' must be 1, got 2; 'source' must name"):
        load(paper(tmp_path, ("schema = 1", "schema = 2"), ('source = "a paper"', "")))
    with pytest.raises(PublishedError, match=r"lacks place: every claim .*; unknown key where"):
        load(paper(tmp_path, ("place =", "where =")))


def test_a_deeply_nested_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000, encoding="utf-8")
    with pytest.raises(PublishedError, match="not a readable file of claims"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PublishedError, match="not a readable file of claims"):
        load(path)


@pytest.mark.parametrize(("text", "said"), [(b" \n", "is empty"), (b"ab\xff", "byte 3 of the fil")])
def test_a_file_without_text_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "paper.json").write_bytes(text)
    with pytest.raises(PublishedError, match=said):
        load(tmp_path / "paper.json")


def test_every_kind_and_every_key_has_its_description() -> None:
    readme = (data_dir("published") / "README.md").read_text(encoding="utf-8")
    keys = set().union(*map(keys_of, KINDS.values()))
    assert [key for key in sorted(keys) if f"`{key}`" not in readme] == []
    assert [kind for kind in KINDS if f"`{kind}`" not in readme] == []
    assert keys <= set(TYPES)


def test_lines_become_claims() -> None:
    lines = (
        "mul = 4*l*d^2 + 2*l^2*d",
        "total = O(l^2*d)",
        "critical path = mul - sum - mul",
        "state = 2*t*d",
        "parameters = 2*d*d + 2*d^2 = 4*d^2",
        "path-length=O(log(l, k))",
    )
    found: list[Any] = [*claims_of(lines, "self-attention", "training", "direct", ("mac", "dense"))]
    assert [c.kind for c in found] == ["formula", "order", "path", "formula", "formula", "order"]
    assert [c.quantity for c in found] == [
        "mul", "total", "critical_path", "state", "parameters", "path_length",
    ]  # fmt: skip
    assert [c.phase for c in found] == ["training"] * 3 + ["inference", "", ""]
    assert found[1].formula == "l^2*d" and found[5].formula == "log(l, k)"
    assert (found[4].formula, found[4].equals) == ("2*d*d + 2*d^2", "4*d^2")
    assert all(c.convention == ("mac", "dense") and c.form == "direct" for c in found)
    assert [c.claimed for c in found] == list(lines)


BAD_LINES = {
    "mul": "expected QUANTITY = FORMULA, such as 'mul = 4*l*d^2",
    "= 4*l": "expected QUANTITY = FORMULA",
    "mul =": "expected QUANTITY = FORMULA",
    "mul = l = l = l": "expected QUANTITY = FORMULA",
    "tempo = l": "unknown quantity 'tempo': expected one of mul, add, div, exp, other, total",
    "memory = 2*l": "'memory' may mean state (held after t tokens), activations (",
    "mul = 4*l*": "expected a number, a size, a function or '(' at character 5, got the end",
    "mul = 4*l2": "expected an operator or the end at character 4, got '2'",
    "mul = l*log(l)": "log and sqrt may stand in O(...) only",
    "total = O(l": "expected ')' at character 4, got the end",
    "total = O(joy)": "expected a size (b l t d",
    "total = O(l) = O(d)": "O(...) ends the claim",
    "critical path = (mul sum": "is no critical path: expected names of steps",
}


@pytest.mark.parametrize(("line", "said"), BAD_LINES.items())
def test_a_bad_line_is_one_sentence(line: str, said: str) -> None:
    with pytest.raises(PublishedError) as caught:
        claims_of([line], "self-attention", "training")
    assert said in str(caught.value) and line in str(caught.value)
    assert "\n" not in str(caught.value)
