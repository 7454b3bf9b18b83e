"""Does each published claim agree with the derived answers, and at which sizes does it differ?

A claim is checked under an interpretation (convention, phase, form, ...), which gives a finding; if
the claim's own interpretation fails, others are tried.
The claims are data, one file per source, under `tables/published/`. Each claim gets one verdict:

- agrees: equal for all sizes, or true at the sizes that the claim gives;
- agrees-under: true only under another convention or interpretation, which the verdict names, or
  an O(...) of a line that is a true upper bound, not tight;
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from costmodel.claims.claim import Claim
from costmodel.claims.findings import Finding, join_notes
from costmodel.claims.interpretations import Interpretation, alternatives, of_others
from costmodel.claims.quantities import mixer_of
from costmodel.claims.records import load
from costmodel.data import data_dir
from costmodel.errors import PublishedError, SizeError, TooMuch, Unanswered, Unsupported
from costmodel.mixers import builtin, names
from costmodel.program.chosen_sizes import combinations, fit, letters_of
from costmodel.symbolic.effort import limited


@dataclass(frozen=True)
class HoldingUnder:
    """The interpretations nearest to the claim's own under which the claim holds, and the finding
    under the first of them."""

    interpretations: Sequence[Interpretation]
    finding: Finding


def under(claim: Claim, known: Mapping[str, Claim] | None = None) -> HoldingUnder | None:
    """The nearest interpretations in the claim's own phase under which the claim holds, such as the
    accounting `mac`; None if there are none."""
    own = claim.interpretation
    return _nearest(claim, own, alternatives(own, claim.choices()), known)


def in_limit_under(claim: Claim, known: Mapping[str, Claim] | None = None) -> HoldingUnder | None:
    """The claim's own interpretation with sorting by merging (`sort=merge`), or with the new token
    at t = l or l + 1, if an O(...) agrees under it where some of the sizes grow beyond the others;
    else None. None also for claims that are no O(...). Other forms and masked pairs are not tried:
    they would be other algorithms.

    `known`: the claims by name that this claim may refer to.
    """
    own, left_open = claim.interpretation, claim.choices()
    if not left_open.growing:
        return None
    merging = (*own.convention, "sort=merge")
    tried = [
        one
        for one in alternatives(own, left_open)
        if (one == replace(own, convention=one.convention) and {*one.convention} == {*merging})
        or one == replace(own, position=one.position)
    ]
    return _nearest(claim, own, tried, known, holds=lambda finding: finding.in_limit)


def elsewhere(claim: Claim, known: Mapping[str, Claim] | None = None) -> HoldingUnder | None:
    """The interpretations in another phase, or of a variant of the mixer, under which a claim
    holds; None if there are none."""
    own = claim.interpretation
    return _nearest(claim, own, of_others(own, claim.choices()), known)


def _nearest(
    claim: Claim,
    own: Interpretation,
    tried: Sequence[Interpretation],
    known: Mapping[str, Claim] | None,
    holds: Callable[[Finding], bool] = lambda finding: finding.holds,
) -> HoldingUnder | None:
    """Of `tried`, sorted by their number of changes from the claim's `own` interpretation, those
    with the fewest changes under which the claim holds, or `holds` is true of the finding; None if
    there are none. `known`: claims that an intersection may name, by id."""
    found: dict[object, Finding] = {}  # a cache, by what interpretations of equal answers share
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
    """The finding under an interpretation (form, phase, convention), or None if the claim has no
    answer or cannot be read there. `found` caches findings by a key that interpretations with the
    same answer share; `known`: claims that an intersection may name, by id."""
    try:
        key = claim.outcome_key(interpretation)
        if key not in found:
            found[key] = claim.finding(interpretation, known)
        return found[key]
    except ValueError:
        return None


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
    counted: tuple[str, ...] = ()
    """The convention of the derived value; () where no convention changes it."""
    citation: str = ""
    difference: str = ""
    there: Mapping[str, str] = field(default_factory=dict)
    alternatives: tuple[tuple[str, ...], ...] = ()
    values_note: str = ""
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


def verify(
    paths: Sequence[Path] | None = None, *, run: bool = False, processes: int = 1
) -> list[Verdict]:
    """Check every claim of the given files, or of all that come with the project.

    Args:
        run: also execute the equations at counterexamples, and report the operations counted.
        processes: how many check at the same time, each all claims about its share of the mixers.

    Raises:
        PublishedError: a file or a claim that cannot be read, or an id that occurs twice.
    """
    files = published_files() if paths is None else list(paths)
    claims = [claim for path in files for claim in load(path)]
    twice = [name for name, times in Counter(c.id for c in claims).items() if times > 1]
    if twice:
        same = ", ".join(sorted(twice))
        raise PublishedError(f"claims with the same id: {same}: give each claim another id")
    known = {claim.id: claim for claim in claims}
    parts = _parts(claims, processes)
    checked = partial(_checked, known, run)
    if len(parts) < 2:
        return checked([*known])
    with ProcessPoolExecutor(len(parts)) as pool:
        found = {verdict.id: verdict for part in pool.map(checked, parts) for verdict in part}
    return [found[name] for name in known]


def _checked(known: Mapping[str, Claim], run: bool, ids: Sequence[str]) -> list[Verdict]:
    """The verdicts on the claims with these ids, which one process checks."""
    return [check(known[name], known, run=run) for name in ids]


def _parts(claims: Sequence[Claim], number: int) -> list[list[str]]:
    """At most `number` lists of ids of claims, of about equal length, one list for each process;
    claims about the same mixer or network, which share derived answers, stay in one list."""
    about: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        about.setdefault((claim.mixer.partition("+")[0], claim.model), []).append(claim.id)
    parts: list[list[str]] = [[] for _ in range(max(number, 1))]
    for ids in sorted(about.values(), key=len, reverse=True):
        min(parts, key=len).extend(ids)
    return [part for part in parts if part]


def unrecorded(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that must fail a run: disagreements that the data does not record as misprints,
    and records of misprints that are no longer true."""
    return [
        v
        for v in verdicts
        if v.misprint == "stale" or (v.verdict == "disagrees" and not v.misprint)
    ]


def summary(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Counts by name: of claims, of those with each verdict, of misprints recorded in the data and
    still true, of stale records, and of verdicts that must fail a run."""
    found = Counter(v.verdict for v in verdicts)
    return {
        "claims": len(verdicts),
        **{name: found[name] for name in VERDICTS},
        "misprints": sum(v.misprint == "recorded" for v in verdicts),
        "stale": sum(v.misprint == "stale" for v in verdicts),
        "unrecorded": len(unrecorded(verdicts)),
    }


def check(claim: Claim, known: Mapping[str, Claim] | None = None, *, run: bool = False) -> Verdict:
    """The verdict on one claim. A claim that fails is tried under all other interpretations (form,
    phase, convention) and, if it leaves sizes open, at the default sizes; one of too much effort is
    "not-checkable". If the claim records a misprint, or says what the catalogue lacks, the verdict
    says whether this is still true.

    Args:
        known: the claims by id, which a claim about the intersection of others names.
        run: also execute the equations at the counterexample, and report the operations counted.

    Raises:
        PublishedError: the claim cannot be read; the message names the claim.

    >>> from costmodel.claims.comparisons import FormulaClaim
    >>> claim = FormulaClaim(id="x", source="a paper", place="Table 1", claimed="l", mixer="me",
    ...                      quantity="parameters", formula="l + 1")
    >>> verdict = check(claim)
    >>> verdict.verdict, verdict.derived, verdict.difference, verdict.counterexample
    ('disagrees', 'l', '-1', {'l': 1})
    """
    sized = True
    with claim.naming():  # an unknown mixer or network, also of a claim that is not checked
        by_convention = claim.choices().conventions
    try:
        with limited():
            finding, name, found = _finding_and_verdict(claim, known)
            # only a claim that is right nowhere may mean the default sizes without saying so
            somewhere = finding.compared is not None and finding.compared.equal_where
            wrong = name == "disagrees" and not somewhere and not found
            if wrong and (needed := claim.sizes_left_open()):
                sized = False
                finding, name, found = _at_default_sizes(claim, needed, finding)
    except TooMuch as reason:
        finding, name, found = Finding(False, "", {}, str(reason)), "not-checkable", None
    counted = claim.interpretation.convention if by_convention else ()
    verdict = _verdict(claim, name, finding, found, counted, run=run, sized=sized)
    if claim.lacks and (name := _built_in(claim.lacks)):
        note = f"stale: the claim says that {claim.lacks} is lacking, and the catalogue has {name}"
        return replace(verdict, misprint="stale", note=note)
    return _with_misprint(verdict, claim.misprint) if claim.misprint else verdict


def _verdict(
    claim: Claim,
    name: str,
    finding: Finding,
    found: HoldingUnder | None,
    counted: tuple[str, ...],
    *,
    run: bool,
    sized: bool,
) -> Verdict:
    """The verdict `name` on a claim with the evidence of a finding and `found`, the other
    interpretations under which the claim holds. `counted`: the convention, () if the claim has none
    to choose; `run`: execute the counterexample; `sized`: False at default sizes."""
    own = claim.interpretation
    interpretations = (
        [interpretation.names(own) for interpretation in found.interpretations] if found else []
    )
    return Verdict(
        id=claim.id,
        source=claim.source,
        place=claim.place,
        quantity=claim.quantity,
        claimed=claim.words,
        derived=finding.derived,
        verdict=name,
        conventions=_verdict_conventions(claim, name, finding, interpretations),
        counterexample=dict(finding.counterexample),
        note=join_notes(finding.note, claim.remark),
        mixer=claim.mixer,
        model=claim.model,
        phase=claim.phase,
        own=claim.convention,
        counted=counted,
        citation=claim.citation,
        difference=finding.compared.difference if finding.compared else "",
        there={**finding.there, **(_instrumented_count(claim, finding) if run else {})},
        alternatives=tuple(interpretations),
        values_note=finding.values_note,
        equal_where=finding.compared.equal_where if finding.compared else "",
        proven=finding.compared is None or finding.compared.proven,
        sized=sized,
    )


def _built_in(words: str) -> str:
    """The name of the first built-in mixer whose name, alias or title contains `words` as whole
    words; "" if none does."""
    whole = re.compile(rf"\b{re.escape(words)}\b", re.IGNORECASE)
    for name in names():
        mixer = builtin(name)
        if any(map(whole.search, (name, *mixer.aliases, mixer.title))):
            return name
    return ""


def _verdict_conventions(
    claim: Claim, name: str, finding: Finding, interpretations: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """The names of the convention under which the verdict was found (the claim's own, or the first
    of `interpretations`), and phrases for other changes: "rounded down"; () if not checkable."""
    if name == "not-checkable":
        return ()
    if name == "agrees-under" and interpretations:
        return interpretations[0]
    return (*claim.convention, finding.under) if finding.under else claim.convention


def _finding_and_verdict(
    claim: Claim, known: Mapping[str, Claim] | None
) -> tuple[Finding, str, HoldingUnder | None]:
    """(finding, name of the verdict, other interpretations under which the claim holds). The
    verdict is `agrees`, `agrees-in-limit`, `agrees-under` (another interpretation or reading, or an
    upper bound), `disagrees` or `not-checkable`. The interpretations are None if the claim's own
    decides, or if it holds under no other. `known`: all claims by id, to which the claim may
    refer."""
    if claim.left_open:
        return claim.unchecked_finding(), "not-checkable", None
    try:
        finding = claim.finding(claim.interpretation, known)
    except (Unanswered, Unsupported) as reason:
        return Finding(False, "", {}, str(reason)), "not-checkable", None
    if finding.holds or finding.in_limit:
        return finding, "agrees" if finding.holds else "agrees-in-limit", None
    if finding.under:
        return finding, "agrees-under", None
    own = claim.interpretation
    other = under(claim, known)
    if found := other or in_limit_under(claim, known):
        words = found.interpretations[0].words(own)
        there = join_notes(f"under {words}: {found.finding.derived}", found.finding.note)
        note = join_notes(f"not under {','.join(claim.convention)}", finding.note)
        verdict = "agrees-under" if other else "agrees-in-limit"
        return replace(finding, note=f"{there}; {note}"), verdict, found
    if finding.bounded:
        return finding, "agrees-under", None
    if found := elsewhere(claim, known):  # the note names them; the verdict stays
        true = f"true of {found.interpretations[0].words(own)}"
        return replace(finding, note=join_notes(finding.note, true)), "disagrees", found
    return finding, "disagrees", None


def _at_default_sizes(
    claim: Claim, needed: Sequence[str], general: Finding
) -> tuple[Finding, str, HoldingUnder | None]:
    """(finding, verdict, other interpretations), as `_finding_and_verdict` gives, for a claim that
    does not name the sizes `needed`.

    If the claim is right at the default sizes: the finding and verdict there. Else `general`, the
    finding for all sizes, with a note: the value at the default sizes, or why there are none; and
    `disagrees`.
    """
    number = not claim.letters  # a claim without formulas in sizes
    what = "a number and no sizes" if number else f"no {', '.join(needed)}"
    gives = f"the claim gives {what}"
    mixer = mixer_of(claim.mixer)
    try:
        (every,) = combinations(letters_of(mixer, "inference"), {}, mixer)  # the default sizes
        fit(mixer, every)
    except SizeError:
        without = [x for x in letters_of(mixer, "training") if mixer.letter(x).default is None]
        why = (
            f"{mixer.name} has no default for {', '.join(without)}"
            if without
            else f"the default sizes do not fit {mixer.name}"
        )
        note = f"{gives}, and {why}"
        return replace(general, note=join_notes(general.note, note)), "disagrees", None
    sizes = {letter: every[letter] for letter in needed}
    finding, name, found = _finding_and_verdict(
        replace(claim, sizes={**claim.sizes, **sizes}), None
    )
    at = ", ".join(f"{letter} = {value}" for letter, value in sizes.items())
    if name not in ("agrees", "agrees-under"):
        value = f"is {finding.there.get('derived', 'a different number')}" if number else "differs"
        note = f"{gives}; at the default sizes {at} the derived value {value}"
        return replace(general, note=join_notes(general.note, note)), "disagrees", None
    tried = replace(finding.compared, proven=False) if finding.holds and finding.compared else None
    note = f"tried at the default sizes {at}, as {gives}"
    return Finding(finding.holds, general.derived, note=note, compared=tried), name, found


def _instrumented_count(claim: Claim, finding: Finding) -> dict[str, str]:
    """The number counted by executing the equations at the counterexample, under the key
    `instrumented`; {} for a claim without a compared formula or counterexample, and if execution
    does not count the quantity."""
    if not finding.there or finding.compared is None:
        return {}
    from costmodel.claims.instrumented import instrumented

    counted = instrumented(claim, claim.interpretation, finding.counterexample)
    return {} if counted is None else {"instrumented": str(counted)}


def _with_misprint(verdict: Verdict, record: Mapping[str, str]) -> Verdict:
    """The verdict with its record of a misprint marked "recorded", if the claim disagrees and its
    derived value is the one in `record`, else "stale"; the note gives the reason."""
    if verdict.verdict == "disagrees" and verdict.derived == record["derived"]:
        note = join_notes(f"misprint: {record['reason']}", verdict.note)
        return replace(verdict, misprint="recorded", note=note)
    note = f"stale misprint: the record has '{record['derived']}' as the derived value"
    return replace(verdict, misprint="stale", note=join_notes(note, verdict.note))
