"""Does `table --from` show records beside the costs and the ratios that follow from equations?"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import costmodel as cm
from costmodel.questions.registry import FIGURES
from profiler.reconcile.table import COLUMNS, READ
from profiler.records.measurement import Measurement
from profiler.records.quantities import QUANTITIES
from profiler.records.store import append
from tests.recorded import latency, reading, recorded
from tests.typed import Capture, printed, refused

SIZES = {"b": 1, "l": 8, "d": 16}
HEADS = {**SIZES, "n": 2}


def timed(seconds: float, **details: Any) -> dict[str, Any]:
    return {"latency": latency(seconds, seconds, seconds, **details)}


def runs(**more: Any) -> list[Measurement]:
    """Two implementations of self-attention, one of ME, one of them with energy."""
    energy = {"energy": reading("energy", 0.25, "J")}
    return [
        recorded("self-attention", "explicit", HEADS, readings=timed(4e-5) | energy),
        recorded("self-attention", "sdpa", HEADS, readings=timed(2e-5)),
        recorded("me", "toeplitz", SIZES, readings=timed(1e-5, **more)),
    ]


def written(path: Path, records: Sequence[Measurement]) -> str:
    for number, record in enumerate(records):
        append(path, replace(record, id=f"record {number}"))
    return str(path)


def rows(capsys: Capture, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv"))))


def test_a_record_stands_beside_its_costs_and_both_ratios(tmp_path: Path, capsys: Capture) -> None:
    file = written(tmp_path / "runs.jsonl", runs())
    asked = "mixer,implementation,time,energy,total,parameters,traffic,latency_ratio,ratio"
    found = rows(capsys, "table", "--from", file, "--columns", asked)
    names = [(row["mixer"], row["implementation"]) for row in found]
    assert names == [(r.mixer, r.implementation) for r in runs()]
    assert [row["latency_s"] for row in found] == ["4e-05", "2e-05", "1e-05"]
    assert [row["energy_J"] for row in found] == ["0.25", "", ""]
    assert [float(row["latency_ratio"]) for row in found] == [2, 1, 0.5]
    own, base = (
        cm.count(cm.mixer("me")).at(l=8, d=16).total,
        cm.count(cm.mixer("self-attention")).at(l=8, d=16, n=2).total,
    )
    assert [int(row["total"]) for row in found] == [base, base, own]
    assert [Fraction(row["ratio"]) for row in found] == [1, 1, Fraction(own, base)]
    moved = cm.traffic(cm.mixer("me")).at(l=8, d=16)["compulsory"]
    assert found[2]["traffic"] == str(moved)
    assert all(row["l"] == "8" and row["machine"] for row in found)
    assert "energy_J: " in found[1]["reasons"] and "energy_J: " not in found[0]["reasons"]


def test_the_usual_columns_are_printed_and_what_all_rows_share_once(
    tmp_path: Path, capsys: Capture
) -> None:
    file = written(tmp_path / "runs.jsonl", runs())
    out = printed(capsys, "table", "--from", file)
    assert "l = 8, d = 16" in out.splitlines()[0]
    assert "40 µs" in out and "energy, gross" in out
    data = json.loads(printed(capsys, "table", "--from", file, "--format", "json"))["rows"]
    assert {row["l"] for row in data} == {8} and [row["n"] for row in data] == [2, 2, None]
    for format_ in ("markdown", "latex"):
        assert "toeplitz" in printed(capsys, "table", "--from", file, "--format", format_)


def test_ratios_of_estimates_say_so(tmp_path: Path, capsys: Capture) -> None:
    file = written(tmp_path / "runs.jsonl", runs(grade="busy", ci_low=7e-6, ci_high=3e-5))
    out = printed(capsys, "table", "--from", file)
    assert out.count("of an estimate") == 1 and "0.5 (3)" in out
    names = [f"latency_{what}" for what in ("ci_low_s", "ci_high_s", "grade", "ratio_grade")]
    busy = ["7e-06", "3e-05", "busy", "busy"]
    expected = [["", "", "quiet", "quiet"], ["", "", "quiet", "quiet"], busy]
    header, *told = csv.reader(
        printed(capsys, "table", "--from", file, "--format", "csv").split("\n")
    )
    energy = ["energy_ci_low_J", "energy_ci_high_J", "energy_grade", "energy_ratio_grade"]
    assert header[header.index("reasons") + 1 :] == [*names, *energy]
    found = [dict(zip(header, line, strict=True)) for line in told if line]
    assert [[row[name] for name in names] for row in found] == expected
    few = "latency_ci_low_s latency_ci_high_s"
    assert [few in row["reasons"] for row in found] == [True, True, False]
    data = json.loads(printed(capsys, "table", "--from", file, "--format", "json"))["rows"]
    assert [data[2][name] for name in names] == [7e-6, 3e-5, "busy", "busy"]
    assert [data[k]["energy_grade"] for k in range(3)] == ["quiet", None, None]


def test_a_failed_call_gives_its_own_reason(tmp_path: Path, capsys: Capture) -> None:
    why = "net module (fp32): the call failed: boom at l=8"
    failed = recorded(
        "me",
        "toeplitz",
        SIZES | {"l": 3},
        reasons={"measurement": why},
        failure={"kind": "call failed"},
    )
    file = written(tmp_path / "runs.jsonl", [*runs(), failed])
    assert why in printed(capsys, "table", "--from", file)
    (*_, last) = rows(capsys, "table", "--from", file, "--columns", "time,memory,total")
    assert last["reasons"] == f"latency_s peak_memory_bytes: {why}"


def test_measured_ratios_stay_within_machine_round_and_sizes(
    tmp_path: Path, capsys: Capture
) -> None:
    first = runs()
    others = [
        recorded("me", "toeplitz", {**SIZES, "l": 16}, readings=timed(1e-5)),
        recorded("me", "toeplitz", SIZES, readings=timed(1e-5), sweep={"round": 1}),
        recorded("me", "toeplitz", SIZES, readings=timed(1e-5), environment={"cpu": "another"}),
        recorded("me", "toeplitz", SIZES, readings=timed(1e-5), dtype="bf16"),
    ]
    file = written(tmp_path / "runs.jsonl", [*first, *others])
    found = rows(capsys, "table", "--from", file, "me", "--columns", "machine,latency_ratio,ratio")
    with_ratio = [row for row in found if row["latency_ratio"]]
    assert len(found) == 5 and len(with_ratio) == 1 and all(row["ratio"] for row in found)
    assert sum("self-attention was not measured" in row["reasons"] for row in found) == 4
    assert len({row["machine"] for row in found}) == 2


def test_records_are_chosen_by_mixer_and_phase_and_sorted(tmp_path: Path, capsys: Capture) -> None:
    token = recorded("me", "toeplitz", {**SIZES, "t": 8}, phase="inference", readings=timed(3e-6))
    file = written(tmp_path / "runs.jsonl", [*runs(), token])
    asked = ("table", "--from", file, "--sort=-time")
    assert [row["latency_s"] for row in rows(capsys, *asked)] == [
        "4e-05",
        "2e-05",
        "1e-05",
        "3e-06",
    ]
    assert [row["phase"] for row in rows(capsys, *asked, "ME")] == ["training", "inference"]
    (only,) = rows(capsys, *asked, "--phase", "inference")
    assert (only["mixer"], only["t"]) == ("me", "8")
    assert refused(capsys, *asked, "she") == (
        "no record has these mixers and phases: the records have self-attention (training), "
        "me (training), me (inference)"
    )


def test_a_record_without_equations_keeps_what_was_measured(
    tmp_path: Path, capsys: Capture
) -> None:
    strange = [
        recorded("net.py:Net", "module", SIZES, form="", readings=timed(1e-5)),
        recorded("nothing", "direct", SIZES, readings=timed(2e-5)),
        recorded("me", "toeplitz", SIZES, form="lost", readings=timed(3e-5)),
        recorded("self-attention", "explicit", {**SIZES, "n": 3}, readings=timed(4e-5)),
        recorded("self-attention", "explicit", SIZES, readings=timed(5e-5)),
        recorded("me", "toeplitz", SIZES, dtype="tf32", readings=timed(6e-5)),
    ]
    file = written(tmp_path / "runs.jsonl", strange)
    found = rows(capsys, "table", "--from", file, "--columns", "time,total,traffic")
    assert [row["latency_s"] for row in found] == [f"{k}e-05" for k in range(1, 7)]
    said = (
        "has no equations", "unknown mixer 'nothing'", "me has no form 'lost'", "d/n to be whole",
        "the record has no size n", "unknown dtype 'tf32'",
    )  # fmt: skip
    assert all(not row["total"] for row in found)
    assert [why in row["reasons"] for row, why in zip(found, said, strict=True)] == [True] * 6


def test_every_column_can_be_shown(tmp_path: Path, capsys: Capture) -> None:
    file = written(tmp_path / "runs.jsonl", runs())
    every = ",".join((*COLUMNS, "l", "n"))
    assert len(rows(capsys, "table", "--from", file, "--columns", every)) == 3
    assert printed(capsys, "table", "--from", file, "--columns", every)
    assert {each.reading for each in READ.values()} == QUANTITIES.keys()
    assert not READ.keys() & FIGURES.keys()


REFUSED = {
    "--l 8": "--from FILE reads sizes and options from FILE: leave out --l",
    "--dtype bf16 --all": "leave out --all, --dtype",
    "--columns tempo": "unknown column 'tempo': the columns are machine, mixer, implementation",
    "--columns latencies": "unknown column 'latencies'; did you mean 'latency_s'? The columns",
    "--columns ,": "no column is named: choose from machine, mixer",
    "--columns bytes": "'bytes' may mean traffic",
    "--sort tempo": "unknown column 'tempo'",
    "--format latex --label a}b": "a}b",
    "--format parquet": "cannot be printed as text: name a file, -o FILE.parquet",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_table_of_records_cannot_show_is_refused(
    words: str, tmp_path: Path, capsys: Capture
) -> None:
    file = written(tmp_path / "runs.jsonl", runs())
    assert REFUSED[words] in refused(capsys, "table", "--from", file, *words.split())


def test_a_file_without_records_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("empty.jsonl", "absent.jsonl"):
        assert name in refused(capsys, "table", "--from", str(tmp_path / name))
    said = refused(capsys, "table", "she", "--own", "she.py")
    assert said == (
        "--own is for --from FILE.jsonl: leave it out, and name a mixer of your own as FILE.py:NAME"
    )


def test_a_line_that_is_no_record_is_told_beside_the_table(tmp_path: Path, capsys: Capture) -> None:
    import cli

    file = written(tmp_path / "runs.jsonl", runs())
    with Path(file).open("a") as more:
        more.write("no record\n")
    assert cli.run(["table", "--from", file]) == 1
    out, err = capsys.readouterr()
    assert "toeplitz" in out and "line 4 is not valid JSON and was skipped" in err
