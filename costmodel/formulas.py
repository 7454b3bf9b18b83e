"""What does a printed formula say, as an exact value at given sizes and as a polynomial?

The grammar is closed and is read by hand, never by `eval`: whole, decimal and scientific numbers,
size letters, `+ - * /`, powers (`**` or `^`), parentheses, `sum(body, index, first, last)`,
`ceil_log2(x)`, `floor(x)`, `ceil(x)`, `Max(...)` and `Min(...)`: the strings that `--symbolic`
prints, and the sums that papers print. What stands in O(...) may hold `log(x)`, `log(x, base)` and
`sqrt(x)` besides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from costmodel import formula_tree
from costmodel.formula_tree import (
    FUNCTIONS,
    GROWING,
    MOST_TERMS,
    Binary,
    Call,
    FormulaError,
    Letter,
    Node,
    NotPolynomial,
    Number,
    Sum,
)
from costmodel.polynomial import Poly
from costmodel.sizes import LETTERS

__all__ = ["Formula", "FormulaError", "NotPolynomial", "parse"]

MOST_TOKENS, DEEPEST = 500, 40
"""Tokens and nesting: beyond them a formula is refused."""

_TOKEN = re.compile(
    r"\s*(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4}(?![\w.]))?)|([A-Za-z_]\w*)|(\*\*|[-+*/^(),]))",
    re.ASCII,
)


@dataclass(frozen=True)
class Formula:
    """A parsed formula; `letters` are the sizes that it depends on."""

    text: str
    tree: Node
    letters: frozenset[str]

    def at(self, sizes: Mapping[str, int]) -> Fraction:
        """The exact value at integer sizes, every sum run term by term.

        Raises:
            FormulaError: a size without a value, a division by zero, or a value too large to hold.
        """
        return formula_tree.value(self.tree, dict(sizes), [MOST_TERMS], self.text)

    def poly(self) -> Poly:
        """The same as a polynomial with rational coefficients, sums closed by Faulhaber.

        Two formulas that are polynomials are equal for all sizes exactly when these are equal.

        Raises:
            NotPolynomial: a division by a sum, or an exponent that names sizes.
        """
        return formula_tree.poly(self.tree, {})

    def given(self, sizes: Mapping[str, int]) -> Formula:
        """The formula with numbers for some sizes.

        >>> parse("h*l").given({"n": 4}).poly()
        Poly(d*l/4)
        """
        if not sizes:
            return self
        tree = formula_tree.given(self.tree, sizes)
        return Formula(self.text, tree, self.letters - sizes.keys())


def parse(text: str, *, growing: bool = False) -> Formula:
    """Read a formula; `growing` allows the functions that may stand in O(...).

    >>> parse("n*sum(t + t, t, 1, l)").at({"n": 3, "l": 4})
    Fraction(60, 1)
    >>> str(parse("n*sum(t + t, t, 1, l)").poly())
    'l**2*n + l*n'

    Raises:
        FormulaError: what was expected, what came, and where.
    """
    parser = _Parser(text, growing)
    tree = parser.sum_of_terms(frozenset())
    parser.expect("", "an operator or the end")
    return Formula(text, tree, frozenset(parser.letters))


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, growing: bool) -> None:
        self.text = text
        self.functions = (*FUNCTIONS, *GROWING) if growing else tuple(FUNCTIONS)
        self.tokens = _tokens(text)
        self.position = 0
        self.depth = 0
        self.letters: set[str] = set()

    @property
    def token(self) -> str:
        return self.tokens[self.position][0]

    def take(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1][0]

    def fail(self, expected: str) -> FormulaError:
        got = f"'{self.token}'" if self.token else "the end"
        where = self.tokens[self.position][1] + 1
        return FormulaError(f"'{self.text}': expected {expected} at character {where}, got {got}")

    def unknown(self, name: str) -> FormulaError:
        if name in GROWING:
            return self.fail("an exact formula (log and sqrt may stand in O(...) only)")
        if all(letter in LETTERS for letter in name):
            return self.fail(f"a product written with *, such as {'*'.join(name)},")
        known = f"a size ({' '.join(LETTERS)}) or a function (sum {' '.join(self.functions)})"
        return self.fail(known)

    def expect(self, token: str, expected: str) -> None:
        if self.token != token:
            raise self.fail(expected)
        self.position += 1

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise FormulaError(f"'{self.text}' nests deeper than {DEEPEST} levels")

    def sum_of_terms(self, bound: frozenset[str]) -> Node:
        self.deeper()
        node = self.product(bound)
        while self.token in ("+", "-"):
            node = Binary(self.take(), node, self.product(bound))
        self.depth -= 1
        return node

    def product(self, bound: frozenset[str]) -> Node:
        node = self.signed(bound)
        while self.token in ("*", "/"):
            node = Binary(self.take(), node, self.signed(bound))
        return node

    def signed(self, bound: frozenset[str]) -> Node:
        negative = False
        while self.token in ("+", "-"):
            negative ^= self.take() == "-"
        node = self.power(bound)
        return Binary("-", Number(Fraction(0)), node) if negative else node

    def power(self, bound: frozenset[str]) -> Node:
        base = self.atom(bound)
        if self.token not in ("**", "^"):
            return base
        self.take()
        self.deeper()
        node = Binary("**", base, self.signed(bound))
        self.depth -= 1
        return node

    def atom(self, bound: frozenset[str]) -> Node:
        token = self.token
        if token == "(":
            self.take()
            node = self.sum_of_terms(bound)
            self.expect(")", "')'")
            return node
        if token[:1].isdigit():
            return Number(Fraction(self.take()))
        if token == "sum":
            return self.sum_call(bound)
        if token in self.functions:
            return self.function_call(bound)
        if token in bound:
            return Letter(self.take())
        if token in LETTERS:
            self.letters |= {"d", "n"} if token == "h" else {token}
            return Letter(self.take())
        if token[:1].isalpha() or token[:1] == "_":
            raise self.unknown(token)
        raise self.fail("a number, a size, a function or '('")

    def sum_call(self, bound: frozenset[str]) -> Node:
        """`sum(body, index, first, last)`: the index is read ahead, as the body may use it."""
        self.take()
        self.expect("(", "'(' after sum")
        start = self.position
        index = self.index_of_sum()
        self.position = start
        body = self.sum_of_terms(bound | {index})
        self.expect(",", "',' before the index of sum")
        self.take()
        self.expect(",", "',' after the index of sum")
        first = self.sum_of_terms(bound)
        self.expect(",", "',' before the last value of sum")
        last = self.sum_of_terms(bound)
        self.expect(")", "')' to close sum")
        return Sum(body, index, first, last)

    def index_of_sum(self) -> str:
        """The name after the first comma that no inner parenthesis holds."""
        level = 0
        while self.token and level >= 0:
            token = self.take()
            level += (token == "(") - (token == ")")
            if token == "," and level == 0:
                if not self.token.isidentifier() or self.token in (*self.functions, "sum"):
                    raise self.fail("the name of sum's index")
                return self.token
        raise self.fail("sum(body, index, first, last)")

    def function_call(self, bound: frozenset[str]) -> Node:
        name = self.take()
        self.expect("(", f"'(' after {name}")
        arguments = [self.sum_of_terms(bound)]
        while self.token == ",":
            self.take()
            arguments.append(self.sum_of_terms(bound))
        most = {"Max": MOST_TOKENS, "Min": MOST_TOKENS, "log": 2}.get(name, 1)
        if len(arguments) > most:
            raise self.fail(
                "one or two arguments of log" if most == 2 else f"one argument of {name}"
            )
        self.expect(")", f"')' to close {name}")
        return Call(name, tuple(arguments))


def _tokens(text: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            bad = end - len(text[position:end].lstrip())
            raise FormulaError(f"'{text}': unexpected {text[bad]!r} at character {bad + 1}")
        found.append((match.group(match.lastindex or 0), match.start(match.lastindex or 0)))
        position = match.end()
        if len(found) > MOST_TOKENS:
            raise FormulaError(f"a formula has at most {MOST_TOKENS} numbers, names and signs")
    return [*found, ("", len(text))]
