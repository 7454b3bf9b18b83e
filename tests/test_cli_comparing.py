"""Do compare, doctor and statement print their findings, and report a failure in one sentence?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cli
from costmodel.commands.streams import FAILED, MISUSED
from profiler.doctor import findings
from profiler.host.children import ChildExit
from profiler.host.probes import NO, YES, MachineFinding, Surroundings
from profiler.records.store import read
from tests.recorded import RUNS
from tests.stand_ins import Instead
from tests.typed import Capture, printed, refused

pytestmark = pytest.mark.usefixtures("undisturbed")

SMALL = ("--d", "4", "--l", "3", "--n", "2", "--device", "cpu")
RECORDED = str(RUNS)


# compare


def test_compare_keeps_rounds_that_can_be_compared_again(tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "rounds.jsonl")
    words = (
        "compare",
        "me:fft",
        "me:toeplitz",
        "--rounds",
        "6",
        "--processes",
        "1",
        "--seed",
        "3",
        "-o",
        path,
    )
    first = json.loads(printed(capsys, *words, *SMALL, "--format", "json"))
    again = json.loads(printed(capsys, "compare", path, "--format", "json"))
    assert again["rows"] == [row for row in first["rows"] if row["quantity"] != "energy"]
    assert first["rows"][0]["pairs"] == 6
    commands = {record.environment["command"] for record in read(path)[0]}
    assert len(read(path)[0]) == 2 and len(commands) == 1
    assert commands.pop().startswith(
        "costmodel compare me:fft me:toeplitz --rounds 6 --processes 1 --seed 3"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("she:conv", "she:direct", "--rounds", "5", "--processes", "1"),
            "5 rounds are too few to show a difference",
        ),
        (("she:conv", "she:direct", "--processes", "3"), "3 processes are too few to show a"),
        (("she:conv", "me", "--l", "3,5"), "compare takes one value of each size"),
        (("she:conv", "me", "--rounds", "1000000000"), "expected a whole number from 1 to 1000"),
        (("she:conv",), "compare needs two mixers, implementations or dtypes"),
        (("she:conv", RECORDED), "compare files or mixers, not both"),
        ((RECORDED, "--rounds", "9"), "leave out --rounds"),
        ((RECORDED,), "holds no measurements taken in turns"),
        ((RECORDED, RECORDED), "is given twice"),
        (("nowhere.jsonl", RECORDED), "cannot read nowhere.jsonl"),
        (("she", "--level", "2"), "--level 2.0: expected a number from 1e-09"),
        (("she", "he", "--level", "1e-17"), "--level 1e-17: expected a number from 1e-09"),
        (("she", "--phase", "both"), "compare takes one phase"),
        (("shee", "me"), "did you mean 'she'"),
        (("she", "--energy-window", "0.1"), "--energy-window 0.1: expected 2 s or more"),
        (("she", "--energy-trials", "7"), "--energy-trials 7: expected an even number"),
        ((RECORDED, "--energy-trials", "8"), "leave out --energy-trials"),
        (("she", "--format", "pdf"), "--format 'pdf': expected one of"),
    ],
)
def test_compare_refuses_in_a_sentence(capsys: Capture, words: tuple[str, ...], said: str) -> None:
    assert said in refused(capsys, "compare", *words)


def test_compare_tells_cut_off_lines_and_fails(tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other.jsonl"
    later = Path(RECORDED).read_text().replace('"id": "', '"id": "later-')
    other.write_text(later + '{"schema"')
    assert cli.run(["compare", RECORDED, str(other)]) == FAILED
    out, err = capsys.readouterr()
    assert "is cut off" in err and "no difference shown" in out
    assert "slower" not in out and "faster" not in out


# doctor


@pytest.fixture
def probes(instead: Instead) -> dict[str, MachineFinding]:
    """What probes find, by name, in place of a look at this machine."""
    told = {"operations": MachineFinding("operations", YES, "counted")}
    instead(found_disturbances=lambda around: [])

    def diagnose(around: Surroundings, **fields: object) -> findings.Diagnosis:
        return findings.Diagnosis(around.device, tuple(told.values()), ())

    instead(diagnose=diagnose)
    return told


def test_doctor_fails_only_where_it_is_asked_to(
    capsys: Capture, probes: dict[str, MachineFinding]
) -> None:
    printed(capsys, "doctor", "--device", "cpu", "--strict")
    probes["energy"] = MachineFinding("energy", NO, "no sensor", "pip install nvidia-ml-py")
    assert "pip install nvidia-ml-py" in printed(capsys, "doctor", "--device", "cpu")
    printed(capsys, "doctor", "--device", "cpu", "--strict", code=FAILED)


def test_doctor_looks_at_this_machine(capsys: Capture, instead: Instead) -> None:
    instead(run_child=lambda *_: ChildExit(0))
    words = ("doctor", "--device", "cpu", "--quick", "--format", "json")
    found = json.loads(printed(capsys, *words))
    assert [each["what"] for each in found["measures"]] == list(findings.PROBES)
    verdicts = {each["what"]: each["verdict"] for each in found["measures"]}
    assert verdicts["operations"] == YES and verdicts["compile"] == "not tried"


def test_doctor_refuses_devices_that_are_none(capsys: Capture) -> None:
    assert "unknown device 'gpu'" in refused(capsys, "doctor", "--device", "gpu")
    assert "'mps' is not measured" in refused(capsys, "doctor", "--device", "mps")


def test_doctor_says_why_there_is_no_gpu(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ("doctor", "--device", "cuda:1")
    found = json.loads(printed(capsys, *words, "--format", "json"))
    assert found["device"] == "cuda:1" and not found["healthy"]
    assert [each["what"] for each in found["measures"]] == list(findings.PROBES)
    assert {each["verdict"] for each in found["measures"]} == {NO}
    assert "torch finds no NVIDIA GPU: " in printed(capsys, *words, "--strict", code=FAILED)


# statement


def test_statement_in_each_format(tmp_path: Path, capsys: Capture) -> None:
    plain = printed(capsys, "statement", "--from", RECORDED)
    assert plain.startswith("Compute resources. Measurements ran on a CPU")
    latex = printed(capsys, "statement", "--from", RECORDED, "--format", "latex")
    assert (
        latex.startswith("% costmodel statement --from") and "\\textbf{Compute resources.}" in latex
    )
    path = tmp_path / "statement.md"
    assert cli.run(["statement", "--from", RECORDED, "--format", "markdown", "-o", str(path)]) == 0
    assert path.read_text().startswith("<!-- costmodel statement")
    capsys.readouterr()
    assert "exists already" in refused(
        capsys, "statement", "--from", RECORDED, "--format", "markdown", "-o", str(path)
    )


def test_statement_of_a_cut_off_file_says_what_is_left_and_fails(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(Path(RECORDED).read_text() + '{"schema"')
    assert cli.run(["statement", "--from", str(path)]) == FAILED
    out, err = capsys.readouterr()
    assert "runs of" in out and "is cut off" in err


def test_statement_of_no_record_is_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text("")
    assert "holds no measurement" in refused(capsys, "statement", "--from", str(path))


@pytest.mark.parametrize(
    "words",
    [
        ("statement", "--from", "F", "-o", "F", "--force"),
        ("scaling", "F", "-o", "F", "--force"),
        ("merge", "F", "-o", "F", "--force"),
        ("study", "thesis-training", "--from", "F", "--page", "F", "--force"),
    ],
)
def test_records_are_not_written_over(
    tmp_path: Path, capsys: Capture, words: tuple[str, ...]
) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(Path(RECORDED).read_bytes())
    assert cli.run([str(path) if word == "F" else word for word in words]) == MISUSED
    assert "is an input of this command: write to another file" in capsys.readouterr().err
    assert path.read_bytes() == Path(RECORDED).read_bytes()


def test_a_part_of_a_plan_may_be_empty(tmp_path: Path, capsys: Capture) -> None:
    asked = "sweep me --impl toeplitz --d 4 --l 4 --shard 2/2 --rounds 1 -o"
    assert cli.run([*asked.split(), str(tmp_path / "part.jsonl")]) == 0
    assert "this part of the plan (--shard) holds no point" in capsys.readouterr().err
    assert cli.run([*asked.split(), str(tmp_path / "part.jsonl"), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("mixer,") and printed.out.count("\n") == 1
    assert "this part of the plan (--shard) holds no point" in printed.err


def test_an_unknown_phase_of_a_figure_is_a_sentence(tmp_path: Path, capsys: Capture) -> None:
    assert cli.run(["plot", RECORDED, "--phase", "nope", "-o", str(tmp_path / "a.svg")]) == MISUSED
    assert "--phase 'nope': expected one of" in capsys.readouterr().err
