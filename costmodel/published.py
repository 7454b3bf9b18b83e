"""Which printed figures and claims agree with what the equations give, and where do they part?

The claims are data, one file a source, under `tables/published/`. Each gets one verdict:

- agrees: equal for all sizes, or true at the sizes that it speaks about;
- agrees-under: only under another convention, which is named;
- agrees-in-limit: a claim about most sizes that holds from some length on, with its exact
  threshold and the smallest sizes at which it fails;
- disagrees: with the derived value and the smallest sizes at which the two part;
- not-checkable: with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from costmodel.claims import Claim, PublishedError, load
from costmodel.comparisons import Finding, evaluate, path_text
from costmodel.composites import SCALES
from costmodel.conventions import ACCOUNTINGS, convention
from costmodel.data import data_dir
from costmodel.tokens import Unanswered

VERDICTS = ("agrees", "agrees-under", "agrees-in-limit", "disagrees", "not-checkable")


@dataclass(frozen=True)
class Verdict:
    """What became of one claim.

    `counterexample` holds the smallest sizes at which claim and derivation part, or `step`, the
    first step of a path at which they do. `misprint` is "", or "recorded" (a known disagreement,
    counted openly), or "stale" (the record no longer fits what is derived: an error of the data).
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
    phase: str = ""


def verify(paths: Sequence[Path] | None = None) -> list[Verdict]:
    """Check every claim of the given files, or of all that come with the project.

    Raises:
        PublishedError: a file that cannot be read, or an id that occurs twice.
    """
    files = sorted(data_dir("published").glob("*.json")) if paths is None else list(paths)
    claims = [claim for path in files for claim in load(path)]
    twice = [name for name, times in Counter(c.id for c in claims).items() if times > 1]
    if twice:
        raise PublishedError(f"claims with the same id: {', '.join(sorted(twice))}")
    return [check(claim) for claim in claims]


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


def check(claim: Claim) -> Verdict:
    """The verdict on one claim; one that fails is tried under every other convention too.

    >>> claim = Claim("x", "a paper", "Table 1", "formula", "l", mixer="me",
    ...               quantity="parameters", formula="l + 1")
    >>> verdict = check(claim)
    >>> verdict.verdict, verdict.derived, verdict.counterexample
    ('disagrees', 'l', {'l': 1})
    """
    finding, name, names = _judged(claim)
    verdict = Verdict(
        id=claim.id,
        source=claim.source,
        place=claim.place,
        quantity=claim.quantity,
        claimed=_claimed(claim),
        derived=finding.derived,
        verdict=name,
        conventions=names,
        counterexample=dict(finding.counterexample),
        note=_joined(finding.note, claim.remark),
        mixer=claim.mixer,
        phase=claim.phase,
    )
    return _with_misprint(verdict, claim.misprint) if claim.misprint else verdict


def _judged(claim: Claim) -> tuple[Finding, str, tuple[str, ...]]:
    """What was found, the verdict's name, and the convention under which it stands."""
    if claim.unchecked:
        return _not_checkable(claim), "not-checkable", ()
    try:
        finding = evaluate(claim, claim.convention)
    except Unanswered as reason:
        return Finding(False, "", {}, str(reason)), "not-checkable", ()
    if finding.holds or finding.in_limit:
        return finding, "agrees" if finding.holds else "agrees-in-limit", claim.convention
    for names in _other_conventions(claim):
        other = evaluate(claim, names)
        if other.holds:
            note = _joined(other.note, f"not under {','.join(claim.convention)}: {finding.derived}")
            return replace(other, note=note), "agrees-under", names
    return finding, "disagrees", claim.convention


def _not_checkable(claim: Claim) -> Finding:
    """Nothing is compared but our own reconstruction, where there is one."""
    if not claim.reconstruction:
        return Finding(False, "", {}, claim.unchecked)
    ours = evaluate(replace(claim, formula=claim.reconstruction), claim.convention)
    result = "equals" if ours.holds else "does not equal"
    note = f"{claim.unchecked}. {claim.reconstruction} {result} the derived count"
    return Finding(False, ours.derived, ours.counterexample, note)


def _with_misprint(verdict: Verdict, record: Mapping[str, str]) -> Verdict:
    """A recorded misprint stands while the claim disagrees with the value recorded for it."""
    if verdict.verdict == "disagrees" and verdict.derived == record["derived"]:
        note = _joined(f"misprint: {record['reason']}", verdict.note)
        return replace(verdict, misprint="recorded", note=note)
    note = f"stale misprint: it records '{record['derived']}' as the derived value"
    return replace(verdict, misprint="stale", note=_joined(note, verdict.note))


def _claimed(claim: Claim) -> str:
    """One line that says what is claimed: in the grammar where there is a formula."""
    if claim.formula:
        return f"{claim.formula} = {claim.equals}" if claim.equals else claim.formula
    if claim.steps:
        return path_text(claim.steps.split())
    return claim.gloss or claim.claimed


def _other_conventions(claim: Claim) -> Iterator[tuple[str, ...]]:
    """Every other combination of accounting and rewrites, the shortest first."""
    optional = (("", "dense"), ("", "safe-softmax"), ("", *SCALES[1:]))
    combinations = (tuple(filter(None, names)) for names in product(ACCOUNTINGS, *optional))
    for names in sorted(combinations, key=len):
        if convention(names) != convention(claim.convention):
            yield names


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
