"""How does the check of somebody's claims read: on a terminal, in markdown?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from costmodel.claims.published import VERDICTS, Verdict, summary
from costmodel.report import render

MEANINGS = {
    "agrees": "it follows from the equations",
    "agrees-under": "not as it says, but as counted or read otherwise",
    "agrees-in-limit": "not for all sizes, but in the limit that is named",
    "disagrees": "it does not follow, however it is counted",
    "not-checkable": "the equations do not answer it",
}
"""What each verdict says."""

MOST_ALTERNATIVES = 6
"""Readings that are listed; JSON has them all."""


def as_terminal(verdicts: Sequence[Verdict]) -> str:
    """A block for each claim, then how many got which verdict."""
    blocks = []
    for about, found in groupby(verdicts, key=_about):
        blocks.append(about)
        for verdict in found:
            rows = list(_rows(verdict))
            width = max(len(name) for name, _ in rows)
            lines = [f"    {name:<{width}}  {value}" for name, value in rows]
            blocks.append("\n".join([f"  {_stated(verdict)}", *lines]))
    return "\n\n".join([*blocks, _counted(verdicts)]) + "\n"


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """A list for each claim, then how many got which verdict."""
    parts = []
    for about, found in groupby(verdicts, key=_about):
        parts.append(f"## {render.markdown_cell(about)}")
        for verdict in found:
            lines = [f"- {name}: {render.markdown_cell(value)}" for name, value in _rows(verdict)]
            parts.append("\n".join([f"### `{_stated(verdict)}`", "", *lines]))
    return "\n\n".join([*parts, _counted(verdicts)]) + "\n"


def _about(verdict: Verdict) -> str:
    """What the claim is about, under which convention it is read."""
    about = [verdict.model, verdict.mixer, verdict.phase]
    own = f"convention {','.join(verdict.own)}" if verdict.own else ""
    return ", ".join(filter(None, [*about, own])) or verdict.source


def _stated(verdict: Verdict) -> str:
    """The claim as it stands."""
    place = "" if verdict.place == verdict.id else f"{verdict.place}: "
    quantity = verdict.quantity.replace("_", " ")
    equals = f"{quantity} = " if quantity else ""
    return " ".join(f"{place}{equals}{verdict.claimed}".split())


def _rows(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """What was found, line by line."""
    name = f"{verdict.verdict}: {MEANINGS[verdict.verdict]}"
    yield "verdict", name + (f" ({verdict.misprint} misprint)" if verdict.misprint else "")
    if verdict.derived:
        yield "derived", verdict.derived
    if verdict.difference:
        yield "derived - claimed", verdict.difference
    if verdict.counterexample or verdict.there:
        yield "first parts at", _parting(verdict)
    if verdict.alternatives:
        true = "true under" if verdict.verdict == "agrees-under" else "true of"
        shown = [", ".join(names) for names in verdict.alternatives[:MOST_ALTERNATIVES]]
        more = len(verdict.alternatives) - len(shown)
        yield true, "; or ".join(shown) + (f"; and {more} more" if more else "")
    if note := "; ".join(p for p in verdict.note.split("; ") if p != verdict.parted):
        yield "note", note


WHO = {"derived": "derived", "claimed": "claimed", "instrumented": "counted while running"}


def _parting(verdict: Verdict) -> str:
    """The smallest counterexample and what each gives there."""
    sizes = ", ".join(f"{k} = {v}" for k, v in verdict.counterexample.items()) or "all sizes"
    values = [f"{WHO[who]} {value}" for who, value in verdict.there.items()]
    if "derived" in verdict.there and "claimed" not in verdict.there:
        values.append("the claim has no value there")
    return f"{sizes}: {', '.join(values)}" if values else sizes


def _counted(verdicts: Sequence[Verdict]) -> str:
    found = summary(verdicts)
    named = [f"{found[name]} {name}" for name in VERDICTS if found[name]]
    return f"{found['claims']} claim{'s' * (len(verdicts) != 1)}: {', '.join(named)}"
