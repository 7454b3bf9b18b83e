"""Are conditions exact, that is, equal to a direct comparison at every small size?"""

from __future__ import annotations

from itertools import islice

import pytest

from costmodel.language.formula_text import parse
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.ranges.solve import NOTHING, Quantity, ranges
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import points, primitive, where_positive, where_zero


def poly(text: str) -> Poly:
    return parse(text).poly()


def least(difference: Poly, sizes: dict[str, int]) -> int | None:
    """The length from which on a difference is positive, and before which it is not; None if it is
    not positive at last."""
    known = {x: Poly.of(size) for x, size in sizes.items()}
    quantity = Quantity((Exact.of(difference.substitute(known)),))
    found = ranges([quantity, NOTHING], "l", lambda l: quantity.at({"l": l}) > 0)
    first, last = found[-1][0].first, found[-1][0].last
    assert last == LARGEST
    return first if found[-1][1] else None


def test_points_increase_and_respect_the_sizes() -> None:
    found = list(islice(points(frozenset("dln")), 200))
    sums = [sum(sizes.values()) for sizes in found]
    assert sums == sorted(sums)
    assert found[0] == {"d": 1, "l": 1, "n": 1}
    assert all(sizes["d"] % sizes["n"] == 0 for sizes in found)
    assert all(s["t"] <= s["l"] for s in points(frozenset("lt"), 6))
    assert len(list(points(frozenset("lt"), 6))) == 21
    assert list(points(frozenset())) == [{}]


CONDITIONS = {
    "d": "at every size",
    "0": "at no size",
    "-l": "at no size",
    "d - n + 1": "at every size",
    "l - t + 1": "at every size",
    "l*d**2 - 2*d**2": "l > 2",
    "4*d**2 - 3*d**2 - l*d": "l < d",
    "l*d - 2*l - 3*d": "l > 3*d/(d - 2) and d >= 3",
    "l*(d - 2) + 3": "d > 2 - 3/l",
    "l**2 - l*d**2": "l > d**2",
    "l*t - d*l*t": "at no size",
    "l**2 + t**2 - 7*l*t": "l**2 + t**2 - 7*l*t > 0",
    "l**2 - d**2": "l > d",
    "d**2 - l**2": "l < d",
    "(l - d)**3": "l > d",
    "(3*l - 2*d)*(2*d + l)*(l + d*n)": "l > 2*d/3",
    # two orders of the products of queries, keys and values: (n*l - d) * ((4*d - n)*l - d)
    "4*d*n*l**2 - n**2*l**2 - 4*d**2*l + d**2": "l > d/n",
    "(l - 2)*(l - d)": "l**2 - d*l + 2*d - 2*l > 0",
    "d*ceil_log2(l)": "ceil_log2(l) > 0",  # 0 at l = 1
    "d*2**l": "at every size",
    "2**(l - t + 1) - 1/2": "at every size",
    "2**(l - d) - 1/2": "2*2**(-d + l) - 1 > 0",  # 1/4 - 1/2 at l = 1, d = 3
    "ceil_log2(64/n) - 5": "ceil_log2(1/n) + 1 > 0",  # 3 - 5 at n = 8
}
"""The last factor of the products, 2*d + l, l + d*n, (4*d - n)*l - d, is positive at every size."""


@pytest.mark.parametrize(("text", "condition"), CONDITIONS.items())
def test_a_difference_is_positive_under_its_condition(text: str, condition: str) -> None:
    found = where_positive(poly(text))
    assert found.text == condition
    assert found.always == (condition == "at every size")
    assert found.never == (condition == "at no size")


@pytest.mark.parametrize("text", CONDITIONS)
def test_always_and_never_are_true_at_small_sizes(text: str) -> None:
    found, difference = where_positive(poly(text)), poly(text)
    for sizes in points(difference.letters, 7):
        positive = difference.rational(sizes) > 0
        assert not (found.always and not positive)
        assert not (found.never and positive)


ZEROS = {
    "d": "at no size",
    "0": "at every size",
    "l*d - d**2": "l = d",
    "2*l - 3*d": "-3*d + 2*l = 0",
    "l**2 - d**2": "l = d",
    "4*d*n*l**2 - n**2*l**2 - 4*d**2*l + d**2": "l = d/n",
    "d*ceil_log2(l)": "ceil_log2(l) = 0",
    "d*ceil_log2(l) - 3*ceil_log2(l)": "ceil_log2(l)*d - 3*ceil_log2(l) = 0",  # l = 1 or d = 3
}


@pytest.mark.parametrize(("text", "condition"), ZEROS.items())
def test_a_difference_is_zero_under_its_condition(text: str, condition: str) -> None:
    assert where_zero(poly(text)).text == condition


FACTORED = {
    "l**2 - d**2": "l - d",
    "d**2 - l**2": "d - l",
    "(3*l - 2*d)*(2*d + l)*(l + d*n)": "3*l - 2*d",
    "4*d*n*l**2 - n**2*l**2 - 4*d**2*l + d**2": "n*l - d",
}


@pytest.mark.parametrize(("text", "factor"), FACTORED.items())
def test_what_is_solved_has_the_sign_of_the_whole(text: str, factor: str) -> None:
    """At every small size, and so has the least length from which on it is positive."""
    difference, decides = poly(text), poly(factor)
    for sizes in points(frozenset("dln"), 9):
        whole, part = (p.rational(sizes) for p in (difference, decides))
        assert (whole > 0, whole == 0) == (part > 0, part == 0)
    for sizes in points(frozenset("dn"), 9):
        start = least(difference, sizes)
        positive = [difference.rational({**sizes, "l": l}) > 0 for l in range(1, 12)]
        if start is not None:
            assert positive == [l >= start for l in range(1, 12)]
        else:
            assert not positive[-1]


SHE_MORE = {
    "mul": "1/2*l**2*d**2 + 5/2*l*d**2 + l*d - (l**2*d + 4*l*d**2 + l*d)",
    "add": "1/2*l**2*d**2 + 5/2*l*d**2 - 3*l*d - (l**2*d + 4*l*d**2 - 4*l*d - l*n)",
    "total": "l**2*d**2 + 5*l*d**2 - 2*l*d"
    " - (2*l**2*d + 8*l*d**2 - 3*l*d - l*n + 3/2*(n*l**2 + n*l))",
}


@pytest.mark.parametrize("name", SHE_MORE)
def test_least_equals_direct_comparison(name: str) -> None:
    """The printed formulas of the two sublayers, compared directly up to l = 60, d = 24."""
    difference = poly(SHE_MORE[name])
    for sizes in points(frozenset("dn"), 24):
        positive = [difference.rational({**sizes, "l": l}) > 0 for l in range(1, 61)]
        start = least(difference, sizes)
        if start is None:
            assert not any(positive)
        else:
            assert positive == [l >= start for l in range(1, 61)]


def test_nothing_holds_where_the_threshold_is_not_stated() -> None:
    """'l > ... and d >= 3' claims that nothing holds for d <= 2, whatever the length."""
    for text in SHE_MORE.values():
        difference = poly(text)
        for d, n in ((1, 1), (2, 1), (2, 2), (3, 3)):
            if least(difference, {"d": d, "n": n}) is None:
                assert all(
                    difference.rational({"d": d, "n": n, "l": l}) <= 0 for l in range(1, 200)
                )


def test_primitive_keeps_the_sign() -> None:
    difference = poly("(l*d**2 - 3*d**2)/(2*n)")
    assert str(primitive(difference)) == "l - 3"
    assert primitive(poly("0")) == poly("0")
