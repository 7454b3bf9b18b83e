"""Is dot-product attention faster and more space-efficient than additive attention, in practice?

The claim: Vaswani et al., "Attention Is All You Need" (2017, arXiv 1706.03762), section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodel.report.document import Column, Heading, Note, Paragraph, Part, Strong, Table
from profiler.records.measurement import Measurement
from profiler.scaling.derived import OPERATIONS
from profiler.scaling.growth import DerivedGrowth, Scaling, scalings
from profiler.studies.grid import GridStudy, Scale
from profiler.studies.page import count_words
from profiler.studies.pairs import Pair, by_setting, pairs, with_energy
from profiler.studies.published_times import claim
from profiler.studies.ratios import Ratio, ends
from profiler.studies.tables import every_implementation, growing

ADDITIVE, DOT = "additive-attention", "dot-product-attention"
PHASES = ("training", "training-step")
CLAIM = "vaswani.s3.2.1.additive"
"""The claim's id in tables/published."""


def answer(found: Sequence[Pair], growths: Sequence[Scaling]) -> Iterator[Paragraph]:
    """The three parts of the claim, each by what follows or was measured."""
    printed = claim(CLAIM)
    yield Paragraph((printed.claimed,), quote=True)
    yield Paragraph((f"{printed.source}, {printed.place}",), quote=True)
    said = {
        "In theory": similar(found, growths),
        "Faster": tally([p.time for p in found], "is faster", "is slower"),
        "More space-efficient": tally(
            [p.memory for p in found], "needs less memory", "needs more memory"
        ),
    }
    energy = [p.energy for p in found if not p.energy.refused]
    if energy:
        said["In energy"] = tally(energy, "takes less energy", "takes more energy")
    yield from (Paragraph((Strong(part), f": {words}")) for part, words in said.items())


def similar(found: Sequence[Pair], growths: Sequence[Scaling]) -> str:
    """Derived operations beside each other, and how they grow."""
    ratios = [1 / p.operations for p in found if p.operations]
    if not ratios:
        return "no point was measured that both can be counted at."
    words = f"additive attention takes {min(ratios):.3g} to {max(ratios):.3g} times the operations"
    powers: dict[str, list[float]] = {}
    for each in growths:
        growth = each.derived.get(OPERATIONS)
        if each.series.letter == "l" and isinstance(growth, DerivedGrowth):
            powers.setdefault(each.series.mixer, []).append(growth.power)
    grown = [
        f"{name}'s grow with the power {min(p):.2f} to {max(p):.2f} of l"
        for name, p in powers.items()
    ]
    return "; ".join([words, *grown]) + "."


def tally(found: Sequence[Ratio], less: str, more: str) -> str:
    """How often dot-product attention is shown to cost less, over all points."""
    known = [r for r in found if not r.refused]
    if not known:
        return f"not compared: {found[0].refused if found else 'nothing was measured'}"
    fewer, larger = [r for r in known if r.less], [r for r in known if r.more]
    same = len(known) - len(fewer) - len(larger)
    refused = len(found) - len(known)
    return (
        f"dot-product attention {less} at {count_words(len(fewer), len(known), 'point')}"
        f"{ends(fewer)}, {more} at {len(larger)}{ends(larger)}, and at {same} no difference is "
        f"shown{f'; {refused} not compared' if refused else ''}."
    )


COLUMNS = (
    Column("l", "l", names=True),
    Column("fastest", "fastest: dot-product / additive", numeric=False),
    Column("operations", "operations, derived"),
    Column("time", "time of dot-product", numeric=False),
    Column("memory", "its peak memory", numeric=False),
    Column("energy", "its energy", numeric=False),
)


def compared(found: Sequence[Pair]) -> Iterator[Table]:
    """A table for each setting."""
    note = (
        "each by its implementation of the least median there; the hidden layer of additive "
        "attention is as wide as the model, f = d; operations by the equations alone; "
        "intervals hold together at 95 % for all points of the page; memory repeats to the byte"
    )
    for setting, own in by_setting(found):
        rows = tuple(
            (
                str(p.l),
                f"{p.second[1]} / {p.first[1]}",
                "not derived" if p.operations is None else f"{p.operations:.3g} times",
                p.time.words(),
                p.memory.words("less", "more"),
                p.energy.words("less", "more"),
            )
            for p in own
        )
        notes = (Note((note,)),) if setting == found[-1].setting else ()
        title = f"Dot-product beside additive attention: {setting.words}"
        yield with_energy(Table(title, COLUMNS, rows, notes), found)


def parts(study: GridStudy, records: Sequence[Measurement]) -> Sequence[Part]:
    """The page's own parts."""
    found = pairs(records, ADDITIVE, (DOT,))
    growths, problems = scalings([r for r in records if not r.failure])
    return (
        Heading("What is claimed, and what is found"),
        *answer(found, growths),
        *compared(found),
        *growing(growths, problems),
        *every_implementation(records, ("latency", "peak_memory", "energy")),
    )


STUDY = GridStudy(
    name="additive-against-dot-product",
    question="Is dot-product attention faster and more space-efficient than additive attention?",
    mixers=(ADDITIVE, DOT),
    scales={
        "cuda": Scale(
            lengths="64:16384:x2", widths="64,512", dtypes="fp32,bf16", phases=PHASES,
            rounds=2, seconds=2.0, operations=5 * 10**13, live_bytes=None,
        ),
        "cpu": Scale(
            lengths="32:1024:x2", widths="64", dtypes="fp32", phases=PHASES,
            rounds=1, seconds=1.0, operations=4 * 10**9, live_bytes=2 * 10**9,
            instead="on a CPU: no width of 512, no bf16 and no length over 1024, so that the study "
            "takes minutes; one round",
        ),
    },
    parts=parts,
    as_wide=("f",),
)  # fmt: skip
