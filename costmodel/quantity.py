"""What does every derived answer offer? An expression, integers at sizes, and LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sympy


class Quantity:
    """A derived answer: `.expr` (sympy), `.at(l=128, ...)` (int); notebooks show LaTeX."""

    @property
    def expr(self) -> sympy.Expr:
        """The answer as a sympy expression in the size letters."""
        raise NotImplementedError

    def at(self, **sizes: int) -> int:
        """The answer at integer sizes."""
        raise NotImplementedError

    def _repr_latex_(self) -> str:
        import sympy

        return f"${sympy.latex(self.expr)}$"

    def __str__(self) -> str:
        return str(self.expr)
