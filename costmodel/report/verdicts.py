"""How do the verdicts on published claims read, one line a claim?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from costmodel.claims.published import VERDICTS, Verdict, summary
from costmodel.report import cells, render, typeset


def about(verdict: Verdict) -> str:
    """What a claim is about: network, mixer, phase and quantity."""
    words = (verdict.model, verdict.mixer, verdict.phase, verdict.quantity.replace("_", " "))
    return " ".join(word for word in words if word)


def outcome(verdict: Verdict) -> str:
    """What was found beside the verdict."""
    parts = []
    if verdict.verdict == "agrees-under":
        parts.append(f"under {','.join(verdict.conventions)}")
    if verdict.derived and _shows_derived(verdict):
        parts.append(f"derived {verdict.derived}")
    if verdict.counterexample:
        sizes = ", ".join(f"{k} = {v}" for k, v in verdict.counterexample.items())
        parts.append(f"they part at {sizes}")
    if verdict.note:
        parts.append(verdict.note)
    return "; ".join(parts)


def _shows_derived(verdict: Verdict) -> bool:
    """Whether a line says what is derived: where that is not what is claimed, and beside O(...)."""
    return verdict.verdict in ("disagrees", "agrees-under", "agrees-in-limit") or (
        verdict.claimed.startswith("O(")
    )


def named(verdict: Verdict) -> str:
    """The verdict's name, with what is known of a misprint."""
    return (
        f"{verdict.verdict} ({verdict.misprint} misprint)" if verdict.misprint else verdict.verdict
    )


def titled(verdict: Verdict) -> str:
    """The source of a claim, with its citation where there is one."""
    return f"{verdict.source}: {verdict.citation}" if verdict.citation else verdict.source


def as_terminal(verdicts: Sequence[Verdict]) -> str:
    """One line a claim, grouped by source, and the summary."""
    width = max((len(named(v)) for v in verdicts), default=0)
    lines = []
    for title, found in groupby(verdicts, key=titled):
        lines.append(title)
        for verdict in found:
            what = ": ".join(filter(None, (verdict.place, about(verdict), verdict.claimed)))
            result = outcome(verdict)
            line = " ".join(f"{what} -> {result}".split()) if result else " ".join(what.split())
            lines.append(f"  {named(verdict):<{width}}  {line}")
        lines.append("")
    return "\n".join([*lines, in_words(verdicts), "", *legend()]) + "\n"


LEGEND = {
    "agrees-under": "true only under another convention or reading, which is named",
    "agrees-in-limit": "true from some length on, the threshold being named, and the smallest "
    "sizes at which the claim fails; or, of an O(...), as some sizes outgrow others",
    "stale": "a misprint is recorded that what is derived no longer bears out",
    "unrecorded": "disagreements that no misprint records, and stale ones: any of them makes the "
    "exit code 1",
}
"""What the words of the summary mean that do not say it themselves."""


def in_words(verdicts: Sequence[Verdict]) -> str:
    """The summary as a sentence; whatever fails a run stands at its end."""
    found = summary(verdicts)
    recorded = sum(v.verdict == "disagrees" and v.misprint == "recorded" for v in verdicts)
    shown = [
        f"{number} {name}{_recorded(recorded, number) if name == 'disagrees' else ''}"
        for name, number in found.items()
        if name not in ("claims", "misprints")
    ]
    return f"{found['claims']} claims: {', '.join(shown)}"


def _recorded(recorded: int, of: int) -> str:
    if not of:
        return ""
    many = "all" if recorded == of else str(recorded or "none")
    return f" ({many} recorded as misprints)"


def legend() -> list[str]:
    """A line for every word of the legend."""
    return [f"{word}: {meaning}" for word, meaning in LEGEND.items()]


def grids(verdicts: Sequence[Verdict]) -> list[cells.Grid]:
    """One table a source."""
    columns = tuple(
        cells.Column(name, name, numeric=False, wide=name != "verdict")
        for name in ("verdict", "place", "about", "claimed", "outcome")
    )
    return [
        cells.Grid(
            source,
            columns,
            tuple((named(v), v.place, about(v), v.claimed, outcome(v)) for v in found),
        )
        for source, found in groupby(verdicts, key=lambda v: v.source)
    ]


def counted(verdicts: Sequence[Verdict]) -> cells.Grid:
    """How many claims of each source got which verdict, and of all together."""
    names = ("claims", *VERDICTS, "misprints")
    groups = [(s, list(found)) for s, found in groupby(verdicts, key=lambda v: v.source)]
    groups += [("together", list(verdicts))] if len(groups) > 1 else []
    rows = []
    for source, found in groups:
        numbers = summary(found)
        rows.append((source, *(str(numbers[name]) for name in names)))
    columns = tuple(cells.Column(name, name) for name in names)
    lead = cells.Column("source", "source", numeric=False)
    return cells.Grid("", (lead, *columns), tuple(rows))


def as_markdown(verdicts: Sequence[Verdict], command: str) -> str:
    """A page: how many claims got which verdict, then one table a source.

    Args:
        command: what makes the page again; it stands in the first line.
    """
    lead = (
        f"<!-- {command} -->\n\n# Published figures and claims, checked\n\n"
        f"Made by `{command}`; every figure and claim is held against what follows from the "
        "equations. `tables/published/README.md` says how they are written down.\n"
    )
    listed = "".join(f"- {line}\n" for line in legend())
    parts = [lead, render.markdown(counted(verdicts)), f"{in_words(verdicts)}\n", listed]
    citations = {v.source: v.citation for v in verdicts}
    for grid in grids(verdicts):
        heading, _, table = render.markdown(grid).partition("\n\n")
        citation = citations[grid.title]
        parts.append("\n\n".join(filter(None, (heading, render.markdown_cell(citation), table))))
    return "\n".join(parts)


def as_latex(verdicts: Sequence[Verdict], command: str) -> str:
    """One long table a source, and the summary."""
    parts = [typeset.preamble(command)]
    for grid in grids(verdicts):
        caption = f"Claims of {grid.title} against what the equations give."
        parts.append(typeset.latex(grid, (caption,), long=True))
    listed = [rf"\par {typeset.escaped(line)}." for line in legend()]
    return "\n".join([*parts, typeset.escaped(in_words(verdicts)) + ".", *listed]) + "\n"


def as_json(verdicts: Sequence[Verdict]) -> str:
    """Schema 1: claims, one a line, and the summary."""
    claims = [
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
            "verdict": v.verdict,
            "conventions": list(v.conventions),
            "alternatives": [list(names) for names in v.alternatives],
            "counterexample": dict(v.counterexample),
            "at_counterexample": dict(v.there),
            "misprint": v.misprint,
            "note": v.note,
        }
        for v in verdicts
    ]
    inside = ",\n  ".join(map(json.dumps, claims))
    counts = json.dumps(summary(verdicts))
    return f'{{"schema": 1, "claims": [\n  {inside}\n], "summary": {counts}}}\n'
