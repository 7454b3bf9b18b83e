"""Do the stages of the first hour on a GPU run on a machine without a GPU as far as possible?"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import counters_against_nsight, gpu_hour
from benchmarks.gpu_hour import STAGES, Claim, Hour, Stage, claims, main, page
from profiler.hardware.ncu import PERMISSION
from profiler.meters.energy.protocol import EnergyLimits
from tests.profiler import test_energy_gpu


def left(folder: Path, name: str, *values: Any) -> None:
    """A file that a stage left."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(map(json.dumps, values)) + "\n", encoding="utf-8")


def stage(name: str, device: str = "cuda", **found: Any) -> dict[str, Any]:
    """What a stage found."""
    return {"stage": name, "device": device, "seconds": 12.0, "commands": [], **found}


def energy(period_s: float) -> dict[str, Any]:
    """A record of joules whose counter is updated so often."""
    return {
        "device": "cuda:0",
        "readings": {"energy": {"value": 1.0, "details": {"update_period_s": period_s}}},
    }


def verdicts(folder: Path) -> dict[str, str]:
    """Claim -> what the page says of it."""
    rows = [line.split(" | ") for line in page(folder).splitlines() if line.startswith("| ")][1:]
    return {row[0].removeprefix("| ").partition(":")[0]: row[-1].strip(" |") for row in rows}


@pytest.mark.parametrize(("period_s", "verdict"), [(0.1, "held"), (0.02, "refuted")])
def test_a_figure_settles_its_claim(tmp_path: Path, period_s: float, verdict: str) -> None:
    left(tmp_path, "energy.json", stage("energy") | {"tests failing": 0})
    left(tmp_path, "energy.jsonl", energy(period_s), energy(period_s), energy(9.0))
    found = verdicts(tmp_path)
    assert found["counter-period"] == verdict
    assert found["energy-afresh"] == "held"
    assert found["workspace"] == found["gpm"] == "open"


def test_the_other_way_to_counters_is_tried_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its largest difference is read off what the comparison prints; a counter that it lacks
    differs wholly."""
    ours, metrics = {"ffma": 200, "fadd": 10}, {"ffma": "m.sum", "fadd": "a.sum"}
    printed = counters_against_nsight.compared(ours, metrics, {"m.sum": 199.0, "a.sum": 10.0})
    assert printed[-1] == "they differ by at most 0.005000"
    without = counters_against_nsight.compared(ours, metrics, {"m.sum": 200.0})
    assert without[-1] == "they differ by at most 1.000000"
    monkeypatch.setattr(Stage, "why_not", lambda *_: "")
    monkeypatch.setattr(Stage, "run", lambda *_, **__: "\n".join(printed))
    monkeypatch.setattr(Stage, "test", lambda *_: None)
    assert gpu_hour.run(Hour(tmp_path), "counters") == 0
    assert verdicts(tmp_path)["nsight-python"] == "held"


def test_where_the_other_way_fails_the_reason_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(metrics: list[str]) -> None:
        raise RuntimeError(f"no ncu that reads {metrics[0]}")

    ours = SimpleNamespace(executed={"ffma": 200}, metrics={"ffma": "m.sum"})
    monkeypatch.setattr(counters_against_nsight, "obstacle", lambda: None)
    monkeypatch.setattr(counters_against_nsight, "counts_of_call", lambda *_: ours)
    monkeypatch.setattr(counters_against_nsight, "theirs", fails)
    monkeypatch.setattr(counters_against_nsight, "environment", lambda *_: "")
    counters_against_nsight.main()
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "not compared: nsight-python fails: no ncu that reads m.sum"


def test_joules_take_less_than_a_stage_by_their_limits() -> None:
    """Two windows, four readings in turns of one and two loads, one of three, and a short one."""
    window, turns = EnergyLimits(window_s=2.0), test_energy_gpu.LIMITS
    alone = [window, EnergyLimits(window_s=8.0), replace(window, trials=2)]
    together = sum(turns.seconds(candidates=number) for number in (2, 2, 3))
    assert sum(each.seconds() for each in alone) + together < 0.8 * gpu_hour.STAGE_S


def test_figures_of_a_cpu_settle_nothing(tmp_path: Path) -> None:
    left(tmp_path, "energy.json", stage("energy", "cpu") | {"tests failing": 0})
    assert set(verdicts(tmp_path).values()) == {"open"}


def test_a_figure_may_be_one_of_its_record_or_of_another_file(tmp_path: Path) -> None:
    left(tmp_path, "a.jsonl", {"device": "cuda", "x": 6.0, "n": 2, "f": 3.0},
         {"device": "cuda", "x": 12.0}, {"device": "cpu", "x": 99.0})  # fmt: skip
    left(tmp_path, "b.jsonl", {"device": "cuda", "x": 4.0})
    per = Claim("i", "s", "a.jsonl", ("x",), per=(("n",), ("f",)), scale=10.0)
    assert per.figure(tmp_path) == 10.0
    assert Claim("i", "s", "a.jsonl", ("x",), against="b.jsonl").figure(tmp_path) == 9.0 / 4.0
    assert Claim("i", "s", "a.jsonl", ("y",)).figure(tmp_path) is None
    assert Claim("i", "s", "nowhere.jsonl", ("x",)).figure(tmp_path) is None


def test_every_claim_names_a_stage_and_a_condition() -> None:
    found = claims()
    assert len({claim.id for claim in found}) == len(found)
    for claim in found:
        assert claim.least <= claim.most
        if claim.stage.endswith(".json"):
            assert claim.stage.removesuffix(".json") in STAGES
        assert bool(claim.path) == bool(claim.condition)


def test_a_failed_test_and_a_reason_stand_on_the_page(tmp_path: Path) -> None:
    tested: dict[str, Any] = {
        "tests": {"failed": 1, "passed": 7},
        "failed tests": ["FAILED tests/x.py::y"],
    }
    tested |= {"tests failing": 1}
    left(tmp_path, "numbers.json", stage("numbers") | tested)
    left(tmp_path, "counters.json", stage("counters", reason="the driver refuses counters"))
    said = page(tmp_path)
    assert "tests: 1 failed, 7 passed" in said and "FAILED tests/x.py::y" in said
    assert "the driver refuses counters" in said and "**studies**: not run" in said
    assert verdicts(tmp_path)["tests"] == "refuted"


@pytest.mark.parametrize(
    ("said", "code", "failing"),
    [
        ("5 passed, 2 skipped", 0, 0), ("1 failed, 4 passed, 2 errors", 1, 3),
        ("7 skipped", 0, None), ("", 5, None), ("3 passed", 124, None),
    ],
)  # fmt: skip
def test_tests_that_did_not_pass_settle_nothing(
    said: str, code: int, failing: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Stage(Hour(tmp_path), "numbers")

    def run(title: str, *words: str) -> str:
        assert [word for word in words if word.startswith("tests/")] == [
            "tests/profiler/test_modules.py"
        ]
        made.found["commands"].append({"title": title, "code": code})
        return f"= {said} in 3s ="

    monkeypatch.setattr(made, "run", run)
    made.test("numbers", ["modules"])
    assert made.found.get("tests failing") == failing


@pytest.mark.grid
def test_all_stages_run_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor has been asked, and the board, the numbers and the studies are done: they are not
    run again."""
    monkeypatch.setattr(gpu_hour, "WHEELS", tmp_path / "none")
    refused = [{"what": what, "verdict": "no", "said": f"no {what} here"}
               for what in ("energy", "hardware counters")]  # fmt: skip
    folder = tmp_path / "hour"
    left(folder, "doctor.json", stage("doctor", "cpu", doctor={"measures": refused}))
    for done in ("board", "numbers", "studies"):
        left(folder, f"{done}.json", stage(done, "cpu"))
    words = ["-o", str(folder), "--device", "cpu", "--small"]
    code = main(words)
    assert code in (0, 1)  # 1: a busy machine leaves points without latencies
    out = capsys.readouterr().out
    assert "energy: not measured: no energy here" in out
    assert "counters: not measured: no hardware counters here" in out
    found = json.loads((folder / "whole.json").read_text())
    assert found.get("unexplained operations") == (None if code else 0)
    assert found["commands"][1]["code"] == 0
    assert (folder / "whole.jsonl").exists()
    if not code:
        assert main(words) == 0  # nothing is left to do
        assert capsys.readouterr().out == page(folder)


def test_nothing_starts_after_the_minutes_and_nothing_measured_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left(tmp_path, "energy.json", stage("energy", "cpu"))
    assert main(["-o", str(tmp_path), "--device", "cpu", "--minutes", "0", "energy"]) == 1
    assert "**energy** on cpu" in capsys.readouterr().out
    late = Stage(Hour(tmp_path, ends=0.0), "energy")
    assert late.run("costmodel profile", "cli.py", "profile") == ""
    assert late.found["commands"][0]["said"] == ["not started: the time is over"]


def answers(monkeypatch: pytest.MonkeyPatch, *said: tuple[int, str]) -> None:
    """Let a stage's commands end with these codes, and print this, one after the other."""
    rest = iter(said)

    def run(made: Stage, title: str, *words: str) -> str:
        code, out = next(rest)
        made.found["commands"].append({"title": title, "code": code, "said": [f"{title} ended"]})
        return out

    monkeypatch.setattr(Stage, "run", run)


def test_a_stage_that_did_not_end_well_goes_on_from_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in STAGES:
        left(tmp_path, f"{name}.json", stage(name))
    cut_off = {"title": "costmodel study", "code": 130}
    left(tmp_path, "studies.json", stage("studies", commands=[cut_off]))
    left(tmp_path, "extractors.jsonl", {"device": "cuda:0"})
    monkeypatch.setattr(gpu_hour, "lacks", list)
    monkeypatch.setattr(gpu_hour, "WHEELS", tmp_path / "none")
    for code in (1, 0):
        answers(monkeypatch, (0, ""), (code, ""))
        assert main(["-o", str(tmp_path)]) == code
        assert (tmp_path / "extractors.jsonl").exists()
    answers(monkeypatch)
    assert main(["-o", str(tmp_path)]) == 0  # all is done
    answers(monkeypatch, (0, ""), (0, ""))
    assert main(["-o", str(tmp_path), "studies"]) == 0
    assert not (tmp_path / "extractors.jsonl").exists()


def test_what_another_device_left_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are kept beside those of the device that is asked for."""
    refused = {"measures": [{"what": "energy", "verdict": "no", "said": "no counter"}]}
    left(tmp_path, "doctor.json", stage("doctor", "cpu", doctor=refused))
    left(tmp_path, "energy.jsonl", {"device": "cpu"})
    hour = Hour(tmp_path)
    assert gpu_hour.done(Hour(tmp_path, "cpu"), "doctor") and not gpu_hour.done(hour, "doctor")
    assert Stage(Hour(tmp_path, "cpu"), "energy").why_not("energy") == "no counter"
    measured = {"measures": [{"what": "energy", "verdict": "yes", "said": "by its counter"}]}
    answers(monkeypatch, (0, json.dumps(measured)))
    made = Stage(hour, "energy")
    assert made.why_not("energy") == ""
    made.records("energy")
    assert [each.name for each in tmp_path.glob("*.jsonl")] == ["energy-cpu.jsonl"]
    Stage(Hour(tmp_path, "cpu"), "energy").records("energy")
    assert [each.name for each in tmp_path.glob("*.jsonl")] == ["energy.jsonl"]


@pytest.mark.parametrize(
    ("answer", "said", "reason", "settled"),
    [
        ("partly", f"opcodes alone: {PERMISSION}", "", "held"),
        ("no", PERMISSION, PERMISSION, "refuted"),
        ("no", "ncu is not on PATH", "ncu is not on PATH", "open"),
    ],
)
def test_what_can_be_measured_in_part_is_measured(
    answer: str, said: str, reason: str, settled: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told = {"measures": [{"what": "hardware counters", "verdict": answer, "said": said}]}
    left(tmp_path, "doctor.json", stage("doctor", doctor=told))
    answers(monkeypatch, *[(0, "")] * 5)
    gpu_hour.run(Hour(tmp_path), "counters")
    left_there = json.loads((tmp_path / "counters.json").read_text())
    assert left_there.get("reason", "") == reason
    assert bool(left_there["commands"]) == (not reason)
    assert verdicts(tmp_path)["source-metrics"] == settled


def test_a_profiler_can_only_slow_points_that_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most points of a process come after another one's session: the median is one of theirs."""
    asked: dict[str, int] = {}

    def cost(made: Stage, *words: str, **variables: str) -> str:
        if down := variables.get("TEARDOWN_CUPTI"):
            asked[down] = words[words.index("--l") + 1].count(",") + 1
        return ""

    monkeypatch.setattr(Stage, "cost", cost)
    monkeypatch.setattr(Stage, "json", lambda *_: None)
    monkeypatch.setattr(Stage, "test", lambda *_: None)
    gpu_hour.run(Hour(tmp_path), "whole")
    assert asked.keys() == {"0", "1"} and min(asked.values()) > 2


def test_what_a_carried_package_needs_is_lacking_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fvcore is carried, and iopath is not; what only some machines need is passed over."""
    needed = {"fvcore": ["numpy", "iopath (>=0.1.7)", 'shapely; extra == "all"'], "numpy": None}

    def requires(name: str) -> list[str] | None:
        if name in ("iopath", "rich"):
            raise metadata.PackageNotFoundError(name)
        return needed.get(name)

    monkeypatch.setattr(metadata, "requires", requires)
    monkeypatch.setattr(gpu_hour, "carried", list)
    assert main(["lacks"]) == 0
    assert capsys.readouterr().out.split() == ["iopath", "rich"]


def test_a_doctor_that_fails_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, (2, ""))
    assert gpu_hour.run(Hour(tmp_path, "foo"), "energy") == 1
    assert "energy: not measured: costmodel doctor ended" in capsys.readouterr().out
    assert not gpu_hour.done(Hour(tmp_path, "foo"), "energy")


@pytest.mark.parametrize(
    ("sweep", "reconcile", "verdict"), [(0, 0, "held"), (130, 0, "open"), (0, 1, "open")]
)
def test_nothing_is_explained_by_a_sweep_that_was_cut_off(
    sweep: int, reconcile: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "test", lambda *_: None)
    monkeypatch.setattr(Stage, "cost", lambda self, *words, **_: self.run(*words))
    ladders = json.dumps({"summary": [{"unexplained": 0}]})
    answers(monkeypatch, (sweep, ""), (reconcile, ladders), *[(1, "")] * 4)
    gpu_hour.run(Hour(tmp_path), "whole")
    assert verdicts(tmp_path)["explained"] == verdict


def test_a_record_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    left(tmp_path, "energy.jsonl", energy(0.1), energy(0.1))
    whole = (tmp_path / "energy.jsonl").read_bytes()
    (tmp_path / "energy.jsonl").write_bytes(whole[: -len(whole) // 3])
    assert verdicts(tmp_path)["counter-period"] == "held"


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hour"
    left(folder, "counters.json", stage("counters"))
    torn = folder / "counters.json"
    torn.write_text(torn.read_text()[:-9])
    for said, words in {
        "no stage nowhere": ["nowhere", "-o", str(tmp_path)],
        "give it a folder": [],
        "page is no stage": ["page", "energy", "-o", str(tmp_path)],
        "cannot make the folder": ["-o", str(torn)],
        "pack which packages?": ["pack"],
        f"{torn} cannot be read": ["-o", str(folder)],
        "name its stage to run it anew": ["page", "-o", str(folder)],
    }.items():
        with pytest.raises(SystemExit) as refused:
            main(words)
        assert refused.value.code == 2
        assert said in capsys.readouterr().err
