"""Does the shorter critical path of the Extractors show on a machine, and what does each cost?

The Extractors: Chen, "Attention Is Not the Only Choice: Counterpart of Self-Attention in
Transformers" (2023, arXiv 2308.07661).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodel.report.document import (
    Cell,
    Column,
    Heading,
    Note,
    Paragraph,
    Part,
    Strong,
    Table,
)
from profiler.records.measurement import Measurement
from profiler.records.words import scaled
from profiler.scaling.growth import scalings
from profiler.studies.grid import GridStudy, Scale
from profiler.studies.page import count_words
from profiler.studies.pairs import Pair, by_setting, pairs, with_energy
from profiler.studies.ratios import ends
from profiler.studies.tables import every_implementation, growing, per_token, settings

BASE = "self-attention"
FAMILY = ("she", "he", "we", "me")
PHASES = ("training", "training-step", "inference")

READINGS = ("latency", "latency_graph", "peak_memory", "energy")
"""What the tables of all implementations are of."""


def shows(pair: Pair) -> str:
    """Whether the shorter path shows at a point: only where it is faster for no other reason."""
    if not pair.shorter:
        return "its path is no shorter"
    if pair.time.refused:
        return "not known"
    if pair.bound:
        return "not known: bound by launches"
    if not pair.time.less:
        return "no"
    if pair.operations is None:
        return "faster; operations not derived"
    return "yes" if pair.operations >= 1 else "faster, with fewer operations"


def answer(found: Sequence[Pair]) -> Iterator[Paragraph]:
    """A paragraph for each Extractor, every word of it from the pairs."""
    if not found:
        said = f"No point was measured at which {BASE} and an Extractor can be compared"
        yield Paragraph((f"{said}: the question is open.",))
    for name in dict.fromkeys(pair.second[0] for pair in found):
        own = [pair for pair in found if pair.second[0] == name]
        yield Paragraph((Strong(name), f": {standing(own)}"))


def standing(own: Sequence[Pair]) -> str:
    """How one mixer stands to the base over all points."""
    number = len(own)
    known = [pair for pair in own if not pair.time.refused]
    less, more = [p for p in known if p.time.less], [p for p in known if p.time.more]
    same = [p for p in known if p not in less and p not in more]
    shorter = [p for p in own if p.shorter]
    said = [
        f"its critical path has fewer steps than that of {BASE} at "
        f"{count_words(len(shorter), number, 'point')}",
        f"it is faster at {len(less)}{ends([p.time for p in less])}, slower at "
        f"{len(more)}{ends([p.time for p in more])}, and no difference is shown at {len(same)}",
    ]
    if number > len(known):
        said.append(f"{number - len(known)} not compared")
    launches = [pair for pair in known if pair.bound]
    if launches:
        said.append(f"at {len(launches)} launches decide, so that the path cannot show")
    shown = [pair for pair in shorter if shows(pair) == "yes"]
    fewer = [pair for pair in shorter if shows(pair) == "faster, with fewer operations"]
    said.append(
        f"the shorter path shows (faster in spite of as many operations or more) at {len(shown)}; "
        f"where it is faster with fewer operations, at {len(fewer)}, either may be why"
    )
    return "; ".join(said) + "."


COLUMNS = (
    Column("mixer", "mixer", numeric=False, names=True),
    Column("l", "l", names=True),
    Column("fastest", "its fastest / that of self-attention", numeric=False),
    Column("steps", "steps of the path"),
    Column("span", "span, derived"),
    Column("operations", "operations, derived"),
    Column("time", "time", numeric=False),
    Column("shows", "the path shows", numeric=False),
    Column("memory", "peak memory", numeric=False),
    Column("energy", "energy", numeric=False),
)


def compared(found: Sequence[Pair]) -> Iterator[Table]:
    """A table for each setting."""
    note = (
        "ratios: of the mixer to self-attention, each by its implementation of the least median "
        "there; derived ones by the equations alone; time: CUDA graph replay where both have it, "
        "else hot; intervals hold together at 95 % for all points of the page; memory repeats to "
        "the byte"
    )
    for setting, own in by_setting(found):
        rows = tuple(_row(pair) for pair in own)
        notes = (Note((note,)),) if setting == found[-1].setting else ()
        title = f"Beside {BASE}: {setting.words}"
        yield with_energy(Table(title, COLUMNS, rows, notes), found)


def _row(pair: Pair) -> tuple[Cell, ...]:
    steps = f"{pair.steps[1]} / {pair.steps[0]}" if pair.steps else "not derived"
    return (
        pair.second[0],
        str(pair.l),
        f"{pair.second[1]} / {pair.first[1]}",
        steps,
        _times(pair.span),
        _times(pair.operations),
        pair.time.words(),
        shows(pair),
        pair.memory.words("less", "more"),
        pair.energy.words("less", "more"),
    )


def _times(value: float | None) -> str:
    return "not derived" if value is None else f"{value:.3g} times"


def joules(records: Sequence[Measurement]) -> list[Paragraph]:
    """What each costs in joules a token, at the largest length that it was measured at; or why
    nobody knows."""
    said = []
    for cells in settings(records):
        for (mixer, implementation), lengths in cells.candidates.items():
            known = {l: j for l, rs in lengths.items() if (j := per_token(rs)) is not None}
            if known:
                largest = max(known)
                said.append(
                    f"{mixer} {implementation} ({cells.setting.words}): "
                    f"{scaled(known[largest], 'J')} a token at l = {largest}"
                )
    if said:
        return [Paragraph((sentence,), item=True) for sentence in said]
    given = (r.reasons["energy"] for r in records if "energy" in r.reasons)
    return [Paragraph((f"No energy was measured: {next(given, 'no record says why')}.",))]


def parts(study: GridStudy, records: Sequence[Measurement]) -> Sequence[Part]:
    """The page's own parts."""
    found = pairs(records, BASE, FAMILY)
    growths, problems = scalings([r for r in records if not r.failure])
    return (
        Heading("Does the shorter critical path show?"),
        *answer(found),
        *compared(found),
        Heading("What does each cost in joules?"),
        *joules(records),
        *growing(growths, problems),
        *every_implementation(records, READINGS),
    )


STUDY = GridStudy(
    name="extractors",
    question="Does the shorter critical path of the Extractors show, and what does each cost?",
    mixers=(BASE, *FAMILY),
    scales={
        "cuda": Scale(
            lengths="128:131072:x2", widths="128,1024", dtypes="fp32,bf16", phases=PHASES,
            rounds=1, seconds=2.0, operations=5 * 10**13, live_bytes=None,
        ),
        "cpu": Scale(
            lengths="128:1024:x2", widths="128", dtypes="fp32", phases=PHASES,
            rounds=1, seconds=0.5, operations=4 * 10**9, live_bytes=2 * 10**9,
            instead="on a CPU: no width of 1024, no bf16 and no length over 1024, so that the "
            "study takes minutes; one round",
        ),
    },
    parts=parts,
)  # fmt: skip
