"""Which monomials of an answer does no other one dominate?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.domains import Exact, nonnegative
from costmodel.polynomial import Fn, Monomial, Poly, sorted_terms, to_sympy

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Order:
    """The monomials that remain, without coefficients; `case` says when it holds."""

    monomials: tuple[Poly, ...]
    case: str = ""

    @property
    def expr(self) -> sympy.Expr:
        """Their sum."""
        import sympy

        return sympy.Add(*map(to_sympy, self.monomials))

    def _repr_latex_(self) -> str:
        import sympy

        return rf"$O\left({sympy.latex(self.expr)}\right)$"


def order(answer: Exact) -> Order:
    """The dominant monomials of an answer under n <= d, w <= l and C <= l.

    Where the answer is piecewise, the case of long sequences is taken.

    >>> import costmodel as cm
    >>> cm.order(cm.count(cm.mixer("self-attention")).exact_total).expr
    d**2*l + d*l**2
    """
    cases = answer.chambers()
    guards, poly = max(cases, key=lambda case: _favours_long(case[0]))
    case = "" if len(cases) == 1 else " and ".join(f"{g} >= 0" for g in sorted(map(str, guards)))
    monomials = [Poly({m: 1}) for m, _ in sorted_terms(poly)]
    kept = [
        m
        for k, m in enumerate(monomials)
        if not any(
            _grows_at_least(rival, m) and not (j > k and _grows_at_least(m, rival))
            for j, rival in enumerate(monomials)
            if j != k
        )
    ]
    return Order(tuple(kept), case)


LONG = ("l", "t")
"""Sizes that grow without end where an answer is piecewise."""

AT_MOST_LONG = ("w", "C")
"""Sizes that are at most the length of the sequence."""


def _favours_long(guards: frozenset[Poly]) -> int:
    """How many guards hold for every long enough sequence."""
    slopes = [g.coefficient(x).rational({}) for g in guards for x in LONG if x in g.atoms]
    return sum(1 if slope > 0 else -1 for slope in slopes)


def _grows_at_least(larger: Poly, smaller: Poly) -> bool:
    """Whether `larger >= smaller` for all sizes; a logarithm is at most its power of two."""
    ((big, _),) = larger.terms.items()
    ((small, _),) = smaller.terms.items()
    if _without_logs(big) == _without_logs(small):
        return len(big) >= len(small)
    if _without_logs(small) == small:
        larger = _at_least(big)
    difference = larger - smaller
    for bounded in AT_MOST_LONG:
        for long in LONG:
            if {bounded, long} <= difference.letters:
                rest = Poly.atom(f"{long}-{bounded}") - 1  # an atom of at least 1
                difference = difference.substitute({long: Poly.atom(bounded) + rest})
    return nonnegative(difference)


def _at_least(monomial: Monomial) -> Poly:
    """A monomial that it reaches: no logarithms, and x for the power of two that is at least x."""
    result = Poly.of(1)
    for atom, power in _without_logs(monomial):
        base = Poly.atom(atom)
        if isinstance(atom, Fn) and atom.function == "pow2" and power > 0:
            inner = [a for a in atom.args[0].atoms if isinstance(a, Fn)]
            if len(inner) == 1 and atom.args[0] == Poly.atom(inner[0]):
                base = inner[0].args[0]
        result = result * base**power
    return result


def _without_logs(monomial: Monomial) -> Monomial:
    return tuple((a, p) for a, p in monomial if not a.startswith("ceil_log2"))
