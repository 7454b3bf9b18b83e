"""Does a printed formula, critical path or relation hold, and at which sizes does it first fail?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from costmodel.claims.claim import RELATIONS, Claim, sizes_of_claim
from costmodel.claims.findings import Finding, Sizes, compared_answers, fits
from costmodel.claims.identities import SEARCHED, compare_formula
from costmodel.claims.interpretations import Interpretation
from costmodel.claims.quantities import Answer, derive, path_at
from costmodel.errors import Unanswered
from costmodel.language.formula_text import parse
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.printing import conditions_words
from costmodel.symbolic.thresholds import Condition, least, points, where_positive, where_zero


def formula(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check that a formula, and the simplification printed behind it, equal the derived count."""
    (answer,) = compared_answers(claim, interpretation)
    found = None
    for what, text in (("the expression", claim.formula), ("its simplification", claim.equals)):
        for sizes in sizes_of_claim(claim) if text else ():
            given = answer.substitute(sizes)
            found = compare_formula(parse(text).given(sizes), given, fits(claim, sizes))
            if disagreement := found.disagreement:
                return Finding(
                    False,
                    answer.text,
                    {**sizes, **disagreement.sizes},
                    f"{what} {found.text}",
                    compared=found,
                    there=disagreement.there,
                    parted=f"{what} {found.text}",
                )
    return Finding(True, answer.text, {}, found.text if found else "", compared=found)


def path_text(steps: Sequence[str]) -> str:
    """A critical path on one line."""
    return " - ".join(steps)


_IN_PARENTHESES = r"[^()]*"
for _ in range(4):  # as deep as a number of steps nests its functions
    _IN_PARENTHESES = rf"(?:[^()]|\({_IN_PARENTHESES}\))*"
_STEP = re.compile(rf"\(({_IN_PARENTHESES})\)\s*\*\s*\(([^()]+)\)|([^\s()]+)")


def path_steps(text: str) -> tuple[str, ...]:
    """The steps of a path as claims write them; `(l - 1)*(mul sum)` are repeated steps.

    Raises:
        ValueError: parentheses that do not enclose repeated steps.

    >>> path_steps("mul - sum - (-1 + l)*(mul sum) - sum")
    ('mul', 'sum', '(l - 1)*(mul sum)', 'sum')
    """
    found = []
    text = text.replace("[", "(").replace("]", ")")
    if _STEP.sub("", text).strip():
        raise ValueError(
            f"'{text}': expected names of steps, or (l - 1)*(mul sum) for repeated ones"
        )
    for match in _STEP.finditer(text):
        times, repeated, step = match.groups()
        if times:
            found.append(f"({parse(times).poly()})*({' '.join(_words(repeated))})")
        else:
            found += _words(step)
    return tuple(found)


def _words(text: str) -> list[str]:
    return [word for word in text.split() if word != "-"]


def path(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check that a critical path has exactly the printed steps. At given sizes the printed path may
    be the path shown at these sizes, or the path for long sequences if equally long."""
    printed = path_steps(claim.steps)
    general = derive(claim.mixer, "critical_path", interpretation)
    derived = general.steps
    for sizes in sizes_of_claim(claim):
        there = path_at(claim.mixer, interpretation, sizes)
        as_long = general.substitute(sizes).exact == there.substitute(sizes).exact
        if printed != there.steps and not (as_long and printed == general.steps):
            derived = there.steps
            break
    else:
        return Finding(True, path_text(printed))
    pairs = enumerate(zip(derived, printed, strict=False), 1)
    step = next((k for k, (a, b) in pairs if a != b), min(len(derived), len(printed)) + 1)
    note = f"printed {len(printed)} steps, derived {len(derived)}; they part at step {step}"
    return Finding(False, path_text(derived), {"step": step}, note)


def ordering(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check that one quantity is larger than, smaller than or equal to another: at the sizes that
    the claim gives, or at all values of sizes that it leaves open."""
    left, right = compared_answers(claim, interpretation)
    if left.steps and not (left.letters | right.letters):
        return _shorter(claim, len(left.steps), len(right.steps))
    condition = _where_true(claim, left, right)
    chosen = list(sizes_of_claim(claim))
    if any((left.letters | right.letters) - sizes.keys() for sizes in chosen):
        return _ordering_at_all(claim, left, right, chosen)
    values = [(left.at(s), right.at(s)) for s in chosen]
    failing = next((s for s in chosen if not _is_true(claim, left, right, s)), None)
    note = f"holds {condition.text}" if condition.always else f"in general iff {condition.text}"
    factors = ", ".join(f"{float(max(pair) / min(pair)):.3f}" for pair in values if min(pair))
    note += f"; '{claim.vague}' has no number: a factor of {factors}" if claim.vague else ""
    text = ", ".join(f"{a} {_relation_sign(a, b)} {b}" for a, b in values)
    return Finding(failing is None, text, failing or {}, note)


def _ordering_at_all(claim: Claim, left: Answer, right: Answer, chosen: Sequence[Sizes]) -> Finding:
    """Check a relation at all values of the sizes that the claim leaves open."""
    parts: list[str] = []
    proven = True
    for sizes in chosen:
        some, other = left.substitute(sizes), right.substitute(sizes)
        condition = _where_true(claim, some, other)
        where = "" if condition.always else "iff "
        parts.append(f"{some.text} {claim.relation} {other.text}, {where}{condition.text}")
        proven = proven and condition.always
        first = None if condition.always else _first_failure(claim, some, other)
        if first is not None:
            return Finding(False, "; ".join(parts), {**sizes, **first})
    note = "proven" if proven else f"holds at the {SEARCHED} smallest sizes; no proof for all"
    return Finding(True, "; ".join(parts), {}, note)


def _shorter(claim: Claim, left: int, right: int) -> Finding:
    """Check a relation between critical paths whose numbers of steps depend on no size."""
    text = f"{left} steps {_relation_sign(left, right)} {right} steps"
    note = f"'{claim.vague}' has no number" if claim.vague else ""
    return Finding(RELATIONS[claim.relation](left, right), text, {}, note)


def threshold(claim: Claim, interpretation: Interpretation) -> Finding:
    """Check a relation that is claimed for most sizes: the sizes at which it holds are derived."""
    left, right = compared_answers(claim, interpretation)
    condition = _where_true(claim, left, right)
    if condition.always:
        return Finding(True, condition.text)
    letter = "t" if interpretation.phase == "inference" else "l"
    cases = _positive_where_true(claim, left, right)
    if len(cases) > 1:
        raise Unanswered("a piecewise count: its threshold is not solved")
    ((_, larger),) = cases
    starts: dict[str, int | None] = {}
    for sizes in sizes_of_claim(claim):
        known = {k: v for k, v in sizes.items() if k != letter and k in larger.letters}
        given = ", ".join(f"{k} = {v}" for k, v in known.items())
        starts[f"at {given} " if given else ""] = least(larger, letter, known)
    note = "; ".join(
        f"{given}from {letter} = {start} on" if start else f"{given}not for good"
        for given, start in starts.items()
    )
    holds = all(_is_true(claim, left, right, sizes) for sizes in sizes_of_claim(claim))
    failing = _first_failure(claim, left, right) or {}
    in_limit = holds and None not in starts.values()
    return Finding(False, f"iff {condition.text}", failing, note, in_limit)


def _is_true(claim: Claim, left: Answer, right: Answer, sizes: Sizes) -> bool:
    return RELATIONS[claim.relation](left.at(sizes), right.at(sizes))


def _first_failure(claim: Claim, left: Answer, right: Answer) -> dict[str, int] | None:
    """The smallest sizes at which the relation does not hold; None if none is found."""
    searched = islice(points(left.letters | right.letters), SEARCHED)
    return next((s for s in searched if not _is_true(claim, left, right, s)), None)


def _positive_where_true(
    claim: Claim, left: Answer, right: Answer
) -> Sequence[tuple[Constraints, Poly]]:
    """Polynomials that are positive exactly where the relation (not "=") holds, case by case."""
    apart = right.exact - left.exact if claim.relation == "<" else left.exact - right.exact
    return apart.chambers()


def _where_true(claim: Claim, left: Answer, right: Answer) -> Condition:
    """The sizes at which the relation holds, case by case where the counts have cases."""
    solve = where_zero if claim.relation == "=" else where_positive
    cases = [(guards, solve(poly)) for guards, poly in _positive_where_true(claim, left, right)]
    if len(cases) == 1:
        return cases[0][1]
    parts = [f"{condition.text} where {conditions_words(guards)}" for guards, condition in cases]
    every = all(condition.always for _, condition in cases)
    return Condition("at every size" if every else "; ".join(parts), always=every)


def _relation_sign(left: object, right: object) -> str:
    return next(sign for sign in "=><" if RELATIONS[sign](left, right))
