"""Does interpolation recover exactly the polynomial behind the numbers?"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from costmodel.symbolic.polynomial import Poly, call, size
from profiler.tracing.interpolation import (
    Point,
    axis,
    degree_along,
    interpolate,
    powers_up_to,
    spans,
)
from profiler.tracing.step_functions import PRIME, axis_with_atoms, in_span, monomial_values

LETTERS = ("l", "d", "n")


def random_poly(generator: random.Random) -> Poly:
    """Some terms of degree at most 3 in each of three letters, whole at all sizes."""
    poly = Poly()
    for _ in range(generator.randint(1, 8)):
        term = Poly.of(generator.randint(-9, 9))
        for letter in LETTERS:
            term = term * Poly.atom(letter) ** generator.randint(0, 3)
        poly = poly + term
    half = Poly.atom("l") * (Poly.atom("l") + 1) * Fraction(1, 2)
    return poly + half * generator.randint(-3, 3)


@pytest.mark.parametrize("seed", range(30))
def test_random_polynomials_are_found(seed: int) -> None:
    poly = random_poly(random.Random(seed))

    def numbers(point: Point) -> dict[str, int]:
        return {"x": poly.at(dict(zip(LETTERS, point, strict=True)))}

    def degree(i: int, base: Point) -> int:
        def along(place: int) -> dict[str, int]:
            return numbers((*base[:i], place, *base[i + 1 :]))

        found = degree_along(LETTERS[i], [base[i] + k for k in range(9)], along)
        assert found is not None
        return found

    axes = []
    for i, letter in enumerate(LETTERS):
        # two lines, as terms may cancel along one
        most = max(degree(i, (5, 3, 2)), degree(i, (11, 7, 13)))
        axes.append(axis(letter, powers_up_to(letter, most), range(5, 14)))
    assert interpolate(axes, numbers, whole=True).get("x", Poly()) == poly


def test_no_power_is_enough_for_steps() -> None:
    places = range(5, 14)
    assert degree_along("l", places, lambda p: {"x": -(-p // 3)}) is None


def test_powers_that_fit_a_few_places_are_found_out() -> None:
    basis = axis("l", powers_up_to("l", 1), [5, 6, 7])
    assert spans(basis, [5, 6, 7], lambda p: {"x": min(p, 10)})
    assert not spans(basis, [5, 6, 11], lambda p: {"x": min(p, 10)})


L = size("l")


def test_what_is_steady_is_held_against_every_place() -> None:
    """20 lies at no place that is tried for what may differ at single ones."""

    def along(place: int) -> dict[str, int]:
        return {"x": 7 * (place == 20)}

    found = axis_with_atoms("l", 1, 5, along, lambda p: {}, lambda p: [()])
    assert found is not None and spans(found, [21, 99], along)
    assert axis_with_atoms("l", 1, 5, along, along, lambda p: [()]) is None


def test_the_span_of_numbers_is_told_in_remainders() -> None:
    rows = monomial_values(np.array([[5, 6, 7, 8, 9], [1, 2, 2, 2, 3]]), 2)
    assert len(rows) == 6  # 1, x, a, x**2, x*a, a**2
    x, a = rows[1], rows[2]
    assert in_span(rows[:5], (x * x * 3 - x * a * 7 + 11) % PRIME)
    assert not in_span(rows[:3], x * a)


@pytest.mark.parametrize(
    "poly",
    [
        call("floor_div", L + 3, 4) * 5 + L,
        call("floor_div", L, 13) ** 2 * 3 + L * call("floor_div", L, 13),
        call("floor_div", L + 63, 64) * L,
        call("pow2", call("ceil_log2", L)) * call("ceil_log2", L) * 3 + L * 2,
    ],
    ids=str,
)
def test_atoms_are_found_without_shapes(poly: Poly) -> None:
    def along(place: int) -> dict[str, int]:
        return {"x": poly.at({"l": place})}

    found = axis_with_atoms("l", 1, 5, along, along, lambda p: [()])
    assert found is not None
    assert interpolate([found], lambda p: {"x": poly.at({"l": p[0]})})["x"].at({"l": 777}) == (
        poly.at({"l": 777})
    )


def test_powers_beside_atoms_are_tried_no_further_than_they_reach() -> None:
    """Of the grid's 64 products, for each of four functions of l: 1, d, d**2 and n at most."""
    d, steps = size("d"), call("ceil_log2", L)
    poly, asked = steps * L * d * 3 + L * d * 5 + steps * 2 + 7, []

    def numbers(point: Point) -> dict[str, int]:
        asked.append(point)
        return {"x": poly.at(dict(zip(LETTERS, point, strict=True)))}

    axes = [
        axis("l", [Poly.of(1), L, steps, L * steps], range(5, 40)),
        *(axis(letter, powers_up_to(letter, 3), range(3, 7)) for letter in "dn"),
    ]
    assert interpolate(axes, numbers)["x"] == poly
    assert len(asked) <= 4 * 4
