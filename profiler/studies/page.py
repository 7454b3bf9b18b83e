"""The page of any study: its question, its command, its own parts, what is missing, the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from costmodel.report.document import Code, Document, Heading, Paragraph, Part, Strong
from profiler.host.statement import paragraphs
from profiler.records.measurement import REASON, Measurement
from profiler.records.quantities import COMPARED
from profiler.records.words import PHASES, sizes_words
from profiler.studies.study import counted, grouped, kind_of

OF_A_CPU = Paragraph((
    Strong("These are figures of a CPU. They say nothing about a GPU"),
    ", where the answers may differ.",
))  # fmt: skip
SHOWN = 6
"""The number of failed points that a sentence names; the rest are counted."""


def page(
    name: str,
    question: str,
    records: Sequence[Measurement],
    source: str,
    parts: Iterable[Part],
    left_out: Sequence[str],
) -> Document:
    """Make the page of a study: question, the study's own `parts`, missing points and why, machine
    and software.

    Args:
        name: the study in commands.
        source: the file of the records.
        left_out: sentences on the points that the plan itself leaves out.
    """
    kind = kind_of(records)
    written = (
        "Written by ",
        Code(f"costmodel study {name} --from {source} --page FILE.md"),
        " from the records of that file alone; every sentence on what was measured is computed "
        "from them.",
    )
    found = [
        Heading(question, 1),
        Paragraph(written),
        *([OF_A_CPU] if kind == "cpu" else []),
        *parts,
        Heading("What was not measured, and why"),
        *missing(records, left_out),
        Heading("Machine and software"),
        *paragraphs(records),
    ]
    return Document(lambda: found)


def missing(records: Sequence[Measurement], left_out: Sequence[str]) -> list[Paragraph]:
    """List items on what was not measured: each reason for absent readings (time, memory, energy:
    `COMPARED`), each kind of failed points, and the sentences `left_out` on points outside the
    plan; a single paragraph if nothing is missing."""
    measured = [record for record in records if not record.failure]
    reasons = {
        each.reading: [r.reasons[each.reading] for r in measured if each.reading in r.reasons]
        for each in COMPARED
    }
    absent = {
        f"{name} ({len(found)} of {len(measured)} records)": found
        for name, found in reasons.items()
        if found
    }
    said = [*grouped(absent), *failed(records), *left_out]
    if not said:
        return [Paragraph(("Everything that was planned was measured.",))]
    return [Paragraph((sentence,), item=True) for sentence in said]


def failed(records: Sequence[Measurement]) -> list[str]:
    """A sentence for each kind of failure, "out of memory, 2 points: A; B. Most often: REASON": the
    points that failed in every attempt, `SHOWN` by name, and the most frequent latest reason."""
    measured = {point_words(record) for record in records if not record.failure}
    kinds: dict[str, dict[str, str]] = {}  # kind -> point in words -> reason
    for record in records:
        words = point_words(record)
        if record.failure and words not in measured:
            kind = str(record.failure.get("kind", "failed"))
            kinds.setdefault(kind, {})[words] = record.reasons.get(REASON, "no reason is recorded")
    said = []
    for kind, points in kinds.items():
        named = "; ".join(list(points)[:SHOWN])
        more = f" and {len(points) - SHOWN} more" if len(points) > SHOWN else ""
        often = Counter(points.values()).most_common(1)[0][0]
        said.append(f"{kind}, {counted(len(points), 'point')}: {named}{more}. Most often: {often}")
    return said


def point_words(record: Measurement) -> str:
    """A point in words, such as `she reference (forward pass, fp32, b = 1, l = 64)`."""
    return (
        f"{record.mixer} {record.implementation} ({PHASES[record.phase]}, {record.dtype}, "
        f"{sizes_words(record.sizes)})"
    )
