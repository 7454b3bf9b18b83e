"""Documents of verdicts on claims: published claims in tables, a user's claims one by one.

A claim is a printed statement about a cost, such as `mul = 4*l*d^2`; its verdict (`Verdict`, with
the words of `VERDICTS`) says whether the statement follows from the equations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from costmodel.claims.published import VERDICTS, Verdict, summary
from costmodel.errors import FormulaError, NotPolynomial
from costmodel.language.formula_text import parse
from costmodel.report.document import (
    Cell,
    Code,
    Column,
    Document,
    Formula,
    Heading,
    Paragraph,
    Part,
    Table,
)


def about(verdict: Verdict) -> str:
    """The subject of a claim in words: its network, mixer, phase and quantity."""
    words = (verdict.model, verdict.mixer, verdict.phase, verdict.quantity.replace("_", " "))
    return " ".join(word for word in words if word)


def outcome(verdict: Verdict) -> str:
    """The details of a verdict in one line: the convention under which the claim agrees, the
    derived value, the first counterexample and the note, as far as there are any."""
    parts = []
    if verdict.verdict == "agrees-under":
        parts.append(f"under {','.join(verdict.conventions)}")
    if verdict.derived and _shows_derived(verdict):
        counted = verdict.counted if verdict.counted != ("strict",) else ()
        under = f"under {','.join(counted)}: " if counted else ""
        parts.append(f"derived {under}{verdict.derived}")
    if verdict.counterexample:
        sizes = ", ".join(f"{k} = {v}" for k, v in verdict.counterexample.items())
        parts.append(f"first difference at {sizes}")
    if verdict.note:
        parts.append(verdict.note)
    return "; ".join(parts)


def _shows_derived(verdict: Verdict) -> bool:
    """Whether a line shows the derived value: of a claim that disagrees, or agrees only under a
    convention or in a limit, and of every claim O(...) or Θ(...)."""
    return verdict.verdict in ("disagrees", "agrees-under", "agrees-in-limit") or (
        verdict.claimed.startswith(("O(", "Θ("))
    )


def named(verdict: Verdict) -> str:
    """The verdict's name, with "recorded misprint" or "stale misprint" if it has one."""
    return (
        f"{verdict.verdict} ({verdict.misprint} misprint)" if verdict.misprint else verdict.verdict
    )


def titled(verdict: Verdict) -> str:
    """The source of a claim, with its citation if it has one."""
    return f"{verdict.source}: {verdict.citation}" if verdict.citation else verdict.source


LEGEND = {
    "agrees-under": "true only under another convention or reading, which is named",
    "agrees-in-limit": "true from some length on (the threshold and the smallest sizes at which "
    "the claim fails are named); an O(...): true as some sizes outgrow others",
    "stale": "a recorded misprint whose derived value has changed, or a mixer recorded as "
    "lacking that the catalogue has",
    "unrecorded": "disagreements without a recorded misprint, and stale records: any of them "
    "makes the exit code 1",
}
"""Word of the summary -> its meaning, for the words that need an explanation."""


def in_words(verdicts: Sequence[Verdict]) -> str:
    """A sentence with the number of claims by verdict; the counts that make the exit code 1 (stale
    and unrecorded disagreements) come last."""
    found = summary(verdicts)
    recorded = sum(v.verdict == "disagrees" and v.misprint == "recorded" for v in verdicts)
    shown = [
        f"{number} {name}{_recorded(recorded, number) if name == 'disagrees' else ''}"
        for name, number in found.items()
        if name not in ("claims", "misprints")
    ]
    return f"{found['claims']} claims: {', '.join(shown)}"


def _recorded(recorded: int, of: int) -> str:
    """How many of the `of` disagreements are recorded as misprints: ` (all recorded as misprints)`;
    "" if there are no disagreements."""
    if not of:
        return ""
    many = "all" if recorded == of else str(recorded or "none")
    return f" ({many} recorded as misprints)"


def published(verdicts: Sequence[Verdict]) -> Document:
    """The page of published claims: the numbers of verdicts by source, a table of claims per
    source, and a legend."""
    return Document(
        lambda: [
            Heading("Published figures and claims, checked", 1),
            Paragraph(
                (
                    "Every figure and claim is compared with the value derived from the "
                    "equations; ",
                    Code("tables/published/README.md"),
                    " describes the files of claims.",
                )
            ),
            _counts(verdicts),
            *(_table(title, list(found)) for title, found in groupby(verdicts, key=titled)),
            Paragraph((in_words(verdicts),)),
            *(Paragraph((f"{word}: {means}",), item=True) for word, means in LEGEND.items()),
        ],
        data=lambda: data(verdicts),
    )


def _counts(verdicts: Sequence[Verdict]) -> Table:
    """The table of the numbers of claims with each verdict, a row per source (whose claims follow
    each other) and, for several sources, one for all together."""
    names = ("claims", *VERDICTS, "misprints")
    groups = [(s, list(claims)) for s, claims in groupby(verdicts, key=lambda v: v.source)]
    groups += [("together", list(verdicts))] if len(groups) > 1 else []
    rows = tuple(
        (source, *(numbers[name] for name in names))
        for source, numbers in ((source, summary(claims)) for source, claims in groups)
    )
    lead = Column("source", "source", numeric=False, names=True)
    return Table("Verdicts by source", (lead, *(Column(name, name) for name in names)), rows)


def _table(title: str, verdicts: Sequence[Verdict]) -> Table:
    """The table of the claims below one title: the verdict, and the claim with its outcome."""
    columns = (
        Column("verdict", "verdict", numeric=False, wide=True, names=True),
        Column("claim", "claim -> outcome", numeric=False, wide=True),
    )
    return Table(title, columns, tuple((named(v), _claim_line(v)) for v in verdicts))


def _claim_line(verdict: Verdict) -> str:
    """One line: place, subject and claim, then the outcome after an arrow."""
    what = ": ".join(filter(None, (verdict.place, about(verdict), verdict.claimed)))
    found = outcome(verdict)
    return " ".join((f"{what} -> {found}" if found else what).split())


def checked(
    verdicts: Sequence[Verdict], left_out: Sequence[str] = (), readings: Sequence[str] = ()
) -> Document:
    """The document of a user's claims one by one, then the claims that disagree or were not
    checked, and the number of each verdict. `readings`: how words of the user's table were
    interpreted; `left_out`: which of its cells hold no claim and why."""
    beside = {"readings": list(readings), "left_out": list(left_out)}
    return Document(
        lambda: [
            *_one_by_one(verdicts),
            *(Heading("How the table was read") for _ in [*readings, *left_out][:1]),
            *(Paragraph((said,), item=True) for said in (*readings, *left_out)),
            *_listed(verdicts),
            Paragraph((_numbers_in_words(verdicts, left_out),)),
        ],
        data=lambda: data(verdicts) | {key: value for key, value in beside.items() if value},
    )


LISTED = {"disagrees": "What disagrees", "not-checkable": "What was not checked"}
"""Verdict -> the heading of the list of claims with that verdict."""


def _listed(verdicts: Sequence[Verdict]) -> Iterator[Part]:
    """Yield lists of the claims that disagree and of those not checked, one line per claim; nothing
    for a single claim, which is printed already."""
    for name, title in LISTED.items():
        found = [verdict for verdict in verdicts if verdict.verdict == name]
        if len(verdicts) > 1 and found:
            yield Heading(title)
        for verdict in found if len(verdicts) > 1 else ():
            said = f"{verdict.place}: {verdict.claimed}"
            why = f"derived {verdict.derived}" if name == "disagrees" else verdict.note
            yield Paragraph((f"{said}; {why}",), item=True)


def _one_by_one(verdicts: Sequence[Verdict]) -> Iterator[Part]:
    """Yield the claims one by one below a heading for each mixer or network; below each claim its
    verdict, derived value, difference and so on as items."""
    for title, found in groupby(verdicts, key=_subject_heading):
        yield Heading(title)
        for verdict in found:
            yield Paragraph((Code(_stated(verdict)),))
            for name, value in _items_below(verdict):
                shown = _formula(value) if name.startswith("derived") else value
                yield Paragraph((f"{name}: ", shown), item=True)


def _numbers_in_words(verdicts: Sequence[Verdict], left_out: Sequence[str]) -> str:
    """A sentence with the number of claims by verdict, and the number of rows and columns left out
    (the length of `left_out`, their reasons)."""
    counts = summary(verdicts)
    listed = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
    claims = f"{counts['claims']} claim{'s' * (len(verdicts) != 1)}"
    rest = f"; rows and columns left out: {len(left_out)}" if left_out else ""
    return f"{claims}: {', '.join(listed)}{rest}"


def _formula(text: str) -> Cell:
    """A text in the grammar of formulas (or O(...) around one) as a `Formula`, which each format
    prints in its own way; any other text, such as a path, unchanged."""
    order = text.startswith("O(") and text.endswith(")")
    try:
        return Formula(parse(text[2:-1] if order else text).poly(), "O" if order else "")
    except (FormulaError, NotPolynomial):
        return text


def data(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The object of JSON: the claims with the evidence of their verdicts (as in `Verdict`), and the
    `summary` (word of a verdict -> number of claims, ...)."""
    return {
        "claims": [
            {
                "id": v.id,
                "source": v.source,
                "place": v.place,
                "mixer": v.mixer,
                "model": v.model,
                "phase": v.phase,
                "quantity": v.quantity,
                "claimed": v.claimed,
                "derived": v.derived,
                "difference": v.difference,
                "equal_where": v.equal_where,
                "verdict": v.verdict,
                "conventions": list(v.conventions),
                "alternatives": [list(names) for names in v.alternatives],
                "counterexample": dict(v.counterexample),
                "at_counterexample": dict(v.there),
                "misprint": v.misprint,
                "note": v.note,
            }
            for v in verdicts
        ],
        "summary": summary(verdicts),
    }


MEANINGS = {
    "agrees": "it follows from the equations",
    "agrees-under": "true only as counted or read otherwise, or as an upper bound, not tight",
    "agrees-in-limit": "true in the limit that is named, not at all sizes",
    "disagrees": "false under every convention and reading tried",
    "not-checkable": "not decided; the note says why",
}
"""Verdict -> its meaning."""

TRIED = "it follows from the equations at every size tried"
"""The meaning of `agrees` for a claim that is not proven."""

UNSIZED = "the claim leaves sizes open, and is false at some of them"
"""The meaning of `disagrees` for a claim that does not name all sizes."""

MOST_ALTERNATIVES = 6
"""The most interpretations that are listed; JSON has all."""


def _subject_heading(verdict: Verdict) -> str:
    """The subject of a claim in words: network, mixer, phase and convention; else its source."""
    about = [verdict.model, verdict.mixer, verdict.phase]
    own = f"convention {','.join(verdict.own)}" if verdict.own else ""
    return ", ".join(filter(None, [*about, own])) or verdict.source


def _stated(verdict: Verdict) -> str:
    """The claim as it is written, after its place: `Table 1: mul = 4*d`."""
    place = "" if verdict.place == verdict.id else f"{verdict.place}: "
    quantity = verdict.quantity.replace("_", " ")
    equals = f"{quantity} = " if quantity else ""
    return " ".join(f"{place}{equals}{verdict.claimed}".split())


def _items_below(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the lines below a claim as (name, text): the verdict and what it means; then the
    derived value, the difference, where both are equal, the first counterexample, the conventions
    or readings under which the claim is true (the first `MOST_ALTERNATIVES`), and the note, without
    the values that the counterexample shows, as far as there are any."""
    tried = verdict.verdict == "agrees" and not verdict.proven
    unsized = verdict.verdict == "disagrees" and not verdict.sized
    means = TRIED if tried else UNSIZED if unsized else MEANINGS[verdict.verdict]
    name = f"{verdict.verdict}: {means}"
    yield "verdict", name + (f" ({verdict.misprint} misprint)" if verdict.misprint else "")
    if verdict.derived:
        yield "derived", verdict.derived
    if verdict.difference:
        yield "derived - claimed", verdict.difference
    if verdict.equal_where:
        yield "equal at least where", verdict.equal_where
    if verdict.counterexample or verdict.there:
        yield "first differs at", _counterexample(verdict)
    if verdict.alternatives:
        true = "true under" if verdict.verdict == "agrees-under" else "true of"
        shown = [", ".join(names) for names in verdict.alternatives[:MOST_ALTERNATIVES]]
        more = len(verdict.alternatives) - len(shown)
        yield true, "; or ".join(shown) + (f"; and {more} more" if more else "")
    if note := "; ".join(p for p in verdict.note.split("; ") if p != verdict.values_note):
        yield "note", note


WHO = {"derived": "derived", "claimed": "claimed", "instrumented": "counted by execution"}
"""Key of a value at a counterexample -> the words before the value."""


def _counterexample(verdict: Verdict) -> str:
    """The smallest counterexample of a claim as text: its sizes, with the derived, claimed and
    executed values there."""
    sizes = ", ".join(f"{k} = {v}" for k, v in verdict.counterexample.items()) or "all sizes"
    values = [f"{WHO[who]} {value}" for who, value in verdict.there.items()]
    if "derived" in verdict.there and "claimed" not in verdict.there:
        values.append("the claim has no value there")
    return f"{sizes}: {', '.join(values)}" if values else sizes
