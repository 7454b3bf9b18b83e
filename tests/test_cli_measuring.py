"""Do profile, reconcile and check print their findings, and report a failure in one sentence?"""

from __future__ import annotations

import csv
import gc
import importlib
import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TextIO

import pytest
import torch
from msgspec.structs import replace

import cli
from costmodel.commands.options import (
    bar,
)
from costmodel.commands.streams import FAILED, INTERRUPTED, MISUSED
from costmodel.report.formats import formats
from profiler.commands.measuring import settle_objects
from profiler.reconcile.levels import row_classes
from profiler.records.store import append, read
from profiler.sweep import session
from tests.recorded import ATTENTION, LAUNCH_BOUND, dispatch
from tests.stand_ins import Instead
from tests.typed import Capture, printed, refused
from tests.user_mixers import written

pytestmark = pytest.mark.usefixtures("undisturbed")

ROOT = Path(__file__).parents[1]
SMALL = ("--d", "4", "--l", "3", "--n", "2", "--seconds", "0.02", "--device", "cpu")
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


# profile


def test_profile_prints_a_row_for_each_implementation(capsys: Capture) -> None:
    out = printed(capsys, "profile", "self-attention", "me", *SMALL)
    assert out.startswith("Measured: forward pass, on cpu (")
    rows = [tuple(line.split()[:2]) for line in out.splitlines() if " b = 1, l = 3" in line]
    assert rows == [
        ("self-attention", "explicit"), ("self-attention", "sdpa"),
        ("me", "toeplitz"), ("me", "fft"),
    ]  # fmt: skip
    assert "torch did not count in self-attention explicit: " in out


def test_profile_appends_every_record(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "results.jsonl"
    words = ("profile", "me", "--impl", "fft", "-o", str(path), *SMALL)
    printed(capsys, *words, "--phase", "both")
    printed(capsys, *words, "--seed", "7", "--dtype", "fp64", "--b", "2")
    records, problems = read(path)
    assert problems == []
    assert [(r.phase, r.dtype, r.sizes["b"], r.counts["seed"]) for r in records] == [
        ("training", "fp32", 1, 0), ("inference", "fp32", 1, 0), ("training", "fp64", 2, 7),
    ]  # fmt: skip


def test_profile_in_json_and_csv(capsys: Capture) -> None:
    words = ("profile", "we", "--impl", "fft", *SMALL)
    (record,) = json.loads(printed(capsys, *words, "--format", "json"))["measurements"]
    assert (record["mixer"], record["implementation"], record["form"]) == ("we", "fft", "fft")
    rows = list(csv.DictReader(StringIO(printed(capsys, *words, "--format", "csv"))))
    assert {row["reading"] for row in rows} >= {"latency", "peak_memory", "kernels", "energy"}


def test_counts_alone_take_no_time_and_keep_their_bytes(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, instead: Instead
) -> None:
    """Nothing is sampled, no profiler is started, and waiting threads sleep."""
    instead(warm_up=None)
    loaded: list[object] = []

    def loading(name: str, package: str | None = None) -> ModuleType:
        loaded.append((name, os.environ.get("OMP_WAIT_POLICY")))
        return import_module(name, package)

    import_module = importlib.import_module
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    instead(modules_of_measuring=SimpleNamespace(modules={}))
    monkeypatch.setattr(importlib, "import_module", loading)
    words = ("me", "--impl", "toeplitz", "--l", "3", "--d", "2", "--counts-only")
    (record,) = json.loads(printed(capsys, "profile", *words, "--format", "json"))["measurements"]
    assert record["reasons"]["latency"] == "only counts were asked for (--counts-only)"
    assert record["readings"]["peak_memory"]["value"] > 0
    (line,) = json.loads(printed(capsys, "reconcile", *words, "--format", "json"))["summary"]
    assert line["dispatched"] > 0 and line["unexplained"] == 0 == line["unexplained_bytes"]
    assert line["latency_s"] is None and line["peak_memory_bytes"] > 0
    assert loaded.count(("torch", "passive")) == 2 and "OMP_WAIT_POLICY" not in os.environ
    refusal = refused(capsys, "profile", *words, "--processes", "3")
    assert refusal == "--counts-only times nothing: leave out --processes"
    refusal = refused(capsys, "reconcile", *words, "--energy", "--compile")
    assert refusal == "--counts-only times nothing: leave out --energy, --compile"


def test_profile_of_several_sizes_and_dtypes(capsys: Capture) -> None:
    out = printed(
        capsys, "profile", "me", "--impl", "toeplitz", "--l", "2,4", "--d", "2", "--device", "cpu",
        "--dtype", "fp32,fp64", "--seconds", "0.02", "--format", "json",
    )  # fmt: skip
    found = [(m["sizes"]["l"], m["dtype"]) for m in json.loads(out)["measurements"]]
    assert found == [(2, "fp32"), (2, "fp64"), (4, "fp32"), (4, "fp64")]


def test_what_one_dtype_lacks_does_not_stop_the_others(capsys: Capture) -> None:
    words = ("profile", "we", "--impl", "fft", "--dtype", "bf16,fp32", *SMALL)
    assert cli.run(list(words)) == FAILED
    out, err = capsys.readouterr()
    why = "we fft (bf16): torch.fft has no transform in torch.bfloat16 on cpu"
    assert " fp32 " in out and f") {why}\n" in out
    assert err == f"costmodel: {why}\n"


def test_what_is_asked_of_energy_is_kept_with_the_record(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "results.jsonl"
    words = ("profile", "me", "--impl", "fft", "-o", str(path), *SMALL)
    printed(capsys, *words, "--no-energy")
    printed(capsys, *words, "--energy-trials", "3", "--energy-window", "2")
    printed(capsys, *words, "--energy-trials", "5", "--energy-window", "5")  # as by default
    records, _ = read(path)
    assert [record.sweep.get("options") for record in records] == [
        {"energy": False}, {"energy_window_s": 2.0, "energy_trials": 3}, None,
    ]  # fmt: skip
    assert records[0].reasons["energy"] == "energy was not asked for (--energy)"
    assert records[0].reasons["power"] == records[0].reasons["energy_net"]


FROM = "--from FILE reads all values from FILE: leave out "
REFUSED = {
    f"profile {'x' * 10_000}": "unknown mixer 'xxx",
    f"trace {'x' * 10_000}.py:X --over l=2": "no file 'xxx",
    "profile shee": "unknown mixer 'shee'; did you mean 'she'?",
    "profile she --impl cov": "no implementation 'cov': did you mean 'conv'?",
    "profile she --impl none.py:Mine": "no file 'none.py': a class of your own is given as FILE",
    "profile she --dtype fp12": "unknown dtype 'fp12': expected one of fp64, fp32, bf16, fp16",
    "profile she --device abacus": "unknown device 'abacus': expected cpu, cuda or cuda:N",
    "profile she --phase sideways": "--phase 'sideways': expected one of training",
    "profile she --format pdf": (
        f"--format 'pdf': expected one of {', '.join(formats('rows', 'data'))}"
    ),
    "profile she --d 0": "size d must lie in 1..",
    "profile she --d 2.5": "size d must be a positive integer",
    "profile self-attention --d 9 --n 2": "self-attention needs d/n to be whole, got 9/2",
    "profile she --seconds 0": "--seconds 0: expected a finite number of 0.01 or more",
    "profile she --seed one": "--seed one: expected a whole number from 0 to",
    "profile she --energy-window 1.5": "--energy-window 1.5: expected 2 s or more, and ",
    "profile she --energy-window inf": "--energy-window inf: expected 2 s or more, and a finite",
    "profile she --energy-trials 1": "--energy-trials 1: expected 2 or more, for their spread; ",
    "reconcile --from none.jsonl --energy-trials 5": FROM + "--energy-trials",
    "profile she --seconds 1 -o no-such-folder/r.jsonl": "cannot write no-such-folder/r.jsonl: No",
    "profile none.py:mine": "no file 'none.py': a mixer of your own is given as FILE.py:NAME",
    "reconcile --from none.jsonl": "cannot read none.jsonl: No such file or directory",
    "reconcile she --from none.jsonl": FROM + "the mixers",
    "reconcile --from none.jsonl --d 4": FROM + "--d",
    "reconcile --from none.jsonl -o x": FROM + "-o",
    "reconcile --from none.jsonl --impl all --seconds 15 --seed 0": FROM
    + "--impl, --seed, --seconds",
    "reconcile --from none.jsonl --dtype fp32 --phase training --device cpu": FROM
    + "--phase, --dtype, --device",
    "reconcile --from tests": "cannot read tests: Is a directory",
    "reconcile she --format pdf": "--format 'pdf': expected one of",
    "check shee": "unknown mixer 'shee'; did you mean 'she'?",
    "check gpt-2": "'gpt-2' is a network, and check takes a mixer: name the network's mixer, s",
    "check none.py:mine": "no file 'none.py'",
    "check she --format csv": f"--format 'csv': expected one of {', '.join(formats('data'))}",
    "check": "check needs MIXER: costmodel check --help describes it",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_asked_for_is_one_sentence(command: str, capsys: Capture) -> None:
    assert refused(capsys, *command.split()).startswith(REFUSED[command])


@NO_GPU
def test_a_gpu_that_is_not_there(capsys: Capture) -> None:
    sentence = refused(capsys, "profile", "she", "--device", "cuda")
    assert sentence == "device 'cuda' was asked for, but torch finds no NVIDIA GPU: use cpu"


def test_a_token_beyond_the_weights(capsys: Capture) -> None:
    words = ("profile", "me", "--impl", "fft", "--phase", "inference", "--t", "4", *SMALL)
    sentence = refused(capsys, *words, code=FAILED)
    assert sentence.startswith(
        "me fft (fp32): length 4 is greater than l = 3, where the weights end: ask"
    )


def ended(capsys: Capture, *words: str) -> tuple[int, str, str]:
    return (cli.run(words), *capsys.readouterr())


def test_an_interrupt_says_where_the_rest_is(
    tmp_path: Path, capsys: Capture, instead: Instead
) -> None:
    results = iter([ATTENTION])

    def measured(*_: Any, **__: Any) -> Any:
        for record in results:
            return record
        raise KeyboardInterrupt

    instead(measure=measured)
    path = tmp_path / "results.jsonl"
    code, out, sentence = ended(capsys, "profile", "she", "-o", str(path), *SMALL)
    assert code == INTERRUPTED and "self-attention" in out
    assert sentence == f"costmodel: interrupted: the earlier measurements are in {path}\n"
    command = "costmodel profile she " + " ".join(SMALL)
    assert read(path) == ([session.by_command(ATTENTION, command)], [])
    results = iter([ATTENTION])
    code, out, sentence = ended(capsys, "reconcile", "she", *SMALL)
    assert code == INTERRUPTED and "self-attention" in out
    said = "interrupted: the earlier measurements were only printed: -o FILE.jsonl keeps them"
    assert sentence == f"costmodel: {said}\n"
    sentence = refused(capsys, "profile", "she", *SMALL, code=INTERRUPTED)
    assert sentence == "interrupted before anything was measured"


class Terminal(StringIO):
    """A standard error that a person looks at."""

    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_and_none_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """`printed` has seen that a pipe stays empty; a terminal gets a bar, redrawn in place."""
    terminal: TextIO = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with bar() as progress:
            progress(1, 2, "she conv: measuring latency")
    assert "she conv: measuring latency" in terminal.getvalue()  # type: ignore[attr-defined]
    with bar() as progress:
        progress(1, 2, "she conv: measuring latency")
    assert capsys.readouterr() == ("", "")


# reconcile


def test_reconcile_measures_and_explains(capsys: Capture) -> None:
    words = ("reconcile", "self-attention", "me", "--phase", "both", *SMALL)
    ladders = json.loads(printed(capsys, *words, "--format", "json"))["ladders"]
    assert len(ladders) == 2 * (2 + 2)
    for ladder in ladders:
        assert ladder["unexplained"] == dict.fromkeys(("1-2", "2-3"), row_classes({}))
        assert {p["unexplained"] for p in ladder["peers"]} == {0}
        assert ladder["rungs"]["4"] is None
        assert ladder["rungs"]["5"]["latency_s"] > 0


@pytest.mark.parametrize("format_", ["rich", "markdown", "latex", "csv"])
def test_reconcile_from_records_in_every_format(
    format_: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "results.jsonl"
    for record in (ATTENTION, LAUNCH_BOUND):
        append(path, record)
    out = printed(capsys, "reconcile", "--from", str(path), "--full", "--format", format_)
    assert "dense" in out
    assert "ot comparable: launch-bound" in out  # LaTeX begins a footnote with a capital
    if format_ == "latex":
        assert out.startswith(f"% costmodel reconcile --from {path} --full --format latex\n")


def test_reconcile_from_a_file_with_faults_prints_what_it_can(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "results.jsonl"
    append(path, ATTENTION)
    line = path.read_text(encoding="utf-8")
    unknown = line.replace('"self-attention"', '"sole-attention"')
    path.write_text(line + unknown.replace(ATTENTION.id, f"{ATTENTION.id} again") + line[:50])
    assert cli.run(["reconcile", "--from", str(path)]) == FAILED
    out, err = capsys.readouterr()
    assert out.startswith("Theory against measurement: forward pass")
    assert "self-attention  explicit" in out
    first, second = err.splitlines()
    assert first == f"costmodel: {path}: line 3 is cut off and was skipped"
    assert re.fullmatch(
        r"costmodel: record self-att \(sole-attention\): unknown mixer 'sole-attention'; "
        r"did you mean 'self-attention'\?.*",
        second,
    )


def test_a_gap_is_said_in_the_verdict_and_shown_and_is_no_failure(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "results.jsonl"
    counts = {**ATTENTION.counts, "dispatch": dispatch(19, mul=3073)}
    for record in (ATTENTION, replace(ATTENTION, counts=counts, id="another")):
        append(path, record)
    out = printed(capsys, "reconcile", "--from", str(path))
    assert printed(capsys, "reconcile", "--from", str(path), "--strict", code=FAILED) == out
    assert "unexplained: +1 mul" in out
    assert out.count("\nOperations: self-attention explicit, forward pass") == 1


# check, and a mixer of a user's own


@pytest.fixture
def windows(tmp_path: Path) -> tuple[str, str]:
    """A sliding window that holds and one that subtracts, under names of this test's own."""
    wrong = ("s[:, lag:] += x", "s[:, lag:] -= x")
    right, own = f"right-{tmp_path.name}", f"wrong-{tmp_path.name}"
    return written(tmp_path, right), written(tmp_path, own, wrong)


def test_check_prints_every_proof_that_holds(windows: tuple[str, str], capsys: Capture) -> None:
    out = printed(capsys, "check", windows[0])
    assert out.count(" holds ") == 8
    assert "FAILS" not in out


def test_check_fails_with_the_place(windows: tuple[str, str], capsys: Capture) -> None:
    out = printed(capsys, "check", windows[1], code=FAILED)
    assert re.search(r"direct: module equals equations +FAILS +at l = 2, d = 1, w = 2: ", out)
    assert "equation (1) s is the first whose values the module never computes" in out
    proofs = json.loads(printed(capsys, "check", windows[1], "--format", "json", code=FAILED))
    found = [p["passed"] for p in proofs["proofs"]]
    # what needs the module to equal its equations is not checked
    assert found[:5] == [True, True, True, True, False] and {*found[5:]} == {None, False}


def test_a_file_that_does_not_import(tmp_path: Path, capsys: Capture) -> None:
    change = ("cm.sum_(s[i, a] * W_out[a, b], over=a)", "s[i, a] * W_out[a, b]")
    for command in ("check", "table", "explain", "profile", "reconcile"):
        sentence = refused(capsys, command, written(tmp_path, "cli-unbound", change))
        assert (
            "cli_unbound.py does not import: y: index a of s is unbound; put it on "
            "the left side or reduce over it"
        ) in sentence


def test_a_sliding_window_of_ones_own_in_every_command(
    windows: tuple[str, str], capsys: Capture
) -> None:
    """d = 4, l = 6, w = 3: 1 + 2 + 3 + 3 + 3 + 3 products in each channel, then d^2 l."""
    name, sizes = windows[0], ("--d", "4", "--l", "6", "--w", "3")
    rows = json.loads(printed(capsys, "table", name, *sizes, "--format", "json"))["rows"]
    assert rows[0]["counts"]["mul"] == 4 * 15 + 4 * 4 * 6
    assert rows[0]["parameters"] == 3 * 4 + 4 * 4
    assert rows[1]["state_elements"] == 2 * 4
    explained = printed(capsys, "explain", name, *sizes, "--full")
    assert "sum(j = max(1, i - w + 1)..i) x[j,b] * w_win[i-j+1,b]" in explained
    assert "Min(" in explained
    for command in ("profile", "reconcile"):
        printed(capsys, command, name, *sizes, "--seconds", "0.02", "--device", "cpu")
    words = ("reconcile", name, *sizes, "--seconds", "0.02", "--phase", "both", "--format", "json")
    for ladder in json.loads(printed(capsys, *words))["ladders"]:
        assert ladder["unexplained"] == dict.fromkeys(("1-2", "2-3"), row_classes({}))


def test_a_class_of_ones_own_that_is_not_equal(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from profiler.mixers.extractor import WeToeplitz\n"
        "class Mine(WeToeplitz):\n"
        "    def _surround(self, x, ext):\n"
        "        return super()._surround(x, -ext)\n"
    )
    sentence = refused(capsys, "profile", "we", "--impl", f"{path}:Mine")
    assert sentence.startswith(
        f"{path}:Mine does not compute we: the check 'module equals equations' fails at l = 1, "
        "d = 1: y[1, 1] is "
    )
    assert "other values in the place of ext in equation (24) adj" in sentence


def test_a_module_that_is_not_its_equations_is_not_measured(
    tmp_path: Path, capsys: Capture
) -> None:
    change = ("return s @ self.W_out", "return 3 * (s @ self.W_out)")
    name = written(tmp_path, "cli-times-3", change)
    for command in ("profile", "reconcile"):
        sentence = refused(capsys, command, name)
        assert sentence.startswith(
            "the module Window does not compute cli-times-3: the check 'module equals equations'"
        )


@pytest.mark.parametrize("command", ["profile", "reconcile"])
def test_a_module_that_is_not_its_equations_keeps_no_other_from_its_row(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    change = ("return s @ self.W_out", "return 3 * (s @ self.W_out)")
    words = (written(tmp_path, f"cli-beside-{command}", change), "me:toeplitz", *SMALL)
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, *words, "--counts-only", "--format", "csv"])
    said = capsys.readouterr()
    assert stopped.value.code == FAILED
    rows = [
        tuple(row[x] for x in ("mixer", "reason")) for row in csv.DictReader(StringIO(said.out))
    ]
    assert "me" in {mixer for mixer, _ in rows}
    (why,) = (reason for mixer, reason in rows if "cli-beside" in mixer)
    assert why.startswith(f"the module Window does not compute cli-beside-{command}: ")
    assert said.err.count(why[:60]) == 1


# As a process


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python cli.py ...` with its output in pipes."""
    return subprocess.run(
        [sys.executable, "-W", "error", "cli.py", *words],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_profile_in_a_pipe_is_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    done = process("profile", "me", "--impl", "fft", "-o", str(path), *SMALL, COLUMNS="40")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    assert "columns are too narrow" not in done.stdout
    assert len(read(path)[0]) == 1


def test_a_wrong_module_fails_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = written(tmp_path, "wrong", (".flip(1)", ""))
    assert cli.run(["check", name]) == FAILED
    done = capsys.readouterr()
    assert done.err == ""
    assert "in step, equation (1) s is the first whose values the module never" in done.out


def test_a_file_that_raises_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = written(tmp_path, "raises", ("import torch", "import torch\n1 / 0"))
    assert cli.run(["reconcile", name]) == MISUSED
    done = capsys.readouterr()
    assert done.out == "" and done.err.count("\n") == 1
    assert done.err.startswith(
        f"costmodel: {name.rpartition(':')[0]} does not import: ZeroDivisionError: division by zero"
    )


def test_measuring_in_python_leaves_the_callers_garbage_to_the_collector() -> None:
    """What the caller froze stays frozen, and nothing else."""
    code = (
        "import gc, profiler\n"
        "for froze in (gc.unfreeze, gc.freeze):\n"
        "    froze()\n"
        "    profiler.measure('me', counts_only=True, device='cpu', l=4, d=4)\n"
        "    print(gc.get_freeze_count() > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_the_collector_skips_what_torch_imports_at_its_first_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    monkeypatch.setattr(importlib, "import_module", order.append)
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(gc, "freeze", lambda: order.append("freeze"))
    settle_objects()
    assert order == ["torch._dynamo", "freeze"]
