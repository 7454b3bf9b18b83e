"""Does a printed O(...) have the leading terms of the derived count, at least in some limit?

A claim agrees if its terms and the leading terms of the derived count dominate each other however
the sizes grow. If terms are missing, the claim may agree in a limit: as some sizes outgrow others
(l >> d), or, if the claim names only some sizes, while others stay fixed that bound none of them
and those that bound one grow as it does (O(n*l**2): d growing as n).
If the claim gives every size, the note states the count as a multiple of the formula in O(...). A
growth is a product of powers of sizes and of logarithms without its coefficient: 3*d*l**2 has the
growth d*l**2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from typing import ClassVar

from costmodel.claims.claim import ABOUT, Claim, Related
from costmodel.claims.findings import Finding, join_notes
from costmodel.claims.interpretations import Interpretation, LeftOpen
from costmodel.claims.quantities import Answer, mixer_of
from costmodel.errors import NoGrowth, NotPolynomial, Unanswered
from costmodel.language.equations import Mixer
from costmodel.language.formula_text import parse
from costmodel.program.chosen_sizes import divisors, extents
from costmodel.questions.order import GROWING, long_case, order
from costmodel.symbolic.formulas import BinaryOperation, Formula, FunctionCall, Tree, poly
from costmodel.symbolic.growth import (
    ALWAYS,
    ONE,
    Assumptions,
    Growth,
    RateInequality,
    dominates,
    growths,
    leading,
    limit,
    logarithms,
    undominated,
)
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import conditions_words
from costmodel.symbolic.sizes import is_letter, known as known_size
from costmodel.symbolic.thresholds import where_positive

LENGTH = frozenset({"l", "t"})
"""The sizes that an O(1) is about: the length, or the position."""

DIGITS = 3
"""Decimals of a multiplier that is no integer."""


@dataclass(frozen=True, kw_only=True)
class OrderClaim(Related):
    """A quantity grows as O(`formula`), or more slowly (`<`). `growing` says how sizes grow with
    others, such as B as sqrt(l). `bound`: O(...) means an upper bound, which may be larger than
    the order; without, the order itself, as in papers' tables."""

    kind: ClassVar[str] = "order"
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "quantity", "formula")
    one_sided: ClassVar[bool] = True

    formula: str = ""
    growing: Mapping[str, str] = field(default_factory=dict)
    bound: bool = False

    @property
    def formulas(self) -> Sequence[Formula]:
        printed = [parse(self.formula, growing=True)] if self.formula else []
        return tuple(formula.given(self.in_braces) for formula in printed)

    @cached_property
    def letters_of_formulas(self) -> frozenset[str]:
        growths = (parse(text, growing=True).letters for text in self.growing.values())
        return super().letters_of_formulas.union(self.growing, *growths)

    @property
    def words(self) -> str:
        return f"{self._sign}({self.formula})" if self.formula else super().words

    @property
    def _sign(self) -> str:
        """The sign as the source writes it: Θ, or O."""
        return "Θ" if re.search("Theta|Θ", self.claimed) else "O"

    def validate(self) -> None:
        """Check the claim's keys as for every kind; also that its relation is "<" or none, and that
        `growing` maps sizes to formulas. ValueError, with one sentence, if not."""
        if inside := re.fullmatch(r"\s*[oO\u0398]\s*\((.*)\)\s*", self.formula):
            raise ValueError(
                f"formula '{self.formula}': a claim of kind order has what stands in O(...): write "
                f"'{inside[1]}'"
            )
        super().validate()
        if self.relation not in ("", "<"):
            raise ValueError(
                f"relation '{self.relation}' beside O(...): expected <, for slower growth, or no "
                "relation"
            )
        for letter, text in self.growing.items():
            known_size(letter, [*filter(is_letter, self.growing)])  # any letter may be a size
            if not isinstance(text, str):
                raise ValueError(
                    f"'growing' must give a string for each size, got {letter} = {text}"
                )
            parse(text, growing=True)

    def choices(self) -> LeftOpen:
        return replace(super().choices(), operations=False, total=False, growing=True)

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """The finding of a comparison of O(...) with the leading terms of the derived count for
        long sequences: it holds if the terms are the same, or, for the relation `<`, if the count
        grows more slowly. It is `in_limit` if the terms agree only as some sizes outgrow others, or
        while the sizes that the claim leaves out keep one value; `bounded`, for a claim with
        `bound`, if O(...) is an upper bound, not tight. `known`, all claims by id, is not used.

        Raises:
            Unanswered: a growth is not derived.
        """
        (answer,) = self.answers(interpretation)
        guards, long = long_case(answer.exact, self.growing)  # the case of long sequences
        named = self.mixer and not self.model
        mixer = mixer_of(self.mixer, interpretation.option) if named else None
        divided = divisors(mixer) if mixer else {}  # size -> a size that divides it: d -> n
        assumed = _assumed(mixer) if mixer else GROWING  # inequalities such as n <= d
        sizes = assumed.with_divisors(divided).where(guards)
        try:
            grown = {x: _growth_of(x, text, sizes) for x, text in self.growing.items()}
            both = (growths(long, sizes), printed_growths(self.formulas[0], sizes))
            sizes = _while_growing(sizes, grown)
            # growths of both, `growing` put in; a count of 0 has none, and is O(1)
            derived, claimed = (
                leading([one.put(grown) for one in g or (ONE,)], sizes) for g in both
            )
        except NoGrowth as reason:
            raise Unanswered(str(reason)) from None
        shown = f"O({order(answer.exact, self.growing, divided)})"
        where = f"where {conditions_words(guards)}" if guards else ""
        growing = (f"{letter} growing as {text}" for letter, text in self.growing.items())
        case = join_notes(where, *growing, *self._multipliers(answer))
        # `found`: while all sizes grow; `reading`: while the sizes that the claim leaves out keep
        # one value or grow as a named size, which `fixed` says ("" if the claim names all sizes)
        found = GrowthComparison(derived, claimed, sizes)
        reading, fixed = found.as_named(), _reading_words(found)
        if self.relation:
            slower = reading.slower()
            said = (
                f"the derived count {'grows' if slower else 'does not grow'} more slowly than "
                f"{self.formula}"
            )
            return Finding(slower, shown, {}, join_notes(said, fixed, case))
        if found.alike(sizes):
            return Finding(True, shown, {}, join_notes("the same leading terms", case))
        tight = _tight_words(found, reading, fixed, long)
        not_tight = "true as an upper bound, not tight"
        if self.bound and found.bounds():  # at all sizes, such as d*g*t/n <= d*t, as g <= n
            why = f"tight {tight}" if tight else found.differing_growths()
            return Finding(False, shown, {}, join_notes(not_tight, why, case), bounded=True)
        above = reading.bounds() and not reading.alike(reading.sizes)
        bound = join_notes(not_tight, fixed) if above else ""
        if tight:
            note = join_notes(tight, bound if self.bound else "", case)
            return Finding(False, shown, {}, note, in_limit=True)
        note = join_notes(bound, found.differing_growths(), case)
        return Finding(False, shown, {}, note, bounded=above and self.bound)

    def _multipliers(self, answer: Answer) -> Iterator[str]:
        """Yield phrases `at l = 8 the derived count is 2 times l**2`, one for each combination of
        the claim's sizes that gives every size a value: the derived count `answer` as a multiple of
        the formula in O(...). Nothing for networks, for a formula with logarithms or roots, and
        where the formula is 0."""
        (printed,) = self.formulas
        if self.model or not self.sizes or _as_poly(printed.tree) is None:
            return
        for at in self.chosen_sizes():
            every = answer.letters | printed.letters <= at.keys()
            if every and (one := printed.at(at)):
                times = answer.at(at) / one
                number = str(times) if times.denominator == 1 else f"{float(times):.{DIGITS}f}"
                words = ", ".join(f"{letter} = {value}" for letter, value in at.items())
                yield f"at {words} the derived count is {number} times {self.formula}"


LEADING = "write the leading terms alone, such as O(l^2)"


def _assumed(mixer: Mixer) -> Assumptions:
    """The inequalities between growing sizes that hold for a mixer: `GROWING`, without n <= d or
    g <= n where no extent is divided by n or g, as in multi-head latent attention, whose heads have
    a width of their own."""
    below = {
        x for extent in extents(mixer, None) for m in extent.terms for x, power in m if power < 0
    }
    # n <= d is known of heads that divide the width; t <= l holds of every mixer
    free = [q for q in ALWAYS if q.below.letters.isdisjoint(below | LENGTH)]
    return Assumptions(tuple(q for q in GROWING.quotients if q not in free))


def _while_growing(sizes: Assumptions, grown: Mapping[str, Growth]) -> Assumptions:
    """The assumptions `sizes` while sizes grow as in `grown` (size -> growth), such as n as l**2:
    d/n >= 1 becomes d/l**2 >= 1. NoGrowth if a size exceeds its bound, as n growing as d**2."""
    found = []
    for quotient in sizes.quotients:
        found.append(quotient.put(grown))
        if found[-1].below.factors and not found[-1].above.factors:  # 1/d**2 >= 1
            words = " and ".join(f"{x} growing as {growth}" for x, growth in grown.items())
            raise NoGrowth(
                f"{words} contradicts {quotient} >= 1: give growths at which {quotient} stays at "
                "1 or above"
            )
    return Assumptions(tuple(found), sizes.fixed)


@dataclass(frozen=True)
class GrowthComparison:
    """The leading growths of a derived count and of a printed O(...), for `sizes` that grow."""

    derived: Sequence[Growth]
    claimed: Sequence[Growth]
    sizes: Assumptions

    def alike(self, sizes: Assumptions) -> bool:
        """Whether some claimed growth dominates each derived one, and some derived growth each
        claimed one, under the assumptions `sizes`."""
        more = undominated(self.derived, self.claimed, sizes)
        return not more and not undominated(self.claimed, self.derived, sizes)

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The sizes of the derived count that can keep one value while the sizes that the claim
        names grow: those that the claim does not name and that bound none that it names. O(l**2)
        leaves d fixed; O(n*l**2) does not, as the heads n divide the width d."""
        named = _sizes_named(self.claimed)
        held: frozenset[str] = frozenset()
        for size in sorted(frozenset().union(*(g.letters for g in self.derived)) - named):
            sizes = self.sizes.with_fixed({*held, size})
            # every size that the claim names can still grow
            if all(sizes.allow([RateInequality({x: 1})]) for x in named):
                held |= {size}
        return held

    @cached_property
    def following(self) -> dict[str, str]:
        """The sizes, other than the length, that can neither keep one value nor are named by the
        claim, each with the largest named size that it bounds: under O(n*l**2) the width d grows as
        the heads n, the width d/n of a head being fixed."""
        named = [Growth.of((x, 1)) for x in sorted(_sizes_named(self.claimed))]
        letters = frozenset().union(*(g.letters for g in self.derived))
        found = {}
        for size in sorted(letters - self.fixed - LENGTH - _sizes_named(self.claimed)):
            bounded = [x for x in named if dominates(Growth.of((size, 1)), x, self.sizes)]
            if len(largest := leading(bounded, self.sizes)) == 1:
                found[size] = str(largest[0])
        return found

    def as_named(self) -> GrowthComparison:
        """The comparison in the sizes that the claim names: the sizes `fixed` keep one value, and
        those `following` a named size grow as that size."""
        grown = {size: Growth.of((by, 1)) for size, by in self.following.items()}
        sizes = _while_growing(self.sizes, grown).with_fixed(self.fixed)
        derived = leading([one.put(grown) for one in self.derived], sizes)
        return GrowthComparison(derived, leading(self.claimed, sizes), sizes)

    def slower(self) -> bool:
        """Whether the derived count grows more slowly than the claimed formula."""
        return self.bounds() and bool(undominated(self.claimed, self.derived, self.sizes))

    def bounds(self) -> bool:
        """Whether the claimed formula is an upper bound of the derived count."""
        return not undominated(self.derived, self.claimed, self.sizes)

    def limits(self) -> list[tuple[Growth, Growth]] | None:
        """The limit of the sizes in which the derived count and the claim have the same leading
        terms, as pairs (term of one side alone, term of both sides), where the first divided by the
        second goes to 0; [] if the terms are the same at all sizes, None if there is no such
        limit."""
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

    def differing_growths(self) -> str:
        """The leading terms that only the derived count or only the claim has, as a phrase `the
        derived l**2 grows faster than the claim; ...`: the terms while the sizes `fixed` keep one
        value; if none differ there, the terms while all sizes grow."""
        for sizes in (self.sizes.with_fixed(self.fixed), self.sizes):
            missing = undominated(self.derived, self.claimed, sizes)
            extra = undominated(self.claimed, self.derived, sizes)
            # either side grows faster in another limit
            when = self._as_one_grows if missing and extra else lambda _one, _others: ""
            parts = [
                f"the derived {g} grows faster than the claim{when(g, self.claimed)}"
                for g in missing
            ]
            parts += [
                f"the claimed {g} grows faster than the derived count{when(g, self.derived)}"
                for g in extra
            ]
            if parts:
                break
        return "; ".join(parts)

    def _as_one_grows(self, one: Growth, others: Sequence[Growth]) -> str:
        """The phrase ` as l grows` or ` as d, n grow`: the fewest sizes that make the growth `one`
        exceed the `others` while all other sizes keep one value; "" if no sizes do."""
        letters = sorted(one.letters.union(*(g.letters for g in others)))
        for number in range(1, len(letters) + 1):
            for chosen in combinations(letters, number):
                fixed = frozenset(letters).difference(chosen)
                if undominated([one], others, self.sizes.with_fixed(fixed)):
                    return f" as {', '.join(chosen)} grow{'s' * (number == 1)}"
        return ""


def _tight_words(
    found: GrowthComparison, reading: GrowthComparison, fixed: str, derived: Poly
) -> str:
    """Where both sides have the same leading terms, though not at all sizes: in a limit of all
    sizes, `for d >> B, where B*d*l vanishes beside d**2*l`, and while the sizes that the claim
    leaves out keep one value, `in d, l alone, B being fixed`; "" if nowhere. `reading`:
    `found.as_named()`, and `fixed` its words; `derived`: the derived count."""
    if limits := found.limits():
        words = _limit_words(limits, derived)
        return join_notes(words, fixed if reading.alike(reading.sizes) else "")
    if not fixed or (limits := reading.limits()) is None:
        return ""
    return join_notes(fixed, _limit_words(limits, derived) if limits else "")


def _limit_words(limits: Sequence[tuple[Growth, Growth]], derived: Poly) -> str:
    """The limit in words: `for l >> d, where d**2 vanishes beside d*l; d**2 < d*l iff l > d`.

    The condition behind the semicolon compares the terms of the derived count that vanish with
    those that stay; it is left out if either kind has no terms, a coefficient is negative, or no
    sizes satisfy it. `limits` has a pair (growth that vanishes, growth that stays) for each.
    """
    quotients = [away / stays for away, stays in limits]
    conditions = dict.fromkeys(f"{q.below} >> {q.above}" for q in quotients)
    vanish = [f"{away} vanishes beside {stays}" for away, stays in limits]
    text = f"for {' and '.join(conditions)}, where {' and '.join(vanish)}"
    small = _terms_growing(derived, {away for away, _ in limits})
    large = _terms_growing(derived, {stays for _, stays in limits})
    numbers = (*small.terms.values(), *large.terms.values())
    if not (small.terms and large.terms) or min(numbers) < 0:
        return text
    where = where_positive(large - small)
    if where.never:
        return text
    return f"{text}; {small} < {large} {where.text if where.always else f'iff {where.text}'}"


def _terms_growing(derived: Poly, growing: set[Growth]) -> Poly:
    """The terms of a polynomial that have one of these growths."""
    return Poly({m: c for m, c in derived.terms.items() if Growth.of(*m) in growing})


def _reading_words(found: GrowthComparison) -> str:
    """How `found.as_named()` reads the sizes that the claim leaves out, as a phrase: `in l alone, d
    being fixed`, `in l, n alone, d growing as n` or, of O(1), `whatever the length, d being fixed`;
    "" if the claim leaves out none."""
    named = sorted(frozenset().union(*(g.letters for g in found.claimed)))
    fixed = f"{', '.join(sorted(found.fixed))} being fixed" if found.fixed else ""
    growing = (f"{size} growing as {by}" for size, by in found.following.items())
    words = ", ".join(filter(None, (fixed, *growing)))
    where = f"in {', '.join(named)} alone" if named else "whatever the length"
    return f"{where}, {words}" if words else ""


def _sizes_named(claimed: Sequence[Growth]) -> frozenset[str]:
    """The sizes that a claim is about; for O(1), the length."""
    return frozenset().union(*(g.letters for g in claimed)) or LENGTH


def printed_growths(formula: Formula, sizes: Assumptions) -> tuple[Growth, ...]:
    """The leading terms, without coefficients, of the formula in O(...), which may have roots and
    logarithms: those that no other term outgrows. `sizes`: what is assumed of sizes that grow, such
    as d/n >= 1.

    Raises:
        NoGrowth: a difference of terms with roots or logarithms, or an exponent that names sizes.
    """
    return leading(_growths_of_node(formula.tree, sizes), sizes)


def _growth_of(letter: str, text: str, sizes: Assumptions) -> Growth:
    """The growth that `text`, the claim's statement about a size in `growing`, has: `d**2` for
    "d^2"; NoGrowth if it has several terms."""
    found = printed_growths(parse(text, growing=True), sizes)
    if len(found) > 1:
        raise NoGrowth(
            f"'growing' gives {letter} the growth {text}, of several terms: give one term"
        )
    return found[0]


def _growths_of_node(node: Tree, sizes: Assumptions) -> tuple[Growth, ...]:
    """The leading terms, without coefficients, of the formula in a syntax tree; a number, 0 too,
    gives 1. `sizes`: what is assumed of sizes that grow, such as d/n >= 1. Raises NoGrowth: an
    exponent that names sizes; of roots or logarithms, a difference, or a sum over an index."""
    plain = _as_poly(node)
    if plain is not None:
        return growths(plain, sizes) or (ONE,)
    if isinstance(node, FunctionCall):
        inside = [_growths_of_node(a, sizes) for a in node.arguments]
        return leading(_growths_of_call(node.name, inside, sizes), sizes)
    if isinstance(node, BinaryOperation):
        return leading(_growths_of_binary(node, sizes), sizes)
    raise NoGrowth(f"the growth of a sum over an index in O(...) is not derived: {LEADING}")


def _as_poly(node: Tree) -> Poly | None:
    """A syntax tree as a polynomial; None if it has roots or logarithms."""
    try:
        return poly(node, {})
    except NotPolynomial:
        return None


def _growths_of_binary(node: BinaryOperation, sizes: Assumptions) -> list[Growth]:
    """The growths (terms without coefficients) of a sum, product, quotient or power; NoGrowth for a
    difference, a division by several growths, or an exponent that is no positive number."""
    if node.op == "**":
        return _growths_of_power(_growths_of_node(node.left, sizes), node.right)
    left, right = _growths_of_node(node.left, sizes), _growths_of_node(node.right, sizes)
    if node.op == "+":
        return [*left, *right]
    if node.op == "*":
        return [a * b for a, b in product(left, right)]
    if node.op == "/" and len(right) == 1:
        return [a / right[0] for a in left]
    what = "a division by a sum" if node.op == "/" else "a difference"
    raise NoGrowth(f"the growth of {what} in O(...) is not derived: {LEADING}")


def _growths_of_power(base: Sequence[Growth], exponent: Tree) -> list[Growth]:
    """Each growth (a term without its coefficient) of the base, to the power of the exponent;
    NoGrowth unless the exponent is a positive number."""
    plain = _as_poly(exponent)
    power = None if plain is None else plain.constant()
    if power is None or power <= 0:
        raise NoGrowth(
            "O(...) holds an exponent that is no positive number"
            if plain is None
            else f"O(...) holds the exponent {plain}: expected a positive number"
        )
    return [one ** Fraction(power) for one in base]


def _growths_of_call(
    name: str, inside: Sequence[Sequence[Growth]], sizes: Assumptions
) -> list[Growth]:
    """The growths of a function from the growths of its arguments, `inside`: sqrt halves powers, a
    logarithm is divided by that of its base (if one is given), rounding and Max keep the growths of
    all arguments. NoGrowth for any other function, and for a base with several growths."""
    (first, *others) = inside
    if name == "sqrt":
        return [one ** Fraction(1, 2) for one in first]
    if name in ("log", "ceil_log2"):
        above = logarithms(first)
        below = logarithms(others[0]) if others else (ONE,)
        if len(below) != 1:
            raise NoGrowth(
                "O(...) holds a logarithm to a base of several terms: expected one size, or a "
                "number"
            )
        return [one / below[0] for one in above]
    if name in ("floor", "ceil", "Max"):
        return [one for part in inside for one in part]
    raise NoGrowth(f"the growth of {name} in O(...) is not derived: {LEADING}")
