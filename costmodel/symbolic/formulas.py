"""A formula as a tree: evaluated exactly at sizes, converted to polynomials.

A tree has five kinds of nodes (`Tree`), which `language.formula_text` reads from text. `value` adds
up every sum term by term; `poly` closes sums by Faulhaber's formulas; `exact` keeps conditions too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, floor, lcm

from costmodel import errors
from costmodel.errors import FormulaError, NotPolynomial
from costmodel.symbolic import constraints, polyhedral_sums, polynomial
from costmodel.symbolic.effort import spend
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, index_atom
from costmodel.symbolic.sizes import ceil_log2


@dataclass(frozen=True)
class Formula:
    """A parsed formula; `letters` are the sizes that it depends on."""

    text: str
    tree: Tree
    letters: frozenset[str]

    def at(self, sizes: Mapping[str, int]) -> Fraction:
        """The exact value at integer sizes, with every sum added up term by term.

        Raises:
            FormulaError: as the function `value`; and a value of more than `MOST_PRINTED` bits.
        """
        found = value(self.tree, dict(sizes), [MOST_TERMS], self.text)
        if _bits(found) > MOST_PRINTED:
            raise FormulaError(f"'{self.text}' is a number of more than {MOST_PRINTED:,} bits")
        return Fraction(found)

    def poly(self) -> Poly:
        """The formula as a polynomial with rational coefficients. Formulas with equal polynomials
        are equal for all sizes; the converse fails with functions: floor(l/2) + ceil(l/2) = l.

        Raises:
            NotPolynomial: as the function `poly`, for a divisor of several terms (d/(l + 1), not
                d/l), for example; and a number of more than `MOST_PRINTED` bits.
        """
        return _printable(poly(self.tree, {}))

    def exact(self) -> Exact:
        """The formula as a sum of polynomials, each `where` (a term that counts only where
        conditions hold) as a guarded polynomial.

        Raises:
            NotPolynomial: as `poly`, for d/(l + 1) (not for d/l) or a number that is too large; and
                for a `where` that is not a term of the outermost sum.
        """
        found = exact(self.tree)
        return Exact(tuple((guards, _printable(value)) for guards, value in found.pieces))

    def given(self, sizes: Mapping[str, int]) -> Formula:
        """The formula with numbers substituted for some sizes.

        >>> from costmodel.language.formula_text import parse
        >>> parse("h*l").given({"n": 4}).poly()
        Poly(d*l/4)
        """
        if not sizes:
            return self
        tree = given(self.tree, sizes)
        return Formula(self.text, tree, self.letters - sizes.keys())


MOST_TERMS, MOST_BITS, MOST_PRINTED = 1_000_000, 100_000, 14_000
"""Limits on the terms of sums, the bits of a power and the bits of a value; more is refused."""

MOST_MONOMIALS = 5_000
"""A product or power with more monomials is not expanded: the formula is compared at sizes."""


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: Fraction


@dataclass(frozen=True)
class Name:
    """A size, or the index of a surrounding sum."""

    name: str


@dataclass(frozen=True)
class BinaryOperation:
    """`left op right`, op one of + - * / **."""

    op: str
    left: Tree
    right: Tree


@dataclass(frozen=True)
class FunctionCall:
    """A call of `where`, of a function in `FUNCTIONS` or, inside O(...), in `GROWING`."""

    name: str
    arguments: tuple[Tree, ...]


@dataclass(frozen=True)
class IndexedSum:
    """The sum of the body over the index from first to last; 0 where last < first."""

    body: Tree
    index: str
    first: Tree
    last: Tree


Tree = Number | Name | BinaryOperation | FunctionCall | IndexedSum

_ZERO, _ONE = Number(Fraction(0)), Number(Fraction(1))


def _integer(value: polynomial.Number, name: str, text: str) -> int:
    """The value as an int; FormulaError if it is a fraction. `name` says what needs the number."""
    if value.denominator != 1:
        raise FormulaError(f"'{text}': {name} needs a whole number, got {value}")
    return value.numerator


def _ceil_log2(value: polynomial.Number) -> polynomial.Number:
    """ceil(log2 value); FormulaError unless the value is a positive whole number."""
    whole = _integer(value, "ceil_log2", f"ceil_log2({value})")
    if whole < 1:
        raise FormulaError(f"ceil_log2({value}): expected a positive number")
    return ceil_log2(whole)


FUNCTIONS: Mapping[str, Callable[..., polynomial.Number]] = {
    "ceil_log2": _ceil_log2,
    "floor": floor,
    "ceil": ceil,
    "Max": lambda *values: max(values),
    "Min": lambda *values: min(values),
}

WHERE = "where"
"""The name of the conditional: its first argument where the others are at least 0, else 0."""

GROWING = ("log", "sqrt")
"""Functions that only O(...) may contain, because they have no exact value."""


def value(node: Tree, sizes: dict[str, int], budget: list[int], text: str) -> polynomial.Number:
    """The exact value of a formula's tree at sizes, an int or a Fraction (which may be whole, as
    1/2 + 1/2 is); h is d/n unless given.

    Args:
        sizes: size, or index of a surrounding sum -> its value.
        budget: a list with one number: the terms of sums that may still be added.
        text: the whole formula, for messages.

    Raises:
        FormulaError: a size without a value, a division by zero, a fraction where a whole number is
            needed, a function without an exact value, more terms than `budget`, or a power with
            more than `MOST_BITS` bits. TooMuch: more steps of arithmetic than `limited` allows.
    """
    if isinstance(node, Number):
        return _whole(node.value)
    if isinstance(node, Name):
        if node.name == "h" and "h" not in sizes and {"d", "n"} <= sizes.keys():
            return _whole(Fraction(sizes["d"], sizes["n"]))
        if node.name not in sizes:
            raise FormulaError(f"'{text}': no value was given for size {node.name}")
        return sizes[node.name]
    if isinstance(node, FunctionCall):
        if node.name in GROWING:
            raise FormulaError(
                f"'{text}': {node.name} has no exact value: {node.name} may stand in O(...) only"
            )
        if node.name == WHERE:
            inside, *guards = node.arguments
            here = all(value(guard, sizes, budget, text) >= 0 for guard in guards)
            return value(inside, sizes, budget, text) if here else 0
        return FUNCTIONS[node.name](*(value(a, sizes, budget, text) for a in node.arguments))
    if isinstance(node, BinaryOperation):
        left = value(node.left, sizes, budget, text)
        return _binary_value(node.op, left, value(node.right, sizes, budget, text), text)
    first = _integer(value(node.first, sizes, budget, text), "a sum's first value", text)
    last = _integer(value(node.last, sizes, budget, text), "a sum's last value", text)
    budget[0] -= max(0, last - first + 1)
    if budget[0] < 0:
        raise FormulaError(f"'{text}' sums more than {MOST_TERMS} terms")
    total: polynomial.Number = 0
    for at in range(first, last + 1):
        total += value(node.body, {**sizes, node.index: at}, budget, text)
        spend(1 + _bits(total) // 64)
    return total


def _bits(number: polynomial.Number) -> int:
    """The bits of the larger of numerator and denominator."""
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _printable(value: Poly) -> Poly:
    """The polynomial itself; NotPolynomial if one of its numbers is too large to print."""
    if any(_bits(number) > MOST_PRINTED for number in value.terms.values()):
        raise NotPolynomial(f"a number of more than {MOST_PRINTED:,} bits")
    return value


def _whole(number: polynomial.Number) -> polynomial.Number:
    """The number, as an int where it is whole."""
    return number.numerator if number.denominator == 1 else number


def _binary_value(
    op: str, left: polynomial.Number, right: polynomial.Number, text: str
) -> polynomial.Number:
    """`left op right`, exactly; a whole quotient or power as int, a sum may be Fraction(1). Raises
    FormulaError (division by zero, fraction as exponent, bits of left * exponent > `MOST_BITS`) and
    TooMuch (`spend`: a limit on steps)."""
    spend(1 + (_bits(left) + _bits(right)) // 64)
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    if op == "/":
        if right == 0:
            raise FormulaError(f"'{text}' divides by zero")
        return _whole(Fraction(left) / right)
    power = _integer(right, "an exponent", text)
    bits = _bits(left) * abs(power)
    spend(bits // 64)
    if bits > MOST_BITS:
        raise FormulaError(f"'{text}': a power with more than {MOST_BITS} bits")
    if left == 0 and power < 0:
        raise FormulaError(f"'{text}' divides by zero")
    return _whole(Fraction(left) ** power)


def given(node: Tree, sizes: Mapping[str, int], indices: frozenset[str] = frozenset()) -> Tree:
    """The formula's tree with numbers substituted for some sizes, and d/n for h where h has no
    number. The index of a sum is no size: it stays, even if it has the letter of a size. `indices`:
    those of the surrounding sums."""
    if isinstance(node, Number) or (isinstance(node, Name) and node.name in indices):
        return node
    if isinstance(node, Name):
        if node.name == "h" and "h" not in sizes:
            return BinaryOperation("/", given(Name("d"), sizes), given(Name("n"), sizes))
        return Number(Fraction(sizes[node.name])) if node.name in sizes else node
    if isinstance(node, FunctionCall):
        return FunctionCall(node.name, tuple(given(a, sizes, indices) for a in node.arguments))
    if isinstance(node, BinaryOperation):
        left, right = (given(part, sizes, indices) for part in (node.left, node.right))
        return BinaryOperation(node.op, left, right)
    first, last = (given(end, sizes, indices) for end in (node.first, node.last))
    body = given(node.body, sizes, indices | {node.index})
    return IndexedSum(body, node.index, first, last)


def poly(node: Tree, bound: Mapping[str, Poly]) -> Poly:
    """The formula's tree as a polynomial; `bound`: index of a surrounding sum -> its atom.

    Raises:
        NotPolynomial: a divisor of several terms (l + 1), an exponent that names sizes (of another
            base than 2), a product or power with too many monomials, a `where` or a function of
            O(...), or a sum over an index that has no closed form or may be empty.
    """
    if isinstance(node, Number):
        return Poly.of(node.value)
    if isinstance(node, Name):
        if node.name in bound:
            return bound[node.name]
        return polynomial.size("h") if node.name == "h" else Poly.atom(node.name)
    if isinstance(node, FunctionCall):
        return _call_poly(node, bound)
    if isinstance(node, IndexedSum):
        return _sum_poly(node, bound)
    left, right = poly(node.left, bound), poly(node.right, bound)
    if node.op == "**":
        return _power_poly(left, right)
    if node.op == "/":
        if len(right.terms) != 1:
            raise NotPolynomial(f"a division by {right}")
        return left / right
    if node.op == "*" and len(left.terms) * len(right.terms) > MOST_MONOMIALS:
        raise NotPolynomial(
            f"a product of {len(left.terms):,} and {len(right.terms):,} terms, which has too many"
        )
    return {"+": Poly.__add__, "-": Poly.__sub__, "*": Poly.__mul__}[node.op](left, right)


def exact(node: Tree) -> Exact:
    """The formula's tree as a sum of polynomials with guards (conditions g >= 0 under which a
    polynomial counts): each `where`, and each product with Min(1, Max(0, g)), is a guarded
    polynomial.

    Raises:
        NotPolynomial: as the function `poly`, or for a `where` that is not a term of the sum.
    """
    if isinstance(node, BinaryOperation) and node.op in ("+", "-"):
        left, right = exact(node.left), exact(node.right)
        return left + right if node.op == "+" else left - right
    if isinstance(node, BinaryOperation) and (switch := _switch(node)) is not None:
        return _under(exact(node.left), frozenset({switch - 1}))
    if isinstance(node, FunctionCall) and node.name == WHERE:
        inside, *conditions = node.arguments
        guards = frozenset(_guard(poly(c, {})) for c in conditions)
        return _under(Exact.of(poly(inside, {})), guards)
    return Exact.of(poly(node, {}))


def _under(value: Exact, guards: constraints.Constraints) -> Exact:
    """The value where further guards are at least 0, and 0 elsewhere."""
    kept = ((constraints.simplified(before | guards), p) for before, p in value.pieces)
    return Exact(tuple((found, p) for found, p in kept if found is not None))


def _switch(product: BinaryOperation) -> Poly | None:
    """g of a product `x*Min(1, Max(0, g))`, with arguments in this order, if g is a whole number at
    all sizes (whole coefficients, no division); None for any other operation."""
    outer = product.right
    if product.op != "*" or not isinstance(outer, FunctionCall) or len(outer.arguments) != 2:
        return None
    one, inner = outer.arguments
    if not isinstance(inner, FunctionCall) or len(inner.arguments) != 2:
        return None
    zero, guard = inner.arguments
    if (outer.name, one, inner.name, zero) != ("Min", _ONE, "Max", _ZERO):
        return None
    found = poly(guard, {})
    whole = all(isinstance(n, int) and all(p > 0 for _, p in m) for m, n in found.terms.items())
    return found if whole else None


def _guard(condition: Poly) -> Poly:
    """An integer-valued polynomial that is at least 0 exactly where `condition` is at least 0: l -
    d/2 gives 2*l - d. NotPolynomial for a condition that divides by a function."""
    if any(isinstance(atom, Fn) and p < 0 for m in condition.terms for atom, p in m):
        raise NotPolynomial(f"a condition with a division by a function, {condition}")
    return _whole_quotient(condition)[0]


def _power_poly(base: Poly, exponent: Poly) -> Poly:
    """The power as a polynomial: a whole number as exponent, or 2 to any exponent. Raises
    NotPolynomial: another exponent, a negative power of several terms, or too many terms."""
    power = exponent.constant()
    if power is None and base.constant() == 2:
        return polynomial.call("pow2", exponent)
    if not isinstance(power, int) or (power < 0 and len(base.terms) != 1):
        raise NotPolynomial(f"the exponent {exponent} of {base}")
    terms = len(base.terms)
    # limits on the products of terms that expanding takes, and on the monomials (comb counts them)
    if abs(power) * terms > 200 or comb(max(terms + power - 1, 0), max(power, 0)) > MOST_MONOMIALS:
        raise NotPolynomial(f"the power {power} of a sum of {terms:,} terms, which has too many")
    return base**power


def _call_poly(node: FunctionCall, bound: Mapping[str, Poly]) -> Poly:
    """A call of a function as a polynomial: for ceil(l/C) the atom floor_div(l + C - 1, C).
    NotPolynomial for `where`, `log` and `sqrt` (`GROWING`), for an index of a sum in an argument
    (`bound`: index -> its atom), or a fraction in one, except of `floor`, `ceil`, `Max`, `Min`."""
    if node.name in (WHERE, *GROWING):
        raise NotPolynomial(f"a function {node.name}")
    arguments = [_argument_poly(a, bound) for a in node.arguments]
    if node.name in ("floor", "ceil"):
        above, below = _whole_quotient(arguments[0])
        return polynomial.call("floor_div", above + (below - 1) * int(node.name == "ceil"), below)
    # Max(a, b) is Max(s*a, s*b)/s, so that the arguments have whole coefficients
    scale = lcm(*(Fraction(c).denominator for a in arguments for c in a.terms.values()))
    if scale != 1 and node.name not in ("Max", "Min"):
        raise NotPolynomial(f"a fraction inside {node.name}")
    return polynomial.call(node.name, *(a * scale for a in arguments)) / scale


def _argument_poly(node: Tree, bound: Mapping[str, Poly]) -> Poly:
    """The argument of a function as a polynomial. NotPolynomial if it contains the index of a sum
    (`bound`: index -> its atom): a function of an index has no closed sum."""
    found = poly(node, bound)
    if found.letters & {atom for p in bound.values() for atom in p.letters}:
        raise NotPolynomial("a function of a sum's index")
    return found


def _whole_quotient(argument: Poly) -> tuple[Poly, Poly]:
    """An argument with fractions as (numerator, denominator), both whole numbers at all sizes."""
    below = Poly.of(lcm(*(Fraction(c).denominator for c in argument.terms.values())))
    for atom in sorted(argument.atoms):
        lowest = min(dict(monomial).get(atom, 0) for monomial in argument.terms)
        below = below * Poly.atom(atom) ** max(0, -lowest)
    return argument * below, below


def _sum_poly(node: IndexedSum, bound: Mapping[str, Poly]) -> Poly:
    """A sum in closed form, by Faulhaber's formulas (`bound`: index of a surrounding sum -> its
    atom). NotPolynomial unless last >= first - 1 is proven, and if the sum has no closed form."""
    name = index_atom(f"{node.index}{len(bound)}")  # another atom than that of any outer sum
    body = poly(node.body, {**bound, node.index: Poly.atom(name)})
    first, last = poly(node.first, bound), poly(node.last, bound)
    if not constraints.nonnegative(last - first + 1):
        raise NotPolynomial(f"a sum that may be empty, from {first} to {last}")
    try:
        return polyhedral_sums.between(body, name, first, last)
    except errors.Unsupported as reason:
        raise NotPolynomial(str(reason)) from None
