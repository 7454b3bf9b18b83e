"""Is a printed formula read as the paper means it, and refused where it is ambiguous?"""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, strategies as st

import cli
from costmodel.claims.as_printed import quantity_word, symbols
from costmodel.errors import FormulaError, SizeError
from costmodel.language.formula_text import parse, printed

SYMBOLS = symbols(r"N=l,d_model=d,\tau=n")
AT = {"l": 5, "d": 6, "n": 3, "w": 2, "t": 4}

READ = [
    # printed, in the grammar, the paper's symbols
    (r"\frac12 nl^2", "n*l^2/2", ""),
    (r"\frac{1}{2}n l^{2}", "n*l^2/2", ""),
    ("4d^2l", "4*d^2*l", ""),
    ("2nl d", "2*n*l*d", ""),
    ("1/2 nl^2", "n*l^2/2", ""),
    (r"$4 \cdot l \times d^{2}$", "4*l*d^2", ""),
    ("4 d² l × n", "4*d^2*l*n", ""),
    (r"\frac{1}{2} D N (N + 3)", "d*l*(l + 3)/2", "N=l,D=d"),
    ("NH(H + 1) - 2N", "l*n*(n + 1) - 2*l", "N=l,H=n"),
    ("nd^2 + h", "l*d^2 + n", "n=l,h=n"),
    (r"d_{\mathrm{model}}^2 \tau", "d^2*t", r"d_model=d,\tau=t"),
    (r"\left( l+1 \right) d/2", "(l + 1)*d/2", ""),
    (r"\lceil\log_2 d l\rceil + 2\lceil \log_2 \frac{d}{n} \rceil",
     "ceil_log2(d*l) + 2*ceil_log2(d/n)", ""),
    (r"\lceil\log_2 (l + 1)\rceil d", "ceil_log2(l + 1)*d", ""),
    (r"\lfloor\frac{l}{w}\rfloor \lceil\frac{l}{w}\rceil", "floor(l/w)*ceil(l/w)", ""),
    (r"\max(l, d) \min(l, 2d)", "Max(l, d)*Min(l, 2*d)", ""),
    ("where(2l, l - 1)", "where(2*l, l-1)", ""),
    ("sum(2t, t, 1, l)", "sum(2*t, t, 1, l)", ""),
    ("2^{l}d", "2^l*d", ""),
    ("-l + 2d", "-l + 2*d", ""),
    ("0.5 l d", "l*d/2", ""),
    ("10,502,144", "10502144", ""), ("10{,}502{,}144", "10502144", "T=l"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meant", "called"), READ)
def test_what_is_printed_is_read(text: str, meant: str, called: str) -> None:
    found = printed(text, symbols(called))
    assert found.at(AT) == parse(found.text).at(AT) == parse(meant).at(AT)


@pytest.mark.parametrize(("text", "meant"), [
    (r"l \log_2 l", "l*log(l, 2)"), (r"l \log l d", "l*log(l)*d"),
    (r"l \log_2 l^2 d + n", "l*log(l^(2), 2)*d + n"), (r"\log d l", "log(d)*l"),
    (r"n\log(l+1)", "n*log(l + 1)"), (r"\sqrt{l}d", "sqrt(l)*d"),
    (r"l\log_{2} l^{2} + d", "l*log(l^(2), 2) + d"),
    (r"\lceil\log_2 l + 1\rceil", "ceil(log(l, 2) + 1)"),
    (r"\lceil\log_2(l)^2\rceil", "ceil(log(l, 2)^2)"),
    (r"\lceil\log_2 d l\rceil", "ceil_log2(d*l)"),
])  # fmt: skip
def test_logarithms_and_roots_inside_an_order(text: str, meant: str) -> None:
    found = printed(text, growing=True)
    assert found.tree == parse(meant, growing=True).tree
    assert parse(found.text, growing=True).tree == found.tree


@pytest.mark.parametrize("text", ["4*l*d^2 + 2*l^2*d", "sum(t + t, t, 1, l)", "l/2*d"])
def test_what_is_in_the_grammar_stays_as_it_is(text: str) -> None:
    assert printed(text).text == text


@pytest.mark.parametrize(("text", "said"), [
    ("l/2d", "'l/2d', character 4: the divisor after / is ambiguous"),
    ("l/ld", "the divisor after / is ambiguous"),
    (r"l \log 2 l d", "the argument of log needs parentheses"),
    ("l2", "expected an operator or the end at character 2, got '2'"),
    ("2 3", "expected an operator or the end"),
    (r"2\foo d", r"character 2: \foo has no meaning in a formula"),
    ("|d|", "| has no meaning"),
    (r"\frac{1}", "in braces"),
    ("((l", "expected ')' at character 4, got the end"),
    (r"(l\rceil", r"expected ')' at character 3, got '\rceil'"),
    ("(" * 99 + "l l" + ")" * 99, "nests deeper"),
    ("l l" * 2501, "more than 5000"),
    ("joy", "expected a size"),
    (r"\lceil\log_2(l, d)\rceil", "expected one or two arguments of log at character 7"),
    (r"\sqrt[3]{l}", "character 6: \\sqrt is a square root"),
    ("10,502,14", "expected an operator"),
])  # fmt: skip
def test_what_is_not_plain_is_refused(text: str, said: str) -> None:
    with pytest.raises(FormulaError) as refused:
        printed(text, growing=True)
    assert said in str(refused.value)


Pair = tuple[str, str]
"""A formula in the plain dialect, and in LaTeX."""


def written(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    """Larger formulas of two smaller ones, in both dialects."""
    ways = (
        ("({0}) + ({1})", r"{0} + \left({1}\right)"),
        ("({0}) - ({1})", r"{0} - [{1}]"),
        ("({0})*({1})", r"\left({0}\right)({1})"),
        ("({0})*({1})*d", r"({0}) \cdot ({1}) d"),
        ("({0})/({1})", r"\frac{{{0}}}{{{1}}}"),
        ("({0})^2*({1})", r"({0})²({1})"),
        ("({0})^3*l*d", r"({0})^{{3}}ld"),
        ("ceil({0})*floor({1})", r"\lceil {0} \rceil\lfloor {1} \rfloor"),
        ("Max({0}, {1})", r"\max({0}, {1})"),
        ("sum(t*({0}), t, 1, 3) - ({1})", r"sum(t({0}), t, 1, 3) - ({1})"),
    )

    def of(way: Pair, one: Pair, two: Pair) -> Pair:
        plain, latex = (form.format(one[k], two[k]) for k, form in enumerate(way))
        return plain, latex

    return st.builds(of, st.sampled_from(ways), inner, inner)


@given(
    st.recursive(
        st.sampled_from([("2", "2"), ("l", "N"), ("d", r"d_{\mathrm{model}}"), ("n", r"\tau"),
                         ("l*n", r"N\tau"), ("l*d", "ld"), ("1/2", r"\frac12")]),
        written,
        max_leaves=5,
    )
)  # fmt: skip
def test_both_dialects_of_a_formula_have_one_value(pair: Pair) -> None:
    plain, latex = pair
    try:
        expected = parse(plain).at(AT)
    except FormulaError as reason:
        with pytest.raises(FormulaError, match=str(reason).rpartition("'")[2]):
            printed(latex, SYMBOLS).at(AT)
        return
    found = printed(latex, SYMBOLS)
    assert found.at(AT) == parse(found.text).at(AT) == expected


@pytest.mark.parametrize("text", ["N=xy", "N", "=l", "N=l,N=d", "d2=d", "2=d"])
def test_symbols_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(SizeError, match="--symbols"):
        symbols(text)


def test_quantities_are_named_as_tables_head_them() -> None:
    said = {
        "multiplications": "mul", "Additions": "add", "divisions": "div", "exponentials": "exp",
        "Parameters": "parameters", "multiplication": "mul", "critical path": "critical_path",
        "maximum path length": "path_length", "largest live set": "peak", "state": "state",
        "Sequential Operation": "sequential", "Total": "total", "joy": "joy",
    }  # fmt: skip
    assert {word: quantity_word(word) for word in said} == said


def test_a_claim_may_stand_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    line = r"""check self-attention --symbols N=l,H=n
        --claim 'multiplications = 4d^2N + N^2d + Nd'
        --claim 'exponentials = \frac12 HN(N+1)' --claim 'total = \mathcal{O}(N^2 d + N d^2)'"""
    assert cli.run(shlex.split(line)) == 0
    assert "3 claims: 3 agrees" in capsys.readouterr().out
