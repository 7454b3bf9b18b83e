"""Does verification catch every error seeded into Chen's Table 3, and nothing else?"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel.claims.published import check, unrecorded, verify
from costmodel.claims.records import load
from costmodel.data import data_dir
from costmodel.language.formula_text import parse

Cell = dict[str, Any]

TABLE: dict[str, Any] = json.loads((data_dir("published") / "chen-2023-v1.json").read_text("utf-8"))
CELLS: list[Cell] = [c for c in TABLE["claims"] if c["id"].startswith("v1.T3.") and "formula" in c]


def test_the_table_itself_is_right() -> None:
    """Ten results and seven sums; the sum of the Extractor's additions is garbled in the text."""
    claims: dict[str, Any] = {c.id: c for c in load(data_dir("published") / "chen-2023-v1.json")}
    assert len(CELLS) == 17
    assert {check(claims[cell["id"]]).verdict for cell in CELLS} == {"agrees"}


def signs(text: str) -> Iterator[str]:
    """Every sign turned round, one at a time."""
    for match in re.finditer(r" [-+] ", text):
        turned = " - " if match[0] == " + " else " + "
        yield text[: match.start()] + turned + text[match.end() :]


def numbers(text: str) -> Iterator[str]:
    """Every coefficient and exponent raised by one, one at a time."""
    for match in re.finditer(r"\d+", text):
        yield text[: match.start()] + str(int(match[0]) + 1) + text[match.end() :]


def letters(text: str) -> Iterator[str]:
    """Every size replaced by another one, one at a time."""
    for match in re.finditer(r"(?<![\w])[dln](?!\w)", text):
        other = {"d": "l", "l": "d", "n": "d"}[match[0]]
        yield text[: match.start()] + other + text[match.end() :]


def dropped(text: str) -> Iterator[str]:
    """Every term after the first left out, one at a time."""
    for match in re.finditer(r" [-+] [\w*/]+(?=$| )", text):
        yield text[: match.start()] + text[match.end() :]


OTHERWISE = {
    ("v1.T3.extractor.add", "1/2*l**2*d**2 + 5/2*l*d**2"): ("mac",),
    ("v1.T3.self-attention.div", "n*l**2"): ("strict", "dense", "scale=mul"),
}
"""What another convention makes right: sums of R terms take R additions; every score is normalised,
masked ones too, and none divided."""

WAYS: dict[str, Callable[[str], Iterator[str]]] = {
    "sign": signs, "number": numbers, "letter": letters, "dropped term": dropped,
}  # fmt: skip


def changed(text: str, way: str) -> list[str]:
    """What a formula becomes in one way, another polynomial every time."""
    own = parse(text).poly()
    return [new for new in dict.fromkeys(WAYS[way](text)) if parse(new).poly() != own]


def doctored(folder: Path, errors: dict[str, str]) -> Path:
    """Table 3 with other formulas in some cells."""
    cells = [{**cell, "formula": errors.get(cell["id"], cell["formula"])} for cell in CELLS]
    path = folder / "doctored.json"
    path.write_text(json.dumps({**TABLE, "claims": cells}), encoding="utf-8")
    return path


def seeded(seed: int) -> dict[str, str]:
    """Three cells, each with an error of another way, chosen by a seed."""
    chosen = random.Random(seed)
    found: dict[str, str] = {}
    for way in chosen.sample(sorted(WAYS), 3):
        choices = [
            (cell["id"], new)
            for cell in CELLS
            if cell["id"] not in found
            for new in changed(cell["formula"], way)
        ]
        name, new = chosen.choice(choices)
        found[name] = new
    return found


@pytest.mark.grid(3)
@pytest.mark.parametrize("seed", range(12))
def test_three_seeded_errors_are_caught_exactly(seed: int, tmp_path: Path) -> None:
    errors = seeded(seed)
    assert len(errors) == 3
    found = verify([doctored(tmp_path, errors)])
    assert {v.id for v in found if v.verdict != "agrees"} == set(errors)
    assert {v.id for v in unrecorded(found)} == set(errors) - {
        n for n, _ in OTHERWISE.keys() & errors.items()
    }
    for verdict in found:
        if verdict.id in errors:
            assert verdict.there["derived"] != verdict.there["claimed"]


@pytest.mark.parametrize("way", WAYS)
def test_every_error_of_a_way_is_caught(way: str) -> None:
    """Cell by cell: none is taken for a way of counting that it is not."""
    claims: dict[str, Any] = {c.id: c for c in load(data_dir("published") / "chen-2023-v1.json")}
    results = [cell for cell in CELLS if not cell["id"].endswith(".sum")]
    tried = [(cell["id"], new) for cell in results for new in changed(cell["formula"], way)]
    assert len(tried) >= 5
    for name, new in tried:
        verdict = check(replace(claims[name], formula=new))
        if names := OTHERWISE.get((name, new)):
            assert (verdict.verdict, verdict.conventions) == ("agrees-under", names)
        else:
            assert verdict.verdict == "disagrees", (name, new, verdict.conventions)


def test_the_commands_fail_for_a_doctored_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(doctored(tmp_path, seeded(1)))
    assert cli.run(["verify", path, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["summary"]["unrecorded"] == 3
    assert cli.run(["check", path, "--strict", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["claims"]
    wrong = [c for c in found if c["verdict"] == "disagrees"]
    assert len(wrong) == 3 and all(c["at_counterexample"]["instrumented"] for c in wrong)
    for claim in wrong:
        there = claim["at_counterexample"]
        assert there["instrumented"] == there["derived"] != there["claimed"]
