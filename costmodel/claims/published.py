"""Does each published claim agree with the derived answers, and at which sizes does it differ?

The claims are data, one file per source, under `tables/published/`. Each claim gets one verdict:

- agrees: equal for all sizes, or true at the sizes that the claim gives;
- agrees-under: true only under another convention or interpretation, which the verdict names;
- agrees-in-limit: a claim about most sizes that holds from some length on, with the exact
  threshold and the smallest sizes at which the claim fails; or an O(...) that holds as some sizes
  outgrow others;
- disagrees: with the derived value and the smallest sizes at which claim and derivation differ;
- not-checkable: with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from costmodel.claims.asymptotics import growth
from costmodel.claims.claim import Claim, load
from costmodel.claims.comparisons import formula, ordering, path, path_steps, path_text, threshold
from costmodel.claims.findings import Finding, compared_answers, join_notes, letters
from costmodel.claims.interpretations import Interpretation, LeftOpen, alternatives, of_others
from costmodel.claims.numeric_claims import arithmetic, intersection, interval, number
from costmodel.claims.quantities import mixer_of, phases_of
from costmodel.data import data_dir
from costmodel.errors import (
    FormulaError,
    PublishedError,
    SizeError,
    TooMuch,
    Unanswered,
    Unsupported,
)
from costmodel.language.equations import Form
from costmodel.language.formula_text import parse
from costmodel.language.macros.norms import normalises
from costmodel.language.nodes import Select
from costmodel.mixers import builtin, names
from costmodel.program.chosen_sizes import combinations, fit, letters_of
from costmodel.program.phases import PHASES, TRAINING_STEP
from costmodel.questions.registry import CLAIMED
from costmodel.symbolic.effort import limited
from costmodel.symbolic.sizes import LETTERS

CHECKS: Mapping[str, Callable[[Claim, Interpretation], Finding]] = {
    "formula": formula,
    "number": number,
    "path": path,
    "ordering": ordering,
    "threshold": threshold,
    "ratio": number,
    "order": growth,
    "model": number,
    "interval": interval,
    "value": arithmetic,
}
"""Kind of claim -> its check; `intersection`, which also needs other claims, is not among them."""


def evaluate(
    claim: Claim, interpretation: Interpretation, known: Mapping[str, Claim] | None = None
) -> Finding:
    """Check a claim under one interpretation, by the check of its kind.

    Args:
        known: claims that an intersection may name, by id.

    Raises:
        Unanswered, Unsupported: the question has no answer for the subject of the claim.
        PublishedError: the claim cannot be read; the message names the claim.
    """
    try:
        if claim.kind == "intersection":
            return intersection(claim, interpretation, known or {})
        return CHECKS[claim.kind](claim, interpretation)
    except (Unanswered, Unsupported):
        raise
    except ValueError as reason:
        raise PublishedError(f"claim {claim.id}: {reason}") from None


def own_interpretation(claim: Claim) -> Interpretation:
    """The interpretation that a claim states: its convention, phase and form."""
    return Interpretation(claim.convention, PHASES.get(claim.phase, claim.phase), claim.form)


@dataclass(frozen=True)
class HoldingUnder:
    """The interpretations nearest to the claim's own under which the claim holds, and the finding
    under the first of them."""

    interpretations: Sequence[Interpretation]
    finding: Finding


def under(claim: Claim, known: Mapping[str, Claim] | None = None) -> HoldingUnder | None:
    """Interpretations in the claim's own phase under which the claim holds; None: there is none."""
    own = own_interpretation(claim)
    return _nearest(claim, own, alternatives(own, left_open(claim)), known)


def in_limit_under(claim: Claim, known: Mapping[str, Claim] | None = None) -> HoldingUnder | None:
    """Interpretations that differ in the algorithm of a sort alone under which an O(...) agrees in
    a limit: another form, or masked pairs, would be another algorithm."""
    if claim.kind != "order":
        return None
    own = own_interpretation(claim)
    merging = (*own.convention, "sort=merge")
    tried = [
        one
        for one in alternatives(own, left_open(claim))
        if one == replace(own, convention=one.convention) and {*one.convention} == {*merging}
    ]
    return _nearest(claim, own, tried, known, holds=lambda finding: finding.in_limit)


def elsewhere(claim: Claim, known: Mapping[str, Claim] | None = None) -> HoldingUnder | None:
    """Interpretations in another phase, or of a variant of the mixer, under which a claim holds."""
    own = own_interpretation(claim)
    return _nearest(claim, own, of_others(own, left_open(claim)), known)


def _nearest(
    claim: Claim,
    own: Interpretation,
    tried: Sequence[Interpretation],
    known: Mapping[str, Claim] | None,
    holds: Callable[[Finding], bool] = lambda finding: finding.holds,
) -> HoldingUnder | None:
    """Of `tried`, sorted by their number of changes, those with the fewest changes under which the
    claim holds; None if there are none."""
    found: dict[object, Finding] = {}
    for _, group in groupby(tried, key=lambda interpretation: interpretation.changes(own)):
        holding = [
            (r, f)
            for r in group
            if (f := _finding_if_answered(claim, r, known, found)) and holds(f)
        ]
        if holding:
            return HoldingUnder([interpretation for interpretation, _ in holding], holding[0][1])
    return None


def _finding_if_answered(
    claim: Claim,
    interpretation: Interpretation,
    known: Mapping[str, Claim] | None,
    found: dict[object, Finding],
) -> Finding | None:
    """The finding under an interpretation, or None if the question has no answer there. `found`
    caches findings by the answers compared, which many interpretations share.
    """
    try:
        compared: object = interpretation
        if claim.kind != "path":
            compared = interpretation.phase, compared_answers(claim, interpretation)
        if compared not in found:
            found[compared] = evaluate(claim, interpretation, known)
        return found[compared]
    except ValueError:
        return None


ONE_SIDED = ("formula", "number", "order", "path")
"""Kinds of claims that are about one mixer."""


def left_open(claim: Claim) -> LeftOpen:
    """The choices that a claim leaves open, and in which other interpretations may differ."""
    name = "critical_path" if claim.kind == "path" else claim.quantity
    asked = CLAIMED.get(name)
    if asked is None or claim.kind in ("interval", "intersection", "value"):
        return LeftOpen(conventions=False)
    one = claim.kind in ONE_SIDED and not claim.model
    mixer = mixer_of(claim.mixer) if claim.mixer and not claim.model else None
    own = claim.form or (mixer.default_form if mixer else "")
    phase, formed = own_interpretation(claim).phase, "form" in asked.varies
    return LeftOpen(
        forms=tuple(f for f in mixer.forms if f != own) if mixer and one and formed else (),
        options=tuple(o for o in mixer.offers if o not in mixer.options) if mixer and one else (),
        phases=_other_phases(phases_of(asked), phase),
        operations=asked.unit == "operations" and claim.kind != "order",
        total=name == "total" and claim.kind != "order",
        positions=one and _in_length(claim),
        conventions="convention" in asked.varies,
        growing=claim.kind == "order",
        sorts=mixer is not None and any(map(_sorts, mixer.forms.values())),
        normed=mixer is not None and any(map(normalises, mixer.forms.values())),
    )


def _sorts(form: Form) -> bool:
    """Whether an equation of a form sorts."""
    return any(isinstance(e.value, Select) and e.value.sorts for e in form.equations)


def _other_phases(known: Sequence[str], own: str) -> tuple[str, ...]:
    """The other phases in which a claim may be true; phases with gradients are tried only for a
    claim about such a phase."""
    others = (p for p in known if own in TRAINING_STEP or p not in TRAINING_STEP)
    return tuple(p for p in others if p != own) if len(known) > 1 else ()


def _in_length(claim: Claim) -> bool:
    """Whether a formula for one new token is written in l."""
    named = letters(claim)
    return claim.kind in ("formula", "order") and "l" in named and "t" not in named


VERDICTS = ("agrees", "agrees-under", "agrees-in-limit", "disagrees", "not-checkable")


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim, with its evidence.

    `counterexample` holds the smallest sizes at which claim and derivation differ (or `step`, the
    first step of a path that differs), and `there` the values of both at these sizes. `difference`
    is derived minus claimed. `alternatives` are the interpretations under which a claim that does
    not agree would hold; `conventions` is the first of them, or the claim's own. `misprint` is ""
    or "recorded" (a known disagreement) or "stale" (the recorded misprint no longer fits the
    derived value: an error in the data).
    """

    id: str
    source: str
    place: str
    quantity: str
    claimed: str
    derived: str
    verdict: str
    conventions: tuple[str, ...] = ()
    counterexample: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    misprint: str = ""
    mixer: str = ""
    model: str = ""
    phase: str = ""
    own: tuple[str, ...] = ()
    """The convention that the claim names."""
    citation: str = ""
    difference: str = ""
    there: Mapping[str, str] = field(default_factory=dict)
    alternatives: tuple[tuple[str, ...], ...] = ()
    parted: str = ""
    """The part of the note that repeats the values of `there` in words."""
    equal_where: str = ""
    """Conditions on the sizes under which a formula that disagrees equals the derived answer."""
    proven: bool = True
    """False if formula and answer are only known to be equal at the sizes tried."""
    sized: bool = True
    """False if the claim leaves sizes open, and is not right for all of them."""


def published_files() -> list[Path]:
    """The files of claims in tables/published, sorted by name."""
    return sorted(p for p in data_dir("published").iterdir() if p.suffix in (".json", ".toml"))


def verify(paths: Sequence[Path] | None = None, *, run: bool = False) -> list[Verdict]:
    """Check every claim of the given files, or of all that come with the project.

    Args:
        run: also execute the equations at counterexamples, and report the operations counted.

    Raises:
        PublishedError: a file that cannot be read, or an id that occurs twice.
    """
    files = published_files() if paths is None else list(paths)
    claims = [claim for path in files for claim in load(path)]
    twice = [name for name, times in Counter(c.id for c in claims).items() if times > 1]
    if twice:
        raise PublishedError(f"claims with the same id: {', '.join(sorted(twice))}")
    known = {claim.id: claim for claim in claims}
    return [check(claim, known, run=run) for claim in claims]


def unrecorded(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that must fail a run: unrecorded disagreements, and stale misprints."""
    return [
        v
        for v in verdicts
        if v.misprint == "stale" or (v.verdict == "disagrees" and not v.misprint)
    ]


def summary(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The number of claims with each verdict, and of recorded, stale and unrecorded misprints."""
    found = Counter(v.verdict for v in verdicts)
    return {
        "claims": len(verdicts),
        **{name: found[name] for name in VERDICTS},
        "misprints": sum(v.misprint == "recorded" for v in verdicts),
        "stale": sum(v.misprint == "stale" for v in verdicts),
        "unrecorded": len(unrecorded(verdicts)),
    }


def check(claim: Claim, known: Mapping[str, Claim] | None = None, *, run: bool = False) -> Verdict:
    """The verdict on one claim; a claim that fails is tried under all other interpretations.

    Args:
        known: claims that an intersection may name, by id.
        run: also execute the equations at the counterexample, and report the operations counted.

    >>> claim = Claim("x", "a paper", "Table 1", "formula", "l", mixer="me",
    ...               quantity="parameters", formula="l + 1")
    >>> verdict = check(claim)
    >>> verdict.verdict, verdict.derived, verdict.difference, verdict.counterexample
    ('disagrees', 'l', '-1', {'l': 1})
    """
    sized = True
    try:
        with limited():
            finding, name, found = _finding_and_verdict(claim, known)
            somewhere = finding.compared is not None and finding.compared.equal_where
            wrong = name == "disagrees" and not somewhere and not found
            if wrong and (needed := _sizes_left_open(claim)):
                sized = False
                finding, name, found = _at_default_sizes(claim, needed, finding)
    except TooMuch as reason:
        finding, name, found = Finding(False, "", {}, str(reason)), "not-checkable", None
    own = own_interpretation(claim)
    interpretations = (
        [interpretation.names(own) for interpretation in found.interpretations] if found else []
    )
    verdict = Verdict(
        id=claim.id,
        source=claim.source,
        place=claim.place,
        quantity=claim.quantity,
        claimed=claimed(claim),
        derived=finding.derived,
        verdict=name,
        conventions=_verdict_conventions(claim, name, finding, interpretations),
        counterexample=dict(finding.counterexample),
        note=join_notes(finding.note, claim.remark),
        mixer=claim.mixer,
        model=claim.model,
        phase=claim.phase,
        own=claim.convention,
        citation=claim.citation,
        difference=finding.compared.difference if finding.compared else "",
        there={**finding.there, **(_instrumented_count(claim, finding) if run else {})},
        alternatives=tuple(interpretations),
        parted=finding.parted,
        equal_where=finding.compared.equal_where if finding.compared else "",
        proven=finding.compared is None or finding.compared.proven,
        sized=sized,
    )
    if claim.lacks and (name := _built_in(claim.lacks)):
        note = f"stale: the claim lacks {claim.lacks}, which is among the mixers: {name}"
        return replace(verdict, misprint="stale", note=note)
    return _with_misprint(verdict, claim.misprint) if claim.misprint else verdict


def _built_in(words: str) -> str:
    """The built-in mixer whose name, alias or title has these whole words; "" where none has."""
    whole = re.compile(rf"\b{re.escape(words)}\b", re.IGNORECASE)
    for name in names():
        mixer = builtin(name)
        if any(map(whole.search, (name, *mixer.aliases, mixer.title))):
            return name
    return ""


def _verdict_conventions(
    claim: Claim, name: str, finding: Finding, interpretations: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """The names of the convention, and of other changes, that the verdict is about."""
    if name == "not-checkable":
        return ()
    if name == "agrees-under" and interpretations:
        return interpretations[0]
    return (*claim.convention, finding.under) if finding.under else claim.convention


def _finding_and_verdict(
    claim: Claim, known: Mapping[str, Claim] | None
) -> tuple[Finding, str, HoldingUnder | None]:
    """The finding, the verdict's name, and for a claim that does not agree the other
    interpretations under which the claim holds."""
    if claim.left_open:
        return _not_checkable(claim), "not-checkable", None
    try:
        finding = evaluate(claim, own_interpretation(claim), known)
    except (Unanswered, Unsupported) as reason:
        return Finding(False, "", {}, str(reason)), "not-checkable", None
    if finding.holds or finding.in_limit:
        return finding, "agrees" if finding.holds else "agrees-in-limit", None
    if finding.under:
        return finding, "agrees-under", None
    own = own_interpretation(claim)
    other = under(claim, known)
    if found := other or in_limit_under(claim, known):
        words = found.interpretations[0].words(own)
        there = join_notes(f"under {words}: {found.finding.derived}", found.finding.note)
        note = join_notes(f"not under {','.join(claim.convention)}", finding.note)
        verdict = "agrees-under" if other else "agrees-in-limit"
        return replace(finding, note=f"{there}; {note}"), verdict, found
    if found := elsewhere(claim, known):
        true = f"true of {found.interpretations[0].words(own)}"
        return replace(finding, note=join_notes(finding.note, true)), "disagrees", found
    return finding, "disagrees", None


def _sizes_left_open(claim: Claim) -> list[str]:
    """The sizes that the derived answer depends on and that a formula other than 0 does not name;
    empty for other claims."""
    if claim.kind != "formula" or claim.model:
        return []
    named, formula = letters(claim), parse(claim.formula)
    with suppress(FormulaError):  # a quotient by 0 is no 0
        if not named and not formula.at({}):
            return []
    (answer,) = compared_answers(claim, own_interpretation(claim))
    return [letter for letter in LETTERS if letter in answer.letters - named]


def _at_default_sizes(
    claim: Claim, needed: Sequence[str], general: Finding
) -> tuple[Finding, str, HoldingUnder | None]:
    """The finding and verdict for a claim that leaves sizes open: those at their defaults if the
    claim is right there, else the general ones with the value there, or with the reason why there
    are no default sizes."""
    number = not letters(claim)
    what = "a number and no sizes" if number else f"no {', '.join(needed)}"
    gives = f"the claim gives {what}"
    mixer = mixer_of(claim.mixer)
    try:
        (every,) = combinations(letters_of(mixer, "inference"), {})
        fit(mixer, every)
    except SizeError:
        without = [x for x in letters_of(mixer, "training") if LETTERS[x].default is None]
        why = f"{', '.join(without)} has no default" if without else "the defaults do not fit it"
        note = f"{gives}, and of the sizes of {mixer.name} {why}"
        return replace(general, note=join_notes(general.note, note)), "disagrees", None
    sizes = {letter: every[letter] for letter in needed}
    finding, name, found = _finding_and_verdict(
        replace(claim, sizes={**claim.sizes, **sizes}), None
    )
    at = ", ".join(f"{letter} = {value}" for letter, value in sizes.items())
    if name not in ("agrees", "agrees-under"):
        there = finding.there.get("derived", "another number") if number else "another"
        note = f"{gives}; at the default sizes {at} it is {there}"
        return replace(general, note=join_notes(general.note, note)), "disagrees", None
    tried = replace(finding.compared, proven=False) if finding.holds and finding.compared else None
    note = f"tried at the default sizes {at}, as {gives}"
    return Finding(finding.holds, general.derived, note=note, compared=tried), name, found


def _not_checkable(claim: Claim) -> Finding:
    """The finding for an unchecked claim: the reason, and the derived quantity `beside` or the
    check of the formula `reconstruction`, if the claim has one of them."""
    if claim.beside:
        return _quantity_beside(claim)
    if not claim.reconstruction:
        return Finding(False, "", {}, claim.left_open)
    ours = evaluate(replace(claim, formula=claim.reconstruction), own_interpretation(claim))
    result = "equals" if ours.holds else "does not equal"
    note = f"{claim.left_open}. {claim.reconstruction} {result} the derived count"
    return Finding(False, ours.derived, ours.counterexample, note)


def _quantity_beside(claim: Claim) -> Finding:
    """The derived value of the quantity `beside`, which is shown and not compared."""
    words = f"beside it, {claim.beside} under {','.join(claim.convention)}"
    try:
        found = evaluate(replace(claim, quantity=claim.beside), own_interpretation(claim))
    except (Unanswered, Unsupported) as reason:
        return Finding(False, "", {}, join_notes(claim.left_open, f"{words}: {reason}"))
    shown = f"{words}: {found.derived}"
    return Finding(False, found.derived, {}, join_notes(claim.left_open, shown, found.note))


def _instrumented_count(claim: Claim, finding: Finding) -> dict[str, str]:
    """The number counted by executing the equations at the counterexample, under `instrumented`."""
    if not finding.there or claim.kind != "formula":
        return {}
    from costmodel.claims.instrumented import instrumented

    counted = instrumented(claim, own_interpretation(claim), finding.counterexample)
    return {} if counted is None else {"instrumented": str(counted)}


def _with_misprint(verdict: Verdict, record: Mapping[str, str]) -> Verdict:
    """The verdict with its misprint: "recorded" if the claim disagrees and the derived value is as
    recorded, else "stale"."""
    if verdict.verdict == "disagrees" and verdict.derived == record["derived"]:
        note = join_notes(f"misprint: {record['reason']}", verdict.note)
        return replace(verdict, misprint="recorded", note=note)
    note = f"stale misprint: it records '{record['derived']}' as the derived value"
    return replace(verdict, misprint="stale", note=join_notes(note, verdict.note))


def claimed(claim: Claim) -> str:
    """The claim in one line: its formula or path if it has one, else its words."""
    if claim.kind == "value" and claim.formula:
        unit = f"*{claim.unit}" if claim.unit else ""
        return f"{claim.formula} {claim.relation or '='} {claim.value}{unit}"
    if claim.formula:
        formula = f"O({claim.formula})" if claim.kind == "order" else claim.formula
        return f"{formula} = {claim.equals}" if claim.equals else formula
    if claim.steps:
        return path_text(path_steps(claim.steps))
    return claim.gloss or claim.claimed
