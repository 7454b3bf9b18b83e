"""Is domination decided exactly, and does a formula grow as its leading terms say?"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, strategies as st

from costmodel import Unanswered, count, order
from costmodel.claims.asymptotics import printed_growths
from costmodel.errors import NoGrowth
from costmodel.language.formula_text import parse
from costmodel.mixers import builtin, names
from costmodel.questions.order import GROWING
from costmodel.symbolic.growth import (
    Assumptions,
    Growth,
    Log,
    RateInequality,
    dominates,
    growths,
    leading,
    limit,
    vanishing,
)
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

LETTERS = "dlnw"

powers = st.tuples(*(st.integers(-2, 2) for _ in LETTERS))


def of(exponents: tuple[int, ...]) -> Growth:
    return Growth.of(*zip(LETTERS, exponents, strict=True))


KNOWN = Assumptions((Growth.of(("d", 1), ("n", -1)), Growth.of(("l", 1), ("w", -1))))


@given(powers, powers)
def test_domination_equals_a_search_over_rates(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    """Sizes T**a with a in 0..4 for every letter, n <= d and w <= l: the quotient's power of T.

    The differences lie in -4..4, so a rate of 4 against 1 decides any of them.
    """
    bounded = all(
        sum(a * (x - y) for a, x, y in zip(rates, two, one, strict=True)) <= 0
        for rates in product(range(5), repeat=len(LETTERS))
        if rates[2] <= rates[0] and rates[3] <= rates[1]
    )
    assert dominates(of(one), of(two), KNOWN) == bounded


@given(powers, powers, powers)
def test_domination_is_transitive(
    a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...]
) -> None:
    one, two, three = of(a), of(b), of(c)
    if dominates(one, two, KNOWN) and dominates(two, three, KNOWN):
        assert dominates(one, three, KNOWN)


L, D, N, T = (Growth.of((x, 1)) for x in "ldnt")

DOMINATED = [
    (L, Growth.of((Log(L), 7)), True),
    (Growth.of((Log(L), 1)), L, False),
    (D, N, True),
    (N, D, False),
    (L * L, L * T, True),
    (Growth.of((Log(D), 1)), Growth.of((Log(N), 1)), True),
    (Growth.of((Log(N), 1)), Growth.of((Log(D), 1)), False),
    (L * D, L * Growth.of((Log(D), 1)), True),
    (D, N * Growth.of((Log(D), 1)), False),
    (Growth.of(("l", Fraction(3, 2))), L * Growth.of((Log(L), 1)), True),
    (L, Growth.of(("l", 1), (Log(L), -1)), True),
]


@pytest.mark.parametrize(("larger", "smaller", "expected"), DOMINATED)
def test_domination_with_logarithms(larger: Growth, smaller: Growth, expected: bool) -> None:
    assert dominates(larger, smaller, Assumptions()) == expected


LEADING = {
    "l**2*d + 4*l*d**2 - 4*l*d - l*n": "d*l**2 + d**2*l",
    "n*l**2 + n*l": "l**2*n",
    "7": "1",
    "w*l*d + d": "d*l*w",
    "l*d*2**ceil_log2(2*l - 1)*ceil_log2(l)": "d*l**2*log(l)",
    "ceil_log2(l*d) + 3": "log(l) + log(d)",
    "ceil_log2(d/n)": "log(d/n)",
    "floor((l - 2)/w) + 1": "l/w",
    "ceil(l/w)*d": "d*l/w",
    "Max(l, d)*d": "d*l + d**2",
    "Min(l, w)*d": "d*w",
    "(l - w*floor(l/w))^2*d + w^2*floor(l/w)*d": "d*l*w",
    "(l - 2*floor(l/2))^2 + d": "d",
    "(floor(l/w) - floor((l - 1)/w))*l^2 + l": "l**2",
    "(floor(l/w) - floor((l - 1)/w))*l*d + floor(l/w)*l": "d*l + l**2/w",
    "(l - w*floor((l + w - 1)/w) + w)*d + l": "d*w + l",
    "(l - w*floor(l/w))^2*ceil_log2(l)": "l**2*log(l)",
    "Max(w, l)": "l",
}


@pytest.mark.parametrize(("text", "terms"), LEADING.items())
def test_leading_terms_grow_fastest(text: str, terms: str) -> None:
    found = growths(parse(text).poly(), GROWING)
    assert {str(g) for g in found} == set(terms.split(" + "))


@pytest.mark.parametrize("name", names())
def test_an_order_is_as_large_as_the_count(name: str) -> None:
    """Of 16 times the length, both grow by about as much, the other sizes being fixed."""
    mixer = builtin(name)
    for form, phase in product(mixer.forms, ("training", "inference")):
        with suppress(Unanswered):
            total = count(mixer, phase, form).exact_total
            terms = Exact.of(sum(order(total).monomials, Poly()))
            times = []
            for letter in total.letters & {"l", "t"}:
                sizes = dict.fromkeys(mixer.letters, 4) | {"b": 1, "l": 2**20, "t": 2**20}
                few = sizes | {letter: 2**16}
                times.append([Fraction(f.at(sizes), f.at(few)) for f in (total, terms)])
            assert all(Fraction(1, 2) < grows / claimed < 2 for grows, claimed in times), form


PRINTED = {
    "l*sqrt(l)": "l**(3/2)",
    "log(l, k)": "log(l)/log(k)",
    "l*log(l)*d + l*d": "d*l*log(l)",
    "B^2 + (N/B)^2": "B**2 + N**2/B**2",
    "sqrt(l + d)": "l**(1/2) + d**(1/2)",
    "l^2*d/w": "d*l**2/w",
    "(l*log(l))^2": "l**2*log(l)**2",
    "1": "1",
}


@pytest.mark.parametrize(("text", "terms"), PRINTED.items())
def test_what_stands_in_an_order(text: str, terms: str) -> None:
    found = printed_growths(parse(text, growing=True), GROWING)
    assert {str(g) for g in found} == set(terms.split(" + "))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2**l", "grows faster than any power"),
        ("Min(l, d)", "which argument of 'Min(d, l)' is smaller depends on the sizes"),
        ("sqrt(l) - d", "the growth of a difference in O(...)"),
        ("d/(sqrt(l) + d)", "the growth of a division by a sum in"),
        ("sqrt(l)**d", "O(...) holds the exponent d: expected a positive number"),
        ("log(l, l + d)", "O(...) holds a logarithm to a base of several terms"),
        (
            "l*log(log(l))",
            "the growth of log(log(l)) is not derived, since log(l) holds a logarithm",
        ),
        ("log(l)*Min(l, log(d))", "the growth of Min in O(...) is not derived"),
    ],
)
def test_what_has_no_growth_says_why(text: str, said: str) -> None:
    with pytest.raises(NoGrowth) as caught:
        printed_growths(parse(text, growing=True), GROWING)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_of_terms_that_grow_alike_the_first_is_kept() -> None:
    assert leading([L, L * L, L * L], Assumptions()) == (L * L,)
    both = leading([D * L, Growth.of(("d", 1), ("l", 1))], Assumptions())
    assert both == (D * L,)


def test_a_limit_exists_where_sizes_can_grow_so() -> None:
    assert limit([L * D * D], [L * L * D], Assumptions()) == [(L * D * D, L * L * D)]
    assert limit([D], [N], Assumptions()) is None  # n <= d: d never vanishes beside n
    assert limit([L, D], [D, L], Assumptions()) is None  # not both at once
    assert limit([L * D, D * D], [L * L], Assumptions()) == [(L * D, L * L), (D * D, L * L)]
    assert limit([D], [D * Growth.of((Log(L), 1))], Assumptions()) is not None
    assert limit([L * D * D], [L * L * D], Assumptions().with_fixed("l")) is None


def test_a_quotient_of_two_logarithms_has_no_row() -> None:
    assert vanishing(Growth.of((Log(L), 1), (Log(D), -1))) is None
    assert vanishing(Growth.of(("l", -1))) == RateInequality({"l": Fraction(1)})


def test_a_case_says_more_about_the_sizes() -> None:
    known = Assumptions().where(frozenset({parse("l - 2*k - 1").poly()}))
    k = Growth.of(("k", 1))
    assert dominates(L, k, known) and not dominates(L, k, Assumptions())
