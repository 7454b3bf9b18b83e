"""How many scalar operations of each class does a mixer execute?

The operations executed at each point are summed over all points in closed form: the counts are
exact polynomials in the sizes, piecewise if needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Unpack

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.language.functions import CLASSES, TABLE
from costmodel.language.nodes import SCANS, SELECTIONS, Fft, Scan, Select, walk
from costmodel.program.conventions import OF_ALGORITHMS, Convention
from costmodel.program.lowering import lower
from costmodel.program.phases import TRAINING_STEP, phase_name
from costmodel.questions.counting.by_equation import count_equations
from costmodel.questions.counting.counts import WEIGHTINGS, Counts, require_counted, with_once
from costmodel.questions.counting.empty_sums import empty_sums
from costmodel.questions.counting.peers import Contraction, added, contraction_counts, summed
from costmodel.questions.question import (
    BATCH,
    PLAIN,
    Adding,
    Answers,
    Case,
    Figure,
    Question,
    Share,
    Tally,
    always,
    never,
    over_parts,
)
from costmodel.questions.shares import explained, peer_equations
from costmodel.questions.subject import Training, about_mixer, asked, system_of
from costmodel.symbolic.piecewise import Exact


@about_mixer
def count(
    mixer: Mixer,
    phase: str = "training",
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Counts:
    """Count a mixer's operations in a phase.

    Args:
        phase: `training` (the forward pass over l tokens), `inference` (one token at t), `backward`
            or `training-step`.
        form: the form's name; the default form if None.
        convention: one accounting and any rewrites, or one peer (the counter of another tool).
        training: options of a backward pass, which every question about a phase takes: `recompute`
            ("all" or arrays), `only` ("parameters" or "inputs") and `loss` (its name).

    Returns:
        Exact counts for one sequence; work on parameters alone is separate, in `.once`.

    Raises:
        Unanswered: inference of a form that has none, or gradients of a peer that counts none.
        Unsupported: an equation whose operations, or whose gradient, are not derived.

    Source of the default convention: Chen 2023, arXiv 2308.07661v1, Tables 3 and 4.

    >>> import costmodel as cm
    >>> cm.count(cm.mixer("self-attention")).mul
    4*d**2*l + d*l**2 + d*l
    """
    chosen = asked(convention, phase, training)
    phase = phase_name(phase)
    if chosen.peer:
        return summed(peer_equations(mixer, phase, form, chosen.peer), chosen.peer)
    return _of_equations(system_of(mixer, form, chosen.rewrites, phase), phase, chosen.accounting)


@cache
def _of_equations(system: System, phase: str, accounting: str) -> Counts:
    """The sum of the operations of all equations of a system in a phase."""
    return sum(count_equations(system, phase, accounting).values(), Counts({}, Counts({})))


def _of_parts(shares: Sequence[Share[Counts]]) -> Counts:
    """The operations of a network from `shares` (each part's answer, its runs and its sets of
    weights): a part's operations times its runs; work on weights alone times the sets."""
    peer = shares[0].answer.peer if shares else None
    found = Counts({}, Counts({}, peer=peer), peer)
    for share in shares:
        found = added(found, share.answer.scaled(share.sizes, share.runs, share.copies))
    return found


@over_parts(_of_parts)
def counted(about: Answers) -> Counts:
    """The `Counts` of one form, phase and convention."""
    return count(about.mixer, about.phase, about.form, about.convention)


def contracted(about: Answers) -> Mapping[str, Contraction]:
    """Array -> its contraction, as `contraction_counts` gives them, of one form and phase."""
    return contraction_counts(about.system, about.phase)


def operations(counts: Counts, name: str, adding: Adding = PLAIN) -> Exact:
    """The number of operations of b sequences, exact in the sizes: of one class, of all classes
    ("total"), or of all classes but mul, add, div and exp ("other"). `adding`: the weight of each
    class in the total, and whether work on weights alone, done once for all sequences, is included
    (None: in the total alone).

    Raises:
        Unanswered: a peer (the counter of another tool) that does not count the class.
    """
    value = _weighed(counts, name, adding) * BATCH
    if name in ("add", "total"):  # gradients of weights are added up over the b sequences
        weight = 1 if name == "add" else WEIGHTINGS[adding.weighting].of("add")
        value = value + counts.joined * (BATCH - 1) * weight
    once = name == "total" if adding.once is None else adding.once
    return value + _weighed(counts.once, name, adding) if once and counts.once else value


def _weighed(counts: Counts, name: str, adding: Adding) -> Exact:
    """The number of operations of one sequence: of the class `name`, of "other" (all classes but
    mul, add, div and exp), or of "total", where each class counts with its weight. Work on weights
    alone (`counts.once`) is not included."""
    if name == "other":
        return sum(_others(counts).values(), Exact())
    if name != "total":
        return counts.exact(name)
    result = Exact()
    for class_name, value in counts.classes.items():
        result = result + value * WEIGHTINGS[adding.weighting].of(class_name)
    return result


def _others(counts: Counts) -> dict[str, Exact]:
    """The operations of one sequence by class, without mul, add, div and exp."""
    require_counted("other", counts.peer)
    return {name: value for name, value in counts.classes.items() if name not in CLASSES}


def other(case: Case) -> dict[str, Exact]:
    """The operations of b sequences by class, without mul, add, div and exp."""
    return {name: value * BATCH for name, value in _others(case.about.of(counted)).items()}


def once(case: Case) -> dict[str, Exact]:
    """The operations on weights alone by class, which are executed once for all sequences."""
    counts = case.about.of(counted)
    require_counted("once", counts.peer)
    return dict(counts.once.classes) if counts.once else {}


def _sum_of(parts: Callable[[Case], dict[str, Exact]]) -> Callable[[Case], Exact]:
    return lambda case: sum(parts(case).values(), Exact())


def _where_any(parts: Callable[[Case], dict[str, Exact]]) -> Callable[[Sequence[Case]], bool]:
    """A function of a table's cases, for `Figure.usual`: whether some case has a term, so that the
    default table shows the column whose terms are `parts`."""

    def usual(cases: Sequence[Case]) -> bool:
        """Whether `parts` of some case has an entry; False for cases without an answer."""
        for case in cases:
            try:
                if not case.blocked and parts(case):
                    return True
            except (Unanswered, Unsupported):
                continue
        return False

    return usual


def _class(name: str, meaning: str, heading: str, within: str = "") -> Figure:
    """The figure (a table's column) of one class of operations.

    Args:
        heading: the column's title.
        within: the figure that the class is a part of; such a column is never shown by default.
    """
    return Figure(
        name,
        meaning,
        lambda case: operations(case.about.of(counted), name, case.adding),
        heading=heading,
        key=f"counts.{name}",
        unit="operations",
        per_token=True,
        usual=never if within else always,
        claimed=True,
        within=within,
        notes=(
            _notes_on_once,
            *((_notes_on_empty_sums,) if name in ("add", "mul") else ()),
            _notes_on_algorithms,
        ),
    )


def _tallied(about: Answers, sizes: Mapping[str, int]) -> dict[str, int]:
    """Class -> operations at these sizes, for comparison with an execution; zeros left out. Work on
    weights alone has the key `once CLASS`; in phases with gradients it is added to CLASS."""
    found = about.of(counted).at(**sizes)
    if about.phase in TRAINING_STEP:
        return with_once(found)
    once = found.once.by_class() if found.once else {}
    apart = {f"once {name}": number for name, number in once.items()}
    return {name: n for name, n in sorted((found.by_class() | apart).items()) if n}


def _notes_on_once(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the notes below a table with a row per case and the columns `shown`: which operations
    the total includes and single classes leave out, and which operations a column `other` has."""
    there = [case for case in cases if not case.blocked]
    if any(isinstance(parts := case.parts(ONCE), dict) and parts for case in there):
        where = "column once" if "once" in shown else "shown by column once"
        work = f"the work done once for the weights ({where})"
        classes = ", ".join(name for name in (*CLASSES, *OTHER, "other") if name in shown)
        lead = f"{classes} leave out {work}; total includes it"
        yield f"once: {lead if classes else f'total includes {work}'}"
    if "other" not in shown:
        return
    others = [found for case in there if isinstance(found := case.parts(OTHERS), dict)]
    if names := sorted({name for found in others for name in found} - {*shown}):
        of = "operations without a class of their own, here"
        yield f"other: {of} {', '.join(names)}; total includes them"


def _notes_on_empty_sums(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the notes below a table (a row per case) on gradients that at its sizes have entries
    without any term: these zeros count as operands. `shown` (the columns) is not used: all notes
    take it."""
    for case in cases:
        if case.phase not in TRAINING_STEP or case.symbolic or case.blocked:
            continue
        try:
            names = ", ".join(a.name for a in empty_sums(case.about.system, case.sizes))
        except (Unanswered, Unsupported):
            continue  # the row's cells show the reason
        if names:
            yield (
                f"{case.mixer.name}: some entries of {names} are empty sums at these sizes; "
                "these zeros count as operands"
            )


def _notes_on_algorithms(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the notes below a table (a row per case) on algorithms whose operations are counted in
    place of those of a library: of transforms, of selections (sorts, largest entries), of scans and
    of the gradient of a gather. `shown` (the columns) is not used: all notes take it."""
    kinds: set[str] = set()
    for case in cases:
        form = case.mixer.forms[case.form]
        kinds |= {"fft" for e in form.equations for node, _ in walk(e.value) if type(node) is Fft}
        if any(isinstance(e.value, Select | Scan) for e in form.equations):
            rewrites = tuple(r for r in case.about.convention.rewrites if r in OF_ALGORITHMS)
            values = [equation.value for equation in lower(form, rewrites).equations]
            kinds |= {value.kind for value in values if isinstance(value, Select | Scan)}
    if "fft" in kinds:
        yield (
            "Fourier transforms are nominal: radix-2, log2 of a length rounded up, a complex "
            "product is 4 mul and 2 add"
        )
    if any(case.phase in TRAINING_STEP and case.gathers for case in cases):
        yield "gather: its gradient adds once for each gathered entry"
    for kind in (kind for kind in SELECTIONS if kind in kinds):
        yield f"comparisons of {kind} are nominal: {SELECTIONS[kind]}"
    for kind in (kind for kind in SCANS if kind in kinds):
        yield (
            f"scans of N rows are {SCANS[kind]}, each a product and a sum, and a product of "
            "decays; L is log2 N rounded up, P is 2^L"
        )


TOTAL = Figure(
    "total",
    "all operations, each counted 1",
    lambda case: operations(case.about.of(counted), "total", case.adding),
    unit="operations",
    per_token=True,
    usual=always,
    claimed=True,
    notes=(_notes_on_once, _notes_on_empty_sums, _notes_on_algorithms),
)


OTHER = tuple(sorted({step for f in TABLE.values() for step in f.steps} - {*CLASSES} | {"compare"}))
"""The classes besides mul, add, div and exp; the default table shows their sum."""

OTHERS = Figure(
    "other",
    "every other operation",
    lambda case: operations(case.about.of(counted), "other", case.adding),
    heading="other operations",
    key="counts.other",
    parts=other,
    unit="operations",
    kind="names",
    per_token=True,
    usual=_where_any(other),
    claimed=True,
    notes=(_notes_on_once, _notes_on_algorithms),
)
ONCE = Figure(
    "once",
    "work on weights alone, done once per forward pass",
    _sum_of(once),
    heading="done once",
    parts=once,
    unit="operations",
    per_token=True,
    usual=_where_any(once),
    notes=(_notes_on_once,),
)

COUNT = Question(
    "count",
    "Operations",
    (
        _class("mul", "multiplications", "multiplications"),
        _class("add", "additions and subtractions", "additions"),
        _class("div", "divisions", "divisions"),
        _class("exp", "exponentiations", "exponentiations"),
        OTHERS,
        ONCE,
        TOTAL,
        *(_class(name, f"operations {name}", name, "other") for name in OTHER),
    ),
    count,
    (Tally("counts", _tallied),),
    explained=explained,
)
