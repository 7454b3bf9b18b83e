"""Disjoint cases of a formula: conditions on sizes, and the formula that holds under them.

A *guard* g is a condition g >= 0. A *switch* is a factor Min(1, Max(0, g)), which is 1 where g >= 1
and 0 where g <= 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from costmodel.symbolic.constraints import Constraints, implied, infeasible, irredundant
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, Style, by_text, call
from costmodel.symbolic.sizes import LETTERS


@dataclass(frozen=True)
class Quotient:
    """A quotient of two exact piecewise polynomials."""

    above: Exact
    below: Exact


Formula = Poly | Exact | Quotient | tuple[Poly, ...]
"""A formula to print; a tuple of polynomials stands for their maximum."""


@lru_cache(maxsize=10_000)
def cases(value: Formula) -> list[tuple[Constraints, Formula]]:
    """Disjoint cases that cover all sizes, as (guards, formula); guards are polynomials that are at
    least 0 in the case, and the formula is free of factors Min(1, Max(0, g)), which stand for
    conditions. One case without guards if a single formula holds at all sizes."""
    found: list[tuple[Constraints, Formula]]
    if isinstance(value, Exact):
        found = [*value.chambers()]
    elif isinstance(value, Quotient):
        found = [
            (some | others, Quotient(Exact.of(above), Exact.of(below)))
            for some, above in value.above.chambers()
            for others, below in value.below.chambers()
            if not (some | others) or not infeasible(some | others)
        ]
    else:
        found = [(frozenset(), value)]
    parted = [part for guards, whole in found for part in _split_at_switches(whole, guards)]
    return [(irredundant(guards) or guards, part) for guards, part in parted]


def _split_at_switches(value: Formula, where: Constraints) -> list[tuple[Constraints, Formula]]:
    """The cases of a formula within the sizes of `where`, as (guards, formula): a polynomial or
    maximum is split into g >= 1 and g <= 0 at each switch, a factor Min(1, Max(0, g)), so that no
    formula contains a switch. Sums of guarded polynomials and quotients are one case."""
    terms = () if isinstance(value, (Exact, Quotient)) else _terms_of_max(value)
    switch = next((guard for term in terms for guard in _switches(term)), None)
    if switch is None:
        return [(where, value)]
    sides = (where | {guard} for guard in (switch - 1, -switch))
    return [
        part
        for there in sides
        if not infeasible(there)
        for part in _split_at_switches(
            _max_where([simplified_where(term, there) for term in terms], there), there
        )
    ]


def _terms_of_max(value: Poly | tuple[Poly, ...]) -> tuple[Poly, ...]:
    """The polynomials whose maximum a formula is; (value,) for a single polynomial."""
    return (value,) if isinstance(value, Poly) else value


def _switches(poly: Poly) -> Iterator[Poly]:
    """Yield the g of every factor Min(1, Max(0, g)), which stands for a condition g >= 1, in a
    polynomial, inside functions too."""
    for atom in sorted(poly.atoms):
        if isinstance(atom, Fn):
            guard = _switch(atom)
            yield from (guard,) if guard is not None else ()
            for argument in atom.args:
                yield from _switches(argument)


def _switch(atom: Fn) -> Poly | None:
    """The g of an atom Min(1, Max(0, g)), with arguments in any order; None for any other atom."""
    others = [a for a in atom.args if a != 1]
    if atom.function != "Min" or len(others) != 1 or len(atom.args) != 2:
        return None
    inner = next(iter(others[0].atoms), None)
    if not isinstance(inner, Fn) or inner.function != "Max" or others[0] != Poly.atom(inner):
        return None
    guards = [a for a in inner.args if a.terms]
    return guards[0] if len(guards) == 1 < len(inner.args) else None


def simplified_where(poly: Poly, where: Constraints) -> Poly:
    """A polynomial equal to `poly` at the sizes of `where`, without the arguments of Max and Min
    that never attain the maximum or minimum there."""
    result = Poly()
    for monomial, number in poly.terms.items():
        term = Poly.of(number)
        for atom, power in monomial:
            base = _simplified_atom(atom, where) if isinstance(atom, Fn) else Poly.atom(atom)
            term = term * base**power
        result = result + term
    return result


def _simplified_atom(atom: Fn, where: Constraints) -> Poly:
    """A function atom, simplified for the sizes of `where`: Max and Min lose the arguments that
    never attain them; a switch Min(1, Max(0, g)) becomes 0 or 1 if its value is proven, else it
    stays."""
    if (guard := _switch(atom)) is not None:
        known = implied(where, guard - 1), implied(where, -guard)
        return Poly.of(int(known[0])) if any(known) else Poly.atom(atom)
    parts = [simplified_where(argument, where) for argument in atom.args]
    if atom.function in ("Max", "Min"):
        parts = _possible_results(parts, where, 1 if atom.function == "Max" else -1)
    return call(atom.function, *parts)


def _possible_results(parts: Sequence[Poly], where: Constraints, sign: int) -> list[Poly]:
    """The arguments of a maximum (sign 1) or minimum (-1) that may be the result at some sizes of
    `where`. Of two arguments that are equal at all these sizes, a number is preferred."""
    kept = list(dict.fromkeys(parts))
    for part in sorted(kept, key=lambda part: part.constant() is not None):
        others = [other for other in kept if other is not part]
        if any(implied(where, (other - part) * sign) for other in others):
            kept.remove(part)
    return kept


def _max_where(terms: Sequence[Poly], where: Constraints) -> Poly | tuple[Poly, ...]:
    """The maximum of terms at the sizes of `where`: those that attain it somewhere, or the only."""
    kept = _possible_results(terms, where, 1)
    return kept[0] if len(kept) == 1 else tuple(kept)


def condition(guard: Poly) -> tuple[Poly, str, Poly]:
    """A guard `g >= 0` (a polynomial g) as (left side, relation, right side), both sides with
    positive terms. The side with the size that comes first in `LETTERS` stands on the left.

    >>> from costmodel.symbolic.polynomial import size
    >>> " ".join(map(str, condition(size("w") - size("l"))))
    'l <= w'
    >>> " ".join(map(str, condition(size("l") - size("w") - 1)))
    'l > w'
    """
    free = guard.terms.get((), 0)
    above = Poly({m: n for m, n in guard.terms.items() if m and n > 0})
    below = above + free - guard
    whole = all(isinstance(n, int) and all(p > 0 for _, p in m) for m, n in guard.terms.items())
    relation = ">="
    # of whole numbers, a - b - 1 >= 0 reads a > b; any other constant joins the side that needs it
    if whole and free == -1 and above.terms and below.terms:
        relation = ">"
    elif free < 0:
        below = below - free
    else:
        above = above + free
    if _letter_order(below) < _letter_order(above):
        return below, relation.replace(">", "<"), above
    return above, relation, below


def _letter_order(side: Poly) -> int:
    """The smallest position in `LETTERS` of a size in one side; len(LETTERS) without sizes."""
    order = list(LETTERS)
    return min((order.index(x) for x in side.letters if x in LETTERS), default=len(order))


def compared(guards: Constraints) -> list[tuple[Poly, str, Poly]]:
    """The guards (polynomials that are at least 0) as (left side, relation, right side), such as
    (l, ">", w) for l - w - 1; g and -g become one equation: (l, "=", w) for l - w and w - l."""
    found = []
    for guard in by_text(guards):
        left, relation, right = condition(guard)
        if -guard not in guards:
            found.append((left, relation, right))
        elif str(guard) < str(-guard):
            if "=" not in relation:  # l > w stands for l - w >= 1
                left, _, right = condition(-guard)
            found.append((left, "=", right))
    return found


def conditions(guards: Constraints, style: Style) -> str:
    """Guards (polynomials that are at least 0) as text in a style (plain, LaTeX or a terminal's),
    joined by its "and"; "" without guards."""
    return style.conjunction.join(
        f"{style.poly(left)} {style.relations.get(relation, relation)} {style.poly(right)}"
        for left, relation, right in compared(guards)
    )


def largest(terms: Poly | tuple[Poly, ...]) -> Poly:
    """The maximum of some terms as one polynomial; 0 without terms."""
    if isinstance(terms, Poly):
        return terms
    return call("Max", *terms) if terms else Poly()
