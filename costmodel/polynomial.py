"""How are sizes, bounds and counts written exactly, without floating point or sympy's cost?

A `Poly` is a Laurent polynomial with rational coefficients over *atoms*. An atom is a size letter
(`l`), an index of an equation (`@j`), an axis of an array (`#0`) or a function of polynomials
(`ceil_log2(l*d)`, `pow2(...)`, `Max(...)`, `Min(...)`). h = d/n is the monomial d*n**-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

from costmodel.sizes import LETTERS, ceil_log2

if TYPE_CHECKING:
    import sympy

Number = int | Fraction
Monomial = tuple[tuple[str, int], ...]


def _tidy(value: Number) -> Number:
    """An integral Fraction becomes an int, so that equal polynomials hash alike."""
    if type(value) is int:  # nearly always, and isinstance of Fraction is slow
        return value
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    return value


class Poly:
    """An immutable Laurent polynomial; `+ - *`, integer powers and division by a monomial.

    Errors: dividing by a sum, or evaluating at missing or non-integral values, raises ValueError.
    """

    __slots__ = ("_hash", "_letters", "terms")

    def __init__(self, terms: Mapping[Monomial, Number] | None = None) -> None:
        self.terms: dict[Monomial, Number] = {m: _tidy(c) for m, c in (terms or {}).items() if c}
        self._hash: int | None = None
        self._letters: frozenset[str] | None = None

    @staticmethod
    def of(value: Any) -> Poly:
        """A polynomial from a number, a polynomial, or anything with `as_poly()` (an index)."""
        if isinstance(value, Poly):
            return value
        if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
            return Poly({(): value})
        if hasattr(value, "as_poly"):
            result = value.as_poly()
            assert isinstance(result, Poly)
            return result
        name = getattr(value, "name", None)
        kind = type(value).__name__.lower()
        got = f"the {kind} {name}" if isinstance(name, str) else f"a value of type {kind}"
        raise TypeError(f"expected a size, an index or a whole number, got {got}")

    @staticmethod
    def atom(name: str) -> Poly:
        """The polynomial that is one atom."""
        return Poly({((name, 1),): 1})

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, Fraction)):
            other = Poly.of(other)
        return isinstance(other, Poly) and self.terms == other.terms

    def __add__(self, other: Any) -> Poly:
        other = Poly.of(other)
        if not other.terms:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Poly(terms)

    __radd__ = __add__

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Any) -> Poly:
        return self + -Poly.of(other)

    def __rsub__(self, other: Any) -> Poly:
        return Poly.of(other) - self

    def __mul__(self, other: Any) -> Poly:
        other = Poly.of(other)
        terms: dict[Monomial, Number] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                product = _times(m1, m2)
                terms[product] = terms.get(product, 0) + c1 * c2
        return Poly(terms)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Poly:
        other = Poly.of(other)
        if len(other.terms) != 1:
            raise ValueError(f"cannot divide by {other}: only by a product of sizes")
        ((monomial, coefficient),) = other.terms.items()
        inverse = tuple((atom, -power) for atom, power in monomial)
        return self * Poly({inverse: Fraction(1) / coefficient})

    def __pow__(self, power: int) -> Poly:
        if power < 0:
            return Poly.of(1) / self**-power
        result = Poly.of(1)
        for _ in range(power):
            result = result * self
        return result

    def __repr__(self) -> str:
        return f"Poly({self})"

    def __str__(self) -> str:
        return to_text(self)

    @property
    def atoms(self) -> frozenset[str]:
        """The atoms that occur, not looking inside functions."""
        return frozenset(atom for monomial in self.terms for atom, _ in monomial)

    @property
    def letters(self) -> frozenset[str]:
        """Sizes, indices and axes that occur, inside functions too."""
        if self._letters is None:
            found: set[str] = set()
            for atom in self.atoms:
                if isinstance(atom, Fn):
                    found.update(*(argument.letters for argument in atom.args))
                else:
                    found.add(atom)
            self._letters = frozenset(found)
        return self._letters

    def constant(self) -> Number | None:
        """The value when no atom occurs, else None."""
        if not self.terms:
            return 0
        return self.terms[()] if set(self.terms) == {()} else None

    def coefficient(self, atom: str) -> Poly:
        """The coefficient of the first power of `atom`.

        Raises ValueError when the polynomial is not affine in it.
        """
        terms: dict[Monomial, Number] = {}
        for monomial, number in self.terms.items():
            power = dict(monomial).get(atom, 0)
            if power == 1:
                terms[tuple(p for p in monomial if p[0] != atom)] = number
            elif power:
                raise ValueError(f"{self} is not affine in {atom.lstrip('@#')}")
        return Poly(terms)

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """Replace atoms, inside functions too."""
        if not values or not (self.letters & values.keys() or self.atoms & values.keys()):
            return self
        result = Poly()
        for monomial, number in self.terms.items():
            term = Poly.of(number)
            for atom, power in monomial:
                base = values.get(atom)
                if base is None and isinstance(atom, Fn):
                    base = call(atom.function, *(a.substitute(values) for a in atom.args))
                term = term * (Poly.atom(atom) if base is None else base) ** power
            result = result + term
        return result

    def at(self, sizes: Mapping[str, int]) -> int:
        """The integer value at integer sizes; raises ValueError if it is not an integer."""
        value = self.rational(sizes)
        if isinstance(value, Fraction):
            raise ValueError(f"{self} is not an integer at {dict(sizes)}: {value}")
        return value

    def rational(self, sizes: Mapping[str, int]) -> Number:
        """The exact value at integer sizes."""
        total: Number = 0
        for monomial, number in self.terms.items():
            for atom, power in monomial:
                base = _value(atom, sizes)
                number = number * base**power if power > 0 else Fraction(number) / base**-power
            total = total + number
        return _tidy(total)


class Fn(str):
    """An atom that is a function of polynomials; equal by its text."""

    function: str
    args: tuple[Poly, ...]

    def __new__(cls, function: str, args: tuple[Poly, ...]) -> Fn:
        self = super().__new__(cls, f"{function}({', '.join(map(to_text, args))})")
        self.function = function
        self.args = args
        return self


FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "ceil_log2": ceil_log2,
    "pow2": lambda x: 2**x,
    "Max": max,
    "Min": min,
}


def call(function: str, *args: Any) -> Poly:
    """A function of polynomials: a number where all arguments are, else an atom."""
    polys = tuple(Poly.of(a) for a in args)
    if function in ("Max", "Min"):
        polys = tuple(sorted(set(polys), key=str))
        if len(polys) == 1:
            return polys[0]
    constants = [p.constant() for p in polys]
    if all(isinstance(c, int) for c in constants):
        return Poly.of(FUNCTIONS[function](*constants))
    if function == "ceil_log2":
        return _ceil_log2_of(polys[0])
    return Poly.atom(Fn(function, polys))


def _ceil_log2_of(argument: Poly) -> Poly:
    """Powers of two come out: ceil_log2(2**k * p) = k + ceil_log2(p)."""
    whole = Poly()
    if len(argument.terms) == 1:
        ((monomial, number),) = argument.terms.items()
        while isinstance(number, int) and number % 2 == 0:
            number, whole = number // 2, whole + 1
        kept = []
        for atom, power in monomial:
            if isinstance(atom, Fn) and atom.function == "pow2":
                whole = whole + atom.args[0] * power
            else:
                kept.append((atom, power))
        argument = Poly({tuple(kept): number})
    if argument.constant() is not None:
        return whole + ceil_log2(argument.at({}))
    return whole + Poly.atom(Fn("ceil_log2", (argument,)))


def padded(length: Any) -> Poly:
    """The smallest power of two that is at least `length`."""
    return call("pow2", call("ceil_log2", length))


@cache
def _times(m1: Monomial, m2: Monomial) -> Monomial:
    powers = dict(m1)
    for atom, power in m2:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((a, p) for a, p in powers.items() if p))


def _value(atom: str, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, Fn):
        return FUNCTIONS[atom.function](*(argument.at(sizes) for argument in atom.args))
    try:
        return sizes[atom]
    except KeyError:
        raise ValueError(f"no value for size {atom.lstrip('@#')}") from None


def _order(term: tuple[Monomial, Number]) -> tuple[int, list[tuple[int, str]]]:
    """Higher degree first, then by name: how papers print a sum."""
    monomial, _ = term
    return -sum(p for _, p in monomial), [(-p, a) for a, p in monomial]


def sorted_terms(poly: Poly) -> list[tuple[Monomial, Number]]:
    """The terms in printing order."""
    return sorted(poly.terms.items(), key=_order)


def to_text(poly: Poly) -> str:
    """The polynomial with `+ - * / **`, `ceil_log2`, `Max`, `Min`, as the formats promise."""
    text = ""
    for monomial, number in sorted_terms(poly):
        sign = "-" if number < 0 else "+"
        text += f" {sign} " if text else ("-" if number < 0 else "")
        text += _term_text(monomial, -number if number < 0 else number)
    return text or "0"


def _term_text(monomial: Monomial, number: Number) -> str:
    above: list[str] = []
    below: list[str] = []
    fraction = Fraction(number)
    if fraction.numerator != 1:
        above.append(str(fraction.numerator))
    if fraction.denominator != 1:
        below.append(str(fraction.denominator))
    for atom, power in monomial:
        name = _atom_text(atom)
        (above if power > 0 else below).append(name + (f"**{abs(power)}" if abs(power) > 1 else ""))
    top = "*".join(above) or "1"
    if not below:
        return top
    return f"{top}/{below[0] if len(below) == 1 else '(' + '*'.join(below) + ')'}"


def _atom_text(atom: str) -> str:
    if isinstance(atom, Fn) and atom.function == "pow2":
        return f"2**{_wrapped(atom.args[0])}"
    return str(atom).lstrip("@#")


def _wrapped(poly: Poly) -> str:
    text = to_text(poly)
    return text if len(poly.terms) == 1 and "*" not in text.split("(")[0] else f"({text})"


def to_sympy(poly: Poly) -> sympy.Expr:
    """The same polynomial as a sympy expression over positive integer symbols."""
    import sympy

    total: sympy.Expr = sympy.Integer(0)
    for monomial, number in sorted_terms(poly):
        term: sympy.Expr = sympy.Rational(number.numerator, number.denominator)
        for atom, power in monomial:
            term = term * _atom_sympy(atom) ** power
        total = total + term
    return total


def symbol(letter: str) -> sympy.Symbol:
    """The sympy symbol of a size letter: positive and integer."""
    import sympy

    return sympy.Symbol(letter, positive=True, integer=True)


def _atom_sympy(atom: str) -> sympy.Expr:
    import sympy

    if not isinstance(atom, Fn):
        return symbol(atom.lstrip("@#"))
    args = [to_sympy(argument) for argument in atom.args]
    if atom.function == "pow2":
        return sympy.Integer(2) ** args[0]
    if atom.function == "ceil_log2":
        return ceil_log2_sympy()(*args)
    result: sympy.Expr = {"Max": sympy.Max, "Min": sympy.Min}[atom.function](*args)
    return result


@cache
def ceil_log2_sympy() -> Any:
    """`ceil_log2` as a sympy function that is exact at every positive integer."""
    import sympy

    class CeilLog2(sympy.Function):  # type: ignore[misc]  # sympy publishes no types
        nargs = 1
        is_integer = True
        is_nonnegative = True

        @classmethod
        def eval(cls, x: Any) -> Any:
            if x.is_Integer and x.is_positive:
                return sympy.Integer(ceil_log2(int(x)))
            return None

        def _latex(self, printer: Any, exp: str | None = None) -> str:
            body = rf"\lceil \log_2 {printer._print(self.args[0])} \rceil"
            return body if exp is None else rf"{body}^{{{exp}}}"

    CeilLog2.__name__ = "ceil_log2"
    return CeilLog2


def size(letter: str) -> Poly:
    """The polynomial of a size letter; h is d/n."""
    if letter not in LETTERS:
        raise ValueError(f"unknown size '{letter}': the letters are {', '.join(LETTERS)}")
    if letter == "h":
        return Poly.atom("d") / Poly.atom("n")
    return Poly.atom(letter)


def sum_of(polys: Iterable[Poly]) -> Poly:
    """The sum of polynomials; 0 when there are none."""
    total = Poly()
    for poly in polys:
        total = total + poly
    return total
