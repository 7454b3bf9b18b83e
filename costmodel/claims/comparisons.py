"""Does a printed formula, critical path or relation hold, and at which sizes does it first fail?

A check takes an interpretation (convention, phase, form, ...) and gives a finding (`Finding`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar

from costmodel.claims.claim import ABOUT, RELATIONS, Claim, TwoSided
from costmodel.claims.findings import Finding, Sizes, completed, join_notes
from costmodel.claims.identities import SEARCHED, IdentityCheck, compare_formula
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.quantities import Answer, derive, mixer_of, path_at
from costmodel.errors import FormulaError, Unanswered, Unsupported
from costmodel.language.formula_text import parse
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import conditions_words
from costmodel.symbolic.ranges.solve import NOTHING, Quantity, Range, ranges
from costmodel.symbolic.sizes import LARGEST, in_order
from costmodel.symbolic.thresholds import Condition, points, where_positive, where_zero


@dataclass(frozen=True, kw_only=True)
class FormulaClaim(Claim):
    """A quantity is `formula` at all sizes; `equals` is the simplification printed behind it, and
    `reconstruction` our completion of a formula that is printed in part."""

    kind: ClassVar[str] = "formula"
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "quantity", "formula")
    one_sided: ClassVar[bool] = True

    formula: str = ""
    equals: str = ""
    reconstruction: str = ""

    @property
    def formulas(self) -> Sequence[Formula]:
        printed = (parse(text) for text in (self.formula, self.equals) if text)
        return tuple(formula.given(self.in_braces) for formula in printed)

    @property
    def words(self) -> str:
        return " = ".join(filter(None, (self.formula, self.equals))) or super().words

    def validate(self) -> None:
        super().validate()
        if self.reconstruction:
            parse(self.reconstruction)

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Check that the printed formula, and its simplification if the claim prints one, equal the
        derived count at each combination of the claim's sizes and, for sizes that it leaves open,
        at all values (without a proof, at the values that `compare_formula` tries). The finding
        holds or states the first disagreement. `known`, all claims by id, is not used."""
        (answer,) = self.answers(interpretation)
        found = None
        # `self.formulas` is shorter for a claim without a simplification
        named = zip(("the expression", "its simplification"), self.formulas, strict=False)
        for what, formula in named:
            for sizes in self.chosen_sizes():
                given = answer.substitute(sizes)
                one_token = interpretation.phase == "inference"  # t is a size of this phase alone
                asked = {x: v for x, v in sizes.items() if one_token or x != "t"}
                fitting = partial(self.fits, asked)
                found = compare_formula(formula.given(sizes), given, fitting)
                if disagreement := found.disagreement:
                    return Finding(
                        False,
                        answer,
                        {**sizes, **disagreement.sizes},
                        f"{what} {found.text}",
                        compared=found,
                        there=disagreement.there,
                        values_note=f"{what} {found.text}",
                    )
        return Finding(True, answer, {}, self._equal_words(found), compared=found)

    def _equal_words(self, found: IdentityCheck | None) -> str:
        """The note of a claim that agrees, how formula and derived count are known to be equal: for
        all sizes, all sizes but the claim's, or at these alone; "" without a comparison."""
        if found is None or not (found.proven and self.sizes):
            return found.text if found else ""
        if found.formula.letters | found.answer.letters:
            return found.text.replace("all sizes", "all other sizes")
        return "equal at the sizes given"

    def fits(self, given: Sizes, sizes: Sizes) -> bool:
        """Whether the claim's mixer exists at `given` and `sizes`, with some values of its other
        sizes; True for a claim about a network or about no mixer."""
        if not self.mixer or self.model:
            return True
        return completed(mixer_of(self.mixer), {**given, **sizes}) is not None

    def unchecked_finding(self) -> Finding:
        """The finding, which does not hold, for a claim that is not checked. If the claim has a
        `reconstruction` and names no quantity `beside`, the note says whether this completed
        formula equals the derived count, or why they are not compared."""
        if self.beside or not self.reconstruction:
            return super().unchecked_finding()
        try:
            claim = replace(self, formula=self.reconstruction, equals="")
            ours = claim.finding(self.interpretation)
        except (Unanswered, Unsupported) as reason:
            note = join_notes(self.left_open, f"{self.reconstruction} is not compared: {reason}")
            return Finding(False, "", {}, note)
        result = "equals" if ours.holds else "does not equal"
        note = f"{self.left_open}. {self.reconstruction} {result} the derived count"
        return Finding(False, ours.derived, ours.counterexample, note)

    def sizes_left_open(self) -> Sequence[str]:
        """The sizes that the answer depends on and that the claim does not name; () for a network,
        and for the claim that a quantity is 0, which must hold at all sizes."""
        if self.model:
            return ()
        with suppress(FormulaError):  # a formula that divides by 0 does not claim the number 0
            if not self.letters and not self.formulas[0].at({}):
                return ()
        (answer,) = self.answers(self.interpretation)
        return in_order(answer.letters - self.letters)


def path_text(steps: Sequence[str]) -> str:
    """A critical path on one line."""
    return " - ".join(steps)


_NESTED = 4
"""Levels of parentheses in a number of repeated steps; a regular expression needs a limit, and
the functions in numbers of steps nest less deeply."""

_IN_PARENTHESES = r"[^()]*"
for _ in range(_NESTED):
    _IN_PARENTHESES = rf"(?:[^()]|\({_IN_PARENTHESES}\))*"
_STEP = re.compile(rf"(?:\(({_IN_PARENTHESES})\)|\b([0-9]+))\s*\*\s*\(([^()]+)\)|([^\s()]+)")


def path_steps(text: str) -> tuple[str, ...]:
    """The steps of a path as claims write them; `(l - 1)*(mul sum)` are repeated steps, and come
    back as one item.

    Raises:
        ValueError: parentheses that do not enclose repeated steps.

    >>> path_steps("mul - sum - (-1 + l)*(mul sum) - sum")
    ('mul', 'sum', '(l - 1)*(mul sum)', 'sum')
    >>> path_steps("mul 6*[mul sum]")
    ('mul', '(6)*(mul sum)')
    """
    found = []
    text = text.replace("[", "(").replace("]", ")")
    if _STEP.sub("", text).strip():
        raise ValueError(
            f"'{text}' is no critical path: expected names of steps, such as mul - sum, or, for "
            "repeated steps, (l - 1)*(mul sum)"
        )
    for match in _STEP.finditer(text):
        formula, number, repeated, step = match.groups()
        if times := formula or number:
            found.append(f"({parse(times).poly()})*({' '.join(_words(repeated))})")
        else:
            found += _words(step)
    return tuple(found)


def _words(text: str) -> list[str]:
    return [word for word in text.split() if word != "-"]


@dataclass(frozen=True, kw_only=True)
class PathClaim(Claim):
    """The critical path has exactly these steps."""

    kind: ClassVar[str] = "path"
    needs: ClassVar[tuple[str, ...]] = ("mixer", "steps")
    one_sided: ClassVar[bool] = True

    quantity: str = "critical_path"
    steps: str = ""

    @property
    def words(self) -> str:
        return path_text(path_steps(self.steps)) if self.steps else super().words

    def validate(self) -> None:
        super().validate()
        path_steps(self.steps)

    def outcome_key(self, interpretation: Interpretation) -> object:
        return interpretation

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Check the steps of a critical path (the longest chain of operations of which each needs
        the one before). At given sizes the printed path may be the derived path at these sizes, or
        the derived path for long sequences if it is equally long. The counterexample is `step`: the
        number (from 1) of the first different step. `known`, all claims by id, is not used."""
        printed = path_steps(self.steps)
        general = derive(self.mixer, "critical_path", interpretation)
        derived = general.steps
        for sizes in self.chosen_sizes():
            there = path_at(self.mixer, interpretation, sizes)
            as_long = general.substitute(sizes).exact == there.substitute(sizes).exact
            if printed != there.steps and not (as_long and printed == general.steps):
                derived = there.steps
                break
        else:
            return Finding(True, path_text(printed))
        pairs = enumerate(zip(derived, printed, strict=False), 1)
        step = next((k for k, (a, b) in pairs if a != b), min(len(derived), len(printed)) + 1)
        note = (
            f"printed {len(printed)} steps, derived {len(derived)}; step {step} is the first "
            "that differs"
        )
        return Finding(False, path_text(derived), {"step": step}, note)


@dataclass(frozen=True, kw_only=True)
class RelationClaim(TwoSided):
    """One quantity is larger than, smaller than or equal to another."""

    def is_true(self, left: Answer, right: Answer, sizes: Sizes) -> bool:
        return RELATIONS[self.relation](left.at(sizes), right.at(sizes))

    def first_failure(self, left: Answer, right: Answer) -> dict[str, int] | None:
        """The first of the `SEARCHED` smallest sizes at which the relation does not hold; None if
        it holds at all of them."""
        searched = islice(points(left.letters | right.letters), SEARCHED)
        return next((s for s in searched if not self.is_true(left, right, s)), None)

    def positive_where_true(
        self, left: Answer, right: Answer
    ) -> Sequence[tuple[Constraints, Poly]]:
        """(conditions, polynomial) for each case of the two counts: where the conditions on sizes
        are true, the relation > or < holds exactly where the polynomial is positive, and the
        relation = exactly where it is 0."""
        return self.excess(left, right).chambers()

    def excess(self, left: Answer, right: Answer) -> Exact:
        """A difference that is positive where the relation holds; 0 where the relation "=" does."""
        return right.exact - left.exact if self.relation == "<" else left.exact - right.exact

    def where_true(self, left: Answer, right: Answer) -> Condition:
        """The condition on sizes under which the relation between the two counts holds, such as `l
        > d`; of counts by cases its text is `l > d where l <= w; at every size where l > w`."""
        solve = where_zero if self.relation == "=" else where_positive
        cases = [(guards, solve(poly)) for guards, poly in self.positive_where_true(left, right)]
        if len(cases) == 1:
            return cases[0][1]
        parts = [f"{c.text} where {conditions_words(guards)}" for guards, c in cases]
        every = all(condition.always for _, condition in cases)
        return Condition("at every size" if every else "; ".join(parts), always=every)


@dataclass(frozen=True, kw_only=True)
class OrderingClaim(RelationClaim):
    """The relation holds at the sizes of the claim, and at all values of the sizes left open."""

    kind: ClassVar[str] = "ordering"
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "against", "quantity", "relation")

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Check the relation between two mixers: by the numbers of steps, for paths that depend on
        no size; at all values of the sizes that the claim leaves open; or, if it gives every size,
        at the given sizes. `known`, all claims by id, is not used here."""
        left, right = self.answers(interpretation)
        if left.steps and not (left.letters | right.letters):
            return self._shorter(len(left.steps), len(right.steps))
        condition = self.where_true(left, right)
        chosen = list(self.chosen_sizes())
        if any((left.letters | right.letters) - sizes.keys() for sizes in chosen):
            return self._at_all(left, right, chosen)
        values = [(left.at(s), right.at(s)) for s in chosen]
        failing = next((s for s in chosen if not self.is_true(left, right, s)), None)
        note = f"holds {condition.text}" if condition.always else f"in general iff {condition.text}"
        factors = ", ".join(f"{float(max(pair) / min(pair)):.3f}" for pair in values if min(pair))
        note += (
            f"; '{self.vague}' gives no number; the derived factor is {factors}"
            if self.vague
            else ""
        )
        text = ", ".join(f"{a} {_relation_sign(a, b)} {b}" for a, b in values)
        return Finding(failing is None, text, failing or {}, note)

    def _at_all(self, left: Answer, right: Answer, chosen: Sequence[Sizes]) -> Finding:
        """Check the relation of `left` to `right` at all values of the sizes that the claim leaves
        open, for each combination `chosen` of those that it gives. A relation that is not proven
        holds if the `SEARCHED` smallest sizes satisfy it; the note then says so."""
        parts: list[str] = []
        proven = True
        for sizes in chosen:
            some, other = left.substitute(sizes), right.substitute(sizes)
            condition = self.where_true(some, other)
            where = "" if condition.always else "iff "
            parts.append(f"{some.text} {self.relation} {other.text}, {where}{condition.text}")
            first = None
            if not condition.always:
                first, solved = self._failure(some, other)
                proven = proven and solved
            if first is not None:
                return Finding(False, "; ".join(parts), {**sizes, **first})
        note = "proven" if proven else f"holds at the {SEARCHED} smallest sizes; no proof for all"
        return Finding(True, "; ".join(parts), {}, note)

    def _failure(self, left: Answer, right: Answer) -> tuple[Sizes | None, bool]:
        """(sizes, decided): the smallest sizes at which the relation fails, None if none are found;
        whether all sizes are decided. True if the length, l or t, alone is open: it is solved for.
        Else, also if no size is open, False: the `SEARCHED` smallest sizes are tried."""
        (letter, *others) = [*(left.letters | right.letters)] or [""]
        if others or letter not in ("l", "t"):
            return self.first_failure(left, right), False
        quantities = [Quantity((answer.exact,)) for answer in (left, right)]
        found = ranges(quantities, letter, lambda x: self.is_true(left, right, {letter: x}))
        return next(({letter: one.first} for one, holds in found if not holds), None), True

    def _shorter(self, left: int, right: int) -> Finding:
        """Check the relation between critical paths whose numbers of steps depend on no size."""
        text = f"{left} steps {_relation_sign(left, right)} {right} steps"
        note = f"'{self.vague}' gives no number" if self.vague else ""
        return Finding(RELATIONS[self.relation](left, right), text, {}, note)


@dataclass(frozen=True, kw_only=True)
class ThresholdClaim(RelationClaim):
    """The relation holds at most sizes; the check derives at which. With `start`, the relation
    holds from exactly this length l on (for one new token, from this t on)."""

    kind: ClassVar[str] = "threshold"
    needs: ClassVar[tuple[str, ...]] = (ABOUT, "against", "quantity", "relation", "sizes")

    start: int = 0

    def validate(self) -> None:
        """Check the claim's keys too, and that its relation is > or <; else ValueError."""
        super().validate()
        if self.relation == "=":
            raise ValueError(
                "relation '=': a claim of kind threshold takes > or <; for =, use kind ordering"
            )

    def check(self, interpretation: Interpretation, known: Mapping[str, Claim]) -> Finding:
        """Derive from which length on the relation holds, for each combination of the other sizes.
        The length is l, or t for inference.

        With `start`, the length that the claim prints, the claim holds if all derived lengths equal
        it; the counterexample is the first other one. Without, the claim holds if the relation is
        true at every size; it is `in_limit` if the relation is true at the claim's sizes, and, for
        each combination, from some length on (ValueError if a size of the relation is not given).
        `known`, all claims by id, is not used here.
        """
        left, right = self.answers(interpretation)
        condition = self.where_true(left, right)
        if condition.always and not self.start:
            return Finding(True, condition.text)
        letter = "t" if interpretation.phase == "inference" else "l"
        apart = self.excess(left, right)  # positive where the relation holds
        starts: dict[str, int] = {}
        notes: list[str] = []
        for sizes in self.chosen_sizes():
            fixed = {k: v for k, v in sizes.items() if k != letter and k in apart.letters}
            where = ranges_where_positive(apart, letter, fixed)
            given = ", ".join(f"{k} = {v}" for k, v in fixed.items())
            lead = f"at {given} " if given else ""
            # 0: from no length on does the relation hold for good
            starts[lead] = where[-1].first if where and where[-1].last == LARGEST else 0
            notes.append(lead + _ranges_text(letter, where))
        note = "; ".join(dict.fromkeys(notes))
        if self.start:
            others = [start for start in starts.values() if start != self.start]
            refuting = next(filter(None, others), 0)
            return Finding(not others, note, {letter: refuting} if refuting else {})
        holds = all(self.is_true(left, right, sizes) for sizes in self.chosen_sizes())
        first = self.first_failure(left, right) or {}
        in_limit = holds and 0 not in starts.values()
        return Finding(False, f"iff {condition.text}", first, note, in_limit)


def ranges_where_positive(apart: Exact, letter: str, sizes: Sizes) -> list[Range]:
    """The ranges of the size `letter`, up to `LARGEST`, in which the difference `apart` is
    positive; `sizes` gives all its other sizes.

    Raises:
        Unsupported: the ranges are not derived.
    """
    quantity = Quantity((apart,)).substitute({x: Poly.of(size) for x, size in sizes.items()})
    found = ranges([quantity, NOTHING], letter, lambda x: quantity.at({letter: x}) > 0)
    return [one for one, holds in found if holds]


FEW = 4
"""The most ranges that a note lists."""


def _ranges_text(letter: str, found: Sequence[Range]) -> str:
    """Ranges of a size in words, `for l = 3..5 and from l = 9 on`; `from no l on` if there are none
    or the last one ends below `LARGEST`."""
    if not found or found[-1].last != LARGEST:
        return f"from no {letter} on"
    *before, last = found
    words = [f"for {letter} = {one.first}..{one.last}" for one in before[:FEW]]
    words += [f"in {len(before) - FEW} more ranges"] if len(before) > FEW else []
    return " and ".join([*words, f"from {letter} = {last.first} on"])


def _relation_sign(left: object, right: object) -> str:
    """The relation that holds between two values: =, > or <."""
    return next(sign for sign in "=><" if RELATIONS[sign](left, right))
