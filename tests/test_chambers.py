"""Do the printed cases of an answer hold its value, without overlap, and are they few?"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from costmodel.questions.order import long_case
from costmodel.symbolic import piecewise
from costmodel.symbolic.examples import differs_from_zero
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call, size
from costmodel.symbolic.printing import formula_words
from tests import systems

l, w, k, d = (size(letter) for letter in "lwkd")


def agrees(exact: Exact, letters: str, most: int = 7) -> int:
    """At every size exactly one case holds, and it has the value; the number of cases."""
    cases = exact.chambers()
    for values in product(range(1, most + 1), repeat=len(letters)):
        at = dict(zip(letters, values, strict=True))
        held = [value for guards, value in cases if all(g.rational(at) >= 0 for g in guards)]
        assert [value.at(at) for value in held] == [exact.at(at)], at
    return len(cases)


n, t, C = (size(letter) for letter in "ntC")


def floor(above: Poly, below: Poly) -> Poly:
    return call("floor_div", above, below)


@pytest.mark.parametrize(
    ("poly", "where", "differs"),
    [
        (l - w, [], True),
        (l - w, [l - w, w - l], False),
        (l - 3 * w, [l - 3 * w - 2, 3 * w + 2 - l], True),  # at few examples
        (floor(l, w) - 1, [l - w, 2 * w - 1 - l], False),
        (floor(d, n) * n - d, [], False),  # n divides d
        (call("Max", t, l) - l, [], False),  # t is at most l
        (2 * floor(l, C) - 2 * l / C, [], False),  # l/C is an integer
        (2 * floor(l, C) * C - 2 * l, [], True),  # no quotient says that C divides l
        ((l - w) / 2, [w + 1 - l, l - w], False),  # less than 1, as proofs of integers allow
    ],
)
def test_a_polynomial_that_may_be_proven_to_be_0_differs_at_no_example(
    poly: Poly, where: list[Poly], differs: bool
) -> None:
    assert differs_from_zero(poly, frozenset(where)) is differs


def test_a_case_of_one_length_joins_its_neighbour() -> None:
    """w at l <= w and l at l > w: at l = w the one is the other, however the pieces are cut."""
    cut = Exact(
        (
            (frozenset({l - w - 1}), w),
            (frozenset({l - w, w - l}), l),
            (frozenset({w - l - 1}), l),
        )
    )
    assert agrees(cut, "lw") == 2


def test_the_case_of_long_sequences_is_found_without_comparing_each_pair_of_cases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of 16 cases or more, at the cost of a few comparisons with each other case."""
    tried, compare = [], piecewise._joint_case

    def counted(one: piecewise.Case, two: piecewise.Case) -> piecewise.Case | None:
        tried.append((one, two))
        return compare(one, two)

    monkeypatch.setattr(piecewise, "_joint_case", counted)
    pieces = [(frozenset({l - 7 * x - 1}), (l - 7 * x) * d) for x in (w, k, n, C)]
    exact = Exact(tuple(pieces))
    guards, value = long_case(exact)
    assert guards == frozenset(where for held, _ in pieces for where in held)
    assert value == sum((poly for _, poly in pieces), Poly())
    cases = len(exact._split(frozenset(), None) or ())
    assert len(tried) < 10 * cases < cases**2


def test_a_gap_stays() -> None:
    """The same value on both sides of another one is two cases."""
    apart = Exact(((frozenset({l - w - 1}), d), (frozenset({w - l - 1}), d)))
    assert agrees(apart, "lwd", 4) == 3


def test_values_that_differ_at_an_example_need_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise, "_vanishes", lambda *_: pytest.fail("a proof was tried"))
    cut = Exact(((frozenset({l - w}), 5 * d), (frozenset({w - l - 1}), 3 * d)))
    assert agrees(cut, "lwd", 3) == 2


def test_pieces_of_one_polynomial_become_one() -> None:
    half = call("floor_div", w, 2)
    cut = Exact(((frozenset({l - half}), l * d), (frozenset({half - l - 1}), l * d)))
    assert cut.chambers() == ((frozenset(), l * d),)


def test_sizes_that_are_pinned_by_what_bounds_them() -> None:
    """l = k-1 and l <= k - floor((k+1)/2) hold at k = 2 alone, where both values are 1."""
    centre = call("floor_div", k + 1, 2)
    here = frozenset({k - l - 1, l - k + 1, k - centre - l})
    cut = Exact(((here, l * l), (frozenset({l - k}), Poly.of(1)), (frozenset({k - l - 2}), l)))
    assert agrees(cut, "lk") <= 4


def test_what_is_one_value_piece_by_piece_is_one_case() -> None:
    """The last B rows and every B-th one keep all rows; at t < B, at t = B and at t = 2B - 1 the
    pieces have other polynomials for them."""
    exact = cm.state(cm.mixer("strided-attention")).exact
    assert exact.chambers() == ((frozenset(), 2 * d * size("t")),)
    assert agrees(exact, "tBd") == 1


def test_cases_at_no_size_do_not_double() -> None:
    """No whole numbers have 2l - 2w = 1, from which 3l - 3w >= 2 and its opposite follow, and so
    of 5l - 5w >= 3 and of every further guard."""
    nowhere = frozenset({2 * l - 2 * w - 1, 2 * w - 2 * l + 1})
    guards = [(2 * n + 1) * (l - w) - (n + 1) for n in range(40)]
    many = Exact(((nowhere, d), *((frozenset({guard}), d) for guard in guards)))
    assert agrees(many, "lwd", 5) <= 3


def test_a_quotient_by_nothing_is_no_value() -> None:
    """At w = 2 the window has no token ahead: how far one way reaches says nothing there."""
    for name, letter in (("restricted-attention", "w"), ("convolution-same", "k")):
        assert agrees(cm.path_length(cm.mixer(name)).exact, f"l{letter}", 9) == 3


@pytest.mark.parametrize(
    ("name", "letter"),
    [
        ("convolution", "k"),
        ("convolution-same", "k"),
        ("restricted-attention", "w"),
        ("restricted-attention-causal", "w"),
    ],
)
def test_a_window_has_two_cases(name: str, letter: str) -> None:
    """Windows that lie inside the sequence somewhere, and windows that nowhere do."""
    for exact in cm.count(cm.mixer(name)).classes.values():
        plain = exact.substitute({"d": Poly.of(2), "n": Poly.of(1)})
        assert agrees(plain, f"l{letter}", 9) == 2


def test_cases_of_a_convolution_are_printed_in_full() -> None:
    macs = cm.count(cm.mixer("convolution-same")).classes["mul"].substitute({"d": Poly.of(1)})
    assert formula_words(macs) == (
        "floor((k + 1)/2)*k - floor((k + 1)/2)**2 - k**2/2 + k*l + floor((k + 1)/2) - k/2 "
        "if floor((k + 1)/2) + l >= k; l**2 if floor((k + 1)/2) + l < k"
    )


@given(mixer=systems.mixers(ranges=("around", "window", "ahead")))
@settings(max_examples=40)
def test_cases_of_random_systems_equal_the_counts_at_sizes(mixer: Mixer) -> None:
    try:
        counts = cm.count(mixer).classes
    except Unsupported:
        return
    small = {letter: Poly.of(1) for letter in mixer.letters if letter not in "lw"}
    for exact in counts.values():
        agrees(exact.substitute(small), "lw", 5)
