"""Are a printed formula and a derived answer equal for all sizes, and where do they first differ?

Both are evaluated at the `POINTS` smallest sizes; the first difference is the counterexample. Else
a proof is tried: both sides are split into cases without maxima (in each case one argument is the
largest), and every case of their difference must be the polynomial 0. If the proof fails or takes
too long, up to `SEARCHED` sizes are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import lcm

from costmodel.claims.quantities import Answer
from costmodel.errors import FormulaError, NotPolynomial, TooMuch, Unanswered, Unsupported
from costmodel.symbolic.constraints import Constraints, simplified
from costmodel.symbolic.effort import limited
from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, by_text, call
from costmodel.symbolic.printing import conditions_words, formula_words
from costmodel.symbolic.thresholds import points

POINTS = 60
"""The number of sizes that are evaluated before a proof is tried."""

SEARCHED = 5000
"""Sizes tried, in increasing order, before a search for a counterexample gives up."""

MOST_CASES = 64
"""A difference with more cases than this is neither printed nor used as a proof."""

EFFORT = 200_000
"""Units of `symbolic.effort` that one proof may take, and that a difference in words may."""


@dataclass(frozen=True)
class Disagreement:
    """Sizes at which a formula and an answer differ, with the values of both; if the formula has no
    value there, `claimed` is None and `reason` says why."""

    sizes: Mapping[str, int]
    derived: Fraction
    claimed: Fraction | None
    reason: str = ""

    @property
    def text(self) -> str:
        """The two values as a phrase that follows the name of the formula."""
        if self.claimed is None:
            return f"has no value there: {self.reason}"
        return f"gives {self.claimed} there, the equations {self.derived}"

    @property
    def there(self) -> dict[str, str]:
        """The values under `derived` and `claimed`."""
        given = {} if self.claimed is None else {"claimed": str(self.claimed)}
        return {"derived": str(self.derived), **given}


@dataclass(frozen=True)
class IdentityCheck:
    """How a formula and an answer compare, and at how many sizes they were tried."""

    formula: Formula
    answer: Answer
    proven: bool
    tried: int
    disagreement: Disagreement | None = None

    @property
    def text(self) -> str:
        """The result as a phrase that follows the name of the formula: where the two sides differ,
        that they are proven equal, or at how many sizes they were found equal."""
        if self.disagreement is not None:
            return self.disagreement.text
        if self.proven:
            return "equal for all sizes (polynomial identity)"
        return f"equal at the {self.tried} smallest sizes; no proof for all"

    @property
    def difference(self) -> str:
        """Derived minus claimed as a formula, or as cases with their conditions; "" if both are
        equal, if the difference is no sum of polynomials, or if it takes too long."""
        return self._words(formula_words)

    @property
    def equal_where(self) -> str:
        """The conditions of the cases in which a formula that differs somewhere is equal, such as
        `l >= w`; "" where no such case is known."""
        return self._words(_where_zero)

    def _words(self, words: Callable[[Exact], str]) -> str:
        """The text that `words` returns for the difference, derived minus claimed, of a formula
        that disagrees; "" for a formula that agrees, and if no difference is known in time."""
        try:
            with limited(EFFORT):
                apart = difference(self.formula, self.answer) if self.disagreement else None
                return "" if apart is None else words(apart)
        except (Unsupported, TooMuch):
            return ""


def _where_zero(apart: Exact) -> str:
    """The conditions of the cases in which a difference is 0, in words; "" if there are none."""
    equal = (guards for guards, value in apart.chambers() if guards and not value.terms)
    return " or ".join(map(conditions_words, equal))


def compare_formula(
    formula: Formula, answer: Answer, fits: Callable[[Mapping[str, int]], bool] = lambda _: True
) -> IdentityCheck:
    """Compare a formula with a derived answer: at the smallest sizes, and, if they agree there, by
    a proof for all sizes; without a proof, at more sizes.

    Args:
        fits: whether sizes fit the mixer; sizes that do not fit are not tried.

    Raises:
        Unanswered: no size that is tried fits, and no proof is found.
    """
    waiting = islice(points(formula.letters | answer.letters), SEARCHED)
    tried, found = _tried(formula, answer, filter(fits, islice(waiting, POINTS)))
    proven = found is None and _is_proven(formula, answer)
    if found is None and not proven:
        with limited():
            more, found = _tried(formula, answer, filter(fits, waiting), as_many_as_may_be=True)
        tried += more
    if not (proven or tried):
        raise Unanswered(
            f"the formulas were not compared: the mixer exists at none of the {SEARCHED:,} "
            "smallest values of the other sizes: change a given size"
        )
    return IdentityCheck(formula, answer, proven, tried, found)


def _tried(
    formula: Formula,
    answer: Answer,
    chosen: Iterable[Mapping[str, int]],
    *,
    as_many_as_may_be: bool = False,
) -> tuple[int, Disagreement | None]:
    """Compare at the chosen sizes up to the first difference.

    Returns:
        The number of sizes compared, and the first difference or None.

    Raises:
        TooMuch: the limit of effort is reached; with `as_many_as_may_be` the comparison then stops
            and returns the result so far.
    """
    tried = 0
    for sizes in chosen:
        try:
            disagreement = disagreement_at(formula, answer, sizes)
        except TooMuch:
            if as_many_as_may_be:
                break
            raise
        tried += 1
        if disagreement is not None:
            return tried, disagreement
    return tried, None


def _is_proven(formula: Formula, answer: Answer) -> bool:
    """Whether formula and answer are proven equal at all sizes, within an effort of `EFFORT`."""
    try:
        with limited(EFFORT):
            apart = difference(formula, answer)
            return apart is not None and _is_zero(apart)
    except TooMuch:
        return False


def disagreement_at(
    formula: Formula, answer: Answer, sizes: Mapping[str, int]
) -> Disagreement | None:
    """The values of formula and answer at some sizes, if they differ or the formula has no value
    there (a division by 0); None if they are equal."""
    derived = answer.at(sizes)
    try:
        claimed = formula.at(sizes)
    except FormulaError as reason:
        return Disagreement(sizes, derived, None, str(reason))
    return None if claimed == derived else Disagreement(sizes, derived, claimed)


def difference(formula: Formula, answer: Answer) -> Exact | None:
    """Derived minus claimed, split into cases without maxima; None if a side is no polynomial in
    some case, the answer has no formula, or there are more than `MOST_CASES` cases."""
    try:
        return _without_extrema(answer.exact) - _without_extrema(formula.exact())
    except (NotPolynomial, Unanswered, _TooManyCases):
        return None


class _TooManyCases(Exception):
    """A difference of two sizes has more cases than are compared."""


def _is_zero(apart: Exact) -> bool:
    """Whether every case of a difference is 0, which proves that both sides are equal."""
    try:
        return not any(_at_equalities(*case).terms for case in apart.chambers())
    except Unsupported:
        return False


def _at_equalities(guards: Constraints, value: Poly) -> Poly:
    """The value after substituting sizes that the guards (polynomials >= 0) fix: the guards l - w
    and w - l together mean l = w, so that w replaces l or l replaces w."""
    for guard in by_text(guards):
        # sizes with the coefficient 1 or -1, of a guard that has no function of sizes
        pinned = sorted(x for x in guard.atoms if abs(guard.terms.get(((x, 1),), 0)) == 1)
        if -guard in guards and pinned and guard.atoms == guard.letters:
            letter, sign = pinned[0], guard.terms[((pinned[0], 1),)]
            value = value.substitute({letter: Poly.atom(letter) - guard * sign})
    return value


def _without_extrema(value: Exact) -> Exact:
    """An equal sum of cases without `Max` and `Min`: a case for each argument that may be the
    result. Max(l, w) gives l where l >= w, and w where w >= l + 1. Raises _TooManyCases: more than
    `MOST_CASES`."""
    waiting, done = list(value.pieces), Exact()
    for tried in range(MOST_CASES + 1):
        if not waiting:
            return done
        guards, poly = waiting.pop()
        atom = next((a for p in (poly, *by_text(guards)) for a in _extrema(p)), None)
        if atom is None:
            done = done + Exact(((guards, poly),))
            continue
        for k, chosen in enumerate(atom.args):
            sign = 1 if atom.function == "Max" else -1
            others = [x for j, x in enumerate(atom.args) if j != k]
            # sizes are integers: on a tie the first argument is chosen, the ones before it are
            # smaller by 1 or more, so that the cases do not overlap
            ties = [int(j < k) for j in range(len(atom.args)) if j != k]
            more = [_whole((chosen - x) * sign) for x in others]
            is_result = {apart - tie for apart, tie in zip(more, ties, strict=True)}  # each >= 0
            known = {_with_chosen(g, atom, chosen) for g in guards}
            kept = simplified(frozenset(is_result | known))
            if kept is not None:  # None: no sizes satisfy all guards
                waiting.append((kept, _with_chosen(poly, atom, chosen)))
        if tried + len(waiting) > MOST_CASES:
            break
    raise _TooManyCases


def _whole(poly: Poly) -> Poly:
    """The polynomial times its denominators' least common multiple: 3*l - 2*w of l/2 - w/3."""
    return poly * lcm(*(Fraction(number).denominator for number in poly.terms.values()))


def _with_chosen(poly: Poly, atom: Fn, chosen: Poly) -> Poly:
    """The polynomial with `chosen`, one argument of the maximum or minimum `atom`, in place of
    `atom`, also inside other functions: w*Max(l, w) with l chosen is w*l."""
    result = Poly()
    for monomial, number in poly.terms.items():
        term = Poly.of(number)
        for one, power in monomial:
            base = chosen if one == atom else Poly.atom(one)
            if isinstance(one, Fn) and one != atom:
                base = call(one.function, *(_with_chosen(x, atom, chosen) for x in one.args))
            term = term * base**power
        result = result + term
    return result


def _extrema(poly: Poly) -> list[Fn]:
    """The `Max` and `Min` in a polynomial that have no other one inside an argument."""
    found = []
    for atom in sorted(poly.atoms):
        if isinstance(atom, Fn):
            inside = [a for argument in atom.args for a in _extrema(argument)]
            found += inside or ([atom] if atom.function in ("Max", "Min") else [])
    return found
