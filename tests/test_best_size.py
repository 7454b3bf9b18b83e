"""Is the best chunk the one that a loop over all chunks finds, for each cost and phase?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import costmodel as cm
from costmodel.errors import Unanswered, Unsupported
from costmodel.oracle.execute import execute
from costmodel.program.conventions import convention
from costmodel.program.element_types import Dtypes
from costmodel.program.one_chunk import same_for_larger
from costmodel.questions import best_size
from costmodel.questions.best_size import (
    BEST_SIZE,
    COSTS,
    MOST,
    MOST_SEARCHED,
    Best,
    best,
    free_size,
)
from costmodel.questions.question import Case, Listing, Missing, answers
from costmodel.questions.registry import BEST, FIGURES
from costmodel.report.mixer_table import Request, column_names, table
from costmodel.report.table_data import json_row
from tests.small import complete

SIZES = {"b": 2, "l": 13, "d": 6, "n": 2, "C": 4}


def case(phase: str, name: str = "linear-attention", form: str = "chunked") -> Case:
    mixer = cm.mixer(name)
    about = answers(mixer, form, phase, convention("strict"))
    sizes = complete(mixer, SIZES)
    return Case(about, sizes | ({"t": 3} if phase == "inference" else {}), symbolic=False)


FORMS = {
    "linear-attention": "chunked",
    "retnet+core": "chunked",
    "gla+core": "chunked",
    "mlstm+core": "chunked",
    "deltanet+core": "chunked-wy",
}
"""Mixer -> a form in chunks. Derivatives of the chunks of mLSTM take more than a second: the suite
has mLSTM in `CHUNKED` alone."""


@pytest.mark.parametrize("phase", ["training", "inference", "backward"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.grid(*[5] * (name != "mlstm+core"))) for name in FORMS],
)
def test_the_best_chunk_is_that_of_a_loop(name: str, phase: str) -> None:
    """Over all chunks for every cost; chunks longer than the rows are one case."""
    asked, l = case(phase, name, FORMS[name]), 5
    asked = replace(asked, sizes={**asked.sizes, "l": l, "d": 4})
    for cost, figure in COSTS.items():
        if phase not in figure.phases:
            continue
        values = [
            replace(asked, sizes={**asked.sizes, "C": chunk}).figure(figure)
            for chunk in range(1, asked.sizes.get("t", l) + 7)
        ]
        assert all(isinstance(value, (int, Fraction)) for value in values)
        assert len({*values[-6:]}) == 1
        try:
            found = best(asked, figure)
        except Unanswered:
            assert len({*values}) == 1, cost
        else:
            least = min(values)  # type: ignore[type-var]
            assert (found.value, found.size) == (least, values.index(least) + 1), cost


CHUNKED = {
    ("gated-deltanet+core", "chunked-solve"): {"l": 7, "d": 2, "n": 1, "g": 1, "K": 2, "V": 3},
    ("mlstm+core", "chunked"): {"l": 7, "d": 2, "n": 1, "K": 3},
}
"""Mixer and form -> sizes."""


@pytest.mark.parametrize(("name", "form"), CHUNKED)
def test_the_best_chunk_is_that_of_executions(name: str, form: str) -> None:
    """Of the span, which has no formula with triangular solves, of all operations and of the
    traffic of a forward pass, and of the state after 6 tokens."""
    mixer, sizes, t = cm.mixer(name), CHUNKED[name, form], 6
    chunks = range(1, sizes["l"] + 2)
    runs = {C: execute(mixer.forms[form], {**sizes, "C": C}) for C in chunks}
    executed = {
        "span": {C: x.span() for C, x in runs.items()},
        "total": {C: sum((*x.counts().values(), *x.once().values())) for C, x in runs.items()},
        "unfused": {
            C: sum(each.activations + each.weights + each.state for each in x.unfused())
            for C, x in runs.items()
        },
        "state": {C: execute(mixer.forms[form], {**sizes, "l": t + C, "C": C}).state(t)
                  for C in range(1, t + 2)},
    }  # fmt: skip
    for cost, values in executed.items():
        phase = "inference" if cost == "state" else "training"
        about = answers(mixer, form, phase, convention("strict"))
        given = {"b": 1, **sizes, "C": 1} | ({"t": t} if cost == "state" else {})
        found = best(Case(about, given, symbolic=False), COSTS[cost])
        least = min(values, key=lambda C: values[C])
        assert (found.size, found.value) == (least, values[least]), cost


def test_a_cost_without_a_formula_is_searched() -> None:
    """The span of triangular solves: at C = 1 and C = l the chain passes through all rows."""
    about = answers(cm.mixer("deltanet+core"), "chunked-solve", "training", convention("strict"))
    assert BEST_SIZE.explained is not None
    (found,) = BEST_SIZE.explained(Case(about, {**SIZES, "b": 1}, symbolic=False))
    assert isinstance(found, Listing) and len(found.notes) == 1
    ((_, size, *_),) = (row for row in found.rows if row[0] == "span")
    assert 1 < int(str(size)) < SIZES["l"]
    long = Case(about, {**SIZES, "b": 1, "l": MOST_SEARCHED + 1}, symbolic=False)
    with pytest.raises(Unsupported, match="takes at most 1,024 rows, got 1,025") as refused:
        best(long, COSTS["span"])
    assert str(refused.value).startswith("U: the recurrence reads rows further back")


@pytest.mark.parametrize(
    "phase", ["training", pytest.param("training-step", marks=pytest.mark.grid)]
)
def test_chunks_that_are_left_out_take_no_shorter_path(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = answers(cm.mixer("deltanet+core"), "chunked-wy", phase, convention("strict"))
    asked = Case(about, {**SIZES, "b": 1, "l": 19}, symbolic=False)
    tried = [size for size, _ in best_size._searched(asked, COSTS["span"], "C", range(1, 20))]
    assert tried == [*range(1, len(tried) + 1)] and len(tried) < 19
    found = best(asked, COSTS["span"])
    monkeypatch.setattr(best_size, "same_for_larger", lambda *_: False)
    every = dict(best_size._searched(asked, COSTS["span"], "C", range(1, 20)))
    least = min(every, key=lambda size: every[size])
    assert len(every) == 19 and found == Best(least, every[least])


@pytest.mark.parametrize(
    ("name", "form"),
    [("kda+core", "chunked-rows"), ("mlstm", "chunked"), ("deltanet", "chunked-wy")],
)
def test_rows_of_one_chunk_are_the_same_in_longer_chunks(name: str, form: str) -> None:
    """From C = l on, and not from C = l - 1 on; in a form whose weights know C, never."""
    mixer = cm.mixer(name)
    about = answers(mixer, form, "training", convention("strict"))
    sizes = complete(mixer, {"l": 5, "d": 6, "n": 2})
    for C, same in ((4, False), (5, False), (6, True), (7, True)):
        assert same_for_larger(about.system, "C", {**sizes, "C": C}) == same
    assert not same_for_larger(about.system, "l", {**sizes, "C": 6})


def test_each_cost_has_a_column() -> None:
    names = ("best_chunk", "best_chunk_span", "best_chunk_other", "best_chunk_parameters")
    asked = case("training")
    given = {letter: (size,) for letter, size in asked.sizes.items()}
    columns = column_names("best_chunk_flops, best-chunk-total, " + ", ".join(names[1:]))
    made = table(Request((asked.mixer,), True, given, ("training",), "chunked", columns=columns))
    (row,) = made.blocks[0].rows
    assert made.blocks[0].columns == names
    for name, cost in zip(names, ("total", "span", "other"), strict=False):
        value = row.value(name)
        if cost == "other":
            assert value == Missing("other does not depend on C at these sizes")
        else:
            assert value == best(asked, COSTS[cost]).size
    assert json_row(row, names)["best_chunk_span"] == row.value("best_chunk_span")
    assert {*json_row(row)} & {*BEST} == set()


@pytest.mark.parametrize("types", [{}, {"cache": "q8_0", "state": "fp64"}], ids=["fp32", "own"])
def test_the_best_chunk_by_bytes_is_that_of_a_loop(types: dict[str, str]) -> None:
    asked = replace(case("inference"), dtypes=Dtypes(**types))
    for figure in (FIGURES["state_bytes"], COSTS["traffic"]):
        values = {
            C: replace(asked, sizes={**asked.sizes, "C": C}).figure(figure) for C in range(1, 10)
        }
        least = min(values, key=lambda C: values[C])  # type: ignore[arg-type, return-value]
        assert best(asked, figure).size == least


def test_only_a_size_that_another_form_lacks_is_free() -> None:
    linear = cm.mixer("linear-attention")
    assert free_size(linear, "chunked") == "C"
    assert free_size(cm.mixer("retnet"), "chunked") == "C"  # a table of C + 1 powers is its own
    for mixer, form in ((linear, "parallel"), (cm.mixer("mega+chunk"), "recurrent")):
        with pytest.raises(Unanswered, match=f"form '{form}' has no size that other forms lack"):
            free_size(mixer, form)


def test_what_is_not_searched_says_why() -> None:
    long = replace(case("training"), sizes={**SIZES, "l": MOST + 1})
    with pytest.raises(Unanswered, match="at most 131,072 are allowed"):
        best(long, COSTS["total"])
    symbolic = replace(case("training"), symbolic=True).figure(COSTS["total"])
    assert not isinstance(symbolic, Missing)
    with pytest.raises(Unanswered, match="leave out --symbolic"):
        best(replace(case("training"), symbolic=True), COSTS["total"])
