"""Does the command line print its golden files, and refuse a mistake in a sentence?

The golden files are written again by `REWRITE_GOLDEN=1 pytest tests/test_cli.py`; read the
difference before it is committed.
"""

from __future__ import annotations

import ast
import csv
import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.commands.streams import Failed
from costmodel.mixers import DEFAULT, builtin, groups, names
from costmodel.report.references import of_mixer
from tests.goldens import GOLDEN, hold
from tests.small import without_inference
from tests.stand_ins import Instead

ROOT = Path(__file__).parents[1]
CLAIMS = str(GOLDEN / "claims.json")

CASES = {
    "table.txt": "table --d 128 --l 128",
    "table.md": "table --d 128 --l 128 --format markdown",
    "table.tex": "table --d 128 --l 128 --format latex --label tab:cost",
    "table.csv": "table --d 128 --l 128 --format csv",
    "table.json": "table --d 128 --l 128 --format json",
    "heads.txt": "table --n 1,8,32 --phase training --sort -total",
    "symbolic.txt": "table --symbolic",
    "symbolic.json": "table --symbolic --format json --form all",
    "symbolic.tex": "table --symbolic --format latex --symbols l=N,d=D "
    "--columns mixer,mul,add,parameters,order",
    "once.md": "table she he --form fft --phase training --format markdown",
    "forms.txt": "table --group extractor --form all --convention safe-softmax",
    "others.txt": "table lstm restricted-attention-causal convolution vlsa-trained+output-bias "
    "additive-attention self-attention+cross simple dot-product-attention --form all",
    "others.md": "table lstm restricted-attention convolution self-attention+wide --form all "
    "--symbolic --format markdown --phase training --columns mixer,form,mul,add,total,order,span,"
    "sequential,path_length,traffic",
    "peer.md": "table --convention torch --phase training --format markdown",
    "past.csv": "table --l 8 --t 8,9 --phase inference --format csv",
    "bytes.txt": "table --columns mixer,total,traffic,unfused,intensity,weights,state --b 64 "
    "--dtype bf16 --cache-dtype fp8 --state-dtype fp32",
    "per-token.md": "table --per-token --d 3 --l 4 --n 1 --phase training --format markdown",
    "crossover.txt": "crossover simple --form all",
    "crossover.md": "crossover self-attention linear-attention she --d 64:256:x2 --format markdown",
    "crossover.tex": "crossover self-attention he --over d --l 512 --by span --format latex",
    "crossover.csv": "crossover linear-attention self-attention --phase inference --d 1024 --n 16 "
    "--format csv",
    **{
        f"budget.{end}": "budget self-attention self-attention+grouped{g=8} he we linear-attention "
        "restricted-attention-causal --state 40GB --total 3T --d 4096 --n 32 --b 64 --w 4096 "
        f"--dtype bf16 --format {format_}"
        for end, format_ in {
            "txt": "rich",
            "md": "markdown",
            "tex": "latex",
            "csv": "csv",
            "json": "json",
        }.items()
    },
    "fixed.txt": "budget fixed-attention --total 5k --d 16 --n 1 --b 1,2 --largest t",
    "match.txt": "match we --to self-attention --by parameters --vary d --d 512",
    "match.tex": "match linear-attention --to self-attention --by total --vary t --d 512 --t 999 "
    "--format latex",
    "match.json": "match linear-attention --to self-attention --by total --vary t --d 512 --t 999 "
    "--format json",
    "match.csv": "match self-attention+grouped --to self-attention --by state_bytes --vary g "
    "--dtype bf16 --format csv",
    "crossover-map.txt": "crossover self-attention linear-attention she --over l,d",
    "crossover-symbolic.txt": "crossover linear-attention self-attention --phase inference "
    "--symbolic",
    "crossover-symbolic.tex": "crossover simple --form all --symbolic --format latex --symbols l=N",
    "list.txt": "list",
    "list.md": "list --format markdown",
    "list.tex": "list --format latex",
    "list.csv": "list --format csv",
    "list.json": "list --format json",
    "explain-she.txt": "explain she --d 128 --l 128",
    "explain-she.md": "explain she --format markdown --phase training",
    "explain-she.tex": "explain she --format latex --phase training",
    "explain-self-attention.txt": "explain self-attention --n 32 --convention safe-softmax --full",
    "explain-fft.txt": "explain he --form fft --full",
    "explain-lstm.txt": "explain lstm --d 8 --l 16 --full",
    "explain-convolution.md": "explain convolution --format markdown --phase training",
    "verify.txt": "verify CLAIMS",
    "verify.md": "verify CLAIMS --format markdown",
    "verify.tex": "verify CLAIMS --format latex",
    "verify.json": "verify CLAIMS --format json",
}
"""File under tests/golden -> the command that prints it."""


def typed(command: str) -> list[str]:
    return [word.replace("CLAIMS", CLAIMS) for word in shlex.split(command)]


@pytest.mark.parametrize("name", CASES)
def test_commands_print_their_golden_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(typed(CASES[name]))
    printed = capsys.readouterr()
    assert printed.err == ""
    assert code == (1 if name.startswith("verify") else 0)
    text = printed.out.replace(CLAIMS, "CLAIMS")
    hold(name, text)


def printed_json(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert cli.run(shlex.split(command)) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


KEYS = {
    "mixer", "form", "phase", "convention", "sizes", "counts", "once", "total", "parameters",
    "critical_path", "span", "state_elements", "traffic", "reasons",
}  # fmt: skip


OF_EACH_KIND = (
    "self-attention she mlstm sinkhorn reformer fnet lstm strided-attention "
    "self-attention+relative-bias self-attention+cross aft-local gpt-oss-attention"
)
"""Mixers with several forms, without a cost of a token, with a state, with a context, with weights
that nothing reads, and with every reason for a missing number."""

DELTA_RULES = pytest.param("gated-deltanet rwkv-7", marks=pytest.mark.grid)
"""Mixers whose answers take seconds to derive."""


@pytest.mark.parametrize("mixers", [OF_EACH_KIND, DELTA_RULES])
@pytest.mark.parametrize("options", ["", "--l 4 --t 5", "--convention torch", "--symbolic"])
def test_json_is_schema_1(options: str, mixers: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(f"table {mixers} --form all --format json {options}", capsys)
    assert found["schema"] == 1
    rows = found["rows"]
    assert isinstance(rows, list)
    for row in rows:
        assert set(row) >= KEYS
        assert set(row["counts"]) == {"mul", "add", "div", "exp", "other"}
        assert set(row["traffic"]) == {"compulsory", "unfused"}
        assert {"b", "d", "l"} <= set(row["sizes"]) and ("t" in row["sizes"]) == (
            row["phase"] == "inference"
        )
        numbers = {**row["counts"], **{k: row[k] for k in ("total", "parameters", "span")}}
        kind = str if "--symbolic" in options else int
        for key, value in numbers.items():
            assert value is None or isinstance(value, dict if key == "other" else kind)
            assert (value is None) == bool(row["reasons"].get(key))
        assert row["traffic"]["compulsory"] is not None or row["reasons"]["traffic"]
        assert all(isinstance(text, str) and text for text in row["reasons"].values())


def test_default_group_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json("table --format json --phase training", capsys)
    rows = found["rows"]
    assert isinstance(rows, list) and [row["mixer"] for row in rows] == list(DEFAULT)
    assert cli.run(["table"]) == 0
    assert "--group extractor" in capsys.readouterr().out
    assert cli.run(["table", "she"]) == 0
    assert "--group" not in capsys.readouterr().out


def test_an_alias_is_the_mixer(capsys: pytest.CaptureFixture[str]) -> None:
    alias = printed_json("table extractor --format json", capsys)
    assert alias == printed_json("table she --format json", capsys)


def test_csv_holds_the_numbers_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed_json("table --format json --convention safe-softmax", capsys)["rows"]
    assert isinstance(rows, list)
    assert cli.run(["table", "--format", "csv", "--convention", "safe-softmax"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert line["mixer"] == row["mixer"] and line["phase"] == row["phase"]
        assert int(line["total"]) == row["total"] and line["ratio"] == str(row["ratio"])
        assert int(line["other_compare"]) == row["counts"]["other"].get("compare", 0)
        assert line["critical_path"].split() == row["critical_path"]


def test_columns_choose_and_order(capsys: pytest.CaptureFixture[str]) -> None:
    command = "table she --columns span,mixer,n,l --phase training --format csv"
    assert cli.run(command.split()) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "convention,form,phase,b,d,span,mixer,n,l,reasons"
    assert row == "strict,direct,training,1,128,24,she,,128,"


def test_columns_of_one_class_and_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """What the plain table shows together or in elements; of 8-bit weights and a 16-bit state."""
    command = (
        "table self-attention --l 6 --d 4 --n 2 --b 3 --phase inference --convention safe-softmax "
        "--weight-dtype int8 --cache-dtype bf16 --format csv "
        "--columns compare,state,state_bytes,weights,weights_bytes"
    )
    assert cli.run(command.split()) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert int(row["compare"]) == 3 * 2 * (6 - 1)
    assert int(row["state"]) == 3 * 2 * 6 * 4 and int(row["state_bytes"]) == 2 * int(row["state"])
    assert int(row["weights"]) == int(row["weights_bytes"]) == 4 * 4 * 4


def test_a_caption_of_bytes_names_constant_tables(capsys: pytest.CaptureFixture[str]) -> None:
    def noted(options: str) -> str:
        names = "gqa+rotary retnet she --columns traffic --phase training"
        assert cli.run(f"table {names} {options}".split()) == 0
        return capsys.readouterr().out.rpartition("bytes: ")[2].strip()

    assert noted("") == "elements fp32"
    assert noted("--weight-dtype fp8").startswith(
        "elements fp32, weights fp8; constant tables (cos, sin"
    )
    assert noted("--weight-dtype fp8").endswith(") take the type of weights")


USER = """import costmodel as cm

decay = cm.Mixer("decay", source="a note")
l, d = decay.sizes("l d")
x, y = decay.input("x", l, d), decay.output("y", l, d)
g = decay.parameter("g", l)
with decay.form("direct") as f:
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j = f.index("j", 1, i)
    y[i, b] = cm.sum_(x[j, b] * g[i - j + 1], over=j)
"""


def test_a_users_mixer_works_like_a_built_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(USER, encoding="utf-8")
    rows = printed_json(f"table {path}:decay me --format json", capsys)["rows"]
    assert isinstance(rows, list)
    mine, theirs = rows[0], rows[1]
    assert mine["mixer"] == "decay" and {**mine, "mixer": "me"} == theirs
    assert cli.run(["explain", f"{path}:decay"]) == 0
    assert "x: dt elements" in capsys.readouterr().out


def test_the_list_fits_100_columns(instead: Instead,
                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """One table, with the same columns for every family, and every mixer in it."""
    instead(screen=lambda output: (100, False))
    assert cli.run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("name ") for line in lines) == 1
    assert {*names()} <= {line.split()[0] for line in lines if line.strip()}


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("schmidhuber", ()),
        ("lstm", ("lstm",)),
        ("KATHARO", ("linear-attention",)),
        ("extract", ("she", "she-extraction", "he-extraction")),
        ("tanh", ("recurrent",)),
        ("gqa+bias{h=3,g=1}", ("self-attention",)),
    ],
)
def test_the_list_is_searched(
    word: str, found: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """At the beginning of words: `tanh` of an idea, an author, an alias; a name with options."""
    assert cli.run(["list", word, "--format", "json"]) == (0 if found else 2)
    said = capsys.readouterr()
    if found:
        assert {mixer["name"] for mixer in json.loads(said.out)["mixers"]} >= {*found}
    else:
        assert f"'{word}'" in said.err and "families are attention" in said.err


def test_the_list_names_the_classes_of_a_few_mixers(capsys: pytest.CaptureFixture[str]) -> None:
    """As `trace` takes them."""
    assert cli.run(["list", "fnet"]) == 0
    places = re.findall(r"class of fnet, \w+: (\S+)", capsys.readouterr().out)
    assert places == [f"profiler.mixers.maps:FNet{name}" for name in ("Matrix", "Transform")]
    assert cli.run(["list", "attention"]) == 0
    assert "class of" not in capsys.readouterr().out


def test_a_k_behind_a_size_is_1024(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for typed in (["--l", "1k:4k:x2", "--d", "2k"], ["--l", "1024:4096:x2", "--d", "2048"]):
        assert cli.run(["table", "gqa", "--columns", "l,d,total", *typed]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "2,048" in shown[0]


def test_a_token_past_a_table_says_which_size_to_raise(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["table", "mla", "--phase", "inference", "--columns", "mixer,state", "--t", "32k"]
    assert cli.run(asked) == 0
    assert "cos, which has l = 128 positions: give l = 32768 or more" in capsys.readouterr().out
    assert cli.run([*asked, "--l", "32k"]) == 0
    assert "positions" not in capsys.readouterr().out


def test_a_note_on_one_column_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["table", "me", "--phase", "training", "--per-token", "--columns", "mixer,traffic,span"]
    assert cli.run(asked) == 0
    said = "per token: traffic is divided by the b × l tokens; span is not"
    assert said in capsys.readouterr().out


def test_a_heading_takes_two_lines_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    """`unfused traffic (B)` breaks once, though its numbers are narrower than `traffic (B)`."""
    assert cli.run(["table", "me", "--phase", "training", "--columns", "mixer,unfused"]) == 0
    *_, first, second, rule, _ = capsys.readouterr().out.partition("bytes:")[0].splitlines()
    assert (first.split(), second.split()) == (["unfused"], ["mixer", "traffic", "(B)"])
    assert {*rule} == {"─"}


def test_all_forms_are_explained_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "we", "--phase", "training", "--l", "4", "--format", "markdown", "--form"]
    said = {}
    for form in ("all", *cm.mixer("we").forms):
        assert cli.run([*words, form]) == 0
        lines = capsys.readouterr().out.splitlines()
        said[form] = [line for line in lines if line.startswith(("#", "|", "$"))]
    everything = said.pop("all")
    assert len(said) > 1 and [line for lines in said.values() for line in lines] == everything


UNBOUND = USER.replace("g[i - j + 1]", "g[k]").replace(
    "    j =", "    k = f.index('k', 1, l)\n    j ="
)

BAD = {
    "table --d 100": "d/n to be whole",
    "table --d 0": "size d",
    "table --d -5": "size d",
    "table --l 2.5": "size l",
    "table --l 9999999999999": "2**40",
    f"table --l {10**30}": f"size l must lie in 1..2**40, got {10**30}",
    f"table --l 9:{10**90}": "size l must lie in 1..2**40, got 10000000000000000000... (91 char",
    "table --l 1:1000000000": "100000 values",
    "table --l 1:3000 --d 8:3000:8 --n 1": "combinations",
    "table sheep": "unknown mixer 'sheep'; did you mean 'she'? `costmodel list` shows them all",
    f"table {'x' * 10_000}": "unknown mixer 'xxx",
    f"explain {'x' * 10_000}.py:X": "no file 'xxx",
    "table nosuch": "unknown mixer 'nosuch': `costmodel list` shows them all",
    "table nosuch.py": "no file 'nosuch.py': a mixer of your own is given as FILE.py:NAME",
    "table tests/user_mixers.py": "tests/user_mixers.py defines no mixer: write",
    "table no/such/file.py:x": "no file",
    "table --group nope": "attention, extractor",
    "table she --all": "one of the three",
    "table self-attention --form fft": "no form 'fft'",
    "table --form nope": "has a form 'nope'",
    "table --phase backwards": "training",
    "table --format xml": "rich, markdown, latex, csv, json",
    "table --columns totl": "'totl'; did you mean 'total'? The columns are mixer, form",
    "table --columns state --phase training": "state (held after t tokens) exists in inference "
    "only: choose another --phase",
    "table --columns nosuch": "unknown column 'nosuch': the columns are mixer, form",
    "table --columns best_chunk_stat": "'best_chunk_stat'; did you mean 'best_chunk_state'? The",
    "table --columns best_chunk_foo": "unknown column 'best_chunk_foo': the columns are mixer",
    "table --columns ,": "no column",
    "table --sort totl": "did you mean 'total'",
    "table --symbolic --sort total": "cannot be sorted",
    "table --convention denss": "did you mean 'dense'",
    "table --convention torch,dense": "cannot be combined",
    "table --convention strict,mac": "choose one",
    "table --dtype fp33": "fp32",
    "table --symbols l=d --format latex": "already the model width of self-attention and 4 more; "
    "rename both, as in --symbols 'l=d,d=d_1', or give l another name",
    "table --symbols l=N,d=N --format latex": "gives l and d one name, N: give d another name",
    "table --symbols l=N,l=M --format latex": "--symbols 'l=N,l=M' names l twice",
    "explain mamba-2 --symbols n=h --format latex": "h is an index of the equations of mamba-2",
    "table --symbols l --format latex": "letter=name",
    "table --symbols l=T": "--symbols is for latex or markdown only: say --format latex, or",
    "explain she --symbols l=T": "--symbols is for latex or markdown only: say --format latex, or",
    "table --l 4q": "a positive integer",
    "table mla:absorbed{c=8}": "sizes stand before the form: mla{c=8}:absorbed",
    "table --label tab:a --format markdown": "--label is for latex only",
    "table --caption Cost": "--caption is for latex only",
    "table --label a}b --format latex": "label",
    "table --caption {a}}{ --format latex": "has braces without a partner",
    "table --caption 5% --format latex": "write \\% for per cent",
    "memory gpt-2 --caption a\\\\ --format latex": "has a \\ at its end",
    "model gpt-2 --caption $l --format latex": "write \\$ for the sign",
    "table -o /no/such/folder/x.txt": "there is no folder /no/such/folder to write to: make it",
    "table --nope": "--nope",
    "explain": "MIXER",
    "explain she --d 1,2": "one value",
    "explain she --form nope": "expected one of direct, fft",
    "explain nope": "unknown mixer",
    "explain she --format json": "rich, markdown, latex",
    "list --format xml": "rich, markdown, latex, csv, json",
    "verify no/such/file.json": "no/such/file.json",
    "verify --format csv": "rich, markdown, latex, json",
    "nope": "nope",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(shlex.split(command)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("costmodel: ") and printed.err.count("\n") == 1
    assert BAD[command] in printed.err and "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nx = (", "is no Python: '(' was never closed (line 2: `x = (`)"),
        (
            "import nowhere_at_all",
            "'nowhere_at_all': install nowhere_at_all, or put its file beside ",
        ),
        (
            USER.replace("    j =", "    j = i > 3 or"),
            "does not import: > cannot be applied to the index i",
        ),
        (
            USER.replace("    j =", "    f.nothing()\n    j ="),
            "no attribute 'nothing' (line 9: `f.no",
        ),
        ("x = 1", "defines no mixer"),
        ("class decay:\n    pass", "is a class, not a mixer: `costmodel trace "),
        (UNBOUND, "index k of g is unbound"),
        (USER.replace("g[i - j + 1]", "g[i, j]"), "has 1 axes but is indexed with 2"),
    ],
)
def test_a_bad_file_is_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    assert cli.run(["table", f"{path}:decay"]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_package_that_does_not_load_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ImportError of a package's own, as of a torch without one of its libraries."""
    (lib := tmp_path / "lib").mkdir()
    (lib / "unloadable.py").write_text("raise ImportError('libnone.so: no such file')")
    monkeypatch.syspath_prepend(lib)
    (folder := tmp_path / "mine").mkdir()
    bodies = {
        "unloading": "import unloadable",
        "two": "import unloading",
        "no": "from json import x",
    }
    for name, body in bodies.items():
        (folder / f"{name}.py").write_text(body)
    said = (
        "unloadable, which does not load here: ImportError: libnone.so: no such file; install it "
        "again (pip install --force-reinstall unloadable)"
    )
    for name, of in (
        ("unloading", f"the file needs {said}"),
        ("two", f"the file needs {said}"),
        ("no", "ImportError: cannot import name 'x' from 'json'"),
    ):
        assert cli.run(["table", f"{folder}/{name}.py:m"]) == 2
        assert f"{name}.py does not import: {of}" in capsys.readouterr().err
    with pytest.raises(Failed, match=re.escape(said)), cli.packages_loaded("profile"):
        import_module("unloadable")


def test_a_file_without_a_name_lists_what_it_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "listed.py").write_text(USER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = "listed.py is a file: give listed.py:NAME, it defines decay"
    for name in ("listed.py", "listed.py:", "listed"):
        assert cli.run(["table", name]) == 2
        assert said in capsys.readouterr().err
    for name, hint in (("dekay", "; did you mean 'decay'? It defines"), ("x1", ": it defines")):
        assert cli.run(["table", f"listed.py:{name}"]) == 2
        expected = f"costmodel: listed.py has no mixer '{name}'{hint} decay\n"
        assert capsys.readouterr().err == expected


def test_version_is_that_of_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert capsys.readouterr().out == f"costmodel {about['project']['version']}\n"


def test_two_phases_say_which_labels_they_get(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table", "she", "--format", "latex", "--label", "tab:a"]
    assert cli.run(words) == 0
    text = capsys.readouterr().out
    assert r"\label{tab:a-training}" in text and r"\label{tab:a-inference}" in text
    assert cli.run([*words, "--phase", "training"]) == 0
    text = capsys.readouterr().out
    assert r"\label{tab:a}" in text


def test_markdown_renames_sizes_too(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--symbolic", "--symbols", "l=T", "--format", "markdown"]
    for command in (["table", "she", "--columns", "l,mul"], ["explain", "she"]):
        assert cli.run([*command, *options[command[0] == "explain" :]]) == 0
        text = capsys.readouterr().out
        assert re.search(r"d(\^\{2\})? T", text) and not re.search(r"d(\^\{2\})? l", text)


def test_a_file_is_never_overwritten_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    words = ["table", "--format", "csv", "-o", str(path)]
    assert cli.run(words) == 0
    assert capsys.readouterr().out == ""
    first = path.read_text(encoding="utf-8")
    path.write_text("mine", encoding="utf-8")
    assert cli.run(words) == 2
    assert "--force" in capsys.readouterr().err and path.read_text(encoding="utf-8") == "mine"
    assert cli.run([*words, "--force"]) == 0
    assert path.read_text(encoding="utf-8") == first


def test_the_first_line_of_latex_makes_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.tex"
    words = ["table", "she", "--format", "latex", "--caption", "5\\% of\nit", "--output", str(path)]
    assert cli.run(words) == 0
    capsys.readouterr()
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "% costmodel table she --format latex --caption '5\\% of it'"
    assert cli.run(shlex.split(first[2:])[1:]) == 0
    again = capsys.readouterr().out
    assert again == path.read_text(encoding="utf-8")


def used_in_tests() -> set[str]:
    """Every name that the tests' code imports or reads."""
    nodes = (
        node
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    return {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in nodes
        if isinstance(node, (ast.Attribute, ast.alias))
    }


def test_the_list_is_complete_and_true(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json("list --format json", capsys)["mixers"]
    assert isinstance(found, list)
    assert [entry["name"] for entry in found] == list(names())
    by_name = {entry["name"]: entry for entry in found}
    assert by_name["self-attention"]["references"] == [
        "torch.nn.MultiheadAttention",
        "transformers 5.23.0",
    ]
    assert by_name["lstm"]["references"] == ["torch.nn.LSTM"]
    assert by_name["she"]["references"] == []
    used = used_in_tests()
    for name, entry in by_name.items():
        mixer = builtin(name)
        assert all(reference.split(".")[-1] in used for reference in mixer.references), name
        packages = dict.fromkeys(record.words for record in of_mixer(name))
        assert entry["references"] == [*mixer.references, *packages]
        assert entry["options"] == dict(mixer.offers)
        reasons = {form: without_inference(mixer, form) for form in mixer.forms}
        assert entry["forms"] == {
            form: {"inference": reason is None, "reason": reason}
            for form, reason in reasons.items()
        }


def test_every_group_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    for group, mixers in groups().items():
        rows = printed_json(f"table --group {group} --phase training --format json", capsys)["rows"]
        assert isinstance(rows, list)
        assert [row["mixer"] for row in rows] == [mixer.name for mixer in mixers]
        shown += [mixer.name for mixer in mixers]
    assert sorted(shown) == sorted(names())


def run_script(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, str(ROOT / "cli.py"), *words], capture_output=True, text=True, **options
    )


@pytest.mark.parametrize("columns", ["", "40"])
def test_a_pipe_gets_whole_lines_or_those_of_columns_without_colour(columns: str) -> None:
    environment = {**os.environ, "COLUMNS": columns}
    made = run_script("table", "--d", "128", "--l", "128", env=environment)
    assert made.returncode == 0 and made.stderr == ""
    assert "\x1b" not in made.stdout and "left out" not in made.stdout
    assert "278,888,448" in made.stdout
    assert (max(map(len, made.stdout.splitlines())) <= 40) == bool(columns)


def test_errors_reach_standard_error_of_the_process() -> None:
    made = run_script("table", "--d", "0")
    assert made.returncode == 2 and made.stdout == "" and made.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("printed", "reader", "first"),
    [
        ("table me --l 1:2500 --columns l,total", "head -1", "sizes:"),  # more than a pipe holds
        ("sweep --help", "true", ""),
    ],
)
def test_a_closed_pipe_is_no_error(printed: str, reader: str, first: str) -> None:
    command = f"{shlex.quote(sys.executable)} cli.py {printed} | {reader}"
    made = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stderr == "" and made.stdout.startswith(first) and bool(made.stdout) == bool(first)


@pytest.mark.grid(2)
@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("command", [
    "explain lstm --phase all",
    "explain self-attention --phase training",
    f"table she strided-attention --l {2**40} --d {2**40} --columns mixer,mul,total,span",
    "table mega gss --symbolic --phase inference",
    "model gpt-2 --phase training-step",
    "model transformer-base --symbolic",
    "list she",
    f"verify {CLAIMS}",
    "check reformer --claim 'total = O(l*log(l))' --claim 'mul = 4*l*d^2 + 2*l^2*d'",
])  # fmt: skip
def test_every_line_fits_the_terminal_and_no_number_is_cut(
    command: str, width: int, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    said = {}
    for columns in (None, width):
        instead(screen=lambda output, columns=columns: (columns, False))
        assert cli.run(shlex.split(command)) in (0, 1)
        said[columns] = capsys.readouterr().out
    assert max(map(len, said[width].splitlines())) <= width
    joined = "".join(said[width].split())
    numbers = {*re.findall(r"\d[\d,]*", said[None])}
    assert numbers and [number for number in numbers if number not in joined] == []


@pytest.mark.parametrize("said", ["by the terminal", "by COLUMNS"])
@pytest.mark.parametrize(("columns", "bands"), [(80, 2), (200, 1)])
def test_a_narrow_terminal_shows_all_columns_in_bands(columns: int, bands: int, said: str) -> None:
    master, slave = pty.openpty()
    wide = columns if said == "by the terminal" else 0
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, wide, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    environment |= {} if wide else {"COLUMNS": str(columns)}
    made = subprocess.Popen(
        [sys.executable, "cli.py", "table", "--phase", "training"],
        cwd=ROOT, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    text = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    assert made.wait() == 0
    os.close(master)
    shown = text.decode()
    assert "\x1b[1m" in shown and "278,888,448" in shown
    assert shown.count("mixer ") == bands
    assert max(map(len, re.sub(r"\x1b\[\d*m", "", shown).splitlines())) <= columns


def test_the_table_imports_little(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    script = (
        "import sys, io, contextlib, gc\n"
        "searches = []\n"
        "gc.callbacks.append(lambda *_: searches.append('typer' in sys.modules))\n"
        "import cli, os\n"
        "os.environ['COSTMODEL_CACHE'] = '0'\n"
        "assert gc.isenabled() and True not in searches\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    codes = [cli.run(words.split()) for words in ('table --d 8', 'explain she',\n"
        f"             'table --symbolic --format json', 'model --hf {config}')]\n"
        "    unread = {'lark', 'pydantic', 'tomllib', 'costmodel.report.latex'}\n"
        "    assert not unread & {*sys.modules}\n"
        f"    codes.append(cli.run(['verify', {CLAIMS!r}]) - 1)\n"  # it holds a disagreement
        "assert codes == [0, 0, 0, 0, 0], codes\n"
        "print([m for m in ('torch', 'sympy', 'numpy', 'fvcore', 'pynvml') if m in sys.modules])\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert made.stdout == "[]\n"


def test_a_process_that_ends_frees_no_objects() -> None:
    """The system frees the memory of a process at once."""
    script = (
        "import cli, sys\n"
        "class Freed:\n"
        "    def __del__(self) -> None:\n"
        "        sys.stderr.write('freed')\n"
        "held = Freed()\n"
        "cli.main(['table', '--l', '8'])\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "self-attention" in made.stdout and not made.stderr


def test_help_prints_all_words_of_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Words in square brackets, such as [default: all], would be read as markup and left out."""
    for command in ("table", "budget", "compare"):
        cli.run([command, "--help"])
        said = capsys.readouterr().out
        assert "(default: " in said and not re.search(r"\w \.\s", said), command
