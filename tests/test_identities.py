"""Are equal formulas proven equal, also with cases and maxima, and unequal ones refuted?"""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, strategies as st

from costmodel.claims import identities
from costmodel.claims.identities import compare_formula, difference
from costmodel.claims.quantities import Answer
from costmodel.errors import Unanswered
from costmodel.language.formula_text import parse
from costmodel.symbolic.effort import limited
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import call
from costmodel.symbolic.thresholds import points
from tests.stand_ins import Instead


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
    assert found.difference == difference


MAXIMA = [
    ("l**2*n + 2*d*l + 2*l*n", "Max(2*l**2*n + 4*d*l + 4*l*n, l**2*n + 8*d*l + l*n)/2"),
    ("Max(2*l**2*n, 8*d*l)", "Max(2*l**2*n + 4*d*l + 4*l*n, l**2*n + 8*d*l + l*n)/2"),
    ("2*d*l*n + 2*d*l", "Max(2*d*l*n + 2*d*l, 2*d*l*n + 6*l*n + d*l, 2*l*n + 3*d*l + d*n + l*n)"),
    ("Max(l*(l + 1)/2, d*l)", "Max(l**2, d*(d + 1)/2)"),
]


@pytest.mark.parametrize(("claimed", "derived"), MAXIMA)
def test_a_difference_of_maxima_has_its_value_in_every_case(claimed: str, derived: str) -> None:
    """Conditions may have a size in every term, and sizes by halves."""
    formula, found = parse(claimed), answer(derived)
    apart = difference(formula, found)
    assert apart is not None
    cases = apart.chambers()
    for sizes in islice(points(frozenset("dln")), 300):
        here = [value for where, value in cases if all(c.rational(sizes) >= 0 for c in where)]
        assert [value.rational(sizes) for value in here] == [found.at(sizes) - formula.at(sizes)]


def test_a_piecewise_answer_is_compared_case_by_case() -> None:
    l, w = parse("l").poly(), parse("w").poly()
    windows = Answer(Exact(((frozenset({l - w}), w), (frozenset({w - l - 1}), l))))
    assert compare_formula(parse("Min(l, w)"), windows).proven
    found = compare_formula(parse("w"), windows)
    assert found.difference == "l - w if l < w; 0 if l >= w"
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 1, "w": 2}


def test_sizes_that_do_not_fit_are_passed_over() -> None:
    found = compare_formula(parse("l"), answer("2*l"), lambda sizes: sizes["l"] > 4)
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 5}
    with pytest.raises(Unanswered, match="none of the 5,000 smallest values"):
        compare_formula(parse("l"), answer("2*l"), lambda sizes: False)


def test_too_many_cases_prove_nothing_but_are_evaluated(instead: Instead) -> None:
    instead(identity_cases=2)
    formula = "Max(l, d) + Max(l, n) + Min(n, w)"
    found = compare_formula(parse(formula), answer(formula))
    assert not found.proven and not found.difference and found.disagreement is None
    assert found.text.endswith("smallest sizes; no proof for all")


def test_sizes_refute_before_a_proof_is_tried(instead: Instead) -> None:
    instead(difference=lambda *_: pytest.fail("a proof is tried"))
    found = compare_formula(parse("22"), answer("Max(l, w)"))
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 1, "w": 1}


def test_a_proof_takes_bounded_effort(monkeypatch: pytest.MonkeyPatch, instead: Instead) -> None:
    one, two = parse("Max(l + 7, w + 5, 2*d)"), answer("Max(2*d, Max(l + 7, w + 5))")
    instead(identity_effort=0)
    found = compare_formula(one, two)
    assert (found.proven, found.difference) == (False, "")
    assert found.text == "equal at the 5000 smallest sizes; no proof for all"
    monkeypatch.undo()
    assert compare_formula(one, two).proven


def test_without_a_proof_as_many_sizes_are_tried_as_effort_allows(
    instead: Instead,
) -> None:
    instead(identity_cases=2, limited_proof=lambda units=2000: limited(units))
    formula = "Max(l, d) + Max(l, n) + Min(n, w)"
    found = compare_formula(parse(formula), answer(formula))
    assert found.disagreement is None and identities.POINTS < found.tried < identities.SEARCHED


def test_cases_that_are_printed_are_proven() -> None:
    """As LaTeX and as CSV print them; the first has no value elsewhere."""
    l, w = parse("l").poly(), parse("w").poly()
    cases = Answer(Exact(((frozenset({l - w - 1}), call("ceil_log2", l - w)),
                          (frozenset({w - l}), w - l))))  # fmt: skip
    assert compare_formula(parse("where(ceil_log2(l - w), l - w - 1) + where(w - l, w - l)"),
                           cases).proven  # fmt: skip
    text = (
        "(ceil_log2(Max(1, l - w)) + 1)*Min(1, Max(0, l - w)) + (w - l)*Min(1, Max(0, w - l + 1))"
    )
    assert compare_formula(parse(text), cases).disagreement is not None
    halves = difference(parse("w*Min(1, Max(0, l/2))"), answer("0"))
    assert halves is not None and halves.at({"l": 1, "w": 2}) == -1


def test_a_wrong_proof_would_be_caught_by_evaluation(instead: Instead) -> None:
    instead(is_zero=lambda apart: True)
    found = compare_formula(parse("l**2"), answer("l**3"))
    assert found.disagreement is not None and found.disagreement.sizes == {"l": 2}


names = st.sampled_from(["l", "w", "d", "l - 1", "2", "w + d"])
terms = st.builds("{}({}, {})".format, st.sampled_from(["Max", "Min"]), names, names)
sums = st.lists(terms, min_size=1, max_size=2).map(" + ".join)


@given(sums, sums)
def test_a_proof_is_never_wrong_and_a_printed_difference_is_the_difference(
    one: str, two: str
) -> None:
    found, printed = compare_formula(parse(one), answer(two)), difference(parse(one), answer(two))
    for sizes in points(frozenset("ldw"), 4):
        apart = parse(two).at(sizes) - parse(one).at(sizes)
        assert printed is not None and printed.at(sizes) == apart
        assert not (found.proven and apart)
