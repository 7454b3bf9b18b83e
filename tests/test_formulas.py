"""Does the grammar read printed formulas, refuse other texts, and evaluate exactly?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from costmodel.errors import FormulaError, NotPolynomial
from costmodel.language.formula_text import parse

SIZES = {"b": 1, "d": 6, "l": 5, "n": 3, "t": 2}

VALUES = {
    "0": 0,
    "1/2*l**2": Fraction(25, 2),
    "2.5*l": Fraction(25, 2),
    "d/n": 2,
    "h": 2,
    "-d**2": -36,
    "(-d)**2": 36,
    "2**3**2": 512,
    "l - d - n": -4,
    "l/d/n": Fraction(5, 18),
    "d*-2": -12,
    "--d": 6,
    "2**-1": Fraction(1, 2),
    "sum(t, t, 1, l)": 15,
    "sum(t, t, 3, 2)": 0,
    "sum(i*i, i, 1, n)": 14,
    "sum(sum(j, j, 1, i), i, 1, n)": 10,
    "t + sum(t, t, 1, 1)": 3,
    "ceil_log2(l)": 3,
    "ceil_log2(l*d - 29)": 0,
    "2**ceil_log2(l)": 8,
    "floor(l/2)": 2,
    "floor(l*d/7 - 1/2)": 3,
    "ceil(l/2)": 3,
    "ceil((l - 1)/n)": 2,
    "l^2*d": 150,
    "2^3^2": 512,
    "1e9": 10**9,
    "9.5e12*2": 19 * 10**12,
    "2.5E-1*d": Fraction(3, 2),
    "Max(l, d, n)": 6,
    "Min(l, d)": 5,
    "where(l, d - 6)": 5,
    "where(d, Min(5*t/l, d) - 2)": 6,
    "where(ceil_log2(l - 5), l - 6) + where(d, l - 5, d - l)": 6,
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_a_formula_has_its_exact_value(text: str, value: Fraction) -> None:
    assert parse(text).at(SIZES) == value


@pytest.mark.parametrize("text", VALUES)
def test_polynomial_has_the_same_value(text: str) -> None:
    formula = parse(text)
    try:
        exact = formula.exact()
    except NotPolynomial:
        assert text in {"sum(t, t, 3, 2)", "sum(sum(j, j, 1, i), i, 1, n)"}
    else:
        assert exact.rational(SIZES) == formula.at(SIZES)
    with suppress(NotPolynomial):
        assert formula.poly().rational(SIZES) == formula.at(SIZES)


def test_letters_leave_out_the_index_of_a_sum() -> None:
    assert parse("sum(t*d, t, 1, l)").letters == {"d", "l"}
    assert parse("t + sum(t, t, 1, l)").letters == {"l", "t"}
    assert parse("h").letters == {"d", "n"}


BAD = {
    "": "expected a number, a size, a function or '(' at character 1, got the end",
    "l +": "expected a number, a size, a function or '(' at character 4, got the end",
    "2l": "expected an operator or the end at character 2, got 'l'",
    "l d": "expected an operator or the end at character 3, got 'd'",
    "xd*d": "expected a size (b l t d",
    "4*ld": "expected a product written with *, such as l*d, at character 3, got 'ld'",
    "l*log(l)": "expected an exact formula (log and sqrt may stand in O(...) only) at character 3, "
    "got 'log'",
    "d^": "expected a number, a size, a function or '(' at character 3, got the end",
    "d^^2": "expected a number, a size, a function or '(' at character 3, got '^'",
    "l @ d": "unexpected '@' at character 3",
    "(l": "expected ')' at character 3, got the end",
    "l)": "expected an operator or the end at character 2, got ')'",
    "sum(t)": "expected sum(body, index, first, last)",
    "sum(t, t, 1)": "expected sum(body, index, first, last) at character 12, got ')'",
    "sum(t, t, 1, l, 2)": "expected sum(body, index, first, last) at character 17, got '2'",
    "sum(t, 2, 1, l)": "expected the name of sum's index at character 8, got '2'",
    "sum(t, sum, 1, l)": "expected '(' after sum at character 11, got ','",
    "sum(h*d, d, 1, 3)": "character 5: h is d/n, and d or n is an index here: name the index i",
    "ceil_log2 l": "expected '(' after ceil_log2",
    "ceil_log2(l, d)": "expected one argument of ceil_log2",
    "__import__('os')": 'unexpected "\'" at character 12',
    "__import__(os)": "expected a size (b l t d",
    "l.real": "unexpected '.'",
    "1e9x": "expected an operator or the end",
    "1e99999": "expected an operator or the end",
    "1e2.5": "expected an operator or the end at character 2, got 'e2'",
    "(" * 41 + "l" + ")" * 41: "nests deeper than 40 levels",
    "2" + "**2" * 60: "nests deeper than 40 levels",
    "1" + "+1" * 300: "at most 300 are allowed",
    "1" + "+(1+1+1+1+1)" * 600: "more than 5000 numbers",
    "where(l)": "expected where(value, a condition that is at least 0 there)",
}


@pytest.mark.parametrize(("text", "message"), BAD.items())
def test_a_text_that_is_no_formula_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_VALUES = {
    "f": "no value was given for size f",
    "1/(l - 5)": "divides by zero",
    "0**-1": "divides by zero",
    "2**(1/2)": "an exponent needs a whole number, got 1/2",
    "9**9**9": "more than 100000 bits",
    "sum(t, t, 1, 10**9)": "sums more than 1000000 terms",
    "sum(t, t, 1, l/2)": "a sum's last value needs a whole number, got 5/2",
    "ceil_log2(0)": "ceil_log2(0): expected a positive number",
    "ceil_log2(1/2)": "ceil_log2 needs a whole number, got 1/2",
}


@pytest.mark.parametrize(("text", "message"), BAD_VALUES.items())
def test_a_formula_without_a_value_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormulaError, match=r"^[^\n]*$") as caught:
        parse(text).at(SIZES)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["1/(l - 1)", "l**d", "sum(floor(i/2), i, 1, l)", "(l + d + n)**90"]
)
def test_a_formula_that_is_no_polynomial_is_refused(text: str) -> None:
    with pytest.raises(NotPolynomial):
        parse(text).poly()


def test_given_puts_numbers_for_sizes() -> None:
    formula = parse("h*l + sum(l*i, i, 1, l) - Max(d, n)").given({"n": 3, "l": 4})
    assert formula.letters == {"d"}
    assert formula.at({"d": 6}) == 2 * 4 + 4 * 10 - 6
    assert formula.given({"d": 6}).at({}) == 42
    index = parse("sum(t*d, t, 1, l)").given({"t": 9})
    assert index.at({"d": 2, "l": 3}) == 12
    assert parse("sum(h*l, h, 1, l)").given({"l": 3}).at({"d": 8, "n": 2}) == 18


def test_what_says_how_something_grows_has_no_value() -> None:
    formula = parse("l*log(l, k) + sqrt(d)", growing=True)
    assert formula.letters == {"l", "k", "d"}
    with pytest.raises(FormulaError, match=r"log has no exact value: log may stand in O\(...\)"):
        formula.at({"l": 4, "k": 2, "d": 4})
    with pytest.raises(NotPolynomial):
        formula.poly()
    with pytest.raises(FormulaError, match="one or two arguments of log"):
        parse("log(l, d, n)", growing=True)


Pair = tuple[str, Callable[[], Fraction]]


def leaf() -> st.SearchStrategy[Pair]:
    """A number or a size, as text and as value."""
    numbers = st.integers(0, 9).map(lambda k: (str(k), lambda: Fraction(k)))
    sizes = st.sampled_from("dlnt").map(lambda name: (name, lambda: Fraction(SIZES[name])))
    return numbers | sizes


def grown(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    """Operators over smaller formulas; the value is computed by Python's own Fractions."""

    def join(op: str, a: Pair, b: Pair) -> Pair:
        results = {
            "+": lambda: a[1]() + b[1](),
            "-": lambda: a[1]() - b[1](),
            "*": lambda: a[1]() * b[1](),
            "/": lambda: a[1]() / b[1](),
        }
        return f"({a[0]}) {op} ({b[0]})", results[op]

    power = st.tuples(inner, st.integers(0, 3)).map(
        lambda p: (f"({p[0][0]})**{p[1]}", lambda: p[0][1]() ** p[1])
    )
    return st.builds(join, st.sampled_from("+-*/"), inner, inner) | power


@given(st.recursive(leaf(), grown, max_leaves=8))
def test_random_formulas_have_their_exact_values(pair: Pair) -> None:
    text, value = pair
    try:
        expected = value()
    except ZeroDivisionError:
        with pytest.raises(FormulaError, match="divides by zero"):
            parse(text).at(SIZES)
        return
    formula = parse(text)
    assert formula.at(SIZES) == expected
    try:
        assert formula.poly().rational(SIZES) == expected
    except NotPolynomial:
        assert "/" in text
