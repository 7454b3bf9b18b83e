"""Derived answers as sympy expressions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from costmodel.errors import SizeError, described
from costmodel.symbolic.polynomial import Fn, Poly, atom_name
from costmodel.symbolic.sizes import ceil_log2, known

if TYPE_CHECKING:
    import sympy


@cache
def to_sympy(poly: Poly) -> sympy.Expr:
    """A polynomial as a sympy expression over the size letters (symbols without assumptions)."""
    import sympy

    terms = [
        sympy.Mul(
            sympy.Rational(number.numerator, number.denominator),
            *(_atom_sympy(atom) if power == 1 else _atom_sympy(atom) ** power for atom, power in m),
        )
        for m, number in poly.terms.items()
    ]
    total: sympy.Expr = sympy.Add(*terms)
    return total


def symbol(letter: str) -> sympy.Symbol:
    """The sympy symbol of a size letter, without assumptions, so that `subs("l", 3)` finds it."""
    import sympy

    return sympy.Symbol(letter)


@cache
def _atom_sympy(atom: str) -> sympy.Expr:
    """An atom as a sympy expression: a symbol (a size, without assumptions) or a function."""
    import sympy

    if not isinstance(atom, Fn):
        return symbol(atom_name(atom))
    args = [to_sympy(argument) for argument in atom.args]
    if atom.function == "pow2":
        return sympy.Integer(2) ** args[0]
    if atom.function == "ceil_log2":
        return ceil_log2_sympy()(*args)
    if atom.function == "floor_div":
        return sympy.floor(args[0] / args[1])
    extremum = {"Max": sympy.Max, "Min": sympy.Min}[atom.function]
    result: sympy.Expr = extremum(*args, evaluate=False)  # unattained arguments are already dropped
    return result


@cache
def ceil_log2_sympy() -> Any:
    """`ceil_log2` as a sympy function (a class): a number at positive integers, exactly; else a
    term that stays, and prints as the rounded-up logarithm in LaTeX."""
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


class Sized(Protocol):
    """An object with sizes, such as a mixer."""

    @property
    def letters(self) -> Collection[str]:
        """The letters of its sizes."""


def symbols(letters: str, mixer: Sized | None = None) -> Any:
    """The sympy symbols that stand for sizes in derived formulas (`.expr`, `.mul`, `.total`).

    Args:
        letters: size letters, separated by spaces or commas.
        mixer: a mixer whose own letters are sizes too.

    Returns:
        One symbol for one letter, else a tuple of symbols in the order of the letters.

    Raises:
        SizeError: a letter that is no size.

    >>> import costmodel as cm
    >>> l, d = cm.symbols("l d")
    >>> cm.count(cm.mixer("she")).total.diff(l).subs(d, 128)
    32768*l + 81664
    """
    named = letters.replace(",", " ").split() if isinstance(letters, str) else []
    if not named:
        raise SizeError(f"symbols: expected size letters, such as 'l d', got {described(letters)}")
    for letter in named:
        known(letter, () if mixer is None else mixer.letters)
    found = tuple(map(symbol, named))
    return found[0] if len(found) == 1 else found


LETTERS_OF = "_letters_of"
"""The attribute of an answer that holds the letters of its subject's sizes."""


class Symbolic:
    """Base of derived answers: `.expr` (sympy), `.at(l=128, ...)` (int; arrays where a size is an
    array), `.subs(l=128)` (sympy); notebooks show LaTeX."""

    @property
    def expr(self) -> sympy.Expr:
        """The answer as a sympy expression in the size letters."""
        raise NotImplementedError

    def at(self, **sizes: int) -> int:
        """The answer at integer sizes."""
        raise NotImplementedError

    def subs(self, sizes: Mapping[str, object] | None = None, /, **more: object) -> sympy.Expr:
        """`.expr`, the answer as a sympy expression, with numbers or formulas substituted for
        sizes, by letter.

        Raises:
            SizeError: an unknown letter.
        """
        given = {**{str(letter): value for letter, value in (sizes or {}).items()}, **more}
        for letter in given:
            known(letter, getattr(self, LETTERS_OF, ()))
        return self.expr.subs(given)

    def _repr_latex_(self) -> str:
        import sympy

        return f"${sympy.latex(self.expr)}$"

    def __str__(self) -> str:
        return str(self.expr)
