"""Ratios of a total: to self-attention, to the forward pass, to the bytes moved (intensity)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodel.errors import Unanswered
from costmodel.questions.count import TOTAL, counted, operations
from costmodel.questions.question import Answer, Case, Figure, Question, quotient
from costmodel.questions.traffic import gather_notes, moved


def _ratio(case: Case) -> Answer:
    """The total of a case over the total of its baseline."""
    return quotient(case.figure(TOTAL), case.base.figure(TOTAL))


def _compared_at(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the notes below a table of ratios, if some rows lack a size of the baseline mixer or
    have a value or meaning of their own for it: the name of the baseline mixer, if it has sizes in
    braces; and these sizes, as in "ratio: mixers without heads are compared with self-attention at
    n = 8". A size is left out if all rows of the baseline mixer show one value of the size.
    `shown` (the columns) is not used: all notes take it."""
    used: dict[str, int] = {}
    # words about some rows of the table -> the sizes that stand for {} in them
    groups: dict[str, dict[str, None]] = {"without {}": {}, "with {} of their own": {}}
    for case in cases:
        try:
            base = case.base
        except Unanswered:
            continue
        for x, size in base.sizes.items():
            if x not in case.sizes or x in case.mixer.own_sizes:
                used[x] = size
                groups["with {} of their own" if x in case.sizes else "without {}"][x] = None
    if used and base.mixer.given:
        yield f"ratio: the baseline is {base.mixer.name}"
    for x in tuple(used):
        if len({row.sizes.get(x) for row in cases if row.mixer is base.mixer}) == 1:
            del used[x]
    if used:
        at = ", ".join(f"{x} = {size}" for x, size in used.items())
        said = {x: base.mixer.letter(x).meaning.partition(":")[0] for x in used}
        named = ((lead, ", ".join(said[x] for x in of if x in said)) for lead, of in groups.items())
        which = " or ".join(lead.format(sizes) for lead, sizes in named if sizes)
        yield f"ratio: mixers {which} are compared with {base.mixer.name} at {at}"


def _to_forward(case: Case) -> Answer:
    """The total of a case over the total of the forward pass of the same form and convention."""
    forward = operations(case.about.about("training").of(counted), "total")
    return quotient(case.figure(TOTAL), case.settled(case.by_tokens(forward)))


def _in_numbers(cases: Sequence[Case]) -> bool:
    """`Figure.usual` of ratios: the default table shows them if all cases have given sizes."""
    return not any(case.symbolic for case in cases)


def _intensity(case: Case) -> Answer:
    """The total of a case over its compulsory traffic in bytes."""
    total = operations(case.about.of(counted), "total")
    return quotient(case.settled(total), case.settled(moved(case, "compulsory")))


RATIO = Question(
    "ratio",
    "Ratios",
    (
        Figure(
            "ratio",
            "total over the total of self-attention",
            _ratio,
            header="ratio to\nself-attention",
            kind="ratio",
            usual=_in_numbers,
            notes=(_compared_at,),
        ),
        Figure(
            "to_forward",
            "total over the total of the forward pass",
            _to_forward,
            header="ratio to\nforward",
            heading="ratio to the forward pass",
            kind="ratio",
            phases=("backward", "training-step"),
            usual=_in_numbers,
        ),
    ),
    untallied="quotients of totals, which are tallied",
)

INTENSITY = Question(
    "intensity",
    "Arithmetic intensity",
    (
        Figure(
            "intensity",
            "total over compulsory traffic",
            _intensity,
            header="intensity\n(operations/B)",
            heading="arithmetic intensity (operations per byte)",
            unit="operations/byte",
            kind="ratio",
            notes=(gather_notes,),
        ),
    ),
    untallied="a quotient of the total and of compulsory traffic, which are tallied",
)
