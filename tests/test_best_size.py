"""Is the best chunk the one that a loop over all chunks finds, for each cost and phase?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import costmodel as cm
from costmodel.errors import Unanswered
from costmodel.oracle.execute import execute
from costmodel.program.conventions import convention
from costmodel.questions.best_size import BEST_SIZE, COSTS, MOST, best, free_size
from costmodel.questions.question import Case, Listing, Missing, answers

SIZES = {"b": 2, "l": 13, "d": 6, "n": 2, "C": 4}


def case(phase: str, form: str = "chunked") -> Case:
    about = answers(cm.mixer("linear-attention"), form, phase, convention("strict"))
    sizes = {**SIZES, "t": 9} if phase == "inference" else SIZES
    return Case(about, sizes, symbolic=False)


@pytest.mark.grid(2)
@pytest.mark.parametrize("phase", ["training", "inference", "training-step"])
@pytest.mark.parametrize("name", COSTS)
def test_the_best_chunk_is_that_of_a_loop(name: str, phase: str) -> None:
    figure, asked = COSTS[name], case(phase)
    if phase not in figure.phases:
        pytest.skip(f"{name} exists in other phases")
    values: list[int | Fraction] = []
    for chunk in range(1, asked.sizes.get("t", SIZES["l"]) + 1):
        value = replace(asked, sizes={**asked.sizes, "C": chunk}).figure(figure)
        assert isinstance(value, (int, Fraction))
        values.append(value)
    if len({*values}) == 1:
        with pytest.raises(Unanswered, match="does not depend on C"):
            best(asked, figure)
        return
    found = best(asked, figure)
    assert (found.value, found.size) == (min(values), values.index(min(values)) + 1)


CHUNKED = {
    ("gated-deltanet+core", "chunked-solve"): {"l": 7, "d": 2, "n": 1, "g": 1, "K": 2, "V": 3},
    ("mlstm+core", "chunked"): {"l": 7, "d": 2, "n": 1, "K": 3},
}
"""Mixer and form -> sizes; the least traffic is neither at the smallest nor at the largest C."""


@pytest.mark.parametrize(("name", "form"), CHUNKED)
def test_the_best_chunk_is_that_of_executions(name: str, form: str) -> None:
    """Of the span, which has no formula with triangular solves, of all operations and of the
    traffic of a forward pass, and of the state after 6 tokens."""
    mixer, sizes, t = cm.mixer(name), CHUNKED[name, form], 6
    chunks = range(1, sizes["l"] + 1)
    runs = {C: execute(mixer.forms[form], {**sizes, "C": C}) for C in chunks}
    executed = {
        "span": {C: x.span() for C, x in runs.items()},
        "total": {C: sum((*x.counts().values(), *x.once().values())) for C, x in runs.items()},
        "unfused": {
            C: sum(each.activations + each.weights + each.state for each in x.unfused())
            for C, x in runs.items()
        },
        "state": {C: execute(mixer.forms[form], {**sizes, "l": t + C, "C": C}).state(t)
                  for C in range(1, t + 1)},
    }  # fmt: skip
    for cost, values in executed.items():
        phase = "inference" if cost == "state" else "training"
        about = answers(mixer, form, phase, convention("strict"))
        given = {"b": 1, **sizes, "C": 1} | ({"t": t} if cost == "state" else {})
        found = best(Case(about, given, symbolic=False), COSTS[cost])
        least = min(values, key=lambda C: values[C])
        assert (found.size, found.value) == (least, values[least]), cost


def test_a_cost_without_a_formula_is_searched_in_few_rows() -> None:
    """The span of triangular solves: at C = 1 and C = l the chain passes through all rows."""
    about = answers(cm.mixer("deltanet+core"), "chunked-solve", "training", convention("strict"))
    assert BEST_SIZE.explained is not None
    (found,) = BEST_SIZE.explained(Case(about, {**SIZES, "b": 1}, symbolic=False))
    assert isinstance(found, Listing) and len(found.notes) == 1
    ((_, size, *_),) = (row for row in found.rows if row[0] == "span")
    assert 1 < int(str(size)) < SIZES["l"]
    long = Case(about, {**SIZES, "b": 1, "l": 65}, symbolic=False)
    (found,) = BEST_SIZE.explained(long)
    assert isinstance(found, Listing) and "span" not in [row[0] for row in found.rows]
    assert found.notes[1].startswith("span: no formula, and so no best value (U: the recurrence")
    assert found.notes[1].endswith("of at most 64 values, and there are 65: choose a smaller l)")


def test_only_a_size_that_another_form_lacks_is_free() -> None:
    linear = cm.mixer("linear-attention")
    assert free_size(linear, "chunked") == "C"
    assert free_size(cm.mixer("retnet"), "chunked") == "C"  # a table of C + 1 powers is its own
    for mixer, form in ((linear, "parallel"), (cm.mixer("mega+chunk"), "recurrent")):
        with pytest.raises(Unanswered, match=f"form '{form}' has no size of free choice"):
            free_size(mixer, form)


def test_what_is_not_searched_says_why() -> None:
    long = replace(case("training"), sizes={**SIZES, "l": MOST + 1})
    with pytest.raises(Unanswered, match="at most 131,072 are allowed"):
        best(long, COSTS["total"])
    symbolic = replace(case("training"), symbolic=True).figure(COSTS["total"])
    assert not isinstance(symbolic, Missing)
    with pytest.raises(Unanswered, match="leave out --symbolic"):
        best(replace(case("training"), symbolic=True), COSTS["total"])
