"""Are functions of sizes exact, and is every notation equal in value?"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from costmodel.language.formula_text import parse
from costmodel.symbolic.polynomial import Poly, call, ceil_div, size
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
        expected = above.at(at) // divisor
        assert quotient.at(at) == expected
        assert parse(str(quotient)).at(at) == expected
        assert to_sympy(quotient).subs({symbol(x): value for x, value in at.items()}) == expected


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
    assert call("ceil_log2", 2 ** (k - 1)) == k - 1
    assert call("ceil_log2", 3 * 2**k / 4) == k
    with pytest.raises(TypeError, match="got 3"):
        3**k
