"""Does the generated page equal the printed output, and show every record?"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import cli
from costmodel.claims import published as claims_of_files
from costmodel.claims.published import published_files, verify
from costmodel.claims.records import load
from costmodel.data import data_dir
from costmodel.report.claims_document import published
from costmodel.report.document import Page
from costmodel.report.formats import write
from tests.stand_ins import Instead

PAGE = Path(__file__).parents[1] / "tables" / "generated" / "verification.md"

COMMAND = "costmodel verify --format markdown"


def test_the_page_and_the_json_are_what_the_commands_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    """One test, so that one process checks the claims of the project, once: the commands differ in
    what they write. The page's command: `costmodel verify --format markdown -o
    tables/generated/verification.md --force`."""
    instead(verify=cache(claims_of_files.verify))
    page, path = PAGE.read_text(encoding="utf-8"), tmp_path / "page.md"
    assert page.startswith(f"<!-- {COMMAND} -->\n")
    assert cli.run(COMMAND.split()[1:]) == 0
    assert capsys.readouterr().out == page
    assert cli.run([*COMMAND.split()[1:], "-o", str(path), "--force"]) == 0
    assert path.read_text(encoding="utf-8") == page
    capsys.readouterr()
    assert cli.run(["verify", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    claims, counted = found["claims"], found["summary"]
    keys = {"source", "place", "quantity", "claimed", "derived", "verdict", "conventions",
            "counterexample", "note"}  # fmt: skip
    assert all(set(claim) >= keys for claim in claims)
    assert counted["claims"] == len(claims) > 0 and counted["unrecorded"] == 0


def test_every_record_has_its_line() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path in published_files():
        about = json.loads(path.read_text(encoding="utf-8"))
        _, found, rest = page.partition(f"### {about['source']}: {about['citation']}\n")
        assert found
        table = rest.partition("\n###")[0]
        rows = [line for line in table.splitlines() if line.startswith("| ")]
        assert len(rows) == len(load(path)) + 2  # header and rule


def test_the_table_of_sources_adds_up() -> None:
    """In the committed page, which the first test holds to the command."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("### Verdicts by source\n\n")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    *sources, together = (
        [cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines
    )
    assert [row[0] for row in sources] == [load(p)[0].source for p in published_files()]
    assert together[0] == "together"
    for column in range(1, len(together)):
        assert int(together[column]) == sum(int(row[column]) for row in sources)


ORDER = {
    "id": "o.1", "place": "Table 1", "kind": "order", "claimed": "O(n^2 d)",
    "mixer": "self-attention", "phase": "training", "quantity": "total", "formula": "l^2*d",
}  # fmt: skip


def test_leading_terms_stand_beside_a_printed_order(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    whole = {**ORDER, "id": "o.2", "formula": "l^2*d + l*d^2"}
    data = {"schema": 1, "source": "a paper", "claims": [ORDER, whole]}
    path.write_text(json.dumps(data), encoding="utf-8")
    found = verify([path])
    lines = write(published(found), "rich", Page()).splitlines()
    lines = lines[lines.index("a paper") + 4 :]
    assert lines[0] == (
        "agrees-in-limit  Table 1: self-attention training total: O(l^2*d) -> derived "
        "O(d**2*l + d*l**2); for l >> d, where d**2*l vanishes beside d*l**2; 8*d**2*l < 2*d*l**2 "
        "iff l > 4*d"
    )
    assert lines[1].startswith("agrees           Table 1")
    assert "-> derived O(d**2*l + d*l**2); the same leading terms" in lines[1]
    assert "| agrees-in-limit | Table 1: " in write(published(found), "markdown", Page())


def test_generated_is_a_folder_of_data() -> None:
    assert data_dir("generated") == PAGE.parent


@pytest.mark.parametrize(
    ("convention", "value", "derived", "apart"),
    [
        ("mac", "36", "derived under mac: 30;", "; the claimed 36 is 20 % more |"),
        ("strict", "15", "derived 20;", "; the claimed 15 is 25 % less |"),
    ],
)
def test_a_number_names_its_convention_and_how_far_it_is_off(
    convention: str, value: str, derived: str, apart: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """ME at l = 2 and d = 5: sums of one and of two terms in each channel."""
    claim = {"id": "own.total", "place": "Table 1", "kind": "number", "claimed": "the total",
             "mixer": "me", "phase": "training", "quantity": "total", "sizes": {"l": 2, "d": 5},
             "value": value}  # fmt: skip
    file = {"schema": 1, "source": "own", "citation": "Own", "read_from": "the table",
            "convention": [convention], "convention_note": "", "claims": [claim]}  # fmt: skip
    path = tmp_path / "own.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    cli.run(["verify", str(path), "--format", "markdown"])
    printed = capsys.readouterr().out
    assert derived in printed and apart in printed
