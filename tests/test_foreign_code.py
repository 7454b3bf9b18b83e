"""Is every exception of a user's file reported in one short sentence?"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.commands.streams import INTERRUPTED
from costmodel.errors import LONGEST, Raised, as_exception, text_of, words_of
from tests.user_mixers import written

SILENT = "    def __str__(self):\n        raise SystemExit(0)\n"
RAISED = {
    "raise SystemExit(0)": "does not import: SystemExit: 0 (line 1)",
    "class Own(BaseException): pass\nraise Own('x')": "does not import: Own: x (line 2)",
    f"class Own(BaseException):\n{SILENT}raise Own": "does not import: Own (line 4)",
    f"class Own(Exception):\n{SILENT}raise Own": "does not import: Own (line 4)",
    "class A(Exception):\n    __str__ = lambda self: 3\nraise A": "does not import: A (line 3)",
    "raise ValueError('x' * 10**7)": "xxx... (10,000,000 characters) (line 1)",
    "raise ValueError('x ' * 10**6)": "x x ... (1,999,999 characters) (line 1)",
    "raise type('E' * 10**5, (Exception,), {})": "... (100,000 characters) (line 1)",
    "def f(): f()\nf()": "does not import: RecursionError: maximum recursion depth exceeded",
    "class T(type):\n    def __getattribute__(self, name):\n        raise SystemExit(0)\n"
    "class Own(Exception, metaclass=T): pass\nraise Own": "does not import: Own (line 5)",
    "class T(type):\n    @property\n    def __name__(cls):\n        raise SystemExit(0)\n"
    "class Own(Exception, metaclass=T): pass\nraise Own": "does not import: Own (line 6)",
    "raise KeyboardInterrupt('a\x1b[31m')": r"KeyboardInterrupt: a\u001b[31m (line 1)",
    f"class A(Exception):\n{SILENT.replace('SystemExit(0)', 'KeyboardInterrupt')}raise A": (
        "A (line 4)"
    ),
    "raise ImportError('x', name=3)": "does not import: ImportError: x (line 1)",
    "raise GeneratorExit": "does not import: GeneratorExit (line 1)",
    "exec('x = (')": "does not import: SyntaxError: '(' was never closed (line 1)",
    "import a_neighbour_that_is_no_python": "does not import: SyntaxError: invalid syntax (line 1)",
    "x = 1\0": "is no Python: source code string cannot contain null bytes",
    "from costmodel.language.options import offering\n@offering({'a': 'b'})\ndef m(chosen):\n"
    "    raise SystemExit(0)": "does not write its mixers: SystemExit: 0 (line 4)",
    "from costmodel.language.options import offering\n@offering({'a': 'b'})\ndef m(chosen):\n"
    "    return 3": "'m' returns none",
}


def refused(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """The one sentence of a command that fails."""
    assert cli.run(typed) in (1, 2)
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err
    assert printed.err.startswith("costmodel: ") and printed.err.count("\n") == 1
    return printed.err


CLOSING = {
    "import sys\nsys.stdout.close()\n": "defines no mixer",
    "import sys\nsys.__stderr__.close()\nsys.stderr.close()\nsys.stdout.close()\n": (
        "defines no mixer"
    ),
    "import sys\nsys.stdout.close()\nprint(1)": "does not import: ValueError: I/O operation on",
}


@pytest.mark.parametrize("text", CLOSING, ids=map(str, range(len(CLOSING))))
def test_a_file_that_closes_the_standard_streams_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "cli.py", "table", f"{path}:mine"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert CLOSING[text] in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", RAISED, ids=map(str, range(len(RAISED))))
@pytest.mark.parametrize("command", ["table", "check"])
def test_whatever_a_file_raises_is_one_sentence(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    (tmp_path / "a_neighbour_that_is_no_python.py").write_text("x = = 1")
    said = refused(capsys, command, f"{path}:m")
    assert RAISED[text] in said
    assert len(said) < LONGEST + len(str(path)) + 100


def test_a_file_in_another_encoding_and_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.py").write_bytes(b"x = '\xff'")
    (tmp_path / "folder.py").mkdir()
    assert "is no Python: " in refused(capsys, "table", f"{tmp_path}/latin.py:m")
    assert "folder.py' is a folder" in refused(capsys, "table", f"{tmp_path}/folder.py:m")


def test_a_file_imports_its_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "a_neighbour_of_layers.py").write_text("from torch.nn import Linear")
    path = tmp_path / "own_layers.py"
    path.write_text("import a_neighbour_of_layers as n\ndef make(d): return n.Linear(d, d)")
    assert cli.run(shlex.split(f"trace {path}:make --over b,l,d")) == 0
    assert "bd²l" in capsys.readouterr().out


CALLED = """import costmodel as cm
m = cm.Mixer("NAME")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
def entry(i, sizes):
    raise SystemExit(0)
w = m.buffer("w", l, value=entry)
with m.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    y[i, a] = x[i, a] * w[i]
"""


def test_code_of_a_file_that_is_called_later_does_not_end_the_command_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "later.py"
    path.write_text(CALLED.replace("NAME", "ends-in-silence"), encoding="utf-8")
    said = refused(capsys, "check", f"{path}:m")
    assert said == f"costmodel: {path} raises SystemExit: 0 (line 6)\n"


def test_a_module_that_leaves_in_its_call_fails_its_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ("        s = x * self.w_win[0]", "        raise SystemExit(0)")
    name = written(tmp_path, "leaves-in-its-call", change)
    assert cli.run(["check", name]) == 1
    assert re.search(
        r"FAILS +at l = 1, d = 1, w = 1: the module fails: SystemExit: 0", capsys.readouterr().out
    )
    assert cli.run(shlex.split(f"profile {name} --l 2 --d 2 --w 1")) != 0
    assert "SystemExit: 0" in "".join(capsys.readouterr())


LEAVING = """import torch
class Silent(BaseException):
    def __str__(self):
        raise SystemExit(0)
class Module(torch.nn.Module):
    calls = 0
    def __init__(self, d):
        super().__init__()
        self.layer = torch.nn.Linear(d, d)
    def forward(self, x):
        Module.calls += 1
        if Module.calls > CALLS:
            raise WHAT
        return self.layer(x)
"""


@pytest.mark.parametrize(("calls", "what"), [(0, "Silent"), (9, "SystemExit(0)")])
def test_a_module_that_leaves_while_it_is_measured_fails_alone(
    calls: int, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"leaves_{calls}.py"
    path.write_text(LEAVING.replace("CALLS", str(calls)).replace("WHAT", what), encoding="utf-8")
    assert cli.run(shlex.split(f"profile {path}:Module --l 4 --d 4")) == 1
    said = capsys.readouterr().err
    assert "the call failed: " + {0: "Silent", 9: "SystemExit: 0"}[calls] in said
    assert said.startswith("costmodel: ") and said.count("\n") == 1


PRINTING = "import os\nprint('said on import')\nos.write(1, b'written on import')\n"
LOUD = (
    ("return s @ self.W_out", "print('said in a call'); return s @ self.W_out"),
    ("super().__init__(d=d", "print('said when built'); super().__init__(d=d"),
)


def test_what_a_module_prints_is_no_part_of_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixer = written(tmp_path, "loud", *LOUD)
    for words in (("check", mixer), ("profile", mixer, "--d", "3", "--l", "5", "--counts-only")):
        assert cli.run([*words, "--format", "json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out) and "said in a call" in printed.err
    path = tmp_path / "loud.py"
    path.write_text(PRINTING + path.read_text(encoding="utf-8"), encoding="utf-8")
    line = [sys.executable, "-m", "cli", "table", mixer, "--l", "5", "--format", "json"]
    made = subprocess.run(line, capture_output=True, text=True, check=True)
    assert json.loads(made.stdout)["rows"] and "written on import" in made.stderr


def test_an_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt), as_exception():
        raise KeyboardInterrupt
    with pytest.raises(Raised, match=r"^SystemExit: 3$"), as_exception():
        raise SystemExit(3)
    with pytest.raises(ZeroDivisionError), as_exception():
        1 / 0  # noqa: B018 - it is raised


def test_what_is_said_of_an_exception_is_bounded() -> None:
    assert len(text_of(ValueError("x y" * 10**6))) <= LONGEST + len(" ... (3,000,000 characters)")
    assert words_of(ValueError("  a\n b ")) == "ValueError: a b"
    with pytest.raises(ValueError, match="unknown size") as refused:
        cm.Mixer("m").sizes("dd")
    assert words_of(refused.value).startswith("unknown size 'dd'")  # a sentence of this package


CTRL_C = """import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**9): pass
except KeyboardInterrupt:
    raise AGAIN
"""


@pytest.mark.parametrize("again", ["", "KeyboardInterrupt('stopped')"])
def test_a_file_is_interrupted_by_the_keyboard(again: str, tmp_path: Path) -> None:
    path = tmp_path / "stopped.py"
    path.write_text(CTRL_C.replace("AGAIN", again), encoding="utf-8")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli.run(["table", f"{path}:m"]) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)


NESTED = """import costmodel as cm
m = cm.Mixer("NAME", source="s")
l, d = m.sizes("l d")
x, y = m.input("x", l, d), m.output("y", l, d)
with m.form("direct") as f:
    i, a = f.index("i", 1, l), f.index("a", 1, d)
    v = x[i, a]
    for _ in range(TIMES): v = v + x[i, a]
    y[i, a] = v
"""


@pytest.mark.grid(3)
@pytest.mark.parametrize("command", ["table --phase all --l 2 --d 2", "explain", "check"])
def test_a_sum_of_hundreds_of_written_terms(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.py"
    name, *options = command.split()
    path.write_text(NESTED.replace("TIMES", "400").replace("NAME", f"long-{name}"), "utf-8")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        assert cli.run([name, f"{path}:m", *options]) == 0
    finally:
        sys.setrecursionlimit(before)
    assert "Recursion" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("command", ["table", "explain", "check"])
def test_a_deeper_sum_is_refused_with_its_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.py"
    path.write_text(NESTED.replace("TIMES", "3000"), encoding="utf-8")
    said = refused(capsys, command, f"{path}:m")
    assert f"{path} does not import: y nests more than 1,000 operations" in said
    assert "(line 9: `" in said


def test_overlapping_ranges_are_refused_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "overlap.py"
    changed = NESTED.replace("    v =", '    j = f.index("j", cm.union((1, i), (i, i)))\n    v =')
    changed = changed.replace("TIMES", "1").replace("= v\n", "= cm.sum_(x[j, a], over=j)\n")
    path.write_text(changed, encoding="utf-8")
    said = refused(capsys, "table", f"{path}:m")
    assert "the ranges of index j overlap" in said and said.endswith(f"({path}, line 7)\n")


@pytest.mark.parametrize("imports", [True, False])
def test_neighbours_of_one_name_in_two_folders_are_refused(
    imports: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first file imports its neighbour, or the second file would find the first one's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"a_shared_neighbour_{imports}".lower()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("")
        first = folder == "one" and not imports
        text = CALLED.replace("NAME", f"in-{folder}-{imports}".lower())
        (tmp_path / folder / "own.py").write_text(text if first else f"import {name}\n{text}")
    cm.mixer(f"{tmp_path}/one/own.py:m")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / f"{name}.py").write_text(CALLED.replace("NAME", f"by-{imports}".lower()))
    one, two = (tmp_path / folder / f"{name}.py" for folder in ("one", "two"))
    assert refused(capsys, "explain", f"{tmp_path}/two/own.py:m") == (
        f"costmodel: {two} is a neighbour of {tmp_path}/two/own.py, but {one} of the same name is "
        "imported already: rename one\n"
    )
    assert cm.mixer(f"{tmp_path}/three/{name}.py:m").name == f"by-{imports}".lower()


def test_files_whose_paths_differ_in_a_slash_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for file in ("a/b.py", "a_b.py"):
        (tmp_path / file).write_text(CALLED.replace("NAME", file[:3].replace("/", "-by-")))
    found = [cm.mixer(f"{tmp_path}/{file}:m").name for file in ("a/b.py", "a_b.py")]
    assert found == ["a-by-b", "a_b"]


def test_an_interrupt_without_a_place_and_a_text_has_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyboardInterrupt that other code raises is an error like others."""
    monkeypatch.setattr(cli, "is_interrupt", lambda _: False)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "no_empty_word", interrupted)
    assert cli.run(["list"]) == 1
    assert capsys.readouterr().err == "costmodel: KeyboardInterrupt\n"
