"""Does Parquet hold what CSV holds, with numbers as numbers?"""

from __future__ import annotations

import csv
import io
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import cli
from tests.typed import Capture, printed, refused

pytest.importorskip("pyarrow", reason="needs pip install costmodel[dataframes]")

COMMANDS = (
    "table --l 8,16 --d 16",
    "table self-attention mega --symbolic --columns mixer,total,ratio",
    "table she --l 1099511627776 --d 1048576 --columns total,state,critical_path",
    "list",
    "model gpt-2 --l 8",
    "crossover self-attention linear-attention --d 16",
    "table --from tests/recorded.jsonl",
)


def frame(path: Path, line: str, capsys: Capture) -> dict[str, list[object]]:
    from pyarrow import parquet

    assert cli.run([*line.split(), "--format", "parquet", "-o", str(path)]) == 0
    assert capsys.readouterr() == ("", f"wrote {path}\n")
    found: dict[str, list[object]] = parquet.read_table(path).to_pydict()
    return found


@pytest.mark.parametrize("line", COMMANDS)
def test_parquet_has_the_rows_of_csv(line: str, tmp_path: Path, capsys: Capture) -> None:
    found = frame(tmp_path / "table.parquet", line, capsys)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *line.split(), "--format", "csv"))))
    assert list(found) == list(rows[0])
    for name, values in found.items():
        assert len({type(value) for value in values if value is not None}) <= 1, name
        for value, row in zip(values, rows, strict=True):
            text = row[name].removeprefix("'")
            if value is None or isinstance(value, str):
                assert (value or "") == text
            else:
                assert isinstance(value, int | float) and value == pytest.approx(
                    float(Fraction(text)), rel=1e-15
                )


def test_counts_are_whole_numbers_and_ratios_numbers(tmp_path: Path, capsys: Capture) -> None:
    found = frame(tmp_path / "t.parquet", COMMANDS[0], capsys)
    assert all(isinstance(value, int) for value in found["total"])
    assert all(isinstance(value, float) for value in found["ratio"])
    large = frame(tmp_path / "large.parquet", COMMANDS[2], capsys)
    assert isinstance(large["total"][0], str) and int(str(large["total"][0])) > 2**63


def test_parquet_needs_a_file(tmp_path: Path, capsys: Capture) -> None:
    said = refused(capsys, "table", "--format", "parquet")
    assert said == "--format parquet cannot be printed as text: name a file, -o FILE.parquet"
    path = tmp_path / "there.parquet"
    path.write_text("mine")
    words = ("table", "--format", "parquet", "-o", str(path))
    assert "exists already" in refused(capsys, *words) and path.read_text() == "mine"
    assert "expected one of" in refused(capsys, "explain", "she", "--format", "parquet")


def test_parquet_without_pyarrow_names_what_to_install(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "t.parquet"
    assert cli.run(["table", "--format", "parquet", "-o", str(path)]) == 1
    needs = "pyarrow, which is not installed (pip install 'costmodel[dataframes]')"
    assert capsys.readouterr() == ("", f"costmodel: table needs {needs}\n")
    assert not list(tmp_path.iterdir())
