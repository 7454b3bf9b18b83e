"""Do derivations run without torch, and does everything else name the missing package?"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

RECORDS = str(Path(__file__).parent / "recorded.jsonl")

THEORY = {
    "table she": "she ",
    "explain me": "Equations",
    "model gpt-2 --phase training": "GPT-2",
    "check she --claim parameters=l*d^2+d^2": "",
    "list attention": "implementations are not listed: they need torch, which is not installed",
    "list she --format json": '"implementations": null',
    "list she --format csv": ",–,",
    "--version": "costmodel ",
    "--help": "reconcile",
}
MEASURING = (
    "check she", "trace torch.nn:Linear --over l", "profile she", "compare she he",
    "sweep she --l 8 -o swept.jsonl",
    f"reconcile --from {RECORDS}", "doctor", "training", "calibrate -o mine.toml",
)  # fmt: skip
READING = {
    f"merge {RECORDS} -o merged.jsonl": "",
    f"statement --from {RECORDS}": "",
    f"plot {RECORDS} -o plot.svg": "no two records differ in l alone",
    f"scaling {RECORDS}": "no two records differ in l alone",
}
"""Command on records -> the start of its refusal, "" if it answers."""

CHILD = """
import contextlib, io, json, os, sys
sys.modules["torch"] = None
import cli
os.chdir(sys.argv[2])
found = {}
for typed in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(typed.split())
    found[typed] = code, out.getvalue(), err.getvalue()
print(json.dumps(found))
"""


@cache
def without_torch() -> dict[str, tuple[int, str, str]]:
    """Command -> exit code, output and errors where torch is not installed, in one process."""
    typed = json.dumps([*THEORY, *MEASURING, *READING])
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CHILD, typed, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("typed", THEORY)
def test_what_follows_from_equations_needs_no_torch(typed: str) -> None:
    code, out, err = without_torch()[typed]
    assert (code, err) == (0, "")
    assert THEORY[typed] in out


@pytest.mark.parametrize("typed", MEASURING)
def test_what_measures_says_what_to_install(typed: str) -> None:
    code, out, err = without_torch()[typed]
    assert (code, out) == (1, "")
    name = typed.split()[0]
    assert err == f"costmodel: {name} needs torch, which is not installed (pip install torch)\n"


@pytest.mark.parametrize("typed", READING)
def test_what_reads_records_needs_no_torch(typed: str) -> None:
    code, _, err = without_torch()[typed]
    assert (code == 0) == (not READING[typed]) and READING[typed] in err


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**40,) * 2)
import cli
"""


def limited(body: str, folder: Path, typed: str) -> subprocess.CompletedProcess[str]:
    """What Python prints that runs `body` under `ulimit -v`, with `cli` imported and the arguments
    of a command line."""
    command = [sys.executable, "-c", LIMITED + body, str(folder), *typed.split()]
    return subprocess.run(command, capture_output=True, text=True)


NEEDS = "profile needs torch, which does not load here:"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
@pytest.mark.parametrize(
    ("torch", "typed", "told"),
    [
        ("raise OSError('libc10.so: none')", "profile she", f"{NEEDS} OSError: libc10.so: none"),
        ("raise MemoryError", "profile he", f"{NEEDS} there is too little memory;"),
        ("import os; os._exit(1)", "doctor", "a library that doctor needs ended the process"),
        ("import os; os.abort()", "check she", "a library that check needs ended the process"),
    ],
)  # fmt: skip
def test_a_torch_that_does_not_load_is_a_sentence(
    torch: str, typed: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    done = limited("sys.path.insert(0, sys.argv[1]); cli.main(sys.argv[2:])", tmp_path, typed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"costmodel: {told}") and done.stderr.count("\n") == 1
    assert "ulimit -v allows" in done.stderr and "1,073,741,824 KB" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
@pytest.mark.parametrize(
    ("body", "code", "last"),
    [("os.kill(os.getpid(), signal.SIGINT)", 130, []), ("1 / 0", 1, ["ZeroDivisionError"])],
)
def test_an_interrupt_and_a_bug_under_a_limit_blame_no_library(
    body: str, code: int, last: list[str], tmp_path: Path
) -> None:
    told = f"import os, signal\ncli.run = lambda typed: {body}\ncli.main(['list'])"
    done = limited(told, tmp_path, "")
    assert done.returncode == code
    assert [line.partition(":")[0] for line in done.stderr.splitlines()[-1:]] == last


AGAIN = """def again(error): raise MemoryError
cli.raised_in_users_file = again
sys.path.insert(0, sys.argv[1]); sys.exit(cli.run(sys.argv[2:]))
"""
OWN = """def late(typed): exec("raise MemoryError", {"__name__": "profiler.late"})
cli.carried_out = late
sys.exit(cli.run(sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
@pytest.mark.parametrize(
    ("body", "told"),
    [(AGAIN, f"{NEEDS} OSError: none; ulimit -v"), (OWN, "there is too little memory to load")],
)
def test_memory_that_a_loading_module_exhausts_is_no_matter_of_sizes(
    body: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('none')")
    done = limited(body, tmp_path, "profile she")
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr and "smaller sizes" not in done.stderr
    assert "ulimit -v allows" in done.stderr and "1,073,741,824 KB" in done.stderr
