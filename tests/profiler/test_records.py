"""Are records read as data: no code runs, no record counts twice, bad records are left out?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import cli
from costmodel.commands.streams import FAILED
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading
from profiler.records.store import append
from tests.recorded import ATTENTION
from tests.typed import Capture, refused
from tests.user_mixers import WINDOW

MINE = WINDOW.replace("NAME", "window") + "\nopen('imported', 'a').close()\n"

COUNTS = {**ATTENTION.counts, "seed": 0}

NAMED = (
    {"mixer": "mine.py:window"},
    {"mixer": "./mine.py:window"},
    {"mixer": "mine.py"},
    {"mixer": "mine"},
    {"implementation": "mine.py:Window"},
    {"mixer": "mine.py:window", "implementation": "mine.py:Window"},
)

READERS = (
    ("reconcile", "--from", "runs.jsonl"),
    ("scaling", "runs.jsonl"),
    ("plot", "runs.jsonl", "-o", "runs.svg"),
    ("compare", "runs.jsonl", "again.jsonl"),
    ("statement", "--from", "runs.jsonl"),
    ("study", "extractors", "--from", "runs.jsonl"),
    ("study", "thesis-training", "--from", "runs.jsonl"),
    ("merge", "runs.jsonl", "-o", "merged.jsonl"),
)


def grid(**named: str) -> list[Measurement]:
    """Records of a series of lengths, so that growth can be followed."""
    found = []
    for l in (8, 16, 32, 64):
        latency = Reading(
            "latency", l * 1e-6, "s", (l * 1e-6,) * 9,
            {**ATTENTION.readings["latency"].details, "ci_low": l * 1e-6, "ci_high": l * 1e-6},
        )  # fmt: skip
        readings = {**ATTENTION.readings, "latency": latency}
        sizes = {**ATTENTION.sizes, "l": l}
        found.append(
            replace(ATTENTION, id=f"r{l}", sizes=sizes, readings=readings, counts=COUNTS, **named)
        )
    return found


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_no_file_is_run_because_a_record_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    for place, named in enumerate(NAMED):
        for record in grid(**named):
            append(tmp_path / "runs.jsonl", replace(record, id=f"{record.id}-{place}"))
    (tmp_path / "again.jsonl").write_bytes((tmp_path / "runs.jsonl").read_bytes())
    cli.run([*words])
    assert not (tmp_path / "imported").exists()


def test_a_file_is_imported_where_the_command_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    append(tmp_path / "runs.jsonl", replace(grid()[0], implementation="mine.py:Window"))
    words = ("reconcile", "--from", "runs.jsonl")
    assert "allow the code by --own mine.py" in refused(capsys, *words, code=FAILED)
    assert not (tmp_path / "imported").exists()
    said = refused(capsys, *words, "--own", "mine.py", code=FAILED)
    assert (tmp_path / "imported").exists()
    assert "mine.py:Window does not compute self-attention" in said


def test_own_is_for_records(capsys: Capture) -> None:
    assert "--own needs --from FILE" in refused(capsys, "reconcile", "she", "--own", "mine.py")


def test_a_record_that_is_told_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for record in (*grid(), *grid()[:1]):
        append("runs.jsonl", record)
    said = ["runs.jsonl: 1 of 5 records were read before: they count once"]
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "runs.jsonl").read_bytes())
    for more in ((), ("--from", "copy.jsonl")):
        assert cli.run(["statement", "--from", "runs.jsonl", *more]) == 0
        out, err = capsys.readouterr()
        assert "4 runs of" in out
        said += ["copy.jsonl: 5 of 5 records were read before: they count once"] if more else []
        assert err == "".join(f"costmodel: {sentence}\n" for sentence in said)


def test_a_bad_line_is_named_and_the_others_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = [json.dumps(record.to_json()) for record in grid()]
    bad = {
        f'"seed": {"9" * 5000}': "counts.seed is not a finite number",
        '"seed": 12345678901234567890123': "counts.seed: expected a whole number of at most",
        '"seed": 1e999': "counts.seed is not a finite number",
        '"seed": -1': "counts.seed: expected `int` >= 0",
        '"forward": 5': "counts.forward: expected `array`, got `int`",
    }
    lines = [whole[0].replace('"seed": 0', text) for text in bad]
    Path("runs.jsonl").write_text("\n".join([*whole, *lines]) + "\n")
    assert cli.run(["statement", "--from", "runs.jsonl"]) == FAILED
    out, err = capsys.readouterr()
    assert "4 runs of" in out
    for number, (told, why) in enumerate(zip(err.splitlines(), bad.values(), strict=True), start=5):
        skipped = f"line {number} is no measurement and was skipped"
        assert told.startswith(f"costmodel: runs.jsonl: {skipped}: {why}")
