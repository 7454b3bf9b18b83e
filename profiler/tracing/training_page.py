"""A page on the cost of training for every mixer, by its equations and as modules dispatch it.

First the results of the equations: forward and backward, their ratio (2 for matrix products alone),
activations, the largest live set and intensity. Then every implementation, traced: the switches
that lead from the equations to the dispatched operations, for all sizes at once, and the
unexplained rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.chosen_sizes import divisors, letters_of, multiples
from costmodel.program.conventions import FUSED_ATTENTION, Convention
from costmodel.questions.best_size import free_size
from costmodel.questions.count import count
from costmodel.questions.question import SELECTS, Missing
from costmodel.report import mixer_document
from costmodel.report.document import (
    Column,
    Document,
    Formula,
    Heading,
    Marked,
    Named,
    Note,
    Paragraph,
    Part,
    Row,
    Table,
    Text,
    listed,
)
from costmodel.report.mixer_table import Request, table
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.printing import formula_latex
from costmodel.symbolic.sizes import LETTERS
from profiler.modules.registry import Implementation, implementations
from profiler.tracing import trace
from profiler.tracing.cases import SETTLED
from profiler.tracing.compare_equations import Difference, compare_passes
from profiler.tracing.divisions import floors_in
from profiler.tracing.meta_run.target import TraceError
from profiler.tracing.result import Trace

SIZES = {"d": (128,), "l": (128,)}
PHASES = ("training", "backward", "training-step")
NUMBERS = ("mixer", "form", "mul", "add", "div", "exp", "other", "total", "to_forward",
           "activations", "peak", "intensity")  # fmt: skip
FORMULAS = ("mixer", "form", "total", "activations", "peak")
LONGEST = 5_000
"""Characters of LaTeX, about a screen of formula, above which the page prints a dash."""
MOST_CASES = LONGEST // 50
"""Cases above which a formula counts as longer than `LONGEST`: to join cases, which tells the
length, takes minutes for so many."""
TOO_LONG = f"the formula has more than {LONGEST:,} characters or {MOST_CASES} cases: {SELECTS}"
AT_SIZES = (
    f"`costmodel table MIXER:FORM --phase training-step --d 128 --l 128 --columns "
    f"{','.join(FORMULAS[2:])}`, with the mixer and the form of the row"
)
"""The command for the numbers in place of the dashes of a row."""
MOST_ROWS = 12
"""The most cases of a backward pass, a row each."""
FUSED = frozenset((FUSED_ATTENTION, "recurrent-layer"))
"""Kernel classes whose operations a trace counts as one each."""

TRACED = (
    Column("mixer", "mixer", numeric=False, names=True),
    Column("implementation", "implementation", numeric=False, names=True),
    Column("pass", "pass", numeric=False, names=True),
    Column("switches", "from the equations by", numeric=False, wide=True),
    Column("left", "left unexplained", numeric=False, wide=True),
)


def document(mixers: Sequence[Mixer], *, modules: bool) -> Document:
    """Make the document on the cost of training of these mixers. With `modules` every
    implementation is traced, which takes minutes."""

    def parts() -> Iterator[Part]:
        """Yield the page's parts: the later ones take minutes."""
        yield Heading("What training costs", 1)
        yield from derived(mixers)
        if modules:
            yield traced_modules(mixers)

    return Document(parts)


def derived(mixers: Sequence[Mixer]) -> Iterator[Part]:
    """Yield the results of the equations as tables: numbers at d = l = 128 for every phase, then
    formulas of a training step, with a dash in place of a long formula. A mixer is shown by its
    name."""
    at_sizes = Request(
        tuple(mixers), given=SIZES, phases=PHASES, form="all", convention=Convention(),
        columns=NUMBERS,
    )  # fmt: skip
    as_letters = Request(
        tuple(mixers), phases=("training-step",), form="all", columns=FORMULAS, symbolic=True
    )
    for request in (at_sizes, as_letters):
        found = mixer_document.document(table(request), printable=_as_on_page)
        yield from map(Paragraph, found.lead)
        yield from found.parts()


def _as_on_page(cell: Text) -> Text:
    """A cell as the page prints it: a mixer by its name, as commands take it; a dash, with the
    command for its number, in place of a formula with more than `MOST_CASES` cases, before cases of
    one value are joined, or more than `LONGEST` characters of LaTeX."""
    if isinstance(cell, Named):
        return cell.text
    if isinstance(cell, Marked) and isinstance(cell.cell, Named):
        return replace(cell, cell=cell.cell.text)
    if isinstance(cell, Missing) and cell.reason.endswith(SELECTS):
        return Missing(f"{cell.reason}: {AT_SIZES}")
    if not isinstance(cell, Formula):
        return cell
    value = cell.value
    parted = isinstance(value, Exact) and value.has_more_cases(MOST_CASES)
    if parted or len(formula_latex(value)) > LONGEST:
        return Missing(f"{TOO_LONG}: {AT_SIZES}")
    return cell


def traced_modules(mixers: Sequence[Mixer]) -> Table:
    """Make a table of every implementation of these mixers, traced, and compared pass by pass."""
    rows = [
        row
        for mixer in mixers
        for described in implementations(mixer).values()
        for row in rows_of_module(mixer, described)
    ]
    notes = (
        f"left unexplained: operations by class, for sizes from {SETTLED} on; empty where the "
        "switches explain all",
        "a free size is one that another form lacks, such as the rows of a chunk: `costmodel "
        "trace` takes long for such a module, whose formulas follow only from runs over many "
        "chunks of several sizes",
    )
    return Table("Modules, traced", TRACED, tuple(rows), tuple(Note((note,)) for note in notes))


def rows_of_module(mixer: Mixer, described: Implementation) -> Iterator[Row]:
    """Yield the rows of one implementation of a mixer: a row per pass, and per case of a pass; one
    row with the reason if the module cannot be traced or compared."""
    with suppress(Unanswered):  # raised without a free size
        chunk = free_size(mixer, described.form)
        yield (mixer.name, described.name, "", "", f"not traced: the form has a free size, {chunk}")
        return
    try:
        found = compare_passes(_trace(mixer, described), mixer, MOST_ROWS)
    except TraceError as error:
        yield (mixer.name, described.name, "", "", f"not traced: {error}")
        return
    for difference in found:
        yield (
            mixer.name,
            described.name,
            f"{difference.phase}, {difference.case}" if difference.case else difference.phase,
            ", ".join(cause.name for cause in difference.causes),
            _unexplained_words(difference),
        )


def _trace(mixer: Mixer, described: Implementation) -> Trace:
    """Trace a module over the letters of its form's equations; d is n heads of width h, and a size
    that another size divides is a multiple of it, n = g*q with a letter q that the equations lack.
    If the module calls fused kernels, the `fused` backend counts each as one operation. If the
    equations have no gradient, the forward pass is traced alone. If the equations count by
    quotients of sizes, formulas by cases are left to the comparison, which writes a size by its
    quotient: a search here would end without formulas after `MOST_RUNS` runs."""
    parts = multiples(mixer)
    letters = [x for x in letters_of(mixer, "training", described.form) if x != "b"]
    over = {x: str(parts.get(x, 1)) for x in letters}
    lets: list[str] = []
    if "n" in over:
        lets.append("d=n*h")
        over["h"] = "1"
        del over["d"]
    free = (x for x in LETTERS if x not in {*over, "d", "b", "t"})
    for size, divisor in divisors(mixer).items():
        whole = "h" if size == "d" and "h" in over else size
        if divisor in over and whole in over and whole != "l" and (size, divisor) != ("d", "n"):
            quotient = next(free)
            lets.insert(0, f"{whole}={divisor}*{quotient}")
            over[quotient] = over.pop(whole)
    grad = "both"
    try:
        count(mixer, "backward", described.form, ("strict", *described.rewrites))
    except Unsupported:
        grad = "none"
    backend = "math" if FUSED.isdisjoint((described.kernels or {}).values()) else "fused"
    return trace(
        described.module,
        over=",".join(map(":".join, over.items())),
        let=lets,
        backend=backend,
        grad=grad,
        memory=False,
        cases=not counts_by_quotients(mixer, described),
    )


def counts_by_quotients(mixer: Mixer, described: Implementation) -> bool:
    """Whether the equations of an implementation count by quotients of two sizes, as floor(l/B) is
    and floor(l/2) is not: the comparison then writes a size by its quotient, l = B*q + r."""
    counts = count(mixer, "training", described.form, ("strict", *described.rewrites))
    polys = [
        poly
        for exact in counts.classes.values()
        for guards, value in exact.pieces
        for poly in (*guards, value)
    ]
    return any(floor.args[1].constant() is None for floor in floors_in(polys))


def _unexplained_words(difference: Difference) -> Text:
    """A cell with the part of the difference that the switches leave unexplained, class by class
    ("" if there is none), or why the pass is not compared."""
    if difference.reason:
        return f"not compared: {difference.reason}"
    left = difference.unexplained.items()
    return listed(((f"{name} ", Formula(poly)) for name, poly in left), "; ")
