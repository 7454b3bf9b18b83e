"""Does Python get the rows that the command line prints, exact, in every shape that it asks for?"""

from __future__ import annotations

import pydoc
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy

import costmodel as cm
from costmodel.commands.tables import CostTable, Html
from costmodel.errors import WrongKind
from costmodel.questions.registry import QUESTIONS
from costmodel.report.document import Column, Document, Page, Paragraph, Part, Table
from tests.test_texts import TAG
from tests.typed import Capture, printed

ASKED: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (
        ["self-attention", "she", "--d", "64", "--l", "8:32:x2", "--n", "2,4"],
        {"mixers": ["self-attention", "she"], "d": 64, "l": np.array([8, 16, 32]), "n": [2, 4]},
    ),
    (
        ["me", "linear-attention", "--symbolic", "--phase", "training-step", "--n", "4"],
        {"mixers": ["me", "linear-attention"], "symbolic": True, "phase": "training-step", "n": 4},
    ),
    (
        ["she", "--form", "all", "--columns", "mixer,total,traffic,ratio", "--sort", "-total",
         "--per-token", "--dtype", "bf16", "--weight-dtype", "fp32", "--convention", "mac,dense"],
        {"mixers": "she", "form": "all", "columns": ["mixer", "total", "traffic", "ratio"],
         "sort": "-total", "per_token": True, "dtype": "bf16", "weight_dtype": "fp32",
         "convention": ("mac", "dense")},
    ),
    (
        ["--group", "extractor", "--phase", "backward", "--recompute", "all", "--l", "16:64:x2"],
        {"group": "extractor", "phase": "backward", "recompute": "all", "l": "16:64:x2"},
    ),
]  # fmt: skip
"""Words of a command line -> the same in Python."""

FORMATS: dict[str, Callable[[CostTable], str]] = {
    "csv": CostTable.to_csv,
    "json": CostTable.to_json,
    "rich": repr,
    "markdown": CostTable.to_markdown,
    "latex": CostTable.to_latex,
}


@pytest.mark.parametrize(("words", "asked"), ASKED, ids=lambda _: "")
def test_rows_are_those_of_the_command(
    words: list[str], asked: dict[str, Any], capsys: Capture
) -> None:
    table = cm.table(**asked)
    for name, written in FORMATS.items():
        said = printed(capsys, "table", *words, "--format", name).rstrip("\n")
        said = re.sub(r"\A(<!-- costmodel .* -->\n\n|% costmodel .*\n)", "", said)
        said = re.sub(r"\n\nshown: self-attention and the .*\Z", "", said)
        assert written(table).rstrip("\n") == said, name


def test_a_row_has_exact_values_and_reasons() -> None:
    table = cm.table(["self-attention", "nystromformer"], d=128, l=128, columns="total,ratio,state")
    first, other, *_, last = table
    assert len(table) == 4 and table[0] is first and table[-2:] == [table[2], last]
    assert first["total"] == cm.count(cm.mixer("self-attention")).at(d=128, l=128, n=8).total
    assert isinstance(other["ratio"], Fraction) and other["ratio"] == Fraction(
        other["total"], first["total"]
    )
    assert last["state"] is None and "state" in last.reasons
    assert set(table.columns) == set(first) and "convention" in table.columns
    symbolic = cm.table("she", symbolic=True, phase="training")[0]
    assert symbolic["total"] == cm.count(cm.mixer("she")).total
    assert isinstance(symbolic["span"], sympy.Expr)


def test_a_data_frame_has_exact_types() -> None:
    table = cm.table(["she", "nystromformer"], d=2**14, l=[64, 2**20])
    frame = table.to_pandas()
    assert list(frame.columns) == [*table.columns, "reasons"]
    assert frame["total"].dtype == object and frame["total"].max() > 2**63
    assert frame["total"].tolist() == [row["total"] for row in table]
    assert frame["l"].dtype == "int64" and frame["state"].dtype == "Int64"
    assert frame["state"].isna().tolist() == [row["state"] is None for row in table]
    assert frame["ratio"].astype(float).dtype == float
    she = frame[(frame["mixer"] == "she") & (frame["phase"] == "training")]
    counts: Any = cm.count(cm.mixer("she"))
    assert counts.at(d=she["d"], l=she["l"]).total.tolist() == she["total"].tolist()
    (reason,) = {*frame["reasons"]} - {""}
    assert reason.endswith(table[-1].reasons["total"])


def test_a_missing_pandas_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'costmodel\[dataframes\]'"):
        cm.table("me").to_pandas()


def test_a_notebook_shows_every_cell_and_no_html_of_others() -> None:
    table = cm.table(["self-attention", "nystromformer"], d=128, l=128)
    shown = table._repr_html_()
    assert shown.count("<table>") == shown.count("</table>") == 2
    for row in (row for row in table if row["total"] is not None):
        assert f">{row['total']:,}</td>" in shown
    assert all(reason.split()[0] in shown for row in table for reason in row.reasons.values())
    parts: list[Part] = [Paragraph((TAG,)), Table(TAG, (Column("a", TAG),), ((TAG,),), ())]
    escaped = Html(Page()).write(Document(lambda: parts, ((TAG,),)))
    assert TAG not in escaped and escaped.count("&lt;img src=x onerror=alert(1)&gt;") == 5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"colums": "total"}, "table has no option 'colums': did you mean 'columns'?"),
        ({"l": [64, -1]}, r"size l must lie in 1..2\*\*40, got -1"),
        ({"l": np.array([1.5])}, "size l must be a positive integer, got 1.5"),
        ({"l": {64}}, "size l must be a positive integer, got .64.$"),
        ({"l": [{}]}, "size l must be a positive integer, got ..$"),
        (
            {"l": np.ma.array([64, 128], mask=[False, True])},
            "size l: expected an array without masked",
        ),
        ({"l": []}, "size l: expected an integer or several, got none"),
        ({"q": 3}, "size q is a size of none of these mixers"),
        ({"P": 3}, "size P is a size of none of these mixers"),
        ({"phase": "train"}, "^phase 'train': did you mean 'training'"),
        ({"optimiser": "adamw"}, "^optimiser is for a training step only: add phase training-step"),
        ({"dtype": "bf8"}, "unknown dtype 'bf8': expected one of fp64, "),
        ({"mixers": [3]}, "expected the name of a mixer, or a mixer, got the number 3"),
        ({"mixers": 3}, "expected the name of a mixer, or a mixer, got the number 3"),
        ({"phase": None}, "^phase: expected one of training, .*, got nothing .None.$"),
        ({"phase": []}, "^phase: expected one of training, .*, got a value of type list$"),
        ({"phase": [["training"]]}, "^phase: expected one of .* got a value of type list$"),
        ({"convention": {1: 2}}, "^expected a convention as text, .* got the number 1$"),
        ({"convention": None}, "^expected a convention as text, .* got nothing .None.$"),
        ({"sort": ["total"]}, "^table: sort must be a string or None, got a value of type list$"),
        ({"dtype": []}, "^table: dtype must be a string or None, got a value of type list$"),
        ({"board": {}}, "^table: board must be a string or None, got a value of type dict$"),
        ({"form": ["all"]}, "^table: form must be a string or None, got a value of type list$"),
        ({"columns": 3}, "unknown column '3'"),
        ({"columns": "totl"}, "unknown column 'totl'; did you mean 'total'?"),
    ],
)
def test_a_mistake_is_one_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        cm.table(**{"mixers": "she", **asked})
    assert "--" not in str(refused.value)


@pytest.mark.parametrize("wrong", [["x"], {"x": 1}, []])
@pytest.mark.parametrize(
    ("ask", "name"),
    [
        *((partial(cm.crossover, "we", "she"), name) for name in ("over", "phase", "form")),
        *((partial(cm.budget, "we", state="1GB"), name) for name in ("largest", "phase", "dtype")),
        *((partial(cm.match, "we", to="me", by="mul", vary="d"), x) for x in ("vary", "phase")),
    ],
)
def test_a_list_or_a_dict_in_place_of_text_is_one_sentence(
    ask: Callable[..., object], name: str, wrong: object
) -> None:
    with pytest.raises(WrongKind, match=rf"^\w+: {name} must be a string.*, got a value of type"):
        ask(**{name: wrong})


def test_the_name_of_a_phase_is_text() -> None:
    with pytest.raises(
        ValueError, match=r"^expected the name of a phase, .* a value of type list$"
    ):
        cm.count(cm.mixer("we"), ["training"])  # type: ignore[arg-type]


def test_help_begins_with_what_a_user_calls() -> None:
    said = pydoc.plain(pydoc.render_doc(cm))
    calls = said.partition("PACKAGE CONTENTS")[0]
    asked = {name for name in cm.__all__ if f"cm.{name}(" in calls}
    answers = {"table", "mixer", "symbols", "crossover", "budget", "match", "prove", "evaluate"}
    assert answers <= asked
    assert {one.ask.__name__ for one in QUESTIONS if one.ask} <= asked


def test_python_measures_as_the_command_does(tmp_path: Any) -> None:
    import profiler
    from profiler.records.store import read

    path = tmp_path / "runs.jsonl"
    asked: dict[str, Any] = {"counts_only": True, "output": path}
    found = profiler.measure("she:direct", "me", d=8, l=[8, 16], **asked)
    assert found.failures == [] and len(found.measurements) == 2 * (1 + 2)
    assert read(path)[0] == found.measurements
    first = next(m for m in found.measurements if m.mixer == "she" and m.sizes["l"] == 8)
    assert first.sizes == {"b": 1, "l": 8, "d": 8} and first.counts["dispatch"]["operations"]["mul"]
    timed = profiler.measure("me:fft", d=8, l=8, seconds=0.01).measurements[0].readings["latency"]
    assert timed.value > 0 and timed.unit == "s"
    with pytest.raises(ValueError, match="measure has no option 'dd': sizes are single"):
        profiler.measure("she", dd=3)


def test_a_form_is_named_behind_its_mixer() -> None:
    shown = cm.table(["retnet:parallel", "she"], phase="training", columns="form,total")
    alone = cm.table("retnet", form="parallel", phase="training", columns="form,total")
    assert [row["form"] for row in shown] == ["parallel", "direct"]
    assert next(iter(shown))["total"] == next(iter(alone))["total"]


def test_a_file_that_raises_is_a_row_with_its_reason(tmp_path: Path) -> None:
    """Beside another mixer; alone its exception is raised."""
    (tmp_path / "raises.py").write_text("1 / 0\n", encoding="utf-8")
    name = f"{tmp_path}/raises.py:m"
    raising, right = cm.table([name, "me"], d=3, l=5, phase="training")
    assert right["total"] == cm.count(cm.mixer("me")).at(d=3, l=5).total
    assert raising["total"] is None and "ZeroDivisionError" in raising.reasons["total"]
    with pytest.raises(cm.errors.UnknownMixer, match="ZeroDivisionError"):
        cm.table(name, d=3, l=5)
