"""Are the ranges in which exact quantities keep their order those that a scan over sizes finds?"""

from __future__ import annotations

import random

import pytest

from costmodel.errors import Unsupported
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call, padded
from costmodel.symbolic.ranges.one_size import sign, sign_changes, value
from costmodel.symbolic.ranges.solve import NOTHING, Quantity, Range, ranges
from costmodel.symbolic.sizes import LARGEST

L = Poly.atom("l")
SCANNED = 300


def solved(quantity: Quantity, last: int = LARGEST) -> list[tuple[Range, int]]:
    return ranges([quantity, NOTHING], "l", lambda l: sign(quantity.at({"l": l})), 1, last)


def one(*terms: Poly) -> Quantity:
    return Quantity(tuple(map(Exact.of, terms)))


def held(quantity: Quantity, last: int = LARGEST) -> None:
    """Compare the ranges with the sign at each size up to `SCANNED`, at random sizes, and beside
    the ends of ranges."""
    found = solved(quantity, last)
    ends = [x for (first, end, _), _ in found[:30] for x in (first - 1, first, end, end + 1)]
    drawn = random.Random(1)
    for l in {*range(1, SCANNED), *ends, *(drawn.randint(1, last) for _ in range(30))}:
        if 1 <= l <= last:
            there = [at for (first, end, step), at in found if l in range(first, end + 1, step)]
            assert there == [sign(quantity.at({"l": l}))], (l, quantity)


def drawn_poly(draw: random.Random, depth: int = 2) -> Poly:
    """A random polynomial with floors, logarithms, powers of two, maxima and minima."""
    total = Poly()
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice([0, 1, 1, 2, 3, 4, 5, 6]) if depth else draw.choice([0, 1, 1])
        if kind == 0:
            part = Poly.of(1)
        elif kind == 1:
            part = L ** draw.randint(1, 2)
        elif kind == 2:
            part = call("floor_div", drawn_poly(draw, depth - 1), draw.choice([2, 3, 4, 8, 16]))
        elif kind == 3:
            part = call("ceil_log2", call("Max", 1, drawn_poly(draw, depth - 1)))
        elif kind == 4:
            way = draw.choice(["Max", "Min"])
            part = call(way, drawn_poly(draw, depth - 1), drawn_poly(draw, depth - 1))
        elif kind == 5:
            part = padded(L) * draw.choice([Poly.of(1), L])
        else:
            part = call("floor_div", draw.randint(1, 200), L) * draw.choice([Poly.of(1), L])
        total = total + part * draw.choice([-100, -7, -3, -1, 1, 2, 5, 40])
    return total


def drawn_exact(draw: random.Random) -> Exact:
    """A sum of up to three random polynomials, some of them guarded."""
    total = Exact()
    for _ in range(draw.randint(1, 3)):
        guards = frozenset(
            drawn_poly(draw, draw.choice([0, 0, 1])) for _ in range(draw.choice([0, 0, 1, 2]))
        )
        total = total + Exact(((guards, drawn_poly(draw)),))
    return total


@pytest.mark.grid(25)
@pytest.mark.parametrize("seed", range(1000))
def test_random_quantities_against_a_scan(seed: int) -> None:
    draw = random.Random(seed)
    terms = tuple(drawn_exact(draw) for _ in range(draw.choice([1, 1, 2])))
    held(Quantity(terms), draw.choice([LARGEST, LARGEST, 5000]))


@pytest.mark.parametrize("seed", range(5))
def test_every_change_of_sign_of_a_polynomial_is_found(seed: int) -> None:
    """Also where it turns twice between two whole numbers, as 40*x**3 - 60*x**2 + 6*x + 7 does,
    whose derivative is positive at 0 and at 1."""
    draw = random.Random(seed)
    for _ in range(100):
        p = [draw.randint(-60, 60) for _ in range(draw.randint(1, 5))]
        signs = [sign(value(p, x)) for x in range(-40, 41)]
        changes = [x for x in range(-39, 41) if signs[x + 40] != signs[x + 39]]
        assert sign_changes(p, -40, 40) == changes, p
    assert sign_changes([7, 6, -60, 40], -5, 5) == [0, 1, 2]


def test_a_window_a_chunk_and_a_bracket_end_a_range() -> None:
    windowed = Exact(((frozenset({Poly.of(16) - L}), L * L), (frozenset({L - 17}), L * 16)))
    assert [tuple(r) for r, at in solved(Quantity((windowed - Exact.of(L * 10),))) if at > 0] == [
        (11, LARGEST, 1)
    ]
    held(one(call("floor_div", L - 1, 16) * 16 - 100))
    held(one(padded(L) * 3 - L * 4))
    held(one(call("ceil_log2", L * 3 + 1) - 4))


def test_a_sign_that_changes_with_the_remainder_is_told_class_by_class() -> None:
    """l - 2*floor(l/2) is 1 at odd sizes, without end; 30 of it less l - 9 differ in parity up to
    l = 39 alone."""
    odd = L - call("floor_div", L, 2) * 2
    found = solved(one(odd))
    assert [(tuple(r), at) for r, at in found] == [
        ((1, LARGEST - 1, 2), 1), ((2, LARGEST, 2), 0),
    ]  # fmt: skip
    held(one(odd * 30 - L + 9))
    held(one(odd * 30 - L + 10**9))
    held(one(call("floor_div", L, 3) * 3 + call("floor_div", L, 4) * 4 - L * 2 + 3))
    both = solved(one(odd * 30 - L + 10**9))
    assert [(r.step, at) for r, at in both].count((2, 1)) == 0
    assert both[0] == (Range(1, 10**9 - 1), 1) and both[-1][1] == -1


REST = L - call("floor_div", L, 8) * 8
"""l modulo 8."""


@pytest.mark.parametrize(
    "quantity",
    [
        Exact(((frozenset({REST - 5}), Poly.of(10**6)), (frozenset(), -L))),
        Exact(((frozenset({Poly.of(5) - REST}), Poly.of(10**6)), (frozenset(), -L))),
        Exact.of(call("Max", REST, 3) * 10**5 - L),
        Exact.of(L - call("Min", REST * 10**5, L * 2)),
        Exact.of(call("ceil_log2", REST + 1) * 10**5 - L),
        Exact.of(2 ** call("ceil_log2", REST + 1) * 10**5 - L),
        Exact.of(call("floor_div", REST * L + 1, 3) - L * 2 + 10**5),
    ],
)
def test_remainders_inside_of_other_functions(quantity: Exact) -> None:
    """As a condition, in a maximum, below a logarithm, a power and a quotient."""
    held(Quantity((quantity,)))


def test_a_period_of_more_classes_than_are_taken_is_refused() -> None:
    with pytest.raises(Unsupported, match="depends on l modulo 5,000"):
        solved(one(L - call("floor_div", L, 5000) * 5000 - 2500))


def test_a_long_period_is_no_obstacle_where_the_quotient_decides_little() -> None:
    """A chunk of 5,000: only near the break-even the remainder matters."""
    chunk = call("floor_div", L - 1, 5000)
    held(one(chunk * 5000 * 3 + L * 2 - 10**8))
    held(one(L * L * 2 - chunk * 5000 * L - 10**10))


def test_largest_of_several_terms_and_quotients() -> None:
    held(one(L, Poly.of(100) - L, L * 3 - 400))
    apart = [one(L * 2, Poly.of(90)), Quantity((Exact.of(L * L),), Exact.of(L + 7))]
    found = ranges(apart, "l", lambda l: sign(apart[0].at({"l": l}) - apart[1].at({"l": l})))
    for (first, last, _), at in found:
        for l in {first, last, (first + last) // 2}:
            assert at == sign(max(2 * l, 90) * (l + 7) - l * l)


def test_three_quantities_are_put_in_order() -> None:
    lines = [one(L * 3), one(L + 20), one(Poly.of(50) + call("floor_div", L, 4))]

    def least(l: int) -> int:
        return min(range(3), key=lambda k: lines[k].at({"l": l}))

    found = ranges(lines, "l", least)
    for l in range(1, SCANNED):
        assert [k for r, k in found if r.first <= l <= r.last] == [least(l)]
