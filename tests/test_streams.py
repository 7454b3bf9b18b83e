"""Does the output of a command reach every terminal and disk whole, or report a failure?"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel.commands.options import screen
from costmodel.commands.streams import (
    FAILED,
    INTERRUPTED,
    MISUSED,
    Failed,
    harmless,
    interruptible,
    wrapped,
    written_whole,
)

ROOT = Path(__file__).parents[1]
Capture = pytest.CaptureFixture[str]


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A command line as a shell runs it; `$CLI` is the program."""
    environment = os.environ | {"CLI": f"{sys.executable} -m cli"} | variables
    return subprocess.run(
        ["bash", "-c", line], cwd=ROOT, env=environment, capture_output=True, check=False
    )


# Characters


def test_control_characters_are_written_as_json_writes_them() -> None:
    assert harmless("a\x1b]0;title\x07\x9b2J\u202eb\udcff\tc\n") == (
        "a\\u001b]0;title\\u0007\\u009b2J\\u202eb\\udcff\tc\n"
    )
    own = "\x1b[1mhead\x1b[0m\x1b[31m"
    assert harmless(own, colour=True) == "\x1b[1mhead\x1b[0m\\u001b[31m"
    assert harmless(own) == "\\u001b[1mhead\\u001b[0m\\u001b[31m"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_sentence_fits_the_terminal(columns: int) -> None:
    """A terminal gets lines of its width, a pipe those of COLUMNS, or the sentence in one line."""
    line = "table she --d 3 --columns mixer,nonsense"
    piped = shell(f"$CLI {line}").stderr.decode()
    assert piped.count("\n") == 1 and len(piped) > columns
    told = shell(f"$CLI {line}", COLUMNS=str(columns)).stderr.decode()
    assert told.split() == piped.split() and max(map(len, told.splitlines())) <= columns
    at, terminal = os.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        words = [sys.executable, "-m", "cli", *line.split()]
        environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
        subprocess.run(words, cwd=ROOT, env=environment, stderr=terminal, check=False)
        seen = os.read(at, 10_000).decode().replace("\r\n", "\n")
    finally:
        os.close(at)
        os.close(terminal)
    assert seen.split() == piped.split()
    assert max(map(len, seen.splitlines())) <= columns


def test_columns_of_thousands_of_digits_are_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "9" * 5000)
    assert wrapped("a sentence") == "a sentence"
    assert screen(None) == (None, False)


@pytest.mark.parametrize("text", ["x" * 50_000, "x " * 25_000])
@pytest.mark.parametrize("words", [("table",), ("table", "she", "--format"), ("merge",), ()])
def test_what_was_typed_is_repeated_in_bounds(
    words: tuple[str, ...], text: str, capsys: Capture
) -> None:
    assert cli.run([*words, text]) == MISUSED
    assert len(capsys.readouterr().err) < 2200


def test_escape_codes_of_a_file_do_not_reach_a_terminal(tmp_path: Path, capsys: Capture) -> None:
    claims = tmp_path / "paper.json"
    claim = {"id": "a", "place": "\x1b]0;x\x07", "kind": "value", "claimed": "\x1b[2J\ud800"}
    claim |= {"formula": "2 + 2", "value": "4", "remark": "\x1b[31m"}
    claims.write_text(json.dumps({"schema": 1, "source": "a\x9bpaper", "claims": [claim]}))
    for format_ in ("rich", "markdown", "json"):
        assert cli.run(["check", str(claims), "--format", format_]) == 0
        printed = capsys.readouterr().out
        assert "\\u001b" in printed and not set(printed) & set("\x1b\x07\x9b\ud800")
    claims.write_text(
        json.dumps({"schema": 1, "source": "paper", "claims": [claim | {"\x1b[2J": 1}]})
    )
    assert cli.run(["check", str(claims)]) == MISUSED
    assert "\\u001b[2J" in capsys.readouterr().err


def test_output_in_ascii_loses_nothing() -> None:
    made = shell("$CLI table she --l 8 --symbolic", PYTHONIOENCODING="ascii")
    assert made.returncode == 0 and made.stderr == b""
    assert b"d\\u00b2" in made.stdout


@pytest.mark.parametrize("format_", ["latex", "markdown"])
def test_bytes_that_are_no_utf_8_are_shown(format_: str, tmp_path: Path) -> None:
    made = shell(rf"$CLI table she --format {format_} --symbols l=$'\xff'")
    assert b"Traceback" not in made.stderr
    made = shell(r"$CLI table she --format latex --caption $'a\xffb' -o $OUT/t", OUT=str(tmp_path))
    assert made.returncode == MISUSED and not (tmp_path / "t").exists()
    assert b"a\\udcffb" in made.stderr and b"a control character" in made.stderr


# Ends


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("$CLI table she --l 8 >&-", FAILED, "standard output: Bad file descriptor"),
        ("$CLI table she --l 8 >/dev/full", FAILED, "standard output: No space left on device"),
        ("$CLI --help >/dev/full", FAILED, "No space left on device"),
        ("$CLI --version >/dev/full", FAILED, "standard output: No space left on device"),
        ("$CLI table she --l 8 -o $OUT/t.csv >&-", 0, "wrote"),
        ("$CLI table she --l x 2>&-", MISUSED, ""),
        ("$CLI table she --l x 2>/dev/full", MISUSED, ""),
        ("$CLI nosuch 2>&-", MISUSED, ""),
        ("$CLI table she --l 8 >&- 2>&-", FAILED, ""),
    ],
)
def test_streams_that_take_nothing(line: str, code: int, said: str, tmp_path: Path) -> None:
    made = shell(line, OUT=str(tmp_path))
    assert (made.returncode, made.stdout) == (code, b"")
    assert said in made.stderr.decode() and made.stderr.count(b"\n") == bool(said)


LOADED = [
    "typer",
    "costmodel.symbolic.polynomial",
    "profiler.commands",
    "torch",
    "profiler.run.measure",
]

INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from cli import main
main(["profile", "she", "--l", "2", "--d", "2", "--n", "1", "--device", "cpu"])
"""


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", LOADED)
def test_an_interrupt_while_something_loads_says_nothing(name: str) -> None:
    made = subprocess.run(
        [sys.executable, "-c", INTERRUPTING, name], cwd=ROOT, capture_output=True, check=False
    )
    assert (made.returncode, made.stdout, made.stderr) == (INTERRUPTED, b"", b"")


def test_an_interrupt_of_a_derivation_says_nothing() -> None:
    script = "import threading, os, signal; threading.Timer(1, os.kill, (os.getpid(), 2)).start()"
    words = ["table", "--all", "--form", "all", "--l", "1:90000", "--columns", "span,total"]
    made = subprocess.run(
        [sys.executable, "-c", f"{script}\nfrom cli import main; main({words})"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert (made.returncode, made.stdout, made.stderr) == (INTERRUPTED, b"", b"")


# Files


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode == "w":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, **options)

    path = tmp_path / "table.csv"
    monkeypatch.setattr(Path, "open", full)
    words = ["table", "she", "--l", "8", "-o", str(path), "--force"]
    assert cli.run(words) == FAILED
    said = f"costmodel: {path} is not written: No space left on device\n"
    assert capsys.readouterr().err == said and list(tmp_path.iterdir()) == []
    path.write_bytes(b"good")
    assert cli.run(words) == FAILED
    assert path.read_bytes() == b"good" and list(tmp_path.iterdir()) == [path]


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("good", encoding="utf-8")
    made = shell(
        "ulimit -f 1; trap '' XFSZ; $CLI table --l 1:900 --columns l,total -o $OUT --force",
        OUT=str(path),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert made.returncode == FAILED and b"table.csv is not written: File too large" in made.stderr
    assert path.read_text(encoding="utf-8") == "good" and list(tmp_path.iterdir()) == [path]


def test_modes_links_and_devices_stay(tmp_path: Path) -> None:
    file, link, fresh = tmp_path / "file", tmp_path / "link", tmp_path / "fresh"
    file.write_text("old", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    for path in (link, fresh):
        with written_whole(path) as beside:
            beside.write_text("new", encoding="utf-8")
    assert link.is_symlink() and file.read_text(encoding="utf-8") == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~mask
    with written_whole(Path("/dev/null")) as itself:
        assert itself == Path("/dev/null")
    assert not Path("/dev/null").is_file()


def test_an_interrupt_leaves_no_file_behind(tmp_path: Path) -> None:
    def half(error: BaseException) -> None:
        with written_whole(tmp_path / "x") as beside:
            beside.write_text("half", encoding="utf-8")
            raise error

    for error in (KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")):
        with pytest.raises((KeyboardInterrupt, Failed)):
            half(error)
    assert list(tmp_path.iterdir()) == []


def test_interrupts_are_what_they_were_after(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is before
