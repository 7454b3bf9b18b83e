"""Are formulas proven equal where they are, with cases and maxima, and refuted where they part?"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from costmodel.claims import identities
from costmodel.claims.identities import compare_formula, difference_in_words
from costmodel.claims.quantities import Answer
from costmodel.symbolic.formulas import parse
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.thresholds import points


def answer(text: str) -> Answer:
    return Answer(Exact.of(parse(text).poly()))


PROVEN = [
    ("(l + d)**2", "l**2 + 2*l*d + d**2"),
    ("Min(l, w) + Max(l, w)", "l + w"),
    ("ceil_log2(Min(l, w)) + ceil_log2(Max(l, w))", "ceil_log2(l) + ceil_log2(w)"),
    ("Max(l, w, d)", "Max(d, Max(l, w))"),
    ("Max(l, w) - l", "Max(0, w - l)"),
    ("ceil(l/w)", "floor((l - 1)/w) + 1"),
    ("Max(d*t, t)", "d*t"),
]


@pytest.mark.parametrize(("one", "two"), PROVEN)
def test_identities_are_proven(one: str, two: str) -> None:
    for claimed, derived in ((one, two), (two, one)):
        found = compare_formula(parse(claimed), answer(derived))
        assert found.proven and found.disagreement is None
        assert found.text == "equal for all sizes (polynomial identity)"


APART = [
    ("Max(l, w)", "l", {"l": 1, "w": 2}, "l - w if l < w; 0 if l >= w"),
    ("2*l*d", "l**2*d", {"d": 1, "l": 1}, "d*l**2 - 2*d*l"),
    ("l", "2*l - 1", {"l": 2}, "l - 1"),
    ("floor(l/2)*2", "l", {"l": 1}, "l - 2*floor(l/2)"),
    ("l**n", "l", {"l": 2, "n": 2}, ""),
]


@pytest.mark.parametrize(("claimed", "derived", "sizes", "difference"), APART)
def test_where_they_first_part(
    claimed: str, derived: str, sizes: dict[str, int], difference: str
) -> None:
    found = compare_formula(parse(claimed), answer(derived))
    assert not found.proven and found.disagreement is not None
    assert found.disagreement.sizes == sizes
    assert difference_in_words(found.apart) == difference


def test_a_piecewise_answer_is_compared_case_by_case() -> None:
    l, w = parse("l").poly(), parse("w").poly()
    windows = Answer(Exact(((frozenset({l - w}), w), (frozenset({w - l - 1}), l))))
    assert compare_formula(parse("Min(l, w)"), windows).proven
    found = compare_formula(parse("w"), windows)
    assert difference_in_words(found.apart) == "l - w if l < w; 0 if l >= w"
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 1, "w": 2}


def test_sizes_that_do_not_fit_are_passed_over() -> None:
    found = compare_formula(parse("l"), answer("2*l"), lambda sizes: sizes["l"] > 4)
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 5}
    none = compare_formula(parse("l"), answer("2*l"), lambda sizes: False)
    assert none.disagreement is None and none.tried == 0 and not none.proven


def test_too_many_cases_prove_nothing_but_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "MOST_CASES", 2)
    formula = "Max(l, d) + Max(l, n) + Min(n, w)"
    found = compare_formula(parse(formula), answer(formula))
    assert not found.proven and found.apart is None and found.disagreement is None
    assert found.text.endswith("smallest sizes; no proof for all")


def test_a_wrong_proof_would_be_caught_by_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_is_zero", lambda apart: True)
    found = compare_formula(parse("l**2"), answer("l**3"))
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 2}


names = st.sampled_from(["l", "w", "d", "l - 1", "2", "w + d"])
terms = st.builds("{}({}, {})".format, st.sampled_from(["Max", "Min"]), names, names)
sums = st.lists(terms, min_size=1, max_size=2).map(" + ".join)


@given(sums, sums)
def test_a_proof_is_never_wrong_and_a_printed_difference_is_the_difference(
    one: str, two: str
) -> None:
    found = compare_formula(parse(one), answer(two))
    for sizes in points(frozenset("ldw"), 4):
        apart = parse(two).at(sizes) - parse(one).at(sizes)
        assert found.apart is not None and found.apart.at(sizes) == apart
        assert not (found.proven and apart)
