"""Which check belongs to a kind of claim, and under which other readings does a claim hold?

Which printed figures and claims agree with what the equations give, and where do they part?

The claims are data, one file a source, under `tables/published/`. Each gets one verdict:

- agrees: equal for all sizes, or true at the sizes that it speaks about;
- agrees-under: only as counted or read otherwise, which is named;
- agrees-in-limit: a claim about most sizes that holds from some length on, with its exact
  threshold and the smallest sizes at which it fails; or an O(...) that holds as some sizes outgrow
  others;
- disagrees: with the derived value and the smallest sizes at which the two part;
- not-checkable: with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from costmodel.claims.asymptotics import growth
from costmodel.claims.claim import Claim, load
from costmodel.claims.comparisons import formula, ordering, path, path_steps, path_text, threshold
from costmodel.claims.findings import Finding, letters
from costmodel.claims.identities import in_words
from costmodel.claims.interpretations import Reading, Scope, alternatives, of_others
from costmodel.claims.numeric_claims import arithmetic, intersection, interval, number
from costmodel.claims.quantities import mixer_of, phases_of
from costmodel.data import data_dir
from costmodel.errors import PublishedError, Unanswered, Unsupported
from costmodel.program.phases import PHASES, TRAINING_STEP
from costmodel.questions.registry import CLAIMED

CHECKS: Mapping[str, Callable[[Claim, Reading], Finding]] = {
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
"""Kind of claim -> its check; intersections need the other claims besides."""


def evaluate(claim: Claim, reading: Reading, known: Mapping[str, Claim] | None = None) -> Finding:
    """Check a claim as it is read, by its kind.

    Args:
        known: claims that it may name, by id.

    Raises:
        Unanswered, Unsupported: the question has no answer for what the claim is about.
        PublishedError: the claim cannot be read; the message names it.
    """
    try:
        if claim.kind == "intersection":
            return intersection(claim, reading, known or {})
        return CHECKS[claim.kind](claim, reading)
    except (Unanswered, Unsupported):
        raise
    except ValueError as reason:
        raise PublishedError(f"claim {claim.id}: {reason}") from None


def own_reading(claim: Claim) -> Reading:
    """How a claim says that it is to be read."""
    return Reading(claim.convention, PHASES.get(claim.phase, claim.phase), claim.form)


@dataclass(frozen=True)
class Found:
    """Readings under which a claim holds, the least different ones, and the first one's finding."""

    readings: Sequence[Reading]
    finding: Finding


def under(claim: Claim, known: Mapping[str, Claim] | None = None) -> Found | None:
    """The other readings of a claim's own phase under which it holds; None: it holds under none."""
    own = own_reading(claim)
    return _least(claim, own, alternatives(own, scope(claim)), known)


def elsewhere(claim: Claim, known: Mapping[str, Claim] | None = None) -> Found | None:
    """The readings of another phase, or of a variant of the mixer, under which a claim holds."""
    own = own_reading(claim)
    return _least(claim, own, of_others(own, scope(claim)), known)


def _least(
    claim: Claim, own: Reading, tried: Sequence[Reading], known: Mapping[str, Claim] | None
) -> Found | None:
    """Of these readings, in order of difference, the first ones under which the claim holds."""
    for _, group in groupby(tried, key=lambda reading: reading.changes(own)):
        holding = [(r, f) for r in group if (f := _tried(claim, r, known)) and f.holds]
        if holding:
            return Found([reading for reading, _ in holding], holding[0][1])
    return None


def _tried(claim: Claim, reading: Reading, known: Mapping[str, Claim] | None) -> Finding | None:
    """What is found, or None where a question has no answer under a reading."""
    try:
        return evaluate(claim, reading, known)
    except (Unanswered, Unsupported, PublishedError):
        return None


ONE_SIDED = ("formula", "number", "order", "path")
"""Kinds of claims that are about one mixer."""


def scope(claim: Claim) -> Scope:
    """How else a claim may be read."""
    name = "critical_path" if claim.kind == "path" else claim.quantity
    asked = CLAIMED.get(name)
    if asked is None or claim.kind in ("interval", "intersection", "value"):
        return Scope(conventions=False)
    one = claim.kind in ONE_SIDED and not claim.model
    mixer = mixer_of(claim.mixer) if claim.mixer and not claim.model else None
    own = claim.form or (mixer.default_form if mixer else "")
    phase, formed = own_reading(claim).phase, "form" in asked.varies
    return Scope(
        forms=tuple(f for f in mixer.forms if f != own) if mixer and one and formed else (),
        options=tuple(o for o in mixer.offers if o not in mixer.options) if mixer and one else (),
        phases=_other_phases(phases_of(asked), phase),
        operations=asked.unit == "operations" and claim.kind != "order",
        total=name == "total" and claim.kind != "order",
        positions=one and _in_length(claim),
        conventions="convention" in asked.varies,
        growing=claim.kind == "order",
    )


def _other_phases(known: Sequence[str], own: str) -> tuple[str, ...]:
    """The other phases of which a claim may be true; gradients are derived for it only where it is
    about them itself."""
    others = (p for p in known if own in TRAINING_STEP or p not in TRAINING_STEP)
    return tuple(p for p in others if p != own) if len(known) > 1 else ()


def _in_length(claim: Claim) -> bool:
    """Whether a formula for one new token is written in l."""
    named = letters(claim)
    return claim.kind in ("formula", "order") and "l" in named and "t" not in named


VERDICTS = ("agrees", "agrees-under", "agrees-in-limit", "disagrees", "not-checkable")


@dataclass(frozen=True)
class Verdict:
    """What became of one claim.

    `counterexample` holds the smallest sizes at which claim and derivation part (or `step`, the
    first step of a path at which they do), and `there` what each gives at it. `difference` is what
    is derived minus what is claimed. `alternatives` are the readings under which a claim that does
    not agree would hold, `conventions` the first of them, or the claim's own. `misprint` is "", or
    "recorded" (a known disagreement, counted openly), or "stale" (the record no longer fits what is
    derived: an error of the data).
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
    """The part of the note that says what `there` holds."""


def published_files() -> list[Path]:
    """The files of claims that come with the project."""
    return sorted(p for p in data_dir("published").iterdir() if p.suffix in (".json", ".toml"))


def verify(paths: Sequence[Path] | None = None, *, run: bool = False) -> list[Verdict]:
    """Check every claim of the given files, or of all that come with the project.

    Args:
        run: execute the equations at counterexamples, and say what is counted there.

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
    """What must fail a run: disagreements that no misprint records, and stale misprints."""
    return [
        v
        for v in verdicts
        if v.misprint == "stale" or (v.verdict == "disagrees" and not v.misprint)
    ]


def summary(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many claims got which verdict; and of all, recorded misprints, stale ones, errors."""
    found = Counter(v.verdict for v in verdicts)
    return {
        "claims": len(verdicts),
        **{name: found[name] for name in VERDICTS},
        "misprints": sum(v.misprint == "recorded" for v in verdicts),
        "stale": sum(v.misprint == "stale" for v in verdicts),
        "unrecorded": len(unrecorded(verdicts)),
    }


def check(claim: Claim, known: Mapping[str, Claim] | None = None, *, run: bool = False) -> Verdict:
    """The verdict on one claim; one that fails is tried under every other reading too.

    Args:
        known: claims that it may name, by id.
        run: execute the equations at its counterexample, and say what is counted there.

    >>> claim = Claim("x", "a paper", "Table 1", "formula", "l", mixer="me",
    ...               quantity="parameters", formula="l + 1")
    >>> verdict = check(claim)
    >>> verdict.verdict, verdict.derived, verdict.difference, verdict.counterexample
    ('disagrees', 'l', '-1', {'l': 1})
    """
    finding, name, found = _judged(claim, known)
    own = own_reading(claim)
    readings = [reading.names(own) for reading in found.readings] if found else []
    verdict = Verdict(
        id=claim.id,
        source=claim.source,
        place=claim.place,
        quantity=claim.quantity,
        claimed=claimed(claim),
        derived=finding.derived,
        verdict=name,
        conventions=_conventions(claim, name, finding, readings),
        counterexample=dict(finding.counterexample),
        note=_joined(finding.note, claim.remark),
        mixer=claim.mixer,
        model=claim.model,
        phase=claim.phase,
        own=claim.convention,
        citation=claim.citation,
        difference=in_words(finding.apart),
        there={**finding.there, **(_counted(claim, finding) if run else {})},
        alternatives=tuple(readings),
        parted=finding.parted,
    )
    return _with_misprint(verdict, claim.misprint) if claim.misprint else verdict


def _conventions(
    claim: Claim, name: str, finding: Finding, readings: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """The names under which the verdict stands."""
    if name == "not-checkable":
        return ()
    if name == "agrees-under" and readings:
        return readings[0]
    return (*claim.convention, finding.under) if finding.under else claim.convention


def _judged(claim: Claim, known: Mapping[str, Claim] | None) -> tuple[Finding, str, Found | None]:
    """What was found, the verdict's name, and the readings under which it would be another one."""
    if claim.unchecked:
        return _not_checkable(claim), "not-checkable", None
    try:
        finding = evaluate(claim, own_reading(claim), known)
    except (Unanswered, Unsupported) as reason:
        return Finding(False, "", {}, str(reason)), "not-checkable", None
    if finding.holds or finding.in_limit:
        return finding, "agrees" if finding.holds else "agrees-in-limit", None
    if finding.under:
        return finding, "agrees-under", None
    own = own_reading(claim)
    if found := under(claim, known):
        words = found.readings[0].words(own)
        there = _joined(f"under {words}: {found.finding.derived}", found.finding.note)
        note = _joined(f"not under {','.join(claim.convention)}", finding.note)
        return replace(finding, note=f"{there}; {note}"), "agrees-under", found
    if found := elsewhere(claim, known):
        true = f"true of {found.readings[0].words(own)}"
        return replace(finding, note=_joined(finding.note, true)), "disagrees", found
    return finding, "disagrees", None


def _not_checkable(claim: Claim) -> Finding:
    """Nothing is compared but our own reconstruction, where there is one."""
    if claim.beside:
        return _beside(claim)
    if not claim.reconstruction:
        return Finding(False, "", {}, claim.unchecked)
    ours = evaluate(replace(claim, formula=claim.reconstruction), own_reading(claim))
    result = "equals" if ours.holds else "does not equal"
    note = f"{claim.unchecked}. {claim.reconstruction} {result} the derived count"
    return Finding(False, ours.derived, ours.counterexample, note)


def _beside(claim: Claim) -> Finding:
    """What is derived of another quantity, which the claim is not compared with."""
    words = f"beside it, {claim.beside} under {','.join(claim.convention)}"
    try:
        found = evaluate(replace(claim, quantity=claim.beside), own_reading(claim))
    except (Unanswered, Unsupported) as reason:
        return Finding(False, "", {}, _joined(claim.unchecked, f"{words}: {reason}"))
    shown = f"{words}: {found.derived}"
    return Finding(False, found.derived, {}, _joined(claim.unchecked, shown, found.note))


def _counted(claim: Claim, finding: Finding) -> dict[str, str]:
    """What running the equations at the counterexample counts."""
    if not finding.there or claim.kind != "formula":
        return {}
    from costmodel.claims.instrumented import instrumented

    counted = instrumented(claim, own_reading(claim), finding.counterexample)
    return {} if counted is None else {"instrumented": str(counted)}


def _with_misprint(verdict: Verdict, record: Mapping[str, str]) -> Verdict:
    """A recorded misprint stands while the claim disagrees with the value recorded for it."""
    if verdict.verdict == "disagrees" and verdict.derived == record["derived"]:
        note = _joined(f"misprint: {record['reason']}", verdict.note)
        return replace(verdict, misprint="recorded", note=note)
    note = f"stale misprint: it records '{record['derived']}' as the derived value"
    return replace(verdict, misprint="stale", note=_joined(note, verdict.note))


def claimed(claim: Claim) -> str:
    """One line that says what is claimed: in the grammar where there is a formula."""
    if claim.kind == "value" and claim.formula:
        unit = f"*{claim.unit}" if claim.unit else ""
        return f"{claim.formula} {claim.relation or '='} {claim.value}{unit}"
    if claim.formula:
        formula = f"O({claim.formula})" if claim.kind == "order" else claim.formula
        return f"{formula} = {claim.equals}" if claim.equals else formula
    if claim.steps:
        return path_text(path_steps(claim.steps))
    return claim.gloss or claim.claimed


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
