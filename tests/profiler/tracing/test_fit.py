"""Does interpolation find exactly the polynomial that numbers come from?"""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from costmodel.polynomial import Poly, call, size
from profiler.tracing.atoms import axis_with_atoms
from profiler.tracing.fit import Point, axis, degree_along, interpolate, powers, spans

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
        axes.append(axis(letter, powers(letter, most), range(5, 14)))
    assert interpolate(axes, numbers, whole=True).get("x", Poly()) == poly


def test_no_power_is_enough_for_steps() -> None:
    places = range(5, 14)
    assert degree_along("l", places, lambda p: {"x": -(-p // 3)}) is None


def test_powers_that_fit_a_few_places_are_found_out() -> None:
    basis = axis("l", powers("l", 1), [5, 6, 7])
    assert spans(basis, [5, 6, 7], lambda p: {"x": min(p, 10)})
    assert not spans(basis, [5, 6, 11], lambda p: {"x": min(p, 10)})


L = size("l")


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
    found = axis_with_atoms("l", 1, 5, lambda p: {"x": poly.at({"l": p})}, lambda p: [()])
    assert found is not None
    assert interpolate([found], lambda p: {"x": poly.at({"l": p[0]})})["x"].at({"l": 777}) == (
        poly.at({"l": 777})
    )
