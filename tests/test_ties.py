"""Does a size that is tied to another have the value of that size in every row and formula?"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

import costmodel as cm
from costmodel.errors import SizeError
from costmodel.language.formula_text import parse
from costmodel.program.chosen_sizes import Given, combinations
from tests.typed import Capture, printed, refused


def rows(capsys: Capture, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv"))))


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    heads=st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
)
def test_tied_sizes_are_equal_in_every_combination(lengths: list[int], heads: list[int]) -> None:
    given_: Given = {"l": tuple(lengths), "n": tuple(heads), "g": "n", "t": "l"}
    found = combinations(["b", "l", "t", "n", "g"], given_)
    assert found == [{"b": 1, "l": l, "t": l, "n": n, "g": n} for l in lengths for n in heads]
    assert [at["t"] for at in combinations(["l", "t", "n"], {"l": "n", "n": (3, 5)})] == [3, 5]


def test_a_row_of_one_token_is_at_the_end_of_its_length(capsys: Capture) -> None:
    asked = ("table", "self-attention", "she", "--phase", "inference", "--l", "4:16:x2", "--t", "l")
    for row in rows(capsys, *asked, "--columns", "l,t,total"):
        sizes = {"l": int(row["l"]), "d": 128, "t": int(row["l"])}
        sizes |= {"n": 8} if row["mixer"] == "self-attention" else {}
        total = cm.count(cm.mixer(row["mixer"]), "inference").at(**sizes).total
        assert (row["t"], row["total"]) == (row["l"], str(total))


@pytest.mark.parametrize("mixer", ["self-attention", "linear-attention", "lstm"])
def test_formulas_name_the_size_that_others_are_tied_to(mixer: str, capsys: Capture) -> None:
    asked = ("table", mixer, "--phase", "inference", "--symbolic", "--format", "json")
    (tied,), (free,) = (
        json.loads(printed(capsys, *asked, *tie))["rows"] for tie in (("--t", "l"), ())
    )
    assert (tied["sizes"]["t"], free["sizes"]["t"]) == ("l", "t")
    at = {"l": 24, "t": 24, "d": 8, "n": 2}
    for key in ("total", "state_elements"):
        ours, theirs = (parse(row[key]).poly() for row in (tied, free))
        assert "t" not in ours.letters and ours.at(at) == theirs.at(at)


def test_a_size_that_is_tied_to_a_number_is_that_number(capsys: Capture) -> None:
    asked = ("table", "she", "--phase", "inference", "--symbolic", "--columns", "state")
    (row,) = rows(capsys, *asked, "--t", "l", "--l", "9", "--d", "4")
    assert row["state"] == "36"


def test_sizes_of_differences_are_tied(capsys: Capture) -> None:
    asked = ("explain", "self-attention", "--against", "gqa", "--symbolic", "--phase", "training")
    assert "differ" in printed(capsys, *asked)
    assert "differ" not in printed(capsys, *asked, "--g", "n")


def test_an_answer_takes_the_letter_of_another_size() -> None:
    state: Any = cm.state(cm.mixer("self-attention"))
    assert state.at(l=8, t="l", d=4) == state.at(l=8, t=8, d=4)
    assert list(state.at(l=[2, 3], t="l", d=4)) == [state.at(l=l, t=l, d=4) for l in (2, 3)]
    with pytest.raises(SizeError, match="size t must be a positive integer, got 'q'"):
        state.at(l=8, t="q", d=4)


REFUSED = {
    "table she --l x": "size l: expected numbers or one of the sizes b, d of she, got x",
    "table she --l l": "size l is tied to l, which is itself tied to l: expected a number",
    "table she --t l --l t": "size l is tied to t, which is itself tied to l: expected",
    "table she --l 8,t": "size l must be a positive integer, a list 1,8,32 or a range",
    "explain gqa --g G": "size g: expected numbers or one of the sizes b, l, d, n of self-",
    "model gpt-2 --l l --t l": "size t: expected numbers or one of the sizes b",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_tie_to_no_size_is_refused(line: str, capsys: Capture) -> None:
    assert REFUSED[line] in refused(capsys, *line.split())
