"""Does a printed O(...) name the terms that grow fastest, and if not, in which limit does it?

A claim agrees where its terms and the leading ones of the derived count dominate each other however
the sizes grow. Where it leaves terms out, it may agree in a limit: as some sizes outgrow others
(l >> d), or, where it names only some sizes, while the others stay fixed. Where the claim gives
every size, the note says how many times what stands in O(...) the count is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from costmodel.claims.claim import Claim, instances
from costmodel.claims.findings import Finding, answers
from costmodel.claims.interpretations import Reading
from costmodel.claims.quantities import Answer
from costmodel.errors import NoGrowth, NotPolynomial, Unanswered
from costmodel.questions.order import GROWING, long_case, order
from costmodel.symbolic.formulas import Binary, Call, Formula, Node, parse, poly
from costmodel.symbolic.growth import (
    ONE,
    Assumptions,
    Growth,
    dominates,
    growths,
    leading,
    limit,
    logarithms,
    undominated,
)
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import conditions_words
from costmodel.symbolic.thresholds import where_positive

LENGTH = frozenset({"l", "t"})
"""What O(1) is about where it does not say so."""

DIGITS = 3
"""Decimals of a multiplier that is not whole."""


def growth(claim: Claim, reading: Reading) -> Finding:
    """A printed O(...) against the leading terms of what the equations give."""
    (answer,) = answers(claim, reading)
    guards, long = long_case(answer.exact)
    sizes = GROWING.where(guards)
    try:
        derived = growths(long, sizes) or (ONE,)
        claimed = printed_growths(parse(claim.formula, growing=True), sizes)
    except NoGrowth as reason:
        raise Unanswered(str(reason)) from None
    shown = f"O({order(answer.exact)})"
    where = f"where {conditions_words(guards)}" if guards else ""
    case = _joined(where, *_multipliers(claim, answer))
    found = Compared(derived, claimed, sizes)
    if found.alike(sizes):
        return Finding(True, shown, {}, _joined("the same leading terms", case))
    if limits := found.limits():
        return Finding(False, shown, {}, _joined(_limit_words(limits, long), case), in_limit=True)
    if held := found.held():
        return Finding(False, shown, {}, _joined(_held_words(held, claimed), case), in_limit=True)
    return Finding(False, shown, {}, _joined(found.apart(), case))


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _multipliers(claim: Claim, answer: Answer) -> Iterator[str]:
    """How many times what stands in O(...) the answer is, where the claim gives every size.

    None for networks, whose sizes have values anyhow, nor where O(...) holds a logarithm or root.
    """
    printed = parse(claim.formula, growing=True)
    if claim.model or not claim.sizes or _plain(printed.tree) is None:
        return
    for at in instances(claim):
        every = answer.letters | printed.letters <= at.keys()
        if every and (one := printed.at(at)):
            times = answer.at(at) / one
            number = str(times) if times.denominator == 1 else f"{float(times):.{DIGITS}f}"
            words = ", ".join(f"{letter} = {value}" for letter, value in at.items())
            yield f"at {words} it is {number} times {claim.formula}"


@dataclass(frozen=True)
class Compared:
    """The leading growths of a derived count and of a printed O(...)."""

    derived: Sequence[Growth]
    claimed: Sequence[Growth]
    sizes: Assumptions

    def alike(self, sizes: Assumptions) -> bool:
        """Whether each side dominates the other."""
        more = undominated(self.derived, self.claimed, sizes)
        return not more and not undominated(self.claimed, self.derived, sizes)

    def limits(self) -> list[tuple[Growth, Growth]] | None:
        """The terms that only one side has, each beside a shared one in whose limit it vanishes."""
        missing = undominated(self.derived, self.claimed, self.sizes)
        extra = undominated(self.claimed, self.derived, self.sizes)
        shared = [
            one
            for one in self.derived
            if any(self._same(one, other) for other in self.claimed) and one not in missing
        ]
        return limit([*missing, *extra], shared, self.sizes)

    def _same(self, one: Growth, other: Growth) -> bool:
        return dominates(one, other, self.sizes) and dominates(other, one, self.sizes)

    def held(self) -> frozenset[str]:
        """The sizes that the claim does not name, if it agrees while they stay fixed."""
        others = frozenset().union(*(g.letters for g in self.derived)) - _named(self.claimed)
        return others if self.alike(self.sizes.with_fixed(others)) else frozenset()

    def apart(self) -> str:
        """Which terms make the two part, in the sizes that the claim names where they do."""
        others = frozenset().union(*(g.letters for g in self.derived)) - _named(self.claimed)
        for sizes in (self.sizes.with_fixed(others), self.sizes):
            missing = undominated(self.derived, self.claimed, sizes)
            extra = undominated(self.claimed, self.derived, sizes)
            parts = [f"{g} grows beyond what is claimed" for g in missing]
            parts += [f"the claimed {g} grows beyond what is derived" for g in extra]
            if parts:
                break
        return "; ".join(parts)


def _limit_words(limits: Sequence[tuple[Growth, Growth]], derived: Poly) -> str:
    """In which limit the terms that one side lacks vanish, and where they are the smaller part."""
    quotients = [away / stays for away, stays in limits]
    conditions = dict.fromkeys(f"{q.below} >> {q.above}" for q in quotients)
    vanish = [f"{away} vanishes beside {stays}" for away, stays in limits]
    text = f"for {' and '.join(conditions)}, where {' and '.join(vanish)}"
    small = _terms(derived, {away for away, _ in limits})
    large = _terms(derived, {stays for _, stays in limits})
    if not small.terms or min((*small.terms.values(), *large.terms.values())) < 0:
        return text
    return f"{text}; {small} < {large} iff {where_positive(large - small).text}"


def _terms(derived: Poly, growing: set[Growth]) -> Poly:
    """The terms of a polynomial that grow so."""
    return Poly({m: c for m, c in derived.terms.items() if Growth.of(*m) in growing})


def _held_words(held: frozenset[str], claimed: Sequence[Growth]) -> str:
    named = sorted(frozenset().union(*(g.letters for g in claimed)))
    where = f"in {', '.join(named)} alone" if named else "whatever the length"
    return f"{where}, {', '.join(sorted(held))} being fixed"


def _named(claimed: Sequence[Growth]) -> frozenset[str]:
    """The sizes that a claim is about: O(1) says that the length does not matter."""
    return frozenset().union(*(g.letters for g in claimed)) or LENGTH


def printed_growths(formula: Formula, sizes: Assumptions) -> tuple[Growth, ...]:
    """The leading growths of what stands in O(...), which may hold roots and logarithms.

    Raises:
        NoGrowth: a difference of such terms, or an exponent that names sizes.
    """
    return leading(_grown(formula.tree, sizes), sizes)


def _grown(node: Node, sizes: Assumptions) -> tuple[Growth, ...]:
    plain = _plain(node)
    if plain is not None:
        return growths(plain, sizes) or (ONE,)
    if isinstance(node, Call):
        inside = [_grown(a, sizes) for a in node.arguments]
        return leading(_called(node.name, inside, sizes), sizes)
    if isinstance(node, Binary):
        return leading(_joined_growths(node, sizes), sizes)
    raise NoGrowth("a sum with an index inside O(...)")


def _plain(node: Node) -> Poly | None:
    """A part without roots and logarithms, as a polynomial."""
    try:
        return poly(node, {})
    except NotPolynomial:
        return None


def _joined_growths(node: Binary, sizes: Assumptions) -> list[Growth]:
    if node.op == "**":
        return _power(_grown(node.left, sizes), node.right)
    left, right = _grown(node.left, sizes), _grown(node.right, sizes)
    if node.op == "+":
        return [*left, *right]
    if node.op == "*":
        return [a * b for a, b in product(left, right)]
    if node.op == "/" and len(right) == 1:
        return [a / right[0] for a in left]
    what = "a division by a sum" if node.op == "/" else "a difference"
    raise NoGrowth(f"{what} inside O(...) has no growth of its own")


def _power(base: Sequence[Growth], exponent: Node) -> list[Growth]:
    plain = _plain(exponent)
    power = None if plain is None else plain.constant()
    if power is None or power <= 0:
        raise NoGrowth("inside O(...) an exponent is a positive number")
    return [one ** Fraction(power) for one in base]


def _called(name: str, inside: Sequence[Sequence[Growth]], sizes: Assumptions) -> list[Growth]:
    """The growth of a function of growths."""
    (first, *others) = inside
    if name == "sqrt":
        return [one ** Fraction(1, 2) for one in first]
    if name in ("log", "ceil_log2"):
        above = logarithms(first)
        below = logarithms(others[0]) if others else (ONE,)
        if len(below) != 1:
            raise NoGrowth("a logarithm's base is one size")
        return [one / below[0] for one in above]
    if name in ("floor", "ceil", "Max"):
        return [one for part in inside for one in part]
    raise NoGrowth(f"{name} inside O(...) has no growth of its own")
