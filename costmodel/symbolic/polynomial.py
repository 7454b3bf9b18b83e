"""Exact polynomials over atoms: sizes, indices and integer functions of them, such as floor(l/C).

A `Poly` is a Laurent polynomial with rational coefficients over *atoms*. An atom is a size letter
(`l`), an index of an equation (`@j`), an axis of an array (`#0`) or a function of polynomials
(`ceil_log2(l*d)`, `pow2(...)`, `floor_div(l, C)`, `Max(...)`, `Min(...)`). Atoms are strings, and
functions with equal texts are equal. h = d/n is the monomial d*n**-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from math import isfinite, lcm
from typing import Any

from costmodel.errors import SizeError, WrongKind, described
from costmodel.symbolic.effort import spend
from costmodel.symbolic.refused_operators import Written, compared_by_structure
from costmodel.symbolic.sizes import LETTERS, ceil_log2

Number = int | Fraction

A_ROOT = 'a square root is function("sqrt", ...), or scaled(x, by=h) for x / sqrt(h)'
"""The advice in errors about powers that are not whole."""


Monomial = tuple[tuple[str, int], ...]
"""Atoms with their nonzero powers, sorted by atom."""


def index_atom(name: object) -> str:
    """The atom of an index: `@i`. Only this file interprets the first character of an atom."""
    return f"@{name}"


def axis_atom(axis: object) -> str:
    """The atom of an axis of an array, by its number: `#0`."""
    return f"#{axis}"


def stand_in(name: object) -> str:
    """The atom of a nonnegative number that is not known yet: `^S`."""
    return f"^{name}"


def is_index(atom: str) -> bool:
    """Whether an atom is an index."""
    return atom[0] == "@"


def is_variable(atom: str) -> bool:
    """Whether an atom is an index or an axis."""
    return atom[0] in "@#"


def is_stand_in(atom: str) -> bool:
    """Whether an atom is a `stand_in`."""
    return atom[0] == "^"


def atom_name(atom: str) -> str:
    """The name of an atom in messages: without the prefix of an index or axis."""
    return atom.lstrip("@#")


class Fn(str):
    """An atom that is a function of polynomials; its text names indices as `@i`, sizes as `i`."""

    function: str
    args: tuple[Poly, ...]

    def __new__(cls, function: str, args: tuple[Poly, ...]) -> Fn:
        self = super().__new__(cls, f"{function}({', '.join(map(_unique_text, args))})")
        self.function = function
        self.args = args
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Fn, (self.function, self.args)


@lru_cache(maxsize=200_000)
def _print_order(monomial: Monomial) -> tuple[int, list[tuple[int, str]]]:
    """The sort key of monomials in print: higher degree first, then by name."""
    return -sum([p for _, p in monomial]), [(-p, a) for a, p in monomial]


def by_text(polys: Iterable[Poly]) -> list[Poly]:
    """The polynomials sorted by their text, so that results do not depend on the order of a set.
    Polynomials with equal text, as `#0 - 1` and `@0 - 1`, are sorted by the full names of their
    atoms."""
    found = list(polys)
    return found if len(found) < 2 else sorted(found, key=_by_text)


@lru_cache(maxsize=200_000)
def _by_text(poly: Poly) -> tuple[str, str]:
    return str(poly), _unique_text(poly)


def _unique_text(poly: Poly) -> str:
    """The text of a polynomial with its atoms' full names, such as `@i` for an index."""
    return " + ".join(
        "*".join([str(number), *(f"{atom}**{power}" if power != 1 else atom for atom, power in m)])
        for m, number in poly.terms.items()
    )


class Style:
    """How a polynomial is printed: here as CSV, JSON and `--symbolic` do, with `+ - * / **`,
    `ceil_log2`, `Max`, `Min` and `floor`. Another style replaces methods."""

    relations: Mapping[str, str] = {}
    """Relation of a condition -> its sign, where the sign differs."""
    conjunction = " and "

    def poly(self, poly: Poly) -> str:
        """The text of a polynomial: its terms with their signs; "0" without terms."""
        text = ""
        for monomial, number in self.ordered(poly):
            sign = "-" if number < 0 else "+"
            text += f" {sign} " if text else ("-" if number < 0 else "")
            text += self.term(monomial, -number if number < 0 else number)
        return text or "0"

    def ordered(self, poly: Poly) -> Iterable[tuple[Monomial, Number]]:
        """The terms in printing order."""
        return poly.terms.items()

    def term(self, monomial: Monomial, number: Number, last: str = "") -> str:
        """A positive term; `last` is a further factor, already text, printed after all others."""
        above = [self.power(atom, power) for atom, power in monomial if power > 0]
        below = [self.power(atom, -power) for atom, power in monomial if power < 0]
        return self.quotient(Fraction(number), [*above, last] if last else above, below)

    def quotient(self, number: Fraction, above: list[str], below: list[str]) -> str:
        """The text of a number times the product of `above`, over the product of `below`."""
        if number.numerator != 1 or not above:
            above = [str(number.numerator), *above]
        if number.denominator != 1:
            below = [str(number.denominator), *below]
        bottom = self.product(below)
        under = f"/({bottom})" if len(below) > 1 else f"/{bottom}" if below else ""
        return self.product(above) + under

    def product(self, factors: list[str]) -> str:
        """The product of some factors."""
        return "*".join(factors)

    def power(self, atom: str, power: int) -> str:
        """The text of a positive power of an atom; a power of 2**x has its own exponent, as ** is
        read from the right."""
        if isinstance(atom, Fn) and atom.function == "pow2":
            return f"2**{self._parenthesised(atom.args[0] * power)}"
        base = self.function(atom) if isinstance(atom, Fn) else atom_name(atom)
        return base if power == 1 else f"{base}**{power}"

    def function(self, atom: Fn) -> str:
        """The text of a function with its arguments."""
        inside = [self.poly(argument) for argument in atom.args]
        if atom.function == "floor_div":
            whole = len(atom.args[0].terms) == 1 and "/" not in inside[0]
            above = inside[0] if whole else f"({inside[0]})"
            return f"floor({above}/{self._parenthesised(atom.args[1])})"
        return f"{atom.function}({', '.join(inside)})"

    def _parenthesised(self, poly: Poly) -> str:
        """The text of a polynomial, in parentheses unless it is one atom or a whole number."""
        plain = any(poly.terms == {((atom, 1),): 1} for atom in poly.atoms)
        number = poly.constant()
        whole = plain or (isinstance(number, int) and number >= 0)
        return self.poly(poly) if whole else f"({self.poly(poly)})"


TEXT = Style()
to_text = TEXT.poly
"""A polynomial as text, its terms in the order of `Poly.terms`."""


def _as_int_if_whole(value: Number) -> Number:
    """The number; an integral Fraction as an int, so that equal polynomials hash alike."""
    if type(value) is int:  # nearly always, and isinstance of Fraction is slow
        return value
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    return value


_POLYS: dict[frozenset[tuple[Monomial, Number]], Poly] = {}
"""Terms -> the single `Poly` object with these terms (interning)."""


@compared_by_structure
class Poly(Written):
    """An immutable Laurent polynomial; `+ - *`, integer powers and division by a monomial. Equal
    polynomials are one object (interned), so comparison and hashing are by identity.

    ValueError: a division by 0 or several terms, or a value at missing or non-integral sizes.
    """

    __slots__ = (
        "_compiled", "_evaluations", "_negative", "_text", "atoms", "letters", "terms", "variables"
    )  # fmt: skip

    terms: dict[Monomial, Number]
    """In printing order."""
    atoms: frozenset[str]
    """The atoms of the monomials, without the arguments of functions."""
    letters: frozenset[str]
    """The sizes, indices and axes that occur, in arguments of functions too."""
    variables: frozenset[str]
    """The indices and axes that occur, in arguments of functions too."""
    _negative: Poly
    _text: str
    """`_negative` and `_text` are computed at their first use, and unset until then."""
    _evaluations: int
    """How often the polynomial was evaluated before it was compiled."""
    _compiled: Callable[[Mapping[str, int]], Number] | None
    """The polynomial as a function of Python, once it was evaluated often."""

    def __new__(cls, terms: Mapping[Monomial, Number] | None = None) -> Poly:
        """The one object for the polynomial with these terms (monomial -> coefficient)."""
        given = terms.items() if terms else ()
        return cls._from_tidy_terms(
            {m: c if type(c) is int else _as_int_if_whole(c) for m, c in given if c}
        )

    @staticmethod
    def of(value: Any) -> Poly:
        """A polynomial from an int or Fraction, a polynomial, or anything with `as_poly()` (an
        index); WrongKind for any other value, such as True or 0.5."""
        if isinstance(value, Poly):
            return value
        if type(value) is int:
            return _constant_poly(value)
        if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
            return Poly({(): value + 0})  # the plain number of a subclass of int
        if hasattr(value, "as_poly"):
            result = value.as_poly()
            if isinstance(result, Poly):
                return result
        if isinstance(value, float) and isfinite(value):
            exact = f"write Fraction('{value}'), of Python's fractions, for {value}"
            raise WrongKind(f"a constant must be a whole number or an exact fraction: {exact}")
        got = described(value)
        raise WrongKind(f"expected a size, an index or a whole number, got {got}")

    @staticmethod
    def atom(name: str) -> Poly:
        """The polynomial that is one atom."""
        return _atom_poly(name)

    @staticmethod
    def _from_tidy_terms(terms: dict[Monomial, Number]) -> Poly:
        """The polynomial of terms without zeros and without integral Fractions: the one object with
        these terms, made at the first call with its atoms, its letters (atoms that are no
        functions, inside functions too) and its variables (letters that are indices or axes)."""
        key = frozenset(terms.items())
        known = _POLYS.get(key)
        if known is not None:
            return known
        self = object.__new__(Poly)
        order = sorted(terms, key=_print_order) if len(terms) > 1 else terms
        self.terms = {monomial: terms[monomial] for monomial in order}
        self.atoms = self.letters = frozenset([atom for monomial in terms for atom, _ in monomial])
        if functions := [atom for atom in self.atoms if type(atom) is Fn]:
            inside = [argument.letters for atom in functions for argument in atom.args]
            self.letters = self.atoms.difference(functions).union(*inside)
        self.variables = frozenset([a for a in self.letters if a.startswith(("@", "#"))])
        self._evaluations, self._compiled = 0, None
        return _POLYS.setdefault(key, self)

    def __reduce__(self) -> tuple[type[Poly], tuple[Mapping[Monomial, Number]]]:
        return Poly, (self.terms,)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other or type(other) is Poly:
            return self is other
        return isinstance(other, (int, Fraction)) and self is Poly.of(other)

    def __add__(self, other: Any) -> Poly:
        return _sum(self, other if type(other) is Poly else Poly.of(other))

    __radd__ = __add__

    def __neg__(self) -> Poly:
        """The negated polynomial, made once."""
        try:
            return self._negative
        except AttributeError:
            self._negative = Poly._from_tidy_terms({m: -c for m, c in self.terms.items()})
            return self._negative

    def __sub__(self, other: Any) -> Poly:
        return _difference(self, other if type(other) is Poly else Poly.of(other))

    def __rsub__(self, other: Any) -> Poly:
        return Poly.of(other) - self

    def __mul__(self, by: Any) -> Poly:
        other: Poly = by if type(by) is Poly else Poly.of(by)
        if len(self.terms) > 1 and len(other.terms) > 1:
            spend(len(self.terms) * len(other.terms))
        return _product(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Poly:
        """self / other, for a divisor of one term; ValueError for 0 and for several terms."""
        other = Poly.of(other)
        if len(other.terms) != 1:
            raise ValueError(
                f"cannot divide by {other}: a divisor is a number, a size or a product of sizes"
            )
        ((monomial, coefficient),) = other.terms.items()
        inverse = tuple((atom, -power) for atom, power in monomial)
        return self * Poly({inverse: Fraction(1) / coefficient})

    def __floordiv__(self, other: Any) -> Poly:
        """floor(self / other), exactly, for a positive divisor: l // C. WrongKind for a
        whole number below 1."""
        below = Poly.of(other).constant()
        if isinstance(below, int) and below < 1:
            raise WrongKind(f"{self} // {below}: // divides by a positive integer or a size")
        return call("floor_div", self, other)

    def __pow__(self, power: int) -> Poly:
        """A whole power; WrongKind for a fraction, ValueError for 1 over 0 or several terms."""
        if power == 1:
            return self
        if not isinstance(power, int):
            raise WrongKind(f"the power of a size must be a whole number, got {power}: {A_ROOT}")
        if power < 0:
            return Poly.of(1) / self**-power
        result = Poly.of(1)
        for _ in range(power):
            result = result * self
        return result

    def __rpow__(self, base: int) -> Poly:
        """2**self, a power of two with sizes in the exponent; WrongKind for another base."""
        if base != 2:
            raise WrongKind(f"a power with a size in its exponent needs base 2, got {base}**{self}")
        return call("pow2", self)

    def __repr__(self) -> str:
        return f"Poly({self})"

    def __str__(self) -> str:
        """The plain text of the polynomial, such as `d*l + 2`, made once."""
        try:
            return self._text
        except AttributeError:
            self._text = to_text(self)
            return self._text

    def in_words(self) -> str:
        """The polynomial in messages: "the size l", or with an index or axis "the position i"."""
        return f"the size {self}" if not self.variables else f"the position {self}"

    def constant(self) -> Number | None:
        """The value of a polynomial without atoms, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def coefficient(self, atom: str) -> Poly:
        """The coefficient of the first power of `atom` (a size or an index), a polynomial: l for d
        in d*l + 2, and 0 if the atom does not occur, or only in the argument of a function, as in
        floor_div(d, 2). Raises ValueError for any other power, as d**2."""
        terms: dict[Monomial, Number] = {}
        for monomial, number in self.terms.items():
            for name, power in monomial:
                if name == atom:
                    if power != 1:
                        raise ValueError(f"{self} is not affine in {atom_name(atom)}")
                    terms[tuple(p for p in monomial if p[0] != atom)] = number
        return Poly._from_tidy_terms(terms)

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """The polynomial with values in place of atoms, inside functions too."""
        if self.letters.isdisjoint(values) and self.atoms.isdisjoint(values):
            return self
        return _substituted(self, tuple(values.items()))

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value at integer sizes; raises ValueError if the value is not an integer."""
        value = self.rational(sizes)
        if type(value) is not int:
            if isinstance(value, int):  # a subclass, as compiled l returns the given size
                return int(value)
            raise ValueError(f"{self} is not an integer at {dict(sizes)}: {value}")
        return value

    def rational(self, sizes: Mapping[str, int]) -> Number:
        """The exact value at integer sizes, an int if it is whole. SizeError for a missing size,
        ValueError for a function without a value, ZeroDivisionError for a divisor 0. A polynomial
        that is evaluated often becomes a function of Python, which takes a tenth of the time."""
        if self._compiled is not None:
            try:
                return self._compiled(sizes)
            except (KeyError, ValueError, ZeroDivisionError):
                pass  # the terms, one by one, say what is wrong
        elif type(sizes) is not Values:  # values of functions that are kept are not compiled
            self._evaluations += 1
            if self._evaluations == OFTEN:
                self._compiled = compiled(self)
        sums: dict[Number, Number] = {}  # denominator -> sum of the numerators above it
        for monomial, number in self.terms.items():
            above: Number = number.numerator
            below: Number = number.denominator
            for atom, power in monomial:
                base = _atom_value(atom, sizes)
                if power > 0:
                    above *= base**power
                else:
                    below *= base**-power
            sums[below] = sums.get(below, 0) + above
        total: Number = sums.pop(1, 0)
        for below, above in sums.items():
            total = total + _quotient(above, below)
        return _as_int_if_whole(total)


@lru_cache(maxsize=200_000)
def _substituted(poly: Poly, items: tuple[tuple[str, Poly], ...]) -> Poly:
    """The polynomial with values substituted for atoms, all at once (`items`: pairs of atom and
    value), cached. Each monomial becomes the product of the values of its replaced atoms and of the
    atoms that stay. An atom may be a function (`Fn`), in whose arguments atoms are replaced."""
    values = dict(items)
    terms: dict[Monomial, Number] = {}
    for monomial, number in poly.terms.items():
        rest, factor = monomial, None
        for pair in monomial:
            atom, power = pair
            base = values.get(atom) if type(atom) is str else _substituted_atom(atom, values)
            if base is not None:
                rest = tuple([p for p in rest if p is not pair])
                raised = base if power == 1 else base**power
                factor = raised if factor is None else factor * raised
        if factor is None:
            terms[monomial] = terms.get(monomial, 0) + number
            continue
        for other, times in factor.terms.items():
            product = _monomial_product(other, rest) if rest else other
            terms[product] = terms.get(product, 0) + times * number
    return Poly(terms)


@lru_cache(maxsize=200_000)
def _sum(one: Poly, two: Poly) -> Poly:
    """The sum of two polynomials, cached; a term whose coefficients add up to 0 is left out."""
    terms = one.terms.copy()
    for monomial, coefficient in two.terms.items():
        if monomial not in terms:
            terms[monomial] = coefficient
        elif number := terms[monomial] + coefficient:
            terms[monomial] = number if type(number) is int else _as_int_if_whole(number)
        else:
            del terms[monomial]
    return Poly._from_tidy_terms(terms)


@lru_cache(maxsize=200_000)
def _difference(one: Poly, two: Poly) -> Poly:
    return _sum(one, -two)


@lru_cache(maxsize=100_000)
def _product(one: Poly, two: Poly) -> Poly:
    """The product of two polynomials, cached."""
    terms: dict[Monomial, Number] = {}
    for m1, c1 in one.terms.items():
        for m2, c2 in two.terms.items():
            product = _monomial_product(m1, m2)
            terms[product] = terms.get(product, 0) + c1 * c2
    return Poly(terms)


@cache
def _atom_poly(name: str) -> Poly:
    return Poly._from_tidy_terms({((name, 1),): 1})


def _substituted_atom(atom: str, values: Mapping[str, Poly]) -> Poly | None:
    """The value of an atom (a size, or a function whose arguments are replaced) under a
    substitution; None if the substitution leaves the atom unchanged."""
    base = values.get(atom)
    if base is None and isinstance(atom, Fn):
        arguments = tuple(argument.substitute(values) for argument in atom.args)
        if any(new is not old for new, old in zip(arguments, atom.args, strict=True)):
            return call(atom.function, *arguments)
    return base


@cache
def _constant_poly(number: int) -> Poly:
    return Poly._from_tidy_terms({(): number} if number else {})


def _floor_div(above: int, below: int) -> int:
    """floor(above / below); ValueError for a divisor below 1."""
    if below < 1:
        raise ValueError(f"floor_div divides by a positive integer, got {below}")
    return above // below


FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "ceil_log2": ceil_log2,
    "floor_div": _floor_div,
    "pow2": lambda x: 2**x if x >= 0 else Fraction(1, 2**-x),
    "Max": max,
    "Min": min,
}


def call(function: str, *args: Any) -> Poly:
    """A function of polynomials: evaluated where all arguments are numbers, else an atom."""
    return _cached_call(function, tuple([Poly.of(a) for a in args]))


@lru_cache(maxsize=100_000)
def _cached_call(function: str, polys: tuple[Poly, ...]) -> Poly:
    """A function of polynomials, cached: a number for whole numbers as arguments; else an atom,
    with the parts extracted that are known: duplicates of a Max or Min, powers of two of a
    logarithm, multiples of a divisor, the number in the exponent of a power of two. ValueError for
    a function without a value, such as a division by 0."""
    if function in ("Max", "Min"):
        polys = tuple(by_text(set(polys)))
        if len(polys) == 1:
            return polys[0]
    constants = [p.constant() for p in polys]
    if all(isinstance(c, int) for c in constants):
        return Poly.of(FUNCTIONS[function](*constants))
    if function == "ceil_log2":
        return _ceil_log2_of(polys[0])
    if function == "floor_div":
        return _floor_div_of(*polys)
    if function == "pow2" and isinstance(number := polys[0].terms.get((), 0), int) and number:
        return Fraction(2) ** number * call("pow2", polys[0] - number)
    return Poly.atom(Fn(function, polys))


def _ceil_log2_of(argument: Poly) -> Poly:
    """ceil_log2 of `argument`, with the powers of two of a product extracted: ceil_log2(2**k * p) =
    k + ceil_log2(p), for k (`whole`) a polynomial. The logarithm of a sum stays as it is."""
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
    if (left := argument.constant()) is not None:  # a fraction where a power of two was extracted
        return whole + ceil_log2(left)
    return whole + Poly.atom(Fn("ceil_log2", (argument,)))


def _floor_div_of(above: Poly, below: Poly) -> Poly:
    """floor_div with multiples of the divisor extracted: floor_div(l + C - 1, C) = floor_div(l - 1,
    C) + 1, and floor_div(l/2, C) = floor_div(l, 2*C). A divisor is at least 1, so floor_div(-1, C)
    = -1; ValueError for the divisor 0."""
    numbers = (*above.terms.values(), *below.terms.values())
    if (scale := lcm(*(number.denominator for number in numbers))) > 1:
        return call("floor_div", above * scale, below * scale)
    if below == 1:
        return above
    if not below.terms:  # raises the ValueError of a division by 0
        return Poly.of(_floor_div(0, 0))
    whole, rest = Poly(), above
    # an extraction leaves terms that are again multiples, of a lower degree
    degree = max((sum(p for _, p in monomial) for monomial in above.terms), default=0)
    for _ in range(max(0, degree) + 1):
        times = _multiples_of(rest, below)
        whole, rest = whole + times, rest - times * below
    if not rest.terms:
        return whole
    left, divisor = rest.constant(), below.constant()
    if isinstance(left, int) and isinstance(divisor, int):
        return whole + _floor_div(left, divisor)
    if left == -1:
        return whole - 1
    return whole + Poly.atom(Fn("floor_div", (rest, below)))


def _multiples_of(above: Poly, below: Poly) -> Poly:
    """The polynomial q to extract from a quotient: floor(above/below) = q + floor((above -
    q*below)/below). q has a term for each term of `above` that is a multiple of the leading term of
    `below` (no negative powers): their quotient, with its number rounded down."""
    (leading, most), *_ = below.terms.items()
    inverse = tuple((atom, -power) for atom, power in leading)
    held = Poly()
    for monomial, number in above.terms.items():
        quotient = _monomial_product(monomial, inverse)
        if all(power > 0 for _, power in quotient):
            held = held + Poly({quotient: number // most})
    return held


def ceil_div(above: Any, below: Any) -> Poly:
    """ceil(above / below), exactly, for a divisor of at least 1.

    >>> str(ceil_div(size("l") - 1, size("w")))
    'floor((l - 2)/w) + 1'
    """
    return call("floor_div", Poly.of(above) + below - 1, below)


def padded(length: Any) -> Poly:
    """The smallest power of two that is at least `length`."""
    return call("pow2", call("ceil_log2", length))


@cache
def _monomial_product(m1: Monomial, m2: Monomial) -> Monomial:
    """The product of two monomials, tuples of (atom, power): the powers of each atom are added, and
    zero powers dropped."""
    powers = dict(m1)
    for atom, power in m2:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((a, p) for a, p in powers.items() if p))


OFTEN = 64
"""A polynomial is compiled at this evaluation: compiling takes as long as some 30 evaluations."""


LONGEST = 10_000
"""The most characters of source that are compiled: Python refuses to compile very long text."""


def compiled(poly: Poly) -> Callable[[Mapping[str, int]], Number] | None:
    """The polynomial as a function of Python from sizes to its exact value, an int if it is whole;
    None for a very long polynomial. The function raises KeyError for a missing size, ValueError as
    the polynomial does, and ZeroDivisionError."""
    source = _source(poly)
    return eval(f"lambda sizes: {source}", _COMPILED) if len(source) <= LONGEST else None


def _source(poly: Poly) -> str:
    """The expression of Python for a polynomial at numbers `sizes`, all terms above one denominator
    (`times`, and the atoms `below` with their powers): 2*d - l/n is
    `quotient(2*sizes['n']*sizes['d'] + -1*sizes['l'], sizes['n'])`."""
    below: dict[str, int] = {}
    for monomial in poly.terms:
        below |= {atom: max(-power, below.get(atom, 0)) for atom, power in monomial if power < 0}
    times = lcm(*(number.denominator for number in poly.terms.values()))
    terms = (
        _source_of_term(int(number * times), {**below, **_raised(monomial, below)})
        for monomial, number in poly.terms.items()
    )
    above, divisor = " + ".join(terms) or "0", _source_of_term(times, below)
    whole = divisor == "1" and "pow2(" not in above  # 2**x is a fraction for x below 0
    return above if whole else f"quotient({above}, {divisor})"


def _raised(monomial: Monomial, below: Mapping[str, int]) -> dict[str, int]:
    """Atom -> its power in a monomial, plus its power in the denominator `below`."""
    return {atom: power + below.get(atom, 0) for atom, power in monomial}


def _source_of_term(number: int, powers: Mapping[str, int]) -> str:
    """The expression of Python for a number times atoms with powers of 0 and more."""
    factors = [] if number == 1 else [str(number)]
    for atom, power in powers.items():
        base = _source_of_atom(atom)
        factors += [base if power == 1 else f"{base}**{power}"] if power else []
    return "*".join(factors) or "1"


def _source_of_atom(atom: str) -> str:
    """The expression of Python for a size, `sizes['l']`, or for a function of sizes,
    `floor_div(sizes['l'], sizes['C'])`; an argument that is a quotient must be `whole`."""
    if not isinstance(atom, Fn):
        return f"sizes[{str(atom)!r}]"
    arguments = []
    for argument in atom.args:
        source = _source(argument)
        # a logarithm takes fractions, any other function whole numbers
        apart = source.startswith("quotient(") and atom.function != "ceil_log2"
        arguments.append(f"whole({source})" if apart else source)
    return f"{atom.function}({', '.join(arguments)})"


def _quotient(above: Number, below: Number) -> Number:
    """above / below, exactly, an int if it is whole; ZeroDivisionError for below = 0."""
    return Fraction(above, below) if above % below else above // below


def _whole(value: Number) -> int:
    """A value that must be an int; ValueError for a fraction."""
    if isinstance(value, Fraction):
        raise ValueError(
            f"a function of sizes has the fraction {value} as an argument: give sizes whose "
            "quotients, such as d/n, are whole"
        )
    return value


_COMPILED = {"quotient": _quotient, "whole": _whole, **FUNCTIONS}
"""Name in the source of a compiled polynomial -> its value."""


class Values(dict[str, Any]):
    """Size -> its number, and function of sizes -> its value at these sizes, once computed."""


def _atom_value(atom: str, sizes: Mapping[str, int]) -> Number:
    """The value of an atom at sizes; the value of a function is computed, and kept if `sizes` is a
    `Values`. SizeError for a size without a value."""
    if isinstance(atom, Fn):
        if not isinstance(sizes, Values):
            return _function_value(atom, sizes)
        if atom not in sizes:
            sizes[atom] = _function_value(atom, sizes)
    try:
        return sizes[atom]
    except KeyError:
        raise SizeError(f"no value for size {atom_name(atom)}: give it a number") from None


def _function_value(atom: Fn, sizes: Mapping[str, int]) -> Number:
    """The value of a function at sizes. The argument of a logarithm may be a fraction, as a power
    of two may have been extracted: ceil_log2(64/n) is 6 + ceil_log2(1/n). ValueError for a fraction
    as another argument."""
    if atom.function == "ceil_log2":
        return ceil_log2(atom.args[0].rational(sizes))
    return FUNCTIONS[atom.function](*(argument.at(sizes) for argument in atom.args))


def size(letter: str) -> Poly:
    """The polynomial of a size letter; d/n for h. ValueError for a letter that `LETTERS` lacks."""
    if letter not in LETTERS:
        raise ValueError(f"unknown size '{letter}': the letters are {', '.join(LETTERS)}")
    if letter == "h":
        return Poly.atom("d") / Poly.atom("n")
    return Poly.atom(letter)


def sum_of(polys: Iterable[Poly]) -> Poly:
    """The sum of polynomials; 0 for none."""
    total = Poly()
    for poly in polys:
        total = total + poly
    return total
