"""Does one list of questions feed CSV, JSON, the Python API and claims?"""

from __future__ import annotations

import csv
import inspect
import io
import json
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.mixers import builtin
from costmodel.oracle.quantities import QUANTITIES
from costmodel.program.conventions import Convention
from costmodel.questions import question as records
from costmodel.questions.question import EVERY, Case, Figure, Question, answers
from costmodel.questions.registry import CLAIMED, FIGURES, QUESTIONS
from costmodel.report.document import Page
from costmodel.report.formats import write
from costmodel.report.mixer_document import document
from costmodel.report.mixer_table import LABELS, Request, table

MIXERS = tuple(map(builtin, ("self-attention", "she", "lstm", "linear-attention")))


def at(row: Any, key: str) -> Any:
    """What stands under a key of a row, `counts.mul`."""
    for part in key.split("."):
        row = row[part]
    return row


@pytest.mark.parametrize("options", [{}, {"per_token": True, "optimiser": "adamw"}], ids=str)
def test_json_has_what_csv_has(options: Any) -> None:
    """The same values under every figure's key, and the same reasons."""
    made = table(Request(MIXERS, phases=EVERY, form="all", columns=(*LABELS, *FIGURES), **options))
    in_csv = list(csv.DictReader(io.StringIO(write(document(made), "csv", Page()))))
    in_json = json.loads(write(document(made), "json", Page()))["rows"]
    assert len(in_csv) == len(in_json) > 0
    for line, row in zip(in_csv, in_json, strict=True):
        for figure in FIGURES.values():
            if figure.within and FIGURES[figure.within].parts:
                whole = at(row, FIGURES[figure.within].key)
                found = None if whole is None else whole.get(figure.name, 0)
            else:
                found = at(row, figure.key or figure.name)
            if isinstance(found, dict):
                named = {name: value for name, value in found.items() if value}
                if figure.name == "other":  # without the classes that have a column of their own
                    named = {name: value for name, value in named.items() if name not in FIGURES}
                total = sum(map(int, named.values())) if not options else None
                if figure.name == "other":
                    shown = {k.removeprefix("other_"): v for k, v in line.items() if "other_" in k}
                    named_in_csv = {k: v for k, v in shown.items() if v not in ("0", "")}
                    assert {k: str(v) for k, v in named.items()} == named_in_csv
                assert total is None or str(total) == line[figure.name]
            elif found is None:
                assert line[figure.name] == "", figure.name
                assert row["reasons"], figure.name
            elif figure.kind != "steps":
                assert line[figure.name] == str(found), figure.name


def test_every_question_of_a_mixer_is_in_the_python_api() -> None:
    """Those with a line of their own, which type checkers read, and any that is new; and nothing
    that asks a mixer for a figure is there that no record names."""
    asked = {one.name: one.ask for one in QUESTIONS if one.ask is not None}
    assert {name: getattr(cm, name, None) for name in asked} == asked
    offered = {
        name
        for name in cm.__all__
        if getattr(cm, name).__module__.startswith("costmodel.questions.")
    }
    assert offered - asked.keys() == {"evaluate", "gradients"}  # arrays of values, no figures


def test_a_new_question_is_in_the_python_api(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Question("invented", "Invented", (), ask=cm.count, untallied="made up here")
    monkeypatch.setattr("costmodel.questions.registry.QUESTIONS", (*QUESTIONS, added))
    assert getattr(cm, "invented") is cm.count  # noqa: B009 - no type checker knows the name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(cm, "nothing")  # noqa: B009 - the same


def test_every_question_stands_in_a_file_of_its_own() -> None:
    folder = Path(inspect.getfile(records)).parent
    for one in QUESTIONS:
        if one.ask is not None:
            assert Path(inspect.getfile(inspect.unwrap(one.ask))) == folder / f"{one.name}.py"


def test_names_keys_and_words_are_told_apart() -> None:
    figures = [figure for one in QUESTIONS for figure in one.figures]
    for named in (
        [figure.name for figure in figures],
        [figure.key or figure.name for figure in figures],
        [one.name for one in QUESTIONS],
    ):
        assert len(named) == len(set(named))
    assert all(figure.meaning for figure in (*figures, *CLAIMED.values()))
    assert all(set(figure.phases) <= set(EVERY) for figure in figures)


def test_a_question_says_what_proves_it() -> None:
    with pytest.raises(ValueError, match="question 'reads': expected tallies, the quantities of"):
        Question("reads", "Reads", ())


def test_every_question_has_its_counterpart_in_the_oracle() -> None:
    """Or says why there is none; and the oracle tallies nothing that no question asks."""
    asked = [tally.quantity or tally.name for one in QUESTIONS for tally in one.tallies]
    assert sorted(asked) == sorted(QUANTITIES)
    assert all(bool(one.tallies) != bool(one.untallied) for one in QUESTIONS)


def test_a_figure_is_what_its_record_says() -> None:
    """Nothing else knows a figure's name: a record that no list holds is answered like the rest."""
    figure = Figure("held", "the parameters", lambda case: case.answer(FIGURES["parameters"]))
    case = Case(answers(cm.mixer("me"), "direct", "training", Convention()))
    assert str(case.figure(figure)) == str(case.figure(FIGURES["parameters"]))
