"""Are functions of sizes exact, and is every notation equal in value?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from costmodel.errors import SizeError
from costmodel.language.formula_text import parse
from costmodel.symbolic.polynomial import OFTEN, Poly, Values, call, ceil_div, compiled, size
from costmodel.symbolic.pretty import PRETTY
from costmodel.symbolic.printing import poly_latex
from costmodel.symbolic.sympy_form import symbol, to_sympy

l, k, w, C, d, n = (size(letter) for letter in "lkwCdn")

QUOTIENTS = {
    "floor(l/C)": (l, C),
    "floor((l - 1)/C) + 1": (l + C - 1, C),
    "floor((l - 2)/(k - 1)) + 1": (l + k - 3, k - 1),
    "floor(2*l/3)": (2 * l, 3),
    "l + 2": (2 * l + 5, 2),
    "floor((l + 1)/2) + 2": (l + 5, 2),
    "floor(3/C) + l": (C * l + 3, C),
    "floor(l/(2*C))": (l, 2 * C),
    "floor(l/(d/n))": (l, d / n),
    "floor(-l/w)": (-l, w),
    "floor(l/2)": (l / 2, 1),
    "floor(l/(4*C))": (l / 2, 2 * C),
    "l + 1": (l * l - 1, l - 1),
    "l": (l, Poly.of(1)),
    "0": (Poly(), C),
    "3": (Poly.of(7), Poly.of(2)),
    "-4": (Poly.of(-7), Poly.of(2)),
}
"""What `floor_div` prints -> dividend and divisor."""

sizes = st.fixed_dictionaries({letter: st.integers(1, 40) for letter in "lkwCnh"}).map(
    lambda values: {**values, "d": values["n"] * values.pop("h")}
)


@pytest.mark.parametrize("text", QUOTIENTS)
def test_multiples_come_out_of_a_floor(text: str) -> None:
    assert str(call("floor_div", *QUOTIENTS[text])) == text


@given(sizes)
def test_floor_is_that_of_whole_numbers(at: dict[str, int]) -> None:
    for above, below in QUOTIENTS.values():
        divisor = Poly.of(below).at(at)
        if divisor < 1:
            continue
        quotient = call("floor_div", above, below)
        expected = above.rational(at) // divisor
        assert quotient.at(at) == expected
        assert parse(str(quotient)).at(at) == expected
        assert to_sympy(quotient).subs({symbol(x): value for x, value in at.items()}) == expected


OFTEN_EVALUATED = [
    *(call("floor_div", *pair) for pair in QUOTIENTS.values()),
    Poly(),
    2 * l * d - l / n + Fraction(3, 2) * d + Fraction(1, 3),
    d**2 / (n * n) - 4,
    call("ceil_log2", l / n) + call("pow2", call("Max", l, w)) - call("Min", l * d, C),
    call("floor_div", d / n + call("floor_div", l, C) - 1, w) * l / C,
    call("ceil_log2", call("pow2", l - d) + 1) + 4 * call("pow2", w - d) + l / n,
]


@pytest.mark.parametrize("poly", OFTEN_EVALUATED, ids=str)
@given(sizes)
def test_a_compiled_polynomial_has_the_value_of_its_terms(poly: Poly, at: dict[str, int]) -> None:
    """Also where there is none: a divisor of 0, a size that is missing."""

    def outcome(evaluated: Callable[[Mapping[str, int]], object], chosen: dict[str, int]) -> object:
        try:
            return evaluated(chosen), type(evaluated(chosen))
        except ValueError as error:
            return str(error)

    def terms(chosen: Mapping[str, int]) -> object:
        return poly.rational(Values(chosen))

    function = compiled(poly)
    assert function is not None
    for chosen in (at, at | {"k": 1, "l": 0}):
        assert outcome(terms, chosen) == outcome(function, chosen)


def test_a_polynomial_that_is_evaluated_often_is_compiled() -> None:
    often = 5 * l * d - Fraction(7, 3) * w
    for length in range(OFTEN + 2):
        assert often.at({"l": length, "d": 3, "w": 6}) == 15 * length - 14
    assert often._compiled is not None
    with pytest.raises(SizeError, match="no value for size d"):
        often.at({"l": 2, "w": 6})


@given(st.integers(-50, 50), st.integers(1, 12))
def test_floor_folds_constants(above: int, below: int) -> None:
    assert call("floor_div", above, below) == above // below
    assert call("floor_div", l, C).substitute({"l": Poly.of(above), "C": Poly.of(below)}) == (
        above // below
    )
    assert ceil_div(above, below) == -(-above // below)


def test_floor_in_latex() -> None:
    assert poly_latex(ceil_div(l - 1, w)) == r"\lfloor\frac{l - 2}{w}\rfloor + 1"
    assert poly_latex(call("floor_div", l, w) ** 2) == r"\lfloor\frac{l}{w}\rfloor^{2}"


@pytest.mark.parametrize("divisor", [0, -3])
def test_a_divisor_that_is_not_positive_is_refused(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"divides by a positive integer, got {divisor}"):
        call("floor_div", 7, divisor)
    with pytest.raises(ValueError, match=f"divides by a positive integer, got {divisor}"):
        call("floor_div", l, k).at({"l": 7, "k": divisor})


def test_a_divisor_that_is_zero_is_refused_before_the_dividend_is_known() -> None:
    with pytest.raises(ValueError, match="divides by a positive integer, got 0"):
        call("floor_div", l, 0)


def test_powers_of_two_of_a_size() -> None:
    """Halves and doubles of one power are told by their factor; no other number has a power."""
    k = size("k")
    assert 2 * 2 ** (k - 1) == 2**k
    assert (2 ** (k + 3)).at({"k": 2}) == 32
    assert (str((2**k) ** 2), PRETTY.poly((2**k) ** 2)) == ("2**(2*k)", "2^(2k)")
    for _ in range(OFTEN + 1):  # exactly, also with a negative exponent, and once compiled
        found = [(4 * 2 ** (k - l)).rational({"k": 1, "l": length}) for length in (4, 3)]
        assert (found, type(found[1])) == ([Fraction(1, 2), 1], int)
    assert call("pow2", -1) == Fraction(1, 2)
    assert call("ceil_log2", 2 ** (k - 1)) == k - 1
    assert call("ceil_log2", 3 * 2**k / 4) == k
    with pytest.raises(TypeError, match="got 3"):
        3**k
