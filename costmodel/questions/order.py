"""The order of growth of an answer: the monomials that no other monomial dominates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from costmodel.errors import NoGrowth, WrongKind, described
from costmodel.program.chosen_sizes import divisors
from costmodel.questions.count import counted
from costmodel.questions.question import Case, Figure, Question
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.growth import ALWAYS, Assumptions, Growth, dominates, growths, monomials
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sympy_form import to_sympy

if TYPE_CHECKING:
    import sympy


NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Order:
    """The dominant monomials, without coefficients. `case` has the conditions on sizes under which
    the answer has this order, such as "l - w >= 0"; "" if it always has."""

    monomials: tuple[Poly, ...]
    case: str = ""

    @property
    def expr(self) -> sympy.Expr:
        """The sum of the monomials."""
        import sympy

        return sympy.Add(*map(to_sympy, self.monomials))

    def __str__(self) -> str:
        return " + ".join(map(str, self.monomials)) or "0"

    def _repr_latex_(self) -> str:
        import sympy

        return rf"$O\left({sympy.latex(self.expr)}\right)$"


LONG = ("l", "t")
"""The sizes whose growth chooses the case of a piecewise answer."""

AT_MOST_LONG = ("w", "C", "k", "s", "c", "B", "r")
"""Sizes that are at most the length of the sequence."""

GROWING = Assumptions(
    (*ALWAYS, *(Growth.of((long, 1), (short, -1)) for long in LONG for short in AT_MOST_LONG))
)
"""The assumed inequalities between growing sizes: g <= n <= d, t <= l, w <= l, C <= l and so on."""


def order(answer: Exact, growing: Collection[str] = (), divided: Mapping[str, str] = NONE) -> Order:
    """The dominant monomials of an answer, and the case (conditions) that they hold in, if sizes
    grow with n <= d, g <= n, w <= l and C <= l. Of an answer by cases, the case for long sequences.

    Args:
        growing: further sizes that grow with the length.
        divided: size -> a size that divides it, and is therefore at most as large.

    Raises:
        WrongKind: no answer, but for example a mixer.

    >>> import costmodel as cm
    >>> cm.order(cm.count(cm.mixer("self-attention")).exact_total).expr
    d**2*l + d*l**2
    """
    if not isinstance(cast("object", answer), Exact):
        example = "cm.count(cm.mixer('she')).exact_total"
        raise WrongKind(f"expected an answer, such as {example}, got {described(answer)}")
    guards, poly = long_case(answer, growing)
    sizes = GROWING.with_divisors(divided).where(guards)
    found = monomials(poly)
    grown = [_grown(m, sizes) for m in found]
    kept = [  # of monomials that dominate each other, the first
        m
        for k, m in enumerate(found)
        if not any(
            _reaches(rival, grown[k], sizes) and not (j > k and _reaches(grown[k], rival, sizes))
            for j, rival in enumerate(grown)
            if j != k
        )
    ]
    case = " and ".join(f"{g} >= 0" for g in sorted(map(str, guards)))
    return Order(tuple(kept), case)


def long_case(answer: Exact, growing: Collection[str] = ()) -> tuple[Constraints, Poly]:
    """The conditions and the value of an answer's case for long sequences.

    The best case by `_favours_long`: its conditions stay true, as far as possible, as l and t grow,
    bound no size from above and stay true as the sizes in `growing` grow. Of equally good cases,
    the case whose value contains the most sizes.
    """
    return answer.chamber(lambda case: (*_favours_long(case[0], growing), len(case[1].letters)))


def _favours_long(guards: Constraints, growing: Collection[str]) -> tuple[int, ...]:
    """Sort key of a case's conditions, larger is better: (minus the number of conditions that fail
    as l or t grows, minus the number that bound sizes from above, the number that hold for large l
    or t, minus the number that fail as a size of `growing` grows)."""
    signs = [_sign(guard, long) for guard in guards for long in LONG]
    others = [_sign(guard, letter) for guard in guards for letter in growing]
    bounds = sum(all(c < 0 for m, c in guard.terms.items() if m) for guard in guards)
    return -signs.count(-1), -bounds, signs.count(1), -others.count(-1)


def _sign(guard: Poly, letter: str) -> int:
    """The sign of a condition's value as the size `letter` grows beyond bound: 1 if the value
    rises, -1 if it falls; 0 if the condition lacks the size, or if other sizes decide. For l - w it
    is 1 with l, and -1 with w."""
    powers = [(dict(m).get(letter, 0), c) for m, c in guard.terms.items()]
    most = max((power for power, _ in powers), default=0)
    slopes = [c for power, c in powers if power == most] if most > 0 else []
    if not slopes or min(slopes) < 0 < max(slopes):
        return 0
    return 1 if slopes[0] > 0 else -1


def _grown(monomial: Poly, sizes: Assumptions) -> tuple[Growth, ...] | None:
    """The leading growths (products of powers and logarithms of sizes) of a monomial; None if the
    monomial grows faster than any power."""
    try:
        return growths(monomial, sizes)
    except NoGrowth:
        return None


def _reaches(
    larger: tuple[Growth, ...] | None, smaller: tuple[Growth, ...] | None, sizes: Assumptions
) -> bool:
    """Whether each growth in `smaller` is dominated by a growth in `larger`; False if one of them
    is None (faster than any power)."""
    if larger is None or smaller is None:
        return False
    return all(any(dominates(big, small, sizes) for big in larger) for small in smaller)


def _of_the_total(case: Case) -> Exact:
    """The dominant monomials of a case's total of operations, added up; in a symbolic case the
    given sizes are constants."""
    total = case.about.of(counted).exact_total
    if case.symbolic:
        total = total.substitute(case.known)
    found = order(total, divided=divisors(case.mixer, case.form))
    return Exact.of(sum(found.monomials, Poly()))


ORDER = Question(
    "order",
    "Order of growth",
    (Figure("order", "dominant monomials of the total", _of_the_total, kind="order"),),
    order,
    untallied="it is read off the total, which is tallied",
)
