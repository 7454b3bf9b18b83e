"""Is the best chunk the one that a loop over all chunks finds, for each cost and phase?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import costmodel as cm
from costmodel.errors import Unanswered
from costmodel.program.conventions import convention
from costmodel.questions.best_size import COSTS, MOST, best, free_size
from costmodel.questions.question import Case, Missing, answers

SIZES = {"b": 2, "l": 13, "d": 6, "n": 2, "C": 4}


def case(phase: str, form: str = "chunked") -> Case:
    about = answers(cm.mixer("linear-attention"), form, phase, convention("strict"))
    sizes = {**SIZES, "t": 9} if phase == "inference" else SIZES
    return Case(about, sizes, symbolic=False)


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


def test_only_a_size_that_another_form_lacks_is_free() -> None:
    linear = cm.mixer("linear-attention")
    assert free_size(linear, "chunked") == "C"
    assert free_size(cm.mixer("retnet"), "chunked") == "C"  # a table of C + 1 powers is its own
    for mixer, form in ((linear, "parallel"), (cm.mixer("mega+chunk"), "recurrent")):
        with pytest.raises(Unanswered, match=f"form '{form}' has no size of free choice"):
            free_size(mixer, form)


def test_what_is_not_searched_says_why() -> None:
    long = replace(case("training"), sizes={**SIZES, "l": MOST + 1})
    with pytest.raises(Unanswered, match="is searched in at most 131,072 rows"):
        best(long, COSTS["total"])
    symbolic = replace(case("training"), symbolic=True).figure(COSTS["total"])
    assert not isinstance(symbolic, Missing)
    with pytest.raises(Unanswered, match="leave out --symbolic"):
        best(replace(case("training"), symbolic=True), COSTS["total"])
